//! Buffers and their memory.

use std::sync::Mutex;

use ash::vk;
use gpu_allocator::vulkan::{
    Allocation, AllocationCreateDesc, AllocationScheme, Allocator, AllocatorCreateDesc,
};
use gpu_allocator::{AllocationError, AllocationSizes, AllocatorDebugSettings, MemoryLocation};

use super::device::Device;
use super::external::External;
use super::image::Image;
use super::layer::Layer;
use super::types::BUFFER_USAGE;
use crate::backend::kept::{Kept, Lease};
use crate::backend::{BufferDesc, BufferInfo, DeviceError, HostAddress, Placement};
use crate::recording::BufferRange;
use onepool_core::memory::image::{ImageDesc, ImageView, Texel};
use onepool_core::sync::lock;

const MIB: u64 = 1 << 20;

/// A `VkBuffer` with its memory.
pub(super) struct Buffer {
    pub(super) raw: vk::Buffer,
    pub(super) info: BufferInfo,
    pub(super) memory: Memory,
    /// What recordings do about it before and after, where it stands for memory of the application's.
    pub(super) external: Option<External>,
    usage: vk::BufferUsageFlags,
    // Texel views by (format, offset, bytes).
    views: Mutex<Kept<(vk::Format, u64, u64), vk::BufferView>>,
    // Images by offset.
    images: Mutex<Kept<(u64, ImageDesc), Image>>,
}

/// What a buffer is made of.
pub(super) enum Memory {
    /// A piece of a block.
    Allocated(Allocation),
    /// The caller's pages: the object, and its size in bytes.
    Imported(vk::DeviceMemory, u64),
    /// Memory of a file descriptor. Pages of a dma-buf may be mapped by the process itself.
    Fd(vk::DeviceMemory),
    /// The application's, with the buffer.
    Foreign,
    /// The application's, without the buffer.
    Lent,
}

impl Buffer {
    pub(super) fn new(raw: vk::Buffer, info: BufferInfo, memory: Memory) -> Self {
        Buffer {
            raw,
            info,
            memory,
            external: None,
            usage: BUFFER_USAGE,
            views: Mutex::default(),
            images: Mutex::default(),
        }
    }

    /// A buffer of the application's.
    pub(super) fn foreign(raw: vk::Buffer, info: BufferInfo, usage: vk::BufferUsageFlags) -> Self {
        Buffer { usage, ..Buffer::new(raw, info, Memory::Foreign) }
    }

    /// # Errors
    /// [`DeviceError::Unsupported`] where the buffer was not made to be used so.
    pub(super) fn check_usage(&self, needed: vk::BufferUsageFlags) -> Result<(), DeviceError> {
        match self.usage.contains(needed) {
            true => Ok(()),
            false => Err(DeviceError::Unsupported {
                what: format!("this use of a buffer of the application's, which it made without {needed:?}"),
            }),
        }
    }

    /// Whether the range lies in the buffer.
    pub(super) fn check(&self, range: &BufferRange) -> Result<(), DeviceError> {
        let end = range.offset.saturating_add(range.bytes);
        if end > self.info.bytes {
            return Err(DeviceError::Limit { what: "a range's end", asked: end, limit: self.info.bytes });
        }
        Ok(())
    }

    /// The view of `[offset, offset + bytes)` as texels of `format`; made once, kept at least while the lease is.
    pub(super) fn texel_view(
        &self,
        device: &Device,
        format: vk::Format,
        offset: u64,
        bytes: u64,
    ) -> Result<(vk::BufferView, Lease), DeviceError> {
        let make = || {
            let info = vk::BufferViewCreateInfo::default()
                .buffer(self.raw)
                .format(format)
                .offset(offset)
                .range(bytes);
            // SAFETY: the buffer has both texel usages; the caller checked offset, range and alignment
            // (VUID-VkBufferViewCreateInfo-offset-02749, -range-00929, -range-00930, -offset-00931).
            unsafe { device.raw().create_buffer_view(&info, None) }
                .map_err(|code| device.error("vkCreateBufferView", code, 0))
        };
        let mut views = lock(&self.views);
        // SAFETY: no recording names it (VUID-vkDestroyBufferView-bufferView-00936).
        let drop = |view| unsafe { device.raw().destroy_buffer_view(view, None) };
        let (view, lease) = views.get((format, offset, bytes), make, drop)?;
        Ok((*view, lease))
    }

    /// The image at `offset`; made once, kept at least while the lease is.
    fn with_image<R>(
        &self,
        device: &Device,
        offset: u64,
        image: &ImageDesc,
        use_it: impl FnOnce(&Image) -> R,
    ) -> Result<(R, Lease), DeviceError> {
        let make = || {
            let Memory::Allocated(allocation) = &self.memory else {
                return Err(DeviceError::Unsupported { what: "images in imported memory".into() });
            };
            // SAFETY: the object is named in a binding and neither freed nor suballocated.
            let (memory, base) = unsafe { (allocation.memory(), allocation.offset()) };
            Image::new(device, memory, base + offset, base + self.info.bytes, image)
        };
        let mut images = lock(&self.images);
        // SAFETY: no recording names it.
        let drop = |image: Image| unsafe { image.destroy(device) };
        let (made, lease) = images.get((offset, *image), make, drop)?;
        Ok((use_it(made), lease))
    }

    /// How many views and images there are.
    #[cfg(test)]
    pub(super) fn objects(&self) -> usize {
        lock(&self.views).keys().count() + lock(&self.images).keys().count()
    }

    /// What a descriptor of the image at `offset` holds.
    pub(super) fn image(
        &self,
        device: &Device,
        offset: u64,
        view: &ImageView,
    ) -> Result<(vk::DescriptorImageInfo, Lease), DeviceError> {
        let sampler = device.sampler(view.filter)?;
        self.with_image(device, offset, &view.image, |image| image.descriptor(sampler))
    }

    /// The image at `offset`.
    pub(super) fn raw_image(
        &self,
        device: &Device,
        offset: u64,
        image: &ImageDesc,
    ) -> Result<(vk::Image, Lease), DeviceError> {
        self.with_image(device, offset, image, Image::raw)
    }

    /// The range that covers `[offset, offset + bytes)` of the buffer, where the driver mapped it.
    pub(super) fn mapped_range(
        &self,
        atom: u64,
        offset: u64,
        bytes: u64,
    ) -> Option<vk::MappedMemoryRange<'static>> {
        let (memory, base, end) = match &self.memory {
            // SAFETY: the object is named in a range and neither freed nor suballocated.
            Memory::Allocated(allocation) => unsafe {
                (allocation.memory(), allocation.offset(), allocation.offset() + allocation.size())
            },
            Memory::Imported(memory, bytes) => (*memory, 0, *bytes),
            Memory::Fd(_) | Memory::Foreign | Memory::Lent => return None,
        };
        let (start, bytes) = atoms(base + offset, bytes, atom, end);
        Some(vk::MappedMemoryRange::default().memory(memory).offset(start).size(bytes))
    }
}

/// `[start, start + bytes)` widened to whole atoms, up to `end`, which is the end of the memory or a multiple
/// of the atom itself.
fn atoms(start: u64, bytes: u64, atom: u64, end: u64) -> (u64, u64) {
    let first = start - start % atom;
    let last = start.saturating_add(bytes).checked_next_multiple_of(atom).unwrap_or(end).min(end);
    (first, last.saturating_sub(first))
}

/// Makes and frees buffers in blocks of memory.
pub(super) struct Pool {
    // Taken when the pool goes.
    allocator: Mutex<Option<Allocator>>,
    layer: Layer,
}

impl Pool {
    pub(super) fn new(device: &Device) -> Result<Self, DeviceError> {
        let mut debug_settings = AllocatorDebugSettings::default();
        debug_settings.log_leaks_on_shutdown = false;
        let desc = AllocatorCreateDesc {
            instance: device.instance.raw().clone(),
            device: device.raw().clone(),
            physical_device: device.physical,
            debug_settings,
            buffer_device_address: false,
            allocation_sizes: AllocationSizes::new(32 * MIB, 8 * MIB)
                .with_max_device_memblock_size(256 * MIB)
                .with_max_host_memblock_size(64 * MIB),
        };
        let _turn = device.turn();
        let allocator = Allocator::new(&desc).map_err(|cause| allocation_error(device, &cause, 0))?;
        Ok(Pool { allocator: Mutex::new(Some(allocator)), layer: device.instance.layer() })
    }

    /// A buffer in the best memory that has room.
    pub(super) fn create(&self, device: &Device, desc: &BufferDesc) -> Result<Buffer, DeviceError> {
        let limit = device.info.limits.max_buffer_bytes;
        if desc.bytes > limit {
            return Err(DeviceError::Limit { what: "a buffer", asked: desc.bytes, limit });
        }
        if desc.bytes == 0 {
            return Err(DeviceError::Unsupported { what: "a buffer of 0 bytes".into() });
        }
        let info = vk::BufferCreateInfo::default()
            .size(desc.bytes)
            .usage(BUFFER_USAGE)
            .sharing_mode(vk::SharingMode::EXCLUSIVE);
        // SAFETY: the size is neither 0 (VUID-VkBufferCreateInfo-size-00912) nor above the device's limit.
        let raw = unsafe { device.raw().create_buffer(&info, None) }
            .map_err(|code| device.error("vkCreateBuffer", code, desc.bytes))?;
        let result = self.back(device, desc, raw);
        if result.is_err() {
            // SAFETY: nothing uses the buffer yet.
            unsafe { device.raw().destroy_buffer(raw, None) };
        }
        result
    }

    fn back(&self, device: &Device, desc: &BufferDesc, raw: vk::Buffer) -> Result<Buffer, DeviceError> {
        // SAFETY: the buffer was made on this device.
        let requirements = unsafe { device.raw().get_buffer_memory_requirements(raw) };
        let mut refusal =
            DeviceError::Unsupported { what: format!("{:?} memory for buffers", desc.placement) };
        let model = &device.info.memory;
        for index in model.candidates(desc.placement, requirements.memory_type_bits) {
            let allocation = match self.allocate(device, desc, requirements, index) {
                Ok(allocation) => allocation,
                Err(full @ (DeviceError::OutOfDeviceMemory { .. } | DeviceError::OutOfHostMemory { .. })) => {
                    refusal = full;
                    continue;
                }
                Err(error) => return Err(error),
            };
            // SAFETY: fresh buffer, memory of a type it allows, at an offset with its alignment
            // (VUID-vkBindBufferMemory-memory-01035, -memoryOffset-01036).
            let bound =
                unsafe { device.raw().bind_buffer_memory(raw, allocation.memory(), allocation.offset()) };
            if let Err(code) = bound {
                self.give_back(allocation);
                return Err(device.error("vkBindBufferMemory", code, desc.bytes));
            }
            let flags = allocation.memory_properties();
            let info = BufferInfo {
                bytes: desc.bytes,
                host: allocation.mapped_ptr().map(|address| HostAddress(address.cast())),
                coherent: flags.contains(vk::MemoryPropertyFlags::HOST_COHERENT),
                cached: flags.contains(vk::MemoryPropertyFlags::HOST_CACHED),
                device_local: flags.contains(vk::MemoryPropertyFlags::DEVICE_LOCAL),
                heap: model.heap_of(index).unwrap_or_default(),
                imported: false,
            };
            return Ok(Buffer::new(raw, info, Memory::Allocated(allocation)));
        }
        Err(refusal)
    }

    fn allocate(
        &self,
        device: &Device,
        desc: &BufferDesc,
        requirements: vk::MemoryRequirements,
        index: u32,
    ) -> Result<Allocation, DeviceError> {
        // Whole atoms, so that flushing one buffer leaves its neighbours alone.
        let atom = device.info.limits.non_coherent_atom;
        // A place where an image may begin.
        let rules = device.info.images.as_ref().filter(|_| desc.placement == Placement::Device);
        let images = rules.map_or(1, |rules| rules.base.bytes(Texel::Rgba32F));
        let requirements = vk::MemoryRequirements {
            size: requirements.size.next_multiple_of(atom),
            alignment: requirements.alignment.max(atom).max(images),
            memory_type_bits: 1 << index,
        };
        let desc_allocation = AllocationCreateDesc {
            name: desc.label,
            requirements,
            location: MemoryLocation::Unknown,
            linear: true,
            allocation_scheme: AllocationScheme::GpuAllocatorManaged,
        };
        self.with_allocator(|allocator| allocator.allocate(&desc_allocation))
            .unwrap_or(Err(AllocationError::OutOfMemory))
            .map_err(|cause| allocation_error(device, &cause, desc.bytes))
    }

    fn give_back(&self, allocation: Allocation) {
        if let Some(Err(cause)) = self.with_allocator(|allocator| allocator.free(allocation)) {
            tracing::error!(target: "onepool::vulkan", %cause, "freeing memory failed");
        }
    }

    /// Calls the allocator, which calls the driver; `None` where it is gone.
    fn with_allocator<R>(&self, call: impl FnOnce(&mut Allocator) -> R) -> Option<R> {
        let mut allocator = lock(&self.allocator);
        let _turn = self.layer.turn();
        allocator.as_mut().map(call)
    }

    /// Frees a buffer.
    ///
    /// # Safety
    /// No unfinished submission uses the buffer.
    pub(super) unsafe fn destroy(&self, device: &Device, buffer: Buffer) {
        let Buffer { raw, memory, views, images, external, .. } = buffer;
        // SAFETY: the device is done with the buffer (VUID-vkDestroyBuffer-buffer-00922,
        // VUID-vkDestroyBufferView-bufferView-00936, VUID-vkFreeMemory-memory-00677) and no one else
        // holds these handles. Freeing the memory ends its mapping.
        unsafe {
            for view in lock(&views).drain() {
                device.raw().destroy_buffer_view(view, None);
            }
            for image in lock(&images).drain() {
                image.destroy(device);
            }
            if let Some(external) = external {
                external.destroy(device);
            }
            if !matches!(memory, Memory::Foreign) {
                device.raw().destroy_buffer(raw, None);
            }
            match memory {
                Memory::Foreign | Memory::Lent => {}
                Memory::Allocated(allocation) => self.give_back(allocation),
                Memory::Imported(memory, _) | Memory::Fd(memory) => device.raw().free_memory(memory, None),
            }
        }
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        let allocator = lock(&self.allocator).take();
        let _turn = self.layer.turn();
        // Frees its blocks.
        drop(allocator);
    }
}

fn allocation_error(device: &Device, cause: &AllocationError, bytes: u64) -> DeviceError {
    let code = match cause {
        AllocationError::OutOfMemory => vk::Result::ERROR_OUT_OF_DEVICE_MEMORY,
        // Whatever vkMapMemory says: the process has no room for it.
        AllocationError::FailedToMap(_) => vk::Result::ERROR_OUT_OF_HOST_MEMORY,
        // The allocator turns every other result of vkAllocateMemory into a sentence with its name.
        AllocationError::Internal(text) if text.contains("ERROR_OUT_OF_HOST_MEMORY") => {
            vk::Result::ERROR_OUT_OF_HOST_MEMORY
        }
        AllocationError::Internal(text) if text.contains("ERROR_DEVICE_LOST") => {
            vk::Result::ERROR_DEVICE_LOST
        }
        AllocationError::Internal(text) if text.contains("ERROR_TOO_MANY_OBJECTS") => {
            vk::Result::ERROR_TOO_MANY_OBJECTS
        }
        _ => vk::Result::ERROR_UNKNOWN,
    };
    tracing::debug!(target: "onepool::vulkan", %cause, bytes, "allocation failed");
    device.error("vkAllocateMemory", code, bytes)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn atoms_cover_the_range_and_stay_in_memory(
            start in 0u64..10_000, bytes in 0u64..10_000, shift in 0u32..9, slack in 0u64..1000,
        ) {
            let atom = 1 << shift;
            let end = start + bytes + slack;
            let (first, len) = atoms(start, bytes, atom, end);
            prop_assert_eq!(first % atom, 0);
            prop_assert!(first <= start && first + len >= start + bytes && first + len <= end);
            prop_assert!(len % atom == 0 || first + len == end);
        }
    }
}
