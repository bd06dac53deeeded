//! Split: one tensor into several along an axis.

use std::sync::Arc;

use super::moves;
use super::region::{self, Block, Piece, Source, signed_strides};
use crate::graph::TensorInfo;
use crate::kernel::NativeKernel;
use crate::ops::{AttrReader, Cost, Lowering, OpCx, OpError, Operator, ViewStep};
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
        let bad = |problem: String| OpError::Value { input: usize::from(cx.has(1)), problem };
        let Some(given) = given else {
            let parts = match self.parts {
                Some(n) => usize::try_from(n).unwrap_or(0),
                None => outputs,
            };
            if parts < outputs.max(1) {
                return Err(bad(format!("{parts} parts for {outputs} outputs")));
            }
            let part = whole.div_ceil(parts);
            return Ok((0..outputs).map(|i| whole.saturating_sub(i * part).min(part)).collect());
        };
        let sizes: Option<Vec<usize>> = given.iter().map(|v| usize::try_from(*v).ok()).collect();
        let sum = |sizes: &[usize]| sizes.iter().try_fold(0usize, |n, s| n.checked_add(*s));
        let Some(sizes) = sizes.filter(|s| sum(s) == Some(whole) && s.len() >= outputs) else {
            let problem = format!("parts {given:?} for {outputs} outputs do not make up the axis of {whole}");
            return Err(bad(problem));
        };
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

    fn view_step(&self, cx: &OpCx, output: usize) -> Option<ViewStep> {
        let (x, sizes) = (cx.shape(0).ok()?, self.sizes(cx).ok()?);
        let begin: usize = sizes.get(..output)?.iter().sum();
        let mut ranges: Vec<_> = x.iter().map(|size| 0..*size).collect();
        *ranges.get_mut(x.axis(self.axis).ok()?)? = begin..begin + sizes.get(output)?;
        Some(ViewStep::Part(ranges))
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

    moves!(alike);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::Tensor;
    use crate::ops::AttrValue;
    use crate::ops::test_util::{attrs, facts, read_op, run_cpu, tensor};

    #[test]
    fn parts_may_be_more_than_dimensions_and_of_any_sizes() {
        let op = read_op("Split", 13, &attrs(&[("axis", AttrValue::Int(-1))])).unwrap();
        let x = tensor(&[2, 4000], 1);
        let inputs = [Some(x.clone()), Some(Tensor::from_i64s(&[200; 20]))];
        let parts = run_cpu(&*op, &inputs, 20).unwrap();
        assert_eq!(parts.len(), 20);
        let part = parts[19].to_f32s().unwrap();
        assert_eq!(part[..200], x.to_f32s().unwrap()[3800..4000]);
        for wrong in [&[200i64; 19][..], &[4000, -1, 1], &[i64::MAX, i64::MAX, 4002]] {
            let inputs = [Some(x.clone()), Some(Tensor::from_i64s(wrong))];
            assert!(facts(&*op, &inputs, 1).is_err());
        }
    }

    #[test]
    fn numbers_of_parts_are_not_counted_out() {
        let sizes = |parts: i64, outputs: usize| {
            let op = Split { axis: 0, sizes: None, parts: Some(parts) };
            let cx = facts(&op, &[Some(tensor(&[7], 1))], outputs).ok()?;
            Some(cx.outputs().iter().map(|o| o.shape[0]).collect::<Vec<_>>())
        };
        assert_eq!(sizes(3, 3), Some(vec![3, 3, 1]));
        assert_eq!(sizes(i64::MAX, 1), Some(vec![1]));
        assert_eq!((sizes(2, 3), sizes(-1, 1), sizes(0, 0)), (None, None, None));
    }
}
