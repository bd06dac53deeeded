//! How many processors a device has: what runs work-groups apart from one another.

use ash::vk;

/// Compute units (AMD), multiprocessors (NVIDIA) or shader cores (Arm) of `physical`, whose extensions `listed` are; `None` where
/// its driver does not tell.
///
/// # Safety
/// The handle is of this instance, and the device speaks Vulkan 1.1.
pub(super) unsafe fn processors(
    instance: &ash::Instance,
    physical: vk::PhysicalDevice,
    listed: &[vk::ExtensionProperties],
) -> Option<u32> {
    let has = |name| listed.iter().any(|extension| extension.extension_name_as_c_str() == Ok(name));
    let mut amd = vk::PhysicalDeviceShaderCorePropertiesAMD::default();
    let mut amd2 = vk::PhysicalDeviceShaderCoreProperties2AMD::default();
    let mut nv = vk::PhysicalDeviceShaderSMBuiltinsPropertiesNV::default();
    let mut arm = vk::PhysicalDeviceShaderCoreBuiltinsPropertiesARM::default();
    let mut chain = vk::PhysicalDeviceProperties2::default();
    if has(ash::amd::shader_core_properties::NAME) {
        chain = chain.push_next(&mut amd);
    }
    if has(ash::amd::shader_core_properties2::NAME) {
        chain = chain.push_next(&mut amd2);
    }
    if has(ash::nv::shader_sm_builtins::NAME) {
        chain = chain.push_next(&mut nv);
    }
    if has(ash::arm::shader_core_builtins::NAME) {
        chain = chain.push_next(&mut arm);
    }
    // SAFETY: as the caller promises; every structure lives until the call returns and belongs to an extension that the
    // device has.
    unsafe { instance.get_physical_device_properties2(physical, &mut chain) };
    count(&amd, &amd2, &nv, &arm)
}

/// The number that the structures tell, which are zero where the device lacks them.
fn count(
    amd: &vk::PhysicalDeviceShaderCorePropertiesAMD<'_>,
    amd2: &vk::PhysicalDeviceShaderCoreProperties2AMD<'_>,
    nv: &vk::PhysicalDeviceShaderSMBuiltinsPropertiesNV<'_>,
    arm: &vk::PhysicalDeviceShaderCoreBuiltinsPropertiesARM<'_>,
) -> Option<u32> {
    let built = amd
        .shader_engine_count
        .saturating_mul(amd.shader_arrays_per_engine_count)
        .saturating_mul(amd.compute_units_per_shader_array);
    // Some of what was built is switched off in most products.
    [amd2.active_compute_unit_count, built, nv.shader_sm_count, arm.shader_core_count]
        .into_iter()
        .find(|count| *count > 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn active_units_count_before_those_that_were_built() {
        let (mut amd, mut amd2, mut nv, arm) = Default::default();
        assert_eq!(count(&amd, &amd2, &nv, &arm), None);
        nv.shader_sm_count = 132;
        assert_eq!(count(&amd, &amd2, &nv, &arm), Some(132));
        (amd.shader_engine_count, amd.shader_arrays_per_engine_count) = (1, 2);
        amd.compute_units_per_shader_array = 8;
        assert_eq!(count(&amd, &amd2, &nv, &arm), Some(16));
        amd2.active_compute_unit_count = 12;
        assert_eq!(count(&amd, &amd2, &nv, &arm), Some(12));
    }
}
