//! Tokens that are chosen from what a device found in the logits.

use onepool::Session;
use onepool::device::Context;
use onepool::generate::{
    BatchOptions, Batcher, GenerateError, GenerateOptions, Generator, ModelFolder, Prompt, SampleOn,
    Sampling, TextRequest,
};

use super::devices::devices;
use super::{exactly, folder, generate};

fn open(model: &str, context: &Context, on: SampleOn) -> Result<Generator, GenerateError> {
    let folder = ModelFolder::open(folder(model))?.sample_on(on);
    let session = Session::builder().model(folder.graph()).context(context.clone()).build()?;
    Generator::new(folder, session, None)
}

/// The decoder in a GGUF file.
fn open_gguf(context: &Context, on: SampleOn) -> Result<Generator, GenerateError> {
    let file = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("models/tiny_gguf/qwen2.gguf");
    let folder = ModelFolder::open(file)?.sample_on(on);
    let session = Session::builder().model(folder.graph()).context(context.clone()).build()?;
    Generator::new(folder, session, None)
}

fn settings() -> Vec<Sampling> {
    let warm = Sampling { temperature: 0.8, seed: 3, ..Sampling::GREEDY };
    vec![
        Sampling::GREEDY,
        Sampling { top_k: 12, ..warm },
        Sampling { top_p: 0.8, ..warm },
        Sampling { min_p: 0.1, repetition_penalty: 1.2, ..warm },
        Sampling { repetition_penalty: 5.0, ..Sampling::GREEDY },
        warm,
    ]
}

#[test]
fn tokens_chosen_on_devices_are_those_of_the_host() {
    for context in devices() {
        let name = &context.info().name;
        // A graph that plans each token anew, or runs each text alone, takes long.
        for (model, many) in [("fixed", 6), ("paged", 6), ("appending", 4), ("growing", 1)] {
            let [mut host, mut device] =
                [SampleOn::Host, SampleOn::Device].map(|on| open(model, &context, on).unwrap());
            let added = device.session().outputs().len() - host.session().outputs().len();
            assert_eq!(added, 1, "{model} on {name}");
            for sampling in settings().into_iter().rev().take(many) {
                let options = GenerateOptions { sampling, ..exactly(4 + 2 * many) };
                let [want, got] =
                    [&mut host, &mut device].map(|g| generate(g, "The quick brown fox", &options));
                assert_eq!(got.tokens, want.tokens, "{model} on {name}: {sampling:?}");
            }
        }
    }
}

#[test]
fn tokens_of_gguf_files_are_chosen_on_devices_too() {
    for context in devices() {
        let [mut host, mut device] =
            [SampleOn::Host, SampleOn::Device].map(|on| open_gguf(&context, on).unwrap());
        assert_eq!(device.session().outputs().len() - host.session().outputs().len(), 1);
        let logits = host.session().outputs().into_iter().find(|output| output.name == "logits").unwrap();
        assert!(logits.dtype.is_some() && logits.shape.is_some(), "{logits:?}");
        for sampling in settings().into_iter().take(3) {
            let options = GenerateOptions { sampling, ..exactly(10) };
            let [want, got] = [&mut host, &mut device].map(|g| generate(g, "The quick brown fox", &options));
            assert_eq!(got.tokens, want.tokens, "{}: {sampling:?}", context.info().name);
        }
    }
}

#[test]
fn texts_at_once_and_guessed_ones_are_those_of_the_host() {
    for context in devices() {
        let name = &context.info().name;
        for model in ["fixed", "paged"] {
            let made = [SampleOn::Host, SampleOn::Device].map(|on| {
                let mut generator = open(model, &context, on).unwrap();
                let all = settings();
                let options = all.iter().enumerate().map(|(at, sampling)| GenerateOptions {
                    sampling: *sampling,
                    lookup: if at == 0 { 4 } else { 0 },
                    ..exactly(6 + 2 * at)
                });
                let options: Vec<_> = options.collect();
                let mut told: Vec<_> =
                    options.iter().map(|_| |_: &str| std::ops::ControlFlow::Continue(())).collect();
                let requests = options.iter().zip(&mut told).map(|(options, told)| TextRequest {
                    prompt: Prompt::Text("Hello"),
                    options,
                    told,
                });
                let made = generator.generate_all(requests.collect()).unwrap();
                made.into_iter().map(|made| made.tokens).collect::<Vec<_>>()
            });
            assert_eq!(made[0], made[1], "{model} on {name}");
        }
    }
}

#[test]
fn texts_that_come_and_go_are_those_of_the_host() {
    for context in devices() {
        let made = [SampleOn::Host, SampleOn::Device].map(|on| {
            let mut generator = open("paged", &context, on).unwrap();
            // Prompts run in several steps.
            let mut batcher =
                Batcher::new(&mut generator, BatchOptions { texts: 2, step_tokens: 7 }).unwrap();
            for (at, sampling) in settings().into_iter().enumerate() {
                let options = GenerateOptions { sampling, ..exactly(4 + at) };
                let prompt = ["Hello", "The quick brown fox"][at % 2];
                batcher.add(Prompt::Text(prompt), options, |_| std::ops::ControlFlow::Continue(())).unwrap();
            }
            let mut ended = Vec::new();
            while !batcher.is_idle() {
                ended.extend(batcher.step().unwrap());
            }
            ended.sort_by_key(|(id, _)| *id);
            ended.into_iter().map(|(_, made)| made.tokens).collect::<Vec<_>>()
        });
        assert_eq!(made[0], made[1], "{}", context.info().name);
    }
}

#[cfg(feature = "grammar")]
#[test]
fn a_grammar_holds_what_a_device_finds() {
    use onepool::generate::Grammar;

    for context in devices() {
        let made = [SampleOn::Host, SampleOn::Device].map(|on| {
            let mut generator = open("fixed", &context, on).unwrap();
            let grammar = Some(Grammar::Regex("[a-f]{3}-[0-9]{2}(x|yz)".to_owned()));
            let sampling = Sampling { temperature: 1.5, top_k: 30, seed: 5, ..Sampling::GREEDY };
            generate(&mut generator, "Hello", &GenerateOptions { sampling, grammar, ..exactly(40) }).text
        });
        assert_eq!(made[0], made[1], "{}", context.info().name);
    }
}
