//! Compares any operator's device lowering with its native function, for the tests of all families.

#![cfg(feature = "vulkan")]

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, OnceLock};

use super::test_util::run_cpu;
use super::{Asked, ChoiceKey, Choices, Fact, Lowering, OpCx, OpError, Operand, Operator, Step, StepKernel};
use crate::backend::vulkan::VulkanDriver;
use crate::backend::{BufferDesc, ContextDesc, DeviceInfo, Driver, Placement};
use crate::device::{Buffer, Context, Kernel};
use crate::dtype::DType;
use crate::graph::Tensor;
use crate::kernel::{self, KernelId};
use crate::memory::coherency::{Access, Barrier};
use crate::memory::model::DeviceKind;
use crate::recording::{Arg, BufferRange, Command, Dispatch, GridPart, Recording};
use crate::sync::lock;

/// The contents of buffers before the operator runs; the part after each buffer's bytes must stay.
const POISON: u8 = 0xC7;
/// Poison after the bytes of each buffer.
const TAIL: usize = 64;

/// The devices that operators are checked on, with validation.
///
/// # Panics
/// `REQUIRE_BACKENDS` names Vulkan and there is no device of it.
pub(crate) fn devices() -> &'static [Context] {
    static DEVICES: OnceLock<Vec<Context>> = OnceLock::new();
    DEVICES.get_or_init(|| {
        let driver = VulkanDriver::default();
        let desc = ContextDesc { validation: true, ..ContextDesc::default() };
        let found = driver.devices().unwrap_or_default();
        let usable = found.iter().filter(|d| d.unusable.is_none());
        let contexts: Vec<Context> =
            usable.map(|d| Context::new(driver.open(d.index, &desc).unwrap())).collect();
        let required = std::env::var("REQUIRE_BACKENDS").is_ok_and(|v| v.contains("vulkan"));
        assert!(!contexts.is_empty() || !required, "there is no Vulkan device");
        if contexts.is_empty() {
            eprintln!("there is no Vulkan device: only native functions are tested");
        }
        contexts
    })
}

/// A kernel of the table. Those of [`devices`] are kept: compiling them takes longer than running them.
fn shipped(context: &Context, id: KernelId, spec: &[(u32, u32)]) -> Kernel {
    static KEPT: Mutex<BTreeMap<(usize, KernelId, Vec<(u32, u32)>), Kernel>> = Mutex::new(BTreeMap::new());
    let is_kept = devices().iter().any(|device| device.id() == context.id());
    let key = (context.id(), id, spec.to_vec());
    if let Some(kernel) = lock(&KEPT).get(&key).filter(|_| is_kept) {
        return kernel.clone();
    }
    let kernel = context.create_kernel(&Arc::new(id.source()), spec).unwrap();
    if is_kept {
        lock(&KEPT).insert(key, kernel.clone());
    }
    kernel
}

/// One operator with its inputs, to be run by its native function and on every device.
pub(crate) struct Check<'a> {
    op: &'a dyn Operator,
    inputs: &'a [Option<Tensor>],
    outputs: usize,
    constants: Vec<usize>,
    tolerance: f64,
    optional: bool,
    pretend: fn(&mut DeviceInfo),
    /// The axis along which grids are cut.
    in_parts: Option<usize>,
}

impl<'a> Check<'a> {
    /// One output, nothing known before the run but value inputs, results equal to the last bit.
    pub(crate) fn new(op: &'a dyn Operator, inputs: &'a [Option<Tensor>]) -> Self {
        Check {
            op,
            inputs,
            outputs: 1,
            constants: Vec::new(),
            tolerance: 0.0,
            optional: false,
            pretend: as_is,
            in_parts: None,
        }
    }

    /// Cuts grids at every work-group along `axis`.
    pub(crate) fn in_parts(mut self, axis: usize) -> Self {
        self.in_parts = Some(axis);
        self
    }

    /// How many outputs are wanted.
    pub(crate) fn outputs(mut self, outputs: usize) -> Self {
        self.outputs = outputs;
        self
    }

    /// Inputs that are known before the run (weights).
    pub(crate) fn constants(mut self, constants: &[usize]) -> Self {
        self.constants = constants.to_vec();
        self
    }

    /// How much floats may differ, relative to their size where that is above 1.
    pub(crate) fn tolerance(mut self, tolerance: f64) -> Self {
        self.tolerance = tolerance;
        self
    }

    /// Lowers for a device that is what `change` makes of the real one, to check kernels it would not take.
    pub(crate) fn pretend(mut self, change: fn(&mut DeviceInfo)) -> Self {
        self.pretend = change;
        self
    }

    /// Accepts that a device has no kernel for it.
    pub(crate) fn optional(mut self) -> Self {
        self.optional = true;
        self
    }

    /// Runs everywhere and compares with the native function, whose outputs are returned.
    #[track_caller]
    pub(crate) fn run(&self) -> Vec<Tensor> {
        let want = run_cpu(self.op, self.inputs, self.outputs).unwrap();
        for context in devices() {
            match self.run_on(context) {
                Ok(got) => self.compare(&got, &want, &context.info().name),
                Err(OpError::Unsupported { what }) if self.optional => {
                    eprintln!("{} on {}: {what}", self.op.name(), context.info().name);
                }
                Err(e) => panic!("{} on {}: {e}", self.op.name(), context.info().name),
            }
        }
        want
    }

    /// Runs it everywhere with every candidate of every choice that its lowering has, those that another choice leads to
    /// included, and compares with the native function. Returns the names of all that ran.
    #[track_caller]
    pub(crate) fn run_candidates(&self) -> BTreeSet<String> {
        self.run_candidates_of("")
    }

    /// The same with the candidates of choices whose keys begin with `place` alone.
    #[track_caller]
    pub(crate) fn run_candidates_of(&self, place: &str) -> BTreeSet<String> {
        let want = run_cpu(self.op, self.inputs, self.outputs).unwrap();
        let mut ran = BTreeSet::new();
        for context in devices() {
            let mut known: BTreeSet<ChoiceKey> = BTreeSet::new();
            let mut waiting = vec![(Choices::default(), "the default".to_owned())];
            while let Some((choices, name)) = waiting.pop() {
                let (op, device) = (self.op.name(), &context.info().name);
                let (got, asked) = match self.run_with(context, Some(&choices)) {
                    Ok(result) => result,
                    Err(e) => panic!("{name} of {op} on {device}: {e}"),
                };
                self.compare(&got, &want, &format!("{device}, {name}"));
                for asked in asked.into_iter().filter(|asked| asked.key.as_str().starts_with(place)) {
                    ran.insert(asked.name().to_owned());
                    if known.insert(asked.key.clone()) {
                        let others = asked.candidates.iter().filter(|name| *name != asked.name());
                        waiting.extend(others.map(|name| (choices.with(&asked.key, name), name.clone())));
                    }
                }
            }
        }
        ran
    }

    /// The names of our kernels that it is lowered to on `context`.
    #[track_caller]
    pub(crate) fn kernels_on(&self, context: &Context) -> Vec<&'static str> {
        let mut info = context.info().clone();
        (self.pretend)(&mut info);
        let mut lowering = Lowering::new(&info);
        self.op.gpu(&self.facts().unwrap(), &mut lowering).unwrap();
        let name = |step: &Step| match step {
            Step::Dispatch { kernel: StepKernel::Table(id), .. } => Some(id.info().name),
            _ => None,
        };
        lowering.finish().steps.iter().filter_map(name).collect()
    }

    fn facts(&self) -> Result<OpCx, OpError> {
        let known = |i: &usize| self.constants.contains(i) || self.op.value_inputs().contains(i);
        let facts = self.inputs.iter().enumerate().map(|(i, t)| {
            t.as_ref().map(|t| if known(&i) { Fact::known(t.clone()) } else { Fact::of(t.info().clone()) })
        });
        let cx = OpCx::for_infer(facts.collect(), self.outputs);
        let outputs = self.op.infer(&cx)?;
        Ok(cx.with_outputs(outputs))
    }

    /// The outputs as the device computes them.
    #[track_caller]
    pub(crate) fn run_on(&self, context: &Context) -> Result<Vec<Tensor>, OpError> {
        Ok(self.run_with(context, None)?.0)
    }

    #[track_caller]
    fn run_with(
        &self,
        context: &Context,
        choices: Option<&Choices>,
    ) -> Result<(Vec<Tensor>, Vec<Asked>), OpError> {
        let cx = self.facts()?;
        let mut info = context.info().clone();
        (self.pretend)(&mut info);
        let mut lowering = Lowering::new(&info);
        if let Some(choices) = choices {
            lowering = lowering.with_choices(choices);
        }
        self.op.gpu(&cx, &mut lowering)?;
        let lowered = lowering.finish();

        let inputs: Vec<Option<Slot>> = self
            .inputs
            .iter()
            .map(|t| t.as_ref().map(|t| Slot::new(context, t.info().bytes(), Some(t.bytes()))))
            .collect();
        let outputs: Vec<Slot> = cx.outputs().iter().map(|o| Slot::new(context, o.bytes(), None)).collect();
        let scratch: Vec<Slot> =
            lowered.scratch.iter().map(|&bytes| Slot::new(context, bytes, None)).collect();
        let mut packed = Vec::new();
        for p in &lowered.packed {
            let mut bytes = vec![0; p.bytes];
            (p.pack)(&p.source, &mut bytes)?;
            packed.push(Slot::new(context, p.bytes, Some(&bytes)));
        }
        let unused = Slot::new(context, 256, None);
        let zeros = vec![0; lowered.counters.max(4)];
        let counters = Slot::new(context, zeros.len(), Some(&zeros));
        let slot = |operand: &Operand| match *operand {
            Operand::Input(i) => inputs[i].as_ref().unwrap_or(&unused),
            Operand::Output(i) => &outputs[i],
            Operand::Scratch(i) => &scratch[i],
            Operand::Counters => &counters,
            Operand::Packed(i) => &packed[i],
            Operand::Image(..) | Operand::ImageOutput(_) => panic!("there are images in a plan only"),
            Operand::Unused => &unused,
        };

        let mut kernels = Vec::new();
        let mut commands = Vec::new();
        for step in &lowered.steps {
            commands.push(Command::Barrier(Barrier { src: Access::DEVICE, dst: Access::DEVICE }));
            commands.push(match step {
                Step::Dispatch { kernel, spec, args, params, groups } => {
                    let kernel = match kernel {
                        StepKernel::Table(id) => shipped(context, *id, spec),
                        StepKernel::Module(source) => context.create_kernel(source, spec).unwrap(),
                    };
                    let accesses = kernel.source().accesses();
                    let args =
                        args.iter().zip(accesses).map(|(a, access)| Arg::Buffer(slot(a).range(), access));
                    let args: Vec<Arg> = args.collect();
                    let dispatch = Dispatch::new(kernel.id(), args, params.clone(), *groups);
                    kernels.push(kernel);
                    Command::Dispatch(dispatch)
                }
                Step::Copy { src, dst, bytes } => Command::Copy {
                    src: slot(&src.0).part(src.1, *bytes),
                    dst: slot(&dst.0).part(dst.1, *bytes),
                },
                Step::Fill { dst, value } => {
                    let bytes = slot(dst).bytes as u64;
                    let whole = bytes.is_multiple_of(4) || !matches!(dst, Operand::Output(_));
                    assert!(whole, "{} fills beyond the end of an output", self.op.name());
                    let bytes = bytes.next_multiple_of(4);
                    Command::Fill { dst: slot(dst).part(0, bytes), value: *value }
                }
            });
        }
        if let Some(axis) = self.in_parts {
            commands = in_parts(commands, &kernels, axis);
        }
        commands.push(Command::Barrier(Barrier { src: Access::DEVICE_WRITE, dst: Access::HOST_READ }));
        let recording = Recording { commands, ..Recording::default() };
        if !lowered.steps.is_empty() {
            kernel::submit(context.queue().unwrap(), recording).unwrap().wait().unwrap();
        }
        let messages = context.validation_messages();
        assert!(messages.is_empty(), "{}: {messages:#?}", self.op.name());
        assert!(counters.read(self.op) == zeros, "{} leaves counters that are not zero", self.op.name());
        for (slot, t) in inputs.iter().zip(self.inputs) {
            if let (Some(slot), Some(t)) = (slot, t) {
                assert!(slot.read(self.op) == t.bytes(), "{} wrote an input", self.op.name());
            }
        }
        let results = cx.outputs().iter().zip(&outputs);
        let results =
            results.map(|(info, slot)| Tensor::from_bytes(info.clone(), &slot.read(self.op)).unwrap());
        Ok((results.collect(), lowered.asked))
    }

    #[track_caller]
    fn compare(&self, got: &[Tensor], want: &[Tensor], device: &str) {
        for (o, (got, want)) in got.iter().zip(want).enumerate() {
            assert_eq!(got.info(), want.info());
            let (g, w) = (numbers(got), numbers(want));
            for (i, (g, w)) in g.iter().zip(&w).enumerate() {
                let near = (g - w).abs() <= self.tolerance * w.abs().max(1.0);
                assert!(
                    g == w || (g.is_nan() && w.is_nan()) || (want.dtype().is_float() && near),
                    "{} on {device}: output {o} {} element {i} is {g}, the native function gives {w}",
                    self.op.name(),
                    want.info(),
                );
            }
        }
    }
}

/// The same with grids cut at every work-group along `axis`. A piece of a run begins with a barrier, so each part has one.
fn in_parts(commands: Vec<Command>, kernels: &[Kernel], axis: usize) -> Vec<Command> {
    let mut kernels = kernels.iter();
    let mut all = Vec::new();
    for command in commands {
        let Command::Dispatch(dispatch) = &command else {
            all.push(command);
            continue;
        };
        let kernel = kernels.next().unwrap();
        let (name, params) = (kernel.source().name(), dispatch.params.len());
        assert!(
            kernel.has_parts(),
            "{name} with {params} bytes of parameters has no form for parts of its grid"
        );
        let whole = dispatch.groups[axis];
        for first in 0..whole {
            let mut part = Dispatch { part: Some(GridPart { axis, first, whole }), ..dispatch.clone() };
            part.groups[axis] = 1;
            all.push(Command::Barrier(Barrier { src: Access::DEVICE, dst: Access::DEVICE }));
            all.push(Command::Dispatch(part));
        }
    }
    all
}

/// The device as it is.
pub(crate) fn as_is(_info: &mut DeviceInfo) {}

/// The device without what makes texel views the better choice on it and as a GPU, as real ones are.
pub(crate) fn no_texels(info: &mut DeviceInfo) {
    info.prefers_texels = false;
    info.kind = DeviceKind::Integrated;
}

/// The device with texel views too short for anything.
pub(crate) fn short_texels(info: &mut DeviceInfo) {
    info.limits.max_texels = 0;
}

/// Checks that every device computes what the native function does, and returns that.
#[track_caller]
pub(crate) fn check_op(op: &dyn Operator, inputs: &[Option<Tensor>], tolerance: f64) -> Vec<Tensor> {
    Check::new(op, inputs).tolerance(tolerance).run()
}

/// The elements as `f64`; integers beyond its precision keep their distance in the low digits only.
fn numbers(t: &Tensor) -> Vec<f64> {
    match t.dtype() {
        DType::F64 => t.as_slice::<f64>().unwrap().to_vec(),
        d if d.is_float() => t.to_f32s().unwrap().into_iter().map(f64::from).collect(),
        DType::U64 => t.as_slice::<u64>().unwrap().iter().map(|v| *v as f64).collect(),
        _ => t.to_i64s().unwrap().into_iter().map(|v| v as f64).collect(),
    }
}

/// A buffer with poison after its bytes.
struct Slot {
    buffer: Buffer,
    bytes: usize,
}

impl Slot {
    fn new(context: &Context, bytes: usize, data: Option<&[u8]>) -> Slot {
        let desc =
            BufferDesc { bytes: (bytes + TAIL) as u64, placement: Placement::Shared, label: "operator test" };
        let buffer = context.create_buffer(&desc).unwrap();
        let mut map = buffer.map_write().unwrap();
        let all = map.as_mut_slice_of::<u8>().unwrap();
        all.fill(POISON);
        if let Some(data) = data {
            all[..bytes].copy_from_slice(data);
        }
        drop(map);
        Slot { buffer, bytes }
    }

    fn part(&self, offset: u64, bytes: u64) -> BufferRange {
        BufferRange { offset: self.buffer.range().offset + offset, bytes, ..self.buffer.range() }
    }

    /// The range that kernels get; one word where the tensor is empty.
    fn range(&self) -> BufferRange {
        self.part(0, (self.bytes as u64).max(4))
    }

    fn read(&self, op: &dyn Operator) -> Vec<u8> {
        let map = self.buffer.map_read().unwrap();
        let all = map.as_slice_of::<u8>().unwrap();
        let end = self.bytes.next_multiple_of(4).max(4);
        assert!(all[end..].iter().all(|b| *b == POISON), "{} wrote beyond an operand", op.name());
        all[..self.bytes].to_vec()
    }
}
