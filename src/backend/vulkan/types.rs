//! Which memory type a buffer gets.

use ash::vk;
use ash::vk::MemoryPropertyFlags as Flags;

use crate::backend::{DeviceKind, Placement};

/// Every buffer can be all of these, so that any range of it can be any argument.
pub(super) const BUFFER_USAGE: vk::BufferUsageFlags = vk::BufferUsageFlags::from_raw(
    vk::BufferUsageFlags::STORAGE_BUFFER.as_raw()
        | vk::BufferUsageFlags::UNIFORM_BUFFER.as_raw()
        | vk::BufferUsageFlags::UNIFORM_TEXEL_BUFFER.as_raw()
        | vk::BufferUsageFlags::STORAGE_TEXEL_BUFFER.as_raw()
        | vk::BufferUsageFlags::TRANSFER_SRC.as_raw()
        | vk::BufferUsageFlags::TRANSFER_DST.as_raw(),
);

/// Types that need features we leave off, or that cannot hold a buffer's bytes.
const EXCLUDED: Flags = Flags::from_raw(
    Flags::LAZILY_ALLOCATED.as_raw()
        | Flags::PROTECTED.as_raw()
        | Flags::DEVICE_COHERENT_AMD.as_raw()
        | Flags::DEVICE_UNCACHED_AMD.as_raw()
        | Flags::RDMA_CAPABLE_NV.as_raw(),
);

/// Whether memory of these flags can be used at all.
pub(super) fn usable(flags: Flags) -> bool {
    !flags.intersects(EXCLUDED)
}

/// The memory types among `bits` that suit, best first. On a discrete device the fastest place is the
/// device's own memory or an error: spilling to the other side of the bus is the caller's decision.
pub(super) fn candidates(
    types: &[vk::MemoryType],
    bits: u32,
    placement: Placement,
    kind: DeviceKind,
    unified: bool,
) -> Vec<u32> {
    let allowed =
        (0u32..).zip(types).filter(|(index, ty)| bits & (1 << index) != 0 && usable(ty.property_flags));
    let mut scored: Vec<(u32, u32)> = allowed
        .filter_map(|(index, ty)| Some((score(ty.property_flags, placement, kind, unified)?, index)))
        .collect();
    // Drivers list better types first where the flags are equal.
    scored.sort_by_key(|(score, index)| (std::cmp::Reverse(*score), *index));
    scored.into_iter().map(|(_, index)| index).collect()
}

/// The memory types for an import, best first: cached and coherent, always mappable.
pub(super) fn import_candidates(types: &[vk::MemoryType], bits: u32) -> Vec<u32> {
    candidates(types, bits, Placement::Shared, DeviceKind::Other, false)
}

fn score(flags: Flags, placement: Placement, kind: DeviceKind, unified: bool) -> Option<u32> {
    let has = |flag: Flags, points: u32| if flags.contains(flag) { points } else { 0 };
    let visible = flags.contains(Flags::HOST_VISIBLE);
    let local = flags.contains(Flags::DEVICE_LOCAL);
    // On a bus the host's memory is the place for the host; on one memory, what the device is near to.
    let near = if (local && unified) || (!local && !unified) { 4 } else { 0 };
    match placement {
        Placement::Device => {
            let mapped = visible && flags.contains(Flags::HOST_CACHED);
            if mapped && ((unified && local) || kind == DeviceKind::Cpu) {
                Some(100 + has(Flags::HOST_COHERENT, 8) + near)
            } else if local {
                // Mapped write-combined memory is a trap for whoever reads it.
                Some(50 + if visible { 0 } else { 8 })
            } else {
                (kind != DeviceKind::Discrete)
                    .then(|| has(Flags::HOST_CACHED, 2) + has(Flags::HOST_COHERENT, 1))
            }
        }
        Placement::Upload => {
            visible.then(|| has(Flags::HOST_COHERENT, 8) + near + has(Flags::HOST_CACHED, 2))
        }
        Placement::Readback | Placement::Shared => {
            visible.then(|| has(Flags::HOST_CACHED, 16) + has(Flags::HOST_COHERENT, 8) + near)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOCAL: Flags = Flags::DEVICE_LOCAL;
    const VISIBLE: Flags = Flags::HOST_VISIBLE;
    const COHERENT: Flags = Flags::HOST_COHERENT;
    const CACHED: Flags = Flags::HOST_CACHED;

    fn types(flags: &[Flags]) -> Vec<vk::MemoryType> {
        flags.iter().map(|flags| vk::MemoryType { property_flags: *flags, heap_index: 0 }).collect()
    }

    fn radv_apu() -> Vec<vk::MemoryType> {
        types(&[
            LOCAL,
            VISIBLE | COHERENT,
            LOCAL | VISIBLE | COHERENT,
            VISIBLE | COHERENT | CACHED,
            LOCAL | Flags::DEVICE_COHERENT_AMD | Flags::DEVICE_UNCACHED_AMD,
        ])
    }

    /// With resizable BAR and the types without flags that NVIDIA lists.
    fn nvidia() -> Vec<vk::MemoryType> {
        types(&[
            Flags::empty(),
            LOCAL,
            VISIBLE | COHERENT,
            VISIBLE | COHERENT | CACHED,
            LOCAL | VISIBLE | COHERENT,
        ])
    }

    #[test]
    fn the_host_reads_cached_memory_wherever_there_is_some() {
        for (types, kind) in [(radv_apu(), DeviceKind::Integrated), (nvidia(), DeviceKind::Discrete)] {
            for placement in [Placement::Readback, Placement::Shared] {
                assert_eq!(candidates(&types, !0, placement, kind, false)[0], 3);
            }
        }
    }

    #[test]
    fn a_device_buffer_stays_on_a_discrete_device() {
        assert_eq!(candidates(&nvidia(), !0, Placement::Device, DeviceKind::Discrete, false), [1, 4]);
    }

    #[test]
    fn an_apu_spills_to_the_memory_beside_its_carve_out() {
        let all = candidates(&radv_apu(), !0, Placement::Device, DeviceKind::Integrated, false);
        assert_eq!(all, [0, 2, 3, 1]);
    }

    #[test]
    fn a_device_buffer_is_mapped_where_that_costs_nothing() {
        let intel = types(&[LOCAL, LOCAL | VISIBLE | COHERENT, LOCAL | VISIBLE | COHERENT | CACHED]);
        assert_eq!(candidates(&intel, !0, Placement::Device, DeviceKind::Integrated, true)[0], 2);
        let software = types(&[LOCAL | VISIBLE | COHERENT | CACHED]);
        assert_eq!(candidates(&software, !0, Placement::Device, DeviceKind::Cpu, true), [0]);
    }

    #[test]
    fn coherent_beats_near_and_cached_beats_both() {
        let arm = types(&[LOCAL | VISIBLE | CACHED, LOCAL | VISIBLE | COHERENT]);
        assert_eq!(candidates(&arm, !0, Placement::Shared, DeviceKind::Integrated, true), [0, 1]);
        assert_eq!(candidates(&arm, !0, Placement::Upload, DeviceKind::Integrated, true), [1, 0]);
    }

    #[test]
    fn an_import_never_takes_a_type_that_cannot_be_mapped() {
        assert_eq!(import_candidates(&nvidia(), 0b01101), [3, 2]);
        assert_eq!(import_candidates(&nvidia(), 0b00011), [0u32; 0]);
        assert_eq!(import_candidates(&radv_apu(), 0b01000), [3]);
    }

    #[test]
    fn excluded_types_are_never_chosen() {
        for placement in [Placement::Device, Placement::Upload, Placement::Readback, Placement::Shared] {
            assert!(!candidates(&radv_apu(), !0, placement, DeviceKind::Integrated, false).contains(&4));
        }
    }
}
