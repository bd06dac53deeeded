//! Graphs that append to their cache, changed so that a run writes its rows where they belong.
//!
//! Concat, MultiHeadAttention and Attention copy the rows of the cache and then those of the run to memory of their own.
//! In the changed graph a cache has the rows of both: TensorScatter writes the run's rows among them, in place, and
//! attention reads them all. What else the graph computes of its cache is computed of its size alone, which is told
//! without the run's rows. A mask must hide the rows that have no token.

use std::sync::Arc;

use super::cache::{CacheMemory, CacheTensor};
use super::error::GenerateError;
use super::graph_cache::{GraphCache, is_copy};
use super::graph_edit::GraphEdit;
use super::input::IntInput;
use crate::dtype::DType;
use crate::graph::{Graph, Node, NodeId, Tensor, TensorId};
use crate::ops::attention::{Attention, MultiHeadAttention, TensorScatter};
use crate::ops::movement::{Concat, Slice, Transpose};
use crate::ops::shape_ops::{Reshape, ShapeOf};
use crate::ops::{Operator, add, sub};
use crate::session::{Binding, BindingBuilder, Memory, Session};
use crate::shape::{Dim, Shape, normalize_axis};

/// The input that has the first row of each sequence that a run writes.
const WRITTEN: &str = "first row of the run";

/// The axis of rows in a cache.
const ROWS: i64 = 2;

/// Puts rows of `[batch, rows, heads, elements]` in the order of a cache, and back.
const HEADS_FIRST: [i64; 4] = [0, 2, 1, 3];

/// A graph that writes the rows of a run to its cache.
#[derive(Debug)]
pub(super) struct InPlaceGraph {
    session: Session,
    written: IntInput,
    /// Whether all that hides rows is a mask that the graph computes, so that a run may have several tokens.
    masked: bool,
}

impl InPlaceGraph {
    /// `graph`, whose tokens are the input `ids` of `[sequences, tokens]`, changed; nothing where it does more with its
    /// cache than to append to it.
    pub(super) fn new(session: &Session, graph: &Graph, ids: &str, tensors: &[CacheTensor]) -> Option<Self> {
        let (graph, masked) = changed(graph, ids, tensors)?;
        let session = session.with_graph(graph);
        let written = IntInput::find(&session.inputs(), WRITTEN).ok().flatten()?;
        Some(InPlaceGraph { session, written, masked })
    }

    /// Whether a run may have several tokens.
    pub(super) fn is_masked(&self) -> bool {
        self.masked
    }

    pub(super) fn session(&self) -> &Session {
        &self.session
    }

    /// Binds a cache of `sequences` and the first row that each writes.
    pub(super) fn bind<'m>(
        &self,
        builder: BindingBuilder<'static>,
        sequences: std::ops::Range<usize>,
        cache: impl Iterator<Item = (&'m CacheTensor, &'m CacheMemory)>,
    ) -> Result<BindingBuilder<'static>, GenerateError> {
        let rows = Memory::own().shape(Shape::new([sequences.len()])?);
        let mut builder = builder.input(&self.written.name, rows);
        for (tensor, memory) in cache {
            builder = builder.update(&tensor.past, &tensor.present, memory.part(tensor, &sequences)?);
        }
        Ok(builder)
    }

    /// The binding, where all of `tensors` are updated in place.
    pub(super) fn build(
        builder: BindingBuilder<'static>,
        tensors: &[CacheTensor],
    ) -> Result<Binding<'static>, GenerateError> {
        let binding = builder.build()?;
        let is_updated = |tensor: &CacheTensor| {
            let present = binding.plan().outputs.iter().find(|io| io.name == tensor.present);
            present.is_some_and(|io| io.updated.is_some())
        };
        match tensors.iter().find(|tensor| !is_updated(tensor)) {
            None => Ok(binding),
            Some(CacheTensor { past, .. }) => {
                Err(GenerateError::Unsupported(format!("the cache {past:?} cannot be updated in place")))
            }
        }
    }

    /// Tells where the rows of a run go: after the `lens` tokens of each sequence.
    pub(super) fn write(&self, binding: &mut Binding<'static>, lens: &[usize]) -> Result<(), GenerateError> {
        let rows: Vec<i64> = lens.iter().map(|len| *len as i64).collect();
        self.written.write_all(binding, &[lens.len()], &rows)
    }
}

/// A cache before and after a run, and the elements of its vectors.
#[derive(Clone, Copy, Debug)]
struct Cache {
    own: GraphCache,
    heads: usize,
    elements: usize,
}

/// The graph in the making.
struct Change {
    edit: GraphEdit,
    caches: Vec<Cache>,
    /// The first row that a run writes.
    written: TensorId,
    /// Where a cache ends without the rows of a run: their number, negative.
    end: TensorId,
    /// Caches that a node appends to so far.
    appended: Vec<TensorId>,
    masked: bool,
}

/// The changed graph, and whether only masks hide rows in it.
fn changed(graph: &Graph, ids: &str, tensors: &[CacheTensor]) -> Option<(Graph, bool)> {
    let cache = |tensor: &CacheTensor| {
        let own = GraphCache::find(graph, &tensor.past, &tensor.present)?;
        Some(Cache { own, heads: tensor.heads(), elements: tensor.info.shape[3] })
    };
    let caches: Vec<Cache> = tensors.iter().map(cache).collect::<Option<_>>()?;
    let graph = &without_copies(graph, &caches)?;
    let mut edit = GraphEdit::new(graph);
    let written = edit.input(WRITTEN, DType::I64, vec![Dim::Unknown]);
    let tokens = ShapeOf { start: 1, end: Some(2) };
    let tokens = edit.node("tokens of the run", Arc::new(tokens), vec![Some(graph.input(ids)?)], None);
    let zero = edit.constant("no rows", Tensor::new([1], &[0i64]).ok()?);
    let end = edit.node("rows of the run from the end", sub(), vec![Some(zero), Some(tokens)], None);
    let mut change = Change { edit, caches, written, end, appended: Vec::new(), masked: true };
    for (n, node) in graph.nodes().iter().enumerate() {
        change.node(NodeId(n as u32), node)?;
    }
    let is_whole = change.caches.iter().all(|cache| change.appended.contains(&cache.own.past));
    change.edit.sort().ok()?;
    let is_once = change.appended.len() == change.caches.len();
    (is_whole && is_once).then_some((change.edit.graph, change.masked))
}

/// The graph with caches read directly where it reads a copy, and given directly where it gives one; nothing where a copy
/// of what it reads is an output.
fn without_copies(graph: &Graph, caches: &[Cache]) -> Option<Graph> {
    let mut changed = graph.clone();
    for n in 0..changed.nodes.len() {
        let node = &changed.nodes[n];
        let copied = caches.iter().find(|cache| is_copy(node) && cache.own.is_read(node, 0));
        let Some((past, &[Some(copy)])) = copied.map(|cache| (cache.own.past, &node.outputs[..])) else {
            continue;
        };
        if changed.outputs.iter().any(|(_, id)| *id == copy) {
            return None;
        }
        let inputs = changed.nodes.iter_mut().flat_map(|node| node.inputs.iter_mut());
        inputs.filter(|input| **input == Some(copy)).for_each(|input| *input = Some(past));
    }
    caches.iter().for_each(|cache| cache.own.give_directly(&mut changed));
    Some(changed)
}

impl Change {
    /// The cache that input `input` of a node is.
    fn read(&self, node: &Node, input: usize) -> Option<Cache> {
        self.caches.iter().copied().find(|cache| cache.own.is_read(node, input))
    }

    /// The cache that a node reads as input `input` and gives as output `output`.
    fn append(&mut self, node: &Node, input: usize, output: usize) -> Option<Cache> {
        let cache = self.read(node, input)?;
        self.appended.push(cache.own.past);
        cache.own.is_given(node, output).then_some(cache)
    }

    /// Changes a node that reads a cache; nothing where it does otherwise than to append to it.
    fn node(&mut self, id: NodeId, node: &Node) -> Option<()> {
        let read: Vec<usize> = (0..node.inputs.len()).filter(|i| self.read(node, *i).is_some()).collect();
        // Nothing reads a copy any more.
        if read.is_empty() || is_copy(node) {
            return Some(());
        }
        if node.op.shape_only() {
            for input in read {
                self.without_run(id, node, input)?;
            }
            return Some(());
        }
        if let (Some(concat), [0]) = (node.op.downcast_ref::<Concat>(), &read[..]) {
            return self.concat(id, node, concat);
        }
        if let (Some(op), [6, 7]) = (node.op.downcast_ref::<MultiHeadAttention>(), &read[..]) {
            return self.multi_head(id, node, op);
        }
        match (node.op.downcast_ref::<Attention>(), &read[..]) {
            (Some(op), [4, 5]) => self.attention(id, node, op),
            _ => None,
        }
    }

    /// Tells a node that reads the size of a cache the rows before the run.
    fn without_run(&mut self, id: NodeId, node: &Node, input: usize) -> Option<()> {
        let past = self.read(node, input)?.own.past;
        let number = |n: i64| Tensor::new([1], &[n]).ok();
        let [first, axis] = [("first row", 0), ("axis of rows", ROWS)]
            .map(|(name, n)| Some(self.edit.constant(name, number(n)?)));
        let read = vec![Some(past), Some(first?), Some(self.end), Some(axis?)];
        let before = self.edit.node("rows before the run", Arc::new(Slice::default()), read, node.device);
        self.edit.graph.nodes[id.index()].inputs[input] = Some(before);
        Some(())
    }

    fn concat(&mut self, id: NodeId, node: &Node, concat: &Concat) -> Option<()> {
        let cache = self.append(node, 0, 0)?;
        let &[Some(_), Some(new)] = &node.inputs[..] else { return None };
        if normalize_axis(concat.axis, 4).ok()? as i64 != ROWS {
            return None;
        }
        let changed = &mut self.edit.graph.nodes[id.index()];
        (changed.op, changed.inputs) = (scatter(), vec![Some(cache.own.past), Some(new), Some(self.written)]);
        Some(())
    }

    fn multi_head(&mut self, id: NodeId, node: &Node, op: &MultiHeadAttention) -> Option<()> {
        let [keys, values] = [self.append(node, 6, 1)?, self.append(node, 7, 2)?];
        self.masked = false;
        let &[Some(_), Some(k), Some(v), bias, ..] = &node.inputs[..] else { return None };
        // The bias has the parts of queries, keys and values, one after another.
        let width = (op.heads * keys.elements) as i64;
        let all = 2 * width + (op.heads * values.elements) as i64;
        let biases = [(width, 2 * width), (2 * width, all)];
        for ((cache, new), (from, to)) in [keys, values].into_iter().zip([k, v]).zip(biases) {
            let mut new = new;
            if let Some(bias) = bias {
                let part = Slice { bounds: Some((vec![from], vec![to], Some(vec![0]))) };
                let part = self.beside(node, "bias", Arc::new(part), vec![bias]);
                new = self.beside(node, "biased", add(), vec![new, part]);
            }
            self.row(node, cache, new);
        }
        let changed = &mut self.edit.graph.nodes[id.index()];
        (changed.inputs[1], changed.inputs[2]) = (Some(keys.own.present), Some(values.own.present));
        (changed.inputs[6], changed.inputs[7]) = (None, None);
        changed.outputs.truncate(1);
        // The mask alone tells what the query sees: its row is not the last one.
        changed.op = Arc::new(MultiHeadAttention { causal: false, ..*op });
        Some(())
    }

    fn attention(&mut self, id: NodeId, node: &Node, op: &Attention) -> Option<()> {
        let [keys, values] = [self.append(node, 4, 1)?, self.append(node, 5, 2)?];
        self.masked = false;
        let &[Some(q), Some(k), Some(v), ..] = &node.inputs[..] else { return None };
        let y = node.outputs.first().copied().flatten()?;
        // Windows end at the query's place, which is no longer that of its row.
        if op.window != [None; 2] || node.outputs.len() > 3 || node.inputs.get(6).is_some_and(Option::is_some)
        {
            return None;
        }
        match op.heads {
            None => {
                for (cache, new) in [(keys, k), (values, v)] {
                    self.scatter(node, cache, new);
                }
            }
            Some((heads, _)) => {
                self.row(node, keys, k);
                self.row(node, values, v);
                let q = self.heads_first(node, "queries", q, heads);
                let name = format!("{} by heads", self.edit.graph.called(node));
                let rows = self.edit.replace_output(id, 0, &name);
                let turned = self.beside(node, "rows", transpose(), vec![rows]);
                let joined = Reshape { allow_zero: false, fixed: Some(vec![0, 0, -1]) };
                self.edit.make(y, Arc::new(joined), vec![Some(turned)], node.device);
                self.edit.graph.nodes[id.index()].inputs[0] = Some(q);
            }
        }
        let changed = &mut self.edit.graph.nodes[id.index()];
        (changed.inputs[1], changed.inputs[2]) = (Some(keys.own.present), Some(values.own.present));
        (changed.inputs[4], changed.inputs[5]) = (None, None);
        changed.outputs.truncate(1);
        changed.op = Arc::new(Attention { heads: None, causal: false, ..op.clone() });
        Some(())
    }

    /// A new node that works for `node`.
    fn beside(&mut self, node: &Node, what: &str, op: Arc<dyn Operator>, inputs: Vec<TensorId>) -> TensorId {
        let inputs = inputs.into_iter().map(Some).collect();
        let name = format!("{} {what}", self.edit.graph.called(node));
        self.edit.node(&name, op, inputs, node.device)
    }

    /// `[batch, rows, heads * elements]` as `[batch, heads, rows, elements]`.
    fn heads_first(&mut self, node: &Node, what: &str, x: TensorId, heads: usize) -> TensorId {
        let apart = Reshape { allow_zero: false, fixed: Some(vec![0, 0, heads as i64, -1]) };
        let apart = self.beside(node, what, Arc::new(apart), vec![x]);
        self.beside(node, what, transpose(), vec![apart])
    }

    /// Writes the rows `new` of `node`, whose heads are one after another, to a cache.
    fn row(&mut self, node: &Node, cache: Cache, new: TensorId) {
        let new = self.heads_first(node, "row", new, cache.heads);
        self.scatter(node, cache, new);
    }

    /// Writes `new` to a cache.
    fn scatter(&mut self, node: &Node, cache: Cache, new: TensorId) {
        let inputs = vec![Some(cache.own.past), Some(new), Some(self.written)];
        self.edit.make(cache.own.present, scatter(), inputs, node.device);
    }
}

fn scatter() -> Arc<dyn Operator> {
    Arc::new(TensorScatter { axis: ROWS, circular: false, updates: None })
}

fn transpose() -> Arc<dyn Operator> {
    Arc::new(Transpose { perm: Some(HEADS_FIRST.to_vec()) })
}
