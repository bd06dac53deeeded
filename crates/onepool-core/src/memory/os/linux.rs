//! Linux: anonymous mappings, advice, `/proc/self/maps`, reads that bypass the page cache, and the cores of `/sys`.
//!
//! An island of `unsafe`: the calls that map and unmap. A [`Mapping`] owns its addresses alone, so no
//! safe caller can unmap or remap memory that something else uses.

#![allow(unsafe_code, reason = "mapping and unmapping memory are unsafe calls")]

use std::collections::BTreeSet;
use std::ffi::c_void;
use std::fs::File;
use std::io::{self, BufRead, BufReader};
use std::os::fd::AsRawFd;
use std::path::Path;
use std::ptr::{self, NonNull};
use std::sync::OnceLock;

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::mm::{Advice as MmAdvice, MapFlags, ProtFlags, madvise, mmap, mmap_anonymous, munmap};
use rustix::thread::{CpuSet, sched_getaffinity};

pub use super::linux_dma_buf::Descriptor;
pub(super) use super::linux_dma_buf::dma_bufs;
pub use super::unix_files::{file_changed, file_number, read_at};
use super::{Advice, Backing, Fixes, MapEntry, OsError, linux_dma_buf};
use crate::memory::range::ByteRange;

/// What to do where this system lacks something.
pub const FIXES: Fixes = Fixes {
    no_process_map: "mount /proc, or keep the tensor in a HostRegion",
    memory_file: "keep the tensor in a HostRegion; HostRegion::in_memory_file can be a dma-buf too",
    no_dma_buf: "let the process open /dev/udmabuf, or keep the tensor in anonymous memory (HostRegion::new)",
};

const MAPS: &str = "/proc/self/maps";
const HUGE_PAGE: &str = "/sys/kernel/mm/transparent_hugepage/hpage_pmd_size";
const USUAL_HUGE_PAGE: usize = 2 << 20;

pub(super) fn page_size() -> usize {
    rustix::param::page_size()
}

pub(super) fn huge_page_size() -> usize {
    static SIZE: OnceLock<usize> = OnceLock::new();
    *SIZE.get_or_init(|| {
        std::fs::read_to_string(HUGE_PAGE)
            .ok()
            .and_then(|text| text.trim().parse().ok())
            .filter(|size: &usize| size.is_power_of_two())
            .unwrap_or(USUAL_HUGE_PAGE)
    })
}

const MEMORY: &str = "/proc/meminfo";
const GROUPS: &str = "/proc/self/cgroup";
const GROUP_ROOT: &str = "/sys/fs/cgroup";

pub(super) fn physical_memory() -> Option<u64> {
    let text = std::fs::read_to_string(MEMORY).ok()?;
    let machine = parse_total(&text)?;
    let groups = std::fs::read_to_string(GROUPS).unwrap_or_default();
    Some(group_limit(&groups, Path::new(GROUP_ROOT)).map_or(machine, |limit| machine.min(limit)))
}

const PROCESSORS: &str = "/sys/devices/system/cpu";

pub(super) fn cores() -> Option<usize> {
    let allowed = sched_getaffinity(None).ok()?;
    cores_of((0..CpuSet::MAX_CPU).filter(|i| allowed.is_set(*i)), Path::new(PROCESSORS))
}

/// Cores of the processors `allowed`; `None` where the system does not say which are of one core.
fn cores_of(allowed: impl Iterator<Item = usize>, root: &Path) -> Option<usize> {
    let list =
        |i: usize, name: &str| std::fs::read_to_string(root.join(format!("cpu{i}/topology/{name}"))).ok();
    // Kernels before 5.3 know the older name alone.
    let core = |i| list(i, "core_cpus_list").or_else(|| list(i, "thread_siblings_list"));
    let cores = allowed.map(core).collect::<Option<BTreeSet<String>>>()?;
    Some(cores.len())
}

/// `MemTotal` of the system's account of memory, in bytes.
fn parse_total(text: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
}

/// The lowest memory limit of the control groups in `groups` and of those around them, of both versions
/// (cgroups(7); `memory.max` of version 2 may be the word "max").
fn group_limit(groups: &str, root: &Path) -> Option<u64> {
    let mut lowest: Option<u64> = None;
    for line in groups.lines() {
        let mut fields = line.splitn(3, ':').skip(1);
        let (Some(controllers), Some(path)) = (fields.next(), fields.next()) else { continue };
        let (top, file) = match controllers {
            "" => (root.to_owned(), "memory.max"),
            list if list.split(',').any(|c| c == "memory") => (root.join("memory"), "memory.limit_in_bytes"),
            _ => continue,
        };
        // Inside a container the path may be one of the machine, that is not there.
        let inner = Path::new(path.trim_start_matches('/'));
        for group in inner.ancestors() {
            let text = std::fs::read_to_string(top.join(group).join(file)).unwrap_or_default();
            lowest = lowest.into_iter().chain(text.trim().parse().ok()).min();
        }
    }
    lowest
}

/// Readable and writable pages, zeroed at first, unmapped when dropped: anonymous and private, or of a memory file.
#[derive(Debug)]
pub struct Mapping {
    start: NonNull<u8>,
    bytes: usize,
}

// SAFETY: a mapping belongs to the process, not to a thread, and the value owns its addresses alone.
unsafe impl Send for Mapping {}
// SAFETY: the methods give out addresses, never references; who dereferences them answers for races.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps `bytes` (a multiple of the page size, not 0) at a multiple of `alignment` (a power of two).
    ///
    /// # Errors
    /// The system has no room, or the sizes are not as said.
    pub fn anonymous(bytes: usize, alignment: usize) -> Result<Mapping, OsError> {
        let page = page_size();
        let invalid = OsError::Call { call: "mmap", code: Errno::INVAL.raw_os_error() };
        if bytes == 0 || !bytes.is_multiple_of(page) || !alignment.is_power_of_two() {
            return Err(invalid);
        }
        // Room to move the start up to the alignment; what is left over goes back at once.
        let slack = alignment.saturating_sub(page);
        let whole_bytes = bytes.checked_add(slack).ok_or(invalid)?;
        // SAFETY: a null hint without MAP_FIXED lets the kernel choose addresses that nothing uses.
        let whole = unsafe {
            mmap_anonymous(
                ptr::null_mut(),
                whole_bytes,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::PRIVATE,
            )
        }
        .map_err(|errno| OsError::Call { call: "mmap", code: errno.raw_os_error() })?;
        let head = whole.addr().next_multiple_of(alignment) - whole.addr();
        unmap(whole.cast(), head);
        unmap(whole.cast::<u8>().wrapping_add(head + bytes), slack - head);
        match NonNull::new(whole.cast::<u8>().wrapping_add(head)) {
            Some(start) => Ok(Mapping { start, bytes }),
            None => Err(OsError::Call { call: "mmap", code: 0 }),
        }
    }

    /// Maps `bytes` (a multiple of the page size, not 0) of a new memory file that cannot shrink, so that its
    /// pages stay. Gives the file too.
    ///
    /// # Errors
    /// As [`Mapping::anonymous`], or the system makes no such file.
    pub fn memory_file(bytes: usize) -> Result<(Mapping, Descriptor), OsError> {
        if bytes == 0 || !bytes.is_multiple_of(page_size()) {
            return Err(OsError::Call { call: "memfd_create", code: Errno::INVAL.raw_os_error() });
        }
        let file = linux_dma_buf::memory_file(bytes as u64)?;
        // SAFETY: a null hint without MAP_FIXED lets the kernel choose addresses that nothing uses, and the file
        // is as long as the mapping and cannot shrink.
        let start = unsafe {
            mmap(ptr::null_mut(), bytes, ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED, file.file(), 0)
        }
        .map_err(|errno| OsError::Call { call: "mmap", code: errno.raw_os_error() })?;
        match NonNull::new(start.cast()) {
            Some(start) => Ok((Mapping { start, bytes }, file)),
            None => Err(OsError::Call { call: "mmap", code: 0 }),
        }
    }

    /// Maps `bytes` (a multiple of the page size, not 0) of a file from `offset` on, a multiple of the page size too. Pages
    /// that are written become the process's own. Who reads the pages answers for the file: it may change, and a page that
    /// it no longer has is a fault.
    ///
    /// # Errors
    /// As [`Mapping::anonymous`], or the file system maps no files.
    pub fn of_file(file: &File, offset: u64, bytes: usize) -> Result<Mapping, OsError> {
        // SAFETY: a null hint without MAP_FIXED lets the kernel choose addresses that nothing uses.
        let start = unsafe {
            mmap(ptr::null_mut(), bytes, ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE, file, offset)
        }
        .map_err(|errno| OsError::Call { call: "mmap", code: errno.raw_os_error() })?;
        match NonNull::new(start.cast()) {
            Some(start) => Ok(Mapping { start, bytes }),
            None => Err(OsError::Call { call: "mmap", code: 0 }),
        }
    }

    /// First byte.
    pub fn as_ptr(&self) -> NonNull<u8> {
        self.start
    }

    /// Size, a multiple of the page size.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Cuts the mapping in two, each unmapped by itself.
    ///
    /// # Errors
    /// The mapping, as it was: `at` is no multiple of the page size, or not inside.
    pub fn split(self, at: usize) -> Result<(Mapping, Mapping), Mapping> {
        if at == 0 || at >= self.bytes || !at.is_multiple_of(page_size()) {
            return Err(self);
        }
        let (start, rest) = (self.start, self.bytes - at);
        std::mem::forget(self);
        // SAFETY: `at` lies inside the mapping.
        let second = unsafe { start.add(at) };
        Ok((Mapping { start, bytes: at }, Mapping { start: second, bytes: rest }))
    }

    /// Gives advice on the whole mapping.
    ///
    /// # Errors
    /// The kernel was built without it or refuses it; the mapping is as good as before.
    pub fn advise(&self, advice: Advice) -> Result<(), OsError> {
        let advice = match advice {
            Advice::HugePages => MmAdvice::LinuxHugepage,
            Advice::DontFork => MmAdvice::LinuxDontFork,
            Advice::NotNow => MmAdvice::LinuxDontNeed,
        };
        // SAFETY: the range is this mapping. Of pages that were not written no advice changes what bytes read as; pages
        // of files are given back by an owner that lends none for writing.
        unsafe { madvise(self.start.as_ptr().cast(), self.bytes, advice) }
            .map_err(|errno| OsError::Call { call: "madvise", code: errno.raw_os_error() })
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        unmap(self.start.as_ptr(), self.bytes);
    }
}

/// Unmaps pages of a mapping this module made and that nothing uses any more.
fn unmap(start: *mut u8, bytes: usize) {
    if bytes > 0 {
        // SAFETY: callers pass whole pages inside a mapping they own, and give up the addresses.
        let done = unsafe { munmap(start.cast::<c_void>(), bytes) };
        if let Err(errno) = done {
            // Splitting a mapping can meet the limit on mappings; the pages then live on, unused.
            tracing::warn!(bytes, %errno, "munmap failed");
        }
    }
}

/// Opens an open file once more, for reads past the page cache; `None` where the file system does not
/// offer them. Goes by descriptor, so a path that changes hands meanwhile does not matter.
pub fn open_direct(file: &File) -> Option<File> {
    let path = format!("/proc/self/fd/{}", file.as_raw_fd());
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::DIRECT;
    rustix::fs::open(path, flags, Mode::empty()).ok().map(File::from)
}

pub(super) fn process_map(window: ByteRange) -> Result<Vec<MapEntry>, OsError> {
    let failed = |call| move |e: io::Error| OsError::Call { call, code: e.raw_os_error().unwrap_or(0) };
    let file = File::open(MAPS).map_err(failed("open of the process map"))?;
    parse_maps(BufReader::with_capacity(64 << 10, file), window, failed("read of the process map"))
}

fn parse_maps(
    mut text: impl BufRead,
    window: ByteRange,
    failed: impl Fn(io::Error) -> OsError,
) -> Result<Vec<MapEntry>, OsError> {
    let mut entries = Vec::new();
    let mut line = Vec::new();
    loop {
        line.clear();
        if text.read_until(b'\n', &mut line).map_err(&failed)? == 0 {
            return Ok(entries);
        }
        if line.last() == Some(&b'\n') {
            line.pop();
        }
        let range = parse_range(&line).ok_or_else(|| bad(&line))?;
        // The kernel lists mappings in ascending order.
        if range.start >= window.end {
            return Ok(entries);
        }
        if range.overlaps(window) {
            entries.push(parse_line(&line).ok_or_else(|| bad(&line))?);
        }
    }
}

fn bad(line: &[u8]) -> OsError {
    let shown = line.get(..line.len().min(120)).unwrap_or_default();
    OsError::BadMap { line: String::from_utf8_lossy(shown).into_owned() }
}

fn parse_range(line: &[u8]) -> Option<ByteRange> {
    let field = line.split(|byte| *byte == b' ').next()?;
    let (start, end) = std::str::from_utf8(field).ok()?.split_once('-')?;
    let hex = |digits: &str| {
        // `from_str_radix` would take a sign.
        digits.bytes().all(|b| b.is_ascii_hexdigit()).then(|| u64::from_str_radix(digits, 16).ok())?
    };
    let (start, end) = (hex(start)?, hex(end)?);
    (start < end).then(|| ByteRange::new(start, end))
}

/// `start-end perms offset dev inode path`; the path starts at a column and may hold anything.
fn parse_line(line: &[u8]) -> Option<MapEntry> {
    let range = parse_range(line)?;
    let mut rest = line;
    let mut fields = [&[] as &[u8]; 5];
    for field in &mut fields {
        rest = rest.trim_ascii_start();
        let end = rest.iter().position(|byte| *byte == b' ').unwrap_or(rest.len());
        (*field, rest) = rest.split_at_checked(end)?;
        if field.is_empty() {
            return None;
        }
    }
    let [_, permissions, _, _, _] = fields;
    let [read, write, _, sharing] = *permissions else { return None };
    let flag = |byte, yes| match byte {
        b'-' => Some(false),
        _ if byte == yes => Some(true),
        _ => None,
    };
    let shared = match sharing {
        b's' => true,
        b'p' => false,
        _ => return None,
    };
    let path = unescape(rest.trim_ascii_start());
    Some(MapEntry {
        range,
        readable: flag(read, b'r')?,
        writable: flag(write, b'w')?,
        shared,
        backing: classify(&path, shared),
    })
}

/// The kernel writes a line break in a path as `\012`, and nothing else specially.
fn unescape(path: &[u8]) -> String {
    String::from_utf8_lossy(path).replace("\\012", "\n")
}

fn classify(path: &str, shared: bool) -> Backing {
    const DELETED: &str = " (deleted)";
    match path {
        "" => Backing::Anonymous,
        "[heap]" => Backing::Heap,
        // Shared anonymous memory is a nameless file of the kernel's; `shared` says what matters.
        "/dev/zero (deleted)" if shared => Backing::Anonymous,
        _ if path == "[stack]" || path.starts_with("[stack:") => Backing::Stack,
        _ if path.starts_with("[anon:") || path.starts_with("[anon_shmem:") => Backing::Anonymous,
        _ if path.starts_with("/memfd:") => Backing::Memfd,
        _ if path.starts_with('/') => match path.strip_suffix(DELETED) {
            Some(path) => Backing::File { path: path.to_owned(), deleted: true },
            None => Backing::File { path: path.to_owned(), deleted: false },
        },
        _ => Backing::Special(path.to_owned()),
    }
}

/// Mappings of kinds that the crate itself never makes, for tests of the import policy.
#[cfg(test)]
pub(crate) mod testing {
    use super::*;

    /// Maps the first `bytes` of a file, never to be written through when not `writable`.
    pub(crate) fn map_file(file: &File, bytes: usize, writable: bool, shared: bool) -> Mapping {
        let protection = if writable { ProtFlags::READ | ProtFlags::WRITE } else { ProtFlags::READ };
        let flags = if shared { MapFlags::SHARED } else { MapFlags::PRIVATE };
        // SAFETY: the kernel chooses the addresses; tests read the map, not the bytes.
        let start = unsafe { mmap(ptr::null_mut(), bytes, protection, flags, file, 0) }.unwrap();
        Mapping { start: NonNull::new(start.cast()).unwrap(), bytes }
    }

    /// Maps anonymous memory with these rights.
    pub(crate) fn map_anonymous(bytes: usize, protection: ProtFlags, shared: bool) -> Mapping {
        let flags = if shared { MapFlags::SHARED } else { MapFlags::PRIVATE };
        // SAFETY: the kernel chooses the addresses; tests read the map, not the bytes.
        let start = unsafe { mmap_anonymous(ptr::null_mut(), bytes, protection, flags) }.unwrap();
        Mapping { start: NonNull::new(start.cast()).unwrap(), bytes }
    }

    /// A memory file of this size.
    pub(crate) fn memfd(bytes: u64) -> File {
        let fd = rustix::fs::memfd_create("onepool-test", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
        let file = File::from(fd);
        file.set_len(bytes).unwrap();
        file
    }

    /// Unmaps the page at this offset, which leaves a hole in the mapping.
    pub(crate) fn punch(mapping: &Mapping, offset: usize) {
        unmap(mapping.as_ptr().as_ptr().wrapping_add(offset), page_size());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str, window: ByteRange) -> Result<Vec<MapEntry>, OsError> {
        parse_maps(text.as_bytes(), window, |e| OsError::Call {
            call: "test",
            code: e.raw_os_error().unwrap_or(0),
        })
    }

    const MAP: &str = "\
55d0c0a00000-55d0c0a21000 rw-p 00000000 00:00 0                          [heap]
7f0000000000-7f0000021000 rw-p 00000000 00:00 0 \n7f0000030000-7f0000040000 r--p 00001000 fe:01 1234  /usr/lib/lib c.so
7f0000050000-7f0000051000 rw-s 00000000 00:01 5 /memfd:pool (deleted)
7f0000060000-7f0000061000 rw-s 00000000 00:01 6 /dev/zero (deleted)
7f0000070000-7f0000071000 ---p 00000000 00:00 0
7f0000080000-7f0000081000 rw-p 00000000 00:0f 7 /anon_hugepage (deleted)
7f0000090000-7f0000091000 rw-p 00000000 00:00 0 [anon:jemalloc]
7ffd00000000-7ffd00021000 rw-p 00000000 00:00 0                          [stack]
7ffd00030000-7ffd00032000 r-xp 00000000 00:00 0                          [vdso]
ffffffffff600000-ffffffffff601000 --xp 00000000 00:00 0                  [vsyscall]
";

    /// Both orders in which Linux numbers the processors of cores.
    #[test]
    fn processors_of_one_core_count_once() {
        let neighbours = |i: usize| format!("{}-{}\n", i & !1, i | 1);
        let halves = |i: usize| format!("{},{}\n", i % 8, i % 8 + 8);
        let alone = |i: usize| format!("{i}\n");
        let machine = |processors: usize, name: &str, list: &dyn Fn(usize) -> String| {
            let root = tempfile::tempdir().unwrap();
            for i in 0..processors {
                let folder = root.path().join(format!("cpu{i}/topology"));
                std::fs::create_dir_all(&folder).unwrap();
                std::fs::write(folder.join(name), list(i)).unwrap();
            }
            root
        };
        let cores =
            |root: &tempfile::TempDir, allowed: &[usize]| cores_of(allowed.iter().copied(), root.path());
        let all = |n: usize| (0..n).collect::<Vec<_>>();
        // Neighbours of 8 and of 16 cores.
        assert_eq!(cores(&machine(16, "core_cpus_list", &neighbours), &all(16)), Some(8));
        assert_eq!(cores(&machine(32, "core_cpus_list", &neighbours), &all(32)), Some(16));
        // The second processors after all the first ones, as an older kernel tells it.
        let desktop = machine(16, "thread_siblings_list", &halves);
        assert_eq!(cores(&desktop, &all(16)), Some(8));
        // Both processors of one core, and one of each of two.
        assert_eq!(cores(&desktop, &[3, 11]), Some(1));
        assert_eq!(cores(&desktop, &[3, 4]), Some(2));
        // One processor a core, and a system that does not tell.
        assert_eq!(cores(&machine(4, "core_cpus_list", &alone), &all(4)), Some(4));
        assert_eq!(cores(&desktop, &[3, 99]), None);
    }

    #[test]
    fn every_kind_of_line_is_read() {
        let entries = parse(MAP, ByteRange::ALL).unwrap();
        let backings: Vec<_> = entries.iter().map(|entry| entry.backing.clone()).collect();
        let file = |path: &str, deleted| Backing::File { path: path.to_owned(), deleted };
        let expected = [
            Backing::Heap,
            Backing::Anonymous,
            file("/usr/lib/lib c.so", false),
            Backing::Memfd,
            Backing::Anonymous,
            Backing::Anonymous,
            file("/anon_hugepage", true),
            Backing::Anonymous,
            Backing::Stack,
            Backing::Special("[vdso]".to_owned()),
            Backing::Special("[vsyscall]".to_owned()),
        ];
        assert_eq!(backings, expected);
        assert!(entries[4].shared && entries[4].writable);
        assert!(!entries[5].readable && !entries[5].writable);
        assert_eq!(entries[2].range, ByteRange::new(0x7f00_0003_0000, 0x7f00_0004_0000));
    }

    #[test]
    fn only_the_window_is_kept_and_the_rest_not_read() {
        let window = ByteRange::new(0x7f00_0002_0fff, 0x7f00_0003_0001);
        let text = format!("{MAP}this line is never reached");
        assert_eq!(parse(&text, window).unwrap().len(), 2);
        assert!(parse("", window).unwrap().is_empty());
    }

    #[test]
    fn hostile_lines_are_errors() {
        let lines = [
            "\n",
            "zz-yy rw-p 0 0 0",
            "1000 rw-p 0 0 0",
            "2000-1000 rw-p 0 0 0",
            "1000-1000 rw-p 0 0 0",
            "+1000-2000 rw-p 0 0 0",
            "1000-11112222333344445 rw-p 0 0 0",
            "1000-2000",
            "1000-2000 rw-p",
            "1000-2000 rw- 0 0 0",
            "1000-2000 xw-p 0 0 0",
            "1000-2000 rw-q 0 0 0",
            "1000-2000 rw-pp 0 0 0",
            "1000-2000 rw-p 0 0",
        ];
        for line in lines {
            assert!(matches!(parse(line, ByteRange::ALL), Err(OsError::BadMap { .. })), "{line:?}");
        }
        let long = format!("{}\n", "x".repeat(1 << 20));
        assert!(matches!(parse(&long, ByteRange::ALL), Err(OsError::BadMap { line }) if line.len() == 120));
    }

    #[test]
    fn odd_paths_are_kept() {
        let text = b"1000-2000 rw-p 0 0 1 /a\\012b \xff (deleted)\n".as_slice();
        let entries = parse_maps(text, ByteRange::ALL, |_| OsError::Unsupported { what: "io" }).unwrap();
        let expected = Backing::File { path: "/a\nb \u{fffd}".to_owned(), deleted: true };
        assert_eq!(entries[0].backing, expected);
        let odd = parse("1000-2000 rw-p 0 0 1 anon_inode:[perf_event]\n", ByteRange::ALL).unwrap();
        assert_eq!(odd[0].backing, Backing::Special("anon_inode:[perf_event]".to_owned()));
    }

    #[test]
    fn mappings_are_aligned_zeroed_and_listed() {
        let huge = huge_page_size();
        let mapping = Mapping::anonymous(3 * page_size(), huge).unwrap();
        let start = mapping.as_ptr().addr().get();
        assert_eq!(start % huge, 0);
        let window = ByteRange::from_offset(start as u64, mapping.bytes() as u64).unwrap();
        let entries = process_map(window).unwrap();
        let covered: u64 =
            entries.iter().filter_map(|entry| entry.range.intersect(window)).map(ByteRange::bytes).sum();
        assert_eq!(covered, window.bytes());
        assert!(
            entries
                .iter()
                .all(|entry| entry.writable && !entry.shared && entry.backing == Backing::Anonymous)
        );
        mapping.advise(Advice::DontFork).unwrap();
        drop(mapping);
    }

    #[test]
    fn impossible_mappings_are_errors() {
        let page = page_size();
        for (bytes, alignment) in
            [(0, page), (page + 1, page), (page, 3), (usize::MAX - page + 1, page), (1 << 60, page)]
        {
            assert!(matches!(Mapping::anonymous(bytes, alignment), Err(OsError::Call { call: "mmap", .. })));
        }
        let most = usize::MAX - page + 1;
        assert!(Mapping::anonymous(most, 2 << 20).is_err());
    }

    #[test]
    fn a_pointer_on_the_stack_is_in_the_map() {
        let local = [0u8; 64];
        let at = local.as_ptr().addr() as u64;
        let entries = process_map(ByteRange::new(at, at + 64)).unwrap();
        assert_eq!(entries.len(), 1);
        // A test thread's stack is an anonymous mapping; only the main thread has `[stack]`.
        assert!(matches!(entries[0].backing, Backing::Anonymous | Backing::Stack));
        assert!(entries[0].writable);
    }

    #[test]
    fn the_memory_of_the_machine_is_known() {
        let bytes = physical_memory().unwrap();
        assert!((1 << 24..1 << 48).contains(&bytes), "{bytes}");
        assert_eq!(parse_total("MemTotal:       16384 kB\nMemFree: 1 kB\n"), Some(16 << 20));
        for odd in ["", "MemTotal:", "MemTotal: x kB", "MemTotal: 18446744073709551615 kB", "MemFree: 1 kB"] {
            assert_eq!(parse_total(odd), None, "{odd:?}");
        }
    }

    #[test]
    fn control_groups_bound_the_memory() {
        let root = tempfile::tempdir().unwrap();
        let limit = |groups: &str| group_limit(groups, root.path());
        let write = |path: &str, text: &str| {
            let path = root.path().join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        };
        assert_eq!(limit("0::/a/b\n"), None);
        write("a/b/memory.max", "max\n");
        assert_eq!(limit("0::/a/b\n"), None);
        write("a/memory.max", "4096\n");
        assert_eq!(limit("0::/a/b\n"), Some(4096));
        write("a/b/memory.max", "1024\n");
        assert_eq!(limit("0::/a/b\n"), Some(1024));
        assert_eq!(limit("0::/not/there\n"), None);
        write("memory/c/memory.limit_in_bytes", "512\n");
        assert_eq!(limit("7:cpu,memory:/c\n3:pids:/c\n0::/a\n"), Some(512));
        assert_eq!(limit("nonsense\n:\n"), None);
    }
}
