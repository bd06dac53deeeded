//! Exponentials and logarithms.

use pulp::Simd;

use super::{choose, fma, polynomial};

const LOG2_E: f32 = std::f32::consts::LOG2_E;
/// ln 2 in two parts; the first has few enough bits that its products with exponents are exact.
const LN2_HIGH: f32 = 0.693_359_4;
const LN2_LOW: f32 = -2.121_944_4e-4;
/// Adding it rounds to a whole number, which the low bits of the sum then hold.
const ROUNDER: f32 = 12_582_912.0;
/// `(e^r - 1 - r) / r^2` as a polynomial of `r`, a number that [`reduced`] leaves.
const EXP: [f32; 6] = [0.5, 1.666_666_5e-1, 4.166_579_6e-2, 8.333_452e-3, 1.398_2e-3, 1.987_569_2e-4];
/// The logarithm of the smallest normal number.
const LOWEST: f32 = -87.33;

#[inline(always)]
fn pow2(n: i32) -> f32 {
    f32::from_bits((n.wrapping_add(127) << 23) as u32)
}

/// `x` as `n ln 2 + r` with `r` nearest to 0: `n` and `r`. Of numbers below 2^21.
#[inline(always)]
fn reduced(x: f32) -> (i32, f32) {
    let shifted = fma(x, LOG2_E, ROUNDER);
    let whole = shifted - ROUNDER;
    let r = fma(whole, -LN2_LOW, fma(whole, -LN2_HIGH, x));
    ((shifted.to_bits() as i32).wrapping_sub(ROUNDER.to_bits() as i32), r)
}

/// `e^r` of a number that [`reduced`] leaves.
#[inline(always)]
fn exp_reduced(r: f32) -> f32 {
    fma(polynomial(r, EXP), r * r, r) + 1.0
}

/// `e^r - 1` of a number that [`reduced`] leaves, which keeps its digits near 0.
#[inline(always)]
fn expm1_reduced(r: f32) -> f32 {
    let p = polynomial(r, [0.5, 1.0 / 6.0, 1.0 / 24.0, 1.0 / 120.0, 1.0 / 720.0, 1.0 / 5040.0]);
    fma(p, r * r, r)
}

/// `e^x` of numbers from the logarithm of the smallest normal number to 88, times `a`, plus `b`.
#[inline(always)]
pub(super) fn exp_normal(x: f32, a: f32, b: f32) -> f32 {
    let (n, r) = reduced(x);
    fma(exp_reduced(r), a * pow2(n), b)
}

/// `e^x`; 0 where that is no normal number, because CPUs take very long for those that are not.
#[inline(always)]
pub fn exp(x: f32) -> f32 {
    // Infinity is what the upper bound gives.
    let (n, r) = reduced(x.clamp(LOWEST, 89.0));
    // Two factors, because 2^n itself may be infinite.
    let half = n >> 1;
    choose(x < LOWEST, 0.0, exp_reduced(r) * pow2(half) * pow2(n.wrapping_sub(half)))
}

/// [`exp`] of vectors of numbers that are not above 0: 2^n of those is one factor.
#[inline(always)]
pub fn exp_below<S: Simd>(simd: S, x: S::f32s) -> S::f32s {
    let lowest = simd.splat_f32s(LOWEST);
    let bounded = simd.max_f32s(lowest, x);
    let shifted = simd.mul_add_e_f32s(bounded, simd.splat_f32s(LOG2_E), simd.splat_f32s(ROUNDER));
    let whole = simd.sub_f32s(shifted, simd.splat_f32s(ROUNDER));
    // Bounds are numbers, but what is left of a NaN is one.
    let r = simd.mul_add_e_f32s(whole, simd.splat_f32s(-LN2_HIGH), x);
    let r = simd.mul_add_e_f32s(whole, simd.splat_f32s(-LN2_LOW), r);
    let mut p = simd.splat_f32s(EXP[EXP.len() - 1]);
    for c in EXP.iter().rev().skip(1) {
        p = simd.mul_add_e_f32s(p, r, simd.splat_f32s(*c));
    }
    let power = simd.mul_add_e_f32s(p, simd.mul_f32s(r, r), r);
    // The low bits of the sum are n: those above the exponent's are shifted out.
    let n = simd.wrapping_dyn_shl_u32s(simd.transmute_u32s_f32s(shifted), simd.splat_u32s(23));
    let scale = simd.transmute_f32s_u32s(simd.add_u32s(n, simd.splat_u32s(1.0f32.to_bits())));
    let y = simd.mul_add_e_f32s(power, scale, scale);
    simd.select_f32s(simd.less_than_f32s(x, lowest), simd.splat_f32s(0.0), y)
}

/// `e^x - 1`, which keeps its digits near 0.
#[inline(always)]
pub fn expm1(x: f32) -> f32 {
    let x = choose(x < -104.0, -104.0, x);
    let x = choose(x > 89.0, 89.0, x);
    let (n, r) = reduced(x);
    let p = expm1_reduced(r);
    // A NaN has any n: keep it in range.
    let n = n.clamp(-160, 140);
    let half = n >> 1;
    let (s, t) = (pow2(half), pow2(n - half));
    // 2^n alone may be infinite where the power is not; the 1 is lost there anyway.
    choose(x > 50.0, fma(p, s, s) * t, fma(p * s, t, fma(s, t, -1.0)))
}

/// `ln((1 + s) / (1 - s))` for |s| <= 1/3.
#[inline(always)]
fn log_ratio(s: f32) -> f32 {
    let z = s * s;
    let p = polynomial(z, [1.0 / 3.0, 1.0 / 5.0, 1.0 / 7.0, 1.0 / 9.0, 1.0 / 11.0, 1.0 / 13.0, 1.0 / 15.0]);
    let twice = 2.0 * s;
    fma(twice, z * p, twice)
}

/// The natural logarithm.
#[inline(always)]
pub fn log(x: f32) -> f32 {
    let subnormal = x < f32::MIN_POSITIVE;
    let scaled = choose(subnormal, x * 8_388_608.0, x);
    // Bits relative to those of sqrt(1/2), so that the mantissa is within sqrt(1/2) and sqrt(2).
    let bits = (scaled.to_bits() as i32).wrapping_sub(0x3F35_04F3);
    let exponent = (bits >> 23) as f32 - choose(subnormal, 23.0, 0.0);
    let m = f32::from_bits(((bits & 0x007F_FFFF) + 0x3F35_04F3) as u32);
    let y = fma(exponent, LN2_LOW, log_ratio((m - 1.0) / (m + 1.0)));
    let y = fma(exponent, LN2_HIGH, y);
    let y = choose(x < f32::INFINITY, y, x);
    let y = choose(x == 0.0, f32::NEG_INFINITY, y);
    choose(x < 0.0, f32::NAN, y)
}

/// `1 / (1 + e^-x)`.
#[inline(always)]
pub fn sigmoid(x: f32) -> f32 {
    // The upper bound is where 2^n is infinite and the result 0.
    1.0 / exp_normal((-x).clamp(LOWEST, 89.0), 1.0, 1.0)
}

/// The hyperbolic tangent.
#[inline(always)]
pub fn tanh(x: f32) -> f32 {
    let m = x.abs();
    let (n, r) = reduced(2.0 * choose(m > 10.0, 10.0, m));
    let scale = pow2(n);
    let e = fma(expm1_reduced(r), scale, scale - 1.0);
    (e / (e + 2.0)).copysign(x)
}

/// `ln(1 + e^x)` without overflow.
#[inline(always)]
pub fn softplus(x: f32) -> f32 {
    // Written so that NaN stays NaN.
    let u = exp(-x.abs());
    choose(x > 0.0, x, 0.0) + log_ratio(u / (2.0 + u))
}
