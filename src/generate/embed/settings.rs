//! The settings of a model of sentence-transformers.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::Pooling;
use crate::generate::error::GenerateError;
use crate::generate::files::read_optional;
use crate::generate::settings::parse;

/// Where exporters write the graph.
const GRAPHS: [&str; 2] = ["onnx/model.onnx", "model.onnx"];
/// Tokens of a text where no file says how many the model takes.
const USUAL_TOKENS: usize = 512;

/// What the files of the folder say.
#[derive(Clone, Debug)]
pub(super) struct Settings {
    pub(super) graph: PathBuf,
    /// Whose results are joined.
    pub(super) pooling: Vec<Pooling>,
    /// Whether tokens of the text before count in them.
    pub(super) prompt_counts: bool,
    pub(super) normalized: bool,
    pub(super) lower_case: bool,
    /// The most tokens of a text.
    pub(super) tokens: usize,
    /// A token that fills up texts.
    pub(super) filler: u32,
    /// Texts before a text, by name.
    pub(super) prompts: BTreeMap<String, String>,
    pub(super) prompt: Option<String>,
}

#[derive(Deserialize)]
struct Module {
    path: String,
    #[serde(rename = "type")]
    kind: String,
}

#[derive(Default, Deserialize)]
struct Model {
    pad_token_id: Option<u32>,
    max_position_embeddings: Option<usize>,
}

#[derive(Default, Deserialize)]
struct Transformer {
    max_seq_length: Option<usize>,
    #[serde(default)]
    do_lower_case: bool,
}

#[derive(Default, Deserialize)]
struct Sentences {
    #[serde(default)]
    prompts: BTreeMap<String, String>,
    default_prompt_name: Option<String>,
}

impl Settings {
    /// Reads `modules.json` and what it names, `sentence_bert_config.json`, `config_sentence_transformers.json` and
    /// `config.json`. None of them has to be there: the defaults are those of sentence-transformers.
    pub(super) fn read(folder: &Path) -> Result<Self, GenerateError> {
        let graph = GRAPHS.iter().map(|name| folder.join(name)).find(|path| path.is_file());
        let graph = graph.ok_or_else(|| GenerateError::NoFile {
            folder: folder.to_owned(),
            expected: GRAPHS.map(str::to_owned).to_vec(),
        })?;
        let modules: Option<Vec<Module>> = optional(&folder.join("modules.json"))?;
        let (mut pooling, mut prompt_counts, mut normalized) = (vec![Pooling::Mean], true, false);
        for module in modules.iter().flatten() {
            match module.kind.rsplit('.').next() {
                Some("Transformer") => {}
                Some("Pooling") => {
                    (pooling, prompt_counts) = read_pooling(&folder.join(&module.path).join("config.json"))?;
                }
                Some("Normalize") => normalized = true,
                _ => {
                    let what = format!(
                        "modules.json has a {}: known are Transformer, Pooling and Normalize. Export the model with its \
                         output \"sentence_embedding\"",
                        module.kind
                    );
                    return Err(GenerateError::Unsupported(what));
                }
            }
        }
        let model: Model = optional(&folder.join("config.json"))?.unwrap_or_default();
        let transformer: Transformer =
            optional(&folder.join("sentence_bert_config.json"))?.unwrap_or_default();
        let path = folder.join("config_sentence_transformers.json");
        let sentences: Sentences = optional(&path)?.unwrap_or_default();
        if let Some(name) =
            sentences.default_prompt_name.as_ref().filter(|n| !sentences.prompts.contains_key(*n))
        {
            let problem = format!("default_prompt_name is {name:?}, which prompts does not have");
            return Err(GenerateError::Content { path, problem });
        }
        let tokens = transformer.max_seq_length.or(model.max_position_embeddings).unwrap_or(USUAL_TOKENS);
        Ok(Settings {
            graph,
            pooling,
            prompt_counts,
            normalized,
            lower_case: transformer.do_lower_case,
            tokens,
            filler: model.pad_token_id.unwrap_or(0),
            prompts: sentences.prompts,
            prompt: sentences.default_prompt_name,
        })
    }
}

fn optional<T: DeserializeOwned>(path: &Path) -> Result<Option<T>, GenerateError> {
    read_optional(path)?.map(|text| parse(path, &text)).transpose()
}

/// Which ways are on, and whether tokens of the text before count.
fn read_pooling(path: &Path) -> Result<(Vec<Pooling>, bool), GenerateError> {
    let wrong = |problem: String| GenerateError::Content { path: path.to_owned(), problem };
    let config: BTreeMap<String, Value> = optional(path)?.ok_or_else(|| GenerateError::NoFile {
        folder: path.parent().unwrap_or(path).to_owned(),
        expected: vec!["config.json".to_owned()],
    })?;
    let named: Vec<&str> = match config.get("pooling_mode") {
        Some(Value::String(name)) => vec![name],
        Some(Value::Array(names)) => names.iter().filter_map(Value::as_str).collect(),
        _ => Vec::new(),
    };
    let is_on =
        |name: &str, flag: &str| named.contains(&name) || config.get(flag) == Some(&Value::Bool(true));
    let ways: Vec<Pooling> =
        Pooling::ALL.into_iter().filter(|(_, name, flag)| is_on(name, flag)).map(|(way, ..)| way).collect();
    let is_known = |name: &&&str| !Pooling::ALL.iter().any(|(_, known, _)| known == *name);
    if let Some(name) = named.iter().find(is_known) {
        return Err(wrong(format!(
            "pooling_mode is {name:?}: known are cls, max, mean, mean_sqrt_len_tokens, weightedmean and lasttoken"
        )));
    }
    if ways.is_empty() {
        return Err(wrong("no way of pooling is on: one of pooling_mode_* must be true".to_owned()));
    }
    Ok((ways, config.get("include_prompt") != Some(&Value::Bool(false))))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn folder(files: &[(&str, &str)]) -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        for (name, text) in files.iter().chain(&[("model.onnx", "")]) {
            let path = dir.path().join(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        }
        dir
    }

    const MODULES: &str = r#"[{"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.Transformer"},
        {"idx": 1, "name": "1", "path": "1_Pooling", "type": "sentence_transformers.models.Pooling"},
        {"idx": 2, "name": "2", "path": "2_Normalize", "type": "sentence_transformers.models.Normalize"}]"#;

    #[test]
    fn what_the_files_say_is_read() {
        let dir = folder(&[
            ("modules.json", MODULES),
            (
                "1_Pooling/config.json",
                r#"{"pooling_mode_cls_token": true, "pooling_mode_lasttoken": true,
                "pooling_mode_mean_tokens": false, "include_prompt": false}"#,
            ),
            ("config.json", r#"{"pad_token_id": 3, "max_position_embeddings": 514}"#),
            ("sentence_bert_config.json", r#"{"max_seq_length": 128, "do_lower_case": true}"#),
            (
                "config_sentence_transformers.json",
                r#"{"prompts": {"query": "q: "}, "default_prompt_name": "query"}"#,
            ),
        ]);
        let read = Settings::read(dir.path()).unwrap();
        assert_eq!(read.pooling, [Pooling::First, Pooling::Last]);
        assert!(read.normalized && read.lower_case && !read.prompt_counts);
        assert_eq!((read.tokens, read.filler, read.prompt.as_deref()), (128, 3, Some("query")));
        let read = Settings::read(folder(&[]).path()).unwrap();
        assert_eq!((read.pooling, read.normalized, read.tokens), (vec![Pooling::Mean], false, 512));
        let newer =
            [("modules.json", MODULES), ("1_Pooling/config.json", r#"{"pooling_mode": ["mean", "max"]}"#)];
        assert_eq!(Settings::read(folder(&newer).path()).unwrap().pooling, [Pooling::Max, Pooling::Mean]);
    }

    #[test]
    fn what_cannot_be_done_is_said() {
        let said = |files: &[(&str, &str)]| Settings::read(folder(files).path()).unwrap_err().to_string();
        let dense = r#"[{"path": "2_Dense", "type": "sentence_transformers.models.Dense"}]"#;
        assert!(
            said(&[("modules.json", dense)]).contains("has a sentence_transformers.models.Dense: known are")
        );
        assert!(said(&[("modules.json", MODULES)]).contains("1_Pooling has none of config.json"));
        let of = |pooling| said(&[("modules.json", MODULES), ("1_Pooling/config.json", pooling)]);
        assert!(of("{}").contains("no way of pooling is on"));
        assert!(of(r#"{"pooling_mode": "median"}"#).contains("pooling_mode is \"median\": known are cls"));
        let prompts = [("config_sentence_transformers.json", r#"{"default_prompt_name": "query"}"#)];
        assert!(said(&prompts).contains("default_prompt_name is \"query\", which prompts does not have"));
        let none = tempfile::tempdir().unwrap();
        let said = Settings::read(none.path()).unwrap_err().to_string();
        assert!(said.contains("has none of onnx/model.onnx, model.onnx"), "{said}");
    }
}
