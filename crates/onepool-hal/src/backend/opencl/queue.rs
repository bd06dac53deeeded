//! Queues: submission, prepared recordings, waiting, times.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, RwLock};
use std::time::Duration;

use super::command::{Calls, Enqueued};
use super::handle::{self, Event};
use super::tables::Tables;
use super::timeline::Timeline;
use crate::backend::slots::SlotTable;
use crate::backend::{DeviceError, QueueBackend, Timepoint};
use crate::recording::{PreparedId, Recording};
use onepool_core::sync::{lock, read, write};

/// An in-order queue.
pub(super) struct Queue {
    timeline: Timeline,
    prepared: RwLock<SlotTable<PreparedId, Prepared>>,
    lanes: Mutex<Lanes>,
    // Outlives the queue's objects.
    tables: Arc<Tables>,
}

/// Queues of the API that stand for one. Measuring times has a cost, so recordings with timestamps go to a
/// queue of their own.
struct Lanes {
    plain: handle::Queue,
    /// Made when it is first needed.
    timed: Option<handle::Queue>,
    /// The last command, and whether it was timed.
    last: Option<(Event, bool)>,
}

struct Prepared {
    calls: Calls,
    // The count of destroyed objects at which its handles were last found alive.
    checked: AtomicU64,
}

impl Queue {
    pub(super) fn new(tables: Arc<Tables>) -> Result<Self, DeviceError> {
        let device = &tables.device;
        let plain = device.shared.context.queue(device.id, false)?;
        Ok(Queue {
            timeline: Timeline::default(),
            prepared: RwLock::default(),
            lanes: Mutex::new(Lanes { plain, timed: None, last: None }),
            tables,
        })
    }

    /// Enqueues calls and hands them to the device. The caller holds the table of buffers, so that none of
    /// theirs goes meanwhile.
    fn run(&self, calls: &Calls) -> Result<u64, DeviceError> {
        let device = &self.tables.device;
        let mut lanes = lock(&self.lanes);
        let timed = calls.slots > 0;
        let Lanes { plain, timed: timed_queue, last } = &mut *lanes;
        let queue = match (timed, &mut *timed_queue) {
            (false, _) => &*plain,
            (true, Some(queue)) => &*queue,
            (true, none) => &*none.insert(device.shared.context.queue(device.id, true)?),
        };
        if let Some((event, was_timed)) = &*last
            && *was_timed != timed
        {
            queue.barrier(event)?;
        }
        let mut enqueued = Enqueued::default();
        // SAFETY: the buffers were just found in the table, which the caller holds; whoever destroys one
        // has waited for what uses it.
        let result = unsafe { calls.enqueue(queue, &mut enqueued) }.and_then(|()| queue.flush());
        if let Err(error) = result {
            return Err(device.note(if enqueued.last.is_some() { torn(queue, error) } else { error }));
        }
        match &enqueued.last {
            Some(event) => *last = Some((event.clone(), timed)),
            // Nothing to do is done when what came before is.
            None => enqueued.last = last.as_ref().map(|(event, _)| event.clone()),
        }
        Ok(self.timeline.push(enqueued))
    }

    fn is_reached(&self, point: u64) -> Result<bool, DeviceError> {
        Ok(self.timeline.poll(&self.tables.device)? >= point)
    }
}

impl QueueBackend for Queue {
    fn submit(&self, recording: &Recording) -> Result<Timepoint, DeviceError> {
        self.tables.device.alive()?;
        let calls = Calls::new(&self.tables, recording)?;
        // Looked up again: one may have gone since.
        let buffers = read(&self.tables.buffers);
        calls.buffers.iter().try_for_each(|buffer| buffers.get(*buffer).map(drop))?;
        self.run(&calls).map(Timepoint)
    }

    fn prepare(&self, recording: &Recording) -> Result<PreparedId, DeviceError> {
        self.tables.device.alive()?;
        // Before the handles are looked up: one destroyed meanwhile is then looked for again.
        let checked = AtomicU64::new(self.tables.destroyed());
        let calls = Calls::new(&self.tables, recording)?;
        Ok(write(&self.prepared).insert(Prepared { calls, checked }))
    }

    fn submit_prepared(&self, prepared: PreparedId) -> Result<Timepoint, DeviceError> {
        self.tables.device.alive()?;
        let table = read(&self.prepared);
        let prepared = table.get(prepared)?;
        // Held until everything is enqueued.
        let buffers = read(&self.tables.buffers);
        let destroyed = self.tables.destroyed();
        if prepared.checked.load(Ordering::Acquire) != destroyed {
            prepared.calls.buffers.iter().try_for_each(|buffer| buffers.get(*buffer).map(drop))?;
            let kernels = read(&self.tables.kernels);
            prepared.calls.kernels.iter().try_for_each(|kernel| kernels.get(*kernel).map(drop))?;
            prepared.checked.store(destroyed, Ordering::Release);
        }
        // Submissions run one after the other, so an earlier one of it may be unfinished.
        self.run(&prepared.calls).map(Timepoint)
    }

    fn release_prepared(&self, prepared: PreparedId) {
        let removed = write(&self.prepared).remove(prepared);
        drop(removed);
    }

    fn wait(&self, point: Timepoint, timeout: Option<Duration>) -> Result<(), DeviceError> {
        self.timeline.wait(&self.tables.device, point.0, self.tables.wait, timeout)
    }

    fn completed(&self) -> Result<Timepoint, DeviceError> {
        self.tables.device.alive()?;
        self.timeline.poll(&self.tables.device).map(Timepoint)
    }

    fn timestamps(&self, point: Timepoint) -> Result<Vec<u64>, DeviceError> {
        self.tables.device.alive()?;
        if point.0 == 0 || !self.is_reached(point.0)? {
            return Ok(Vec::new());
        }
        Ok(self.timeline.times(point.0))
    }
}

impl Drop for Queue {
    fn drop(&mut self) {
        let last = self.timeline.submitted();
        if self.timeline.wait(&self.tables.device, last, self.tables.wait, None).is_err() {
            let lanes = lock(&self.lanes);
            for queue in [Some(&lanes.plain), lanes.timed.as_ref()].into_iter().flatten() {
                let _ = queue.finish();
            }
        }
    }
}

impl fmt::Debug for Queue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Queue")
            .field("submitted", &self.timeline.submitted())
            .field("prepared", &read(&self.prepared).len())
            .finish_non_exhaustive()
    }
}

/// The driver refused in the midst of a recording: part of it runs, which no one can take back.
fn torn(queue: &handle::Queue, error: DeviceError) -> DeviceError {
    let _ = queue.finish();
    match error {
        DeviceError::Lost { .. } => error,
        error => DeviceError::Lost { detail: format!("a recording was enqueued in part: {error}") },
    }
}
