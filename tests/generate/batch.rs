//! Several texts at once.

use std::ops::ControlFlow;

use onepool::generate::{
    Finish, GenerateError, GenerateOptions, Generated, Generator, Prompt, Sampling, TextRequest,
};
use onepool::session::CancelToken;

use super::devices::devices;
use super::{cpu, exactly, expected, folder, generate, open};

/// Makes texts at once; each is told in pieces that make it up.
fn together(
    generator: &mut Generator,
    asked: &[(&str, GenerateOptions)],
) -> Result<Vec<Generated>, GenerateError> {
    let mut pieces = vec![String::new(); asked.len()];
    let mut told: Vec<_> = pieces
        .iter_mut()
        .map(|text| {
            |piece: &str| {
                text.push_str(piece);
                ControlFlow::Continue(())
            }
        })
        .collect();
    let requests = asked.iter().zip(&mut told);
    let requests =
        requests.map(|((prompt, options), told)| TextRequest { prompt: Prompt::Text(prompt), options, told });
    let made = generator.generate_all(requests.collect())?;
    for (made, told) in made.iter().zip(&pieces) {
        assert_eq!(&made.text, told);
    }
    Ok(made)
}

#[test]
fn texts_made_at_once_have_the_tokens_of_texts_made_one_by_one() {
    for context in devices() {
        for model in ["fixed", "appending", "growing"] {
            let mut generator = open(&folder(model), &context, None).unwrap();
            // Prompts and texts of different lengths.
            let cases = expected(model);
            let lengths = [24, 9, 17];
            let asked: Vec<_> =
                cases.iter().zip(lengths).map(|(c, n)| (c.prompt.as_str(), exactly(n))).collect();
            let name = &context.info().name;
            for _ in 0..2 {
                let made = together(&mut generator, &asked).unwrap();
                for ((made, case), n) in made.iter().zip(&cases).zip(lengths) {
                    assert_eq!(made.tokens, case.tokens[..n], "{model} on {name}, after {:?}", case.prompt);
                    assert_eq!(
                        (made.prompt_tokens, &made.finish),
                        (case.prompt_tokens.len(), &Finish::Length)
                    );
                }
            }
            let alone = generate(&mut generator, &cases[1].prompt, &exactly(8));
            assert_eq!(alone.tokens, cases[1].tokens[..8], "{model} on {name}");
        }
    }
}

#[test]
fn each_text_has_its_own_seed_stop_and_end() {
    let mut generator = open(&folder("fixed"), &cpu(), None).unwrap();
    let sampled = |seed| {
        let sampling = Sampling { temperature: 1.0, seed, ..Sampling::GREEDY };
        GenerateOptions { sampling, ..exactly(30) }
    };
    let text = generate(&mut generator, "Hello", &exactly(40)).text;
    let from = text.char_indices().nth(12).unwrap().0;
    let stop = text[from..].chars().take(3).collect::<String>();
    let cancel = CancelToken::new();
    cancel.cancel();
    let asked = [
        ("Hello", sampled(1)),
        ("Hello", sampled(2)),
        ("The quick brown fox", sampled(1)),
        ("Hello", GenerateOptions { stop: vec![stop.clone()], ..exactly(200) }),
        ("Hello", exactly(0)),
        ("Hello", GenerateOptions { cancel: Some(cancel), ..exactly(50) }),
        ("Hello", exactly(600)),
    ];
    let made = together(&mut generator, &asked).unwrap();
    let alone: Vec<_> =
        asked.iter().map(|(prompt, options)| generate(&mut generator, prompt, options)).collect();
    for (made, alone) in made.iter().zip(&alone) {
        assert_eq!((&made.tokens, &made.text, &made.finish), (&alone.tokens, &alone.text, &alone.finish));
    }
    assert_ne!(made[0].tokens, made[1].tokens);
    assert_eq!(made[3].finish, Finish::Stop(stop));
    assert_eq!((made[4].tokens.len(), &made[4].finish), (0, &Finish::Length));
    assert_eq!((made[5].tokens.len(), &made[5].finish), (0, &Finish::Cancelled));
    assert_eq!(made[6].finish, Finish::Context);
}

#[test]
fn texts_at_once_share_their_plans() {
    let mut generator = open(&folder("fixed"), &cpu(), None).unwrap();
    let asked: Vec<_> = (0..5).map(|n| ("Hello", exactly(20 + n))).collect();
    let before = generator.session().plans_made();
    assert_eq!(together(&mut generator, &asked).unwrap().len(), 5);
    // One for prompts, and one for a token of each text.
    assert_eq!(generator.session().plans_made() - before, 2);
    assert!(together(&mut generator, &[]).unwrap().is_empty());
    let long = "word ".repeat(600);
    let e = together(&mut generator, &[("Hello", exactly(3)), (&long, exactly(3))]).unwrap_err();
    assert!(matches!(e, GenerateError::PromptTooLong { .. }), "{e}");
}
