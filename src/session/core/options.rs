//! Options of a session.

use std::fmt::Debug;
use std::sync::Arc;

use super::SessionCore;
use super::arena::SharedArena;
use super::cancel::RunOptions;
use super::compiled::Compiled;
use super::device::Device;
use super::frames::Frames;
use super::pieces::SubmissionLimit;
use crate::memory::import::{DevicePolicy, Refusal};
use crate::ops::Choices;
use crate::plan::{PassLog, PlanOptions, PlanOutcome, PlanRequest};
use crate::session::error::Error;

/// Options of a session.
#[derive(Clone, Debug)]
pub(in crate::session) struct Options {
    pub(in crate::session) plan: PlanOptions,
    /// Log of the passes over the graph.
    pub(in crate::session) prepared: Arc<PassLog>,
    /// Nodes whose device is not in the table and that run on entry 0.
    pub(in crate::session) foreign: Arc<[String]>,
    pub(in crate::session) bind: BindPolicy,
    pub(in crate::session) arena: Option<Arc<SharedArena>>,
    /// Places nodes, where placement is automatic.
    pub(in crate::session) placer: Option<Arc<dyn NodePlacer>>,
    /// Chooses kernels by measurement, where that is asked for.
    pub(in crate::session) chooser: Option<Arc<dyn KernelChooser>>,
    /// Limit of the duration of one submission.
    pub(in crate::session) limit: SubmissionLimit,
    /// Inputs and outputs that are frames.
    pub(in crate::session) frames: Arc<Frames>,
    /// Default options of a run.
    pub(in crate::session) run: RunOptions,
}

/// Chooses the device of each node of a session's plans.
pub(in crate::session) trait NodePlacer: Debug + Send + Sync {
    /// The fastest plan of `request` on the devices, with its device objects.
    ///
    /// # Errors
    /// As [`Compiler::compile`](crate::plan::Compiler::compile), and errors of devices while their speeds are
    /// measured.
    fn compile(
        &self,
        core: &SessionCore,
        request: &PlanRequest<'_>,
        copied: CopiedPerRun,
    ) -> Result<PlanOutcome<Compiled>, Error>;
}

/// Chooses kernels of a session's plans by measurement.
pub(in crate::session) trait KernelChooser: Debug + Send + Sync {
    /// What was chosen on each device of the table, after what `request` needs and is not known was measured, as far as the
    /// time allows.
    fn choices(&self, core: &SessionCore, request: &PlanRequest<'_>) -> Vec<Arc<Choices>>;
}

/// Whether each run copies values of inputs into the session's memory, and values of outputs out of it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(in crate::session) struct CopiedPerRun {
    pub(in crate::session) inputs: bool,
    pub(in crate::session) outputs: bool,
}

impl CopiedPerRun {
    /// Inputs and outputs by value.
    pub(in crate::session) const ALL: CopiedPerRun = CopiedPerRun { inputs: true, outputs: true };
}

/// How bindings import and copy.
#[derive(Clone, Copy, Debug)]
pub(in crate::session) struct BindPolicy {
    pub(in crate::session) strict: bool,
    /// Tensors of fewer bytes are copied; `None` for the device's threshold.
    pub(in crate::session) copy_threshold: Option<u64>,
    /// Copy everything: the device runs out of memory with imports.
    pub(in crate::session) copies: bool,
    /// Runs that a binding is expected to last.
    pub(in crate::session) runs: u32,
}

impl BindPolicy {
    pub(in crate::session) fn on(self, device: &Device) -> DevicePolicy {
        let ladder = device.policy(self.copy_threshold, self.strict, self.runs);
        match self.copies && !ladder.on_pointers {
            true => DevicePolicy {
                import_refusal: Some(Refusal::OutOfMemory),
                dma_buf_supported: false,
                ..ladder
            },
            false => ladder,
        }
    }
}
