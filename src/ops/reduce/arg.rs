//! ArgMax and ArgMin: positions of extreme elements along an axis.

use std::sync::Arc;

use half::{bf16, f16};

use crate::dtype::DType;
use crate::graph::TensorInfo;
use crate::kernel::table::{params, spec, variants};
use crate::kernel::{KernelError, NativeArgs, NativeKernel};
use crate::ops::word::word;
use crate::ops::{AttrReader, Lowering, OpCx, OpError, Operand, Operator, par};
use crate::shape::Shape;
use crate::simd::wide;

/// Lines that are searched side by side.
const SIDE: usize = 256;
/// Neighbouring elements of a line that are compared with those after them at once.
const TOGETHER: usize = 16;

/// Which element is looked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pick {
    /// The largest.
    Largest,
    /// The smallest.
    Smallest,
}

/// Positions, as int64, of extreme elements along an axis.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ArgReduce {
    /// Which element.
    pub pick: Pick,
    /// The axis, negative ones counted from the end.
    pub axis: i64,
    /// Whether the axis stays, with size 1.
    pub keep_dims: bool,
    /// Whether the last of equal elements counts, rather than the first.
    pub last: bool,
}

pub(super) fn read(attrs: &mut AttrReader<'_>, pick: Pick) -> Result<Arc<dyn Operator>, OpError> {
    Ok(Arc::new(ArgReduce {
        pick,
        axis: attrs.int("axis", 0)?,
        keep_dims: attrs.flag("keepdims", true)?,
        last: attrs.flag("select_last_index", false)?,
    }))
}

/// Only a NaN is not equal to itself.
#[inline(always)]
fn is_nan<T: PartialOrd>(v: T) -> bool {
    v.partial_cmp(&v).is_none()
}

/// The element that is `better` than all others, or a NaN where there is one; `None` of nothing.
#[inline(always)]
fn extremum<T: Copy + PartialOrd>(row: &[T], better: impl Fn(T, T) -> bool) -> Option<T> {
    let (blocks, rest) = row.as_chunks::<TOGETHER>();
    let mut tops = [*row.first()?; TOGETHER];
    for block in blocks {
        for l in 0..TOGETHER {
            let v = block[l];
            tops[l] = if better(v, tops[l]) || is_nan(v) { v } else { tops[l] };
        }
    }
    tops.into_iter()
        .chain(rest.iter().copied())
        .reduce(|top, v| if better(v, top) || is_nan(v) { v } else { top })
}

/// The first place of what `is` one that is looked for, or the last.
#[inline(always)]
fn place_of<T: Copy>(row: &[T], last: bool, is: impl Fn(T) -> bool) -> usize {
    /// Elements that are looked at before any answer is read.
    const LOOKED_AT: usize = 64;
    let any = |some: &[T]| {
        let mut any = false;
        for v in some {
            any |= is(*v);
        }
        any
    };
    if last {
        let mut end = row.len();
        for some in row.rchunks(LOOKED_AT) {
            let first = end - some.len();
            if any(some) {
                return first + some.iter().rposition(|v| is(*v)).unwrap_or(0);
            }
            end = first;
        }
    } else {
        for (i, some) in row.chunks(LOOKED_AT).enumerate() {
            if any(some) {
                return i * LOOKED_AT + some.iter().position(|v| is(*v)).unwrap_or(0);
            }
        }
    }
    0
}

/// Where the first of the largest elements is; the first NaN where there is one.
#[inline(always)]
pub(crate) fn place_of_largest<T: Copy + PartialOrd>(row: &[T]) -> usize {
    ArgReduce { pick: Pick::Largest, axis: 0, keep_dims: false, last: false }.place(row)
}

impl ArgReduce {
    /// `[outer, size, inner]` of the input.
    fn sizes(&self, cx: &OpCx) -> Result<[usize; 3], OpError> {
        let x = cx.shape(0)?;
        let axis = x.axis(self.axis)?;
        Ok([x[..axis].iter().product(), x[axis], x[axis + 1..].iter().product()])
    }

    /// Where the extremum of neighbouring elements is. First the extremum, then its place: both loops have vectors.
    #[inline(always)]
    fn place<T: Copy + PartialOrd>(self, row: &[T]) -> usize {
        let top = if self.pick == Pick::Largest {
            extremum(
                row,
                #[inline(always)]
                |v, best| v > best,
            )
        } else {
            extremum(
                row,
                #[inline(always)]
                |v, best| v < best,
            )
        };
        match top {
            Some(top) if is_nan(top) => place_of(row, self.last, is_nan),
            Some(top) => place_of(
                row,
                self.last,
                #[inline(always)]
                |v| v == top,
            ),
            None => 0,
        }
    }

    fn run<T: bytemuck::Pod + PartialOrd + Send + Sync>(
        self,
        args: &mut NativeArgs<'_, '_>,
        [_, size, inner]: [usize; 3],
    ) -> Result<(), KernelError> {
        let x = args.read::<T>(0)?;
        let y = args.take_write::<i64>(1)?;
        if inner == 0 || size == 0 {
            return Ok(());
        }
        // Whether an element takes the place of the best one before it.
        let wins = |v: T, b: T| {
            let better = if self.pick == Pick::Largest { v > b } else { v < b };
            // A NaN wins, as in NumPy.
            if is_nan(v) { self.last || !is_nan(b) } else { better || (self.last && v == b) }
        };
        let line = |i: usize| {
            let row = x.get(i * size..(i + 1) * size).unwrap_or(&[]);
            wide(
                #[inline(always)]
                || self.place(row),
            ) as i64
        };
        // Lines side by side, whose elements are neighbours.
        let side = |(i, out): (usize, &mut [i64])| {
            let (per_block, most) = (inner.div_ceil(SIDE), SIDE.min(inner));
            let first = i / per_block * size * inner + i % per_block * most;
            let Some(mut best) = x.get(first..first + out.len()).map(<[T]>::to_vec) else { return };
            out.fill(0);
            for k in 1..size {
                let Some(row) = x.get(first + k * inner..) else { return };
                wide(
                    #[inline(always)]
                    || {
                        for ((out, best), v) in out.iter_mut().zip(&mut best).zip(row) {
                            let win = wins(*v, *best);
                            *best = if win { *v } else { *best };
                            *out = if win { k as i64 } else { *out };
                        }
                    },
                );
            }
        };
        let long = x.len() > 1 << 15;
        match inner {
            1 => par::each(y, x.len(), line),
            _ => {
                let parts = y.chunks_mut(inner).flat_map(|block| block.chunks_mut(SIDE)).enumerate();
                if long {
                    par::share(parts.collect::<Vec<_>>().into_iter(), side)
                } else {
                    parts.for_each(side)
                }
            }
        }
        Ok(())
    }
}

impl Operator for ArgReduce {
    fn name(&self) -> &'static str {
        match self.pick {
            Pick::Largest => "ArgMax",
            Pick::Smallest => "ArgMin",
        }
    }

    fn infer(&self, cx: &OpCx) -> Result<Vec<TensorInfo>, OpError> {
        cx.expect_counts(1..=1, 1..=1)?;
        cx.dtype_of(0, super::ARG_TYPES)?;
        let x = cx.shape(0)?;
        let axis = x.axis(self.axis)?;
        if x[axis] == 0 && x.iter().enumerate().all(|(d, &n)| d == axis || n > 0) {
            return Err(cx.shape_error(0, "at least one element along the axis"));
        }
        let mut dims = x.to_vec();
        if self.keep_dims {
            dims[axis] = 1;
        } else {
            dims.remove(axis);
        }
        Ok(vec![TensorInfo::new(DType::I64, Shape::new(dims)?)])
    }

    fn cpu(&self, cx: &OpCx) -> Result<NativeKernel, OpError> {
        let (op, sizes, dtype) = (*self, self.sizes(cx)?, cx.dtype(0)?);
        Ok(NativeKernel::new(self.name(), move |args| match dtype {
            DType::F32 => op.run::<f32>(args, sizes),
            DType::F64 => op.run::<f64>(args, sizes),
            DType::F16 => op.run::<f16>(args, sizes),
            DType::BF16 => op.run::<bf16>(args, sizes),
            DType::I32 => op.run::<i32>(args, sizes),
            DType::I64 => op.run::<i64>(args, sizes),
            DType::U32 => op.run::<u32>(args, sizes),
            DType::U64 => op.run::<u64>(args, sizes),
            DType::I8 => op.run::<i8>(args, sizes),
            DType::I16 => op.run::<i16>(args, sizes),
            DType::U16 => op.run::<u16>(args, sizes),
            _ => op.run::<u8>(args, sizes),
        }))
    }

    fn gpu(&self, cx: &OpCx, lower: &mut Lowering<'_>) -> Result<(), OpError> {
        let kernel = variants::Arg { t: cx.dtype(0)? }.id()?;
        let [outer, size, inner] = self.sizes(cx)?;
        lower.iterations(size)?;
        let p = params::Arg { n: word(outer * inner)?, size: word(size)?, inner: word(inner)? };
        let constants = [
            (spec::arg::SMALLEST, u32::from(self.pick == Pick::Smallest)),
            (spec::arg::LAST, u32::from(self.last)),
        ];
        lower.dispatch_1d(kernel, &constants, &[Operand::Input(0), Operand::Output(0)], &p, outer * inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::Tensor;

    #[test]
    fn short_integers_are_searched() {
        let op = ArgReduce { pick: Pick::Largest, axis: 0, keep_dims: false, last: false };
        let at =
            |x: Tensor| crate::ops::test_util::run_cpu(&op, &[Some(x)], 1).unwrap()[0].to_i64s().unwrap()[0];
        assert_eq!(at(Tensor::new([3], &[-5i16, -1, -2]).unwrap()), 1);
        assert_eq!(at(Tensor::new([3], &[5u16, 1, 60_000]).unwrap()), 2);
    }

    #[test]
    fn of_equal_elements_or_nans_the_first_or_the_last_is_picked() {
        let nan = f32::NAN;
        let rows =
            [[1.0, 3.0, 3.0, 0.0], [nan, 5.0, nan, -1.0], [2.0, 2.0, 2.0, 2.0], [0.0, -1.0, 7.0, -1.0]];
        let x = Tensor::new([4, 4], rows.as_flattened()).unwrap();
        let cases = [
            (Pick::Largest, false, [1, 0, 0, 2]),
            (Pick::Largest, true, [2, 2, 3, 2]),
            (Pick::Smallest, false, [3, 0, 0, 1]),
            (Pick::Smallest, true, [3, 2, 3, 3]),
        ];
        for (pick, last, want) in cases {
            let op = ArgReduce { pick, axis: -1, keep_dims: false, last };
            #[cfg(feature = "vulkan")]
            let y = crate::ops::testing::check_op(&op, &[Some(x.clone())], 0.0);
            #[cfg(not(feature = "vulkan"))]
            let y = crate::ops::test_util::run_cpu(&op, &[Some(x.clone())], 1).unwrap();
            assert_eq!(y[0].to_i64s().unwrap(), want, "{pick:?} {last}");
            #[cfg(feature = "vulkan")]
            {
                let halves = rows.map(|r| r.map(f16::from_f32));
                let halves = Tensor::new([4, 4], halves.as_flattened()).unwrap();
                let y = crate::ops::testing::check_op(&op, &[Some(halves)], 0.0);
                assert_eq!(y[0].to_i64s().unwrap(), want, "{pick:?} {last} of halves");
            }
        }
    }

    /// Few numbers and NaNs, so that many are equal, in lines of any length.
    #[test]
    fn long_lines_have_the_same_winner() {
        for (len, seed) in (1..100).zip(1usize..) {
            let values: Vec<f32> = (0..len)
                .map(|i| match (i * 7919 + seed * 104_729) % 31 {
                    0 if seed % 3 == 0 => f32::NAN,
                    n => (n % 5) as f32 - 2.0,
                })
                .collect();
            for (pick, last) in
                [Pick::Largest, Pick::Smallest].into_iter().flat_map(|p| [(p, false), (p, true)])
            {
                let mut best = 0;
                for (k, v) in values.iter().enumerate().skip(1) {
                    let b = values[best];
                    let better = if pick == Pick::Largest { *v > b } else { *v < b };
                    let wins = if v.is_nan() { last || !b.is_nan() } else { better || (last && *v == b) };
                    best = if wins { k } else { best };
                }
                let op = ArgReduce { pick, axis: 0, keep_dims: false, last };
                let x = Tensor::new([len], &values).unwrap();
                let y = crate::ops::test_util::run_cpu(&op, &[Some(x)], 1).unwrap();
                assert_eq!(y[0].to_i64s().unwrap(), [best as i64], "{len} elements, {pick:?} {last}");
            }
        }
    }

    /// A driver that ends loops early would give a wrong place.
    #[cfg(feature = "vulkan")]
    #[test]
    fn lines_longer_than_a_driver_loops_are_left_to_the_host() {
        let values: Vec<f32> = (0..70_000).map(|i| i as f32).collect();
        let op = ArgReduce { pick: Pick::Largest, axis: 0, keep_dims: false, last: false };
        let x = Tensor::new([values.len()], &values).unwrap();
        let inputs = [Some(x)];
        let check = crate::ops::testing::Check::new(&op, &inputs).optional();
        assert_eq!(check.run()[0].to_i64s().unwrap(), [69_999]);
        for context in crate::ops::testing::devices() {
            let ends = context.info().most_iterations.is_some_and(|most| most < 70_000);
            let got = check.run_on(context);
            assert_eq!(matches!(got, Err(OpError::Unsupported { .. })), ends, "{}", context.info().name);
        }
    }
}
