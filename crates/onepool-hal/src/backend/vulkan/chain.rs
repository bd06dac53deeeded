//! Features in chains of Vulkan's structures: read, turned on, added.
//!
//! A feature is a field of a structure of its own, and of one of the structures that collect those of a version of the
//! core. A chain holds one of the two, never both.

use std::collections::BTreeSet;
use std::ptr;

use ash::vk::{self, BaseInStructure, BaseOutStructure, TaggedStructure};

use super::features::Features;

/// Fields of [`Features`] that a chain already has structures for.
pub(super) type Served = BTreeSet<&'static str>;

macro_rules! table {
    (
        $($collected:ident { $($field:ident: $kind:ident { $($bit:ident),* $(,)? })* })*
        ; alone { $($lone:ident: $lone_kind:ident { $($lone_bit:ident),* $(,)? })* }
    ) => {
        impl Features {
            /// Turns off what is off in `other`.
            pub(super) fn intersect(&mut self, other: &Features) {
                $($($(self.$field.$bit &= other.$field.$bit;)*)*)*
                $($(self.$lone.$lone_bit &= other.$lone.$lone_bit;)*)*
                let (own, theirs) = (&mut self.base, &other.base);
                own.shader_float64 &= theirs.shader_float64;
                own.shader_int64 &= theirs.shader_int64;
                own.shader_int16 &= theirs.shader_int16;
                own.shader_storage_image_extended_formats &= theirs.shader_storage_image_extended_formats;
                own.shader_storage_image_read_without_format &= theirs.shader_storage_image_read_without_format;
                own.shader_storage_image_write_without_format &= theirs.shader_storage_image_write_without_format;
                own.robust_buffer_access = theirs.robust_buffer_access;
            }

            /// Turns on in `other` what is on here.
            pub(super) fn turn_on_all(&self, other: &mut Features) {
                $($($(other.$field.$bit |= self.$field.$bit;)*)*)*
                $($(other.$lone.$lone_bit |= self.$lone.$lone_bit;)*)*
                self.turn_on_base(&mut other.base);
            }

            /// Names of the features that are on here and off in `other`.
            pub(super) fn beyond(&self, other: &Features) -> Vec<&'static str> {
                let mut names = Vec::new();
                let mut see = |own: vk::Bool32, their: vk::Bool32, name: &'static str| {
                    if own == vk::TRUE && their != vk::TRUE {
                        names.push(name);
                    }
                };
                $($($(see(self.$field.$bit, other.$field.$bit, stringify!($bit));)*)*)*
                $($(see(self.$lone.$lone_bit, other.$lone.$lone_bit, stringify!($lone_bit));)*)*
                see(self.base.shader_float64, other.base.shader_float64, "shader_float64");
                see(self.base.shader_int64, other.base.shader_int64, "shader_int64");
                see(self.base.shader_int16, other.base.shader_int16, "shader_int16");
                names
            }

            /// Turns on what the structures of a chain have on.
            ///
            /// # Safety
            /// `at` is null or the first structure of a chain whose types are as they say.
            pub(super) unsafe fn read_chain(&mut self, mut at: *const BaseInStructure<'_>) {
                // SAFETY: as the caller promises; each is read as the structure that its type names.
                while let Some(head) = unsafe { at.as_ref() } {
                    match head.s_type {
                        $(<vk::$collected as TaggedStructure>::STRUCTURE_TYPE => {
                            // SAFETY: as above.
                            let found = unsafe { &*at.cast::<vk::$collected<'_>>() };
                            $($(self.$field.$bit |= found.$bit;)*)*
                        })*
                        $($(<vk::$kind as TaggedStructure>::STRUCTURE_TYPE => {
                            // SAFETY: as above.
                            let found = unsafe { &*at.cast::<vk::$kind<'_>>() };
                            $(self.$field.$bit |= found.$bit;)*
                        })*)*
                        $(<vk::$lone_kind as TaggedStructure>::STRUCTURE_TYPE => {
                            // SAFETY: as above.
                            let found = unsafe { &*at.cast::<vk::$lone_kind<'_>>() };
                            $(self.$lone.$lone_bit |= found.$lone_bit;)*
                        })*
                        vk::StructureType::PHYSICAL_DEVICE_FEATURES_2 => {
                            // SAFETY: as above.
                            self.read_base(unsafe { &(*at.cast::<vk::PhysicalDeviceFeatures2<'_>>()).features });
                        }
                        _ => {}
                    }
                    at = head.p_next;
                }
            }

            /// Turns on, in the structures of a chain, what is on here; says which fields have a structure there.
            ///
            /// # Safety
            /// As [`Features::read_chain`], and the structures may be written.
            pub(super) unsafe fn turn_on_in(&self, mut at: *mut BaseOutStructure<'_>) -> Served {
                let mut served = Served::new();
                while !at.is_null() {
                    // SAFETY: as the caller promises; each is written as the structure that its type names.
                    let (kind, next) = unsafe { ((*at).s_type, (*at).p_next) };
                    match kind {
                        $(<vk::$collected as TaggedStructure>::STRUCTURE_TYPE => {
                            // SAFETY: as above.
                            let found = unsafe { &mut *at.cast::<vk::$collected<'_>>() };
                            $($(found.$bit |= self.$field.$bit;)* served.insert(stringify!($field));)*
                        })*
                        $($(<vk::$kind as TaggedStructure>::STRUCTURE_TYPE => {
                            // SAFETY: as above.
                            let found = unsafe { &mut *at.cast::<vk::$kind<'_>>() };
                            $(found.$bit |= self.$field.$bit;)*
                            served.insert(stringify!($field));
                        })*)*
                        $(<vk::$lone_kind as TaggedStructure>::STRUCTURE_TYPE => {
                            // SAFETY: as above.
                            let found = unsafe { &mut *at.cast::<vk::$lone_kind<'_>>() };
                            $(found.$lone_bit |= self.$lone.$lone_bit;)*
                            served.insert(stringify!($lone));
                        })*
                        vk::StructureType::PHYSICAL_DEVICE_FEATURES_2 => {
                            // SAFETY: as above.
                            let found = unsafe { &mut (*at.cast::<vk::PhysicalDeviceFeatures2<'_>>()).features };
                            self.turn_on_base(found);
                            served.insert(BASE);
                        }
                        _ => {}
                    }
                    at = next;
                }
                served
            }

            /// Puts the structures with something on, for fields that are not `served`, before the chain of `info`.
            pub(super) fn push_onto<'a>(&'a mut self, info: &mut vk::DeviceCreateInfo<'a>, served: &Served) {
                $($(
                    let wanted = [$(self.$field.$bit),*].contains(&vk::TRUE);
                    if wanted && !served.contains(stringify!($field)) {
                        // Other bits of the structure were not asked about.
                        self.$field = vk::$kind { $($bit: self.$field.$bit,)* ..Default::default() };
                        *info = info.push_next(&mut self.$field);
                    }
                )*)*
                $(
                    let wanted = [$(self.$lone.$lone_bit),*].contains(&vk::TRUE);
                    if wanted && !served.contains(stringify!($lone)) {
                        self.$lone = vk::$lone_kind { $($lone_bit: self.$lone.$lone_bit,)* ..Default::default() };
                        *info = info.push_next(&mut self.$lone);
                    }
                )*
            }
        }
    };
}

table! {
    PhysicalDeviceVulkan11Features {
        storage_16: PhysicalDevice16BitStorageFeatures { storage_buffer16_bit_access, storage_push_constant16 }
        pointers: PhysicalDeviceVariablePointersFeatures { variable_pointers_storage_buffer, variable_pointers }
    }
    PhysicalDeviceVulkan12Features {
        storage_8: PhysicalDevice8BitStorageFeatures { storage_buffer8_bit_access, storage_push_constant8 }
        float16_int8: PhysicalDeviceShaderFloat16Int8Features { shader_float16, shader_int8 }
        timeline: PhysicalDeviceTimelineSemaphoreFeatures { timeline_semaphore }
        memory_model: PhysicalDeviceVulkanMemoryModelFeatures {
            vulkan_memory_model, vulkan_memory_model_device_scope
        }
        atomic_int64: PhysicalDeviceShaderAtomicInt64Features {
            shader_buffer_int64_atomics, shader_shared_int64_atomics
        }
        subgroup_types: PhysicalDeviceShaderSubgroupExtendedTypesFeatures { shader_subgroup_extended_types }
    }
    PhysicalDeviceVulkan13Features {
        synchronization2: PhysicalDeviceSynchronization2Features { synchronization2 }
        dot_product: PhysicalDeviceShaderIntegerDotProductFeatures { shader_integer_dot_product }
        maintenance4: PhysicalDeviceMaintenance4Features { maintenance4 }
        subgroup_size: PhysicalDeviceSubgroupSizeControlFeatures {
            subgroup_size_control, compute_full_subgroups
        }
    }
    ; alone {
        matrix: PhysicalDeviceCooperativeMatrixFeaturesKHR { cooperative_matrix }
        workgroup_layout: PhysicalDeviceWorkgroupMemoryExplicitLayoutFeaturesKHR {
            workgroup_memory_explicit_layout
        }
        atomic_float: PhysicalDeviceShaderAtomicFloatFeaturesEXT { shader_buffer_float32_atomic_add }
        atomic_float2: PhysicalDeviceShaderAtomicFloat2FeaturesEXT { shader_buffer_float32_atomic_min_max }
        robustness2: PhysicalDeviceRobustness2FeaturesEXT { robust_buffer_access2 }
        pipeline_robustness: PhysicalDevicePipelineRobustnessFeaturesEXT { pipeline_robustness }
        executables: PhysicalDevicePipelineExecutablePropertiesFeaturesKHR { pipeline_executable_info }
    }
}

/// The name under which the features of Vulkan 1.0 are served.
pub(super) const BASE: &str = "base";

impl Features {
    /// Turns on what features of Vulkan 1.0 have on.
    pub(super) fn read_base(&mut self, found: &vk::PhysicalDeviceFeatures) {
        let base = &mut self.base;
        base.shader_float64 |= found.shader_float64;
        base.shader_int64 |= found.shader_int64;
        base.shader_int16 |= found.shader_int16;
        base.shader_storage_image_extended_formats |= found.shader_storage_image_extended_formats;
        base.shader_storage_image_read_without_format |= found.shader_storage_image_read_without_format;
        base.shader_storage_image_write_without_format |= found.shader_storage_image_write_without_format;
        base.robust_buffer_access |= found.robust_buffer_access;
    }

    /// Turns on, in features of Vulkan 1.0, what is on here.
    pub(super) fn turn_on_base(&self, into: &mut vk::PhysicalDeviceFeatures) {
        let base = &self.base;
        into.shader_float64 |= base.shader_float64;
        into.shader_int64 |= base.shader_int64;
        into.shader_int16 |= base.shader_int16;
        into.shader_storage_image_extended_formats |= base.shader_storage_image_extended_formats;
        into.shader_storage_image_read_without_format |= base.shader_storage_image_read_without_format;
        into.shader_storage_image_write_without_format |= base.shader_storage_image_write_without_format;
        into.robust_buffer_access |= base.robust_buffer_access;
    }
}

/// Takes a chain apart: each structure then stands alone.
///
/// # Safety
/// As [`Features::turn_on_in`].
pub(super) unsafe fn take_apart(mut at: *mut BaseOutStructure<'_>) {
    while !at.is_null() {
        // SAFETY: as the caller promises.
        at = unsafe { ptr::replace(&raw mut (*at).p_next, ptr::null_mut()) };
    }
}
