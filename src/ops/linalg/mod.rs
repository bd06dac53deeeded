//! Matrix products.

mod device;
mod gemm_op;
mod integer;
pub(crate) mod matmul;
pub(crate) mod product;

pub use gemm_op::Gemm;
pub use matmul::MatMul;

use super::{Family, OpDef};
use crate::dtype::DType;

/// Element types of matrix products.
pub(crate) const TYPES: &[DType] =
    &[DType::F32, DType::F16, DType::BF16, DType::F64, DType::I32, DType::I64, DType::U32, DType::U64];

/// The family's rows.
pub const FAMILY: Family = Family {
    name: "linalg",
    ops: &[
        OpDef { name: "Gemm", domain: "", since: 1, types: TYPES, gpu: true, read: gemm_op::read },
        OpDef { name: "MatMul", domain: "", since: 1, types: TYPES, gpu: true, read: matmul::read },
    ],
};
