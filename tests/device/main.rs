//! The device interface over every backend.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

mod basics;
mod budgets;
mod common;
mod costs;
mod faults;
mod guards;
mod imports;
mod inlays;
mod ordering;
mod registry;
mod usage;
#[allow(dead_code, reason = "other suites use the rest")]
#[path = "../support/values.rs"]
mod values;
mod visibility;
