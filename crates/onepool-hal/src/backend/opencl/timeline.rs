//! Points in a queue's time: the events of its submissions, counted.

use std::collections::VecDeque;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use super::command::{Enqueued, Stamp};
use super::device::Device;
use super::handle::Event;
use crate::backend::pace::Points;
use crate::backend::{DeviceError, WaitPolicy};
use onepool_core::sync::lock;

/// How many finished submissions keep their times.
const KEPT: usize = 64;
/// The longest sleep between two looks at an event, which cannot be waited for with a limit.
const LONGEST_SLEEP: Duration = Duration::from_millis(1);

/// The points of one queue.
#[derive(Debug, Default)]
pub(super) struct Timeline {
    state: Mutex<State>,
    points: Points,
}

#[derive(Debug, Default)]
struct State {
    // In order of their points.
    pending: VecDeque<Pending>,
    times: VecDeque<(u64, Vec<u64>)>,
}

#[derive(Debug)]
struct Pending {
    point: u64,
    /// `None`: nothing was enqueued.
    event: Option<Event>,
    stamps: Vec<Stamp>,
}

impl Timeline {
    /// Counts what was enqueued after everything before it. Under the queue's lock.
    pub(super) fn push(&self, enqueued: Enqueued) -> u64 {
        let mut state = lock(&self.state);
        let point = self.points.next();
        state.pending.push_back(Pending { point, event: enqueued.last, stamps: enqueued.stamps });
        self.points.submit(point);
        point
    }

    /// The latest point submitted.
    pub(super) fn submitted(&self) -> u64 {
        self.points.submitted()
    }

    /// The latest point reached.
    pub(super) fn poll(&self, device: &Device) -> Result<u64, DeviceError> {
        let mut state = lock(&self.state);
        let mut now = 0;
        while let Some(first) = state.pending.front() {
            let done = first.event.as_ref().map_or(Ok(true), Event::is_done);
            if !done.map_err(|error| device.note(error))? {
                break;
            }
            now = first.point;
            let times: Vec<u64> = first.stamps.iter().map_while(Stamp::nanos).collect();
            // Every time or none: a driver may have none for some kind of command.
            let whole = times.len() == first.stamps.len() && !times.is_empty();
            state.pending.pop_front();
            if whole {
                if state.times.len() == KEPT {
                    state.times.pop_front();
                }
                state.times.push_back((now, times));
            }
        }
        drop(state);
        Ok(self.points.reach(now))
    }

    /// The times of a finished submission; empty where there are none any more.
    pub(super) fn times(&self, point: u64) -> Vec<u64> {
        let state = lock(&self.state);
        state.times.iter().find(|(at, _)| *at == point).map(|(_, times)| times.clone()).unwrap_or_default()
    }

    /// Waits until `point` is reached.
    pub(super) fn wait(
        &self,
        device: &Device,
        point: u64,
        policy: WaitPolicy,
        timeout: Option<Duration>,
    ) -> Result<(), DeviceError> {
        let how = (&device.waiters, policy, timeout);
        self.points.wait(
            point,
            how,
            || device.alive(),
            || self.poll(device),
            |left| match left {
                Some(left) => self.doze(device, point, left),
                None => self.block(device, point),
            },
        )
    }

    /// Sleeps in the driver, without a limit.
    fn block(&self, device: &Device, point: u64) -> Result<bool, DeviceError> {
        while self.poll(device)? < point {
            // The newest at or before the point that has an event: an in-order queue is done with the rest too.
            let event = {
                let state = lock(&self.state);
                let upto = state.pending.iter().rev().filter(|pending| pending.point <= point);
                upto.filter_map(|pending| pending.event.clone()).next()
            };
            match event {
                Some(event) => event.wait().map_err(|error| device.note(error))?,
                // Someone else saw it.
                None => continue,
            }
        }
        Ok(true)
    }

    /// Looks again and again for at most `timeout`, less and less often.
    fn doze(&self, device: &Device, point: u64, timeout: Duration) -> Result<bool, DeviceError> {
        let start = Instant::now();
        let mut sleep = Duration::from_micros(20);
        loop {
            if self.poll(device)? >= point {
                return Ok(true);
            }
            let left = timeout.saturating_sub(start.elapsed());
            if left.is_zero() {
                return Ok(false);
            }
            std::thread::sleep(sleep.min(left));
            sleep = (2 * sleep).min(LONGEST_SLEEP);
        }
    }
}
