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
        let imports =
            self.arenas.buffers().chain(self.inputs.iter().chain(&self.outputs).flat_map(Slot::buffers));
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
            ranges.into_iter().map(move |range| BufferRange {
                buffer,
                offset: range.start,
                bytes: range.bytes(),
            })
        };
        self.0.into_iter().flat_map(grown).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{check_messages, desc};
    use super::super::{Memory, Session};
    use super::{BufferRange, HostRanges};
    use crate::backend::sim::{SimConfig, SimDriver};
    use crate::dtype::DType;
    use crate::graph::{Graph, GraphBuilder, NodeId};
    use crate::memory::host::HostRegion;
    use crate::ops;
    use crate::registry::Registry;

    const N: usize = 1024;

    /// `a = x + x` and `y = b + a` on device 1, `b = a + x` on device 0.
    fn there_and_back() -> Graph {
        let mut g = GraphBuilder::new("there and back");
        let x = g.input("x", DType::F32, [N.into()]);
        let a = g.op(ops::add(), &[x, x]);
        let b = g.op(ops::add(), &[a, x]);
        let y = g.op(ops::add(), &[b, a]);
        g.output("y", y);
        let mut graph = g.build().unwrap();
        [1, 0, 1].into_iter().enumerate().for_each(|(n, d)| graph.place(NodeId(n as u32), Some(d)));
        graph
    }

    /// Two runs give what they must; what is flushed and invalidated, as bytes of each range.
    fn ranges(config: SimConfig) -> Vec<[Vec<u64>; 2]> {
        let mut registry = Registry::with_defaults();
        registry.register(Box::new(SimDriver::with(vec![config])));
        let contexts = ["cpu", "sim:0"].map(|name| registry.open(name, &desc()).unwrap());
        let builder = Session::builder().graph(there_and_back()).copy_threshold(0).fuse(false);
        let session = contexts.into_iter().fold(builder, |b, c| b.context(c)).build().unwrap();
        let x = HostRegion::new(4 * N).unwrap().into_shared();
        let y = HostRegion::new(4 * N).unwrap().into_shared();
        let bind = session.bind().input("x", Memory::region(&x)).output("y", Memory::region(&y));
        let mut binding = bind.build().unwrap();
        for round in [3.0f32, 4.0] {
            x.write().unwrap().as_mut_slice_of::<f32>().unwrap().fill(round);
            // What the host leaves in an output must not come back.
            y.write().unwrap().as_mut_slice_of::<f32>().unwrap().fill(round);
            binding.run().unwrap();
            assert_eq!(y.read().unwrap().as_slice_of::<f32>().unwrap(), [5.0 * round; N]);
        }
        check_messages(&session);
        let plan = binding.ordered_plan().unwrap();
        let bytes = |ranges: Vec<BufferRange>| ranges.iter().map(|range| range.bytes).collect();
        let listed = binding.host_ranges(&plan).into_iter();
        listed.map(|HostRanges { flush, invalidate }| [bytes(flush), bytes(invalidate)]).collect()
    }

    #[test]
    fn only_what_somebody_else_wrote_is_flushed_and_only_what_was_written_invalidated() {
        let tensor = 4 * N as u64;
        let first = [vec![tensor], vec![tensor]];
        let last = [vec![tensor; 2], vec![tensor]];
        assert_eq!(ranges(SimConfig::noncoherent()), [first, [vec![], vec![]], last]);
        assert!(ranges(SimConfig::coherent()).iter().flatten().all(Vec::is_empty));
    }
}
