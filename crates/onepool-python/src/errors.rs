//! Errors of the library as exceptions of `onepool._errors`.

use std::fmt::Display;
use std::io;

use onepool::backend::DeviceError;
use onepool::device::{Error as DeviceLayerError, Problem};
use onepool::loader::LoadErrorKind;
use onepool::memory::host::HostError;
use onepool::memory::import::ImportError;
use onepool::registry::OpenError;
use onepool::session::{Error, SessionError};
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
    class_of(&error).says(py, chain(&error))
}

/// The same, said of an argument.
pub(crate) fn raised_of(py: Python<'_>, argument: &str, error: impl Into<Error>) -> PyErr {
    let error = error.into();
    class_of(&error).says(py, format!("{argument}: {}", chain(&error)))
}

/// Whether the system says that a file is not there.
pub(crate) fn is_missing(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::NotFound
}

fn class_of(error: &Error) -> Class {
    match error {
        _ if error.is_lost() => Class::DeviceLost,
        _ if error.is_out_of_memory() => Class::OutOfMemory,
        Error::Load(error) if error.is_unsupported() => Class::Unsupported,
        Error::Load(error) if matches!(error.kind(), LoadErrorKind::Io { source, .. } if is_missing(source)) => {
            Class::ModelNotFound
        }
        Error::Load(_) | Error::Graph(_) | Error::Plan(_) => Class::Model,
        Error::Registry(OpenError::Driver { source: DeviceError::TooMany { .. }, .. }) => Class::Argument,
        Error::Registry(_) => Class::NoDevice,
        Error::Shape(_) => Class::Shape,
        Error::Tensor(_) => Class::Argument,
        Error::Host(error) => match error {
            HostError::Busy(_) => Class::Busy,
            HostError::TooLarge { .. } => Class::OutOfMemory,
            _ => Class::Argument,
        },
        Error::Device(error) => match error {
            DeviceLayerError::Usage(usage) if matches!(usage.problem, Problem::Busy { .. }) => Class::Busy,
            DeviceLayerError::Usage(_) => Class::Argument,
            DeviceLayerError::Import(ImportError::Strict { .. }) => Class::Strict,
            DeviceLayerError::Device(DeviceError::Timeout { .. }) => Class::TimeLimit,
            _ => Class::Device,
        },
        Error::Session(error) => match error {
            SessionError::Unknown { .. } => Class::UnknownName,
            SessionError::Unbound { .. } => Class::Unbound,
            SessionError::DType { .. } => Class::DType,
            SessionError::Shape { .. }
            | SessionError::OpenShape { .. }
            | SessionError::Strides { .. }
            | SessionError::Capacity { .. } => Class::Shape,
            SessionError::Overlap { .. } => Class::Overlap,
            SessionError::Strict { .. } => Class::Strict,
            SessionError::Cancelled { .. } => Class::Cancelled,
            SessionError::TimeLimit { .. } => Class::TimeLimit,
            SessionError::NotRun => Class::Unbound,
            SessionError::NoSharing { .. } => Class::Device,
            _ => Class::Argument,
        },
        _ => Class::Error,
    }
}
