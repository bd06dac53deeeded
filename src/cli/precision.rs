//! `--precision` and `--coarse-filter`: how exactly a model is computed.

use crate::plan::Precision;
use crate::session::SessionBuilder;

/// Arguments about how exactly a model is computed.
#[derive(Clone, Copy, Debug, clap::Args)]
pub(super) struct PrecisionArgs {
    /// What a float32 model computes in: f16 is half precision with sums in float32.
    #[arg(long, value_enum, default_value_t = Compute::F32)]
    precision: Compute,
    /// Let a Resize that reads an image leave interpolation to hardware whose weights have some 8 bits: results
    /// differ by up to 1/256 of the difference of neighbours.
    #[arg(long)]
    coarse_filter: bool,
}

/// What a float32 model computes in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Compute {
    /// What the model says.
    F32,
    /// Half precision with sums in float32, where the device has kernels for it.
    F16,
}

impl PrecisionArgs {
    /// Asks the builder of a session for it.
    pub(super) fn apply(self, builder: SessionBuilder) -> SessionBuilder {
        let precision = match self.precision {
            Compute::F32 => Precision::F32,
            Compute::F16 => Precision::F16,
        };
        builder.precision(precision).coarse_filter(self.coarse_filter)
    }
}
