//! `onepool bench model`: the time of a model on the inputs of an ONNX test case.

use std::io::BufRead;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Instant;

use serde::Serialize;

use super::measure::{median, region};
use crate::Tensor;
use crate::cli::error::CliError;
use crate::cli::open::{CacheArgs, may_decide, open_table};
use crate::cli::output::Output;
use crate::cli::place::PlaceArgs;
use crate::cli::precision::PrecisionArgs;
use crate::cli::stop::StopArgs;
use crate::cli::table::{self, Table};
use crate::cli::verify::case::model_of;
use crate::loader::onnx::read_tensor_pb;
use crate::session::{Binding, Error, Memory, Profile, Session};

/// Arguments of `onepool bench model`.
#[derive(Clone, Debug, clap::Args)]
pub(in crate::cli) struct Args {
    /// The test case: a folder with `model.onnx`, or beside it, and `test_data_set_0`.
    dir: PathBuf,
    /// The device: `auto`, `cpu`, `vulkan`, `vulkan:1`, `vulkan:NAME`, ...; several make a table. Without it
    /// ONEPOOL_DEVICE, then `auto`.
    #[arg(short, long)]
    device: Vec<String>,
    #[command(flatten)]
    place: PlaceArgs,
    #[command(flatten)]
    cache: CacheArgs,
    /// How many runs the median is of.
    #[arg(long, default_value_t = 20)]
    runs: usize,
    /// Print `ready`, then for every line on standard input make one run and print its milliseconds.
    #[arg(long)]
    serve: bool,
    /// Show the time of each operator.
    #[arg(long)]
    profile: bool,
    #[command(flatten)]
    precision: PrecisionArgs,
    /// Keep chains of pointwise operators apart, to see what fusing them saves.
    #[arg(long)]
    no_chains: bool,
    #[command(flatten)]
    stop: StopArgs,
}

#[derive(Debug, Serialize)]
struct Report {
    device: String,
    runs: usize,
    median_ms: f64,
    min_ms: f64,
    gflop: f64,
    gflop_per_s: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    profile: Option<Profile>,
}

/// Runs the command.
///
/// # Errors
/// [`CliError`].
pub(in crate::cli) fn run(args: &Args, out: &mut Output) -> Result<ExitCode, CliError> {
    let desc = args.cache.desc()?;
    let table = open_table(&args.device, true, &desc)?;
    let device = table.first().map(|c| c.info().name.clone()).unwrap_or_default();
    let path = model_of(&args.dir)?;
    let builder = args.precision.apply(Session::builder().model(&path).chains(!args.no_chains));
    let builder = args.place.resolve(&table, desc.cache_dir)?.apply(args.stop.apply(builder));
    let session = table.into_iter().fold(builder, |b, context| b.context(context)).build()?;
    let mut binding = bind(&session, &args.dir)?;
    binding.run()?;
    if args.serve {
        return serve(&mut binding, out);
    }
    let mut times = Vec::with_capacity(args.runs.min(1 << 16));
    for _ in 0..args.runs.clamp(1, 1 << 16) {
        let start = Instant::now();
        binding.run()?;
        times.push(start.elapsed().as_secs_f64() * 1e3);
    }
    let flops = binding.plan().report.cost.flops as f64 / 1e9;
    let median_ms = median(&mut times);
    let profile = if args.profile { Some(binding.profile()?) } else { None };
    let report = Report {
        device,
        runs: times.len(),
        median_ms,
        min_ms: times.first().copied().unwrap_or(0.0),
        gflop: flops,
        gflop_per_s: flops / median_ms * 1e3,
        profile,
    };
    out.line(format!(
        "{}: {median_ms:.3} ms (median of {}, least {:.3}), {:.2} GFLOP, {:.1} GFLOP/s",
        report.device, report.runs, report.min_ms, flops, report.gflop_per_s
    ))?;
    if let Some(profile) = &report.profile {
        let mut t = Table::new(["operator", "times", "time", "share"]);
        let sum: u64 = profile.nodes.iter().map(|n| n.nanos).sum();
        for (op, count, nanos) in profile.by_op() {
            let share = format!("{:.1} %", nanos as f64 / sum.max(1) as f64 * 100.0);
            t.row([op.to_owned(), count.to_string(), table::time(nanos), share]);
        }
        out.table(&t)?;
    }
    out.json(&report)?;
    Ok(ExitCode::SUCCESS)
}

fn serve(binding: &mut Binding<'_>, out: &mut Output) -> Result<ExitCode, CliError> {
    out.raw_line("ready")?;
    for line in std::io::stdin().lock().lines() {
        line.map_err(|e| CliError::file("read", "standard input", e))?;
        let start = Instant::now();
        binding.run()?;
        out.raw_line(format!("{:.6}", start.elapsed().as_secs_f64() * 1e3))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Binds the case's inputs; those whose values may decide shapes are given by value.
fn bind(session: &Session, dir: &Path) -> Result<Binding<'static>, CliError> {
    let data = dir.join("test_data_set_0");
    let mut values: Vec<(String, Tensor)> = Vec::new();
    for (i, input) in session.inputs().iter().enumerate() {
        let path = data.join(format!("input_{i}.pb"));
        let bytes = std::fs::read(&path).map_err(|e| CliError::file("read", &path, e))?;
        let (_, tensor) = read_tensor_pb(&bytes).map_err(Error::from)?;
        values.push((input.name.clone(), tensor));
    }
    let mut builder = session.bind();
    for (name, tensor) in &values {
        let memory = if may_decide(tensor.info()) || tensor.bytes().is_empty() {
            Memory::value(tensor.clone())
        } else {
            Memory::region(&region(tensor.bytes())?).shape(tensor.shape().clone())
        };
        builder = builder.input(name, memory);
    }
    Ok(builder.build()?)
}
