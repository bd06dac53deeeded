//! A decoder that makes texts.

use std::borrow::Cow;
use std::ops::ControlFlow;
use std::path::Path;
use std::time::Instant;

use super::cache::KeyValueCache;
use super::conversation;
use super::decoder::{Decoder, Growth};
use super::error::GenerateError;
#[cfg(feature = "grammar")]
use super::grammar::{Constraint, Grammars};
use super::io::DecoderIo;
use super::pool::{PageOptions, PagePool};
use super::sampling::Guess;
use super::sequence::Sequence;
use super::speculate::{Cached, Draft, look_up};
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
    pub(super) folder: ModelFolder,
    pub(super) cached: Cached,
    draft: Option<Draft>,
    /// Made for the first text that a grammar holds.
    #[cfg(feature = "grammar")]
    pub(super) grammars: Option<Grammars>,
}

impl Generator {
    /// Makes `session`, which has the folder's graph, ready for texts of `context` tokens with their prompt; without it
    /// for as many as the settings say, at most 4096.
    ///
    /// # Errors
    /// [`GenerateError`] for a graph that is no decoder of the settings' kind, and what the session says.
    pub fn new(folder: ModelFolder, session: Session, context: Option<usize>) -> Result<Self, GenerateError> {
        if DecoderIo::find(&session, &folder.config)?.0.pages.is_none() {
            let decoder = Decoder::new(session, &folder.config, context)?;
            return Ok(Generator::of(folder, decoder));
        }
        // One page is enough to know how many tokens it has.
        let pool = PagePool::new(&folder, &session, &PageOptions::new(1))?;
        let decoder = Decoder::paged(session, &folder.config, context, pool, true)?;
        Ok(Generator::of(folder, decoder))
    }

    /// As [`Generator::new`] for a graph with a cache in pages, which are those of `pool`. Generators of other sessions on
    /// the same model may have the same pool.
    ///
    /// # Errors
    /// As there, and [`GenerateError::Pages`] for a pool of another model.
    pub fn with_pages(
        folder: ModelFolder,
        session: Session,
        context: Option<usize>,
        pool: &PagePool,
    ) -> Result<Self, GenerateError> {
        pool.check(&folder)?;
        let decoder = Decoder::paged(session, &folder.config, context, pool.clone(), false)?;
        Ok(Generator::of(folder, decoder))
    }

    fn of(folder: ModelFolder, decoder: Decoder) -> Self {
        Generator {
            folder,
            cached: Cached::new(decoder),
            draft: None,
            #[cfg(feature = "grammar")]
            grammars: None,
        }
    }

    /// Lets a smaller model of the same tokens guess at most `most` tokens at once, which one run of this one checks. Texts
    /// have the same distribution as without it; greedy ones are the same, up to rounding.
    ///
    /// # Errors
    /// [`GenerateError::Draft`] for a model of other tokens.
    pub fn with_draft(mut self, draft: Generator, most: usize) -> Result<Self, GenerateError> {
        if !self.folder.tokenizer.has_tokens_of(&draft.folder.tokenizer) {
            return Err(GenerateError::Draft);
        }
        self.draft = Some(Draft::new(draft.cached, most, self.cached.decoder.vocabulary()));
        Ok(self)
    }

    /// The folder.
    pub fn folder(&self) -> &ModelFolder {
        &self.folder
    }

    /// The session.
    pub fn session(&self) -> &Session {
        self.cached.decoder.session()
    }

    /// Tokens that a prompt and its text may have together.
    pub fn context(&self) -> usize {
        self.cached.decoder.capacity()
    }

    /// Bytes of the cache of keys and values, where it has a fixed length or is in pages.
    pub fn cache_bytes(&self) -> Option<u64> {
        let fixed = self.cached.decoder.cache().map(KeyValueCache::bytes);
        fixed.or_else(|| self.pages().map(PagePool::bytes))
    }

    /// The pages of the cache, where it is in pages.
    pub fn pages(&self) -> Option<&PagePool> {
        self.cached.decoder.pool()
    }

    /// Writes the tokens of the last conversation that are in the cache, with their keys and values, to a file. Of several
    /// texts that were made at once it is the first.
    ///
    /// # Errors
    /// [`GenerateError::Write`], and what the device says.
    pub fn save(&self, path: impl AsRef<Path>) -> Result<(), GenerateError> {
        let model = self.folder.fingerprint()?;
        conversation::save(&self.cached.decoder, 0, &self.cached.tokens[0], &model, path.as_ref())
    }

    /// Fills the cache from a file of [`Generator::save`]; gives the number of its tokens. A prompt that begins with them
    /// computes only the others with [`GenerateOptions::reuse`].
    ///
    /// # Errors
    /// [`GenerateError::Conversation`] for a file that is damaged or of another model, [`GenerateError::Read`],
    /// [`GenerateError::PromptTooLong`], and what the device says. The cache is empty after an error.
    pub fn restore(&mut self, path: impl AsRef<Path>) -> Result<usize, GenerateError> {
        let (model, context) = (self.folder.fingerprint()?, self.folder.context());
        self.cached.forget();
        let tokens = conversation::restore(&mut self.cached.decoder, 0, context, &model, path.as_ref())?;
        self.cached.tokens[0] = tokens;
        Ok(self.cached.tokens[0].len())
    }

    /// What the settings ask for that is not done, and what makes this model slow.
    pub fn remarks(&self) -> Vec<String> {
        let mut remarks = self.folder.config.remarks.clone();
        remarks.extend(match self.cached.decoder.growth() {
            Growth::InPlace | Growth::Pages => None,
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
            self.cached.forget();
            if let Some(draft) = &mut self.draft {
                draft.cached.forget();
            }
        }
        made
    }

    fn all(&mut self, requests: Vec<TextRequest<'_>>) -> Result<Vec<Generated>, GenerateError> {
        let prompts = self.prompts(&requests)?;
        self.cached.reserve(requests.len())?;
        if let Some(draft) = &mut self.draft {
            draft.cached.reserve(requests.len())?;
        }
        #[cfg(feature = "grammar")]
        let mut constraints = self.constraints(&requests)?.into_iter();
        let mut texts = Vec::new();
        for (request, prompt) in requests.into_iter().zip(&prompts) {
            let options = Cow::Borrowed(request.options);
            let text = Sequence::new(&self.folder, prompt, options, Box::new(request.told))?;
            #[cfg(feature = "grammar")]
            let text = match constraints.next().flatten() {
                Some(constraint) => text.held_to(constraint),
                None => text,
            };
            texts.push(text);
        }
        let mut round =
            Round { cached: &mut self.cached, draft: self.draft.as_mut(), texts, next: Vec::new() };
        for at in 0..prompts.len() {
            let next = round.begin(at)?;
            round.next.push(next);
        }
        while round.step()? {}
        for (at, text) in round.texts.iter().enumerate() {
            round.cached.note(at, text.tokens());
        }
        round.texts.into_iter().map(Sequence::finish).collect()
    }

    /// The tokens of the prompts.
    fn prompts(&self, requests: &[TextRequest<'_>]) -> Result<Vec<Vec<u32>>, GenerateError> {
        requests.iter().map(|request| prompt_of(&self.folder, request.prompt, self.context())).collect()
    }

    /// What holds each text.
    #[cfg(feature = "grammar")]
    fn constraints(
        &mut self,
        requests: &[TextRequest<'_>],
    ) -> Result<Vec<Option<Constraint>>, GenerateError> {
        let (folder, grammars) = (&self.folder, &mut self.grammars);
        requests.iter().map(|request| constraint(folder, grammars, request.options)).collect()
    }
}

/// Texts in the making.
struct Round<'g, 't> {
    cached: &'g mut Cached,
    draft: Option<&'g mut Draft>,
    texts: Vec<Sequence<'t>>,
    /// The token of each text that is not in the cache yet; none where the text has ended.
    next: Vec<Option<u32>>,
}

impl Round<'_, '_> {
    /// Runs the prompt of a text; gives its first token.
    fn begin(&mut self, at: usize) -> Result<Option<u32>, GenerateError> {
        let (cached, text) = (&mut *self.cached, &mut self.texts[at]);
        let start = Instant::now();
        let kept = match text.options().reuse {
            true => cached.keep(at, text.tokens())?,
            false => cached.keep(at, &[])?,
        };
        let prompt = &text.tokens()[kept..];
        cached.decoder.prepare(at, prompt.len())?;
        let prepare = start.elapsed();
        let start = Instant::now();
        let run = run_options(text.options());
        let rows = cached.decoder.forward(at, prompt, prompt.len() - 1, run.as_ref());
        let Some(mut logits) = finished(rows)?.and_then(|mut rows| rows.pop()) else {
            text.end(Finish::Cancelled);
            return Ok(None);
        };
        text.begin(kept, prepare, start.elapsed());
        text.choose(&mut logits, cached.decoder.len(at))
    }

    /// Gives each text a token more, or several; says whether any goes on.
    fn step(&mut self) -> Result<bool, GenerateError> {
        let capacity = self.cached.decoder.capacity();
        for (at, (text, next)) in self.texts.iter_mut().zip(&mut self.next).enumerate() {
            if next.is_some() && self.cached.decoder.len(at) == capacity {
                text.end(Finish::Context);
                *next = None;
            }
        }
        let mut alone = self.next.clone();
        for (at, next) in alone.iter_mut().enumerate() {
            let Some(token) = *next else { continue };
            let guesses = self.guesses(at)?;
            if !guesses.is_empty() {
                *next = None;
                self.next[at] = self.check(at, token, &guesses)?;
            }
        }
        if alone.iter().any(Option::is_some) {
            self.step_all(&alone)?;
        }
        Ok(self.next.iter().any(Option::is_some))
    }

    /// Adds one token to each text that has one in `tokens`.
    fn step_all(&mut self, tokens: &[Option<u32>]) -> Result<(), GenerateError> {
        // The end of one of several texts ends no run of the others.
        let run = if let [text] = &self.texts[..] { run_options(text.options()) } else { None };
        let Some(mut logits) = finished(self.cached.decoder.step(tokens, run.as_ref()))? else {
            self.texts.iter_mut().for_each(|text| text.end(Finish::Cancelled));
            self.next.fill(None);
            return Ok(());
        };
        for (at, (text, logits)) in self.texts.iter_mut().zip(&mut logits).enumerate() {
            if tokens[at].is_some() {
                self.next[at] = text.choose(logits, self.cached.decoder.len(at))?;
            }
        }
        Ok(())
    }

    /// Tokens that may come after the next one of a text.
    fn guesses(&mut self, at: usize) -> Result<Vec<Guess>, GenerateError> {
        let text = &mut self.texts[at];
        let room = self.cached.decoder.capacity() - self.cached.decoder.len(at) - 1;
        let most = room.min(text.left());
        let found = look_up(text.tokens(), text.options().lookup.min(most));
        match &mut self.draft {
            Some(draft) if found.is_empty() => draft.guess(at, text, most),
            _ => Ok(found),
        }
    }

    /// Runs a token and guesses of those after it; gives the last one that the text has.
    fn check(&mut self, at: usize, token: u32, guesses: &[Guess]) -> Result<Option<u32>, GenerateError> {
        let (decoder, text) = (&mut self.cached.decoder, &mut self.texts[at]);
        let before = decoder.len(at);
        let tokens: Vec<u32> = std::iter::once(token).chain(guesses.iter().map(|g| g.token)).collect();
        let run = run_options(text.options());
        let Some(mut rows) = finished(decoder.forward(at, &tokens, 0, run.as_ref()))? else {
            text.end(Finish::Cancelled);
            return Ok(None);
        };
        let (mut next, mut kept) = (None, 0);
        for (i, logits) in rows.iter_mut().enumerate() {
            let guess = guesses.get(i);
            next = text.check(logits, before + 1 + i, guess)?;
            if next.is_none() || guess.map(|g| g.token) != next {
                break;
            }
            kept += 1;
        }
        text.guessed(guesses.len(), kept);
        decoder.truncate(at, before + 1 + kept)?;
        Ok(next)
    }
}

/// The tokens of a prompt, which leaves room for one more in a cache of `capacity`.
///
/// # Errors
/// [`GenerateError::EmptyPrompt`], [`GenerateError::PromptTooLong`], and what [`ModelFolder::tokens`] says.
pub(super) fn prompt_of(
    folder: &ModelFolder,
    prompt: Prompt<'_>,
    capacity: usize,
) -> Result<Vec<u32>, GenerateError> {
    let prompt = folder.tokens(prompt)?;
    match prompt.len() {
        0 => Err(GenerateError::EmptyPrompt),
        tokens if tokens >= capacity => {
            Err(GenerateError::PromptTooLong { tokens, capacity, context: folder.context() })
        }
        _ => Ok(prompt),
    }
}

/// What holds a text, where its options have a grammar; `grammars` are made for the first.
///
/// # Errors
/// [`GenerateError::Grammar`].
#[cfg(feature = "grammar")]
pub(super) fn constraint(
    folder: &ModelFolder,
    grammars: &mut Option<Grammars>,
    options: &GenerateOptions,
) -> Result<Option<Constraint>, GenerateError> {
    let Some(grammar) = &options.grammar else { return Ok(None) };
    if grammars.is_none() {
        *grammars = Some(Grammars::new(&folder.tokenizer.to_json()?, &folder.config.ends)?);
    }
    grammars.as_ref().map(|grammars| grammars.constraint(grammar)).transpose()
}

fn run_options(options: &GenerateOptions) -> Option<RunOptions> {
    options.cancel.as_ref().map(|token| RunOptions::new().cancel(token))
}

/// What a run gave, unless it was cancelled.
pub(super) fn finished<T>(result: Result<T, GenerateError>) -> Result<Option<T>, GenerateError> {
    match result {
        Ok(value) => Ok(Some(value)),
        Err(GenerateError::Session(Error::Session(SessionError::Cancelled { .. }))) => Ok(None),
        Err(e) => Err(e),
    }
}
