//! Two operators in one.

use std::sync::Arc;

use super::Operator;
use crate::tensor::Tensor;

/// Two operators in one ([`Operator::absorb`]).
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
    /// An input of the first operator.
    Own(usize),
    /// An input of the second operator.
    Next(usize),
    /// A constant that was computed.
    New(Tensor),
    /// None.
    Absent,
}
