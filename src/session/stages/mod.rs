//! Parts of a graph that are planned in the run: the steps and tail of a split graph, bodies of Loop and Scan.

pub(in crate::session) mod continuation;
pub(in crate::session) mod control;
