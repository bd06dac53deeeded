//! com.microsoft's FusedConv: a convolution with its activation. The loader takes one with a summand apart.

use std::sync::Arc;

use super::conv_op;
use crate::ops::{Activation, AttrReader, OpError, Operator};

pub(super) fn read(attrs: &mut AttrReader<'_>, _opset: i64) -> Result<Arc<dyn Operator>, OpError> {
    if attrs.input_count() > 3 {
        return Err(OpError::unsupported("FusedConv with a summand"));
    }
    // The opset of the fused form says nothing of Conv's own, whose newest it is.
    let conv = conv_op::read(attrs, i64::MAX)?;
    let given = attrs.floats_opt("activation_params")?.unwrap_or_default();
    let activation =
        Activation::named(attrs.str("activation", "")?, [given.first().copied(), given.get(1).copied()])?;
    Ok(conv.with_activation(&activation).unwrap_or(conv))
}
