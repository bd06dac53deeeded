//! Split: one tensor into several along an axis.

use std::sync::Arc;

use super::moves;
use super::region::{self, Block, Piece, Source, signed_strides};
use crate::graph::TensorInfo;
use crate::kernel::NativeKernel;
use crate::ops::{AttrReader, Cost, Lowering, OpCx, OpError, Operator};
use crate::shape::Shape;

/// Cuts its input along `axis`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Split {
    /// The axis, negative ones counted from the end.
    pub axis: i64,
    /// Sizes of the parts, where they are an attribute; else input 1 gives them.
    pub sizes: Option<Vec<i64>>,
    /// The number of equal parts (the last may be smaller), where no sizes are given.
    pub parts: Option<i64>,
}

pub(super) fn read(attrs: &mut AttrReader<'_>, _: i64) -> Result<Arc<dyn Operator>, OpError> {
    let axis = attrs.int("axis", 0)?;
    let sizes = attrs.ints_opt("split")?;
    Ok(Arc::new(Split { axis, sizes, parts: attrs.int_opt("num_outputs")? }))
}

impl Split {
    fn sizes(&self, cx: &OpCx) -> Result<Vec<usize>, OpError> {
        let x = cx.shape(0)?;
        let whole = x[x.axis(self.axis)?];
        let given = match &self.sizes {
            Some(sizes) => Some(sizes.clone()),
            None => cx.need_i64s_opt(1)?,
        };
        let outputs = cx.output_count();
        let sizes: Vec<usize> = match given {
            Some(sizes) => Shape::from_i64(&sizes)?.to_vec(),
            None => {
                let parts = match self.parts {
                    Some(n) => usize::try_from(n).unwrap_or(0),
                    None => outputs,
                };
                let part = whole.div_ceil(parts.max(1));
                (0..parts).map(|i| whole.saturating_sub(i * part).min(part)).collect()
            }
        };
        let sum = sizes.iter().try_fold(0usize, |n, s| n.checked_add(*s));
        if sum != Some(whole) || sizes.len() < outputs {
            let problem = format!("parts {sizes:?} for {outputs} outputs do not make up the axis of {whole}");
            return Err(OpError::Value { input: usize::from(cx.has(1)), problem });
        }
        Ok(sizes)
    }

    fn pieces(&self, cx: &OpCx) -> Result<Vec<Piece>, OpError> {
        let x = cx.shape(0)?;
        let axis = x.axis(self.axis)?;
        let strides = signed_strides(x);
        let mut at = 0;
        let mut pieces = Vec::new();
        for (o, info) in cx.outputs().iter().enumerate() {
            let block = Block {
                dims: info.shape.to_vec(),
                src_strides: strides.clone(),
                dst_strides: signed_strides(&info.shape),
                src_offset: at * strides[axis].unsigned_abs(),
                dst_offset: 0,
            };
            at += info.shape[axis];
            pieces.extend(block.piece(Source::Input(0), o));
        }
        Ok(pieces)
    }
}

impl Operator for Split {
    fn name(&self) -> &'static str {
        "Split"
    }

    fn value_inputs(&self) -> &'static [usize] {
        &[1]
    }

    fn infer(&self, cx: &OpCx) -> Result<Vec<TensorInfo>, OpError> {
        cx.expect_counts(1..=2, 1..=usize::MAX)?;
        let x = cx.input(0)?;
        let axis = x.shape.axis(self.axis)?;
        let sizes = self.sizes(cx)?;
        sizes
            .into_iter()
            .map(|size| {
                let mut dims = x.shape.to_vec();
                dims[axis] = size;
                Ok(TensorInfo::new(x.dtype, Shape::new(dims)?))
            })
            .collect()
    }

    moves!();
}
