//! Bytes of live imports and allocations against what each heap of a device can hold.
//!
//! A driver reports overcommitted host memory only as a lost device at submit, so the count is kept
//! here, before the driver is asked: for each heap, and for all contexts that the process has on one device. A
//! [`Reservation`] travels with the import or allocation it stands for and gives its bytes back when dropped; leaking
//! one leaks only the count.

use crate::sync::lock;
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, Weak};

/// What a reservation stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum BudgetKind {
    /// Application memory imported in place.
    Import,
    /// Memory allocated from the device.
    Allocation,
}

/// The bytes asked for do not fit together with those that live.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, thiserror::Error)]
#[error("{asked} bytes do not fit in heap {heap}: {live} of {limit} bytes are in use")]
pub struct BudgetExceeded {
    /// The heap of the device.
    pub heap: u32,
    /// Bytes asked for.
    pub asked: u64,
    /// Bytes in use.
    pub live: u64,
    /// Bytes that may be in use at once.
    pub limit: u64,
}

/// What a driver says of a heap (`VK_EXT_memory_budget`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct HeapBudget {
    /// Bytes that the process may use.
    pub budget: u64,
    /// Bytes that it uses, by the driver's count.
    pub usage: u64,
}

impl HeapBudget {
    /// Bytes left. Some drivers let the budget sink below zero, where it looks like a number near 2^64.
    pub fn available(&self) -> u64 {
        if self.budget > i64::MAX as u64 { 0 } else { self.budget.saturating_sub(self.usage) }
    }
}

#[derive(Debug)]
struct Heap {
    limit: AtomicU64,
    live: AtomicU64,
}

/// Devices that a context of the process is open on.
static DEVICES: Mutex<Option<HashMap<String, Weak<[Heap]>>>> = Mutex::new(None);

/// Limits on live bytes by heap. Contexts on one device share them; a clone is the same context's.
#[derive(Clone, Debug)]
pub struct Budget {
    heaps: Arc<[Heap]>,
    own: Arc<Own>,
}

/// What one context holds.
#[derive(Debug, Default)]
struct Own {
    imports: AtomicU64,
    allocations: AtomicU64,
}

impl Own {
    fn part(&self, kind: BudgetKind) -> &AtomicU64 {
        match kind {
            BudgetKind::Import => &self.imports,
            BudgetKind::Allocation => &self.allocations,
        }
    }
}

fn heaps(limits: &[u64]) -> Arc<[Heap]> {
    limits.iter().map(|limit| Heap { limit: AtomicU64::new(*limit), live: AtomicU64::new(0) }).collect()
}

impl Budget {
    /// A budget of a context alone, with a limit in bytes for each heap. `u64::MAX` means no limit.
    pub fn new(limits: &[u64]) -> Budget {
        Budget { heaps: heaps(limits), own: Arc::default() }
    }

    /// The budget of a device that other contexts of the process may be open on: they share the counts, and the limits of
    /// whoever was first.
    pub fn of_device(identity: &str, limits: &[u64]) -> Budget {
        let mut devices = lock(&DEVICES);
        let devices = devices.get_or_insert_default();
        devices.retain(|_, heaps| heaps.strong_count() > 0);
        let known = devices.get(identity).and_then(Weak::upgrade).filter(|known| known.len() == limits.len());
        let heaps = known.unwrap_or_else(|| {
            let fresh = heaps(limits);
            devices.insert(identity.to_owned(), Arc::downgrade(&fresh));
            fresh
        });
        Budget { heaps, own: Arc::default() }
    }

    /// Bytes of a heap that may live at once; 0 for a heap that does not exist.
    pub fn limit(&self, heap: u32) -> u64 {
        self.heap(heap).map_or(0, |heap| heap.limit.load(Ordering::Relaxed))
    }

    /// Changes the limit of a heap, for all contexts on the device. What is reserved stays, even beyond the new limit.
    pub fn set_limit(&self, heap: u32, limit: u64) {
        if let Some(heap) = self.heap(heap) {
            heap.limit.store(limit, Ordering::Relaxed);
        }
    }

    /// Bytes of a heap in use by all contexts on the device.
    pub fn in_use(&self, heap: u32) -> u64 {
        self.heap(heap).map_or(0, |heap| heap.live.load(Ordering::Relaxed))
    }

    /// Bytes of a heap that can still be reserved.
    pub fn available(&self, heap: u32) -> u64 {
        self.limit(heap).saturating_sub(self.in_use(heap))
    }

    /// Bytes that this context has reserved for live imports.
    pub fn live_imports(&self) -> u64 {
        self.own.imports.load(Ordering::Relaxed)
    }

    /// Bytes that this context has reserved for live allocations.
    pub fn live_allocations(&self) -> u64 {
        self.own.allocations.load(Ordering::Relaxed)
    }

    /// Bytes that this context has reserved.
    pub fn live(&self) -> u64 {
        self.live_imports().saturating_add(self.live_allocations())
    }

    /// Reserves bytes of a heap until the reservation is dropped.
    ///
    /// # Errors
    /// The bytes do not fit together with those that live, or there is no such heap; nothing is reserved then.
    pub fn reserve(&self, kind: BudgetKind, heap: u32, bytes: u64) -> Result<Reservation, BudgetExceeded> {
        let limit = self.limit(heap);
        let exceeded = |live| BudgetExceeded { heap, asked: bytes, live, limit };
        let counters = self.heap(heap).ok_or(exceeded(0))?;
        let fits = |live: u64| live.checked_add(bytes).filter(|sum| *sum <= limit);
        counters.live.fetch_update(Ordering::Relaxed, Ordering::Relaxed, fits).map_err(exceeded)?;
        Ok(self.hold(kind, heap, bytes))
    }

    /// Counts bytes that the driver has given already, whether they fit or not.
    pub fn count(&self, kind: BudgetKind, heap: u32, bytes: u64) -> Reservation {
        if let Some(counters) = self.heap(heap) {
            let add = |live: u64| Some(live.saturating_add(bytes));
            let _ = counters.live.fetch_update(Ordering::Relaxed, Ordering::Relaxed, add);
        }
        self.hold(kind, heap, bytes)
    }

    fn heap(&self, heap: u32) -> Option<&Heap> {
        self.heaps.get(heap as usize)
    }

    fn hold(&self, kind: BudgetKind, heap: u32, bytes: u64) -> Reservation {
        self.own.part(kind).fetch_add(bytes, Ordering::Relaxed);
        Reservation { budget: self.clone(), kind, heap, bytes }
    }
}

/// Reserved bytes; dropping it gives them back.
#[derive(Debug)]
#[must_use = "dropping a reservation gives its bytes back"]
pub struct Reservation {
    budget: Budget,
    kind: BudgetKind,
    heap: u32,
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
        let back = |live: u64| Some(live.saturating_sub(self.bytes));
        let _ = self.budget.own.part(self.kind).fetch_update(Ordering::Relaxed, Ordering::Relaxed, back);
        if let Some(heap) = self.budget.heap(self.heap) {
            let _ = heap.live.fetch_update(Ordering::Relaxed, Ordering::Relaxed, back);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reservations_count_until_dropped_each_in_its_heap() {
        let budget = Budget::new(&[100, 10]);
        let import = budget.reserve(BudgetKind::Import, 0, 60).unwrap();
        let allocation = budget.reserve(BudgetKind::Allocation, 0, 40).unwrap();
        assert_eq!((budget.live_imports(), budget.live_allocations(), budget.available(0)), (60, 40, 0));
        let refused = budget.reserve(BudgetKind::Import, 0, 1).unwrap_err();
        assert_eq!(refused, BudgetExceeded { heap: 0, asked: 1, live: 100, limit: 100 });
        let other = budget.reserve(BudgetKind::Import, 1, 10).unwrap();
        assert_eq!((budget.in_use(0), budget.in_use(1), budget.live()), (100, 10, 110));
        drop((import, other));
        assert_eq!((budget.live(), budget.available(1)), (40, 10));
        assert!(budget.reserve(BudgetKind::Import, 0, 60).is_ok());
        drop(allocation);
        assert_eq!((budget.live(), budget.in_use(0)), (0, 0));
    }

    #[test]
    fn contexts_on_one_device_share_its_heaps() {
        let device = || Budget::of_device("two contexts", &[100]);
        let (first, second) = (device(), device());
        let held = first.reserve(BudgetKind::Import, 0, 80).unwrap();
        assert_eq!((second.live(), second.in_use(0)), (0, 80));
        assert!(second.reserve(BudgetKind::Allocation, 0, 21).is_err());
        second.set_limit(0, 200);
        let more = first.reserve(BudgetKind::Allocation, 0, 21).unwrap();
        assert!(Budget::of_device("another device", &[100]).reserve(BudgetKind::Import, 0, 100).is_ok());
        drop((held, first, second));
        // The reservation keeps the device's count.
        assert_eq!(device().in_use(0), 21);
        drop(more);
        assert_eq!(device().limit(0), 100);
    }

    #[test]
    fn what_the_driver_gave_counts_beyond_the_limit() {
        let budget = Budget::new(&[10]);
        let given = budget.count(BudgetKind::Allocation, 0, 50);
        assert_eq!((budget.in_use(0), budget.available(0)), (50, 0));
        drop(given);
        assert_eq!(budget.in_use(0), 0);
        drop(budget.count(BudgetKind::Allocation, 9, 50));
        assert_eq!(budget.live(), 0);
    }

    #[test]
    fn budgets_below_zero_leave_nothing() {
        assert_eq!(HeapBudget { budget: 18_446_744_073_271_062_528, usage: 5 }.available(), 0);
        assert_eq!(HeapBudget { budget: 10, usage: 12 }.available(), 0);
        assert_eq!(HeapBudget { budget: 12, usage: 10 }.available(), 2);
    }

    #[test]
    fn sums_beyond_64_bits_and_heaps_that_are_not_there_are_refused() {
        let budget = Budget::new(&[u64::MAX]);
        let held = budget.reserve(BudgetKind::Import, 0, 2).unwrap();
        assert!(budget.reserve(BudgetKind::Allocation, 0, u64::MAX).is_err());
        assert_eq!(budget.live_allocations(), 0);
        drop(held);
        assert!(budget.reserve(BudgetKind::Allocation, 0, u64::MAX).is_ok());
        assert!(budget.reserve(BudgetKind::Allocation, 1, 0).is_err());
    }

    #[test]
    fn a_smaller_limit_keeps_what_lives() {
        let budget = Budget::new(&[100]);
        let held = budget.reserve(BudgetKind::Import, 0, 80).unwrap();
        budget.set_limit(0, 50);
        assert_eq!(budget.available(0), 0);
        assert!(budget.reserve(BudgetKind::Import, 0, 0).is_err());
        drop(held);
        assert!(budget.reserve(BudgetKind::Import, 0, 50).is_ok());
    }

    #[test]
    fn threads_never_pass_the_limit() {
        let budget = Budget::new(&[10]);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..100 {
                        let held = budget.reserve(BudgetKind::Allocation, 0, 4);
                        assert!(budget.in_use(0) <= 10);
                        drop(held);
                    }
                });
            }
        });
        assert_eq!((budget.live(), budget.live_allocations()), (0, 0));
    }
}
