//! What a command can end with, and the exit code it means.

use std::io;
use std::path::{Path, PathBuf};

use onepool::backend::DeviceError;
use onepool::device;
use onepool::generate::GenerateError;
use onepool::graph::{GraphError, TensorError};
use onepool::loader::{LoadError, LoadErrorKind};
use onepool::memory::host::HostError;
use onepool::ops::OpError;
use onepool::plan::PlanError;
use onepool::registry::OpenError;
use onepool::session::{Error, SessionError};
use onepool::shape::ShapeError;
pub(super) use onepool_core::error::chain;
use onepool_core::files::cache::CacheError;

/// Exit code: a result is wrong or something failed.
pub(super) const FAILED: u8 = 1;
/// Exit code: the arguments make no sense.
pub(super) const USAGE: u8 = 2;
/// Exit code: what was asked for is sound and not supported.
pub(super) const UNSUPPORTED: u8 = 3;

/// Exit code: someone pressed Ctrl-C; shells have 128 and the signal's number.
pub(super) const INTERRUPTED: u8 = 130;

/// Why a command ended early.
#[derive(Debug, thiserror::Error)]
pub(super) enum CliError {
    /// The arguments contradict each other or the model.
    #[error("{0}")]
    Usage(String),
    /// The library refused or failed.
    #[error(transparent)]
    Library(#[from] Error),
    /// A text could not be generated.
    #[error(transparent)]
    Generate(GenerateError),
    /// A file could not be read or written.
    #[error("cannot {action} {}", path.display())]
    File {
        /// "read", "write", "create".
        action: &'static str,
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// A file does not hold what it should.
    #[error("{}: {problem}", path.display())]
    Content {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        problem: String,
    },
    /// A sound request that cannot be met.
    #[error("unsupported: {0}")]
    Unsupported(String),
    /// Standard output could not be written.
    #[error("cannot write to standard output")]
    Stdout(#[source] io::Error),
    /// The folder for caches may not be used.
    #[error(transparent)]
    Cache(#[from] CacheError),
    /// A result is not what it should be.
    #[error("{0}")]
    Failed(String),
    /// Someone pressed Ctrl-C.
    #[error("interrupted")]
    Interrupted,
}

impl CliError {
    pub(super) fn usage(problem: impl Into<String>) -> Self {
        CliError::Usage(problem.into())
    }

    pub(super) fn file(action: &'static str, path: impl AsRef<Path>, source: io::Error) -> Self {
        CliError::File { action, path: path.as_ref().to_owned(), source }
    }

    pub(super) fn content(path: impl AsRef<Path>, problem: impl Into<String>) -> Self {
        CliError::Content { path: path.as_ref().to_owned(), problem: problem.into() }
    }

    /// Whether the reader of standard output went away, which is no failure.
    pub(super) fn is_broken_pipe(&self) -> bool {
        matches!(self, CliError::Stdout(e) if e.kind() == io::ErrorKind::BrokenPipe)
    }

    /// The process's exit code; `None` where the kind says nothing beyond failure.
    pub(super) fn exit_code(&self) -> Option<u8> {
        match self {
            CliError::Usage(_) | CliError::Cache(_) => Some(USAGE),
            CliError::Unsupported(_) => Some(UNSUPPORTED),
            CliError::Library(e) if is_unsupported(e) => Some(UNSUPPORTED),
            CliError::Library(Error::Session(SessionError::Cancelled { .. })) | CliError::Interrupted => {
                Some(INTERRUPTED)
            }
            CliError::Generate(GenerateError::Unsupported(_)) => Some(UNSUPPORTED),
            CliError::Generate(e) => asked(e).then_some(USAGE),
            CliError::Library(Error::Session(e)) => misuse(e).then_some(USAGE),
            // Sizes that an argument names.
            CliError::Library(Error::Shape(_)) => Some(USAGE),
            CliError::Library(Error::Registry(
                OpenError::UnknownApi { .. } | OpenError::NoSuchDevice { .. },
            )) => Some(USAGE),
            _ => None,
        }
    }
}

impl From<GenerateError> for CliError {
    fn from(e: GenerateError) -> Self {
        match e {
            GenerateError::Session(e) => CliError::Library(e),
            e => CliError::Generate(e),
        }
    }
}

/// Errors of a generation that come from the arguments.
fn asked(e: &GenerateError) -> bool {
    matches!(
        e,
        GenerateError::NoTemplate
            | GenerateError::EmptyPrompt
            | GenerateError::PromptTooLong { .. }
            | GenerateError::SourceTooLong { .. }
            | GenerateError::Source { .. }
            | GenerateError::Features { .. }
            | GenerateError::Context { .. }
            | GenerateError::Setting { .. }
            | GenerateError::Grammar(_)
            | GenerateError::Draft
    )
}

/// Errors of the session that come from what was asked of it.
fn misuse(e: &SessionError) -> bool {
    matches!(
        e,
        SessionError::Unknown { .. }
            | SessionError::Unbound { .. }
            | SessionError::DType { .. }
            | SessionError::Shape { .. }
            | SessionError::OpenShape { .. }
            | SessionError::UnknownPlace { .. }
            | SessionError::NoEntry { .. }
            | SessionError::Limit(_)
    )
}

/// Whether an error says that something sound is not supported, rather than that it failed.
pub(super) fn is_unsupported(e: &Error) -> bool {
    // A type that an operator does not take is as good as an operator that is not there.
    let op = |e: &OpError| matches!(e, OpError::Unsupported { .. } | OpError::DType { .. });
    match e {
        Error::Load(e) => match e.kind() {
            LoadErrorKind::Op(e) => op(e),
            LoadErrorKind::Graph(g) => matches!(&**g, GraphError::Node { source, .. } if op(source)),
            _ => e.is_unsupported(),
        },
        Error::Graph(GraphError::Node { source, .. })
        | Error::Plan(PlanError::Graph(GraphError::Node { source, .. })) => op(source),
        Error::Plan(PlanError::NoKernel { .. } | PlanError::NoHalf { .. }) => true,
        Error::Device(device::Error::Device(DeviceError::Unsupported { .. })) => true,
        _ => false,
    }
}

macro_rules! from_library {
    ($($kind:ty),*) => {$(
        impl From<$kind> for CliError {
            fn from(e: $kind) -> Self {
                CliError::Library(e.into())
            }
        }
    )*};
}

from_library!(
    LoadError,
    GraphError,
    PlanError,
    device::Error,
    OpenError,
    HostError,
    TensorError,
    ShapeError,
    SessionError
);
