//! `onepool`: a compute and inference runtime that runs a graph directly on the application's own memory.

pub mod backend;
#[cfg(feature = "cli")]
pub mod cli;
pub mod device;
mod dot;
pub mod dtype;
pub mod expr;
mod files;
pub mod graph;
pub mod kernel;
pub mod limits;
pub mod loader;
pub mod memory;
pub mod ops;
pub mod plan;
pub mod recording;
pub mod registry;
pub mod session;
pub mod shape;
mod simd;
pub mod spirv;
pub mod tensor;

pub use dtype::{DType, Element};
pub use graph::{Graph, GraphBuilder};
pub use memory::host::{HostRegion, SharedRegion};
pub use session::{Binding, Error, Memory, Session, tvm};
pub use shape::{Dim, Shape, SymShape};
pub use tensor::{Tensor, TensorInfo};

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct ReadmeDoctests;
