//! The application's memory: which bytes, who sees them, and whether a device may use them in place.
//!
//! * [`range`]: byte ranges, range sets and interval maps.
//! * [`coherency`]: a pure state machine; accesses in, barriers, flushes and invalidates out.
//! * [`import`]: pure policy; which window of pages a device may import, by which path a tensor goes,
//!   and why.
//! * [`host`]: owned, page-aligned memory that a device may import.
//! * [`lease`]: pure; keeps host slices and device accesses of one region apart.
//! * [`budget`]: live imports and allocations against what the device can hold.
//! * [`os`]: pages and the process map, one file per operating system.
//!
//! Invariant of the layer: it knows no device API. `host` and the files of `os` are the only ones with
//! `unsafe`; the rest is arithmetic that a property test can drive.

pub mod budget;
pub mod coherency;
pub mod host;
pub mod import;
pub mod lease;
pub mod os;
pub mod range;
