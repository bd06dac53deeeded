//! The application's memory: which bytes, who sees them, and whether a device may use them in place.
//!
//! * [`range`]: byte ranges, range sets and interval maps.
//! * [`coherency`]: a pure state machine; accesses in, barriers, flushes and invalidates out.
//! * [`import`]: pure policy; which window of pages a device may import, by which path a tensor goes,
//!   and why.
//! * [`host`]: owned, page-aligned memory that a device may import.
//! * [`dma_buf`], [`memory_file`]: memory files as dma-bufs, where a driver takes no pointer to their pages.
//! * [`identity`]: which file it is, and which state of it.
//! * [`image`]: pure; images that lie in buffers, by the numbers a driver gives.
//! * [`lease`]: pure; keeps host slices and device accesses of one region apart.
//! * [`model`]: pure; what a device's memory is, the one place that decisions ask.
//! * [`budget`]: live imports and allocations against what the device can hold.
//! * [`stream`]: reads of memory that the caches pass by.
//! * [`os`]: pages and the process map, one file per operating system.
//!
//! Invariant of the layer: it knows no device API. `host` and the files of `os` are the only ones with
//! `unsafe`; the rest is arithmetic that a property test can drive.

pub mod budget;
pub mod coherency;
pub mod dma_buf;
mod fill;
pub mod host;
mod host_error;
pub mod identity;
pub mod image;
pub mod import;
pub mod lease;
pub mod memory_file;
pub mod model;
pub mod os;
pub mod range;
pub mod stream;

use host::SharedRegion;
use import::{ImportRules, PageWindow, ReadWrite, Refusal, enclosing, plan_window};

/// The pages around `bytes` bytes at `addr`, if a device with these rules can import each of them: pages of `owner`
/// by what the runtime made them, any others by the process's own map.
///
/// The answer holds as long as no one remaps the pages; only their owner can promise that.
///
/// # Errors
/// The first rule that is broken, with its numbers and the fix.
pub fn window_of(
    addr: u64,
    bytes: u64,
    access: ReadWrite,
    rules: &ImportRules,
    owner: Option<&SharedRegion>,
) -> Result<PageWindow, Refusal> {
    let page = os::page_size() as u64;
    let pages = enclosing(addr, bytes, rules, page)?;
    let own = owner.map(SharedRegion::map_entry).filter(|own| own.range.contains(pages));
    let map = own.map_or_else(|| os::process_map(pages), |own| Ok(vec![own]))?;
    plan_window(addr, bytes, access, rules, &map, page)
}
