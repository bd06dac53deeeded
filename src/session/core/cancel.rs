//! Cancellation and time limits of runs.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::session::error::{Error, Progress, SessionError};

/// Cancels runs: those that were given it ([`RunOptions::cancel`]), or the one that it came from
/// ([`Pending::canceller`](crate::session::Pending::canceller)). A clone is another handle of it; any thread may use
/// one.
#[derive(Clone, Debug)]
pub struct CancelToken {
    /// The latest cancelled run of those that share it.
    cancelled: Arc<AtomicU64>,
    run: u64,
}

impl Default for CancelToken {
    fn default() -> Self {
        CancelToken { cancelled: Arc::default(), run: 1 }
    }
}

impl CancelToken {
    /// A token that cancels nothing yet.
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

/// What may end a run before it is over. The run looks before each submission to a device and before each turn of a
/// Loop or Scan; what was submitted is waited for. Where nothing else limits submissions, runs with one of these are
/// cut into submissions of about 100 ms.
///
/// A run that was ended returns [`SessionError::Cancelled`] or [`SessionError::TimeLimit`]. Its outputs are
/// undefined, its inputs as they were, and the session can run again.
#[derive(Clone, Debug, Default)]
pub struct RunOptions {
    time_limit: Option<Duration>,
    cancel: Option<CancelToken>,
}

impl RunOptions {
    /// Nothing ends the run.
    pub fn new() -> Self {
        RunOptions::default()
    }

    /// Ends the run `limit` after its start. A run that is over by then is unaffected.
    pub fn time_limit(mut self, limit: Duration) -> Self {
        self.time_limit = Some(limit);
        self
    }

    /// Ends the run when `token` is cancelled.
    pub fn cancel(mut self, token: &CancelToken) -> Self {
        self.cancel = Some(token.clone());
        self
    }

    /// Whether anything may end the run.
    pub(in crate::session) fn may_end(&self) -> bool {
        self.time_limit.is_some() || self.cancel.is_some()
    }
}

/// Checks whether one run is to end early.
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

    /// Whether anything but [`Pending::cancel`](crate::session::Pending::cancel) may end the run.
    pub(in crate::session) fn may_end(&self) -> bool {
        self.options.may_end()
    }

    /// Time since the start of the run.
    pub(in crate::session) fn elapsed(&self) -> Duration {
        self.began.elapsed()
    }

    pub(in crate::session) fn token(&self) -> &CancelToken {
        &self.own
    }

    /// # Errors
    /// [`SessionError::Cancelled`], [`SessionError::TimeLimit`]; `at` gives the progress.
    pub(in crate::session) fn check(&self, at: impl FnOnce() -> Progress) -> Result<(), Error> {
        if self.own.is_cancelled() || self.options.cancel.as_ref().is_some_and(CancelToken::is_cancelled) {
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
pub(in crate::session) fn in_turn(mut error: Error, node: &str, turn: u64) -> Error {
    if let Error::Session(SessionError::Cancelled { at } | SessionError::TimeLimit { at, .. }) = &mut error {
        at.turns.insert(0, (node.to_owned(), turn));
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
        let at = || Progress { done: 3, of: 12, turns: Vec::new() };
        let error = in_turn(in_turn(watch.check(at).unwrap_err(), "inner", 2), "outer", 5);
        assert_eq!(
            error.to_string(),
            "the run was cancelled after 3 of 12 operators in turn 2 of \"inner\" in turn 5 of \"outer\""
        );
        let late = Watch::new(RunOptions::new().time_limit(Duration::ZERO), CancelToken::new());
        let said = late.check(at).unwrap_err().to_string();
        assert_eq!(said, "the time limit of 0 ms was up after 3 of 12 operators");
        let early = Watch::new(RunOptions::new().time_limit(Duration::from_secs(60)), CancelToken::new());
        assert!(early.check(at).is_ok());
    }
}
