//! What runs of one session over several devices wait for among one another.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use crate::device::Event;
use crate::memory::range::ByteRange;
use crate::session::run::segments::Leg;

/// Runs of one session over several devices that may be unfinished, by what they touch, in the order in which they
/// were submitted: each device orders what is given to it, and no one else orders two devices.
#[derive(Debug, Default)]
pub(in crate::session) struct Traffic {
    state: Mutex<State>,
    moved: Condvar,
}

#[derive(Debug, Default)]
struct State {
    /// How many runs there were.
    runs: u64,
    flying: Vec<Flying>,
}

/// A leg that touches bound memory and may not be over.
#[derive(Debug)]
struct Flying {
    run: u64,
    leg: usize,
    device: u32,
    spans: Vec<(ByteRange, bool)>,
    /// What it was submitted as; none before.
    event: Option<Event>,
}

impl Flying {
    /// Whether `leg`, of a later run, must not start yet: another device is to touch what it touches, and one of the
    /// two writes; or the same one, and was not given it yet.
    fn is_before(&self, leg: &Leg) -> bool {
        let clash = |(range, write): &(ByteRange, bool)| {
            self.spans.iter().any(|(other, writes)| (*write || *writes) && other.overlaps(*range))
        };
        (self.event.is_none() || self.device != leg.device) && leg.spans.iter().any(clash)
    }
}

/// One run's place in the order, until it is dropped.
#[derive(Debug)]
pub(in crate::session) struct Pass {
    traffic: Arc<Traffic>,
    run: u64,
}

impl Traffic {
    /// Puts a run after all that were announced before.
    pub(in crate::session) fn announce(self: &Arc<Self>, legs: &[Leg]) -> Pass {
        let mut state = self.lock();
        state.runs += 1;
        let run = state.runs;
        let touching = legs.iter().enumerate().filter(|(_, leg)| !leg.spans.is_empty());
        state.flying.extend(touching.map(|(at, leg)| Flying {
            run,
            leg: at,
            device: leg.device,
            spans: leg.spans.clone(),
            event: None,
        }));
        Pass { traffic: Arc::clone(self), run }
    }

    /// Waits until every leg that touches bound memory, of the runs announced before, is submitted or over.
    pub(in crate::session) fn settle(&self) {
        let mut state = self.lock();
        let runs = state.runs;
        while state.flying.iter().any(|f| f.run <= runs && f.event.is_none()) {
            state = self.moved.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Pass {
    /// Waits for what earlier runs do with the memory that `leg` touches too.
    pub(in crate::session) fn clear_way(&self, leg: &Leg) {
        let mut state = self.traffic.lock();
        loop {
            let rival = state.flying.iter().find(|f| f.run < self.run && f.is_before(leg));
            match rival.map(|f| (f.run, f.leg, f.event.clone())) {
                None => return,
                Some((_, _, None)) => {
                    state = self.traffic.moved.wait(state).unwrap_or_else(PoisonError::into_inner);
                }
                Some((run, at, Some(event))) => {
                    drop(state);
                    // Its errors are for whoever submitted it.
                    let _ = event.wait();
                    state = self.traffic.lock();
                    state.flying.retain(|f| (f.run, f.leg) != (run, at));
                }
            }
        }
    }

    /// Notes that leg `at` was submitted as `event`, or is over where there is none.
    pub(in crate::session) fn started(&self, at: usize, event: Option<&Event>) {
        let mut state = self.traffic.lock();
        match event {
            Some(event) => {
                let own = state.flying.iter_mut().filter(|f| (f.run, f.leg) == (self.run, at));
                own.for_each(|f| f.event = Some(event.clone()));
            }
            None => state.flying.retain(|f| (f.run, f.leg) != (self.run, at)),
        }
        drop(state);
        self.traffic.moved.notify_all();
    }
}

impl Drop for Pass {
    fn drop(&mut self) {
        self.traffic.lock().flying.retain(|f| f.run != self.run);
        self.traffic.moved.notify_all();
    }
}
