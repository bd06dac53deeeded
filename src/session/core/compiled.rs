//! A plan with its device objects: kernels and parameters. Shared by all bindings of one shape.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::device::Device;
use super::params::{Param, ParamStore};
use super::pieces::Schedule;
use super::sources::Sources;
use crate::backend::Placement;
use crate::device::{Buffer, Kernel};
use crate::kernel::KernelSource;
use crate::memory::host::{HostRegion, SharedRegion};
use crate::ops::StepKernel;
use crate::plan::{KernelCode, Plan, PlannedKernel};
use crate::session::error::{Error, SessionError};
use crate::session::stages::continuation::Stage;

/// A plan made ready on the session's devices.
#[derive(Debug)]
pub(in crate::session) struct Compiled {
    pub(in crate::session) plan: Plan,
    pub(in crate::session) kernels: Vec<Kernel>,
    pub(in crate::session) constants: Vec<Arc<Param>>,
    /// A few bytes on each device for arguments that are not used.
    pub(in crate::session) unused: Vec<Buffer>,
    /// What comes after the plan, where it is the head of a split graph.
    pub(in crate::session) stage: Option<Arc<Stage>>,
    /// What its segments were found to take.
    pub(in crate::session) schedule: Schedule,
}

impl Compiled {
    pub(in crate::session) fn new(
        plan: Plan,
        devices: &[Device],
        params: &ParamStore,
        sources: &Sources,
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
        Ok(Compiled { plan, kernels, constants, unused, stage: None, schedule: Schedule::default() })
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
        let device = k.device as usize;
        devices[device].context.create_kernel(&source, &k.spec).map_err(|error| {
            sources.refuse(device, &source, &error);
            error.into()
        })
    };
    // Native functions need no compiling, and their devices may run kernels on this very pool.
    if plan.kernels.iter().all(|k| matches!(k.code, KernelCode::Native(_))) {
        return plan.kernels.iter().map(build).collect();
    }
    plan.kernels.par_iter().map(build).collect()
}

/// Host memory that every device of a table imports that can import any.
pub(in crate::session) fn shared(bytes: u64, devices: &[Device]) -> Result<Arc<SharedRegion>, Error> {
    let bytes = usize::try_from(bytes.next_multiple_of(16)).unwrap_or(usize::MAX);
    let rules = devices.iter().filter_map(|device| device.context.info().import.as_ref());
    let unit = rules.map(|rules| rules.alignment.max(rules.size_multiple)).max().unwrap_or(1);
    Ok(HostRegion::in_units(bytes, usize::try_from(unit).unwrap_or(usize::MAX))?.into_shared())
}

/// Host memory of our own as every device has it that can import any.
pub(in crate::session) fn import_where_possible(
    devices: &[Device],
    region: &Arc<SharedRegion>,
) -> Result<BTreeMap<u32, Buffer>, Error> {
    let can = devices.iter().enumerate().filter(|(_, device)| device.context.info().import.is_some());
    can.map(|(d, device)| Ok((d as u32, import_shared(device, region)?))).collect()
}

pub(in crate::session) fn import_shared(
    device: &Device,
    region: &Arc<SharedRegion>,
) -> Result<Buffer, Error> {
    device.context.import(region).map_err(|e| match e {
        crate::device::Error::Import(_) => {
            SessionError::NoSharing { device: device.context.info().name.clone() }.into()
        }
        e => e.into(),
    })
}
