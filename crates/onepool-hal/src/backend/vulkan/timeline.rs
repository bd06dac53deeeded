//! Points in a queue's time: by a timeline semaphore, or by counted fences where there is none.

use std::borrow::Cow;
use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use ash::vk::{self, Handle as _};

use super::device::{Device, TimelineFunctions};
use crate::backend::pace::Points;
use crate::backend::{DeviceError, SemaphorePoint, Semaphores, WaitPolicy};
use onepool_core::sync::lock;

/// No semaphores but the timeline's own.
pub(super) const NO_OTHERS: Semaphores<'static> = Semaphores { waits: &[], signals: &[] };

/// The longest sleep in one turn at the validation layer.
const TURN_NANOS: u64 = 1_000_000;

/// The points of one queue.
pub(super) struct Timeline {
    semaphore: Option<(vk::Semaphore, TimelineFunctions)>,
    // Without a semaphore; and in addition to it under validation, because layers before 1.4 do not take a host's
    // wait for a timeline semaphore as the end of the work and report hazards that are none.
    fences: Option<Mutex<Fences>>,
    // Submitted to under the lock of the VkQueue.
    points: Points,
}

#[derive(Default)]
struct Fences {
    // In order of their points.
    pending: VecDeque<(u64, Arc<vk::Fence>)>,
    // Signaled; one that a waiter still holds is not used again yet.
    spare: Vec<Arc<vk::Fence>>,
}

impl Timeline {
    pub(super) fn new(device: &Device) -> Result<Self, DeviceError> {
        let semaphore = match device.timeline {
            Some(functions) => {
                let mut kind =
                    vk::SemaphoreTypeCreateInfo::default().semaphore_type(vk::SemaphoreType::TIMELINE);
                let info = vk::SemaphoreCreateInfo::default().push_next(&mut kind);
                // SAFETY: the feature is on, VUID-VkSemaphoreTypeCreateInfo-timelineSemaphore-03252.
                let semaphore = unsafe { device.raw().create_semaphore(&info, None) }
                    .map_err(|code| device.error("vkCreateSemaphore", code, 0))?;
                Some((semaphore, functions))
            }
            None => None,
        };
        let has_fences = semaphore.is_none() || device.instance.layer().is_on;
        Ok(Timeline { semaphore, fences: has_fences.then(Mutex::default), points: Points::default() })
    }

    /// Submits command buffers to queue `lane`, between semaphores, and gives the point that is reached when they are
    /// done.
    ///
    /// # Safety
    /// The command buffers are executable, of the device, and may be pending now. The semaphores are as
    /// [`QueueBackend::submit_between`](crate::backend::QueueBackend::submit_between) asks.
    pub(super) unsafe fn submit(
        &self,
        device: &Device,
        lane: usize,
        commands: &[vk::CommandBuffer],
        others: Semaphores<'_>,
    ) -> Result<u64, DeviceError> {
        let raw_of = |point: &SemaphorePoint| vk::Semaphore::from_raw(point.handle);
        // The value of a binary semaphore is ignored.
        let value_of = |point: &SemaphorePoint| point.value.unwrap_or(0);
        let waits: Vec<_> = others.waits.iter().map(raw_of).collect();
        let wait_values: Vec<_> = others.waits.iter().map(value_of).collect();
        let stages = vec![vk::PipelineStageFlags::ALL_COMMANDS; waits.len()];
        device.with_queue(lane, |queue| {
            let point = self.points.next();
            let mut fences = self.fences.as_ref().map(lock);
            let fence = fences.as_mut().map(|fences| fences.take(device)).transpose()?;
            let raw_fence = fence.as_deref().copied().unwrap_or_default();
            let own = self.semaphore.map(|(raw, _)| raw);
            let (own, own_value) = ([own.unwrap_or_default()], [point]);
            let own_count = usize::from(self.semaphore.is_some());
            let (mut semaphores, mut values) =
                (Cow::from(&own[..own_count]), Cow::from(&own_value[..own_count]));
            if !others.signals.is_empty() {
                semaphores.to_mut().extend(others.signals.iter().map(raw_of));
                values.to_mut().extend(others.signals.iter().map(value_of));
            }
            let mut timelines = vk::TimelineSemaphoreSubmitInfo::default()
                .signal_semaphore_values(&values)
                .wait_semaphore_values(&wait_values);
            let mut info = vk::SubmitInfo::default()
                .command_buffers(commands)
                .wait_semaphores(&waits)
                .wait_dst_stage_mask(&stages)
                .signal_semaphores(&semaphores);
            if self.semaphore.is_some() {
                info = info.push_next(&mut timelines);
            }
            // SAFETY: the queue is locked; the value is above every earlier one
            // (VUID-VkSubmitInfo-pSignalSemaphores-03242), others are as the caller promises; the fence is unsignaled and not in use
            // (VUID-vkQueueSubmit-fence-00063, -00064); the buffers are as the caller promises.
            let result = unsafe { device.raw().queue_submit(queue, &[info], raw_fence) };
            if let (Some(fences), Some(fence)) = (&mut fences, fence) {
                match result {
                    Ok(()) => fences.pending.push_back((point, fence)),
                    Err(_) => fences.spare.push(fence),
                }
            }
            result.map_err(|code| device.error("vkQueueSubmit", code, 0))?;
            self.points.submit(point);
            Ok(point)
        })
    }

    /// The latest point submitted.
    pub(super) fn submitted(&self) -> u64 {
        self.points.submitted()
    }

    /// Whether `point` is known to be reached, without asking the driver.
    pub(super) fn is_known(&self, point: u64) -> bool {
        self.points.is_known(point)
    }

    /// The latest point reached.
    pub(super) fn poll(&self, device: &Device) -> Result<u64, DeviceError> {
        let now = match (&self.semaphore, &self.fences) {
            (Some((semaphore, functions)), fences) => {
                let mut value = 0;
                // SAFETY: the semaphore is a timeline of this device, VUID-vkGetSemaphoreCounterValue-semaphore-03255.
                let result = unsafe { (functions.counter)(device.raw().handle(), *semaphore, &mut value) };
                if result != vk::Result::SUCCESS {
                    return Err(device.error("vkGetSemaphoreCounterValue", result, 0));
                }
                // A reset signals what it ended, and drivers tell of it to those who wait, not to those who read.
                if !self.is_known(value) {
                    if !self.wait_for_semaphore(device, value, 0)? {
                        return Ok(self.points.reach(0));
                    }
                    if let Some(fences) = fences {
                        wait_for_fence(device, fences, value, u64::MAX)?;
                    }
                }
                value
            }
            (None, Some(fences)) => lock(fences).poll(device)?,
            (None, None) => 0,
        };
        Ok(self.points.reach(now))
    }

    /// Waits until `point` is reached.
    pub(super) fn wait(
        &self,
        device: &Device,
        point: u64,
        policy: WaitPolicy,
        timeout: Option<Duration>,
    ) -> Result<(), DeviceError> {
        let how = (&device.waiters, policy, timeout);
        self.points.wait(
            point,
            how,
            || device.alive(),
            || self.poll(device),
            |left| {
                let nanos = left.map_or(u64::MAX, |left| u64::try_from(left.as_nanos()).unwrap_or(u64::MAX));
                let reached = self.block(device, point, nanos)?;
                if reached {
                    self.points.reach(point);
                }
                Ok(reached)
            },
        )
    }

    /// Sleeps in the driver for at most `nanos`; whether the point was reached.
    fn block(&self, device: &Device, point: u64, nanos: u64) -> Result<bool, DeviceError> {
        if !self.wait_for_semaphore(device, point, nanos)? {
            return Ok(false);
        }
        match &self.fences {
            Some(fences) => wait_for_fence(device, fences, point, nanos),
            None => Ok(true),
        }
    }

    /// Sleeps until the semaphore has the value, at most `nanos`; whether it has, or there is none.
    fn wait_for_semaphore(&self, device: &Device, value: u64, nanos: u64) -> Result<bool, DeviceError> {
        let Some((semaphore, functions)) = &self.semaphore else { return Ok(true) };
        let (semaphores, values) = ([*semaphore], [value]);
        let info = vk::SemaphoreWaitInfo::default().semaphores(&semaphores).values(&values);
        // SAFETY: a timeline of this device, VUID-VkSemaphoreWaitInfo-pSemaphores-03256.
        let wait = |nanos| unsafe { (functions.wait)(device.raw().handle(), &info, nanos) };
        match in_turns(device, nanos, wait) {
            vk::Result::SUCCESS => Ok(true),
            vk::Result::TIMEOUT => Ok(false),
            code => Err(device.error("vkWaitSemaphores", code, 0)),
        }
    }

    /// Destroys the semaphore or the fences.
    ///
    /// # Safety
    /// Everything submitted has finished, and no one waits.
    pub(super) unsafe fn destroy(&self, device: &Device) {
        if let Some((semaphore, _)) = self.semaphore {
            // SAFETY: as the caller promises, VUID-vkDestroySemaphore-semaphore-05149.
            unsafe { device.raw().destroy_semaphore(semaphore, None) };
        }
        if let Some(fences) = &self.fences {
            let mut fences = lock(fences);
            let Fences { pending, spare } = &mut *fences;
            for fence in pending.drain(..).map(|(_, fence)| fence).chain(spare.drain(..)) {
                // SAFETY: as the caller promises, VUID-vkDestroyFence-fence-01120.
                unsafe { device.raw().destroy_fence(*fence, None) };
            }
        }
    }
}

/// Sleeps in the driver for at most `nanos`, and with the validation layer not for long in one turn, which whoever
/// opens or closes a device waits for.
fn in_turns(device: &Device, mut nanos: u64, wait: impl Fn(u64) -> vk::Result) -> vk::Result {
    let most = if device.instance.layer().is_on { TURN_NANOS } else { u64::MAX };
    loop {
        let now = nanos.min(most);
        let code = wait(now);
        if code != vk::Result::TIMEOUT || now == nanos {
            return code;
        }
        // The longest time there is does not end.
        if nanos != u64::MAX {
            nanos -= now;
        }
    }
}

/// Sleeps until the first fence at or after `point` is signaled, at most `nanos`; whether it was.
fn wait_for_fence(
    device: &Device,
    fences: &Mutex<Fences>,
    point: u64,
    nanos: u64,
) -> Result<bool, DeviceError> {
    let fence = lock(fences).pending.iter().find(|(at, _)| *at >= point).map(|(_, fence)| fence.clone());
    // Someone else saw it signaled.
    let Some(fence) = fence else { return Ok(true) };
    // SAFETY: a fence that was submitted; held here, so that it is not reset meanwhile.
    let wait = |nanos| unsafe { device.raw().wait_for_fences(&[*fence], true, nanos) };
    match in_turns(device, nanos, |nanos| wait(nanos).err().unwrap_or(vk::Result::SUCCESS)) {
        vk::Result::SUCCESS => {}
        vk::Result::TIMEOUT => return Ok(false),
        code => return Err(device.error("vkWaitForFences", code, 0)),
    }
    drop(fence);
    lock(fences).poll(device)?;
    Ok(true)
}

impl Fences {
    /// An unsignaled fence that no one uses.
    fn take(&mut self, device: &Device) -> Result<Arc<vk::Fence>, DeviceError> {
        if let Some(at) = self.spare.iter_mut().position(|fence| Arc::get_mut(fence).is_some()) {
            let fence = self.spare.swap_remove(at);
            // SAFETY: signaled or never submitted, and no one waits for it, VUID-vkResetFences-pFences-01123.
            return match unsafe { device.raw().reset_fences(&[*fence]) } {
                Ok(()) => Ok(fence),
                Err(code) => {
                    self.spare.push(fence);
                    Err(device.error("vkResetFences", code, 0))
                }
            };
        }
        // SAFETY: no precondition.
        unsafe { device.raw().create_fence(&vk::FenceCreateInfo::default(), None) }
            .map(Arc::new)
            .map_err(|code| device.error("vkCreateFence", code, 0))
    }

    /// The latest point of a run of signaled fences, oldest first; 0 where none was signaled since.
    fn poll(&mut self, device: &Device) -> Result<u64, DeviceError> {
        let mut signaled = 0;
        for (_, fence) in &self.pending {
            // SAFETY: the fence was submitted and lives.
            let is_signaled = unsafe { device.raw().get_fence_status(**fence) }
                .map_err(|code| device.error("vkGetFenceStatus", code, 0))?;
            if !is_signaled {
                break;
            }
            signaled += 1;
        }
        let Some((point, last)) = self.pending.iter().take(signaled).next_back() else { return Ok(0) };
        // As with the semaphore: a status tells of no reset.
        // SAFETY: as above.
        match unsafe { device.raw().wait_for_fences(&[**last], true, 0) } {
            Ok(()) => {}
            Err(vk::Result::TIMEOUT) => return Ok(0),
            Err(code) => return Err(device.error("vkWaitForFences", code, 0)),
        }
        let reached = *point;
        self.spare.extend(self.pending.drain(..signaled).map(|(_, fence)| fence));
        Ok(reached)
    }
}
