//! Recurrent layers: RNN, GRU and LSTM.

mod cell;
mod device;
mod function;
mod layer;

#[cfg(test)]
mod tests;

pub use layer::{Direction, Kind, Recurrent};

use super::{Family, OpDef};
use crate::ops::real::FLOATS;

/// The family's rows.
pub const FAMILY: Family = Family {
    name: "recurrent",
    ops: &[
        OpDef { name: "GRU", domain: "", since: 1, types: FLOATS, gpu: true, read: layer::read_gru },
        OpDef { name: "LSTM", domain: "", since: 1, types: FLOATS, gpu: true, read: layer::read_lstm },
        OpDef { name: "RNN", domain: "", since: 1, types: FLOATS, gpu: true, read: layer::read_rnn },
    ],
};
