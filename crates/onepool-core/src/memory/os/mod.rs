//! What an operating system knows about memory: pages, mappings, and the process's own map. And how many cores it has, and
//! which of them a thread runs on.
//!
//! One file per system with the same few items; nothing outside this file names a system. A system of the Unix
//! family with no file of its own (and Miri) gets `portable`: aligned heap memory, and no process map, so that
//! nothing can be imported there by a borrowed pointer. Owned memory needs no map.

mod dma_bufs;
#[cfg(all(target_os = "linux", not(miri)))]
mod linux;
#[cfg(all(target_os = "linux", not(miri)))]
use linux as system;
#[cfg(all(target_os = "linux", not(miri)))]
mod linux_affinity;
#[cfg(all(target_os = "linux", not(miri)))]
mod linux_dma_buf;
#[cfg(all(target_os = "linux", not(miri)))]
use linux_affinity as affinity;

#[cfg(unix)]
mod unix_files;
#[cfg(windows)]
mod windows;
#[cfg(windows)]
use windows as system;

#[cfg(not(any(windows, all(target_os = "linux", not(miri)))))]
mod portable;
#[cfg(not(any(windows, all(target_os = "linux", not(miri)))))]
use portable as system;

#[cfg(not(all(target_os = "linux", not(miri))))]
mod no_affinity;
#[cfg(not(all(target_os = "linux", not(miri))))]
mod no_dma_buf;
#[cfg(not(all(target_os = "linux", not(miri))))]
use no_affinity as affinity;

#[cfg(not(any(unix, windows)))]
compile_error!("the memory of this system is not known: src/memory/os knows Unix and Windows");

use std::sync::Arc;

use super::range::ByteRange;

pub use affinity::{ThreadAffinity, processor};
pub use dma_bufs::{DmaBufSystem, Turn};
pub use system::{Descriptor, Mapping};
pub use system::{FIXES, file_changed, file_number, open_direct, read_at};

/// What address, offset and length are multiples of in a read past the cache of files: satisfies every common file
/// system.
pub const DIRECT_BLOCK: usize = 4096;

/// What a user of this system can do about a refusal that is about the system.
pub struct Fixes {
    /// The process's map cannot be had.
    pub no_process_map: &'static str,
    /// The memory has no pages of its own, but a file's that has no name.
    pub memory_file: &'static str,
    /// No dma-buf can be made of a memory file.
    pub no_dma_buf: &'static str,
}

#[cfg(all(test, any(windows, all(target_os = "linux", not(miri)))))]
mod tests;
#[cfg(all(test, target_os = "linux", not(miri)))]
use linux::testing;
#[cfg(all(test, target_os = "linux", not(miri)))]
mod linux_tests;
#[cfg(all(test, windows))]
use windows::testing;
#[cfg(all(test, windows))]
mod windows_tests;

/// What the system refused, or does not offer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum OsError {
    /// This system has no such facility.
    #[error("{what} is not supported on this operating system")]
    Unsupported {
        /// The facility.
        what: &'static str,
    },
    /// A system call failed.
    #[error("{call} failed with error {code}")]
    Call {
        /// The call.
        call: &'static str,
        /// The system's error number; 0 when it gave none.
        code: i32,
    },
    /// The process map holds a line that cannot be read.
    #[error("unreadable line in the process map: {line:?}")]
    BadMap {
        /// The line, shortened.
        line: String,
    },
}

/// What a mapping is made of.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Backing {
    /// Zero-filled memory of the process.
    Anonymous,
    /// The heap that `brk` grows: anonymous memory.
    Heap,
    /// A stack: anonymous memory that may grow downwards.
    Stack,
    /// A file, huge pages of a pool and System V segments included.
    File {
        /// Its path as the system shows it.
        path: String,
        /// Whether its name is gone.
        deleted: bool,
    },
    /// Memory with a descriptor but no file system.
    Memfd,
    /// A mapping of the kernel or of a device, by its name.
    Special(String),
}

/// One mapping of the process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MapEntry {
    /// Its addresses.
    pub range: ByteRange,
    /// Reads are allowed.
    pub readable: bool,
    /// Writes are allowed.
    pub writable: bool,
    /// Writes reach other mappings of the same object.
    pub shared: bool,
    /// What it is made of.
    pub backing: Backing,
}

/// Advice on the use of a mapping.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Advice {
    /// Back it with huge pages where that is possible.
    HugePages,
    /// Give pages of a file back until they are read again; what was written to them is lost.
    NotNow,
    /// A forked child does not get it: copy on write would move its pages under the device.
    DontFork,
}

/// Bytes in a page.
pub fn page_size() -> usize {
    system::page_size()
}

/// Bytes in a huge page.
pub fn huge_page_size() -> usize {
    system::huge_page_size()
}

/// Bytes of memory that this process can have at once: what the machine has, or less where a control group or a job
/// bounds it. `None` where the system does not tell.
pub fn physical_memory() -> Option<u64> {
    system::physical_memory()
}

/// Cores that this process may use at the same time, at least 1: processors of one core count once, those that the process
/// may not run on do not count, and a control group or a job can allow fewer.
///
/// Threads that compute share the units of their core: a second one on it takes turns with the first, and takes half of
/// its caches. So this, and not the number of processors, is how many of them pay.
pub fn cores() -> usize {
    let processors = std::thread::available_parallelism().map_or(1, usize::from);
    system::cores().map_or(processors, |cores| cores.clamp(1, processors))
}

/// What makes dma-bufs of memory files on this machine. Whether it may, the first dma-buf tells.
pub fn dma_bufs() -> Arc<dyn DmaBufSystem> {
    system::dma_bufs()
}

/// The mappings of this process that overlap a window of addresses, in ascending order.
///
/// The answer is a snapshot: other threads may map and unmap meanwhile. It serves to refuse early and
/// with a reason; the driver still has the last word.
///
/// # Errors
/// The map cannot be read, or the system has none.
pub fn process_map(window: ByteRange) -> Result<Vec<MapEntry>, OsError> {
    system::process_map(window)
}
