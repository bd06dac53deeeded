//! What the library says, for the package `logging`.
//!
//! A thread that says something may hold locks of the library, and another one may wait for these with the interpreter.
//! So messages are kept, and who has the interpreter and no such lock tells them: each call at its end.

use std::collections::VecDeque;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use onepool_core::log::{Level, Listener, listen};
use onepool_core::sync::lock;
use pyo3::exceptions::PyKeyboardInterrupt;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;

/// The most messages that wait to be told.
const MOST: usize = 4096;

/// A message that waits.
struct Said {
    level: Level,
    target: String,
    message: String,
}

/// What waits, and how many messages there was no room for.
static WAITING: Mutex<(VecDeque<Said>, usize)> = Mutex::new((VecDeque::new(), 0));

/// How many wait, so that who looks takes no lock.
static COUNT: AtomicUsize = AtomicUsize::new(0);

struct Keeper;

impl Listener for Keeper {
    // Which loggers want what, the interpreter alone knows.
    fn wants(&self, level: Level) -> bool {
        level <= Level::DEBUG
    }

    fn hear(&self, level: Level, target: &str, message: &str) {
        let (target, message) = (target.to_owned(), message.to_owned());
        let mut waiting = lock(&WAITING);
        if waiting.0.len() < MOST {
            waiting.0.push_back(Said { level, target, message });
        } else {
            waiting.1 += 1;
        }
        COUNT.store(waiting.0.len(), Ordering::Release);
    }
}

/// Has messages kept from now on.
pub(crate) fn keep() {
    // The module is made once in a process; what it was made for a second time listens already.
    let _ = listen(Keeper);
}

/// The next message, and how many were lost before it.
fn next() -> Option<(Said, usize)> {
    let mut waiting = lock(&WAITING);
    let said = waiting.0.pop_front()?;
    COUNT.store(waiting.0.len(), Ordering::Release);
    // Those that are lost came after all that were kept.
    let lost = if waiting.0.is_empty() { std::mem::take(&mut waiting.1) } else { 0 };
    Some((said, lost))
}

/// Tells the loggers what waits. What a handler raises is told by the interpreter, and no error of the call.
pub(crate) fn tell(py: Python<'_>) {
    while COUNT.load(Ordering::Acquire) > 0 {
        let Some((said, lost)) = next() else { return };
        let told = log(py, said.level, &logger_name(&said.target), &said.message).and_then(|()| {
            if lost == 0 {
                return Ok(());
            }
            let message = format!("{lost} messages were lost: too many came during one call");
            log(py, Level::WARN, "onepool", &message)
        });
        let Err(raised) = told else { continue };
        if raised.is_instance_of::<PyKeyboardInterrupt>(py) {
            // Ctrl-C was pressed just then: it is raised as soon as the program goes on.
            let again = py.import("_thread").and_then(|thread| thread.call_method0("interrupt_main"));
            if let Err(raised) = again {
                raised.write_unraisable(py, None);
            }
            return;
        }
        raised.write_unraisable(py, None);
    }
}

/// `onepool::tuning` is `onepool.tuning`, and `onepool_core::memory` is `onepool.core.memory`.
fn logger_name(target: &str) -> String {
    let name = target.replace("::", ".");
    match name.strip_prefix("onepool_") {
        Some(rest) => format!("onepool.{rest}"),
        None => name,
    }
}

fn log(py: Python<'_>, level: Level, logger: &str, message: &str) -> PyResult<()> {
    static LOGGING: PyOnceLock<Py<PyModule>> = PyOnceLock::new();
    let logging = LOGGING.get_or_try_init(py, || py.import("logging").map(Bound::unbind))?.bind(py);
    // Numbers of `logging`; it has none below DEBUG.
    let number = match level {
        Level::ERROR => 40,
        Level::WARN => 30,
        Level::INFO => 20,
        _ => 10,
    };
    let logger = logging.call_method1(intern!(py, "getLogger"), (logger,))?;
    // Without arguments a message is taken as it is.
    logger.call_method1(intern!(py, "log"), (number, message)).map(drop)
}

/// Does `work` without the interpreter, and tells what was said meanwhile.
pub(crate) fn detached<T: Send>(py: Python<'_>, work: impl FnOnce() -> T + Send) -> T {
    let done = py.detach(work);
    tell(py);
    done
}

/// Tells what threads have said since the last call.
#[pyfunction]
pub(crate) fn tell_log(py: Python<'_>) {
    tell(py);
}
