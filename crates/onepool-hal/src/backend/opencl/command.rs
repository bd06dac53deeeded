//! A recording as calls, everything checked and every argument set.

use super::device::Device;
use super::handle::{self, Event, Queue, RawMem};
use super::image::{format_of, line_of};
use super::kernel::{Interface, Kernel, Passed, Taken};
use super::memory::{Buffer, Part};
use super::tables::Tables;
use crate::backend::DeviceError;
use crate::backend::kept::Lease;
use crate::backend::slots::SlotTable;
use crate::recording::{Arg, BufferId, BufferRange, Command, DeviceKernelId, Dispatch, Recording};
use onepool_core::memory::coherency::Access;
use onepool_core::memory::image::{Filter, ImageView};
use onepool_core::sync::read;
use onepool_spirv::opencl_c::{OpenClForm, Planes, TexelFormat};

/// Some drivers leave the tail of larger copies undone.
const MAX_COPY: usize = 256 << 20;

/// Calls in order, with their arguments.
#[derive(Debug)]
pub(super) struct Calls {
    calls: Vec<Call>,
    /// The buffers and kernels that they use.
    pub(super) buffers: Vec<BufferId>,
    pub(super) kernels: Vec<DeviceKernelId>,
    /// Timestamp slots.
    pub(super) slots: u32,
}

#[derive(Debug)]
enum Call {
    /// With leases of the memory objects that are set as arguments.
    Dispatch {
        kernel: Taken,
        global: [usize; 3],
        local: [usize; 3],
        _leases: Vec<Lease>,
    },
    Copy {
        src: (RawMem, usize),
        dst: (RawMem, usize),
        bytes: usize,
    },
    Fill {
        dst: (RawMem, usize),
        bytes: usize,
        value: u32,
    },
    Timestamp {
        slot: u32,
    },
}

/// What was enqueued.
#[derive(Debug, Default)]
pub(super) struct Enqueued {
    /// Completes with the last call; `None` where there was nothing to do.
    pub(super) last: Option<Event>,
    /// What each timestamp slot is read from.
    pub(super) stamps: Vec<Stamp>,
}

/// A time that an event will have.
#[derive(Clone, Debug, Default)]
pub(super) enum Stamp {
    /// Never written.
    #[default]
    Unset,
    /// When the command began.
    Began(Event),
    /// When the command ended.
    Ended(Event),
}

impl Stamp {
    /// The time in nanoseconds, once the command has completed.
    pub(super) fn nanos(&self) -> Option<u64> {
        match self {
            Stamp::Unset => Some(0),
            Stamp::Began(event) => event.began(),
            Stamp::Ended(event) => event.ended(),
        }
    }
}

impl Calls {
    /// Looks up and checks everything; what is left to fail is the driver.
    pub(super) fn new(tables: &Tables, recording: &Recording) -> Result<Calls, DeviceError> {
        let (buffers, kernels) = (read(&tables.buffers), read(&tables.kernels));
        let translator = Translator { device: &tables.device, buffers: &buffers, kernels: &kernels };
        let mut calls = Calls {
            calls: Vec::with_capacity(recording.commands.len()),
            buffers: Vec::new(),
            kernels: Vec::new(),
            slots: recording.timestamps,
        };
        for command in &recording.commands {
            match command {
                Command::Dispatch(dispatch) => {
                    calls.kernels.push(dispatch.kernel);
                    let ranges = dispatch.args.iter().filter_map(|arg| Some(arg.range()?.0.buffer));
                    calls.buffers.extend(ranges);
                    translator.dispatch(dispatch, &mut calls.calls)?;
                }
                Command::Copy { src, dst } => {
                    calls.buffers.extend([src.buffer, dst.buffer]);
                    translator.copy(src, dst, &mut calls.calls)?;
                }
                Command::Fill { dst, value } => {
                    calls.buffers.push(dst.buffer);
                    calls.calls.extend(translator.fill(dst, *value)?);
                }
                // An in-order queue keeps the order, and memory is consistent between its commands.
                Command::Barrier(_) => {}
                Command::Timestamp { slot } if *slot < recording.timestamps => {
                    calls.calls.push(Call::Timestamp { slot: *slot });
                }
                Command::Timestamp { slot } => {
                    let (asked, limit) = (u64::from(*slot), u64::from(recording.timestamps));
                    return Err(DeviceError::Limit { what: "a timestamp slot", asked, limit });
                }
            }
        }
        calls.buffers.sort_unstable();
        calls.buffers.dedup();
        calls.kernels.sort_unstable();
        calls.kernels.dedup();
        Ok(calls)
    }

    /// Enqueues every call; after an error, `done` says whether some of them were.
    ///
    /// # Safety
    /// The buffers live until what was enqueued has completed. Where the queue has no times, `slots` is 0.
    pub(super) unsafe fn enqueue(&self, queue: &Queue, done: &mut Enqueued) -> Result<(), DeviceError> {
        done.stamps.resize(self.slots as usize, Stamp::Unset);
        // Slots that come before the first command: they begin with it.
        let mut early: Vec<u32> = Vec::new();
        for call in &self.calls {
            let event = match call {
                Call::Dispatch { kernel, global, local, .. } => {
                    let Some(kernel) = kernel.get() else { continue };
                    // SAFETY: arguments and sizes were set and checked in `Translator::dispatch`; the
                    // buffers live by the caller's promise.
                    unsafe { queue.nd_range(kernel, global, local)? }
                }
                // SAFETY: checked in `Translator::copy`; the buffers live by the caller's promise.
                Call::Copy { src, dst, bytes } => unsafe { queue.copy(*src, *dst, *bytes)? },
                // SAFETY: checked in `Translator::fill`; as above.
                Call::Fill { dst, bytes, value } => unsafe { queue.fill(*dst, *bytes, *value)? },
                Call::Timestamp { slot } => {
                    match (&done.last, done.stamps.get_mut(*slot as usize)) {
                        (Some(last), Some(stamp)) => *stamp = Stamp::Ended(last.clone()),
                        _ => early.push(*slot),
                    }
                    continue;
                }
            };
            for slot in early.drain(..) {
                if let Some(stamp) = done.stamps.get_mut(slot as usize) {
                    *stamp = Stamp::Began(event.clone());
                }
            }
            done.last = Some(event);
        }
        if !early.is_empty() {
            let marker = queue.marker()?;
            for slot in early {
                if let Some(stamp) = done.stamps.get_mut(slot as usize) {
                    *stamp = Stamp::Ended(marker.clone());
                }
            }
            done.last = Some(marker);
        }
        Ok(())
    }
}

/// What comes with the arguments of a call.
#[derive(Default)]
struct Taking {
    leases: Vec<Lease>,
    /// Ranges that something else stands for, and whether the kernel writes them.
    copies: Vec<StandIn>,
}

struct StandIn {
    of: (RawMem, usize),
    copy: RawMem,
    bytes: usize,
    written: bool,
}

struct Translator<'a> {
    device: &'a Device,
    buffers: &'a SlotTable<BufferId, Buffer>,
    kernels: &'a SlotTable<DeviceKernelId, Kernel>,
}

/// An argument that is passed as one row of texels: its rows, and their stride in texels.
struct TexelRows {
    format: TexelFormat,
    width: u64,
    height: u64,
    pitch: u64,
}

impl TexelRows {
    /// Those of an argument, a buffer of which is read as `texels`; or what it is instead.
    fn of(arg: &Arg, range: &BufferRange, texels: Option<TexelFormat>) -> Result<Self, &'static str> {
        let rows = match (arg, texels) {
            (Arg::Image(_, view, _), _) if view.filter == Filter::Linear => {
                return Err("an image that is interpolated, which rows of texels are not");
            }
            (Arg::Image(_, ImageView { image, .. }, _), _) => TexelRows {
                format: format_of(image.texel),
                width: image.width.into(),
                height: image.height.into(),
                pitch: image.row_pitch / image.texel.bytes(),
            },
            (_, Some(format)) => {
                let width = range.bytes / format.bytes();
                TexelRows { format, width, height: 1, pitch: width }
            }
            (_, None) => return Err("no image"),
        };
        if rows.width == 0 { Err("shorter than a texel") } else { Ok(rows) }
    }
}

impl Translator<'_> {
    fn dispatch(&self, dispatch: &Dispatch, calls: &mut Vec<Call>) -> Result<(), DeviceError> {
        let kernel = self.kernels.get(dispatch.kernel)?;
        let refuse = |log: String| DeviceError::Program { kernel: kernel.name.clone(), log };
        let limits = &self.device.info.limits;
        for (groups, limit) in dispatch.groups.iter().zip(limits.max_groups) {
            if *groups > limit {
                let (asked, limit) = (u64::from(*groups), u64::from(limit));
                return Err(DeviceError::Limit { what: "the number of work-groups", asked, limit });
            }
        }
        disjoint(&kernel.name, &dispatch.args)?;
        let (count, given) = (dispatch.args.len(), dispatch.params.len());
        let (passed, memory_follows, workgroup) = match &kernel.interface {
            Interface::Translated { args, memory_follows, params_bytes, workgroup } => {
                if args.len() != count {
                    return Err(refuse(format!("it takes {} arguments and was given {count}", args.len())));
                }
                if given.next_multiple_of(4) != *params_bytes as usize {
                    return Err(refuse(format!(
                        "it takes {params_bytes} bytes of parameters and was given {given}"
                    )));
                }
                (Some(args), *memory_follows, workgroup.as_slice())
            }
            Interface::Own { arguments } => {
                let all = count + usize::from(given > 0);
                if all != *arguments as usize {
                    return Err(refuse(format!(
                        "it takes {arguments} arguments, its parameters included, and was given {all}"
                    )));
                }
                (None, false, [].as_slice())
            }
        };
        let mut taken = kernel.take()?;
        let mut taking = Taking::default();
        if let Some(object) = taken.get_mut() {
            let mut index = 0;
            for (argument, arg) in dispatch.args.iter().enumerate() {
                let passed = passed.and_then(|passed| passed.get(argument));
                self.set(kernel, object, &mut index, passed, (argument, arg), &mut taking)?;
            }
            if memory_follows && let Some((range, _)) = dispatch.args.first().and_then(Arg::range) {
                object.set_memory(index, self.buffers.get(range.buffer)?.raw())?;
                index += 1;
            }
            if given > 0 {
                // The structure is made of whole words.
                let mut params = dispatch.params.clone();
                params.resize(if passed.is_some() { given.next_multiple_of(4) } else { given }, 0);
                object.set_bytes(index, &params)?;
                index += 1;
            }
            for bytes in workgroup {
                object.set_workgroup(index, *bytes)?;
                index += 1;
            }
        }
        if dispatch.groups.contains(&0) {
            return Ok(());
        }
        if let Some(part) = dispatch.part {
            return Err(refuse(format!("it has no parts, and {part:?} was asked for")));
        }
        let mut global = kernel.local;
        for (size, groups) in global.iter_mut().zip(dispatch.groups) {
            *size = size.saturating_mul(groups as usize);
        }
        // A kernel may write part of what it is given.
        for copy in &taking.copies {
            copy_pieces(copy.of, (copy.copy, 0), copy.bytes, calls);
        }
        let (local, _leases) = (kernel.local, taking.leases);
        calls.push(Call::Dispatch { kernel: taken, global, local, _leases });
        for copy in taking.copies.iter().filter(|copy| copy.written) {
            copy_pieces((copy.copy, 0), copy.of, copy.bytes, calls);
        }
        Ok(())
    }

    /// Sets one argument, and what belongs to it, from `index` on.
    fn set(
        &self,
        kernel: &Kernel,
        object: &mut handle::Kernel,
        index: &mut u32,
        passed: Option<&Passed>,
        (argument, arg): (usize, &Arg),
        taking: &mut Taking,
    ) -> Result<(), DeviceError> {
        let refuse = |what: &str| {
            let log = format!("argument {argument} is {what}");
            Err(DeviceError::Program { kernel: kernel.name.clone(), log })
        };
        let Some((range, _)) = arg.range() else {
            return refuse("absent, which only native kernels take");
        };
        let images = self.device.images();
        let form = match (passed, arg) {
            (Some(passed), _) => passed.form,
            (None, Arg::Buffer(..)) => {
                object.set_memory(*index, self.argument(kernel, argument, arg, range, taking)?)?;
                *index += 1;
                return Ok(());
            }
            (None, Arg::Image(..)) if images.offer.planes == Planes::Images => {
                OpenClForm::Image { sampler_follows: false }
            }
            (None, _) => {
                return refuse(
                    "an image: OpenCL C of one's own takes one only on a device that makes image2d_t of buffers",
                );
            }
        };
        match (form, arg) {
            (OpenClForm::Pointer { bytes_follow }, Arg::Buffer(..)) => {
                let (buffer, offset, _) = self.part(kernel, argument, range)?;
                object.set_memory(*index, buffer.raw())?;
                if bytes_follow {
                    *index += 1;
                    object.set_bytes(*index, &range.bytes.to_ne_bytes())?;
                }
                *index += 1;
                object.set_bytes(*index, &(offset as u64).to_ne_bytes())?;
            }
            (OpenClForm::Line, _) => {
                let rows = match TexelRows::of(arg, range, passed.and_then(|passed| passed.texels)) {
                    Ok(rows) => rows,
                    Err(what) => return refuse(what),
                };
                let (buffer, offset, bytes) = self.part(kernel, argument, range)?;
                let (line, lease) = buffer.line(self.device, offset, bytes, rows.format)?;
                taking.leases.push(lease);
                object.set_memory(*index, line.image)?;
                let Some(line) = line_of(line.first, rows.width, rows.height, rows.pitch) else {
                    return refuse("an image whose texels a kernel cannot count");
                };
                *index += 1;
                object.set_bytes(*index, bytemuck::cast_slice(&line))?;
            }
            (OpenClForm::Image { sampler_follows }, Arg::Image(_, view, _)) => {
                let (buffer, offset, bytes) = self.part(kernel, argument, range)?;
                let (plane, lease) = buffer.plane(self.device, offset, bytes, &view.image)?;
                taking.leases.push(lease);
                object.set_memory(*index, plane)?;
                if sampler_follows {
                    let Some([nearest, linear]) = &images.samplers else { return refuse("sampled") };
                    *index += 1;
                    object
                        .set_sampler(*index, if view.filter == Filter::Linear { linear } else { nearest })?;
                }
            }
            (OpenClForm::Pointer { .. }, _) => return refuse("an image, and the kernel takes a buffer"),
            (OpenClForm::Image { .. }, _) => return refuse("a buffer, and the kernel takes an image"),
        }
        *index += 1;
        Ok(())
    }

    /// The memory object of an argument of someone's own kernel.
    fn argument(
        &self,
        kernel: &Kernel,
        number: usize,
        arg: &Arg,
        range: &BufferRange,
        taking: &mut Taking,
    ) -> Result<RawMem, DeviceError> {
        let (buffer, offset, bytes) = self.part(kernel, number, range)?;
        // A memory object cannot be empty; the kernel sees from its parameters that there is nothing.
        if bytes == 0 {
            return Ok(buffer.raw());
        }
        Ok(match buffer.part(self.device, offset, bytes)? {
            Part::Whole(whole) => whole,
            Part::Sub(part, lease) => {
                taking.leases.push(lease);
                part
            }
            Part::Copy(copy, lease) => {
                taking.leases.push(lease);
                // One memory given twice is copied once, and back if either is written.
                let written = arg.range().is_some_and(|(_, access)| access.intersects(Access::KERNEL_WRITE));
                match taking.copies.iter_mut().find(|other| other.copy == copy) {
                    Some(other) => other.written |= written,
                    None => {
                        let of = (buffer.raw(), offset);
                        taking.copies.push(StandIn { of, copy, bytes, written });
                    }
                }
                copy
            }
        })
    }

    /// The buffer, offset and length of an argument.
    fn part(
        &self,
        kernel: &Kernel,
        number: usize,
        range: &BufferRange,
    ) -> Result<(&Buffer, usize, usize), DeviceError> {
        let buffer = self.buffers.get(range.buffer)?;
        let (offset, bytes) = buffer.check(range)?;
        let limits = &self.device.info.limits;
        if !range.offset.is_multiple_of(limits.argument_alignment) {
            let log = format!(
                "argument {number} starts at byte {offset}, no multiple of {}",
                limits.argument_alignment
            );
            return Err(DeviceError::Program { kernel: kernel.name.clone(), log });
        }
        if range.bytes > limits.max_argument_bytes {
            let (asked, limit) = (range.bytes, limits.max_argument_bytes);
            return Err(DeviceError::Limit { what: "a kernel argument", asked, limit });
        }
        Ok((buffer, offset, bytes))
    }

    fn copy(&self, src: &BufferRange, dst: &BufferRange, calls: &mut Vec<Call>) -> Result<(), DeviceError> {
        let (from, to) = (self.buffers.get(src.buffer)?, self.buffers.get(dst.buffer)?);
        let (src_offset, bytes) = from.check(src)?;
        let (dst_offset, _) = to.check(dst)?;
        if src.bytes != dst.bytes {
            return Err(DeviceError::Limit { what: "a copy's source", asked: src.bytes, limit: dst.bytes });
        }
        if overlaps(src, dst) {
            return Err(DeviceError::Unsupported { what: "a copy between overlapping ranges".to_owned() });
        }
        copy_pieces((from.raw(), src_offset), (to.raw(), dst_offset), bytes, calls);
        Ok(())
    }

    fn fill(&self, dst: &BufferRange, value: u32) -> Result<Option<Call>, DeviceError> {
        let to = self.buffers.get(dst.buffer)?;
        let (offset, bytes) = to.check(dst)?;
        if !offset.is_multiple_of(4) || !bytes.is_multiple_of(4) {
            return Err(DeviceError::Unsupported {
                what: format!("a fill of {bytes} bytes at byte {offset}: both must be multiples of 4"),
            });
        }
        Ok((bytes > 0).then(|| Call::Fill { dst: (to.raw(), offset), bytes, value }))
    }
}

fn copy_pieces(src: (RawMem, usize), dst: (RawMem, usize), bytes: usize, calls: &mut Vec<Call>) {
    let mut done = 0;
    while done < bytes {
        let piece = (bytes - done).min(MAX_COPY);
        let (src, dst) = ((src.0, src.1 + done), (dst.0, dst.1 + done));
        calls.push(Call::Copy { src, dst, bytes: piece });
        done += piece;
    }
}

/// Whether two ranges share a byte.
fn overlaps(a: &BufferRange, b: &BufferRange) -> bool {
    a.buffer == b.buffer
        && a.bytes > 0
        && b.bytes > 0
        && a.offset < b.offset.saturating_add(b.bytes)
        && b.offset < a.offset.saturating_add(a.bytes)
}

/// Memory objects that overlap in part may not be used at once when one is written (section 5.2.1 of the
/// specification, on sub-buffers); one object may be given twice. An image is another object than the buffer that
/// it lies in, and is not read while it is written.
fn disjoint(kernel: &str, args: &[Arg]) -> Result<(), DeviceError> {
    let is_image = |arg: &Arg| matches!(arg, Arg::Image(..));
    for (second, arg) in args.iter().enumerate() {
        let Some((range, access)) = arg.range() else { continue };
        for (first, earlier) in args[..second].iter().enumerate() {
            let Some((other, before)) = earlier.range() else { continue };
            let same = range == other && !is_image(arg) && !is_image(earlier);
            let written = (access | before).intersects(Access::KERNEL_WRITE);
            if written && !same && overlaps(range, other) {
                let what = format!(
                    "arguments {first} and {second} of kernel {kernel} that overlap in part, or one of which is an \
                     image, while one is written; give the kernel one argument that it reads and writes"
                );
                return Err(DeviceError::Unsupported { what });
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use onepool_core::memory::image::{ImageDesc, Texel};

    fn arg(offset: u64, bytes: u64, access: Access) -> Arg {
        Arg::Buffer(BufferRange { buffer: BufferId { index: 1, generation: 1 }, offset, bytes }, access)
    }

    #[test]
    fn ranges_that_overlap_in_part_are_refused_when_one_is_written() {
        let (read, write) = (Access::KERNEL_READ, Access::KERNEL_WRITE);
        assert!(disjoint("k", &[arg(0, 64, read), arg(32, 64, read)]).is_ok());
        assert!(disjoint("k", &[arg(0, 64, read), arg(64, 64, write)]).is_ok());
        assert!(disjoint("k", &[arg(0, 64, read), arg(0, 64, write)]).is_ok());
        assert!(disjoint("k", &[arg(0, 64, read), Arg::Absent, arg(0, 32, write)]).is_err());
        let error = disjoint("k", &[arg(0, 64, write), arg(32, 64, read)]).unwrap_err().to_string();
        assert!(error.contains("arguments 0 and 1 of kernel k"), "{error}");
        // An image and the buffer that it lies in.
        let image = ImageDesc { texel: Texel::R32F, width: 4, height: 4, row_pitch: 16 };
        let through = |arg: Arg| {
            let (range, access) = arg.range().map(|(range, access)| (*range, access)).unwrap();
            Arg::Image(range, ImageView { image, filter: Filter::Nearest }, access)
        };
        assert!(disjoint("k", &[through(arg(0, 64, read)), arg(0, 64, read)]).is_ok());
        assert!(disjoint("k", &[through(arg(0, 64, read)), arg(0, 64, write)]).is_err());
        assert!(disjoint("k", &[through(arg(0, 64, read)), through(arg(0, 64, write))]).is_err());
        // An empty range shares nothing.
        assert!(disjoint("k", &[arg(0, 64, write), arg(32, 0, read)]).is_ok());
    }
}
