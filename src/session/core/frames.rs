//! Inputs and outputs that are frames.

use std::collections::BTreeMap;

/// The memories of a session's frames, which are inputs and outputs of the graph.
#[derive(Debug, Default)]
pub(in crate::session) struct Frames {
    /// The inputs that an input described as a frame consists of.
    pub(in crate::session) inputs: BTreeMap<String, Vec<String>>,
    /// The outputs that an output described as a frame consists of.
    pub(in crate::session) outputs: BTreeMap<String, Vec<String>>,
    /// Inputs, by position, that are the memory of an output before the run, and that output. They are the last inputs
    /// of the graph, and callers do not see them.
    pub(in crate::session) before: Vec<(usize, usize)>,
}

impl Frames {
    /// Whether input `i` is the memory of an output before the run.
    pub(in crate::session) fn is_before(&self, i: usize) -> bool {
        self.before.iter().any(|(input, _)| *input == i)
    }
}
