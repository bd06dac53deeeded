//! Whether application memory may be imported, by which path a tensor goes, and why: pure policy.
//!
//! Drivers and validation layers check little of this: a software driver imports anything, a real one
//! reports trouble late or not at all. So every rule is checked here, on numbers and on the process's own
//! map, and every answer carries its reason.
//!
//! * [`rules`]: what a driver can import.
//! * [`window`]: the pages around a pointer, checked against the rules.
//! * [`costs`]: from which size an import pays, and from how many reads a copy does.
//! * [`refusal`]: why not, and what to do about it.
//! * [`verdict`]: the ladder of paths, the choice, and the report.
//! * [`map`]: live imports; a page is imported once.

#![forbid(unsafe_code)]

pub mod costs;
pub mod map;
pub mod refusal;
pub mod rules;
pub mod verdict;
pub mod window;

pub use costs::{CostSource, ImportCosts};
pub use map::{AcquireError, Conflict, ImportKey, ImportMap};
pub use refusal::Refusal;
pub use rules::{DeviceLimits, DriverKind, ImportRules};
pub use verdict::{Choice, DevicePolicy, Path, Reason, Request, Verdict, choose};
pub use window::{PageWindow, ReadWrite, enclosing, plan_window, sharing_pages};

/// Memory could not be bound as asked.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ImportError {
    /// The memory cannot be imported, and nothing else was asked for.
    #[error("{0}")]
    Refused(#[from] Refusal),
    /// Only a copy by the CPU would do, and `strict` forbids it.
    #[error("strict mode forbids copying {bytes} bytes: {refusal}")]
    Strict {
        /// Size of the tensor.
        bytes: u64,
        /// Why it would be copied.
        refusal: Refusal,
    },
    /// One binding of the tensor is larger than any the device takes, copied or not.
    #[error("a binding of {bytes} bytes exceeds the device's largest of {max}; split the tensor")]
    RangeTooLarge {
        /// Bytes a kernel would see at once.
        bytes: u64,
        /// Most bytes the device binds at once.
        max: u64,
    },
    /// Some, but not all, of the pages are imported already.
    #[error(transparent)]
    Conflict(#[from] Conflict),
}
