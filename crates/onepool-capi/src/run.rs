//! Runs: what ends them early, and `onepool_run`, a run on a thread of its own.

use std::ffi::{c_char, c_void};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::thread::{self, ThreadId};
use std::time::{Duration, Instant};

use onepool::session::CancelToken;

use crate::arg::{In, Out};
use crate::binding::BindingObject;
use crate::caller::Foreign;
use crate::cancel::options;
use crate::handle::{Handle, Object, free, publish};
use crate::status::{Failure, Status, caught, guard};
use crate::types::RunOptions;
use onepool_core::sync::{lock, wait, wait_timeout};

/// `ONEPOOL_FOREVER`.
pub const FOREVER: u64 = u64::MAX;

/// `onepool_callback` of the header.
pub type Callback = extern "C" fn(user: *mut c_void, status: Status, message: *const c_char);

/// What an `onepool_run` stands for.
#[derive(Debug)]
struct Run {
    progress: Arc<Progress>,
    cancel: CancelToken,
}

impl Object for Run {
    const KIND: &'static str = "onepool_run";
}

#[derive(Debug, Default)]
struct Progress {
    state: Mutex<Over>,
    over: Condvar,
}

#[derive(Debug, Default)]
struct Over {
    /// The thread that runs.
    thread: Option<ThreadId>,
    result: Option<Result<(), Failure>>,
}

impl Progress {
    fn lock(&self) -> MutexGuard<'_, Over> {
        lock(&self.state)
    }

    fn end(&self, result: Result<(), Failure>) {
        self.lock().result = Some(result);
        self.over.notify_all();
    }

    fn wait(&self, limit: Option<Duration>) -> Result<(), Failure> {
        // Later than any clock goes on is for ever.
        let end = limit.and_then(|limit| Instant::now().checked_add(limit));
        let mut over = self.lock();
        loop {
            if let Some(result) = &over.result {
                return result.clone();
            }
            if over.thread == Some(thread::current().id()) {
                let message =
                    "the callback of a run cannot wait for the run: it is over once the callback returns";
                return Err(Failure::new(Status::Busy, message));
            }
            over = match end {
                None => wait(&self.over, over),
                Some(end) => {
                    let left = end.saturating_duration_since(Instant::now());
                    if left.is_zero() {
                        return Err(Failure::new(Status::Timeout, "the run is not over yet"));
                    }
                    wait_timeout(&self.over, over, left)
                }
            };
        }
    }
}

/// Begins a run on a thread of its own. The binding is in use until the callback.
#[unsafe(no_mangle)] // SAFETY: its arguments are as the header says.
pub unsafe extern "C" fn onepool_binding_start(
    binding: Handle,
    opts: In<RunOptions>,
    callback: Option<Callback>,
    user: *mut c_void,
    run: Out<Handle>,
) -> Status {
    guard(|| {
        let place = run.optional();
        if place.is_none() && callback.is_none() {
            return Err(Failure::argument(
                "run",
                "is null, and so is `callback`: no one would learn of the end",
            ));
        }
        let object = binding.get::<BindingObject>("binding")?;
        let (given, token) = options(opts)?.unwrap_or_default();
        // A run takes one token: the caller's, else its own.
        let cancel = token.unwrap_or_default();
        let given = given.cancel(&cancel);
        let mut turn = object.turn()?;
        let progress = Arc::new(Progress::default());
        let ended = Arc::clone(&progress);
        let user = Foreign(user);
        let work = move || {
            ended.lock().thread = Some(thread::current().id());
            let result = caught(|| Ok(turn.binding()?.run_with(&given)?));
            // The callback may run it again, or free it.
            drop(turn);
            if let Some(callback) = callback {
                let (status, message) = match &result {
                    Ok(()) => (Status::Ok, c"".to_owned()),
                    Err(failure) => (failure.status, failure.text()),
                };
                callback(user.pointer(), status, message.as_ptr());
            }
            ended.end(result);
        };
        let spawned = thread::Builder::new().name("onepool-start".to_owned()).spawn(work);
        spawned
            .map_err(|error| Failure::new(Status::OutOfMemory, format!("no thread for the run: {error}")))?;
        if let Some(place) = place {
            publish(Run { progress, cancel }, place);
        }
        Ok(())
    })
}

/// Waits until a run is over and its callback has returned, for at most `time_limit_ns`; 0 only asks.
#[unsafe(no_mangle)] // SAFETY: no other library has names that begin with `onepool_`.
pub extern "C" fn onepool_run_wait(run: Handle, time_limit_ns: u64) -> Status {
    guard(|| {
        let limit = (time_limit_ns != FOREVER).then(|| Duration::from_nanos(time_limit_ns));
        run.get::<Run>("run")?.progress.wait(limit)
    })
}

/// Cancels a run; its end is waited for as ever.
#[unsafe(no_mangle)] // SAFETY: as above.
pub extern "C" fn onepool_run_cancel(run: Handle) -> Status {
    guard(|| {
        run.get::<Run>("run")?.cancel.cancel();
        Ok(())
    })
}

/// Forgets a run, which goes on if it is not over.
#[unsafe(no_mangle)] // SAFETY: as above.
pub extern "C" fn onepool_run_free(run: Handle) -> Status {
    free::<Run>(run, "run")
}
