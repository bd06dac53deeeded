//! The context: one device, opened.

#![allow(unsafe_code, reason = "import_raw passes its caller's promise on")]

use std::fmt;
use std::ptr::NonNull;
use std::sync::{Arc, OnceLock};

use super::buffer::{Buffer, Memory, Pin};
use super::check::Checker;
use super::core::Core;
use super::error::{Error, Problem, UsageError};
use super::import::{Source, import};
use super::kernel::Kernel;
use super::queue::Queue;
use super::traffic::Traffic;
use crate::backend::{
    BufferDesc, ContextBackend, ContextDesc, DeviceError, DeviceInfo, ExportedMemory, Foreign, ForeignBuffer,
    ForeignDmaBufImage, ForeignImage, ForeignMemory, MemoryFd, MemoryUsage,
};
use crate::kernel::{KernelSource, NativeKernel};
use crate::recording::{BufferId, BufferRange};
use onepool_core::memory::budget::{Budget, BudgetKind};
use onepool_core::memory::host::{HostRegion, SharedRegion};
use onepool_core::memory::import::{CostSource, ReadWrite, Refusal};
use onepool_core::memory::range::ByteRange;

/// An opened device. A clone is another handle of it.
#[derive(Clone)]
pub struct Context {
    inner: Arc<ContextInner>,
}

struct ContextInner {
    core: Arc<Core>,
    queue: OnceLock<Queue>,
}

impl Context {
    /// The safe interface over an opened backend, with the costs of imports that are taken where none are measured.
    pub fn new(backend: Arc<dyn ContextBackend>) -> Context {
        let desc = ContextDesc { costs: CostSource::Preset, ..ContextDesc::default() };
        Context::opened(backend, &desc)
    }

    /// The safe interface over a backend that was opened by `desc`.
    pub fn opened(backend: Arc<dyn ContextBackend>, desc: &ContextDesc) -> Context {
        let core = Arc::new(Core::new(backend, desc));
        Context { inner: Arc::new(ContextInner { core, queue: OnceLock::new() }) }
    }

    pub(super) fn core(&self) -> &Arc<Core> {
        &self.inner.core
    }

    /// A number that no other living context has.
    pub fn id(&self) -> usize {
        Arc::as_ptr(&self.inner.core).addr()
    }

    /// What the device is and can do.
    pub fn info(&self) -> &DeviceInfo {
        &self.inner.core.info
    }

    /// Bytes allocated and imported now.
    pub fn usage(&self) -> MemoryUsage {
        self.inner.core.backend.usage()
    }

    /// Bytes that were copied by commands and lent to the host since the context was opened.
    pub fn traffic(&self) -> Traffic {
        self.inner.core.traffic.get()
    }

    /// What live imports and allocations are counted against.
    pub fn budget(&self) -> &Budget {
        &self.inner.core.budget
    }

    /// What the API's validation said since the last call.
    pub fn validation_messages(&self) -> Vec<String> {
        self.inner.core.backend.validation_messages()
    }

    /// Allocates a buffer. Its contents are undefined.
    ///
    /// # Errors
    /// [`UsageError`] for no bytes, [`DeviceError::Limit`], out of memory.
    pub fn create_buffer(&self, desc: &BufferDesc) -> Result<Buffer, Error> {
        let core = self.core();
        let bytes = desc.bytes;
        if bytes == 0 {
            return Err(UsageError::new("create_buffer", Problem::Empty).into());
        }
        let limit = core.info.limits.max_buffer_bytes;
        if bytes > limit {
            return Err(DeviceError::Limit { what: "a buffer", asked: bytes, limit }.into());
        }
        let heaps = core.info.memory.heaps_for(desc.placement);
        if !core.has_room(&heaps, bytes) {
            return Err(DeviceError::OutOfDeviceMemory { bytes }.into());
        }
        let id = core.backend.create_buffer(desc)?;
        let info = match core.backend.buffer_info(id) {
            Ok(info) => info,
            Err(error) => {
                core.backend.destroy_buffer(id);
                return Err(error.into());
            }
        };
        let reservation = core.budget.count(BudgetKind::Allocation, info.heap, bytes);
        let memory = Memory::new(core, id, info, None, reservation, None);
        // The allocation may be larger than what was asked for; the rest is no one's.
        Ok(Buffer::whole(memory.lease(ByteRange::up_to(bytes), ReadWrite::ReadWrite, None, None)))
    }

    /// Imports an owned region in place. The region lives at least as long as the import; its bytes are
    /// reached through its own guards, which are refused while a submission uses them, or through the
    /// buffer's.
    ///
    /// ```
    /// use onepool::HostRegion;
    /// use onepool::backend::ContextDesc;
    /// use onepool::registry::Registry;
    ///
    /// let context = Registry::with_defaults().open("sim", &ContextDesc::default())?;
    /// let region = HostRegion::new(1 << 16)?.into_shared();
    /// let buffer = context.import(&region)?;
    /// buffer.map_write()?.as_mut_slice_of::<u32>()?.fill(3);
    /// assert_eq!(region.read()?.as_slice_of::<u32>()?[0], 3);
    /// # Ok::<(), onepool::Error>(())
    /// ```
    ///
    /// # Errors
    /// An [`ImportError`](onepool_core::memory::import::ImportError) with the reason, or the device's.
    pub fn import(&self, region: &Arc<SharedRegion>) -> Result<Buffer, Error> {
        import(self.core(), &mut Source::region(region))
    }

    /// Whether the device may take memory files as dma-bufs ([`Context::import_dma_buf`]).
    pub fn imports_dma_bufs(&self) -> bool {
        self.core().backend.imports_dma_bufs()
    }

    /// Imports an owned region in a memory file ([`HostRegion::in_memory_file`]) as a dma-buf, for drivers that take
    /// no pointer to such memory. As [`Context::import`] else; the memory is not coherent.
    ///
    /// # Errors
    /// [`Refusal::Memfd`] for a region in no file, [`Refusal::NoDmaBuf`], a driver's refusal.
    pub fn import_dma_buf(&self, region: &Arc<SharedRegion>) -> Result<Buffer, Error> {
        if !self.imports_dma_bufs() {
            return Err(Refusal::NotSupported.into());
        }
        let pages = region.memory_file().ok_or(Refusal::Memfd)?.dma_buf()?;
        import(self.core(), &mut Source { dma_buf: Some(pages), ..Source::region(region) })
    }

    /// Imports pages that no one writes any more, for reading: the parameters of a model.
    ///
    /// # Errors
    /// As [`Context::import`].
    pub fn import_constant(&self, region: &Arc<HostRegion>) -> Result<Buffer, Error> {
        let source = Source::new(region.as_ptr(), region.bytes() as u64, ReadWrite::Read);
        import(self.core(), &mut Source { pin: Some(Pin::Constant(Arc::clone(region))), ..source })
    }

    /// Imports memory that a foreign caller answers for; `release` is called once the device let go of the
    /// pages, which may be later than the last buffer when imports share them, or at once on an error.
    ///
    /// # Safety
    /// Until `release` is called, the bytes stay mapped, readable and (for writing access) writable, and
    /// no one touches them while a submission or a guard that uses them is under way, except for reads
    /// in parallel with reads.
    ///
    /// # Errors
    /// As [`Context::import`].
    pub unsafe fn import_raw(
        &self,
        address: NonNull<u8>,
        bytes: u64,
        access: ReadWrite,
        release: Box<dyn FnOnce() + Send>,
    ) -> Result<Buffer, Error> {
        let pin = Some(Pin::Release(release));
        let mut source = Source { pin, ..Source::new(address, bytes, access) };
        import(self.core(), &mut source).inspect_err(|_| {
            if let Some(Pin::Release(release)) = source.pin.take() {
                release();
            }
        })
    }

    /// A buffer of the application's, in place: what a run reads and writes is the application's buffer. `release` is
    /// called once the context let go of it, or at once on an error.
    ///
    /// A buffer is imported once; [`Buffer::sub_buffer`] gives parts of it, whose offsets are multiples of
    /// [`Limits::argument_alignment`](crate::backend::Limits::argument_alignment). The application orders its own use of
    /// the buffer against runs: on the queue of the context by the order of submission, else by
    /// [semaphores](Context::semaphore) or by waiting for runs.
    ///
    /// # Safety
    /// The buffer is of the device that the context was opened on, was made as described, has memory bound to all of it,
    /// and lives until `release` is called. No one writes it while a run uses it, and no one reads it while a run
    /// writes it.
    ///
    /// # Errors
    /// [`DeviceError::Unsupported`]: a null handle, a usage without `STORAGE_BUFFER`, a queue family that the device does not
    /// have, a buffer that is imported already, a device that is no application's. [`DeviceError::Limit`] for
    /// a size that is too large.
    pub unsafe fn import_buffer(
        &self,
        buffer: &ForeignBuffer,
        access: ReadWrite,
        release: Box<dyn FnOnce() + Send>,
    ) -> Result<Buffer, Error> {
        // SAFETY: as the caller promises.
        unsafe { self.import_foreign(&Foreign::Buffer(*buffer), access, release) }
    }

    /// A buffer on memory of the application's, or of someone else's who gave a file descriptor, in place. As
    /// [`Context::import_buffer`] else.
    ///
    /// # Safety
    /// The memory is of the context's device, or the descriptor of such memory, as described; it lives until `release` is
    /// called. No one writes the bytes while a run uses them, and no one reads them while a run writes them. What other
    /// objects on the memory make of the bytes is the application's: an image there is in linear tiling and in layout
    /// `GENERAL`.
    ///
    /// # Errors
    /// [`DeviceError::Unsupported`]: a null handle, an offset or a memory type that no buffer of ours can have, a
    /// descriptor that the device does not take; [`DeviceError::Limit`] for a buffer that leaves the memory. A
    /// [`Refusal`] of the driver's.
    pub unsafe fn import_memory(
        &self,
        memory: &ForeignMemory,
        access: ReadWrite,
        release: Box<dyn FnOnce() + Send>,
    ) -> Result<Buffer, Error> {
        // SAFETY: as the caller promises.
        unsafe { self.import_foreign(&Foreign::Memory(*memory), access, release) }
    }

    /// An image of the application's, as a buffer whose rows lie one after the other without padding. A run
    /// that uses the buffer copies the image to it at its beginning and to the image at its end, as `access`
    /// says, with the transitions of layout: with [`ReadWrite::Write`] all of the image is written, with
    /// zeros where the run writes nothing; with [`ReadWrite::ReadWrite`] pixels that the run does not write
    /// stay. As [`Context::import_buffer`] else.
    ///
    /// A run that is cancelled or fails between its submissions gives nothing back: it leaves the image in
    /// any layout, and with the family of the context.
    ///
    /// # Safety
    /// As [`Context::import_buffer`]; each run finds the image in its layout, or any run's where it is not read.
    ///
    /// # Errors
    /// [`DeviceError::Unsupported`]: a null handle, a format, a usage or a layout that cannot be, a queue family that the
    /// device does not have, an image that is imported already. [`DeviceError::Limit`] for an extent that is too large.
    pub unsafe fn import_image(
        &self,
        image: &ForeignImage,
        access: ReadWrite,
        release: Box<dyn FnOnce() + Send>,
    ) -> Result<Buffer, Error> {
        let foreign = Foreign::Image { image: *image, reads: access.reads(), writes: access.writes() };
        // SAFETY: as the caller promises.
        unsafe { self.import_foreign(&foreign, access, release) }
    }

    /// An image in a dma-buf, as [`Context::import_image`] takes one of the application's. It is in use by other
    /// drivers between runs, who wait for each other by semaphores or by the host.
    ///
    /// # Safety
    /// The descriptor is of a dma-buf with the image as described, which lives until `release` is called. No
    /// one writes it while a run uses it, and no one reads it while a run writes it.
    ///
    /// # Errors
    /// [`DeviceError::Unsupported`]: a format, a modifier or planes that the device does not take, a device without
    /// `VK_EXT_image_drm_format_modifier`; [`DeviceError::Limit`] for an image that leaves the dma-buf. A
    /// [`Refusal`] of the driver's.
    pub unsafe fn import_dma_buf_image(
        &self,
        image: &ForeignDmaBufImage,
        access: ReadWrite,
        release: Box<dyn FnOnce() + Send>,
    ) -> Result<Buffer, Error> {
        let foreign = Foreign::DmaBufImage { image: *image, reads: access.reads(), writes: access.writes() };
        // SAFETY: as the caller promises.
        unsafe { self.import_foreign(&foreign, access, release) }
    }

    /// # Safety
    /// As [`Context::import_buffer`] and [`Context::import_memory`].
    unsafe fn import_foreign(
        &self,
        foreign: &Foreign,
        access: ReadWrite,
        release: Box<dyn FnOnce() + Send>,
    ) -> Result<Buffer, Error> {
        let core = self.core();
        // SAFETY: as the caller promises.
        let imported = unsafe { core.backend.import_buffer(foreign) };
        let imported = imported.and_then(|id| core.backend.buffer_info(id).map(|info| (id, info)));
        let (id, info) = match imported {
            Ok(imported) => imported,
            Err(error) => {
                release();
                return Err(match error {
                    DeviceError::ImportRefused { code } => Refusal::DriverRefused { code }.into(),
                    error => error.into(),
                });
            }
        };
        // The memory is someone else's to count, unless it stands for an image.
        let own = if matches!(foreign, Foreign::Image { .. } | Foreign::DmaBufImage { .. }) {
            info.bytes
        } else {
            0
        };
        let reservation = core.budget.count(BudgetKind::Import, info.heap, own);
        let memory = Memory::new(core, id, info, None, reservation, None);
        let image_bytes = memory.acquisition.map_or(0, |acquisition| acquisition.image_bytes);
        let bytes = if image_bytes > 0 { image_bytes } else { info.bytes };
        let whole = ByteRange::up_to(bytes);
        Ok(Buffer::whole(memory.lease(whole, access, None, Some(Pin::Release(release)))))
    }

    /// A buffer of `bytes` bytes in memory of its own, which others take by a file descriptor: another device, API or
    /// process. They are done with it before it is dropped, and order their use of it as
    /// [`Context::import_buffer`] says.
    ///
    /// # Errors
    /// [`DeviceError::Unsupported`] where the device has no such descriptors; [`DeviceError::Limit`]; out of memory.
    pub fn export_buffer(&self, bytes: u64, kind: MemoryFd) -> Result<(Buffer, ExportedMemory), Error> {
        let core = self.core();
        let (id, exported) = core.backend.export_buffer(bytes, kind)?;
        let info = core.backend.buffer_info(id)?;
        let reservation = core.budget.count(BudgetKind::Allocation, info.heap, bytes);
        let memory = Memory::new(core, id, info, None, reservation, None);
        let whole = ByteRange::up_to(bytes);
        Ok((Buffer::whole(memory.lease(whole, ReadWrite::ReadWrite, None, None)), exported))
    }

    /// Where the device sees the byte at `address`, with the bytes that are open from there on.
    pub fn device_ptr_from_host(&self, address: *const u8) -> Option<BufferRange> {
        let wanted = address.addr();
        let last = BufferId { index: u32::MAX, generation: u32::MAX };
        let state = self.core().state();
        // Mappings may nest where a device imports one pointer several times, so all below are asked.
        let below = state.mapped.range(..=(wanted, last)).rev();
        let memories: Vec<_> = below.filter_map(|(_, memory)| memory.upgrade()).collect();
        drop(state);
        memories.iter().find_map(|memory| {
            let base = memory.info.host?.0.as_ptr().addr();
            let offset = (wanted - base) as u64;
            let lease = memory.open(ByteRange::from_offset(offset, 1)?, false, false).ok()?;
            Some(memory.buffer_range(ByteRange::new(offset, lease.range.end)))
        })
    }

    /// The address in the process of a buffer's first byte, where its memory is mapped.
    pub fn host_ptr_from_device(&self, buffer: &Buffer) -> Option<*mut u8> {
        Some(buffer.host_address()?.0.as_ptr())
    }

    /// A kernel of a source with specialization constants; one that lives already is shared.
    ///
    /// # Errors
    /// [`DeviceError::Program`], [`DeviceError::Unsupported`].
    pub fn create_kernel(&self, source: &Arc<KernelSource>, spec: &[(u32, u32)]) -> Result<Kernel, Error> {
        Kernel::of(self.core(), source, spec)
    }

    /// A kernel that is a native function; only native devices run it.
    ///
    /// # Errors
    /// [`DeviceError::Unsupported`].
    pub fn create_native_kernel(&self, native: NativeKernel) -> Result<Kernel, Error> {
        Kernel::native(self.core(), native)
    }

    /// The context's own queue, made on first use.
    ///
    /// # Errors
    /// The device's.
    pub fn queue(&self) -> Result<&Queue, Error> {
        if let Some(queue) = self.inner.queue.get() {
            return Ok(queue);
        }
        let queue = self.create_queue()?;
        Ok(self.inner.queue.get_or_init(|| queue))
    }

    /// Another in-order queue.
    ///
    /// # Errors
    /// The device's.
    pub fn create_queue(&self) -> Result<Queue, Error> {
        Ok(Queue::create(self.core())?)
    }

    /// Makes host writes to non-coherent memory visible to later submissions, for memory that the
    /// application writes through its own pointer.
    ///
    /// # Errors
    /// [`UsageError`] for a range that is not mapped, outside, or no multiple of the device's atom, and
    /// the device's.
    pub fn flush(&self, ranges: &[BufferRange]) -> Result<(), Error> {
        self.check_host_ranges("flush", ranges)?;
        Ok(self.core().flush(ranges)?)
    }

    /// Makes device writes to non-coherent memory visible to the application's own pointer, after the
    /// submission that wrote them has finished.
    ///
    /// # Errors
    /// As [`Context::flush`].
    pub fn invalidate(&self, ranges: &[BufferRange]) -> Result<(), Error> {
        self.check_host_ranges("invalidate", ranges)?;
        Ok(self.core().invalidate(ranges)?)
    }

    fn check_host_ranges(&self, context: &'static str, ranges: &[BufferRange]) -> Result<(), UsageError> {
        let mut checker = Checker::new(self.core(), context, 0);
        ranges.iter().try_for_each(|range| checker.host_range(range))
    }
}

impl fmt::Debug for Context {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let info = self.info();
        f.debug_struct("Context").field("api", &info.api).field("device", &info.name).finish_non_exhaustive()
    }
}
