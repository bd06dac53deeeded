//! A device opened: what callers ask of it.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, RwLock};

use ash::vk;

use super::cache::PipelineCache;
use super::device::Device;
use super::dma_buf;
use super::foreign;
use super::import::import;
use super::kernel::Kernel;
use super::kernel_memory::KernelCounts;
use super::memory::Pool;
use super::queue::Queue;
use super::semaphore;
use super::shared::Shared;
use crate::backend::{
    Acquisition, BufferDesc, BufferInfo, ContextBackend, ContextDesc, DeviceError, DeviceInfo,
    ExportedMemory, Foreign, HostAddress, KernelDesc, MemoryFd, MemoryUsage, QueueBackend, SemaphorePoint,
};
use crate::recording::{BufferId, BufferRange, DeviceKernelId};
use onepool_core::memory::budget::{HeapBudget, KernelMemory};
use onepool_core::memory::dma_buf::DmaBuf;
use onepool_core::sync::{lock, read, write};

/// The context that callers hold; its queues share what is in it and may outlive it.
pub(super) struct Context {
    pub(super) shared: Arc<Shared>,
}

impl Context {
    pub(super) fn new(device: Device, desc: &ContextDesc) -> Result<Self, DeviceError> {
        let shared = Shared {
            buffers: RwLock::default(),
            kernels: RwLock::default(),
            wait: desc.wait,
            usage: Mutex::default(),
            destroyed: AtomicU64::new(0),
            pool: Pool::new(&device)?,
            cache: PipelineCache::open(&device, desc.cache_dir.as_deref()),
            device,
        };
        Ok(Context { shared: Arc::new(shared) })
    }

    fn mapped(&self, ranges: &[BufferRange]) -> Result<Vec<vk::MappedMemoryRange<'static>>, DeviceError> {
        let buffers = read(&self.shared.buffers);
        let atom = self.shared.device.info.limits.non_coherent_atom;
        let mut mapped = Vec::new();
        for range in ranges {
            let buffer = buffers.get(range.buffer)?;
            buffer.check(range)?;
            if !buffer.info.coherent && buffer.info.host.is_some() && range.bytes > 0 {
                mapped.extend(buffer.mapped_range(atom, range.offset, range.bytes));
            }
        }
        Ok(mapped)
    }

    #[cfg(test)]
    pub(super) fn loaded_cache_bytes(&self) -> usize {
        self.shared.cache.loaded()
    }
}

impl ContextBackend for Context {
    fn info(&self) -> &DeviceInfo {
        &self.shared.device.info
    }

    fn create_buffer(&self, desc: &BufferDesc) -> Result<BufferId, DeviceError> {
        let shared = &*self.shared;
        shared.device.alive()?;
        let buffer = shared.pool.create(&shared.device, desc)?;
        let mut usage = lock(&shared.usage);
        usage.allocated += desc.bytes;
        usage.allocations += 1;
        drop(usage);
        Ok(write(&shared.buffers).insert(buffer))
    }

    unsafe fn import_host(&self, address: HostAddress, bytes: u64) -> Result<BufferId, DeviceError> {
        let shared = &*self.shared;
        shared.device.alive()?;
        // SAFETY: what this function asks of its caller.
        let buffer = unsafe { import(&shared.device, address, bytes)? };
        let mut usage = lock(&shared.usage);
        usage.imported += bytes;
        usage.imports += 1;
        drop(usage);
        Ok(write(&shared.buffers).insert(buffer))
    }

    fn imports_dma_bufs(&self) -> bool {
        self.shared.device.dma_bufs.is_some()
    }

    unsafe fn import_dma_buf(&self, pages: &DmaBuf, address: HostAddress) -> Result<BufferId, DeviceError> {
        let shared = &*self.shared;
        shared.device.alive()?;
        let buffer = dma_buf::import(&shared.device, pages, address)?;
        let mut usage = lock(&shared.usage);
        usage.imported += pages.bytes();
        usage.imports += 1;
        drop(usage);
        Ok(write(&shared.buffers).insert(buffer))
    }

    unsafe fn import_buffer(&self, foreign: &Foreign) -> Result<BufferId, DeviceError> {
        let shared = &*self.shared;
        shared.device.alive()?;
        // SAFETY: as the caller promises.
        let buffer = unsafe { foreign::import(shared, foreign)? };
        let mut usage = lock(&shared.usage);
        usage.imported += buffer.info.bytes;
        usage.imports += 1;
        drop(usage);
        Ok(write(&shared.buffers).insert(buffer))
    }

    fn acquisition(&self, buffer: BufferId) -> Option<Acquisition> {
        read(&self.shared.buffers).get(buffer).ok()?.external.map(|external| external.acquisition())
    }

    fn export_buffer(&self, bytes: u64, kind: MemoryFd) -> Result<(BufferId, ExportedMemory), DeviceError> {
        let shared = &*self.shared;
        shared.device.alive()?;
        let (buffer, exported) = foreign::export(&shared.device, bytes, kind)?;
        let mut usage = lock(&shared.usage);
        usage.allocated += bytes;
        usage.allocations += 1;
        drop(usage);
        Ok((write(&shared.buffers).insert(buffer), exported))
    }

    fn check_semaphore(&self, point: &SemaphorePoint) -> Result<(), DeviceError> {
        semaphore::check(&self.shared.device, point)
    }

    fn buffer_info(&self, buffer: BufferId) -> Result<BufferInfo, DeviceError> {
        read(&self.shared.buffers).get(buffer).map(|buffer| buffer.info)
    }

    fn flush(&self, ranges: &[BufferRange]) -> Result<(), DeviceError> {
        let device = &self.shared.device;
        device.alive()?;
        let mapped = self.mapped(ranges)?;
        if mapped.is_empty() {
            return Ok(());
        }
        // SAFETY: whole atoms of mapped memory (VUID-VkMappedMemoryRange-memory-00684, -size-01389,
        // -size-01390, -offset-00687).
        unsafe { device.raw().flush_mapped_memory_ranges(&mapped) }
            .map_err(|code| device.error("vkFlushMappedMemoryRanges", code, 0))
    }

    fn invalidate(&self, ranges: &[BufferRange]) -> Result<(), DeviceError> {
        let device = &self.shared.device;
        device.alive()?;
        let mapped = self.mapped(ranges)?;
        if mapped.is_empty() {
            return Ok(());
        }
        // SAFETY: as in `flush`.
        unsafe { device.raw().invalidate_mapped_memory_ranges(&mapped) }
            .map_err(|code| device.error("vkInvalidateMappedMemoryRanges", code, 0))
    }

    fn destroy_buffer(&self, buffer: BufferId) {
        let shared = &*self.shared;
        let Ok(buffer) = write(&shared.buffers).remove(buffer) else { return };
        shared.destroyed.fetch_add(1, Ordering::Release);
        let mut usage = lock(&shared.usage);
        let counter = if buffer.info.imported { &mut usage.imported } else { &mut usage.allocated };
        *counter = counter.saturating_sub(buffer.info.bytes);
        drop(usage);
        // SAFETY: the caller's duty is that no unfinished submission uses it; it left the table.
        unsafe { shared.pool.destroy(&shared.device, buffer) };
    }

    fn create_kernel(&self, desc: &KernelDesc<'_>) -> Result<DeviceKernelId, DeviceError> {
        let shared = &*self.shared;
        shared.device.alive()?;
        // No lock meanwhile: pipelines are made by several threads at once.
        let kernel = Kernel::new(&shared.device, &shared.cache, desc)?;
        Ok(write(&shared.kernels).insert(kernel))
    }

    fn destroy_kernel(&self, kernel: DeviceKernelId) {
        let shared = &*self.shared;
        let Ok(kernel) = write(&shared.kernels).remove(kernel) else { return };
        shared.destroyed.fetch_add(1, Ordering::Release);
        // SAFETY: as for buffers.
        unsafe { kernel.destroy(&shared.device) };
    }

    fn create_queue(&self) -> Result<Arc<dyn QueueBackend>, DeviceError> {
        self.shared.device.alive()?;
        Ok(Arc::new(Queue::new(self.shared.clone())?))
    }

    fn usage(&self) -> MemoryUsage {
        *lock(&self.shared.usage)
    }

    fn shared_device(&self) -> Option<&str> {
        Some(&self.info().uuid)
    }

    fn heap_budgets(&self) -> Vec<HeapBudget> {
        self.shared.device.heap_budgets()
    }

    fn kernel_memory(&self) -> Option<KernelMemory> {
        self.shared.device.kernel_counts.as_ref().and_then(KernelCounts::read)
    }

    fn validation_messages(&self) -> Vec<String> {
        match self.shared.device.instance.messages() {
            Some(messages) => std::mem::take(&mut *lock(messages)),
            None => Vec::new(),
        }
    }
}

impl fmt::Debug for Context {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (buffers, kernels) = (read(&self.shared.buffers).len(), read(&self.shared.kernels).len());
        f.debug_struct("Context")
            .field("device", &self.shared.device.info.name)
            .field("buffers", &buffers)
            .field("kernels", &kernels)
            .finish_non_exhaustive()
    }
}
