//! What a text is made of and what was made, as C gives and gets it.

use std::ffi::{c_char, c_void};
use std::ops::ControlFlow;

use onepool::Tensor;
use onepool::generate::{
    Finish, GenerateOptions, Generated, Grammar, Message, OwnedPrompt, Sampling, SamplingOverrides,
};
use onepool_core::error::chain;

use crate::arg::{In, Structure, Text, flag, null, unknown};
use crate::caller::Foreign;
use crate::cancel::token;
use crate::handle::Handle;
use crate::status::Failure;

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

/// Kinds of grammars, their numbers and names in the header.
pub const GRAMMARS: [(u32, &str); 4] = [
    (0, "ONEPOOL_GRAMMAR_NONE"),
    (1, "ONEPOOL_GRAMMAR_JSON_SCHEMA"),
    (2, "ONEPOOL_GRAMMAR_REGEX"),
    (3, "ONEPOOL_GRAMMAR_LARK"),
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
    /// In place of both: the whole message.
    pub json: Text,
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
    /// What the text must be.
    pub grammar: Text,
    /// Which kind that is.
    pub grammar_kind: u32,
    /// Whether what the cache has of the prompt is not computed again.
    pub reuse: u32,
    /// The most tokens that are guessed at once from the text.
    pub lookup: usize,
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
    /// Tokens of the prompt that were in the cache.
    pub reused_tokens: usize,
    /// Tokens that were guessed.
    pub guessed_tokens: usize,
    /// Those of them that became part of the text.
    pub accepted_tokens: usize,
}

// SAFETY: as above, of numbers.
unsafe impl Structure for GeneratedC {}

/// The prompt of the caller's.
pub(crate) fn prompt_of(options: &TextOptions) -> Result<OwnedPrompt, Failure> {
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
        return Ok(OwnedPrompt::Features(features, tokens));
    }
    if let Some(text) = text {
        return Ok(OwnedPrompt::Text(text));
    }
    if !tokens.is_empty() {
        return Ok(OwnedPrompt::Tokens(tokens));
    }
    let message = |(i, message): (usize, &ChatMessage)| {
        let field = |name: &str| format!("options.messages[{i}].{name}");
        if let Some(json) = message.json.optional(&field("json"))? {
            return Message::from_json(&json).map_err(|e| Failure::argument(&field("json"), chain(&e)));
        }
        Ok(Message::new(message.role.required(&field("role"))?, message.content.required(&field("content"))?))
    };
    Ok(OwnedPrompt::Chat(messages.iter().enumerate().map(message).collect::<Result<_, Failure>>()?))
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
    let given = SamplingOverrides {
        repetition_penalty: options.repetition_penalty.value("options.repetition_penalty")?,
        temperature: options.temperature.value("options.temperature")?,
        top_k: top_k.map(|k| usize::try_from(k).unwrap_or(usize::MAX)),
        top_p: options.top_p.value("options.top_p")?,
        min_p: options.min_p.value("options.min_p")?,
        seed: options.seed,
    };
    Ok(given.over(model))
}

/// What the text must be, where that is given.
fn grammar(options: &TextOptions) -> Result<Option<Grammar>, Failure> {
    let text = options.grammar.optional("options.grammar")?;
    let kind = match options.grammar_kind {
        0 if text.is_some() => {
            return Err(Failure::argument("options.grammar_kind", "is ONEPOOL_GRAMMAR_NONE with a grammar"));
        }
        0 => return Ok(None),
        1 => Grammar::JsonSchema,
        2 => Grammar::Regex,
        3 => Grammar::Lark,
        other => return Err(unknown("options.grammar_kind", other)),
    };
    text.map(|text| Some(kind(text))).ok_or_else(|| null("options.grammar"))
}

/// A text that is asked for.
pub(crate) struct Request {
    pub(crate) prompt: OwnedPrompt,
    pub(crate) options: GenerateOptions,
}

impl Request {
    /// Of what the caller gave; settings that are not given are the `model`'s.
    pub(crate) fn of(opts: In<TextOptions>, model: Sampling) -> Result<Self, Failure> {
        let opts = opts.required("options")?;
        Ok(Request { prompt: prompt_of(&opts)?, options: Self::settings(&opts, model)? })
    }

    /// The options of a text that goes on from another one, which is its prompt.
    pub(crate) fn fork(opts: In<TextOptions>, model: Sampling) -> Result<GenerateOptions, Failure> {
        let opts = opts.required("options")?;
        let counts = [opts.message_count, opts.token_count, opts.features_rank];
        if opts.text.optional("options.text")?.is_some() || counts.iter().any(|count| *count > 0) {
            return Err(Failure::argument("options", "has a prompt: the text goes on from the other one"));
        }
        Self::settings(&opts, model)
    }

    fn settings(opts: &TextOptions, model: Sampling) -> Result<GenerateOptions, Failure> {
        let stop = opts.stop.values(opts.stop_count, MOST, "options.stop")?.into_iter().enumerate();
        let stop = stop.map(|(i, text)| text.required(&format!("options.stop[{i}]")));
        let stop = stop.collect::<Result<Vec<_>, _>>()?;
        if opts.reserved != 0 {
            return Err(unknown("options.reserved", opts.reserved));
        }
        Ok(GenerateOptions {
            max_tokens: (opts.max_tokens > 0).then_some(opts.max_tokens),
            sampling: sampling(opts, model)?,
            stop,
            ignore_end: flag(opts.ignore_end, "options.ignore_end")?,
            grammar: grammar(opts)?,
            lookup: opts.lookup,
            reuse: flag(opts.reuse, "options.reuse")?,
            cancel: token(opts.cancel, "options.cancel")?,
        })
    }
}

/// Tells a callback of the caller's the pieces of a text.
pub(crate) fn teller(
    callback: TextCallback,
    user: *mut c_void,
) -> impl FnMut(&str) -> ControlFlow<()> + Send + 'static {
    let user = Foreign(user);
    move |piece: &str| match callback(user.pointer(), piece.as_ptr().cast(), piece.len()) {
        0 => ControlFlow::Continue(()),
        _ => ControlFlow::Break(()),
    }
}

impl GeneratedC {
    pub(crate) fn new(made: &Generated, struct_size: usize) -> Self {
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
            reused_tokens: made.reused_tokens,
            guessed_tokens: made.guessed_tokens,
            accepted_tokens: made.accepted_tokens,
        }
    }
}
