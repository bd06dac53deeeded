//! Discrete Fourier transforms of many rows: what DFT and STFT have in common, and its native function.

use std::sync::{Arc, OnceLock};

use rustfft::num_complex::Complex;
use rustfft::{Fft, FftDirection, FftPlanner};

use crate::kernel::KernelError;
use crate::ops::par;
use crate::ops::real::{Real, RealIo, RealKernel};

/// What the samples of a row are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Samples {
    /// Real numbers.
    Real,
    /// Complex numbers.
    Complex,
    /// The first half of the spectrum of a real signal; the second half mirrors it.
    HalfSpectrum,
}

impl Samples {
    /// Numbers of one sample.
    pub(super) fn parts(self) -> usize {
        if self == Samples::Real { 1 } else { 2 }
    }
}

/// Where rows lie: row `r` begins at `r / inner * outer_step + r % inner * inner_step`, its elements lie `step`
/// apart; all in samples.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Rows {
    pub(super) outer_step: usize,
    pub(super) inner_step: usize,
    pub(super) step: usize,
}

impl Rows {
    fn first(&self, r: usize, inner: usize) -> usize {
        r / inner * self.outer_step + r % inner * self.inner_step
    }
}

/// Transforms of `rows` rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Spectrum {
    /// Length of the transform.
    pub(super) n: usize,
    /// Whether it is the inverse one, divided by its length.
    pub(super) inverse: bool,
    /// What the samples are.
    pub(super) samples: Samples,
    /// Samples of a row that count; those up to `n` are zeros.
    pub(super) used: usize,
    /// How many rows.
    pub(super) rows: usize,
    /// Rows of one outer step.
    pub(super) inner: usize,
    /// The rows of the input.
    pub(super) x: Rows,
    /// Samples of the input.
    pub(super) x_len: usize,
    /// The rows of the output.
    pub(super) y: Rows,
    /// Elements of a row of the output.
    pub(super) out: usize,
    /// Whether only real parts are wanted.
    pub(super) real: bool,
    /// The factors of the samples are input 2, and there are so many.
    pub(super) window: Option<usize>,
}

impl Spectrum {
    /// Numbers of one element of the output.
    pub(super) fn parts(&self) -> usize {
        if self.real { 1 } else { 2 }
    }

    /// Arithmetic operations of a fast transform.
    pub(super) fn flops(&self) -> u64 {
        let log = u64::from(self.n.max(1).ilog2()) + 1;
        (self.rows as u64).saturating_mul(5 * self.n as u64).saturating_mul(log)
    }

    /// Reads row `r` into `row`, which has the length of the transform.
    fn read<T: Real>(&self, x: &[T], window: Option<&[T]>, r: usize, row: &mut [Complex<f64>]) {
        let first = self.x.first(r, self.inner);
        let (head, tail) = row.split_at_mut(self.used.min(self.n));
        for (t, v) in head.iter_mut().enumerate() {
            let at = (first + t * self.x.step) * self.samples.parts();
            let factor = window.map_or(1.0, |w| w[t].to_f64());
            let imaginary = if self.samples == Samples::Real { 0.0 } else { x[at + 1].to_f64() };
            *v = Complex::new(x[at].to_f64(), imaginary) * factor;
        }
        tail.fill(Complex::default());
        if self.samples == Samples::HalfSpectrum {
            for k in self.n / 2 + 1..self.n {
                row[k] = row[self.n - k].conj();
            }
        }
    }
}

/// The native function; the transform is planned by the first call.
pub(super) struct Run {
    pub(super) desc: Spectrum,
    pub(super) plan: OnceLock<Arc<dyn Fft<f64>>>,
}

impl RealKernel for Run {
    fn run<T: Real>(&self, io: &mut RealIo<'_, T>) -> Result<(), KernelError> {
        let d = &self.desc;
        let parts = d.parts();
        let (y, inputs) = io.output(0, d.rows * d.out * parts)?;
        let x = inputs.get(0, d.x_len * d.samples.parts())?;
        let window = d.window.map(|len| inputs.get(2, len)).transpose()?;
        if y.is_empty() {
            return Ok(());
        }
        let direction = if d.inverse { FftDirection::Inverse } else { FftDirection::Forward };
        let plan = self.plan.get_or_init(|| FftPlanner::new().plan_fft(d.n, direction));
        let scale = if d.inverse { 1.0 / d.n as f64 } else { 1.0 };
        let row_len = d.out * parts;
        let transform = |first: usize, y: &mut [T]| {
            let zero = Complex::<f64>::default();
            let (mut row, mut scratch) = (vec![zero; d.n], vec![zero; plan.get_inplace_scratch_len()]);
            for (i, y) in y.chunks_mut(row_len).enumerate() {
                d.read(x, window, first + i, &mut row);
                plan.process_with_scratch(&mut row, &mut scratch);
                for (y, v) in y.chunks_mut(parts).zip(row.iter()) {
                    for (y, v) in y.iter_mut().zip([v.re, v.im]) {
                        *y = T::from_f64(v * scale);
                    }
                }
            }
        };
        let (len, work) = (y.len(), d.flops() as usize / 4);
        if d.y.step == 1 {
            par::groups(y, row_len, work, transform);
            return Ok(());
        }
        // Rows whose elements lie apart are computed as rows, then spread.
        let mut rows = vec![T::ZERO; len];
        par::groups(&mut rows, row_len, work, transform);
        par::rows(y, d.inner * parts, len, |line, y| {
            let (outer, k) = (line / d.out, line % d.out);
            for (i, y) in y.chunks_mut(parts).enumerate() {
                let from = (outer * d.inner + i) * row_len + k * parts;
                y.copy_from_slice(&rows[from..from + parts]);
            }
        });
        Ok(())
    }
}
