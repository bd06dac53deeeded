//! A deliberately hostile device for tests: it runs native kernels over its own copy of memory, and
//! shows no one anything that the rules do not promise.
//!
//! # The memory model
//!
//! The sections are those of the Vulkan specification.
//!
//! * *Host to device* (Host Write Ordering Guarantees; Host Access to Device Memory Objects): a host write
//!   becomes visible to the device with the next submission that touches the bytes, on non-coherent memory
//!   only if it was flushed before. Nothing that the host writes later is seen by that submission.
//! * *Device to device* (Execution and Memory Dependencies; Pipeline Barriers): a write is seen by a later
//!   command only if a barrier between them names its kind of write in `src` and the later command's kind
//!   of access in `dst`, or if a chain of barriers does. Else the later read gets the *old* bytes and a
//!   hazard is reported; a later write turns the bytes to poison and is reported; a write after a read
//!   with no execution dependency is reported. Submission order alone orders nothing, a wait of the host
//!   orders everything before it against everything submitted after it.
//! * *Device to host* (Memory Domains; `vkWaitForFences`): the host sees a write after a barrier with
//!   `HOST_READ` in `dst` has run after it *and* the host has waited for that submission *and*, on
//!   non-coherent memory, has invalidated the bytes. Until then it finds poison in them once the
//!   submission that wrote them is over.
//! * *Unwritten memory* (Device Memory) holds poison: all bits one, which is NaN in every float format.
//! * *Allocations* lie in the memory type that the device's
//!   [`MemoryModel`](onepool_core::memory::model::MemoryModel) chooses for their placement: mapped, cached
//!   and coherent as that type is, charged to its heap.
//! * *Imports* (`VK_EXT_external_memory_host`) are taken or refused as the kernel of the device's
//!   [`DriverProfile`] does, with its codes; no page twice. They lie in the best type that the driver grants
//!   and are charged to its heap.
//! * *Too much* is found where the profile says so: at the next submission, which loses the device, or where the
//!   memory is asked for. What is too much its heaps say, or the kernel's own sizes where the profile has them: the
//!   kernel puts imports in the host's memory that it maps, and all else there too once what was set aside is full.
//!
//! A device plays a [`DriverProfile`]: `coherent`, `noncoherent` and `discrete` are made up and as strict as
//! the rules allow, the others are recorded drivers. Not played are what kernels can do (they are native
//! functions) and the count of allocations.
//!
//! Hazards, breaches of alignment and the destruction of what is in use are collected and given by
//! [`validation_messages`](super::ContextBackend::validation_messages): a test asserts that there are none.
//!
//! `unsafe` lives in `host` (the application's side of memory) and, as a signature, in `context`.

mod context;
mod faults;
mod host;
mod images;
mod kernel;
mod model;
mod profile;
mod queue;
mod world;

#[cfg(test)]
mod tests;

use std::path::Path;
use std::sync::{Arc, Mutex};

use self::context::SimContext;
pub use self::faults::{SimFault, SimFaults};
pub use self::profile::{Codes, DriverProfile, HostImport, KernelSizes, Takes};
use super::{ContextBackend, ContextDesc, DeviceError, DeviceInfo, Driver};
use onepool_core::memory::image::{Grain, ImageRules, TexelSet};
use onepool_core::sync::lock;
use onepool_spirv::Requires;

/// How a simulated device behaves.
#[derive(Clone, Debug)]
pub struct SimConfig {
    /// What it plays.
    pub profile: DriverProfile,
    /// What goes wrong, and when.
    pub faults: SimFaults,
    /// Contexts of one identity are on one device, whose memory they share.
    pub identity: Option<String>,
}

impl From<DriverProfile> for SimConfig {
    /// The device of a profile, with nothing that goes wrong.
    fn from(profile: DriverProfile) -> SimConfig {
        SimConfig { profile, faults: SimFaults::default(), identity: None }
    }
}

impl SimConfig {
    /// A device that shares coherent memory with the host.
    pub fn coherent() -> SimConfig {
        DriverProfile::one_pool("coherent", true).into()
    }

    /// A device that shares memory with the host that must be flushed and invalidated.
    pub fn noncoherent() -> SimConfig {
        DriverProfile::one_pool("noncoherent", false).into()
    }

    /// A device with memory of its own.
    pub fn discrete() -> SimConfig {
        DriverProfile::two_pools("discrete").into()
    }

    /// The same device with heaps of `bytes` bytes, which the kernel has of both kinds.
    #[must_use]
    pub fn holding(mut self, bytes: u64) -> SimConfig {
        self.profile.heaps.iter_mut().for_each(|heap| heap.bytes = bytes);
        let sizes = KernelSizes { set_aside: bytes, mapped: bytes };
        self.profile.kernel = self.profile.kernel.map(|_| sizes);
        self
    }

    /// The same device under a driver that imports no host memory.
    #[must_use]
    pub fn without_imports(mut self) -> SimConfig {
        self.profile.import = None;
        self
    }

    /// Rows and places that a tensor has only by luck.
    pub(super) fn image_rules(&self) -> ImageRules {
        let grain = self.profile.limits.argument_alignment.max(16);
        ImageRules {
            pitch: Grain::Bytes(grain),
            base: Grain::Bytes(2 * grain),
            rows: 4,
            max_width: 1 << 14,
            max_height: 1 << 14,
            max_texels: u64::MAX,
            sampled: TexelSet::ALL,
            stored: TexelSet::ALL,
            filtered: TexelSet::default(),
            filter_bits: 0,
            over_imports: false,
        }
    }

    fn info(&self, index: usize) -> DeviceInfo {
        let profile = &self.profile;
        DeviceInfo {
            api: "sim",
            name: profile.name.clone(),
            kind: profile.kind,
            driver: profile.driver.clone(),
            api_version: profile.api_version.clone(),
            uuid: format!("sim-{}-{}", profile.name, env!("CARGO_PKG_VERSION")),
            index,
            same_as: None,
            unusable: None,
            memory: profile.memory(),
            native: true,
            in_order: false,
            splits_grids: false,
            orders_groups: true,
            limits: profile.limits.clone(),
            features: Requires::NONE,
            emulated: Requires::NONE,
            import: profile.rules(),
            subgroup: profile.subgroup,
            subgroup_range: [profile.subgroup; 2],
            timestamp_ns: profile.timestamp_ns,
            processors: None,
            prefers_texels: false,
            most_iterations: None,
            images: Some(self.image_rules()),
            advice: profile.choices.clone(),
        }
    }
}

/// Opens simulated devices: those that it lists, and recorded drivers by their names or by the paths of their profiles.
#[derive(Clone, Debug)]
pub struct SimDriver {
    devices: Vec<SimConfig>,
    /// Devices that were asked for by name; their indices follow on those of `devices`.
    named: Arc<Mutex<Vec<SimConfig>>>,
}

impl Default for SimDriver {
    /// The devices `coherent`, `noncoherent` and `discrete`.
    fn default() -> SimDriver {
        SimDriver::with(vec![SimConfig::coherent(), SimConfig::noncoherent(), SimConfig::discrete()])
    }
}

impl SimDriver {
    /// A driver with these devices.
    pub fn with(devices: Vec<SimConfig>) -> SimDriver {
        SimDriver { devices, named: Arc::default() }
    }

    /// The device of a profile that was asked for by name: the same index each time.
    fn keep(&self, config: SimConfig) -> DeviceInfo {
        let mut named = lock(&self.named);
        let at = named.iter().position(|known| known.profile == config.profile).unwrap_or_else(|| {
            named.push(config.clone());
            named.len() - 1
        });
        config.info(self.devices.len() + at)
    }
}

impl Driver for SimDriver {
    fn api(&self) -> &'static str {
        "sim"
    }

    fn devices(&self) -> Result<Vec<DeviceInfo>, DeviceError> {
        Ok(self.devices.iter().enumerate().map(|(index, config)| config.info(index)).collect())
    }

    fn names(&self) -> Vec<String> {
        DriverProfile::names().map(str::to_owned).collect()
    }

    fn by_name(&self, name: &str) -> Result<Option<DeviceInfo>, DeviceError> {
        let is_path = name.contains(['/', '\\']) || Path::new(name).extension().is_some_and(|e| e == "json");
        let profile = match DriverProfile::built_in(name) {
            Some(profile) => profile?,
            None if is_path => DriverProfile::read(name)?,
            None => return Ok(None),
        };
        Ok(Some(self.keep(profile.into())))
    }

    fn open(&self, index: usize, _: &ContextDesc) -> Result<Arc<dyn ContextBackend>, DeviceError> {
        let config = self.devices.get(index).cloned().or_else(|| {
            let named = lock(&self.named);
            named.get(index.checked_sub(self.devices.len())?).cloned()
        });
        match config {
            Some(config) => Ok(Arc::new(SimContext::new(config.info(index), config)?)),
            None => Err(DeviceError::Unsupported { what: format!("sim device {index}") }),
        }
    }
}
