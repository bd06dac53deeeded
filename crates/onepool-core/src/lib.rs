//! What the other crates of onepool are made of: element types, shapes, host memory and its coherency, imports, tensors.
//!
//! No device and no graph: pure types, arithmetic over ranges, and the calls of the operating system that memory needs.

pub mod dlpack;
pub mod dtype;
#[doc(hidden)]
pub mod error;
pub mod files;
pub mod limits;
#[doc(hidden)]
pub mod log;
pub mod memory;
pub mod shape;
#[doc(hidden)]
pub mod sync;
pub mod tensor;

pub use dtype::{DType, Element};
pub use memory::host::{HostRegion, SharedRegion};
pub use shape::{Dim, Shape, SymShape};
pub use tensor::{Tensor, TensorInfo};
