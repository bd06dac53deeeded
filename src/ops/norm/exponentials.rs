//! Exponentials of rows of `f32`, of which all are divided by their sum afterwards.

use pulp::{Simd, WithSimd};

use crate::expr::simd::{exp, exp_below};
use crate::simd::arch;

/// Vectors whose results do not wait for each other.
const APART: usize = 4;

/// The largest number; NaN is none.
pub(crate) fn top(x: &[f32]) -> f32 {
    struct Top<'a>(&'a [f32]);
    impl WithSimd for Top<'_> {
        type Output = f32;

        #[inline(always)]
        fn with_simd<S: Simd>(self, simd: S) -> f32 {
            let (vectors, tail) = S::as_simd_f32s(self.0);
            let mut tops = [simd.splat_f32s(f32::NEG_INFINITY); APART];
            let (groups, rest) = vectors.as_chunks::<APART>();
            for group in groups {
                for i in 0..APART {
                    // Of a NaN and a number the second is taken.
                    tops[i] = simd.max_f32s(group[i], tops[i]);
                }
            }
            for (top, x) in tops.iter_mut().zip(rest) {
                *top = simd.max_f32s(*x, *top);
            }
            let [a, b] = [simd.max_f32s(tops[0], tops[1]), simd.max_f32s(tops[2], tops[3])];
            let top = simd.reduce_max_f32s(simd.max_f32s(a, b));
            tail.iter().fold(top, |top, x| top.max(*x))
        }
    }
    arch().dispatch(Top(x))
}

/// `y` becomes `e^(scale (y - top))`; returns the sum. No number is above `top`, and `scale` is not below 0.
pub(crate) fn exponentials(y: &mut [f32], top: f32, scale: f32) -> f32 {
    arch().dispatch(Exponentials::<false> { x: &[], y, top, scale })
}

/// As [`exponentials`], of the numbers `x`, of which there are as many.
pub(crate) fn exponentials_of(x: &[f32], y: &mut [f32], top: f32) -> f32 {
    arch().dispatch(Exponentials::<true> { x, y, top, scale: 1.0 })
}

/// Of `x` where `FROM`, else of `y` itself.
struct Exponentials<'a, const FROM: bool> {
    x: &'a [f32],
    y: &'a mut [f32],
    top: f32,
    scale: f32,
}

impl<const FROM: bool> WithSimd for Exponentials<'_, FROM> {
    type Output = f32;

    #[inline(always)]
    #[allow(clippy::needless_range_loop, reason = "constant indices keep the sums in registers")]
    fn with_simd<S: Simd>(self, simd: S) -> f32 {
        let Exponentials { x, y, top, scale } = self;
        let (tops, scales) = (simd.splat_f32s(top), simd.splat_f32s(scale));
        let (x, x_tail) = S::as_simd_f32s(x);
        let (y, y_tail) = S::as_mut_simd_f32s(y);
        let mut sums = [simd.splat_f32s(0.0); APART];
        let whole = y.len() / APART * APART;
        for at in (0..whole).step_by(APART) {
            let y = &mut y[at..at + APART];
            let x = if FROM { &x[at..at + APART] } else { &[] };
            for i in 0..APART {
                let x = if FROM { x[i] } else { y[i] };
                y[i] = exp_below(simd, simd.mul_f32s(simd.sub_f32s(x, tops), scales));
                sums[i] = simd.add_f32s(sums[i], y[i]);
            }
        }
        for i in whole..y.len() {
            let x = if FROM { x[i] } else { y[i] };
            y[i] = exp_below(simd, simd.mul_f32s(simd.sub_f32s(x, tops), scales));
            sums[0] = simd.add_f32s(sums[0], y[i]);
        }
        let [a, b] = [simd.add_f32s(sums[0], sums[1]), simd.add_f32s(sums[2], sums[3])];
        let mut sum = simd.reduce_sum_f32s(simd.add_f32s(a, b));
        for (i, y) in y_tail.iter_mut().enumerate() {
            let x = if FROM { x_tail[i] } else { *y };
            *y = exp((x - top) * scale);
            sum += *y;
        }
        sum
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::test_util::values;

    #[test]
    fn exponentials_and_their_sum_match() {
        for n in [0, 1, 15, 16, 17, 63, 64, 65, 200] {
            let x: Vec<f32> = values(n, 7).into_iter().map(|x| x * 30.0).collect();
            let top = top(&x);
            assert_eq!(top, x.iter().copied().fold(f32::NEG_INFINITY, f32::max));
            let want = |scale: f32| x.iter().map(move |x| (f64::from(scale) * f64::from(x - top)).exp());
            let (mut own, mut of) = (x.clone(), vec![9.0; n]);
            let sums = [exponentials(&mut own, top, 0.125), exponentials_of(&x, &mut of, top)];
            for ((scale, got), sum) in [(0.125, own), (1.0, of)].into_iter().zip(sums) {
                assert!((f64::from(sum) - want(scale).sum::<f64>()).abs() < 1e-4);
                assert!(want(scale).zip(got).all(|(want, got)| (f64::from(got) - want).abs() < 1e-6));
            }
        }
    }

    #[test]
    fn a_nan_is_in_the_sum_and_not_in_the_top() {
        let mut x = values(40, 3);
        for at in [0, 17, 39] {
            let was = std::mem::replace(&mut x[at], f32::NAN);
            assert!(top(&x) <= 1.0 && exponentials(&mut x.clone(), 1.0, 1.0).is_nan());
            x[at] = was;
        }
        x[5] = f32::NEG_INFINITY;
        assert!(exponentials(&mut x, 1.0, 1.0) > 0.0 && x[5] == 0.0);
    }
}
