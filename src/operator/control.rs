//! Control flow: what a session does in place of operators that hold graphs.

use std::sync::Arc;

use crate::graph::Graph;

/// The session's replacement for a node of control flow.
#[derive(Clone, Copy, Debug)]
pub enum Control<'a> {
    /// Puts one of two graphs in the node's place, `then` where input 0 is true. Their inputs are the node's
    /// other inputs.
    If {
        /// The graph for true.
        then: &'a Arc<Graph>,
        /// The graph for false.
        other: &'a Arc<Graph>,
    },
    /// Runs a graph again and again.
    Loop(&'a Loop),
    /// Runs a graph for every slice of its inputs.
    Scan(&'a Scan),
}

/// Repeats a graph. Inputs of the node: the number of times, the condition, the states, what the graph
/// captures; of the graph: the iteration, the condition, the states, what it captures. Outputs of the graph:
/// the condition, the states, values that are stacked; of the node: the states, the stacks. A stack that is a
/// list is two outputs of the node ([`crate::ops::sequence`]), and may be of tensors of several shapes.
#[derive(Clone, Debug)]
pub struct Loop {
    /// The graph.
    pub body: Arc<Graph>,
    /// Number of states carried from one iteration to the next.
    pub states: usize,
    /// Which of the stacks are lists.
    pub lists: Vec<usize>,
}

/// Along which axis a tensor is sliced or stacked, and from which end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ScanAxis {
    /// The axis, negative ones counted from the end.
    pub axis: i64,
    /// From the end to the start.
    pub reverse: bool,
}

/// Runs a graph for every slice of its inputs. Inputs of the node: the states, the tensors that are sliced,
/// what the graph captures; of the graph: the states, the slices, what it captures. Outputs of the graph: the
/// states, values that are stacked; of the node: the states, the stacks.
#[derive(Clone, Debug)]
pub struct Scan {
    /// The graph.
    pub body: Arc<Graph>,
    /// Number of states carried from one slice to the next.
    pub states: usize,
    /// The inputs that are sliced.
    pub inputs: Vec<ScanAxis>,
    /// The outputs that are stacked.
    pub outputs: Vec<ScanAxis>,
    /// Opset 8: the node's inputs begin with the lengths of the sequences, axis 0 of everything is the batch.
    pub batched: bool,
}
