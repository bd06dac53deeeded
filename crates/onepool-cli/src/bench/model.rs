//! `onepool bench model`: the time of a model on the inputs of an ONNX test case, by value and bound.

use std::io::BufRead;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Instant;

use serde::Serialize;

use super::measure::{Difference, empty, median, ms, region};
use crate::error::CliError;
use crate::explain::{Copies, copied};
use crate::open::{may_decide, open_table};
use crate::output::Output;
use crate::place::TableArgs;
use crate::precision::PrecisionArgs;
use crate::report::{self, ReportArgs, Way};
use crate::stop::StopArgs;
use crate::table::{self, Table};
use crate::tune::TuningArgs;
use crate::verify::case::{inputs_of, model_of, outputs_of};
use crate::verify::compare::{Tolerance, compare};
use onepool::Tensor;
use onepool::memory::host::SharedRegion;
use onepool::memory::import::Verdict;
use onepool::session::{Binding, BindingBuilder, Error, Memory, Profile, Session};

/// Arguments of `onepool bench model`.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Args {
    /// The test case: a folder with `model.onnx`, or next to it, and `test_data_set_0`.
    dir: PathBuf,
    #[command(flatten)]
    table: TableArgs,
    /// How many runs of each way the medians are of.
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..=65536))]
    runs: u32,
    /// Print `ready`, then for every line on standard input, `value` or `bound`, make one run that way and print its
    /// milliseconds.
    #[arg(long, conflicts_with = "report")]
    serve: bool,
    /// Show the time of each operator.
    #[arg(long)]
    profile: bool,
    /// Bytes below which a bound tensor is copied instead of imported.
    #[arg(long, value_name = "BYTES")]
    copy_threshold: Option<u64>,
    #[command(flatten)]
    precision: PrecisionArgs,
    #[command(flatten)]
    tuning: TuningArgs,
    /// Keep chains of pointwise operators apart, to see what fusing them saves.
    #[arg(long)]
    no_chains: bool,
    #[command(flatten)]
    report: ReportArgs,
    #[command(flatten)]
    stop: StopArgs,
}

#[derive(Debug, Serialize)]
struct Report {
    device: String,
    runs: usize,
    /// Where the results are not the data set's: which are not, and by how much.
    #[serde(skip_serializing_if = "Option::is_none")]
    differs: Option<String>,
    /// Of the bound run.
    median_ms: f64,
    /// Of the bound run.
    min_ms: f64,
    /// Inputs copied in, run, outputs copied out.
    by_value: ByValue,
    /// A run on the caller's memory.
    bound: Bound,
    /// What the bound run takes less.
    saved: Difference,
    gflop: f64,
    /// Of the bound run.
    gflop_per_s: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    profile: Option<Profile>,
}

/// Milliseconds: medians, but for the least.
#[derive(Debug, Serialize)]
struct ByValue {
    copy_in_ms: f64,
    run_ms: f64,
    copy_out_ms: f64,
    median_ms: f64,
    min_ms: f64,
}

impl Report {
    /// Both ways, for the page.
    fn ways(&self) -> report::Ways {
        let part = |name: &str, ms: f64| (name.to_owned(), ms);
        let by = &self.by_value;
        let value = vec![
            part("copied in", by.copy_in_ms),
            part("run", by.run_ms),
            part("copied out", by.copy_out_ms),
        ];
        let bound = vec![part("copied in", 0.0), part("run", self.median_ms), part("copied out", 0.0)];
        report::Ways {
            label: format!("Copying in and out against binding, medians of {} runs", self.runs),
            ways: vec![
                Way { name: "by value".to_owned(), parts: value },
                Way { name: "bound".to_owned(), parts: bound },
            ],
            remark: format!("Saved by binding: {}.", self.saved.words()),
        }
    }
}

/// What the runtime said of the tensors' memory.
#[derive(Debug, Serialize)]
struct Bound {
    /// Bytes of inputs and outputs in each run.
    copies: Copies,
    verdicts: Vec<Verdict>,
}

/// Half precision is held against float32's results.
const HALF: Tolerance = Tolerance { rtol: 1e-2, atol: 1e-2 };

pub(crate) fn run(args: &Args, out: &mut Output) -> Result<ExitCode, CliError> {
    let page = args.report.wanted(out)?;
    let desc = args.table.cache.desc()?;
    let table = open_table(&args.table.device, true, &desc)?;
    let device = table.first().map(|c| c.info().name.clone()).unwrap_or_default();
    let path = model_of(&args.dir)?;
    let mut builder = args.precision.apply(Session::builder().model(&path).chains(!args.no_chains));
    if let Some(bytes) = args.copy_threshold {
        builder = builder.copy_threshold(bytes);
    }
    let builder = args.tuning.apply(args.stop.apply(builder), desc.cache_dir.clone());
    let session = args.table.place.build(builder, table, desc.cache_dir)?;
    let data = args.dir.join("test_data_set_0");
    let mut ways = Ways::new(&session, inputs_of(&session.inputs(), &data)?)?;
    let expected = outputs_of(&session.outputs(), &data)?;
    let tolerance = if args.precision.is_half() { HALF } else { Tolerance::DEFAULT };
    let why = args.precision.rounding(session.graph());
    let why = why.map_or_else(String::new, |rounding| format!("; {rounding}"));
    let differs = ways.check(&expected, tolerance, &why)?;
    if args.serve {
        return serve(&mut ways, out);
    }
    let runs = args.runs as usize;
    let times = ways.times(runs)?;
    let saved = Difference::of(&times[3], &times[4]);
    let runs_ms = times[4].clone();
    let [copy_in, between, copy_out, by_value, bound] = times.map(|mut all| {
        let median_ms = median(&mut all);
        (median_ms, all.first().copied().unwrap_or(0.0))
    });
    let gflop = ways.bound.plan().report.cost.flops as f64 / 1e9;
    let report = Report {
        device,
        runs,
        differs,
        median_ms: bound.0,
        min_ms: bound.1,
        by_value: ByValue {
            copy_in_ms: copy_in.0,
            run_ms: between.0,
            copy_out_ms: copy_out.0,
            median_ms: by_value.0,
            min_ms: by_value.1,
        },
        bound: Bound {
            copies: Copies::of(ways.bound.verdicts()),
            verdicts: ways.bound.verdicts().cloned().collect(),
        },
        saved,
        gflop,
        gflop_per_s: gflop / bound.0 * 1e3,
        profile: if args.profile { Some(ways.bound.profile()?) } else { None },
    };
    print(&report, out)?;
    if let Some(page) = page {
        let mut shown = report::Report::new("bench model", args.dir.display().to_string());
        shown.runs_ms = runs_ms;
        shown.ways = vec![report.ways()];
        shown
            .notes
            .extend(report.differs.iter().map(|d| format!("The results are not the data set's: {d}.")));
        shown.add_run(&session, &mut ways.bound)?;
        page.measure_peaks(&mut shown, &session, out);
        page.write(&shown, out)?;
    }
    out.json(&report)?;
    Ok(ExitCode::SUCCESS)
}

fn print(report: &Report, out: &mut Output) -> Result<(), CliError> {
    let Report { by_value, bound, .. } = report;
    out.line(format!(
        "{}: {:.2} GFLOP, {:.1} GFLOP/s bound, medians of {} runs",
        report.device, report.gflop, report.gflop_per_s, report.runs
    ))?;
    let mut t = Table::new(["", "by value", "bound"]);
    let ms = |v: f64| format!("{v:.3} ms");
    t.row(["inputs copied in".to_owned(), ms(by_value.copy_in_ms), "-".to_owned()]);
    t.row(["run".to_owned(), ms(by_value.run_ms), ms(report.median_ms)]);
    t.row(["outputs copied out".to_owned(), ms(by_value.copy_out_ms), "-".to_owned()]);
    t.row(["all".to_owned(), ms(by_value.median_ms), ms(report.median_ms)]);
    t.row(["least".to_owned(), ms(by_value.min_ms), ms(report.min_ms)]);
    out.table(&t)?;
    if let Some(differs) = &report.differs {
        out.line(format!("the results are not the data set's: {differs}"))?;
    }
    out.line(format!("saved by binding: {}", report.saved.words()))?;
    out.line(format!("bound, {}", copied(bound.verdicts.iter())))?;
    if let Some(profile) = &report.profile {
        let mut t = Table::new(["operator", "times", "time", "share"]);
        let sum: u64 = profile.nodes.iter().map(|n| n.nanos).sum();
        for (op, count, nanos) in profile.by_op() {
            let share = format!("{:.1} %", nanos as f64 / sum.max(1) as f64 * 100.0);
            t.row([op.to_owned(), count.to_string(), table::time(nanos), share]);
        }
        out.table(&t)?;
    }
    Ok(())
}

fn serve(ways: &mut Ways, out: &mut Output) -> Result<ExitCode, CliError> {
    out.raw_line("ready")?;
    for line in std::io::stdin().lock().lines() {
        let taken = match line.map_err(|e| CliError::file("read", "standard input", e))?.trim() {
            "value" => ways.by_value()?.iter().sum(),
            "bound" => ways.bound()?,
            other => return Err(CliError::usage(format!("the line {other:?}, expected `value` or `bound`"))),
        };
        out.raw_line(format!("{taken:.6}"))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// One model bound twice: to memory of the session's own, and to the caller's.
struct Ways {
    inputs: Vec<(String, Tensor)>,
    outputs: Vec<String>,
    value: Binding<'static>,
    bound: Binding<'static>,
    /// The caller's memory for the outputs.
    results: Vec<Arc<SharedRegion>>,
}

impl Ways {
    /// Milliseconds of `runs` runs: by value the copy in, the run, the copy out and their sum; then bound.
    fn times(&mut self, runs: usize) -> Result<[Vec<f64>; 5], CliError> {
        let mut times: [Vec<f64>; 5] = Default::default();
        // The first rounds touch pages.
        for run in 0..runs + 2 {
            let mut round = [0.0; 5];
            // Each way is first in every other round.
            for bound in [run % 2 == 0, run % 2 != 0] {
                if bound {
                    round[4] = self.bound()?;
                } else {
                    let [copy_in, between, copy_out] = self.by_value()?;
                    round[..4].copy_from_slice(&[copy_in, between, copy_out, copy_in + between + copy_out]);
                }
            }
            if run >= 2 {
                times.iter_mut().zip(round).for_each(|(all, t)| all.push(t));
            }
        }
        Ok(times)
    }

    /// Binds both and runs each once. Inputs whose values may decide shapes are given by value to both where the plan
    /// needs them.
    fn new(session: &Session, inputs: Vec<(String, Tensor)>) -> Result<Self, CliError> {
        let outputs: Vec<String> = session.outputs().into_iter().map(|io| io.name).collect();
        let is_whole = |builder: &BindingBuilder<'static>| {
            builder
                .plan()
                .is_ok_and(|plan| outputs.iter().all(|o| plan.outputs.iter().any(|io| io.name == *o)))
        };
        let bind = |memory: &dyn Fn(&Tensor) -> Result<Memory<'static>, CliError>| {
            let with = |by_value: bool| {
                inputs.iter().try_fold(session.bind(), |b, (name, tensor)| {
                    let decides = by_value && may_decide(tensor.info());
                    let given = if decides { Memory::value(tensor.clone()) } else { memory(tensor)? };
                    Ok::<_, CliError>(b.input(name, given.shape(tensor.shape().clone())))
                })
            };
            let placed = with(false)?;
            if is_whole(&placed) { Ok(placed) } else { with(true) }
        };
        let mut value = bind(&|_| Ok(Memory::own()))?.build()?;
        for (name, tensor) in &inputs {
            value.set_input(name, tensor)?;
        }
        value.run()?;
        let mut results = Vec::new();
        let mut builder = bind(&|tensor| Ok(Memory::region(&region(tensor.bytes())?)))?;
        for name in &outputs {
            let memory = empty(value.output_info(name)?.bytes())?;
            builder = builder.output(name, Memory::region(&memory));
            results.push(memory);
        }
        let mut bound = builder.build()?;
        bound.run()?;
        Ok(Ways { inputs, outputs, value, bound, results })
    }

    /// Holds the results of both ways against each other, and against the data set's where it has some: tells which of
    /// those are others, and `why` that may be.
    fn check(
        &self,
        expected: &[Tensor],
        tolerance: Tolerance,
        why: &str,
    ) -> Result<Option<String>, CliError> {
        if !expected.is_empty() && expected.len() != self.outputs.len() {
            let (has, outputs) = (expected.len(), self.outputs.len());
            return Err(CliError::Failed(format!(
                "the data set has {has} outputs and the model {outputs}; give it one file for each output, or none"
            )));
        }
        let mut differs = None;
        for (i, (name, memory)) in self.outputs.iter().zip(&self.results).enumerate() {
            let by_value = self.value.get_output(name)?;
            let info = by_value.info().clone();
            let seen = memory.read().map_err(Error::from)?;
            let bound = Tensor::from_bytes(info.clone(), seen.get(..info.bytes()).unwrap_or_default())
                .map_err(Error::from)?;
            compare(&bound, &by_value, tolerance)
                .map_err(|wrong| CliError::Failed(format!("bound, output {name:?} {wrong}")))?;
            let Some(wanted) = expected.get(i) else { continue };
            let Err(wrong) = compare(&bound, wanted, tolerance) else { continue };
            // Farther off, it is another result, and its time says nothing.
            compare(&bound, wanted, Tolerance { rtol: 0.0, atol: 0.0 }.rounded(wanted))
                .map_err(|wrong| CliError::Failed(format!("output {name:?} {wrong}{why}")))?;
            differs.get_or_insert(format!("output {name:?} {wrong}{why}"));
        }
        Ok(differs)
    }

    /// The milliseconds of copying all inputs in, of a run, and of copying all outputs out.
    fn by_value(&mut self) -> Result<[f64; 3], CliError> {
        let start = Instant::now();
        for (name, tensor) in &self.inputs {
            self.value.set_input(name, tensor)?;
        }
        let copied_in = ms(start);
        let start = Instant::now();
        self.value.run()?;
        let ran = ms(start);
        let start = Instant::now();
        for name in &self.outputs {
            std::hint::black_box(self.value.get_output(name)?);
        }
        Ok([copied_in, ran, ms(start)])
    }

    /// The milliseconds of a run on the caller's memory.
    fn bound(&mut self) -> Result<f64, CliError> {
        let start = Instant::now();
        self.bound.run()?;
        Ok(ms(start))
    }
}
