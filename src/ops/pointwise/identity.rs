//! Identity: the input unchanged.

use crate::graph::TensorInfo;
use crate::kernel::NativeKernel;
use crate::ops::movement::moves;
use crate::ops::movement::region::{self, Block, Piece, Source};
use crate::ops::{Cost, Lowering, OpCx, OpError, Operator};

/// All of input `input`, which has as many elements as output `output`, in order.
pub(crate) fn copy_of(cx: &OpCx, input: usize, output: usize) -> Result<Vec<Piece>, OpError> {
    let dims = vec![cx.output(output)?.elements()];
    let block = Block { dims, src_strides: vec![1], dst_strides: vec![1], ..Block::default() };
    Ok(block.piece(Source::Input(input), output).into_iter().collect())
}

/// The input unchanged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Identity;

impl Identity {
    fn pieces(&self, cx: &OpCx) -> Result<Vec<Piece>, OpError> {
        copy_of(cx, 0, 0)
    }
}

impl Operator for Identity {
    fn name(&self) -> &'static str {
        "Identity"
    }

    fn infer(&self, cx: &OpCx) -> Result<Vec<TensorInfo>, OpError> {
        cx.expect_counts(1..=1, 1..=1)?;
        Ok(vec![cx.input(0)?.clone()])
    }

    fn alias(&self, _: &OpCx) -> Option<usize> {
        Some(0)
    }

    moves!(alike);
}
