//! What an application brings: buffers, memory, semaphores, each by the handle that the API below gave it.

/// A buffer that the application made, on the device that the context was opened on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ForeignBuffer {
    /// Its handle: a `VkBuffer`.
    pub handle: u64,
    /// The size that it was made with, in bytes.
    pub bytes: u64,
    /// The usage that it was made with: `VkBufferUsageFlags`. Kernels need `STORAGE_BUFFER`; reading and writing it by copy,
    /// and graphs that copy an input to an output, need `TRANSFER_SRC` and `TRANSFER_DST`.
    pub usage: u32,
    /// The queue family that owns it during runs; `None` where families use it concurrently, or there is one family.
    pub owner: Option<u32>,
}

/// A semaphore that the application made, as the API below names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SemaphorePoint {
    /// Its handle: a `VkSemaphore`.
    pub handle: u64,
    /// The value, of a semaphore that has values (a timeline semaphore).
    pub value: Option<u64>,
}

/// Semaphores around a submission.
#[derive(Clone, Copy, Debug)]
pub struct Semaphores<'a> {
    /// It begins after all of these are reached.
    pub waits: &'a [SemaphorePoint],
    /// These are signalled once it, and all that was submitted to its queue before, has finished.
    pub signals: &'a [SemaphorePoint],
}

/// Memory that the application allocated on the device, or that something else did. Buffers of the context are made on
/// it, so an image in linear tiling that lies there too is read and written in place, while its layout is `GENERAL`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ForeignMemory {
    /// Its handle: a `VkDeviceMemory`; or a file descriptor, which is the driver's once it was taken.
    pub handle: u64,
    /// What a file descriptor is of; `None` for a `VkDeviceMemory`.
    pub fd: Option<MemoryFd>,
    /// Bytes of the whole allocation, as it was made. Of a dma-buf, its size.
    pub allocation_bytes: u64,
    /// Index of its memory type. Of a dma-buf the driver says which fit.
    pub memory_type: u32,
    /// The kinds of handles that a `VkDeviceMemory` was made to export or imported as: `VkExternalMemoryHandleTypeFlags`;
    /// 0 for none.
    pub handle_types: u32,
    /// Where the buffer begins in it, in bytes.
    pub offset: u64,
    /// The size of the buffer in bytes.
    pub bytes: u64,
}

/// Something of the application's that becomes a buffer.
#[derive(Clone, Copy, Debug)]
pub enum Foreign {
    /// A buffer.
    Buffer(ForeignBuffer),
    /// Memory.
    Memory(ForeignMemory),
}

/// What a file descriptor of memory is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MemoryFd {
    /// Known to drivers of one device alone (`OPAQUE_FD`).
    Opaque,
    /// A dma-buf, which other drivers of the system know.
    DmaBuf,
}

/// Memory that others may take, by [`ForeignMemory`] or by an API of their own.
#[derive(Debug)]
pub struct ExportedMemory {
    /// The file descriptor. Whoever takes it owns it; it is to be closed else.
    pub fd: i32,
    /// What it is.
    pub kind: MemoryFd,
    /// Bytes of the allocation.
    pub allocation_bytes: u64,
    /// Index of its memory type.
    pub memory_type: u32,
}
