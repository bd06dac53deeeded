//! SequenceAt and SequenceLength of what SplitToSequence cuts up.

use super::packed::place;
use crate::dtype::DType;
use crate::graph::{Tensor, TensorInfo};
use crate::kernel::NativeKernel;
use crate::ops::movement::moves;
use crate::ops::movement::region::{self, Block, Piece as Move, Source, signed_strides};
use crate::ops::{Cost, Lowering, OpCx, OpError, Operator};
use crate::shape::Shape;

/// How an axis of input 0 is cut up; `at` computes single cuts, so that a long axis costs nothing.
pub(super) enum Cuts {
    /// Pieces of so many elements, the last maybe of fewer.
    Even(usize),
    /// Pieces of these sizes.
    Sizes(Vec<usize>),
}

impl Cuts {
    /// Input 1 is a size, or a list of sizes; without it pieces have one element.
    pub(super) fn of(cx: &OpCx, axis: usize) -> Result<Cuts, OpError> {
        let len = cx.shape(0)?[axis];
        let bad = |problem: String| OpError::Value { input: 1, problem };
        let Some(values) = cx.need_i64s_opt(1)? else { return Ok(Cuts::Even(1)) };
        let sizes: Option<Vec<usize>> = values.iter().map(|v| usize::try_from(*v).ok()).collect();
        let sizes = sizes.ok_or_else(|| bad("a negative size".to_owned()))?;
        match (cx.shape(1)?.rank(), sizes.as_slice()) {
            (0, &[0]) => Err(bad("pieces of 0 elements".to_owned())),
            (0, &[size]) => Ok(Cuts::Even(size)),
            (1, _) if sizes.iter().try_fold(0usize, |sum, s| sum.checked_add(*s)) == Some(len) => {
                Ok(Cuts::Sizes(sizes))
            }
            (1, _) => Err(bad(format!("the sizes {sizes:?} do not add up to {len}"))),
            _ => Err(cx.shape_error(1, "a size or a list of sizes")),
        }
    }

    pub(super) fn count(&self, len: usize) -> usize {
        match self {
            Cuts::Even(size) => len.div_ceil(*size),
            Cuts::Sizes(sizes) => sizes.len(),
        }
    }

    /// How long piece `at` is.
    pub(super) fn size(&self, at: usize, len: usize) -> usize {
        match self {
            Cuts::Even(size) => (*size).min(len - at * size),
            Cuts::Sizes(sizes) => sizes.get(at).copied().unwrap_or(0),
        }
    }

    /// Where piece `at` begins.
    fn start(&self, at: usize) -> usize {
        match self {
            Cuts::Even(size) => at * size,
            Cuts::Sizes(sizes) => sizes.iter().take(at).sum(),
        }
    }
}

/// One piece of a tensor that is cut up along an axis. Inputs: the tensor, the sizes (SplitToSequence's `split`),
/// and the position of the piece.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    /// The axis, negative ones counted from the end.
    pub axis: i64,
    /// Whether the axis stays; else pieces have one element.
    pub keep_dims: bool,
}

impl Piece {
    /// The axis, and where the piece begins and how long it is.
    fn resolve(&self, cx: &OpCx) -> Result<(usize, usize, usize), OpError> {
        let shape = cx.shape(0)?;
        let axis = shape.axis(self.axis)?;
        let cuts = Cuts::of(cx, axis)?;
        let at = place(cx, 2, cuts.count(shape[axis]), 0)?;
        Ok((axis, cuts.start(at), cuts.size(at, shape[axis])))
    }

    fn pieces(&self, cx: &OpCx) -> Result<Vec<Move>, OpError> {
        let (axis, start, len) = self.resolve(cx)?;
        let shape = cx.shape(0)?;
        let mut dims = shape.to_vec();
        dims[axis] = len;
        let strides = signed_strides(shape);
        let block = Block {
            src_offset: start * strides[axis].unsigned_abs(),
            dst_strides: signed_strides(&Shape::new(dims.clone())?),
            src_strides: strides,
            dims,
            dst_offset: 0,
        };
        Ok(block.piece(Source::Input(0), 0).into_iter().collect())
    }
}

impl Operator for Piece {
    fn name(&self) -> &'static str {
        "SequenceAt"
    }

    fn value_inputs(&self) -> &'static [usize] {
        &[1, 2]
    }

    fn infer(&self, cx: &OpCx) -> Result<Vec<TensorInfo>, OpError> {
        cx.expect_counts(3..=3, 1..=1)?;
        let (axis, _, len) = self.resolve(cx)?;
        let mut dims = cx.shape(0)?.to_vec();
        if self.keep_dims || cx.has(1) {
            dims[axis] = len;
        } else {
            dims.remove(axis);
        }
        Ok(vec![TensorInfo::new(cx.dtype(0)?, Shape::new(dims)?)])
    }

    moves!();
}

/// How many pieces there are. Inputs: the tensor and the sizes, as of [`Piece`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PieceCount {
    /// The axis, negative ones counted from the end.
    pub axis: i64,
}

impl PieceCount {
    fn pieces(&self, cx: &OpCx) -> Result<Vec<Move>, OpError> {
        let shape = cx.shape(0)?;
        let axis = shape.axis(self.axis)?;
        let count = Cuts::of(cx, axis)?.count(shape[axis]);
        Ok(region::fill(Tensor::scalar(count as i64), 0, &Shape::scalar()).into_iter().collect())
    }
}

impl Operator for PieceCount {
    fn name(&self) -> &'static str {
        "SequenceLength"
    }

    fn value_inputs(&self) -> &'static [usize] {
        &[1]
    }

    fn infer(&self, cx: &OpCx) -> Result<Vec<TensorInfo>, OpError> {
        cx.expect_counts(1..=2, 1..=1)?;
        self.pieces(cx)?;
        Ok(vec![TensorInfo::new(DType::I64, Shape::scalar())])
    }

    fn shape_only(&self) -> bool {
        true
    }

    moves!();
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::test_util::{facts, run_cpu};

    fn data() -> Tensor {
        Tensor::new([2, 5], &(0..10).map(|v| v as f32).collect::<Vec<_>>()).unwrap()
    }

    fn piece(axis: i64, keep_dims: bool, split: Option<Tensor>, at: i64) -> Result<Tensor, OpError> {
        let op = Piece { axis, keep_dims };
        let inputs = [Some(data()), split, Some(Tensor::scalar(at))];
        facts(&op, &inputs, 1)?;
        Ok(run_cpu(&op, &inputs, 1)?.remove(0))
    }

    #[test]
    fn pieces_are_cut_out() {
        let check = |got: Result<Tensor, OpError>, dims: &[usize], want: &[f32]| {
            let got = got.unwrap();
            assert_eq!(got.shape().dims(), dims);
            assert_eq!(got.as_slice::<f32>().unwrap(), want);
        };
        check(piece(1, true, None, 3), &[2, 1], &[3.0, 8.0]);
        check(piece(-1, false, None, -1), &[2], &[4.0, 9.0]);
        check(piece(0, false, None, 1), &[5], &[5.0, 6.0, 7.0, 8.0, 9.0]);
        let even = || Some(Tensor::scalar(2i64));
        check(piece(1, false, even(), 0), &[2, 2], &[0.0, 1.0, 5.0, 6.0]);
        check(piece(1, true, even(), 2), &[2, 1], &[4.0, 9.0]);
        let sizes = || Some(Tensor::from_i64s(&[1, 0, 4]));
        check(piece(1, true, sizes(), 2), &[2, 4], &[1.0, 2.0, 3.0, 4.0, 6.0, 7.0, 8.0, 9.0]);
        check(piece(1, true, sizes(), 1), &[2, 0], &[]);
        let count = |split: Option<Tensor>| {
            let op = PieceCount { axis: 1 };
            run_cpu(&op, &[Some(data()), split], 1).unwrap().remove(0).to_i64s().unwrap()
        };
        assert_eq!((count(None), count(even()), count(sizes())), (vec![5], vec![3], vec![3]));
    }

    #[test]
    fn cuts_that_do_not_fit_are_errors() {
        let fails =
            |split: Option<Tensor>, at| matches!(piece(1, true, split, at), Err(OpError::Value { .. }));
        assert!(fails(None, 5) && fails(None, -6));
        assert!(fails(Some(Tensor::scalar(0i64)), 0) && fails(Some(Tensor::scalar(-1i64)), 0));
        assert!(fails(Some(Tensor::from_i64s(&[2, 2])), 0));
        assert!(fails(Some(Tensor::from_i64s(&[i64::MAX, i64::MAX, 7])), 0));
        assert!(fails(Some(Tensor::scalar(i64::MAX)), 1));
    }

    #[cfg(feature = "vulkan")]
    #[test]
    fn devices_compute_the_same() {
        use crate::ops::testing::Check;
        for (axis, at) in [(0, 1), (1, 3), (2, 0)] {
            let x = crate::ops::test_util::tensor(&[3, 7, 5], 1);
            let inputs = [Some(x), Some(Tensor::scalar(2i64)), Some(Tensor::scalar(at))];
            Check::new(&Piece { axis, keep_dims: true }, &inputs).run();
        }
    }
}
