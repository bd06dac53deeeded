//! Gather: slices of one axis, picked by indices.

use std::ops::Range;
use std::sync::Arc;

use super::positions::{INDEX_TYPES, index_words, mapped, position};
use crate::dtype::DType;
use crate::graph::TensorInfo;
use crate::kernel::table::{params, spec, variants};
use crate::kernel::{NativeKernel, Unit};
use crate::ops::word::word;
use crate::ops::{
    AttrReader, Cost, Lowering, OpCx, OpError, Operand, Operator, Passed, PassedBytes, ViewStep, par,
};
use crate::shape::Shape;

/// Picks slices of `axis` of input 0 by the indices of input 1; negative ones count from the end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Gather {
    /// The axis, negative ones counted from the end.
    pub axis: i64,
}

pub(super) fn read(attrs: &mut AttrReader<'_>, _: i64) -> Result<Arc<dyn Operator>, OpError> {
    Ok(Arc::new(Gather { axis: attrs.int("axis", 0)? }))
}

/// Sizes of a gather: `[outer, size, inner]` of the data, and how many indices.
#[derive(Clone, Copy)]
pub(crate) struct Sizes {
    pub(crate) outer: usize,
    pub(crate) size: usize,
    pub(crate) inner: usize,
    pub(crate) indices: usize,
}

impl Sizes {
    /// The native function that gathers elements of `bytes`.
    pub(super) fn native(self, name: &'static str, bytes: usize, index_type: DType) -> NativeKernel {
        let Sizes { size, inner, .. } = self;
        let row = inner * bytes;
        NativeKernel::new(name, move |args| {
            let x = args.read::<u8>(0)?;
            let indices = mapped(args, 1, index_type, |i| position(i, size))?;
            let y = args.take_write::<u8>(2)?;
            if y.is_empty() || row == 0 {
                return Ok(());
            }
            // Bytes are moved as words.
            let work = y.len() / 8;
            par::rows(y, indices.len() * row, work, |o, out| {
                for (&k, out) in indices.iter().zip(out.chunks_exact_mut(row)) {
                    let from = (o * size + k) * row;
                    if let Some(src) = x.get(from..from + row) {
                        out.copy_from_slice(src);
                    }
                }
            });
            Ok(())
        })
    }

    /// Emits the gather of elements of `bytes`; operands are the data, the indices of `words` words each, and
    /// the result.
    pub(crate) fn lower(
        self,
        lower: &mut Lowering<'_>,
        mut bytes: usize,
        args: [Operand; 3],
        words: u32,
    ) -> Result<(), OpError> {
        let Sizes { outer, size, mut inner, indices } = self;
        // Wider elements: fewer, larger accesses.
        while bytes < 16 && inner.is_multiple_of(2) {
            inner /= 2;
            bytes *= 2;
        }
        let kernel = variants::Gather { t: Unit::Bytes(bytes) }.id()?;
        let n = outer * indices * inner;
        let p =
            params::Gather { n: word(n)?, inner: word(inner)?, indices: word(indices)?, size: word(size)? };
        lower.dispatch_1d(kernel, &[(spec::gather::INDEX_WORDS, words)], &args, &p, n)
    }
}

impl Gather {
    fn sizes(&self, cx: &OpCx) -> Result<Sizes, OpError> {
        let x = cx.shape(0)?;
        let axis = x.axis(self.axis)?;
        Ok(Sizes {
            outer: x[..axis].iter().product(),
            size: x[axis],
            inner: x[axis + 1..].iter().product(),
            indices: cx.shape(1)?.elements(),
        })
    }

    /// The places along the axis, where they are known and follow one another.
    fn range(&self, cx: &OpCx) -> Option<Range<usize>> {
        let Sizes { size, .. } = self.sizes(cx).ok()?;
        let places = cx.value(1)?.to_i64s().ok()?.into_iter().map(|i| position(i, size).ok());
        let places: Vec<usize> = places.collect::<Option<_>>()?;
        let first = *places.first()?;
        let follow = places.iter().enumerate().all(|(i, place)| *place == first + i);
        follow.then(|| first..first + places.len())
    }

    /// Where the result begins in the data, in bytes, if it lies there as it is.
    fn contiguous(&self, cx: &OpCx) -> Option<u64> {
        let Sizes { outer, inner, .. } = self.sizes(cx).ok()?;
        let first = self.range(cx).filter(|_| outer == 1)?.start;
        let offset = first.checked_mul(inner)?.checked_mul(cx.dtype(0).ok()?.bytes())?;
        Some(offset as u64)
    }
}

impl Operator for Gather {
    fn name(&self) -> &'static str {
        "Gather"
    }

    fn view_step(&self, cx: &OpCx, _: usize) -> Option<ViewStep> {
        let x = cx.shape(0).ok()?;
        let mut ranges: Vec<_> = x.iter().map(|size| 0..*size).collect();
        *ranges.get_mut(x.axis(self.axis).ok()?)? = self.range(cx)?;
        Some(ViewStep::Part(ranges))
    }

    fn quantized_move(&self, _: &OpCx) -> bool {
        true
    }

    fn infer(&self, cx: &OpCx) -> Result<Vec<TensorInfo>, OpError> {
        cx.expect_counts(2..=2, 1..=1)?;
        let x = cx.input(0)?;
        cx.dtype_of(1, INDEX_TYPES)?;
        let axis = x.shape.axis(self.axis)?;
        let mut dims = x.shape[..axis].to_vec();
        dims.extend_from_slice(cx.shape(1)?);
        dims.extend_from_slice(&x.shape[axis + 1..]);
        let shape = Shape::new(dims)?;
        if x.shape[axis] == 0 && shape.elements() > 0 {
            return Err(cx.shape_error(0, "at least one element along the axis"));
        }
        Ok(vec![TensorInfo::new(x.dtype, shape)])
    }

    fn passed(&self, cx: &OpCx) -> Passed {
        self.contiguous(cx).map_or_else(Passed::default, |offset| Passed {
            bytes: vec![PassedBytes { input: 0, output: 0, offset }],
            complete: true,
        })
    }

    fn cost(&self, cx: &OpCx) -> Cost {
        let out: u64 = cx.outputs().iter().map(|o| o.bytes() as u64).sum();
        Cost { flops: 0, bytes: 2 * out + cx.input_opt(1).map_or(0, |i| i.bytes() as u64) }
    }

    fn cpu(&self, cx: &OpCx) -> Result<NativeKernel, OpError> {
        Ok(self.sizes(cx)?.native("Gather", cx.dtype(0)?.bytes(), cx.dtype(1)?))
    }

    fn gpu(&self, cx: &OpCx, lower: &mut Lowering<'_>) -> Result<(), OpError> {
        let sizes = self.sizes(cx)?;
        let (bytes, words) = (cx.dtype(0)?.bytes(), index_words(cx.dtype(1)?));
        sizes.lower(lower, bytes, [Operand::Input(0), Operand::Input(1), Operand::Output(0)], words)
    }
}
