//! Tensors in images: kernels read through them what they read from buffers, and the planner hands memory from
//! one to the other.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

mod common;
mod constants;
mod handover;
mod kernels;
mod peak;
mod structures;
mod textures;
