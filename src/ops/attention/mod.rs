//! Attention and what comes with it: positions, caches, gates, linear attention.

mod attention_op;
mod causal_conv;
#[cfg(test)]
mod contrib_tests;
mod device;
mod flex;
mod gate;
mod group_query;
mod linear;
mod multi_head;
mod nbits;
mod rotary;
mod scaled;
mod skip_norm;
mod tensor_scatter;
#[cfg(test)]
mod tests;

pub use attention_op::Attention;
pub use causal_conv::CausalConv;
pub use flex::{HeadProduct, flex_parts};
pub use gate::Gate;
pub use group_query::GroupQueryAttention;
pub use linear::LinearAttention;
pub use multi_head::MultiHeadAttention;
pub use nbits::MatMulNBits;
pub use rotary::RotaryEmbedding;
pub use skip_norm::SkipNorm;
pub use tensor_scatter::TensorScatter;

use super::real::FLOATS;
use super::{AttrReader, Family, OpDef, OpError, Operator, UnaryOp, unary};
use crate::dtype::DType;
use std::sync::Arc;

type Read = fn(&mut AttrReader<'_>, i64) -> Result<Arc<dyn Operator>, OpError>;

const fn row(name: &'static str, since: i64, read: Read) -> OpDef {
    OpDef { name, domain: "", since, types: FLOATS, gpu: true, read }
}

const fn contrib(name: &'static str, read: Read) -> OpDef {
    OpDef { name, domain: "com.microsoft", since: 1, types: FLOATS, gpu: true, read }
}

/// The family's rows.
pub const FAMILY: Family = Family {
    name: "attention",
    ops: &[
        row("Attention", 23, attention_op::read),
        row("CausalConvWithState", 27, causal_conv::read),
        OpDef { domain: "ai.onnx.preview", ..row("FlexAttention", 1, flex::read) },
        row("LinearAttention", 27, linear::read),
        row("RotaryEmbedding", 23, rotary::read),
        row("SwiGLU", 28, gate::read_swiglu),
        OpDef { types: &DType::ALL, ..row("TensorScatter", 24, tensor_scatter::read) },
        contrib("BiasGelu", gate::read_bias_gelu),
        contrib("FastGelu", gate::read_fast_gelu),
        contrib("Gelu", |_, _| Ok(unary(UnaryOp::Gelu))),
        contrib("GroupQueryAttention", group_query::read),
        contrib("MatMulNBits", nbits::read),
        contrib("MultiHeadAttention", multi_head::read),
        contrib("QuickGelu", gate::read_quick_gelu),
        contrib("RotaryEmbedding", rotary::read_contrib),
        contrib("SkipLayerNormalization", skip_norm::read_layer),
        contrib("SkipSimplifiedLayerNormalization", skip_norm::read_simplified),
    ],
};
