//! `onepool bench transfer`: what eliminating input and output transfers is worth on a device.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Instant;

use serde::Serialize;

use super::measure::{Transfer, empty, measure, median};
use super::plot;
use crate::error::CliError;
use crate::open::{CacheArgs, open};
use crate::output::Output;
use crate::report::{self, ReportArgs, Way};
use crate::stop;
use crate::table::{self, Table};
use onepool::device::Context;
use onepool::ops::Operator;
use onepool::recording::Recording;
use onepool::registry::Registry;
use onepool::session::{Error, Memory, Session};
use onepool::{DType, GraphBuilder, Tensor};

/// Arguments of `onepool bench transfer`.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Args {
    /// The device: `auto`, `cpu`, `vulkan`, `vulkan:1`, `vulkan:NAME`, ...; without it ONEPOOL_DEVICE, then `auto`.
    #[arg(long)]
    device: Option<String>,
    #[command(flatten)]
    cache: CacheArgs,
    /// Sizes of input and output in MiB.
    #[arg(long, value_delimiter = ',', default_values_t = [1, 6, 24, 96])]
    sizes: Vec<u32>,
    /// Runs of each way for each size; by default 15 to 60, fewer for larger sizes.
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    runs: Option<u32>,
    /// Where to write a plot (svg).
    #[arg(long)]
    plot: Option<PathBuf>,
    #[command(flatten)]
    report: ReportArgs,
}

/// Fixed costs on one device, medians in microseconds.
#[derive(Clone, Debug, Serialize)]
struct Overheads {
    /// Submitting an empty command buffer by the API's own calls and waiting for its fence.
    #[serde(skip_serializing_if = "Option::is_none")]
    api_submit_us: Option<f64>,
    /// Submitting an empty prepared recording to the backend and waiting for it.
    bare_submit_us: f64,
    /// The same through the session: a bound run of one operator on one element.
    tiny_run_us: f64,
    /// The operator of that run alone, as the device's clock has it; part of `tiny_run_us`.
    tiny_kernel_us: f64,
    /// Importing pages that were touched before, by size: (MiB, microseconds).
    import_us: Vec<(u32, f64)>,
    /// Binding an output to other memory that is imported already.
    rebind_us: f64,
}

#[derive(Debug, Serialize)]
struct Report {
    device: String,
    driver: String,
    kind: onepool::backend::DeviceKind,
    rows: Vec<Transfer>,
    overheads: Overheads,
}

pub(crate) fn run(args: &Args, out: &mut Output) -> Result<ExitCode, CliError> {
    if let Some(size) = args.sizes.iter().find(|s| !(1..=1024).contains(*s)) {
        return Err(CliError::usage(format!("a size of {size} MiB, expected 1 to 1024")));
    }
    let page = args.report.wanted(out)?;
    let context = open(args.device.as_deref(), &args.cache.desc()?)?;
    let runs_for = |mib: u32| args.runs.unwrap_or((360 / mib).clamp(15, 60)) as usize;
    let total: usize = args.sizes.iter().map(|&mib| runs_for(mib) + 2).sum();
    let bar = out.progress("measuring", Some(total as u64));
    let mut rows = Vec::new();
    for &mib in &args.sizes {
        let elements = mib as usize * (1 << 18);
        let session = scale_session(&context, elements)?;
        let values: Vec<f32> = (0..elements).map(|i| (i % 251) as f32).collect();
        let value = Tensor::new([elements], &values).map_err(Error::from)?;
        let (row, bound) = measure(&session, &value, runs_for(mib), &|| bar.inc(1))?;
        check(&bound.output, &values)?;
        rows.push(row);
    }
    let overheads = overheads(args, &context)?;
    drop(bar);
    let info = context.info();
    let report =
        Report { device: info.name.clone(), driver: info.driver.clone(), kind: info.kind, rows, overheads };
    print(&report, out)?;
    if let Some(path) = &args.plot {
        plot::transfers(path, &report.device, &report.rows)?;
        out.line(format!("plot written to {}", path.display()))?;
    }
    if let Some(page) = page {
        let mut shown = report::Report::new("bench transfer", "Copying in and out against binding");
        shown.add_devices([info].into_iter());
        shown.ways = report.rows.iter().map(ways).collect();
        page.write(&shown, out)?;
    }
    out.json(&report)?;
    Ok(ExitCode::SUCCESS)
}

/// One size, for the page.
fn ways(row: &Transfer) -> report::Ways {
    let way = |name: &str, [copied_in, run, copied_out]: [f64; 3]| Way {
        name: name.to_owned(),
        parts: vec![
            ("copied in".to_owned(), copied_in),
            ("run".to_owned(), run),
            ("copied out".to_owned(), copied_out),
        ],
    };
    report::Ways {
        label: format!("{} in, {} out", table::bytes(row.input_bytes), table::bytes(row.output_bytes)),
        ways: vec![
            way("copied", [row.copy_in_ms, row.copied_run_ms, row.copy_out_ms]),
            way("bound", [0.0, row.bound_ms, 0.0]),
            way("work alone", [0.0, row.kernel_ms, 0.0]),
        ],
        remark: format!(
            "Saved by binding: {}. The input was {}, the output {}. Medians of {} runs.",
            row.saved.words(),
            row.input_path,
            row.output_path,
            row.runs
        ),
    }
}

/// `y = leaky_relu(x)`: one operator that reads each byte once and writes each byte once.
fn scale_session(context: &Context, elements: usize) -> Result<Session, CliError> {
    let mut g = GraphBuilder::new("scale");
    let x = g.input("x", DType::F32, [elements.into()]);
    let op: std::sync::Arc<dyn Operator> = onepool::ops::unary(onepool::ops::pointwise::Function::LeakyRelu);
    let y = g.op(op, &[x]);
    g.output("y", y);
    let graph = g.build().map_err(Error::from)?;
    let builder = stop::cancellable(Session::builder()).graph(graph).context(context.clone());
    Ok(builder.fallback(false).copy_threshold(0).build()?)
}

fn check(y: &onepool::SharedRegion, x: &[f32]) -> Result<(), CliError> {
    let y = y.read().map_err(Error::from)?;
    let y = y.as_slice_of::<f32>().map_err(Error::from)?;
    // The values are not negative, so the function is the identity on them.
    match y.iter().zip(x).position(|(y, x)| y != x) {
        Some(i) => Err(CliError::Failed(format!("element {i} is {}, expected {}", y[i], x[i]))),
        None => Ok(()),
    }
}

fn us(start: Instant) -> f64 {
    start.elapsed().as_secs_f64() * 1e6
}

fn timed(runs: usize, mut f: impl FnMut() -> Result<(), CliError>) -> Result<f64, CliError> {
    let mut times = Vec::with_capacity(runs);
    for run in 0..runs + runs / 10 + 1 {
        let start = Instant::now();
        f()?;
        if run > runs / 10 {
            times.push(us(start));
        }
    }
    Ok(median(&mut times))
}

fn overheads(args: &Args, context: &Context) -> Result<Overheads, CliError> {
    const RUNS: usize = 500;
    // The same device once more, without the interface above it.
    let selector = args.device.clone().unwrap_or_else(onepool::registry::default_selector);
    let registry = Registry::with_defaults();
    let mut api = registry.bare_submit(&selector)?;
    let backend = registry.open_backend(&selector, &args.cache.desc()?)?;
    let queue = backend.create_queue().map_err(Error::from)?;
    let prepared = queue.prepare(&Recording::default()).map_err(Error::from)?;
    let session = scale_session(context, 1)?;
    let (x, y) = (empty(4)?, empty(4)?);
    let mut tiny = session.bind().input("x", Memory::region(&x)).output("y", Memory::region(&y)).build()?;
    let (mut by_api, mut bare, mut run) = (Vec::new(), Vec::new(), Vec::new());
    // In turn, so that all see the same machine.
    for round in 0..RUNS + 50 {
        if let Some(api) = &mut api {
            let start = Instant::now();
            api().map_err(Error::from)?;
            let api_us = us(start);
            by_api.extend((round >= 50).then_some(api_us));
        }
        let start = Instant::now();
        let point = queue.submit_prepared(prepared).map_err(Error::from)?;
        queue.wait(point, None).map_err(Error::from)?;
        let bare_us = us(start);
        let start = Instant::now();
        tiny.run()?;
        let run_us = us(start);
        if round >= 50 {
            bare.push(bare_us);
            run.push(run_us);
        }
    }
    queue.release_prepared(prepared);
    let mut kernel = Vec::new();
    for _ in 0..20 {
        kernel.push(tiny.profile()?.device_nanos as f64 / 1e3);
    }
    let mut import_us = Vec::new();
    for &mib in &args.sizes {
        let region = empty((mib as usize) << 20)?;
        region.write().map_err(Error::from)?.fill(1);
        let cost = timed(20, || context.import(&region).map(drop).map_err(|e| Error::from(e).into()));
        // A device without imports has no such cost.
        import_us.extend(cost.ok().map(|us| (mib, us)));
    }
    let others = [empty(1 << 20)?, empty(1 << 20)?];
    let session = scale_session(context, 1 << 18)?;
    let x = empty(1 << 20)?;
    let mut binding =
        session.bind().input("x", Memory::region(&x)).output("y", Memory::region(&others[0])).build()?;
    binding.rebind_output("y", Memory::region(&others[1]))?;
    let mut turn = 0;
    let rebind_us = timed(200, || {
        turn = 1 - turn;
        Ok(binding.rebind_output("y", Memory::region(&others[turn]))?)
    })?;
    Ok(Overheads {
        api_submit_us: api.is_some().then(|| median(&mut by_api)),
        bare_submit_us: median(&mut bare),
        tiny_run_us: median(&mut run),
        tiny_kernel_us: median(&mut kernel),
        import_us,
        rebind_us,
    })
}

fn print(report: &Report, out: &mut Output) -> Result<(), CliError> {
    out.line(format!("{} ({})", report.device, report.driver))?;
    out.line("")?;
    table_of(&report.rows, out)?;
    let o = &report.overheads;
    out.line("")?;
    let mut t = Table::new(["fixed cost", "median", ""]);
    let mut over_api = String::new();
    if let Some(api) = o.api_submit_us {
        t.row(["vkQueueSubmit of nothing, fence wait".to_owned(), format!("{api:.1} us"), String::new()]);
        over_api = format!("{:.2} x vkQueueSubmit", o.bare_submit_us / api);
    }
    t.row(["empty submit and wait, backend".to_owned(), format!("{:.1} us", o.bare_submit_us), over_api]);
    t.row(["bound run of one element".to_owned(), format!("{:.1} us", o.tiny_run_us), String::new()]);
    t.row(["  of which the kernel".to_owned(), format!("{:.1} us", o.tiny_kernel_us), String::new()]);
    let overhead = o.tiny_run_us - o.tiny_kernel_us;
    let mut ratio = format!("{:.2} x the empty submit", overhead / o.bare_submit_us);
    if let Some(api) = o.api_submit_us {
        ratio += &format!(", {:.2} x vkQueueSubmit", overhead / api);
    }
    t.row(["  of which overhead".to_owned(), format!("{overhead:.1} us"), ratio]);
    for (mib, us) in &o.import_us {
        t.row([format!("import and free {mib} MiB"), format!("{us:.1} us"), String::new()]);
    }
    t.row(["rebind imported memory".to_owned(), format!("{:.1} us", o.rebind_us), String::new()]);
    out.table(&t)
}

/// The transfer table.
pub(crate) fn table_of(rows: &[Transfer], out: &mut Output) -> Result<(), CliError> {
    let mut t = Table::new([
        "in",
        "out",
        "copy in",
        "run",
        "copy out",
        "copied",
        "bound",
        "work alone",
        "bound / work",
        "saved",
        "faster",
    ]);
    for r in rows {
        let ms = |v: f64| format!("{v:.3} ms");
        t.row([
            table::bytes(r.input_bytes),
            table::bytes(r.output_bytes),
            ms(r.copy_in_ms),
            ms(r.copied_run_ms),
            ms(r.copy_out_ms),
            ms(r.copied_ms),
            ms(r.bound_ms),
            ms(r.kernel_ms),
            format!("{:.3}", r.bound_over_kernel()),
            r.saved.words(),
            r.saved.times(),
        ]);
    }
    out.table(&t)
}
