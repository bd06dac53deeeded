//! Losses: how far predictions are from labels.

mod nll;
mod nll_device;

pub use nll::{NllLoss, Reduction};

use super::real::FLOATS;
use super::{Family, OpDef, ReadFn};

const fn row(name: &'static str, read: ReadFn) -> OpDef {
    OpDef { name, domain: "", since: 12, types: FLOATS, gpu: true, read }
}

/// The family's rows.
pub const FAMILY: Family = Family {
    name: "loss",
    ops: &[
        row("NegativeLogLikelihoodLoss", |a, _| nll::read(a, false)),
        row("SoftmaxCrossEntropyLoss", |a, _| nll::read(a, true)),
    ],
};
