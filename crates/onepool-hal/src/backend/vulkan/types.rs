//! Usages of buffers, and the driver's lists of heaps and types as a [`MemoryModel`].

use ash::vk;

use onepool_core::memory::model::{DeviceKind, Heap, ImportTypes, MemoryModel, MemoryType, TypeFlags};

/// Every buffer can be all of these, so that any range of it can be any argument.
pub(super) const BUFFER_USAGE: vk::BufferUsageFlags = vk::BufferUsageFlags::from_raw(
    vk::BufferUsageFlags::STORAGE_BUFFER.as_raw()
        | vk::BufferUsageFlags::UNIFORM_BUFFER.as_raw()
        | vk::BufferUsageFlags::UNIFORM_TEXEL_BUFFER.as_raw()
        | vk::BufferUsageFlags::STORAGE_TEXEL_BUFFER.as_raw()
        | vk::BufferUsageFlags::TRANSFER_SRC.as_raw()
        | vk::BufferUsageFlags::TRANSFER_DST.as_raw(),
);

/// What the driver lists, as the decisions ask for it.
pub(super) fn model(
    memory: &vk::PhysicalDeviceMemoryProperties,
    kind: DeviceKind,
    imports: ImportTypes,
) -> MemoryModel {
    let heaps = memory.memory_heaps_as_slice().iter().map(|heap| Heap {
        bytes: heap.size,
        device_local: heap.flags.contains(vk::MemoryHeapFlags::DEVICE_LOCAL),
    });
    let types = memory
        .memory_types_as_slice()
        .iter()
        .map(|ty| MemoryType { heap: ty.heap_index, flags: TypeFlags(ty.property_flags.as_raw()) });
    MemoryModel::new(kind, heaps.collect(), types.collect(), imports)
}

#[cfg(test)]
mod tests {
    use super::*;
    use onepool_core::memory::model::Placement;

    #[test]
    fn the_models_flags_have_vulkans_values() {
        for (ours, theirs) in [
            (TypeFlags::DEVICE_LOCAL, vk::MemoryPropertyFlags::DEVICE_LOCAL),
            (TypeFlags::HOST_VISIBLE, vk::MemoryPropertyFlags::HOST_VISIBLE),
            (TypeFlags::HOST_COHERENT, vk::MemoryPropertyFlags::HOST_COHERENT),
            (TypeFlags::HOST_CACHED, vk::MemoryPropertyFlags::HOST_CACHED),
        ] {
            assert_eq!(ours.0, theirs.as_raw());
        }
        for other in [
            vk::MemoryPropertyFlags::LAZILY_ALLOCATED,
            vk::MemoryPropertyFlags::PROTECTED,
            vk::MemoryPropertyFlags::DEVICE_COHERENT_AMD,
            vk::MemoryPropertyFlags::DEVICE_UNCACHED_AMD,
            vk::MemoryPropertyFlags::RDMA_CAPABLE_NV,
        ] {
            let flags = TypeFlags(other.as_raw());
            assert!(!flags.is_usable() && flags.names().next() != Some("unknown"), "{other:?}");
        }
    }

    #[test]
    fn heaps_and_types_keep_their_places() {
        let mut memory = vk::PhysicalDeviceMemoryProperties { memory_heap_count: 2, ..Default::default() };
        memory.memory_heaps[0] = vk::MemoryHeap { size: 10, flags: vk::MemoryHeapFlags::empty() };
        memory.memory_heaps[1] = vk::MemoryHeap { size: 20, flags: vk::MemoryHeapFlags::DEVICE_LOCAL };
        memory.memory_type_count = 2;
        memory.memory_types[0].heap_index = 1;
        memory.memory_types[0].property_flags = vk::MemoryPropertyFlags::DEVICE_LOCAL;
        memory.memory_types[1].property_flags =
            vk::MemoryPropertyFlags::from_raw(TypeFlags::HOST_VISIBLE.with(TypeFlags::HOST_COHERENT).0);
        let model = model(&memory, DeviceKind::Integrated, ImportTypes::Bits(0b10));
        assert_eq!(
            (model.capacity(), model.best(Placement::Device), model.import_heap()),
            (30, Some(0), Some(0))
        );
    }
}
