//! The layer on real mappings of every kind.

use std::io::Write;

use rustix::mm::ProtFlags;

use super::tests::{plan, plan_mapping};
use super::{Mapping, page_size, process_map, testing};
use crate::memory::host::HostRegion;
use crate::memory::import::{DriverKind, ImportRules, ReadWrite, Refusal};

#[test]
fn constants_of_the_program_are_read_only_or_of_a_file() {
    static TEXT: [u8; 5000] = [7; 5000];
    let refused = plan(TEXT.as_ptr().addr(), 5000, ReadWrite::Read, &ImportRules::strict());
    assert!(
        matches!(refused, Err(Refusal::FileBacked { .. } | Refusal::ReadOnlyMapping { .. })),
        "{refused:?}"
    );
}

#[test]
fn read_only_and_inaccessible_pages() {
    let page = page_size();
    let read_only = testing::map_anonymous(2 * page, ProtFlags::READ, false);
    let refused = plan_mapping(&read_only, ReadWrite::Read, DriverKind::Radv);
    assert!(matches!(refused, Err(Refusal::ReadOnlyMapping { written: false, .. })));
    assert!(plan_mapping(&read_only, ReadWrite::Read, DriverKind::Lavapipe).is_ok());
    let refused = plan_mapping(&read_only, ReadWrite::Write, DriverKind::Lavapipe);
    assert!(matches!(refused, Err(Refusal::ReadOnlyMapping { written: true, .. })));
    let closed = testing::map_anonymous(page, ProtFlags::empty(), false);
    let refused = plan_mapping(&closed, ReadWrite::Read, DriverKind::Lavapipe);
    assert!(matches!(refused, Err(Refusal::NotReadable { .. })));
}

#[test]
fn shared_memory_and_memory_files() {
    let page = page_size();
    let both = ProtFlags::READ | ProtFlags::WRITE;
    let shared = testing::map_anonymous(page, both, true);
    assert_eq!(plan_mapping(&shared, ReadWrite::Write, DriverKind::Radv), Err(Refusal::Shared));
    let file = testing::memfd(2 * page as u64);
    for is_shared in [true, false] {
        let memory = testing::map_file(&file, 2 * page, true, is_shared);
        assert_eq!(plan_mapping(&memory, ReadWrite::Write, DriverKind::Radv), Err(Refusal::Memfd));
        assert!(plan_mapping(&memory, ReadWrite::Write, DriverKind::Nvidia).is_ok());
    }
}

#[test]
fn files_are_named() {
    let page = page_size();
    let mut file = tempfile::NamedTempFile::new().unwrap();
    file.write_all(&vec![1; 2 * page]).unwrap();
    let mapping = testing::map_file(file.as_file(), 2 * page, false, false);
    let path = file.path().to_str().unwrap().to_owned();
    let refused = plan_mapping(&mapping, ReadWrite::Read, DriverKind::Radv);
    assert_eq!(refused, Err(Refusal::FileBacked { path }));
    assert!(plan_mapping(&mapping, ReadWrite::Read, DriverKind::Lavapipe).is_ok());
}

/// In a process of its own: another test might map something into the hole.
#[test]
fn holes_are_found_and_ends_respected() {
    const ALONE: &str = "ONEPOOL_TEST_HOLES";
    if std::env::var_os(ALONE).is_none() {
        let test = concat!(module_path!(), "::holes_are_found_and_ends_respected");
        let test = test.split_once("::").unwrap().1;
        let mut alone = std::process::Command::new(std::env::current_exe().unwrap());
        let out = alone.args(["--exact", test, "--test-threads=1"]).env(ALONE, "1").output().unwrap();
        let said = String::from_utf8_lossy(&out.stdout);
        return assert!(out.status.success() && said.contains("1 passed"), "{said}");
    }
    let page = page_size();
    let mapping = Mapping::anonymous(4 * page, page).unwrap();
    let addr = mapping.as_ptr().addr().get();
    testing::punch(&mapping, 2 * page);
    let rules = ImportRules::strict();
    assert!(plan(addr, 2 * page, ReadWrite::Write, &rules).is_ok());
    let hole = Err(Refusal::NotMapped { addr: (addr + 2 * page) as u64 });
    assert_eq!(plan(addr, 2 * page + 1, ReadWrite::Write, &rules), hole);
    assert_eq!(plan(addr, 4 * page, ReadWrite::Write, &rules), hole);
    assert!(plan(addr + 3 * page, page, ReadWrite::Write, &rules).is_ok());
    std::mem::forget(mapping);
}

#[test]
fn what_a_region_says_of_itself_is_what_the_map_says() {
    for region in [HostRegion::new(5 << 20), HostRegion::in_memory_file(3 * page_size())] {
        let region = region.unwrap().into_shared();
        let own = region.map_entry();
        let mut covered = own.range.start;
        for entry in process_map(own.range).unwrap() {
            assert_eq!((entry.backing, entry.shared), (own.backing.clone(), own.shared));
            assert!(entry.readable && entry.writable && entry.range.start <= covered);
            covered = entry.range.end;
        }
        assert!(covered >= own.range.end);
    }
}

#[test]
fn a_forked_child_gets_no_pages() {
    let region = HostRegion::new(1 << 16).unwrap();
    assert!(region.is_fork_safe());
    let maps = std::fs::read_to_string("/proc/self/smaps").unwrap();
    let start = region.as_ptr().addr().get();
    let holds_start = |line: &str| {
        let (from, to) = line.split(' ').next()?.split_once('-')?;
        let hex = |digits| usize::from_str_radix(digits, 16).ok();
        Some((hex(from)?..hex(to)?).contains(&start))
    };
    let mut own = maps.lines().skip_while(|line| holds_start(line) != Some(true));
    let flags = own.find_map(|line| line.strip_prefix("VmFlags:"));
    assert!(flags.unwrap().split(' ').any(|flag| flag == "dc"));
}
