//! What a token is chosen from: the largest logits of a line, and the sum of the weights of all.

pub(crate) mod logits;
#[cfg(test)]
mod tests;

use half::f16;

use self::logits::{NotANumber, at_least, bound_of, most_likely, penalized, sum_of_weights};
use crate::dtype::DType;
use crate::graph::TensorInfo;
use crate::kernel::codes::token as layout;
use crate::kernel::table::{params, variants};
use crate::kernel::{KernelError, NativeArgs, NativeKernel, grid_1d};
use crate::ops::halves::Half;
use crate::ops::word::word;
use crate::ops::{Cost, Lowering, OpCx, OpError, Operand, Operator};
use crate::shape::Shape;

// Positions of the arguments.
const LOGITS: usize = 0;
const SETTINGS: usize = 1;
const MARKS: usize = 2;
const RESULTS: usize = 3;

/// The most candidates that may be asked for by their number.
pub(crate) const MOST_COUNT: usize = 512;

/// Inputs: logits [.., vocabulary] of `float32` or `float16`, settings [sequences, 8] of `uint32` ([`Wanted::words`]), and
/// marks [sequences, 2, vocabulary / 32] of `uint32`: a bit for each token that was seen, and for each that is allowed.
/// Words [sequences, n] that [`Found::read`] reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TokenCandidates;

/// What is wanted of a line of logits.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Wanted {
    /// The line.
    pub(crate) line: usize,
    /// Divides logits; above 0.
    pub(crate) temperature: f32,
    /// Divides the positive logits of tokens that are marked as seen, and multiplies the negative ones.
    pub(crate) penalty: f32,
    /// Whether tokens that are not marked as allowed are impossible.
    pub(crate) is_held: bool,
    /// Which logits are wanted besides the largest one.
    pub(crate) candidates: Candidates,
}

/// Which tokens are wanted.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Candidates {
    /// None.
    None,
    /// At least so many of the largest, at most [`MOST_COUNT`].
    Largest(usize),
    /// Those at most so far below the largest.
    Within(f32),
}

impl Wanted {
    /// A row of settings.
    pub(crate) fn words(&self) -> [u32; layout::SETTINGS] {
        let (count, distance) = match self.candidates {
            Candidates::None => (0, -1.0f32),
            Candidates::Largest(count) => (count as u32, 0.0),
            Candidates::Within(distance) => (0, distance),
        };
        let is_penalized = self.penalty != 1.0;
        let mut words = [0; layout::SETTINGS];
        words[layout::AT_LINE] = self.line as u32;
        words[layout::AT_FLAGS] =
            u32::from(is_penalized) * layout::IS_PENALIZED + u32::from(self.is_held) * layout::IS_HELD;
        words[layout::AT_TEMPERATURE] = self.temperature.to_bits();
        words[layout::AT_PENALTY] = self.penalty.to_bits();
        words[layout::AT_RECIPROCAL] = self.penalty.recip().to_bits();
        words[layout::AT_COUNT] = count;
        words[layout::AT_DISTANCE] = distance.to_bits();
        words
    }

    /// A row that wants nothing.
    pub(crate) fn nothing() -> [u32; layout::SETTINGS] {
        let mut words = [0; layout::SETTINGS];
        words[layout::AT_LINE] = layout::NO_LINE;
        words
    }

    fn read(words: &[u32]) -> Option<Wanted> {
        let at = |place: usize| words.get(place).copied();
        let float = |place: usize| at(place).map(f32::from_bits);
        let (count, distance) = (at(layout::AT_COUNT)? as usize, float(layout::AT_DISTANCE)?);
        let candidates = match count {
            0 if distance >= 0.0 => Candidates::Within(distance),
            0 => Candidates::None,
            count => Candidates::Largest(count),
        };
        let flags = at(layout::AT_FLAGS)?;
        let penalty = if flags & layout::IS_PENALIZED == 0 { 1.0 } else { float(layout::AT_PENALTY)? };
        Some(Wanted {
            line: at(layout::AT_LINE).filter(|line| *line != layout::NO_LINE)? as usize,
            temperature: float(layout::AT_TEMPERATURE)?,
            penalty,
            is_held: flags & layout::IS_HELD != 0,
            candidates,
        })
    }
}

/// What was found in a line of logits, as settings and marks changed them.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Found {
    /// The first of the largest logits, unless one is NaN.
    pub(crate) most: Result<(u32, f32), NotANumber>,
    /// The sum of `exp((logit - most) / temperature)` over all.
    pub(crate) sum: f64,
    /// The tokens that were wanted with their logits, in any order, and perhaps some less likely ones.
    pub(crate) candidates: Vec<(u32, f32)>,
    /// Whether there was room for all.
    pub(crate) is_whole: bool,
}

impl Found {
    /// Words of a row for so many logits.
    pub(crate) fn words(vocabulary: usize) -> usize {
        layout::HEAD + 2 * layout::CANDIDATES + parts(vocabulary) * layout::PART_WORDS
    }

    /// Reads a row for `vocabulary` logits, of which `temperature` was wanted; nothing where it is too short.
    pub(crate) fn read(words: &[u32], vocabulary: usize, temperature: f32) -> Option<Found> {
        let (head, rest) = words.split_at_checked(layout::HEAD)?;
        let (parts, rest) = rest.split_at_checked(parts(vocabulary) * layout::PART_WORDS)?;
        let (tokens, values) = rest.split_at_checked(layout::CANDIDATES)?;
        let parts = parts.as_chunks::<{ layout::PART_WORDS }>().0;
        let (mut most, mut is_nan) = (None::<(u32, f32)>, false);
        for [value, token, _, odd] in parts {
            let value = f32::from_bits(*value);
            is_nan |= *odd != 0;
            if most.is_none_or(|(_, before)| value > before) {
                most = Some((*token, value));
            }
        }
        let most = most?;
        let share = |[value, _, sum, _]: &[u32; layout::PART_WORDS]| {
            let below = f64::from(f32::from_bits(*value)) - f64::from(most.1);
            let scale = if below == 0.0 { 1.0 } else { (below / f64::from(temperature)).exp() };
            f64::from(f32::from_bits(*sum)) * scale
        };
        let sum = parts.iter().filter(|part| f32::from_bits(part[0]) > f32::NEG_INFINITY).map(share).sum();
        let count = head[0] as usize;
        let found = tokens.iter().zip(values).take(count);
        let candidates = found.map(|(token, value)| (*token, f32::from_bits(*value))).collect();
        let most = if is_nan { Err(NotANumber) } else { Ok(most) };
        Some(Found { most, sum, candidates, is_whole: count <= tokens.len() })
    }
}

/// Parts of a line.
fn parts(vocabulary: usize) -> usize {
    vocabulary.div_ceil(layout::PART)
}

/// Words of a row of marks.
pub(crate) fn mark_words(vocabulary: usize) -> usize {
    vocabulary.div_ceil(32)
}

/// The sizes of a call.
#[derive(Clone, Copy, Debug)]
struct Sizes {
    vocabulary: usize,
    lines: usize,
    sequences: usize,
}

impl TokenCandidates {
    fn sizes(self, cx: &OpCx) -> Result<Sizes, OpError> {
        let x = cx.shape(LOGITS)?;
        let Some(&vocabulary) = x.last().filter(|n| **n > 0) else {
            return Err(cx.shape_error(LOGITS, "at least one logit in a line"));
        };
        let sequences = match cx.shape(SETTINGS)?[..] {
            [sequences, words] if words == layout::SETTINGS => sequences,
            _ => return Err(cx.shape_error(SETTINGS, "[sequences, 8]")),
        };
        if cx.shape(MARKS)?[..] != [sequences, 2, mark_words(vocabulary)] {
            return Err(cx.shape_error(MARKS, "[sequences, 2, a word for each 32 logits]"));
        }
        Ok(Sizes { vocabulary, lines: x.elements() / vocabulary, sequences })
    }

    fn run(
        args: &mut NativeArgs<'_, '_>,
        sizes: Sizes,
        line_of: impl Fn(&mut NativeArgs<'_, '_>, usize, &mut [f32]) -> Result<(), KernelError>,
    ) -> Result<(), KernelError> {
        let Sizes { vocabulary, lines, sequences } = sizes;
        let words = mark_words(vocabulary);
        let row = Found::words(vocabulary);
        let mut line = vec![0.0; vocabulary];
        let mut results = vec![0u32; sequences * row];
        for (sequence, to) in results.chunks_mut(row).enumerate() {
            let settings = args.read::<u32>(SETTINGS)?;
            let at = sequence * layout::SETTINGS;
            let wanted = settings.get(at..).and_then(Wanted::read).filter(|wanted| wanted.line < lines);
            let Some(wanted) = wanted else { continue };
            line_of(args, wanted.line, &mut line)?;
            let marks = args.read::<u32>(MARKS)?;
            let marks = |row: usize| marks.get((2 * sequence + row) * words..).unwrap_or_default();
            let (seen, allowed) = (marks(0), marks(1));
            let is_marked =
                |marks: &[u32], at: usize| marks.get(at / 32).is_some_and(|w| w >> (at % 32) & 1 == 1);
            if wanted.penalty != 1.0 {
                let seen = line.iter_mut().enumerate().filter(|(at, _)| is_marked(seen, *at));
                seen.for_each(|(_, v)| *v = penalized(*v, wanted.penalty));
            }
            if wanted.is_held {
                let others = line.iter_mut().enumerate().filter(|(at, _)| !is_marked(allowed, *at));
                others.for_each(|(_, v)| *v = f32::NEG_INFINITY);
            }
            write(&line, &wanted, to);
        }
        args.take_write::<u32>(RESULTS)?.copy_from_slice(&results);
        Ok(())
    }
}

/// Writes the row of a line.
fn write(line: &[f32], wanted: &Wanted, to: &mut [u32]) {
    let mut most = f32::NEG_INFINITY;
    let parts = line.chunks(layout::PART).enumerate();
    let rows = to[layout::HEAD..].as_chunks_mut::<{ layout::PART_WORDS }>().0.iter_mut();
    for ((part, values), to) in parts.zip(rows) {
        let first = (part * layout::PART) as u32;
        *to = match most_likely(values) {
            Some(Ok((at, own))) => {
                most = most.max(own);
                let sum = match own.is_finite() {
                    true => sum_of_weights(values, own, wanted.temperature),
                    // There is one at least.
                    false => f64::from(u8::from(own > 0.0)),
                };
                [own.to_bits(), first + at, (sum as f32).to_bits(), 0]
            }
            Some(Err(NotANumber)) | None => [f32::NEG_INFINITY.to_bits(), first, 0, 1],
        };
    }
    let bound = match wanted.candidates {
        Candidates::None => return,
        Candidates::Largest(count) => bound_of(line, count),
        Candidates::Within(distance) => most - distance,
    };
    let mut found = Vec::new();
    at_least(line, bound.max(f32::MIN), &mut found);
    to[0] = found.len() as u32;
    let room = to.len() - 2 * layout::CANDIDATES;
    let (tokens, values) = to[room..].split_at_mut(layout::CANDIDATES);
    for ((token, value), found) in tokens.iter_mut().zip(values).zip(found) {
        (*token, *value) = (found.0, found.1.to_bits());
    }
}

impl Operator for TokenCandidates {
    fn name(&self) -> &'static str {
        "TokenCandidates"
    }

    fn infer(&self, cx: &OpCx) -> Result<Vec<TensorInfo>, OpError> {
        cx.expect_counts(3..=3, 1..=1)?;
        cx.dtype_of(LOGITS, &[DType::F32, DType::F16])?;
        cx.expect_dtype(SETTINGS, DType::U32)?;
        cx.expect_dtype(MARKS, DType::U32)?;
        let Sizes { vocabulary, sequences, .. } = self.sizes(cx)?;
        Ok(vec![TensorInfo::new(DType::U32, Shape::new([sequences, Found::words(vocabulary)])?)])
    }

    fn cost(&self, cx: &OpCx) -> Cost {
        let Ok(Sizes { vocabulary, sequences, .. }) = self.sizes(cx) else { return Cost::default() };
        let bytes = cx.input_opt(LOGITS).map_or(0, |info| info.dtype.bytes());
        Cost {
            flops: Cost::product(&[sequences, vocabulary, 4]),
            bytes: Cost::product(&[sequences, vocabulary, 2 * bytes]),
        }
    }

    fn cpu(&self, cx: &OpCx) -> Result<NativeKernel, OpError> {
        let (sizes, dtype) = (self.sizes(cx)?, cx.dtype(LOGITS)?);
        let vocabulary = sizes.vocabulary;
        let line = move |at: usize| at * vocabulary..(at + 1) * vocabulary;
        Ok(NativeKernel::new(self.name(), move |args| match dtype {
            DType::F16 => TokenCandidates::run(args, sizes, |args, at, to| {
                let all = args.read::<f16>(LOGITS)?;
                f16::widen_all(all.get(line(at)).ok_or(KernelError::Absent { index: LOGITS })?, to);
                Ok(())
            }),
            _ => TokenCandidates::run(args, sizes, |args, at, to| {
                let all = args.read::<f32>(LOGITS)?;
                to.copy_from_slice(all.get(line(at)).ok_or(KernelError::Absent { index: LOGITS })?);
                Ok(())
            }),
        }))
    }

    fn gpu(&self, cx: &OpCx, lower: &mut Lowering<'_>) -> Result<(), OpError> {
        let Sizes { vocabulary, lines, sequences } = self.sizes(cx)?;
        let (t, parts) = (cx.dtype(LOGITS)?, parts(vocabulary));
        if parts > layout::MOST_PARTS {
            return Err(OpError::unsupported("a vocabulary of more than 524288 tokens"));
        }
        word(lines.saturating_mul(vocabulary))?;
        let groups = sequences * parts;
        let grains = lower.scratch(4 * groups * layout::GRAINS);
        let args = [
            Operand::Input(LOGITS),
            Operand::Input(SETTINGS),
            Operand::Input(MARKS),
            Operand::Output(0),
            grains,
        ];
        let (words, stride) = (word(mark_words(vocabulary))?, word(Found::words(vocabulary))?);
        let (count, parts) = (word(groups)?, word(parts)?);
        let grid = grid_1d(groups as u64, 1, lower.device().limits.max_groups[0]);
        let (vocabulary, lines) = (word(vocabulary)?, word(lines)?);
        let p = params::Token { groups: count, parts, vocabulary, lines, words, stride };
        lower.dispatch(variants::TokenScan { t }.id()?, &[], &args, &p, grid)?;
        lower.dispatch(variants::TokenCollect { t }.id()?, &[], &args, &p, grid)
    }
}
