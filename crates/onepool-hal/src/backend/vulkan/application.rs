//! Devices that an application owns.

use std::any::Any;
use std::fmt;
use std::sync::Arc;

use ash::vk;

use super::Without;
use super::context::Context as Opened;
use super::device::Device;
use super::enabled::Enabled;
use super::instance::Instance;
use super::probe::probe;
use super::share::Share;
use super::{check_physical, null};
use crate::backend::{ContextDesc, DeviceError};
use crate::device::Context;

/// An instance, a device and a queue of it that belong to the application. onepool uses them and never destroys them.
///
/// What onepool submits is ordered after all that was submitted to the queue before, and before all that is submitted
/// after: work of the application on the same queue needs no semaphore and no barrier. Work on other queues does
/// ([`Context::semaphore`]).
///
/// # Teardown
/// Contexts, sessions, bindings and buffers made of it go before the device does. [`ApplicationDevice::owner`] keeps what
/// owns the device until then.
pub struct ApplicationDevice {
    entry: ash::Entry,
    instance: ash::Instance,
    physical: vk::PhysicalDevice,
    device: ash::Device,
    queue: vk::Queue,
    family: u32,
    enabled: Enabled,
    api_version: u32,
    validation: bool,
    share: Share,
}

impl ApplicationDevice {
    /// A device with its queue and the family of the queue. `enabled` is what it was made with
    /// ([`DeviceRequest::add_to`](super::DeviceRequest::add_to), [`Enabled::of`]); what was not enabled is not used.
    ///
    /// Programs that do not use `ash` make its tables of functions from their handles: `ash::Entry::from_static_fn` (or
    /// `load`), `ash::Instance::load`, `ash::Device::load`.
    pub fn new(
        entry: ash::Entry,
        instance: ash::Instance,
        physical: vk::PhysicalDevice,
        device: ash::Device,
        queue: (vk::Queue, u32),
        enabled: Enabled,
    ) -> ApplicationDevice {
        let (queue, family) = queue;
        ApplicationDevice {
            entry,
            instance,
            physical,
            device,
            queue,
            family,
            enabled,
            api_version: vk::API_VERSION_1_1,
            validation: false,
            share: Share::default(),
        }
    }

    /// The version that the application named when it made the instance; 1.1 where nothing is said. Nothing of a later
    /// version is used.
    pub fn api_version(mut self, version: u32) -> Self {
        self.api_version = version;
        self
    }

    /// Held around each `vkQueueSubmit`: a queue is used by one thread at a time. The application holds the same lock
    /// around its own submits, waits and presents.
    ///
    /// Without it the queue is onepool's alone, from the opening to the end of the context.
    pub fn lock(mut self, lock: impl Fn(&mut dyn FnMut()) + Send + Sync + 'static) -> Self {
        self.share.lock = Some(Arc::new(lock));
        self
    }

    /// Kept until onepool has let go of the device.
    pub fn owner(mut self, owner: Arc<dyn Any + Send + Sync>) -> Self {
        self.share.owner = Some(owner);
        self
    }

    /// Says that the instance has the validation layer on. Releases of the layer before 1.4 do not see that the host
    /// waited for a timeline semaphore and report hazards that are none; fences are signalled in addition then.
    pub fn validation(mut self, validation: bool) -> Self {
        self.validation = validation;
        self
    }

    /// Opens a context on the device. Of `desc` the costs, the folder of caches and how to wait count; the device's
    /// priority and its robustness are the application's.
    ///
    /// # Safety
    /// - The handles are valid, belong to each other, and were made through `entry`; the device was made with exactly
    ///   what [`ApplicationDevice::new`] was told, for an instance of [`ApplicationDevice::api_version`].
    /// - The queue is of that family and of no protected memory. No one uses it while
    ///   [`ApplicationDevice::lock`] is held, or without a lock as long as the context or anything made of it lives.
    /// - Instance, device and queue outlive the context and all that is made of it.
    ///
    /// # Errors
    /// [`DeviceError::Unsupported`]: a null handle, a version below 1.1, a queue without compute,
    /// [`Robustness::All`](crate::backend::Robustness::All) on a device without `robustBufferAccess`.
    pub unsafe fn open(self, desc: &ContextDesc) -> Result<Context, DeviceError> {
        // SAFETY: as the caller promises.
        let opened = unsafe { self.open_backend(desc)? };
        Ok(Context::opened(Arc::new(opened), desc))
    }

    /// # Safety
    /// As [`ApplicationDevice::open`].
    pub(super) unsafe fn open_backend(self, desc: &ContextDesc) -> Result<Opened, DeviceError> {
        let physical = check_physical(self.physical)?;
        if self.device.handle() == vk::Device::null() {
            return Err(null("device"));
        }
        if self.queue == vk::Queue::null() {
            return Err(null("queue"));
        }
        let (entry, instance) = (self.entry.clone(), self.instance.clone());
        // SAFETY: as the caller promises.
        let probe = unsafe {
            let instance = Instance::of_application(entry, instance, self.api_version, self.validation)?;
            let probe = probe(&instance, physical, Some((&self.enabled, self.family)))?;
            (Arc::new(instance), probe)
        };
        let (instance, probe) = probe;
        if let Some(reason) = probe.info.unusable {
            return Err(DeviceError::Unsupported { what: format!("compute here: {reason}") });
        }
        // SAFETY: as the caller promises.
        let device = unsafe {
            let made = (self.device, self.queue, self.share);
            Device::of_application(instance, probe, made, desc, Without::default())?
        };
        Opened::new(device, desc)
    }
}

impl fmt::Debug for ApplicationDevice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ApplicationDevice")
            .field("device", &self.device.handle())
            .field("queue", &self.queue)
            .field("family", &self.family)
            .field("enabled", &self.enabled)
            .finish_non_exhaustive()
    }
}
