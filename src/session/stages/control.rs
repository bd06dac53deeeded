//! Control flow on the host: Loop and Scan.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use super::continuation::{bind, node_error};
use crate::dtype::DType;
use crate::graph::{Tensor, TensorInfo};
use crate::limits;
use crate::ops::OpError;
use crate::ops::control::{Control, Loop, Scan, ScanAxis};
use crate::ops::sequence::{COLUMNS, MAX_ELEMENTS, row};
use crate::plan::StageStep;
use crate::session::bind::binding::Binding;
use crate::session::bind::memory::{Source, StageValue, owned};
use crate::session::core::SessionCore;
use crate::session::core::cancel::{Watch, in_iteration};
use crate::session::core::options::{BindPolicy, CopiedPerRun};
use crate::session::error::Error;
use crate::shape::Shape;

/// The body of a Loop or Scan, with the binding that its iterations share.
#[derive(Debug)]
pub(in crate::session) struct LoopBody<'e> {
    core: Arc<SessionCore>,
    policy: BindPolicy,
    binding: Option<Binding<'e>>,
}

impl<'e> LoopBody<'e> {
    pub(in crate::session) fn new(core: &Arc<SessionCore>, policy: BindPolicy) -> Self {
        // Its outputs are in the session's own memory.
        LoopBody { core: Arc::clone(core), policy: BindPolicy { strict: false, ..policy }, binding: None }
    }

    /// Runs the body once, with `buffers` as memory for its outputs.
    fn iteration(
        &mut self,
        inputs: &[StageValue<'e>],
        buffers: &mut OutputBuffers<'e>,
        watch: &Watch,
    ) -> Result<Vec<StageValue<'e>>, Error> {
        let infos: Vec<TensorInfo> = inputs.iter().map(|h| h.info.clone()).collect();
        let compiled = self.core.compiled(&infos, &BTreeMap::new(), &[], CopiedPerRun::default())?;
        let planned: BTreeMap<&str, &TensorInfo> =
            compiled.plan.outputs.iter().map(|io| (io.name.as_str(), &io.info)).collect();
        let mut outputs = Vec::new();
        for (o, (name, _)) in self.core.graph.outputs().iter().enumerate() {
            outputs.push(match planned.get(name.as_str()) {
                Some(info) => buffers.get(o, info)?,
                None => Source::OWN,
            });
        }
        let reused = self.binding.take().filter(|b| Arc::ptr_eq(&b.compiled, &compiled));
        let mut binding = match reused {
            Some(mut binding) => {
                let placed = self.core.graph.outputs().iter().map(|(name, _)| name).zip(&outputs);
                let placed = placed.filter_map(|(name, source)| {
                    let o = compiled.plan.outputs.iter().position(|io| io.name == *name)?;
                    Some((o, source.clone()))
                });
                binding.rebind_values(inputs, &placed.collect::<Vec<_>>())?;
                binding
            }
            None => {
                let sources = inputs.iter().map(|h| h.source.clone().split().0).collect();
                let core = &self.core;
                let binding = bind(core, Arc::clone(&compiled), sources, outputs.clone(), self.policy)?;
                binding.write_values(inputs)?;
                binding
            }
        };
        binding.run_within(watch)?;
        let results = (self.core.graph.outputs().iter().zip(outputs))
            .map(|((name, _), source)| match planned.get(name.as_str()) {
                Some(&info) => Ok(StageValue { info: info.clone(), source }),
                None => binding.get_output(name).map(StageValue::value),
            })
            .collect::<Result<_, Error>>()?;
        self.binding = Some(binding);
        Ok(results)
    }
}

/// Double-buffered memory of outputs: each iteration reads the outputs of the previous one.
#[derive(Default)]
struct OutputBuffers<'e> {
    odd: bool,
    sets: [HashMap<(usize, TensorInfo), Source<'e>>; 2],
}

impl<'e> OutputBuffers<'e> {
    fn get(&mut self, output: usize, info: &TensorInfo) -> Result<Source<'e>, Error> {
        let set = &mut self.sets[usize::from(self.odd)];
        let key = (output, info.clone());
        if let Some(source) = set.get(&key) {
            return Ok(source.clone());
        }
        set.retain(|(o, _), _| *o != output);
        let source = owned(info)?.1;
        set.insert(key, source.clone());
        Ok(source)
    }

    fn next(&mut self) {
        self.odd = !self.odd;
    }
}

/// Runs a node of control flow.
pub(in crate::session) fn run<'e>(
    flow: Control<'_>,
    step: &StageStep,
    inputs: &[Option<StageValue<'e>>],
    body: &mut LoopBody<'e>,
    watch: &Watch,
) -> Result<Vec<StageValue<'e>>, Error> {
    match flow {
        Control::Loop(l) => run_loop(l, step, inputs, body, watch),
        Control::Scan(s) if s.batched => batched(s, step, inputs, body, watch),
        Control::Scan(s) => run_scan(s, step, inputs, None, body, watch),
        Control::If { .. } => Ok(Vec::new()),
    }
}

fn given<'h, 'e>(
    step: &StageStep,
    inputs: &'h [Option<StageValue<'e>>],
    input: usize,
) -> Result<&'h StageValue<'e>, Error> {
    inputs
        .get(input)
        .and_then(Option::as_ref)
        .ok_or_else(|| node_error(step, OpError::MissingInput { input }))
}

fn scalar(step: &StageStep, input: usize, value: &StageValue<'_>, body: &LoopBody<'_>) -> Result<i64, Error> {
    let tensor = value.tensor(&body.core.devices)?;
    let value = tensor.to_i64s().map_err(|e| node_error(step, e.into()))?;
    let wrong = || OpError::Value { input, problem: format!("has {} elements, expected one", value.len()) };
    value.first().copied().ok_or_else(|| node_error(step, wrong()))
}

fn run_loop<'e>(
    op: &Loop,
    step: &StageStep,
    inputs: &[Option<StageValue<'e>>],
    body: &mut LoopBody<'e>,
    watch: &Watch,
) -> Result<Vec<StageValue<'e>>, Error> {
    let trips = inputs.first().and_then(Option::as_ref).map(|h| scalar(step, 0, h, body)).transpose()?;
    let condition = inputs.get(1).and_then(Option::as_ref).map(|h| scalar(step, 1, h, body)).transpose()?;
    let mut goes_on = condition.is_none_or(|c| c != 0);
    let end = inputs.len().min(2 + op.states);
    let mut states = (2..end).map(|i| given(step, inputs, i).cloned()).collect::<Result<Vec<_>, _>>()?;
    let captured = (end..inputs.len()).map(|i| given(step, inputs, i).cloned());
    let captured = captured.collect::<Result<Vec<_>, _>>()?;
    let stacked = op.body.outputs().len().saturating_sub(1 + op.states);
    let mut stacks: Vec<Stack> = (0..stacked).map(|_| Stack::default()).collect();
    let mut buffers = OutputBuffers::default();
    let mut iteration = 0i64;
    while goes_on && trips.is_none_or(|t| iteration < t) {
        if iteration >= limits::MAX_ITERATIONS {
            let what = format!("a loop of more than {} iterations", limits::MAX_ITERATIONS);
            return Err(node_error(step, OpError::unsupported(what)));
        }
        let mut all = vec![StageValue::value(Tensor::scalar(iteration)), truth(true)];
        all.extend(states.iter().cloned());
        all.extend(captured.iter().cloned());
        let results = body.iteration(&all, &mut buffers, watch);
        let mut results = results.map_err(|e| in_iteration(e, &step.name, iteration as u64))?.into_iter();
        let next = results.next();
        states = results.by_ref().take(op.states).collect();
        for (k, (stack, value)) in stacks.iter_mut().zip(results).enumerate() {
            let tensor = value.tensor(&body.core.devices)?;
            if op.lists.contains(&k) { stack.append(step, &tensor)? } else { stack.push(step, tensor)? }
        }
        goes_on = match &next {
            Some(next) => scalar(step, 1, next, body)? != 0,
            None => false,
        };
        buffers.next();
        iteration += 1;
    }
    let mut shapes = Vec::new();
    if iteration == 0 && stacked > 0 {
        let mut all = vec![StageValue::value(Tensor::scalar(0i64)), truth(true)];
        all.extend(states.iter().chain(&captured).cloned());
        shapes = planned(&all, body, 1 + op.states);
    }
    for (k, stack) in stacks.into_iter().enumerate() {
        let one = shapes.get(k).and_then(Option::as_ref);
        match op.lists.contains(&k) {
            true => states.extend(stack.list(step, one)?.map(StageValue::value)),
            false => states.push(StageValue::value(stack.finish(step, ScanAxis::default(), one)?)),
        }
    }
    Ok(states)
}

fn truth<'e>(value: bool) -> StageValue<'e> {
    let info = TensorInfo::new(DType::Bool, Shape::scalar());
    let built = Tensor::build::<std::convert::Infallible>(info, |bytes| {
        bytes.fill(u8::from(value));
        Ok(())
    });
    match built {
        Ok(tensor) => StageValue::value(tensor),
        Err(never) => match never {},
    }
}

/// Types and shapes of the body's outputs from `skip` on, where the plan has them.
fn planned(inputs: &[StageValue<'_>], body: &LoopBody<'_>, skip: usize) -> Vec<Option<TensorInfo>> {
    let infos: Vec<TensorInfo> = inputs.iter().map(|h| h.info.clone()).collect();
    let Ok(compiled) = body.core.compiled(&infos, &BTreeMap::new(), &[], CopiedPerRun::default()) else {
        return Vec::new();
    };
    let info_of =
        |name: &String| compiled.plan.outputs.iter().find(|io| io.name == *name).map(|io| io.info.clone());
    body.core.graph.outputs().iter().skip(skip).map(|(name, _)| info_of(name)).collect()
}

/// Runs a body for every slice, or for the first `count` ones.
fn run_scan<'e>(
    op: &Scan,
    step: &StageStep,
    inputs: &[Option<StageValue<'e>>],
    count: Option<usize>,
    body: &mut LoopBody<'e>,
    watch: &Watch,
) -> Result<Vec<StageValue<'e>>, Error> {
    let end = op.states + op.inputs.len();
    let mut states =
        (0..op.states).map(|i| given(step, inputs, i).cloned()).collect::<Result<Vec<_>, _>>()?;
    let captured = (end..inputs.len()).map(|i| given(step, inputs, i).cloned());
    let captured = captured.collect::<Result<Vec<_>, _>>()?;
    let mut sliced = Vec::new();
    for (k, axis) in op.inputs.iter().enumerate() {
        let input = op.states + k;
        let tensor = given(step, inputs, input)?.tensor(&body.core.devices)?;
        let at = tensor.shape().axis(axis.axis).map_err(|e| node_error(step, e.into()))?;
        sliced.push((input, tensor, at, axis.reverse));
    }
    let iterations = sliced.first().map_or(0, |(_, t, at, _)| t.shape()[*at]);
    if let Some((input, t, at, _)) = sliced.iter().find(|(_, t, at, _)| t.shape()[*at] != iterations) {
        let (input, got) = (*input, t.shape().to_string());
        let expected = format!("{iterations} slices along axis {at}, as the first one has");
        return Err(node_error(step, OpError::InputShape { input, got, expected }));
    }
    let iterations = count.unwrap_or(iterations).min(iterations);
    let mut stacks: Vec<Stack> = op.outputs.iter().map(|_| Stack::default()).collect();
    let mut buffers = OutputBuffers::default();
    for iteration in 0..iterations {
        let slices = sliced.iter().map(|(_, tensor, at, reverse)| {
            let k = if *reverse { iterations - 1 - iteration } else { iteration };
            slice(tensor, *at, k).map(StageValue::value).map_err(|e| node_error(step, e))
        });
        let slices = slices.collect::<Result<Vec<_>, _>>()?;
        let all: Vec<StageValue<'e>> =
            states.iter().cloned().chain(slices).chain(captured.iter().cloned()).collect();
        let results = body.iteration(&all, &mut buffers, watch);
        let mut results = results.map_err(|e| in_iteration(e, &step.name, iteration as u64))?.into_iter();
        states = results.by_ref().take(op.states).collect();
        for (stack, value) in stacks.iter_mut().zip(results) {
            stack.push(step, value.tensor(&body.core.devices)?)?;
        }
        buffers.next();
    }
    let mut shapes = Vec::new();
    if iterations == 0 && !stacks.is_empty() {
        let empty = sliced.iter().map(|(_, tensor, at, _)| {
            let mut dims = tensor.shape().to_vec();
            dims.remove(*at);
            let info = TensorInfo::new(tensor.dtype(), Shape::new(dims).map_err(OpError::from)?);
            Ok(StageValue::value(Tensor::build::<OpError>(info, |_| Ok(()))?))
        });
        let empty = empty.collect::<Result<Vec<_>, OpError>>().map_err(|e| node_error(step, e))?;
        let all: Vec<StageValue<'e>> = states.iter().cloned().chain(empty).chain(captured).collect();
        shapes = planned(&all, body, op.states);
    }
    for (k, (stack, axis)) in stacks.into_iter().zip(&op.outputs).enumerate() {
        let one = shapes.get(k).and_then(Option::as_ref);
        states.push(StageValue::value(stack.finish(step, *axis, one)?));
    }
    Ok(states)
}

/// Scan of opset 8: axis 0 of every tensor is a batch; each sequence may have its own length, after which results are
/// 0.
fn batched<'e>(
    op: &Scan,
    step: &StageStep,
    inputs: &[Option<StageValue<'e>>],
    body: &mut LoopBody<'e>,
    watch: &Watch,
) -> Result<Vec<StageValue<'e>>, Error> {
    let fail = |e: OpError| node_error(step, e);
    let devices = Arc::clone(&body.core);
    let end = (1 + op.states + op.inputs.len()).min(inputs.len());
    let whole =
        (1..end).map(|i| given(step, inputs, i)?.tensor(&devices.devices)).collect::<Result<Vec<_>, _>>()?;
    let first = |t: &Tensor, axis: usize| t.shape().get(axis).copied().unwrap_or(0);
    let batch = whole.first().map_or(0, |t| first(t, 0));
    let longest = whole.get(op.states).map_or(0, |t| first(t, 1));
    let lengths = match inputs.first().and_then(Option::as_ref) {
        None => vec![longest; batch],
        Some(value) => {
            let given = value.tensor(&devices.devices)?.to_i64s().map_err(|e| fail(e.into()))?;
            let fits = |n: &i64| usize::try_from(*n).ok().filter(|n| *n <= longest);
            let lengths = given.iter().map(fits).collect::<Option<Vec<usize>>>();
            lengths.filter(|l| l.len() == batch).ok_or_else(|| {
                let problem = format!("holds {given:?}, expected {batch} lengths of 0 to {longest}");
                fail(OpError::Value { input: 0, problem })
            })?
        }
    };
    let single = Scan { batched: false, ..op.clone() };
    let mut stacks: Vec<Stack> = vec![Stack::default(); op.body.outputs().len()];
    for (b, length) in lengths.into_iter().enumerate() {
        let mut one: Vec<Option<StageValue<'e>>> = Vec::new();
        for tensor in &whole {
            one.push(Some(StageValue::value(slice(tensor, 0, b).map_err(fail)?)));
        }
        one.extend(inputs[end..].iter().cloned());
        let results = run_scan(&single, step, &one, Some(length), body, watch)?;
        for (o, (stack, value)) in stacks.iter_mut().zip(results).enumerate() {
            let tensor = value.tensor(&devices.devices)?;
            let tensor = if o < op.states { tensor } else { longer(&tensor, longest).map_err(fail)? };
            stack.push(step, tensor)?;
        }
    }
    let finish = |stack: Stack| stack.finish(step, ScanAxis::default(), None).map(StageValue::value);
    stacks.into_iter().map(finish).collect()
}

/// `tensor` padded with zeros to `len` elements along its first axis.
fn longer(tensor: &Tensor, len: usize) -> Result<Tensor, OpError> {
    let mut dims = tensor.shape().to_vec();
    match dims.first_mut() {
        Some(first) if *first < len => *first = len,
        _ => return Ok(tensor.clone()),
    }
    Tensor::build(TensorInfo::new(tensor.dtype(), Shape::new(dims)?), |out| {
        out.iter_mut().zip(tensor.bytes()).for_each(|(to, from)| *to = *from);
        Ok(())
    })
}

/// Slice `k` of `tensor` along `axis`, without that axis.
fn slice(tensor: &Tensor, axis: usize, k: usize) -> Result<Tensor, OpError> {
    let dims = tensor.shape();
    if dims.get(axis).is_none_or(|n| k >= *n) {
        let problem = format!("there is no slice {k} along axis {axis} of {dims}");
        return Err(OpError::Value { input: 0, problem });
    }
    let inner = dims[axis + 1..].iter().product::<usize>() * tensor.dtype().bytes();
    let mut rest = dims.to_vec();
    let row = rest.remove(axis) * inner;
    let info = TensorInfo::new(tensor.dtype(), Shape::new(rest)?);
    Tensor::build(info, |out| {
        if inner > 0 {
            for (to, from) in out.chunks_exact_mut(inner).zip(tensor.bytes().chunks_exact(row)) {
                to.copy_from_slice(&from[k * inner..(k + 1) * inner]);
            }
        }
        Ok(())
    })
}

/// Concatenates tensors: those of one shape along a new axis, those of several shapes into a list.
#[derive(Clone, Default)]
struct Stack {
    info: Option<TensorInfo>,
    bytes: Vec<u8>,
    count: usize,
    /// The table of a list: one row for each element.
    rows: Vec<i64>,
}

impl Stack {
    fn push(&mut self, step: &StageStep, tensor: Tensor) -> Result<(), Error> {
        match &self.info {
            Some(info) if info != tensor.info() => {
                let what = format!("iterations that give {} and {}", info, tensor.info());
                return Err(node_error(step, OpError::unsupported(what)));
            }
            Some(_) => {}
            None => self.info = Some(tensor.info().clone()),
        }
        self.bytes.extend_from_slice(tensor.bytes());
        self.count += 1;
        Ok(())
    }

    /// Appends an element of a list.
    fn append(&mut self, step: &StageStep, tensor: &Tensor) -> Result<(), Error> {
        let first = self.info.get_or_insert_with(|| tensor.info().clone());
        if first.dtype != tensor.dtype() || self.count >= MAX_ELEMENTS {
            let found = tensor.info();
            let what = format!("element {} of a list of {}, which is {found}", self.count, first.dtype);
            return Err(node_error(step, OpError::unsupported(what)));
        }
        self.bytes.extend_from_slice(tensor.bytes());
        self.rows.extend(row(tensor.shape()));
        self.count += 1;
        Ok(())
    }

    /// The elements of the list and their table; `one` gives the type of an empty list.
    fn list(self, step: &StageStep, one: Option<&TensorInfo>) -> Result<[Tensor; 2], Error> {
        let fail = |e: OpError| node_error(step, e);
        let dtype = self.info.as_ref().or(one).map_or(DType::F32, |info| info.dtype);
        let len = self.bytes.len() / dtype.bytes();
        let shape = Shape::new([len]).map_err(|e| fail(e.into()))?;
        let values = Tensor::from_bytes(TensorInfo::new(dtype, shape), &self.bytes);
        let table = Tensor::new([self.count, COLUMNS], &self.rows);
        Ok([values.map_err(|e| fail(e.into()))?, table.map_err(|e| fail(e.into()))?])
    }

    /// The stacked tensor; `one` gives type and shape of the slices if there are none.
    fn finish(self, step: &StageStep, axis: ScanAxis, one: Option<&TensorInfo>) -> Result<Tensor, Error> {
        let fail = |e: OpError| node_error(step, e);
        let info = self.info.as_ref().or(one);
        let info = info
            .ok_or_else(|| fail(OpError::unsupported("no iteration at all, and results of unknown shape")))?;
        let mut dims = info.shape.to_vec();
        let rank = dims.len() + 1;
        let at = if axis.axis < 0 { axis.axis + rank as i64 } else { axis.axis };
        let at = usize::try_from(at).ok().filter(|a| *a < rank).ok_or_else(|| {
            fail(OpError::unsupported(format!("results stacked along axis {} of {rank}", axis.axis)))
        })?;
        let outer: usize = dims[..at].iter().product();
        let inner = dims[at..].iter().product::<usize>() * info.dtype.bytes();
        dims.insert(at, self.count);
        let shape = Shape::new(dims).map_err(|e| fail(e.into()))?;
        Tensor::build(TensorInfo::new(info.dtype, shape), |out| {
            if inner == 0 {
                return Ok(());
            }
            for (to, chunk) in out.chunks_exact_mut(inner).enumerate() {
                let (o, k) = (to / self.count, to % self.count);
                let k = if axis.reverse { self.count - 1 - k } else { k };
                let from = (k * outer + o) * inner;
                chunk.copy_from_slice(&self.bytes[from..from + inner]);
            }
            Ok(())
        })
    }
}
