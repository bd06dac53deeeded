//! The device interface over the CPU backend, the simulated devices and OpenCL.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

mod basics;
mod common;
mod costs;
mod faults;
mod guards;
mod imports;
mod ordering;
mod registry;
mod usage;
mod visibility;
