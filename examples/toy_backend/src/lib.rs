//! A device backend in a crate outside onepool: the smallest that runs a model.
//!
//! The "device" runs native functions, one after the other, when a recording is submitted; nothing is ever
//! unfinished. It works on copies of its buffers' bytes, as a device with memory of its own would, so the
//! only `unsafe` is in the few lines that copy from and to mapped memory.
//!
//! ```
//! use onepool::backend::ContextDesc;
//! use onepool::registry::Registry;
//!
//! let mut registry = Registry::with_defaults();
//! registry.register(Box::new(toy_backend::ToyDriver));
//! let context = registry.open("toy", &ContextDesc::default())?;
//! assert_eq!(context.info().name, "toy");
//! # Ok::<(), onepool::registry::OpenError>(())
//! ```

mod memory;
mod queue;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use onepool::backend::slots::SlotTable;
use onepool::backend::{
    BufferDesc, BufferInfo, ContextBackend, ContextDesc, DeviceError, DeviceInfo, DeviceKind, Driver,
    HostAddress, KernelDesc, Limits, MemoryUsage, QueueBackend,
};
use onepool::kernel::{NativeKernel, Requires};
use onepool::memory::model::{ImportTypes, MemoryModel};
use onepool::recording::{BufferId, BufferRange, DeviceKernelId};

use memory::Memory;
use queue::ToyQueue;

/// Opens the one device there is.
#[derive(Clone, Copy, Debug, Default)]
pub struct ToyDriver;

impl Driver for ToyDriver {
    fn api(&self) -> &'static str {
        "toy"
    }

    fn devices(&self) -> Result<Vec<DeviceInfo>, DeviceError> {
        Ok(vec![info()])
    }

    fn open(&self, index: usize, _: &ContextDesc) -> Result<Arc<dyn ContextBackend>, DeviceError> {
        if index != 0 {
            return Err(DeviceError::Unsupported { what: format!("device {index}; there is only device 0") });
        }
        Ok(Arc::new(ToyContext { info: info(), tables: Arc::default() }))
    }
}

fn info() -> DeviceInfo {
    let all = 1 << 32;
    DeviceInfo {
        api: "toy",
        name: "toy".to_owned(),
        kind: DeviceKind::Other,
        driver: env!("CARGO_PKG_NAME").to_owned(),
        api_version: env!("CARGO_PKG_VERSION").to_owned(),
        uuid: "toy".to_owned(),
        index: 0,
        same_as: None,
        unusable: None,
        // One memory for both sides, of which the application's is copied.
        memory: MemoryModel::one_pool(DeviceKind::Other, all).importing(ImportTypes::None),
        // Kernels are native functions: every operator of onepool has one.
        native: true,
        // A command is over before the next one begins, and the host sees the same memory.
        in_order: true,
        splits_grids: false,
        orders_groups: true,
        images: None,
        limits: Limits {
            max_argument_bytes: all,
            max_buffer_bytes: all,
            argument_alignment: 8,
            texel_alignment: 16,
            max_texels: 1 << 27,
            max_groups: [u32::MAX; 3],
            max_group_items: u32::MAX,
            max_group_size: [u32::MAX; 3],
            max_local_bytes: u32::MAX,
            max_params_bytes: 1 << 16,
            max_arguments: 1 << 16,
            non_coherent_atom: 1,
        },
        features: Requires::NONE,
        emulated: Requires::NONE,
        // Memory of the application is copied.
        import: None,
        subgroup: 1,
        subgroup_range: [1, 1],
        timestamp_ns: 0.0,
        processors: None,
        prefers_texels: false,
        most_iterations: None,
        advice: vec!["this device shows how a backend is written; use another one".to_owned()],
    }
}

/// What the context and its queues share.
#[derive(Debug, Default)]
struct Tables {
    buffers: Mutex<SlotTable<BufferId, Memory>>,
    kernels: Mutex<SlotTable<DeviceKernelId, NativeKernel>>,
    usage: Mutex<MemoryUsage>,
}

#[derive(Debug)]
struct ToyContext {
    info: DeviceInfo,
    tables: Arc<Tables>,
}

impl ContextBackend for ToyContext {
    fn info(&self) -> &DeviceInfo {
        &self.info
    }

    fn create_buffer(&self, desc: &BufferDesc) -> Result<BufferId, DeviceError> {
        let memory = Memory::new(desc.bytes)?;
        let mut usage = lock(&self.tables.usage);
        usage.allocated += desc.bytes;
        usage.allocations += 1;
        drop(usage);
        Ok(lock(&self.tables.buffers).insert(memory))
    }

    unsafe fn import_host(&self, _: HostAddress, _: u64) -> Result<BufferId, DeviceError> {
        Err(DeviceError::ImportRefused { code: 0 })
    }

    fn buffer_info(&self, buffer: BufferId) -> Result<BufferInfo, DeviceError> {
        let buffers = lock(&self.tables.buffers);
        let memory = buffers.get(buffer)?;
        Ok(BufferInfo {
            bytes: memory.bytes(),
            host: Some(memory.address()),
            coherent: true,
            cached: true,
            device_local: true,
            heap: 0,
            imported: false,
        })
    }

    fn flush(&self, _: &[BufferRange]) -> Result<(), DeviceError> {
        Ok(())
    }

    fn invalidate(&self, _: &[BufferRange]) -> Result<(), DeviceError> {
        Ok(())
    }

    fn destroy_buffer(&self, buffer: BufferId) {
        let removed = lock(&self.tables.buffers).remove(buffer);
        if let Ok(memory) = removed {
            lock(&self.tables.usage).allocated -= memory.bytes();
        }
    }

    fn create_kernel(&self, desc: &KernelDesc<'_>) -> Result<DeviceKernelId, DeviceError> {
        match desc.source.native() {
            Some(native) => Ok(lock(&self.tables.kernels).insert(native.clone())),
            None => Err(DeviceError::Unsupported {
                what: format!("kernel {}, which has no native function", desc.source.name()),
            }),
        }
    }

    fn destroy_kernel(&self, kernel: DeviceKernelId) {
        let removed = lock(&self.tables.kernels).remove(kernel);
        drop(removed);
    }

    fn create_queue(&self) -> Result<Arc<dyn QueueBackend>, DeviceError> {
        Ok(Arc::new(ToyQueue::new(Arc::clone(&self.tables))))
    }

    fn usage(&self) -> MemoryUsage {
        *lock(&self.tables.usage)
    }
}

/// A kernel that panics is an error of its submission and leaves the tables whole.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
