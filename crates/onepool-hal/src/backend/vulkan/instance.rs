//! The loader and the instance.

use std::ffi::CStr;
use std::fs::{self, OpenOptions};
use std::io::ErrorKind;
use std::sync::{Arc, OnceLock};

use ash::vk;

use super::debug::{Messages, Messenger};
use super::layer::{self, Calls, Layer};
use super::{API, error, null};
use crate::backend::DeviceError;
use crate::backend::install::{Missing, remedy};

const VALIDATION_LAYER: &CStr = c"VK_LAYER_KHRONOS_validation";

/// The first instance of the process, which stays: with the last one the loader unloads the drivers, while threads that
/// used them have destructors left in them or in what they loaded (glvnd's `libEGL` under NVIDIA's driver was seen to
/// crash so at the end of a thread).
static FIRST: OnceLock<Arc<Instance>> = OnceLock::new();

/// A `VkInstance` with the loader it came from.
pub(super) struct Instance {
    pub(super) entry: ash::Entry,
    raw: ash::Instance,
    debug: Option<Messenger>,
    /// The version of the specification that the validation layer was written to, where it is on.
    layer_version: Option<u32>,
    /// The version that it was made for.
    version: u32,
    /// It is an application's, with the validation layer or without.
    foreign: Option<Layer>,
}

impl Instance {
    /// Opens the loader and creates an instance, with the validation layer where `validation`.
    ///
    /// # Errors
    /// [`DeviceError::Unavailable`] without a loader or driver, [`DeviceError::Unsupported`] without the layer.
    pub(super) fn new(validation: bool) -> Result<Arc<Self>, DeviceError> {
        let instance = Arc::new(Instance::create(validation)?);
        FIRST.get_or_init(|| Arc::clone(&instance));
        Ok(instance)
    }

    /// An application's instance, which was made for `version`, with the validation layer where `validation`.
    ///
    /// # Safety
    /// It lives, and was made through `entry`.
    ///
    /// # Errors
    /// [`DeviceError::Unsupported`] for a null handle and for a version below 1.1.
    pub(super) unsafe fn of_application(
        entry: ash::Entry,
        raw: ash::Instance,
        version: u32,
        validation: bool,
    ) -> Result<Self, DeviceError> {
        if raw.handle() == vk::Instance::null() {
            return Err(null("instance"));
        }
        if version < vk::API_VERSION_1_1 {
            let what =
                "an instance that was made for Vulkan 1.0: 1.1 is needed (VkApplicationInfo::apiVersion)";
            return Err(DeviceError::Unsupported { what: what.to_owned() });
        }
        let foreign = Some(Layer { is_on: validation });
        Ok(Instance { entry, raw, debug: None, layer_version: None, version: version.min(API), foreign })
    }

    /// An instance under the validation layer whose functions are [`super::shim`]'s.
    #[cfg(any(test, feature = "testing"))]
    pub(super) fn shimmed() -> Result<Arc<Self>, DeviceError> {
        let mut instance = Instance::create(!super::wine::is_said())?;
        instance.raw = super::shim::table(&instance.entry, instance.raw.handle());
        Ok(Arc::new(instance))
    }

    fn create(validation: bool) -> Result<Self, DeviceError> {
        // SAFETY: the system's Vulkan loader is trusted code; loading it has no other precondition.
        let entry = unsafe { ash::Entry::load() }.map_err(|cause| no_loader(&cause))?;
        // SAFETY: no precondition beyond a loaded loader.
        let version = unsafe { entry.try_enumerate_instance_version() }
            .map_err(|code| error("vkEnumerateInstanceVersion", code, 0))?
            .unwrap_or(vk::API_VERSION_1_0);
        if version < vk::API_VERSION_1_1 {
            return Err(unavailable(
                "the Vulkan loader is of version 1.0 and 1.1 is needed; update it".into(),
            ));
        }
        let mut layers = Vec::new();
        let mut extensions = Vec::new();
        let mut flags = vk::InstanceCreateFlags::empty();
        if has_extension(&entry, None, ash::khr::portability_enumeration::NAME)? {
            extensions.push(ash::khr::portability_enumeration::NAME.as_ptr());
            flags |= vk::InstanceCreateFlags::ENUMERATE_PORTABILITY_KHR;
        }
        let mut layer_version = None;
        if validation {
            layer_version = Some(require_validation(&entry)?);
            layers.push(VALIDATION_LAYER.as_ptr());
            extensions.push(ash::ext::debug_utils::NAME.as_ptr());
            extensions.push(ash::ext::validation_features::NAME.as_ptr());
        }
        let application = vk::ApplicationInfo::default()
            .application_name(c"onepool")
            .engine_name(c"onepool")
            .api_version(API);
        let enabled = [vk::ValidationFeatureEnableEXT::SYNCHRONIZATION_VALIDATION];
        let mut features = vk::ValidationFeaturesEXT::default().enabled_validation_features(&enabled);
        let on = [vk::TRUE];
        let settings =
            [layer_switch(c"validate_sync", &on), layer_switch(c"syncval_submit_time_validation", &on)];
        let mut settings = vk::LayerSettingsCreateInfoEXT::default().settings(&settings);
        // Layers before 1.3.268 have no such settings; for those the environment variable
        // VK_LAYER_ENABLES turns on the checks across submissions.
        let has_settings =
            validation && has_extension(&entry, Some(VALIDATION_LAYER), ash::ext::layer_settings::NAME)?;
        if has_settings {
            extensions.push(ash::ext::layer_settings::NAME.as_ptr());
        }
        let mut info = vk::InstanceCreateInfo::default()
            .flags(flags)
            .application_info(&application)
            .enabled_layer_names(&layers)
            .enabled_extension_names(&extensions);
        if validation {
            info = info.push_next(&mut features);
        }
        if has_settings {
            info = info.push_next(&mut settings);
        }
        let _alone = layer::alone();
        // SAFETY: everything `info` points to lives until the call returns; layers and extensions were
        // found above. VUID-vkCreateInstance-ppEnabledExtensionNames-01388.
        let raw = unsafe { entry.create_instance(&info, None) }.map_err(|code| match code {
            vk::Result::ERROR_INCOMPATIBLE_DRIVER => no_driver(),
            code => error("vkCreateInstance", code, 0),
        })?;
        let debug = validation.then(|| Messenger::new(&entry, &raw)).transpose().map_err(|code| {
            // SAFETY: nothing was made of the instance; destroyed once.
            unsafe { raw.destroy_instance(None) };
            error("vkCreateDebugUtilsMessengerEXT", code, 0)
        })?;
        Ok(Instance { entry, raw, debug, layer_version, version: API, foreign: None })
    }

    /// The instance's functions, with a turn at the validation layer.
    pub(super) fn raw(&self) -> Calls<'_, ash::Instance> {
        Calls::new(&self.raw, self.layer())
    }

    /// The instance's functions for whoever is [`layer::alone`].
    pub(super) fn functions(&self) -> &ash::Instance {
        &self.raw
    }

    /// Whether the validation layer is on.
    pub(super) fn layer(&self) -> Layer {
        self.foreign.unwrap_or(Layer { is_on: self.debug.is_some() })
    }

    /// The version that it was made for; nothing later may be used.
    pub(super) fn version(&self) -> u32 {
        self.version
    }

    /// The version of the specification that the validation layer was written to, where it is on.
    pub(super) fn layer_version(&self) -> Option<u32> {
        self.layer_version
    }

    /// Messages of the validation layer, where it is on.
    pub(super) fn messages(&self) -> Option<&Messages> {
        self.debug.as_ref().map(Messenger::messages)
    }

    /// The physical devices, at least one.
    ///
    /// # Errors
    /// [`DeviceError::Unavailable`] where there is none.
    pub(super) fn physical_devices(&self) -> Result<Vec<vk::PhysicalDevice>, DeviceError> {
        // SAFETY: the instance lives.
        match unsafe { self.raw().enumerate_physical_devices() } {
            Ok(devices) if devices.is_empty() => Err(no_driver()),
            Ok(devices) => Ok(devices),
            Err(vk::Result::ERROR_INITIALIZATION_FAILED) => Err(no_driver()),
            Err(code) => Err(error("vkEnumeratePhysicalDevices", code, 0)),
        }
    }
}

impl Drop for Instance {
    fn drop(&mut self) {
        if self.foreign.is_some() {
            return;
        }
        let _alone = layer::alone();
        // SAFETY: devices hold the instance by `Arc`, so none is left (VUID-vkDestroyInstance-instance-00629);
        // the messenger goes first and both go once.
        unsafe {
            if let Some(debug) = &self.debug {
                debug.destroy();
            }
            self.raw.destroy_instance(None);
        }
    }
}

/// A GPU's device file that exists but may not be opened, with the remedy.
pub(super) fn render_node_hint() -> Option<String> {
    let mut nodes: Vec<_> = fs::read_dir("/dev/dri")
        .ok()?
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter(|path| path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("renderD")))
        .collect();
    nodes.sort();
    let denied = nodes.into_iter().find(|path| {
        let opened = OpenOptions::new().read(true).write(true).open(path);
        opened.is_err_and(|error| error.kind() == ErrorKind::PermissionDenied)
    })?;
    Some(format!(
        "{} may not be opened by this user; add the user to the file's group (usually: usermod -aG render USER) and log in again",
        denied.display()
    ))
}

fn no_loader(cause: &ash::LoadingError) -> DeviceError {
    unavailable(format!("no Vulkan loader was found ({cause}); {}", remedy(Missing::VulkanLoader)))
}

fn no_driver() -> DeviceError {
    let hint = render_node_hint().unwrap_or_else(|| remedy(Missing::VulkanDriver).to_owned());
    unavailable(format!("no Vulkan driver offers a device; {hint}"))
}

fn unavailable(reason: String) -> DeviceError {
    DeviceError::Unavailable { api: super::NAME, reason }
}

/// The version of the specification that the validation layer was written to.
fn require_validation(entry: &ash::Entry) -> Result<u32, DeviceError> {
    // SAFETY: no precondition beyond a loaded loader.
    let layers = unsafe { entry.enumerate_instance_layer_properties() }
        .map_err(|code| error("vkEnumerateInstanceLayerProperties", code, 0))?;
    let Some(layer) = layers.iter().find(|layer| layer.layer_name_as_c_str() == Ok(VALIDATION_LAYER)) else {
        let remedy = remedy(Missing::ValidationLayer);
        let what = format!("validation: VK_LAYER_KHRONOS_validation is not installed; {remedy}");
        return Err(DeviceError::Unsupported { what });
    };
    for extension in [ash::ext::debug_utils::NAME, ash::ext::validation_features::NAME] {
        let found = has_extension(entry, Some(VALIDATION_LAYER), extension)?
            || has_extension(entry, None, extension)?;
        if !found {
            let name = extension.to_string_lossy();
            return Err(DeviceError::Unsupported {
                what: format!("validation: the validation layer has no {name}; update it"),
            });
        }
    }
    Ok(layer.spec_version)
}

fn has_extension(entry: &ash::Entry, layer: Option<&CStr>, name: &CStr) -> Result<bool, DeviceError> {
    // SAFETY: `layer` is a zero-terminated name of a layer that was enumerated, or none.
    let found = unsafe { entry.enumerate_instance_extension_properties(layer) }
        .map_err(|code| error("vkEnumerateInstanceExtensionProperties", code, 0))?;
    Ok(found.iter().any(|extension| extension.extension_name_as_c_str() == Ok(name)))
}

fn layer_switch<'a>(name: &'a CStr, value: &'a [vk::Bool32; 1]) -> vk::LayerSettingEXT<'a> {
    let mut setting = vk::LayerSettingEXT::default()
        .layer_name(VALIDATION_LAYER)
        .setting_name(name)
        .ty(vk::LayerSettingTypeEXT::BOOL32);
    setting.value_count = 1;
    setting.p_values = value.as_ptr().cast();
    setting
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_loader_is_an_error_that_says_what_to_install() {
        // SAFETY: the path names no library, so nothing is loaded.
        let missing = unsafe { ash::Entry::load_from("/nonexistent/libvulkan.so.1") };
        let text = no_loader(&missing.err().unwrap()).to_string();
        assert!(text.contains(remedy(Missing::VulkanLoader)), "{text}");
        // Windows does not say which library it was.
        assert!(cfg!(windows) || text.contains("/nonexistent"), "{text}");
    }

    #[test]
    fn extensions_of_an_unknown_layer_are_an_error_and_not_a_crash() {
        let instance = Instance::new(false).unwrap();
        let found = has_extension(&instance.entry, Some(c"VK_LAYER_none_such"), ash::ext::debug_utils::NAME);
        assert!(matches!(found, Err(DeviceError::Backend { .. })));
        assert!(instance.messages().is_none());
    }
}
