//! If: one of two graphs.

use std::sync::Arc;

use super::Control;
use crate::graph::{Graph, TensorInfo};
use crate::kernel::NativeKernel;
use crate::ops::{AttrReader, OpCx, OpError, Operator};

/// Computes one of two graphs, by input 0.
#[derive(Clone, Debug)]
pub struct If {
    /// The graph for true.
    pub then: Arc<Graph>,
    /// The graph for false.
    pub other: Arc<Graph>,
}

pub(super) fn read(attrs: &mut AttrReader<'_>, _: i64) -> Result<Arc<dyn Operator>, OpError> {
    let (then, other) = (attrs.graph("then_branch")?, attrs.graph("else_branch")?);
    Ok(Arc::new(If { then: Arc::new(then.clone()), other: Arc::new(other.clone()) }))
}

impl Operator for If {
    fn name(&self) -> &'static str {
        "If"
    }

    fn value_inputs(&self) -> &'static [usize] {
        &[0]
    }

    /// The shapes are those of the graph that is chosen: there are none before.
    fn infer(&self, _: &OpCx) -> Result<Vec<TensorInfo>, OpError> {
        Err(OpError::NeedsValue { input: 0 })
    }

    fn cpu(&self, _: &OpCx) -> Result<NativeKernel, OpError> {
        Err(OpError::unsupported("If has no kernel of its own"))
    }

    fn control(&self) -> Option<Control<'_>> {
        Some(Control::If { then: &self.then, other: &self.other })
    }
}
