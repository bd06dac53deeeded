//! Quantized operators on devices: which kernels, and what they are told.

use super::elements::integers;
use super::grain::Grain;
use crate::dtype::DType;
use crate::kernel::codes::dynamic_quantize::LANES;
use crate::kernel::table::{id, params, spec, variants};
use crate::ops::word::word;
use crate::ops::{Lowering, OpCx, OpError, Operand};

/// The most work-groups that look for the extremes of one tensor.
const MAX_SHARES: usize = 64;
/// Numbers that one work-group quantizes faster alone than two commands do.
const ALONE: usize = 4096;
/// Numbers that an invocation quantizes, where there are many.
const EACH: usize = 8;

/// A small integer of a type's range.
fn whole(v: f32) -> i32 {
    v as i32
}

/// Emits QuantizeLinear to `to`.
pub(super) fn quantize(cx: &OpCx, grain: &Grain, to: DType, lower: &mut Lowering<'_>) -> Result<(), OpError> {
    let zero = if cx.has(2) { Some(Operand::Input(2)) } else { None };
    let x = (cx.dtype(0)?, cx.input(0)?.elements(), Operand::Input(0));
    emit_quantize(lower, x, grain, (Operand::Input(1), zero), (to, Operand::Output(0)))
}

fn emit_quantize(
    lower: &mut Lowering<'_>,
    (from, n, x): (DType, usize, Operand),
    grain: &Grain,
    (scale, zero): (Operand, Option<Operand>),
    (to, y): (DType, Operand),
) -> Result<(), OpError> {
    let fail = || OpError::unsupported(format!("QuantizeLinear from {from} to {to} on the device"));
    let kernel = variants::Quantize { t: from, d: to }.id()?;
    let [low, high] = integers(to).ok_or_else(fail)?.map(whole);
    let along = grain.along;
    let params = params::Quantize {
        n: word(n)?,
        len: along.len.max(1) as u32,
        inner: along.inner.max(1) as u32,
        block: u32::try_from(grain.block).unwrap_or(u32::MAX),
        steps: grain.steps.map(|s| s as u32),
        low,
        high,
    };
    let constants = [(spec::quantize::ZERO, u32::from(zero.is_some()))];
    let zero = zero.unwrap_or(Operand::Unused);
    lower.dispatch_1d(kernel, &constants, &[x, scale, zero, y], &params, n)
}

/// Emits DequantizeLinear.
pub(super) fn dequantize(cx: &OpCx, grain: &Grain, lower: &mut Lowering<'_>) -> Result<(), OpError> {
    let (from, scale, to) = (cx.dtype(0)?, cx.dtype(1)?, cx.output(0)?.dtype);
    if scale != to {
        return Err(OpError::unsupported(format!("no device kernel for {to} from {from} by {scale}")));
    }
    let kernel = variants::Dequantize { s: from, t: to }.id()?;
    let n = cx.output(0)?.elements();
    let params = params::Dequantize {
        n: word(n)?,
        len: grain.along.len.max(1) as u32,
        inner: grain.along.inner.max(1) as u32,
        block: u32::try_from(grain.block).unwrap_or(u32::MAX),
        steps: grain.steps.map(|s| s as u32),
    };
    let constants = [(spec::dequantize::ZERO, u32::from(cx.has(2)))];
    let zero = if cx.has(2) { Operand::Input(2) } else { Operand::Unused };
    let args = [Operand::Input(0), Operand::Input(1), zero, Operand::Output(0)];
    lower.dispatch_1d(kernel, &constants, &args, &params, n)
}

/// Emits DynamicQuantizeLinear.
pub(super) fn dynamic(cx: &OpCx, lower: &mut Lowering<'_>) -> Result<(), OpError> {
    let elements = cx.input(0)?.elements();
    let n = word(elements)?;
    let mut output = |i: usize, bytes| {
        if i < cx.outputs().len() { Operand::Output(i) } else { lower.scratch(bytes) }
    };
    let (x, y, scale, zero) = (Operand::Input(0), Operand::Output(0), output(1, 4), output(2, 4));
    let (mut shares, mut ranges, mut groups) = (0, Operand::Unused, 1);
    if elements > ALONE {
        shares = elements.div_ceil(1024).min(MAX_SHARES);
        ranges = lower.scratch(8 * shares);
        let most = lower.device().limits.max_groups[0] as usize;
        groups = elements.div_ceil(LANES * EACH).min(most);
        lower.dispatch(id::EXTREMES, &[], &[x, ranges], &params::Extremes { n }, [shares as u32, 1, 1])?;
    }
    let params = params::DynamicQuantize { n, shares: shares as u32 };
    let args = [x, ranges, y, scale, zero];
    lower.dispatch(id::DYNAMIC_QUANTIZE_U8, &[], &args, &params, [groups as u32, 1, 1])
}
