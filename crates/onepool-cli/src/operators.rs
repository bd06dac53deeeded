//! `onepool operators`: the table of operators, and how many test cases pass.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::ExitCode;

use serde::{Deserialize, Serialize};

use super::error::CliError;
use super::input_file::read_json;
use super::output::Output;
use super::table::Table;
use onepool::dtype::DType;
use onepool::loader::onnx::{NEWEST_OPSET, composed_operators};
use onepool::ops::{FAMILIES, OpDef};

/// How `onepool verify` names the family of an operator that is not there.
const NO_OPERATOR: &str = "no such operator";

/// Arguments of `onepool operators`.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Print Markdown, as docs/OPERATORS.md has it.
    #[arg(long)]
    markdown: bool,
    /// What `onepool verify --report` wrote for a device; several for several columns.
    #[arg(long, value_name = "FILE")]
    report: Vec<PathBuf>,
}

#[derive(Serialize)]
struct Row {
    family: &'static str,
    name: &'static str,
    domain: &'static str,
    since: i64,
    types: Vec<DType>,
    device_kernel: bool,
}

#[derive(Deserialize)]
struct Report {
    api: String,
    cases: Vec<Case>,
}

#[derive(Deserialize)]
struct Case {
    name: String,
    family: String,
    status: String,
    #[serde(default)]
    core: bool,
    #[serde(default)]
    fallbacks: BTreeMap<String, serde_json::Value>,
}

pub(super) fn run(args: &Args, out: &mut Output) -> Result<ExitCode, CliError> {
    let reports = args.report.iter().map(|path| read_json(path)).collect::<Result<Vec<Report>, _>>()?;
    out.json(&rows().collect::<Vec<_>>())?;
    if args.markdown {
        out.line(markdown(&reports))?;
        return Ok(ExitCode::SUCCESS);
    }
    let mut table = Table::new(["operator", "domain", "since", "types", "device kernel", "family"]);
    for row in rows() {
        table.row([
            row.name.to_owned(),
            row.domain.to_owned(),
            row.since.to_string(),
            types(&row.types),
            if row.device_kernel { "yes".to_owned() } else { "no: CPU".to_owned() },
            row.family.to_owned(),
        ]);
    }
    out.table(&table)?;
    Ok(ExitCode::SUCCESS)
}

fn sorted(ops: &'static [OpDef]) -> Vec<&'static OpDef> {
    let mut ops: Vec<&OpDef> = ops.iter().collect();
    ops.sort_by_key(|d| (d.domain, d.name, d.since));
    ops
}

fn rows() -> impl Iterator<Item = Row> {
    FAMILIES.iter().flat_map(|family| {
        sorted(family.ops).into_iter().map(|d| Row {
            family: family.name,
            name: d.name,
            domain: d.domain,
            since: d.since,
            types: d.types.to_vec(),
            device_kernel: d.gpu,
        })
    })
}

fn types(types: &[DType]) -> String {
    match DType::ALL.iter().all(|d| types.contains(d)) {
        true => "all".to_owned(),
        false => types.iter().map(|d| d.name()).collect::<Vec<_>>().join(", "),
    }
}

fn markdown(reports: &[Report]) -> String {
    let count = rows().count();
    let mut text = format!(
        "# Operators\n\n\
         Written by `onepool operators --markdown`; `scripts/test` fails where it is not current.\n\n\
         {count} operators of ONNX up to opset {NEWEST_OPSET} and of `com.microsoft`. An operator is read from the \
         opset in its row on. One without a device kernel runs on the CPU inside the same session, and the session itself runs control \
         flow; \
         `onepool run --explain` says which do. A row's types are those of its data inputs on the CPU; device \
         kernels exist for the types that a device computes with, mostly `float32`, `float16`, `int32` and `int64`. A \
         causal mask of Attention ends at the last valid key, and a query that sees no key gives zeros, as ONNX 1.23 corrected it.\n"
    );
    if !reports.is_empty() {
        text += &cases(reports);
    }
    for family in FAMILIES {
        text += &format!(
            "\n## {}\n\n| operator | since | types | device kernel |\n|---|---|---|---|\n",
            family.name
        );
        for d in sorted(family.ops) {
            let domain = if d.domain.is_empty() { String::new() } else { format!("{}.", d.domain) };
            let kernel = if d.gpu { "yes" } else { "" };
            text += &format!("| {domain}{} | {} | {} | {kernel} |\n", d.name, d.since, types(d.types));
        }
    }
    let composed: Vec<String> = composed_operators().map(|name| format!("`{name}`")).collect();
    text += &format!(
        "\n## Put together from others\n\nNodes of other operators take the place of these of `com.microsoft` when \
         a model is loaded: {}.\n",
        composed.join(", ")
    );
    text.truncate(text.trim_end().len());
    text
}

/// How many cases of ONNX's backend test suite pass, by the family of the operator under test.
fn cases(reports: &[Report]) -> String {
    let mut text = "\n## Cases of the ONNX backend test suite that pass\n\n\
         \"Common types\" are the cases whose inputs and outputs are `float32`, `int32`, `int64`, `uint8`, `int8` or \
         `bool`. In parentheses: of them partly on the CPU. What does not pass is unsupported, and says so, except where \
         a case is named as wrong below. \"other\" are operators that are not there.\n\n| family |"
        .to_owned();
    for r in reports {
        text += &format!(" {}, common types | {}, all |", r.api, r.api);
    }
    text += "\n|---|";
    text += &"---|---|".repeat(reports.len());
    text += "\n";
    let names: BTreeMap<&str, ()> =
        reports.iter().flat_map(|r| &r.cases).map(|c| (c.family.as_str(), ())).collect();
    let tally = |report: &Report, keep: &dyn Fn(&Case) -> bool| {
        let kept: Vec<&Case> = report.cases.iter().filter(|c| keep(c)).collect();
        let passed: Vec<&&Case> = kept.iter().filter(|c| c.status == "passed").collect();
        let partly = passed.iter().filter(|c| !c.fallbacks.is_empty()).count();
        let note = if partly > 0 { format!(" ({partly})") } else { String::new() };
        format!(" {} of {}{note} |", passed.len(), kept.len())
    };
    for name in names.keys() {
        let label = if *name == NO_OPERATOR { "other" } else { name };
        text += &format!("| {label} |");
        for r in reports {
            text += &tally(r, &|c| c.family == *name && c.core);
            text += &tally(r, &|c| c.family == *name);
        }
        text += "\n";
    }
    text += "| **all** |";
    for r in reports {
        text += &tally(r, &|c| c.core);
        text += &tally(r, &|_| true);
    }
    text += "\n";
    for r in reports {
        let failed: Vec<&str> =
            r.cases.iter().filter(|c| c.status == "failed").map(|c| c.name.as_str()).collect();
        let names = if failed.is_empty() { String::new() } else { format!(": `{}`", failed.join("`, `")) };
        text += &format!("\n{}: {} wrong{names}.\n", r.api, failed.len());
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_has_a_row_for_every_operator_and_sums_the_cases() {
        let case = |family: &str, status: &str, core, fallbacks: usize| Case {
            name: format!("a_{status}_case"),
            family: family.to_owned(),
            status: status.to_owned(),
            core,
            fallbacks: (0..fallbacks).map(|i| (i.to_string(), serde_json::Value::Null)).collect(),
        };
        let cases = vec![
            case("conv", "passed", true, 1),
            case("conv", "unsupported", true, 0),
            case("no such operator", "failed", false, 0),
        ];
        let page = markdown(&[Report { api: "cpu".to_owned(), cases }]);
        assert!(page.contains("| conv | 1 of 2 (1) | 1 of 2 (1) |"), "{page}");
        assert!(page.contains("| other | 0 of 0 | 0 of 1 |"), "{page}");
        assert!(page.contains("cpu: 1 wrong: `a_failed_case`."));
        assert!(page.contains("| Conv | 1 |"), "{page}");
        assert_eq!(page.matches("\n| ").count(), rows().count() + FAMILIES.len() + 4);
    }
}
