//! Who may touch which bytes of a region at one time: pure bookkeeping, no memory.
//!
//! Host guards are references in disguise, so they follow Rust's rule: many readers or one writer.
//! Device accesses join it: while the device may write bytes the host holds no guard on them, while it
//! reads them the host holds no write guard. Device accesses among themselves are ordered by barriers,
//! not by leases.

use std::sync::{Mutex, MutexGuard};

use super::range::ByteRange;
use crate::sync::lock;

/// A kind of hold on bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Use {
    /// A host read guard.
    HostRead,
    /// A host write guard.
    HostWrite,
    /// Submitted or prepared device work that reads.
    DeviceRead,
    /// Submitted or prepared device work that writes.
    DeviceWrite,
}

impl Use {
    /// Whether both may hold the same byte.
    pub const fn agrees_with(self, other: Use) -> bool {
        use Use::{DeviceRead, DeviceWrite, HostRead, HostWrite};
        match (self, other) {
            (HostWrite, _) | (_, HostWrite) => false,
            (HostRead, DeviceWrite) | (DeviceWrite, HostRead) => false,
            (HostRead | DeviceRead | DeviceWrite, HostRead | DeviceRead | DeviceWrite) => true,
        }
    }

    const fn words(self) -> &'static str {
        match self {
            Use::HostRead => "read by the host",
            Use::HostWrite => "written by the host",
            Use::DeviceRead => "read by the device",
            Use::DeviceWrite => "written by the device",
        }
    }
}

/// The bytes are held in a way that excludes the wanted use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("bytes {range} cannot be {} while bytes {held_range} are being {}", wanted.words(), held.words())]
pub struct Busy {
    /// The bytes asked for.
    pub range: ByteRange,
    /// The use asked for.
    pub wanted: Use,
    /// The bytes of the hold that stands in the way.
    pub held_range: ByteRange,
    /// Its kind.
    pub held: Use,
}

/// Names one hold; given back once.
#[derive(Debug, PartialEq, Eq)]
pub struct Ticket(u64);

#[derive(Debug, Default)]
struct Table {
    next: u64,
    // Few at a time: the guards of a moment and one lease per submission in flight.
    held: Vec<(u64, ByteRange, Use)>,
}

/// The holds on one region.
#[derive(Debug, Default)]
pub struct Occupancy {
    table: Mutex<Table>,
}

impl Occupancy {
    /// Takes a hold, or says which other hold forbids it.
    pub fn take(&self, range: ByteRange, wanted: Use) -> Result<Ticket, Busy> {
        let mut table = self.lock();
        let rival = table
            .held
            .iter()
            .find(|(_, held_range, held)| held_range.overlaps(range) && !held.agrees_with(wanted));
        if let Some((_, held_range, held)) = rival {
            return Err(Busy { range, wanted, held_range: *held_range, held: *held });
        }
        let id = table.next;
        table.next += 1;
        table.held.push((id, range, wanted));
        Ok(Ticket(id))
    }

    /// Gives a hold back; a ticket of another region changes nothing.
    pub fn give_back(&self, ticket: &Ticket) {
        let mut table = self.lock();
        if let Some(at) = table.held.iter().position(|(id, _, _)| *id == ticket.0) {
            table.held.swap_remove(at);
        }
    }

    /// Whether nothing is held.
    pub fn is_idle(&self) -> bool {
        self.lock().held.is_empty()
    }

    fn lock(&self) -> MutexGuard<'_, Table> {
        // Every change to the table is complete before anything can panic.
        lock(&self.table)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: [Use; 4] = [Use::HostRead, Use::HostWrite, Use::DeviceRead, Use::DeviceWrite];

    #[test]
    fn the_rule_is_symmetric_and_as_written() {
        for a in ALL {
            for b in ALL {
                assert_eq!(a.agrees_with(b), b.agrees_with(a));
                let device = |u| matches!(u, Use::DeviceRead | Use::DeviceWrite);
                let writes = |u| matches!(u, Use::HostWrite | Use::DeviceWrite);
                let expected = (device(a) && device(b)) || !(writes(a) || writes(b));
                assert_eq!(a.agrees_with(b), expected, "{a:?} {b:?}");
            }
        }
    }

    #[test]
    fn holds_exclude_only_where_they_overlap() {
        let occupancy = Occupancy::default();
        let low = occupancy.take(ByteRange::new(0, 8), Use::DeviceWrite).unwrap();
        let busy = occupancy.take(ByteRange::new(7, 9), Use::HostRead).unwrap_err();
        assert_eq!(busy.held_range, ByteRange::new(0, 8));
        assert!(busy.to_string().contains("written by the device"));
        let high = occupancy.take(ByteRange::new(8, 9), Use::HostWrite).unwrap();
        occupancy.give_back(&low);
        assert!(occupancy.take(ByteRange::new(0, 8), Use::HostRead).is_ok());
        assert!(occupancy.take(ByteRange::new(0, 9), Use::HostRead).is_err());
        occupancy.give_back(&high);
        assert!(occupancy.take(ByteRange::new(0, 9), Use::HostRead).is_ok());
    }

    #[test]
    fn an_empty_hold_excludes_nothing() {
        let occupancy = Occupancy::default();
        let _all = occupancy.take(ByteRange::new(0, 8), Use::HostWrite).unwrap();
        assert!(occupancy.take(ByteRange::new(4, 4), Use::HostWrite).is_ok());
    }

    #[test]
    fn a_ticket_counts_once() {
        let occupancy = Occupancy::default();
        let first = occupancy.take(ByteRange::new(0, 8), Use::DeviceRead).unwrap();
        let _second = occupancy.take(ByteRange::new(0, 8), Use::DeviceRead).unwrap();
        occupancy.give_back(&first);
        occupancy.give_back(&first);
        assert!(!occupancy.is_idle());
        assert!(occupancy.take(ByteRange::new(0, 8), Use::HostWrite).is_err());
    }
}
