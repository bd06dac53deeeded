//! Parameters on devices, shared by every session that is given the same store.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use super::device::Device;
use super::error::Error;
use crate::backend::Placement;
use crate::device::Buffer;
use crate::graph::{GraphError, Tensor, TensorIdentity};
use crate::kernel::KernelSource;
use crate::ops::PackKey;
use crate::ops::pointwise::Programs;
use crate::plan::{PlanError, PlannedConstant};

/// Holds each parameter once for each device and layout, however many sessions read it.
///
/// Two constants are the same parameter when they share their bytes ([`Tensor::identity`]): graphs
/// made from one loaded file, or given one tensor, do.
#[derive(Debug, Default)]
pub struct ParamStore {
    held: Mutex<HashMap<Key, Held>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Key {
    context: usize,
    tensor: TensorIdentity,
    layout: Option<PackKey>,
}

#[derive(Debug)]
struct Held {
    /// Keeps the identity from being used again.
    _tensor: Tensor,
    buffer: Buffer,
}

/// What a store holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct ParamUsage {
    /// How many parameters, each device and layout counted.
    pub count: usize,
    /// Their bytes on devices.
    pub bytes: u64,
}

impl ParamStore {
    /// An empty store.
    pub fn new() -> Arc<Self> {
        Arc::default()
    }

    /// What is held.
    pub fn usage(&self) -> ParamUsage {
        let held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
        ParamUsage { count: held.len(), bytes: held.values().map(|h| h.buffer.bytes()).sum() }
    }

    /// The buffer that holds `constant` on `device`, made at its first use.
    pub(super) fn buffer(&self, device: &Device, constant: &PlannedConstant) -> Result<Buffer, Error> {
        let key = Key {
            context: device.context.id(),
            tensor: constant.tensor.identity(),
            layout: constant.packed.as_ref().map(|p| p.key),
        };
        let find = || {
            let held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
            held.get(&key).map(|h| h.buffer.clone())
        };
        if let Some(buffer) = find() {
            return Ok(buffer);
        }
        let buffer = upload(device, constant)?;
        let mut held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
        let entry = held.entry(key).or_insert_with(|| Held { _tensor: constant.tensor.clone(), buffer });
        Ok(entry.buffer.clone())
    }
}

fn upload(device: &Device, constant: &PlannedConstant) -> Result<Buffer, Error> {
    let buffer = device.buffer(constant.bytes(), Placement::Device, "parameter")?;
    match &constant.packed {
        None => device.write(&buffer, constant.tensor.bytes())?,
        Some(packed) => {
            let mut bytes = vec![0u8; packed.bytes];
            (packed.pack)(&packed.source, &mut bytes).map_err(|source| {
                PlanError::Graph(GraphError::Node {
                    node: constant.name.clone(),
                    op: packed.key.layout.to_owned(),
                    source,
                })
            })?;
            device.write(&buffer, &bytes)?;
        }
    }
    Ok(buffer)
}

/// Kernel sources, so that one context compiles each once for all plans of a session.
#[derive(Debug, Default)]
pub(super) struct Sources {
    shipped: Mutex<HashMap<crate::kernel::KernelId, Arc<KernelSource>>>,
    programs: Programs,
}

impl Sources {
    /// Chains of pointwise operators; equal ones have one source.
    pub(super) fn programs(&self) -> &Programs {
        &self.programs
    }

    /// The source of a shipped kernel; the same one at every call.
    pub(super) fn shipped(&self, id: crate::kernel::KernelId) -> Arc<KernelSource> {
        let mut shipped = self.shipped.lock().unwrap_or_else(PoisonError::into_inner);
        Arc::clone(shipped.entry(id).or_insert_with(|| Arc::new(KernelSource::shipped(id))))
    }
}
