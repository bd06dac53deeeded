//! Graphs with GroupQueryAttention, changed so that their cache is in pages.
//!
//! A run is one row of a batch with the tokens of all sequences. Each GroupQueryAttention becomes PagedAttention on these
//! tokens without the dimension of the batch, and its caches become pages. Where sequences begin and end, what they have
//! already and their pages are inputs, in place of lengths that the graph computes of its mask. Positions that it computes
//! of its mask or of its cache's length become an input too. What reads these otherwise is an error.

use std::collections::BTreeMap;
use std::sync::Arc;

use half::f16;

use super::cache_graph::in_cache_type;
use super::error::GenerateError;
use super::graph_cache::{GraphCache, PAST, heads};
use super::graph_edit::GraphEdit;
use super::masked_graph::{MOST_KNOWN, node_facts, value};
use super::narrow_caches::narrowed;
use super::settings::Config;
use crate::dtype::DType;
use crate::graph::{Graph, GraphError, Node, NodeId, Origin, Tensor, TensorId, TensorInfo};
use crate::operator::Fact;
use crate::ops::attention::{CacheKind, GroupQueryAttention, PagedAttention};
use crate::ops::cast;
use crate::ops::reduce::{ArgReduce, Reduce};
use crate::ops::shape_ops::{Reshape, Squeeze, Unsqueeze};
use crate::session::Session;
use crate::shape::{Dim, Shape, SymShape};

/// Tokens before a run and in it, for which it is computed what are positions.
const RUNS: [[usize; 2]; 5] = [[0, 3], [4, 3], [4, 1], [0, 1], [2, 5]];

// Inputs of GroupQueryAttention, of which the first ones and the sinks have the same places in PagedAttention.
const COS: usize = 7;
const SIN: usize = 8;
const IDS: usize = 9;
const ADDED: usize = 10;
const SINKS: usize = 11;

/// The session of the same model with its cache in pages; nothing where `session` has them already.
pub(super) fn in_pages(session: &Session, config: &Config) -> Result<Option<Session>, GenerateError> {
    // Pages are float16 where that is asked for: conversions around attention take longer than they save on a card.
    let narrow = narrowed(session, config);
    let session = narrow.as_ref().unwrap_or(session);
    let typed = match config.cache_type {
        Some(_) => in_cache_type(session, config)?,
        None => None,
    };
    let graph = typed.as_ref().unwrap_or(session).graph();
    if config.names.pages.iter().all(|name| graph.input(name).is_some()) {
        return Ok(None);
    }
    Ok(Some(session.with_graph(paged(graph, config)?)))
}

/// The graph with its cache in pages.
pub(super) fn paged(graph: &Graph, config: &Config) -> Result<Graph, GenerateError> {
    if !graph.nodes().iter().any(|node| node.op.downcast_ref::<GroupQueryAttention>().is_some()) {
        return Err(not_in_pages());
    }
    let caches = GraphCache::all(graph, config).map(|found| {
        found.map_err(|[past, present]| {
            let what = format!("pages of a graph without the cache {past:?} or without {present:?}");
            GenerateError::Unsupported(what)
        })
    });
    let caches: Vec<GraphCache> = caches.collect::<Result<_, _>>()?;
    let lengths = Lengths::new(graph, config, &caches)?;
    let (edit, stand_in) = (GraphEdit::new(graph), BTreeMap::new());
    let mut change = Change { edit, config, lengths: &lengths, stand_in, narrowed: BTreeMap::new() };
    let dims = [vec![Dim::Unknown], vec![Dim::Unknown], vec![Dim::Unknown; 2]];
    let mut places = Vec::new();
    for (name, dims) in config.names.pages.iter().zip(dims) {
        places.push(Some(change.edit.input(name, DType::I32, dims)));
    }
    for (n, node) in graph.nodes().iter().enumerate() {
        if let Some(op) = node.op.downcast_ref::<GroupQueryAttention>() {
            change.attention((NodeId(n as u32), op), &caches, &places)?;
        }
    }
    change.rows()?;
    change.edit.sort().map_err(unsound)?;
    change.positions()?;
    change.check()?;
    change.edit.finish().map_err(unsound)
}

/// For pages of a graph that has none.
pub(super) fn not_in_pages() -> GenerateError {
    let what =
        "pages: the graph's cache is not in pages; export it with GroupQueryAttention or PagedAttention";
    GenerateError::Unsupported(what.to_owned())
}

/// A graph that the change has spoilt.
fn unsound(e: GraphError) -> GenerateError {
    GenerateError::Unsupported(format!("pages of this graph: {e}"))
}

/// Why `node` keeps a graph from having pages.
fn refused(graph: &Graph, node: &Node, problem: &str) -> GenerateError {
    let what = format!("pages: node {:?} ({}) {problem}", graph.called(node), node.op.name());
    GenerateError::Unsupported(what)
}

/// What the graph knows of lengths.
struct Lengths<'g> {
    graph: &'g Graph,
    ids: TensorId,
    given: Option<TensorId>,
    /// The mask and the caches of the graph before the change, whose sizes tell how many tokens there are.
    told: Vec<TensorId>,
    /// What is known in each of [`RUNS`].
    runs: Vec<Vec<Option<Fact>>>,
}

impl<'g> Lengths<'g> {
    fn new(graph: &'g Graph, config: &Config, caches: &[GraphCache]) -> Result<Self, GenerateError> {
        let names = &config.names;
        let Some(ids) = graph.input(&names.ids) else {
            let what = format!("pages of a graph without the input {:?}", names.ids);
            return Err(GenerateError::Unsupported(what));
        };
        let (mask, given) = (graph.input(&names.mask), graph.input(&names.positions));
        let mut runs = Vec::new();
        for [past, tokens] in RUNS {
            let mut seeds = vec![(ids, Fact::of(typed(graph, ids, DType::I64, &[1, tokens])?))];
            let end = past + tokens;
            seeds.extend(mask.map(|id| integers(graph, id, vec![1; end])).transpose()?);
            seeds.extend(
                given.map(|id| integers(graph, id, (past as i64..end as i64).collect())).transpose()?,
            );
            for GraphCache { past: id, .. } in caches {
                let [heads, size] = heads(graph, *id, config).map(|n| n.unwrap_or(1));
                seeds.push((*id, Fact::of(typed(graph, *id, DType::F32, &[1, heads, past, size])?)));
            }
            runs.push(facts(graph, seeds));
        }
        let told = mask.into_iter().chain(caches.iter().map(|cache| cache.past)).collect();
        Ok(Lengths { graph, ids, given, told, runs })
    }

    /// The shape of a tensor that has the position of each token of a run, with -1 for the tokens.
    fn positions(&self, id: TensorId) -> Option<Vec<i64>> {
        let mut found = None;
        for ([past, tokens], facts) in RUNS.into_iter().zip(&self.runs) {
            let value = value(facts.get(..=id.index())?, id)?;
            let wanted = past as i64..(past + tokens) as i64;
            if !value.to_i64s().ok()?.into_iter().eq(wanted) {
                return None;
            }
            let dims = value.shape().dims();
            if tokens > 1 {
                let at = dims.iter().position(|size| *size == tokens)?;
                let shape: Vec<i64> = (0..dims.len()).map(|i| if i == at { -1 } else { 1 }).collect();
                if found.get_or_insert_with(|| shape.clone()) != &shape {
                    return None;
                }
            }
        }
        found
    }

    /// Whether a tensor is the same integers in all runs, or not known.
    fn is_known(&self, id: TensorId) -> bool {
        self.runs.iter().all(|facts| facts.get(..=id.index()).is_some_and(|facts| value(facts, id).is_some()))
    }
}

/// Type and shape of an input.
fn typed(graph: &Graph, id: TensorId, usual: DType, sizes: &[usize]) -> Result<TensorInfo, GenerateError> {
    Ok(TensorInfo::new(graph.tensor(id).dtype.unwrap_or(usual), Shape::new(sizes)?))
}

/// The row of integers that an input has.
fn integers(graph: &Graph, id: TensorId, values: Vec<i64>) -> Result<(TensorId, Fact), GenerateError> {
    let shape = [1, values.len()];
    let tensor = match graph.tensor(id).dtype {
        Some(DType::I32) => Tensor::new(shape, &values.iter().map(|v| *v as i32).collect::<Vec<_>>())?,
        _ => Tensor::new(shape, &values)?,
    };
    Ok((id, Fact::known(tensor)))
}

/// What is known of tensors that are computed from sizes and small known values.
fn facts(graph: &Graph, seeds: Vec<(TensorId, Fact)>) -> Vec<Option<Fact>> {
    let mut facts: Vec<Option<Fact>> = vec![None; graph.tensors().len()];
    for (decl, fact) in graph.tensors().iter().zip(&mut facts) {
        if let Origin::Constant(value) = &decl.origin {
            *fact = Some(Fact::known(value.clone()));
        }
    }
    for (id, fact) in seeds {
        facts[id.index()] = Some(fact);
    }
    for node in graph.nodes() {
        let is_there = |id: &TensorId| match node.op.shape_only() {
            true => facts[id.index()].is_some(),
            false => value(&facts, *id).is_some(),
        };
        if !node.inputs.iter().flatten().all(is_there) {
            continue;
        }
        for (id, fact) in node.outputs.iter().zip(node_facts(node, &facts, MOST_KNOWN).unwrap_or_default()) {
            if let Some(id) = id {
                facts[id.index()] = Some(fact);
            }
        }
    }
    facts
}

/// The graph in the making.
struct Change<'c> {
    edit: GraphEdit,
    config: &'c Config,
    lengths: &'c Lengths<'c>,
    /// Tensors that stand for positions, and those that they stand for.
    stand_in: BTreeMap<TensorId, TensorId>,
    /// Constants in `float16`, which all layers share.
    narrowed: BTreeMap<TensorId, TensorId>,
}

impl Change<'_> {
    /// Makes a node PagedAttention.
    fn attention(
        &mut self,
        (id, op): (NodeId, &GroupQueryAttention),
        caches: &[GraphCache],
        places: &[Option<TensorId>],
    ) -> Result<(), GenerateError> {
        let graph = self.lengths.graph;
        let node = graph.node(id);
        let input = |i: usize| node.inputs.get(i).copied().flatten();
        if !matches!(op.cache, CacheKind::Same | CacheKind::Half) {
            return Err(refused(graph, node, "has a cache of codes"));
        }
        if input(ADDED).is_some() {
            return Err(refused(graph, node, "adds a bias to its scores, which no pages have"));
        }
        if let Some(ids) = input(IDS).filter(|_| op.rotary.is_some())
            && self.lengths.positions(ids).is_none()
        {
            return Err(refused(graph, node, "rotates by positions that are not those of its tokens"));
        }
        let mut dtype = DType::F32;
        let Some(own) = GraphCache::of_attention(caches, node) else {
            let problem = "does not read a cache that is an input and give it as an output";
            return Err(refused(graph, node, problem));
        };
        for GraphCache { past, present } in own {
            let decl = graph.tensor(past);
            dtype = decl.dtype.unwrap_or(dtype);
            let size = decl.shape.as_ref().and_then(|shape| shape.0.get(3)).cloned();
            let size = size.unwrap_or(Dim::Unknown);
            let shape = vec![Dim::Unknown, Dim::Unknown, Dim::Known(op.kv_heads), size];
            for id in [past, present] {
                self.edit.graph.tensors[id.index()].shape = Some(SymShape(shape.clone()));
            }
        }
        let (name, device) = (graph.called(node), node.device);
        let mut inputs = Vec::new();
        for at in 0..PAST[0] {
            // A row of tokens without the dimension of the batch.
            let squeeze = Arc::new(Squeeze { axes: Some(vec![0]) });
            let read = input(at);
            let row = |x| self.edit.node(&format!("{name} of tokens"), squeeze, vec![Some(x)], device);
            inputs.push(read.map(row));
        }
        // PagedAttention has its cache in the type of its keys.
        let narrows = op.cache == CacheKind::Half;
        let narrow = |change: &mut Self, x: Option<TensorId>| match x {
            Some(x) if narrows => change.narrow(x, (&name, device)).map(Some),
            _ => Ok(x),
        };
        for row in &mut inputs {
            *row = narrow(self, *row)?;
        }
        inputs.extend([input(PAST[0]), input(PAST[1])]);
        inputs.extend(places);
        let tables = [COS, SIN].map(|at| input(at).filter(|_| op.rotary.is_some()));
        for table in tables {
            inputs.push(narrow(self, table)?);
        }
        let zero = op.smooth.then(|| zeros(op.heads, dtype)).transpose()?;
        let sinks =
            narrow(self, input(SINKS))?.or_else(|| Some(self.edit.constant(&format!("{name} sinks"), zero?)));
        if let Some(sinks) = sinks {
            inputs.resize(SINKS, None);
            inputs.push(Some(sinks));
        }
        let Some(y) = node.outputs.first().copied().flatten() else {
            return Err(refused(graph, node, "gives no result"));
        };
        let mut rows = self.edit.replace_output(id, 0, &format!("{name} rows"));
        if narrows {
            rows = self.edit.node(&format!("{name} widened"), cast(DType::F32), vec![Some(rows)], device);
        }
        self.edit.make(y, Arc::new(Unsqueeze { axes: Some(vec![0]) }), vec![Some(rows)], device);
        let changed = &mut self.edit.graph.nodes[id.index()];
        changed.op = Arc::new(PagedAttention {
            heads: op.heads,
            kv_heads: op.kv_heads,
            scale: op.scale,
            softcap: op.softcap,
            window: op.window.map(|window| window.max(1)),
            rotary: op.rotary,
            causal: op.causal,
            updates: None,
        });
        changed.inputs = inputs;
        Ok(())
    }

    /// A tensor in `float16`, for the node `name`: constants are converted here, once for all layers.
    fn narrow(
        &mut self,
        x: TensorId,
        (name, device): (&str, Option<u32>),
    ) -> Result<TensorId, GenerateError> {
        let Origin::Constant(value) = &self.edit.graph.tensor(x).origin else {
            return Ok(self.edit.node(&format!("{name} narrowed"), cast(DType::F16), vec![Some(x)], device));
        };
        if let Some(narrowed) = self.narrowed.get(&x) {
            return Ok(*narrowed);
        }
        let halves: Vec<f16> = value.to_f32s()?.into_iter().map(f16::from_f32).collect();
        let value = Tensor::new(value.shape().dims(), &halves)?;
        let narrowed = self.edit.constant(&format!("{name} narrowed"), value);
        self.narrowed.insert(x, narrowed);
        Ok(narrowed)
    }

    /// Makes tokens and logits have no dimension of the batch.
    fn rows(&mut self) -> Result<(), GenerateError> {
        let Lengths { graph, ids, given, .. } = *self.lengths;
        for id in [Some(ids), given].into_iter().flatten() {
            self.tokens(id);
        }
        let logits = &self.config.names.logits;
        let Some(at) = graph.output(logits) else {
            return Err(GenerateError::Unsupported(format!("pages of a graph without {logits:?}")));
        };
        let found = graph.outputs()[at].1;
        let squeeze = Arc::new(Squeeze { axes: Some(vec![0]) });
        let row = self.edit.node("logits of tokens", squeeze, vec![Some(found)], None);
        let (from, tensors) = (graph.tensor(found), &mut self.edit.graph.tensors);
        let vocabulary = from.shape.as_ref().and_then(|shape| shape.0.last()).cloned();
        let dims = vec![Dim::Unknown, vocabulary.unwrap_or(Dim::Unknown)];
        let decl = &mut tensors[row.index()];
        (decl.dtype, decl.shape) = (from.dtype, Some(SymShape(dims)));
        self.edit.graph.outputs[at].1 = row;
        Ok(())
    }

    /// An input of one number for each token, of which the tensor `id`, an input so far, is made.
    fn tokens(&mut self, id: TensorId) -> TensorId {
        let decl = self.lengths.graph.tensor(id);
        let (name, dtype) = (decl.name.clone(), decl.dtype.unwrap_or(DType::I64));
        let given = self.edit.input(&name, dtype, vec![Dim::Unknown]);
        self.edit.graph.inputs.retain(|input| *input != id);
        self.edit.make(id, Arc::new(Unsqueeze { axes: Some(vec![0]) }), vec![Some(given)], None);
        given
    }

    /// Makes positions that are computed of lengths those of an input.
    fn positions(&mut self) -> Result<(), GenerateError> {
        let (live, told) = (self.edit.live(), self.depending());
        let mut reads = Vec::new();
        for (n, node) in self.edit.graph.nodes().iter().enumerate().filter(|(n, _)| live[*n]) {
            for (i, id) in node.inputs.iter().enumerate() {
                let Some(id) = id.filter(|id| told[id.index()] && !is_cache(node, i)) else { continue };
                if let Some(shape) = self.lengths.positions(id) {
                    reads.push((n, i, id, shape));
                }
            }
        }
        if reads.is_empty() {
            return Ok(());
        }
        let name = &self.config.names.positions;
        let given = match self.edit.graph.input(name) {
            Some(given) => given,
            None => self.edit.input(name, DType::I64, vec![Dim::Unknown]),
        };
        let given_type = self.edit.graph.tensor(given).dtype;
        for (n, i, id, shape) in reads {
            let known = self.lengths.runs.first().and_then(|facts| value(facts, id)).map(Tensor::dtype);
            let device = self.edit.graph.nodes()[n].device;
            let shape = Reshape { allow_zero: false, fixed: Some(shape) };
            let mut place = self.edit.node("positions of tokens", Arc::new(shape), vec![Some(given)], device);
            if let Some(wanted) = known.filter(|known| Some(*known) != given_type) {
                place = self.edit.node("positions as read", cast(wanted), vec![Some(place)], device);
            }
            self.stand_in.insert(place, id);
            self.edit.graph.nodes[n].inputs[i] = Some(place);
        }
        self.edit.sort().map_err(unsound)
    }

    /// Tensors that depend on what tells lengths, but for what attention makes of its pages.
    fn depending(&self) -> Vec<bool> {
        let graph = &self.edit.graph;
        let mut told = vec![false; graph.tensors().len()];
        self.lengths.told.iter().for_each(|id| told[id.index()] = true);
        for node in graph.nodes() {
            let mut read = node.inputs.iter().enumerate().filter(|(i, _)| !is_cache(node, *i));
            if read.any(|(_, id)| id.is_some_and(|id| told[id.index()])) {
                node.outputs.iter().flatten().for_each(|id| told[id.index()] = true);
            }
        }
        told
    }

    /// Checks that no result depends on lengths otherwise than by pages and positions, and that no branch is chosen.
    fn check(&self) -> Result<(), GenerateError> {
        let (graph, live, told) = (&self.edit.graph, self.edit.live(), self.depending());
        let nodes = graph.nodes().iter().zip(&live).filter(|(_, live)| **live).map(|(node, _)| node);
        let mut first = None;
        for node in nodes {
            let mut read = node.inputs.iter().enumerate().filter(|(i, _)| !is_cache(node, *i));
            let reads = read.any(|(_, id)| id.is_some_and(|id| told[id.index()]));
            if node.op.control().is_some() && !node.inputs.iter().flatten().all(|id| self.is_constant(*id)) {
                let problem = "chooses by the text what it computes, and a run has tokens of several texts";
                return Err(refused(graph, node, problem));
            }
            let is_known = node.outputs.iter().flatten().all(|id| self.lengths.is_known(*id));
            if reads && first.is_none_or(|(_, known)| known && !is_known) {
                first = Some((node, is_known));
            }
            if !reads && let Some(problem) = self.joins_positions(node) {
                return Err(refused(graph, node, problem));
            }
        }
        match first {
            Some((node, _)) => {
                let problem = "reads how many tokens a text has, and a run has tokens of several texts";
                Err(refused(graph, node, problem))
            }
            None => Ok(()),
        }
    }

    fn is_constant(&self, id: TensorId) -> bool {
        matches!(self.edit.graph.tensor(id).origin, Origin::Constant(_))
    }

    /// What is wrong with a node that makes one number of the positions of several tokens.
    fn joins_positions(&self, node: &Node) -> Option<&'static str> {
        let first = node.inputs.first().copied().flatten()?;
        let first = self.stand_in.get(&first).copied().unwrap_or(first);
        let joins =
            node.op.downcast_ref::<Reduce>().is_some() || node.op.downcast_ref::<ArgReduce>().is_some();
        // The positions themselves, and integers that are computed of them.
        let differ = || {
            let values = self.lengths.runs.iter().map(|facts| value(facts.get(..=first.index())?, first));
            let known: Option<Vec<&Tensor>> = values.collect();
            known.is_some_and(|all| all.windows(2).any(|pair| pair[0].bytes() != pair[1].bytes()))
        };
        (joins && differ())
            .then_some("joins the positions of all tokens of a run, which are of several texts")
    }
}

/// Whether an input of a node is a cache in pages.
fn is_cache(node: &Node, input: usize) -> bool {
    PAST.contains(&input) && node.op.downcast_ref::<PagedAttention>().is_some()
}

/// A score of 0 for each head.
fn zeros(heads: usize, dtype: DType) -> Result<Tensor, GenerateError> {
    let info = TensorInfo::new(dtype, Shape::new([heads])?);
    let bytes = vec![0; info.bytes()];
    Ok(Tensor::from_bytes(info, &bytes)?)
}
