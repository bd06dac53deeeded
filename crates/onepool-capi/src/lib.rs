//! The C interface of `onepool`; `include/onepool.h` is its documentation, of which functions have a summary here.
//!
//! Each function translates its arguments, calls the Rust interface and translates the result. A handle is a number that a
//! table knows ([`mod@handle`]), so one that is null, freed or of another kind is an error. A panic becomes a status.
//!
//! # Safety
//!
//! The exported functions are `unsafe` to call from Rust: their arguments are as `onepool.h` says, pointers that the
//! table does not know above all. The types of [`arg`] stand for such pointers.

#![allow(unsafe_code, reason = "pointers of C come in here")]
#![allow(clippy::missing_safety_doc, reason = "the safety of all functions is above")]

pub mod arg;
pub mod batch;
pub mod binding;
mod caller;
pub mod cancel;
pub mod dlpack;
pub mod embed;
pub mod frame;
pub mod generate;
pub mod handle;
mod io;
pub mod log;
pub mod memory;
pub mod metadata;
pub mod region;
pub mod run;
pub mod session;
pub mod status;
pub mod text;
pub mod types;
pub mod verdicts;
