//! A deliberately hostile device for tests: it runs native kernels over its own copy of memory, and
//! shows nobody anything that the rules do not promise.
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
//!   hazard is reported; a later write turns the bytes to poison and is reported; a write behind a read
//!   with no execution dependency is reported. Submission order alone orders nothing, a wait of the host
//!   orders everything before it against everything submitted after it.
//! * *Device to host* (Memory Domains; `vkWaitForFences`): the host sees a write after a barrier with
//!   `HOST_READ` in `dst` has run behind it *and* the host has waited for that submission *and*, on
//!   non-coherent memory, has invalidated the bytes. Until then it finds poison in them once the
//!   submission that wrote them is over.
//! * *Unwritten memory* (Device Memory) holds poison: all bits one, which is NaN in every float format.
//! * *Imports* (`VK_EXT_external_memory_host`, as amdgpu has it): page-aligned address and size, private
//!   anonymous pages that can be read and written, no page twice. Imports and allocations beyond the
//!   budget succeed, and the next submission loses the device.
//!
//! Hazards, breaches of alignment and the destruction of what is in use are collected and given by
//! [`validation_messages`](super::ContextBackend::validation_messages): a test asserts that there are none.
//!
//! `unsafe` lives in `host` (the application's side of memory) and, as a signature, in `context`.

mod context;
mod host;
mod images;
mod model;
mod queue;
mod world;

#[cfg(test)]
mod tests;

use std::sync::Arc;

use self::context::SimContext;
use super::{ContextBackend, ContextDesc, DeviceError, DeviceInfo, DeviceKind, Driver, Limits};
use crate::kernel::Requires;
use crate::memory::image::{Grain, ImageRules, TexelSet};
use crate::memory::import::ImportRules;
use crate::memory::os::physical_memory;

/// How a simulated device behaves.
#[derive(Clone, Debug)]
pub struct SimConfig {
    /// What selectors call it.
    pub name: String,
    /// Host and device see each other's bytes without flush and invalidate.
    pub coherent: bool,
    /// Every buffer is mapped; else device memory is out of the host's reach.
    pub unified: bool,
    /// Bytes of imports and allocations that may live at once.
    pub budget: u64,
    /// What the offset of a kernel argument must be a multiple of.
    pub argument_alignment: u64,
    /// Granularity of flush and invalidate.
    pub atom: u64,
    /// Whether host memory can be imported.
    pub imports: bool,
    /// Whether there is a clock.
    pub timestamps: bool,
    /// Whether it takes dma-bufs.
    pub dma_bufs: bool,
    /// What goes wrong, and when.
    pub faults: SimFaults,
}

/// Failures to inject, each at the n-th call since the context was opened; the first is 1.
#[derive(Clone, Copy, Debug, Default)]
pub struct SimFaults {
    /// The submission that loses the device.
    pub lose_at_submit: Option<u64>,
    /// The allocation that finds no memory.
    pub exhaust_at_allocation: Option<u64>,
    /// The import that the driver refuses.
    pub refuse_at_import: Option<u64>,
}

impl SimConfig {
    /// A device that shares coherent memory with the host.
    pub fn coherent() -> SimConfig {
        SimConfig {
            name: "coherent".to_owned(),
            coherent: true,
            unified: true,
            budget: 8 << 30,
            argument_alignment: 256,
            atom: 256,
            imports: true,
            timestamps: true,
            dma_bufs: true,
            faults: SimFaults::default(),
        }
    }

    /// A device that shares memory with the host that must be flushed and invalidated.
    pub fn noncoherent() -> SimConfig {
        SimConfig { name: "noncoherent".to_owned(), coherent: false, ..SimConfig::coherent() }
    }

    /// A device with memory of its own.
    pub fn discrete() -> SimConfig {
        SimConfig { name: "discrete".to_owned(), unified: false, timestamps: false, ..SimConfig::coherent() }
    }

    /// Rows and places that a tensor has only by luck.
    pub(super) fn image_rules(&self) -> ImageRules {
        let grain = self.argument_alignment.max(16);
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
        let largest = 2 << 30;
        // It plays on the host's memory.
        let memory = physical_memory().map_or(self.budget, |host| self.budget.min(host));
        DeviceInfo {
            api: "sim",
            name: self.name.clone(),
            kind: if self.unified { DeviceKind::Integrated } else { DeviceKind::Discrete },
            driver: format!("onepool {}", env!("CARGO_PKG_VERSION")),
            api_version: env!("CARGO_PKG_VERSION").to_owned(),
            uuid: format!("sim-{}-{}", self.name, env!("CARGO_PKG_VERSION")),
            index,
            unusable: None,
            unified: self.unified,
            native: true,
            in_order: false,
            limits: Limits {
                max_argument_bytes: largest,
                max_buffer_bytes: largest,
                argument_alignment: self.argument_alignment,
                texel_alignment: self.argument_alignment,
                max_texels: 1 << 27,
                max_groups: [65_535; 3],
                max_group_items: 1024,
                max_group_size: [1024, 1024, 64],
                max_local_bytes: 32 << 10,
                max_params_bytes: 1 << 16,
                max_arguments: 1 << 16,
                non_coherent_atom: self.atom,
                memory_bytes: memory,
            },
            features: Requires::NONE,
            emulated: Requires::NONE,
            import: self.imports.then(|| ImportRules {
                storage_offset_alignment: self.argument_alignment,
                max_range: largest,
                ..ImportRules::strict()
            }),
            subgroup: 1,
            subgroup_range: [1, 1],
            timestamp_ns: if self.timestamps { 1.0 } else { 0.0 },
            prefers_texels: false,
            images: Some(self.image_rules()),
            advice: Vec::new(),
        }
    }
}

/// Opens simulated devices.
#[derive(Clone, Debug)]
pub struct SimDriver {
    devices: Vec<SimConfig>,
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
        SimDriver { devices }
    }
}

impl Driver for SimDriver {
    fn api(&self) -> &'static str {
        "sim"
    }

    fn devices(&self) -> Result<Vec<DeviceInfo>, DeviceError> {
        Ok(self.devices.iter().enumerate().map(|(index, config)| config.info(index)).collect())
    }

    fn open(&self, index: usize, _: &ContextDesc) -> Result<Arc<dyn ContextBackend>, DeviceError> {
        match self.devices.get(index) {
            Some(config) => Ok(Arc::new(SimContext::new(config.info(index), config.clone())?)),
            None => Err(DeviceError::Unsupported { what: format!("sim device {index}") }),
        }
    }
}
