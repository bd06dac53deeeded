//! Expand: a tensor repeated to a larger shape.

use crate::graph::TensorInfo;
use crate::kernel::NativeKernel;
use crate::ops::movement::moves;
use crate::ops::movement::region::{self, Block, Piece, Source, signed_strides};
use crate::ops::{Cost, HalfRule, Lowering, OpCx, OpError, Operator, Structure};
use crate::shape::Shape;

/// Input 0 broadcast with the shape that input 1 holds, either way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Expand;

impl Expand {
    fn pieces(&self, cx: &OpCx) -> Result<Vec<Piece>, OpError> {
        let y = &cx.output(0)?.shape;
        let strides = cx.shape(0)?.broadcast_strides(y)?;
        let block = Block {
            dims: y.to_vec(),
            src_strides: strides.into_iter().map(|s| s as isize).collect(),
            dst_strides: signed_strides(y),
            ..Block::default()
        };
        Ok(block.piece(Source::Input(0), 0).into_iter().collect())
    }
}

impl Operator for Expand {
    fn name(&self) -> &'static str {
        "Expand"
    }

    fn structure(&self) -> Option<Structure<'_>> {
        Some(Structure::Expand)
    }

    fn half_rule(&self) -> HalfRule {
        HalfRule::Mask
    }

    fn value_inputs(&self) -> &'static [usize] {
        &[1]
    }

    fn infer(&self, cx: &OpCx) -> Result<Vec<TensorInfo>, OpError> {
        cx.expect_counts(2..=2, 1..=1)?;
        let x = cx.input(0)?;
        let shape = x.shape.broadcast(&Shape::from_i64(&cx.need_i64s(1)?)?)?;
        Ok(vec![TensorInfo::new(x.dtype, shape)])
    }

    fn alias(&self, cx: &OpCx) -> Option<usize> {
        let y = cx.outputs().first()?;
        (cx.input(0).ok()?.elements() == y.elements()).then_some(0)
    }

    moves!(alike);
}
