//! NonZero: the coordinates of the elements that are not zero.

use std::sync::Arc;

use crate::dtype::DType;
use crate::graph::{Tensor, TensorInfo};
use crate::kernel::NativeKernel;
use crate::ops::pointwise::number::{Number, with_number};
use crate::ops::{AttrReader, OpCx, OpError, Operator};

/// `[rank, count]` int64: a column of coordinates for each element that is not zero, in row-major order.
/// Their number depends on the elements, so the host computes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NonZero;

pub(super) fn read(_: &mut AttrReader<'_>, _: i64) -> Result<Arc<dyn Operator>, OpError> {
    Ok(Arc::new(NonZero))
}

impl NonZero {
    fn compute(cx: &OpCx) -> Result<Tensor, OpError> {
        cx.expect_counts(1..=1, 1..=1)?;
        cx.dtype_of(0, &DType::COMPUTE)?;
        let x = cx.need_value(0)?;
        let found: Vec<usize> = with_number!(x.dtype(), T => {
            let x = x.as_slice::<T>()?;
            (0..x.len()).filter(|&i| x[i] != T::ZERO).collect()
        }, else {
            let x = x.as_slice::<u8>()?;
            (0..x.len()).filter(|&i| x[i] != 0).collect()
        });
        let (shape, strides) = (x.shape(), x.shape().strides());
        let mut out = Vec::with_capacity(shape.rank() * found.len());
        for d in 0..shape.rank() {
            out.extend(found.iter().map(|at| (at / strides[d] % shape[d]) as i64));
        }
        Ok(Tensor::new([shape.rank(), found.len()], &out)?)
    }
}

impl Operator for NonZero {
    fn name(&self) -> &'static str {
        "NonZero"
    }

    fn infer(&self, cx: &OpCx) -> Result<Vec<TensorInfo>, OpError> {
        Ok(vec![Self::compute(cx)?.info().clone()])
    }

    fn host(&self, cx: &OpCx) -> Option<Result<Vec<Tensor>, OpError>> {
        Some(Self::compute(cx).map(|t| vec![t]))
    }

    fn cpu(&self, _: &OpCx) -> Result<NativeKernel, OpError> {
        Err(OpError::unsupported("NonZero in a recorded run: its output's size depends on elements"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::Fact;

    fn found(x: Tensor) -> (Vec<usize>, Vec<i64>) {
        let cx = OpCx::for_infer(vec![Some(Fact::known(x))], 1);
        let y = NonZero.host(&cx).unwrap().unwrap().remove(0);
        (y.shape().to_vec(), y.to_i64s().unwrap())
    }

    #[test]
    fn coordinates_are_in_row_major_order() {
        let x = Tensor::new([2, 3], &[0f32, 2.0, f32::NAN, 1.0, -0.0, 0.0]).unwrap();
        assert_eq!(found(x), (vec![2, 3], vec![0, 0, 1, 1, 2, 0]));
        assert_eq!(found(Tensor::new([0, 2], &[0i32; 0]).unwrap()), (vec![2, 0], vec![]));
        assert_eq!(found(Tensor::scalar(7i8)), (vec![0, 1], vec![]));
    }

    #[test]
    fn a_value_that_is_not_known_is_asked_for() {
        let info = Tensor::scalar(1u8).info().clone();
        let cx = OpCx::for_infer(vec![Some(Fact::of(info))], 1);
        assert!(matches!(NonZero.host(&cx), Some(Err(OpError::NeedsValue { input: 0 }))));
    }
}
