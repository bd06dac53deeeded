//! Kernel sources of a session, and what drivers said to them.

use std::borrow::Cow;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use super::device::Device;
use crate::backend::{DeviceError, DeviceInfo};
use crate::device;
use crate::kernel::{KernelId, KernelSource, Requires};
use crate::plan::PlanCache;

/// Features that kernels use for their speed: there is another kernel for every one of them.
const OPTIONAL: Requires = Requires::COOPERATIVE_MATRIX.union(Requires::MATRIX_F16);

/// Kernel sources, so that one context compiles each once for all plans of a session.
#[derive(Debug, Default)]
pub(in crate::session) struct Sources {
    shipped: Mutex<HashMap<KernelId, Arc<KernelSource>>>,
    cache: PlanCache,
    refused: Mutex<Vec<Refused>>,
}

/// A kernel that a device reported the features for, and did not build.
#[derive(Clone, Debug)]
struct Refused {
    device: usize,
    features: Requires,
    remark: String,
}

impl Sources {
    /// What plans for `devices` share: chains of pointwise operators, constants in `float16`, what imports cost where
    /// tensors may cross from one to another.
    pub(in crate::session) fn cache(&self, devices: &[Device]) -> &PlanCache {
        if devices.len() > 1 {
            self.cache.know_costs(|| devices.iter().map(|d| d.context.import_costs()).collect());
        }
        &self.cache
    }

    /// The source of a shipped kernel; the same one at every call.
    pub(in crate::session) fn shipped(&self, id: KernelId) -> Arc<KernelSource> {
        let mut shipped = self.shipped.lock().unwrap_or_else(PoisonError::into_inner);
        Arc::clone(shipped.entry(id).or_insert_with(|| Arc::new(KernelSource::shipped(id))))
    }

    /// Notes that entry `device` of the table did not build `source`, if plans can do without the features that it
    /// needs: one made now does.
    pub(in crate::session) fn refuse(&self, device: usize, source: &KernelSource, error: &device::Error) {
        let device::Error::Device(DeviceError::Program { .. } | DeviceError::Unsupported { .. }) = error
        else {
            return;
        };
        if !source.requires().contains(Requires::COOPERATIVE_MATRIX) {
            return;
        }
        let mut refused = self.refused.lock().unwrap_or_else(PoisonError::into_inner);
        if !refused.iter().any(|r| r.device == device) {
            let remark = format!("planned without {OPTIONAL}: {error}");
            tracing::warn!(target: "onepool::session", device, remark);
            refused.push(Refused { device, features: OPTIONAL, remark });
        }
    }

    /// What drivers said that plans had to take into account.
    pub(in crate::session) fn remarks(&self) -> Vec<String> {
        let refused = self.refused.lock().unwrap_or_else(PoisonError::into_inner);
        refused.iter().map(|r| r.remark.clone()).collect()
    }

    /// The devices as plans see them: without the features that kernels were refused for.
    pub(in crate::session) fn usable<'d>(&self, devices: &'d [Device]) -> Vec<Cow<'d, DeviceInfo>> {
        let refused = self.refused.lock().unwrap_or_else(PoisonError::into_inner);
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
