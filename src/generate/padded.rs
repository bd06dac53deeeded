//! Runs of graphs that append to their cache, with a cache that has more rows than tokens.
//!
//! The mask hides the rows that have no token, so that one plan serves all lengths up to a power of two. What a run
//! appends is copied to where it belongs. Whether a graph heeds its mask is measured once.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

use super::cache::{CacheMemory, CacheTensor, Rows, finish};
use super::call::{Call, Ran, chunk_size};
use super::error::GenerateError;
use super::fixed::{inputs, only_device};
use super::io::DecoderIo;
use super::logits::{Logits, near};
use super::mask_length::MaskLength;
use super::scan::Row;
use crate::plan::Plan;
use crate::session::{Binding, Memory, Session, SessionError};

/// Rows of the smallest cache that has any.
const SMALLEST_CACHE: usize = 64;

/// Fills rows that must not be seen: a number of about 3 in each floating point type.
pub(super) const UNSEEN: u8 = 0x40;

/// The graph appends to a cache of more rows than tokens.
#[derive(Debug)]
pub(super) struct PaddedRuns {
    tensors: Vec<CacheTensor>,
    /// Tokens that a sequence may have.
    capacity: usize,
    largest_chunk: usize,
    /// Whether a run gives logits of all its tokens, so that it may be filled up.
    fills_up: bool,
    sequences: usize,
    /// Rows of each head, and the memory that has them.
    rows: usize,
    memory: Vec<CacheMemory>,
    /// Bound runs by sequences, size and rows of the cache.
    steps: BTreeMap<(usize, usize, usize, usize), Step>,
}

/// A run of so many tokens, bound once.
#[derive(Debug)]
struct Step {
    binding: Binding<'static>,
    logits: Logits,
    present: Vec<CacheMemory>,
}

/// The plan of one token with a cache that has more rows than tokens.
#[derive(Debug)]
pub(super) struct PaddedPlan {
    pub(super) plan: Plan,
    tensors: Vec<CacheTensor>,
}

impl PaddedPlan {
    /// Plans one token; nothing where the graph has no mask, chooses a branch by its length, or does not append.
    pub(super) fn new(
        session: &Session,
        io: &DecoderIo,
        tensors: &[CacheTensor],
        capacity: usize,
    ) -> Result<Option<Self>, GenerateError> {
        let Some(mask) = &io.mask else { return Ok(None) };
        // A branch would be chosen for rows that are hidden.
        if MaskLength::new(session.graph(), mask).is_some_and(|length| length.chooses()) {
            return Ok(None);
        }
        let rows = rows_for(1, 1, capacity);
        let mut tensors = tensors.to_vec();
        let mut builder = inputs(session, io, 1, 1, rows + 1, true)?;
        for tensor in &tensors {
            builder = builder.input(&tensor.past, Memory::own().shape(tensor.sized(1, rows)?.shape));
        }
        let plan = builder.plan()?;
        for tensor in &mut tensors {
            let present = plan.outputs.iter().find(|io| io.name == tensor.present);
            if present.is_none_or(|io| Some(&io.info) != tensor.sized(1, rows + 1).ok().as_ref()) {
                return Ok(None);
            }
            tensor.device = only_device(&plan, tensor);
        }
        Ok(Some(PaddedPlan { plan, tensors }))
    }
}

/// Rows of a cache for `len` tokens before a run of `size`: few numbers, and the whole is no longer than the model takes.
pub(super) fn rows_for(len: usize, size: usize, capacity: usize) -> usize {
    match len {
        0 => 0,
        _ => len.next_power_of_two().max(SMALLEST_CACHE).min(capacity.saturating_sub(size)).max(len),
    }
}

impl PaddedRuns {
    pub(super) fn new(plan: PaddedPlan, capacity: usize, largest_chunk: usize) -> Self {
        PaddedRuns {
            tensors: plan.tensors,
            capacity,
            largest_chunk,
            fills_up: true,
            sequences: 1,
            rows: 0,
            memory: Vec::new(),
            steps: BTreeMap::new(),
        }
    }

    /// Whether the graph heeds its mask: rows that it hides change no logit.
    pub(super) fn heeds_mask(&mut self, session: &Session, io: &DecoderIo) -> Result<bool, GenerateError> {
        let last = io.vocabulary.saturating_sub(1) as u32;
        let tokens = [last.min(1), last.min(2)];
        let positions = self.capacity;
        let (sequences, all_lens) = (0..1, &[0][..]);
        let call = Call {
            session,
            io,
            options: None,
            sequences,
            tokens: &tokens,
            all_lens,
            from: 1,
            ahead: 0,
            positions,
            asked: &[],
        };
        let whole = self.all(&call)?;
        for (tensor, memory) in self.tensors.iter().zip(&self.memory) {
            let kept = CacheMemory::new(session, tensor, 1, 1)?;
            let first = |memory| Rows { memory, sequence: 0, at: 0 };
            first(memory).copy_to(&first(&kept), tensor, 1)?;
            finish([memory])?;
            memory.fill(tensor, 1, UNSEEN)?;
            first(&kept).copy_to(&first(memory), tensor, 1)?;
            finish([memory])?;
        }
        let second = self.all(&Call { tokens: &tokens[1..], all_lens: &[1], from: 0, ..call })?;
        self.forget();
        Ok(near(&whole, &second))
    }

    /// Runs all tokens of a call; gives the logits of the last one.
    fn all(&mut self, call: &Call<'_>) -> Result<Vec<f32>, GenerateError> {
        let (mut tokens, mut len, mut logits) = (call.tokens, call.all_lens[0], Vec::new());
        while !tokens.is_empty() {
            let from = tokens.len() - 1;
            let ran = self.run(&Call { tokens, all_lens: &[len], from, ..call.clone() })?;
            (tokens, len, logits) = (&tokens[ran.taken..], len + ran.taken, ran.rows);
        }
        Ok(logits.pop().map(Row::into_logits).unwrap_or_default())
    }

    /// Makes room for `sequences`; their caches are empty then.
    pub(super) fn resize(&mut self, sequences: usize) {
        self.sequences = sequences;
        self.steps.clear();
        self.forget();
    }

    /// Gives the memory back: what the mask hides must be finite, and after an error it may not be.
    pub(super) fn forget(&mut self) {
        self.steps.retain(|(_, _, _, rows), _| *rows == 0);
        self.memory.clear();
        self.rows = 0;
    }

    pub(super) fn tensors(&self) -> &[CacheTensor] {
        &self.tensors
    }

    pub(super) fn memory(&self) -> &[CacheMemory] {
        &self.memory
    }

    /// Gives the cache rows for sequences of `lens` tokens before a run of `size`, and keeps those tokens.
    pub(super) fn reserve(
        &mut self,
        session: &Session,
        lens: &[usize],
        size: usize,
    ) -> Result<(), GenerateError> {
        let longest = lens.iter().copied().max().unwrap_or(0);
        let rows = rows_for(longest.max(1), size, self.capacity);
        if rows == self.rows {
            return Ok(());
        }
        let new = self.tensors.iter().map(|t| CacheMemory::new(session, t, self.sequences, rows));
        let new = new.collect::<Result<Vec<_>, _>>()?;
        for ((tensor, old), new) in self.tensors.iter().zip(&self.memory).zip(&new) {
            for (sequence, len) in lens.iter().enumerate() {
                let of = |memory| Rows { memory, sequence, at: 0 };
                let kept = (*len).min(self.rows);
                of(old).copy_to(&of(new), tensor, kept)?;
            }
        }
        finish(&new)?;
        self.steps.retain(|(_, _, _, rows), _| *rows == 0);
        (self.memory, self.rows) = (new, rows);
        Ok(())
    }

    /// Runs the first tokens of a call.
    pub(super) fn run(&mut self, call: &Call<'_>) -> Result<Ran, GenerateError> {
        let has_past = call.lens().iter().any(|len| *len > 0);
        let size = match call.sequences.len() {
            1 => self.chunk(call, has_past)?,
            _ => 1,
        };
        let rows = self.rows_before(call, size, has_past)?;
        let key = (call.sequences.start, call.sequences.len(), size, rows);
        self.step(call, size, rows)?;
        // Not there while it runs: more rows may be needed for what it appends.
        let Some(mut step) = self.steps.remove(&key) else { return Err(SessionError::NotRun.into()) };
        step.fill(call, size, rows)?;
        call.run(&mut step.binding)?;
        let ran = call.ran(size, &step.logits, &step.binding)?;
        self.keep(call, &step, rows, ran.taken)?;
        if rows == 0 || rows == self.rows {
            self.steps.insert(key, step);
        }
        Ok(ran)
    }

    /// Rows of the cache in a run of `size` tokens.
    fn rows_before(&mut self, call: &Call<'_>, size: usize, has_past: bool) -> Result<usize, GenerateError> {
        if !has_past {
            return Ok(0);
        }
        self.reserve(call.session, call.all_lens, size)?;
        Ok(self.rows)
    }

    /// Copies what a run appended to where it belongs.
    fn keep(&mut self, call: &Call<'_>, step: &Step, rows: usize, taken: usize) -> Result<(), GenerateError> {
        let mut lens = call.all_lens.to_vec();
        call.sequences.clone().for_each(|sequence| lens[sequence] += taken);
        self.reserve(call.session, &lens, 1)?;
        for ((tensor, present), memory) in self.tensors.iter().zip(&step.present).zip(&self.memory) {
            for (i, sequence) in call.sequences.clone().enumerate() {
                let from = Rows { memory: present, sequence: i, at: rows };
                let to = Rows { memory, sequence, at: call.all_lens[sequence] };
                from.copy_to(&to, tensor, taken)?;
            }
        }
        finish(&self.memory)
    }

    /// The size of the next run.
    fn chunk(&mut self, call: &Call<'_>, has_past: bool) -> Result<usize, GenerateError> {
        let longest = call.all_lens.iter().copied().max().unwrap_or(0);
        let (rest, room) = (call.tokens.len(), self.capacity - if has_past { longest } else { 0 });
        let size = chunk_size(rest, room, self.largest_chunk, self.fills_up);
        let rows = self.rows_before(call, size, has_past)?;
        if size > rest && self.step(call, size, rows)?.logits.rows() != size {
            // The logits are those of the last token alone, so it must be a token of the prompt.
            self.fills_up = false;
            return self.chunk(call, has_past);
        }
        Ok(size)
    }

    /// The bound run of `size` tokens.
    fn step(&mut self, call: &Call<'_>, size: usize, rows: usize) -> Result<&mut Step, GenerateError> {
        let (session, sequences) = (call.session, &call.sequences);
        match self.steps.entry((sequences.start, sequences.len(), size, rows)) {
            Entry::Occupied(step) => Ok(step.into_mut()),
            Entry::Vacant(place) => {
                let count = sequences.len();
                let mut builder = inputs(session, call.io, count, size, rows + size, rows > 0)?;
                let mut all = Vec::new();
                for (i, tensor) in self.tensors.iter().enumerate() {
                    let past = match self.memory.get(i).filter(|_| rows > 0) {
                        Some(memory) => memory.part(tensor, sequences)?,
                        None => Memory::own().shape(tensor.sized(count, 0)?.shape),
                    };
                    let present = CacheMemory::new(session, tensor, count, rows + size)?;
                    builder = builder.input(&tensor.past, past);
                    builder = builder.output(&tensor.present, present.part(tensor, &(0..count))?);
                    all.push(present);
                }
                let (logits, builder) = Logits::bind(session, call.io, builder)?;
                Ok(place.insert(Step { binding: builder.build()?, logits, present: all }))
            }
        }
    }
}

impl Step {
    /// Writes the inputs of a run of `size` tokens after a cache of `rows`.
    fn fill(&mut self, call: &Call<'_>, size: usize, rows: usize) -> Result<(), GenerateError> {
        call.write_tokens(&mut self.binding, size)?;
        call.ask(&mut self.binding, &self.logits, size)?;
        let Some(mask) = &call.io.mask else { return Ok(()) };
        let (total, real) = (rows + size, call.real(size));
        let shown =
            |len: usize| (0..total).map(move |at| i64::from(at < len || (rows..rows + real).contains(&at)));
        let values: Vec<i64> = call.lens().iter().flat_map(|len| shown(*len)).collect();
        mask.write(&mut self.binding, call.sequences.len(), 0, &values, || values.clone())
    }
}
