//! Pools and Resize that read planes through an image.

use super::pool_op::{PoolDims, PoolKind};
use super::resize::{Interpolation, Resize};
use super::resize_device::constant;
use super::table::AxisTable;
use crate::backend::DeviceInfo;
use crate::kernel::KernelId;
use crate::kernel::table::{params, spec, variants};
use crate::memory::image::{Filter, ImageDesc};
use crate::ops::image::is_planes;
use crate::ops::window::AxisNumbers;
use crate::ops::word::index32;
use crate::ops::{Lowering, OpCx, OpError, Operand, WindowAxis};

fn pool_kernel(cx: &OpCx) -> Result<KernelId, OpError> {
    Ok(variants::PoolImage { t: cx.dtype(0)? }.id()?)
}

fn resize_kernel(cx: &OpCx) -> Result<KernelId, OpError> {
    Ok(variants::ResizeImage { t: cx.dtype(0)? }.id()?)
}

/// Whether input 0 lies in `image` as planes that `kernel` reads on `device`.
fn reads(cx: &OpCx, image: &ImageDesc, device: &DeviceInfo, kernel: Result<KernelId, OpError>) -> bool {
    let Ok(kernel) = kernel else { return false };
    let sampled = device.images.as_ref().is_some_and(|rules| rules.sampled.contains(image.texel));
    let runs = device.native || device.features.contains(kernel.info().requires);
    sampled && runs && cx.input(0).is_ok_and(|info| is_planes(info, image))
}

/// Whether a pool reads its input through `image`.
pub(super) fn pool_reads(
    cx: &OpCx,
    dims: &PoolDims,
    kind: PoolKind,
    image: &ImageDesc,
    device: &DeviceInfo,
) -> bool {
    let flat = dims.axes[0] == WindowAxis::UNIT && cx.output_count() == 1;
    let simple = !matches!(kind, PoolKind::Lp { .. });
    flat && simple && reads(cx, image, device, pool_kernel(cx))
}

/// Emits MaxPool or AveragePool over two dimensions.
pub(super) fn pool(
    cx: &OpCx,
    dims: &PoolDims,
    kind: PoolKind,
    lower: &mut Lowering<'_>,
) -> Result<(), OpError> {
    let n = index32(dims.planes * dims.out_plane())?;
    if n == 0 {
        return Ok(());
    }
    let kernel = pool_kernel(cx)?;
    let spec = [
        (spec::pool_image::MEAN, u32::from(matches!(kind, PoolKind::Average { .. }))),
        (spec::pool_image::INCLUDE_PAD, u32::from(kind == PoolKind::Average { include_pad: true })),
    ];
    let [_, h, w] = dims.axes;
    let numbers = AxisNumbers::new([h, w])?;
    let params =
        params::PoolImage { n, output: numbers.into(), window: numbers.into(), ends: numbers.into() };
    let args = [Operand::Image(0, Filter::Nearest), Operand::Output(0)];
    lower.dispatch_1d(kernel, &spec, &args, &params, n as usize)
}

/// Whether a Resize reads its input through `image`: planes whose rows and columns alone are resampled.
pub(super) fn resize_reads(op: &Resize, cx: &OpCx, image: &ImageDesc, device: &DeviceInfo) -> bool {
    let Ok(tables) = op.tables(cx) else { return false };
    let Some((outer, _)) = tables.split_last_chunk::<2>() else { return false };
    outer.iter().all(AxisTable::is_identity) && reads(cx, image, device, resize_kernel(cx))
}

/// Emits Resize of the last two axes.
pub(super) fn resize(op: &Resize, cx: &OpCx, lower: &mut Lowering<'_>) -> Result<(), OpError> {
    let n = index32(cx.output(0)?.elements())?;
    if n == 0 {
        return Ok(());
    }
    let tables = op.tables(cx)?;
    let Some((_, [rows, cols])) = tables.split_last_chunk::<2>() else {
        return Err(OpError::unsupported("an image of a tensor with fewer than two dimensions"));
    };
    if filtered(op, cx, [rows, cols], n, lower)? {
        return Ok(());
    }
    let kernel = resize_kernel(cx)?;
    let spec =
        [(spec::resize_image::ROW_TAPS, rows.taps as u32), (spec::resize_image::COL_TAPS, cols.taps as u32)];
    let params = params::ResizeImage {
        n,
        ow: cols.output() as u32,
        oh: rows.output() as u32,
        ih: rows.input as i32,
        outside: op.desc.extrapolation,
    };
    let (rows, cols) = (constant(rows.words(), lower)?, constant(cols.words(), lower)?);
    let args = [Operand::Image(0, Filter::Nearest), rows, cols, Operand::Output(0)];
    lower.dispatch_1d(kernel, &spec, &args, &params, n as usize)
}

/// Emits Resize by the hardware's filter, where that computes the same or the caller does not mind.
fn filtered(
    op: &Resize,
    cx: &OpCx,
    tables: [&AxisTable; 2],
    n: u32,
    lower: &mut Lowering<'_>,
) -> Result<bool, OpError> {
    let (Some(image), Some(rules)) = (cx.image(0), lower.device().images.as_ref()) else { return Ok(false) };
    if op.desc.mode != Interpolation::Linear || !rules.filtered.contains(image.texel) {
        return Ok(false);
    }
    let bits = if lower.coarse_filter() { None } else { Some(rules.filter_bits) };
    let [Some(rows), Some(cols)] = tables.map(|table| places(table, bits)) else { return Ok(false) };
    let Ok(kernel) = (variants::ResizeFiltered { t: cx.dtype(0)? }).id() else { return Ok(false) };
    let [ih, oh, ow] = [tables[0].input, tables[0].output(), tables[1].output()].map(|n| n as u32);
    let params = params::ResizeFiltered { n, ow, oh, ih };
    let floats = |v: Vec<f32>| v.into_iter().map(|v| v.to_bits() as i32).collect::<Vec<_>>();
    let (rows, cols) = (constant(floats(rows), lower)?, constant(floats(cols), lower)?);
    let args = [Operand::Image(0, Filter::Linear), rows, cols, Operand::Output(0)];
    lower.dispatch_1d(kernel, &[], &args, &params, n as usize)?;
    Ok(true)
}

/// Where between the texels of an axis each element of the output lies, in texels; `None` where it is not
/// between two neighbours, or not at one of 2^`bits` places between them.
fn places(table: &AxisTable, bits: Option<u32>) -> Option<Vec<f32>> {
    if table.taps != 2 {
        return None;
    }
    let taps = table.index.chunks_exact(2).zip(table.weight.chunks_exact(2));
    taps.map(|(index, weight)| {
        let (&[a, b], &[wa, wb]) = (index, weight) else { return None };
        let sum = wa + wb;
        if a < 0 || b - a > 1 || (sum - 1.0).abs() > 1e-9 {
            return None;
        }
        let part = if a == b { 0.0 } else { wb };
        let exact = bits.is_none_or(|bits| (part * f64::from(bits.min(31)).exp2()).fract() == 0.0);
        // The centre of texel a, and so far towards the next.
        exact.then_some((f64::from(a) + 0.5 + part) as f32)
    })
    .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::pool::resize::CoordinateMode;
    use crate::ops::pool::table::AxisDesc;

    fn table(input: usize, output: usize) -> AxisTable {
        AxisTable::new(&AxisDesc {
            input,
            output,
            scale: output as f64 / input as f64,
            roi: [0.0, 1.0],
            coordinates: CoordinateMode::HalfPixel,
            mode: Interpolation::Linear,
            antialias: false,
            exclude_outside: false,
        })
    }

    #[test]
    fn the_hardware_filters_where_its_weights_are_exact() {
        // Half a texel out at both ends, then quarters.
        assert_eq!(places(&table(2, 4), Some(8)), Some(vec![0.5, 0.75, 1.25, 1.5]));
        assert!(places(&table(5, 80), Some(8)).is_some());
        // 1/512 of a texel.
        assert_eq!(places(&table(2, 512), Some(8)), None);
        // Thirds are no multiples of 2^-8, unless the caller does not mind.
        assert_eq!(places(&table(4, 6), Some(8)), None);
        assert!(places(&table(4, 6), None).is_some_and(|p| p.iter().all(|p| (0.5..=3.5).contains(p))));
    }
}
