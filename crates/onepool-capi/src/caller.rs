//! What a caller's memory is for, where its pointers go, and how its tensors lie.

use onepool::Shape;
use onepool::memory::import::ReadWrite;
use onepool::session::SessionError;

use crate::status::Failure;

/// Which end of a graph.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Side {
    Input,
    Output,
}

impl Side {
    /// What a device does with the memory.
    pub(crate) fn access(self) -> ReadWrite {
        match self {
            Side::Input => ReadWrite::Read,
            Side::Output => ReadWrite::ReadWrite,
        }
    }
}

/// A pointer of the caller's that goes to another thread, where only the caller's functions use it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Foreign<T>(pub(crate) *mut T);

// SAFETY: it is handed back to functions of the caller's, who promised that any thread may call them.
unsafe impl<T> Send for Foreign<T> {}
// SAFETY: as above.
unsafe impl<T> Sync for Foreign<T> {}

impl<T> Foreign<T> {
    pub(crate) fn pointer(&self) -> *mut T {
        self.0
    }
}

/// Checks that a tensor lies compactly in its memory: there is no other way in Rust either.
pub(crate) fn check_strides(name: &str, shape: &Shape, strides: &[i64]) -> Result<(), Failure> {
    if shape.is_compact(strides) {
        return Ok(());
    }
    let expected = shape.strides().iter().map(|s| i64::try_from(*s).unwrap_or(i64::MAX)).collect();
    let (name, got) = (name.to_owned(), strides.to_vec());
    Err(SessionError::Strides { name, expected, got }.into())
}
