//! ArrayFeatureExtractor of `ai.onnx.ml`: columns of a table.

use std::sync::Arc;

use super::gather::Sizes;
use crate::dtype::DType;
use crate::graph::TensorInfo;
use crate::kernel::NativeKernel;
use crate::ops::{AttrReader, Cost, Lowering, OpCx, OpError, Operand, Operator};
use crate::shape::Shape;

/// The elements along the last axis of input 0 that the int64 indices of input 1 name. A vector counts as a
/// table of one row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ArrayFeatureExtractor;

pub(super) fn read(_: &mut AttrReader<'_>, _: i64) -> Result<Arc<dyn Operator>, OpError> {
    Ok(Arc::new(ArrayFeatureExtractor))
}

fn sizes(cx: &OpCx) -> Result<Sizes, OpError> {
    let Some((&size, rows)) = cx.shape(0)?.split_last() else {
        return Err(cx.shape_error(0, "at least one dimension"));
    };
    let indices = cx.input(1)?.elements();
    Ok(Sizes { outer: rows.iter().product(), size, inner: 1, indices })
}

impl Operator for ArrayFeatureExtractor {
    fn name(&self) -> &'static str {
        "ArrayFeatureExtractor"
    }

    fn infer(&self, cx: &OpCx) -> Result<Vec<TensorInfo>, OpError> {
        cx.expect_counts(2..=2, 1..=1)?;
        cx.expect_dtype(1, DType::I64)?;
        let (x, sizes) = (cx.input(0)?, sizes(cx)?);
        let mut dims = x.shape.to_vec();
        dims.pop();
        if dims.is_empty() {
            dims.push(1);
        }
        dims.push(sizes.indices);
        let shape = Shape::new(dims)?;
        if sizes.size == 0 && shape.elements() > 0 {
            return Err(cx.shape_error(0, "at least one column"));
        }
        Ok(vec![TensorInfo::new(x.dtype, shape)])
    }

    fn cost(&self, cx: &OpCx) -> Cost {
        Cost { flops: 0, bytes: 2 * cx.outputs().iter().map(|o| o.bytes() as u64).sum::<u64>() }
    }

    fn cpu(&self, cx: &OpCx) -> Result<NativeKernel, OpError> {
        Ok(sizes(cx)?.native(self.name(), cx.dtype(0)?.bytes(), DType::I64))
    }

    fn gpu(&self, cx: &OpCx, lower: &mut Lowering<'_>) -> Result<(), OpError> {
        let args = [Operand::Input(0), Operand::Input(1), Operand::Output(0)];
        sizes(cx)?.lower(lower, cx.dtype(0)?.bytes(), args, 2)
    }
}
