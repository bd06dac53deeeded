//! Packs tensors with lifetimes into one range of memory. Pure.
//!
//! Best fit in an order: each request goes into the smallest gap left by the requests placed before it that live at
//! the same time (Pisarchyk and Lee, "Efficient Memory Management for Deep Neural Net Inference", 2020, greedy by
//! size). Deterministic: ties fall to the earlier and then the lower request.

use std::cmp::Reverse;

/// One request for memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// Bytes; 0 needs no room.
    pub bytes: u64,
    /// What the offset is a multiple of; a power of two.
    pub alignment: u64,
    /// The first step that touches it.
    pub first: u32,
    /// The last step that touches it.
    pub last: u32,
}

impl Request {
    /// How many steps it lives.
    fn life(&self) -> u32 {
        self.last.saturating_sub(self.first).saturating_add(1)
    }

    fn lives_with(&self, other: &Request) -> bool {
        self.first <= other.last && other.first <= self.last
    }
}

/// Where every request lies.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Packing {
    /// Offset of each request, in their order.
    pub offsets: Vec<u64>,
    /// Bytes of the whole range.
    pub peak: u64,
    /// The largest sum of bytes alive at one step: no packing is smaller.
    pub lower_bound: u64,
}

/// Packs `requests`: those alive at one step never overlap. The peak is never above the blocks of [`tvm_rule`]
/// laid one behind another.
///
/// No order is best for all graphs, so several are tried until one reaches the lower bound: by size, by the room that a
/// request takes over its life, by length of life, and by the steps with most bytes alive (the "greedy by breadth" of
/// Pisarchyk and Lee). Then the best one is improved for a bounded time, by moving what lies on top and what is in its way.
pub fn pack(requests: &[Request]) -> Packing {
    let lower_bound = lower_bound(requests);
    let packing = |placed: Placed| Packing { offsets: placed.offsets, peak: placed.peak, lower_bound };
    let mut order = by_size(requests);
    let mut best = place(requests, &order);
    if best.peak <= lower_bound {
        return packing(best);
    }
    for other in [by_breadth(requests), by_room(requests), by_life(requests)] {
        let placed = place(requests, &other);
        if placed.peak < best.peak {
            (best, order) = (placed, other);
        }
        if best.peak <= lower_bound {
            return packing(best);
        }
    }
    let best = improve(requests, order, best, lower_bound);
    // Filling gaps is nearly always the smaller of both, but not by any law.
    let blocks = in_blocks(requests);
    packing(if blocks.peak < best.peak { blocks } else { best })
}

/// Offsets, and the end of the last request.
#[derive(Debug)]
struct Placed {
    offsets: Vec<u64>,
    peak: u64,
}

/// Those that need room.
fn some(requests: &[Request]) -> Vec<usize> {
    (0..requests.len()).filter(|&i| requests[i].bytes > 0).collect()
}

fn by_size(requests: &[Request]) -> Vec<usize> {
    let mut order = some(requests);
    order.sort_by_key(|&i| (Reverse(requests[i].bytes), requests[i].first, i));
    order
}

fn by_room(requests: &[Request]) -> Vec<usize> {
    let mut order = some(requests);
    let room = |r: &Request| u128::from(r.bytes) * u128::from(r.life());
    order.sort_by_key(|&i| (Reverse(room(&requests[i])), requests[i].first, i));
    order
}

fn by_life(requests: &[Request]) -> Vec<usize> {
    let mut order = some(requests);
    order.sort_by_key(|&i| (Reverse(requests[i].life()), Reverse(requests[i].bytes), i));
    order
}

/// All that is alive at the fullest step, then at the next fullest, and so on; the largest first.
fn by_breadth(requests: &[Request]) -> Vec<usize> {
    let mut order = some(requests);
    let mut steps: Vec<u32> = order.iter().map(|&i| requests[i].first).collect();
    steps.sort_unstable();
    steps.dedup();
    let alive = |step: u32| {
        let live = order.iter().filter(|&&i| requests[i].first <= step && step <= requests[i].last);
        live.fold(0u64, |sum, &i| sum.saturating_add(requests[i].bytes))
    };
    let mut ranked: Vec<(Reverse<u64>, u32)> = steps.iter().map(|&s| (Reverse(alive(s)), s)).collect();
    ranked.sort_unstable();
    // The rank of the fullest step that a request lives through. A set of requests is fullest where one begins.
    let rank = |r: &Request| ranked.iter().position(|&(_, s)| r.first <= s && s <= r.last);
    let ranks: Vec<usize> = requests.iter().map(|r| rank(r).unwrap_or(usize::MAX)).collect();
    order.sort_by_key(|&i| (ranks[i], Reverse(requests[i].bytes), i));
    order
}

/// Tries orders in which a request that lies on top, or one that is alive beside it, is placed at another time, for a
/// bounded number of comparisons.
fn improve(requests: &[Request], mut order: Vec<usize>, mut best: Placed, lower_bound: u64) -> Placed {
    const COMPARISONS: usize = 4_000_000;
    const ROUNDS: usize = 1000;
    let rounds = (COMPARISONS / (order.len() * order.len()).max(1)).min(ROUNDS);
    // A sequence of numbers without a pattern, the same in every run (xorshift; Marsaglia, "Xorshift RNGs", 2003).
    let mut state = 0x9E37_79B9_7F4A_7C15u64;
    let mut below = |n: usize| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state % n.max(1) as u64) as usize
    };
    let mut current = best.peak;
    let mut offsets = best.offsets.clone();
    for _ in 0..rounds {
        if best.peak <= lower_bound {
            break;
        }
        let top = |&at: &usize| offsets[order[at]].saturating_add(requests[order[at]].bytes) == current;
        let on_top: Vec<usize> = (0..order.len()).filter(top).collect();
        let Some(&highest) = on_top.get(below(on_top.len())) else { break };
        // What lies on top is too late, or something in its way is.
        let beside = |&at: &usize| requests[order[at]].lives_with(&requests[order[highest]]);
        let in_its_way: Vec<usize> = (0..order.len()).filter(beside).collect();
        let other = in_its_way.get(below(in_its_way.len())).copied();
        let from = if below(2) == 0 { highest } else { other.unwrap_or(highest) };
        let to = below(order.len());
        let mut tried = order.clone();
        let moved = tried.remove(from);
        tried.insert(to, moved);
        let placed = place(requests, &tried);
        // An equal peak is as good a place to go on from.
        if placed.peak <= current {
            (order, current) = (tried, placed.peak);
            offsets.clone_from(&placed.offsets);
        }
        if placed.peak < best.peak {
            best = placed;
        }
    }
    best
}

/// The blocks of [`tvm_rule`], one behind another.
fn in_blocks(requests: &[Request]) -> Placed {
    let rule = tvm_rule(requests);
    let alignments = rule.alignments(requests);
    // The strictest first: behind it every other alignment holds with less padding.
    let mut order: Vec<usize> = (0..rule.blocks.len()).collect();
    order.sort_by_key(|&b| std::cmp::Reverse(alignments[b]));
    let mut peak = 0u64;
    let mut starts = vec![0; rule.blocks.len()];
    for b in order {
        starts[b] = align_up(peak, alignments[b]);
        peak = starts[b].saturating_add(rule.blocks[b]);
    }
    let offsets = rule.block_of.iter().map(|block| block.map_or(0, |b| starts[b])).collect();
    Placed { offsets, peak }
}

/// Puts the requests of `order` one after the other into the smallest gap that the ones before leave, the lowest of
/// equal ones, or on top.
fn place(requests: &[Request], order: &[usize]) -> Placed {
    let mut offsets = vec![0u64; requests.len()];
    // Placed requests by offset, so that one walk finds the gaps.
    let mut placed: Vec<usize> = Vec::with_capacity(order.len());
    let mut peak = 0;
    for &i in order {
        let r = &requests[i];
        let mut best: Option<(u64, u64)> = None;
        let mut cursor = 0u64;
        for &p in placed.iter().filter(|&&p| requests[p].lives_with(r)) {
            let start = align_up(cursor, r.alignment);
            let gap = offsets[p].saturating_sub(start);
            if start.saturating_add(r.bytes) <= offsets[p] && best.is_none_or(|(g, _)| gap < g) {
                best = Some((gap, start));
            }
            cursor = cursor.max(offsets[p].saturating_add(requests[p].bytes));
        }
        let offset = best.map_or_else(|| align_up(cursor, r.alignment), |(_, start)| start);
        offsets[i] = offset;
        peak = peak.max(offset.saturating_add(r.bytes));
        let at = placed.partition_point(|&p| offsets[p] <= offset);
        placed.insert(at, i);
    }
    Placed { offsets, peak }
}

fn align_up(n: u64, alignment: u64) -> u64 {
    n.checked_next_multiple_of(alignment.max(1)).unwrap_or(u64::MAX)
}

/// The largest sum of bytes that are alive at one step.
pub fn lower_bound(requests: &[Request]) -> u64 {
    let mut events: Vec<(u32, bool, u64)> = Vec::with_capacity(requests.len() * 2);
    for r in requests.iter().filter(|r| r.bytes > 0) {
        events.push((r.first, true, r.bytes));
        events.push((r.last.saturating_add(1), false, r.bytes));
    }
    // At one step, what ends before it is gone before what begins at it arrives.
    events.sort_unstable();
    let (mut live, mut most) = (0u64, 0u64);
    for (_, begins, bytes) in events {
        if begins {
            live = live.saturating_add(bytes);
            most = most.max(live);
        } else {
            live = live.saturating_sub(bytes);
        }
    }
    most
}

/// What TVM's graph planner would use for the same requests: whole blocks, handed on when free,
/// searched within a factor of 16 (smallest that fits, else the largest smaller one, grown).
///
/// Requests are visited by their first step; a block is free from the step after its last use.
pub fn tvm_rule(requests: &[Request]) -> TvmBlocks {
    const RANGE: u64 = 16;
    let mut order: Vec<usize> = (0..requests.len()).filter(|&i| requests[i].bytes > 0).collect();
    order.sort_by_key(|&i| (requests[i].first, i));
    let mut blocks: Vec<u64> = Vec::new();
    let mut free: Vec<usize> = Vec::new();
    let mut busy: Vec<(u32, usize)> = Vec::new();
    let mut block_of = vec![None; requests.len()];
    for &i in &order {
        let r = &requests[i];
        let (ended, still): (Vec<_>, Vec<_>) = busy.into_iter().partition(|&(last, _)| last < r.first);
        busy = still;
        for (_, block) in ended {
            // Equal sizes keep their order of release.
            let at = free.partition_point(|&f| blocks[f] <= blocks[block]);
            free.insert(at, block);
        }
        let fit =
            free.iter().position(|&f| blocks[f] >= r.bytes && blocks[f] <= r.bytes.saturating_mul(RANGE));
        let grow = || free.iter().rposition(|&f| blocks[f] < r.bytes && blocks[f] >= r.bytes / RANGE);
        let block = match fit.or_else(grow) {
            Some(at) => {
                let block = free.remove(at);
                blocks[block] = blocks[block].max(r.bytes);
                block
            }
            None => {
                blocks.push(r.bytes);
                blocks.len() - 1
            }
        };
        block_of[i] = Some(block);
        busy.push((r.last, block));
    }
    TvmBlocks { blocks, block_of }
}

/// The blocks that [`tvm_rule`] makes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TvmBlocks {
    /// Bytes of each block.
    pub blocks: Vec<u64>,
    /// The block of each request; `None` for empty ones.
    pub block_of: Vec<Option<usize>>,
}

impl TvmBlocks {
    /// Bytes of all blocks.
    pub fn total(&self) -> u64 {
        self.blocks.iter().sum()
    }

    /// Bytes of all blocks of `requests`, each up to the next that the alignment of what lies in it allows (TVM
    /// allocates every block by itself, in whole pages).
    pub fn aligned_total(&self, requests: &[Request]) -> u64 {
        let ends = self.blocks.iter().zip(self.alignments(requests)).map(|(bytes, a)| align_up(*bytes, a));
        ends.fold(0, u64::saturating_add)
    }

    fn alignments(&self, requests: &[Request]) -> Vec<u64> {
        let mut alignments = vec![1; self.blocks.len()];
        for (r, block) in requests.iter().zip(&self.block_of) {
            if let Some(block) = block {
                alignments[*block] = r.alignment.max(alignments[*block]);
            }
        }
        alignments
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn r(bytes: u64, first: u32, last: u32) -> Request {
        Request { bytes, alignment: 1, first, last }
    }

    #[test]
    fn a_chain_needs_two_buffers() {
        let chain: Vec<Request> = (0..6).map(|i| r(40, i, i + 1)).collect();
        let p = pack(&chain);
        assert_eq!(p.peak, 80);
        assert_eq!(p.lower_bound, 80);
        assert_eq!(tvm_rule(&chain).total(), 80);
    }

    #[test]
    fn a_small_tensor_fits_the_gap_that_wastes_least() {
        // Three neighbours fix gaps of 8 and 4 bytes; the request of 4 takes the second.
        let requests = [r(32, 0, 9), r(16, 0, 3), r(8, 0, 9), r(12, 0, 3), r(4, 0, 9), r(4, 4, 9)];
        let p = pack(&requests);
        assert_eq!(p.peak, p.lower_bound);
    }

    /// Four layers of a transformer: by size alone they take a tenth more than is alive at once.
    #[test]
    fn layers_of_a_transformer_take_no_more_than_is_alive_at_once() {
        const S: u64 = 65_536;
        // Bytes, first and last step in the layer: normalization, projections, scores, sums, feed forward.
        let layer = [
            (S, 0, 9),
            (S, 1, 4),
            (S, 2, 4),
            (S, 3, 6),
            (4 * S, 4, 5),
            (4 * S, 5, 6),
            (S, 6, 7),
            (S, 7, 8),
            (S, 8, 12),
            (4 * S, 9, 10),
            (4 * S, 10, 11),
            (S, 11, 12),
        ];
        let requests: Vec<Request> = (0..4)
            .flat_map(|l| layer.map(|(bytes, first, last)| r(bytes, 12 * l + first, 12 * l + last)))
            .collect();
        let packing = pack(&requests);
        assert_eq!((packing.peak, packing.lower_bound), (10 * S, 10 * S));
        assert!(place(&requests, &by_size(&requests)).peak > 10 * S, "one order would have done");
        let again: Vec<Packing> = (0..100).map(|_| pack(&requests)).collect();
        assert!(again.iter().all(|p| *p == packing));
    }

    #[test]
    fn empty_requests_and_alignment() {
        let p = pack(&[
            Request { bytes: 0, alignment: 64, first: 0, last: 5 },
            Request { bytes: 3, alignment: 64, first: 0, last: 5 },
            Request { bytes: 2, alignment: 64, first: 0, last: 5 },
        ]);
        assert_eq!(p.offsets, [0, 0, 64]);
        assert_eq!(p.peak, 66);
        assert_eq!(pack(&[]), Packing::default());
    }

    #[test]
    fn tvms_rule_grows_a_smaller_block_and_ignores_ones_beyond_sixteenfold() {
        let b = tvm_rule(&[r(10, 0, 0), r(100, 1, 1)]);
        assert_eq!(b.blocks, [100]);
        let b = tvm_rule(&[r(1, 0, 0), r(100, 1, 1)]);
        assert_eq!(b.blocks, [1, 100]);
        let b = tvm_rule(&[r(100, 0, 0), r(1, 1, 1)]);
        assert_eq!(b.blocks, [100, 1]);
    }

    /// Values that nodes pass on: (bytes, the node that makes it, the last node that reads it). What TVM calls a
    /// storage id is a block here; inputs keep theirs to the end.
    fn case(values: &[(u64, u32, u32)]) -> (Vec<u64>, Packing) {
        let requests: Vec<Request> =
            values.iter().map(|&(bytes, first, last)| r(bytes, first, last)).collect();
        let (rule, packing) = (tvm_rule(&requests), pack(&requests));
        assert!(packing.peak <= rule.total(), "{} above the {} of TVM's rule", packing.peak, rule.total());
        for _ in 0..100 {
            assert_eq!(pack(&requests), packing);
        }
        (rule.blocks, packing)
    }

    /// Bytes of a texture as TVM plans one: rows of texels of four channels, each row a multiple of 64 bytes.
    fn texture(width: u64, height: u64, bytes_of_channel: u64) -> u64 {
        (width * 4 * bytes_of_channel).next_multiple_of(64) * height
    }

    #[test]
    fn tvms_case_of_two_inputs_and_two_temporaries() {
        // x of 10, y of 1, exp(y), x + exp(y), and four times exp.
        let values: Vec<(u64, u32, u32)> =
            [(40, 0, 9), (4, 0, 9), (4, 1, 2)].into_iter().chain((2..7).map(|i| (40, i, i + 1))).collect();
        let (blocks, packing) = case(&values);
        assert_eq!(blocks, [40, 4, 40, 40]);
        assert_eq!((packing.peak, packing.lower_bound), (124, 124));
    }

    #[test]
    fn tvms_case_of_a_texture_reused_by_a_smaller_one_and_by_a_buffer() {
        // A texture of 400 x 22 texels, of float32 and of float16, and a buffer of as many bytes.
        let (whole, half) = (texture(20 * 20, 22, 4), texture(20 * 20, 22, 2));
        assert_eq!((whole, half), (140_800, 70_400));
        let (blocks, packing) = case(&[(whole, 0, 1), (whole, 1, 2), (half, 2, 3), (whole, 3, 4)]);
        assert_eq!(blocks, [140_800, 140_800]);
        assert_eq!(packing.peak, 281_600);
        // One behind another they are one block.
        let (blocks, packing) = case(&[(whole, 0, 0), (half, 1, 1), (whole, 2, 2)]);
        assert_eq!((blocks, packing.peak), (vec![140_800], 140_800));
    }

    #[test]
    fn tvms_case_of_a_weight_texture_and_an_activation() {
        let weight = texture(676, 28, 4);
        assert_eq!(weight, 302_848);
        let activation = texture(676, 28, 2);
        let (blocks, packing) = case(&[(weight, 0, 0), (activation, 1, 1), (weight, 2, 2)]);
        assert_eq!((blocks, packing.peak), (vec![302_848], 302_848));
        // The smaller one first: its block grows.
        let (blocks, packing) = case(&[(activation, 0, 0), (weight, 1, 1)]);
        assert_eq!((blocks, packing.peak), (vec![302_848], 302_848));
    }

    #[test]
    fn tvms_case_of_576000_bytes() {
        let (large, small) = (576_000, 140_800);
        let (blocks, packing) = case(&[(large, 0, 1), (small, 1, 2), (large, 2, 3), (small, 3, 4)]);
        assert_eq!(blocks, [576_000, 140_800]);
        assert_eq!(packing.peak, 716_800);
        // Two small ones lie in what was one large block; whole blocks cannot be shared out.
        let (blocks, packing) = case(&[(large, 0, 0), (small, 1, 2), (small, 1, 2), (small, 2, 2)]);
        assert_eq!(blocks.iter().sum::<u64>(), 576_000 + 2 * 140_800);
        assert_eq!(packing.peak, 576_000);
    }

    proptest! {
        #[test]
        fn the_peak_is_never_above_tvms_rule(
            raw in prop::collection::vec((0u64..5000, 0u32..30, 0u32..8), 0..60), shift in 0u32..9,
        ) {
            let mut requests: Vec<Request> = raw.iter().map(|&(bytes, first, len)| r(bytes, first, first + len)).collect();
            let (packing, rule) = (pack(&requests), tvm_rule(&requests).total());
            prop_assert!(packing.peak <= rule, "{} above {}", packing.peak, rule);
            // Some of them are images.
            requests.iter_mut().step_by(3).for_each(|r| r.alignment = 1 << shift);
            let (packing, rule) = (pack(&requests), tvm_rule(&requests).aligned_total(&requests));
            prop_assert!(packing.peak <= rule, "{} above {}", packing.peak, rule);
        }

        #[test]
        fn nothing_alive_at_once_overlaps(
            raw in prop::collection::vec((0u64..200, 0u32..6, 0u32..20, 0u32..8), 0..40)
        ) {
            let requests: Vec<Request> = raw
                .iter()
                .map(|&(bytes, a, first, len)| Request { bytes, alignment: 1 << a, first, last: first + len })
                .collect();
            let p = pack(&requests);
            for (i, a) in requests.iter().enumerate() {
                prop_assert_eq!(p.offsets[i] % a.alignment, 0);
                prop_assert!(a.bytes == 0 || p.offsets[i] + a.bytes <= p.peak);
                for (j, b) in requests.iter().enumerate().skip(i + 1) {
                    if a.bytes > 0 && b.bytes > 0 && a.lives_with(b) {
                        let apart = p.offsets[i] + a.bytes <= p.offsets[j] || p.offsets[j] + b.bytes <= p.offsets[i];
                        prop_assert!(apart, "{:?} and {:?} overlap", a, b);
                    }
                }
            }
            prop_assert!(p.peak >= p.lower_bound);
            prop_assert_eq!(pack(&requests), p);
        }
    }
}
