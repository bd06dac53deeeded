//! Graphs whose sizes are known only in the run: the parts after the plan of their head.

use std::sync::Arc;

use super::SessionCore;
use crate::ops::control::Control;
use crate::plan::{SplitGraph, StageInput, StageStep, StepInput};

/// The parts after the plan of a head: steps on the host and loops, then the tail.
#[derive(Debug)]
pub(in crate::session) struct LaterStages {
    pub(in crate::session) steps: Vec<(StageStep, Option<Arc<SessionCore>>)>,
    pub(in crate::session) tail_inputs: Vec<StageInput>,
    pub(in crate::session) needed: Vec<usize>,
    pub(in crate::session) tail: Arc<SessionCore>,
}

impl LaterStages {
    pub(in crate::session) fn new(core: &SessionCore, split: SplitGraph) -> Self {
        let body = |step: &StageStep| match step.op.control() {
            Some(Control::Loop(l)) => Some(core.body(&l.body)),
            Some(Control::Scan(s)) => Some(core.body(&s.body)),
            Some(Control::If { .. }) | None => None,
        };
        LaterStages {
            steps: split
                .steps
                .into_iter()
                .map(|step| (body(&step), step))
                .map(|(body, step)| (step, body))
                .collect(),
            tail_inputs: split.tail_inputs,
            needed: split.needed,
            tail: core.child(Arc::new(split.tail)),
        }
    }

    /// All values that the steps and the tail read.
    pub(in crate::session) fn stage_inputs(&self) -> impl Iterator<Item = StageInput> {
        let read = self.steps.iter().flat_map(|(step, _)| step.inputs.iter().flatten());
        let read = read.filter_map(|input| match input {
            StepInput::Stage(input) => Some(*input),
            StepInput::Constant(_) => None,
        });
        self.tail_inputs.iter().copied().chain(read)
    }
}
