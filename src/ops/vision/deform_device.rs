//! DeformConv on devices: columns of moved taps, then matrix products.

use super::deform_conv::DeformConv;
use crate::kernel::table::{params, spec, variants};
use crate::ops::linalg::device::{Product, Source};
use crate::ops::window::AxisNumbers;
use crate::ops::word::index32;
use crate::ops::{Lowering, OpCx, OpError, Operand};

/// Channels that an invocation unfolds at one place.
const CHANNELS: usize = 8;

/// Emits DeformConv.
pub(super) fn deform(op: &DeformConv, cx: &OpCx, lower: &mut Lowering<'_>) -> Result<(), OpError> {
    let dtype = cx.dtype(0)?;
    let columns = variants::DeformColumns { t: dtype }.id()?;
    let add_bias = variants::AddBias { t: dtype }.id()?;
    let (d, shape) = op.dims(cx)?;
    index32(cx.input(0)?.elements())?;
    index32(cx.input(2)?.elements())?;
    if index32(shape.elements())? == 0 {
        return Ok(());
    }
    let (plane, taps, depth) = (d.plane(), d.taps(), d.depth());
    let elements = (d.batch * d.channels * taps).saturating_mul(plane);
    index32(elements)?;
    let bytes = elements * dtype.bytes();
    let limit = lower.device().limits.max_argument_bytes;
    if bytes as u64 > limit {
        return Err(OpError::unsupported(format!("{bytes} bytes of columns on a device that takes {limit}")));
    }
    let scratch = lower.scratch(bytes.next_multiple_of(4));
    let own = d.channels / d.offset_groups;
    let n = d.batch * d.offset_groups * own.div_ceil(CHANNELS) * taps * plane;
    let numbers = AxisNumbers::new(d.axes)?;
    let params = params::DeformColumns {
        n: index32(n)?,
        taps: taps as u32,
        offset_groups: d.offset_groups as u32,
        channels: own as u32,
        window: numbers.into(),
        output: numbers.into(),
    };
    let factors = if cx.has(4) { Operand::Input(4) } else { Operand::Unused };
    let spec = [
        (spec::deform_columns::FACTORS, u32::from(cx.has(4))),
        (spec::deform_columns::CHANNELS, CHANNELS as u32),
    ];
    let args = [Operand::Input(0), Operand::Input(2), factors, scratch];
    lower.dispatch_1d(columns, &spec, &args, &params, n)?;

    let pairs = (0..d.batch * d.groups).map(|i| (i % d.groups, i)).collect();
    // One product after the other reads the bias from its start: only of a single group that is right.
    let within = cx.has(3) && d.groups == 1;
    let product = Product {
        c: within.then_some((Operand::Input(3), [1, 0])),
        ..Product::new(
            [d.oc, plane, depth],
            pairs,
            [
                Source::input(cx, 1, d.oc, depth, false)?,
                Source { operand: scratch, value: None, matrices: d.batch * d.groups, row: plane, col: 1 },
            ],
            dtype,
            Operand::Output(0),
        )
    };
    product.lower(lower)?;
    if cx.has(3) && !within {
        let n = index32(shape.elements())?;
        let params = params::AddBias { n, plane: plane as u32, channels: (d.groups * d.oc) as u32 };
        lower.dispatch_1d(add_bias, &[], &[Operand::Input(3), Operand::Output(0)], &params, n as usize)?;
    }
    Ok(())
}
