//! Errors of a server, and the status that a failed request gets.

use std::net::SocketAddr;
use std::path::PathBuf;

use onepool::device;
use onepool::session::{Error, SessionError};
use onepool_core::error::chain;
use tonic::Status;

/// Why a server does not start, or ended.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ServeError {
    /// There is nothing to serve.
    #[error("there is no model to serve: give a model file, or a folder with `.onnx` files")]
    NoModel,
    /// Two models have one name.
    #[error("two models are named {name:?}: rename one file")]
    TwoModels {
        /// The name.
        name: String,
    },
    /// A setting is out of range.
    #[error("{name} is {value}, expected 1 to {most}")]
    Setting {
        /// The field of [`Config`](crate::Config).
        name: &'static str,
        /// Its value.
        value: usize,
        /// The largest value.
        most: usize,
    },
    /// A file or folder cannot be read.
    #[error("{path:?} cannot be read")]
    Read {
        /// The path.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// A device cannot be opened.
    #[error(transparent)]
    Device(#[from] onepool::registry::OpenError),
    /// A model cannot be loaded.
    #[error("model {name:?} cannot be loaded")]
    Load {
        /// Its name.
        name: String,
        /// Why.
        source: Box<Error>,
    },
    /// The protocol has no word for what a model takes or gives.
    #[error("model {name:?} cannot be served: {what}")]
    Unserved {
        /// Its name.
        name: String,
        /// The input or output, and what is wrong.
        what: String,
    },
    /// An address cannot be listened on.
    #[error("cannot listen on {address}")]
    Listen {
        /// The address.
        address: SocketAddr,
        /// Why.
        source: std::io::Error,
    },
    /// Certificate or key are no such, or do not belong together.
    #[error("certificate and key cannot be used")]
    Tls(#[source] tonic::transport::Error),
    /// The server ended by itself.
    #[error("the server ended")]
    Ended(#[source] tonic::transport::Error),
    /// Signals cannot be waited for.
    #[error("signals cannot be waited for")]
    Signal(#[source] std::io::Error),
    /// A thread could not be started.
    #[error("no thread could be started")]
    Thread(#[source] std::io::Error),
}

/// An argument of a request is wrong.
pub(crate) fn invalid(message: impl Into<String>) -> Status {
    Status::invalid_argument(message)
}

/// The status of a failed run.
pub(crate) fn status(error: &Error) -> Status {
    let said = chain(error);
    if error.is_out_of_memory() {
        return Status::resource_exhausted(said);
    }
    if error.is_lost() {
        return Status::unavailable(said);
    }
    match error {
        Error::Session(SessionError::TimeLimit { .. }) => Status::deadline_exceeded(said),
        Error::Session(SessionError::Cancelled { .. }) => Status::cancelled(said),
        Error::Session(
            SessionError::Unknown { .. }
            | SessionError::Unbound { .. }
            | SessionError::DType { .. }
            | SessionError::Shape { .. }
            | SessionError::OpenShape { .. }
            | SessionError::Capacity { .. }
            | SessionError::Overlap { .. }
            | SessionError::NotUpdated { .. }
            | SessionError::Apart { .. }
            | SessionError::Strides { .. },
        )
        | Error::Plan(_)
        | Error::Shape(_)
        | Error::Tensor(_) => invalid(said),
        Error::Device(device::Error::Device(onepool::backend::DeviceError::Kernel { .. })) => invalid(said),
        _ => Status::internal(said),
    }
}
