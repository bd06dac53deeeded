//! A real device that says something else of itself.

#![allow(unsafe_code, reason = "a backend passes an import on, and copies between mappings")]
#![allow(dead_code, reason = "each test uses a part")]

use std::collections::HashMap;
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, MutexGuard};

use onepool::backend::{
    BufferDesc, BufferInfo, ContextBackend, DeviceError, DeviceInfo, DeviceKind, HostAddress, KernelDesc,
    MemoryUsage, Placement, QueueBackend,
};
use onepool::device::Context;
use onepool::kernel::{KernelSource, Requires};
use onepool::memory::model::{ImportTypes, MemoryModel};
use onepool::recording::{BufferId, BufferRange, DeviceKernelId};

/// What takes the place of a kernel, by its name.
type Replaced = Box<dyn Fn(&str) -> Option<KernelSource> + Send + Sync>;

/// A context with another [`DeviceInfo`] than its own.
pub(crate) struct Disguised {
    real: Arc<dyn ContextBackend>,
    info: DeviceInfo,
    /// Mapped memory that is copied from and to the device's by flush and invalidate, by buffer; `None` where the
    /// device's own is mapped.
    separate: Option<Mutex<HashMap<BufferId, Vec<u64>>>>,
    /// Kernels that it does not build: those in whose names this is.
    refused: Option<&'static str>,
    /// Kernels that others take the place of.
    replaced: Option<Replaced>,
}

impl std::fmt::Debug for Disguised {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Disguised({:?})", self.info.name)
    }
}

impl Disguised {
    /// `real`, as `change` has it.
    pub(crate) fn new(real: Arc<dyn ContextBackend>, change: impl FnOnce(&mut DeviceInfo)) -> Disguised {
        let mut info = real.info().clone();
        change(&mut info);
        Disguised { real, info, separate: None, refused: None, replaced: None }
    }

    /// `real` with cooperative matrices, in subgroups of 32, as `change` has it.
    pub(crate) fn with_matrices(
        real: Arc<dyn ContextBackend>,
        change: impl FnOnce(&mut DeviceInfo),
    ) -> Disguised {
        let promised = [
            Requires::MATRIX_F16,
            Requires::COOPERATIVE_MATRIX,
            Requires::VULKAN_MEMORY_MODEL,
            Requires::FLOAT16,
            Requires::STORAGE_16,
            Requires::SUBGROUP_BASIC,
        ];
        Disguised::new(real, |info| {
            info.features = promised.into_iter().fold(info.features, Requires::union);
            (info.subgroup, info.prefers_texels) = (32, false);
            change(info);
        })
    }

    /// The same as a device whose driver builds no kernel in whose name `part` is.
    pub(crate) fn refusing(mut self, part: &'static str) -> Disguised {
        self.refused = Some(part);
        self
    }

    /// The same as a device that builds the kernels that `replaced` has for a name in place of those that are asked for.
    pub(crate) fn replacing(
        mut self,
        replaced: impl Fn(&str) -> Option<KernelSource> + Send + Sync + 'static,
    ) -> Disguised {
        self.replaced = Some(Box::new(replaced));
        self
    }

    fn separate(&self) -> Option<MutexGuard<'_, HashMap<BufferId, Vec<u64>>>> {
        self.separate.as_ref().map(|separate| separate.lock().unwrap())
    }

    /// The addresses of a range in the device's memory and in what lies next to it.
    fn both(&self, range: &BufferRange) -> Result<Option<[NonNull<u8>; 2]>, DeviceError> {
        let at = range.offset as usize;
        let Some(mut separate) = self.separate() else { return Ok(None) };
        let Some(copy) = separate.get_mut(&range.buffer) else { return Ok(None) };
        let bytes: &mut [u8] = bytemuck::cast_slice_mut(copy);
        let copy = NonNull::from(&mut bytes[at..at + range.bytes as usize]).cast();
        let real = self.real.buffer_info(range.buffer)?.host.unwrap().0;
        // SAFETY: the range lies in the buffer, as the line above checked for one of the same length.
        Ok(Some([unsafe { real.add(at) }, copy]))
    }
}

/// A device as one across a bus: it imports nothing, its memory is its own, and what the host maps is copied by flush and
/// invalidate, as drivers of OpenCL do.
pub(crate) fn behind_a_bus(real: Arc<dyn ContextBackend>) -> Context {
    let mut disguised = Disguised::new(real, |info| {
        (info.kind, info.import) = (DeviceKind::Discrete, None);
        info.memory =
            MemoryModel::two_pools(DeviceKind::Discrete, 1 << 32, 1 << 32).importing(ImportTypes::None);
        info.name = format!("{} behind a bus", info.name);
    });
    disguised.separate = Some(Mutex::default());
    Context::new(Arc::new(disguised))
}

impl ContextBackend for Disguised {
    fn info(&self) -> &DeviceInfo {
        &self.info
    }

    fn create_buffer(&self, desc: &BufferDesc) -> Result<BufferId, DeviceError> {
        let buffer = self.real.create_buffer(desc)?;
        if let Some(mut separate) = self.separate()
            && desc.placement != Placement::Device
        {
            separate.insert(buffer, vec![0x7ff8_dead_7ff8_dead; desc.bytes.div_ceil(8) as usize]);
        }
        Ok(buffer)
    }

    unsafe fn import_host(&self, address: HostAddress, bytes: u64) -> Result<BufferId, DeviceError> {
        // SAFETY: as the caller promises.
        unsafe { self.real.import_host(address, bytes) }
    }

    fn buffer_info(&self, buffer: BufferId) -> Result<BufferInfo, DeviceError> {
        let info = self.real.buffer_info(buffer)?;
        let Some(mut separate) = self.separate() else { return Ok(info) };
        let address = separate.get_mut(&buffer).map(|copy| HostAddress(NonNull::from(&mut copy[..]).cast()));
        Ok(BufferInfo { host: address, coherent: address.is_none(), cached: true, ..info })
    }

    fn flush(&self, ranges: &[BufferRange]) -> Result<(), DeviceError> {
        for range in ranges {
            match self.both(range)? {
                // SAFETY: both are as long as the range, apart, and used by no one else, which is the caller's duty.
                Some([real, copy]) => unsafe { real.copy_from_nonoverlapping(copy, range.bytes as usize) },
                None => self.real.flush(&[*range])?,
            }
        }
        Ok(())
    }

    fn invalidate(&self, ranges: &[BufferRange]) -> Result<(), DeviceError> {
        for range in ranges {
            match self.both(range)? {
                // SAFETY: as for `flush`.
                Some([real, copy]) => unsafe { copy.copy_from_nonoverlapping(real, range.bytes as usize) },
                None => self.real.invalidate(&[*range])?,
            }
        }
        Ok(())
    }

    fn destroy_buffer(&self, buffer: BufferId) {
        self.real.destroy_buffer(buffer);
        if let Some(mut separate) = self.separate() {
            separate.remove(&buffer);
        }
    }

    fn create_kernel(&self, desc: &KernelDesc<'_>) -> Result<DeviceKernelId, DeviceError> {
        let name = desc.source.name();
        if self.refused.is_some_and(|part| name.contains(part)) {
            let log = "the driver could not compile it".to_owned();
            return Err(DeviceError::Program { kernel: name.to_owned(), log });
        }
        match self.replaced.as_ref().and_then(|replaced| replaced(name)) {
            Some(source) => self.real.create_kernel(&KernelDesc { source: &source, spec: desc.spec }),
            None => self.real.create_kernel(desc),
        }
    }

    fn destroy_kernel(&self, kernel: DeviceKernelId) {
        self.real.destroy_kernel(kernel);
    }

    fn create_queue(&self) -> Result<Arc<dyn QueueBackend>, DeviceError> {
        self.real.create_queue()
    }

    fn usage(&self) -> MemoryUsage {
        self.real.usage()
    }

    fn validation_messages(&self) -> Vec<String> {
        self.real.validation_messages()
    }
}
