//! `--precision`, `--activations`, `--integers` and `--coarse-filter`: how exactly a model is computed.

use super::table;
use onepool::graph::{Graph, Node};
use onepool::plan::{Activations, Integers, Precision};
use onepool::session::SessionBuilder;

/// Arguments about how exactly a model is computed.
#[derive(Clone, Copy, Debug, clap::Args)]
pub(super) struct PrecisionArgs {
    /// What a float32 model computes in: f16 is half precision with sums in float32.
    #[arg(long, value_enum, default_value_t = Compute::F32)]
    precision: Compute,
    /// Whether activations may be rounded to 8 bits where the model allows it (MatMulNBits of accuracy_level 4, GGUF):
    /// allowed is faster, exact compares with exact results. `verify` is exact without it, all else allows it.
    #[arg(long, value_enum)]
    activations: Option<Rounding>,
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

/// Whether activations may be rounded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Rounding {
    /// Where the model allows it.
    Allowed,
    /// Nowhere.
    Exact,
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

    /// The same, with exact activations where the arguments do not say.
    pub(super) fn exact_by_default(self) -> Self {
        PrecisionArgs { activations: self.activations.or(Some(Rounding::Exact)), ..self }
    }

    /// What to say of results that are off, where nodes of `graph` may round their activations.
    pub(super) fn rounding(self, graph: &Graph) -> Option<String> {
        let rounds = |node: &&Node| node.op.with_exact_activations().is_some();
        match graph.nodes().iter().filter(rounds).count() {
            0 => None,
            _ if self.activations == Some(Rounding::Exact) => None,
            count => Some(format!(
                "{} may round activations to 8 bits, as the model allows; compare with --activations exact",
                table::count(count, "node")
            )),
        }
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
        let activations = match self.activations {
            Some(Rounding::Exact) => Activations::Exact,
            _ => Activations::Allowed,
        };
        let builder = builder.activations(activations);
        builder.precision(precision).integers(integers).coarse_filter(self.coarse_filter)
    }
}
