//! Puts barriers between the commands of a plan.

use std::collections::{BTreeSet, HashMap, HashSet};

use super::report::NodeReport;
use super::{Domain, Loc, Place, Plan, PlannedIo, Segment, Work};
use crate::backend::DeviceInfo;
use crate::graph::TensorInfo;
use crate::memory::coherency::{Access, Barrier, ResourceId, Touch, Tracker};
use crate::memory::range::ByteRange;

/// Says which memory backs a place: places with one name share bytes, at the offsets given.
pub type ResourceMap<'a> = dyn Fn(Place) -> (Place, u64) + 'a;

/// Decides every barrier of `plan`, where `resolve` tells which bound places are the same memory.
///
/// Constants are never written, so they are not tracked. A run is ordered behind earlier ones by the
/// device layer, so a plan begins with none. Devices that run their commands one after the
/// other on memory that everybody sees need none.
pub fn insert_barriers(plan: &mut Plan, devices: &[&DeviceInfo], resolve: &ResourceMap<'_>) {
    let shared: Vec<bool> = plan.arenas.iter().map(|a| a.domain == Domain::Host).collect();
    for segment in &mut plan.segments {
        let in_order = devices.get(segment.device as usize).is_none_or(|d| d.in_order);
        if in_order || segment.by_session {
            segment.closing = None;
            segment.commands.iter_mut().for_each(|c| c.barrier = None);
            segment.host_reads = Vec::new();
        } else {
            order_segment(segment, &shared, resolve);
        }
    }
}

fn order_segment(segment: &mut Segment, shared: &[bool], resolve: &ResourceMap<'_>) {
    let mut ids: HashMap<Place, ResourceId> = HashMap::new();
    let mut tracker = Tracker::new();
    let mut host_reads: Vec<Loc> = Vec::new();
    let mut known: HashSet<Loc> = HashSet::new();
    let mut resource = |loc: &Loc| -> Option<(ResourceId, ByteRange)> {
        if matches!(loc.place, Place::Constant(_)) || loc.bytes == 0 {
            return None;
        }
        let (place, base) = resolve(loc.place);
        let next = ResourceId(ids.len() as u32);
        let id = *ids.entry(place).or_insert(next);
        let start = base.saturating_add(loc.offset);
        Some((id, ByteRange::new(start, start.saturating_add(loc.bytes))))
    };
    for group in segment.commands.chunk_by_mut(|_, next| next.joined) {
        let mut touches: Vec<Touch> = Vec::new();
        for command in group.iter_mut() {
            command.barrier = None;
            command.work.for_each_touch(&mut |loc, access| {
                if let Some((id, range)) = resource(&loc) {
                    touches.push(Touch { resource: id, range, access });
                    let seen_outside = match loc.place {
                        Place::Output(_) => true,
                        Place::Arena(a) => shared.get(a as usize).copied().unwrap_or(false),
                        Place::Input(_) | Place::Constant(_) => false,
                    };
                    if seen_outside && !access.writes().is_empty() && known.insert(loc) {
                        host_reads.push(loc);
                    }
                }
            });
        }
        if let Some(first) = group.first_mut() {
            first.barrier = tracker.command(&touches);
            if first.ordered {
                let (src, dst) = first.barrier.map_or((Access::NONE, Access::NONE), |b| (b.src, b.dst));
                first.barrier = Some(Barrier { src: src | Access::DEVICE, dst: dst | Access::DEVICE });
            }
        }
    }
    let reads: Vec<(ResourceId, ByteRange)> = host_reads.iter().filter_map(&mut resource).collect();
    segment.closing = tracker.finish(&reads).barrier;
    segment.host_reads = host_reads;
}

impl Segment {
    /// An empty segment on `device`.
    pub(super) fn new(device: u32) -> Self {
        Segment {
            device,
            by_session: false,
            waits: Vec::new(),
            after: BTreeSet::new(),
            commands: Vec::new(),
            closing: None,
            host_reads: Vec::new(),
        }
    }

    /// All barriers, for counting.
    pub fn barriers(&self) -> impl Iterator<Item = &Barrier> {
        let between = self.commands.iter().filter_map(|c| c.barrier.as_ref());
        between.chain(&self.closing)
    }
}

impl Work {
    /// Calls `f` with every range it touches and how.
    pub fn for_each_touch(&self, f: &mut dyn FnMut(Loc, Access)) {
        match self {
            Work::Dispatch { args, .. } => args.iter().flatten().for_each(|(loc, access)| f(*loc, *access)),
            Work::Copy { src, dst } => {
                f(*src, Access::TRANSFER_READ);
                f(*dst, Access::TRANSFER_WRITE);
            }
            Work::Move { src, dst, .. } => {
                f(*src, Access::HOST_READ);
                f(*dst, Access::HOST_WRITE);
            }
            Work::Fill { dst, .. } => f(*dst, Access::TRANSFER_WRITE),
        }
    }

    /// The device whose memory it reads, where that is not the segment's.
    pub(super) fn reads_on(&self) -> Option<u32> {
        match self {
            Work::Move { from, .. } => Some(*from),
            Work::Dispatch { .. } | Work::Copy { .. } | Work::Fill { .. } => None,
        }
    }
}

/// Who touches the memory bound at places, and when: `named` are the places with names, types and shapes, `nodes`
/// those that commands belong to.
pub(super) fn ios(
    segments: &[Segment],
    nodes: &[NodeReport],
    named: impl Iterator<Item = (Place, String, TensorInfo)>,
) -> Vec<PlannedIo> {
    let mut at: HashMap<Place, usize> = HashMap::new();
    let mut ios = Vec::new();
    for (place, name, info) in named {
        at.insert(place, ios.len());
        let (first, last) = ((u32::MAX, 0), (0, 0));
        ios.push(PlannedIo { name, info, devices: Vec::new(), reads: 0, writes: 0, first, last });
    }
    for (s, segment) in segments.iter().enumerate() {
        for (c, command) in segment.commands.iter().enumerate() {
            let position = (s as u32, c as u32);
            let device = command.work.reads_on().unwrap_or(segment.device);
            let passes = nodes.get(command.node as usize).map_or(1, |n| n.cost.passes());
            command.work.for_each_touch(&mut |loc, access| {
                let Some(io) = at.get(&loc.place).and_then(|&i| ios.get_mut(i)) else { return };
                io.reads = io.reads.saturating_add(if access.reads().is_empty() { 0 } else { passes });
                io.writes += u32::from(!access.writes().is_empty());
                io.first = io.first.min(position);
                io.last = io.last.max(position);
                if let Err(i) = io.devices.binary_search(&device) {
                    io.devices.insert(i, device);
                }
            });
        }
    }
    ios
}
