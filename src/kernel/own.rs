//! Kernels of this crate, and recordings that run them.
//!
//! An island of `unsafe`: what such a kernel may touch it takes from parameters that only this crate gives it.

#![allow(
    unsafe_code,
    reason = "says of this crate's kernels and recordings what callers of unsafe functions owe"
)]

use std::borrow::Cow;

use super::{KernelId, KernelSource};
use crate::backend::ForeignCommands;
#[cfg(test)]
use crate::device::Event;
use crate::device::{Error, Inlay, Prepared, Queue};
use crate::recording::Recording;
use crate::spirv::{SpirvError, check_module};

impl KernelId {
    /// The kernel, for [`Context::create_kernel`](crate::device::Context::create_kernel). Recordings of an
    /// application's own cannot run it.
    pub fn source(self) -> KernelSource {
        let info = self.info();
        // SAFETY: the compiler of shaders made the words, and reflection was of them when the crate was built.
        unsafe { KernelSource::own(info.name, Cow::Borrowed(info.spirv()), info.reflection()) }
    }
}

/// A SPIR-V module that this crate built.
pub(crate) fn generated(name: String, words: Vec<u32>) -> Result<KernelSource, SpirvError> {
    let reflection = check_module(&words)?;
    // SAFETY: `spirv::builder` made the words, and the reflection is theirs.
    Ok(unsafe { KernelSource::own(name, words.into(), reflection) })
}

/// [`Queue::prepare_own`] of a recording that this crate made of a plan.
pub(crate) fn prepare(queue: &Queue, recording: Recording, cuts: &[usize]) -> Result<Prepared, Error> {
    // SAFETY: operators lower to parameters that keep their kernels inside the arguments (docs/SAFETY.md).
    unsafe { queue.prepare_own(recording, cuts) }
}

/// [`Queue::record_own_into`] of a recording that this crate made of a plan.
///
/// # Safety
/// As there, but for the kernels.
pub(crate) unsafe fn record_into(
    queue: &Queue,
    recording: Recording,
    commands: &ForeignCommands,
) -> Result<Inlay, Error> {
    // SAFETY: as for `prepare`, and as the caller promises.
    unsafe { queue.record_own_into(recording, commands) }
}

/// [`Queue::submit_own`] of a recording that this crate made of a plan.
#[cfg(test)]
pub(crate) fn submit(queue: &Queue, recording: Recording) -> Result<Event, Error> {
    // SAFETY: as for `prepare`.
    unsafe { queue.submit_own(recording) }
}

/// [`Queue::submit_unordered`] of a recording that this crate made of a plan.
#[cfg(test)]
pub(crate) fn submit_unordered(queue: &Queue, recording: Recording) -> Result<Event, Error> {
    // SAFETY: as for `prepare`.
    unsafe { queue.submit_unordered(recording) }
}
