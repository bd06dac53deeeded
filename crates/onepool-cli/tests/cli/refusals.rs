//! What the program refuses before it does anything, and with which code it ends.

use std::fs;

use super::onnx::{Dim, Model, add};
use super::{ends, fails, folder, onepool, says, text, with_add};
use onepool::DType;

#[test]
fn numbers_out_of_range_are_usage_errors() {
    let dir = with_add();
    let d = dir.path();
    for command in [&["bench", "model", "."][..], &["bench", "transfer"], &["bench", "boundary"], &["demo"]] {
        fails(d, 2, &[command, &["--runs", "0"]].concat(), &["--runs", "1.."]);
    }
    let run = |option: &'static str, value: &'static str| {
        ["run", "add.onnx", "-i", "x.pb", "-d", "cpu", option, value]
    };
    for bad in ["nan", "inf", "0", "a"] {
        fails(d, 2, &run("--scale", bad), &["--scale", "expected a finite number that is not 0"]);
    }
    fails(d, 2, &run("--std", "0"), &["--std", "that is not 0"]);
    fails(d, 2, &run("--threads", "all"), &["--threads", "invalid digit"]);
    fails(d, 1, &run("--threads", "100000"), &["100000 threads are asked for"]);
    ends(d, 0, &run("--threads", "1"));
    fails(d, 2, &run("--mean", "nan"), &["--mean", "expected a finite number"]);
    for bad in ["nan", "-1", "inf"] {
        for option in ["--rtol", "--atol"] {
            fails(d, 2, &["verify", ".", option, bad], &[option, "expected a number from 0"]);
        }
    }
}

/// The codes are those of `run`, after what there is to show.
#[test]
fn a_model_that_cannot_be_loaded_is_shown_and_is_no_success() {
    let dir = folder();
    let d = dir.path();
    let model = || Model::default().input("x", DType::F32, &[Dim::Size(3)]).output("y", DType::F32);
    let both = |file: &str, code: i32, says_: &[&str]| {
        for command in [&["inspect", file][..], &["inspect", file, "--json"]] {
            fails(d, code, command, says_);
        }
        fails(d, code, &["run", file, "-i", "x.npy", "-d", "cpu"], says_);
        let out = text(&onepool(d, &["inspect", file]).stdout);
        says(&out, &[file, "Relu", "not planned: "]);
    };
    model().node("Relu", &["ghost"], &["y"]).write(&d.join("ghost.onnx"));
    both("ghost.onnx", 1, &["\"ghost\"", "nothing produces it"]);
    let cycle = model().named("", "Add", &["x", "b"], &["y"]).node("Relu", &["y"], &["b"]);
    cycle.write(&d.join("cycle.onnx"));
    both("cycle.onnx", 1, &["cycle"]);
    model().named("", "Foo", &["x"], &["a"]).node("Relu", &["a"], &["y"]).write(&d.join("foo.onnx"));
    both("foo.onnx", 3, &["node \"unnamed #0, makes a\" (Foo)", "no operator"]);
    add().write(&d.join("add.onnx"));
    // Sizes that are not given are no failure.
    says(&ends(d, 0, &["inspect", "add.onnx"]), &["not planned", "--shape or --dim"]);
}

#[test]
fn what_is_there_instead_of_a_model_is_said() {
    let dir = folder();
    let d = dir.path();
    let pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 12345\n";
    fs::write(d.join("lfs.onnx"), pointer).unwrap();
    fails(d, 1, &["run", "lfs.onnx"], &["a Git LFS pointer, not a model; run `git lfs pull`"]);
    let whole = add().encode();
    fs::write(d.join("cut.onnx"), &whole[..whole.len() - 20]).unwrap();
    for command in ["run", "inspect"] {
        fails(d, 1, &[command, "cut.onnx"], &["the file is cut short"]);
    }
    fails(d, 1, &["run", "none.onnx"], &["none.onnx", "No such file"]);
}

#[test]
fn the_help_says_what_there_is() {
    let dir = folder();
    let help = |command: &[&str]| ends(dir.path(), 0, &[command, &["--help"]].concat());
    says(&help(&["run"]), &["a GGUF file", "No other file is written over"]);
    says(&help(&["generate"]), &["as a whole", "`-` for standard input"]);
    says(&help(&["demo"]), &["haze", "then a GPU"]);
}
