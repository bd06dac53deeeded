//! Memory in common: parameters and intermediate tensors of several sessions, and memory of the application, by
//! the session's own names and by those of TVM's graph module.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

mod arena;
mod common;
mod language_model;
mod module;
mod packed;
mod packed_bytes;
mod pointers;
#[path = "../support/protobuf.rs"]
mod protobuf;
mod tvm_names;
