//! Operators that compute each element of their output from the elements at its place.

mod apply;
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

pub use binary::{Binary, add, binary, div, mul, sub};
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
use super::{AttrReader, Family, OpDef, OpError, Operator, ReadFn, row};
use crate::dtype::DType;
use crate::expr::{ALIASES, Alias, OperatorName, Types};
pub use crate::expr::{BinaryFunction, ElementTest, Function};
use function::{INTEGERS, NUMBERS, dtypes};

macro_rules! nary_row {
    ($name:literal, $op:ident) => {
        row($name, 6, NUMBERS, |_, _| Ok(nary(NaryOp::$op)))
    };
}

/// Operators that are more than a function of the table.
const OWN: &[OpDef] = &[
    row("BitShift", 11, INTEGERS, binary::read_shift),
    OpDef { gpu: false, ..row("BitCast", 26, &DType::ALL, bit_cast::read) },
    row("Cast", 1, &DType::ALL, cast::read),
    row("CastLike", 15, &DType::ALL, cast::read_like),
    row("Clip", 6, NUMBERS, clip::read),
    row("Gelu", 20, FLOATS, |attrs, _| Ok(Arc::new(Pointwise::read_gelu(attrs)?))),
    row("Identity", 1, &DType::ALL, |_, _| Ok(Arc::new(Identity))),
    nary_row!("Max", Max),
    OpDef { types: FLOATS, ..nary_row!("Mean", Mean) },
    nary_row!("Min", Min),
    row("Mod", 10, NUMBERS, binary::read_mod),
    nary_row!("Sum", Sum),
    row("Where", 9, &DType::ALL, |_, _| Ok(select_where())),
];

/// Reads the function of one element that has number `N`.
fn read<const N: usize>(attrs: &mut AttrReader<'_>, _: i64) -> Result<Arc<dyn Operator>, OpError> {
    Ok(Arc::new(Pointwise::new(Function::ALL[N]).read(attrs)?))
}

/// Reads the function of one element that has another name under number `N`.
fn read_alias<const N: usize>(attrs: &mut AttrReader<'_>, _: i64) -> Result<Arc<dyn Operator>, OpError> {
    let Alias { function, params, .. } = ALIASES[N];
    Ok(Arc::new(Pointwise { function, params }.read(attrs)?))
}

/// Reads the function of two elements that has number `N`.
fn read_binary<const N: usize>(attrs: &mut AttrReader<'_>, opset: i64) -> Result<Arc<dyn Operator>, OpError> {
    legacy::read(BinaryFunction::ALL[N], attrs, opset)
}

/// Reads the question that has number `N`.
fn read_test<const N: usize>(attrs: &mut AttrReader<'_>, _: i64) -> Result<Arc<dyn Operator>, OpError> {
    classify::read(ElementTest::ALL[N], attrs)
}

/// The reader of each of `$all`, by its number.
macro_rules! readers {
    ($read:ident $all:expr; $($n:literal)*) => { [$(if $n < $all.len() { $read::<$n> } else { $read::<0> } as ReadFn),*] };
    ($read:ident $all:expr) => {
        readers!($read $all; 0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24 25 26 27 28 29 30 31
            32 33 34 35 36 37 38 39 40 41 42 43 44 45 46 47 48 49 50 51 52 53 54 55 56 57 58 59 60 61 62 63)
    };
}

const READERS: [ReadFn; 64] = readers!(read Function::ALL);
const BINARY_READERS: [ReadFn; 64] = readers!(read_binary BinaryFunction::ALL);
const ALIAS_READERS: [ReadFn; 64] = readers!(read_alias ALIASES);
const TEST_READERS: [ReadFn; 64] = readers!(read_test ElementTest::ALL);

/// Number of functions of the table that are operators.
const fn count() -> usize {
    let (mut at, mut found) = (0, ElementTest::ALL.len() + ALIASES.len());
    while at < Function::ALL.len() {
        found += Function::ALL[at].row().operator.is_some() as usize;
        at += 1;
    }
    at = 0;
    while at < BinaryFunction::ALL.len() {
        found += BinaryFunction::ALL[at].row().operator.is_some() as usize;
        at += 1;
    }
    found
}

const fn of_table(name: &'static str, operator: OperatorName, types: Types, read: ReadFn) -> OpDef {
    OpDef { domain: operator.domain, ..row(name, operator.since, dtypes(types), read) }
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
            rows[at] = of_table(function.name, operator, function.types, READERS[number]);
            at += 1;
        }
        number += 1;
    }
    number = 0;
    while number < BinaryFunction::ALL.len() {
        let function = BinaryFunction::ALL[number].row();
        if let Some(operator) = function.operator {
            rows[at] = of_table(function.name, operator, function.types, BINARY_READERS[number]);
            at += 1;
        }
        number += 1;
    }
    number = 0;
    while number < ALIASES.len() {
        let Alias { name, operator, function, .. } = ALIASES[number];
        rows[at] = of_table(name, operator, function.row().types, ALIAS_READERS[number]);
        at += 1;
        number += 1;
    }
    number = 0;
    while number < ElementTest::ALL.len() {
        let test = ElementTest::ALL[number].row();
        rows[at] = row(test.name, test.since, FLOATS, TEST_READERS[number]);
        at += 1;
        number += 1;
    }
    rows
}

/// The family's rows.
pub const FAMILY: Family = Family { name: "pointwise", ops: &all() };
