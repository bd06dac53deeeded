//! What holds of every system's memory, and what the tests of each ask.

use super::{Mapping, system};
use crate::memory::import::{DriverKind, ImportRules, PageWindow, ReadWrite, Refusal};
use crate::memory::window_of;

pub(super) fn plan(
    addr: usize,
    bytes: usize,
    access: ReadWrite,
    rules: &ImportRules,
) -> Result<PageWindow, Refusal> {
    window_of(addr as u64, bytes as u64, access, rules, None)
}

pub(super) fn plan_mapping(
    mapping: &Mapping,
    access: ReadWrite,
    driver: DriverKind,
) -> Result<PageWindow, Refusal> {
    let addr = mapping.as_ptr().addr().get();
    plan(addr + 52, mapping.bytes() - 60, access, &ImportRules::for_driver(driver))
}

#[test]
fn the_system_tells_how_many_cores_there_are() {
    assert!(system::cores().is_some_and(|cores| cores > 0));
}

#[test]
fn vectors_and_stack_arrays_at_any_offset() {
    let heap = vec![0u8; 100_000];
    let stack = [0u8; 9_000];
    for bytes in [heap.as_slice(), stack.as_slice()] {
        for (skip, len) in [(0, bytes.len()), (1, 1), (52, 4096), (4095, 4097), (bytes.len() - 1, 1)] {
            let addr = bytes.as_ptr().addr() + skip;
            let window = plan(addr, len, ReadWrite::ReadWrite, &ImportRules::strict()).unwrap();
            assert_eq!(window.addr + window.offset, addr as u64);
            assert!(window.offset + len as u64 <= window.bytes);
        }
    }
    assert_eq!(plan(heap.as_ptr().addr(), 0, ReadWrite::Read, &ImportRules::strict()), Err(Refusal::Empty));
}
