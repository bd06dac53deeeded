//! The fallback device: this process's own threads and memory.
//!
//! Kernels are the native functions of their sources, an imported buffer is the pointer itself, and a
//! queue has a FIFO worker and a counter, so that submission is asynchronous as everywhere else. Loops of
//! kernels are shared among the threads of the queue's own [team](crate::team).
//!
//! `unsafe` lives in `memory` (slices over raw blocks) and, as a signature, in `context`.

mod context;
mod memory;
mod queue;
mod tables;

#[cfg(test)]
mod tests;

use std::sync::Arc;

use self::context::CpuContext;
use super::{ContextBackend, ContextDesc, DeviceError, DeviceInfo, DeviceKind, Driver, Limits};
use onepool_core::memory::image::{Grain, ImageRules, TexelSet};
use onepool_core::memory::import::ImportRules;
use onepool_core::memory::model::MemoryModel;
use onepool_core::memory::os::{cores, physical_memory};
use onepool_expr::simd::{VECTORS_VARIABLE, Vectors};
use onepool_spirv::Requires;

/// What every block starts at a multiple of: a cache line, and the widest vector there is.
const BLOCK_ALIGNMENT: u64 = 64;
/// The most threads of one context.
const MAX_THREADS: usize = 1024;

/// Opens the CPU backend; it has one device.
#[derive(Clone, Copy, Debug, Default)]
pub struct CpuDriver;

impl Driver for CpuDriver {
    fn api(&self) -> &'static str {
        "cpu"
    }

    fn devices(&self) -> Result<Vec<DeviceInfo>, DeviceError> {
        Ok(vec![info(default_threads())])
    }

    fn open(&self, index: usize, desc: &ContextDesc) -> Result<Arc<dyn ContextBackend>, DeviceError> {
        if index != 0 {
            return Err(DeviceError::Unsupported {
                what: format!("cpu device {index}; there is only device 0"),
            });
        }
        if let Err(said) = Vectors::asked() {
            return Err(DeviceError::Unsupported { what: format!("{VECTORS_VARIABLE}: {said}") });
        }
        let threads = if desc.threads == 0 { default_threads() } else { desc.threads };
        if threads > MAX_THREADS {
            let (asked, limit) = (threads as u64, MAX_THREADS as u64);
            return Err(DeviceError::TooMany { what: "threads", asked, limit });
        }
        Ok(Arc::new(CpuContext::new(info(threads), threads, desc.wait)))
    }
}

fn default_threads() -> usize {
    cores().min(MAX_THREADS)
}

fn info(threads: usize) -> DeviceInfo {
    let address_space = isize::MAX as u64;
    let memory = physical_memory().unwrap_or(address_space);
    // What is measured with one kind of vectors is not asked for with another.
    let vectors = if Vectors::used() == Vectors::Avx2 { "-avx2" } else { "" };
    DeviceInfo {
        api: "cpu",
        name: format!("{} processor, {threads} threads", std::env::consts::ARCH),
        kind: DeviceKind::Cpu,
        driver: format!("onepool {}", env!("CARGO_PKG_VERSION")),
        api_version: env!("CARGO_PKG_VERSION").to_owned(),
        uuid: format!("cpu-{}-{}{vectors}", std::env::consts::ARCH, env!("CARGO_PKG_VERSION")),
        index: 0,
        same_as: None,
        unusable: None,
        memory: MemoryModel::one_pool(DeviceKind::Cpu, memory),
        native: true,
        in_order: true,
        splits_grids: false,
        orders_groups: true,
        limits: Limits {
            max_argument_bytes: address_space,
            max_buffer_bytes: memory,
            // Native kernels check the address of the elements they view.
            argument_alignment: 1,
            texel_alignment: 16,
            max_texels: u64::from(u32::MAX),
            max_groups: [u32::MAX; 3],
            max_group_items: u32::MAX,
            max_group_size: [u32::MAX; 3],
            max_local_bytes: u32::MAX,
            max_params_bytes: 1 << 16,
            max_arguments: 1 << 16,
            non_coherent_atom: 1,
        },
        features: Requires::NONE,
        emulated: Requires::NONE,
        import: Some(import_rules()),
        subgroup: 1,
        subgroup_range: [1, 1],
        timestamp_ns: 1.0,
        processors: None,
        prefers_texels: false,
        most_iterations: None,
        images: Some(image_rules()),
        advice: Vec::new(),
    }
}

/// An image is its tensor: rows are contiguous, wherever they are.
fn image_rules() -> ImageRules {
    ImageRules {
        pitch: Grain::Texels(1),
        base: Grain::Texels(1),
        rows: 1,
        max_width: u32::MAX,
        max_height: u32::MAX,
        max_texels: u64::MAX,
        sampled: TexelSet::ALL,
        stored: TexelSet::ALL,
        filtered: TexelSet::default(),
        filter_bits: 0,
        over_imports: true,
    }
}

/// A pointer is a pointer: any readable memory, writable where it is written, at any address.
fn import_rules() -> ImportRules {
    ImportRules {
        alignment: 1,
        size_multiple: 1,
        storage_offset_alignment: 8,
        max_bytes: isize::MAX as u64,
        max_range: isize::MAX as u64,
        anonymous_only: false,
        private_only: false,
        memfd_importable: true,
        read_only_importable: true,
        must_be_coherent: true,
    }
}
