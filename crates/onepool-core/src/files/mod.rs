//! Files that someone else may have made or touched: folders of caches, and data in a model's folder.
//!
//! What is opened here is a regular file of at most so many bytes, found without following a way out of its folder;
//! whatever else lies under the name is an error at once, never a wait.

#![forbid(unsafe_code)]

pub mod cache;
mod entry;
pub mod hash;
pub mod open;

#[cfg(unix)]
mod unix;
#[cfg(unix)]
use unix as system;
#[cfg(not(unix))]
mod other;
#[cfg(not(unix))]
use other as system;
