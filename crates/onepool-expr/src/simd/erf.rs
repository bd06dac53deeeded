//! The error function.

use super::exp::exp_normal;
use super::{choose, polynomial};

/// The error function of an `f32`: an odd polynomial below 1, `1 - exp(-g(x))` above.
#[inline(always)]
pub fn erf(x: f32) -> f32 {
    let m = x.abs();
    let m = choose(m > 4.0, 4.0, m);
    let z = m * m;
    let odd = [
        std::f32::consts::FRAC_2_SQRT_PI,
        -0.376_126_27,
        0.112_835_95,
        -0.026_854_212,
        5.189_087_4e-3,
        -8.016_864_3e-4,
        7.875_875e-5,
    ];
    let g = [
        -3.201_380_5e-4,
        1.130_233_4,
        0.631_826_05,
        0.110_080_08,
        -0.026_421_136,
        4.759_596e-3,
        -5.968_056_3e-4,
        4.605_804e-5,
        -1.637_151_4e-6,
    ];
    let small = m * polynomial(z, odd);
    choose(m < 1.0, small, exp_normal(-polynomial(m, g), -1.0, 1.0)).copysign(x)
}

/// The distribution function of the standard normal distribution: `exp(-h(|x|)) / 2` is the part beyond |x|.
#[inline(always)]
pub fn normal_cdf(x: f32) -> f32 {
    let m = x.abs();
    let h = [
        0.797_891_84,
        0.318_235_73,
        0.036_586_56,
        -5.181_915e-3,
        3.074_626e-4,
        4.470_208_3e-5,
        -1.039_129_1e-5,
        6.251_477e-7,
    ];
    let h = m * polynomial(m, h);
    // What is left beyond is no number that counts, and its exponential none that CPUs take quickly.
    let beyond = choose(h > 80.0, 0.0, exp_normal(choose(h > 80.0, -80.0, -h), 0.5, 0.0));
    choose(x < 0.0, beyond, 1.0 - beyond)
}

/// The error function of an `f64`, by the series with terms of one sign.
pub fn erf_f64(x: f64) -> f64 {
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
pub(super) mod tests {
    use super::*;

    /// By the Taylor series for small arguments, and by the continued fraction for large ones.
    pub(in crate::simd) fn exact(x: f64) -> f64 {
        if x.is_nan() || x.is_infinite() {
            return x.clamp(-1.0, 1.0);
        }
        if x.abs() < 3.0 {
            let (mut term, mut sum) = (x, x);
            for n in 1..100 {
                term *= -x * x / f64::from(n);
                sum += term / f64::from(2 * n + 1);
            }
            return sum * std::f64::consts::FRAC_2_SQRT_PI;
        }
        let fraction = (1..60).rev().fold(0.0, |f, n| f64::from(n) / 2.0 / (x.abs() + f));
        let tail = (-x * x).exp() / ((x.abs() + fraction) * std::f64::consts::PI.sqrt());
        x.signum() * (1.0 - tail)
    }

    pub(in crate::simd) fn normal_cdf(x: f64) -> f64 {
        0.5 * (1.0 + exact(x * std::f64::consts::FRAC_1_SQRT_2))
    }

    #[test]
    fn the_one_of_f64_matches_known_values() {
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
