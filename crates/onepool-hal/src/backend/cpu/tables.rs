//! What a context and its queues share: blocks and kernels.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use super::memory::Block;
use crate::backend::slots::SlotTable;
use crate::kernel::NativeKernel;
use crate::recording::{BufferId, DeviceKernelId};
use onepool_core::sync::lock;

/// Blocks and kernels by their handles, and how much memory there is.
#[derive(Debug, Default)]
pub(super) struct Tables {
    buffers: Mutex<SlotTable<BufferId, Arc<Block>>>,
    kernels: Mutex<SlotTable<DeviceKernelId, NativeKernel>>,
    pub(super) allocated: AtomicU64,
    pub(super) imported: AtomicU64,
    pub(super) allocations: AtomicU64,
    pub(super) imports: AtomicU64,
}

impl Tables {
    pub(super) fn buffers(&self) -> MutexGuard<'_, SlotTable<BufferId, Arc<Block>>> {
        lock(&self.buffers)
    }

    pub(super) fn kernels(&self) -> MutexGuard<'_, SlotTable<DeviceKernelId, NativeKernel>> {
        lock(&self.kernels)
    }

    pub(super) fn add(&self, block: Block) -> BufferId {
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
