//! The state of a simulated device and the execution of recordings on it.

use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, Instant};

use super::SimConfig;
use super::host::HostSide;
use super::model::{DeviceBytes, Hazard, HazardKind, Origin};
use super::profile::KernelSizes;
use crate::backend::slots::SlotTable;
use crate::backend::{DeviceError, MemoryUsage};
use crate::kernel::{NativeArg, NativeArgs, NativeKernel};
use crate::recording::{Arg, BufferId, BufferRange, Command, DeviceKernelId, Dispatch, Recording};
use crate::team::Team;
use onepool_core::memory::coherency::{Access, Barrier};
use onepool_core::memory::image::ImageDesc;
use onepool_core::memory::model::{Heap, MemoryModel};
use onepool_core::memory::os::cores;
use onepool_core::memory::range::ByteRange;

/// How many messages, failures and sets of times are kept.
const KEPT: usize = 1024;

/// Everything under the context's one lock.
#[derive(Debug)]
pub(super) struct World {
    /// Kernels share loops with threads of their own: the world is locked meanwhile, and others may be waiting for it.
    team: Team,
    pub(super) config: SimConfig,
    /// The memory of what is played.
    pub(super) model: MemoryModel,
    pub(super) buffers: SlotTable<BufferId, ()>,
    pub(super) bodies: BTreeMap<BufferId, SimBuffer>,
    pub(super) kernels: SlotTable<DeviceKernelId, NativeKernel>,
    pub(super) queues: Vec<SimQueueState>,
    pub(super) usage: MemoryUsage,
    /// Imports that were asked for, refused ones included.
    pub(super) imports_asked: u64,
    pub(super) messages: Vec<String>,
    pub(super) lost: bool,
    submissions: u64,
    origin: Instant,
}

#[derive(Debug)]
pub(super) struct SimBuffer {
    pub(super) device: DeviceBytes,
    pub(super) host: Option<HostSide>,
    /// The memory type that it lies in.
    pub(super) memory_type: u32,
    pub(super) coherent: bool,
    pub(super) imported: bool,
    /// Pages of an import, by address.
    pub(super) pages: Option<ByteRange>,
    /// Host writes that were flushed and that the next submission shows to the device.
    pub(super) inbox: Vec<(ByteRange, Vec<u8>)>,
    /// Images that came into being in it, by offset.
    pub(super) images: Vec<(u64, ImageDesc)>,
    /// The latest submission of each queue that used it.
    last_use: BTreeMap<u32, u64>,
}

impl SimBuffer {
    pub(super) fn new(bytes: usize, host: Option<HostSide>, memory_type: u32, coherent: bool) -> SimBuffer {
        SimBuffer {
            device: DeviceBytes::new(bytes),
            host,
            memory_type,
            coherent,
            imported: false,
            pages: None,
            inbox: Vec::new(),
            images: Vec::new(),
            last_use: BTreeMap::new(),
        }
    }
}

#[derive(Debug, Default)]
pub(super) struct SimQueueState {
    pub(super) submitted: u64,
    /// What the host knows to be over.
    pub(super) waited: u64,
    pub(super) failures: VecDeque<(u64, DeviceError, bool)>,
    pub(super) times: VecDeque<(u64, Vec<u64>)>,
    /// Until when its work goes on although the device is lost.
    pub(super) lingers: Option<Instant>,
}

impl World {
    pub(super) fn new(config: SimConfig, model: MemoryModel) -> Result<World, DeviceError> {
        let failed = |_| DeviceError::Backend { api: "sim", call: "start threads", code: 0 };
        let team = Team::new(cores(), "onepool-sim", Duration::ZERO).map_err(failed)?;
        Ok(World {
            team,
            config,
            model,
            buffers: SlotTable::new(),
            bodies: BTreeMap::new(),
            kernels: SlotTable::new(),
            queues: Vec::new(),
            usage: MemoryUsage::default(),
            imports_asked: 0,
            messages: Vec::new(),
            lost: false,
            submissions: 0,
            origin: Instant::now(),
        })
    }

    pub(super) fn say(&mut self, message: String) {
        if self.messages.len() < KEPT {
            self.messages.push(message);
        }
    }

    pub(super) fn body(&mut self, id: BufferId) -> Result<&mut SimBuffer, DeviceError> {
        self.bodies.get_mut(&id).ok_or(DeviceError::Stale { object: "buffer" })
    }

    /// The device is lost from now on.
    pub(super) fn lose(&mut self, why: &str) -> DeviceError {
        self.lost = true;
        lost(why)
    }

    /// Bytes that the buffers that are `counted` take of a heap.
    pub(super) fn charged(&self, heap: u32, counted: impl Fn(&SimBuffer) -> bool) -> u64 {
        let of_heap = |body: &&SimBuffer| self.model.heap_of(body.memory_type) == Some(heap) && counted(body);
        self.bodies.values().filter(of_heap).map(|body| body.device.bytes()).fold(0, u64::saturating_add)
    }

    /// Bytes in what was set aside, and of the host's memory that is mapped.
    pub(super) fn kernel_usage(&self, sizes: &KernelSizes) -> (u64, u64) {
        let set_aside = self.usage.allocated.min(sizes.set_aside);
        (set_aside, self.usage.imported + (self.usage.allocated - set_aside))
    }

    /// What holds too much, where a submission finds that.
    fn overcommitted(&self) -> Option<String> {
        let profile = &self.config.profile;
        if let Some(sizes) = profile.kernel.filter(|_| profile.overcommits) {
            let is_over = self.kernel_usage(&sizes).1 > sizes.mapped;
            return is_over.then(|| "what the device maps of the host's memory".to_owned());
        }
        let mut heaps = self.model.heaps().iter().enumerate().filter(|_| self.config.profile.overcommits);
        let over = |(index, heap): &(usize, &Heap)| {
            self.charged(u32::try_from(*index).unwrap_or(u32::MAX), |_| true) > heap.bytes
        };
        heaps.find(over).map(|(index, _)| format!("heap {index}"))
    }

    /// Removes a buffer, and says so if a submission may still use it.
    pub(super) fn remove(&mut self, id: BufferId) {
        let Ok(()) = self.buffers.remove(id) else { return };
        let Some(body) = self.bodies.remove(&id) else { return };
        let busy = body.last_use.iter().any(|(queue, submission)| {
            self.queues.get(*queue as usize).is_some_and(|queue| queue.waited < *submission)
        });
        if busy && !self.lost {
            self.say(format!("buffer {} was destroyed while a submission may use it", id.index));
        }
        let bytes = body.device.bytes();
        let live = if body.imported { &mut self.usage.imported } else { &mut self.usage.allocated };
        *live = live.saturating_sub(bytes);
    }

    /// Runs a recording; gives its number on the queue.
    pub(super) fn submit(&mut self, queue: u32, recording: &Recording) -> Result<u64, DeviceError> {
        self.alive()?;
        self.submissions += 1;
        if self.config.faults.lose_at_submit == Some(self.submissions) {
            return Err(self.lose("injected at this submission"));
        }
        if let Some((at, time)) = self.config.faults.lose_early_at_submit
            && at == self.submissions
        {
            return Err(self.lose_early(time));
        }
        if self.config.faults.imports_at_submit.is_some_and(|most| self.usage.imported > most) {
            return Err(DeviceError::OutOfDeviceMemory { bytes: self.usage.imported });
        }
        if self.config.faults.lose_by_imports.is_some_and(|most| self.usage.imported > most) {
            return Err(self.lose("not enough memory for the imports of a submission"));
        }
        if let Some(full) = self.overcommitted() {
            return Err(self.lose(&format!("imports and allocations exceed {full}")));
        }
        let touches = self.resolve(recording)?;
        let state = self.queues.get_mut(queue as usize).ok_or(DeviceError::Stale { object: "queue" })?;
        state.submitted += 1;
        let now = Origin { queue, submission: state.submitted };
        for range in &touches {
            self.take_host_writes(*range, now)?;
        }
        self.begin_images(recording, now)?;
        let mut times = vec![0; recording.timestamps as usize];
        for command in &recording.commands {
            if let Err(error) = self.run(command, now, &mut times) {
                // As on a real device, the failed run is known only once someone waits for it.
                self.fail(now, error);
                break;
            }
        }
        if let Some(state) =
            self.queues.get_mut(queue as usize).filter(|_| self.config.profile.timestamp_ns > 0.0)
        {
            state.times.push_back((now.submission, times));
            if state.times.len() > KEPT {
                state.times.pop_front();
            }
        }
        Ok(now.submission)
    }

    /// The host waited for a submission: what was shown to it arrives.
    pub(super) fn waited(&mut self, queue: u32, submission: u64) {
        let Some(state) = self.queues.get_mut(queue as usize) else { return };
        if submission <= state.waited {
            return;
        }
        state.waited = submission;
        let now = Origin { queue, submission };
        let mut lost = Vec::new();
        for (id, body) in &mut self.bodies {
            body.device.waited(now, body.host.is_some());
            let Some(host) = &mut body.host else { continue };
            body.device.tell_host(now, body.coherent, |range, bytes| {
                if !body.coherent && host.is_dirty(range) {
                    lost.push((*id, range));
                }
                match bytes {
                    Some(bytes) => host.store(range, bytes),
                    None => host.poison(range),
                }
            });
        }
        lost.into_iter().for_each(|(id, range)| self.say_lost(id, range));
    }

    /// Vulkan, `vkInvalidateMappedMemoryRanges`: undefined is what the host wrote and did not flush.
    fn say_lost(&mut self, buffer: BufferId, range: ByteRange) {
        self.say(format!(
            "bytes {range} of buffer {}: the device wrote what the host had written and not flushed",
            buffer.index
        ));
    }

    /// Host writes of a non-coherent range become ready for the next submission.
    pub(super) fn flush(&mut self, range: &BufferRange) -> Result<(), DeviceError> {
        let bytes = self.host_range("flush", range)?;
        let body = self.body(range.buffer)?;
        if body.coherent {
            return Ok(());
        }
        if let Some(host) = &mut body.host {
            body.inbox.extend(host.take_dirty(bytes));
        }
        Ok(())
    }

    /// Device writes to a non-coherent range arrive at the host.
    pub(super) fn invalidate(&mut self, range: &BufferRange) -> Result<(), DeviceError> {
        let bytes = self.host_range("invalidate", range)?;
        let waited: Vec<u64> = self.queues.iter().map(|queue| queue.waited).collect();
        let body = self.body(range.buffer)?;
        if body.coherent {
            return Ok(());
        }
        if let Some(host) = &mut body.host {
            let over =
                |by: Origin| waited.get(by.queue as usize).is_some_and(|waited| by.submission <= *waited);
            let mut lost = Vec::new();
            body.device.invalidate(bytes, over, |range, bytes| {
                if host.is_dirty(range) {
                    lost.push(range);
                }
                host.store(range, bytes);
            });
            lost.into_iter().for_each(|lost| self.say_lost(range.buffer, lost));
        }
        Ok(())
    }

    fn host_range(&mut self, call: &str, range: &BufferRange) -> Result<ByteRange, DeviceError> {
        let atom = self.config.profile.limits.non_coherent_atom.max(1);
        let body = self.body(range.buffer)?;
        let size = body.device.bytes();
        let bytes = ByteRange::new(range.offset, range.offset.saturating_add(range.bytes));
        let aligned =
            bytes.start.is_multiple_of(atom) && (bytes.end.is_multiple_of(atom) || bytes.end == size);
        let (mapped, inside) = (body.host.is_some(), bytes.end <= size);
        if !mapped || !inside || !aligned {
            let what = format!("{call} of bytes {bytes} of buffer {} of {size} bytes", range.buffer.index);
            self.say(format!("{what}: not mapped, outside, or no multiple of the atom {atom}"));
        }
        Ok(bytes)
    }

    /// Checks every handle and range, and gives the ranges.
    fn resolve(&mut self, recording: &Recording) -> Result<Vec<BufferRange>, DeviceError> {
        let mut ranges = Vec::new();
        for command in &recording.commands {
            match command {
                Command::Dispatch(dispatch) => {
                    self.kernels.get(dispatch.kernel)?;
                    if let Some(part) = dispatch.part {
                        self.say(format!("{part:?} of a grid, where functions run whole"));
                    }
                    for arg in &dispatch.args {
                        let Some((range, _)) = arg.range() else { continue };
                        let alignment = self.config.profile.limits.argument_alignment.max(1);
                        if !range.offset.is_multiple_of(alignment) {
                            let offset = range.offset;
                            self.say(format!(
                                "an argument at offset {offset}, which is no multiple of {alignment}"
                            ));
                        }
                        ranges.push(*range);
                    }
                }
                Command::Copy { src, dst } => ranges.extend([*src, *dst]),
                Command::Fill { dst, .. } => ranges.push(*dst),
                Command::Barrier(_) | Command::Timestamp { .. } => {}
            }
        }
        for range in &ranges {
            let size = self.body(range.buffer)?.device.bytes();
            if range.offset.checked_add(range.bytes).is_none_or(|end| end > size) {
                let asked = range.offset.saturating_add(range.bytes);
                return Err(DeviceError::Limit { what: "a range's end", asked, limit: size });
            }
        }
        Ok(ranges)
    }

    fn take_host_writes(&mut self, range: BufferRange, now: Origin) -> Result<(), DeviceError> {
        let body = self.body(range.buffer)?;
        body.last_use.insert(now.queue, now.submission);
        let mut arrived = std::mem::take(&mut body.inbox);
        if let Some(host) = body.host.as_mut().filter(|_| body.coherent) {
            arrived.extend(host.take_dirty(span(&range)));
        }
        let hazards: Vec<_> =
            arrived.iter().flat_map(|(range, bytes)| body.device.host_wrote(*range, bytes)).collect();
        for hazard in hazards {
            self.report(&hazard, range.buffer, "the host", Access::HOST_WRITE);
        }
        Ok(())
    }

    fn run(&mut self, command: &Command, now: Origin, times: &mut [u64]) -> Result<(), DeviceError> {
        match command {
            Command::Dispatch(dispatch) => self.dispatch(dispatch, now)?,
            Command::Copy { src, dst } => {
                let mut bytes = vec![0; src.bytes as usize];
                self.read(src, Access::TRANSFER_READ, now, "a copy", &mut bytes)?;
                self.write(dst, Access::TRANSFER_WRITE, now, "a copy", &bytes)?;
                self.body(src.buffer)?.device.note_read(span(src), Access::TRANSFER_READ, now);
            }
            Command::Fill { dst, value } => {
                let word = value.to_ne_bytes();
                let bytes: Vec<u8> = word.iter().copied().cycle().take(dst.bytes as usize).collect();
                self.write(dst, Access::TRANSFER_WRITE, now, "a fill", &bytes)?;
            }
            Command::Barrier(barrier) => self.barrier(*barrier, now),
            Command::Timestamp { slot } => {
                if let Some(time) = times.get_mut(*slot as usize) {
                    *time = self.origin.elapsed().as_nanos() as u64;
                }
            }
        }
        Ok(())
    }

    pub(super) fn barrier(&mut self, barrier: Barrier, now: Origin) {
        for body in self.bodies.values_mut() {
            body.device.barrier(barrier, now, body.host.is_some());
        }
    }

    fn dispatch(&mut self, dispatch: &Dispatch, now: Origin) -> Result<(), DeviceError> {
        let kernel = self.kernels.get(dispatch.kernel)?.clone();
        let mut copies: Vec<Option<Aligned>> = Vec::with_capacity(dispatch.args.len());
        for arg in &dispatch.args {
            if let Arg::Image(range, view, _) = arg {
                self.check_view(range, view)?;
            }
            copies.push(match arg {
                Arg::Absent => None,
                Arg::Buffer(range, access) | Arg::Image(range, _, access) => {
                    let mut copy = Aligned::new(range.bytes as usize);
                    if access.intersects(Access::DEVICE_READ) {
                        self.read(range, Access::KERNEL_READ, now, kernel.name(), copy.bytes_mut())?;
                    } else {
                        self.body(range.buffer)?.device.latest(span(range), copy.bytes_mut());
                    }
                    Some(copy)
                }
            });
        }
        let mut args: Vec<NativeArg<'_>> = copies
            .iter_mut()
            .zip(&dispatch.args)
            .map(|(copy, arg)| {
                let Some(copy) = copy else { return NativeArg::Absent };
                match arg.range() {
                    Some((_, access)) if access.intersects(Access::DEVICE_WRITE) => {
                        NativeArg::Write(copy.bytes_mut())
                    }
                    _ => NativeArg::Read(copy.bytes()),
                }
            })
            .collect();
        let mut args = NativeArgs::new(&mut args, &dispatch.params);
        let called = self.team.lead(|| kernel.call_caught(&mut args));
        called.map_err(|source| DeviceError::Kernel { kernel: kernel.name().to_owned(), source })?;
        let ranges = copies.iter().zip(&dispatch.args).filter_map(|(copy, arg)| {
            let (range, access) = arg.range()?;
            Some((copy.as_ref()?, range, access))
        });
        let (written, read): (Vec<_>, Vec<_>) =
            ranges.partition(|(_, _, access)| access.intersects(Access::DEVICE_WRITE));
        for (copy, range, _) in written {
            self.write(range, Access::KERNEL_WRITE, now, kernel.name(), copy.bytes())?;
        }
        for (_, range, _) in read {
            self.body(range.buffer)?.device.note_read(span(range), Access::KERNEL_READ, now);
        }
        Ok(())
    }

    fn read(
        &mut self,
        range: &BufferRange,
        access: Access,
        now: Origin,
        who: &str,
        out: &mut [u8],
    ) -> Result<(), DeviceError> {
        let hazards = self.body(range.buffer)?.device.view(span(range), access, now, out);
        hazards.iter().for_each(|hazard| self.report(hazard, range.buffer, who, access));
        Ok(())
    }

    fn write(
        &mut self,
        range: &BufferRange,
        access: Access,
        now: Origin,
        who: &str,
        bytes: &[u8],
    ) -> Result<(), DeviceError> {
        let hazards = self.body(range.buffer)?.device.write(span(range), bytes, access, now);
        hazards.iter().for_each(|hazard| self.report(hazard, range.buffer, who, access));
        Ok(())
    }

    fn report(&mut self, hazard: &Hazard, buffer: BufferId, who: &str, access: Access) {
        let kind = match hazard.kind {
            HazardKind::ReadAfterWrite => "read-after-write",
            HazardKind::WriteAfterWrite => "write-after-write",
            HazardKind::WriteAfterRead => "write-after-read",
        };
        self.say(format!(
            "{kind} hazard: {who} ({access:?}) on bytes {} of buffer {} that is not ordered after {:?}",
            hazard.range, buffer.index, hazard.earlier
        ));
    }

    fn fail(&mut self, now: Origin, error: DeviceError) {
        let Some(state) = self.queues.get_mut(now.queue as usize) else { return };
        state.failures.push_back((now.submission, error, false));
        if state.failures.len() > KEPT {
            state.failures.pop_front();
        }
    }
}

pub(super) fn span(range: &BufferRange) -> ByteRange {
    ByteRange::new(range.offset, range.offset.saturating_add(range.bytes))
}

pub(super) fn lost(detail: &str) -> DeviceError {
    DeviceError::Lost { detail: detail.to_owned() }
}

/// Bytes that start where every element type may.
struct Aligned {
    words: Vec<u128>,
    len: usize,
}

impl Aligned {
    fn new(len: usize) -> Aligned {
        Aligned { words: vec![0; len.div_ceil(size_of::<u128>())], len }
    }

    fn bytes(&self) -> &[u8] {
        bytemuck::cast_slice(&self.words).get(..self.len).unwrap_or_default()
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        bytemuck::cast_slice_mut(&mut self.words).get_mut(..self.len).unwrap_or_default()
    }
}
