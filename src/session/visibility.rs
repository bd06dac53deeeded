//! What is flushed before and invalidated after each segment, in memory that is not coherent.

use std::collections::BTreeMap;

use super::binding::Binding;
use super::slot::Slot;
use crate::device::Buffer;
use crate::memory::range::{ByteRange, RangeSet};
use crate::plan::{Place, Plan, Segment};
use crate::recording::{BufferId, BufferRange};

/// What one segment's recording names.
#[derive(Clone, Debug, Default)]
pub(super) struct HostRanges {
    pub(super) flush: Vec<BufferRange>,
    pub(super) invalidate: Vec<BufferRange>,
}

impl Binding<'_> {
    /// For each segment of `plan`, in order: a flush of what its device touches and somebody else may have written
    /// since that device wrote it or was shown it, and an invalidate of what it writes.
    ///
    /// Bytes that are only written are flushed too: an invalidate of what the host wrote and did not flush leaves
    /// them undefined (Vulkan, `vkInvalidateMappedMemoryRanges`). Memory that the session copies through is flushed
    /// and invalidated by those copies.
    pub(super) fn host_ranges(&self, plan: &Plan) -> Vec<HostRanges> {
        let imports = self.arenas.buffers().chain(self.inputs.iter().chain(&self.outputs).flat_map(Slot::buffers));
        if !imports.into_iter().any(is_split) {
            return vec![HostRanges::default(); plan.segments.len()];
        }
        let mut sight = Sight { binding: self, plan, settled: BTreeMap::new() };
        // A run finds its own arenas as the run before left them, and everything else as the host may have.
        if self.inner.options.arena.is_none() {
            (0..plan.segments.len()).for_each(|s| drop(sight.segment(s)));
            sight.settled.retain(|place, _| matches!(place, Place::Arena(_)));
        }
        (0..plan.segments.len()).map(|s| sight.segment(s)).collect()
    }
}

/// All of `buffer`, in whole atoms of `atom` bytes; nothing where host and device see the same.
pub(super) fn all_of(buffer: &Buffer, atom: u64) -> Vec<BufferRange> {
    let mut all = Atoms::default();
    if is_split(buffer) {
        all.insert(buffer.range(), ByteRange::up_to(buffer.bytes()));
    }
    all.ranges(atom)
}

/// Whether device and host each have a view of the memory, and neither sees at once what the other writes.
fn is_split(buffer: &Buffer) -> bool {
    buffer.info().imported && !buffer.info().coherent
}

/// What each device knows of the memory that it shares with the host, as segments pass by.
struct Sight<'a, 'e> {
    binding: &'a Binding<'e>,
    plan: &'a Plan,
    /// By device, the bytes that nobody else wrote since it wrote them or was shown them.
    settled: BTreeMap<Place, BTreeMap<u32, RangeSet>>,
}

impl Sight<'_, '_> {
    /// The memory at `place` as device `d` has it, where that is one of two views.
    fn buffer(&self, place: Place, d: u32) -> Option<BufferRange> {
        let buffer = match place {
            Place::Arena(a) => self.binding.arenas.buffer(a, d),
            Place::Input(i) => self.binding.inputs.get(i as usize)?.buffer(d),
            Place::Output(o) => self.binding.outputs.get(o as usize)?.buffer(d),
            Place::Constant(_) => None,
        };
        buffer.filter(|buffer| is_split(buffer)).map(Buffer::range)
    }

    fn segment(&mut self, s: usize) -> HostRanges {
        let segment = &self.plan.segments[s];
        let (d, own) = (segment.device, !segment.by_session);
        let mut flush = Atoms::default();
        let mut invalidate = Atoms::default();
        for command in &segment.commands {
            command.work.for_each_touch(&mut |loc, access| {
                let bytes = ByteRange::new(loc.offset, loc.offset.saturating_add(loc.bytes));
                if bytes.is_empty() {
                    return;
                }
                let writes = !access.writes().is_empty();
                let view = self.buffer(loc.place, d).filter(|_| own);
                let known = self.settled.entry(loc.place).or_default();
                if let Some(view) = view {
                    let settled = known.entry(d).or_default();
                    if !settled.contains(bytes) {
                        flush.insert(view, bytes);
                        settled.insert(bytes);
                    }
                    if writes {
                        invalidate.insert(view, bytes);
                    }
                }
                if writes {
                    let others = known.iter_mut().filter(|(by, _)| **by != d || !own);
                    others.for_each(|(_, settled)| settled.remove(bytes));
                }
            });
        }
        let on = |other: &Segment| other.device == d && !other.by_session;
        if own && !self.plan.segments[..s].iter().any(on) {
            self.transfers(&self.binding.inputs, d, &mut flush);
        }
        if own && !self.plan.segments[s + 1..].iter().any(on) {
            self.transfers(&self.binding.outputs, d, &mut flush);
            self.transfers(&self.binding.outputs, d, &mut invalidate);
        }
        let atom = self.binding.non_coherent_atom(d);
        HostRanges { flush: flush.ranges(atom), invalidate: invalidate.ranges(atom) }
    }

    /// What device `d` copies from or to before its first or after its last segment.
    fn transfers(&self, slots: &[Slot<'_>], d: u32, into: &mut Atoms) {
        for view in slots.iter().filter_map(|slot| slot.transfer(d)).filter(|buffer| is_split(buffer)) {
            into.insert(view.range(), ByteRange::up_to(view.bytes()));
        }
    }
}

/// Ranges of buffers, as whole atoms.
#[derive(Debug, Default)]
struct Atoms(BTreeMap<BufferId, RangeSet>);

impl Atoms {
    /// Adds `bytes` of the range `view`.
    fn insert(&mut self, view: BufferRange, bytes: ByteRange) {
        let start = view.offset.saturating_add(bytes.start);
        let range = ByteRange::new(start, start.saturating_add(bytes.bytes()));
        self.0.entry(view.buffer).or_default().insert(range);
    }

    /// Grown to multiples of `atom`: imports are whole pages.
    fn ranges(self, atom: u64) -> Vec<BufferRange> {
        let grown = |(buffer, set): (BufferId, RangeSet)| {
            let set: RangeSet = set.iter().map(|range| range.align_out(atom)).collect();
            let ranges: Vec<_> = set.iter().collect();
            ranges.into_iter().map(move |range| BufferRange { buffer, offset: range.start, bytes: range.bytes() })
        };
        self.0.into_iter().flat_map(grown).collect()
    }
}
