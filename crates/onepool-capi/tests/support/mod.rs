//! Compilers, the library as cargo built it, and programs that are run.

#![allow(dead_code, reason = "each test uses some of it")]

use std::path::{Path, PathBuf};
use std::process::Command;

pub(crate) const CFLAGS: &[&str] =
    &["-std=c11", "-D_POSIX_C_SOURCE=200809L", "-pedantic", "-Wall", "-Wextra", "-Werror", "-g"];
pub(crate) const CXXFLAGS: &[&str] =
    &["-std=c++17", "-pedantic", "-Wall", "-Wextra", "-Wshadow", "-Werror", "-g"];
pub(crate) const SANITIZE: &[&str] = &["-fsanitize=address,undefined", "-fno-sanitize-recover=all"];

/// The folder of this crate.
pub(crate) fn folder() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

pub(crate) fn include() -> PathBuf {
    folder().join("include")
}

pub(crate) fn model() -> PathBuf {
    folder().join("../../models/denoise.onnx")
}

/// A file of the library, which cargo builds before these tests.
pub(crate) fn library(name: &str) -> PathBuf {
    let test = std::env::current_exe().unwrap();
    let found = test.ancestors().skip(1).take(2).map(|dir| dir.join(name)).find(|file| file.is_file());
    found.unwrap_or_else(|| panic!("there is no {name} near {}", test.display()))
}

/// How a program is built.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Build<'a> {
    pub(crate) compiler: &'a str,
    pub(crate) flags: &'a [&'a str],
    /// With AddressSanitizer and UndefinedBehaviorSanitizer.
    pub(crate) sanitize: bool,
    /// To the shared library, else to the static one.
    pub(crate) linked: bool,
}

impl Build<'_> {
    /// Builds the program of one file in `dir`.
    pub(crate) fn program(self, file: &Path, dir: &Path) -> PathBuf {
        let name =
            format!("{}-{}", file.file_name().unwrap().to_str().unwrap().replace('.', "-"), self.compiler);
        let program = dir.join(name);
        let mut command = Command::new(self.compiler);
        command.args(self.flags).arg("-I").arg(include()).arg(file).arg("-o").arg(&program);
        if self.sanitize {
            command.args(SANITIZE);
        }
        if self.linked {
            let shared = library("libonepool_capi.so");
            command.arg(&shared).arg(format!("-Wl,-rpath,{}", shared.parent().unwrap().display()));
        } else {
            command.arg(library("libonepool_capi.a"));
        }
        command.args(["-lpthread", "-ldl", "-lm"]);
        let output =
            command.output().unwrap_or_else(|e| panic!("{}: {e}; scripts/setup installs it", self.compiler));
        assert!(output.status.success(), "{command:?}\n{}", String::from_utf8_lossy(&output.stderr));
        program
    }
}

/// What LeakSanitizer says of a failure of its own; a leak is told in other words.
const SANITIZER_CRASHED: &str = "LeakSanitizer has encountered a fatal error";

/// The validation layer of Vulkan.
const LAYER: &str = "VK_LAYER_KHRONOS_validation";

/// Runs a program that must succeed on a device; what it wrote to its output. On Vulkan the loader puts the
/// validation layer into it, which says to the output what it finds.
pub(crate) fn run_on(device: &str, words: &[&str]) -> String {
    if device != "vulkan" {
        return run(words);
    }
    let mut command = Command::new(words[0]);
    command.args(&words[1..]).env("VK_INSTANCE_LAYERS", LAYER).env("VK_LOADER_DEBUG", "error,layer");
    let output = command.output().unwrap();
    let (said, errors) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{command:?}: {}\n{said}\n{errors}", output.status);
    let put_in = errors.lines().any(|line| line.to_lowercase().contains("insert") && line.contains(LAYER));
    assert!(put_in, "the loader did not put {LAYER} in; scripts/setup installs it\n{errors}");
    for found in ["VUID", "UNASSIGNED", "SYNC-HAZARD", "Validation Error"] {
        assert!(!said.contains(found) && !errors.contains(found), "{said}\n{errors}");
    }
    said.into_owned()
}

/// Runs a program that must succeed; what it wrote to its output.
pub(crate) fn run(words: &[&str]) -> String {
    let mut command = Command::new(words[0]);
    command.args(&words[1..]).env("ASAN_OPTIONS", "detect_leaks=1");
    let mut tries = 0;
    let output = loop {
        let output = command.output();
        let output = output.unwrap_or_else(|e| panic!("{}: {e}; scripts/setup installs it", words[0]));
        let crashed = String::from_utf8_lossy(&output.stderr).contains(SANITIZER_CRASHED);
        tries += 1;
        if !crashed || tries == 24 {
            break output;
        }
        // GCC's LeakSanitizer crashes itself in some environments, after the program is over: the next try has another.
        let kept = ["PATH", "HOME"].map(|name| (name, std::env::var(name).unwrap_or_default()));
        command.env_clear().envs(kept).env("ASAN_OPTIONS", "detect_leaks=1");
        command.env("PADDING", "-".repeat(24 * tries));
    };
    let (said, errors) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{command:?}: {}\n{said}\n{errors}", output.status);
    said.into_owned()
}
