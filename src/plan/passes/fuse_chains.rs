//! Chains of pointwise operators become one node each.
//!
//! A group is a connected set of nodes on one device whose outputs have one shape. Values that are read outside
//! become outputs of the fused node; the others are never stored. Two groups merge only where no path leads from one
//! to the other through a third node, which would have to run both before and after them.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

use crate::expr::{ExprId, Indexing, PointwiseDesc};
use crate::graph::StorageScope;
use crate::ops::pointwise::{Chain, Programs};
use crate::plan::Assignment;
use crate::plan::flow::{Flow, FlowNode, ValueId};
use crate::plan::index::FlowIndex;
use crate::plan::lowering::PlanCx;

/// Bounds of one chain.
#[derive(Clone, Copy, Debug)]
struct ChainLimits {
    /// Tensors it may read and write.
    bindings: usize,
    /// Expressions of its arithmetic, inputs and constants counted.
    exprs: usize,
}

/// Expressions of one chain: above some dozens, registers spill and fusion saves nothing.
const CHAIN_EXPRS: usize = 64;
/// Tensors that one chain reads and writes, where devices allow as many.
const CHAIN_BINDINGS: usize = 16;
/// Edges followed in search of a path between two groups before they stay separate.
const SEARCHED: usize = 4096;
/// Edges followed for all groups of a graph: above this number no more groups merge.
const SEARCHED_IN_ALL: usize = 1 << 26;

/// Fuses chains of `flow`'s pointwise nodes, within the limits of all devices; returns how many nodes were absorbed.
pub(super) fn fuse_chains(flow: &mut Flow, cx: &PlanCx<'_>) -> usize {
    let device = |node: &FlowNode| match cx.assignment {
        Assignment::All(device) => Some(node.device.unwrap_or(*device)),
        // A node without a device may fuse with others that have none.
        Assignment::Open | Assignment::Each(_) => node.device,
    };
    let devices: Vec<Option<u32>> = flow.nodes.iter().map(device).collect();
    let arguments = cx.devices.iter().map(|d| d.limits.max_arguments as usize);
    let limits = ChainLimits { bindings: arguments.fold(CHAIN_BINDINGS, usize::min), exprs: CHAIN_EXPRS };
    fuse_within(flow, &devices, limits, &cx.cache.programs)
}

/// Fuses chains of nodes that run on one device, given `devices`; returns how many nodes were absorbed.
fn fuse_within(flow: &mut Flow, devices: &[Option<u32>], limits: ChainLimits, programs: &Programs) -> usize {
    if !is_in_order(flow) {
        return 0;
    }
    let mut groups = Groups::new(flow, devices, limits);
    for n in 0..flow.nodes.len() {
        groups.begin(n);
        if let Some(member) = groups.members[n].as_ref() {
            for v in member.reads.clone() {
                if let Some(p) = groups.index.producer(v) {
                    groups.join(p, n);
                }
            }
        }
    }
    let mut made: Vec<FusedGroup> = Vec::new();
    for nodes in groups.of.values().filter(|nodes| nodes.len() > 1) {
        made.extend(groups.build(nodes, programs));
    }
    if made.is_empty() {
        return 0;
    }
    let before = flow.nodes.len();
    replace(flow, made);
    before - flow.nodes.len()
}

/// Whether every node comes after its producers and its control dependencies.
fn is_in_order(flow: &Flow) -> bool {
    let mut made = vec![true; flow.values.len()];
    flow.nodes.iter().flat_map(|n| &n.outputs).for_each(|&v| made[v] = false);
    flow.nodes.iter().enumerate().all(|(n, node)| {
        let ready =
            node.inputs.iter().flatten().all(|&v| made[v]) && node.control_deps.iter().all(|&d| d < n);
        node.outputs.iter().for_each(|&v| made[v] = true);
        ready
    })
}

/// Facts of a node that can be part of a chain.
struct Member {
    /// The values it reads, built-in constants excluded.
    reads: Vec<ValueId>,
    /// The expressions it adds.
    exprs: usize,
}

struct Groups<'a> {
    flow: &'a Flow,
    devices: &'a [Option<u32>],
    limits: ChainLimits,
    members: Vec<Option<Member>>,
    index: FlowIndex,
    /// The group of each node: its first node.
    group: Vec<usize>,
    of: BTreeMap<usize, Vec<usize>>,
    /// Nodes visited so far; later nodes are ungrouped.
    begun: usize,
    /// A level for each group, higher than those of all groups before it. Defined for visited nodes.
    level: Vec<u32>,
    /// Edges that may still be followed.
    left: usize,
}

/// A group fused into one node.
struct FusedGroup {
    nodes: Vec<usize>,
    node: FlowNode,
}

impl<'a> Groups<'a> {
    fn new(flow: &'a Flow, devices: &'a [Option<u32>], limits: ChainLimits) -> Self {
        let members: Vec<Option<Member>> = (0..flow.nodes.len()).map(|n| member(flow, n, limits)).collect();
        let of = (0..flow.nodes.len()).filter(|&n| members[n].is_some()).map(|n| (n, vec![n])).collect();
        let group = (0..flow.nodes.len()).collect();
        let level = vec![0; flow.nodes.len()];
        Groups {
            flow,
            devices,
            limits,
            members,
            index: FlowIndex::new(flow),
            group,
            of,
            begun: 0,
            level,
            left: SEARCHED_IN_ALL,
        }
    }

    /// Visits node `n`, the next one after the visited nodes.
    fn begin(&mut self, n: usize) {
        self.begun = n + 1;
        let node = &self.flow.nodes[n];
        let above = self.index.before(node).map(|p| self.level[self.group[p]] + 1);
        self.level[n] = above.max().unwrap_or(0);
    }

    /// Merges the groups of `a` and `b` where possible.
    fn join(&mut self, a: usize, b: usize) {
        let (a, b) = (self.group[a], self.group[b]);
        if a == b || self.devices[a] != self.devices[b] {
            return;
        }
        let (Some(first), Some(second)) = (self.of.get(&a), self.of.get(&b)) else { return };
        let shape = |n: usize| &self.flow.values[self.flow.nodes[n].outputs[0]].info;
        if shape(a) != shape(b) {
            return;
        }
        let mut all: Vec<usize> = first.iter().chain(second).copied().collect();
        all.sort_unstable();
        let exprs: usize = all.iter().filter_map(|&n| self.members[n].as_ref()).map(|m| m.exprs).sum();
        if exprs > self.limits.exprs {
            return;
        }
        let (reads, writes) = self.ends(&all);
        if reads.len() + writes.len() > self.limits.bindings {
            return;
        }
        let (low, high) = if self.level[a] <= self.level[b] { (a, b) } else { (b, a) };
        let to = a.min(b);
        if self.raise(low, high, to) {
            all.iter().for_each(|&n| self.group[n] = to);
            self.of.remove(&a.max(b));
            self.of.insert(to, all);
        }
    }

    /// The inputs and outputs of a group of nodes.
    fn ends(&self, nodes: &[usize]) -> (Vec<ValueId>, Vec<ValueId>) {
        let inside = |n: &usize| nodes.binary_search(n).is_ok();
        let mut reads = Vec::new();
        for v in nodes.iter().filter_map(|&n| self.members[n].as_ref()).flat_map(|m| &m.reads) {
            if !self.index.producer(*v).is_some_and(|p| inside(&p)) && !reads.contains(v) {
                reads.push(*v);
            }
        }
        let written = nodes.iter().map(|&n| self.flow.nodes[n].outputs[0]);
        let index = &self.index;
        let writes = written.filter(|&v| index.is_output(v) || index.users(v).iter().any(|u| !inside(u)));
        (reads, writes.collect())
    }

    /// Gives the group `to` that merges `low` and `high` a level, and later groups higher ones. Nothing changes where
    /// a path leads from `low` to `high` through other nodes, or the search is too long. None leads back, because
    /// levels rise.
    fn raise(&mut self, low: usize, high: usize, to: usize) -> bool {
        let mut edges = SEARCHED.min(self.left);
        let given = edges;
        let raised = self.level_of_both(low, high, &mut edges).and_then(|level| {
            let above = self.levels_after([low, high], level, &mut edges)?;
            Some((level, above))
        });
        self.left -= given - edges;
        let Some((level, above)) = raised else { return false };
        above.into_iter().for_each(|(g, level)| self.level[g] = level);
        self.level[to] = level;
        true
    }

    /// A level for `low` and `high` as one group; `None` where a path leads from one to the other.
    fn level_of_both(&self, low: usize, high: usize, edges: &mut usize) -> Option<u32> {
        let floor = self.level[low];
        let mut level = floor;
        let mut seen = HashSet::new();
        let mut stack: Vec<usize> = Vec::new();
        self.each_before(high, &mut |g| {
            *edges = edges.checked_sub(1)?;
            if g != low {
                level = level.max(self.level[g] + 1);
                stack.push(g);
            }
            Some(())
        })?;
        while let Some(g) = stack.pop() {
            // Groups no higher than `low` have nothing of it before them.
            if self.level[g] > floor && seen.insert(g) {
                self.each_before(g, &mut |p| {
                    *edges = edges.checked_sub(1)?;
                    stack.push(p);
                    (p != low).then_some(())
                })?;
            }
        }
        Some(level)
    }

    /// The new levels of the groups after `groups`, where these are at `level`.
    fn levels_after(&self, groups: [usize; 2], level: u32, edges: &mut usize) -> Option<HashMap<usize, u32>> {
        let [low, _] = groups;
        let mut above: HashMap<usize, u32> = HashMap::new();
        // Groups after `high` are already above it.
        let mut stack: Vec<(usize, u32)> =
            Some((low, level)).filter(|_| level > self.level[low]).into_iter().collect();
        while let Some((g, level)) = stack.pop() {
            for &n in self.of.get(&g).map_or(std::slice::from_ref(&g), Vec::as_slice) {
                let users = self.flow.nodes[n].outputs.iter().map(|&v| self.index.users(v));
                let after = users.chain([self.index.waiting(n)]);
                let after = after.flat_map(|users| &users[..users.partition_point(|u| *u < self.begun)]);
                for user in after.map(|u| self.group[*u]) {
                    *edges = edges.checked_sub(1)?;
                    let known = above.get(&user).copied().unwrap_or(self.level[user]);
                    if known <= level && !groups.contains(&user) && user != g {
                        above.insert(user, level + 1);
                        stack.push((user, level + 1));
                    }
                }
            }
        }
        Some(above)
    }

    /// Calls `f` with the groups before group `g`, until it returns `None`; an ungrouped node is its own group.
    fn each_before(&self, g: usize, f: &mut dyn FnMut(usize) -> Option<()>) -> Option<()> {
        for &n in self.of.get(&g).map_or(std::slice::from_ref(&g), Vec::as_slice) {
            let node = &self.flow.nodes[n];
            for p in self.index.before(node).map(|p| self.group[p]).filter(|p| *p != g) {
                f(p)?;
            }
        }
        Some(())
    }

    /// Fuses the group of `nodes` into one node; `None` where it has no kernel.
    fn build(&self, nodes: &[usize], programs: &Programs) -> Option<FusedGroup> {
        let (flow, last) = (self.flow, *nodes.last()?);
        let output = &flow.values[flow.nodes[last].outputs[0]].info;
        let (reads, writes) = self.ends(nodes);
        let indexing: Vec<Indexing> =
            reads.iter().map(|&v| Chain::indexing(&flow.values[v].info, output)).collect::<Option<_>>()?;
        let mut desc = PointwiseDesc::new(indexing);
        let mut known: HashMap<ValueId, ExprId> = HashMap::new();
        for (i, &v) in reads.iter().enumerate() {
            known.insert(v, desc.input(i).ok()?);
        }
        let mut flops = 0;
        for &n in nodes {
            let (node, cx) = (&flow.nodes[n], flow.cx(n));
            let mut args = Vec::with_capacity(node.inputs.len());
            for v in &node.inputs {
                let value = v.and_then(|v| known.get(&v).copied().or_else(|| built_in(flow, v, &mut desc)));
                args.push(match value {
                    Some(value) => value,
                    // Absent and unused inputs may have any value.
                    None => desc.constant(0.0).ok()?,
                });
            }
            let expr = node.op.pointwise_expr(&cx, &mut desc, &args)?;
            known.insert(node.outputs[0], expr);
            flops += node.op.cost(&cx).flops;
        }
        for v in &writes {
            desc.output(*known.get(v)?).ok()?;
        }
        let (desc, kept) = desc.compact().ok()?;
        let inputs: Vec<ValueId> = kept.iter().map(|&i| reads[i]).collect();
        let infos = inputs.iter().map(|&v| flow.values[v].info.clone()).collect();
        let op = Chain::new(programs, desc, infos, output.clone(), flops).ok()?;
        let mut control_deps: Vec<usize> = nodes
            .iter()
            .flat_map(|&n| flow.nodes[n].control_deps.iter().copied())
            .filter(|d| nodes.binary_search(d).is_err())
            .collect();
        control_deps.sort_unstable();
        control_deps.dedup();
        let node = FlowNode {
            name: flow.nodes[last].name.clone(),
            op: Arc::new(op),
            inputs: inputs.into_iter().map(Some).collect(),
            outputs: writes,
            device: self.devices[last],
            control_deps,
        };
        Some(FusedGroup { nodes: nodes.to_vec(), node })
    }
}

/// The value of a constant of one element.
fn built_in(flow: &Flow, v: ValueId, desc: &mut PointwiseDesc) -> Option<ExprId> {
    let constant = flow.values[v].constant.as_ref().filter(|c| c.shape().elements() == 1)?;
    let constant = Some(constant).filter(|c| Chain::TYPES.contains(&c.dtype()))?;
    match constant.to_f32s().ok()?[..] {
        [one] => desc.constant(one).ok(),
        _ => None,
    }
}

/// Node `n` as part of a chain; `None` where it cannot be one.
fn member(flow: &Flow, n: usize, limits: ChainLimits) -> Option<Member> {
    let node = &flow.nodes[n];
    let &[out] = &node.outputs[..] else { return None };
    let value = &flow.values[out];
    let plain = value.scope == StorageScope::Buffer && Chain::TYPES.contains(&value.info.dtype);
    if !plain || value.info.elements() == 0 {
        return None;
    }
    if node.inputs.len() > limits.exprs {
        return None;
    }
    // The inputs that the expression needs, determined with inputs of one shape.
    let mut desc = PointwiseDesc::new(vec![Indexing::Full; node.inputs.len()]);
    let args: Vec<ExprId> = (0..node.inputs.len()).map(|i| desc.input(i).ok()).collect::<Option<_>>()?;
    let expr = node.op.pointwise_expr(&flow.cx(n), &mut desc, &args)?;
    desc.output(expr).ok()?;
    let (desc, kept) = desc.compact().ok()?;
    let mut reads = Vec::new();
    for v in kept.into_iter().map(|i| node.inputs[i]) {
        let v = v?;
        let info = &flow.values[v].info;
        if built_in(flow, v, &mut PointwiseDesc::default()).is_some() {
            continue;
        }
        Chain::indexing(info, &value.info)?;
        reads.push(v);
    }
    Some(Member { reads, exprs: desc.exprs().len() })
}

/// Replaces members by fused nodes, sorted topologically.
fn replace(flow: &mut Flow, made: Vec<FusedGroup>) {
    let mut stands_for: Vec<usize> = (0..flow.nodes.len()).collect();
    for FusedGroup { nodes, node } in made {
        let Some(&last) = nodes.last() else { continue };
        nodes.iter().for_each(|&n| stands_for[n] = last);
        flow.nodes[last] = node;
    }
    // Members of a fused node are removed; the others are compacted.
    let mut position = Vec::with_capacity(stands_for.len());
    let mut kept = 0;
    for (n, stands_for) in stands_for.iter().enumerate() {
        position.push(kept);
        kept += usize::from(*stands_for == n);
    }
    let nodes = std::mem::take(&mut flow.nodes).into_iter().enumerate();
    flow.nodes = nodes.filter(|(n, _)| stands_for[*n] == *n).map(|(_, node)| node).collect();
    for node in &mut flow.nodes {
        node.control_deps.iter_mut().for_each(|d| *d = position[stands_for[*d]]);
        node.control_deps.sort_unstable();
        node.control_deps.dedup();
    }
    flow.sort();
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::dtype::DType;
    use crate::graph::{GraphBuilder, TensorId, TensorInfo};
    use crate::ops::norm::{Softmax, SoftmaxKind};
    use crate::ops::reduce::{Reduce, ReduceKind};
    use crate::ops::{self, Function, Operator};
    use crate::plan::specialize;
    use crate::shape::Shape;

    const LIMITS: ChainLimits = ChainLimits { bindings: 8, exprs: 32 };

    /// A graph of one input `x` of 4 by 6; `make` gives its outputs.
    fn flow(make: impl Fn(&mut GraphBuilder, TensorId) -> Vec<TensorId>) -> Flow {
        let mut g = GraphBuilder::new("g");
        let x = g.input("x", DType::F32, [4.into(), 6.into()]);
        for (i, y) in make(&mut g, x).into_iter().enumerate() {
            g.output(format!("y{i}"), y);
        }
        let info = TensorInfo::new(DType::F32, Shape::new([4, 6]).unwrap());
        specialize(&g.build().unwrap(), &[info], &Default::default()).unwrap().plan().unwrap()
    }

    fn fused(flow: &mut Flow, limits: ChainLimits) -> Vec<&'static str> {
        let devices = vec![Some(0); flow.nodes.len()];
        fuse_within(flow, &devices, limits, &Programs::new());
        let mut known: Vec<ValueId> = flow.inputs.clone();
        known.extend((0..flow.values.len()).filter(|&v| flow.values[v].constant.is_some()));
        for (n, node) in flow.nodes.iter().enumerate() {
            assert!(node.inputs.iter().flatten().all(|v| known.contains(v)), "node {n} is too early");
            assert!(node.control_deps.iter().all(|d| *d < n), "node {n} waits for a later one");
            known.extend(&node.outputs);
        }
        assert!(flow.outputs.iter().all(|(_, v)| known.contains(v)));
        flow.nodes.iter().map(|n| n.op.name()).collect()
    }

    fn row_mean() -> Arc<dyn Operator> {
        Arc::new(Reduce {
            kind: ReduceKind::Mean,
            axes: Some(vec![-1]),
            keep_dims: true,
            noop_with_empty_axes: false,
        })
    }

    #[test]
    fn a_value_that_others_read_is_an_output_of_the_chain() {
        let mut flow = flow(|g, x| {
            let a = g.op(ops::unary(Function::Abs), &[x]);
            let b = g.op(ops::unary(Function::Tanh), &[a]);
            let c = g.op(ops::mul(), &[a, b]);
            vec![g.op(row_mean(), &[a]), c]
        });
        assert_eq!(fused(&mut flow, LIMITS), ["Pointwise", "ReduceMean"]);
        assert_eq!(flow.nodes[0].outputs.len(), 2);
    }

    #[test]
    fn no_chain_leads_through_another_node_to_itself() {
        // x - mean(|x|) needs |x| before, and |x| is needed after: one chain would be its own producer.
        let mut flow = flow(|g, x| {
            let a = g.op(ops::unary(Function::Abs), &[x]);
            let m = g.op(row_mean(), &[a]);
            let c = g.op(ops::sub(), &[a, m]);
            vec![g.op(ops::mul(), &[c, a])]
        });
        assert_eq!(fused(&mut flow, LIMITS), ["Abs", "ReduceMean", "Pointwise"]);
    }

    /// An operator without an expression.
    fn softmax() -> Arc<dyn Operator> {
        Arc::new(Softmax { kind: SoftmaxKind::Soft, axis: -1, flatten: false })
    }

    #[test]
    fn two_chains_do_not_wait_for_each_other() {
        // Softmax has no expression. a -> s -> d and b -> t -> c: {a, c} and {b, d} would be a cycle.
        let mut flow = flow(|g, x| {
            let a = g.op(ops::unary(Function::Abs), &[x]);
            let b = g.op(ops::unary(Function::Neg), &[x]);
            let s = g.op(softmax(), &[a]);
            let t = g.op(softmax(), &[b]);
            let c = g.op(ops::mul(), &[a, t]);
            vec![c, g.op(ops::mul(), &[b, s])]
        });
        let names = fused(&mut flow, LIMITS);
        assert_eq!(names.iter().filter(|name| **name == "Pointwise").count(), 1, "{names:?}");
    }

    proptest! {
        /// Producers come first in some order, whatever groups merge.
        #[test]
        fn joined_groups_never_wait_for_each_other(
            nodes in prop::collection::vec((0u8..4, 0usize..8, 0usize..8, 0usize..12), 2..60),
            exprs in 3usize..20,
        ) {
            let mut g = GraphBuilder::new("g");
            let mut values = vec![g.input("x", DType::F32, [4.into(), 6.into()])];
            for &(kind, a, b, dep) in &nodes {
                let [a, b] = [a, b].map(|back| values[values.len().saturating_sub(1 + back)]);
                let y = match kind {
                    0 => g.op(ops::mul(), &[a, b]),
                    1 => g.op(ops::unary(Function::Abs), &[a]),
                    2 => g.op(softmax(), &[a]),
                    _ => g.op(row_mean(), &[a]),
                };
                if let Some(dep) = values.len().checked_sub(1 + dep).filter(|_| dep < 3)
                    && let (Some(node), Some(before)) = (g.producer(y), g.producer(values[dep]))
                {
                    g.control_dep(node, before);
                }
                values.push(y);
            }
            for (i, y) in values.iter().enumerate().skip(1).step_by(3) {
                g.output(format!("y{i}"), *y);
            }
            g.output("last", *values.last().unwrap());
            let info = TensorInfo::new(DType::F32, Shape::new([4, 6]).unwrap());
            let mut flow = specialize(&g.build().unwrap(), &[info], &Default::default()).unwrap().plan().unwrap();
            let plain = flow.nodes.len();
            let names = fused(&mut flow, ChainLimits { exprs, ..LIMITS });
            prop_assert!(names.len() <= plain);
        }
    }

    /// A value that every later node reads, and a mask that connects distant nodes.
    #[test]
    fn chains_of_a_long_graph_are_those_of_a_short_one() {
        let count = |layers: usize| {
            let mut flow = flow(|g, x| {
                let mask = g.op(ops::unary(Function::Neg), &[x]);
                let mut y = x;
                for _ in 0..layers {
                    let a = g.op(ops::mul(), &[y, mask]);
                    let b = g.op(ops::unary(Function::Tanh), &[a]);
                    y = g.op(row_mean(), &[b]);
                    y = g.op(ops::mul(), &[y, x]);
                }
                vec![y]
            });
            let devices = vec![Some(0); flow.nodes.len()];
            fuse_within(&mut flow, &devices, LIMITS, &Programs::new())
        };
        let per_layer = (count(12) - count(4)) / 8;
        assert!(per_layer >= 2, "{per_layer}");
        assert_eq!(count(3000) - count(2000), 1000 * per_layer);
    }

    #[test]
    fn waiting_for_other_nodes_is_kept() {
        let mut g = GraphBuilder::new("g");
        let x = g.input("x", DType::F32, [4.into(), 6.into()]);
        let a = g.op(ops::unary(Function::Abs), &[x]);
        let b = g.op(ops::unary(Function::Tanh), &[a]);
        let m = g.op(row_mean(), &[x]);
        let late = g.op(softmax(), &[x]);
        // The mean is between the chain's first part and its second part.
        let node = |g: &GraphBuilder, t| g.producer(t).unwrap();
        let (of_a, of_b, of_m, of_late) = (node(&g, a), node(&g, b), node(&g, m), node(&g, late));
        g.control_dep(of_m, of_a);
        g.control_dep(of_b, of_m);
        g.control_dep(of_late, of_b);
        for (i, y) in [b, m, late].into_iter().enumerate() {
            g.output(format!("y{i}"), y);
        }
        let info = TensorInfo::new(DType::F32, Shape::new([4, 6]).unwrap());
        let mut flow = specialize(&g.build().unwrap(), &[info], &Default::default()).unwrap().plan().unwrap();
        assert_eq!(fused(&mut flow, LIMITS), ["Abs", "ReduceMean", "Tanh", "Softmax"]);
    }

    #[test]
    fn limits_devices_and_broadcast_inputs_are_respected() {
        let long = |g: &mut GraphBuilder, x| {
            let mut y = x;
            for _ in 0..12 {
                y = g.op(ops::unary(Function::Tanh), &[y]);
            }
            vec![y]
        };
        // An input and a function for each member.
        let names = fused(&mut flow(long), ChainLimits { exprs: 12, ..LIMITS });
        assert_eq!(names, ["Pointwise"; 2]);
        let mut apart = flow(long);
        let devices: Vec<Option<u32>> = (0..12).map(|n| Some(n / 4)).collect();
        assert_eq!(fuse_within(&mut apart, &devices, LIMITS, &Programs::new()), 9);
        assert!(apart.nodes.iter().map(|n| n.device).eq([Some(0), Some(1), Some(2)]));
        // Values of one row are not computed again for each element of it.
        let mut rows = flow(|g, x| {
            let m = g.op(row_mean(), &[x]);
            let s = g.op(ops::unary(Function::Sigmoid), &[m]);
            let y = g.op(ops::mul(), &[x, s]);
            vec![g.op(ops::unary(Function::Neg), &[y])]
        });
        assert_eq!(fused(&mut rows, LIMITS), ["ReduceMean", "Sigmoid", "Pointwise"]);
        let few = ChainLimits { bindings: 2, ..LIMITS };
        let mut flow = flow(|g, x| {
            let m = g.op(row_mean(), &[x]);
            let y = g.op(ops::mul(), &[x, m]);
            vec![g.op(ops::unary(Function::Neg), &[y])]
        });
        assert_eq!(fused(&mut flow, few), ["ReduceMean", "Mul", "Neg"]);
    }

    #[test]
    fn equal_chains_are_one_program() {
        let programs = Programs::new();
        let mut flow = flow(|g, x| {
            let mut y = x;
            for _ in 0..3 {
                let half = g.constant(format!("half of {y:?}"), crate::graph::Tensor::scalar(0.5f32));
                let a = g.op(ops::mul(), &[y, half]);
                let b = g.op(ops::unary(Function::Tanh), &[a]);
                y = g.op(softmax(), &[b]);
            }
            vec![y]
        });
        let devices = vec![Some(0); flow.nodes.len()];
        assert_eq!(fuse_within(&mut flow, &devices, LIMITS, &programs), 3);
        assert_eq!(programs.len(), 1);
    }
}
