//! Memory bound to inputs and outputs, and the commands recorded for it.

#![forbid(unsafe_code)]

pub(in crate::session) mod binding;
pub(in crate::session) mod host_ranges;
pub(in crate::session) mod launch;
pub(in crate::session) mod memory;
pub(in crate::session) mod neighbours;
pub(in crate::session) mod rebind;
pub(in crate::session) mod recording;
pub(in crate::session) mod slot;
