//! Products and look-ups with weights in ggml's blocks, read as they lie in a GGUF file. The loader makes these operators;
//! ONNX has none of them.

mod blocks;
mod gather;
mod layout;
mod matmul;
mod rounded;
#[cfg(test)]
pub(super) mod tests;

/// Their family: that of their kernels.
const FAMILY: &str = "ggml";

pub use blocks::{BlockType, Rows};
pub use gather::GatherBlocks;
pub(crate) use matmul::multiply;
pub use matmul::{GatedBlocks, MatMulBlocks};
