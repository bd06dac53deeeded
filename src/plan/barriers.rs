//! Puts barriers between the commands of a plan.

use std::collections::{BTreeSet, HashMap, HashSet};

use super::report::NodeReport;
use super::{Domain, Location, Plan, PlannedIo, Segment, Space, Work};
use crate::backend::DeviceInfo;
use crate::graph::TensorInfo;
use crate::memory::coherency::{Access, Barrier, ResourceId, Touch, Tracker};
use crate::memory::range::ByteRange;

/// Tells which memory backs a space: spaces with one name share bytes, at the offsets given.
pub type ResourceMap<'a> = dyn Fn(Space) -> (Space, u64) + 'a;

/// Facts about bound memory that barriers depend on.
#[allow(missing_debug_implementations, reason = "two functions")]
pub struct Bound<'a> {
    /// Which spaces share memory.
    pub resolve: &'a ResourceMap<'a>,
    /// Whether a device works on a copy of its own: it copies an input in before its first segment's commands, an
    /// output out after its last one's; one that is updated both.
    pub is_copied: &'a dyn Fn(Space, u32) -> bool,
}

/// Decides every barrier of `plan`, given the memory of `bound`.
///
/// Constants are never written, so they are not tracked. A run is ordered after earlier ones by the
/// device layer, so a plan begins with none. Devices that run commands in order on coherent memory need none.
pub fn insert_barriers(plan: &mut Plan, devices: &[&DeviceInfo], bound: &Bound<'_>) {
    let shared: Vec<bool> = plan.arenas.iter().map(|a| a.domain == Domain::Host).collect();
    let all = |ios: &[PlannedIo], space: fn(u32) -> Space| -> Vec<Location> {
        let whole = |(i, io): (usize, &PlannedIo)| Location {
            space: space(i as u32),
            offset: 0,
            bytes: io.info.bytes() as u64,
        };
        ios.iter().enumerate().map(whole).collect()
    };
    let (inputs, outputs) = (all(&plan.inputs, Space::Input), all(&plan.outputs, Space::Output));
    let updated: Vec<Location> = (outputs.iter().zip(&plan.outputs))
        .filter(|(_, io)| io.updated.is_some())
        .map(|(loc, _)| *loc)
        .collect();
    let copied = |of: &[Location], d: u32| -> Vec<Location> {
        of.iter().filter(|loc| (bound.is_copied)(loc.space, d)).copied().collect()
    };
    let on: Vec<Option<u32>> = plan.segments.iter().map(|s| (!s.by_session).then_some(s.device)).collect();
    for (s, segment) in plan.segments.iter_mut().enumerate() {
        let d = segment.device;
        let in_order = devices.get(d as usize).is_none_or(|d| d.in_order);
        if in_order || segment.by_session {
            (segment.collecting, segment.closing) = (None, None);
            segment.commands.iter_mut().for_each(|c| c.barrier = None);
            segment.host_reads = Vec::new();
        } else {
            let first = !on.iter().take(s).any(|other| *other == Some(d));
            let last = !on.iter().skip(s + 1).any(|other| *other == Some(d));
            let before = if first { [copied(&inputs, d), copied(&updated, d)].concat() } else { Vec::new() };
            let after = if last { copied(&outputs, d) } else { Vec::new() };
            order_segment(segment, &shared, bound.resolve, &before, &after);
        }
    }
}

/// Decides the barriers of a segment: the spaces `before` are copied in before it, `after` are copied out after it. A
/// copy counts as one access on both sides.
fn order_segment(
    segment: &mut Segment,
    shared: &[bool],
    resolve: &ResourceMap<'_>,
    before: &[Location],
    after: &[Location],
) {
    const COPY: Access = Access::TRANSFER_READ.and(Access::TRANSFER_WRITE);
    let mut ids: HashMap<Space, ResourceId> = HashMap::new();
    let mut tracker = Tracker::new();
    let mut host_reads: Vec<Location> = Vec::new();
    let mut known: HashSet<Location> = HashSet::new();
    let mut resource = |loc: &Location| -> Option<(ResourceId, ByteRange)> {
        if matches!(loc.space, Space::Constant(_)) || loc.bytes == 0 {
            return None;
        }
        let (space, base) = resolve(loc.space);
        let next = ResourceId(ids.len() as u32);
        let id = *ids.entry(space).or_insert(next);
        let start = base.saturating_add(loc.offset);
        Some((id, ByteRange::new(start, start.saturating_add(loc.bytes))))
    };
    let mut copies = |of: &[Location]| -> Vec<Touch> {
        let known = of.iter().filter_map(&mut resource);
        known.map(|(resource, range)| Touch { resource, range, access: COPY }).collect()
    };
    // No earlier access, so no barrier.
    tracker.command(&copies(before));
    let copied_out = copies(after);
    for group in segment.commands.chunk_by_mut(|_, next| next.no_barrier_before) {
        let mut touches: Vec<Touch> = Vec::new();
        for command in group.iter_mut() {
            command.barrier = None;
            command.work.for_each_touch(&mut |loc, access| {
                if let Some((id, range)) = resource(&loc) {
                    touches.push(Touch { resource: id, range, access });
                    let seen_outside = match loc.space {
                        Space::Output(_) => !after.iter().any(|copied| copied.space == loc.space),
                        Space::Arena(a) => shared.get(a as usize).copied().unwrap_or(false),
                        Space::Input(_) | Space::Constant(_) | Space::Common | Space::Unused => false,
                    };
                    if seen_outside && !access.writes().is_empty() && known.insert(loc) {
                        host_reads.push(loc);
                    }
                }
            });
        }
        if let Some(first) = group.first_mut() {
            first.barrier = if first.full_barrier_before {
                Some(tracker.command_after_all(&touches))
            } else {
                tracker.command(&touches)
            };
        }
    }
    segment.collecting = tracker.command(&copied_out);
    host_reads.extend(after);
    let reads: Vec<(ResourceId, ByteRange)> = host_reads.iter().filter_map(&mut resource).collect();
    segment.closing = tracker.finish(&reads);
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
            collecting: None,
            closing: None,
            host_reads: Vec::new(),
        }
    }

    /// All barriers.
    pub fn barriers(&self) -> impl Iterator<Item = &Barrier> {
        let between = self.commands.iter().filter_map(|c| c.barrier.as_ref());
        between.chain(&self.collecting).chain(&self.closing)
    }
}

impl Work {
    /// Calls `f` with every range that it accesses and the access.
    pub fn for_each_touch(&self, f: &mut dyn FnMut(Location, Access)) {
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

/// The access of commands to the bound memory: `named` are inputs or outputs with names, types and shapes, `nodes`
/// the nodes that commands belong to.
pub(super) fn ios(
    segments: &[Segment],
    nodes: &[NodeReport],
    named: impl Iterator<Item = (Space, String, TensorInfo)>,
) -> Vec<PlannedIo> {
    let mut at: HashMap<Space, usize> = HashMap::new();
    let mut ios = Vec::new();
    for (space, name, info) in named {
        at.insert(space, ios.len());
        ios.push(PlannedIo {
            name,
            info,
            devices: Vec::new(),
            reads: 0,
            writes: 0,
            scattered: false,
            updated: None,
            first: None,
            last: None,
        });
    }
    for (s, segment) in segments.iter().enumerate() {
        for (c, command) in segment.commands.iter().enumerate() {
            let position = (s as u32, c as u32);
            let device = command.work.reads_on().unwrap_or(segment.device);
            let passes = nodes.get(command.node as usize).map_or(1, |n| n.cost.passes());
            command.work.for_each_touch(&mut |loc, access| {
                let Some(io) = at.get(&loc.space).and_then(|&i| ios.get_mut(i)) else { return };
                io.reads = io.reads.saturating_add(if access.reads().is_empty() { 0 } else { passes });
                let writes = !access.writes().is_empty();
                io.writes += u32::from(writes);
                io.scattered |= writes && !command.writes_lines;
                io.first.get_or_insert(position);
                io.last = Some(position);
                if let Err(i) = io.devices.binary_search(&device) {
                    io.devices.insert(i, device);
                }
            });
        }
    }
    ios
}
