//! The settings of a model as onnxruntime-genai has them: `genai_config.json`.

use std::path::{Path, PathBuf};

use serde::Deserialize;

use super::error::GenerateError;
use super::settings::{Config, CrossNames, EncoderConfig, Names, OneOrMore, Search, parse};

#[derive(Deserialize)]
struct Genai {
    model: Model,
    #[serde(default)]
    search: Search,
}

#[derive(Deserialize)]
struct Model {
    context_length: usize,
    eos_token_id: Option<OneOrMore>,
    bos_token_id: Option<u32>,
    decoder_start_token_id: Option<u32>,
    decoder: Decoder,
    encoder: Option<Encoder>,
    vision: Option<serde_json::Value>,
    speech: Option<serde_json::Value>,
}

#[derive(Deserialize)]
struct Decoder {
    filename: Option<PathBuf>,
    num_hidden_layers: usize,
    num_key_value_heads: Option<usize>,
    num_attention_heads: Option<usize>,
    head_size: Option<usize>,
    hidden_size: Option<usize>,
    #[serde(default)]
    inputs: Inputs,
    #[serde(default)]
    outputs: Outputs,
    pipeline: Option<serde_json::Value>,
    sliding_window: Option<serde_json::Value>,
}

#[derive(Default, Deserialize)]
struct Inputs {
    input_ids: Option<String>,
    attention_mask: Option<String>,
    position_ids: Option<String>,
    past_key_names: Option<String>,
    past_value_names: Option<String>,
    past_names: Option<String>,
    cumulative_sequence_lengths: Option<String>,
    past_sequence_lengths: Option<String>,
    block_table: Option<String>,
    past_sequence_length: Option<String>,
    encoder_hidden_states: Option<String>,
    encoder_attention_mask: Option<String>,
    cross_past_key_names: Option<String>,
    cross_past_value_names: Option<String>,
    rnn_states_prev: Option<String>,
}

#[derive(Default, Deserialize)]
struct Outputs {
    logits: Option<String>,
    present_key_names: Option<String>,
    present_value_names: Option<String>,
    cross_present_key_names: Option<String>,
    cross_present_value_names: Option<String>,
}

#[derive(Deserialize)]
struct Encoder {
    filename: Option<PathBuf>,
    hidden_size: Option<usize>,
    #[serde(default)]
    inputs: EncoderInputs,
    #[serde(default)]
    outputs: EncoderOutputs,
}

#[derive(Default, Deserialize)]
struct EncoderInputs {
    input_ids: Option<String>,
    attention_mask: Option<String>,
    audio_features: Option<String>,
}

#[derive(Default, Deserialize)]
struct EncoderOutputs {
    encoder_hidden_states: Option<String>,
    encoder_outputs: Option<String>,
    cross_present_key_names: Option<String>,
    cross_present_value_names: Option<String>,
}

/// The settings in `text`, which is that of `path`.
pub(super) fn genai(path: &Path, text: &str) -> Result<Config, GenerateError> {
    let Genai { model, search } = parse(path, text)?;
    let (decoder, context) = (&model.decoder, model.context_length);
    for (what, part) in [
        ("a vision part", &model.vision),
        ("a speech part", &model.speech),
        ("a pipeline of decoders", &decoder.pipeline),
    ] {
        if part.is_some() {
            let what = format!(
                "{} describes {what}: only decoders of text generate here, alone or with an encoder",
                path.display()
            );
            return Err(GenerateError::Unsupported(what));
        }
    }
    if let Some(name) = &decoder.inputs.past_names {
        let what = format!("keys and values in one input ({name:?}): export the model with two");
        return Err(GenerateError::Unsupported(what));
    }
    if let Some(name) = &decoder.inputs.rnn_states_prev {
        let what =
            format!("a decoder with recurrent states ({name:?}): only caches of keys and values are kept");
        return Err(GenerateError::Unsupported(what));
    }
    let encoder = model.encoder.as_ref().map(|encoder| {
        let start = model.decoder_start_token_id.or(search.decoder_start_token_id).or(model.bos_token_id);
        encoder_of(path, encoder, decoder, start, context)
    });
    let encoder = encoder.transpose()?;
    let mut remarks = search.remarks();
    if decoder.sliding_window.is_some() {
        let what = "the settings ask for a window that slides over the prompt (sliding_window): the graph gets all of it";
        remarks.push(what.to_owned());
    }
    let heads = decoder.num_key_value_heads.or(decoder.num_attention_heads);
    let per_head = decoder.hidden_size.zip(decoder.num_attention_heads);
    let per_head = per_head.and_then(|(hidden, heads)| hidden.checked_div(heads));
    Ok(Config {
        names: names(decoder),
        layers: decoder.num_hidden_layers,
        heads: [heads, decoder.head_size.or(per_head)],
        context,
        max_length: search.max_length.unwrap_or(context).min(context),
        sampling: search.sampling(),
        bans: search.bans(),
        remarks,
        cache_type: None,
        window: None,
        encoder,
        graph: model.decoder.filename.unwrap_or_else(|| PathBuf::from("model.onnx")),
        ends: model.eos_token_id.or(search.eos_token_id).map_or(Vec::new(), OneOrMore::into_vec),
    })
}

/// What a decoder of text is given and gives.
fn names(decoder: &Decoder) -> Names {
    let default = Names::default();
    let (inputs, outputs) = (&decoder.inputs, &decoder.outputs);
    let told = |name: &Option<String>, default: &String| name.as_ref().unwrap_or(default).clone();
    Names {
        ids: told(&inputs.input_ids, &default.ids),
        mask: told(&inputs.attention_mask, &default.mask),
        positions: told(&inputs.position_ids, &default.positions),
        past_len: told(&inputs.past_sequence_length, &default.past_len),
        past: [
            told(&inputs.past_key_names, &default.past[0]),
            told(&inputs.past_value_names, &default.past[1]),
        ],
        logits: told(&outputs.logits, &default.logits),
        present: [
            told(&outputs.present_key_names, &default.present[0]),
            told(&outputs.present_value_names, &default.present[1]),
        ],
        pages: [
            told(&inputs.cumulative_sequence_lengths, &default.pages[0]),
            told(&inputs.past_sequence_lengths, &default.pages[1]),
            told(&inputs.block_table, &default.pages[2]),
        ],
    }
}

/// What a decoder needs that reads an encoder.
fn encoder_of(
    path: &Path,
    encoder: &Encoder,
    decoder: &Decoder,
    start: Option<u32>,
    context: usize,
) -> Result<EncoderConfig, GenerateError> {
    let wrong = |problem: &str| GenerateError::Content { path: path.to_owned(), problem: problem.to_owned() };
    let Some(graph) = encoder.filename.clone() else {
        return Err(wrong("model.encoder has no filename: add that of the encoder's graph"));
    };
    let Some(start) = start else {
        return Err(wrong(
            "it has neither decoder_start_token_id nor bos_token_id, the token that each text of the decoder begins \
             with: add one to model",
        ));
    };
    let both = |of: &str, key: &Option<String>, value: &Option<String>| match (key, value) {
        (Some(key), Some(value)) => Ok(Some([key.clone(), value.clone()])),
        (None, None) => Ok(None),
        _ => {
            let problem = format!("{of} names cross keys or cross values alone: add the other name");
            Err(wrong(&problem))
        }
    };
    let (inputs, outputs) = (&decoder.inputs, &decoder.outputs);
    let given = &encoder.outputs;
    let told = |name: &Option<String>, default: &str| name.clone().unwrap_or_else(|| default.to_owned());
    let by_encoder =
        both("model.encoder.outputs", &given.cross_present_key_names, &given.cross_present_value_names)?;
    let default = || ["key", "value"].map(|part| format!("present_{part}_cross_%d"));
    Ok(EncoderConfig {
        graph,
        first: None,
        starts: vec![start],
        context,
        hidden: encoder.hidden_size.or(decoder.hidden_size),
        names: CrossNames {
            ids: told(&encoder.inputs.input_ids, "input_ids"),
            mask: told(&encoder.inputs.attention_mask, "attention_mask"),
            features: Some(told(&encoder.inputs.audio_features, "audio_features")),
            encoded: vec![
                told(&given.encoder_hidden_states, "encoder_hidden_states"),
                told(&given.encoder_outputs, "encoder_outputs"),
            ],
            hidden: told(&inputs.encoder_hidden_states, "encoder_hidden_states"),
            shown: told(&inputs.encoder_attention_mask, "encoder_attention_mask"),
            past: both("model.decoder.inputs", &inputs.cross_past_key_names, &inputs.cross_past_value_names)?,
            by_decoder: both(
                "model.decoder.outputs",
                &outputs.cross_present_key_names,
                &outputs.cross_present_value_names,
            )?,
            by_encoder: Some(by_encoder.unwrap_or_else(default)),
        },
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::generate::graph_file::GraphFile;

    const WHISPER: &str = r#"{"model": {"type": "whisper", "context_length": 448, "bos_token_id": 7, "eos_token_id": 50257,
        "encoder": {"filename": "encoder.onnx", "hidden_size": 384, "inputs": {"audio_features": "audio_features"},
            "outputs": {"encoder_hidden_states": "hidden_states", "cross_present_key_names": "present_key_cross_%d",
                "cross_present_value_names": "present_value_cross_%d"}},
        "decoder": {"filename": "decoder.onnx", "num_hidden_layers": 4, "num_attention_heads": 6, "hidden_size": 384,
            "inputs": {"input_ids": "input_ids", "past_key_names": "past_key_self_%d",
                "past_value_names": "past_value_self_%d", "cross_past_key_names": "past_key_cross_%d",
                "cross_past_value_names": "past_value_cross_%d"},
            "outputs": {"present_key_names": "present_key_self_%d", "present_value_names": "present_value_self_%d"}}}}"#;

    fn read(text: &str) -> Result<Config, GenerateError> {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("genai_config.json"), text).unwrap();
        Config::read(dir.path(), &GraphFile::Any)
    }

    #[test]
    fn an_encoder_is_read_with_its_names() {
        let config = read(WHISPER).unwrap();
        assert_eq!((config.layers, config.heads, config.context), (4, [Some(6), Some(64)], 448));
        assert_eq!(config.names.past, ["past_key_self_%d", "past_value_self_%d"]);
        let encoder = config.encoder.unwrap();
        assert_eq!((encoder.graph.as_path(), encoder.starts), (Path::new("encoder.onnx"), vec![7]));
        assert_eq!((encoder.hidden, encoder.first), (Some(384), None));
        assert_eq!(encoder.names.encoded, ["hidden_states", "encoder_outputs"]);
        assert_eq!(encoder.names.past.unwrap()[1], "past_value_cross_%d");
        assert_eq!(encoder.names.by_encoder.unwrap()[0], "present_key_cross_%d");
        assert_eq!(encoder.names.by_decoder, None);
        let started =
            WHISPER.replace("\"bos_token_id\": 7", "\"bos_token_id\": 7, \"decoder_start_token_id\": 9");
        assert_eq!(read(&started).unwrap().encoder.unwrap().starts, [9]);
    }

    #[test]
    fn what_an_encoder_lacks_is_named() {
        let said = |text: &str| read(text).unwrap_err().to_string();
        let changed = |from: &str, to: &str| {
            assert!(WHISPER.contains(from), "{from}");
            said(&WHISPER.replace(from, to))
        };
        assert!(changed("\"filename\": \"encoder.onnx\", ", "").contains("model.encoder has no filename"));
        assert!(
            changed("\"bos_token_id\": 7, ", "").contains("neither decoder_start_token_id nor bos_token_id")
        );
        let alone = changed("\"cross_past_key_names\": \"past_key_cross_%d\",", "");
        assert!(alone.contains("model.decoder.inputs names cross keys or cross values alone"), "{alone}");
        let alone = changed("\"cross_present_key_names\": \"present_key_cross_%d\",", "");
        assert!(alone.contains("model.encoder.outputs names"), "{alone}");
        assert!(changed("past_key_cross_%d", "past_key_cross").contains("has not one %d"));
        assert!(changed("present_value_cross_%d", "%d_%d").contains("has not one %d"));
        assert!(changed("encoder.onnx", "../encoder.onnx").contains("is not in the folder"));
        let states = changed("\"past_key_names\"", "\"rnn_states_prev\": \"r\", \"past_key_names\"");
        assert!(states.contains("recurrent states (\"r\")"), "{states}");
        for end in 0..WHISPER.len() {
            assert!(said(&WHISPER[..end]).contains("genai_config.json"));
        }
    }
}
