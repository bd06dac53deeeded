//! Which of several devices is taken where none is named.

use super::{DeviceInfo, DeviceKind};

/// Processors of an integrated device up to which a discrete one comes before it: 2 compute units of a desktop's processor
/// save copies and lose more than that to any card.
const FEW: u32 = 4;

/// The place of a device among all: lower ones are taken first.
#[cfg(any(feature = "opencl", feature = "vulkan", test))]
pub(crate) fn rank(info: &DeviceInfo) -> u8 {
    match info.kind {
        DeviceKind::Integrated if is_small(info) => 2,
        DeviceKind::Integrated => 0,
        DeviceKind::Discrete => 1,
        DeviceKind::Virtual => 3,
        DeviceKind::Cpu => 4,
        DeviceKind::Other => 5,
    }
}

/// Whether it is an integrated device that comes after discrete ones. One whose driver does not tell its processors is:
/// next to cards those are Intel's, most of which are as small.
pub(crate) fn is_small(info: &DeviceInfo) -> bool {
    info.kind == DeviceKind::Integrated && info.processors.is_none_or(|count| count <= FEW)
}

/// A device that [`is_small`] in words, with its processors.
pub(crate) fn small_words(info: &DeviceInfo) -> String {
    match info.processors {
        Some(count) => format!("{}, an integrated one of {count} processors", info.name),
        None => format!("{}, an integrated one whose driver does not tell its processors", info.name),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::Driver;
    use crate::backend::sim::{DriverProfile, SimConfig, SimDriver};

    /// A recorded driver's device, with so many processors.
    fn device(profile: &str, processors: Option<u32>) -> DeviceInfo {
        let profile = DriverProfile::built_in(profile).unwrap().unwrap();
        let listed = SimDriver::with(vec![SimConfig::from(profile)]).devices().unwrap();
        DeviceInfo { processors, ..listed.into_iter().next().unwrap() }
    }

    #[test]
    fn an_integrated_device_comes_before_a_card_where_it_has_more_than_few_processors() {
        let cards = [
            device("nvidia-rtx3070-linux-small-bar", Some(46)),
            device("radv-rx580-small-bar", Some(36)),
            // Intel's cards do not tell either.
            device("anv-arc-a770", None),
        ];
        for (profile, processors, first) in [
            ("radv-phoenix-780m", Some(12), true),
            ("radv-strix-halo-default", Some(40), true),
            ("radv-rembrandt-680m", Some(5), true),
            ("radv-rembrandt-680m", Some(4), false),
            // What desktop processors have.
            ("radv-rembrandt-680m", Some(2), false),
            ("amd-windows-apu-1g", Some(2), false),
            ("anv-whiskeylake-uhd620", None, false),
            ("intel-windows-uhd750", None, false),
            ("dozen-windows-uma", None, false),
            ("panvk-v10", Some(4), false),
        ] {
            let integrated = device(profile, processors);
            for card in &cards {
                let (name, other) = (&integrated.name, &card.name);
                assert_eq!(rank(&integrated) < rank(card), first, "{name} and {other}");
            }
            // Alone it is still a GPU.
            assert!(rank(&integrated) < rank(&device("lavapipe-26", None)));
        }
    }
}
