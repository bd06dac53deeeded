//! Systems of the Unix family with no file of their own, and Miri: aligned heap memory and no process map.
//!
//! An island of `unsafe` for the allocator calls; a [`Mapping`] owns its block alone.

#![allow(unsafe_code, reason = "calling the allocator is unsafe")]

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::fs::File;
use std::ptr::NonNull;

pub use super::no_dma_buf::Descriptor;
pub(super) use super::no_dma_buf::dma_bufs;
pub use super::unix_files::{file_changed, file_number, read_at};
use super::{Advice, Fixes, MapEntry, OsError};
use crate::memory::range::ByteRange;

/// What to do where this system lacks something.
pub const FIXES: Fixes = Fixes {
    no_process_map: "keep the tensor in a HostRegion",
    memory_file: "keep the tensor in a HostRegion",
    no_dma_buf: "keep the tensor in anonymous memory (HostRegion::new)",
};

/// Where large memory starts: what most processors have as a large page.
const HUGE_PAGE: usize = 2 << 20;

pub(super) fn page_size() -> usize {
    rustix::param::page_size()
}

pub(super) fn huge_page_size() -> usize {
    HUGE_PAGE
}

pub(super) fn physical_memory() -> Option<u64> {
    None
}

pub(super) fn cores() -> Option<usize> {
    None
}

/// Zeroed, page-aligned memory, freed when dropped.
#[derive(Debug)]
pub struct Mapping {
    start: NonNull<u8>,
    layout: Layout,
}

// SAFETY: the block belongs to the value alone and may be freed by any thread.
unsafe impl Send for Mapping {}
// SAFETY: the methods give out addresses, never references; who dereferences them answers for races.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Allocates `bytes` (a multiple of the page size, not 0) at a multiple of `alignment` (a power of
    /// two).
    ///
    /// # Errors
    /// There is no room, or the sizes are not as said.
    pub fn anonymous(bytes: usize, alignment: usize) -> Result<Mapping, OsError> {
        let failed = OsError::Call { call: "alloc", code: 0 };
        if bytes == 0 || !bytes.is_multiple_of(page_size()) {
            return Err(failed);
        }
        let layout = Layout::from_size_align(bytes, alignment).map_err(|_| failed.clone())?;
        // SAFETY: the layout's size is not 0.
        let start = NonNull::new(unsafe { alloc_zeroed(layout) }).ok_or(failed)?;
        Ok(Mapping { start, layout })
    }

    /// There are no memory files.
    ///
    /// # Errors
    /// Always.
    pub fn memory_file(_bytes: usize) -> Result<(Mapping, Descriptor), OsError> {
        Err(OsError::Unsupported { what: "a memory file" })
    }

    /// Files are not mapped here.
    ///
    /// # Errors
    /// Always.
    pub fn of_file(_file: &File, _offset: u64, _bytes: usize) -> Result<Mapping, OsError> {
        Err(OsError::Unsupported { what: "a mapped file" })
    }

    /// First byte.
    pub fn as_ptr(&self) -> NonNull<u8> {
        self.start
    }

    /// Size, a multiple of the page size.
    pub fn bytes(&self) -> usize {
        self.layout.size()
    }

    /// What was allocated as one is freed as one.
    ///
    /// # Errors
    /// Always: the mapping, as it was.
    pub fn split(self, _at: usize) -> Result<(Mapping, Mapping), Mapping> {
        Err(self)
    }

    /// Gives advice on the whole mapping.
    ///
    /// # Errors
    /// Always: there is no one to take it.
    pub fn advise(&self, _advice: Advice) -> Result<(), OsError> {
        Err(OsError::Unsupported { what: "memory advice" })
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the block came from `alloc_zeroed` with this layout and is freed once.
        unsafe { dealloc(self.start.as_ptr(), self.layout) };
    }
}

/// Reads past the page cache are not offered.
pub fn open_direct(_file: &File) -> Option<File> {
    None
}

pub(super) fn process_map(_window: ByteRange) -> Result<Vec<MapEntry>, OsError> {
    Err(OsError::Unsupported { what: "the process map" })
}
