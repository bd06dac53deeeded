//! What the settings of a model say, whichever files they are in.

use std::path::{Path, PathBuf};

use serde::Deserialize;
use serde::de::DeserializeOwned;

use super::error::GenerateError;
use super::files::read_optional;
use super::sampling::Sampling;

/// Names of the graph's inputs and outputs; `%d` stands for the layer.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Names {
    pub(super) ids: String,
    pub(super) mask: String,
    pub(super) positions: String,
    /// The number of tokens in the cache, which some decoders that read an encoder take.
    pub(super) past_len: String,
    pub(super) past: [String; 2],
    pub(super) logits: String,
    pub(super) present: [String; 2],
    /// Where the tokens of each sequence end, how many it has already, and its pages, in graphs with a cache in pages.
    pub(super) pages: [String; 3],
}

impl Default for Names {
    fn default() -> Self {
        let text = str::to_owned;
        Names {
            ids: text("input_ids"),
            mask: text("attention_mask"),
            positions: text("position_ids"),
            past_len: text("past_sequence_length"),
            past: [text("past_key_values.%d.key"), text("past_key_values.%d.value")],
            logits: text("logits"),
            present: [text("present.%d.key"), text("present.%d.value")],
            pages: ["cumulative_sequence_lengths", "past_sequence_lengths", "block_table"].map(text),
        }
    }
}

/// What is known of a model without its graph.
#[derive(Clone, Debug)]
pub(super) struct Config {
    pub(super) graph: PathBuf,
    pub(super) names: Names,
    pub(super) layers: usize,
    /// Heads of the cache and elements of each, where told.
    pub(super) heads: [Option<usize>; 2],
    /// Tokens that the model takes.
    pub(super) context: usize,
    /// Tokens that the settings want a cache for.
    pub(super) max_length: usize,
    /// Tokens that end a text.
    pub(super) ends: Vec<u32>,
    pub(super) sampling: Sampling,
    /// What is asked for and not done.
    pub(super) remarks: Vec<String>,
    /// The rest of a model whose decoder reads an encoder.
    pub(super) encoder: Option<EncoderConfig>,
}

/// What a decoder needs that reads an encoder.
#[derive(Clone, Debug)]
pub(super) struct EncoderConfig {
    /// The encoder's graph.
    pub(super) graph: PathBuf,
    /// The graph of a decoder without past, where the decoder's graph has no branch for it.
    pub(super) first: Option<PathBuf>,
    /// Tokens that each text of the decoder begins with.
    pub(super) starts: Vec<u32>,
    /// Tokens that an encoder of text takes.
    pub(super) context: usize,
    /// Elements of what the encoder gives for a token, where told.
    pub(super) hidden: Option<usize>,
    pub(super) names: CrossNames,
}

/// Names of what goes into an encoder, and from it to its decoder; `%d` stands for the layer.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct CrossNames {
    /// Inputs of an encoder of text: its tokens, and which of them there are.
    pub(super) ids: String,
    pub(super) mask: String,
    /// The input of an encoder of features, where told.
    pub(super) features: Option<String>,
    /// Outputs of the encoder of which the decoder reads the first that there is.
    pub(super) encoded: Vec<String>,
    /// Inputs of the decoder: the encoder's output, and which of its rows there are.
    pub(super) hidden: String,
    pub(super) shown: String,
    /// Inputs of the decoder for keys and values of the encoder's output, where it has any.
    pub(super) past: Option<[String; 2]>,
    /// Outputs of the decoder's first run that give them.
    pub(super) by_decoder: Option<[String; 2]>,
    /// Outputs of the encoder that give them.
    pub(super) by_encoder: Option<[String; 2]>,
}

impl CrossNames {
    /// All names that are made for each layer.
    pub(super) fn patterns(&self) -> impl Iterator<Item = &String> {
        [&self.past, &self.by_decoder, &self.by_encoder].into_iter().flatten().flatten()
    }
}

/// The name that a pattern gives to a layer.
pub(super) fn layer_name(pattern: &str, layer: usize) -> String {
    pattern.replacen("%d", &layer.to_string(), 1)
}

#[derive(Deserialize)]
#[serde(untagged)]
pub(super) enum OneOrMore {
    One(u32),
    More(Vec<u32>),
}

impl OneOrMore {
    pub(super) fn into_vec(self) -> Vec<u32> {
        match self {
            OneOrMore::One(token) => vec![token],
            OneOrMore::More(tokens) => tokens,
        }
    }
}

/// Settings of a search; those of `generation_config.json` have the same names.
#[derive(Default, Deserialize)]
pub(super) struct Search {
    pub(super) eos_token_id: Option<OneOrMore>,
    pub(super) decoder_start_token_id: Option<u32>,
    pub(super) forced_bos_token_id: Option<u32>,
    suppress_tokens: Option<Vec<i64>>,
    pub(super) max_length: Option<usize>,
    num_beams: Option<usize>,
    do_sample: Option<bool>,
    temperature: Option<f32>,
    top_k: Option<usize>,
    top_p: Option<f32>,
    min_p: Option<f32>,
    repetition_penalty: Option<f32>,
}

impl Search {
    /// Reads `generation_config.json` of a folder, which need not be there.
    ///
    /// # Errors
    /// [`GenerateError`] for a file that cannot be read or holds something else.
    pub(super) fn read(folder: &Path) -> Result<Self, GenerateError> {
        let path = folder.join("generation_config.json");
        match read_optional(&path)? {
            Some(text) => parse(&path, &text),
            None => Ok(Search::default()),
        }
    }

    pub(super) fn sampling(&self) -> Sampling {
        let greedy = Sampling::GREEDY;
        let repetition_penalty = self.repetition_penalty.unwrap_or(greedy.repetition_penalty);
        if self.do_sample != Some(true) {
            return Sampling { repetition_penalty, ..greedy };
        }
        Sampling {
            repetition_penalty,
            temperature: self.temperature.unwrap_or(1.0),
            top_k: self.top_k.unwrap_or(greedy.top_k),
            top_p: self.top_p.unwrap_or(greedy.top_p),
            min_p: self.min_p.unwrap_or(greedy.min_p),
            seed: 0,
        }
    }

    pub(super) fn remarks(&self) -> Vec<String> {
        let beams = self.num_beams.filter(|n| *n > 1);
        let beams = beams
            .map(|n| format!("the settings ask for {n} beams: there is no beam search, one token is chosen"));
        let suppressed = self.suppress_tokens.as_ref().filter(|tokens| !tokens.is_empty());
        let suppressed = suppressed
            .map(|tokens| format!("the settings suppress {} tokens: none is suppressed here", tokens.len()));
        beams.into_iter().chain(suppressed).collect()
    }
}

/// Reads JSON, which is that of the file `path`.
///
/// # Errors
/// [`GenerateError::Content`].
pub(super) fn parse<T: DeserializeOwned>(path: &Path, text: &str) -> Result<T, GenerateError> {
    serde_json::from_str(text)
        .map_err(|e| GenerateError::Content { path: path.to_owned(), problem: e.to_string() })
}
