//! How large values of a template may be.

use minijinja::value::ValueKind;
use minijinja::{Error, ErrorKind, Value};

/// The most bytes that one value makes.
pub(super) const MAX_VALUE: usize = 16 << 20;

/// The most elements of a list that a filter goes through, and the most parts that it makes.
pub(super) const MAX_ELEMENTS: usize = 1 << 20;

pub(super) fn wrong(problem: impl Into<String>) -> Error {
    Error::new(ErrorKind::InvalidOperation, problem.into())
}

/// Values that a filter may be given.
pub(super) fn check(args: &[Value]) -> Result<(), Error> {
    for arg in args {
        if arg.as_str().is_some_and(|text| text.len() > MAX_VALUE) {
            return Err(wrong(format!("a text has more than {MAX_VALUE} bytes")));
        }
        let is_list = matches!(arg.kind(), ValueKind::Seq | ValueKind::Iterable | ValueKind::Map);
        if is_list && arg.len().is_some_and(|len| len > MAX_ELEMENTS) {
            return Err(wrong(format!("a filter takes lists of at most {MAX_ELEMENTS}")));
        }
    }
    Ok(())
}
