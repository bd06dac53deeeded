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
mod function;
mod function_cpu;
pub(crate) mod identity;
mod idiom;
mod legacy;
mod nary;
pub(crate) mod number;
mod program;
mod select;
#[cfg(test)]
mod tests;

pub use binarize::Binarizer;
pub use binary::{Binary, BinaryOp, add, binary, div, mul, sub};
pub use bit_cast::BitCast;
pub use cast::{Cast, NarrowRules, cast};
pub use chain::Chain;
pub use classify::Classify;
pub use clip::Clip;
pub use function::{Pointwise, unary};

pub use identity::Identity;
pub use idiom::{may_end_function, whole_function};
pub use legacy::BinaryBeside;
pub use nary::{Nary, NaryOp, nary};
pub use program::Programs;
pub use select::{Where, select_where};

use std::sync::Arc;

use super::real::FLOATS;
use super::{AttrReader, Family, OpDef, OpError, Operator};
use crate::dtype::DType;
pub use crate::expr::Function;
use function::{INTEGERS, NUMBERS};

type Reader = fn(&mut AttrReader<'_>, i64) -> Result<Arc<dyn Operator>, OpError>;

const fn row(name: &'static str, since: i64, types: &'static [DType], read: Reader) -> OpDef {
    OpDef { name, domain: "", since, types, gpu: true, read }
}

/// Rows of binary functions.
macro_rules! binary_row {
    ($name:literal, $since:literal, $types:expr, $op:ident) => {
        row($name, $since, $types, |attrs, opset| legacy::read(BinaryOp::$op, attrs, opset))
    };
}

macro_rules! nary_row {
    ($name:literal, $op:ident) => {
        row($name, 6, NUMBERS, |_, _| Ok(nary(NaryOp::$op)))
    };
}

/// Operators that are more than a function of the table.
const OWN: &[OpDef] = &[
    binary_row!("Add", 1, NUMBERS, Add),
    binary_row!("And", 1, &[DType::Bool], And),
    OpDef { domain: "ai.onnx.ml", ..row("Binarizer", 1, binarize::TYPES, binarize::read) },
    row("BitShift", 11, INTEGERS, binary::read_shift),
    binary_row!("BitwiseAnd", 18, INTEGERS, BitwiseAnd),
    binary_row!("BitwiseOr", 18, INTEGERS, BitwiseOr),
    binary_row!("BitwiseXor", 18, INTEGERS, BitwiseXor),
    OpDef { gpu: false, ..row("BitCast", 26, &DType::ALL, bit_cast::read) },
    row("Cast", 1, &DType::ALL, cast::read),
    row("CastLike", 15, &DType::ALL, cast::read_like),
    row("Clip", 6, NUMBERS, clip::read),
    binary_row!("Div", 1, NUMBERS, Div),
    binary_row!("Equal", 1, &DType::COMPUTE, Equal),
    row("Gelu", 20, FLOATS, |attrs, _| Ok(Arc::new(Pointwise::read_gelu(attrs)?))),
    binary_row!("Greater", 1, NUMBERS, Greater),
    binary_row!("GreaterOrEqual", 12, NUMBERS, GreaterOrEqual),
    row("Identity", 1, &DType::ALL, |_, _| Ok(Arc::new(Identity))),
    row("IsInf", 10, FLOATS, classify::read_inf),
    row("IsNaN", 9, FLOATS, classify::read_nan),
    binary_row!("Less", 1, NUMBERS, Less),
    binary_row!("LessOrEqual", 12, NUMBERS, LessOrEqual),
    nary_row!("Max", Max),
    OpDef { types: FLOATS, ..nary_row!("Mean", Mean) },
    nary_row!("Min", Min),
    row("Mod", 10, NUMBERS, binary::read_mod),
    binary_row!("Mul", 1, NUMBERS, Mul),
    binary_row!("Or", 1, &[DType::Bool], Or),
    binary_row!("PRelu", 1, NUMBERS, PRelu),
    binary_row!("Pow", 1, NUMBERS, Pow),
    binary_row!("Sub", 1, NUMBERS, Sub),
    nary_row!("Sum", Sum),
    row("Where", 9, &DType::ALL, |_, _| Ok(select_where())),
    binary_row!("Xor", 1, &[DType::Bool], Xor),
];

/// Reads the function of the table that has number `N`.
fn read<const N: usize>(attrs: &mut AttrReader<'_>, _: i64) -> Result<Arc<dyn Operator>, OpError> {
    Ok(Arc::new(Pointwise::read(Function::ALL[N], attrs)?))
}

/// The reader of each function, by its number.
macro_rules! readers {
    ($($n:literal)*) => { [$(if $n < Function::ALL.len() { read::<$n> } else { read::<0> } as Reader),*] };
}

const READERS: [Reader; 64] = readers!(
    0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24 25 26 27 28 29 30 31
    32 33 34 35 36 37 38 39 40 41 42 43 44 45 46 47 48 49 50 51 52 53 54 55 56 57 58 59 60 61 62 63
);

/// How many functions of the table are operators.
const fn count() -> usize {
    let (mut at, mut found) = (0, 0);
    while at < Function::ALL.len() {
        found += Function::ALL[at].row().operator.is_some() as usize;
        at += 1;
    }
    found
}

const fn all() -> [OpDef; OWN.len() + count()] {
    const NONE: OpDef = row("", 0, &[], read::<0>);
    let mut rows = [NONE; OWN.len() + count()];
    let mut at = 0;
    while at < OWN.len() {
        let OpDef { name, domain, since, types, gpu, read } = OWN[at];
        rows[at] = OpDef { name, domain, since, types, gpu, read };
        at += 1;
    }
    let mut number = 0;
    while number < Function::ALL.len() {
        let function = Function::ALL[number].row();
        if let Some(operator) = function.operator {
            let (domain, since, types) = (operator.domain, operator.since, function::dtypes(function.types));
            rows[at] = OpDef { domain, ..row(function.name, since, types, READERS[number]) };
            at += 1;
        }
        number += 1;
    }
    rows
}

/// The family's rows.
pub const FAMILY: Family = Family { name: "pointwise", ops: &all() };
