//! Bytes of live imports and allocations against what each heap of a device can hold.
//!
//! A driver reports overcommitted host memory only as a lost device at submit, so the count is kept
//! here, before the driver is asked: for each heap, for all imports and for everything, and for all contexts that the
//! process has on one device. A [`Reservation`] travels with the import or allocation it stands for and gives its bytes
//! back when dropped; leaking one leaks only the count.

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
#[error("{asked} bytes do not fit in {pool}: {live} of {limit} bytes are in use")]
pub struct BudgetExceeded {
    /// What they do not fit in.
    pub pool: Pool,
    /// Bytes asked for.
    pub asked: u64,
    /// Bytes in use.
    pub live: u64,
    /// Bytes that may be in use at once.
    pub limit: u64,
}

/// What is counted against a limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, thiserror::Error)]
#[serde(rename_all = "snake_case")]
pub enum Pool {
    /// A heap of the device.
    #[error("heap {0}")]
    Heap(u32),
    /// The application's memory that the device may map at once.
    #[error("what the device maps of the host's memory")]
    Imports,
    /// Everything that the device holds.
    #[error("the device's memory")]
    Total,
}

/// How many bytes a device may hold at once; `u64::MAX` is no limit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BudgetLimits {
    /// In each heap.
    pub heaps: Vec<u64>,
    /// In imports.
    pub imports: u64,
    /// In all heaps together, imports too.
    pub total: u64,
}

impl BudgetLimits {
    /// Limits of heaps alone.
    pub fn of_heaps(heaps: Vec<u64>) -> BudgetLimits {
        BudgetLimits { heaps, imports: u64::MAX, total: u64::MAX }
    }

    /// What a kernel's own counts allow a device with `heaps` heaps whose host has `host` bytes: its driver may list heaps
    /// that it made up of both kinds of memory, which hold together what the kernel says.
    pub fn of_kernel(kernel: &KernelMemory, heaps: usize, host: u64) -> BudgetLimits {
        let imports = kernel.mapped.budget.min(host);
        let total = imports.saturating_add(kernel.set_aside.budget);
        BudgetLimits { heaps: vec![total; heaps], imports, total }
    }
}

/// What a kernel counts of a device in the host's memory, for all processes (amdgpu: `mem_info_vram_*` and
/// `mem_info_gtt_*` in sysfs).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct KernelMemory {
    /// Memory that the firmware set aside for the device.
    pub set_aside: HeapBudget,
    /// Memory of the host that the device maps: imports, and what does not fit in the other.
    pub mapped: HeapBudget,
}

impl KernelMemory {
    /// Bytes left in both.
    pub fn available(&self) -> u64 {
        self.set_aside.available().saturating_add(self.mapped.available())
    }
}

/// What a driver says of a heap (`VK_EXT_memory_budget`), or a kernel of a kind of memory.
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

/// Live bytes against a limit.
#[derive(Debug)]
struct Gauge {
    limit: AtomicU64,
    live: AtomicU64,
}

impl Gauge {
    fn new(limit: u64) -> Gauge {
        Gauge { limit: AtomicU64::new(limit), live: AtomicU64::new(0) }
    }

    fn limit(&self) -> u64 {
        self.limit.load(Ordering::Relaxed)
    }

    fn live(&self) -> u64 {
        self.live.load(Ordering::Relaxed)
    }

    fn available(&self) -> u64 {
        self.limit().saturating_sub(self.live())
    }

    fn reserve(&self, pool: Pool, bytes: u64) -> Result<(), BudgetExceeded> {
        let limit = self.limit();
        let fits = |live: u64| live.checked_add(bytes).filter(|sum| *sum <= limit);
        let added = self.live.fetch_update(Ordering::Relaxed, Ordering::Relaxed, fits);
        added.map(drop).map_err(|live| BudgetExceeded { pool, asked: bytes, live, limit })
    }

    fn add(&self, bytes: u64) {
        let sum = |live: u64| Some(live.saturating_add(bytes));
        let _ = self.live.fetch_update(Ordering::Relaxed, Ordering::Relaxed, sum);
    }

    fn give_back(&self, bytes: u64) {
        let rest = |live: u64| Some(live.saturating_sub(bytes));
        let _ = self.live.fetch_update(Ordering::Relaxed, Ordering::Relaxed, rest);
    }
}

/// What all contexts of the process on one device hold.
#[derive(Debug)]
struct Device {
    heaps: Box<[Gauge]>,
    imports: Gauge,
    total: Gauge,
}

impl Device {
    fn new(limits: &BudgetLimits) -> Arc<Device> {
        Arc::new(Device {
            heaps: limits.heaps.iter().copied().map(Gauge::new).collect(),
            imports: Gauge::new(limits.imports),
            total: Gauge::new(limits.total),
        })
    }

    /// The gauges that bytes of a kind in a heap count in, the narrowest first; none for a heap that does not exist.
    fn gauges(&self, kind: BudgetKind, heap: u32) -> impl Iterator<Item = (Pool, &Gauge)> {
        let of_heap = self.heaps.get(heap as usize).map(|gauge| (Pool::Heap(heap), gauge));
        let all = of_heap.map(|_| (Pool::Total, &self.total));
        let imports = all.filter(|_| kind == BudgetKind::Import).map(|_| (Pool::Imports, &self.imports));
        imports.into_iter().chain(all).chain(of_heap)
    }
}

/// What the process knows of a device by its identity.
#[derive(Debug, Default)]
struct Known {
    /// While a context is open on it.
    device: Weak<Device>,
    /// The most imports at once, once the device was lost with more.
    imports: Option<u64>,
}

static DEVICES: Mutex<Option<HashMap<String, Known>>> = Mutex::new(None);

/// Limits on live bytes by heap, of imports and of everything. Contexts on one device share them; a clone is the same
/// context's.
#[derive(Clone, Debug)]
pub struct Budget {
    identity: Option<Arc<str>>,
    device: Arc<Device>,
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

impl Budget {
    /// A budget of a context alone.
    pub fn new(limits: &BudgetLimits) -> Budget {
        Budget { identity: None, device: Device::new(limits), own: Arc::default() }
    }

    /// The budget of a device that other contexts of the process may be open on: they share the counts, and the limits of
    /// whoever was first. What [`Budget::lost_at_submit`] learned holds for later contexts too.
    pub fn of_device(identity: &str, limits: &BudgetLimits) -> Budget {
        let mut devices = lock(&DEVICES);
        let devices = devices.get_or_insert_default();
        devices.retain(|_, known| known.imports.is_some() || known.device.strong_count() > 0);
        let known = devices.entry(identity.to_owned()).or_default();
        let open = known.device.upgrade().filter(|device| device.heaps.len() == limits.heaps.len());
        let device = open.unwrap_or_else(|| {
            let imports = limits.imports.min(known.imports.unwrap_or(u64::MAX));
            let fresh = Device::new(&BudgetLimits { imports, ..limits.clone() });
            known.device = Arc::downgrade(&fresh);
            fresh
        });
        Budget { identity: Some(identity.into()), device, own: Arc::default() }
    }

    /// A submission lost the device while imports were alive: drivers that count them only there report too many like
    /// that. From now on at most half as many bytes are imported at once. Returns the new limit; `None` without imports.
    pub fn lost_at_submit(&self) -> Option<u64> {
        let imports = &self.device.imports;
        let live = imports.live();
        if live == 0 {
            return None;
        }
        let most = live.min(imports.limit()) / 2;
        imports.limit.store(most, Ordering::Relaxed);
        if let Some(identity) = &self.identity {
            lock(&DEVICES).get_or_insert_default().entry((**identity).to_owned()).or_default().imports =
                Some(most);
        }
        Some(most)
    }

    /// Bytes of a heap that may live at once; 0 for a heap that does not exist.
    pub fn limit(&self, heap: u32) -> u64 {
        self.heap(heap).map_or(0, Gauge::limit)
    }

    /// Changes the limit of a heap, for all contexts on the device. What is reserved stays, even beyond the new limit.
    pub fn set_limit(&self, heap: u32, limit: u64) {
        if let Some(heap) = self.heap(heap) {
            heap.limit.store(limit, Ordering::Relaxed);
        }
    }

    /// Bytes of imports that may live at once, whatever the heaps hold.
    pub fn import_limit(&self) -> u64 {
        self.device.imports.limit()
    }

    /// Bytes of a heap in use by all contexts on the device.
    pub fn in_use(&self, heap: u32) -> u64 {
        self.heap(heap).map_or(0, Gauge::live)
    }

    /// Bytes of a heap that can still be reserved.
    pub fn available(&self, heap: u32) -> u64 {
        self.heap(heap).map_or(0, |gauge| gauge.available().min(self.device.total.available()))
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
        if self.heap(heap).is_none() {
            return Err(BudgetExceeded { pool: Pool::Heap(heap), asked: bytes, live: 0, limit: 0 });
        }
        let mut taken: Vec<&Gauge> = Vec::with_capacity(3);
        for (pool, gauge) in self.device.gauges(kind, heap) {
            if let Err(exceeded) = gauge.reserve(pool, bytes) {
                taken.iter().for_each(|gauge| gauge.give_back(bytes));
                return Err(exceeded);
            }
            taken.push(gauge);
        }
        Ok(self.hold(kind, heap, bytes))
    }

    /// Counts bytes that the driver has given already, whether they fit or not.
    pub fn count(&self, kind: BudgetKind, heap: u32, bytes: u64) -> Reservation {
        self.device.gauges(kind, heap).for_each(|(_, gauge)| gauge.add(bytes));
        self.hold(kind, heap, bytes)
    }

    fn heap(&self, heap: u32) -> Option<&Gauge> {
        self.device.heaps.get(heap as usize)
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
        self.budget.device.gauges(self.kind, self.heap).for_each(|(_, gauge)| gauge.give_back(self.bytes));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn heaps(limits: &[u64]) -> Budget {
        Budget::new(&BudgetLimits::of_heaps(limits.to_vec()))
    }

    /// An APU with 512 MiB set aside and 15 GiB to map, whose driver lists a third and two thirds of the sum.
    #[test]
    fn heaps_that_a_driver_makes_up_hold_together_what_the_kernel_says() {
        const MIB: u64 = 1 << 20;
        let of = |bytes| HeapBudget { budget: bytes, usage: 0 };
        let kernel = KernelMemory { set_aside: of(512 * MIB), mapped: of(15 << 30) };
        let budget = Budget::new(&BudgetLimits::of_kernel(&kernel, 2, 30 << 30));
        // Twice what the heap is said to have.
        let import = budget.reserve(BudgetKind::Import, 0, 10 << 30).unwrap();
        let refused = budget.reserve(BudgetKind::Import, 0, 6 << 30).unwrap_err();
        let (live, limit) = (10 << 30, 15 << 30);
        assert_eq!(refused, BudgetExceeded { pool: Pool::Imports, asked: 6 << 30, live, limit });
        assert_eq!((budget.in_use(0), budget.import_limit()), (10 << 30, 15 << 30));
        let rest = (5 << 30) + 512 * MIB;
        assert_eq!((budget.available(0), budget.available(1)), (rest, rest));
        let allocation = budget.reserve(BudgetKind::Allocation, 1, rest).unwrap();
        let refused = budget.reserve(BudgetKind::Allocation, 0, 1).unwrap_err();
        assert_eq!(refused.pool, Pool::Total);
        drop((import, allocation));
        assert_eq!((budget.in_use(0), budget.available(1)), (0, (15 << 30) + 512 * MIB));
        // A table that is larger than the host's memory maps no more of it.
        let large = KernelMemory { mapped: of(1 << 40), ..kernel };
        assert_eq!(BudgetLimits::of_kernel(&large, 2, 30 << 30).imports, 30 << 30);
    }

    #[test]
    fn a_device_that_was_lost_with_imports_takes_half_as_many() {
        let open = || Budget::of_device("lost with imports", &BudgetLimits::of_heaps(vec![100]));
        let first = open();
        assert_eq!((first.lost_at_submit(), first.import_limit()), (None, u64::MAX));
        let held = first.reserve(BudgetKind::Import, 0, 60).unwrap();
        assert_eq!(first.lost_at_submit(), Some(30));
        assert_eq!(first.reserve(BudgetKind::Import, 0, 1).unwrap_err().pool, Pool::Imports);
        let allocation = first.reserve(BudgetKind::Allocation, 0, 40);
        assert!(allocation.is_ok());
        drop((held, allocation, first));
        // Of a context that is opened after all others are gone too.
        let second = open();
        assert_eq!(second.import_limit(), 30);
        let held = second.reserve(BudgetKind::Import, 0, 30).unwrap();
        assert_eq!(second.lost_at_submit(), Some(15));
        drop(held);
    }

    #[test]
    fn reservations_count_until_dropped_each_in_its_heap() {
        let budget = heaps(&[100, 10]);
        let import = budget.reserve(BudgetKind::Import, 0, 60).unwrap();
        let allocation = budget.reserve(BudgetKind::Allocation, 0, 40).unwrap();
        assert_eq!((budget.live_imports(), budget.live_allocations(), budget.available(0)), (60, 40, 0));
        let refused = budget.reserve(BudgetKind::Import, 0, 1).unwrap_err();
        assert_eq!(refused, BudgetExceeded { pool: Pool::Heap(0), asked: 1, live: 100, limit: 100 });
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
        let device = || Budget::of_device("two contexts", &BudgetLimits::of_heaps(vec![100]));
        let (first, second) = (device(), device());
        let held = first.reserve(BudgetKind::Import, 0, 80).unwrap();
        assert_eq!((second.live(), second.in_use(0)), (0, 80));
        assert!(second.reserve(BudgetKind::Allocation, 0, 21).is_err());
        second.set_limit(0, 200);
        let more = first.reserve(BudgetKind::Allocation, 0, 21).unwrap();
        assert!(
            Budget::of_device("another device", &BudgetLimits::of_heaps(vec![100]))
                .reserve(BudgetKind::Import, 0, 100)
                .is_ok()
        );
        drop((held, first, second));
        // The reservation keeps the device's count.
        assert_eq!(device().in_use(0), 21);
        drop(more);
        assert_eq!(device().limit(0), 100);
    }

    #[test]
    fn what_the_driver_gave_counts_beyond_the_limit() {
        let budget = heaps(&[10]);
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
        let budget = heaps(&[u64::MAX]);
        let held = budget.reserve(BudgetKind::Import, 0, 2).unwrap();
        assert!(budget.reserve(BudgetKind::Allocation, 0, u64::MAX).is_err());
        assert_eq!(budget.live_allocations(), 0);
        drop(held);
        assert!(budget.reserve(BudgetKind::Allocation, 0, u64::MAX).is_ok());
        assert!(budget.reserve(BudgetKind::Allocation, 1, 0).is_err());
    }

    #[test]
    fn a_smaller_limit_keeps_what_lives() {
        let budget = heaps(&[100]);
        let held = budget.reserve(BudgetKind::Import, 0, 80).unwrap();
        budget.set_limit(0, 50);
        assert_eq!(budget.available(0), 0);
        assert!(budget.reserve(BudgetKind::Import, 0, 0).is_err());
        drop(held);
        assert!(budget.reserve(BudgetKind::Import, 0, 50).is_ok());
    }

    #[test]
    fn threads_never_pass_the_limit() {
        let budget = heaps(&[10]);
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
