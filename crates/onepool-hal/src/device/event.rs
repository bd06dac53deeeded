//! What a submission answers with.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use super::error::Error;
use super::queue::QueueInner;
use crate::backend::{DeviceError, Timepoint};
use onepool_core::sync::lock;

/// Reached once a submission has finished. A clone is another handle of it.
#[derive(Clone, Debug)]
pub struct Event {
    queue: Arc<QueueInner>,
    when: When,
}

#[derive(Clone, Debug)]
enum When {
    Submitted(Timepoint),
    /// A command that was enqueued; its batch is submitted by a flush or by the first wait.
    Batched(Arc<Ticket>),
}

/// Where a batch of enqueued commands went.
#[derive(Debug, Default)]
pub(super) struct Ticket {
    fate: Mutex<Option<Result<Timepoint, Error>>>,
}

impl Ticket {
    pub(super) fn settle(&self, fate: Result<Timepoint, Error>) {
        *lock(&self.fate) = Some(fate);
    }
}

impl Event {
    pub(super) fn submitted(queue: &Arc<QueueInner>, point: Timepoint) -> Event {
        Event { queue: Arc::clone(queue), when: When::Submitted(point) }
    }

    pub(super) fn batched(queue: &Arc<QueueInner>, ticket: Arc<Ticket>) -> Event {
        Event { queue: Arc::clone(queue), when: When::Batched(ticket) }
    }

    /// Waits until the submission has finished and its writes are visible to the host, as far as its
    /// recording ends with a host barrier.
    ///
    /// # Errors
    /// The device's, and the error of a kernel that failed.
    pub fn wait(&self) -> Result<(), Error> {
        let point = self.point()?;
        Ok(self.queue.core.wait(self.queue.index, &*self.queue.backend, point, None)?)
    }

    /// As [`Event::wait`], for at most `timeout`.
    ///
    /// # Errors
    /// As there, and [`DeviceError::Timeout`].
    pub fn wait_timeout(&self, timeout: Duration) -> Result<(), Error> {
        let point = self.point()?;
        Ok(self.queue.core.wait(self.queue.index, &*self.queue.backend, point, Some(timeout))?)
    }

    /// Whether the submission has finished. Does not wait; an enqueued command is submitted.
    ///
    /// # Errors
    /// The device's.
    pub fn is_done(&self) -> Result<bool, Error> {
        let point = self.point()?;
        let completed = self.queue.backend.completed()?;
        if completed < point {
            return Ok(false);
        }
        self.queue.core.retire(self.queue.index, completed)?;
        Ok(true)
    }

    /// Nanoseconds of the recording's timestamp slots, from an origin common to the queue; empty where
    /// the device has no clock. Waits for the submission.
    ///
    /// # Errors
    /// As [`Event::wait`].
    pub fn timestamps(&self) -> Result<Vec<u64>, Error> {
        self.wait()?;
        Ok(self.queue.backend.timestamps(self.point()?)?)
    }

    fn point(&self) -> Result<Timepoint, Error> {
        match &self.when {
            When::Submitted(point) => Ok(*point),
            When::Batched(ticket) => {
                if let Some(fate) = lock(&ticket.fate).clone() {
                    return fate;
                }
                // The batch is open, or another thread is submitting it under the batch's lock.
                self.queue.flush();
                let fate = lock(&ticket.fate).clone();
                fate.unwrap_or(Err(Error::Device(DeviceError::Stale { object: "event" })))
            }
        }
    }
}
