//! Encoder-decoders as onnxruntime-genai has them, of `models/tiny_seq2seq`: they have the weights of `speech` and `text`, and
//! give their tokens.

use std::ops::ControlFlow;
use std::path::Path;

use onepool::Tensor;
use onepool::generate::{GenerateError, Prompt, TextRequest};

use super::devices::devices;
use super::encoder::{copy, expected, folder, make, open};
use super::{cpu, exactly};

#[test]
fn an_encoder_that_gives_keys_and_values_makes_the_tokens_of_one_that_does_not() {
    for context in devices() {
        let name = &context.info().name;
        let mut genai = open(&folder("genai_speech"), &context, None).unwrap();
        let mut optimum = open(&folder("speech"), &context, None).unwrap();
        assert!(genai.remarks().is_empty(), "{name}: {:?}", genai.remarks());
        for case in expected("speech") {
            let features = case.features();
            let tokens = if case.prompt_tokens.len() > 1 { &case.prompt_tokens[..] } else { &[] };
            let prompt = Prompt::Features { features: &features, tokens };
            let before = genai.plans_made();
            let made = make(&mut genai, prompt, &exactly(case.tokens.len())).unwrap();
            assert_eq!(made.tokens, case.tokens, "{name}, after {:?}", case.prompt_tokens);
            let plans = genai.plans_made() - before;
            assert!(plans <= 3, "{name}: {plans} plans");
            assert_eq!(made.tokens, make(&mut optimum, prompt, &exactly(made.tokens.len())).unwrap().tokens);
        }
    }
}

#[test]
fn a_decoder_that_reads_the_encoders_output_in_each_run_makes_the_same_tokens() {
    for context in devices() {
        let name = &context.info().name;
        let mut generator = open(&folder("genai_text"), &context, None).unwrap();
        assert!(generator.remarks().is_empty(), "{name}: {:?}", generator.remarks());
        for case in expected("text").iter().chain(&expected("text_long")[..1]) {
            let made = make(&mut generator, Prompt::Text(&case.prompt), &exactly(case.tokens.len())).unwrap();
            assert_eq!(made.tokens, case.tokens, "{name}, after {:?}", case.prompt);
        }
        let before = generator.plans_made();
        let case = &expected("text_long")[0];
        make(&mut generator, Prompt::Text(&case.prompt), &exactly(100)).unwrap();
        assert_eq!(generator.plans_made(), before, "{name}: all is there");
        // Each text has what its own prompt was encoded to.
        let (options, cases) = (exactly(5), expected("text"));
        let mut told = vec![|_: &str| ControlFlow::Continue(()); cases.len()];
        let requests = cases.iter().zip(&mut told).map(|(case, told)| TextRequest {
            prompt: Prompt::Text(&case.prompt),
            options: &options,
            told,
        });
        for (case, made) in cases.iter().zip(generator.generate_all(requests.collect()).unwrap()) {
            assert_eq!(made.tokens, case.tokens[..5], "{name}, after {:?}", case.prompt);
        }
    }
}

/// What a folder says whose settings have `to` in the place of `from`.
fn said(model: &str, from: &str, to: &str) -> String {
    let dir = copy(model, &[]);
    let path = dir.path().join("genai_config.json");
    let text = std::fs::read_to_string(&path).unwrap();
    assert!(text.contains(from), "{from}");
    std::fs::write(path, text.replace(from, to)).unwrap();
    refused(dir.path())
}

fn refused(dir: &Path) -> String {
    open(dir, &cpu(), None).map(drop).unwrap_err().to_string()
}

#[test]
fn settings_that_do_not_fit_the_graphs_say_why() {
    let has = |said: String, parts: &[&str]| {
        for part in parts {
            assert!(said.contains(part), "{said}: {part}");
        }
    };
    let speech = |from, to| said("genai_speech", from, to);
    has(speech("past_key_cross_%d", "k_%d"), &["the input \"k_0\"", "past_key_cross_0", "correct the names"]);
    has(speech("present_value_cross_%d", "v_%d"), &["the output \"v_0\"", "present_value_cross_0"]);
    has(speech("past_key_self_%d", "k_%d"), &["the input \"k_0\""]);
    has(
        speech("\"audio_features\": \"audio_features\"", "\"audio_features\": \"mel\""),
        &["encoder.onnx", "\"mel\""],
    );
    has(speech("\"filename\": \"encoder.onnx\"", "\"filename\": \"none.onnx\""), &["none.onnx"]);
    has(speech("\"bos_token_id\": 1,", ""), &["genai_config.json", "bos_token_id"]);
    // Without the names of its cross caches nothing is known of them.
    let dir = copy("genai_speech", &[]);
    let path = dir.path().join("genai_config.json");
    let text = std::fs::read_to_string(&path).unwrap();
    let without: String = text.lines().filter(|line| !line.contains("cross_past")).collect();
    std::fs::write(path, without.replace("\"past_value_self_%d\",", "\"past_value_self_%d\"")).unwrap();
    let unnamed = refused(dir.path());
    has(unnamed, &["past_key_cross_0", "name these inputs in the settings"]);
    let text = |from, to| said("genai_text", from, to);
    has(
        text("\"encoder_outputs\": \"encoder_outputs\"", "\"encoder_outputs\": \"x\""),
        &["the output \"encoder_hidden_states\"", "encoder_outputs"],
    );
    has(
        text("\"encoder_hidden_states\": \"encoder_hidden_states\"", "\"encoder_hidden_states\": \"x\""),
        &["encoder_hidden_states"],
    );
    // The encoder of another model.
    let dir = copy("genai_speech", &[]);
    std::fs::copy(folder("genai_text/encoder.onnx"), dir.path().join("encoder.onnx")).unwrap();
    has(refused(dir.path()), &["present_key_cross_0"]);
    let dir = copy("genai_speech", &["encoder.onnx"]);
    has(refused(dir.path()), &["encoder.onnx"]);
}

#[test]
fn features_that_the_encoder_does_not_take_are_errors() {
    let mut speech = open(Path::new(&folder("genai_speech")), &cpu(), None).unwrap();
    let kind = make(&mut speech, Prompt::Text("Hello"), &exactly(1)).unwrap_err();
    assert!(matches!(&kind, GenerateError::Source { input, .. } if input == "audio_features"), "{kind}");
    let features = Tensor::new([1, 4, 15], &[0.5f32; 60]).unwrap();
    let shape =
        make(&mut speech, Prompt::Features { features: &features, tokens: &[] }, &exactly(1)).unwrap_err();
    assert!(matches!(&shape, GenerateError::Features { name, .. } if name == "audio_features"), "{shape}");
}
