//! Inputs and outputs that are frames.

use std::collections::BTreeMap;

use crate::graph::Graph;

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
    /// The names of those inputs and outputs.
    pub(in crate::session) before_names: Vec<(String, String)>,
}

impl Frames {
    /// Whether input `i` is the memory of an output before the run.
    pub(in crate::session) fn is_before(&self, i: usize) -> bool {
        self.before.iter().any(|(input, _)| *input == i)
    }

    /// [`Frames::before`] of a part of the graph.
    pub(in crate::session) fn before_in(&self, part: &Graph) -> Vec<(usize, usize)> {
        let input = |name: &str| part.inputs().iter().position(|id| part.tensor(*id).name == name);
        let pairs = self.before_names.iter();
        pairs.filter_map(|(before, output)| Some((input(before)?, part.output(output)?))).collect()
    }
}
