//! An application that owns its Vulkan: instance, device and queue, made with `ash` under the validation layer with
//! synchronization checks. A message fails the test.

use std::ffi::{CStr, c_void};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use onepool::backend::vulkan::ash::vk::{self, Handle as _};
use onepool::backend::vulkan::{ApplicationDevice, DeviceRequest, Enabled, ash};
use onepool::backend::{ContextDesc, ForeignBuffer};
use onepool::device::{Buffer, Context, Semaphore};
use onepool::memory::import::ReadWrite;

/// The layer may not be used while another thread makes or destroys a device.
static ALONE: Mutex<()> = Mutex::new(());

/// While it lives, no other test has a device.
pub(crate) fn alone() -> MutexGuard<'static, ()> {
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

pub(crate) type Messages = Arc<Mutex<Vec<String>>>;

/// What a device is made with.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum With {
    /// All that onepool asks for.
    All,
    /// Nothing, for Vulkan 1.1.
    Nothing,
    /// Timeline semaphores alone.
    Timeline,
}

pub(crate) struct App {
    pub(crate) entry: ash::Entry,
    pub(crate) instance: ash::Instance,
    pub(crate) physical: vk::PhysicalDevice,
    pub(crate) device: ash::Device,
    pub(crate) queue: vk::Queue,
    pub(crate) family: u32,
    pub(crate) enabled: Enabled,
    pub(crate) version: u32,
    debug: ash::ext::debug_utils::Instance,
    messenger: vk::DebugUtilsMessengerEXT,
    pub(crate) messages: Messages,
    /// Messages with one of these are no failure.
    pub(crate) expected: Mutex<Vec<&'static str>>,
    pool: vk::CommandPool,
    _alone: MutexGuard<'static, ()>,
}

/// # Safety
/// As the layer calls it.
unsafe extern "system" fn collect(
    _: vk::DebugUtilsMessageSeverityFlagsEXT,
    _: vk::DebugUtilsMessageTypeFlagsEXT,
    data: *const vk::DebugUtilsMessengerCallbackDataEXT<'_>,
    user: *mut c_void,
) -> vk::Bool32 {
    // SAFETY: the layer lends valid data, and `user` is the mutex that the application keeps.
    let (messages, text) =
        unsafe { (&*user.cast::<Mutex<Vec<String>>>(), CStr::from_ptr((*data).p_message)) };
    messages.lock().unwrap().push(text.to_string_lossy().into_owned());
    vk::FALSE
}

impl App {
    pub(crate) fn new(with: With) -> App {
        let alone = alone();
        let version = if with == With::Nothing { vk::API_VERSION_1_1 } else { vk::API_VERSION_1_3 };
        // SAFETY: calls of Vulkan with what they ask for; all objects are destroyed by `drop`.
        unsafe {
            let entry = ash::Entry::load().unwrap();
            let application = vk::ApplicationInfo::default().api_version(version);
            let layers = [c"VK_LAYER_KHRONOS_validation".as_ptr()];
            let extensions =
                [ash::ext::debug_utils::NAME.as_ptr(), ash::ext::validation_features::NAME.as_ptr()];
            let on = [vk::ValidationFeatureEnableEXT::SYNCHRONIZATION_VALIDATION];
            let mut checks = vk::ValidationFeaturesEXT::default().enabled_validation_features(&on);
            let info = vk::InstanceCreateInfo::default()
                .application_info(&application)
                .enabled_layer_names(&layers)
                .enabled_extension_names(&extensions)
                .push_next(&mut checks);
            let instance = entry.create_instance(&info, None).unwrap();
            let messages = Messages::default();
            let debug = ash::ext::debug_utils::Instance::new(&entry, &instance);
            let severity =
                vk::DebugUtilsMessageSeverityFlagsEXT::ERROR | vk::DebugUtilsMessageSeverityFlagsEXT::WARNING;
            let info = vk::DebugUtilsMessengerCreateInfoEXT::default()
                .message_severity(severity)
                .message_type(vk::DebugUtilsMessageTypeFlagsEXT::VALIDATION)
                .pfn_user_callback(Some(collect))
                .user_data(Arc::as_ptr(&messages).cast_mut().cast());
            let messenger = debug.create_debug_utils_messenger(&info, None).unwrap();
            let physical = instance.enumerate_physical_devices().unwrap()[0];
            let family = 0;
            let mut request = DeviceRequest::new(&entry, &instance, physical, version).unwrap();
            let mut extensions = Vec::new();
            let queues =
                [vk::DeviceQueueCreateInfo::default().queue_family_index(family).queue_priorities(&[1.0])];
            let mut timeline =
                vk::PhysicalDeviceTimelineSemaphoreFeatures::default().timeline_semaphore(true);
            let mut info = vk::DeviceCreateInfo::default().queue_create_infos(&queues);
            if with == With::Timeline {
                info = info.push_next(&mut timeline);
            }
            let enabled = match with {
                With::All => request.add_to(&mut info, &mut extensions),
                With::Nothing | With::Timeline => Enabled::of(&info),
            };
            let names: Vec<_> = extensions.iter().map(|name: &&'static CStr| name.as_ptr()).collect();
            let info = info.enabled_extension_names(&names);
            let device = instance.create_device(physical, &info, None).unwrap();
            let queue = device.get_device_queue(family, 0);
            let info = vk::CommandPoolCreateInfo::default().queue_family_index(family);
            let pool = device.create_command_pool(&info, None).unwrap();
            let expected = Mutex::default();
            App {
                entry,
                instance,
                physical,
                device,
                queue,
                family,
                enabled,
                version,
                debug,
                messenger,
                messages,
                expected,
                pool,
                _alone: alone,
            }
        }
    }

    pub(crate) fn offer(&self) -> ApplicationDevice {
        let (entry, instance, device) = (self.entry.clone(), self.instance.clone(), self.device.clone());
        let queue = (self.queue, self.family);
        ApplicationDevice::new(entry, instance, self.physical, device, queue, self.enabled.clone())
            .api_version(self.version)
            .validation(true)
    }

    pub(crate) fn context(&self) -> Context {
        // SAFETY: the handles are the application's, which outlives the context in every test, and no one else
        // submits meanwhile.
        unsafe { self.offer().open(&ContextDesc::default()).unwrap() }
    }

    /// A host-visible buffer of words.
    pub(crate) fn buffer(&self, words: &[f32], usage: vk::BufferUsageFlags) -> AppBuffer<'_> {
        let bytes = size_of_val(words) as u64;
        // SAFETY: as in `new`.
        unsafe {
            let info = vk::BufferCreateInfo::default().size(bytes).usage(usage);
            let raw = self.device.create_buffer(&info, None).unwrap();
            let needs = self.device.get_buffer_memory_requirements(raw);
            let types = self.instance.get_physical_device_memory_properties(self.physical);
            let wanted = vk::MemoryPropertyFlags::HOST_VISIBLE | vk::MemoryPropertyFlags::HOST_COHERENT;
            let kind = (0u32..).zip(types.memory_types_as_slice()).find(|(i, kind)| {
                needs.memory_type_bits & 1 << i != 0 && kind.property_flags.contains(wanted)
            });
            let info = vk::MemoryAllocateInfo::default()
                .allocation_size(needs.size)
                .memory_type_index(kind.unwrap().0);
            let memory = self.device.allocate_memory(&info, None).unwrap();
            self.device.bind_buffer_memory(raw, memory, 0).unwrap();
            let map = self.device.map_memory(memory, 0, vk::WHOLE_SIZE, vk::MemoryMapFlags::empty()).unwrap();
            map.cast::<f32>().copy_from_nonoverlapping(words.as_ptr(), words.len());
            AppBuffer { app: self, raw, memory, map: map.cast(), words: words.len(), usage }
        }
    }

    pub(crate) fn semaphore(&self, timeline: bool) -> vk::Semaphore {
        let kind = if timeline { vk::SemaphoreType::TIMELINE } else { vk::SemaphoreType::BINARY };
        let mut kind = vk::SemaphoreTypeCreateInfo::default().semaphore_type(kind);
        let mut info = vk::SemaphoreCreateInfo::default();
        if timeline {
            info = info.push_next(&mut kind);
        }
        // SAFETY: as in `new`.
        unsafe { self.device.create_semaphore(&info, None).unwrap() }
    }

    pub(crate) fn signal(&self, semaphore: vk::Semaphore, value: u64) {
        let info = vk::SemaphoreSignalInfo::default().semaphore(semaphore).value(value);
        // SAFETY: as in `new`.
        unsafe { self.device.signal_semaphore(&info).unwrap() };
    }

    pub(crate) fn wait_for(&self, semaphore: vk::Semaphore, value: u64) -> bool {
        let (semaphores, values) = ([semaphore], [value]);
        let info = vk::SemaphoreWaitInfo::default().semaphores(&semaphores).values(&values);
        // SAFETY: as in `new`.
        unsafe { self.device.wait_semaphores(&info, 5_000_000_000).is_ok() }
    }

    /// Records commands and submits them, between binary semaphores.
    pub(crate) fn submit(
        &self,
        waits: &[vk::Semaphore],
        signals: &[vk::Semaphore],
        record: impl FnOnce(&ash::Device, vk::CommandBuffer),
    ) {
        let info = vk::CommandBufferAllocateInfo::default().command_pool(self.pool).command_buffer_count(1);
        let stages = vec![vk::PipelineStageFlags::ALL_COMMANDS; waits.len()];
        // SAFETY: as in `new`.
        unsafe {
            let commands = self.device.allocate_command_buffers(&info).unwrap();
            self.device.begin_command_buffer(commands[0], &Default::default()).unwrap();
            record(&self.device, commands[0]);
            self.device.end_command_buffer(commands[0]).unwrap();
            let info = vk::SubmitInfo::default()
                .command_buffers(&commands)
                .wait_semaphores(waits)
                .wait_dst_stage_mask(&stages)
                .signal_semaphores(signals);
            self.device.queue_submit(self.queue, &[info], vk::Fence::null()).unwrap();
        }
    }

    /// A command buffer that is being recorded, for any number of submissions.
    pub(crate) fn begin(&self, level: vk::CommandBufferLevel) -> vk::CommandBuffer {
        let info = vk::CommandBufferAllocateInfo::default().command_pool(self.pool).level(level);
        let whole = vk::CommandBufferInheritanceInfo::default();
        let begin = vk::CommandBufferBeginInfo::default().inheritance_info(&whole);
        // SAFETY: as in `new`.
        unsafe {
            let commands = self.device.allocate_command_buffers(&info.command_buffer_count(1)).unwrap()[0];
            self.device.begin_command_buffer(commands, &begin).unwrap();
            commands
        }
    }

    /// Submits what was recorded, and waits for it.
    pub(crate) fn run(&self, commands: vk::CommandBuffer) {
        let commands = [commands];
        let info = vk::SubmitInfo::default().command_buffers(&commands);
        // SAFETY: as in `new`.
        unsafe { self.device.queue_submit(self.queue, &[info], vk::Fence::null()).unwrap() };
        self.finish();
    }

    pub(crate) fn finish(&self) {
        // SAFETY: as in `new`.
        unsafe { self.device.queue_wait_idle(self.queue).unwrap() };
    }

    pub(crate) fn destroy(&self, semaphores: &[vk::Semaphore]) {
        for semaphore in semaphores {
            // SAFETY: as in `new`, and every test waits for its runs.
            unsafe { self.device.destroy_semaphore(*semaphore, None) };
        }
    }

    pub(crate) fn expect(&self, message: &'static str) {
        self.expected.lock().unwrap().push(message);
    }
}

impl Drop for App {
    fn drop(&mut self) {
        if std::thread::panicking() {
            // What a test left on the queue may never end.
            return;
        }
        // SAFETY: as in `new`.
        unsafe {
            self.device.destroy_command_pool(self.pool, None);
            self.device.destroy_device(None);
            self.debug.destroy_debug_utils_messenger(self.messenger, None);
            self.instance.destroy_instance(None);
        }
        let expected = self.expected.lock().unwrap();
        let mut messages = std::mem::take(&mut *self.messages.lock().unwrap());
        messages.retain(|message| !expected.iter().any(|part| message.contains(part)));
        assert!(messages.is_empty(), "{messages:#?}");
    }
}

pub(crate) struct AppBuffer<'a> {
    app: &'a App,
    pub(crate) raw: vk::Buffer,
    memory: vk::DeviceMemory,
    map: *mut f32,
    words: usize,
    pub(crate) usage: vk::BufferUsageFlags,
}

impl AppBuffer<'_> {
    pub(crate) fn words(&self) -> Vec<f32> {
        // SAFETY: mapped, of that size, and the device is done with it when a test looks.
        unsafe { std::slice::from_raw_parts(self.map, self.words).to_vec() }
    }

    pub(crate) fn set(&self, words: &[f32]) {
        assert_eq!(words.len(), self.words);
        // SAFETY: as in `words`.
        unsafe { self.map.copy_from_nonoverlapping(words.as_ptr(), words.len()) };
    }

    pub(crate) fn described(&self) -> ForeignBuffer {
        let (handle, bytes) = (self.raw.as_raw(), self.words as u64 * 4);
        ForeignBuffer { handle, bytes, usage: self.usage.as_raw(), owner: Some(self.app.family) }
    }

    pub(crate) fn import(&self, context: &Context) -> Buffer {
        // SAFETY: the buffer outlives the context in every test.
        unsafe { context.import_buffer(&self.described(), ReadWrite::ReadWrite, Box::new(|| {})).unwrap() }
    }
}

impl Drop for AppBuffer<'_> {
    fn drop(&mut self) {
        // SAFETY: as in `App::new`.
        unsafe {
            self.app.device.destroy_buffer(self.raw, None);
            self.app.device.free_memory(self.memory, None);
        }
    }
}

/// A semaphore for runs on `context`.
pub(crate) fn of(context: &Context, semaphore: vk::Semaphore, value: Option<u64>) -> Semaphore {
    // SAFETY: every test destroys its semaphores after its runs.
    unsafe { context.semaphore(semaphore.as_raw(), value).unwrap() }
}

pub(crate) const SECOND: Duration = Duration::from_secs(1);
