//! A table of the device's functions with ours among them, which the application gives to onepool: what is recorded is
//! written down, and one call may be made to fail.

use std::ffi::{CStr, c_void};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use onepool::backend::ContextDesc;
use onepool::backend::vulkan::ash::vk::{self, Handle as _};
use onepool::backend::vulkan::{ApplicationDevice, ash};
use onepool::device::Context;

use crate::app::App;

/// A command, as far as ownership and layouts go. Families and layouts are first those before and then those after.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Recorded {
    Buffer { handle: u64, families: [u32; 2], offset: u64, bytes: u64 },
    Image { handle: u64, families: [u32; 2], layouts: [vk::ImageLayout; 2] },
    ImageToBuffer(vk::ImageLayout),
    BufferToImage(vk::ImageLayout),
    Dispatch,
}

static RECORDED: Mutex<Vec<Recorded>> = Mutex::new(Vec::new());
/// Whether the next `vkBindBufferMemory` fails.
pub(crate) static BIND_FAILS: AtomicBool = AtomicBool::new(false);

static BARRIER: AtomicUsize = AtomicUsize::new(0);
static TO_BUFFER: AtomicUsize = AtomicUsize::new(0);
static TO_IMAGE: AtomicUsize = AtomicUsize::new(0);
static DISPATCH: AtomicUsize = AtomicUsize::new(0);
static BIND: AtomicUsize = AtomicUsize::new(0);

/// What was recorded since the last call.
pub(crate) fn recorded() -> Vec<Recorded> {
    std::mem::take(&mut *RECORDED.lock().unwrap())
}

fn note(recorded: Recorded) {
    RECORDED.lock().unwrap().push(recorded);
}

/// A context on the application's device, by a table that writes down. One such application at a time ([`App::new`]).
pub(crate) fn context(app: &App) -> Context {
    let raw = app.device.handle();
    let load = |name: &CStr| {
        // SAFETY: the device lives, and the name ends with a zero.
        let found = unsafe { app.instance.get_device_proc_addr(raw, name.as_ptr()) };
        let found = found.map_or(0, |found| found as usize);
        let (real, own) = match name.to_bytes() {
            b"vkCmdPipelineBarrier" => (&BARRIER, barrier as vk::PFN_vkCmdPipelineBarrier as usize),
            b"vkCmdCopyImageToBuffer" => (&TO_BUFFER, to_buffer as vk::PFN_vkCmdCopyImageToBuffer as usize),
            b"vkCmdCopyBufferToImage" => (&TO_IMAGE, to_image as vk::PFN_vkCmdCopyBufferToImage as usize),
            b"vkCmdDispatch" => (&DISPATCH, dispatch as vk::PFN_vkCmdDispatch as usize),
            b"vkBindBufferMemory" => (&BIND, bind as vk::PFN_vkBindBufferMemory as usize),
            _ => return found as *const c_void,
        };
        real.store(found, Ordering::SeqCst);
        own as *const c_void
    };
    // SAFETY: the device's functions, or ones of the same signatures that call them.
    let device = unsafe { ash::Device::load_with(load, raw) };
    let (entry, instance) = (app.entry.clone(), app.instance.clone());
    let queue = (app.queue, app.family);
    let offer = ApplicationDevice::new(entry, instance, app.physical, device, queue, app.enabled.clone());
    // SAFETY: as in `App::context`.
    let context =
        unsafe { offer.api_version(app.version).validation(true).open(&ContextDesc::default()).unwrap() };
    recorded();
    context
}

/// # Safety
/// As Vulkan's function of this name.
unsafe extern "system" fn barrier(
    commands: vk::CommandBuffer,
    before: vk::PipelineStageFlags,
    after: vk::PipelineStageFlags,
    flags: vk::DependencyFlags,
    memories: u32,
    memory: *const vk::MemoryBarrier<'_>,
    buffers: u32,
    buffer: *const vk::BufferMemoryBarrier<'_>,
    images: u32,
    image: *const vk::ImageMemoryBarrier<'_>,
) {
    for at in 0..buffers as usize {
        // SAFETY: as many as the caller says.
        let each = unsafe { &*buffer.add(at) };
        note(Recorded::Buffer {
            handle: each.buffer.as_raw(),
            families: [each.src_queue_family_index, each.dst_queue_family_index],
            offset: each.offset,
            bytes: each.size,
        });
    }
    for at in 0..images as usize {
        // SAFETY: as many as the caller says.
        let each = unsafe { &*image.add(at) };
        note(Recorded::Image {
            handle: each.image.as_raw(),
            families: [each.src_queue_family_index, each.dst_queue_family_index],
            layouts: [each.old_layout, each.new_layout],
        });
    }
    // SAFETY: the real function of this signature, with what the caller gave.
    unsafe {
        let real: vk::PFN_vkCmdPipelineBarrier = std::mem::transmute(BARRIER.load(Ordering::SeqCst));
        real(commands, before, after, flags, memories, memory, buffers, buffer, images, image);
    }
}

/// # Safety
/// As Vulkan's function of this name.
unsafe extern "system" fn to_buffer(
    commands: vk::CommandBuffer,
    image: vk::Image,
    layout: vk::ImageLayout,
    buffer: vk::Buffer,
    regions: u32,
    region: *const vk::BufferImageCopy,
) {
    note(Recorded::ImageToBuffer(layout));
    // SAFETY: as in `barrier`.
    unsafe {
        let real: vk::PFN_vkCmdCopyImageToBuffer = std::mem::transmute(TO_BUFFER.load(Ordering::SeqCst));
        real(commands, image, layout, buffer, regions, region);
    }
}

/// # Safety
/// As Vulkan's function of this name.
unsafe extern "system" fn to_image(
    commands: vk::CommandBuffer,
    buffer: vk::Buffer,
    image: vk::Image,
    layout: vk::ImageLayout,
    regions: u32,
    region: *const vk::BufferImageCopy,
) {
    note(Recorded::BufferToImage(layout));
    // SAFETY: as in `barrier`.
    unsafe {
        let real: vk::PFN_vkCmdCopyBufferToImage = std::mem::transmute(TO_IMAGE.load(Ordering::SeqCst));
        real(commands, buffer, image, layout, regions, region);
    }
}

/// # Safety
/// As Vulkan's function of this name.
unsafe extern "system" fn dispatch(commands: vk::CommandBuffer, x: u32, y: u32, z: u32) {
    note(Recorded::Dispatch);
    // SAFETY: as in `barrier`.
    unsafe {
        let real: vk::PFN_vkCmdDispatch = std::mem::transmute(DISPATCH.load(Ordering::SeqCst));
        real(commands, x, y, z);
    }
}

/// # Safety
/// As Vulkan's function of this name.
unsafe extern "system" fn bind(
    device: vk::Device,
    buffer: vk::Buffer,
    memory: vk::DeviceMemory,
    offset: vk::DeviceSize,
) -> vk::Result {
    if BIND_FAILS.swap(false, Ordering::SeqCst) {
        return vk::Result::ERROR_OUT_OF_DEVICE_MEMORY;
    }
    // SAFETY: as in `barrier`.
    unsafe {
        let real: vk::PFN_vkBindBufferMemory = std::mem::transmute(BIND.load(Ordering::SeqCst));
        real(device, buffer, memory, offset)
    }
}
