//! The queue: a FIFO worker and a counter.
//!
//! The worker is one thread of the queue's pool, so a kernel that uses rayon splits its work among the
//! pool's other threads with no hand-over first. Neither side goes to sleep at once: a submission that
//! follows the last within the policy's polling time wakes no one. The other threads stay awake as long as
//! the worker does: a loop of one operator is over before a sleeping thread has been woken for it. There may be
//! as many of them as processors, so each gives its processor to whoever waits as soon as a submission is over.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

use rayon::{ThreadPool, ThreadPoolBuilder};

use super::memory::{ArgSource, Program};
use super::tables::Tables;
use crate::backend::slots::SlotTable;
use crate::backend::{DeviceError, QueueBackend, Timepoint, WaitPolicy};
use crate::recording::{Arg, Command, Dispatch, PreparedId, Recording};
use onepool_core::memory::coherency::Access;
use onepool_core::sync::{lock, wait, wait_timeout};

/// How many finished submissions keep their error and their times.
const KEPT: usize = 256;
/// How long a waiting thread polls under [`WaitPolicy::Adaptive`]: the work runs on the same cores.
const POLLED: Duration = Duration::from_micros(50);
/// How long an idle worker polls under [`WaitPolicy::Spin`]: it must not burn a core for ever.
const LONGEST_POLL: Duration = Duration::from_millis(1);

/// How long a helping thread polls for the next loop of a submission without a break: most operators between two
/// loops take less.
const ALERT: Duration = Duration::from_micros(200);
/// After this long without work in a submission a helping thread looks for it from time to time only.
const HELPFUL: Duration = Duration::from_millis(1);
/// How often it looks then.
const GLANCE: Duration = Duration::from_micros(200);

/// An in-order queue of the CPU.
#[derive(Debug)]
pub(super) struct CpuQueue {
    tables: Arc<Tables>,
    prepared: Mutex<SlotTable<PreparedId, Arc<Program>>>,
    lane: Arc<Lane>,
    // Dropped last: its threads run the worker.
    _pool: ThreadPool,
}

/// What the queue and its worker share.
#[derive(Debug)]
struct Lane {
    policy: WaitPolicy,
    origin: Instant,
    inbox: Mutex<Inbox>,
    work: Condvar,
    /// Whether the worker runs submissions or polls for one.
    awake: AtomicBool,
    /// Whether the worker runs a submission.
    running: AtomicBool,
    /// Duration of the last submission in nanoseconds.
    took: AtomicU64,
    help: Condvar,
    submitted: AtomicU64,
    completed: AtomicU64,
    sleepers: AtomicUsize,
    history: Mutex<History>,
    reached: Condvar,
}

#[derive(Debug, Default)]
struct Inbox {
    jobs: VecDeque<(u64, Arc<Program>)>,
    worker_sleeps: bool,
    helpers_asleep: usize,
    closed: bool,
}

#[derive(Debug, Default)]
struct History {
    failures: VecDeque<Failure>,
    times: VecDeque<(u64, Vec<u64>)>,
}

#[derive(Debug)]
struct Failure {
    point: u64,
    error: DeviceError,
    reported: bool,
}

impl CpuQueue {
    pub(super) fn new(
        tables: Arc<Tables>,
        threads: usize,
        policy: WaitPolicy,
    ) -> Result<CpuQueue, DeviceError> {
        let pool = ThreadPoolBuilder::new()
            .num_threads(threads)
            .thread_name(|index| format!("onepool-cpu-{index}"))
            .build()
            .map_err(|_| DeviceError::Backend { api: "cpu", call: "start threads", code: 0 })?;
        let lane = Arc::new(Lane {
            policy,
            origin: Instant::now(),
            inbox: Mutex::default(),
            work: Condvar::new(),
            awake: AtomicBool::new(false),
            running: AtomicBool::new(false),
            took: AtomicU64::new(0),
            help: Condvar::new(),
            submitted: AtomicU64::new(0),
            completed: AtomicU64::new(0),
            sleepers: AtomicUsize::new(0),
            history: Mutex::default(),
            reached: Condvar::new(),
        });
        let worker = Arc::clone(&lane);
        pool.spawn_broadcast(move |thread| match thread.index() {
            0 => worker.work(),
            _ => worker.help(),
        });
        Ok(CpuQueue { tables, prepared: Mutex::default(), lane, _pool: pool })
    }

    fn translate(&self, recording: &Recording) -> Result<Program, DeviceError> {
        let buffers = self.tables.buffers();
        let kernels = self.tables.kernels();
        let mut program = Program::new(recording.timestamps);
        for command in &recording.commands {
            match command {
                Command::Dispatch(Dispatch { kernel, args, params, .. }) => {
                    let kernel = kernels.get(*kernel)?.clone();
                    let args = args
                        .iter()
                        .map(|arg| match arg {
                            Arg::Absent => Ok(ArgSource::Absent),
                            Arg::Buffer(range, access) | Arg::Image(range, _, access) => {
                                Ok(ArgSource::Range {
                                    block: buffers.get(range.buffer)?,
                                    offset: range.offset,
                                    bytes: range.bytes,
                                    write: access.intersects(Access::DEVICE_WRITE),
                                })
                            }
                        })
                        .collect::<Result<Vec<_>, DeviceError>>()?;
                    program.push_dispatch(kernel, &args, params)?;
                }
                Command::Copy { src, dst } => {
                    if src.bytes != dst.bytes {
                        let what = format!("a copy of {} bytes to {} bytes", src.bytes, dst.bytes);
                        return Err(DeviceError::Unsupported { what });
                    }
                    let from = (buffers.get(src.buffer)?, src.offset);
                    program.push_copy(from, (buffers.get(dst.buffer)?, dst.offset), src.bytes)?;
                }
                Command::Fill { dst, value } => {
                    program.push_fill(buffers.get(dst.buffer)?, dst.offset, dst.bytes, *value)?;
                }
                // Commands run one after the other on memory that host and device share.
                Command::Barrier(_) => {}
                Command::Timestamp { slot } => program.push_timestamp(*slot),
            }
        }
        Ok(program)
    }
}

impl QueueBackend for CpuQueue {
    fn submit(&self, recording: &Recording) -> Result<Timepoint, DeviceError> {
        self.lane.push(Arc::new(self.translate(recording)?))
    }

    fn prepare(&self, recording: &Recording) -> Result<PreparedId, DeviceError> {
        let program = Arc::new(self.translate(recording)?);
        Ok(lock(&self.prepared).insert(program))
    }

    fn submit_prepared(&self, prepared: PreparedId) -> Result<Timepoint, DeviceError> {
        let program = Arc::clone(lock(&self.prepared).get(prepared)?);
        self.lane.push(program)
    }

    fn release_prepared(&self, prepared: PreparedId) {
        // A stale handle names nothing that could be released.
        let removed = lock(&self.prepared).remove(prepared);
        drop(removed);
    }

    fn wait(&self, point: Timepoint, timeout: Option<Duration>) -> Result<(), DeviceError> {
        self.lane.wait(point.0, timeout)?;
        self.lane.outcome(point.0)
    }

    fn completed(&self) -> Result<Timepoint, DeviceError> {
        Ok(Timepoint(self.lane.completed.load(Ordering::SeqCst)))
    }

    fn timestamps(&self, point: Timepoint) -> Result<Vec<u64>, DeviceError> {
        let history = lock(&self.lane.history);
        let times = history.times.iter().find(|(at, _)| *at == point.0);
        Ok(times.map(|(_, times)| times.clone()).unwrap_or_default())
    }
}

impl Drop for CpuQueue {
    fn drop(&mut self) {
        let mut inbox = lock(&self.lane.inbox);
        inbox.closed = true;
        drop(inbox);
        self.lane.work.notify_all();
        self.lane.help.notify_all();
        // Every submission is finished before its memory may go. An error here has no one to go to.
        let _ = self.lane.wait(self.lane.submitted.load(Ordering::SeqCst), None);
    }
}

impl Lane {
    fn push(&self, program: Arc<Program>) -> Result<Timepoint, DeviceError> {
        program.check_alive()?;
        let mut inbox = lock(&self.inbox);
        let point = self.submitted.load(Ordering::SeqCst) + 1;
        inbox.jobs.push_back((point, program));
        self.submitted.store(point, Ordering::SeqCst);
        let wake = inbox.worker_sleeps;
        let helpers_sleep = wake && inbox.helpers_asleep > 0;
        if helpers_sleep {
            // They wake while the worker does, and not after it.
            self.awake.store(true, Ordering::SeqCst);
        }
        drop(inbox);
        if wake {
            self.work.notify_one();
        }
        if helpers_sleep {
            self.help.notify_all();
        }
        Ok(Timepoint(point))
    }

    /// Whether everything up to `point` has finished, found by polling as long as the policy allows.
    fn poll(&self, limit: Option<Duration>, done: impl Fn() -> bool) -> bool {
        let length = match self.policy {
            WaitPolicy::Block => Some(Duration::ZERO),
            WaitPolicy::Spin => limit,
            WaitPolicy::Adaptive => Some(limit.map_or(POLLED, |limit| limit.min(POLLED))),
            WaitPolicy::SpinThenBlock { micros } => {
                let micros = Duration::from_micros(u64::from(micros));
                Some(limit.map_or(micros, |limit| limit.min(micros)))
            }
        };
        if done() {
            return true;
        }
        let start = Instant::now();
        while length.is_none_or(|length| start.elapsed() < length) {
            for _ in 0..16 {
                if done() {
                    return true;
                }
                std::hint::spin_loop();
            }
            // The other side may be waiting for this very core.
            std::thread::yield_now();
        }
        false
    }

    fn wait(&self, point: u64, timeout: Option<Duration>) -> Result<(), DeviceError> {
        if point > self.submitted.load(Ordering::SeqCst) {
            return Err(DeviceError::Stale { object: "timepoint" });
        }
        let done = || self.completed.load(Ordering::SeqCst) >= point;
        if done() {
            return Ok(());
        }
        let deadline = timeout.map(|timeout| (Instant::now(), timeout));
        // Polling through a part of a long run takes a processor from the threads that compute it.
        let long = self.took.load(Ordering::Relaxed) > POLLED.as_nanos() as u64;
        let sleeps = self.policy == WaitPolicy::Adaptive && long;
        if !sleeps && self.poll(timeout, done) {
            return Ok(());
        }
        let mut history = lock(&self.history);
        // Counted before the counter is read again: the worker either sees a sleeper or was seen.
        self.sleepers.fetch_add(1, Ordering::SeqCst);
        let result = loop {
            if done() {
                break Ok(());
            }
            history = match deadline {
                None => wait(&self.reached, history),
                Some((start, timeout)) => {
                    let Some(left) = timeout.checked_sub(start.elapsed()).filter(|left| !left.is_zero())
                    else {
                        break Err(DeviceError::Timeout { millis: timeout.as_millis() as u64 });
                    };
                    wait_timeout(&self.reached, history, left)
                }
            };
        };
        self.sleepers.fetch_sub(1, Ordering::SeqCst);
        result
    }

    /// The error of the submission at `point`, else the oldest error before it that no one was told.
    fn outcome(&self, point: u64) -> Result<(), DeviceError> {
        let mut history = lock(&self.history);
        let failures = &mut history.failures;
        let own = failures.iter().position(|failure| failure.point == point);
        let found = own.or_else(|| failures.iter().position(|f| f.point < point && !f.reported));
        match found.and_then(|at| failures.get_mut(at)) {
            Some(failure) => {
                failure.reported = true;
                Err(failure.error.clone())
            }
            None => Ok(()),
        }
    }

    /// The worker: runs submissions in order until the queue is closed and empty.
    fn work(&self) {
        let mut times = Vec::new();
        while let Some((point, program)) = self.next() {
            let start = Instant::now();
            self.running.store(true, Ordering::Relaxed);
            let result = program.run(self.origin, &mut times);
            self.running.store(false, Ordering::Relaxed);
            self.took.store(start.elapsed().as_nanos() as u64, Ordering::Relaxed);
            if result.is_err() || program.timestamps() > 0 {
                self.remember(point, result.err(), &times);
            }
            // Gone before the waiter learns of it: the last reference frees memory.
            drop(program);
            self.completed.store(point, Ordering::SeqCst);
            if self.sleepers.load(Ordering::SeqCst) > 0 {
                // A sleeper that was counted but does not wait yet holds this lock.
                drop(lock(&self.history));
                self.reached.notify_all();
            }
        }
    }

    /// Another thread of the pool: takes parts of the worker's loops until the queue is closed.
    fn help(&self) {
        loop {
            let mut inbox = lock(&self.inbox);
            while !inbox.closed && !self.awake.load(Ordering::SeqCst) {
                inbox.helpers_asleep += 1;
                inbox = wait(&self.help, inbox);
                inbox.helpers_asleep -= 1;
            }
            if inbox.closed {
                // What is still to run gets the pool's own way of waking.
                return;
            }
            drop(inbox);
            let (mut worked, mut ran) = (Instant::now(), false);
            while self.awake.load(Ordering::SeqCst) {
                let runs = self.running.load(Ordering::Relaxed);
                let begins = runs && !ran;
                ran = runs;
                if rayon::yield_now() == Some(rayon::Yield::Executed) || begins {
                    worked = Instant::now();
                    continue;
                }
                let idle = worked.elapsed();
                if idle > HELPFUL {
                    std::thread::sleep(GLANCE);
                    continue;
                }
                (0..16).for_each(|_| std::hint::spin_loop());
                if !runs || idle > ALERT {
                    // Who waits for the result may need this very core.
                    std::thread::yield_now();
                }
            }
        }
    }

    fn remember(&self, point: u64, error: Option<DeviceError>, times: &[u64]) {
        let mut history = lock(&self.history);
        match error {
            Some(error) => {
                if history.failures.len() == KEPT {
                    history.failures.pop_front();
                }
                history.failures.push_back(Failure { point, error, reported: false });
            }
            None => {
                if history.times.len() == KEPT {
                    history.times.pop_front();
                }
                history.times.push_back((point, times.to_vec()));
            }
        }
    }

    fn next(&self) -> Option<(u64, Arc<Program>)> {
        let seen = self.completed.load(Ordering::SeqCst);
        self.poll(Some(LONGEST_POLL), || self.submitted.load(Ordering::SeqCst) > seen);
        let mut inbox = lock(&self.inbox);
        loop {
            if let Some(job) = inbox.jobs.pop_front() {
                self.awake.store(true, Ordering::SeqCst);
                if inbox.helpers_asleep > 0 {
                    self.help.notify_all();
                }
                return Some(job);
            }
            self.awake.store(false, Ordering::SeqCst);
            if inbox.closed {
                return None;
            }
            inbox.worker_sleeps = true;
            inbox = wait(&self.work, inbox);
            inbox.worker_sleeps = false;
        }
    }
}
