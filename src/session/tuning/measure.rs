//! Runs the candidates of one node alone, on memory of their own, and compares what they compute.

use std::sync::Arc;
use std::time::Instant;

use super::decide::Trial;
use crate::backend::{DeviceInfo, Placement};
use crate::device::{Buffer, Kernel, Prepared};
use crate::dtype::DType;
use crate::graph::{Tensor, TensorInfo};
use crate::kernel;
use crate::memory::coherency::{Access, Barrier};
use crate::ops::{ChoiceKey, Choices, Lowered, OpCx, Operand, Step, StepKernel};
use crate::plan::{PlanOptions, TunableNode};
use crate::recording::{Arg, BufferRange, Command, Dispatch, Recording};
use crate::session::core::device::{Device, part};
use crate::session::core::sources::KernelSources;
use crate::session::error::Error;

/// The most bytes of a node's tensors, scratch memory and packed constants, of all candidates together.
const MAX_BYTES: u64 = 1 << 30;
/// A candidate is repeated until it takes about this long: clocks of devices are coarse.
const LONG_NS: u64 = 100_000;
const MAX_REPEATS: u64 = 16;
/// A node that takes longer is not measured, where the session has no limit of its own for a submission.
const TOO_LONG_NS: u64 = 500_000_000;
/// A candidate that takes this much longer than the first one is not timed.
const HOPELESS: u64 = 4;

/// How far results of candidates may be apart, relative to the element and to the largest element: sums in another order
/// cancel differently.
const RELATIVE: f64 = 1e-3;
const OF_LARGEST: f64 = 1e-4;
/// The same for elements of 16 bits.
const HALF_RELATIVE: f64 = 1e-2;
const HALF_OF_LARGEST: f64 = 2e-3;

/// A node on a device: what its candidates share.
pub(super) struct Bench<'a> {
    device: &'a Device,
    sources: &'a KernelSources,
    node: &'a TunableNode,
    inputs: Vec<Option<Buffer>>,
    outputs: Vec<Buffer>,
    unused: Buffer,
    /// Bytes that are left.
    left: u64,
    /// The most nanoseconds of a submission: a display on the same device waits for each.
    limit: u64,
}

/// Whether a choice can be measured.
pub(super) enum Measurable<'a, 'b> {
    /// These are its candidates.
    Yes(Candidates<'a, 'b>),
    /// It cannot.
    No,
    /// The time was over before all were ready.
    OutOfTime,
}

/// What came of the first run of a candidate.
enum Tried {
    /// It took so many nanoseconds.
    Ran(Run, u64),
    /// It was given up: it takes too long.
    TooLong,
    /// It cannot run here.
    Cannot,
}

/// The commands of one run of a candidate, with the kernels and memory that they use.
struct Run {
    commands: Vec<Command>,
    _kernels: Vec<Kernel>,
    _buffers: Vec<Buffer>,
}

/// A candidate to time.
struct Ready {
    prepared: Prepared,
    _run: Run,
}

/// The candidates of one choice, ready to run.
pub(super) struct Candidates<'a, 'b> {
    bench: &'b Bench<'a>,
    ready: Vec<Option<Ready>>,
    repeats: u64,
    /// What the first candidate computes, once that was asked for.
    wanted: Option<Vec<Tensor>>,
}

impl<'a> Bench<'a> {
    /// Memory for `node` with random elements where they are not known; `None` for a node that needs too much, or whose
    /// elements decide what it does. A submission may take `limit` nanoseconds.
    pub(super) fn new(
        device: &'a Device,
        sources: &'a KernelSources,
        node: &'a TunableNode,
        limit: Option<u64>,
    ) -> Result<Option<Bench<'a>>, Error> {
        let cx = &node.cx;
        let Some(left) = MAX_BYTES.checked_sub(cx.bytes_touched()) else { return Ok(None) };
        let buffer = |info: &TensorInfo| device.buffer(info.bytes() as u64, Placement::Device, "tuning");
        let mut inputs = Vec::with_capacity(cx.input_count());
        for i in 0..cx.input_count() {
            let Some(info) = cx.input_opt(i) else {
                inputs.push(None);
                continue;
            };
            let of_integers = || if info.dtype.is_float() { None } else { node.op.sample(i, cx) };
            let filled = buffer(info)?;
            match cx.value(i).cloned().or_else(of_integers) {
                Some(value) if value.info() == info => device.write(&filled, value.bytes())?,
                None if info.dtype.is_float() => device.write(&filled, &random(info, i as u64 + 1))?,
                _ => return Ok(None),
            }
            inputs.push(Some(filled));
        }
        let mut outputs = Vec::with_capacity(cx.outputs().len());
        for (o, info) in cx.outputs().iter().enumerate() {
            let output = buffer(info)?;
            // What it finds there is read.
            if node.op.updates(o) {
                device.write(&output, &random(info, (inputs.len() + o) as u64 + 1))?;
            }
            outputs.push(output);
        }
        let unused = device.buffer(256, Placement::Device, "tuning")?;
        let limit = limit.unwrap_or(TOO_LONG_NS).min(TOO_LONG_NS);
        Ok(Some(Bench { device, sources, node, inputs, outputs, unused, left, limit }))
    }

    /// The candidates `names` for `key`, where all other choices are `choices`. The first one must be measurable; others
    /// that cannot run are left out.
    pub(super) fn candidates(
        &self,
        info: &DeviceInfo,
        options: &PlanOptions,
        choices: &Choices,
        (key, names): (&ChoiceKey, &[String]),
        is_over: impl Fn() -> bool,
    ) -> Result<Measurable<'a, '_>, Error> {
        let mut left = self.left;
        // What no one has run yet runs once, and is given up where that takes too long.
        let mut make = |name: &String, longest: u64| -> Result<Tried, Error> {
            let lowered = self.node.lower(info, options, Some(&choices.with(key, name)));
            let Some(lowered) = runnable(lowered.map_err(Error::from), name)?.flatten() else {
                return Ok(Tried::Cannot);
            };
            let bytes = lowered.scratch.iter().chain(lowered.packed.iter().map(|p| &p.bytes));
            let bytes = bytes.fold(0u64, |sum, bytes| sum.saturating_add(*bytes as u64));
            let Some(rest) = left.checked_sub(bytes) else { return Ok(Tried::Cannot) };
            left = rest;
            let tried = self.run(&lowered).and_then(|run| Ok((self.in_pieces(&run, longest)?, run)));
            Ok(match runnable(tried, name)? {
                Some((Some(nanos), run)) => Tried::Ran(run, nanos),
                Some((None, _)) => Tried::TooLong,
                None => Tried::Cannot,
            })
        };
        let Some(first) = names.first() else { return Ok(Measurable::No) };
        let Tried::Ran(run, nanos) = make(first, self.limit)? else { return Ok(Measurable::No) };
        let repeats = (LONG_NS / nanos.max(1)).clamp(1, MAX_REPEATS);
        let longest = nanos.saturating_mul(HOPELESS).max(LONG_NS).min(self.limit);
        let mut ready = vec![runnable(self.ready(run, repeats), first)?];
        if ready.iter().flatten().count() == 0 {
            return Ok(Measurable::No);
        }
        let mut others = 0;
        for name in names.iter().skip(1) {
            // Drivers take long to compile.
            if is_over() {
                return Ok(Measurable::OutOfTime);
            }
            let tried = make(name, longest)?;
            // To be slower by far decides as well as a time does.
            others += usize::from(!matches!(tried, Tried::Cannot));
            ready.push(match tried {
                Tried::Ran(run, _) => runnable(self.ready(run, repeats), name)?,
                Tried::TooLong | Tried::Cannot => None,
            });
        }
        Ok(match others {
            0 => Measurable::No,
            _ => Measurable::Yes(Candidates { bench: self, ready, repeats, wanted: None }),
        })
    }

    /// Kernels, memory and commands of a lowering.
    fn run(&self, lowered: &Lowered) -> Result<Run, Error> {
        let own = |bytes: usize| self.device.buffer(bytes as u64, Placement::Device, "tuning");
        let mut buffers = lowered.scratch.iter().map(|bytes| own(*bytes)).collect::<Result<Vec<_>, _>>()?;
        for packed in &lowered.packed {
            let mut bytes = vec![0; packed.bytes];
            (packed.pack)(&packed.source, &mut bytes).map_err(|source| {
                let (node, op) = (self.node.name.clone(), self.node.op.name().to_owned());
                crate::graph::GraphError::Node { node, op, source }
            })?;
            let buffer = own(packed.bytes)?;
            self.device.write(&buffer, &bytes)?;
            buffers.push(buffer);
        }
        if lowered.counters > 0 {
            let buffer = own(lowered.counters)?;
            self.device.clear(&buffer)?;
            buffers.push(buffer);
        }
        let memory = Memory { bench: self, lowered, buffers: &buffers };
        let (mut once, mut kernels) = (Vec::new(), Vec::new());
        let order = Command::Barrier(Barrier { src: Access::DEVICE, dst: Access::DEVICE });
        for (at, step) in lowered.steps.iter().enumerate() {
            if !lowered.no_barrier_before.contains(&at) {
                once.push(order.clone());
            }
            once.push(match step {
                Step::Dispatch { kernel, spec, args, params, groups } => {
                    let source = match kernel {
                        StepKernel::Table(id) => self.sources.shipped(*id),
                        StepKernel::Module(source) => Arc::clone(source),
                    };
                    let kernel = self.device.context.create_kernel(&source, spec)?;
                    let args: Vec<_> = args.iter().zip(kernel.source().accesses()).collect();
                    let is_written = |(arg, access): &&(&Operand, Access)| {
                        **arg != Operand::Unused && !access.writes().is_empty()
                    };
                    let written = args.iter().find(is_written).map(|(arg, _)| *arg);
                    let range = |arg: &Operand, access: Access| match written {
                        // To a driver's checks it is a write, which has its barriers in what the kernel does write.
                        Some(written) if *arg == Operand::Unused && !access.writes().is_empty() => {
                            memory.range(written)
                        }
                        _ => memory.range(arg),
                    };
                    let args = args.iter().map(|(arg, access)| Arg::Buffer(range(arg, *access), *access));
                    let args = args.collect();
                    let dispatch = Dispatch::new(kernel.id(), args, params.clone(), *groups);
                    kernels.push(kernel);
                    Command::Dispatch(dispatch)
                }
                Step::Copy { src, dst, bytes } => {
                    Command::Copy { src: memory.part(src, *bytes), dst: memory.part(dst, *bytes) }
                }
                Step::Fill { dst, value } => {
                    let range = memory.range(dst);
                    let bytes = range.bytes.next_multiple_of(4);
                    Command::Fill { dst: BufferRange { bytes, ..range }, value: *value }
                }
            });
        }
        Ok(Run { commands: once, _kernels: kernels, _buffers: buffers })
    }

    /// `repeats` runs in one submission.
    fn ready(&self, run: Run, repeats: u64) -> Result<Ready, Error> {
        Ok(Ready { prepared: self.prepared(&run.commands, repeats)?, _run: run })
    }

    fn prepared(&self, commands: &[Command], repeats: u64) -> Result<Prepared, Error> {
        let order = Command::Barrier(Barrier { src: Access::DEVICE, dst: Access::DEVICE });
        let mut all = vec![order.clone(), Command::Timestamp { slot: 0 }];
        (0..repeats).for_each(|_| all.extend(commands.iter().cloned()));
        all.extend([order, Command::Timestamp { slot: 1 }]);
        let recording = Recording { commands: all, timestamps: 2, ..Recording::default() };
        Ok(kernel::prepare(&self.device.queue, recording, &[])?)
    }

    /// Nanoseconds of a run in submissions that become longer, as far as those before them took little;
    /// `None` once they took more than `longest` together.
    fn in_pieces(&self, run: &Run, longest: u64) -> Result<Option<u64>, Error> {
        let (mut rest, mut most, mut sum) = (&run.commands[..], 1, 0u64);
        while !rest.is_empty() {
            let work = rest.iter().enumerate().filter(|(_, c)| !matches!(c, Command::Barrier(_)));
            let end = work.map(|(at, _)| at + 1).nth(most - 1).unwrap_or(rest.len());
            let (piece, later) = rest.split_at(end);
            let prepared = self.prepared(piece, 1)?;
            let mut nanos = self.time(&prepared)?;
            // By the host's clock the first run has what a driver compiles in it; on a busy machine any run may be
            // interrupted.
            if sum.saturating_add(nanos) > longest {
                nanos = nanos.min(self.time(&prepared)?);
            }
            sum = sum.saturating_add(nanos);
            if sum > longest {
                return Ok(None);
            }
            (rest, most) = (later, most * 2);
        }
        Ok(Some(sum))
    }

    /// Nanoseconds of a submission, by the device's clock where it has one.
    fn time(&self, prepared: &Prepared) -> Result<u64, Error> {
        let begin = Instant::now();
        let event = self.device.queue.submit_prepared(prepared)?;
        event.wait()?;
        let host = u64::try_from(begin.elapsed().as_nanos()).unwrap_or(u64::MAX);
        Ok(match event.timestamps()?[..] {
            [first, last] if last > first => last - first,
            _ => host,
        })
    }

    /// What a candidate computes.
    fn results(&self, ready: &Ready) -> Result<Vec<Tensor>, Error> {
        for output in &self.outputs {
            self.device.clear(output)?;
        }
        self.device.queue.submit_prepared(&ready.prepared)?.wait()?;
        let read = |(buffer, info): (&Buffer, &TensorInfo)| -> Result<Tensor, Error> {
            let mut bytes = vec![0; info.bytes()];
            self.device.read(buffer, &mut bytes)?;
            Ok(Tensor::from_bytes(info.clone(), &bytes)?)
        };
        self.outputs.iter().zip(self.node.cx.outputs()).map(read).collect()
    }
}

impl Trial for Candidates<'_, '_> {
    type Error = Error;

    fn count(&self) -> usize {
        self.ready.len()
    }

    fn time(&mut self, at: usize) -> Result<Option<u64>, Error> {
        let Some(Some(ready)) = self.ready.get(at) else { return Ok(None) };
        let timed = runnable(self.bench.time(&ready.prepared), "candidate")?;
        let timed = timed.map(|nanos| nanos / self.repeats.max(1));
        if timed.is_none()
            && let Some(ready) = self.ready.get_mut(at)
        {
            *ready = None;
        }
        Ok(timed)
    }

    fn agrees(&mut self, at: usize) -> Result<Option<bool>, Error> {
        let (Some(Some(first)), Some(Some(other))) = (self.ready.first(), self.ready.get(at)) else {
            return Ok(None);
        };
        if self.wanted.is_none() {
            self.wanted = runnable(self.bench.results(first), "the first candidate")?;
        }
        let Some(wanted) = &self.wanted else { return Ok(None) };
        let got = runnable(self.bench.results(other), "candidate")?;
        let near = |(got, wanted): (&Tensor, &Tensor)| is_close(got, wanted);
        Ok(got.map(|got| got.len() == wanted.len() && got.iter().zip(wanted).all(near)))
    }
}

/// What came of a step of a measurement: nothing, with a note, where it failed for this candidate alone.
pub(super) fn runnable<T>(result: Result<T, Error>, name: &str) -> Result<Option<T>, Error> {
    match result {
        Ok(done) => Ok(Some(done)),
        Err(error) if error.is_lost() => Err(error),
        Err(error) => {
            tracing::info!(target: "onepool::tuning", name, %error, "cannot be measured");
            Ok(None)
        }
    }
}

/// Where the operands of a lowering lie.
struct Memory<'m, 'a> {
    bench: &'m Bench<'a>,
    lowered: &'m Lowered,
    /// Scratch ranges, then packed constants, then counters.
    buffers: &'m [Buffer],
}

impl Memory<'_, '_> {
    /// The bytes of an operand, at least one word: kernels get no empty ranges.
    fn range(&self, operand: &Operand) -> BufferRange {
        let cx: &OpCx = &self.bench.node.cx;
        let (scratch, unused) = (self.lowered.scratch.len(), &self.bench.unused);
        let of = |buffer: Option<&Buffer>, bytes: Option<usize>| {
            part(buffer.unwrap_or(unused), bytes.map_or(4, |bytes| bytes.max(4)) as u64)
        };
        match *operand {
            Operand::Input(i) => {
                let buffer = self.bench.inputs.get(i).and_then(Option::as_ref);
                of(buffer, cx.input_opt(i).map(TensorInfo::bytes))
            }
            Operand::Output(i) => of(self.bench.outputs.get(i), cx.outputs().get(i).map(TensorInfo::bytes)),
            Operand::Scratch(i) => of(self.buffers.get(i), self.lowered.scratch.get(i).copied()),
            Operand::Counters => of(self.buffers.last(), Some(self.lowered.counters)),
            Operand::Packed(i) => {
                of(self.buffers.get(scratch + i), self.lowered.packed.get(i).map(|p| p.bytes))
            }
            // Nodes with images are not measured.
            Operand::Image(..) | Operand::ImageOutput(_) | Operand::Unused => of(None, None),
        }
    }

    fn part(&self, (operand, offset): &(Operand, u64), bytes: u64) -> BufferRange {
        let range = self.range(operand);
        BufferRange { offset: range.offset + offset, bytes, ..range }
    }
}

/// Elements of -1 to 1 in no order; zeros of a type that is no float.
fn random(info: &TensorInfo, seed: u64) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    let values = std::iter::repeat_with(|| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 40) as f32 / (1u64 << 23) as f32 - 1.0
    });
    let values = values.take(info.shape.elements());
    match info.dtype {
        DType::F32 => values.flat_map(f32::to_ne_bytes).collect(),
        DType::F16 => values.flat_map(|v| half::f16::from_f32(v).to_ne_bytes()).collect(),
        DType::BF16 => values.flat_map(|v| half::bf16::from_f32(v).to_ne_bytes()).collect(),
        DType::F64 => values.flat_map(|v| f64::from(v).to_ne_bytes()).collect(),
        _ => vec![0; info.bytes()],
    }
}

/// Whether two results differ by no more than roundings.
fn is_close(got: &Tensor, wanted: &Tensor) -> bool {
    if !wanted.dtype().is_float() {
        return got.bytes() == wanted.bytes();
    }
    let (Ok(got), Ok(all)) = (got.to_f32s(), wanted.to_f32s()) else { return false };
    let (relative, of_largest) = match wanted.dtype() {
        DType::F32 | DType::F64 => (RELATIVE, OF_LARGEST),
        _ => (HALF_RELATIVE, HALF_OF_LARGEST),
    };
    let finite = all.iter().filter(|v| v.is_finite());
    let largest = finite.fold(0.0f32, |largest, v| largest.max(v.abs()));
    let near = |(got, wanted): (&f32, &f32)| {
        let (got, wanted) = (f64::from(*got), f64::from(*wanted));
        got == wanted
            || got.is_nan() && wanted.is_nan()
            || (got - wanted).abs() <= relative * wanted.abs() + of_largest * f64::from(largest)
    };
    got.len() == all.len() && got.iter().zip(&all).all(near)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_differ_by_roundings_at_most() {
        let of = |values: [f32; 3]| Tensor::new([3], &values).unwrap();
        let wanted = of([1000.0, 0.0, f32::NAN]);
        assert!(is_close(&of([1000.5, 0.05, f32::NAN]), &wanted));
        assert!(!is_close(&of([1002.0, 0.0, f32::NAN]), &wanted));
        assert!(!is_close(&of([1000.0, 0.2, f32::NAN]), &wanted));
        assert!(!is_close(&of([1000.0, 0.0, 1.0]), &wanted));
        assert!(!is_close(&of([f32::INFINITY, 0.0, f32::NAN]), &wanted));
        let ints = |last: i32| Tensor::new([2], &[1, last]).unwrap();
        assert!(is_close(&ints(2), &ints(2)) && !is_close(&ints(2), &ints(3)));
    }
}
