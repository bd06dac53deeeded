//! The order of runs of one session that span several devices.

use std::sync::{Arc, Condvar, Mutex, MutexGuard};

use crate::device::Event;
use crate::memory::range::ByteRange;
use crate::sync::{lock, wait};

/// The bound memory that one submission accesses, and its device.
#[derive(Clone, Debug, Default)]
pub(in crate::session) struct Footprint {
    pub(in crate::session) device: u32,
    /// Bytes of the process, and whether they are written.
    pub(in crate::session) spans: Vec<(ByteRange, bool)>,
}

/// Unfinished runs over several devices, in the order of their submission. A device orders its own work; this queue
/// orders accesses of different devices to the same memory.
#[derive(Debug, Default)]
pub(in crate::session) struct RunQueue {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    /// Runs enqueued so far.
    runs: u64,
    in_flight: Vec<QueuedLaunch>,
}

/// An unfinished launch that accesses bound memory.
#[derive(Debug)]
struct QueuedLaunch {
    run: u64,
    launch: usize,
    footprint: Footprint,
    /// `None` until it is submitted.
    event: Option<Event>,
}

impl QueuedLaunch {
    /// Whether `later`, a launch of a later run, must wait: both access the same bytes, one of the two writes, and
    /// they run on different devices or this one is not submitted.
    fn blocks(&self, later: &Footprint) -> bool {
        let own = &self.footprint;
        let conflicts = |(range, write): &(ByteRange, bool)| {
            own.spans.iter().any(|(other, writes)| (*write || *writes) && other.overlaps(*range))
        };
        (self.event.is_none() || own.device != later.device) && later.spans.iter().any(conflicts)
    }
}

/// One run's place in the queue, released on drop.
#[derive(Debug)]
pub(in crate::session) struct Ticket {
    queue: Arc<RunQueue>,
    run: u64,
}

impl RunQueue {
    /// Enqueues a run of launches with these footprints after all earlier ones.
    pub(in crate::session) fn enqueue<'f>(
        self: &Arc<Self>,
        footprints: impl Iterator<Item = &'f Footprint>,
    ) -> Ticket {
        let mut state = self.lock();
        state.runs += 1;
        let run = state.runs;
        let touching = footprints.enumerate().filter(|(_, footprint)| !footprint.spans.is_empty());
        state.in_flight.extend(touching.map(|(launch, footprint)| QueuedLaunch {
            run,
            launch,
            footprint: footprint.clone(),
            event: None,
        }));
        Ticket { queue: Arc::clone(self), run }
    }

    /// Waits until every enqueued launch is submitted or finished.
    pub(in crate::session) fn wait_until_submitted(&self) {
        let mut state = self.lock();
        let runs = state.runs;
        while state.in_flight.iter().any(|f| f.run <= runs && f.event.is_none()) {
            state = wait(&self.changed, state);
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }
}

impl Ticket {
    /// Waits for launches of earlier runs that conflict with `footprint`.
    pub(in crate::session) fn wait_for_conflicts(&self, footprint: &Footprint) {
        let mut state = self.queue.lock();
        loop {
            let conflict = state.in_flight.iter().find(|f| f.run < self.run && f.blocks(footprint));
            match conflict.map(|f| (f.run, f.launch, f.event.clone())) {
                None => return,
                Some((_, _, None)) => {
                    state = wait(&self.queue.changed, state);
                }
                Some((run, at, Some(event))) => {
                    drop(state);
                    // The run that submitted it reports its errors.
                    let _ = event.wait();
                    state = self.queue.lock();
                    state.in_flight.retain(|f| (f.run, f.launch) != (run, at));
                }
            }
        }
    }

    /// Records that launch `at` is submitted as `event`, or finished where there is none.
    pub(in crate::session) fn started(&self, at: usize, event: Option<&Event>) {
        let mut state = self.queue.lock();
        match event {
            Some(event) => {
                let own = state.in_flight.iter_mut().filter(|f| (f.run, f.launch) == (self.run, at));
                own.for_each(|f| f.event = Some(event.clone()));
            }
            None => state.in_flight.retain(|f| (f.run, f.launch) != (self.run, at)),
        }
        drop(state);
        self.queue.changed.notify_all();
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        self.queue.lock().in_flight.retain(|f| f.run != self.run);
        self.queue.changed.notify_all();
    }
}
