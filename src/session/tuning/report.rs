//! What was measured, for people and as JSON.

use std::collections::BTreeSet;

use crate::ops::ChoiceKey;

/// What a session measured.
#[derive(Clone, Debug, Default, PartialEq, serde::Serialize)]
pub struct TuningReport {
    /// Each choice that was measured, in the order in which that was done.
    pub measured: Vec<TunedChoice>,
    /// What was left as it is because the time was over, or the session's runs were cancelled.
    pub out_of_time: BTreeSet<ChoiceKey>,
    /// What cannot be measured: it takes too much memory or time, depends on elements, no other kernel runs,
    /// or the device was lost meanwhile.
    pub not_measured: BTreeSet<ChoiceKey>,
    /// Choices that were measured and could not be written to the folder.
    pub not_kept: usize,
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
    /// Whether the choice measured before it was of the same node: its times have that one's kernel.
    pub follows: bool,
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
    /// Nanoseconds of all measured nodes together before and after. Where one choice of a node led to
    /// another, the first one's time is the node's before, and the last one's that after.
    pub fn total_ns(&self) -> (u64, u64) {
        let (mut before, mut after) = (0u64, 0u64);
        for (at, choice) in self.measured.iter().enumerate() {
            let all = |nanos: u64| nanos.saturating_mul(choice.nodes);
            if !choice.follows {
                before = before.saturating_add(all(choice.default_ns));
            }
            if self.measured.get(at + 1).is_none_or(|next| !next.follows) {
                after = after.saturating_add(all(choice.chosen_ns));
            }
        }
        (before, after)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dtype::DType;

    #[test]
    fn a_node_whose_choice_led_to_another_counts_once() {
        let choice = |node: &str, nodes: u64, follows: bool, default_ns: u64, chosen_ns: u64| TunedChoice {
            device: 0,
            key: ChoiceKey::new(node, DType::F32),
            op: "Conv",
            node: node.to_owned(),
            follows,
            nodes,
            default: "a".to_owned(),
            chosen: "b".to_owned(),
            default_ns,
            chosen_ns,
            times: Vec::new(),
            wrong: Vec::new(),
        };
        let chain =
            [choice("c", 3, false, 100, 60), choice("c", 3, true, 62, 40), choice("c", 3, true, 41, 30)];
        let of = |measured: &[TunedChoice]| {
            TuningReport { measured: measured.to_vec(), ..TuningReport::default() }.total_ns()
        };
        assert_eq!(of(&chain), (300, 90));
        let others = [choice("d", 1, false, 7, 5), choice("d", 1, false, 9, 9)];
        assert_eq!(of(&[&others[..1], &chain, &others[1..]].concat()), (316, 104));
        assert_eq!(of(&[]), (0, 0));
    }
}
