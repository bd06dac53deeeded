//! Spectra, windows and filter banks of signals.

mod constant;
mod dft;
mod mel;
mod spectrum;
mod spectrum_device;
mod stft;
mod window;

pub use dft::Dft;
pub use mel::MelWeightMatrix;
pub use stft::Stft;
pub use window::{WindowFunction, WindowShape};

use super::real::FLOATS;
use super::{AttrReader, Family, OpDef, OpError, Operator};
use crate::dtype::DType;
use std::sync::Arc;

type Read = fn(&mut AttrReader<'_>, i64) -> Result<Arc<dyn Operator>, OpError>;

/// Element types of windows and filter banks.
const NUMBERS: &[DType] = &[
    DType::F32,
    DType::F16,
    DType::BF16,
    DType::F64,
    DType::I8,
    DType::I16,
    DType::I32,
    DType::I64,
    DType::U8,
    DType::U16,
    DType::U32,
    DType::U64,
];

const fn row(name: &'static str, types: &'static [DType], read: Read) -> OpDef {
    OpDef { name, domain: "", since: 17, types, gpu: true, read }
}

/// The family's rows.
pub const FAMILY: Family = Family {
    name: "signal",
    ops: &[
        row("BlackmanWindow", NUMBERS, window::blackman),
        row("DFT", FLOATS, dft::read),
        row("HammingWindow", NUMBERS, window::hamming),
        row("HannWindow", NUMBERS, window::hann),
        row("MelWeightMatrix", NUMBERS, mel::read),
        row("STFT", FLOATS, stft::read),
    ],
};
