//! Windows: pages by `VirtualAlloc`, the process's map by `VirtualQuery`, and reads that bypass the file cache.
//!
//! An island of `unsafe`: calls of the system. A [`Mapping`] owns its addresses alone, so no safe caller can free or
//! protect memory that something else uses.

#![allow(unsafe_code, reason = "calls of the system are unsafe")]

use std::ffi::c_void;
use std::fs::File;
use std::io;
use std::os::windows::fs::FileExt;
use std::os::windows::io::{AsRawHandle, FromRawHandle};
use std::ptr::{self, NonNull};
use std::sync::{Arc, OnceLock};

use windows_sys::Win32::Foundation::{
    ERROR_INVALID_PARAMETER, GENERIC_READ, GetLastError, INVALID_HANDLE_VALUE,
};
use windows_sys::Win32::Storage::FileSystem::{
    FILE_BASIC_INFO, FILE_FLAG_NO_BUFFERING, FILE_ID_INFO, FILE_SHARE_DELETE, FILE_SHARE_READ,
    FILE_SHARE_WRITE, FILE_STORAGE_INFO, FileBasicInfo, FileIdInfo, FileStorageInfo,
    GetFileInformationByHandleEx, ReOpenFile,
};
use windows_sys::Win32::System::JobObjects::{
    JOB_OBJECT_LIMIT_JOB_MEMORY, JOB_OBJECT_LIMIT_PROCESS_MEMORY, JOBOBJECT_EXTENDED_LIMIT_INFORMATION,
    JobObjectExtendedLimitInformation, QueryInformationJobObject,
};
use windows_sys::Win32::System::Memory::{
    GetLargePageMinimum, MEM_COMMIT, MEM_DECOMMIT, MEM_FREE, MEM_IMAGE, MEM_MAPPED, MEM_RELEASE, MEM_RESERVE,
    MEMORY_BASIC_INFORMATION, PAGE_EXECUTE_READ, PAGE_EXECUTE_READWRITE, PAGE_EXECUTE_WRITECOPY, PAGE_GUARD,
    PAGE_NOACCESS, PAGE_NOCACHE, PAGE_READONLY, PAGE_READWRITE, PAGE_WRITECOMBINE, PAGE_WRITECOPY,
    VirtualAlloc, VirtualFree, VirtualQuery,
};
use windows_sys::Win32::System::ProcessStatus::K32GetMappedFileNameW;
use windows_sys::Win32::System::SystemInformation::{
    GetSystemInfo, GlobalMemoryStatusEx, MEMORYSTATUSEX, SYSTEM_INFO,
};
use windows_sys::Win32::System::Threading::GetCurrentProcess;

pub use super::no_dma_buf::Descriptor;
pub(super) use super::no_dma_buf::dma_bufs;
use super::{Advice, Backing, DIRECT_BLOCK, Fixes, MapEntry, OsError};
use crate::memory::range::ByteRange;

/// What to do where this system lacks something.
pub const FIXES: Fixes = Fixes {
    no_process_map: "keep the tensor in a HostRegion",
    memory_file: "keep the tensor in a HostRegion",
    no_dma_buf: "keep the tensor in anonymous memory (HostRegion::new)",
};

/// Bytes in a page, and what the start of an allocation is a multiple of.
fn units() -> (usize, usize) {
    static UNITS: OnceLock<(usize, usize)> = OnceLock::new();
    *UNITS.get_or_init(|| {
        let mut info = SYSTEM_INFO::default();
        // SAFETY: the call fills the structure.
        unsafe { GetSystemInfo(&mut info) };
        (info.dwPageSize as usize, info.dwAllocationGranularity as usize)
    })
}

pub(super) fn page_size() -> usize {
    units().0
}

pub(super) fn huge_page_size() -> usize {
    static SIZE: OnceLock<usize> = OnceLock::new();
    *SIZE.get_or_init(|| {
        // SAFETY: the call has no arguments. A processor without large pages has 0.
        let size = unsafe { GetLargePageMinimum() };
        if size.is_power_of_two() { size } else { units().1 }
    })
}

pub(super) fn physical_memory() -> Option<u64> {
    let mut status = MEMORYSTATUSEX { dwLength: size_of::<MEMORYSTATUSEX>() as u32, ..Default::default() };
    // SAFETY: the structure says how long it is, and the call fills it.
    let is_known = unsafe { GlobalMemoryStatusEx(&mut status) } != 0;
    is_known.then(|| job_limit().map_or(status.ullTotalPhys, |limit| status.ullTotalPhys.min(limit)))
}

pub(super) fn cores() -> Option<usize> {
    Some(num_cpus::get_physical())
}

/// The lower of the memory limits that the process's job sets for one process and for all together.
fn job_limit() -> Option<u64> {
    let mut info = JOBOBJECT_EXTENDED_LIMIT_INFORMATION::default();
    // SAFETY: no job's handle means that of the process; the structure is of the class and as long as is said.
    let done = unsafe {
        QueryInformationJobObject(
            ptr::null_mut(),
            JobObjectExtendedLimitInformation,
            (&raw mut info).cast(),
            size_of_val(&info) as u32,
            ptr::null_mut(),
        )
    };
    if done == 0 {
        return None;
    }
    lowest_limit(&info)
}

fn lowest_limit(info: &JOBOBJECT_EXTENDED_LIMIT_INFORMATION) -> Option<u64> {
    let flags = info.BasicLimitInformation.LimitFlags;
    let limits = [
        (JOB_OBJECT_LIMIT_PROCESS_MEMORY, info.ProcessMemoryLimit),
        (JOB_OBJECT_LIMIT_JOB_MEMORY, info.JobMemoryLimit),
    ];
    limits.into_iter().filter(|(flag, _)| flags & flag != 0).map(|(_, bytes)| bytes as u64).min()
}

/// Addresses of the process, given back when dropped with all pages in them.
#[derive(Debug)]
struct Reservation(NonNull<c_void>);

impl Drop for Reservation {
    fn drop(&mut self) {
        // SAFETY: the address is what `VirtualAlloc` gave, and is freed once.
        if unsafe { VirtualFree(self.0.as_ptr(), 0, MEM_RELEASE) } == 0 {
            tracing::warn!(code = last_error(), "VirtualFree failed");
        }
    }
}

/// Readable and writable pages of the process alone, zeroed at first, given back when dropped.
#[derive(Debug)]
pub struct Mapping {
    start: NonNull<u8>,
    bytes: usize,
    /// The addresses around it, which parts of what was split share: the system gives them back as a whole.
    addresses: Arc<Reservation>,
}

// SAFETY: a mapping belongs to the process, not to a thread, and the value owns its pages alone.
unsafe impl Send for Mapping {}
// SAFETY: the methods give out addresses, never references; who dereferences them answers for races.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps `bytes` (a multiple of the page size, not 0) at a multiple of `alignment` (a power of two).
    ///
    /// # Errors
    /// The system has no room, or the sizes are not as said.
    pub fn anonymous(bytes: usize, alignment: usize) -> Result<Mapping, OsError> {
        let (page, granularity) = units();
        let invalid = OsError::Call { call: "VirtualAlloc", code: ERROR_INVALID_PARAMETER as i32 };
        if bytes == 0 || !bytes.is_multiple_of(page) || !alignment.is_power_of_two() {
            return Err(invalid);
        }
        // Room to move the start up to the alignment: addresses, with no memory at them.
        let slack = alignment.saturating_sub(granularity);
        let reserved = bytes.checked_add(slack).ok_or(invalid)?;
        // SAFETY: a null address lets the system choose addresses that nothing uses.
        let base = unsafe { VirtualAlloc(ptr::null(), reserved, MEM_RESERVE, PAGE_NOACCESS) };
        let base = NonNull::new(base).ok_or_else(|| failed("VirtualAlloc"))?;
        let addresses = Arc::new(Reservation(base));
        let head = base.addr().get().next_multiple_of(alignment) - base.addr().get();
        let start = base.as_ptr().wrapping_byte_add(head);
        // SAFETY: the pages lie in the reservation, which nothing else knows.
        let start = unsafe { VirtualAlloc(start, bytes, MEM_COMMIT, PAGE_READWRITE) };
        let start = NonNull::new(start.cast()).ok_or_else(|| failed("VirtualAlloc"))?;
        Ok(Mapping { start, bytes, addresses })
    }

    /// There are no memory files that a dma-buf could be made of.
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
        self.bytes
    }

    /// Cuts the mapping in two, each of which gives its memory back by itself; the addresses stay taken until both
    /// are gone.
    ///
    /// # Errors
    /// The mapping, as it was: `at` is no multiple of the page size, or not inside.
    pub fn split(self, at: usize) -> Result<(Mapping, Mapping), Mapping> {
        if at == 0 || at >= self.bytes || !at.is_multiple_of(page_size()) {
            return Err(self);
        }
        let (start, rest, addresses) = (self.start, self.bytes - at, Arc::clone(&self.addresses));
        let mut first = self;
        first.bytes = at;
        // SAFETY: `at` lies inside the mapping.
        let second = unsafe { start.add(at) };
        Ok((first, Mapping { start: second, bytes: rest, addresses }))
    }

    /// Gives advice on the whole mapping.
    ///
    /// # Errors
    /// The system has large pages only for who asks for them from the start with a privilege.
    pub fn advise(&self, advice: Advice) -> Result<(), OsError> {
        match advice {
            Advice::HugePages => Err(OsError::Unsupported { what: "advice on large pages" }),
            // A process starts with memory of its own.
            Advice::DontFork | Advice::NotNow => Ok(()),
        }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        if Arc::get_mut(&mut self.addresses).is_some() {
            return;
        }
        // SAFETY: the pages belong to the value alone, and nothing uses them any more.
        if unsafe { VirtualFree(self.start.as_ptr().cast(), self.bytes, MEM_DECOMMIT) } == 0 {
            tracing::warn!(bytes = self.bytes, code = last_error(), "VirtualFree failed");
        }
    }
}

fn last_error() -> i32 {
    // SAFETY: the call has no arguments.
    unsafe { GetLastError() as i32 }
}

fn failed(call: &'static str) -> OsError {
    OsError::Call { call, code: last_error() }
}

/// Opens an open file once more, for reads past the file cache; `None` where the file system does not offer them or
/// has sectors larger than a block. Goes by handle, so a path that changes hands meanwhile does not matter.
pub fn open_direct(file: &File) -> Option<File> {
    let share = FILE_SHARE_READ | FILE_SHARE_WRITE | FILE_SHARE_DELETE;
    // SAFETY: the handle is open as long as `file` is borrowed.
    let handle = unsafe { ReOpenFile(file.as_raw_handle(), GENERIC_READ, share, FILE_FLAG_NO_BUFFERING) };
    if handle == INVALID_HANDLE_VALUE || handle.is_null() {
        return None;
    }
    // SAFETY: a fresh handle, which no one else closes.
    let direct = unsafe { File::from_raw_handle(handle) };
    let mut info = FILE_STORAGE_INFO::default();
    // SAFETY: the structure is of the class and as long as is said.
    let is_known = unsafe {
        let bytes = size_of_val(&info) as u32;
        GetFileInformationByHandleEx(handle, FileStorageInfo, (&raw mut info).cast(), bytes) != 0
    };
    // Where the system does not tell, a read that is not aligned enough fails, and goes by the cache.
    let fits = !is_known || info.LogicalBytesPerSector as usize <= DIRECT_BLOCK;
    fits.then_some(direct)
}

/// Number of the volume, and of the file on it; `None` where the file system does not tell.
pub fn file_number(file: &File) -> Option<(u64, u128)> {
    let mut info = FILE_ID_INFO::default();
    let bytes = size_of_val(&info) as u32;
    // SAFETY: the handle is open as long as `file` is borrowed; the structure is of the class and as long as
    // is said.
    let is_known = unsafe {
        GetFileInformationByHandleEx(file.as_raw_handle(), FileIdInfo, (&raw mut info).cast(), bytes) != 0
    };
    is_known.then(|| (info.VolumeSerialNumber, u128::from_le_bytes(info.FileId.Identifier)))
}

/// When anything of a file changed, in seconds since 1970 and nanoseconds.
pub fn file_changed(file: &File) -> Option<(i64, i64)> {
    // From 1601 to 1970.
    const EPOCH_SECONDS: i64 = 11_644_473_600;
    const TICKS: i64 = 10_000_000;
    let mut info = FILE_BASIC_INFO::default();
    let bytes = size_of_val(&info) as u32;
    // SAFETY: the handle is open as long as `file` is borrowed; the structure is of the class and as long as
    // is said.
    let is_known = unsafe {
        GetFileInformationByHandleEx(file.as_raw_handle(), FileBasicInfo, (&raw mut info).cast(), bytes) != 0
    };
    let (seconds, ticks) = (info.ChangeTime.div_euclid(TICKS), info.ChangeTime.rem_euclid(TICKS));
    is_known.then_some((seconds - EPOCH_SECONDS, 100 * ticks))
}

/// Reads at an offset; may be short. The offset goes with the call, so calls on one file do not disturb each other.
pub fn read_at(file: &File, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
    file.seek_read(buffer, offset)
}

pub(super) fn process_map(window: ByteRange) -> Result<Vec<MapEntry>, OsError> {
    let mut entries = Vec::new();
    let mut at = window.start;
    while at < window.end {
        let Some(found) = query(at)? else { break };
        let start = found.BaseAddress.addr() as u64;
        let Some(range) = ByteRange::from_offset(start, found.RegionSize as u64).filter(|r| r.end > at)
        else {
            break;
        };
        at = range.end;
        entries.extend(entry(&found, range));
    }
    Ok(entries)
}

/// Pages of one kind from this address on; `None` beyond the last address that a process may have.
fn query(addr: u64) -> Result<Option<MEMORY_BASIC_INFORMATION>, OsError> {
    let Ok(addr) = usize::try_from(addr) else { return Ok(None) };
    let mut found = MEMORY_BASIC_INFORMATION::default();
    // SAFETY: the call takes any address and fills the structure, whose length is said.
    let bytes = unsafe { VirtualQuery(ptr::without_provenance(addr), &mut found, size_of_val(&found)) };
    match bytes {
        0 if last_error() == ERROR_INVALID_PARAMETER as i32 => Ok(None),
        0 => Err(failed("VirtualQuery")),
        _ => Ok(Some(found)),
    }
}

/// What the system said of pages, where there is something at the addresses.
fn entry(found: &MEMORY_BASIC_INFORMATION, range: ByteRange) -> Option<MapEntry> {
    if found.State == MEM_FREE {
        return None;
    }
    // Reserved addresses have no protection and no memory.
    let protection = if found.State == MEM_COMMIT { found.Protect } else { PAGE_NOACCESS };
    // The bits above the lowest eight change the access that those name.
    let access = protection & 0xff;
    let copies = matches!(access, PAGE_WRITECOPY | PAGE_EXECUTE_WRITECOPY);
    let writable = copies || matches!(access, PAGE_READWRITE | PAGE_EXECUTE_READWRITE);
    let readable = writable || matches!(access, PAGE_READONLY | PAGE_EXECUTE_READ);
    // The first access to a guarded page is an exception.
    let is_open = protection & PAGE_GUARD == 0;
    let backing = match found.Type {
        _ if protection & (PAGE_NOCACHE | PAGE_WRITECOMBINE) != 0 => {
            Backing::Special("uncached memory".to_owned())
        }
        MEM_IMAGE | MEM_MAPPED => match mapped_file(range.start) {
            Some(path) => Backing::File { path, deleted: false },
            None if found.Type == MEM_IMAGE => Backing::Special("a program's image".to_owned()),
            None => Backing::Memfd,
        },
        _ => Backing::Anonymous,
    };
    Some(MapEntry {
        range,
        readable: readable && is_open,
        writable: writable && is_open,
        shared: found.Type == MEM_MAPPED && !copies,
        backing,
    })
}

/// The file that is mapped there, as the system names it; `None` for memory with no file of its own.
fn mapped_file(addr: u64) -> Option<String> {
    let mut name = [0u16; 1024];
    // SAFETY: the process's own pseudo handle; the buffer is as long as is said.
    let length = unsafe {
        let process = GetCurrentProcess();
        let addr = ptr::without_provenance(addr as usize);
        K32GetMappedFileNameW(process, addr, name.as_mut_ptr(), name.len() as u32)
    };
    name.get(..length as usize).filter(|name| !name.is_empty()).map(String::from_utf16_lossy)
}

/// Mappings of kinds that the crate itself never makes, for tests of the import policy.
#[cfg(test)]
pub(crate) mod testing {
    use windows_sys::Win32::System::Memory::VirtualProtect;

    use super::*;

    /// Changes the rights to some pages of a mapping.
    pub(crate) fn protect(mapping: &Mapping, offset: usize, bytes: usize, protection: u32) {
        let start = mapping.as_ptr().as_ptr().wrapping_add(offset);
        let mut before = 0;
        // SAFETY: tests read the map, not the bytes.
        let done = unsafe { VirtualProtect(start.cast(), bytes, protection, &mut before) };
        assert!(done != 0, "{}", last_error());
    }

    /// Takes the memory of some pages away, which leaves their addresses reserved.
    pub(crate) fn decommit(mapping: &Mapping, offset: usize, bytes: usize) {
        let start = mapping.as_ptr().as_ptr().wrapping_add(offset);
        // SAFETY: tests read the map, not the bytes.
        assert!(unsafe { VirtualFree(start.cast(), bytes, MEM_DECOMMIT) } != 0, "{}", last_error());
    }
}

#[cfg(test)]
mod tests {
    use windows_sys::Win32::System::Memory::MEM_PRIVATE;

    use super::*;

    #[test]
    fn limits_of_a_job_count_where_they_are_set() {
        let mut info = JOBOBJECT_EXTENDED_LIMIT_INFORMATION::default();
        (info.ProcessMemoryLimit, info.JobMemoryLimit) = (7, 5);
        assert_eq!(lowest_limit(&info), None);
        info.BasicLimitInformation.LimitFlags = JOB_OBJECT_LIMIT_PROCESS_MEMORY;
        assert_eq!(lowest_limit(&info), Some(7));
        info.BasicLimitInformation.LimitFlags |= JOB_OBJECT_LIMIT_JOB_MEMORY;
        assert_eq!(lowest_limit(&info), Some(5));
    }

    #[test]
    fn every_kind_of_pages_is_told() {
        let told = |state, protect, kind| {
            let found =
                MEMORY_BASIC_INFORMATION { State: state, Protect: protect, Type: kind, ..Default::default() };
            entry(&found, ByteRange::new(0x1000, 0x2000))
        };
        assert_eq!(told(MEM_FREE, PAGE_NOACCESS, 0), None);
        let rights = |state, protect| told(state, protect, MEM_PRIVATE).map(|e| (e.readable, e.writable));
        assert_eq!(rights(MEM_RESERVE, 0), Some((false, false)));
        assert_eq!(rights(MEM_COMMIT, PAGE_NOACCESS), Some((false, false)));
        assert_eq!(rights(MEM_COMMIT, PAGE_READONLY), Some((true, false)));
        assert_eq!(rights(MEM_COMMIT, PAGE_EXECUTE_READ), Some((true, false)));
        assert_eq!(rights(MEM_COMMIT, PAGE_READWRITE), Some((true, true)));
        assert_eq!(rights(MEM_COMMIT, PAGE_READWRITE | PAGE_GUARD), Some((false, false)));
        assert_eq!(rights(MEM_COMMIT, PAGE_WRITECOPY), Some((true, true)));
        let section = told(MEM_COMMIT, PAGE_READWRITE, MEM_MAPPED).unwrap();
        assert!(section.shared && section.backing == Backing::Memfd);
        assert!(!told(MEM_COMMIT, PAGE_WRITECOPY, MEM_MAPPED).unwrap().shared);
        let uncached = told(MEM_COMMIT, PAGE_READWRITE | PAGE_WRITECOMBINE, MEM_PRIVATE).unwrap();
        assert_eq!(uncached.backing, Backing::Special("uncached memory".to_owned()));
    }
}
