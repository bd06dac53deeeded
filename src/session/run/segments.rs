//! Runs the segments of a plan, each after those it depends on, so that devices work in parallel.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::{Duration, Instant};

use super::reads::Reads;
use crate::backend::DeviceError;
use crate::device::{self, Event, Submission};
use crate::session::bind::launch::{LaunchWork, SegmentLaunch, SegmentTrace, Started};
use crate::session::core::cancel::Watch;
use crate::session::core::pieces::nanos;
use crate::session::core::queue::Ticket;
use crate::session::error::{Error, Progress};

/// The wait for one of several events before the others are polled: doubles from the shortest to the longest.
const SHORTEST_LOOK: Duration = Duration::from_micros(20);
const LONGEST_LOOK: Duration = Duration::from_micros(500);

/// Maximum number of submitted pieces of one segment, so that the device has work while the host waits for one.
const AHEAD: usize = 2;

/// Starts each launch by `begin` after those it depends on and once `ticket` has no conflict, and waits for all
/// launches, even after an error.
pub(in crate::session) fn run_segments(
    launches: &[SegmentLaunch],
    ticket: &Ticket,
    (watch, reads): (&Watch, &Reads),
    free_memory: &dyn Fn(),
    mut begin: impl FnMut(usize) -> Result<Started, Error>,
) -> Result<Vec<SegmentTrace>, Error> {
    let mut run = SegmentRun {
        launches,
        reads,
        free_memory,
        launched: launches.iter().map(|_| None).collect(),
        over: vec![false; launches.len()],
        traces: vec![SegmentTrace::default(); launches.len()],
        error: None,
    };
    let mut lanes: BTreeMap<(bool, u32), VecDeque<usize>> = BTreeMap::new();
    for (s, launch) in launches.iter().enumerate() {
        lanes.entry(launch.lane()).or_default().push_back(s);
    }
    while run.error.is_none() && lanes.values().any(|queue| !queue.is_empty()) {
        let mut progressed = false;
        for queue in lanes.values_mut() {
            while let Some(&s) = queue.front()
                && run.error.is_none()
            {
                if run.launched[s].is_none() {
                    if !launches[s].waits.iter().all(|p| run.over[*p as usize]) || run.must_wait(s) {
                        break;
                    }
                    run.begin(s, ticket, watch, &mut begin);
                    progressed = true;
                }
                progressed |= run.submit(s, ticket, watch);
                if run.error.is_none() && !run.is_submitted(s) {
                    break;
                }
                queue.pop_front();
            }
        }
        if !progressed {
            let fronts = lanes.values().filter_map(VecDeque::front);
            let waited = fronts.flat_map(|&s| match run.launched[s] {
                Some(_) => vec![s],
                None => launches[s].waits.iter().map(|p| *p as usize).collect(),
            });
            let waited: BTreeSet<usize> = waited.filter(|p| !run.over[*p]).collect();
            run.wait_for_one(&waited);
        }
    }
    run.wait();
    run.error.map_or(Ok(run.traces), Err)
}

/// A run of launches.
struct SegmentRun<'a> {
    launches: &'a [SegmentLaunch],
    reads: &'a Reads,
    free_memory: &'a dyn Fn(),
    /// Started launches that may be unfinished.
    launched: Vec<Option<PartialLaunch>>,
    over: Vec<bool>,
    traces: Vec<SegmentTrace>,
    error: Option<Error>,
}

/// A started launch.
struct PartialLaunch {
    /// `None` once every piece is submitted.
    submission: Option<Submission>,
    /// Submitted pieces that may be unfinished, with the time of their submission.
    in_flight: VecDeque<(Event, Instant)>,
    /// When the host saw the end of the previous piece.
    previous_end: Instant,
}

impl PartialLaunch {
    fn has_room(&self) -> bool {
        self.submission.is_some() && self.in_flight.len() < AHEAD
    }

    fn submit_next(&mut self) -> Result<Event, Error> {
        let submission = self.submission.as_mut().ok_or(DeviceError::Stale { object: "submission" })?;
        let event = submission.submit_next()?;
        if submission.is_whole() {
            self.submission = None;
        }
        self.in_flight.push_back((event.clone(), Instant::now()));
        Ok(event)
    }
}

impl SegmentRun<'_> {
    fn begin(
        &mut self,
        s: usize,
        ticket: &Ticket,
        watch: &Watch,
        begin: &mut impl FnMut(usize) -> Result<Started, Error>,
    ) {
        if let Err(e) = watch.check(|| self.progress()) {
            self.error.get_or_insert(e);
            return;
        }
        let now = Instant::now();
        self.traces[s].times = Some((now, now));
        ticket.wait_for_conflicts(&self.launches[s].footprint);
        match begin(s) {
            Ok(Started::Done) => {
                ticket.started(s, None);
                self.finish(s);
            }
            Ok(Started::Pieces(submission)) => {
                let in_flight = VecDeque::with_capacity(AHEAD);
                self.launched[s] =
                    Some(PartialLaunch { submission: Some(submission), in_flight, previous_end: now });
            }
            Err(e) => drop(self.error.get_or_insert(e)),
        }
    }

    /// Submits up to [`AHEAD`] pieces of a launch. Returns whether it submitted any.
    fn submit(&mut self, s: usize, ticket: &Ticket, watch: &Watch) -> bool {
        let mut progressed = false;
        while self.launched[s].as_ref().is_some_and(PartialLaunch::has_room) {
            // `begin` has checked before the first piece.
            if !self.traces[s].events.is_empty()
                && let Err(e) = watch.check(|| self.progress())
            {
                self.error.get_or_insert(e);
                break;
            }
            let Some(launched) = &mut self.launched[s] else { break };
            let mut submitted = launched.submit_next();
            if matches!(&submitted, Err(e) if e.is_out_of_memory()) {
                (self.free_memory)();
                submitted = launched.submit_next();
            }
            match submitted {
                Ok(event) => {
                    if launched.submission.is_none() {
                        ticket.started(s, Some(&event));
                    }
                    self.traces[s].events.push(event);
                    progressed = true;
                }
                Err(e) => {
                    self.error.get_or_insert(e);
                    break;
                }
            }
        }
        progressed
    }

    /// Copies by the session block, so they wait until no launch has pieces to submit.
    fn must_wait(&self, s: usize) -> bool {
        let open = |launched: &PartialLaunch| launched.submission.is_some();
        matches!(self.launches[s].work, LaunchWork::Moves(_)) && self.launched.iter().flatten().any(open)
    }

    /// Whether all of a launch is submitted or over.
    fn is_submitted(&self, s: usize) -> bool {
        self.launched[s].as_ref().is_none_or(|launched| launched.submission.is_none())
    }

    fn progress(&self) -> Progress {
        let done = self.launches.iter().enumerate().map(|(s, launch)| match self.over[s] {
            true => launch.nodes,
            false => launch.nodes_done(self.traces[s].walls.len()),
        });
        Progress {
            done: done.sum(),
            of: self.launches.iter().map(|launch| launch.nodes).sum(),
            iterations: Vec::new(),
        }
    }

    /// Waits for every submitted piece and keeps the first error.
    fn wait(&mut self) {
        loop {
            let in_flight =
                |s: &usize| self.launched[*s].as_ref().is_some_and(|launched| !launched.in_flight.is_empty());
            let open: BTreeSet<usize> = (0..self.launched.len()).filter(in_flight).collect();
            if open.is_empty() {
                return;
            }
            self.wait_for_one(&open);
        }
    }

    fn finish(&mut self, s: usize) {
        (self.launched[s], self.over[s]) = (None, true);
        if let Some(times) = &mut self.traces[s].times {
            times.1 = Instant::now();
        }
        self.reads.launch_over(s);
    }

    /// Records the end of the oldest piece of launch `s`.
    fn piece_is_over(&mut self, s: usize, result: Result<(), device::Error>) {
        let Some(launched) = &mut self.launched[s] else { return };
        if let Some((_, submitted)) = launched.in_flight.pop_front() {
            let now = Instant::now();
            let wall = now.saturating_duration_since(submitted.max(launched.previous_end));
            launched.previous_end = now;
            self.traces[s].walls.push(nanos(wall));
        }
        if launched.in_flight.is_empty() && launched.submission.is_none() {
            self.finish(s);
        }
        if let Err(e) = result {
            self.error.get_or_insert(e.into());
        }
    }

    /// Waits until the oldest piece of one of the launches `open` is over.
    fn wait_for_one(&mut self, open: &BTreeSet<usize>) {
        let oldest = |s: &usize| Some((*s, self.launched[*s].as_ref()?.in_flight.front()?.0.clone()));
        let events: Vec<(usize, Event)> = open.iter().filter_map(oldest).collect();
        if let [(s, event)] = &events[..] {
            return self.piece_is_over(*s, event.wait());
        }
        let mut look = SHORTEST_LOOK;
        for turn in 0.. {
            let mut any = false;
            for (s, event) in &events {
                match event.is_done() {
                    Ok(false) => {}
                    // `wait` returns its error.
                    Ok(true) | Err(_) => {
                        self.piece_is_over(*s, event.wait());
                        any = true;
                    }
                }
            }
            let Some((s, event)) = (!any).then(|| events.get(turn % events.len().max(1))).flatten() else {
                return;
            };
            match event.wait_timeout(look) {
                Err(device::Error::Device(DeviceError::Timeout { .. })) => {
                    look = (look * 2).min(LONGEST_LOOK)
                }
                result => return self.piece_is_over(*s, result),
            }
        }
    }
}
