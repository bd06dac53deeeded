//! ConcatFromSequence of what SplitToSequence cuts into single elements.

use crate::graph::TensorInfo;
use crate::kernel::NativeKernel;
use crate::ops::movement::moves;
use crate::ops::movement::region::{self, Block, Piece as Move, Source, signed_strides};
use crate::ops::{Cost, Lowering, OpCx, OpError, Operator};
use crate::shape::{Shape, normalize_axis};

/// Input 0 cut into pieces of one element along an axis, and the pieces joined along another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Join {
    /// The axis that is cut, negative ones counted from the end.
    pub cut: i64,
    /// Whether pieces keep that axis.
    pub keep_dims: bool,
    /// The axis of the pieces, or of the result where it is new, that they are joined along.
    pub axis: i64,
    /// Whether it is a new one.
    pub new_axis: bool,
}

impl Join {
    /// Sizes of the result and their strides in the input, before an axis merges with the next one; the position
    /// of the latter.
    fn resolve(&self, cx: &OpCx) -> Result<(Vec<usize>, Vec<isize>, usize), OpError> {
        let shape = cx.shape(0)?;
        let cut = shape.axis(self.cut)?;
        let mut dims: Vec<(usize, isize)> = shape.iter().copied().zip(signed_strides(shape)).collect();
        let (count, step) = dims[cut];
        if self.keep_dims {
            dims[cut] = (1, step);
        } else {
            dims.remove(cut);
        }
        let axis = normalize_axis(self.axis, dims.len() + usize::from(self.new_axis))?;
        dims.insert(axis, (count, step));
        let (sizes, strides) = dims.into_iter().unzip();
        Ok((sizes, strides, axis))
    }

    fn pieces(&self, cx: &OpCx) -> Result<Vec<Move>, OpError> {
        let (dims, src_strides, _) = self.resolve(cx)?;
        let dst_strides = signed_strides(&Shape::new(dims.clone())?);
        let block = Block { dims, src_strides, dst_strides, ..Block::default() };
        Ok(block.piece(Source::Input(0), 0).into_iter().collect())
    }
}

impl Operator for Join {
    fn name(&self) -> &'static str {
        "ConcatFromSequence"
    }

    fn infer(&self, cx: &OpCx) -> Result<Vec<TensorInfo>, OpError> {
        cx.expect_counts(1..=1, 1..=1)?;
        let (mut dims, _, axis) = self.resolve(cx)?;
        if !self.new_axis {
            let count = dims.remove(axis);
            dims[axis] *= count;
        }
        Ok(vec![TensorInfo::new(cx.dtype(0)?, Shape::new(dims)?)])
    }

    moves!();
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::Tensor;
    use crate::ops::test_util::{facts, run_cpu, tensor};

    #[test]
    fn pieces_are_joined_along_any_axis() {
        let x = tensor(&[3, 2, 4], 1);
        let v = x.to_f32s().unwrap();
        let at = |a: usize, b: usize, c: usize| v[(a * 2 + b) * 4 + c];
        let run = |cut, keep_dims, axis, new_axis| -> Option<Tensor> {
            let op = Join { cut, keep_dims, axis, new_axis };
            let inputs = [Some(x.clone())];
            facts(&op, &inputs, 1).ok()?;
            #[cfg(feature = "vulkan")]
            crate::ops::testing::check_op(&op, &inputs, 0.0);
            Some(run_cpu(&op, &inputs, 1).unwrap().remove(0))
        };
        let check = |got: Option<Tensor>, dims: &[usize], want: &dyn Fn(&[usize]) -> f32| {
            let got = got.unwrap();
            assert_eq!(got.shape().dims(), dims);
            let strides = got.shape().strides();
            let want: Vec<f32> = (0..v.len())
                .map(|n| want(&dims.iter().zip(&strides).map(|(d, s)| n / s % d).collect::<Vec<_>>()))
                .collect();
            assert_eq!(got.to_f32s().unwrap(), want);
        };
        // Pieces of [2, 4] along the first axis, along the second, and along a new one.
        check(run(0, false, 0, false), &[6, 4], &|i| at(i[0] / 2, i[0] % 2, i[1]));
        check(run(0, false, -1, false), &[2, 12], &|i| at(i[1] / 4, i[0], i[1] % 4));
        check(run(0, false, 1, true), &[2, 3, 4], &|i| at(i[1], i[0], i[2]));
        check(run(-1, false, 0, true), &[4, 3, 2], &|i| at(i[1], i[2], i[0]));
        check(run(2, true, 0, false), &[12, 2, 1], &|i| at(i[0] % 3, i[1], i[0] / 3));
        check(run(0, true, 0, false), &[3, 2, 4], &|i| at(i[0], i[1], i[2]));
        assert!(run(0, false, 2, false).is_none() && run(3, false, 0, false).is_none());
    }
}
