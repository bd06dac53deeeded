//! `onepool devices`: what each device can do, why one cannot be used, which one `auto` is.

use std::process::ExitCode;

use serde::Serialize;

use super::error::{CliError, chain};
use super::open::{CacheArgs, selector};
use super::output::Output;
use super::table::{Table, bytes};
use onepool::backend::DeviceInfo;
use onepool::device::{Context, CostReport};
use onepool::memory::import::ImportRules;
use onepool::memory::model::{MemoryModel, Placement};
use onepool::registry::{OpenError, Registry};

/// Arguments of `onepool devices`.
#[derive(Clone, Debug, clap::Args)]
pub(super) struct Args {
    /// Only the devices of this API, `vulkan`, `cpu`, ..., or only the device of this selector: `vulkan:1`,
    /// `sim:radv-phoenix-780m`, `sim:FILE.json`.
    #[arg(value_name = "API or SELECTOR")]
    which: Option<String>,
    #[command(flatten)]
    cache: CacheArgs,
}

/// A device as `--json` prints it.
#[derive(Serialize)]
struct Row {
    /// What `--device` takes to open it.
    selector: String,
    /// Whether it is opened where none is named.
    default: bool,
    /// Why it is.
    #[serde(skip_serializing_if = "Option::is_none")]
    default_reason: Option<String>,
    #[serde(flatten)]
    info: DeviceInfo,
    /// Bytes that can be imported at once, where the system's kernel says so.
    import_limit: Option<u64>,
    /// What imports and copies cost there, where it can be opened.
    costs: Option<CostReport>,
}

/// An API that cannot be used.
#[derive(Serialize)]
struct Unavailable {
    api: &'static str,
    reason: String,
}

/// Recorded drivers that a simulated device can play.
#[derive(Serialize)]
struct Recorded {
    api: &'static str,
    names: Vec<String>,
}

#[derive(Serialize)]
struct Report {
    devices: Vec<Row>,
    recorded: Vec<Recorded>,
    unavailable: Vec<Unavailable>,
}

pub(super) fn run(args: &Args, out: &mut Output) -> Result<ExitCode, CliError> {
    let registry = Registry::with_defaults();
    let chosen = registry.default_device().ok();
    let desc = args.cache.desc()?;
    let row = |info: DeviceInfo| {
        let selector = selector(&info);
        // Opened, a device tells more: which types it grants, and how long its memory takes.
        let opened = info.unusable.is_none().then(|| registry.open(&selector, &desc).ok()).flatten();
        let chosen = chosen.as_ref().filter(|d| d.device.api == info.api && d.device.index == info.index);
        let default = chosen.map(|chosen| chosen.reason.clone());
        let costs = opened.as_ref().map(Context::cost_report);
        let limit = opened.as_ref().map(|context| context.budget().import_limit());
        let import_limit = limit.filter(|limit| *limit < u64::MAX);
        let info = opened.map_or(info, |context| context.info().clone());
        Row { selector, default: default.is_some(), default_reason: default, info, import_limit, costs }
    };
    let mut report = Report { devices: Vec::new(), recorded: Vec::new(), unavailable: Vec::new() };
    match &args.which {
        Some(which) if which.contains(':') => report.devices.push(row(found(&registry, which)?)),
        which => {
            let wanted = |api: &str| which.as_deref().is_none_or(|w| w.eq_ignore_ascii_case(api));
            let list = registry.list();
            if !list.iter().any(|api| wanted(api.api)) {
                let apis: Vec<&str> = list.iter().map(|api| api.api).collect();
                let (named, apis) = (which.as_deref().unwrap_or_default(), apis.join(", "));
                return Err(CliError::usage(format!("there is no device API {named:?}; there are {apis}")));
            }
            for api in list.into_iter().filter(|api| wanted(api.api)) {
                match api.devices {
                    Ok(devices) => report.devices.extend(devices.into_iter().map(row)),
                    Err(e) => report.unavailable.push(Unavailable { api: api.api, reason: chain(&e) }),
                }
                if !api.names.is_empty() {
                    report.recorded.push(Recorded { api: api.api, names: api.names });
                }
            }
        }
    }
    out.json(&report)?;
    let mut table = Table::new(["", "device", "name", "kind", "memory", "host memory", "usable"]);
    for Row { selector, default, info, .. } in &report.devices {
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
        if args.which.as_ref().is_some_and(|which| which.contains(':')) {
            lists(&row.info.memory, out)?;
        }
    }
    for Recorded { api, names } in &report.recorded {
        out.line(format_args!(
            "\n{api} plays recorded drivers, {api}:NAME, and those of any profile, {api}:FILE.json"
        ))?;
        for line in lines(names) {
            out.line(format_args!("  {line}"))?;
        }
    }
    for Unavailable { api, reason } in &report.unavailable {
        out.line(format_args!("\n{api} cannot be used: {reason}"))?;
    }
    if let Some(reason) = report.devices.iter().find_map(|row| row.default_reason.as_ref()) {
        out.line(format_args!("\n* is opened where no --device is given: {reason}"))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// The device of a selector, one that cannot be used included.
fn found(registry: &Registry, which: &str) -> Result<DeviceInfo, CliError> {
    match registry.find(which) {
        Err(OpenError::Unusable { api, device, .. }) => {
            let list = registry.list().into_iter().filter(|known| known.api == api);
            let mut devices = list.filter_map(|known| known.devices.ok()).flatten();
            let same = devices.find(|known| known.name == device);
            same.ok_or_else(|| CliError::usage(format!("there is no device {which}")))
        }
        found => Ok(found?),
    }
}

/// Names, as many in a line as fit.
fn lines(names: &[String]) -> Vec<String> {
    const WIDTH: usize = 96;
    let mut lines: Vec<String> = Vec::new();
    for name in names {
        match lines.last_mut().filter(|line| line.len() + 2 + name.len() <= WIDTH) {
            Some(line) => {
                line.push_str("  ");
                line.push_str(name);
            }
            None => lines.push(name.clone()),
        }
    }
    lines
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
    let held = info.memory.capacity();
    if held >= BEYOND { "the host's".to_owned() } else { bytes(held) }
}

fn details(row: &Row, out: &mut Output) -> Result<(), CliError> {
    let Row { selector, info, .. } = row;
    out.line(format_args!("\n{selector}  {}", info.name))?;
    if let Some(reason) = &info.unusable {
        out.line(format_args!("  cannot be used: {reason}"))?;
    }
    out.line(format_args!("  driver    {}; speaks {} {}", info.driver, info.api, info.api_version))?;
    if let Some(same) = info.same_as {
        out.line(format_args!("  same as   {}:{same}, whose driver is preferred", info.api))?;
    }
    let shared = if info.memory.shares_host_memory() { "shared with the host" } else { "its own" };
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
            "  groups    up to {} work-items, {} of local memory; subgroups of {}{}{}",
            l.max_group_items,
            bytes(l.max_local_bytes.into()),
            info.subgroup,
            subgroups_on_request(info),
            info.processors.map_or_else(String::new, |count| format!("; {count} processors"))
        ))?;
        out.line(format_args!("  features  {}", info.features))?;
    }
    match &info.import {
        Some(rules) if rules.alignment <= 1 => out.line("  import    uses the caller's pointers")?,
        Some(rules) => out.line(format_args!("  import    {}", import_rules(rules)))?,
        None => out.line("  import    cannot import host memory: bound tensors are copied")?,
    }
    if let Some(limit) = row.import_limit {
        out.line(format_args!("            at most {} at once, by the kernel's count", bytes(limit)))?;
    }
    if let Some(report) = row.costs.as_ref().filter(|_| info.import.as_ref().is_some_and(|r| r.alignment > 1))
    {
        costs(report, &info.memory, out)?;
    }
    for advice in &info.advice {
        out.line(format_args!("  advice    {advice}"))?;
    }
    Ok(())
}

/// The costs of imports, and the times that they follow from.
fn costs(report: &CostReport, memory: &MemoryModel, out: &mut Output) -> Result<(), CliError> {
    let CostReport { costs, times, took_ms, note } = report;
    let reads = match costs.direct_reads {
        None => "read in place however often".to_owned(),
        Some(1) => "copied by the device where it is read more than once".to_owned(),
        Some(most) => format!("copied by the device where it is read more than {most} times"),
    };
    let note = if note.is_empty() { String::new() } else { format!(" ({note})") };
    out.line(format_args!(
        "  costs     an import pays from {} on; it is {reads}{note}",
        bytes(costs.copy_threshold)
    ))?;
    let Some(times) = times else { return Ok(()) };
    let took = took_ms.map_or_else(|| "kept".to_owned(), |ms| format!("in {ms:.0} ms"));
    // Bytes in a nanosecond are gigabytes in a second.
    let speed =
        |ns: f64| if ns > 0.0 { format!("{:.1} GB/s", 1.0 / ns) } else { "an unmeasured speed".to_owned() };
    out.line(format_args!(
        "  measured  {took}: import {:.1} us and {} a MiB; kernels read own memory at {}, imported at {}; a copy of the CPU {}",
        times.import_ns / 1e3,
        format_args!("{:.1} us", times.import_byte_ns * f64::from(1 << 20) / 1e3),
        speed(times.own_read_ns),
        speed(times.imported_read_ns),
        speed(times.copy_ns)
    ))?;
    if times.submit_byte_ns > 0.0 {
        let where_to =
            if costs.parameters_in_place { "stay in the host's pages" } else { "move to its own memory" };
        out.line(format_args!(
            "            a submission takes {:.1} us for each MiB that it imports: parameters {where_to}",
            times.submit_byte_ns * f64::from(1 << 20) / 1e3
        ))?;
    }
    for (index, ns) in &times.host_read_ns {
        let names: Vec<&str> = memory.flags(*index).names().collect();
        out.line(format_args!(
            "            the host reads type {index} ({}) at {}",
            names.join(" "),
            speed(*ns)
        ))?;
    }
    Ok(())
}

/// Heaps and memory types, as the driver lists them.
fn lists(memory: &MemoryModel, out: &mut Output) -> Result<(), CliError> {
    let mut table = Table::new(["heap", "size", "properties"]);
    for (index, heap) in memory.heaps().iter().enumerate() {
        let local = if heap.device_local { "device_local" } else { "" };
        table.row([&index.to_string(), &bytes(heap.bytes), local]);
    }
    out.line("")?;
    out.table(&table)?;
    let mut table = Table::new(["type", "heap", "properties", "used for"]);
    for (index, ty) in (0u32..).zip(memory.types()) {
        let names: Vec<&str> = ty.flags.names().collect();
        table.row([index.to_string(), ty.heap.to_string(), names.join(" "), uses(memory, index)]);
    }
    out.line("")?;
    out.table(&table)
}

/// What the runtime takes a memory type for.
fn uses(memory: &MemoryModel, index: u32) -> String {
    let words = [
        (Placement::Device, "the device"),
        (Placement::Upload, "uploads"),
        (Placement::Readback, "reading back"),
        (Placement::Shared, "both sides"),
    ];
    let best = words.into_iter().filter(|(placement, _)| memory.best(*placement) == Some(index));
    let import = (memory.import_type() == Some(index)).then_some("imports");
    best.map(|(_, word)| word).chain(import).collect::<Vec<_>>().join(", ")
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
