//! Runs of a decoder: token numbers in, logits of the last one out, keys and values kept between.

use super::cache::KeyValueCache;
use super::config::Config;
use super::error::GenerateError;
use super::fixed::{FixedPlan, FixedRuns};
use super::growing::GrowingRuns;
use super::io::DecoderIo;
use crate::session::{RunOptions, Session};

/// The most tokens of one run.
const LARGEST_CHUNK: usize = 512;

/// Bytes that the logits of one run may have.
const MAX_LOGITS_BYTES: usize = 512 << 20;

/// Tokens of a cache where nothing else is asked for, if the model takes so many.
const DEFAULT_CONTEXT: usize = 4096;

/// A decoder with its cache.
#[derive(Debug)]
pub(super) struct Decoder {
    session: Session,
    io: DecoderIo,
    runs: Runs,
    /// Tokens that the cache has room for.
    capacity: usize,
    /// Tokens in the cache.
    len: usize,
    last: Vec<f32>,
}

/// How the cache grows.
#[derive(Debug)]
enum Runs {
    Fixed(FixedRuns),
    Growing(GrowingRuns),
}

impl Decoder {
    /// Makes `session`, which has the graph that `config` is about, ready for a cache of `context` tokens.
    ///
    /// # Errors
    /// [`GenerateError`] for a graph that is no such decoder, and what the session says.
    pub(super) fn new(
        session: Session,
        config: &Config,
        context: Option<usize>,
    ) -> Result<Self, GenerateError> {
        let capacity = context.unwrap_or(config.max_length.min(DEFAULT_CONTEXT));
        if !(2..=config.context).contains(&capacity) {
            return Err(GenerateError::Context { asked: capacity, context: config.context });
        }
        let (mut io, tensors) = DecoderIo::find(&session, config)?;
        // Where caches of the whole length make no plan, what the other form says is the error.
        let fixed = FixedPlan::new(&session, &io, &tensors, capacity).ok().flatten();
        let mut growing = GrowingRuns::new(tensors, LARGEST_CHUNK);
        let planned = match &fixed {
            Some(fixed) => fixed.plan.outputs.iter().find(|o| o.name == io.logits).cloned(),
            None => {
                let plan = growing.inputs(&session, &io, &[0], 0)?.plan()?;
                plan.outputs.into_iter().find(|o| o.name == io.logits)
            }
        };
        let Some(planned) = planned else {
            let what = format!("the size of {:?} is known only in the run", io.logits);
            return Err(GenerateError::Unsupported(what));
        };
        let [1, 1, vocabulary] = planned.info.shape[..] else {
            let (name, got) = (planned.name, planned.info.shape.to_string());
            return Err(GenerateError::Shape { name, expected: "[batch, tokens, vocabulary]", got });
        };
        if !planned.info.dtype.is_float() {
            let (name, got) = (planned.name, planned.info.dtype);
            return Err(GenerateError::DType { name, expected: "floating point numbers", got });
        }
        io.vocabulary = vocabulary;
        let mut largest = LARGEST_CHUNK;
        while largest > 1 && largest.saturating_mul(planned.info.bytes()) > MAX_LOGITS_BYTES {
            largest /= 2;
        }
        let runs = match fixed {
            Some(plan) => Runs::Fixed(FixedRuns::new(&session, &io, plan, capacity, largest)?),
            None => {
                growing.limit_chunk(largest);
                Runs::Growing(growing)
            }
        };
        Ok(Decoder { session, io, runs, capacity, len: 0, last: Vec::new() })
    }

    /// Tokens that the cache has room for.
    pub(super) fn capacity(&self) -> usize {
        self.capacity
    }

    /// Tokens in the cache.
    pub(super) fn len(&self) -> usize {
        self.len
    }

    pub(super) fn session(&self) -> &Session {
        &self.session
    }

    /// The cache, where it has a fixed length.
    pub(super) fn cache(&self) -> Option<&KeyValueCache> {
        match &self.runs {
            Runs::Fixed(runs) => Some(runs.cache()),
            Runs::Growing(_) => None,
        }
    }

    /// The logits of the last token.
    pub(super) fn logits(&mut self) -> &mut [f32] {
        &mut self.last
    }

    /// Forgets all tokens, and binds what the next `tokens` need.
    ///
    /// # Errors
    /// What the session says.
    pub(super) fn begin(&mut self, tokens: usize) -> Result<(), GenerateError> {
        self.len = 0;
        match &mut self.runs {
            Runs::Fixed(runs) => runs.prepare(&self.session, &self.io, tokens),
            Runs::Growing(runs) => {
                runs.clear();
                Ok(())
            }
        }
    }

    /// Adds `tokens`, for which there is room, to the cache; then [`Decoder::logits`] has those of the last one. After an
    /// error the cache has the tokens of the runs before it, whole.
    ///
    /// # Errors
    /// [`GenerateError::UnknownToken`], and what the session says.
    pub(super) fn forward(
        &mut self,
        tokens: &[u32],
        options: Option<&RunOptions>,
    ) -> Result<(), GenerateError> {
        let vocabulary = self.io.vocabulary;
        if let Some(&token) = tokens.iter().find(|t| **t as usize >= vocabulary) {
            return Err(GenerateError::UnknownToken { token, vocabulary });
        }
        let mut rest = tokens;
        while !rest.is_empty() {
            let (session, io, len) = (&self.session, &self.io, self.len);
            let (taken, row) = match &mut self.runs {
                Runs::Fixed(runs) => runs.run(session, io, rest, len, options)?,
                Runs::Growing(runs) => runs.run(session, io, rest, len, options)?,
            };
            self.len += taken;
            rest = &rest[taken..];
            if let Some(row) = row {
                self.last = row;
            }
        }
        Ok(())
    }
}
