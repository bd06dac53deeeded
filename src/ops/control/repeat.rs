//! Loop: a graph repeated, for a number of times or while a condition holds.

use std::any::Any;
use std::sync::Arc;

use super::Control;
use crate::graph::{Graph, TensorInfo};
use crate::kernel::NativeKernel;
use crate::ops::{AttrReader, OpCx, OpError, Operator};

/// Repeats a graph. Inputs of the node: the number of times, the condition, the states, what the graph
/// captures; of the graph: the iteration, the condition, the states, what it captures. Outputs of the graph:
/// the condition, the states, values that are stacked; of the node: the states, the stacks.
#[derive(Clone, Debug)]
pub struct Loop {
    /// The graph.
    pub body: Arc<Graph>,
    /// How many states are carried from one iteration to the next.
    pub states: usize,
}

pub(super) fn read(attrs: &mut AttrReader<'_>, _: i64) -> Result<Arc<dyn Operator>, OpError> {
    let body = attrs.graph("body")?;
    let inputs = attrs.input_count().saturating_sub(body.captured());
    let states = inputs.saturating_sub(2);
    let count = |what, found, expected: String| Err(OpError::Count { what, found, expected });
    if inputs < 2 {
        return count("inputs", inputs, "at least 2".to_owned());
    }
    if body.inputs().len() != 2 + states + body.captured() {
        let found = body.inputs().len() - body.captured();
        return count("inputs of its body", found, format!("{}", states + 2));
    }
    if body.outputs().len() < 1 + states {
        return count("outputs of its body", body.outputs().len(), format!("at least {}", states + 1));
    }
    Ok(Arc::new(Loop { body: Arc::new(body.clone()), states }))
}

impl Operator for Loop {
    fn name(&self) -> &'static str {
        "Loop"
    }

    /// The sizes of the results depend on the run.
    fn infer(&self, _: &OpCx) -> Result<Vec<TensorInfo>, OpError> {
        Err(OpError::NeedsValue { input: 0 })
    }

    fn cpu(&self, _: &OpCx) -> Result<NativeKernel, OpError> {
        Err(OpError::unsupported("Loop has no kernel of its own"))
    }

    fn control(&self) -> Option<Control<'_>> {
        Some(Control::Loop(self))
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}
