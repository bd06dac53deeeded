//! Semaphores of an application.

use ash::vk::{self, Handle as _};

use super::device::Device;
use super::null;
use crate::backend::{DeviceError, SemaphorePoint};

/// Whether the device takes such a semaphore.
///
/// # Errors
/// [`DeviceError::Unsupported`].
pub(super) fn check(device: &Device, point: &SemaphorePoint) -> Result<(), DeviceError> {
    if point.handle == 0 {
        return Err(null("semaphore"));
    }
    if point.value.is_some() && device.timeline.is_none() {
        let what = "timeline semaphores: it was made without the feature timelineSemaphore".to_owned();
        return Err(DeviceError::Unsupported { what });
    }
    Ok(())
}

/// Whether the value to signal is above the semaphore's own, VUID-VkSubmitInfo-pSignalSemaphores-03242.
///
/// # Safety
/// The semaphore is of the device, with values where the point has one.
///
/// # Errors
/// [`DeviceError::Unsupported`], and the driver's.
pub(super) unsafe fn check_signal(device: &Device, point: &SemaphorePoint) -> Result<(), DeviceError> {
    let (Some(value), Some(functions)) = (point.value, &device.timeline) else { return Ok(()) };
    let mut now = 0;
    let raw = vk::Semaphore::from_raw(point.handle);
    // SAFETY: as the caller promises, VUID-vkGetSemaphoreCounterValue-semaphore-03255.
    let result = unsafe { (functions.counter)(device.raw().handle(), raw, &mut now) };
    if result != vk::Result::SUCCESS {
        return Err(device.error("vkGetSemaphoreCounterValue", result, 0));
    }
    match value > now {
        true => Ok(()),
        false => Err(DeviceError::Unsupported {
            what: format!("signalling value {value} of a semaphore that is at {now} already: values rise"),
        }),
    }
}
