//! Semaphores of an application: what a submission waits for, and what it signals.

#![allow(unsafe_code, reason = "a handle of the application's, which it answers for")]

use std::time::{Duration, Instant};

use super::context::Context;
use super::core::Core;
use super::error::{Error, Problem, UsageError};
use crate::backend::{DeviceError, QueueBackend, SemaphorePoint, Semaphores, Timepoint};
use crate::recording::PreparedId;

/// A semaphore of the application's, or a value of one that has values.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Semaphore {
    context: usize,
    point: SemaphorePoint,
}

impl Semaphore {
    /// The [`Context::id`] of its context.
    pub fn context_id(&self) -> usize {
        self.context
    }
}

impl Context {
    /// A semaphore of the context's device, by its handle (a `VkSemaphore`): a timeline semaphore at `value`, or a binary
    /// one. A run waits for it or signals it.
    ///
    /// # Safety
    /// - The handle is of a semaphore of the device that the context was opened on, timeline or binary as said.
    /// - It lives until every run that was given it is over, or the device is lost.
    /// - A run that waits for a binary semaphore comes after the submission that signals it, and no one else waits for
    ///   that signal; one that signals it finds it unsignaled. Values that are signalled rise.
    ///
    /// # Errors
    /// [`DeviceError::Unsupported`]: a null handle, a timeline semaphore on a device without them, a device that takes
    /// no semaphores.
    pub unsafe fn semaphore(&self, handle: u64, value: Option<u64>) -> Result<Semaphore, Error> {
        let point = SemaphorePoint { handle, value };
        self.core().backend.check_semaphore(&point)?;
        Ok(Semaphore { context: self.id(), point })
    }
}

/// What a submission waits for and signals, and how long it may wait.
#[derive(Clone, Debug)]
pub(super) struct Exchange {
    waits: Vec<SemaphorePoint>,
    signals: Vec<SemaphorePoint>,
    limit: Duration,
}

impl Exchange {
    pub(super) fn new(
        core: &Core,
        context: &'static str,
        waits: &[Semaphore],
        signals: &[Semaphore],
        limit: Duration,
    ) -> Result<Exchange, UsageError> {
        let own = std::ptr::from_ref(core).addr();
        let points = |semaphores: &[Semaphore]| -> Result<Vec<SemaphorePoint>, UsageError> {
            let points = semaphores.iter().map(|semaphore| match semaphore.context == own {
                true => Ok(semaphore.point),
                false => Err(UsageError::new(context, Problem::Foreign { object: "semaphore" })),
            });
            points.collect()
        };
        Ok(Exchange { waits: points(waits)?, signals: points(signals)?, limit })
    }

    pub(super) fn waits(&self) -> bool {
        !self.waits.is_empty()
    }

    /// What of it belongs to the first piece of a recording, and to the last.
    pub(super) fn of_piece(&self, first: bool, last: bool) -> Semaphores<'_> {
        Semaphores {
            waits: if first { &self.waits } else { &[] },
            signals: if last { &self.signals } else { &[] },
        }
    }

    /// When the host gives up waiting for what is submitted now.
    pub(super) fn deadline(&self) -> Option<Instant> {
        let now = Instant::now();
        self.waits().then(|| now.checked_add(self.limit).unwrap_or(now + LONGEST))
    }
}

/// Longer limits are as good as this one.
const LONGEST: Duration = Duration::from_secs(1 << 30);

/// Submits a recording, or none, between semaphores.
pub(super) fn submit_between(
    queue: &dyn QueueBackend,
    prepared: Option<PreparedId>,
    semaphores: Semaphores<'_>,
) -> Result<Timepoint, DeviceError> {
    match (prepared, semaphores.waits.is_empty() && semaphores.signals.is_empty()) {
        (Some(prepared), true) => queue.submit_prepared(prepared),
        // SAFETY: whoever made the semaphores' handles to be used here vouched for them (`Context::semaphore`).
        (prepared, _) => unsafe { queue.submit_between(prepared, semaphores) },
    }
}
