//! Guessed tokens: by look-up in the text, and by a draft model.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::path::Path;

use onepool::generate::{GenerateError, GenerateOptions, Generator, ModelFolder, Sampling};
use onepool::session::SessionBuilder;

use super::devices::devices;
use super::{copy, cpu, exactly, expected, folder, generate, open};

#[test]
fn looked_up_tokens_leave_the_text_as_it_is() {
    for context in devices() {
        for model in ["fixed", "appending"] {
            let mut generator = open(&folder(model), &context, None).unwrap();
            let mut accepted = 0;
            for case in expected(model) {
                let options = GenerateOptions { lookup: 6, ..exactly(case.tokens.len().min(60)) };
                let made = generate(&mut generator, &case.prompt, &options);
                let name = &context.info().name;
                assert_eq!(made.tokens, case.tokens[..made.tokens.len()], "{model} on {name}");
                assert_eq!(made.tokens.len(), case.tokens.len().min(60));
                assert!(made.accepted_tokens <= made.guessed_tokens);
                accepted += made.accepted_tokens;
            }
            assert!(accepted > 0, "{model}: no guess was right");
        }
    }
}

/// The random numbers are used as without guesses, so the very text is the same.
#[test]
fn looked_up_tokens_leave_sampled_texts_as_they_are() {
    let mut generator = open(&folder("fixed"), &cpu(), None).unwrap();
    let mut guessed = 0;
    for seed in 0..12 {
        let sampling = Sampling { temperature: 0.4, repetition_penalty: 1.05, seed, ..Sampling::GREEDY };
        let options = GenerateOptions { sampling, ..exactly(50) };
        let plain = generate(&mut generator, "Hello", &options).tokens;
        let with = generate(&mut generator, "Hello", &GenerateOptions { lookup: 4, ..options });
        assert_eq!(with.tokens, plain, "seed {seed}");
        guessed += with.guessed_tokens;
    }
    assert!(guessed > 0);
}

fn with_draft(target: &str, draft: &str, most: usize) -> Generator {
    let draft = open(&folder(draft), &cpu(), None).unwrap();
    open(&folder(target), &cpu(), None).unwrap().with_draft(draft, most).unwrap()
}

#[test]
fn greedy_texts_with_a_draft_model_are_those_without_it() {
    for context in devices() {
        for (target, draft) in [("fixed", "fixed"), ("fixed", "growing"), ("appending", "fixed")] {
            let other = open(&folder(draft), &context, None).unwrap();
            let mut generator = open(&folder(target), &context, None).unwrap().with_draft(other, 3).unwrap();
            for case in expected(target).iter().skip(1) {
                let made = generate(&mut generator, &case.prompt, &exactly(20));
                let name = &context.info().name;
                assert_eq!(made.tokens, case.tokens[..20], "{target} with {draft} on {name}");
                assert!(made.guessed_tokens > 0);
                if target == draft {
                    assert_eq!(made.accepted_tokens, made.guessed_tokens, "it guesses what it would choose");
                }
            }
        }
    }
}

#[test]
fn sampled_texts_with_a_draft_model_have_the_distribution_of_those_without_it() {
    const TEXTS: u64 = 400;
    let counts = |generator: &mut Generator| {
        let mut counts: BTreeMap<Vec<u32>, f64> = BTreeMap::new();
        let mut accepted = 0;
        for seed in 0..TEXTS {
            let sampling = Sampling { temperature: 1.0, top_k: 3, seed, ..Sampling::GREEDY };
            let made = generate(generator, "Hello", &GenerateOptions { sampling, ..exactly(3) });
            *counts.entry(made.tokens[1..].to_vec()).or_default() += 1.0;
            accepted += made.accepted_tokens;
        }
        (counts, accepted)
    };
    let (plain, _) = counts(&mut open(&folder("fixed"), &cpu(), None).unwrap());
    // One that guesses as the model would, and one that guesses other tokens.
    for draft in ["fixed", "appending"] {
        let (with, accepted) = counts(&mut with_draft("fixed", draft, 2));
        assert_eq!(accepted > 0, draft == "fixed", "{draft}: {accepted} guesses were accepted");
        let (mut chi, mut classes, mut rare) = (0.0, 0.0, [0.0, 0.0]);
        let all: std::collections::BTreeSet<_> = plain.keys().chain(with.keys()).collect();
        for key in all {
            let (a, b) = (plain.get(key).unwrap_or(&0.0), with.get(key).unwrap_or(&0.0));
            if a + b < 20.0 {
                rare = [rare[0] + a, rare[1] + b];
                continue;
            }
            (chi, classes) = (chi + (a - b).powi(2) / (a + b), classes + 1.0);
        }
        if rare[0] + rare[1] > 0.0 {
            (chi, classes) = (chi + (rare[0] - rare[1]).powi(2) / (rare[0] + rare[1]), classes + 1.0);
        }
        // Mean and deviation of chi-square: a text of another distribution is far outside.
        let freedom: f64 = classes - 1.0;
        assert!(classes > 4.0 && chi < freedom + 4.0 * (2.0 * freedom).sqrt(), "{draft}: {chi} of {freedom}");
    }
}

/// Both sessions name the device, which is opened once.
#[test]
fn a_draft_shares_the_devices_of_its_target() {
    let contexts = RefCell::new(Vec::new());
    let session = |builder: SessionBuilder, _: &Path| {
        let session = builder.device("cpu").build()?;
        contexts.borrow_mut().push(session.context(0).unwrap().id());
        Ok::<_, GenerateError>(session)
    };
    let model = |name| ModelFolder::open(folder(name)).unwrap();
    let mut generator = Generator::open(model("fixed"), None, session)
        .unwrap()
        .open_draft(model("growing"), 3, session)
        .unwrap();
    let case = &expected("fixed")[1];
    assert_eq!(generate(&mut generator, &case.prompt, &exactly(20)).tokens, case.tokens[..20]);
    drop(Generator::open(model("fixed"), None, session).unwrap());
    let ids = contexts.borrow();
    assert!(ids[0] == ids[1] && ids[1] != ids[2], "{ids:?}");
}

#[test]
fn drafts_of_other_tokens_are_refused() {
    let dir = copy("fixed");
    let path = dir.path().join("tokenizer.json");
    let text = std::fs::read_to_string(&path).unwrap();
    std::fs::write(&path, text.replace("\"!\": 39", "\"!!\": 39")).unwrap();
    let draft = open(dir.path(), &cpu(), None).unwrap();
    let e = open(&folder("fixed"), &cpu(), None).unwrap().with_draft(draft, 3).unwrap_err();
    assert!(matches!(e, GenerateError::Draft), "{e}");
}

/// Guesses end where the text and the cache do.
#[test]
fn guesses_end_with_the_cache() {
    let case = &expected("fixed")[0];
    let draft = open(&folder("fixed"), &cpu(), Some(30)).unwrap();
    let mut generator = open(&folder("fixed"), &cpu(), Some(40)).unwrap().with_draft(draft, 8).unwrap();
    let made = generate(&mut generator, &case.prompt, &exactly(100));
    assert_eq!(made.tokens, case.tokens[..40 - case.prompt_tokens.len() + 1]);
    assert_eq!(generate(&mut generator, &case.prompt, &exactly(2)).tokens, case.tokens[..2]);
    assert_eq!(generate(&mut generator, &case.prompt, &exactly(1)).tokens, case.tokens[..1]);
}
