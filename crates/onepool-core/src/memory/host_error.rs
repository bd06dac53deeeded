//! Why owned memory could not be had or filled.

use std::io;
use std::path::PathBuf;

use super::lease::Busy;
use super::os::OsError;
use super::range::ByteRange;

/// Owned memory could not be had or filled.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum HostError {
    /// No address space is that large.
    #[error("{bytes} bytes are more than an address space holds")]
    TooLarge {
        /// Bytes asked for.
        bytes: u64,
    },
    /// The system gave no pages.
    #[error("no host memory for {bytes} bytes")]
    OutOfMemory {
        /// Bytes asked for.
        bytes: u64,
        /// What the system said.
        source: OsError,
    },
    /// Reading failed.
    #[error("reading {} failed", path.as_ref().map_or("the source".into(), |path| path.display().to_string()))]
    Io {
        /// The file, when there is one.
        path: Option<PathBuf>,
        /// What the system said.
        source: io::Error,
    },
    /// The source ended early.
    #[error("the source ended after {got} of {expected} bytes")]
    Truncated {
        /// Bytes wanted.
        expected: u64,
        /// Bytes there were.
        got: u64,
    },
    /// A directory, pipe or device has no size to read.
    #[error("{} is not a regular file", path.display())]
    NotAFile {
        /// The path.
        path: PathBuf,
    },
    /// The range leaves the file.
    #[error("{bytes} bytes at offset {offset} lie outside a file of {file_bytes} bytes")]
    OutsideFile {
        /// Start of the range.
        offset: u64,
        /// Length of the range.
        bytes: u64,
        /// Size of the file.
        file_bytes: u64,
    },
    /// A region cannot be cut there.
    #[error(
        "a region of {bytes} bytes cannot be cut at byte {at}: ends of parts are whole pages inside, ascending, and no file's"
    )]
    Cut {
        /// The cut.
        at: usize,
        /// Size of the region.
        bytes: usize,
    },
    /// The bytes are kept in memory of a device that no longer gives them.
    #[error("bytes kept in device memory cannot be read back: {cause}; load the model again")]
    Unreadable {
        /// What the device said.
        cause: String,
    },
    /// The range leaves the region.
    #[error("bytes {range} lie outside a region of {bytes} bytes")]
    OutOfBounds {
        /// The range.
        range: ByteRange,
        /// Size of the region.
        bytes: u64,
    },
    /// The bytes are no slice of such elements.
    #[error("{bytes} bytes are no slice of elements of {element} bytes: {cause}")]
    Cast {
        /// Length of the byte slice.
        bytes: usize,
        /// Size of one element.
        element: usize,
        /// Size or alignment.
        cause: &'static str,
    },
    /// The bytes are held in a way that excludes the wanted use.
    #[error(transparent)]
    Busy(#[from] Busy),
}
