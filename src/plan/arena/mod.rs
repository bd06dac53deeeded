//! Packs tensors with lifetimes into one range of memory. Pure.
//!
//! Best fit in an order: each request goes into the smallest gap left by the requests placed before it that live at
//! the same time (Pisarchyk and Lee, "Efficient Memory Management for Deep Neural Net Inference", 2020, greedy by
//! size). Deterministic: ties fall to the earlier and then the lower request.

mod order;
mod place;
mod sweep;
mod tvm;

pub use tvm::{TvmBlocks, tvm_rule};

use place::Placer;
use sweep::sweep;

/// One request for memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ArenaRequest {
    /// Size in bytes; 0 takes no memory.
    pub bytes: u64,
    /// Alignment of the offset, a power of two.
    pub alignment: u64,
    /// The first step that touches it.
    pub first: u32,
    /// The last step that touches it.
    pub last: u32,
}

impl ArenaRequest {
    /// Number of steps from the first to the last.
    fn life(&self) -> u32 {
        self.last.saturating_sub(self.first).saturating_add(1)
    }

    fn lives_with(&self, other: &ArenaRequest) -> bool {
        self.first <= other.last && other.first <= self.last
    }
}

/// The offsets of all requests.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Packing {
    /// Offset of each request, in their order.
    pub offsets: Vec<u64>,
    /// Bytes of the whole range.
    pub peak: u64,
    /// Largest sum of live bytes at one step, a lower bound of every packing.
    pub lower_bound: u64,
}

/// Visits of placed requests that packing by orders may take: some tenths of a second.
const VISITS: u64 = 1 << 24;
/// Visits of one order beyond which one pass over the steps is tried before it.
const CHEAP: u64 = 1 << 20;

/// Packs `requests`: those alive at one step never overlap. The peak never exceeds the blocks of [`tvm_rule`] laid
/// contiguously.
///
/// No order is best for all graphs, so several are tried until one reaches the lower bound: by size, by size times
/// lifetime, by lifetime, and by the steps with most bytes alive ("greedy by breadth" of Pisarchyk and Lee). Where that leaves
/// 64 KiB or more above the lower bound, a bounded local search improves the best one: it moves the topmost request, or
/// one that overlaps it in time, to another position.
///
/// An order takes time for every two requests that live at the same time. Where there are too many of those, one pass
/// over the steps decides instead, in O(n log n).
pub fn pack(requests: &[ArenaRequest]) -> Packing {
    let lower_bound = lower_bound(requests);
    let packing = |placed: Placed| Packing { offsets: placed.offsets, peak: placed.peak, lower_bound };
    let placer = Placer::new(requests);
    let visits = placer.visits();
    let mut best: Option<Placed> = None;
    if visits > CHEAP {
        let swept = sweep(requests);
        if swept.peak <= lower_bound {
            return packing(swept);
        }
        best = Some(swept);
    }
    let mut found: Option<(Vec<usize>, Placed)> = None;
    let mut left = VISITS;
    for order in [order::by_size, order::by_breadth, order::by_room, order::by_life] {
        let Some(rest) = left.checked_sub(visits) else { break };
        left = rest;
        let order = order(requests);
        let placed = placer.place(&order);
        let done = placed.peak <= lower_bound;
        if found.as_ref().is_none_or(|(_, found)| placed.peak < found.peak) {
            found = Some((order, placed));
        }
        if done {
            break;
        }
    }
    let ordered = found.map(|(order, placed)| improve(&placer, order, placed, lower_bound));
    // The blocks of TVM's rule are rarely the smallest packing, but sometimes are.
    for other in ordered.into_iter().chain([in_blocks(requests)]) {
        if best.as_ref().is_none_or(|best| other.peak < best.peak) {
            best = Some(other);
        }
        if best.as_ref().is_some_and(|best| best.peak <= lower_bound) {
            break;
        }
    }
    packing(best.unwrap_or_default())
}

/// Offsets, and the end of the last request.
#[derive(Debug, Default)]
struct Placed {
    offsets: Vec<u64>,
    peak: u64,
}

/// Moves the topmost request, or one that is alive with it, to another position of the order, for a bounded number of
/// visits.
fn improve(placer: &Placer<'_>, mut order: Vec<usize>, mut best: Placed, lower_bound: u64) -> Placed {
    const VISITS: u64 = 4_000_000;
    const ROUNDS: u64 = 1000;
    /// What memory is allocated in multiples of: to save less saves nothing.
    const LEAST_GAIN: u64 = 64 << 10;
    // Small arenas lie in one allocation with others: there a twentieth counts.
    let enough = lower_bound.saturating_add(LEAST_GAIN.min(lower_bound / 20));
    let requests = placer.requests;
    let all = order.len() as u64;
    let each = placer.visits().saturating_add(4 * all).min(all.saturating_mul(all));
    let rounds = (VISITS / each.max(1)).min(ROUNDS);
    // A pseudorandom sequence, the same in every run (xorshift; Marsaglia, "Xorshift RNGs", 2003).
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
        if best.peak <= enough {
            break;
        }
        let top = |&at: &usize| offsets[order[at]].saturating_add(requests[order[at]].bytes) == current;
        let on_top: Vec<usize> = (0..order.len()).filter(top).collect();
        let Some(&highest) = on_top.get(below(on_top.len())) else { break };
        // The topmost request, or one that overlaps it in time, moves to another place in the order.
        let alive_with = |&at: &usize| requests[order[at]].lives_with(&requests[order[highest]]);
        let in_its_way: Vec<usize> = (0..order.len()).filter(alive_with).collect();
        let other = in_its_way.get(below(in_its_way.len())).copied();
        let from = if below(2) == 0 { highest } else { other.unwrap_or(highest) };
        let to = below(order.len());
        let mut tried = order.clone();
        let moved = tried.remove(from);
        tried.insert(to, moved);
        let placed = placer.place(&tried);
        // An equal peak is accepted too.
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

/// The blocks of [`tvm_rule`], contiguous.
fn in_blocks(requests: &[ArenaRequest]) -> Placed {
    let rule = tvm_rule(requests);
    let alignments = rule.alignments(requests);
    // The strictest first: after it every other alignment holds with less padding.
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

fn align_up(n: u64, alignment: u64) -> u64 {
    n.checked_next_multiple_of(alignment.max(1)).unwrap_or(u64::MAX)
}

/// The largest sum of bytes that are alive at one step.
pub fn lower_bound(requests: &[ArenaRequest]) -> u64 {
    let mut events: Vec<(u32, bool, u64)> = Vec::with_capacity(requests.len() * 2);
    for r in requests.iter().filter(|r| r.bytes > 0) {
        events.push((r.first, true, r.bytes));
        events.push((r.last.saturating_add(1), false, r.bytes));
    }
    // Requests that end before a step are removed before those that begin at it are added.
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

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn r(bytes: u64, first: u32, last: u32) -> ArenaRequest {
        ArenaRequest { bytes, alignment: 1, first, last }
    }

    #[test]
    fn a_chain_needs_two_buffers() {
        let chain: Vec<ArenaRequest> = (0..6).map(|i| r(40, i, i + 1)).collect();
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

    /// Four layers of a transformer: greedy by size alone needs a tenth more than the lower bound.
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
        let requests: Vec<ArenaRequest> = (0..4)
            .flat_map(|l| layer.map(|(bytes, first, last)| r(bytes, 12 * l + first, 12 * l + last)))
            .collect();
        let packing = pack(&requests);
        assert_eq!((packing.peak, packing.lower_bound), (10 * S, 10 * S));
        assert!(
            Placer::new(&requests).place(&order::by_size(&requests)).peak > 10 * S,
            "one order would have done"
        );
        let again: Vec<Packing> = (0..100).map(|_| pack(&requests)).collect();
        assert!(again.iter().all(|p| *p == packing));
    }

    /// The order of `order.rs`, by comparing every pair.
    fn plain_breadth(requests: &[ArenaRequest]) -> Vec<usize> {
        let mut order: Vec<usize> = (0..requests.len()).filter(|&i| requests[i].bytes > 0).collect();
        let mut steps: Vec<u32> = order.iter().map(|&i| requests[i].first).collect();
        steps.sort_unstable();
        steps.dedup();
        let alive = |step: u32| {
            let live = order.iter().filter(|&&i| requests[i].first <= step && step <= requests[i].last);
            live.fold(0u64, |sum, &i| sum.saturating_add(requests[i].bytes))
        };
        let mut ranked: Vec<_> = steps.iter().map(|&s| (std::cmp::Reverse(alive(s)), s)).collect();
        ranked.sort_unstable();
        let rank = |r: &ArenaRequest| ranked.iter().position(|&(_, s)| r.first <= s && s <= r.last);
        let ranks: Vec<_> = requests.iter().map(|r| rank(r).unwrap_or(usize::MAX)).collect();
        order.sort_by_key(|&i| (ranks[i], std::cmp::Reverse(requests[i].bytes), i));
        order
    }

    fn apart(requests: &[ArenaRequest], p: &Packing) -> bool {
        let mut by_step: Vec<usize> = (0..requests.len()).filter(|&i| requests[i].bytes > 0).collect();
        by_step.sort_by_key(|&i| requests[i].first);
        // The end of each range in use, and the step from which it is free, by its start.
        let mut busy = std::collections::BTreeMap::<u64, (u64, u32)>::new();
        let mut ends = std::collections::BinaryHeap::new();
        by_step.into_iter().all(|i| {
            let (r, start) = (&requests[i], p.offsets[i]);
            while let Some(std::cmp::Reverse((_, at))) =
                ends.peek().copied().filter(|std::cmp::Reverse((last, _))| *last < r.first)
            {
                ends.pop();
                busy.remove(&at);
            }
            let below = busy.range(..=start).next_back().is_none_or(|(_, (end, _))| *end <= start);
            let above = busy.range(start..).next().is_none_or(|(at, _)| start + r.bytes <= *at);
            busy.insert(start, (start + r.bytes, r.last));
            ends.push(std::cmp::Reverse((r.last, start)));
            below && above && start + r.bytes <= p.peak
        })
    }

    /// Very many requests: in a chain, all alive at once, each to the end, and pseudorandom.
    #[test]
    fn a_hundred_thousand_requests() {
        const N: u32 = 100_000;
        let mut state = 7u32;
        let mut below = |n: u32| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 8) % n
        };
        let chain: Vec<ArenaRequest> = (0..N).map(|i| r(64, i, i + 1)).collect();
        let fan: Vec<ArenaRequest> = (0..N).map(|i| r(64, i, N)).collect();
        let nested: Vec<ArenaRequest> = (0..N).map(|i| r(64 * u64::from(1 + i % 5), i, 2 * N - i)).collect();
        let mixed: Vec<ArenaRequest> =
            (0..N).map(|i| r(64 * u64::from(1 + below(300)), i, i + 1 + below(2000))).collect();
        for (requests, most) in [(chain, 1.0), (fan, 1.0), (nested, 1.0), (mixed, 1.1)] {
            let p = pack(&requests);
            assert!(apart(&requests, &p));
            assert!(p.peak <= tvm_rule(&requests).total());
            assert!(p.peak as f64 <= p.lower_bound as f64 * most, "{} of {}", p.peak, p.lower_bound);
        }
    }

    #[test]
    fn empty_requests_and_alignment() {
        let p = pack(&[
            ArenaRequest { bytes: 0, alignment: 64, first: 0, last: 5 },
            ArenaRequest { bytes: 3, alignment: 64, first: 0, last: 5 },
            ArenaRequest { bytes: 2, alignment: 64, first: 0, last: 5 },
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

    /// Values that nodes pass on: (bytes, the node that makes it, the last node that reads it). A storage id of TVM
    /// is a block here; inputs keep theirs to the end.
    fn case(values: &[(u64, u32, u32)]) -> (Vec<u64>, Packing) {
        let requests: Vec<ArenaRequest> =
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
        // Contiguous, they are one block.
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
        // Two small ones fit into what was one large block; whole blocks cannot be divided.
        let (blocks, packing) = case(&[(large, 0, 0), (small, 1, 2), (small, 1, 2), (small, 2, 2)]);
        assert_eq!(blocks.iter().sum::<u64>(), 576_000 + 2 * 140_800);
        assert_eq!(packing.peak, 576_000);
    }

    proptest! {
        #[test]
        fn the_peak_is_never_above_tvms_rule(
            raw in prop::collection::vec((0u64..5000, 0u32..30, 0u32..8), 0..60), shift in 0u32..9,
        ) {
            let mut requests: Vec<ArenaRequest> = raw.iter().map(|&(bytes, first, len)| r(bytes, first, first + len)).collect();
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
            let requests: Vec<ArenaRequest> = raw
                .iter()
                .map(|&(bytes, a, first, len)| ArenaRequest { bytes, alignment: 1 << a, first, last: first + len })
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
            prop_assert!(apart(&requests, &p));
            let swept = sweep(&requests);
            let swept = Packing { offsets: swept.offsets, peak: swept.peak, lower_bound: p.lower_bound };
            prop_assert!(apart(&requests, &swept) && swept.peak >= p.lower_bound);
            prop_assert_eq!(order::by_breadth(&requests), plain_breadth(&requests));
            prop_assert_eq!(pack(&requests), p);
        }
    }
}
