//! Memory bound to a session's inputs and outputs: imported once, run many times.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::host_ranges::HostRanges;
use super::slot::{BindPolicy, Side, Slot, Source, SourceKey};
use crate::device::{Buffer, HostRead, HostWrite};
use crate::graph::{Tensor, TensorInfo};
use crate::memory::host::SharedRegion;
use crate::memory::image::ImageView;
use crate::memory::import::Verdict;
use crate::memory::range::{ByteRange, RangeMap};
use crate::plan::{
    Bound, Feed, Location, Plan, PlannedIo, Segment, Space, Work, insert_barriers, order_segments,
};
use crate::recording::{Arg, BufferId, BufferRange, Command, Dispatch, Recording};
use crate::session::core::SessionCore;
use crate::session::core::arena::Arenas;
use crate::session::core::cancel::CancelToken;
use crate::session::core::compiled::Compiled;
use crate::session::core::device::Device;
use crate::session::core::in_flight::LastRun;
use crate::session::core::pieces::{self, Script};
use crate::session::error::{Error, SessionError};
use crate::session::run::segments::{Leg, LegWork, Move};
use crate::session::stages::continuation::{Held, HeldMemory, Rest, owned};

/// One set of memory for a session's inputs and outputs. Its commands are recorded once; a run is one
/// submission for each segment of the plan (one, on one device), as soon as those it waits for are over.
#[derive(Debug)]
pub struct Binding<'e> {
    pub(in crate::session) inner: Arc<SessionCore>,
    pub(in crate::session) compiled: Arc<Compiled>,
    pub(in crate::session) inputs: Vec<Slot<'e>>,
    pub(in crate::session) outputs: Vec<Slot<'e>>,
    pub(in crate::session) segments: Arc<[Leg]>,
    /// The last run, where several devices take part.
    pub(in crate::session) last: Option<LastRun>,
    pub(in crate::session) arenas: Arenas,
    pub(in crate::session) has_run: bool,
    pub(in crate::session) policy: BindPolicy,
    /// Memory that was bound before and stays imported, newest last.
    pub(in crate::session) spare: Vec<(Side, usize, Slot<'e>)>,
    /// Commands recorded for other memory, newest last.
    pub(in crate::session) recorded: Vec<(Vec<BufferRange>, Arc<[Leg]>)>,
    /// Inputs of the session's own memory that later stages read.
    pub(in crate::session) fed: BTreeMap<usize, Arc<SharedRegion>>,
    /// What runs after the plan, where sizes are known only then.
    pub(in crate::session) rest: Option<Rest<'e>>,
    /// Of the latest run.
    pub(in crate::session) cancel: CancelToken,
    /// Runs may be ended early, so that every device is given its work in pieces.
    pub(in crate::session) may_end: bool,
}

impl<'e> Binding<'e> {
    /// Binds the memory `inputs` and `outputs` to the inputs and outputs of the graph of `inner`, in order.
    pub(in crate::session) fn assemble(
        inner: &Arc<SessionCore>,
        compiled: Arc<Compiled>,
        mut inputs: Vec<Source<'e>>,
        outputs: Vec<Source<'e>>,
        policy: BindPolicy,
    ) -> Result<Self, Error> {
        let plan = &compiled.plan;
        let names = inner.graph.outputs().iter().map(|(name, _)| name.clone());
        let mut by_name: BTreeMap<String, Source<'e>> = names.zip(outputs).collect();
        let mut outputs: Vec<Source<'e>> =
            plan.outputs.iter().map(|io| by_name.remove(&io.name).unwrap_or(Source::Value)).collect();
        inputs.resize(plan.inputs.len(), Source::Value);
        let mut fed: BTreeMap<usize, Arc<SharedRegion>> = BTreeMap::new();
        let mut own: Vec<(Side, usize)> = Vec::new();
        let mut rest = None;
        if let Some(stage) = &compiled.stage {
            let mut held = BTreeMap::new();
            for feed in stage.feeds() {
                let (side, at) = match feed {
                    Feed::Input(i) => (Side::Input, i),
                    Feed::Head(o) => (Side::Output, o),
                    Feed::Step { .. } => continue,
                };
                let (source, io) = match side {
                    Side::Input => (inputs.get_mut(at), plan.inputs.get(at)),
                    Side::Output => (outputs.get_mut(at), plan.outputs.get(at)),
                };
                let (Some(source), Some(io)) = (source, io) else { continue };
                if matches!(source, Source::Value) {
                    let (region, placed) = owned(&io.info)?;
                    *source = placed;
                    own.push((side, at));
                    if side == Side::Input {
                        fed.insert(at, region);
                    }
                }
                let memory = HeldMemory::Placed(source.clone());
                held.insert(feed, Held { info: io.info.clone(), memory });
            }
            rest = Some(Rest::new(stage, held, by_name, policy));
        }
        let slot = |source, io, side, at| {
            // A copy from or to memory of the session's own is no copy of the caller's.
            let strict = policy.strict && !own.contains(&(side, at));
            Slot::new(source, io, side, &inner.devices, BindPolicy { strict, ..policy })
        };
        let inputs = (inputs.into_iter().zip(&plan.inputs).enumerate())
            .map(|(i, (source, io))| slot(source, io, Side::Input, i))
            .collect::<Result<Vec<_>, _>>()?;
        let outputs = (outputs.into_iter().zip(&plan.outputs).enumerate())
            .map(|(o, (source, io))| slot(source, io, Side::Output, o))
            .collect::<Result<Vec<_>, _>>()?;
        let arenas = match &inner.options.arena {
            Some(shared) => shared.fit(plan, &inner.devices)?,
            None => Arenas::new(plan, &inner.devices)?,
        };
        let mut binding = Binding {
            inner: Arc::clone(inner),
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
            fed,
            rest,
            cancel: CancelToken::new(),
            may_end: inner.options.run.may_end(),
        };
        binding.segments = binding.prepare()?;
        Ok(binding)
    }

    /// Whether a value written to input `i` is seen by the next run: some are part of the plan.
    pub(in crate::session) fn takes_value(&self, i: usize) -> bool {
        self.fed.contains_key(&i) || self.compiled.plan.inputs.get(i).is_some_and(|io| !io.devices.is_empty())
    }

    /// Writes a value to input `i` of the session's own memory.
    pub(in crate::session) fn write_input(&self, i: usize, bytes: &[u8]) -> Result<(), Error> {
        self.settle();
        match (self.fed.get(&i), self.inputs.get(i)) {
            (Some(region), _) => {
                region.write_range(ByteRange::up_to(bytes.len() as u64))?.copy_from_slice(bytes);
                Ok(())
            }
            (None, Some(slot)) => slot.write(&self.inner.devices, bytes),
            (None, None) => Ok(()),
        }
    }

    pub(in crate::session) fn prepare(&self) -> Result<Arc<[Leg]>, Error> {
        let plan = self.ordered_plan()?;
        let host = self.host_ranges(&plan);
        // By device and buffer the segment that shows bytes to the host last: it is over after those before it.
        let mut shown: BTreeMap<(u32, BufferId), RangeMap<u32>> = BTreeMap::new();
        let leg = |(s, segment): (usize, &Segment)| {
            let (device, mut waits, mut cut) = (segment.device, segment.waits.clone(), None);
            let work = if segment.by_session {
                LegWork::Moves(self.moves(segment)?)
            } else {
                let (script, made) = self.script(&plan, s, &host[s])?;
                let Script { recording, .. } = script;
                let bytes = |r: &BufferRange| ByteRange::new(r.offset, r.offset.saturating_add(r.bytes));
                // A flush of bytes that the device wrote itself would give it back what the host had before.
                let own =
                    recording.flush.iter().filter_map(|r| Some((shown.get(&(device, r.buffer))?, bytes(r))));
                waits.extend(own.flat_map(|(of, bytes)| of.overlapping(bytes).map(|(_, last)| *last)).max());
                for range in &recording.invalidate {
                    shown.entry((device, range.buffer)).or_default().set(bytes(range), s as u32);
                }
                let starts = made.as_ref().map_or(&[][..], |cut| &cut.starts);
                let prepared = self.device(segment.device).queue.prepare_own(recording, starts)?;
                cut = made.map(Arc::new);
                LegWork::Commands(prepared)
            };
            waits.sort_unstable();
            waits.dedup();
            let spans = if plan.segments.len() > 1 { self.spans(segment) } else { Vec::new() };
            Ok(Leg { device, waits, work, spans, nodes: nodes(segment), cut })
        };
        plan.segments.iter().enumerate().map(leg).collect()
    }

    /// What the session copies itself. Of tensors that a device copies in or out it takes the host's side: the device has
    /// its own only after its first segment, and gives it back only after its last.
    fn moves(&self, segment: &Segment) -> Result<Vec<Move>, Error> {
        let base = |space: Space, d: u32| match space {
            Space::Input(i) => self.inputs.get(i as usize).and_then(|slot| slot.buffer(d)),
            Space::Output(o) => self.outputs.get(o as usize).and_then(|slot| slot.buffer(d)),
            Space::Arena(a) => self.arenas.buffer(a, d),
            Space::Constant(_) | Space::Common | Space::Unused => None,
        };
        let to = segment.device;
        let mut moves = Vec::new();
        for command in &segment.commands {
            let Work::Move { src, from, dst } = command.work else { continue };
            let part = |base: &Buffer, loc: Location| base.sub_buffer(loc.offset, loc.bytes);
            let given = match src.space {
                Space::Input(i) => self.inputs.get(i as usize).and_then(|slot| slot.transfer(from)),
                _ => None,
            };
            let source = given.or(base(src.space, from)).ok_or_else(|| self.no_sharing(from))?;
            let target = base(dst.space, to).ok_or_else(|| self.no_sharing(to))?;
            let wanted = match dst.space {
                Space::Output(o) => self.outputs.get(o as usize).and_then(|slot| slot.transfer(to)),
                _ => None,
            };
            for target in [target].into_iter().chain(wanted) {
                moves.push(Move { from, src: part(source, src)?, to, dst: part(target, dst)? });
            }
        }
        Ok(moves)
    }

    /// Bytes of the process that a segment touches in bound memory.
    fn spans(&self, segment: &Segment) -> Vec<(ByteRange, bool)> {
        let mut spans = Vec::new();
        for command in &segment.commands {
            command.work.for_each_touch(&mut |loc, access| {
                let slot = match loc.space {
                    Space::Input(i) => self.inputs.get(i as usize),
                    Space::Output(o) => self.outputs.get(o as usize),
                    Space::Constant(_) | Space::Arena(_) | Space::Common | Space::Unused => None,
                };
                if let Some((None, range)) = slot.and_then(|slot| slot.memory(segment.device)) {
                    let start = range.start.saturating_add(loc.offset);
                    let span = ByteRange::new(start, start.saturating_add(loc.bytes).min(range.end));
                    let span = (span, !access.writes().is_empty());
                    if !spans.contains(&span) {
                        spans.push(span);
                    }
                }
            });
        }
        spans
    }

    fn no_sharing(&self, d: u32) -> SessionError {
        SessionError::NoSharing { device: self.device(d).context.info().name.clone() }
    }

    fn device(&self, d: u32) -> &Device {
        &self.inner.devices[d as usize]
    }

    /// The plan with barriers that know which bound tensors share memory and which are copied.
    pub(in crate::session) fn ordered_plan(&self) -> Result<Plan, Error> {
        let mut plan = self.compiled.plan.clone();
        let mut shared: BTreeMap<Space, (Space, u64)> = BTreeMap::new();
        let mut seen = Vec::new();
        let all = (self.inputs.iter().enumerate().map(|(i, s)| (Space::Input(i as u32), s)))
            .chain(self.outputs.iter().enumerate().map(|(o, s)| (Space::Output(o as u32), s)));
        for (space, slot) in all {
            let device = io(&plan, space).and_then(|io| io.devices.first().copied());
            let Some((base, range)) = device.and_then(|d| slot.memory(d)) else { continue };
            for (other, _, theirs) in seen.iter().filter(|(_, b, _)| *b == base) {
                let theirs: &ByteRange = theirs;
                if theirs.start < range.end && range.start < theirs.end {
                    self.check_shared(&plan, *other, space)?;
                    shared.insert(*other, (Space::Common, theirs.start));
                    shared.insert(space, (Space::Common, range.start));
                }
            }
            seen.push((space, base, range));
        }
        self.check_written_once(&plan)?;
        let resolve = |p| shared.get(&p).copied().unwrap_or((p, 0));
        if !shared.is_empty() {
            order_segments(&mut plan, &resolve);
        }
        let slot = |space| match space {
            Space::Input(i) => self.inputs.get(i as usize),
            Space::Output(o) => self.outputs.get(o as usize),
            Space::Constant(_) | Space::Arena(_) | Space::Common | Space::Unused => None,
        };
        let is_copied = |space, d| slot(space).is_some_and(|slot| slot.transfer(d).is_some());
        let copies = (0..self.inner.devices.len() as u32)
            .any(|d| self.inputs.iter().chain(&self.outputs).any(|slot| slot.transfer(d).is_some()));
        if copies || !shared.is_empty() {
            let infos: Vec<_> = self.inner.devices.iter().map(|d| d.context.info()).collect();
            insert_barriers(&mut plan, &infos, &Bound { resolve: &resolve, is_copied: &is_copied });
        }
        Ok(plan)
    }

    /// Two bound tensors that share bytes: fine where both are read, or where every read of the input
    /// comes before the first write of the output.
    fn check_shared(&self, plan: &Plan, a: Space, b: Space) -> Result<(), Error> {
        let fine = match (a, b) {
            (Space::Input(_), Space::Input(_)) => true,
            (Space::Input(i), Space::Output(o)) => {
                let (last, first) = (plan.inputs[i as usize].last, plan.outputs[o as usize].first);
                first.is_none_or(|first| last.unwrap_or_default() < first)
            }
            _ => false,
        };
        if fine {
            return Ok(());
        }
        let name = |space| io(plan, space).map(|io| io.name.clone()).unwrap_or_default();
        Err(SessionError::Overlap { first: name(a), second: name(b) }.into())
    }

    /// Two outputs in the same bytes of the process, also where each is copied there.
    fn check_written_once(&self, plan: &Plan) -> Result<(), Error> {
        let mut seen: Vec<(ByteRange, &str)> = Vec::new();
        for (slot, io) in self.outputs.iter().zip(&plan.outputs) {
            let Some(SourceKey::Host(start, _)) = slot.source.key() else { continue };
            let range = ByteRange::new(start, start.saturating_add(io.info.bytes() as u64));
            if let Some((_, other)) = seen.iter().find(|(theirs, _)| theirs.overlaps(range)) {
                let (first, second) = ((*other).to_owned(), io.name.clone());
                return Err(SessionError::Overlap { first, second }.into());
            }
            seen.push((range, &io.name));
        }
        Ok(())
    }

    /// The commands of segment `s` as they are submitted, and how they are cut into pieces.
    fn script(
        &self,
        plan: &Plan,
        s: usize,
        host: &HostRanges,
    ) -> Result<(Script, Option<pieces::Cut>), Error> {
        let mut script = self.record(plan, s, host)?;
        let mut cut = self.cut(&mut script, plan, s);
        if let Some(cut) = cut.as_mut().filter(|cut| cut.timed) {
            pieces::time_pieces(&mut script, cut);
        }
        Ok((script, cut))
    }

    /// Cuts the commands of segment `s`, where its device has a limit.
    pub(in crate::session) fn cut(&self, script: &mut Script, plan: &Plan, s: usize) -> Option<pieces::Cut> {
        let device = plan.segments[s].device;
        let info = self.device(device).context.info();
        let limit = self.inner.options.limit.on(info, self.may_end)?;
        let speeds = pieces::speeds(plan, device, info);
        let clock = info.timestamp_ns > 0.0;
        Some(self.compiled.schedule.cut(script, &plan.report.nodes, s, limit, &speeds, clock))
    }

    /// The commands of segment `s`, which flush and invalidate `host`.
    pub(in crate::session) fn record(
        &self,
        plan: &Plan,
        s: usize,
        host: &HostRanges,
    ) -> Result<Script, Error> {
        let segment = &plan.segments[s];
        let d = segment.device;
        // Copies that the session makes to the device are no recordings of its own.
        let on = |segment: &Segment| segment.device == d && !segment.by_session;
        let mut r = Recording::default();
        // Nothing in an arena outlives a run, so images begin anew with the first segment of their device.
        if !plan.segments[..s].iter().any(on) {
            for image in plan.images.iter().filter(|image| image.device == d) {
                r.images.push((self.range(image.loc, d)?, image.image));
            }
        }
        if !plan.segments[..s].iter().any(on) {
            self.transfers(&mut r, plan, d, Side::Input);
        }
        let mut nodes = vec![u32::MAX; r.commands.len()];
        for command in &segment.commands {
            r.commands.extend(command.barrier.map(Command::Barrier));
            r.commands.push(self.command(&command.work, d)?);
            nodes.resize(r.commands.len(), command.node);
        }
        r.commands.extend(segment.collecting.map(Command::Barrier));
        if !plan.segments[s + 1..].iter().any(on) {
            self.transfers(&mut r, plan, d, Side::Output);
        }
        r.commands.extend(segment.closing.map(Command::Barrier));
        nodes.resize(r.commands.len(), u32::MAX);
        r.flush.clone_from(&host.flush);
        r.invalidate.clone_from(&host.invalidate);
        Ok(Script { recording: r, nodes })
    }

    /// The size in bytes of what a flush or an invalidate names on device `d`.
    pub(in crate::session) fn non_coherent_atom(&self, d: u32) -> u64 {
        self.device(d).context.info().limits.non_coherent_atom.max(1)
    }

    /// Copies between host-visible memory and the device's own, before its first or after its last segment.
    fn transfers(&self, r: &mut Recording, plan: &Plan, d: u32, side: Side) {
        let (slots, ios) = match side {
            Side::Input => (&self.inputs, &plan.inputs),
            Side::Output => (&self.outputs, &plan.outputs),
        };
        let copy =
            |(slot, io): (&Slot<'_>, &PlannedIo)| slot.transfer_command(d, io.info.bytes() as u64, side);
        r.commands.extend(slots.iter().zip(ios).filter_map(copy));
    }

    fn command(&self, work: &Work, d: u32) -> Result<Command, Error> {
        Ok(match work {
            Work::Dispatch { kernel, args, params, groups, images } => {
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
                    .collect::<Result<Vec<_>, Error>>()?;
                let args = through_images(args, images);
                let (params, groups) = (params.clone(), *groups);
                Command::Dispatch(Dispatch { kernel: kernel.id(), args, params, groups })
            }
            Work::Copy { src, dst } => Command::Copy { src: self.range(*src, d)?, dst: self.range(*dst, d)? },
            Work::Fill { dst, value } => Command::Fill { dst: self.range(*dst, d)?, value: *value },
            Work::Move { .. } => return Err(self.no_sharing(d).into()),
        })
    }

    fn unused(&self, d: u32) -> BufferRange {
        self.compiled.unused[d as usize].range()
    }

    fn range(&self, loc: Location, d: u32) -> Result<BufferRange, Error> {
        let base = match loc.space {
            Space::Input(i) => self.inputs[i as usize].range(d),
            Space::Output(o) => self.outputs[o as usize].range(d),
            Space::Constant(c) => Some(self.compiled.constants[c as usize].buffer.range()),
            Space::Arena(a) => self.arenas.buffer(a, d).map(|b| b.range()),
            Space::Unused => return Ok(self.unused(d)),
            Space::Common => None,
        };
        let base = base.ok_or_else(|| self.no_sharing(d))?;
        Ok(BufferRange { offset: base.offset + loc.offset, bytes: loc.bytes, ..base })
    }

    /// How each bound tensor reaches the devices, and why. What a later stage does with it is in that stage's
    /// verdicts.
    pub fn verdicts(&self) -> impl Iterator<Item = &Verdict> {
        self.inputs.iter().chain(&self.outputs).flat_map(|s| &s.verdicts)
    }

    /// The binding of what was planned after this one's plan had run, where sizes are known only in the run.
    /// There is none before.
    pub fn next_stage(&self) -> Option<&Binding<'e>> {
        self.rest.as_ref().and_then(Rest::child)
    }

    /// This binding and all that came after it in the last run.
    pub fn stages(&self) -> impl Iterator<Item = &Binding<'e>> {
        std::iter::successors(Some(self), |b| b.next_stage())
    }

    /// The stage that makes output `name`.
    fn stage_of(&self, name: &str) -> Result<(&Binding<'e>, usize), SessionError> {
        let outputs = |b: &Binding<'e>| b.compiled.plan.outputs.iter().position(|io| io.name == name);
        if let Some(found) = self.stages().find_map(|b| Some((b, outputs(b)?))) {
            return Ok(found);
        }
        self.inner.output_position(name)?;
        Err(SessionError::NotRun)
    }

    /// Type and shape of output `name`; where they depend on the run, of the last one.
    ///
    /// # Errors
    /// [`SessionError::Unknown`], [`SessionError::NotRun`].
    pub fn output_info(&self, name: &str) -> Result<&TensorInfo, Error> {
        let (stage, o) = self.stage_of(name)?;
        Ok(&stage.compiled.plan.outputs[o].info)
    }

    /// Type and shape of input `name`, and whether a value written to it is seen by the next run.
    pub(in crate::session) fn input_info(&self, name: &str) -> Option<(&TensorInfo, bool)> {
        let i = self.compiled.plan.inputs.iter().position(|io| io.name == name)?;
        Some((&self.compiled.plan.inputs[i].info, self.takes_value(i)))
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
        self.write_input(i, value.bytes())
    }

    /// The stage that has made output `name`, in a run that is over.
    fn made_by(&self, name: &str) -> Result<(&Binding<'e>, usize), SessionError> {
        let (stage, o) = self.stage_of(name)?;
        if !stage.has_run {
            return Err(SessionError::NotRun);
        }
        stage.settle();
        Ok((stage, o))
    }

    /// Copies output `name` out.
    ///
    /// # Errors
    /// [`SessionError::Unknown`], [`SessionError::NotRun`], [`Error::Device`].
    pub fn get_output(&self, name: &str) -> Result<Tensor, Error> {
        let (stage, o) = self.made_by(name)?;
        let io = &stage.compiled.plan.outputs[o];
        Tensor::build(io.info.clone(), |bytes| stage.outputs[o].read(&self.inner.devices, bytes))
    }

    /// Copies output `name` into `bytes`, which has exactly its length.
    ///
    /// # Errors
    /// As [`Binding::get_output`], and [`SessionError::Capacity`].
    pub fn read_output(&self, name: &str, bytes: &mut [u8]) -> Result<(), Error> {
        let (stage, o) = self.made_by(name)?;
        let needed = stage.compiled.plan.outputs[o].info.bytes() as u64;
        if bytes.len() as u64 != needed {
            let got = bytes.len() as u64;
            return Err(SessionError::Capacity { name: name.to_owned(), needed, got }.into());
        }
        stage.outputs[o].read(&self.inner.devices, bytes)
    }

    /// Lends output `name` in place, where its memory can be seen by the host. Submissions that touch it are
    /// refused while the view lives.
    ///
    /// # Errors
    /// [`SessionError::Unknown`], and `NotMapped` for memory of a device alone.
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
        self.view_of(&self.inputs[i], &self.compiled.plan.inputs[i].info)
    }

    fn view_of(&self, slot: &Slot<'_>, info: &TensorInfo) -> Result<HostView, Error> {
        self.settle();
        let buffer = slot
            .view(info.bytes() as u64)
            .ok_or_else(|| crate::device::UsageError::new("host_view", crate::device::Problem::NotMapped))?;
        Ok(HostView { buffer, info: info.clone() })
    }
}

/// A tensor of a binding as the host sees it in place; [`HostView::read`] and [`HostView::write`] lend it.
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

/// How many nodes a segment has.
fn nodes(segment: &Segment) -> usize {
    let mut nodes: Vec<u32> = segment.commands.iter().map(|command| command.node).collect();
    nodes.dedup();
    nodes.len()
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

/// Arguments where those of `images` are images.
fn through_images(mut args: Vec<Arg>, images: &[(u32, ImageView)]) -> Vec<Arg> {
    for (at, view) in images {
        if let Some(arg) = args.get_mut(*at as usize)
            && let Arg::Buffer(range, access) = *arg
        {
            *arg = Arg::Image(range, *view, access);
        }
    }
    args
}

/// The input or output that lies at `space`, if one does.
fn io(plan: &Plan, space: Space) -> Option<&PlannedIo> {
    match space {
        Space::Output(o) => plan.outputs.get(o as usize),
        Space::Input(i) => plan.inputs.get(i as usize),
        Space::Constant(_) | Space::Arena(_) | Space::Common | Space::Unused => None,
    }
}
