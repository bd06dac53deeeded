//! The host's side of a mapped or imported buffer.
//!
//! An island of `unsafe`: it reads and writes the application's memory by address. The device layer keeps
//! host guards and safe slices away from bytes while a submission or a wait for one uses them; the
//! addresses stay valid by the contract of `import_host` and, for buffers of the device's own, because
//! the region lives here. Only bytes that commands or the host's own calls name are touched.

#![allow(unsafe_code, reason = "reads and writes the application's memory, under the rules above")]

use std::slice;

use super::model::POISON;
use crate::backend::HostAddress;
use onepool_core::memory::host::HostRegion;
use onepool_core::memory::range::{ByteRange, RangeSet};

/// Memory as the host has it, with what the device knows of it.
#[derive(Debug)]
pub(super) struct HostSide {
    address: HostAddress,
    bytes: usize,
    /// What host and device agreed on last, where `known` says so.
    shadow: Vec<u8>,
    known: RangeSet,
    _region: Option<HostRegion>,
}

impl HostSide {
    /// Memory of the device's own that the host sees; poisoned.
    pub(super) fn own(mut region: HostRegion) -> HostSide {
        region.as_mut_slice().fill(POISON);
        let bytes = region.as_slice().len();
        let mut known = RangeSet::new();
        known.insert(ByteRange::up_to(bytes as u64));
        HostSide {
            address: HostAddress(region.as_ptr()),
            bytes,
            shadow: vec![POISON; bytes],
            known,
            _region: Some(region),
        }
    }

    /// The application's memory, of which the device has seen nothing yet.
    pub(super) fn imported(address: HostAddress, bytes: usize) -> HostSide {
        HostSide { address, bytes, shadow: vec![0; bytes], known: RangeSet::new(), _region: None }
    }

    pub(super) fn address(&self) -> HostAddress {
        self.address
    }

    /// Which bytes of the range `range`, that are `now` these, host and device do not agree on.
    fn dirty(&self, range: ByteRange, now: &[u8]) -> RangeSet {
        let mut dirty = RangeSet::new();
        dirty.insert(range);
        for piece in self.known.overlapping(range) {
            dirty.remove(piece);
            let at = (piece.start - range.start) as usize..(piece.end - range.start) as usize;
            let (Some(now), Some(before)) =
                (now.get(at), self.shadow.get(piece.start as usize..piece.end as usize))
            else {
                continue;
            };
            dirty.insert_differences(piece.start, before, now);
        }
        dirty
    }

    /// Whether the host changed bytes of the range, or may have before the device had them, and did not say so.
    pub(super) fn is_dirty(&self, range: ByteRange) -> bool {
        self.clip(range).is_some_and(|range| !self.dirty(range, &self.load(range)).is_empty())
    }

    /// Bytes of the range that the host changed since host and device last agreed on them.
    pub(super) fn take_dirty(&mut self, range: ByteRange) -> Vec<(ByteRange, Vec<u8>)> {
        let Some(range) = self.clip(range) else { return Vec::new() };
        let now = self.load(range);
        let dirty = self.dirty(range, &now);
        let changed: Vec<_> = dirty
            .iter()
            .filter_map(|piece| {
                let at = (piece.start - range.start) as usize..(piece.end - range.start) as usize;
                Some((piece, now.get(at)?.to_vec()))
            })
            .collect();
        for (piece, bytes) in &changed {
            self.agree(*piece, bytes);
        }
        changed
    }

    /// The host sees what the device says.
    pub(super) fn store(&mut self, range: ByteRange, bytes: &[u8]) {
        let Some(range) = self.clip(range).filter(|range| range.bytes() == bytes.len() as u64) else {
            return;
        };
        // SAFETY: `range` lies in the memory, which is alive, and no one else uses it now (the rules
        // above); `bytes` is a slice of the device's own.
        unsafe {
            let to = self.address.0.as_ptr().add(range.start as usize);
            to.copy_from_nonoverlapping(bytes.as_ptr(), bytes.len());
        }
        self.agree(range, bytes);
    }

    /// The host finds poison.
    pub(super) fn poison(&mut self, range: ByteRange) {
        self.store(range, &vec![POISON; range.bytes() as usize]);
    }

    fn load(&self, range: ByteRange) -> Vec<u8> {
        // SAFETY: `range` was clipped to the memory, which is alive and which no one writes now (the rules
        // above).
        unsafe {
            let from = self.address.0.as_ptr().add(range.start as usize);
            slice::from_raw_parts(from, range.bytes() as usize).to_vec()
        }
    }

    fn agree(&mut self, range: ByteRange, bytes: &[u8]) {
        if let Some(shadow) = self.shadow.get_mut(range.start as usize..range.end as usize) {
            shadow.copy_from_slice(bytes);
            self.known.insert(range);
        }
    }

    fn clip(&self, range: ByteRange) -> Option<ByteRange> {
        range.intersect(ByteRange::up_to(self.bytes as u64))
    }
}
