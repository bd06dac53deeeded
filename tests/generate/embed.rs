//! Vectors of texts, of `models/tiny_seq2seq/vectors`.

use std::path::{Path, PathBuf};

use onepool::device::Context;
use onepool::generate::{EmbedOptions, Embedder, GenerateError};
use onepool::session::CancelToken;

use super::cpu;
use super::devices::devices;

/// More texts of one length than a run takes, so that runs are of several numbers and lengths.
const TEXTS: usize = 64;

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("models/tiny_seq2seq/vectors")
}

fn open(context: &Context) -> Embedder {
    let open = |builder: onepool::session::SessionBuilder, _: &Path| {
        Ok::<_, GenerateError>(builder.context(context.clone()).build()?)
    };
    Embedder::open(folder(), open).unwrap()
}

struct Case {
    text: String,
    prompt: String,
    tokens: usize,
    vector: Vec<f32>,
}

/// What onnxruntime gives, text by text.
fn expected() -> Vec<Case> {
    let text = std::fs::read_to_string(folder().join("../expected.json")).unwrap();
    let all: serde_json::Value = serde_json::from_str(&text).unwrap();
    let case = |v: &serde_json::Value| Case {
        text: v["text"].as_str().unwrap().to_owned(),
        prompt: v["prompt"].as_str().unwrap().to_owned(),
        tokens: v["tokens"].as_u64().unwrap() as usize,
        vector: v["vector"].as_array().unwrap().iter().map(|v| v.as_f64().unwrap() as f32).collect(),
    };
    all["vectors"].as_array().unwrap().iter().map(case).collect()
}

fn with(prompt: &str) -> EmbedOptions {
    let mut options = EmbedOptions::default();
    options.prompt = Some(prompt.to_owned());
    options
}

#[test]
fn texts_of_all_lengths_have_the_vectors_of_each_alone() {
    let cases = expected();
    for context in devices() {
        let (name, embedder) = (context.info().name.clone(), open(&context));
        for prompt in ["query", "passage"] {
            let own: Vec<&Case> = cases.iter().filter(|case| case.prompt == prompt).collect();
            let texts: Vec<&str> = own.iter().cycle().take(TEXTS).map(|case| case.text.as_str()).collect();
            let short = own.iter().cycle().take(TEXTS).filter(|case| case.tokens <= 16).count();
            assert!(prompt != "passage" || short > 32, "{short} texts of one length");
            let made = embedder.embed(&texts, &with(prompt)).unwrap();
            assert_eq!(made.vectors.shape().dims(), [TEXTS, 16]);
            let vectors = made.vectors.to_f32s().unwrap();
            for (at, case) in own.iter().cycle().take(TEXTS).enumerate() {
                assert_eq!(made.tokens[at], case.tokens, "{name}: {prompt} {:?}", case.text);
                let wrong = vectors[at * 16..]
                    .iter()
                    .zip(&case.vector)
                    .position(|(got, want)| (got - want).abs() > 2e-5);
                assert_eq!(wrong, None, "{name}: {prompt} {:?}: {:?}", case.text, &vectors[at * 16..][..16]);
            }
            // The last text is longer than the 40 tokens that the model takes.
            assert_eq!(made.cut, (0..TEXTS).filter(|at| at % own.len() == own.len() - 1).collect::<Vec<_>>());
        }
        let plans = embedder.session().plans_made();
        // Lengths of 16, 32 and 40 tokens; 1, 2, 4 and so on to 32 texts.
        assert!(plans <= 3 * 6, "{name}: {plans} plans");
        let again = embedder.embed(&["Hello"; 8], &with("query")).unwrap();
        assert_eq!((again.tokens.len(), embedder.session().plans_made()), (8, plans), "{name}");
    }
}

#[test]
fn what_is_asked_for_is_checked_and_done() {
    let embedder = open(&cpu());
    assert_eq!(embedder.prompts().collect::<Vec<_>>(), ["passage", "query"]);
    assert_eq!(embedder.max_tokens(), 40);
    let none = embedder.embed(&[], &EmbedOptions::default()).unwrap();
    assert_eq!(none.vectors.shape().dims()[0], 0);
    let whole = embedder.embed(&["Hello"], &EmbedOptions::default()).unwrap().vectors.to_f32s().unwrap();
    let mut options = EmbedOptions::default();
    options.dims = Some(3);
    let three = embedder.embed(&["Hello"], &options).unwrap().vectors.to_f32s().unwrap();
    let length = whole[..3].iter().map(|v| v * v).sum::<f32>().sqrt();
    assert!(
        three.iter().zip(&whole).all(|(got, v)| (got - v / length).abs() < 1e-6),
        "{three:?} of {whole:?}"
    );
    options.dims = Some(17);
    let said = embedder.embed(&["Hello"], &options).unwrap_err().to_string();
    assert!(said.starts_with("dims is 17: expected 1 to the length"), "{said}");
    let said = embedder.embed(&["Hello"], &with("answer")).unwrap_err().to_string();
    assert!(said.starts_with("prompt is \"answer\": expected a name"), "{said}");
    let mut options = EmbedOptions::default();
    let token = CancelToken::new();
    token.cancel();
    options.cancel = Some(token);
    assert!(embedder.embed(&["Hello"], &options).is_err());
}
