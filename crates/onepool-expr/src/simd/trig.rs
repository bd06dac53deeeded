//! Sine and its relatives of `f32` in loops that compilers can vectorize: no branches and no calls, in double
//! precision, so that the results are the nearest `f32` but for one in some millions.

use std::f64::consts::{FRAC_2_PI, FRAC_PI_2, FRAC_PI_4};

/// Up to here numbers are reduced exactly enough; the functions that turn say nothing of larger ones.
pub const LARGEST_ANGLE: f32 = 1e6;

/// pi / 2 in two parts; products of the first one with numbers below 2^20 are exact.
const HALF_PI_HIGH: f64 = 1.570_796_326_734_125_6;
const HALF_PI_LOW: f64 = 6.077_100_506_506_192e-11;
/// Adding it rounds to a whole number, which the low bits of the sum then hold.
const ROUNDER: f64 = 6_755_399_441_055_744.0;
/// tan(pi / 8).
const TAN_EIGHTH: f64 = std::f64::consts::SQRT_2 - 1.0;

#[inline(always)]
fn choose(condition: bool, yes: f64, no: f64) -> f64 {
    if condition { yes } else { no }
}

/// The polynomial of `x` whose coefficients are `c`, the constant first.
#[inline(always)]
fn polynomial<const N: usize>(x: f64, c: [f64; N]) -> f64 {
    c.into_iter().rev().fold(0.0, |sum, c| sum * x + c)
}

/// Sine and cosine of the angle that is left, and how many quarter turns were taken off, modulo 4.
#[inline(always)]
fn turned(x: f32) -> (f64, f64, u64) {
    let x = f64::from(x);
    let shifted = x * FRAC_2_PI + ROUNDER;
    let quarters = shifted - ROUNDER;
    let r = (x - quarters * HALF_PI_HIGH) - quarters * HALF_PI_LOW;
    let z = r * r;
    // Taylor's series: what is left out is below 2^-36 for angles of at most pi / 4.
    let sine = [1.0, -1.0 / 6.0, 1.0 / 120.0, -1.0 / 5040.0, 1.0 / 362_880.0, -1.0 / 39_916_800.0];
    let cosine =
        [1.0, -0.5, 1.0 / 24.0, -1.0 / 720.0, 1.0 / 40_320.0, -1.0 / 3_628_800.0, 1.0 / 479_001_600.0];
    (r * polynomial(z, sine), polynomial(z, cosine), shifted.to_bits())
}

/// Of the two the one, and the sign, that `quarters` quarter turns make the sine.
#[inline(always)]
fn quarter(sine: f64, cosine: f64, quarters: u64) -> f64 {
    let v = choose(quarters & 1 == 0, sine, cosine);
    f64::from_bits(v.to_bits() ^ (quarters & 2) << 62)
}

/// The sine of numbers up to [`LARGEST_ANGLE`].
#[inline(always)]
pub fn sin(x: f32) -> f32 {
    let (sine, cosine, quarters) = turned(x);
    let y = quarter(sine, cosine, quarters) as f32;
    // -0 has quarters of either sign.
    if x == 0.0 { x } else { y }
}

/// The cosine of numbers up to [`LARGEST_ANGLE`].
#[inline(always)]
pub fn cos(x: f32) -> f32 {
    let (sine, cosine, quarters) = turned(x);
    quarter(sine, cosine, quarters.wrapping_add(1)) as f32
}

/// The tangent of numbers up to [`LARGEST_ANGLE`].
#[inline(always)]
pub fn tan(x: f32) -> f32 {
    let (sine, cosine, quarters) = turned(x);
    let odd = quarters & 1 == 1;
    let y = (choose(odd, -cosine, sine) / choose(odd, sine, cosine)) as f32;
    if x == 0.0 { x } else { y }
}

/// The arc tangent.
#[inline(always)]
pub fn atan(x: f32) -> f32 {
    // Fitted at Chebyshev's points to atan(z) / z over z * z for |z| <= tan(pi / 8), to 1e-12.
    const C: [f64; 8] = [
        0.999_999_999_999_243_8,
        -0.333_333_332_768_674_4,
        0.199_999_930_484_542_5,
        -0.142_853_863_721_250_56,
        0.111_034_537_869_097_31,
        -0.089_925_251_315_493_9,
        0.069_740_745_865_864_36,
        -0.037_652_957_355_642_57,
    ];
    let (sign, a) = (x.to_bits() & 0x8000_0000, f64::from(x.abs()));
    // atan(a) = pi/4 + atan((a - 1) / (a + 1)) = pi/2 - atan(1 / a).
    let (small, large) = (a <= TAN_EIGHTH, a >= 1.0 / TAN_EIGHTH);
    let top = choose(small, a, choose(large, -1.0, a - 1.0));
    let bottom = choose(small, 1.0, choose(large, a, a + 1.0));
    let z = top / bottom;
    let base = choose(small, 0.0, choose(large, FRAC_PI_2, FRAC_PI_4));
    let y = (base + z * polynomial(z * z, C)) as f32;
    f32::from_bits(y.to_bits() ^ sign)
}

/// The arc sine of the absolute value, and whether it was found as pi/2 less twice another, which then is the first.
#[inline(always)]
fn arc(x: f32) -> (f64, bool) {
    // Fitted as that of the arc tangent, to asin(z) / z over z * z for z <= 1/2, to 1e-12.
    const C: [f64; 9] = [
        1.000_000_000_000_826_7,
        0.166_666_666_131_262_9,
        0.075_000_056_709_785,
        0.044_640_559_158_595_57,
        0.030_428_216_445_454_567,
        0.021_854_822_867_487_765,
        0.020_686_090_119_177_16,
        0.001_902_869_413_720_889_8,
        0.032_971_351_496_585_25,
    ];
    let a = f64::from(x.abs());
    let large = a > 0.5;
    let half = (1.0 - a) * 0.5;
    let z = choose(large, half, a * a);
    (choose(large, half.sqrt(), a) * polynomial(z, C), large)
}

/// The arc sine, NaN beyond 1.
#[inline(always)]
pub fn asin(x: f32) -> f32 {
    let (angle, large) = arc(x);
    let y = choose(large, FRAC_PI_2 - 2.0 * angle, angle) as f32;
    f32::from_bits(y.to_bits() ^ (x.to_bits() & 0x8000_0000))
}

/// The arc cosine, NaN beyond 1.
#[inline(always)]
pub fn acos(x: f32) -> f32 {
    let (angle, large) = arc(x);
    let negative = x < 0.0;
    let far = choose(negative, std::f64::consts::PI - 2.0 * angle, 2.0 * angle);
    let near = FRAC_PI_2 - choose(negative, -angle, angle);
    choose(large, far, near) as f32
}

#[cfg(test)]
mod tests {
    use super::*;

    type Function = (fn(f32) -> f32, fn(f64) -> f64, f32);

    const ALL: [Function; 6] = [
        (sin, f64::sin, LARGEST_ANGLE),
        (cos, f64::cos, LARGEST_ANGLE),
        (tan, f64::tan, LARGEST_ANGLE),
        (atan, f64::atan, f32::MAX),
        (asin, f64::asin, 1.0),
        (acos, f64::acos, 1.0),
    ];

    #[test]
    fn functions_are_exact_to_the_last_place() {
        for (i, (f, want, most)) in ALL.into_iter().enumerate() {
            // Numbers of all sizes, those near multiples of a quarter turn, and the ends.
            let sizes = (0..400_000u32).map(|i| f32::from_bits(i * 5371));
            let near = (0..4000).map(|i| (f64::from(i) * 159.0 * FRAC_PI_2) as f32);
            let even = (0..=4000).map(|i| i as f32 / 4000.0);
            let all = sizes.chain(near).chain(even).flat_map(|x| [x, -x]).filter(|x| x.abs() <= most);
            for x in all {
                let (y, want) = (f(x), want(x.into()) as f32);
                let apart = (y.to_bits() as i32).wrapping_sub(want.to_bits() as i32).unsigned_abs();
                assert!(apart <= 1, "{i}: {x:e} gives {y:e}, not {want:e}");
            }
        }
    }

    #[test]
    fn ends_and_signs_are_kept() {
        for (f, want, _) in ALL {
            assert!(f(f32::NAN).is_nan());
            for x in [0.0f32, -0.0, 1.0, -1.0] {
                assert_eq!(f(x).to_bits(), (want(x.into()) as f32).to_bits(), "{x}");
            }
        }
        assert!(asin(1.5).is_nan() && acos(-1.5).is_nan());
        assert_eq!(atan(f32::INFINITY), std::f32::consts::FRAC_PI_2);
        assert_eq!(atan(f32::NEG_INFINITY), -std::f32::consts::FRAC_PI_2);
    }
}
