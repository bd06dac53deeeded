//! MelWeightMatrix: triangular filters of equal width on the mel scale.

use std::sync::Arc;

use super::constant;
use crate::dtype::DType;
use crate::graph::TensorInfo;
use crate::kernel::NativeKernel;
use crate::ops::{AttrReader, Lowering, OpCx, OpError, Operator};
use crate::shape::Shape;

/// `[length of the DFT / 2 + 1, mel bins]`, which a spectrum is multiplied with. Inputs: the number of mel
/// bins, the length of the DFT, the sample rate, the lowest and the highest frequency (Hz).
#[derive(Clone, Copy, Debug)]
pub struct MelWeightMatrix {
    /// The element type.
    pub dtype: DType,
}

pub(super) fn read(attrs: &mut AttrReader<'_>, _: i64) -> Result<Arc<dyn Operator>, OpError> {
    let dtype = attrs.dtype_opt("output_datatype")?.unwrap_or(DType::F32);
    if !DType::NUMBERS.contains(&dtype) {
        return Err(OpError::unsupported(format!("a filter bank of {dtype}")));
    }
    Ok(Arc::new(MelWeightMatrix { dtype }))
}

struct Bank {
    bins: usize,
    dft: usize,
    rate: usize,
    edges: [f64; 2],
}

impl Bank {
    fn of(cx: &OpCx) -> Result<Bank, OpError> {
        let count = |i: usize| -> Result<usize, OpError> {
            let v = cx.need_i64s(i)?.first().copied().unwrap_or(-1);
            let problem = format!("is {v}, expected a positive number");
            usize::try_from(v).ok().filter(|v| *v > 0).ok_or(OpError::Value { input: i, problem })
        };
        let hertz = |i: usize| -> Result<f64, OpError> {
            let t = cx.need_value(i)?;
            let v = if t.dtype() == DType::F64 {
                t.as_slice::<f64>()?.first().copied()
            } else {
                t.to_f32s()?.first().map(|v| f64::from(*v))
            };
            let v = v.unwrap_or(f64::NAN);
            let problem = format!("is {v}, expected a frequency in Hz");
            if v.is_finite() && v >= 0.0 { Ok(v) } else { Err(OpError::Value { input: i, problem }) }
        };
        Ok(Bank { bins: count(0)?, dft: count(1)?, rate: count(2)?, edges: [hertz(3)?, hertz(4)?] })
    }

    /// Rows of the matrix.
    fn rows(&self) -> usize {
        self.dft / 2 + 1
    }

    /// The row at which the n-th of `bins + 2` equal steps on the mel scale (O'Shaughnessy 1987) begins.
    fn edge(&self, n: usize) -> i64 {
        let mel = |hertz: f64| 2595.0 * (1.0 + hertz / 700.0).log10();
        let [low, high] = self.edges.map(mel);
        let at = low + n as f64 * (high - low) / (self.bins + 2) as f64;
        let hertz = 700.0 * (10f64.powf(at / 2595.0) - 1.0);
        ((self.dft as f64 + 1.0) * hertz / self.rate as f64).floor() as i64
    }

    fn values(&self) -> Vec<f64> {
        let (rows, bins) = (self.rows(), self.bins);
        let mut out = vec![0.0; rows * bins];
        let mut set = |row: i64, bin: usize, v: f64| {
            // Filters may reach above half the sample rate.
            if let Some(slot) = usize::try_from(row).ok().filter(|r| *r < rows) {
                out[slot * bins + bin] = v;
            }
        };
        let last = rows as i64 - 1;
        for bin in 0..bins {
            let [low, mid, high] = [0, 1, 2].map(|k| self.edge(bin + k));
            if low == mid {
                set(mid, bin, 1.0);
            }
            for row in low.max(0)..=mid.min(last) {
                if low < mid {
                    set(row, bin, (row - low) as f64 / (mid - low) as f64);
                }
            }
            for row in mid.max(0)..high.min(last + 1) {
                set(row, bin, (high - row) as f64 / (high - mid) as f64);
            }
        }
        out
    }
}

impl Operator for MelWeightMatrix {
    fn name(&self) -> &'static str {
        "MelWeightMatrix"
    }

    fn value_inputs(&self) -> &'static [usize] {
        &[0, 1, 2, 3, 4]
    }

    fn infer(&self, cx: &OpCx) -> Result<Vec<TensorInfo>, OpError> {
        cx.expect_counts(5..=5, 1..=1)?;
        let bank = Bank::of(cx)?;
        Ok(vec![TensorInfo::new(self.dtype, Shape::new([bank.rows(), bank.bins])?)])
    }

    fn cpu(&self, cx: &OpCx) -> Result<NativeKernel, OpError> {
        let bank = Bank::of(cx)?;
        constant::cpu("MelWeightMatrix", cx, move || bank.values())
    }

    fn gpu(&self, cx: &OpCx, lower: &mut Lowering<'_>) -> Result<(), OpError> {
        let bank = Bank::of(cx)?;
        constant::gpu("mel", cx, || bank.values(), lower)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::Tensor;
    use crate::ops::test_util::{facts, run_f32};

    fn inputs(bins: i64, dft: i64, rate: i64, low: f32, high: f32) -> Vec<Option<Tensor>> {
        vec![
            Some(Tensor::scalar(bins)),
            Some(Tensor::scalar(dft)),
            Some(Tensor::scalar(rate)),
            Some(Tensor::scalar(low)),
            Some(Tensor::scalar(high)),
        ]
    }

    #[test]
    fn filters_are_triangles_that_peak_at_one() {
        let op = MelWeightMatrix { dtype: DType::F32 };
        let y = run_f32(&op, &inputs(8, 256, 8000, 0.0, 4000.0)).unwrap();
        assert_eq!(y.shape().dims(), [129, 8]);
        let v = y.to_f32s().unwrap();
        let mut last = 0;
        for bin in 0..8 {
            let column: Vec<f32> = v.iter().skip(bin).step_by(8).copied().collect();
            let peak = (0..129).max_by(|a, b| column[*a].total_cmp(&column[*b])).unwrap();
            assert_eq!(column[peak], 1.0);
            assert!(peak > last);
            assert!(column[..=peak].windows(2).all(|w| w[0] <= w[1]));
            assert!(column[peak..].windows(2).all(|w| w[0] >= w[1]));
            last = peak;
        }
    }

    #[test]
    fn filters_beyond_the_spectrum_are_cut_off_and_nonsense_is_refused() {
        let op = MelWeightMatrix { dtype: DType::F32 };
        assert!(run_f32(&op, &inputs(4, 16, 8, 100.0, 1e30)).is_ok());
        assert!(run_f32(&op, &inputs(4, 16, 8, 1e30, 0.0)).is_ok());
        assert!(facts(&op, &inputs(0, 16, 8, 0.0, 4.0), 1).is_err());
        assert!(facts(&op, &inputs(4, -16, 8, 0.0, 4.0), 1).is_err());
        assert!(facts(&op, &inputs(4, 16, 0, 0.0, 4.0), 1).is_err());
        assert!(facts(&op, &inputs(4, 16, 8, f32::NAN, 4.0), 1).is_err());
        assert!(facts(&op, &inputs(i64::MAX, i64::MAX, 8, 0.0, 4.0), 1).is_err());
    }

    #[cfg(feature = "vulkan")]
    #[test]
    fn devices_get_the_same() {
        let op = MelWeightMatrix { dtype: DType::F32 };
        crate::ops::testing::check_op(&op, &inputs(8, 256, 8000, 0.0, 4000.0), 0.0);
    }
}
