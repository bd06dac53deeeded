//! Splits a graph whose sizes are known only in the run.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::Arc;

use super::flow::{NodeOutcome, Specializer};
use super::{PlanError, PlanOutcome};
use crate::graph::{Graph, NodeId, Origin, Tensor, TensorId, TensorInfo, free_name};
use crate::ops::Operator;
use crate::ops::control::Control;
use crate::ops::pointwise::Identity;

/// The source of a tensor between the parts of a split graph.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum StageInput {
    /// An input of the whole graph.
    Input(usize),
    /// An output of the head.
    Head(usize),
    /// An output of a step.
    Step {
        /// The index of the step.
        step: usize,
        /// The index of its output.
        output: usize,
    },
}

/// An input of a step.
#[derive(Clone, Debug)]
pub enum StepInput {
    /// A constant.
    Constant(Tensor),
    /// A tensor that the run computes.
    Stage(StageInput),
}

/// A node that the session runs itself, on the host or as runs of a graph.
#[derive(Clone, Debug)]
pub struct StageStep {
    /// The node's name.
    pub name: String,
    /// What it computes.
    pub op: Arc<dyn Operator>,
    /// What it reads.
    pub inputs: Vec<Option<StepInput>>,
    /// Number of outputs.
    pub outputs: usize,
}

/// A graph in parts: the head is planned first, then the steps run, and the tail is planned once their results are
/// known.
#[derive(Clone, Debug)]
pub struct SplitGraph {
    /// The part that can be planned now. Its inputs are those of the whole graph, its first outputs are outputs of
    /// the whole graph under their names.
    pub head: Graph,
    /// The nodes that the session runs after the head.
    pub steps: Vec<StageStep>,
    /// The part after the steps. Its outputs are the other outputs of the whole graph.
    pub tail: Graph,
    /// The source of each input of the tail.
    pub tail_inputs: Vec<StageInput>,
    /// Inputs of the tail whose values its plan needs.
    pub needed: Vec<usize>,
}

/// `graph` with a node replaced by the chosen one of its graphs ([`PlanOutcome::Choose`]).
///
/// # Errors
/// [`PlanError::Graph`].
pub fn choose(graph: &Graph, node: NodeId, then: bool) -> Result<Graph, PlanError> {
    let decl = graph.node(node);
    match decl.op.control() {
        Some(Control::If { then: yes, other: no }) => {
            let inputs = decl.inputs.get(1..).unwrap_or(&[]);
            let identity: Arc<dyn Operator> = Arc::new(Identity);
            Ok(graph.inlined(node, if then { yes } else { no }, inputs, &identity)?)
        }
        _ => Ok(graph.clone()),
    }
}

/// Splits `graph` for inputs of types and shapes `infos`; `values` are inputs given by value. The outcome is the parts, or
/// [`PlanOutcome::Choose`].
///
/// # Errors
/// As [`super::specialize`].
pub fn split(
    graph: &Graph,
    infos: &[TensorInfo],
    values: &BTreeMap<usize, Tensor>,
) -> Result<PlanOutcome<SplitGraph>, PlanError> {
    let mut walk = Specializer::begin(graph, infos, values)?;
    let live = walk.live_nodes();
    let mut waits: BTreeSet<NodeId> = BTreeSet::new();
    let mut needed: BTreeSet<TensorId> = BTreeSet::new();
    let mut steps: Vec<NodeId> = Vec::new();
    for &n in &live {
        let node = graph.node(n);
        let known = |id: &TensorId| walk.value_of[id.index()].is_some();
        if !node.inputs.iter().flatten().all(known) || node.control_deps.iter().any(|d| waits.contains(d)) {
            waits.insert(n);
            continue;
        }
        match walk.node(n)? {
            NodeOutcome::Done => {}
            NodeOutcome::Choose(then) => return Ok(PlanOutcome::Choose { node: n, then }),
            NodeOutcome::Wait { input } => {
                waits.insert(n);
                if walk.is_dynamic(n) {
                    steps.push(n);
                } else {
                    needed.extend(node.inputs.get(input).copied().flatten());
                }
            }
        }
    }
    Ok(PlanOutcome::Plan(Parts { graph, walk: &walk, waits, steps }.make(&needed)))
}

struct Parts<'a> {
    graph: &'a Graph,
    walk: &'a Specializer<'a>,
    /// Nodes outside the head.
    waits: BTreeSet<NodeId>,
    /// Nodes outside the head that are steps.
    steps: Vec<NodeId>,
}

impl Parts<'_> {
    fn make(&self, needed: &BTreeSet<TensorId>) -> SplitGraph {
        let graph = self.graph;
        let mut head = graph.clone();
        // Outputs of the whole graph that the head writes keep their names and come first.
        head.outputs.retain(|(_, id)| self.walk.value_of[id.index()].is_some());
        let mut names: HashSet<String> = graph.outputs.iter().map(|(name, _)| name.clone()).collect();
        let mut head_output: HashMap<TensorId, usize> = HashMap::new();
        for (o, (_, id)) in head.outputs.iter().enumerate() {
            head_output.entry(*id).or_insert(o);
        }
        let input_of: HashMap<TensorId, usize> =
            graph.inputs.iter().enumerate().map(|(i, id)| (*id, i)).collect();
        let step_of: HashMap<NodeId, usize> = self.steps.iter().enumerate().map(|(i, n)| (*n, i)).collect();
        let mut stage_input_of = |id: TensorId| -> Option<StageInput> {
            match graph.tensor(id).origin {
                Origin::Input => input_of.get(&id).copied().map(StageInput::Input),
                Origin::Constant(_) | Origin::Unmade => None,
                Origin::Node { node, output } => match step_of.get(&node).copied() {
                    Some(step) => Some(StageInput::Step { step, output: output as usize }),
                    None if self.waits.contains(&node) => None,
                    None => {
                        let next = head.outputs.len();
                        let o = *head_output.entry(id).or_insert(next);
                        if o == next {
                            let name = free_name(&mut names, format!("{}:next", graph.tensor(id).name));
                            head.outputs.push((name, id));
                        }
                        Some(StageInput::Head(o))
                    }
                },
            }
        };
        let constant = |id: TensorId| -> Option<Tensor> {
            self.walk.flow.values.get(self.walk.value_of[id.index()]?)?.constant.clone()
        };
        let steps = (self.steps.iter())
            .map(|&n| {
                let node = graph.node(n);
                let mut read = |id: TensorId| match constant(id) {
                    Some(value) => Some(StepInput::Constant(value)),
                    None => stage_input_of(id).map(StepInput::Stage),
                };
                StageStep {
                    name: node.name.clone(),
                    op: node.op.clone(),
                    inputs: node.inputs.iter().map(|i| i.and_then(&mut read)).collect::<Vec<_>>(),
                    outputs: node.outputs.len(),
                }
            })
            .collect();
        let mut tail = graph.clone();
        tail.inputs.clear();
        tail.lazy_inputs.clear();
        tail.captured = 0;
        let stays = |n: NodeId| self.waits.contains(&n) && !step_of.contains_key(&n);
        let mut tail_inputs = Vec::new();
        let mut seen: BTreeSet<TensorId> = BTreeSet::new();
        for id in self.tail_reads(&stays) {
            if !seen.insert(id) {
                continue;
            }
            let decl = &mut tail.tensors[id.index()];
            if let Some(value) = constant(id) {
                decl.origin = Origin::Constant(value);
            } else if let Some(input) = stage_input_of(id) {
                (decl.origin, decl.dtype, decl.shape) = (Origin::Input, None, None);
                tail.inputs.push(id);
                tail_inputs.push(input);
            }
        }
        tail.outputs.retain(|(_, id)| self.walk.value_of[id.index()].is_none());
        let needed =
            (tail.inputs.iter().enumerate()).filter(|(_, id)| needed.contains(id)).map(|(i, _)| i).collect();
        keep_nodes(&mut tail, stays);
        keep_nodes(&mut head, |n| !self.waits.contains(&n));
        SplitGraph { head, steps, tail, tail_inputs, needed }
    }

    /// Tensors that the tail's nodes, selected by `stays`, and its outputs read.
    fn tail_reads(&self, stays: &dyn Fn(NodeId) -> bool) -> Vec<TensorId> {
        let nodes = self.graph.nodes.iter().enumerate().filter(|(n, _)| stays(NodeId(*n as u32)));
        let read = nodes.flat_map(|(_, node)| node.inputs.iter().flatten().copied());
        let outputs = self.graph.outputs.iter().map(|(_, id)| *id);
        read.chain(outputs.filter(|id| self.walk.value_of[id.index()].is_none())).collect()
    }
}

/// Keeps the nodes that `stays` selects, and renumbers.
fn keep_nodes(graph: &mut Graph, stays: impl Fn(NodeId) -> bool) {
    let mut position: Vec<Option<NodeId>> = Vec::with_capacity(graph.nodes.len());
    let mut next = 0;
    for n in 0..graph.nodes.len() as u32 {
        position.push(stays(NodeId(n)).then(|| {
            next += 1;
            NodeId(next - 1)
        }));
    }
    let nodes = std::mem::take(&mut graph.nodes);
    graph.nodes = nodes.into_iter().zip(&position).filter(|(_, p)| p.is_some()).map(|(n, _)| n).collect();
    for node in &mut graph.nodes {
        node.control_deps = node.control_deps.iter().filter_map(|d| position[d.index()]).collect();
    }
    for t in &mut graph.tensors {
        if let Origin::Node { node, output } = t.origin {
            let node = position.get(node.index()).copied().flatten();
            t.origin = node.map_or(Origin::Unmade, |node| Origin::Node { node, output });
        }
    }
}
