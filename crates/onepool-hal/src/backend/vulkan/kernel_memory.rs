//! What Linux's amdgpu counts of a device's memory: its driver lists heaps of a third and two thirds of the sum, and finds
//! only at a submission what does not fit.

use std::path::{Path, PathBuf};

use ash::vk;

use onepool_core::memory::budget::{HeapBudget, KernelMemory};

/// The folder in sysfs where the kernel keeps its counts of one device.
#[derive(Debug)]
pub(super) struct KernelCounts(PathBuf);

impl KernelCounts {
    /// Those of `physical`, by the number of its file below `/dev/dri` (`VK_EXT_physical_device_drm`); `None` where its
    /// driver does not tell that, or its kernel does not count.
    ///
    /// # Safety
    /// The handle is of this instance, and the device speaks Vulkan 1.1.
    pub(super) unsafe fn of(instance: &ash::Instance, physical: vk::PhysicalDevice) -> Option<KernelCounts> {
        if !cfg!(target_os = "linux") {
            return None;
        }
        // SAFETY: as the caller promises.
        let listed = unsafe { instance.enumerate_device_extension_properties(physical) }.ok()?;
        let has = |name| listed.iter().any(|extension| extension.extension_name_as_c_str() == Ok(name));
        if !has(ash::ext::physical_device_drm::NAME) {
            return None;
        }
        let mut drm = vk::PhysicalDeviceDrmPropertiesEXT::default();
        let mut chain = vk::PhysicalDeviceProperties2::default().push_next(&mut drm);
        // SAFETY: as the caller promises; the structure lives until the call returns, and its extension is there.
        unsafe { instance.get_physical_device_properties2(physical, &mut chain) };
        let (major, minor) = if drm.has_render == vk::TRUE {
            (drm.render_major, drm.render_minor)
        } else if drm.has_primary == vk::TRUE {
            (drm.primary_major, drm.primary_minor)
        } else {
            return None;
        };
        KernelCounts::in_folder(Path::new(&format!("/sys/dev/char/{major}:{minor}/device")))
    }

    fn in_folder(folder: &Path) -> Option<KernelCounts> {
        let counts = KernelCounts(folder.to_owned());
        counts.read().map(|_| counts)
    }

    /// The counts now.
    pub(super) fn read(&self) -> Option<KernelMemory> {
        let number = |name: &str| -> Option<u64> {
            std::fs::read_to_string(self.0.join(name)).ok()?.trim().parse().ok()
        };
        let of = |kind: &str| {
            let budget = number(&format!("mem_info_{kind}_total"))?;
            Some(HeapBudget { budget, usage: number(&format!("mem_info_{kind}_used"))? })
        };
        Some(KernelMemory { set_aside: of("vram")?, mapped: of("gtt")? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_are_read_where_all_of_them_are_there() {
        let folder = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| std::fs::write(folder.path().join(name), text).unwrap();
        write("mem_info_vram_total", "536870912\n");
        write("mem_info_vram_used", "100\n");
        write("mem_info_gtt_total", "16106127360\n");
        assert!(KernelCounts::in_folder(folder.path()).is_none());
        write("mem_info_gtt_used", "7\n");
        let counts = KernelCounts::in_folder(folder.path()).unwrap();
        let memory = KernelMemory {
            set_aside: HeapBudget { budget: 512 << 20, usage: 100 },
            mapped: HeapBudget { budget: 15 << 30, usage: 7 },
        };
        assert_eq!(counts.read(), Some(memory));
        write("mem_info_gtt_used", "no number");
        assert_eq!(counts.read(), None);
    }
}
