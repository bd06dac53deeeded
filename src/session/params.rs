//! Parameters on devices, shared by every session that is given the same store.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use super::device::Device;
use super::error::Error;
use super::unify::Known;
use crate::backend::Placement;
use crate::device::Buffer;
use crate::graph::{GraphError, Tensor, TensorIdentity};
use crate::ops::PackKey;
use crate::plan::{PlanError, PlannedConstant};

/// Holds each parameter once for each device and layout, however many sessions read it.
///
/// Two constants are the same parameter when they share their bytes ([`Tensor::identity`]): graphs
/// made from one loaded file, or given one tensor, do, and [`ParamStore::unify`] makes those share them that
/// were loaded apart. A parameter is held as long as a plan of a session reads it.
#[derive(Debug, Default)]
pub struct ParamStore {
    held: Mutex<HashMap<Key, Weak<Param>>>,
    /// Regions that parameters are read in, by context and address.
    regions: Mutex<HashMap<(usize, usize), Weak<Buffer>>>,
    pub(super) known: Mutex<Known>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Key {
    context: usize,
    tensor: TensorIdentity,
    layout: Option<PackKey>,
}

/// A parameter on a device.
#[derive(Debug)]
pub(super) struct Param {
    /// Keeps the identity from being used again.
    _tensor: Tensor,
    /// The import of the whole region that it is a part of.
    _region: Option<Arc<Buffer>>,
    pub(super) buffer: Buffer,
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
        let params: Vec<Arc<Param>> = held.values().filter_map(Weak::upgrade).collect();
        ParamUsage { count: params.len(), bytes: params.iter().map(|p| p.buffer.bytes()).sum() }
    }

    /// The buffer that holds `constant` on `device`, made at its first use.
    pub(super) fn param(&self, device: &Device, constant: &PlannedConstant) -> Result<Arc<Param>, Error> {
        let key = Key {
            context: device.context.id(),
            tensor: constant.tensor.identity(),
            layout: constant.packed.as_ref().map(|p| p.key),
        };
        let lock = || self.held.lock().unwrap_or_else(PoisonError::into_inner);
        let found = lock().get(&key).and_then(Weak::upgrade);
        if let Some(param) = found {
            return Ok(param);
        }
        let (region, buffer) = match self.in_place(device, constant) {
            Some((region, buffer)) => (Some(region), buffer),
            None => (None, upload(device, constant)?),
        };
        let mut held = lock();
        if let Some(param) = held.get(&key).and_then(Weak::upgrade) {
            return Ok(param);
        }
        held.retain(|_, param| param.strong_count() > 0);
        let param = Arc::new(Param { _tensor: constant.tensor.clone(), _region: region, buffer });
        held.insert(key, Arc::downgrade(&param));
        Ok(param)
    }

    /// Parameters that lie in pages of their own are read where they are, if the device reaches them as fast as its
    /// own memory.
    fn in_place(&self, device: &Device, constant: &PlannedConstant) -> Option<(Arc<Buffer>, Buffer)> {
        let (region, offset) = constant.tensor.region().filter(|_| constant.packed.is_none())?;
        let info = device.context.info();
        let aligned =
            (offset as u64).is_multiple_of(info.limits.argument_alignment.max(info.limits.texel_alignment));
        // A texel view may round the end up.
        let bytes = constant.bytes().max(16).next_multiple_of(16);
        if !device.is_unified() || !aligned || offset as u64 + bytes > region.bytes() as u64 {
            return None;
        }
        let key = (device.context.id(), Arc::as_ptr(region).addr());
        let mut regions = self.regions.lock().unwrap_or_else(PoisonError::into_inner);
        let whole = match regions.get(&key).and_then(Weak::upgrade) {
            Some(whole) => whole,
            None => {
                // Where it is refused the copy is as good, only larger.
                let whole = Arc::new(device.context.import_constant(region).ok()?);
                regions.retain(|_, whole| whole.strong_count() > 0);
                regions.insert(key, Arc::downgrade(&whole));
                whole
            }
        };
        if !whole.info().coherent {
            return None;
        }
        let part = whole.sub_buffer(offset as u64, bytes).ok()?;
        Some((whole, part))
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
