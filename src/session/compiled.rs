//! A plan with its device objects: kernels, parameters, arenas. Shared by all bindings of one shape.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::device::Device;
use super::error::{Error, SessionError};
use super::params::{Param, ParamStore, Sources};
use super::stage::Stage;
use crate::backend::Placement;
use crate::device::{Buffer, Kernel};
use crate::kernel::KernelSource;
use crate::memory::host::{HostRegion, SharedRegion};
use crate::ops::StepKernel;
use crate::plan::{Domain, KernelCode, Plan, PlannedKernel};

/// A plan made ready on the session's devices.
#[derive(Debug)]
pub(super) struct Compiled {
    pub(super) plan: Plan,
    pub(super) kernels: Vec<Kernel>,
    pub(super) constants: Vec<Arc<Param>>,
    /// A few bytes on each device for arguments that are not used.
    pub(super) unused: Vec<Buffer>,
    /// What comes after the plan, where it is the head of a split graph.
    pub(super) stage: Option<Arc<Stage>>,
}

impl Compiled {
    pub(super) fn new(
        plan: Plan,
        devices: &[Device],
        params: &ParamStore,
        sources: &Sources,
        stage: Option<Arc<Stage>>,
    ) -> Result<Self, Error> {
        let kernels = build_kernels(&plan, devices, sources)?;
        let constants = plan
            .constants
            .iter()
            .map(|c| params.param(&devices[c.device as usize], c))
            .collect::<Result<_, _>>()?;
        let unused = devices
            .iter()
            .map(|d| d.buffer(256, Placement::Device, "unused argument"))
            .collect::<Result<_, _>>()?;
        Ok(Compiled { plan, kernels, constants, unused, stage })
    }
}

/// Creates the kernels, those of one device on several threads: drivers compile slowly.
fn build_kernels(plan: &Plan, devices: &[Device], sources: &Sources) -> Result<Vec<Kernel>, Error> {
    use rayon::prelude::*;
    let build = |k: &PlannedKernel| -> Result<Kernel, Error> {
        let source = match &k.code {
            KernelCode::Native(kernel) => Arc::new(KernelSource::from_native(kernel.clone())),
            KernelCode::Device(StepKernel::Table(id)) => sources.shipped(*id),
            KernelCode::Device(StepKernel::Module(source)) => Arc::clone(source),
        };
        Ok(devices[k.device as usize].context.create_kernel(&source, &k.spec)?)
    };
    // Native functions need no compiling, and their devices may run kernels on this very pool.
    if plan.kernels.iter().all(|k| matches!(k.code, KernelCode::Native(_))) {
        return plan.kernels.iter().map(build).collect();
    }
    plan.kernels.par_iter().map(build).collect()
}

/// The arenas of one binding: for each arena its buffer on each device that touches it.
#[derive(Clone, Debug)]
pub(super) struct Arenas {
    buffers: Vec<BTreeMap<u32, Buffer>>,
    /// Keeps the host arenas' pages.
    _regions: Vec<Arc<SharedRegion>>,
}

impl Arenas {
    pub(super) fn new(plan: &Plan, devices: &[Device]) -> Result<Self, Error> {
        let mut arenas = Arenas { buffers: Vec::new(), _regions: Vec::new() };
        for arena in &plan.arenas {
            let mut buffers = BTreeMap::new();
            match arena.domain {
                _ if arena.bytes == 0 => {}
                Domain::Device(d) => {
                    let buffer = devices[d as usize].buffer(arena.bytes, Placement::Device, "arena")?;
                    buffers.insert(d, buffer);
                }
                Domain::Host => {
                    let region = shared(arena.bytes)?;
                    for (d, device) in devices.iter().enumerate() {
                        buffers.insert(d as u32, import_shared(device, &region)?);
                    }
                    arenas._regions.push(region);
                }
            }
            arenas.buffers.push(buffers);
        }
        Ok(arenas)
    }

    pub(super) fn buffer(&self, arena: u32, device: u32) -> Option<&Buffer> {
        self.buffers.get(arena as usize)?.get(&device)
    }
}

/// Host memory that every device of a table imports.
pub(super) fn shared(bytes: u64) -> Result<Arc<SharedRegion>, Error> {
    let bytes = usize::try_from(bytes.next_multiple_of(16)).unwrap_or(usize::MAX);
    Ok(HostRegion::new(bytes)?.into_shared())
}

pub(super) fn import_shared(device: &Device, region: &Arc<SharedRegion>) -> Result<Buffer, Error> {
    device.context.import(region).map_err(|e| match e {
        crate::device::Error::Import(_) => {
            SessionError::NoSharing { device: device.context.info().name.clone() }.into()
        }
        e => e.into(),
    })
}
