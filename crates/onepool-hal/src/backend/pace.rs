//! Points in a queue's time and waiting for them: polling for as long as earlier runs took, then sleeping.
//!
//! Being woken by the driver costs up to a hundred microseconds, which short runs feel; polling costs a core.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::backend::{DeviceError, WaitPolicy};

/// The longest that a wait polls.
const MOST: Duration = Duration::from_millis(2);
/// Polled even where runs are too long to poll for: the end may be near.
const LEAST: Duration = Duration::from_micros(50);
/// Polls between two looks at the clock.
const POLLS: u32 = 16;
/// Taken for the first run.
const FIRST: Duration = Duration::from_micros(250);

/// What the waits of one device have in common.
#[derive(Debug)]
pub(crate) struct Waiters {
    // False where the device is a processor, which needs the core, or there is one core.
    may_poll: bool,
    waiting: AtomicU32,
}

impl Waiters {
    /// `software`: the device computes on the processor.
    pub(crate) fn new(software: bool) -> Self {
        let cores = std::thread::available_parallelism().map_or(1, |cores| cores.get());
        Waiters { may_poll: !software && cores > 1, waiting: AtomicU32::new(0) }
    }

    /// Counts one more for as long as the result lives.
    fn enter(&self) -> Waiting<'_> {
        self.waiting.fetch_add(1, Ordering::Relaxed);
        Waiting(self)
    }

    /// Whether a thread may poll: no other waits too.
    fn may_poll(&self) -> bool {
        self.may_poll && self.waiting.load(Ordering::Relaxed) <= 1
    }
}

struct Waiting<'a>(&'a Waiters);

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.waiting.fetch_sub(1, Ordering::Relaxed);
    }
}

/// The points of one queue: what is submitted, what is known to be reached, and how long its waits take.
#[derive(Debug, Default)]
pub(crate) struct Points {
    // The latest point submitted; written under the queue's lock.
    submitted: AtomicU64,
    // The latest point known to be reached.
    reached: AtomicU64,
    pace: Pace,
}

impl Points {
    /// The point of the submission after those so far. Under the queue's lock.
    pub(crate) fn next(&self) -> u64 {
        self.submitted.load(Ordering::Relaxed) + 1
    }

    /// `point` is submitted. Under the queue's lock.
    pub(crate) fn submit(&self, point: u64) {
        self.submitted.store(point, Ordering::Release);
    }

    /// The latest point submitted.
    pub(crate) fn submitted(&self) -> u64 {
        self.submitted.load(Ordering::Acquire)
    }

    /// `point` is reached. Gives the latest one that is.
    pub(crate) fn reach(&self, point: u64) -> u64 {
        self.reached.fetch_max(point, Ordering::AcqRel).max(point)
    }

    /// Whether `point` is known to be reached, without asking the driver.
    pub(crate) fn is_known(&self, point: u64) -> bool {
        self.reached.load(Ordering::Acquire) >= point
    }

    /// Waits until `point` is reached, as [`Pace::wait`] does: `alive` is asked first, `poll` gives the latest point
    /// reached.
    pub(crate) fn wait(
        &self,
        point: u64,
        (waiters, policy, timeout): (&Waiters, WaitPolicy, Option<Duration>),
        alive: impl FnOnce() -> Result<(), DeviceError>,
        poll: impl Fn() -> Result<u64, DeviceError>,
        block: impl FnOnce(Option<Duration>) -> Result<bool, DeviceError>,
    ) -> Result<(), DeviceError> {
        if self.is_known(point) {
            return Ok(());
        }
        alive()?;
        if point > self.submitted() {
            // Nothing would ever reach it.
            return Err(DeviceError::Stale { object: "timepoint" });
        }
        self.pace.wait(waiters, policy, timeout, || Ok(poll()? >= point), block)
    }
}

/// How long the waits of one queue were.
#[derive(Debug)]
struct Pace {
    nanos: AtomicU64,
}

impl Default for Pace {
    fn default() -> Self {
        Pace { nanos: AtomicU64::new(FIRST.as_nanos() as u64) }
    }
}

impl Pace {
    /// Polls until `is_over`, then sleeps in `block`, which gets the time that is left, `None` without a limit, and tells
    /// whether it was over in time.
    fn wait(
        &self,
        waiters: &Waiters,
        policy: WaitPolicy,
        timeout: Option<Duration>,
        is_over: impl Fn() -> Result<bool, DeviceError>,
        block: impl FnOnce(Option<Duration>) -> Result<bool, DeviceError>,
    ) -> Result<(), DeviceError> {
        let start = Instant::now();
        let _waiting = waiters.enter();
        let left = || timeout.map(|timeout| timeout.saturating_sub(start.elapsed()));
        let over = match self.poll(waiters, policy, start, left, is_over)? {
            Some(over) => over,
            None => block(left())?,
        };
        self.took(start.elapsed());
        match timeout {
            Some(timeout) if !over => {
                Err(DeviceError::Timeout { millis: u64::try_from(timeout.as_millis()).unwrap_or(u64::MAX) })
            }
            _ => Ok(()),
        }
    }

    /// Whether it was over in time; `None` where it is time to sleep.
    fn poll(
        &self,
        waiters: &Waiters,
        policy: WaitPolicy,
        start: Instant,
        left: impl Fn() -> Option<Duration>,
        is_over: impl Fn() -> Result<bool, DeviceError>,
    ) -> Result<Option<bool>, DeviceError> {
        let polling = self.polling(policy, waiters);
        let polls = if polling == Some(Duration::ZERO) { 1 } else { POLLS };
        loop {
            for _ in 0..polls {
                if is_over()? {
                    return Ok(Some(true));
                }
                std::hint::spin_loop();
            }
            if left() == Some(Duration::ZERO) {
                return Ok(Some(false));
            }
            let crowded = policy == WaitPolicy::Adaptive && !waiters.may_poll();
            if crowded || polling.is_some_and(|polling| start.elapsed() >= polling) {
                return Ok(None);
            }
            // Someone may need the processor that this thread spins on.
            std::thread::yield_now();
        }
    }

    /// How long a wait may poll; `None` is without end.
    fn polling(&self, policy: WaitPolicy, waiters: &Waiters) -> Option<Duration> {
        match policy {
            WaitPolicy::Block => Some(Duration::ZERO),
            WaitPolicy::Spin => None,
            WaitPolicy::SpinThenBlock { micros } => Some(Duration::from_micros(micros.into())),
            WaitPolicy::Adaptive if !waiters.may_poll() => Some(Duration::ZERO),
            WaitPolicy::Adaptive => {
                let typical = Duration::from_nanos(self.nanos.load(Ordering::Relaxed));
                Some(if typical > MOST { LEAST } else { (2 * typical + LEAST).min(MOST) })
            }
        }
    }

    /// A wait took so long. Longer ones count at once, shorter ones little by little.
    fn took(&self, time: Duration) {
        let nanos = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        let before = self.nanos.load(Ordering::Relaxed);
        self.nanos.store(nanos.max(before - before / 8), Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MICROS: fn(u64) -> Duration = Duration::from_micros;

    #[test]
    fn a_point_is_waited_for_once_it_is_submitted() {
        let waiters = Waiters { may_poll: true, waiting: AtomicU32::new(0) };
        let how = (&waiters, WaitPolicy::Block, None);
        let points = Points::default();
        let wait = |point, alive: Result<(), DeviceError>, poll: u64| {
            points.wait(point, how, || alive, || Ok(points.reach(poll)), |_| Ok(true))
        };
        let stale = DeviceError::Stale { object: "timepoint" };
        assert_eq!(wait(1, Ok(()), 0), Err(stale));
        assert_eq!(points.next(), 1);
        points.submit(1);
        let lost = DeviceError::Lost { detail: "gone".to_owned() };
        assert_eq!(wait(1, Err(lost.clone()), 0), Err(lost.clone()));
        assert_eq!(wait(1, Ok(()), 1), Ok(()));
        // What is reached stays so, also on a device that is lost.
        assert!(points.is_known(1) && !points.is_known(2));
        assert_eq!(wait(1, Err(lost), 0), Ok(()));
        assert_eq!((points.reach(0), points.submitted()), (1, 1));
    }

    #[test]
    fn polling_follows_the_runs_and_is_bounded() {
        let waiters = Waiters { may_poll: true, waiting: AtomicU32::new(0) };
        let pace = Pace::default();
        let polling = |pace: &Pace| pace.polling(WaitPolicy::Adaptive, &waiters);
        assert_eq!(polling(&pace), Some(MICROS(550)));
        pace.took(MICROS(800));
        assert_eq!(polling(&pace), Some(MICROS(1650)));
        pace.took(MICROS(1500));
        assert_eq!(polling(&pace), Some(MOST));
        // Too long to poll for.
        pace.took(MICROS(9000));
        assert_eq!(polling(&pace), Some(LEAST));
        for _ in 0..40 {
            pace.took(MICROS(20));
        }
        assert!(polling(&pace) < Some(MICROS(300)), "{:?}", polling(&pace));
        for _ in 0..100 {
            pace.took(MICROS(20));
        }
        assert_eq!(polling(&pace), Some(MICROS(90)));
    }

    #[test]
    fn no_one_polls_in_parallel_with_others_or_on_the_devices_core() {
        let waiters = Waiters { may_poll: true, waiting: AtomicU32::new(0) };
        let pace = Pace::default();
        let one = waiters.enter();
        assert!(pace.polling(WaitPolicy::Adaptive, &waiters) > Some(Duration::ZERO));
        let two = waiters.enter();
        assert_eq!(pace.polling(WaitPolicy::Adaptive, &waiters), Some(Duration::ZERO));
        assert_eq!(pace.polling(WaitPolicy::Spin, &waiters), None);
        drop(two);
        assert!(waiters.may_poll());
        drop(one);
        let software = Waiters::new(true);
        assert_eq!(pace.polling(WaitPolicy::Adaptive, &software), Some(Duration::ZERO));
        assert_eq!(pace.polling(WaitPolicy::SpinThenBlock { micros: 7 }, &software), Some(MICROS(7)));
    }
}
