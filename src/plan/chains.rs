//! Chains of pointwise operators become one node each.
//!
//! A group is a connected set of nodes with outputs of one shape on one device. Its values that others read
//! become outputs of the one node; the rest is never stored. Two groups are joined only where no path leads from one to the
//! other through a third node, which would then have to run both before and after them.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use super::flow::{Flow, FlowNode, ValueId};
use crate::dtype::DType;
use crate::graph::StorageScope;
use crate::ops::pointwise::{Chain, Programs};
use crate::spirv::{ExprId, Indexing, PointwiseDesc};

/// Bounds of one chain.
#[derive(Clone, Copy, Debug)]
pub struct ChainLimits {
    /// Tensors it may read and write.
    pub bindings: usize,
    /// Expressions of its arithmetic, inputs and constants counted.
    pub exprs: usize,
}

/// Nodes visited in search of a path between two groups before they are left apart.
const SEARCHED: usize = 4096;

/// Makes chains of `flow`'s pointwise nodes; `devices` says where each node will run. Returns how many nodes went
/// into others.
pub fn fuse_chains(flow: &mut Flow, devices: &[u32], limits: ChainLimits, programs: &Programs) -> usize {
    let mut groups = Groups::new(flow, devices, limits);
    for n in 0..flow.nodes.len() {
        if let Some(member) = groups.members[n].as_ref() {
            for v in member.reads.clone() {
                if let Some(p) = groups.producer[v] {
                    groups.join(p, n);
                }
            }
        }
    }
    let mut made: Vec<Made> = Vec::new();
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

/// What is known of a node that can be part of a chain.
struct Member {
    /// Values it reads that are not built in.
    reads: Vec<ValueId>,
    /// Expressions it adds.
    exprs: usize,
}

struct Groups<'a> {
    flow: &'a Flow,
    devices: &'a [u32],
    limits: ChainLimits,
    members: Vec<Option<Member>>,
    producer: Vec<Option<usize>>,
    users: Vec<Vec<usize>>,
    is_output: Vec<bool>,
    /// The group of each node: its first node.
    group: Vec<usize>,
    of: BTreeMap<usize, Vec<usize>>,
}

/// One group as a node.
struct Made {
    nodes: Vec<usize>,
    node: FlowNode,
}

impl<'a> Groups<'a> {
    fn new(flow: &'a Flow, devices: &'a [u32], limits: ChainLimits) -> Self {
        let mut producer = vec![None; flow.values.len()];
        for (n, node) in flow.nodes.iter().enumerate() {
            node.outputs.iter().for_each(|&v| producer[v] = Some(n));
        }
        let mut is_output = vec![false; flow.values.len()];
        flow.outputs.iter().for_each(|(_, v)| is_output[*v] = true);
        let members: Vec<Option<Member>> = (0..flow.nodes.len()).map(|n| member(flow, n)).collect();
        let of = (0..flow.nodes.len()).filter(|&n| members[n].is_some()).map(|n| (n, vec![n])).collect();
        let (users, group) = (flow.users(), (0..flow.nodes.len()).collect());
        Groups { flow, devices, limits, members, producer, users, is_output, group, of }
    }

    /// Joins the groups of `a` and `b` where that is possible.
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
        let (reads, writes) = self.ends(&all);
        if exprs > self.limits.exprs
            || reads.len() + writes.len() > self.limits.bindings
            || self.is_reached(a, b)
        {
            return;
        }
        let to = a.min(b);
        all.iter().for_each(|&n| self.group[n] = to);
        self.of.remove(&a.max(b));
        self.of.insert(to, all);
    }

    /// What a group of these nodes reads and writes.
    fn ends(&self, nodes: &[usize]) -> (Vec<ValueId>, Vec<ValueId>) {
        let inside = |n: &usize| nodes.binary_search(n).is_ok();
        let mut reads = Vec::new();
        for v in nodes.iter().filter_map(|&n| self.members[n].as_ref()).flat_map(|m| &m.reads) {
            if !self.producer[*v].is_some_and(|p| inside(&p)) && !reads.contains(v) {
                reads.push(*v);
            }
        }
        let written = nodes.iter().map(|&n| self.flow.nodes[n].outputs[0]);
        let writes = written.filter(|&v| self.is_output[v] || self.users[v].iter().any(|u| !inside(u)));
        (reads, writes.collect())
    }

    /// Whether a path leads from group `a` or `b` to one of them through other nodes.
    fn is_reached(&self, a: usize, b: usize) -> bool {
        let ends = [a, b];
        let mut seen = BTreeSet::new();
        let mut stack: Vec<usize> =
            ends.iter().flat_map(|g| self.before(*g)).filter(|g| !ends.contains(g)).collect();
        while let Some(g) = stack.pop() {
            if ends.contains(&g) {
                return true;
            }
            if seen.insert(g) {
                stack.extend(self.before(g));
            }
            if seen.len() > SEARCHED {
                return true;
            }
        }
        false
    }

    /// The groups that must run before group `g`; nodes of no group stand for themselves.
    fn before(&self, g: usize) -> Vec<usize> {
        let nodes = self.of.get(&g).map_or(std::slice::from_ref(&g), Vec::as_slice);
        let mut before: Vec<usize> = Vec::new();
        for &n in nodes {
            let node = &self.flow.nodes[n];
            let read = node.inputs.iter().flatten().filter_map(|&v| self.producer[v]);
            before.extend(read.chain(node.control_deps.iter().copied()).map(|p| self.group[p]));
        }
        before.sort_unstable();
        before.dedup();
        before.retain(|other| *other != g);
        before
    }

    /// The group of `nodes` as one node; `None` where its kernel cannot be made.
    fn build(&self, nodes: &[usize], programs: &Programs) -> Option<Made> {
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
                    // What is absent or not read may have any value.
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
            device: Some(self.devices[last]),
            control_deps,
        };
        Some(Made { nodes: nodes.to_vec(), node })
    }
}

/// The one element of a value that is known before the run.
fn built_in(flow: &Flow, v: ValueId, desc: &mut PointwiseDesc) -> Option<ExprId> {
    match flow.values[v].constant.as_ref()?.as_slice::<f32>().ok()? {
        [one] => desc.constant(*one).ok(),
        _ => None,
    }
}

/// Node `n` as part of a chain; `None` where it cannot be one.
fn member(flow: &Flow, n: usize) -> Option<Member> {
    let node = &flow.nodes[n];
    let &[out] = &node.outputs[..] else { return None };
    let value = &flow.values[out];
    let plain = value.scope == StorageScope::Buffer && value.info.dtype == DType::F32;
    if !plain || value.info.elements() == 0 {
        return None;
    }
    // Which inputs the expression needs, tried on inputs of one shape.
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

/// Puts the made nodes in the place of their members, in an order in which producers come first.
fn replace(flow: &mut Flow, made: Vec<Made>) {
    let mut stands_for: Vec<usize> = (0..flow.nodes.len()).collect();
    for Made { nodes, node } in made {
        let Some(&last) = nodes.last() else { continue };
        nodes.iter().for_each(|&n| stands_for[n] = last);
        flow.nodes[last] = node;
    }
    for node in &mut flow.nodes {
        node.control_deps.iter_mut().for_each(|d| *d = stands_for[*d]);
        node.control_deps.sort_unstable();
        node.control_deps.dedup();
    }
    let is_kept = |n: usize| stands_for[n] == n;
    // Stable: the first of those whose producers have run comes next.
    let mut producer = vec![usize::MAX; flow.values.len()];
    for (n, node) in flow.nodes.iter().enumerate().filter(|(n, _)| is_kept(*n)) {
        node.outputs.iter().for_each(|&v| producer[v] = n);
    }
    let mut waits = vec![0usize; flow.nodes.len()];
    let mut users: Vec<Vec<usize>> = vec![Vec::new(); flow.nodes.len()];
    for (n, node) in flow.nodes.iter().enumerate().filter(|(n, _)| is_kept(*n)) {
        let read = node.inputs.iter().flatten().map(|&v| producer[v]).filter(|p| *p != usize::MAX);
        let before: BTreeSet<usize> = read.chain(node.control_deps.iter().copied()).collect();
        waits[n] = before.len();
        before.into_iter().for_each(|p| users[p].push(n));
    }
    let mut ready: BTreeSet<usize> = (0..waits.len()).filter(|&n| is_kept(n) && waits[n] == 0).collect();
    let mut position = vec![usize::MAX; waits.len()];
    let mut order = Vec::new();
    while let Some(n) = ready.pop_first() {
        position[n] = order.len();
        order.push(n);
        for &u in &users[n] {
            waits[u] -= 1;
            if waits[u] == 0 {
                ready.insert(u);
            }
        }
    }
    let mut nodes: Vec<Option<FlowNode>> = std::mem::take(&mut flow.nodes).into_iter().map(Some).collect();
    flow.nodes = order.into_iter().filter_map(|n| nodes[n].take()).collect();
    for node in &mut flow.nodes {
        node.control_deps.iter_mut().for_each(|d| *d = position[*d]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::{GraphBuilder, TensorId, TensorInfo};
    use crate::ops::reduce::{Reduce, ReduceKind};
    use crate::ops::{self, Operator, UnaryOp};
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
        specialize(&g.build().unwrap(), &[info], &Default::default()).unwrap()
    }

    fn fused(flow: &mut Flow, limits: ChainLimits) -> Vec<&'static str> {
        let devices = vec![0; flow.nodes.len()];
        fuse_chains(flow, &devices, limits, &Programs::new());
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
            let a = g.op(ops::unary(UnaryOp::Abs), &[x]);
            let b = g.op(ops::unary(UnaryOp::Tanh), &[a]);
            let c = g.op(ops::mul(), &[a, b]);
            vec![g.op(row_mean(), &[a]), c]
        });
        assert_eq!(fused(&mut flow, LIMITS), ["Pointwise", "ReduceMean"]);
        assert_eq!(flow.nodes[0].outputs.len(), 2);
    }

    #[test]
    fn no_chain_leads_through_another_node_to_itself() {
        // x - mean(|x|) needs |x| before, and |x| is needed after: one chain would wait for itself.
        let mut flow = flow(|g, x| {
            let a = g.op(ops::unary(UnaryOp::Abs), &[x]);
            let m = g.op(row_mean(), &[a]);
            let c = g.op(ops::sub(), &[a, m]);
            vec![g.op(ops::mul(), &[c, a])]
        });
        assert_eq!(fused(&mut flow, LIMITS), ["Abs", "ReduceMean", "Pointwise"]);
    }

    #[test]
    fn two_chains_do_not_wait_for_each_other() {
        // Softplus has no expression. a -> s -> d and b -> t -> c: {a, c} and {b, d} would be a circle.
        let mut flow = flow(|g, x| {
            let a = g.op(ops::unary(UnaryOp::Abs), &[x]);
            let b = g.op(ops::unary(UnaryOp::Neg), &[x]);
            let s = g.op(ops::unary(UnaryOp::Softplus), &[a]);
            let t = g.op(ops::unary(UnaryOp::Softplus), &[b]);
            let c = g.op(ops::mul(), &[a, t]);
            vec![c, g.op(ops::mul(), &[b, s])]
        });
        let names = fused(&mut flow, LIMITS);
        assert_eq!(names.iter().filter(|name| **name == "Pointwise").count(), 1, "{names:?}");
    }

    #[test]
    fn waiting_for_other_nodes_is_kept() {
        let mut g = GraphBuilder::new("g");
        let x = g.input("x", DType::F32, [4.into(), 6.into()]);
        let a = g.op(ops::unary(UnaryOp::Abs), &[x]);
        let b = g.op(ops::unary(UnaryOp::Tanh), &[a]);
        let m = g.op(row_mean(), &[x]);
        let late = g.op(ops::unary(UnaryOp::Softplus), &[x]);
        // The mean waits for the chain's first part, the chain's second part for the mean.
        let node = |g: &GraphBuilder, t| g.producer(t).unwrap();
        let (of_a, of_b, of_m, of_late) = (node(&g, a), node(&g, b), node(&g, m), node(&g, late));
        g.control_dep(of_m, of_a);
        g.control_dep(of_b, of_m);
        g.control_dep(of_late, of_b);
        for (i, y) in [b, m, late].into_iter().enumerate() {
            g.output(format!("y{i}"), y);
        }
        let info = TensorInfo::new(DType::F32, Shape::new([4, 6]).unwrap());
        let mut flow = specialize(&g.build().unwrap(), &[info], &Default::default()).unwrap();
        assert_eq!(fused(&mut flow, LIMITS), ["Abs", "ReduceMean", "Tanh", "Softplus"]);
    }

    #[test]
    fn limits_devices_and_broadcast_inputs_are_respected() {
        let long = |g: &mut GraphBuilder, x| {
            let mut y = x;
            for _ in 0..12 {
                y = g.op(ops::unary(UnaryOp::Tanh), &[y]);
            }
            vec![y]
        };
        // An input and a function for each member.
        let names = fused(&mut flow(long), ChainLimits { exprs: 12, ..LIMITS });
        assert_eq!(names, ["Pointwise"; 2]);
        let mut apart = flow(long);
        let devices: Vec<u32> = (0..12).map(|n| n / 4).collect();
        assert_eq!(fuse_chains(&mut apart, &devices, LIMITS, &Programs::new()), 9);
        assert!(apart.nodes.iter().map(|n| n.device).eq([Some(0), Some(1), Some(2)]));
        // What is computed for a row is not computed again for each element of it.
        let mut rows = flow(|g, x| {
            let m = g.op(row_mean(), &[x]);
            let s = g.op(ops::unary(UnaryOp::Sigmoid), &[m]);
            let y = g.op(ops::mul(), &[x, s]);
            vec![g.op(ops::unary(UnaryOp::Neg), &[y])]
        });
        assert_eq!(fused(&mut rows, LIMITS), ["ReduceMean", "Sigmoid", "Pointwise"]);
        let few = ChainLimits { bindings: 2, ..LIMITS };
        let mut flow = flow(|g, x| {
            let m = g.op(row_mean(), &[x]);
            let y = g.op(ops::mul(), &[x, m]);
            vec![g.op(ops::unary(UnaryOp::Neg), &[y])]
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
                let b = g.op(ops::unary(UnaryOp::Tanh), &[a]);
                y = g.op(ops::unary(UnaryOp::Softplus), &[b]);
            }
            vec![y]
        });
        let devices = vec![0; flow.nodes.len()];
        assert_eq!(fuse_chains(&mut flow, &devices, LIMITS, &programs), 3);
        assert_eq!(programs.len(), 1);
    }
}
