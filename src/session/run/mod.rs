//! Runs of a binding.

mod inlay;
pub(in crate::session) mod pending;
pub(in crate::session) mod pending_run;
pub(in crate::session) mod profile;
mod reads;
pub(in crate::session) mod segments;
