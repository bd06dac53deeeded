//! Functions of one `f32` that compilers can vectorize: no branches, no calls, errors of a few units in
//! the last place. Parameters are passed to all alike, so that they fit one loop.

const LOG2_E: f32 = std::f32::consts::LOG2_E;
/// ln 2 in two parts; the first has few enough bits that its products with exponents are exact.
const LN2_HIGH: f32 = 0.693_359_4;
const LN2_LOW: f32 = -2.121_944_4e-4;
/// Adding it rounds to a whole number, which the low bits of the sum then hold.
const ROUNDER: f32 = 12_582_912.0;

#[inline(always)]
fn choose(condition: bool, yes: f32, no: f32) -> f32 {
    if condition { yes } else { no }
}

#[inline(always)]
fn pow2(n: i32) -> f32 {
    f32::from_bits(((n + 127) << 23) as u32)
}

/// `(e^x - 1, e^x)` by one reduction; both are NaN for NaN.
#[inline(always)]
fn exp_both(x: f32) -> (f32, f32) {
    // Beyond these the results are 0 and infinity; the bounds keep the exponent in range.
    let x = choose(x < -104.0, -104.0, x);
    let x = choose(x > 89.0, 89.0, x);
    let shifted = x * LOG2_E + ROUNDER;
    let n = (shifted.to_bits() as i32).wrapping_sub(ROUNDER.to_bits() as i32);
    let whole = shifted - ROUNDER;
    let r = (x - whole * LN2_HIGH) - whole * LN2_LOW;
    let p = 1.0 / 720.0 + r * (1.0 / 5040.0);
    let p = 1.0 / 24.0 + r * (1.0 / 120.0 + r * p);
    let p = r + r * r * (0.5 + r * (1.0 / 6.0 + r * p));
    // Two factors, because 2^n itself may be subnormal or infinite. A NaN has any n: keep it in range.
    let n = n.clamp(-160, 140);
    let half = n >> 1;
    let (s, t) = (pow2(half), pow2(n - half));
    let e = (p * s + s) * t;
    // 2^n alone may be infinite where the power is not; the 1 is lost there anyway.
    (choose(x > 50.0, e, (p * s) * t + (s * t - 1.0)), e)
}

#[inline(always)]
pub(crate) fn exp(x: f32, _: f32, _: f32) -> f32 {
    exp_both(x).1
}

#[inline(always)]
fn expm1(x: f32) -> f32 {
    exp_both(x).0
}

/// `ln((1 + s) / (1 - s))` for |s| <= 1/3.
#[inline(always)]
fn log_ratio(s: f32) -> f32 {
    let z = s * s;
    let p = 1.0 / 11.0 + z * (1.0 / 13.0 + z * (1.0 / 15.0));
    let p = 1.0 / 5.0 + z * (1.0 / 7.0 + z * (1.0 / 9.0 + z * p));
    2.0 * s * (1.0 + z * (1.0 / 3.0 + z * p))
}

#[inline(always)]
pub(crate) fn log(x: f32, _: f32, _: f32) -> f32 {
    let subnormal = x < f32::MIN_POSITIVE;
    let scaled = choose(subnormal, x * 8_388_608.0, x);
    // Bits relative to those of sqrt(1/2), so that the mantissa is within sqrt(1/2) and sqrt(2).
    let bits = (scaled.to_bits() as i32).wrapping_sub(0x3F35_04F3);
    let exponent = (bits >> 23) as f32 - choose(subnormal, 23.0, 0.0);
    let m = f32::from_bits(((bits & 0x007F_FFFF) + 0x3F35_04F3) as u32);
    let y = exponent * LN2_LOW + log_ratio((m - 1.0) / (m + 1.0));
    let y = y + exponent * LN2_HIGH;
    let y = choose(x < f32::INFINITY, y, x);
    let y = choose(x == 0.0, f32::NEG_INFINITY, y);
    choose(x < 0.0, f32::NAN, y)
}

#[inline(always)]
pub(crate) fn sigmoid(x: f32, _: f32, _: f32) -> f32 {
    1.0 / (1.0 + exp_both(-x).1)
}

#[inline(always)]
pub(crate) fn tanh(x: f32, _: f32, _: f32) -> f32 {
    let m = x.abs();
    let e = expm1(2.0 * choose(m > 10.0, 10.0, m));
    (e / (e + 2.0)).copysign(x)
}

#[inline(always)]
pub(crate) fn softplus(x: f32, _: f32, _: f32) -> f32 {
    // Written so that NaN stays NaN.
    let u = exp_both(-x.abs()).1;
    choose(x > 0.0, x, 0.0) + log_ratio(u / (2.0 + u))
}

#[inline(always)]
pub(crate) fn erf(x: f32, _: f32, _: f32) -> f32 {
    let m = x.abs();
    let m = choose(m > 4.0, 4.0, m);
    let z = m * m;
    let p = 5.189_087_4e-3 + z * (-8.016_864_3e-4 + z * 7.875_875e-5);
    let p = 0.112_835_95 + z * (-0.026_854_212 + z * p);
    let small = m * (std::f32::consts::FRAC_2_SQRT_PI + z * (-0.376_126_27 + z * p));
    let g = 4.759_596e-3 + m * (-5.968_056_3e-4 + m * (4.605_804e-5 - m * 1.637_151_4e-6));
    let g = 0.631_826_05 + m * (0.110_080_08 + m * (-0.026_421_136 + m * g));
    let g = -3.201_380_5e-4 + m * (1.130_233_4 + m * g);
    choose(m < 1.0, small, 1.0 - exp_both(-g).1).copysign(x)
}

#[inline(always)]
pub(crate) fn gelu(x: f32, _: f32, _: f32) -> f32 {
    0.5 * x * (1.0 + erf(x * std::f32::consts::FRAC_1_SQRT_2, 0.0, 0.0))
}

#[inline(always)]
pub(crate) fn gelu_tanh(x: f32, _: f32, _: f32) -> f32 {
    0.5 * x * (1.0 + tanh(0.797_884_6 * (x + 0.044_715 * x * x * x), 0.0, 0.0))
}

#[inline(always)]
pub(crate) fn swish(x: f32, alpha: f32, _: f32) -> f32 {
    x / (1.0 + exp_both(-alpha * x).1)
}

#[inline(always)]
pub(crate) fn mish(x: f32, _: f32, _: f32) -> f32 {
    // tanh(ln(1 + e)) is (e^2 + 2e) / (e^2 + 2e + 2), and 1 long before e^2 overflows.
    let e = exp_both(choose(x > 20.0, 20.0, x)).1;
    let n = e * (e + 2.0);
    x * (n / (n + 2.0))
}

#[inline(always)]
pub(crate) fn elu(x: f32, alpha: f32, _: f32) -> f32 {
    choose(x < 0.0, alpha * expm1(x), x)
}

#[inline(always)]
pub(crate) fn selu(x: f32, alpha: f32, gamma: f32) -> f32 {
    choose(x > 0.0, gamma * x, alpha * gamma * expm1(x))
}

#[inline(always)]
pub(crate) fn celu(x: f32, alpha: f32, _: f32) -> f32 {
    choose(x > 0.0, x, alpha * expm1(x / alpha))
}

/// The error function of an `f64`, by the series with terms of one sign.
pub(crate) fn erf_f64(x: f64) -> f64 {
    let m = x.abs();
    if m.is_nan() || m > 6.0 {
        return if m > 6.0 { 1f64.copysign(x) } else { x };
    }
    let (mut term, mut sum, mut k) = (m, m, 0.0);
    while term > sum * 1e-17 {
        k += 1.0;
        term *= 2.0 * m * m / (2.0 * k + 1.0);
        sum += term;
    }
    (std::f64::consts::FRAC_2_SQRT_PI * (-m * m).exp() * sum).copysign(x)
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

    #[test]
    fn functions_are_within_their_errors_everywhere() {
        let tiny = f64::from(f32::MIN_POSITIVE) / 1e6;
        check("exp", |x| exp(x, 0.0, 0.0), f64::exp, 3e-7, 2e-45);
        check("expm1", expm1, f64::exp_m1, 4e-7, tiny);
        check("log", |x| log(x, 0.0, 0.0), f64::ln, 2e-7, 0.0);
        check("sigmoid", |x| sigmoid(x, 0.0, 0.0), |x| 1.0 / (1.0 + (-x).exp()), 4e-7, 1e-38);
        check("tanh", |x| tanh(x, 0.0, 0.0), f64::tanh, 4e-7, tiny);
        check("erf", |x| erf(x, 0.0, 0.0), erf_f64, 3e-7, tiny);
        let softplus_f64 = |x: f64| x.max(0.0) + (-x.abs()).exp().ln_1p() + if x.is_nan() { x } else { 0.0 };
        check("softplus", |x| softplus(x, 0.0, 0.0), softplus_f64, 5e-7, 2e-45);
        let gelu_f64 = |x: f64| 0.5 * x * (1.0 + erf_f64(x / 2f64.sqrt()));
        check("gelu", |x| gelu(x, 0.0, 0.0), gelu_f64, 4e-7, 1e-6);
        let mish_f64 = |x: f64| x * softplus_f64(x).tanh();
        check("mish", |x| mish(x, 0.0, 0.0), mish_f64, 1e-6, 1e-37);
        check("elu", |x| elu(x, 1.5, 0.0), |x| if x < 0.0 { 1.5 * x.exp_m1() } else { x }, 4e-7, tiny);
        let celu_f64 = |x: f64| if x > 0.0 { x } else { 2.0 * (x / 2.0).exp_m1() };
        check("celu", |x| celu(x, 2.0, 0.0), celu_f64, 4e-7, tiny);
    }

    #[test]
    fn erf_f64_matches_known_values() {
        for (x, want) in [
            (0.1, 0.112_462_916_018_284_89),
            (0.5, 0.520_499_877_813_046_5),
            (1.0, 0.842_700_792_949_714_9),
            (2.0, 0.995_322_265_018_952_7),
            (3.5, 0.999_999_256_901_627_6),
        ] {
            assert!((erf_f64(x) - want).abs() < 1e-15 && (erf_f64(-x) + want).abs() < 1e-15);
        }
    }
}
