//! A run as plain data: what a queue executes, with every barrier already decided.

#![forbid(unsafe_code)]

use onepool_core::memory::coherency::{Access, Barrier};
use onepool_core::memory::image::{ImageDesc, ImageView};

macro_rules! handle {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub struct $name {
            /// Slot in the backend's table.
            pub index: u32,
            /// Distinguishes the slot's successive owners.
            pub generation: u32,
        }
    };
}

handle! {
    /// A buffer of one context.
    BufferId
}
handle! {
    /// A kernel created on one context.
    DeviceKernelId
}
handle! {
    /// A recording prepared on one queue.
    PreparedId
}

/// Part of a buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct BufferRange {
    /// The buffer.
    pub buffer: BufferId,
    /// Where the range starts, in bytes.
    pub offset: u64,
    /// Its length in bytes.
    pub bytes: u64,
}

/// One argument of a dispatch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arg {
    /// An optional argument that was not given (native kernels only).
    Absent,
    /// A range and how the kernel touches it (`KERNEL_READ`, `KERNEL_WRITE` or both).
    Buffer(BufferRange, Access),
    /// A range that holds an image of [`Recording::images`], of this recording or an earlier one: through the image
    /// for a kernel that declares one, as bytes for a native kernel.
    Image(BufferRange, ImageView, Access),
}

impl Arg {
    /// The bytes that the kernel touches, and how.
    pub fn range(&self) -> Option<(&BufferRange, Access)> {
        match self {
            Arg::Absent => None,
            Arg::Buffer(range, access) | Arg::Image(range, _, access) => Some((range, *access)),
        }
    }
}

/// Where a dispatch lies in a larger grid, which is divided along one axis. Its kernel computes what it does for these
/// work-groups of the whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GridPart {
    /// 0, 1 or 2: x, y or z.
    pub axis: usize,
    /// The first work-group along it.
    pub first: u32,
    /// Work-groups of the whole grid along it.
    pub whole: u32,
}

/// One execution of a kernel over a grid of work-groups.
#[derive(Clone, Debug)]
pub struct Dispatch {
    /// The kernel.
    pub kernel: DeviceKernelId,
    /// Arguments in the kernel's binding order.
    pub args: Vec<Arg>,
    /// Parameter bytes (push constants on Vulkan).
    pub params: Vec<u8>,
    /// The grid that this is a part of, on devices with [`DeviceInfo::splits_grids`](crate::backend::DeviceInfo::splits_grids).
    /// `None` is a grid of its own.
    pub part: Option<GridPart>,
    /// Work-groups along x, y, z; a native kernel ignores them.
    pub groups: [u32; 3],
}

impl Dispatch {
    /// Of a whole grid.
    pub fn new(kernel: DeviceKernelId, args: Vec<Arg>, params: Vec<u8>, groups: [u32; 3]) -> Self {
        Dispatch { kernel, args, params, part: None, groups }
    }
}

/// One thing a queue does, in order.
#[derive(Clone, Debug)]
pub enum Command {
    /// Runs a kernel.
    Dispatch(Dispatch),
    /// Copies bytes; both ranges have one length and do not overlap. Any byte offset is allowed.
    Copy {
        /// Where from.
        src: BufferRange,
        /// Where to.
        dst: BufferRange,
    },
    /// Fills with a repeated word; offset and length are multiples of four.
    Fill {
        /// What is filled.
        dst: BufferRange,
        /// The word.
        value: u32,
    },
    /// Orders what comes before against what comes after.
    Barrier(Barrier),
    /// Writes the device's clock into timestamp `slot` once everything before has finished.
    Timestamp {
        /// Below [`Recording::timestamps`].
        slot: u32,
    },
}

/// Commands with what the host must do before and after them.
#[derive(Clone, Debug, Default)]
pub struct Recording {
    /// The commands, in order.
    pub commands: Vec<Command>,
    /// Ranges of non-coherent memory the host must flush before every submission.
    pub flush: Vec<BufferRange>,
    /// Ranges of non-coherent memory the host must invalidate after waiting and before reading.
    pub invalidate: Vec<BufferRange>,
    /// How many timestamp slots the commands use.
    pub timestamps: u32,
    /// Images that come into being before the first command: what their ranges held before is lost, and from
    /// then on the bytes are one thing read through the image or as a buffer, whoever writes them.
    pub images: Vec<(BufferRange, ImageDesc)>,
    /// Buffers that stand for memory of the application's, which is taken over before the first command
    /// ([`ContextBackend::acquisition`](crate::backend::ContextBackend::acquisition)). Filled in by the queue.
    pub enters: Vec<BufferId>,
    /// What is filled with zeros then: words of images that are written whole, of which the commands write other bytes.
    pub clears: Vec<BufferRange>,
    /// Those that are given back after the last command.
    pub leaves: Vec<BufferId>,
}

impl Recording {
    /// How many commands are dispatches.
    pub fn dispatches(&self) -> usize {
        self.commands.iter().filter(|c| matches!(c, Command::Dispatch(_))).count()
    }

    /// How many commands are barriers.
    pub fn barriers(&self) -> usize {
        self.commands.iter().filter(|c| matches!(c, Command::Barrier(_))).count()
    }
}
