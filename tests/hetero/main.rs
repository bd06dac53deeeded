//! One graph on several devices.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

mod common;
mod cuts;
#[path = "../support/foreign.rs"]
mod foreign;
#[path = "../support/glsl.rs"]
mod glsl;
mod kernels;
mod order;
mod overlap;
mod paths;
mod pieces;
mod random;
mod tables;
