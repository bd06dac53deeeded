//! Texts that a grammar holds. The models write noise, and still the text is what it must be.

use std::ops::ControlFlow;

use onepool::generate::{Finish, GenerateError, GenerateOptions, Grammar, Prompt, Sampling, TextRequest};

use super::devices::devices;
use super::{cpu, exactly, folder, generate, open};

const SCHEMA: &str = r#"{"x-guidance": {"whitespace_flexible": false},
    "type": "object", "additionalProperties": false, "required": ["name", "age", "tags"],
    "properties": {"name": {"type": "string", "maxLength": 8, "pattern": "^[a-z]+$"},
        "age": {"type": "integer", "minimum": 0, "maximum": 120},
        "tags": {"type": "array", "items": {"enum": ["a", "b"]}, "maxItems": 3}}}"#;

fn held(grammar: Grammar, seed: u64) -> GenerateOptions {
    let sampling = Sampling { temperature: 1.5, seed, ..Sampling::GREEDY };
    GenerateOptions { sampling, grammar: Some(grammar), ..exactly(200) }
}

#[test]
fn texts_are_what_the_schema_describes() {
    for context in devices() {
        for model in ["fixed", "appending"] {
            let mut generator = open(&folder(model), &context, None).unwrap();
            for seed in 0..2 {
                let made =
                    generate(&mut generator, "Hello", &held(Grammar::JsonSchema(SCHEMA.to_owned()), seed));
                let name = format!("{model} on {}, seed {seed}: {:?}", context.info().name, made.text);
                assert!(matches!(made.finish, Finish::Grammar | Finish::End(2)), "{name}: {:?}", made.finish);
                let value: serde_json::Value =
                    serde_json::from_str(&made.text).unwrap_or_else(|e| panic!("{name}: {e}"));
                let text = value["name"].as_str().unwrap();
                assert!(
                    (1..=8).contains(&text.len()) && text.bytes().all(|b| b.is_ascii_lowercase()),
                    "{name}"
                );
                assert!(value["age"].as_u64().unwrap() <= 120, "{name}");
                let tags = value["tags"].as_array().unwrap();
                assert!(tags.len() <= 3 && tags.iter().all(|t| t == "a" || t == "b"), "{name}");
                assert_eq!(value.as_object().unwrap().len(), 3, "{name}");
            }
        }
    }
}

#[test]
fn texts_follow_expressions_and_grammars() {
    let mut generator = open(&folder("fixed"), &cpu(), None).unwrap();
    for seed in 0..6 {
        let made = generate(
            &mut generator,
            "Hello",
            &held(Grammar::Regex("[0-9]{4}-(0[1-9]|1[0-2])".to_owned()), seed),
        );
        let (year, month) = made.text.split_once('-').unwrap();
        assert!(year.len() == 4 && year.parse::<u32>().is_ok(), "{}", made.text);
        assert!((1..=12).contains(&month.parse::<u32>().unwrap()) && month.len() == 2, "{}", made.text);
        assert_eq!(made.finish, Finish::Grammar);
        let sum = "start: NUMBER (\"+\" NUMBER){1,3}\nNUMBER: /[1-9][0-9]?/";
        let made = generate(&mut generator, "Hello", &held(Grammar::Lark(sum.to_owned()), seed));
        let numbers: Vec<u32> = made.text.split('+').map(|n| n.parse().unwrap()).collect();
        assert!(
            (2..=4).contains(&numbers.len()) && numbers.iter().all(|n| (1..=99).contains(n)),
            "{}",
            made.text
        );
    }
}

/// Each of several texts at once has a grammar of its own, also where tokens are guessed.
#[test]
fn grammars_hold_texts_at_once_and_guesses() {
    let draft = open(&folder("appending"), &cpu(), None).unwrap();
    let mut generator = open(&folder("fixed"), &cpu(), None).unwrap().with_draft(draft, 3).unwrap();
    let grammars = ["(ab){3}", "[xyz]{7}"].map(|text| held(Grammar::Regex(text.to_owned()), 1));
    let all = [grammars[0].clone(), grammars[1].clone(), GenerateOptions { lookup: 3, ..exactly(12) }];
    let mut told = [|_: &str| ControlFlow::Continue(()); 3];
    let requests = all.iter().zip(&mut told);
    let requests =
        requests.map(|(options, told)| TextRequest { prompt: Prompt::Text("Hello"), options, told });
    let made = generator.generate_all(requests.collect()).unwrap();
    assert_eq!(made[0].text, "ababab");
    assert!(made[1].text.len() == 7 && made[1].text.bytes().all(|b| b"xyz".contains(&b)), "{}", made[1].text);
    assert_eq!(made[2].tokens.len(), 12);
}

#[test]
fn grammars_that_cannot_be_read_are_errors() {
    let mut generator = open(&folder("fixed"), &cpu(), None).unwrap();
    for grammar in
        [Grammar::Regex("(".to_owned()), Grammar::JsonSchema("{".to_owned()), Grammar::Lark("x".to_owned())]
    {
        let options = held(grammar, 0);
        let e =
            generator.generate(Prompt::Text("Hello"), &options, |_| ControlFlow::Continue(())).unwrap_err();
        assert!(matches!(e, GenerateError::Grammar(_)), "{e}");
    }
    assert_eq!(generate(&mut generator, "Hello", &exactly(3)).tokens.len(), 3);
}
