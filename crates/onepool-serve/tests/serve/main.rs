//! The server, reached as clients reach it.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

#[path = "../../../../tests/support/protobuf.rs"]
mod protobuf;

mod bad_input;
mod batches;
mod client;
mod life;
mod limits;
mod models;
mod protocol;
mod shared;
