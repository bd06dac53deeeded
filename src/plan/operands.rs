//! Sizes of what a lowered operator binds.

use crate::backend::DeviceInfo;
use crate::graph::TensorInfo;
use crate::ops::{Lowered, OpCx, OpError, Operand, Step};

/// Every range that a dispatch binds must fit the device's longest argument.
pub(super) fn check_limits(lowered: &Lowered, cx: &OpCx, info: &DeviceInfo) -> Result<(), OpError> {
    let limit = info.limits.max_argument_bytes;
    for step in &lowered.steps {
        let Step::Dispatch { args, .. } = step else { continue };
        for arg in args {
            let bytes = operand_bytes(*arg, lowered, cx);
            if bytes > limit {
                return Err(OpError::unsupported(format!(
                    "a tensor of {bytes} bytes is above the device's longest kernel argument of {limit}"
                )));
            }
        }
    }
    Ok(())
}

pub(super) fn operand_bytes(operand: Operand, lowered: &Lowered, cx: &OpCx) -> u64 {
    let bytes = match operand {
        Operand::Input(i) | Operand::Image(i, _) => cx.input_opt(i).map_or(0, TensorInfo::bytes),
        Operand::Output(i) | Operand::ImageOutput(i) => cx.outputs().get(i).map_or(0, TensorInfo::bytes),
        Operand::Scratch(i) => lowered.scratch.get(i).copied().unwrap_or(0),
        Operand::Packed(i) => lowered.packed.get(i).map_or(0, |p| p.bytes),
        Operand::Unused => 0,
    };
    bytes as u64
}
