//! Recordings in pieces: submissions of their own that everyone else takes for one.

use std::fmt;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use super::core::{Flight, Payload, Reserved, State, Work, resource_of};
use super::error::{Error, Problem, UsageError};
use super::event::Event;
use super::queue::{Prepared, is_before};
use super::semaphore::{Exchange, Semaphore, submit_between};
use crate::backend::Timepoint;
use crate::recording::{Command, Recording};
use onepool_core::memory::coherency::{Left, Origin};
use onepool_core::sync::lock;

/// A prepared recording that is submitted piece by piece ([`Queue::begin`](super::Queue::begin)). Dropping it leaves the
/// rest out: what the pieces before wrote is undefined then.
pub struct Submission {
    prepared: Prepared,
    next: usize,
    /// The latest piece's.
    point: Timepoint,
    /// Keeps others away while some of several pieces are not submitted.
    reservation: Option<u64>,
    exchange: Option<Exchange>,
}

impl Submission {
    /// Waits for what stands in the way, and keeps it away from then on.
    pub(super) fn begin(prepared: &Prepared) -> Result<Submission, Error> {
        let prepared = prepared.clone();
        let mut begun =
            Submission { prepared, next: 0, point: Timepoint(0), reservation: None, exchange: None };
        if begun.pieces() > 1 {
            begun.reservation = Some(begun.reserve()?);
        }
        Ok(begun)
    }

    /// The first piece waits for `waits`, and the last one signals `signals`. Where there are waits, the host waits for
    /// the pieces for at most `limit`; after that they still use what they use, until they end.
    ///
    /// # Errors
    /// [`UsageError`]: a semaphore of another context; waits, where the recording uses memory that is borrowed for a
    /// scope ([`scope`](super::scope())), whose end would have to wait without limit.
    pub fn between(
        mut self,
        waits: &[Semaphore],
        signals: &[Semaphore],
        limit: Duration,
    ) -> Result<Submission, Error> {
        const CONTEXT: &str = "between";
        let exchange = Exchange::new(&self.prepared.queue.core, CONTEXT, waits, signals, limit)?;
        if exchange.waits() && !self.work().scoped.is_empty() {
            let what = "borrowed memory is not bound to a run that waits for semaphores, which may never be signalled; bind a HostRegion or a buffer".to_owned();
            return Err(UsageError::new(CONTEXT, Problem::Busy { what }).into());
        }
        self.exchange = Some(exchange);
        Ok(self)
    }

    /// How many pieces there are.
    pub fn pieces(&self) -> usize {
        self.prepared.inner.pieces.len()
    }

    /// Whether every piece is submitted.
    pub fn is_whole(&self) -> bool {
        self.next >= self.pieces()
    }

    /// Submits the next piece.
    ///
    /// # Errors
    /// As [`Queue::submit_prepared`](super::Queue::submit_prepared), and where every piece is submitted; after an error
    /// nothing of the piece runs.
    pub fn submit_next(&mut self) -> Result<Event, Error> {
        let queue = &self.prepared.queue;
        let piece = self.prepared.inner.pieces.get(self.next).copied();
        let piece = piece.ok_or_else(|| {
            UsageError::new("submit_next", Problem::Foreign { object: "piece of a recording" })
        })?;
        let (first, ends) = (self.next == 0, self.next + 1 == self.pieces());
        let exchange = self.exchange.as_ref();
        let submit = || match exchange {
            None => queue.backend.submit_prepared(piece),
            Some(exchange) => submit_between(&*queue.backend, Some(piece), exchange.of_piece(first, ends)),
        };
        let point = match self.reservation {
            None => queue.launch_between(CONTEXT, &self.payload(), exchange, submit)?,
            Some(id) => {
                let mut state = queue.core.state();
                check(&state, self.work())?;
                let own = state.reserved.iter_mut().find(|reserved| reserved.id == id);
                own.into_iter().for_each(|own| own.thread = Some(thread::current().id()));
                let flight = Flight {
                    point: Timepoint(0),
                    payload: self.payload(),
                    regions: Vec::new(),
                    claim: None,
                    ends,
                    deadline: exchange.and_then(Exchange::deadline),
                };
                let taken = queue.take_off(&mut state, flight, submit);
                if ends && taken.is_ok() {
                    hand_over(&mut state, queue.index, id);
                }
                drop(state);
                let (point, flights) = taken?;
                if ends {
                    self.reservation = None;
                    drop(queue.core.release(id));
                }
                queue.thin_out(flights)?;
                point
            }
        };
        self.next += 1;
        self.point = point;
        Ok(Event::submitted(&self.prepared.queue, point))
    }

    fn payload(&self) -> Payload {
        Payload::Prepared(Arc::clone(&self.prepared.inner))
    }

    fn work(&self) -> &Work {
        &self.prepared.inner.work
    }

    fn reserve(&self) -> Result<u64, Error> {
        let queue = &self.prepared.queue;
        let (core, work) = (&queue.core, self.work());
        let other = |index: usize, flight: &Flight| is_before(queue.index, work, index, flight);
        let reserved = core.when_free(other, |state| -> Result<u64, Error> {
            check(state, work)?;
            let regions = work.lease_regions(CONTEXT)?;
            let claim = Some(work.claim(CONTEXT, core)?);
            core.flush_kept()?;
            if !work.flush.is_empty() {
                core.flush(&work.flush)?;
            }
            state.next_hold += 1;
            let (id, point) = (state.next_hold, Timepoint(u64::MAX));
            let flight =
                Flight { point, payload: self.payload(), regions, claim, ends: false, deadline: None };
            state.reserved.push(Reserved { id, queue: queue.index, thread: None, flight });
            Ok(id)
        });
        reserved?
    }
}

impl Drop for Submission {
    fn drop(&mut self) {
        let Some(id) = self.reservation else { return };
        let queue = &self.prepared.queue;
        let Some(mut held) = queue.core.release(id) else { return };
        let mut state = queue.core.state();
        // Nothing showed the host what was written.
        state.submissions += 1;
        let by = Origin { queue: queue.index, submission: state.submissions };
        for lease in self.work().leases.iter().filter(|_| self.next > 0) {
            let memory = &lease.memory;
            let touches = self.work().touches.iter().filter(|touch| touch.resource == resource_of(memory.id));
            let writes = touches.filter(|touch| !touch.access.writes().is_empty());
            let hidden = writes.clone().map(|touch| (touch.range, touch.access.writes())).collect();
            let left =
                Left::after(writes.map(|touch| touch.range), hidden, [].into_iter(), memory.info.coherent);
            if memory.info.host.is_some() && !queue.core.info.in_order {
                lock(&memory.host).submitted(&left, by);
            }
        }
        let lane = state.queues.get_mut(queue.index).and_then(Option::as_mut);
        let last = lane.and_then(|lane| lane.flights.iter_mut().find(|flight| flight.point == self.point));
        // What runs still keeps the host and other contexts away.
        if let Some(flight) = last {
            flight.regions = std::mem::take(&mut held.regions);
            flight.claim = held.claim.take();
            flight.ends = true;
        }
        drop(state);
        drop(held);
    }
}

impl fmt::Debug for Submission {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Submission").field("prepared", &self.prepared).field("next", &self.next).finish()
    }
}

/// The last piece is over when all are, so it takes over what the reservation holds.
fn hand_over(state: &mut State, queue: usize, id: u64) {
    let held = state.reserved.iter_mut().find(|reserved| reserved.id == id);
    let lane = state.queues.get_mut(queue).and_then(Option::as_mut);
    if let (Some(held), Some(last)) = (held, lane.and_then(|lane| lane.flights.back_mut())) {
        last.regions = std::mem::take(&mut held.flight.regions);
        last.claim = held.flight.claim.take();
    }
}

const CONTEXT: &str = "submit_prepared";

/// What may have changed since the last piece: borrowed memory was given back, or the thread itself holds a guard.
fn check(state: &State, work: &Work) -> Result<(), UsageError> {
    // Under the lock, as revoking is: a scope that ends waits for every submission before it.
    if work.scoped.iter().any(|lease| lease.is_revoked()) {
        return Err(UsageError::new(CONTEXT, Problem::Revoked));
    }
    state.check_holds(CONTEXT, &work.touches)
}

/// The pieces of a recording: one begins at each command of `cuts`. Images come into being with the first.
pub(super) fn cut(mut recording: Recording, cuts: &[usize]) -> Vec<Recording> {
    if cuts.is_empty() {
        return vec![recording];
    }
    let mut pieces = Vec::with_capacity(cuts.len() + 1);
    for at in cuts.iter().rev() {
        let commands = recording.commands.split_off((*at).min(recording.commands.len()));
        pieces.push(numbered(Recording { commands, ..Recording::default() }));
    }
    pieces.push(numbered(recording));
    pieces.reverse();
    pieces
}

/// A recording whose timestamps have slots from 0 on.
fn numbered(mut recording: Recording) -> Recording {
    let mut slots = 0;
    for command in &mut recording.commands {
        if let Command::Timestamp { slot } = command {
            *slot = slots;
            slots += 1;
        }
    }
    recording.timestamps = slots;
    recording
}
