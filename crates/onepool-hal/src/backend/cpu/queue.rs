//! The queue: submissions in order, and a counter.
//!
//! A submission wakes the helpers of the queue's team, which stay awake until it is over: a loop of one operator is over
//! before a sleeping thread has been woken for it. Who waits for the submission computes it with them, without another
//! thread to wake. A helper wakes the queue's worker for a submission that no one waits for, which costs it the time of
//! a second wake-up; the worker is woken at once where there is no helper, or where threads are to sleep as they wait.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::memory::{ArgSource, Program};
use super::tables::Tables;
use crate::backend::slots::SlotTable;
use crate::backend::{DeviceError, QueueBackend, Timepoint, WaitPolicy};
use crate::recording::{Arg, Command, Dispatch, PreparedId, Recording};
use crate::team::{Call, Team, Watch};
use onepool_core::memory::coherency::Access;
use onepool_core::sync::{lock, wait, wait_timeout};

/// How many finished submissions keep their error and their times.
const KEPT: usize = 256;
/// How long a waiting thread polls under [`WaitPolicy::Adaptive`]: the work runs on the same cores.
const POLLED: Duration = Duration::from_micros(50);
/// How long idle threads poll under [`WaitPolicy::Spin`]: they must not burn a core for ever.
const LONGEST_POLL: Duration = Duration::from_millis(1);

/// How long helpers poll under [`WaitPolicy::Adaptive`] after a submission, while they give way to others.
const LINGER: Duration = Duration::from_micros(200);
/// How long a submission may wait for a thread that waits for it.
const PATIENCE: Duration = Duration::from_micros(20);

/// An in-order queue of the CPU.
#[derive(Debug)]
pub(super) struct CpuQueue {
    tables: Arc<Tables>,
    prepared: Mutex<SlotTable<PreparedId, Arc<Program>>>,
    lane: Arc<Lane>,
    worker: Option<JoinHandle<()>>,
}

/// What the queue and its worker share.
#[derive(Debug)]
struct Lane {
    team: Team,
    policy: WaitPolicy,
    origin: Instant,
    desk: Arc<Desk>,
    /// Duration of the last submission in nanoseconds.
    took: AtomicU64,
    submitted: AtomicU64,
    completed: AtomicU64,
    /// Threads that wait for a submission that another one computes.
    waiters: AtomicUsize,
    history: Mutex<History>,
    reached: Condvar,
}

/// Where submissions wait.
#[derive(Debug, Default)]
struct Desk {
    inbox: Mutex<Inbox>,
    work: Condvar,
    /// Whether the worker was not woken for a submission that waits.
    quiet: AtomicBool,
}

#[derive(Debug, Default)]
struct Inbox {
    jobs: VecDeque<Job>,
    /// When the first one came.
    since: Option<Instant>,
    /// Whether a thread computes a submission.
    busy: bool,
    worker_sleeps: bool,
    closed: bool,
}

#[derive(Debug)]
struct Job {
    point: u64,
    program: Arc<Program>,
    /// Keeps the helpers awake until it is over.
    _call: Call,
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
        let failed = |_| DeviceError::Backend { api: "cpu", call: "start threads", code: 0 };
        let linger = match policy {
            WaitPolicy::Adaptive => LINGER,
            _ => polling(policy).map_or(LONGEST_POLL, |longest| longest.min(LONGEST_POLL)),
        };
        let desk = Arc::new(Desk::default());
        let watched = Arc::clone(&desk);
        let watch = Watch(Box::new(move || watched.watch()));
        let lane = Arc::new(Lane {
            team: Team::watching(threads, "onepool-cpu", linger, Some(watch)).map_err(failed)?,
            policy,
            origin: Instant::now(),
            desk,
            took: AtomicU64::new(0),
            submitted: AtomicU64::new(0),
            completed: AtomicU64::new(0),
            waiters: AtomicUsize::new(0),
            history: Mutex::default(),
            reached: Condvar::new(),
        });
        let worker = Arc::clone(&lane);
        let worker =
            std::thread::Builder::new().name("onepool-cpu-0".to_owned()).spawn(move || worker.work());
        Ok(CpuQueue { tables, prepared: Mutex::default(), lane, worker: Some(worker.map_err(failed)?) })
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
        lock(&self.lane.desk.inbox).closed = true;
        self.lane.desk.work.notify_all();
        // Every submission is finished before its memory may go. An error here has no one to go to.
        let _ = self.lane.wait(self.lane.submitted.load(Ordering::SeqCst), None);
        let this = std::thread::current().id();
        if let Some(worker) = self.worker.take().filter(|worker| worker.thread().id() != this) {
            // Native functions' panics are errors of their submissions.
            let _ = worker.join();
        }
    }
}

/// How long a policy polls before it sleeps; `None` is for ever.
fn polling(policy: WaitPolicy) -> Option<Duration> {
    match policy {
        WaitPolicy::Block => Some(Duration::ZERO),
        WaitPolicy::Spin => None,
        WaitPolicy::Adaptive => Some(POLLED),
        WaitPolicy::SpinThenBlock { micros } => Some(Duration::from_micros(micros.into())),
    }
}

impl Desk {
    /// Wakes the worker for what no one has begun.
    fn wake_worker(&self, inbox: MutexGuard<'_, Inbox>) {
        self.quiet.store(false, Ordering::SeqCst);
        let wake = !inbox.busy && inbox.worker_sleeps && !inbox.jobs.is_empty();
        drop(inbox);
        if wake {
            self.work.notify_one();
        }
    }

    /// On a helper: wakes the worker for what no one has come to compute.
    fn watch(&self) {
        if !self.quiet.load(Ordering::SeqCst) {
            return;
        }
        let inbox = lock(&self.inbox);
        let late = inbox.since.is_some_and(|since| since.elapsed() > PATIENCE);
        if inbox.busy || inbox.jobs.is_empty() || late {
            self.wake_worker(inbox);
        }
    }
}

impl Lane {
    fn push(&self, program: Arc<Program>) -> Result<Timepoint, DeviceError> {
        program.check_alive()?;
        let call = self.team.call();
        let mut inbox = lock(&self.desk.inbox);
        let point = self.submitted.load(Ordering::SeqCst) + 1;
        if inbox.jobs.is_empty() {
            inbox.since = Some(Instant::now());
        }
        inbox.jobs.push_back(Job { point, program, _call: call });
        self.submitted.store(point, Ordering::SeqCst);
        let quiet = inbox.worker_sleeps && self.policy != WaitPolicy::Block && self.team.has_helpers();
        let wake = inbox.worker_sleeps && !quiet;
        self.desk.quiet.store(quiet, Ordering::SeqCst);
        drop(inbox);
        if wake {
            self.desk.work.notify_one();
        }
        Ok(Timepoint(point))
    }

    /// Whether everything up to `point` has finished, found by polling as long as the policy allows.
    fn poll(&self, limit: Option<Duration>, done: impl Fn() -> bool) -> bool {
        let longest = polling(self.policy);
        let length = longest.map_or(limit, |longest| Some(limit.map_or(longest, |limit| limit.min(longest))));
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
        if self.desk.quiet.load(Ordering::SeqCst) {
            // Under a timeout the caller must come back in time.
            if timeout.is_some() {
                self.desk.wake_worker(lock(&self.desk.inbox));
            } else if self.compute(point) {
                return Ok(());
            }
        }
        let deadline = timeout.map(|timeout| (Instant::now(), timeout));
        // Counted before the counter is read again: the worker either sees who waits or was seen.
        self.waiters.fetch_add(1, Ordering::SeqCst);
        let result = self.wait_idle(deadline, done);
        self.waiters.fetch_sub(1, Ordering::SeqCst);
        result
    }

    /// Polls, then sleeps, until it is `done` or the time is over.
    fn wait_idle(
        &self,
        deadline: Option<(Instant, Duration)>,
        done: impl Fn() -> bool,
    ) -> Result<(), DeviceError> {
        // Polling through a part of a long run takes a processor from the threads that compute it.
        let long = self.took.load(Ordering::Relaxed) > POLLED.as_nanos() as u64;
        let sleeps = self.policy == WaitPolicy::Adaptive && long;
        if !sleeps && self.poll(deadline.map(|(_, timeout)| timeout), &done) {
            return Ok(());
        }
        let mut history = lock(&self.history);
        loop {
            if done() {
                return Ok(());
            }
            history = match deadline {
                None => wait(&self.reached, history),
                Some((start, timeout)) => {
                    let Some(left) = timeout.checked_sub(start.elapsed()).filter(|left| !left.is_zero())
                    else {
                        return Err(DeviceError::Timeout { millis: timeout.as_millis() as u64 });
                    };
                    wait_timeout(&self.reached, history, left)
                }
            };
        }
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
        let (mut times, mut polls) = (Vec::new(), true);
        while let Some(job) = self.next(polls) {
            // Who waits for one may compute the next.
            polls = !self.execute(job, &mut times);
            let mut inbox = lock(&self.desk.inbox);
            inbox.busy = false;
        }
    }

    /// On a thread that waits: runs what no one has begun, up to `point`; whether everything up to there has finished.
    fn compute(&self, point: u64) -> bool {
        let mut times = Vec::new();
        loop {
            let mut inbox = lock(&self.desk.inbox);
            if inbox.busy || inbox.jobs.front().is_none_or(|job| job.point > point) {
                break;
            }
            inbox.busy = true;
            let job = inbox.jobs.pop_front();
            drop(inbox);
            job.into_iter().for_each(|job| _ = self.execute(job, &mut times));
            let mut inbox = lock(&self.desk.inbox);
            inbox.busy = false;
            let wake = inbox.worker_sleeps && (inbox.closed || !inbox.jobs.is_empty());
            drop(inbox);
            if wake {
                self.desk.work.notify_one();
            }
        }
        self.completed.load(Ordering::SeqCst) >= point
    }

    /// Runs a submission; one thread at a time does, that which made the inbox busy. Whether another one waits for it.
    fn execute(&self, job: Job, times: &mut Vec<u64>) -> bool {
        let Job { point, program, _call } = job;
        let start = Instant::now();
        let result = self.team.enter(|| program.run(self.origin, times));
        self.took.store(start.elapsed().as_nanos() as u64, Ordering::Relaxed);
        if result.is_err() || program.timestamps() > 0 {
            self.remember(point, result.err(), times);
        }
        // Gone before the waiter learns of it: the last reference frees memory.
        drop(program);
        self.completed.store(point, Ordering::SeqCst);
        let awaited = self.waiters.load(Ordering::SeqCst) > 0;
        if awaited {
            // One that was counted but does not sleep yet may hold this lock.
            drop(lock(&self.history));
            self.reached.notify_all();
        }
        awaited
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

    fn next(&self, polls: bool) -> Option<Job> {
        if polls {
            let seen = self.completed.load(Ordering::SeqCst);
            self.poll(Some(LONGEST_POLL), || self.submitted.load(Ordering::SeqCst) > seen);
        }
        let mut inbox = lock(&self.desk.inbox);
        loop {
            if !inbox.busy {
                if let Some(job) = inbox.jobs.pop_front() {
                    inbox.busy = true;
                    return Some(job);
                }
                if inbox.closed {
                    return None;
                }
            }
            inbox.worker_sleeps = true;
            inbox = wait(&self.desk.work, inbox);
            inbox.worker_sleeps = false;
        }
    }
}
