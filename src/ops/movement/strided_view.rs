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
