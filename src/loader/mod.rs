//! Files to graphs: ONNX models, and the graph JSON and `.params` of Apache TVM's graph executor.
//!
//! Every length, count and index of a file is checked before it is used; what is wrong is an error
//! that says where. Nothing allocates more than a small multiple of the file's size.

#![forbid(unsafe_code)]
#![cfg_attr(not(test), deny(clippy::indexing_slicing, clippy::arithmetic_side_effects, clippy::string_slice))]

mod error;
mod pack;
mod source;
#[cfg(test)]
mod testing;

pub mod onnx;
pub mod params;

pub use error::{LoadError, LoadErrorKind, Location};

use crate::ops::OpDef;

/// Finds the operator of a domain and a name: [`crate::ops::find`].
type Find = fn(&str, &str) -> Option<&'static OpDef>;
