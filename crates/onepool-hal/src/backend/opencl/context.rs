//! The context that callers hold: its tables of buffers and kernels.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, RwLock};

use super::cache::BinaryCache;
use super::device::Device;
use super::kernel::Kernel;
use super::memory::Buffer;
use super::queue::Queue;
use super::tables::Tables;
use crate::backend::{
    BufferDesc, BufferInfo, ContextBackend, ContextDesc, DeviceError, DeviceInfo, HostAddress, KernelDesc,
    MemoryUsage, QueueBackend,
};
use crate::recording::{BufferId, BufferRange, DeviceKernelId};
use onepool_core::sync::{lock, read, write};

/// A device opened; its queues share what is in it and may outlive it.
pub(super) struct Context {
    pub(super) tables: Arc<Tables>,
}

impl Context {
    pub(super) fn new(device: Device, desc: &ContextDesc) -> Self {
        let cache = desc.cache_dir.as_deref().map(|dir| BinaryCache::new(dir, &device.info.uuid));
        let tables = Tables {
            buffers: RwLock::default(),
            kernels: RwLock::default(),
            wait: desc.wait,
            usage: Mutex::default(),
            destroyed: AtomicU64::new(0),
            cache,
            device,
        };
        Context { tables: Arc::new(tables) }
    }

    fn add(&self, buffer: Buffer) -> BufferId {
        let mut usage = lock(&self.tables.usage);
        if buffer.info.imported {
            usage.imported += buffer.info.bytes;
            usage.imports += 1;
        } else {
            usage.allocated += buffer.info.bytes;
            usage.allocations += 1;
        }
        drop(usage);
        write(&self.tables.buffers).insert(buffer)
    }
}

impl ContextBackend for Context {
    fn info(&self) -> &DeviceInfo {
        &self.tables.device.info
    }

    fn create_buffer(&self, desc: &BufferDesc) -> Result<BufferId, DeviceError> {
        let device = &self.tables.device;
        device.alive()?;
        Ok(self.add(Buffer::new(device, desc).map_err(|error| device.note(error))?))
    }

    unsafe fn import_host(&self, address: HostAddress, bytes: u64) -> Result<BufferId, DeviceError> {
        let device = &self.tables.device;
        device.alive()?;
        // SAFETY: what this function asks of its caller.
        let buffer = unsafe { Buffer::import(device, address, bytes) };
        Ok(self.add(buffer.map_err(|error| device.note(error))?))
    }

    fn buffer_info(&self, buffer: BufferId) -> Result<BufferInfo, DeviceError> {
        read(&self.tables.buffers).get(buffer).map(|buffer| buffer.info)
    }

    fn flush(&self, ranges: &[BufferRange]) -> Result<(), DeviceError> {
        let device = &self.tables.device;
        device.alive()?;
        let buffers = read(&self.tables.buffers);
        ranges.iter().try_for_each(|range| {
            buffers.get(range.buffer)?.flush(device, range).map_err(|error| device.note(error))
        })
    }

    fn invalidate(&self, ranges: &[BufferRange]) -> Result<(), DeviceError> {
        let device = &self.tables.device;
        device.alive()?;
        let buffers = read(&self.tables.buffers);
        ranges.iter().try_for_each(|range| {
            buffers.get(range.buffer)?.invalidate(device, range).map_err(|error| device.note(error))
        })
    }

    fn destroy_buffer(&self, buffer: BufferId) {
        let tables = &*self.tables;
        let Ok(buffer) = write(&tables.buffers).remove(buffer) else { return };
        tables.destroyed.fetch_add(1, Ordering::Release);
        let mut usage = lock(&tables.usage);
        let counter = if buffer.info.imported { &mut usage.imported } else { &mut usage.allocated };
        *counter = counter.saturating_sub(buffer.info.bytes);
        drop(usage);
        // SAFETY: the caller's duty is that no unfinished submission uses it; it left the table.
        unsafe { buffer.destroy(&tables.device) };
    }

    fn create_kernel(&self, desc: &KernelDesc<'_>) -> Result<DeviceKernelId, DeviceError> {
        let tables = &*self.tables;
        tables.device.alive()?;
        // No lock meanwhile: programs are built by several threads at once.
        let kernel = Kernel::new(&tables.device, tables.cache.as_ref(), desc)?;
        Ok(write(&tables.kernels).insert(kernel))
    }

    fn destroy_kernel(&self, kernel: DeviceKernelId) {
        let removed = write(&self.tables.kernels).remove(kernel);
        if removed.is_ok() {
            self.tables.destroyed.fetch_add(1, Ordering::Release);
        }
    }

    fn create_queue(&self) -> Result<Arc<dyn QueueBackend>, DeviceError> {
        self.tables.device.alive()?;
        Ok(Arc::new(Queue::new(Arc::clone(&self.tables))?))
    }

    fn usage(&self) -> MemoryUsage {
        *lock(&self.tables.usage)
    }

    fn shared_device(&self) -> Option<&str> {
        Some(&self.info().uuid)
    }
}

impl fmt::Debug for Context {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (buffers, kernels) = (read(&self.tables.buffers).len(), read(&self.tables.kernels).len());
        f.debug_struct("Context")
            .field("device", &self.tables.device.info.name)
            .field("buffers", &buffers)
            .field("kernels", &kernels)
            .finish_non_exhaustive()
    }
}
