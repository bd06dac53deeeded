//! What the settings of a model say, whichever files they are in.

use std::path::{Path, PathBuf};

use serde::Deserialize;
use serde::de::DeserializeOwned;

use super::cache_type::CacheType;
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
    pub(super) bans: Bans,
    /// What is asked for and not done.
    pub(super) remarks: Vec<String>,
    /// The rest of a model whose decoder reads an encoder.
    pub(super) encoder: Option<EncoderConfig>,
    /// What the cache is to hold, where that is not as the graph has it.
    pub(super) cache_type: Option<CacheType>,
    /// The most tokens that a token of some layer sees, where the settings tell it.
    pub(super) window: Option<usize>,
}

impl Config {
    /// Names of the caches of all layers, before and after a run.
    pub(super) fn cache_names(&self) -> impl Iterator<Item = [String; 2]> {
        let both = self.names.past.iter().zip(&self.names.present);
        (0..self.layers).flat_map(move |layer| {
            both.clone().map(move |(past, present)| [past, present].map(|name| layer_name(name, layer)))
        })
    }

    /// Names of the keys and values of an encoder's output of all layers, and of the decoder's outputs that make them.
    pub(super) fn cross_names(&self) -> impl Iterator<Item = [String; 2]> {
        let names = self.encoder.as_ref().map(|encoder| &encoder.names);
        let both = names.and_then(|names| names.past.as_ref().zip(names.by_decoder.as_ref()));
        let both = both.into_iter().flat_map(|(past, present)| past.iter().zip(present));
        (0..self.layers).flat_map(move |layer| {
            both.clone().map(move |(past, present)| [past, present].map(|name| layer_name(name, layer)))
        })
    }
}

#[cfg(test)]
impl Config {
    /// Of a decoder of one layer with the usual names, for 64 tokens.
    pub(super) fn of_one_layer() -> Self {
        Config {
            graph: PathBuf::new(),
            names: Names::default(),
            layers: 1,
            heads: [None, None],
            context: 64,
            max_length: 64,
            ends: Vec::new(),
            sampling: Sampling::GREEDY,
            bans: Bans::default(),
            remarks: Vec::new(),
            encoder: None,
            cache_type: None,
            window: None,
        }
    }
}

/// Tokens that the settings do not let a text have.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Bans {
    /// Nowhere.
    pub(super) always: Vec<u32>,
    /// Not as the first token.
    pub(super) first: Vec<u32>,
    /// Tokens that a text has before it may end: with its prompt, and without it.
    pub(super) least: [usize; 2],
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
    forced_eos_token_id: Option<OneOrMore>,
    forced_decoder_ids: Option<Vec<serde_json::Value>>,
    suppress_tokens: Option<Vec<i64>>,
    begin_suppress_tokens: Option<Vec<i64>>,
    bad_words_ids: Option<Vec<Vec<u32>>>,
    min_length: Option<usize>,
    min_new_tokens: Option<usize>,
    no_repeat_ngram_size: Option<usize>,
    num_return_sequences: Option<usize>,
    typical_p: Option<f32>,
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

    pub(super) fn bans(&self) -> Bans {
        // A negative number stands for none.
        let tokens = |list: &Option<Vec<i64>>| -> Vec<u32> {
            list.iter().flatten().filter_map(|token| u32::try_from(*token).ok()).collect()
        };
        let words = self.bad_words_ids.iter().flatten();
        let single = words.filter_map(|word| if let [token] = word[..] { Some(token) } else { None });
        Bans {
            always: tokens(&self.suppress_tokens).into_iter().chain(single).collect(),
            first: tokens(&self.begin_suppress_tokens),
            least: [self.min_length, self.min_new_tokens].map(Option::unwrap_or_default),
        }
    }

    /// What changes texts and is not done.
    pub(super) fn remarks(&self) -> Vec<String> {
        let several = |n: Option<usize>| n.filter(|n| *n > 1);
        let words = self.bad_words_ids.iter().flatten().filter(|word| word.len() > 1).count();
        let forced = self.forced_decoder_ids.as_ref().filter(|ids| !ids.is_empty());
        let typical = self.typical_p.filter(|p| *p < 1.0 && self.do_sample == Some(true));
        let remarks = [
            several(self.num_beams)
                .map(|n| format!("{n} beams: there is no beam search, one token is chosen")),
            several(self.num_return_sequences).map(|n| format!("{n} texts of a prompt: one is made")),
            self.no_repeat_ngram_size.filter(|n| *n > 0).map(|n| {
                format!("no {n} tokens that were there before (no_repeat_ngram_size): they may come again")
            }),
            Some(words).filter(|n| *n > 0).map(|n| {
                format!(
                    "{n} bad words of several tokens (bad_words_ids): those of one token alone are kept out"
                )
            }),
            forced
                .map(|_| "tokens that are forced (forced_decoder_ids): give them with the prompt".to_owned()),
            self.forced_eos_token_id.as_ref().map(|_| {
                "a last token where the text is cut off (forced_eos_token_id): it is not added".to_owned()
            }),
            typical.map(|p| format!("typical_p {p}: it is not heeded")),
        ];
        remarks.into_iter().flatten().map(|what| format!("the settings ask for {what}")).collect()
    }
}

/// Reads JSON, which is that of the file `path`.
pub(super) fn parse<T: DeserializeOwned>(path: &Path, text: &str) -> Result<T, GenerateError> {
    serde_json::from_str(text)
        .map_err(|e| GenerateError::Content { path: path.to_owned(), problem: e.to_string() })
}
