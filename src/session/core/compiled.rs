//! A plan with its device objects: kernels and parameters. Shared by all bindings of one shape.

use std::sync::Arc;

use super::device::Device;
use super::params::{Param, ParamStore};
use super::pieces::PieceSchedule;
use super::sources::KernelSources;
use super::staged::LaterStages;
use crate::backend::Placement;
use crate::device::{Buffer, Kernel};
use crate::kernel::KernelSource;
use crate::ops::StepKernel;
use crate::plan::{KernelCode, Plan, PlannedKernel};
use crate::session::error::Error;

/// A plan with its kernels and parameters on the session's devices.
#[derive(Debug)]
pub(in crate::session) struct Compiled {
    pub(in crate::session) plan: Plan,
    pub(in crate::session) kernels: Vec<Kernel>,
    pub(in crate::session) constants: Vec<Arc<Param>>,
    /// A small buffer on each device, bound to unused arguments.
    pub(in crate::session) unused: Vec<Buffer>,
    /// The parts after the plan, where it is the head of a split graph.
    pub(in crate::session) stage: Option<Arc<LaterStages>>,
    /// Measured times of its segments.
    pub(in crate::session) schedule: PieceSchedule,
}

impl Compiled {
    pub(in crate::session) fn new(
        plan: Plan,
        devices: &[Device],
        params: &ParamStore,
        sources: &KernelSources,
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
        Ok(Compiled { plan, kernels, constants, unused, stage: None, schedule: PieceSchedule::default() })
    }
}

/// Compiles the kernels on several threads, because drivers are slow.
fn build_kernels(plan: &Plan, devices: &[Device], sources: &KernelSources) -> Result<Vec<Kernel>, Error> {
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
    // Native functions need no compiler.
    if plan.kernels.iter().all(|k| matches!(k.code, KernelCode::Native(_))) {
        return plan.kernels.iter().map(build).collect();
    }
    plan.kernels.par_iter().map(build).collect()
}
