//! Who must see whose bytes, and what it takes: pure state machines that decide every barrier, flush and invalidate.
//!
//! Accesses go in; barriers, flushes and invalidates come out, as few as the hazards allow. On Vulkan a [`Barrier`] is one
//! global memory barrier; devices that run their commands in order need none and are not asked about.
//!
//! * [`Tracker`]: the barriers between the commands of one recording, before it, and the one that shows the host its
//!   results. Plans and the commands that an application enqueues one by one ask it.
//! * [`Unseen`]: what a recording that someone else made leaves hidden from the host.
//! * [`Sight`]: what each submission of a run flushes before and invalidates after it.
//! * [`HostTracker`]: what the host does before and after an access through its own pointer.
//!
//! Invariants:
//! * A [`ResourceId`] names *memory*, not a view of it: two views that alias must carry one id.
//! * Commands are recorded in submission order on one queue. Work of other queues is waited for by the host.
//! * An emitted barrier names every access kind outstanding at that point and every device access as its
//!   destination, so whatever came before is settled as a whole. A barrier emitted as late as possible
//!   and as wide as possible is what makes the number of barriers the smallest there is.
//! * What a barrier settles: a write when its own kind is in `src` (it must be made available), a read
//!   when its *stage* is (an execution dependency covers a stage's reads and writes alike).
//!
//! The state table, with the sections of the Vulkan specification, is in `docs/design/coherency.md`.

#![forbid(unsafe_code)]

mod host;
mod ledger;
mod sight;
mod tracker;

#[cfg(test)]
mod tests;

use std::fmt;
use std::ops::{BitAnd, BitOr, BitOrAssign, Not};

pub use host::{HostStep, HostTracker, Left, Origin};
pub use sight::{Exchange, Exchanged, Sight, atoms};
pub use tracker::{Tracker, Unseen};

use super::range::ByteRange;

/// Names one piece of memory to the tracker; views that alias share it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ResourceId(pub u32);

/// A set of access kinds. Kernels, transfers and the host are the three stages; each reads and writes.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct Access(u8);

impl Access {
    /// No access.
    pub const NONE: Access = Access(0);
    /// A dispatch reads.
    pub const KERNEL_READ: Access = Access(1);
    /// A dispatch writes.
    pub const KERNEL_WRITE: Access = Access(1 << 1);
    /// A copy reads its source.
    pub const TRANSFER_READ: Access = Access(1 << 2);
    /// A copy or fill writes its destination.
    pub const TRANSFER_WRITE: Access = Access(1 << 3);
    /// The host reads through its own pointer.
    pub const HOST_READ: Access = Access(1 << 4);
    /// The host writes through its own pointer.
    pub const HOST_WRITE: Access = Access(1 << 5);
    /// Every read by the device.
    pub const DEVICE_READ: Access = Access(Self::KERNEL_READ.0 | Self::TRANSFER_READ.0);
    /// Every write by the device.
    pub const DEVICE_WRITE: Access = Access(Self::KERNEL_WRITE.0 | Self::TRANSFER_WRITE.0);
    /// Every access by the device.
    pub const DEVICE: Access = Access(Self::DEVICE_READ.0 | Self::DEVICE_WRITE.0);
    /// Every access by the host.
    pub const HOST: Access = Access(Self::HOST_READ.0 | Self::HOST_WRITE.0);

    const NAMES: [(Access, &'static str); 6] = [
        (Access::KERNEL_READ, "KERNEL_READ"),
        (Access::KERNEL_WRITE, "KERNEL_WRITE"),
        (Access::TRANSFER_READ, "TRANSFER_READ"),
        (Access::TRANSFER_WRITE, "TRANSFER_WRITE"),
        (Access::HOST_READ, "HOST_READ"),
        (Access::HOST_WRITE, "HOST_WRITE"),
    ];

    /// Whether no kind is in the set.
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// Whether every kind of `other` is in the set.
    pub const fn contains(self, other: Access) -> bool {
        self.0 & other.0 == other.0
    }

    /// Whether the sets share a kind.
    pub const fn intersects(self, other: Access) -> bool {
        self.0 & other.0 != 0
    }

    /// The kinds of both.
    pub const fn and(self, other: Access) -> Access {
        Access(self.0 | other.0)
    }

    /// The kinds that write.
    pub const fn writes(self) -> Access {
        Access(self.0 & (Self::DEVICE_WRITE.0 | Self::HOST_WRITE.0))
    }

    /// The kinds that read.
    pub const fn reads(self) -> Access {
        Access(self.0 & (Self::DEVICE_READ.0 | Self::HOST_READ.0))
    }

    /// Both kinds of every stage that is named: what an execution dependency on these stages covers.
    pub const fn of_stages(self) -> Access {
        const LOW: u8 = 0b01_0101;
        let stages = (self.0 | self.0 >> 1) & LOW;
        Access(stages | stages << 1)
    }

    /// Whether two overlapping accesses need an order: at least one of them writes.
    pub const fn conflicts(self, other: Access) -> bool {
        let either_writes = !self.writes().is_empty() || !other.writes().is_empty();
        either_writes && !self.is_empty() && !other.is_empty()
    }
}

impl BitOr for Access {
    type Output = Access;
    fn bitor(self, other: Access) -> Access {
        Access(self.0 | other.0)
    }
}

impl BitOrAssign for Access {
    fn bitor_assign(&mut self, other: Access) {
        self.0 |= other.0;
    }
}

impl BitAnd for Access {
    type Output = Access;
    fn bitand(self, other: Access) -> Access {
        Access(self.0 & other.0)
    }
}

impl Not for Access {
    type Output = Access;
    fn not(self) -> Access {
        Access(!self.0 & (Self::DEVICE.0 | Self::HOST.0))
    }
}

impl fmt::Debug for Access {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_empty() {
            return f.write_str("NONE");
        }
        for (index, (_, name)) in Self::NAMES.iter().filter(|(kind, _)| self.contains(*kind)).enumerate() {
            if index > 0 {
                f.write_str(" | ")?;
            }
            f.write_str(name)?;
        }
        Ok(())
    }
}

/// One global memory barrier: everything before it in submission order that `src` covers happens
/// before everything after it that `dst` names, and the writes in `src` are visible to `dst`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Barrier {
    /// Accesses that must be over; the writes among them are made available. Only reads here makes the
    /// barrier a pure execution dependency.
    pub src: Access,
    /// Accesses that wait, and to which the writes of `src` become visible.
    pub dst: Access,
}

impl Barrier {
    /// Everything before it is over, and seen, before anything after it: what stands before work of which nothing is
    /// known.
    pub const FULL: Barrier = Barrier { src: Access::DEVICE, dst: Access::DEVICE };

    /// The barrier that settles every device access of these kinds for whatever the device does next.
    /// Reads alone are only ever waited for by writes.
    pub(super) fn settling(src: Access) -> Barrier {
        let dst = if src.writes().is_empty() { Access::DEVICE_WRITE } else { Access::DEVICE };
        Barrier { src, dst }
    }

    /// The device access kinds that need no further barrier once this one is recorded after them.
    pub fn settles(self) -> Access {
        let writes = if self.dst.contains(Access::DEVICE) { self.src.writes() } else { Access::NONE };
        let reads = if self.dst.of_stages().contains(Access::DEVICE) {
            self.src.of_stages().reads()
        } else {
            Access::NONE
        };
        (writes | reads) & Access::DEVICE
    }

    /// The device write kinds that this barrier makes visible to host reads.
    pub fn shows_host(self) -> Access {
        if self.dst.contains(Access::HOST_READ) { self.src & Access::DEVICE_WRITE } else { Access::NONE }
    }
}

/// One command's access to one range of one resource.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Touch {
    /// The memory.
    pub resource: ResourceId,
    /// The bytes; an empty range is no access.
    pub range: ByteRange,
    /// What the command does there. Host kinds are ignored: the host is no command.
    pub access: Access,
}

impl Touch {
    /// A touch from its parts.
    pub const fn new(resource: ResourceId, range: ByteRange, access: Access) -> Touch {
        Touch { resource, range, access }
    }
}
