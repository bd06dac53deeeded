//! Producers and users of values, shared by all passes, and the topological sort.

use std::collections::BTreeSet;

use super::flow::{Flow, FlowNode, ValueId};
use crate::graph::Graph;

/// Producers and users of values. It is a snapshot: a pass that uses it while it rewrites tracks its own changes.
///
/// Of a [`Graph`] the values are its tensors, by [`crate::graph::TensorId::index`].
#[derive(Clone, Debug, Default)]
pub struct FlowIndex {
    producer: Vec<Option<usize>>,
    users: Vec<Vec<usize>>,
    is_output: Vec<bool>,
    /// By node: the nodes that name it in their control dependencies.
    waiting: Vec<Vec<usize>>,
    /// By node: whether it names others.
    waits: Vec<bool>,
}

impl FlowIndex {
    /// The index of `flow`.
    pub fn new(flow: &Flow) -> Self {
        let mut index = FlowIndex::empty(flow.values.len(), flow.nodes.len());
        for (n, node) in flow.nodes.iter().enumerate() {
            let (inputs, outputs) = (node.inputs.iter().flatten(), node.outputs.iter());
            index.add_node(n, inputs.copied(), outputs.copied(), node.control_deps.iter().copied());
        }
        flow.outputs.iter().for_each(|(_, v)| index.is_output[*v] = true);
        index
    }

    /// The index of `graph`.
    pub fn of_graph(graph: &Graph) -> Self {
        let mut index = FlowIndex::empty(graph.tensors().len(), graph.nodes().len());
        for (n, node) in graph.nodes().iter().enumerate() {
            let values = |ids: &'_ [Option<crate::graph::TensorId>]| -> Vec<ValueId> {
                ids.iter().flatten().map(|id| id.index()).collect()
            };
            let deps = node.control_deps.iter().map(|d| d.index());
            index.add_node(n, values(&node.inputs), values(&node.outputs), deps);
        }
        graph.outputs().iter().for_each(|(_, id)| index.is_output[id.index()] = true);
        index
    }

    fn empty(values: usize, nodes: usize) -> Self {
        FlowIndex {
            producer: vec![None; values],
            users: vec![Vec::new(); values],
            is_output: vec![false; values],
            waiting: vec![Vec::new(); nodes],
            waits: vec![false; nodes],
        }
    }

    fn add_node(
        &mut self,
        n: usize,
        inputs: impl IntoIterator<Item = ValueId>,
        outputs: impl IntoIterator<Item = ValueId>,
        deps: impl IntoIterator<Item = usize>,
    ) {
        inputs.into_iter().for_each(|v| self.users[v].push(n));
        outputs.into_iter().for_each(|v| self.producer[v] = Some(n));
        for d in deps {
            self.waiting[d].push(n);
            self.waits[n] = true;
        }
    }

    /// The producer of `v`; `None` for inputs and constants.
    pub fn producer(&self, v: ValueId) -> Option<usize> {
        self.producer.get(v).copied().flatten()
    }

    /// The nodes that read `v`, ascending, once for each input that does.
    pub fn users(&self, v: ValueId) -> &[usize] {
        self.users.get(v).map_or(&[], Vec::as_slice)
    }

    /// Whether `v` is an output of the graph.
    pub fn is_output(&self, v: ValueId) -> bool {
        self.is_output.get(v).copied().unwrap_or(false)
    }

    /// The only user of `v`, through one input, where `v` is no output of the graph.
    pub fn only_user(&self, v: ValueId) -> Option<usize> {
        match self.users(v) {
            [user] if !self.is_output(v) => Some(*user),
            _ => None,
        }
    }

    /// The nodes whose control dependencies name node `n`, ascending.
    pub fn waiting(&self, n: usize) -> &[usize] {
        self.waiting.get(n).map_or(&[], Vec::as_slice)
    }

    /// Whether control dependencies name node `n`.
    pub fn is_awaited(&self, n: usize) -> bool {
        !self.waiting(n).is_empty()
    }

    /// Whether node `n` has control dependencies, or others name it.
    pub fn is_ordered(&self, n: usize) -> bool {
        self.is_awaited(n) || self.waits.get(n).copied().unwrap_or(false)
    }

    /// The producers of `node`'s inputs, once for each input, and the nodes of its control dependencies.
    pub fn before<'a>(&'a self, node: &'a FlowNode) -> impl Iterator<Item = usize> + 'a {
        let producers = node.inputs.iter().flatten().filter_map(|&v| self.producer(v));
        producers.chain(node.control_deps.iter().copied())
    }

    /// The nodes of `flow` in topological order; of several ready nodes the first comes next.
    pub fn in_order(&self, flow: &Flow) -> Vec<usize> {
        let before: Vec<BTreeSet<usize>> = flow.nodes.iter().map(|n| self.before(n).collect()).collect();
        topological(&before, &mut BTreeSet::new())
    }

    /// Extends the index to `count` values; the new ones have no producer and no users.
    pub(super) fn grow(&mut self, count: usize) {
        self.producer.resize(count, None);
        self.users.resize(count, Vec::new());
        self.is_output.resize(count, false);
    }

    /// Adds a read of `v` by node `n`.
    pub(super) fn add_user(&mut self, v: ValueId, n: usize) {
        let users = &mut self.users[v];
        users.insert(users.partition_point(|u| *u <= n), n);
    }

    /// Removes a read of `v` by node `n`.
    pub(super) fn remove_user(&mut self, v: ValueId, n: usize) {
        if let Some(at) = self.users[v].iter().position(|u| *u == n) {
            self.users[v].remove(at);
        }
    }

    /// Makes node `to` the reader of `v` wherever `from` was.
    pub(super) fn replace_user(&mut self, v: ValueId, from: usize, to: usize) {
        self.users[v].iter_mut().filter(|u| **u == from).for_each(|u| *u = to);
    }

    /// Removes all readers of `v`.
    pub(super) fn clear_users(&mut self, v: ValueId) {
        self.users[v].clear();
    }

    /// Whether neither a node nor the caller reads `v`.
    pub(super) fn is_unread(&self, v: ValueId) -> bool {
        self.users(v).is_empty() && !self.is_output(v)
    }
}

/// Nodes that are ready in a topological sort.
pub(super) trait ReadyNodes {
    /// Adds ready node `n`.
    fn push(&mut self, n: usize);
    /// Removes the node that comes next.
    fn pop(&mut self) -> Option<usize>;
}

/// The lowest index comes next.
impl ReadyNodes for BTreeSet<usize> {
    fn push(&mut self, n: usize) {
        self.insert(n);
    }

    fn pop(&mut self) -> Option<usize> {
        self.pop_first()
    }
}

/// A topological order: the nodes `before[n]` come before each node n, and `ready` picks one of several ready nodes.
/// Nodes of a cycle, and those after them, are left out.
pub(super) fn topological(before: &[BTreeSet<usize>], ready: &mut dyn ReadyNodes) -> Vec<usize> {
    let mut after: Vec<Vec<usize>> = vec![Vec::new(); before.len()];
    let mut left: Vec<usize> = before.iter().map(BTreeSet::len).collect();
    for (n, before) in before.iter().enumerate() {
        before.iter().for_each(|&b| after[b].push(n));
    }
    (0..before.len()).rev().filter(|&n| left[n] == 0).for_each(|n| ready.push(n));
    let mut order = Vec::with_capacity(before.len());
    while let Some(n) = ready.pop() {
        order.push(n);
        for &next in &after[n] {
            left[next] -= 1;
            if left[next] == 0 {
                ready.push(next);
            }
        }
    }
    order
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::graph::StorageScope;
    use crate::plan::Value;

    /// Node n reads the first values and writes the second ones.
    fn flow(nodes: &[(&[ValueId], &[ValueId], &[usize])], outputs: &[ValueId]) -> Flow {
        let info = crate::graph::TensorInfo::new(crate::DType::F32, crate::Shape::scalar());
        let value = |v| Value {
            name: format!("v{v}"),
            info: info.clone(),
            constant: None,
            scope: StorageScope::Buffer,
        };
        let node = |(inputs, outputs, deps): &(&[ValueId], &[ValueId], &[usize])| FlowNode {
            name: String::new(),
            op: Arc::new(crate::ops::pointwise::Identity),
            inputs: inputs.iter().map(|v| Some(*v)).collect(),
            outputs: outputs.to_vec(),
            device: None,
            control_deps: deps.to_vec(),
        };
        Flow {
            nodes: nodes.iter().map(node).collect(),
            values: (0..8).map(value).collect(),
            inputs: vec![0],
            outputs: outputs.iter().map(|v| (format!("y{v}"), *v)).collect(),
            ..Flow::default()
        }
    }

    #[test]
    fn producers_users_and_waits_are_known() {
        let flow = flow(&[(&[0], &[1], &[]), (&[1, 1], &[2], &[]), (&[1, 2], &[3], &[0])], &[2, 3]);
        let mut index = FlowIndex::new(&flow);
        assert_eq!([0, 1, 2, 3, 7].map(|v| index.producer(v)), [None, Some(0), Some(1), Some(2), None]);
        assert_eq!(index.users(1), [1, 1, 2]);
        assert_eq!((index.only_user(0), index.only_user(1), index.only_user(2)), (Some(0), None, None));
        assert_eq!((index.waiting(0), index.is_awaited(2)), (&[2][..], false));
        assert_eq!([0, 1, 2].map(|n| index.is_ordered(n)), [true, false, true]);
        assert_eq!(index.before(&flow.nodes[2]).collect::<Vec<_>>(), [0, 1, 0]);
        index.remove_user(1, 1);
        index.replace_user(1, 2, 5);
        index.add_user(1, 3);
        assert_eq!(index.users(1), [1, 3, 5]);
        index.clear_users(1);
        assert!(index.is_unread(1) && !index.is_unread(2));
        index.grow(9);
        assert_eq!((index.users(8), index.is_output(8)), (&[][..], false));
    }

    #[test]
    fn a_graph_has_the_index_of_its_flow() {
        let mut g = crate::GraphBuilder::new("g");
        let x = g.input("x", crate::DType::F32, [2.into()]);
        let y = g.op(crate::ops::add(), &[x, x]);
        let z = g.op(crate::ops::add(), &[x, y]);
        g.output("z", z);
        let index = FlowIndex::of_graph(&g.build().unwrap());
        let [x, y, z] = [x, y, z].map(|id| id.index());
        assert_eq!((index.users(x), index.users(y)), (&[0, 0, 1][..], &[1][..]));
        assert_eq!((index.producer(x), index.producer(y), index.is_output(z)), (None, Some(0), true));
    }

    #[test]
    fn an_order_has_producers_first_and_ties_by_position() {
        // Node 0 reads the output of node 3, and node 1 waits for node 2.
        let flow = flow(&[(&[4], &[5], &[]), (&[0], &[6], &[2]), (&[0], &[1], &[]), (&[0], &[4], &[])], &[5]);
        assert_eq!(FlowIndex::new(&flow).in_order(&flow), [2, 1, 3, 0]);
        let cycle = [BTreeSet::from([1]), BTreeSet::from([0]), BTreeSet::new()];
        assert_eq!(topological(&cycle, &mut BTreeSet::new()), [2]);
    }
}
