//! Transpose: dimensions in another order.

use std::sync::Arc;

use super::moves;
use super::region::{self, Block, Piece, Source, signed_strides};
use crate::graph::TensorInfo;
use crate::kernel::NativeKernel;
use crate::ops::{AttrReader, Cost, Lowering, OpCx, OpError, Operator, Structure, ViewStep};
use crate::shape::{Shape, normalize_axis};

/// Dimension `i` of the output is dimension `perm[i]` of the input.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Transpose {
    /// The order; `None` reverses the dimensions.
    pub perm: Option<Vec<i64>>,
}

pub(super) fn read(attrs: &mut AttrReader<'_>, _: i64) -> Result<Arc<dyn Operator>, OpError> {
    Ok(Arc::new(Transpose { perm: attrs.ints_opt("perm")? }))
}

impl Transpose {
    fn order(&self, rank: usize) -> Result<Vec<usize>, OpError> {
        let Some(perm) = &self.perm else { return Ok((0..rank).rev().collect()) };
        let order: Vec<usize> = perm.iter().map(|&p| normalize_axis(p, rank)).collect::<Result<_, _>>()?;
        let mut sorted = order.clone();
        sorted.sort_unstable();
        if sorted.into_iter().eq(0..rank) {
            return Ok(order);
        }
        let expected = format!("{rank} dimensions each named once, not {perm:?}");
        Err(OpError::Count { what: "entries in perm", found: perm.len(), expected })
    }

    fn pieces(&self, cx: &OpCx) -> Result<Vec<Piece>, OpError> {
        let (x, y) = (cx.shape(0)?, &cx.output(0)?.shape);
        let strides = signed_strides(x);
        let block = Block {
            dims: y.to_vec(),
            src_strides: self.order(x.rank())?.into_iter().map(|d| strides[d]).collect(),
            dst_strides: signed_strides(y),
            ..Block::default()
        };
        Ok(block.piece(Source::Input(0), 0).into_iter().collect())
    }
}

impl Operator for Transpose {
    fn name(&self) -> &'static str {
        "Transpose"
    }

    fn structure(&self) -> Option<Structure<'_>> {
        Some(Structure::Transpose { perm: self.perm.as_deref() })
    }

    fn view_step(&self, cx: &OpCx, _: usize) -> Option<ViewStep> {
        self.order(cx.shape(0).ok()?.rank()).ok().map(ViewStep::Transpose)
    }

    fn infer(&self, cx: &OpCx) -> Result<Vec<TensorInfo>, OpError> {
        cx.expect_counts(1..=1, 1..=1)?;
        let x = cx.input(0)?;
        let dims: Vec<usize> = self.order(x.shape.rank())?.into_iter().map(|d| x.shape[d]).collect();
        Ok(vec![TensorInfo::new(x.dtype, Shape::new(dims)?)])
    }

    fn alias(&self, cx: &OpCx) -> Option<usize> {
        let x = cx.shape(0).ok()?;
        // Moving only dimensions of size 1 leaves the bytes as they are.
        let kept: Vec<usize> = self.order(x.rank()).ok()?.into_iter().filter(|&d| x[d] != 1).collect();
        kept.is_sorted().then_some(0)
    }

    moves!(alike);
}

#[cfg(all(test, feature = "vulkan"))]
mod tests {
    use super::*;
    use crate::backend::{DeviceInfo, DeviceKind};
    use crate::graph::Tensor;
    use crate::ops::test_util::{tensor_of, values};
    use crate::ops::testing::{Check, as_is, no_texels};

    #[test]
    fn devices_move_by_elements_and_by_tiles() {
        let cases: [(&[usize], &[i64]); 10] = [
            (&[33, 70], &[1, 0]),
            // Pairs of 16 bits that are whole words.
            (&[66, 130], &[1, 0]),
            (&[3, 34, 70], &[0, 2, 1]),
            (&[70, 2, 3, 10], &[3, 1, 2, 0]),
            (&[3, 40, 9], &[0, 2, 1]),
            (&[9, 2, 3, 41], &[3, 1, 2, 0]),
            (&[8, 3, 2, 2, 3, 8], &[5, 3, 1, 4, 2, 0]),
            (&[2, 34, 5, 8], &[0, 2, 1, 3]),
            (&[4, 300, 3], &[0, 2, 1]),
            (&[2, 2, 2, 2, 2, 2, 9, 9], &[7, 0, 2, 4, 1, 3, 5, 6]),
        ];
        for (shape, perm) in cases {
            let op = Transpose { perm: Some(perm.to_vec()) };
            let values = values(shape.iter().product(), 3);
            let inputs = [
                tensor_of(shape, &values, |v| v),
                tensor_of(shape, &values, half::f16::from_f32),
                tensor_of(shape, &values, |v| (v * 100.0) as i8),
                tensor_of(shape, &values, |v| (v * 1e12) as i64),
            ];
            for x in inputs {
                for change in [as_is, no_texels] {
                    Check::new(&op, &[Some(x.clone())]).pretend(change).run();
                }
            }
        }
        let empty = Tensor::new([0, 40], &[0f32; 0]).unwrap();
        Check::new(&Transpose { perm: None }, &[Some(empty)]).pretend(no_texels).run();
    }

    /// So many bytes that a card has wide work-groups for them, and the last one is not full.
    #[test]
    fn cards_move_many_elements_by_wide_groups() {
        let card = |info: &mut DeviceInfo| {
            no_texels(info);
            info.kind = DeviceKind::Discrete;
        };
        let shape = [3, 179, 997];
        let bytes: Vec<i8> = (0..shape.iter().product::<usize>()).map(|i| (i * 7 + i / 253) as i8).collect();
        let x = Tensor::new(shape, &bytes).unwrap();
        Check::new(&Transpose { perm: Some(vec![1, 0, 2]) }, &[Some(x)]).pretend(card).run();
    }
}
