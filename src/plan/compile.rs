//! Compiles a graph to a plan: runs the passes, orders nodes, places values in memory, emits commands.

use std::collections::BTreeMap;

use super::emit::emit;
use super::lowering::PlanCx;
use super::memory_plan::MemoryPlan;
use super::passes::{PassLog, lowered, rewritten};
use super::schedule::Schedule;
use super::{
    Assignment, Bound, PlanCache, PlanError, PlanOptions, PlanOutcome, insert_barriers, order_segments,
};
use crate::backend::DeviceInfo;
use crate::graph::{Graph, Tensor, TensorInfo};

/// What a plan is made of: a graph, and what is known of its inputs and outputs.
#[derive(Clone, Copy, Debug)]
pub struct PlanRequest<'a> {
    /// The graph.
    pub graph: &'a Graph,
    /// Types and shapes of its inputs.
    pub infos: &'a [TensorInfo],
    /// Inputs given by value, by position.
    pub values: &'a BTreeMap<usize, Tensor>,
    /// Inputs and outputs, by position, that are one memory.
    pub updates: &'a [(usize, usize)],
}

impl<'a> PlanRequest<'a> {
    /// Of a graph of whose inputs no value is known, each in memory of its own.
    pub fn new(graph: &'a Graph, infos: &'a [TensorInfo]) -> Self {
        const NONE: &BTreeMap<usize, Tensor> = &BTreeMap::new();
        PlanRequest { graph, infos, values: NONE, updates: &[] }
    }
}

/// Compiles plans for one device table.
#[derive(Debug)]
pub struct Compiler<'a> {
    /// The session's devices.
    pub devices: &'a [&'a DeviceInfo],
    /// The caller's wishes.
    pub options: &'a PlanOptions,
    /// Devices of nodes that nothing else places.
    pub assignment: Assignment,
    /// State shared by plans.
    pub cache: &'a PlanCache,
}

impl Compiler<'_> {
    /// The plan of `request`.
    ///
    /// # Errors
    /// [`PlanError`].
    pub fn compile(&self, request: &PlanRequest<'_>) -> Result<PlanOutcome, PlanError> {
        let (cx, mut log) = (self.cx(&self.assignment, request), PassLog::default());
        rewritten(request, &cx, &mut log)?.try_map(|flow| {
            let lowered = lowered(flow, &cx, &mut log)?;
            let schedule = Schedule::new(&lowered)?;
            let memory = MemoryPlan::new(&cx, &lowered, &schedule);
            let mut plan = emit(&cx, &lowered, &schedule, memory)?;
            order_segments(&mut plan, &|place| (place, 0));
            let bound = Bound { resolve: &|place| (place, 0), is_copied: &|_, _| false };
            insert_barriers(&mut plan, self.devices, &bound);
            plan.report.graph_nodes = request.graph.nodes().len();
            plan.report.add_passes(log);
            plan.report.barriers = plan.segments.iter().map(|s| s.barriers().count()).sum();
            Ok(plan)
        })
    }

    pub(super) fn cx<'c>(&'c self, assignment: &'c Assignment, request: &PlanRequest<'c>) -> PlanCx<'c> {
        PlanCx {
            devices: self.devices,
            options: self.options,
            assignment,
            cache: self.cache,
            updates: request.updates,
        }
    }
}
