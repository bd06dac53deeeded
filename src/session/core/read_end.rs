//! Callbacks at the end of a run's reads of an input.

use std::fmt;
use std::sync::Mutex;

use crate::sync::lock;

type Callback = Box<dyn FnOnce() + Send>;

/// The callback for an input. It is called once, when it is dropped at the latest.
pub(in crate::session) struct ReadEnd {
    /// The input, or the frame.
    pub(in crate::session) name: String,
    callback: Mutex<Option<Callback>>,
}

impl ReadEnd {
    pub(in crate::session) fn new(name: String, callback: Callback) -> Self {
        ReadEnd { name, callback: Mutex::new(Some(callback)) }
    }

    /// Calls the callback, unless it was called. It has returned when this does.
    pub(in crate::session) fn call(&self) {
        let mut callback = lock(&self.callback);
        if let Some(callback) = callback.take() {
            callback();
        }
    }
}

impl Drop for ReadEnd {
    fn drop(&mut self) {
        self.call();
    }
}

impl fmt::Debug for ReadEnd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ReadEnd").field("name", &self.name).finish_non_exhaustive()
    }
}
