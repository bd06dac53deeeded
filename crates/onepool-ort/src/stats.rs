//! What runs did, counted for the whole process.

use std::sync::atomic::{AtomicU64, Ordering};

/// Counters since the library was loaded. New fields come at the end.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OnepoolOrtStats {
    /// Runs of compiled parts.
    pub runs: u64,
    /// Bytes of inputs and outputs that devices used where onnxruntime had them.
    pub bytes_in_place: u64,
    /// Bytes of inputs and outputs that the CPU copied.
    pub bytes_copied: u64,
    /// Sets of memory that were bound anew.
    pub bindings: u64,
    /// Parts that were compiled.
    pub parts: u64,
    /// Nodes in them.
    pub nodes: u64,
    /// Bytes of imported allocations that devices have mapped now, once for each device.
    pub bytes_held: u64,
}

static RUNS: AtomicU64 = AtomicU64::new(0);
static IN_PLACE: AtomicU64 = AtomicU64::new(0);
static COPIED: AtomicU64 = AtomicU64::new(0);
static BINDINGS: AtomicU64 = AtomicU64::new(0);
static PARTS: AtomicU64 = AtomicU64::new(0);
static NODES: AtomicU64 = AtomicU64::new(0);
static HELD: AtomicU64 = AtomicU64::new(0);

/// Bytes of one run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Moved {
    pub(crate) in_place: u64,
    pub(crate) copied: u64,
}

pub(crate) fn ran(moved: Moved) {
    RUNS.fetch_add(1, Ordering::Relaxed);
    IN_PLACE.fetch_add(moved.in_place, Ordering::Relaxed);
    COPIED.fetch_add(moved.copied, Ordering::Relaxed);
}

pub(crate) fn bound() {
    BINDINGS.fetch_add(1, Ordering::Relaxed);
}

pub(crate) fn compiled(nodes: usize) {
    PARTS.fetch_add(1, Ordering::Relaxed);
    NODES.fetch_add(nodes as u64, Ordering::Relaxed);
}

pub(crate) fn holds(bytes: u64) {
    HELD.fetch_add(bytes, Ordering::Relaxed);
}

pub(crate) fn let_go(bytes: u64) {
    HELD.fetch_sub(bytes, Ordering::Relaxed);
}

pub(crate) fn read() -> OnepoolOrtStats {
    let of = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
    OnepoolOrtStats {
        runs: of(&RUNS),
        bytes_in_place: of(&IN_PLACE),
        bytes_copied: of(&COPIED),
        bindings: of(&BINDINGS),
        parts: of(&PARTS),
        nodes: of(&NODES),
        bytes_held: of(&HELD),
    }
}
