//! The orders in which requests are placed.

use std::cmp::Reverse;

use super::ArenaRequest;

/// Requests of nonzero size.
pub(super) fn some(requests: &[ArenaRequest]) -> Vec<usize> {
    (0..requests.len()).filter(|&i| requests[i].bytes > 0).collect()
}

pub(super) fn by_size(requests: &[ArenaRequest]) -> Vec<usize> {
    let mut order = some(requests);
    order.sort_by_key(|&i| (Reverse(requests[i].bytes), requests[i].first, i));
    order
}

pub(super) fn by_room(requests: &[ArenaRequest]) -> Vec<usize> {
    let mut order = some(requests);
    let room = |r: &ArenaRequest| u128::from(r.bytes) * u128::from(r.life());
    order.sort_by_key(|&i| (Reverse(room(&requests[i])), requests[i].first, i));
    order
}

pub(super) fn by_life(requests: &[ArenaRequest]) -> Vec<usize> {
    let mut order = some(requests);
    order.sort_by_key(|&i| (Reverse(requests[i].life()), Reverse(requests[i].bytes), i));
    order
}

/// Requests that are live at the fullest step, then at the next fullest, and so on; the largest first.
pub(super) fn by_breadth(requests: &[ArenaRequest]) -> Vec<usize> {
    let mut order = some(requests);
    // A set of requests is fullest where one begins.
    let mut steps: Vec<u32> = order.iter().map(|&i| requests[i].first).collect();
    steps.sort_unstable();
    steps.dedup();
    let alive = alive(requests, &order, &steps);
    let mut ranked: Vec<usize> = (0..steps.len()).collect();
    ranked.sort_unstable_by_key(|&s| (Reverse(alive[s]), s));
    let mut rank = vec![0usize; steps.len()];
    ranked.iter().enumerate().for_each(|(r, &s)| rank[s] = r);
    let least = RangeMin::new(rank);
    // The rank of the fullest step that a request lives through.
    let ranks: Vec<Option<usize>> = requests
        .iter()
        .map(|r| {
            let from = steps.partition_point(|&s| s < r.first);
            least.of(from, steps.partition_point(|&s| s <= r.last))
        })
        .collect();
    order.sort_by_key(|&i| (ranks[i].is_none(), ranks[i], Reverse(requests[i].bytes), i));
    order
}

/// Live bytes at each of `steps`, which ascend.
fn alive(requests: &[ArenaRequest], some: &[usize], steps: &[u32]) -> Vec<u64> {
    let mut change = vec![(0u128, 0u128); steps.len() + 1];
    for r in some.iter().map(|&i| &requests[i]) {
        change[steps.partition_point(|&s| s < r.first)].0 += u128::from(r.bytes);
        change[steps.partition_point(|&s| s <= r.last)].1 += u128::from(r.bytes);
    }
    let mut live = 0u128;
    let sums = change.iter().take(steps.len()).map(|(begun, ended)| {
        live = (live + begun).saturating_sub(*ended);
        u64::try_from(live).unwrap_or(u64::MAX)
    });
    sums.collect()
}

/// Sparse table for range minima: row `k` has the minimum of every range of length 2^k.
struct RangeMin(Vec<Vec<usize>>);

impl RangeMin {
    fn new(numbers: Vec<usize>) -> Self {
        let mut rows = vec![numbers];
        let mut half = 1;
        while let Some(last) = rows.last().filter(|row| row.len() > half) {
            let row: Vec<usize> = last.iter().zip(&last[half..]).map(|(a, b)| *a.min(b)).collect();
            rows.push(row);
            half *= 2;
        }
        RangeMin(rows)
    }

    /// The minimum of `from..to`; `None` for an empty range.
    fn of(&self, from: usize, to: usize) -> Option<usize> {
        let k = to.checked_sub(from)?.checked_ilog2()?;
        let row = self.0.get(k as usize)?;
        Some(*row.get(from)?.min(row.get(to - (1 << k))?))
    }
}
