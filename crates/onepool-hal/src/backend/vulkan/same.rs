//! Which listed devices are one piece of hardware under several drivers, and which driver is preferred.

use ash::vk;

/// What tells hardware and drivers apart. Identifiers that a driver leaves at zero are none.
#[derive(Clone, Debug)]
pub(super) struct Origin {
    /// Domain, bus, device and function on PCI.
    pci: Option<[u32; 4]>,
    /// What Windows calls the adapter, and the node of it.
    luid: Option<([u8; vk::LUID_SIZE], u32)>,
    device: Option<[u8; vk::UUID_SIZE]>,
    driver: (vk::DriverId, [u8; vk::UUID_SIZE]),
    /// Its calls go through another API.
    is_layered: bool,
    is_conformant: bool,
}

impl Origin {
    /// From the properties of a device; `pci` where it has `VK_EXT_pci_bus_info`.
    pub(super) fn new(
        id: &vk::PhysicalDeviceIDProperties<'_>,
        driver: &vk::PhysicalDeviceDriverProperties<'_>,
        layers: &vk::PhysicalDeviceLayeredDriverPropertiesMSFT<'_>,
        pci: Option<&vk::PhysicalDevicePCIBusInfoPropertiesEXT<'_>>,
    ) -> Origin {
        let conformance = driver.conformance_version;
        Origin {
            pci: pci
                .map(|at| [at.pci_domain, at.pci_bus, at.pci_device, at.pci_function])
                .filter(|at| *at != [0; 4]),
            luid: (id.device_luid_valid == vk::TRUE).then_some((id.device_luid, id.device_node_mask)),
            device: Some(id.device_uuid).filter(|uuid| *uuid != [0; vk::UUID_SIZE]),
            driver: (driver.driver_id, id.driver_uuid),
            is_layered: layers.underlying_api != vk::LayeredDriverUnderlyingApiMSFT::NONE
                || driver.driver_id == vk::DriverId::MESA_DOZEN,
            is_conformant: (conformance.major, conformance.minor) != (0, 0),
        }
    }

    fn is_same(&self, other: &Origin) -> bool {
        // It renders on the host's processor, and identifies itself by its version.
        let software = vk::DriverId::MESA_LLVMPIPE;
        if [self.driver.0, other.driver.0] == [software; 2] {
            return true;
        }
        // Addresses tell equal boards apart, which some drivers give one UUID. A driver that lists one address under
        // several UUIDs lists parts of a device.
        let told = [
            equal(&self.pci, &other.pci),
            equal(&self.luid, &other.luid),
            equal(&self.device, &other.device).filter(|same| *same || self.driver == other.driver),
        ];
        told.contains(&Some(true)) && !told.contains(&Some(false))
    }

    /// Lower ones are preferred; of equal ones the loader's first.
    fn place(&self) -> (bool, bool, bool) {
        (self.is_layered, self.driver.0 == vk::DriverId::AMD_OPEN_SOURCE, !self.is_conformant)
    }
}

/// Whether both are known, and equal.
fn equal<T: PartialEq>(one: &Option<T>, other: &Option<T>) -> Option<bool> {
    Some(one.as_ref()? == other.as_ref()?)
}

/// For each device, with whether it can be used, the position of the same one under the driver that is preferred; `None` for
/// that one itself.
pub(super) fn preferred(devices: &[(&Origin, bool)]) -> Vec<Option<usize>> {
    let mut groups: Vec<usize> = (0..devices.len()).collect();
    for (at, (origin, _)) in devices.iter().enumerate() {
        let known = devices.iter().enumerate().take(at);
        for (earlier, _) in known.filter(|(_, (known, _))| known.is_same(origin)) {
            let (from, to) = (groups[at], groups[earlier]);
            groups.iter_mut().filter(|group| **group == from).for_each(|group| *group = to);
        }
    }
    let best = |group: usize| {
        let members = (0..devices.len()).filter(|at| groups[*at] == group);
        members.min_by_key(|at| (!devices[*at].1, devices[*at].0.place()))
    };
    (0..devices.len()).map(|at| best(groups[at]).filter(|best| *best != at)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A conformant driver of a device that is known by `uuid`, which is none where it is 0.
    fn origin(driver: vk::DriverId, uuid: u8) -> Origin {
        let id = vk::PhysicalDeviceIDProperties::default()
            .device_uuid([uuid; vk::UUID_SIZE])
            .driver_uuid([driver.as_raw() as u8; vk::UUID_SIZE]);
        let version = vk::ConformanceVersion { major: 1, minor: 3, ..Default::default() };
        let driver =
            vk::PhysicalDeviceDriverProperties::default().driver_id(driver).conformance_version(version);
        Origin::new(&id, &driver, &vk::PhysicalDeviceLayeredDriverPropertiesMSFT::default(), None)
    }

    fn at(bus: u32, origin: Origin) -> Origin {
        Origin { pci: Some([0, bus, 0, 0]), ..origin }
    }

    fn adapter(luid: u8, origin: Origin) -> Origin {
        Origin { luid: Some(([luid; vk::LUID_SIZE], 1)), ..origin }
    }

    fn found(devices: &[Origin]) -> Vec<Option<usize>> {
        preferred(&devices.iter().map(|origin| (origin, true)).collect::<Vec<_>>())
    }

    const RADV: vk::DriverId = vk::DriverId::MESA_RADV;
    const AMDVLK: vk::DriverId = vk::DriverId::AMD_OPEN_SOURCE;
    const AMD: vk::DriverId = vk::DriverId::AMD_PROPRIETARY;
    const NVIDIA: vk::DriverId = vk::DriverId::NVIDIA_PROPRIETARY;
    const NVK: vk::DriverId = vk::DriverId::MESA_NVK;
    const DOZEN: vk::DriverId = vk::DriverId::MESA_DOZEN;
    const LLVMPIPE: vk::DriverId = vk::DriverId::MESA_LLVMPIPE;

    #[test]
    fn drivers_of_one_device_have_an_order_and_other_devices_stand_alone() {
        // The loader's order does not matter, except between equals.
        assert_eq!(found(&[at(3, origin(AMDVLK, 1)), at(3, origin(RADV, 2))]), [Some(1), None]);
        assert_eq!(found(&[at(3, origin(RADV, 2)), at(3, origin(AMDVLK, 1))]), [None, Some(0)]);
        assert_eq!(found(&[at(3, origin(AMD, 1)), at(3, origin(RADV, 2))]), [None, Some(0)]);
        assert_eq!(found(&[origin(AMDVLK, 1), origin(RADV, 1)]), [Some(1), None]);
        assert_eq!(found(&[at(3, origin(AMDVLK, 1)), at(4, origin(RADV, 2))]), [None, None]);
        let young = Origin { is_conformant: false, ..at(1, origin(NVK, 1)) };
        assert_eq!(found(&[young, at(1, origin(NVIDIA, 2)), origin(LLVMPIPE, 3)]), [Some(1), None, None]);
    }

    #[test]
    fn a_layered_driver_comes_last() {
        let dozen = |luid| adapter(luid, Origin { is_conformant: false, ..origin(DOZEN, 9) });
        assert!(dozen(1).is_layered);
        let card = at(1, adapter(1, origin(NVIDIA, 1)));
        let apu = at(9, adapter(2, origin(AMD, 2)));
        assert_eq!(found(&[dozen(1), dozen(2), card, apu]), [Some(2), Some(3), None, None]);
        let layers = vk::PhysicalDeviceLayeredDriverPropertiesMSFT::default()
            .underlying_api(vk::LayeredDriverUnderlyingApiMSFT::D3D12);
        let (id, driver) = Default::default();
        let other = Origin::new(&id, &driver, &layers, None);
        assert!(other.is_layered && !other.is_conformant);
        // Alone, as under WSL, it is the device.
        assert_eq!(found(&[dozen(1), origin(LLVMPIPE, 3)]), [None, None]);
    }

    #[test]
    fn software_on_the_processor_is_one_device_whatever_its_version() {
        assert_eq!(found(&[origin(LLVMPIPE, 1), origin(LLVMPIPE, 2)]), [None, Some(0)]);
        let other = origin(vk::DriverId::GOOGLE_SWIFTSHADER, 3);
        assert_eq!(found(&[origin(LLVMPIPE, 1), other]), [None, None]);
    }

    #[test]
    fn what_is_not_told_joins_nothing() {
        assert_eq!(found(&[origin(RADV, 0), origin(AMDVLK, 0)]), [None, None]);
        let none = vk::PhysicalDevicePCIBusInfoPropertiesEXT::default();
        let (id, driver, layers) = Default::default();
        assert_eq!(Origin::new(&id, &driver, &layers, Some(&none)).pci, None);
        // Equal boards whose driver gives both one UUID.
        assert_eq!(found(&[at(1, origin(AMD, 1)), at(2, origin(AMD, 1))]), [None, None]);
        assert_eq!(found(&[adapter(1, origin(DOZEN, 1)), adapter(2, origin(DOZEN, 1))]), [None, None]);
        // Parts of one device, and one manifest of a driver twice.
        assert_eq!(found(&[at(1, origin(NVIDIA, 1)), at(1, origin(NVIDIA, 2))]), [None, None]);
        assert_eq!(found(&[at(1, origin(RADV, 1)), at(1, origin(RADV, 1))]), [None, Some(0)]);
    }

    #[test]
    fn a_third_driver_joins_two_that_share_no_identifier() {
        let (by_address, by_adapter) = (at(1, origin(RADV, 1)), adapter(7, origin(DOZEN, 2)));
        let both = at(1, adapter(7, origin(AMDVLK, 3)));
        assert_eq!(found(&[by_adapter.clone(), by_address.clone(), both]), [Some(1), None, Some(1)]);
        assert_eq!(found(&[by_adapter, by_address]), [None, None]);
    }

    #[test]
    fn a_driver_that_cannot_be_used_is_not_preferred() {
        let (one, two) = (at(1, origin(RADV, 1)), at(1, origin(AMDVLK, 2)));
        assert_eq!(preferred(&[(&one, false), (&two, true)]), [Some(1), None]);
        assert_eq!(preferred(&[(&two, false), (&one, false)]), [Some(1), None]);
        assert!(preferred(&[]).is_empty());
    }
}
