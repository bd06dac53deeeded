//! What the library says, for a callback of the caller's.

use std::cell::Cell;
use std::ffi::{c_char, c_void};
use std::sync::{Arc, Condvar, Mutex, OnceLock, RwLock};

use onepool_core::log::{Level, Listener, listen};
use onepool_core::sync::{lock, read, wait_while, write};

use crate::arg::unknown;
use crate::caller::Foreign;
use crate::io::text;
use crate::status::{Failure, Status, guard};

/// Levels of messages, their numbers and names in the header.
pub const LEVELS: [(u32, &str, Level); 5] = [
    (1, "ONEPOOL_LOG_ERROR", Level::ERROR),
    (2, "ONEPOOL_LOG_WARNING", Level::WARN),
    (3, "ONEPOOL_LOG_INFO", Level::INFO),
    (4, "ONEPOOL_LOG_DEBUG", Level::DEBUG),
    (5, "ONEPOOL_LOG_TRACE", Level::TRACE),
];

/// `onepool_log_callback` of the header.
pub type LogCallback =
    extern "C" fn(user: *mut c_void, level: u32, target: *const c_char, message: *const c_char);

/// Who is told, and the least urgent level of what.
struct Told {
    callback: LogCallback,
    user: Foreign<c_void>,
    least: Level,
    /// Calls that have not returned.
    calls: Mutex<usize>,
    returned: Condvar,
}

impl Told {
    fn leave(&self) {
        let mut calls = lock(&self.calls);
        *calls = calls.saturating_sub(1);
        self.returned.notify_all();
    }
}

static TOLD: RwLock<Option<Arc<Told>>> = RwLock::new(None);

thread_local! {
    /// Whether this thread is in a callback.
    static INSIDE: Cell<bool> = const { Cell::new(false) };
}

/// Whether this thread is in a callback. One that ends is in none.
fn is_inside() -> bool {
    INSIDE.try_with(Cell::get).unwrap_or(false)
}

/// Who is to be told of this level, whose call counts from now on.
fn entered(level: Level) -> Option<Arc<Told>> {
    let told = read(&TOLD);
    let told = told.as_ref().filter(|told| level <= told.least && !is_inside())?;
    *lock(&told.calls) += 1;
    Some(Arc::clone(told))
}

struct Teller;

impl Listener for Teller {
    fn wants(&self, level: Level) -> bool {
        !is_inside() && read(&TOLD).as_ref().is_some_and(|told| level <= told.least)
    }

    fn hear(&self, level: Level, target: &str, message: &str) {
        let Some(told) = entered(level) else { return };
        if let Some((number, ..)) = LEVELS.iter().find(|(.., known)| *known == level) {
            let (target, message) = (text(target), text(message));
            let _ = INSIDE.try_with(|inside| inside.set(true));
            (told.callback)(told.user.pointer(), *number, target.as_ptr(), message.as_ptr());
            let _ = INSIDE.try_with(|inside| inside.set(false));
        }
        told.leave();
    }
}

/// Has the process's messages come here; whether they do.
fn listening() -> bool {
    static LISTENS: OnceLock<bool> = OnceLock::new();
    *LISTENS.get_or_init(|| listen(Teller).is_ok())
}

/// Has messages of `level` and of more urgent levels told to a callback, in place of the one before; null: to none.
#[unsafe(no_mangle)] // SAFETY: its arguments are as the header says.
pub unsafe extern "C" fn onepool_log_set_callback(
    level: u32,
    callback: Option<LogCallback>,
    user: *mut c_void,
) -> Status {
    guard(|| {
        let known = LEVELS.iter().find(|(number, ..)| *number == level);
        let told = match (callback, known) {
            (None, _) => None,
            (Some(_), None) => return Err(unknown("level", level)),
            (Some(callback), Some((.., least))) => {
                let (calls, returned) = Default::default();
                Some(Told { callback, user: Foreign(user), least: *least, calls, returned })
            }
        };
        if is_inside() {
            let message = "a callback of the log cannot set another one: return from it first";
            return Err(Failure::new(Status::Busy, message));
        }
        if told.is_some() && !listening() {
            let message =
                "the log goes elsewhere: this program's Rust part has a subscriber of `tracing` already";
            return Err(Failure::new(Status::Busy, message));
        }
        let before = std::mem::replace(&mut *write(&TOLD), told.map(Arc::new));
        if let Some(before) = before {
            // From here on the caller may free what `user` points to.
            drop(wait_while(&before.returned, lock(&before.calls), |calls| *calls > 0));
        }
        Ok(())
    })
}
