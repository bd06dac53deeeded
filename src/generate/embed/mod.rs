//! Vectors of texts from models of sentence-transformers.

mod pooling;
mod settings;

use std::path::{Path, PathBuf};

pub use self::pooling::Pooling;
use self::pooling::normalize;
use self::settings::Settings;
use super::config;
use super::error::GenerateError;
use super::files::check_folder;
use super::input::IntInput;
use super::text::TextTokenizer;
use crate::graph::Tensor;
use crate::session::{CancelToken, IoInfo, Memory, RunOptions, Session, SessionBuilder};
use crate::shape::Dim;

/// Texts are filled up to a power of two of tokens from here on, so that a few plans serve all lengths.
const LEAST_TOKENS: usize = 16;
/// The most texts of a run.
const MOST_TEXTS: usize = 32;
/// The output of graphs that have the modules after the transformer too.
const WHOLE: &str = "sentence_embedding";
/// Outputs with a vector for each token.
const TOKENS: [&str; 2] = ["last_hidden_state", "token_embeddings"];

/// How [`Embedder::embed`] makes vectors.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct EmbedOptions {
    /// The name of a text that the model's settings put before each text, such as "query"; without it the
    /// settings' default, which may be none.
    pub prompt: Option<String>,
    /// Takes so many elements of each vector, of models whose first ones are made to do alone.
    pub dims: Option<usize>,
    /// Ends it early, with an error.
    pub cancel: Option<CancelToken>,
}

/// Vectors of texts.
#[derive(Clone, Debug)]
pub struct Embedded {
    /// [texts, elements] of float32.
    pub vectors: Tensor,
    /// Tokens of each text, with what marks its begin and end and what was put before it.
    pub tokens: Vec<usize>,
    /// Texts whose end was cut, because the model takes fewer tokens: their places.
    pub cut: Vec<usize>,
}

/// A model that makes one vector ("embedding") of a text, so that texts of a like meaning have vectors of a like direction.
///
/// A folder holds `model.onnx` or `onnx/model.onnx`, `tokenizer.json`, and the settings of sentence-transformers:
/// `modules.json` with its poolings, `sentence_bert_config.json`, `config_sentence_transformers.json`, `config.json`.
///
/// ```no_run
/// use onepool::generate::{EmbedOptions, Embedder, GenerateError};
///
/// let embedder = Embedder::open("models/all-MiniLM-L6-v2", |builder, _| Ok::<_, GenerateError>(builder.build()?))?;
/// let made = embedder.embed(&["a cat", "a kitten", "a lorry"], &EmbedOptions::default())?;
/// println!("{}", made.vectors.shape());
/// # Ok::<(), GenerateError>(())
/// ```
#[derive(Debug)]
pub struct Embedder {
    session: Session,
    tokenizer: TextTokenizer,
    settings: Settings,
    ids: IntInput,
    /// Mask, kinds of tokens and positions, where the graph has them.
    others: Vec<(Other, IntInput)>,
    output: Output,
    /// The number of texts and of tokens, where the graph fixes them.
    fixed: [Option<usize>; 2],
}

#[derive(Clone, Copy, Debug)]
enum Other {
    Mask,
    Kinds,
    Positions,
}

#[derive(Debug)]
enum Output {
    Whole,
    Tokens(&'static str),
}

/// The tokens of a text.
struct Row {
    text: usize,
    tokens: Vec<u32>,
    /// Tokens that do not count in poolings.
    skipped: usize,
}

impl Embedder {
    /// Opens the model in `folder`. `session` gets a builder that has the graph, and the graph's file.
    ///
    /// # Errors
    /// [`GenerateError`] for files that do not hold what they should and for a graph that is no such model,
    /// and what `session` says.
    pub fn open<E: From<GenerateError>>(
        folder: impl AsRef<Path>,
        session: impl FnOnce(SessionBuilder, &Path) -> Result<Session, E>,
    ) -> Result<Self, E> {
        let folder = folder.as_ref();
        check_folder(folder)?;
        let settings = Settings::read(folder)?;
        let tokenizer = TextTokenizer::new(&config::tokenizer(folder)?)?;
        let session = session(Session::builder().model(&settings.graph), &settings.graph)?;
        Ok(Embedder::new(session, tokenizer, settings)?)
    }

    fn new(session: Session, tokenizer: TextTokenizer, settings: Settings) -> Result<Self, GenerateError> {
        let (inputs, outputs) = (session.inputs(), session.outputs());
        let unsupported =
            |what: String| GenerateError::Unsupported(format!("{} {what}", settings.graph.display()));
        let names = |all: &[IoInfo]| all.iter().map(|io| io.name.clone()).collect::<Vec<_>>();
        let has = |name: &str| outputs.iter().any(|io| io.name == name);
        let output = match TOKENS.into_iter().find(|name| has(name)) {
            _ if has(WHOLE) => Output::Whole,
            Some(name) => Output::Tokens(name),
            None => {
                let known = names(&outputs);
                return Err(unsupported(format!(
                    "has the outputs {known:?}: a vector for each token is {TOKENS:?}, one for each text {WHOLE:?}"
                )));
            }
        };
        let Some(ids) = IntInput::find(&inputs, "input_ids")? else {
            return Err(unsupported(format!("has no input \"input_ids\", but {:?}", names(&inputs))));
        };
        let mut others = Vec::new();
        for (kind, name) in [
            (Other::Mask, "attention_mask"),
            (Other::Kinds, "token_type_ids"),
            (Other::Positions, "position_ids"),
        ] {
            others.extend(IntInput::find(&inputs, name)?.map(|input| (kind, input)));
        }
        let is_known =
            |io: &&IoInfo| io.name != ids.name && !others.iter().any(|(_, input)| input.name == io.name);
        if let Some(input) = inputs.iter().find(is_known) {
            let what = "an encoder of text takes input_ids, attention_mask, token_type_ids and position_ids";
            return Err(unsupported(format!("has the input {:?}: {what}", input.name)));
        }
        let declared = inputs.iter().find(|io| io.name == ids.name).and_then(|io| io.shape.clone());
        let known = |axis: usize| match declared.as_ref().and_then(|shape| shape.0.get(axis)) {
            Some(Dim::Known(size)) => Some((*size).max(1)),
            _ => None,
        };
        let fixed = [known(0), known(1)];
        let tokens = fixed[1].unwrap_or(usize::MAX).min(settings.tokens.max(1));
        let settings = Settings { tokens, ..settings };
        Ok(Embedder { session, tokenizer, settings, ids, others, output, fixed })
    }

    /// The session that the graph runs on.
    pub fn session(&self) -> &Session {
        &self.session
    }

    /// The file of the graph.
    pub fn graph(&self) -> PathBuf {
        self.settings.graph.clone()
    }

    /// The most tokens of a text; what is longer is cut.
    pub fn max_tokens(&self) -> usize {
        self.settings.tokens
    }

    /// Names of texts that [`EmbedOptions::prompt`] can put before texts.
    pub fn prompts(&self) -> impl Iterator<Item = &str> {
        self.settings.prompts.keys().map(String::as_str)
    }

    /// The vectors of `texts`, which run in groups of like lengths.
    ///
    /// # Errors
    /// [`GenerateError::Setting`] for an option that the model cannot have, and what the tokenizer and the session say.
    pub fn embed(&self, texts: &[&str], options: &EmbedOptions) -> Result<Embedded, GenerateError> {
        let mut rows = Vec::new();
        let mut cut = Vec::new();
        let (before, skipped) = self.before(options)?;
        for (text, content) in texts.iter().enumerate() {
            let (tokens, is_cut) = self.tokens(&format!("{before}{content}"))?;
            cut.extend(is_cut.then_some(text));
            rows.push(Row { text, skipped: skipped.min(tokens.len().saturating_sub(1)), tokens });
        }
        let tokens = rows.iter().map(|row| row.tokens.len()).collect();
        // Texts of one length run together.
        rows.sort_by_key(|row| (self.filled(row.tokens.len()), row.text));
        // Without a token the session's own options hold.
        let run = options.cancel.as_ref().map(|token| RunOptions::new().cancel(token));
        let mut made: Vec<Vec<f32>> = vec![Vec::new(); texts.len()];
        let mut rest = rows.as_slice();
        while let Some(first) = rest.first() {
            let length = self.filled(first.tokens.len());
            let alike = rest.iter().take_while(|row| self.filled(row.tokens.len()) == length).count();
            let most = self.fixed[0].unwrap_or(MOST_TEXTS);
            // Powers of two, so that a few plans serve all numbers.
            let count = if alike >= most { most } else { 1 << alike.ilog2() };
            let (group, others) = rest.split_at(count.min(alike));
            for (row, vector) in group.iter().zip(self.run(group, length, run.as_ref())?) {
                if let Some(place) = made.get_mut(row.text) {
                    *place = vector;
                }
            }
            rest = others;
        }
        let width = made.first().map_or(0, Vec::len);
        if let Some(dims) = options.dims {
            if !texts.is_empty() && !(1..=width).contains(&dims) {
                let (value, expected) = (dims.to_string(), "1 to the length of the model's vectors");
                return Err(GenerateError::Setting { name: "dims", value, expected });
            }
            for vector in &mut made {
                vector.truncate(dims);
                if self.settings.normalized {
                    normalize(vector);
                }
            }
        }
        let width = made.first().map_or(0, Vec::len);
        Ok(Embedded { vectors: Tensor::new([texts.len(), width], &made.concat())?, tokens, cut })
    }

    /// What is put before texts, and how many tokens of it do not count.
    fn before(&self, options: &EmbedOptions) -> Result<(&str, usize), GenerateError> {
        let Some(name) = options.prompt.as_ref().or(self.settings.prompt.as_ref()) else {
            return Ok(("", 0));
        };
        let Some(text) = self.settings.prompts.get(name) else {
            let (value, expected) =
                (format!("{name:?}"), "a name that config_sentence_transformers.json has");
            return Err(GenerateError::Setting { name: "prompt", value, expected });
        };
        // Without the token that marks an end, as sentence-transformers counts.
        let skipped =
            if self.settings.prompt_counts { 0 } else { self.tokens(text)?.0.len().saturating_sub(1) };
        Ok((text, skipped))
    }

    /// The tokens of a text, and whether its end is cut.
    fn tokens(&self, text: &str) -> Result<(Vec<u32>, bool), GenerateError> {
        let lower = self.settings.lower_case.then(|| text.to_lowercase());
        // As sentence-transformers does.
        let text = lower.as_deref().unwrap_or(text).trim();
        let tokens = self.tokenizer.encode(text, true)?;
        if tokens.is_empty() {
            return Ok((vec![self.settings.filler], false));
        }
        if tokens.len() <= self.settings.tokens {
            return Ok((tokens, false));
        }
        Ok((self.tokenizer.encode_cut(text, self.settings.tokens)?, true))
    }

    /// Tokens that texts of `tokens` are filled up to.
    fn filled(&self, tokens: usize) -> usize {
        let most = self.settings.tokens;
        self.fixed[1]
            .unwrap_or_else(|| tokens.max(LEAST_TOKENS.min(most)).next_power_of_two().min(most.max(tokens)))
    }

    /// The vectors of `rows`, filled up to `length` tokens each.
    fn run(
        &self,
        rows: &[Row],
        length: usize,
        options: Option<&RunOptions>,
    ) -> Result<Vec<Vec<f32>>, GenerateError> {
        let count = self.fixed[0].unwrap_or(rows.len());
        let shape = [count, length];
        // A model that fixes the number of texts gets the last one again.
        let padded = || (0..count).filter_map(|at| rows.get(at).or(rows.last()));
        let values = |of: &dyn Fn(&Row, usize) -> i64| -> Vec<i64> {
            padded().flat_map(|row| (0..length).map(|at| of(row, at))).collect()
        };
        let filler = i64::from(self.settings.filler);
        let ids = values(&|row, at| row.tokens.get(at).map_or(filler, |token| i64::from(*token)));
        let mut builder =
            self.session.bind().input(&self.ids.name, Memory::value(self.ids.tensor(&shape, &ids)?));
        for (kind, input) in &self.others {
            let given = match kind {
                Other::Mask => values(&|row, at| i64::from(at < row.tokens.len())),
                Other::Kinds => values(&|_, _| 0),
                Other::Positions => values(&|_, at| at as i64),
            };
            builder = builder.input(&input.name, Memory::value(input.tensor(&shape, &given)?));
        }
        let mut binding = builder.build()?;
        match options {
            Some(options) => binding.run_with(options)?,
            None => binding.run()?,
        }
        let (name, is_whole) = match self.output {
            Output::Whole => (WHOLE, true),
            Output::Tokens(name) => (name, false),
        };
        let made = binding.get_output(name)?;
        let sizes = made.shape().dims();
        let width = sizes.last().copied().unwrap_or(0);
        let expected: &[usize] = if is_whole { &[count, width] } else { &[count, length, width] };
        if sizes != expected {
            let expected = if is_whole { "[texts, elements]" } else { "[texts, tokens, elements]" };
            return Err(GenerateError::Shape {
                name: name.to_owned(),
                expected,
                got: made.shape().to_string(),
            });
        }
        let all = made.to_f32s().map_err(crate::session::Error::from)?;
        let each = if is_whole { width } else { length * width };
        let vectors = rows.iter().zip(all.chunks_exact(each.max(1))).map(|(row, all)| {
            if is_whole {
                return all.to_vec();
            }
            let own = all.get(..row.tokens.len() * width).unwrap_or(all);
            let mut vector: Vec<f32> =
                self.settings.pooling.iter().flat_map(|way| way.of(own, width, row.skipped)).collect();
            if self.settings.normalized {
                normalize(&mut vector);
            }
            vector
        });
        Ok(vectors.collect())
    }
}
