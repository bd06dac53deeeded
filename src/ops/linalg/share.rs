//! Division of a product among threads: rows in bands, columns in strips, one task for each pair of both.

use std::ops::Range;
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
    /// Rows of a task are a multiple of this.
    pub(crate) unit: usize,
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
        let strips = even(strips.min(self.strips).max(1), threads);
        let bands = wanted.div_ceil(strips).min(most_bands);
        let band =
            m.div_ceil(if strips == 1 { even(bands, threads) } else { bands }).next_multiple_of(self.unit);
        let bands = m.div_ceil(band);
        let ends = (0..strips).map(|s| end(s, strips)).collect();
        let tasks = Tasks {
            rows: rows.map(Some).collect(),
            taken: vec![0; bands],
            band,
            ends,
            by_strips,
            left: 0..bands * strips,
        };
        par::share(tasks, f);
    }
}

/// As many parts, or a few less so that all threads have the same number of them.
fn even(parts: usize, threads: usize) -> usize {
    if parts > threads { parts - parts % threads } else { parts }
}

/// The tasks of a product, each of which takes its rows' elements from those that are left as a thread begins it.
struct Tasks<'y, T> {
    /// Elements between those that were taken from the front and from the back.
    rows: Vec<Option<&'y mut [T]>>,
    /// Of the rows of each band how many elements were taken from the front.
    taken: Vec<usize>,
    band: usize,
    /// How many elements of a row come before the end of each strip.
    ends: Vec<usize>,
    by_strips: bool,
    left: Range<usize>,
}

impl<'y, T> Tasks<'y, T> {
    /// Neighbours of the cut side are neighbours in the order, so that a thread finds in its cache what it computed one
    /// operator before.
    fn place(&self, task: usize) -> [usize; 2] {
        let (bands, strips) = (self.taken.len(), self.ends.len());
        if self.by_strips { [task % bands, task / bands] } else { [task / strips, task % strips] }
    }

    fn take(&mut self, task: usize, from_back: bool) -> Share<'y, T> {
        let [band, strip] = self.place(task);
        let begin = strip.checked_sub(1).map_or(0, |before| self.ends[before]);
        let (first, len) = (band * self.band, self.ends[strip] - begin);
        let end = (first + self.band).min(self.rows.len());
        let skipped = begin - self.taken[band];
        let take = |row: &mut Option<&'y mut [T]>| {
            let (front, back) = row.take()?.split_at_mut(if from_back { skipped } else { len });
            let (own, rest) = if from_back { (&mut back[..len], front) } else { (front, back) };
            *row = Some(rest);
            Some(own)
        };
        let mut rows = Vec::with_capacity(end - first);
        rows.extend(self.rows[first..end].iter_mut().filter_map(take));
        if !from_back {
            self.taken[band] += len;
        }
        Share { row: first, strip, strips: self.ends.len(), rows }
    }
}

impl<'y, T> Iterator for Tasks<'y, T> {
    type Item = Share<'y, T>;

    fn next(&mut self) -> Option<Self::Item> {
        self.left.next().map(|task| self.take(task, false))
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        self.left.size_hint()
    }
}

impl<T> DoubleEndedIterator for Tasks<'_, T> {
    fn next_back(&mut self) -> Option<Self::Item> {
        self.left.next_back().map(|task| self.take(task, true))
    }
}
