//! Errors of the library, and errors of sessions.

use std::fmt;
use std::time::Duration;

use crate::backend::DeviceError;
use crate::device;
use crate::dtype::DType;
use crate::frame::FrameError;
use crate::graph::{GraphError, TensorError};
use crate::loader::LoadError;
use crate::memory::host::HostError;
use crate::plan::PlanError;
use crate::registry::OpenError;
use crate::shape::ShapeError;

/// The text is no [`SubmissionLimit`](crate::session::SubmissionLimit).
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{text:?} is no limit of a submission: expected `auto`, `off` or a number of milliseconds up to 3600000"
)]
pub struct NoLimit {
    /// The text.
    pub text: String,
}

/// The progress of a run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// Operators that were finished.
    pub done: usize,
    /// Their total. Where sizes are known only in the run, and in a loop, the total of the current part.
    pub of: usize,
    /// The current iterations, outermost first: the node's name, and the iteration counted from 0.
    pub iterations: Vec<(String, u64)>,
}

impl fmt::Display for Progress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} of {} operators", self.done, self.of)?;
        self.iterations
            .iter()
            .rev()
            .try_for_each(|(node, iteration)| write!(f, " in iteration {iteration} of {node:?}"))
    }
}

/// A time in the largest unit of which it is a whole number, up to milliseconds.
fn exact(time: Duration) -> String {
    match time.as_nanos() {
        nanos if nanos % 1_000_000 == 0 => format!("{} ms", nanos / 1_000_000),
        nanos if nanos % 1_000 == 0 => format!("{} us", nanos / 1_000),
        nanos => format!("{nanos} ns"),
    }
}

/// The names that exist, in words.
fn there_are(what: &str, known: &[String]) -> String {
    let quoted: Vec<String> = known.iter().map(|name| format!("{name:?}")).collect();
    if quoted.is_empty() {
        format!("there are no {what}s")
    } else {
        format!("the {what}s are {}", quoted.join(", "))
    }
}

/// Any failure of the library, by layer.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A file is no valid model, or uses unsupported features.
    #[error(transparent)]
    Load(#[from] LoadError),
    /// A graph is invalid.
    #[error(transparent)]
    Graph(#[from] GraphError),
    /// There is no plan for a graph.
    #[error(transparent)]
    Plan(#[from] PlanError),
    /// A device call failed or was misused.
    #[error(transparent)]
    Device(#[from] device::Error),
    /// A device does not exist, or cannot be opened.
    #[error(transparent)]
    Registry(#[from] OpenError),
    /// Host memory cannot be allocated or is in use.
    #[error(transparent)]
    Host(#[from] HostError),
    /// Bytes do not make a tensor.
    #[error(transparent)]
    Tensor(#[from] TensorError),
    /// Sizes do not make a shape or do not fit a declaration.
    #[error(transparent)]
    Shape(#[from] ShapeError),
    /// The description of a frame is wrong.
    #[error(transparent)]
    Frame(#[from] FrameError),
    /// A session was misused.
    #[error(transparent)]
    Session(#[from] SessionError),
}

impl From<device::UsageError> for Error {
    fn from(e: device::UsageError) -> Self {
        Error::Device(e.into())
    }
}

impl From<crate::backend::DeviceError> for Error {
    fn from(e: crate::backend::DeviceError) -> Self {
        Error::Device(e.into())
    }
}

impl Error {
    /// Whether a device was lost: [`Session::recover`](crate::session::Session::recover) continues on a new one.
    pub fn is_lost(&self) -> bool {
        matches!(self, Error::Device(device::Error::Device(DeviceError::Lost { .. })))
    }

    /// Whether memory of the host or of a device ran out.
    pub fn is_out_of_memory(&self) -> bool {
        match self {
            Error::Device(device::Error::Device(e)) => {
                matches!(e, DeviceError::OutOfDeviceMemory { .. } | DeviceError::OutOfHostMemory { .. })
            }
            Error::Host(e) => matches!(e, HostError::OutOfMemory { .. }),
            _ => false,
        }
    }

    /// Memory is in use: by a device, or through a guard.
    pub(super) fn is_busy(&self) -> bool {
        match self {
            Error::Host(e) => matches!(e, HostError::Busy(_)),
            Error::Device(device::Error::Usage(e)) => matches!(e.problem, device::Problem::Busy { .. }),
            _ => false,
        }
    }
}

/// Errors of calls of a session or a binding.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum SessionError {
    /// No input or output has this name.
    #[error("there is no {what} {name:?}; {}", there_are(what, known))]
    Unknown {
        /// "input" or "output".
        what: &'static str,
        /// The name given.
        name: String,
        /// The names that exist.
        known: Vec<String>,
    },
    /// Inputs have no value and no memory.
    #[error("inputs {names:?} have no value: set or bind them before the run")]
    Unbound {
        /// Their names.
        names: Vec<String>,
    },
    /// A tensor has another element type than the model declares.
    #[error("{name:?} holds {expected}, got {got}")]
    DType {
        /// The input or output.
        name: String,
        /// The declared type.
        expected: DType,
        /// The given type.
        got: DType,
    },
    /// A shape does not fit the model's declaration.
    #[error("{name:?}: {source}")]
    Shape {
        /// The input or output.
        name: String,
        /// The mismatch.
        source: ShapeError,
    },
    /// The sizes of an input must be given, because the model leaves them open.
    #[error("the shape of {name:?} is {declared}: give the shape with the memory")]
    OpenShape {
        /// The input.
        name: String,
        /// The model's declaration.
        declared: String,
    },
    /// Memory is too small for its tensor.
    #[error("{name:?} needs {needed} bytes, its memory has {got}")]
    Capacity {
        /// The input or output.
        name: String,
        /// Bytes of the tensor.
        needed: u64,
        /// Bytes given.
        got: u64,
    },
    /// The memory of an output is read by an input after it is written, or written by another output.
    #[error(
        "{first:?} and {second:?} share memory, and the graph writes one before it is done with the other; bind them apart"
    )]
    Overlap {
        /// One input or output.
        first: String,
        /// The other.
        second: String,
    },
    /// An output cannot be written over an input.
    #[error(
        "{output:?} cannot be written over {input:?} in place: that takes an operator that alone reads the input and \
         changes elements of it (GroupQueryAttention with a cache of full length, TensorScatter), and equal shapes; bind \
         them apart"
    )]
    NotUpdated {
        /// The input.
        input: String,
        /// The output.
        output: String,
    },
    /// A binding was made with one memory for an input and an output, and is given two.
    #[error(
        "{input:?} and {output:?} were bound as one memory: give both the same one, or make another binding"
    )]
    Apart {
        /// The input.
        input: String,
        /// The output.
        output: String,
    },
    /// A buffer belongs to another context than the device that uses it.
    #[error("the memory of {name:?} is a buffer of another context than {device}; make it on that one")]
    OtherContext {
        /// The input or output.
        name: String,
        /// The device's name.
        device: String,
    },
    /// A tensor is not contiguous in its memory.
    #[error("{name:?} must be compact, with strides {expected:?}; got {got:?}")]
    Strides {
        /// The input or output.
        name: String,
        /// Strides in elements of the compact tensor.
        expected: Vec<i64>,
        /// Strides given.
        got: Vec<i64>,
    },
    /// The description of a frame is wrong, or does not fit the tensor.
    #[error("the frame {name:?}: {source}")]
    Frame {
        /// The input or output.
        name: String,
        /// The problem.
        source: FrameError,
    },
    /// Modules on other devices cannot share parameters.
    #[error(
        "the modules are not on the same contexts, so they have no memory in common; create them on the same ones"
    )]
    OtherDevices,
    /// Strict mode forbids a copy that a tensor needs.
    #[error("strict mode: {verdict}")]
    Strict {
        /// The verdict, in words.
        verdict: String,
    },
    /// A run was cancelled. Its outputs are undefined; the session can run again.
    #[error("the run was cancelled after {at}")]
    Cancelled {
        /// The progress of the run.
        at: Progress,
    },
    /// The default options of a session's runs have semaphores.
    #[error("semaphores belong to one run: give them to `run_with` or `submit_with`, not to the session")]
    SemaphoresOfSession,
    /// The default options of a session's runs have callbacks.
    #[error("callbacks belong to one run: give them to `run_with` or `submit_with`, not to the session")]
    ReadsOfSession,
    /// Semaphores of contexts that are no device of the session, or of several.
    #[error("the semaphores of a run belong to one device of the session, opened by its application")]
    ForeignSemaphore,
    /// A run exceeded its time limit ([`RunOptions::time_limit`](crate::session::RunOptions::time_limit)). Its
    /// outputs are undefined; the session can run again.
    #[error("the time limit of {} was up after {at}", exact(*limit))]
    TimeLimit {
        /// The limit.
        limit: Duration,
        /// The progress of the run.
        at: Progress,
    },
    /// The caller opened a device, so that the session cannot open it again.
    #[error(
        "entry {entry} of the device table, {device}, was opened by the caller; give a new context to `recover_on`"
    )]
    NotReopened {
        /// The entry.
        entry: usize,
        /// The device's name.
        device: String,
    },
    /// A result was requested before the first run.
    #[error("there is no result yet: run first")]
    NotRun,
    /// A placement names a node or operator that the model does not have.
    #[error(
        "{what} {name:?} is placed on entry {device} of the device table, but the model has none of that name; it has \
         {known:?}"
    )]
    UnknownPlace {
        /// "node" or "operator".
        what: &'static str,
        /// The name.
        name: String,
        /// The entry.
        device: u32,
        /// Existing names: the most similar ones of nodes, all of operators.
        known: Vec<String>,
    },
    /// A placement names a device that is not in the table.
    #[error(
        "{what} {name:?} is placed on entry {device} of the device table, which has {devices}: place it on an entry below \
         that, or add the device"
    )]
    NoEntry {
        /// "node" or "operator".
        what: &'static str,
        /// The name.
        name: String,
        /// The entry.
        device: u32,
        /// Number of devices.
        devices: usize,
    },
    /// The environment variable [`LIMIT_VARIABLE`](crate::session::LIMIT_VARIABLE) is no limit.
    #[error("ONEPOOL_SUBMISSION_LIMIT: {0}")]
    Limit(#[from] NoLimit),
    /// A session was built without a model.
    #[error("a session needs a model: give a path or a graph")]
    NoModel,
    /// A file of parameters was given for a graph.
    #[error(
        "parameters of a file are those of a model that is a file too: give its path in place of the graph"
    )]
    ParamsOfGraph,
    /// A run cannot be recorded into a command buffer of the application's.
    #[error(
        "a run of this binding cannot be recorded into a command buffer, as it needs the host for {part}"
    )]
    NeedsHost {
        /// What needs the host, and what to do.
        part: String,
    },
    /// An image whose layout changes in a run, or memory that another queue family owns, is used by several
    /// parts of the run.
    #[error(
        "{name:?} is handed over at the beginning and the end of a run, and this plan uses it in {segments} segments: let \
         the run leave an image in the layout that it begins with, on the queue family of the context, or bind a buffer"
    )]
    HandedOver {
        /// The input or output.
        name: String,
        /// Segments that use it.
        segments: usize,
    },
    /// A device of a table must import host memory, for tensors that two devices share.
    #[error(
        "{device} cannot import host memory, so it cannot share tensors with the other devices of the session"
    )]
    NoSharing {
        /// The device's name.
        device: String,
    },
}
