//! Shared memory regions that clients register: mapped once, imported once on each device.

#![allow(unsafe_code, reason = "memory that other processes map too is lent to sessions")]

use std::collections::BTreeMap;
use std::fs::File;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, RwLock};

use memmap2::{MmapOptions, MmapRaw};
use onepool::device::{Buffer, Context, Lent};
use onepool::memory::import::ReadWrite;
use onepool::memory::range::ByteRange;
use onepool_core::sync::{lock, read, write};
use rustix::shm::{Mode, OFlags};
use tonic::Status;

use crate::datatype::shown;
use crate::error::invalid;

/// Longest name of a region and of its key, in bytes.
const LONGEST_NAME: usize = 255;

/// The registered regions, by name.
#[derive(Debug)]
pub(crate) struct Regions {
    named: RwLock<BTreeMap<String, Arc<Region>>>,
    next: AtomicU64,
    most: usize,
}

/// Part of a shared memory object, mapped.
#[derive(Debug)]
pub(crate) struct Region {
    /// No two regions of a server have the same.
    pub(crate) id: u64,
    pub(crate) name: String,
    pub(crate) key: String,
    /// Where it begins in the object, in bytes.
    pub(crate) offset: u64,
    pub(crate) bytes: u64,
    /// What the devices keep, so that the import of a range takes a share of it.
    #[expect(dead_code, reason = "kept for what dropping does")]
    imports: Vec<Buffer>,
    file: File,
    pages: Arc<MmapRaw>,
    gone: AtomicBool,
    /// Ranges that requests use, and whether they write them.
    used: Mutex<Vec<(ByteRange, bool)>>,
}

/// A range of a region.
#[derive(Clone, Debug)]
pub(crate) struct Range {
    pub(crate) region: Arc<Region>,
    pub(crate) range: ByteRange,
}

/// The right of a request to a range, given back when dropped.
#[derive(Debug)]
pub(crate) struct Turn {
    range: Range,
    writes: bool,
}

impl Regions {
    pub(crate) fn new(most: usize) -> Self {
        Regions { named: RwLock::default(), next: AtomicU64::new(1), most }
    }

    /// Maps `bytes` bytes from `offset` on of the object `key`, and imports them on the devices.
    pub(crate) fn register(
        &self,
        name: &str,
        key: &str,
        offset: u64,
        bytes: u64,
        devices: &[Context],
    ) -> Result<(), Status> {
        if name.is_empty() || name.len() > LONGEST_NAME {
            return Err(invalid(format!("name has {} bytes, expected 1 to {LONGEST_NAME}", name.len())));
        }
        self.room(name)?;
        let (file, pages) = map(key, offset, bytes)?;
        let id = self.next.fetch_add(1, Ordering::Relaxed);
        let imports = devices.iter().filter_map(|device| import(&pages, name, device)).collect();
        let region = Region {
            id,
            name: name.to_owned(),
            key: key.to_owned(),
            offset,
            bytes,
            imports,
            file,
            pages,
            gone: AtomicBool::new(false),
            used: Mutex::default(),
        };
        let mut named = write(&self.named);
        // Another request may have been faster.
        if named.contains_key(name) {
            return Err(taken(name));
        }
        named.insert(name.to_owned(), Arc::new(region));
        Ok(())
    }

    fn room(&self, name: &str) -> Result<(), Status> {
        let named = read(&self.named);
        if named.contains_key(name) {
            return Err(taken(name));
        }
        if named.len() >= self.most {
            return Err(Status::resource_exhausted(format!("regions: {} are registered", self.most)));
        }
        Ok(())
    }

    /// Forgets a region, or all where `name` is empty. Requests that use them finish.
    pub(crate) fn unregister(&self, name: &str) -> Result<Vec<Arc<Region>>, Status> {
        let mut named = write(&self.named);
        let gone: Vec<Arc<Region>> = if name.is_empty() {
            std::mem::take(&mut *named).into_values().collect()
        } else {
            vec![named.remove(name).ok_or_else(|| unknown(name))?]
        };
        gone.iter().for_each(|region| region.gone.store(true, Ordering::Release));
        Ok(gone)
    }

    /// The region `name`, or all where it is empty.
    pub(crate) fn list(&self, name: &str) -> Result<Vec<Arc<Region>>, Status> {
        if name.is_empty() {
            let named = read(&self.named);
            return Ok(named.values().cloned().collect());
        }
        Ok(vec![self.find(name)?])
    }

    /// How many are registered.
    pub(crate) fn count(&self) -> usize {
        read(&self.named).len()
    }

    fn find(&self, name: &str) -> Result<Arc<Region>, Status> {
        let named = read(&self.named);
        named.get(name).cloned().ok_or_else(|| unknown(name))
    }

    /// `bytes` bytes of region `name` from `offset` on.
    pub(crate) fn range(&self, name: &str, offset: u64, bytes: u64) -> Result<Range, Status> {
        let region = self.find(name)?;
        let range = ByteRange::from_offset(offset, bytes).filter(|range| range.end <= region.bytes);
        let Some(range) = range else {
            return Err(invalid(format!(
                "bytes {offset} to {offset}+{bytes} leave region {name:?}, which has {}",
                region.bytes
            )));
        };
        region.still_there()?;
        Ok(Range { region, range })
    }
}

fn taken(name: &str) -> Status {
    Status::already_exists(format!("region {name:?} is registered: unregister it first"))
}

fn unknown(name: &str) -> Status {
    Status::not_found(format!("there is no shared memory region {:?}: register it first", shown(name)))
}

/// Opens and maps part of an object.
fn map(key: &str, offset: u64, bytes: u64) -> Result<(File, Arc<MmapRaw>), Status> {
    let bare = key.strip_prefix('/').unwrap_or(key);
    if bare.is_empty()
        || key.len() > LONGEST_NAME
        || bare.contains(['/', '\0'])
        || bare == "."
        || bare == ".."
    {
        return Err(invalid(format!("key {:?} is no name of a shared memory object", shown(key))));
    }
    let object = rustix::shm::open(format!("/{bare}"), OFlags::RDWR, Mode::empty()).map_err(|error| {
        let said = format!("key {:?}: {error}", shown(key));
        match error {
            rustix::io::Errno::NOENT => Status::not_found(said),
            rustix::io::Errno::ACCESS | rustix::io::Errno::PERM => Status::permission_denied(said),
            rustix::io::Errno::MFILE | rustix::io::Errno::NFILE => Status::resource_exhausted(said),
            _ => invalid(said),
        }
    })?;
    let file = File::from(object);
    let size = file.metadata().map_err(|error| invalid(format!("key {key:?}: {error}")))?.len();
    let end = offset.checked_add(bytes).filter(|end| *end <= size && bytes > 0);
    let (Some(_), Ok(len)) = (end, usize::try_from(bytes)) else {
        return Err(invalid(format!(
            "byte_size {bytes} from offset {offset} on is not inside object {key:?}, which has {size} bytes"
        )));
    };
    let pages = MmapOptions::new().offset(offset).len(len).map_raw(&file);
    let pages = pages.map_err(|error| Status::resource_exhausted(format!("key {key:?}: {error}")))?;
    Ok((file, Arc::new(pages)))
}

/// Memory of the mapping for a session; it stays mapped until the session and its devices let go.
fn lend(pages: &Arc<MmapRaw>, range: ByteRange, access: ReadWrite) -> Lent<'static> {
    let kept = Arc::clone(pages);
    let start = pages.as_mut_ptr().wrapping_add(range.start as usize);
    let start = NonNull::new(start).unwrap_or(NonNull::dangling());
    // SAFETY: `kept` keeps the range mapped, readable and writable until the release is called; callers made sure that it
    // lies in the mapping, and a `Turn` keeps other requests of this server away. Other processes are asked to leave the
    // bytes alone while a request uses them, and not to shrink the object.
    unsafe { Lent::raw(start, range.bytes(), access, Box::new(move || drop(kept))) }
}

/// Imports the mapping on a device that works on pages.
fn import(pages: &Arc<MmapRaw>, name: &str, device: &Context) -> Option<Buffer> {
    device.info().import.as_ref().filter(|rules| rules.alignment > 1)?;
    let whole = ByteRange::up_to(pages.len() as u64);
    match lend(pages, whole, ReadWrite::ReadWrite).import(device) {
        Ok(buffer) => Some(buffer),
        Err(error) => {
            tracing::info!(region = name, device = device.info().name, %error, "not imported");
            None
        }
    }
}

impl Region {
    fn still_there(&self) -> Result<(), Status> {
        let needed = self.offset + self.bytes;
        match self.file.metadata() {
            Ok(file) if file.len() >= needed => Ok(()),
            _ => Err(Status::unavailable(format!(
                "object {:?} of region {:?} has shrunk below {needed} bytes: register it again",
                self.key, self.name
            ))),
        }
    }

    /// Whether it was unregistered.
    pub(crate) fn is_gone(&self) -> bool {
        self.gone.load(Ordering::Acquire)
    }

    fn used(&self) -> MutexGuard<'_, Vec<(ByteRange, bool)>> {
        lock(&self.used)
    }
}

impl Range {
    /// The range as memory for a session.
    pub(crate) fn lend(&self, access: ReadWrite) -> Lent<'static> {
        lend(&self.region.pages, self.range, access)
    }

    /// Takes the range for a request.
    pub(crate) fn take(&self, writes: bool) -> Result<Turn, Status> {
        let mut used = self.region.used();
        let held = |(range, written): &(ByteRange, bool)| range.overlaps(self.range) && (writes || *written);
        if let Some((other, _)) = used.iter().find(|entry| held(entry)) {
            return Err(Status::unavailable(format!(
                "bytes {other} of region {:?} are in use by another request",
                self.region.name
            )));
        }
        used.push((self.range, writes));
        drop(used);
        Ok(Turn { range: self.clone(), writes })
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        let mut used = self.range.region.used();
        if let Some(at) = used.iter().position(|entry| *entry == (self.range.range, self.writes)) {
            used.swap_remove(at);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tonic::Code;

    /// A shared memory object that is removed when the test ends.
    struct Object(String);

    impl Object {
        fn new(name: &str, bytes: u64) -> (Object, File) {
            let name = format!("/onepool-serve-{name}-{}", std::process::id());
            let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL;
            let file = File::from(rustix::shm::open(&name, flags, Mode::RUSR | Mode::WUSR).unwrap());
            file.set_len(bytes).unwrap();
            (Object(name), file)
        }
    }

    impl Drop for Object {
        fn drop(&mut self) {
            rustix::shm::unlink(&self.0).unwrap();
        }
    }

    #[test]
    fn what_cannot_be_registered_is_told_by_its_argument() {
        let (object, _file) = Object::new("register", 8192);
        let regions = Regions::new(2);
        let register = |name: &str, key: &str, offset, bytes| {
            regions
                .register(name, key, offset, bytes, &[])
                .map_err(|status| (status.code(), status.message().to_owned()))
        };
        let code = |result: Result<(), (Code, String)>| result.unwrap_err().0;
        assert_eq!(code(register("", &object.0, 0, 8)), Code::InvalidArgument);
        assert_eq!(code(register("a", "/onepool-no-such-object", 0, 8)), Code::NotFound);
        for key in ["", "/", "..", "a/b", "/../etc/passwd", "a\0b"] {
            assert_eq!(code(register("a", key, 0, 8)), Code::InvalidArgument, "{key:?}");
        }
        for (offset, bytes) in [(0, 8193), (8192, 1), (1, u64::MAX), (u64::MAX, 1), (0, 0)] {
            let (code, said) = register("a", &object.0, offset, bytes).unwrap_err();
            assert!(code == Code::InvalidArgument && said.contains("byte_size"), "{said}");
        }
        register("a", &object.0, 100, 8000).unwrap();
        assert_eq!(code(register("a", &object.0, 0, 8)), Code::AlreadyExists);
        register("b", object.0.trim_start_matches('/'), 0, 8192).unwrap();
        assert_eq!(code(register("c", &object.0, 0, 8)), Code::ResourceExhausted);
        assert_eq!((regions.count(), regions.list("").unwrap().len()), (2, 2));
        assert_eq!(regions.unregister("c").unwrap_err().code(), Code::NotFound);
        let gone = regions.unregister("a").unwrap();
        assert!(gone[0].is_gone() && regions.list("a").is_err());
        assert_eq!(regions.unregister("").unwrap().len(), 1);
    }

    #[test]
    fn a_range_is_inside_its_region_and_of_one_writer() {
        let (object, file) = Object::new("ranges", 8192);
        let regions = Regions::new(8);
        regions.register("a", &object.0, 4096, 4096, &[]).unwrap();
        for (offset, bytes) in [(0, 4097), (4096, 1), (u64::MAX, 2)] {
            assert_eq!(regions.range("a", offset, bytes).unwrap_err().code(), Code::InvalidArgument);
        }
        assert_eq!(regions.range("none", 0, 1).unwrap_err().code(), Code::NotFound);
        let [first, second] = [(0, 64), (32, 64)].map(|(at, bytes)| regions.range("a", at, bytes).unwrap());
        let reading = first.take(false).unwrap();
        let also = second.take(false).unwrap();
        assert_eq!(second.take(true).unwrap_err().code(), Code::Unavailable);
        drop((reading, also));
        let writing = second.take(true).unwrap();
        assert_eq!(first.take(false).unwrap_err().code(), Code::Unavailable);
        drop(writing);
        first.lend(ReadWrite::ReadWrite).write_from(0, &[7; 64]).unwrap();
        let mut bytes = [0; 64];
        std::os::unix::fs::FileExt::read_exact_at(&file, &mut bytes, 4096).unwrap();
        assert_eq!(bytes, [7; 64]);
        file.set_len(4096).unwrap();
        let shrunk = regions.range("a", 0, 64).unwrap_err();
        assert!(shrunk.code() == Code::Unavailable && shrunk.message().contains("shrunk"), "{shrunk}");
    }
}
