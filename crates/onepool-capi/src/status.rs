//! Statuses, the message of the last error, and what keeps panics from crossing.

use std::any::Any;
use std::cell::RefCell;
use std::ffi::{CStr, CString, c_char};
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};

use onepool::session::{Error, ErrorClass};
use onepool_core::error::chain;

/// `onepool_status` of the header.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    /// The call did what it says.
    Ok = 0,
    /// An argument is null, out of range or not what it must be.
    InvalidArgument = 1,
    /// A handle is null, freed or of another kind.
    InvalidHandle = 2,
    /// No input or output has that name.
    UnknownName = 3,
    /// The element type is another than the model's.
    WrongType = 4,
    /// Sizes or strides do not fit the model.
    WrongShape = 5,
    /// Memory has fewer bytes than its tensor.
    TooSmall = 6,
    /// An input has neither memory nor a value.
    Unbound = 7,
    /// Two tensors share bytes that the graph cannot have shared.
    Overlap = 8,
    /// Strict mode forbids a copy.
    Strict = 9,
    /// Something else uses the object or the memory now.
    Busy = 10,
    /// The run was cancelled.
    Cancelled = 11,
    /// The run took longer than it was given.
    TimeLimit = 12,
    /// What is waited for is not over yet.
    Timeout = 13,
    /// There is no result yet.
    NotRun = 14,
    /// The model is no sound one, or holds what is not supported.
    Model = 15,
    /// There is no such device, or it cannot be opened.
    NoDevice = 16,
    /// Memory ran out.
    OutOfMemory = 17,
    /// The device stopped.
    DeviceLost = 18,
    /// A device call failed.
    Device = 19,
    /// A defect of the library.
    Panic = 20,
}

impl Status {
    /// Every status, and its name in the header.
    pub const ALL: [(Status, &CStr); 21] = [
        (Status::Ok, c"ONEPOOL_OK"),
        (Status::InvalidArgument, c"ONEPOOL_ERROR_INVALID_ARGUMENT"),
        (Status::InvalidHandle, c"ONEPOOL_ERROR_INVALID_HANDLE"),
        (Status::UnknownName, c"ONEPOOL_ERROR_UNKNOWN_NAME"),
        (Status::WrongType, c"ONEPOOL_ERROR_WRONG_TYPE"),
        (Status::WrongShape, c"ONEPOOL_ERROR_WRONG_SHAPE"),
        (Status::TooSmall, c"ONEPOOL_ERROR_TOO_SMALL"),
        (Status::Unbound, c"ONEPOOL_ERROR_UNBOUND"),
        (Status::Overlap, c"ONEPOOL_ERROR_OVERLAP"),
        (Status::Strict, c"ONEPOOL_ERROR_STRICT"),
        (Status::Busy, c"ONEPOOL_ERROR_BUSY"),
        (Status::Cancelled, c"ONEPOOL_ERROR_CANCELLED"),
        (Status::TimeLimit, c"ONEPOOL_ERROR_TIME_LIMIT"),
        (Status::Timeout, c"ONEPOOL_ERROR_TIMEOUT"),
        (Status::NotRun, c"ONEPOOL_ERROR_NOT_RUN"),
        (Status::Model, c"ONEPOOL_ERROR_MODEL"),
        (Status::NoDevice, c"ONEPOOL_ERROR_NO_DEVICE"),
        (Status::OutOfMemory, c"ONEPOOL_ERROR_OUT_OF_MEMORY"),
        (Status::DeviceLost, c"ONEPOOL_ERROR_DEVICE_LOST"),
        (Status::Device, c"ONEPOOL_ERROR_DEVICE"),
        (Status::Panic, c"ONEPOOL_ERROR_PANIC"),
    ];
}

/// A status that is no success, and what it says.
#[derive(Clone, Debug)]
pub(crate) struct Failure {
    pub(crate) status: Status,
    pub(crate) message: String,
}

impl Failure {
    pub(crate) fn new(status: Status, message: impl Into<String>) -> Self {
        Failure { status, message: message.into() }
    }

    /// What is wrong with argument `argument`.
    pub(crate) fn argument(argument: &str, problem: impl fmt::Display) -> Self {
        Failure::new(Status::InvalidArgument, format!("argument `{argument}` {problem}"))
    }

    /// The same, said of argument `argument`.
    pub(crate) fn of(self, argument: &str) -> Self {
        Failure { message: format!("argument `{argument}`: {}", self.message), ..self }
    }

    fn panicked(panic: Box<dyn Any + Send>) -> Self {
        let said = match panic.downcast::<String>() {
            Ok(text) => *text,
            Err(other) => match other.downcast::<&'static str>() {
                Ok(text) => (*text).to_owned(),
                Err(other) => {
                    // Its destructor could panic too.
                    std::mem::forget(other);
                    "of an unknown kind".to_owned()
                }
            },
        };
        Failure::new(Status::Panic, format!("a defect of the library: panic: {said}"))
    }

    /// The message as C reads it.
    pub(crate) fn text(&self) -> CString {
        CString::new(self.message.replace('\0', "\u{fffd}")).unwrap_or_default()
    }
}

impl<E: Into<Error>> From<E> for Failure {
    fn from(error: E) -> Self {
        let error = error.into();
        Failure { status: error.class().into(), message: chain(&error) }
    }
}

impl From<ErrorClass> for Status {
    fn from(class: ErrorClass) -> Self {
        match class {
            ErrorClass::InvalidArgument => Status::InvalidArgument,
            ErrorClass::UnknownName => Status::UnknownName,
            ErrorClass::WrongType => Status::WrongType,
            ErrorClass::WrongShape => Status::WrongShape,
            ErrorClass::TooSmall => Status::TooSmall,
            ErrorClass::Unbound => Status::Unbound,
            ErrorClass::NotRun => Status::NotRun,
            ErrorClass::Overlap => Status::Overlap,
            ErrorClass::Strict => Status::Strict,
            ErrorClass::Busy => Status::Busy,
            ErrorClass::Cancelled => Status::Cancelled,
            ErrorClass::TimeLimit => Status::TimeLimit,
            ErrorClass::ModelNotFound | ErrorClass::Unsupported | ErrorClass::Model => Status::Model,
            ErrorClass::NoDevice => Status::NoDevice,
            ErrorClass::OutOfMemory => Status::OutOfMemory,
            ErrorClass::DeviceLost => Status::DeviceLost,
            _ => Status::Device,
        }
    }
}

thread_local! {
    static LAST: RefCell<CString> = RefCell::default();
}

/// Does `work`; what goes wrong, panics included, is a status, and its message this thread's last one.
pub(crate) fn guard(work: impl FnOnce() -> Result<(), Failure>) -> Status {
    match caught(work) {
        Ok(()) => Status::Ok,
        Err(failure) => {
            // A thread that ends has no place for it any more.
            let _ = LAST.try_with(|last| *last.borrow_mut() = failure.text());
            failure.status
        }
    }
}

/// Does `work`; a panic is a failure.
pub(crate) fn caught<R>(work: impl FnOnce() -> Result<R, Failure>) -> Result<R, Failure> {
    catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|panic| Err(Failure::panicked(panic)))
}

/// The message of this thread's last call that failed, "" if none did; valid until the next call that fails.
#[unsafe(no_mangle)] // SAFETY: no other library has names that begin with `onepool_`.
pub extern "C" fn onepool_last_error() -> *const c_char {
    LAST.try_with(|last| last.borrow().as_ptr()).unwrap_or(c"".as_ptr())
}

/// The name of a status in the header, as `ONEPOOL_OK`; null for another number.
#[unsafe(no_mangle)] // SAFETY: as above.
pub extern "C" fn onepool_status_name(status: u32) -> *const c_char {
    let known = Status::ALL.iter().find(|(known, _)| *known as u32 == status);
    known.map_or(std::ptr::null(), |(_, name)| name.as_ptr())
}

/// The version of the library, "MAJOR.MINOR.PATCH"; lives as long as the library.
#[unsafe(no_mangle)] // SAFETY: as above.
pub extern "C" fn onepool_version() -> *const c_char {
    const VERSION: &str = concat!(env!("CARGO_PKG_VERSION"), "\0");
    VERSION.as_ptr().cast()
}

#[cfg(test)]
mod tests {
    use onepool::backend::DeviceError;
    use onepool::session::SessionError;

    use super::*;

    fn last() -> String {
        LAST.with(|last| last.borrow().to_string_lossy().into_owned())
    }

    #[test]
    fn a_panic_is_a_status_and_its_words_are_kept() {
        assert_eq!(guard(|| panic!("one {}", 2)), Status::Panic);
        assert_eq!(last(), "a defect of the library: panic: one 2");
        assert_eq!(guard(|| std::panic::panic_any(7)), Status::Panic);
        assert!(last().ends_with("of an unknown kind"));
        assert_eq!(guard(|| Err(Failure::argument("x", "is a\0b"))), Status::InvalidArgument);
        assert_eq!(last(), "argument `x` is a\u{fffd}b");
    }

    #[test]
    fn every_error_of_a_session_has_a_status() {
        let cases = [
            (SessionError::NotRun, Status::NotRun),
            (SessionError::Unbound { names: vec!["x".to_owned()] }, Status::Unbound),
            (SessionError::Capacity { name: "x".to_owned(), needed: 2, got: 1 }, Status::TooSmall),
            (SessionError::Overlap { first: "x".to_owned(), second: "y".to_owned() }, Status::Overlap),
            (SessionError::Strict { verdict: String::new() }, Status::Strict),
            (SessionError::Cancelled { at: Default::default() }, Status::Cancelled),
            (
                SessionError::TimeLimit { limit: Default::default(), at: Default::default() },
                Status::TimeLimit,
            ),
            (SessionError::NoModel, Status::InvalidArgument),
        ];
        for (error, status) in cases {
            assert_eq!(Failure::from(error).status, status);
        }
        let lost = DeviceError::Lost { detail: String::new() };
        assert_eq!(Failure::from(lost).status, Status::DeviceLost);
        let short = DeviceError::OutOfDeviceMemory { bytes: 1 };
        assert_eq!(Failure::from(short).status, Status::OutOfMemory);
    }
}
