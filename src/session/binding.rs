//! Memory bound to a session's inputs and outputs: imported once, run many times.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::Inner;
use super::bind::Memory;
use super::compiled::{Arenas, Compiled};
use super::device::{COMPUTED, COPIED, Device, SHOWN};
use super::error::{Error, SessionError};
use super::slot::{BindPolicy, Side, Slot};
use crate::device::{Event, HostRead, HostWrite, Prepared};
use crate::graph::{Tensor, TensorInfo};
use crate::memory::import::Verdict;
use crate::plan::{Loc, Place, Plan, Segment, Work, insert_barriers};
use crate::recording::{Arg, BufferRange, Command, Dispatch, Recording};

/// One set of memory for a session's inputs and outputs. Its commands are recorded once; a run is one
/// submission for each segment of the plan (one, on one device).
#[derive(Debug)]
pub struct Binding<'e> {
    pub(super) inner: Arc<Inner>,
    pub(super) compiled: Arc<Compiled>,
    pub(super) inputs: Vec<Slot<'e>>,
    pub(super) outputs: Vec<Slot<'e>>,
    segments: Vec<Prepared>,
    arenas: Arenas,
    has_run: bool,
    policy: BindPolicy,
    /// Memory that was bound before and stays imported, newest last.
    spare: Vec<(Side, usize, Slot<'e>)>,
    /// Commands recorded for other memory, newest last.
    recorded: Vec<(Vec<BufferRange>, Vec<Prepared>)>,
}

/// How many sets of memory a binding keeps imported and recorded beside the one in use.
const KEPT: usize = 8;

/// A run that was submitted. The host must not touch bound memory before [`Pending::wait`] returned;
/// owned regions refuse their guards until then, borrowed memory is out of reach anyway.
#[derive(Debug)]
#[must_use = "results are complete only after `wait`"]
pub struct Pending<'b, 'e> {
    binding: &'b mut Binding<'e>,
    event: Option<Event>,
}

impl<'e> Binding<'e> {
    pub(super) fn new(
        inner: &Arc<Inner>,
        compiled: Arc<Compiled>,
        inputs: Vec<Slot<'e>>,
        outputs: Vec<Slot<'e>>,
        arenas: Arenas,
        policy: BindPolicy,
    ) -> Result<Self, Error> {
        let mut binding = Binding {
            inner: Arc::clone(inner),
            compiled,
            inputs,
            outputs,
            segments: Vec::new(),
            arenas,
            has_run: false,
            policy,
            spare: Vec::new(),
            recorded: Vec::new(),
        };
        binding.segments = binding.prepare()?;
        Ok(binding)
    }

    fn prepare(&self) -> Result<Vec<Prepared>, Error> {
        let plan = self.ordered_plan()?;
        (plan.segments.iter().enumerate())
            .map(|(s, segment)| {
                let recording = self.record(&plan, s, None)?;
                Ok(self.device(segment.device).queue.prepare(recording)?)
            })
            .collect()
    }

    /// Binds input `name` to other memory of the same shape. Memory that this binding had before is still
    /// imported and its commands still recorded, so going back to it costs next to nothing.
    ///
    /// # Errors
    /// As [`super::BindingBuilder::build`]; after an error the memory is as it was.
    pub fn rebind_input(&mut self, name: &str, memory: Memory<'e>) -> Result<(), Error> {
        let i = position(&self.compiled.plan.inputs, "input", name)?;
        self.rebind(Side::Input, i, memory)
    }

    /// As [`Binding::rebind_input`], for output `name`.
    ///
    /// # Errors
    /// As there.
    pub fn rebind_output(&mut self, name: &str, memory: Memory<'e>) -> Result<(), Error> {
        let o = position(&self.compiled.plan.outputs, "output", name)?;
        self.has_run = false;
        self.rebind(Side::Output, o, memory)
    }

    fn rebind(&mut self, side: Side, at: usize, memory: Memory<'e>) -> Result<(), Error> {
        let io = match side {
            Side::Input => &self.compiled.plan.inputs[at],
            Side::Output => &self.compiled.plan.outputs[at],
        };
        if let Some(shape) = memory.given_shape()
            && *shape != io.info.shape
        {
            check_info(io, &TensorInfo::new(io.info.dtype, shape.clone()))?;
        }
        let (source, value) = memory.into_source();
        let key = source.key();
        let known = self
            .spare
            .iter()
            .position(|(s, i, slot)| (*s, *i) == (side, at) && key.is_some() && slot.source.key() == key);
        let slot = match known {
            Some(k) => self.spare.remove(k).2,
            None => Slot::new(source, io, side, &self.inner.devices, self.policy)?,
        };
        if let Some(value) = value {
            check_info(io, value.info())?;
            slot.write(&self.inner.devices, value.bytes())?;
        }
        let current = self.ranges();
        let old = std::mem::replace(self.slot_mut(side, at), slot);
        let wanted = self.ranges();
        let ready = self.recorded.iter().position(|(ranges, _)| *ranges == wanted);
        let prepared = match ready {
            Some(k) => Ok(self.recorded.remove(k).1),
            None => self.prepare(),
        };
        match prepared {
            Ok(prepared) => {
                let before = std::mem::replace(&mut self.segments, prepared);
                keep(&mut self.recorded, (current, before));
                keep(&mut self.spare, (side, at, old));
                Ok(())
            }
            Err(e) => {
                *self.slot_mut(side, at) = old;
                Err(e)
            }
        }
    }

    fn slot_mut(&mut self, side: Side, at: usize) -> &mut Slot<'e> {
        match side {
            Side::Input => &mut self.inputs[at],
            Side::Output => &mut self.outputs[at],
        }
    }

    fn ranges(&self) -> Vec<BufferRange> {
        self.inputs.iter().chain(&self.outputs).flat_map(Slot::ranges).collect()
    }

    fn device(&self, d: u32) -> &Device {
        &self.inner.devices[d as usize]
    }

    /// The plan with barriers that know which bound tensors share memory.
    fn ordered_plan(&self) -> Result<Plan, Error> {
        let mut plan = self.compiled.plan.clone();
        let mut shared: BTreeMap<Place, (Place, u64)> = BTreeMap::new();
        let mut seen: Vec<(Place, BufferRange)> = Vec::new();
        let all = (self.inputs.iter().enumerate().map(|(i, s)| (Place::Input(i as u32), s)))
            .chain(self.outputs.iter().enumerate().map(|(o, s)| (Place::Output(o as u32), s)));
        for (place, slot) in all {
            let device = self.io(&plan, place).devices.first().copied();
            let Some(range) = device.and_then(|d| slot.memory(d)) else { continue };
            for (other, theirs) in &seen {
                let overlap = theirs.buffer == range.buffer
                    && theirs.offset < range.offset + range.bytes
                    && range.offset < theirs.offset + theirs.bytes;
                if overlap {
                    self.check_shared(&plan, *other, place)?;
                    shared.insert(*other, (Place::Arena(u32::MAX), theirs.offset));
                    shared.insert(place, (Place::Arena(u32::MAX), range.offset));
                }
            }
            seen.push((place, range));
        }
        if !shared.is_empty() {
            let infos: Vec<_> = self.inner.devices.iter().map(|d| d.context.info()).collect();
            insert_barriers(&mut plan, &infos, &|p| shared.get(&p).copied().unwrap_or((p, 0)));
        }
        Ok(plan)
    }

    /// Two bound tensors that share bytes: fine where both are read, or where every read of the input
    /// comes before the first write of the output.
    fn check_shared(&self, plan: &Plan, a: Place, b: Place) -> Result<(), Error> {
        let fine = match (a, b) {
            (Place::Input(_), Place::Input(_)) => true,
            (Place::Input(i), Place::Output(o)) => {
                plan.inputs[i as usize].last < plan.outputs[o as usize].first
            }
            _ => false,
        };
        if fine {
            return Ok(());
        }
        let name = |p| self.io(plan, p).name.clone();
        Err(SessionError::Overlap { first: name(a), second: name(b) }.into())
    }

    fn io<'p>(&self, plan: &'p Plan, place: Place) -> &'p crate::plan::PlannedIo {
        match place {
            Place::Output(o) => &plan.outputs[o as usize],
            Place::Input(i) => &plan.inputs[i as usize],
            Place::Constant(_) | Place::Arena(_) => &plan.inputs[0],
        }
    }

    /// The recording of segment `s`; with `times` timestamps are taken around every node.
    pub(super) fn record(
        &self,
        plan: &Plan,
        s: usize,
        times: Option<&mut Vec<u32>>,
    ) -> Result<Recording, Error> {
        let segment = &plan.segments[s];
        let d = segment.device;
        let on = |segment: &Segment| segment.device == d;
        let mut r = Recording::default();
        if !plan.segments[..s].iter().any(on) {
            self.transfers(&mut r, plan, d, Side::Input);
        }
        let mut times = times;
        let mut node = u32::MAX;
        for command in &segment.commands {
            if let Some(times) = times.as_deref_mut()
                && command.node != node
            {
                node = command.node;
                r.commands.push(Command::Timestamp { slot: times.len() as u32 });
                times.push(node);
            }
            r.commands.extend(command.barrier.map(Command::Barrier));
            r.commands.push(self.command(&command.work, d)?);
        }
        if let Some(times) = times {
            r.commands.push(Command::Timestamp { slot: times.len() as u32 });
            times.push(u32::MAX);
            r.timestamps = times.len() as u32;
        }
        r.commands.extend(segment.closing.map(Command::Barrier));
        if !plan.segments[s + 1..].iter().any(on) {
            self.transfers(&mut r, plan, d, Side::Output);
        }
        let host = |slots: &[Slot<'_>]| -> Vec<BufferRange> {
            slots.iter().flat_map(|slot| slot.host_ranges(d)).collect()
        };
        r.flush = host(&self.inputs);
        r.invalidate = host(&self.outputs);
        Ok(r)
    }

    /// Copies between host-visible memory and the device's own, before its first or after its last segment.
    fn transfers(&self, r: &mut Recording, plan: &Plan, d: u32, side: Side) {
        let (slots, ios) = match side {
            Side::Input => (&self.inputs, &plan.inputs),
            Side::Output => (&self.outputs, &plan.outputs),
        };
        let commands: Vec<Command> = slots
            .iter()
            .zip(ios)
            .filter_map(|(slot, io)| slot.transfer_command(d, io.info.bytes() as u64, side))
            .collect();
        if commands.is_empty() {
            return;
        }
        if side == Side::Output {
            r.commands.push(Command::Barrier(COMPUTED));
        }
        r.commands.extend(commands);
        r.commands.push(Command::Barrier(if side == Side::Input { COPIED } else { SHOWN }));
    }

    fn command(&self, work: &Work, d: u32) -> Result<Command, Error> {
        Ok(match work {
            Work::Dispatch { kernel, args, params, groups } => {
                let kernel = &self.compiled.kernels[*kernel as usize];
                let native = self.device(d).context.info().native;
                let args = args
                    .iter()
                    .map(|arg| match arg {
                        Some((loc, access)) if loc.bytes > 0 => {
                            Ok(Arg::Buffer(self.range(*loc, d)?, *access))
                        }
                        Some((_, access)) if native => {
                            Ok(Arg::Buffer(BufferRange { bytes: 0, ..self.unused(d) }, *access))
                        }
                        Some((_, access)) => Ok(Arg::Buffer(self.unused(d), *access)),
                        None if native => Ok(Arg::Absent),
                        None => {
                            Ok(Arg::Buffer(self.unused(d), crate::memory::coherency::Access::KERNEL_READ))
                        }
                    })
                    .collect::<Result<_, Error>>()?;
                let (params, groups) = (params.clone(), *groups);
                Command::Dispatch(Dispatch { kernel: kernel.id(), args, params, groups })
            }
            Work::Copy { src, dst } => Command::Copy { src: self.range(*src, d)?, dst: self.range(*dst, d)? },
            Work::Fill { dst, value } => Command::Fill { dst: self.range(*dst, d)?, value: *value },
        })
    }

    fn unused(&self, d: u32) -> BufferRange {
        self.compiled.unused[d as usize].range()
    }

    fn range(&self, loc: Loc, d: u32) -> Result<BufferRange, Error> {
        let base = match loc.place {
            Place::Input(i) => self.inputs[i as usize].range(d),
            Place::Output(o) => self.outputs[o as usize].range(d),
            Place::Constant(c) => Some(self.compiled.constants[c as usize].range()),
            Place::Arena(a) => self.arenas.buffer(a, d).map(|b| b.range()),
        };
        let base = base
            .ok_or_else(|| SessionError::NoSharing { device: self.device(d).context.info().name.clone() })?;
        Ok(BufferRange { offset: base.offset + loc.offset, bytes: loc.bytes, ..base })
    }

    /// Runs once and waits until the results are where they were bound.
    ///
    /// # Errors
    /// [`Error::Device`]; memory that the host holds through a guard, a kernel that failed, a lost device.
    pub fn run(&mut self) -> Result<(), Error> {
        self.submit()?.wait()
    }

    /// Submits a run. All but the last segment of a plan over several devices have finished when it returns.
    ///
    /// # Errors
    /// As [`Binding::run`].
    pub fn submit(&mut self) -> Result<Pending<'_, 'e>, Error> {
        let plan = &self.compiled.plan;
        for (slot, io) in self.inputs.iter().zip(&plan.inputs) {
            slot.stage_in(&self.inner.devices, io.info.bytes())?;
        }
        let mut event: Option<Event> = None;
        for (prepared, segment) in self.segments.iter().zip(&plan.segments) {
            if let Some(before) = event.take() {
                before.wait()?;
            }
            event = Some(self.device(segment.device).queue.submit_prepared(prepared)?);
        }
        self.has_run = true;
        Ok(Pending { binding: self, event })
    }

    /// How each bound tensor reaches the devices, and why.
    pub fn verdicts(&self) -> impl Iterator<Item = &Verdict> {
        self.inputs.iter().chain(&self.outputs).flat_map(|s| &s.verdicts)
    }

    /// What was planned for the shapes of this binding.
    pub fn plan(&self) -> &Plan {
        &self.compiled.plan
    }

    /// Copies a value into input `name` of the session's own memory.
    ///
    /// # Errors
    /// [`SessionError::Unknown`], [`SessionError::DType`], [`SessionError::Shape`] where the value has another
    /// type or shape than this binding was made for.
    pub fn set_input(&mut self, name: &str, value: &Tensor) -> Result<(), Error> {
        let i = position(&self.compiled.plan.inputs, "input", name)?;
        let io = &self.compiled.plan.inputs[i];
        check_info(io, value.info())?;
        self.inputs[i].write(&self.inner.devices, value.bytes())
    }

    /// Copies output `name` out.
    ///
    /// # Errors
    /// [`SessionError::Unknown`], [`SessionError::NotRun`], [`Error::Device`].
    pub fn get_output(&self, name: &str) -> Result<Tensor, Error> {
        let o = position(&self.compiled.plan.outputs, "output", name)?;
        self.output_at(o)
    }

    pub(super) fn output_at(&self, o: usize) -> Result<Tensor, Error> {
        if !self.has_run {
            return Err(SessionError::NotRun.into());
        }
        let io = &self.compiled.plan.outputs[o];
        Tensor::build(io.info.clone(), |bytes| self.outputs[o].read(&self.inner.devices, bytes))
    }

    /// Copies output `name` into `bytes`, which has exactly its length.
    ///
    /// # Errors
    /// As [`Binding::get_output`], and [`SessionError::Capacity`].
    pub fn read_output(&self, name: &str, bytes: &mut [u8]) -> Result<(), Error> {
        let o = position(&self.compiled.plan.outputs, "output", name)?;
        let needed = self.compiled.plan.outputs[o].info.bytes() as u64;
        if bytes.len() as u64 != needed {
            let got = bytes.len() as u64;
            return Err(SessionError::Capacity { name: name.to_owned(), needed, got }.into());
        }
        self.outputs[o].read(&self.inner.devices, bytes)
    }

    /// Lends output `name` in place, where its memory can be seen by the host. Submissions that touch it are
    /// refused while the view lives.
    ///
    /// # Errors
    /// [`SessionError::Unknown`], and `NotMapped` for memory of a device alone.
    pub fn host_view(&self, name: &str) -> Result<HostView, Error> {
        let o = position(&self.compiled.plan.outputs, "output", name)?;
        self.view_of(&self.outputs[o], &self.compiled.plan.outputs[o].info)
    }

    /// As [`Binding::host_view`], for input `name`, to write it in place.
    ///
    /// # Errors
    /// As there.
    pub fn host_view_input(&self, name: &str) -> Result<HostView, Error> {
        let i = position(&self.compiled.plan.inputs, "input", name)?;
        self.view_of(&self.inputs[i], &self.compiled.plan.inputs[i].info)
    }

    fn view_of(&self, slot: &Slot<'_>, info: &TensorInfo) -> Result<HostView, Error> {
        let buffer = slot
            .view(info.bytes() as u64)
            .ok_or_else(|| crate::device::UsageError::new("host_view", crate::device::Problem::NotMapped))?;
        Ok(HostView { buffer, info: info.clone() })
    }
}

/// A tensor of a binding as the host sees it in place; [`HostView::read`] and [`HostView::write`] lend it.
#[derive(Clone, Debug)]
pub struct HostView {
    buffer: crate::device::Buffer,
    info: TensorInfo,
}

impl HostView {
    /// Type and shape.
    pub fn info(&self) -> &TensorInfo {
        &self.info
    }

    /// Waits for the device and lends the bytes for reading.
    ///
    /// # Errors
    /// [`Error::Device`].
    pub fn read(&self) -> Result<HostRead<'_>, Error> {
        Ok(self.buffer.map_read()?)
    }

    /// Waits for the device and lends the bytes for writing; the next run sees them.
    ///
    /// # Errors
    /// [`Error::Device`].
    pub fn write(&self) -> Result<HostWrite<'_>, Error> {
        Ok(self.buffer.map_write()?)
    }
}

impl Pending<'_, '_> {
    /// Waits until the results are where they were bound.
    ///
    /// # Errors
    /// As [`Binding::run`].
    pub fn wait(mut self) -> Result<(), Error> {
        if let Some(event) = self.event.take() {
            event.wait()?;
        }
        let plan = &self.binding.compiled.plan;
        for (slot, io) in self.binding.outputs.iter().zip(&plan.outputs) {
            slot.stage_out(&self.binding.inner.devices, io.info.bytes())?;
        }
        Ok(())
    }

    /// Whether the device has finished.
    ///
    /// # Errors
    /// [`Error::Device`].
    pub fn is_done(&self) -> Result<bool, Error> {
        match &self.event {
            Some(event) => Ok(event.is_done()?),
            None => Ok(true),
        }
    }
}

fn keep<T>(kept: &mut Vec<T>, item: T) {
    if kept.len() >= KEPT {
        kept.remove(0);
    }
    kept.push(item);
}

pub(super) fn position(
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

pub(super) fn check_info(io: &crate::plan::PlannedIo, got: &TensorInfo) -> Result<(), SessionError> {
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
