//! Runs the segments of a plan: each starts as soon as those that it waits for are over, so that devices work at
//! the same time.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::{Duration, Instant};

use super::device::Device;
use super::error::Error;
use super::traffic::Pass;
use crate::backend::DeviceError;
use crate::device::{self, Buffer, Event, Prepared};
use crate::memory::range::ByteRange;

/// How long one of several events is waited for before the others are looked at.
const SHORTEST_LOOK: Duration = Duration::from_micros(20);
const LONGEST_LOOK: Duration = Duration::from_micros(500);

/// One segment made ready.
#[derive(Clone, Debug)]
pub(super) struct Leg {
    /// The device it runs on.
    pub(super) device: u32,
    /// Legs of other lanes that must be over before.
    pub(super) waits: Vec<u32>,
    /// What it does.
    pub(super) work: LegWork,
    /// Bytes of the process in bound memory that it touches, and whether it writes them.
    pub(super) spans: Vec<(ByteRange, bool)>,
}

/// What a leg does.
#[derive(Clone, Debug)]
pub(super) enum LegWork {
    /// Commands on the device's queue.
    Commands(Prepared),
    /// Copies that the session makes.
    Moves(Vec<Move>),
}

/// A copy from memory of one device to memory of another that cannot use it in place.
#[derive(Clone, Debug)]
pub(super) struct Move {
    pub(super) from: u32,
    pub(super) src: Buffer,
    pub(super) to: u32,
    pub(super) dst: Buffer,
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

    /// Starts it, and waits where it is no submission.
    pub(super) fn start(&self, devices: &[Device]) -> Result<Option<Event>, Error> {
        match &self.work {
            LegWork::Commands(prepared) => {
                let queue = &devices[self.device as usize].queue;
                Ok(Some(queue.submit_prepared(prepared)?))
            }
            LegWork::Moves(moves) => {
                moves.iter().try_for_each(|m| m.run(devices))?;
                Ok(None)
            }
        }
    }
}

/// When each leg of a run was started, and when it was known to be over.
pub(super) type Times = Vec<Option<(Instant, Instant)>>;

/// Starts all `legs`, each by `start` as soon as those that it waits for are over and `pass` lets it, and waits for all
/// of them, after an error too.
///
/// # Errors
/// The first one.
pub(super) fn drive(
    legs: &[Leg],
    pass: &Pass,
    mut start: impl FnMut(usize) -> Result<Option<Event>, Error>,
) -> Result<Times, Error> {
    let mut run = Run {
        events: vec![None; legs.len()],
        over: vec![false; legs.len()],
        times: vec![None; legs.len()],
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
                && legs[s].waits.iter().all(|p| run.over[*p as usize])
            {
                queue.pop_front();
                moved = true;
                let now = Instant::now();
                run.times[s] = Some((now, now));
                pass.clear_way(&legs[s]);
                match start(s) {
                    Ok(event) => {
                        pass.started(s, event.as_ref());
                        match event {
                            Some(event) => run.events[s] = Some(event),
                            None => run.settle(s, Ok(())),
                        }
                    }
                    Err(e) => run.settle(s, Err(e)),
                }
            }
        }
        if !moved {
            let fronts = lanes.values().filter_map(VecDeque::front);
            let waited = fronts.flat_map(|&s| legs[s].waits.iter().map(|p| *p as usize));
            let waited: BTreeSet<usize> = waited.filter(|p| !run.over[*p]).collect();
            run.wait_for_one(&waited);
        }
    }
    run.wait();
    run.error.map_or(Ok(run.times), Err)
}

/// A run of legs: which were started, and when they were seen to be over.
#[derive(Debug)]
struct Run {
    /// The event of each leg that was submitted and is not known to be over.
    events: Vec<Option<Event>>,
    over: Vec<bool>,
    times: Times,
    error: Option<Error>,
}

impl Run {
    /// Waits for everything that was started. The first error is kept.
    fn wait(&mut self) {
        loop {
            let open: BTreeSet<usize> =
                (0..self.events.len()).filter(|s| self.events[*s].is_some()).collect();
            if open.is_empty() {
                return;
            }
            self.wait_for_one(&open);
        }
    }

    fn settle(&mut self, s: usize, result: Result<(), Error>) {
        (self.events[s], self.over[s]) = (None, true);
        if let Some(times) = &mut self.times[s] {
            times.1 = Instant::now();
        }
        if let Err(e) = result {
            self.error.get_or_insert(e);
        }
    }

    /// Waits until one of the legs `open` is over.
    fn wait_for_one(&mut self, open: &BTreeSet<usize>) {
        let events: Vec<(usize, Event)> =
            open.iter().filter_map(|&s| Some((s, self.events[s].clone()?))).collect();
        if let [(s, event)] = &events[..] {
            return self.settle(*s, event.wait().map_err(Error::from));
        }
        let mut look = SHORTEST_LOOK;
        for turn in 0.. {
            let mut any = false;
            for (s, event) in &events {
                match event.is_done() {
                    Ok(false) => {}
                    // The wait tells what went wrong in it.
                    Ok(true) | Err(_) => {
                        self.settle(*s, event.wait().map_err(Error::from));
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
                result => return self.settle(*s, result.map_err(Error::from)),
            }
        }
    }
}
