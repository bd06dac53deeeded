//! StridedView: a compact tensor of elements that lie at strides in a memory.

use super::moves;
use super::region::{self, Block, Piece, Source, signed_strides};
use crate::graph::TensorInfo;
use crate::kernel::NativeKernel;
use crate::ops::{Cost, Lowering, OpCx, OpError, Operator};
use crate::shape::{Shape, ShapeError};

/// Reads elements where they lie. Its input is the memory from the lowest address to the end of the highest element.
/// Sessions put it before a model; no file names it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StridedView {
    shape: Shape,
    strides: Vec<isize>,
    /// The element of the memory that comes first in the tensor.
    first: usize,
    /// Elements of the memory.
    elements: usize,
}

impl StridedView {
    /// A tensor of these dimensions: size, and stride in elements. Negative strides walk backwards, 0 repeats.
    ///
    /// # Errors
    /// [`ShapeError`] for sizes that no tensor has, and strides that no memory has.
    pub fn new(dims: &[(usize, i64)]) -> Result<Self, ShapeError> {
        let shape = Shape::new(dims.iter().map(|(size, _)| *size).collect::<Vec<_>>())?;
        let too_large = || ShapeError::Overflow { shape: shape.to_string() };
        let (mut first, mut last) = (0usize, 0usize);
        for &(size, stride) in dims {
            let reach = usize::try_from(stride.unsigned_abs()).ok();
            let reach = reach.and_then(|stride| stride.checked_mul(size.saturating_sub(1)));
            let side = if stride < 0 { &mut first } else { &mut last };
            *side = reach.and_then(|reach| side.checked_add(reach)).ok_or_else(too_large)?;
        }
        let elements = first.checked_add(last).and_then(|before| before.checked_add(1));
        let elements = elements.filter(|n| isize::try_from(*n).is_ok()).ok_or_else(too_large)?;
        let elements = if shape.elements() == 0 { 0 } else { elements };
        // A dimension of one element has no step, so its stride may be any number.
        let strides =
            dims.iter().map(|(size, stride)| if *size > 1 { *stride as isize } else { 0 }).collect();
        Ok(StridedView { shape, strides, first, elements })
    }

    /// The shape of the tensor.
    pub fn shape(&self) -> &Shape {
        &self.shape
    }

    /// Elements of the memory, from the lowest address on.
    pub fn memory_elements(&self) -> usize {
        self.elements
    }

    /// The element of the memory that comes first in the tensor: 0 unless a stride is negative.
    pub fn first_element(&self) -> usize {
        self.first
    }

    fn pieces(&self, cx: &OpCx) -> Result<Vec<Piece>, OpError> {
        let block = Block {
            dims: self.shape.to_vec(),
            src_strides: self.strides.clone(),
            dst_strides: signed_strides(&cx.output(0)?.shape),
            src_offset: self.first,
            dst_offset: 0,
        };
        Ok(block.piece(Source::Input(0), 0).into_iter().collect())
    }
}

impl Operator for StridedView {
    fn name(&self) -> &'static str {
        "StridedView"
    }

    fn infer(&self, cx: &OpCx) -> Result<Vec<TensorInfo>, OpError> {
        cx.expect_counts(1..=1, 1..=1)?;
        if cx.shape(0)?.elements() != self.elements {
            return Err(cx.shape_error(0, format!("{} elements", self.elements)));
        }
        Ok(vec![TensorInfo::new(cx.dtype(0)?, self.shape.clone())])
    }

    moves!();
}

#[cfg(test)]
mod tests {
    use super::*;

    fn view(sizes: &[usize], strides: &[i64]) -> Result<StridedView, ShapeError> {
        let dims: Vec<(usize, i64)> = sizes.iter().copied().zip(strides.iter().copied()).collect();
        StridedView::new(&dims)
    }

    #[test]
    fn the_memory_reaches_from_the_lowest_to_the_highest_element() {
        let of = |sizes: &[usize], strides: &[i64]| {
            let view = view(sizes, strides).unwrap();
            (view.memory_elements(), view.first_element())
        };
        assert_eq!(of(&[3, 4], &[6, 1]), (16, 0));
        assert_eq!(of(&[3, 4], &[-6, 1]), (16, 12));
        assert_eq!(of(&[3, 4], &[-4, -1]), (12, 11));
        assert_eq!(of(&[5, 3], &[1, 1]), (7, 0));
        assert_eq!(of(&[5, 3], &[0, 0]), (1, 0));
        assert_eq!(of(&[0, 3], &[9, 9]), (0, 0));
        assert_eq!(of(&[1, 3], &[i64::MIN, 1]), (3, 0));
        assert_eq!(of(&[], &[]), (1, 0));
    }

    #[test]
    fn strides_that_no_memory_has_are_errors() {
        for stride in [i64::MAX, i64::MIN, i64::MAX / 2] {
            let said = view(&[4, 2], &[stride, 1]).unwrap_err().to_string();
            assert!(said.contains("too many elements"), "{said}");
        }
    }

    #[cfg(feature = "vulkan")]
    #[test]
    fn devices_read_elements_where_they_lie() {
        use crate::ops::test_util::{tensor_of, values};
        use crate::ops::testing::Check;

        let cases: [(&[usize], &[i64]); 6] = [
            (&[33, 17], &[40, 2]),
            (&[9, 20], &[-32, -1]),
            (&[40, 33], &[1, 50]),
            (&[6, 5], &[1, 1]),
            (&[3, 8, 10], &[1, 36, 3]),
            (&[4, 4], &[0, 0]),
        ];
        for (sizes, strides) in cases {
            let view = view(sizes, strides).unwrap();
            let memory = [view.memory_elements()];
            let values = values(memory[0], 3);
            Check::new(&view, &[Some(tensor_of(&memory, &values, |v| v))]).run();
            Check::new(&view, &[Some(tensor_of(&memory, &values, |v| (v * 100.0) as i8))]).run();
        }
    }
}
