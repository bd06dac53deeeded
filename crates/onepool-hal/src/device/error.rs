//! What can go wrong above a backend.

use crate::backend::DeviceError;
use onepool_core::memory::host::HostError;
use onepool_core::memory::import::{ImportError, Refusal};
use onepool_core::memory::range::ByteRange;

/// A call that no device could obey, found before any driver saw it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{context}: {problem}{}", vuid.map(|vuid| format!(" ({vuid})")).unwrap_or_default())]
pub struct UsageError {
    /// The call or the part of it.
    pub context: &'static str,
    /// What is wrong, with the numbers.
    pub problem: Problem,
    /// The rule of the Vulkan specification that it would break.
    pub vuid: Option<&'static str>,
}

impl UsageError {
    /// What is wrong with `context`, breaking no rule of the Vulkan specification.
    pub fn new(context: &'static str, problem: Problem) -> UsageError {
        UsageError { context, problem, vuid: None }
    }

    pub(super) fn with_vuid(self, vuid: &'static str) -> UsageError {
        UsageError { vuid: Some(vuid), ..self }
    }
}

/// What is wrong with a call.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Problem {
    /// A size of zero where there must be something.
    #[error("the range is empty")]
    Empty,
    /// A range that leaves its buffer.
    #[error("bytes {range} lie outside the {bytes} bytes of the buffer")]
    OutOfBounds {
        /// The range.
        range: ByteRange,
        /// The buffer's size.
        bytes: u64,
    },
    /// An object that does not exist here: of another context or queue, or destroyed.
    #[error("the {object} belongs to another context or queue, or no longer exists")]
    Foreign {
        /// What kind of object.
        object: &'static str,
    },
    /// Imported memory whose borrow is over.
    #[error("the imported memory was given back when its scope ended")]
    Revoked,
    /// An offset or a size that is no multiple of what it must be one of.
    #[error("{what} {found} is no multiple of {alignment}")]
    Misaligned {
        /// Which number.
        what: &'static str,
        /// Its value.
        found: u64,
        /// What it must be a multiple of.
        alignment: u64,
    },
    /// More than the device or the kernel allows.
    #[error("{what} {found} is above the limit of {limit}")]
    Limit {
        /// Which number.
        what: &'static str,
        /// Its value.
        found: u64,
        /// The most allowed.
        limit: u64,
    },
    /// A number that must be another.
    #[error("{what} is {found}, expected {expected}")]
    Mismatch {
        /// Which number.
        what: &'static str,
        /// Its value.
        found: u64,
        /// The value it must have.
        expected: u64,
    },
    /// A write to memory that was lent for reading, or a read of memory lent for writing.
    #[error("argument {argument} is {wanted} but its memory was given for {given}")]
    Access {
        /// Position of the argument; 0 for a source, 1 for a destination.
        argument: usize,
        /// What the command does.
        wanted: &'static str,
        /// What the memory allows.
        given: &'static str,
    },
    /// A missing argument where the kernel needs one.
    #[error("argument {argument} is absent, and only native kernels take absent arguments")]
    Absent {
        /// Its position.
        argument: usize,
    },
    /// A buffer where the kernel declares an image, or an image where it declares a buffer or other texels.
    #[error("argument {argument} is no {wanted}, which the kernel declares there")]
    Kind {
        /// Its position.
        argument: usize,
        /// "buffer", or "image of such texels".
        wanted: &'static str,
    },
    /// A part of a grid, of a kernel or on a device that runs whole ones alone.
    #[error("the kernel's grids cannot be run in parts here")]
    Whole,
    /// A range that cannot hold an image.
    #[error("no image: {why}")]
    NoImage {
        /// Why.
        why: String,
    },
    /// Two ranges of one command that share bytes, at least one of them written.
    #[error(
        "arguments {first} and {second} share bytes and one is written; use one argument that reads and writes"
    )]
    Overlap {
        /// One argument.
        first: usize,
        /// The other.
        second: usize,
    },
    /// Bytes that the host or another submission holds.
    #[error("{what}")]
    Busy {
        /// Who holds which bytes.
        what: String,
    },
    /// Memory that is taken over for each recording, where nothing takes it over.
    #[error("another queue family owns the buffer between runs; take it over and read it there")]
    HandedOver,
    /// Memory without an address in the process.
    #[error("the buffer is not host memory; copy it into a buffer placed as `Readback` or `Shared`")]
    NotMapped,
    /// Bytes that are no whole, aligned elements.
    #[error("{bytes} bytes at this address are no {element_bytes}-byte elements: {cause}")]
    Elements {
        /// How many bytes.
        bytes: u64,
        /// The size of one element.
        element_bytes: u64,
        /// What does not fit.
        cause: String,
    },
}

/// Any failure of the device interface.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The caller's mistake.
    #[error(transparent)]
    Usage(#[from] UsageError),
    /// The device's failure.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// Memory that cannot be imported.
    #[error(transparent)]
    Import(#[from] ImportError),
}

impl From<Refusal> for Error {
    fn from(refusal: Refusal) -> Error {
        Error::Import(ImportError::Refused(refusal))
    }
}

/// A hold on a region that could not be had.
pub(super) fn busy(context: &'static str, error: &HostError) -> UsageError {
    UsageError::new(context, Problem::Busy { what: error.to_string() })
}
