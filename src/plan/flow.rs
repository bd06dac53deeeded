//! A graph specialized to concrete shapes: inferred, folded, dead parts dropped.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::images::ImageReport;
use super::index::FlowIndex;
use super::{PlanError, PlanOutcome};
use crate::graph::{
    Graph, GraphError, NodeId, Origin, StorageScope, Tensor, TensorId, TensorInfo, WEIGHT_BYTES, called,
};
use crate::kernel::{KernelError, NativeArg, NativeArgs};
use crate::limits;
use crate::memory::host::HostRegion;
use crate::memory::image::ImageDesc;
use crate::ops::control::Control;
use crate::ops::{Fact, OpCx, OpError, Operator};

/// A value of a [`Flow`].
pub type ValueId = usize;

/// A tensor of the specialized graph.
#[derive(Clone, Debug)]
pub struct Value {
    /// The tensor's name.
    pub name: String,
    /// Type and shape.
    pub info: TensorInfo,
    /// Its elements, where they are known.
    pub constant: Option<Tensor>,
    /// The storage that the graph requests.
    pub scope: StorageScope,
}

/// A node of the specialized graph.
#[derive(Clone, Debug)]
pub struct FlowNode {
    /// The node's name in the graph.
    pub name: String,
    /// What it computes.
    pub op: Arc<dyn Operator>,
    /// What it reads.
    pub inputs: Vec<Option<ValueId>>,
    /// What it writes. Outputs that nothing reads are values too: kernels write them.
    pub outputs: Vec<ValueId>,
    /// The device that the graph requests.
    pub device: Option<u32>,
    /// Nodes of this flow that must come first.
    pub control_deps: Vec<usize>,
}

/// A graph specialized to concrete shapes. Producers come before users.
#[derive(Clone, Debug, Default)]
pub struct Flow {
    /// Nodes.
    pub nodes: Vec<FlowNode>,
    /// Values.
    pub values: Vec<Value>,
    /// The graph's inputs, in its order; those given by value are constants here.
    pub inputs: Vec<ValueId>,
    /// The graph's outputs.
    pub outputs: Vec<(String, ValueId)>,
    /// Values that lie in images.
    pub images: BTreeMap<ValueId, ImageDesc>,
    /// Reports on values that the graph requests in images.
    pub image_reports: Vec<ImageReport>,
    /// Sentences for the plan's report.
    pub remarks: Vec<String>,
    /// Inputs and outputs, by position, that are one memory, which one node updates.
    pub updates: Vec<(usize, usize)>,
    /// Cost of the constants folded so far.
    pub folded: FoldedConstants,
    /// The control dependencies exceed [`limits::MAX_DEPENDENCIES`]: some are missing, and planning fails.
    pub overgrown: bool,
}

/// Cost of constant folding, which is bounded in proportion to the model's constants.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FoldedConstants {
    /// Bytes of the model's constants.
    pub model_bytes: u64,
    /// Bytes of folded constants.
    pub bytes: u64,
    /// Operations of folding.
    pub work: u64,
}

impl FoldedConstants {
    /// Adds a constant of `bytes` and `work` operations. Returns whether it is within the bounds.
    fn add(&mut self, bytes: u64, work: u64) -> bool {
        let bytes = self.bytes.saturating_add(bytes);
        let work = self.work.saturating_add(work);
        let most = limits::MAX_ALL_FOLDED_BYTES.saturating_add(self.model_bytes.saturating_mul(8));
        let fits = bytes <= most
            && work <= limits::MAX_FOLDED_WORK.saturating_add(self.model_bytes.saturating_mul(64));
        if fits {
            (self.bytes, self.work) = (bytes, work);
        }
        fits
    }
}

/// The inputs of one specialization.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Signature {
    /// Types and shapes, in the order of the graph's inputs.
    pub inputs: Vec<(crate::dtype::DType, Vec<usize>)>,
    /// Bytes of inputs that decide shapes, by position.
    pub values: BTreeMap<usize, Vec<u8>>,
    /// Inputs and outputs, by position, that are one memory.
    pub updates: Vec<(usize, usize)>,
}

impl Flow {
    /// The facts of node `n`, outputs included.
    pub fn cx(&self, n: usize) -> OpCx {
        let node = &self.nodes[n];
        let facts = node.inputs.iter().map(|i| i.map(|v| self.fact(v))).collect();
        let outputs = node.outputs.iter().map(|&v| self.values[v].info.clone()).collect();
        let cx = OpCx::for_infer(facts, node.outputs.len()).with_outputs(outputs);
        if self.images.is_empty() {
            return cx;
        }
        let image = |v: ValueId| self.images.get(&v).copied();
        let inputs = node.inputs.iter().map(|i| i.and_then(image)).collect();
        cx.with_images(inputs, node.outputs.iter().map(|&v| image(v)).collect())
    }

    fn fact(&self, v: ValueId) -> Fact {
        Fact { info: self.values[v].info.clone(), value: self.values[v].constant.clone() }
    }

    /// The value of a constant of one element of a floating point type.
    pub(super) fn number(&self, v: ValueId) -> Option<f32> {
        let value = &self.values[v];
        // The bytes of a parameter that is kept in the layout of a kernel would be made anew.
        let one =
            value.constant.as_ref().filter(|_| value.info.elements() == 1 && value.info.dtype.is_float())?;
        one.to_f32s().ok()?.first().copied()
    }

    /// What `v`, which node `n` makes, has in another shape.
    pub(super) fn reshaped(&self, n: usize, v: ValueId) -> Option<ValueId> {
        let node = &self.nodes[n];
        let x = node.inputs.get(node.op.alias(&self.cx(n))?).copied().flatten()?;
        (self.values[x].info.dtype == self.values[v].info.dtype).then_some(x)
    }

    /// What messages call `node`: its name, or what it makes where it has none.
    pub(super) fn called(&self, node: &FlowNode) -> String {
        called(&node.name, node.outputs.first().and_then(|&v| self.values.get(v)).map(|v| v.name.as_str()))
    }

    /// Removes nodes whose outputs nothing reads, and renumbers control dependencies.
    pub fn drop_dead(&mut self) {
        let mut live = vec![false; self.values.len()];
        for (_, v) in &self.outputs {
            live[*v] = true;
        }
        let mut keep = vec![false; self.nodes.len()];
        for n in (0..self.nodes.len()).rev() {
            let node = &self.nodes[n];
            if keep[n] || node.outputs.iter().any(|&v| live[v]) {
                keep[n] = true;
                node.inputs.iter().flatten().for_each(|&v| live[v] = true);
                node.control_deps.iter().for_each(|&d| keep[d] = true);
            }
        }
        self.retain(&keep);
    }

    /// Keeps the nodes marked in `keep`. Control dependencies on a removed node become dependencies on its own.
    pub fn retain(&mut self, keep: &[bool]) -> usize {
        let mut stands_for: Vec<BTreeSet<usize>> = Vec::with_capacity(self.nodes.len());
        let (mut next, mut sum) = (0, 0usize);
        for (node, keep) in self.nodes.iter_mut().zip(keep) {
            let deps = node.control_deps.iter().filter_map(|&d| stands_for.get(d)).flatten();
            let deps: BTreeSet<usize> =
                if self.overgrown { BTreeSet::new() } else { deps.copied().collect() };
            sum += deps.len();
            self.overgrown |= sum > limits::MAX_DEPENDENCIES;
            node.control_deps = deps.iter().copied().collect();
            stands_for.push(if *keep { BTreeSet::from([next]) } else { deps });
            next += usize::from(*keep);
        }
        let nodes = std::mem::take(&mut self.nodes);
        self.nodes = nodes.into_iter().zip(keep).filter(|(_, k)| **k).map(|(n, _)| n).collect();
        keep.len() - self.nodes.len()
    }

    /// Sorts the nodes topologically; of several ready nodes the first comes next.
    pub(super) fn sort(&mut self) {
        let order = FlowIndex::new(self).in_order(self);
        let mut position = vec![0; self.nodes.len()];
        order.iter().enumerate().for_each(|(at, &n)| position[n] = at);
        let mut nodes: Vec<Option<FlowNode>> =
            std::mem::take(&mut self.nodes).into_iter().map(Some).collect();
        self.nodes = order.into_iter().filter_map(|n| nodes[n].take()).collect();
        for node in &mut self.nodes {
            node.control_deps.iter_mut().for_each(|d| *d = position[*d]);
        }
    }

    /// Adds a constant value.
    pub fn add_constant(&mut self, name: String, value: Tensor) -> ValueId {
        let scope = StorageScope::Buffer;
        self.values.push(Value { name, info: value.info().clone(), constant: Some(value), scope });
        self.values.len() - 1
    }

    /// Computes node `n` on the host if all its inputs are constant and the result is not too large.
    pub(super) fn fold(&mut self, n: usize) -> Result<bool, PlanError> {
        let node = &self.nodes[n];
        let known = !node.op.varies()
            && (node.op.shape_only()
                || node.inputs.iter().flatten().all(|&v| self.values[v].constant.is_some()));
        let bytes: usize = node.outputs.iter().map(|&v| self.values[v].info.bytes()).sum();
        if !known || bytes > limits::MAX_FOLDED_BYTES {
            return Ok(false);
        }
        let cx = self.cx(n);
        if !self.folded.add(bytes as u64, node.op.cost(&cx).flops) {
            return Ok(false);
        }
        let kernel = match node.op.cpu(&cx) {
            Ok(kernel) => kernel,
            Err(OpError::Unsupported { .. }) => return Ok(false),
            Err(source) => return Err(node_error(&self.called(node), node.op.as_ref(), source)),
        };
        let results = evaluate(node.op.as_ref(), &cx, &kernel).map_err(|source| PlanError::Fold {
            node: self.called(node),
            op: node.op.name(),
            source,
        })?;
        for (v, tensor) in node.outputs.clone().into_iter().zip(results) {
            self.values[v].constant = Some(tensor);
        }
        Ok(true)
    }
}

/// Runs an operator's native function on known inputs.
///
/// # Errors
/// What the function returns.
pub fn evaluate(
    op: &dyn Operator,
    cx: &OpCx,
    kernel: &crate::kernel::NativeKernel,
) -> Result<Vec<Tensor>, KernelError> {
    let by_value = op.value_inputs();
    // A large parameter may exist only in the layout that a device reads.
    let inputs: Vec<Option<Tensor>> = (0..cx.input_count())
        .map(|i| cx.value(i).filter(|_| !by_value.contains(&i)).map(Tensor::unkept).transpose())
        .collect::<Result<_, _>>()
        .map_err(|error| KernelError::Value { what: error.to_string() })?;
    let mut buffers: Vec<Buffer> = cx.outputs().iter().map(|o| Buffer::new(o.bytes())).collect();
    let mut args: Vec<NativeArg<'_>> =
        inputs.iter().map(|t| t.as_ref().map_or(NativeArg::Absent, |t| NativeArg::Read(t.bytes()))).collect();
    for (buffer, info) in buffers.iter_mut().zip(cx.outputs()) {
        let bytes = buffer.bytes();
        args.push(NativeArg::Write(bytes.get_mut(..info.bytes()).unwrap_or_default()));
    }
    kernel.call(&mut NativeArgs::new(&mut args, &[]))?;
    drop(args);
    buffers.into_iter().zip(cx.outputs()).map(|(buffer, info)| buffer.into_tensor(info)).collect()
}

/// Memory for results of an operator: large results get pages of their own.
enum Buffer {
    Small(Vec<u128>),
    Pages(HostRegion),
}

impl Buffer {
    fn new(bytes: usize) -> Self {
        // A texel view may round the end up.
        let pages = (bytes >= WEIGHT_BYTES).then(|| HostRegion::new(bytes.next_multiple_of(16)).ok());
        pages.flatten().map_or_else(|| Buffer::Small(vec![0; bytes.div_ceil(16)]), Buffer::Pages)
    }

    fn bytes(&mut self) -> &mut [u8] {
        match self {
            Buffer::Small(words) => bytemuck::cast_slice_mut(words),
            Buffer::Pages(region) => region.as_mut_slice(),
        }
    }

    fn into_tensor(self, info: &TensorInfo) -> Result<Tensor, KernelError> {
        let words = match self {
            Buffer::Small(words) => words,
            Buffer::Pages(region) => {
                let tensor = Tensor::weight(info.clone(), region);
                return tensor.map_err(|error| KernelError::Value { what: error.to_string() });
            }
        };
        Tensor::build(info.clone(), |out| {
            let bytes = bytemuck::cast_slice::<u128, u8>(&words).get(..out.len()).unwrap_or(&[]);
            out.copy_from_slice(bytes);
            Ok(())
        })
    }
}

pub(super) fn node_error(node: &str, op: &dyn Operator, source: OpError) -> PlanError {
    PlanError::Graph(GraphError::Node { node: node.to_owned(), op: op.name().to_owned(), source })
}

/// Specializes `graph`: `infos` are its inputs' types and shapes, `values` the inputs given by value.
///
/// # Errors
/// [`PlanError::Graph`] where an operator refuses; [`PlanError::Fold`].
pub fn specialize(
    graph: &Graph,
    infos: &[TensorInfo],
    values: &BTreeMap<usize, Tensor>,
) -> Result<PlanOutcome<Flow>, PlanError> {
    let mut walk = Specializer::begin(graph, infos, values)?;
    for n in walk.live_nodes() {
        match walk.node(n)? {
            NodeOutcome::Done => {}
            NodeOutcome::Choose(then) => return Ok(PlanOutcome::Choose { node: n, then }),
            NodeOutcome::Wait { input } if walk.is_dynamic(n) => {
                let node = graph.node(n);
                return Ok(PlanOutcome::Dynamic { node: graph.called(node), op: node.op.name(), input });
            }
            NodeOutcome::Wait { input } => return Ok(needs_values(graph, n, input)),
        }
    }
    Ok(PlanOutcome::Plan(walk.finish()?))
}

/// The result of specializing one node.
pub(super) enum NodeOutcome {
    /// The node is part of the flow.
    Done,
    /// One of the node's graphs replaces it: the one for true, or the one for false.
    Choose(bool),
    /// The value of an input must be known first.
    Wait {
        /// Which input.
        input: usize,
    },
}

/// A graph being specialized.
pub(super) struct Specializer<'g> {
    graph: &'g Graph,
    pub(super) flow: Flow,
    /// The value of each tensor specialized so far.
    pub(super) value_of: Vec<Option<ValueId>>,
    flow_node: Vec<Option<usize>>,
    /// For each tensor, the number of live nodes and outputs that still read it.
    reads: Vec<usize>,
    /// For each node of the flow, whether it was folded.
    computed: Vec<bool>,
}

impl<'g> Specializer<'g> {
    pub(super) fn begin(
        graph: &'g Graph,
        infos: &[TensorInfo],
        values: &BTreeMap<usize, Tensor>,
    ) -> Result<Self, PlanError> {
        let mut flow = Flow::default();
        let mut value_of: Vec<Option<ValueId>> = vec![None; graph.tensors().len()];
        for (t, decl) in graph.tensors().iter().enumerate() {
            if let Origin::Constant(c) = &decl.origin {
                value_of[t] = Some(flow.values.len());
                flow.folded.model_bytes = flow.folded.model_bytes.saturating_add(c.info().bytes() as u64);
                let (name, info, scope) = (decl.name.clone(), c.info().clone(), decl.scope);
                flow.values.push(Value { name, info, constant: Some(c.clone()), scope });
            }
        }
        for (i, &id) in graph.inputs().iter().enumerate() {
            let decl = graph.tensor(id);
            let info =
                infos.get(i).cloned().ok_or_else(|| PlanError::MissingInput { name: decl.name.clone() })?;
            let v = flow.values.len();
            value_of[id.index()] = Some(v);
            let constant = values.get(&i).cloned();
            flow.values.push(Value { name: decl.name.clone(), info, constant, scope: decl.scope });
            flow.inputs.push(v);
        }
        let mut reads = vec![0usize; graph.tensors().len()];
        let live = live_nodes(graph);
        let nodes = graph.nodes().iter().zip(live).filter(|(_, live)| *live);
        let read = nodes.flat_map(|(node, _)| node.inputs.iter().flatten());
        read.chain(graph.outputs().iter().map(|(_, id)| id)).for_each(|id| reads[id.index()] += 1);
        let flow_node = vec![None; graph.nodes().len()];
        Ok(Specializer { graph, flow, value_of, flow_node, reads, computed: Vec::new() })
    }

    /// The nodes that outputs depend on, producers first.
    pub(super) fn live_nodes(&self) -> Vec<NodeId> {
        let live = live_nodes(self.graph);
        (0..self.graph.nodes().len()).filter(|n| live[*n]).map(|n| NodeId(n as u32)).collect()
    }

    /// Whether the shapes of node `n`'s outputs are known only after it has run.
    pub(super) fn is_dynamic(&self, n: NodeId) -> bool {
        let op = &self.graph.node(n).op;
        op.control().is_some_and(|c| !matches!(c, Control::If { .. })) || op.host(&OpCx::default()).is_some()
    }

    /// Infers node `n`, whose inputs are all known, and folds it where possible.
    pub(super) fn node(&mut self, n: NodeId) -> Result<NodeOutcome, PlanError> {
        let node = self.graph.node(n);
        let flow = &mut self.flow;
        let inputs: Vec<Option<ValueId>> =
            node.inputs.iter().map(|i| i.and_then(|id| self.value_of[id.index()])).collect();
        let facts = inputs.iter().map(|i| i.map(|v| flow.fact(v))).collect();
        let cx = OpCx::for_infer(facts, node.outputs.len());
        match node.op.control() {
            Some(Control::If { .. }) => {
                let Some(value) = cx.value(0) else { return Ok(NodeOutcome::Wait { input: 0 }) };
                let then = value.to_i64s().ok().and_then(|v| v.first().copied());
                let then = then.ok_or_else(|| {
                    let source = cx.shape_error(0, "one bool");
                    node_error(&self.graph.called(node), node.op.as_ref(), source)
                })?;
                return Ok(NodeOutcome::Choose(then != 0));
            }
            Some(Control::Loop(_) | Control::Scan(_)) => return Ok(NodeOutcome::Wait { input: 0 }),
            None => {}
        }
        let results = match node.op.host(&cx).transpose() {
            Ok(results) => results,
            Err(OpError::NeedsValue { input }) => return Ok(NodeOutcome::Wait { input }),
            Err(source) => return Err(node_error(&self.graph.called(node), node.op.as_ref(), source)),
        };
        let infos = match &results {
            Some(results) => results.iter().map(|t| t.info().clone()).collect(),
            None => match node.op.infer(&cx) {
                Ok(infos) => infos,
                Err(OpError::NeedsValue { input }) => return Ok(NodeOutcome::Wait { input }),
                Err(source) => return Err(node_error(&self.graph.called(node), node.op.as_ref(), source)),
            },
        };
        if infos.len() < node.outputs.len() {
            let source = OpError::Count {
                what: "outputs",
                found: node.outputs.len(),
                expected: format!("at most {}", infos.len()),
            };
            return Err(node_error(&self.graph.called(node), node.op.as_ref(), source));
        }
        let mut outputs = Vec::with_capacity(infos.len());
        for (o, info) in infos.into_iter().enumerate() {
            let v = flow.values.len();
            let id = node.outputs.get(o).copied().flatten();
            let (name, scope) = match id {
                Some(id) => (self.graph.tensor(id).name.clone(), self.graph.tensor(id).scope),
                None => (format!("{}:unused{o}", node.name), StorageScope::Buffer),
            };
            let constant = results.as_ref().and_then(|r| r.get(o)).cloned();
            flow.values.push(Value { name, info, constant, scope });
            outputs.push(v);
            if let Some(id) = id {
                self.value_of[id.index()] = Some(v);
            }
        }
        self.flow_node[n.index()] = Some(flow.nodes.len());
        let deps = node.control_deps.iter().filter_map(|d| self.flow_node[d.index()]);
        flow.nodes.push(FlowNode {
            name: node.name.clone(),
            op: node.op.clone(),
            inputs,
            outputs,
            device: node.device,
            control_deps: deps.collect(),
        });
        let computed = results.is_some() || flow.fold(flow.nodes.len() - 1)?;
        self.computed.push(computed);
        if computed {
            self.release(n);
        }
        Ok(NodeOutcome::Done)
    }

    /// Frees the folded inputs of node `n` that nothing else reads.
    fn release(&mut self, n: NodeId) {
        for id in self.graph.node(n).inputs.iter().flatten() {
            let reads = &mut self.reads[id.index()];
            *reads = reads.saturating_sub(1);
            let made = matches!(self.graph.tensor(*id).origin, Origin::Node { .. });
            if let Some(v) = self.value_of[id.index()].filter(|_| made && *reads == 0) {
                self.flow.values[v].constant = None;
            }
        }
    }

    fn finish(mut self) -> Result<Flow, PlanError> {
        for (name, id) in self.graph.outputs() {
            let v = self.value_of[id.index()].ok_or_else(|| {
                let name = self.graph.tensor(*id).name.clone();
                PlanError::Graph(GraphError::Dangling { name, user: "output".to_owned() })
            })?;
            self.flow.outputs.push((name.clone(), v));
        }
        let keep: Vec<bool> = self.computed.iter().map(|computed| !computed).collect();
        self.flow.retain(&keep);
        drop_folded(&mut self.flow);
        self.flow.drop_dead();
        Ok(self.flow)
    }
}

/// Removes nodes whose outputs are all constant.
pub(super) fn drop_folded(flow: &mut Flow) {
    let keep: Vec<bool> =
        flow.nodes.iter().map(|n| n.outputs.iter().any(|&v| flow.values[v].constant.is_none())).collect();
    flow.retain(&keep);
}

fn live_nodes(graph: &Graph) -> Vec<bool> {
    let mut live = vec![false; graph.nodes().len()];
    let mut stack: Vec<NodeId> = Vec::new();
    let reach = |id: TensorId, stack: &mut Vec<NodeId>| {
        if let Origin::Node { node, .. } = graph.tensor(id).origin {
            stack.push(node);
        }
    };
    graph.outputs().iter().for_each(|(_, id)| reach(*id, &mut stack));
    while let Some(n) = stack.pop() {
        if !std::mem::replace(&mut live[n.index()], true) {
            let node = graph.node(n);
            node.inputs.iter().flatten().for_each(|id| reach(*id, &mut stack));
            stack.extend(&node.control_deps);
        }
    }
    live
}

/// The graph inputs that decide input `input` of `node`.
fn needs_values(graph: &Graph, node: NodeId, input: usize) -> PlanOutcome<Flow> {
    let mut found = Vec::new();
    let mut seen = vec![false; graph.tensors().len()];
    let mut stack: Vec<TensorId> =
        graph.node(node).inputs.get(input).copied().flatten().into_iter().collect();
    while let Some(id) = stack.pop() {
        if std::mem::replace(&mut seen[id.index()], true) {
            continue;
        }
        match graph.tensor(id).origin {
            Origin::Input => found.extend(graph.inputs().iter().position(|i| *i == id)),
            Origin::Constant(_) | Origin::Unmade => {}
            Origin::Node { node, .. } => {
                let node = graph.node(node);
                let read = |i: &usize| !node.op.shape_only() || node.op.value_inputs().contains(i);
                stack.extend((0..node.inputs.len()).filter(read).filter_map(|i| node.inputs[i]));
            }
        }
    }
    found.sort_unstable();
    PlanOutcome::NeedsValues {
        node: graph.called(graph.node(node)),
        op: graph.node(node).op.name(),
        input,
        inputs: found,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dtype::DType;
    use crate::graph::GraphBuilder;
    use crate::ops::random::{Distribution, RandomFill};

    #[test]
    fn a_node_that_goes_leaves_its_control_dependencies_to_those_that_wait_for_it() {
        let mut g = GraphBuilder::new("g");
        let x = g.input("x", DType::F32, [3.into()]);
        let one = g.constant("one", Tensor::new([3], &[1f32; 3]).unwrap());
        let (first, a) = g.node("first", crate::ops::add(), &[Some(x), Some(x)], 1);
        let (folded, b) = g.node("folded", crate::ops::add(), &[Some(one), Some(one)], 1);
        let (last, c) = g.node("last", crate::ops::add(), &[Some(x), Some(b[0])], 1);
        g.control_dep(folded, first);
        g.control_dep(last, folded);
        g.output("a", a[0]);
        g.output("c", c[0]);
        let info = TensorInfo::new(DType::F32, crate::shape::Shape::new([3]).unwrap());
        let flow = specialize(&g.build().unwrap(), &[info], &BTreeMap::new()).unwrap().plan().unwrap();
        let deps: Vec<(&str, &[usize])> =
            flow.nodes.iter().map(|n| (n.name.as_str(), &n.control_deps[..])).collect();
        assert_eq!(deps, [("first", &[][..]), ("last", &[0])]);
    }

    /// A small file cannot cause large constants.
    #[test]
    fn what_is_computed_is_bounded_for_all_nodes_together() {
        let mut g = GraphBuilder::new("g");
        let x = g.input("x", DType::F32, [1.into()]);
        let one = g.constant("one", Tensor::new([1], &[1f32]).unwrap());
        let mut sum = x;
        for k in 0..40 {
            // 16 MiB each.
            let shape = g.constant(format!("s{k}"), Tensor::from_i64s(&[4 << 20]));
            let large = g.op(Arc::new(crate::ops::shape_ops::Expand) as Arc<dyn Operator>, &[one, shape]);
            sum = g.op(crate::ops::add(), &[sum, large]);
        }
        g.output("y", sum);
        let info = TensorInfo::new(DType::F32, crate::shape::Shape::new([1]).unwrap());
        let flow = specialize(&g.build().unwrap(), &[info], &BTreeMap::new()).unwrap().plan().unwrap();
        let known: usize =
            flow.values.iter().filter_map(|v| v.constant.as_ref()).map(|c| c.info().bytes()).sum();
        assert!(known <= limits::MAX_ALL_FOLDED_BYTES as usize + 1000, "{known}");
        assert_eq!(flow.nodes.len(), 40 + 24);
    }

    /// Constants that only folded nodes read are dropped.
    #[test]
    fn what_only_computed_nodes_read_is_given_back() {
        let mut g = GraphBuilder::new("g");
        let x = g.input("x", DType::F32, [3.into()]);
        let one = g.constant("one", Tensor::new([3], &[1f32; 3]).unwrap());
        let two = g.op(crate::ops::add(), &[one, one]);
        let four = g.op(crate::ops::add(), &[two, two]);
        let six = g.op(crate::ops::add(), &[four, two]);
        let seven = g.op(crate::ops::add(), &[six, one]);
        let y = g.op(crate::ops::add(), &[x, six]);
        let z = g.op(crate::ops::add(), &[x, seven]);
        g.output("y", y);
        g.output("z", z);
        g.output("four", four);
        let info = TensorInfo::new(DType::F32, crate::shape::Shape::new([3]).unwrap());
        let flow = specialize(&g.build().unwrap(), &[info], &BTreeMap::new()).unwrap().plan().unwrap();
        assert_eq!(flow.nodes.len(), 2);
        let known = flow.values.iter().filter_map(|v| v.constant.as_ref());
        let first: Vec<f32> = known.map(|t| t.as_slice::<f32>().unwrap()[0]).collect();
        assert_eq!(first, [1.0, 4.0, 6.0, 7.0]);
    }

    #[test]
    fn random_numbers_are_computed_once_only_with_a_seed() {
        let nodes = |seed| {
            let mut g = GraphBuilder::new("g");
            let numbers = Distribution::Uniform { low: 0.0, high: 1.0 };
            let y = g.op(
                Arc::new(RandomFill::new(numbers, Some(vec![3]), Some(DType::F32), seed))
                    as Arc<dyn Operator>,
                &[],
            );
            g.output("y", y);
            specialize(&g.build().unwrap(), &[], &BTreeMap::new()).unwrap().plan().unwrap().nodes.len()
        };
        assert_eq!((nodes(None), nodes(Some(1.0))), (1, 0));
    }
}
