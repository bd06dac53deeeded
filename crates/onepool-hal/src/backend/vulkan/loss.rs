//! What is known of a device's loss, and of drivers that tell it before the work is over.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use ash::vk;

/// Milliseconds; the longest usual limit of a kernel for one job is 10 s.
const AFTER_SUBMIT: u64 = 12_000;
/// Milliseconds. A wait tells of a reset that was made: what is left is what the kernel begins again.
const AFTER_WAIT: u64 = 2_000;

/// Calls that wait, or look at what was submitted.
pub(super) const WAITS: [&str; 6] = [
    "vkWaitSemaphores",
    "vkGetSemaphoreCounterValue",
    "vkWaitForFences",
    "vkGetFenceStatus",
    "vkDeviceWaitIdle",
    "vkGetQueryPoolResults",
];

/// A loss, as it was told first.
pub(super) struct Loss {
    pub(super) detail: String,
    pub(super) at: Instant,
    /// In milliseconds.
    grace: AtomicU64,
}

impl Loss {
    /// `call` told of it. Where an application submits to the device as well (`is_shared`), a wait may tell of what a
    /// submission of its own made.
    pub(super) fn new(detail: String, call: &str, is_shared: bool) -> Loss {
        Loss { detail, at: Instant::now(), grace: AtomicU64::new(grace_millis(call, is_shared)) }
    }

    /// `call` told of it too: a wait may before the submission that made it returns.
    pub(super) fn told_again(&self, call: &str, is_shared: bool) {
        self.grace.fetch_max(grace_millis(call, is_shared), Ordering::Relaxed);
    }

    /// How long one job may go on, as far as is known now.
    pub(super) fn grace(&self) -> Duration {
        Duration::from_millis(self.grace.load(Ordering::Relaxed))
    }
}

fn grace_millis(call: &str, is_shared: bool) -> u64 {
    if WAITS.contains(&call) && !is_shared { AFTER_WAIT } else { AFTER_SUBMIT }
}

/// Whether a driver may tell a loss before the work is over: Mesa's of hardware, which find it themselves. NVIDIA's kernel
/// ends the work first, and so does that of Windows, on which Dozen runs; llvmpipe loses nothing.
pub(super) fn is_told_early(driver: vk::DriverId) -> bool {
    const HONEYKRISP: vk::DriverId = vk::DriverId::from_raw(26);
    const EARLY: [vk::DriverId; 9] = [
        vk::DriverId::MESA_RADV,
        vk::DriverId::INTEL_OPEN_SOURCE_MESA,
        vk::DriverId::MESA_TURNIP,
        vk::DriverId::MESA_V3DV,
        vk::DriverId::MESA_PANVK,
        vk::DriverId::MESA_VENUS,
        vk::DriverId::MESA_NVK,
        vk::DriverId::IMAGINATION_OPEN_SOURCE_MESA,
        HONEYKRISP,
    ];
    EARLY.contains(&driver)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_loss_lasts_as_long_as_the_worst_that_was_told() {
        let grace = |first: &str, again: &str, is_shared: bool| {
            let loss = Loss::new(String::new(), first, is_shared);
            loss.told_again(again, is_shared);
            loss.grace().as_millis() as u64
        };
        let (submit, wait) = ("vkQueueSubmit", "vkWaitSemaphores");
        assert_eq!(grace(wait, wait, false), AFTER_WAIT);
        assert_eq!(grace(wait, submit, false), AFTER_SUBMIT);
        assert_eq!(grace(submit, wait, false), AFTER_SUBMIT);
        assert_eq!(grace(wait, wait, true), AFTER_SUBMIT);
        // Some drivers bind memory by submissions of a kind.
        assert_eq!(grace("vkAllocateMemory", wait, false), AFTER_SUBMIT);
    }

    #[test]
    fn drivers_of_hardware_that_find_a_loss_themselves_tell_it_early() {
        assert!(is_told_early(vk::DriverId::MESA_RADV) && is_told_early(vk::DriverId::MESA_NVK));
        for driver in [
            vk::DriverId::NVIDIA_PROPRIETARY,
            vk::DriverId::AMD_PROPRIETARY,
            vk::DriverId::INTEL_PROPRIETARY_WINDOWS,
            vk::DriverId::MESA_LLVMPIPE,
            vk::DriverId::MESA_DOZEN,
            vk::DriverId::default(),
        ] {
            assert!(!is_told_early(driver), "{driver:?}");
        }
    }
}
