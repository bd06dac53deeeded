//! What an application brings: buffers, memory, semaphores, each by the handle that the API below gave it.

/// A buffer that the application made, on the device that the context was opened on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ForeignBuffer {
    /// Its handle: a `VkBuffer`.
    pub handle: u64,
    /// The size that it was made with, in bytes.
    pub bytes: u64,
    /// The usage that it was made with: `VkBufferUsageFlags`. Kernels need `STORAGE_BUFFER`; reading and
    /// writing it by copy, and graphs that copy an input to an output, need `TRANSFER_SRC` and
    /// `TRANSFER_DST`.
    pub usage: u32,
    /// The queue family that owns it between runs; `None` where families use it concurrently, or there is one family. A run
    /// takes it over from another family and gives it back.
    pub owner: Option<u32>,
}

/// An image that the application made, on the device that the context was opened on: two-dimensional, of one level, one
/// layer and one sample. Numbers are Vulkan's.
///
/// It becomes a buffer whose rows lie one after the other without padding. At the beginning of a run the device copies the
/// image to the buffer, and at the end the buffer to the image, as far as the access asks for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ForeignImage {
    /// Its handle: a `VkImage`.
    pub handle: u64,
    /// The format that it was made with: a `VkFormat`. Bytes are taken as they are: those of `B8G8R8A8` begin with blue,
    /// and those of `SRGB` are not made linear.
    pub format: i32,
    /// Pixels of a row.
    pub width: u32,
    /// Rows.
    pub height: u32,
    /// The usage that it was made with: `VkImageUsageFlags`, with `TRANSFER_SRC` to be read and
    /// `TRANSFER_DST` to be written.
    pub usage: u32,
    /// The `VkImageLayout` that it is in when a run begins. `UNDEFINED` for an image that is only written.
    pub layout: i32,
    /// The `VkImageLayout` that a run leaves it in.
    pub leave: i32,
    /// As [`ForeignBuffer::owner`].
    pub owner: Option<u32>,
}

/// An image in a dma-buf, as the driver that made it laid it out: two-dimensional, of one level, one layer
/// and one sample. It is that driver's between runs, as with owner `VK_QUEUE_FAMILY_FOREIGN_EXT`. Else as
/// [`ForeignImage`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ForeignDmaBufImage {
    /// The file descriptor. It stays the caller's, also after an error: the import has one of its own.
    pub fd: u64,
    /// The size of the dma-buf in bytes.
    pub allocation_bytes: u64,
    /// A `VkFormat`.
    pub format: i32,
    /// Pixels of a row.
    pub width: u32,
    /// Rows.
    pub height: u32,
    /// The DRM format modifier; 0 is linear.
    pub modifier: u64,
    /// The memory planes; those from `plane_count` on do not count.
    pub planes: [DmaBufPlane; 4],
    /// How many memory planes the modifier has.
    pub plane_count: usize,
}

/// Where a memory plane of an image lies, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DmaBufPlane {
    /// Where it begins.
    pub offset: u64,
    /// From one row to the next.
    pub row_pitch: u64,
}

/// What a run does about memory of the application's before its first command and after its last one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Acquisition {
    /// Bytes of the image that a buffer of the context's stands for; 0 where it stands for no image, and the
    /// memory itself is handed over.
    pub image_bytes: u64,
    /// Bytes that the device copies out of an image and into it.
    pub copied: u64,
    /// Whether the layout or the owner is another after a run, so that one run is one recording.
    pub once: bool,
}

/// Stages with accesses: `VkPipelineStageFlags` and `VkAccessFlags`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StageScope {
    /// The stages.
    pub stages: u32,
    /// What they do.
    pub access: u32,
}

/// A command buffer of the application's that commands are recorded into
/// ([`QueueBackend::record_into`](super::QueueBackend::record_into)).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ForeignCommands {
    /// Its handle: a `VkCommandBuffer` that is being recorded.
    pub handle: u64,
    /// What the application did before that the commands must see; `None` for all that it may have done.
    pub before: Option<StageScope>,
    /// What it does after that must see the commands; `None` for all that it may do.
    pub after: Option<StageScope>,
}

impl ForeignCommands {
    /// A command buffer in which anything may come before and after.
    pub fn new(handle: u64) -> ForeignCommands {
        ForeignCommands { handle, before: None, after: None }
    }
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
    /// Its handle: a `VkDeviceMemory`; or a file descriptor, which stays the caller's, also after an error: the import has
    /// one of its own.
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
    /// `VK_QUEUE_FAMILY_EXTERNAL` or `VK_QUEUE_FAMILY_FOREIGN_EXT` for memory that other devices, processes or drivers use
    /// between runs; else `None`. Families of the device hand over single buffers and images, and the buffer here is the
    /// context's own: [`ForeignBuffer::owner`] is for them.
    pub owner: Option<u32>,
}

/// Something of the application's that becomes a buffer.
#[derive(Clone, Copy, Debug)]
pub enum Foreign {
    /// A buffer.
    Buffer(ForeignBuffer),
    /// Memory.
    Memory(ForeignMemory),
    /// An image, read or written by runs, or both.
    Image {
        /// The image.
        image: ForeignImage,
        /// Whether runs read it. One that is not read is written whole.
        reads: bool,
        /// Whether runs write it.
        writes: bool,
    },
    /// An image in a dma-buf.
    DmaBufImage {
        /// The image.
        image: ForeignDmaBufImage,
        /// Whether runs read it.
        reads: bool,
        /// Whether runs write it.
        writes: bool,
    },
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
    /// The file descriptor, which is the caller's to close; an API that takes it over closes it.
    pub fd: i32,
    /// What it is.
    pub kind: MemoryFd,
    /// Bytes of the allocation.
    pub allocation_bytes: u64,
    /// Index of its memory type.
    pub memory_type: u32,
}
