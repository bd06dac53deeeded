//! Functions of one and two elements: the table that defines them, and what is made of a row.
//!
//! ```text
//! functions.rs   one formula (formula.rs) for each function, over value.rs; row.rs has the columns
//!   lane.rs      .. of numbers: loops.rs compiles it for each element type
//!   text.rs      .. as GLSL of any element type, for the kernel of nodes of two inputs
//!   value.rs     .. of expressions: a pointwise::PointwiseDesc, alone or as part of a chain
//!     eval.rs      runs it on the CPU, a chunk at a time (lanes.rs)
//!     device.rs    writes it in operations of devices
//!       spirv        builds a kernel of it
//!       glsl.rs      prints it for kernels of other operators, when the crate is built
//! ```

#![forbid(unsafe_code)]

mod device;
pub mod eval;
mod formula;
mod functions;
pub mod glsl;
mod lane;
mod lanes;
mod loops;
pub mod pointwise;
mod row;
pub mod simd;
pub mod text;
mod value;

pub use device::device_form;
pub use functions::{
    ALIASES, Alias, BinaryFunction, BinaryRow, ElementTest, Function, HalfRule, OperatorName, Parameter, Row,
    TestRow, Types,
};
pub use functions::{BitFormula, PairFormula, PairTest, VisitPair, pairs};
pub use glsl::code;
pub use lane::Lane;
pub use loops::{IntegerLoops, Loop, Loops, TestLoops};
pub use pointwise::{
    BinaryOp, CompareOp, Expr, ExprId, Indexing, PointwiseDesc, PointwiseError, PointwiseKey, Term, UnaryOp,
    broadcast_terms,
};
pub use value::{Arg, Arithmetic, Bits, Plain, Value};
