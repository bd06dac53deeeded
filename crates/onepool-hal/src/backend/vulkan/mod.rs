//! The Vulkan backend: any driver of Vulkan 1.1 and up, through `ash`, with memory from `gpu-allocator`.
//!
//! * `instance`: the loader, the instance, why there is none.
//! * `probe`: physical devices, their limits and what may be imported; `features`: features.
//! * `device`: the logical device and its queues; `loss`: what is known of its loss.
//! * `application`: devices that an application owns; `request`: what they should have;
//!   `enabled`: what they have; `share`: the application's part in them; `chain`: features in chains.
//!   `foreign`: its buffers and memory.
//! * `context`: what callers hold; `shared`: what it has in common with its queues.
//! * `memory`: buffers; `import`, `dma_buf`: buffers over the application's pages; `importable`: what a driver takes;
//!   `types`: choosing memory types; `kernel_memory`: what the system counts.
//! * `image`: images in buffers; `image_rules`: what the driver asks of them.
//! * `kernel`: pipelines; `cache`: the pipeline cache on disk; `compiler`: what pipelines became.
//! * `command`: a recording as a command buffer; `queue`: submission; `timeline`: waiting; `mark`: what the device itself tells;
//!   `semaphore`: those of an application.
//! * `bare`: the submission that ours is measured against.
//! * `debug`: messages of the validation layer; `layer`: turns at it.
//!
//! Invariants: granted memory flags are recorded, never requested ones; a `VkQueue` is used under its lock;
//! memory is freed after the device is done with it and before the host's pages may go.

#![allow(unsafe_code, reason = "calls of a C interface; each block names what makes it valid")]

mod acquire;
mod application;
mod bare;
mod cache;
mod chain;
mod command;
mod compiler;
mod context;
mod debug;
mod device;
mod dma_buf;
mod enabled;
mod external;
mod external_image;
mod fd;
mod features;
mod foreign;
mod image;
mod image_rules;
mod import;
mod importable;
mod instance;
mod kernel;
mod kernel_memory;
mod layer;
mod loss;
mod mark;
mod memory;
mod modifier;
mod probe;
mod processors;
mod queue;
mod request;
mod same;
mod semaphore;
mod share;
mod shared;
mod subgroups;
mod timeline;
mod types;
mod wine;

#[cfg(any(test, feature = "testing"))]
pub mod shim;
#[cfg(test)]
mod tests;

use std::sync::{Arc, Mutex};

pub use ash;
use ash::vk;

pub use self::application::ApplicationDevice;
use self::bare::Bare;
use self::compiler::Compiler;
use self::context::Context;
use self::device::Device;
pub use self::enabled::Enabled;
use self::instance::Instance;
use self::probe::{Probe, probe_all};
pub use self::request::DeviceRequest;
pub use self::share::QueueLock;
use super::{BareSubmit, ContextBackend, ContextDesc, DeviceError, DeviceInfo, Driver, KernelCompiler};
use onepool_core::sync::lock;

const NAME: &str = "vulkan";

/// The newest version that is used; a device is used up to its own.
const API: u32 = vk::API_VERSION_1_3;

/// Lists and opens Vulkan devices.
#[derive(Default)]
pub struct VulkanDriver {
    // Kept so that listing and opening load the drivers once; contexts with validation have their own.
    instance: Mutex<Option<Arc<Instance>>>,
}

/// Parts of a device that are left unused although it has them, so that tests run what stands in for them.
#[doc(hidden)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Without {
    /// Timeline semaphores: fences stand in for them.
    pub timeline: bool,
    /// `synchronization2`: the barriers of Vulkan 1.0 stand in for it.
    pub synchronization2: bool,
}

/// A context, and the messages of its validation layer, where it has one.
#[doc(hidden)]
pub type Validated = (Arc<dyn ContextBackend>, Option<Arc<Mutex<Vec<String>>>>);

impl VulkanDriver {
    /// A driver that opens nothing before it is asked to.
    pub const fn new() -> Self {
        VulkanDriver { instance: Mutex::new(None) }
    }

    fn instance(&self) -> Result<Arc<Instance>, DeviceError> {
        let mut kept = lock(&self.instance);
        match &*kept {
            Some(instance) => Ok(instance.clone()),
            None => Ok(kept.insert(Instance::new(false)?).clone()),
        }
    }

    /// Opens a device with some of its parts left unused. The messages that it gives are added to until the context and
    /// its queues are closed.
    ///
    /// # Errors
    /// As [`Driver::open`].
    #[doc(hidden)]
    pub fn open_validated(
        &self,
        index: usize,
        desc: &ContextDesc,
        without: Without,
    ) -> Result<Validated, DeviceError> {
        let context = self.open_without(index, desc, without)?;
        let messages = context.shared.device.instance.messages().cloned();
        Ok((context, messages))
    }

    fn open_without(
        &self,
        index: usize,
        desc: &ContextDesc,
        without: Without,
    ) -> Result<Arc<Context>, DeviceError> {
        let (instance, mut probe) = self.probe(index, desc)?;
        if let Some(reason) = probe.info.unusable {
            return Err(DeviceError::Unsupported { what: format!("compute here: {reason}") });
        }
        probe.features = probe.features.without_executables();
        Ok(Arc::new(Context::new(Device::open(instance, probe, desc, without)?, desc)?))
    }

    fn probe(&self, index: usize, desc: &ContextDesc) -> Result<(Arc<Instance>, Probe), DeviceError> {
        let validation = desc.validation && !wine::is_said();
        let instance = if validation { Instance::new(true)? } else { self.instance()? };
        let probe = probe_all(&instance)?.into_iter().nth(index).ok_or_else(|| DeviceError::Unsupported {
            what: format!("index {index}: there is no such Vulkan device"),
        })?;
        Ok((instance, probe))
    }
}

impl Driver for VulkanDriver {
    fn api(&self) -> &'static str {
        NAME
    }

    fn devices(&self) -> Result<Vec<DeviceInfo>, DeviceError> {
        let instance = self.instance()?;
        Ok(probe_all(&instance)?.into_iter().map(|probe| probe.info).collect())
    }

    fn open(&self, index: usize, desc: &ContextDesc) -> Result<Arc<dyn ContextBackend>, DeviceError> {
        Ok(self.open_without(index, desc, Without::default())?)
    }

    fn bare_submit(&self, index: usize) -> Option<Result<BareSubmit, DeviceError>> {
        let context = self.open_without(index, &ContextDesc::default(), Without::default());
        Some(context.and_then(Bare::new).map(|mut bare| Box::new(move || bare.run()) as BareSubmit))
    }

    fn open_compiler(
        &self,
        index: usize,
        desc: &ContextDesc,
    ) -> Result<Box<dyn KernelCompiler>, DeviceError> {
        let (instance, probe) = self.probe(index, desc)?;
        Ok(Box::new(Compiler::open(instance, probe, desc)?))
    }
}

/// A physical device that is there.
fn check_physical(physical: vk::PhysicalDevice) -> Result<vk::PhysicalDevice, DeviceError> {
    match physical == vk::PhysicalDevice::null() {
        true => Err(null("physical device")),
        false => Ok(physical),
    }
}

/// A handle that is none.
fn null(what: &str) -> DeviceError {
    DeviceError::Unsupported { what: format!("a null {what}") }
}

/// A failed call as the error that a caller can tell apart; `bytes` is what an allocation asked for.
fn error(call: &'static str, code: vk::Result, bytes: u64) -> DeviceError {
    match code {
        vk::Result::ERROR_DEVICE_LOST => {
            DeviceError::Lost { detail: format!("{call}: VK_ERROR_DEVICE_LOST") }
        }
        vk::Result::ERROR_OUT_OF_HOST_MEMORY => DeviceError::OutOfHostMemory { bytes },
        vk::Result::ERROR_OUT_OF_DEVICE_MEMORY => DeviceError::OutOfDeviceMemory { bytes },
        code => DeviceError::Backend { api: "Vulkan", call, code: code.as_raw() },
    }
}
