//! What `--precision` says.

use crate::plan::Precision;

/// What a float32 model computes in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum PrecisionArg {
    /// What the model says.
    F32,
    /// Half precision with sums in float32, where the device has kernels for it.
    F16,
}

impl From<PrecisionArg> for Precision {
    fn from(arg: PrecisionArg) -> Precision {
        match arg {
            PrecisionArg::F32 => Precision::F32,
            PrecisionArg::F16 => Precision::F16,
        }
    }
}
