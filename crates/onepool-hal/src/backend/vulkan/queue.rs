//! Queues: submission, prepared recordings, waiting, times.

use std::collections::VecDeque;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, RwLock};
use std::time::Duration;

use ash::vk;

use super::command::Recorded;
use super::mark::Marks;
use super::null;
use super::semaphore;
use super::shared::Shared;
use super::timeline::{NO_OTHERS, Timeline};
use crate::backend::slots::SlotTable;
use crate::backend::{DeviceError, ForeignCommands, QueueBackend, Semaphores, Timepoint};
use crate::recording::{PreparedId, Recording};
use onepool_core::sync::{lock, read, write};

/// Finished one-shot recordings whose times stay readable before their pools are used again.
const KEPT: usize = 4;

/// An in-order queue; several may share one `VkQueue`.
pub(super) struct Queue {
    timeline: Timeline,
    // Where a loss does not tell that the work is over.
    pub(super) marks: Option<Marks>,
    lane: usize,
    prepared: RwLock<SlotTable<PreparedId, Prepared>>,
    // Oldest first.
    once: Mutex<VecDeque<Once>>,
    // Outlives the queue's objects.
    shared: Arc<Shared>,
}

struct Prepared {
    recorded: Recorded,
    // The count of destroyed objects at which its handles were last found alive.
    checked: AtomicU64,
    last: AtomicU64,
}

struct Once {
    recorded: Recorded,
    point: u64,
}

impl Queue {
    pub(super) fn new(shared: Arc<Shared>) -> Result<Self, DeviceError> {
        Ok(Queue {
            timeline: Timeline::new(&shared.device)?,
            marks: shared.device.loses_early.then(Marks::default),
            lane: shared.device.assign_queue(),
            prepared: RwLock::default(),
            once: Mutex::default(),
            shared,
        })
    }

    /// Pools for a one-shot recording: those of a finished one, or new ones.
    fn pools(&self) -> Result<Recorded, DeviceError> {
        let device = &self.shared.device;
        let mut once = lock(&self.once);
        let is_spare = |entry: &Once, len: usize| entry.recorded.slots == 0 || len > KEPT;
        if let Some(front) = once.front()
            && is_spare(front, once.len())
            && (self.timeline.is_known(front.point) || self.timeline.poll(device)? >= front.point)
            && let Some(entry) = once.pop_front()
        {
            return Ok(entry.recorded);
        }
        drop(once);
        Recorded::new(device)
    }

    fn record(
        &self,
        mut recorded: Recorded,
        recording: &Recording,
        once: bool,
    ) -> Result<Recorded, DeviceError> {
        // SAFETY: the pools are fresh or their last submission is finished.
        let result = unsafe { recorded.record(&self.shared, recording, once) };
        match result {
            Ok(()) => Ok(recorded),
            Err(error) => {
                // SAFETY: as above, and nothing was submitted since.
                unsafe { recorded.destroy(&self.shared.device) };
                Err(error)
            }
        }
    }

    /// Whether the buffers and kernels of a prepared recording are still there; two loads where nothing
    /// was destroyed since it was last asked.
    fn check(&self, prepared: &Prepared) -> Result<(), DeviceError> {
        let destroyed = self.shared.destroyed();
        if prepared.checked.load(Ordering::Acquire) == destroyed {
            return Ok(());
        }
        let buffers = read(&self.shared.buffers);
        for buffer in &prepared.recorded.buffers {
            buffers.get(*buffer)?;
        }
        let kernels = read(&self.shared.kernels);
        for kernel in &prepared.recorded.kernels {
            kernels.get(*kernel)?;
        }
        prepared.checked.store(destroyed, Ordering::Release);
        Ok(())
    }

    /// Submits what was recorded, with a mark where it needs one.
    ///
    /// # Safety
    /// As [`Timeline::submit`], of the recorded command buffer.
    unsafe fn submit_recorded(
        &self,
        recorded: &Recorded,
        semaphores: Semaphores<'_>,
    ) -> Result<u64, DeviceError> {
        let device = &self.shared.device;
        let submit = |commands: &[vk::CommandBuffer]| {
            // SAFETY: as the caller promises; a mark is recorded, and is not pending while it is lent.
            unsafe { self.timeline.submit(device, self.lane, commands, semaphores) }
        };
        match self.marks.as_ref().filter(|_| recorded.is_marked) {
            None => submit(&[recorded.command]),
            Some(marks) => marks.follow(device, &self.timeline, |mark| submit(&[recorded.command, mark])),
        }
    }

    fn is_reached(&self, point: u64) -> Result<bool, DeviceError> {
        Ok(self.timeline.is_known(point) || self.timeline.poll(&self.shared.device)? >= point)
    }

    fn nanos(&self, ticks: &[u64]) -> Vec<u64> {
        let device = &self.shared.device;
        to_nanos(ticks, device.timestamp_bits, device.info.timestamp_ns)
    }
}

impl QueueBackend for Queue {
    fn submit(&self, recording: &Recording) -> Result<Timepoint, DeviceError> {
        let device = &self.shared.device;
        device.alive()?;
        let recorded = self.record(self.pools()?, recording, true)?;
        // SAFETY: just recorded, never submitted.
        match unsafe { self.submit_recorded(&recorded, NO_OTHERS) } {
            Ok(point) => {
                lock(&self.once).push_back(Once { recorded, point });
                Ok(Timepoint(point))
            }
            Err(error) => {
                // SAFETY: it was not submitted, or the device is lost.
                unsafe { recorded.destroy(device) };
                Err(error)
            }
        }
    }

    fn prepare(&self, recording: &Recording) -> Result<PreparedId, DeviceError> {
        let device = &self.shared.device;
        device.alive()?;
        // Before the handles are looked up: one destroyed meanwhile is then looked for again.
        let checked = AtomicU64::new(self.shared.destroyed());
        let recorded = self.record(Recorded::new(device)?, recording, false)?;
        Ok(write(&self.prepared).insert(Prepared { recorded, checked, last: AtomicU64::new(0) }))
    }

    fn submit_prepared(&self, prepared: PreparedId) -> Result<Timepoint, DeviceError> {
        // SAFETY: there are no semaphores.
        unsafe { self.submit_between(Some(prepared), NO_OTHERS) }
    }

    unsafe fn submit_between(
        &self,
        prepared: Option<PreparedId>,
        semaphores: Semaphores<'_>,
    ) -> Result<Timepoint, DeviceError> {
        let device = &self.shared.device;
        device.alive()?;
        for point in semaphores.waits.iter().chain(semaphores.signals) {
            semaphore::check(device, point)?;
        }
        for point in semaphores.signals {
            // SAFETY: as the caller promises.
            unsafe { semaphore::check_signal(device, point)? };
        }
        let Some(prepared) = prepared else {
            // SAFETY: no commands; the semaphores are as the caller promises.
            let point = unsafe { self.timeline.submit(device, self.lane, &[], semaphores)? };
            return Ok(Timepoint(point));
        };
        let table = read(&self.prepared);
        let prepared = table.get(prepared)?;
        self.check(prepared)?;
        if !prepared.recorded.overlaps && !self.is_reached(prepared.last.load(Ordering::Acquire))? {
            return Err(DeviceError::Unsupported {
                what: "submitting an unfinished recording again that does not begin with a barrier".into(),
            });
        }
        // SAFETY: recorded, its objects live, and pending only where it may be; the semaphores are as the caller promises.
        let point = unsafe { self.submit_recorded(&prepared.recorded, semaphores)? };
        prepared.last.fetch_max(point, Ordering::AcqRel);
        Ok(Timepoint(point))
    }

    // SAFETY: what the trait asks of the caller.
    unsafe fn record_into(
        &self,
        recording: &Recording,
        commands: &ForeignCommands,
    ) -> Result<PreparedId, DeviceError> {
        let device = &self.shared.device;
        device.alive()?;
        if commands.handle == 0 {
            return Err(null("command buffer"));
        }
        if !device.is_shared() {
            let what =
                "a command buffer of an application on a device that is not the application's".to_owned();
            return Err(DeviceError::Unsupported { what });
        }
        let checked = AtomicU64::new(self.shared.destroyed());
        let mut recorded = Recorded::new(device)?;
        // SAFETY: as the caller promises.
        if let Err(error) = unsafe { recorded.record_into(&self.shared, recording, commands) } {
            // SAFETY: the command buffer is not submitted after an error.
            unsafe { recorded.destroy(device) };
            return Err(error);
        }
        Ok(write(&self.prepared).insert(Prepared { recorded, checked, last: AtomicU64::new(0) }))
    }

    fn release_prepared(&self, prepared: PreparedId) {
        let device = &self.shared.device;
        let Ok(prepared) = write(&self.prepared).remove(prepared) else { return };
        let last = prepared.last.load(Ordering::Acquire);
        if let Err(error) = self.timeline.wait(device, last, self.shared.wait, None) {
            tracing::warn!(target: "onepool::vulkan", %error, "releasing a prepared recording");
        }
        // SAFETY: finished, or the device is lost.
        unsafe { prepared.recorded.destroy(device) };
    }

    fn wait(&self, point: Timepoint, timeout: Option<Duration>) -> Result<(), DeviceError> {
        self.timeline.wait(&self.shared.device, point.0, self.shared.wait, timeout)
    }

    fn quiesce(&self) {
        if let Some(marks) = &self.marks {
            marks.quiesce(&self.shared.device, &self.timeline);
        }
    }

    fn completed(&self) -> Result<Timepoint, DeviceError> {
        self.shared.device.alive()?;
        self.timeline.poll(&self.shared.device).map(Timepoint)
    }

    fn timestamps(&self, point: Timepoint) -> Result<Vec<u64>, DeviceError> {
        let device = &self.shared.device;
        device.alive()?;
        if point.0 == 0 || !self.is_reached(point.0)? {
            return Ok(Vec::new());
        }
        let ticks = {
            let prepared = read(&self.prepared);
            let mut of_prepared =
                prepared.iter().filter(|prepared| prepared.last.load(Ordering::Acquire) == point.0);
            match of_prepared.next() {
                // SAFETY: submitted at `point`.
                Some(prepared) => unsafe { prepared.recorded.ticks(device)? },
                None => match lock(&self.once).iter().find(|once| once.point == point.0) {
                    // SAFETY: submitted at `point`.
                    Some(once) => unsafe { once.recorded.ticks(device)? },
                    None => None,
                },
            }
        };
        Ok(self.nanos(&ticks.unwrap_or_default()))
    }
}

impl Drop for Queue {
    fn drop(&mut self) {
        let device = &self.shared.device;
        let last = self.timeline.submitted();
        if self.timeline.wait(device, last, self.shared.wait, None).is_err() {
            // No one may wait for all of an application's device: what may still run is left as it is.
            if device.is_shared() && device.alive().is_ok() {
                return;
            }
            self.quiesce();
            device.wait_idle();
        }
        // SAFETY: everything submitted has finished, or the device is lost.
        unsafe {
            for prepared in write(&self.prepared).drain() {
                prepared.recorded.destroy(device);
            }
            for once in lock(&self.once).drain(..) {
                once.recorded.destroy(device);
            }
            if let Some(marks) = &self.marks {
                marks.destroy(device);
            }
            self.timeline.destroy(device);
        }
    }
}

impl fmt::Debug for Queue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Queue")
            .field("lane", &self.lane)
            .field("submitted", &self.timeline.submitted())
            .field("prepared", &read(&self.prepared).len())
            .finish_non_exhaustive()
    }
}

/// Ticks of a counter of `bits` bits as nanoseconds. A tick below the first one comes after the counter
/// went round.
fn to_nanos(ticks: &[u64], bits: u32, period: f64) -> Vec<u64> {
    let mask = if bits >= 64 { u64::MAX } else { (1 << bits) - 1 };
    let first = ticks.first().map_or(0, |tick| tick & mask);
    // A fixed-point period: a float has too few digits for nanoseconds since some epoch.
    let period = (period * (1u64 << 32) as f64) as u128;
    let nanos = |tick: u64| {
        let tick = tick & mask;
        let tick = if tick < first { u128::from(tick) + (u128::from(mask) + 1) } else { tick.into() };
        (tick.saturating_mul(period) >> 32) as u64
    };
    ticks.iter().map(|tick| nanos(*tick)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_become_nanoseconds_without_rounding() {
        let epoch = 1_790_000_000_123_456_789;
        assert_eq!(to_nanos(&[epoch, epoch + 1], 64, 1.0), [epoch, epoch + 1]);
        assert_eq!(to_nanos(&[10, 20], 36, 52.5), [525, 1050]);
        assert_eq!(to_nanos(&[], 64, 1.0), [0u64; 0]);
    }

    #[test]
    fn a_counter_that_goes_round_keeps_rising() {
        let times = to_nanos(&[(1 << 36) - 2, 3, 0xf000_0000_0000_0004], 36, 1.0);
        assert_eq!(times[1] - times[0], 5);
        assert_eq!(times[2] - times[1], 1);
    }
}
