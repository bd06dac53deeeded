//! Cancellation and time limits of runs.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::device::Semaphore;
use crate::session::core::read_end::ReadEnd;
use crate::session::error::{Error, Progress, SessionError};

/// Cancels runs: those that were given the token ([`RunOptions::cancel`]), or the one that it came from
/// ([`Pending::canceller`](crate::session::Pending::canceller)). Clones share one state and may be used on any
/// thread.
#[derive(Clone, Debug)]
pub struct CancelToken {
    /// The latest cancelled run of those that share the token.
    cancelled: Arc<AtomicU64>,
    run: u64,
}

impl Default for CancelToken {
    fn default() -> Self {
        CancelToken { cancelled: Arc::default(), run: 1 }
    }
}

impl CancelToken {
    /// A token that is not cancelled.
    pub fn new() -> Self {
        CancelToken::default()
    }

    /// Ends runs with this token before their next submission to a device. It cannot be undone.
    pub fn cancel(&self) {
        self.cancelled.fetch_max(self.run, Ordering::AcqRel);
    }

    /// Whether [`CancelToken::cancel`] was called.
    pub fn is_cancelled(&self) -> bool {
        self.cancelled.load(Ordering::Acquire) >= self.run
    }

    /// The token of the run after this one's.
    pub(in crate::session) fn next(&self) -> CancelToken {
        CancelToken { cancelled: Arc::clone(&self.cancelled), run: self.run + 1 }
    }
}

/// Conditions that end a run early. The run checks them before each submission to a device and before each iteration
/// of a Loop or Scan; it waits for submitted work. Where nothing else limits submissions, such runs are cut into
/// submissions of about 100 ms.
///
/// A run that ends early returns [`SessionError::Cancelled`] or [`SessionError::TimeLimit`]. Its outputs are
/// undefined, its inputs unchanged, and the session can run again.
#[derive(Clone, Debug, Default)]
pub struct RunOptions {
    time_limit: Option<Duration>,
    cancel: Option<CancelToken>,
    interrupt: Option<Interrupt>,
    exchange: Exchange,
    reads: Vec<Arc<ReadEnd>>,
}

/// A question whether a run is to end.
#[derive(Clone)]
struct Interrupt(Arc<dyn Fn() -> bool + Send + Sync>);

impl fmt::Debug for Interrupt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Interrupt")
    }
}

/// Semaphores of one run.
#[derive(Clone, Debug, Default)]
pub(in crate::session) struct Exchange {
    pub(in crate::session) waits: Vec<Semaphore>,
    pub(in crate::session) signals: Vec<Semaphore>,
    limit: Option<Duration>,
}

/// The limit of runs that wait for semaphores, where no other is given.
const SEMAPHORE_LIMIT: Duration = Duration::from_secs(10);

impl Exchange {
    pub(in crate::session) fn is_empty(&self) -> bool {
        self.waits.is_empty() && self.signals.is_empty()
    }
}

impl RunOptions {
    /// Nothing ends the run early.
    pub fn new() -> Self {
        RunOptions::default()
    }

    /// Ends the run `limit` after its start. A finished run is unaffected.
    pub fn time_limit(mut self, limit: Duration) -> Self {
        self.time_limit = Some(limit);
        self
    }

    /// Ends the run when `token` is cancelled.
    pub fn cancel(mut self, token: &CancelToken) -> Self {
        self.cancel = Some(token.clone());
        self
    }

    /// Asks `interrupted` wherever the run may end, and ends it as a cancelled token does once the answer is true. A
    /// [`Binding::run`](crate::Binding::run) asks on its own thread, which an interpreter's signals need; it may ask
    /// often. Other ways to run may ask on any thread.
    pub fn interrupt(mut self, interrupted: impl Fn() -> bool + Send + Sync + 'static) -> Self {
        self.interrupt = Some(Interrupt(Arc::new(interrupted)));
        self
    }

    /// The run begins after `semaphore` is reached, besides others that it waits for. It then has a time limit
    /// ([`RunOptions::semaphore_limit`]): a semaphore may never be signalled.
    pub fn wait(mut self, semaphore: &Semaphore) -> Self {
        self.exchange.waits.push(semaphore.clone());
        self
    }

    /// `semaphore` is signalled once the results are in the bound memory. A run that fails signals nothing, unless its
    /// error is [`SessionError::TimeLimit`] for a semaphore that it waits for: what was submitted then goes on as soon as
    /// that is signalled.
    ///
    /// A run that is one submission signals on the device. Others do in [`Binding::run`](crate::Binding::run) or
    /// [`Pending::wait`](crate::session::Pending::wait), at the latest when the pending run is dropped.
    pub fn signal(mut self, semaphore: &Semaphore) -> Self {
        self.exchange.signals.push(semaphore.clone());
        self
    }

    /// How long a run that waits for semaphores may take, from its submission; 10 s by default, and no more than
    /// [`RunOptions::time_limit`]. After that the run ends with [`SessionError::TimeLimit`]. The memory that it uses stays
    /// in use until the device is done with it, and later work on the queue stands behind it.
    pub fn semaphore_limit(mut self, limit: Duration) -> Self {
        self.exchange.limit = Some(limit);
        self
    }

    /// Calls `callback` once, when the run has read input `name` for the last time: a camera or decoder may then have its
    /// memory back. The run may still be under way, where other submissions come after the last one that reads the
    /// input. A run that fails, is cancelled or never begins calls it too; so do options that are dropped.
    ///
    /// `name` is an input, or a frame with all its memories. The callback runs on any thread, and must not use the
    /// binding. It belongs to the first run with these options. A submitted run that is one submission takes a thread for
    /// it.
    pub fn after_read(mut self, name: impl Into<String>, callback: impl FnOnce() + Send + 'static) -> Self {
        self.reads.push(Arc::new(ReadEnd::new(name.into(), Box::new(callback))));
        self
    }

    /// The callbacks at the end of reads.
    pub(in crate::session) fn reads(&self) -> &[Arc<ReadEnd>] {
        &self.reads
    }

    /// The semaphores of the run.
    pub(in crate::session) fn exchange(&self) -> &Exchange {
        &self.exchange
    }

    /// How long the run may wait for semaphores.
    pub(in crate::session) fn waits_at_most(&self) -> Duration {
        let limit = self.exchange.limit.unwrap_or(SEMAPHORE_LIMIT);
        self.time_limit.map_or(limit, |time| time.min(limit))
    }

    /// Whether anything may end the run early.
    pub(in crate::session) fn may_end(&self) -> bool {
        self.time_limit.is_some() || self.cancel.is_some() || self.interrupt.is_some()
    }

    /// Whether the token is cancelled, or the question of [`RunOptions::interrupt`] is answered so.
    pub(in crate::session) fn is_cancelled(&self) -> bool {
        let token = self.cancel.as_ref().is_some_and(CancelToken::is_cancelled);
        token || self.interrupt.as_ref().is_some_and(|interrupt| (interrupt.0)())
    }
}

/// Checks whether one run must end early.
#[derive(Clone, Debug)]
pub(in crate::session) struct Watch {
    began: Instant,
    options: RunOptions,
    own: CancelToken,
}

impl Watch {
    pub(in crate::session) fn new(options: RunOptions, own: CancelToken) -> Self {
        Watch { began: Instant::now(), options, own }
    }

    /// Whether anything but [`Pending::cancel`](crate::session::Pending::cancel) may end the run early.
    pub(in crate::session) fn may_end(&self) -> bool {
        self.options.may_end()
    }

    /// Time since the start of the run.
    pub(in crate::session) fn elapsed(&self) -> Duration {
        self.began.elapsed()
    }

    pub(in crate::session) fn options(&self) -> &RunOptions {
        &self.options
    }

    pub(in crate::session) fn token(&self) -> &CancelToken {
        &self.own
    }

    pub(in crate::session) fn check(&self, at: impl FnOnce() -> Progress) -> Result<(), Error> {
        if self.own.is_cancelled() || self.options.is_cancelled() {
            return Err(SessionError::Cancelled { at: at() }.into());
        }
        match self.options.time_limit {
            Some(limit) if self.began.elapsed() >= limit => {
                Err(SessionError::TimeLimit { limit, at: at() }.into())
            }
            _ => Ok(()),
        }
    }
}

/// Adds the iteration of a loop to an error that ended it early.
pub(in crate::session) fn in_iteration(mut error: Error, node: &str, iteration: u64) -> Error {
    if let Error::Session(SessionError::Cancelled { at } | SessionError::TimeLimit { at, .. }) = &mut error {
        at.iterations.insert(0, (node.to_owned(), iteration));
    }
    error
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_cancels_its_own_run_and_none_after() {
        let first = CancelToken::new();
        let second = first.next();
        let watch = |token: &CancelToken| Watch::new(RunOptions::new(), token.clone());
        assert!(watch(&first).check(Progress::default).is_ok());
        first.clone().cancel();
        assert!(first.is_cancelled() && !second.is_cancelled());
        assert!(watch(&first).check(Progress::default).is_err());
        assert!(watch(&second).check(Progress::default).is_ok());
        second.cancel();
        assert!(second.is_cancelled());
    }

    #[test]
    fn an_ended_run_says_how_far_it_came() {
        let token = CancelToken::new();
        token.cancel();
        let watch = Watch::new(RunOptions::new().cancel(&token), CancelToken::new());
        let at = || Progress { done: 3, of: 12, iterations: Vec::new() };
        let error = in_iteration(in_iteration(watch.check(at).unwrap_err(), "inner", 2), "outer", 5);
        assert_eq!(
            error.to_string(),
            "the run was cancelled after 3 of 12 operators in iteration 2 of \"inner\" in iteration 5 of \"outer\""
        );
        let late = Watch::new(RunOptions::new().time_limit(Duration::ZERO), CancelToken::new());
        let said = late.check(at).unwrap_err().to_string();
        assert_eq!(said, "the time limit of 0 ms was up after 3 of 12 operators");
        for (nanos, told) in [(250_000_000, "250 ms"), (1_500_000, "1500 us"), (1, "1 ns")] {
            let limit = SessionError::TimeLimit { limit: Duration::from_nanos(nanos), at: at() };
            assert_eq!(limit.to_string(), format!("the time limit of {told} was up after 3 of 12 operators"));
        }
        let interrupted = Watch::new(RunOptions::new().interrupt(|| true), CancelToken::new());
        assert!(
            interrupted.may_end() && interrupted.check(at).unwrap_err().to_string().contains("cancelled")
        );
        let early = Watch::new(RunOptions::new().interrupt(|| false), CancelToken::new());
        assert!(early.may_end() && early.check(at).is_ok());
        let early = Watch::new(RunOptions::new().time_limit(Duration::from_secs(60)), CancelToken::new());
        assert!(early.check(at).is_ok());
    }
}
