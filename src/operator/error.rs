//! Why an operator refuses its attributes or inputs.

use super::AttrError;
use crate::dtype::DType;
use crate::frame::FrameError;
use crate::kernel::NoKernel;
use crate::shape::ShapeError;
use crate::tensor::TensorError;

/// Why an operator does not accept its attributes or inputs, or cannot run somewhere.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum OpError {
    /// A required input is missing.
    #[error("input {input} is missing")]
    MissingInput {
        /// Its position.
        input: usize,
    },
    /// An input or output too few or too many.
    #[error("has {found} {what}, expected {expected}")]
    Count {
        /// "inputs" or "outputs".
        what: &'static str,
        /// How many there are.
        found: usize,
        /// How many there should be, in words.
        expected: String,
    },
    /// An input's element type is not allowed.
    #[error("input {input} has type {got}, expected {expected}")]
    DType {
        /// Its position.
        input: usize,
        /// Its type.
        got: DType,
        /// What is allowed, in words.
        expected: String,
    },
    /// An input's shape is not allowed.
    #[error("input {input} has shape {got}, expected {expected}")]
    InputShape {
        /// Its position.
        input: usize,
        /// Its shape.
        got: String,
        /// What is allowed, in words.
        expected: String,
    },
    /// Sizes do not make a shape or do not fit one another.
    #[error(transparent)]
    Shape(#[from] ShapeError),
    /// A constant's data is not what the operator reads.
    #[error(transparent)]
    Tensor(#[from] TensorError),
    /// An attribute is missing or wrong.
    #[error(transparent)]
    Attr(#[from] AttrError),
    /// A tensor does not fit the frame that it becomes.
    #[error(transparent)]
    Frame(#[from] FrameError),
    /// The value of an input is not allowed.
    #[error("input {input}: {problem}")]
    Value {
        /// Its position.
        input: usize,
        /// What is wrong.
        problem: String,
    },
    /// The value of an input decides shapes but is not known before the run.
    #[error("the value of input {input} must be known before the run")]
    NeedsValue {
        /// Its position.
        input: usize,
    },
    /// A form of the operator that is not supported.
    #[error("unsupported: {what}")]
    Unsupported {
        /// Which form.
        what: String,
    },
}

impl OpError {
    /// An [`OpError::Unsupported`] that says `what`.
    pub fn unsupported(what: impl Into<String>) -> Self {
        OpError::Unsupported { what: what.into() }
    }
}

impl From<NoKernel> for OpError {
    fn from(none: NoKernel) -> Self {
        OpError::unsupported(none.to_string())
    }
}
