//! Buffers: a range of device memory, and whose memory it is.

use std::fmt;
use std::mem::take;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, Weak};

use super::core::Core;
use super::error::{Problem, UsageError};
use crate::backend::{Acquisition, BufferInfo, HostAddress};
use crate::recording::{BufferId, BufferRange};
use onepool_core::memory::budget::Reservation;
use onepool_core::memory::coherency::HostTracker;
use onepool_core::memory::dma_buf::DmaBuf;
use onepool_core::memory::host::{HostRegion, SharedRegion};
use onepool_core::memory::import::{ImportKey, ReadWrite};
use onepool_core::memory::range::ByteRange;
use onepool_core::sync::lock;

/// One buffer of the backend.
pub(super) struct Memory {
    pub(super) core: Arc<Core>,
    pub(super) id: BufferId,
    pub(super) info: BufferInfo,
    /// Which scope's borrows may be in it; `None` for memory that is owned or kept.
    pub(super) scope: Option<u64>,
    pub(super) leases: Mutex<Vec<Weak<Lease>>>,
    /// What recordings do about it before and after, where it stands for memory of the application's.
    pub(super) acquisition: Option<Acquisition>,
    /// The region whose pages it is, from their start.
    pub(super) region: Option<Arc<SharedRegion>>,
    /// What the host has to do before it uses its own pointer.
    pub(super) host: Mutex<HostTracker>,
    pins: Mutex<Vec<Pin>>,
    destroyed: AtomicBool,
    _reservation: Reservation,
}

/// Someone's memory, given back after the device let go of it.
pub(super) enum Pin {
    /// Pages kept by count.
    Region(#[allow(dead_code, reason = "kept, never read")] Arc<SharedRegion>),
    /// Pages that no one writes any more, kept by count.
    Constant(#[allow(dead_code, reason = "kept, never read")] Arc<HostRegion>),
    /// What the owner of raw memory wants to hear.
    Release(Box<dyn FnOnce() + Send>),
}

impl Memory {
    pub(super) fn new(
        core: &Arc<Core>,
        id: BufferId,
        info: BufferInfo,
        scope: Option<u64>,
        reservation: Reservation,
        region: Option<Arc<SharedRegion>>,
    ) -> Arc<Memory> {
        let host = HostTracker::new(info.coherent, core.info.limits.non_coherent_atom, info.bytes);
        let memory = Arc::new(Memory {
            core: Arc::clone(core),
            id,
            info,
            scope,
            acquisition: core.backend.acquisition(id),
            leases: Mutex::default(),
            pins: Mutex::new(region.iter().cloned().map(Pin::Region).collect()),
            region,
            host: Mutex::new(host),
            destroyed: AtomicBool::new(false),
            _reservation: reservation,
        });
        let mut state = core.state();
        state.memories.insert(id, Arc::downgrade(&memory));
        if let Some(address) = info.host {
            state.mapped.insert((address.0.as_ptr().addr(), id), Arc::downgrade(&memory));
        }
        drop(state);
        memory
    }

    /// Keeps the dma-buf whose pages it is until the driver let go of it.
    pub(super) fn keep_dma_buf(&self, pages: &Arc<DmaBuf>) {
        lock(&self.core.dma_bufs).insert(self.id, Arc::clone(pages));
    }

    /// Bytes of the memory that the lease opens.
    pub(super) fn lease(
        self: &Arc<Self>,
        range: ByteRange,
        access: ReadWrite,
        key: Option<ImportKey>,
        pin: Option<Pin>,
    ) -> Arc<Lease> {
        lock(&self.pins).extend(pin);
        let lease = Arc::new(Lease {
            memory: Arc::clone(self),
            range,
            access,
            revoked: AtomicBool::new(false),
            key: Mutex::new(key),
        });
        let mut leases = lock(&self.leases);
        leases.retain(|lease| lease.strong_count() > 0);
        leases.push(Arc::downgrade(&lease));
        drop(leases);
        lease
    }

    /// A live lease that opens these bytes for this.
    pub(super) fn open(&self, range: ByteRange, reads: bool, writes: bool) -> Result<Arc<Lease>, Closed> {
        let leases = lock(&self.leases);
        let mut why = Closed::Outside;
        for lease in leases.iter().filter_map(Weak::upgrade) {
            if !lease.range.contains(range) {
                continue;
            }
            if lease.is_revoked() {
                why = Closed::Revoked;
            } else if (reads && !lease.access.reads()) || (writes && !lease.access.writes()) {
                why = Closed::Access(lease.access);
            } else {
                return Ok(lease);
            }
        }
        Err(why)
    }

    /// The driver lets go of the memory, then its owner gets it back. Once; no submission uses it.
    pub(super) fn destroy(&self) {
        if self.destroyed.swap(true, Ordering::AcqRel) {
            return;
        }
        let mut state = self.core.state();
        state.memories.remove(&self.id);
        if let Some(address) = self.info.host {
            state.mapped.remove(&(address.0.as_ptr().addr(), self.id));
        }
        drop(state);
        let dma_buf = lock(&self.core.dma_bufs).remove(&self.id);
        self.core.backend.destroy_buffer(self.id);
        drop(dma_buf);
        for pin in take(&mut *lock(&self.pins)) {
            if let Pin::Release(release) = pin {
                release();
            }
        }
    }

    /// The bytes, grown to what a flush or an invalidate must name.
    pub(super) fn rounded(&self, range: ByteRange) -> ByteRange {
        lock(&self.host).rounded(range)
    }

    pub(super) fn buffer_range(&self, range: ByteRange) -> BufferRange {
        BufferRange { buffer: self.id, offset: range.start, bytes: range.bytes() }
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        self.destroy();
    }
}

impl fmt::Debug for Memory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Memory").field("id", &self.id).field("info", &self.info).finish_non_exhaustive()
    }
}

/// Why bytes of a memory are not open to a command.
#[derive(Clone, Copy, Debug)]
pub(super) enum Closed {
    Outside,
    Revoked,
    Access(ReadWrite),
}

/// Bytes of a memory that the caller may use, and how.
pub(super) struct Lease {
    pub(super) memory: Arc<Memory>,
    pub(super) range: ByteRange,
    pub(super) access: ReadWrite,
    revoked: AtomicBool,
    key: Mutex<Option<ImportKey>>,
}

impl Lease {
    pub(super) fn is_revoked(&self) -> bool {
        self.revoked.load(Ordering::Acquire)
    }

    /// Nothing new may use the lease. Under the state's lock, so that no submission slips in.
    pub(super) fn revoke(&self) {
        self.revoked.store(true, Ordering::Release);
    }

    /// Gives the memory back where this was its last share. No submission uses the lease any more.
    pub(super) fn end(&self) {
        let Some(key) = lock(&self.key).take() else {
            // Not shared through the map: memory is one lease's alone, with all its copies.
            return self.memory.destroy();
        };
        // Destroyed under the lock, so that the pages are not imported anew before the driver let go.
        let mut imports = lock(&self.memory.core.imports);
        if let Some(memory) = imports.release(key) {
            let pins = take(&mut *lock(&memory.pins));
            memory.destroy();
            drop(imports);
            for pin in pins {
                if let Pin::Release(release) = pin {
                    release();
                }
            }
        }
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        self.end();
    }
}

impl fmt::Debug for Lease {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lease")
            .field("memory", &self.memory)
            .field("range", &self.range)
            .field("access", &self.access)
            .finish_non_exhaustive()
    }
}

/// A range of memory that a device reaches: allocated, imported, or part of another buffer.
///
/// A clone is another handle of the same bytes.
#[derive(Clone, Debug)]
pub struct Buffer {
    pub(super) lease: Arc<Lease>,
    pub(super) range: ByteRange,
}

impl Buffer {
    pub(super) fn whole(lease: Arc<Lease>) -> Buffer {
        let range = lease.range;
        Buffer { lease, range }
    }

    /// Its size in bytes.
    pub fn bytes(&self) -> u64 {
        self.range.bytes()
    }

    /// Its bytes as a recording names them.
    pub fn range(&self) -> BufferRange {
        self.lease.memory.buffer_range(self.range)
    }

    /// The [`Context::id`](crate::device::Context::id) of its context.
    pub fn context_id(&self) -> usize {
        Arc::as_ptr(&self.lease.memory.core).addr()
    }

    /// What was granted for the memory it lies in.
    pub fn info(&self) -> BufferInfo {
        self.lease.memory.info
    }

    /// What each recording that uses it does before and after, where it stands for an image of the application's or is
    /// handed over between queue families.
    pub fn acquisition(&self) -> Option<Acquisition> {
        self.lease.memory.acquisition
    }

    /// What commands may do with it: an import of borrowed memory may be read-only.
    pub fn access(&self) -> ReadWrite {
        self.lease.access
    }

    /// The address of its first byte in the process, where the memory is mapped.
    pub fn host_address(&self) -> Option<HostAddress> {
        let base = self.lease.memory.info.host?;
        let offset = usize::try_from(self.range.start).ok()?;
        // The mapping holds every byte of the memory, so the sum is an address inside it.
        let address = base.0.as_ptr().wrapping_add(offset);
        std::ptr::NonNull::new(address).map(HostAddress)
    }

    /// Part of it, as a buffer of its own.
    ///
    /// # Errors
    /// The part is empty or leaves the buffer.
    pub fn sub_buffer(&self, offset_bytes: u64, bytes: u64) -> Result<Buffer, UsageError> {
        let range = self.part("sub_buffer", offset_bytes, bytes)?;
        Ok(Buffer { lease: Arc::clone(&self.lease), range })
    }

    /// Bytes of the memory that part of the buffer stands for.
    pub(super) fn part(
        &self,
        context: &'static str,
        offset_bytes: u64,
        bytes: u64,
    ) -> Result<ByteRange, UsageError> {
        let asked = ByteRange::new(offset_bytes, offset_bytes.saturating_add(bytes));
        if bytes == 0 {
            return Err(UsageError::new(context, Problem::Empty));
        }
        let inside = offset_bytes.checked_add(bytes).is_some_and(|end| end <= self.bytes());
        asked.shifted(self.range.start).filter(|_| inside).ok_or_else(|| {
            UsageError::new(context, Problem::OutOfBounds { range: asked, bytes: self.bytes() })
        })
    }
}
