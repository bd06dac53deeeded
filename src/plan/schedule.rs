//! The order of nodes, and their segments.

use std::collections::{BTreeSet, HashMap};

use super::PlanError;
use super::flow::{Flow, ValueId};
use super::index::{FlowIndex, ReadyNodes, topological};
use super::lowering::LoweredFlow;
use super::segments::{Lane, SegmentAssignment};
use crate::limits::MAX_DEPENDENCIES;

/// The order of a flow's nodes, and their segments.
pub(super) struct Schedule {
    /// Facts of each node.
    steps: Vec<NodeFacts>,
    /// The predecessors of each node.
    pub(super) dependencies: Dependencies,
    /// The node of each step.
    pub(super) order: Vec<usize>,
    /// The segment of each step.
    pub(super) segments: SegmentAssignment,
}

impl Schedule {
    /// Orders the nodes of `lowered`.
    pub(super) fn new(lowered: &LoweredFlow) -> Result<Self, PlanError> {
        let step = |n: usize| {
            let cost = lowered.cost(n, &lowered.flow.cx(n));
            let node = &lowered.nodes[n];
            NodeFacts {
                lane: node.lane(),
                alias: node.is_alias(),
                work: cost.flops.saturating_add(cost.bytes),
            }
        };
        let steps: Vec<NodeFacts> = (0..lowered.nodes.len()).map(step).collect();
        let dependencies = Dependencies::new(&lowered.flow, &steps)?;
        let order = schedule(&lowered.flow, &steps, &dependencies);
        let segments = SegmentAssignment::new(&order, &steps, &dependencies);
        Ok(Schedule { steps, dependencies, order, segments })
    }

    /// The steps that touch each class of values, by the value that `root` names.
    pub(super) fn steps_of(
        &self,
        flow: &Flow,
        root: &dyn Fn(ValueId) -> ValueId,
    ) -> HashMap<ValueId, BTreeSet<u32>> {
        let mut touched: HashMap<ValueId, BTreeSet<u32>> = HashMap::new();
        let order = self.order.iter().enumerate();
        for (step, &n) in order.filter(|(_, n)| !self.steps[**n].alias) {
            let node = &flow.nodes[n];
            for &v in node.inputs.iter().flatten().chain(&node.outputs) {
                touched.entry(root(v)).or_default().insert(step as u32);
            }
        }
        touched
    }
}

/// Facts of one node before it is ordered.
#[derive(Clone, Copy, Debug)]
pub(super) struct NodeFacts {
    /// Where it runs.
    pub(super) lane: Lane,
    /// It has no work: its output is an input's bytes.
    pub(super) alias: bool,
    /// Flops and bytes.
    pub(super) work: u64,
}

/// For each node its predecessors: producers of its inputs, and control dependencies. Aliases are replaced by their
/// own predecessors.
pub(super) struct Dependencies {
    /// All predecessors.
    pub(super) all: Vec<BTreeSet<usize>>,
    /// Predecessors by control dependency.
    pub(super) control: Vec<BTreeSet<usize>>,
    /// All nodes in topological order.
    in_order: Vec<usize>,
    /// Producers and users of each value.
    index: FlowIndex,
}

impl Dependencies {
    pub(super) fn new(flow: &Flow, steps: &[NodeFacts]) -> Result<Self, PlanError> {
        let index = FlowIndex::new(flow);
        let none = || vec![BTreeSet::new(); flow.nodes.len()];
        let mut dependencies =
            Dependencies { all: none(), control: none(), in_order: index.in_order(flow), index };
        let mut sum = 0usize;
        for at in 0..dependencies.in_order.len() {
            let n = dependencies.in_order[at];
            let node = &flow.nodes[n];
            let (mut all, mut control) = (BTreeSet::new(), BTreeSet::new());
            for p in node.inputs.iter().flatten().filter_map(|&v| dependencies.index.producer(v)) {
                if steps[p].alias {
                    all.extend(&dependencies.all[p]);
                    control.extend(&dependencies.control[p]);
                } else {
                    all.insert(p);
                }
            }
            for &dep in &node.control_deps {
                if steps[dep].alias {
                    control.extend(&dependencies.all[dep]);
                } else {
                    control.insert(dep);
                }
            }
            all.extend(&control);
            sum += all.len();
            if sum > MAX_DEPENDENCIES {
                return Err(PlanError::TooManyDependencies { limit: MAX_DEPENDENCIES });
            }
            (dependencies.all[n], dependencies.control[n]) = (all, control);
        }
        Ok(dependencies)
    }
}

/// A topological order in which the device changes seldom, and nodes that other devices wait for come early.
pub(super) fn schedule(flow: &Flow, steps: &[NodeFacts], dependencies: &Dependencies) -> Vec<usize> {
    let count = flow.nodes.len();
    let lanes: BTreeSet<Lane> = steps.iter().map(|s| s.lane).collect();
    if lanes.len() < 2 {
        return (0..count).collect();
    }
    let before: Vec<BTreeSet<usize>> = (0..count)
        .map(|n| {
            let reads = flow.nodes[n].inputs.iter().flatten().filter_map(|&v| dependencies.index.producer(v));
            reads.chain(dependencies.all[n].iter().copied()).collect()
        })
        .collect();
    let awaited = awaited(steps, dependencies);
    topological(&before, &mut ByLane { steps, awaited, ready: BTreeSet::new(), idle: Vec::new(), lane: None })
}

/// Ready nodes: aliases first, then those on the lane of the last node, then others.
struct ByLane<'a> {
    steps: &'a [NodeFacts],
    awaited: Vec<bool>,
    ready: BTreeSet<(Lane, bool, usize)>,
    idle: Vec<usize>,
    lane: Option<Lane>,
}

impl ReadyNodes for ByLane<'_> {
    fn push(&mut self, n: usize) {
        if self.steps[n].alias {
            self.idle.push(n);
        } else {
            self.ready.insert((self.steps[n].lane, !self.awaited[n], n));
        }
    }

    fn pop(&mut self) -> Option<usize> {
        let first = self.ready.first();
        let lane = *self.lane.get_or_insert(first.map_or(Lane::Device(0), |r| r.0));
        if let Some(n) = self.idle.pop() {
            return Some(n);
        }
        let here = self.ready.range((lane, false, 0)..=(lane, true, usize::MAX)).next();
        let next = *here.or(first)?;
        self.ready.remove(&next);
        self.lane = Some(next.0);
        Some(next.2)
    }
}

/// Nodes that a node of another lane depends on, directly or not.
fn awaited(steps: &[NodeFacts], dependencies: &Dependencies) -> Vec<bool> {
    let mut awaited = vec![false; steps.len()];
    for &n in dependencies.in_order.iter().rev() {
        for &p in &dependencies.all[n] {
            awaited[p] |= awaited[n] || steps[p].lane != steps[n].lane;
        }
    }
    awaited
}
