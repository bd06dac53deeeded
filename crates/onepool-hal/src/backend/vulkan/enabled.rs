//! What a device was made with.

use std::ffi::{CStr, CString};

use ash::vk;

use super::features::{Extensions, Features};

/// What a device was made with.
#[derive(Clone, Debug, Default)]
pub struct Enabled {
    pub(super) extensions: Vec<CString>,
    pub(super) features: Features,
}

impl Enabled {
    /// What a device that is made with `info` has: the extensions that it names, and the features of its chain and of
    /// `pEnabledFeatures`.
    ///
    /// # Safety
    /// `info` is as `vkCreateDevice` asks for.
    pub unsafe fn of(info: &vk::DeviceCreateInfo<'_>) -> Enabled {
        let mut features = Features::default();
        // SAFETY: as the caller promises.
        unsafe {
            features.read_chain(info.p_next.cast());
            if let Some(base) = info.p_enabled_features.as_ref() {
                features.read_base(base);
            }
        }
        let names = match info.pp_enabled_extension_names.is_null() {
            true => &[][..],
            // SAFETY: as the caller promises: as many names as it says.
            false => unsafe {
                let count = info.enabled_extension_count as usize;
                std::slice::from_raw_parts(info.pp_enabled_extension_names, count)
            },
        };
        // SAFETY: as the caller promises: strings that end in a zero byte.
        let extensions = names.iter().map(|name| CString::from(unsafe { CStr::from_ptr(*name) })).collect();
        Enabled { extensions, features }
    }

    /// The extensions.
    pub fn extensions(&self) -> impl Iterator<Item = &CStr> {
        self.extensions.iter().map(CString::as_c_str)
    }

    pub(super) fn has(&self, name: &CStr) -> bool {
        self.extensions.iter().any(|enabled| enabled.as_c_str() == name)
    }

    /// What a device with these extensions and features lacks of all that it could have, as a sentence.
    pub(super) fn lacks(&self, extensions: &Extensions, features: &Features) -> Option<String> {
        let wanted = features.without_executables();
        let names = extensions.to_request().filter(|name| !self.has(name));
        let mut lacking: Vec<String> = names.map(|name| name.to_string_lossy().into_owned()).collect();
        let mut beyond = wanted.beyond(&self.features);
        beyond.retain(|name| *name != "robust_buffer_access2");
        lacking.extend(beyond.into_iter().map(str::to_owned));
        (!lacking.is_empty()).then(|| {
            format!(
                "the application made this device without {}; backend::vulkan::DeviceRequest asks for all that is of use",
                lacking.join(", ")
            )
        })
    }
}
