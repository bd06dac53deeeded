//! Division of a product among threads: rows in bands, columns in strips, one task for each pair of both.

use std::sync::atomic::{AtomicU64, Ordering};

use super::product::Threads;
use crate::ops::par;

/// Tasks for each thread, so that all are done at about the same time.
const TASKS: usize = 4;

/// Multiplications of `f32` below which one thread is faster.
pub(crate) const PARALLEL: usize = 100_000;
/// Multiplications of `f32` that one task has at least: some microseconds.
pub(crate) const TASK: usize = 150_000;

/// A number that no other run has, by which a task knows what another one of its run has made.
pub(crate) fn new_run() -> u64 {
    static RUNS: AtomicU64 = AtomicU64::new(0);
    RUNS.fetch_add(1, Ordering::Relaxed)
}

/// Bounds of the sizes of tasks, in multiplications unless stated otherwise.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cut {
    /// The whole product.
    pub(crate) work: usize,
    /// Below which one thread is faster.
    pub(crate) parallel: usize,
    /// Minimum of one task.
    pub(crate) task: usize,
    /// Rows that one task has at least.
    pub(crate) band: usize,
    /// Strips that columns can be cut into at most.
    pub(crate) strips: usize,
}

/// One task: rows of the output from `row` on, of which strip `strip` of `strips` is given.
pub(crate) struct Share<'y, T> {
    pub(crate) row: usize,
    pub(crate) strip: usize,
    pub(crate) strips: usize,
    pub(crate) rows: Vec<&'y mut [T]>,
}

impl Cut {
    /// Calls `f` with the parts of `rows`, `m` of them for `n` columns, on so many threads as pays. `end(s, strips)` is
    /// how many elements of a row come before the end of strip `s`.
    pub(crate) fn share<'y, T: Send + 'y>(
        &self,
        [m, n]: [usize; 2],
        rows: impl Iterator<Item = &'y mut [T]>,
        threads: Threads,
        end: impl Fn(usize, usize) -> usize,
        f: impl Fn(Share<'y, T>) + Sync,
    ) {
        let threads = match threads {
            Threads::All if self.work >= self.parallel => par::threads(),
            _ => 1,
        };
        if threads == 1 {
            return f(Share { row: 0, strip: 0, strips: 1, rows: rows.collect() });
        }
        let wanted = (self.work / self.task).clamp(1, TASKS * threads);
        let most_bands = (m / self.band).max(1);
        // The longer side is cut first: less is read by several threads.
        let by_strips = n >= m;
        let strips = if by_strips { wanted } else { wanted.div_ceil(wanted.min(most_bands)) };
        let strips = strips.min(self.strips).max(1);
        let bands = wanted.div_ceil(strips).min(most_bands);
        let band = m.div_ceil(bands).next_multiple_of(8);
        let bands = m.div_ceil(band);
        // Neighbours of the cut side are neighbours in the order, so that a thread finds in its cache what it
        // computed one operator before.
        let place =
            |band: usize, strip: usize| if by_strips { strip * bands + band } else { band * strips + strip };
        let of = |task: usize| {
            if by_strips { (task % bands, task / bands) } else { (task / strips, task % strips) }
        };
        let mut tasks: Vec<Share<'y, T>> = (0..bands * strips)
            .map(|task| {
                let (b, strip) = of(task);
                let rows = Vec::with_capacity(band.min(m - b * band));
                Share { row: b * band, strip, strips, rows }
            })
            .collect();
        let ends: Vec<usize> = (0..strips).map(|s| end(s, strips)).collect();
        for (r, row) in rows.enumerate() {
            let (mut rest, mut done) = (row, 0);
            for (s, &end) in ends.iter().enumerate() {
                let (own, more) = rest.split_at_mut(end - done);
                (rest, done) = (more, end);
                if let Some(task) = tasks.get_mut(place(r / band, s)) {
                    task.rows.push(own);
                }
            }
        }
        par::share(tasks.into_iter(), f);
    }
}
