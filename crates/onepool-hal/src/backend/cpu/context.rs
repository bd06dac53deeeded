//! The context.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::memory::Block;
use super::queue::CpuQueue;
use super::tables::Tables;
use crate::backend::{
    BufferDesc, BufferInfo, ContextBackend, DeviceError, DeviceInfo, HostAddress, KernelDesc, MemoryUsage,
    QueueBackend, WaitPolicy,
};
use crate::recording::{BufferId, BufferRange, DeviceKernelId};

/// The CPU device, opened.
#[derive(Debug)]
pub(super) struct CpuContext {
    info: DeviceInfo,
    threads: usize,
    wait: WaitPolicy,
    tables: Arc<Tables>,
}

impl CpuContext {
    pub(super) fn new(info: DeviceInfo, threads: usize, wait: WaitPolicy) -> CpuContext {
        CpuContext { info, threads, wait, tables: Arc::new(Tables::default()) }
    }
}

impl ContextBackend for CpuContext {
    fn info(&self) -> &DeviceInfo {
        &self.info
    }

    fn create_buffer(&self, desc: &BufferDesc) -> Result<BufferId, DeviceError> {
        Ok(self.tables.add(Block::allocate(desc.bytes)?))
    }

    #[allow(unsafe_code, reason = "the trait's contract; the pointer is only kept here")]
    unsafe fn import_host(&self, address: HostAddress, bytes: u64) -> Result<BufferId, DeviceError> {
        Ok(self.tables.add(Block::imported(address, bytes)?))
    }

    fn buffer_info(&self, buffer: BufferId) -> Result<BufferInfo, DeviceError> {
        let table = self.tables.buffers();
        let block = table.get(buffer)?;
        Ok(BufferInfo {
            bytes: block.bytes(),
            host: Some(block.address()),
            coherent: true,
            cached: true,
            device_local: true,
            heap: 0,
            imported: block.is_imported(),
        })
    }

    fn flush(&self, _: &[BufferRange]) -> Result<(), DeviceError> {
        Ok(())
    }

    fn invalidate(&self, _: &[BufferRange]) -> Result<(), DeviceError> {
        Ok(())
    }

    fn destroy_buffer(&self, buffer: BufferId) {
        let removed = self.tables.buffers().remove(buffer);
        if let Ok(block) = removed {
            block.retire();
            let live = if block.is_imported() { &self.tables.imported } else { &self.tables.allocated };
            live.fetch_sub(block.bytes(), Ordering::Relaxed);
        }
    }

    fn create_kernel(&self, desc: &KernelDesc<'_>) -> Result<DeviceKernelId, DeviceError> {
        match desc.source.native() {
            Some(native) => Ok(self.tables.kernels().insert(native.clone())),
            None => Err(DeviceError::Unsupported {
                what: format!("kernel {}, which has no native function", desc.source.name()),
            }),
        }
    }

    fn destroy_kernel(&self, kernel: DeviceKernelId) {
        // A stale handle names nothing that could be destroyed.
        let removed = self.tables.kernels().remove(kernel);
        drop(removed);
    }

    fn create_queue(&self) -> Result<Arc<dyn QueueBackend>, DeviceError> {
        Ok(Arc::new(CpuQueue::new(Arc::clone(&self.tables), self.threads, self.wait)?))
    }

    fn usage(&self) -> MemoryUsage {
        let tables = &self.tables;
        MemoryUsage {
            allocated: tables.allocated.load(Ordering::Relaxed),
            imported: tables.imported.load(Ordering::Relaxed),
            allocations: tables.allocations.load(Ordering::Relaxed),
            imports: tables.imports.load(Ordering::Relaxed),
        }
    }
}
