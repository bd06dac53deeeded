//! What the tests of TVM's graph executor never looked at, clause by clause. `docs/TVM.md` says which test proves
//! which clause; many of them stand next to the code they are about or in `tests/sharing` and `tests/device`, the
//! rest is here.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

#[allow(dead_code, reason = "made for another suite too")]
#[path = "../sharing/common.rs"]
mod common;

mod coherency;
#[cfg(target_os = "linux")]
mod dma_buf;
mod executors;
mod facade;
mod planner;
mod table;
