//! The pages around a pointer, checked one mapping at a time.

use super::refusal::Refusal;
use super::rules::ImportRules;
use crate::memory::os::{Backing, MapEntry};
use crate::memory::range::ByteRange;

/// What a binding does with its memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum ReadWrite {
    /// The device only reads.
    Read,
    /// The device only writes.
    Write,
    /// The device reads and writes.
    ReadWrite,
}

impl ReadWrite {
    /// Whether the device reads.
    pub const fn reads(self) -> bool {
        matches!(self, ReadWrite::Read | ReadWrite::ReadWrite)
    }

    /// Whether the device writes.
    pub const fn writes(self) -> bool {
        matches!(self, ReadWrite::Write | ReadWrite::ReadWrite)
    }
}

/// Whole pages that an import takes, and where in them the tensor starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
pub struct PageWindow {
    /// Address of the first page.
    pub addr: u64,
    /// Bytes of whole pages.
    pub bytes: u64,
    /// Where the tensor starts, counted from `addr`.
    pub offset: u64,
}

impl PageWindow {
    /// The addresses of the pages.
    pub const fn range(self) -> ByteRange {
        ByteRange::new(self.addr, self.addr.saturating_add(self.bytes))
    }

    /// Bytes from where a binding may begin, a multiple of what the device asks, to the tensor's first byte.
    pub const fn remainder(self, storage_offset_alignment: u64) -> u64 {
        if storage_offset_alignment == 0 { 0 } else { self.offset % storage_offset_alignment }
    }

    /// Whether memory of the granted kind may be used for the window when the tensor has `bytes` bytes.
    ///
    /// # Errors
    /// The memory is not coherent and other data shares the pages: invalidating would take the
    /// neighbours' latest bytes with it. A region that owns its pages passes its mapped size as `bytes`.
    pub fn accepts_granted(self, coherent: bool, bytes: u64, rules: &ImportRules) -> Result<(), Refusal> {
        let neighbours = self.bytes.saturating_sub(bytes);
        if coherent || neighbours == 0 || !rules.must_be_coherent {
            return Ok(());
        }
        Err(Refusal::NotCoherent { neighbours })
    }
}

/// Finds the enclosing pages of `bytes` bytes at `addr` and checks that each may be imported.
///
/// `maps` are the process's mappings around the address, in ascending order
/// ([`process_map`](crate::memory::os::process_map) of [`enclosing`]'s answer); `page` is the size of a
/// page.
///
/// # Errors
/// The first rule that is broken, with its numbers.
pub fn plan_window(
    addr: u64,
    bytes: u64,
    access: ReadWrite,
    rules: &ImportRules,
    maps: &[MapEntry],
    page: u64,
) -> Result<PageWindow, Refusal> {
    let range = enclosing(addr, bytes, rules, page)?;
    if range.bytes() > rules.max_bytes {
        return Err(Refusal::TooLarge { bytes: range.bytes(), max: rules.max_bytes });
    }
    let mut covered = range.start;
    for entry in maps.iter().filter(|entry| entry.range.overlaps(range)) {
        if entry.range.start > covered {
            break;
        }
        check(entry, range, access, rules)?;
        covered = covered.max(entry.range.end);
    }
    if covered < range.end {
        return Err(Refusal::NotMapped { addr: covered });
    }
    Ok(PageWindow { addr: range.start, bytes: range.bytes(), offset: addr - range.start })
}

/// The whole pages around `bytes` bytes at `addr`, in the unit that the page size and the rules ask for.
///
/// # Errors
/// There are no bytes, the end is no address, or a rule is no power of two.
pub fn enclosing(addr: u64, bytes: u64, rules: &ImportRules, page: u64) -> Result<ByteRange, Refusal> {
    if bytes == 0 {
        return Err(Refusal::Empty);
    }
    let units = [page, rules.alignment, rules.size_multiple];
    if let Some(alignment) = units.into_iter().find(|unit| !unit.is_power_of_two()) {
        return Err(Refusal::Misaligned { alignment });
    }
    // Powers of two: the largest is a multiple of the others.
    let unit = page.max(rules.alignment).max(rules.size_multiple);
    let exact = ByteRange::from_offset(addr, bytes).ok_or(Refusal::NotMapped { addr: u64::MAX })?;
    exact.end.checked_next_multiple_of(unit).ok_or(Refusal::NotMapped { addr: u64::MAX })?;
    Ok(exact.align_out(unit))
}

/// Groups of windows, by position, that have pages in common and can be imported only as one: each of two or more, in
/// ascending order of address.
pub fn sharing_pages(windows: &[ByteRange]) -> Vec<Vec<usize>> {
    let mut order: Vec<usize> = (0..windows.len()).filter(|i| !windows[*i].is_empty()).collect();
    order.sort_by_key(|i| windows[*i].start);
    let (mut groups, mut end) = (Vec::<Vec<usize>>::new(), 0);
    for i in order {
        let window = windows[i];
        match groups.last_mut().filter(|_| window.start < end) {
            Some(group) => group.push(i),
            None => groups.push(vec![i]),
        }
        end = end.max(window.end);
    }
    // Equal windows share an import as they are.
    let differ = |group: &Vec<usize>| group.iter().any(|i| windows[*i] != windows[group[0]]);
    groups.retain(differ);
    groups
}

fn check(entry: &MapEntry, window: ByteRange, access: ReadWrite, rules: &ImportRules) -> Result<(), Refusal> {
    let addr = entry.range.start.max(window.start);
    match &entry.backing {
        Backing::Special(name) => return Err(Refusal::Special { name: name.clone() }),
        Backing::File { path, .. } if rules.anonymous_only || (entry.shared && rules.private_only) => {
            return Err(Refusal::FileBacked { path: path.clone() });
        }
        Backing::Memfd if !rules.memfd_importable => return Err(Refusal::Memfd),
        Backing::Anonymous | Backing::Heap | Backing::Stack if entry.shared && rules.private_only => {
            return Err(Refusal::Shared);
        }
        Backing::Anonymous | Backing::Heap | Backing::Stack | Backing::File { .. } | Backing::Memfd => {}
    }
    if !entry.readable {
        return Err(Refusal::NotReadable { addr });
    }
    if !entry.writable && (access.writes() || !rules.read_only_importable) {
        return Err(Refusal::ReadOnlyMapping { addr, written: access.writes() });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::memory::import::DriverKind;

    const PAGE: u64 = 4096;

    fn entry(start: u64, end: u64) -> MapEntry {
        MapEntry {
            range: ByteRange::new(start, end),
            readable: true,
            writable: true,
            shared: false,
            backing: Backing::Anonymous,
        }
    }

    fn plan(addr: u64, bytes: u64, maps: &[MapEntry]) -> Result<PageWindow, Refusal> {
        plan_window(addr, bytes, ReadWrite::ReadWrite, &ImportRules::strict(), maps, PAGE)
    }

    #[test]
    fn any_offset_and_length_gets_its_pages() {
        let maps = [entry(0x1_0000, 0x2_0000)];
        assert_eq!(plan(0x1_0034, 1, &maps), Ok(PageWindow { addr: 0x1_0000, bytes: 4096, offset: 0x34 }));
        assert_eq!(plan(0x1_0fff, 2, &maps), Ok(PageWindow { addr: 0x1_0000, bytes: 8192, offset: 0xfff }));
        assert_eq!(
            plan(0x1_0000, 0x1_0000, &maps),
            Ok(PageWindow { addr: 0x1_0000, bytes: 0x1_0000, offset: 0 })
        );
    }

    #[test]
    fn neighbours_are_found_by_their_pages() {
        let of = |ranges: &[(u64, u64)]| {
            let pages = |(start, end): &(u64, u64)| ByteRange::new(start * PAGE, end * PAGE);
            sharing_pages(&ranges.iter().map(pages).collect::<Vec<_>>())
        };
        assert_eq!(of(&[(4, 6), (1, 3), (6, 8), (3, 4)]), Vec::<Vec<usize>>::new());
        assert_eq!(of(&[(4, 6), (1, 3), (5, 8), (2, 4), (7, 9)]), [vec![1, 3], vec![0, 2, 4]]);
        // One inside the other, and the same pages twice.
        assert_eq!(of(&[(1, 9), (2, 3), (8, 10), (12, 13), (12, 13)]), [vec![0, 1, 2]]);
        assert_eq!(of(&[(0, 0), (0, 2), (1, 1)]), Vec::<Vec<usize>>::new());
    }

    #[test]
    fn nonsense_is_refused() {
        let maps = [entry(0x1_0000, 0x2_0000)];
        assert_eq!(plan(0x1_0000, 0, &maps), Err(Refusal::Empty));
        assert_eq!(plan(u64::MAX, 1, &maps), Err(Refusal::NotMapped { addr: u64::MAX }));
        assert_eq!(plan(8, u64::MAX, &maps), Err(Refusal::NotMapped { addr: u64::MAX }));
        assert_eq!(plan(u64::MAX - 8, 4, &maps), Err(Refusal::NotMapped { addr: u64::MAX }));
        assert_eq!(plan(0x3_0000, 4, &maps), Err(Refusal::NotMapped { addr: 0x3_0000 }));
        assert_eq!(plan(0x1_f000, 4097, &maps), Err(Refusal::NotMapped { addr: 0x2_0000 }));
        assert_eq!(plan(0x1_0000, 4, &[]), Err(Refusal::NotMapped { addr: 0x1_0000 }));
        assert_eq!(plan(0, 3 << 30, &maps), Err(Refusal::TooLarge { bytes: 3 << 30, max: 2 << 30 }));
        let odd = ImportRules { alignment: 3000, ..ImportRules::strict() };
        let refused = plan_window(0x1_0000, 4, ReadWrite::Read, &odd, &maps, PAGE);
        assert_eq!(refused, Err(Refusal::Misaligned { alignment: 3000 }));
    }

    #[test]
    fn a_hole_in_the_middle_is_found() {
        let maps = [entry(0x1_0000, 0x1_1000), entry(0x1_2000, 0x1_4000)];
        assert_eq!(plan(0x1_0800, 0x3000, &maps), Err(Refusal::NotMapped { addr: 0x1_1000 }));
        assert!(plan(0x1_2800, 0x1000, &maps).is_ok());
        let joined = [entry(0x1_0000, 0x1_1000), entry(0x1_1000, 0x1_4000)];
        assert!(plan(0x1_0800, 0x3000, &joined).is_ok());
    }

    #[test]
    fn a_large_unit_takes_the_neighbours_into_account() {
        let rules = ImportRules { alignment: 0x1_0000, ..ImportRules::strict() };
        let read_only = MapEntry { writable: false, ..entry(0x1_8000, 0x2_0000) };
        let maps = [entry(0x1_0000, 0x1_8000), read_only];
        let planned = plan_window(0x1_0000, 16, ReadWrite::Read, &rules, &maps, PAGE);
        assert_eq!(planned, Err(Refusal::ReadOnlyMapping { addr: 0x1_8000, written: false }));
        let planned = plan_window(0x1_0000, 16, ReadWrite::Read, &rules, &maps[..1], PAGE);
        assert_eq!(planned, Err(Refusal::NotMapped { addr: 0x1_8000 }));
    }

    #[test]
    fn each_driver_takes_its_kinds() {
        use DriverKind::{Anv, Lavapipe, Nvidia, Radv};
        use ReadWrite::{Read, Write};
        let base = entry(0x1000, 0x2000);
        let file = Backing::File { path: "/f".to_owned(), deleted: false };
        let with = |backing: &Backing, writable, shared| MapEntry {
            backing: backing.clone(),
            writable,
            shared,
            ..base.clone()
        };
        // Mapping, access, and the answers of Radv, Anv, Nvidia, Lavapipe.
        let table = [
            (base.clone(), Write, [true, true, true, true]),
            (with(&Backing::Heap, true, false), Write, [true, true, true, true]),
            (with(&Backing::Stack, true, false), Write, [true, true, true, true]),
            (with(&Backing::Anonymous, true, true), Write, [false, true, false, true]),
            (with(&Backing::Anonymous, false, false), Read, [false, false, false, true]),
            (with(&Backing::Anonymous, false, false), Write, [false, false, false, false]),
            (with(&Backing::Memfd, true, true), Write, [false, true, true, true]),
            (with(&file, true, false), Write, [false, true, true, true]),
            (with(&file, true, true), Write, [false, true, false, true]),
            (with(&file, false, false), Read, [false, false, false, true]),
            (with(&Backing::Special("[vdso]".to_owned()), true, false), Read, [false; 4]),
            (MapEntry { readable: false, ..base.clone() }, Write, [false; 4]),
        ];
        for (entry, access, answers) in table {
            for (driver, expected) in [Radv, Anv, Nvidia, Lavapipe].into_iter().zip(answers) {
                let rules = ImportRules::for_driver(driver);
                let planned = plan_window(0x1800, 8, access, &rules, std::slice::from_ref(&entry), PAGE);
                assert_eq!(planned.is_ok(), expected, "{driver:?} {access:?} {entry:?}: {planned:?}");
            }
        }
    }

    #[test]
    fn non_coherent_memory_is_for_pages_of_ones_own() {
        let window = PageWindow { addr: 0x1000, bytes: 4096, offset: 52 };
        let rules = ImportRules::strict();
        assert!(window.accepts_granted(true, 100, &rules).is_ok());
        assert_eq!(
            window.accepts_granted(false, 100, &rules),
            Err(Refusal::NotCoherent { neighbours: 3996 })
        );
        assert!(window.accepts_granted(false, 4096, &rules).is_ok());
        assert_eq!(window.remainder(16), 4);
        assert_eq!(window.remainder(0), 0);
    }

    proptest! {
        #[test]
        fn a_window_holds_the_tensor_and_only_mapped_pages(
            addr in 0u64..40_000, bytes in 0u64..40_000, holes in prop::collection::vec(any::<bool>(), 24), unit in 0u32..3,
        ) {
            let rules = ImportRules { alignment: PAGE << unit, ..ImportRules::strict() };
            let maps: Vec<_> = holes.iter().enumerate().filter(|(_, hole)| !**hole)
                .map(|(at, _)| entry(at as u64 * PAGE, (at as u64 + 1) * PAGE)).collect();
            let mapped = |page: u64| holes.get((page / PAGE) as usize) == Some(&false);
            match plan_window(addr, bytes, ReadWrite::Write, &rules, &maps, PAGE) {
                Ok(window) => {
                    prop_assert_eq!(window.addr + window.offset, addr);
                    prop_assert!(window.offset + bytes <= window.bytes);
                    prop_assert!(window.addr % rules.alignment == 0 && window.bytes % rules.alignment == 0);
                    prop_assert!(window.bytes < bytes + 2 * rules.alignment);
                    prop_assert!((window.addr..window.addr + window.bytes).step_by(PAGE as usize).all(mapped));
                }
                Err(Refusal::Empty) => prop_assert_eq!(bytes, 0),
                Err(Refusal::NotMapped { addr: hole }) => prop_assert!(!mapped(hole)),
                Err(other) => prop_assert!(false, "{other:?}"),
            }
        }
    }
}
