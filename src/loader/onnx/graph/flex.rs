//! FlexAttention, whose attributes may be graphs that change its scores and probabilities: its parts and the
//! nodes of those graphs in its place.

use super::{Failure, Importer, Making, Scope};
use crate::graph::TensorId;
use crate::loader::error::LoadErrorKind;
use crate::loader::onnx::proto::{GraphProto, NodeProto};
use crate::loader::onnx::syntax::free_names;
use crate::ops::attention::flex_parts;
use crate::ops::{AttrMap, AttrReader};

/// Whether `node` is one with graphs to be put apart.
pub(super) fn is_flex(domain: &str, node: &NodeProto, graphs: &[(&str, &GraphProto)]) -> bool {
    domain == "ai.onnx.preview" && node.op_type == "FlexAttention" && !graphs.is_empty()
}

impl<'m> Importer<'m, '_> {
    /// Adds the parts of `node`.
    pub(super) fn flex(
        &mut self,
        node: &'m NodeProto,
        attrs: &AttrMap,
        graphs: &[(&'m str, &'m GraphProto)],
        making: &mut Making,
        scope: &mut Scope<'m, '_>,
    ) -> Result<(), Failure> {
        let ([q, k, v], [y]) = (&node.input[..], &node.output[..]) else {
            return Err(LoadErrorKind::unexpected(
                "three inputs and an output",
                format!("{} and {}", node.input.len(), node.output.len()),
            )
            .into());
        };
        let [q, k, v] = [q, k, v].map(|name| scope.get(making, name));
        let [scores, softmax, result] = flex_parts(&mut AttrReader::new(attrs, 3, 1))?;
        let name = format!("{}{}", scope.prefix, node.name);
        let part = |making: &mut Making, what: &str, op, inputs: &[Option<TensorId>]| {
            let unique = making.unique(&format!("{name}/{what}"));
            let id = making.builder.declare(unique);
            making.builder.node_into(format!("{name}/{what}"), op, inputs, &[Some(id)]);
            id
        };
        let graph = |wanted: &str| graphs.iter().find(|(name, _)| *name == wanted).map(|(_, graph)| *graph);
        let mut at = part(making, "scores", scores, &[q, k]);
        if let Some(graph) = graph("score_mod") {
            at = self.modified(graph, at, making, scope)?;
        }
        at = part(making, "softmax", softmax, &[Some(at)]);
        if let Some(graph) = graph("prob_mod") {
            at = self.modified(graph, at, making, scope)?;
        }
        let to = scope.define(making, y)?;
        making.builder.node_into(name, result, &[Some(at), v], &[to]);
        Ok(())
    }

    /// Adds the nodes of `graph`, which has one input, `given`, and one output, which is returned.
    fn modified(
        &mut self,
        graph: &'m GraphProto,
        given: TensorId,
        making: &mut Making,
        scope: &mut Scope<'m, '_>,
    ) -> Result<TensorId, Failure> {
        let ([input], [output]) = (&graph.input[..], &graph.output[..]) else {
            return Err(LoadErrorKind::unexpected(
                "a graph of one input and one output",
                format!("{} and {}", graph.input.len(), graph.output.len()),
            )
            .into());
        };
        let prefix = format!("{}{}/", scope.prefix, graph.name);
        let mut inner = scope.inner(prefix, scope.opsets, scope.attrs)?;
        inner.bind(&input.name, Some(given), "inputs")?;
        for name in free_names(graph) {
            inner.bind(name, scope.get(making, name), "tensors")?;
        }
        for t in &graph.initializer {
            inner.constant(making, &t.name, self.store.tensor(t)?)?;
        }
        self.body(&graph.node, making, &mut inner).map_err(Failure::Inside)?;
        let id = inner.get(making, &output.name);
        Ok(id.ok_or_else(|| LoadErrorKind::missing("the name of an output"))?)
    }
}
