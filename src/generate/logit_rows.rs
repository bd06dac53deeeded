//! Runs of several tokens of which few logits are wanted: the product that gives them gets the wanted rows alone.

use std::sync::Arc;

use super::graph_edit::GraphEdit;
use super::input::LOGIT_ROWS;
use crate::dtype::DType;
use crate::graph::{Graph, Node, NodeId, Origin, TensorDecl, TensorId};
use crate::operator::{Operator, Structure};
use crate::ops::Function;
use crate::ops::index::Gather;
use crate::ops::pointwise::{Identity, Pointwise};
use crate::ops::shape_ops::Squeeze;
use crate::shape::Dim;

/// The graph with the logits of wanted tokens alone; nothing where they are not those of a last product with constants.
/// Axis `axis` of what it reads has the tokens.
pub(super) fn with_rows(graph: &Graph, logits: &str, axis: i64) -> Option<Graph> {
    let product = product(graph, logits)?;
    let mut edit = GraphEdit::new(graph);
    let rows = edit.input(LOGIT_ROWS, DType::I64, vec![Dim::Unknown]);
    let Node { inputs, device, .. } = &graph.nodes()[product.index()];
    let (read, device) = (inputs.first().copied().flatten()?, *device);
    let wanted = edit.node("wanted rows", Arc::new(Gather { axis }), vec![Some(read), Some(rows)], device);
    edit.graph.nodes[product.index()].inputs[0] = Some(wanted);
    edit.finish().ok()
}

/// The product whose rows are the logits, but for functions of single elements.
fn product(graph: &Graph, logits: &str) -> Option<NodeId> {
    let (constant, uses) = (constants(graph), uses(graph));
    let mut at = graph.outputs().iter().find(|(name, _)| name == logits)?.1;
    loop {
        let Origin::Node { node: id, output: 0 } = graph.tensor(at).origin else { return None };
        let node = graph.node(id);
        if uses[at.index()] != 1 {
            return None;
        }
        let (first, others) = node.inputs.split_first()?;
        let first = (*first)?;
        let with_constants = others.iter().flatten().all(|id| constant[id.index()]);
        let multiplies_rows = match node.op.structure() {
            Some(Structure::MatMul { transposed, .. }) => others.len() == 1 && !transposed[0],
            structure => structure == Some(Structure::CodedMatMul),
        };
        if multiplies_rows && with_constants {
            return (!constant[first.index()]).then_some(id);
        }
        at = row_wise(graph, node)?;
    }
}

/// How often each tensor is read, as an output of the graph too.
fn uses(graph: &Graph) -> Vec<usize> {
    let mut uses = vec![0; graph.tensors().len()];
    let read = graph.nodes().iter().flat_map(|node| node.inputs.iter().flatten());
    read.chain(graph.outputs().iter().map(|(_, id)| id)).for_each(|id| uses[id.index()] += 1);
    uses
}

/// Whether each tensor is computed from constants alone.
fn constants(graph: &Graph) -> Vec<bool> {
    let is_constant = |decl: &TensorDecl| matches!(decl.origin, Origin::Constant(_));
    let mut constant: Vec<bool> = graph.tensors().iter().map(is_constant).collect();
    for node in graph.nodes().iter().filter(|node| node.op.control().is_none()) {
        if node.inputs.iter().flatten().all(|id| constant[id.index()]) {
            node.outputs.iter().flatten().for_each(|id| constant[id.index()] = true);
        }
    }
    constant
}

/// The tensor of which a node computes each row alone.
fn row_wise(graph: &Graph, node: &Node) -> Option<TensorId> {
    let mut given = node.inputs.iter().flatten().copied();
    if is_elementwise(node.op.as_ref()) {
        // A vector or a number is the same for all rows.
        let is_small = |id: TensorId| match &graph.tensor(id).origin {
            Origin::Constant(value) => value.shape().rank() <= 1,
            _ => false,
        };
        let found = given.clone().find(|id| !is_small(*id))?;
        return given.all(|id| id == found || is_small(id)).then_some(found);
    }
    // A row of a batch of one.
    let (read, rest) = (given.next()?, given.collect::<Vec<_>>());
    (node.op.downcast_ref::<Squeeze>().is_some() && rest.is_empty()).then_some(read)
}

/// Whether an operator computes each element alone.
fn is_elementwise(op: &dyn Operator) -> bool {
    matches!(op.structure(), Some(Structure::Elementwise(_) | Structure::Cast))
        || op.downcast_ref::<Identity>().is_some()
        || op.downcast_ref::<Pointwise>().is_some_and(|op| op.function == Function::Tanh)
}
