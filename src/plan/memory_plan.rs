//! Memory of values: alias classes, lifetimes, arenas and offsets.

use std::collections::{BTreeMap, HashMap};

use super::alias_classes::{AliasClasses, Backing, Lifetime};
use super::arena::{ArenaRequest, pack, tvm_rule};
use super::flow::{Flow, ValueId};
use super::images::image_needs;
use super::in_place::merge_in_place;
use super::index::FlowIndex;
use super::lowering::{LoweredFlow, NodeWork, PlanCx};
use super::overlay::{Overlaid, overlay_moves};
use super::schedule::Schedule;
use super::{ArenaRange, Domain, Location, PlannedArena, Space};

/// The location of every value and scratch range.
pub(super) struct MemoryPlan {
    /// Which values share bytes.
    pub(super) classes: AliasClasses,
    /// What nodes pass on without a command.
    pub(super) overlaid: Overlaid,
    /// The device of each of the copies of `classes`.
    pub(super) copied_on: Vec<u32>,
    /// Lifetimes of classes.
    pub(super) lifetimes: HashMap<ValueId, Lifetime>,
    /// Arena and offset of every class that lies in one.
    pub(super) placed: HashMap<ValueId, (u32, u64)>,
    /// Arena and offset of each node's scratch ranges.
    pub(super) scratch: HashMap<usize, Vec<(u32, u64)>>,
    /// The counters of each device that has any.
    pub(super) counters: BTreeMap<u32, Counters>,
    pub(super) arenas: Vec<PlannedArena>,
}

/// Words of an arena that the nodes of a device share.
#[derive(Clone, Copy, Debug)]
pub(super) struct Counters {
    /// The first node that has them.
    pub(super) first: usize,
    bytes: u64,
    arena: u32,
    offset: u64,
}

impl Counters {
    /// Where all of them lie.
    pub(super) fn location(&self) -> Location {
        Location { space: Space::Arena(self.arena), offset: self.offset, bytes: self.bytes }
    }
}

/// The owner of a range of an arena.
enum Owner {
    Class(ValueId),
    /// Scratch range `1` of node `0`.
    Scratch(usize, usize),
    /// Those of a device, of which node `1` is the first that has them.
    Counters(u32, usize),
}

impl Owner {
    /// What people call the range.
    fn name(&self, lowered: &LoweredFlow) -> String {
        match *self {
            Owner::Class(root) => lowered.flow.values[root].name.clone(),
            Owner::Scratch(n, i) => format!("scratch {i} of {}", lowered.flow.nodes[n].name),
            Owner::Counters(..) => "counters".to_owned(),
        }
    }
}

type Requests = BTreeMap<Domain, Vec<(Owner, ArenaRequest)>>;

impl MemoryPlan {
    /// Decides for the steps of `schedule`.
    pub(super) fn new(cx: &PlanCx<'_>, lowered: &LoweredFlow, schedule: &Schedule) -> Self {
        let mut classes = AliasClasses::new(&lowered.flow, &lowered.aliases());
        let copied_on = copied_on(lowered, &classes, cx.assignment.rest());
        let limits = cx.devices.iter().map(|d| &d.limits);
        let alignment = limits
            .map(|l| l.argument_alignment.max(l.texel_alignment).max(l.non_coherent_atom))
            .fold(64, u64::max)
            .next_power_of_two();
        let mut overlaid = Overlaid::new();
        if cx.options.in_place {
            let order = &schedule.order;
            overlaid = overlay_moves(cx, lowered, order, (&mut classes, &copied_on), alignment);
            merge_in_place(cx, lowered, order, &mut classes);
        }
        let mut memory = MemoryPlan {
            lifetimes: lifetimes(lowered, &schedule.order, &classes, &copied_on),
            classes,
            overlaid,
            copied_on,
            placed: HashMap::new(),
            scratch: HashMap::new(),
            counters: BTreeMap::new(),
            arenas: Vec::new(),
        };
        let mut requests = Requests::new();
        memory.request_classes(cx, &lowered.flow, schedule, alignment, &mut requests);
        request_scratch(lowered, &schedule.order, alignment, &mut requests);
        request_counters(lowered, &schedule.order, alignment, &mut requests);
        requests.into_iter().for_each(|(domain, owned)| memory.pack(lowered, domain, &owned));
        memory
    }

    /// Requests the memory of all classes that lie in arenas.
    fn request_classes(
        &self,
        cx: &PlanCx<'_>,
        flow: &Flow,
        schedule: &Schedule,
        alignment: u64,
        requests: &mut Requests,
    ) {
        let images = image_needs(flow, &self.classes, |root| {
            let device = self.lifetimes.get(&root)?.devices.first()?;
            cx.devices.get(*device as usize)?.images.clone()
        });
        let mut bytes_of: HashMap<ValueId, usize> = HashMap::new();
        for (v, value) in flow.values.iter().enumerate() {
            let most = bytes_of.entry(self.classes.root(v)).or_default();
            *most = (*most).max(self.classes.offset(v) as usize + value.info.bytes());
        }
        let touched = schedule.steps_of(flow, &|v| self.classes.root(v));
        let mut roots: Vec<ValueId> = self.lifetimes.keys().copied().collect();
        roots.sort_unstable();
        for root in roots {
            let Some((mut first, mut last)) = self.lifetimes[&root].steps else { continue };
            if self.classes.backing(root) != Backing::Arena {
                continue;
            }
            let domain = match self.lifetimes[&root].devices.iter().collect::<Vec<_>>()[..] {
                [device] => Domain::Device(*device),
                _ => Domain::Host,
            };
            // Whole 16-byte texels, so that a view over the range may be rounded up.
            let bytes = (bytes_of.get(&root).copied().unwrap_or(0) as u64).next_multiple_of(16);
            let (image_bytes, image_alignment) = images.get(&root).copied().unwrap_or_default();
            let (bytes, alignment) = (bytes.max(image_bytes), alignment.max(image_alignment));
            if domain == Domain::Host
                && let Some(span) = touched.get(&root).and_then(|t| schedule.segments.lifetime(t))
            {
                (first, last) = (first.min(span.0), last.max(span.1));
            }
            let request = ArenaRequest { bytes, alignment, first, last };
            requests.entry(domain).or_default().push((Owner::Class(root), request));
        }
    }

    /// Packs the requests of one domain into an arena.
    fn pack(&mut self, lowered: &LoweredFlow, domain: Domain, owned: &[(Owner, ArenaRequest)]) {
        let arena = self.arenas.len() as u32;
        let raw: Vec<ArenaRequest> = owned.iter().map(|(_, r)| *r).collect();
        let packing = pack(&raw);
        for ((owner, request), offset) in owned.iter().zip(&packing.offsets) {
            match owner {
                Owner::Class(root) => drop(self.placed.insert(*root, (arena, *offset))),
                Owner::Scratch(n, i) => {
                    let ranges = self.scratch.entry(*n).or_default();
                    ranges.resize(ranges.len().max(i + 1), (arena, 0));
                    ranges[*i] = (arena, *offset);
                }
                Owner::Counters(device, first) => {
                    let counters = Counters { first: *first, bytes: request.bytes, arena, offset: *offset };
                    self.counters.insert(*device, counters);
                }
            }
        }
        let mut values: HashMap<ValueId, u32> = HashMap::new();
        for v in 0..lowered.flow.values.len() {
            *values.entry(self.classes.root(v)).or_default() += 1;
        }
        let tensors = owned.iter().zip(&packing.offsets).map(|((owner, request), &offset)| ArenaRange {
            name: owner.name(lowered),
            values: match owner {
                Owner::Class(root) => values.get(root).copied().unwrap_or(0),
                Owner::Scratch(..) | Owner::Counters(..) => 0,
            },
            offset,
            bytes: request.bytes,
            first: request.first,
            last: request.last,
        });
        let tensors = tensors.filter(|range| range.bytes > 0).collect();
        self.arenas.push(PlannedArena {
            domain,
            bytes: packing.peak,
            lower_bound: packing.lower_bound,
            tvm_bytes: tvm_rule(&raw).aligned_total(&raw),
            naive_bytes: raw.iter().map(|r| r.bytes).fold(0, u64::saturating_add),
            ranges: raw.len(),
            tensors,
        });
    }
}

/// Requests the scratch memory of all nodes.
fn request_scratch(lowered: &LoweredFlow, order: &[usize], alignment: u64, requests: &mut Requests) {
    for (step, &n) in order.iter().enumerate() {
        let NodeWork::Device(work) = &lowered.nodes[n].work else { continue };
        let (first, last) = (step as u32, step as u32);
        for (i, &bytes) in work.scratch.iter().enumerate() {
            let request = ArenaRequest { bytes: (bytes as u64).next_multiple_of(16), alignment, first, last };
            let domain = Domain::Device(lowered.nodes[n].device);
            requests.entry(domain).or_default().push((Owner::Scratch(n, i), request));
        }
    }
}

/// Requests the counters of each device, from the first node that has any to the last one.
fn request_counters(lowered: &LoweredFlow, order: &[usize], alignment: u64, requests: &mut Requests) {
    let mut all: BTreeMap<u32, (usize, ArenaRequest)> = BTreeMap::new();
    for (step, &n) in order.iter().enumerate() {
        let NodeWork::Device(work) = &lowered.nodes[n].work else { continue };
        if work.counters == 0 {
            continue;
        }
        let (step, bytes) = (step as u32, (work.counters as u64).next_multiple_of(16));
        let request = ArenaRequest { bytes, alignment, first: step, last: step };
        let (_, known) = all.entry(lowered.nodes[n].device).or_insert((n, request));
        (known.bytes, known.last) = (known.bytes.max(bytes), step);
    }
    for (device, (first, request)) in all {
        requests.entry(Domain::Device(device)).or_default().push((Owner::Counters(device, first), request));
    }
}

/// First and last step that touches each class, and the devices that do.
pub(super) fn lifetimes(
    lowered: &LoweredFlow,
    order: &[usize],
    storage: &AliasClasses,
    copied_on: &[u32],
) -> HashMap<ValueId, Lifetime> {
    let mut life: HashMap<ValueId, Lifetime> = HashMap::new();
    for (step, &n) in order.iter().enumerate().filter(|(_, n)| !lowered.nodes[**n].is_alias()) {
        let (node, at) = (&lowered.flow.nodes[n], &lowered.nodes[n]);
        let by_value = node.op.value_inputs();
        let reads = node.inputs.iter().enumerate().filter(|(i, _)| !by_value.contains(i));
        for v in reads.filter_map(|(_, v)| *v) {
            life.entry(storage.root(v)).or_default().touch(step as u32, at.reads_on());
        }
        for &v in &node.outputs {
            life.entry(storage.root(v)).or_default().touch(step as u32, at.device);
        }
    }
    // Copies into outputs run after everything else.
    for (&(_, v), &device) in storage.copies.iter().zip(copied_on) {
        life.entry(storage.root(v)).or_default().touch(order.len() as u32, device);
    }
    life
}

/// For each output that is written by a copy, the device that copies: its producer's.
fn copied_on(lowered: &LoweredFlow, storage: &AliasClasses, otherwise: u32) -> Vec<u32> {
    if storage.copies.is_empty() {
        return Vec::new();
    }
    let index = FlowIndex::new(&lowered.flow);
    let device = |v: ValueId| Some(lowered.nodes.get(index.producer(storage.root(v))?)?.device);
    storage.copies.iter().map(|&(_, v)| device(v).unwrap_or(otherwise)).collect()
}
