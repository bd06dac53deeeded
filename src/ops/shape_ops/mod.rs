//! Operators that compute shapes, or change the shape of a tensor and not its elements.

mod describe;
mod expand;
mod generate;
mod reshape;
#[cfg(test)]
mod tests;

pub use describe::{ShapeOf, SizeOf};
pub use expand::Expand;
pub use generate::{ConstantOfShape, EyeLike, Range};
pub use reshape::{Flatten, Reshape, Squeeze, Unsqueeze};

use std::sync::Arc;

use super::{Family, row};
use crate::dtype::DType;

/// Types that sizes are given in; ONNX has `int64` only.
const SIZES: &[DType] = {
    use DType::*;
    &[I8, I16, I32, I64, U8, U16, U32, U64, Bool]
};

/// The family's rows.
pub const FAMILY: Family = Family {
    name: "shape_ops",
    ops: &[
        row("ConstantOfShape", 9, SIZES, generate::read_constant),
        row("Expand", 8, &DType::ALL, |_, _| Ok(Arc::new(Expand))),
        row("EyeLike", 9, &DType::COMPUTE, generate::read_eye),
        row("Flatten", 1, &DType::ALL, reshape::read_flatten),
        row("Range", 11, generate::RANGE_TYPES, |_, _| Ok(Arc::new(Range))),
        row("Reshape", 1, &DType::ALL, reshape::read_reshape),
        row("Shape", 1, &DType::ALL, describe::read_shape),
        row("Size", 1, &DType::ALL, |_, _| Ok(Arc::new(SizeOf))),
        row("Squeeze", 1, &DType::ALL, reshape::read_squeeze),
        row("Unsqueeze", 1, &DType::ALL, reshape::read_unsqueeze),
    ],
};
