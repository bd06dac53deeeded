//! Vulkan-first inference on the application's own memory.

pub mod memory;
