//! Functions of one number for the CPU, each written once.
//!
//! Those of `f32` have no branches and call nothing on CPUs with FMA, so that loops over them become vector
//! code; [`wide()`] compiles such a loop for the vectors of the CPU that runs it. Errors are a few units in
//! the last place.

mod alternate;
mod erf;
mod exp;
mod trig;
mod wide;
mod widen;

pub use alternate::Alternate;
pub use erf::{erf, erf_f64, normal_cdf};
pub use exp::{exp, exp_below, expm1, log, sigmoid, softplus, tanh};
pub use trig::{LARGEST_ANGLE, acos, asin, atan, cos, sin, tan};
pub use wide::{VECTORS_VARIABLE, Vectors, arch, lanes_at_once, wide};
pub use widen::widen_half;

/// Functions that no loop makes vectors of: each element through the standard library, in `f64`.
#[inline(always)]
pub fn by_f64(f: impl Fn(f64) -> f64) -> impl Fn(f32) -> f32 {
    move |x| f(x.into()) as f32
}

/// `yes` or `no`, both of which are computed.
#[inline(always)]
fn choose(condition: bool, yes: f32, no: f32) -> f32 {
    if condition { yes } else { no }
}

/// `a * b + c`, rounded once: one instruction of AVX2's CPUs and NEON's, a call on CPUs without it.
#[inline(always)]
fn fma(a: f32, b: f32, c: f32) -> f32 {
    a.mul_add(b, c)
}

/// The polynomial of `x` whose coefficients are `c`, the constant first.
#[inline(always)]
fn polynomial<const N: usize>(x: f32, c: [f32; N]) -> f32 {
    let mut sum = c[N - 1];
    for i in (0..N - 1).rev() {
        sum = fma(sum, x, c[i]);
    }
    sum
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sweep() -> impl Iterator<Item = f32> {
        let grid = (-40_000..40_000).map(|i| i as f32 * 2.7e-3);
        let tiny = (-45..45).flat_map(|e| [1.37f32, -1.11].map(|m| m * 10f32.powi(e)));
        let odd = [0.0, -0.0, f32::INFINITY, f32::NEG_INFINITY, f32::NAN, f32::MAX, f32::MIN, 1e-40, -1e-40];
        grid.chain(tiny).chain(odd)
    }

    #[track_caller]
    fn check(name: &str, f: impl Fn(f32) -> f32, want: impl Fn(f64) -> f64, relative: f64, absolute: f64) {
        for x in sweep() {
            let (got, want) = (f64::from(f(x)), want(x.into()) as f32);
            let w = f64::from(want);
            let near = (got - w).abs() <= relative * w.abs() + absolute;
            assert!(near || got == w || (got.is_nan() && w.is_nan()), "{name}({x}) is {got}, expected {w}");
        }
    }

    /// [`exp_below`] of each of `x`.
    struct Below<'a>(&'a mut [f32]);

    impl pulp::WithSimd for Below<'_> {
        type Output = ();

        #[inline(always)]
        fn with_simd<S: pulp::Simd>(self, simd: S) {
            let (vectors, tail) = S::as_mut_simd_f32s(self.0);
            for x in vectors {
                *x = exp_below(simd, *x);
            }
            if !tail.is_empty() {
                let y = exp_below(simd, simd.partial_load_f32s(tail));
                simd.partial_store_f32s(tail, y);
            }
        }
    }

    #[test]
    fn vectors_below_0_are_within_their_errors() {
        let x: Vec<f32> = sweep().map(|x| if x > 0.0 { -x } else { x }).collect();
        for arch in [pulp::Arch::Scalar, arch()] {
            let mut y = x.clone();
            arch.dispatch(Below(&mut y));
            for (x, got) in x.iter().zip(y) {
                let want = f64::from(*x).exp();
                let near = (f64::from(got) - want).abs() <= 3e-7 * want + f64::from(f32::MIN_POSITIVE) * 1.02;
                assert!(near || got.is_nan() && x.is_nan(), "{got} of {x}, expected {want}");
                if *x < -88.0 {
                    assert_eq!(got, 0.0, "of {x}");
                }
            }
        }
    }

    #[test]
    fn functions_are_within_their_errors_everywhere() {
        let tiny = f64::from(f32::MIN_POSITIVE) / 1e6;
        let normal = f64::from(f32::MIN_POSITIVE) * 1.02;
        check("exp", exp, f64::exp, 3e-7, normal);
        check("expm1", expm1, f64::exp_m1, 4e-7, tiny);
        check("log", log, f64::ln, 2e-7, 0.0);
        check("sigmoid", sigmoid, |x| 1.0 / (1.0 + (-x).exp()), 5e-7, 1e-38);
        check("tanh", tanh, f64::tanh, 4e-7, tiny);
        check("erf", erf, erf::tests::exact, 3e-7, tiny);
        check("normal_cdf", normal_cdf, erf::tests::normal_cdf, 2e-7, 1.5e-7);
        let softplus_f64 = |x: f64| x.max(0.0) + (-x.abs()).exp().ln_1p() + if x.is_nan() { x } else { 0.0 };
        check("softplus", softplus, softplus_f64, 5e-7, normal);
    }
}
