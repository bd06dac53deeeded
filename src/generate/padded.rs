//! Runs of graphs that append to their cache, with a cache that has more rows than tokens.
//!
//! The mask hides the rows that have no token, so that one plan serves all lengths up to a power of two. A run of one token
//! writes it where it belongs, where the graph can be changed so ([`InPlaceGraph`]), and so do longer runs of graphs that
//! see rows by their positions. What other runs append is copied to where it belongs. Whether a graph heeds its mask is
//! measured once.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

use super::cache::{CacheMemory, CacheTensor, Rows, finish};
use super::call::{Call, Ran, chunk_size};
use super::error::GenerateError;
use super::fixed::{inputs, only_device};
use super::in_place_graph::InPlaceGraph;
use super::io::DecoderIo;
use super::logits::{Logits, near};
use super::mask_length::MaskLength;
use super::masked_graph::with_past;
use super::scan::Row;
use crate::plan::Plan;
use crate::session::{Binding, Memory, Session, SessionError};

/// Rows of the smallest cache that has any.
pub(super) const SMALLEST_CACHE: usize = 64;

/// Fill rows that must not be seen: numbers of about 3 and -3 in each floating point type. Where the scores of one are low,
/// those of the other are high.
pub(super) const UNSEEN: [u8; 2] = [0x40, 0xC0];

/// The graph appends to a cache of more rows than tokens.
#[derive(Debug)]
pub(super) struct PaddedRuns {
    tensors: Vec<CacheTensor>,
    /// The graph of runs of one token after others.
    in_place: Option<InPlaceGraph>,
    /// Whether it is that of longer runs too, which otherwise append.
    all_in_place: bool,
    /// Tokens that a sequence may have.
    capacity: usize,
    /// Rows that the cache has at least.
    smallest: usize,
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
    /// What the run appends to a copy of the cache; nothing where it writes to the cache itself.
    present: Option<Vec<CacheMemory>>,
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
        let rows = rows_for(1, [0, 1], (SMALLEST_CACHE, capacity));
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

/// Rows of a cache for `len` tokens and `spare` ones before a run that appends `size`: few numbers, `smallest` and more,
/// and the whole is no longer than the model takes.
pub(super) fn rows_for(len: usize, [spare, size]: [usize; 2], (smallest, capacity): (usize, usize)) -> usize {
    match len {
        0 => 0,
        _ => (len + spare).next_power_of_two().max(smallest).min(capacity.saturating_sub(size)).max(len),
    }
}

/// Rows of the smallest cache of which a token sees the last `window` alone, where there may be more.
pub(super) fn rows_beyond(window: Option<usize>, capacity: usize) -> usize {
    let window = window.filter(|window| *window < capacity);
    window.map_or(SMALLEST_CACHE, |rows| (rows + 1).next_power_of_two().max(SMALLEST_CACHE))
}

impl PaddedRuns {
    pub(super) fn new(
        session: &Session,
        io: &DecoderIo,
        plan: PaddedPlan,
        capacity: usize,
        largest_chunk: usize,
    ) -> Self {
        let graph = with_past(session.graph(), io);
        let in_place =
            graph.and_then(|graph| InPlaceGraph::new(session, &graph, &io.ids.name, &plan.tensors));
        PaddedRuns {
            tensors: plan.tensors,
            in_place,
            all_in_place: false,
            capacity,
            smallest: SMALLEST_CACHE,
            largest_chunk,
            fills_up: true,
            sequences: 1,
            rows: 0,
            memory: Vec::new(),
            steps: BTreeMap::new(),
        }
    }

    /// Whether runs of one token write it where it belongs.
    pub(super) fn is_in_place(&self) -> bool {
        self.in_place.is_some()
    }

    /// Whether a run of `size` tokens after others writes them where they belong.
    fn writes_in_place(&self, size: usize) -> bool {
        self.is_in_place() && (size == 1 || self.all_in_place)
    }

    /// Plans of the changed graph.
    pub(super) fn plans_made(&self) -> u64 {
        self.in_place.as_ref().map_or(0, |graph| graph.session().plans_made())
    }

    /// Whether the graph heeds its mask: rows that it hides change no logit, of one token after others or of several.
    /// Decides which runs are in place. A graph whose tokens see the last `window` rows alone may count hidden ones among
    /// these, which shows where there are more.
    pub(super) fn heeds_mask(
        &mut self,
        session: &Session,
        io: &DecoderIo,
        window: Option<usize>,
    ) -> Result<bool, GenerateError> {
        self.smallest = rows_beyond(window, self.capacity);
        let last = io.vocabulary.saturating_sub(1) as u32;
        let tokens = &[1, 2, 3].map(|token| last.min(token))[..self.capacity.min(3)];
        let whole = self.after(session, io, tokens, 0, UNSEEN[0])?;
        let gives = |runs: &mut Self, len: usize| {
            UNSEEN.into_iter().all(|unseen| {
                let logits = runs.after(session, io, tokens, len, unseen);
                logits.is_ok_and(|logits| near(&whole, &logits))
            })
        };
        let mut heeds = gives(self, tokens.len() - 1);
        if !heeds && self.is_in_place() {
            self.in_place = None;
            self.steps.retain(|(_, _, _, rows), _| *rows == 0);
            heeds = gives(self, tokens.len() - 1);
        }
        if heeds && tokens.len() > 2 && !gives(self, 1) {
            self.all_in_place = self.in_place.as_ref().is_some_and(InPlaceGraph::is_masked);
            self.steps.retain(|(_, _, _, rows), _| *rows == 0);
            heeds = self.all_in_place && gives(self, 1);
        }
        self.forget();
        self.smallest = SMALLEST_CACHE;
        Ok(heeds)
    }

    /// The logits of the last of `tokens` after the first `len`, which the cache has; all other rows are `unseen`.
    fn after(
        &mut self,
        session: &Session,
        io: &DecoderIo,
        tokens: &[u32],
        len: usize,
        unseen: u8,
    ) -> Result<Vec<f32>, GenerateError> {
        for (tensor, memory) in self.tensors.iter().zip(&self.memory) {
            let kept = CacheMemory::new(session, tensor, 1, len.max(1))?;
            let first = |memory| Rows { memory, sequence: 0, at: 0 };
            first(memory).copy_to(&first(&kept), tensor, len)?;
            finish([memory])?;
            memory.fill(tensor, 1, unseen)?;
            first(&kept).copy_to(&first(memory), tensor, len)?;
            finish([memory])?;
        }
        let (sequences, positions) = (0..1, self.capacity);
        self.all(&Call {
            session,
            io,
            options: None,
            sequences,
            tokens: &tokens[len..],
            all_lens: &[len],
            from: tokens.len() - len - 1,
            ahead: 0,
            positions,
            asked: &[],
        })
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

    /// Gives the cache rows for sequences of `lens` tokens before a run of one, and keeps those tokens.
    pub(super) fn reserve(&mut self, session: &Session, lens: &[usize]) -> Result<(), GenerateError> {
        self.reserve_for(session, lens, usize::from(!self.is_in_place()))
    }

    /// As [`PaddedRuns::reserve`], before a run that appends `size`.
    fn reserve_for(&mut self, session: &Session, lens: &[usize], size: usize) -> Result<(), GenerateError> {
        let longest = lens.iter().copied().max().unwrap_or(0);
        let spare = usize::from(self.is_in_place());
        let rows = rows_for(longest.max(1), [spare, size], (self.smallest, self.capacity));
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
        step.fill(call, size, rows, self.in_place.as_ref())?;
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
        if self.writes_in_place(size) {
            let mut ends = call.all_lens.to_vec();
            ends[call.sequences.clone()].iter_mut().for_each(|len| *len += size - 1);
            self.reserve(call.session, &ends)?;
        } else {
            self.reserve_for(call.session, call.all_lens, size)?;
        }
        Ok(self.rows)
    }

    /// Copies what a run appended to where it belongs.
    fn keep(&mut self, call: &Call<'_>, step: &Step, rows: usize, taken: usize) -> Result<(), GenerateError> {
        let Some(present) = &step.present else { return Ok(()) };
        let mut lens = call.all_lens.to_vec();
        call.sequences.clone().for_each(|sequence| lens[sequence] += taken);
        self.reserve(call.session, &lens)?;
        for ((tensor, present), memory) in self.tensors.iter().zip(present).zip(&self.memory) {
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
        let in_place = rows > 0 && self.writes_in_place(size);
        match self.steps.entry((sequences.start, sequences.len(), size, rows)) {
            Entry::Occupied(step) => Ok(step.into_mut()),
            Entry::Vacant(place) => {
                let count = sequences.len();
                if let Some(graph) = self.in_place.as_ref().filter(|_| in_place) {
                    let session = graph.session();
                    let builder = inputs(session, call.io, count, size, rows, true)?;
                    let cache = self.tensors.iter().zip(&self.memory);
                    let builder = graph.bind(builder, sequences.clone(), cache)?;
                    let (logits, builder) = Logits::bind(session, call.io, builder)?;
                    let binding = InPlaceGraph::build(builder, &self.tensors)?;
                    return Ok(place.insert(Step { binding, logits, present: None }));
                }
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
                Ok(place.insert(Step { binding: builder.build()?, logits, present: Some(all) }))
            }
        }
    }
}

impl Step {
    /// Writes the inputs of a run of `size` tokens after a cache of `rows`.
    fn fill(
        &mut self,
        call: &Call<'_>,
        size: usize,
        rows: usize,
        in_place: Option<&InPlaceGraph>,
    ) -> Result<(), GenerateError> {
        call.write_tokens(&mut self.binding, size)?;
        call.ask(&mut self.binding, &self.logits, size)?;
        let Some(mask) = &call.io.mask else { return Ok(()) };
        if let Some(graph) = in_place.filter(|_| self.present.is_none()) {
            graph.write(&mut self.binding, call.lens())?;
            let shown = |len: &usize| (0..rows).map(|at| i64::from(at < len + size)).collect::<Vec<_>>();
            let values: Vec<i64> = call.lens().iter().flat_map(shown).collect();
            return mask.write(&mut self.binding, call.sequences.len(), 0, &values, || values.clone());
        }
        let (total, real) = (rows + size, call.real(size));
        let shown =
            |len: usize| (0..total).map(move |at| i64::from(at < len || (rows..rows + real).contains(&at)));
        let values: Vec<i64> = call.lens().iter().flat_map(|len| shown(*len)).collect();
        mask.write(&mut self.binding, call.sequences.len(), 0, &values, || values.clone())
    }
}
