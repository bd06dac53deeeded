//! Det: determinants of square matrices.

use std::sync::Arc;

use crate::graph::TensorInfo;
use crate::kernel::table::{params, variants};
use crate::kernel::{KernelError, NativeKernel};
use crate::ops::real::{FLOATS, Real, RealIo, RealKernel, real_kernel};
use crate::ops::word::word;
use crate::ops::{AttrReader, Cost, HalfRule, Lowering, OpCx, OpError, Operand, Operator, par};
use crate::shape::Shape;

/// The determinant of each matrix of the last two axes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Det;

pub(super) fn read(_: &mut AttrReader<'_>, _: i64) -> Result<Arc<dyn Operator>, OpError> {
    Ok(Arc::new(Det))
}

/// Number of matrices, and of their rows.
fn sizes(cx: &OpCx) -> Result<[usize; 2], OpError> {
    match cx.shape(0)?.dims() {
        [batch @ .., m, n] if m == n => Ok([batch.iter().product(), *m]),
        _ => Err(cx.shape_error(0, "square matrices")),
    }
}

/// By Gaussian elimination with the largest pivot of each column; `a` is overwritten.
fn determinant(a: &mut [f64], n: usize) -> f64 {
    let mut det = 1.0;
    for k in 0..n {
        let pivot = (k..n).max_by(|&i, &j| a[i * n + k].abs().total_cmp(&a[j * n + k].abs())).unwrap_or(k);
        if a[pivot * n + k] == 0.0 {
            return 0.0;
        }
        if pivot != k {
            (0..n).for_each(|j| a.swap(pivot * n + j, k * n + j));
            det = -det;
        }
        det *= a[k * n + k];
        let (above, below) = a.split_at_mut((k + 1) * n);
        let row = &above[k * n..];
        for below in below.chunks_mut(n) {
            let factor = below[k] / row[k];
            below.iter_mut().zip(row).skip(k).for_each(|(b, r)| *b -= factor * r);
        }
    }
    det
}

impl Operator for Det {
    fn name(&self) -> &'static str {
        "Det"
    }

    fn half_rule(&self) -> HalfRule {
        HalfRule::Full
    }

    fn infer(&self, cx: &OpCx) -> Result<Vec<TensorInfo>, OpError> {
        cx.expect_counts(1..=1, 1..=1)?;
        let dtype = cx.dtype_of(0, FLOATS)?;
        sizes(cx)?;
        let x = cx.shape(0)?;
        Ok(vec![TensorInfo::new(dtype, Shape::new(&x[..x.rank() - 2])?)])
    }

    fn cost(&self, cx: &OpCx) -> Cost {
        let [batch, n] = sizes(cx).unwrap_or_default();
        let flops = Cost::product(&[batch, n, n, n, 2]) / 3;
        Cost { flops, bytes: cx.bytes_touched() }
    }

    fn cpu(&self, cx: &OpCx) -> Result<NativeKernel, OpError> {
        real_kernel("Det", cx, Run { sizes: sizes(cx)? })
    }

    fn gpu(&self, cx: &OpCx, lower: &mut Lowering<'_>) -> Result<(), OpError> {
        /// An invocation takes a whole matrix, so larger ones are better off on the CPU.
        const MAX_ROWS: usize = 64;
        let [batch, n] = sizes(cx)?;
        let kernel = variants::Det { t: cx.dtype(0)? }.id()?;
        if n > MAX_ROWS {
            return Err(OpError::unsupported(format!("determinants of more than {MAX_ROWS} rows")));
        }
        if batch == 0 {
            return Ok(());
        }
        // Elimination is two thirds of that; the copy and the search for pivots are less than the rest.
        lower.iterations(n * n * n / 2)?;
        let work = lower.scratch(4 * batch * n * n);
        let p = params::Det { n: word(batch)?, rows: word(n)? };
        word(batch * n * n)?;
        lower.dispatch_1d(kernel, &[], &[Operand::Input(0), work, Operand::Output(0)], &p, batch)
    }
}

struct Run {
    sizes: [usize; 2],
}

impl RealKernel for Run {
    fn run<T: Real>(&self, io: &mut RealIo<'_, T>) -> Result<(), KernelError> {
        let [batch, n] = self.sizes;
        let (y, inputs) = io.output(0, batch)?;
        let x = inputs.get(0, batch * n * n)?;
        par::each(y, x.len().saturating_mul(n / 3 + 1), |i| {
            let matrix = x.get(i * n * n..(i + 1) * n * n).unwrap_or(&[]);
            let mut a: Vec<f64> = matrix.iter().map(|v| v.to_f64()).collect();
            T::from_f64(determinant(&mut a, n))
        });
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::Tensor;
    use crate::ops::test_util::{assert_near, facts, run_f32, tensor};

    #[test]
    fn determinants_have_the_sign_of_their_rows_order() {
        let x =
            Tensor::new([3, 2, 2], &[0f32, 1.0, 1.0, 0.0, 1.0, 2.0, 2.0, 4.0, 3.0, 1.0, -2.0, 5.0]).unwrap();
        assert_near(&run_f32(&Det, &[Some(x)]).unwrap(), &[-1.0, 0.0, 17.0], 1e-6);
        let none = Tensor::new([2, 0, 0], &[0f32; 0]).unwrap();
        assert_near(&run_f32(&Det, &[Some(none)]).unwrap(), &[1.0, 1.0], 0.0);
        assert!(facts(&Det, &[Some(tensor(&[2, 3], 1))], 1).is_err());
    }

    #[cfg(feature = "vulkan")]
    #[test]
    fn devices_agree() {
        use crate::ops::test_util::tensor_of;
        use crate::ops::testing::check_op;
        for shape in [vec![67, 3, 3], vec![2, 3, 9, 9], vec![1, 1], vec![33, 33]] {
            let x = tensor(&shape, 2);
            check_op(&Det, &[Some(x.clone())], 1e-3);
            let half = tensor_of(&shape, &x.to_f32s().unwrap(), half::f16::from_f32);
            check_op(&Det, &[Some(half)], 1e-2);
        }
    }
}
