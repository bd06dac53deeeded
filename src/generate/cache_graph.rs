//! Graphs with GroupQueryAttention, changed so that their caches hold keys and values in another type.

use std::sync::Arc;

use super::cache_type::CacheType;
use super::error::GenerateError;
use super::graph_cache::{GraphCache, PAST, heads};
use super::settings::Config;
use crate::dtype::DType;
use crate::graph::{Graph, Node, TensorId};
use crate::ops::attention::{CacheKind, GroupQueryAttention};
use crate::plan::Precision;
use crate::session::Session;
use crate::shape::{Dim, SymShape};

/// The session of the same model with its cache in the type that `config` asks for; nothing where that changes nothing.
pub(super) fn in_cache_type(session: &Session, config: &Config) -> Result<Option<Session>, GenerateError> {
    let graph = match config.cache_type {
        Some(cache_type) => changed(session.graph(), config, cache_type)?,
        // What the rest computes in suits the cache too, where the graph has one that can be changed.
        None if session.precision() == Precision::F16 => {
            changed(session.graph(), config, CacheType::F16).ok().flatten()
        }
        None => None,
    };
    Ok(graph.map(|graph| session.with_graph(graph)))
}

/// The graph with its cache in another type; nothing where it has that already.
fn changed(graph: &Graph, config: &Config, cache_type: CacheType) -> Result<Option<Graph>, GenerateError> {
    let mut changed = graph.clone();
    let mut is_same = true;
    let caches: Vec<GraphCache> = GraphCache::all(graph, config).filter_map(Result::ok).collect();
    let mut some = false;
    for (n, node) in graph.nodes().iter().enumerate() {
        let Some(op) = node.op.downcast_ref::<GroupQueryAttention>() else { continue };
        some = true;
        let cache = cache_type.kind();
        let declared = node.inputs.get(PAST[0]).copied().flatten().and_then(|id| graph.tensor(id).dtype);
        if op.cache != CacheKind::Same {
            return Err(refused(graph, node, "has a cache of another type than its keys already"));
        }
        match (cache_type, declared.unwrap_or(DType::F32)) {
            (CacheType::F16, DType::F16) | (CacheType::F32, DType::F32) => continue,
            (CacheType::F32, _) => return Err(refused(graph, node, "declares a cache that is not float32")),
            _ => {}
        }
        is_same = false;
        let Some(own) = GraphCache::of_attention(&caches, node) else {
            let problem = "does not read a cache that is an input and give it as an output";
            return Err(refused(graph, node, problem));
        };
        for id in own.into_iter().flat_map(|GraphCache { past, present }| [past, present]) {
            retype(&mut changed, id, config, cache).map_err(|what| refused(graph, node, what))?;
        }
        changed.nodes[n].op = Arc::new(GroupQueryAttention { cache, ..*op });
    }
    if !some {
        let what = format!(
            "a cache of {cache_type}: the graph has no GroupQueryAttention, whose caches alone have types"
        );
        return Err(GenerateError::Unsupported(what));
    }
    Ok((!is_same).then_some(changed))
}

/// Gives a tensor of a cache the type and the rows of `cache`; says what keeps it from that.
fn retype(graph: &mut Graph, id: TensorId, config: &Config, cache: CacheKind) -> Result<(), &'static str> {
    let [heads, size] = heads(graph, id, config);
    let size = size.ok_or("has a cache whose vectors have a size that is not known")?;
    if size % 2 > 0 {
        return Err("has vectors of an odd size");
    }
    let decl = &mut graph.tensors[id.index()];
    let dims = decl.shape.as_ref().map_or(&[][..], |shape| &shape.0);
    let [batch, rows] = [0, 2].map(|axis| dims.get(axis).cloned().unwrap_or(Dim::Unknown));
    let heads = heads.map_or(Dim::Unknown, Dim::Known);
    decl.shape = Some(SymShape(vec![batch, heads, rows, Dim::Known(cache.row(size))]));
    decl.dtype = Some(cache.dtype(decl.dtype.unwrap_or(DType::F32)));
    Ok(())
}

/// Why `node` keeps a cache from having another type.
fn refused(graph: &Graph, node: &Node, problem: &str) -> GenerateError {
    let (name, op) = (graph.called(node), node.op.name());
    GenerateError::Unsupported(format!("another type of the cache: node {name:?} ({op}) {problem}"))
}
