//! Runs that were submitted and may be unfinished.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use super::SessionCore;
use super::cancel::Watch;
use super::compiled::Compiled;
use super::queue::Pass;
use crate::backend::DeviceError;
use crate::device::Event;
use crate::session::error::Error;
use crate::session::run::segments::{Begun, Leg, drive};

/// What a run was submitted as.
#[derive(Clone, Debug)]
pub(in crate::session) enum Underway {
    /// One submission.
    One(Event),
    /// Several, each made when those that it waits for are over.
    Several(Arc<Flight>),
}

impl Underway {
    /// Waits until it is over.
    ///
    /// # Errors
    /// Its own: of several submissions the first call tells.
    pub(in crate::session) fn wait(&self) -> Result<(), Error> {
        match self {
            Underway::One(event) => Ok(event.wait()?),
            Underway::Several(flight) => flight.wait().error.take().map_or(Ok(()), Err),
        }
    }

    /// Waits until it is over. Its errors are for whoever submitted it.
    pub(in crate::session) fn settle(&self) {
        match self {
            Underway::One(event) => drop(event.wait()),
            Underway::Several(flight) => drop(flight.wait()),
        }
    }

    /// Whether it is over.
    pub(in crate::session) fn is_done(&self) -> Result<bool, Error> {
        match self {
            Underway::One(event) => Ok(event.is_done()?),
            Underway::Several(flight) => Ok(flight.lock().over),
        }
    }
}

/// A run of several submissions.
#[derive(Debug, Default)]
pub(in crate::session) struct Flight {
    state: Mutex<State>,
    landed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    over: bool,
    /// What went wrong, until someone is told.
    error: Option<Error>,
}

impl Flight {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wait(&self) -> MutexGuard<'_, State> {
        let waited = self.landed.wait_while(self.lock(), |state| !state.over);
        waited.unwrap_or_else(PoisonError::into_inner)
    }

    fn land(&self, error: Option<Error>) {
        let mut state = self.lock();
        if !state.over {
            *state = State { over: true, error };
            self.landed.notify_all();
        }
    }
}

/// The last run of a binding; whoever lets go of it waits for it first.
#[derive(Debug)]
pub(in crate::session) struct LastRun(pub(in crate::session) Arc<Flight>);

impl LastRun {
    /// Waits until the run is over. Its errors are for whoever submitted it.
    pub(in crate::session) fn settle(&self) {
        drop(self.0.wait());
    }
}

impl Drop for LastRun {
    fn drop(&mut self) {
        self.settle();
    }
}

/// Tells whoever waits that a run is over, at the latest when it is dropped.
#[derive(Debug)]
struct Landing(Arc<Flight>);

impl Drop for Landing {
    fn drop(&mut self) {
        let detail = "the thread that ran the segments is gone".to_owned();
        self.0.land(Some(DeviceError::Lost { detail }.into()));
    }
}

/// A run that has its place among those of its session and was not begun.
#[derive(Debug)]
pub(in crate::session) struct Departure {
    inner: Arc<SessionCore>,
    compiled: Arc<Compiled>,
    legs: Arc<[Leg]>,
    pass: Pass,
    watch: Watch,
    /// The only leg, where it is begun already.
    begun: Option<Begun>,
    landing: Landing,
}

impl Departure {
    /// Puts a run of `legs` after all that were submitted before.
    ///
    /// # Errors
    /// As [`Leg::begin`], of the only one.
    pub(in crate::session) fn new(
        inner: &Arc<SessionCore>,
        compiled: &Arc<Compiled>,
        legs: &Arc<[Leg]>,
        watch: &Watch,
    ) -> Result<Self, Error> {
        let (inner, compiled, legs) = (Arc::clone(inner), Arc::clone(compiled), Arc::clone(legs));
        let (watch, landing) = (watch.clone(), Landing(Arc::default()));
        let pass = inner.traffic.announce(&legs);
        // Its place among all that touches the same memory, as one submission has it at once.
        let begun = match &legs[..] {
            [leg] => Some(leg.begin(&inner.devices)?),
            _ => None,
        };
        Ok(Departure { inner, compiled, legs, pass, watch, begun, landing })
    }

    /// The run.
    pub(in crate::session) fn flight(&self) -> &Arc<Flight> {
        &self.landing.0
    }

    /// Runs it, on this thread.
    pub(in crate::session) fn here(self) {
        let Departure { inner, compiled, legs, pass, watch, mut begun, landing } = self;
        let result = drive(&legs, &pass, &watch, &|| inner.relieve(), |s| match begun.take() {
            Some(begun) => Ok(begun),
            None => legs[s].begin(&inner.devices),
        });
        let result = result.map(|courses| {
            let each = legs.iter().zip(&courses);
            each.for_each(|(leg, course)| leg.learn(course, &compiled.schedule, &inner.devices));
        });
        // Whoever waited may take memory and devices apart.
        drop((pass, legs, compiled, inner));
        landing.0.land(result.err());
    }

    /// Runs it on a thread of its own.
    ///
    /// # Errors
    /// There is no thread to be had.
    pub(in crate::session) fn aside(self) -> Result<(), Error> {
        let spawned = std::thread::Builder::new().name("onepool-run".to_owned()).spawn(move || self.here());
        let failed = |e: std::io::Error| {
            let code = e.raw_os_error().unwrap_or(0);
            DeviceError::Backend { api: "system", call: "start a thread", code }
        };
        spawned.map(drop).map_err(|e| failed(e).into())
    }
}
