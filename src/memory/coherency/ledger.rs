//! Accesses by resource and byte, and the same by submission.

use std::collections::BTreeMap;

use super::{Access, ResourceId};
use crate::memory::range::{ByteRange, RangeMap};

/// What was done to which bytes, as a set of access kinds per byte.
#[derive(Clone, Debug, Default)]
pub(super) struct Ledger {
    // A superset of the kinds in `cells`, so that the common "nothing outstanding" costs no search.
    kinds: Access,
    cells: BTreeMap<ResourceId, RangeMap<Access>>,
}

impl Ledger {
    pub(super) fn is_empty(&self) -> bool {
        self.kinds.is_empty()
    }

    /// Every kind in the ledger.
    pub(super) fn kinds(&self) -> Access {
        self.kinds
    }

    pub(super) fn clear(&mut self) {
        self.kinds = Access::NONE;
        self.cells.clear();
    }

    pub(super) fn add(&mut self, resource: ResourceId, range: ByteRange, access: Access) {
        if access.is_empty() || range.is_empty() {
            return;
        }
        self.kinds |= access;
        let cells = self.cells.entry(resource).or_default();
        cells.update(range, |old| Some(old.map_or(access, |old| *old | access)));
    }

    pub(super) fn add_all(&mut self, other: &Ledger, mask: Access) {
        for (resource, range, access) in other.iter() {
            self.add(resource, range, access & mask);
        }
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (ResourceId, ByteRange, Access)> {
        self.cells
            .iter()
            .flat_map(|(resource, cells)| cells.iter().map(|(range, access)| (*resource, range, *access)))
    }

    /// The kinds found on any byte of the range.
    pub(super) fn found(&self, resource: ResourceId, range: ByteRange) -> Access {
        match self.cells.get(&resource) {
            Some(cells) => cells.overlapping(range).fold(Access::NONE, |found, (_, access)| found | *access),
            None => Access::NONE,
        }
    }

    /// The pieces of the range that hold any of these kinds.
    pub(super) fn pieces(
        &self,
        resource: ResourceId,
        range: ByteRange,
        mask: Access,
    ) -> impl Iterator<Item = ByteRange> {
        self.cells.get(&resource).into_iter().flat_map(move |cells| {
            cells
                .overlapping(range)
                .filter(move |(_, access)| access.intersects(mask))
                .map(|(piece, _)| piece)
        })
    }

    /// Takes these kinds out, everywhere.
    pub(super) fn settle(&mut self, settled: Access) {
        if !self.kinds.intersects(settled) {
            return;
        }
        for cells in self.cells.values_mut() {
            cells.update_all(|access| Some(*access & !settled).filter(|left| !left.is_empty()));
        }
        self.cells.retain(|_, cells| !cells.is_empty());
        self.kinds = self.kinds & !settled;
    }

    pub(super) fn remove(&mut self, resource: ResourceId, range: ByteRange) {
        if let Some(cells) = self.cells.get_mut(&resource) {
            cells.remove(range);
            self.prune();
        }
    }

    pub(super) fn forget(&mut self, resource: ResourceId) {
        if self.cells.remove(&resource).is_some() {
            self.prune();
        }
    }

    fn prune(&mut self) {
        self.cells.retain(|_, cells| !cells.is_empty());
        self.kinds = self.iter().fold(Access::NONE, |kinds, (_, _, access)| kinds | access);
    }
}

/// Ledgers by the number of the submission that makes the accesses, in ascending order.
#[derive(Clone, Debug, Default)]
pub(super) struct Log {
    entries: Vec<(u64, Ledger)>,
}

impl Log {
    /// The ledger of this submission; numbers must not fall.
    pub(super) fn at(&mut self, submission: u64) -> &mut Ledger {
        let at = self.entries.partition_point(|(number, _)| *number < submission);
        if self.entries.get(at).is_none_or(|(number, _)| *number != submission) {
            self.entries.insert(at, (submission, Ledger::default()));
        }
        &mut self.entries[at].1
    }

    pub(super) fn kinds(&self) -> Access {
        self.entries.iter().fold(Access::NONE, |kinds, (_, ledger)| kinds | ledger.kinds())
    }

    pub(super) fn clear(&mut self) {
        self.entries.clear();
    }

    /// The ledgers of submissions up to and including `last`, with their numbers.
    pub(super) fn until(&self, last: u64) -> impl Iterator<Item = (u64, &Ledger)> {
        self.entries
            .iter()
            .take_while(move |(number, _)| *number <= last)
            .map(|(number, ledger)| (*number, ledger))
    }

    pub(super) fn until_mut(&mut self, last: u64) -> impl Iterator<Item = &mut Ledger> {
        self.entries.iter_mut().take_while(move |(number, _)| *number <= last).map(|(_, ledger)| ledger)
    }

    pub(super) fn all(&self) -> impl Iterator<Item = &Ledger> {
        self.entries.iter().map(|(_, ledger)| ledger)
    }

    /// Drops the submissions up to and including `last`.
    pub(super) fn drop_until(&mut self, last: u64) {
        self.entries.retain(|(number, _)| *number > last);
    }

    /// Folds the submissions up to and including `last` into one, so that a log whose entries are
    /// never settled does not grow with the number of submissions.
    pub(super) fn fold_until(&mut self, last: u64) {
        let old = self.entries.partition_point(|(number, _)| *number <= last);
        let mut folded: Option<(u64, Ledger)> = None;
        for (number, ledger) in self.entries.drain(..old).filter(|(_, ledger)| !ledger.is_empty()) {
            folded = Some(match folded {
                None => (number, ledger),
                Some((_, mut sum)) => {
                    sum.add_all(&ledger, Access::DEVICE);
                    (number, sum)
                }
            });
        }
        self.entries.splice(0..0, folded);
    }

    pub(super) fn settle(&mut self, settled: Access) {
        self.entries.iter_mut().for_each(|(_, ledger)| ledger.settle(settled));
        self.entries.retain(|(_, ledger)| !ledger.is_empty());
    }

    pub(super) fn forget(&mut self, resource: ResourceId) {
        self.entries.iter_mut().for_each(|(_, ledger)| ledger.forget(resource));
    }
}
