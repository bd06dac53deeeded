//! `--cache` and `ONEPOOL_CACHE`: what is kept, whose it is, and what lies in its place.

#![cfg(unix)]

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use super::{SUM, ends, fails, read_pb, text, with_add};

const RUN: [&str; 6] = ["run", "add.onnx", "-i", "x.pb", "-o", "y.pb"];

fn start(dir: &Path, cache: Option<&str>, args: &[&str]) -> Child {
    let mut command = Command::new(env!("CARGO_BIN_EXE_onepool"));
    command.current_dir(dir).args(args).env_remove("ONEPOOL_DEVICE").env_remove("RUST_LOG");
    command.env_remove("ONEPOOL_CACHE").envs(cache.map(|cache| ("ONEPOOL_CACHE", cache)));
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
}

/// What it ends with; it may not take long.
fn end(mut child: Child) -> Output {
    let began = Instant::now();
    while child.try_wait().unwrap().is_none() {
        if began.elapsed() > Duration::from_secs(120) {
            let _ = child.kill();
            panic!("still running");
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    child.wait_with_output().unwrap()
}

/// The files of caches in `dir`, without those that are only locked.
fn kept(dir: &Path) -> Vec<PathBuf> {
    let files = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path());
    let mut files: Vec<_> = files.filter(|file| file.extension().is_some_and(|e| e == "onepool")).collect();
    files.sort();
    files
}

#[test]
fn what_drivers_compile_is_kept_in_a_folder_of_the_users_own() {
    let dir = with_add();
    let d = dir.path();
    for (device, prefix) in [("vulkan", "vulkan-"), ("opencl", "opencl-")] {
        let folder = format!("caches/{device}");
        ends(d, 0, &[&RUN[..], &["--device", device, "--cache", &folder]].concat());
        let files = kept(&d.join(&folder));
        assert!(!files.is_empty());
        for file in &files {
            assert!(file.file_name().unwrap().to_str().unwrap().starts_with(prefix), "{file:?}");
            let mode = |path: &Path| fs::metadata(path).unwrap().mode() & 0o777;
            assert_eq!((mode(file), mode(&d.join(&folder)), mode(&d.join("caches"))), (0o600, 0o700, 0o700));
        }
        // What is there is used, not written again.
        let written = |file: &PathBuf| fs::metadata(file).unwrap().ino();
        let before: Vec<u64> = files.iter().map(written).collect();
        let out = end(start(d, Some(&folder), &[&RUN[..], &["--device", device]].concat()));
        assert_eq!((out.status.code(), text(&out.stderr)), (Some(0), String::new()));
        assert_eq!(kept(&d.join(&folder)).iter().map(written).collect::<Vec<_>>(), before);
        assert_eq!(read_pb(&d.join("y.pb")).as_slice::<f32>().unwrap(), SUM);
    }
    // The argument comes before the variable.
    let out = end(start(d, Some("variable"), &[&RUN[..], &["-d", "vulkan", "--cache", "argument"]].concat()));
    assert_eq!((out.status.code(), d.join("variable").exists()), (Some(0), false));
    assert_eq!(kept(&d.join("argument")).len(), 1);
}

#[test]
fn a_folder_that_others_may_write_to_is_an_error_that_says_what_to_do() {
    let dir = with_add();
    let d = dir.path();
    fs::create_dir(d.join("open")).unwrap();
    fs::set_permissions(d.join("open"), fs::Permissions::from_mode(0o777)).unwrap();
    fs::write(d.join("file"), "in the way").unwrap();
    for args in [&RUN[..], &["inspect", "add.onnx", "--shape", "2,3", "-d", "cpu", "--place", "auto"]] {
        let open = [args, &["--cache", "open"]].concat();
        fails(d, 2, &open, &["open: others may write to it (mode 777)", "chmod go-w"]);
        fails(d, 2, &[args, &["--cache", "file"]].concat(), &["file: this is no folder"]);
    }
    assert!(kept(&d.join("open")).is_empty());
}

/// Pipes, endless devices, huge files, damage: a warning that names the file, a result, and a sound file in its place.
#[test]
fn what_is_no_cache_is_passed_over_and_replaced() {
    let dir = with_add();
    let d = dir.path();
    let args = [&RUN[..], &["-d", "vulkan", "-d", "cpu", "--place", "auto", "--cache", "caches"]].concat();
    ends(d, 0, &args);
    let files = kept(&d.join("caches"));
    let names: Vec<_> = files.iter().map(|f| f.file_name().unwrap().to_str().unwrap()).collect();
    assert!(names[0] == "placement.onepool" && names[1].starts_with("vulkan-"), "{names:?}");
    type Spoil = fn(&Path);
    let spoils: [(&str, Spoil); 5] = [
        ("a pipe, not a regular file; remove it", |file| {
            assert!(Command::new("mkfifo").arg(file).status().unwrap().success());
        }),
        ("a link, not a regular file", |file| std::os::unix::fs::symlink("/dev/zero", file).unwrap()),
        ("and no file here has more than", |file| {
            let sparse = fs::File::create(file).unwrap();
            // Some file systems have no such size.
            assert!([1u64 << 40, 1 << 34].into_iter().any(|bytes| sparse.set_len(bytes).is_ok()));
        }),
        ("others may write to it (mode 666)", |file| {
            fs::write(file, "").unwrap();
            fs::set_permissions(file, fs::Permissions::from_mode(0o666)).unwrap();
        }),
        ("damaged, or made by another version", |file| {
            fs::write(file, "onepool cache 1 of no one\n").unwrap();
        }),
    ];
    for file in &files {
        for (says, spoil) in spoils {
            fs::remove_file(file).unwrap();
            spoil(file);
            fs::set_permissions(d.join("caches"), fs::Permissions::from_mode(0o700)).unwrap();
            if !says.contains("666") && fs::symlink_metadata(file).unwrap().is_file() {
                fs::set_permissions(file, fs::Permissions::from_mode(0o600)).unwrap();
            }
            let _ = fs::remove_file(d.join("y.pb"));
            let out = end(start(d, None, &args));
            let stderr = text(&out.stderr);
            assert_eq!(out.status.code(), Some(0), "{says}: {stderr}");
            let name = file.file_name().unwrap().to_str().unwrap();
            assert!(stderr.contains(name) && stderr.contains(says), "{name}: {says}: {stderr}");
            assert_eq!(read_pb(&d.join("y.pb")).as_slice::<f32>().unwrap(), SUM);
            let replaced = fs::symlink_metadata(file).unwrap();
            assert!(replaced.is_file() && replaced.len() > 100 && replaced.len() < 1 << 28, "{says}");
            let out = end(start(d, None, &args));
            assert_eq!((out.status.code(), text(&out.stderr)), (Some(0), String::new()), "{says}");
        }
    }
}

#[test]
fn processes_at_once_leave_whole_files() {
    let dir = with_add();
    let d = dir.path();
    let args = [
        "run", "add.onnx", "-i", "x.pb", "-d", "vulkan", "-d", "cpu", "--place", "auto", "--cache", "caches",
    ];
    for _ in 0..3 {
        let children: Vec<Child> = (0..4).map(|_| start(d, None, &args)).collect();
        for child in children {
            let out = end(child);
            assert_eq!((out.status.code(), text(&out.stderr)), (Some(0), String::new()));
        }
    }
    let names =
        fs::read_dir(d.join("caches")).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap());
    let drafts: Vec<_> = names.filter(|name| name.contains("draft")).collect();
    assert!(drafts.is_empty() && kept(&d.join("caches")).len() == 2, "{drafts:?}");
}
