//! LpNormalization: vectors along one axis divided by their norm.

use std::sync::Arc;

use super::Along;
use crate::graph::TensorInfo;
use crate::kernel::codes::softmax::Kind;
use crate::kernel::{KernelError, NativeKernel};
use crate::ops::linalg::product::sum_of;
use crate::ops::real::{FLOATS, Real, RealIo, RealKernel, real_kernel};
use crate::ops::window::bad;
use crate::ops::{AttrReader, Cost, Lowering, OpCx, OpError, Operand, Operator, par};
use crate::simd::wide;

/// Divides vectors along `axis` by their norm; a vector of zeros stays.
#[derive(Clone, Debug)]
pub struct LpNormalization {
    /// The axis of the vectors.
    pub axis: i64,
    /// Which norm: 1 or 2.
    pub p: u32,
}

pub(super) fn read(attrs: &mut AttrReader<'_>, _opset: i64) -> Result<Arc<dyn Operator>, OpError> {
    let p = attrs.int("p", 2)?;
    if p != 1 && p != 2 {
        return Err(bad("p", format!("is {p}, expected 1 or 2")));
    }
    Ok(Arc::new(LpNormalization { axis: attrs.int("axis", -1)?, p: p as u32 }))
}

impl LpNormalization {
    pub(crate) fn resolve(&self, cx: &OpCx) -> Result<Along, OpError> {
        let shape = cx.shape(0)?;
        let axis = shape.axis(self.axis)?;
        Ok(Along::axes(shape, axis, axis + 1))
    }
}

impl Operator for LpNormalization {
    fn name(&self) -> &'static str {
        "LpNormalization"
    }

    fn infer(&self, cx: &OpCx) -> Result<Vec<TensorInfo>, OpError> {
        cx.expect_counts(1..=1, 1..=1)?;
        let dtype = cx.dtype_of(0, FLOATS)?;
        self.resolve(cx)?;
        Ok(vec![TensorInfo::new(dtype, cx.shape(0)?.clone())])
    }

    fn cost(&self, cx: &OpCx) -> Cost {
        Cost { flops: 3 * cx.input_opt(0).map_or(0, |i| i.elements() as u64), bytes: cx.bytes_touched() }
    }

    fn cpu(&self, cx: &OpCx) -> Result<NativeKernel, OpError> {
        real_kernel("LpNormalization", cx, Run { along: self.resolve(cx)?, p: self.p })
    }

    fn gpu(&self, cx: &OpCx, lower: &mut Lowering<'_>) -> Result<(), OpError> {
        let kind = if self.p == 1 { Kind::L1 } else { Kind::L2 };
        super::device::vectors(cx, self.resolve(cx)?, kind, Operand::Output(0), lower)
    }
}

struct Run {
    along: Along,
    p: u32,
}

/// What the elements of a vector are divided by, of the sum of their absolute values or squares.
#[inline(always)]
fn norm_of<T: Real>(sum: T, p: u32) -> T {
    let norm = if p == 1 { sum } else { sum.sqrt() };
    if norm == T::ZERO { T::ONE } else { norm }
}

/// Divides one vector by its norm.
fn one<T: Real>(x: &[T], y: &mut [T], p: u32) {
    wide(
        #[inline(always)]
        || {
            let sum = if p == 1 {
                sum_of(
                    x,
                    #[inline(always)]
                    |v| v.abs(),
                )
            } else {
                sum_of(
                    x,
                    #[inline(always)]
                    |v| v * v,
                )
            };
            let norm = norm_of(sum, p);
            for (y, x) in y.iter_mut().zip(x) {
                *y = *x / norm;
            }
        },
    );
}

impl RealKernel for Run {
    fn run<T: Real>(&self, io: &mut RealIo<'_, T>) -> Result<(), KernelError> {
        let Along { len, inner, .. } = self.along;
        let (y, inputs) = io.output(0, self.along.elements())?;
        let x = inputs.get(0, self.along.elements())?;
        if y.is_empty() {
            return Ok(());
        }
        par::rows(y, len * inner, 2 * x.len(), |i, y| {
            let x = &x[i * len * inner..][..len * inner];
            if inner == 1 {
                return one(x, y, self.p);
            }
            let mut norms = vec![T::ZERO; inner];
            for x in x.chunks(inner) {
                norms.iter_mut().zip(x).for_each(|(n, x)| *n += if self.p == 1 { x.abs() } else { *x * *x });
            }
            norms.iter_mut().for_each(|n| *n = norm_of(*n, self.p));
            for (y, x) in y.chunks_mut(inner).zip(x.chunks(inner)) {
                y.iter_mut().zip(x).zip(&norms).for_each(|((y, x), n)| *y = *x / *n);
            }
        });
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use crate::graph::Tensor;
    use crate::ops::AttrValue;
    use crate::ops::test_util::{assert_near, attrs, read_op, run_f32, tensor};

    #[test]
    fn vectors_along_any_axis_get_length_one() {
        let shape = [3, 4, 5];
        for axis in -3i64..3 {
            for p in [1i64, 2] {
                let at = if axis < 0 { axis + 3 } else { axis } as usize;
                let x = tensor(&shape, 1);
                let map = attrs(&[("axis", AttrValue::Int(axis)), ("p", AttrValue::Int(p))]);
                let v = x.to_f32s().unwrap();
                let inner: usize = shape[at + 1..].iter().product();
                let len = shape[at];
                let want: Vec<f64> = (0..v.len())
                    .map(|i| {
                        let base = i / (len * inner) * len * inner + i % inner;
                        let all = (0..len).map(|k| f64::from(v[base + k * inner]).abs());
                        let norm = if p == 1 { all.sum() } else { all.map(|v| v * v).sum::<f64>().sqrt() };
                        f64::from(v[i]) / norm
                    })
                    .collect();
                let op = read_op("LpNormalization", 1, &map).unwrap();
                assert_near(&run_f32(&*op, &[Some(x)]).unwrap(), &want, 1e-5);
            }
        }
        let op = read_op("LpNormalization", 1, &attrs(&[])).unwrap();
        let zeros = Tensor::new([2], &[0.0f32; 2]).unwrap();
        assert_near(&run_f32(&*op, &[Some(zeros)]).unwrap(), &[0.0, 0.0], 0.0);
        assert!(read_op("LpNormalization", 1, &attrs(&[("p", AttrValue::Int(3))])).is_err());
    }
}
