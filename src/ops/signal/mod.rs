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
use super::{Family, OpDef, ReadFn};
use crate::dtype::DType;

const fn row(name: &'static str, types: &'static [DType], read: ReadFn) -> OpDef {
    OpDef { name, domain: "", since: 17, types, gpu: true, read }
}

/// The family's rows.
pub const FAMILY: Family = Family {
    name: "signal",
    ops: &[
        row("BlackmanWindow", DType::NUMBERS, window::blackman),
        row("DFT", FLOATS, dft::read),
        row("HammingWindow", DType::NUMBERS, window::hamming),
        row("HannWindow", DType::NUMBERS, window::hann),
        row("MelWeightMatrix", DType::NUMBERS, mel::read),
        row("STFT", FLOATS, stft::read),
    ],
};
