//! Directed cases with exact counts, and random programs against naive models of a device.
//!
//! The models are written from the specification's rules, byte by byte and pair by pair, and share no
//! code with the tracker.

mod directed;
mod ordering;
mod values;

use super::*;

const A: ResourceId = ResourceId(1);
const B: ResourceId = ResourceId(2);
const C: ResourceId = ResourceId(3);

const KR: Access = Access::KERNEL_READ;
const KW: Access = Access::KERNEL_WRITE;
const TR: Access = Access::TRANSFER_READ;
const TW: Access = Access::TRANSFER_WRITE;

fn r(start: u64, end: u64) -> ByteRange {
    ByteRange::new(start, end)
}

fn touch(resource: ResourceId, access: Access) -> Touch {
    Touch::new(resource, r(0, 64), access)
}

/// Counts the barriers of commands recorded in order.
fn barriers(commands: &[&[Touch]]) -> Vec<usize> {
    let mut tracker = Tracker::new();
    commands.iter().enumerate().filter_map(|(at, touches)| tracker.command(touches).map(|_| at)).collect()
}
