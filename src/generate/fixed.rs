//! Runs with a cache of a fixed length: planned and bound once for each size.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::ops::Range;

use super::cache::{CacheTensor, KeyValueCache};
use super::call::{Call, Ran, chunk_size};
use super::error::GenerateError;
use super::io::DecoderIo;
use super::logits::Logits;
use super::mask_length::MaskLength;
use crate::dtype::DType;
use crate::graph::{Tensor, TensorInfo};
use crate::plan::{Plan, PlannedIo};
use crate::session::{Binding, BindingBuilder, Memory, Session};
use crate::shape::Shape;

/// Runs that stay bound where lengths of the mask may have runs of their own.
const MOST_STEPS: usize = 64;

/// Rows are written to a cache of a fixed length; the mask tells how many are valid.
#[derive(Debug)]
pub(super) struct FixedRuns {
    cache: KeyValueCache,
    /// Tokens that the cache has room for.
    capacity: usize,
    largest_chunk: usize,
    /// Whether a run gives logits of all its tokens, so that it may be filled up.
    fills_up: bool,
    /// What the graph decides by the length of its mask, where it decides anything.
    lengths: Option<MaskLength>,
    /// Bound runs by sequences, size, way and length of the mask.
    steps: BTreeMap<(usize, usize, usize, usize, usize), Step>,
}

/// A run of so many tokens, bound once.
#[derive(Debug)]
struct Step {
    binding: Binding<'static>,
    /// Ones that the mask of each sequence has, once it was written.
    valid: Option<Vec<usize>>,
    logits: Logits,
}

/// How the cache of a fixed length is used.
#[derive(Debug)]
pub(super) struct FixedPlan {
    /// The plan of one token.
    pub(super) plan: Plan,
    tensors: Vec<CacheTensor>,
    in_place: bool,
}

impl FixedPlan {
    /// Plans one token with caches of the whole length; nothing where the graph does not keep it.
    pub(super) fn new(
        session: &Session,
        io: &DecoderIo,
        tensors: &[CacheTensor],
        capacity: usize,
    ) -> Result<Option<Self>, GenerateError> {
        if io.mask.is_none() {
            return Ok(None);
        }
        let mut tensors = tensors.to_vec();
        let mut builder = inputs(session, io, 1, 1, capacity, true)?;
        for tensor in &tensors {
            let memory = Memory::own().shape(tensor.sized(1, capacity)?.shape);
            builder = builder.update(&tensor.past, &tensor.present, memory);
        }
        let plan = builder.plan()?;
        let mut in_place = true;
        for tensor in &mut tensors {
            let Some(present) = planned(&plan.outputs, &tensor.present) else { return Ok(None) };
            if present.info != tensor.sized(1, capacity)? {
                return Ok(None);
            }
            in_place &= present.updated.is_some();
            tensor.device = only_device(&plan, tensor);
        }
        Ok(Some(FixedPlan { plan, tensors, in_place }))
    }
}

fn planned<'p>(ios: &'p [PlannedIo], name: &str) -> Option<&'p PlannedIo> {
    ios.iter().find(|io| io.name == name)
}

/// The device that alone touches a tensor of the cache.
pub(super) fn only_device(plan: &Plan, tensor: &CacheTensor) -> Option<u32> {
    let ios = [planned(&plan.inputs, &tensor.past), planned(&plan.outputs, &tensor.present)];
    let mut devices: Vec<u32> = ios.into_iter().flatten().flat_map(|io| io.devices.clone()).collect();
    devices.dedup();
    if let [device] = devices[..] { Some(device) } else { None }
}

/// Inputs in memory of the session's own for a run of `size` tokens, with a mask of `total`. Where the graph
/// has a branch for a cache with tokens, it is chosen by `has_past`.
pub(super) fn inputs(
    session: &Session,
    io: &DecoderIo,
    sequences: usize,
    size: usize,
    total: usize,
    has_past: bool,
) -> Result<BindingBuilder<'static>, GenerateError> {
    let own = |size| Ok::<_, GenerateError>(Memory::own().shape(Shape::new([sequences, size])?));
    let mut builder = session.bind().input(&io.ids.name, own(size)?);
    if let Some(positions) = &io.positions {
        builder = builder.input(&positions.name, own(size)?);
    }
    if let Some(mask) = &io.mask {
        builder = builder.input(&mask.name, own(total)?);
    }
    if let Some(places) = &io.cache_positions {
        builder = builder.input(&places.name, Memory::own().shape(Shape::new([size])?));
    }
    if let Some(len) = &io.past_len {
        builder = builder.input(&len.name, Memory::own().shape(Shape::new([1])?));
    }
    if let Some(branch) = &io.branch {
        builder = builder.input(branch, Memory::value(chosen(has_past)?));
    }
    match &io.scan {
        Some(scan) => scan.inputs(builder, sequences),
        None => Ok(builder),
    }
}

/// The value that chooses a branch: the plan is made for it, and has nothing of the other one.
fn chosen(has_past: bool) -> Result<Tensor, GenerateError> {
    let info = TensorInfo::new(DType::Bool, Shape::new([1])?);
    Ok(Tensor::from_bytes(info, &[u8::from(has_past)])?)
}

impl FixedRuns {
    /// Allocates the cache of one sequence and binds the runs of one token.
    pub(super) fn new(
        session: &Session,
        io: &DecoderIo,
        plan: FixedPlan,
        capacity: usize,
        largest_chunk: usize,
    ) -> Result<Self, GenerateError> {
        let cache = KeyValueCache::new(session, plan.tensors, plan.in_place, 1, capacity)?;
        let lengths = io.mask.as_ref().and_then(|mask| MaskLength::new(session.graph(), mask));
        let (fills_up, steps) = (true, BTreeMap::new());
        let mut runs = FixedRuns { cache, capacity, largest_chunk, fills_up, lengths, steps };
        for way in 0..runs.cache.ways() {
            let total = runs.mask_rows(session, 1, 1).unwrap_or(capacity);
            runs.step(session, io, &(0..1), (1, total), way)?;
        }
        Ok(runs)
    }

    pub(super) fn cache(&self) -> &KeyValueCache {
        &self.cache
    }

    /// Whether sequences of any lengths may share a run.
    pub(super) fn shares_runs(&self) -> bool {
        self.lengths.is_none()
    }

    /// The length of the mask of a run that ends at `end` tokens and has room for `least`; nothing where no mask of so many
    /// leads to what the graph computes of `end` tokens.
    fn mask_rows(&mut self, session: &Session, end: usize, least: usize) -> Option<usize> {
        match &mut self.lengths {
            Some(lengths) => lengths.of(session.graph(), end, least, self.capacity),
            None => Some(self.capacity),
        }
    }

    /// Makes room for `sequences`; their caches are empty then.
    pub(super) fn resize(&mut self, session: &Session, sequences: usize) -> Result<(), GenerateError> {
        let (tensors, in_place) = (self.cache.tensors().to_vec(), self.cache.is_in_place());
        self.steps.clear();
        self.cache = KeyValueCache::new(session, tensors, in_place, sequences, self.capacity)?;
        Ok(())
    }

    /// Binds what `tokens` tokens after `len` in the cache of `sequence` need.
    pub(super) fn prepare(
        &mut self,
        session: &Session,
        io: &DecoderIo,
        sequence: usize,
        mut len: usize,
        tokens: usize,
    ) -> Result<(), GenerateError> {
        let end = (len + tokens).min(self.capacity);
        let mut way = self.cache.way(sequence);
        while len < end {
            let (size, _) = self.chunk(session, io, &(sequence..sequence + 1), (end - len, end), len, way)?;
            (len, way) = (len + size, self.cache.other(way));
        }
        Ok(())
    }

    /// Runs the first tokens of a call.
    pub(super) fn run(&mut self, call: &Call<'_>) -> Result<Ran, GenerateError> {
        let (session, io, sequences) = (call.session, call.io, &call.sequences);
        let way = self.cache.way(sequences.start);
        let (size, total) = match sequences.len() {
            1 => {
                let (rest, len) = (call.tokens.len(), call.lens()[0]);
                self.chunk(session, io, sequences, (rest, len + rest + call.ahead), len, way)?
            }
            _ => (1, self.capacity),
        };
        let step = self.step(session, io, sequences, (size, total), way)?;
        step.fill(call, size, total)?;
        call.run(&mut step.binding)?;
        let ran = call.ran(size, &step.logits, &step.binding)?;
        self.cache.advance(sequences);
        Ok(ran)
    }

    /// The size of the next run and of its mask, which is bound then: `rest` tokens after `len`, of a prompt that ends at
    /// `end`.
    fn chunk(
        &mut self,
        session: &Session,
        io: &DecoderIo,
        sequences: &Range<usize>,
        (rest, end): (usize, usize),
        len: usize,
        way: usize,
    ) -> Result<(usize, usize), GenerateError> {
        let room = self.capacity - len;
        let mut size = chunk_size(rest, room, self.largest_chunk, self.fills_up);
        let total = match self.mask_rows(session, end.min(self.capacity), len + size) {
            Some(total) => total,
            None => {
                size = chunk_size(rest, room, self.largest_chunk, false);
                self.mask_rows(session, end.min(self.capacity), len + size).unwrap_or(self.capacity)
            }
        };
        let rows = self.step(session, io, sequences, (size, total), way)?.logits.rows();
        if size > rest && rows != size {
            // The logits are those of the last token alone, so it must be a token of the prompt.
            self.fills_up = false;
            return self.chunk(session, io, sequences, (rest, end), len, way);
        }
        Ok((size, total))
    }

    /// The bound run of `size` tokens with a mask of `total`.
    fn step(
        &mut self,
        session: &Session,
        io: &DecoderIo,
        sequences: &Range<usize>,
        (size, total): (usize, usize),
        way: usize,
    ) -> Result<&mut Step, GenerateError> {
        if self.lengths.is_some() && self.steps.len() > MOST_STEPS {
            self.steps.clear();
        }
        match self.steps.entry((sequences.start, sequences.len(), size, way, total)) {
            Entry::Occupied(step) => Ok(step.into_mut()),
            Entry::Vacant(place) => {
                let builder = inputs(session, io, sequences.len(), size, total, true)?;
                let builder = self.cache.bind(builder, sequences, way)?;
                let (logits, builder) = Logits::bind(session, io, builder)?;
                Ok(place.insert(Step { binding: builder.build()?, valid: None, logits }))
            }
        }
    }
}

impl Step {
    /// Writes the inputs of a run of `size` tokens, filled up with zeros, and a mask of `total`.
    fn fill(&mut self, call: &Call<'_>, size: usize, total: usize) -> Result<(), GenerateError> {
        call.write_tokens(&mut self.binding, size)?;
        call.ask(&mut self.binding, &self.logits, size)?;
        let Some(mask) = &call.io.mask else { return Ok(()) };
        // Only what changed; tokens that fill up a run are valid in it, so that positions are right.
        let valid: Vec<usize> = call.lens().iter().map(|len| len + size).collect();
        let ones = |valid: usize| (0..total).map(move |p| i64::from(p < valid));
        let all = || valid.iter().flat_map(|valid| ones(*valid)).collect::<Vec<_>>();
        let count = valid.len();
        match self.valid.take() {
            Some(before) => {
                for (sequence, (before, valid)) in before.into_iter().zip(valid.iter().copied()).enumerate() {
                    let from = sequence * total + before.min(valid);
                    let changed = vec![i64::from(valid > before); before.abs_diff(valid)];
                    mask.write(&mut self.binding, count, from, &changed, all)?;
                }
            }
            None => mask.write(&mut self.binding, count, 0, &all(), all)?,
        }
        self.valid = Some(valid);
        Ok(())
    }
}
