//! Nodes of TVM's graphs that are no operators: views and copies of a tensor.

use super::{Cost, Lowering, OpCx, OpError, Operand, Operator};
use crate::graph::TensorInfo;
use crate::kernel::NativeKernel;
use crate::shape::Shape;

/// The input's bytes under another shape: `__nop`, `__copy`, and the flat view of `flatten_data`.
///
/// No kernel need run for it ([`Operator::alias`]); where the planner puts its two sides on devices
/// that do not share memory, it is the place of the copy.
#[derive(Clone, Debug, PartialEq)]
pub struct TvmView {
    kind: ViewKind,
    shape: Shape,
}

/// Why a [`TvmView`] is in the graph.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ViewKind {
    /// Another shape of the same storage.
    Reshape,
    /// The graph's author wanted the tensor on another device.
    Copy,
}

impl TvmView {
    /// A view of shape `shape`.
    pub fn new(kind: ViewKind, shape: Shape) -> Self {
        TvmView { kind, shape }
    }

    /// Why it is in the graph.
    pub fn kind(&self) -> ViewKind {
        self.kind
    }
}

impl Operator for TvmView {
    fn name(&self) -> &'static str {
        match self.kind {
            ViewKind::Reshape => "TvmReshape",
            ViewKind::Copy => "TvmCopy",
        }
    }

    fn infer(&self, cx: &OpCx) -> Result<Vec<TensorInfo>, OpError> {
        cx.expect_counts(1..=1, 1..=1)?;
        let input = cx.input(0)?;
        if input.elements() != self.shape.elements() {
            return Err(cx.shape_error(0, format!("{} elements", self.shape.elements())));
        }
        Ok(vec![TensorInfo::new(input.dtype, self.shape.clone())])
    }

    fn cost(&self, cx: &OpCx) -> Cost {
        Cost { flops: 0, bytes: cx.bytes_touched() }
    }

    fn alias(&self, _: &OpCx) -> Option<usize> {
        Some(0)
    }

    fn cpu(&self, _: &OpCx) -> Result<NativeKernel, OpError> {
        Ok(NativeKernel::copy(self.name()))
    }

    fn gpu(&self, cx: &OpCx, lower: &mut Lowering<'_>) -> Result<(), OpError> {
        lower.copy((Operand::Input(0), 0), (Operand::Output(0), 0), cx.output(0)?.bytes() as u64);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::DType;
    use crate::kernel::{NativeArg, NativeArgs};
    use crate::ops::Fact;

    #[test]
    fn a_view_keeps_the_elements() {
        let shape = |d: &[usize]| Shape::new(d).unwrap();
        let cx = |d: &[usize]| OpCx::for_infer(vec![Some(Fact::of(TensorInfo::new(DType::U8, shape(d))))], 1);
        let op = TvmView::new(ViewKind::Copy, shape(&[4]));
        assert_eq!(op.infer(&cx(&[2, 2])).unwrap()[0].shape, shape(&[4]));
        assert!(matches!(op.infer(&cx(&[3])), Err(OpError::InputShape { .. })));
        assert_eq!(op.alias(&cx(&[2, 2])), Some(0));
        let mut y = [0u8; 4];
        let mut args = [NativeArg::Read(&[1, 2, 3, 4]), NativeArg::Write(&mut y)];
        op.cpu(&cx(&[4])).unwrap().call(&mut NativeArgs::new(&mut args, &[])).unwrap();
        assert_eq!(y, [1, 2, 3, 4]);
    }
}
