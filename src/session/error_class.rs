//! Errors by what their caller can do about them.

use std::io;

use super::error::{Error, SessionError};
use crate::backend::DeviceError;
use crate::device;
use crate::loader::LoadErrorKind;
use crate::memory::host::HostError;
use crate::memory::import::ImportError;
use crate::registry::OpenError;

/// The class of an error: a C status or a Python exception is made of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorClass {
    /// An argument is out of range or not what it must be.
    InvalidArgument,
    /// No input or output has that name.
    UnknownName,
    /// The element type is another than the model's.
    WrongType,
    /// Sizes or strides do not fit the model.
    WrongShape,
    /// Memory has fewer bytes than its tensor.
    TooSmall,
    /// An input has neither memory nor a value.
    Unbound,
    /// There is no result yet.
    NotRun,
    /// Two tensors share bytes that the graph cannot have shared.
    Overlap,
    /// Strict mode forbids a copy.
    Strict,
    /// Something else uses the object or the memory now.
    Busy,
    /// The run was cancelled.
    Cancelled,
    /// The run took longer than it was given.
    TimeLimit,
    /// A file of the model does not exist.
    ModelNotFound,
    /// The model is sound and holds what is not supported.
    Unsupported,
    /// The model is no sound one, or there is no plan for it.
    Model,
    /// There is no such device, or it cannot be opened.
    NoDevice,
    /// Memory of the host or of a device ran out.
    OutOfMemory,
    /// The device stopped.
    DeviceLost,
    /// A device call failed.
    Device,
    /// None of these.
    Other,
}

impl ErrorClass {
    /// The class of a model's file that cannot be read.
    pub(crate) fn of_read(error: &io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::NotFound => ErrorClass::ModelNotFound,
            _ => ErrorClass::Model,
        }
    }
}

impl Error {
    /// Its class.
    pub fn class(&self) -> ErrorClass {
        match self {
            _ if self.is_lost() => ErrorClass::DeviceLost,
            _ if self.is_out_of_memory() => ErrorClass::OutOfMemory,
            _ if self.is_busy() => ErrorClass::Busy,
            Error::Load(error) if error.is_unsupported() => ErrorClass::Unsupported,
            Error::Load(error) => match error.kind() {
                LoadErrorKind::Io { source, .. } => ErrorClass::of_read(source),
                _ => ErrorClass::Model,
            },
            Error::Graph(_) | Error::Plan(_) => ErrorClass::Model,
            Error::Registry(OpenError::Driver { source: DeviceError::TooMany { .. }, .. }) => {
                ErrorClass::InvalidArgument
            }
            Error::Registry(_) => ErrorClass::NoDevice,
            Error::Shape(_) => ErrorClass::WrongShape,
            Error::Tensor(_) => ErrorClass::InvalidArgument,
            Error::Host(HostError::TooLarge { .. }) => ErrorClass::OutOfMemory,
            Error::Host(_) => ErrorClass::InvalidArgument,
            Error::Device(error) => match error {
                device::Error::Usage(_) => ErrorClass::InvalidArgument,
                device::Error::Import(ImportError::Strict { .. }) => ErrorClass::Strict,
                device::Error::Device(DeviceError::Timeout { .. }) => ErrorClass::TimeLimit,
                _ => ErrorClass::Device,
            },
            Error::Session(error) => error.class(),
            Error::Frame(_) => ErrorClass::Other,
        }
    }
}

impl SessionError {
    /// Its class.
    pub fn class(&self) -> ErrorClass {
        match self {
            SessionError::Unknown { .. } => ErrorClass::UnknownName,
            SessionError::Unbound { .. } => ErrorClass::Unbound,
            SessionError::DType { .. } => ErrorClass::WrongType,
            SessionError::Shape { .. } | SessionError::OpenShape { .. } | SessionError::Strides { .. } => {
                ErrorClass::WrongShape
            }
            SessionError::Capacity { .. } => ErrorClass::TooSmall,
            SessionError::Overlap { .. } => ErrorClass::Overlap,
            SessionError::Strict { .. } => ErrorClass::Strict,
            SessionError::Cancelled { .. } => ErrorClass::Cancelled,
            SessionError::TimeLimit { .. } => ErrorClass::TimeLimit,
            SessionError::NotRun => ErrorClass::NotRun,
            SessionError::NoSharing { .. } => ErrorClass::Device,
            _ => ErrorClass::InvalidArgument,
        }
    }
}
