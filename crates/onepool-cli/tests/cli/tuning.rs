//! `onepool tune`, and runs that take what it kept.

#![cfg(unix)]

use std::fs;
use std::path::Path;

use onepool::loader::onnx::write_tensor_pb;
use onepool::{DType, Tensor};

use super::onnx::{Dim, Model};
use super::{ends, f32s, fails, folder, interrupt, onepool, piped, says, text, until_it_listens};

/// `y = softmax(x w)` in `product.onnx`, with `x` of shape `[n, 96]`, and an input `x.pb` of 40 rows.
fn product(dir: &Path) {
    let values =
        |n: usize, by: usize| (0..n).map(|i| (i % by) as f32 / by as f32 - 0.5).collect::<Vec<f32>>();
    let model = Model::default()
        .input("x", DType::F32, &[Dim::Name("n"), Dim::Size(96)])
        .constant("w", &Tensor::new([96, 80], &values(96 * 80, 13)).unwrap())
        .node("MatMul", &["x", "w"], &["z"])
        .node("Softmax", &["z"], &["y"])
        .output("y", DType::F32);
    model.write(&dir.join("product.onnx"));
    fs::write(dir.join("x.pb"), write_tensor_pb("x", &f32s(&[40, 96], &values(40 * 96, 11)))).unwrap();
}

fn tune<'a>(more: &[&'a str]) -> Vec<&'a str> {
    let all = ["tune", "product.onnx", "--dim", "n=40", "--device", "vulkan", "--cache", "cache"];
    all.into_iter().chain(more.iter().copied()).collect()
}

fn json(out: &str) -> serde_json::Value {
    serde_json::from_str(out).unwrap()
}

#[test]
fn what_tune_measures_is_taken_by_later_runs() {
    let dir = folder();
    let d = dir.path();
    product(d);
    let report = json(&ends(d, 0, &tune(&["--budget", "600", "--json"])));
    let measured = report["measured"].as_array().unwrap();
    assert_eq!(measured.len(), 2, "{report:#}");
    let changed: Vec<_> = measured.iter().filter(|c| c["chosen"] != c["default"]).collect();
    let files = fs::read_dir(d.join("cache")).unwrap().map(|f| f.unwrap().file_name());
    assert!(files.into_iter().any(|f| f.to_str().unwrap().starts_with("tuning-")));

    let run =
        ["run", "product.onnx", "-i", "x.pb", "-d", "vulkan", "--cache", "cache", "--explain", "--json"];
    let tuned = |out: &str| -> Vec<serde_json::Value> {
        let report = json(out);
        let nodes = report["explain"]["plan"]["nodes"].as_array().unwrap().clone();
        nodes.iter().flat_map(|node| node["tuned"].as_array().cloned().unwrap_or_default()).collect()
    };
    let taken = tuned(&ends(d, 0, &[&run[..], &["--tuning", "kept"]].concat()));
    assert_eq!(taken.len(), changed.len(), "{report:#}");
    assert_eq!(tuned(&ends(d, 0, &run)), Vec::<serde_json::Value>::new());
    // All is known now.
    says(&ends(d, 0, &tune(&[])), &["0 choices measured"]);
}

#[test]
fn a_spoiled_file_is_passed_over_with_a_sentence() {
    let dir = folder();
    let d = dir.path();
    product(d);
    says(
        &ends(d, 0, &tune(&["--budget", "600", "-v"])),
        &["2 choices measured", "product float32", "vectors float32", "kept in cache"],
    );
    let files = fs::read_dir(d.join("cache")).unwrap().map(|f| f.unwrap().path());
    let is_tuning = |f: &std::path::PathBuf| {
        let name = f.file_name().unwrap().to_str().unwrap();
        name.starts_with("tuning-") && name.ends_with(".onepool")
    };
    let file = files.into_iter().find(is_tuning).unwrap();
    let whole = fs::read(&file).unwrap();
    fs::write(&file, &whole[..whole.len() - 3]).unwrap();
    let run = ["run", "product.onnx", "-i", "x.pb", "-d", "vulkan", "--cache", "cache", "--tuning", "kept"];
    let out = onepool(d, &run);
    assert_eq!(out.status.code(), Some(0));
    says(&text(&out.stderr), &["tuning-", "damaged"]);
}

#[test]
fn what_cannot_be_kept_is_said() {
    let dir = folder();
    let d = dir.path();
    product(d);
    // Its name is taken by a folder.
    ends(d, 0, &tune(&["--budget", "600"]));
    let is_tuning = |name: &str| name.starts_with("tuning-") && name.ends_with(".onepool");
    let files = fs::read_dir(d.join("cache")).unwrap().map(|f| f.unwrap().path());
    let file = files.into_iter().find(|f| is_tuning(f.file_name().unwrap().to_str().unwrap())).unwrap();
    fs::remove_file(&file).unwrap();
    fs::create_dir(&file).unwrap();
    fs::write(file.join("more"), "").unwrap();
    let out = ends(d, 0, &tune(&["--budget", "600"]));
    says(&out, &["2 choices measured", "2 choices not kept: cache"]);
    assert!(!out.contains("kept in"), "{out}");
}

#[test]
fn ctrl_c_ends_tuning_between_measurements() {
    let dir = folder();
    let d = dir.path();
    product(d);
    let child = piped(d, &tune(&["--budget", "600"])).spawn().unwrap();
    until_it_listens(child.id());
    interrupt(&child);
    let out = child.wait_with_output().unwrap();
    let (stdout, stderr) = (text(&out.stdout), text(&out.stderr));
    assert_eq!(out.status.code(), Some(130), "{stdout}\n{stderr}");
    says(&stdout, &["measured in", "it was interrupted before"]);
    says(&stderr, &["onepool: interrupted"]);
    // What was measured is kept, and the rest is left to another call.
    says(&ends(d, 0, &tune(&["--budget", "600"])), &["measured in"]);
}

#[test]
fn what_cannot_be_tuned_is_said() {
    let dir = folder();
    let d = dir.path();
    product(d);
    fails(d, 2, &["tune", "product.onnx", "--dim", "n=4", "-d", "cpu"], &["nothing to choose between"]);
    fails(d, 2, &["tune", "product.onnx", "-d", "vulkan"], &["the shape of x", "--dim"]);
    fails(d, 2, &["run", "product.onnx", "--tuning", "always"], &["`kept`"]);
    fails(d, 2, &tune(&["--budget", "soon"]), &["--budget"]);
    says(&ends(d, 0, &tune(&["--budget", "0"])), &["0 choices measured"]);
}

/// What a token and a prompt take, for which `generate` plans the same.
#[test]
fn of_a_language_model_tokens_and_prompts_are_measured() {
    let dir = folder();
    let d = dir.path();
    let model = concat!(env!("CARGO_MANIFEST_DIR"), "/../../models/tiny_gguf/qwen2.gguf");
    let all = ["tune", model, "--prompt-tokens", "40", "--device", "vulkan", "--cache", "cache"];
    let report = json(&ends(d, 0, &[&all[..], &["--budget", "600", "--json"]].concat()));
    let keys = report["measured"].as_array().unwrap().iter().map(|choice| choice["key"].as_str().unwrap());
    let keys: Vec<&str> = keys.collect();
    for wanted in ["few rows float32 by=block_vector_f32 m=1 n=320", "queries=1 keys=160", "queries=64:8"] {
        assert!(keys.iter().any(|key| key.contains(wanted)), "{wanted}: {keys:?}");
    }
    says(&ends(d, 0, &all), &["0 choices measured"]);
    let text = ["generate", model, "--prompt", "Hello", "-n", "4", "-d", "vulkan", "--cache", "cache"];
    ends(d, 0, &[&text[..], &["--tuning", "kept"]].concat());
}
