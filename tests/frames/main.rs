//! Frames as inputs and outputs: their numbers against the standards' formulas, their memory, the end of their reads.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;
mod descriptions;
mod doors;
mod example;
mod memory;
mod numbers;
mod reads;
mod reference;
