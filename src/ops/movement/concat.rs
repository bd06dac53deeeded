//! Concat: inputs in sequence along an axis.

use std::sync::Arc;

use super::moves;
use super::region::{self, Block, Piece, Source, signed_strides};
use crate::graph::TensorInfo;
use crate::kernel::NativeKernel;
use crate::ops::{AttrReader, Cost, Lowering, OpCx, OpError, Operator, Quantized, Structure};
use crate::shape::Shape;

/// Joins its inputs along `axis`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Concat {
    /// The axis, negative ones counted from the end.
    pub axis: i64,
}

pub(super) fn read(attrs: &mut AttrReader<'_>, opset: i64) -> Result<Arc<dyn Operator>, OpError> {
    let axis = match attrs.int_opt("axis")? {
        Some(axis) => axis,
        None if opset < 4 => 1,
        None => return Err(attrs.error("axis", "is missing").into()),
    };
    Ok(Arc::new(Concat { axis }))
}

impl Concat {
    fn pieces(&self, cx: &OpCx) -> Result<Vec<Piece>, OpError> {
        let y = &cx.output(0)?.shape;
        let axis = y.axis(self.axis)?;
        let strides = signed_strides(y);
        let mut at = 0;
        let mut pieces = Vec::with_capacity(cx.input_count());
        for i in 0..cx.input_count() {
            let x = cx.shape(i)?;
            let block = Block {
                dims: x.to_vec(),
                src_strides: signed_strides(x),
                dst_strides: strides.clone(),
                src_offset: 0,
                dst_offset: at * strides[axis].unsigned_abs(),
            };
            at += x[axis];
            pieces.extend(block.piece(Source::Input(i), 0));
        }
        Ok(pieces)
    }
}

impl Operator for Concat {
    fn name(&self) -> &'static str {
        "Concat"
    }

    fn structure(&self) -> Option<Structure<'_>> {
        Some(Structure::Concat)
    }

    fn quantized(&self, to: &Quantized<'_>) -> Option<Arc<dyn Operator>> {
        let same = to.clamp.is_none() && to.inputs.iter().all(|of| *of == to.output);
        same.then(|| Arc::new(*self) as Arc<dyn Operator>)
    }

    fn infer(&self, cx: &OpCx) -> Result<Vec<TensorInfo>, OpError> {
        cx.expect_counts(1..=usize::MAX, 1..=1)?;
        let first = cx.input(0)?;
        let axis = first.shape.axis(self.axis)?;
        let mut dims = first.shape.to_vec();
        for i in 1..cx.input_count() {
            cx.expect_dtype(i, first.dtype)?;
            let x = cx.shape(i)?;
            let same = x.rank() == dims.len() && (0..dims.len()).all(|d| d == axis || x[d] == dims[d]);
            if !same {
                return Err(cx.shape_error(i, format!("{} but for axis {axis}", first.shape)));
            }
            dims[axis] = dims[axis].saturating_add(x[axis]);
        }
        Ok(vec![TensorInfo::new(first.dtype, Shape::new(dims)?)])
    }

    fn alias(&self, cx: &OpCx) -> Option<usize> {
        (cx.input_count() == 1).then_some(0)
    }

    moves!();
}
