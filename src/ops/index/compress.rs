//! Compress: the slices along an axis where a condition holds.

use std::sync::Arc;

use super::gather::Sizes;
use crate::dtype::DType;
use crate::graph::{Tensor, TensorInfo};
use crate::kernel::NativeKernel;
use crate::ops::norm::Along;
use crate::ops::{AttrReader, Cost, Lowering, OpCx, OpError, Operand, Operator, PackKey, par};
use crate::shape::Shape;

/// Slices of input 0 along an axis where input 1, a vector that may be shorter than it, is true.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Compress {
    /// The axis, negative ones counted from the end; without one the data is taken as a vector.
    pub axis: Option<i64>,
}

pub(super) fn read(attrs: &mut AttrReader<'_>, _: i64) -> Result<Arc<dyn Operator>, OpError> {
    Ok(Arc::new(Compress { axis: attrs.int_opt("axis")? }))
}

impl Compress {
    fn along(&self, cx: &OpCx) -> Result<Along, OpError> {
        let x = cx.shape(0)?;
        let Some(axis) = self.axis else {
            return Ok(Along { outer: 1, len: x.elements(), inner: 1 });
        };
        let axis = x.axis(axis)?;
        Ok(Along::axes(x, axis, axis + 1))
    }

    /// The positions on the axis that stay.
    fn kept(&self, cx: &OpCx) -> Result<Vec<usize>, OpError> {
        let len = self.along(cx)?.len;
        let condition = cx.need_value(1)?.as_slice::<u8>()?;
        let kept: Vec<usize> = (0..condition.len()).filter(|&i| condition[i] != 0).collect();
        match kept.last() {
            Some(last) if *last >= len => Err(OpError::Value {
                input: 1,
                problem: format!("is true at {last}, the axis has {len} elements"),
            }),
            _ => Ok(kept),
        }
    }
}

/// The slices at `kept` of elements of `bytes`.
fn pick(Along { len, inner, .. }: Along, bytes: usize, kept: &[usize], x: &[u8], y: &mut [u8]) {
    let row = inner * bytes;
    if row == 0 || kept.is_empty() {
        return;
    }
    // Bytes are moved as words.
    let work = y.len() / 8;
    par::rows(y, kept.len() * row, work, |o, y| {
        for (y, &at) in y.chunks_exact_mut(row).zip(kept) {
            let from = (o * len + at) * row;
            if let Some(x) = x.get(from..from + row) {
                y.copy_from_slice(x);
            }
        }
    });
}

impl Operator for Compress {
    fn name(&self) -> &'static str {
        "Compress"
    }

    fn value_inputs(&self) -> &'static [usize] {
        &[1]
    }

    fn infer(&self, cx: &OpCx) -> Result<Vec<TensorInfo>, OpError> {
        cx.expect_counts(2..=2, 1..=1)?;
        cx.expect_dtype(1, DType::Bool)?;
        if cx.shape(1)?.rank() != 1 {
            return Err(cx.shape_error(1, "one dimension"));
        }
        let (x, kept) = (cx.input(0)?, self.kept(cx)?.len());
        let mut dims = x.shape.to_vec();
        match self.axis {
            None => dims = vec![kept],
            Some(axis) => dims[x.shape.axis(axis)?] = kept,
        }
        Ok(vec![TensorInfo::new(x.dtype, Shape::new(dims)?)])
    }

    fn cost(&self, cx: &OpCx) -> Cost {
        Cost { flops: 0, bytes: 2 * cx.outputs().iter().map(|o| o.bytes() as u64).sum::<u64>() }
    }

    fn host(&self, cx: &OpCx) -> Option<Result<Vec<Tensor>, OpError>> {
        // Where only the condition is known, shapes are, and the data stays where it is.
        if cx.value(1).is_some() && cx.value(0).is_none() {
            return None;
        }
        let compute = || {
            cx.need_value(1)?;
            let info = self.infer(cx)?;
            let (x, kept) = (cx.need_value(0)?, self.kept(cx)?);
            let (along, bytes) = (self.along(cx)?, x.dtype().bytes());
            info.into_iter()
                .map(|info| {
                    Tensor::build(info, |y| {
                        pick(along, bytes, &kept, x.bytes(), y);
                        Ok(())
                    })
                })
                .collect()
        };
        Some(compute())
    }

    fn cpu(&self, cx: &OpCx) -> Result<NativeKernel, OpError> {
        let (along, kept, bytes) = (self.along(cx)?, self.kept(cx)?, cx.dtype(0)?.bytes());
        Ok(NativeKernel::new("Compress", move |args| {
            let x = args.read::<u8>(0)?;
            pick(along, bytes, &kept, x, args.take_write::<u8>(2)?);
            Ok(())
        }))
    }

    fn gpu(&self, cx: &OpCx, lower: &mut Lowering<'_>) -> Result<(), OpError> {
        let (Along { outer, len, inner }, kept) = (self.along(cx)?, self.kept(cx)?);
        if cx.output(0)?.elements() == 0 {
            return Ok(());
        }
        let indices = kept.len();
        let at: Vec<i64> = kept.iter().map(|&k| k as i64).collect();
        let key = PackKey { layout: "positions", numbers: [0; 4] };
        let at = lower.packed(&Tensor::from_i64s(&at), key, 8 * indices, |t, out| {
            out.iter_mut().zip(t.bytes()).for_each(|(o, b)| *o = *b);
            Ok(())
        });
        let sizes = Sizes { outer, size: len, inner, indices };
        sizes.lower(lower, cx.dtype(0)?.bytes(), [Operand::Input(0), at, Operand::Output(0)], 2)
    }
}
