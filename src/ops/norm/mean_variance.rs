//! MeanVarianceNormalization: mean 0 and variance 1 over any axes.

use std::sync::Arc;

use super::device::{self, Places};
use super::rows::{Affine, RowNorm};
use crate::graph::TensorInfo;
use crate::kernel::{KernelError, NativeKernel};
use crate::ops::linalg::product::sum_of;
use crate::ops::real::{FLOATS, Real, RealIo, RealKernel, real_kernel};
use crate::ops::window::bad;
use crate::ops::{Activation, AttrReader, Cost, Lowering, OpCx, OpError, Operator, par};
use crate::shape::Shape;
use crate::simd::wide;

/// Added to the standard deviation.
pub(crate) const EPSILON: f64 = 1e-9;

/// `(x - mean) / (standard deviation + 1e-9)` over `axes`.
#[derive(Clone, Debug)]
pub struct MeanVarianceNormalization {
    /// The axes that are normalized over.
    pub axes: Vec<i64>,
}

pub(super) fn read(attrs: &mut AttrReader<'_>, _opset: i64) -> Result<Arc<dyn Operator>, OpError> {
    Ok(Arc::new(MeanVarianceNormalization { axes: attrs.ints_opt("axes")?.unwrap_or_else(|| vec![0, 2, 3]) }))
}

/// The positions of the elements: one group begins at each of `bases`, its elements are at `offsets` from there.
#[derive(Clone, Debug)]
struct Groups {
    bases: Vec<usize>,
    offsets: Vec<usize>,
    /// Whether each group is neighbouring elements, and the next one follows it.
    rows: bool,
}

impl MeanVarianceNormalization {
    /// For every axis whether it is normalized over.
    pub(crate) fn normalized(&self, shape: &Shape) -> Result<Vec<bool>, OpError> {
        let mut over = vec![false; shape.rank()];
        for axis in &self.axes {
            let axis = shape.axis(*axis)?;
            if std::mem::replace(&mut over[axis], true) {
                return Err(bad("axes", format!("{:?} names one axis twice", self.axes)));
            }
        }
        Ok(over)
    }

    /// The rows for the device kernel, which takes normalized axes in one block or around one.
    fn rows(&self, shape: &Shape) -> Result<(RowNorm, Places), OpError> {
        // Neighbouring axes of one kind, those of one element left out.
        let mut blocks: Vec<(bool, usize)> = Vec::new();
        for (over, &n) in self.normalized(shape)?.into_iter().zip(shape.iter()) {
            match blocks.last_mut() {
                _ if n == 1 => {}
                Some(last) if last.0 == over => last.1 *= n,
                _ => blocks.push((over, n)),
            }
        }
        let (rows, len, places) = match *blocks.as_slice() {
            [] => (1, 1, Places::dense(1)),
            [(false, k)] => (k, 1, Places::dense(1)),
            [(true, n)] => (1, n, Places::dense(n)),
            [(false, k), (true, n)] => (k, n, Places::dense(n)),
            [(true, n), (false, k)] => {
                (k, n, Places { inner_rows: k, outer_step: 0, row_step: 1, run: 1, jump: k })
            }
            [(false, k), (true, n), (false, m)] => {
                (k * m, n, Places { inner_rows: m, outer_step: n * m, row_step: 1, run: 1, jump: m })
            }
            [(true, n), (false, k), (true, m)] => {
                (k, n * m, Places { inner_rows: k, outer_step: 0, row_step: m, run: m, jump: k * m })
            }
            _ => return Err(OpError::unsupported("no device kernel for so scattered axes")),
        };
        let affine = Affine { rows: 1, stride: 0, run: 1 };
        let (epsilon, activation) = (EPSILON as f32, Activation::None);
        Ok((RowNorm { rows, len, center: true, epsilon, affine, activation }, places))
    }

    fn groups(&self, shape: &Shape) -> Result<Groups, OpError> {
        let over = self.normalized(shape)?;
        let strides = shape.strides();
        let places = |pick: bool| {
            let axes = (0..shape.rank()).filter(|a| over[*a] == pick);
            axes.fold(vec![0], |at, axis| {
                at.iter()
                    .flat_map(|b| (0..shape[axis]).map(move |i| (b, i)))
                    .map(|(b, i)| b + i * strides[axis])
                    .collect()
            })
        };
        let (bases, offsets) = (places(false), places(true));
        let steps = |places: &[usize], step: usize| places.iter().enumerate().all(|(i, at)| i * step == *at);
        let rows = steps(&offsets, 1) && steps(&bases, offsets.len());
        Ok(Groups { bases, offsets, rows })
    }
}

impl Operator for MeanVarianceNormalization {
    fn name(&self) -> &'static str {
        "MeanVarianceNormalization"
    }

    fn infer(&self, cx: &OpCx) -> Result<Vec<TensorInfo>, OpError> {
        cx.expect_counts(1..=1, 1..=1)?;
        let dtype = cx.dtype_of(0, FLOATS)?;
        let shape = cx.shape(0)?;
        self.normalized(shape)?;
        Ok(vec![TensorInfo::new(dtype, shape.clone())])
    }

    fn cost(&self, cx: &OpCx) -> Cost {
        Cost { flops: 6 * cx.input_opt(0).map_or(0, |i| i.elements() as u64), bytes: cx.bytes_touched() }
    }

    fn cpu(&self, cx: &OpCx) -> Result<NativeKernel, OpError> {
        real_kernel("MeanVarianceNormalization", cx, Run { groups: self.groups(cx.shape(0)?)? })
    }

    fn gpu(&self, cx: &OpCx, lower: &mut Lowering<'_>) -> Result<(), OpError> {
        let shape = cx.shape(0)?;
        let (norm, places) = self.rows(shape)?;
        device::rows(cx, &norm, &places, true, lower)
    }
}

struct Run {
    groups: Groups,
}

/// Normalizes neighbouring elements.
fn row<T: Real>(x: &[T], y: &mut [T]) {
    wide(
        #[inline(always)]
        || {
            let count = T::from_f64(x.len() as f64);
            let mean = sum_of(
                x,
                #[inline(always)]
                |v| v,
            ) / count;
            let variance = sum_of(
                x,
                #[inline(always)]
                |v| (v - mean) * (v - mean),
            ) / count;
            let deviation = variance.sqrt() + T::from_f64(EPSILON);
            for (y, x) in y.iter_mut().zip(x) {
                *y = (*x - mean) / deviation;
            }
        },
    );
}

impl RealKernel for Run {
    fn run<T: Real>(&self, io: &mut RealIo<'_, T>) -> Result<(), KernelError> {
        let Groups { bases, offsets, rows } = &self.groups;
        let (y, inputs) = io.output(0, bases.len() * offsets.len())?;
        let x = inputs.get(0, y.len())?;
        let count = T::from_f64(offsets.len() as f64);
        if *rows && !y.is_empty() {
            let len = offsets.len();
            par::rows(y, len, 4 * x.len(), |i, y| row(&x[i * len..][..len], y));
            return Ok(());
        }
        let mut stats = vec![(T::ZERO, T::ZERO); bases.len()];
        par::each(&mut stats, 2 * x.len(), |i| {
            let values = || offsets.iter().map(|o| x[bases[i] + o]);
            let mean = values().sum::<T>() / count;
            let variance = values().map(|v| (v - mean) * (v - mean)).sum::<T>() / count;
            (mean, variance.sqrt() + T::from_f64(EPSILON))
        });
        for (base, (mean, deviation)) in bases.iter().zip(stats) {
            for o in offsets {
                y[base + o] = (x[base + o] - mean) / deviation;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use crate::ops::AttrValue;
    use crate::ops::test_util::{assert_near, attrs, facts, read_op, run_f32, tensor};

    #[test]
    fn any_axes_are_normalized_over() {
        let shape = [2usize, 3, 4, 5];
        for mask in 1u32..16 {
            let axes: Vec<i64> = (0..4).filter(|a| mask >> a & 1 == 1).collect();
            let x = tensor(&shape, 1);
            let v = x.to_f32s().unwrap();
            // Elements belong together where their kept coordinates agree.
            let key = |i: usize| {
                let at = [i / 60, i / 20 % 3, i / 5 % 4, i % 5];
                (0..4).map(|a| if mask >> a & 1 == 1 { 0 } else { at[a] }).collect::<Vec<_>>()
            };
            let want: Vec<f64> = (0..v.len())
                .map(|i| {
                    let group: Vec<f64> =
                        (0..v.len()).filter(|j| key(*j) == key(i)).map(|j| f64::from(v[j])).collect();
                    let n = group.len() as f64;
                    let mean = group.iter().sum::<f64>() / n;
                    let var = group.iter().map(|g| (g - mean).powi(2)).sum::<f64>() / n;
                    (f64::from(v[i]) - mean) / (var.sqrt() + 1e-9)
                })
                .collect();
            let op = read_op("MeanVarianceNormalization", 13, &attrs(&[("axes", AttrValue::Ints(axes))]));
            assert_near(&run_f32(&*op.unwrap(), &[Some(x)]).unwrap(), &want, 1e-4);
        }
    }

    #[test]
    fn axes_that_do_not_fit_are_errors() {
        let op = read_op("MeanVarianceNormalization", 13, &attrs(&[])).unwrap();
        assert!(facts(&*op, &[Some(tensor(&[1, 2, 3, 4], 1))], 1).is_ok());
        assert!(facts(&*op, &[Some(tensor(&[2, 3], 1))], 1).is_err());
        let map = attrs(&[("axes", AttrValue::Ints(vec![0, -2]))]);
        let op = read_op("MeanVarianceNormalization", 13, &map).unwrap();
        assert!(facts(&*op, &[Some(tensor(&[2, 3], 1))], 1).is_err());
    }
}
