//! `onepool_verdicts`: how each bound tensor reaches the devices, and why.

use std::ffi::CString;
use std::ptr;

use onepool::memory::import;
use onepool::session::Binding;

use crate::arg::Out;
use crate::handle::{Handle, Object, free};
use crate::io::text;
use crate::session::outside;
use crate::status::{Status, guard};
use crate::types::{ACCESSES, PATHS, Verdict};

/// What an `onepool_verdicts` stands for.
#[derive(Debug)]
pub(crate) struct Verdicts(Vec<Entry>);

#[derive(Debug)]
struct Entry {
    verdict: import::Verdict,
    tensor: CString,
    reason: CString,
    fix: Option<CString>,
    sentence: CString,
}

impl Object for Verdicts {
    const KIND: &'static str = "onepool_verdicts";
}

impl Verdicts {
    pub(crate) fn new(binding: &Binding<'static>) -> Self {
        let entry = |verdict: &import::Verdict| Entry {
            tensor: text(&verdict.tensor),
            reason: text(&verdict.reason.sentence()),
            fix: verdict.reason.fix().map(text),
            sentence: text(&verdict.to_string()),
            verdict: verdict.clone(),
        };
        Verdicts(binding.stages().flat_map(Binding::verdicts).map(entry).collect())
    }
}

impl Entry {
    /// As C reads it, for as long as this lives.
    fn to_c(&self, struct_size: usize) -> Verdict {
        let verdict = &self.verdict;
        let bytes = |copied: bool| if copied { verdict.bytes } else { 0 };
        let path = PATHS.iter().find(|(.., path)| *path == verdict.path);
        let access = ACCESSES.iter().find(|(.., access)| *access == verdict.access);
        Verdict {
            struct_size,
            tensor: self.tensor.as_ptr(),
            path: path.map_or(u32::MAX, |(number, ..)| *number),
            access: access.map_or(u32::MAX, |(number, ..)| *number),
            bytes: verdict.bytes,
            offset: verdict.offset,
            cpu_copied: bytes(verdict.path.copies_on_cpu()),
            device_copied: bytes(verdict.copies_on_device()),
            reason: self.reason.as_ptr(),
            fix: self.fix.as_ref().map_or(ptr::null(), |fix| fix.as_ptr()),
            sentence: self.sentence.as_ptr(),
        }
    }
}

/// The number of verdicts: a tensor that several devices use has one for each.
#[unsafe(no_mangle)] // SAFETY: its arguments are as the header says.
pub unsafe extern "C" fn onepool_verdicts_count(verdicts: Handle, count: Out<usize>) -> Status {
    guard(|| {
        let place = count.place("count")?;
        place.set(verdicts.get::<Verdicts>("verdicts")?.0.len());
        Ok(())
    })
}

/// Verdict `index`, from 0.
#[unsafe(no_mangle)] // SAFETY: its arguments are as the header says.
pub unsafe extern "C" fn onepool_verdicts_get(
    verdicts: Handle,
    index: usize,
    verdict: Out<Verdict>,
) -> Status {
    guard(|| {
        let (place, size) = verdict.room("verdict")?;
        let all = verdicts.get::<Verdicts>("verdicts")?;
        let entry = all.0.get(index).ok_or_else(|| outside(index, all.0.len()))?;
        place.set(entry.to_c(size));
        Ok(())
    })
}

/// Frees the list and its strings.
#[unsafe(no_mangle)] // SAFETY: no other library has names that begin with `onepool_`.
pub extern "C" fn onepool_verdicts_free(verdicts: Handle) -> Status {
    free::<Verdicts>(verdicts, "verdicts")
}
