//! Functions of single elements: the table that defines them, and what is made of a row.
//!
//! ```text
//! functions.rs   one formula for each function, over `Value`
//!   lane.rs      .. of numbers: loops.rs compiles it for each element type
//!   value.rs     .. of expressions: a pointwise::PointwiseDesc, alone or as part of a chain
//!     eval.rs      runs it on the CPU, a chunk at a time (lanes.rs)
//!     device.rs    writes it in operations of devices
//!       spirv        builds a kernel of it
//!       glsl.rs      prints it for kernels of other operators, when the crate is built
//! ```

#![forbid(unsafe_code)]

mod device;
pub mod eval;
mod functions;
pub mod glsl;
mod lane;
mod lanes;
mod loops;
pub mod pointwise;
pub mod simd;
mod value;

pub use device::device_form;
pub use functions::{Function, OperatorName, Parameter, Row, Types, Use};
pub use glsl::code;
pub use loops::{IntegerLoops, Loop, Loops};
pub use pointwise::{
    BinaryOp, CompareOp, Expr, ExprId, Indexing, PointwiseDesc, PointwiseError, PointwiseKey, Term, UnaryOp,
    broadcast_terms,
};
