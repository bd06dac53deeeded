//! GatherND: slices picked by tuples of indices.

use std::sync::Arc;

use super::gather::Sizes;
use super::positions::{INDEX_TYPES, Tuples};
use crate::graph::TensorInfo;
use crate::kernel::NativeKernel;
use crate::ops::{AttrReader, Cost, Lowering, OpCx, OpError, Operand, Operator, par};
use crate::shape::Shape;

/// Each vector along the last axis of input 1 picks the slice of input 0 that it indexes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GatherNd {
    /// Leading axes that data and indices have in common.
    pub batch_dims: usize,
}

pub(super) fn read(attrs: &mut AttrReader<'_>, _: i64) -> Result<Arc<dyn Operator>, OpError> {
    let batch = attrs.int("batch_dims", 0)?;
    let batch_dims =
        usize::try_from(batch).map_err(|_| attrs.error("batch_dims", format!("is {batch}, below 0")))?;
    Ok(Arc::new(GatherNd { batch_dims }))
}

impl GatherNd {
    fn tuples(&self, cx: &OpCx) -> Result<Tuples, OpError> {
        let (x, i) = (cx.shape(0)?, cx.shape(1)?);
        Tuples::new(x, i, self.batch_dims).ok_or_else(|| {
            let batch = self.batch_dims;
            cx.shape_error(1, format!("tuples of at most the axes of {x} after {batch} equal leading ones"))
        })
    }
}

impl Operator for GatherNd {
    fn name(&self) -> &'static str {
        "GatherND"
    }

    fn quantized_move(&self, _: &OpCx) -> bool {
        true
    }

    fn infer(&self, cx: &OpCx) -> Result<Vec<TensorInfo>, OpError> {
        cx.expect_counts(2..=2, 1..=1)?;
        cx.dtype_of(1, INDEX_TYPES)?;
        let tuples = self.tuples(cx)?;
        let (x, i) = (cx.shape(0)?, cx.shape(1)?);
        let mut dims = i[..i.rank() - 1].to_vec();
        dims.extend_from_slice(&x[self.batch_dims + tuples.sizes.len()..]);
        let shape = Shape::new(dims)?;
        if shape.elements() > 0 && tuples.slices() == 0 {
            return Err(cx.shape_error(0, "at least one slice"));
        }
        Ok(vec![TensorInfo::new(cx.dtype(0)?, shape)])
    }

    fn cost(&self, cx: &OpCx) -> Cost {
        let out: u64 = cx.outputs().iter().map(|o| o.bytes() as u64).sum();
        Cost { flops: 0, bytes: 2 * out + cx.input_opt(1).map_or(0, |i| i.bytes() as u64) }
    }

    fn cpu(&self, cx: &OpCx) -> Result<NativeKernel, OpError> {
        let (tuples, index_type) = (self.tuples(cx)?, cx.dtype(1)?);
        let row = tuples.inner * cx.dtype(0)?.bytes();
        Ok(NativeKernel::new("GatherND", move |args| {
            let at = tuples.positions(args, 1, index_type)?;
            let x = args.read::<u8>(0)?;
            let y = args.take_write::<u8>(2)?;
            // Bytes are moved as words.
            let work = y.len() / 8;
            par::groups(y, row, work, |first, y| {
                for (out, &at) in y.chunks_exact_mut(row).zip(at.get(first..).unwrap_or(&[])) {
                    if let Some(src) = x.get(at * row..(at + 1) * row) {
                        out.copy_from_slice(src);
                    }
                }
            });
            Ok(())
        }))
    }

    fn gpu(&self, cx: &OpCx, lower: &mut Lowering<'_>) -> Result<(), OpError> {
        let tuples = self.tuples(cx)?;
        if cx.output(0)?.elements() == 0 {
            return Ok(());
        }
        let at = tuples.lower(lower, Operand::Input(1), cx.dtype(1)?)?;
        let sizes = Sizes { outer: 1, size: tuples.slices(), inner: tuples.inner, indices: tuples.count };
        sizes.lower(lower, cx.dtype(0)?.bytes(), [Operand::Input(0), at, Operand::Output(0)], 1)
    }
}
