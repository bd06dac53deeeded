//! The API's functions with ours among them, for tests: they fail the call that they are told to, and count the objects
//! that live. They are those of the whole process, so a test that makes calls fail has one of its own.

#![allow(missing_docs, clippy::unwrap_used, reason = "for tests, which fail by panicking")]

use std::collections::BTreeMap;
use std::ffi::{CStr, c_char, c_void};
use std::sync::{Arc, Mutex};

use cl3::error_codes::{CL_DEVICE_NOT_AVAILABLE, CL_MEM_OBJECT_ALLOCATION_FAILURE, CL_OUT_OF_HOST_MEMORY};
use cl3::types::*;

use super::context::Context;
use super::device::Device;
use super::platform;
use super::share::share_without_images;
use crate::backend::{ContextBackend, ContextDesc};
use onepool_core::sync::lock;

/// How a call fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    OutOfHostMemory,
    OutOfDeviceMemory,
    Lost,
}

#[derive(Default)]
struct State {
    /// The calls since [`arm`].
    calls: Vec<&'static str>,
    fail: Option<(usize, Fault)>,
    fired: Option<&'static str>,
    /// Queues that live, as numbers.
    queues: Vec<usize>,
    live: BTreeMap<&'static str, i64>,
}

static STATE: Mutex<Option<State>> = Mutex::new(None);

fn with<R>(f: impl FnOnce(&mut State) -> R) -> R {
    f(lock(&STATE).get_or_insert_with(State::default))
}

/// The first device, with no program compiled, and without images.
pub fn open() -> Arc<dyn ContextBackend> {
    let found = platform::devices().unwrap().swap_remove(0);
    share_without_images(found.device).unwrap().programs.forget();
    Arc::new(Context::new(Device::open(found).unwrap(), &ContextDesc::default()))
}

/// Counts calls from now on, and fails the `fail`-th, counted from 0.
pub fn arm(fail: Option<(usize, Fault)>) {
    with(|state| (state.calls, state.fail, state.fired) = (Vec::new(), fail, None));
}

/// Fails nothing any more; gives the calls since [`arm`], and the one that failed.
pub fn disarm() -> (Vec<&'static str>, Option<&'static str>) {
    with(|state| {
        state.fail = None;
        (std::mem::take(&mut state.calls), state.fired.take())
    })
}

/// How many objects of each kind live, except compiled programs that no one uses.
pub fn live() -> BTreeMap<&'static str, i64> {
    let first = platform::devices().unwrap().swap_remove(0).device;
    share_without_images(first).unwrap().programs.forget();
    with(|state| state.live.iter().filter(|(_, n)| **n != 0).map(|(kind, n)| (*kind, *n)).collect())
}

/// Makes the call, unless it is to fail.
fn call<T>(name: &'static str, make: impl FnOnce() -> Result<T, cl_int>) -> Result<T, cl_int> {
    if name == "clRetainEvent" {
        // One more reference to what lives cannot fail.
        return make();
    }
    let (answer, queues) = with(|state| {
        let at = state.calls.len();
        state.calls.push(name);
        match state.fail {
            Some((n, fault)) if n == at => {
                state.fired = Some(name);
                let queues = if fault == Fault::Lost { state.queues.clone() } else { Vec::new() };
                let code = match fault {
                    Fault::OutOfHostMemory => CL_OUT_OF_HOST_MEMORY,
                    Fault::OutOfDeviceMemory => CL_MEM_OBJECT_ALLOCATION_FAILURE,
                    Fault::Lost => CL_DEVICE_NOT_AVAILABLE,
                };
                (Err(code), queues)
            }
            _ => (Ok(()), Vec::new()),
        }
    });
    // A lost device does no more work.
    queues
        .into_iter()
        .for_each(|queue| assert_eq!(cl3::command_queue::finish(queue as cl_command_queue), Ok(())));
    answer.and_then(|()| make())
}

/// What a call gives, as a number.
trait Number {
    fn number(&self) -> usize;
}

impl Number for *mut c_void {
    fn number(&self) -> usize {
        self.addr()
    }
}

impl Number for () {
    fn number(&self) -> usize {
        0
    }
}

fn made<T: Number>(kind: &'static str, result: Result<T, cl_int>) -> Result<T, cl_int> {
    if let Ok(object) = &result {
        with(|state| {
            *state.live.entry(kind).or_default() += 1;
            state.queues.extend((kind == "queue").then(|| object.number()));
        });
    }
    result
}

fn released(kind: &'static str, object: &impl Number) {
    with(|state| {
        *state.live.entry(kind).or_default() -= 1;
        state.queues.retain(|queue| *queue != object.number());
    });
}

/// Functions as the API's crate has them, the unsafe ones after a semicolon; after an arrow what there is one more of
/// then.
macro_rules! functions {
    ($module:ident: $($name:literal $function:ident ($($arg:ident: $ty:ty),*) -> $result:ty $(=> $kind:literal)?,)*;
        $($unsafe_name:literal $unsafe_function:ident ($($unsafe_arg:ident: $unsafe_ty:ty),*) -> $unsafe_result:ty
            $(=> $unsafe_kind:literal)?,)*;
        $($release:ident ($handle:ty) => $released:literal,)*) => {
        pub(super) mod $module {
            pub(in crate::backend::opencl) use cl3::$module::*;
            #[allow(unused_imports, reason = "not every module has functions of every kind")]
            use super::*;

            $(#[allow(deprecated, reason = "1.2 is the oldest version that is used")]
            pub(in crate::backend::opencl) fn $function($($arg: $ty),*) -> Result<$result, cl_int> {
                let result = call($name, || cl3::$module::$function($($arg),*));
                $(let result = made($kind, result);)?
                result
            })*

            $(/// # Safety
            /// As the crate's.
            #[allow(clippy::too_many_arguments, reason = "as the call of the API has them")]
            #[allow(deprecated, reason = "1.2 is the oldest version that is used")]
            pub(in crate::backend::opencl) unsafe fn $unsafe_function($($unsafe_arg: $unsafe_ty),*) -> Result<$unsafe_result, cl_int> {
                // SAFETY: as the caller promises.
                let result = call($unsafe_name, || unsafe { cl3::$module::$unsafe_function($($unsafe_arg),*) });
                $(let result = made($unsafe_kind, result);)?
                result
            })*

            $(/// # Safety
            /// As the crate's.
            pub(in crate::backend::opencl) unsafe fn $release(handle: $handle) -> Result<(), cl_int> {
                released($released, &handle);
                // SAFETY: as the caller promises.
                unsafe { cl3::$module::$release(handle) }
            })*
        }
    };
}

type Notify = Option<unsafe extern "C" fn(*const c_char, *const c_void, usize, *mut c_void)>;
type Built = Option<unsafe extern "C" fn(cl_program, *mut c_void)>;

functions! { context:
    "clCreateContext" create_context (devices: &[cl_device_id], properties: *const cl_context_properties, notify: Notify, data: *mut c_void)
        -> cl_context => "context",
    ;;
    release_context (cl_context) => "context",
}

functions! { sampler:
    "clCreateSampler" create_sampler (context: cl_context, normalized: cl_bool, addressing: cl_addressing_mode, filter: cl_filter_mode)
        -> cl_sampler => "sampler",
    ;;
    release_sampler (cl_sampler) => "sampler",
}

functions! { program:
    "clCreateProgramWithSource" create_program_with_source (context: cl_context, sources: &[&str]) -> cl_program => "program",
    "clBuildProgram" build_program (program: cl_program, devices: &[cl_device_id], options: &CStr, notify: Built, data: *mut c_void) -> (),
    "clGetProgramInfo" get_program_data (program: cl_program, name: cl_program_info) -> Vec<u8>,
    ;
    "clCreateProgramWithBinary" create_program_with_binary (context: cl_context, devices: &[cl_device_id], binaries: &[&[u8]]) -> cl_program => "program",
    ;
    release_program (cl_program) => "program",
}

functions! { kernel:
    "clCreateKernel" create_kernel (program: cl_program, name: &CStr) -> cl_kernel => "kernel",
    "clGetKernelInfo" get_kernel_data (kernel: cl_kernel, name: cl_kernel_info) -> Vec<u8>,
    "clGetKernelWorkGroupInfo" get_kernel_work_group_data (kernel: cl_kernel, device: cl_device_id, name: cl_kernel_work_group_info) -> Vec<u8>,
    ;
    "clSetKernelArg" set_kernel_arg (kernel: cl_kernel, index: cl_uint, size: usize, value: *const c_void) -> (),
    ;
    release_kernel (cl_kernel) => "kernel",
}

functions! { memory:
    "clGetSupportedImageFormats" get_supported_image_formats (context: cl_context, flags: cl_mem_flags, kind: cl_mem_object_type) -> Vec<cl_image_format>,
    ;
    "clCreateBuffer" create_buffer (context: cl_context, flags: cl_mem_flags, size: usize, host: *mut c_void) -> cl_mem => "memory",
    "clCreateSubBuffer" create_sub_buffer (buffer: cl_mem, flags: cl_mem_flags, kind: cl_buffer_create_type, info: *const c_void) -> cl_mem => "memory",
    "clCreateImage" create_image (context: cl_context, flags: cl_mem_flags, format: *const cl_image_format, desc: *const cl_image_desc, host: *mut c_void) -> cl_mem => "memory",
    ;
    release_mem_object (cl_mem) => "memory",
}

functions! { event:
    "clWaitForEvents" wait_for_events (events: &[cl_event]) -> (),
    "clGetEventInfo" get_event_data (event: cl_event, name: cl_event_info) -> Vec<u8>,
    "clGetEventProfilingInfo" get_event_profiling_data (event: cl_event, name: cl_profiling_info) -> Vec<u8>,
    ;
    "clRetainEvent" retain_event (event: cl_event) -> () => "event",
    ;
    release_event (cl_event) => "event",
}

functions! { command_queue:
    "clFlush" flush (queue: cl_command_queue) -> (),
    "clFinish" finish (queue: cl_command_queue) -> (),
    ;
    "clCreateCommandQueue" create_command_queue (context: cl_context, device: cl_device_id, properties: cl_command_queue_properties)
        -> cl_command_queue => "queue",
    "clEnqueueNDRangeKernel" enqueue_nd_range_kernel (queue: cl_command_queue, kernel: cl_kernel, dim: cl_uint, offset: *const usize, global: *const usize, local: *const usize, waits: cl_uint, list: *const cl_event)
        -> cl_event => "event",
    "clEnqueueCopyBuffer" enqueue_copy_buffer (queue: cl_command_queue, src: cl_mem, dst: cl_mem, from: usize, to: usize, size: usize, waits: cl_uint, list: *const cl_event)
        -> cl_event => "event",
    "clEnqueueFillBuffer" enqueue_fill_buffer (queue: cl_command_queue, dst: cl_mem, pattern: *const c_void, pattern_size: usize, offset: usize, size: usize, waits: cl_uint, list: *const cl_event)
        -> cl_event => "event",
    "clEnqueueMarkerWithWaitList" enqueue_marker_with_wait_list (queue: cl_command_queue, waits: cl_uint, list: *const cl_event) -> cl_event => "event",
    "clEnqueueBarrierWithWaitList" enqueue_barrier_with_wait_list (queue: cl_command_queue, waits: cl_uint, list: *const cl_event) -> cl_event => "event",
    "clEnqueueMapBuffer" enqueue_map_buffer (queue: cl_command_queue, buffer: cl_mem, blocking: cl_bool, flags: cl_map_flags, offset: usize, size: usize, to: &mut cl_mem, waits: cl_uint, list: *const cl_event)
        -> cl_event => "event",
    "clEnqueueUnmapMemObject" enqueue_unmap_mem_object (queue: cl_command_queue, memory: cl_mem, mapped: *mut c_void, waits: cl_uint, list: *const cl_event)
        -> cl_event => "event",
    "clEnqueueWriteBuffer" enqueue_write_buffer (queue: cl_command_queue, buffer: cl_mem, blocking: cl_bool, offset: usize, size: usize, from: *const c_void, waits: cl_uint, list: *const cl_event)
        -> cl_event => "event",
    "clEnqueueReadBuffer" enqueue_read_buffer (queue: cl_command_queue, buffer: cl_mem, blocking: cl_bool, offset: usize, size: usize, to: *mut c_void, waits: cl_uint, list: *const cl_event)
        -> cl_event => "event",
    ;
    release_command_queue (cl_command_queue) => "queue",
}
