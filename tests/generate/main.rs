//! Text from the tiny models of `models/tiny_llm`: the tokens are those of onnxruntime on every device.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod batch;
mod batch_thread;
mod batcher;
mod batcher_errors;
mod cache_types;
mod conversation;
#[path = "../support/devices.rs"]
mod devices;
#[cfg(all(feature = "vulkan", feature = "opencl"))]
#[path = "../support/disguise.rs"]
mod disguise;
mod embed;
mod encoder;
mod encoder_lengths;
mod exports;
mod genai_encoder;
#[cfg(feature = "grammar")]
mod grammar;
#[cfg(all(feature = "vulkan", feature = "opencl"))]
mod joined;
mod pages;
#[path = "../support/protobuf.rs"]
mod protobuf;
mod sample_on;
mod speculate;

use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use devices::devices;
use onepool::Session;
use onepool::backend::ContextDesc;
use onepool::device::Context;
use onepool::generate::{
    BatchOptions, Batcher, Finish, GenerateError, GenerateOptions, Generated, Generator, Message,
    ModelFolder, Prompt, SampleOn, Sampling, TemplateArgs, TextRequest,
};
use onepool::registry::Registry;
use onepool::session::CancelToken;

fn folder(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("models/tiny_llm").join(name)
}

fn cpu() -> Context {
    Registry::with_defaults().open("cpu", &ContextDesc::default()).unwrap()
}

fn open(folder: &Path, context: &Context, tokens: Option<usize>) -> Result<Generator, GenerateError> {
    let folder = ModelFolder::open(folder)?;
    let session = Session::builder().model(folder.graph()).context(context.clone()).build()?;
    Generator::new(folder, session, tokens)
}

fn fixed() -> Generator {
    open(&folder("fixed"), &cpu(), None).unwrap()
}

struct Case {
    prompt: String,
    prompt_tokens: Vec<u32>,
    tokens: Vec<u32>,
}

fn tokens(v: &serde_json::Value) -> Vec<u32> {
    v.as_array().unwrap().iter().map(|t| t.as_u64().unwrap() as u32).collect()
}

fn expected(model: &str) -> Vec<Case> {
    let text = std::fs::read_to_string(folder("expected.json")).unwrap();
    let all: serde_json::Value = serde_json::from_str(&text).unwrap();
    let case = |v: &serde_json::Value| Case {
        prompt: v["prompt"].as_str().unwrap().to_owned(),
        prompt_tokens: tokens(&v["prompt_tokens"]),
        tokens: tokens(&v["tokens"]),
    };
    all[model].as_array().unwrap().iter().map(case).collect()
}

/// Goes on for exactly so many tokens.
fn exactly(tokens: usize) -> GenerateOptions {
    GenerateOptions { max_tokens: Some(tokens), ignore_end: true, ..GenerateOptions::default() }
}

fn generate(generator: &mut Generator, prompt: &str, options: &GenerateOptions) -> Generated {
    let mut told = String::new();
    let made = generator.generate(Prompt::Text(prompt), options, |piece| {
        told.push_str(piece);
        ControlFlow::Continue(())
    });
    let made = made.unwrap();
    assert_eq!(made.text, told);
    made
}

#[test]
fn greedy_tokens_are_those_of_onnxruntime_on_every_device() {
    for context in devices() {
        let mut generator = open(&folder("fixed"), &context, None).unwrap();
        assert!(generator.remarks().is_empty() && generator.cache_bytes().is_some());
        for case in expected("fixed") {
            let name = context.info().name.clone();
            assert_eq!(generator.folder().tokens(Prompt::Text(&case.prompt)).unwrap(), case.prompt_tokens);
            let made = generate(&mut generator, &case.prompt, &exactly(case.tokens.len()));
            assert_eq!(made.tokens, case.tokens, "{name}, after {:?}", case.prompt);
            assert_eq!(made.finish, Finish::Length);
            assert!(made.tokens_per_s() > 0.0 && made.prompt_tokens_per_s() > 0.0);
        }
    }
}

#[test]
fn a_graph_that_appends_to_its_cache_gives_the_same_tokens_with_a_handful_of_plans() {
    for context in devices() {
        let name = &context.info().name;
        let mut generator = open(&folder("appending"), &context, None).unwrap();
        assert!(generator.remarks().is_empty(), "{name}: {:?}", generator.remarks());
        for (at, case) in expected("appending").iter().enumerate() {
            let before = generator.plans_made();
            let made = generate(&mut generator, &case.prompt, &exactly(case.tokens.len()));
            assert_eq!(made.tokens, case.tokens, "{name}, after {:?}", case.prompt);
            let plans = generator.plans_made() - before;
            // One for the prompt, and one for each length of the cache: 64, 128 and 256 rows.
            assert!(plans <= 4, "{name}: {plans} plans for prompt {at}");
            generate(&mut generator, &case.prompt, &exactly(case.tokens.len()));
            assert_eq!(generator.plans_made() - before, plans, "{name}: the second time all is there");
        }
    }
}

/// Its windows count the rows of the cache, hidden ones too, and so it gets what it computes of the length as inputs.
#[test]
fn a_graph_that_appends_and_has_windows_gives_the_tokens_of_onnxruntime() {
    let case = &expected("sliding")[0];
    for context in devices() {
        let name = &context.info().name;
        let mut long = open(&folder("sliding"), &context, None).unwrap();
        assert!(long.remarks().is_empty(), "{name}: {:?}", long.remarks());
        let before = long.plans_made();
        assert_eq!(
            generate(&mut long, &case.prompt, &exactly(case.tokens.len())).tokens,
            case.tokens,
            "{name}"
        );
        let plans = long.plans_made() - before;
        assert!(plans <= 5, "{name}: {plans} plans");
        // What was generated becomes the prompt: few of its tokens run one by one, many at once.
        for new in [3, 40] {
            let ids: Vec<u32> = case.prompt_tokens.iter().chain(&case.tokens[..new]).copied().collect();
            generate(&mut long, &case.prompt, &exactly(1));
            let made = long.generate(Prompt::Tokens(&ids), &exactly(8), |_| ControlFlow::Continue(()));
            assert_eq!(made.unwrap().tokens, case.tokens[new..new + 8], "{name}");
        }
        // No window ends within so few tokens.
        let mut short = open(&folder("sliding"), &context, Some(72)).unwrap();
        assert!(short.remarks().is_empty(), "{name}: {:?}", short.remarks());
        assert_eq!(generate(&mut short, &case.prompt, &exactly(60)).tokens, case.tokens[..60], "{name}");
    }
}

/// The cache ends before a power of two, and prompts are longer than one run may be.
#[test]
fn a_cache_that_grows_to_its_end_gives_the_same_tokens() {
    let case = &expected("appending")[0];
    let mut small = open(&folder("appending"), &cpu(), Some(100)).unwrap();
    let made = generate(&mut small, &case.prompt, &exactly(200));
    assert_eq!((made.tokens.len(), made.finish), (100 - case.prompt_tokens.len() + 1, Finish::Context));
    assert_eq!(made.tokens, case.tokens[..made.tokens.len()]);
    // What was generated becomes the prompt, which runs in pieces where no filled up run has room.
    let prompt: Vec<u32> = case.prompt_tokens.iter().chain(&case.tokens[..90]).copied().collect();
    let made = small.generate(Prompt::Tokens(&prompt), &exactly(4), |_| ControlFlow::Continue(())).unwrap();
    assert_eq!(made.tokens, case.tokens[90..94]);
}

/// It sees rows up to the position of a token, and so runs of several tokens are in place too.
#[test]
fn a_graph_that_does_not_heed_its_mask_gives_the_same_tokens_where_rows_are_at_their_positions() {
    for context in devices() {
        let mut generator = open(&folder("growing"), &context, None).unwrap();
        assert!(generator.remarks().is_empty(), "{:?}", generator.remarks());
        for case in expected("growing") {
            let made = generate(&mut generator, &case.prompt, &exactly(case.tokens.len()));
            let name = &context.info().name;
            assert_eq!(made.tokens, case.tokens, "{name}, after {:?}", case.prompt);
        }
    }
}

#[test]
fn many_tokens_need_a_handful_of_plans() {
    let mut generator = fixed();
    let long = &expected("fixed")[0];
    let text = "the quick brown fox jumps over the lazy dog ".repeat(8);
    assert_eq!(generate(&mut generator, &text, &exactly(200)).tokens.len(), 200);
    let before = generator.session().plans_made();
    assert!((2..=4).contains(&before), "{before} plans");
    assert_eq!(generate(&mut generator, &text, &exactly(200)).tokens.len(), 200);
    assert_eq!(generator.session().plans_made(), before, "the second time all is there");
    generate(&mut generator, &long.prompt, &exactly(200));
    assert_eq!(generator.session().plans_made(), before + 1, "another size of prompts is one more plan");
}

/// The rows that fill up a run are not seen by the tokens after it.
#[test]
fn prompts_in_pieces_give_the_tokens_of_whole_ones() {
    let text = "there is nothing more than this in the whole story and the river runs into the forest";
    let mut roomy = fixed();
    let prompt = roomy.folder().tokens(Prompt::Text(text)).unwrap();
    let make = |generator: &mut Generator, prompt: &[u32], most: usize| {
        generator
            .generate(Prompt::Tokens(prompt), &exactly(most), |_| ControlFlow::Continue(()))
            .unwrap()
            .tokens
    };
    let whole = make(&mut roomy, &prompt, 24);
    // Without room for a filled up run the prompt runs in pieces of a power of two.
    let mut tight = open(&folder("fixed"), &cpu(), Some(prompt.len() + 1)).unwrap();
    assert_eq!(make(&mut tight, &prompt, 2), whole[..2]);
    // Token by token: what was generated becomes the prompt.
    let longer: Vec<u32> = prompt.iter().chain(&whole[..20]).copied().collect();
    assert_eq!(make(&mut roomy, &longer, 4), whole[20..]);
    // A longer prompt before leaves rows that a shorter one must not see.
    make(&mut roomy, &[5; 300], 3);
    assert_eq!(make(&mut roomy, &prompt, 24), whole);
}

#[test]
fn seeds_reproduce_and_differ() {
    let mut generator = fixed();
    let mut with = |seed| {
        let sampling =
            Sampling { temperature: 0.9, top_k: 40, top_p: 0.95, min_p: 0.01, seed, ..Sampling::GREEDY };
        generate(&mut generator, "Hello", &GenerateOptions { sampling, ..exactly(40) }).tokens
    };
    let first = with(1);
    assert_eq!(first, with(1));
    assert_ne!(first, with(2));
    let mut generator = fixed();
    let sampling = Sampling { repetition_penalty: 100.0, ..Sampling::GREEDY };
    let made = generate(&mut generator, "Hello", &GenerateOptions { sampling, ..exactly(60) }).tokens;
    let distinct: std::collections::BTreeSet<u32> = made.iter().copied().collect();
    assert_eq!(distinct.len(), made.len(), "no token comes twice");
}

#[test]
fn texts_end_where_they_are_told_to() {
    let mut generator = fixed();
    let case = &expected("fixed")[0];
    // Longer than the text before the end of the cache.
    let all = generate(&mut generator, &case.prompt, &exactly(usize::MAX));
    assert_eq!(all.finish, Finish::Context);
    assert_eq!(all.prompt_tokens + all.tokens.len(), generator.context() + 1);
    // A string in the middle of it.
    let text = generate(&mut generator, &case.prompt, &exactly(200)).text;
    let from = text.char_indices().nth(20).unwrap().0;
    let to = text.char_indices().nth(24).unwrap().0;
    let at = text.find(&text[from..to]).unwrap();
    let options = GenerateOptions { stop: vec![text[from..to].to_owned()], ..exactly(200) };
    let stopped = generate(&mut generator, &case.prompt, &options);
    assert_eq!(
        (stopped.text.as_str(), stopped.finish),
        (&text[..at], Finish::Stop(text[from..to].to_owned()))
    );
    // The end mark.
    let dir = copy("fixed");
    let config = std::fs::read_to_string(dir.path().join("genai_config.json")).unwrap();
    let end = case.tokens[5];
    let first = case.tokens.iter().position(|t| *t == end).unwrap();
    let config = config.replace("\"eos_token_id\": 2", &format!("\"eos_token_id\": [2, {end}]"));
    std::fs::write(dir.path().join("genai_config.json"), config).unwrap();
    let mut ending = open(dir.path(), &cpu(), None).unwrap();
    let made = generate(&mut ending, &case.prompt, &GenerateOptions::default());
    assert_eq!((made.tokens.as_slice(), made.finish), (&case.tokens[..first], Finish::End(end)));
    // A token of cancellation, before and amid.
    let cancel = CancelToken::new();
    let options = GenerateOptions { cancel: Some(cancel.clone()), ..exactly(100) };
    let mut pieces = 0;
    let made = generator.generate(Prompt::Text("Hello"), &options, |_| {
        pieces += 1;
        if pieces == 5 {
            cancel.cancel();
        }
        ControlFlow::Continue(())
    });
    let made = made.unwrap();
    assert!(made.finish == Finish::Cancelled && made.tokens.len() < 100, "{made:?}");
    assert_eq!(made.tokens, case.tokens[..made.tokens.len()]);
    let made = generate(&mut generator, "Hello", &options);
    assert_eq!((made.finish, made.tokens.len()), (Finish::Cancelled, 0));
    // No one who listens.
    let made = generator.generate(Prompt::Text("Hello"), &exactly(100), |_| ControlFlow::Break(())).unwrap();
    assert!(made.finish == Finish::Cancelled && !made.text.is_empty() && made.tokens.len() <= 4, "{made:?}");
    // The cache is whole after it.
    assert_eq!(generate(&mut generator, "Hello", &exactly(200)).tokens, case.tokens);
}

#[test]
fn tokens_that_the_settings_keep_out_do_not_come() {
    let case = &expected("fixed")[0];
    let with = |search: &str, on: SampleOn| {
        let dir = copy("fixed");
        let path = dir.path().join("genai_config.json");
        let config = std::fs::read_to_string(&path).unwrap();
        let end = case.tokens[5];
        let config = config.replace("\"eos_token_id\": 2", &format!("\"eos_token_id\": [2, {end}]"));
        let mut config: serde_json::Value = serde_json::from_str(&config).unwrap();
        let search: serde_json::Value = serde_json::from_str(search).unwrap();
        config["search"].as_object_mut().unwrap().extend(search.as_object().unwrap().clone());
        std::fs::write(path, config.to_string()).unwrap();
        let folder = ModelFolder::open(dir.path()).unwrap().sample_on(on);
        let session = Session::builder().model(folder.graph()).context(cpu()).build().unwrap();
        let mut generator = Generator::new(folder, session, None).unwrap();
        let options = GenerateOptions { max_tokens: Some(30), ..GenerateOptions::default() };
        generate(&mut generator, &case.prompt, &options)
    };
    let (first, end) = (case.tokens[0], case.tokens[5]);
    let least = case.tokens.iter().position(|token| *token == end).unwrap();
    for on in [SampleOn::Host, SampleOn::Device] {
        assert_eq!(with("{}", on).tokens.len(), least);
        let made = with(&format!("{{\"suppress_tokens\": [{first}]}}"), on).tokens;
        assert!(!made.contains(&first), "{made:?}");
        let made = with(&format!("{{\"begin_suppress_tokens\": [{first}]}}"), on).tokens;
        assert_ne!(made[0], first);
        let made = with("{\"min_new_tokens\": 20}", on);
        assert!(made.tokens.len() >= 20 && !made.tokens[..20].contains(&end), "{made:?}");
        assert_eq!(made.tokens[..least], case.tokens[..least]);
        let whole = with(&format!("{{\"min_length\": {}}}", case.prompt_tokens.len() + 20), on);
        assert_eq!(whole.tokens, made.tokens);
    }
}

/// A chat template that cannot be read is the error of a chat, not of the model.
#[test]
fn a_template_that_cannot_be_read_leaves_the_model_its_texts() {
    let dir = copy("fixed");
    let path = dir.path().join("tokenizer_config.json");
    let text = std::fs::read_to_string(&path).unwrap();
    std::fs::write(path, text.replace("{% for", "{% fro")).unwrap();
    let mut generator = open(dir.path(), &cpu(), None).unwrap();
    let case = &expected("fixed")[0];
    assert_eq!(generate(&mut generator, &case.prompt, &exactly(4)).tokens, case.tokens[..4]);
    let e = generator.folder().tokens(Prompt::Chat(&[Message::new("user", "x")])).unwrap_err().to_string();
    assert!(e.starts_with("the chat template: syntax error"), "{e}");
}

/// What a chat template reads besides the messages.
#[test]
fn arguments_of_a_template_change_the_prompt() {
    let dir = copy("fixed");
    let template =
        "{% for m in messages %}{{ m.content }}{% endfor %}{% if tools %}{{ tools | tojson }}{% endif %}";
    std::fs::write(dir.path().join("chat_template.jinja"), template).unwrap();
    let chat = [Message::new("user", "Hello")];
    let plain = ModelFolder::open(dir.path()).unwrap();
    let mut args = TemplateArgs::default();
    args.set("tools", "[{\"b\": 1, \"a\": 2}]").unwrap();
    let given = ModelFolder::open(dir.path()).unwrap().template_args(args);
    let marked = |text: &str| plain.tokens(Prompt::Text(text)).unwrap()[1..].to_vec();
    assert_eq!(plain.tokens(Prompt::Chat(&chat)).unwrap(), marked("Hello"));
    assert_eq!(given.tokens(Prompt::Chat(&chat)).unwrap(), marked("Hello[{\"b\": 1, \"a\": 2}]"));
}

#[test]
fn chats_are_given_in_the_models_own_form() {
    let mut generator = fixed();
    let messages = [Message::new("system", "be brief"), Message::new("user", " Hello ")];
    let tokens = generator.folder().tokens(Prompt::Chat(&messages)).unwrap();
    let text = "<s><|system|>be brief</s><|user|>Hello</s><|assistant|>";
    let written = generator.folder().tokens(Prompt::Text(text)).unwrap();
    assert_eq!(tokens, written[1..], "a text gets its begin mark from the tokenizer");
    assert_eq!((tokens[0], tokens[1]), (1, 3));
    let chat =
        generator.generate(Prompt::Chat(&messages), &exactly(8), |_| ControlFlow::Continue(())).unwrap();
    let same =
        generator.generate(Prompt::Tokens(&tokens), &exactly(8), |_| ControlFlow::Continue(())).unwrap();
    assert_eq!(chat.tokens, same.tokens);
}

/// A copy of a model that a test may change.
fn copy(name: &str) -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    for entry in std::fs::read_dir(folder(name)).unwrap() {
        let path = entry.unwrap().path();
        std::fs::copy(&path, dir.path().join(path.file_name().unwrap())).unwrap();
    }
    dir
}

/// What opening a copy of `fixed` says once `file` has `from` replaced by `to`.
#[track_caller]
fn said(file: &str, from: &str, to: &str) -> String {
    let dir = copy("fixed");
    let path = dir.path().join(file);
    let text = std::fs::read_to_string(&path).unwrap();
    assert!(text.contains(from), "{file} has no {from:?}");
    std::fs::write(path, text.replace(from, to)).unwrap();
    match open(dir.path(), &cpu(), None) {
        Ok(_) => String::new(),
        Err(e) => e.to_string(),
    }
}

#[test]
fn folders_that_do_not_fit_their_graph_say_why() {
    let config = "genai_config.json";
    let has = |said: String, phrase: &str| assert!(said.contains(phrase), "{phrase:?} is not in {said:?}");
    has(
        said(config, "\"input_ids\": \"input_ids\"", "\"input_ids\": \"tokens\""),
        "name the input \"tokens\"",
    );
    has(said(config, "\"logits\": \"logits\"", "\"logits\": \"scores\""), "name the output \"scores\"");
    has(said(config, "\"num_hidden_layers\": 2", "\"num_hidden_layers\": 3"), "past_key_values.2.key");
    has(said(config, "\"num_hidden_layers\": 2", "\"num_hidden_layers\": 1"), "nothing is known to give");
    has(said(config, "model.onnx", "other.onnx"), "other.onnx");
    has(said(config, "\"head_size\": 16", "\"head_size\": []"), "genai_config.json: invalid type");
    has(said("tokenizer.json", "\"BPE\"", "\"XYZ\""), "the tokenizer: ");
    let dir = copy("fixed");
    std::fs::remove_file(dir.path().join("tokenizer.json")).unwrap();
    has(open(dir.path(), &cpu(), None).unwrap_err().to_string(), "cannot read");
    let dir = copy("fixed");
    std::fs::remove_file(dir.path().join("tokenizer_config.json")).unwrap();
    let mut silent = open(dir.path(), &cpu(), None).unwrap();
    let chat = silent
        .generate(Prompt::Chat(&[Message::new("user", "x")]), &exactly(1), |_| ControlFlow::Continue(()));
    assert!(matches!(chat, Err(GenerateError::NoTemplate)));
}

#[test]
fn prompts_and_options_that_make_no_sense_are_errors() {
    let mut generator = fixed();
    let mut fails = |prompt: Prompt<'_>, options: GenerateOptions| {
        generator.generate(prompt, &options, |_| ControlFlow::Continue(())).unwrap_err()
    };
    assert!(matches!(fails(Prompt::Tokens(&[]), exactly(1)), GenerateError::EmptyPrompt));
    let long = fails(Prompt::Tokens(&[7; 512]), exactly(1)).to_string();
    assert!(long.contains("512 tokens") && long.contains("room for 512"), "{long}");
    let unknown = fails(Prompt::Tokens(&[1, 320]), exactly(1)).to_string();
    assert!(unknown.contains("token 320 is not among the model's 320"), "{unknown}");
    let sampling = Sampling { top_p: 2.0, ..Sampling::GREEDY };
    let setting = fails(Prompt::Text("x"), GenerateOptions { sampling, ..exactly(1) });
    assert!(matches!(setting, GenerateError::Setting { name: "top-p", .. }));
    for asked in [0, 1, 513] {
        let e = open(&folder("fixed"), &cpu(), Some(asked)).unwrap_err().to_string();
        assert!(e.contains(&format!("a context of {asked} tokens")), "{e}");
    }
    assert_eq!(generate(&mut generator, "x", &exactly(0)).tokens, [0u32; 0]);
}

/// Weights that are no numbers.
#[test]
fn logits_that_are_no_numbers_are_an_error() {
    let dir = copy("growing");
    let path = dir.path().join("model.onnx");
    let mut bytes = std::fs::read(&path).unwrap();
    // In the list of weights the name of one is before its bytes, of which a tag and a length of two bytes come first.
    let name = b"out.weight";
    let at = bytes.windows(name.len()).rposition(|w| w == name).unwrap();
    let start = at + name.len() + 3;
    for value in bytes[start..start + 256].chunks_exact_mut(4) {
        value.copy_from_slice(&f32::NAN.to_le_bytes());
    }
    std::fs::write(&path, bytes).unwrap();
    let mut generator = open(dir.path(), &cpu(), None).unwrap();
    let e = generator
        .generate(Prompt::Text("Hello"), &exactly(4), |_| ControlFlow::Continue(()))
        .unwrap_err()
        .to_string();
    assert!(e.starts_with("the logits after 6 tokens have NaN"), "{e}");
    let mut batcher = Batcher::new(&mut generator, BatchOptions::default()).unwrap();
    batcher.add(Prompt::Text("Hello"), exactly(4), |_| ControlFlow::Continue(())).unwrap();
    assert!(matches!(batcher.step().unwrap_err(), GenerateError::NotFinite { .. }));
    assert!(batcher.is_idle(), "the text is gone");
}
