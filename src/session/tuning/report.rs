//! What was measured, for people and as JSON.

use std::collections::BTreeSet;

use crate::ops::ChoiceKey;

/// What a session measured.
#[derive(Clone, Debug, Default, PartialEq, serde::Serialize)]
pub struct TuningReport {
    /// Each choice that was measured, in the order in which that was done.
    pub measured: Vec<TunedChoice>,
    /// What was left as it is because the time was over.
    pub out_of_time: BTreeSet<ChoiceKey>,
    /// What cannot be measured: it takes too much memory or time, depends on elements, or no other kernel runs.
    pub not_measured: BTreeSet<ChoiceKey>,
    /// Seconds that measuring took.
    pub seconds: f64,
}

/// One choice that was measured.
#[derive(Clone, Debug, PartialEq, serde::Serialize)]
pub struct TunedChoice {
    /// Entry of the device table.
    pub device: u32,
    /// What it is for.
    pub key: ChoiceKey,
    /// The operator that asked.
    pub op: &'static str,
    /// The name of the node that was measured.
    pub node: String,
    /// How many nodes of the graph ask for the same.
    pub nodes: u64,
    /// The candidate by the model of the device.
    pub default: String,
    /// The candidate that is taken.
    pub chosen: String,
    /// Median time of the node with the first one, in nanoseconds.
    pub default_ns: u64,
    /// The same with the second one.
    pub chosen_ns: u64,
    /// All candidates with their medians, where they were not given up.
    pub times: Vec<(String, Option<u64>)>,
    /// Candidates that would have been faster and computed something else.
    pub wrong: Vec<String>,
}

impl TunedChoice {
    /// Whether another candidate than the default is taken.
    pub fn is_changed(&self) -> bool {
        self.chosen != self.default
    }
}

impl TuningReport {
    /// Nanoseconds of all measured nodes together before and after: with each node's first choice counted.
    pub fn total_ns(&self) -> (u64, u64) {
        self.measured.iter().fold((0, 0), |(before, after), choice| {
            let all = |nanos: u64| nanos.saturating_mul(choice.nodes);
            (before.saturating_add(all(choice.default_ns)), after.saturating_add(all(choice.chosen_ns)))
        })
    }
}
