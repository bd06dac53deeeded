//! Accesses by resource and byte.

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

    /// The kinds found on any byte of the range.
    pub(super) fn found(&self, resource: ResourceId, range: ByteRange) -> Access {
        match self.cells.get(&resource) {
            Some(cells) => cells.overlapping(range).fold(Access::NONE, |found, (_, access)| found | *access),
            None => Access::NONE,
        }
    }

    /// What is known of one resource.
    pub(super) fn of(&self, resource: ResourceId) -> impl Iterator<Item = (ByteRange, Access)> {
        self.cells
            .get(&resource)
            .into_iter()
            .flat_map(|cells| cells.iter().map(|(range, kinds)| (range, *kinds)))
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
}
