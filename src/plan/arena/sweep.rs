//! Packing in one pass over the steps.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap};

use super::{ArenaRequest, Placed, align_up};

/// Allocates memory step by step: each request that begins gets the smallest free range that is large enough (the
/// lowest of equal ones, the largest request of a step first); a request that ends frees its range. Takes O(n log n).
pub(super) fn sweep(requests: &[ArenaRequest]) -> Placed {
    let alignment = requests.iter().map(|r| r.alignment).max().unwrap_or(1);
    let mut order = super::order::some(requests);
    order.sort_by_key(|&i| (requests[i].first, Reverse(requests[i].bytes), i));
    let mut offsets = vec![0u64; requests.len()];
    let mut peak = 0;
    let mut free = FreeRanges::default();
    let mut busy: BinaryHeap<Reverse<(u32, u64, u64)>> = BinaryHeap::new();
    for i in order {
        let r = &requests[i];
        while let Some(Reverse((_, start, bytes))) =
            busy.peek().copied().filter(|Reverse((last, _, _))| *last < r.first)
        {
            busy.pop();
            free.give(start, bytes);
        }
        // All ranges begin where any request may.
        let bytes = align_up(r.bytes, alignment);
        let start = free.take(bytes);
        offsets[i] = start;
        peak = peak.max(start.saturating_add(r.bytes));
        busy.push(Reverse((r.last, start, bytes)));
    }
    Placed { offsets, peak }
}

/// FreeRanges ranges below the end of all allocations.
#[derive(Default)]
struct FreeRanges {
    /// Length by start.
    by_start: BTreeMap<u64, u64>,
    /// Length and start.
    by_length: BTreeSet<(u64, u64)>,
    end: u64,
}

impl FreeRanges {
    fn take(&mut self, bytes: u64) -> u64 {
        if let Some((length, start)) = self.by_length.range((bytes, 0)..).next().copied() {
            self.remove(start, length);
            if length > bytes {
                self.insert(start + bytes, length - bytes);
            }
            return start;
        }
        // A range at the end grows.
        let last = self.by_start.last_key_value().map(|(start, length)| (*start, *length));
        let start = match last.filter(|(start, length)| start.saturating_add(*length) == self.end) {
            Some((start, length)) => {
                self.remove(start, length);
                start
            }
            None => self.end,
        };
        self.end = start.saturating_add(bytes);
        start
    }

    fn give(&mut self, mut start: u64, mut length: u64) {
        let before = self.by_start.range(..start).next_back().map(|(s, l)| (*s, *l));
        if let Some((s, l)) = before.filter(|(s, l)| s.saturating_add(*l) == start) {
            self.remove(s, l);
            (start, length) = (s, length.saturating_add(l));
        }
        if let Some(l) = self.by_start.get(&start.saturating_add(length)).copied() {
            self.remove(start.saturating_add(length), l);
            length = length.saturating_add(l);
        }
        self.insert(start, length);
    }

    fn insert(&mut self, start: u64, length: u64) {
        self.by_start.insert(start, length);
        self.by_length.insert((length, start));
    }

    fn remove(&mut self, start: u64, length: u64) {
        self.by_start.remove(&start);
        self.by_length.remove(&(length, start));
    }
}
