//! Checks commands before a backend sees them, and collects what they touch.

use std::collections::BTreeMap;
use std::sync::{Arc, Weak};

use super::buffer::{Closed, Lease, Memory};
use super::claims::Span;
use super::core::{Core, Work, resource_of};
use super::error::{Problem, UsageError};
use super::kernel::KernelInner;
use super::traffic::copied_by;
use crate::recording::{Arg, BufferId, BufferRange, Command, Dispatch, Recording};
use onepool_core::memory::coherency::{Access, Exchanged, Left, ResourceId, Sight, Touch, Unseen};
use onepool_core::memory::host::SharedRegion;
use onepool_core::memory::image::{ImageDesc, ImageRefusal};
use onepool_core::memory::import::ReadWrite;
use onepool_core::memory::range::{ByteRange, RangeMap};
use onepool_core::sync::lock;

/// How many separate pieces of one import are held each on its own; more are held as one hull.
const MOST_PIECES: usize = 8;

/// Takes commands one by one and ends as the [`Work`] that they make.
#[derive(Debug)]
pub(super) struct Checker {
    core: Arc<Core>,
    context: &'static str,
    memories: BTreeMap<BufferId, Arc<Memory>>,
    /// Those that the command being checked brought in.
    added: Vec<BufferId>,
    leases: Vec<Arc<Lease>>,
    kernels: Vec<Arc<KernelInner>>,
    touched: BTreeMap<ResourceId, RangeMap<Access>>,
    unseen: Unseen,
    timestamps: u32,
    /// Whether kernels of this crate may be in it: what they touch follows from their parameters.
    own: bool,
}

impl Checker {
    pub(super) fn new(core: &Arc<Core>, context: &'static str, timestamps: u32) -> Checker {
        Checker {
            core: Arc::clone(core),
            context,
            memories: BTreeMap::new(),
            added: Vec::new(),
            leases: Vec::new(),
            kernels: Vec::new(),
            touched: BTreeMap::new(),
            unseen: Unseen::default(),
            timestamps,
            own: false,
        }
    }

    /// Checks a whole recording; `own` says that this crate made it.
    pub(super) fn recording(
        core: &Arc<Core>,
        context: &'static str,
        recording: &Recording,
        own: bool,
    ) -> Result<Work, UsageError> {
        let mut checker = Checker::new(core, context, recording.timestamps);
        checker.own = own;
        checker.images(&recording.images)?;
        for command in &recording.commands {
            checker.command(command)?;
        }
        checker.finish(recording)
    }

    /// Checks one command and gives what it touches; a refused command leaves no trace.
    pub(super) fn command(&mut self, command: &Command) -> Result<Vec<Touch>, UsageError> {
        let (leases, kernels) = (self.leases.len(), self.kernels.len());
        self.added.clear();
        let touches = self.check(command).inspect_err(|_| {
            self.leases.truncate(leases);
            self.kernels.truncate(kernels);
            self.added.iter().for_each(|id| drop(self.memories.remove(id)));
        })?;
        for touch in &touches {
            let map = self.touched.entry(touch.resource).or_default();
            map.update(touch.range, |old| Some(old.map_or(touch.access, |old| *old | touch.access)));
        }
        self.unseen.command(&touches);
        Ok(touches)
    }

    fn check(&mut self, command: &Command) -> Result<Vec<Touch>, UsageError> {
        match command {
            Command::Dispatch(dispatch) => self.dispatch(dispatch),
            Command::Copy { src, dst } => {
                let what = "the length of the destination";
                let mismatch = Problem::Mismatch { what, found: dst.bytes, expected: src.bytes };
                self.ensure(src.bytes == dst.bytes, mismatch)?;
                let from = self.touch(0, src, Access::TRANSFER_READ)?;
                let to = self.touch(1, dst, Access::TRANSFER_WRITE)?;
                let vuid = "VUID-vkCmdCopyBuffer-pRegions-00117";
                self.disjoint(&[Some(from), Some(to)]).map_err(|error| error.with_vuid(vuid))?;
                Ok(vec![from, to])
            }
            Command::Fill { dst, .. } => {
                self.aligned("the offset of a fill", dst.offset, 4)?;
                self.aligned("the length of a fill", dst.bytes, 4)?;
                Ok(vec![self.touch(0, dst, Access::TRANSFER_WRITE)?])
            }
            Command::Barrier(barrier) => {
                self.unseen.barrier(*barrier);
                Ok(Vec::new())
            }
            Command::Timestamp { slot } => {
                self.limit("timestamp slot", u64::from(*slot) + 1, u64::from(self.timestamps))?;
                Ok(Vec::new())
            }
        }
    }

    /// Everything that was checked, with the host's part of the recording.
    pub(super) fn finish(mut self, recording: &Recording) -> Result<Work, UsageError> {
        for range in recording.flush.iter().chain(&recording.invalidate) {
            self.host_range(range)?;
        }
        let acquisitions = self.memories.values().filter_map(|memory| Some(memory.acquisition?.copied)).sum();
        let clears = self.clears();
        // What is taken over and given back is taken whole: no one else uses any byte of it meanwhile.
        for memory in self.memories.values().filter(|memory| memory.acquisition.is_some()) {
            let both = Access::TRANSFER_READ | Access::TRANSFER_WRITE;
            let map = self.touched.entry(resource_of(memory.id)).or_default();
            let whole = ByteRange::up_to(memory.info.bytes);
            map.update(whole, |old| Some(old.map_or(both, |old| *old | both)));
        }
        Ok(Work {
            left: self.left(recording),
            regions: self.regions(),
            claims: self.claims(),
            scoped: self.leases.iter().filter(|lease| lease.memory.scope.is_some()).cloned().collect(),
            touches: self
                .touched
                .iter()
                .flat_map(|(resource, map)| {
                    map.iter().map(|(range, access)| Touch::new(*resource, range, *access))
                })
                .collect(),
            leases: self.leases,
            kernels: self.kernels,
            flush: recording.flush.clone(),
            copied: copied_by(recording).saturating_add(acquisitions),
            clears,
            invalidate: recording.invalidate.clone(),
        })
    }

    /// The ranges that a batch with no list of its own flushes before and invalidates after: of memory that the host has
    /// a pointer of its own to. Other memory it reaches through guards, which flush and invalidate themselves.
    pub(super) fn host_ranges(&self) -> (Vec<BufferRange>, Vec<BufferRange>) {
        let atom = self.core.info.limits.non_coherent_atom;
        let (mut sight, mut exchanged) = (Sight::new(atom), Exchanged::new());
        for (id, memory) in self.memories.iter().filter(|(_, memory)| memory.info.is_split()) {
            let touched = self.touched.get(&resource_of(*id)).into_iter().flat_map(RangeMap::iter);
            for (range, access) in touched {
                exchanged.add(*id, memory.rounded(range), sight.access(*id, Some(0), range, *access));
            }
        }
        let named = |(buffer, range): (BufferId, ByteRange)| BufferRange {
            buffer,
            offset: range.start,
            bytes: range.bytes(),
        };
        (exchanged.flush().map(named).collect(), exchanged.invalidate().map(named).collect())
    }

    /// What the commands wrote where the host has a pointer to it.
    pub(super) fn written(&self) -> Vec<(ResourceId, ByteRange)> {
        let reachable = self.memories.iter().filter(|(_, memory)| memory.info.host.is_some());
        let written = reachable.flat_map(|(id, _)| {
            let resource = resource_of(*id);
            self.writes(resource).map(move |range| (resource, range))
        });
        written.collect()
    }

    fn writes(&self, resource: ResourceId) -> impl Iterator<Item = ByteRange> {
        let touched = self.touched.get(&resource).into_iter().flat_map(RangeMap::iter);
        touched.filter(|(_, access)| !access.writes().is_empty()).map(|(range, _)| range)
    }

    /// What the commands do not write of images that are written whole, in words.
    fn clears(&self) -> Vec<BufferRange> {
        let mut clears: Vec<BufferRange> = Vec::new();
        for (id, memory) in &self.memories {
            let mut leases = self.leases.iter().filter(|lease| lease.memory.id == *id).peekable();
            let is_image = memory.acquisition.is_some_and(|acquisition| acquisition.image_bytes > 0);
            if !is_image || leases.peek().is_none() || leases.any(|lease| lease.access.reads()) {
                continue;
            }
            let end = ByteRange::new(memory.info.bytes, memory.info.bytes);
            let mut from = 0;
            for written in self.writes(resource_of(*id)).chain([end]) {
                if from < written.start {
                    let offset = from - from % 4;
                    let bytes = written.start.next_multiple_of(4) - offset;
                    match clears.last_mut() {
                        Some(last) if last.buffer == *id && last.offset + last.bytes >= offset => {
                            last.bytes = offset + bytes - last.offset;
                        }
                        _ => clears.push(BufferRange { buffer: *id, offset, bytes }),
                    }
                }
                from = from.max(written.end);
            }
        }
        clears
    }

    /// What the host has to do after `recording`, in the memory that it has a pointer to.
    fn left(&self, recording: &Recording) -> Vec<(Arc<Memory>, Left)> {
        let in_order = self.core.info.in_order;
        let mut all = Vec::new();
        for (id, memory) in self.memories.iter().filter(|(_, memory)| memory.info.host.is_some()) {
            let resource = resource_of(*id);
            let hidden = if in_order { Vec::new() } else { self.unseen.of(resource).collect() };
            let invalidated = recording.invalidate.iter().filter(|range| range.buffer == *id);
            let invalidated =
                invalidated.filter_map(|range| ByteRange::from_offset(range.offset, range.bytes));
            let left = Left::after(self.writes(resource), hidden, invalidated, memory.info.coherent);
            if !left.is_empty() {
                all.push((Arc::clone(memory), left));
            }
        }
        all
    }

    /// The name of the call that errors carry.
    pub(super) fn set_context(&mut self, context: &'static str) {
        self.context = context;
    }

    fn dispatch(&mut self, dispatch: &Dispatch) -> Result<Vec<Touch>, UsageError> {
        let kernel = self.kernel(dispatch)?;
        let limits = self.core.info.limits.clone();
        self.limit("the number of arguments", dispatch.args.len() as u64, u64::from(limits.max_arguments))?;
        self.limit("parameter bytes", dispatch.params.len() as u64, u64::from(limits.max_params_bytes))?;
        if !self.core.info.native {
            for (what, (groups, limit)) in
                AXES.into_iter().zip(dispatch.groups.into_iter().zip(limits.max_groups))
            {
                self.ensure(groups > 0, Problem::Empty)?;
                self.limit(what, u64::from(groups), u64::from(limit))
                    .map_err(|error| error.with_vuid("VUID-vkCmdDispatch-groupCountX-00386"))?;
            }
        }
        if let Some(part) = dispatch.part {
            self.ensure(kernel.has_parts(&self.core.info), Problem::Whole)?;
            let along = dispatch.groups.get(part.axis).copied();
            let end = along.map_or(u64::MAX, |groups| u64::from(part.first) + u64::from(groups));
            self.limit("the end of a part", end, u64::from(part.whole))?;
        }
        kernel.check_call(self.context, &dispatch.args, &dispatch.params, &limits)?;
        let mut touches = Vec::with_capacity(dispatch.args.len());
        for (index, arg) in dispatch.args.iter().enumerate() {
            touches.push(match arg {
                Arg::Absent => {
                    self.ensure(self.core.info.native, Problem::Absent { argument: index })?;
                    None
                }
                // A tensor without elements: a native kernel gets an empty slice.
                Arg::Buffer(range, _) if range.bytes == 0 && self.core.info.native => None,
                Arg::Buffer(range, access) | Arg::Image(range, _, access) => {
                    if let Arg::Image(range, view, _) = arg {
                        self.image(range, &view.image)?;
                    }
                    let both = Access::KERNEL_READ | Access::KERNEL_WRITE;
                    self.ensure(
                        both.contains(*access) && !access.is_empty(),
                        Problem::Access { argument: index, wanted: "no kernel access", given: "kernels" },
                    )?;
                    self.limit("the length of an argument", range.bytes, limits.max_argument_bytes)
                        .map_err(|error| error.with_vuid("VUID-VkWriteDescriptorSet-descriptorType-00333"))?;
                    self.aligned("the offset of an argument", range.offset, limits.argument_alignment)
                        .map_err(|error| error.with_vuid("VUID-VkWriteDescriptorSet-descriptorType-00328"))?;
                    if self.core.info.native && range.bytes == 0 {
                        // Native kernels take empty slices.
                        self.memory(range.buffer)?;
                        None
                    } else {
                        Some(self.touch(index, range, *access)?)
                    }
                }
            });
        }
        if self.core.info.native {
            // A native kernel gets Rust slices, of which a written one aliases no other.
            self.disjoint(&touches)?;
        }
        self.kernels.push(kernel);
        Ok(touches.into_iter().flatten().collect())
    }

    fn kernel(&self, dispatch: &Dispatch) -> Result<Arc<KernelInner>, UsageError> {
        let state = self.core.state();
        let kernel = state.kernels.get(&dispatch.kernel).and_then(Weak::upgrade);
        drop(state);
        // Whoever makes up the name of one of ours, and its parameters, may not call it; a native function checks them.
        let may = |kernel: &Arc<KernelInner>| self.own || self.core.info.native || kernel.source.is_callers();
        kernel.filter(may).ok_or_else(|| self.error(Problem::Foreign { object: "kernel" }))
    }

    fn memory(&mut self, id: BufferId) -> Result<Arc<Memory>, UsageError> {
        if let Some(memory) = self.memories.get(&id) {
            return Ok(Arc::clone(memory));
        }
        let state = self.core.state();
        let memory = state.memories.get(&id).and_then(Weak::upgrade);
        drop(state);
        let memory = memory.ok_or_else(|| self.error(Problem::Foreign { object: "buffer" }))?;
        self.memories.insert(id, Arc::clone(&memory));
        self.added.push(id);
        Ok(memory)
    }

    /// Checks one range against its memory and the leases on it.
    fn touch(&mut self, argument: usize, range: &BufferRange, access: Access) -> Result<Touch, UsageError> {
        let memory = self.memory(range.buffer)?;
        self.ensure(range.bytes > 0, Problem::Empty)?;
        let outside = ByteRange::new(range.offset, range.offset.saturating_add(range.bytes));
        let bytes = ByteRange::from_offset(range.offset, range.bytes)
            .filter(|bytes| ByteRange::up_to(memory.info.bytes).contains(*bytes))
            .ok_or_else(|| self.error(Problem::OutOfBounds { range: outside, bytes: memory.info.bytes }))?;
        let (reads, writes) = (!access.reads().is_empty(), !access.writes().is_empty());
        if !self.leases.iter().any(|lease| opens(lease, &memory, bytes, reads, writes)) {
            let lease = memory.open(bytes, reads, writes).map_err(|closed| {
                self.error(match closed {
                    Closed::Outside => Problem::OutOfBounds { range: bytes, bytes: memory.info.bytes },
                    Closed::Revoked => Problem::Revoked,
                    Closed::Access(given) => {
                        Problem::Access { argument, wanted: words(reads, writes), given: given_words(given) }
                    }
                })
            })?;
            self.leases.push(lease);
        }
        Ok(Touch::new(resource_of(range.buffer), bytes, access))
    }

    /// Checks the images that come into being, whose bytes count as written.
    fn images(&mut self, images: &[(BufferRange, ImageDesc)]) -> Result<(), UsageError> {
        for (range, image) in images {
            self.image(range, image)?;
            let touch = self.touch(0, range, Access::KERNEL_WRITE)?;
            let map = self.touched.entry(touch.resource).or_default();
            map.update(touch.range, |old| Some(old.map_or(touch.access, |old| *old | touch.access)));
        }
        Ok(())
    }

    /// Checks that a range holds an image as the device makes them.
    fn image(&mut self, range: &BufferRange, image: &ImageDesc) -> Result<(), UsageError> {
        let Some(rules) = self.core.info.images.clone() else {
            return Err(self.error(Problem::NoImage { why: ImageRefusal::NoImages.to_string() }));
        };
        match rules.describe(image.texel, image.width.into(), image.height.into()) {
            Ok(wanted) if wanted == *image => {}
            Ok(wanted) => {
                let (what, found) = ("the distance of an image's rows", image.row_pitch);
                return Err(self.error(Problem::Mismatch { what, found, expected: wanted.row_pitch }));
            }
            Err(why) => return Err(self.error(Problem::NoImage { why: why.to_string() })),
        }
        self.aligned("the offset of an image", range.offset, rules.alignment(image))?;
        let (found, limit) = (rules.memory_bytes(image), range.bytes);
        self.ensure(found <= limit, Problem::Limit { what: "the bytes of an image", found, limit })?;
        let memory = self.memory(range.buffer)?;
        let lies_well = rules.over_imports || !memory.info.imported;
        self.ensure(lies_well, Problem::NoImage { why: "images cannot lie in imported memory".to_owned() })
    }

    /// Checks a range to flush or to invalidate.
    pub(super) fn host_range(&mut self, range: &BufferRange) -> Result<(), UsageError> {
        let memory = self.memory(range.buffer)?;
        self.ensure(memory.info.host.is_some(), Problem::NotMapped)?;
        let bytes = ByteRange::new(range.offset, range.offset.saturating_add(range.bytes));
        let inside = range.offset.checked_add(range.bytes).is_some_and(|end| end <= memory.info.bytes);
        self.ensure(inside, Problem::OutOfBounds { range: bytes, bytes: memory.info.bytes })?;
        let atom = self.core.info.limits.non_coherent_atom.max(1);
        let vuid = "VUID-VkMappedMemoryRange-size-01390";
        self.aligned("the offset of a flushed range", range.offset, atom)
            .map_err(|error| error.with_vuid("VUID-VkMappedMemoryRange-offset-00687"))?;
        if bytes.end != memory.info.bytes {
            self.aligned("the length of a flushed range", range.bytes, atom)
                .map_err(|e| e.with_vuid(vuid))?;
        }
        Ok(())
    }

    /// No two ranges share a byte unless both are only read.
    fn disjoint(&self, touches: &[Option<Touch>]) -> Result<(), UsageError> {
        let mut sorted: Vec<(usize, Touch)> =
            touches.iter().enumerate().filter_map(|(index, touch)| Some((index, (*touch)?))).collect();
        sorted.sort_unstable_by_key(|(_, touch)| (touch.resource, touch.range.start));
        // Against the ranges that reach furthest so far: of those that are written, and of the others.
        let mut furthest: [Option<(usize, Touch)>; 2] = [None, None];
        for (index, touch) in sorted {
            let writes = !touch.access.writes().is_empty();
            let rivals = if writes { &furthest[..] } else { &furthest[1..] };
            let rival = rivals
                .iter()
                .flatten()
                .find(|(_, held)| held.resource == touch.resource && held.range.overlaps(touch.range));
            if let Some((other, _)) = rival {
                let (first, second) = (index.min(*other), index.max(*other));
                return Err(self.error(Problem::Overlap { first, second }));
            }
            let slot = &mut furthest[usize::from(writes)];
            if slot
                .is_none_or(|(_, held)| held.resource != touch.resource || held.range.end < touch.range.end)
            {
                *slot = Some((index, touch));
            }
        }
        Ok(())
    }

    fn regions(&self) -> Vec<(Arc<SharedRegion>, ByteRange, bool)> {
        let mut regions = Vec::new();
        for (id, memory) in &self.memories {
            let Some(region) = &memory.region else { continue };
            let end = ByteRange::up_to(region.bytes() as u64);
            // What arrives at the host arrives in whole atoms, or as the whole dma-buf, and takes the place of what the
            // host wrote there meanwhile.
            let whole = lock(&self.core.dma_bufs).contains_key(id);
            let grown = |(range, write): (ByteRange, bool)| match (write, whole) {
                (false, _) => (range, write),
                (true, false) => (memory.rounded(range), write),
                (true, true) => (end, write),
            };
            let pieces = self.pieces(*id).into_iter().map(grown);
            let inside = pieces.filter_map(|(range, write)| Some((range.intersect(end)?, write)));
            regions.extend(inside.map(|(range, write)| (Arc::clone(region), range, write)));
        }
        regions
    }

    fn claims(&self) -> Vec<Span> {
        let mut claims = Vec::new();
        for (id, memory) in self.memories.iter().filter(|(_, memory)| memory.info.imported) {
            let Some(base) = memory.info.host else { continue };
            let base = base.0.as_ptr().addr() as u64;
            // Exactly: submissions of two contexts on other parts of one import may run at the same time.
            let pieces = self.touched.get(&resource_of(*id)).into_iter().flat_map(RangeMap::iter);
            let pieces = pieces.map(|(range, access)| (range, !access.writes().is_empty()));
            claims.extend(pieces.filter_map(|(range, write)| Some((range.shifted(base)?, write))));
        }
        claims
    }

    /// What is touched of one memory, and whether it is written: exactly, or as one hull of many pieces.
    fn pieces(&self, id: BufferId) -> Vec<(ByteRange, bool)> {
        let Some(map) = self.touched.get(&resource_of(id)) else { return Vec::new() };
        let pieces: Vec<_> = map.iter().map(|(range, access)| (range, !access.writes().is_empty())).collect();
        if pieces.len() <= MOST_PIECES {
            return pieces;
        }
        let hull = pieces.iter().fold(ByteRange::default(), |hull, (range, _)| hull.union_hull(*range));
        vec![(hull, pieces.iter().any(|(_, write)| *write))]
    }

    fn error(&self, problem: Problem) -> UsageError {
        UsageError::new(self.context, problem)
    }

    fn ensure(&self, holds: bool, problem: Problem) -> Result<(), UsageError> {
        if holds { Ok(()) } else { Err(self.error(problem)) }
    }

    fn limit(&self, what: &'static str, found: u64, limit: u64) -> Result<(), UsageError> {
        self.ensure(found <= limit, Problem::Limit { what, found, limit })
    }

    fn aligned(&self, what: &'static str, found: u64, alignment: u64) -> Result<(), UsageError> {
        self.ensure(found.is_multiple_of(alignment.max(1)), Problem::Misaligned { what, found, alignment })
    }
}

const AXES: [&str; 3] = ["work-groups along x", "work-groups along y", "work-groups along z"];

fn opens(lease: &Lease, memory: &Arc<Memory>, range: ByteRange, reads: bool, writes: bool) -> bool {
    Arc::ptr_eq(&lease.memory, memory)
        && lease.range.contains(range)
        && (!reads || lease.access.reads())
        && (!writes || lease.access.writes())
        && !lease.is_revoked()
}

fn words(reads: bool, writes: bool) -> &'static str {
    match (reads, writes) {
        (true, true) => "read and written",
        (false, true) => "written",
        _ => "read",
    }
}

fn given_words(given: ReadWrite) -> &'static str {
    match given {
        ReadWrite::Read => "reading",
        ReadWrite::Write => "writing",
        ReadWrite::ReadWrite => "reading and writing",
    }
}
