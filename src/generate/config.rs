//! The settings of a model: `genai_config.json`, or `config.json` with `generation_config.json`.

use std::path::{Component, Path, PathBuf};

use serde::Deserialize;

use super::encoder_config::{UNLIMITED, encoder_decoder};
use super::error::GenerateError;
use super::files::{read_optional, read_text};
use super::genai_config::genai;
use super::graph_file::GraphFile;
use super::settings::{Config, Names, OneOrMore, Search, parse};

/// More layers than any model has.
const MAX_LAYERS: usize = 4096;

/// Names of a decoder's graph without their ends.
const STEMS: [&str; 2] = ["model", "decoder_model_merged"];

/// Longer contexts than any model has.
const MAX_CONTEXT: usize = 1 << 27;

/// What `config.json` of the transformers library is about.
#[derive(Deserialize)]
struct Kind {
    #[serde(default)]
    is_encoder_decoder: bool,
}

/// What `config.json` says of a decoder. GPT-2 and others of its time have names of their own.
#[derive(Deserialize)]
struct Transformers {
    num_hidden_layers: Option<usize>,
    n_layer: Option<usize>,
    n_layers: Option<usize>,
    num_layers: Option<usize>,
    num_key_value_heads: Option<usize>,
    num_attention_heads: Option<usize>,
    n_head: Option<usize>,
    n_heads: Option<usize>,
    num_heads: Option<usize>,
    head_dim: Option<usize>,
    hidden_size: Option<usize>,
    n_embd: Option<usize>,
    d_model: Option<usize>,
    max_position_embeddings: Option<usize>,
    n_positions: Option<usize>,
    max_seq_len: Option<usize>,
    sliding_window: Option<serde_json::Value>,
    window_size: Option<serde_json::Value>,
    use_sliding_window: Option<bool>,
    eos_token_id: Option<OneOrMore>,
}

impl Transformers {
    /// Tokens that a token sees at most, where that is bounded.
    fn window(&self) -> Option<usize> {
        let told = self.sliding_window.as_ref().or(self.window_size.as_ref());
        usize::try_from(told.filter(|_| self.use_sliding_window != Some(false))?.as_u64()?).ok()
    }

    fn layers(&self) -> Option<usize> {
        self.num_hidden_layers.or(self.n_layer).or(self.n_layers).or(self.num_layers)
    }

    fn heads(&self) -> Option<usize> {
        self.num_attention_heads.or(self.n_head).or(self.n_heads).or(self.num_heads)
    }

    /// Elements of each head.
    fn head(&self) -> Option<usize> {
        let hidden = self.hidden_size.or(self.n_embd).or(self.d_model);
        self.head_dim.or_else(|| hidden?.checked_div(self.heads()?))
    }

    /// The longest text. Models without positions of their own, as BLOOM, name none.
    fn context(&self) -> usize {
        self.max_position_embeddings.or(self.n_positions).or(self.max_seq_len).unwrap_or(UNLIMITED)
    }
}

impl Config {
    /// Reads the settings of the model in `folder`, of which `file` is the graph.
    pub(super) fn read(folder: &Path, file: &GraphFile) -> Result<Self, GenerateError> {
        let path = folder.join("genai_config.json");
        let config = match read_optional(&path)? {
            Some(text) => {
                let config = genai(&path, &text)?;
                match file {
                    GraphFile::Any => config,
                    _ => Config { graph: file.find(folder, &STEMS)?, ..config },
                }
            }
            None => Config::of_transformers(folder, file)?,
        };
        let wrong = |problem: String| GenerateError::Content { path: path.clone(), problem };
        if !(1..=MAX_LAYERS).contains(&config.layers) {
            return Err(wrong(format!("num_hidden_layers is {}: expected 1 to {MAX_LAYERS}", config.layers)));
        }
        if !(2..=MAX_CONTEXT).contains(&config.context) {
            return Err(wrong(format!(
                "a context of {} tokens: expected 2 to {MAX_CONTEXT}",
                config.context
            )));
        }
        for graph in [Some(&config.graph), config.encoder.as_ref().map(|e| &e.graph)].into_iter().flatten() {
            if !graph.components().all(|part| matches!(part, Component::Normal(_))) {
                return Err(wrong(format!("the graph {graph:?} is not in the folder")));
            }
        }
        let crossed = config.encoder.iter().flat_map(|encoder| encoder.names.patterns());
        for pattern in config.names.past.iter().chain(&config.names.present).chain(crossed) {
            if pattern.matches("%d").count() != 1 {
                return Err(wrong(format!(
                    "the name {pattern:?} has not one %d, which stands for the layer"
                )));
            }
        }
        config.sampling.check()?;
        Ok(config)
    }

    fn of_transformers(folder: &Path, file: &GraphFile) -> Result<Self, GenerateError> {
        let path = folder.join("config.json");
        let Some(text) = read_optional(&path)? else {
            let expected = ["genai_config.json", "config.json"].map(str::to_owned).to_vec();
            return Err(GenerateError::NoFile { folder: folder.to_owned(), expected });
        };
        let Kind { is_encoder_decoder } = parse(&path, &text)?;
        if is_encoder_decoder {
            return encoder_decoder(folder, &path, &text, file);
        }
        let model: Transformers = parse(&path, &text)?;
        let search = Search::read(folder)?;
        let graph = match file.find(folder, &STEMS) {
            // The loader says that there is none.
            Err(_) if *file == GraphFile::Any => PathBuf::from("model.onnx"),
            graph => graph?,
        };
        let layers = model.layers().ok_or_else(|| {
            let names = "num_hidden_layers, n_layer, n_layers and num_layers";
            let problem = format!("it has none of {names}: add the number of layers");
            GenerateError::Content { path: path.clone(), problem }
        })?;
        Ok(Config {
            graph,
            names: Names::default(),
            layers,
            heads: [model.num_key_value_heads.or(model.heads()), model.head()],
            context: model.context(),
            max_length: model.context(),
            sampling: search.sampling(),
            bans: search.bans(),
            remarks: search.remarks(),
            cache_type: None,
            window: model.window(),
            encoder: None,
            ends: search.eos_token_id.or(model.eos_token_id).map_or(Vec::new(), OneOrMore::into_vec),
        })
    }
}

/// The chat template of the folder and the tokens that it may print: (template, first, last).
pub(super) fn chat_template(folder: &Path) -> Result<Option<(String, [String; 2])>, GenerateError> {
    #[derive(Default, Deserialize)]
    struct TokenizerConfig {
        chat_template: Option<Templates>,
        bos_token: Option<Token>,
        eos_token: Option<Token>,
    }
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Templates {
        One(String),
        Named(Vec<Named>),
    }
    #[derive(Deserialize)]
    struct Named {
        name: String,
        template: String,
    }
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Token {
        Text(String),
        Object { content: String },
    }
    let path = folder.join("tokenizer_config.json");
    let config: TokenizerConfig = match read_optional(&path)? {
        Some(text) => parse(&path, &text)?,
        None => TokenizerConfig::default(),
    };
    let token = |token: Option<Token>| match token {
        Some(Token::Text(text) | Token::Object { content: text }) => text,
        None => String::new(),
    };
    let tokens = [token(config.bos_token), token(config.eos_token)];
    if let Some(template) = read_optional(&folder.join("chat_template.jinja"))? {
        return Ok(Some((template, tokens)));
    }
    let template = match config.chat_template {
        None => return Ok(None),
        Some(Templates::One(template)) => template,
        Some(Templates::Named(all)) => match all.into_iter().find(|named| named.name == "default") {
            Some(named) => named.template,
            None => {
                let problem = "chat_template has no entry named \"default\"".to_owned();
                return Err(GenerateError::Content { path, problem });
            }
        },
    };
    Ok(Some((template, tokens)))
}

/// The bytes of `tokenizer.json`.
pub(super) fn tokenizer(folder: &Path) -> Result<String, GenerateError> {
    read_text(&folder.join("tokenizer.json"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::generate::sampling::Sampling;
    use crate::generate::settings::Bans;

    fn folder(files: &[(&str, &str)]) -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        for (name, text) in files {
            std::fs::write(dir.path().join(name), text).unwrap();
        }
        dir
    }

    const GENAI: &str = r#"{"model": {"context_length": 128, "eos_token_id": [2, 7], "type": "llama",
        "decoder": {"filename": "d.onnx", "num_hidden_layers": 2, "num_key_value_heads": 2, "head_size": 16,
        "inputs": {"input_ids": "ids", "past_key_names": "k.%d"}, "outputs": {"logits": "l"}}},
        "search": {"do_sample": true, "top_k": 50, "top_p": 0.9, "max_length": 4096, "num_beams": 4}}"#;

    #[test]
    fn settings_of_both_kinds_are_read() {
        let dir = folder(&[("genai_config.json", GENAI)]);
        let config = Config::read(dir.path(), &GraphFile::Any).unwrap();
        assert_eq!((config.graph.as_path(), config.layers, config.context), (Path::new("d.onnx"), 2, 128));
        assert_eq!((config.max_length, config.ends), (128, vec![2, 7]));
        assert_eq!(config.names.past, ["k.%d", "past_key_values.%d.value"]);
        assert_eq!((config.names.ids.as_str(), config.names.mask.as_str()), ("ids", "attention_mask"));
        let wanted = Sampling { temperature: 1.0, top_k: 50, top_p: 0.9, ..Sampling::GREEDY };
        assert_eq!(config.sampling, wanted);
        assert!(config.remarks[0].contains("4 beams"), "{:?}", config.remarks);

        let model = r#"{"num_hidden_layers": 1, "num_attention_heads": 4, "hidden_size": 32,
            "max_position_embeddings": 64, "eos_token_id": 1}"#;
        let dir = folder(&[("config.json", model), ("generation_config.json", r#"{"eos_token_id": [3]}"#)]);
        let config = Config::read(dir.path(), &GraphFile::Any).unwrap();
        assert_eq!((config.heads, config.context, config.ends), ([Some(4), Some(8)], 64, vec![3]));
        assert_eq!(config.sampling, Sampling::GREEDY);
        let all = r#"{"n_layer": 3, "n_head": 4, "n_embd": 32, "n_positions": 64, "n_ctx": 32}"#;
        let bloom = r#"{"n_layer": 3, "n_head": 4, "hidden_size": 32}"#;
        let mpt = r#"{"n_layers": 3, "n_heads": 4, "d_model": 32, "max_seq_len": 48, "num_layers": 9}"#;
        for (text, context) in [(all, 64), (bloom, UNLIMITED), (mpt, 48)] {
            let config = Config::read(folder(&[("config.json", text)]).path(), &GraphFile::Any).unwrap();
            assert_eq!((config.layers, config.heads, config.context), (3, [Some(4), Some(8)], context));
        }
        for (told, window) in [
            ("\"sliding_window\": 9", Some(9)),
            ("\"window_size\": 9", Some(9)),
            ("\"sliding_window\": 9, \"use_sliding_window\": true", Some(9)),
            ("\"sliding_window\": 9, \"use_sliding_window\": false", None),
            ("\"sliding_window\": null", None),
            ("\"sliding_window\": -1", None),
        ] {
            let text = model.replace("\"eos_token_id\": 1", told);
            let dir = folder(&[("config.json", &text)]);
            assert_eq!(Config::read(dir.path(), &GraphFile::Any).unwrap().window, window, "{told}");
        }
    }

    #[test]
    fn settings_of_the_search_are_done_or_remarked() {
        let read = |search: &str| {
            let text = GENAI.replace("\"num_beams\": 4", search);
            Config::read(folder(&[("genai_config.json", &text)]).path(), &GraphFile::Any).unwrap()
        };
        let config = read(
            r#""suppress_tokens": [5, -1], "begin_suppress_tokens": [6], "bad_words_ids": [[7], [8, 9]],
                "min_length": 3, "min_new_tokens": 2"#,
        );
        let wanted = Bans { always: vec![5, 7], first: vec![6], least: [3, 2] };
        assert_eq!(config.bans, wanted);
        assert!(
            config.remarks.len() == 1 && config.remarks[0].contains("1 bad words"),
            "{:?}",
            config.remarks
        );
        for (search, phrase) in [
            ("\"num_return_sequences\": 3", "3 texts"),
            ("\"no_repeat_ngram_size\": 2", "no 2 tokens"),
            ("\"forced_decoder_ids\": [[1, 50259]]", "forced_decoder_ids"),
            ("\"forced_eos_token_id\": 2", "forced_eos_token_id"),
            ("\"typical_p\": 0.5", "typical_p 0.5"),
        ] {
            assert!(read(search).remarks[0].contains(phrase), "{search}");
        }
        let silent = r#""num_return_sequences": 1, "no_repeat_ngram_size": 0, "min_length": 0, "length_penalty": 1.0,
            "suppress_tokens": [-1], "forced_decoder_ids": null, "typical_p": 1.0, "num_beams": 1"#;
        assert_eq!((read(silent).remarks.len(), read(silent).bans), (0, Bans::default()));
        let sliding = GENAI.replace("\"filename\"", "\"sliding_window\": {\"window_size\": 8}, \"filename\"");
        let config =
            Config::read(folder(&[("genai_config.json", &sliding)]).path(), &GraphFile::Any).unwrap();
        assert!(config.remarks[1].contains("sliding_window"), "{:?}", config.remarks);
    }

    #[test]
    fn bad_settings_say_what_is_wrong() {
        let said = |text: &str| {
            Config::read(folder(&[("genai_config.json", text)]).path(), &GraphFile::Any)
                .unwrap_err()
                .to_string()
        };
        for end in 0..GENAI.len() {
            let said = said(&GENAI[..end]);
            assert!(said.contains("genai_config.json"), "{said}");
        }
        assert!(said(&GENAI.replace("k.%d", "k")).contains("has not one %d"));
        assert!(said(&GENAI.replace("k.%d", "k.%d.%d")).contains("has not one %d"));
        assert!(
            said(&GENAI.replace("\"num_hidden_layers\": 2", "\"num_hidden_layers\": 0")).contains("1 to")
        );
        assert!(said(&GENAI.replace("128", "99999999999")).contains("99999999999"));
        for outside in ["../d.onnx", "/d.onnx", "a/../../d.onnx"] {
            assert!(said(&GENAI.replace("d.onnx", outside)).contains("is not in the folder"));
        }
        assert!(said(&GENAI.replace("128", "-1")).contains("line 1"));
        assert!(said(&GENAI.replace("0.9", "7")).contains("top-p is 7"));
        assert!(said(&GENAI.replace("\"type\"", "\"vision\"")).contains("a vision part"));
        assert!(said(&GENAI.replace("past_key_names", "past_names")).contains("in one input"));
        let none = Config::read(folder(&[]).path(), &GraphFile::Any).unwrap_err().to_string();
        assert!(none.contains("genai_config.json, config.json"), "{none}");
        let broken =
            Config::read(folder(&[("config.json", "{}")]).path(), &GraphFile::Any).unwrap_err().to_string();
        assert!(broken.contains("config.json: it has none of num_hidden_layers"), "{broken}");
    }

    #[test]
    fn a_template_may_be_in_three_places() {
        let found = |files: &[(&str, &str)]| chat_template(folder(files).path());
        assert!(found(&[]).unwrap().is_none());
        let one = r#"{"chat_template": "T", "bos_token": "<s>", "eos_token": {"content": "</s>"}}"#;
        let tokens = ["<s>".to_owned(), "</s>".to_owned()];
        assert_eq!(found(&[("tokenizer_config.json", one)]).unwrap(), Some(("T".into(), tokens.clone())));
        let file = found(&[("tokenizer_config.json", one), ("chat_template.jinja", "F")]).unwrap();
        assert_eq!(file, Some(("F".into(), tokens)));
        let named = r#"{"chat_template": [{"name": "tool_use", "template": "A"}, {"name": "default", "template": "B"}]}"#;
        assert_eq!(found(&[("tokenizer_config.json", named)]).unwrap().unwrap().0, "B");
        let said =
            found(&[("tokenizer_config.json", &named.replace("default", "x"))]).unwrap_err().to_string();
        assert!(said.contains("no entry named \"default\""), "{said}");
        assert!(found(&[("tokenizer_config.json", "{\"chat_template\": 3}")]).is_err());
    }
}
