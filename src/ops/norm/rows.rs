//! Rows of neighbouring elements brought to mean 0 and variance 1, then scaled: what layer, group and
//! instance normalization have in common.

use crate::kernel::KernelError;
use crate::ops::linalg::product::sum_of;
use crate::ops::real::{Real, RealIo, RealKernel, check_len};
use crate::ops::{Activation, par};
use crate::simd::wide;

/// Elements that one task has at least.
const PART: usize = 8 << 10;

/// Which of the parameters element `t` of row `r` takes: `r % rows * stride + t / run`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Affine {
    /// Rows after which the parameters repeat.
    pub rows: usize,
    /// Parameters of one row.
    pub stride: usize,
    /// Elements that share one parameter.
    pub run: usize,
}

impl Affine {
    /// Number of parameters.
    pub(crate) fn len(&self, row_len: usize) -> usize {
        if self.stride == 0 { row_len / self.run.max(1) } else { self.rows * self.stride }
    }
}

/// `(x - mean) / sqrt(variance + epsilon) * scale + bias` over rows.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct RowNorm {
    /// Number of rows.
    pub rows: usize,
    /// Elements of one row.
    pub len: usize,
    /// Whether the mean is subtracted; else the mean square takes the place of the variance.
    pub center: bool,
    /// Added to the variance.
    pub epsilon: f32,
    /// Where scale and bias are found.
    pub affine: Affine,
    /// Applied to the output.
    pub activation: Activation,
}

/// The mean of a row and the inverse of its deviation; where it is not centred 0 and the inverse of the root of its
/// mean square.
#[inline(always)]
pub(crate) fn statistics<T: Real>(x: &[T], center: bool, epsilon: T) -> (T, T) {
    let count = T::from_f64(x.len() as f64);
    let mean = match center {
        true => {
            sum_of(
                x,
                #[inline(always)]
                |v| v,
            ) / count
        }
        false => T::ZERO,
    };
    let variance = sum_of(
        x,
        #[inline(always)]
        |v| (v - mean) * (v - mean),
    ) / count;
    (mean, T::ONE / (variance + epsilon).sqrt())
}

impl RealKernel for RowNorm {
    fn run<T: Real>(&self, io: &mut RealIo<'_, T>) -> Result<(), KernelError> {
        let &RowNorm { rows, len, center, .. } = self;
        let (outputs, inputs) = io.outputs();
        let [y, means, inverses] = outputs;
        let x = inputs.get(0, rows * len)?;
        let params = self.affine.len(len);
        let (scale, bias) = (inputs.get(1, params)?, inputs.get_opt(2, params)?);
        let Some(y) = y else { return Err(KernelError::Absent { index: 3 }) };
        check_len(3, y.len(), rows * len)?;
        if y.is_empty() {
            return Ok(());
        }
        let epsilon = T::from_f64(self.epsilon.into());
        let mut stats = vec![(T::ZERO, T::ZERO); rows];
        let part = (PART / len).max(1);
        let parts = y.chunks_mut(part * len).zip(x.chunks(part * len)).zip(stats.chunks_mut(part));
        par::share(parts.enumerate(), |(i, ((y, x), stats))| {
            let rows = y.chunks_mut(len).zip(x.chunks(len)).zip(stats);
            for (r, ((y, x), stats)) in rows.enumerate() {
                let r = i * part + r;
                *stats = wide(
                    #[inline(always)]
                    || {
                        let stats = statistics(x, center, epsilon);
                        self.scale(r, x, scale, bias, stats, y);
                        stats
                    },
                );
                if self.affine.run == 1 {
                    self.activation.apply(y);
                }
            }
        });
        for (output, pick) in [(means, 0), (inverses, 1)] {
            if let Some(output) = output {
                check_len(4 + pick, output.len(), rows)?;
                output.iter_mut().zip(&stats).for_each(|(o, s)| *o = if pick == 0 { s.0 } else { s.1 });
            }
        }
        Ok(())
    }
}

impl RowNorm {
    #[inline(always)]
    fn scale<T: Real>(
        &self,
        row: usize,
        x: &[T],
        scale: &[T],
        bias: Option<&[T]>,
        (mean, inverse): (T, T),
        y: &mut [T],
    ) {
        let first = row % self.affine.rows * self.affine.stride;
        if self.affine.run == 1 {
            let scaled = y.iter_mut().zip(x).zip(&scale[first..]);
            match bias {
                Some(bias) => {
                    scaled
                        .zip(&bias[first..])
                        .for_each(|(((y, x), s), b)| *y = (*x - mean) * inverse * *s + *b);
                }
                None => scaled.for_each(|((y, x), s)| *y = (*x - mean) * inverse * *s),
            }
            return;
        }
        let run = self.affine.run;
        for (i, (y, x)) in y.chunks_mut(run).zip(x.chunks(run)).enumerate() {
            let factor = inverse * scale[first + i];
            let summand = bias.map_or(T::ZERO, |b| b[first + i]);
            y.iter_mut().zip(x).for_each(|(y, x)| *y = (*x - mean) * factor + summand);
            // While the run is in the cache.
            self.activation.apply(y);
        }
    }
}
