//! `onepool devices`: what each device can do, why one cannot be used, which one `auto` is.

use std::process::ExitCode;

use serde::Serialize;

use super::error::{CliError, chain};
use super::output::Output;
use super::table::{Table, bytes};
use crate::backend::DeviceInfo;
use crate::memory::import::ImportRules;
use crate::registry::{Registry, default_selector};

/// Arguments of `onepool devices`.
#[derive(Clone, Debug, clap::Args)]
pub(super) struct Args {
    /// Only the devices of this API: `vulkan`, `cpu`, ...
    api: Option<String>,
}

/// A device as `--json` prints it.
#[derive(Serialize)]
struct Row {
    /// What `--device` takes to open it.
    selector: String,
    /// Whether it is opened where none is named.
    default: bool,
    #[serde(flatten)]
    info: DeviceInfo,
}

/// An API that cannot be used.
#[derive(Serialize)]
struct Unavailable {
    api: &'static str,
    reason: String,
}

#[derive(Serialize)]
struct Report {
    devices: Vec<Row>,
    unavailable: Vec<Unavailable>,
}

/// Runs the command.
///
/// # Errors
/// [`CliError::Usage`] for an API that does not exist, [`CliError::Stdout`].
pub(super) fn run(args: &Args, out: &mut Output) -> Result<ExitCode, CliError> {
    let registry = Registry::with_defaults();
    let default = registry.find(&default_selector()).ok();
    let mut report = Report { devices: Vec::new(), unavailable: Vec::new() };
    let wanted = |api: &str| args.api.as_deref().is_none_or(|w| w.eq_ignore_ascii_case(api));
    let list = registry.list();
    if !list.iter().any(|api| wanted(api.api)) {
        let apis: Vec<&str> = list.iter().map(|api| api.api).collect();
        let named = args.api.as_deref().unwrap_or_default();
        return Err(CliError::usage(format!(
            "there is no device API {named:?}; there are {}",
            apis.join(", ")
        )));
    }
    for api in list.into_iter().filter(|api| wanted(api.api)) {
        match api.devices {
            Ok(devices) => report.devices.extend(devices.into_iter().map(|info| Row {
                selector: format!("{}:{}", info.api, info.index),
                default: default.as_ref().is_some_and(|d| d.api == info.api && d.index == info.index),
                info,
            })),
            Err(e) => report.unavailable.push(Unavailable { api: api.api, reason: chain(&e) }),
        }
    }
    out.json(&report)?;
    let mut table = Table::new(["", "device", "name", "kind", "memory", "host memory", "usable"]);
    for Row { selector, default, info } in &report.devices {
        table.row([
            if *default { "*" } else { "" },
            selector,
            &info.name,
            &format!("{:?}", info.kind).to_lowercase(),
            &memory(info),
            import_word(info),
            if info.unusable.is_none() { "yes" } else { "no" },
        ]);
    }
    out.table(&table)?;
    for row in &report.devices {
        details(row, out)?;
    }
    for Unavailable { api, reason } in &report.unavailable {
        out.line(format_args!("\n{api} cannot be used: {reason}"))?;
    }
    if report.devices.iter().any(|d| d.default) {
        out.line("\n* is opened where no --device is given")?;
    }
    Ok(ExitCode::SUCCESS)
}

fn import_word(info: &DeviceInfo) -> &'static str {
    match &info.import {
        Some(rules) if rules.alignment <= 1 => "used in place",
        Some(_) => "imported",
        None => "copied",
    }
}

/// The sizes of subgroups that kernels may ask for.
fn subgroups_on_request(info: &DeviceInfo) -> String {
    let [least, most] = info.subgroup_range;
    if least == most { String::new() } else { format!(", {least} to {most} on request") }
}

/// How much memory a device has; one that does not know uses the host's.
fn memory(info: &DeviceInfo) -> String {
    const BEYOND: u64 = 1 << 50;
    if info.limits.memory_bytes >= BEYOND { "the host's".to_owned() } else { bytes(info.limits.memory_bytes) }
}

fn details(row: &Row, out: &mut Output) -> Result<(), CliError> {
    let Row { selector, info, .. } = row;
    out.line(format_args!("\n{selector}  {}", info.name))?;
    if let Some(reason) = &info.unusable {
        out.line(format_args!("  cannot be used: {reason}"))?;
    }
    out.line(format_args!("  driver    {}; speaks {} {}", info.driver, info.api, info.api_version))?;
    let shared = if info.unified { "shared with the host" } else { "its own" };
    out.line(format_args!("  memory    {}, {shared}", memory(info)))?;
    let l = &info.limits;
    if !info.native {
        out.line(format_args!(
            "  buffers   up to {}; an argument up to {}, at multiples of {} B",
            bytes(l.max_buffer_bytes),
            bytes(l.max_argument_bytes),
            l.argument_alignment
        ))?;
        out.line(format_args!(
            "  groups    up to {} work-items, {} of local memory; subgroups of {}{}",
            l.max_group_items,
            bytes(l.max_local_bytes.into()),
            info.subgroup,
            subgroups_on_request(info)
        ))?;
        out.line(format_args!("  features  {}", info.features))?;
    }
    match &info.import {
        Some(rules) if rules.alignment <= 1 => out.line("  import    uses the caller's pointers")?,
        Some(rules) => out.line(format_args!("  import    {}", import_rules(rules)))?,
        None => out.line("  import    cannot import host memory: bound tensors are copied")?,
    }
    for advice in &info.advice {
        out.line(format_args!("  advice    {advice}"))?;
    }
    Ok(())
}

/// The rules in words.
fn import_rules(rules: &ImportRules) -> String {
    let mut text = format!(
        "whole pages at multiples of {} B, up to {}",
        rules.alignment.max(rules.size_multiple),
        bytes(rules.max_bytes)
    );
    let kinds = match (rules.anonymous_only, rules.private_only) {
        (true, _) => "anonymous private memory only",
        (false, true) => "private mappings only",
        (false, false) => "any mapping",
    };
    text += ": ";
    text += kinds;
    if rules.memfd_importable && (rules.anonymous_only || rules.private_only) {
        text += " and memory files";
    }
    if !rules.read_only_importable {
        text += ", writable";
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rules_are_said_in_words() {
        let text = import_rules(&ImportRules::strict());
        assert_eq!(
            text,
            "whole pages at multiples of 4096 B, up to 2.0 GiB: anonymous private memory only, writable"
        );
        let loose = ImportRules {
            anonymous_only: false,
            memfd_importable: true,
            read_only_importable: true,
            ..ImportRules::strict()
        };
        assert!(import_rules(&loose).ends_with("private mappings only and memory files"));
    }
}
