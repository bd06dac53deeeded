//! Shape and Size: what is known of a tensor without its elements.

use std::sync::Arc;

use crate::dtype::DType;
use crate::graph::{Tensor, TensorInfo};
use crate::kernel::NativeKernel;
use crate::ops::movement::moves;
use crate::ops::movement::region::{self, Block, Piece, Source};
use crate::ops::{AttrReader, Cost, Lowering, OpCx, OpError, Operator};
use crate::shape::Shape;

/// The sizes of the dimensions from `start` to before `end`, negative ones counted from the end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ShapeOf {
    /// The first dimension.
    pub start: i64,
    /// The dimension after the last; `None` takes all.
    pub end: Option<i64>,
}

pub(super) fn read_shape(attrs: &mut AttrReader<'_>, _: i64) -> Result<Arc<dyn Operator>, OpError> {
    Ok(Arc::new(ShapeOf { start: attrs.int("start", 0)?, end: attrs.int_opt("end")? }))
}

/// Output 0 as this constant.
fn constant(values: &[i64]) -> Vec<Piece> {
    values
        .iter()
        .enumerate()
        .filter_map(|(i, v)| {
            let source = Source::Element(Tensor::scalar(*v));
            let block =
                Block { dims: vec![1], src_strides: vec![0], dst_strides: vec![1], ..Block::default() };
            Block { dst_offset: i, ..block }.piece(source, 0)
        })
        .collect()
}

impl ShapeOf {
    fn sizes(&self, cx: &OpCx) -> Result<Vec<i64>, OpError> {
        let shape = cx.shape(0)?;
        let rank = shape.rank() as i64;
        let bound = |at: i64| (if at < 0 { at.saturating_add(rank) } else { at }).clamp(0, rank) as usize;
        let (start, end) = (bound(self.start), bound(self.end.unwrap_or(rank)));
        Ok(shape.get(start..end).unwrap_or(&[]).iter().map(|&d| d as i64).collect())
    }

    fn pieces(&self, cx: &OpCx) -> Result<Vec<Piece>, OpError> {
        Ok(constant(&self.sizes(cx)?))
    }
}

impl Operator for ShapeOf {
    fn name(&self) -> &'static str {
        "Shape"
    }

    fn infer(&self, cx: &OpCx) -> Result<Vec<TensorInfo>, OpError> {
        cx.expect_counts(1..=1, 1..=1)?;
        Ok(vec![TensorInfo::new(DType::I64, Shape::new([self.sizes(cx)?.len()])?)])
    }

    fn shape_only(&self) -> bool {
        true
    }

    moves!();
}

/// How many elements a tensor has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SizeOf;

impl SizeOf {
    fn pieces(&self, cx: &OpCx) -> Result<Vec<Piece>, OpError> {
        Ok(constant(&[cx.input(0)?.elements() as i64]))
    }
}

impl Operator for SizeOf {
    fn name(&self) -> &'static str {
        "Size"
    }

    fn infer(&self, cx: &OpCx) -> Result<Vec<TensorInfo>, OpError> {
        cx.expect_counts(1..=1, 1..=1)?;
        Ok(vec![TensorInfo::new(DType::I64, Shape::scalar())])
    }

    fn shape_only(&self) -> bool {
        true
    }

    moves!();
}
