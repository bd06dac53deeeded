//! Messages of the validation layer, collected per instance.

use std::ffi::{CStr, c_void};
use std::sync::{Arc, Mutex};

use ash::vk;
use onepool_core::sync::lock;

/// Messages of one instance, oldest first.
pub(super) type Messages = Arc<Mutex<Vec<String>>>;

/// More are counted as one last line, so that a flood costs no memory.
const MAX_MESSAGES: usize = 1000;

/// A messenger that collects what the validation layer says.
pub(super) struct Messenger {
    functions: ash::ext::debug_utils::Instance,
    raw: vk::DebugUtilsMessengerEXT,
    messages: Messages,
}

impl Messenger {
    /// Collects from `instance`, which was created with `VK_EXT_debug_utils`.
    pub(super) fn new(entry: &ash::Entry, instance: &ash::Instance) -> Result<Self, vk::Result> {
        let messages = Messages::default();
        let functions = ash::ext::debug_utils::Instance::new(entry, instance);
        let info = vk::DebugUtilsMessengerCreateInfoEXT::default()
            .message_severity(
                vk::DebugUtilsMessageSeverityFlagsEXT::ERROR | vk::DebugUtilsMessageSeverityFlagsEXT::WARNING,
            )
            .message_type(vk::DebugUtilsMessageTypeFlagsEXT::VALIDATION)
            .pfn_user_callback(Some(collect))
            .user_data(Arc::as_ptr(&messages).cast_mut().cast());
        // SAFETY: the instance lives, and `messages` outlives the messenger: `destroy` ends the
        // messenger first. VUID-VkDebugUtilsMessengerCreateInfoEXT-pfnUserCallback-01914.
        let raw = unsafe { functions.create_debug_utils_messenger(&info, None)? };
        Ok(Messenger { functions, raw, messages })
    }

    /// What was collected and will be.
    pub(super) fn messages(&self) -> &Messages {
        &self.messages
    }

    /// Ends the messenger.
    ///
    /// # Safety
    /// Called once, while the instance lives.
    pub(super) unsafe fn destroy(&self) {
        // SAFETY: as the caller promises.
        unsafe { self.functions.destroy_debug_utils_messenger(self.raw, None) };
    }
}

/// Called by the layer, from any thread.
///
/// # Safety
/// `data` is null or what the layer passes to a messenger; `user` is null or the mutex the messenger was made with.
unsafe extern "system" fn collect(
    _severity: vk::DebugUtilsMessageSeverityFlagsEXT,
    _kind: vk::DebugUtilsMessageTypeFlagsEXT,
    data: *const vk::DebugUtilsMessengerCallbackDataEXT<'_>,
    user: *mut c_void,
) -> vk::Bool32 {
    if data.is_null() || user.is_null() {
        return vk::FALSE;
    }
    // SAFETY: `user` is the mutex that the messenger holds by `Arc` until it is destroyed.
    let messages = unsafe { &*user.cast::<Mutex<Vec<String>>>() };
    // SAFETY: the layer lends valid callback data for the time of the call.
    let text = unsafe { (*data).p_message };
    let text = if text.is_null() {
        String::new()
    } else {
        // SAFETY: a non-null message is a string that ends in a zero byte.
        unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
    };
    tracing::warn!(target: "onepool::vulkan", "{text}");
    let mut messages = lock(messages);
    if messages.len() < MAX_MESSAGES {
        messages.push(text);
    } else if messages.len() == MAX_MESSAGES {
        messages.push("further messages were dropped".to_owned());
    }
    // VUID-PFN_vkDebugUtilsMessengerCallbackEXT-None-04769: a layer's call is never aborted.
    vk::FALSE
}
