//! A compiled part of a model: a session, and bindings to memory that onnxruntime hands over.
//!
//! A run takes a binding that is idle, for the shapes at hand, and gives it the addresses of this run. Where
//! devices work on pointers, or nothing is imported, bindings are kept with the memory that they saw last.
//! Other devices import pages, and an address alone does not tell whether the same pages are there: their
//! bindings end with the run unless the caller promises so (`keep_imports`), or has handles of the memory
//! (`external`), and what costs more to import than to copy once is copied.

#![allow(unsafe_code, reason = "memory of onnxruntime's is lent to the session")]

use std::collections::HashMap;
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, Weak};
use std::time::Instant;

use onepool::device::{Context, Lent};
use onepool::memory::import::{ReadWrite, Reason, Refusal, Verdict};
use onepool::session::{Binding, Error, Memory, RunOptions, SessionError};
use onepool::{DType, Session, Shape};

use crate::external::{self, At, Holder};
use crate::failure::Failure;
use crate::host::{Kernel, Place};
use crate::options::Options;
use crate::profile::{Profile, Ran};
use crate::stats::{self, Moved};
use crate::types;
use onepool_core::sync::lock;

/// The most sets of shapes that idle bindings are kept for.
const MOST_SHAPES: usize = 16;

/// An input or output of the part, in onnxruntime's order.
#[derive(Clone, Debug)]
pub(crate) struct Port {
    pub(crate) name: String,
    pub(crate) element: u32,
}

/// A compiled part.
#[derive(Debug)]
pub(crate) struct Part {
    /// The node that stands for it.
    name: String,
    session: Session,
    contexts: Vec<Context>,
    inputs: Vec<Port>,
    outputs: Vec<Port>,
    run: RunOptions,
    /// Whether bindings outlive their run wherever memory lies.
    kept: bool,
    strict: bool,
    idle: Arc<Idle>,
    profile: Arc<Profile>,
}

/// Bindings that no run uses, by the shapes of their inputs.
#[derive(Debug, Default)]
struct Idle(Mutex<HashMap<Shapes, Vec<Bound>>>);

impl Holder for Idle {
    fn forget(&self, id: u64) {
        let mut gone = Vec::new();
        for all in lock(&self.0).values_mut() {
            gone.extend(all.extract_if(.., |bound| bound.regions.contains(&id)));
        }
        drop(gone);
    }
}

/// Shapes of all inputs.
type Shapes = Vec<Vec<i64>>;

/// A binding to memory of onnxruntime's.
#[derive(Debug)]
struct Bound {
    binding: Binding<'static>,
    /// Sizes of outputs; `None` where only a run tells them, and the session has the memory.
    dims: Option<Vec<Vec<i64>>>,
    inputs: Vec<At>,
    outputs: Vec<At>,
    /// Imported allocations that hold some of it.
    regions: Vec<u64>,
    /// Whether they hold all that devices import.
    held: bool,
    moved: Moved,
    /// Outputs would overwrite what is still read, so the session has memory for them.
    apart: bool,
}

impl Part {
    pub(crate) fn new(
        name: String,
        session: Session,
        contexts: Vec<Context>,
        ports: [Vec<Port>; 2],
        run: RunOptions,
        options: &Options,
        profile: Arc<Profile>,
    ) -> Self {
        let on_pointers =
            session.devices().all(|info| info.import.as_ref().is_some_and(|rules| rules.alignment <= 1));
        let [inputs, outputs] = ports;
        let (kept, strict) = (on_pointers || options.keep_imports, options.strict);
        let idle = Arc::new(Idle::default());
        let held: Weak<Idle> = Arc::downgrade(&idle);
        external::watch(held);
        Part { name, session, contexts, inputs, outputs, run, kept, strict, idle, profile }
    }

    /// Runs on the memory of a kernel's context.
    pub(crate) fn run(&self, kernel: &Kernel) -> Result<(), Failure> {
        let counts = kernel.counts()?;
        if counts != (self.inputs.len(), self.outputs.len()) {
            let expected = (self.inputs.len(), self.outputs.len());
            return Err(Failure::argument(format!(
                "a run has {} inputs and {} outputs, the part {} and {}",
                counts.0, counts.1, expected.0, expected.1
            )));
        }
        let places = (0..counts.0).map(|i| kernel.input(i)).collect::<Result<Vec<_>, _>>()?;
        for (place, port) in places.iter().zip(&self.inputs) {
            if place.element != port.element {
                let (got, name) = (place.element, &port.name);
                return Err(Failure::argument(format!("{name:?} has type {got}, not {}", port.element)));
            }
        }
        let begun = self.profile.is_on().then(Instant::now);
        let shapes: Shapes = places.iter().map(|place| place.dims.clone()).collect();
        let idle = self.lock().get_mut(&shapes).and_then(Vec::pop);
        let mut bound = match idle {
            Some(bound) => self.rebind(bound, &places, kernel)?,
            None => self.bind(&places, kernel, false)?,
        };
        bound.binding.run_with(&self.run)?;
        let mut moved = bound.moved;
        if bound.dims.is_none() {
            self.hand_out(&bound.binding, kernel, &mut moved)?;
        }
        stats::ran(moved);
        if let Some(begun) = begun {
            self.profile.ran(Ran::new(&self.name, begun, &self.session, &bound.binding));
        }
        if (self.kept || bound.held) && !bound.apart {
            self.keep(shapes, bound);
        }
        Ok(())
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<Shapes, Vec<Bound>>> {
        lock(&self.idle.0)
    }

    /// Has the devices import the allocations that hold these places, as a whole.
    fn hold<'a>(&self, places: impl IntoIterator<Item = &'a At>, kernel: &Kernel) -> Vec<u64> {
        let (regions, _) = external::holding(places);
        for why in external::hold(&regions, &self.contexts) {
            kernel.log(|| format!("onepool: an imported allocation is imported anew for each run on {why}"));
        }
        regions
    }

    /// Whether all memory that devices import, which may be none, lies in imported allocations. Not where memory is copied
    /// because another binding imports its pages now.
    fn held(&self, binding: &Binding<'static>, inputs: &[At], outputs: &[At]) -> bool {
        if binding.verdicts().any(page_in_use) {
            return false;
        }
        let imported = |port: &Port| {
            let mut verdicts = binding.verdicts();
            verdicts.any(|verdict| verdict.tensor == port.name && verdict.path.imports())
        };
        let ports = self.inputs.iter().zip(inputs).chain(self.outputs.iter().zip(outputs));
        let places: Vec<&At> = ports.filter(|(port, _)| imported(port)).map(|(_, at)| at).collect();
        external::holding(places).1
    }

    fn keep(&self, shapes: Shapes, bound: Bound) {
        let mut idle = self.lock();
        // A handle that is released from here on finds the binding.
        if !external::live(&bound.regions) {
            return;
        }
        if idle.len() >= MOST_SHAPES && !idle.contains_key(&shapes) {
            let other = idle.keys().next().cloned();
            let dropped = other.and_then(|other| idle.remove(&other));
            idle.entry(shapes).or_default().push(bound);
            drop(idle);
            drop(dropped);
        } else {
            idle.entry(shapes).or_default().push(bound);
        }
    }

    /// Makes a binding; with `apart` the session has memory for the outputs.
    fn bind(&self, places: &[Place], kernel: &Kernel, apart: bool) -> Result<Bound, Failure> {
        let inputs = self.input_places(places)?;
        let mut builder = self.session.bind();
        for ((port, at), place) in self.inputs.iter().zip(&inputs).zip(places) {
            let memory = lend(*at, ReadWrite::Read).shape(Shape::from_i64(&place.dims)?);
            builder = builder.input(&port.name, memory);
        }
        let planned = builder.plan()?;
        let dims_of = |port: &Port| {
            let io = planned.outputs.iter().find(|io| io.name == port.name)?;
            Some((io.info.dtype, io.info.shape.iter().map(|&d| d as i64).collect::<Vec<i64>>()))
        };
        let known: Option<Vec<(DType, Vec<i64>)>> = self.outputs.iter().map(dims_of).collect();
        let (mut dims, mut outputs) = (None, Vec::new());
        if let Some(known) = known.filter(|_| !apart) {
            for (port, (dtype, _)) in self.outputs.iter().zip(&known) {
                check_type(port, *dtype)?;
            }
            let sizes: Vec<Vec<i64>> = known.into_iter().map(|(_, sizes)| sizes).collect();
            outputs = self.output_places(&sizes, kernel)?;
            for (port, at) in self.outputs.iter().zip(&outputs) {
                builder = builder.output(&port.name, lend(*at, ReadWrite::ReadWrite));
            }
            dims = Some(sizes);
        }
        let regions = self.hold(inputs.iter().chain(&outputs), kernel);
        // What lies in imported allocations needs no import of its own.
        if !self.kept && regions.is_empty() {
            builder = builder.runs(1);
        }
        let binding = match builder.build() {
            Err(Error::Session(SessionError::Overlap { .. })) if !self.strict && !apart => {
                return self.bind(places, kernel, true);
            }
            built => built?,
        };
        stats::bound();
        let (moved, held) = (moved(&binding), self.held(&binding, &inputs, &outputs));
        for verdict in binding.verdicts() {
            kernel.log(|| format!("onepool: {verdict}"));
        }
        Ok(Bound { binding, dims, inputs, outputs, regions, held, moved, apart })
    }

    /// Gives a binding the addresses of this run; a new one where other inputs are one memory with outputs, which is part
    /// of a plan.
    fn rebind(&self, mut bound: Bound, places: &[Place], kernel: &Kernel) -> Result<Bound, Failure> {
        let inputs = self.input_places(places)?;
        let outputs = match &bound.dims {
            Some(dims) => self.output_places(dims, kernel)?,
            None => Vec::new(),
        };
        if inputs == bound.inputs && outputs == bound.outputs {
            return Ok(bound);
        }
        if shared(&inputs, &outputs) != shared(&bound.inputs, &bound.outputs) {
            drop(bound);
            return self.bind(places, kernel, false);
        }
        let regions = self.hold(inputs.iter().chain(&outputs), kernel);
        let changed = |now: &[At], before: &[At], i: usize| now[i] != before[i];
        let of_inputs = (self.inputs.iter().enumerate())
            .filter(|(i, _)| changed(&inputs, &bound.inputs, *i))
            .map(|(i, port)| (port.name.as_str(), lend(inputs[i], ReadWrite::Read)));
        let of_outputs = (self.outputs.iter().enumerate())
            .filter(|(i, _)| !outputs.is_empty() && changed(&outputs, &bound.outputs, *i))
            .map(|(i, port)| (port.name.as_str(), lend(outputs[i], ReadWrite::ReadWrite)));
        let rebound = bound.binding.rebind_all(of_inputs, of_outputs);
        let overlap = matches!(rebound, Err(Error::Session(SessionError::Overlap { .. })));
        if overlap || meets_former(&rebound, &bound.binding) {
            drop(bound);
            return self.bind(places, kernel, false);
        }
        rebound?;
        bound.moved = moved(&bound.binding);
        (bound.regions, bound.held) = (regions, self.held(&bound.binding, &inputs, &outputs));
        (bound.inputs, bound.outputs) = (inputs, outputs);
        Ok(bound)
    }

    fn input_places(&self, places: &[Place]) -> Result<Vec<At>, Failure> {
        let at = |(place, port): (&Place, &Port)| {
            let bytes = types::stored_bytes(place.element, &place.dims);
            let bytes = bytes.ok_or_else(|| Failure::argument(format!("{:?} is too large", port.name)))?;
            Ok((place.data.addr(), bytes))
        };
        places.iter().zip(&self.inputs).map(at).collect()
    }

    fn output_places(&self, dims: &[Vec<i64>], kernel: &Kernel) -> Result<Vec<At>, Failure> {
        let mut outputs = Vec::with_capacity(dims.len());
        for (o, (sizes, port)) in dims.iter().zip(&self.outputs).enumerate() {
            let bytes = types::stored_bytes(port.element, sizes);
            let bytes = bytes.ok_or_else(|| Failure::argument(format!("{:?} is too large", port.name)))?;
            outputs.push((kernel.output(o, sizes)?.addr(), bytes));
        }
        Ok(outputs)
    }

    /// Copies outputs whose sizes only the run told.
    fn hand_out(
        &self,
        binding: &Binding<'static>,
        kernel: &Kernel,
        moved: &mut Moved,
    ) -> Result<(), Failure> {
        for (o, port) in self.outputs.iter().enumerate() {
            let info = binding.output_info(&port.name)?;
            check_type(port, info.dtype)?;
            let sizes: Vec<i64> = info.shape.iter().map(|&d| d as i64).collect();
            let (to, bytes) = (kernel.output(o, &sizes)?, info.bytes());
            if bytes == 0 {
                continue;
            }
            if to.is_null() {
                return Err(Failure::argument(format!("output {:?} has no memory", port.name)));
            }
            // SAFETY: onnxruntime made the tensor of these sizes for this run, which alone writes it.
            let to = unsafe { std::slice::from_raw_parts_mut(to, bytes) };
            binding.read_output(&port.name, to)?;
            moved.copied += bytes as u64;
        }
        Ok(())
    }
}

/// Inputs and outputs, by position, that are one memory.
fn shared(inputs: &[At], outputs: &[At]) -> Vec<(usize, usize)> {
    let same = |i: usize, at: &At| outputs.iter().position(|other| other == at).map(|o| (i, o));
    inputs.iter().enumerate().filter_map(|(i, at)| same(i, at)).collect()
}

/// Whether memory was refused that shares a page with other memory, which may be the binding's own of the run before.
fn meets_former(rebound: &Result<(), Error>, binding: &Binding<'static>) -> bool {
    match rebound {
        Ok(()) => binding.verdicts().any(page_in_use),
        // The error has the verdict as text.
        Err(error) => matches!(error, Error::Session(SessionError::Strict { .. })),
    }
}

fn page_in_use(verdict: &Verdict) -> bool {
    matches!(verdict.reason, Reason::Refused { refusal: Refusal::PageInUse { .. } })
}

fn check_type(port: &Port, dtype: DType) -> Result<(), Failure> {
    if types::dtype(port.element) == Some(dtype) {
        return Ok(());
    }
    Err(Failure::graph(format!("output {:?} is {dtype}, the model says type {}", port.name, port.element)))
}

/// Memory of onnxruntime's for one run.
fn lend((address, bytes): At, access: ReadWrite) -> Memory<'static> {
    let start = NonNull::new(std::ptr::with_exposed_provenance_mut(address)).unwrap_or(NonNull::dangling());
    // SAFETY: onnxruntime keeps inputs and outputs of a run where they are until the run returns; a binding that is kept
    // gets the addresses of its next run before it runs. No one but the run writes them meanwhile.
    Memory::lent(unsafe { Lent::raw(start, bytes as u64, access, Box::new(|| ())) })
}

/// What each run of a binding moves.
fn moved(binding: &Binding<'static>) -> Moved {
    let mut moved = Moved::default();
    for verdict in binding.verdicts() {
        match verdict.path.copies_on_cpu() {
            true => moved.copied += verdict.bytes,
            false => moved.in_place += verdict.bytes,
        }
    }
    moved
}
