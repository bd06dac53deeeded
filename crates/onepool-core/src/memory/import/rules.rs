//! What a driver can import.

/// A Vulkan driver whose rules are known; the device layer maps `VkDriverId` to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum DriverKind {
    /// Mesa's driver for AMD. The kernel takes only anonymous private memory, readable and writable.
    Radv,
    /// AMD's open source driver: the same kernel driver, and allocations up to 2 GiB.
    Amdvlk,
    /// Mesa's driver for Intel: user pointers of any mapping, page by page.
    Anv,
    /// NVIDIA's driver: takes private mappings, of files too, and memory files; needs write access.
    Nvidia,
    /// Mesa's software driver: takes any address, so the rules here keep it from faulting.
    Lavapipe,
    /// Anything else: the strictest rules.
    Other,
}

impl DriverKind {
    /// The driver of a `VkDriverId`.
    pub const fn of_vulkan(id: u32) -> DriverKind {
        match id {
            // AMD_PROPRIETARY, AMD_OPEN_SOURCE
            1 | 2 => DriverKind::Amdvlk,
            // MESA_RADV
            3 => DriverKind::Radv,
            // NVIDIA_PROPRIETARY
            4 => DriverKind::Nvidia,
            // INTEL_OPEN_SOURCE_MESA
            6 => DriverKind::Anv,
            // MESA_LLVMPIPE
            13 => DriverKind::Lavapipe,
            _ => DriverKind::Other,
        }
    }
}

/// Limits a device reports, which narrow the rules of its driver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceLimits {
    /// `minImportedHostPointerAlignment`.
    pub import_alignment: u64,
    /// `minStorageBufferOffsetAlignment`.
    pub storage_offset_alignment: u64,
    /// `maxMemoryAllocationSize`, or the size of the heap when that is less.
    pub max_allocation: u64,
    /// `maxStorageBufferRange`.
    pub max_range: u64,
}

/// The rules for importing host memory on one device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
pub struct ImportRules {
    /// The address of an import is a multiple of this.
    pub alignment: u64,
    /// The size of an import is a multiple of this.
    pub size_multiple: u64,
    /// The offset of a binding is a multiple of this.
    pub storage_offset_alignment: u64,
    /// Most bytes in one import.
    pub max_bytes: u64,
    /// Most bytes in one binding.
    pub max_range: u64,
    /// Only anonymous memory, heap and stacks included.
    pub anonymous_only: bool,
    /// No shared mappings, except memory files where `memfd_importable` says so.
    pub private_only: bool,
    /// Memory files are taken, shared or not, although other files may not be.
    pub memfd_importable: bool,
    /// Pages without write access may be imported for reading.
    pub read_only_importable: bool,
    /// Pages shared with other data may be imported only as coherent memory: an invalidate would take
    /// the neighbours' bytes with it.
    pub must_be_coherent: bool,
}

const PAGE: u64 = 4096;
const GIB: u64 = 1 << 30;

impl ImportRules {
    /// The rules that every known driver satisfies: those of amdgpu, with the smallest limits a
    /// conformant device may have.
    pub const fn strict() -> ImportRules {
        ImportRules {
            alignment: PAGE,
            size_multiple: PAGE,
            storage_offset_alignment: 256,
            max_bytes: 2 * GIB,
            max_range: 128 << 20,
            anonymous_only: true,
            private_only: true,
            memfd_importable: false,
            read_only_importable: false,
            must_be_coherent: true,
        }
    }

    /// The rules of a driver, to be narrowed with [`ImportRules::with_limits`].
    ///
    /// * RADV, AMDVLK: libdrm passes `ANONONLY|REGISTER|VALIDATE` and never `READONLY`, so a mapping
    ///   of a file or without write access is refused. Imports stay below 2 GiB: larger
    ///   buffers crossed 4 GiB boundaries wrongly on APUs, and AMDVLK allocates no more.
    /// * ANV: user pointers need whole pages; no kind of mapping is refused, read-only ones are.
    /// * NVIDIA (probed): anonymous memory, the heap, shared memory files and private writable file
    ///   mappings import; read-only mappings and shared file mappings do not. 6 GiB in one import worked.
    /// * lavapipe (probed): checks nothing, and a kernel that writes a read-only page ends the process;
    ///   so read-only pages are taken for reading alone. Its heap holds 2 GiB.
    /// * Any other driver: [`ImportRules::strict`].
    pub const fn for_driver(driver: DriverKind) -> ImportRules {
        let strict = ImportRules::strict();
        match driver {
            DriverKind::Radv | DriverKind::Amdvlk | DriverKind::Other => strict,
            DriverKind::Anv => ImportRules {
                max_bytes: 4 * GIB - PAGE,
                anonymous_only: false,
                private_only: false,
                memfd_importable: true,
                ..strict
            },
            DriverKind::Nvidia => ImportRules {
                max_bytes: 4 * GIB - PAGE,
                anonymous_only: false,
                memfd_importable: true,
                ..strict
            },
            DriverKind::Lavapipe => ImportRules {
                anonymous_only: false,
                private_only: false,
                memfd_importable: true,
                read_only_importable: true,
                ..strict
            },
        }
    }

    /// The rules with the limits of a device: alignments and the binding size as it reports them, the
    /// size of an import no larger than either allows.
    #[must_use]
    pub fn with_limits(self, limits: DeviceLimits) -> ImportRules {
        ImportRules {
            alignment: self.alignment.max(limits.import_alignment),
            size_multiple: self.size_multiple.max(limits.import_alignment),
            storage_offset_alignment: limits.storage_offset_alignment.max(1),
            max_bytes: self.max_bytes.min(limits.max_allocation),
            max_range: limits.max_range,
            ..self
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_narrow_and_never_widen_an_import() {
        let limits = DeviceLimits {
            import_alignment: 65_536,
            storage_offset_alignment: 16,
            max_allocation: 1 << 20,
            max_range: u64::from(u32::MAX),
        };
        let rules = ImportRules::strict().with_limits(limits);
        assert_eq!((rules.alignment, rules.size_multiple), (65_536, 65_536));
        assert_eq!((rules.storage_offset_alignment, rules.max_bytes), (16, 1 << 20));
        let loose = DeviceLimits {
            import_alignment: 1,
            storage_offset_alignment: 0,
            max_allocation: u64::MAX,
            ..limits
        };
        let rules = ImportRules::strict().with_limits(loose);
        assert_eq!((rules.alignment, rules.storage_offset_alignment, rules.max_bytes), (4096, 1, 2 << 30));
    }

    #[test]
    fn drivers_go_by_the_numbers_that_vulkan_gives_them() {
        let kinds = [1, 2, 3, 4, 6, 13, 18, 0, u32::MAX].map(DriverKind::of_vulkan);
        use DriverKind::{Amdvlk, Anv, Lavapipe, Nvidia, Other, Radv};
        assert_eq!(kinds, [Amdvlk, Amdvlk, Radv, Nvidia, Anv, Lavapipe, Other, Other, Other]);
    }

    #[test]
    fn unknown_drivers_get_the_strictest_rules() {
        assert_eq!(ImportRules::for_driver(DriverKind::Other), ImportRules::strict());
        assert_eq!(ImportRules::for_driver(DriverKind::Radv), ImportRules::strict());
        assert!(!ImportRules::for_driver(DriverKind::Nvidia).read_only_importable);
        assert!(ImportRules::for_driver(DriverKind::Nvidia).private_only);
    }
}
