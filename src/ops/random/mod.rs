//! Random numbers, all from one counter-based generator (`philox`).
//!
//! With a seed an operator gives the same numbers in every run and on every device (normal ones up to the
//! device's precision of logarithm and sine); they are not those of other runtimes. Without one the
//! CPU draws new numbers in every run.

mod bernoulli;
mod dropout;
mod fill;
mod multinomial;
pub(crate) mod philox;
#[cfg(test)]
mod tests;

pub use bernoulli::Bernoulli;
pub use dropout::Dropout;
pub use fill::{Distribution, RandomFill};
pub use multinomial::Multinomial;

use super::real::FLOATS;
use super::{Family, OpDef, ReadFn};

const fn row(name: &'static str, since: i64, read: ReadFn) -> OpDef {
    OpDef { name, domain: "", since, types: FLOATS, gpu: true, read }
}

/// The family's rows.
pub const FAMILY: Family = Family {
    name: "random",
    ops: &[
        row("Bernoulli", 15, bernoulli::read),
        row("Dropout", 7, dropout::read),
        row("Multinomial", 7, multinomial::read),
        row("RandomNormal", 1, |a, _| fill::read(a, true, false)),
        row("RandomNormalLike", 1, |a, _| fill::read(a, true, true)),
        row("RandomUniform", 1, |a, _| fill::read(a, false, false)),
        row("RandomUniformLike", 1, |a, _| fill::read(a, false, true)),
    ],
};
