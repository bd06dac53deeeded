//! Devices that are not there: Mesa's driver for AMD compiles for them and runs nothing.

use std::path::Path;
use std::process::{Command, Output, Stdio};

use serde_json::Value;

use super::text;

/// Runs the program with one Vulkan device, a Phoenix that is not there, of the driver that `scripts/setup` installs.
fn on_phoenix(args: &[&str]) -> Output {
    let folder = Path::new("/usr/share/vulkan/icd.d");
    let files = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let named = |path: &Path| path.file_name().unwrap().to_string_lossy().starts_with("radeon_icd");
    let driver = files.into_iter().find(|path| named(path)).expect("mesa-vulkan-drivers is installed");
    // What newer versions call it is no family of older ones.
    let run = |family: &str| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_onepool"));
        command
            .current_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."))
            .args(args)
            .env("RADV_FORCE_FAMILY", family);
        command.env("VK_ICD_FILENAMES", &driver).env("VK_DRIVER_FILES", &driver);
        command
            .env_remove("ONEPOOL_DEVICE")
            .env_remove("ONEPOOL_CACHE")
            .stdin(Stdio::null())
            .output()
            .unwrap()
    };
    let old = run("gfx1103_r1");
    if text(&old.stderr).contains("no Vulkan driver offers a device") { run("phoenix") } else { old }
}

const MODEL: &[&str] = &[
    "compile-report",
    "--device",
    "vulkan:0",
    "--kernels",
    "none",
    "models/denoise.onnx",
    "--dim",
    "batch=1",
    "--dim",
    "height=64",
    "--dim",
    "width=96",
];

#[test]
fn a_device_without_memory_is_listed_and_runs_nothing() {
    let out = on_phoenix(&["devices", "vulkan", "--json"]);
    let report: Value = serde_json::from_slice(&out.stdout).unwrap();
    let reason = report["devices"][0]["unusable"].as_str().unwrap();
    assert!(reason.contains("no memory") && reason.contains("compile-report"), "{reason}");
    let args = ["run", "models/denoise.onnx", "--device", "vulkan:0", "--input", "noisy=none.png"];
    let out = on_phoenix(&args);
    assert!(!out.status.success());
    assert!(text(&out.stderr).contains("no memory"), "{}", text(&out.stderr));
}

#[test]
fn the_kernels_of_a_plan_are_compiled_for_a_device_without_memory() {
    let out = on_phoenix(&[MODEL, &["--check", "--json"]].concat());
    assert_eq!(out.status.code(), Some(0), "{}", text(&out.stderr));
    let report: Value = serde_json::from_slice(&out.stdout).unwrap();
    assert_eq!(report["device"]["subgroup_range"], serde_json::json!([32, 64]));
    let kernels = report["kernels"].as_array().unwrap();
    assert!(kernels.iter().any(|k| k["kernel"].as_str().unwrap().starts_with("conv")), "{kernels:?}");
    for lanes in [32, 64] {
        let asked: Vec<_> = kernels.iter().filter(|k| k["asked"] == lanes).collect();
        assert!(!asked.is_empty());
        for kernel in asked {
            let executable = &kernel["executables"][0];
            assert_eq!(executable["subgroup"], lanes, "{kernel}");
            for told in ["vector_registers", "code_bytes", "subgroups_per_unit", "latency"] {
                assert!(executable[told].as_u64().unwrap() > 0, "{told} of {kernel}");
            }
            assert_eq!((&executable["scratch_bytes"], &executable["spilled_vector"]), (&0.into(), &0.into()));
        }
    }
}

#[test]
fn the_steps_of_a_plan_say_what_they_compute_move_and_launch() {
    let out = on_phoenix(&[MODEL, &["--subgroup", "64", "--json"]].concat());
    let report: Value = serde_json::from_slice(&out.stdout).unwrap();
    let model = &report["models"][0];
    let steps = model["steps"].as_array().unwrap();
    assert_eq!(model["nodes"], steps.len());
    // A 3x3 convolution of 24 channels to 24 at 32x48, its weights and bias read once.
    let (elements, weights) = (24 * 32 * 48_u64, 24 * 24 * 9 + 24);
    let is_inner = |step: &&Value| step["op"] == "Conv" && step["bytes"] == 4 * (2 * elements + weights);
    let inner = steps.iter().find(is_inner).unwrap_or_else(|| panic!("{steps:?}"));
    let flops = inner["flops"].as_u64().unwrap();
    assert!((2 * 9 * 24 * elements..2 * 9 * 24 * elements + 4 * elements).contains(&flops), "{inner}");
    for step in steps {
        for dispatch in step["dispatches"].as_array().unwrap() {
            assert!(!dispatch["kernel"].as_str().unwrap().is_empty(), "{step}");
            assert!(dispatch["groups"].as_array().unwrap().iter().all(|n| n.as_u64() > Some(0)), "{step}");
        }
    }
}

#[test]
fn arguments_that_make_no_sense_are_named() {
    let fails = |args: &[&str], phrase: &str| {
        let out = on_phoenix(&[MODEL, args].concat());
        assert_eq!(out.status.code(), Some(2), "{}", text(&out.stderr));
        assert!(text(&out.stderr).contains(phrase), "{}", text(&out.stderr));
    };
    fails(&["--subgroup", "16"], "[32, 64]");
    fails(&["--dim", "depth=3"], "depth");
    fails(&["--dim", "batch=2"], "given twice");
}
