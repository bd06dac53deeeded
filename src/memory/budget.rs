//! Bytes of live imports and allocations against what a device can hold.
//!
//! A driver reports overcommitted host memory only as a lost device at submit, so the count is kept
//! here, before the driver is asked. A [`Reservation`] travels with the import or allocation it stands
//! for and gives its bytes back when dropped; leaking one leaks only the count.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// What a reservation stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum BudgetKind {
    /// Application memory imported in place.
    Import,
    /// Memory allocated from the device.
    Allocation,
}

/// The bytes asked for do not fit beside those that live.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, thiserror::Error)]
#[error("{asked} bytes do not fit: {live} of {limit} bytes are in use")]
pub struct BudgetExceeded {
    /// Bytes asked for.
    pub asked: u64,
    /// Bytes of live imports and allocations.
    pub live: u64,
    /// Bytes that may live at once.
    pub limit: u64,
}

#[derive(Debug)]
struct Counters {
    limit: AtomicU64,
    // The sum decides; the two parts are for the report and may lag behind it by one reservation.
    live: AtomicU64,
    imports: AtomicU64,
    allocations: AtomicU64,
}

impl Counters {
    fn part(&self, kind: BudgetKind) -> &AtomicU64 {
        match kind {
            BudgetKind::Import => &self.imports,
            BudgetKind::Allocation => &self.allocations,
        }
    }
}

/// A limit on live bytes, shared by every holder of a clone.
#[derive(Clone, Debug)]
pub struct Budget {
    counters: Arc<Counters>,
}

impl Budget {
    /// A budget with nothing reserved. `u64::MAX` means no limit.
    pub fn new(limit: u64) -> Budget {
        let counters = Counters {
            limit: AtomicU64::new(limit),
            live: AtomicU64::new(0),
            imports: AtomicU64::new(0),
            allocations: AtomicU64::new(0),
        };
        Budget { counters: Arc::new(counters) }
    }

    /// Bytes that may live at once.
    pub fn limit(&self) -> u64 {
        self.counters.limit.load(Ordering::Relaxed)
    }

    /// Changes the limit. What is reserved stays, even beyond the new limit.
    pub fn set_limit(&self, limit: u64) {
        self.counters.limit.store(limit, Ordering::Relaxed);
    }

    /// Bytes reserved for live imports.
    pub fn live_imports(&self) -> u64 {
        self.counters.imports.load(Ordering::Relaxed)
    }

    /// Bytes reserved for live allocations.
    pub fn live_allocations(&self) -> u64 {
        self.counters.allocations.load(Ordering::Relaxed)
    }

    /// Bytes reserved in all.
    pub fn live(&self) -> u64 {
        self.counters.live.load(Ordering::Relaxed)
    }

    /// Bytes that can still be reserved.
    pub fn available(&self) -> u64 {
        self.limit().saturating_sub(self.live())
    }

    /// Reserves bytes until the reservation is dropped.
    ///
    /// # Errors
    /// The bytes do not fit beside those that live; nothing is reserved then.
    pub fn reserve(&self, kind: BudgetKind, bytes: u64) -> Result<Reservation, BudgetExceeded> {
        let limit = self.limit();
        let fits = |live: u64| live.checked_add(bytes).filter(|sum| *sum <= limit);
        self.counters
            .live
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, fits)
            .map_err(|live| BudgetExceeded { asked: bytes, live, limit })?;
        self.counters.part(kind).fetch_add(bytes, Ordering::Relaxed);
        Ok(Reservation { counters: Arc::clone(&self.counters), kind, bytes })
    }
}

/// Reserved bytes; dropping it gives them back.
#[derive(Debug)]
#[must_use = "dropping a reservation gives its bytes back"]
pub struct Reservation {
    counters: Arc<Counters>,
    kind: BudgetKind,
    bytes: u64,
}

impl Reservation {
    /// Bytes reserved.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// What they are reserved for.
    pub fn kind(&self) -> BudgetKind {
        self.kind
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        self.counters.part(self.kind).fetch_sub(self.bytes, Ordering::Relaxed);
        self.counters.live.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reservations_count_until_dropped() {
        let budget = Budget::new(100);
        let import = budget.reserve(BudgetKind::Import, 60).unwrap();
        let allocation = budget.reserve(BudgetKind::Allocation, 40).unwrap();
        assert_eq!((budget.live_imports(), budget.live_allocations(), budget.available()), (60, 40, 0));
        let refused = budget.reserve(BudgetKind::Import, 1).unwrap_err();
        assert_eq!(refused, BudgetExceeded { asked: 1, live: 100, limit: 100 });
        drop(import);
        assert_eq!(budget.live(), 40);
        assert!(budget.reserve(BudgetKind::Import, 60).is_ok());
        drop(allocation);
        assert_eq!(budget.live(), 0);
    }

    #[test]
    fn sums_beyond_64_bits_are_refused() {
        let budget = Budget::new(u64::MAX);
        let held = budget.reserve(BudgetKind::Import, 2).unwrap();
        assert!(budget.reserve(BudgetKind::Allocation, u64::MAX).is_err());
        assert_eq!(budget.live_allocations(), 0);
        drop(held);
        assert!(budget.reserve(BudgetKind::Allocation, u64::MAX).is_ok());
    }

    #[test]
    fn a_smaller_limit_keeps_what_lives() {
        let budget = Budget::new(100);
        let held = budget.reserve(BudgetKind::Import, 80).unwrap();
        budget.set_limit(50);
        assert_eq!(budget.available(), 0);
        assert!(budget.reserve(BudgetKind::Import, 0).is_err());
        drop(held);
        assert!(budget.reserve(BudgetKind::Import, 50).is_ok());
    }

    #[test]
    fn threads_never_pass_the_limit() {
        let budget = Budget::new(10);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..100 {
                        let held = budget.reserve(BudgetKind::Allocation, 4);
                        assert!(budget.live() <= 10);
                        drop(held);
                    }
                });
            }
        });
        assert_eq!((budget.live(), budget.live_allocations()), (0, 0));
    }
}
