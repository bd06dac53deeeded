//! Byte ranges, sets of bytes and interval maps.
//!
//! Pure arithmetic: nothing here touches memory. Ranges are half-open, and a range whose end does not
//! lie after its start is empty; every operation is total, so hostile numbers give an empty answer or
//! `None`, never a panic.

use std::fmt;

/// A half-open range of bytes: offsets in a resource, or addresses in a process.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash, PartialOrd, Ord, serde::Serialize)]
pub struct ByteRange {
    /// First byte.
    pub start: u64,
    /// One past the last byte.
    pub end: u64,
}

impl ByteRange {
    /// Every byte there can be, except the very last address.
    pub const ALL: ByteRange = ByteRange { start: 0, end: u64::MAX };

    /// The bytes `start..end`; empty at `start` when `end` lies before it.
    pub const fn new(start: u64, end: u64) -> Self {
        ByteRange { start, end: if end < start { start } else { end } }
    }

    /// `bytes` bytes from `offset`, or `None` when the end does not fit in 64 bits.
    pub const fn from_offset(offset: u64, bytes: u64) -> Option<Self> {
        match offset.checked_add(bytes) {
            Some(end) => Some(ByteRange { start: offset, end }),
            None => None,
        }
    }

    /// The bytes of a resource of this size.
    pub const fn up_to(bytes: u64) -> Self {
        ByteRange { start: 0, end: bytes }
    }

    /// How many bytes the range holds.
    pub const fn bytes(self) -> u64 {
        self.end.saturating_sub(self.start)
    }

    /// Whether the range holds no byte.
    pub const fn is_empty(self) -> bool {
        self.end <= self.start
    }

    /// Whether the two ranges share a byte; an empty range overlaps nothing.
    pub const fn overlaps(self, other: ByteRange) -> bool {
        !self.is_empty() && !other.is_empty() && self.start < other.end && other.start < self.end
    }

    /// Whether every byte of `other` lies in this range; an empty range lies in every range.
    pub const fn contains(self, other: ByteRange) -> bool {
        other.is_empty() || (self.start <= other.start && other.end <= self.end)
    }

    /// Whether the byte at `position` lies in this range.
    pub const fn contains_byte(self, position: u64) -> bool {
        self.start <= position && position < self.end
    }

    /// The bytes in both ranges; `None` when there are none.
    pub fn intersect(self, other: ByteRange) -> Option<ByteRange> {
        self.overlaps(other)
            .then(|| ByteRange { start: self.start.max(other.start), end: self.end.min(other.end) })
    }

    /// The smallest range that holds both; an empty range adds nothing.
    pub fn union_hull(self, other: ByteRange) -> ByteRange {
        match (self.is_empty(), other.is_empty()) {
            (_, true) => self,
            (true, false) => other,
            (false, false) => ByteRange { start: self.start.min(other.start), end: self.end.max(other.end) },
        }
    }

    /// The range grown outwards to multiples of `alignment` (0 counts as 1). An end that cannot be
    /// rounded up within 64 bits becomes `u64::MAX`.
    pub fn align_out(self, alignment: u64) -> ByteRange {
        let alignment = alignment.max(1);
        ByteRange {
            start: self.start - self.start % alignment,
            end: self.end.checked_next_multiple_of(alignment).unwrap_or(u64::MAX),
        }
    }

    /// The range moved up by `by` bytes, or `None` when it leaves 64 bits.
    pub const fn shifted(self, by: u64) -> Option<ByteRange> {
        match (self.start.checked_add(by), self.end.checked_add(by)) {
            (Some(start), Some(end)) => Some(ByteRange { start, end }),
            _ => None,
        }
    }
}

impl fmt::Debug for ByteRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x}..{:#x}", self.start, self.end)
    }
}

impl fmt::Display for ByteRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

/// A map from bytes to values, stored as sorted, disjoint, non-empty pieces; neighbours with equal
/// values are one piece.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RangeMap<V> {
    pieces: Vec<(ByteRange, V)>,
}

impl<V> Default for RangeMap<V> {
    fn default() -> Self {
        RangeMap { pieces: Vec::new() }
    }
}

impl<V: Clone + Eq> RangeMap<V> {
    /// A map with no byte in it.
    pub fn new() -> Self {
        RangeMap::default()
    }

    /// Whether no byte has a value.
    pub fn is_empty(&self) -> bool {
        self.pieces.is_empty()
    }

    /// Forgets every byte.
    pub fn clear(&mut self) {
        self.pieces.clear();
    }

    /// The pieces in ascending order.
    pub fn iter(&self) -> impl Iterator<Item = (ByteRange, &V)> {
        self.pieces.iter().map(|(range, value)| (*range, value))
    }

    /// The value of one byte.
    pub fn get(&self, position: u64) -> Option<&V> {
        let at = self.pieces.partition_point(|(piece, _)| piece.end <= position);
        self.pieces.get(at).filter(|(piece, _)| piece.contains_byte(position)).map(|(_, value)| value)
    }

    /// The pieces that overlap `range`, clipped to it, in ascending order.
    pub fn overlapping(&self, range: ByteRange) -> impl Iterator<Item = (ByteRange, &V)> {
        let (low, high) = self.span(range);
        self.pieces
            .get(low..high)
            .unwrap_or_default()
            .iter()
            .filter_map(move |(piece, value)| piece.intersect(range).map(|clipped| (clipped, value)))
    }

    /// Gives every byte of `range` this value.
    pub fn set(&mut self, range: ByteRange, value: V) {
        self.update(range, |_| Some(value.clone()));
    }

    /// Takes every byte of `range` out of the map.
    pub fn remove(&mut self, range: ByteRange) {
        self.update(range, |_| None);
    }

    /// Rewrites `range` piece by piece: `change` sees the value of each run of bytes (`None` for a gap)
    /// and gives the new one (`None` takes the bytes out).
    pub fn update(&mut self, range: ByteRange, mut change: impl FnMut(Option<&V>) -> Option<V>) {
        if range.is_empty() {
            return;
        }
        let (low, high) = self.span(range);
        // One neighbour on each side takes part, so that equal values coalesce across the seam.
        let first = low.saturating_sub(1);
        let last = (high + 1).min(self.pieces.len());
        let mut rebuilt = Coalesce { out: Vec::with_capacity(last - first + 2) };
        let mut cursor = range.start;
        for (index, (piece, value)) in self.pieces.drain(first..last).enumerate() {
            let index = first + index;
            if index < low {
                rebuilt.push(piece, value);
                continue;
            }
            if index >= high {
                rebuilt
                    .push_some(ByteRange::new(cursor, range.end), change_gap(&mut change, cursor, range.end));
                cursor = range.end;
                rebuilt.push(piece, value);
                continue;
            }
            let gap_end = piece.start.max(cursor);
            rebuilt.push_some(ByteRange::new(cursor, gap_end), change_gap(&mut change, cursor, gap_end));
            rebuilt.push(ByteRange::new(piece.start, range.start), value.clone());
            let inside = ByteRange::new(piece.start.max(range.start), piece.end.min(range.end));
            rebuilt.push_some(inside, change(Some(&value)));
            rebuilt.push(ByteRange::new(range.end, piece.end), value);
            cursor = inside.end;
        }
        rebuilt.push_some(ByteRange::new(cursor, range.end), change_gap(&mut change, cursor, range.end));
        self.pieces.splice(first..first, rebuilt.out);
    }

    /// Rewrites every value; `None` takes the piece out.
    pub fn update_all(&mut self, mut change: impl FnMut(&V) -> Option<V>) {
        let mut rebuilt = Coalesce { out: Vec::with_capacity(self.pieces.len()) };
        for (piece, value) in &self.pieces {
            rebuilt.push_some(*piece, change(value));
        }
        self.pieces = rebuilt.out;
    }

    /// Indices `low..high` of the pieces that overlap `range`.
    fn span(&self, range: ByteRange) -> (usize, usize) {
        let low = self.pieces.partition_point(|(piece, _)| piece.end <= range.start);
        let high = self.pieces.partition_point(|(piece, _)| piece.start < range.end);
        (low, high.max(low))
    }
}

fn change_gap<V>(change: &mut impl FnMut(Option<&V>) -> Option<V>, start: u64, end: u64) -> Option<V> {
    if start < end { change(None) } else { None }
}

/// Collects pieces in ascending order, joining equal neighbours and dropping empty ones.
struct Coalesce<V> {
    out: Vec<(ByteRange, V)>,
}

impl<V: Eq> Coalesce<V> {
    fn push(&mut self, range: ByteRange, value: V) {
        if range.is_empty() {
            return;
        }
        match self.out.last_mut() {
            Some((last, held)) if last.end == range.start && *held == value => last.end = range.end,
            _ => self.out.push((range, value)),
        }
    }

    fn push_some(&mut self, range: ByteRange, value: Option<V>) {
        if let Some(value) = value {
            self.push(range, value);
        }
    }
}

/// A set of bytes, stored as sorted, disjoint ranges that do not touch each other.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RangeSet {
    map: RangeMap<()>,
}

impl RangeSet {
    /// The empty set.
    pub fn new() -> Self {
        RangeSet::default()
    }

    /// Whether the set holds no byte.
    pub fn is_empty(&self) -> bool {
        self.map.is_empty()
    }

    /// How many bytes the set holds.
    pub fn bytes(&self) -> u64 {
        self.iter().map(ByteRange::bytes).sum()
    }

    /// Adds the bytes of `range`.
    pub fn insert(&mut self, range: ByteRange) {
        self.map.set(range, ());
    }

    /// Adds the bytes in which `before` and `now`, of one length, differ; the first of them is byte `start`.
    pub fn insert_differences(&mut self, start: u64, before: &[u8], now: &[u8]) {
        /// Compared at once before words are.
        const CHUNK: usize = 256;
        const WORD: usize = size_of::<u64>();
        // Where bytes differ from `from` on, to the one before `to`.
        let mut run: Option<(usize, usize)> = None;
        let mut differ = |from: usize, to: usize| match &mut run {
            Some((_, end)) if *end == from => *end = to,
            run => {
                if let Some((from, to)) = run.replace((from, to)) {
                    self.insert(ByteRange::new(start + from as u64, start + to as u64));
                }
            }
        };
        for (chunk, (before, now)) in before.chunks(CHUNK).zip(now.chunks(CHUNK)).enumerate() {
            if before == now {
                continue;
            }
            for (word, (before, now)) in before.chunks(WORD).zip(now.chunks(WORD)).enumerate() {
                let at = chunk * CHUNK + word * WORD;
                if all_differ(before, now) {
                    differ(at, at + WORD);
                } else {
                    for (byte, _) in
                        before.iter().zip(now).enumerate().filter(|(_, (before, now))| before != now)
                    {
                        differ(at + byte, at + byte + 1);
                    }
                }
            }
        }
        if let Some((from, to)) = run {
            self.insert(ByteRange::new(start + from as u64, start + to as u64));
        }
    }

    /// Takes the bytes of `range` out.
    pub fn remove(&mut self, range: ByteRange) {
        self.map.remove(range);
    }

    /// Forgets every byte.
    pub fn clear(&mut self) {
        self.map.clear();
    }

    /// Whether a byte of `range` is in the set.
    pub fn overlaps(&self, range: ByteRange) -> bool {
        self.map.overlapping(range).next().is_some()
    }

    /// Whether every byte of `range` is in the set.
    pub fn contains(&self, range: ByteRange) -> bool {
        range.is_empty() || self.map.overlapping(range).any(|(piece, ())| piece == range)
    }

    /// The ranges in ascending order.
    pub fn iter(&self) -> impl Iterator<Item = ByteRange> {
        self.map.iter().map(|(range, ())| range)
    }

    /// The parts of `range` that are in the set, in ascending order.
    pub fn overlapping(&self, range: ByteRange) -> impl Iterator<Item = ByteRange> {
        self.map.overlapping(range).map(|(piece, ())| piece)
    }

    /// The union of two sets.
    pub fn merged(&self, other: &RangeSet) -> RangeSet {
        let mut union = self.clone();
        union.extend(other.iter());
        union
    }
}

impl Extend<ByteRange> for RangeSet {
    fn extend<I: IntoIterator<Item = ByteRange>>(&mut self, ranges: I) {
        for range in ranges {
            self.insert(range);
        }
    }
}

impl FromIterator<ByteRange> for RangeSet {
    fn from_iter<I: IntoIterator<Item = ByteRange>>(ranges: I) -> Self {
        let mut set = RangeSet::new();
        set.extend(ranges);
        set
    }
}

/// Whether these are eight bytes each, of which all differ.
fn all_differ(before: &[u8], now: &[u8]) -> bool {
    const LOW: u64 = 0x0101_0101_0101_0101;
    const HIGH: u64 = LOW << 7;
    let (Ok(before), Ok(now)) = (before.try_into(), now.try_into()) else { return false };
    let bits = u64::from_ne_bytes(before) ^ u64::from_ne_bytes(now);
    // Whether there is no byte of 0: Mycroft's test, as in Warren, "Hacker's Delight", 6-1.
    bits.wrapping_sub(LOW) & !bits & HIGH == 0
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn r(start: u64, end: u64) -> ByteRange {
        ByteRange::new(start, end)
    }

    #[test]
    fn ranges_are_half_open() {
        assert!(!r(0, 4).overlaps(r(4, 8)));
        assert!(r(0, 5).overlaps(r(4, 8)));
        assert!(!r(3, 3).overlaps(r(0, 8)));
        assert!(r(0, 8).contains(r(3, 3)));
        assert_eq!(r(9, 3).bytes(), 0);
        assert_eq!(r(2, 6).intersect(r(4, 9)), Some(r(4, 6)));
        assert_eq!(r(2, 4).intersect(r(4, 9)), None);
        assert_eq!(r(2, 4).union_hull(r(8, 9)), r(2, 9));
        assert_eq!(r(5, 5).union_hull(r(8, 9)), r(8, 9));
    }

    #[test]
    fn numbers_at_the_edge_do_not_overflow() {
        assert_eq!(ByteRange::from_offset(u64::MAX, 1), None);
        assert_eq!(ByteRange::from_offset(u64::MAX, 0), Some(r(u64::MAX, u64::MAX)));
        assert_eq!(r(1, u64::MAX).align_out(4096), r(0, u64::MAX));
        assert_eq!(r(1, 2).align_out(0), r(1, 2));
        assert_eq!(r(1, 2).shifted(u64::MAX), None);
    }

    #[test]
    fn align_out_grows_to_multiples() {
        assert_eq!(r(100, 4097).align_out(4096), r(0, 8192));
        assert_eq!(r(4096, 8192).align_out(4096), r(4096, 8192));
        assert_eq!(r(7, 8).align_out(12), r(0, 12));
    }

    #[test]
    fn equal_neighbours_are_one_piece() {
        let mut map = RangeMap::new();
        map.set(r(0, 4), 1);
        map.set(r(8, 12), 1);
        map.set(r(4, 8), 1);
        assert_eq!(map.iter().collect::<Vec<_>>(), [(r(0, 12), &1)]);
        map.set(r(5, 6), 2);
        assert_eq!(map.iter().collect::<Vec<_>>(), [(r(0, 5), &1), (r(5, 6), &2), (r(6, 12), &1)]);
        map.set(r(5, 6), 1);
        assert_eq!(map.iter().count(), 1);
    }

    proptest! {
        #[test]
        fn a_range_map_is_an_array(ops in prop::collection::vec((0u64..40, 0u64..40, prop::option::of(0u8..3)), 0..40)) {
            let mut map = RangeMap::new();
            let mut model = [None; 40];
            for (start, end, value) in ops {
                let range = r(start, end);
                // A change that depends on the old value exercises gaps and pieces differently.
                map.update(range, |old| match (old, value) { (Some(o), Some(v)) => Some((o + v) % 3), (_, v) => v });
                for cell in model.iter_mut().take(range.end as usize).skip(range.start as usize) {
                    *cell = match (*cell, value) { (Some(o), Some(v)) => Some((o + v) % 3), (_, v) => v };
                }
            }
            for (at, cell) in model.iter().enumerate() {
                prop_assert_eq!(map.get(at as u64), cell.as_ref());
            }
            let pieces: Vec<_> = map.iter().collect();
            for pair in pieces.windows(2) {
                prop_assert!(pair[0].0.end <= pair[1].0.start);
                prop_assert!(pair[0].0.end < pair[1].0.start || pair[0].1 != pair[1].1);
            }
            prop_assert!(pieces.iter().all(|(range, _)| !range.is_empty()));
            let clipped: u64 = map.overlapping(r(7, 23)).map(|(range, _)| range.bytes()).sum();
            prop_assert_eq!(clipped, model[7..23].iter().flatten().count() as u64);
        }

        #[test]
        fn a_range_set_is_an_array(ops in prop::collection::vec((0u64..40, 0u64..40, any::<bool>()), 0..40), probe in (0u64..40, 0u64..40)) {
            let mut set = RangeSet::new();
            let mut model = [false; 40];
            for (start, end, add) in ops {
                let range = r(start, end);
                if add { set.insert(range) } else { set.remove(range) }
                model.iter_mut().take(range.end as usize).skip(range.start as usize).for_each(|cell| *cell = add);
            }
            let probe = r(probe.0, probe.1);
            let cells = &model[probe.start as usize..probe.end as usize];
            prop_assert_eq!(set.bytes(), model.iter().filter(|cell| **cell).count() as u64);
            prop_assert_eq!(set.overlaps(probe), cells.iter().any(|cell| *cell));
            prop_assert_eq!(set.contains(probe), cells.iter().all(|cell| *cell));
        }
    }

    #[test]
    fn differences_are_found_to_the_byte() {
        let before: Vec<u8> = (0..1000_u32).map(|i| (i * 7 % 251) as u8).collect();
        for changes in [
            &[(0, 1)][..],
            &[(999, 1000)],
            &[(3, 5), (5, 13), (14, 15)],
            &[(250, 520), (521, 522)],
            &[(0, 1000)],
            &[],
        ] {
            let mut now = before.clone();
            let mut expected = RangeSet::new();
            for (from, to) in changes.iter().copied() {
                now[from..to].iter_mut().for_each(|byte| *byte ^= 0x80);
                expected.insert(ByteRange::new(100 + from as u64, 100 + to as u64));
            }
            let mut found = RangeSet::new();
            found.insert_differences(100, &before, &now);
            assert_eq!(found.iter().collect::<Vec<_>>(), expected.iter().collect::<Vec<_>>(), "{changes:?}");
        }
    }
}
