//! An application that owns its Vulkan: instance, device, queue, buffers and a semaphore. A model runs on them in place.
//!
//! `cargo run --example vulkan_application`

#![allow(unsafe_code, reason = "an application's own calls of Vulkan")]

use std::error::Error;

use onepool::backend::vulkan::ash::vk::{self, Handle as _};
use onepool::backend::vulkan::{ApplicationDevice, DeviceRequest, Enabled, ash};
use onepool::backend::{ContextDesc, ForeignBuffer};
use onepool::device::Context;
use onepool::memory::import::ReadWrite;
use onepool::session::RunOptions;
use onepool::{DType, GraphBuilder, Memory, Session, ops};

const VERSION: u32 = vk::API_VERSION_1_2;
const WORDS: usize = 1 << 16;
const BYTES: u64 = WORDS as u64 * 4;

#[allow(dead_code, reason = "a test runs the rest as a module")]
fn main() -> Result<(), Box<dyn Error>> {
    let words = run()?;
    println!("{} values, doubled where they lie; the last is {}", words.len(), words[WORDS - 1]);
    Ok(())
}

/// Runs a model on the application's device and gives its results.
pub(crate) fn run() -> Result<Vec<f32>, Box<dyn Error>> {
    let app = Application::new()?;
    // SAFETY: no one uses the objects any more when they are destroyed.
    unsafe {
        let (x, y) = (app.buffer()?, app.buffer()?);
        let result = double(&app, &x, &y);
        app.device.device_wait_idle()?;
        let words = std::slice::from_raw_parts(y.map, WORDS).to_vec();
        x.destroy(&app);
        y.destroy(&app);
        app.destroy();
        result.map(|()| words)
    }
}

/// The application's own objects.
struct Application {
    entry: ash::Entry,
    instance: ash::Instance,
    physical: vk::PhysicalDevice,
    device: ash::Device,
    enabled: Enabled,
    queue: vk::Queue,
    pool: vk::CommandPool,
    semaphore: vk::Semaphore,
}

/// A device with what the application needs and what onepool would like.
fn make_device(
    entry: &ash::Entry,
    instance: &ash::Instance,
    physical: vk::PhysicalDevice,
) -> Result<(ash::Device, Enabled), Box<dyn Error>> {
    let queues = [vk::DeviceQueueCreateInfo::default().queue_family_index(0).queue_priorities(&[1.0])];
    let mut needed = vk::PhysicalDeviceVulkan12Features::default().timeline_semaphore(true);
    let mut info = vk::DeviceCreateInfo::default().queue_create_infos(&queues).push_next(&mut needed);
    let mut extensions = Vec::new();
    // SAFETY: the handles live, and the structures may be written.
    unsafe {
        let mut request = DeviceRequest::new(entry, instance, physical, VERSION)?;
        let enabled = request.add_to(&mut info, &mut extensions);
        let names: Vec<_> = extensions.iter().map(|name| name.as_ptr()).collect();
        let device = instance.create_device(physical, &info.enabled_extension_names(&names), None)?;
        Ok((device, enabled))
    }
}

/// y = x + x, where the application fills x on the device just before.
fn double(app: &Application, x: &Mapped, y: &Mapped) -> Result<(), Box<dyn Error>> {
    let (entry, instance, device) = (app.entry.clone(), app.instance.clone(), app.device.clone());
    let made = app.enabled.clone();
    let offer = ApplicationDevice::new(entry, instance, app.physical, device, (app.queue, 0), made);
    // SAFETY: the handles outlive the context, and this thread alone uses the queue.
    let context = unsafe { offer.api_version(VERSION).open(&ContextDesc::default())? };
    // SAFETY: so do buffers and semaphore; values rise.
    let (from, to, filled, doubled) = unsafe {
        let semaphore = |value| context.semaphore(app.semaphore.as_raw(), Some(value));
        (x.import(&context)?, y.import(&context)?, semaphore(1)?, semaphore(2)?)
    };
    let mut graph = GraphBuilder::new("double");
    let x_in = graph.input("x", DType::F32, [WORDS.into()]);
    let y_out = graph.op(ops::add(), &[x_in, x_in]);
    graph.output("y", y_out);
    let session = Session::builder().graph(graph.build()?).context(context).build()?;
    let bound = session.bind().strict(true).input("x", Memory::buffer(&from));
    let mut binding = bound.output("y", Memory::buffer(&to)).build()?;

    app.fill_and_signal(x, 1.5, 1)?; // the application's own commands
    let run = binding.submit_with(&RunOptions::new().wait(&filled).signal(&doubled))?;
    app.wait_for(2)?; // or any queue of the application's does
    run.wait()?;
    Ok(())
}

/// A buffer in memory that the process has mapped.
struct Mapped {
    raw: vk::Buffer,
    memory: vk::DeviceMemory,
    map: *const f32,
}

const USAGE: vk::BufferUsageFlags = vk::BufferUsageFlags::from_raw(
    vk::BufferUsageFlags::STORAGE_BUFFER.as_raw() | vk::BufferUsageFlags::TRANSFER_DST.as_raw(),
);

impl Mapped {
    /// # Safety
    /// It is of the context's device and outlives the context.
    unsafe fn import(&self, context: &Context) -> Result<onepool::device::Buffer, onepool::device::Error> {
        let (handle, usage) = (self.raw.as_raw(), USAGE.as_raw());
        let described = ForeignBuffer { handle, bytes: BYTES, usage, owner: None };
        // SAFETY: as the caller promises.
        unsafe { context.import_buffer(&described, ReadWrite::ReadWrite, Box::new(|| {})) }
    }

    /// # Safety
    /// No one uses it any more.
    unsafe fn destroy(&self, app: &Application) {
        // SAFETY: as the caller promises.
        unsafe {
            app.device.destroy_buffer(self.raw, None);
            app.device.free_memory(self.memory, None);
        }
    }
}

impl Application {
    fn new() -> Result<Application, Box<dyn Error>> {
        // SAFETY: plain calls with what they ask for.
        unsafe {
            let entry = ash::Entry::load()?;
            let application = vk::ApplicationInfo::default().api_version(VERSION);
            let info = vk::InstanceCreateInfo::default().application_info(&application);
            let instance = entry.create_instance(&info, None)?;
            let physical = *instance.enumerate_physical_devices()?.first().ok_or("there is no device")?;
            let (device, enabled) = make_device(&entry, &instance, physical)?;
            let queue = device.get_device_queue(0, 0);
            let pool = device.create_command_pool(&Default::default(), None)?;
            let mut kind = vk::SemaphoreTypeCreateInfo::default().semaphore_type(vk::SemaphoreType::TIMELINE);
            let info = vk::SemaphoreCreateInfo::default().push_next(&mut kind);
            let semaphore = device.create_semaphore(&info, None)?;
            Ok(Application { entry, instance, physical, device, enabled, queue, pool, semaphore })
        }
    }

    fn buffer(&self) -> Result<Mapped, Box<dyn Error>> {
        let info = vk::BufferCreateInfo::default().size(BYTES).usage(USAGE);
        // SAFETY: as in `new`.
        unsafe {
            let raw = self.device.create_buffer(&info, None)?;
            let needs = self.device.get_buffer_memory_requirements(raw);
            let types = self.instance.get_physical_device_memory_properties(self.physical);
            let mapped = vk::MemoryPropertyFlags::HOST_VISIBLE | vk::MemoryPropertyFlags::HOST_COHERENT;
            let mut fitting = (0u32..).zip(types.memory_types_as_slice()).filter(|(index, kind)| {
                needs.memory_type_bits & 1 << index != 0 && kind.property_flags.contains(mapped)
            });
            let (index, _) = fitting.next().ok_or("no memory that the process can map")?;
            let info = vk::MemoryAllocateInfo::default().allocation_size(needs.size).memory_type_index(index);
            let memory = self.device.allocate_memory(&info, None)?;
            self.device.bind_buffer_memory(raw, memory, 0)?;
            let map = self.device.map_memory(memory, 0, vk::WHOLE_SIZE, Default::default())?;
            Ok(Mapped { raw, memory, map: map.cast() })
        }
    }

    /// Fills a buffer on the device and signals the semaphore then.
    fn fill_and_signal(&self, buffer: &Mapped, value: f32, signal: u64) -> Result<(), vk::Result> {
        let info = vk::CommandBufferAllocateInfo::default().command_pool(self.pool).command_buffer_count(1);
        let (semaphores, values) = ([self.semaphore], [signal]);
        let mut values = vk::TimelineSemaphoreSubmitInfo::default().signal_semaphore_values(&values);
        // SAFETY: as in `new`.
        unsafe {
            let commands = self.device.allocate_command_buffers(&info)?;
            let once = vk::CommandBufferBeginInfo::default();
            self.device.begin_command_buffer(commands[0], &once)?;
            self.device.cmd_fill_buffer(commands[0], buffer.raw, 0, BYTES, value.to_bits());
            self.device.end_command_buffer(commands[0])?;
            let info = vk::SubmitInfo::default().command_buffers(&commands).signal_semaphores(&semaphores);
            self.device.queue_submit(self.queue, &[info.push_next(&mut values)], vk::Fence::null())
        }
    }

    fn wait_for(&self, value: u64) -> Result<(), vk::Result> {
        let (semaphores, values) = ([self.semaphore], [value]);
        let info = vk::SemaphoreWaitInfo::default().semaphores(&semaphores).values(&values);
        // SAFETY: as in `new`.
        unsafe { self.device.wait_semaphores(&info, u64::MAX) }
    }

    /// # Safety
    /// No one uses the device any more.
    unsafe fn destroy(&self) {
        // SAFETY: as the caller promises.
        unsafe {
            self.device.destroy_semaphore(self.semaphore, None);
            self.device.destroy_command_pool(self.pool, None);
            self.device.destroy_device(None);
            self.instance.destroy_instance(None);
        }
    }
}
