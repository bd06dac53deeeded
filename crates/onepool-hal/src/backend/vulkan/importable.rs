//! What a driver takes as memory of ours: pages of the host and dma-bufs.

use ash::vk;

use super::features::Extensions;
use super::types::BUFFER_USAGE;
use crate::backend::HostAddress;
use onepool_core::memory::host::HostRegion;
use onepool_core::memory::model::ImportTypes;

/// The handle type of pages of the host.
pub(super) const HOST_PAGES: vk::ExternalMemoryHandleTypeFlags =
    vk::ExternalMemoryHandleTypeFlags::HOST_ALLOCATION_EXT;
/// The handle type of a dma-buf.
pub(super) const DMA_BUF: vk::ExternalMemoryHandleTypeFlags = vk::ExternalMemoryHandleTypeFlags::DMA_BUF_EXT;

/// The memory types that the driver grants to a pointer, one bit each.
///
/// # Safety
/// The pointer has the alignment of imports and points to memory of the process.
pub(super) unsafe fn granted(
    functions: &ash::ext::external_memory_host::Device,
    raw: &ash::Device,
    address: HostAddress,
) -> Result<u32, vk::Result> {
    let mut properties = vk::MemoryHostPointerPropertiesEXT::default();
    // SAFETY: the extension is enabled, the pointer has its alignment
    // (VUID-vkGetMemoryHostPointerPropertiesEXT-pHostPointer-01753) and the caller vouches for the pages.
    let result = unsafe {
        (functions.fp().get_memory_host_pointer_properties_ext)(
            raw.handle(),
            HOST_PAGES,
            address.0.as_ptr().cast(),
            &mut properties,
        )
    };
    if result == vk::Result::SUCCESS { Ok(properties.memory_type_bits) } else { Err(result) }
}

/// Which types the driver grants to anonymous pages, asked with pages of our own.
pub(super) fn import_types(
    functions: &ash::ext::external_memory_host::Device,
    raw: &ash::Device,
    alignment: u64,
) -> ImportTypes {
    let room = usize::try_from(alignment).ok().and_then(|alignment| alignment.checked_mul(2));
    let Some(region) = room.and_then(|bytes| HostRegion::new(bytes).ok()) else {
        return ImportTypes::Unknown;
    };
    let base = region.as_ptr();
    let pad = base.as_ptr().align_offset((alignment as usize).max(1));
    if pad >= region.as_slice().len() {
        return ImportTypes::Unknown;
    }
    // SAFETY: `pad` lies inside the region, which lives until the call is over, and gives the alignment asked for.
    match unsafe { granted(functions, raw, HostAddress(base.add(pad))) } {
        Ok(bits) => ImportTypes::Bits(bits),
        Err(code) => {
            tracing::debug!(target: "onepool::vulkan", ?code, "no types for host pointers");
            ImportTypes::Bits(0)
        }
    }
}

/// Whether buffers of ours can be made of a dma-buf, with other buffers in the same memory.
pub(super) fn takes_dma_bufs(
    instance: &ash::Instance,
    physical: vk::PhysicalDevice,
    extensions: &Extensions,
) -> bool {
    let names = [ash::khr::external_memory_fd::NAME, ash::ext::external_memory_dma_buf::NAME];
    names.iter().all(|name| extensions.has(name)) && takes(instance, physical, DMA_BUF)
}

/// Whether buffers of ours can be made of an opaque descriptor, with other buffers in the same memory.
pub(super) fn takes_opaque_fds(
    instance: &ash::Instance,
    physical: vk::PhysicalDevice,
    extensions: &Extensions,
) -> bool {
    let opaque = vk::ExternalMemoryHandleTypeFlags::OPAQUE_FD;
    extensions.has(ash::khr::external_memory_fd::NAME) && takes(instance, physical, opaque)
}

/// Whether buffers of ours can be made of memory of a kind whose extension the device has.
fn takes(
    instance: &ash::Instance,
    physical: vk::PhysicalDevice,
    kind: vk::ExternalMemoryHandleTypeFlags,
) -> bool {
    let buffer = vk::PhysicalDeviceExternalBufferInfo::default().usage(BUFFER_USAGE).handle_type(kind);
    let mut found = vk::ExternalBufferProperties::default();
    // SAFETY: the handle is of this instance and the device speaks 1.1 and has the extension of the handle type.
    unsafe { instance.get_physical_device_external_buffer_properties(physical, &buffer, &mut found) };
    let features = found.external_memory_properties.external_memory_features;
    features.contains(vk::ExternalMemoryFeatureFlags::IMPORTABLE)
        && !features.contains(vk::ExternalMemoryFeatureFlags::DEDICATED_ONLY)
}
