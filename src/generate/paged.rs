//! Runs with a cache in pages: tokens of several sequences, without padding between them.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::ops::Range;
use std::sync::Arc;

use super::cache::CacheMemory;
use super::call::Part;
use super::error::GenerateError;
use super::few_rows::FewRows;
use super::io::DecoderIo;
use super::logits::Logits;
use super::page_plan::{inputs, plan_one};
use super::pages::PagedSequence;
use super::pool::{PageMemory, PagePool};
use super::scan::{Request, Row};
use crate::plan::PlannedIo;
use crate::session::{Binding, RunOptions, Session};

/// Bound runs that are kept, each with memory for its logits.
const KEPT_STEPS: usize = 16;

/// Rows are written to pages of a pool.
#[derive(Debug)]
pub(super) struct PagedRuns {
    pool: PagePool,
    /// Whether it was made for these runs, which may make it larger.
    is_own: bool,
    sequences: Vec<PagedSequence>,
    /// The most pages of a sequence.
    most: usize,
    largest_chunk: usize,
    /// The graph for runs of which few logits are wanted.
    few: Option<Arc<FewRows>>,
    /// Whether the graph has pages by a change alone.
    is_changed: bool,
    /// Bound runs by their sizes, the memory that they are bound to, and how many there were.
    steps: BTreeMap<Sizes, Step>,
    bound: Arc<PageMemory>,
    clock: u64,
}

/// Tokens and sequences of a run, powers of two, and tokens whose logits it gives where those are not all.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Sizes {
    tokens: usize,
    sequences: usize,
    wanted: Option<usize>,
}

#[derive(Debug)]
struct Step {
    binding: Binding<'static>,
    logits: Logits,
    /// Larger is later.
    last_used: u64,
}

impl PagedRuns {
    /// Runs for sequences of `capacity` tokens; what is planned of the logits of one token too.
    pub(super) fn new(
        session: &Session,
        io: &DecoderIo,
        (pool, is_own): (PagePool, bool),
        capacity: usize,
    ) -> Result<(Self, PlannedIo), GenerateError> {
        let most = capacity.div_ceil(pool.page_tokens());
        let plan = plan_one(session, io, pool.tensors(), pool.pages(), pool.page_tokens())?;
        let logits = plan.outputs.iter().find(|planned| planned.name == io.logits).cloned();
        let logits = logits.ok_or_else(|| {
            GenerateError::Unsupported(format!("the size of {:?} is known only in the run", io.logits))
        })?;
        let sequences = vec![pool.table().begin(&[], false).0];
        let (steps, bound) = (BTreeMap::new(), pool.memory());
        let (few, is_changed) = (None, false);
        let runs = PagedRuns {
            pool,
            is_own,
            sequences,
            most,
            largest_chunk: 1,
            few,
            is_changed,
            steps,
            bound,
            clock: 0,
        };
        Ok((runs, logits))
    }

    /// With the graph for runs of which few logits are wanted, and whether the graph has pages by a change alone.
    pub(super) fn set_few(&mut self, few: Option<FewRows>, is_changed: bool) {
        (self.few, self.is_changed) = (few.map(Arc::new), is_changed);
    }

    pub(super) fn is_changed(&self) -> bool {
        self.is_changed
    }

    /// Plans of the graph for runs of which few logits are wanted.
    pub(super) fn plans_made(&self) -> u64 {
        self.few.as_ref().map_or(0, |few| few.session.plans_made())
    }

    pub(super) fn limit_chunk(&mut self, largest: usize) {
        self.largest_chunk = largest.max(1);
    }

    pub(super) fn pool(&self) -> &PagePool {
        &self.pool
    }

    /// The most tokens of a run.
    pub(super) fn largest_chunk(&self) -> usize {
        self.largest_chunk
    }

    /// Makes room for `sequences`, all of which are empty then.
    pub(super) fn resize(&mut self, session: &Session, sequences: usize) -> Result<(), GenerateError> {
        self.forget();
        if self.is_own {
            self.pool.grow(session, sequences.saturating_mul(self.most))?;
        }
        let mut table = self.pool.table();
        self.sequences.resize_with(sequences, || table.begin(&[], false).0);
        Ok(())
    }

    /// Empties all sequences.
    pub(super) fn forget(&mut self) {
        let mut table = self.pool.table();
        for sequence in &self.sequences {
            table.truncate(*sequence, 0);
        }
    }

    /// Begins a sequence anew where pages have more than `kept` of its `wanted` tokens; gives their number.
    pub(super) fn begin(&mut self, sequence: usize, wanted: &[u32], kept: usize) -> Option<usize> {
        let mut table = self.pool.table();
        let (new, len) = table.begin(wanted, true);
        if len <= kept {
            table.end(new);
            return None;
        }
        table.end(std::mem::replace(&mut self.sequences[sequence], new));
        Some(len)
    }

    /// Makes a sequence begin with the pages of another.
    pub(super) fn fork(&mut self, from: usize, to: usize) {
        let mut table = self.pool.table();
        let new = table.fork(self.sequences[from]);
        table.end(std::mem::replace(&mut self.sequences[to], new));
    }

    pub(super) fn truncate(&mut self, sequence: usize, len: usize) {
        self.pool.table().truncate(self.sequences[sequence], len);
    }

    /// Makes room for `more` tokens of a sequence.
    pub(super) fn make_room(&self, sequence: usize, more: usize) -> Result<(), GenerateError> {
        self.pool.reserve(self.sequences[sequence], more)
    }

    /// Notes that a sequence has `tokens` after its own.
    pub(super) fn append(&mut self, sequence: usize, tokens: &[u32]) {
        self.pool.table().append(self.sequences[sequence], tokens);
    }

    /// The memory of each tensor, and where in it the first `count` tokens of a sequence lie.
    pub(super) fn places(&self, sequence: usize, count: usize) -> Vec<(CacheMemory, Vec<Range<usize>>)> {
        self.pool.places(self.sequences[sequence], count)
    }

    /// Runs the tokens of all `parts` at once, of sequences with `lens` tokens; gives the wanted logits of each.
    pub(super) fn run(
        &mut self,
        session: &Session,
        io: &DecoderIo,
        lens: &[usize],
        parts: &[Part<'_>],
        (options, asked): (Option<&RunOptions>, &[Option<Request>]),
    ) -> Result<Vec<Vec<Row>>, GenerateError> {
        for part in parts {
            self.make_room(part.sequence, part.tokens.len())?;
        }
        let (sizes, lines) = self.sizes(parts);
        let few = self.few.clone().filter(|_| sizes.wanted.is_some());
        let (session, io) = few.as_ref().map_or((session, io), |few| (&few.session, &few.io));
        let (pool, most) = (self.pool.clone(), self.most);
        let _turn = pool.turn();
        let pages: Vec<Vec<u32>> = {
            let table = pool.table();
            parts.iter().map(|part| table.pages(self.sequences[part.sequence]).to_vec()).collect()
        };
        let step = self.step(session, io, sizes)?;
        step.fill(io, lens, (parts, &pages), sizes, most)?;
        let requests = requests(parts, &lines, asked, sizes.sequences);
        if let Some(scan) = &io.scan {
            scan.write(&mut step.binding, &requests)?;
        }
        match options {
            Some(options) => step.binding.run_with(options)?,
            None => step.binding.run()?,
        }
        let mut found = match &io.scan {
            Some(scan) if requests.iter().any(Option::is_some) => scan.read(&step.binding, &requests)?,
            _ => Vec::new(),
        };
        let mut all = Vec::new();
        for (i, lines) in lines.iter().enumerate() {
            let mut row = |line: usize| match found.get_mut(i).and_then(Option::take) {
                Some(found) => Ok(Row::Found(found)),
                None => Ok(Row::Logits(step.logits.row(session, io, &step.binding, 0, line)?)),
            };
            all.push(lines.clone().map(&mut row).collect::<Result<Vec<_>, GenerateError>>()?);
        }
        parts.iter().for_each(|part| self.append(part.sequence, part.tokens));
        Ok(all)
    }

    /// The sizes of a run, and the lines of the wanted logits of each part.
    fn sizes(&self, parts: &[Part<'_>]) -> (Sizes, Vec<Range<usize>>) {
        let tokens: usize = parts.iter().map(|part| part.tokens.len()).sum();
        let (tokens, sequences) = (tokens.next_power_of_two(), parts.len().next_power_of_two());
        let count = wanted(parts).count();
        // A row for each sequence, so that runs with and without the end of a prompt have one plan.
        let rows = if count <= sequences { sequences } else { count.next_power_of_two() };
        let wanted = Some(rows).filter(|rows| self.few.is_some() && rows * 2 <= tokens);
        let mut first = 0;
        let lines = parts.iter().map(|part| {
            let (own, len) = (part.wanted(), part.tokens.len());
            let (start, len) = if wanted.is_some() { (first, own.len()) } else { (first + own.start, len) };
            first += len;
            start..start + own.len()
        });
        let lines = lines.collect();
        (Sizes { tokens, sequences, wanted }, lines)
    }

    /// The bound run of so many tokens and sequences.
    fn step(&mut self, session: &Session, io: &DecoderIo, sizes: Sizes) -> Result<&mut Step, GenerateError> {
        let memory = self.pool.memory();
        if !Arc::ptr_eq(&memory, &self.bound) {
            self.steps.clear();
            self.bound = memory;
        }
        if self.steps.len() >= KEPT_STEPS && !self.steps.contains_key(&sizes) {
            let oldest = self.steps.iter().min_by_key(|(_, step)| step.last_used).map(|(key, _)| *key);
            if let Some(key) = oldest {
                self.steps.remove(&key);
            }
        }
        self.clock += 1;
        match self.steps.entry(sizes) {
            Entry::Occupied(step) => {
                let step = step.into_mut();
                step.last_used = self.clock;
                Ok(step)
            }
            Entry::Vacant(place) => {
                let Sizes { tokens, sequences, wanted } = sizes;
                let rows = wanted.unwrap_or(tokens);
                let mut builder = inputs(session, io, [tokens, sequences, self.most], rows)?;
                for (tensor, memory) in self.pool.bind(&self.bound)? {
                    builder = builder.update(&tensor.past, &tensor.present, memory);
                }
                let (logits, builder) = Logits::bind(session, io, builder)?;
                if logits.rows() != rows {
                    let what = "a graph with pages that does not give the logits of each token".to_owned();
                    return Err(GenerateError::Unsupported(what));
                }
                Ok(place.insert(Step { binding: builder.build()?, logits, last_used: self.clock }))
            }
        }
    }
}

/// The tokens of a run whose logits are wanted.
fn wanted(parts: &[Part<'_>]) -> impl Iterator<Item = usize> {
    let mut first = 0;
    parts.iter().flat_map(move |part| {
        let start = first;
        first += part.tokens.len();
        part.wanted().map(move |at| start + at)
    })
}

/// What is asked of each of the sequences of a run, of which the last ones may have no part, and the line of its logits.
fn requests<'r>(
    parts: &[Part<'_>],
    lines: &[Range<usize>],
    asked: &'r [Option<Request>],
    sequences: usize,
) -> Vec<Option<(usize, &'r Request)>> {
    let own = |(part, lines): (&Part<'_>, &Range<usize>)| {
        let request = asked.get(part.sequence).and_then(Option::as_ref);
        // One row of each sequence at most.
        request.filter(|_| lines.len() == 1).map(|request| (lines.start, request))
    };
    let mut requests: Vec<_> = parts.iter().zip(lines).map(own).collect();
    requests.resize(sequences, None);
    requests
}

impl Step {
    /// Writes the inputs of a run, filled up with tokens that belong to no sequence and with sequences of no token.
    fn fill(
        &mut self,
        io: &DecoderIo,
        lens: &[usize],
        (parts, pages): (&[Part<'_>], &[Vec<u32>]),
        Sizes { tokens, sequences, wanted: rows }: Sizes,
        most: usize,
    ) -> Result<(), GenerateError> {
        let Some(places) = &io.pages else { return Ok(()) };
        let mut ids: Vec<i64> = parts.iter().flat_map(|part| part.tokens).map(|t| i64::from(*t)).collect();
        ids.resize(tokens, 0);
        io.ids.write_all(&mut self.binding, &[tokens], &ids)?;
        if let Some(positions) = &io.positions {
            let own = |part: &Part<'_>| (lens[part.sequence]..).take(part.tokens.len()).map(|p| p as i64);
            let mut all: Vec<i64> = parts.iter().flat_map(own).collect();
            all.resize(tokens, 0);
            positions.write_all(&mut self.binding, &[tokens], &all)?;
        }
        let mut ends = vec![0];
        for part in parts {
            ends.push(ends.last().copied().unwrap_or(0) + part.tokens.len() as i64);
        }
        if let (Some(input), Some(rows)) = (&places.wanted, rows) {
            let mut all: Vec<i64> = wanted(parts).map(|token| token as i64).collect();
            all.resize(rows, 0);
            input.write_all(&mut self.binding, &[rows], &all)?;
        }
        ends.resize(sequences + 1, ends.last().copied().unwrap_or(0));
        places.ends.write_all(&mut self.binding, &[sequences + 1], &ends)?;
        let mut past: Vec<i64> = parts.iter().map(|part| lens[part.sequence] as i64).collect();
        past.resize(sequences, 0);
        places.past.write_all(&mut self.binding, &[sequences], &past)?;
        let mut table = vec![-1; sequences * most];
        for (row, pages) in table.chunks_mut(most.max(1)).zip(pages) {
            row.iter_mut().zip(pages).for_each(|(place, page)| *place = i64::from(*page));
        }
        places.table.write_all(&mut self.binding, &[sequences, most], &table)
    }
}

impl Drop for PagedRuns {
    fn drop(&mut self) {
        let mut table = self.pool.table();
        self.sequences.iter().for_each(|sequence| table.end(*sequence));
    }
}
