//! Kernels and their arguments.

use std::sync::Arc;

use super::buffer::Buffer;
use super::core::Core;
use super::error::{Error, UsageError};
use crate::backend::{ContextBackend, KernelDesc};
use crate::kernel::{KernelSource, NativeKernel};
use crate::memory::coherency::Access;
use crate::recording::{Arg, DeviceKernelId};

/// What a context knows a kernel by: its source and its specialization constants.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum KernelKey {
    /// A source kept by the kernel itself, so that its address names it while the kernel lives.
    Source(usize, Box<[(u32, u32)]>),
}

#[derive(Debug)]
pub(super) struct KernelInner {
    backend: Arc<dyn ContextBackend>,
    core: std::sync::Weak<Core>,
    pub(super) id: DeviceKernelId,
    pub(super) source: Arc<KernelSource>,
}

impl Drop for KernelInner {
    fn drop(&mut self) {
        if let Some(core) = self.core.upgrade() {
            core.state().kernels.remove(&self.id);
        }
        self.backend.destroy_kernel(self.id);
    }
}

/// A kernel on one context. A clone is another handle of it.
#[derive(Clone, Debug)]
pub struct Kernel {
    pub(super) inner: Arc<KernelInner>,
}

impl Kernel {
    pub(super) fn create(
        core: &Arc<Core>,
        source: &Arc<KernelSource>,
        spec: &[(u32, u32)],
    ) -> Result<Kernel, Error> {
        let key = KernelKey::Source(Arc::as_ptr(source).addr(), spec.into());
        if let Some(inner) = super::core::lock(&core.kernels).get(&key).and_then(std::sync::Weak::upgrade) {
            return Ok(Kernel { inner });
        }
        // Compiled outside the lock: two threads may build the same kernel, and the later one is kept.
        let id = core.backend.create_kernel(&KernelDesc { source, spec })?;
        let inner = Arc::new(KernelInner {
            backend: Arc::clone(&core.backend),
            core: Arc::downgrade(core),
            id,
            source: Arc::clone(source),
        });
        core.state().kernels.insert(id, Arc::downgrade(&inner));
        let mut cache = super::core::lock(&core.kernels);
        if cache.len() >= 64 && cache.len().is_power_of_two() {
            cache.retain(|_, kernel| kernel.strong_count() > 0);
        }
        cache.insert(key, Arc::downgrade(&inner));
        Ok(Kernel { inner })
    }

    pub(super) fn native(core: &Arc<Core>, native: NativeKernel) -> Result<Kernel, Error> {
        Kernel::create(core, &Arc::new(KernelSource::from_native(native)), &[])
    }

    /// The kernel as a recording names it.
    pub fn id(&self) -> DeviceKernelId {
        self.inner.id
    }

    /// Where it came from.
    pub fn source(&self) -> &Arc<KernelSource> {
        &self.inner.source
    }
}

impl KernelInner {
    /// Checks a call against what is known of the kernel's interface.
    pub(super) fn check_call(&self, _: &'static str, _: &[Arg], _: &[u8]) -> Result<(), UsageError> {
        Ok(())
    }

    /// The work-group size, where the kernel has one.
    pub(super) fn local_size(&self) -> Option<[u32; 3]> {
        None
    }
}

/// One argument of an enqueued kernel.
#[derive(Clone, Copy, Debug)]
pub enum KernelArg<'a> {
    /// An optional argument that is not given (native kernels only).
    Absent,
    /// The kernel reads it.
    Read(&'a Buffer),
    /// The kernel writes it.
    Write(&'a Buffer),
    /// The kernel reads and writes it.
    ReadWrite(&'a Buffer),
}

impl KernelArg<'_> {
    pub(super) fn to_arg(self) -> Arg {
        match self {
            KernelArg::Absent => Arg::Absent,
            KernelArg::Read(buffer) => Arg::Buffer(buffer.range(), Access::KERNEL_READ),
            KernelArg::Write(buffer) => Arg::Buffer(buffer.range(), Access::KERNEL_WRITE),
            KernelArg::ReadWrite(buffer) => {
                Arg::Buffer(buffer.range(), Access::KERNEL_READ | Access::KERNEL_WRITE)
            }
        }
    }
}
