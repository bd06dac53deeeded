//! `onepool bench model` and `onepool demo`: what they check, measure and say.

use std::io::Write;
use std::path::Path;
use std::process::Stdio;

use crate::onnx::{add, case};
use crate::{ends, f32s, fails, folder, piped, says};

/// A case of `add.onnx` in `dir`, whose output is off by `off`.
fn add_case(dir: &Path, off: f32) {
    let x = f32s(&[2, 3], &[0.0, 1.0, 2.0, 3.0, 4.0, 5.0]);
    let y: Vec<f32> = crate::SUM.iter().map(|v| v + off).collect();
    case(dir, add(), &[x], &[f32s(&[2, 3], &y)]);
}

fn json(text: &str) -> serde_json::Value {
    serde_json::from_str(text).unwrap()
}

#[test]
fn a_model_is_measured_by_value_and_bound() {
    let dir = folder();
    add_case(dir.path(), 0.0);
    let args = ["bench", "model", ".", "--device", "cpu", "--runs", "6"];
    says(
        &ends(dir.path(), 0, &args),
        &["by value", "bound", "inputs copied in", "outputs copied out", "used in place"],
    );
    let report = json(&ends(dir.path(), 0, &[&args[..], &["--json"]].concat()));
    let ms = |of: &str, what: &str| report[of][what].as_f64().unwrap();
    for time in
        [ms("by_value", "copy_in_ms"), ms("by_value", "copy_out_ms"), report["median_ms"].as_f64().unwrap()]
    {
        assert!(time > 0.0, "{report}");
    }
    assert!(ms("by_value", "median_ms") >= ms("by_value", "min_ms"), "{report}");
    // 24 bytes in, 24 out: the CPU works on the caller's.
    let copies = &report["bound"]["copies"];
    assert_eq!(copies, &serde_json::json!({"in_place": 48, "by_device": 0, "by_cpu": 0}), "{report}");
    assert_eq!(report["bound"]["verdicts"].as_array().unwrap().len(), 2);
    assert!(report["saved"]["is_measured"].is_boolean());
}

#[test]
fn what_a_device_copies_of_bound_tensors_is_said() {
    let dir = folder();
    add_case(dir.path(), 0.0);
    let args = ["bench", "model", ".", "--device", "sim", "--runs", "1", "--json"];
    let copied = |extra: &[&str]| {
        let report = json(&ends(dir.path(), 0, &[&args[..], extra].concat()));
        report["bound"]["copies"]["by_cpu"].as_u64().unwrap()
    };
    assert_eq!(copied(&[]), 48, "below the threshold");
    assert_eq!(copied(&["--copy-threshold", "0"]), 0);
}

#[test]
fn a_wrong_result_is_an_error_and_no_time() {
    let dir = folder();
    add_case(dir.path(), 0.5);
    fails(dir.path(), 1, &["bench", "model", ".", "--device", "cpu"], &["elements are wrong"]);
}

#[test]
fn a_result_that_is_nearly_right_is_named_and_timed() {
    let dir = folder();
    add_case(dir.path(), 0.1);
    let args = ["bench", "model", ".", "--device", "cpu", "--runs", "2"];
    says(&ends(dir.path(), 0, &args), &["the results are not the data set's", "6 of 6 elements are wrong"]);
    let report = json(&ends(dir.path(), 0, &[&args[..], &["--json"]].concat()));
    assert!(report["differs"].as_str().unwrap().contains("6 of 6"), "{report}");
}

#[test]
fn runs_are_served_one_by_one_either_way() {
    let dir = folder();
    add_case(dir.path(), 0.0);
    let args = ["bench", "model", ".", "--device", "cpu", "--serve"];
    let mut child = piped(dir.path(), &args).stdin(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(b"value\nbound\nvalue\nneither\n").unwrap();
    let out = child.wait_with_output().unwrap();
    let stdout = String::from_utf8_lossy(&out.stdout);
    let lines: Vec<&str> = stdout.lines().collect();
    assert_eq!((lines[0], lines.len()), ("ready", 4), "{stdout}");
    assert!(lines[1..].iter().all(|line| line.parse::<f64>().unwrap() > 0.0), "{stdout}");
    assert_eq!(out.status.code(), Some(2));
    says(&String::from_utf8_lossy(&out.stderr), &["neither", "`value` or `bound`"]);
}

#[test]
fn the_demo_mends_its_picture_and_says_what_it_measured() {
    let dir = folder();
    for filter in ["dehaze", "denoise"] {
        let size = ["--size", "64x48", "--filter", filter];
        let demo =
            |extra: &[&str]| ends(dir.path(), 0, &[&["demo", "--device", "cpu"][..], &size, extra].concat());
        let report = json(&demo(&["--runs", "5", "--json"]));
        let db = |which: &str| report[which].as_f64().unwrap();
        assert!(db("psnr_after") > db("psnr_before") + 5.0, "{report}");
        assert!(dir.path().join("before.png").exists() && dir.path().join("after.png").exists());
        let saved = &report["transfer"]["saved"];
        let [median, spread] = ["median_ms", "spread_ms"].map(|what| saved[what].as_f64().unwrap());
        assert_eq!(saved["is_measured"].as_bool(), Some(median.abs() > spread), "{report}");
        // A single pair of runs shows no difference.
        says(&demo(&["--runs", "1"]), &["no difference measured between bound and copied runs in 1 pairs"]);
    }
    fails(
        dir.path(),
        2,
        &["demo", "--device", "cpu", "--filter", "denoise", "--noise", "256"],
        &["noise of 256"],
    );
}
