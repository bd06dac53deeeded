//! Buffers and memory of an application's, and memory that others take.

use ash::vk::{self, Handle as _};

use super::device::Device;
use super::external::{External, outside_owner, owner_on};
use super::external_image;
use super::fd::{fd_functions, fd_types, kind_of, own};
use super::import::{external_buffer, refuse};
use super::memory::{Buffer, Memory};
use super::modifier;
use super::null;
use super::shared::Shared;
use crate::backend::{
    BufferInfo, DeviceError, ExportedMemory, Foreign, ForeignBuffer, ForeignMemory, MemoryFd, Placement,
};
use onepool_core::memory::model::TypeFlags;
use onepool_core::memory::os::Descriptor;
use onepool_core::sync::read;

/// A buffer of the application's, one on memory of its, or one that stands for an image of its.
///
/// # Safety
/// As [`ContextBackend::import_buffer`](crate::backend::ContextBackend::import_buffer).
pub(super) unsafe fn import(shared: &Shared, foreign: &Foreign) -> Result<Buffer, DeviceError> {
    let device = &shared.device;
    let known = |raw: vk::Buffer| read(&shared.buffers).iter().any(|buffer| buffer.raw == raw);
    let known_image = |raw: vk::Image| {
        let is_it = |buffer: &Buffer| {
            buffer.external.and_then(|external| external.image).is_some_and(|i| i.raw == raw)
        };
        read(&shared.buffers).iter().any(is_it)
    };
    // SAFETY: as the caller promises.
    unsafe {
        match foreign {
            Foreign::Buffer(foreign) => adopt(device, foreign, known),
            Foreign::Memory(foreign) => on_memory(device, foreign),
            Foreign::Image { image, reads, writes } => {
                external_image::adopt(device, &shared.pool, image, (*reads, *writes), known_image)
            }
            Foreign::DmaBufImage { image, reads, writes } => {
                modifier::import(device, &shared.pool, image, (*reads, *writes))
            }
        }
    }
}

/// # Safety
/// As [`import`].
unsafe fn adopt(
    device: &Device,
    foreign: &ForeignBuffer,
    known: impl Fn(vk::Buffer) -> bool,
) -> Result<Buffer, DeviceError> {
    let refuse = |what: String| Err(DeviceError::Unsupported { what });
    let (raw, usage) = (vk::Buffer::from_raw(foreign.handle), vk::BufferUsageFlags::from_raw(foreign.usage));
    if raw == vk::Buffer::null() {
        return Err(null("buffer"));
    }
    if foreign.bytes == 0 {
        return refuse("a buffer of 0 bytes".to_owned());
    }
    if !usage.contains(vk::BufferUsageFlags::STORAGE_BUFFER) {
        return refuse("a buffer of the application's that it made without STORAGE_BUFFER".to_owned());
    }
    if known(raw) {
        return refuse("importing a buffer a second time: take parts of the first import".to_owned());
    }
    let owner = owner_on(device, foreign.owner)?;
    // SAFETY: as the caller promises.
    let requirements = unsafe { device.raw().get_buffer_memory_requirements(raw) };
    if foreign.bytes > requirements.size {
        let (asked, limit) = (foreign.bytes, requirements.size);
        return Err(DeviceError::Limit {
            what: "the size given for a buffer of the application's",
            asked,
            limit,
        });
    }
    let info = BufferInfo {
        bytes: foreign.bytes,
        host: None,
        coherent: true,
        cached: false,
        device_local: true,
        heap: 0,
        imported: true,
    };
    let mut buffer = Buffer::foreign(raw, info, usage);
    buffer.external = owner.map(|owner| External { owner: Some(owner), ..External::default() });
    Ok(buffer)
}

/// # Safety
/// As [`import`].
unsafe fn on_memory(device: &Device, foreign: &ForeignMemory) -> Result<Buffer, DeviceError> {
    let refused = |what: String| Err(DeviceError::Unsupported { what });
    if foreign.fd.is_none() && foreign.handle == 0 {
        return Err(null("memory"));
    }
    if foreign.bytes == 0 {
        return refused("a buffer of 0 bytes".to_owned());
    }
    let limit = device.info.limits.max_buffer_bytes;
    if foreign.bytes > limit {
        return Err(DeviceError::Limit { what: "a buffer", asked: foreign.bytes, limit });
    }
    let owner = outside_owner(foreign.owner, device.family, device.has_foreign_family)?;
    let handle_types = match foreign.fd {
        Some(kind) => kind_of(kind),
        None => vk::ExternalMemoryHandleTypeFlags::from_raw(foreign.handle_types),
    };
    let raw = external_buffer(device, handle_types, foreign.bytes)?;
    let destroy = || {
        // SAFETY: nothing uses the buffer.
        unsafe { device.raw().destroy_buffer(raw, None) };
    };
    // SAFETY: as the caller promises.
    let mut buffer = unsafe { back(device, raw, foreign) }.inspect_err(|_| destroy())?;
    buffer.external = owner.map(|owner| External { owner: Some(owner), ..External::default() });
    Ok(buffer)
}

/// # Safety
/// As [`import`]; `raw` is a fresh buffer made for it. A descriptor stays the caller's.
unsafe fn back(device: &Device, raw: vk::Buffer, foreign: &ForeignMemory) -> Result<Buffer, DeviceError> {
    // SAFETY: the buffer was made on this device.
    let needs = unsafe { device.raw().get_buffer_memory_requirements(raw) };
    if !foreign.offset.is_multiple_of(needs.alignment) {
        let (offset, alignment) = (foreign.offset, needs.alignment);
        let what = format!("a buffer at byte {offset} of memory, which is no multiple of {alignment}");
        return Err(DeviceError::Unsupported { what });
    }
    let end = foreign.offset.saturating_add(needs.size);
    if end > foreign.allocation_bytes {
        let (asked, limit) = (end, foreign.allocation_bytes);
        return Err(DeviceError::Limit {
            what: "the end of a buffer in memory of the application's",
            asked,
            limit,
        });
    }
    let fd = match foreign.fd {
        // SAFETY: as the caller promises.
        Some(kind) => Some((kind, unsafe { own(foreign.handle)? })),
        None => None,
    };
    let mut bits = needs.memory_type_bits;
    if let Some((MemoryFd::DmaBuf, fd)) = &fd {
        bits &= fd_types(device, fd)?;
    }
    let index = match foreign.fd {
        Some(MemoryFd::DmaBuf) => bits.trailing_zeros(),
        _ => foreign.memory_type,
    };
    if bits.checked_shr(index).unwrap_or(0) & 1 == 0 {
        let what = format!("a buffer of its usages in memory of type {index}");
        return Err(DeviceError::Unsupported { what });
    }
    // SAFETY: as the caller promises.
    let (memory, kept) = unsafe { memory_of(device, foreign, fd, index)? };
    // SAFETY: a fresh buffer with the handle types of the memory (VUID-vkBindBufferMemory-memory-02985), at an aligned
    // offset (VUID-vkBindBufferMemory-memoryOffset-01036), of a type that it allows, inside the memory (-size-01037).
    if let Err(code) = unsafe { device.raw().bind_buffer_memory(raw, memory, foreign.offset) } {
        if let Memory::Fd(memory) = kept {
            // SAFETY: nothing uses the memory.
            unsafe { device.raw().free_memory(memory, None) };
        }
        return Err(refuse(device, "vkBindBufferMemory", code));
    }
    Ok(Buffer::new(raw, info(device, foreign.bytes, index), kept))
}

/// The memory object, and what becomes of it with the buffer.
///
/// # Safety
/// As [`import`].
unsafe fn memory_of(
    device: &Device,
    foreign: &ForeignMemory,
    fd: Option<(MemoryFd, Descriptor)>,
    index: u32,
) -> Result<(vk::DeviceMemory, Memory), DeviceError> {
    let Some((kind, fd)) = fd else {
        return Ok((vk::DeviceMemory::from_raw(foreign.handle), Memory::Lent));
    };
    fd_functions(device, kind)?;
    let mut import = vk::ImportMemoryFdInfoKHR::default().handle_type(kind_of(kind)).fd(fd.number());
    let info = vk::MemoryAllocateInfo::default()
        .allocation_size(foreign.allocation_bytes)
        .memory_type_index(index)
        .push_next(&mut import);
    // SAFETY: a descriptor of such memory, as the caller promises (VUID-VkImportMemoryFdInfoKHR-handleType-00667, -00668,
    // VUID-VkMemoryAllocateInfo-allocationSize-01742).
    let memory = unsafe { device.raw().allocate_memory(&info, None) }
        .map_err(|code| refuse(device, "vkAllocateMemory", code))?;
    // The driver's now.
    let _ = fd.into_number();
    Ok((memory, Memory::Fd(memory)))
}

/// A buffer in memory of its own, and a descriptor of that memory.
pub(super) fn export(
    device: &Device,
    bytes: u64,
    kind: MemoryFd,
) -> Result<(Buffer, ExportedMemory), DeviceError> {
    let functions = fd_functions(device, kind)?;
    let limit = device.info.limits.max_buffer_bytes;
    if bytes == 0 || bytes > limit {
        return Err(DeviceError::Limit { what: "a buffer", asked: bytes, limit });
    }
    let raw = external_buffer(device, kind_of(kind), bytes)?;
    // SAFETY: the buffer was made on this device.
    let needs = unsafe { device.raw().get_buffer_memory_requirements(raw) };
    let candidates = device.info.memory.candidates(Placement::Device, needs.memory_type_bits);
    let index = candidates.first().copied().unwrap_or(needs.memory_type_bits.trailing_zeros());
    let mut export = vk::ExportMemoryAllocateInfo::default().handle_types(kind_of(kind));
    let allocation = vk::MemoryAllocateInfo::default()
        .allocation_size(needs.size)
        .memory_type_index(index)
        .push_next(&mut export);
    let made = || {
        // SAFETY: a type that the buffer allows, a size that is not 0, and a kind that buffers were found exportable as
        // (VUID-VkExportMemoryAllocateInfo-handleTypes-00656).
        let memory = unsafe { device.raw().allocate_memory(&allocation, None) }
            .map_err(|code| device.error("vkAllocateMemory", code, bytes))?;
        let turn = device.turn();
        let get = vk::MemoryGetFdInfoKHR::default().memory(memory).handle_type(kind_of(kind));
        // SAFETY: a fresh buffer on fresh memory; the memory was made to be exported so
        // (VUID-VkMemoryGetFdInfoKHR-handleType-00671).
        let fd = unsafe {
            device.raw().bind_buffer_memory(raw, memory, 0).and_then(|()| functions.get_memory_fd(&get))
        };
        drop(turn);
        fd.map(|fd| (memory, fd)).map_err(|code| {
            // SAFETY: nothing uses the memory.
            unsafe { device.raw().free_memory(memory, None) };
            device.error("vkGetMemoryFdKHR", code, bytes)
        })
    };
    let (memory, fd) = made().inspect_err(|_| {
        // SAFETY: nothing uses the buffer.
        unsafe { device.raw().destroy_buffer(raw, None) };
    })?;
    let exported = ExportedMemory { fd, kind, allocation_bytes: needs.size, memory_type: index };
    Ok((
        Buffer::new(raw, BufferInfo { imported: false, ..info(device, bytes, index) }, Memory::Fd(memory)),
        exported,
    ))
}

fn info(device: &Device, bytes: u64, index: u32) -> BufferInfo {
    let (model, flags) = (&device.info.memory, device.info.memory.flags(index));
    BufferInfo {
        bytes,
        host: None,
        coherent: true,
        cached: false,
        device_local: flags.has(TypeFlags::DEVICE_LOCAL),
        heap: model.heap_of(index).unwrap_or_default(),
        imported: true,
    }
}
