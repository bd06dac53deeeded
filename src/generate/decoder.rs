//! Runs of a decoder: token numbers in, logits out, keys and values kept between.

use std::ops::Range;

use super::cache::{CacheMemory, CacheTensor, KeyValueCache};
use super::cache_graph::in_cache_type;
use super::call::{Call, Part, Ran, packed};
use super::cross::{CrossRuns, Encoded, Maker};
use super::error::GenerateError;
use super::few_rows::FewRows;
use super::fixed::{FixedPlan, FixedRuns};
use super::growing::GrowingRuns;
use super::io::DecoderIo;
use super::long::{Lengths, LongRuns};
use super::narrow_caches::{narrowed, narrowed_all};
use super::padded::{PaddedPlan, PaddedRuns};
use super::paged::PagedRuns;
use super::paged_graph::in_pages;
use super::pool::PagePool;
use super::scan::{Request, Row, SampleOn};
use super::settings::Config;
use crate::plan::PlannedIo;
use crate::session::{RunOptions, Session};

/// The most tokens of one run.
const LARGEST_CHUNK: usize = 512;

/// Bytes that the logits of one run may have.
const MAX_LOGITS_BYTES: usize = 512 << 20;

/// Tokens of a cache where nothing else is asked for, if the model takes so many.
const DEFAULT_CONTEXT: usize = 4096;

/// A decoder with the caches of its sequences.
#[derive(Debug)]
pub(super) struct Decoder {
    session: Session,
    io: DecoderIo,
    runs: Runs,
    /// Tokens that the cache of a sequence has room for.
    capacity: usize,
    /// Tokens in the cache of each sequence.
    lens: Vec<usize>,
    /// What is asked of the next logits of each sequence.
    asked: Vec<Option<Request>>,
}

/// How the cache grows.
#[derive(Debug)]
enum Runs {
    Fixed(FixedRuns),
    Padded(Box<PaddedRuns>),
    Growing(GrowingRuns),
    Long(Box<LongRuns>),
    Paged(PagedRuns),
}

/// How the cache grows, for who is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Growth {
    /// Rows are written where they belong.
    InPlace,
    /// As [`Growth::InPlace`], for one sequence in a run.
    InPlaceAlone,
    /// Each run copies the cache from one memory to another.
    Copied,
    /// Each run copies the cache, and one plan serves many lengths.
    Padded,
    /// As [`Growth::Padded`], for one sequence in a run.
    PaddedAlone,
    /// Each length has a plan of its own.
    Planned,
    /// Rows are written to pages that a table names.
    Pages,
}

impl Decoder {
    /// Makes `session`, which has the graph that `config` is about, ready for a cache of `context` tokens.
    pub(super) fn new(
        session: Session,
        config: &Config,
        context: Option<usize>,
        sample_on: SampleOn,
    ) -> Result<Self, GenerateError> {
        let capacity = capacity_of(config, context)?;
        let session = narrowed(&session, config).unwrap_or(session);
        let session = in_cache_type(&session, config)?.unwrap_or(session);
        let (mut io, tensors) = DecoderIo::find(&session, config)?;
        let session = io.scanned(session, sample_on)?;
        // Where a cache with more rows than tokens makes no plan, what the last form says is the error.
        let fixed = FixedPlan::new(&session, &io, &tensors, capacity).ok().flatten();
        let padded = match fixed {
            None => PaddedPlan::new(&session, &io, &tensors, capacity).ok().flatten(),
            Some(_) => None,
        };
        let growing = match (&fixed, &padded) {
            (None, None) => Some(GrowingRuns::new(&session, &io, tensors.clone())?),
            _ => None,
        };
        let plans = [
            fixed.as_ref().map(|f| &f.plan),
            padded.as_ref().map(|p| &p.plan),
            growing.as_ref().map(|g| &g.1),
        ];
        let outputs = plans.into_iter().flatten().flat_map(|plan| &plan.outputs);
        let Some(planned) = outputs.into_iter().find(|o| o.name == io.logits).cloned() else {
            let what = format!("the size of {:?} is known only in the run", io.logits);
            return Err(GenerateError::Unsupported(what));
        };
        io.vocabulary = vocabulary_of(&planned)?;
        let largest = largest_chunk(planned.info.bytes());
        let runs = Runs::new(
            &session,
            &io,
            tensors,
            (fixed, padded, growing.map(|g| g.0)),
            (capacity, config.window),
            largest,
        )?;
        Ok(Decoder { session, io, runs, capacity, lens: vec![0], asked: vec![None] })
    }

    /// As [`Decoder::new`] for a graph that reads an encoder; `first` has the decoder without past, where the other one has
    /// no branch for it, and `made` are the encoder's outputs that are keys and values, where it gives any.
    pub(super) fn crossed(
        session: Session,
        first: Option<Session>,
        config: &Config,
        context: Option<usize>,
        made: Option<&[String]>,
    ) -> Result<Self, GenerateError> {
        let capacity = capacity_of(config, context)?;
        let sessions: Vec<&Session> = std::iter::once(&session).chain(&first).collect();
        let mut narrow =
            narrowed_all(&sessions, config, config.cache_names().chain(config.cross_names())).into_iter();
        let session = narrow.next().flatten().unwrap_or(session);
        let first = first.map(|first| narrow.next().flatten().unwrap_or(first));
        let (mut io, tensors) = DecoderIo::find(&session, config)?;
        let first = match first {
            Some(first) => {
                let io = DecoderIo::find_first(&first, config)?;
                Some((first, io))
            }
            None => None,
        };
        let (mut runs, plan) = GrowingRuns::crossed(&session, &io, first, tensors, made)?;
        let Some(planned) = plan.outputs.iter().find(|o| o.name == io.logits) else {
            let what = format!("the size of {:?} is known only in the run", io.logits);
            return Err(GenerateError::Unsupported(what));
        };
        io.vocabulary = vocabulary_of(planned)?;
        if let Some(first) = runs.cross_mut().and_then(CrossRuns::first_io_mut) {
            first.vocabulary = io.vocabulary;
        }
        runs.limit_chunk(largest_chunk(planned.info.bytes()));
        let runs = Runs::of_lengths(Lengths::new(&session, &io, runs, (capacity, None)));
        Ok(Decoder { session, io, runs, capacity, lens: vec![0], asked: vec![None] })
    }

    /// What is read of an encoder.
    fn cross(&self) -> Option<&CrossRuns> {
        match &self.runs {
            Runs::Growing(runs) => runs.cross(),
            Runs::Long(runs) => runs.cross(),
            Runs::Fixed(_) | Runs::Padded(_) | Runs::Paged(_) => None,
        }
    }

    /// Whether an encoder's output is read itself.
    pub(super) fn reads_hidden(&self) -> bool {
        self.cross().is_some_and(|cross| cross.reads_hidden(&self.io))
    }

    /// Keys and values that an encoder is to give.
    pub(super) fn given(&self) -> &[CacheTensor] {
        let given = self.cross().filter(|cross| cross.maker() == Maker::Encoder);
        given.map_or(&[], CrossRuns::tensors)
    }

    /// Whether rows of an encoder's output may be hidden, so that they change no logit. All caches are empty then.
    pub(super) fn hides_rows(&mut self) -> bool {
        let plain = match &mut self.runs {
            Runs::Growing(runs) => runs,
            Runs::Long(runs) => runs.plain_mut(),
            Runs::Fixed(_) | Runs::Padded(_) | Runs::Paged(_) => return false,
        };
        // What fails here fails in a run too, which says why.
        let hides = LongRuns::heeds_mask(plain, &self.session, &self.io, self.capacity).unwrap_or(false);
        self.forget();
        hides
    }

    /// Plans made so far.
    pub(super) fn plans_made(&self) -> u64 {
        let others = match &self.runs {
            Runs::Long(runs) => runs.plans_made(),
            Runs::Growing(runs) => runs.cross().map_or(0, CrossRuns::plans_made),
            Runs::Paged(runs) => runs.plans_made(),
            Runs::Padded(runs) => runs.plans_made(),
            Runs::Fixed(_) => 0,
        };
        self.session.plans_made() + others
    }

    /// Begins a text of a sequence, which is empty, with what an encoder gave for it.
    pub(super) fn begin(&mut self, sequence: usize, encoded: Encoded) -> Result<(), GenerateError> {
        match &mut self.runs {
            Runs::Growing(runs) => match runs.cross_mut() {
                Some(cross) => cross.begin(sequence, encoded),
                None => Ok(()),
            },
            Runs::Long(runs) => runs.begin(sequence, encoded),
            Runs::Fixed(_) | Runs::Padded(_) | Runs::Paged(_) => Ok(()),
        }
    }

    /// As [`Decoder::new`] with a cache in the pages of `pool`: a graph that has none is changed.
    pub(super) fn paged(
        session: Session,
        config: &Config,
        context: Option<usize>,
        (pool, is_own): (PagePool, bool),
        sample_on: SampleOn,
    ) -> Result<Self, GenerateError> {
        let capacity = context.unwrap_or(config.max_length.min(DEFAULT_CONTEXT));
        if !(2..=config.context).contains(&capacity) {
            return Err(GenerateError::Context { asked: capacity, context: config.context });
        }
        let changed = in_pages(&session, config)?;
        let is_changed = changed.is_some();
        let session = changed.unwrap_or(session);
        let (mut io, _) = DecoderIo::find(&session, config)?;
        let few = FewRows::new(&session, &io, config, (is_changed, sample_on))?;
        let session = io.scanned(session, sample_on)?;
        if is_own {
            pool.grow(&session, capacity.div_ceil(pool.page_tokens()))?;
        }
        let (mut runs, planned) = PagedRuns::new(&session, &io, (pool, is_own), capacity)?;
        let &[1, vocabulary] = planned.info.shape.dims() else {
            let (name, got) = (planned.name, planned.info.shape.to_string());
            return Err(GenerateError::Shape { name, expected: "[tokens, vocabulary]", got });
        };
        io.vocabulary = vocabulary;
        runs.limit_chunk(largest_chunk(planned.info.bytes()));
        runs.set_few(few.map(|few| few.of(vocabulary)), is_changed);
        Ok(Decoder { session, io, runs: Runs::Paged(runs), capacity, lens: vec![0], asked: vec![None] })
    }

    /// Tokens that the cache of a sequence has room for.
    pub(super) fn capacity(&self) -> usize {
        self.capacity
    }

    /// Number of logits of a token.
    pub(super) fn vocabulary(&self) -> usize {
        self.io.vocabulary
    }

    /// Tokens in the cache of a sequence.
    pub(super) fn len(&self, sequence: usize) -> usize {
        self.lens[sequence]
    }

    pub(super) fn session(&self) -> &Session {
        &self.session
    }

    pub(super) fn growth(&self) -> Growth {
        match &self.runs {
            Runs::Fixed(runs) if runs.cache().is_in_place() => Growth::InPlace,
            Runs::Fixed(_) => Growth::Copied,
            Runs::Padded(runs) if runs.is_in_place() => Growth::InPlace,
            Runs::Padded(_) => Growth::Padded,
            Runs::Growing(_) => Growth::Planned,
            Runs::Long(runs) if runs.is_in_place() => Growth::InPlaceAlone,
            Runs::Long(_) => Growth::PaddedAlone,
            Runs::Paged(_) => Growth::Pages,
        }
    }

    /// Whether sequences of any lengths may share a run.
    fn shares_runs(&self) -> bool {
        if let Runs::Fixed(runs) = &self.runs { runs.shares_runs() } else { true }
    }

    /// The cache, where it has a fixed length.
    pub(super) fn cache(&self) -> Option<&KeyValueCache> {
        match &self.runs {
            Runs::Fixed(runs) => Some(runs.cache()),
            Runs::Padded(_) | Runs::Growing(_) | Runs::Long(_) | Runs::Paged(_) => None,
        }
    }

    /// The pages, where the cache is in pages.
    pub(super) fn pool(&self) -> Option<&PagePool> {
        if let Runs::Paged(runs) = &self.runs { Some(runs.pool()) } else { None }
    }

    /// Whether the graph has its cache in pages by a change alone.
    pub(super) fn is_changed_to_pages(&self) -> bool {
        if let Runs::Paged(runs) = &self.runs { runs.is_changed() } else { false }
    }

    /// Begins a sequence anew with the tokens of `wanted` that pages have, which are more than `kept` of its own, or keeps
    /// those; gives their number.
    pub(super) fn share(
        &mut self,
        sequence: usize,
        wanted: &[u32],
        kept: usize,
    ) -> Result<usize, GenerateError> {
        if let Runs::Paged(runs) = &mut self.runs
            && let Some(len) = runs.begin(sequence, wanted, kept)
        {
            self.lens[sequence] = len;
            return Ok(len);
        }
        self.truncate(sequence, kept)?;
        Ok(kept)
    }

    /// Makes a sequence begin with the tokens of another, on the same pages; says whether the cache has pages.
    pub(super) fn fork(&mut self, from: usize, to: usize) -> bool {
        let Runs::Paged(runs) = &mut self.runs else { return false };
        runs.fork(from, to);
        self.lens[to] = self.lens[from];
        true
    }

    /// Makes room for `more` tokens of a sequence.
    pub(super) fn make_room(&mut self, sequence: usize, more: usize) -> Result<(), GenerateError> {
        if let Runs::Paged(runs) = &mut self.runs { runs.make_room(sequence, more) } else { Ok(()) }
    }

    /// Makes room for at least so many sequences. Where there were fewer, all caches are empty then.
    pub(super) fn reserve(&mut self, sequences: usize) -> Result<(), GenerateError> {
        if sequences <= self.lens.len() {
            return Ok(());
        }
        self.forget();
        match &mut self.runs {
            Runs::Fixed(runs) => runs.resize(&self.session, sequences)?,
            Runs::Padded(runs) => runs.resize(sequences),
            Runs::Growing(runs) => runs.resize(sequences),
            Runs::Long(runs) => runs.resize(sequences),
            Runs::Paged(runs) => runs.resize(&self.session, sequences)?,
        }
        self.lens = vec![0; sequences];
        self.asked = vec![None; sequences];
        Ok(())
    }

    /// Keeps the first `len` tokens of a sequence, of those that it has.
    pub(super) fn truncate(&mut self, sequence: usize, len: usize) -> Result<(), GenerateError> {
        let len = len.min(self.lens[sequence]);
        if let Runs::Growing(runs) = &mut self.runs
            && len < self.lens[sequence]
        {
            runs.reserve(&self.session, sequence, len)?;
        }
        if let Runs::Paged(runs) = &mut self.runs {
            runs.truncate(sequence, len);
        }
        self.lens[sequence] = len;
        Ok(())
    }

    /// Forgets all tokens of all sequences, after an error.
    pub(super) fn forget(&mut self) {
        self.lens.fill(0);
        self.asked.fill(None);
        match &mut self.runs {
            Runs::Fixed(_) => {}
            Runs::Padded(runs) => runs.forget(),
            Runs::Growing(runs) => runs.resize(self.lens.len()),
            Runs::Long(runs) => runs.resize(self.lens.len()),
            Runs::Paged(runs) => runs.forget(),
        }
    }

    /// The tensors of the cache.
    pub(super) fn tensors(&self) -> &[CacheTensor] {
        match &self.runs {
            Runs::Fixed(runs) => runs.cache().tensors(),
            Runs::Padded(runs) => runs.tensors(),
            Runs::Growing(runs) => runs.tensors(),
            Runs::Long(runs) => runs.tensors(),
            Runs::Paged(runs) => runs.pool().tensors(),
        }
    }

    /// The memory of each tensor, and where in it the first `count` tokens of a sequence lie.
    fn places(&self, sequence: usize, count: usize) -> Vec<(CacheMemory, Vec<Range<usize>>)> {
        let (memory, at) = match &self.runs {
            Runs::Fixed(runs) => (runs.cache().memory(sequence), sequence),
            Runs::Padded(runs) => (runs.memory(), sequence),
            Runs::Growing(runs) => (runs.memory(sequence), 0),
            Runs::Long(runs) => (runs.memory(sequence), 0),
            Runs::Paged(runs) => return runs.places(sequence, count),
        };
        let places = self.tensors().iter().zip(memory);
        places.map(|(tensor, memory)| (memory.clone(), memory.rows_of(tensor, at, count))).collect()
    }

    /// Appends the keys and values of the first `count` tokens of a sequence to `bytes`.
    pub(super) fn read(
        &self,
        sequence: usize,
        count: usize,
        bytes: &mut Vec<u8>,
    ) -> Result<(), GenerateError> {
        let _turn = self.pool().map(PagePool::turn);
        for (memory, parts) in self.places(sequence, count) {
            bytes.extend(memory.read(&parts)?);
        }
        Ok(())
    }

    /// Makes a sequence have `tokens`, whose keys and values [`Decoder::read`] gave.
    pub(super) fn refill(
        &mut self,
        sequence: usize,
        tokens: &[u32],
        mut bytes: &[u8],
    ) -> Result<(), GenerateError> {
        self.truncate(sequence, 0)?;
        let mut lens = self.lens.clone();
        lens[sequence] = tokens.len();
        match &mut self.runs {
            Runs::Fixed(_) => {}
            Runs::Padded(runs) => runs.reserve(&self.session, &lens)?,
            Runs::Growing(runs) => runs.reserve(&self.session, sequence, tokens.len())?,
            Runs::Long(runs) => runs.reserve(&self.session, sequence, tokens.len(), 0)?,
            Runs::Paged(runs) => runs.make_room(sequence, tokens.len())?,
        }
        let turn = self.pool().map(PagePool::turn);
        for (tensor, (memory, parts)) in self.tensors().iter().zip(self.places(sequence, tokens.len())) {
            let (own, others) = bytes.split_at(tensor.bytes(tokens.len()));
            memory.write(&parts, own)?;
            bytes = others;
        }
        drop(turn);
        if let Runs::Paged(runs) = &mut self.runs {
            runs.append(sequence, tokens);
        }
        self.lens = lens;
        Ok(())
    }

    /// Binds what the next `tokens` of a sequence need, where that is known.
    pub(super) fn prepare(&mut self, sequence: usize, tokens: usize) -> Result<(), GenerateError> {
        match &mut self.runs {
            Runs::Fixed(runs) => runs.prepare(&self.session, &self.io, sequence, self.lens[sequence], tokens),
            Runs::Padded(_) | Runs::Growing(_) | Runs::Long(_) | Runs::Paged(_) => Ok(()),
        }
    }

    /// Asks for the tokens that may come next in place of the next logits of a sequence; all are given where the device
    /// cannot tell.
    pub(super) fn ask(&mut self, sequence: usize, request: Option<Request>) {
        self.asked[sequence] = request.filter(|_| self.io.scan.is_some());
    }

    /// Whether a device tells the tokens that may come next.
    pub(super) fn finds_tokens(&self) -> bool {
        self.io.scan.is_some()
    }

    /// Adds `tokens`, for which there is room, to the cache of a sequence; gives the logits of those from `from` on. After
    /// an error the cache has the tokens of the runs before it, whole.
    pub(super) fn forward(
        &mut self,
        sequence: usize,
        tokens: &[u32],
        from: usize,
        options: Option<&RunOptions>,
    ) -> Result<Vec<Row>, GenerateError> {
        self.forward_part(&Part { sequence, tokens, from, ahead: 0 }, options)
    }

    /// As [`Decoder::forward`], of a part.
    fn forward_part(
        &mut self,
        part: &Part<'_>,
        options: Option<&RunOptions>,
    ) -> Result<Vec<Row>, GenerateError> {
        let &Part { sequence, tokens, from, ahead } = part;
        self.check(tokens)?;
        let (mut rest, mut from, mut rows) = (tokens, from, Vec::new());
        while !rest.is_empty() {
            let ran = self.run(sequence..sequence + 1, rest, (from, ahead), options)?;
            self.lens[sequence] += ran.taken;
            rest = &rest[ran.taken..];
            from = from.saturating_sub(ran.taken);
            rows.extend(ran.rows);
        }
        Ok(rows)
    }

    /// Adds one token to each of the first sequences, in one run where the graph allows it; gives the logits of each. Where
    /// there is none the sequence stays as it is, and its logits are of no use.
    pub(super) fn step(
        &mut self,
        tokens: &[Option<u32>],
        options: Option<&RunOptions>,
    ) -> Result<Vec<Row>, GenerateError> {
        let given: Vec<u32> = tokens.iter().map(|token| token.unwrap_or(0)).collect();
        self.check(&given)?;
        if matches!(self.runs, Runs::Paged(_)) {
            let parts: Vec<Part<'_>> = (0..tokens.len())
                .filter(|at| tokens[*at].is_some())
                .map(|at| Part { sequence: at, tokens: &given[at..=at], from: 0, ahead: 0 })
                .collect();
            let mut all = vec![Row::Logits(Vec::new()); tokens.len()];
            for (part, rows) in parts.iter().zip(self.run_parts(&parts, options)?) {
                if let Some(row) = rows.into_iter().next() {
                    all[part.sequence] = row;
                }
            }
            return Ok(all);
        }
        let one_run = match self.growth() {
            Growth::InPlace | Growth::Padded => tokens.len() > 1 && self.shares_runs(),
            Growth::InPlaceAlone | Growth::Copied | Growth::PaddedAlone | Growth::Planned | Growth::Pages => {
                false
            }
        };
        let mut all = Vec::new();
        if one_run {
            // What a sequence without a token writes is after its tokens, or its last one.
            for (len, token) in self.lens.iter_mut().zip(tokens) {
                *len = if token.is_none() { (*len).min(self.capacity - 1) } else { *len };
            }
            all = self.run(0..tokens.len(), &given, (0, 0), options)?.rows;
        }
        for (sequence, token) in tokens.iter().enumerate() {
            match token {
                Some(_) if one_run => self.lens[sequence] += 1,
                Some(token) => all.extend(self.forward(sequence, &[*token], 0, options)?),
                None if one_run => {}
                None => all.push(Row::Logits(Vec::new())),
            }
        }
        Ok(all)
    }

    /// Adds tokens to several sequences, those of a cache in pages in as few runs as their logits allow;
    /// others run a chunk of each, and one run of those that have one token. Gives the wanted logits of each.
    /// After an error the sequences have the tokens of the runs before it.
    pub(super) fn run_parts(
        &mut self,
        parts: &[Part<'_>],
        options: Option<&RunOptions>,
    ) -> Result<Vec<Vec<Row>>, GenerateError> {
        for part in parts {
            self.check(part.tokens)?;
        }
        let mut all = vec![Vec::new(); parts.len()];
        if let Runs::Paged(runs) = &mut self.runs {
            for run in packed(parts, runs.largest_chunk()) {
                let (places, pieces): (Vec<usize>, Vec<Part<'_>>) = run.into_iter().unzip();
                let logits =
                    runs.run(&self.session, &self.io, &self.lens, &pieces, (options, &self.asked))?;
                pieces.iter().for_each(|piece| self.lens[piece.sequence] += piece.tokens.len());
                places.into_iter().zip(logits).for_each(|(at, rows)| all[at].extend(rows));
            }
            return Ok(all);
        }
        let mut single = vec![None; self.lens.len()];
        for (part, rows) in parts.iter().zip(&mut all) {
            match part.tokens {
                [token] if part.ahead == 0 => single[part.sequence] = Some(*token),
                _ => *rows = self.forward_part(part, options)?,
            }
        }
        if single.iter().any(Option::is_some) {
            let mut logits = self.step(&single, options)?;
            let is_wanted = |part: &Part<'_>| part.tokens.len() == 1 && part.from == 0 && part.ahead == 0;
            for (part, rows) in parts.iter().zip(&mut all).filter(|(part, _)| is_wanted(part)) {
                rows.push(std::mem::replace(&mut logits[part.sequence], Row::Logits(Vec::new())));
            }
        }
        Ok(all)
    }

    pub(super) fn check(&self, tokens: &[u32]) -> Result<(), GenerateError> {
        let vocabulary = self.io.vocabulary;
        match tokens.iter().find(|t| **t as usize >= vocabulary) {
            Some(&token) => Err(GenerateError::UnknownToken { token, vocabulary }),
            None => Ok(()),
        }
    }

    fn run(
        &mut self,
        sequences: Range<usize>,
        tokens: &[u32],
        (from, ahead): (usize, usize),
        options: Option<&RunOptions>,
    ) -> Result<Ran, GenerateError> {
        let (session, io, all_lens, positions) = (&self.session, &self.io, &self.lens[..], self.capacity);
        let asked = &self.asked[..];
        let call = Call { session, io, options, sequences, tokens, all_lens, from, ahead, positions, asked };
        match &mut self.runs {
            Runs::Fixed(runs) => runs.run(&call),
            Runs::Padded(runs) => runs.run(&call),
            Runs::Growing(runs) => runs.run(&call),
            Runs::Long(runs) => runs.run(&call),
            Runs::Paged(runs) => {
                let (sequence, size) = (call.sequences.start, call.tokens.len().min(runs.largest_chunk()));
                let part = Part { sequence, tokens: &call.tokens[..size], from: call.from, ahead: 0 };
                let rows = runs.run(call.session, call.io, all_lens, &[part], (options, asked))?;
                Ok(Ran { taken: size, rows: rows.into_iter().flatten().collect() })
            }
        }
    }
}

/// Tokens that a cache of `context` tokens has room for, of a length that the model takes.
fn capacity_of(config: &Config, context: Option<usize>) -> Result<usize, GenerateError> {
    let capacity = context.unwrap_or(config.max_length.min(DEFAULT_CONTEXT));
    if !(2..=config.context).contains(&capacity) {
        return Err(GenerateError::Context { asked: capacity, context: config.context });
    }
    Ok(capacity)
}

/// The number of logits of a token, of the planned logits of one.
fn vocabulary_of(planned: &PlannedIo) -> Result<usize, GenerateError> {
    let (name, info) = (planned.name.clone(), &planned.info);
    let [1, 1, vocabulary] = info.shape[..] else {
        let got = info.shape.to_string();
        return Err(GenerateError::Shape { name, expected: "[batch, tokens, vocabulary]", got });
    };
    if !info.dtype.is_float() {
        return Err(GenerateError::DType { name, expected: "floating point numbers", got: info.dtype });
    }
    Ok(vocabulary)
}

/// The most tokens of a run, where the logits of one have so many bytes.
fn largest_chunk(logits_bytes: usize) -> usize {
    let mut largest = LARGEST_CHUNK;
    while largest > 1 && largest.saturating_mul(logits_bytes) > MAX_LOGITS_BYTES {
        largest /= 2;
    }
    largest
}

impl Runs {
    fn of_lengths(lengths: Lengths) -> Self {
        match lengths {
            Lengths::Long(runs) => Runs::Long(runs),
            Lengths::Each(runs) => Runs::Growing(runs),
        }
    }

    fn new(
        session: &Session,
        io: &DecoderIo,
        tensors: Vec<CacheTensor>,
        planned: (Option<FixedPlan>, Option<PaddedPlan>, Option<GrowingRuns>),
        (capacity, window): (usize, Option<usize>),
        largest: usize,
    ) -> Result<Self, GenerateError> {
        let (fixed, padded, growing) = planned;
        if let Some(plan) = fixed {
            return Ok(Runs::Fixed(FixedRuns::new(session, io, plan, capacity, largest)?));
        }
        if let Some(plan) = padded {
            let mut runs = PaddedRuns::new(session, io, plan, capacity, largest);
            // A graph that cannot run so may run in the other form, which tells what is wrong with it.
            if runs.heeds_mask(session, io, window).unwrap_or(false) {
                return Ok(Runs::Padded(Box::new(runs)));
            }
        }
        let mut growing = match growing {
            Some(growing) => growing,
            None => GrowingRuns::new(session, io, tensors)?.0,
        };
        growing.limit_chunk(largest);
        Ok(Runs::of_lengths(Lengths::new(session, io, growing, (capacity, window))))
    }
}
