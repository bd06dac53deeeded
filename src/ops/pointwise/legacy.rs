//! Broadcasting before opset 7: the second input is aligned with some dimensions of the first.

use std::sync::Arc;

use super::binary::{Binary, binary};
use crate::expr::BinaryFunction;
use crate::graph::TensorInfo;
use crate::kernel::NativeKernel;
use crate::ops::{AttrReader, Fact, Lowering, OpCx, OpError, Operator};
use crate::shape::Shape;

/// A [`Binary`] whose second input is aligned with the dimensions of the first from `axis` on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BinaryBeside {
    op: Binary,
    axis: i64,
}

/// `op` as opset `opset` broadcasts.
pub(super) fn read(
    op: BinaryFunction,
    attrs: &AttrReader<'_>,
    opset: i64,
) -> Result<Arc<dyn Operator>, OpError> {
    if opset >= 7 {
        return Ok(binary(op));
    }
    // Optimization hints of opset 1.
    attrs.ints_opt("consumed_inputs")?;
    if op == BinaryFunction::PRelu {
        // One slope for all, or one for each channel.
        return Ok(Arc::new(BinaryBeside { op: Binary { op }, axis: 1 }));
    }
    attrs.flag("broadcast", false)?;
    match attrs.int_opt("axis")? {
        // Without an axis the last dimensions stand side by side, as they do now.
        None => Ok(binary(op)),
        Some(axis) => Ok(Arc::new(BinaryBeside { op: Binary { op }, axis })),
    }
}

impl BinaryBeside {
    /// The facts with dimensions of size 1 added to the second input, so that it broadcasts as it does now.
    fn aligned(&self, cx: &OpCx) -> Result<OpCx, OpError> {
        let (a, b) = (cx.shape(0)?, cx.shape(1)?);
        let scalar = self.op.op == BinaryFunction::PRelu && b.elements() == 1;
        let axis = if scalar { 0 } else { a.axis(self.axis)? };
        let after = (a.rank() - axis).checked_sub(b.rank());
        let after =
            after.ok_or_else(|| cx.shape_error(1, format!("one that fits {a} from axis {axis} on")))?;
        let mut dims = b.to_vec();
        dims.resize(b.rank() + after, 1);
        let info = TensorInfo::new(cx.dtype(1)?, Shape::new(dims)?);
        let inputs = vec![cx.fact(0).cloned(), Some(Fact::of(info))];
        Ok(OpCx::for_infer(inputs, cx.output_count()).with_outputs(cx.outputs().to_vec()))
    }
}

impl Operator for BinaryBeside {
    fn name(&self) -> &'static str {
        self.op.name()
    }

    fn infer(&self, cx: &OpCx) -> Result<Vec<TensorInfo>, OpError> {
        cx.expect_counts(2..=2, 1..=1)?;
        let aligned = self.aligned(cx)?;
        let inputs = (0..2).map(|i| aligned.fact(i).cloned()).collect();
        self.op.infer(&OpCx::for_infer(inputs, cx.output_count()))
    }

    fn in_place(&self, cx: &OpCx) -> Option<usize> {
        self.op.in_place(cx)
    }

    fn cpu(&self, cx: &OpCx) -> Result<NativeKernel, OpError> {
        self.op.cpu(&self.aligned(cx)?)
    }

    fn gpu(&self, cx: &OpCx, lower: &mut Lowering<'_>) -> Result<(), OpError> {
        self.op.gpu(&self.aligned(cx)?, lower)
    }
}
