//! In which order nodes run, and in which segments.

use std::collections::{BTreeSet, HashMap};

use super::PlanError;
use super::flow::{Flow, ValueId};
use super::index::{FlowIndex, ReadyNodes, topological};
use super::lowering::LoweredFlow;
use super::segments::{Lane, SegmentAssignment};
use crate::limits::MAX_DEPENDENCIES;

/// The order of a flow's nodes, and the segments that they are in.
pub(super) struct Schedule {
    /// What is known of each node.
    steps: Vec<Step>,
    /// What must come before each node.
    pub(super) dependencies: Dependencies,
    /// The node of each step.
    pub(super) order: Vec<usize>,
    /// The segment of each step.
    pub(super) segments: SegmentAssignment,
}

impl Schedule {
    /// Orders the nodes of `lowered`.
    ///
    /// # Errors
    /// [`PlanError::TooManyDependencies`].
    pub(super) fn new(lowered: &LoweredFlow) -> Result<Self, PlanError> {
        let step = |n: usize| {
            let cost = lowered.cost(n, &lowered.flow.cx(n));
            let node = &lowered.nodes[n];
            Step { lane: node.lane(), alias: node.is_alias(), work: cost.flops.saturating_add(cost.bytes) }
        };
        let steps: Vec<Step> = (0..lowered.nodes.len()).map(step).collect();
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

/// What is known of one node before it gets its place in the order.
#[derive(Clone, Copy, Debug)]
pub(super) struct Step {
    /// Where it runs.
    pub(super) lane: Lane,
    /// It passes bytes on and does nothing.
    pub(super) alias: bool,
    /// Flops and bytes.
    pub(super) work: u64,
}

/// For each node the nodes that must be over before it starts: producers of what it reads, and those that control
/// dependencies name. Nodes that do nothing are looked through.
pub(super) struct Dependencies {
    /// All of them.
    pub(super) all: Vec<BTreeSet<usize>>,
    /// Those that control dependencies name.
    pub(super) control: Vec<BTreeSet<usize>>,
    /// All nodes, with those before them first.
    in_order: Vec<usize>,
    /// Who makes and reads each value.
    index: FlowIndex,
}

impl Dependencies {
    pub(super) fn new(flow: &Flow, steps: &[Step]) -> Result<Self, PlanError> {
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

/// An order of the nodes in which producers come first, the device changes seldom, and what other devices wait
/// for comes early.
pub(super) fn schedule(flow: &Flow, steps: &[Step], dependencies: &Dependencies) -> Vec<usize> {
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

/// Nodes that may come next: those that do nothing, then those of the lane of the last one, then others.
struct ByLane<'a> {
    steps: &'a [Step],
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

/// Nodes that some node of another lane needs, directly or not.
fn awaited(steps: &[Step], dependencies: &Dependencies) -> Vec<bool> {
    let mut awaited = vec![false; steps.len()];
    for &n in dependencies.in_order.iter().rev() {
        for &p in &dependencies.all[n] {
            awaited[p] |= awaited[n] || steps[p].lane != steps[n].lane;
        }
    }
    awaited
}
