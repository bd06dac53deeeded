//! Matrix products.

pub(crate) mod bytes;
pub(crate) mod coded;
mod det;
pub(crate) mod device;
mod einsum;
mod fused;
pub(crate) mod gated;
mod gemm_op;
mod half_product;
mod integer;
pub(crate) mod joined;
pub(crate) mod matmul;
pub(crate) mod panels;
pub(crate) mod product;
pub(crate) mod share;
pub(crate) mod tile;
mod turned;

pub use det::Det;
pub use einsum::Einsum;
pub use fused::FusedMatMul;
pub use gated::Gated;
pub use gemm_op::Gemm;
pub use matmul::{GatedMatMul, MatMul};

use super::real::FLOATS;
use super::{Family, OpDef, ReadFn};
use crate::dtype::DType;

/// Element types of matrix products.
pub(crate) const TYPES: &[DType] =
    &[DType::F32, DType::F16, DType::BF16, DType::F64, DType::I32, DType::I64, DType::U32, DType::U64];

const fn contrib(name: &'static str, read: ReadFn) -> OpDef {
    OpDef { name, domain: "com.microsoft", since: 1, types: FLOATS, gpu: true, read }
}

/// The family's rows.
pub const FAMILY: Family = Family {
    name: "linalg",
    ops: &[
        OpDef { name: "Det", domain: "", since: 11, types: FLOATS, gpu: true, read: det::read },
        OpDef { name: "Einsum", domain: "", since: 12, types: DType::NUMBERS, gpu: true, read: einsum::read },
        OpDef { types: TYPES, ..contrib("FusedGemm", fused::read_gemm) },
        contrib("FusedMatMul", fused::read_matmul),
        OpDef { name: "Gemm", domain: "", since: 1, types: TYPES, gpu: true, read: gemm_op::read },
        OpDef { name: "MatMul", domain: "", since: 1, types: TYPES, gpu: true, read: matmul::read },
    ],
};
