//! Encoder-decoders, whose caches grow and whose prompts differ: a few plans serve all lengths.

use onepool::device::Context;
use onepool::generate::{Finish, GenerateOptions, Generator, Prompt};

use super::devices::devices;
use super::encoder::{copy, expected, folder, make, open};
use super::{cpu, exactly};

/// `text` with room for 160 tokens.
fn long_text(context: &Context) -> (tempfile::TempDir, Generator) {
    let dir = copy("text", &[]);
    let path = dir.path().join("config.json");
    let config = std::fs::read_to_string(&path).unwrap();
    let wider = config.replace("\"n_positions\": 48", "\"n_positions\": 160");
    assert_ne!(config, wider);
    std::fs::write(path, wider).unwrap();
    let generator = open(dir.path(), context, None).unwrap();
    (dir, generator)
}

#[test]
fn many_tokens_of_a_decoder_without_a_mask_make_a_handful_of_plans() {
    for context in devices() {
        let name = &context.info().name;
        let (_dir, mut generator) = long_text(&context);
        assert!(generator.remarks().is_empty(), "{name}: {:?}", generator.remarks());
        let case = &expected("text_long")[0];
        let before = generator.plans_made();
        let made = make(&mut generator, Prompt::Text(&case.prompt), &exactly(100)).unwrap();
        assert_eq!(made.tokens, case.tokens, "{name}");
        // The encoder, the first token, and caches of 64 and of 128 rows; some were made to measure.
        let plans = generator.plans_made() - before;
        assert!(plans <= 4, "{name}: {plans} plans");
        make(&mut generator, Prompt::Text(&case.prompt), &exactly(100)).unwrap();
        assert_eq!(generator.plans_made() - before, plans, "{name}: all is there");
    }
}

#[test]
fn prompts_of_several_lengths_have_their_plans_in_common() {
    for context in devices() {
        let name = &context.info().name;
        let mut generator = open(&folder("text"), &context, None).unwrap();
        let (short, long) = (&expected("text")[0], &expected("text")[1]);
        assert!(short.prompt_tokens.len() <= 16 && long.prompt_tokens.len() > 16);
        for case in [short, long] {
            let made = make(&mut generator, Prompt::Text(&case.prompt), &exactly(12)).unwrap();
            assert_eq!(made.tokens, case.tokens, "{name}");
        }
        let before = generator.plans_made();
        for len in [1, 2, 5, 7, 11, 16, 17, 20, 31] {
            let prompt: Vec<u32> = (0..len).map(|at| 7 + at).collect();
            let made = make(&mut generator, Prompt::Tokens(&prompt), &exactly(9)).unwrap();
            assert_eq!((made.tokens.len(), generator.plans_made()), (9, before), "{name}: {len} tokens");
        }
    }
}

#[test]
fn a_filled_up_prompt_gives_the_tokens_of_the_prompt_alone() {
    // An encoder for 15 tokens fills no run up.
    let dir = copy("text", &[]);
    let path = dir.path().join("config.json");
    let config = std::fs::read_to_string(&path).unwrap();
    let narrow =
        config.replace("\"n_positions\": 48", "\"max_source_positions\": 15, \"max_target_positions\": 48");
    assert_ne!(config, narrow);
    std::fs::write(path, narrow).unwrap();
    let mut exact = open(dir.path(), &cpu(), None).unwrap();
    let mut filled = open(&folder("text"), &cpu(), None).unwrap();
    for len in 1..=15u32 {
        let prompt: Vec<u32> = (0..len).map(|at| 7 + (at * 31 + len) % 300).collect();
        let before = exact.plans_made();
        let alone = make(&mut exact, Prompt::Tokens(&prompt), &exactly(20)).unwrap();
        let made = make(&mut filled, Prompt::Tokens(&prompt), &exactly(20)).unwrap();
        assert_eq!(made.tokens, alone.tokens, "{len} tokens");
        assert!(exact.plans_made() > before, "each length of a prompt has its own plans");
    }
}

#[test]
fn a_decoder_in_two_files_makes_a_handful_of_plans() {
    for context in devices() {
        let name = &context.info().name;
        let mut generator = open(&folder("speech"), &context, None).unwrap();
        assert!(generator.remarks().is_empty(), "{name}: {:?}", generator.remarks());
        let case = &expected("speech")[1];
        let features = case.features();
        let mut made = |tokens: &[u32]| {
            let before = generator.plans_made();
            let prompt = Prompt::Features { features: &features, tokens };
            let made = make(&mut generator, prompt, &exactly(40)).unwrap();
            (made.tokens, generator.plans_made() - before)
        };
        let (tokens, plans) = made(&[]);
        assert_eq!(tokens, case.tokens, "{name}");
        // The encoder, the first token, and a cache of 47 rows.
        assert!(plans <= 3, "{name}: {plans} plans");
        // Tokens that come before a text are filled up.
        let (_, plans) = made(&[1, 3, 5]);
        assert!(plans <= 1, "{name}: {plans} plans");
        for tokens in [&[1, 4][..], &[1, 3, 5, 9], &[1, 3, 5, 9, 11, 12]] {
            assert_eq!(made(tokens).1, 0, "{name}: {tokens:?}");
        }
    }
}

#[test]
fn guesses_and_several_texts_take_the_same_plans() {
    let mut generator = open(&folder("speech"), &cpu(), None).unwrap();
    let case = &expected("speech")[1];
    let features = case.features();
    let prompt = Prompt::Features { features: &features, tokens: &[] };
    let first = make(&mut generator, prompt, &exactly(40)).unwrap();
    let before = generator.plans_made();
    let options = GenerateOptions { lookup: 3, ..exactly(40) };
    let made = make(&mut generator, prompt, &options).unwrap();
    assert!(made.guessed_tokens > made.accepted_tokens, "a rejected guess is taken back");
    assert_eq!((made.tokens, generator.plans_made()), (first.tokens, before));
}

#[test]
fn what_reads_its_cache_otherwise_is_planned_anew_and_says_so() {
    let dir = copy("genai_text", &["decoder.onnx"]);
    std::fs::rename(dir.path().join("decoder_mean.onnx"), dir.path().join("decoder.onnx")).unwrap();
    let path = dir.path().join("genai_config.json");
    let config = std::fs::read_to_string(&path).unwrap();
    let at = config.rfind("\"num_hidden_layers\": 2").unwrap();
    let one = format!("{}\"num_hidden_layers\": 1{}", &config[..at], &config[at + 22..]);
    std::fs::write(path, one).unwrap();
    for context in devices() {
        let name = &context.info().name;
        let mut generator = open(dir.path(), &context, None).unwrap();
        let remark = &generator.remarks()[0];
        assert!(remark.contains("rows of it cannot be hidden: each token is planned anew"), "{remark}");
        let case = &expected("text_long")[1];
        let before = generator.plans_made();
        let made = make(&mut generator, Prompt::Text(&case.prompt), &exactly(24)).unwrap();
        assert_eq!(made.tokens, case.tokens, "{name}");
        assert!(generator.plans_made() - before >= 20, "{name}");
    }
}

#[test]
fn a_cache_of_a_few_tokens_ends_where_it_is_full() {
    let case = &expected("text")[0];
    for context in 2..=9 {
        let mut small = open(&folder("text"), &cpu(), Some(context)).unwrap();
        let made = make(&mut small, Prompt::Text(&case.prompt), &exactly(40)).unwrap();
        assert_eq!((made.finish, &made.tokens[..]), (Finish::Context, &case.tokens[..context]));
        let says = small.remarks().iter().any(|remark| remark.contains("planned anew"));
        assert_eq!(says, context < 4, "{context} tokens need no other form");
    }
}
