//! Text from language models, and vectors of texts.
//!
//! A [`ModelFolder`] has the settings, tokenizer and chat template that onnxruntime-genai or the transformers library
//! export with a decoder's graph, or those in a GGUF file. A [`Generator`] runs the graph on a
//! [`Session`](crate::Session) and gives text as it comes.
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
//! An [`Embedder`] makes one vector of each text, of a model of sentence-transformers.
//!
//! Keys and values of earlier tokens lie in a cache. Graphs with GroupQueryAttention get one of a fixed length, so that
//! all tokens share one plan. A graph that appends to its cache gets one with more rows than tokens, which its mask hides;
//! one plan serves all lengths up to a power of two. A graph that does not heed its mask gets what it computes of the cache's
//! length as inputs. Where that does not give the same it is planned anew for each token, which [`Generator::remarks`] says. A prompt runs in chunks of a few sizes; the last one may be filled up with tokens
//! that the next run overwrites. Decoders that read an encoder have no mask for their cache: their graph is changed so that
//! rows may be hidden. Where pages are asked for ([`ModelFolder::in_pages`]), a graph with GroupQueryAttention is changed to
//! keep keys and values in a [`PagePool`], which texts that begin alike share.

#![forbid(unsafe_code)]

mod batch_thread;
mod batcher;
mod cache;
mod cache_graph;
mod cache_type;
mod call;
mod config;
mod conversation;
mod cross;
mod cross_io;
mod decoder;
mod embed;
mod encoder;
mod encoder_config;
mod error;
mod few_rows;
mod files;
mod fixed;
mod genai_config;
mod generator;
mod gguf;
#[cfg(feature = "grammar")]
mod grammar;
mod graph_cache;
mod graph_edit;
mod graph_file;
mod growing;
mod in_place_graph;
#[cfg(test)]
mod in_place_graph_tests;
mod input;
mod io;
mod logit_rows;
mod logits;
mod long;
mod mask_length;
mod masked_graph;
mod narrow_caches;
mod padded;
mod page_plan;
mod paged;
mod paged_graph;
#[cfg(test)]
mod paged_graph_tests;
mod pages;
mod pool;
mod sampling;
mod scan;
mod sequence;
mod settings;
mod speculate;
mod template;
mod text;

use std::fs::File;
use std::io::{Read, Seek as _, SeekFrom};
use std::path::{Path, PathBuf};
use std::time::Duration;

use onepool_core::files::hash::Hash;

pub use self::batch_thread::BatchThread;
pub use self::batcher::{BatchCounts, BatchOptions, Batcher, Running, TextId};
pub use self::cache_type::CacheType;
pub use self::embed::{EmbedOptions, Embedded, Embedder, Pooling};
pub use self::error::GenerateError;
pub use self::generator::{Generator, TextRequest};
#[cfg(feature = "grammar")]
pub use self::grammar::Grammar;
use self::graph_file::GraphFile;
pub use self::pages::{CachedPage, Eviction, LeastRecentlyUsed, PageCounts};
pub use self::pool::{PageOptions, PagePool, Pages};
pub use self::sampling::{Sampling, SamplingOverrides};
pub use self::scan::SampleOn;
use self::settings::Config;
use self::template::ChatTemplate;
pub use self::template::{Message, TemplateArgs};
use self::text::TextTokenizer;
use crate::files::open::regular;
use crate::graph::Tensor;
use crate::loader;
use crate::session::CancelToken;

/// A folder with a decoder's graph, its settings and its tokenizer, or a GGUF file, which has all of them.
#[derive(Debug)]
pub struct ModelFolder {
    folder: PathBuf,
    config: Config,
    tokenizer: TextTokenizer,
    template: Option<ChatTemplate>,
    template_args: TemplateArgs,
    sample_on: SampleOn,
    pages: Option<Pages>,
}

impl ModelFolder {
    /// Reads `genai_config.json` (else `config.json` and `generation_config.json`), `tokenizer.json`, and the chat template
    /// of `chat_template.jinja` or `tokenizer_config.json`. Of a GGUF file it reads the metadata. `folder` may be an ONNX
    /// file in the folder or in its folder `onnx`, which is the graph then.
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
                template: template.map(|(text, tokens)| ChatTemplate::new(&text, tokens)),
                template_args: TemplateArgs::default(),
                sample_on: SampleOn::Auto,
                pages: None,
            });
        }
        let (folder, file) = GraphFile::of(folder);
        ModelFolder::read(&folder, &file)
    }

    /// As [`ModelFolder::open`], with the graph whose name ends with `variant`, as `q4f16` in `onnx/model_q4f16.onnx`.
    ///
    /// # Errors
    /// As there; [`GenerateError::NoFile`] where there is no such graph, [`GenerateError::Unsupported`] for what is no end
    /// of a name.
    pub fn open_variant(folder: impl AsRef<Path>, variant: &str) -> Result<Self, GenerateError> {
        ModelFolder::read(folder.as_ref(), &GraphFile::variant(variant)?)
    }

    fn read(folder: &Path, file: &GraphFile) -> Result<Self, GenerateError> {
        files::check_folder(folder)?;
        let config = Config::read(folder, file)?;
        let tokenizer = TextTokenizer::new(&config::tokenizer(folder)?)?;
        let template = config::chat_template(folder)?;
        let template = template.map(|(text, tokens)| ChatTemplate::new(&text, tokens));
        let (folder, sample_on, template_args) = (folder.to_owned(), SampleOn::Auto, TemplateArgs::default());
        Ok(ModelFolder { folder, config, tokenizer, template, template_args, sample_on, pages: None })
    }

    /// Where generators of the folder choose tokens. A decoder that reads an encoder has its tokens chosen on the host.
    pub fn sample_on(self, sample_on: SampleOn) -> Self {
        ModelFolder { sample_on, ..self }
    }

    /// What the chat template reads besides the messages of a prompt.
    pub fn template_args(self, template_args: TemplateArgs) -> Self {
        ModelFolder { template_args, ..self }
    }

    /// Which pages generators of the folder have. A graph with GroupQueryAttention is changed for them; without this it has a
    /// cache of a fixed length. A graph with PagedAttention then has a pool of its own, which grows. Generators refuse graphs
    /// that can have no pages.
    pub fn in_pages(self, pages: Pages) -> Self {
        ModelFolder { pages: Some(pages), ..self }
    }

    /// What caches of generators of the folder hold, where that is not what the graph says: the graph's GroupQueryAttention is
    /// changed for it. Generators refuse other graphs.
    pub fn cache_type(mut self, cache_type: impl Into<Option<CacheType>>) -> Self {
        self.config.cache_type = cache_type.into();
        self
    }

    /// The file of the graph.
    pub fn graph(&self) -> PathBuf {
        self.folder.join(&self.config.graph)
    }

    /// The file of the encoder's graph, where the decoder reads one.
    pub fn encoder(&self) -> Option<PathBuf> {
        self.config.encoder.as_ref().map(|encoder| self.folder.join(&encoder.graph))
    }

    /// The file of the decoder without past, where the decoder's graph has no branch for it.
    pub fn first_graph(&self) -> Option<PathBuf> {
        let first = self.config.encoder.as_ref().and_then(|encoder| encoder.first.as_ref());
        first.map(|first| self.folder.join(first))
    }

    /// Tells this model from others: a hash of its settings, and of the length, the begin and the end of its
    /// graph and of each file that weights lie in.
    fn fingerprint(&self) -> Result<String, GenerateError> {
        const PART: u64 = 64 << 10;
        const MOST_FILES: usize = 1024;
        let path = self.graph();
        let failed = |source| GenerateError::Read { path: path.clone(), source };
        let mut hash = Hash::new();
        hash.put((&self.config.names, self.config.layers, self.config.heads));
        let mut put = |mut file: File, bytes: u64| {
            hash.put(bytes);
            for start in [0, bytes.saturating_sub(PART)] {
                let mut part = Vec::new();
                file.seek(SeekFrom::Start(start)).map_err(failed)?;
                Read::by_ref(&mut file).take(PART).read_to_end(&mut part).map_err(failed)?;
                hash.bytes(&part);
            }
            Ok::<_, GenerateError>(())
        };
        let (file, found) = regular(&path).map_err(failed)?;
        put(file, found.len())?;
        for name in loader::external_files(&path)?.iter().take(MOST_FILES) {
            let (file, bytes) = loader::open_external(&path, name)?;
            put(file, bytes)?;
        }
        Ok(hash.digest().hex())
    }

    /// How the settings want tokens to be chosen.
    pub fn sampling(&self) -> Sampling {
        self.config.sampling
    }

    /// Tokens that the model takes.
    pub fn context(&self) -> usize {
        self.config.context
    }

    /// The tokens of a prompt: those of the encoder where there is one, or those given with features.
    ///
    /// # Errors
    /// [`GenerateError::Tokenizer`], [`GenerateError::NoTemplate`], [`GenerateError::Template`].
    pub fn tokens(&self, prompt: Prompt<'_>) -> Result<Vec<u32>, GenerateError> {
        match prompt {
            Prompt::Text(text) => self.tokenizer.encode(text, true),
            Prompt::Chat(messages) => {
                let template = self.template.as_ref().ok_or(GenerateError::NoTemplate)?;
                self.tokenizer.encode(&template.prompt(messages, &self.template_args)?, false)
            }
            Prompt::Tokens(tokens) | Prompt::Features { tokens, .. } => Ok(tokens.to_vec()),
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
    /// What an encoder reads that takes no text, as the log-mel spectrogram of a sound.
    Features {
        /// As the encoder declares them, for one text: [1, bands, frames] of `float32` for Whisper.
        features: &'a Tensor,
        /// What the decoder goes on from; without any it is the token that the settings name.
        tokens: &'a [u32],
    },
}

/// A [`Prompt`] that has what it is made of, for who hands it to another thread.
#[derive(Clone, Debug)]
pub enum OwnedPrompt {
    /// A text as it is.
    Text(String),
    /// Messages.
    Chat(Vec<Message>),
    /// Tokens.
    Tokens(Vec<u32>),
    /// Features for the encoder, and tokens for the decoder.
    Features(Tensor, Vec<u32>),
}

impl OwnedPrompt {
    /// The prompt.
    pub fn prompt(&self) -> Prompt<'_> {
        match self {
            OwnedPrompt::Text(text) => Prompt::Text(text),
            OwnedPrompt::Chat(messages) => Prompt::Chat(messages),
            OwnedPrompt::Tokens(tokens) => Prompt::Tokens(tokens),
            OwnedPrompt::Features(features, tokens) => Prompt::Features { features, tokens },
        }
    }
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
    /// Whether the text goes on after a token that ends it, to measure or to compare. Texts that a grammar holds end.
    pub ignore_end: bool,
    /// What the text must be.
    #[cfg(feature = "grammar")]
    pub grammar: Option<Grammar>,
    /// The most tokens that are guessed at once from what came before, where the last ones were there already; 0 is none.
    /// The text is the same as without it, up to rounding.
    pub lookup: usize,
    /// Whether tokens at the begin of the prompt that the cache has from the text before are not computed again.
    pub reuse: bool,
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
    /// It is whole: its grammar allows nothing after it.
    Grammar,
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
    /// Those of them that were in the cache already.
    pub reused_tokens: usize,
    /// Tokens that were guessed, by look-up or by a draft model.
    pub guessed_tokens: usize,
    /// Those of them that became part of the text.
    pub accepted_tokens: usize,
    /// Why it ended.
    pub finish: Finish,
    /// What planning and binding took before the prompt.
    pub prepare_time: Duration,
    /// What the prompt took.
    pub prompt_time: Duration,
    /// What the tokens after the first one took.
    pub generation_time: Duration,
    /// Tokens that were chosen, with the one that ended the text.
    steps: usize,
}

impl Generated {
    /// Tokens of the prompt in a second, those that were computed.
    pub fn prompt_tokens_per_s(&self) -> f64 {
        rate(self.prompt_tokens - self.reused_tokens, self.prompt_time)
    }

    /// Tokens in a second, those after the first one; 0 where there is none.
    pub fn tokens_per_s(&self) -> f64 {
        rate(self.steps.saturating_sub(1), self.generation_time)
    }
}

fn rate(count: usize, time: Duration) -> f64 {
    if count == 0 || time.is_zero() { 0.0 } else { count as f64 / time.as_secs_f64() }
}
