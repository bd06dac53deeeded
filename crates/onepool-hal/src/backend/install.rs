//! What a user can install where a driver, a loader or a layer is missing, in the words of the user's system.

use std::path::Path;
use std::sync::OnceLock;

/// What is missing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Missing {
    /// The Vulkan loader, and with it probably a driver.
    #[cfg_attr(not(feature = "vulkan"), expect(dead_code, reason = "said by the Vulkan backend"))]
    VulkanLoader,
    #[cfg_attr(not(feature = "vulkan"), expect(dead_code, reason = "said by the Vulkan backend"))]
    VulkanDriver,
    /// The Vulkan validation layer.
    #[cfg_attr(not(feature = "vulkan"), expect(dead_code, reason = "said by the Vulkan backend"))]
    ValidationLayer,
    /// The OpenCL loader, and with it probably a driver.
    #[cfg_attr(not(feature = "opencl"), expect(dead_code, reason = "said by the OpenCL backend"))]
    OpenClLoader,
    /// An OpenCL driver.
    #[cfg_attr(not(feature = "opencl"), expect(dead_code, reason = "said by the OpenCL backend"))]
    OpenClDriver,
}

/// Whose words are used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum System {
    Debian,
    OtherUnix,
    Windows,
}

/// What to install on this system.
pub(crate) fn remedy(missing: Missing) -> &'static str {
    static SYSTEM: OnceLock<System> = OnceLock::new();
    words(*SYSTEM.get_or_init(this_system), missing)
}

fn this_system() -> System {
    if cfg!(windows) {
        return System::Windows;
    }
    // os-release(5): the second file stands in for the first.
    let files = [Path::new("/etc/os-release"), Path::new("/usr/lib/os-release")];
    let text = files.into_iter().find_map(|file| std::fs::read_to_string(file).ok()).unwrap_or_default();
    if is_debian(&text) { System::Debian } else { System::OtherUnix }
}

/// Whether the system that describes itself so is Debian or made of it.
fn is_debian(release: &str) -> bool {
    let values = release.lines().filter_map(|line| {
        let (name, value) = line.split_once('=')?;
        matches!(name, "ID" | "ID_LIKE").then(|| value.trim_matches(['"', '\'']))
    });
    values.flat_map(str::split_whitespace).any(|id| matches!(id, "debian" | "ubuntu"))
}

fn words(system: System, missing: Missing) -> &'static str {
    use Missing::*;
    match (system, missing) {
        (System::Debian, VulkanLoader) => "install it: apt install libvulkan1 mesa-vulkan-drivers",
        (System::Debian, VulkanDriver) => {
            "install one: apt install mesa-vulkan-drivers, or the GPU vendor's driver"
        }
        (System::Debian, ValidationLayer) => "install it: apt install vulkan-validationlayers",
        (System::Debian, OpenClLoader) => "install it (apt install ocl-icd-libopencl1) and a driver",
        (System::OtherUnix, VulkanLoader) => {
            "install the system's packages of the Vulkan loader and of a Vulkan driver (Mesa's or the GPU vendor's)"
        }
        (System::OtherUnix, VulkanDriver) => "install one: Mesa's or the GPU vendor's",
        (System::OtherUnix, ValidationLayer) => {
            "install the system's package of the Vulkan validation layers"
        }
        (System::OtherUnix, OpenClLoader) => {
            "install the system's packages of an OpenCL ICD loader and of a driver"
        }
        (System::Debian | System::OtherUnix, OpenClDriver) => {
            "no driver is registered in /etc/OpenCL/vendors (or where OCL_ICD_VENDORS points)"
        }
        (System::Windows, VulkanLoader) => "install the GPU vendor's driver, which brings vulkan-1.dll",
        (System::Windows, VulkanDriver) => "install the GPU vendor's driver",
        (System::Windows, ValidationLayer) => "install the Vulkan SDK",
        (System::Windows, OpenClLoader) => "install the GPU vendor's driver, which brings OpenCL.dll",
        (System::Windows, OpenClDriver) => "no driver is registered; install the GPU vendor's",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn debian_is_known_by_its_name_and_by_what_is_made_of_it() {
        assert!(is_debian("NAME=\"x\"\nID=debian\n"));
        assert!(is_debian("ID=linuxmint\nID_LIKE=\"ubuntu debian\"\n"));
        assert!(!is_debian("ID=fedora\nID_LIKE='rhel centos'\nVARIANT_ID=debian\n"));
        assert!(!is_debian(""));
    }

    #[test]
    fn no_one_is_told_of_another_systems_tools() {
        use Missing::*;
        for missing in [VulkanLoader, VulkanDriver, ValidationLayer, OpenClLoader, OpenClDriver] {
            assert!(!words(System::OtherUnix, missing).contains("apt "));
            let windows = words(System::Windows, missing);
            assert!(
                !windows.contains("apt ") && !windows.contains('/') && !windows.contains(".so"),
                "{windows}"
            );
        }
    }
}
