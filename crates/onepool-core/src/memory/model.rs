//! What a device's memory is: the one place that every decision about it asks.
//!
//! A [`MemoryModel`] is built from what a driver lists (the type of the device, heaps, memory types, the types it
//! grants to host pointers) and from nothing else: no vendor, no name, no position in a list. Pure.

use super::import::Refusal;

/// A heap of less than this part of the device's memory is a window.
const WINDOW: u64 = 8;

/// What kind of thing a device is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum DeviceKind {
    /// A GPU that shares the host's memory.
    Integrated,
    /// A GPU with memory of its own, across a bus.
    Discrete,
    /// A GPU of a virtual machine.
    Virtual,
    /// A processor: lavapipe, PoCL, or our own CPU backend.
    Cpu,
    /// Something else.
    Other,
}

/// Where a buffer should live.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Placement {
    /// Where the device is fastest; mapped too on shared memory if that costs nothing.
    Device,
    /// Mapped memory for the host to write and the device to read: staging on a bus, the device's own on shared memory.
    Upload,
    /// Cached mapped memory for the host to read.
    Readback,
    /// Mapped, cached and coherent where possible: both sides use it in turn.
    Shared,
}

impl Placement {
    /// Every placement.
    pub const ALL: [Placement; 4] =
        [Placement::Device, Placement::Upload, Placement::Readback, Placement::Shared];
}

/// Properties of a memory type, with the values of `VkMemoryPropertyFlagBits`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct TypeFlags(pub u32);

impl TypeFlags {
    /// Near to the device.
    pub const DEVICE_LOCAL: TypeFlags = TypeFlags(1);
    /// The host can map it.
    pub const HOST_VISIBLE: TypeFlags = TypeFlags(2);
    /// Host and device see each other's writes without flush and invalidate.
    pub const HOST_COHERENT: TypeFlags = TypeFlags(4);
    /// Reads by the host go through its caches.
    pub const HOST_CACHED: TypeFlags = TypeFlags(8);

    /// Every property that buffers of ours can live with. Others (lazy, protected, those of AMD and NVIDIA's remote
    /// access) need features that are left off, or hold no bytes.
    const KNOWN: u32 = 15;

    const NAMES: [(u32, &'static str); 10] = [
        (1, "device_local"),
        (2, "host_visible"),
        (4, "host_coherent"),
        (8, "host_cached"),
        (16, "lazily_allocated"),
        (32, "protected"),
        (64, "device_coherent"),
        (128, "device_uncached"),
        (256, "rdma_capable"),
        (u32::MAX << 9, "unknown"),
    ];

    /// These and those.
    #[must_use]
    pub const fn with(self, other: TypeFlags) -> TypeFlags {
        TypeFlags(self.0 | other.0)
    }

    /// Whether all of these are among them.
    pub const fn has(self, all: TypeFlags) -> bool {
        self.0 & all.0 == all.0
    }

    /// Whether a buffer's bytes can be kept in memory of this type.
    pub const fn is_usable(self) -> bool {
        self.0 & !Self::KNOWN == 0
    }

    /// The host maps it, and reads of the host go past its caches: some hundred times slower than cached ones.
    pub const fn is_write_combined(self) -> bool {
        self.has(Self::HOST_VISIBLE) && !self.has(Self::HOST_CACHED)
    }

    /// Their names.
    pub fn names(self) -> impl Iterator<Item = &'static str> {
        Self::NAMES.into_iter().filter(move |(bit, _)| self.0 & bit != 0).map(|(_, name)| name)
    }
}

impl serde::Serialize for TypeFlags {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(self.names())
    }
}

/// A heap: bytes that several memory types may be taken from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
pub struct Heap {
    /// Its size in bytes.
    pub bytes: u64,
    /// The driver calls it the device's own.
    pub device_local: bool,
}

/// A memory type.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
pub struct MemoryType {
    /// The heap that its allocations are charged to.
    pub heap: u32,
    /// Its properties.
    pub flags: TypeFlags,
}

/// Which memory types a driver grants to a pointer of the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum ImportTypes {
    /// It imports no host memory.
    None,
    /// It imports; which types is told once a pointer is asked about.
    Unknown,
    /// One bit for each type, as it answered for anonymous pages.
    Bits(u32),
}

/// The memory of a device.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct MemoryModel {
    heaps: Vec<Heap>,
    types: Vec<MemoryType>,
    imports: ImportTypes,
    shared: bool,
}

impl MemoryModel {
    /// The model of what a driver lists. Types that name a heap that is not listed are never chosen.
    pub fn new(
        kind: DeviceKind,
        heaps: Vec<Heap>,
        types: Vec<MemoryType>,
        imports: ImportTypes,
    ) -> MemoryModel {
        let all_local = !heaps.is_empty() && heaps.iter().all(|heap| heap.device_local);
        let shared = match kind {
            DeviceKind::Integrated | DeviceKind::Cpu => true,
            DeviceKind::Discrete => false,
            // Where a guest's driver does not say, one kind of heap for everything is one memory.
            DeviceKind::Virtual | DeviceKind::Other => all_local,
        };
        MemoryModel { heaps, types, imports, shared }
    }

    /// One heap and one type that both sides use at full speed: a device that is the processor.
    pub fn one_pool(kind: DeviceKind, bytes: u64) -> MemoryModel {
        let flags = TypeFlags(TypeFlags::KNOWN);
        let heaps = vec![Heap { bytes, device_local: true }];
        MemoryModel::new(kind, heaps, vec![MemoryType { heap: 0, flags }], ImportTypes::Bits(1))
    }

    /// Memory of the device's own that the host does not map, and the host's memory that both reach.
    pub fn two_pools(kind: DeviceKind, device_bytes: u64, host_bytes: u64) -> MemoryModel {
        let heaps = vec![
            Heap { bytes: device_bytes, device_local: true },
            Heap { bytes: host_bytes, device_local: false },
        ];
        let mapped = TypeFlags::HOST_VISIBLE.with(TypeFlags::HOST_COHERENT).with(TypeFlags::HOST_CACHED);
        let types = vec![
            MemoryType { heap: 0, flags: TypeFlags::DEVICE_LOCAL },
            MemoryType { heap: 1, flags: mapped },
        ];
        MemoryModel::new(kind, heaps, types, ImportTypes::Bits(0b10))
    }

    /// The same memory under a driver that grants these types to host pointers.
    #[must_use]
    pub fn importing(self, imports: ImportTypes) -> MemoryModel {
        MemoryModel { imports, ..self }
    }

    /// Its heaps.
    pub fn heaps(&self) -> &[Heap] {
        &self.heaps
    }

    /// Its memory types.
    pub fn types(&self) -> &[MemoryType] {
        &self.types
    }

    /// Which types it grants to host pointers.
    pub fn imports(&self) -> ImportTypes {
        self.imports
    }

    /// Whether the device works in the host's DRAM, whatever its heaps and types are called: then a copy between them
    /// is a copy in one memory, and nothing crosses a bus.
    pub fn shares_host_memory(&self) -> bool {
        self.shared
    }

    /// The properties of a type; none for one that is not listed.
    pub fn flags(&self, index: u32) -> TypeFlags {
        self.types.get(index as usize).map_or(TypeFlags::default(), |ty| ty.flags)
    }

    /// The heap that a type is charged to; `None` for a type or heap that is not listed.
    pub fn heap_of(&self, index: u32) -> Option<u32> {
        let heap = self.types.get(index as usize)?.heap;
        ((heap as usize) < self.heaps.len()).then_some(heap)
    }

    /// The types among `bits` that suit a placement, best first. Where the device has memory of its own, its fastest
    /// place is that memory or none: spilling to the other side of the bus is the caller's decision.
    pub fn candidates(&self, placement: Placement, bits: u32) -> Vec<u32> {
        let mut ranked = self.ranked(bits, |flags| self.score(flags, placement));
        if self.shared && placement != Placement::Device {
            // Parameters would fill it, and every program that draws needs some of it.
            ranked.sort_by_key(|index| self.is_window(*index));
        }
        ranked
    }

    /// Whether the heap of a type is a small part of what the device can hold: the window of 256 MiB that AMD's driver
    /// for Windows lists in addition to the host's memory.
    fn is_window(&self, index: u32) -> bool {
        let heap = self.heap_of(index).and_then(|heap| self.heaps.get(heap as usize));
        heap.is_some_and(|heap| heap.bytes < self.capacity() / WINDOW)
    }

    /// The types among `bits` for an import, best first: always mappable, cached and coherent before others. What a
    /// driver grants is a permission and no advice, so its order counts only among equals.
    pub fn import_candidates(&self, bits: u32) -> Vec<u32> {
        self.ranked(bits, |flags| {
            let visible = flags.has(TypeFlags::HOST_VISIBLE);
            visible.then(|| {
                points(flags, TypeFlags::HOST_CACHED, 16) + points(flags, TypeFlags::HOST_COHERENT, 8)
            })
        })
    }

    /// The type that imports get, as far as the driver told; `None` where it imports nothing.
    pub fn import_type(&self) -> Option<u32> {
        let bits = match self.imports {
            ImportTypes::None => return None,
            ImportTypes::Unknown => u32::MAX,
            ImportTypes::Bits(bits) => bits,
        };
        self.import_candidates(bits).first().copied()
    }

    /// The heap that imports are charged to.
    pub fn import_heap(&self) -> Option<u32> {
        self.import_type().and_then(|index| self.heap_of(index))
    }

    /// Why no host memory is imported, where none is.
    pub fn import_refusal(&self) -> Option<Refusal> {
        match self.imports {
            ImportTypes::None => Some(Refusal::NotSupported),
            ImportTypes::Bits(bits) if self.import_type().is_none() => Some(Refusal::NoImportType { bits }),
            _ => None,
        }
    }

    /// The best type for a placement; `None` where nothing suits.
    pub fn best(&self, placement: Placement) -> Option<u32> {
        self.candidates(placement, u32::MAX).first().copied()
    }

    /// Whether what the host maps for `placement` is read past its caches.
    pub fn reads_past_caches(&self, placement: Placement) -> bool {
        self.best(placement).is_some_and(|index| self.flags(index).is_write_combined())
    }

    /// The heaps that memory of a placement may be taken from, the best first, each once.
    pub fn heaps_for(&self, placement: Placement) -> Vec<u32> {
        let mut heaps = Vec::new();
        for heap in self.candidates(placement, u32::MAX).into_iter().filter_map(|index| self.heap_of(index)) {
            if !heaps.contains(&heap) {
                heaps.push(heap);
            }
        }
        heaps
    }

    /// Bytes that the device can hold: on shared memory all heaps that buffers can be in, else the largest for
    /// [`Placement::Device`].
    pub fn capacity(&self) -> u64 {
        let held = |index: &usize| {
            let index = u32::try_from(*index).unwrap_or(u32::MAX);
            match self.shared {
                true => self.types.iter().any(|ty| ty.heap == index && ty.flags.is_usable()),
                false => self.heaps_for(Placement::Device).contains(&index),
            }
        };
        let held = self.heaps.iter().enumerate().filter(|(index, _)| held(index)).map(|(_, heap)| heap.bytes);
        // A mapped window of a card's memory is a heap of its own and no more memory.
        if self.shared { held.fold(0, u64::saturating_add) } else { held.max().unwrap_or(0) }
    }

    fn ranked(&self, bits: u32, score: impl Fn(TypeFlags) -> Option<u32>) -> Vec<u32> {
        let allowed = (0u32..).zip(&self.types).filter(|(index, ty)| {
            let listed = (ty.heap as usize) < self.heaps.len();
            *index < u32::BITS && bits & (1 << index) != 0 && listed && ty.flags.is_usable()
        });
        let mut scored: Vec<(u32, u32)> =
            allowed.filter_map(|(index, ty)| Some((score(ty.flags)?, index))).collect();
        // Drivers list better types first where the properties are equal.
        scored.sort_by_key(|(score, index)| (std::cmp::Reverse(*score), *index));
        scored.into_iter().map(|(_, index)| index).collect()
    }

    fn score(&self, flags: TypeFlags, placement: Placement) -> Option<u32> {
        let visible = flags.has(TypeFlags::HOST_VISIBLE);
        let local = flags.has(TypeFlags::DEVICE_LOCAL);
        let cached = |value| points(flags, TypeFlags::HOST_CACHED, value);
        let coherent = |value| points(flags, TypeFlags::HOST_COHERENT, value);
        // On a bus the host's memory is the place for the host; in one memory, what the device is near to.
        let near = if local == self.shared { 4 } else { 0 };
        match placement {
            Placement::Device if visible && flags.has(TypeFlags::HOST_CACHED) && self.shared && local => {
                Some(100 + coherent(8) + near)
            }
            // Mapped write-combined memory is a trap for whoever reads it.
            Placement::Device if local => Some(50 + if visible { 0 } else { 8 }),
            Placement::Device => self.shared.then(|| cached(2) + coherent(1)),
            Placement::Upload => visible.then(|| coherent(8) + near + cached(2)),
            Placement::Readback | Placement::Shared => visible.then(|| cached(16) + coherent(8) + near),
        }
    }
}

fn points(flags: TypeFlags, flag: TypeFlags, points: u32) -> u32 {
    if flags.has(flag) { points } else { 0 }
}

/// What one buffer, one kernel argument and one import may measure, from limits that do not fit together: minima in
/// checked arithmetic, as drivers report 2^63 - 1 as well as 128 MiB.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sizes {
    /// Most bytes of one buffer or allocation.
    pub buffer: u64,
    /// Most bytes of one kernel argument.
    pub argument: u64,
}

impl Sizes {
    /// From `maxMemoryAllocationSize`, `maxBufferSize` and `maxStorageBufferRange`; 0 where the driver does not say.
    pub fn new(max_allocation: u64, max_buffer: u64, max_range: u64) -> Sizes {
        // Sums of an offset and a size stay below 2^63.
        const MOST: u64 = i64::MAX as u64 / 2;
        let said = |bytes: u64| if bytes == 0 { MOST } else { bytes.min(MOST) };
        let buffer = said(max_allocation).min(said(max_buffer));
        Sizes { buffer, argument: said(max_range).min(buffer) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIB: u64 = 1 << 30;

    fn model(
        kind: DeviceKind,
        heaps: &[(u64, bool)],
        types: &[(u32, u32)],
        imports: ImportTypes,
    ) -> MemoryModel {
        let heaps = heaps.iter().map(|&(bytes, device_local)| Heap { bytes, device_local }).collect();
        let types = types.iter().map(|&(heap, flags)| MemoryType { heap, flags: TypeFlags(flags) }).collect();
        MemoryModel::new(kind, heaps, types, imports)
    }

    /// The list of an APU: a third without and two thirds with the local flag, one cached type, duplicates and types
    /// that need features.
    fn apu() -> MemoryModel {
        let types = [
            (1, 1),
            (1, 1),
            (0, 6),
            (1, 7),
            (1, 7),
            (0, 14),
            (0, 14),
            (1, 193),
            (0, 198),
            (1, 199),
            (0, 206),
        ];
        model(DeviceKind::Integrated, &[(5 * GIB, false), (10 * GIB, true)], &types, ImportTypes::Bits(0x20))
    }

    /// A card with a small mapped window and types without any flag.
    fn card() -> MemoryModel {
        let types = [(1, 0), (0, 1), (1, 6), (1, 14), (2, 7)];
        let heaps = [(8 * GIB, true), (23 * GIB, false), (246 << 20, true)];
        model(DeviceKind::Discrete, &heaps, &types, ImportTypes::Bits(0xc))
    }

    #[test]
    fn an_integrated_device_shares_memory_whatever_its_types_are_called() {
        assert!(apu().shares_host_memory());
        assert!(!card().shares_host_memory());
        let one = [(GIB, true)];
        for kind in [DeviceKind::Virtual, DeviceKind::Other] {
            assert!(model(kind, &one, &[(0, 15)], ImportTypes::None).shares_host_memory());
            assert!(
                !model(kind, &[(1, true), (1, false)], &[(0, 15)], ImportTypes::None).shares_host_memory()
            );
            assert!(!model(kind, &[], &[], ImportTypes::None).shares_host_memory());
        }
        // A card whose heaps are all local is still across a bus.
        assert!(!model(DeviceKind::Discrete, &one, &[(0, 15)], ImportTypes::None).shares_host_memory());
    }

    #[test]
    fn an_apu_has_a_type_for_each_use() {
        let apu = apu();
        assert_eq!(apu.candidates(Placement::Device, !0), [0, 1, 3, 4, 5, 6, 2]);
        assert_eq!(apu.candidates(Placement::Upload, !0)[0], 3);
        for placement in [Placement::Readback, Placement::Shared] {
            assert_eq!(apu.candidates(placement, !0)[..2], [5, 6]);
        }
        assert_eq!((apu.import_type(), apu.import_heap()), (Some(5), Some(0)));
        assert_eq!(apu.heaps_for(Placement::Device), [1, 0]);
        assert_eq!(apu.capacity(), 15 * GIB);
        assert!(apu.reads_past_caches(Placement::Upload) && !apu.reads_past_caches(Placement::Shared));
        assert!(apu.flags(3).is_write_combined() && !apu.flags(0).is_write_combined());
    }

    #[test]
    fn a_small_window_is_the_last_place_for_what_the_host_writes() {
        let types = [(0, 1), (1, 6), (2, 7), (1, 14)];
        let windows = |window| {
            let heaps = [(768 << 20, true), (7 * GIB, false), (window, true)];
            model(DeviceKind::Integrated, &heaps, &types, ImportTypes::Bits(0b1010))
        };
        assert_eq!(windows(256 << 20).candidates(Placement::Upload, !0), [3, 1, 2]);
        assert_eq!(windows(256 << 20).candidates(Placement::Device, !0)[..2], [0, 2]);
        // A large one is memory like all other.
        assert_eq!(windows(64 * GIB).candidates(Placement::Upload, !0)[0], 2);
    }

    #[test]
    fn a_cards_buffers_stay_on_it() {
        let card = card();
        assert_eq!(card.candidates(Placement::Device, !0), [1, 4]);
        assert_eq!(card.candidates(Placement::Shared, !0)[0], 3);
        assert_eq!(card.candidates(Placement::Upload, !0)[0], 3);
        // Imports are host memory, and charged to it.
        assert_eq!((card.import_type(), card.import_heap()), (Some(3), Some(1)));
        assert_eq!(card.capacity(), 8 * GIB);
    }

    #[test]
    fn bits_without_a_type_are_a_refusal() {
        let types = [(0, 1), (0, 7), (0, 1), (0, 7), (0, 193), (0, 199)];
        let heap = [(61 * GIB, true)];
        let apu = |imports| model(DeviceKind::Integrated, &heap, &types, imports);
        assert_eq!(apu(ImportTypes::Bits(0)).import_refusal(), Some(Refusal::NoImportType { bits: 0 }));
        assert_eq!(apu(ImportTypes::Bits(1)).import_refusal(), Some(Refusal::NoImportType { bits: 1 }));
        assert_eq!(apu(ImportTypes::None).import_refusal(), Some(Refusal::NotSupported));
        assert_eq!(apu(ImportTypes::Bits(2)).import_refusal(), None);
        // Nothing is cached: what the host maps there is slow to read.
        assert!(apu(ImportTypes::None).reads_past_caches(Placement::Readback));
    }

    #[test]
    fn a_device_buffer_is_mapped_where_that_costs_nothing() {
        let intel =
            model(DeviceKind::Integrated, &[(GIB, true)], &[(0, 1), (0, 7), (0, 15)], ImportTypes::Bits(7));
        assert_eq!(intel.candidates(Placement::Device, !0)[0], 2);
        assert_eq!(intel.import_type(), Some(2));
        let pool = MemoryModel::one_pool(DeviceKind::Cpu, GIB);
        assert_eq!(pool.candidates(Placement::Device, !0), [0]);
        assert_eq!(pool.import_heap(), Some(0));
    }

    #[test]
    fn coherent_beats_near_and_cached_beats_both() {
        let arm = model(DeviceKind::Integrated, &[(GIB, true)], &[(0, 11), (0, 7)], ImportTypes::None);
        assert_eq!(arm.candidates(Placement::Shared, !0), [0, 1]);
        assert_eq!(arm.candidates(Placement::Upload, !0), [1, 0]);
        assert_eq!(arm.best(Placement::Device), Some(0));
    }

    #[test]
    fn broken_lists_choose_nothing() {
        let odd = model(
            DeviceKind::Integrated,
            &[(GIB, true)],
            &[(7, 15), (0, 32), (0, 16)],
            ImportTypes::Bits(!0),
        );
        assert_eq!(odd.candidates(Placement::Shared, !0), [0u32; 0]);
        assert_eq!((odd.import_type(), odd.heap_of(0), odd.heap_of(9)), (None, None, None));
        let many = vec![(0, 15); 40];
        let many = model(DeviceKind::Integrated, &[(GIB, true)], &many, ImportTypes::Unknown);
        assert_eq!(many.candidates(Placement::Device, !0).len(), 32);
        let huge = model(
            DeviceKind::Integrated,
            &[(u64::MAX, true), (u64::MAX, false)],
            &[(0, 15), (1, 14)],
            ImportTypes::None,
        );
        assert_eq!(huge.capacity(), u64::MAX);
    }

    #[test]
    fn sizes_are_the_least_of_what_is_said() {
        let sizes = Sizes::new(i64::MAX as u64, 0, 4_294_967_295);
        assert!(sizes.buffer < 1 << 62 && sizes.argument == 4_294_967_295);
        assert_eq!(Sizes::new(1 << 31, 1 << 40, 1 << 27), Sizes { buffer: 1 << 31, argument: 1 << 27 });
        assert_eq!(Sizes::new(1 << 20, 0, 1 << 27).argument, 1 << 20);
        assert!(Sizes::new(0, 0, 0).buffer.checked_add(Sizes::new(0, 0, 0).argument).is_some());
    }
}
