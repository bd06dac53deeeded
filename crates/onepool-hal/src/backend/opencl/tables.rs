//! What a context and its queues have in common: the device and the tables of buffers and kernels.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, RwLock};

use super::cache::BinaryCache;
use super::device::Device;
use super::kernel::Kernel;
use super::memory::Buffer;
use crate::backend::slots::SlotTable;
use crate::backend::{MemoryUsage, WaitPolicy};
use crate::recording::{BufferId, DeviceKernelId};
use onepool_core::sync::write;

/// Lives as long as the context or one of its queues.
pub(super) struct Tables {
    pub(super) buffers: RwLock<SlotTable<BufferId, Buffer>>,
    pub(super) kernels: RwLock<SlotTable<DeviceKernelId, Kernel>>,
    pub(super) wait: WaitPolicy,
    pub(super) usage: Mutex<MemoryUsage>,
    // Counts destroyed buffers and kernels, so that a prepared recording knows when to look whether
    // its own are still there.
    pub(super) destroyed: AtomicU64,
    pub(super) cache: Option<BinaryCache>,
    pub(super) device: Device,
}

impl Tables {
    /// How many buffers and kernels were destroyed so far.
    pub(super) fn destroyed(&self) -> u64 {
        self.destroyed.load(Ordering::Acquire)
    }
}

impl Drop for Tables {
    fn drop(&mut self) {
        // Queues hold the tables, and have waited for their work.
        for buffer in write(&self.buffers).drain() {
            // SAFETY: no one has the context any more.
            unsafe { buffer.destroy(&self.device) };
        }
    }
}
