//! The context: allocation, import, and the calls of the host.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::SimConfig;
use super::host::HostSide;
use super::queue::SimQueue;
use super::world::{SimBuffer, SimQueueState, World};
use crate::backend::{
    BufferDesc, BufferInfo, ContextBackend, DeviceError, DeviceInfo, HostAddress, KernelDesc, MemoryUsage,
    QueueBackend,
};
use crate::memory::dma_buf::DmaBuf;
use crate::memory::host::HostRegion;
use crate::memory::import::{ImportRules, ReadWrite, plan_window};
use crate::memory::model::{MemoryModel, TypeFlags};
use crate::memory::os::{self, OsError};
use crate::memory::range::ByteRange;
use crate::recording::{BufferId, BufferRange, DeviceKernelId};

/// `VK_ERROR_INVALID_EXTERNAL_HANDLE`, which drivers answer for pages they do not take.
const INVALID_EXTERNAL_HANDLE: i32 = -1_000_072_003;

/// A simulated device, opened.
#[derive(Debug)]
pub(super) struct SimContext {
    info: DeviceInfo,
    world: Arc<Mutex<World>>,
}

/// The world, whatever panicked in it: kernels' panics are caught, and assertions of tests come later.
pub(super) fn enter(world: &Mutex<World>) -> MutexGuard<'_, World> {
    world.lock().unwrap_or_else(PoisonError::into_inner)
}

impl SimContext {
    pub(super) fn new(info: DeviceInfo, config: SimConfig) -> Result<SimContext, DeviceError> {
        Ok(SimContext { info, world: Arc::new(Mutex::new(World::new(config)?)) })
    }

    fn world(&self) -> MutexGuard<'_, World> {
        enter(&self.world)
    }
}

impl World {
    /// The pages of an import that begins, unless something is wrong with it.
    fn admit(&mut self, start: u64, bytes: u64, rules: &ImportRules) -> Result<ByteRange, DeviceError> {
        let refused = DeviceError::ImportRefused { code: INVALID_EXTERNAL_HANDLE };
        self.alive()?;
        self.usage.imports += 1;
        if self.config.faults.refuse_at_import == Some(self.usage.imports) {
            return Err(refused);
        }
        let aligned = start.is_multiple_of(rules.alignment) && bytes.is_multiple_of(rules.size_multiple);
        let pages = ByteRange::from_offset(start, bytes).filter(|pages| aligned && !pages.is_empty());
        let pages = pages.ok_or(refused.clone())?;
        if self.bodies.values().any(|body| body.pages.is_some_and(|live| live.overlaps(pages))) {
            self.say(format!("pages {pages} were imported twice"));
            return Err(refused);
        }
        Ok(pages)
    }

    fn adopt(
        &mut self,
        address: HostAddress,
        pages: ByteRange,
        coherent: bool,
        model: &MemoryModel,
    ) -> Result<BufferId, DeviceError> {
        let refused = DeviceError::ImportRefused { code: INVALID_EXTERNAL_HANDLE };
        let bytes = pages.bytes();
        let len = usize::try_from(bytes).map_err(|_| refused)?;
        let mut body = SimBuffer::new(len, Some(HostSide::imported(address, len)), coherent);
        (body.imported, body.pages) = (true, Some(pages));
        body.device_local =
            model.import_type().is_some_and(|index| model.flags(index).has(TypeFlags::DEVICE_LOCAL));
        body.heap = model.import_heap().unwrap_or_default();
        let id = self.buffers.insert(());
        self.bodies.insert(id, body);
        self.usage.imported += bytes;
        Ok(id)
    }
}

impl ContextBackend for SimContext {
    fn info(&self) -> &DeviceInfo {
        &self.info
    }

    fn create_buffer(&self, desc: &BufferDesc) -> Result<BufferId, DeviceError> {
        let bytes = desc.bytes;
        let limit = self.info.limits.max_buffer_bytes;
        if bytes > limit {
            return Err(DeviceError::Limit { what: "a buffer", asked: bytes, limit });
        }
        let mut world = self.world();
        world.alive()?;
        world.usage.allocations += 1;
        if world.config.faults.exhaust_at_allocation == Some(world.usage.allocations) {
            return Err(DeviceError::OutOfDeviceMemory { bytes });
        }
        let len = usize::try_from(bytes).map_err(|_| DeviceError::OutOfDeviceMemory { bytes })?;
        let model = &self.info.memory;
        let index = model.best(desc.placement).ok_or(DeviceError::OutOfDeviceMemory { bytes })?;
        let flags = model.flags(index);
        let mapped = flags.has(TypeFlags::HOST_VISIBLE);
        let host = if mapped {
            let region = HostRegion::new(len).map_err(|_| DeviceError::OutOfHostMemory { bytes })?;
            Some(HostSide::own(region))
        } else {
            None
        };
        let mut body = SimBuffer::new(len, host, flags.has(TypeFlags::HOST_COHERENT) || !mapped);
        body.device_local = flags.has(TypeFlags::DEVICE_LOCAL);
        body.heap = model.heap_of(index).unwrap_or_default();
        let id = world.buffers.insert(());
        world.bodies.insert(id, body);
        world.usage.allocated += bytes;
        Ok(id)
    }

    #[allow(unsafe_code, reason = "the trait's contract; the pages are reached through `host` alone")]
    unsafe fn import_host(&self, address: HostAddress, bytes: u64) -> Result<BufferId, DeviceError> {
        let refused = DeviceError::ImportRefused { code: INVALID_EXTERNAL_HANDLE };
        let start = address.0.as_ptr().addr() as u64;
        let rules = self.info.import.unwrap_or(ImportRules::strict());
        let page = os::page_size() as u64;
        let are_there = |pages: ByteRange| match os::process_map(pages) {
            Ok(map) => plan_window(start, bytes, ReadWrite::ReadWrite, &rules, &map, page).is_ok(),
            // Where the system has no map, the caller's word for the pages has to do.
            Err(error) => matches!(error, OsError::Unsupported { .. }),
        };
        let mut world = self.world();
        let coherent = world.config.coherent;
        let pages = world.admit(start, bytes, &rules)?;
        are_there(pages).then_some(()).ok_or(refused)?;
        world.adopt(address, pages, coherent, &self.info.memory)
    }

    fn imports_dma_bufs(&self) -> bool {
        self.world().config.dma_bufs
    }

    #[allow(unsafe_code, reason = "the trait's contract; the pages are reached through `host` alone")]
    unsafe fn import_dma_buf(&self, pages: &DmaBuf, address: HostAddress) -> Result<BufferId, DeviceError> {
        let start = address.0.as_ptr().addr() as u64;
        let rules = self.info.import.unwrap_or(ImportRules::strict());
        let mut world = self.world();
        if !world.config.dma_bufs {
            return Err(DeviceError::Unsupported { what: "a dma-buf".to_owned() });
        }
        let pages = world.admit(start, pages.bytes(), &rules)?;
        world.adopt(address, pages, false, &self.info.memory)
    }

    fn buffer_info(&self, buffer: BufferId) -> Result<BufferInfo, DeviceError> {
        let mut world = self.world();
        let body = world.body(buffer)?;
        Ok(BufferInfo {
            bytes: body.device.bytes(),
            host: body.host.as_ref().map(HostSide::address),
            coherent: body.coherent,
            cached: true,
            device_local: body.device_local,
            heap: body.heap,
            imported: body.imported,
        })
    }

    fn flush(&self, ranges: &[BufferRange]) -> Result<(), DeviceError> {
        let mut world = self.world();
        world.alive()?;
        ranges.iter().try_for_each(|range| world.flush(range))
    }

    fn invalidate(&self, ranges: &[BufferRange]) -> Result<(), DeviceError> {
        let mut world = self.world();
        world.alive()?;
        ranges.iter().try_for_each(|range| world.invalidate(range))
    }

    fn destroy_buffer(&self, buffer: BufferId) {
        self.world().remove(buffer);
    }

    fn create_kernel(&self, desc: &KernelDesc<'_>) -> Result<DeviceKernelId, DeviceError> {
        let mut world = self.world();
        world.alive()?;
        match desc.source.native() {
            Some(native) => Ok(world.kernels.insert(native.clone())),
            None => Err(DeviceError::Unsupported {
                what: format!("kernel {}, which has no native function", desc.source.name()),
            }),
        }
    }

    fn destroy_kernel(&self, kernel: DeviceKernelId) {
        // A stale handle names nothing that could be destroyed.
        let removed = self.world().kernels.remove(kernel);
        drop(removed);
    }

    fn create_queue(&self) -> Result<Arc<dyn QueueBackend>, DeviceError> {
        let mut world = self.world();
        world.alive()?;
        let index = u32::try_from(world.queues.len())
            .map_err(|_| DeviceError::Unsupported { what: "so many queues".to_owned() })?;
        world.queues.push(SimQueueState::default());
        Ok(Arc::new(SimQueue::new(Arc::clone(&self.world), index)))
    }

    fn usage(&self) -> MemoryUsage {
        self.world().usage
    }

    fn validation_messages(&self) -> Vec<String> {
        std::mem::take(&mut self.world().messages)
    }
}
