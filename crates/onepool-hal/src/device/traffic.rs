//! Counts of the bytes that go between a device's memory and the host.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::recording::{Command, Recording};

/// Bytes that were moved or lent since a context was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct Traffic {
    /// Bytes that commands of the device copied.
    pub copied: u64,
    /// Bytes that guards lent the host for reading.
    pub host_read: u64,
    /// Bytes that guards lent the host for writing.
    pub host_written: u64,
    /// Bytes among `host_read` whose memory the host reads past its caches: mapped, not cached, and not the
    /// application's own.
    pub read_past_caches: u64,
}

#[derive(Debug, Default)]
pub(super) struct Counters {
    copied: AtomicU64,
    host_read: AtomicU64,
    host_written: AtomicU64,
    read_past_caches: AtomicU64,
}

impl Counters {
    pub(super) fn get(&self) -> Traffic {
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        Traffic {
            copied: get(&self.copied),
            host_read: get(&self.host_read),
            host_written: get(&self.host_written),
            read_past_caches: get(&self.read_past_caches),
        }
    }

    pub(super) fn copied(&self, bytes: u64) {
        self.copied.fetch_add(bytes, Ordering::Relaxed);
    }

    pub(super) fn lent(&self, bytes: u64, write: bool, cached: bool) {
        let counter = if write { &self.host_written } else { &self.host_read };
        counter.fetch_add(bytes, Ordering::Relaxed);
        if !write && !cached {
            self.read_past_caches.fetch_add(bytes, Ordering::Relaxed);
        }
    }
}

/// Bytes that the commands of a recording copy.
pub(super) fn copied_by(recording: &Recording) -> u64 {
    let bytes = |command: &Command| match command {
        Command::Copy { src, .. } => src.bytes,
        _ => 0,
    };
    recording.commands.iter().map(bytes).fold(0, u64::saturating_add)
}
