//! Fourier transforms on devices: one pass for every factor of the length.

use std::f64::consts::PI;

use super::spectrum::{Samples, Spectrum};
use crate::graph::Tensor;
use crate::kernel::codes::dft_pass;
use crate::kernel::table::{params, spec, variants};
use crate::ops::word::index32;
use crate::ops::{Lowering, OpCx, OpError, Operand, PackKey};

/// Factors are put together up to this: fewer passes over memory against more arithmetic.
const RADIX: usize = 16;
/// The largest prime factor that is worth a pass.
const MAX_PRIME: usize = 256;
/// Up to this length a transform is computed by its definition where its factors are too large.
const MAX_DIRECT: usize = 4096;
/// The longest transform.
const MAX_LEN: usize = 1 << 22;

/// The factors of `n`, one for each pass; `None` where the host is faster.
fn radices(n: usize) -> Option<Vec<usize>> {
    if n > MAX_LEN {
        return None;
    }
    let (mut primes, mut rest, mut p) = (Vec::new(), n, 2);
    while p * p <= rest {
        while rest.is_multiple_of(p) {
            primes.push(p);
            rest /= p;
        }
        p += 1;
    }
    if rest > 1 || n == 1 {
        primes.push(rest);
    }
    if primes.iter().any(|p| *p > MAX_PRIME) {
        return (n <= MAX_DIRECT).then(|| vec![n]);
    }
    let mut radices: Vec<usize> = Vec::new();
    for p in primes.into_iter().rev() {
        match radices.iter_mut().find(|r| **r * p <= RADIX) {
            Some(radix) => *radix *= p,
            None => radices.push(p),
        }
    }
    Some(radices)
}

/// `exp(-2 pi i t / n)` for every t, its imaginary part turned for the inverse transform.
fn roots(n: usize, inverse: bool) -> Result<Tensor, OpError> {
    let sign = if inverse { 1.0 } else { -1.0 };
    let all: Vec<f32> = (0..n)
        .flat_map(|t| {
            let (sin, cos) = (sign * 2.0 * PI * t as f64 / n as f64).sin_cos();
            [cos as f32, sin as f32]
        })
        .collect();
    Ok(Tensor::new([n, 2], &all)?)
}

/// Emits the transforms.
pub(super) fn transform(d: &Spectrum, cx: &OpCx, lower: &mut Lowering<'_>) -> Result<(), OpError> {
    let kernel = variants::DftPass { t: cx.dtype(0)? }.id()?;
    if cx.output(0)?.elements() == 0 {
        return Ok(());
    }
    let Some(radices) = radices(d.n) else {
        return Err(OpError::unsupported(format!("no device kernel for a transform of length {}", d.n)));
    };
    index32(cx.input(0)?.elements())?;
    index32(cx.output(0)?.elements())?;
    let between = index32(d.rows.saturating_mul(d.n).saturating_mul(2))? as usize * 4;
    if radices.len() > 1 && between as u64 > lower.device().limits.max_argument_bytes {
        return Err(OpError::unsupported(format!("{between} bytes of transforms between passes")));
    }
    let roots = roots(d.n, d.inverse)?;
    let key = PackKey { layout: "roots of unity", numbers: [0; 4] };
    let roots = lower.packed(&roots, key, d.n * 8, |t, out| {
        out.copy_from_slice(t.bytes());
        Ok(())
    });
    let samples = match d.samples {
        Samples::Real => dft_pass::Samples::Real,
        Samples::Complex => dft_pass::Samples::Complex,
        Samples::HalfSpectrum => dft_pass::Samples::HalfSpectrum,
    };
    let window = if d.window.is_some() { Operand::Input(2) } else { Operand::Unused };
    let (mut from, mut done) = (Operand::Unused, 1);
    let last = radices.len() - 1;
    let buffers: Vec<Operand> = (0..last.min(2)).map(|_| lower.scratch(between)).collect();
    for (pass, radix) in radices.into_iter().enumerate() {
        let to = if pass == last { Operand::Unused } else { buffers[pass % 2] };
        let width = if pass == last { d.out } else { d.n };
        let items = d.rows * width;
        let spec = [
            (spec::dft_pass::FIRST, u32::from(pass == 0)),
            (spec::dft_pass::LAST, u32::from(pass == last)),
            (spec::dft_pass::SAMPLES, samples as u32),
            (spec::dft_pass::WINDOWED, u32::from(d.window.is_some())),
            (spec::dft_pass::TO_REAL, u32::from(d.real)),
        ];
        let params = params::DftPass {
            items: items as u32,
            n: d.n as u32,
            done: done as u32,
            radix: radix as u32,
            width: width as u32,
            used: d.used as u32,
            inner: d.inner as u32,
            x_outer: d.x.outer_step as u32,
            x_inner: d.x.inner_step as u32,
            x_step: d.x.step as u32,
            y_outer: d.y.outer_step as u32,
            y_inner: d.y.inner_step as u32,
            y_step: d.y.step as u32,
            scale: if d.inverse { (1.0 / d.n as f64) as f32 } else { 1.0 },
        };
        let first = if pass == 0 { Operand::Input(0) } else { Operand::Unused };
        let output = if pass == last { Operand::Output(0) } else { Operand::Unused };
        let args = [first, window, roots, from, to, output];
        lower.dispatch_1d(kernel, &spec, &args, &params, items)?;
        (from, done) = (to, done * radix);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn factors_make_few_passes_or_the_host_computes() {
        for n in 1..=5000usize {
            if let Some(radices) = radices(n) {
                assert_eq!(radices.iter().product::<usize>(), n);
                assert!(radices.len() == 1 || radices.iter().all(|r| *r <= MAX_PRIME), "{n}: {radices:?}");
            } else {
                assert!(n > MAX_DIRECT);
            }
        }
        assert_eq!(radices(4096).unwrap(), [16, 16, 16]);
        assert_eq!(radices(400).unwrap().len(), 3);
        assert_eq!(radices(1).unwrap(), [1]);
        assert_eq!(radices(10_007), None);
        assert_eq!(radices(MAX_LEN * 2), None);
    }
}
