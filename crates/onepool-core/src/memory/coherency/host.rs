//! What the host must do before its own pointer shows, or may change, what the device works on.

use super::sight::atoms;
use super::{Access, Barrier};
use crate::memory::range::{ByteRange, RangeMap, RangeSet};

/// A submission, by the number of its queue and its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Origin {
    /// The queue.
    pub queue: usize,
    /// Its number; later submissions have larger ones.
    pub submission: u64,
}

/// What a submission leaves for the host to do in one memory.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Left {
    /// Bytes that it wrote and did not show, by the kinds of the writes.
    pub hidden: Vec<(ByteRange, Access)>,
    /// Bytes that it wrote and did not invalidate, in memory that is not coherent.
    pub stale: RangeSet,
}

impl Left {
    /// What is left where a recording wrote `writes`, of which it did not show `hidden`, and `invalidated` is invalidated
    /// after it.
    pub fn after(
        writes: impl Iterator<Item = ByteRange>,
        hidden: Vec<(ByteRange, Access)>,
        invalidated: impl Iterator<Item = ByteRange>,
        is_coherent: bool,
    ) -> Left {
        let mut stale = RangeSet::new();
        if !is_coherent {
            stale.extend(writes);
            invalidated.for_each(|range| stale.remove(range));
            // An invalidate brings nothing that no barrier showed.
            stale.extend(hidden.iter().map(|(range, _)| *range));
        }
        Left { hidden, stale }
    }

    /// Whether the host has nothing to do.
    pub fn is_empty(&self) -> bool {
        self.hidden.is_empty() && self.stale.is_empty()
    }
}

/// What comes before an access by the host, when no submission touches the bytes any more.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HostStep {
    /// Submit this barrier alone, on the queue of `by`, wait for it, tell [`HostTracker::shown`], and ask again.
    Show {
        /// The last submission whose writes it shows.
        by: Origin,
        /// The barrier.
        barrier: Barrier,
    },
    /// Invalidate these ranges, tell [`HostTracker::refreshed`], and go on.
    Go {
        /// Whole atoms; none in coherent memory.
        invalidate: Vec<ByteRange>,
    },
}

/// One mapped memory as the host sees it.
#[derive(Clone, Debug)]
pub struct HostTracker {
    coherent: bool,
    atom: u64,
    bytes: u64,
    /// Device writes with no host barrier after them.
    hidden: RangeMap<(Access, Origin)>,
    /// Device writes that were not invalidated.
    stale: RangeSet,
}

impl HostTracker {
    /// Memory of `bytes` bytes, flushed and invalidated in atoms of `atom` unless it is coherent, as the *granted*
    /// memory type says.
    pub fn new(coherent: bool, atom: u64, bytes: u64) -> Self {
        HostTracker { coherent, atom, bytes, hidden: RangeMap::new(), stale: RangeSet::new() }
    }

    /// The bytes that the host's access to `range` concerns: whole atoms where the memory is not coherent.
    pub fn rounded(&self, range: ByteRange) -> ByteRange {
        if self.coherent { range } else { atoms(range, self.atom, self.bytes) }
    }

    /// A submission was made that leaves this.
    pub fn submitted(&mut self, left: &Left, by: Origin) {
        for (range, kinds) in &left.hidden {
            self.hidden
                .update(*range, |old| Some((*kinds | old.map_or(Access::NONE, |(kinds, _)| *kinds), by)));
        }
        self.stale.extend(left.stale.iter());
    }

    /// What comes before the host reads or writes in `range`.
    ///
    /// Only atoms that a device wrote are invalidated: others may hold host writes that are not flushed.
    pub fn access(&self, range: ByteRange) -> HostStep {
        let range = self.rounded(range);
        if let Some((_, (_, by))) = self.hidden.overlapping(range).next() {
            let of_queue = self.hidden.iter().filter(|(_, (_, other))| other.queue == by.queue);
            let (kinds, submission) = of_queue
                .fold((Access::NONE, 0), |(kinds, last), (_, (more, other))| {
                    (kinds | *more, last.max(other.submission))
                });
            let by = Origin { queue: by.queue, submission };
            return HostStep::Show { by, barrier: Barrier { src: kinds, dst: Access::HOST_READ } };
        }
        let stale: RangeSet = self.stale.overlapping(range).map(|piece| self.rounded(piece)).collect();
        HostStep::Go { invalidate: stale.iter().collect() }
    }

    /// The barrier of [`HostStep::Show`] is over.
    pub fn shown(&mut self, by: Origin) {
        let is_shown = |origin: &Origin| origin.queue == by.queue && origin.submission <= by.submission;
        self.hidden.update_all(|(kinds, origin)| (!is_shown(origin)).then_some((*kinds, *origin)));
    }

    /// These ranges were invalidated.
    pub fn refreshed(&mut self, ranges: &[ByteRange]) {
        ranges.iter().for_each(|range| self.stale.remove(*range));
    }

    /// What to flush after the host's write to `range`, so that the next submission sees it.
    pub fn written(&self, range: ByteRange) -> Option<ByteRange> {
        (!self.coherent).then(|| self.rounded(range))
    }
}
