//! Features and extensions of a physical device: what there is, and what of it is turned on.

use std::ffi::CStr;
use std::ptr;

use ash::vk;

use crate::backend::{DeviceError, Robustness};
use onepool_spirv::Requires;

/// Extensions that are used, with the version whose core has them, if one does.
const EXTENSIONS: &[(&CStr, Option<u32>)] = &[
    (ash::khr::timeline_semaphore::NAME, Some(vk::API_VERSION_1_2)),
    (ash::khr::synchronization2::NAME, Some(vk::API_VERSION_1_3)),
    (ash::khr::_8bit_storage::NAME, Some(vk::API_VERSION_1_2)),
    (ash::khr::shader_float16_int8::NAME, Some(vk::API_VERSION_1_2)),
    (ash::khr::vulkan_memory_model::NAME, Some(vk::API_VERSION_1_2)),
    (ash::khr::shader_atomic_int64::NAME, Some(vk::API_VERSION_1_2)),
    (ash::khr::shader_subgroup_extended_types::NAME, Some(vk::API_VERSION_1_2)),
    (ash::khr::shader_float_controls::NAME, Some(vk::API_VERSION_1_2)),
    (ash::khr::driver_properties::NAME, Some(vk::API_VERSION_1_2)),
    (ash::khr::shader_integer_dot_product::NAME, Some(vk::API_VERSION_1_3)),
    (ash::khr::maintenance4::NAME, Some(vk::API_VERSION_1_3)),
    (ash::ext::subgroup_size_control::NAME, Some(vk::API_VERSION_1_3)),
    (ash::khr::cooperative_matrix::NAME, None),
    (ash::khr::workgroup_memory_explicit_layout::NAME, None),
    (ash::ext::shader_atomic_float::NAME, None),
    (ash::ext::shader_atomic_float2::NAME, None),
    (ash::ext::robustness2::NAME, None),
    (ash::ext::pipeline_robustness::NAME, None),
    (ash::ext::external_memory_host::NAME, None),
    (ash::ext::memory_budget::NAME, None),
    (ash::khr::external_memory_fd::NAME, None),
    (ash::ext::external_memory_dma_buf::NAME, None),
    (ash::ext::queue_family_foreign::NAME, None),
    (ash::khr::image_format_list::NAME, Some(vk::API_VERSION_1_2)),
    (ash::ext::image_drm_format_modifier::NAME, None),
    (ash::khr::portability_subset::NAME, None),
    (ash::khr::pipeline_executable_properties::NAME, None),
    (ash::khr::global_priority::NAME, None),
    (ash::ext::global_priority::NAME, None),
];

/// What a validation layer calls an error where it is older than the extension.
const YOUNGER_THAN_LAYERS: &[(&CStr, u32)] =
    &[(ash::khr::cooperative_matrix::NAME, vk::make_api_version(0, 1, 3, 255))];

/// Which of the extensions a device has, in its core or as an extension.
#[derive(Clone, Debug)]
pub(super) struct Extensions {
    version: u32,
    offered: Vec<&'static CStr>,
}

impl Extensions {
    /// From what the device of core version `version` lists; `layer` is the version of the specification that the
    /// validation layer was written to, where there is one.
    pub(super) fn new(version: u32, listed: &[vk::ExtensionProperties], layer: Option<u32>) -> Self {
        let is_listed =
            |name: &CStr| listed.iter().any(|extension| extension.extension_name_as_c_str() == Ok(name));
        let is_known = |name: &CStr| {
            let since =
                YOUNGER_THAN_LAYERS.iter().find(|(young, _)| *young == name).map_or(0, |(_, since)| *since);
            layer.is_none_or(|layer| layer >= since)
        };
        let names = EXTENSIONS.iter().map(|(name, _)| *name);
        let offered = names.filter(|name| is_listed(name) && is_known(name)).collect();
        Extensions { version, offered }
    }

    /// Whether the device can do what the extension `name` describes.
    pub(super) fn has(&self, name: &CStr) -> bool {
        self.is_core(name) || self.offered.contains(&name)
    }

    /// Whether the functions of `name` come from the core, without their suffix.
    pub(super) fn is_core(&self, name: &CStr) -> bool {
        let in_core = |core: &Option<u32>| core.is_some_and(|core| self.version >= core);
        EXTENSIONS.iter().any(|(known, core)| *known == name && in_core(core))
    }

    /// Of these, those that `is_enabled` names.
    pub(super) fn enabled(mut self, is_enabled: impl Fn(&CStr) -> bool) -> Self {
        self.offered.retain(|name| is_enabled(name));
        self
    }

    /// The names that an application is asked to enable: priorities of queues and reports of compilers are no use there.
    pub(super) fn to_request(&self) -> impl Iterator<Item = &'static CStr> + '_ {
        let unused = [
            ash::khr::global_priority::NAME,
            ash::ext::global_priority::NAME,
            ash::khr::pipeline_executable_properties::NAME,
            ash::ext::robustness2::NAME,
        ];
        self.to_enable().filter(move |name| !unused.contains(name))
    }

    /// The names to enable on the device: those that its core does not have.
    pub(super) fn to_enable(&self) -> impl Iterator<Item = &'static CStr> + '_ {
        self.offered.iter().copied().filter(|name| !self.is_core(name))
    }
}

/// The feature structures that are asked for and turned on.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Features {
    pub(super) base: vk::PhysicalDeviceFeatures,
    pub(super) storage_16: vk::PhysicalDevice16BitStorageFeatures<'static>,
    pub(super) storage_8: vk::PhysicalDevice8BitStorageFeatures<'static>,
    pub(super) float16_int8: vk::PhysicalDeviceShaderFloat16Int8Features<'static>,
    pub(super) pointers: vk::PhysicalDeviceVariablePointersFeatures<'static>,
    pub(super) timeline: vk::PhysicalDeviceTimelineSemaphoreFeatures<'static>,
    pub(super) synchronization2: vk::PhysicalDeviceSynchronization2Features<'static>,
    pub(super) memory_model: vk::PhysicalDeviceVulkanMemoryModelFeatures<'static>,
    pub(super) atomic_int64: vk::PhysicalDeviceShaderAtomicInt64Features<'static>,
    pub(super) subgroup_types: vk::PhysicalDeviceShaderSubgroupExtendedTypesFeatures<'static>,
    pub(super) dot_product: vk::PhysicalDeviceShaderIntegerDotProductFeatures<'static>,
    pub(super) maintenance4: vk::PhysicalDeviceMaintenance4Features<'static>,
    pub(super) subgroup_size: vk::PhysicalDeviceSubgroupSizeControlFeatures<'static>,
    pub(super) matrix: vk::PhysicalDeviceCooperativeMatrixFeaturesKHR<'static>,
    pub(super) workgroup_layout: vk::PhysicalDeviceWorkgroupMemoryExplicitLayoutFeaturesKHR<'static>,
    pub(super) atomic_float: vk::PhysicalDeviceShaderAtomicFloatFeaturesEXT<'static>,
    pub(super) atomic_float2: vk::PhysicalDeviceShaderAtomicFloat2FeaturesEXT<'static>,
    pub(super) executables: vk::PhysicalDevicePipelineExecutablePropertiesFeaturesKHR<'static>,
    pub(super) robustness2: vk::PhysicalDeviceRobustness2FeaturesEXT<'static>,
    pub(super) pipeline_robustness: vk::PhysicalDevicePipelineRobustnessFeaturesEXT<'static>,
}

impl Features {
    /// What `physical` has.
    pub(super) fn query(
        instance: &ash::Instance,
        physical: vk::PhysicalDevice,
        extensions: &Extensions,
    ) -> Self {
        let mut found = Features::default();
        let mut chain = found.chain(extensions);
        // SAFETY: the handle is of this instance; every structure in the chain lives until the call
        // returns and belongs to an extension that the device has.
        unsafe { instance.get_physical_device_features2(physical, &mut chain) };
        let base = chain.features;
        // Turned on by `guard` where it is asked for.
        found.robustness2.null_descriptor = vk::FALSE;
        found.robustness2.robust_image_access2 = vk::FALSE;
        found.base = vk::PhysicalDeviceFeatures {
            shader_float64: base.shader_float64,
            shader_int64: base.shader_int64,
            shader_int16: base.shader_int16,
            shader_storage_image_extended_formats: base.shader_storage_image_extended_formats,
            shader_storage_image_read_without_format: base.shader_storage_image_read_without_format,
            shader_storage_image_write_without_format: base.shader_storage_image_write_without_format,
            ..Default::default()
        };
        found
    }

    /// The structures as one chain, to query or to enable.
    pub(super) fn chain(&mut self, extensions: &Extensions) -> vk::PhysicalDeviceFeatures2<'_> {
        // A copied structure still points to the neighbour of its original.
        self.storage_16.p_next = ptr::null_mut();
        self.pointers.p_next = ptr::null_mut();
        let mut chain = vk::PhysicalDeviceFeatures2::default()
            .features(self.base)
            .push_next(&mut self.storage_16)
            .push_next(&mut self.pointers);
        macro_rules! push {
            ($($name:expr => $field:ident),* $(,)?) => {
                $(if extensions.has($name) {
                    self.$field.p_next = ptr::null_mut();
                    chain = chain.push_next(&mut self.$field);
                })*
            };
        }
        push! {
            ash::khr::_8bit_storage::NAME => storage_8,
            ash::khr::shader_float16_int8::NAME => float16_int8,
            ash::khr::timeline_semaphore::NAME => timeline,
            ash::khr::synchronization2::NAME => synchronization2,
            ash::khr::vulkan_memory_model::NAME => memory_model,
            ash::khr::shader_atomic_int64::NAME => atomic_int64,
            ash::khr::shader_subgroup_extended_types::NAME => subgroup_types,
            ash::khr::shader_integer_dot_product::NAME => dot_product,
            ash::khr::maintenance4::NAME => maintenance4,
            ash::ext::subgroup_size_control::NAME => subgroup_size,
            ash::khr::cooperative_matrix::NAME => matrix,
            ash::khr::workgroup_memory_explicit_layout::NAME => workgroup_layout,
            ash::ext::shader_atomic_float::NAME => atomic_float,
            ash::ext::shader_atomic_float2::NAME => atomic_float2,
            ash::khr::pipeline_executable_properties::NAME => executables,
            ash::ext::robustness2::NAME => robustness2,
            ash::ext::pipeline_robustness::NAME => pipeline_robustness,
        }
        chain
    }

    /// Turns on what keeps kernels inside their arguments, and says how pipelines of the caller's kernels ask for it, where they
    /// have to.
    pub(super) fn guard(
        &mut self,
        robustness: Robustness,
    ) -> Option<vk::PipelineRobustnessBufferBehaviorEXT> {
        let second = self.robustness2.robust_buffer_access2 == vk::TRUE;
        let by_pipeline = self.pipeline_robustness.pipeline_robustness == vk::TRUE;
        let all = robustness == Robustness::All;
        // Every device has the first form.
        self.base.robust_buffer_access = vk::Bool32::from(all);
        self.robustness2.robust_buffer_access2 = vk::Bool32::from(all && second);
        self.pipeline_robustness.pipeline_robustness =
            vk::Bool32::from(by_pipeline && robustness == Robustness::Callers);
        (by_pipeline && robustness == Robustness::Callers).then_some(match second {
            true => vk::PipelineRobustnessBufferBehaviorEXT::ROBUST_BUFFER_ACCESS_2,
            false => vk::PipelineRobustnessBufferBehaviorEXT::ROBUST_BUFFER_ACCESS,
        })
    }

    /// How pipelines of the caller's kernels ask to be kept inside their arguments, on a device that was made with these
    /// features. `second`: the driver has the second form.
    ///
    /// # Errors
    /// [`DeviceError::Unsupported`] where all kernels are to be kept inside, and the device was made without that.
    pub(super) fn guard_as_made(
        &self,
        robustness: Robustness,
        second: bool,
    ) -> Result<Option<vk::PipelineRobustnessBufferBehaviorEXT>, DeviceError> {
        if robustness == Robustness::All && self.base.robust_buffer_access != vk::TRUE {
            return Err(DeviceError::Unsupported {
                what: "Robustness::All: the application made it without robustBufferAccess".to_owned(),
            });
        }
        let by_pipeline = self.pipeline_robustness.pipeline_robustness == vk::TRUE;
        Ok((by_pipeline && robustness == Robustness::Callers).then_some(match second {
            true => vk::PipelineRobustnessBufferBehaviorEXT::ROBUST_BUFFER_ACCESS_2,
            false => vk::PipelineRobustnessBufferBehaviorEXT::ROBUST_BUFFER_ACCESS,
        }))
    }

    /// Whether timeline semaphores can be used.
    pub(super) fn has_timeline(&self) -> bool {
        self.timeline.timeline_semaphore == vk::TRUE
    }

    /// Whether `vkCmdPipelineBarrier2` can be used.
    pub(super) fn has_synchronization2(&self) -> bool {
        self.synchronization2.synchronization2 == vk::TRUE
    }

    /// Whether the driver tells what kernels became.
    pub(super) fn has_executables(&self) -> bool {
        self.executables.pipeline_executable_info == vk::TRUE
    }

    /// Leaves what is of use for looking at kernels alone turned off.
    pub(super) fn without_executables(mut self) -> Self {
        self.executables.pipeline_executable_info = vk::FALSE;
        self
    }

    /// The fewest and the most lanes that a compute kernel may ask for, where it may.
    pub(super) fn subgroup_range(
        &self,
        sizes: &vk::PhysicalDeviceSubgroupSizeControlProperties<'_>,
    ) -> Option<[u32; 2]> {
        let may_ask = self.subgroup_size.subgroup_size_control == vk::TRUE
            && sizes.required_subgroup_size_stages.contains(vk::ShaderStageFlags::COMPUTE);
        let range = [sizes.min_subgroup_size, sizes.max_subgroup_size];
        (may_ask && range[0] >= 1 && range[0] <= range[1]).then_some(range)
    }

    /// Whether there are cooperative matrices of 16 x 16 x 16, of `float16` with sums of `float32` and of `float16`, by a subgroup.
    pub(super) fn has_matrix_f16(
        &self,
        entry: &ash::Entry,
        instance: &ash::Instance,
        physical: vk::PhysicalDevice,
    ) -> bool {
        if self.matrix.cooperative_matrix != vk::TRUE {
            return false;
        }
        let functions = ash::khr::cooperative_matrix::Instance::new(entry, instance);
        // SAFETY: the handle is of this instance, and the device has the extension, as its feature says.
        let shapes = unsafe { functions.get_physical_device_cooperative_matrix_properties(physical) };
        let shapes = shapes.unwrap_or_default();
        let has = |sums| shapes.iter().any(|shape| is_matrix_f16(shape, sums));
        has(vk::ComponentTypeKHR::FLOAT32) && has(vk::ComponentTypeKHR::FLOAT16)
    }

    /// The features as kernels ask for them.
    pub(super) fn requires(
        &self,
        subgroup: &vk::PhysicalDeviceSubgroupProperties<'_>,
        controls: &vk::PhysicalDeviceFloatControlsProperties<'_>,
        version: u32,
    ) -> Requires {
        let base = &self.base;
        let controls_all = [
            controls.shader_signed_zero_inf_nan_preserve_float32,
            controls.shader_denorm_preserve_float32,
            controls.shader_denorm_flush_to_zero_float32,
            controls.shader_rounding_mode_rte_float32,
            controls.shader_rounding_mode_rtz_float32,
        ];
        let without_format =
            [base.shader_storage_image_read_without_format, base.shader_storage_image_write_without_format];
        let present = [
            // Core since 1.0, without a feature of their own.
            (true, Requires::IMAGE_1D),
            (base.shader_float64 == vk::TRUE, Requires::FLOAT64),
            (base.shader_int64 == vk::TRUE, Requires::INT64),
            (base.shader_int16 == vk::TRUE, Requires::INT16),
            (base.shader_storage_image_extended_formats == vk::TRUE, Requires::IMAGE_FORMATS),
            (without_format == [vk::TRUE; 2], Requires::IMAGE_WITHOUT_FORMAT),
            (self.storage_16.storage_buffer16_bit_access == vk::TRUE, Requires::STORAGE_16),
            (self.storage_16.storage_push_constant16 == vk::TRUE, Requires::PUSH_CONSTANT_16),
            (self.storage_8.storage_buffer8_bit_access == vk::TRUE, Requires::STORAGE_8),
            (self.storage_8.storage_push_constant8 == vk::TRUE, Requires::PUSH_CONSTANT_8),
            (self.float16_int8.shader_float16 == vk::TRUE, Requires::FLOAT16),
            (self.float16_int8.shader_int8 == vk::TRUE, Requires::INT8),
            (self.pointers.variable_pointers == vk::TRUE, Requires::VARIABLE_POINTERS),
            (self.memory_model.vulkan_memory_model == vk::TRUE, Requires::VULKAN_MEMORY_MODEL),
            (self.atomic_int64.shader_buffer_int64_atomics == vk::TRUE, Requires::ATOMIC_INT64),
            (self.atomic_float.shader_buffer_float32_atomic_add == vk::TRUE, Requires::ATOMIC_FLOAT),
            (
                self.atomic_float2.shader_buffer_float32_atomic_min_max == vk::TRUE,
                Requires::ATOMIC_FLOAT_MIN_MAX,
            ),
            (self.dot_product.shader_integer_dot_product == vk::TRUE, Requires::DOT_PRODUCT),
            (self.matrix.cooperative_matrix == vk::TRUE, Requires::COOPERATIVE_MATRIX),
            (self.workgroup_layout.workgroup_memory_explicit_layout == vk::TRUE, Requires::WORKGROUP_LAYOUT),
            (controls_all == [vk::TRUE; 5], Requires::FLOAT_CONTROLS),
            (self.maintenance4.maintenance4 == vk::TRUE, Requires::LOCAL_SIZE_ID),
            (version >= vk::API_VERSION_1_2, Requires::SPIRV_1_4.union(Requires::SPIRV_1_5)),
            (version >= vk::API_VERSION_1_3, Requires::SPIRV_1_6),
        ];
        let mut all = Requires::NONE;
        for (_, feature) in present.into_iter().filter(|(present, _)| *present) {
            all = all.union(feature);
        }
        if subgroup.supported_stages.contains(vk::ShaderStageFlags::COMPUTE) {
            for (flag, feature) in SUBGROUPS {
                if subgroup.supported_operations.contains(*flag) {
                    all = all.union(*feature);
                }
            }
        }
        all
    }
}

fn is_matrix_f16(shape: &vk::CooperativeMatrixPropertiesKHR<'_>, sums: vk::ComponentTypeKHR) -> bool {
    let half = vk::ComponentTypeKHR::FLOAT16;
    (shape.m_size, shape.n_size, shape.k_size) == (16, 16, 16)
        && (shape.a_type, shape.b_type, shape.c_type, shape.result_type) == (half, half, sums, sums)
        && shape.scope == vk::ScopeKHR::SUBGROUP
}

const SUBGROUPS: &[(vk::SubgroupFeatureFlags, Requires)] = &[
    (vk::SubgroupFeatureFlags::BASIC, Requires::SUBGROUP_BASIC),
    (vk::SubgroupFeatureFlags::VOTE, Requires::SUBGROUP_VOTE),
    (vk::SubgroupFeatureFlags::ARITHMETIC, Requires::SUBGROUP_ARITHMETIC),
    (vk::SubgroupFeatureFlags::BALLOT, Requires::SUBGROUP_BALLOT),
    (vk::SubgroupFeatureFlags::SHUFFLE, Requires::SUBGROUP_SHUFFLE),
    (vk::SubgroupFeatureFlags::SHUFFLE_RELATIVE, Requires::SUBGROUP_SHUFFLE_RELATIVE),
    (vk::SubgroupFeatureFlags::CLUSTERED, Requires::SUBGROUP_CLUSTERED),
    (vk::SubgroupFeatureFlags::QUAD, Requires::SUBGROUP_QUAD),
];

#[cfg(test)]
mod tests {
    use super::*;

    fn listed(names: &[&CStr]) -> Vec<vk::ExtensionProperties> {
        names.iter().map(|name| vk::ExtensionProperties::default().extension_name(name).unwrap()).collect()
    }

    #[test]
    fn what_guards_kernels_is_turned_on_where_it_is_asked_for() {
        let yes = vk::TRUE;
        let device = |second: bool, by_pipeline: bool| {
            let mut found = Features::default();
            found.robustness2.robust_buffer_access2 = vk::Bool32::from(second);
            found.pipeline_robustness.pipeline_robustness = vk::Bool32::from(by_pipeline);
            found
        };
        let on = |f: &Features| {
            [
                f.base.robust_buffer_access,
                f.robustness2.robust_buffer_access2,
                f.pipeline_robustness.pipeline_robustness,
            ]
            .map(|feature| feature == yes)
        };
        let (first, second) = (
            vk::PipelineRobustnessBufferBehaviorEXT::ROBUST_BUFFER_ACCESS,
            vk::PipelineRobustnessBufferBehaviorEXT::ROBUST_BUFFER_ACCESS_2,
        );
        for (robustness, has, expected, by_kernel) in [
            (Robustness::All, (true, true), [true, true, false], None),
            (Robustness::All, (false, false), [true, false, false], None),
            (Robustness::Callers, (true, true), [false, false, true], Some(second)),
            (Robustness::Callers, (false, true), [false, false, true], Some(first)),
            (Robustness::Callers, (true, false), [false; 3], None),
            (Robustness::Off, (true, true), [false; 3], None),
        ] {
            let mut features = device(has.0, has.1);
            assert_eq!(features.guard(robustness), by_kernel, "{robustness:?} {has:?}");
            assert_eq!(on(&features), expected, "{robustness:?} {has:?}");
        }
    }

    #[test]
    fn the_shape_of_cooperative_matrices_is_found() {
        let (half, single) = (vk::ComponentTypeKHR::FLOAT16, vk::ComponentTypeKHR::FLOAT32);
        let fits = vk::CooperativeMatrixPropertiesKHR {
            m_size: 16,
            n_size: 16,
            k_size: 16,
            a_type: half,
            b_type: half,
            c_type: single,
            result_type: single,
            scope: vk::ScopeKHR::SUBGROUP,
            ..Default::default()
        };
        assert!(is_matrix_f16(&fits, single) && !is_matrix_f16(&fits, half));
        assert!(!is_matrix_f16(&vk::CooperativeMatrixPropertiesKHR { n_size: 8, ..fits }, single));
        assert!(!is_matrix_f16(&vk::CooperativeMatrixPropertiesKHR { result_type: half, ..fits }, single));
        let wide = vk::CooperativeMatrixPropertiesKHR { scope: vk::ScopeKHR::WORKGROUP, ..fits };
        assert!(!is_matrix_f16(&wide, single));
    }

    #[test]
    fn an_extension_that_the_validation_layer_does_not_know_is_left() {
        let names = listed(&[ash::khr::cooperative_matrix::NAME, ash::ext::external_memory_host::NAME]);
        let under = |layer| Extensions::new(vk::API_VERSION_1_3, &names, layer).to_enable().count();
        let old = vk::make_api_version(0, 1, 3, 239);
        assert_eq!([under(None), under(Some(old)), under(Some(vk::API_VERSION_1_3 | 255))], [2, 1, 2]);
    }

    #[test]
    fn an_extension_is_enabled_only_where_the_core_has_it_not() {
        let names = listed(&[ash::khr::timeline_semaphore::NAME, ash::ext::external_memory_host::NAME]);
        let old = Extensions::new(vk::API_VERSION_1_1, &names, None);
        assert!(
            old.has(ash::khr::timeline_semaphore::NAME) && !old.is_core(ash::khr::timeline_semaphore::NAME)
        );
        assert_eq!(old.to_enable().count(), 2);
        let new = Extensions::new(vk::API_VERSION_1_3, &names, None);
        assert!(new.is_core(ash::khr::timeline_semaphore::NAME) && new.has(ash::khr::synchronization2::NAME));
        assert_eq!(new.to_enable().collect::<Vec<_>>(), [ash::ext::external_memory_host::NAME]);
        assert!(!old.has(ash::khr::synchronization2::NAME));
    }
}
