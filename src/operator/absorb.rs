//! Two operators in one.

use std::sync::Arc;

use super::Operator;
use crate::tensor::Tensor;

/// Two operators in one ([`Operator::absorb`], [`Operator::absorb_before`]).
#[derive(Clone, Debug)]
pub struct Absorbed {
    /// The one.
    pub op: Arc<dyn Operator>,
    /// Its inputs.
    pub inputs: Vec<AbsorbedInput>,
}

/// Where an input of an absorbing operator comes from.
#[derive(Clone, Debug)]
pub enum AbsorbedInput {
    /// An input of the operator that absorbs.
    Own(usize),
    /// An input of the other operator.
    Next(usize),
    /// A constant that was computed.
    New(Tensor),
    /// None.
    Absent,
}
