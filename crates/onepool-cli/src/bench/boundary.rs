//! `onepool bench boundary`: what a graph that leaves the GPU for the CPU and comes back pays for it.

use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use serde::Serialize;

use super::measure::{empty, median, region};
use crate::error::CliError;
use crate::open::{CacheArgs, open};
use crate::output::Output;
use crate::report::{self, ReportArgs};
use crate::stop;
use crate::table::{self, Table};
use onepool::device::Context;
use onepool::graph::{NodeId, TensorInfo};
use onepool::kernel::NativeKernel;
use onepool::memory::host::SharedRegion;
use onepool::ops::custom::{CustomKernel, KernelCall};
use onepool::ops::{self, AttrMap, AttrReader, AttrValue, OpError, Operator};
use onepool::plan::Work;
use onepool::session::{Binding, Error, Memory, Session};
use onepool::shape::Shape;
use onepool::{DType, Graph, GraphBuilder, Tensor};

/// Arguments of `onepool bench boundary`.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Args {
    /// The device of the convolutions: `auto`, `vulkan`, `vulkan:1`, ...; without it ONEPOOL_DEVICE, then `auto`.
    #[arg(long)]
    device: Option<String>,
    #[command(flatten)]
    cache: CacheArgs,
    /// Sizes of the tensors between the devices in MiB.
    #[arg(long, value_delimiter = ',', default_values_t = [1, 4, 8, 24])]
    sizes: Vec<u32>,
    /// Runs of each way for each size.
    #[arg(long, default_value_t = 25, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    runs: u32,
    #[command(flatten)]
    report: ReportArgs,
}

/// Medians of one size in milliseconds.
#[derive(Clone, Debug, Serialize)]
struct Row {
    /// Bytes of each of the two tensors between the devices.
    bytes: u64,
    /// What the kernels of both devices take.
    work_ms: f64,
    /// What a run that stays on the device takes apart from its kernels.
    alone_ms: f64,
    /// What a run in which both devices use the same memory takes more than that apart from its kernels.
    shared_ms: f64,
    /// The same of a run in which the tensors are copied.
    copied_ms: f64,
    /// Bytes that the first one copies between the devices.
    shared_bytes_copied: u64,
    /// Bytes that the second one copies between the devices.
    copied_bytes_copied: u64,
    runs: usize,
}

#[derive(Debug, Serialize)]
struct Report {
    device: String,
    driver: String,
    rows: Vec<Row>,
}

const CHANNELS: usize = 4;
const WIDTH: usize = 256;

pub(crate) fn run(args: &Args, out: &mut Output) -> Result<ExitCode, CliError> {
    if let Some(size) = args.sizes.iter().find(|s| !(1..=256).contains(*s)) {
        return Err(CliError::usage(format!("a size of {size} MiB, expected 1 to 256")));
    }
    let runs = args.runs as usize;
    let page = args.report.wanted(out)?;
    let desc = args.cache.desc()?;
    let table = [open(args.device.as_deref(), &desc)?, open(Some("cpu"), &desc)?];
    let bar = out.progress("measuring", Some((args.sizes.len() * (runs + 2)) as u64));
    let mut rows = Vec::new();
    for &mib in &args.sizes {
        rows.push(measure(&table, mib as usize, runs, &|| bar.inc(1))?);
    }
    drop(bar);
    let info = table[0].info();
    let report = Report { device: info.name.clone(), driver: info.driver.clone(), rows };
    print(&report, out)?;
    if let Some(page) = page {
        let mut shown = report::Report::new("bench boundary", "From one device to another and back");
        shown.add_devices(table.iter().map(Context::info));
        shown.ways = report.rows.iter().map(ways).collect();
        page.write(&shown, out)?;
    }
    out.json(&report)?;
    Ok(ExitCode::SUCCESS)
}

/// One size, for the page.
fn ways(row: &Row) -> report::Ways {
    let way = |name: &str, besides: f64| report::Way {
        name: name.to_owned(),
        // A run that noise made faster than the one it is compared with took nothing more.
        parts: vec![
            ("kernels".to_owned(), row.work_ms),
            ("submission and wait".to_owned(), row.alone_ms),
            ("boundary".to_owned(), besides.max(0.0)),
        ],
    };
    report::Ways {
        label: format!("{} at each boundary", table::bytes(row.bytes)),
        ways: vec![
            way("on the device", 0.0),
            way("shared memory", row.shared_ms),
            way("copies", row.copied_ms),
        ],
        remark: format!(
            "Copied between the devices: {} in shared memory, {} with copies. Medians of {} runs.",
            table::bytes(row.shared_bytes_copied),
            table::bytes(row.copied_bytes_copied),
            row.runs
        ),
    }
}

/// A session, with its input and output bound and the time that its native function took.
struct Way {
    binding: Binding<'static>,
    output: Arc<SharedRegion>,
    native: Arc<AtomicU64>,
}

/// Where the middle of the graph runs.
#[derive(Clone, Copy, PartialEq)]
enum Middle {
    OnDevice,
    Shared,
    Copied,
}

impl Way {
    fn new(
        table: &[Context],
        shape: &Shape,
        x: &Arc<SharedRegion>,
        middle: Middle,
    ) -> Result<Self, CliError> {
        let native = Arc::<AtomicU64>::default();
        let graph = graph(shape, &native, middle)?;
        let share = middle != Middle::Copied;
        let builder = stop::cancellable(Session::builder()).graph(graph).share_memory(share);
        let mut builder = builder.fuse(false).copy_threshold(0);
        for context in table {
            builder = builder.context(context.clone());
        }
        let output = empty(shape.iter().product::<usize>() * 4)?;
        let bind = builder.build()?.bind().input("x", Memory::region(x));
        let binding = bind.output("y", Memory::region(&output)).build()?;
        Ok(Way { binding, output, native })
    }

    /// Runs once: milliseconds of the kernels, and of everything else.
    fn run(&mut self) -> Result<(f64, f64), CliError> {
        let profile = self.binding.profile()?;
        let native = self.native.load(Ordering::Relaxed);
        let device = profile.nodes.iter().filter(|n| n.device == 0).map(|n| n.nanos).sum::<u64>();
        let work = device.saturating_add(native);
        Ok((work as f64 / 1e6, profile.host_nanos.saturating_sub(work) as f64 / 1e6))
    }

    fn copied(&self) -> u64 {
        self.binding.plan().report.crossings.iter().map(|c| c.copied()).sum()
    }

    fn result(&self) -> Result<Vec<f32>, CliError> {
        let bytes = self.output.read().map_err(Error::from)?;
        Ok(bytes.as_slice_of::<f32>().map_err(Error::from)?.to_vec())
    }
}

/// A convolution on entry 0, a native function on entry 1 or what it computes on entry 0, and again a convolution on
/// entry 0.
fn graph(shape: &Shape, nanos: &Arc<AtomicU64>, middle: Middle) -> Result<Graph, CliError> {
    let mut g = GraphBuilder::new("boundary");
    let dims: Vec<onepool::Dim> = shape.iter().map(|&d| d.into()).collect();
    let x = g.input("x", DType::F32, dims);
    let conv = conv().map_err(|e| CliError::Failed(e.to_string()))?;
    let w = g.constant("w", weights()?);
    let a = g.op(Arc::clone(&conv), &[x, w]);
    let nanos = Arc::clone(nanos);
    let kernel = NativeKernel::new("halve", move |args| {
        let start = Instant::now();
        let x = args.read::<f32>(0)?;
        args.take_write::<f32>(1)?.iter_mut().zip(x).for_each(|(y, x)| *y = 0.5 * x);
        nanos.store(start.elapsed().as_nanos() as u64, Ordering::Relaxed);
        Ok(())
    });
    let info = TensorInfo::new(DType::F32, shape.clone());
    let halve: Arc<dyn Operator> =
        Arc::new(CustomKernel::fixed("halve", KernelCall::native(kernel), vec![info]));
    let b = if middle == Middle::OnDevice {
        let half = g.constant("half", Tensor::scalar(0.5f32));
        g.op(ops::mul(), &[a, half])
    } else {
        g.op(halve, &[a])
    };
    let y = g.op(conv, &[b, w]);
    g.output("y", y);
    let mut graph = g.build().map_err(Error::from)?;
    let middle_device = u32::from(middle != Middle::OnDevice);
    for (n, device) in [0, middle_device, 0].into_iter().enumerate() {
        graph.place(NodeId(n as u32), Some(device));
    }
    Ok(graph)
}

fn conv() -> Result<Arc<dyn Operator>, OpError> {
    let attrs = AttrMap::from([("pads".to_owned(), AttrValue::Ints(vec![1; 4]))]);
    let def = ops::find("", "Conv").ok_or_else(|| OpError::unsupported("Conv"))?;
    (def.read)(&mut AttrReader::new(&attrs, 2, 1), 13)
}

/// Each channel goes to the next one, from the pixel above.
fn weights() -> Result<Tensor, Error> {
    let mut w = vec![0f32; CHANNELS * CHANNELS * 9];
    for to in 0..CHANNELS {
        w[(to * CHANNELS + (to + 1) % CHANNELS) * 9 + 1] = 1.0;
    }
    Ok(Tensor::new([CHANNELS, CHANNELS, 3, 3], &w)?)
}

/// What the graph computes.
fn expected(x: &[f32], rows: usize) -> Vec<f32> {
    let plane = rows * WIDTH;
    let at = |c: usize, i: usize| {
        let from = (c + 2) % CHANNELS;
        if i < 2 * WIDTH { 0.0 } else { 0.5 * x[from * plane + i - 2 * WIDTH] }
    };
    (0..CHANNELS * plane).map(|k| at(k / plane, k % plane)).collect()
}

fn measure(table: &[Context], mib: usize, runs: usize, tick: &dyn Fn()) -> Result<Row, CliError> {
    let rows = (mib << 20) / (4 * CHANNELS * WIDTH);
    let shape = Shape::new([1, CHANNELS, rows, WIDTH]).map_err(Error::from)?;
    let x: Vec<f32> = (0..CHANNELS * rows * WIDTH).map(|i| (i % 251) as f32).collect();
    let input = region(bytemuck::cast_slice(&x))?;
    let mut alone = Way::new(table, &shape, &input, Middle::OnDevice)?;
    let mut shared = Way::new(table, &shape, &input, Middle::Shared)?;
    let mut copied = Way::new(table, &shape, &input, Middle::Copied)?;
    let want = expected(&x, rows);
    for way in [&mut alone, &mut shared, &mut copied] {
        way.binding.run()?;
        if let Some(i) = way.result()?.iter().zip(&want).position(|(y, want)| y != want) {
            return Err(CliError::Failed(format!("element {i} is wrong, expected {}", want[i])));
        }
    }
    let moves = |c: &onepool::plan::PlannedCommand| matches!(c.work, Work::Copy { .. } | Work::Move { .. });
    let commands = shared.binding.plan().segments.iter().flat_map(|s| &s.commands).filter(|c| moves(c));
    if shared.copied() == 0 && commands.count() > 0 {
        return Err(CliError::Failed("the plan copies and says that it does not".to_owned()));
    }
    let (mut work, mut costs): (Vec<f64>, [Vec<f64>; 3]) = Default::default();
    for round in 0..runs + 2 {
        let (_, base) = alone.run()?;
        let (kernels, first) = shared.run()?;
        let (_, second) = copied.run()?;
        // The first rounds touch pages and compile.
        if round >= 2 {
            work.push(kernels);
            costs[0].push(base);
            costs[1].push(first - base);
            costs[2].push(second - base);
        }
        tick();
    }
    let [alone_ms, shared_ms, copied_ms] = costs.map(|mut all| median(&mut all));
    Ok(Row {
        bytes: (mib as u64) << 20,
        work_ms: median(&mut work),
        alone_ms,
        shared_ms,
        copied_ms,
        shared_bytes_copied: shared.copied(),
        copied_bytes_copied: copied.copied(),
        runs,
    })
}

fn print(report: &Report, out: &mut Output) -> Result<(), CliError> {
    out.line(format!("{} ({}) and the CPU", report.device, report.driver))?;
    out.line("")?;
    let mut t = Table::new([
        "boundary",
        "kernels",
        "alone",
        "shared",
        "of it copied",
        "copies",
        "of it copied",
        "cheaper",
    ]);
    for r in &report.rows {
        let ms = |v: f64| format!("{v:.3} ms");
        t.row([
            table::bytes(r.bytes),
            ms(r.work_ms),
            ms(r.alone_ms),
            ms(r.shared_ms),
            table::bytes(r.shared_bytes_copied),
            ms(r.copied_ms),
            table::bytes(r.copied_bytes_copied),
            format!("{:.1} x", r.copied_ms / r.shared_ms.max(1e-3)),
        ]);
    }
    out.table(&t)?;
    out.line("a convolution on the device, a function on the CPU, a convolution on the device: what a run takes besides")?;
    out.line("its kernels, above what one takes that stays on the device (alone): where both use the same memory, and where")?;
    out.line("tensors are copied from one to the other")
}
