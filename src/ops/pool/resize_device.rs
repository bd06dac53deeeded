//! Resize on devices: two neighbouring axes at a time, by tables.

use super::resample::outside_bits;
use super::resize::{Interpolation, Resize};
use super::table::AxisTable;
use crate::dtype::DType;
use crate::graph::Tensor;
use crate::kernel::Unit;
use crate::kernel::table::{params, spec, variants};
use crate::ops::word::index32;
use crate::ops::{Lowering, OpCx, OpError, Operand, PackKey};

/// One dispatch: the axes before, one or two that are resampled, those after.
struct Pass<'t> {
    outer: usize,
    rows: &'t AxisTable,
    cols: &'t AxisTable,
    inner: usize,
}

impl Pass<'_> {
    /// Elements of one row of the output, and how many of them an invocation computes.
    fn runs(&self, lower: &Lowering<'_>) -> (usize, usize) {
        let line = self.cols.output() * self.inner;
        // Where neighbouring invocations share no memory transactions, divisions are what costs.
        let run = if lower.device().prefers_texels { 8 } else { 1 };
        (self.outer * self.rows.output() * line.div_ceil(run), run)
    }
}

/// Emits Resize.
pub(super) fn resize(op: &Resize, cx: &OpCx, lower: &mut Lowering<'_>) -> Result<(), OpError> {
    let dtype = cx.dtype(0)?;
    let nearest = matches!(op.desc.mode, Interpolation::Nearest(_));
    if !nearest && !matches!(dtype, DType::F32 | DType::F16) {
        return Err(OpError::unsupported(format!("no device kernel for interpolation of {dtype}")));
    }
    index32(cx.input(0)?.elements())?;
    if cx.output(0)?.elements() == 0 {
        return Ok(());
    }
    let tables = op.tables(cx)?;
    let one = AxisTable { input: 1, taps: 1, index: vec![0], weight: vec![1.0] };
    let passes = passes(&tables, &one);
    if passes.is_empty() {
        let bytes = cx.input(0)?.bytes() as u64;
        if !bytes.is_multiple_of(4) {
            return Err(OpError::unsupported("no device kernel for a copy of a part of a word"));
        }
        lower.copy((Operand::Input(0), 0), (Operand::Output(0), 0), bytes);
        return Ok(());
    }
    let mut from = Operand::Input(0);
    for (i, pass) in passes.iter().enumerate() {
        let n = index32(pass.outer * pass.rows.output() * pass.cols.output() * pass.inner)?;
        let to = if i + 1 == passes.len() {
            Operand::Output(0)
        } else {
            lower.scratch((n as usize * dtype.bytes()).next_multiple_of(4))
        };
        if nearest {
            pick(op, dtype, pass, [from, to], lower)?;
        } else {
            weighted(op, dtype, pass, [from, to], lower)?;
        }
        from = to;
    }
    Ok(())
}

fn passes<'t>(tables: &'t [AxisTable], one: &'t AxisTable) -> Vec<Pass<'t>> {
    let mut sizes: Vec<usize> = tables.iter().map(|t| t.input).collect();
    let mut passes = Vec::new();
    // Innermost first, two neighbours together.
    let mut end = tables.len();
    while let Some(last) = (0..end).rev().find(|i| !tables[*i].is_identity()) {
        let pair = last.checked_sub(1).filter(|i| !tables[*i].is_identity());
        let first = pair.unwrap_or(last);
        passes.push(Pass {
            outer: sizes[..first].iter().product(),
            rows: pair.map_or(one, |i| &tables[i]),
            cols: &tables[last],
            inner: sizes[last + 1..].iter().product(),
        });
        (first..=last).for_each(|i| sizes[i] = tables[i].output());
        end = first;
    }
    passes
}

/// A table as the kernels read it, kept on the device like any constant.
pub(super) fn constant(words: Vec<i32>, lower: &mut Lowering<'_>) -> Result<Operand, OpError> {
    let tensor = Tensor::new([words.len()], &words)?;
    let bytes = tensor.info().bytes();
    let key = PackKey { layout: "table", numbers: [0; 4] };
    Ok(lower.packed(&tensor, key, bytes, |t, out| {
        out.copy_from_slice(t.bytes());
        Ok(())
    }))
}

fn pick(
    op: &Resize,
    dtype: DType,
    pass: &Pass<'_>,
    [from, to]: [Operand; 2],
    lower: &mut Lowering<'_>,
) -> Result<(), OpError> {
    let kernel = variants::ResizeNearest { t: Unit::Bytes(dtype.bytes()) }.id()?;
    let rows = constant(pass.rows.index.clone(), lower)?;
    let cols = constant(pass.cols.index.clone(), lower)?;
    let (n, run) = pass.runs(lower);
    let outside = outside_bits(dtype, op.desc.extrapolation);
    let params = params::ResizeNearest {
        n: n as u32,
        ow: pass.cols.output() as u32,
        oh: pass.rows.output() as u32,
        iw: pass.cols.input as i32,
        ih: pass.rows.input as i32,
        inner: pass.inner as u32,
        outside_low: outside as u32,
        outside_high: (outside >> 32) as u32,
    };
    lower.dispatch_1d(kernel, &[(spec::resize_nearest::RUN, run as u32)], &[from, rows, cols, to], &params, n)
}

fn weighted(
    op: &Resize,
    dtype: DType,
    pass: &Pass<'_>,
    [from, to]: [Operand; 2],
    lower: &mut Lowering<'_>,
) -> Result<(), OpError> {
    let kernel = variants::Resize { t: dtype }.id()?;
    let rows = constant(pass.rows.words(), lower)?;
    let cols = constant(pass.cols.words(), lower)?;
    let (n, run) = pass.runs(lower);
    let spec = [
        (spec::resize::ROW_TAPS, pass.rows.taps as u32),
        (spec::resize::COL_TAPS, pass.cols.taps as u32),
        (spec::resize::RUN, run as u32),
    ];
    let params = params::Resize {
        n: n as u32,
        ow: pass.cols.output() as u32,
        oh: pass.rows.output() as u32,
        iw: pass.cols.input as i32,
        ih: pass.rows.input as i32,
        inner: pass.inner as u32,
        outside: op.desc.extrapolation,
    };
    lower.dispatch_1d(kernel, &spec, &[from, rows, cols, to], &params, n)
}

#[cfg(all(test, feature = "vulkan"))]
mod tests {
    use crate::graph::Tensor;
    use crate::ops::pool::{CoordinateMode, Interpolation, NearestMode, Resize, ResizeDesc};
    use crate::ops::test_util::{tensor, tensor_of, values};
    use crate::ops::testing::Check;

    #[test]
    fn devices_compute_the_same() {
        let nearest = Interpolation::Nearest(NearestMode::RoundPreferFloor);
        let cubic = Interpolation::Cubic { a: -0.75 };
        let cases: &[(Interpolation, bool, &[usize], &[i64])] = &[
            (nearest, false, &[1, 2, 5, 7], &[1, 2, 10, 14]),
            (nearest, false, &[2, 3, 4, 5], &[3, 3, 7, 5]),
            (Interpolation::Linear, false, &[1, 2, 5, 7], &[1, 2, 11, 13]),
            (Interpolation::Linear, true, &[1, 2, 15, 17], &[1, 2, 6, 5]),
            (Interpolation::Linear, false, &[2, 3, 4, 5], &[2, 5, 4, 8]),
            (cubic, false, &[1, 2, 5, 7], &[1, 2, 9, 4]),
            (cubic, false, &[3, 4, 5], &[4, 6, 7]),
            (cubic, true, &[1, 9, 9], &[1, 4, 5]),
            (Interpolation::Linear, false, &[2, 6], &[2, 6]),
        ];
        for (mode, antialias, shape, sizes) in cases {
            let desc = ResizeDesc { mode: *mode, antialias: *antialias, ..ResizeDesc::default() };
            let op = Resize { desc };
            let inputs = [Some(tensor(shape, 1)), None, None, Some(Tensor::from_i64s(sizes))];
            Check::new(&op, &inputs).tolerance(1e-5).run();
            let n = shape.iter().product();
            let halves = tensor_of(shape, &values(n, 1), half::f16::from_f32);
            Check::new(&op, &[Some(halves), None, None, inputs[3].clone()]).tolerance(2e-3).run();
            if *mode == nearest {
                let longs: Vec<i64> = (0..n as i64).collect();
                let longs = Tensor::new(shape.to_vec(), &longs).unwrap();
                Check::new(&op, &[Some(longs), None, None, inputs[3].clone()]).run();
                let bytes: Vec<u8> = (0..n).map(|i| i as u8).collect();
                let bytes = Tensor::new(shape.to_vec(), &bytes).unwrap();
                Check::new(&op, &[Some(bytes), None, None, inputs[3].clone()]).run();
            }
        }
    }

    #[test]
    fn what_lies_outside_is_the_same() {
        for mode in [Interpolation::Nearest(NearestMode::Floor), Interpolation::Linear] {
            let desc = ResizeDesc {
                mode,
                coordinates: CoordinateMode::TfCropAndResize,
                extrapolation: 9.5,
                ..ResizeDesc::default()
            };
            let roi = Tensor::new([4], &[-0.3f32, 0.2, 0.8, 1.4]).unwrap();
            let inputs = [Some(tensor(&[6, 7], 1)), Some(roi), None, Some(Tensor::from_i64s(&[5, 9]))];
            Check::new(&Resize { desc }, &inputs).tolerance(1e-5).run();
        }
    }
}
