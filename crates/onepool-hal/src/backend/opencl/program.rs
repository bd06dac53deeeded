//! Programs: OpenCL C compiled once in the process, from a binary on disk where there is one.

use std::collections::HashMap;
use std::ffi::CString;
use std::sync::{Arc, Mutex, OnceLock};

use super::cache::BinaryCache;
use super::handle::{Context, DeviceId, Program};
use crate::backend::DeviceError;
use onepool_core::sync::lock;

/// From so many programs on, those that no kernel uses are forgotten.
const KEPT: usize = 1024;

/// What a program is made of.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct ProgramText {
    pub(super) source: String,
    pub(super) options: String,
}

type Entry = Arc<OnceLock<Result<Arc<Program>, DeviceError>>>;

/// The programs of one context.
#[derive(Debug, Default)]
pub(super) struct Programs {
    known: Mutex<HashMap<ProgramText, Entry>>,
}

impl Programs {
    /// The program of a text; several threads that ask for one wait for the first of them, and other programs
    /// are built meanwhile.
    pub(super) fn get(
        &self,
        context: &Context,
        device: DeviceId,
        cache: Option<&BinaryCache>,
        name: &str,
        text: ProgramText,
    ) -> Result<Arc<Program>, DeviceError> {
        let entry = {
            let mut known = lock(&self.known);
            if known.len() >= KEPT && known.len().is_power_of_two() {
                known.retain(|_, entry| match entry.get() {
                    Some(Ok(program)) => Arc::strong_count(program) > 1,
                    Some(Err(_)) => false,
                    None => true,
                });
            }
            Arc::clone(known.entry(text.clone()).or_default())
        };
        let built = entry.get_or_init(|| build(context, device, cache, name, &text).map(Arc::new)).clone();
        if matches!(&built, Err(error) if !matches!(error, DeviceError::Program { .. })) {
            // No fault of the program's: it may be built another time.
            let mut known = lock(&self.known);
            if known.get(&text).is_some_and(|held| Arc::ptr_eq(held, &entry)) {
                known.remove(&text);
            }
        }
        built
    }

    /// Forgets everything, as a new process would.
    #[cfg(any(test, feature = "testing"))]
    pub(super) fn forget(&self) {
        lock(&self.known).clear();
    }

    /// How many there are.
    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        lock(&self.known).len()
    }
}

fn build(
    context: &Context,
    device: DeviceId,
    cache: Option<&BinaryCache>,
    name: &str,
    text: &ProgramText,
) -> Result<Program, DeviceError> {
    let refuse = |log: String| DeviceError::Program { kernel: name.to_owned(), log };
    let options =
        CString::new(text.options.as_str()).map_err(|_| refuse("its options hold a zero byte".to_owned()))?;
    let key = format!("{}\0{}", text.options, text.source);
    if let Some(binary) = cache.and_then(|cache| cache.load(&key)) {
        // A driver may refuse what it wrote itself; from the source it has no reason to.
        let program = context.program_from_binary(device, &binary);
        match program.map(|program| program.build(name, device, &options).map(|()| program)) {
            Ok(Ok(program)) => return Ok(program),
            refused => tracing::debug!(target: "onepool::opencl", name, ?refused, "binary refused"),
        }
    }
    let program = context.program_from_source(&text.source)?;
    program.build(name, device, &options)?;
    if let Some(cache) = cache
        && let Some(binary) = program.binary()
    {
        cache.save(&key, &binary);
    }
    Ok(program)
}
