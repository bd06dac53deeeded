//! `onepool compile-report`: what a driver's compiler makes of the kernels that ship and of those that plans specialize.

mod plans;
mod rows;

use std::path::PathBuf;
use std::process::ExitCode;

use rayon::prelude::*;
use serde::Serialize;

use self::plans::{PlannedModel, plan_model};
use self::rows::{Job, Row, shipped};
use super::error::{CliError, FAILED};
use super::output::Output;
use super::table::{Table, bytes, count};
use onepool::backend::{ContextDesc, DeviceInfo};
use onepool::registry::{Registry, default_selector};

/// Arguments of `onepool compile-report`.
#[derive(Clone, Debug, clap::Args)]
pub(super) struct Args {
    /// Models whose plans are compiled: files, or folders of test cases, whose first data set then gives the shapes.
    models: Vec<PathBuf>,
    /// The device to compile for; one on which nothing can run will do. Without it that of `ONEPOOL_DEVICE`, else `auto`.
    #[arg(short, long)]
    device: Option<String>,
    /// Lanes of a subgroup that are asked for; several are compiled in turn. Without it each size that the device offers.
    #[arg(long, value_name = "LANES")]
    subgroup: Vec<u32>,
    /// Which of the kernels that ship are compiled with the defaults of their constants.
    #[arg(long, value_enum, default_value_t = Shipped::All)]
    kernels: Shipped,
    /// What float32 models compute in; both make two plans of each.
    #[arg(long, value_enum, default_values_t = [Compute::F32])]
    precision: Vec<Compute>,
    /// The size of a dimension that models only name: batch=1.
    #[arg(long, value_name = "SYMBOL=SIZE")]
    dim: Vec<String>,
    /// Fail where the values of a hot kernel (matrix products, convolutions, attention, softmax, pointwise) leave the
    /// registers, or where a kernel does not compile.
    #[arg(long)]
    check: bool,
}

/// Which kernels that ship are compiled.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Shipped {
    /// All.
    All,
    /// Those that models spend their time in.
    Hot,
    /// None: those of plans alone.
    None,
}

/// What a float32 model computes in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Compute {
    /// What the model says.
    F32,
    /// Half precision with sums in float32.
    F16,
}

#[derive(Serialize)]
struct Report<'a> {
    device: &'a DeviceInfo,
    models: &'a [PlannedModel],
    kernels: &'a [Row],
}

pub(super) fn run(args: &Args, out: &mut Output) -> Result<ExitCode, CliError> {
    let registry = Registry::with_defaults();
    let selector = args.device.clone().unwrap_or_else(default_selector);
    let compiler = registry.open_compiler(&selector, &ContextDesc::default())?;
    let info = compiler.info().clone();
    let cpu = registry.find("cpu")?;
    let sizes = sizes(&args.subgroup, &info)?;

    let mut models = Vec::new();
    let mut jobs: Vec<Job> = Vec::new();
    for &lanes in &sizes {
        let device = DeviceInfo { subgroup: lanes.unwrap_or(info.subgroup), ..info.clone() };
        let kernels = shipped(lanes).filter(|job| match args.kernels {
            Shipped::All => true,
            Shipped::Hot => job.is_hot(),
            Shipped::None => false,
        });
        jobs.extend(kernels);
        for path in &args.models {
            for &precision in &args.precision {
                let (model, planned) = plan_model(path, &args.dim, precision, &[&device, &cpu], out)?;
                rows::join(&mut jobs, planned, lanes, &model);
                models.push(model);
            }
        }
    }
    plans::check_dims(&args.dim, &models)?;

    let bar = out.progress("compiling", Some(jobs.len() as u64));
    let mut compiled: Vec<Row> = jobs
        .par_iter()
        .map(|job| {
            let row = job.compile(compiler.as_ref());
            bar.inc(1);
            row
        })
        .collect();
    drop(bar);
    compiled.sort_by(|a, b| a.order().cmp(&b.order()));

    out.json(&Report { device: &info, models: &models, kernels: &compiled })?;
    describe(&info, &models, &compiled, out)?;
    let bad = compiled.iter().filter(|row| row.is_bad()).count();
    if args.check && bad > 0 {
        return Ok(ExitCode::from(FAILED));
    }
    Ok(ExitCode::SUCCESS)
}

/// The sizes of subgroups to compile for; nothing is asked of a device that offers no choice.
fn sizes(asked: &[u32], info: &DeviceInfo) -> Result<Vec<Option<u32>>, CliError> {
    let [least, most] = info.subgroup_range;
    let offered: Vec<u32> =
        std::iter::successors(Some(least.max(1)), |n| n.checked_mul(2)).take_while(|n| *n <= most).collect();
    if let Some(bad) = asked.iter().find(|n| !offered.contains(n)) {
        return Err(CliError::usage(format!(
            "--subgroup {bad}: the subgroups of {} have one of {offered:?} lanes",
            info.name
        )));
    }
    Ok(match (asked, &offered[..]) {
        (_, [_]) => vec![None],
        ([], _) => offered.into_iter().map(Some).collect(),
        _ => asked.iter().copied().map(Some).collect(),
    })
}

fn describe(
    info: &DeviceInfo,
    models: &[PlannedModel],
    rows: &[Row],
    out: &mut Output,
) -> Result<(), CliError> {
    out.line(format_args!("{}; {}\n", info.name, info.driver))?;
    let shown = |row: &&Row| out.verbose() > 0 || row.hot || row.is_bad();
    let mut table = Table::new([
        "kernel",
        "constants",
        "lanes",
        "vgpr",
        "sgpr",
        "spilled",
        "scratch",
        "local",
        "code",
        "subgroups",
        "latency",
        "cycles",
    ]);
    for row in rows.iter().filter(shown) {
        row.cells().into_iter().for_each(|cells| table.row(cells));
    }
    out.table(&table)?;
    for model in models.iter().filter(|model| model.remark.is_some()) {
        let remark = model.remark.as_deref().unwrap_or_default();
        out.line(format_args!("{} ({} lanes): {remark}", model.name, model.lanes))?;
    }
    let (mut compiled, mut lacking) = (0, 0);
    for row in rows {
        compiled += usize::from(!row.executables.is_empty());
        lacking += usize::from(row.lacks.is_some());
    }
    out.line(format_args!("\n{compiled} compiled, {lacking} not for this device (features it lacks)"))?;
    for row in rows.iter().filter(|row| row.is_bad()) {
        let why = match &row.failed {
            Some(failed) => failed.clone(),
            None => {
                let scratch: u64 = row.executables.iter().filter_map(|e| e.scratch_bytes).max().unwrap_or(0);
                format!("its values leave the registers, {} of scratch", bytes(scratch))
            }
        };
        let lanes = row.asked.unwrap_or(info.subgroup);
        out.line(format_args!("BAD {} {} ({lanes} lanes): {why}", row.kernel, row.constants()))?;
    }
    let bad = rows.iter().filter(|row| row.is_bad()).count();
    out.line(format_args!("{} that should not be", count(bad, "kernel")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn info(range: [u32; 2]) -> DeviceInfo {
        let mut info = Registry::with_defaults().find("cpu").unwrap();
        info.subgroup_range = range;
        info
    }

    #[test]
    fn every_size_that_is_offered_is_compiled_unless_some_are_named() {
        assert_eq!(sizes(&[], &info([8, 32])).unwrap(), [Some(8), Some(16), Some(32)]);
        assert_eq!(sizes(&[64], &info([32, 64])).unwrap(), [Some(64)]);
        assert_eq!(sizes(&[], &info([1, 1])).unwrap(), [None]);
        assert_eq!(sizes(&[32], &info([32, 32])).unwrap(), [None]);
        let error = sizes(&[128], &info([32, 64])).unwrap_err().to_string();
        assert!(error.contains("--subgroup 128") && error.contains("[32, 64]"), "{error}");
    }
}
