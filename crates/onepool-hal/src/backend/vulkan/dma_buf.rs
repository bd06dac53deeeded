//! Buffers over the pages of a dma-buf (`VK_EXT_external_memory_dma_buf`, `VK_KHR_external_memory_fd`).

use ash::vk;

use super::device::Device;
use super::import::{external_buffer, refuse};
use super::importable::DMA_BUF;
use super::memory::{Buffer, Memory};
use crate::backend::{BufferInfo, DeviceError, HostAddress};
use onepool_core::memory::dma_buf::DmaBuf;

/// A buffer of all pages. The kernel keeps them as long as the buffer lives; `address` is where the process sees
/// them, which the driver is not told.
pub(super) fn import(device: &Device, pages: &DmaBuf, address: HostAddress) -> Result<Buffer, DeviceError> {
    let refused = |code: vk::Result| DeviceError::ImportRefused { code: code.as_raw() };
    let missing = refused(vk::Result::ERROR_EXTENSION_NOT_PRESENT);
    let (Some(functions), Some(descriptor)) = (&device.dma_bufs, pages.descriptor()) else {
        return Err(missing);
    };
    let bytes = pages.bytes();
    if bytes == 0 || bytes > device.info.limits.max_buffer_bytes {
        return Err(refused(vk::Result::ERROR_INVALID_EXTERNAL_HANDLE));
    }
    let mut properties = vk::MemoryFdPropertiesKHR::default();
    let turn = device.turn();
    // SAFETY: the extension is enabled and the descriptor is open and a dma-buf's, or the driver refuses it
    // (VUID-vkGetMemoryFdPropertiesKHR-fd-00673, -handleType-00674).
    unsafe { functions.get_memory_fd_properties(DMA_BUF, descriptor.number(), &mut properties) }
        .map_err(|code| refuse(device, "vkGetMemoryFdPropertiesKHR", code))?;
    drop(turn);
    let raw = external_buffer(device, DMA_BUF, bytes)?;
    let memory = back(device, raw, pages, properties.memory_type_bits).inspect_err(|_| {
        // SAFETY: nothing uses the buffer.
        unsafe { device.raw().destroy_buffer(raw, None) };
    })?;
    // Whatever the type says of the driver's own mappings, the process's needs DMA_BUF_IOCTL_SYNC.
    let info = BufferInfo {
        bytes,
        host: Some(address),
        coherent: false,
        cached: true,
        device_local: false,
        heap: device.info.memory.import_heap().unwrap_or_default(),
        imported: true,
    };
    Ok(Buffer::new(raw, info, Memory::Fd(memory)))
}

/// Memory that is the pages, bound to the fresh buffer `raw`.
fn back(
    device: &Device,
    raw: vk::Buffer,
    pages: &DmaBuf,
    bits: u32,
) -> Result<vk::DeviceMemory, DeviceError> {
    let refused = DeviceError::ImportRefused { code: vk::Result::ERROR_INVALID_EXTERNAL_HANDLE.as_raw() };
    let bytes = pages.bytes();
    // SAFETY: the buffer was made on this device.
    let requirements = unsafe { device.raw().get_buffer_memory_requirements(raw) };
    let bits = bits & requirements.memory_type_bits;
    // The process has a mapping of its own, so a type that the driver cannot map will do.
    let any = (0..32u32).find(|index| bits >> index & 1 == 1);
    let index = device.info.memory.import_candidates(bits).first().copied().or(any);
    let (Some(index), true) = (index, requirements.size <= bytes) else { return Err(refused) };
    // The driver closes what it takes.
    let own = pages.descriptor().and_then(|descriptor| descriptor.duplicate().ok()).ok_or(refused)?;
    let mut import = vk::ImportMemoryFdInfoKHR::default().handle_type(DMA_BUF).fd(own.number());
    let info = vk::MemoryAllocateInfo::default()
        .allocation_size(bytes)
        .memory_type_index(index)
        .push_next(&mut import);
    // SAFETY: a dma-buf of that many bytes and a type that the driver named for it
    // (VUID-VkImportMemoryFdInfoKHR-handleType-00670, VUID-VkMemoryAllocateInfo-memoryTypeIndex-00648).
    let memory = unsafe { device.raw().allocate_memory(&info, None) }
        .map_err(|code| refuse(device, "vkAllocateMemory", code))?;
    // The driver's now.
    let _ = own.into_number();
    // SAFETY: a fresh buffer with the handle type of the memory (VUID-vkBindBufferMemory-memory-02985), of a type it
    // allows, at offset 0.
    unsafe { device.raw().bind_buffer_memory(raw, memory, 0) }.map(|()| memory).map_err(|code| {
        // SAFETY: nothing uses the memory.
        unsafe { device.raw().free_memory(memory, None) };
        refuse(device, "vkBindBufferMemory", code)
    })
}
