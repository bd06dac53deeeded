//! Runs the pipeline.

use std::convert::Infallible;
use std::time::Instant;

use super::{PIPELINE, PassFn, PassLog, PassStatus};
use crate::backend::DeviceInfo;
use crate::graph::Graph;
use crate::limits::MAX_DEPENDENCIES;
use crate::plan::flow::{Flow, specialize};
use crate::plan::lowering::{LoweredFlow, PlanCx};
use crate::plan::{PlanError, PlanOptions, PlanOutcome, PlanRequest};

/// Context of passes over a graph.
#[derive(Clone, Copy, Debug)]
pub struct GraphCx<'a> {
    /// The caller's wishes.
    pub options: &'a PlanOptions,
    /// The session's devices.
    pub devices: &'a [&'a DeviceInfo],
    /// Measurements will choose the devices of nodes that nothing else places.
    pub free: bool,
}

/// Runs the passes over `graph`, once for all plans.
pub fn prepare(graph: &mut Graph, cx: &GraphCx<'_>) -> PassLog {
    match prepare_and_share::<Infallible>(graph, cx, None) {
        Ok(log) => log,
        Err(never) => match never {},
    }
}

/// Unifies parameters of a graph with equal ones of other graphs; returns how many.
pub type Share<'a, E> = dyn Fn(&mut Graph) -> Result<usize, E> + 'a;

/// As [`prepare`], for a graph that shares its parameters through `share`.
///
/// # Errors
/// Errors of `share`.
pub fn prepare_and_share<E>(
    graph: &mut Graph,
    cx: &GraphCx<'_>,
    share: Option<&Share<'_, E>>,
) -> Result<PassLog, E> {
    let mut log = PassLog::default();
    let nodes = |graph: &Graph| graph.nodes().len();
    for pass in PIPELINE {
        match (pass.run, share) {
            (PassFn::Graph(run), _) => log.run(pass, cx.options, graph, nodes, |graph| Ok(run(graph, cx)))?,
            (PassFn::Share, Some(share)) => log.run(pass, cx.options, graph, nodes, share)?,
            (PassFn::Share, None) => log.skip(pass, graph.nodes().len(), PassStatus::NotAskedFor),
            _ => {}
        }
    }
    Ok(log)
}

/// Specializes the graph of `request`, and runs the passes over the flow.
pub(in crate::plan) fn rewritten(
    request: &PlanRequest<'_>,
    cx: &PlanCx<'_>,
    log: &mut PassLog,
) -> Result<PlanOutcome<Flow>, PlanError> {
    let PlanRequest { graph, infos, values, .. } = *request;
    let mut flow = Flow::default();
    let nodes = |flow: &Flow| flow.nodes.len();
    for pass in PIPELINE {
        match pass.run {
            PassFn::Specialize => {
                let began = Instant::now();
                match specialize(graph, infos, values)? {
                    PlanOutcome::Plan(made) => flow = made,
                    other => return Ok(other),
                }
                let (before, after) = (graph.nodes().len(), flow.nodes.len());
                log.note(pass, [before, after], before.saturating_sub(after), began.elapsed());
            }
            PassFn::Flow(run) => log.run(pass, cx.options, &mut flow, nodes, |flow| run(flow, cx))?,
            _ => {}
        }
    }
    if flow.overgrown {
        return Err(PlanError::TooManyDependencies { limit: MAX_DEPENDENCIES });
    }
    Ok(PlanOutcome::Plan(flow))
}

/// Runs the passes over a flow whose nodes have their devices, and lowers it.
pub(in crate::plan) fn lowered(
    mut flow: Flow,
    cx: &PlanCx<'_>,
    log: &mut PassLog,
) -> Result<LoweredFlow, PlanError> {
    let nodes = |flow: &Flow| flow.nodes.len();
    for pass in PIPELINE {
        if let PassFn::Placed(run) = pass.run {
            log.run(pass, cx.options, &mut flow, nodes, |flow| run(flow, cx))?;
        }
    }
    let mut lowered = LoweredFlow { flow, ..LoweredFlow::default() };
    let nodes = |lowered: &LoweredFlow| lowered.flow.nodes.len();
    for pass in PIPELINE {
        match pass.run {
            PassFn::Lower => log.run(pass, cx.options, &mut lowered, nodes, |lowered| lowered.lower(cx))?,
            PassFn::Lowered(run) => {
                log.run(pass, cx.options, &mut lowered, nodes, |lowered| run(lowered, cx))?;
            }
            _ => {}
        }
    }
    Ok(lowered)
}
