//! Text from language models.
//!
//! A [`ModelFolder`] has the settings, tokenizer and chat template that onnxruntime-genai or the transformers library
//! export with a decoder's graph, or those in a GGUF file. A [`Generator`] runs the graph on a [`Session`] and gives text as it comes.
//!
//! ```no_run
//! use std::ops::ControlFlow;
//!
//! use onepool::Session;
//! use onepool::generate::{GenerateOptions, Generator, ModelFolder, Prompt};
//!
//! let folder = ModelFolder::open("models/llama")?;
//! let session = Session::builder().model(folder.graph()).device("auto").build()?;
//! let mut generator = Generator::new(folder, session, None)?;
//! let options = GenerateOptions { max_tokens: Some(100), ..GenerateOptions::default() };
//! let made = generator.generate(Prompt::Text("Once upon a time"), &options, |piece| {
//!     print!("{piece}");
//!     ControlFlow::Continue(())
//! })?;
//! println!("\n{:.1} tokens/s", made.tokens_per_s());
//! # Ok::<(), onepool::generate::GenerateError>(())
//! ```
//!
//! Keys and values of earlier tokens lie in a cache. Graphs with GroupQueryAttention get one of a fixed length, so that
//! all tokens share one plan. A graph that appends to its cache is planned anew for each token, which
//! [`Generator::remarks`] says. A prompt runs in chunks of a few sizes; the last one may be filled up with tokens that the
//! next run overwrites.

mod cache;
mod config;
mod decoder;
mod error;
mod files;
mod fixed;
mod gguf;
mod growing;
mod io;
mod sampling;
mod template;
mod text;

use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use self::cache::KeyValueCache;
use self::config::Config;
use self::decoder::Decoder;
pub use self::error::GenerateError;
use self::sampling::Sampler;
pub use self::sampling::Sampling;
use self::template::ChatTemplate;
pub use self::template::Message;
use self::text::{StopStrings, TextStream, TextTokenizer};
use crate::session::{CancelToken, Error, RunOptions, Session, SessionError};

/// A folder with a decoder's graph, its settings and its tokenizer, or a GGUF file, which has all of them.
#[derive(Debug)]
pub struct ModelFolder {
    folder: PathBuf,
    config: Config,
    tokenizer: TextTokenizer,
    template: Option<ChatTemplate>,
}

impl ModelFolder {
    /// Reads `genai_config.json` (else `config.json` and `generation_config.json`), `tokenizer.json`, and the chat template
    /// of `chat_template.jinja` or `tokenizer_config.json`. Of a GGUF file it reads the metadata.
    ///
    /// # Errors
    /// [`GenerateError`] for a file that is missing or does not hold what it should.
    pub fn open(folder: impl AsRef<Path>) -> Result<Self, GenerateError> {
        let folder = folder.as_ref();
        if let Some(file) = gguf::open(folder)? {
            let template = gguf::chat_template(&file)?;
            return Ok(ModelFolder {
                folder: folder.parent().map(Path::to_owned).unwrap_or_default(),
                config: gguf::config(folder.file_name().map(PathBuf::from).unwrap_or_default(), &file)?,
                tokenizer: TextTokenizer::new(&gguf::tokenizer(&file)?)?,
                template: template.map(|(text, tokens)| ChatTemplate::new(text, tokens)).transpose()?,
            });
        }
        let config = Config::read(folder)?;
        let tokenizer = TextTokenizer::new(&config::tokenizer(folder)?)?;
        let template = config::chat_template(folder)?;
        let template = template.map(|(text, tokens)| ChatTemplate::new(text, tokens)).transpose()?;
        Ok(ModelFolder { folder: folder.to_owned(), config, tokenizer, template })
    }

    /// The file of the graph.
    pub fn graph(&self) -> PathBuf {
        self.folder.join(&self.config.graph)
    }

    /// How the settings want tokens to be chosen.
    pub fn sampling(&self) -> Sampling {
        self.config.sampling
    }

    /// Tokens that the model takes.
    pub fn context(&self) -> usize {
        self.config.context
    }

    /// The tokens of a prompt.
    ///
    /// # Errors
    /// [`GenerateError::Tokenizer`], [`GenerateError::NoTemplate`], [`GenerateError::Template`].
    pub fn tokens(&self, prompt: Prompt<'_>) -> Result<Vec<u32>, GenerateError> {
        match prompt {
            Prompt::Text(text) => self.tokenizer.encode(text, true),
            Prompt::Chat(messages) => {
                let template = self.template.as_ref().ok_or(GenerateError::NoTemplate)?;
                self.tokenizer.encode(&template.prompt(messages)?, false)
            }
            Prompt::Tokens(tokens) => Ok(tokens.to_vec()),
        }
    }
}

/// What a text is to go on from.
#[derive(Clone, Copy, Debug)]
pub enum Prompt<'a> {
    /// A text as it is.
    Text(&'a str),
    /// Messages, which the model's chat template makes a text of.
    Chat(&'a [Message]),
    /// Tokens.
    Tokens(&'a [u32]),
}

/// How a text is made.
#[derive(Clone, Debug, Default)]
pub struct GenerateOptions {
    /// The most tokens; without it as many as the cache has room for.
    pub max_tokens: Option<usize>,
    /// How tokens are chosen.
    pub sampling: Sampling,
    /// Strings that end the text; they are not part of it.
    pub stop: Vec<String>,
    /// Whether the text goes on after a token that ends it, to measure or to compare.
    pub ignore_end: bool,
    /// Ends the text early.
    pub cancel: Option<CancelToken>,
}

/// Why a text ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Finish {
    /// The model chose a token that ends texts.
    End(u32),
    /// A string of [`GenerateOptions::stop`] came.
    Stop(String),
    /// It has [`GenerateOptions::max_tokens`] tokens.
    Length,
    /// The cache is full.
    Context,
    /// The token of [`GenerateOptions::cancel`] or of the session was cancelled, or who is told the text wanted no more.
    Cancelled,
}

/// A text that was made.
#[derive(Clone, Debug)]
pub struct Generated {
    /// The text.
    pub text: String,
    /// Its tokens, without the one that ended it.
    pub tokens: Vec<u32>,
    /// Number of tokens of the prompt.
    pub prompt_tokens: usize,
    /// Why it ended.
    pub finish: Finish,
    /// What planning and binding took before the prompt.
    pub prepare_time: Duration,
    /// What the prompt took.
    pub prompt_time: Duration,
    /// What the tokens after the first one took.
    pub generation_time: Duration,
    /// Number of runs that [`Generated::generation_time`] is of.
    runs: usize,
}

impl Generated {
    /// Tokens of the prompt in a second.
    pub fn prompt_tokens_per_s(&self) -> f64 {
        rate(self.prompt_tokens, self.prompt_time)
    }

    /// Tokens in a second, those after the first one; 0 where there is none.
    pub fn tokens_per_s(&self) -> f64 {
        rate(self.runs, self.generation_time)
    }
}

fn rate(count: usize, time: Duration) -> f64 {
    if count == 0 || time.is_zero() { 0.0 } else { count as f64 / time.as_secs_f64() }
}

/// A decoder on a session, with the cache of one sequence.
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
        let slow = match self.decoder.cache() {
            None => {
                "the graph appends to its cache: each token is planned anew; export it with GroupQueryAttention for a cache \
                     of a fixed length"
            }
            Some(cache) if !cache.is_in_place() => {
                "the cache cannot be updated in place: each token copies it, and there are two of it"
            }
            Some(_) => return remarks,
        };
        remarks.push(slow.to_owned());
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
        let prompt = self.folder.tokens(prompt)?;
        let (tokens, capacity) = (prompt.len(), self.decoder.capacity());
        if prompt.is_empty() {
            return Err(GenerateError::EmptyPrompt);
        }
        if tokens >= capacity {
            return Err(GenerateError::PromptTooLong { tokens, capacity, context: self.folder.context() });
        }
        let mut sampler = Sampler::new(options.sampling)?;
        prompt.iter().for_each(|&token| sampler.see(token));
        let run = options.cancel.as_ref().map(|token| RunOptions::new().cancel(token));
        let mut made = Generated {
            text: String::new(),
            tokens: Vec::new(),
            prompt_tokens: tokens,
            finish: Finish::Length,
            prepare_time: Duration::ZERO,
            prompt_time: Duration::ZERO,
            generation_time: Duration::ZERO,
            runs: 0,
        };
        let start = Instant::now();
        self.decoder.begin(tokens)?;
        made.prepare_time = start.elapsed();
        let start = Instant::now();
        if !finished(self.decoder.forward(&prompt, run.as_ref()))? {
            made.finish = Finish::Cancelled;
            return Ok(made);
        }
        made.prompt_time = start.elapsed();
        let mut text = Text { stream: TextStream::default(), stops: StopStrings::new(&options.stop) };
        let start = Instant::now();
        made.finish = self.tokens(&mut made, &mut text, &mut sampler, options, run.as_ref(), &mut told)?;
        made.generation_time = start.elapsed();
        if !matches!(made.finish, Finish::Stop(_)) {
            let rest = text.stream.finish(&self.folder.tokenizer)?;
            let (piece, stop) = text.stops.push(&rest);
            let rest = if stop.is_none() { text.stops.finish() } else { String::new() };
            if let Some(stop) = stop {
                made.finish = Finish::Stop(stop);
            }
            if tell(&mut made, &(piece + &rest), &mut told).is_break() {
                made.finish = Finish::Cancelled;
            }
        }
        Ok(made)
    }

    /// The tokens after the prompt.
    fn tokens(
        &mut self,
        made: &mut Generated,
        text: &mut Text,
        sampler: &mut Sampler,
        options: &GenerateOptions,
        run: Option<&RunOptions>,
        told: &mut impl FnMut(&str) -> ControlFlow<()>,
    ) -> Result<Finish, GenerateError> {
        let most = options.max_tokens.unwrap_or(usize::MAX);
        while made.tokens.len() < most {
            let position = self.decoder.len();
            let token = sampler.choose(self.decoder.logits(), position)?;
            if !options.ignore_end && self.folder.config.ends.contains(&token) {
                return Ok(Finish::End(token));
            }
            made.tokens.push(token);
            sampler.see(token);
            let piece = text.stream.push(&self.folder.tokenizer, token)?;
            let (piece, stop) = text.stops.push(&piece);
            let goes_on = tell(made, &piece, told);
            if let Some(stop) = stop {
                return Ok(Finish::Stop(stop));
            }
            if goes_on.is_break() || options.cancel.as_ref().is_some_and(CancelToken::is_cancelled) {
                return Ok(Finish::Cancelled);
            }
            if made.tokens.len() == most {
                break;
            }
            if self.decoder.len() == self.decoder.capacity() {
                return Ok(Finish::Context);
            }
            if !finished(self.decoder.forward(&[token], run))? {
                return Ok(Finish::Cancelled);
            }
            made.runs += 1;
        }
        Ok(Finish::Length)
    }
}

/// Text on its way out.
struct Text {
    stream: TextStream,
    stops: StopStrings,
}

fn tell(
    made: &mut Generated,
    piece: &str,
    told: &mut impl FnMut(&str) -> ControlFlow<()>,
) -> ControlFlow<()> {
    if piece.is_empty() {
        return ControlFlow::Continue(());
    }
    made.text.push_str(piece);
    told(piece)
}

/// Whether a run came to its end instead of being cancelled.
fn finished(result: Result<(), GenerateError>) -> Result<bool, GenerateError> {
    match result {
        Ok(()) => Ok(true),
        Err(GenerateError::Session(Error::Session(SessionError::Cancelled { .. }))) => Ok(false),
        Err(e) => Err(e),
    }
}
