//! Requests that wait for a run, and their end before it.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use bytes::Bytes;
use onepool::session::CancelToken;
use onepool::{DType, Shape};
use onepool_core::sync::{lock, wait, wait_timeout};
use tokio::sync::oneshot;
use tonic::Status;

use crate::shm::{Range, Turn};

/// Where the bytes of an input are.
#[derive(Debug)]
pub(crate) enum Given {
    Message(Bytes),
    Shared(Range),
}

/// Where the bytes of an output go.
#[derive(Debug)]
pub(crate) enum Wanted {
    Nowhere,
    Message,
    Shared(Range),
}

/// A checked request.
#[derive(Debug)]
pub(crate) struct Job {
    /// In the order of the model's inputs.
    pub(crate) inputs: Vec<(Shape, Given)>,
    /// In the order of the model's outputs.
    pub(crate) outputs: Vec<Wanted>,
    /// The shared memory that it uses.
    pub(crate) turns: Vec<Turn>,
    pub(crate) arrived: Instant,
    pub(crate) deadline: Instant,
    pub(crate) life: Arc<Life>,
    pub(crate) reply: oneshot::Sender<Result<Done, Status>>,
}

/// The answer to a request.
#[derive(Debug, Default)]
pub(crate) struct Done {
    /// One for each output of the model that was asked for, in their order.
    pub(crate) outputs: Vec<Output>,
    /// How each tensor reached the devices.
    pub(crate) verdicts: Vec<(String, String)>,
    /// Bytes that the CPU copied.
    pub(crate) copied: u64,
    /// Bytes that were used where they lay.
    pub(crate) in_place: u64,
    /// Rows of the run that it was part of.
    pub(crate) rows: usize,
}

#[derive(Debug)]
pub(crate) struct Output {
    /// Position among the model's outputs.
    pub(crate) at: usize,
    pub(crate) dtype: DType,
    pub(crate) dims: Vec<usize>,
    /// Empty where it lies in shared memory.
    pub(crate) bytes: Bytes,
}

impl Job {
    /// Rows along the first axis, where the request may be run together with others: its tensors are all in messages.
    pub(crate) fn rows(&self) -> Option<usize> {
        let own = self.inputs.iter().all(|(_, given)| matches!(given, Given::Message(_)))
            && !self.outputs.iter().any(|wanted| matches!(wanted, Wanted::Shared(_)));
        let rows = self.inputs.first()?.0.dims().first().copied()?;
        own.then_some(rows).filter(|rows| *rows > 0)
    }

    /// Whether two requests differ in nothing but rows.
    fn joins(&self, other: &Job) -> bool {
        let tail = |job: &Job, at: usize| job.inputs[at].0.dims().get(1..).map(<[usize]>::to_vec);
        (0..self.inputs.len()).all(|at| tail(self, at) == tail(other, at))
    }
}

/// Requests that wait for a run.
#[derive(Debug)]
pub(crate) struct Queue {
    state: Mutex<Waiting>,
    arrived: Condvar,
    most: usize,
}

#[derive(Debug, Default)]
struct Waiting {
    jobs: VecDeque<Job>,
    /// A worker is waiting for requests to join the first one.
    gathering: bool,
    closed: bool,
}

impl Queue {
    pub(crate) fn new(most: usize) -> Self {
        Queue { state: Mutex::default(), arrived: Condvar::new(), most }
    }

    fn state(&self) -> MutexGuard<'_, Waiting> {
        lock(&self.state)
    }

    pub(crate) fn push(&self, job: Job) -> Result<(), Status> {
        let mut state = self.state();
        if state.closed {
            return Err(Status::unavailable("the server is shutting down"));
        }
        if state.jobs.len() >= self.most {
            return Err(Status::resource_exhausted(format!("queue: {} requests are waiting", self.most)));
        }
        state.jobs.push_back(job);
        drop(state);
        self.arrived.notify_all();
        Ok(())
    }

    /// How many wait.
    pub(crate) fn len(&self) -> usize {
        self.state().jobs.len()
    }

    /// Takes no further requests; those that wait are still run.
    pub(crate) fn close(&self) {
        self.state().closed = true;
        self.arrived.notify_all();
    }

    /// The requests of the next run, which have at most `max_batch` rows together unless one alone has more. Waits for
    /// them; `None` once the queue is closed and empty.
    pub(crate) fn next(&self, max_batch: usize, max_delay: Duration) -> Option<Vec<Job>> {
        let mut state = self.state();
        loop {
            while state.gathering || state.jobs.is_empty() {
                if state.closed && state.jobs.is_empty() {
                    return None;
                }
                state = wait(&self.arrived, state);
            }
            let first = state.jobs.front()?;
            if max_batch <= 1 || first.rows().is_none() {
                return state.jobs.pop_front().map(|job| vec![job]);
            }
            let until = first.arrived + max_delay;
            state.gathering = true;
            loop {
                let left = until.saturating_duration_since(Instant::now());
                if state.closed || left.is_zero() || state.chosen(max_batch).1 >= max_batch {
                    break;
                }
                state = wait_timeout(&self.arrived, state, left);
            }
            state.gathering = false;
            let taken = state.take(max_batch);
            let more = !state.jobs.is_empty() || state.closed;
            if taken.is_empty() {
                continue;
            }
            drop(state);
            if more {
                self.arrived.notify_all();
            }
            return Some(taken);
        }
    }
}

impl Waiting {
    /// Positions of the requests that join the first one, and their rows. Runs of a power of two rows are preferred, so
    /// that few different plans are made.
    fn chosen(&self, max_batch: usize) -> (Vec<usize>, usize) {
        let Some(first) = self.jobs.front() else { return (Vec::new(), 0) };
        let mut rows = first.rows().unwrap_or(1);
        let (mut chosen, mut whole) = (vec![0], None);
        for (at, job) in self.jobs.iter().enumerate().skip(1) {
            let Some(more) = job.rows().filter(|more| rows.saturating_add(*more) <= max_batch) else {
                continue;
            };
            if first.joins(job) {
                chosen.push(at);
                rows += more;
                if rows.is_power_of_two() {
                    whole = Some((chosen.len(), rows));
                }
            }
        }
        if let Some((count, power)) = whole
            && rows < max_batch
        {
            chosen.truncate(count);
            rows = power;
        }
        (chosen, rows)
    }

    fn take(&mut self, max_batch: usize) -> Vec<Job> {
        let (chosen, _) = self.chosen(max_batch);
        let mut taken: Vec<Job> = chosen.into_iter().rev().filter_map(|at| self.jobs.remove(at)).collect();
        taken.reverse();
        taken
    }
}

/// Whether anyone still waits for a request's answer.
#[derive(Debug, Default)]
pub(crate) struct Life {
    state: Mutex<LifeState>,
}

#[derive(Debug, Default)]
struct LifeState {
    abandoned: bool,
    run: Option<Arc<RunLife>>,
}

/// A run and the requests that wait for it.
#[derive(Debug)]
pub(crate) struct RunLife {
    waiting: Mutex<usize>,
    token: CancelToken,
}

impl RunLife {
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(RunLife { waiting: Mutex::new(0), token: CancelToken::new() })
    }

    /// Cancels the run.
    pub(crate) fn token(&self) -> &CancelToken {
        &self.token
    }

    fn count(&self) -> MutexGuard<'_, usize> {
        lock(&self.waiting)
    }
}

impl Life {
    fn state(&self) -> MutexGuard<'_, LifeState> {
        lock(&self.state)
    }

    /// Makes the request part of a run. Returns whether its answer is still waited for.
    pub(crate) fn joins(&self, run: &Arc<RunLife>) -> bool {
        let mut state = self.state();
        if state.abandoned {
            return false;
        }
        *run.count() += 1;
        state.run = Some(Arc::clone(run));
        true
    }

    /// No one waits any more: a run that no other request waits for is cancelled.
    fn abandon(&self) {
        let mut state = self.state();
        state.abandoned = true;
        if let Some(run) = state.run.take() {
            let mut waiting = run.count();
            *waiting = waiting.saturating_sub(1);
            if *waiting == 0 {
                run.token.cancel();
            }
        }
    }
}

/// Kept by who waits for an answer.
#[derive(Debug)]
pub(crate) struct Waiter(pub(crate) Arc<Life>);

impl Drop for Waiter {
    fn drop(&mut self) {
        self.0.abandon();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn job(rows: usize, width: usize) -> Job {
        let now = Instant::now();
        Job {
            inputs: vec![(Shape::new([rows, width]).unwrap(), Given::Message(Bytes::new()))],
            outputs: vec![Wanted::Message],
            turns: Vec::new(),
            arrived: now,
            deadline: now + Duration::from_secs(60),
            life: Arc::default(),
            reply: oneshot::channel().0,
        }
    }

    fn rows(jobs: &[Job]) -> Vec<(usize, usize)> {
        jobs.iter().map(|job| (job.inputs[0].0.dims()[0], job.inputs[0].0.dims()[1])).collect()
    }

    #[test]
    fn requests_of_one_width_are_gathered_in_order_and_others_wait() {
        let queue = Queue::new(16);
        for (n, width) in [(1, 4), (1, 5), (2, 4), (1, 4), (9, 4)] {
            queue.push(job(n, width)).unwrap();
        }
        let next = || queue.next(8, Duration::ZERO).map(|jobs| rows(&jobs));
        // 1 + 2 + 1 rows are a power of two.
        assert_eq!(next().unwrap(), [(1, 4), (2, 4), (1, 4)]);
        assert_eq!(next().unwrap(), [(1, 5)]);
        assert_eq!(next().unwrap(), [(9, 4)]);
        queue.close();
        assert!(next().is_none());
        assert_eq!(queue.push(job(1, 1)).unwrap_err().code(), tonic::Code::Unavailable);
    }

    #[test]
    fn a_run_has_at_most_the_rows_that_were_asked_for() {
        let queue = Queue::new(64);
        (0..21).for_each(|_| queue.push(job(1, 2)).unwrap());
        let mut sizes = Vec::new();
        while queue.len() > 0 {
            sizes.push(queue.next(8, Duration::ZERO).unwrap().len());
        }
        assert_eq!(sizes, [8, 8, 4, 1]);
    }

    #[test]
    fn a_full_queue_refuses() {
        let queue = Queue::new(2);
        (0..2).for_each(|_| queue.push(job(1, 1)).unwrap());
        let refused = queue.push(job(1, 1)).unwrap_err();
        assert!(refused.code() == tonic::Code::ResourceExhausted && refused.message().starts_with("queue"));
        assert_eq!(queue.next(1, Duration::ZERO).unwrap().len(), 1);
        queue.push(job(1, 1)).unwrap();
    }

    #[test]
    fn a_request_waits_for_others_until_its_delay_is_over() {
        let queue = Arc::new(Queue::new(8));
        queue.push(job(1, 1)).unwrap();
        let later = Arc::clone(&queue);
        let other = std::thread::spawn(move || later.push(job(1, 1)).unwrap());
        // Two rows fill it, so that the delay is never waited for.
        assert_eq!(queue.next(2, Duration::from_secs(600)).unwrap().len(), 2);
        other.join().unwrap();
    }

    #[test]
    fn a_run_is_cancelled_when_the_last_request_is_abandoned() {
        let [first, second, gone]: [Arc<Life>; 3] = Default::default();
        let run = RunLife::new();
        drop(Waiter(Arc::clone(&gone)));
        assert!(first.joins(&run) && second.joins(&run) && !gone.joins(&run));
        drop(Waiter(first));
        assert!(!run.token().is_cancelled());
        drop(Waiter(second));
        assert!(run.token().is_cancelled());
    }
}
