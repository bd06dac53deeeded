//! Operators that may round their activations compute with the activations themselves.

use crate::graph::Graph;
use crate::ops::control::with_graphs;

/// Whether products with packed weights may round their activations where the model allows it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Activations {
    /// A MatMulNBits of `accuracy_level` 4 may round each block of a row to 8 bits. CPUs whose vectors multiply bytes
    /// do, for weights of a GGUF file too. Devices with cooperative matrices round many rows of a MatMulNBits and its
    /// weights to `float16`.
    #[default]
    Allowed,
    /// Activations are used as they are, in `float32`.
    Exact,
}

/// Takes the rounding from operators of `graph` and of the graphs inside its nodes; returns how many had it.
pub(super) fn exact_activations(graph: &mut Graph) -> usize {
    let mut count = 0;
    for node in &mut graph.nodes {
        if let Some(op) = with_graphs(node.op.as_ref(), &mut |inner| count += exact_activations(inner)) {
            node.op = op;
        }
        if let Some(op) = node.op.with_exact_activations() {
            node.op = op;
            count += 1;
        }
    }
    count
}
