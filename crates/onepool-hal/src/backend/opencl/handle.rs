//! OpenCL objects that are released when they go, and the calls on them.
//!
//! Every call of the API may be made from any thread, except for setting arguments of one kernel object,
//! which takes `&mut`. A handle's object lives at least as long as the handle.

use std::ffi::{CStr, c_void};
use std::ptr;
use std::ptr::NonNull;

use cl3::types::{
    CL_BLOCKING, CL_FALSE, cl_command_queue, cl_context, cl_device_id, cl_event, cl_image_desc,
    cl_image_format, cl_kernel, cl_mem, cl_program, cl_sampler,
};
#[cfg(not(any(test, feature = "testing")))]
use cl3::{command_queue, context, event, kernel, memory, program, sampler};

use super::answer::{number, sizes, text};
use super::error;
#[cfg(any(test, feature = "testing"))]
use super::shim::{command_queue, context, event, kernel, memory, program, sampler};
use crate::backend::DeviceError;
use onepool_spirv::ScalarType;
use onepool_spirv::opencl_c::TexelFormat;

/// A device of a platform; devices live as long as the process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct DeviceId(pub(super) cl_device_id);

macro_rules! handle {
    ($(#[$doc:meta])* $name:ident, $raw:ty, $release:path) => {
        $(#[$doc])*
        #[derive(Debug)]
        pub(super) struct $name($raw);

        impl Drop for $name {
            fn drop(&mut self) {
                // SAFETY: the handle holds one reference, given back once.
                if let Err(code) = unsafe { $release(self.0) } {
                    tracing::error!(target: "onepool::opencl", code, "releasing a {} failed", stringify!($name));
                }
            }
        }

        // SAFETY: the API's objects may be used and released by any thread.
        unsafe impl Send for $name {}
        // SAFETY: calls through `&self` are those that the API allows from several threads at once.
        unsafe impl Sync for $name {}
    };
}

handle!(
    /// A `cl_context` of one device.
    Context,
    cl_context,
    context::release_context
);
handle!(
    /// An in-order `cl_command_queue`.
    Queue,
    cl_command_queue,
    command_queue::release_command_queue
);
handle!(
    /// A `cl_mem`: a buffer, part of one, or an image over one.
    Mem,
    cl_mem,
    memory::release_mem_object
);
handle!(
    /// A `cl_sampler`.
    Sampler,
    cl_sampler,
    sampler::release_sampler
);
handle!(
    /// A built `cl_program`.
    Program,
    cl_program,
    program::release_program
);
handle!(
    /// A `cl_kernel` with arguments of its own.
    Kernel,
    cl_kernel,
    kernel::release_kernel
);
handle!(
    /// A `cl_event`.
    Event,
    cl_event,
    event::release_event
);

// SAFETY: a device's handle is valid in the whole process for as long as it runs.
unsafe impl Send for DeviceId {}
// SAFETY: as above.
unsafe impl Sync for DeviceId {}

/// The memory of a buffer.
#[derive(Clone, Copy, Debug)]
pub(super) enum Backing {
    /// Wherever the driver wants it.
    Device,
    /// Memory of the driver that the host can reach.
    Host,
    /// The caller's memory.
    Use(NonNull<u8>),
}

/// A format as the API says it.
pub(super) fn api_format(format: TexelFormat) -> cl_image_format {
    let (scalar, components) = format.components();
    cl_image_format {
        image_channel_order: if components == 1 { memory::CL_R } else { memory::CL_RGBA },
        image_channel_data_type: match scalar {
            ScalarType::F16 => memory::CL_HALF_FLOAT,
            ScalarType::I32 => memory::CL_SIGNED_INT32,
            ScalarType::U32 => memory::CL_UNSIGNED_INT32,
            _ => memory::CL_FLOAT,
        },
    }
}

/// An image over a buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct ImageCall {
    pub(super) format: TexelFormat,
    pub(super) shape: Shape,
}

/// How texels lie in the buffer; a pitch is in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Shape {
    /// One after another.
    Line { width: usize },
    /// In rows.
    Plane { width: usize, height: usize, pitch: usize },
}

impl ImageCall {
    /// What `clCreateImage` is given for an image over `buffer`.
    pub(super) fn describe(&self, buffer: cl_mem) -> (cl_image_format, cl_image_desc) {
        let (image_type, image_width, image_height, image_row_pitch) = match self.shape {
            Shape::Line { width } => (memory::CL_MEM_OBJECT_IMAGE1D_BUFFER, width, 0, 0),
            Shape::Plane { width, height, pitch } => (memory::CL_MEM_OBJECT_IMAGE2D, width, height, pitch),
        };
        let desc = cl_image_desc {
            image_type,
            image_width,
            image_height,
            image_depth: 0,
            image_array_size: 0,
            image_row_pitch,
            image_slice_pitch: 0,
            num_mip_levels: 0,
            num_samples: 0,
            buffer,
        };
        (api_format(self.format), desc)
    }
}

impl Context {
    pub(super) fn new(device: DeviceId) -> Result<Self, DeviceError> {
        context::create_context(&[device.0], ptr::null(), None, ptr::null_mut())
            .map(Context)
            .map_err(|code| error("clCreateContext", code, 0))
    }

    pub(super) fn queue(&self, device: DeviceId, profiling: bool) -> Result<Queue, DeviceError> {
        let flags = if profiling { command_queue::CL_QUEUE_PROFILING_ENABLE } else { 0 };
        // The newer call does not exist before OpenCL 2.0.
        #[allow(deprecated, reason = "1.2 is the oldest version that is used")]
        // SAFETY: the device is the context's.
        unsafe { command_queue::create_command_queue(self.0, device.0, flags) }
            .map(Queue)
            .map_err(|code| error("clCreateCommandQueue", code, 0))
    }

    /// A buffer of `bytes`.
    ///
    /// # Safety
    /// Memory of the caller's is that long and stays accessible until the buffer is released.
    pub(super) unsafe fn buffer(&self, backing: Backing, bytes: usize) -> Result<Mem, DeviceError> {
        let (flags, pointer) = match backing {
            Backing::Device => (memory::CL_MEM_READ_WRITE, ptr::null_mut()),
            Backing::Host => (memory::CL_MEM_READ_WRITE | memory::CL_MEM_ALLOC_HOST_PTR, ptr::null_mut()),
            Backing::Use(pointer) => {
                (memory::CL_MEM_READ_WRITE | memory::CL_MEM_USE_HOST_PTR, pointer.as_ptr().cast())
            }
        };
        // SAFETY: as the caller promises.
        unsafe { memory::create_buffer(self.0, flags, bytes, pointer) }
            .map(Mem)
            .map_err(|code| error("clCreateBuffer", code, bytes as u64))
    }

    /// An image over `buffer`, which it keeps alive.
    pub(super) fn image(&self, call: &ImageCall, buffer: RawMem) -> Result<Mem, DeviceError> {
        let (format, desc) = call.describe(buffer.0);
        // SAFETY: both structures live for the call, which checks them against the buffer; no host memory is given.
        unsafe { memory::create_image(self.0, memory::CL_MEM_READ_WRITE, &format, &desc, ptr::null_mut()) }
            .map(Mem)
            .map_err(|code| error("clCreateImage", code, 0))
    }

    /// The formats of images of a kind that the driver lists.
    pub(super) fn image_formats(&self, kind: u32) -> Result<Vec<TexelFormat>, DeviceError> {
        let listed = memory::get_supported_image_formats(self.0, memory::CL_MEM_READ_WRITE, kind)
            .map_err(|code| error("clGetSupportedImageFormats", code, 0))?;
        let key = |f: &cl_image_format| (f.image_channel_order, f.image_channel_data_type);
        let is_listed = |format: &TexelFormat| listed.iter().any(|l| key(l) == key(&api_format(*format)));
        Ok(TexelFormat::ALL.into_iter().filter(is_listed).collect())
    }

    /// A sampler: places are counted in texels, and beyond the edge is the edge's texel.
    pub(super) fn sampler(&self, linear: bool) -> Result<Sampler, DeviceError> {
        let filter = if linear { memory::CL_FILTER_LINEAR } else { memory::CL_FILTER_NEAREST };
        // The newer call does not exist before OpenCL 2.0.
        #[allow(deprecated, reason = "1.2 is the oldest version that is used")]
        sampler::create_sampler(self.0, CL_FALSE, memory::CL_ADDRESS_CLAMP_TO_EDGE, filter)
            .map(Sampler)
            .map_err(|code| error("clCreateSampler", code, 0))
    }

    pub(super) fn program_from_source(&self, source: &str) -> Result<Program, DeviceError> {
        program::create_program_with_source(self.0, &[source])
            .map(Program)
            .map_err(|code| error("clCreateProgramWithSource", code, 0))
    }

    /// A program from what [`Program::binary`] gave for this device and driver.
    pub(super) fn program_from_binary(
        &self,
        device: DeviceId,
        binary: &[u8],
    ) -> Result<Program, DeviceError> {
        // SAFETY: one binary for one device, which is the context's; the driver checks its header.
        unsafe { program::create_program_with_binary(self.0, &[device.0], &[binary]) }
            .map(Program)
            .map_err(|code| error("clCreateProgramWithBinary", code, 0))
    }
}

impl Mem {
    pub(super) fn raw(&self) -> RawMem {
        RawMem(self.0)
    }

    /// `[offset, offset + bytes)` of a buffer that is no part itself.
    pub(super) fn part(&self, offset: usize, bytes: usize) -> Result<Mem, DeviceError> {
        let region = cl3::types::cl_buffer_region { origin: offset, size: bytes };
        // SAFETY: the region is one, and the call copies it; the driver checks it against the buffer.
        unsafe {
            memory::create_sub_buffer(
                self.0,
                0,
                memory::CL_BUFFER_CREATE_TYPE_REGION,
                ptr::from_ref(&region).cast(),
            )
        }
        .map(Mem)
        .map_err(|code| error("clCreateSubBuffer", code, bytes as u64))
    }
}

/// A memory object that someone else keeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct RawMem(cl_mem);

impl RawMem {
    /// No memory: an image over it is the driver's own.
    #[cfg(test)]
    #[cfg(not(without_glslang))]
    pub(super) const fn none() -> RawMem {
        RawMem(ptr::null_mut())
    }
}

// SAFETY: a handle is a number; what is done with it names why it lives.
unsafe impl Send for RawMem {}
// SAFETY: as above.
unsafe impl Sync for RawMem {}

impl Program {
    /// Builds the program, of `kernel`.
    pub(super) fn build(&self, kernel: &str, device: DeviceId, options: &CStr) -> Result<(), DeviceError> {
        program::build_program(self.0, &[device.0], options, None, ptr::null_mut()).map_err(|code| {
            let said = error("clBuildProgram", code, 0);
            if !matches!(said, DeviceError::Backend { .. }) {
                return said;
            }
            let log = program::get_program_build_data(self.0, device.0, program::CL_PROGRAM_BUILD_LOG);
            let log = text(&log.unwrap_or_default());
            let name = cl3::error_codes::ClError(code);
            let log = if log.is_empty() { name.to_string() } else { format!("{name}\n{log}") };
            DeviceError::Program { kernel: kernel.to_owned(), log }
        })
    }

    /// What the device runs, for [`Context::program_from_binary`].
    pub(super) fn binary(&self) -> Option<Vec<u8>> {
        match program::get_program_info(self.0, program::CL_PROGRAM_BINARIES).ok()? {
            cl3::info_type::InfoType::VecVecUchar(mut binaries) if binaries.len() == 1 => binaries.pop(),
            _ => None,
        }
        .filter(|binary| !binary.is_empty())
    }

    /// The names of its kernels.
    pub(super) fn kernels(&self) -> Result<Vec<String>, DeviceError> {
        let names = program::get_program_data(self.0, program::CL_PROGRAM_KERNEL_NAMES)
            .map_err(|code| error("clGetProgramInfo", code, 0))?;
        let names = text(&names);
        Ok(names.split(';').filter(|name| !name.is_empty()).map(str::to_owned).collect())
    }

    pub(super) fn kernel(&self, name: &CStr) -> Result<Kernel, DeviceError> {
        kernel::create_kernel(self.0, name).map(Kernel).map_err(|code| error("clCreateKernel", code, 0))
    }
}

impl Kernel {
    /// How many arguments it takes.
    pub(super) fn arguments(&self) -> Result<u32, DeviceError> {
        let data = kernel::get_kernel_data(self.0, kernel::CL_KERNEL_NUM_ARGS)
            .map_err(|code| error("clGetKernelInfo", code, 0))?;
        Ok(number(&data) as u32)
    }

    /// The work-group size that the source prescribes; zeros where it does not.
    pub(super) fn prescribed_size(&self, device: DeviceId) -> Result<[usize; 3], DeviceError> {
        let what = kernel::CL_KERNEL_COMPILE_WORK_GROUP_SIZE;
        let data = kernel::get_kernel_work_group_data(self.0, device.0, what)
            .map_err(|code| error("clGetKernelWorkGroupInfo", code, 0))?;
        Ok(sizes(&data))
    }

    /// The most work-items that a group of it may have here.
    pub(super) fn most_items(&self, device: DeviceId) -> Result<u64, DeviceError> {
        let data = kernel::get_kernel_work_group_data(self.0, device.0, kernel::CL_KERNEL_WORK_GROUP_SIZE)
            .map_err(|code| error("clGetKernelWorkGroupInfo", code, 0))?;
        Ok(number(&data))
    }

    pub(super) fn set_memory(&mut self, index: u32, memory: RawMem) -> Result<(), DeviceError> {
        let raw = memory.0;
        // SAFETY: the value is a memory object's handle, as the argument's declared type asks; the driver
        // checks the index. No one else sets arguments meanwhile.
        unsafe { kernel::set_kernel_arg(self.0, index, size_of::<cl_mem>(), ptr::from_ref(&raw).cast()) }
            .map_err(|code| error("clSetKernelArg", code, 0))
    }

    pub(super) fn set_sampler(&mut self, index: u32, sampler: &Sampler) -> Result<(), DeviceError> {
        let raw = sampler.0;
        // SAFETY: the value is a sampler's handle, as the argument's declared type asks; the driver checks the
        // index. No one else sets arguments meanwhile.
        unsafe { kernel::set_kernel_arg(self.0, index, size_of::<cl_sampler>(), ptr::from_ref(&raw).cast()) }
            .map_err(|code| error("clSetKernelArg", code, 0))
    }

    pub(super) fn set_bytes(&mut self, index: u32, bytes: &[u8]) -> Result<(), DeviceError> {
        // SAFETY: the bytes are copied by the call, which checks their number against the argument's type.
        unsafe { kernel::set_kernel_arg(self.0, index, bytes.len(), bytes.as_ptr().cast()) }
            .map_err(|code| error("clSetKernelArg", code, 0))
    }

    /// Gives the argument, a `__local` pointer, so many bytes of each work-group's memory.
    pub(super) fn set_workgroup(&mut self, index: u32, bytes: usize) -> Result<(), DeviceError> {
        // SAFETY: without a value the call reads nothing; it checks that the argument is a `__local` pointer.
        unsafe { kernel::set_kernel_arg(self.0, index, bytes, ptr::null()) }
            .map_err(|code| error("clSetKernelArg", code, 0))
    }
}

impl Queue {
    /// # Safety
    /// The kernel's arguments are set and name memory that lives until the command has finished; a group of
    /// `local` is one that the kernel and the device take, and `global` a multiple of it.
    pub(super) unsafe fn nd_range(
        &self,
        kernel: &Kernel,
        global: &[usize; 3],
        local: &[usize; 3],
    ) -> Result<Event, DeviceError> {
        // SAFETY: three numbers each; the rest is the caller's promise.
        unsafe {
            command_queue::enqueue_nd_range_kernel(
                self.0,
                kernel.0,
                3,
                ptr::null(),
                global.as_ptr(),
                local.as_ptr(),
                0,
                ptr::null(),
            )
        }
        .map(Event)
        .map_err(|code| error("clEnqueueNDRangeKernel", code, 0))
    }

    /// # Safety
    /// Both buffers live until the command has finished; the ranges are in them and do not overlap.
    pub(super) unsafe fn copy(
        &self,
        (src, src_offset): (RawMem, usize),
        (dst, dst_offset): (RawMem, usize),
        bytes: usize,
    ) -> Result<Event, DeviceError> {
        // SAFETY: as the caller promises.
        unsafe {
            command_queue::enqueue_copy_buffer(
                self.0,
                src.0,
                dst.0,
                src_offset,
                dst_offset,
                bytes,
                0,
                ptr::null(),
            )
        }
        .map(Event)
        .map_err(|code| error("clEnqueueCopyBuffer", code, 0))
    }

    /// # Safety
    /// The buffer lives until the command has finished; the range is in it and made of whole words.
    pub(super) unsafe fn fill(
        &self,
        (dst, offset): (RawMem, usize),
        bytes: usize,
        value: u32,
    ) -> Result<Event, DeviceError> {
        let pattern = value.to_ne_bytes();
        // SAFETY: the pattern is copied by the call; the rest is the caller's promise.
        unsafe {
            command_queue::enqueue_fill_buffer(
                self.0,
                dst.0,
                pattern.as_ptr().cast(),
                pattern.len(),
                offset,
                bytes,
                0,
                ptr::null(),
            )
        }
        .map(Event)
        .map_err(|code| error("clEnqueueFillBuffer", code, 0))
    }

    /// An event that completes with everything before it.
    pub(super) fn marker(&self) -> Result<Event, DeviceError> {
        // SAFETY: no wait list.
        unsafe { command_queue::enqueue_marker_with_wait_list(self.0, 0, ptr::null()) }
            .map(Event)
            .map_err(|code| error("clEnqueueMarkerWithWaitList", code, 0))
    }

    /// Holds later commands back until `event`, of another queue of the context, has completed.
    pub(super) fn barrier(&self, event: &Event) -> Result<Event, DeviceError> {
        // SAFETY: one event, which lives.
        unsafe { command_queue::enqueue_barrier_with_wait_list(self.0, 1, &event.0) }
            .map(Event)
            .map_err(|code| error("clEnqueueBarrierWithWaitList", code, 0))
    }

    /// Maps a buffer for reading and writing and waits for it.
    pub(super) fn map(&self, buffer: &Mem, bytes: usize) -> Result<NonNull<u8>, DeviceError> {
        let mut address: *mut c_void = ptr::null_mut();
        let flags = memory::CL_MAP_READ | memory::CL_MAP_WRITE;
        // SAFETY: the whole buffer, mapped before anything else uses it.
        let event = unsafe {
            command_queue::enqueue_map_buffer(
                self.0,
                buffer.0,
                CL_BLOCKING,
                flags,
                0,
                bytes,
                &mut address,
                0,
                ptr::null(),
            )
        };
        let event = event.map_err(|code| error("clEnqueueMapBuffer", code, bytes as u64))?;
        drop(Event(event));
        NonNull::new(address.cast()).ok_or(DeviceError::Backend {
            api: "OpenCL",
            call: "clEnqueueMapBuffer",
            code: 0,
        })
    }

    /// Ends a mapping and waits for it.
    ///
    /// # Safety
    /// `address` is what [`Queue::map`] gave for the buffer, and no one uses it any more.
    pub(super) unsafe fn unmap(&self, buffer: &Mem, address: NonNull<u8>) -> Result<(), DeviceError> {
        // SAFETY: as the caller promises.
        let event = unsafe {
            command_queue::enqueue_unmap_mem_object(self.0, buffer.0, address.as_ptr().cast(), 0, ptr::null())
        };
        Event(event.map_err(|code| error("clEnqueueUnmapMemObject", code, 0))?).wait()
    }

    /// Copies host bytes into a buffer and waits for it.
    ///
    /// # Safety
    /// `from` has `bytes` readable bytes, the buffer has as many from `offset` on, and no unfinished command
    /// uses them.
    pub(super) unsafe fn write(
        &self,
        buffer: &Mem,
        offset: usize,
        from: NonNull<u8>,
        bytes: usize,
    ) -> Result<(), DeviceError> {
        // SAFETY: as the caller promises; the call blocks until the bytes were read.
        let event = unsafe {
            command_queue::enqueue_write_buffer(
                self.0,
                buffer.0,
                CL_BLOCKING,
                offset,
                bytes,
                from.as_ptr().cast(),
                0,
                ptr::null(),
            )
        };
        Event(event.map_err(|code| error("clEnqueueWriteBuffer", code, 0))?).wait()
    }

    /// Copies a buffer's bytes to the host and waits for it.
    ///
    /// # Safety
    /// `to` has `bytes` writable bytes that no one else uses, and the buffer has as many from `offset` on.
    pub(super) unsafe fn read(
        &self,
        buffer: &Mem,
        offset: usize,
        to: NonNull<u8>,
        bytes: usize,
    ) -> Result<(), DeviceError> {
        // SAFETY: as the caller promises; the call blocks until the bytes were written.
        let event = unsafe {
            command_queue::enqueue_read_buffer(
                self.0,
                buffer.0,
                CL_BLOCKING,
                offset,
                bytes,
                to.as_ptr().cast(),
                0,
                ptr::null(),
            )
        };
        Event(event.map_err(|code| error("clEnqueueReadBuffer", code, 0))?).wait()
    }

    /// Hands what was enqueued to the device.
    pub(super) fn flush(&self) -> Result<(), DeviceError> {
        command_queue::flush(self.0).map_err(|code| error("clFlush", code, 0))
    }

    /// Waits for everything that was enqueued.
    pub(super) fn finish(&self) -> Result<(), DeviceError> {
        command_queue::finish(self.0).map_err(|code| error("clFinish", code, 0))
    }
}

impl Clone for Event {
    fn clone(&self) -> Self {
        // SAFETY: the event lives; the new handle holds the reference that is added. Adding one to a live
        // object cannot fail.
        let added = unsafe { event::retain_event(self.0) };
        debug_assert_eq!(added, Ok(()));
        Event(self.0)
    }
}

impl Event {
    /// Whether the command has completed.
    pub(super) fn is_done(&self) -> Result<bool, DeviceError> {
        let data = event::get_event_data(self.0, event::CL_EVENT_COMMAND_EXECUTION_STATUS)
            .map_err(|code| error("clGetEventInfo", code, 0))?;
        match number(&data) as u32 as i32 {
            event::CL_COMPLETE => Ok(true),
            code if code < 0 => Err(failed(code)),
            _ => Ok(false),
        }
    }

    /// Waits until the command has completed.
    pub(super) fn wait(&self) -> Result<(), DeviceError> {
        match event::wait_for_events(&[self.0]) {
            Ok(()) => Ok(()),
            // The status says what happened to the command.
            Err(code) => match self.is_done() {
                Ok(_) => Err(error("clWaitForEvents", code, 0)),
                Err(error) => Err(error),
            },
        }
    }

    /// When the command began, in the device's nanoseconds.
    pub(super) fn began(&self) -> Option<u64> {
        self.time(event::CL_PROFILING_COMMAND_START)
    }

    /// When the command ended.
    pub(super) fn ended(&self) -> Option<u64> {
        self.time(event::CL_PROFILING_COMMAND_END)
    }

    fn time(&self, what: u32) -> Option<u64> {
        event::get_event_profiling_data(self.0, what).ok().map(|data| number(&data))
    }
}

/// A command that failed while it ran leaves its memory in no known state, and what follows it in the queue
/// does not run.
fn failed(code: i32) -> DeviceError {
    DeviceError::Lost { detail: format!("a command failed: {}", cl3::error_codes::ClError(code)) }
}
