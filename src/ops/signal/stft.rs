//! STFT: Fourier transforms of the frames of a signal.

use std::sync::{Arc, OnceLock};

use super::dft::one_integer;
use super::spectrum::{Rows, Run, Samples, Spectrum};
use super::spectrum_device;
use crate::graph::TensorInfo;
use crate::kernel::NativeKernel;
use crate::ops::real::{FLOATS, real_kernel};
use crate::ops::{AttrReader, Cost, HalfRule, Lowering, OpCx, OpError, Operator};
use crate::shape::Shape;

/// Transforms frames of signals `[n, samples]` or `[n, samples, 1 or 2]` to `[n, frames, bins, 2]`. Inputs 1 to
/// 3: samples from one frame to the next, optionally the factors of a frame's samples and a frame's length.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stft {
    /// Whether only the first half of each spectrum is wanted.
    pub onesided: bool,
}

pub(super) fn read(attrs: &mut AttrReader<'_>, _: i64) -> Result<Arc<dyn Operator>, OpError> {
    Ok(Arc::new(Stft { onesided: attrs.flag("onesided", true)? }))
}

impl Stft {
    fn resolve(&self, cx: &OpCx) -> Result<(Spectrum, Shape), OpError> {
        let (batch, len, parts) = match *cx.shape(0)?.dims() {
            [batch, len] => (batch, len, 1),
            [batch, len, parts @ 1..=2] => (batch, len, parts),
            _ => return Err(cx.shape_error(0, "[batch, samples, 1 or 2]")),
        };
        let window = match cx.input_opt(2).map(|w| w.shape.dims()) {
            None => None,
            Some(&[n]) => Some(n),
            Some(_) => return Err(cx.shape_error(2, "one dimension")),
        };
        let positive = |i: usize, v: i64| {
            let problem = format!("is {v}, expected at least 1");
            usize::try_from(v).ok().filter(|v| *v > 0).ok_or(OpError::Value { input: i, problem })
        };
        let step = positive(1, one_integer(cx, 1)?.ok_or(OpError::MissingInput { input: 1 })?)?;
        let n = match one_integer(cx, 3)? {
            Some(n) => positive(3, n)?,
            None => window.unwrap_or(len),
        };
        if n == 0 || n > len {
            return Err(cx.shape_error(0, format!("at least one frame of {n} samples")));
        }
        let frames = (len - n) / step + 1;
        let out = if self.onesided { n / 2 + 1 } else { n };
        let shape = Shape::new([batch, frames, out, 2])?;
        let desc = Spectrum {
            n,
            inverse: false,
            samples: if parts == 1 { Samples::Real } else { Samples::Complex },
            used: n.min(window.unwrap_or(n)),
            rows: batch * frames,
            inner: frames,
            x: Rows { outer_step: len, inner_step: step, step: 1 },
            x_len: batch * len,
            y: Rows { outer_step: frames * out, inner_step: out, step: 1 },
            out,
            real: false,
            window,
        };
        Ok((desc, shape))
    }
}

impl Operator for Stft {
    fn name(&self) -> &'static str {
        "STFT"
    }

    fn half_rule(&self) -> HalfRule {
        HalfRule::Full
    }

    fn value_inputs(&self) -> &'static [usize] {
        &[1, 3]
    }

    fn infer(&self, cx: &OpCx) -> Result<Vec<TensorInfo>, OpError> {
        cx.expect_counts(2..=4, 1..=1)?;
        let dtype = cx.dtype_of(0, FLOATS)?;
        if cx.has(2) {
            cx.expect_dtype(2, dtype)?;
        }
        Ok(vec![TensorInfo::new(dtype, self.resolve(cx)?.1)])
    }

    fn cost(&self, cx: &OpCx) -> Cost {
        Cost { flops: self.resolve(cx).map_or(0, |(d, _)| d.flops()), bytes: cx.bytes_touched() }
    }

    fn cpu(&self, cx: &OpCx) -> Result<NativeKernel, OpError> {
        real_kernel("STFT", cx, Run { desc: self.resolve(cx)?.0, plan: OnceLock::new() })
    }

    fn gpu(&self, cx: &OpCx, lower: &mut Lowering<'_>) -> Result<(), OpError> {
        spectrum_device::transform(&self.resolve(cx)?.0, cx, lower)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::Tensor;
    use crate::ops::signal::Dft;
    use crate::ops::test_util::{assert_near, facts, run_f32, tensor};

    #[test]
    fn a_spectrum_for_every_windowed_frame() {
        for (parts, onesided, window, length) in [
            (1usize, true, None, Some(8usize)),
            (2, false, Some(10usize), None),
            (1, false, Some(8), Some(8)),
            (1, true, Some(5), Some(8)),
        ] {
            let (batch, len, step) = (2, 27, 4);
            let x = tensor(&[batch, len, parts], 1);
            let w = window.map(|n| tensor(&[n], 2));
            let n = length.or(window).unwrap();
            let v = x.to_f32s().unwrap();
            let factors = w.as_ref().map_or(vec![1.0; n], |w| w.to_f32s().unwrap());
            let mut frames = Vec::new();
            for b in 0..batch {
                for f in 0..(len - n) / step + 1 {
                    for t in 0..n {
                        let factor = factors.get(t).copied().unwrap_or(0.0);
                        let at = (b * len + f * step + t) * parts;
                        frames.extend(v[at..at + parts].iter().map(|v| v * factor));
                    }
                }
            }
            let rows = frames.len() / n / parts;
            let frames = Tensor::new([rows, n, parts], &frames).unwrap();
            let dft = Dft { axis: 1, inverse: false, onesided };
            let want = run_f32(&dft, &[Some(frames)]).unwrap().to_f32s().unwrap();
            let want: Vec<f64> = want.into_iter().map(f64::from).collect();
            let length = length.map(|n| Tensor::scalar(n as i64));
            let inputs = [Some(x), Some(Tensor::scalar(step as i64)), w, length];
            let op = Stft { onesided };
            assert_near(&run_f32(&op, &inputs).unwrap(), &want, 1e-5);
            #[cfg(feature = "vulkan")]
            crate::ops::testing::check_op(&op, &inputs, 1e-5);
        }
    }

    #[test]
    fn frames_that_do_not_fit_are_errors() {
        let fails = |x: &[usize], step: i64, n: i64| {
            let inputs = [Some(tensor(x, 1)), Some(Tensor::scalar(step)), None, Some(Tensor::scalar(n))];
            facts(&Stft { onesided: true }, &inputs, 1).is_err()
        };
        assert!(!fails(&[1, 9], 2, 9));
        assert!(fails(&[1, 9], 2, 10));
        assert!(fails(&[1, 9], 0, 4));
        assert!(fails(&[1, 9], 2, 0));
        assert!(fails(&[1, 9], 2, -1));
        assert!(fails(&[1, 9, 3], 2, 4));
        assert!(fails(&[9], 2, 4));
    }
}
