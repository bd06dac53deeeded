//! Places requests in a given order, each into the smallest gap.

use super::{ArenaRequest, Placed, align_up};

/// Places requests in given orders.
pub(super) struct Placer<'a> {
    pub(super) requests: &'a [ArenaRequest],
    /// Requests that need room, by their first step.
    sorted: Vec<usize>,
    /// The position in `sorted` of each of them.
    leaf: Vec<usize>,
    /// A power of two, not below the length of `sorted`.
    leaves: usize,
}

impl<'a> Placer<'a> {
    pub(super) fn new(requests: &'a [ArenaRequest]) -> Self {
        let mut sorted = super::order::some(requests);
        sorted.sort_by_key(|&i| requests[i].first);
        let mut leaf = vec![0; requests.len()];
        sorted.iter().enumerate().for_each(|(at, &i)| leaf[i] = at);
        let leaves = sorted.len().next_power_of_two();
        Placer { requests, sorted, leaf, leaves }
    }

    /// Visits of placed requests when all are placed, in any order: one for every pair that is live at the same time.
    pub(super) fn visits(&self) -> u64 {
        let mut ends: Vec<u32> = self.sorted.iter().map(|&i| self.requests[i].last).collect();
        ends.sort_unstable();
        // Of those that begin no later than one ends, all that did not end before it begins live with it.
        let with = |(at, &i): (usize, &usize)| {
            at - ends.partition_point(|&end| end < self.requests[i].first).min(at)
        };
        self.sorted.iter().enumerate().map(with).map(|n| n as u64).sum()
    }

    /// Places the requests of `order`, each into the smallest gap that the earlier ones leave, the lowest of equal
    /// ones, or on top.
    pub(super) fn place(&self, order: &[usize]) -> Placed {
        let requests = self.requests;
        let mut offsets = vec![0u64; requests.len()];
        let mut alive = Alive::new(self);
        let mut peak = 0;
        let mut taken: Vec<(u64, u64)> = Vec::new();
        for &i in order {
            let r = &requests[i];
            taken.clear();
            alive.visit(r, &mut |p| {
                taken.push((offsets[p], offsets[p].saturating_add(requests[p].bytes)));
            });
            taken.sort_unstable();
            let mut best: Option<(u64, u64)> = None;
            let mut cursor = 0u64;
            for &(from, to) in &taken {
                let start = align_up(cursor, r.alignment);
                let gap = from.saturating_sub(start);
                if start.saturating_add(r.bytes) <= from && best.is_none_or(|(g, _)| gap < g) {
                    best = Some((gap, start));
                }
                cursor = cursor.max(to);
            }
            let offset = best.map_or_else(|| align_up(cursor, r.alignment), |(_, start)| start);
            offsets[i] = offset;
            peak = peak.max(offset.saturating_add(r.bytes));
            alive.add(i);
        }
        Placed { offsets, peak }
    }
}

/// Placed requests by the steps they live through: a tree over [`Placer::sorted`] that knows the last step below
/// every node, one more than it, and 0 where nothing is placed.
struct Alive<'a> {
    placer: &'a Placer<'a>,
    ends: Vec<u64>,
}

impl<'a> Alive<'a> {
    fn new(placer: &'a Placer<'a>) -> Self {
        Alive { placer, ends: vec![0; 2 * placer.leaves] }
    }

    fn add(&mut self, i: usize) {
        let end = u64::from(self.placer.requests[i].last) + 1;
        let mut at = self.placer.leaves + self.placer.leaf[i];
        while at > 0 && self.ends[at] < end {
            self.ends[at] = end;
            at /= 2;
        }
    }

    /// Calls `f` with every placed request that lives at the same time as `r`.
    fn visit(&self, r: &ArenaRequest, f: &mut impl FnMut(usize)) {
        let (placer, first) = (self.placer, u64::from(r.first));
        let begun = placer.sorted.partition_point(|&i| placer.requests[i].first <= r.last);
        // Nodes with the first leaf below them and how many there are.
        let mut stack = vec![(1usize, 0usize, placer.leaves)];
        while let Some((at, from, width)) = stack.pop() {
            if from >= begun || self.ends[at] <= first {
                continue;
            }
            if width == 1 {
                f(placer.sorted[from]);
            } else {
                let half = width / 2;
                stack.push((2 * at + 1, from + half, half));
                stack.push((2 * at, from, half));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn those_that_live_at_the_same_time_are_visited_once(
            raw in prop::collection::vec((0u64..3, 0u32..40, 0u32..12), 1..60)
        ) {
            let requests: Vec<ArenaRequest> = raw
                .iter()
                .map(|&(bytes, first, len)| ArenaRequest { bytes, alignment: 1, first, last: first + len })
                .collect();
            let placer = Placer::new(&requests);
            let mut alive = Alive::new(&placer);
            let mut visits = 0;
            let some = super::super::order::some(&requests);
            for (at, &i) in some.iter().enumerate() {
                let mut found = Vec::new();
                alive.visit(&requests[i], &mut |p| found.push(p));
                found.sort_unstable();
                let with: Vec<usize> =
                    some[..at].iter().copied().filter(|&p| requests[p].lives_with(&requests[i])).collect();
                visits += found.len() as u64;
                prop_assert_eq!(found, with);
                alive.add(i);
            }
            prop_assert_eq!(placer.visits(), visits);
        }
    }

    /// In a chain, only the neighbours of a request are visited.
    #[test]
    fn the_work_for_a_chain_grows_with_its_length() {
        let chain = |n: u32| -> Vec<ArenaRequest> {
            (0..n).map(|i| ArenaRequest { bytes: 64, alignment: 64, first: i, last: i + 1 }).collect()
        };
        assert_eq!(Placer::new(&chain(1000)).visits(), 999);
        assert_eq!(Placer::new(&chain(50_000)).visits(), 49_999);
    }
}
