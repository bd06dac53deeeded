//! Buffers over the application's own pages (`VK_EXT_external_memory_host`).

use ash::vk;

use super::device::Device;
use super::importable::{HOST_PAGES, granted};
use super::memory::{Buffer, Memory};
use super::types::BUFFER_USAGE;
use crate::backend::{BufferInfo, DeviceError, HostAddress};
use onepool_core::memory::model::TypeFlags;

/// A buffer that is `[address, address + bytes)`.
///
/// # Safety
/// The pages stay mapped and accessible until the buffer is destroyed, and no page is part of another
/// live import of this device.
pub(super) unsafe fn import(
    device: &Device,
    address: HostAddress,
    bytes: u64,
) -> Result<Buffer, DeviceError> {
    let refused = |code: vk::Result| DeviceError::ImportRefused { code: code.as_raw() };
    let (Some(functions), Some(rules)) = (&device.host_memory, &device.info.import) else {
        return Err(refused(vk::Result::ERROR_EXTENSION_NOT_PRESENT));
    };
    // Software drivers take anything and fault later, so what a driver ought to refuse is refused here.
    let aligned = (address.0.addr().get() as u64).is_multiple_of(rules.alignment)
        && bytes.is_multiple_of(rules.size_multiple)
        && bytes > 0;
    if !aligned || bytes > rules.max_bytes {
        return Err(refused(vk::Result::ERROR_INVALID_EXTERNAL_HANDLE));
    }
    // SAFETY: the pointer has the alignment, and the caller vouches for the pages.
    let bits = unsafe { granted(functions, &device.raw(), address) }
        .map_err(|code| refuse(device, "vkGetMemoryHostPointerPropertiesEXT", code))?;
    let raw = external_buffer(device, HOST_PAGES, bytes)?;
    // SAFETY: as the caller promises; the buffer is fresh.
    let result = unsafe { bind(device, raw, address, bytes, bits) };
    if result.is_err() {
        // SAFETY: nothing uses the buffer.
        unsafe { device.raw().destroy_buffer(raw, None) };
    }
    result
}

/// A buffer of `bytes` bytes (not 0) that memory of a kind is to be bound to, of which buffers were found importable
/// when the device was probed.
pub(super) fn external_buffer(
    device: &Device,
    handle: vk::ExternalMemoryHandleTypeFlags,
    bytes: u64,
) -> Result<vk::Buffer, DeviceError> {
    let mut external = vk::ExternalMemoryBufferCreateInfo::default().handle_types(handle);
    let mut info = vk::BufferCreateInfo::default()
        .size(bytes)
        .usage(BUFFER_USAGE)
        .sharing_mode(vk::SharingMode::EXCLUSIVE);
    if !handle.is_empty() {
        info = info.push_next(&mut external);
    }
    // SAFETY: the callers found the size not to be 0, and the kind importable (VUID-VkBufferCreateInfo-size-00912,
    // -pNext-00920).
    unsafe { device.raw().create_buffer(&info, None) }
        .map_err(|code| device.error("vkCreateBuffer", code, bytes))
}

/// # Safety
/// As [`import`]; `raw` is a fresh buffer made for it.
unsafe fn bind(
    device: &Device,
    raw: vk::Buffer,
    address: HostAddress,
    bytes: u64,
    bits: u32,
) -> Result<Buffer, DeviceError> {
    let refused = DeviceError::ImportRefused { code: vk::Result::ERROR_INVALID_EXTERNAL_HANDLE.as_raw() };
    // SAFETY: the buffer was made on this device.
    let requirements = unsafe { device.raw().get_buffer_memory_requirements(raw) };
    // A driver that wants more memory than the buffer has bytes cannot have the neighbour's pages.
    if requirements.size > bytes {
        return Err(refused);
    }
    let model = &device.info.memory;
    let index = *model.import_candidates(bits & requirements.memory_type_bits).first().ok_or(refused)?;
    let flags = model.flags(index);
    let mut pointer = vk::ImportMemoryHostPointerInfoEXT::default()
        .handle_type(HOST_PAGES)
        .host_pointer(address.0.as_ptr().cast());
    let info = vk::MemoryAllocateInfo::default()
        .allocation_size(bytes)
        .memory_type_index(index)
        .push_next(&mut pointer);
    // SAFETY: address and size have the device's alignment (VUID-VkMemoryAllocateInfo-allocationSize-01745,
    // VUID-VkImportMemoryHostPointerInfoEXT-pHostPointer-01749), the type is one it named for this pointer
    // (VUID-VkMemoryAllocateInfo-memoryTypeIndex-01744), the pages are as the caller promises.
    let memory = unsafe { device.raw().allocate_memory(&info, None) }
        .map_err(|code| refuse(device, "vkAllocateMemory", code))?;
    let coherent = flags.has(TypeFlags::HOST_COHERENT);
    // SAFETY: a fresh buffer with the handle type of the memory (VUID-vkBindBufferMemory-memory-02985), of a
    // type it allows, at offset 0.
    let mut result = unsafe { device.raw().bind_buffer_memory(raw, memory, 0) }
        .map_err(|code| refuse(device, "vkBindBufferMemory", code));
    if result.is_ok() && !coherent {
        // Flush and invalidate need a mapping (VUID-VkMappedMemoryRange-memory-00684); the application
        // goes on using its own pointer, which may differ.
        // SAFETY: host-visible and not mapped yet, VUID-vkMapMemory-memory-00678 and -00682.
        result = unsafe { device.raw().map_memory(memory, 0, vk::WHOLE_SIZE, vk::MemoryMapFlags::empty()) }
            .map(drop)
            .map_err(|code| refuse(device, "vkMapMemory", code));
    }
    if let Err(error) = result {
        // SAFETY: nothing uses the memory; the buffer bound to it is destroyed by the caller unused.
        unsafe { device.raw().free_memory(memory, None) };
        return Err(error);
    }
    let info = BufferInfo {
        bytes,
        host: Some(address),
        coherent,
        cached: flags.has(TypeFlags::HOST_CACHED),
        device_local: flags.has(TypeFlags::DEVICE_LOCAL),
        heap: model.heap_of(index).unwrap_or_default(),
        imported: true,
    };
    Ok(Buffer::new(raw, info, Memory::Imported(memory, bytes)))
}

/// Drivers refuse pages with various codes (NVIDIA with "out of device memory"): all but a lost device are
/// refusals.
pub(super) fn refuse(device: &Device, call: &'static str, code: vk::Result) -> DeviceError {
    tracing::debug!(target: "onepool::vulkan", call, ?code, "import refused");
    match device.error(call, code, 0) {
        lost @ DeviceError::Lost { .. } => lost,
        _ => DeviceError::ImportRefused { code: code.as_raw() },
    }
}
