//! Borrowed memory, lent to the device for the length of a scope.

#![allow(unsafe_code, reason = "a borrowed slice becomes an import that ends with the scope")]

use std::fmt;
use std::marker::PhantomData;
use std::ops::Deref;
use std::process::abort;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use bytemuck::Pod;

use super::buffer::{Buffer, Lease, Pin};
use super::context::Context;
use super::core::{Core, Flight};
use super::error::{Error, Problem, UsageError};
use super::import::{Source, hold, import};
use crate::backend::DeviceError;
use onepool_core::memory::import::{ReadWrite, Refusal, enclosing, sharing_pages};
use onepool_core::memory::os::page_size;
use onepool_core::memory::range::ByteRange;
use onepool_core::sync::lock;

/// Where borrowed memory may be lent to a device; made by [`scope`].
pub struct Scope<'scope, 'env: 'scope> {
    ending: Ending,
    // Invariant in both, as `std::thread::Scope`: neither may be shrunk or grown by the closure.
    scope: PhantomData<&'scope mut &'scope ()>,
    env: PhantomData<&'env mut &'env ()>,
}

/// A buffer over borrowed memory; it cannot leave its scope.
#[derive(Debug)]
pub struct ScopedBuffer<'scope, T> {
    buffer: Buffer,
    scope: PhantomData<&'scope mut [T]>,
}

/// Borrowed memory that several devices may import, and the host may copy while none did; made by
/// [`Scope::lend`], [`Scope::lend_mut`] and [`Lent::raw`].
pub struct Lent<'scope> {
    lender: Lender<'scope>,
    address: NonNull<u8>,
    bytes: u64,
    access: ReadWrite,
    /// Whether a device has it; held while the host copies.
    imported: Mutex<bool>,
}

// SAFETY: it stands for a borrow of plain bytes that outlives it, or for a promise as good; the host's accesses are under
// the lock, and a device's accesses exclude them.
unsafe impl Send for Lent<'_> {}
// SAFETY: as above.
unsafe impl Sync for Lent<'_> {}

/// Pages that several lent memories share, imported as one; made by [`Lent::hold_together`].
pub struct HeldPages<'scope> {
    _leases: Vec<Arc<Lease>>,
    scope: PhantomData<&'scope ()>,
}

/// Who answers for lent memory.
enum Lender<'scope> {
    Scope(&'scope Ending),
    /// A foreign caller, who is told when the last share of this is gone.
    Foreign(Arc<Release>),
}

impl<'scope> Lender<'scope> {
    fn scope(&self) -> Option<&'scope Ending> {
        match self {
            Lender::Scope(ending) => Some(ending),
            Lender::Foreign(_) => None,
        }
    }

    fn release(&self) -> Option<Arc<Release>> {
        match self {
            Lender::Scope(_) => None,
            Lender::Foreign(release) => Some(Arc::clone(release)),
        }
    }
}

/// Calls its function when it is dropped.
struct Release(Mutex<Option<Box<dyn FnOnce() + Send>>>);

impl Drop for Release {
    fn drop(&mut self) {
        if let Some(release) = lock(&self.0).take() {
            release();
        }
    }
}

/// Ends the scope's imports, also when the closure panics.
struct Ending {
    cores: Vec<Arc<Core>>,
    id: u64,
    leases: Mutex<Vec<Arc<Lease>>>,
}

impl Context {
    /// [`scope`] for this device alone.
    pub fn scope<'env, R>(&self, f: impl for<'s> FnOnce(&'s Scope<'s, 'env>) -> R) -> R {
        scope(std::slice::from_ref(self), f)
    }
}

/// Calls `f` with a scope in which borrowed slices can be lent to devices. Returns once the devices have
/// finished with them and let go of their memory, also when `f` panics; handles of the buffers that
/// were cloned out of the scope are refused from then on.
///
/// If a driver can neither finish the work nor declare its device lost, the process is aborted: the borrow
/// must not end while the device may still write.
pub fn scope<'env, R>(contexts: &[Context], f: impl for<'s> FnOnce(&'s Scope<'s, 'env>) -> R) -> R {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    let ending = Ending {
        cores: contexts.iter().map(|context| Arc::clone(context.core())).collect(),
        id: NEXT.fetch_add(1, Ordering::Relaxed),
        leases: Mutex::default(),
    };
    let scope = Scope { ending, scope: PhantomData, env: PhantomData };
    f(&scope)
}

impl<'scope, 'env> Scope<'scope, 'env> {
    /// Lends a slice for reading and writing.
    ///
    /// # Errors
    /// An [`ImportError`](onepool_core::memory::import::ImportError) with the reason, or the device's.
    pub fn import_mut<T: Pod>(&'scope self, slice: &'env mut [T]) -> Result<ScopedBuffer<'scope, T>, Error> {
        let bytes = size_of_val(slice) as u64;
        self.import_first(NonNull::from(slice).cast(), bytes, ReadWrite::ReadWrite)
    }

    /// Lends a slice for reading; a command that writes it is refused.
    ///
    /// # Errors
    /// As [`Scope::import_mut`].
    pub fn import<T: Pod>(&'scope self, slice: &'env [T]) -> Result<ScopedBuffer<'scope, T>, Error> {
        let bytes = size_of_val(slice) as u64;
        self.import_first(NonNull::from(slice).cast(), bytes, ReadWrite::Read)
    }

    /// Lends a slice for reading, to any device of the scope.
    pub fn lend<T: Pod>(&'scope self, slice: &'env [T]) -> Lent<'scope> {
        self.lent(NonNull::from(slice).cast(), size_of_val(slice) as u64, ReadWrite::Read)
    }

    /// Lends a slice for reading and writing, to any device of the scope.
    pub fn lend_mut<T: Pod>(&'scope self, slice: &'env mut [T]) -> Lent<'scope> {
        let bytes = size_of_val(slice) as u64;
        self.lent(NonNull::from(slice).cast(), bytes, ReadWrite::ReadWrite)
    }

    fn lent(&'scope self, address: NonNull<u8>, bytes: u64, access: ReadWrite) -> Lent<'scope> {
        Lent { lender: Lender::Scope(&self.ending), address, bytes, access, imported: Mutex::new(false) }
    }

    fn import_first<T>(
        &'scope self,
        address: NonNull<u8>,
        bytes: u64,
        access: ReadWrite,
    ) -> Result<ScopedBuffer<'scope, T>, Error> {
        let core = self.ending.cores.first().ok_or_else(|| foreign("scope"))?;
        let buffer = self.ending.import(core, address, bytes, access)?;
        Ok(ScopedBuffer { buffer, scope: PhantomData })
    }
}

fn foreign(context: &'static str) -> UsageError {
    UsageError::new(context, Problem::Foreign { object: "context" })
}

impl Ending {
    /// The bytes are borrowed for longer than the scope, and the import ends within it.
    fn import(
        &self,
        core: &Arc<Core>,
        address: NonNull<u8>,
        bytes: u64,
        access: ReadWrite,
    ) -> Result<Buffer, Error> {
        let source = Source::new(address, bytes, access);
        let buffer = import(core, &mut Source { scope: Some(self.id), ..source })?;
        lock(&self.leases).push(Arc::clone(&buffer.lease));
        Ok(buffer)
    }
}

impl Lent<'static> {
    /// Memory that a foreign caller answers for. `release` is called once: when the host and every device have let go of
    /// the pages, which may be later than the last buffer when imports share them.
    ///
    /// # Safety
    /// Until `release` is called, the bytes stay mapped, readable and (for writing access) writable, and no one touches
    /// them while a submission or a copy that uses them is under way, except for reads in parallel with reads.
    pub unsafe fn raw(
        address: NonNull<u8>,
        bytes: u64,
        access: ReadWrite,
        release: Box<dyn FnOnce() + Send>,
    ) -> Lent<'static> {
        let lender = Lender::Foreign(Arc::new(Release(Mutex::new(Some(release)))));
        Lent { lender, address, bytes, access, imported: Mutex::new(false) }
    }
}

impl<'scope> Lent<'scope> {
    /// Imports as one what several of `parts` share pages of: a page is never imported twice, and memory from a heap
    /// begins amid the last page of its neighbour. Until what is returned is dropped, [`Lent::import`] of each such part
    /// takes a share of that import; each is released when the last share of all is gone. Where the device refuses that,
    /// and for parts of different lenders, nothing is imported, and [`Lent::import`] tells why.
    pub fn hold_together(parts: &[&Lent<'scope>], context: &Context) -> HeldPages<'scope> {
        let core = context.core();
        let Some(rules) = core.info.import.as_ref().filter(|rules| rules.alignment > 1) else {
            return HeldPages { _leases: Vec::new(), scope: PhantomData };
        };
        let pages = |part: &&Lent<'_>| enclosing(part.address(), part.bytes, rules, page_size() as u64).ok();
        let windows: Vec<_> = parts.iter().map(|part| pages(part).unwrap_or_default()).collect();
        let group = |group: Vec<usize>| {
            let parts: Vec<_> = group.iter().map(|part| parts[*part]).collect();
            Lent::hold_group(&parts, core).ok()
        };
        HeldPages {
            _leases: sharing_pages(&windows).into_iter().filter_map(group).collect(),
            scope: PhantomData,
        }
    }

    /// Imports from the first byte of `parts` to the last; their pages have no gap.
    fn hold_group(parts: &[&Lent<'scope>], core: &Arc<Core>) -> Result<Arc<Lease>, Error> {
        let Some(first) = parts.iter().min_by_key(|part| part.address()) else {
            return Err(Refusal::Empty.into());
        };
        let scope = first.lender.scope();
        if parts.iter().any(|part| part.lender.scope().map(|own| own.id) != scope.map(|own| own.id)) {
            return Err(foreign("hold_together").into());
        }
        if scope.is_some_and(|ending| !ending.cores.iter().any(|own| Arc::ptr_eq(own, core))) {
            return Err(foreign("hold_together").into());
        }
        let end = parts.iter().map(|part| part.address().saturating_add(part.bytes)).max();
        let bytes = end.map_or(0, |end| end - first.address());
        let writes = parts.iter().any(|part| part.access.writes());
        let access = if writes { ReadWrite::ReadWrite } else { ReadWrite::Read };
        let releases: Vec<_> = parts.iter().filter_map(|part| part.lender.release()).collect();
        let mut source = Source {
            scope: scope.map(|ending| ending.id),
            pin: Some(Pin::Release(Box::new(move || drop(releases)))),
            ..Source::new(first.address, bytes, access)
        };
        let lease = hold(core, &mut source)?;
        if let Some(ending) = scope {
            lock(&ending.leases).push(Arc::clone(&lease));
        }
        Ok(lease)
    }
}

impl Lent<'_> {
    /// The address of its first byte.
    pub fn address(&self) -> u64 {
        self.address.as_ptr().addr() as u64
    }

    /// Its length in bytes.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Imports it on a device, one of the scope if it is of one. From then on the host cannot copy it.
    ///
    /// # Errors
    /// An [`ImportError`](onepool_core::memory::import::ImportError) with the reason, [`UsageError`] for a device
    /// that is not of the scope, or the device's.
    pub fn import(&self, context: &Context) -> Result<Buffer, Error> {
        let mut imported = lock(&self.imported);
        let core = context.core();
        let buffer = match &self.lender {
            Lender::Scope(ending) => {
                if !ending.cores.iter().any(|own| Arc::ptr_eq(own, core)) {
                    return Err(foreign("import").into());
                }
                ending.import(core, self.address, self.bytes, self.access)?
            }
            Lender::Foreign(release) => {
                let share = Arc::clone(release);
                let release = Box::new(move || drop(share));
                // SAFETY: the caller of `Lent::raw` promised this until its own function is called, which is after the
                // last share of it is gone; this import holds one until it is over.
                unsafe { context.import_raw(self.address, self.bytes, self.access, release) }?
            }
        };
        *imported = true;
        Ok(buffer)
    }

    /// Copies bytes from `offset` on into `out`.
    ///
    /// # Errors
    /// [`Problem::OutOfBounds`], and [`Problem::Busy`] once a device has imported the memory.
    pub fn read_into(&self, offset: u64, out: &mut [u8]) -> Result<(), UsageError> {
        let imported = lock(&self.imported);
        let from = self.part("read_into", *imported, offset, out.len())?;
        // SAFETY: `part` found the bytes inside the borrow; no device has them, and the lock keeps other
        // writers of the host away. `out` is a slice of someone else's.
        unsafe { std::ptr::copy_nonoverlapping(from.as_ptr(), out.as_mut_ptr(), out.len()) };
        Ok(())
    }

    /// Copies `bytes` to `offset`.
    ///
    /// # Errors
    /// As [`Lent::read_into`], and [`Problem::Access`] for memory that was lent for reading.
    pub fn write_from(&self, offset: u64, bytes: &[u8]) -> Result<(), UsageError> {
        self.write_with(offset, bytes.len(), |to| {
            to.copy_from_slice(bytes);
            Ok(())
        })
    }

    /// Lets `write` write `len` bytes from `offset` on.
    ///
    /// # Errors
    /// As [`Lent::write_from`], and those of `write`.
    pub fn write_with<E: From<UsageError>>(
        &self,
        offset: u64,
        len: usize,
        write: impl FnOnce(&mut [u8]) -> Result<(), E>,
    ) -> Result<(), E> {
        let imported = lock(&self.imported);
        if !self.access.writes() {
            let problem = Problem::Access { argument: 0, wanted: "written by the host", given: "reading" };
            return Err(UsageError::new("write_from", problem).into());
        }
        let to = self.part("write_from", *imported, offset, len)?;
        // SAFETY: `part` found the bytes inside the borrow, which is exclusive, as the access says; no device has them,
        // and the lock keeps other copies of the host away until `write` returns.
        write(unsafe { std::slice::from_raw_parts_mut(to.as_ptr(), len) })
    }

    fn part(
        &self,
        context: &'static str,
        imported: bool,
        offset: u64,
        len: usize,
    ) -> Result<NonNull<u8>, UsageError> {
        let asked = ByteRange::new(offset, offset.saturating_add(len as u64));
        if imported {
            let what = "a device has imported this memory until the scope ends".to_owned();
            return Err(UsageError::new(context, Problem::Busy { what }));
        }
        let outside = || UsageError::new(context, Problem::OutOfBounds { range: asked, bytes: self.bytes });
        if !ByteRange::up_to(self.bytes).contains(asked) && len > 0 {
            return Err(outside());
        }
        let offset = usize::try_from(offset).map_err(|_| outside())?;
        NonNull::new(self.address.as_ptr().wrapping_add(offset)).ok_or_else(outside)
    }
}

impl fmt::Debug for Lent<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lent")
            .field("address", &self.address)
            .field("bytes", &self.bytes)
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for HeldPages<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HeldPages").finish_non_exhaustive()
    }
}

impl<T> Deref for ScopedBuffer<'_, T> {
    type Target = Buffer;
    fn deref(&self) -> &Buffer {
        &self.buffer
    }
}

impl fmt::Debug for Scope<'_, '_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Scope").field("id", &self.ending.id).finish_non_exhaustive()
    }
}

impl Drop for Ending {
    fn drop(&mut self) {
        let leases = std::mem::take(&mut *lock(&self.leases));
        if leases.is_empty() {
            return;
        }
        // What was enqueued inside the scope still runs.
        for core in &self.cores {
            core.flush_queues();
            let state = core.state();
            leases.iter().for_each(|lease| lease.revoke());
            drop(state);
        }
        let uses = |_: usize, flight: &Flight| {
            flight.work().scoped.iter().any(|lease| lease.memory.scope == Some(self.id))
        };
        for core in &self.cores {
            loop {
                match core.when_free(uses, |_| ()) {
                    Ok(()) => break,
                    // One queue of the device is done with what it had.
                    Err(DeviceError::Lost { .. }) => {}
                    Err(error) => {
                        tracing::error!(%error, "borrowed memory may still be in use by the device");
                        abort();
                    }
                }
            }
        }
        for lease in &leases {
            lease.end();
        }
    }
}
