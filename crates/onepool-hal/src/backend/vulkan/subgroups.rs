//! What kernels ask of their subgroups, so that they have the lanes that they were planned for.

use ash::vk;

use super::features::Features;
use onepool_spirv::Requires;

/// What a device lets its kernels ask for.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Control {
    /// The fewest and the most lanes, where they may ask.
    range: Option<[u32; 2]>,
    may_be_full: bool,
    /// Subgroups of one work-group at most, where a kernel asks for their lanes.
    most: u32,
}

/// What a kernel asks for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Asked {
    pub(super) lanes: Option<u32>,
    /// That every lane of every subgroup has an invocation.
    pub(super) full: bool,
}

impl Control {
    pub(super) fn new(
        features: &Features,
        sizes: &vk::PhysicalDeviceSubgroupSizeControlProperties<'_>,
    ) -> Self {
        Control {
            range: features.subgroup_range(sizes),
            may_be_full: features.subgroup_size.compute_full_subgroups == vk::TRUE,
            most: sizes.max_compute_workgroup_subgroups,
        }
    }

    /// What a kernel asks for that was planned for subgroups of `lanes` and has work-groups of `size`; nothing where the
    /// device cannot be asked.
    pub(super) fn ask(&self, lanes: u32, size: [u32; 3]) -> Asked {
        let items = size.iter().try_fold(1u32, |items, axis| items.checked_mul(*axis));
        let fits = items.is_some_and(|items| items <= lanes.saturating_mul(self.most));
        let offers = self.range.is_some_and(|[least, most]| (least..=most).contains(&lanes));
        if !(fits && offers && lanes.is_power_of_two()) {
            return Asked::default();
        }
        Asked { lanes: Some(lanes), full: self.may_be_full && size[0].is_multiple_of(lanes) }
    }
}

/// Whether a kernel that needs this computes something else where subgroups have other lanes than the device says: one with
/// cooperative matrices, whose work-group is a number of subgroups.
pub(super) fn relies_on_lanes(requires: Requires) -> bool {
    requires.contains(Requires::COOPERATIVE_MATRIX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn control(range: [u32; 2], full: bool, most: u32) -> Control {
        let mut features = Features::default();
        features.subgroup_size.subgroup_size_control = vk::TRUE;
        features.subgroup_size.compute_full_subgroups = vk::Bool32::from(full);
        let sizes = vk::PhysicalDeviceSubgroupSizeControlProperties::default()
            .min_subgroup_size(range[0])
            .max_subgroup_size(range[1])
            .max_compute_workgroup_subgroups(most)
            .required_subgroup_size_stages(vk::ShaderStageFlags::COMPUTE);
        Control::new(&features, &sizes)
    }

    #[test]
    fn lanes_are_asked_for_where_the_device_offers_them() {
        let asked = |lanes, full| Asked { lanes: Some(lanes), full };
        let none = Asked::default();
        let (radv, fixed) = (control([32, 64], true, u32::MAX), control([32, 32], true, 32));
        assert_eq!(radv.ask(64, [256, 1, 1]), asked(64, true));
        assert_eq!(radv.ask(32, [128, 1, 1]), asked(32, true));
        assert_eq!(fixed.ask(32, [1024, 1, 1]), asked(32, true));
        // A row that is no whole number of subgroups, and a driver without the feature.
        assert_eq!(radv.ask(64, [96, 2, 1]), asked(64, false));
        assert_eq!(control([32, 64], false, 32).ask(64, [128, 1, 1]), asked(64, false));
        // Beyond the range, no size that a driver takes, and too many subgroups.
        assert_eq!(radv.ask(16, [128, 1, 1]), none);
        assert_eq!(radv.ask(48, [96, 1, 1]), none);
        assert_eq!(control([8, 32], true, 8).ask(8, [128, 1, 1]), none);
        assert_eq!(radv.ask(64, [u32::MAX, 2, 1]), none);
    }

    #[test]
    fn nothing_is_asked_of_a_device_that_was_made_without_the_feature_or_has_it_for_other_stages() {
        let sizes = vk::PhysicalDeviceSubgroupSizeControlProperties::default()
            .min_subgroup_size(32)
            .max_subgroup_size(64)
            .max_compute_workgroup_subgroups(32);
        let compute = sizes.required_subgroup_size_stages(vk::ShaderStageFlags::COMPUTE);
        let mut features = Features::default();
        assert_eq!(Control::new(&features, &compute).ask(64, [128, 1, 1]), Asked::default());
        features.subgroup_size.subgroup_size_control = vk::TRUE;
        assert_eq!(Control::new(&features, &sizes).ask(64, [128, 1, 1]), Asked::default());
        assert_eq!(Control::new(&features, &compute).ask(64, [128, 1, 1]).lanes, Some(64));
    }
}
