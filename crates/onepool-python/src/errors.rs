//! Errors of the library as exceptions of `onepool._errors`.

use std::fmt::Display;

use onepool::session::{Error, ErrorClass};
use onepool_core::error::chain;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;

/// A class of `onepool._errors`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Class {
    Error,
    Argument,
    ArrayType,
    UnknownName,
    DType,
    Shape,
    Unbound,
    Overlap,
    Strict,
    Busy,
    Cancelled,
    TimeLimit,
    Closed,
    Model,
    ModelNotFound,
    Unsupported,
    NoDevice,
    OutOfMemory,
    DeviceLost,
    Device,
}

impl Class {
    fn name(self) -> &'static str {
        match self {
            Class::Error => "Error",
            Class::Argument => "ArgumentError",
            Class::ArrayType => "ArrayTypeError",
            Class::UnknownName => "UnknownNameError",
            Class::DType => "DTypeError",
            Class::Shape => "ShapeError",
            Class::Unbound => "UnboundError",
            Class::Overlap => "OverlapError",
            Class::Strict => "StrictError",
            Class::Busy => "BusyError",
            Class::Cancelled => "CancelledError",
            Class::TimeLimit => "TimeLimitError",
            Class::Closed => "ClosedError",
            Class::Model => "ModelError",
            Class::ModelNotFound => "ModelNotFoundError",
            Class::Unsupported => "UnsupportedError",
            Class::NoDevice => "NoDeviceError",
            Class::OutOfMemory => "OutOfMemoryError",
            Class::DeviceLost => "DeviceLostError",
            Class::Device => "DeviceError",
        }
    }

    /// The exception, with this message.
    pub(crate) fn says(self, py: Python<'_>, message: impl Display) -> PyErr {
        static ERRORS: PyOnceLock<Py<PyModule>> = PyOnceLock::new();
        let module = ERRORS.get_or_try_init(py, || py.import("onepool._errors").map(Bound::unbind));
        let class = module.and_then(|module| module.bind(py).getattr(self.name()));
        class.and_then(|class| class.call1((message.to_string(),))).map_or_else(|e| e, PyErr::from_value)
    }
}

/// The exception for an error of the library.
pub(crate) fn raised(py: Python<'_>, error: impl Into<Error>) -> PyErr {
    let error = error.into();
    Class::from(error.class()).says(py, chain(&error))
}

/// The same, said of an argument.
pub(crate) fn raised_of(py: Python<'_>, argument: &str, error: impl Into<Error>) -> PyErr {
    let error = error.into();
    Class::from(error.class()).says(py, format!("{argument}: {}", chain(&error)))
}

impl From<ErrorClass> for Class {
    fn from(class: ErrorClass) -> Self {
        match class {
            ErrorClass::InvalidArgument => Class::Argument,
            ErrorClass::UnknownName => Class::UnknownName,
            ErrorClass::WrongType => Class::DType,
            ErrorClass::WrongShape | ErrorClass::TooSmall => Class::Shape,
            ErrorClass::Unbound | ErrorClass::NotRun => Class::Unbound,
            ErrorClass::Overlap => Class::Overlap,
            ErrorClass::Strict => Class::Strict,
            ErrorClass::Busy => Class::Busy,
            ErrorClass::Cancelled => Class::Cancelled,
            ErrorClass::TimeLimit => Class::TimeLimit,
            ErrorClass::ModelNotFound => Class::ModelNotFound,
            ErrorClass::Unsupported => Class::Unsupported,
            ErrorClass::Model => Class::Model,
            ErrorClass::NoDevice => Class::NoDevice,
            ErrorClass::OutOfMemory => Class::OutOfMemory,
            ErrorClass::DeviceLost => Class::DeviceLost,
            ErrorClass::Device => Class::Device,
            _ => Class::Error,
        }
    }
}
