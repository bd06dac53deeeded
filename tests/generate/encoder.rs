//! Models as optimum exports them, of `models/tiny_seq2seq`: merged decoders, and decoders that read an encoder.

use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use onepool::Tensor;
use onepool::device::Context;
use onepool::generate::{
    BatchOptions, Batcher, Finish, GenerateError, GenerateOptions, Generated, Generator, ModelFolder, Prompt,
    TextRequest,
};
use onepool::session::{CancelToken, Session};

use super::devices::devices;
use super::{cpu, exactly, tokens};

pub(super) fn folder(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("models/tiny_seq2seq").join(name)
}

pub(super) fn open(
    folder: &Path,
    context: &Context,
    tokens: Option<usize>,
) -> Result<Generator, GenerateError> {
    Generator::open(ModelFolder::open(folder)?, tokens, |builder, _| {
        Ok(builder.context(context.clone()).build()?)
    })
}

/// Tokens of onnxruntime, which runs the merged graph.
pub(super) struct Case {
    pub(super) prompt: String,
    features: Vec<f32>,
    pub(super) prompt_tokens: Vec<u32>,
    pub(super) tokens: Vec<u32>,
}

impl Case {
    pub(super) fn features(&self) -> Tensor {
        Tensor::new([1, 4, 16], &self.features).unwrap()
    }
}

pub(super) fn expected(model: &str) -> Vec<Case> {
    let text = std::fs::read_to_string(folder("expected.json")).unwrap();
    let all: serde_json::Value = serde_json::from_str(&text).unwrap();
    let case = |v: &serde_json::Value| Case {
        prompt: v["prompt"].as_str().unwrap().to_owned(),
        features: v["features"].as_array().iter().flat_map(|all| all.iter()).map(number).collect(),
        prompt_tokens: tokens(&v["prompt_tokens"]),
        tokens: tokens(&v["tokens"]),
    };
    all[model].as_array().unwrap().iter().map(case).collect()
}

fn number(v: &serde_json::Value) -> f32 {
    v.as_f64().unwrap() as f32
}

pub(super) fn make(
    generator: &mut Generator,
    prompt: Prompt<'_>,
    options: &GenerateOptions,
) -> Result<Generated, GenerateError> {
    generator.generate(prompt, options, |_| ControlFlow::Continue(()))
}

pub(super) fn copy(name: &str, without: &[&str]) -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    for entry in std::fs::read_dir(folder(name)).unwrap() {
        let path = entry.unwrap().path();
        let file = path.file_name().unwrap();
        if !without.iter().any(|name| file == *name) {
            std::fs::copy(&path, dir.path().join(file)).unwrap();
        }
    }
    dir
}

#[test]
fn a_merged_decoder_gives_the_tokens_of_onnxruntime_with_a_handful_of_plans() {
    for context in devices() {
        let name = &context.info().name;
        let mut generator = open(&folder("decoder"), &context, None).unwrap();
        assert!(generator.remarks().is_empty(), "{name}: {:?}", generator.remarks());
        for case in expected("decoder") {
            let before = generator.plans_made();
            let options = exactly(case.tokens.len());
            let made = make(&mut generator, Prompt::Text(&case.prompt), &options).unwrap();
            assert_eq!(made.tokens, case.tokens, "{name}, after {:?}", case.prompt);
            let plans = generator.plans_made() - before;
            // One for the prompt without past, and one for each length of the cache: 64 and 128 rows.
            assert!(plans <= 3, "{name}: {plans} plans");
            make(&mut generator, Prompt::Text(&case.prompt), &options).unwrap();
            assert_eq!(generator.plans_made() - before, plans, "{name}: all is there");
        }
    }
}

#[test]
fn both_branches_of_a_merged_decoder_read_the_same_weights() {
    let context = cpu();
    let session = Session::builder().model(folder("decoder/decoder_model_merged.onnx"));
    let session = session.context(context.clone()).build().unwrap();
    let of_graph: usize = session.graph().constants().map(|(_, value)| value.bytes().len()).sum();
    drop(session);
    let mut generator = open(&folder("decoder"), &context, None).unwrap();
    make(&mut generator, Prompt::Text("Hello"), &exactly(4)).unwrap();
    let held = generator.session().params().usage().bytes;
    assert!(held > 0 && held as f64 <= 1.2 * of_graph as f64, "{held} bytes of {of_graph}");
}

#[test]
fn a_decoder_that_reads_an_encoder_gives_the_tokens_of_onnxruntime() {
    for context in devices() {
        let name = &context.info().name;
        let mut generator = open(&folder("text"), &context, None).unwrap();
        assert!(generator.remarks().is_empty(), "{name}: {:?}", generator.remarks());
        let cases = expected("text");
        for case in &cases {
            let made = make(&mut generator, Prompt::Text(&case.prompt), &exactly(case.tokens.len())).unwrap();
            assert_eq!(made.tokens, case.tokens, "{name}, after {:?}", case.prompt);
            assert_eq!(made.prompt_tokens, case.prompt_tokens.len());
        }
        // Each text has what its own prompt was encoded to.
        let options = exactly(5);
        let mut told = vec![|_: &str| ControlFlow::Continue(()); cases.len()];
        let requests = cases.iter().zip(&mut told);
        let requests = requests.map(|(case, told)| TextRequest {
            prompt: Prompt::Tokens(&case.prompt_tokens),
            options: &options,
            told,
        });
        for (case, made) in cases.iter().zip(generator.generate_all(requests.collect()).unwrap()) {
            assert_eq!(made.tokens, case.tokens[..5], "{name}, after {:?}", case.prompt);
        }
    }
}

#[test]
fn features_are_encoded_and_the_decoder_may_be_in_two_files() {
    for context in devices() {
        let name = &context.info().name;
        let mut generator = open(&folder("speech"), &context, None).unwrap();
        for case in expected("speech") {
            let features = case.features();
            // Without tokens the decoder begins with the one of the settings.
            let tokens = if case.prompt_tokens.len() > 1 { &case.prompt_tokens[..] } else { &[] };
            let prompt = Prompt::Features { features: &features, tokens };
            let made = make(&mut generator, prompt, &exactly(case.tokens.len())).unwrap();
            assert_eq!(made.tokens, case.tokens, "{name}, after {:?}", case.prompt_tokens);
            // Guesses are checked token by token.
            let options = GenerateOptions { lookup: 3, ..exactly(8) };
            assert_eq!(make(&mut generator, prompt, &options).unwrap().tokens, case.tokens[..8], "{name}");
        }
    }
}

#[test]
fn texts_of_an_encoder_end_where_they_are_told_to() {
    let case = &expected("text")[0];
    let prompt = Prompt::Text(&case.prompt);
    let mut small = open(&folder("text"), &cpu(), Some(8)).unwrap();
    let made = make(&mut small, prompt, &exactly(40)).unwrap();
    assert_eq!((made.finish, &made.tokens[..]), (Finish::Context, &case.tokens[..8]));
    let cancel = CancelToken::new();
    cancel.cancel();
    let options = GenerateOptions { cancel: Some(cancel), ..exactly(4) };
    let made = make(&mut small, prompt, &options).unwrap();
    assert_eq!((made.finish, made.tokens.len()), (Finish::Cancelled, 0));
    // What was in the cache is of another encoder's output.
    let options = GenerateOptions { reuse: true, ..exactly(4) };
    for _ in 0..2 {
        let made = make(&mut small, prompt, &options).unwrap();
        assert_eq!((made.reused_tokens, &made.tokens[..]), (0, &case.tokens[..4]));
    }
}

#[test]
fn prompts_that_an_encoder_does_not_take_are_errors() {
    let mut text = open(&folder("text"), &cpu(), None).unwrap();
    let mut said = |prompt: Prompt<'_>| make(&mut text, prompt, &exactly(1)).unwrap_err().to_string();
    assert!(said(Prompt::Tokens(&[])).contains("the prompt is empty"));
    let long = said(Prompt::Tokens(&[7; 49]));
    assert!(long.contains("49 tokens") && long.contains("the encoder takes 48"), "{long}");
    assert!(said(Prompt::Tokens(&[320])).contains("token 320 is not among"));
    let features = Tensor::new([1, 4, 16], &[0.5f32; 64]).unwrap();
    let kind = said(Prompt::Features { features: &features, tokens: &[] });
    assert!(kind.contains("takes text or tokens (its input \"input_ids\")"), "{kind}");

    let mut speech = open(&folder("speech"), &cpu(), None).unwrap();
    let mut said = |prompt: Prompt<'_>| make(&mut speech, prompt, &exactly(1)).unwrap_err().to_string();
    assert!(said(Prompt::Text("Hello")).contains("takes features"));
    for dims in [vec![1, 4, 15], vec![2, 4, 16], vec![4, 16], vec![1, 0, 16]] {
        let features = Tensor::new(dims.clone(), &vec![0.5f32; dims.iter().product()]).unwrap();
        let shape = said(Prompt::Features { features: &features, tokens: &[] });
        assert!(shape.contains("takes float32") && shape.contains("preprocessor_config.json"), "{shape}");
    }
    let whole = Tensor::new([1, 4, 16], &[1i64; 64]).unwrap();
    assert!(said(Prompt::Features { features: &whole, tokens: &[] }).contains("the features are int64"));
    assert!(said(Prompt::Features { features: &features, tokens: &[1; 48] }).contains("has 48 tokens"));
    assert!(said(Prompt::Features { features: &features, tokens: &[400] }).contains("token 400"));

    let mut decoder = open(&folder("decoder"), &cpu(), None).unwrap();
    let none = make(&mut decoder, Prompt::Features { features: &features, tokens: &[1] }, &exactly(1));
    assert!(none.unwrap_err().to_string().contains("a model without an encoder"));
}

#[test]
fn folders_whose_encoder_does_not_fit_say_why() {
    let said = |dir: &Path| open(dir, &cpu(), None).unwrap_err().to_string();
    let dir = copy("text", &["encoder_model.onnx"]);
    assert!(said(dir.path()).contains("has none of encoder_model.onnx"), "{}", said(dir.path()));
    let dir = copy("speech", &["decoder_model.onnx"]);
    assert!(said(dir.path()).contains("has none of decoder_model.onnx"));
    let changed = |name: &str, from: &str, to: &str| {
        let dir = copy(name, &[]);
        let path = dir.path().join("config.json");
        let text = std::fs::read_to_string(&path).unwrap();
        assert!(text.contains(from));
        std::fs::write(path, text.replace(from, to)).unwrap();
        said(dir.path())
    };
    let start = changed("text", "decoder_start_token_id", "start");
    assert!(start.contains("config.json: it has no decoder_start_token_id"), "{start}");
    let layers = changed("text", "\"num_decoder_layers\": 2", "\"num_decoder_layers\": 3");
    assert!(layers.contains(".2.decoder.key"), "{layers}");
    let layers = changed("text", "\"num_decoder_layers\": 2", "\"num_decoder_layers\": 1");
    assert!(layers.contains("nothing is known to give"), "{layers}");
    // The encoder of one is the decoder of another.
    let dir = copy("text", &[]);
    let path = dir.path().join("encoder_model.onnx");
    std::fs::copy(folder("decoder/decoder_model_merged.onnx"), &path).unwrap();
    assert!(said(dir.path()).contains("has no output \"last_hidden_state\""), "{}", said(dir.path()));
    std::fs::copy(folder("speech/encoder_model.onnx"), &path).unwrap();
    let mut other = open(dir.path(), &cpu(), None).unwrap();
    assert!(matches!(make(&mut other, Prompt::Text("x"), &exactly(1)), Err(GenerateError::Source { .. })));
}

#[test]
fn what_a_model_with_an_encoder_cannot_do_is_an_error() {
    let folder_of = |name| ModelFolder::open(folder(name)).unwrap();
    let of = folder_of("text");
    let session = Session::builder().model(of.graph()).context(cpu()).build().unwrap();
    let alone = Generator::new(of, session, None).unwrap_err().to_string();
    assert!(alone.contains("use Generator::open"), "{alone}");
    let mut generator = open(&folder("text"), &cpu(), None).unwrap();
    let refused = |e: GenerateError| matches!(e, GenerateError::Unsupported(_));
    assert!(refused(generator.save("no.file").unwrap_err()));
    assert!(refused(generator.restore("no.file").unwrap_err()));
    assert!(refused(Batcher::new(&mut generator, BatchOptions::default()).unwrap_err()));
    let draft = open(&folder("decoder"), &cpu(), None).unwrap();
    assert!(refused(generator.with_draft(draft, 2).unwrap_err()));
}
