//! Programs in C and C++ against the library, as an application builds them.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use std::fs;
use std::path::Path;

use onepool::{Session, Tensor};
use support::{Build, CFLAGS, CXXFLAGS, SANITIZE, folder, run};

const DEVICES: [&str; 2] = ["cpu", "sim"];

/// Builds a program of `tests/c` and runs it on each device.
fn program(name: &str, compiler: &str, flags: &[&str], sanitize: bool) {
    let (dir, file) = (tempfile::tempdir().unwrap(), folder().join("tests/c").join(name));
    let build = Build { compiler, flags, sanitize, linked: true };
    let program = build.program(&file, dir.path());
    for device in DEVICES {
        let said = run(&[program.to_str().unwrap(), support::model().to_str().unwrap(), device]);
        let name = name.split_once('.').unwrap().0;
        assert!(said.contains(&format!("all of {name} passed")), "{said}");
    }
}

#[test]
fn memory_of_every_kind() {
    program("memory.c", "gcc", CFLAGS, true);
    program("memory.c", "clang", CFLAGS, false);
}

#[test]
fn bad_input_is_an_error_that_names_the_argument() {
    program("bad_input.c", "gcc", CFLAGS, true);
    program("bad_input.c", "clang", CFLAGS, false);
}

#[test]
fn runs_end_early_and_in_parallel() {
    program("runs.c", "gcc", CFLAGS, true);
    program("runs.c", "clang", CFLAGS, false);
}

#[test]
fn tensors_of_other_libraries() {
    program("dlpack.c", "gcc", CFLAGS, true);
    program("dlpack.c", "clang", CFLAGS, false);
}

#[test]
fn the_wrapper_for_cpp() {
    program("wrapper.cpp", "g++", CXXFLAGS, true);
    program("wrapper.cpp", "clang++", CXXFLAGS, false);
}

/// What valgrind counts as an error: bad accesses, and memory that nothing points to any more.
#[test]
fn valgrind_finds_nothing() {
    let dir = tempfile::tempdir().unwrap();
    for (name, size) in [("memory.c", "-DEDGE=16"), ("bad_input.c", "-DEDGE=64"), ("dlpack.c", "-DEDGE=16")] {
        let flags: Vec<&str> = CFLAGS.iter().copied().chain([size]).collect();
        let build = Build { compiler: "gcc", flags: &flags, sanitize: false, linked: true };
        let program = build.program(&folder().join("tests/c").join(name), dir.path());
        let said = run(&[
            "valgrind",
            "-q",
            "--error-exitcode=9",
            "--leak-check=full",
            "--show-leak-kinds=definite",
            "--errors-for-leak-kinds=definite",
            program.to_str().unwrap(),
            support::model().to_str().unwrap(),
            "cpu",
        ]);
        assert!(said.contains("passed"), "{said}");
    }
}

/// The examples, linked to the shared and to the static library, say what Rust says to the last bit.
#[test]
fn the_examples_say_what_rust_says() {
    let dir = tempfile::tempdir().unwrap();
    let (input, output) = (dir.path().join("input"), dir.path().join("output"));
    let pixels: Vec<f32> = (0..3 * 64 * 64).map(|i| (i * 37 % 256) as f32 / 255.0).collect();
    fs::write(&input, pixels.iter().flat_map(|p| p.to_le_bytes()).collect::<Vec<u8>>()).unwrap();
    let examples = [
        ("denoise.c", "gcc", CFLAGS, true),
        ("denoise.c", "clang", CFLAGS, false),
        ("denoise.cpp", "g++", CXXFLAGS, true),
        ("denoise.cpp", "clang++", CXXFLAGS, true),
    ];
    let built = examples.map(|(name, compiler, flags, linked)| {
        let build = Build { compiler, flags, sanitize: false, linked };
        build.program(&folder().join("examples").join(name), dir.path())
    });
    for device in DEVICES {
        let mut session = Session::builder().model(support::model()).device(device).build().unwrap();
        session.set_input("noisy", &Tensor::new([1, 3, 64, 64], &pixels).unwrap()).unwrap();
        session.run().unwrap();
        let expected = session.get_output("clean").unwrap();
        for program in &built {
            let paths = [program.as_path(), &support::model(), Path::new(device), &input, &output];
            let said = run(&paths.map(|path| path.to_str().unwrap()));
            assert_eq!(said.lines().count(), 2, "{said}");
            assert!(
                said.lines().all(|line| line.contains("in place") || line.contains("imported")),
                "{said}"
            );
            assert_eq!(fs::read(&output).unwrap(), expected.bytes(), "{}", program.display());
            fs::remove_file(&output).unwrap();
        }
    }
}

#[test]
fn a_program_that_does_wrong_is_found() {
    let dir = tempfile::tempdir().unwrap();
    let wrong = dir.path().join("wrong.c");
    fs::write(&wrong, "#include <stdlib.h>\nint main(void) { char *a = malloc(8); free(a); return a[1]; }\n")
        .unwrap();
    let build = Build { compiler: "gcc", flags: &["-w"], sanitize: true, linked: true };
    let program = build.program(&wrong, dir.path());
    let output = std::process::Command::new(program).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && said.contains("heap-use-after-free"), "{said} {SANITIZE:?}");
}
