//! The command line tool as a user meets it: exit codes, what is printed, what bad input does.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

mod bench;
mod caches;
#[cfg(all(target_os = "linux", feature = "vulkan"))]
mod compiler;
mod embed;
mod formats;
mod generate;
mod onnx;
mod packaging;
mod refusals;
mod report;
#[cfg(feature = "vulkan")]
mod tuning;

use std::path::Path;
#[cfg(unix)]
use std::process::Child;
use std::process::{Command, Output, Stdio};

use onepool::loader::onnx::{read_tensor_pb, write_tensor_pb};
use onepool::{DType, Tensor};
use onnx::{Dim, Model, add, case};

/// Runs the program in `dir`.
fn onepool(dir: &Path, args: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_onepool"));
    command.current_dir(dir).args(args).env_remove("ONEPOOL_DEVICE").env_remove("RUST_LOG");
    command.env_remove("ONEPOOL_CACHE").stdin(Stdio::null()).output().unwrap()
}

/// The program in `dir`, to be started with its output caught.
fn piped(dir: &Path, args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_onepool"));
    command.current_dir(dir).args(args).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// Presses Ctrl-C.
#[cfg(unix)]
fn interrupt(child: &Child) {
    assert!(Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap().success());
}

/// The root of the repository.
fn root() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."))
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Runs it and expects an exit code; gives what it printed to standard output.
#[track_caller]
fn ends(dir: &Path, code: i32, args: &[&str]) -> String {
    let out = onepool(dir, args);
    let (stdout, stderr) = (text(&out.stdout), text(&out.stderr));
    assert_eq!(out.status.code(), Some(code), "{args:?}\n{stdout}\n{stderr}");
    assert!(!stderr.contains("panicked"), "{stderr}");
    stdout
}

/// Runs it, expects an exit code and that the error says all of `phrases`.
#[track_caller]
fn fails(dir: &Path, code: i32, args: &[&str], phrases: &[&str]) {
    let out = onepool(dir, args);
    let stderr = text(&out.stderr);
    assert_eq!(out.status.code(), Some(code), "{args:?}\n{}\n{stderr}", text(&out.stdout));
    for phrase in phrases {
        assert!(stderr.contains(phrase), "{args:?} does not say {phrase:?}: {stderr}");
    }
}

fn says(text: &str, phrases: &[&str]) {
    for phrase in phrases {
        assert!(text.contains(phrase), "{phrase:?} is missing in:\n{text}");
    }
}

fn folder() -> tempfile::TempDir {
    tempfile::tempdir().unwrap()
}

fn f32s(dims: &[usize], values: &[f32]) -> Tensor {
    Tensor::new(dims, values).unwrap()
}

/// A folder with `add.onnx` and an input `x.pb` of two rows.
fn with_add() -> tempfile::TempDir {
    let dir = folder();
    add().write(&dir.path().join("add.onnx"));
    let x = f32s(&[2, 3], &[0.0, 1.0, 2.0, 3.0, 4.0, 5.0]);
    std::fs::write(dir.path().join("x.pb"), write_tensor_pb("x", &x)).unwrap();
    dir
}

const SUM: [f32; 6] = [1.0, 3.0, 5.0, 4.0, 6.0, 8.0];

fn read_pb(path: &Path) -> Tensor {
    read_tensor_pb(&std::fs::read(path).unwrap()).unwrap().1
}

#[test]
fn arguments_that_make_no_sense_are_usage_errors() {
    let dir = folder();
    let d = dir.path();
    ends(d, 2, &[]);
    ends(d, 2, &["no-such-command"]);
    ends(d, 2, &["run"]);
    ends(d, 2, &["verify"]);
    ends(d, 2, &["run", "m.onnx", "--repeat", "0"]);
    says(&ends(d, 0, &["--help"]), &["devices", "run", "inspect", "verify", "bench", "demo"]);
    says(&ends(d, 0, &["run", "--help"]), &["--explain", "--place", "--strict", "--trace"]);
    for command in [&["run"][..], &["verify"], &["bench", "model"]] {
        says(&ends(d, 0, &[command, &["--help"]].concat()), &["--precision", "--coarse-filter", "1/256"]);
    }
    says(&ends(d, 0, &["--version"]), &["onepool 0."]);
}

#[test]
fn devices_are_listed_as_table_and_json() {
    let dir = folder();
    says(&ends(dir.path(), 0, &["devices"]), &["cpu:0", "is opened where no --device is given"]);
    let json = ends(dir.path(), 0, &["devices", "cpu", "--json"]);
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    let cpu = &json["devices"][0];
    assert_eq!((cpu["selector"].as_str(), cpu["native"].as_bool()), (Some("cpu:0"), Some(true)));
    assert!(cpu["limits"]["max_argument_bytes"].is_u64());
    fails(dir.path(), 2, &["devices", "nosuch"], &["no device API \"nosuch\"", "cpu"]);
}

/// Where there is no driver of it, the listing says why.
#[test]
#[cfg(feature = "opencl")]
fn devices_of_opencl_are_listed_with_what_trying_them_found() {
    let dir = folder();
    let json = ends(dir.path(), 0, &["devices", "opencl", "--json"]);
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    let devices = json["devices"].as_array().unwrap();
    let required = std::env::var("REQUIRE_BACKENDS").is_ok_and(|list| list.contains("opencl"));
    if devices.is_empty() {
        assert!(!required, "{json}");
        assert!(json["unavailable"][0]["reason"].is_string(), "{json}");
        return;
    }
    let table = ends(dir.path(), 0, &["devices", "opencl"]);
    for (at, device) in devices.iter().enumerate() {
        let selector = format!("opencl:{at}");
        assert_eq!((device["selector"].as_str(), device["api"].as_str()), (Some(&*selector), Some("opencl")));
        assert_eq!(device["native"].as_bool(), Some(false));
        assert!(device["limits"]["argument_alignment"].as_u64().unwrap() >= 16, "{device}");
        says(&table, &[&selector, device["name"].as_str().unwrap()]);
    }
    assert!(!required || devices.iter().any(|device| device["unusable"].is_null()), "{json}");
    assert!(!table.contains("cpu:0"), "{table}");
}

#[test]
fn a_reader_that_goes_away_is_no_crash() {
    let dir = with_add();
    for args in [&["devices"][..], &["inspect", "add.onnx", "--nodes", "--dim", "n=1"]] {
        let mut child = piped(dir.path(), args).spawn().unwrap();
        drop(child.stdout.take());
        let out = child.wait_with_output().unwrap();
        assert_eq!(out.status.code(), Some(0), "{}", text(&out.stderr));
    }
}

/// Nor is one that goes away from the log, or a place where nothing can be written.
#[test]
#[cfg(target_os = "linux")]
fn what_cannot_be_printed_or_written_is_no_crash() {
    let dir = with_add();
    let d = dir.path();
    let run = |stdout: Stdio| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_onepool"));
        command.current_dir(d).args(["run", "add.onnx", "-i", "x.pb", "-d", "cpu", "--explain", "-vvvv"]);
        command.env("RUST_LOG", "trace").stdin(Stdio::null()).stdout(stdout).stderr(Stdio::piped());
        command.spawn().unwrap()
    };
    let mut quiet = run(Stdio::null());
    drop(quiet.stderr.take());
    assert_eq!(quiet.wait().unwrap().code(), Some(0));
    let full = std::fs::File::create("/dev/full").unwrap();
    let out = run(full.into()).wait_with_output().unwrap();
    let stderr = text(&out.stderr);
    assert_eq!(out.status.code(), Some(1), "{stderr}");
    assert!(stderr.contains("onepool: cannot write to standard output"), "{stderr}");
    let run = |option: &'static str, file: &'static str| {
        ["run", "add.onnx", "-i", "x.pb", "-d", "cpu", option, file]
    };
    for file in ["none/y.npy", "none/y.npz", "none/y.pb", "none/y.bin"] {
        fails(d, 1, &run("-o", file), &["cannot write", file, "No such file"]);
    }
    fails(d, 1, &run("--trace", "none/t.json"), &["none/t.json"]);
    fails(d, 1, &run("--trace", "/dev/full"), &["/dev/full", "No space left"]);
    std::fs::create_dir(d.join("dir.npy")).unwrap();
    fails(d, 1, &run("-o", "dir.npy"), &["cannot write dir.npy"]);
    case(&d.join("good"), add(), &[f32s(&[2, 3], &[0.0; 6])], &[f32s(&[2, 3], &SUM)]);
    fails(d, 1, &["verify", "good", "-d", "cpu", "--report", "none/r.json"], &["cannot write none/r.json"]);
}

#[test]
fn a_model_runs_on_every_kind_of_tensor_file() {
    let dir = with_add();
    let d = dir.path();
    let out = ends(d, 0, &["run", "add.onnx", "-i", "x.pb", "-o", "y.npy", "-d", "cpu"]);
    says(&out, &["y", "float32", "[2, 3]", "used in place", "1 run", "y -> y.npy"]);
    // Each format is written from what the one before it held.
    let mut last = "y.npy".to_owned();
    for (i, next) in ["a.npz", "b.npz:k", "c.pb", "d.npy"].iter().enumerate() {
        ends(d, 0, &["run", "add.onnx", "-i", &format!("x={last}"), "-o", &format!("y={next}"), "-d", "cpu"]);
        last = (*next).to_owned();
        if *next == "c.pb" {
            let want: Vec<f32> = SUM
                .iter()
                .zip([1.0, 2.0, 3.0].iter().cycle())
                .map(|(s, c)| s + c * (i as f32 + 1.0))
                .collect();
            assert_eq!(read_pb(&d.join("c.pb")).as_slice::<f32>().unwrap(), want);
        }
    }
    std::fs::write(d.join("x.bin"), bytemuck::cast_slice(&[0f32; 9])).unwrap();
    ends(d, 0, &["run", "add.onnx", "-i", "x.bin", "-o", "y.raw", "--shape", "x=3,3", "-d", "cpu"]);
    ends(d, 0, &["run", "add.onnx", "-i", "x.bin", "-o", "y.raw", "--dim", "n=3", "-d", "cpu"]);
    let raw = std::fs::read(d.join("y.raw")).unwrap();
    assert_eq!(bytemuck::pod_collect_to_vec::<u8, f32>(&raw), [1.0, 2.0, 3.0].repeat(3));
}

#[test]
fn a_picture_goes_in_and_comes_out() {
    let dir = folder();
    let d = dir.path();
    let pixels: Vec<u8> = (0..12 * 10 * 3).map(|i| (i * 7 % 251) as u8).collect();
    image::RgbImage::from_raw(12, 10, pixels.clone()).unwrap().save(d.join("in.png")).unwrap();
    for (name, dims) in [
        ("nchw", [Dim::Size(1), Dim::Size(3), Dim::Name("h"), Dim::Name("w")]),
        ("nhwc", [Dim::Size(1), Dim::Size(10), Dim::Size(12), Dim::Size(3)]),
    ] {
        let model = format!("{name}.onnx");
        let relu = Model::default().input("x", DType::F32, &dims).node("Relu", &["x"], &["y"]);
        relu.output("y", DType::F32).write(&d.join(&model));
        ends(d, 0, &["run", &model, "-i", "in.png", "-o", "out.png", "-d", "cpu"]);
        let out = image::open(d.join("out.png")).unwrap().to_rgb8();
        assert_eq!(out.into_raw(), pixels, "{name}");
    }
    let small = [Dim::Size(1), Dim::Size(3), Dim::Size(5), Dim::Size(6)];
    let relu = Model::default().input("x", DType::F32, &small).node("Relu", &["x"], &["y"]);
    relu.output("y", DType::F32).write(&d.join("small.onnx"));
    let out = ends(d, 0, &["run", "small.onnx", "-i", "in.png", "-o", "out.jpg", "-d", "cpu"]);
    says(&out, &["12x10 scaled to 6x5"]);
    assert_eq!(image::open(d.join("out.jpg")).unwrap().width(), 6);
    let strict = ["run", "small.onnx", "-i", "in.png", "-d", "cpu", "--fit", "error"];
    fails(d, 2, &strict, &["the picture is 12x10, the model takes 6x5"]);
    let png = std::fs::read(d.join("in.png")).unwrap();
    std::fs::write(d.join("cut.png"), &png[..png.len() / 2]).unwrap();
    fails(d, 1, &["run", "small.onnx", "-i", "cut.png", "-d", "cpu"], &["cut.png"]);
    let jpg = std::fs::read(d.join("out.jpg")).unwrap();
    std::fs::write(d.join("cut.jpg"), &jpg[..jpg.len() - 40]).unwrap();
    fails(d, 1, &["run", "small.onnx", "-i", "cut.jpg", "-d", "cpu"], &["cut.jpg", "cut short"]);
    std::fs::write(d.join("no.png"), "hello").unwrap();
    fails(d, 1, &["run", "small.onnx", "-i", "no.png", "-d", "cpu"], &["no.png"]);
}

/// What `--explain` says of `x.pb`.
const BY_VALUE: &str = "x: given by value, 24 bytes: the CPU copies them once, before the runs";

#[test]
fn a_run_explains_itself() {
    let dir = with_add();
    let d = dir.path();
    let out = ends(d, 0, &["run", "add.onnx", "-i", "x.pb", "-d", "cpu", "--explain", "-v"]);
    says(
        &out,
        &[
            "used in place by the CPU",
            "the_Add",
            "barrier",
            "kernel",
            "constant",
            "segment 0 on cpu:0",
            BY_VALUE,
        ],
    );
    let args =
        ["run", "add.onnx", "-i", "x.pb", "-d", "cpu", "--explain", "--profile", "--repeat", "3", "--json"];
    let json: serde_json::Value = serde_json::from_str(&ends(d, 0, &args)).unwrap();
    assert_eq!(json["runs_ms"].as_array().unwrap().len(), 3);
    assert_eq!(json["explain"]["verdicts"][0]["path"], "host");
    let given = &json["explain"]["by_value"][0];
    assert_eq!((given["tensor"].as_str(), given["bytes"].as_u64()), (Some("x"), Some(24)));
    assert_eq!(json["explain"]["plan"]["nodes"][0]["op"], "Add");
    assert_eq!(json["outputs"][0]["shape"], serde_json::json!([2, 3]));
    assert!(json["profile"]["nodes"].is_array());
    let traced = ["run", "add.onnx", "-i", "x.pb", "-d", "cpu", "--trace", "t.json", "--profile"];
    says(&ends(d, 0, &traced), &["Add", "share"]);
    let trace: serde_json::Value =
        serde_json::from_str(&std::fs::read_to_string(d.join("t.json")).unwrap()).unwrap();
    assert!(trace["traceEvents"].as_array().unwrap().iter().any(|e| e["ph"] == "X"));
}

#[test]
fn a_large_tensor_is_imported_and_a_small_one_copied() {
    let dir = folder();
    let d = dir.path();
    add().write(&d.join("add.onnx"));
    let large = f32s(&[1 << 17, 3], &vec![1.0; 3 << 17]);
    std::fs::write(d.join("x.pb"), write_tensor_pb("x", &large)).unwrap();
    let args =
        ["run", "add.onnx", "-i", "x.pb", "-d", "vulkan", "--explain", "--json", "--strict", "--validation"];
    let json: serde_json::Value = serde_json::from_str(&ends(d, 0, &args)).unwrap();
    for verdict in json["explain"]["verdicts"].as_array().unwrap() {
        assert_eq!(verdict["path"], "imported", "{verdict}");
    }
    let small = f32s(&[1, 3], &[1.0; 3]);
    std::fs::write(d.join("x.pb"), write_tensor_pb("x", &small)).unwrap();
    let out = ends(d, 0, &["run", "add.onnx", "-i", "x.pb", "-d", "vulkan", "--explain"]);
    says(&out, &["copied by the CPU"]);
}

#[test]
fn a_run_ends_early_with_a_sentence() {
    let dir = with_add();
    let d = dir.path();
    let run = ["run", "add.onnx", "--device", "cpu", "--input", "x=x.pb"];
    let with =
        |more: &[&'static str]| -> Vec<&str> { run.iter().copied().chain(more.iter().copied()).collect() };
    fails(
        d,
        1,
        &with(&["--time-limit", "0.000000001"]),
        &["the time limit of 1 ns was up after 0 of 1 operators"],
    );
    fails(d, 2, &with(&["--time-limit", "never"]), &["expected a number of seconds"]);
    fails(d, 2, &with(&["--submission-limit", "soon"]), &["no limit of a submission", "milliseconds"]);
    for limit in ["0", "auto", "off"] {
        ends(d, 0, &with(&["--submission-limit", limit, "--time-limit", "600"]));
    }
    let out = piped(d, &run).env("ONEPOOL_SUBMISSION_LIMIT", "soon").output().unwrap();
    assert_eq!(out.status.code(), Some(2));
    says(&text(&out.stderr), &["ONEPOOL_SUBMISSION_LIMIT", "soon"]);
}

#[test]
fn native_functions_keep_to_the_vectors_that_are_asked_for() {
    let dir = with_add();
    let run = |vectors: &str| {
        let args = ["run", "add.onnx", "--device", "cpu", "--input", "x=x.pb"];
        piped(dir.path(), &args).env("ONEPOOL_CPU_VECTORS", vectors).output().unwrap()
    };
    let widest = run("widest");
    assert!(widest.status.success(), "{}", text(&widest.stderr));
    let wrong = run("512");
    assert_eq!(wrong.status.code(), Some(1));
    says(&text(&wrong.stderr), &["ONEPOOL_CPU_VECTORS", "\"512\"", "give widest or avx2"]);
    if cfg!(target_arch = "x86_64") {
        assert!(run("avx2").status.success());
    }
}

/// Waits until a program listens to interrupts, where the system tells.
#[cfg(unix)]
fn until_it_listens(program: u32) {
    let path = format!("/proc/{program}/status");
    let interrupt = 1 << 1;
    let listens = |status: &str| {
        let caught = status.lines().find_map(|line| line.strip_prefix("SigCgt:"));
        caught.is_none_or(|mask| u64::from_str_radix(mask.trim(), 16).unwrap() & interrupt != 0)
    };
    let begun = std::time::Instant::now();
    while std::fs::read_to_string(&path).is_ok_and(|status| !listens(&status)) {
        assert!(begun.elapsed() < std::time::Duration::from_secs(120));
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
}

#[cfg(unix)]
#[test]
fn ctrl_c_ends_a_run_with_a_sentence() {
    let dir = with_add();
    let args = ["run", "add.onnx", "--device", "cpu", "--input", "x=x.pb", "--repeat", "4000000000"];
    let child = piped(dir.path(), &args).stdin(Stdio::null()).spawn().unwrap();
    until_it_listens(child.id());
    std::thread::sleep(std::time::Duration::from_millis(1500));
    interrupt(&child);
    let out = child.wait_with_output().unwrap();
    assert_eq!(out.status.code(), Some(130), "{}", text(&out.stderr));
    says(&text(&out.stderr), &["ending when the device is done", "the run was cancelled after"]);
}

#[test]
fn nodes_can_be_placed() {
    let dir = with_add();
    let d = dir.path();
    let run = |extra: &[&str]| {
        let mut args = vec![
            "run",
            "add.onnx",
            "-i",
            "x.pb",
            "-o",
            "y.pb",
            "-d",
            "vulkan",
            "-d",
            "cpu",
            "--explain",
            "--json",
        ];
        args.extend(extra);
        let json: serde_json::Value = serde_json::from_str(&ends(d, 0, &args)).unwrap();
        assert_eq!(read_pb(&d.join("y.pb")).as_slice::<f32>().unwrap(), SUM);
        json["explain"]["plan"]["nodes"][0]["device"].as_u64().unwrap()
    };
    assert_eq!(run(&[]), 0);
    assert_eq!(run(&["--place", "op:Add=1"]), 1);
    assert_eq!(run(&["--place", "node:the_Add=1"]), 1);
    assert_eq!(run(&["--place", "the_Add=cpu"]), 1);
    assert_eq!(run(&["--place", "op:Add=cpu", "--place", "the_Add=vulkan:0"]), 0);
    let place = |what: &'static str| ["run", "add.onnx", "-i", "x.pb", "-d", "cpu", "--place", what];
    fails(d, 2, &place("op:Conv=0"), &["operator \"Conv\"", "[\"Add\"]"]);
    fails(d, 2, &place("op:Add=7"), &["entry 7", "which has 1"]);
    fails(d, 2, &place("op:Add=vulkan"), &["\"vulkan\" is no entry", "0 is cpu:0"]);
    fails(d, 2, &place("Add"), &["op:OPERATOR=DEVICE"]);
}

#[test]
fn placement_can_be_left_to_measurements() {
    let dir = with_add();
    let d = dir.path();
    let auto = ["--device", "vulkan", "--device", "cpu", "--place", "auto", "--cache", "times"];
    let run = |extra: &[&str]| {
        let args: Vec<&str> = ["run", "add.onnx", "-i", "x.pb", "-o", "y.pb", "--explain"]
            .into_iter()
            .chain(auto)
            .chain(extra.iter().copied())
            .collect();
        let out = ends(d, 0, &args);
        assert_eq!(read_pb(&d.join("y.pb")).as_slice::<f32>().unwrap(), SUM);
        out
    };
    says(&run(&[]), &["placement", "all on vulkan:0", "all on cpu:0", "chosen", "decided now", "the_Add"]);
    assert!(d.join("times/placement.onepool").exists());
    let kept: serde_json::Value = serde_json::from_str(&run(&["--json"])).unwrap();
    let placement = &kept["explain"]["plan"]["placement"];
    assert_eq!((&placement["cached"], &placement["timed"]), (&true.into(), &0.into()));
    assert!(kept["profile"]["nodes"].as_array().is_some_and(|nodes| !nodes.is_empty()));
    // What is asked for stays there.
    let fixed: serde_json::Value = serde_json::from_str(&run(&["--place", "op:Add=cpu", "--json"])).unwrap();
    assert_eq!(fixed["explain"]["plan"]["nodes"][0]["device"], 1);
    let args: Vec<&str> = ["inspect", "add.onnx", "--shape", "2,3"].into_iter().chain(auto).collect();
    says(&ends(d, 0, &args), &["placement", "all on vulkan:0"]);
    fails(d, 2, &["run", "add.onnx", "--place", "auto", "--place-time=-1"], &["--place-time"]);
}

#[test]
fn what_does_not_fit_the_model_is_said() {
    let dir = with_add();
    let d = dir.path();
    let run = |input: &'static str| ["run", "add.onnx", "-d", "cpu", "-i", input];
    fails(d, 2, &["run", "add.onnx", "-d", "cpu"], &["no file for x float32[n, 3]"]);
    fails(d, 2, &run("z=x.pb"), &["there is no input \"z\"; the inputs are \"x\""]);
    fails(
        d,
        2,
        &["run", "add.onnx", "-i", "x.pb", "-o", "q=y.npy", "-d", "cpu"],
        &["there is no output \"q\"; the outputs are \"y\""],
    );
    let doubles = Tensor::new([2, 3], &[0f64; 6]).unwrap();
    std::fs::write(d.join("f64.pb"), write_tensor_pb("x", &doubles)).unwrap();
    fails(d, 2, &run("f64.pb"), &["\"x\" holds float32, got float64"]);
    std::fs::write(d.join("wide.pb"), write_tensor_pb("x", &f32s(&[2, 4], &[0.0; 8]))).unwrap();
    fails(d, 2, &run("wide.pb"), &["expected shape [n, 3], got [2, 4]"]);
    std::fs::write(d.join("x.bin"), [0; 10]).unwrap();
    fails(d, 2, &run("x.bin"), &["--shape x="]);
    fails(d, 2, &["run", "add.onnx", "-i", "x.pb", "--dim", "m=2"], &["--dim \"m=2\"", "{\"n\"}"]);
    fails(d, 2, &["inspect", "add.onnx", "--dim", "n=2", "--dim", "n=3"], &["given twice"]);
    let sized = |shape: &'static str| ["run", "add.onnx", "-d", "cpu", "-i", "x.bin", "--shape", shape];
    fails(d, 1, &sized("1,3"), &["12 bytes of data, there are 10"]);
    fails(d, 2, &sized("3"), &["expected shape [n, 3]"]);
    fails(d, 1, &sized("99999999999999,3"), &["there are 10"]);
    fails(d, 2, &sized("9223372036854775807,3"), &["too many elements"]);
    fails(d, 2, &run("x.txt"), &["tensors are read and written as"]);
    fails(d, 1, &run("none.npy"), &["cannot read none.npy"]);
    std::fs::create_dir(d.join("dir.npy")).unwrap();
    fails(d, 1, &run("dir.npy"), &["dir.npy"]);
}

#[test]
fn a_device_that_is_not_there_is_named() {
    let dir = with_add();
    let run = |device: &'static str| ["run", "add.onnx", "-i", "x.pb", "-d", device];
    fails(dir.path(), 2, &run("metal"), &["no device API \"metal\"", "cpu"]);
    fails(dir.path(), 2, &run("cpu:7"), &["cpu has no device \"7\""]);
    fails(dir.path(), 2, &run("cpu:quantum"), &["cpu has no device \"quantum\""]);
}

#[test]
fn what_is_no_model_is_an_error() {
    let dir = with_add();
    let d = dir.path();
    std::fs::write(d.join("text.onnx"), "this is not a model\n").unwrap();
    std::fs::write(d.join("empty.onnx"), "").unwrap();
    std::fs::create_dir_all(d.join("odd/dir.onnx")).unwrap();
    std::fs::create_dir(d.join("bare")).unwrap();
    for command in ["run", "inspect"] {
        fails(d, 1, &[command, "none.onnx"], &["none.onnx"]);
        fails(d, 1, &[command, "odd/dir.onnx"], &["odd/dir.onnx"]);
        fails(d, 1, &[command, "bare"], &["bare"]);
        fails(d, 1, &[command, "/dev/null"], &["/dev/null"]);
        fails(d, 1, &[command, "x.pb/x.onnx"], &["x.pb/x.onnx"]);
        fails(d, 1, &[command, "."], &["one file that ends in .onnx, found 3 of them"]);
        fails(d, 1, &[command, "text.onnx"], &["text.onnx"]);
        fails(d, 1, &[command, "empty.onnx"], &["empty.onnx"]);
    }
}

#[test]
fn no_cut_or_changed_model_is_more_than_an_error() {
    let dir = with_add();
    let d = dir.path();
    let model = add().encode();
    let calm = |bytes: &[u8], what: &str| {
        std::fs::write(d.join("bad.onnx"), bytes).unwrap();
        let _ = std::fs::remove_file(d.join("y.pb"));
        for args in [
            &["run", "bad.onnx", "-i", "x.pb", "-o", "y.pb", "-d", "cpu"][..],
            &["inspect", "bad.onnx", "--dim", "n=1", "--device", "cpu"],
        ] {
            let out = onepool(d, args);
            let (code, stderr) = (out.status.code(), text(&out.stderr));
            assert!(matches!(code, Some(0..=3)), "{what}: {code:?} {stderr}");
            assert!(!stderr.contains("panicked"), "{what}: {stderr}");
            if code != Some(0) {
                assert!(stderr.contains("onepool: "), "{what}: {stderr}");
            }
        }
        d.join("y.pb").exists().then(|| read_pb(&d.join("y.pb")).as_slice::<f32>().unwrap().to_vec())
    };
    for cut in (0..model.len()).step_by(5) {
        // All of it is needed.
        assert_eq!(calm(&model[..cut], &format!("cut at {cut}")), None, "cut at {cut}");
    }
    // The only numbers in it: a row that is added to both rows of x.
    let row: [f32; 3] = [1.0, 2.0, 3.0];
    let data: Vec<u8> = row.iter().flat_map(|v| v.to_le_bytes()).collect();
    let start = model.windows(data.len()).position(|bytes| bytes == data).unwrap();
    for at in 0..model.len() {
        let mut flipped = model.clone();
        flipped[at] ^= 1 << (at % 8);
        let what = format!("bit {} of byte {at}", at % 8);
        let y = calm(&flipped, &what);
        if (start..start + data.len()).contains(&at) {
            let row = flipped[start..start + data.len()].chunks_exact(4);
            let row: Vec<f32> = row.map(|b| f32::from_le_bytes(b.try_into().unwrap())).collect();
            let sum: Vec<f32> = (0..6u8).map(|i| f32::from(i) + row[usize::from(i) % 3]).collect();
            assert_eq!(y, Some(sum), "{what}");
        } else {
            // Where it is still a model, it is still this sum.
            assert!(y.is_none_or(|y| y == SUM), "{what}");
        }
    }
}

#[test]
fn an_unknown_operator_is_unsupported_and_inspect_lists_it() {
    let dir = with_add();
    let d = dir.path();
    let model = Model::default()
        .input("x", DType::F32, &[Dim::Size(3)])
        .node("Frobnicate", &["x"], &["a"])
        .node("Relu", &["a"], &["b"])
        .node("Twiddle", &["b"], &["y"]);
    model.output("y", DType::F32).write(&d.join("odd.onnx"));
    fails(d, 3, &["run", "odd.onnx", "-i", "x.pb", "-d", "cpu"], &["no operator \"Frobnicate\""]);
    fails(d, 3, &["inspect", "odd.onnx"], &["no operator \"Frobnicate\""]);
    let out = ends(d, 3, &["inspect", "odd.onnx"]);
    says(&out, &["Frobnicate", "NOT SUPPORTED", "not supported: Frobnicate, Twiddle", "Relu"]);
    let json: serde_json::Value =
        serde_json::from_str(&ends(d, 3, &["inspect", "odd.onnx", "--json"])).unwrap();
    assert_eq!(json["unsupported"], serde_json::json!(["Frobnicate", "Twiddle"]));
}

#[test]
fn a_model_is_inspected() {
    let dir = with_add();
    let d = dir.path();
    let out = ends(d, 0, &["inspect", "add.onnx"]);
    says(
        &out,
        &["[n, 3]", "ai.onnx 17", "cli tests", "Add", "pointwise", "12 B", "not planned", "--shape or --dim"],
    );
    let args = ["inspect", "add.onnx", "--shape", "4,3", "--device", "cpu", "--nodes"];
    says(&ends(d, 0, &args), &["the_Add", "flops", "float32[4, 3]"]);
    let json = ends(d, 0, &["inspect", "add.onnx", "--dim", "n=4", "--device", "cpu", "--json"]);
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!(json["planned"]["plan"]["cost"]["flops"], 12);
    assert_eq!(json["parameters"][0]["bytes"], 12);
    fails(d, 2, &["inspect", "add.onnx", "--shape", "4,4"], &["expected shape [n, 3]"]);
}

#[test]
fn what_passes_do_to_a_model_is_shown_and_each_may_be_left_out() {
    let dir = with_add();
    let d = dir.path();
    let inspect = ["inspect", "add.onnx", "--dim", "n=4", "--device", "cpu"];
    let with = |flags: &[&'static str]| [&inspect[..], flags].concat();
    let out = ends(d, 0, &with(&["--passes"]));
    says(&out, &["fold_weights", "nodes before", "specialize", "Infers all shapes", "not asked for"]);
    let flags = ["--passes", "--without", "absorb", "--stop-after", "fold_head_transposes", "--json"];
    let json: serde_json::Value = serde_json::from_str(&ends(d, 0, &with(&flags))).unwrap();
    let passes = json["passes"].as_array().unwrap();
    let status = |name: &str| passes.iter().find(|p| p["name"] == name).unwrap()["status"].clone();
    assert_eq!(["specialize", "lower"].map(status), ["ran", "ran"]);
    assert_eq!(["absorb", "fuse_chains"].map(status), ["left_out", "left_out"]);
    assert_eq!(status("mixed_precision"), "not_asked_for");
    let json: serde_json::Value = serde_json::from_str(&ends(d, 0, &with(&["--json"]))).unwrap();
    assert!(json.get("passes").is_none());
    fails(d, 2, &with(&["--without", "fuse"]), &["no pass \"fuse\"", "fuse_chains", "share_parameters"]);
    fails(d, 2, &with(&["--stop-after", "end"]), &["no pass \"end\"", "copy_between_devices"]);
    fails(d, 2, &with(&["--without", "specialize"]), &["cannot be left out", "concrete shapes", "absorb"]);
}

/// A folder with cases: one right, one wrong, one of an unknown operator.
fn with_cases() -> tempfile::TempDir {
    let dir = folder();
    let d = dir.path();
    let x = f32s(&[2, 3], &[0.0, 1.0, 2.0, 3.0, 4.0, 5.0]);
    case(&d.join("good"), add(), std::slice::from_ref(&x), &[f32s(&[2, 3], &SUM)]);
    let mut wrong = SUM;
    wrong[4] += 0.5;
    wrong[1] += 0.1;
    case(&d.join("wrong"), add(), std::slice::from_ref(&x), &[f32s(&[2, 3], &wrong)]);
    let odd = Model::default().input("x", DType::F32, &[Dim::Name("n"), Dim::Size(3)]);
    let odd = odd.node("Frobnicate", &["x"], &["y"]).output("y", DType::F32);
    case(&d.join("odd"), odd, std::slice::from_ref(&x), std::slice::from_ref(&x));
    std::fs::write(
        d.join("index.json"),
        r#"{"cases": [
            {"name": "good", "dir": "good", "op": "Add", "kind": "node", "dtypes": ["float32"], "rtol": 0.001, "atol": 1e-7},
            {"name": "wrong", "dir": "wrong", "op": "Add", "kind": "simple", "dtypes": ["float32"]},
            {"name": "odd", "dir": "odd", "op": "Frobnicate", "kind": "node", "dtypes": ["float16"]}]}"#,
    )
    .unwrap();
    dir
}

#[test]
fn cases_are_verified_one_by_one() {
    let dir = with_cases();
    let d = dir.path();
    let out = ends(d, 0, &["verify", "good", "--device", "cpu"]);
    assert_eq!(out, "1 passed, 0 failed, 0 unsupported\n");
    let out = ends(d, 1, &["verify", "wrong", "--device", "cpu"]);
    says(&out, &["2 of 6 elements are wrong, the farthest at [1, 1]: got 6, expected 6.5"]);
    assert!(out.ends_with("0 passed, 1 failed, 0 unsupported\n"), "{out}");
    let out = ends(d, 3, &["verify", "odd", "--device", "cpu"]);
    says(&out, &["unsupported  odd", "Frobnicate"]);
    ends(d, 0, &["verify", "wrong", "--device", "cpu", "--atol", "0.6"]);
    fails(d, 2, &["verify", "none"], &["none is no folder"]);
    // Nothing is compared with nothing.
    std::fs::remove_file(d.join("good/test_data_set_0/output_0.pb")).unwrap();
    let phrase = "the model has 1 output, and there is data of 0 outputs";
    says(&ends(d, 1, &["verify", "good", "--device", "cpu"]), &[phrase]);
    std::fs::remove_dir_all(d.join("good/test_data_set_0")).unwrap();
    says(&ends(d, 1, &["verify", "good", "--device", "cpu"]), &["no test_data_set_0"]);
}

#[test]
fn many_cases_are_summed_filtered_and_expected() {
    let dir = with_cases();
    let d = dir.path();
    let all = ["verify", "good", "wrong", "odd", "good", "odd", "--device", "cpu", "--jobs", "3", "-v"];
    let out = ends(d, 1, &all);
    says(&out, &["passed       good", "FAILED       wrong", "unsupported  odd"]);
    assert!(out.ends_with("2 passed, 1 failed, 2 unsupported\n"), "{out}");
    let closing = |code: i32, extra: &[&str]| {
        let mut args = vec!["verify", "--suite", ".", "--device", "cpu"];
        args.extend(extra);
        ends(d, code, &args).lines().last().unwrap_or_default().to_owned()
    };
    assert_eq!(closing(1, &[]), "1 passed, 1 failed, 1 unsupported");
    assert_eq!(closing(3, &["--kind", "node"]), "1 passed, 0 failed, 1 unsupported");
    assert_eq!(closing(0, &["--kind", "node", "--core"]), "1 passed, 0 failed, 0 unsupported");
    assert_eq!(closing(1, &["--ops", "Add"]), "1 passed, 1 failed, 0 unsupported");
    fails(d, 2, &["verify", "--suite", ".", "--filter", "zzz"], &["no case is left"]);
    let expect = |text: &str| std::fs::write(d.join("expect.json"), text).unwrap();
    expect(r#"{"min_passed": {"cpu": 1}, "allow_wrong": ["wrong"]}"#);
    closing(0, &["--expect", "expect.json"]);
    expect(r#"{"min_passed": {"cpu": 2}, "allow_wrong": ["wrong"]}"#);
    closing(1, &["--expect", "expect.json"]);
    expect(r#"{"require_ops": ["Frobnicate"], "allow_wrong": ["wrong"]}"#);
    closing(1, &["--expect", "expect.json"]);
    expect("{}");
    closing(1, &["--expect", "expect.json"]);
    closing(1, &["--report", "report.json"]);
    let report: serde_json::Value =
        serde_json::from_str(&std::fs::read_to_string(d.join("report.json")).unwrap()).unwrap();
    assert_eq!(report["totals"]["passed"], 1);
    assert_eq!(report["cases"][1]["status"], "failed");
}

#[test]
fn a_value_that_decides_shapes_is_taken_from_the_case() {
    let dir = folder();
    let d = dir.path();
    let model = Model::default()
        .input("x", DType::F32, &[Dim::Size(6)])
        .input("to", DType::I64, &[Dim::Size(2)])
        .node("Reshape", &["x", "to"], &["y"])
        .output("y", DType::F32);
    let (x, to) = (f32s(&[6], &SUM), Tensor::new([2], &[2i64, 3]).unwrap());
    case(&d.join("reshape"), model, &[x.clone(), to], &[f32s(&[2, 3], &SUM)]);
    ends(d, 0, &["verify", "reshape", "--device", "cpu"]);
    ends(d, 0, &["verify", "reshape", "--device", "vulkan", "--validation"]);
    let data = "reshape/test_data_set_0";
    let args = [
        "run",
        "reshape/model.onnx",
        "-d",
        "cpu",
        "-o",
        "y.pb",
        "-i",
        &format!("x={data}/input_0.pb"),
        "-i",
        &format!("to={data}/input_1.pb"),
    ];
    ends(d, 0, &args);
    assert_eq!(read_pb(&d.join("y.pb")).shape().dims(), [2, 3]);
}
