//! Live imports of one device: no page is ever imported twice.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};

use super::refusal::Refusal;
use super::window::PageWindow;
use crate::memory::range::ByteRange;

/// The wanted pages are partly, not wholly, inside live imports.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("pages {wanted} are partly imported already as {first}", first = live.first().copied().unwrap_or_default())]
pub struct Conflict {
    /// The pages asked for.
    pub wanted: ByteRange,
    /// The live imports that hold some of them, in ascending order.
    pub live: Vec<ByteRange>,
}

impl Conflict {
    /// The window that would hold every one, once the live imports are given up.
    pub fn hull(&self) -> ByteRange {
        self.live.iter().fold(self.wanted, |hull, range| hull.union_hull(*range))
    }
}

impl From<Conflict> for Refusal {
    fn from(conflict: Conflict) -> Refusal {
        let live = conflict.live.first().copied().unwrap_or_default();
        Refusal::PageInUse { wanted: conflict.wanted, live }
    }
}

/// A window was not acquired.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AcquireError<E: fmt::Display + std::error::Error + 'static> {
    /// Some of the pages are imported already, and not by one import that holds them all.
    #[error(transparent)]
    Conflict(Conflict),
    /// The import itself failed.
    #[error(transparent)]
    Create(E),
}

/// One share of a live import. It cannot be copied, so it is released at most once.
#[derive(Debug, PartialEq, Eq, Hash)]
#[must_use = "a lost key keeps its import alive as long as the map"]
pub struct ImportKey {
    map: u64,
    start: u64,
    serial: u64,
}

#[derive(Debug)]
struct Live<H> {
    end: u64,
    serial: u64,
    shares: u64,
    handle: H,
}

/// The live imports of one device by address, counted.
///
/// Not a cache: an import ends with its last share, because a freed and reused address would otherwise
/// read stale pages.
#[derive(Debug)]
pub struct ImportMap<H> {
    id: u64,
    next_serial: u64,
    // By start address; ranges never overlap.
    live: BTreeMap<u64, Live<H>>,
}

impl<H> Default for ImportMap<H> {
    fn default() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        ImportMap { id: NEXT.fetch_add(1, Ordering::Relaxed), next_serial: 0, live: BTreeMap::new() }
    }
}

impl<H> ImportMap<H> {
    /// A map with no imports.
    pub fn new() -> Self {
        ImportMap::default()
    }

    /// Takes a share of the import that holds the window, creating it when no page of it is imported.
    /// Gives the key and the tensor's offset in the import.
    ///
    /// # Errors
    /// `create` failed, or some pages are imported by other windows: then nothing changes, and the
    /// caller may copy, or import [`Conflict::hull`] once the others are released.
    pub fn acquire<E: fmt::Display + std::error::Error + 'static>(
        &mut self,
        window: PageWindow,
        create: impl FnOnce(PageWindow) -> Result<H, E>,
    ) -> Result<(ImportKey, u64), AcquireError<E>> {
        let wanted = window.range();
        let overlapping = self.overlapping(wanted);
        if let [range] = overlapping[..]
            && range.contains(wanted)
            && let Some(live) = self.live.get_mut(&range.start)
        {
            live.shares += 1;
            let key = ImportKey { map: self.id, start: range.start, serial: live.serial };
            return Ok((key, wanted.start - range.start + window.offset));
        }
        if !overlapping.is_empty() {
            return Err(AcquireError::Conflict(Conflict { wanted, live: overlapping }));
        }
        let handle = create(window).map_err(AcquireError::Create)?;
        let serial = self.next_serial;
        self.next_serial += 1;
        self.live.insert(wanted.start, Live { end: wanted.end, serial, shares: 1, handle });
        Ok((ImportKey { map: self.id, start: wanted.start, serial }, window.offset))
    }

    /// Gives a share back. The last one gives the handle, to be destroyed before the pages may go.
    pub fn release(&mut self, key: ImportKey) -> Option<H> {
        let live = self.find_mut(&key)?;
        live.shares -= 1;
        if live.shares > 0 {
            return None;
        }
        self.live.remove(&key.start).map(|live| live.handle)
    }

    /// The handle of a live import.
    pub fn get(&self, key: &ImportKey) -> Option<&H> {
        let live = self.live.get(&key.start)?;
        (key.map == self.id && live.serial == key.serial).then_some(&live.handle)
    }

    /// Whether one live import holds all of these pages.
    pub fn holds(&self, pages: ByteRange) -> bool {
        self.overlapping(pages).first().is_some_and(|range| range.contains(pages))
    }

    /// How many imports live.
    pub fn len(&self) -> usize {
        self.live.len()
    }

    /// Whether no import lives.
    pub fn is_empty(&self) -> bool {
        self.live.is_empty()
    }

    /// Bytes of live imports.
    pub fn bytes(&self) -> u64 {
        self.live.iter().map(|(start, live)| live.end - start).sum()
    }

    /// Gives up every import, shared or not: for teardown after the device is lost or idle.
    pub fn drain(&mut self) -> impl Iterator<Item = H> + use<H> {
        std::mem::take(&mut self.live).into_values().map(|live| live.handle)
    }

    fn find_mut(&mut self, key: &ImportKey) -> Option<&mut Live<H>> {
        let mine = key.map == self.id;
        self.live.get_mut(&key.start).filter(|live| mine && live.serial == key.serial)
    }

    fn overlapping(&self, wanted: ByteRange) -> Vec<ByteRange> {
        // Imports do not overlap, so only the one that starts last before the window can reach into it.
        let before = self.live.range(..wanted.start).next_back();
        let inside = self.live.range(wanted.start..wanted.end.max(wanted.start));
        let ranges = before.into_iter().chain(inside).map(|(start, live)| ByteRange::new(*start, live.end));
        ranges.filter(|range| range.overlaps(wanted)).collect()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const PAGE: u64 = 4096;

    fn pages(from: u64, to: u64, offset: u64) -> PageWindow {
        PageWindow { addr: from * PAGE, bytes: (to - from) * PAGE, offset }
    }

    fn make(window: PageWindow) -> Result<ByteRange, Refusal> {
        Ok(window.range())
    }

    #[test]
    fn two_tensors_in_one_page_share_one_import() {
        let mut map = ImportMap::new();
        let (first, at_first) = map.acquire(pages(4, 8, 52), make).unwrap();
        let (second, at_second) = map.acquire(pages(5, 6, 8), |_| Err(Refusal::Memfd)).unwrap();
        assert_eq!((at_first, at_second), (52, PAGE + 8));
        assert_eq!((map.len(), map.bytes()), (1, 4 * PAGE));
        assert_eq!(map.get(&first), map.get(&second));
        assert_eq!(map.release(first), None);
        assert_eq!(map.release(second), Some(ByteRange::new(4 * PAGE, 8 * PAGE)));
        assert!(map.is_empty());
    }

    #[test]
    fn half_overlaps_are_conflicts_and_change_nothing() {
        let mut map = ImportMap::new();
        let (low, _) = map.acquire(pages(2, 4, 0), make).unwrap();
        let (_high, _) = map.acquire(pages(5, 7, 0), make).unwrap();
        let Err(AcquireError::Conflict(conflict)) = map.acquire(pages(3, 6, 0), make) else { panic!() };
        assert_eq!(conflict.live.len(), 2);
        assert_eq!(conflict.hull(), ByteRange::new(2 * PAGE, 7 * PAGE));
        assert!(matches!(Refusal::from(conflict), Refusal::PageInUse { .. }));
        assert!(map.acquire(pages(1, 8, 0), make).is_err());
        assert!(!map.holds(ByteRange::new(3 * PAGE, 6 * PAGE)));
        assert_eq!(map.len(), 2);
        assert!(map.release(low).is_some());
        assert!(map.acquire(pages(4, 5, 0), make).is_ok());
    }

    #[test]
    fn a_failed_import_leaves_no_trace() {
        let mut map: ImportMap<()> = ImportMap::new();
        let refused = map.acquire(pages(0, 1, 0), |_| Err(Refusal::DriverRefused { code: -1 }));
        assert_eq!(refused.unwrap_err(), AcquireError::Create(Refusal::DriverRefused { code: -1 }));
        assert!(map.is_empty());
    }

    #[test]
    fn keys_of_other_maps_and_of_dead_imports_are_nothing() {
        let mut map = ImportMap::new();
        let mut other = ImportMap::new();
        let (key, _) = map.acquire(pages(0, 1, 0), make).unwrap();
        let (foreign, _) = other.acquire(pages(0, 1, 0), make).unwrap();
        assert_eq!(map.get(&foreign), None);
        assert_eq!(map.release(foreign), None);
        assert_eq!(map.drain().count(), 1);
        let (again, _) = map.acquire(pages(0, 1, 0), make).unwrap();
        assert_eq!(map.get(&key), None);
        assert_eq!(map.release(key), None);
        assert!(map.release(again).is_some());
    }

    proptest! {
        /// Against a table of pages: each names the import that holds it.
        #[test]
        fn no_page_is_imported_twice(ops in prop::collection::vec((0u64..24, 1u64..8, any::<bool>()), 1..80)) {
            let mut map: ImportMap<u64> = ImportMap::new();
            let mut owner = [None::<u64>; 32];
            let mut keys: Vec<(ImportKey, u64)> = Vec::new();
            let mut serial = 0;
            for (from, count, acquire) in ops {
                if !acquire {
                    if keys.is_empty() { continue }
                    let (key, id) = keys.swap_remove(from as usize % keys.len());
                    let last = keys.iter().all(|(_, other)| *other != id);
                    prop_assert_eq!(map.release(key), last.then_some(id));
                    if last { owner.iter_mut().filter(|page| **page == Some(id)).for_each(|page| *page = None) }
                    continue;
                }
                let span = from as usize..(from + count) as usize;
                let held: Vec<_> = owner[span.clone()].to_vec();
                serial += 1;
                match map.acquire(pages(from, from + count, 3), |_| Ok::<_, Refusal>(serial)) {
                    Ok((key, offset)) => {
                        let id = *map.get(&key).unwrap();
                        let created = id == serial;
                        let before = (!created).then_some(id);
                        prop_assert!(held.iter().all(|page| *page == before));
                        owner[span].fill(Some(id));
                        let start = owner.iter().position(|page| *page == Some(id)).unwrap() as u64;
                        prop_assert_eq!(offset, (from - start) * PAGE + 3);
                        keys.push((key, id));
                    }
                    Err(AcquireError::Conflict(conflict)) => {
                        let uniform = held.iter().all(|page| *page == held[0]);
                        prop_assert!(!uniform);
                        prop_assert!(!conflict.live.is_empty());
                    }
                    Err(AcquireError::Create(_)) => prop_assert!(false),
                }
                prop_assert_eq!(map.bytes(), owner.iter().flatten().count() as u64 * PAGE);
            }
            for (key, _) in keys { map.release(key); }
            prop_assert!(map.is_empty());
        }
    }
}
