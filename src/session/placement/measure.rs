//! Measured times of graphs on devices: small ones for a device's speeds, single operators, whole plans.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::dtype::DType;
use crate::graph::{Graph, GraphBuilder, GraphError, TensorId, TensorInfo};
use crate::ops::linalg::MatMul;
use crate::ops::{self, Choices, Operator};
use crate::plan::place::Roofline;
use crate::plan::{Flow, PlanOptions};
use crate::session::bind::binding::Binding;
use crate::session::bind::memory::{Source, owned};
use crate::session::core::SessionCore;
use crate::session::core::compiled::Compiled;
use crate::session::core::device::Device;
use crate::session::core::options::{BindPolicy, CopiedPerRun, Options};
use crate::session::error::Error;
use crate::session::stages::continuation::bind;
use crate::shape::Shape;

/// Consecutive operators that measure the cost of one more.
const ROW: usize = 16;
/// Elements of the tensors that measure memory bandwidth: 8 MiB each, beyond most caches of one core.
const LONG: usize = 2 << 20;
/// Rows and columns of the matrices that measure arithmetic.
const SQUARE: usize = 256;
/// The smallest time in nanoseconds, because a difference of two times may be 0.
const LEAST_NS: f64 = 1.0;

/// Runs a binding until it has run `most` times or `limit` is over, at least once; returns the fastest run in
/// nanoseconds.
pub(super) fn fastest(binding: &mut Binding<'_>, most: usize, limit: Duration) -> Result<u64, Error> {
    let begin = Instant::now();
    let mut best = u64::MAX;
    for _ in 0..most.max(1) {
        best = best.min(once(binding)?);
        if begin.elapsed() >= limit {
            break;
        }
    }
    Ok(best)
}

/// Nanoseconds of one run with the copies of `copied`: zeros to the inputs, the results to new tensors.
pub(super) fn once_with_copies(
    binding: &mut Binding<'_>,
    copied: CopiedPerRun,
    zeros: &[u8],
) -> Result<u64, Error> {
    let compiled = Arc::clone(&binding.compiled);
    let start = Instant::now();
    if copied.inputs {
        for (i, io) in compiled.plan.inputs.iter().enumerate() {
            binding.write_input(i, zeros.get(..io.info.bytes()).unwrap_or_default())?;
        }
    }
    binding.run()?;
    if copied.outputs {
        for io in &compiled.plan.outputs {
            binding.get_output(&io.name)?;
        }
    }
    Ok(u64::try_from(start.elapsed().as_nanos()).unwrap_or(u64::MAX))
}

/// Nanoseconds of one run.
pub(super) fn once(binding: &mut Binding<'_>) -> Result<u64, Error> {
    let start = Instant::now();
    binding.run()?;
    Ok(u64::try_from(start.elapsed().as_nanos()).unwrap_or(u64::MAX))
}

/// The speeds of a device.
pub(super) fn roofline(core: &SessionCore, device: &Device) -> Result<Roofline, Error> {
    let time = |graph: Graph, most: usize| -> Result<f64, Error> {
        let mut binding = alone(core, device, graph, Arc::default())?;
        // The first run faults pages in and wakes the device.
        binding.run()?;
        Ok(fastest(&mut binding, most, Duration::from_millis(40))? as f64)
    };
    let one = time(sums(4, 1)?, 50)?;
    let many = time(sums(4, ROW + 1)?, 50)?;
    let launch_ns = ((many - one) / ROW as f64).max(LEAST_NS);
    let submit_ns = (one - launch_ns).max(0.0);
    let outside = time(sums(LONG, 1)?, 8)?;
    let inside = (time(sums(LONG, 3)?, 8)? - outside) / 2.0;
    let moved = 2.0 * 4.0 * LONG as f64;
    // Where noise makes three passes as fast as one, the single pass counts.
    let pass = if inside > launch_ns { inside } else { outside - submit_ns };
    let bytes = moved / (pass - launch_ns).max(LEAST_NS);
    let bus_ns = match device.shares_host_memory() {
        true => 0.0,
        false => ((outside - submit_ns - pass) / moved).max(0.0),
    };
    let product = time(product()?, 8)?;
    let flops = 2.0 * (SQUARE as f64).powi(3) / (product - submit_ns - launch_ns).max(LEAST_NS);
    Ok(Roofline { submit_ns, launch_ns, flops, bytes, bus_ns })
}

/// `count` successive sums over `len` elements each.
fn sums(len: usize, count: usize) -> Result<Graph, GraphError> {
    let mut g = GraphBuilder::new("sums");
    let mut x = g.input("x", DType::F32, [len.into()]);
    for _ in 0..count {
        x = g.op(ops::add(), &[x, x]);
    }
    g.output("y", x);
    g.build()
}

fn product() -> Result<Graph, GraphError> {
    let mut g = GraphBuilder::new("product");
    let [a, b] = ["a", "b"].map(|name| g.input(name, DType::F32, [SQUARE.into(), SQUARE.into()]));
    let y = g.op(Arc::new(MatMul::default()) as Arc<dyn Operator>, &[a, b]);
    g.output("y", y);
    g.build()
}

/// Nanoseconds of node `n` of `flow` on `device` with the kernels of `choices`, without those of the
/// submission, on inputs of zeros. The first run does not count, because drivers compile in it; `limit` is
/// the time for the others, of which there is at least one.
pub(super) fn operator(
    core: &SessionCore,
    (device, choices): (&Device, Arc<Choices>),
    (flow, n): (&Flow, usize),
    submit_ns: f64,
    limit: Duration,
) -> Result<u64, Error> {
    let mut binding = alone(core, device, node_graph(flow, n)?, choices)?;
    binding.run()?;
    let best = fastest(&mut binding, 8, limit)?;
    Ok((best as f64 - submit_ns).max(LEAST_NS) as u64)
}

/// Node `n` alone: its constant inputs stay constant, the others are inputs of the graph.
fn node_graph(flow: &Flow, n: usize) -> Result<Graph, GraphError> {
    let node = &flow.nodes[n];
    let mut g = GraphBuilder::new("node");
    let mut ids: BTreeMap<usize, TensorId> = BTreeMap::new();
    let mut inputs = Vec::with_capacity(node.inputs.len());
    for v in &node.inputs {
        let Some(v) = *v else {
            inputs.push(None);
            continue;
        };
        let value = &flow.values[v];
        let id = *ids.entry(v).or_insert_with(|| match &value.constant {
            Some(constant) => g.constant(format!("c{v}"), constant.clone()),
            None => {
                g.declare_input(format!("x{v}"), Some(value.info.dtype), Some((&value.info.shape).into()))
            }
        });
        inputs.push(Some(id));
    }
    let (_, outputs) = g.node("node", Arc::clone(&node.op), &inputs, node.outputs.len());
    for (o, id) in outputs.into_iter().enumerate() {
        g.output(format!("y{o}"), id);
    }
    g.build()
}

/// A graph whose inputs have fixed types and shapes on one device alone, with the kernels of `choices`, not
/// fused, bound to memory of zeros.
pub(super) fn alone(
    core: &SessionCore,
    device: &Device,
    graph: Graph,
    choices: Arc<Choices>,
) -> Result<Binding<'static>, Error> {
    let choices = vec![choices];
    let plan = PlanOptions { fuse: false, fallback: false, choices, ..PlanOptions::default() };
    let (devices, sources) = (vec![device.clone()], Arc::clone(&core.sources));
    let options = measuring(plan, &core.options);
    let core = Arc::new(SessionCore::new(Arc::new(graph), devices, options, Arc::default(), sources));
    let scalar = || TensorInfo::new(DType::F32, Shape::scalar());
    let infos: Vec<TensorInfo> =
        (0..core.graph.inputs().len()).map(|i| core.fixed_info(i).unwrap_or_else(scalar)).collect();
    let compiled = core.compiled(&infos, &BTreeMap::new(), &[], CopiedPerRun::default())?;
    bound(&core, compiled, CopiedPerRun::default())
}

/// Options of sessions for measurements.
pub(super) fn measuring(plan: PlanOptions, of: &Options) -> Options {
    let bind = BindPolicy { strict: false, ..of.bind };
    Options { plan, bind, arena: None, placer: None, chooser: None, ..of.clone() }
}

/// A plan bound to importable memory of zeros, like a caller's, and to the session's own memory for the inputs and
/// outputs of `copied`.
pub(super) fn bound(
    core: &Arc<SessionCore>,
    compiled: Arc<Compiled>,
    copied: CopiedPerRun,
) -> Result<Binding<'static>, Error> {
    let place = |info: &TensorInfo, copied: bool| -> Result<Source<'static>, Error> {
        Ok(if copied { Source::OWN } else { owned(info)?.1 })
    };
    let plan = &compiled.plan;
    let inputs = plan.inputs.iter().map(|io| place(&io.info, copied.inputs)).collect::<Result<_, _>>()?;
    let outputs = plan.outputs.iter().map(|io| place(&io.info, copied.outputs)).collect::<Result<_, _>>()?;
    let policy = core.options.bind;
    bind(core, compiled, inputs, outputs, policy)
}
