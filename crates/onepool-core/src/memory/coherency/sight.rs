//! Memory that several views show, none of which sees at once what is written through another.

use std::collections::BTreeMap;

use crate::memory::coherency::Access;
use crate::memory::range::{ByteRange, RangeSet};

/// What the device of each view knows of the bytes, as commands pass by. `R` names memory, as [`super::ResourceId`] does.
///
/// Whoever has no view, as the host, a native function or a device whose memory is coherent, reads and writes the memory
/// itself.
#[derive(Clone, Debug)]
pub struct Sight<R> {
    atom: u64,
    /// By memory and view, the atoms that no one else wrote in since its device wrote them or was shown them.
    settled: BTreeMap<R, BTreeMap<u32, RangeSet>>,
}

/// What an access through a view takes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Exchange {
    /// Flush the bytes before the submission: someone else may have written them.
    pub flush: bool,
    /// Invalidate the bytes when the submission is over, so that everyone else sees what it wrote.
    pub invalidate: bool,
}

impl<R: Ord + Copy> Sight<R> {
    /// No one knows anything yet. A flush or an invalidate takes whole atoms of `atom` bytes, neighbours included.
    pub fn new(atom: u64) -> Self {
        Sight { atom: atom.max(1), settled: BTreeMap::new() }
    }

    /// Takes an access by the device of `view`, or by one without a view of its own.
    ///
    /// Bytes that are only written are flushed too: an invalidate of what the host wrote and did not flush leaves
    /// them undefined (Vulkan, `vkInvalidateMappedMemoryRanges`). Only what is written is invalidated: another device
    /// may be writing in parallel.
    pub fn access(&mut self, memory: R, view: Option<u32>, range: ByteRange, access: Access) -> Exchange {
        if range.is_empty() || access.is_empty() {
            return Exchange::default();
        }
        let range = range.align_out(self.atom);
        let writes = !access.writes().is_empty();
        let known = self.settled.entry(memory).or_default();
        let mut flush = false;
        if let Some(view) = view {
            let settled = known.entry(view).or_default();
            flush = !settled.contains(range);
            settled.insert(range);
        }
        if writes {
            let others = known.iter_mut().filter(|(other, _)| Some(**other) != view);
            others.for_each(|(_, settled)| settled.remove(range));
        }
        Exchange { flush, invalidate: writes && view.is_some() }
    }

    /// Forgets what is known of memory that others may write between two runs.
    pub fn keep(&mut self, is_private: impl Fn(&R) -> bool) {
        self.settled.retain(|memory, _| is_private(memory));
    }
}

/// Ranges to flush before a submission and to invalidate after it, by memory.
#[derive(Clone, Debug)]
pub struct Exchanged<M> {
    flush: BTreeMap<M, RangeSet>,
    invalidate: BTreeMap<M, RangeSet>,
}

impl<M: Ord + Copy> Exchanged<M> {
    /// No range.
    pub fn new() -> Self {
        Exchanged { flush: BTreeMap::new(), invalidate: BTreeMap::new() }
    }

    /// Adds what an access to these bytes of `memory` takes; they are whole atoms.
    pub fn add(&mut self, memory: M, atoms: ByteRange, exchange: Exchange) {
        if exchange.flush {
            self.flush.entry(memory).or_default().insert(atoms);
        }
        if exchange.invalidate {
            self.invalidate.entry(memory).or_default().insert(atoms);
        }
    }

    /// What to flush, each byte once.
    pub fn flush(&self) -> impl Iterator<Item = (M, ByteRange)> {
        merged(&self.flush)
    }

    /// What to invalidate, each byte once.
    pub fn invalidate(&self) -> impl Iterator<Item = (M, ByteRange)> {
        merged(&self.invalidate)
    }
}

impl<M: Ord + Copy> Default for Exchanged<M> {
    fn default() -> Self {
        Exchanged::new()
    }
}

fn merged<M: Copy>(sets: &BTreeMap<M, RangeSet>) -> impl Iterator<Item = (M, ByteRange)> {
    sets.iter().flat_map(|(memory, set)| set.iter().map(|range| (*memory, range)))
}

/// The bytes as a flush or an invalidate names them: whole atoms of `atom` bytes that end within a mapping of `bytes`.
pub fn atoms(range: ByteRange, atom: u64, bytes: u64) -> ByteRange {
    let grown = range.align_out(atom.max(1));
    ByteRange::new(grown.start, grown.end.min(bytes))
}
