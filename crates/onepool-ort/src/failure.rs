//! What goes wrong, as onnxruntime is told: a code and a sentence. No panic leaves the library.

use std::any::Any;
use std::fmt::Display;
use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::abi::{EP_FAIL, INVALID_ARGUMENT, INVALID_GRAPH};

/// An error of a call.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Failure {
    pub(crate) code: u32,
    pub(crate) message: String,
}

impl Failure {
    pub(crate) fn new(code: u32, message: impl Into<String>) -> Self {
        Failure { code, message: message.into() }
    }

    /// An argument or option is wrong.
    pub(crate) fn argument(message: impl Into<String>) -> Self {
        Failure::new(INVALID_ARGUMENT, message)
    }

    /// A graph is not what the interface says.
    pub(crate) fn graph(message: impl Into<String>) -> Self {
        Failure::new(INVALID_GRAPH, message)
    }

    /// The same error, of `what`.
    pub(crate) fn of(mut self, what: impl Display) -> Self {
        self.message = format!("{what}: {}", self.message);
        self
    }
}

impl<E: Into<onepool::session::Error>> From<E> for Failure {
    fn from(error: E) -> Self {
        Failure::new(EP_FAIL, error.into().to_string())
    }
}

/// Does `work`; a panic is an error.
pub(crate) fn caught<R>(work: impl FnOnce() -> Result<R, Failure>) -> Result<R, Failure> {
    catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|panic| Err(panicked(&*panic)))
}

fn panicked(panic: &(dyn Any + Send)) -> Failure {
    let said = panic.downcast_ref::<&str>().copied();
    let said = said.or(panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("of an unknown kind");
    Failure::new(EP_FAIL, format!("a defect of the library: panic: {said}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_is_an_error_with_its_words() {
        let said = caught::<()>(|| panic!("one {}", 2)).unwrap_err();
        assert_eq!(said, Failure::new(EP_FAIL, "a defect of the library: panic: one 2"));
        assert!(caught::<()>(|| std::panic::panic_any(7)).unwrap_err().message.ends_with("unknown kind"));
        assert_eq!(caught(|| Ok(3)), Ok(3));
        assert_eq!(Failure::argument("b").of("a").message, "a: b");
    }
}
