//! Sizes of what a lowered operator binds.

use crate::backend::DeviceInfo;
use crate::graph::TensorInfo;
use crate::ops::{Lowered, Native, OpCx, OpError, Operand, Operator, Step};

/// Every range that a dispatch binds must fit the device's longest argument.
pub(super) fn check_limits(lowered: &Lowered, cx: &OpCx, info: &DeviceInfo) -> Result<(), OpError> {
    let limit = info.limits.max_argument_bytes;
    for step in &lowered.steps {
        let Step::Dispatch { args, .. } = step else { continue };
        for arg in args {
            let bytes = operand_bytes(*arg, lowered, cx);
            if bytes > limit {
                return Err(above(bytes, limit));
            }
        }
    }
    Ok(())
}

/// As [`check_limits`], for a native function.
pub(super) fn check_native_limits(
    native: &Native,
    op: &dyn Operator,
    cx: &OpCx,
    info: &DeviceInfo,
) -> Result<(), OpError> {
    let limit = info.limits.max_argument_bytes;
    let by_value = op.value_inputs();
    let inputs = (0..cx.input_count()).filter(|i| !by_value.contains(i)).map(|i| match native.packed(i) {
        Some(packed) => packed.bytes,
        None => cx.input_opt(i).map_or(0, TensorInfo::bytes),
    });
    let mut operands = inputs.chain(cx.outputs().iter().map(TensorInfo::bytes));
    match operands.find(|bytes| *bytes as u64 > limit) {
        Some(bytes) => Err(above(bytes as u64, limit)),
        None => Ok(()),
    }
}

fn above(bytes: u64, limit: u64) -> OpError {
    OpError::unsupported(format!(
        "a tensor of {bytes} bytes is above the device's longest kernel argument of {limit}"
    ))
}

pub(super) fn operand_bytes(operand: Operand, lowered: &Lowered, cx: &OpCx) -> u64 {
    let bytes = match operand {
        Operand::Input(i) | Operand::Image(i, _) => cx.input_opt(i).map_or(0, TensorInfo::bytes),
        Operand::Output(i) | Operand::ImageOutput(i) => cx.outputs().get(i).map_or(0, TensorInfo::bytes),
        Operand::Scratch(i) => lowered.scratch.get(i).copied().unwrap_or(0),
        Operand::Counters => lowered.counters,
        Operand::Packed(i) => lowered.packed.get(i).map_or(0, |p| p.bytes),
        Operand::Unused => 0,
    };
    bytes as u64
}
