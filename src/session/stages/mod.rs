//! Parts of a graph that are planned in the run: the steps and tail of a split graph, bodies of Loop and Scan.

#![forbid(unsafe_code)]

pub(in crate::session) mod continuation;
pub(in crate::session) mod control;
