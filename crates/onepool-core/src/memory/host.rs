//! Owned memory that any device can import: anonymous, private, page-aligned.
//!
//! Two states, so that safe Rust never holds a slice over bytes that a device is writing:
//! * [`HostRegion`]: one owner, no device; plain slices.
//! * [`SharedRegion`]: kept by `Arc` and open to devices; bytes are reached through guards, and a device
//!   works only under a [`DeviceLease`]. Both take holds in one table ([`super::lease`]) that refuses
//!   what would race.
//!
//! An island of `unsafe`: the slices made from raw pages. What a device layer owes in return is said at
//! [`SharedRegion::lease_device`].

#![allow(unsafe_code, reason = "slices over raw pages are made here, behind guards")]

use std::fs::File;
use std::io::Read;
use std::ops::{Deref, DerefMut};
use std::path::Path;
use std::ptr::NonNull;
use std::slice;
use std::sync::Arc;

use bytemuck::Pod;

use super::fill;
pub use super::host_error::HostError;
use super::import::PageWindow;
use super::lease::{Occupancy, Ticket, Use};
use super::memory_file::MemoryFile;
use super::os::{self, Advice, Backing, DmaBufSystem, MapEntry, Mapping};
use super::range::ByteRange;

/// The largest alignment that a driver is known to ask of an import.
const GRANULE: usize = 64 << 10;

/// The pages of a region; dropping them gives them back.
#[derive(Debug)]
struct Pages {
    // None for a region of 0 bytes.
    mapping: Option<Mapping>,
    start: NonNull<u8>,
    bytes: usize,
    fork_safe: bool,
    // Closed after the pages are unmapped.
    file: Option<MemoryFile>,
    // Whether they are pages of another file's, of which writes make copies, and whether there may be any.
    mapped: bool,
    written: bool,
}

// SAFETY: the pages belong to the value alone; `start` points into `mapping`, which is itself Send.
unsafe impl Send for Pages {}
// SAFETY: the pages are reached through `&self` only as an address; slices are made by the owners below,
// under a borrow or a hold that excludes writers.
unsafe impl Sync for Pages {}

impl Pages {
    /// Pages whose start and whose bytes are multiples of `unit`, a power of two and at least a page.
    fn new(bytes: usize, unit: usize) -> Result<Pages, HostError> {
        let page = os::page_size();
        if bytes == 0 {
            // An address to show, never to reach: page-aligned, so that alignment checks hold for it too.
            let start = NonNull::new(std::ptr::without_provenance_mut(page)).unwrap_or(NonNull::dangling());
            return Ok(Pages {
                mapping: None,
                start,
                bytes,
                fork_safe: true,
                file: None,
                mapped: false,
                written: false,
            });
        }
        let huge = os::huge_page_size();
        let mapped = bytes
            .checked_next_multiple_of(unit)
            .filter(|mapped| *mapped <= isize::MAX as usize - huge.max(unit))
            .ok_or(HostError::TooLarge { bytes: bytes as u64 })?;
        let large = bytes >= huge;
        // Some drivers import nothing that begins elsewhere, whatever a page is.
        let granule = if bytes >= GRANULE { GRANULE } else { page };
        let alignment = if large { huge.max(unit) } else { unit.max(granule) };
        let mapping = Mapping::anonymous(mapped, alignment)
            .map_err(|source| HostError::OutOfMemory { bytes: bytes as u64, source })?;
        if large {
            // Without huge pages the memory is slower for a device to reach, and otherwise the same.
            if let Err(error) = mapping.advise(Advice::HugePages) {
                tracing::debug!(%error, bytes, "no huge pages");
            }
        }
        Ok(Pages::of(mapping, bytes, None))
    }

    /// Pages of a memory file that cannot shrink.
    fn in_file(bytes: usize, system: &Arc<dyn DmaBufSystem>) -> Result<Pages, HostError> {
        let page = os::page_size();
        let mapped = (bytes.max(1).checked_next_multiple_of(page))
            .filter(|mapped| *mapped <= isize::MAX as usize)
            .ok_or(HostError::TooLarge { bytes: bytes as u64 })?;
        let (mapping, file) = Mapping::memory_file(mapped)
            .map_err(|source| HostError::OutOfMemory { bytes: bytes as u64, source })?;
        let file = MemoryFile::new(file, mapped as u64, Arc::clone(system));
        Ok(Pages::of(mapping, bytes, Some(file)))
    }

    fn of(mapping: Mapping, bytes: usize, file: Option<MemoryFile>) -> Pages {
        let fork_safe = match mapping.advise(Advice::DontFork) {
            Ok(()) => true,
            Err(error) => {
                tracing::debug!(%error, bytes, "a forked child will share these pages");
                false
            }
        };
        let start = mapping.as_ptr();
        Pages { mapping: Some(mapping), start, bytes, fork_safe, file, mapped: false, written: false }
    }

    fn mapped_bytes(&self) -> usize {
        self.mapping.as_ref().map_or(0, Mapping::bytes)
    }

    fn window(&self) -> PageWindow {
        let start = self.start.addr().get() as u64;
        let addr = self.mapping.as_ref().map_or(start, |mapping| mapping.as_ptr().addr().get() as u64);
        PageWindow { addr, bytes: self.mapped_bytes() as u64, offset: start - addr }
    }

    /// Start and length of a range that lies inside, for a slice.
    fn part(&self, range: ByteRange) -> Result<(NonNull<u8>, usize), HostError> {
        let bytes = self.bytes as u64;
        if range.start > bytes || range.end > bytes {
            return Err(HostError::OutOfBounds { range, bytes });
        }
        // Both ends are at most `bytes`, which is a usize.
        // SAFETY: `range.start` is within the pages or one past them, so the address stays in (or at the
        // end of) one allocation.
        let start = unsafe { self.start.add(range.start as usize) };
        Ok((start, range.bytes() as usize))
    }
}

/// The promise that files stay as they are: no one writes to them, shortens them or takes them away.
///
/// A page of a file that another process writes changes under a reader, and one that is cut off ends the process with a
/// signal (`SIGBUS`). Files that are read into memory need no such promise.
#[derive(Clone, Copy, Debug)]
pub struct Unchanging(());

impl Unchanging {
    /// Gives the promise.
    ///
    /// # Safety
    /// As long as a region, tensor or session made with it lives, no one changes or shortens the files, in this process or
    /// another. To replace a file by another one of its name (a rename) is no change of it.
    pub unsafe fn promise() -> Unchanging {
        Unchanging(())
    }
}

/// Owned, zeroed, page-aligned memory with one owner and no device at work on it.
///
/// Large regions start on a huge-page boundary and ask for huge pages; no region is inherited by a
/// forked child, where copy-on-write would move its pages from under a device.
///
/// ```
/// use onepool_core::HostRegion;
///
/// let mut frame = HostRegion::new(1920 * 1080 * 4)?;
/// frame.as_mut_slice_of::<f32>()?[0] = 0.5;
/// let shared = frame.into_shared(); // open to devices; bytes are reached through guards
/// assert_eq!(shared.read()?.as_slice_of::<f32>()?[0], 0.5);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct HostRegion {
    pages: Pages,
}

impl HostRegion {
    /// Zeroed memory. 0 bytes are allowed and own nothing.
    ///
    /// # Errors
    /// The size is impossible, or the system has no room.
    pub fn new(bytes: usize) -> Result<HostRegion, HostError> {
        Ok(HostRegion { pages: Pages::new(bytes, os::page_size())? })
    }

    /// As [`HostRegion::new`], for devices that import whole multiples of `unit` bytes: some take no less than 64 KiB.
    ///
    /// # Errors
    /// As [`HostRegion::new`]; `unit` is no power of two.
    pub fn in_units(bytes: usize, unit: usize) -> Result<HostRegion, HostError> {
        let unit = unit.max(os::page_size());
        if !unit.is_power_of_two() || unit > isize::MAX as usize / 2 {
            return Err(HostError::TooLarge { bytes: unit as u64 });
        }
        Ok(HostRegion { pages: Pages::new(bytes, unit)? })
    }

    /// Zeroed memory in a memory file, which drivers that take no pointer to it may take as a dma-buf
    /// ([`super::dma_buf`]). What a driver takes of [`HostRegion::new`] it takes at least as fast; this is for
    /// memory that other processes or devices are to have too.
    ///
    /// # Errors
    /// As [`HostRegion::new`], or the system has no memory files.
    pub fn in_memory_file(bytes: usize) -> Result<HostRegion, HostError> {
        HostRegion::in_memory_file_by(bytes, &os::dma_bufs())
    }

    /// As [`HostRegion::in_memory_file`], with another maker of dma-bufs than the machine's.
    ///
    /// # Errors
    /// As there.
    pub fn in_memory_file_by(bytes: usize, system: &Arc<dyn DmaBufSystem>) -> Result<HostRegion, HostError> {
        Ok(HostRegion { pages: Pages::in_file(bytes, system)? })
    }

    /// `bytes` bytes of a file from `offset` on, in the pages that the system caches of it: processes that map one file
    /// share them. What is written to the region is a copy of the process's own.
    ///
    /// # Errors
    /// The range leaves the file, or the system does not map it: on Windows, and where there is no Linux.
    pub fn map_file(
        file: &File,
        offset: u64,
        bytes: u64,
        _unchanging: Unchanging,
    ) -> Result<HostRegion, HostError> {
        let io = |source| HostError::Io { path: None, source };
        let file_bytes = file.metadata().map_err(io)?.len();
        let len = usize::try_from(bytes).map_err(|_| HostError::TooLarge { bytes })?;
        let page = os::page_size();
        let end = offset.checked_add(bytes).filter(|end| *end <= file_bytes.next_multiple_of(page as u64));
        if end.is_none() || bytes == 0 || offset >= file_bytes {
            return Err(HostError::OutsideFile { offset, bytes, file_bytes });
        }
        let inside = (offset % page as u64) as usize;
        let mapped = (len.checked_add(inside).and_then(|mapped| mapped.checked_next_multiple_of(page)))
            .filter(|mapped| *mapped <= isize::MAX as usize)
            .ok_or(HostError::TooLarge { bytes })?;
        let mapping = Mapping::of_file(file, offset - inside as u64, mapped)
            .map_err(|source| HostError::OutOfMemory { bytes, source })?;
        let pages = Pages::of(mapping, len, None);
        // SAFETY: `inside` is less than a page, of which the mapping has one at least.
        let start = unsafe { pages.start.add(inside) };
        Ok(HostRegion { pages: Pages { start, mapped: true, ..pages } })
    }

    /// Whether its pages are those of a file ([`HostRegion::map_file`]).
    pub fn is_mapped(&self) -> bool {
        self.pages.mapped
    }

    /// Lets go of pages of a file until they are read again; the system's cache may keep them. Nothing happens where the
    /// region was lent for writing or shared, or is not mapped.
    pub fn release_mapped(&self) {
        if let Some(mapping) =
            self.pages.mapping.as_ref().filter(|_| self.pages.mapped && !self.pages.written)
            && let Err(error) = mapping.advise(Advice::NotNow)
        {
            tracing::debug!(%error, "pages of a file stay");
        }
    }

    /// The file that it lies in, if it does.
    pub fn memory_file(&self) -> Option<&MemoryFile> {
        self.pages.file.as_ref()
    }

    /// Memory with a copy of these bytes.
    ///
    /// # Errors
    /// As [`HostRegion::new`].
    pub fn from_bytes(bytes: &[u8]) -> Result<HostRegion, HostError> {
        let mut region = HostRegion::new(bytes.len())?;
        region.as_mut_slice().copy_from_slice(bytes);
        Ok(region)
    }

    /// Memory filled with exactly `bytes` bytes of a reader.
    ///
    /// # Errors
    /// As [`HostRegion::new`]; or the reader fails or ends early.
    pub fn from_reader(reader: &mut impl Read, bytes: usize) -> Result<HostRegion, HostError> {
        let mut region = HostRegion::new(bytes)?;
        fill::fill(region.as_mut_slice(), 0, None, |buffer, _| reader.read(buffer))?;
        Ok(region)
    }

    /// Memory with the contents of a file, read straight into it: past the page cache where the file
    /// system allows, so that the bytes are resident once.
    ///
    /// # Errors
    /// As [`HostRegion::new`]; or the file cannot be read, is no regular file, or shrinks meanwhile.
    pub fn read_file(path: impl AsRef<Path>) -> Result<HostRegion, HostError> {
        let path = path.as_ref();
        let (file, file_bytes) = fill::open(path)?;
        HostRegion::from_file(&file, path, 0, file_bytes)
    }

    /// Memory with `bytes` bytes of a file from `offset` on; see [`HostRegion::read_file`].
    ///
    /// # Errors
    /// As [`HostRegion::read_file`]; or the range leaves the file.
    pub fn read_file_range(path: impl AsRef<Path>, offset: u64, bytes: u64) -> Result<HostRegion, HostError> {
        let path = path.as_ref();
        let (file, file_bytes) = fill::open(path)?;
        match ByteRange::from_offset(offset, bytes) {
            Some(range) if range.end <= file_bytes => HostRegion::from_file(&file, path, offset, bytes),
            _ => Err(HostError::OutsideFile { offset, bytes, file_bytes }),
        }
    }

    fn from_file(file: &File, path: &Path, offset: u64, bytes: u64) -> Result<HostRegion, HostError> {
        let len = usize::try_from(bytes).map_err(|_| HostError::TooLarge { bytes })?;
        let mut region = HostRegion::new(len)?;
        fill::from_file(region.as_mut_slice(), file, path, offset)?;
        Ok(region)
    }

    /// Cuts the region into regions that end at `ends`, multiples of the page size in ascending order, and one of what
    /// is left; the pages of each are given back by themselves. Nothing is copied where the system can do that.
    ///
    /// # Errors
    /// [`HostError::Cut`] where the ends are not as said or the region lies in a file; as [`HostRegion::new`].
    pub fn split(self, ends: &[usize]) -> Result<Vec<HostRegion>, HostError> {
        let (page, bytes) = (os::page_size(), self.pages.bytes);
        let starts = std::iter::once(0).chain(ends.iter().copied());
        if let Some((_, &at)) = starts.zip(ends).find(|&(start, &end)| {
            let own = self.pages.file.is_none() && !self.pages.mapped;
            end <= start || end >= bytes || !end.is_multiple_of(page) || !own
        }) {
            return Err(HostError::Cut { at, bytes });
        }
        let mut parts = Vec::with_capacity(ends.len() + 1);
        let (mut rest, mut start) = (self, 0);
        for &end in ends {
            let (first, second) = rest.cut(end - start)?;
            parts.push(first);
            (rest, start) = (second, end);
        }
        parts.push(rest);
        Ok(parts)
    }

    /// The first `at` bytes and the rest.
    fn cut(self, at: usize) -> Result<(HostRegion, HostRegion), HostError> {
        let Pages { mapping, start, bytes, fork_safe, file, mapped, written } = self.pages;
        let whole = mapping.ok_or(HostError::Cut { at, bytes })?;
        match whole.split(at) {
            Ok(parts) => {
                let [first, second] = [(parts.0, at), (parts.1, bytes - at)].map(|(mapping, bytes)| {
                    let start = mapping.as_ptr();
                    HostRegion {
                        pages: Pages {
                            mapping: Some(mapping),
                            start,
                            bytes,
                            fork_safe,
                            file: None,
                            mapped,
                            written,
                        },
                    }
                });
                Ok((first, second))
            }
            Err(whole) => {
                let whole = HostRegion {
                    pages: Pages { mapping: Some(whole), start, bytes, fork_safe, file, mapped, written },
                };
                let (first, second) = whole.as_slice().split_at(at);
                Ok((HostRegion::from_bytes(first)?, HostRegion::from_bytes(second)?))
            }
        }
    }

    /// Gives back the pages of the first `bytes` bytes, whole pages that are not all; what is left begins after them.
    ///
    /// # Errors
    /// The region as it was: the system cannot do that, or `bytes` is not as said.
    pub fn without_front(self, bytes: usize) -> Result<HostRegion, HostRegion> {
        let Pages { mapping, start, bytes: all, fork_safe, file, mapped, written } = self.pages;
        let as_it_was = |mapping, file| HostRegion {
            pages: Pages { mapping, start, bytes: all, fork_safe, file, mapped, written },
        };
        match mapping {
            Some(mapping) if file.is_none() && !mapped && bytes < all => match mapping.split(bytes) {
                Ok((_, rest)) => {
                    let start = rest.as_ptr();
                    let pages = Pages {
                        mapping: Some(rest),
                        start,
                        bytes: all - bytes,
                        fork_safe,
                        file: None,
                        mapped,
                        written,
                    };
                    Ok(HostRegion { pages })
                }
                Err(whole) => Err(as_it_was(Some(whole), None)),
            },
            mapping => Err(as_it_was(mapping, file)),
        }
    }

    /// Size as asked for.
    pub fn bytes(&self) -> usize {
        self.pages.bytes
    }

    /// Address of the first byte; page-aligned even for 0 bytes.
    pub fn as_ptr(&self) -> NonNull<u8> {
        self.pages.start
    }

    /// The whole pages of the region, as an import takes them.
    pub fn window(&self) -> PageWindow {
        self.pages.window()
    }

    /// Whether the system keeps the pages out of forked children.
    pub fn is_fork_safe(&self) -> bool {
        self.pages.fork_safe
    }

    /// The bytes.
    pub fn as_slice(&self) -> &[u8] {
        // SAFETY: the pages hold `bytes` initialized bytes, live as long as `self`, and no device or
        // other owner knows them; writers need `&mut self`.
        unsafe { slice::from_raw_parts(self.pages.start.as_ptr(), self.pages.bytes) }
    }

    /// The bytes, to change them.
    pub fn as_mut_slice(&mut self) -> &mut [u8] {
        self.pages.written = true;
        // SAFETY: as in `as_slice`; `&mut self` makes this the only reference.
        unsafe { slice::from_raw_parts_mut(self.pages.start.as_ptr(), self.pages.bytes) }
    }

    /// The bytes as elements.
    ///
    /// # Errors
    /// The size is no multiple of an element's.
    pub fn as_slice_of<T: Pod>(&self) -> Result<&[T], HostError> {
        elements(self.as_slice())
    }

    /// The bytes as elements, to change them.
    ///
    /// # Errors
    /// The size is no multiple of an element's.
    pub fn as_mut_slice_of<T: Pod>(&mut self) -> Result<&mut [T], HostError> {
        elements_mut(self.as_mut_slice())
    }

    /// Opens the region to devices: from here on its bytes are reached through guards and leases.
    pub fn into_shared(self) -> Arc<SharedRegion> {
        // Who writes a shared region is not noted.
        let pages = Pages { written: true, ..self.pages };
        Arc::new(SharedRegion { pages, occupancy: Occupancy::default() })
    }
}

/// A region that devices may work on.
#[derive(Debug)]
pub struct SharedRegion {
    pages: Pages,
    occupancy: Occupancy,
}

impl SharedRegion {
    /// Size as asked for.
    pub fn bytes(&self) -> usize {
        self.pages.bytes
    }

    /// Address of the first byte. Reading or writing through it is the caller's `unsafe` and needs a
    /// lease or a guard.
    pub fn as_ptr(&self) -> NonNull<u8> {
        self.pages.start
    }

    /// The whole pages of the region, as an import takes them.
    pub fn window(&self) -> PageWindow {
        self.pages.window()
    }

    /// What the process's map says of the pages, where it has one: the runtime made them.
    pub fn map_entry(&self) -> MapEntry {
        let in_file = self.pages.file.is_some();
        let backing = match () {
            () if in_file => Backing::Memfd,
            () if self.pages.mapped => Backing::File { path: String::new(), deleted: false },
            () => Backing::Anonymous,
        };
        let range = self.window().range();
        MapEntry { range, readable: true, writable: true, shared: in_file, backing }
    }

    /// Whether the system keeps the pages out of forked children.
    pub fn is_fork_safe(&self) -> bool {
        self.pages.fork_safe
    }

    /// The file that it lies in, if it does.
    pub fn memory_file(&self) -> Option<&MemoryFile> {
        self.pages.file.as_ref()
    }

    /// Whether neither the host nor a device holds any byte.
    pub fn is_idle(&self) -> bool {
        self.occupancy.is_idle()
    }

    /// The bytes, for reading.
    ///
    /// # Errors
    /// The host or a device writes them.
    pub fn read(&self) -> Result<ReadGuard<'_>, HostError> {
        self.read_range(self.whole())
    }

    /// Some of the bytes, for reading.
    ///
    /// # Errors
    /// The host or a device writes them, or they lie outside.
    pub fn read_range(&self, range: ByteRange) -> Result<ReadGuard<'_>, HostError> {
        let (start, bytes) = self.pages.part(range)?;
        let ticket = self.occupancy.take(range, Use::HostRead)?;
        Ok(ReadGuard { hold: Hold { region: self, ticket }, start, bytes })
    }

    /// The bytes, for writing.
    ///
    /// # Errors
    /// The host or a device uses them.
    pub fn write(&self) -> Result<WriteGuard<'_>, HostError> {
        self.write_range(self.whole())
    }

    /// Some of the bytes, for writing.
    ///
    /// # Errors
    /// The host or a device uses them, or they lie outside.
    pub fn write_range(&self, range: ByteRange) -> Result<WriteGuard<'_>, HostError> {
        let (start, bytes) = self.pages.part(range)?;
        let ticket = self.occupancy.take(range, Use::HostWrite)?;
        Ok(WriteGuard { hold: Hold { region: self, ticket }, start, bytes })
    }

    /// Takes bytes for one submission; the lease keeps the pages alive and is dropped when the device is
    /// done. Several leases may hold the same bytes: the order among device accesses is the tracker's.
    ///
    /// What a device layer owes: every device access to the region happens while a lease covers it,
    /// with `write` for writes; and whatever it made of the pages (an import) keeps the `Arc`, so that
    /// the pages outlive it.
    ///
    /// # Errors
    /// The host holds a guard that excludes it, or the bytes lie outside.
    pub fn lease_device(self: &Arc<Self>, range: ByteRange, write: bool) -> Result<DeviceLease, HostError> {
        self.pages.part(range)?;
        let wanted = if write { Use::DeviceWrite } else { Use::DeviceRead };
        let ticket = self.occupancy.take(range, wanted)?;
        Ok(DeviceLease { region: Arc::clone(self), ticket, range, write })
    }

    /// Takes the region back from the devices.
    ///
    /// # Errors
    /// Someone else keeps it: the region comes back as it was.
    pub fn into_owned(self: Arc<Self>) -> Result<HostRegion, Arc<SharedRegion>> {
        // Guards borrow the region and leases keep it by Arc, so a sole owner proves that none lives.
        Arc::try_unwrap(self).map(|region| HostRegion { pages: region.pages })
    }

    /// All bytes of the region.
    pub fn whole(&self) -> ByteRange {
        ByteRange::up_to(self.pages.bytes as u64)
    }
}

/// Gives a hold back when dropped.
#[derive(Debug)]
struct Hold<'a> {
    region: &'a SharedRegion,
    ticket: Ticket,
}

impl Drop for Hold<'_> {
    fn drop(&mut self) {
        self.region.occupancy.give_back(&self.ticket);
    }
}

/// Bytes that no one writes while the guard lives.
#[derive(Debug)]
pub struct ReadGuard<'a> {
    hold: Hold<'a>,
    start: NonNull<u8>,
    bytes: usize,
}

// SAFETY: the guard is a shared slice and a reference to a `Sync` region.
unsafe impl Send for ReadGuard<'_> {}
// SAFETY: as above; `&ReadGuard` gives out only `&[u8]`.
unsafe impl Sync for ReadGuard<'_> {}

impl ReadGuard<'_> {
    /// The bytes as elements.
    ///
    /// # Errors
    /// The size is no multiple of an element's, or the start is not aligned for it.
    pub fn as_slice_of<T: Pod>(&self) -> Result<&[T], HostError> {
        elements(self)
    }

    /// The region the bytes belong to.
    pub fn region(&self) -> &SharedRegion {
        self.hold.region
    }
}

impl Deref for ReadGuard<'_> {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        // SAFETY: `part` checked that the bytes lie in the region, which outlives the guard; the hold
        // keeps write guards and device writes away from them.
        unsafe { slice::from_raw_parts(self.start.as_ptr(), self.bytes) }
    }
}

/// Bytes that no one else touches while the guard lives.
#[derive(Debug)]
pub struct WriteGuard<'a> {
    hold: Hold<'a>,
    start: NonNull<u8>,
    bytes: usize,
}

// SAFETY: the guard is an exclusive slice and a reference to a `Sync` region.
unsafe impl Send for WriteGuard<'_> {}
// SAFETY: `&WriteGuard` gives out only `&[u8]`; changing the bytes needs `&mut`.
unsafe impl Sync for WriteGuard<'_> {}

impl WriteGuard<'_> {
    /// The bytes as elements.
    ///
    /// # Errors
    /// The size is no multiple of an element's, or the start is not aligned for it.
    pub fn as_mut_slice_of<T: Pod>(&mut self) -> Result<&mut [T], HostError> {
        elements_mut(self)
    }

    /// The region the bytes belong to.
    pub fn region(&self) -> &SharedRegion {
        self.hold.region
    }
}

impl Deref for WriteGuard<'_> {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        // SAFETY: `part` checked that the bytes lie in the region, which outlives the guard; the hold
        // keeps every other guard and device access away from them.
        unsafe { slice::from_raw_parts(self.start.as_ptr(), self.bytes) }
    }
}

impl DerefMut for WriteGuard<'_> {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `deref`; `&mut self` makes this the only reference through the guard.
        unsafe { slice::from_raw_parts_mut(self.start.as_ptr(), self.bytes) }
    }
}

/// Bytes that one submission works on. Leaking it leaves them leased for good, which is safe.
#[derive(Debug)]
#[must_use = "a dropped lease lets the host back at the bytes"]
pub struct DeviceLease {
    region: Arc<SharedRegion>,
    ticket: Ticket,
    range: ByteRange,
    write: bool,
}

impl DeviceLease {
    /// The region, kept alive by the lease.
    pub fn region(&self) -> &Arc<SharedRegion> {
        &self.region
    }

    /// The leased bytes.
    pub fn range(&self) -> ByteRange {
        self.range
    }

    /// Whether the device may write them.
    pub fn writes(&self) -> bool {
        self.write
    }
}

impl Drop for DeviceLease {
    fn drop(&mut self) {
        self.region.occupancy.give_back(&self.ticket);
    }
}

fn elements<T: Pod>(bytes: &[u8]) -> Result<&[T], HostError> {
    bytemuck::try_cast_slice(bytes).map_err(|error| cast_error::<T>(bytes.len(), error))
}

fn elements_mut<T: Pod>(bytes: &mut [u8]) -> Result<&mut [T], HostError> {
    let len = bytes.len();
    bytemuck::try_cast_slice_mut(bytes).map_err(|error| cast_error::<T>(len, error))
}

fn cast_error<T>(bytes: usize, error: bytemuck::PodCastError) -> HostError {
    let cause = match error {
        bytemuck::PodCastError::TargetAlignmentGreaterAndInputNotAligned => "the start is not aligned",
        _ => "the size is no multiple",
    };
    HostError::Cast { bytes, element: size_of::<T>(), cause }
}

#[cfg(test)]
mod tests;
