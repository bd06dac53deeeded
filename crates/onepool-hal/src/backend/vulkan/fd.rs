//! File descriptors of memory.

use ash::vk;

use super::device::Device;
use super::import::refuse;
use super::importable::DMA_BUF;
use crate::backend::{DeviceError, MemoryFd};
use onepool_core::memory::os::Descriptor;

pub(super) fn kind_of(kind: MemoryFd) -> vk::ExternalMemoryHandleTypeFlags {
    match kind {
        MemoryFd::Opaque => vk::ExternalMemoryHandleTypeFlags::OPAQUE_FD,
        MemoryFd::DmaBuf => DMA_BUF,
    }
}

pub(super) fn fd_functions(
    device: &Device,
    kind: MemoryFd,
) -> Result<&ash::khr::external_memory_fd::Device, DeviceError> {
    let found = match kind {
        MemoryFd::Opaque => device.memory_fds.as_ref(),
        MemoryFd::DmaBuf => device.dma_bufs.as_ref(),
    };
    found.ok_or_else(|| {
        let missing = match kind {
            MemoryFd::Opaque => "opaque descriptors of memory (VK_KHR_external_memory_fd)",
            MemoryFd::DmaBuf => "dma-bufs (VK_EXT_external_memory_dma_buf)",
        };
        DeviceError::Unsupported { what: missing.to_owned() }
    })
}

/// The memory types that the driver grants to a dma-buf.
pub(super) fn fd_types(device: &Device, fd: &Descriptor) -> Result<u32, DeviceError> {
    let functions = fd_functions(device, MemoryFd::DmaBuf)?;
    let mut properties = vk::MemoryFdPropertiesKHR::default();
    let _turn = device.turn();
    // SAFETY: the extension is enabled, and the descriptor is open and a dma-buf's, or the driver refuses it
    // (VUID-vkGetMemoryFdPropertiesKHR-fd-00673).
    unsafe { functions.get_memory_fd_properties(DMA_BUF, fd.number(), &mut properties) }
        .map_err(|code| refuse(device, "vkGetMemoryFdPropertiesKHR", code))?;
    Ok(properties.memory_type_bits)
}

/// A descriptor for the driver, which closes what it takes; `handle` stays the caller's.
///
/// # Safety
/// The caller's descriptor stays open meanwhile.
pub(super) unsafe fn own(handle: u64) -> Result<Descriptor, DeviceError> {
    // SAFETY: as the caller promises.
    unsafe { Descriptor::of_number(number(handle)?) }
        .map_err(|error| DeviceError::Unsupported { what: format!("{handle} as a file descriptor: {error}") })
}

fn number(handle: u64) -> Result<i32, DeviceError> {
    i32::try_from(handle)
        .map_err(|_| DeviceError::Unsupported { what: format!("{handle} as a file descriptor") })
}
