//! Kernel sources of a session, and the kernels that drivers rejected.

use std::borrow::Cow;
use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use super::device::Device;
use crate::backend::{DeviceError, DeviceInfo};
use crate::device;
use crate::kernel::{KernelId, KernelSource, Requires};
use crate::plan::PlanCache;
use crate::sync::lock;

/// Features that kernels use for speed; each such kernel has an alternative without them.
const OPTIONAL: Requires = Requires::COOPERATIVE_MATRIX.union(Requires::MATRIX_F16);

/// Kernel sources, so that a context compiles each once for all plans of a session.
#[derive(Debug, Default)]
pub(in crate::session) struct KernelSources {
    shipped: Mutex<HashMap<KernelId, Arc<KernelSource>>>,
    cache: PlanCache,
    refused: Mutex<Vec<RefusedKernel>>,
}

/// A kernel that a device rejected although it reports its features.
#[derive(Clone, Debug)]
struct RefusedKernel {
    device: usize,
    features: Requires,
    remark: String,
}

impl KernelSources {
    /// The cache of all plans for `devices`, with import costs where tensors may cross between devices.
    pub(in crate::session) fn cache(&self, devices: &[Device]) -> &PlanCache {
        if devices.len() > 1 {
            self.cache.know_costs(|| devices.iter().map(|d| d.context.import_costs()).collect());
        }
        &self.cache
    }

    /// The source of a shipped kernel, one for all calls.
    pub(in crate::session) fn shipped(&self, id: KernelId) -> Arc<KernelSource> {
        let mut shipped = lock(&self.shipped);
        Arc::clone(shipped.entry(id).or_insert_with(|| Arc::new(id.source())))
    }

    /// Records that `device` rejected `source`; later plans avoid its optional features.
    pub(in crate::session) fn refuse(&self, device: usize, source: &KernelSource, error: &device::Error) {
        let device::Error::Device(DeviceError::Program { .. } | DeviceError::Unsupported { .. }) = error
        else {
            return;
        };
        if !source.requires().contains(Requires::COOPERATIVE_MATRIX) {
            return;
        }
        let mut refused = lock(&self.refused);
        if !refused.iter().any(|r| r.device == device) {
            let remark = format!("planned without {OPTIONAL}: {error}");
            tracing::warn!(target: "onepool::session", device, remark);
            refused.push(RefusedKernel { device, features: OPTIONAL, remark });
        }
    }

    /// Rejections that later plans take into account.
    pub(in crate::session) fn remarks(&self) -> Vec<String> {
        let refused = lock(&self.refused);
        refused.iter().map(|r| r.remark.clone()).collect()
    }

    /// The devices without the features of rejected kernels.
    pub(in crate::session) fn usable<'d>(&self, devices: &'d [Device]) -> Vec<Cow<'d, DeviceInfo>> {
        let refused = lock(&self.refused);
        let usable = devices.iter().enumerate().map(|(at, device)| {
            let info = device.context.info();
            let lost = refused.iter().filter(|r| r.device == at);
            let features = lost.fold(info.features, |features, r| features.missing(r.features));
            if features == info.features {
                Cow::Borrowed(info)
            } else {
                Cow::Owned(DeviceInfo { features, ..info.clone() })
            }
        });
        usable.collect()
    }
}
