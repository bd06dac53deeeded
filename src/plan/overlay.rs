//! Concatenations and splits without a copy: parts share the memory of the whole.

use std::collections::{HashMap, HashSet};

use super::alias_classes::{AliasClasses, Backing};
use super::flow::ValueId;
use super::lowering::{LoweredFlow, NodeWork, PlanCx};
use super::memory_plan::lifetimes;
use crate::ops::PassedBytes;

/// Steps that trying moves may visit: some hundredths of a second.
const VISITS: usize = 1 << 22;

/// The bytes that each node passes on without a command.
pub(super) type Overlaid = HashMap<usize, Vec<PassedBytes>>;

/// Joins classes of values that operators move, where a range of one device's arena can hold both and no more bytes are
/// alive at once than the most are otherwise.
pub(super) fn overlay_moves(
    cx: &PlanCx<'_>,
    lowered: &LoweredFlow,
    order: &[usize],
    (classes, copied_on): (&mut AliasClasses, &[u32]),
    alignment: u64,
) -> Overlaid {
    let moved = |n: usize| {
        let has_work = matches!(lowered.nodes[n].work, NodeWork::Device(_) | NodeWork::Native(_));
        let passed = has_work.then(|| lowered.flow.nodes[n].op.passed(&lowered.flow.cx(n)))?;
        (!passed.bytes.is_empty()).then_some((n, passed))
    };
    let moving: Vec<_> = order.iter().filter_map(|&n| moved(n)).collect();
    let mut overlaid = Overlaid::new();
    if moving.is_empty() {
        return overlaid;
    }
    let mut ranges = Ranges::new(lowered, order, classes, copied_on);
    for (n, passed) in moving {
        let mut moves = ranges.moves(lowered, n, &passed.bytes, alignment);
        // A native function gets its arguments as slices, which must not overlap.
        let all_or_none = cx.devices[lowered.nodes[n].device as usize].native;
        let moved: usize = moves.iter().map(|one| one.passed.len()).sum();
        if all_or_none && !(passed.complete && moved == passed.bytes.len()) {
            continue;
        }
        if !ranges.join(&moves) {
            moves.retain(|one| !all_or_none && ranges.join(std::slice::from_ref(one)));
        }
        if !moves.is_empty() {
            overlaid.insert(n, moves.into_iter().flat_map(|one| one.passed).collect());
        }
    }
    overlaid
}

/// The class of root `part` becomes a part of that of root `whole`, `offset` bytes from its begin: all of its
/// bytes are those that are `passed`.
struct Move {
    passed: Vec<PassedBytes>,
    part: ValueId,
    whole: ValueId,
    offset: u64,
}

/// The memory of a class of values.
#[derive(Clone, Copy)]
struct Range {
    bytes: u64,
    /// The first and the last step that touch it.
    life: (usize, usize),
    /// The one device that touches it, where it lies in that device's arena.
    device: Option<u32>,
}

/// The memory of all classes, while some are joined.
struct Ranges<'a> {
    classes: &'a mut AliasClasses,
    ranges: HashMap<ValueId, Range>,
    /// Bytes alive at each step, by device, and the most of them.
    alive: HashMap<u32, (Vec<u64>, u64)>,
    visits: usize,
}

impl<'a> Ranges<'a> {
    fn new(lowered: &LoweredFlow, order: &[usize], classes: &'a mut AliasClasses, copied_on: &[u32]) -> Self {
        let mut bytes: HashMap<ValueId, u64> = HashMap::new();
        for (v, value) in lowered.flow.values.iter().enumerate() {
            let most = bytes.entry(classes.root(v)).or_default();
            *most = (*most).max(value.info.bytes() as u64);
        }
        let in_images: HashSet<ValueId> = lowered.flow.images.keys().map(|&v| classes.root(v)).collect();
        let mut ranges = HashMap::new();
        let mut alive: HashMap<u32, (Vec<u64>, u64)> = HashMap::new();
        let mut live = |device: u32, (first, last): (usize, usize), bytes: u64| {
            let (steps, _) = alive.entry(device).or_insert_with(|| (vec![0; order.len() + 1], 0));
            for step in steps.iter_mut().take(last + 1).skip(first) {
                *step = step.saturating_add(bytes);
            }
        };
        for (root, lifetime) in lifetimes(lowered, order, classes, copied_on) {
            let Some((first, last)) = lifetime.steps else { continue };
            let bytes = bytes.get(&root).copied().unwrap_or(0).next_multiple_of(16);
            let devices: Vec<u32> = lifetime.devices.into_iter().collect();
            let is_plain = classes.backing(root) == Backing::Arena && !in_images.contains(&root);
            let device = match devices[..] {
                [device] if is_plain => Some(device),
                _ => None,
            };
            let life = (first as usize, last as usize);
            if let Some(device) = device {
                live(device, life, bytes);
            }
            ranges.insert(root, Range { bytes, life, device });
        }
        for (step, &n) in order.iter().enumerate() {
            let NodeWork::Device(work) = &lowered.nodes[n].work else { continue };
            let bytes = work.scratch.iter().map(|&bytes| bytes as u64).fold(0, u64::saturating_add);
            live(lowered.nodes[n].device, (step, step), bytes);
        }
        for (steps, most) in alive.values_mut() {
            *most = steps.iter().copied().max().unwrap_or(0);
        }
        Ranges { classes, ranges, alive, visits: VISITS }
    }

    /// Those of `passed` that one memory can hold; all go into, or come from, one class.
    fn moves(&self, lowered: &LoweredFlow, n: usize, passed: &[PassedBytes], alignment: u64) -> Vec<Move> {
        let (flow, node) = (&lowered.flow, &lowered.flow.nodes[n]);
        let bytes = |v: ValueId| flow.values[v].info.bytes() as u64;
        let mut moves: Vec<Move> = Vec::new();
        // Of each move the bytes of the part that are passed, and where those of the whole end.
        let mut covered: Vec<(Vec<(u64, u64)>, u64)> = Vec::new();
        for &one in passed {
            let input = node.inputs.get(one.input).copied().flatten();
            let (Some(x), Some(&y)) = (input, node.outputs.get(one.output)) else { continue };
            let (small, large) = if bytes(x) < bytes(y) { (x, y) } else { (y, x) };
            let (part, whole) = (self.classes.root(small), self.classes.root(large));
            let begin = self.classes.offset(small);
            let place = self.classes.offset(large).saturating_add(one.offset);
            let Some(offset) = place.checked_sub(begin) else { continue };
            if part == whole || bytes(small) == 0 || moves.iter().any(|m| m.whole != whole) {
                continue;
            }
            let range = (begin, begin.saturating_add(bytes(small)));
            match moves.iter().position(|m| m.part == part) {
                Some(at) if moves[at].offset == offset => {
                    moves[at].passed.push(one);
                    covered[at].0.push(range);
                }
                // It would have two places.
                Some(_) => {}
                None => {
                    moves.push(Move { passed: vec![one], part, whole, offset });
                    covered.push((vec![range], self.classes.offset(large).saturating_add(bytes(large))));
                }
            }
        }
        let fits = |m: &Move, (ranges, end): &(Vec<(u64, u64)>, u64)| {
            let (Some(a), Some(b)) = (self.ranges.get(&m.part), self.ranges.get(&m.whole)) else {
                return false;
            };
            let length = length_of(ranges);
            a.bytes == length.next_multiple_of(16)
                && a.device.is_some()
                && a.device == b.device
                && m.offset.is_multiple_of(alignment)
                // Views over a range are rounded up to whole texels.
                && (length.is_multiple_of(16) || m.offset.saturating_add(length) == *end)
        };
        let mut covered = covered.into_iter();
        moves.retain(|m| covered.next().is_some_and(|covered| fits(m, &covered)));
        // A command that moves the others would read from what it writes to.
        let copied = passed.iter().filter(|one| !moves.iter().any(|m| m.passed.contains(one)));
        let read: HashSet<ValueId> = copied
            .filter_map(|one| node.inputs.get(one.input).copied().flatten())
            .map(|v| self.classes.root(v))
            .collect();
        moves.retain(|m| !read.contains(&m.part));
        moves
    }

    /// Joins the classes of all of `moves`, or of none where too many bytes would be alive at once.
    fn join(&mut self, moves: &[Move]) -> bool {
        let Some(first) = moves.first() else { return false };
        let whole = first.whole;
        let parts: Vec<ValueId> = moves.iter().map(|m| m.part).collect();
        let of = |root: &ValueId| self.ranges.get(root).copied();
        let (Some(large), Some(small)) = (of(&whole), parts.iter().map(of).collect::<Option<Vec<Range>>>())
        else {
            return false;
        };
        let Some((steps, most)) = large.device.and_then(|device| self.alive.get_mut(&device)) else {
            return false;
        };
        let life = small.iter().fold(large.life, |l, s| (l.0.min(s.life.0), l.1.max(s.life.1)));
        let visits = (life.1 - life.0 + 1).saturating_mul(small.len() + 1);
        let Some(left) = self.visits.checked_sub(visits) else { return false };
        self.visits = left;
        let bytes_at = |range: &Range, step: usize| {
            if (range.life.0..=range.life.1).contains(&step) { range.bytes } else { 0 }
        };
        let joined: Vec<u64> = (life.0..=life.1)
            .map(|step| {
                let apart = small.iter().chain([&large]).map(|range| bytes_at(range, step));
                steps[step].saturating_sub(apart.fold(0, u64::saturating_add)).saturating_add(large.bytes)
            })
            .collect();
        if joined.iter().any(|bytes| bytes > most) {
            return false;
        }
        steps[life.0..=life.1].copy_from_slice(&joined);
        for one in moves {
            self.classes.join(one.part, whole, one.offset);
            self.ranges.remove(&one.part);
        }
        self.ranges.insert(whole, Range { life, ..large });
        true
    }
}

/// How many bytes from 0 on `ranges` have without a gap.
fn length_of(ranges: &[(u64, u64)]) -> u64 {
    let mut ranges = ranges.to_vec();
    ranges.sort_unstable();
    ranges.iter().fold(0, |length, &(begin, end)| if begin <= length { length.max(end) } else { length })
}
