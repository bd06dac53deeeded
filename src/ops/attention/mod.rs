//! Attention and what comes with it: positions, caches, gates, linear attention.

mod attention_op;
mod cache;
#[cfg(test)]
mod cache_tests;
mod causal_conv;
#[cfg(test)]
mod contrib_tests;
mod device;
mod experts;
mod few;
mod flex;
mod gate;
mod group_query;
mod linear;
mod many;
mod matrix;
mod multi_head;
mod nbits;
mod paged;
#[cfg(test)]
mod paged_tests;
mod relative_bias;
mod rotary;
mod scaled;
mod skip_norm;
mod tensor_scatter;
#[cfg(test)]
mod tests;

pub use attention_op::Attention;
pub use cache::CacheKind;
pub use causal_conv::CausalConv;
pub use experts::{ExpertActivation, ExpertBlocks, ExpertCodes, Gated, MixtureOfExperts};
pub use flex::{HeadProduct, flex_parts};
pub use gate::Gate;
pub use group_query::GroupQueryAttention;
pub use linear::LinearAttention;
pub use multi_head::MultiHeadAttention;
pub use nbits::{CodedMatMul, Codes, GatedNBits, MatMulNBits};
pub use paged::PagedAttention;
pub use relative_bias::RelativePositionBias;
pub use rotary::RotaryEmbedding;
pub use skip_norm::SkipNorm;
pub use tensor_scatter::TensorScatter;

use super::real::{FLOATS, FLOATS_TO_32};
use super::window::bad;
use super::{AttrReader, Family, OpDef, OpError, ReadFn};
use crate::dtype::DType;

/// The attribute of MatMulNBits that names the numbers which codes stand for; loaders write it, no file has it.
pub const CODES: &str = "onepool.codes";

/// Attribute `name`, a number of at least `least`.
fn count(attrs: &AttrReader<'_>, name: &str, least: i64) -> Result<usize, OpError> {
    match attrs.int_opt(name)? {
        Some(n) if (least..=i64::from(i32::MAX)).contains(&n) => Ok(n as usize),
        Some(n) => Err(bad(name, format!("is {n}, expected {least} to {}", i32::MAX))),
        None => Err(bad(name, "is missing".to_owned())),
    }
}

const fn row(name: &'static str, since: i64, read: ReadFn) -> OpDef {
    OpDef { name, domain: "", since, types: FLOATS, gpu: true, read }
}

const fn contrib(name: &'static str, read: ReadFn) -> OpDef {
    OpDef { name, domain: "com.microsoft", since: 1, types: FLOATS, gpu: true, read }
}

/// The family's rows.
pub const FAMILY: Family = Family {
    name: "attention",
    ops: &[
        row("Attention", 23, attention_op::read),
        OpDef { types: FLOATS_TO_32, ..row("CausalConvWithState", 27, causal_conv::read) },
        OpDef { domain: "ai.onnx.preview", ..row("FlexAttention", 1, flex::read) },
        OpDef { types: FLOATS_TO_32, ..row("LinearAttention", 27, linear::read) },
        OpDef { types: FLOATS_TO_32, ..row("RotaryEmbedding", 23, rotary::read) },
        row("SwiGLU", 28, gate::read_swiglu),
        OpDef { types: &DType::ALL, ..row("TensorScatter", 24, tensor_scatter::read) },
        contrib("BiasGelu", gate::read_bias_gelu),
        OpDef { types: FLOATS_TO_32, ..contrib("CausalConvWithState", causal_conv::read_contrib) },
        contrib("FastGelu", gate::read_fast_gelu),
        OpDef { types: FLOATS_TO_32, ..contrib("GroupQueryAttention", group_query::read) },
        OpDef { types: FLOATS_TO_32, ..contrib("LinearAttention", linear::read_contrib) },
        OpDef { types: FLOATS_TO_32, ..contrib("MatMulBnb4", nbits::read_bnb4) },
        OpDef { types: FLOATS_TO_32, ..contrib("MatMulNBits", nbits::read) },
        OpDef { types: FLOATS_TO_32, ..contrib("MoE", experts::read) },
        OpDef { types: multi_head::TYPES, ..contrib("MultiHeadAttention", multi_head::read) },
        OpDef { types: FLOATS_TO_32, ..contrib("PagedAttention", paged::read) },
        OpDef { types: FLOATS_TO_32, ..contrib("QMoE", experts::read_coded) },
        OpDef { types: relative_bias::TYPES, ..contrib("RelativePositionBias", relative_bias::read) },
        OpDef { types: FLOATS_TO_32, ..contrib("RotaryEmbedding", rotary::read_contrib) },
        contrib("SkipLayerNormalization", skip_norm::read_layer),
        contrib("SkipSimplifiedLayerNormalization", skip_norm::read_simplified),
    ],
};
