//! What a text is made of and what was made, as Python gives and gets it.

use onepool::generate::{
    Finish, GenerateError, GenerateOptions, Generated, Grammar, Message, OwnedPrompt, Sampling,
    SamplingOverrides,
};
use onepool::session::CancelToken;
use onepool_core::error::chain;
use pyo3::conversion::FromPyObjectOwned;
use pyo3::exceptions::PyOverflowError;
use pyo3::prelude::*;
use pyo3::types::{PyString, PyTuple};

use crate::array::Array;
use crate::errors::Class;

/// A prompt of the caller's.
pub(crate) fn prompt_of(prompt: &Bound<'_, PyAny>) -> PyResult<OwnedPrompt> {
    if let Ok(text) = prompt.cast::<PyString>() {
        return Ok(OwnedPrompt::Text(text.to_cow()?.into_owned()));
    }
    if let Ok(pair) = prompt.cast::<PyTuple>() {
        let (features, tokens) = pair.extract::<(Bound<'_, PyAny>, Vec<u32>)>()?;
        let features = Array::of(&features, "features")?.copied(prompt.py(), "features")?;
        return Ok(OwnedPrompt::Features(features, tokens));
    }
    if let Ok(tokens) = prompt.extract::<Vec<u32>>() {
        return Ok(OwnedPrompt::Tokens(tokens));
    }
    let messages = prompt.extract::<Vec<String>>().map_err(|_| {
        Class::ArrayType.says(prompt.py(), "prompt: expected a text, messages, or numbers of tokens from 0")
    })?;
    let messages = messages.iter().map(|json| Message::from_json(json)).collect::<Result<_, _>>();
    messages
        .map(OwnedPrompt::Chat)
        .map_err(|e| Class::ArrayType.says(prompt.py(), format!("prompt: {}", chain(&e))))
}

/// How a text is made; what is not given is as the model's settings say.
#[derive(Debug)]
pub(crate) struct Settings {
    max_tokens: Option<usize>,
    temperature: Option<f32>,
    top_k: Option<usize>,
    top_p: Option<f32>,
    min_p: Option<f32>,
    repetition_penalty: Option<f32>,
    seed: u64,
    stop: Vec<String>,
    ignore_end: bool,
    json_schema: Option<String>,
    regex: Option<String>,
    grammar: Option<String>,
    lookup: usize,
    reuse: bool,
}

impl FromPyObject<'_, '_> for Settings {
    type Error = PyErr;

    fn extract(given: Borrowed<'_, '_, PyAny>) -> PyResult<Self> {
        Ok(Settings {
            max_tokens: setting(&given, "max_tokens")?,
            temperature: setting(&given, "temperature")?,
            top_k: setting(&given, "top_k")?,
            top_p: setting(&given, "top_p")?,
            min_p: setting(&given, "min_p")?,
            repetition_penalty: setting(&given, "repetition_penalty")?,
            seed: setting(&given, "seed")?,
            stop: setting(&given, "stop")?,
            ignore_end: setting(&given, "ignore_end")?,
            json_schema: setting(&given, "json_schema")?,
            regex: setting(&given, "regex")?,
            grammar: setting(&given, "grammar")?,
            lookup: setting(&given, "lookup")?,
            reuse: setting(&given, "reuse")?,
        })
    }
}

/// A setting by its name, which an error says.
pub(crate) fn setting<'py, T: FromPyObjectOwned<'py>>(given: &Bound<'py, PyAny>, name: &str) -> PyResult<T> {
    let py = given.py();
    given.get_item(name)?.extract::<T>().map_err(|e| {
        let e: PyErr = e.into();
        let is_number = e.is_instance_of::<PyOverflowError>(py);
        let class = if is_number { Class::Argument } else { Class::ArrayType };
        class.says(py, format!("{name}: {}", e.value(py)))
    })
}

impl Settings {
    fn sampling(&self, model: Sampling) -> Sampling {
        let &Settings { repetition_penalty, temperature, top_k, top_p, min_p, seed, .. } = self;
        SamplingOverrides { repetition_penalty, temperature, top_k, top_p, min_p, seed }.over(model)
    }

    /// What holds the text.
    fn grammar(&mut self, py: Python<'_>) -> PyResult<Option<Grammar>> {
        let kinds = [
            self.json_schema.take().map(Grammar::JsonSchema),
            self.regex.take().map(Grammar::Regex),
            self.grammar.take().map(Grammar::Lark),
        ];
        let mut given = kinds.into_iter().flatten();
        match (given.next(), given.next()) {
            (grammar, None) => Ok(grammar),
            _ => Err(Class::Argument.says(py, "json_schema, regex and grammar: at most one may be given")),
        }
    }

    /// The options of a text that `cancel` ends; settings that are not given are the `model`'s.
    pub(crate) fn options(
        mut self,
        py: Python<'_>,
        model: Sampling,
        cancel: CancelToken,
    ) -> PyResult<GenerateOptions> {
        let (sampling, grammar) = (self.sampling(model), self.grammar(py)?);
        sampling.check().map_err(|e| failed(py, e))?;
        let Settings { max_tokens, stop, ignore_end, lookup, reuse, .. } = self;
        let cancel = Some(cancel);
        Ok(GenerateOptions { max_tokens, sampling, stop, ignore_end, grammar, lookup, reuse, cancel })
    }
}

/// Text, tokens, tokens of the prompt, why it ended, seconds to prepare, for the prompt and for the other tokens, tokens
/// in a second of the prompt and of the text; tokens that were reused, guessed and accepted.
pub(crate) type Row = (String, Vec<u32>, usize, &'static str, f64, f64, f64, f64, f64, usize, usize, usize);

pub(crate) fn row(made: &Generated) -> Row {
    let finish = match made.finish {
        Finish::End(_) => "end",
        Finish::Stop(_) => "stop",
        Finish::Length => "length",
        Finish::Context => "context",
        Finish::Cancelled => "cancelled",
        Finish::Grammar => "grammar",
    };
    let [prepare, prompt, generation] =
        [made.prepare_time, made.prompt_time, made.generation_time].map(|time| time.as_secs_f64());
    (
        made.text.clone(),
        made.tokens.clone(),
        made.prompt_tokens,
        finish,
        prepare,
        prompt,
        generation,
        made.prompt_tokens_per_s(),
        made.tokens_per_s(),
        made.reused_tokens,
        made.guessed_tokens,
        made.accepted_tokens,
    )
}

pub(crate) fn failed(py: Python<'_>, error: GenerateError) -> PyErr {
    Class::from(error.class()).says(py, chain(&error))
}
