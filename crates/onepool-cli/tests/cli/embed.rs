//! `onepool embed` on the tiny model of the repository.

use super::{ends, fails, folder, onepool, root, says, text};

const MODEL: [&str; 4] = ["embed", "models/tiny_seq2seq/vectors", "-d", "cpu"];

#[test]
fn vectors_are_shown_and_written() {
    let dir = folder();
    std::fs::write(dir.path().join("texts"), "Hello\n\nThe quick brown fox jumps over the lazy dog\n")
        .unwrap();
    let (texts, file) = (dir.path().join("texts"), dir.path().join("v.npy"));
    let given = ["-t", "hello", "--texts", texts.to_str().unwrap(), "-o", file.to_str().unwrap()];
    let out = onepool(root(), &[&MODEL[..], &given].concat());
    assert_eq!(out.status.code(), Some(0), "{}", text(&out.stderr));
    let shown = text(&out.stdout);
    says(&shown, &["similar to the first", "1.000", "The quick brown fox"]);
    // The model has no upper case.
    assert_eq!(shown.lines().filter(|line| line.contains("1.000")).count(), 2, "{shown}");
    assert_eq!(std::fs::read(&file).unwrap().len(), 128 + 3 * 16 * 4);
    let made: serde_json::Value = serde_json::from_str(&ends(
        root(),
        0,
        &[&MODEL[..], &["--json", "--dims", "4"], &given[..4]].concat(),
    ))
    .unwrap();
    assert_eq!((made["dims"].as_u64(), made["texts"].as_array().map(Vec::len)), (Some(4), Some(3)));
    let vector = made["texts"][2]["vector"].as_array().unwrap();
    let length: f64 = vector.iter().map(|v| v.as_f64().unwrap().powi(2)).sum();
    assert!((length - 1.0).abs() < 1e-5, "{vector:?}");
}

#[test]
fn wrong_arguments_are_told() {
    let with = |more: &[&'static str]| [&MODEL[..], more].concat();
    fails(
        root(),
        2,
        &with(&["-t", "a", "--prompt", "answer"]),
        &["prompt is \"answer\": expected a name that"],
    );
    fails(root(), 2, &with(&["-t", "a", "--dims", "17"]), &["dims is 17: expected 1 to the length"]);
    fails(root(), 2, &MODEL, &["--text"]);
    let decoder = ["embed", "models/tiny_llm/fixed", "-d", "cpu", "-t", "a"];
    fails(root(), 3, &decoder, &["has the outputs", "a vector for each token is"]);
}
