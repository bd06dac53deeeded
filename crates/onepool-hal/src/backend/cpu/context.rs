//! The context: tables of blocks and kernels.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use super::memory::Block;
use super::queue::CpuQueue;
use crate::backend::slots::SlotTable;
use crate::backend::{
    BufferDesc, BufferInfo, ContextBackend, DeviceError, DeviceInfo, HostAddress, KernelDesc, MemoryUsage,
    QueueBackend, WaitPolicy,
};
use crate::kernel::NativeKernel;
use crate::recording::{BufferId, BufferRange, DeviceKernelId};
use onepool_core::sync::lock;

/// The CPU device, opened.
#[derive(Debug)]
pub(super) struct CpuContext {
    info: DeviceInfo,
    threads: usize,
    wait: WaitPolicy,
    tables: Arc<Tables>,
}

/// What a context and its queues share.
#[derive(Debug, Default)]
pub(super) struct Tables {
    buffers: Mutex<SlotTable<BufferId, Arc<Block>>>,
    kernels: Mutex<SlotTable<DeviceKernelId, NativeKernel>>,
    allocated: AtomicU64,
    imported: AtomicU64,
    allocations: AtomicU64,
    imports: AtomicU64,
}

impl Tables {
    pub(super) fn buffers(&self) -> MutexGuard<'_, SlotTable<BufferId, Arc<Block>>> {
        lock(&self.buffers)
    }

    pub(super) fn kernels(&self) -> MutexGuard<'_, SlotTable<DeviceKernelId, NativeKernel>> {
        lock(&self.kernels)
    }

    fn add(&self, block: Block) -> BufferId {
        let (live, ever) = if block.is_imported() {
            (&self.imported, &self.imports)
        } else {
            (&self.allocated, &self.allocations)
        };
        live.fetch_add(block.bytes(), Ordering::Relaxed);
        ever.fetch_add(1, Ordering::Relaxed);
        self.buffers().insert(Arc::new(block))
    }
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
