//! Operators between DequantizeLinear and QuantizeLinear compute on the bytes themselves.
//!
//! Every tensor that represents bytes by one known scale and zero point has a [`View`]: the output of a
//! DequantizeLinear, and data movements of such tensors, which commute with it. At a QuantizeLinear the walk looks
//! back: where all operators in between have a form on bytes, that replaces them. Unused nodes are removed.
//!
//! Results equal those of `float32` up to one unit, where a value lies halfway between two elements.

mod function;
mod moves;
mod operators;

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use super::GraphCx;
use super::fold_weights::known_facts;
use crate::backend::DeviceInfo;
use crate::dot::Unit;
use crate::dtype::DType;
use crate::graph::{
    Graph, Node, NodeId, Origin, StorageScope, Tensor, TensorDecl, TensorId, TensorInfo, free_name,
};
use crate::operator::{Control, OpCx, Operator, Scaling, Structure};
use crate::ops::control::with_graphs;
use crate::ops::pointwise::Identity;
use crate::plan::PlanOptions;
use crate::plan::index::FlowIndex;
use crate::shape::Shape;

/// Whether operators between DequantizeLinear and QuantizeLinear compute on bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Integers {
    /// Where it is faster by measurement: on CPUs whose vectors multiply bytes.
    #[default]
    Auto,
    /// On every device.
    Always,
    /// Nowhere: they compute in `float32`, as the model declares.
    Never,
}

/// Replaces operators between DequantizeLinear and QuantizeLinear by operators on bytes, in `graph` and the graphs
/// inside its nodes, on devices where they are faster; returns how many.
pub(super) fn quantize(graph: &mut Graph, cx: &GraphCx<'_>) -> usize {
    if !quantizes(graph) {
        return 0;
    }
    let always = cx.options.integers == Integers::Always;
    let fast = |d: &&DeviceInfo| always || d.native && Unit::best().multiplies_many();
    let fast: Vec<bool> = cx.devices.iter().map(fast).collect();
    if !fast.contains(&true) {
        return 0;
    }
    rewrite(graph, &Targets { options: cx.options, fast: &fast, free: cx.free })
}

fn quantizes(graph: &Graph) -> bool {
    graph.nodes.iter().any(|node| match node.op.control() {
        Some(Control::If { then, other }) => quantizes(then) || quantizes(other),
        Some(Control::Loop(own)) => quantizes(&own.body),
        Some(Control::Scan(own)) => quantizes(&own.body),
        None => is_quantization(node),
    })
}

/// The nodes that should compute on bytes.
#[derive(Clone, Copy)]
struct Targets<'a> {
    options: &'a PlanOptions,
    fast: &'a [bool],
    free: bool,
}

impl Targets<'_> {
    /// The requested device of `node`, if there is one.
    fn device(&self, node: &Node) -> Option<u32> {
        let by_name = self.options.place_nodes.get(&node.name);
        let by_op = || self.options.place_ops.get(node.op.name());
        by_name.or_else(by_op).copied().or(node.device).or(self.options.place_rest)
    }

    fn wants(&self, node: &Node) -> bool {
        let fast = |d: u32| self.fast.get(d as usize).copied().unwrap_or(false);
        match self.device(node) {
            Some(device) => fast(device),
            None if self.free => !self.fast.contains(&false),
            // Nodes that nothing else places run on entry 0.
            None => fast(0),
        }
    }
}

// The loader bounds the nesting depth of graphs.
fn rewrite(graph: &mut Graph, targets: &Targets<'_>) -> usize {
    let mut made = 0;
    for node in &mut graph.nodes {
        if let Some(op) = with_graphs(node.op.as_ref(), &mut |inner| made += rewrite(inner, targets)) {
            node.op = op;
        }
    }
    if !graph.nodes.iter().any(is_quantization) {
        return made;
    }
    let index = FlowIndex::of_graph(graph);
    let old = std::mem::take(&mut graph.nodes);
    let mut walk = Walk::new(graph, &old, index, targets);
    for n in 0..old.len() {
        if walk.quantized(n).is_none() {
            walk.keep(n);
        }
    }
    made + walk.finish()
}

/// The source of a tensor's bytes.
#[derive(Clone, Copy, Debug)]
enum Bytes {
    /// A tensor.
    In(TensorId),
    /// Node `node` returns its first input's bytes, moved.
    Moved { node: usize },
}

/// A tensor of values that bytes represent.
#[derive(Clone, Copy, Debug)]
struct View {
    bytes: Bytes,
    scaling: Scaling,
    /// The tensors of the scale and the zero point.
    scale: TensorId,
    zero: Option<TensorId>,
}

struct Walk<'a> {
    graph: &'a mut Graph,
    old: &'a [Node],
    targets: &'a Targets<'a>,
    nodes: Vec<Node>,
    /// The position of each node of `old` among `nodes`, or of its replacement.
    position: Vec<NodeId>,
    /// The index of `old`.
    index: FlowIndex,
    views: HashMap<TensorId, View>,
    /// The replacement for reads of a tensor of bytes.
    instead: HashMap<TensorId, TensorId>,
    /// The outputs of added data movements on bytes, by node of `old`.
    moved: HashMap<usize, Vec<Option<TensorId>>>,
    /// Added zero points.
    zeros: HashMap<(DType, i32), TensorId>,
    names: HashSet<String>,
    /// The nodes of `nodes` that replace others.
    made: Vec<usize>,
}

impl<'a> Walk<'a> {
    fn new(graph: &'a mut Graph, old: &'a [Node], index: FlowIndex, targets: &'a Targets<'a>) -> Self {
        let names = graph.tensors.iter().map(|t| t.name.clone()).collect();
        Walk {
            graph,
            old,
            targets,
            nodes: Vec::with_capacity(old.len()),
            position: Vec::with_capacity(old.len()),
            index,
            views: HashMap::new(),
            instead: HashMap::new(),
            moved: HashMap::new(),
            zeros: HashMap::new(),
            names,
            made: Vec::new(),
        }
    }

    /// Whether node `n` may be replaced.
    fn is_free(&self, n: usize) -> bool {
        let node = &self.old[n];
        let plain = |id: &TensorId| self.graph.tensor(*id).scope == StorageScope::Buffer;
        let tensors = || node.inputs.iter().chain(&node.outputs).flatten();
        !self.index.is_ordered(n) && self.targets.wants(node) && tensors().all(plain)
    }

    fn constant(&self, id: TensorId) -> Option<&Tensor> {
        match &self.graph.tensors.get(id.index())?.origin {
            Origin::Constant(t) => Some(t),
            _ => None,
        }
    }

    /// The value of constant `id`, where it has one element and at most one dimension.
    fn number(&self, id: TensorId) -> Option<f32> {
        let t = self.constant(id).filter(|t| t.dtype() == DType::F32 && t.shape().rank() <= 1)?;
        if t.shape().elements() == 1 { t.as_slice::<f32>().ok()?.first().copied() } else { None }
    }

    /// The view of a scale, a zero point and the type of the bytes.
    fn view(&self, bytes: Bytes, scale: TensorId, zero: Option<TensorId>, dtype: DType) -> Option<View> {
        if !matches!(dtype, DType::I8 | DType::U8) {
            return None;
        }
        let number = self.number(scale).filter(|s| s.is_finite() && *s > 0.0)?;
        let value = match zero {
            None => 0,
            Some(id) => {
                let t = self.constant(id).filter(|t| t.dtype() == dtype && t.shape().elements() == 1)?;
                i32::try_from(t.to_i64s().ok()?.first().copied()?).ok()?
            }
        };
        Some(View { bytes, scaling: Scaling { dtype, scale: number, zero: value }, scale, zero })
    }

    /// Keeps node `n`, and records the view of its output.
    fn keep(&mut self, n: usize) {
        let node = &self.old[n];
        self.note(n);
        let inputs = node.inputs.iter().map(|i| i.map(|id| self.real(id))).collect();
        self.position.push(NodeId(self.nodes.len() as u32));
        let control_deps = node.control_deps.iter().filter_map(|d| self.position.get(d.index()).copied());
        let control_deps = control_deps.collect();
        self.nodes.push(Node { inputs, control_deps, ..node.clone() });
    }

    fn note(&mut self, n: usize) {
        let node = &self.old[n];
        if !self.is_free(n) {
            return;
        }
        if let Some(Structure::Dequantize { blocks, dtype: to, .. }) = node.op.structure() {
            let (Some(x), Some(scale), Some(y)) = (input(node, 0), input(node, 1), output(node)) else {
                return;
            };
            let zero = input(node, 2);
            let dtype = match zero {
                Some(zero) => self.constant(zero).map(Tensor::dtype),
                None => self.type_of(x),
            };
            let plain = !blocks && to.is_none_or(|to| to == DType::F32);
            let view = dtype.filter(|_| plain).and_then(|dtype| self.view(Bytes::In(x), scale, zero, dtype));
            self.views.extend(view.map(|view| (y, view)));
            return;
        }
        let view = input(node, 0).and_then(|x| self.views.get(&x).copied());
        if let Some(view) = view
            && self.moves(n)
        {
            let view = View { bytes: Bytes::Moved { node: n }, ..view };
            self.views.extend(node.outputs.iter().flatten().map(|id| (*id, view)));
        }
    }

    /// The type of a tensor that constants, input declarations or quantization determine.
    fn type_of(&self, id: TensorId) -> Option<DType> {
        if let Some(t) = self.constant(id) {
            return Some(t.dtype());
        }
        let decl = self.graph.tensors.get(id.index())?;
        if matches!(decl.origin, Origin::Input) {
            // Bound inputs are checked against the declaration.
            return decl.dtype;
        }
        let node = &self.old[self.index.producer(id.index())?];
        quantized_type(self, node)
    }

    fn real(&self, id: TensorId) -> TensorId {
        self.instead.get(&id).copied().unwrap_or(id)
    }

    /// Whether `id` is a node's output with only one user.
    fn is_inner(&self, id: TensorId) -> bool {
        self.index.only_user(id.index()).is_some()
    }

    /// Replaces node `n`, where it is a QuantizeLinear after operators with a form on bytes.
    fn quantized(&mut self, n: usize) -> Option<()> {
        let node = &self.old[n];
        let Structure::Quantize { blocks, precision, .. } = node.op.structure()? else { return None };
        let (x, scale, y) = (input(node, 0)?, input(node, 1)?, output(node)?);
        let plain = !blocks && precision.is_none_or(|p| p == DType::F32);
        if !plain || !self.is_free(n) {
            return None;
        }
        let to = self.view(Bytes::In(y), scale, input(node, 2), quantized_type(self, node)?)?;
        if let Some(view) = self.views.get(&x).copied().filter(|view| view.scaling == to.scaling) {
            let bytes = self.bytes_of(x, view)?;
            if self.index.is_output(y.index()) {
                self.emit(n, Arc::new(Identity), vec![Some(bytes)], y);
            } else {
                self.instead.insert(y, bytes);
                self.position.push(NodeId(self.nodes.len().saturating_sub(1) as u32));
            }
            return Some(());
        }
        self.table(n, x, &to).or_else(|| self.operator(n, x, &to))
    }

    /// Adds a node in place of node `n`, named after node `like` and on its device.
    fn emit_like(&mut self, like: usize, op: Arc<dyn Operator>, inputs: Vec<Option<TensorId>>, y: TensorId) {
        let like = &self.old[like];
        let device = self.targets.device(like);
        let (name, outputs, control_deps) = (like.name.clone(), vec![Some(y)], Vec::new());
        self.made.push(self.nodes.len());
        self.nodes.push(Node { name, op, inputs, outputs, device, control_deps });
    }

    /// As [`Walk::emit_like`], where it alone replaces node `n`.
    fn emit(&mut self, n: usize, op: Arc<dyn Operator>, inputs: Vec<Option<TensorId>>, y: TensorId) {
        self.position.push(NodeId(self.nodes.len() as u32));
        self.emit_like(n, op, inputs, y);
    }

    /// A new tensor named after `like`.
    fn add(&mut self, like: &str, origin: Origin, info: Option<&TensorInfo>) -> TensorId {
        let name = free_name(&mut self.names, format!("{like}:bytes{}", self.graph.tensors.len()));
        let id = TensorId(self.graph.tensors.len() as u32);
        let (dtype, shape) = (info.map(|i| i.dtype), info.map(|i| (&i.shape).into()));
        self.graph.tensors.push(TensorDecl { name, dtype, shape, origin, scope: StorageScope::Buffer });
        self.index.grow(self.graph.tensors.len());
        id
    }

    fn add_constant(&mut self, like: &str, value: Tensor) -> TensorId {
        let info = value.info().clone();
        self.add(like, Origin::Constant(value), Some(&info))
    }

    /// A new tensor that a node writes.
    fn add_result(&mut self, like: TensorId) -> TensorId {
        let name = self.graph.tensor(like).name.clone();
        // `finish` sets the node.
        self.add(&name, Origin::Unmade, None)
    }

    /// The tensor of zero point `zero`.
    fn zero_of(&mut self, zero: Option<TensorId>, scaling: &Scaling) -> Option<TensorId> {
        if zero.is_some() {
            return zero;
        }
        let key = (scaling.dtype, scaling.zero);
        if let Some(id) = self.zeros.get(&key) {
            return Some(*id);
        }
        let info = TensorInfo::new(scaling.dtype, Shape::scalar());
        let value = Tensor::from_bytes(info, &[scaling.zero as u8]).ok()?;
        let id = self.add_constant("zero", value);
        self.zeros.insert(key, id);
        Some(id)
    }

    fn facts(&self, n: usize) -> OpCx {
        known_facts(&self.old[n], |id| self.constant(id))
    }

    /// Replaces the graph's nodes by the new ones that are used; returns how many of them are operators on bytes that
    /// replaced others.
    fn finish(self) -> usize {
        let Walk { graph, nodes, index, made, .. } = self;
        let mut read: Vec<bool> = (0..graph.tensors.len()).map(|v| index.is_output(v)).collect();
        let mut live = vec![false; nodes.len()];
        for (n, node) in nodes.iter().enumerate().rev() {
            live[n] |= node.outputs.iter().flatten().any(|id| read[id.index()]);
            if live[n] {
                node.inputs.iter().flatten().for_each(|id| read[id.index()] = true);
                node.control_deps.iter().for_each(|d| live[d.index()] = true);
            }
        }
        for (n, node) in nodes.iter().enumerate() {
            for (output, id) in node.outputs.iter().enumerate() {
                if let Some(id) = id {
                    // Unused outputs still belong to their nodes.
                    read[id.index()] |= live[n];
                    let node = NodeId(n as u32);
                    graph.tensors[id.index()].origin = Origin::Node { node, output: output as u32 };
                }
            }
        }
        let unread: Vec<bool> = graph
            .tensors
            .iter()
            .zip(&read)
            .map(|(t, read)| !read && !matches!(t.origin, Origin::Input))
            .collect();
        graph.nodes = nodes;
        let gone: Vec<bool> = live.iter().map(|live| !live).collect();
        graph.prune(&gone, &unread);
        made.into_iter().filter(|n| live[*n]).count()
    }
}

fn is_quantization(node: &Node) -> bool {
    matches!(node.op.structure(), Some(Structure::Quantize { .. }))
}

fn input(node: &Node, i: usize) -> Option<TensorId> {
    node.inputs.get(i).copied().flatten()
}

/// The only output of `node`.
fn output(node: &Node) -> Option<TensorId> {
    let mut all = node.outputs.iter().flatten();
    all.next().copied().filter(|_| all.next().is_none() && node.outputs.first().is_some_and(Option::is_some))
}

/// The type that `node` quantizes to.
fn quantized_type(walk: &Walk<'_>, node: &Node) -> Option<DType> {
    let Structure::Quantize { dtype, .. } = node.op.structure()? else { return None };
    match input(node, 2) {
        Some(zero) => walk.constant(zero).map(Tensor::dtype),
        None => Some(dtype.unwrap_or(DType::U8)),
    }
}
