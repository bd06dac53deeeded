//! What a context and its queues have in common: the device and the tables of buffers and kernels.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, RwLock};

use super::cache::PipelineCache;
use super::device::Device;
use super::kernel::Kernel;
use super::memory::{Buffer, Pool};
use crate::backend::slots::SlotTable;
use crate::backend::{MemoryUsage, WaitPolicy};
use crate::recording::{BufferId, DeviceKernelId};
use onepool_core::sync::write;

/// Lives as long as the context or one of its queues.
pub(super) struct Shared {
    pub(super) buffers: RwLock<SlotTable<BufferId, Buffer>>,
    pub(super) kernels: RwLock<SlotTable<DeviceKernelId, Kernel>>,
    pub(super) wait: WaitPolicy,
    pub(super) usage: Mutex<MemoryUsage>,
    // Counts destroyed buffers and kernels, so that a prepared recording knows when to look whether
    // its own are still there.
    pub(super) destroyed: AtomicU64,
    pub(super) cache: PipelineCache,
    // Frees its blocks before the device goes.
    pub(super) pool: Pool,
    pub(super) device: Device,
}

impl Shared {
    /// How many buffers and kernels were destroyed so far.
    pub(super) fn destroyed(&self) -> u64 {
        self.destroyed.load(Ordering::Acquire)
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        // Queues hold the context and are gone; a submission of theirs may be unfinished only if waiting failed.
        self.device.wait_idle();
        for kernel in write(&self.kernels).drain() {
            // SAFETY: the device is idle.
            unsafe { kernel.destroy(&self.device) };
        }
        for buffer in write(&self.buffers).drain() {
            // SAFETY: the device is idle.
            unsafe { self.pool.destroy(&self.device, buffer) };
        }
        // SAFETY: no one else has the context, so no one is making a pipeline.
        unsafe { self.cache.close(&self.device) };
    }
}
