//! Prompts that begin with what the cache has, and caches in files.

use std::ops::ControlFlow;

use onepool::generate::{GenerateError, GenerateOptions, Generated, Generator, Prompt};

use super::devices::devices;
use super::{cpu, exactly, expected, folder, open};

pub(super) fn go_on(generator: &mut Generator, prompt: &[u32], options: &GenerateOptions) -> Generated {
    generator.generate(Prompt::Tokens(prompt), options, |_| ControlFlow::Continue(())).unwrap()
}

/// Goes on for so many tokens from what the cache has.
fn reusing(tokens: usize) -> GenerateOptions {
    GenerateOptions { reuse: true, ..exactly(tokens) }
}

#[test]
fn a_prompt_that_begins_with_the_conversation_computes_only_its_new_tokens() {
    for context in devices() {
        for model in ["fixed", "appending", "growing"] {
            let name = format!("{model} on {}", context.info().name);
            let mut generator = open(&folder(model), &context, None).unwrap();
            let case = &expected(model)[0];
            let first = go_on(&mut generator, &case.prompt_tokens, &reusing(10));
            assert_eq!((first.reused_tokens, &first.tokens[..]), (0, &case.tokens[..10]), "{name}");
            // The last token was chosen and not run.
            let longer: Vec<u32> = case.prompt_tokens.iter().chain(&case.tokens[..14]).copied().collect();
            let second = go_on(&mut generator, &longer, &reusing(6));
            assert_eq!(second.reused_tokens, case.prompt_tokens.len() + 9, "{name}");
            assert_eq!(second.tokens, case.tokens[14..20], "{name}");
            // Equal prompts run their last token; other ones begin where they differ.
            let again = go_on(&mut generator, &longer, &reusing(6));
            assert_eq!((again.reused_tokens, &again.tokens), (longer.len() - 1, &second.tokens), "{name}");
            let other = &expected(model)[1];
            let made = go_on(&mut generator, &other.prompt_tokens, &reusing(8));
            assert_eq!(
                (made.reused_tokens, &made.tokens[..]),
                (1, &other.tokens[..8]),
                "{name}: <s> is the same"
            );
            assert_eq!(go_on(&mut generator, &longer, &exactly(6)).reused_tokens, 0, "it is asked for");
        }
    }
}

#[test]
fn conversations_are_saved_and_restored() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("chat");
    for model in ["fixed", "appending", "growing"] {
        let case = &expected(model)[0];
        let longer: Vec<u32> = case.prompt_tokens.iter().chain(&case.tokens[..12]).copied().collect();
        for context in devices() {
            let name = format!("{model} on {}", context.info().name);
            let mut generator = open(&folder(model), &context, None).unwrap();
            go_on(&mut generator, &case.prompt_tokens, &exactly(12));
            generator.save(&file).unwrap();
            assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1, "no part is left");
            // A generator of another size, and one that has another conversation.
            let smaller = open(&folder(model), &context, Some(60)).unwrap();
            for mut other in [smaller, generator] {
                go_on(&mut other, &expected(model)[1].prompt_tokens, &exactly(3));
                assert_eq!(other.restore(&file).unwrap(), longer.len() - 1, "{name}");
                let made = go_on(&mut other, &longer, &reusing(6));
                assert_eq!(
                    (made.reused_tokens, &made.tokens[..]),
                    (longer.len() - 1, &case.tokens[12..18]),
                    "{name}"
                );
            }
        }
    }
}

#[test]
fn damaged_and_foreign_files_are_errors() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("chat");
    let mut generator = open(&folder("growing"), &cpu(), None).unwrap();
    let case = &expected("growing")[0];
    go_on(&mut generator, &case.prompt_tokens, &exactly(8));
    generator.save(&file).unwrap();
    let whole = std::fs::read(&file).unwrap();
    let is_damaged = |generator: &mut Generator, bytes: &[u8]| {
        std::fs::write(&file, bytes).unwrap();
        let e = generator.restore(&file).unwrap_err();
        matches!(e, GenerateError::Conversation { .. }) && e.to_string().contains("the file is damaged")
    };
    for end in (0..whole.len()).step_by(61) {
        assert!(is_damaged(&mut generator, &whole[..end]), "{end} of {} bytes", whole.len());
        let mut other = whole.clone();
        other[end] ^= 4;
        assert!(is_damaged(&mut generator, &other), "byte {end}");
    }
    assert!(is_damaged(&mut generator, &[&whole[..], &[0]].concat()));
    let mut huge = whole.clone();
    huge[16..24].copy_from_slice(&u64::MAX.to_le_bytes());
    assert!(is_damaged(&mut generator, &huge));
    // What failed leaves an empty cache that works.
    let made = go_on(&mut generator, &case.prompt_tokens, &reusing(8));
    assert_eq!((made.reused_tokens, &made.tokens[..]), (0, &case.tokens[..8]));
    std::fs::write(&file, &whole).unwrap();
    let e = open(&folder("appending"), &cpu(), None).unwrap().restore(&file).unwrap_err().to_string();
    assert!(e.contains("of another model"), "{e}");
    let e = open(&folder("growing"), &cpu(), Some(8)).unwrap().restore(&file).unwrap_err();
    assert!(matches!(e, GenerateError::PromptTooLong { capacity: 8, .. }), "{e}");
    let none = dir.path().join("none");
    assert!(matches!(generator.restore(&none).unwrap_err(), GenerateError::Read { .. }));
    assert!(matches!(generator.save(dir.path().join("no/file")).unwrap_err(), GenerateError::Write { .. }));
    std::fs::File::create(&file).unwrap().set_len(1 << 40).unwrap();
    assert!(matches!(generator.restore(&file).unwrap_err(), GenerateError::TooLarge { .. }));
}
