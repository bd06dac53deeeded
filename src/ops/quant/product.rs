//! Products of bytes, exact in 32-bit integers, by products of floats.

use super::elements::{all, low_byte};
use super::{BYTES, NUMBERS};
use crate::dtype::DType;
use crate::graph::TensorInfo;
use crate::kernel::{KernelError, NativeArgs};
use crate::ops::linalg::product::{Mat, Threads, product};
use crate::ops::real::check_len;
use crate::ops::{OpCx, OpError};
use crate::spirv::wide::wide;
use rayon::prelude::*;

/// How many products are summed in `f32`: a difference of two bytes is at most 255, and 258 times its square
/// is the last multiple below 2^24, up to which `f32` holds every integer.
const EXACT: usize = 256;

/// Where the inputs are: the operands A and B (a convolution's are the image and the weights), their scales and
/// zero points, those of the output, and a bias.
#[derive(Clone, Copy, Debug)]
pub(super) struct Places {
    pub a: usize,
    pub a_scale: Option<usize>,
    pub a_zero: usize,
    pub b: usize,
    pub b_scale: Option<usize>,
    pub b_zero: usize,
    pub y_scale: Option<usize>,
    pub y_zero: Option<usize>,
    pub bias: Option<usize>,
}

impl Places {
    /// Those of QLinearConv and QLinearMatMul where `linear`, else of ConvInteger and MatMulInteger.
    pub(super) fn of(linear: bool) -> Places {
        let given = |i: usize| linear.then_some(i);
        let (b, b_zero) = if linear { (3, 5) } else { (1, 3) };
        let [a_scale, b_scale, y_scale, y_zero, bias] = [1, 4, 6, 7, 8].map(given);
        Places { a: 0, a_scale, a_zero: 2, b, b_scale, b_zero, y_scale, y_zero, bias }
    }

    /// The output's type, after checking those of all inputs.
    ///
    /// # Errors
    /// [`OpError::DType`], [`OpError::MissingInput`].
    pub(super) fn check_types(&self, cx: &OpCx) -> Result<DType, OpError> {
        for (data, zero) in [(self.a, self.a_zero), (self.b, self.b_zero)] {
            let dtype = cx.dtype_of(data, BYTES)?;
            if cx.has(zero) || self.a_scale.is_some() {
                cx.expect_dtype(zero, dtype)?;
            }
        }
        for i in [self.a_scale, self.b_scale, self.y_scale].into_iter().flatten() {
            cx.dtype_of(i, NUMBERS)?;
        }
        if let Some(bias) = self.bias.filter(|i| cx.has(*i)) {
            cx.expect_dtype(bias, DType::I32)?;
        }
        self.y_zero.map_or(Ok(DType::I32), |zero| cx.dtype_of(zero, BYTES))
    }
}

/// Parameters of rows or columns, repeated along them.
#[derive(Clone, Debug)]
pub(super) struct Repeated(Vec<f32>);

impl Repeated {
    /// The parameter of row or column `i`.
    pub(super) fn at(&self, i: usize) -> f32 {
        self.0.get(i % self.0.len().max(1)).copied().unwrap_or_default()
    }

    /// Those of `len` rows or columns from `first` on, which begin a matrix; one where all have one.
    pub(super) fn line(&self, first: usize, len: usize) -> &[f32] {
        match self.0.len() {
            0 | 1 => &self.0,
            all => self.0.get(first % all..).and_then(|l| l.get(..len)).unwrap_or(&[]),
        }
    }
}

/// The inputs of a native function.
#[derive(Clone, Debug)]
pub(super) struct Inputs(Vec<Option<TensorInfo>>);

impl Inputs {
    pub(super) fn of(cx: &OpCx) -> Inputs {
        Inputs((0..cx.input_count()).map(|i| cx.input_opt(i).cloned()).collect())
    }

    /// How many there are, absent ones counted: the position of the output.
    pub(super) fn count(&self) -> usize {
        self.0.len()
    }

    pub(super) fn has(&self, i: usize) -> bool {
        self.get(i).is_some()
    }

    fn get(&self, i: usize) -> Option<&TensorInfo> {
        self.0.get(i).and_then(Option::as_ref)
    }

    /// The zero points of input `i`, 0 where there is none.
    pub(super) fn zeros(&self, args: &NativeArgs<'_, '_>, i: usize) -> Result<Repeated, KernelError> {
        let len = self.get(i).map_or(1, TensorInfo::elements);
        Ok(Repeated(all(args, i, self.get(i).map(|t| t.dtype), len)?))
    }

    /// The scales of input `i`, 1 where there is none.
    pub(super) fn scales(
        &self,
        args: &NativeArgs<'_, '_>,
        i: Option<usize>,
    ) -> Result<Repeated, KernelError> {
        i.map_or_else(|| Ok(Repeated(vec![1.0])), |i| self.zeros(args, i))
    }

    /// The bytes of input `i` as numbers less the zero point of each: `zero` gives those of a line of `len`
    /// elements, or one for all of them.
    pub(super) fn centered<'z>(
        &self,
        args: &NativeArgs<'_, '_>,
        i: usize,
        len: usize,
        zero: impl Fn(usize) -> &'z [f32] + Sync,
    ) -> Result<Vec<f32>, KernelError> {
        let info = self.get(i).ok_or(KernelError::Absent { index: i })?;
        let bytes = args.read::<u8>(i)?;
        check_len(i, bytes.len(), info.elements())?;
        let signed = info.dtype == DType::I8;
        let number = |v: u8| if signed { f32::from(v as i8) } else { f32::from(v) };
        let mut numbers = vec![0f32; bytes.len()];
        let len = len.max(1);
        let lines = bytes.par_chunks(len).zip(numbers.par_chunks_mut(len)).enumerate();
        lines.with_min_len((1 << 14) / len + 1).for_each(|(line, (from, to))| {
            let zeros = zero(line);
            wide(
                #[inline(always)]
                || {
                    let each = to.iter_mut().zip(from);
                    match zeros {
                        [] => each.for_each(|(y, v)| *y = number(*v)),
                        [zero] => each.for_each(|(y, v)| *y = number(*v) - zero),
                        zeros => each.zip(zeros).for_each(|((y, v), zero)| *y = number(*v) - zero),
                    }
                },
            );
        });
        Ok(numbers)
    }
}

/// `sums = a * b` of whole numbers of at most 255 in size, wrapping around beyond 32 bits; `sums` has `m` rows
/// of `n`.
///
/// # Errors
/// [`KernelError::Value`] where a slice is too short.
pub(super) fn exact_product(
    [m, n, k]: [usize; 3],
    a: Mat<'_, f32>,
    b: Mat<'_, f32>,
    part: &mut [f32],
    sums: &mut [i32],
    threads: Threads,
) -> Result<(), KernelError> {
    sums.fill(0);
    for first in (0..k).step_by(EXACT) {
        let depth = (k - first).min(EXACT);
        let a = Mat { data: a.data.get(first * a.col..).unwrap_or(&[]), ..a };
        let b = Mat { data: b.data.get(first * b.row..).unwrap_or(&[]), ..b };
        product([m, n, depth], a, b, part, n.max(1), false, threads)?;
        wide(
            #[inline(always)]
            || sums.iter_mut().zip(part.iter()).for_each(|(s, p)| *s = s.wrapping_add(*p as i32)),
        );
    }
    Ok(())
}

/// Sums as elements of `to`, by a multiplier.
#[derive(Clone, Copy, Debug)]
pub(super) struct Requantize {
    /// The output's zero point.
    pub zero: f32,
    /// Its smallest and largest value.
    pub range: [f32; 2],
}

impl Requantize {
    /// The byte of the element that stands for `sum`.
    #[inline(always)]
    fn byte(&self, sum: i32, multiplier: f32) -> u8 {
        let [low, high] = self.range;
        low_byte(((sum as f32 * multiplier).round_ties_even() + self.zero).clamp(low, high))
    }

    /// The bytes of elements that stand for `sums`, by one multiplier or one for each.
    pub(super) fn bytes(&self, sums: &[i32], multipliers: &[f32], to: &mut [u8]) {
        wide(
            #[inline(always)]
            || {
                let each = to.iter_mut().zip(sums);
                match multipliers {
                    [m] => each.for_each(|(y, sum)| *y = self.byte(*sum, *m)),
                    all => each.zip(all).for_each(|((y, sum), m)| *y = self.byte(*sum, *m)),
                }
            },
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_products_of_the_largest_numbers_are_exact() {
        let k = 1000;
        let a: Vec<f32> = (0..2 * k).map(|i| if i % 3 == 0 { -255.0 } else { 255.0 }).collect();
        let b: Vec<f32> = (0..3 * k).map(|i| 255.0 - (i % 2) as f32).collect();
        let (mut part, mut sums) = (vec![0.0; 6], vec![0; 6]);
        let (left, right) = (Mat::rows(&a, k), Mat::rows(&b, 3));
        exact_product([2, 3, k], left, right, &mut part, &mut sums, Threads::One).unwrap();
        for r in 0..2 {
            for c in 0..3 {
                let want: f64 = (0..k).map(|i| f64::from(a[r * k + i]) * f64::from(b[i * 3 + c])).sum();
                assert_eq!(f64::from(sums[r * 3 + c]), want);
            }
        }
    }
}
