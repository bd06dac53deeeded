//! `onepool_generator`: text from language models.

use std::ffi::{c_char, c_void};
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::{Mutex, MutexGuard, TryLockError};

use onepool::Tensor;
use onepool::generate::{
    Finish, GenerateError, GenerateOptions, Generated, Generator, Message, ModelFolder, Prompt, Sampling,
};
use onepool::session::{Session, SessionBuilder};
use onepool_core::error::chain;

use crate::arg::{In, Out, Structure, Text, flag, unknown};
use crate::cancel::token;
use crate::handle::{Handle, Object, free, publish};
use crate::session::with_options;
use crate::status::{Failure, Status, guard};
use crate::types::SessionOptions;

/// The most messages, and the most strings that end a text.
const MOST: usize = 1 << 16;

/// The most tokens of a prompt.
const MOST_TOKENS: usize = 1 << 27;

/// The most elements of features, and the most sizes that they have.
const MOST_FEATURES: usize = 1 << 28;
const MOST_SIZES: usize = 8;

/// Why a text ended, its numbers and names in the header.
pub const FINISHES: [(u32, &str); 6] = [
    (0, "ONEPOOL_FINISH_END"),
    (1, "ONEPOOL_FINISH_STOP"),
    (2, "ONEPOOL_FINISH_LENGTH"),
    (3, "ONEPOOL_FINISH_CONTEXT"),
    (4, "ONEPOOL_FINISH_CANCELLED"),
    (5, "ONEPOOL_FINISH_GRAMMAR"),
];

/// `onepool_text_callback` of the header.
pub type TextCallback = extern "C" fn(user: *mut c_void, piece: *const c_char, bytes: usize) -> u32;

/// `onepool_message`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ChatMessage {
    /// Size of the structure.
    pub struct_size: usize,
    /// Who says it.
    pub role: Text,
    /// What is said.
    pub content: Text,
}

// SAFETY: `repr(C)`, begins with its size, holds pointers that may be anything.
unsafe impl Structure for ChatMessage {}

/// `onepool_generate_options`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct TextOptions {
    /// Size of the structure.
    pub struct_size: usize,
    /// The prompt as a text.
    pub text: Text,
    /// The prompt as messages.
    pub messages: In<ChatMessage>,
    /// How many.
    pub message_count: usize,
    /// The prompt as tokens.
    pub tokens: In<u32>,
    /// How many.
    pub token_count: usize,
    /// The most new tokens; 0 for as many as there is room for.
    pub max_tokens: usize,
    /// Sampling: 0 is greedy.
    pub temperature: In<f32>,
    /// Sampling: so many of the most likely tokens.
    pub top_k: In<u64>,
    /// Sampling: their share of the probability.
    pub top_p: In<f32>,
    /// Sampling: the least share of the most likely token's.
    pub min_p: In<f32>,
    /// Sampling: against repetition.
    pub repetition_penalty: In<f32>,
    /// Sampling: chooses the random numbers.
    pub seed: u64,
    /// Strings that end the text.
    pub stop: In<Text>,
    /// How many.
    pub stop_count: usize,
    /// Whether the text goes on after a token that ends it.
    pub ignore_end: u32,
    /// Zero.
    pub reserved: u32,
    /// What ends it early.
    pub cancel: Handle,
    /// The prompt as features, with `tokens` for the decoder.
    pub features: In<f32>,
    /// Their sizes.
    pub features_shape: In<usize>,
    /// How many sizes.
    pub features_rank: usize,
}

// SAFETY: as above.
unsafe impl Structure for TextOptions {}

/// `onepool_generated`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct GeneratedC {
    /// Size of the structure.
    pub struct_size: usize,
    /// New tokens.
    pub tokens: usize,
    /// Tokens of the prompt.
    pub prompt_tokens: usize,
    /// Why it ended.
    pub finish: u32,
    /// Zero.
    pub reserved: u32,
    /// What planning took.
    pub prepare_ns: u64,
    /// What the prompt took.
    pub prompt_ns: u64,
    /// What the tokens after the first one took.
    pub generation_ns: u64,
}

// SAFETY: as above, of numbers.
unsafe impl Structure for GeneratedC {}

/// What an `onepool_generator` stands for.
#[derive(Debug)]
struct GeneratorObject {
    generator: Mutex<Generator>,
    context: usize,
}

impl Object for GeneratorObject {
    const KIND: &'static str = "onepool_generator";
}

impl GeneratorObject {
    fn turn(&self) -> Result<MutexGuard<'_, Generator>, Failure> {
        match self.generator.try_lock() {
            Ok(generator) => Ok(generator),
            // The next text begins anew.
            Err(TryLockError::Poisoned(generator)) => Ok(generator.into_inner()),
            Err(TryLockError::WouldBlock) => {
                let message = "argument `generator` is in use: another call makes a text with it";
                Err(Failure::new(Status::Busy, message))
            }
        }
    }
}

pub(crate) fn failed(error: GenerateError) -> Failure {
    let status = if error.is_argument() { Status::InvalidArgument } else { Status::Model };
    match error {
        GenerateError::Session(error) => error.into(),
        error => Failure::new(status, chain(&error)),
    }
}

/// Why a model cannot be opened.
#[derive(Debug)]
pub(crate) enum OpenError {
    Model(GenerateError),
    Options(Failure),
}

impl From<GenerateError> for OpenError {
    fn from(error: GenerateError) -> Self {
        OpenError::Model(error)
    }
}

impl OpenError {
    pub(crate) fn failure(self) -> Failure {
        match self {
            OpenError::Model(error) => failed(error),
            OpenError::Options(failure) => failure,
        }
    }
}

/// A session with the caller's options.
pub(crate) fn built(builder: SessionBuilder, opts: In<SessionOptions>) -> Result<Session, OpenError> {
    let builder = with_options(builder, opts).map_err(OpenError::Options)?;
    builder.build().map_err(|error| OpenError::Options(error.into()))
}

/// `onepool_generator_open` of the header.
///
/// # Safety
/// The arguments are as the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn onepool_generator_open(
    path: Text,
    opts: In<SessionOptions>,
    context: usize,
    generator: Out<Handle>,
) -> Status {
    guard(|| {
        let place = generator.place("generator")?;
        let path = path.required("path")?;
        let session = |builder, _: &Path| built(builder, opts);
        let folder = ModelFolder::open(path).map_err(failed)?;
        let context = (context > 0).then_some(context);
        let generator = Generator::open(folder, context, session).map_err(OpenError::failure)?;
        let context = generator.context();
        publish(GeneratorObject { generator: Mutex::new(generator), context }, place);
        Ok(())
    })
}

/// `onepool_generator_free` of the header.
#[unsafe(no_mangle)] // SAFETY: no other library has names that begin with `onepool_`.
pub extern "C" fn onepool_generator_free(generator: Handle) -> Status {
    free::<GeneratorObject>(generator, "generator")
}

/// `onepool_generator_context` of the header.
///
/// # Safety
/// The arguments are as the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn onepool_generator_context(generator: Handle, tokens: Out<usize>) -> Status {
    guard(|| {
        let place = tokens.place("tokens")?;
        place.set(generator.get::<GeneratorObject>("generator")?.context);
        Ok(())
    })
}

/// A prompt of the caller's.
enum Given {
    Text(String),
    Chat(Vec<Message>),
    Tokens(Vec<u32>),
    /// With tokens for the decoder.
    Features(Tensor, Vec<u32>),
}

impl Given {
    fn of(options: &TextOptions) -> Result<Self, Failure> {
        let text = options.text.optional("options.text")?;
        let messages = options.messages.list(options.message_count, MOST, "options.messages")?;
        let tokens = options.tokens.values(options.token_count, MOST_TOKENS, "options.tokens")?;
        let features = features(options)?;
        let given = usize::from(text.is_some()) + usize::from(!messages.is_empty());
        if given + usize::from(features.is_some() || !tokens.is_empty()) != 1 {
            let problem = "has not one prompt: `text`, `messages`, `tokens` or `features`";
            return Err(Failure::argument("options", problem));
        }
        if let Some(features) = features {
            return Ok(Given::Features(features, tokens));
        }
        if let Some(text) = text {
            return Ok(Given::Text(text));
        }
        if !tokens.is_empty() {
            return Ok(Given::Tokens(tokens));
        }
        let message = |(i, message): (usize, &ChatMessage)| {
            let field = |name: &str| format!("options.messages[{i}].{name}");
            Ok(Message::new(
                message.role.required(&field("role"))?,
                message.content.required(&field("content"))?,
            ))
        };
        Ok(Given::Chat(messages.iter().enumerate().map(message).collect::<Result<_, Failure>>()?))
    }

    fn prompt(&self) -> Prompt<'_> {
        match self {
            Given::Text(text) => Prompt::Text(text),
            Given::Chat(messages) => Prompt::Chat(messages),
            Given::Tokens(tokens) => Prompt::Tokens(tokens),
            Given::Features(features, tokens) => Prompt::Features { features, tokens },
        }
    }
}

/// The features that are given.
fn features(options: &TextOptions) -> Result<Option<Tensor>, Failure> {
    if options.features.is_null() && options.features_rank == 0 {
        return Ok(None);
    }
    let sizes = options.features_shape.values(options.features_rank, MOST_SIZES, "options.features_shape")?;
    let count = sizes.iter().try_fold(1_usize, |all, size| all.checked_mul(*size)).unwrap_or(usize::MAX);
    let values = options.features.values(count, MOST_FEATURES, "options.features")?;
    let tensor = Tensor::new(sizes, &values);
    tensor.map(Some).map_err(|e| Failure::argument("options.features_shape", chain(&e)))
}

/// Sampling by the settings that are given, else the model's.
fn sampling(options: &TextOptions, model: Sampling) -> Result<Sampling, Failure> {
    let top_k = options.top_k.value("options.top_k")?;
    let top_k = top_k.map(|k| usize::try_from(k).unwrap_or(usize::MAX));
    let (top_p, min_p) = (options.top_p.value("options.top_p")?, options.min_p.value("options.min_p")?);
    let samples = top_k.is_some() || top_p.is_some() || min_p.is_some();
    let warm = if samples && model.temperature == 0.0 { 1.0 } else { model.temperature };
    let penalty = options.repetition_penalty.value("options.repetition_penalty")?;
    Ok(Sampling {
        temperature: options.temperature.value("options.temperature")?.unwrap_or(warm),
        top_k: top_k.unwrap_or(model.top_k),
        top_p: top_p.unwrap_or(model.top_p),
        min_p: min_p.unwrap_or(model.min_p),
        repetition_penalty: penalty.unwrap_or(model.repetition_penalty),
        seed: options.seed,
    })
}

/// `onepool_generator_tokens` of the header.
///
/// # Safety
/// The arguments are as the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn onepool_generator_tokens(
    generator: Handle,
    opts: In<TextOptions>,
    tokens: *mut u32,
    room: usize,
    count: Out<usize>,
) -> Status {
    guard(|| {
        let place = count.place("count")?;
        if tokens.is_null() && room > 0 {
            return Err(crate::arg::null("tokens"));
        }
        let object = generator.get::<GeneratorObject>("generator")?;
        let given = Given::of(&opts.required("options")?)?;
        let made = object.turn()?.folder().tokens(given.prompt()).map_err(failed)?;
        for (i, token) in made.iter().take(room).enumerate() {
            // SAFETY: the caller promised room for so many tokens.
            unsafe { tokens.add(i).write_unaligned(*token) };
        }
        place.set(made.len());
        Ok(())
    })
}

/// `onepool_generate` of the header.
///
/// # Safety
/// The arguments are as the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn onepool_generate(
    generator: Handle,
    opts: In<TextOptions>,
    callback: Option<TextCallback>,
    user: *mut c_void,
    generated: Out<GeneratedC>,
) -> Status {
    guard(|| {
        let callback = callback.ok_or_else(|| crate::arg::null("callback"))?;
        let place = match generated.optional() {
            Some(_) => Some(generated.room("generated")?),
            None => None,
        };
        let object = generator.get::<GeneratorObject>("generator")?;
        let opts = opts.required("options")?;
        let given = Given::of(&opts)?;
        let stop = opts.stop.values(opts.stop_count, MOST, "options.stop")?.into_iter().enumerate();
        let stop = stop.map(|(i, text)| text.required(&format!("options.stop[{i}]")));
        let stop = stop.collect::<Result<Vec<_>, _>>()?;
        if opts.reserved != 0 {
            return Err(unknown("options.reserved", opts.reserved));
        }
        let cancel = token(opts.cancel, "options.cancel")?;
        let ignore_end = flag(opts.ignore_end, "options.ignore_end")?;
        let mut generator = object.turn()?;
        let sampling = sampling(&opts, generator.folder().sampling())?;
        let max_tokens = (opts.max_tokens > 0).then_some(opts.max_tokens);
        let options =
            GenerateOptions { max_tokens, sampling, stop, ignore_end, cancel, ..GenerateOptions::default() };
        let made = generator.generate(given.prompt(), &options, |piece| {
            match callback(user, piece.as_ptr().cast(), piece.len()) {
                0 => ControlFlow::Continue(()),
                _ => ControlFlow::Break(()),
            }
        });
        let made = made.map_err(failed)?;
        if let Some((place, size)) = place {
            place.set(GeneratedC::new(&made, size));
        }
        Ok(())
    })
}

impl GeneratedC {
    fn new(made: &Generated, struct_size: usize) -> Self {
        let finish = match made.finish {
            Finish::End(_) => 0,
            Finish::Stop(_) => 1,
            Finish::Length => 2,
            Finish::Context => 3,
            Finish::Cancelled => 4,
            Finish::Grammar => 5,
        };
        let ns = |time: std::time::Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        GeneratedC {
            struct_size,
            tokens: made.tokens.len(),
            prompt_tokens: made.prompt_tokens,
            finish,
            reserved: 0,
            prepare_ns: ns(made.prepare_time),
            prompt_ns: ns(made.prompt_time),
            generation_ns: ns(made.generation_time),
        }
    }
}
