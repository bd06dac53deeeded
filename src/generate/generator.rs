//! A decoder that makes texts.

use std::borrow::Cow;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use super::cache::KeyValueCache;
use super::conversation;
use super::decoder::{Decoder, Growth};
use super::encoder::{Encoder, Source, Wanted};
use super::error::GenerateError;
#[cfg(feature = "grammar")]
use super::grammar::{Constraint, Grammars};
use super::io::DecoderIo;
use super::paged_graph::not_in_pages;
use super::pool::{PageOptions, PagePool, Pages};
use super::sampling::Guess;
use super::sequence::Sequence;
use super::speculate::{Cached, Draft, look_up};
use super::{Finish, GenerateOptions, Generated, ModelFolder, Prompt};
use crate::session::{
    Error, ParamStore, RunOptions, Session, SessionBuilder, SessionError, SharedArena, SharedDevices,
};

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

/// What all sessions of a generator share, as one of them runs at a time.
#[derive(Clone, Debug)]
struct Common {
    devices: Arc<SharedDevices>,
    arena: Arc<SharedArena>,
}

impl Common {
    fn new() -> Common {
        Common { devices: SharedDevices::new(), arena: SharedArena::new() }
    }

    fn builder(&self) -> SessionBuilder {
        let devices = Arc::clone(&self.devices);
        Session::builder().shared_devices(devices).shared_arena(Arc::clone(&self.arena))
    }
}

/// A decoder on a session, with the caches of its sequences.
#[derive(Debug)]
pub struct Generator {
    pub(super) folder: ModelFolder,
    pub(super) cached: Cached,
    /// What the decoder reads.
    encoder: Option<Encoder>,
    draft: Option<Draft>,
    common: Common,
    /// Made for the first text that a grammar holds.
    #[cfg(feature = "grammar")]
    pub(super) grammars: Option<Grammars>,
}

impl Generator {
    /// Makes `session`, which has the folder's graph, ready for texts of `context` tokens with their prompt; without it
    /// for as many as the settings say, at most 4096.
    ///
    /// # Errors
    /// [`GenerateError`] for a graph that is no decoder of the settings' kind, [`GenerateError::Unsupported`] for a model
    /// with an encoder ([`Generator::open`]), and what the session says.
    pub fn new(folder: ModelFolder, session: Session, context: Option<usize>) -> Result<Self, GenerateError> {
        if let Some(encoder) = folder.encoder() {
            let what = format!(
                "one session for a model with an encoder ({}): use Generator::open",
                encoder.display()
            );
            return Err(GenerateError::Unsupported(what));
        }
        let has_pages = DecoderIo::find(&session, &folder.config)?.0.pages.is_some();
        if !has_pages && folder.pages.is_none() {
            let decoder = Decoder::new(session, &folder.config, context, folder.sample_on)?;
            return Ok(Generator::of(folder, decoder));
        }
        let (pool, is_own) = match &folder.pages {
            // One page is enough to know how many tokens it has.
            None => (PagePool::new(&folder, &session, &PageOptions::new(1))?, true),
            Some(Pages::New(options)) => (PagePool::new(&folder, &session, options)?, false),
            Some(Pages::Of(pool)) => {
                pool.check(&folder)?;
                (pool.clone(), false)
            }
        };
        let decoder = Decoder::paged(session, &folder.config, context, (pool, is_own), folder.sample_on)?;
        Ok(Generator::of(folder, decoder))
    }

    /// As [`Generator::new`] with a session for each graph of the folder, which are several where the decoder
    /// reads an encoder. `session` gets the file of a graph and a builder that has it. Sessions of several
    /// graphs share the devices that they name, and intermediate memory there; they hold equal weights once.
    ///
    /// # Errors
    /// As there, and those of `session`.
    pub fn open<E: From<GenerateError>>(
        folder: ModelFolder,
        context: Option<usize>,
        session: impl FnMut(SessionBuilder, &Path) -> Result<Session, E>,
    ) -> Result<Self, E> {
        Generator::open_in(Common::new(), folder, context, session)
    }

    fn open_in<E: From<GenerateError>>(
        common: Common,
        folder: ModelFolder,
        context: Option<usize>,
        mut session: impl FnMut(SessionBuilder, &Path) -> Result<Session, E>,
    ) -> Result<Self, E> {
        let graph = folder.graph();
        let Some(config) = folder.config.encoder.clone() else {
            let session = session(common.builder().model(&graph), &graph)?;
            return Ok(Generator { common, ..Generator::new(folder, session, context)? });
        };
        if folder.pages.is_some() {
            return Err(not_in_pages().into());
        }
        if folder.config.cache_type.is_some() {
            let what = "another type of the cache of a decoder that reads an encoder".to_owned();
            return Err(GenerateError::Unsupported(what).into());
        }
        let weights = ParamStore::new();
        let mut open =
            |path: PathBuf| session(common.builder().params(Arc::clone(&weights)).model(&path), &path);
        let encoder = folder.encoder().map(&mut open).transpose()?;
        let first = folder.first_graph().map(&mut open).transpose()?;
        let decoder = open(graph)?;
        let mut encoder = encoder.map(|session| Encoder::new(session, &config)).transpose()?;
        let made = encoder.as_ref().map(|encoder| encoder.made(&folder.config)).transpose()?.flatten();
        let mut decoder = Decoder::crossed(decoder, first, &folder.config, context, made.as_deref())?;
        if let Some(encoder) = &mut encoder {
            encoder.check_gives(&wanted(&decoder), &config)?;
            if encoder.may_fill_up() && decoder.hides_rows() {
                encoder.fill_up(&wanted(&decoder));
            }
        }
        Ok(Generator { encoder, common, ..Generator::of(folder, decoder) })
    }

    /// As [`Generator::new`] with a cache in pages, which are those of `pool`: a graph with GroupQueryAttention is changed for
    /// them. Generators of other sessions on the same model may have the same pool.
    ///
    /// # Errors
    /// As there; [`GenerateError::Pages`] for a pool of another model, and [`GenerateError::Unsupported`] for a graph that can
    /// have no pages, which says why.
    pub fn with_pages(
        folder: ModelFolder,
        session: Session,
        context: Option<usize>,
        pool: &PagePool,
    ) -> Result<Self, GenerateError> {
        Generator::new(folder.in_pages(Pages::Of(pool.clone())), session, context)
    }

    fn of(folder: ModelFolder, decoder: Decoder) -> Self {
        Generator {
            folder,
            cached: Cached::new(decoder),
            encoder: None,
            draft: None,
            common: Common::new(),
            #[cfg(feature = "grammar")]
            grammars: None,
        }
    }

    /// Lets a smaller model of the same tokens guess at most `most` tokens at once, which one run of this one checks. Texts
    /// have the same distribution as without it; greedy ones are the same, up to rounding.
    ///
    /// # Errors
    /// [`GenerateError::Draft`] for a model of other tokens, [`GenerateError::Unsupported`] where one has an encoder.
    pub fn with_draft(mut self, draft: Generator, most: usize) -> Result<Self, GenerateError> {
        self.refuse_encoder("guesses of a draft model")?;
        draft.refuse_encoder("guesses")?;
        if !self.folder.tokenizer.has_tokens_of(&draft.folder.tokenizer) {
            return Err(GenerateError::Draft);
        }
        self.draft = Some(Draft::new(draft.cached, most, self.cached.decoder.vocabulary()));
        Ok(self)
    }

    /// As [`Generator::with_draft`], of the model in `folder`. `session` is as in [`Generator::open`]; where
    /// that made this one, the draft's session shares devices and intermediate memory with this one's.
    ///
    /// # Errors
    /// As there, and those of `session`.
    pub fn open_draft<E: From<GenerateError>>(
        self,
        folder: ModelFolder,
        most: usize,
        session: impl FnMut(SessionBuilder, &Path) -> Result<Session, E>,
    ) -> Result<Self, E> {
        let context = self.context().min(folder.context());
        let draft = Generator::open_in(self.common.clone(), folder, Some(context), session)?;
        Ok(self.with_draft(draft, most)?)
    }

    pub(super) fn refuse_encoder(&self, what: &str) -> Result<(), GenerateError> {
        match &self.encoder {
            Some(_) => Err(GenerateError::Unsupported(format!("{what} of a model with an encoder"))),
            None => Ok(()),
        }
    }

    /// The folder.
    pub fn folder(&self) -> &ModelFolder {
        &self.folder
    }

    /// The session of the decoder.
    pub fn session(&self) -> &Session {
        self.cached.decoder.session()
    }

    /// Plans made so far, of all its graphs. A run that finds its plan makes none.
    pub fn plans_made(&self) -> u64 {
        self.cached.decoder.plans_made() + self.encoder.as_ref().map_or(0, Encoder::plans_made)
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
    /// [`GenerateError::Write`], [`GenerateError::Unsupported`] for a model with an encoder, and what the device says.
    pub fn save(&self, path: impl AsRef<Path>) -> Result<(), GenerateError> {
        self.refuse_encoder("a file of a conversation")?;
        let model = self.folder.fingerprint()?;
        conversation::save(&self.cached.decoder, 0, &self.cached.tokens[0], &model, path.as_ref())
    }

    /// Fills the cache from a file of [`Generator::save`]; gives the number of its tokens. A prompt that begins with them
    /// computes only the others with [`GenerateOptions::reuse`].
    ///
    /// # Errors
    /// [`GenerateError::Conversation`] for a file that is damaged or of another model, [`GenerateError::Read`],
    /// [`GenerateError::PromptTooLong`], [`GenerateError::Unsupported`] for a model with an encoder, and what the device
    /// says. The cache is empty after an error.
    pub fn restore(&mut self, path: impl AsRef<Path>) -> Result<usize, GenerateError> {
        self.refuse_encoder("a file of a conversation")?;
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
            Growth::InPlace | Growth::InPlaceAlone | Growth::Pages => None,
            Growth::Copied => {
                Some("the cache cannot be updated in place: each token copies it, and there are two of it")
            }
            Growth::Padded => Some(
                "the graph appends to its cache: each token copies it; export it with GroupQueryAttention for a cache \
                 that is updated in place",
            ),
            Growth::PaddedAlone => Some("the decoder appends to its cache: each token copies it"),
            Growth::Planned if self.encoder.is_some() => Some(
                "the decoder appends to its cache, and rows of it cannot be hidden: each token is planned anew",
            ),
            Growth::Planned => Some(
                "the graph appends to its cache and does not heed its mask: each token is planned anew; export it with \
                 GroupQueryAttention for a cache of a fixed length",
            ),
        }.map(str::to_owned));
        remarks
    }

    /// Makes a text; `told` gets it in pieces of whole characters, and may end it. Equal prompts and options
    /// give equal texts on a device.
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
        for (request, Given { tokens, source }) in requests.into_iter().zip(&prompts) {
            let options = Cow::Borrowed(request.options);
            let text = Sequence::new(&self.folder, tokens, options, Box::new(request.told))?;
            let text = match source {
                Some(Source::Tokens(prompt)) => text.with_prompt_tokens(prompt.len()),
                Some(Source::Features(_)) | None => text,
            };
            #[cfg(feature = "grammar")]
            let text = match constraints.next().flatten() {
                Some(constraint) => text.held_to(constraint),
                None => text,
            };
            texts.push(text);
        }
        let (cached, draft) = (&mut self.cached, self.draft.as_mut());
        let mut round = Round { cached, encoder: self.encoder.as_ref(), draft, texts, next: Vec::new() };
        for (at, given) in prompts.iter().enumerate() {
            let next = round.begin(at, given.source.as_ref())?;
            round.next.push(next);
        }
        while round.step()? {}
        for (at, text) in round.texts.iter().enumerate() {
            round.cached.note(at, text.tokens());
        }
        round.texts.into_iter().map(Sequence::finish).collect()
    }

    /// The prompts, those of an encoder checked.
    fn prompts(&self, requests: &[TextRequest<'_>]) -> Result<Vec<Given>, GenerateError> {
        requests.iter().map(|request| self.given(request.prompt)).collect()
    }

    fn given(&self, prompt: Prompt<'_>) -> Result<Given, GenerateError> {
        let (folder, capacity) = (&self.folder, self.context());
        let (Some(encoder), Some(config)) = (&self.encoder, &folder.config.encoder) else {
            return Ok(Given { source: None, tokens: prompt_of(folder, prompt, capacity)? });
        };
        let (source, tokens) = match prompt {
            Prompt::Features { features, tokens } => (Source::Features(features.clone()), tokens),
            Prompt::Text(_) | Prompt::Chat(_) | Prompt::Tokens(_) => {
                let tokens = folder.tokens(prompt)?;
                self.cached.decoder.check(&tokens)?;
                (Source::Tokens(tokens), &[][..])
            }
        };
        encoder.check(&source)?;
        let tokens = if tokens.is_empty() { &config.starts } else { tokens };
        Ok(Given { source: Some(source), tokens: fitting(tokens.to_vec(), capacity, folder.context())? })
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

/// A prompt.
struct Given {
    /// What the encoder reads, where there is one.
    source: Option<Source>,
    /// What the decoder goes on from.
    tokens: Vec<u32>,
}

/// Texts in the making.
struct Round<'g, 't> {
    cached: &'g mut Cached,
    encoder: Option<&'g Encoder>,
    draft: Option<&'g mut Draft>,
    texts: Vec<Sequence<'t>>,
    /// The token of each text that is not in the cache yet; none where the text has ended.
    next: Vec<Option<u32>>,
}

impl Round<'_, '_> {
    /// Runs the prompt of a text, of which an encoder reads `source`; gives its first token.
    fn begin(&mut self, at: usize, source: Option<&Source>) -> Result<Option<u32>, GenerateError> {
        let (cached, text) = (&mut *self.cached, &mut self.texts[at]);
        let start = Instant::now();
        // Keys and values of a decoder depend on what its encoder read.
        let kept = match text.options().reuse && source.is_none() {
            true => cached.keep(at, text.tokens())?,
            false => cached.keep(at, &[])?,
        };
        let prompt = &text.tokens()[kept..];
        cached.decoder.prepare(at, prompt.len())?;
        let prepare = start.elapsed();
        let start = Instant::now();
        let run = run_options(text.options());
        if let (Some(encoder), Some(source)) = (self.encoder, source) {
            let encoded = encoder.run(source, &wanted(&cached.decoder), run.as_ref());
            let Some(encoded) = finished(encoded)? else {
                text.end(Finish::Cancelled);
                return Ok(None);
            };
            cached.decoder.begin(at, encoded)?;
        }
        let request = if cached.decoder.finds_tokens() { text.request()? } else { None };
        let prompt = &text.tokens()[kept..];
        cached.decoder.ask(at, request);
        let rows = cached.decoder.forward(at, prompt, prompt.len() - 1, run.as_ref());
        let Some(row) = finished(rows)?.and_then(|mut rows| rows.pop()) else {
            text.end(Finish::Cancelled);
            return Ok(None);
        };
        text.begin(kept, prepare, start.elapsed());
        text.choose(row, cached.decoder.len(at))
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
        for (at, text) in self.texts.iter_mut().enumerate() {
            let is_asked = tokens[at].is_some() && self.cached.decoder.finds_tokens();
            self.cached.decoder.ask(at, if is_asked { text.request()? } else { None });
        }
        let Some(rows) = finished(self.cached.decoder.step(tokens, run.as_ref()))? else {
            self.texts.iter_mut().for_each(|text| text.end(Finish::Cancelled));
            self.next.fill(None);
            return Ok(());
        };
        for (at, (text, row)) in self.texts.iter_mut().zip(rows).enumerate() {
            if tokens[at].is_some() {
                self.next[at] = text.choose(row, self.cached.decoder.len(at))?;
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
        decoder.ask(at, None);
        let Some(rows) = finished(decoder.forward(at, &tokens, 0, run.as_ref()))? else {
            text.end(Finish::Cancelled);
            return Ok(None);
        };
        let (mut next, mut kept) = (None, 0);
        for (i, row) in rows.into_iter().enumerate() {
            let guess = guesses.get(i);
            next = text.check(row, before + 1 + i, guess)?;
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

/// What a decoder wants of its encoder.
fn wanted(decoder: &Decoder) -> Wanted<'_> {
    Wanted { hidden: decoder.reads_hidden(), tensors: decoder.given(), decoder: decoder.session() }
}

/// The tokens of a prompt, which leaves room for one more in a cache of `capacity`.
pub(super) fn prompt_of(
    folder: &ModelFolder,
    prompt: Prompt<'_>,
    capacity: usize,
) -> Result<Vec<u32>, GenerateError> {
    if matches!(prompt, Prompt::Features { .. }) {
        return Err(GenerateError::Unsupported("features for a model without an encoder".to_owned()));
    }
    fitting(folder.tokens(prompt)?, capacity, folder.context())
}

/// Tokens that leave room for one more in a cache of `capacity`.
fn fitting(tokens: Vec<u32>, capacity: usize, context: usize) -> Result<Vec<u32>, GenerateError> {
    match tokens.len() {
        0 => Err(GenerateError::EmptyPrompt),
        count if count >= capacity => Err(GenerateError::PromptTooLong { tokens: count, capacity, context }),
        _ => Ok(tokens),
    }
}

/// What holds a text, where its options have a grammar; `grammars` are made for the first.
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
