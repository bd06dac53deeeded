//! What a physical device is and can do.

use std::fmt::Write;

use ash::vk;

use super::enabled::Enabled;
use super::features::{Extensions, Features};
use super::instance::{Instance, render_node_hint};
use super::loss::is_told_early;
use super::processors::processors;
use super::same::{Origin, preferred};
use super::subgroups::Control;
use super::types::{BUFFER_USAGE, model};
use super::{NAME, error, wine};
use crate::backend::choice::rank;
use crate::backend::{DeviceError, DeviceInfo, DeviceKind, Limits};
use onepool_core::memory::import::rules::{DeviceLimits, DriverKind, ImportRules};
use onepool_core::memory::model::{ImportTypes, Sizes};
use onepool_spirv::Requires;

/// Queues that are opened; more find no use here.
const MAX_QUEUES: u32 = 4;
/// `LP_MAX_TGSI_LOOP_ITERATIONS` of Mesa's `lp_bld_limits.h`, which all loops of a shader share.
const LLVMPIPE_ITERATIONS: u32 = 65_535;

/// A physical device with what opening it needs.
pub(super) struct Probe {
    pub(super) physical: vk::PhysicalDevice,
    pub(super) info: DeviceInfo,
    pub(super) extensions: Extensions,
    pub(super) features: Features,
    pub(super) family: u32,
    pub(super) queues: u32,
    pub(super) timestamp_bits: u32,
    pub(super) cache: CacheKey,
    pub(super) subgroups: Control,
    pub(super) origin: Origin,
    /// Whether a loss may be told of before the work is over.
    pub(super) loses_early: bool,
}

/// What a pipeline cache is good for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct CacheKey {
    pub(super) vendor: u32,
    pub(super) device: u32,
    pub(super) uuid: [u8; vk::UUID_SIZE],
}

/// Every physical device, best first.
pub(super) fn probe_all(instance: &Instance) -> Result<Vec<Probe>, DeviceError> {
    let mut probes = instance
        .physical_devices()?
        .into_iter()
        // SAFETY: just enumerated from the instance.
        .map(|physical| unsafe { probe(instance, physical, None) })
        .collect::<Result<Vec<_>, _>>()?;
    let origins: Vec<_> = probes.iter().map(|probe| (&probe.origin, probe.info.unusable.is_none())).collect();
    let same = preferred(&origins);
    let mut order: Vec<usize> = (0..probes.len()).collect();
    // Stable: devices of one rank stay in the loader's order.
    order.sort_by_key(|at| {
        let info = &probes[*at].info;
        (info.unusable.is_some(), rank(info), same[*at].is_some())
    });
    let hardware = probes.iter().any(|probe| probe.info.kind != DeviceKind::Cpu);
    let hint = if hardware { None } else { render_node_hint() };
    let place = |wanted: usize| order.iter().position(|at| *at == wanted);
    for (at, probe) in probes.iter_mut().enumerate() {
        probe.info.index = place(at).unwrap_or(at);
        probe.info.same_as = same[at].and_then(place);
        probe.info.advice.extend(hint.clone());
    }
    probes.sort_by_key(|probe| probe.info.index);
    Ok(probes)
}

/// What `physical` is; of one that an application has made a device of, what that device has, and its queue's family.
///
/// # Safety
/// The handle is of this instance.
pub(super) unsafe fn probe(
    instance: &Instance,
    physical: vk::PhysicalDevice,
    made: Option<(&Enabled, u32)>,
) -> Result<Probe, DeviceError> {
    let raw = instance.raw();
    // SAFETY: as the caller promises.
    let (base, memory, families) = unsafe {
        (
            raw.get_physical_device_properties(physical),
            raw.get_physical_device_memory_properties(physical),
            raw.get_physical_device_queue_family_properties(physical),
        )
    };
    let version = base.api_version.min(instance.version());
    // Only a device of 1.1 may be asked for structures that extend others.
    if version < vk::API_VERSION_1_1 {
        let reason = format!("it speaks Vulkan {}; 1.1 is needed", version_text(base.api_version));
        return Ok(unusable(physical, &base, &memory, reason));
    }
    // SAFETY: as above.
    let listed = unsafe { raw.enumerate_device_extension_properties(physical) }
        .map_err(|code| error("vkEnumerateDeviceExtensionProperties", code, 0))?;
    let extensions = Extensions::new(version, &listed, instance.layer_version());
    let mut features = Features::query(&raw, physical, &extensions);
    let mut lacking = None;
    let extensions = match made {
        Some((enabled, _)) => {
            lacking = enabled.lacks(&extensions, &features);
            features.intersect(&enabled.features);
            extensions.enabled(|name| enabled.has(name))
        }
        None => extensions,
    };
    let more = Properties::query(&raw, physical, &extensions, &listed);
    let kind = kind_of(base.device_type);
    let family = compute_family(&families, made.map(|(_, family)| family));
    let limits = limits(&base.limits, &more);
    let import = import_rules(&raw, physical, &extensions, &more, &limits);
    let software = kind == DeviceKind::Cpu;
    let mut has = features.requires(&more.subgroup, &more.controls, version);
    if features.has_matrix_f16(&instance.entry, &raw, physical) {
        has = has.union(Requires::MATRIX_F16);
    }
    let info = DeviceInfo {
        api: NAME,
        name: text(base.device_name_as_c_str()),
        kind,
        driver: driver_text(&base, &more),
        api_version: version_text(base.api_version),
        uuid: hex(&[&more.id.driver_uuid, &more.id.device_uuid, &base.pipeline_cache_uuid]),
        index: 0,
        same_as: None,
        unusable: unusable_reason(family.is_some(), &memory),
        // Which types it grants is told once the device is open.
        memory: model(&memory, kind, import.map_or(ImportTypes::None, |_| ImportTypes::Unknown)),
        native: false,
        in_order: false,
        splits_grids: true,
        orders_groups: true,
        features: has,
        emulated: Requires::NONE,
        subgroup: more.subgroup.subgroup_size.max(1),
        subgroup_range: features
            .subgroup_range(&more.subgroup_sizes)
            .unwrap_or([more.subgroup.subgroup_size.max(1); 2]),
        timestamp_ns: match family {
            Some(family) if family.timestamp_bits > 0 => f64::from(base.limits.timestamp_period),
            _ => 0.0,
        },
        // SAFETY: as the caller promises, and it speaks 1.1.
        processors: unsafe { processors(&raw, physical, &listed) },
        most_iterations: (more.driver.driver_id == vk::DriverId::MESA_LLVMPIPE)
            .then_some(LLVMPIPE_ITERATIONS),
        // Buffers of an application's are rarely made for it.
        prefers_texels: made.is_none() && software && more.driver.driver_id == vk::DriverId::MESA_LLVMPIPE,
        images: None,
        advice: advice(kind, import.is_some()).into_iter().chain(lacking).collect(),
        limits,
        import,
    };
    let family = family.unwrap_or_default();
    Ok(Probe {
        physical,
        info,
        extensions,
        subgroups: Control::new(&features, &more.subgroup_sizes),
        features,
        family: family.index,
        queues: family.queues.min(MAX_QUEUES),
        timestamp_bits: family.timestamp_bits,
        cache: CacheKey { vendor: base.vendor_id, device: base.device_id, uuid: base.pipeline_cache_uuid },
        origin: more.origin(),
        loses_early: is_told_early(more.driver.driver_id),
    })
}

/// Property structures beyond the basic one; those that the device lacks stay zero.
#[derive(Default)]
struct Properties {
    id: vk::PhysicalDeviceIDProperties<'static>,
    subgroup: vk::PhysicalDeviceSubgroupProperties<'static>,
    subgroup_sizes: vk::PhysicalDeviceSubgroupSizeControlProperties<'static>,
    maintenance3: vk::PhysicalDeviceMaintenance3Properties<'static>,
    maintenance4: vk::PhysicalDeviceMaintenance4Properties<'static>,
    driver: vk::PhysicalDeviceDriverProperties<'static>,
    controls: vk::PhysicalDeviceFloatControlsProperties<'static>,
    layers: vk::PhysicalDeviceLayeredDriverPropertiesMSFT<'static>,
    pci: Option<vk::PhysicalDevicePCIBusInfoPropertiesEXT<'static>>,
    host: vk::PhysicalDeviceExternalMemoryHostPropertiesEXT<'static>,
}

impl Properties {
    fn query(
        instance: &ash::Instance,
        physical: vk::PhysicalDevice,
        extensions: &Extensions,
        listed: &[vk::ExtensionProperties],
    ) -> Self {
        let lists = |name| listed.iter().any(|extension| extension.extension_name_as_c_str() == Ok(name));
        let mut found = Properties {
            pci: lists(ash::ext::pci_bus_info::NAME).then(Default::default),
            ..Properties::default()
        };
        let mut chain = vk::PhysicalDeviceProperties2::default()
            .push_next(&mut found.id)
            .push_next(&mut found.subgroup)
            .push_next(&mut found.maintenance3);
        if extensions.has(ash::khr::maintenance4::NAME) {
            chain = chain.push_next(&mut found.maintenance4);
        }
        if extensions.has(ash::khr::driver_properties::NAME) {
            chain = chain.push_next(&mut found.driver);
        }
        if extensions.has(ash::khr::shader_float_controls::NAME) {
            chain = chain.push_next(&mut found.controls);
        }
        if extensions.has(ash::ext::subgroup_size_control::NAME) {
            chain = chain.push_next(&mut found.subgroup_sizes);
        }
        if extensions.has(ash::ext::external_memory_host::NAME) {
            chain = chain.push_next(&mut found.host);
        }
        if lists(ash::msft::layered_driver::NAME) {
            chain = chain.push_next(&mut found.layers);
        }
        if let Some(pci) = &mut found.pci {
            chain = chain.push_next(pci);
        }
        // SAFETY: the device speaks 1.1; every structure lives until the call returns and belongs to an
        // extension that the device has.
        unsafe { instance.get_physical_device_properties2(physical, &mut chain) };
        found
    }

    fn origin(&self) -> Origin {
        Origin::new(&self.id, &self.driver, &self.layers, self.pci.as_ref())
    }
}

fn limits(base: &vk::PhysicalDeviceLimits, more: &Properties) -> Limits {
    let sizes = Sizes::new(
        more.maintenance3.max_memory_allocation_size,
        more.maintenance4.max_buffer_size,
        u64::from(base.max_storage_buffer_range),
    );
    let arguments = [
        base.max_per_stage_descriptor_storage_buffers,
        base.max_descriptor_set_storage_buffers,
        base.max_per_stage_resources,
        more.maintenance3.max_per_set_descriptors,
    ];
    Limits {
        max_argument_bytes: sizes.argument,
        max_buffer_bytes: sizes.buffer,
        argument_alignment: base.min_storage_buffer_offset_alignment.max(4),
        texel_alignment: base.min_texel_buffer_offset_alignment.max(1),
        max_texels: u64::from(base.max_texel_buffer_elements),
        max_groups: base.max_compute_work_group_count,
        max_group_items: base.max_compute_work_group_invocations,
        max_group_size: base.max_compute_work_group_size,
        max_local_bytes: base.max_compute_shared_memory_size,
        max_params_bytes: base.max_push_constants_size,
        max_arguments: arguments.into_iter().min().unwrap_or(0),
        non_coherent_atom: base.non_coherent_atom_size.max(1),
    }
}

#[derive(Clone, Copy, Default)]
struct Family {
    index: u32,
    queues: u32,
    timestamp_bits: u32,
}

/// A family for compute alone where there is one, else one that has compute; with a clock if possible. Where one is
/// given, that one, if it has compute.
fn compute_family(families: &[vk::QueueFamilyProperties], given: Option<u32>) -> Option<Family> {
    let candidates = (0u32..)
        .zip(families)
        .filter(|(index, _)| given.is_none_or(|given| given == *index))
        .filter(|(_, family)| family.queue_flags.contains(vk::QueueFlags::COMPUTE) && family.queue_count > 0);
    let (index, family) = candidates.min_by_key(|(_, family)| {
        (family.timestamp_valid_bits == 0, family.queue_flags.contains(vk::QueueFlags::GRAPHICS))
    })?;
    Some(Family { index, queues: family.queue_count, timestamp_bits: family.timestamp_valid_bits })
}

/// The rules for imports, where the device says that buffers of ours can be imported.
fn import_rules(
    instance: &ash::Instance,
    physical: vk::PhysicalDevice,
    extensions: &Extensions,
    more: &Properties,
    limits: &Limits,
) -> Option<ImportRules> {
    if !extensions.has(ash::ext::external_memory_host::NAME) {
        return None;
    }
    let buffer = vk::PhysicalDeviceExternalBufferInfo::default()
        .usage(BUFFER_USAGE)
        .handle_type(vk::ExternalMemoryHandleTypeFlags::HOST_ALLOCATION_EXT);
    let mut found = vk::ExternalBufferProperties::default();
    // SAFETY: the handle is of this instance and the device speaks 1.1.
    unsafe { instance.get_physical_device_external_buffer_properties(physical, &buffer, &mut found) };
    let importable = found
        .external_memory_properties
        .external_memory_features
        .contains(vk::ExternalMemoryFeatureFlags::IMPORTABLE)
        || wine::is_said();
    importable.then(|| {
        ImportRules::for_driver(DriverKind::of_vulkan(more.driver.driver_id.as_raw().cast_unsigned()))
            .with_limits(DeviceLimits {
                import_alignment: more.host.min_imported_host_pointer_alignment,
                storage_offset_alignment: limits.argument_alignment,
                max_allocation: limits.max_buffer_bytes,
                max_range: limits.max_argument_bytes,
            })
    })
}

fn kind_of(kind: vk::PhysicalDeviceType) -> DeviceKind {
    match kind {
        vk::PhysicalDeviceType::INTEGRATED_GPU => DeviceKind::Integrated,
        vk::PhysicalDeviceType::DISCRETE_GPU => DeviceKind::Discrete,
        vk::PhysicalDeviceType::VIRTUAL_GPU => DeviceKind::Virtual,
        vk::PhysicalDeviceType::CPU => DeviceKind::Cpu,
        _ => DeviceKind::Other,
    }
}

fn advice(kind: DeviceKind, imports: bool) -> Vec<String> {
    let mut advice = Vec::new();
    if kind == DeviceKind::Cpu {
        advice.push("this is a software renderer on the CPU; the cpu backend is usually faster".to_owned());
    }
    if !imports {
        advice.push(
            "it takes no host memory for buffers (VK_EXT_external_memory_host), so application memory is copied; a newer driver may"
                .to_owned(),
        );
    }
    advice.extend(wine::advice());
    advice
}

/// Why nothing can run on a device that speaks the API.
fn unusable_reason(has_compute: bool, memory: &vk::PhysicalDeviceMemoryProperties) -> Option<String> {
    if !has_compute {
        return Some("it has no queue that runs compute kernels".to_owned());
    }
    // Mesa's drivers offer such a device where they are told to compile for one that is not there.
    let has_memory = memory.memory_heaps_as_slice().iter().any(|heap| heap.size > 0);
    (!has_memory).then(|| {
        "its driver has no memory for it, so nothing can run there; kernels can be compiled for it (onepool compile-report)"
            .to_owned()
    })
}

fn unusable(
    physical: vk::PhysicalDevice,
    base: &vk::PhysicalDeviceProperties,
    memory: &vk::PhysicalDeviceMemoryProperties,
    reason: String,
) -> Probe {
    let kind = kind_of(base.device_type);
    let more = Properties::default();
    let info = DeviceInfo {
        api: NAME,
        name: text(base.device_name_as_c_str()),
        kind,
        driver: driver_text(base, &more),
        api_version: version_text(base.api_version),
        uuid: hex(&[&base.pipeline_cache_uuid]),
        index: 0,
        same_as: None,
        unusable: Some(reason),
        memory: model(memory, kind, ImportTypes::None),
        native: false,
        in_order: false,
        splits_grids: false,
        orders_groups: true,
        limits: limits(&base.limits, &more),
        features: Requires::NONE,
        emulated: Requires::NONE,
        import: None,
        subgroup: 1,
        subgroup_range: [1, 1],
        timestamp_ns: 0.0,
        processors: None,
        prefers_texels: false,
        most_iterations: None,
        images: None,
        advice: vec!["update the driver".to_owned()],
    };
    Probe {
        physical,
        info,
        extensions: Extensions::new(vk::API_VERSION_1_0, &[], None),
        features: Features::default(),
        subgroups: Control::default(),
        family: 0,
        queues: 0,
        timestamp_bits: 0,
        cache: CacheKey { vendor: base.vendor_id, device: base.device_id, uuid: base.pipeline_cache_uuid },
        origin: more.origin(),
        loses_early: false,
    }
}

fn driver_text(base: &vk::PhysicalDeviceProperties, more: &Properties) -> String {
    let name = text(more.driver.driver_name_as_c_str());
    let version = text(more.driver.driver_info_as_c_str());
    match (name.is_empty(), version.is_empty()) {
        (true, _) => format!("vendor {:#x}, version {:#x}", base.vendor_id, base.driver_version),
        (false, true) => format!("{name} {:#x}", base.driver_version),
        (false, false) => format!("{name} {version}"),
    }
}

fn text(name: Result<&std::ffi::CStr, std::ffi::FromBytesUntilNulError>) -> String {
    name.map(|name| name.to_string_lossy().into_owned()).unwrap_or_default()
}

fn version_text(version: u32) -> String {
    let (major, minor) = (vk::api_version_major(version), vk::api_version_minor(version));
    format!("{major}.{minor}.{}", vk::api_version_patch(version))
}

fn hex(parts: &[&[u8]]) -> String {
    parts.iter().flat_map(|part| part.iter()).fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn family(flags: vk::QueueFlags, bits: u32) -> vk::QueueFamilyProperties {
        vk::QueueFamilyProperties {
            queue_flags: flags,
            queue_count: 2,
            timestamp_valid_bits: bits,
            ..Default::default()
        }
    }

    #[test]
    fn a_compute_family_without_graphics_is_preferred_if_it_has_a_clock() {
        let both = vk::QueueFlags::GRAPHICS | vk::QueueFlags::COMPUTE;
        let (copy, compute) = (vk::QueueFlags::TRANSFER, vk::QueueFlags::COMPUTE);
        let chosen = |families: &[_]| compute_family(families, None).map(|family| family.index);
        assert_eq!(chosen(&[family(both, 64), family(copy, 64), family(compute, 64)]), Some(2));
        assert_eq!(chosen(&[family(both, 36), family(compute, 0)]), Some(0));
        assert_eq!(chosen(&[family(copy, 64)]), None);
    }
}
