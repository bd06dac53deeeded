//! Outcomes of planning.

use super::{Plan, PlanError};
use crate::graph::NodeId;

/// The outcome of planning, or of a pass on the way to a plan.
#[derive(Clone, Debug)]
pub enum PlanOutcome<T = Plan> {
    /// The complete plan.
    Plan(T),
    /// A node is one of two graphs, and which one is known now: put it in the node's place
    /// ([`choose`](super::choose)) and ask again.
    Choose {
        /// The node.
        node: NodeId,
        /// Whether it is the graph for true.
        then: bool,
    },
    /// Shapes depend on the values of inputs: ask again with their values, or run the graph in parts
    /// ([`split`](super::split())).
    NeedsValues {
        /// The node.
        node: String,
        /// Its operator.
        op: &'static str,
        /// Which of its inputs.
        input: usize,
        /// Positions among the graph's inputs.
        inputs: Vec<usize>,
    },
    /// Sizes are known only once a node has run: run the graph in parts ([`split`](super::split())).
    Dynamic {
        /// The node.
        node: String,
        /// Its operator.
        op: &'static str,
        /// Which of its inputs decides.
        input: usize,
    },
}

impl<T> PlanOutcome<T> {
    /// Applies `f` to the plan, if there is one.
    ///
    /// # Errors
    /// Errors of `f`.
    pub fn try_map<U, E>(self, f: impl FnOnce(T) -> Result<U, E>) -> Result<PlanOutcome<U>, E> {
        Ok(match self {
            PlanOutcome::Plan(plan) => PlanOutcome::Plan(f(plan)?),
            PlanOutcome::Choose { node, then } => PlanOutcome::Choose { node, then },
            PlanOutcome::NeedsValues { node, op, input, inputs } => {
                PlanOutcome::NeedsValues { node, op, input, inputs }
            }
            PlanOutcome::Dynamic { node, op, input } => PlanOutcome::Dynamic { node, op, input },
        })
    }

    /// The plan, for a caller that can do nothing about any other outcome.
    ///
    /// # Errors
    /// [`PlanError::Undecided`] says what a plan would need.
    pub fn plan(self) -> Result<T, PlanError> {
        let needs = match self {
            PlanOutcome::Plan(plan) => return Ok(plan),
            PlanOutcome::Choose { node, .. } => format!("node {} stands for one of two graphs", node.0),
            PlanOutcome::NeedsValues { node, op, input, inputs } => format!(
                "node {node:?} ({op}): the value of its input {input} decides shapes and comes from graph inputs {inputs:?}; \
                 give their values when the plan is made"
            ),
            PlanOutcome::Dynamic { node, op, input } => format!(
                "node {node:?} ({op}): the sizes of its results are known only in the run, by its input {input}"
            ),
        };
        Err(PlanError::Undecided { needs })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn other_outcomes_pass_through_and_say_what_they_need() {
        let twice = |n: i32| Ok::<_, PlanError>(2 * n);
        assert!(matches!(PlanOutcome::Plan(2).try_map(twice), Ok(PlanOutcome::Plan(4))));
        let node = || "n".to_owned();
        let values =
            PlanOutcome::<i32>::NeedsValues { node: node(), op: "Reshape", input: 1, inputs: vec![3] };
        let dynamic = PlanOutcome::<i32>::Dynamic { node: node(), op: "NonZero", input: 0 };
        let choose = PlanOutcome::<i32>::Choose { node: NodeId(7), then: true };
        for (outcome, says) in
            [(values, "graph inputs [3]"), (dynamic, "only in the run"), (choose, "node 7")]
        {
            let same = outcome.try_map(twice).unwrap();
            let e = same.plan().unwrap_err().to_string();
            assert!(e.contains(says), "{e}");
        }
    }
}
