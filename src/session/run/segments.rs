//! Runs the segments of a plan: each starts as soon as those that it waits for are over, so that devices work at
//! the same time.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::backend::DeviceError;
use crate::device::{self, Buffer, Event, Prepared, Submission};
use crate::memory::range::ByteRange;
use crate::session::core::cancel::{Progress, Watch};
use crate::session::core::device::Device;
use crate::session::core::pieces::{Cut, Schedule, nanos};
use crate::session::core::queue::Pass;
use crate::session::error::Error;

/// How long one of several events is waited for before the others are looked at.
const SHORTEST_LOOK: Duration = Duration::from_micros(20);
const LONGEST_LOOK: Duration = Duration::from_micros(500);

/// Pieces of one segment that a device is given at a time: it has work while the host sees that one is over.
const AHEAD: usize = 2;

/// One segment made ready.
#[derive(Clone, Debug)]
pub(in crate::session) struct Leg {
    /// The device it runs on.
    pub(in crate::session) device: u32,
    /// Legs of other lanes that must be over before.
    pub(in crate::session) waits: Vec<u32>,
    /// What it does.
    pub(in crate::session) work: LegWork,
    /// Bytes of the process in bound memory that it touches, and whether it writes them.
    pub(in crate::session) spans: Vec<(ByteRange, bool)>,
    /// How many nodes it has.
    pub(in crate::session) nodes: usize,
    /// Its pieces, where the device's submissions have a limit.
    pub(in crate::session) cut: Option<Arc<Cut>>,
}

/// What a leg does.
#[derive(Clone, Debug)]
pub(in crate::session) enum LegWork {
    /// Commands on the device's queue.
    Commands(Prepared),
    /// Copies that the session makes.
    Moves(Vec<Move>),
}

/// A leg that was begun.
#[derive(Debug)]
pub(in crate::session) enum Begun {
    /// It is over already.
    Over,
    /// Pieces that are to be submitted.
    Pieces(Submission),
}

/// A copy from memory of one device to memory of another that cannot use it in place.
#[derive(Clone, Debug)]
pub(in crate::session) struct Move {
    pub(in crate::session) from: u32,
    pub(in crate::session) src: Buffer,
    pub(in crate::session) to: u32,
    pub(in crate::session) dst: Buffer,
}

impl Move {
    fn run(&self, devices: &[Device]) -> Result<(), Error> {
        let (from, to) = (&devices[self.from as usize], &devices[self.to as usize]);
        if self.src.host_address().is_some() && self.src.info().cached {
            let bytes = self.src.map_read()?;
            return Ok(to.write(&self.dst, &bytes)?);
        }
        let mut bytes = vec![0u8; usize::try_from(self.src.bytes()).unwrap_or(usize::MAX)];
        from.read(&self.src, &mut bytes)?;
        Ok(to.write(&self.dst, &bytes)?)
    }
}

impl Leg {
    /// What it follows others in: a device's queue, or the session's copies to it.
    fn lane(&self) -> (bool, u32) {
        (matches!(self.work, LegWork::Commands(_)), self.device)
    }

    /// Whether it is one submission, or none.
    pub(in crate::session) fn is_single(&self) -> bool {
        self.cut.as_ref().is_none_or(|cut| cut.pieces.len() <= 1)
    }

    /// Begins it, and waits where it is no submission.
    pub(in crate::session) fn begin(&self, devices: &[Device]) -> Result<Begun, Error> {
        match &self.work {
            LegWork::Commands(prepared) => {
                Ok(Begun::Pieces(devices[self.device as usize].queue.begin(prepared)?))
            }
            LegWork::Moves(moves) => {
                moves.iter().try_for_each(|m| m.run(devices))?;
                Ok(Begun::Over)
            }
        }
    }

    /// Nodes that are over once so many pieces are.
    fn nodes_done(&self, pieces: usize) -> usize {
        let cut = self.cut.as_ref().map_or(&[][..], |cut| &cut.pieces);
        pieces.checked_sub(1).and_then(|last| cut.get(last)).map_or(0, |piece| piece.nodes_done)
    }

    /// Takes in how long it took.
    pub(in crate::session) fn learn(&self, course: &Course, schedule: &Schedule, devices: &[Device]) {
        let Some(cut) = self.cut.as_deref() else { return };
        let longest = course.walls.iter().copied().max().unwrap_or(0);
        if course.events.len() != cut.pieces.len() || !schedule.is_curious(cut, longest) {
            return;
        }
        let clock = devices[self.device as usize].context.info().timestamp_ns > 0.0;
        if self.is_single() && !cut.timed {
            return schedule.seemed(cut, Duration::from_nanos(longest), clock);
        }
        let by_clock = |event: &Event| {
            // Times are a help, never a reason to fail.
            let ticks = event.timestamps().ok()?;
            Some(ticks.last()?.saturating_sub(*ticks.first()?))
        };
        let times = course.events.iter().zip(&course.walls).map(|(event, wall)| match cut.timed {
            true => by_clock(event).or(Some(*wall)),
            false => Some(*wall),
        });
        schedule.took(cut, &times.collect::<Vec<_>>());
    }
}

/// How one leg of a run went.
#[derive(Clone, Debug, Default)]
pub(in crate::session) struct Course {
    /// When it was begun, and when it was known to be over.
    pub(in crate::session) times: Option<(Instant, Instant)>,
    /// One for each piece.
    pub(in crate::session) events: Vec<Event>,
    /// Nanoseconds of each piece by the host's clock, from the end of the one before or its own submission.
    pub(in crate::session) walls: Vec<u64>,
}

/// Starts all `legs`, each by `begin` as soon as those that it waits for are over and `pass` lets it, and waits for all
/// of them, after an error too.
///
/// # Errors
/// The first one, and that of `watch`.
pub(in crate::session) fn drive(
    legs: &[Leg],
    pass: &Pass,
    watch: &Watch,
    relieve: &dyn Fn(),
    mut begin: impl FnMut(usize) -> Result<Begun, Error>,
) -> Result<Vec<Course>, Error> {
    let mut run = Run {
        legs,
        relieve,
        going: legs.iter().map(|_| None).collect(),
        over: vec![false; legs.len()],
        courses: vec![Course::default(); legs.len()],
        error: None,
    };
    let mut lanes: BTreeMap<(bool, u32), VecDeque<usize>> = BTreeMap::new();
    for (s, leg) in legs.iter().enumerate() {
        lanes.entry(leg.lane()).or_default().push_back(s);
    }
    while run.error.is_none() && lanes.values().any(|queue| !queue.is_empty()) {
        let mut moved = false;
        for queue in lanes.values_mut() {
            while let Some(&s) = queue.front()
                && run.error.is_none()
            {
                if run.going[s].is_none() {
                    if !legs[s].waits.iter().all(|p| run.over[*p as usize]) || run.must_wait(s) {
                        break;
                    }
                    run.begin(s, pass, watch, &mut begin);
                    moved = true;
                }
                moved |= run.submit(s, pass, watch);
                if run.error.is_none() && !run.is_submitted(s) {
                    break;
                }
                queue.pop_front();
            }
        }
        if !moved {
            let fronts = lanes.values().filter_map(VecDeque::front);
            let waited = fronts.flat_map(|&s| match run.going[s] {
                Some(_) => vec![s],
                None => legs[s].waits.iter().map(|p| *p as usize).collect(),
            });
            let waited: BTreeSet<usize> = waited.filter(|p| !run.over[*p]).collect();
            run.wait_for_one(&waited);
        }
    }
    run.wait();
    run.error.map_or(Ok(run.courses), Err)
}

/// A run of legs.
struct Run<'a> {
    legs: &'a [Leg],
    relieve: &'a dyn Fn(),
    /// Those that were begun and are not known to be over.
    going: Vec<Option<Going>>,
    over: Vec<bool>,
    courses: Vec<Course>,
    error: Option<Error>,
}

/// A leg of which pieces are submitted.
struct Going {
    /// `None` once every piece is.
    submission: Option<Submission>,
    /// Those that are not known to be over, and when each was submitted.
    flying: VecDeque<(Event, Instant)>,
    /// When the piece before was known to be over.
    free: Instant,
}

impl Going {
    fn has_room(&self) -> bool {
        self.submission.is_some() && self.flying.len() < AHEAD
    }

    fn submit_next(&mut self) -> Result<Event, Error> {
        let submission = self.submission.as_mut().ok_or(DeviceError::Stale { object: "submission" })?;
        let event = submission.submit_next()?;
        if submission.is_whole() {
            self.submission = None;
        }
        self.flying.push_back((event.clone(), Instant::now()));
        Ok(event)
    }
}

impl Run<'_> {
    fn begin(
        &mut self,
        s: usize,
        pass: &Pass,
        watch: &Watch,
        begin: &mut impl FnMut(usize) -> Result<Begun, Error>,
    ) {
        if let Err(e) = watch.check(|| self.progress()) {
            self.error.get_or_insert(e);
            return;
        }
        let now = Instant::now();
        self.courses[s].times = Some((now, now));
        pass.clear_way(&self.legs[s]);
        match begin(s) {
            Ok(Begun::Over) => {
                pass.started(s, None);
                self.settle(s);
            }
            Ok(Begun::Pieces(submission)) => {
                let flying = VecDeque::with_capacity(AHEAD);
                self.going[s] = Some(Going { submission: Some(submission), flying, free: now });
            }
            Err(e) => drop(self.error.get_or_insert(e)),
        }
    }

    /// Submits as many pieces of a leg as may be. Says whether there were any.
    fn submit(&mut self, s: usize, pass: &Pass, watch: &Watch) -> bool {
        let mut moved = false;
        while self.going[s].as_ref().is_some_and(Going::has_room) {
            // Before the first piece was looked already.
            if !self.courses[s].events.is_empty()
                && let Err(e) = watch.check(|| self.progress())
            {
                self.error.get_or_insert(e);
                break;
            }
            let Some(going) = &mut self.going[s] else { break };
            let mut submitted = going.submit_next();
            if matches!(&submitted, Err(e) if e.is_out_of_memory()) {
                (self.relieve)();
                submitted = going.submit_next();
            }
            match submitted {
                Ok(event) => {
                    if going.submission.is_none() {
                        pass.started(s, Some(&event));
                    }
                    self.courses[s].events.push(event);
                    moved = true;
                }
                Err(e) => {
                    self.error.get_or_insert(e);
                    break;
                }
            }
        }
        moved
    }

    /// Copies of the session's wait for others that may wait for the rest of a recording.
    fn must_wait(&self, s: usize) -> bool {
        let open = |going: &Going| going.submission.is_some();
        matches!(self.legs[s].work, LegWork::Moves(_)) && self.going.iter().flatten().any(open)
    }

    /// Whether all of a leg is submitted or over.
    fn is_submitted(&self, s: usize) -> bool {
        self.going[s].as_ref().is_none_or(|going| going.submission.is_none())
    }

    fn progress(&self) -> Progress {
        let done = self.legs.iter().enumerate().map(|(s, leg)| match self.over[s] {
            true => leg.nodes,
            false => leg.nodes_done(self.courses[s].walls.len()),
        });
        Progress { done: done.sum(), of: self.legs.iter().map(|leg| leg.nodes).sum(), turns: Vec::new() }
    }

    /// Waits for everything that was submitted. The first error is kept.
    fn wait(&mut self) {
        loop {
            let flying = |s: &usize| self.going[*s].as_ref().is_some_and(|going| !going.flying.is_empty());
            let open: BTreeSet<usize> = (0..self.going.len()).filter(flying).collect();
            if open.is_empty() {
                return;
            }
            self.wait_for_one(&open);
        }
    }

    fn settle(&mut self, s: usize) {
        (self.going[s], self.over[s]) = (None, true);
        if let Some(times) = &mut self.courses[s].times {
            times.1 = Instant::now();
        }
    }

    /// The oldest piece of leg `s` is over.
    fn landed(&mut self, s: usize, result: Result<(), device::Error>) {
        let Some(going) = &mut self.going[s] else { return };
        if let Some((_, submitted)) = going.flying.pop_front() {
            let now = Instant::now();
            let wall = now.saturating_duration_since(submitted.max(going.free));
            going.free = now;
            self.courses[s].walls.push(nanos(wall));
        }
        if going.flying.is_empty() && going.submission.is_none() {
            self.settle(s);
        }
        if let Err(e) = result {
            self.error.get_or_insert(e.into());
        }
    }

    /// Waits until the oldest piece of one of the legs `open` is over.
    fn wait_for_one(&mut self, open: &BTreeSet<usize>) {
        let oldest = |s: &usize| Some((*s, self.going[*s].as_ref()?.flying.front()?.0.clone()));
        let events: Vec<(usize, Event)> = open.iter().filter_map(oldest).collect();
        if let [(s, event)] = &events[..] {
            return self.landed(*s, event.wait());
        }
        let mut look = SHORTEST_LOOK;
        for turn in 0.. {
            let mut any = false;
            for (s, event) in &events {
                match event.is_done() {
                    Ok(false) => {}
                    // The wait tells what went wrong in it.
                    Ok(true) | Err(_) => {
                        self.landed(*s, event.wait());
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
                result => return self.landed(*s, result),
            }
        }
    }
}
