//! Tile: the input repeated along each axis.

use std::sync::Arc;

use super::moves;
use super::region::{self, Block, Piece, Source, signed_strides};
use crate::graph::TensorInfo;
use crate::kernel::NativeKernel;
use crate::ops::{AttrReader, Cost, Lowering, OpCx, OpError, Operator};
use crate::shape::{Shape, ShapeError};

/// Repeats its input as input 1 says.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tile;

pub(super) fn read(_: &mut AttrReader<'_>, _: i64) -> Result<Arc<dyn Operator>, OpError> {
    Ok(Arc::new(Tile))
}

impl Tile {
    fn repeats(&self, cx: &OpCx) -> Result<Vec<usize>, OpError> {
        let x = cx.shape(0)?;
        let repeats = cx.need_i64s(1)?;
        if repeats.len() != x.rank() {
            let problem = format!("{} repeats for {} dimensions", repeats.len(), x.rank());
            return Err(OpError::Value { input: 1, problem });
        }
        Ok(Shape::from_i64(&repeats)?.to_vec())
    }

    fn pieces(&self, cx: &OpCx) -> Result<Vec<Piece>, OpError> {
        let (x, y) = (cx.shape(0)?, &cx.output(0)?.shape);
        let (own, out) = (signed_strides(x), signed_strides(y));
        let mut block = Block::default();
        for (d, r) in self.repeats(cx)?.into_iter().enumerate() {
            block.dims.extend([r, x[d]]);
            block.src_strides.extend([0, own[d]]);
            block.dst_strides.extend([out[d].saturating_mul(x[d] as isize), out[d]]);
        }
        Ok(block.piece(Source::Input(0), 0).into_iter().collect())
    }
}

impl Operator for Tile {
    fn name(&self) -> &'static str {
        "Tile"
    }

    fn value_inputs(&self) -> &'static [usize] {
        &[1]
    }

    fn infer(&self, cx: &OpCx) -> Result<Vec<TensorInfo>, OpError> {
        cx.expect_counts(2..=2, 1..=1)?;
        let x = cx.input(0)?;
        let dims: Option<Vec<usize>> =
            self.repeats(cx)?.iter().zip(x.shape.iter()).map(|(r, d)| r.checked_mul(*d)).collect();
        let dims = dims.ok_or_else(|| ShapeError::Overflow { shape: x.shape.to_string() })?;
        Ok(vec![TensorInfo::new(x.dtype, Shape::new(dims)?)])
    }

    moves!(alike);
}
