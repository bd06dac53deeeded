//! Memory bound to a session's inputs and outputs: imported once, run many times.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::sync::Arc;

use super::launch::SegmentLaunch;
use super::memory::Source;
use super::neighbours;
use super::slot::{Side, Slot};
use crate::device::{Buffer, HostRead, HostWrite};
use crate::graph::{Tensor, TensorInfo};
use crate::memory::host::SharedRegion;
use crate::memory::import::Verdict;
use crate::memory::range::ByteRange;
use crate::plan::{Plan, StageInput};
use crate::recording::BufferRange;
use crate::session::core::SessionCore;
use crate::session::core::arena::Arenas;
use crate::session::core::cancel::{CancelToken, Watch};
use crate::session::core::compiled::Compiled;
use crate::session::core::in_flight::LastRun;
use crate::session::core::options::BindPolicy;
use crate::session::error::{Error, SessionError};

/// One set of memory for a session's inputs and outputs. Its commands are recorded once; a run submits each segment
/// of the plan (one, on one device) after the segments it depends on.
#[derive(Debug)]
pub struct Binding<'e> {
    pub(in crate::session) core: Arc<SessionCore>,
    pub(in crate::session) compiled: Arc<Compiled>,
    pub(in crate::session) inputs: Vec<Slot<'e>>,
    pub(in crate::session) outputs: Vec<Slot<'e>>,
    pub(in crate::session) segments: Arc<[SegmentLaunch]>,
    /// The last run, where it has several submissions.
    pub(in crate::session) last: Option<LastRun>,
    pub(in crate::session) arenas: Arenas,
    pub(in crate::session) has_run: bool,
    pub(in crate::session) policy: BindPolicy,
    /// Slots of earlier memory, still imported, newest last.
    pub(in crate::session) spare: Vec<(Side, usize, Slot<'e>)>,
    /// Launches recorded for earlier memory, newest last.
    pub(in crate::session) recorded: Vec<(Vec<BufferRange>, Arc<[SegmentLaunch]>)>,
    /// Inputs in the session's own memory that later stages read.
    pub(in crate::session) stage_inputs: BTreeMap<usize, Arc<SharedRegion>>,
    /// Runs after the plan, where sizes are known only then.
    pub(in crate::session) continuation: Option<Box<dyn Continue<'e> + 'e>>,
    /// The token of the latest run.
    pub(in crate::session) cancel: CancelToken,
    /// Whether runs may end early, so that the work of every device is in pieces.
    pub(in crate::session) may_end: bool,
}

/// The parts of a graph that are planned and run after the plan of a binding, where sizes are known only then.
pub(in crate::session) trait Continue<'e>: Debug + Send + Sync {
    /// Runs the parts after the plan, which has run.
    fn run(&mut self, watch: &Watch) -> Result<(), Error>;

    /// The binding of the tail, once it has run.
    fn next_stage(&self) -> Option<&Binding<'e>>;

    /// Sets other memory for an input of the whole graph or an output of the head.
    fn set_stage_input(&mut self, input: StageInput, source: &Source<'e>);

    /// Sets other memory for an output of the tail. Returns whether there is such an output.
    fn rebind_output(&mut self, name: &str, source: Source<'e>) -> bool;
}

/// The memory of a new binding, in the order of its plan.
#[derive(Debug, Default)]
pub(in crate::session) struct BoundSources<'e> {
    pub(in crate::session) inputs: Vec<Source<'e>>,
    pub(in crate::session) outputs: Vec<Source<'e>>,
    /// Inputs and outputs that the session allocated for later stages.
    pub(in crate::session) allocated: Vec<(Side, usize)>,
    /// The regions of those inputs.
    pub(in crate::session) stage_inputs: BTreeMap<usize, Arc<SharedRegion>>,
}

impl<'e> Binding<'e> {
    /// Binds `sources` to the inputs and outputs of a plan.
    pub(in crate::session) fn assemble(
        core: &Arc<SessionCore>,
        compiled: Arc<Compiled>,
        sources: BoundSources<'e>,
        policy: BindPolicy,
        continuation: Option<Box<dyn Continue<'e> + 'e>>,
    ) -> Result<Self, Error> {
        let BoundSources { inputs, outputs, allocated, stage_inputs } = sources;
        let plan = &compiled.plan;
        let slot = |source, io, side, at| {
            // Strict mode applies only to the caller's memory.
            let strict = policy.strict && !allocated.contains(&(side, at));
            Slot::new(source, io, side, &core.devices, BindPolicy { strict, ..policy })
        };
        let of = |side| move |(source, io)| (side, io, source);
        let tensors: Vec<_> = (inputs.iter().zip(&plan.inputs).map(of(Side::Input)))
            .chain(outputs.iter().zip(&plan.outputs).map(of(Side::Output)))
            .collect();
        let held = neighbours::hold(&tensors, &core.devices, policy);
        let inputs = (inputs.into_iter().zip(&plan.inputs).enumerate())
            .map(|(i, (source, io))| slot(source, io, Side::Input, i))
            .collect::<Result<Vec<_>, _>>()?;
        let outputs = (outputs.into_iter().zip(&plan.outputs).enumerate())
            .map(|(o, (source, io))| slot(source, io, Side::Output, o))
            .collect::<Result<Vec<_>, _>>()?;
        drop(held);
        let arenas = match &core.options.arena {
            Some(shared) => shared.fit(plan, &core.devices)?,
            None => Arenas::new(plan, &core.devices)?,
        };
        let mut binding = Binding {
            core: Arc::clone(core),
            compiled,
            inputs,
            outputs,
            segments: Arc::default(),
            last: None,
            arenas,
            has_run: false,
            policy,
            spare: Vec::new(),
            recorded: Vec::new(),
            stage_inputs,
            continuation,
            cancel: CancelToken::new(),
            may_end: core.options.run.may_end(),
        };
        binding.segments = binding.prepare()?;
        Ok(binding)
    }

    /// Whether a value written to input `i` takes effect in the next run: a plan may depend on values.
    pub(in crate::session) fn takes_value(&self, i: usize) -> bool {
        self.stage_inputs.contains_key(&i)
            || self
                .compiled
                .plan
                .inputs
                .get(i)
                .is_some_and(|io| !io.devices.is_empty() || io.updated.is_some())
    }

    /// Waits for the last run, which may have work that is not submitted yet.
    pub(in crate::session) fn wait_for_last_run(&self) {
        if let Some(last) = &self.last {
            last.wait_quietly();
        }
    }

    /// Writes a value to input `i` of the session's own memory.
    pub(in crate::session) fn write_input(&self, i: usize, bytes: &[u8]) -> Result<(), Error> {
        self.wait_for_last_run();
        match (self.stage_inputs.get(&i), self.input_slot(i)) {
            (Some(region), _) => {
                region.write_range(ByteRange::up_to(bytes.len() as u64))?.copy_from_slice(bytes);
                Ok(())
            }
            (None, Some(slot)) => slot.write(&self.core.devices, bytes),
            (None, None) => Ok(()),
        }
    }

    /// The slot of input `i`: that of the output, where the two are one memory.
    fn input_slot(&self, i: usize) -> Option<&Slot<'e>> {
        let updated = self.compiled.plan.inputs.get(i).and_then(|io| io.updated);
        updated.map_or(self.inputs.get(i), |o| self.outputs.get(o as usize))
    }

    /// How each bound tensor reaches the devices, and why. Later stages have verdicts of their own.
    pub fn verdicts(&self) -> impl Iterator<Item = &Verdict> {
        self.inputs.iter().chain(&self.outputs).flat_map(|s| &s.verdicts)
    }

    /// The binding of the next stage, which is planned after this one has run because sizes are known only then.
    /// `None` before the first run.
    pub fn next_stage(&self) -> Option<&Binding<'e>> {
        self.continuation.as_ref().and_then(|continuation| continuation.next_stage())
    }

    /// This binding and the later stages of the last run.
    pub fn stages(&self) -> impl Iterator<Item = &Binding<'e>> {
        std::iter::successors(Some(self), |b| b.next_stage())
    }

    /// The stage that writes output `name`.
    fn stage_of(&self, name: &str) -> Result<(&Binding<'e>, usize), SessionError> {
        let outputs = |b: &Binding<'e>| b.compiled.plan.outputs.iter().position(|io| io.name == name);
        if let Some(found) = self.stages().find_map(|b| Some((b, outputs(b)?))) {
            return Ok(found);
        }
        self.core.output_position(name)?;
        Err(SessionError::NotRun)
    }

    /// Type and shape of output `name`, of the last run where they depend on it.
    ///
    /// # Errors
    /// [`SessionError::Unknown`], [`SessionError::NotRun`].
    pub fn output_info(&self, name: &str) -> Result<&TensorInfo, Error> {
        let (stage, o) = self.stage_of(name)?;
        Ok(&stage.compiled.plan.outputs[o].info)
    }

    /// Type and shape of input `name`, and whether a value written to it takes effect in the next run.
    pub(in crate::session) fn input_info(&self, name: &str) -> Option<(&TensorInfo, bool)> {
        let i = self.compiled.plan.inputs.iter().position(|io| io.name == name)?;
        Some((&self.compiled.plan.inputs[i].info, self.takes_value(i)))
    }

    /// The plan for the shapes of this binding.
    pub fn plan(&self) -> &Plan {
        &self.compiled.plan
    }

    /// Copies a value into input `name` of the session's own memory.
    ///
    /// # Errors
    /// [`SessionError::Unknown`], [`SessionError::DType`], [`SessionError::Shape`] where the value's type or
    /// shape differs from the binding's. [`Error::Device`] while a run in a command buffer
    /// ([`Binding::record_into`]) may read it.
    pub fn set_input(&mut self, name: &str, value: &Tensor) -> Result<(), Error> {
        let i = position(&self.compiled.plan.inputs, "input", name)?;
        let io = &self.compiled.plan.inputs[i];
        check_info(io, value.info())?;
        self.write_input(i, value.bytes())
    }

    /// The stage that wrote output `name`, in a finished run.
    fn written_by(&self, name: &str) -> Result<(&Binding<'e>, usize), SessionError> {
        let (stage, o) = self.stage_of(name)?;
        if !stage.has_run {
            return Err(SessionError::NotRun);
        }
        stage.wait_for_last_run();
        Ok((stage, o))
    }

    /// Copies output `name` out.
    ///
    /// # Errors
    /// [`SessionError::Unknown`], [`SessionError::NotRun`], [`Error::Device`]: also while a run in a command
    /// buffer may write it, and for memory that another queue family owns.
    pub fn get_output(&self, name: &str) -> Result<Tensor, Error> {
        let (stage, o) = self.written_by(name)?;
        let io = &stage.compiled.plan.outputs[o];
        Tensor::build(io.info.clone(), |bytes| stage.outputs[o].read(&self.core.devices, bytes))
    }

    /// Copies output `name` into `bytes`, which has exactly its length.
    ///
    /// # Errors
    /// As [`Binding::get_output`], and [`SessionError::Capacity`].
    pub fn read_output(&self, name: &str, bytes: &mut [u8]) -> Result<(), Error> {
        let (stage, o) = self.written_by(name)?;
        let needed = stage.compiled.plan.outputs[o].info.bytes() as u64;
        if bytes.len() as u64 != needed {
            let got = bytes.len() as u64;
            return Err(SessionError::Capacity { name: name.to_owned(), needed, got }.into());
        }
        stage.outputs[o].read(&self.core.devices, bytes)
    }

    /// A view of output `name` in place, where the host can access its memory. Submissions that access it are refused
    /// while a guard of the view lives.
    ///
    /// # Errors
    /// [`SessionError::Unknown`], and `NotMapped` for device-local memory.
    pub fn host_view(&self, name: &str) -> Result<HostView, Error> {
        let (stage, o) = self.stage_of(name)?;
        self.view_of(&stage.outputs[o], &stage.compiled.plan.outputs[o].info)
    }

    /// As [`Binding::host_view`], for input `name`, to write it in place.
    ///
    /// # Errors
    /// As there.
    pub fn host_view_input(&self, name: &str) -> Result<HostView, Error> {
        let i = position(&self.compiled.plan.inputs, "input", name)?;
        let slot = self.input_slot(i).unwrap_or(&self.inputs[i]);
        self.view_of(slot, &self.compiled.plan.inputs[i].info)
    }

    fn view_of(&self, slot: &Slot<'_>, info: &TensorInfo) -> Result<HostView, Error> {
        self.wait_for_last_run();
        let buffer = slot
            .view(info.bytes() as u64)
            .ok_or_else(|| crate::device::UsageError::new("host_view", crate::device::Problem::NotMapped))?;
        Ok(HostView { buffer, info: info.clone() })
    }
}

/// A tensor of a binding in place, as the host sees it; [`HostView::read`] and [`HostView::write`] return guards.
#[derive(Clone, Debug)]
pub struct HostView {
    buffer: Buffer,
    info: TensorInfo,
}

impl HostView {
    /// Type and shape.
    pub fn info(&self) -> &TensorInfo {
        &self.info
    }

    /// Waits for the device and returns the bytes for reading.
    ///
    /// # Errors
    /// [`Error::Device`].
    pub fn read(&self) -> Result<HostRead<'_>, Error> {
        Ok(self.buffer.map_read()?)
    }

    /// Waits for the device and returns the bytes for writing; the next run sees them.
    ///
    /// # Errors
    /// [`Error::Device`].
    pub fn write(&self) -> Result<HostWrite<'_>, Error> {
        Ok(self.buffer.map_write()?)
    }
}

pub(in crate::session) fn position(
    ios: &[crate::plan::PlannedIo],
    what: &'static str,
    name: &str,
) -> Result<usize, SessionError> {
    ios.iter().position(|io| io.name == name).ok_or_else(|| SessionError::Unknown {
        what,
        name: name.to_owned(),
        known: ios.iter().map(|io| io.name.clone()).collect(),
    })
}

pub(in crate::session) fn check_info(
    io: &crate::plan::PlannedIo,
    got: &TensorInfo,
) -> Result<(), SessionError> {
    if io.info.dtype != got.dtype {
        let (name, expected, got) = (io.name.clone(), io.info.dtype, got.dtype);
        return Err(SessionError::DType { name, expected, got });
    }
    if io.info.shape != got.shape {
        let (expected, got) = (io.info.shape.to_string(), got.shape.to_string());
        let source = crate::shape::ShapeError::Mismatch { expected, got };
        return Err(SessionError::Shape { name: io.name.clone(), source });
    }
    Ok(())
}
