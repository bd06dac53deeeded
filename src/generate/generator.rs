//! A decoder that makes texts.

use std::ops::ControlFlow;
use std::time::Instant;

use super::cache::KeyValueCache;
use super::decoder::{Decoder, Growth};
use super::error::GenerateError;
use super::sequence::Sequence;
use super::{Finish, GenerateOptions, Generated, ModelFolder, Prompt};
use crate::session::{Error, RunOptions, Session, SessionError};

/// A text that is asked for, of several that are made at once.
pub struct TextRequest<'a> {
    /// What it goes on from.
    pub prompt: Prompt<'a>,
    /// How it is made.
    pub options: &'a GenerateOptions,
    /// Gets it in pieces of whole characters, and may end it.
    pub told: &'a mut dyn FnMut(&str) -> ControlFlow<()>,
}

impl std::fmt::Debug for TextRequest<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TextRequest").field("prompt", &self.prompt).field("options", &self.options).finish()
    }
}

/// A decoder on a session, with the caches of its sequences.
#[derive(Debug)]
pub struct Generator {
    folder: ModelFolder,
    decoder: Decoder,
}

impl Generator {
    /// Makes `session`, which has the folder's graph, ready for texts of `context` tokens with their prompt; without it
    /// for as many as the settings say, at most 4096.
    ///
    /// # Errors
    /// [`GenerateError`] for a graph that is no decoder of the settings' kind, and what the session says.
    pub fn new(folder: ModelFolder, session: Session, context: Option<usize>) -> Result<Self, GenerateError> {
        let decoder = Decoder::new(session, &folder.config, context)?;
        Ok(Generator { folder, decoder })
    }

    /// The folder.
    pub fn folder(&self) -> &ModelFolder {
        &self.folder
    }

    /// The session.
    pub fn session(&self) -> &Session {
        self.decoder.session()
    }

    /// Tokens that a prompt and its text may have together.
    pub fn context(&self) -> usize {
        self.decoder.capacity()
    }

    /// Bytes of the cache of keys and values, where it has a fixed length.
    pub fn cache_bytes(&self) -> Option<u64> {
        self.decoder.cache().map(KeyValueCache::bytes)
    }

    /// What the settings ask for that is not done, and what makes this model slow.
    pub fn remarks(&self) -> Vec<String> {
        let mut remarks = self.folder.config.remarks.clone();
        remarks.extend(match self.decoder.growth() {
            Growth::InPlace => None,
            Growth::Copied => {
                Some("the cache cannot be updated in place: each token copies it, and there are two of it")
            }
            Growth::Padded => Some(
                "the graph appends to its cache: each token copies it; export it with GroupQueryAttention for a cache \
                 that is updated in place",
            ),
            Growth::Planned => Some(
                "the graph appends to its cache and does not heed its mask: each token is planned anew; export it with \
                 GroupQueryAttention for a cache of a fixed length",
            ),
        }.map(str::to_owned));
        remarks
    }

    /// Makes a text; `told` gets it in pieces of whole characters, and may end it. Equal prompts and options give equal texts on a device.
    ///
    /// # Errors
    /// [`GenerateError`]. The text so far was told; the next call begins anew.
    pub fn generate(
        &mut self,
        prompt: Prompt<'_>,
        options: &GenerateOptions,
        mut told: impl FnMut(&str) -> ControlFlow<()>,
    ) -> Result<Generated, GenerateError> {
        let made = self.generate_all(vec![TextRequest { prompt, options, told: &mut told }])?;
        made.into_iter().next().ok_or(GenerateError::EmptyPrompt)
    }

    /// Makes several texts at once: each has its own prompt, options and end, and a run gives each its next token. The
    /// texts are those that [`Generator::generate`] gives one by one, up to rounding. A graph that keeps no cache in
    /// place runs them in turns.
    ///
    /// # Errors
    /// [`GenerateError`], which ends all of them.
    pub fn generate_all(&mut self, requests: Vec<TextRequest<'_>>) -> Result<Vec<Generated>, GenerateError> {
        let made = self.all(requests);
        if made.is_err() {
            self.decoder.forget();
        }
        made
    }

    fn all(&mut self, requests: Vec<TextRequest<'_>>) -> Result<Vec<Generated>, GenerateError> {
        let Generator { folder, decoder } = self;
        let capacity = decoder.capacity();
        let mut prompts = Vec::new();
        for request in &requests {
            let prompt = folder.tokens(request.prompt)?;
            let tokens = prompt.len();
            if prompt.is_empty() {
                return Err(GenerateError::EmptyPrompt);
            }
            if tokens >= capacity {
                return Err(GenerateError::PromptTooLong { tokens, capacity, context: folder.context() });
            }
            prompts.push(prompt);
        }
        decoder.reserve(requests.len())?;
        let runs: Vec<_> = requests.iter().map(|r| run_options(r.options)).collect();
        let mut sequences = Vec::new();
        for (request, prompt) in requests.into_iter().zip(&prompts) {
            sequences.push(Sequence::new(folder, prompt, request.options, request.told)?);
        }
        let mut next = Vec::new();
        for (i, (sequence, prompt)) in sequences.iter_mut().zip(&prompts).enumerate() {
            let start = Instant::now();
            decoder.truncate(i, 0)?;
            decoder.prepare(i, prompt.len())?;
            let prepare = start.elapsed();
            let start = Instant::now();
            let Some(mut logits) = finished(decoder.forward(i, prompt, prompt.len() - 1, runs[i].as_ref()))?
            else {
                sequence.end(Finish::Cancelled);
                next.push(None);
                continue;
            };
            sequence.prompt_took(prepare, start.elapsed());
            next.push(sequence.choose(&mut logits[0], decoder.len(i))?);
        }
        // The end of one of several texts ends no run of the others.
        let run = if let [run] = &runs[..] { run.as_ref() } else { None };
        loop {
            for (i, (sequence, next)) in sequences.iter_mut().zip(&mut next).enumerate() {
                if next.is_some() && decoder.len(i) == capacity {
                    sequence.end(Finish::Context);
                    *next = None;
                }
            }
            if next.iter().all(Option::is_none) {
                break;
            }
            let Some(mut logits) = finished(decoder.step(&next, run))? else {
                sequences.iter_mut().for_each(|sequence| sequence.end(Finish::Cancelled));
                break;
            };
            for (i, (sequence, logits)) in sequences.iter_mut().zip(&mut logits).enumerate() {
                if next[i].is_some() {
                    sequence.ran();
                    next[i] = sequence.choose(logits, decoder.len(i))?;
                }
            }
        }
        sequences.into_iter().map(Sequence::finish).collect()
    }
}

fn run_options(options: &GenerateOptions) -> Option<RunOptions> {
    options.cancel.as_ref().map(|token| RunOptions::new().cancel(token))
}

/// What a run gave, unless it was cancelled.
fn finished<T>(result: Result<T, GenerateError>) -> Result<Option<T>, GenerateError> {
    match result {
        Ok(value) => Ok(Some(value)),
        Err(GenerateError::Session(Error::Session(SessionError::Cancelled { .. }))) => Ok(None),
        Err(e) => Err(e),
    }
}
