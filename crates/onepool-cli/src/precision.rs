//! `--precision`, `--integers` and `--coarse-filter`: how exactly a model is computed.

use onepool::plan::{Integers, Precision};
use onepool::session::SessionBuilder;

/// Arguments about how exactly a model is computed.
#[derive(Clone, Copy, Debug, clap::Args)]
pub(super) struct PrecisionArgs {
    /// What a float32 model computes in: f16 is half precision with sums in float32.
    #[arg(long, value_enum, default_value_t = Compute::F32)]
    precision: Compute,
    /// Whether operators between DequantizeLinear and QuantizeLinear compute with bytes instead of float32: auto means
    /// on CPUs whose vectors multiply bytes.
    #[arg(long, value_enum, default_value_t = Bytes::Auto)]
    integers: Bytes,
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

/// Where operators compute with bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Bytes {
    /// Where that is faster.
    Auto,
    /// On every device.
    Always,
    /// Nowhere.
    Never,
}

impl PrecisionArgs {
    /// Whether a float32 model computes in half precision.
    pub(super) fn is_half(self) -> bool {
        self.precision == Compute::F16
    }

    /// Asks the builder of a session for it.
    pub(super) fn apply(self, builder: SessionBuilder) -> SessionBuilder {
        let precision = match self.precision {
            Compute::F32 => Precision::F32,
            Compute::F16 => Precision::F16,
        };
        let integers = match self.integers {
            Bytes::Auto => Integers::Auto,
            Bytes::Always => Integers::Always,
            Bytes::Never => Integers::Never,
        };
        builder.precision(precision).integers(integers).coarse_filter(self.coarse_filter)
    }
}
