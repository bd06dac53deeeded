//! `onepool verify`: models against the outputs that ONNX test cases hold.

pub(super) mod case;
pub(super) mod compare;
mod report;
mod suite;

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use self::case::{Outcome, Status};
use self::report::{Expect, Report};
use self::suite::{Case, Filter};
use super::error::{CliError, FAILED, UNSUPPORTED};
use super::input_file::read_json;
use super::open::open_table;
use super::output::{Output, Progress};
use super::place::{Places, TableArgs};
use super::precision::PrecisionArgs;
use super::stop::{self, StopArgs};
use super::table::Table;
use onepool::backend::ContextDesc;
use onepool::device::Context;
use onepool_core::sync::{into_inner, lock};

/// Arguments of `onepool verify`.
#[derive(Clone, Debug, clap::Args)]
pub(super) struct Args {
    /// Folders of test cases: model.onnx, or model.json of TVM, and test_data_set_*/input_*.pb, output_*.pb.
    #[arg(required_unless_present = "suite")]
    dirs: Vec<PathBuf>,
    /// The parameters of the TVM graph of the only case, where they are not next to it.
    #[arg(long, value_name = "FILE")]
    params: Option<PathBuf>,
    /// A folder of many cases with an index.json.
    #[arg(long, value_name = "DIR")]
    suite: Option<PathBuf>,
    #[command(flatten)]
    filter: Filter,
    #[command(flatten)]
    table: TableArgs,
    /// An operator without a kernel on the device is unsupported instead of running on the CPU.
    #[arg(long)]
    no_fallback: bool,
    #[command(flatten)]
    precision: PrecisionArgs,
    #[command(flatten)]
    stop: StopArgs,
    /// Cases that run at one time.
    #[arg(short, long, default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=256))]
    jobs: u16,
    /// Relative tolerance of floats, 0.001 where a case does not allow more.
    #[arg(long, allow_negative_numbers = true, value_parser = tolerance)]
    rtol: Option<f64>,
    /// Absolute tolerance of floats, 0.00001 where a case does not allow more.
    #[arg(long, allow_negative_numbers = true, value_parser = tolerance)]
    atol: Option<f64>,
    /// A JSON file that says what must be reached:
    /// {"require_ops": ["Conv"], "min_passed": {"cpu": 100}, "allow_wrong": ["test_x"]}.
    #[arg(long, value_name = "FILE")]
    expect: Option<PathBuf>,
    /// Write the status of every case as JSON.
    #[arg(long, value_name = "FILE")]
    report: Option<PathBuf>,
    /// Turn the device API's validation on; a message of it fails the case.
    #[arg(long)]
    validation: bool,
}

fn tolerance(text: &str) -> Result<f64, String> {
    let number = text.parse::<f64>().ok().filter(|n| n.is_finite() && *n >= 0.0);
    number.ok_or_else(|| "expected a number from 0".to_owned())
}

pub(super) fn run(args: &Args, out: &mut Output) -> Result<ExitCode, CliError> {
    let mut cases = Vec::new();
    if let Some(dir) = &args.suite {
        cases.extend(suite::of_index(dir)?.into_iter().filter(|case| args.filter.takes(case)));
    }
    for dir in &args.dirs {
        cases.push(Case::of_dir(dir)?);
    }
    if let Some(params) = &args.params {
        let [case] = cases.as_mut_slice() else {
            return Err(CliError::usage(format!("--params is for one case, there are {}", cases.len())));
        };
        case.params = Some(params.clone());
    }
    if cases.is_empty() {
        return Err(CliError::usage("no case is left of the suite"));
    }
    let expect: Option<Expect> = args.expect.as_deref().map(read_json).transpose()?;
    let desc = ContextDesc { validation: args.validation, ..args.table.cache.desc()? };
    let devices = open_table(&args.table.device, !args.no_fallback, &desc)?;
    let places = args.table.place.resolve(&devices, desc.cache_dir)?;
    let start = Instant::now();
    let outcomes =
        run_all(&cases, args, (&devices, &places), &out.progress("verifying", Some(cases.len() as u64)));
    if stop::is_pressed() {
        return Err(CliError::Interrupted);
    }
    let seconds = start.elapsed().as_secs_f64();
    let cases: Vec<(Case, Outcome)> = cases.into_iter().zip(outcomes).collect();
    let info = devices.first().map(Context::info);
    let (api, device) = info.map_or(("", String::new()), |i| (i.api, i.name.clone()));
    let mut report = Report::new(api, device, seconds, &cases);
    if let Some(expect) = &expect {
        report.unmet = expect.unmet(&report);
    }
    if let Some(path) = &args.report {
        let text = serde_json::to_vec_pretty(&report).map_err(|e| CliError::content(path, e.to_string()))?;
        std::fs::write(path, text).map_err(|e| CliError::file("write", path, e))?;
    }
    out.json(&report)?;
    print(&cases, &report, out)?;
    for problem in &report.unmet {
        out.line(format_args!("expected otherwise: {problem}"))?;
    }
    let code = match (expect, report.totals) {
        (Some(_), _) if report.unmet.is_empty() => 0,
        (Some(_), _) => FAILED,
        (None, t) if t.failed > 0 => FAILED,
        (None, t) if t.unsupported > 0 => UNSUPPORTED,
        (None, _) => 0,
    };
    let t = report.totals;
    out.line(format_args!("{} passed, {} failed, {} unsupported", t.passed, t.failed, t.unsupported))?;
    Ok(ExitCode::from(code))
}

/// Runs the cases, several at one time, and gives their outcomes in the order of the cases.
fn run_all(
    cases: &[Case],
    args: &Args,
    (devices, places): (&[Context], &Places),
    bar: &Progress,
) -> Vec<Outcome> {
    let next = AtomicUsize::new(0);
    let done: Mutex<Vec<(usize, Outcome)>> = Mutex::new(Vec::with_capacity(cases.len()));
    std::thread::scope(|scope| {
        for _ in 0..args.jobs {
            scope.spawn(|| {
                while !stop::is_pressed() {
                    let at = next.fetch_add(1, Ordering::Relaxed);
                    let Some(case) = cases.get(at) else { break };
                    let mut outcome = case::run(
                        case,
                        (devices, places),
                        !args.no_fallback,
                        args.precision,
                        &args.stop,
                        (args.rtol, args.atol),
                    );
                    if args.validation {
                        add_messages(&mut outcome, devices);
                    }
                    lock(&done).push((at, outcome));
                    bar.inc(1);
                }
            });
        }
    });
    let mut done = into_inner(done);
    done.sort_by_key(|(at, _)| *at);
    done.into_iter().map(|(_, outcome)| outcome).collect()
}

/// Fails a case for what validation said while it ran; with several jobs, any of those that ran then.
fn add_messages(outcome: &mut Outcome, devices: &[Context]) {
    let messages: Vec<String> = devices.iter().flat_map(Context::validation_messages).collect();
    if !messages.is_empty() {
        outcome.status = Status::Failed(format!("validation: {}", messages.join("; ")));
    }
}

fn print(cases: &[(Case, Outcome)], report: &Report, out: &mut Output) -> Result<(), CliError> {
    let few = cases.len() <= 4;
    let all = out.verbose() > 0;
    for (case, outcome) in cases {
        let name = &case.meta.name;
        match &outcome.status {
            Status::Failed(message) => out.line(format_args!("FAILED       {name}: {message}"))?,
            Status::Unsupported(message) if all || few => {
                out.line(format_args!("unsupported  {name}: {message}"))?;
            }
            Status::Passed if all => {
                let ops = outcome.fallbacks.iter().map(|(op, f)| format!("{} {op}", f.nodes));
                let ops = ops.collect::<Vec<_>>().join(", ");
                let on_cpu = if ops.is_empty() { String::new() } else { format!("; on the CPU: {ops}") };
                out.line(format_args!("passed       {name} ({:.3} s){on_cpu}", outcome.seconds))?;
            }
            _ => {}
        }
    }
    if !few {
        let mut table = Table::new([
            "family",
            "passed",
            "of them partly on the CPU",
            "nodes on the CPU",
            "failed",
            "unsupported",
        ]);
        for (family, c) in &report.families {
            let counts = [c.passed, c.with_fallback, c.fallback_nodes, c.failed, c.unsupported];
            table.row([family.clone()].into_iter().chain(counts.map(|n| n.to_string())));
        }
        out.table(&table)?;
    }
    let totals = report.totals;
    if totals.with_fallback > 0 {
        let (nodes, cases) = (totals.fallback_nodes, totals.with_fallback);
        out.line(format_args!("{nodes} nodes of {cases} cases ran on the CPU for want of a device kernel"))?;
    }
    if all && !report.fallbacks.is_empty() {
        let mut table = Table::new(["on the CPU", "nodes", "cases", "because"]);
        for (op, row) in &report.fallbacks {
            table.row([(*op).to_owned(), row.nodes.to_string(), row.cases.to_string(), row.reason.clone()]);
        }
        out.table(&table)?;
    }
    if few {
        return Ok(());
    }
    out.line(format_args!("{} on {}: {:.1} s", report.api, report.device, report.seconds))
}
