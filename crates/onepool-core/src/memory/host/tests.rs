//! What regions promise.

use std::io::{self, Write};

use super::*;
use crate::memory::lease::Busy;

fn pattern(bytes: usize) -> Vec<u8> {
    (0..bytes).map(|at| (at * 31 + at / 255) as u8).collect()
}

#[test]
fn regions_are_zeroed_and_aligned() {
    for bytes in [0, 1, 4095, 4096, 4097, 70_000] {
        let region = HostRegion::new(bytes).unwrap();
        assert_eq!(region.bytes(), bytes);
        assert!(region.as_slice().iter().all(|byte| *byte == 0));
        assert!(region.as_ptr().addr().get().is_multiple_of(os::page_size()));
        assert!(region.window().bytes.is_multiple_of(os::page_size() as u64));
        assert!(region.window().bytes >= bytes as u64);
    }
}

#[test]
fn a_large_region_starts_on_a_huge_page() {
    let huge = os::huge_page_size();
    let mut region = HostRegion::new(huge + 1).unwrap();
    assert!(region.as_ptr().addr().get().is_multiple_of(huge));
    region.as_mut_slice()[huge] = 7;
    assert_eq!(region.as_slice()[huge], 7);
}

#[test]
fn parts_keep_their_bytes_and_are_freed_by_themselves() {
    let page = os::page_size();
    let data = pattern(5 * page + 7);
    let parts = HostRegion::from_bytes(&data).unwrap().split(&[page, 4 * page]).unwrap();
    assert_eq!(parts.iter().map(HostRegion::bytes).collect::<Vec<_>>(), [page, 3 * page, page + 7]);
    let mut parts = parts.into_iter();
    drop(parts.next());
    let (middle, last) = (parts.next().unwrap(), parts.next().unwrap());
    assert_eq!(middle.as_slice(), &data[page..4 * page]);
    assert_eq!(middle.window().bytes, 3 * page as u64);
    drop(middle);
    assert_eq!(last.as_slice(), &data[4 * page..]);
    assert_eq!(last.window().bytes, 2 * page as u64);
    for ends in [&[0][..], &[1], &[page, page], &[6 * page]] {
        let cut = HostRegion::new(5 * page).unwrap().split(ends);
        assert!(matches!(cut, Err(HostError::Cut { .. })), "{ends:?}");
    }
    assert_eq!(HostRegion::new(5).unwrap().split(&[]).unwrap().len(), 1);
}

#[test]
fn impossible_sizes_are_errors() {
    for bytes in [usize::MAX, usize::MAX - 4096, isize::MAX as usize, isize::MAX as usize + 1] {
        assert!(matches!(HostRegion::new(bytes), Err(HostError::TooLarge { .. })), "{bytes}");
    }
    #[cfg(not(miri))]
    assert!(matches!(HostRegion::new(1 << 60), Err(HostError::OutOfMemory { .. })));
}

#[test]
fn typed_views_check_the_size() {
    let mut region = HostRegion::new(12).unwrap();
    region.as_mut_slice_of::<f32>().unwrap()[2] = 1.5;
    assert_eq!(region.as_slice_of::<f32>().unwrap(), [0.0, 0.0, 1.5]);
    assert!(matches!(region.as_slice_of::<u64>(), Err(HostError::Cast { bytes: 12, element: 8, .. })));
    assert!(HostRegion::new(0).unwrap().as_slice_of::<f64>().unwrap().is_empty());
}

#[test]
fn readers_fill_exactly() {
    let data = pattern(10_000);
    let region = HostRegion::from_reader(&mut data.as_slice(), 9_999).unwrap();
    assert_eq!(region.as_slice(), &data[..9_999]);
    let short = HostRegion::from_reader(&mut data.as_slice(), 10_001);
    assert!(matches!(short, Err(HostError::Truncated { expected: 10_001, got: 10_000 })));

    struct Lying;
    impl Read for Lying {
        fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
            Ok(buffer.len() + 100)
        }
    }
    assert_eq!(HostRegion::from_reader(&mut Lying, 10).unwrap().bytes(), 10);
}

#[test]
#[cfg_attr(miri, ignore)]
fn files_are_read_whole_and_in_part() {
    let mut file = tempfile::NamedTempFile::new().unwrap();
    let data = pattern((3 << 20) + 777);
    file.write_all(&data).unwrap();
    file.flush().unwrap();
    assert_eq!(HostRegion::read_file(file.path()).unwrap().as_slice(), data);
    for (offset, bytes) in
        [(0, 0), (0, 4096), (4096, 2 << 20), (5, 2 << 20), (8192, (3 << 20) + 777 - 8192), (data.len(), 0)]
    {
        let region = HostRegion::read_file_range(file.path(), offset as u64, bytes as u64).unwrap();
        assert_eq!(region.as_slice(), &data[offset..offset + bytes], "{offset} {bytes}");
    }
    for (offset, bytes) in [(data.len() as u64, 1), (u64::MAX, 1), (0, u64::MAX)] {
        let refused = HostRegion::read_file_range(file.path(), offset, bytes);
        assert!(matches!(refused, Err(HostError::OutsideFile { .. })));
    }
}

#[test]
#[cfg_attr(miri, ignore)]
fn what_is_no_file_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    assert!(matches!(HostRegion::read_file(folder.path()), Err(HostError::NotAFile { .. })));
    #[cfg(unix)]
    {
        let pipe = folder.path().join("pipe");
        assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
        crate::files::cache::testing::within_seconds(20, move || {
            assert!(matches!(HostRegion::read_file(&pipe), Err(HostError::NotAFile { .. })));
        });
    }
    assert!(matches!(HostRegion::read_file(folder.path().join("none")), Err(HostError::Io { .. })));
    let empty = folder.path().join("empty");
    File::create(&empty).unwrap();
    assert_eq!(HostRegion::read_file(&empty).unwrap().bytes(), 0);
}

#[test]
fn a_device_that_writes_keeps_the_host_away() {
    let region = HostRegion::from_bytes(&pattern(8192)).unwrap().into_shared();
    let half = ByteRange::new(0, 4096);
    let lease = region.lease_device(half, true).unwrap();
    assert!(matches!(region.read(), Err(HostError::Busy(Busy { held: Use::DeviceWrite, .. }))));
    assert!(matches!(region.write_range(half), Err(HostError::Busy(_))));
    assert_eq!(&*region.read_range(ByteRange::new(4096, 8192)).unwrap(), &pattern(8192)[4096..]);
    let second = region.lease_device(region.whole(), false).unwrap();
    drop(lease);
    assert!(region.read().is_ok());
    assert!(matches!(region.write(), Err(HostError::Busy(Busy { held: Use::DeviceRead, .. }))));
    drop(second);
    region.write().unwrap()[0] = 9;
    assert!(region.is_idle());
    assert_eq!(region.into_owned().unwrap().as_slice()[0], 9);
}

#[test]
fn guards_keep_devices_away() {
    let region = HostRegion::new(64).unwrap().into_shared();
    let read = region.read().unwrap();
    assert!(region.read().is_ok());
    assert!(region.lease_device(region.whole(), false).is_ok());
    assert!(region.lease_device(region.whole(), true).is_err());
    drop(read);
    let mut write = region.write().unwrap();
    write.as_mut_slice_of::<u32>().unwrap()[1] = 5;
    assert!(region.lease_device(region.whole(), false).is_err());
    drop(write);
    assert_eq!(region.read().unwrap().as_slice_of::<u32>().unwrap()[1], 5);
}

#[test]
fn a_leaked_lease_stays() {
    let region = HostRegion::new(64).unwrap().into_shared();
    std::mem::forget(region.lease_device(region.whole(), true).unwrap());
    assert!(region.read().is_err());
    assert!(region.into_owned().is_err());
}

#[test]
fn a_lease_keeps_the_pages() {
    let region = HostRegion::from_bytes(b"alive").unwrap().into_shared();
    let lease = region.lease_device(region.whole(), false).unwrap();
    drop(region);
    assert_eq!(&*lease.region().read().unwrap(), b"alive");
    assert!(!lease.writes());
}

#[test]
fn ranges_outside_are_errors() {
    let region = HostRegion::new(64).unwrap().into_shared();
    for range in [ByteRange::new(0, 65), ByteRange::new(65, 65), ByteRange::new(u64::MAX - 1, u64::MAX)] {
        assert!(matches!(region.read_range(range), Err(HostError::OutOfBounds { .. })));
        assert!(matches!(region.lease_device(range, true), Err(HostError::OutOfBounds { .. })));
    }
    assert!(region.read_range(ByteRange::new(64, 64)).unwrap().is_empty());
}

#[test]
fn disjoint_write_guards_work_in_parallel() {
    let region = HostRegion::new(4096).unwrap().into_shared();
    std::thread::scope(|scope| {
        for part in 0..4u64 {
            let region = &region;
            scope.spawn(move || {
                let range = ByteRange::new(part * 1024, (part + 1) * 1024);
                region.write_range(range).unwrap().fill(part as u8 + 1);
            });
        }
    });
    let bytes = region.read().unwrap();
    assert!((0..4).all(|part| bytes[part * 1024..(part + 1) * 1024].iter().all(|b| *b == part as u8 + 1)));
}

#[test]
fn regions_in_larger_units_begin_and_end_with_them() {
    for (bytes, unit) in [(1, 65_536), (100_000, 65_536), (5 << 20, 65_536), (4096, 1), (3, 1 << 22)] {
        let region = HostRegion::in_units(bytes, unit).unwrap();
        let (window, unit) = (region.window(), unit.max(os::page_size()) as u64);
        assert!(window.addr.is_multiple_of(unit) && window.bytes.is_multiple_of(unit), "{bytes} {unit}");
        assert!(region.bytes() == bytes && region.as_slice().iter().all(|byte| *byte == 0));
    }
    assert!(HostRegion::in_units(16, 12_345).is_err() && HostRegion::in_units(usize::MAX, 65_536).is_err());
}

#[cfg(target_os = "linux")]
#[test]
fn what_was_written_to_a_mapped_region_stays_when_its_pages_are_let_go() {
    let mut file = tempfile::tempfile().unwrap();
    let data = pattern(3 * os::page_size());
    file.write_all(&data).unwrap();
    let map = || HostRegion::map_file(&file, 0, data.len() as u64, Unchanging(())).unwrap();
    let read = map();
    assert_eq!(read.as_slice(), data);
    read.release_mapped();
    assert_eq!(read.as_slice(), data);
    let shared = read.into_shared();
    shared.write().unwrap()[5] = !data[5];
    let owned = shared.into_owned().unwrap();
    owned.release_mapped();
    assert_eq!(owned.as_slice()[5], !data[5]);
    let mut own = map();
    own.as_mut_slice()[5] = !data[5];
    own.release_mapped();
    assert_eq!((own.as_slice()[5], &own.as_slice()[6..]), (!data[5], &data[6..]));
}
