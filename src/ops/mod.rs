//! Operators: one row of a family's table and one set of files that carry the operator's name.
//!
//! They implement the contract of [`crate::operator`]; their kernels are in `shaders/<family>/`.

mod absorb;
mod activation;
pub(crate) mod halves;
mod pack;
mod par;
#[cfg(test)]
mod parts_tests;
mod planes;
mod real;
#[cfg(test)]
mod row_tests;
mod scratch;
pub mod strided;
#[cfg(test)]
pub(crate) mod test_util;
#[cfg(test)]
mod testing;
mod window;
mod word;

pub mod attention;
pub mod control;
pub mod conv;
pub mod custom;
pub mod frame;
pub mod ggml;
pub mod image;
pub mod index;
pub mod linalg;
pub mod loss;
pub mod ml;
pub mod movement;
pub mod norm;
pub mod pointwise;
pub mod pool;
pub mod quant;
pub mod random;
pub mod recurrent;
pub mod reduce;
pub mod sequence;
pub mod shape_ops;
pub mod signal;
#[cfg(feature = "generate")]
pub(crate) mod tokens;
pub mod tvm;
pub mod vision;

pub use crate::expr::Function;
pub use crate::operator::{
    Absorbed, AbsorbedInput, Activation, Asked, AttrError, AttrMap, AttrReader, AttrValue, Candidate,
    ChoiceKey, Choices, Cost, Elementwise, Fact, Family, HalfRule, Lowered, Lowering, Native, OpCx, OpDef,
    OpError, Operand, Operator, PackFn, PackInPlaceFn, PackKey, PackLines, PackLinesFn, Packed, Passed,
    PassedBytes, Port, Quantized, ReadFn, Scaling, Step, StepKernel, Strided, Structure, UnpackFn, View,
    ViewStep, ZeroFill,
};
pub(crate) use crate::operator::{contrib, row};
pub use pointwise::{
    BinaryFunction, NaryOp, Pointwise, add, binary, cast, div, mul, nary, select_where, sub, unary,
};
pub(crate) use strided::reaches_all;
pub use window::{AutoPad, WindowAttrs, WindowAxis};

/// Every operator, by family.
pub static FAMILIES: &[Family] = &[
    pointwise::FAMILY,
    linalg::FAMILY,
    conv::FAMILY,
    pool::FAMILY,
    norm::FAMILY,
    recurrent::FAMILY,
    attention::FAMILY,
    reduce::FAMILY,
    movement::FAMILY,
    index::FAMILY,
    quant::FAMILY,
    loss::FAMILY,
    random::FAMILY,
    shape_ops::FAMILY,
    control::FAMILY,
    vision::FAMILY,
    signal::FAMILY,
    ml::FAMILY,
];

/// The row of operator `name` of `domain` ("" and "ai.onnx" are the same).
pub fn find(domain: &str, name: &str) -> Option<&'static OpDef> {
    let domain = if domain == "ai.onnx" { "" } else { domain };
    FAMILIES.iter().flat_map(|f| f.ops).find(|d| d.name == name && d.domain == domain)
}
