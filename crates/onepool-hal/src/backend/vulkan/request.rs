//! What an application's own device should have.

use std::ffi::{CStr, CString};

use ash::vk;

use super::chain::{BASE, Served, take_apart};
use super::check_physical;
use super::enabled::Enabled;
use super::features::Features;
use super::instance::Instance;
use super::probe::probe;
use crate::backend::DeviceError;

/// What onepool would like of a device that an application makes: extensions and features, of those that the physical
/// device has.
///
/// None of it is needed. A kernel whose feature is missing is not used: another one is, or the operator runs on the CPU.
/// Without `VK_EXT_external_memory_host` memory of the process is copied instead of imported, and verdicts say so.
///
/// ```no_run
/// use onepool::backend::vulkan::{DeviceRequest, ash, ash::vk};
///
/// # fn make(entry: ash::Entry, instance: ash::Instance, physical: vk::PhysicalDevice) -> Result<(), Box<dyn std::error::Error>> {
/// let mut request = unsafe { DeviceRequest::new(&entry, &instance, physical, vk::API_VERSION_1_3)? };
/// let mut extensions = vec![ash::khr::swapchain::NAME]; // what the application itself needs
/// let mut swapchain = vk::PhysicalDeviceMultiviewFeatures::default().multiview(true);
/// let queues = [vk::DeviceQueueCreateInfo::default().queue_family_index(0).queue_priorities(&[1.0])];
/// let mut info = vk::DeviceCreateInfo::default().queue_create_infos(&queues).push_next(&mut swapchain);
/// let enabled = unsafe { request.add_to(&mut info, &mut extensions) };
/// let names: Vec<_> = extensions.iter().map(|name| name.as_ptr()).collect();
/// let info = info.enabled_extension_names(&names);
/// let device = unsafe { instance.create_device(physical, &info, None)? };
/// # let _ = (device, enabled); Ok(()) }
/// ```
#[derive(Debug)]
pub struct DeviceRequest {
    extensions: Vec<&'static CStr>,
    wanted: Features,
    base: vk::PhysicalDeviceFeatures,
    // Structures that someone else chains.
    served: Served,
    // What those have on.
    theirs: Features,
}

impl DeviceRequest {
    /// What onepool would like of `physical`. `api_version` is the version that the application named when it made the
    /// instance.
    ///
    /// # Safety
    /// `instance` lives and was loaded through `entry`, and `physical` is one of its devices.
    ///
    /// # Errors
    /// [`DeviceError::Unsupported`] for a null handle, a version below 1.1, and a device on which nothing can run.
    pub unsafe fn new(
        entry: &ash::Entry,
        instance: &ash::Instance,
        physical: vk::PhysicalDevice,
        api_version: u32,
    ) -> Result<DeviceRequest, DeviceError> {
        // SAFETY: as the caller promises; the functions are used in this call alone.
        let instance =
            unsafe { Instance::of_application(entry.clone(), instance.clone(), api_version, false)? };
        // SAFETY: as the caller promises.
        let probe = unsafe { probe(&instance, check_physical(physical)?, None)? };
        if let Some(reason) = probe.info.unusable {
            return Err(DeviceError::Unsupported { what: format!("compute here: {reason}") });
        }
        let mut wanted = probe.features.without_executables();
        // Only kernels of the caller's are guarded, one by one.
        wanted.robustness2.robust_buffer_access2 = vk::FALSE;
        Ok(DeviceRequest {
            extensions: probe.extensions.to_request().collect(),
            wanted,
            base: vk::PhysicalDeviceFeatures::default(),
            served: Served::new(),
            theirs: Features::default(),
        })
    }

    /// The extensions that the device should be made with, in addition to those that the application needs.
    pub fn extensions(&self) -> &[&'static CStr] {
        &self.extensions
    }

    /// Turns on what is wanted in structures that someone else will chain: those of `info`, which are taken apart
    /// again. For a library that makes the device and lets its caller change the structures first, as `wgpu` does in the
    /// callback of `open_with_callback`. Features of Vulkan 1.0 (`pEnabledFeatures`) stay as they are.
    ///
    /// # Safety
    /// Each structure chained to `info` is as its type says and may be written.
    pub unsafe fn turn_on_in(&mut self, info: &vk::DeviceCreateInfo<'_>) {
        // SAFETY: as the caller promises.
        unsafe {
            self.served.extend(self.wanted.turn_on_in(info.p_next.cast_mut().cast()));
            self.theirs.read_chain(info.p_next.cast());
            if let Some(base) = info.p_enabled_features.as_ref() {
                self.theirs.read_base(base);
                self.served.insert(BASE);
            }
            take_apart(info.p_next.cast_mut().cast());
        }
    }

    /// Adds what is wanted to what the application is about to make its device with. Where a structure of `info`'s chain
    /// has a feature, it is turned on there. The names of extensions go to `extensions`; the caller puts them into `info`.
    ///
    /// # Safety
    /// As [`DeviceRequest::turn_on_in`]; `info.p_enabled_features` is null or points to features.
    pub unsafe fn add_to<'a>(
        &'a mut self,
        info: &mut vk::DeviceCreateInfo<'a>,
        extensions: &mut Vec<&'static CStr>,
    ) -> Enabled {
        let DeviceRequest { extensions: own, wanted, base, served, theirs } = self;
        for name in own.iter().filter(|name| !extensions.contains(*name)).copied().collect::<Vec<_>>() {
            extensions.push(name);
        }
        // SAFETY: as the caller promises.
        unsafe { served.extend(wanted.turn_on_in(info.p_next.cast_mut().cast())) };
        if !served.contains(BASE) {
            // SAFETY: as the caller promises.
            *base = unsafe { info.p_enabled_features.as_ref() }.copied().unwrap_or_default();
            wanted.turn_on_base(base);
            *info = info.enabled_features(base);
        }
        wanted.push_onto(info, served);
        // SAFETY: as the caller promises, and of the structures that were added.
        let mut enabled = unsafe { Enabled::of(info) };
        let mut all = *theirs;
        enabled.features.turn_on_all(&mut all);
        enabled.features = all;
        enabled.extensions = extensions.iter().map(|name| CString::from(*name)).collect();
        enabled
    }
}
