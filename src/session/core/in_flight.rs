//! In-flight runs.

use std::sync::{Arc, Condvar, Mutex, MutexGuard};

use crate::backend::DeviceError;
use crate::device::Event;
use crate::session::error::Error;
use crate::sync::{lock, wait_while};

/// A submitted run.
#[derive(Clone, Debug)]
pub(in crate::session) enum InFlight {
    /// One submission.
    One(Event),
    /// Several submissions, each made after those it depends on.
    Several(Arc<RunState>),
}

impl InFlight {
    /// Waits for the run.
    pub(in crate::session) fn wait(&self) -> Result<(), Error> {
        match self {
            InFlight::One(event) => Ok(event.wait()?),
            InFlight::Several(run) => run.wait().error.take().map_or(Ok(()), Err),
        }
    }

    /// Waits for the run and discards its errors, which its submitter gets.
    pub(in crate::session) fn wait_quietly(&self) {
        match self {
            InFlight::One(event) => drop(event.wait()),
            InFlight::Several(run) => drop(run.wait()),
        }
    }

    /// Whether the run is over.
    pub(in crate::session) fn is_done(&self) -> Result<bool, Error> {
        match self {
            InFlight::One(event) => Ok(event.is_done()?),
            InFlight::Several(run) => Ok(run.lock().over),
        }
    }
}

/// Whether a run of several submissions is over.
#[derive(Debug, Default)]
pub(in crate::session) struct RunState {
    state: Mutex<Outcome>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct Outcome {
    over: bool,
    /// Set until [`InFlight::wait`] returns it.
    error: Option<Error>,
}

impl RunState {
    fn lock(&self) -> MutexGuard<'_, Outcome> {
        lock(&self.state)
    }

    fn wait(&self) -> MutexGuard<'_, Outcome> {
        wait_while(&self.changed, self.lock(), |state| !state.over)
    }

    fn complete(&self, error: Option<Error>) {
        let mut state = self.lock();
        if !state.over {
            *state = Outcome { over: true, error };
            self.changed.notify_all();
        }
    }
}

/// The last run of a binding; dropping it waits for the run.
#[derive(Debug)]
pub(in crate::session) struct LastRun(pub(in crate::session) Arc<RunState>);

impl LastRun {
    /// Waits for the run and discards its errors, which its submitter gets.
    pub(in crate::session) fn wait_quietly(&self) {
        drop(self.0.wait());
    }
}

impl Drop for LastRun {
    fn drop(&mut self) {
        self.wait_quietly();
    }
}

/// Completes a run at the latest when it is dropped.
#[derive(Debug, Default)]
pub(in crate::session) struct CompletionGuard(Arc<RunState>);

impl CompletionGuard {
    pub(in crate::session) fn run(&self) -> &Arc<RunState> {
        &self.0
    }

    pub(in crate::session) fn complete(self, error: Option<Error>) {
        self.0.complete(error);
    }
}

impl Drop for CompletionGuard {
    fn drop(&mut self) {
        let detail = "the thread that ran the segments is gone".to_owned();
        self.0.complete(Some(DeviceError::Lost { detail }.into()));
    }
}
