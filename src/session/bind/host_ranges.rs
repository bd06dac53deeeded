//! Flush and invalidate ranges per segment for non-coherent memory.

use super::binding::Binding;
use super::slot::Slot;
use crate::device::Buffer;
use crate::memory::coherency::{Access, Exchanged, Sight};
use crate::memory::range::ByteRange;
use crate::plan::{Location, Plan, Segment, Space};
use crate::recording::{BufferId, BufferRange};
use crate::session::core::host_memory::within;

/// Ranges of one segment.
#[derive(Clone, Debug, Default)]
pub(in crate::session) struct HostRanges {
    pub(in crate::session) flush: Vec<BufferRange>,
    pub(in crate::session) invalidate: Vec<BufferRange>,
}

impl Binding<'_> {
    /// For each segment of `plan`, in order, the ranges that [`Sight`] flushes and invalidates. Copies by the session
    /// flush and invalidate their own memory.
    pub(in crate::session) fn host_ranges(&self, plan: &Plan) -> Vec<HostRanges> {
        let imports =
            self.arenas.buffers().chain(self.inputs.iter().chain(&self.outputs).flat_map(Slot::buffers));
        if !imports.into_iter().any(|buffer| buffer.info().is_split()) {
            return vec![HostRanges::default(); plan.segments.len()];
        }
        let atom = (0..self.core.devices.len() as u32).map(|d| self.non_coherent_atom(d)).max();
        let mut passing = HostVisibility { binding: self, plan, sight: Sight::new(atom.unwrap_or(1)) };
        // Arenas are unchanged since the previous run; the host may have written everything else.
        if self.core.options.arena.is_none() {
            (0..plan.segments.len()).for_each(|s| drop(passing.segment(s)));
            passing.sight.keep(|memory| matches!(memory, RunMemory::Own(Space::Arena(_))));
        }
        (0..plan.segments.len()).map(|s| passing.segment(s)).collect()
    }

    /// The non-coherent memory of `spot` on device `d`.
    fn view(&self, spot: RunMemory, d: u32) -> Option<&Buffer> {
        let slot = |space| match space {
            Space::Input(i) => self.inputs.get(i as usize),
            Space::Output(o) => self.outputs.get(o as usize),
            Space::Constant(_) | Space::Arena(_) | Space::Common | Space::Unused => None,
        };
        let buffer = match spot {
            RunMemory::Own(Space::Arena(a)) => self.arenas.buffer(a, d),
            RunMemory::Own(space) => slot(space)?.buffer(d),
            RunMemory::CopiedPerRun(space) => slot(space)?.transfer(d),
        };
        buffer.filter(|buffer| buffer.info().is_split())
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum RunMemory {
    /// Memory that kernels access.
    Own(Space),
    /// Bound memory that the device copies from or to.
    CopiedPerRun(Space),
}

/// The visibility of host memory to each device, segment by segment.
struct HostVisibility<'a, 'e> {
    binding: &'a Binding<'e>,
    plan: &'a Plan,
    sight: Sight<RunMemory>,
}

impl HostVisibility<'_, '_> {
    fn segment(&mut self, s: usize) -> HostRanges {
        let segment = &self.plan.segments[s];
        let (d, own) = (segment.device, !segment.by_session);
        let atom = self.binding.non_coherent_atom(d);
        let mut exchanged: Exchanged<BufferId> = Exchanged::new();
        let mut access = |spot: RunMemory, bytes: ByteRange, access: Access| {
            let view = self.binding.view(spot, d).filter(|_| own);
            let exchange = self.sight.access(spot, view.map(|_| d), bytes, access);
            if let Some(view) = view {
                exchanged.add(view.range().buffer, within(view, bytes, atom), exchange);
            }
        };
        let on = |other: &Segment| other.device == d && !other.by_session;
        // The device copies before its first segment and after its last.
        if own && !self.plan.segments[..s].iter().any(on) {
            let inputs = self.plan.inputs.iter().enumerate().map(|(i, io)| (Space::Input(i as u32), io));
            let outputs = self.plan.outputs.iter().enumerate().map(|(o, io)| (Space::Output(o as u32), io));
            for (space, io) in inputs.chain(outputs.filter(|(_, io)| io.updated.is_some())) {
                let bytes = ByteRange::up_to(io.info.bytes() as u64);
                access(RunMemory::CopiedPerRun(space), bytes, Access::TRANSFER_READ);
            }
        }
        for command in &segment.commands {
            command.work.for_each_touch(&mut |loc: Location, kinds| {
                let bytes = ByteRange::new(loc.offset, loc.offset.saturating_add(loc.bytes));
                access(RunMemory::Own(loc.space), bytes, kinds);
            });
        }
        if own && !self.plan.segments[s + 1..].iter().any(on) {
            for (o, io) in self.plan.outputs.iter().enumerate() {
                let bytes = ByteRange::up_to(io.info.bytes() as u64);
                access(RunMemory::CopiedPerRun(Space::Output(o as u32)), bytes, Access::TRANSFER_WRITE);
            }
        }
        let named = |(buffer, range): (BufferId, ByteRange)| BufferRange {
            buffer,
            offset: range.start,
            bytes: range.bytes(),
        };
        HostRanges {
            flush: exchanged.flush().map(named).collect(),
            invalidate: exchanged.invalidate().map(named).collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{BufferRange, HostRanges};
    use crate::backend::sim::{SimConfig, SimDriver};
    use crate::dtype::DType;
    use crate::graph::{Graph, GraphBuilder, NodeId};
    use crate::memory::host::HostRegion;
    use crate::ops;
    use crate::registry::Registry;
    use crate::session::tests::{check_messages, desc};
    use crate::session::{Memory, Session};

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

    /// Runs twice and checks the results; returns the flushed and invalidated ranges, as bytes.
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
            // Bytes that the host writes to an output must not reappear.
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
