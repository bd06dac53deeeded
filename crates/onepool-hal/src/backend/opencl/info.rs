//! What a device says of itself.

use cl3::device as cl;
use cl3::platform;
use cl3::types::{cl_device_info, cl_platform_id};

use super::answer::{number, sizes, text};
use super::handle::DeviceId;
use super::image::{ImageFacts, Images};
use super::probe::Findings;
use super::{NAME, error};
use crate::backend::{DeviceError, DeviceInfo, DeviceKind, Limits};
use onepool_core::files::hash::Digest;
use onepool_core::memory::import::rules::{DeviceLimits, ImportRules};
use onepool_core::memory::model::{ImportTypes, MemoryModel};
use onepool_core::memory::os::physical_memory;
use onepool_spirv::Requires;

/// Work-groups along each axis: OpenCL has no limit of its own, and every known driver takes as many.
const MAX_GROUPS: u32 = 65_535;
/// The largest structure that is passed by value; the smallest `CL_DEVICE_MAX_PARAMETER_SIZE` is 1024.
const MAX_PARAMS: u32 = 256;
/// What the kernels take a pointer to be a multiple of.
const POINTER_ALIGNMENT: u64 = 16;

/// What the full profile of OpenCL 1.2 has, or the translation of SPIR-V provides.
const ALWAYS: Requires = Requires::INT8
    .union(Requires::INT16)
    .union(Requires::INT64)
    .union(Requires::STORAGE_8)
    .union(Requires::STORAGE_16)
    .union(Requires::PUSH_CONSTANT_8)
    .union(Requires::PUSH_CONSTANT_16);

/// Answers of `clGetDeviceInfo`.
#[derive(Clone, Debug)]
pub(super) struct Facts {
    pub(super) name: String,
    pub(super) vendor: String,
    pub(super) platform: String,
    pub(super) driver: String,
    pub(super) version: String,
    pub(super) extensions: String,
    pub(super) profile: String,
    pub(super) kind: u64,
    pub(super) available: bool,
    pub(super) compiler: bool,
    pub(super) little_endian: bool,
    pub(super) unified: bool,
    pub(super) max_allocation: u64,
    pub(super) memory: u64,
    pub(super) local_memory: u64,
    pub(super) base_alignment_bits: u64,
    pub(super) max_parameters: u64,
    pub(super) max_group: u64,
    pub(super) max_group_sizes: [usize; 3],
    pub(super) doubles: bool,
    pub(super) units: u32,
    pub(super) images: ImageFacts,
}

impl Facts {
    pub(super) fn query(platform: cl_platform_id, device: DeviceId) -> Result<Facts, DeviceError> {
        let data = |what: cl_device_info| {
            cl::get_device_data(device.0, what).map_err(|code| error("clGetDeviceInfo", code, 0))
        };
        let flag = |what| Ok::<_, DeviceError>(number(&data(what)?) != 0);
        let count = |what| Ok::<_, DeviceError>(number(&data(what)?));
        let words = |what| Ok::<_, DeviceError>(text(&data(what)?));
        let said = |what| platform::get_platform_data(platform, what).map(|data| text(&data));
        let platform_name = said(platform::CL_PLATFORM_NAME).unwrap_or_default();
        let platform_version = said(platform::CL_PLATFORM_VERSION).unwrap_or_default();
        let (api, extensions) = (words(cl::CL_DEVICE_VERSION)?, words(cl::CL_DEVICE_EXTENSIONS)?);
        // Some of it is newer than some drivers.
        let image = |what| count(what).unwrap_or(0);
        let images = ImageFacts {
            supported: image(cl::CL_DEVICE_IMAGE_SUPPORT) != 0,
            version: version(&api).unwrap_or_default(),
            from_buffer: extensions.split_whitespace().any(|word| word == "cl_khr_image2d_from_buffer"),
            max_width: image(cl::CL_DEVICE_IMAGE2D_MAX_WIDTH),
            max_height: image(cl::CL_DEVICE_IMAGE2D_MAX_HEIGHT),
            max_texels: image(cl::CL_DEVICE_IMAGE_MAX_BUFFER_SIZE),
            pitch_alignment: image(cl::CL_DEVICE_IMAGE_PITCH_ALIGNMENT),
            base_alignment: image(cl::CL_DEVICE_IMAGE_BASE_ADDRESS_ALIGNMENT),
        };
        Ok(Facts {
            name: words(cl::CL_DEVICE_NAME)?,
            vendor: words(cl::CL_DEVICE_VENDOR)?,
            platform: format!("{platform_name} {platform_version}").trim().to_owned(),
            driver: words(cl::CL_DRIVER_VERSION)?,
            version: api,
            extensions,
            profile: words(cl::CL_DEVICE_PROFILE)?,
            kind: count(cl::CL_DEVICE_TYPE)?,
            available: flag(cl::CL_DEVICE_AVAILABLE)?,
            compiler: flag(cl::CL_DEVICE_COMPILER_AVAILABLE)?,
            little_endian: flag(cl::CL_DEVICE_ENDIAN_LITTLE)?,
            // Deprecated since 2.0; a driver that no longer answers is probed all the same.
            unified: flag(cl::CL_DEVICE_HOST_UNIFIED_MEMORY).unwrap_or(true),
            max_allocation: count(cl::CL_DEVICE_MAX_MEM_ALLOC_SIZE)?,
            memory: count(cl::CL_DEVICE_GLOBAL_MEM_SIZE)?,
            local_memory: count(cl::CL_DEVICE_LOCAL_MEM_SIZE)?,
            base_alignment_bits: count(cl::CL_DEVICE_MEM_BASE_ADDR_ALIGN)?,
            max_parameters: count(cl::CL_DEVICE_MAX_PARAMETER_SIZE)?,
            max_group: count(cl::CL_DEVICE_MAX_WORK_GROUP_SIZE)?,
            max_group_sizes: sizes(&data(cl::CL_DEVICE_MAX_WORK_ITEM_SIZES)?),
            doubles: data(cl::CL_DEVICE_DOUBLE_FP_CONFIG).is_ok_and(|config| number(&config) != 0),
            units: u32::try_from(count(cl::CL_DEVICE_MAX_COMPUTE_UNITS)?).unwrap_or(u32::MAX),
            images,
        })
    }

    /// Why kernels cannot run here.
    pub(super) fn unusable(&self) -> Option<String> {
        if !self.available {
            return Some("its driver says that it is not available".to_owned());
        }
        match version(&self.version) {
            None => return Some(format!("it speaks no known version of OpenCL ({:?})", self.version)),
            Some(found) if found < (1, 2) => {
                return Some(format!("it speaks OpenCL {}.{}; 1.2 is needed", found.0, found.1));
            }
            Some(_) => {}
        }
        if !self.compiler {
            return Some(
                "it has no compiler for OpenCL C, which kernels are handed over in; install the full driver"
                    .to_owned(),
            );
        }
        if !self.little_endian {
            return Some("it is big-endian; tensors are little-endian".to_owned());
        }
        if self.profile != "FULL_PROFILE" {
            return Some(format!("it has the {} only; the full profile is needed", self.profile));
        }
        None
    }

    pub(super) fn has(&self, extension: &str) -> bool {
        self.extensions.split_whitespace().any(|word| word == extension)
    }

    fn kind(&self, unified: bool) -> DeviceKind {
        if self.kind & cl::CL_DEVICE_TYPE_GPU != 0 {
            if unified { DeviceKind::Integrated } else { DeviceKind::Discrete }
        } else if self.kind & cl::CL_DEVICE_TYPE_CPU != 0 {
            DeviceKind::Cpu
        } else {
            DeviceKind::Other
        }
    }

    /// One pool where what the device computes with can be mapped, else its own memory next to the host's.
    fn memory_model(&self, kind: DeviceKind, mapped: bool, imports: bool) -> MemoryModel {
        let model = if mapped {
            MemoryModel::one_pool(kind, self.memory)
        } else {
            MemoryModel::two_pools(kind, self.memory, physical_memory().unwrap_or(self.memory))
        };
        if imports { model } else { model.importing(ImportTypes::None) }
    }

    fn features(&self) -> Requires {
        let mut features = ALWAYS;
        let optional = [
            (self.has("cl_khr_fp16"), Requires::FLOAT16),
            (self.doubles, Requires::FLOAT64),
            (
                self.has("cl_khr_int64_base_atomics") && self.has("cl_khr_int64_extended_atomics"),
                Requires::ATOMIC_INT64,
            ),
        ];
        for (_, feature) in optional.into_iter().filter(|(has, _)| *has) {
            features = features.union(feature);
        }
        features
    }

    fn limits(&self) -> Limits {
        // Kernels count in 32 bits.
        let most = self.max_allocation.min(u64::from(u32::MAX) & !(POINTER_ALIGNMENT - 1));
        let alignment = (self.base_alignment_bits / 8).max(POINTER_ALIGNMENT);
        let params = u64::from(MAX_PARAMS).min(self.max_parameters / 2);
        let size = |axis: usize| u32::try_from(self.max_group_sizes[axis]).unwrap_or(u32::MAX).max(1);
        Limits {
            max_argument_bytes: most,
            max_buffer_bytes: self.max_allocation,
            argument_alignment: alignment,
            texel_alignment: alignment,
            max_texels: most / 16,
            max_groups: [MAX_GROUPS; 3],
            max_group_items: u32::try_from(self.max_group).unwrap_or(u32::MAX),
            max_group_size: [size(0), size(1), size(2)],
            max_local_bytes: u32::try_from(self.local_memory).unwrap_or(u32::MAX),
            max_params_bytes: params as u32,
            // A pointer and a length each.
            max_arguments: u32::try_from((self.max_parameters - params) / 16).unwrap_or(u32::MAX),
            non_coherent_atom: 1,
        }
    }

    /// What is known once the device was tried.
    pub(super) fn describe(&self, findings: &Result<Findings, DeviceError>) -> DeviceInfo {
        let limits = self.limits();
        let unusable =
            self.unusable().or_else(|| findings.as_ref().err().map(|e| format!("trying it failed: {e}")));
        let (mapped, imports) = match findings {
            Ok(findings) => (findings.mapped.is_ok(), findings.imported.is_ok()),
            Err(_) => (false, false),
        };
        let unified = self.unified && mapped;
        let kind = self.kind(unified);
        let mut advice = Vec::new();
        if kind == DeviceKind::Cpu {
            advice.push(
                "this is OpenCL on the CPU; the cpu backend needs no compilation of kernels".to_owned(),
            );
        }
        if let Ok(findings) = findings {
            advice.extend(findings.words());
        }
        DeviceInfo {
            api: NAME,
            name: self.name.clone(),
            kind,
            driver: format!("{} {}", self.platform, self.driver),
            api_version: version(&self.version)
                .map_or_else(String::new, |(major, minor)| format!("{major}.{minor}")),
            uuid: self.uuid(),
            index: 0,
            same_as: None,
            unusable,
            memory: self.memory_model(kind, unified, imports),
            native: false,
            // A queue runs one command after the other and keeps memory consistent between them; what is
            // not coherent with the host is flushed and invalidated as a whole.
            in_order: true,
            splits_grids: false,
            orders_groups: false,
            import: imports.then(|| import_rules(kind, &limits)),
            limits,
            features: self.features(),
            // The translation rounds after every operation.
            emulated: Requires::FLOAT16.missing(self.features()),
            subgroup: 1,
            subgroup_range: [1, 1],
            timestamp_ns: 1.0,
            // The threads of a CPU take work-groups in turn: many cost them more than they gain.
            processors: (kind != DeviceKind::Cpu && self.units > 0).then_some(self.units),
            prefers_texels: false,
            most_iterations: None,
            // Known once the device is open.
            images: None,
            advice,
        }
    }

    /// Names device and driver: OpenCL has no identifier of them that every driver gives.
    fn uuid(&self) -> String {
        let parts = [&self.platform, &self.vendor, &self.name, &self.version, &self.driver];
        let parts: Vec<&str> = parts.into_iter().map(String::as_str).collect();
        Digest::of(parts.join("\0").as_bytes()).short_hex()
    }
}

/// Adds what was found of a device's images.
pub(super) fn with_images(mut info: DeviceInfo, images: &Images) -> DeviceInfo {
    info.images = images.rules.clone();
    info.advice.extend(images.words.iter().cloned());
    if images.rules.is_some() {
        // The memory decides on the format, not the kernel.
        info.features = info.features.union(Requires::IMAGE_FORMATS).union(Requires::IMAGE_WITHOUT_FORMAT);
    }
    if !images.offer.texels.is_empty() {
        info.limits.max_texels = info.limits.max_texels.min(images.max_texels);
    }
    info
}

/// A device on the processor works on the process's own mappings; of others nothing is known.
fn import_rules(kind: DeviceKind, limits: &Limits) -> ImportRules {
    let own = kind == DeviceKind::Cpu;
    let rules = ImportRules {
        anonymous_only: !own,
        private_only: !own,
        memfd_importable: own,
        read_only_importable: own,
        max_bytes: if own { u64::MAX } else { ImportRules::strict().max_bytes },
        ..ImportRules::strict()
    };
    rules.with_limits(DeviceLimits {
        import_alignment: limits.argument_alignment,
        storage_offset_alignment: limits.argument_alignment,
        max_allocation: limits.max_buffer_bytes & !4095,
        max_range: limits.max_argument_bytes,
    })
}

/// The version in "OpenCL 1.2 what the vendor adds".
fn version(text: &str) -> Option<(u32, u32)> {
    let numbers = text.strip_prefix("OpenCL ")?.split_whitespace().next()?;
    let (major, minor) = numbers.split_once('.')?;
    Some((major.parse().ok()?, minor.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use onepool_spirv::opencl_c::{OpenClImages, Planes, TexelFormats};

    fn facts() -> Facts {
        Facts {
            name: "Toy".into(),
            vendor: "Maker".into(),
            platform: "Platform OpenCL 3.0".into(),
            driver: "1".into(),
            version: "OpenCL 1.2 toy".into(),
            extensions: "cl_khr_fp16 cl_khr_int64_base_atomics".into(),
            profile: "FULL_PROFILE".into(),
            kind: cl::CL_DEVICE_TYPE_GPU,
            available: true,
            compiler: true,
            little_endian: true,
            unified: true,
            max_allocation: 1 << 33,
            memory: 1 << 34,
            local_memory: 48 << 10,
            base_alignment_bits: 1024,
            max_parameters: 1024,
            max_group: 256,
            max_group_sizes: [256, 256, 64],
            doubles: false,
            units: 0,
            images: ImageFacts::default(),
        }
    }

    fn found(mapped: bool, imported: bool) -> Result<Findings, DeviceError> {
        let said = |holds: bool| if holds { Ok(()) } else { Err("it copies".to_owned()) };
        Ok(Findings { mapped: said(mapped), imported: said(imported) })
    }

    #[test]
    fn versions_are_read_from_the_vendors_text() {
        assert_eq!(version("OpenCL 3.0 CUDA"), Some((3, 0)));
        assert_eq!(version("OpenCL 1.2"), Some((1, 2)));
        assert_eq!(version("OpenGL 1.2"), None);
        assert_eq!(version("OpenCL x"), None);
    }

    #[test]
    fn a_device_that_cannot_run_kernels_says_why() {
        assert_eq!(facts().unusable(), None);
        for (broken, word) in [
            (Facts { available: false, ..facts() }, "not available"),
            (Facts { version: "OpenCL 1.1 old".into(), ..facts() }, "1.2 is needed"),
            (Facts { version: "nonsense".into(), ..facts() }, "no known version"),
            (Facts { compiler: false, ..facts() }, "no compiler"),
            (Facts { little_endian: false, ..facts() }, "big-endian"),
            (Facts { profile: "EMBEDDED_PROFILE".into(), ..facts() }, "full profile"),
        ] {
            let reason = broken.unusable().unwrap();
            assert!(reason.contains(word), "{reason}");
            assert_eq!(broken.describe(&found(true, true)).unusable, Some(reason));
        }
        let failed = facts().describe(&Err(DeviceError::OutOfHostMemory { bytes: 7 }));
        assert!(failed.unusable.unwrap().contains("trying it failed"));
    }

    #[test]
    fn what_the_probe_found_decides_not_what_the_driver_says() {
        let good = facts().describe(&found(true, true));
        assert!(good.memory.shares_host_memory() && good.kind == DeviceKind::Integrated);
        assert!(
            good.import.is_some_and(|rules| rules.anonymous_only && rules.storage_offset_alignment == 128)
        );
        let claims = facts().describe(&found(false, false));
        assert!(
            !claims.memory.shares_host_memory()
                && claims.kind == DeviceKind::Discrete
                && claims.import.is_none()
        );
        assert!(claims.advice.iter().any(|words| words.contains("it copies")), "{:?}", claims.advice);
        let modest = Facts { unified: false, ..facts() }.describe(&found(true, false));
        assert!(!modest.memory.shares_host_memory());
        let cpu = Facts { kind: cl::CL_DEVICE_TYPE_CPU, ..facts() }.describe(&found(true, true));
        assert!(cpu.import.is_some_and(|rules| rules.read_only_importable && !rules.anonymous_only));
    }

    #[test]
    fn limits_and_features_come_from_the_device() {
        let info = facts().describe(&found(true, true));
        assert_eq!(info.limits.argument_alignment, 128);
        assert_eq!(info.limits.max_group_size, [256, 256, 64]);
        assert!(info.limits.max_argument_bytes < 1 << 32 && info.limits.max_buffer_bytes == 1 << 33);
        assert!(info.limits.max_params_bytes >= 128 && info.limits.max_arguments >= 32);
        assert!(info.features.contains(Requires::FLOAT16.union(Requires::INT64)));
        assert!(!info.features.contains(Requires::FLOAT64));
        assert!(info.emulated.is_empty());
        // Both extensions are needed for 64-bit atomics.
        assert!(!info.features.contains(Requires::ATOMIC_INT64));
        assert!(!info.features.contains(Requires::SUBGROUP_BASIC));
        let other = Facts { driver: "2".into(), ..facts() }.describe(&found(true, true));
        assert_ne!(info.uuid, other.uuid);
    }

    #[test]
    fn images_are_added_once_the_device_is_open() {
        let listed = facts().describe(&found(true, true));
        assert!(listed.images.is_none() && !listed.features.contains(Requires::IMAGE_WITHOUT_FORMAT));
        let none = Images { words: vec!["no images".to_owned()], ..Images::default() };
        let opened = with_images(listed.clone(), &none);
        assert!(opened.images.is_none() && opened.limits.max_texels == listed.limits.max_texels);
        assert!(opened.advice.iter().any(|words| words == "no images"));
        let offer = OpenClImages { texels: TexelFormats::ALL, planes: Planes::None };
        let rows = Images { offer, max_texels: 1 << 16, ..Images::default() };
        assert_eq!(with_images(listed, &rows).limits.max_texels, 1 << 16);
    }
}
