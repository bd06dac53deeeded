//! Pools on devices.

use super::pool_op::{PoolDims, PoolKind};
use crate::dtype::DType;
use crate::kernel::codes::pool_kind::Kind;
use crate::kernel::table::{params, spec, variants};
use crate::ops::window::AxisNumbers;
use crate::ops::word::index32;
use crate::ops::{Lowering, OpCx, OpError, Operand, WindowAxis};

/// The largest number of input elements of one row that a kernel keeps in registers.
const MAX_SPAN: usize = 40;

/// The number of a kind in kernels, and the power of a norm.
fn kind_code(kind: PoolKind) -> (u32, f32) {
    let (kind, power) = match kind {
        PoolKind::Max { .. } => (Kind::Max, 0.0),
        PoolKind::Average { .. } => (Kind::Mean, 0.0),
        PoolKind::Lp { p: 1 } => (Kind::L1, 1.0),
        PoolKind::Lp { p: 2 } => (Kind::L2, 2.0),
        PoolKind::Lp { p } => (Kind::Lp, p as f32),
    };
    (kind as u32, power)
}

/// Emits MaxPool, AveragePool or LpPool.
pub(super) fn pool(
    cx: &OpCx,
    dims: &PoolDims,
    kind: PoolKind,
    lower: &mut Lowering<'_>,
) -> Result<(), OpError> {
    let n = index32(dims.planes * dims.out_plane())?;
    index32(dims.planes * dims.in_plane())?;
    if n == 0 {
        return Ok(());
    }
    lower.iterations(dims.axes.iter().map(|a| a.kernel).product())?;
    let dtype = cx.dtype(0)?;
    let places = cx.outputs().len() == 2;
    if !places && rows(dims, kind, dtype, lower)? {
        return Ok(());
    }
    let kernel = variants::Pool { t: dtype, places }.id()?;
    if !dtype.is_float() && !matches!(kind, PoolKind::Max { .. }) {
        return Err(OpError::unsupported(format!("no device kernel for averages of {dtype}")));
    }
    let (code, power) = kind_code(kind);
    let spec = [
        (spec::pool::KIND, code),
        (spec::pool::INCLUDE_PAD, u32::from(kind == PoolKind::Average { include_pad: true })),
        (spec::pool::COLUMN_MAJOR, u32::from(kind == PoolKind::Max { column_major: true })),
    ];
    let numbers = AxisNumbers::new(dims.axes)?;
    let params =
        params::Pool { n, output: numbers.into(), window: numbers.into(), ends: numbers.into(), power };
    let args = [Operand::Input(0), Operand::Output(0), Operand::Output(1)];
    lower.dispatch_1d(kernel, &spec, &args[..if places { 3 } else { 2 }], &params, n as usize)
}

/// Emits a pool that reads rows of whole texels, where the device gains by that and the window allows it.
fn rows(dims: &PoolDims, kind: PoolKind, dtype: DType, lower: &mut Lowering<'_>) -> Result<bool, OpError> {
    const PX: usize = 8;
    let [d, h, w] = dims.axes;
    let texels = (dims.planes * dims.in_plane()).div_ceil(4);
    let device = lower.device();
    let span = (PX - 1) * w.stride + (w.kernel - 1).saturating_mul(w.dilation) + 1;
    let fits = device.prefers_texels && texels as u64 <= device.limits.max_texels;
    if !fits
        || d != WindowAxis::UNIT
        || span > MAX_SPAN
        || matches!(kind, PoolKind::Lp { .. })
        || w.kernel > 9
    {
        return Ok(false);
    }
    let kernel = variants::PoolRow { t: dtype, out4: w.output.is_multiple_of(4) }.id().ok();
    let Some(kernel) = kernel.filter(|kernel| lower.can_run(*kernel)) else { return Ok(false) };
    let shift = if w.input.is_multiple_of(4) { (-w.pads[0]).rem_euclid(4) as u32 } else { 4 };
    let spec = [
        (spec::pool_row::PX, PX as u32),
        (spec::pool_row::KW, w.kernel as u32),
        (spec::pool_row::SX, w.stride as u32),
        (spec::pool_row::DX, w.dilation as u32),
        (spec::pool_row::SHIFT, shift),
        (spec::pool_row::MEAN, u32::from(matches!(kind, PoolKind::Average { .. }))),
        (spec::pool_row::INCLUDE_PAD, u32::from(kind == PoolKind::Average { include_pad: true })),
    ];
    let n = w.output.div_ceil(PX) * h.output * dims.planes;
    let numbers = AxisNumbers::new([h, w])?;
    let params = params::PoolRow {
        n: n as u32,
        output: numbers.into(),
        window: numbers.into(),
        ends: numbers.into(),
        last: texels as i32 - 1,
    };
    lower.dispatch_1d(kernel, &spec, &[Operand::Input(0), Operand::Output(0)], &params, n)?;
    Ok(true)
}

/// Emits a pool over whole channels.
pub(super) fn global(
    cx: &OpCx,
    (channels, plane): (usize, usize),
    kind: PoolKind,
    lower: &mut Lowering<'_>,
) -> Result<(), OpError> {
    index32(channels * plane)?;
    let grouped = lower.grouped(plane);
    lower.row_iterations(plane, grouped)?;
    let kernel = variants::GlobalPool { t: cx.dtype(0)?, grouped }.id()?;
    let (code, power) = kind_code(kind);
    let params = params::GlobalPool { channels: channels as u32, plane: plane as u32, power };
    let args = [Operand::Input(0), Operand::Output(0)];
    lower.dispatch_rows(kernel, &[(spec::global_pool::KIND, code)], &args, &params, channels, grouped)
}

#[cfg(all(test, feature = "vulkan"))]
mod tests {
    use crate::graph::Tensor;
    use crate::ops::pool::{GlobalPool, Pool, PoolKind};
    use crate::ops::test_util::{tensor, tensor_of, values};
    use crate::ops::testing::{Check, as_is, no_texels};
    use crate::ops::{AutoPad, WindowAttrs};

    fn window(kernel: &[i64], strides: &[i64], pads: &[i64], ceil_mode: bool) -> WindowAttrs {
        let list = |l: &[i64]| l.to_vec();
        let (kernel, strides, pads) = (list(kernel), list(strides), list(pads));
        WindowAttrs { kernel, strides, pads, ceil_mode, ..WindowAttrs::default() }
    }

    #[test]
    fn devices_compute_the_same() {
        let max = PoolKind::Max { column_major: false };
        let mean = PoolKind::Average { include_pad: false };
        let padded = PoolKind::Average { include_pad: true };
        let same = WindowAttrs { auto_pad: AutoPad::SameLower, ..window(&[2, 4], &[1, 2], &[], false) };
        let dilated = WindowAttrs { dilations: vec![2, 3], ..window(&[2, 2], &[1, 1], &[], false) };
        let cases: &[(PoolKind, WindowAttrs, &[usize])] = &[
            (max, window(&[3, 3], &[2, 2], &[1, 1, 1, 1], false), &[2, 3, 12, 16]),
            (max, window(&[3, 3], &[2, 2], &[0, 0, 0, 0], true), &[1, 2, 9, 13]),
            (max, dilated, &[1, 2, 7, 11]),
            (mean, window(&[3, 2], &[1, 1], &[1, 0, 1, 1], false), &[1, 3, 5, 8]),
            (padded, window(&[3, 3], &[2, 2], &[1, 1, 1, 1], true), &[1, 2, 8, 10]),
            (mean, same, &[1, 1, 5, 7]),
            (max, window(&[3], &[2], &[1, 1], false), &[1, 2, 9]),
            (padded, window(&[2, 3, 2], &[1, 2, 1], &[0, 1, 0, 1, 1, 0], false), &[1, 2, 3, 5, 4]),
            (PoolKind::Lp { p: 1 }, window(&[2, 2], &[1, 1], &[], false), &[1, 2, 5, 5]),
            (PoolKind::Lp { p: 2 }, window(&[2, 2], &[1, 1], &[], false), &[1, 2, 5, 5]),
            (PoolKind::Lp { p: 3 }, window(&[3, 3], &[2, 2], &[1, 1, 1, 1], false), &[1, 2, 5, 5]),
        ];
        for (kind, window, shape) in cases {
            let op = Pool { kind: *kind, window: window.clone() };
            for change in [as_is, no_texels] {
                Check::new(&op, &[Some(tensor(shape, 1))]).pretend(change).tolerance(1e-5).run();
                let halves = tensor_of(shape, &values(shape.iter().product(), 1), half::f16::from_f32);
                Check::new(&op, &[Some(halves)]).pretend(change).tolerance(2e-3).run();
            }
        }
    }

    #[test]
    fn places_and_small_types_are_the_same() {
        for column_major in [false, true] {
            let window = window(&[2, 3], &[2, 1], &[1, 1, 0, 0], false);
            let op = Pool { kind: PoolKind::Max { column_major }, window };
            let x = tensor(&[2, 2, 5, 6], 1);
            let halves = tensor_of(&[2, 2, 5, 6], &values(120, 1), half::f16::from_f32);
            Check::new(&op, &[Some(x)]).outputs(2).run();
            Check::new(&op, &[Some(halves.clone())]).outputs(2).run();
            Check::new(&op, &[Some(halves)]).run();
            let bytes: Vec<i8> = values(120, 2).iter().map(|v| (v * 127.0) as i8).collect();
            Check::new(&op, &[Some(Tensor::new([2, 2, 5, 6], &bytes).unwrap())]).run();
            let bytes: Vec<u8> = values(120, 2).iter().map(|v| (v.abs() * 255.0) as u8).collect();
            Check::new(&op, &[Some(Tensor::new([2, 2, 5, 6], &bytes).unwrap())]).run();
        }
    }

    #[test]
    fn global_pools_are_the_same() {
        let kinds = [
            PoolKind::Max { column_major: false },
            PoolKind::Average { include_pad: false },
            PoolKind::Lp { p: 1 },
            PoolKind::Lp { p: 2 },
            PoolKind::Lp { p: 3 },
        ];
        for kind in kinds {
            for shape in [&[2, 5, 7, 9][..], &[1, 3, 1000]] {
                for change in [as_is, no_texels] {
                    let x = [Some(tensor(shape, 1))];
                    Check::new(&GlobalPool { kind }, &x).pretend(change).tolerance(1e-5).run();
                }
            }
        }
    }
}
