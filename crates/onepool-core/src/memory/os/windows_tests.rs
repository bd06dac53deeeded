//! The layer on real pages of every kind.

use std::io::Write;

use windows_sys::Win32::System::Memory::{PAGE_GUARD, PAGE_NOACCESS, PAGE_READONLY, PAGE_READWRITE};

use super::tests::{plan, plan_mapping};
use super::{
    Advice, Backing, DIRECT_BLOCK, Mapping, OsError, huge_page_size, open_direct, page_size, physical_memory,
    process_map, read_at, testing,
};
use crate::memory::host::HostRegion;
use crate::memory::import::{DriverKind, ImportRules, ReadWrite, Refusal};
use crate::memory::range::ByteRange;

fn map_of(mapping: &Mapping) -> (ByteRange, Vec<super::MapEntry>) {
    let start = mapping.as_ptr().addr().get() as u64;
    let window = ByteRange::from_offset(start, mapping.bytes() as u64).unwrap();
    (window, process_map(window).unwrap())
}

#[test]
fn mappings_are_aligned_zeroed_and_listed() {
    let huge = huge_page_size();
    let mapping = Mapping::anonymous(3 * page_size(), huge).unwrap();
    assert_eq!(mapping.as_ptr().addr().get() % huge, 0);
    let (window, entries) = map_of(&mapping);
    let covered: u64 = entries.iter().filter_map(|e| e.range.intersect(window)).map(ByteRange::bytes).sum();
    assert_eq!(covered, window.bytes());
    assert!(entries.iter().all(|e| e.writable && !e.shared && e.backing == Backing::Anonymous));
    mapping.advise(Advice::DontFork).unwrap();
    assert!(matches!(mapping.advise(Advice::HugePages), Err(OsError::Unsupported { .. })));
    drop(mapping);
    // Another test may have taken the addresses meanwhile.
    let entries = process_map(window).unwrap();
    assert!(entries.iter().all(|e| e.range.bytes() > 0 && e.range.overlaps(window)), "{entries:?}");
}

#[test]
fn impossible_mappings_are_errors() {
    let page = page_size();
    for (bytes, alignment) in
        [(0, page), (page + 1, page), (page, 3), (usize::MAX - page + 1, page), (1 << 60, page)]
    {
        let refused = Mapping::anonymous(bytes, alignment);
        assert!(
            matches!(refused, Err(OsError::Call { call: "VirtualAlloc", code }) if code != 0),
            "{refused:?}"
        );
    }
    assert!(Mapping::anonymous(usize::MAX - page + 1, 2 << 20).is_err());
}

#[test]
fn parts_give_their_memory_back_by_themselves() {
    let page = page_size();
    let (first, second) = Mapping::anonymous(4 * page, page).unwrap().split(page).unwrap();
    let (second, third) = second.split(2 * page).unwrap();
    assert_eq!([first.bytes(), second.bytes(), third.bytes()], [page, 2 * page, page]);
    let (window, _) = map_of(&second);
    drop(second);
    // The addresses stay, with nothing at them, as long as a neighbour is there.
    let entries = process_map(window).unwrap();
    assert!(!entries.is_empty() && entries.iter().all(|e| !e.readable && !e.writable), "{entries:?}");
    for part in [&first, &third] {
        assert!(map_of(part).1.iter().all(|e| e.writable));
    }
    assert!(third.split(page).is_err());
}

#[test]
fn constants_of_the_program_are_of_its_file() {
    static TEXT: [u8; 5000] = [7; 5000];
    let refused = plan(TEXT.as_ptr().addr(), 5000, ReadWrite::Read, &ImportRules::strict());
    assert!(matches!(&refused, Err(Refusal::FileBacked { path }) if path.contains(".exe")), "{refused:?}");
}

#[test]
fn read_only_guarded_and_inaccessible_pages() {
    let page = page_size();
    let mapping = Mapping::anonymous(4 * page, page).unwrap();
    let addr = mapping.as_ptr().addr().get();
    let rules = ImportRules::for_driver(DriverKind::Lavapipe);
    testing::protect(&mapping, page, page, PAGE_READONLY);
    let refused = plan_mapping(&mapping, ReadWrite::Read, DriverKind::Amdvlk);
    let at = (addr + page) as u64;
    assert_eq!(refused, Err(Refusal::ReadOnlyMapping { addr: at, written: false }));
    assert!(plan_mapping(&mapping, ReadWrite::Read, DriverKind::Lavapipe).is_ok());
    let refused = plan_mapping(&mapping, ReadWrite::Write, DriverKind::Lavapipe);
    assert_eq!(refused, Err(Refusal::ReadOnlyMapping { addr: at, written: true }));
    for closed in [PAGE_NOACCESS, PAGE_READWRITE | PAGE_GUARD] {
        testing::protect(&mapping, page, page, closed);
        assert_eq!(
            plan_mapping(&mapping, ReadWrite::Read, DriverKind::Lavapipe),
            Err(Refusal::NotReadable { addr: at })
        );
    }
    testing::decommit(&mapping, 2 * page, page);
    assert!(plan(addr, page, ReadWrite::Write, &rules).is_ok());
    let refused = plan(addr + 2 * page, 1, ReadWrite::Read, &rules);
    assert_eq!(refused, Err(Refusal::NotReadable { addr: (addr + 2 * page) as u64 }));
}

#[test]
fn addresses_with_nothing_behind_them_are_not_in_the_map() {
    // The first 64 KiB are never given out.
    assert_eq!(process_map(ByteRange::new(0, 4096)).unwrap(), []);
    assert_eq!(process_map(ByteRange::new(u64::MAX - 4096, u64::MAX)).unwrap(), []);
    let refused = plan(16, 100, ReadWrite::Read, &ImportRules::strict());
    assert_eq!(refused, Err(Refusal::NotMapped { addr: 0 }));
    let all = process_map(ByteRange::ALL).unwrap();
    assert!(all.len() > 20 && all.is_sorted_by_key(|entry| entry.range.start));
}

#[test]
fn the_memory_of_the_machine_is_known() {
    let bytes = physical_memory().unwrap();
    assert!((1 << 24..1 << 48).contains(&bytes), "{bytes}");
    assert!(page_size().is_power_of_two() && huge_page_size() > page_size());
}

#[test]
fn threads_read_one_file_at_their_own_offsets() {
    let mut file = tempfile::tempfile().unwrap();
    let data: Vec<u8> = (0..(1u32 << 18)).flat_map(u32::to_le_bytes).collect();
    file.write_all(&data).unwrap();
    std::thread::scope(|scope| {
        for thread in 0..8usize {
            let (file, data) = (&file, &data);
            scope.spawn(move || {
                for turn in 0..200usize {
                    let at = (thread * 104_729 + turn * 7919) % (data.len() - 4096);
                    let mut part = [0; 4096];
                    let read = read_at(file, &mut part, at as u64).unwrap();
                    assert!(read > 0 && part[..read] == data[at..at + read]);
                }
            });
        }
    });
}

#[test]
fn a_file_is_read_past_the_cache() {
    let mut file = tempfile::NamedTempFile::new().unwrap();
    let data: Vec<u8> = (0..8 * DIRECT_BLOCK).map(|at| (at * 31 + at / 255) as u8).collect();
    file.write_all(&data).unwrap();
    file.flush().unwrap();
    let Some(direct) = open_direct(file.as_file()) else {
        panic!("this system reopens no file: {}", std::io::Error::last_os_error());
    };
    let mut region = HostRegion::new(4 * DIRECT_BLOCK).unwrap();
    let read = read_at(&direct, region.as_mut_slice(), 2 * DIRECT_BLOCK as u64).unwrap();
    assert!(read > 0 && region.as_slice()[..read] == data[2 * DIRECT_BLOCK..][..read]);
}
