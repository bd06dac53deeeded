//! Which nodes run in one submission, in which order, and which submissions wait for which. Pure.
//!
//! A segment is a sequence of nodes on one device. Segments of one device run in order in its queue; those of
//! different devices run in parallel unless one waits for the other.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use super::barriers::ResourceMap;
use super::schedule::{Dependencies, NodeFacts};
use super::{Plan, Segment, Space};
use crate::memory::range::{ByteRange, RangeMap};

/// Above this many segments the transitive closure, one bit per pair, is skipped.
const MAX_FOLLOWED: usize = 1 << 13;

/// Flops and bytes that justify a submission of their own: some ten microseconds on a processor.
const WORTH_A_SUBMISSION: u64 = 4 << 20;

/// Where a node runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum Lane {
    /// On the queue of a device.
    Device(u32),
    /// In the session, for a device.
    Session(u32),
}

/// The assignment of an order's steps to segments.
pub(super) struct SegmentAssignment {
    /// The segment of each step of the order; an alias has that of the step before it.
    pub(super) of: Vec<u32>,
    /// For each segment the first and last step of everything that may run in parallel with it, its own included.
    concurrent: Vec<(u32, u32)>,
}

impl SegmentAssignment {
    /// Assigns the steps of `order` to segments.
    pub(super) fn new(order: &[usize], steps: &[NodeFacts], dependencies: &Dependencies) -> Self {
        let mut at = vec![0usize; steps.len()];
        order.iter().enumerate().for_each(|(step, &n)| at[n] = step);
        // Steps after which a node of another lane needs nothing more of this lane.
        let mut wanted = vec![false; order.len()];
        for (n, before) in dependencies.all.iter().enumerate().filter(|(n, _)| !steps[*n].alias) {
            let mut last: HashMap<Lane, usize> = HashMap::new();
            for &p in before.iter().filter(|p| steps[**p].lane != steps[n].lane) {
                let latest = last.entry(steps[p].lane).or_default();
                *latest = at[p].max(*latest);
            }
            last.into_values().for_each(|step| wanted[step] = true);
        }
        let left = work_left(order, steps);
        let mut of = vec![0u32; order.len()];
        let mut current = OpenSegment::default();
        let mut next = 0u32;
        for (step, &n) in order.iter().enumerate().filter(|(_, n)| !steps[**n].alias) {
            let waits: BTreeSet<usize> =
                dependencies.all[n].iter().copied().filter(|p| steps[*p].lane != steps[n].lane).collect();
            let is_new = match current.lane {
                Some(lane) if lane == steps[n].lane => {
                    let waits_more = !waits.is_subset(&current.waits);
                    current.cut || (waits_more && current.work >= WORTH_A_SUBMISSION)
                }
                _ => true,
            };
            if is_new {
                let first = current.lane != Some(steps[n].lane);
                next += u32::from(current.lane.is_some());
                current = OpenSegment { lane: Some(steps[n].lane), first, ..OpenSegment::default() };
            }
            current.waits.extend(waits);
            current.work = current.work.saturating_add(steps[n].work);
            let enough = current.first || current.work >= WORTH_A_SUBMISSION;
            current.cut = wanted[step] && enough && left[step] >= WORTH_A_SUBMISSION;
            of[step] = next;
        }
        let mut last = 0;
        for (step, &n) in order.iter().enumerate() {
            if steps[n].alias {
                of[step] = last;
            }
            last = of[step];
        }
        let concurrent = concurrent(order, steps, dependencies, &of, &at);
        SegmentAssignment { of, concurrent }
    }

    /// The steps within which a range of host memory must be kept for values that the steps `touched` access: each of
    /// them may run in parallel with segments before or after it in the order.
    pub(super) fn lifetime(&self, touched: &BTreeSet<u32>) -> Option<(u32, u32)> {
        let segments = touched.iter().filter_map(|&step| self.of.get(step as usize));
        let spans = segments.filter_map(|&s| self.concurrent.get(s as usize)).copied();
        spans.reduce(|a, b| (a.0.min(b.0), a.1.max(b.1)))
    }
}

/// The segment under construction.
#[derive(Default)]
struct OpenSegment {
    lane: Option<Lane>,
    /// It is the first since the lane changed.
    first: bool,
    waits: BTreeSet<usize>,
    work: u64,
    /// The next step starts a new segment.
    cut: bool,
}

/// For each step, the work after it until the lane changes.
fn work_left(order: &[usize], steps: &[NodeFacts]) -> Vec<u64> {
    let mut left = vec![0u64; order.len()];
    let (mut lane, mut sum) = (None, 0u64);
    for (step, &n) in order.iter().enumerate().rev().filter(|(_, n)| !steps[**n].alias) {
        if lane != Some(steps[n].lane) {
            (lane, sum) = (Some(steps[n].lane), 0);
        }
        left[step] = sum;
        sum = sum.saturating_add(steps[n].work);
    }
    left
}

fn concurrent(
    order: &[usize],
    steps: &[NodeFacts],
    dependencies: &Dependencies,
    of: &[u32],
    at: &[usize],
) -> Vec<(u32, u32)> {
    let count = of.iter().max().map_or(0, |m| *m as usize + 1);
    let mut own: Vec<Option<(u32, u32)>> = vec![None; count];
    let mut before: Vec<BTreeSet<usize>> = vec![BTreeSet::new(); count];
    let mut last_of: HashMap<Lane, usize> = HashMap::new();
    for (step, &n) in order.iter().enumerate() {
        let s = of[step] as usize;
        // Steps come in order.
        own[s] = Some((own[s].map_or(step as u32, |(first, _)| first), step as u32));
        if steps[n].alias {
            continue;
        }
        before[s].extend(dependencies.all[n].iter().map(|&p| of[at[p]] as usize).filter(|p| *p != s));
        if let Some(previous) = last_of.insert(steps[n].lane, s).filter(|p| *p != s) {
            before[s].insert(previous);
        }
    }
    let Some(reach) = Reach::new(&before) else {
        return vec![(0, (order.len() as u32).saturating_sub(1)); count];
    };
    (0..count)
        .map(|s| {
            let concurrent = (0..count).filter(|&t| !reach.has(s, t) && !reach.has(t, s));
            let spans = concurrent.chain([s]).filter_map(|t| own[t]);
            spans.reduce(|a, b| (a.0.min(b.0), a.1.max(b.1))).unwrap_or_default()
        })
        .collect()
}

/// The transitive order of segments.
struct Reach {
    words: usize,
    bits: Vec<u64>,
}

impl Reach {
    /// `before` gives the direct predecessors of each segment, all earlier ones.
    fn new(before: &[BTreeSet<usize>]) -> Option<Self> {
        let mut reach = Reach::empty(before.len())?;
        for (s, direct) in before.iter().enumerate() {
            direct.iter().for_each(|&p| reach.add(s, p));
        }
        Some(reach)
    }

    /// No order among `count` segments; `None` where they are too many.
    fn empty(count: usize) -> Option<Self> {
        let words = count.div_ceil(64);
        (count <= MAX_FOLLOWED).then(|| Reach { words, bits: vec![0; words * count] })
    }

    /// Puts `p`, and all its predecessors, before `s`.
    fn add(&mut self, s: usize, p: usize) {
        for w in 0..self.words {
            self.bits[s * self.words + w] |= self.bits[p * self.words + w];
        }
        self.bits[s * self.words + p / 64] |= 1 << (p % 64);
    }

    /// Whether `p` comes before `s`.
    fn has(&self, s: usize, p: usize) -> bool {
        self.bits[s * self.words + p / 64] & (1 << (p % 64)) != 0
    }
}

/// The last writer of some bytes, and the readers since.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct LastAccesses {
    writer: Option<usize>,
    /// The last reader of each lane since that write.
    readers: BTreeMap<Lane, usize>,
}

/// Decides the waits of every segment: earlier segments of other lanes that access the same bytes, where one of the
/// two writes. `resolve` tells which bound spaces share memory. Transitive waits are omitted, unless there are very
/// many segments.
pub fn order_segments(plan: &mut Plan, resolve: &ResourceMap<'_>) {
    let mut seen: HashMap<Space, RangeMap<LastAccesses>> = HashMap::new();
    let count = plan.segments.len();
    let mut reach = Reach::empty(count);
    let mut last_of: HashMap<Lane, usize> = HashMap::new();
    let lanes: Vec<Lane> = plan.segments.iter().map(Segment::lane).collect();
    for s in 0..count {
        let mut found: BTreeSet<usize> = plan.segments[s].after.iter().map(|&p| p as usize).collect();
        let mut own: Vec<(Space, ByteRange, bool)> = Vec::new();
        for command in &plan.segments[s].commands {
            command.work.for_each_touch(&mut |loc, access| {
                if loc.bytes == 0 || matches!(loc.space, Space::Constant(_)) {
                    return;
                }
                let (space, base) = resolve(loc.space);
                let start = base.saturating_add(loc.offset);
                let range = ByteRange::new(start, start.saturating_add(loc.bytes));
                own.push((space, range, !access.writes().is_empty()));
            });
        }
        for (space, range, writes) in &own {
            for (_, before) in seen.get(space).into_iter().flat_map(|map| map.overlapping(*range)) {
                found.extend(before.writer);
                found.extend(before.readers.values().filter(|_| *writes));
            }
        }
        for (space, range, writes) in own {
            seen.entry(space).or_default().update(range, |before| {
                if writes {
                    return Some(LastAccesses { writer: Some(s), ..LastAccesses::default() });
                }
                let mut now = before.cloned().unwrap_or_default();
                now.readers.insert(lanes[s], s);
                Some(now)
            });
        }
        if let (Some(previous), Some(reach)) = (last_of.insert(lanes[s], s), &mut reach) {
            reach.add(s, previous);
        }
        // The latest first: its predecessors need no wait of their own.
        let mut waits = Vec::new();
        for p in found.into_iter().rev() {
            let known = reach.as_ref().is_some_and(|reach| reach.has(s, p));
            if lanes[p] != lanes[s] && !known {
                waits.push(p as u32);
            }
            if let Some(reach) = &mut reach {
                reach.add(s, p);
            }
        }
        waits.reverse();
        plan.segments[s].waits = waits;
    }
}

impl Segment {
    /// Where it runs.
    pub(super) fn lane(&self) -> Lane {
        if self.by_session { Lane::Session(self.device) } else { Lane::Device(self.device) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::DType;
    use crate::graph::{GraphBuilder, TensorId, TensorInfo};
    use crate::limits::MAX_DEPENDENCIES;
    use crate::ops::{self, Function};
    use crate::plan::schedule::schedule;
    use crate::plan::specialize;
    use crate::plan::{Flow, PlanError};
    use crate::shape::Shape;

    fn flow_of(nodes: impl FnOnce(&mut GraphBuilder, TensorId) -> TensorId) -> Flow {
        let mut g = GraphBuilder::new("g");
        let x = g.input("x", DType::F32, [4.into()]);
        let y = nodes(&mut g, x);
        g.output("y", y);
        let info = TensorInfo::new(DType::F32, Shape::new([4]).unwrap());
        specialize(&g.build().unwrap(), &[info], &Default::default()).unwrap().plan().unwrap()
    }

    /// Two unary nodes over one input, and their sum; then the negated sum.
    fn diamond() -> Flow {
        flow_of(|g, x| {
            let a = g.op(ops::unary(Function::Abs), &[x]);
            let b = g.op(ops::unary(Function::Neg), &[x]);
            let c = g.op(ops::add(), &[a, b]);
            g.op(ops::unary(Function::Neg), &[c])
        })
    }

    fn steps(devices: [u32; 4], work: u64) -> Vec<NodeFacts> {
        devices.iter().map(|&d| NodeFacts { lane: Lane::Device(d), alias: false, work }).collect()
    }

    #[test]
    fn what_runs_at_the_same_time_is_known() {
        let flow = diamond();
        let steps = steps([0, 1, 0, 0], 1);
        let dependencies = Dependencies::new(&flow, &steps).unwrap();
        let order = schedule(&flow, &steps, &dependencies);
        assert_eq!(order, [0, 1, 2, 3]);
        let cut = SegmentAssignment::new(&order, &steps, &dependencies);
        assert_eq!(cut.of, [0, 1, 2, 2]);
        let life = |steps: &[u32]| cut.lifetime(&steps.iter().copied().collect());
        assert_eq!((life(&[0]), life(&[1])), (Some((0, 1)), Some((0, 1))), "the branches run in parallel");
        assert_eq!((life(&[2]), life(&[1, 2])), (Some((2, 3)), Some((0, 3))));
        assert_eq!(life(&[]), None);
    }

    #[test]
    fn nodes_that_do_nothing_are_looked_through() {
        let flow = diamond();
        let mut steps = steps([0, 1, 0, 1], 1);
        steps[2].alias = true;
        let dependencies = Dependencies::new(&flow, &steps).unwrap();
        assert_eq!(dependencies.all[3], BTreeSet::from([0, 1]));
        assert!(dependencies.control.iter().all(BTreeSet::is_empty));
    }

    /// A sequence of aliases, each after one more node by control dependency, with many readers.
    #[test]
    fn dependencies_are_bounded() {
        const ROW: usize = 2100;
        let mut g = GraphBuilder::new("g");
        let x = g.input("x", DType::F32, [4.into()]);
        let (mut row, mut last) = (x, None);
        for i in 0..ROW {
            let (before, y) = g.node(format!("a{i}"), ops::unary(Function::Abs), &[Some(x)], 1);
            g.output(format!("y{i}"), y[0]);
            let (id, next) = g.node(format!("n{i}"), ops::unary(Function::Neg), &[Some(row)], 1);
            g.control_dep(id, before);
            if let Some(last) = last.replace(id) {
                g.control_dep(id, last);
            }
            row = next[0];
        }
        for i in 0..ROW {
            let z = g.op(ops::unary(Function::Abs), &[row]);
            g.output(format!("z{i}"), z);
        }
        let info = TensorInfo::new(DType::F32, Shape::new([4]).unwrap());
        let mut flow = specialize(&g.build().unwrap(), &[info], &Default::default()).unwrap().plan().unwrap();
        let alias = |n: &crate::plan::FlowNode| n.name.starts_with('n');
        let steps: Vec<NodeFacts> = flow
            .nodes
            .iter()
            .map(|n| NodeFacts { lane: Lane::Device(0), alias: alias(n), work: 1 })
            .collect();
        let e = Dependencies::new(&flow, &steps).err();
        assert_eq!(e, Some(PlanError::TooManyDependencies { limit: MAX_DEPENDENCIES }));
        let keep: Vec<bool> = flow.nodes.iter().map(|n| !alias(n)).collect();
        assert!(!flow.overgrown);
        for node in flow.nodes.iter_mut().filter(|n| !n.name.starts_with('n') && n.inputs[0] != Some(0)) {
            node.control_deps = vec![keep.len() - ROW - 1];
        }
        flow.retain(&keep);
        assert!(flow.overgrown);
    }

    #[test]
    fn a_segment_is_cut_only_where_that_is_worth_while() {
        // Entry 1 waits for the first node, and entry 0 can continue with the second.
        let early = flow_of(|g, x| {
            let a = g.op(ops::unary(Function::Abs), &[x]);
            let b = g.op(ops::unary(Function::Neg), &[a]);
            let c = g.op(ops::unary(Function::Abs), &[a]);
            g.op(ops::add(), &[b, c])
        });
        let of = |flow: &Flow, devices, work| {
            let steps = steps(devices, work);
            let dependencies = Dependencies::new(flow, &steps).unwrap();
            SegmentAssignment::new(&schedule(flow, &steps, &dependencies), &steps, &dependencies).of
        };
        assert_eq!(of(&early, [0, 0, 1, 0], 1), [0, 0, 1, 2]);
        assert_eq!(of(&early, [0, 0, 1, 0], WORTH_A_SUBMISSION), [0, 1, 2, 3]);
        // Here it needs both.
        assert_eq!(of(&diamond(), [0, 0, 1, 1], WORTH_A_SUBMISSION), [0, 0, 1, 1]);
    }
}
