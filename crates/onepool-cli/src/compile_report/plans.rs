//! The plans of models for devices that are not opened, and the kernels in them.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;

use serde::Serialize;

use super::Compute;
use crate::error::{CliError, chain};
use crate::open::load_on;
use crate::output::Output;
use crate::shapes::named;
use crate::verify::case;
use onepool::backend::DeviceInfo;
use onepool::dtype::DType;
use onepool::graph::{Graph, Tensor, TensorInfo};
use onepool::kernel::{KernelId, KernelSource};
use onepool::ops::StepKernel;
use onepool::plan::{
    self, Assignment, Compiler, GraphCx, KernelCode, Plan, PlanCache, PlanError, PlanOptions, PlanOutcome,
    PlanRequest, Precision, Work,
};
use onepool::session::IoInfo;
use onepool::shape::Dim;

/// A kernel of a plan.
pub(super) struct Planned {
    pub(super) source: Arc<KernelSource>,
    /// The kernel of the table that it is.
    pub(super) id: Option<KernelId>,
    pub(super) spec: Vec<(u32, u32)>,
}

/// What is told of a model.
#[derive(Debug, Serialize)]
pub(super) struct PlannedModel {
    /// Its file or folder, and what it computes in.
    pub(super) name: String,
    /// Lanes of the subgroups that it is planned for.
    pub(super) lanes: u32,
    /// Nodes that run on the device, and those that do not.
    nodes: usize,
    fallen: usize,
    /// The nodes that run on it, in order.
    steps: Vec<Step>,
    /// What is not in the report: why there is no plan, or that it is the plan of a part.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) remark: Option<String>,
    /// Symbols of its inputs.
    #[serde(skip)]
    symbols: BTreeSet<String>,
}

/// A node that runs on the device.
#[derive(Debug, Serialize)]
struct Step {
    name: String,
    op: &'static str,
    /// Its arithmetic operations and the bytes of its inputs and outputs.
    flops: u64,
    bytes: u64,
    /// Copies and fills.
    transfers: usize,
    dispatches: Vec<Dispatch>,
}

/// A kernel in a step.
#[derive(Debug, Serialize)]
struct Dispatch {
    kernel: String,
    groups: [u32; 3],
}

/// The kernels of the plan of the model at `path` for `table`, whose first device is the one that is looked at.
pub(super) fn plan_model(
    path: &Path,
    dims: &[String],
    precision: Compute,
    table: &[&DeviceInfo],
    out: &Output,
) -> Result<(PlannedModel, Vec<Planned>), CliError> {
    let is_case = path.is_dir();
    let file = if is_case { case::model_of(path)? } else { path.to_owned() };
    let apis: Vec<&str> = table.iter().map(|device| device.api).collect();
    let (mut graph, _) = load_on(&file, None, &apis, true, out)?;
    let ios: Vec<IoInfo> = graph.inputs().iter().map(|&id| graph.tensor(id).into()).collect();
    let (infos, values) = match case::data_sets(path) {
        Ok(sets) if is_case => of_case(&ios, &case::inputs_of(&ios, &sets[0])?, path)?,
        _ => (of_dims(&ios, dims, path)?, BTreeMap::new()),
    };
    let name = path.file_name().unwrap_or(path.as_os_str()).to_string_lossy();
    let of_io = |io: &IoInfo| io.shape.iter().flat_map(|shape| shape.0.clone()).collect::<Vec<_>>();
    let symbol = |dim| if let Dim::Symbol(symbol) = dim { Some(symbol.to_string()) } else { None };
    let mut model = PlannedModel {
        name: if precision == Compute::F16 { format!("{name} (float16)") } else { name.into_owned() },
        lanes: table.first().map_or(1, |device| device.subgroup),
        nodes: 0,
        fallen: 0,
        steps: Vec::new(),
        remark: None,
        symbols: ios.iter().flat_map(of_io).filter_map(symbol).collect(),
    };
    let precision = if precision == Compute::F16 { Precision::F16 } else { Precision::F32 };
    let options = PlanOptions { precision, ..PlanOptions::default() };
    plan::prepare(&mut graph, &GraphCx { options: &options, devices: table, free: false });
    let plan = match planned(graph, &infos, &values, table, &options, &mut model.remark) {
        Ok(plan) => plan,
        Err(error) => {
            model.remark = Some(format!("not planned: {}", chain(&error)));
            return Ok((model, Vec::new()));
        }
    };
    model.fallen = plan.report.nodes.iter().filter(|node| node.device != 0).count();
    model.nodes = plan.report.nodes.len() - model.fallen;
    model.steps = steps(&plan);
    let kernels = plan.kernels.into_iter().filter(|kernel| kernel.device == 0);
    let kernels = kernels.filter_map(|kernel| {
        let (source, id) = match kernel.code {
            KernelCode::Device(StepKernel::Table(id)) => (Arc::new(id.source()), Some(id)),
            KernelCode::Device(StepKernel::Module(source)) => (source, None),
            KernelCode::Native(_) => return None,
        };
        Some(Planned { source, id, spec: kernel.spec })
    });
    Ok((model, kernels.collect()))
}

/// The nodes on the first device with their commands.
fn steps(plan: &Plan) -> Vec<Step> {
    let mut steps: BTreeMap<u32, Step> = BTreeMap::new();
    for (i, node) in (0..).zip(&plan.report.nodes).filter(|(_, node)| node.device == 0) {
        let (flops, bytes) = (node.cost.flops, node.cost.bytes);
        let step =
            Step { name: node.name.clone(), op: node.op, flops, bytes, transfers: 0, dispatches: Vec::new() };
        steps.insert(i, step);
    }
    for command in plan.segments.iter().filter(|s| s.device == 0).flat_map(|s| &s.commands) {
        let Some(step) = steps.get_mut(&command.node) else { continue };
        match &command.work {
            Work::Dispatch { kernel, groups, .. } => {
                let kernel = plan.kernels.get(*kernel as usize).map(|kernel| match &kernel.code {
                    KernelCode::Device(StepKernel::Table(id)) => id.info().name.to_owned(),
                    KernelCode::Device(StepKernel::Module(source)) => source.name().to_owned(),
                    KernelCode::Native(native) => native.name().to_owned(),
                });
                step.dispatches.push(Dispatch { kernel: kernel.unwrap_or_default(), groups: *groups });
            }
            Work::Copy { .. } | Work::Move { .. } | Work::Fill { .. } => step.transfers += 1,
        }
    }
    steps.into_values().collect()
}

const FIRST_STAGE: &str = "the run decides sizes: this is its first stage alone";

/// The plan, or that of the first stage where the run decides sizes.
fn planned(
    mut graph: Graph,
    infos: &[TensorInfo],
    values: &BTreeMap<usize, Tensor>,
    table: &[&DeviceInfo],
    options: &PlanOptions,
    remark: &mut Option<String>,
) -> Result<Plan, PlanError> {
    let cache = PlanCache::default();
    let compiler = Compiler { devices: table, options, assignment: Assignment::default(), cache: &cache };
    let mut known = BTreeMap::new();
    loop {
        match compiler.compile(&PlanRequest { values: &known, ..PlanRequest::new(&graph, infos) })? {
            PlanOutcome::Choose { node, then } => graph = plan::choose(&graph, node, then)?,
            PlanOutcome::NeedsValues { inputs, .. }
                if inputs.iter().any(|i| values.contains_key(i) && !known.contains_key(i)) =>
            {
                known.extend(inputs.iter().filter_map(|i| Some((*i, values.get(i)?.clone()))));
            }
            PlanOutcome::NeedsValues { .. } | PlanOutcome::Dynamic { .. } if remark.is_none() => {
                match plan::split(&graph, infos, &known)? {
                    PlanOutcome::Choose { node, then } => graph = plan::choose(&graph, node, then)?,
                    split => {
                        *remark = Some(FIRST_STAGE.to_owned());
                        graph = split.plan()?.head;
                    }
                }
            }
            outcome => return outcome.plan(),
        }
    }
}

type Inputs = (Vec<TensorInfo>, BTreeMap<usize, Tensor>);

/// Types, shapes and values of the inputs, as a test case gives them.
fn of_case(ios: &[IoInfo], given: &[(String, Tensor)], path: &Path) -> Result<Inputs, CliError> {
    let mut infos = Vec::with_capacity(ios.len());
    let mut values = BTreeMap::new();
    for (i, io) in ios.iter().enumerate() {
        let value = given.iter().find(|(name, _)| *name == io.name);
        let (_, value) = value.ok_or_else(|| {
            CliError::content(path, format!("its first data set has no input {:?}", io.name))
        })?;
        infos.push(value.info().clone());
        values.insert(i, value.clone());
    }
    Ok((infos, values))
}

/// Types and shapes of the inputs, as the model and `--dim` give them.
fn of_dims(ios: &[IoInfo], dims: &[String], path: &Path) -> Result<Vec<TensorInfo>, CliError> {
    let sizes = sizes(dims)?;
    let info = |io: &IoInfo| {
        let shape = io.shape.as_ref().and_then(|shape| named(shape, &sizes).concrete());
        shape.map(|shape| TensorInfo::new(io.dtype.unwrap_or(DType::F32), shape)).ok_or_else(|| {
            let what = crate::assign::described(io);
            CliError::usage(format!("{}: the shape of {what} is open; give --dim", path.display()))
        })
    };
    ios.iter().map(info).collect()
}

fn sizes(dims: &[String]) -> Result<BTreeMap<String, usize>, CliError> {
    let mut sizes = BTreeMap::new();
    for text in dims {
        let pair = text.split_once('=').and_then(|(name, size)| Some((name, size.trim().parse().ok()?)));
        let Some((name, size)) = pair else {
            return Err(CliError::usage(format!("--dim {text:?}: expected SYMBOL=SIZE")));
        };
        if sizes.insert(name.to_owned(), size).is_some() {
            return Err(CliError::usage(format!("--dim {text:?}: it is given twice")));
        }
    }
    Ok(sizes)
}

/// Refuses sizes of symbols that no model has.
pub(super) fn check_dims(dims: &[String], models: &[PlannedModel]) -> Result<(), CliError> {
    let symbols: BTreeSet<&String> = models.iter().flat_map(|model| &model.symbols).collect();
    match sizes(dims)?.keys().find(|name| !symbols.contains(name)) {
        Some(name) => Err(CliError::usage(format!(
            "--dim {name}=..: no input has such a dimension; there are {symbols:?}"
        ))),
        None => Ok(()),
    }
}
