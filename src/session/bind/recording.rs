//! The commands of a binding: each segment of its plan with the bound memory in it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::binding::Binding;
use super::host_ranges::HostRanges;
use super::launch::{LaunchWork, Move, SegmentLaunch};
use super::memory::SourceKey;
use super::slot::{Side, Slot};
use crate::device::Buffer;
use crate::kernel;
use crate::memory::coherency::Access;
use crate::memory::image::ImageView;
use crate::memory::range::{ByteRange, RangeMap};
use crate::plan::{Bound, Location, Plan, PlannedIo, Segment, Space, Work, insert_barriers, order_segments};
use crate::recording::{Arg, BufferId, BufferRange, Command, Dispatch, Recording};
use crate::session::core::device::Device;
use crate::session::core::pieces::{self, CutTerms};
use crate::session::core::queue::Footprint;
use crate::session::core::split::LabelledRecording;
use crate::session::error::{Error, SessionError};

impl Binding<'_> {
    pub(in crate::session) fn prepare(&self) -> Result<Arc<[SegmentLaunch]>, Error> {
        let plan = self.ordered_plan()?;
        self.check_handed_over(&plan)?;
        let host = self.host_ranges(&plan);
        // For each device and buffer the last segment that invalidates the bytes.
        let mut shown: BTreeMap<(u32, BufferId), RangeMap<u32>> = BTreeMap::new();
        let launch = |(s, segment): (usize, &Segment)| {
            let (device, mut waits, mut cut) = (segment.device, segment.waits.clone(), None);
            let work = if segment.by_session {
                LaunchWork::Moves(self.moves(segment)?)
            } else {
                let (labelled, pieces) = self.timed_record(&plan, s, &host[s])?;
                let LabelledRecording { recording, .. } = labelled;
                let bytes = |r: &BufferRange| ByteRange::new(r.offset, r.offset.saturating_add(r.bytes));
                // A flush of bytes that the device wrote would overwrite them with the host's old bytes.
                let own =
                    recording.flush.iter().filter_map(|r| Some((shown.get(&(device, r.buffer))?, bytes(r))));
                waits.extend(own.flat_map(|(of, bytes)| of.overlapping(bytes).map(|(_, last)| *last)).max());
                for range in &recording.invalidate {
                    shown.entry((device, range.buffer)).or_default().set(bytes(range), s as u32);
                }
                let starts = pieces.as_ref().map_or(&[][..], |cut| &cut.starts);
                let prepared = kernel::prepare(&self.device(segment.device).queue, recording, starts)?;
                cut = pieces.map(Arc::new);
                LaunchWork::Commands(prepared)
            };
            waits.sort_unstable();
            waits.dedup();
            let spans = if plan.segments.len() > 1 { self.spans(segment) } else { Vec::new() };
            let footprint = Footprint { device, spans };
            Ok(SegmentLaunch { waits, work, footprint, nodes: nodes(segment), cut })
        };
        plan.segments.iter().enumerate().map(launch).collect()
    }

    /// Checks that memory of the application's that is taken over once for a run is used by one segment, whatever the names
    /// of the tensors that lie there.
    fn check_handed_over(&self, plan: &Plan) -> Result<(), SessionError> {
        let inputs = self.inputs.iter().zip(&plan.inputs).enumerate();
        let inputs = inputs.map(|(i, (slot, io))| (Space::Input(i as u32), slot, io));
        let outputs = self.outputs.iter().zip(&plan.outputs).enumerate();
        let outputs = outputs.map(|(o, (slot, io))| (Space::Output(o as u32), slot, io));
        let mut memories: BTreeMap<(usize, BufferId), (&str, BTreeSet<usize>)> = BTreeMap::new();
        for (space, slot, io) in inputs.chain(outputs) {
            let once = slot.buffers().filter(|buffer| buffer.acquisition().is_some_and(|own| own.once));
            for buffer in once {
                let key = (buffer.context_id(), buffer.range().buffer);
                let (_, segments) = memories.entry(key).or_insert((io.name.as_str(), BTreeSet::new()));
                let uses = |segment: &Segment| {
                    let mut found = false;
                    for command in &segment.commands {
                        command.work.for_each_touch(&mut |loc, _| found |= loc.space == space);
                    }
                    found
                };
                segments.extend(plan.segments.iter().enumerate().filter(|(_, s)| uses(s)).map(|(at, _)| at));
            }
        }
        match memories.into_values().find(|(_, segments)| segments.len() > 1) {
            Some((name, segments)) => {
                Err(SessionError::HandedOver { name: name.to_owned(), segments: segments.len() })
            }
            None => Ok(()),
        }
    }

    /// Copies by the session. For a tensor that a device copies in or out, the session uses the host's memory: the
    /// device's is valid only between its first and its last segment.
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

    /// Ranges of the process's memory that a segment accesses, and whether it writes them.
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

    pub(in crate::session) fn device(&self, d: u32) -> &Device {
        &self.core.devices[d as usize]
    }

    /// The plan with barriers for the bound memory: which tensors share memory and which are copied.
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
        let copies = (0..self.core.devices.len() as u32)
            .any(|d| self.inputs.iter().chain(&self.outputs).any(|slot| slot.transfer(d).is_some()));
        if copies || !shared.is_empty() {
            let infos: Vec<_> = self.core.devices.iter().map(|d| d.context.info()).collect();
            insert_barriers(&mut plan, &infos, &Bound { resolve: &resolve, is_copied: &is_copied });
        }
        Ok(plan)
    }

    /// Checks two bound tensors that overlap: both are read-only, or every read of the input is before the first
    /// write of the output.
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

    /// Checks that no two outputs overlap, copied ones included.
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

    /// The commands of segment `s` with timestamps, and its pieces.
    fn timed_record(
        &self,
        plan: &Plan,
        s: usize,
        host: &HostRanges,
    ) -> Result<(LabelledRecording, Option<pieces::PieceCuts>), Error> {
        let mut labelled = self.record(plan, s, host)?;
        let mut cut = self.cut(&mut labelled, plan, s);
        if let Some(cut) = cut.as_mut().filter(|cut| cut.timed) {
            pieces::time_pieces(&mut labelled, cut);
        }
        Ok((labelled, cut))
    }

    /// Cuts the commands of segment `s`, where its device has a limit.
    pub(in crate::session) fn cut(
        &self,
        labelled: &mut LabelledRecording,
        plan: &Plan,
        s: usize,
    ) -> Option<pieces::PieceCuts> {
        let device = plan.segments[s].device;
        let info = self.device(device).context.info();
        let limit = self.core.options.limit.on(info, self.may_end)?;
        let speeds = &pieces::speeds(plan, device, info);
        let terms = CutTerms { limit, speeds, clock: info.timestamp_ns > 0.0 };
        // Kernels of other devices may have the same handles.
        let kernels = plan.segments[s].commands.iter().filter_map(|command| match command.work {
            Work::Dispatch { kernel, .. } => self.compiled.kernels.get(kernel as usize),
            _ => None,
        });
        let has_parts = |dispatch: &Dispatch| {
            kernels
                .clone()
                .find(|kernel| kernel.id() == dispatch.kernel)
                .is_some_and(|kernel| kernel.has_parts())
        };
        Some(self.compiled.schedule.cut(labelled, &plan.report.nodes, s, terms, has_parts))
    }

    /// The commands of segment `s`, which flush and invalidate `host`.
    pub(in crate::session) fn record(
        &self,
        plan: &Plan,
        s: usize,
        host: &HostRanges,
    ) -> Result<LabelledRecording, Error> {
        let segment = &plan.segments[s];
        let d = segment.device;
        // Copies by the session are not part of a recording.
        let on = |segment: &Segment| segment.device == d && !segment.by_session;
        let mut r = Recording::default();
        // Arenas hold nothing between runs, so the first segment of a device creates the images again.
        if !plan.segments[..s].iter().any(on) {
            for image in plan.images.iter().filter(|image| image.device == d) {
                r.images.push((self.range(image.loc, d)?, image.image));
            }
        }
        if !plan.segments[..s].iter().any(on) {
            self.transfers(&mut r, plan, d, Side::Input);
        }
        let mut nodes = vec![None; r.commands.len()];
        for command in &segment.commands {
            r.commands.extend(command.barrier.map(Command::Barrier));
            r.commands.push(self.command(&command.work, d)?);
            nodes.resize(r.commands.len(), Some(command.node));
        }
        r.commands.extend(segment.collecting.map(Command::Barrier));
        if !plan.segments[s + 1..].iter().any(on) {
            self.transfers(&mut r, plan, d, Side::Output);
        }
        r.commands.extend(segment.closing.map(Command::Barrier));
        nodes.resize(r.commands.len(), None);
        r.flush.clone_from(&host.flush);
        r.invalidate.clone_from(&host.invalidate);
        Ok(LabelledRecording { recording: r, nodes })
    }

    /// The unit of flush and invalidate on device `d`, in bytes.
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
        if side == Side::Input {
            let updated = self.outputs.iter().zip(&plan.outputs).filter(|(_, io)| io.updated.is_some());
            r.commands.extend(updated.filter_map(copy));
        }
    }

    fn command(&self, work: &Work, d: u32) -> Result<Command, Error> {
        Ok(match work {
            Work::Dispatch { kernel, args, params, groups, images } => {
                let kernel = &self.compiled.kernels[*kernel as usize];
                let native = self.device(d).context.info().native;
                let writes = |arg: &(Location, Access)| arg.0.bytes > 0 && !arg.1.writes().is_empty();
                let written = args.iter().flatten().find(|arg| writes(arg));
                let args = args
                    .iter()
                    .map(|arg| match arg {
                        Some((loc, access)) if loc.bytes > 0 => {
                            Ok(Arg::Buffer(self.range(*loc, d)?, *access))
                        }
                        Some((_, access)) if native => {
                            Ok(Arg::Buffer(BufferRange { bytes: 0, ..self.unused(d) }, *access))
                        }
                        // To a driver's checks it is a write, which has its barriers in what the kernel does write.
                        Some((_, access)) if !access.writes().is_empty() => {
                            let range = written.map_or(Ok(self.unused(d)), |(loc, _)| self.range(*loc, d))?;
                            Ok(Arg::Buffer(range, *access))
                        }
                        Some((_, access)) => Ok(Arg::Buffer(self.unused(d), *access)),
                        None if native => Ok(Arg::Absent),
                        None => Ok(Arg::Buffer(self.unused(d), Access::KERNEL_READ)),
                    })
                    .collect::<Result<Vec<_>, Error>>()?;
                let args = through_images(args, images);
                let (params, groups) = (params.clone(), *groups);
                Command::Dispatch(Dispatch::new(kernel.id(), args, params, groups))
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
}

/// Number of nodes of a segment.
fn nodes(segment: &Segment) -> usize {
    let mut nodes: Vec<u32> = segment.commands.iter().map(|command| command.node).collect();
    nodes.dedup();
    nodes.len()
}

/// Replaces the arguments in `images` by image views.
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

/// The input or output at `space`, if there is one.
fn io(plan: &Plan, space: Space) -> Option<&PlannedIo> {
    match space {
        Space::Output(o) => plan.outputs.get(o as usize),
        Space::Input(i) => plan.inputs.get(i as usize),
        Space::Constant(_) | Space::Arena(_) | Space::Common | Space::Unused => None,
    }
}
