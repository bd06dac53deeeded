//! Compiles a graph to a plan: runs the passes, orders nodes, places values in memory, emits commands.

use std::collections::BTreeMap;

use super::emit::emit;
use super::lowering::PlanCx;
use super::memory_plan::MemoryPlan;
use super::passes::{PassLog, lowered, rewritten};
use super::schedule::Schedule;
use super::{
    Assignment, Bound, Plan, PlanCache, PlanError, PlanOptions, PlanOutcome, insert_barriers, order_segments,
};
use crate::backend::DeviceInfo;
use crate::graph::{Graph, Tensor, TensorInfo};

/// Compiles plans of one graph for one device table.
#[derive(Debug)]
pub struct Compiler<'a> {
    /// The graph.
    pub graph: &'a Graph,
    /// The session's devices.
    pub devices: &'a [&'a DeviceInfo],
    /// The caller's wishes.
    pub options: &'a PlanOptions,
    /// Devices of nodes that nothing else places.
    pub assignment: Assignment,
    /// State shared by plans.
    pub cache: &'a PlanCache,
    /// Inputs and outputs, by position, that are one memory.
    pub updates: &'a [(usize, usize)],
}

impl Compiler<'_> {
    /// The plan for inputs of types and shapes `infos`; `values` are inputs given by value.
    ///
    /// # Errors
    /// [`PlanError`].
    pub fn compile(
        &self,
        infos: &[TensorInfo],
        values: &BTreeMap<usize, Tensor>,
    ) -> Result<PlanOutcome, PlanError> {
        let (cx, mut log) = (self.cx(&self.assignment), PassLog::default());
        rewritten(self.graph, &cx, (infos, values), &mut log)?.try_map(|flow| {
            let lowered = lowered(flow, &cx, &mut log)?;
            let schedule = Schedule::new(&lowered)?;
            let memory = MemoryPlan::new(&cx, &lowered, &schedule);
            let mut plan = emit(&cx, &lowered, &schedule, memory)?;
            order_segments(&mut plan, &|place| (place, 0));
            let bound = Bound { resolve: &|place| (place, 0), is_copied: &|_, _| false };
            insert_barriers(&mut plan, self.devices, &bound);
            self.explain(&mut plan, log);
            Ok(plan)
        })
    }

    pub(super) fn cx<'c>(&'c self, assignment: &'c Assignment) -> PlanCx<'c> {
        PlanCx {
            devices: self.devices,
            options: self.options,
            assignment,
            cache: self.cache,
            updates: self.updates,
        }
    }

    /// Completes the report of `plan`.
    fn explain(&self, plan: &mut Plan, log: PassLog) {
        let report = &mut plan.report;
        report.graph_nodes = self.graph.nodes().len();
        report.add_passes(log);
        report.barriers = plan.segments.iter().map(|s| s.barriers().count()).sum();
    }
}
