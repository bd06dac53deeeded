//! The pluggable device interface, modelled on OpenCL's objects.
//!
//! A backend is thin and gets only validated calls: [`crate::device`] above it checks ranges,
//! alignments, access and lifetimes, so a backend's errors are only what a caller cannot foresee.
//! Handles are generational and belong to one context. One virtual call is made per submission.

#[cfg(feature = "opencl")]
pub mod opencl;
#[cfg(feature = "vulkan")]
pub mod vulkan;

pub(crate) mod choice;
pub mod cpu;
mod foreign;
#[cfg(any(feature = "opencl", feature = "vulkan"))]
pub(crate) mod install;
#[cfg(any(feature = "opencl", feature = "vulkan"))]
mod kept;
#[cfg(any(feature = "opencl", feature = "vulkan"))]
pub(crate) mod pace;
pub mod sim;
pub mod slots;
mod statistics;

use std::fmt;
use std::ptr::NonNull;
use std::sync::Arc;
use std::time::Duration;

pub use self::foreign::{
    Acquisition, DmaBufPlane, ExportedMemory, Foreign, ForeignBuffer, ForeignCommands, ForeignDmaBufImage,
    ForeignImage, ForeignMemory, MemoryFd, SemaphorePoint, Semaphores, StageScope,
};
pub use self::statistics::{Executable, Statistic, StatisticValue};
use crate::kernel::KernelSource;
use crate::recording::{BufferId, BufferRange, DeviceKernelId, PreparedId, Recording};
use onepool_core::memory::budget::{HeapBudget, KernelMemory};
use onepool_core::memory::dma_buf::DmaBuf;
use onepool_core::memory::image::ImageRules;
use onepool_core::memory::import::{CostSource, ImportRules, Refusal};
use onepool_core::memory::model::MemoryModel;
pub use onepool_core::memory::model::{DeviceKind, Placement};
use onepool_spirv::Requires;

/// What goes wrong on a device without the caller's doing.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DeviceError {
    /// The device stopped; every object of the context is dead, host memory is intact.
    #[error("the device was lost ({detail}); open a new context, the application's memory is intact")]
    Lost {
        /// What the driver or the probe said.
        detail: String,
    },
    /// The host has no memory left.
    #[error("out of host memory for {bytes} bytes")]
    OutOfHostMemory {
        /// What was asked for.
        bytes: u64,
    },
    /// The device has no memory left.
    #[error("out of device memory for {bytes} bytes")]
    OutOfDeviceMemory {
        /// What was asked for.
        bytes: u64,
    },
    /// A wait ran out of time.
    #[error("the device did not finish within {millis} ms")]
    Timeout {
        /// The time allowed, in milliseconds.
        millis: u64,
    },
    /// More than the device can hold or address in one object.
    #[error("{what} of {asked} bytes is above this device's limit of {limit}")]
    Limit {
        /// Which object.
        what: &'static str,
        /// Bytes asked for.
        asked: u64,
        /// The device's limit.
        limit: u64,
    },
    /// More of something that the caller counts than there may be.
    #[error("{asked} {what} are asked for, and there may be {limit} at most")]
    TooMany {
        /// What is counted.
        what: &'static str,
        /// How many are asked for.
        asked: u64,
        /// How many there may be.
        limit: u64,
    },
    /// Host memory was refused for import.
    #[error("the driver refused to import host memory (code {code})")]
    ImportRefused {
        /// The driver's code.
        code: i32,
    },
    /// A program or kernel could not be built.
    #[error("kernel {kernel}: {log}")]
    Program {
        /// Which kernel.
        kernel: String,
        /// What the compiler or the checker said.
        log: String,
    },
    /// A native kernel failed while running.
    #[error("kernel {kernel} failed: {source}")]
    Kernel {
        /// Which kernel.
        kernel: String,
        /// What it reported.
        source: crate::kernel::KernelError,
    },
    /// The API cannot be used on this machine at all.
    #[error("{api} is not available: {reason}")]
    Unavailable {
        /// Which API, as [`Driver::api`] names it.
        api: &'static str,
        /// What is missing and what to do about it.
        reason: String,
    },
    /// The file that says what a simulated device plays is broken.
    #[error("the profile {file}: {}{problem}", field_of(field))]
    Profile {
        /// Its path, or the name of one that is part of the library.
        file: String,
        /// Which field, as `heaps[1].size`; empty where it is the file as a whole.
        field: String,
        /// What is wrong with it and what to do.
        problem: String,
    },
    /// A handle of another context, or of an object that was destroyed.
    #[error("stale or foreign {object} handle")]
    Stale {
        /// What kind of object.
        object: &'static str,
    },
    /// The device or its driver lacks something.
    #[error("this device does not support {what}")]
    Unsupported {
        /// What is missing.
        what: String,
    },
    /// Any other failure of a call of the API below.
    #[error("{api} call {call} failed with code {code}")]
    Backend {
        /// "Vulkan", "OpenCL", ...
        api: &'static str,
        /// The call's name.
        call: &'static str,
        /// The result code.
        code: i32,
    },
}

fn field_of(field: &str) -> String {
    if field.is_empty() { String::new() } else { format!("field {field}: ") }
}

/// Sizes and alignments a device prescribes; bytes unless said otherwise.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct Limits {
    /// The longest range one kernel argument may have.
    pub max_argument_bytes: u64,
    /// The largest buffer or allocation.
    pub max_buffer_bytes: u64,
    /// What the offset of a kernel argument must be a multiple of.
    pub argument_alignment: u64,
    /// What the offset of a texel-view argument must be a multiple of.
    pub texel_alignment: u64,
    /// The most texels of one texel view.
    pub max_texels: u64,
    /// Work-groups along each axis.
    pub max_groups: [u32; 3],
    /// Work-items of one work-group.
    pub max_group_items: u32,
    /// Work-items of one work-group along each axis.
    pub max_group_size: [u32; 3],
    /// Local (shared) memory of one work-group.
    pub max_local_bytes: u32,
    /// Parameter bytes of a dispatch.
    pub max_params_bytes: u32,
    /// Arguments of one kernel.
    pub max_arguments: u32,
    /// Granularity of flush and invalidate.
    pub non_coherent_atom: u64,
}

/// What a device is and can do.
#[derive(Clone, Debug, serde::Serialize)]
pub struct DeviceInfo {
    /// "vulkan", "opencl", "cpu", "sim".
    pub api: &'static str,
    /// The device's name as its driver tells it.
    pub name: String,
    /// What it is.
    pub kind: DeviceKind,
    /// The driver's name and version.
    pub driver: String,
    /// The version of the API that the device speaks.
    pub api_version: String,
    /// Identifies device and driver across runs: caches are keyed by it.
    pub uuid: String,
    /// Position among the devices of its driver.
    pub index: usize,
    /// Position of the same hardware under a driver that is preferred to this one's. `None` where this is the
    /// one to take, and where the API does not tell.
    pub same_as: Option<usize>,
    /// Why the device cannot be used, if it cannot.
    pub unusable: Option<String>,
    /// Its heaps and memory types.
    pub memory: MemoryModel,
    /// Whether kernels are native functions (else SPIR-V or its translation).
    pub native: bool,
    /// Whether commands run one after the other on memory that everyone sees, so that no barrier is needed.
    pub in_order: bool,
    /// Whether a dispatch may be a part of a larger grid.
    pub splits_grids: bool,
    /// Whether a work-group sees what others wrote before they counted an atomic up: the memory model of OpenCL C 1.2 does not
    /// promise it.
    pub orders_groups: bool,
    /// Sizes and alignments.
    pub limits: Limits,
    /// Shader features present.
    pub features: Requires,
    /// Features that are not, but that the backend makes up for, slower: a kernel that needs them runs, and none is chosen
    /// because of them.
    pub emulated: Requires,
    /// Rules for importing host memory, where it is possible.
    pub import: Option<ImportRules>,
    /// Lanes that execute in lock-step; 1 where that means nothing.
    pub subgroup: u32,
    /// The fewest and the most lanes that a kernel may ask for instead; both [`DeviceInfo::subgroup`] where it may not
    /// ask.
    pub subgroup_range: [u32; 2],
    /// Nanoseconds of one timestamp tick; 0 without timestamps.
    pub timestamp_ns: f64,
    /// Compute units, multiprocessors or cores: what runs work-groups apart from one another. `None` where the driver does
    /// not tell, and where kernels are native functions.
    pub processors: Option<u32>,
    /// Whether reading operands through RGBA32F texel views is the faster way (lavapipe).
    pub prefers_texels: bool,
    /// How often all loops of one invocation go round at most, where the driver ends them after that without a word
    /// (llvmpipe).
    pub most_iterations: Option<u32>,
    /// What images in its buffers must look like, where it has them; known once the device is open.
    pub images: Option<ImageRules>,
    /// Hints for a person: what would make it usable or faster.
    pub advice: Vec<String>,
}

impl DeviceInfo {
    /// Whether a display may hang on the device, so that its work must not hold it for long: it is a GPU.
    pub fn may_show(&self) -> bool {
        let gpu = matches!(self.kind, DeviceKind::Integrated | DeviceKind::Discrete | DeviceKind::Virtual);
        gpu && !self.native
    }

    /// Why the device imports no host memory; `None` where it does.
    pub fn import_refusal(&self) -> Option<Refusal> {
        match &self.import {
            Some(_) => None,
            None => Some(self.memory.import_refusal().unwrap_or(Refusal::NotSupported)),
        }
    }
}

/// How a context is opened.
#[derive(Clone, Debug, Default)]
pub struct ContextDesc {
    /// Turns the API's validation on (Vulkan layers) and collects its messages, see
    /// [`ContextBackend::validation_messages`]. Opening and closing such contexts waits for calls of others, as the
    /// layer is not safe to use from several threads then.
    pub validation: bool,
    /// Threads of the CPU backend; 0 takes one for each core ([`onepool_core::memory::os::cores`]).
    pub threads: usize,
    /// Folder of caches on disk, which hold code: it must belong to this user, and no one else may write to
    /// it, else it is not used, with a warning. At most 512 MiB are kept there. `None` keeps nothing.
    pub cache_dir: Option<std::path::PathBuf>,
    /// How waiting is done.
    pub wait: WaitPolicy,
    /// Whose work on the device comes first.
    pub priority: QueuePriority,
    /// Where the sizes come from, from which imports and copies pay.
    pub costs: CostSource,
    /// Which kernels the device keeps inside their arguments.
    pub robustness: Robustness,
}

/// Which kernels a Vulkan device keeps inside what is bound to them: a read beyond it gives zero and a write
/// beyond it does nothing (`robustBufferAccess2`), or, where the driver has only `robustBufferAccess`,
/// neither leaves the buffer that the argument is part of. Arrays of a kernel's own are not guarded. Other
/// backends ignore this: a native function is safe Rust, and OpenCL has no such thing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Robustness {
    /// Kernels whose code is the caller's ([`crate::kernel::KernelSource::from_spirv`]), where the driver can
    /// tell kernels apart (`VK_EXT_pipeline_robustness`); else none. The kernels that ship stay inside by
    /// themselves and pay nothing.
    #[default]
    Callers,
    /// All kernels.
    All,
    /// None.
    Off,
}

/// Whose work on a device comes first: that of its queues, or of other programs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum QueuePriority {
    /// Low on devices that may drive a display, where the driver has priorities that hold between programs
    /// (`VK_KHR_global_priority`) and permits it. Else as the driver has it.
    #[default]
    Auto,
    /// As the driver has it.
    Normal,
}

/// How the host waits for a device. On the CPU a thread that waits without a timeout computes, unless it is to sleep
/// ([`WaitPolicy::Block`]).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum WaitPolicy {
    /// Polls for as long as the runs before took, at most 2 ms, then sleeps. Sleeps at once where several threads
    /// wait, where there is one core, and where the device computes on the processor's cores itself.
    #[default]
    Adaptive,
    /// Sleeps in the driver: saves power, and being woken takes some microseconds, on some drivers a hundred.
    Block,
    /// Polls until done.
    Spin,
    /// Polls for some microseconds, then sleeps.
    SpinThenBlock {
        /// How long to poll.
        micros: u32,
    },
}

/// What a buffer is made of.
#[derive(Clone, Copy, Debug)]
pub struct BufferDesc {
    /// Its size; not 0.
    pub bytes: u64,
    /// Where it should live.
    pub placement: Placement,
    /// Shown by debuggers and in reports.
    pub label: &'static str,
}

/// What was granted for a buffer, never what was asked for.
#[derive(Clone, Copy, Debug)]
pub struct BufferInfo {
    /// Its size in bytes.
    pub bytes: u64,
    /// Its address in the process, where it is mapped (it stays mapped while it lives).
    pub host: Option<HostAddress>,
    /// Whether host and device see each other's writes without flush and invalidate.
    pub coherent: bool,
    /// Whether the host's reads are cached (uncached reads are some hundred times slower).
    pub cached: bool,
    /// Whether it lies in the device's own memory.
    pub device_local: bool,
    /// The heap of [`DeviceInfo::memory`] that it is charged to.
    pub heap: u32,
    /// Whether it is an import of someone else's memory.
    pub imported: bool,
}

impl BufferInfo {
    /// Whether the host has a pointer of its own to the memory and neither side sees at once what the other writes.
    pub fn is_split(&self) -> bool {
        self.imported && !self.coherent
    }
}

/// The address of mapped bytes; may be sent between threads because it grants no access by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct HostAddress(pub NonNull<u8>);

// SAFETY: an address is a number; every access through it is an unsafe operation of its own.
#[allow(unsafe_code, reason = "a bare address carries no access")]
unsafe impl Send for HostAddress {}
// SAFETY: as above.
#[allow(unsafe_code, reason = "a bare address carries no access")]
unsafe impl Sync for HostAddress {}

/// A point on a queue's time line: reached once everything submitted up to it has finished.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Timepoint(pub u64);

/// How a kernel is created.
#[derive(Clone, Debug)]
pub struct KernelDesc<'a> {
    /// Its code, in one or several forms.
    pub source: &'a KernelSource,
    /// Values of specialization constants, (id, value as 32 bits).
    pub spec: &'a [(u32, u32)],
}

/// Opens devices of one API. One value per backend, listed in [`crate::registry`].
pub trait Driver: Send + Sync {
    /// The name of the API: "vulkan", "cpu", ...
    fn api(&self) -> &'static str;

    /// The devices there are, unusable ones included with the reason, best first.
    ///
    /// # Errors
    /// Why the API cannot be used at all (no loader, no driver).
    fn devices(&self) -> Result<Vec<DeviceInfo>, DeviceError>;

    /// Names of devices that are not listed and that [`Driver::by_name`] makes.
    fn names(&self) -> Vec<String> {
        Vec::new()
    }

    /// A device that is not listed and that is made when it is asked for by its name or by the path of a file; its
    /// index opens it. `None` for a name that is not known.
    ///
    /// # Errors
    /// Why it cannot be made of what the file says.
    fn by_name(&self, name: &str) -> Result<Option<DeviceInfo>, DeviceError> {
        let _ = name;
        Ok(None)
    }

    /// Opens device `index` of [`Driver::devices`], or one that [`Driver::by_name`] gave.
    ///
    /// # Errors
    /// [`DeviceError`] where the device is gone, unusable or refuses.
    fn open(&self, index: usize, desc: &ContextDesc) -> Result<Arc<dyn ContextBackend>, DeviceError>;

    /// A function that submits nothing to device `index` by bare calls of the API and waits for it, for measuring
    /// what a submission costs on top; `None` where that means nothing.
    fn bare_submit(&self, index: usize) -> Option<Result<BareSubmit, DeviceError>> {
        let _ = index;
        None
    }

    /// Opens device `index` for compiling alone. A device without memory, on which nothing can run, will do.
    ///
    /// # Errors
    /// [`DeviceError::Unsupported`] where the driver tells nothing of the kernels that it compiles.
    fn open_compiler(
        &self,
        index: usize,
        desc: &ContextDesc,
    ) -> Result<Box<dyn KernelCompiler>, DeviceError> {
        let _ = (index, desc);
        Err(DeviceError::Unsupported { what: "reports of its compiler".to_owned() })
    }
}

/// A device opened for compiling kernels and looking at what they became; it runs nothing.
pub trait KernelCompiler: Send + Sync + fmt::Debug {
    /// What the device is and can do.
    fn info(&self) -> &DeviceInfo;

    /// Compiles a kernel and tells what the driver's compiler says of it; keeps nothing. `subgroup` asks for that many
    /// lanes, without it they are those of a run.
    ///
    /// # Errors
    /// [`DeviceError::Program`], [`DeviceError::Unsupported`] also for a size of subgroups beyond
    /// [`DeviceInfo::subgroup_range`].
    fn compile(&self, desc: &KernelDesc<'_>, subgroup: Option<u32>) -> Result<Vec<Executable>, DeviceError>;

    /// Messages of the API's validation since the last call; empty without validation.
    fn validation_messages(&self) -> Vec<String> {
        Vec::new()
    }
}

/// One bare submission and the wait for it ([`Driver::bare_submit`]).
pub type BareSubmit = Box<dyn FnMut() -> Result<(), DeviceError> + Send>;

/// A device opened: makes buffers, kernels, queues.
pub trait ContextBackend: Send + Sync + fmt::Debug {
    /// What the device is and can do.
    fn info(&self) -> &DeviceInfo;

    /// Allocates a buffer. Its contents are undefined.
    ///
    /// # Errors
    /// Out of memory, [`DeviceError::Limit`].
    fn create_buffer(&self, desc: &BufferDesc) -> Result<BufferId, DeviceError>;

    /// Imports `[address, address + bytes)`, which fits the device's [`ImportRules`].
    ///
    /// # Safety
    /// The pages stay mapped and accessible as imported until [`ContextBackend::destroy_buffer`]
    /// has returned for the buffer, and no page is part of another live import of this context.
    ///
    /// # Errors
    /// [`DeviceError::ImportRefused`] and out of memory.
    #[allow(unsafe_code, reason = "the caller vouches for the lifetime of the memory")]
    unsafe fn import_host(&self, address: HostAddress, bytes: u64) -> Result<BufferId, DeviceError>;

    /// Whether [`ContextBackend::import_dma_buf`] may work.
    fn imports_dma_bufs(&self) -> bool {
        false
    }

    /// Imports the pages of a dma-buf, which the process has mapped from `address` on. The buffer is not coherent:
    /// whose turn the pages are is told by [`DmaBuf::sync`], together with flush and invalidate.
    ///
    /// # Safety
    /// As for [`ContextBackend::import_host`].
    ///
    /// # Errors
    /// [`DeviceError::ImportRefused`] and out of memory; [`DeviceError::Unsupported`] where
    /// [`ContextBackend::imports_dma_bufs`] says so.
    #[allow(unsafe_code, reason = "the caller vouches for the lifetime of the memory")]
    unsafe fn import_dma_buf(&self, pages: &DmaBuf, address: HostAddress) -> Result<BufferId, DeviceError> {
        let _ = (pages, address);
        Err(DeviceError::Unsupported { what: "a dma-buf".to_owned() })
    }

    /// A buffer or memory of the application's as a buffer of the context's. What is the application's is never
    /// destroyed; a file descriptor is the driver's once this has succeeded.
    ///
    /// # Safety
    /// It is of the device and as described, and lives until [`ContextBackend::destroy_buffer`] has returned. A buffer has
    /// memory bound to it.
    ///
    /// # Errors
    /// [`DeviceError::Unsupported`], [`DeviceError::Limit`].
    #[allow(unsafe_code, reason = "the caller vouches for a handle that is not the backend's")]
    unsafe fn import_buffer(&self, foreign: &Foreign) -> Result<BufferId, DeviceError> {
        let _ = foreign;
        Err(DeviceError::Unsupported { what: "buffers of the application".to_owned() })
    }

    /// What recordings do about memory of the application's before and after; `None` for other buffers. Such buffers are
    /// named in [`Recording::enters`] and [`Recording::leaves`].
    fn acquisition(&self, buffer: BufferId) -> Option<Acquisition> {
        let _ = buffer;
        None
    }

    /// Allocates a buffer in memory of its own, with a file descriptor by which other devices and processes take it.
    ///
    /// # Errors
    /// [`DeviceError::Unsupported`], [`DeviceError::Limit`], out of memory.
    fn export_buffer(&self, bytes: u64, kind: MemoryFd) -> Result<(BufferId, ExportedMemory), DeviceError> {
        let _ = (bytes, kind);
        Err(DeviceError::Unsupported { what: "file descriptors of memory".to_owned() })
    }

    /// Whether [`QueueBackend::submit_between`] takes a semaphore, as far as can be told.
    ///
    /// # Errors
    /// [`DeviceError::Unsupported`].
    fn check_semaphore(&self, point: &SemaphorePoint) -> Result<(), DeviceError> {
        let _ = point;
        Err(DeviceError::Unsupported { what: "semaphores of the application".to_owned() })
    }

    /// What was granted for a buffer.
    ///
    /// # Errors
    /// [`DeviceError::Stale`].
    fn buffer_info(&self, buffer: BufferId) -> Result<BufferInfo, DeviceError>;

    /// Makes host writes to non-coherent memory visible to later submissions. Ranges are multiples
    /// of the atom or end with the buffer.
    ///
    /// # Errors
    /// [`DeviceError::Stale`], or the driver's error.
    fn flush(&self, ranges: &[BufferRange]) -> Result<(), DeviceError>;

    /// Makes device writes to non-coherent memory visible to the host, once they have finished.
    ///
    /// # Errors
    /// [`DeviceError::Stale`], or the driver's error.
    fn invalidate(&self, ranges: &[BufferRange]) -> Result<(), DeviceError>;

    /// Frees a buffer that no unfinished submission uses.
    fn destroy_buffer(&self, buffer: BufferId);

    /// Creates a kernel from the form of its source that this backend runs.
    ///
    /// # Errors
    /// [`DeviceError::Program`], [`DeviceError::Unsupported`].
    fn create_kernel(&self, desc: &KernelDesc<'_>) -> Result<DeviceKernelId, DeviceError>;

    /// Frees a kernel that no unfinished submission uses.
    fn destroy_kernel(&self, kernel: DeviceKernelId);

    /// A new in-order queue.
    ///
    /// # Errors
    /// [`DeviceError`].
    fn create_queue(&self) -> Result<Arc<dyn QueueBackend>, DeviceError>;

    /// Bytes allocated and imported now, for reports and tests.
    fn usage(&self) -> MemoryUsage;

    /// Names the device whose memory other contexts of the process may use too; `None` where the context's memory is its
    /// own.
    fn shared_device(&self) -> Option<&str> {
        None
    }

    /// What the driver says of each heap of [`DeviceInfo::memory`], in order; empty where it does not say.
    fn heap_budgets(&self) -> Vec<HeapBudget> {
        Vec::new()
    }

    /// What the system's kernel counts of the memory of a device that works in the host's; `None` where it does not say.
    fn kernel_memory(&self) -> Option<KernelMemory> {
        None
    }

    /// Messages of the API's validation since the last call; empty without validation.
    fn validation_messages(&self) -> Vec<String> {
        Vec::new()
    }
}

/// Memory of a context in use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct MemoryUsage {
    /// Bytes of live buffers that the context allocated.
    pub allocated: u64,
    /// Bytes of live imports.
    pub imported: u64,
    /// How many buffers were ever allocated.
    pub allocations: u64,
    /// How many imports were ever made.
    pub imports: u64,
}

/// Executes recordings in order.
pub trait QueueBackend: Send + Sync + fmt::Debug {
    /// Submits once, after everything submitted before. The recording's `flush` ranges have been
    /// flushed by the caller.
    ///
    /// # Errors
    /// [`DeviceError`]; after an error nothing of the recording runs.
    fn submit(&self, recording: &Recording) -> Result<Timepoint, DeviceError>;

    /// Translates a recording once for many submissions.
    ///
    /// # Errors
    /// [`DeviceError`].
    fn prepare(&self, recording: &Recording) -> Result<PreparedId, DeviceError>;

    /// Submits a prepared recording. Earlier submissions of it may be unfinished only if the
    /// recording begins with the barrier that orders it after itself.
    ///
    /// # Errors
    /// [`DeviceError`]; after an error nothing of the recording runs.
    fn submit_prepared(&self, prepared: PreparedId) -> Result<Timepoint, DeviceError>;

    /// As [`QueueBackend::submit_prepared`], between semaphores; without a recording, the semaphores alone.
    ///
    /// # Safety
    /// The semaphores are of the device and live until the submission has finished. Values that are signalled rise; a
    /// binary semaphore that is waited for has a signal to come, and one that is signalled has none.
    ///
    /// # Errors
    /// [`DeviceError::Unsupported`] where [`ContextBackend::check_semaphore`] says so, and for a value that is not above
    /// the semaphore's own.
    #[allow(unsafe_code, reason = "the caller vouches for handles that are not the backend's")]
    unsafe fn submit_between(
        &self,
        prepared: Option<PreparedId>,
        semaphores: Semaphores<'_>,
    ) -> Result<Timepoint, DeviceError> {
        let _ = (prepared, semaphores);
        Err(DeviceError::Unsupported { what: "semaphores of the application".to_owned() })
    }

    /// Records a recording into a command buffer of the application's. What it uses is kept until
    /// [`QueueBackend::release_prepared`]; it is not submitted.
    ///
    /// # Safety
    /// The command buffer is of the device and of a pool of the queue's family, is being recorded by this thread alone, and
    /// is outside of render passes. The prepared recording is released once no submission of it is unfinished and none
    /// will come.
    ///
    /// # Errors
    /// [`DeviceError`]; after an error the command buffer is not to be submitted.
    #[allow(unsafe_code, reason = "the caller vouches for a handle that is not the backend's")]
    unsafe fn record_into(
        &self,
        recording: &Recording,
        commands: &ForeignCommands,
    ) -> Result<PreparedId, DeviceError> {
        let _ = (recording, commands);
        Err(DeviceError::Unsupported { what: "command buffers of the application".to_owned() })
    }

    /// Frees a prepared recording that no unfinished submission uses.
    fn release_prepared(&self, prepared: PreparedId);

    /// Waits until `point` is reached; errors of kernels that ran up to it surface here.
    ///
    /// # Errors
    /// [`DeviceError::Timeout`] where `timeout` passed, [`DeviceError::Lost`], [`DeviceError::Kernel`].
    fn wait(&self, point: Timepoint, timeout: Option<Duration>) -> Result<(), DeviceError>;

    /// After a loss, returns once what was submitted before writes no memory of the host's any more, as far as can be told;
    /// that may take seconds, and each call may be the first. At once where a loss is told only after the end of all work,
    /// and while the device is not lost.
    fn quiesce(&self) {}

    /// The latest point reached.
    ///
    /// # Errors
    /// [`DeviceError::Lost`].
    fn completed(&self) -> Result<Timepoint, DeviceError>;

    /// Nanoseconds of the timestamp slots of the finished submission at `point`, from an arbitrary
    /// origin common to the queue; empty where the device has no clock or the times were overwritten.
    ///
    /// # Errors
    /// [`DeviceError`].
    fn timestamps(&self, point: Timepoint) -> Result<Vec<u64>, DeviceError>;
}
