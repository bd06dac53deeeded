//! A layer of our own between the backend and the loader, for tests: it fails the call that it is told to, and counts the
//! objects that live.
//!
//! It is the function table of one instance and of the devices made of it; others do not see it.

#![allow(missing_docs, clippy::unwrap_used, reason = "for tests, which fail by panicking")]

use std::collections::{BTreeMap, HashMap};
use std::ffi::{CStr, c_char, c_void};
use std::sync::{Arc, Mutex, OnceLock};

use ash::vk::{self, Handle as _};

use super::Without;
use super::context::Context;
use super::device::Device;
use super::instance::Instance;
use super::loss::WAITS;
use super::probe::probe_all;
use crate::backend::{ContextBackend, ContextDesc};
use onepool_core::sync::lock;

/// How a call fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    OutOfHostMemory,
    OutOfDeviceMemory,
    /// This call and every later one that may say so, except for waits: there is no memory any more.
    Exhausted,
    /// Only where the call may say so; the device does no more work.
    Lost,
    /// As [`Fault::Lost`], and what was submitted before goes on.
    LostEarly,
}

#[derive(Default)]
struct State {
    /// The calls since [`arm`].
    calls: Vec<&'static str>,
    fail: Option<(usize, Fault)>,
    fired: Option<&'static str>,
    lost: bool,
    devices: Vec<vk::Device>,
    live: BTreeMap<&'static str, i64>,
}

static STATE: Mutex<Option<State>> = Mutex::new(None);
static REAL: Mutex<Option<HashMap<&'static str, usize>>> = Mutex::new(None);
static INSTANCE: OnceLock<Arc<Instance>> = OnceLock::new();

fn with<R>(f: impl FnOnce(&mut State) -> R) -> R {
    f(lock(&STATE).get_or_insert_with(State::default))
}

/// The first device, through this table and under the validation layer.
pub fn open() -> Arc<dyn ContextBackend> {
    open_without(&ContextDesc::default(), Without::default(), false)
}

/// As [`open`], with some parts of the device left unused. `loses_early`: as a device whose loss may be told of before the
/// work is over.
pub(super) fn open_without(desc: &ContextDesc, without: Without, loses_early: bool) -> Arc<Context> {
    let instance = INSTANCE.get_or_init(|| Instance::shimmed().unwrap());
    let mut probe = probe_all(instance).unwrap().into_iter().next().unwrap();
    probe.loses_early |= loses_early;
    let desc = ContextDesc { validation: true, ..desc.clone() };
    let device = Device::open(Arc::clone(instance), probe, &desc, without).unwrap();
    Arc::new(Context::new(device, &desc).unwrap())
}

/// Waits until all devices are idle, by calls that do not count.
pub(super) fn finish() {
    for device in with(|state| state.devices.clone()) {
        // SAFETY: a device that lives; tests have no other thread that uses its queues now.
        let idle = unsafe {
            std::mem::transmute::<usize, vk::PFN_vkDeviceWaitIdle>(real("vkDeviceWaitIdle"))(device)
        };
        assert_eq!(idle, vk::Result::SUCCESS);
    }
}

/// Counts calls from now on, and fails the `fail`-th, counted from 0.
pub fn arm(fail: Option<(usize, Fault)>) {
    with(|state| {
        (state.calls, state.fail, state.fired, state.lost) = (Vec::new(), fail, None, false);
    });
}

/// Fails nothing any more; gives the calls since [`arm`], and the one that failed.
pub fn disarm() -> (Vec<&'static str>, Option<&'static str>) {
    with(|state| {
        (state.fail, state.lost) = (None, false);
        (std::mem::take(&mut state.calls), state.fired.take())
    })
}

/// How many objects of each kind live.
pub fn live() -> BTreeMap<&'static str, i64> {
    with(|state| state.live.iter().filter(|(_, n)| **n != 0).map(|(kind, n)| (*kind, *n)).collect())
}

/// Calls that may tell of a lost device.
pub fn may_lose(call: &str) -> bool {
    call == "vkQueueSubmit" || WAITS.contains(&call)
}

/// What a call is to answer instead of being made.
fn refuse(call: &'static str) -> Option<vk::Result> {
    let (answer, is_idle) = with(|state| {
        let at = state.calls.len();
        state.calls.push(call);
        if state.lost && may_lose(call) {
            return (Some(vk::Result::ERROR_DEVICE_LOST), false);
        }
        match state.fail {
            Some((n, fault @ (Fault::Lost | Fault::LostEarly))) if n == at && may_lose(call) => {
                (state.lost, state.fired) = (true, Some(call));
                (Some(vk::Result::ERROR_DEVICE_LOST), fault == Fault::Lost)
            }
            Some((n, Fault::Exhausted)) if n <= at && (call == "vkQueueSubmit" || !may_lose(call)) => {
                state.fired = Some(call);
                (Some(vk::Result::ERROR_OUT_OF_DEVICE_MEMORY), false)
            }
            Some((n, Fault::OutOfHostMemory)) if n == at => {
                state.fired = Some(call);
                (Some(vk::Result::ERROR_OUT_OF_HOST_MEMORY), false)
            }
            Some((n, Fault::OutOfDeviceMemory)) if n == at => {
                state.fired = Some(call);
                (Some(vk::Result::ERROR_OUT_OF_DEVICE_MEMORY), false)
            }
            _ => (None, false),
        }
    });
    if is_idle {
        finish();
    }
    answer
}

fn real(name: &'static str) -> usize {
    lock(&REAL).get_or_insert_default().get(name).copied().unwrap()
}

fn count(kind: &'static str, by: i64) {
    with(|state| *state.live.entry(kind).or_default() += by);
}

/// The functions of `instance` with ours among them.
pub(super) fn table(entry: &ash::Entry, instance: vk::Instance) -> ash::Instance {
    let load = |name: &CStr| {
        // SAFETY: the instance lives, and the name ends with a zero.
        let found = unsafe { entry.get_instance_proc_addr(instance, name.as_ptr()) };
        found.map_or(std::ptr::null(), |found| ours(name, found as usize) as *const c_void)
    };
    // SAFETY: the loader's functions of the instance, or ones of the same signatures that call them.
    unsafe { ash::Instance::load_with(load, instance) }
}

/// Our function of this name, which calls `found`; that itself where we have none.
fn ours(name: &CStr, found: usize) -> usize {
    let name = name.to_str().unwrap().trim_end_matches("KHR");
    let own: [fn(&str) -> Option<(&'static str, usize)>; 3] = [fallible, destroying, special];
    let Some((name, function)) = own.iter().find_map(|find| find(name)) else { return found };
    lock(&REAL).get_or_insert_default().insert(name, found);
    function
}

/// The driver's function, counted.
///
/// # Safety
/// As Vulkan's function of this name.
unsafe extern "system" fn device_function(device: vk::Device, name: *const c_char) -> vk::PFN_vkVoidFunction {
    // SAFETY: the real function of this signature.
    let real: vk::PFN_vkGetDeviceProcAddr = unsafe { std::mem::transmute(real("vkGetDeviceProcAddr")) };
    // SAFETY: as the caller promises.
    let (found, name) = unsafe { (real(device, name)?, CStr::from_ptr(name)) };
    // SAFETY: a function pointer, ours or the driver's.
    unsafe { std::mem::transmute::<usize, vk::PFN_vkVoidFunction>(ours(name, found as usize)) }
}

/// The driver's function, counted.
///
/// # Safety
/// As Vulkan's function of this name.
unsafe extern "system" fn create_device(
    physical: vk::PhysicalDevice,
    info: *const vk::DeviceCreateInfo<'_>,
    allocator: *const vk::AllocationCallbacks<'_>,
    device: *mut vk::Device,
) -> vk::Result {
    if let Some(code) = refuse("vkCreateDevice") {
        return code;
    }
    // SAFETY: the real function of this signature.
    let real: vk::PFN_vkCreateDevice = unsafe { std::mem::transmute(real("vkCreateDevice")) };
    // SAFETY: as the caller promises.
    let result = unsafe { real(physical, info, allocator, device) };
    if result == vk::Result::SUCCESS {
        // SAFETY: written by the call.
        let made = unsafe { *device };
        with(|state| state.devices.push(made));
        count("device", 1);
    }
    result
}

/// The driver's function, counted.
///
/// # Safety
/// As Vulkan's function of this name.
unsafe extern "system" fn destroy_device(device: vk::Device, allocator: *const vk::AllocationCallbacks<'_>) {
    with(|state| state.devices.retain(|live| *live != device));
    count("device", -1);
    // SAFETY: the real function of this signature.
    let real: vk::PFN_vkDestroyDevice = unsafe { std::mem::transmute(real("vkDestroyDevice")) };
    // SAFETY: as the caller promises.
    unsafe { real(device, allocator) };
}

/// The driver's function, counted.
///
/// # Safety
/// As Vulkan's function of this name.
unsafe extern "system" fn create_pipelines(
    device: vk::Device,
    cache: vk::PipelineCache,
    infos: u32,
    info: *const vk::ComputePipelineCreateInfo<'_>,
    allocator: *const vk::AllocationCallbacks<'_>,
    pipelines: *mut vk::Pipeline,
) -> vk::Result {
    if let Some(code) = refuse("vkCreateComputePipelines") {
        // SAFETY: as many as the caller promises; a failed call gives null handles.
        unsafe { std::slice::from_raw_parts_mut(pipelines, infos as usize) }.fill(vk::Pipeline::null());
        return code;
    }
    // SAFETY: the real function of this signature.
    let real: vk::PFN_vkCreateComputePipelines =
        unsafe { std::mem::transmute(real("vkCreateComputePipelines")) };
    // SAFETY: as the caller promises.
    let result = unsafe { real(device, cache, infos, info, allocator, pipelines) };
    // SAFETY: as above.
    let made = unsafe { std::slice::from_raw_parts(pipelines, infos as usize) };
    count("pipeline", made.iter().filter(|pipeline| !pipeline.is_null()).count() as i64);
    result
}

fn special(name: &str) -> Option<(&'static str, usize)> {
    Some(match name {
        "vkGetDeviceProcAddr" => {
            ("vkGetDeviceProcAddr", device_function as vk::PFN_vkGetDeviceProcAddr as usize)
        }
        "vkCreateDevice" => ("vkCreateDevice", create_device as vk::PFN_vkCreateDevice as usize),
        "vkDestroyDevice" => ("vkDestroyDevice", destroy_device as vk::PFN_vkDestroyDevice as usize),
        "vkCreateComputePipelines" => {
            ("vkCreateComputePipelines", create_pipelines as vk::PFN_vkCreateComputePipelines as usize)
        }
        _ => return None,
    })
}

/// Functions that may fail; after the arrow what there is one more of then.
macro_rules! fallible {
    ($($name:literal $function:ident $pfn:ident ($($arg:ident: $ty:ty),+) => $made:expr;)+) => {
        $(/// # Safety
        /// As Vulkan's function of this name.
        unsafe extern "system" fn $function($($arg: $ty),+) -> vk::Result {
            if let Some(code) = refuse($name) {
                return code;
            }
            // SAFETY: the real function of this signature.
            let real: vk::$pfn = unsafe { std::mem::transmute(real($name)) };
            // SAFETY: as the caller promises.
            let result = unsafe { real($($arg),+) };
            let made: Option<&'static str> = $made;
            if let Some(kind) = made.filter(|_| result == vk::Result::SUCCESS) {
                count(kind, 1);
            }
            result
        })+

        fn fallible(name: &str) -> Option<(&'static str, usize)> {
            match name {
                $($name => Some(($name, $function as vk::$pfn as usize)),)+
                _ => None,
            }
        }
    };
}

type Callbacks<'a> = *const vk::AllocationCallbacks<'a>;

fallible! {
    "vkAllocateMemory" allocate_memory PFN_vkAllocateMemory
        (d: vk::Device, i: *const vk::MemoryAllocateInfo<'_>, c: Callbacks<'_>, o: *mut vk::DeviceMemory) => Some("memory");
    "vkCreateBuffer" create_buffer PFN_vkCreateBuffer
        (d: vk::Device, i: *const vk::BufferCreateInfo<'_>, c: Callbacks<'_>, o: *mut vk::Buffer) => Some("buffer");
    "vkCreateBufferView" create_buffer_view PFN_vkCreateBufferView
        (d: vk::Device, i: *const vk::BufferViewCreateInfo<'_>, c: Callbacks<'_>, o: *mut vk::BufferView) => Some("buffer view");
    "vkCreateImage" create_image PFN_vkCreateImage
        (d: vk::Device, i: *const vk::ImageCreateInfo<'_>, c: Callbacks<'_>, o: *mut vk::Image) => Some("image");
    "vkCreateImageView" create_image_view PFN_vkCreateImageView
        (d: vk::Device, i: *const vk::ImageViewCreateInfo<'_>, c: Callbacks<'_>, o: *mut vk::ImageView) => Some("image view");
    "vkCreateCommandPool" create_command_pool PFN_vkCreateCommandPool
        (d: vk::Device, i: *const vk::CommandPoolCreateInfo<'_>, c: Callbacks<'_>, o: *mut vk::CommandPool) => Some("command pool");
    "vkCreateDescriptorPool" create_descriptor_pool PFN_vkCreateDescriptorPool
        (d: vk::Device, i: *const vk::DescriptorPoolCreateInfo<'_>, c: Callbacks<'_>, o: *mut vk::DescriptorPool) => Some("descriptor pool");
    "vkCreateDescriptorSetLayout" create_set_layout PFN_vkCreateDescriptorSetLayout
        (d: vk::Device, i: *const vk::DescriptorSetLayoutCreateInfo<'_>, c: Callbacks<'_>, o: *mut vk::DescriptorSetLayout) => Some("set layout");
    "vkCreateFence" create_fence PFN_vkCreateFence
        (d: vk::Device, i: *const vk::FenceCreateInfo<'_>, c: Callbacks<'_>, o: *mut vk::Fence) => Some("fence");
    "vkCreatePipelineCache" create_pipeline_cache PFN_vkCreatePipelineCache
        (d: vk::Device, i: *const vk::PipelineCacheCreateInfo<'_>, c: Callbacks<'_>, o: *mut vk::PipelineCache) => Some("pipeline cache");
    "vkCreatePipelineLayout" create_pipeline_layout PFN_vkCreatePipelineLayout
        (d: vk::Device, i: *const vk::PipelineLayoutCreateInfo<'_>, c: Callbacks<'_>, o: *mut vk::PipelineLayout) => Some("pipeline layout");
    "vkCreateQueryPool" create_query_pool PFN_vkCreateQueryPool
        (d: vk::Device, i: *const vk::QueryPoolCreateInfo<'_>, c: Callbacks<'_>, o: *mut vk::QueryPool) => Some("query pool");
    "vkCreateSampler" create_sampler PFN_vkCreateSampler
        (d: vk::Device, i: *const vk::SamplerCreateInfo<'_>, c: Callbacks<'_>, o: *mut vk::Sampler) => Some("sampler");
    "vkCreateSemaphore" create_semaphore PFN_vkCreateSemaphore
        (d: vk::Device, i: *const vk::SemaphoreCreateInfo<'_>, c: Callbacks<'_>, o: *mut vk::Semaphore) => Some("semaphore");
    "vkCreateShaderModule" create_shader_module PFN_vkCreateShaderModule
        (d: vk::Device, i: *const vk::ShaderModuleCreateInfo<'_>, c: Callbacks<'_>, o: *mut vk::ShaderModule) => Some("shader module");
    "vkAllocateCommandBuffers" allocate_command_buffers PFN_vkAllocateCommandBuffers
        (d: vk::Device, i: *const vk::CommandBufferAllocateInfo<'_>, o: *mut vk::CommandBuffer) => None;
    "vkAllocateDescriptorSets" allocate_descriptor_sets PFN_vkAllocateDescriptorSets
        (d: vk::Device, i: *const vk::DescriptorSetAllocateInfo<'_>, o: *mut vk::DescriptorSet) => None;
    "vkBeginCommandBuffer" begin_command_buffer PFN_vkBeginCommandBuffer
        (b: vk::CommandBuffer, i: *const vk::CommandBufferBeginInfo<'_>) => None;
    "vkEndCommandBuffer" end_command_buffer PFN_vkEndCommandBuffer (b: vk::CommandBuffer) => None;
    "vkBindBufferMemory" bind_buffer_memory PFN_vkBindBufferMemory
        (d: vk::Device, b: vk::Buffer, m: vk::DeviceMemory, o: vk::DeviceSize) => None;
    "vkBindImageMemory" bind_image_memory PFN_vkBindImageMemory
        (d: vk::Device, b: vk::Image, m: vk::DeviceMemory, o: vk::DeviceSize) => None;
    "vkDeviceWaitIdle" device_wait_idle PFN_vkDeviceWaitIdle (d: vk::Device) => None;
    "vkFlushMappedMemoryRanges" flush_ranges PFN_vkFlushMappedMemoryRanges
        (d: vk::Device, n: u32, r: *const vk::MappedMemoryRange<'_>) => None;
    "vkInvalidateMappedMemoryRanges" invalidate_ranges PFN_vkInvalidateMappedMemoryRanges
        (d: vk::Device, n: u32, r: *const vk::MappedMemoryRange<'_>) => None;
    "vkGetFenceStatus" get_fence_status PFN_vkGetFenceStatus (d: vk::Device, f: vk::Fence) => None;
    "vkGetMemoryFdProperties" get_fd_properties PFN_vkGetMemoryFdPropertiesKHR
        (d: vk::Device, t: vk::ExternalMemoryHandleTypeFlags, f: i32, o: *mut vk::MemoryFdPropertiesKHR<'_>) => None;
    "vkGetMemoryHostPointerPropertiesEXT" get_pointer_properties PFN_vkGetMemoryHostPointerPropertiesEXT
        (d: vk::Device, t: vk::ExternalMemoryHandleTypeFlags, p: *const c_void, o: *mut vk::MemoryHostPointerPropertiesEXT<'_>) => None;
    "vkGetPipelineCacheData" get_cache_data PFN_vkGetPipelineCacheData
        (d: vk::Device, p: vk::PipelineCache, n: *mut usize, o: *mut c_void) => None;
    "vkGetQueryPoolResults" get_query_results PFN_vkGetQueryPoolResults
        (d: vk::Device, p: vk::QueryPool, a: u32, n: u32, s: usize, o: *mut c_void, t: vk::DeviceSize, f: vk::QueryResultFlags) => None;
    "vkGetSemaphoreCounterValue" get_counter PFN_vkGetSemaphoreCounterValue
        (d: vk::Device, s: vk::Semaphore, o: *mut u64) => None;
    "vkMapMemory" map_memory PFN_vkMapMemory
        (d: vk::Device, m: vk::DeviceMemory, a: vk::DeviceSize, n: vk::DeviceSize, f: vk::MemoryMapFlags, o: *mut *mut c_void) => None;
    "vkQueueSubmit" queue_submit PFN_vkQueueSubmit
        (q: vk::Queue, n: u32, i: *const vk::SubmitInfo<'_>, f: vk::Fence) => None;
    "vkResetCommandPool" reset_command_pool PFN_vkResetCommandPool
        (d: vk::Device, p: vk::CommandPool, f: vk::CommandPoolResetFlags) => None;
    "vkResetDescriptorPool" reset_descriptor_pool PFN_vkResetDescriptorPool
        (d: vk::Device, p: vk::DescriptorPool, f: vk::DescriptorPoolResetFlags) => None;
    "vkResetFences" reset_fences PFN_vkResetFences (d: vk::Device, n: u32, f: *const vk::Fence) => None;
    "vkWaitForFences" wait_for_fences PFN_vkWaitForFences
        (d: vk::Device, n: u32, f: *const vk::Fence, a: vk::Bool32, t: u64) => None;
    "vkWaitSemaphores" wait_semaphores PFN_vkWaitSemaphores
        (d: vk::Device, i: *const vk::SemaphoreWaitInfo<'_>, t: u64) => None;
}

/// Functions that end an object.
macro_rules! destroying {
    ($($name:literal $function:ident $pfn:ident $handle:ty => $kind:literal;)+) => {
        $(/// # Safety
        /// As Vulkan's function of this name.
        unsafe extern "system" fn $function(d: vk::Device, handle: $handle, c: Callbacks<'_>) {
            if !handle.is_null() {
                count($kind, -1);
            }
            // SAFETY: the real function of this signature.
            let real: vk::$pfn = unsafe { std::mem::transmute(real($name)) };
            // SAFETY: as the caller promises.
            unsafe { real(d, handle, c) };
        })+

        fn destroying(name: &str) -> Option<(&'static str, usize)> {
            match name {
                $($name => Some(($name, $function as vk::$pfn as usize)),)+
                _ => None,
            }
        }
    };
}

destroying! {
    "vkFreeMemory" free_memory PFN_vkFreeMemory vk::DeviceMemory => "memory";
    "vkDestroyBuffer" destroy_buffer PFN_vkDestroyBuffer vk::Buffer => "buffer";
    "vkDestroyBufferView" destroy_buffer_view PFN_vkDestroyBufferView vk::BufferView => "buffer view";
    "vkDestroyImage" destroy_image PFN_vkDestroyImage vk::Image => "image";
    "vkDestroyImageView" destroy_image_view PFN_vkDestroyImageView vk::ImageView => "image view";
    "vkDestroyCommandPool" destroy_command_pool PFN_vkDestroyCommandPool vk::CommandPool => "command pool";
    "vkDestroyDescriptorPool" destroy_descriptor_pool PFN_vkDestroyDescriptorPool vk::DescriptorPool => "descriptor pool";
    "vkDestroyDescriptorSetLayout" destroy_set_layout PFN_vkDestroyDescriptorSetLayout vk::DescriptorSetLayout => "set layout";
    "vkDestroyFence" destroy_fence PFN_vkDestroyFence vk::Fence => "fence";
    "vkDestroyPipeline" destroy_pipeline PFN_vkDestroyPipeline vk::Pipeline => "pipeline";
    "vkDestroyPipelineCache" destroy_pipeline_cache PFN_vkDestroyPipelineCache vk::PipelineCache => "pipeline cache";
    "vkDestroyPipelineLayout" destroy_pipeline_layout PFN_vkDestroyPipelineLayout vk::PipelineLayout => "pipeline layout";
    "vkDestroyQueryPool" destroy_query_pool PFN_vkDestroyQueryPool vk::QueryPool => "query pool";
    "vkDestroySampler" destroy_sampler PFN_vkDestroySampler vk::Sampler => "sampler";
    "vkDestroySemaphore" destroy_semaphore PFN_vkDestroySemaphore vk::Semaphore => "semaphore";
    "vkDestroyShaderModule" destroy_shader_module PFN_vkDestroyShaderModule vk::ShaderModule => "shader module";
}
