//! Operators that compute each element of their output from the elements at its place.

mod apply;
mod binarize;
mod binary;
mod binary_cpu;
mod binary_gpu;
mod bit_cast;
pub(crate) mod cast;
mod chain;
mod classify;
mod clip;
mod fuse;
pub(crate) mod identity;
mod idiom;
mod legacy;
mod nary;
pub(crate) mod number;
mod select;
#[cfg(test)]
mod tests;
mod unary;
mod unary_cpu;

pub use binarize::Binarizer;
pub use binary::{Binary, BinaryOp, add, binary, div, mul, sub};
pub use bit_cast::BitCast;
pub use cast::{Cast, NarrowRules, cast};
pub use chain::{Chain, Programs};
pub use classify::Classify;
pub use clip::Clip;
pub use identity::Identity;
pub use idiom::{may_end_function, whole_function};
pub use legacy::BinaryBeside;
pub use nary::{Nary, NaryOp, nary};
pub use select::{Where, select_where};
pub use unary::{Unary, UnaryOp, unary};

use std::sync::Arc;

use super::real::FLOATS;
use super::{AttrReader, Family, OpDef, OpError, Operator};
use crate::dtype::DType;

type Reader = fn(&mut AttrReader<'_>, i64) -> Result<Arc<dyn Operator>, OpError>;

const fn row(name: &'static str, since: i64, types: &'static [DType], read: Reader) -> OpDef {
    OpDef { name, domain: "", since, types, gpu: true, read }
}

/// Rows of unary functions without further choices in their attributes.
macro_rules! unary_row {
    ($name:literal, $since:literal, $types:expr, $op:ident) => {
        row($name, $since, $types, |attrs, _| Ok(Arc::new(Unary::read(UnaryOp::$op, attrs)?)))
    };
}

/// Rows of binary functions.
macro_rules! binary_row {
    ($name:literal, $since:literal, $types:expr, $op:ident) => {
        row($name, $since, $types, |attrs, opset| legacy::read(BinaryOp::$op, attrs, opset))
    };
}

macro_rules! nary_row {
    ($name:literal, $op:ident) => {
        row($name, 6, unary::NUMBERS, |_, _| Ok(nary(NaryOp::$op)))
    };
}

/// The family's rows.
pub const FAMILY: Family = Family {
    name: "pointwise",
    ops: &[
        unary_row!("Abs", 6, unary::NUMBERS, Abs),
        unary_row!("Acos", 7, FLOATS, Acos),
        unary_row!("Acosh", 9, FLOATS, Acosh),
        binary_row!("Add", 1, unary::NUMBERS, Add),
        binary_row!("And", 1, &[DType::Bool], And),
        unary_row!("Asin", 7, FLOATS, Asin),
        unary_row!("Asinh", 9, FLOATS, Asinh),
        unary_row!("Atan", 7, FLOATS, Atan),
        unary_row!("Atanh", 9, FLOATS, Atanh),
        OpDef { domain: "ai.onnx.ml", ..row("Binarizer", 1, binarize::TYPES, binarize::read) },
        row("BitShift", 11, unary::INTEGERS, binary::read_shift),
        binary_row!("BitwiseAnd", 18, unary::INTEGERS, BitwiseAnd),
        unary_row!("BitwiseNot", 18, unary::INTEGERS, BitwiseNot),
        binary_row!("BitwiseOr", 18, unary::INTEGERS, BitwiseOr),
        binary_row!("BitwiseXor", 18, unary::INTEGERS, BitwiseXor),
        OpDef { gpu: false, ..row("BitCast", 26, &DType::ALL, bit_cast::read) },
        row("Cast", 1, &DType::ALL, cast::read),
        row("CastLike", 15, &DType::ALL, cast::read_like),
        unary_row!("Ceil", 6, FLOATS, Ceil),
        unary_row!("Celu", 12, FLOATS, Celu),
        row("Clip", 6, unary::NUMBERS, clip::read),
        unary_row!("Cos", 7, FLOATS, Cos),
        unary_row!("Cosh", 9, FLOATS, Cosh),
        binary_row!("Div", 1, unary::NUMBERS, Div),
        unary_row!("Elu", 6, FLOATS, Elu),
        binary_row!("Equal", 1, &DType::COMPUTE, Equal),
        unary_row!("Erf", 9, FLOATS, Erf),
        unary_row!("Exp", 6, FLOATS, Exp),
        unary_row!("Floor", 6, FLOATS, Floor),
        row("Gelu", 20, FLOATS, |attrs, _| Ok(Arc::new(Unary::read_gelu(attrs)?))),
        binary_row!("Greater", 1, unary::NUMBERS, Greater),
        binary_row!("GreaterOrEqual", 12, unary::NUMBERS, GreaterOrEqual),
        unary_row!("HardSigmoid", 6, FLOATS, HardSigmoid),
        unary_row!("HardSwish", 14, FLOATS, HardSwish),
        row("Identity", 1, &DType::ALL, |_, _| Ok(Arc::new(Identity))),
        row("IsInf", 10, FLOATS, classify::read_inf),
        row("IsNaN", 9, FLOATS, classify::read_nan),
        unary_row!("LeakyRelu", 6, FLOATS, LeakyRelu),
        binary_row!("Less", 1, unary::NUMBERS, Less),
        binary_row!("LessOrEqual", 12, unary::NUMBERS, LessOrEqual),
        unary_row!("Log", 6, FLOATS, Log),
        nary_row!("Max", Max),
        nary_row!("Mean", Mean),
        nary_row!("Min", Min),
        unary_row!("Mish", 18, FLOATS, Mish),
        row("Mod", 10, unary::NUMBERS, binary::read_mod),
        binary_row!("Mul", 1, unary::NUMBERS, Mul),
        unary_row!("Neg", 6, FLOATS, Neg),
        unary_row!("Not", 1, &[DType::Bool], Not),
        binary_row!("Or", 1, &[DType::Bool], Or),
        binary_row!("PRelu", 1, unary::NUMBERS, PRelu),
        binary_row!("Pow", 1, unary::NUMBERS, Pow),
        unary_row!("Reciprocal", 6, FLOATS, Reciprocal),
        unary_row!("Relu", 6, FLOATS, Relu),
        unary_row!("Round", 11, FLOATS, Round),
        unary_row!("Selu", 6, FLOATS, Selu),
        unary_row!("Shrink", 9, unary::NUMBERS, Shrink),
        unary_row!("Sigmoid", 6, FLOATS, Sigmoid),
        unary_row!("Sign", 9, unary::NUMBERS, Sign),
        unary_row!("Sin", 7, FLOATS, Sin),
        unary_row!("Sinh", 9, FLOATS, Sinh),
        unary_row!("Softplus", 1, FLOATS, Softplus),
        unary_row!("Softsign", 1, FLOATS, Softsign),
        unary_row!("Sqrt", 6, FLOATS, Sqrt),
        binary_row!("Sub", 1, unary::NUMBERS, Sub),
        nary_row!("Sum", Sum),
        unary_row!("Swish", 24, FLOATS, Swish),
        unary_row!("Tan", 7, FLOATS, Tan),
        unary_row!("Tanh", 6, FLOATS, Tanh),
        unary_row!("ThresholdedRelu", 10, FLOATS, ThresholdedRelu),
        row("Where", 9, &DType::ALL, |_, _| Ok(select_where())),
        binary_row!("Xor", 1, &[DType::Bool], Xor),
    ],
};
