//! One run of a decoder: what goes in, what comes out, and how many tokens it takes.

use std::ops::Range;

use super::error::GenerateError;
use super::io::DecoderIo;
use super::logits::Logits;
use super::scan::{Request, Row};
use crate::session::{Binding, RunOptions, Session};

/// Fewer tokens of a prompt than this are filled up to it.
const SMALLEST_CHUNK: usize = 8;

/// What is to be run: tokens of one sequence, or one token of each of several.
#[derive(Clone, Debug)]
pub(super) struct Call<'a> {
    pub(super) session: &'a Session,
    pub(super) io: &'a DecoderIo,
    pub(super) options: Option<&'a RunOptions>,
    pub(super) sequences: Range<usize>,
    pub(super) tokens: &'a [u32],
    /// Tokens in the cache of every sequence there is.
    pub(super) all_lens: &'a [usize],
    /// The first token of which the logits are wanted.
    pub(super) from: usize,
    /// Tokens of the same prompt that come after these.
    pub(super) ahead: usize,
    /// Positions that the model has.
    pub(super) positions: usize,
    /// What is asked of the last logits of every sequence; all are wanted where nothing is.
    pub(super) asked: &'a [Option<Request>],
}

/// Tokens that are to be added to a sequence.
#[derive(Clone, Copy, Debug)]
pub(super) struct Part<'a> {
    pub(super) sequence: usize,
    pub(super) tokens: &'a [u32],
    /// The first token of which the logits are wanted.
    pub(super) from: usize,
    /// Tokens of the same prompt that come after these.
    pub(super) ahead: usize,
}

impl Part<'_> {
    /// The tokens of which the logits are wanted.
    pub(super) fn wanted(&self) -> Range<usize> {
        self.from.min(self.tokens.len())..self.tokens.len()
    }
}

/// Cuts `parts` into runs of at most `most` tokens, which is not 0. Each piece of a part has the place of
/// that part.
pub(super) fn packed<'a>(parts: &[Part<'a>], most: usize) -> Vec<Vec<(usize, Part<'a>)>> {
    let (mut runs, mut run, mut room) = (Vec::new(), Vec::new(), most);
    for (at, part) in parts.iter().enumerate() {
        let mut done = 0;
        while done < part.tokens.len() {
            if room == 0 {
                runs.push(std::mem::take(&mut run));
                room = most;
            }
            let count = room.min(part.tokens.len() - done);
            let tokens = &part.tokens[done..done + count];
            let from = part.from.saturating_sub(done).min(count);
            run.push((at, Part { sequence: part.sequence, tokens, from, ahead: 0 }));
            (done, room) = (done + count, room - count);
        }
    }
    runs.push(run);
    runs.retain(|run| !run.is_empty());
    runs
}

/// What a run did.
#[derive(Debug)]
pub(super) struct Ran {
    /// Tokens of each sequence that were taken.
    pub(super) taken: usize,
    /// The wanted logits of the tokens that were taken, or those of each sequence.
    pub(super) rows: Vec<Row>,
}

impl Call<'_> {
    /// Tokens in the cache of each sequence that is run.
    pub(super) fn lens(&self) -> &[usize] {
        self.all_lens.get(self.sequences.clone()).unwrap_or_default()
    }

    /// Tokens of each sequence in a run of `size`, which may be filled up.
    pub(super) fn real(&self, size: usize) -> usize {
        if self.sequences.len() == 1 { size.min(self.tokens.len()) } else { 1 }
    }

    /// Writes tokens and positions of a run of `size`, filled up with zeros.
    pub(super) fn write_tokens(
        &self,
        binding: &mut Binding<'static>,
        size: usize,
    ) -> Result<(), GenerateError> {
        let (io, count) = (self.io, self.sequences.len());
        let taken = if count == 1 { self.real(size) } else { count };
        let mut values: Vec<i64> = self.tokens[..taken].iter().map(|t| i64::from(*t)).collect();
        values.resize(count * size, 0);
        io.ids.write(binding, count, 0, &values, || values.clone())?;
        if let Some(places) = &io.cache_positions {
            let first = self.lens().first().copied().unwrap_or(0);
            let values: Vec<i64> = (first..first + size).map(|place| place as i64).collect();
            places.write_all(binding, &[size], &values)?;
        }
        if let Some(len) = &io.past_len {
            let first = self.lens().first().copied().unwrap_or(0);
            len.write_all(binding, &[1], &[first as i64])?;
        }
        let Some(positions) = &io.positions else { return Ok(()) };
        let last = self.positions.saturating_sub(1);
        let values = self.lens().iter().flat_map(|len| (*len..len + size).map(|p| p.min(last) as i64));
        let values: Vec<i64> = values.collect();
        positions.write(binding, count, 0, &values, || values.clone())
    }

    pub(super) fn run(&self, binding: &mut Binding<'static>) -> Result<(), GenerateError> {
        match self.options {
            Some(options) => binding.run_with(options)?,
            None => binding.run()?,
        }
        Ok(())
    }

    /// What a run of `size` tokens gave.
    pub(super) fn ran(
        &self,
        size: usize,
        logits: &Logits,
        binding: &Binding<'static>,
    ) -> Result<Ran, GenerateError> {
        let taken = self.real(size);
        if logits.rows() < size && self.from + 1 < taken {
            let what =
                "the graph gives logits of the last token alone, and guesses need those of each".to_owned();
            return Err(GenerateError::Unsupported(what));
        }
        let mut found = match &self.io.scan {
            Some(scan) if self.is_asked(size) => scan.read(binding, &self.requests(logits, size))?,
            _ => Vec::new(),
        };
        let mut row = |sequence: usize, row| match found.get_mut(sequence).and_then(Option::take) {
            Some(found) => Ok(Row::Found(found)),
            None => Ok(Row::Logits(logits.row(self.session, self.io, binding, sequence, row)?)),
        };
        let rows = match self.sequences.len() {
            1 => (self.from.min(taken)..taken).map(|at| row(0, at)).collect::<Result<_, GenerateError>>()?,
            count => (0..count).map(|sequence| row(sequence, 0)).collect::<Result<_, GenerateError>>()?,
        };
        Ok(Ran { taken, rows })
    }

    /// Writes what is asked of the logits of a run of `size` tokens.
    pub(super) fn ask(
        &self,
        binding: &mut Binding<'static>,
        logits: &Logits,
        size: usize,
    ) -> Result<(), GenerateError> {
        match &self.io.scan {
            Some(scan) => scan.write(binding, &self.requests(logits, size)),
            None => Ok(()),
        }
    }

    fn is_asked(&self, size: usize) -> bool {
        let asked = self.asked.get(self.sequences.clone()).unwrap_or_default();
        // One row of each sequence at most.
        asked.iter().any(Option::is_some) && (self.sequences.len() > 1 || self.from + 1 == self.real(size))
    }

    /// What is asked of each sequence of a run of `size`, and the line that its logits are in.
    fn requests(&self, logits: &Logits, size: usize) -> Vec<Option<(usize, &Request)>> {
        let is_asked = self.is_asked(size);
        let row = if self.sequences.len() == 1 { self.real(size) - 1 } else { 0 };
        let of = |(at, sequence): (usize, usize)| {
            let request = self.asked.get(sequence)?.as_ref().filter(|_| is_asked)?;
            Some((logits.line(at, row), request))
        };
        self.sequences.clone().enumerate().map(of).collect()
    }
}

/// Tokens of the next run: a power of two. `rest` tokens are left, the cache has `room`; a last run that `fills_up` may
/// be larger than what is left.
pub(super) fn chunk_size(rest: usize, room: usize, largest: usize, fills_up: bool) -> usize {
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

    #[test]
    fn no_run_has_more_tokens_than_its_logits_may_have() {
        let tokens: Vec<u32> = (0..40).collect();
        let part =
            |sequence, range: Range<usize>, from| Part { sequence, tokens: &tokens[range], from, ahead: 0 };
        let parts = [part(3, 0..1, 0), part(0, 1..20, 18), part(1, 20..24, 4), part(2, 24..40, 0)];
        let runs = packed(&parts, 8);
        let (mut again, mut wanted) = (vec![Vec::new(); 4], vec![Vec::new(); 4]);
        for run in &runs {
            assert!(run.iter().map(|(_, part)| part.tokens.len()).sum::<usize>() <= 8);
            let distinct: std::collections::BTreeSet<_> = run.iter().map(|(at, _)| at).collect();
            assert_eq!(distinct.len(), run.len());
            for (at, part) in run {
                assert_eq!(part.sequence, parts[*at].sequence);
                again[*at].extend(part.tokens);
                wanted[*at].extend(&part.tokens[part.from..]);
            }
        }
        assert_eq!(runs.len(), 5);
        for (i, part) in parts.iter().enumerate() {
            assert_eq!((&again[i][..], &wanted[i][..]), (part.tokens, &part.tokens[part.from..]));
        }
        assert!(packed(&[], 8).is_empty());
    }
}
