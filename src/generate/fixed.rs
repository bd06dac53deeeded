//! Runs with a cache of a fixed length: planned and bound once for each size.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

use super::cache::{CacheTensor, KeyValueCache};
use super::error::GenerateError;
use super::io::{DecoderIo, of_length};
use crate::backend::BufferDesc;
use crate::device::Buffer;
use crate::graph::TensorInfo;
use crate::memory::model::Placement;
use crate::plan::{Plan, PlannedIo};
use crate::session::{Binding, BindingBuilder, Memory, RunOptions, Session, SessionError};
use crate::shape::Shape;

/// Fewer tokens of a prompt than this are filled up to it.
const SMALLEST_CHUNK: usize = 8;

/// Rows are written to a cache of a fixed length; the mask tells how many are valid.
#[derive(Debug)]
pub(super) struct FixedRuns {
    cache: KeyValueCache,
    /// Tokens that the cache has room for.
    capacity: usize,
    largest_chunk: usize,
    /// Whether a run gives logits of all its tokens, so that it may be filled up.
    fills_up: bool,
    /// Bound runs by size and way.
    steps: BTreeMap<(usize, usize), Step>,
}

/// A run of so many tokens, bound once.
#[derive(Debug)]
struct Step {
    binding: Binding<'static>,
    /// Ones that its mask has, once it was written.
    valid: Option<usize>,
    logits: TensorInfo,
    /// Where the logits stay on their device, and what copies one row to the host.
    rows: Option<Rows>,
}

#[derive(Debug)]
struct Rows {
    device: u32,
    all: Buffer,
    row: Buffer,
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
    ///
    /// # Errors
    /// What the session says.
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
        for tensor in &mut tensors {
            tensor.info.shape = of_length(&tensor.info, capacity)?;
        }
        let builder = tensors.iter().fold(inputs(session, io, 1, capacity)?, |b, tensor| {
            let memory = Memory::own().shape(tensor.info.shape.clone());
            b.update(&tensor.past, &tensor.present, memory)
        });
        let plan = builder.plan()?;
        let planned = |ios: &[PlannedIo], name: &str| ios.iter().find(|io| io.name == name).cloned();
        let mut in_place = true;
        for tensor in &mut tensors {
            let past = planned(&plan.inputs, &tensor.past);
            let Some(present) = planned(&plan.outputs, &tensor.present) else { return Ok(None) };
            if present.info != tensor.info {
                return Ok(None);
            }
            in_place &= present.updated.is_some();
            let mut devices: Vec<u32> = past.map_or(Vec::new(), |io| io.devices);
            devices.extend(present.devices);
            devices.dedup();
            tensor.device = if let [device] = devices[..] { Some(device) } else { None };
        }
        Ok(Some(FixedPlan { plan, tensors, in_place }))
    }
}

/// Inputs in memory of the session's own for a run of `size` tokens.
fn inputs(
    session: &Session,
    io: &DecoderIo,
    size: usize,
    capacity: usize,
) -> Result<BindingBuilder<'static>, GenerateError> {
    let own = |sizes: [usize; 2]| Ok::<_, GenerateError>(Memory::own().shape(Shape::new(sizes)?));
    let mut builder = session.bind().input(&io.ids.name, own([1, size])?);
    if let Some(positions) = &io.positions {
        builder = builder.input(&positions.name, own([1, size])?);
    }
    if let Some(mask) = &io.mask {
        builder = builder.input(&mask.name, own([1, capacity])?);
    }
    Ok(builder)
}

impl FixedRuns {
    /// Allocates the cache and binds the runs of one token.
    ///
    /// # Errors
    /// What the session says.
    pub(super) fn new(
        session: &Session,
        io: &DecoderIo,
        plan: FixedPlan,
        capacity: usize,
        largest_chunk: usize,
    ) -> Result<Self, GenerateError> {
        let cache = KeyValueCache::new(session, plan.tensors, plan.in_place)?;
        let largest_chunk = largest_chunk.max(SMALLEST_CHUNK);
        let mut runs = FixedRuns { cache, capacity, largest_chunk, fills_up: true, steps: BTreeMap::new() };
        for way in 0..runs.cache.ways() {
            runs.step(session, io, 1, way)?;
        }
        Ok(runs)
    }

    pub(super) fn cache(&self) -> &KeyValueCache {
        &self.cache
    }

    /// Binds what `tokens` tokens after an empty cache need.
    ///
    /// # Errors
    /// What the session says.
    pub(super) fn prepare(
        &mut self,
        session: &Session,
        io: &DecoderIo,
        tokens: usize,
    ) -> Result<(), GenerateError> {
        let (mut way, mut len) = (self.cache.way(), 0);
        while len < tokens.min(self.capacity) {
            let size = self.chunk(session, io, tokens - len, len, way)?;
            (len, way) = (len + size, self.cache.other(way));
        }
        Ok(())
    }

    /// Runs the first of `tokens` after `len` tokens in the cache; gives how many, and the logits of the last one where
    /// that is the last of `tokens`.
    ///
    /// # Errors
    /// What the session says; the cache has `len` tokens then.
    pub(super) fn run(
        &mut self,
        session: &Session,
        io: &DecoderIo,
        tokens: &[u32],
        len: usize,
        options: Option<&RunOptions>,
    ) -> Result<(usize, Option<Vec<f32>>), GenerateError> {
        let (way, capacity) = (self.cache.way(), self.capacity);
        let size = self.chunk(session, io, tokens.len(), len, way)?;
        let real = size.min(tokens.len());
        let step = self.step(session, io, size, way)?;
        step.fill(io, &tokens[..real], size, len, capacity)?;
        match options {
            Some(options) => step.binding.run_with(options)?,
            None => step.binding.run()?,
        }
        let row = if real == tokens.len() { Some(step.row(session, io, real - 1)?) } else { None };
        self.cache.advance();
        Ok((real, row))
    }

    /// The size of the next run, which is bound then: `rest` tokens after `len`.
    fn chunk(
        &mut self,
        session: &Session,
        io: &DecoderIo,
        rest: usize,
        len: usize,
        way: usize,
    ) -> Result<usize, GenerateError> {
        let size = chunk_size(rest, self.capacity - len, self.largest_chunk, self.fills_up);
        let rows = self.step(session, io, size, way)?.logits.shape[1];
        if size > rest && rows != size {
            // The logits are those of the last token alone, so it must be a token of the prompt.
            self.fills_up = false;
            return self.chunk(session, io, rest, len, way);
        }
        Ok(size)
    }

    /// The bound run of `size` tokens.
    fn step(
        &mut self,
        session: &Session,
        io: &DecoderIo,
        size: usize,
        way: usize,
    ) -> Result<&mut Step, GenerateError> {
        match self.steps.entry((size, way)) {
            Entry::Occupied(step) => Ok(step.into_mut()),
            Entry::Vacant(place) => {
                let builder = self.cache.bind(inputs(session, io, size, self.capacity)?, way);
                Ok(place.insert(Step::new(session, io, size, builder)?))
            }
        }
    }
}

impl Step {
    fn new(
        session: &Session,
        io: &DecoderIo,
        size: usize,
        mut builder: BindingBuilder<'static>,
    ) -> Result<Self, GenerateError> {
        let plan = builder.plan()?;
        let logits = plan.outputs.iter().find(|planned| planned.name == io.logits);
        let planned = logits.ok_or(SessionError::NotRun)?;
        let rows = if size > 1 { Rows::new(session, io, planned)? } else { None };
        if let Some(rows) = &rows {
            builder = builder.output(&io.logits, Memory::buffer(&rows.all));
        }
        Ok(Step { binding: builder.build()?, valid: None, logits: planned.info.clone(), rows })
    }

    /// Writes the inputs of a run of `size` tokens after `len`, filled up with zeros.
    fn fill(
        &mut self,
        io: &DecoderIo,
        tokens: &[u32],
        size: usize,
        len: usize,
        capacity: usize,
    ) -> Result<(), GenerateError> {
        let mut values: Vec<i64> = tokens.iter().map(|t| i64::from(*t)).collect();
        values.resize(size, 0);
        io.ids.write(&mut self.binding, 0, &values, || values.clone())?;
        let valid = len + size;
        if let Some(positions) = &io.positions {
            let values: Vec<i64> = (len..valid).map(|p| p as i64).collect();
            positions.write(&mut self.binding, 0, &values, || values.clone())?;
        }
        let Some(mask) = &io.mask else { return Ok(()) };
        // Only what changed; tokens that fill up a run are valid in it, so that positions are right.
        let all = || (0..capacity).map(|p| i64::from(p < valid)).collect::<Vec<_>>();
        let (from, changed) = match self.valid.take() {
            Some(before) => (before.min(valid), vec![i64::from(valid > before); before.abs_diff(valid)]),
            None => (0, all()),
        };
        mask.write(&mut self.binding, from, &changed, all)?;
        self.valid = Some(valid);
        Ok(())
    }

    /// The logits of token `row` of the last run.
    fn row(&self, session: &Session, io: &DecoderIo, row: usize) -> Result<Vec<f32>, GenerateError> {
        io.row(&self.logits, row, |start, bytes| match &self.rows {
            Some(rows) => rows.copy(session, start, bytes),
            None => io.copy_logits(&self.binding, start, bytes),
        })
    }
}

impl Rows {
    /// Memory for logits that a bus separates from the host.
    fn new(session: &Session, io: &DecoderIo, planned: &PlannedIo) -> Result<Option<Self>, GenerateError> {
        let [device] = planned.devices[..] else { return Ok(None) };
        let Some(context) = session.context(device as usize) else { return Ok(None) };
        if context.info().native || context.info().memory.shares_host_memory() {
            return Ok(None);
        }
        let buffer = |bytes: usize, placement, label| {
            let bytes = (bytes as u64).max(16).next_multiple_of(16);
            context.create_buffer(&BufferDesc { bytes, placement, label })
        };
        let all = buffer(planned.info.bytes(), Placement::Device, "logits")?;
        let row_bytes = planned.info.dtype.bytes() * io.vocabulary;
        let row = buffer(row_bytes, Placement::Readback, "logits of one token")?;
        Ok(Some(Rows { device, all, row }))
    }

    fn copy(&self, session: &Session, start: usize, bytes: &mut [u8]) -> Result<(), GenerateError> {
        let Some(context) = session.context(self.device as usize) else { return Ok(()) };
        let len = bytes.len() as u64;
        let (from, to) = (self.all.sub_buffer(start as u64, len)?, self.row.sub_buffer(0, len)?);
        context.queue()?.enqueue_copy(&from, &to)?.wait()?;
        Ok(to.map_read()?.copy_to(bytes)?)
    }
}

/// Tokens of the next run: a power of two. `rest` tokens are left, the cache has `room`; a last run that `fills_up` may
/// be larger than what is left.
fn chunk_size(rest: usize, room: usize, largest: usize, fills_up: bool) -> usize {
    let whole = |n: usize| 1 << n.max(1).ilog2();
    if rest <= 1 {
        return 1;
    }
    let padded = rest.next_power_of_two().max(SMALLEST_CHUNK).min(largest);
    if padded <= room && (fills_up || padded <= rest) { padded } else { whole(rest.min(room).min(largest)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prompts_are_cut_into_few_sizes() {
        let sizes = |tokens: usize, room: usize, fills_up: bool| {
            let (mut rest, mut room, mut all) = (tokens, room, Vec::new());
            while rest > 0 {
                let size = chunk_size(rest, room, 64, fills_up);
                assert!(size <= room && size.is_power_of_two());
                all.push(size);
                let real = size.min(rest);
                (rest, room) = (rest - real, room - real);
            }
            all
        };
        assert_eq!(sizes(1, 10, true), [1]);
        assert_eq!(sizes(2, 10, true), [8]);
        assert_eq!(sizes(64, 99, true), [64]);
        assert_eq!(sizes(150, 999, true), [64, 64, 32]);
        assert_eq!(sizes(150, 151, true), [64, 64, 16, 4, 2]);
        assert_eq!(sizes(5, 5, true), [4, 1]);
        assert_eq!(sizes(150, 999, false), [64, 64, 16, 4, 2]);
    }
}
