//! Runs of decoders that compute of the length of their cache, with a cache that has more rows than tokens: one plan serves all
//! lengths up to a power of two. The graph is changed for it ([`MaskedGraph`]); whether it computes the same then is measured
//! once. Decoders that read an encoder run so, and others that do not heed their mask.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

use super::cache::{CacheMemory, CacheTensor, Rows, finish};
use super::call::{Call, Ran};
use super::cross::{CrossRuns, Encoded, Maker};
use super::error::GenerateError;
use super::fixed::inputs;
use super::growing::GrowingRuns;
use super::in_place_graph::InPlaceGraph;
use super::input::floats;
use super::io::DecoderIo;
use super::logits::{Logits, near};
use super::masked_graph::MaskedGraph;
use super::padded::{SMALLEST_CACHE, UNSEEN, rows_beyond, rows_for};
use super::scan::Row;
use crate::session::{Binding, Session, SessionError};

/// The fewest tokens of a cache for which plans are saved.
const SMALLEST_CAPACITY: usize = 4;

/// Tokens after others that are run at once, and not one by one.
const FEWEST_AT_ONCE: usize = 16;

/// Rows of an encoder's output with rows that are hidden, for a measurement.
const FILLED_ROWS: usize = 16;

/// A run of one token after those in the cache is of the changed graph, the first run of a text is not.
#[derive(Debug)]
pub(super) struct LongRuns {
    /// The first runs, and what is read of an encoder.
    plain: GrowingRuns,
    graph: MaskedGraph,
    /// Tokens that a sequence may have.
    capacity: usize,
    /// Rows of the smallest cache.
    smallest: usize,
    /// The cache of each sequence, once there is a token in it.
    memory: Vec<Option<Vec<CacheMemory>>>,
    /// Bound runs by sequence.
    steps: BTreeMap<usize, Step>,
}

/// A run of one token, bound to the caches of a text.
#[derive(Debug)]
struct Step {
    binding: Binding<'static>,
    logits: Logits,
    present: Vec<CacheMemory>,
    /// Rows of the decoder's own cache.
    rows: usize,
}

/// How the runs of a decoder go on.
#[derive(Debug)]
pub(super) enum Lengths {
    /// One plan for several lengths.
    Long(Box<LongRuns>),
    /// One plan for each length.
    Each(GrowingRuns),
}

impl Lengths {
    /// Changes the graph of `plain` so that one plan serves several lengths, where that computes the same. A graph whose
    /// tokens see the last `window` rows alone may take them from the end of the cache, which shows where it has more.
    pub(super) fn new(
        session: &Session,
        io: &DecoderIo,
        mut plain: GrowingRuns,
        (capacity, window): (usize, Option<usize>),
    ) -> Self {
        if capacity < SMALLEST_CAPACITY {
            return Lengths::Each(plain);
        }
        // A graph that cannot be changed runs as it is, which a remark says.
        let Ok(Some(graph)) = MaskedGraph::new(session, io, plain.tensors(), capacity) else {
            return Lengths::Each(plain);
        };
        let Ok(wanted) = Measured::new(session, io, &mut plain, capacity) else {
            plain.resize(1);
            return Lengths::Each(plain);
        };
        let smallest = rows_beyond(window, capacity);
        let (memory, steps) = (vec![None], BTreeMap::new());
        let mut long = LongRuns { plain, graph, capacity, smallest, memory, steps };
        let gives = |long: &mut LongRuns, first| {
            let gives = |unseen| long.gives(session, io, &wanted, (first, unseen)).unwrap_or(false);
            UNSEEN.into_iter().all(gives)
        };
        let mut is_exact = gives(&mut long, 1);
        if !is_exact && long.is_in_place() {
            long.graph.append();
            is_exact = gives(&mut long, 1);
        }
        let fills_up = gives(&mut long, 2);
        long.resize(1);
        long.smallest = SMALLEST_CACHE;
        long.plain.fill_up(is_exact && fills_up);
        if is_exact { Lengths::Long(Box::new(long)) } else { Lengths::Each(long.plain) }
    }
}

/// What the graph as it is gives for a few tokens.
struct Measured {
    encoded: Option<Encoded>,
    tokens: [u32; 3],
    /// The logits of each token after the first one.
    logits: Vec<Vec<f32>>,
}

impl Measured {
    fn new(
        session: &Session,
        io: &DecoderIo,
        plain: &mut GrowingRuns,
        capacity: usize,
    ) -> Result<Self, GenerateError> {
        let last = io.vocabulary.saturating_sub(1) as u32;
        let tokens = [last.min(1), last.min(2), last.min(3)];
        let encoded = match plain.cross().map(CrossRuns::some_rows) {
            Some(rows) => Some(sample(plain, session, io, rows, rows)?),
            None => None,
        };
        begin(plain, encoded.as_ref())?;
        let mut logits = Vec::new();
        for at in 0..tokens.len() {
            logits.extend(plain.run(&call(session, io, &tokens[at..=at], &[at], capacity))?.rows);
        }
        plain.resize(1);
        let logits = logits.split_off(1).into_iter().map(Row::into_logits).collect();
        Ok(Measured { encoded, tokens, logits })
    }
}

/// A call for `tokens` after those of `lens`, whose last logits are wanted.
fn call<'c>(
    session: &'c Session,
    io: &'c DecoderIo,
    tokens: &'c [u32],
    all_lens: &'c [usize],
    positions: usize,
) -> Call<'c> {
    let from = tokens.len() - 1;
    Call {
        session,
        io,
        options: None,
        sequences: 0..1,
        tokens,
        all_lens,
        from,
        ahead: 0,
        positions,
        asked: &[],
    }
}

/// What stands for an encoder's output, with keys and values where it is the encoder that gives them.
fn sample(
    plain: &mut GrowingRuns,
    session: &Session,
    io: &DecoderIo,
    rows: usize,
    real: usize,
) -> Result<Encoded, GenerateError> {
    let Some(cross) = plain.cross_mut() else {
        return Err(GenerateError::Unsupported("a decoder that reads no encoder".to_owned()));
    };
    let mut encoded = cross.sample(io, rows, real)?;
    if cross.maker() == Maker::Encoder {
        let kept = cross.tensors().iter().map(|tensor| sample_rows(session, tensor, rows, real));
        encoded.kept = Some(kept.collect::<Result<_, _>>()?);
    }
    Ok(encoded)
}

/// Keys or values of `rows`, of which the first `real` ones are small numbers.
fn sample_rows(
    session: &Session,
    tensor: &CacheTensor,
    rows: usize,
    real: usize,
) -> Result<CacheMemory, GenerateError> {
    let memory = CacheMemory::new(session, tensor, 1, rows)?;
    memory.fill(tensor, 1, UNSEEN[0])?;
    let own = tensor.sized(1, real)?;
    let numbers = floats(&own, |at| ((at * 29 + 7) % 97) as f32 / 48.0 - 1.0)?;
    memory.write(&memory.rows_of(tensor, 0, real), numbers.bytes())?;
    Ok(memory)
}

fn begin(plain: &mut GrowingRuns, encoded: Option<&Encoded>) -> Result<(), GenerateError> {
    plain.resize(1);
    match plain.cross_mut().zip(encoded) {
        Some((cross, encoded)) => cross.begin(0, encoded.clone()),
        None => Ok(()),
    }
}

impl LongRuns {
    /// Whether the changed graph gives what was measured, where rows that are hidden are `unseen`. The `first` tokens come
    /// at once; where they are several the run is filled up.
    fn gives(
        &mut self,
        session: &Session,
        io: &DecoderIo,
        wanted: &Measured,
        (first, unseen): (usize, u8),
    ) -> Result<bool, GenerateError> {
        let (tokens, capacity) = (&wanted.tokens, self.capacity);
        let is_near = |at: usize, ran: Ran| {
            let row = ran.rows.into_iter().next_back();
            row.is_some_and(|row| near(&wanted.logits[at - 1], &row.into_logits()))
        };
        begin(&mut self.plain, wanted.encoded.as_ref())?;
        self.plain.fill_up(first > 1);
        let ran = self.first(&call(session, io, &tokens[..first], &[0], capacity))?;
        if ran.taken != first || (first > 1 && !is_near(first - 1, ran)) {
            return Ok(false);
        }
        self.spoil(first, unseen)?;
        for at in first..tokens.len() {
            let ran = self.run(&call(session, io, &tokens[at..=at], &[at], capacity))?;
            if !is_near(at, ran) {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Makes the rows after the first `len` `unseen`.
    fn spoil(&mut self, len: usize, unseen: u8) -> Result<(), GenerateError> {
        for (tensor, memory) in self.plain.tensors().iter().zip(self.memory[0].iter().flatten()) {
            let places = memory.rows_of(tensor, 0, len);
            let own = memory.read(&places)?;
            memory.fill(tensor, 1, unseen)?;
            memory.write(&places, &own)?;
        }
        Ok(())
    }

    /// Whether the decoder heeds its mask for the encoder's output: rows that it hides change no logit.
    pub(super) fn heeds_mask(
        plain: &mut GrowingRuns,
        session: &Session,
        io: &DecoderIo,
        capacity: usize,
    ) -> Result<bool, GenerateError> {
        let Some(cross) = plain.cross().filter(|cross| cross.may_hide()) else { return Ok(false) };
        let (real, last) = (cross.some_rows(), io.vocabulary.saturating_sub(1) as u32);
        let tokens = [last.min(1), last.min(2)];
        let mut all = Vec::new();
        for rows in [real, FILLED_ROWS] {
            let encoded = sample(plain, session, io, rows, real)?;
            begin(plain, Some(&encoded))?;
            let mut logits = Vec::new();
            for at in 0..tokens.len() {
                let ran = plain.run(&call(session, io, &tokens[at..=at], &[at], capacity))?;
                logits.extend(ran.rows.into_iter().flat_map(Row::into_logits));
            }
            all.push(logits);
        }
        plain.resize(1);
        Ok(near(&all[0], &all[1]))
    }

    /// Whether runs write their row among those of the cache.
    pub(super) fn is_in_place(&self) -> bool {
        self.graph.in_place().is_some()
    }

    pub(super) fn plain_mut(&mut self) -> &mut GrowingRuns {
        &mut self.plain
    }

    /// What is read of an encoder.
    pub(super) fn cross(&self) -> Option<&CrossRuns> {
        self.plain.cross()
    }

    /// Plans of the changed graph, and of the decoder without past.
    pub(super) fn plans_made(&self) -> u64 {
        self.graph.session().plans_made() + self.cross().map_or(0, CrossRuns::plans_made)
    }

    pub(super) fn tensors(&self) -> &[CacheTensor] {
        self.plain.tensors()
    }

    /// The cache of a sequence, once there is a token in it.
    pub(super) fn memory(&self, sequence: usize) -> &[CacheMemory] {
        self.memory[sequence].as_deref().unwrap_or_default()
    }

    /// Makes room for `sequences`; their caches are empty then.
    pub(super) fn resize(&mut self, sequences: usize) {
        self.plain.resize(sequences);
        self.memory = vec![None; sequences];
        self.steps.clear();
    }

    /// Begins a text of a sequence, which is empty, with what an encoder gave for it.
    pub(super) fn begin(&mut self, sequence: usize, encoded: Encoded) -> Result<(), GenerateError> {
        self.steps.remove(&sequence);
        self.memory[sequence] = None;
        match self.plain.cross_mut() {
            Some(cross) => cross.begin(sequence, encoded),
            None => Ok(()),
        }
    }

    /// Gives the cache of a sequence rows for `len` tokens before a run, and keeps the first `kept` ones.
    pub(super) fn reserve(
        &mut self,
        session: &Session,
        sequence: usize,
        len: usize,
        kept: usize,
    ) -> Result<(), GenerateError> {
        let in_place = usize::from(self.is_in_place());
        let rows = rows_for(len.max(1), [in_place, 1 - in_place], (self.smallest, self.capacity));
        if self.memory(sequence).first().is_some_and(|memory| memory.rows == rows) {
            return Ok(());
        }
        let new = self.tensors().iter().map(|tensor| CacheMemory::new(session, tensor, 1, rows));
        let new = new.collect::<Result<Vec<_>, _>>()?;
        for ((tensor, old), new) in self.tensors().iter().zip(self.memory(sequence)).zip(&new) {
            let of = |memory| Rows { memory, sequence: 0, at: 0 };
            of(old).copy_to(&of(new), tensor, kept.min(old.rows))?;
        }
        finish(&new)?;
        self.memory[sequence] = Some(new);
        self.steps.remove(&sequence);
        Ok(())
    }

    /// Runs the first tokens of a call, which is of one sequence.
    pub(super) fn run(&mut self, call: &Call<'_>) -> Result<Ran, GenerateError> {
        let (sequence, len) = (call.sequences.start, call.lens()[0]);
        if len == 0 {
            return self.first(call);
        }
        // The changed graph has one token. A run of several makes a plan of its own.
        if call.tokens.len() >= FEWEST_AT_ONCE && self.cross().is_none() {
            return self.several(call);
        }
        self.reserve(call.session, sequence, len, len)?;
        let all = self.memory(sequence).first().map_or(0, |memory| memory.rows);
        let rows = if self.is_in_place() { all.saturating_sub(1) } else { all };
        let encoded = self.cross().map_or(Ok(0), |cross| cross.encoded(sequence).map(|e| e.rows))?;
        self.step(call, sequence, rows)?;
        // Not there while it runs: a cache with more rows may be needed for what it appends.
        let Some(mut step) = self.steps.remove(&sequence) else { return Err(SessionError::NotRun.into()) };
        call.write_tokens(&mut step.binding, 1)?;
        call.ask(&mut step.binding, &step.logits, 1)?;
        let own = if self.is_in_place() { len } else { rows };
        if let Some(mask) = &call.io.mask {
            let values: Vec<i64> = (0..=rows).map(|at| i64::from(at < len || at == own)).collect();
            mask.write(&mut step.binding, 1, 0, &values, || values.clone())?;
        }
        if let Some(graph) = self.graph.in_place() {
            graph.write(&mut step.binding, &[len])?;
        }
        self.graph.write(&mut step.binding, len, rows, encoded)?;
        call.run(&mut step.binding)?;
        let ran = call.ran(1, &step.logits, &step.binding)?;
        if self.is_in_place() {
            self.steps.insert(sequence, step);
            return Ok(ran);
        }
        self.reserve(call.session, sequence, len + 1, len)?;
        for ((tensor, present), memory) in
            self.plain.tensors().iter().zip(&step.present).zip(self.memory(sequence))
        {
            let from = Rows { memory: present, sequence: 0, at: rows };
            from.copy_to(&Rows { memory, sequence: 0, at: len }, tensor, 1)?;
        }
        finish(self.memory(sequence))?;
        if self.memory(sequence).first().is_some_and(|memory| memory.rows == step.rows) {
            self.steps.insert(sequence, step);
        }
        Ok(ran)
    }

    /// Runs the first tokens of a text.
    fn first(&mut self, call: &Call<'_>) -> Result<Ran, GenerateError> {
        let ran = self.plain.run(call)?;
        self.memory[call.sequences.start] = None;
        self.keep(call, ran)
    }

    /// Runs several tokens after those in the cache by the graph as it is.
    fn several(&mut self, call: &Call<'_>) -> Result<Ran, GenerateError> {
        let (sequence, len) = (call.sequences.start, call.lens()[0]);
        let kept = self.memory(sequence).to_vec();
        self.plain.put(call.session, sequence, len, &kept)?;
        let ran = self.plain.run(call);
        if ran.is_err() {
            // The cache stays as it was.
            self.plain.take(sequence);
        }
        self.keep(call, ran?)
    }

    /// Takes the cache after a run of the graph as it is.
    fn keep(&mut self, call: &Call<'_>, ran: Ran) -> Result<Ran, GenerateError> {
        let (sequence, len) = (call.sequences.start, call.lens()[0] + ran.taken);
        self.reserve(call.session, sequence, len, 0)?;
        let made = self.plain.take(sequence);
        for ((tensor, made), memory) in self.plain.tensors().iter().zip(&made).zip(self.memory(sequence)) {
            let of = |memory| Rows { memory, sequence: 0, at: 0 };
            of(made).copy_to(&of(memory), tensor, len)?;
        }
        finish(self.memory(sequence))?;
        Ok(ran)
    }

    /// Binds a run of one token to the caches of a sequence, where that is not done.
    fn step(&mut self, call: &Call<'_>, sequence: usize, rows: usize) -> Result<(), GenerateError> {
        let memory = self.memory[sequence].as_deref().unwrap_or_default();
        let Entry::Vacant(place) = self.steps.entry(sequence) else { return Ok(()) };
        let (session, io) = (self.graph.session(), call.io);
        let mut builder = inputs(session, io, 1, 1, rows + 1, true)?;
        let mut present = Vec::new();
        let cache = self.plain.tensors().iter().zip(memory);
        match self.graph.in_place() {
            Some(graph) => builder = graph.bind(builder, 0..1, cache)?,
            None => {
                for (tensor, memory) in cache {
                    let new = CacheMemory::new(session, tensor, 1, rows + 1)?;
                    builder = builder.input(&tensor.past, memory.part(tensor, &(0..1))?);
                    builder = builder.output(&tensor.present, new.part(tensor, &(0..1))?);
                    present.push(new);
                }
            }
        }
        if let Some(cross) = self.plain.cross() {
            builder = cross.bind_kept(io, builder, cross.encoded(sequence)?)?;
        }
        builder = self.graph.bind(builder, rows)?;
        let (logits, builder) = Logits::bind(session, io, builder)?;
        let binding = match self.graph.in_place() {
            Some(_) => InPlaceGraph::build(builder, self.plain.tensors())?,
            None => builder.build()?,
        };
        place.insert(Step { binding, logits, present, rows });
        Ok(())
    }
}
