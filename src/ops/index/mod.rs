//! Operators that pick and place elements by indices, or find indices of elements.

mod compress;
mod feature;
pub(crate) mod gather;
mod gather_elements;
mod gather_nd;
mod non_zero;
mod one_hot;
mod order;
pub(crate) mod positions;
mod reverse_sequence;
mod scatter;
mod scatter_device;
#[cfg(test)]
#[cfg(feature = "vulkan")]
mod tests;
mod top_k;
mod top_k_device;
mod unique;

pub use compress::Compress;
pub use feature::ArrayFeatureExtractor;
pub use gather::Gather;
pub use gather_elements::GatherElements;
pub use gather_nd::GatherNd;
pub use non_zero::NonZero;
pub use one_hot::OneHot;
pub use reverse_sequence::ReverseSequence;
pub use scatter::{Naming, Reduction, Scatter};
pub use top_k::TopK;
pub use unique::Unique;

use super::{Family, OpDef, ReadFn};
use crate::dtype::DType;

const fn row(name: &'static str, since: i64, gpu: bool, read: ReadFn) -> OpDef {
    OpDef { name, domain: "", since, types: &DType::ALL, gpu, read }
}

/// The family's rows.
pub const FAMILY: Family = Family {
    name: "index",
    ops: &[
        OpDef { domain: "ai.onnx.ml", ..row("ArrayFeatureExtractor", 1, true, feature::read) },
        row("Compress", 9, true, compress::read),
        row("Gather", 1, true, gather::read),
        row("GatherElements", 11, true, gather_elements::read),
        row("GatherND", 11, true, gather_nd::read),
        OpDef { types: &DType::COMPUTE, ..row("NonZero", 9, false, non_zero::read) },
        row("OneHot", 9, true, one_hot::read),
        row("ReverseSequence", 10, true, reverse_sequence::read),
        row("Scatter", 9, true, scatter::read_elements),
        row("ScatterElements", 11, true, scatter::read_elements),
        row("ScatterND", 11, true, scatter::read_nd),
        OpDef { name: "TopK", domain: "", since: 1, types: DType::NUMBERS, gpu: true, read: top_k::read },
        OpDef { types: &DType::COMPUTE, ..row("Unique", 11, false, unique::read) },
    ],
};
