//! A driver's memory as it was recorded: what it lists, and how it treats host memory that is imported.
//!
//! A profile is a JSON file of one device; those in `profiles/` are part of the library, any other is read from its
//! path. `raw` is the file's form, `check` turns it into a [`DriverProfile`] or into an error that names the field. What a
//! file does not know (`null`) takes the strict choice, and [`DriverProfile::choices`] says which.

#![forbid(unsafe_code)]

mod check;
mod raw;

#[cfg(test)]
mod tests;

use std::fs::File;
use std::io::Read;
use std::path::Path;

use crate::backend::{DeviceError, DeviceKind, Limits};
use onepool_core::memory::budget::HeapBudget;
use onepool_core::memory::import::ImportRules;
use onepool_core::memory::import::rules::{DeviceLimits, DriverKind};
use onepool_core::memory::model::{Heap, ImportTypes, MemoryModel, MemoryType, TypeFlags};
use onepool_core::memory::os::physical_memory;

// (name, text) of every file in `profiles/`, by name.
include!(concat!(env!("OUT_DIR"), "/profiles.rs"));

/// A larger file is no profile.
const MAX_BYTES: u64 = 1 << 20;
const GIB: u64 = 1 << 30;

/// What a simulated device plays: a driver's lists and its ways.
#[derive(Clone, Debug, PartialEq)]
pub struct DriverProfile {
    /// What selectors call it.
    pub name: String,
    /// One line for people.
    pub title: String,
    /// What it is.
    pub kind: DeviceKind,
    /// The driver's name and version.
    pub driver: String,
    /// The version of Vulkan, where it is known.
    pub api_version: String,
    /// Its heaps.
    pub heaps: Vec<Heap>,
    /// Its memory types.
    pub types: Vec<MemoryType>,
    /// What it says of each heap before anything is allocated (`VK_EXT_memory_budget`); empty where it does not say.
    pub budgets: Vec<HeapBudget>,
    /// How host memory is imported; `None` where it is not.
    pub import: Option<HostImport>,
    /// Whether it takes dma-bufs.
    pub dma_bufs: bool,
    /// Whether too much memory is found at a submission, which loses the device; else where it is asked for.
    pub overcommits: bool,
    /// What the kernel has for it, where heaps are made up of both.
    pub kernel: Option<KernelSizes>,
    /// Sizes and alignments.
    pub limits: Limits,
    /// Lanes that execute in lock-step.
    pub subgroup: u32,
    /// Nanoseconds of one timestamp tick; 0 without timestamps.
    pub timestamp_ns: f64,
    /// What its file does not know, and what is taken for it.
    pub choices: Vec<String>,
}

/// What amdgpu has for a device in the host's memory, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KernelSizes {
    /// What the firmware set aside.
    pub set_aside: u64,
    /// What the device may map of the host's memory at once.
    pub mapped: u64,
}

/// How a driver and its kernel treat host memory that is imported.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostImport {
    /// Which driver's rules the runtime goes by.
    pub driver: DriverKind,
    /// What address and size are multiples of.
    pub alignment: u64,
    /// The types that it grants, one bit each; none is "no import" although the driver lists the extension.
    pub type_bits: u32,
    /// What its kernel takes.
    pub takes: Takes,
    /// The codes that it refuses with.
    pub codes: Codes,
    /// Whether imports count against the heap of their type where memory is asked for.
    pub counted: bool,
    /// The largest import, where the driver has one.
    pub max_bytes: Option<u64>,
}

/// Which kinds of memory a kernel takes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Takes {
    /// Anonymous private pages.
    pub anonymous_private: bool,
    /// The heap that `brk` grows.
    pub heap: bool,
    /// Stacks.
    pub stack: bool,
    /// Anonymous pages that are shared.
    pub anonymous_shared: bool,
    /// Memory files.
    pub memfd: bool,
    /// Private writable maps of files.
    pub file_private: bool,
    /// Shared writable maps of files.
    pub file_shared: bool,
    /// Anonymous pages without write access.
    pub read_only_anonymous: bool,
    /// Maps of files without write access.
    pub read_only_file: bool,
    /// Files of huge pages.
    pub huge_file: bool,
    /// Maps of the kernel and of devices.
    pub special: bool,
    /// Addresses that are no multiple of the alignment.
    pub unaligned_pointer: bool,
    /// Sizes that are no multiple of the alignment.
    pub unaligned_size: bool,
    /// The kernel asks for the kind of the first mapping alone; of the others it wants write access.
    pub first_mapping_only: bool,
}

/// `VkResult` codes of refusals.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Codes {
    /// For addresses and sizes.
    pub unaligned: i32,
    /// For a kind of memory that is not taken.
    pub kind: i32,
    /// For pages without write access.
    pub read_only: i32,
    /// For addresses with nothing at them.
    pub unmapped: i32,
    /// For more than the largest import.
    pub too_large: i32,
    /// For more than the heap has left.
    pub heap_full: i32,
}

/// `VK_ERROR_OUT_OF_DEVICE_MEMORY`.
pub(super) const OUT_OF_DEVICE_MEMORY: i32 = -2;
/// `VK_ERROR_DEVICE_LOST`.
pub(super) const DEVICE_LOST: i32 = -4;
/// `VK_ERROR_INVALID_EXTERNAL_HANDLE`, which drivers answer for pages they do not take.
pub(super) const INVALID_EXTERNAL_HANDLE: i32 = -1_000_072_003;

impl Takes {
    /// Private anonymous pages that can be read and written, whole ones: what every known kernel takes.
    pub const STRICT: Takes = Takes {
        anonymous_private: true,
        heap: true,
        stack: true,
        anonymous_shared: false,
        memfd: false,
        file_private: false,
        file_shared: false,
        read_only_anonymous: false,
        read_only_file: false,
        huge_file: false,
        special: false,
        unaligned_pointer: false,
        unaligned_size: false,
        first_mapping_only: false,
    };
}

impl Codes {
    const STRICT: Codes = Codes {
        unaligned: INVALID_EXTERNAL_HANDLE,
        kind: INVALID_EXTERNAL_HANDLE,
        read_only: INVALID_EXTERNAL_HANDLE,
        unmapped: INVALID_EXTERNAL_HANDLE,
        too_large: OUT_OF_DEVICE_MEMORY,
        heap_full: OUT_OF_DEVICE_MEMORY,
    };
}

impl DriverProfile {
    /// The profile that is written in `text`; `file` is what errors call it.
    ///
    /// # Errors
    /// [`DeviceError::Profile`] with the field that is wrong.
    pub fn parse(file: &str, text: &str) -> Result<DriverProfile, DeviceError> {
        let error =
            |field: String, problem: String| DeviceError::Profile { file: file.to_owned(), field, problem };
        let mut json = serde_json::Deserializer::from_str(text);
        let raw: raw::Raw = serde_path_to_error::deserialize(&mut json).map_err(|e| {
            let field = if e.inner().is_data() { e.path().to_string() } else { String::new() };
            error(field, e.into_inner().to_string())
        })?;
        json.end().map_err(|e| error(String::new(), e.to_string()))?;
        check::profile(&raw).map_err(|wrong| error(wrong.field, wrong.problem))
    }

    /// The profile in the file at `path`: a regular file of at most 1 MiB.
    ///
    /// # Errors
    /// [`DeviceError::Profile`].
    pub fn read(path: impl AsRef<Path>) -> Result<DriverProfile, DeviceError> {
        let path = path.as_ref();
        let file = path.display().to_string();
        let error =
            |problem: String| DeviceError::Profile { file: file.clone(), field: String::new(), problem };
        let failed = |e: std::io::Error| error(format!("it cannot be read: {e}"));
        // Asked before it is opened: opening a pipe waits for a writer.
        let found = std::fs::metadata(path).map_err(failed)?;
        if !found.is_file() {
            return Err(error("it is no regular file; give the path of a profile in JSON".to_owned()));
        }
        if found.len() > MAX_BYTES {
            return Err(error(format!("it has {} bytes, and a profile at most {MAX_BYTES}", found.len())));
        }
        let mut text = String::new();
        let opened = File::open(path).map_err(failed)?;
        opened.take(MAX_BYTES + 1).read_to_string(&mut text).map_err(failed)?;
        if text.len() as u64 > MAX_BYTES {
            return Err(error(format!("it has more than {MAX_BYTES} bytes, the most that a profile has")));
        }
        DriverProfile::parse(&file, &text)
    }

    /// The names of the recorded drivers that are part of the library, in order.
    pub fn names() -> impl Iterator<Item = &'static str> {
        FILES.iter().map(|(name, _)| *name)
    }

    /// The recorded driver of this name, in any case; `None` for another name.
    ///
    /// # Errors
    /// As [`DriverProfile::parse`].
    pub fn built_in(name: &str) -> Option<Result<DriverProfile, DeviceError>> {
        let (name, text) = FILES.iter().find(|(known, _)| known.eq_ignore_ascii_case(name))?;
        Some(DriverProfile::parse(name, text))
    }

    /// A device that shares one pool of memory with the host: coherent, or such that it must be flushed and invalidated.
    pub(super) fn one_pool(name: &str, coherent: bool) -> DriverProfile {
        let mapped = TypeFlags::DEVICE_LOCAL.with(TypeFlags::HOST_VISIBLE).with(TypeFlags::HOST_CACHED);
        let flags = if coherent { mapped.with(TypeFlags::HOST_COHERENT) } else { mapped };
        let heaps = vec![Heap { bytes: own_bytes(), device_local: true }];
        DriverProfile::made(name, DeviceKind::Integrated, heaps, vec![MemoryType { heap: 0, flags }], 1)
    }

    /// A device with memory of its own, without a clock.
    pub(super) fn two_pools(name: &str) -> DriverProfile {
        let mapped = TypeFlags::HOST_VISIBLE.with(TypeFlags::HOST_CACHED).with(TypeFlags::HOST_COHERENT);
        let heap = |device_local| Heap { bytes: own_bytes(), device_local };
        let types = vec![
            MemoryType { heap: 0, flags: TypeFlags::DEVICE_LOCAL },
            MemoryType { heap: 1, flags: mapped },
        ];
        let heaps = vec![heap(true), heap(false)];
        DriverProfile {
            timestamp_ns: 0.0,
            ..DriverProfile::made(name, DeviceKind::Discrete, heaps, types, 0b10)
        }
    }

    fn made(
        name: &str,
        kind: DeviceKind,
        heaps: Vec<Heap>,
        types: Vec<MemoryType>,
        type_bits: u32,
    ) -> DriverProfile {
        let largest = 2 * GIB;
        let alignment = 256;
        DriverProfile {
            name: name.to_owned(),
            title: "no recorded driver: as strict as the rules allow".to_owned(),
            kind,
            driver: format!("onepool {}", env!("CARGO_PKG_VERSION")),
            api_version: env!("CARGO_PKG_VERSION").to_owned(),
            heaps,
            types,
            budgets: Vec::new(),
            import: Some(HostImport {
                driver: DriverKind::Other,
                alignment: 4096,
                type_bits,
                takes: Takes::STRICT,
                codes: Codes::STRICT,
                counted: false,
                max_bytes: None,
            }),
            dma_bufs: true,
            overcommits: true,
            kernel: None,
            limits: Limits {
                max_argument_bytes: largest,
                max_buffer_bytes: largest,
                argument_alignment: alignment,
                texel_alignment: alignment,
                max_texels: 1 << 27,
                max_groups: [65_535; 3],
                max_group_items: 1024,
                max_group_size: [1024, 1024, 64],
                max_local_bytes: 32 << 10,
                max_params_bytes: 1 << 16,
                max_arguments: 1 << 16,
                non_coherent_atom: alignment,
            },
            subgroup: 1,
            timestamp_ns: 1.0,
            choices: Vec::new(),
        }
    }

    /// Its memory as the runtime sees it.
    pub fn memory(&self) -> MemoryModel {
        let imports = match &self.import {
            Some(import) => ImportTypes::Bits(import.type_bits),
            None => ImportTypes::None,
        };
        MemoryModel::new(self.kind, self.heaps.clone(), self.types.clone(), imports)
    }

    /// The rules that the runtime imports by, as for the driver itself; `None` where it lists the extension and grants no
    /// type.
    pub fn rules(&self) -> Option<ImportRules> {
        let import = self.import.as_ref()?;
        self.memory().import_type()?;
        Some(ImportRules::for_driver(import.driver).with_limits(DeviceLimits {
            import_alignment: import.alignment,
            storage_offset_alignment: self.limits.argument_alignment,
            max_allocation: self.limits.max_buffer_bytes,
            max_range: self.limits.max_argument_bytes,
        }))
    }
}

/// What a made-up device holds: it plays on the host's memory.
fn own_bytes() -> u64 {
    physical_memory().map_or(8 * GIB, |host| host.min(8 * GIB))
}
