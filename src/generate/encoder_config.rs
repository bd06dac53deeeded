//! The settings of a model with an encoder and a decoder, as optimum exports it: `config.json`.

use std::path::{Path, PathBuf};

use serde::Deserialize;

use super::error::GenerateError;
use super::graph_file::GraphFile;
use super::settings::{Config, CrossNames, EncoderConfig, Names, OneOrMore, Search, parse};

/// Tokens of models that name no limit, as those with relative positions.
pub(super) const UNLIMITED: usize = 4096;

/// What `config.json` says; families of models have several names for the same.
#[derive(Deserialize)]
struct Settings {
    num_decoder_layers: Option<usize>,
    decoder_layers: Option<usize>,
    num_layers: Option<usize>,
    decoder_attention_heads: Option<usize>,
    num_heads: Option<usize>,
    d_kv: Option<usize>,
    d_model: Option<usize>,
    n_positions: Option<usize>,
    max_position_embeddings: Option<usize>,
    max_source_positions: Option<usize>,
    max_target_positions: Option<usize>,
    decoder_start_token_id: Option<u32>,
    forced_bos_token_id: Option<u32>,
    eos_token_id: Option<OneOrMore>,
}

/// The settings in `text`, which is that of `path` in `folder`; `file` is the decoder, or tells how its name ends.
pub(super) fn encoder_decoder(
    folder: &Path,
    path: &Path,
    text: &str,
    file: &GraphFile,
) -> Result<Config, GenerateError> {
    let model: Settings = parse(path, text)?;
    let search = Search::read(folder)?;
    let missing =
        |problem: &str| GenerateError::Content { path: path.to_owned(), problem: problem.to_owned() };
    let layers = model.num_decoder_layers.or(model.decoder_layers).or(model.num_layers);
    let layers = layers.ok_or_else(|| {
        missing("it has none of num_decoder_layers, decoder_layers and num_layers: add the number of the decoder's layers")
    })?;
    let start = search.decoder_start_token_id.or(model.decoder_start_token_id).ok_or_else(|| {
        missing(
            "it has no decoder_start_token_id, the token that each text of the decoder begins with: add it",
        )
    })?;
    let graph = file.of_others().find(folder, &["encoder_model"])?;
    let (decoder, first) = match file.find(folder, &["decoder_model_merged"]) {
        Ok(merged) => (merged, None),
        Err(_) => two_decoders(folder, file)?,
    };
    let heads = model.decoder_attention_heads.or(model.num_heads);
    let per_head = model.d_model.zip(heads).and_then(|(hidden, heads)| hidden.checked_div(heads));
    let positions = model.max_position_embeddings.or(model.n_positions);
    let context = model.max_target_positions.or(positions).unwrap_or(UNLIMITED);
    Ok(Config {
        graph: decoder,
        names: names(),
        layers,
        heads: [heads, model.d_kv.or(per_head)],
        context,
        max_length: context,
        sampling: search.sampling(),
        bans: search.bans(),
        remarks: search.remarks(),
        cache_type: None,
        window: None,
        encoder: Some(EncoderConfig {
            graph,
            first,
            starts: [start]
                .into_iter()
                .chain(search.forced_bos_token_id.or(model.forced_bos_token_id))
                .collect(),
            context: model.max_source_positions.or(positions).unwrap_or(UNLIMITED),
            hidden: model.d_model,
            names: cross_names(),
        }),
        ends: search.eos_token_id.or(model.eos_token_id).map_or(Vec::new(), OneOrMore::into_vec),
    })
}

/// Names of inputs and outputs that optimum gives to a decoder that reads an encoder.
fn names() -> Names {
    let part = |pattern: &str, part: &str| pattern.replace("%d.", &format!("%d.{part}."));
    let plain = Names::default();
    Names {
        past: plain.past.map(|name| part(&name, "decoder")),
        present: plain.present.map(|name| part(&name, "decoder")),
        mask: "decoder_attention_mask".to_owned(),
        ..plain
    }
}

/// Names that optimum gives to what goes from an encoder to its decoder.
fn cross_names() -> CrossNames {
    let text = str::to_owned;
    let parts = |of: &str| ["key", "value"].map(|part| format!("{of}.%d.encoder.{part}"));
    CrossNames {
        ids: text("input_ids"),
        mask: text("attention_mask"),
        features: None,
        encoded: vec![text("last_hidden_state")],
        hidden: text("encoder_hidden_states"),
        shown: text("encoder_attention_mask"),
        past: Some(parts("past_key_values")),
        by_decoder: Some(parts("present")),
        by_encoder: None,
    }
}

/// The decoder with past, and the one without.
fn two_decoders(folder: &Path, file: &GraphFile) -> Result<(PathBuf, Option<PathBuf>), GenerateError> {
    let with_past = file.find(folder, &["decoder_with_past_model"]).map_err(|_| GenerateError::NoFile {
        folder: folder.to_owned(),
        expected: ["decoder_model_merged.onnx", "decoder_with_past_model.onnx"].map(str::to_owned).to_vec(),
    })?;
    Ok((with_past, Some(file.find(folder, &["decoder_model"])?)))
}

#[cfg(test)]
mod tests {
    use super::*;

    const T5: &str = r#"{"is_encoder_decoder": true, "num_layers": 6, "num_decoder_layers": 2, "num_heads": 8, "d_kv": 64,
        "d_model": 512, "n_positions": 512, "decoder_start_token_id": 0, "eos_token_id": 1}"#;

    fn read(files: &[&str], config: &str) -> Result<Config, GenerateError> {
        let dir = tempfile::tempdir().unwrap();
        for name in files {
            std::fs::write(dir.path().join(name), []).unwrap();
        }
        std::fs::write(dir.path().join("config.json"), config).unwrap();
        Config::read(dir.path(), &GraphFile::Any)
    }

    #[test]
    fn settings_of_several_families_are_read() {
        let merged = ["encoder_model.onnx", "decoder_model_merged.onnx"];
        let config = read(&merged, T5).unwrap();
        assert_eq!((config.layers, config.heads, config.context), (2, [Some(8), Some(64)], 512));
        assert_eq!(config.names.past[0], "past_key_values.%d.decoder.key");
        let encoder = config.encoder.unwrap();
        assert_eq!((encoder.starts, encoder.context, encoder.first), (vec![0], 512, None));
        let whisper = r#"{"is_encoder_decoder": true, "decoder_layers": 4, "decoder_attention_heads": 6, "d_model": 384,
            "max_source_positions": 1500, "max_target_positions": 448, "decoder_start_token_id": 50258,
            "forced_bos_token_id": 7}"#;
        let two = ["encoder_model.onnx", "decoder_model.onnx", "decoder_with_past_model.onnx"];
        let config = read(&two, whisper).unwrap();
        assert_eq!((config.layers, config.heads, config.context), (4, [Some(6), Some(64)], 448));
        assert_eq!(config.graph, Path::new("decoder_with_past_model.onnx"));
        let encoder = config.encoder.unwrap();
        assert_eq!((encoder.starts, encoder.context), (vec![50258, 7], 1500));
        assert_eq!(encoder.first.as_deref(), Some(Path::new("decoder_model.onnx")));
    }

    #[test]
    fn what_is_missing_is_named() {
        let both = ["encoder_model.onnx", "decoder_model_merged.onnx"];
        let said = |files: &[&str], config: &str| read(files, config).unwrap_err().to_string();
        let start = said(&both, &T5.replace("decoder_start_token_id", "x"));
        assert!(start.contains("config.json: it has no decoder_start_token_id"), "{start}");
        assert!(said(&both, &T5.replace("num_", "x_").replace("layers", "y")).contains("num_decoder_layers"));
        assert!(said(&both[1..], T5).contains("has none of encoder_model.onnx"));
        assert!(said(&both[..1], T5).contains("has none of decoder_model_merged.onnx, decoder_with_past"));
        let with_past = ["encoder_model.onnx", "decoder_with_past_model.onnx"];
        assert!(said(&with_past, T5).contains("has none of decoder_model.onnx"));
    }
}
