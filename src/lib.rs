//! Vulkan-first compute and inference runtime that runs a graph directly on the application's own memory.

pub mod kernel;
pub mod spirv;
