//! The context: allocation, import, and the calls of the host.

use std::sync::{Arc, Mutex, MutexGuard};

use super::SimConfig;
use super::host::HostSide;
use super::profile::{DEVICE_LOST, INVALID_EXTERNAL_HANDLE};
use super::queue::SimQueue;
use super::world::{SimBuffer, SimQueueState, World};
use crate::backend::{
    BufferDesc, BufferInfo, ContextBackend, DeviceError, DeviceInfo, HostAddress, KernelDesc, MemoryUsage,
    Placement, QueueBackend,
};
use crate::recording::{BufferId, BufferRange, DeviceKernelId};
use onepool_core::memory::budget::{HeapBudget, KernelMemory};
use onepool_core::memory::dma_buf::DmaBuf;
use onepool_core::memory::host::HostRegion;
use onepool_core::memory::model::TypeFlags;
use onepool_core::memory::os::{self, OsError};
use onepool_core::memory::range::ByteRange;
use onepool_core::sync::lock;

/// A simulated device, opened.
#[derive(Debug)]
pub(super) struct SimContext {
    info: DeviceInfo,
    identity: Option<String>,
    world: Arc<Mutex<World>>,
}

impl SimContext {
    pub(super) fn new(info: DeviceInfo, config: SimConfig) -> Result<SimContext, DeviceError> {
        let identity = config.identity.clone();
        let world = World::new(config, info.memory.clone())?;
        Ok(SimContext { info, identity, world: Arc::new(Mutex::new(world)) })
    }

    fn world(&self) -> MutexGuard<'_, World> {
        lock(&self.world)
    }
}

impl World {
    /// The type among `candidates`, best first, whose heap has room for `bytes` bytes. A driver that finds too much at
    /// a submission takes any number of them, and one that made its heaps up takes the best whatever it holds.
    fn place(&self, candidates: &[u32], bytes: u64) -> Option<u32> {
        if self.config.profile.kernel.is_some() {
            return candidates.first().copied();
        }
        let room = |index: &&u32| self.left(**index).is_some_and(|left| bytes <= left);
        let found = candidates.iter().find(room);
        found.or(candidates.first().filter(|_| self.config.profile.overcommits)).copied()
    }

    /// Bytes that the heap of a type has left for what is asked for.
    fn left(&self, index: u32) -> Option<u64> {
        let heap = self.model.heap_of(index)?;
        let counted = self.config.profile.import.as_ref().is_none_or(|import| import.counted);
        let used = self.charged(heap, |body| counted || !body.imported);
        Some(self.model.heaps().get(heap as usize)?.bytes.saturating_sub(used))
    }

    /// The driver's refusal of pages, or its crash of a refusal.
    fn refuse(&mut self, code: i32) -> DeviceError {
        if code == DEVICE_LOST {
            return self.lose("the driver reported a refused import as a lost device");
        }
        DeviceError::ImportRefused { code }
    }

    /// The pages of an import that begins, unless something is wrong with it.
    fn admit(&mut self, start: u64, bytes: u64) -> Result<ByteRange, DeviceError> {
        let refused = DeviceError::ImportRefused { code: INVALID_EXTERNAL_HANDLE };
        self.alive()?;
        self.imports_asked += 1;
        if self.config.faults.refuse_at_import == Some(self.imports_asked) {
            return Err(refused);
        }
        let pages = ByteRange::from_offset(start, bytes).filter(|pages| !pages.is_empty());
        let pages = pages.ok_or(refused.clone())?;
        if self.bodies.values().any(|body| body.pages.is_some_and(|live| live.overlaps(pages))) {
            self.say(format!("pages {pages} were imported twice"));
            return Err(refused);
        }
        Ok(pages)
    }

    /// The type that the driver gives an import of the host's pages, unless it or its kernel refuses them.
    fn grant(&mut self, pages: ByteRange) -> Result<u32, DeviceError> {
        let refused = DeviceError::ImportRefused { code: INVALID_EXTERNAL_HANDLE };
        let bytes = pages.bytes();
        let Some(import) = self.config.profile.import.clone() else { return Err(refused) };
        // Bits without a type that can be mapped mean "no import", and the driver answers them with success.
        let candidates = self.model.import_candidates(import.type_bits);
        let index = *candidates.first().ok_or(refused.clone())?;
        if let Some(most) = import.max_bytes.filter(|most| bytes > *most) {
            self.say(format!(
                "an import of {bytes} bytes by a driver that takes {most}, and may cut what is more"
            ));
            return Err(self.refuse(import.codes.too_large));
        }
        if import.counted && self.left(index).is_some_and(|left| bytes > left) {
            return Err(self.refuse(import.codes.heap_full));
        }
        match os::process_map(pages) {
            Ok(maps) => import.judge(pages, &maps).map_err(|code| self.refuse(code))?,
            // Where the system has no map, the caller's word for the pages has to do.
            Err(OsError::Unsupported { .. }) => {}
            Err(_) => return Err(refused),
        }
        Ok(index)
    }

    fn adopt(
        &mut self,
        address: HostAddress,
        pages: ByteRange,
        index: u32,
        coherent: bool,
    ) -> Result<BufferId, DeviceError> {
        let bytes = pages.bytes();
        let len = usize::try_from(bytes)
            .map_err(|_| DeviceError::ImportRefused { code: INVALID_EXTERNAL_HANDLE })?;
        let mut body = SimBuffer::new(len, Some(HostSide::imported(address, len)), index, coherent);
        (body.imported, body.pages) = (true, Some(pages));
        let id = self.buffers.insert(());
        self.bodies.insert(id, body);
        self.usage.imported += bytes;
        self.usage.imports += 1;
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
        let none = DeviceError::OutOfDeviceMemory { bytes };
        if world.config.faults.exhaust_at_allocation == Some(world.usage.allocations) {
            return Err(none);
        }
        let len = usize::try_from(bytes).map_err(|_| none.clone())?;
        let candidates = self.info.memory.candidates(desc.placement, u32::MAX);
        let index = world.place(&candidates, bytes).ok_or(none)?;
        let flags = self.info.memory.flags(index);
        let mapped = flags.has(TypeFlags::HOST_VISIBLE);
        let host = if mapped {
            let region = HostRegion::new(len).map_err(|_| DeviceError::OutOfHostMemory { bytes })?;
            Some(HostSide::own(region))
        } else {
            None
        };
        let coherent = flags.has(TypeFlags::HOST_COHERENT) || !mapped;
        let id = world.buffers.insert(());
        world.bodies.insert(id, SimBuffer::new(len, host, index, coherent));
        world.usage.allocated += bytes;
        Ok(id)
    }

    #[allow(unsafe_code, reason = "the trait's contract; the pages are reached through `host` alone")]
    unsafe fn import_host(&self, address: HostAddress, bytes: u64) -> Result<BufferId, DeviceError> {
        let start = address.0.as_ptr().addr() as u64;
        let mut world = self.world();
        let pages = world.admit(start, bytes)?;
        let index = world.grant(pages)?;
        let coherent = self.info.memory.flags(index).has(TypeFlags::HOST_COHERENT);
        world.adopt(address, pages, index, coherent)
    }

    fn imports_dma_bufs(&self) -> bool {
        self.world().config.profile.dma_bufs
    }

    #[allow(unsafe_code, reason = "the trait's contract; the pages are reached through `host` alone")]
    unsafe fn import_dma_buf(&self, pages: &DmaBuf, address: HostAddress) -> Result<BufferId, DeviceError> {
        let start = address.0.as_ptr().addr() as u64;
        let mut world = self.world();
        if !world.config.profile.dma_bufs {
            return Err(DeviceError::Unsupported { what: "a dma-buf".to_owned() });
        }
        let pages = world.admit(start, pages.bytes())?;
        let memory = &self.info.memory;
        let index = memory.import_type().or_else(|| memory.best(Placement::Shared)).unwrap_or_default();
        world.adopt(address, pages, index, false)
    }

    fn buffer_info(&self, buffer: BufferId) -> Result<BufferInfo, DeviceError> {
        let mut world = self.world();
        let body = world.body(buffer)?;
        let flags = self.info.memory.flags(body.memory_type);
        Ok(BufferInfo {
            bytes: body.device.bytes(),
            host: body.host.as_ref().map(HostSide::address),
            coherent: body.coherent,
            // Imported pages are the application's, mapped as it has them.
            cached: flags.has(TypeFlags::HOST_CACHED) || body.imported,
            device_local: flags.has(TypeFlags::DEVICE_LOCAL),
            heap: self.info.memory.heap_of(body.memory_type).unwrap_or_default(),
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

    fn heap_budgets(&self) -> Vec<HeapBudget> {
        let world = self.world();
        let said = world.config.profile.budgets.iter().zip(0u32..);
        let of = |(said, heap): (&HeapBudget, u32)| {
            let usage = said.usage.saturating_add(world.charged(heap, |_| true));
            HeapBudget { usage, ..*said }
        };
        said.map(of).collect()
    }

    fn kernel_memory(&self) -> Option<KernelMemory> {
        let world = self.world();
        let sizes = world.config.profile.kernel?;
        let (set_aside, mapped) = world.kernel_usage(&sizes);
        Some(KernelMemory {
            set_aside: HeapBudget { budget: sizes.set_aside, usage: set_aside },
            mapped: HeapBudget { budget: sizes.mapped, usage: mapped },
        })
    }

    fn shared_device(&self) -> Option<&str> {
        self.identity.as_deref()
    }

    fn validation_messages(&self) -> Vec<String> {
        std::mem::take(&mut self.world().messages)
    }
}
