//! Runs of a binding.

pub(in crate::session) mod pending;
pub(in crate::session) mod pending_run;
pub(in crate::session) mod profile;
mod reads;
pub(in crate::session) mod segments;
