//! Products of bytes, exact in 32-bit integers, by products of floats.

use crate::dtype::DType;
use crate::kernel::{KernelError, NativeArgs};
use crate::ops::linalg::product::{Mat, Threads, product};
use crate::ops::real::check_len;

/// How many products are summed in `f32`: a difference of two bytes is at most 255, and 258 times its square
/// is the last multiple below 2^24, up to which `f32` holds every integer.
const EXACT: usize = 256;

/// A column of parameters of rows or columns, repeated along them.
#[derive(Clone, Debug)]
pub(super) struct Repeated<T>(pub Vec<T>);

impl<T: Copy + Default> Repeated<T> {
    /// The parameter of row or column `i`.
    pub(super) fn at(&self, i: usize) -> T {
        self.0.get(i % self.0.len().max(1)).copied().unwrap_or_default()
    }
}

/// The zero points of argument `index`, 0 where there is none.
pub(super) fn zero_points(
    args: &NativeArgs<'_, '_>,
    index: usize,
    dtype: Option<DType>,
    len: usize,
) -> Result<Repeated<f32>, KernelError> {
    Ok(Repeated(super::elements::all(args, index, dtype, len)?))
}

/// The bytes of argument `index`, which holds `len` of `dtype`, as numbers less the zero point of each.
pub(super) fn centered(
    args: &NativeArgs<'_, '_>,
    index: usize,
    dtype: DType,
    len: usize,
    zero: impl Fn(usize) -> f32,
) -> Result<Vec<f32>, KernelError> {
    let bytes = args.read::<u8>(index)?;
    check_len(index, bytes.len(), len)?;
    let signed = dtype == DType::I8;
    let number = |v: u8| if signed { f32::from(v as i8) } else { f32::from(v) };
    Ok(bytes.iter().enumerate().map(|(i, v)| number(*v) - zero(i)).collect())
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
        sums.iter_mut().zip(part.iter()).for_each(|(s, p)| *s = s.wrapping_add(*p as i32));
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
    pub(super) fn byte(&self, sum: i32, multiplier: f32) -> u8 {
        let [low, high] = self.range;
        ((sum as f32 * multiplier).round_ties_even() + self.zero).clamp(low, high) as i32 as u8
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
