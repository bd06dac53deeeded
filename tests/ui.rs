//! What the compiler must refuse: borrows that end before the device is done with them.
//!
//! Each program of tests/ui is compiled against the library that this test was linked with, so that nothing is built twice.
//! With `ONEPOOL_WRITE_UI=1` what the compiler says is written next to the program.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

use std::path::{Path, PathBuf};
use std::process::Command;

/// The folder of compiled crates, and the youngest library of this package in it.
fn library() -> (PathBuf, PathBuf) {
    let deps = std::env::current_exe().unwrap().parent().unwrap().to_owned();
    let is_ours = |path: &PathBuf| {
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        name.starts_with("libonepool-") && name.ends_with(".rlib")
    };
    let files = std::fs::read_dir(&deps).unwrap().map(|entry| entry.unwrap().path());
    let age = |path: &PathBuf| std::fs::metadata(path).unwrap().modified().unwrap();
    let library = files.filter(is_ours).max_by_key(age).expect("the library is beside its tests");
    (deps, library)
}

/// What the compiler says of a program, a line for each error in it, or `None` where it takes it.
fn refusal(program: &Path) -> Option<String> {
    let (deps, library) = library();
    let out = tempfile::tempdir().unwrap();
    let root = env!("CARGO_MANIFEST_DIR");
    let run = Command::new("rustc")
        .current_dir(root)
        .args(["--edition", "2024", "--crate-type", "bin", "--emit", "metadata", "--error-format", "short"])
        .arg("--out-dir")
        .arg(out.path())
        .arg("--extern")
        .arg(format!("onepool={}", library.display()))
        .arg("-L")
        .arg(format!("dependency={}", deps.display()))
        .arg(program.strip_prefix(root).unwrap())
        .output()
        .expect("rustc runs");
    let said = String::from_utf8(run.stderr).unwrap();
    let errors = said.lines().filter(|line| line.starts_with("tests/ui/") && line.contains(": error"));
    (!run.status.success()).then(|| errors.flat_map(|line| [line, "\n"]).collect())
}

#[test]
fn unsound_uses_do_not_compile() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/ui");
    let mut programs: Vec<PathBuf> = std::fs::read_dir(folder).unwrap().map(|e| e.unwrap().path()).collect();
    programs.retain(|path| path.extension().is_some_and(|extension| extension == "rs"));
    programs.sort();
    assert!(programs.len() >= 7, "{programs:?}");
    let mut wrong = Vec::new();
    for program in &programs {
        let got = refusal(program).unwrap_or_else(|| panic!("{} compiles", program.display()));
        let kept = program.with_extension("txt");
        if std::env::var_os("ONEPOOL_WRITE_UI").is_some() {
            std::fs::write(&kept, &got).unwrap();
        }
        let want = std::fs::read_to_string(&kept).unwrap();
        if got != want {
            wrong.push(format!("{}:\n{got}\nand not\n{want}", program.display()));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
