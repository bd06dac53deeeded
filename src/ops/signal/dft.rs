//! DFT: discrete Fourier transforms along one axis.

use std::sync::{Arc, OnceLock};

use super::spectrum::{Rows, Run, Samples, Spectrum};
use super::spectrum_device;
use crate::graph::TensorInfo;
use crate::kernel::NativeKernel;
use crate::ops::real::{FLOATS, real_kernel};
use crate::ops::{AttrReader, Cost, HalfRule, Lowering, OpCx, OpError, Operator};
use crate::shape::Shape;

/// Transforms input 0 `[.., samples, .., 1 or 2]` (real numbers, or real and imaginary parts) along one axis.
/// Input 1 is the length of the transform, to which samples are cut off or zeros added; from opset 20 on
/// input 2 is the axis.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Dft {
    /// The axis where no input says it, negative ones counted from the end.
    pub axis: i64,
    /// Whether it is the inverse transform, divided by its length.
    pub inverse: bool,
    /// Whether only the first half of the output is wanted; of the inverse transform, whether the input is
    /// the first half of the spectrum of a real signal.
    pub onesided: bool,
}

pub(super) fn read(attrs: &mut AttrReader<'_>, opset: i64) -> Result<Arc<dyn Operator>, OpError> {
    Ok(Arc::new(Dft {
        axis: if opset < 20 { attrs.int("axis", 1)? } else { -2 },
        inverse: attrs.flag("inverse", false)?,
        onesided: attrs.flag("onesided", false)?,
    }))
}

/// The only integer of input `i`, if it is given.
pub(super) fn one_integer(cx: &OpCx, i: usize) -> Result<Option<i64>, OpError> {
    let Some(values) = cx.need_i64s_opt(i)? else { return Ok(None) };
    match values.as_slice() {
        [v] => Ok(Some(*v)),
        _ => Err(cx.shape_error(i, "one element")),
    }
}

impl Dft {
    fn resolve(&self, cx: &OpCx) -> Result<(Spectrum, Shape), OpError> {
        let x = cx.shape(0)?;
        let parts = match x.last() {
            Some(parts @ 1..=2) if x.rank() >= 2 => *parts,
            _ => return Err(cx.shape_error(0, "samples, and 1 or 2 as last dimension")),
        };
        let axis = x.axis(one_integer(cx, 2)?.unwrap_or(self.axis))?;
        if axis + 1 == x.rank() {
            return Err(OpError::unsupported("a transform along real and imaginary parts"));
        }
        let len = x[axis];
        let to_real = self.inverse && self.onesided;
        let given = one_integer(cx, 1)?;
        let n = match given {
            Some(n) => usize::try_from(n).unwrap_or(0),
            None if to_real => 2 * len.saturating_sub(1),
            None => len,
        };
        if n == 0 {
            let problem = format!("a transform of length {}", given.unwrap_or(0));
            return Err(OpError::Value { input: usize::from(given.is_some()), problem });
        }
        let samples = match (parts, to_real) {
            (1, false) => Samples::Real,
            (1, true) => return Err(cx.shape_error(0, "real and imaginary parts as last dimension")),
            (_, false) => Samples::Complex,
            (_, true) => Samples::HalfSpectrum,
        };
        let half = n / 2 + 1;
        let out = if self.onesided && !self.inverse { half } else { n };
        let mut shape = x.to_vec();
        shape[axis] = out;
        shape[x.rank() - 1] = if to_real { 1 } else { 2 };
        let shape = Shape::new(shape)?;
        let outer: usize = x[..axis].iter().product();
        let inner: usize = x[axis + 1..x.rank() - 1].iter().product();
        let desc = Spectrum {
            n,
            inverse: self.inverse,
            samples,
            used: len.min(if to_real { half } else { n }),
            rows: outer * inner,
            inner: inner.max(1),
            x: Rows { outer_step: len * inner, inner_step: 1, step: inner },
            x_len: outer * len * inner,
            y: Rows { outer_step: out.saturating_mul(inner), inner_step: 1, step: inner },
            out,
            real: to_real,
            window: None,
        };
        Ok((desc, shape))
    }
}

impl Operator for Dft {
    fn name(&self) -> &'static str {
        "DFT"
    }

    fn half_rule(&self) -> HalfRule {
        HalfRule::Full
    }

    fn value_inputs(&self) -> &'static [usize] {
        &[1, 2]
    }

    fn infer(&self, cx: &OpCx) -> Result<Vec<TensorInfo>, OpError> {
        cx.expect_counts(1..=3, 1..=1)?;
        let dtype = cx.dtype_of(0, FLOATS)?;
        Ok(vec![TensorInfo::new(dtype, self.resolve(cx)?.1)])
    }

    fn cost(&self, cx: &OpCx) -> Cost {
        Cost { flops: self.resolve(cx).map_or(0, |(d, _)| d.flops()), bytes: cx.bytes_touched() }
    }

    fn cpu(&self, cx: &OpCx) -> Result<NativeKernel, OpError> {
        real_kernel("DFT", cx, Run { desc: self.resolve(cx)?.0, plan: OnceLock::new() })
    }

    fn gpu(&self, cx: &OpCx, lower: &mut Lowering<'_>) -> Result<(), OpError> {
        spectrum_device::transform(&self.resolve(cx)?.0, cx, lower)
    }
}

#[cfg(test)]
mod tests {
    use std::f64::consts::PI;

    use super::*;
    use crate::graph::Tensor;
    use crate::ops::AttrValue;
    use crate::ops::test_util::{assert_near, attrs, facts, read_op, run_f32, tensor};

    fn op(inverse: bool, onesided: bool) -> Dft {
        Dft { axis: -2, inverse, onesided }
    }

    /// The sum that defines element `k` of the transform of `x`.
    fn sum(x: &[(f64, f64)], k: usize, n: usize, sign: f64) -> (f64, f64) {
        x.iter().take(n).enumerate().fold((0.0, 0.0), |(re, im), (t, (a, b))| {
            let (s, c) = (sign * 2.0 * PI * (k * t % n) as f64 / n as f64).sin_cos();
            (re + a * c - b * s, im + a * s + b * c)
        })
    }

    #[test]
    fn transforms_are_the_sums_that_define_them() {
        for (len, n) in [(1, 1), (5, 5), (8, 8), (6, 9), (12, 7), (60, 60), (64, 128), (101, 101)] {
            for axis in [1i64, 2] {
                for parts in [1usize, 2] {
                    for inverse in [false, true] {
                        let shape = if axis == 1 { [2, len, 3, parts] } else { [2, 3, len, parts] };
                        let x = tensor(&shape, 9);
                        let v = x.to_f32s().unwrap();
                        let inner = if axis == 1 { 3 } else { 1 };
                        let outer = 6 / inner;
                        let mut want = vec![0.0; outer * n * inner * 2];
                        for r in 0..outer * inner {
                            let (o, i) = (r / inner, r % inner);
                            let row: Vec<(f64, f64)> = (0..len)
                                .map(|t| {
                                    let at = ((o * len + t) * inner + i) * parts;
                                    (v[at].into(), if parts == 2 { v[at + 1].into() } else { 0.0 })
                                })
                                .collect();
                            let (sign, scale) = if inverse { (1.0, 1.0 / n as f64) } else { (-1.0, 1.0) };
                            for k in 0..n {
                                let at = ((o * n + k) * inner + i) * 2;
                                let (re, im) = sum(&row, k, n, sign);
                                (want[at], want[at + 1]) = (re * scale, im * scale);
                            }
                        }
                        let length = (n != len).then(|| Tensor::scalar(n as i64));
                        let inputs = [Some(x), length, Some(Tensor::scalar(axis))];
                        assert_near(&run_f32(&op(inverse, false), &inputs).unwrap(), &want, 1e-5);
                        #[cfg(feature = "vulkan")]
                        crate::ops::testing::check_op(&op(inverse, false), &inputs, 2e-5);
                    }
                }
            }
        }
    }

    #[test]
    fn half_a_spectrum_and_back() {
        for n in [6usize, 7, 32] {
            let x = tensor(&[3, n, 1], 2);
            let half = run_f32(&op(false, true), &[Some(x.clone())]).unwrap();
            assert_eq!(half.shape().dims(), [3, n / 2 + 1, 2]);
            let inputs = [Some(half), Some(Tensor::scalar(n as i32))];
            let back = run_f32(&op(true, true), &inputs).unwrap();
            let want: Vec<f64> = x.to_f32s().unwrap().into_iter().map(f64::from).collect();
            assert_near(&back, &want, 1e-5);
            #[cfg(feature = "vulkan")]
            {
                crate::ops::testing::check_op(&op(false, true), &[Some(x)], 1e-5);
                crate::ops::testing::check_op(&op(true, true), &inputs, 1e-5);
            }
        }
    }

    #[test]
    fn the_axis_is_an_attribute_or_an_input() {
        let x = || Some(tensor(&[2, 5, 3, 1], 1));
        let shape = |op: &dyn Operator, axis: Option<Tensor>| {
            facts(op, &[x(), Some(Tensor::scalar(8i64)), axis], 1).map(|cx| cx.outputs()[0].shape.to_vec())
        };
        let old = read_op("DFT", 17, &attrs(&[])).unwrap();
        assert_eq!(shape(&*old, None).unwrap(), [2, 8, 3, 2]);
        let old = read_op("DFT", 19, &attrs(&[("axis", AttrValue::Int(0))])).unwrap();
        assert_eq!(shape(&*old, None).unwrap(), [8, 5, 3, 2]);
        let new = read_op("DFT", 20, &attrs(&[("onesided", AttrValue::Int(1))])).unwrap();
        assert_eq!(shape(&*new, None).unwrap(), [2, 5, 5, 2]);
        assert_eq!(shape(&*new, Some(Tensor::scalar(-3i64))).unwrap(), [2, 5, 3, 2]);
        assert!(shape(&*new, Some(Tensor::scalar(-1i64))).is_err());
        assert!(shape(&*new, Some(Tensor::scalar(4i64))).is_err());
        let fails = |x: &[usize], n: i64| {
            facts(&op(false, false), &[Some(tensor(x, 1)), Some(Tensor::scalar(n))], 1).is_err()
        };
        assert!(fails(&[2, 3], 4) && fails(&[2], 4) && fails(&[2, 3, 1], 0) && fails(&[2, 3, 1], -3));
        assert!(fails(&[2, 3, 1], i64::MAX));
        assert!(!fails(&[0, 3, 1], 1 << 50));
    }

    #[test]
    fn no_rows_need_no_plan() {
        let inputs = [Some(tensor(&[0, 3, 1], 1)), Some(Tensor::scalar(1i64 << 50))];
        assert_eq!(run_f32(&op(false, false), &inputs).unwrap().info().elements(), 0);
    }

    #[cfg(feature = "vulkan")]
    #[test]
    fn devices_transform_any_length() {
        use crate::ops::test_util::{tensor_of, values};
        use crate::ops::testing::Check;
        for n in [2usize, 13, 16, 30, 127, 211, 256, 400, 1024, 1019, 1 << 13, 3 * 1009] {
            let x = tensor(&[2, n, 2], 3);
            Check::new(&op(false, false), &[Some(x.clone())]).tolerance(1e-4).run();
            Check::new(&op(true, false), &[Some(x)]).tolerance(1e-4).run();
        }
        // A large prime is left to the host.
        let x = [Some(tensor(&[1, 10_007, 1], 3))];
        Check::new(&op(false, false), &x).tolerance(1e-4).optional().run();
        let x = tensor_of(&[2, 48, 1], &values(96, 1), half::f16::from_f32);
        Check::new(&op(false, true), &[Some(x)]).tolerance(2e-3).run();
    }
}
