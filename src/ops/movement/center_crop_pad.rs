//! CenterCropPad: axes cropped or padded with zeros to given sizes, the centre staying the centre.

use std::sync::Arc;

use super::moves;
use super::region::{self, Block, Piece, Source, signed_strides};
use crate::graph::{Tensor, TensorInfo};
use crate::kernel::NativeKernel;
use crate::ops::window::bad;
use crate::ops::{AttrReader, Cost, Lowering, OpCx, OpError, Operator};
use crate::shape::Shape;

/// Crops or pads `axes` to the sizes of input 1; an odd element is cut off or added at the end.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CenterCropPad {
    /// The axes that have new sizes; `None` for all.
    pub axes: Option<Vec<i64>>,
}

pub(super) fn read(attrs: &mut AttrReader<'_>, _: i64) -> Result<Arc<dyn Operator>, OpError> {
    Ok(Arc::new(CenterCropPad { axes: attrs.ints_opt("axes")? }))
}

impl CenterCropPad {
    fn sizes(&self, cx: &OpCx) -> Result<Shape, OpError> {
        let x = cx.shape(0)?;
        let wanted = cx.need_i64s(1)?;
        let axes: Vec<usize> = match &self.axes {
            Some(axes) => axes.iter().map(|a| x.axis(*a)).collect::<Result<_, _>>()?,
            None => (0..x.rank()).collect(),
        };
        if wanted.len() != axes.len() {
            let problem = format!("{} sizes for {} axes", wanted.len(), axes.len());
            return Err(OpError::Value { input: 1, problem });
        }
        let mut sizes: Vec<i64> = x.iter().map(|&n| n as i64).collect();
        for (i, (&axis, &size)) in axes.iter().zip(&wanted).enumerate() {
            if axes[..i].contains(&axis) {
                return Err(bad("axes", format!("names axis {axis} twice")));
            }
            sizes[axis] = size;
        }
        Ok(Shape::from_i64(&sizes)?)
    }

    fn pieces(&self, cx: &OpCx) -> Result<Vec<Piece>, OpError> {
        let (x, y) = (cx.input(0)?, cx.output(0)?);
        let mut pieces = Vec::new();
        if x.shape.iter().zip(y.shape.iter()).any(|(x, y)| x < y) {
            let zero = Tensor::build(TensorInfo::new(x.dtype, Shape::scalar()), |_| Ok::<_, OpError>(()))?;
            pieces.extend(region::fill(zero, 0, &y.shape));
        }
        let mut block = Block {
            dims: Vec::new(),
            src_strides: signed_strides(&x.shape),
            dst_strides: signed_strides(&y.shape),
            ..Block::default()
        };
        for (d, (&n, &m)) in x.shape.iter().zip(y.shape.iter()).enumerate() {
            block.dims.push(n.min(m));
            block.src_offset += (n.saturating_sub(m) / 2) * block.src_strides[d].unsigned_abs();
            block.dst_offset += (m.saturating_sub(n) / 2) * block.dst_strides[d].unsigned_abs();
        }
        pieces.extend(block.piece(Source::Input(0), 0));
        Ok(pieces)
    }
}

impl Operator for CenterCropPad {
    fn name(&self) -> &'static str {
        "CenterCropPad"
    }

    fn value_inputs(&self) -> &'static [usize] {
        &[1]
    }

    fn infer(&self, cx: &OpCx) -> Result<Vec<TensorInfo>, OpError> {
        cx.expect_counts(2..=2, 1..=1)?;
        Ok(vec![TensorInfo::new(cx.dtype(0)?, self.sizes(cx)?)])
    }

    moves!();
}

#[cfg(all(test, feature = "vulkan"))]
mod tests {
    use super::*;
    use crate::ops::AttrValue;
    use crate::ops::test_util::{attrs, facts, read_op, tensor};
    use crate::ops::testing::Check;

    #[test]
    fn the_centre_stays_and_odd_elements_go_at_the_end() {
        let op = read_op("CenterCropPad", 18, &attrs(&[])).unwrap();
        let x = Tensor::new([5, 2], &(0..10).map(|v| v as f32).collect::<Vec<_>>()).unwrap();
        let y = Check::new(&*op, &[Some(x), Some(Tensor::from_i64s(&[2, 5]))]).run().remove(0);
        assert_eq!(y.to_f32s().unwrap(), [0.0, 2.0, 3.0, 0.0, 0.0, 0.0, 4.0, 5.0, 0.0, 0.0]);
        let map = attrs(&[("axes", AttrValue::Ints(vec![-1, 0]))]);
        let op = read_op("CenterCropPad", 18, &map).unwrap();
        let x = Tensor::new([3, 4, 7], &(0..84).map(|v| v as u8).collect::<Vec<_>>()).unwrap();
        let y = Check::new(&*op, &[Some(x), Some(Tensor::from_i64s(&[3, 4]))]).run().remove(0);
        assert_eq!(y.shape().dims(), [4, 4, 3]);
        assert_eq!(y.as_slice::<u8>().unwrap()[..6], [2, 3, 4, 9, 10, 11]);
    }

    #[test]
    fn sizes_that_do_not_fit_are_errors() {
        let fails = |axes: Vec<i64>, sizes: &[i64]| {
            let op = CenterCropPad { axes: Some(axes) };
            facts(&op, &[Some(tensor(&[2, 3], 1)), Some(Tensor::from_i64s(sizes))], 1).is_err()
        };
        assert!(!fails(vec![0], &[0]));
        assert!(fails(vec![0], &[-1]));
        assert!(fails(vec![0], &[1, 2]));
        assert!(fails(vec![2], &[1]));
        assert!(fails(vec![0, -2], &[1, 1]));
        assert!(fails(vec![0], &[i64::MAX]));
    }
}
