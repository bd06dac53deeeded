//! Products and look-ups with weights in ggml's blocks, read as they lie in a GGUF file. The loader makes these operators;
//! ONNX has none of them.

mod blocks;
mod gated;
mod gather;
mod layout;
mod matmul;
mod rounded;
#[cfg(test)]
mod tests;

/// Their names; all have device kernels.
pub(crate) const OPERATORS: [&str; 3] = ["GatedBlocks", "GatherBlocks", "MatMulBlocks"];

pub use blocks::{BlockType, Rows};
pub use gated::GatedBlocks;
pub use gather::GatherBlocks;
pub use matmul::MatMulBlocks;
