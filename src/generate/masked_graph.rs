//! Graphs that append to a cache and have no mask for it, changed so that one plan serves several lengths.
//!
//! Such a graph computes biases, masks and positions from the length of its cache, in nodes whose values are known before
//! a run. Where other nodes read them as numbers they become inputs, computed on the host for the true length. A mask is
//! added to the scores of each attention over the cache. So the cache may have more rows than tokens.

use std::collections::BTreeMap;

use super::cache::CacheTensor;
use super::error::GenerateError;
use super::graph_edit::{GraphEdit, ancestors};
use super::in_place_graph::InPlaceGraph;
use super::input::{IntInput, floats};
use super::io::DecoderIo;
use crate::dtype::DType;
use crate::graph::{Graph, Node, NodeId, Origin, Tensor, TensorId, TensorInfo};
use crate::operator::{Control, Fact, OpCx, Structure};
use crate::ops;
use crate::plan;
use crate::session::{Binding, BindingBuilder, Memory, Session};
use crate::shape::{Dim, Shape, normalize_axis};

/// Two lengths of a cache. What differs between them depends on the length.
const LENS: [usize; 2] = [5, 8];

/// Rows of an encoder's output that nothing declares, other than these lengths.
const ROWS: usize = 13;

/// The largest value, in bytes, that is computed on the host where it does not depend on the length.
pub(super) const MOST_KNOWN: usize = 256 << 10;

/// The largest value, in bytes, that is computed on the host for one length.
const MOST_COMPUTED: usize = 256 << 20;

/// Bytes of values that are kept for lengths that come again.
const MOST_KEPT: usize = 64 << 20;

/// Added to the scores of rows that are hidden.
const HIDDEN: f32 = -1e9;

/// The same in `float16`.
const HIDDEN_HALF: f32 = -3e4;

/// A size of an input of a run of one token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Size {
    Fixed(usize),
    /// Tokens in the cache, and so many more.
    Len(usize),
    /// Rows of the encoder's output.
    Rows,
}

/// A graph for one token after a cache that may have more rows than tokens.
#[derive(Debug)]
pub(super) struct MaskedGraph {
    session: Session,
    /// The same, with the row of a run written among those of the cache.
    in_place: Option<InPlaceGraph>,
    /// The graph before the change, which values are computed with.
    graph: Graph,
    inputs: Vec<(DType, Vec<Size>)>,
    /// What does not depend on the length, by tensor.
    known: Vec<Option<Tensor>>,
    /// Nodes that decide the values.
    needed: Vec<bool>,
    cuts: Vec<Cut>,
    masks: Vec<Mask>,
    /// Values by length and rows of the encoder's output.
    kept: BTreeMap<(usize, usize), Vec<Tensor>>,
    kept_bytes: usize,
}

/// A value that depends on the length, and became an input.
#[derive(Clone, Debug)]
struct Cut {
    tensor: TensorId,
    name: String,
    dtype: DType,
    sizes: Vec<Size>,
}

/// What hides rows of the cache in the scores of an attention.
#[derive(Clone, Debug)]
struct Mask {
    name: String,
    dtype: DType,
    sizes: Vec<Size>,
}

impl MaskedGraph {
    /// The graph of `session`, which has one token in a run, changed for a cache of `capacity` tokens at most; nothing
    /// where it cannot be changed so.
    pub(super) fn new(
        session: &Session,
        io: &DecoderIo,
        tensors: &[CacheTensor],
        capacity: usize,
    ) -> Result<Option<Self>, GenerateError> {
        let Some(graph) = with_past(session.graph(), io) else { return Ok(None) };
        let Some(inputs) = input_sizes(&graph, io, tensors) else { return Ok(None) };
        let declared = io.cross.as_ref().and_then(|cross| cross.rows());
        let rows = [declared.unwrap_or(ROWS), declared.unwrap_or(ROWS + 1)];
        let mut walks = Vec::new();
        for (len, rows) in [(LENS[0], rows[0]), (LENS[1], rows[0]), (LENS[0], rows[1])] {
            let sized = infos(&inputs, len, rows)?;
            let Some(facts) = walk(&graph, &sized, &Known::default(), MOST_KNOWN) else { return Ok(None) };
            walks.push(facts);
        }
        let [a, b, other] = &walks[..] else { return Ok(None) };
        let mut tainted = depending(&graph, a, b);
        let Some(change) = Change::new(&graph, a, b, &tainted) else { return Ok(None) };
        let needed = ancestors(&graph, change.cuts.iter().map(|cut| cut.tensor));
        if change.masks.is_empty() || largest(&graph, a, b, &needed, capacity) > MOST_COMPUTED {
            return Ok(None);
        }
        // What depends on the encoder's rows is computed for those that there are.
        let by_rows = depending(&graph, a, other);
        tainted.iter_mut().zip(by_rows).for_each(|(tainted, by_rows)| *tainted |= by_rows);
        let known = known(&graph, a, &needed, &tainted);
        let Change { edit, cuts, masks, .. } = change;
        let Ok(changed) = edit.graph.sorted() else { return Ok(None) };
        let in_place = InPlaceGraph::new(session, &changed, &io.ids.name, tensors);
        let session = session.with_graph(changed);
        let (kept, kept_bytes) = (BTreeMap::new(), 0);
        Ok(Some(MaskedGraph {
            session,
            in_place,
            graph,
            inputs,
            known,
            needed,
            cuts,
            masks,
            kept,
            kept_bytes,
        }))
    }

    /// The session of the runs.
    pub(super) fn session(&self) -> &Session {
        self.in_place.as_ref().map_or(&self.session, InPlaceGraph::session)
    }

    /// The graph whose runs write their row among those of the cache, where they do.
    pub(super) fn in_place(&self) -> Option<&InPlaceGraph> {
        self.in_place.as_ref()
    }

    /// Makes runs append to a copy of the cache.
    pub(super) fn append(&mut self) {
        self.in_place = None;
    }

    /// Binds memory to the inputs that the change added, for a cache of `rows`.
    pub(super) fn bind(
        &self,
        mut builder: BindingBuilder<'static>,
        rows: usize,
    ) -> Result<BindingBuilder<'static>, GenerateError> {
        let cuts = self.cuts.iter().map(|cut| (&cut.name, &cut.sizes));
        for (name, sizes) in cuts.chain(self.masks.iter().map(|mask| (&mask.name, &mask.sizes))) {
            builder = builder.input(name, Memory::own().shape(Shape::new(concrete(sizes, rows, 0))?));
        }
        Ok(builder)
    }

    /// Writes what depends on the length: `len` tokens are in a cache of `rows`, not counting the run's own, and the
    /// encoder's output has `encoded`.
    pub(super) fn write(
        &mut self,
        binding: &mut Binding<'static>,
        len: usize,
        rows: usize,
        encoded: usize,
    ) -> Result<(), GenerateError> {
        let values = self.values(len, encoded)?;
        let own = if self.in_place.is_some() { len } else { rows };
        for (cut, value) in self.cuts.iter().zip(&values) {
            binding.set_input(&cut.name, &cut.spread(value, [len, rows, own])?)?;
        }
        for mask in &self.masks {
            let hidden = if mask.dtype == DType::F16 { HIDDEN_HALF } else { HIDDEN };
            let info = TensorInfo::new(mask.dtype, Shape::new(concrete(&mask.sizes, rows, 0))?);
            let axis = mask.sizes.iter().position(|size| matches!(size, Size::Len(_))).unwrap_or(0);
            let inner: usize = info.shape[axis + 1..].iter().product();
            let total = info.shape[axis];
            let value = |at: usize| match at / inner.max(1) % total {
                column if column < len || column == own => 0.0,
                _ => hidden,
            };
            binding.set_input(&mask.name, &floats(&info, value)?)?;
        }
        Ok(())
    }

    /// The values of the cuts for `len` tokens in the cache.
    fn values(&mut self, len: usize, encoded: usize) -> Result<Vec<Tensor>, GenerateError> {
        if let Some(values) = self.kept.get(&(len, encoded)) {
            return Ok(values.clone());
        }
        let sized = infos(&self.inputs, len, encoded)?;
        let known = Known { values: &self.known, needed: Some(&self.needed) };
        let facts = walk(&self.graph, &sized, &known, MOST_COMPUTED).unwrap_or_default();
        let value = |cut: &Cut| facts.get(cut.tensor.index())?.as_ref()?.value.clone();
        let values: Option<Vec<Tensor>> = self.cuts.iter().map(value).collect();
        let values = values.ok_or_else(|| {
            let what = format!("what the graph computes of a cache of {len} tokens: an operator fails on it");
            GenerateError::Unsupported(what)
        })?;
        let bytes: usize = values.iter().map(|value| value.info().bytes()).sum();
        if self.kept_bytes + bytes > MOST_KEPT {
            self.kept.clear();
            self.kept_bytes = 0;
        }
        self.kept_bytes += bytes;
        self.kept.insert((len, encoded), values.clone());
        Ok(values)
    }
}

impl Cut {
    /// The value for `len` tokens where a cache of `rows` has them, with the run's own row at `own`: what belongs to rows
    /// that are hidden is a copy of the last one's.
    fn spread(&self, value: &Tensor, [len, rows, own]: [usize; 3]) -> Result<Tensor, GenerateError> {
        let mut bytes = value.bytes().to_vec();
        let mut dims = value.shape().to_vec();
        for (axis, size) in self.sizes.iter().enumerate() {
            let Size::Len(more) = *size else { continue };
            let inner = dims[axis + 1..].iter().product::<usize>() * self.dtype.bytes();
            let (total, last) = (rows + more, (len + more).saturating_sub(1));
            let from = |at: usize| match at {
                at if at < len => at,
                at if at == own => len.min(last),
                _ => last,
            };
            let mut wide = Vec::with_capacity(bytes.len() / dims[axis].max(1) * total);
            for outer in bytes.chunks(dims[axis].max(1) * inner.max(1)) {
                for at in 0..total {
                    let start = from(at) * inner;
                    wide.extend_from_slice(outer.get(start..start + inner).unwrap_or_default());
                }
            }
            (bytes, dims[axis]) = (wide, total);
        }
        Ok(Tensor::from_bytes(TensorInfo::new(self.dtype, Shape::new(dims)?), &bytes)?)
    }
}

/// What is known of a graph before values are computed.
#[derive(Clone, Copy, Debug, Default)]
struct Known<'a> {
    /// Values by tensor.
    values: &'a [Option<Tensor>],
    /// Nodes that are looked at; all where none are named.
    needed: Option<&'a [bool]>,
}

/// Type, shape and, where it is known and no larger than `most` bytes, the value of each tensor; nothing where a node's
/// shapes are not known before a run.
fn walk(graph: &Graph, inputs: &[TensorInfo], known: &Known<'_>, most: usize) -> Option<Vec<Option<Fact>>> {
    let mut facts: Vec<Option<Fact>> = vec![None; graph.tensors().len()];
    for (decl, fact) in graph.tensors().iter().zip(&mut facts) {
        if let Origin::Constant(value) = &decl.origin {
            *fact = Some(Fact::known(value.clone()));
        }
    }
    for (id, info) in graph.inputs().iter().zip(inputs) {
        facts[id.index()] = Some(Fact::of(info.clone()));
    }
    for (value, fact) in known.values.iter().zip(&mut facts) {
        if let Some(value) = value {
            *fact = Some(Fact::known(value.clone()));
        }
    }
    for (n, node) in graph.nodes().iter().enumerate() {
        let is_there = |id: &Option<TensorId>| id.is_none_or(|id| facts[id.index()].is_some());
        if known.needed.is_some_and(|needed| !needed[n]) || node.outputs.iter().all(is_there) {
            continue;
        }
        let results = node_facts(node, &facts, most)?;
        for (id, fact) in node.outputs.iter().zip(results) {
            if let Some(id) = id {
                facts[id.index()] = Some(fact);
            }
        }
    }
    Some(facts)
}

/// What a node gives.
pub(super) fn node_facts(node: &Node, facts: &[Option<Fact>], most: usize) -> Option<Vec<Fact>> {
    let op = node.op.as_ref();
    if op.control().is_some() {
        return None;
    }
    let read = |id: &Option<TensorId>| match id {
        Some(id) => facts[id.index()].clone().map(Some),
        None => Some(None),
    };
    let inputs: Vec<Option<Fact>> = node.inputs.iter().map(read).collect::<Option<_>>()?;
    let all_known = inputs.iter().flatten().all(|fact| fact.value.is_some());
    let cx = OpCx::for_infer(inputs, node.outputs.len());
    if let Some(results) = op.host(&cx) {
        return Some(results.ok()?.into_iter().map(Fact::known).collect());
    }
    let infos = op.infer(&cx).ok()?;
    let bytes: usize = infos.iter().map(TensorInfo::bytes).fold(0, usize::saturating_add);
    if op.varies() || bytes > most || !(all_known || op.shape_only()) {
        return Some(infos.into_iter().map(Fact::of).collect());
    }
    let cx = cx.with_outputs(infos.clone());
    let values = op.cpu(&cx).ok().and_then(|kernel| plan::evaluate(op, &cx, &kernel).ok());
    match values {
        Some(values) => Some(values.into_iter().map(Fact::known).collect()),
        None => Some(infos.into_iter().map(Fact::of).collect()),
    }
}

/// Tensors whose values are known before a run and may depend on the size in which `a` and `b` differ.
pub(super) fn depending(graph: &Graph, a: &[Option<Fact>], b: &[Option<Fact>]) -> Vec<bool> {
    let known = |id: TensorId| [a, b].iter().all(|facts| value(facts, id).is_some());
    let mut tainted = vec![false; graph.tensors().len()];
    for node in graph.nodes() {
        let mut read = node.inputs.iter().flatten();
        let is_tainted = match node.op.shape_only() {
            true => read.any(|id| tainted[id.index()] || sizes(a, *id) != sizes(b, *id)),
            false => read.any(|id| tainted[id.index()]),
        };
        if is_tainted {
            let made = node.outputs.iter().flatten();
            made.filter(|id| known(**id)).for_each(|id| tainted[id.index()] = true);
        }
    }
    tainted
}

/// Values that the `needed` nodes read and that do not depend on the length, by tensor.
fn known(graph: &Graph, facts: &[Option<Fact>], needed: &[bool], tainted: &[bool]) -> Vec<Option<Tensor>> {
    let mut known = vec![None; graph.tensors().len()];
    let nodes = graph.nodes().iter().zip(needed).filter(|(_, needed)| **needed);
    for id in nodes.flat_map(|(node, _)| node.inputs.iter().flatten()) {
        if !tainted[id.index()] {
            known[id.index()] = value(facts, *id).cloned();
        }
    }
    known
}

pub(super) fn value(facts: &[Option<Fact>], id: TensorId) -> Option<&Tensor> {
    facts[id.index()].as_ref()?.value.as_ref()
}

pub(super) fn sizes(facts: &[Option<Fact>], id: TensorId) -> Option<&[usize]> {
    facts[id.index()].as_ref().map(|fact| fact.info.shape.dims())
}

/// The sizes of a tensor, of which some grow with the cache; nothing where they grow otherwise than by one for a token.
fn growing(a: &[Option<Fact>], b: &[Option<Fact>], id: TensorId) -> Option<Vec<Size>> {
    let (a, b) = (sizes(a, id)?, sizes(b, id)?);
    let size = |(a, b): (&usize, &usize)| match (a.checked_sub(LENS[0]), b.checked_sub(LENS[1])) {
        _ if a == b => Some(Size::Fixed(*a)),
        (Some(more), Some(same)) if more == same && more <= 1 => Some(Size::Len(more)),
        _ => None,
    };
    if a.len() != b.len() { None } else { a.iter().zip(b).map(size).collect() }
}

/// Bytes of the largest tensor that a needed node makes for a cache of `capacity`.
fn largest(graph: &Graph, a: &[Option<Fact>], b: &[Option<Fact>], needed: &[bool], capacity: usize) -> usize {
    let size = |(a, b): (&usize, &usize)| {
        let grown = capacity.saturating_mul(b.saturating_sub(*a)) / (LENS[1] - LENS[0]);
        a.saturating_add(grown)
    };
    let bytes = |id: &TensorId| {
        let dtype = a[id.index()].as_ref().map_or(1, |fact| fact.info.dtype.bytes());
        let sizes = sizes(a, *id).unwrap_or_default().iter().zip(sizes(b, *id).unwrap_or_default());
        sizes.map(size).fold(dtype, usize::saturating_mul)
    };
    let nodes = graph.nodes().iter().zip(needed).filter(|(_, needed)| **needed);
    nodes.flat_map(|(node, _)| node.outputs.iter().flatten()).map(bytes).max().unwrap_or(0)
}

/// The changed graph in the making.
struct Change<'f> {
    edit: GraphEdit,
    a: &'f [Option<Fact>],
    b: &'f [Option<Fact>],
    cuts: Vec<Cut>,
    /// The inputs that stand for cuts.
    stand_in: BTreeMap<TensorId, TensorId>,
    masks: Vec<Mask>,
    /// The inputs that are masks.
    mask_ids: Vec<TensorId>,
}

impl<'f> Change<'f> {
    /// Makes inputs of values that depend on the length where they are read as numbers, and adds masks.
    fn new(graph: &Graph, a: &'f [Option<Fact>], b: &'f [Option<Fact>], tainted: &[bool]) -> Option<Self> {
        let (cuts, stand_in, masks, mask_ids) = (Vec::new(), BTreeMap::new(), Vec::new(), Vec::new());
        let mut change = Change { edit: GraphEdit::new(graph), a, b, cuts, stand_in, masks, mask_ids };
        for (n, node) in graph.nodes().iter().enumerate() {
            let mut made = node.outputs.iter().flatten();
            if made.all(|id| value(a, *id).is_some() && value(b, *id).is_some()) || node.op.shape_only() {
                continue;
            }
            for (i, id) in node.inputs.iter().enumerate() {
                if let Some(id) = id.filter(|id| tainted[id.index()] && !node.op.value_inputs().contains(&i))
                {
                    change.edit.graph.nodes[n].inputs[i] = Some(change.cut(id)?);
                }
            }
            change.hide(NodeId(n as u32), node)?;
        }
        Some(change)
    }

    /// Adds an input.
    fn input(&mut self, name: &str, dtype: DType, sizes: &[Size]) -> (String, TensorId) {
        let dim = |size: &Size| match size {
            Size::Fixed(n) => Dim::Known(*n),
            Size::Len(_) | Size::Rows => Dim::Unknown,
        };
        let id = self.edit.free_input(name, dtype, sizes.iter().map(dim).collect());
        (self.edit.graph.tensor(id).name.clone(), id)
    }

    /// The input that stands for a value that depends on the length.
    fn cut(&mut self, tensor: TensorId) -> Option<TensorId> {
        if let Some(id) = self.stand_in.get(&tensor) {
            return Some(*id);
        }
        let sizes = growing(self.a, self.b, tensor)?;
        let dtype = self.a[tensor.index()].as_ref()?.info.dtype;
        let name = format!("{} of the length", self.edit.graph.tensor(tensor).name);
        let (name, id) = self.input(&name, dtype, &sizes);
        self.cuts.push(Cut { tensor, name, dtype, sizes });
        self.stand_in.insert(tensor, id);
        Some(id)
    }

    /// Hides rows of the cache from a node that is attention, or a part of it; nothing where that cannot be.
    fn hide(&mut self, n: NodeId, node: &Node) -> Option<()> {
        let grows = |input: usize, axis: usize| {
            let id = node.inputs.get(input).copied().flatten()?;
            let size = growing(self.a, self.b, id)?.get(axis).copied()?;
            if let Size::Len(more) = size { Some(more) } else { None }
        };
        if let Some(Structure::Softmax { axis, flatten }) = node.op.structure() {
            let scores = node.inputs.first().copied().flatten()?;
            let all = growing(self.a, self.b, scores)?;
            let axis = normalize_axis(axis, all.len()).ok()?;
            let Size::Len(_) = all[axis] else { return Some(()) };
            if flatten && axis + 1 != all.len() {
                return None;
            }
            let sizes = (0..all.len()).map(|at| if at == axis { all[at] } else { Size::Fixed(1) });
            return self.add(n, 0, sizes.collect());
        }
        let Some(Structure::Attention(ports)) = node.op.structure() else { return Some(()) };
        // A hidden row would count as one of those before the query.
        let bias = ports.bias.filter(|_| !ports.placed)?;
        let one = [Size::Fixed(1); 3];
        let past = ports.past.and_then(|past| grows(past, 2));
        let total = match (past, grows(ports.keys, 2), grows(ports.keys, 1)) {
            (Some(more), _, _) => more + 1,
            (None, Some(more), _) | (None, None, Some(more)) => more,
            (None, None, None) => return Some(()),
        };
        self.add(n, bias, one.into_iter().chain([Size::Len(total)]).collect())
    }

    /// Adds a mask to input `input` of a node, or makes it that input where the node has none.
    fn add(&mut self, n: NodeId, input: usize, sizes: Vec<Size>) -> Option<()> {
        if sizes.iter().any(|size| matches!(size, Size::Len(more) if *more != 1)) {
            return None;
        }
        let node = self.edit.graph.node(n);
        let added_to = node.inputs.get(input).copied().flatten();
        let typed = added_to.or(node.inputs.first().copied().flatten())?;
        let dtype = match self.a.get(typed.index()) {
            Some(fact) => fact.as_ref()?.info.dtype,
            None => self.edit.graph.tensor(typed).dtype?,
        };
        if !matches!(dtype, DType::F32 | DType::F16 | DType::BF16) {
            return None;
        }
        let (place, device) = (format!("{} shown", node.name), node.device);
        let same = self.masks.iter().position(|mask| mask.dtype == dtype && mask.sizes == sizes);
        let mask = match same {
            Some(at) => self.mask_ids[at],
            None => {
                let (name, id) = self.input("rows of the cache", dtype, &sizes);
                self.masks.push(Mask { name, dtype, sizes });
                self.mask_ids.push(id);
                id
            }
        };
        let given = match added_to {
            None => mask,
            Some(scores) => self.edit.node(&place, ops::add(), vec![Some(scores), Some(mask)], device),
        };
        let inputs = &mut self.edit.graph.nodes[n.index()].inputs;
        inputs.resize(inputs.len().max(input + 1), None);
        inputs[input] = Some(given);
        Some(())
    }
}

/// The graph with the branch for a cache that has tokens; nothing where it has other control flow.
pub(super) fn with_past(graph: &Graph, io: &DecoderIo) -> Option<Graph> {
    let mut graph = graph.clone();
    let chosen = |graph: &Graph| {
        let branch = io.branch.as_ref().and_then(|name| graph.input(name))?;
        let is_chosen = |node: &Node| {
            matches!(node.op.control(), Some(Control::If { .. }))
                && node.inputs.first() == Some(&Some(branch))
        };
        graph.nodes().iter().position(is_chosen)
    };
    while let Some(at) = chosen(&graph) {
        graph = plan::choose(&graph, NodeId(at as u32), true).ok()?;
    }
    Some(graph)
}

/// Types and sizes of the inputs of a run of one token; nothing where one is not known.
fn input_sizes(graph: &Graph, io: &DecoderIo, tensors: &[CacheTensor]) -> Option<Vec<(DType, Vec<Size>)>> {
    let is = |int: Option<&IntInput>, name: &str| int.is_some_and(|int| int.name == name);
    let one = Size::Fixed(1);
    let sizes = |id: &TensorId| {
        let decl = graph.tensor(*id);
        let name = decl.name.as_str();
        if let Some(tensor) = tensors.iter().find(|tensor| tensor.past == name) {
            let elements = Size::Fixed(tensor.info.shape[3]);
            return Some((tensor.info.dtype, vec![one, Size::Fixed(tensor.heads()), Size::Len(0), elements]));
        }
        if let Some((dtype, dims, axis)) = io.cross.as_ref().and_then(|cross| cross.row_axis(name)) {
            let size = |(at, n)| if at == axis { Size::Rows } else { Size::Fixed(n) };
            return Some((dtype, dims.into_iter().enumerate().map(size).collect()));
        }
        let integers = decl.dtype.unwrap_or(DType::I64);
        if is(Some(&io.ids), name) || is(io.positions.as_ref(), name) {
            return Some((integers, vec![one, one]));
        }
        if is(io.mask.as_ref(), name) {
            return Some((integers, vec![one, Size::Len(1)]));
        }
        if let Some(dims) = io.scan.as_ref().and_then(|scan| scan.sizes(name)) {
            return Some((decl.dtype?, dims.into_iter().map(Size::Fixed).collect()));
        }
        if is(io.cache_positions.as_ref(), name) || is(io.past_len.as_ref(), name) {
            return Some((integers, vec![one]));
        }
        (io.branch.as_deref() == Some(name)).then(|| (DType::Bool, vec![one]))
    };
    graph.inputs().iter().map(sizes).collect()
}

fn infos(inputs: &[(DType, Vec<Size>)], len: usize, rows: usize) -> Result<Vec<TensorInfo>, GenerateError> {
    let info = |(dtype, sizes): &(DType, Vec<Size>)| {
        Ok(TensorInfo::new(*dtype, Shape::new(concrete(sizes, len, rows))?))
    };
    inputs.iter().map(info).collect()
}

/// Sizes for a cache of `len`, and so many rows of the encoder's output.
fn concrete(sizes: &[Size], len: usize, rows: usize) -> Vec<usize> {
    let size = |size: &Size| match *size {
        Size::Fixed(n) => n,
        Size::Len(more) => len.saturating_add(more),
        Size::Rows => rows,
    };
    sizes.iter().map(size).collect()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::backend::ContextDesc;
    use crate::generate::fixed::inputs;
    use crate::generate::settings::Config;
    use crate::graph::GraphBuilder;
    use crate::operator::Operator;
    use crate::ops::attention::Attention;
    use crate::ops::index::Gather;
    use crate::registry::Registry;

    const SIZES: [usize; 4] = [1, 1, 0, 2];

    /// Attention over a cache of one layer, or the sum of its keys and values.
    fn session(summed: bool) -> Session {
        let mut g = GraphBuilder::new("g");
        let ids = g.input("input_ids", DType::I64, [1.into(), "n".into()]);
        let cache = |part: &str| format!("past_key_values.0.{part}");
        let dims = || [1.into(), 1.into(), "p".into(), 2.into()];
        let past = ["key", "value"].map(|part| g.input(cache(part), DType::F32, dims()));
        let table: Vec<f32> = (0..8).map(|at| (at * 5 % 7) as f32 / 3.0 - 1.0).collect();
        let table = g.constant("table", Tensor::new([4, 2], &table).unwrap());
        let x = g.op(Arc::new(Gather { axis: 0 }) as Arc<dyn Operator>, &[table, ids]);
        if summed {
            let sum = g.op(ops::add(), &past);
            g.output("logits", sum);
            g.output("present.0.key", past[0]);
            g.output("present.0.value", past[1]);
            return built(g);
        }
        let op = Attention { heads: Some((1, 1)), ..Attention::default() };
        let read = [Some(x), Some(x), Some(x), None, Some(past[0]), Some(past[1])];
        let (_, made) = g.node("attention", Arc::new(op) as Arc<dyn Operator>, &read, 3);
        g.output("logits", made[0]);
        g.output("present.0.key", made[1]);
        g.output("present.0.value", made[2]);
        built(g)
    }

    fn built(g: GraphBuilder) -> Session {
        let cpu = Registry::with_defaults().open("cpu", &ContextDesc::default()).unwrap();
        Session::builder().graph(g.build().unwrap()).context(cpu).build().unwrap()
    }

    fn found(session: &Session) -> (DecoderIo, Vec<CacheTensor>) {
        DecoderIo::find(session, &Config::of_one_layer()).unwrap()
    }

    /// A cache of `rows`, of which the first `len` are numbers and the others large.
    fn cache(rows: usize, len: usize, factor: f32) -> Tensor {
        let value = |at: usize| if at / 2 < len { (at as f32 * factor).sin() } else { 3.0 };
        let values: Vec<f32> = (0..rows * 2).map(value).collect();
        Tensor::new([1, 1, rows, 2], &values).unwrap()
    }

    fn logits(
        io: &DecoderIo,
        session: &Session,
        (len, rows): (usize, usize),
        masked: Option<&mut MaskedGraph>,
    ) -> Vec<f32> {
        let mut builder = inputs(session, io, 1, 1, rows + 1, true).unwrap();
        builder = builder.input("past_key_values.0.key", Memory::value(cache(rows, len, 0.7)));
        builder = builder.input("past_key_values.0.value", Memory::value(cache(rows, len, 1.3)));
        if let Some(masked) = &masked {
            builder = masked.bind(builder, rows).unwrap();
        }
        let mut binding = builder.build().unwrap();
        binding.set_input("input_ids", &Tensor::new([1, 1], &[2i64]).unwrap()).unwrap();
        if let Some(masked) = masked {
            masked.write(&mut binding, len, rows, 0).unwrap();
        }
        binding.run().unwrap();
        binding.get_output("logits").unwrap().to_f32s().unwrap()
    }

    #[test]
    fn attention_over_a_cache_with_more_rows_than_tokens_gives_the_same() {
        let session = session(false);
        let (io, tensors) = found(&session);
        assert_eq!(tensors[0].info.shape.dims(), SIZES);
        let mut masked = MaskedGraph::new(&session, &io, &tensors, 64).unwrap().unwrap();
        assert!(masked.in_place().is_some());
        masked.append();
        let changed = session.with_graph(masked.session().graph().clone());
        for (len, rows) in [(1, 8), (5, 8), (8, 8), (3, 16)] {
            let wanted = logits(&io, &session, (len, len), None);
            let found = logits(&io, &changed, (len, rows), Some(&mut masked));
            let near = wanted.iter().zip(&found).all(|(a, b)| (a - b).abs() < 1e-5);
            assert!(wanted.len() == 2 && near, "{len} of {rows}: {wanted:?} {found:?}");
            // Without a mask the large numbers are seen.
            let other = logits(&io, &session, (len, rows), None);
            assert!(len == rows || other.iter().zip(&wanted).any(|(a, b)| (a - b).abs() > 1e-2));
        }
    }

    #[test]
    fn what_has_no_attention_or_inputs_of_its_own_is_not_changed() {
        let session = session(true);
        let (io, tensors) = found(&session);
        let refused = |io: &DecoderIo, tensors: &[CacheTensor]| {
            MaskedGraph::new(&session, io, tensors, 64).is_ok_and(|found| found.is_none())
        };
        assert!(refused(&io, &tensors));
        // An input of which nothing is known.
        assert!(refused(&io, &[]));
    }

    #[test]
    fn values_that_grow_too_large_are_found_before_a_text() {
        let mut g = GraphBuilder::new("g");
        let x = g.input("x", DType::F32, ["n".into(), 1.into()]);
        let y = g.input("y", DType::F32, [1.into(), "n".into()]);
        let product = g.op(ops::add(), &[x, y]);
        g.output("z", product);
        let graph = g.build().unwrap();
        let facts = |n: usize| {
            let info = |dims: [usize; 2]| TensorInfo::new(DType::F32, Shape::new(dims).unwrap());
            walk(&graph, &[info([n, 1]), info([1, n])], &Known::default(), MOST_KNOWN).unwrap()
        };
        let [a, b] = LENS.map(facts);
        assert_eq!(largest(&graph, &a, &b, &[true], 1000), 1005 * 1005 * 4);
        assert_eq!(largest(&graph, &a, &b, &[false], 1000), 0);
        assert_eq!(largest(&graph, &a, &b, &[true], usize::MAX), usize::MAX);
    }

    #[test]
    fn values_are_spread_to_the_rows_that_have_the_tokens() {
        let cut =
            |sizes: Vec<Size>| Cut { tensor: TensorId(0), name: String::new(), dtype: DType::I64, sizes };
        let spread = |cut: &Cut, dims: Vec<usize>, values: &[i64], len, rows| {
            let value = Tensor::new(dims, values).unwrap();
            let spread = cut.spread(&value, [len, rows, rows]).unwrap();
            (spread.shape().to_vec(), spread.to_i64s().unwrap())
        };
        // Two tokens and a new one, in a cache of four rows.
        let row = cut(vec![Size::Fixed(2), Size::Len(1)]);
        let wanted = (vec![2, 5], vec![1, 2, 3, 3, 3, 4, 5, 6, 6, 6]);
        assert_eq!(spread(&row, vec![2, 3], &[1, 2, 3, 4, 5, 6], 2, 4), wanted);
        let before = cut(vec![Size::Len(0)]);
        assert_eq!(spread(&before, vec![2], &[7, 8], 2, 4), (vec![4], vec![7, 8, 8, 8]));
        let both = cut(vec![Size::Len(1), Size::Len(1)]);
        let wanted = (vec![3, 3], vec![1, 2, 2, 3, 4, 4, 3, 4, 4]);
        assert_eq!(spread(&both, vec![2, 2], &[1, 2, 3, 4], 1, 2), wanted);
        let whole = cut(vec![Size::Fixed(1), Size::Fixed(2)]);
        assert_eq!(spread(&whole, vec![1, 2], &[1, 2], 3, 8), (vec![1, 2], vec![1, 2]));
        // The new one after the two tokens, and not at the end.
        let within = |cut: &Cut, values: &[i64]| {
            let value = Tensor::new([values.len()], values).unwrap();
            cut.spread(&value, [2, 4, 2]).unwrap().to_i64s().unwrap()
        };
        assert_eq!(within(&cut(vec![Size::Len(1)]), &[1, 2, 3]), [1, 2, 3, 3, 3]);
        assert_eq!(within(&before, &[7, 8]), [7, 8, 8, 8]);
    }
}
