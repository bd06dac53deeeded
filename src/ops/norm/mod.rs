//! Normalizations and softmax.

mod batch_norm;
mod batch_norm_training;
mod device;
mod exponentials;
mod group_norm;
mod layer_norm;
mod lp_norm;
mod lrn;
mod mean_variance;
mod rows;
mod softmax;

pub use batch_norm::BatchNormalization;
pub use batch_norm_training::BatchNormTraining;
pub(crate) use device::teams;
pub(crate) use exponentials::{exponentials, top};
pub use group_norm::{GroupNormalization, GroupScale};
pub use layer_norm::LayerNormalization;
pub use lp_norm::LpNormalization;
pub use lrn::Lrn;
pub use mean_variance::MeanVarianceNormalization;
pub(crate) use rows::statistics;
pub(crate) use softmax::largest;
pub use softmax::{Softmax, SoftmaxKind};

use super::real::FLOATS;
use super::{Family, Lowering, OpCx, OpDef, OpError, Operand, ReadFn};

const fn row(name: &'static str, since: i64, read: ReadFn) -> OpDef {
    OpDef { name, domain: "", since, types: FLOATS, gpu: true, read }
}

/// The family's rows.
pub const FAMILY: Family = Family {
    name: "norm",
    ops: &[
        row("BatchNormalization", 1, batch_norm::read),
        row("GroupNormalization", 18, group_norm::read_group),
        row("Hardmax", 1, softmax::hardmax),
        row("InstanceNormalization", 1, group_norm::read_instance),
        row("LRN", 1, lrn::read),
        // Exporters of fused models write it under older opsets too.
        row("LayerNormalization", 1, layer_norm::read_layer),
        row("LogSoftmax", 1, softmax::log_softmax),
        row("LpNormalization", 1, lp_norm::read),
        row("MeanVarianceNormalization", 9, mean_variance::read),
        row("RMSNormalization", 23, layer_norm::read_rms),
        row("SimplifiedLayerNormalization", 1, layer_norm::read_rms),
        OpDef { domain: "com.microsoft", ..row("SimplifiedLayerNormalization", 1, layer_norm::read_rms) },
        row("Softmax", 1, softmax::softmax),
    ],
};

/// A tensor seen along one axis: `outer` blocks of `len` rows of `inner` elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Along {
    /// Product of the sizes before the axis.
    pub outer: usize,
    /// Size of the axis.
    pub len: usize,
    /// Product of the sizes of later axes.
    pub inner: usize,
}

/// Emits the logarithms of the softmax of input 0 to `to`.
pub(crate) fn log_softmax_to(
    cx: &OpCx,
    along: Along,
    to: Operand,
    lower: &mut Lowering<'_>,
) -> Result<(), OpError> {
    device::vectors(cx, along, crate::kernel::codes::softmax::Kind::Log, to, lower)
}

impl Along {
    /// The axes from `from` to before `to` of `dims` as one.
    pub(crate) fn axes(dims: &[usize], from: usize, to: usize) -> Along {
        let product = |d: &[usize]| d.iter().product();
        Along { outer: product(&dims[..from]), len: product(&dims[from..to]), inner: product(&dims[to..]) }
    }

    /// Elements.
    pub(crate) fn elements(&self) -> usize {
        self.outer * self.len * self.inner
    }
}
