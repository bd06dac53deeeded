//! Identity and Dropout of inference: the input unchanged.

use std::sync::Arc;

use crate::dtype::DType;
use crate::graph::{Tensor, TensorInfo};
use crate::kernel::NativeKernel;
use crate::ops::movement::moves;
use crate::ops::movement::region::{self, Block, Piece, Source};
use crate::ops::real::FLOATS;
use crate::ops::{AttrReader, Cost, Lowering, OpCx, OpError, Operator};

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

    moves!();
}

/// Dropout as inference does it: the input unchanged, and a mask that keeps everything.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Dropout {
    /// Whether the mask has the input's type, as it had before opset 10; else it is `bool`.
    pub typed_mask: bool,
}

pub(super) fn read_dropout(attrs: &mut AttrReader<'_>, opset: i64) -> Result<Arc<dyn Operator>, OpError> {
    if opset < 12 {
        attrs.float("ratio", 0.5)?;
    } else {
        attrs.int("seed", 0)?;
    }
    Ok(Arc::new(Dropout { typed_mask: opset < 10 }))
}

impl Dropout {
    fn pieces(&self, cx: &OpCx) -> Result<Vec<Piece>, OpError> {
        let mut pieces = copy_of(cx, 0, 0)?;
        if let Some(mask) = cx.outputs().get(1) {
            let kept = match mask.dtype {
                DType::F32 => Tensor::scalar(1f32),
                DType::F16 => Tensor::scalar(half::f16::ONE),
                DType::BF16 => Tensor::scalar(half::bf16::ONE),
                DType::F64 => Tensor::scalar(1f64),
                _ => Tensor::scalar(1u8),
            };
            pieces.extend(region::fill(kept, 1, &mask.shape));
        }
        Ok(pieces)
    }
}

impl Operator for Dropout {
    fn name(&self) -> &'static str {
        "Dropout"
    }

    fn value_inputs(&self) -> &'static [usize] {
        &[1, 2]
    }

    fn infer(&self, cx: &OpCx) -> Result<Vec<TensorInfo>, OpError> {
        cx.expect_counts(1..=3, 1..=2)?;
        let x = cx.input(0)?.clone();
        cx.dtype_of(0, FLOATS)?;
        let training = cx.need_i64s_opt(2)?.is_some_and(|v| v.iter().any(|v| *v != 0));
        if training {
            // Without a ratio half of the elements are dropped.
            let ratio = if cx.has(1) { cx.need_value(1)?.to_f32s()? } else { vec![0.5] };
            if ratio.iter().any(|r| *r != 0.0) {
                return Err(OpError::unsupported("Dropout in training mode"));
            }
        }
        let mask_type = if self.typed_mask { x.dtype } else { DType::Bool };
        let mask = TensorInfo::new(mask_type, x.shape.clone());
        Ok([x, mask].into_iter().take(cx.output_count()).collect())
    }

    fn alias(&self, cx: &OpCx) -> Option<usize> {
        (cx.output_count() == 1).then_some(0)
    }

    moves!();
}
