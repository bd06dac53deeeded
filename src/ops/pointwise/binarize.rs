//! Binarizer of `ai.onnx.ml`: whether elements are above a threshold, in their own type.

use std::sync::Arc;

use super::apply::{input, map, output};
use super::number::{Number, with_number};
use crate::dtype::DType;
use crate::graph::TensorInfo;
use crate::kernel::NativeKernel;
use crate::kernel::table::{id, params};
use crate::ops::{AttrReader, Lowering, OpCx, OpError, Operand, Operator};

/// 1 where an element is above the threshold, else 0.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Binarizer {
    /// The threshold.
    pub threshold: f32,
}

pub(super) fn read(attrs: &mut AttrReader<'_>, _: i64) -> Result<Arc<dyn Operator>, OpError> {
    Ok(Arc::new(Binarizer { threshold: attrs.float("threshold", 0.0)? }))
}

/// Its types.
pub(super) const TYPES: &[DType] = &[DType::F32, DType::F64, DType::F16, DType::I32, DType::I64];

impl Operator for Binarizer {
    fn name(&self) -> &'static str {
        "Binarizer"
    }

    fn infer(&self, cx: &OpCx) -> Result<Vec<TensorInfo>, OpError> {
        cx.expect_counts(1..=1, 1..=1)?;
        cx.dtype_of(0, TYPES)?;
        Ok(vec![cx.input(0)?.clone()])
    }

    fn cpu(&self, cx: &OpCx) -> Result<NativeKernel, OpError> {
        let (n, threshold) = (cx.input(0)?.elements(), f64::from(self.threshold));
        with_number!(cx.dtype(0)?, T => Ok(NativeKernel::new("Binarizer", move |args| {
            let x = input::<T>(args, 0, n)?;
            map(x, output(args, 1, n)?, |v: T| T::from_i64(i64::from(v.to_f64() > threshold)));
            Ok(())
        })), else Err(OpError::unsupported("Binarizer of bool")))
    }

    fn gpu(&self, cx: &OpCx, lower: &mut Lowering<'_>) -> Result<(), OpError> {
        let (dtype, n) = (cx.dtype(0)?, cx.input(0)?.elements());
        let fail = || OpError::unsupported(format!("no device kernel for Binarizer of {n} {dtype}"));
        let kernel = match dtype {
            DType::F32 => id::BINARIZE_F32,
            DType::F16 => id::BINARIZE_F16,
            _ => return Err(fail()),
        };
        let p = params::Binarize { n: u32::try_from(n).map_err(|_| fail())?, threshold: self.threshold };
        lower.dispatch_1d(kernel, &[], &[Operand::Input(0), Operand::Output(0)], &p, n)
    }
}

#[cfg(test)]
#[cfg(feature = "vulkan")]
mod tests {
    use super::*;
    use crate::ops::test_util::{tensor, tensor_of};
    use crate::ops::testing::check_op;

    #[test]
    fn elements_above_the_threshold_are_ones() {
        let x = tensor(&[67], 1);
        let v = x.to_f32s().unwrap();
        let y = check_op(&Binarizer { threshold: 0.25 }, &[Some(x)], 0.0);
        assert!(y[0].to_f32s().unwrap().iter().zip(&v).all(|(y, x)| (*y == 1.0) == (*x > 0.25)));
        let half = tensor_of(&[67], &v, half::f16::from_f32);
        check_op(&Binarizer { threshold: -0.5 }, &[Some(half)], 0.0);
    }
}
