//! Programs in C and C++ against the library, as an application builds them.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use std::fs;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use onepool::frame::{Channels, ColorMatrix, ColorRange, FrameSpec, PixelFormat, TensorLayout};
use onepool::generate::{GenerateOptions, Generator, Grammar, ModelFolder, Prompt};
use onepool::{HostRegion, Memory, Session, Tensor};
use support::{Build, CFLAGS, CXXFLAGS, SANITIZE, folder, run, run_on};

/// Devices that are part of the library.
const OWN: [&str; 2] = ["cpu", "sim"];
/// Devices that drivers bring: lavapipe and PoCL where there is no other.
const OF_DRIVERS: [&str; 2] = ["vulkan", "opencl"];

/// What a program runs on. A driver that `REQUIRE_BACKENDS` names must be there. Drivers keep memory until a process ends,
/// which the sanitizers take for leaks, so programs with those run on the library's own devices.
fn devices(sanitize: bool) -> Vec<&'static str> {
    let required = std::env::var("REQUIRE_BACKENDS").unwrap_or_default();
    let there = |device: &&str| match Session::builder().model(support::model()).device(*device).build() {
        Ok(_) => true,
        Err(error) => {
            assert!(!required.split(',').any(|name| name == *device), "{device}: {error}");
            println!("{device} is left out: {error}");
            false
        }
    };
    let of_drivers = OF_DRIVERS.into_iter().filter(|_| !sanitize).filter(there);
    OWN.into_iter().chain(of_drivers).collect()
}

/// Builds a program of `tests/c` and runs it on each device.
fn program(name: &str, compiler: &str, flags: &[&str], sanitize: bool) {
    program_on(&support::model(), name, compiler, flags, sanitize);
}

/// The same on another model. What it said on each device.
fn program_on(
    model: &Path,
    name: &str,
    compiler: &str,
    flags: &[&str],
    sanitize: bool,
) -> Vec<(&'static str, String)> {
    let (dir, file) = (tempfile::tempdir().unwrap(), folder().join("tests/c").join(name));
    let build = Build { compiler, flags, sanitize, linked: true };
    let program = build.program(&file, dir.path());
    let each = devices(sanitize).into_iter().map(|device| {
        let said = run_on(device, &[program.to_str().unwrap(), model.to_str().unwrap(), device]);
        let name = name.split_once('.').unwrap().0;
        assert!(said.contains(&format!("all of {name} passed")), "{device}: {said}");
        (device, said)
    });
    each.collect()
}

fn llm() -> PathBuf {
    folder().join("../../models/tiny_llm/fixed")
}

#[test]
fn caches_are_updated_in_place() {
    let model = llm().join("model.onnx");
    program_on(&model, "caches.c", "gcc", CFLAGS, true);
    program_on(&model, "caches.c", "clang", CFLAGS, false);
}

#[test]
fn text_is_what_rust_makes() {
    let said = [
        program_on(&llm(), "generate.c", "gcc", CFLAGS, true),
        program_on(&llm(), "generate.c", "clang", CFLAGS, false),
    ];
    for (device, said) in said.into_iter().flatten() {
        let folder = ModelFolder::open(llm()).unwrap();
        let session = Session::builder().model(folder.graph()).device(device).build().unwrap();
        let mut generator = Generator::new(folder, session, None).unwrap();
        let options =
            GenerateOptions { max_tokens: Some(20), ignore_end: true, ..GenerateOptions::default() };
        let told = |_: &str| ControlFlow::Continue(());
        let made = generator.generate(Prompt::Text("Hello"), &options, told).unwrap();
        assert!(!made.text.is_empty() && said.contains(&format!("text {}\n", made.text)), "{said}");
    }
}

#[test]
fn templates_have_variables_and_folders_have_variants() {
    let dir = tempfile::tempdir().unwrap();
    for file in ["genai_config.json", "tokenizer.json", "tokenizer_config.json"] {
        fs::copy(llm().join(file), dir.path().join(file)).unwrap();
    }
    fs::create_dir(dir.path().join("onnx")).unwrap();
    fs::copy(llm().join("model.onnx"), dir.path().join("onnx/model_q4f16.onnx")).unwrap();
    let template = "{% for m in messages %}{{ m.content }}{% endfor %}{% if tools %}{{ tools | tojson }}{% endif %}{{ x }}";
    fs::write(dir.path().join("chat_template.jinja"), template).unwrap();
    program_on(dir.path(), "template.c", "gcc", CFLAGS, true);
    program_on(dir.path(), "template.c", "clang", CFLAGS, false);
}

#[test]
fn texts_that_come_and_go_are_those_made_one_by_one() {
    program_on(&llm(), "batch.c", "gcc", CFLAGS, true);
    program_on(&llm(), "batch.c", "clang", CFLAGS, false);
}

#[test]
fn pages_are_shared_forked_and_kept_in_files() {
    let model = llm().with_file_name("paged");
    program_on(&model, "pages.c", "gcc", CFLAGS, true);
    program_on(&model, "pages.c", "clang", CFLAGS, false);
}

/// Bytes in no order, as the programs make them.
fn pattern(bytes: usize, seed: u64) -> Vec<u8> {
    (0..bytes as u64).map(|i| ((i + seed).wrapping_mul(2_654_435_761) >> 7) as u8).collect()
}

/// The film of `frames.c` in Rust: the hash of what it shows.
fn film(device: &str) -> u64 {
    let (width, height, stride) = (64usize, 48usize, 96u64);
    let camera = FrameSpec::new(PixelFormat::Nv12, width as u32, height as u32)
        .strides([stride, stride])
        .separate()
        .matrix(ColorMatrix::Bt601)
        .range(ColorRange::Full);
    let screen = FrameSpec::new(PixelFormat::Bgra8, 128, 128).crop(32, 16, width as u32, height as u32);
    let screen = screen.channels(Channels::Rgb).layout(TensorLayout::Nchw);
    let builder = Session::builder().model(support::model()).device(device).copy_threshold(0);
    let session = builder.frame_input("noisy", camera).frame_output("clean", screen).build().unwrap();
    let planes = [pattern(stride as usize * height, 0), pattern(stride as usize * height / 2, 1 << 20)];
    let memories = planes.map(|plane| Memory::region(&HostRegion::from_bytes(&plane).unwrap().into_shared()));
    let shown = HostRegion::new(128 * 128 * 4).unwrap().into_shared();
    let bound = session.bind().input_memories("noisy", memories).output("clean", Memory::region(&shown));
    bound.build().unwrap().run().unwrap();
    let shown = shown.read().unwrap();
    let rows = (16..16 + height).flat_map(|y| &shown[(y * 128 + 32) * 4..(y * 128 + 32 + width) * 4]);
    rows.fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3))
}

#[test]
fn frames_are_what_rust_makes() {
    let said = [
        program_on(&support::model(), "frames.c", "gcc", CFLAGS, true),
        program_on(&support::model(), "frames.c", "clang", CFLAGS, false),
    ];
    for (device, said) in said.into_iter().flatten() {
        let expected = format!("hash {:016x}\n", film(device));
        assert!(said.contains(&expected), "{device}: {said}, expected {expected}");
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
fn the_library_and_models_say_what_they_have_to() {
    program("says.c", "gcc", CFLAGS, true);
    program("says.c", "clang", CFLAGS, false);
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
    for (name, size) in [
        ("memory.c", "-DEDGE=16"),
        ("bad_input.c", "-DEDGE=64"),
        ("dlpack.c", "-DEDGE=16"),
        ("frames.c", "-DEDGE=16"),
    ] {
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
    for device in devices(false) {
        let mut session = Session::builder().model(support::model()).device(device).build().unwrap();
        session.set_input("noisy", &Tensor::new([1, 3, 64, 64], &pixels).unwrap()).unwrap();
        session.run().unwrap();
        let expected = session.get_output("clean").unwrap();
        for program in &built {
            let paths = [program.as_path(), &support::model(), Path::new(device), &input, &output];
            let said = run_on(device, &paths.map(|path| path.to_str().unwrap()));
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

/// The example of a batch says what Rust makes of each prompt.
#[test]
fn the_example_of_a_batch_says_what_rust_says() {
    const PROMPTS: [&str; 3] = ["Hello", "Again", "a"];
    let folder_of = ModelFolder::open(llm()).unwrap();
    let session = Session::builder().model(folder_of.graph()).device("cpu").build().unwrap();
    let mut generator = Generator::new(folder_of, session, None).unwrap();
    let grammar = Some(Grammar::Regex("[a-z]{3} [0-9]+".to_owned()));
    let options = GenerateOptions { max_tokens: Some(20), grammar, ..GenerateOptions::default() };
    let expected = PROMPTS.map(|prompt| {
        let made = generator.generate(Prompt::Text(prompt), &options, |_| ControlFlow::Continue(()));
        made.unwrap().text
    });
    let dir = tempfile::tempdir().unwrap();
    for (compiler, sanitize) in [("gcc", true), ("clang", false)] {
        let build = Build { compiler, flags: CFLAGS, sanitize, linked: true };
        let program = build.program(&folder().join("examples/batch.c"), dir.path());
        let model = llm();
        let words = [&[program.to_str().unwrap(), model.to_str().unwrap(), "cpu"], &PROMPTS[..]].concat();
        assert_eq!(run(&words).lines().collect::<Vec<_>>(), expected);
    }
}

#[test]
fn the_example_says_what_a_model_says_of_itself() {
    let dir = tempfile::tempdir().unwrap();
    let build = Build { compiler: "gcc", flags: CFLAGS, sanitize: true, linked: true };
    let program = build.program(&folder().join("examples/says.c"), dir.path());
    let model = folder().join("../../models/tiny_gguf/qwen3.gguf");
    let said = run(&["env", "ONEPOOL_DEVICE=cpu", program.to_str().unwrap(), model.to_str().unwrap()]);
    assert!(said.starts_with("GGUF, by") && said.contains("\ngeneral.architecture: qwen3\n"), "{said}");
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
