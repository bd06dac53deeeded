//! Sessions of one file have its parameters once, in one process and, mapped, in several.
//!
//! Linux alone: the figures are those of `/proc`.

#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]
#![allow(unsafe_code, reason = "the promise that a file of the test stays as it is")]

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use onepool::backend::ContextDesc;
use onepool::device::Context;
use onepool::memory::host::{HostError, HostRegion, Unchanging};
use onepool::plan::Precision;
use onepool::registry::Registry;
use onepool::session::SessionBuilder;
use onepool::{Session, Tensor, loader};

use self::protobuf::{field, int};

#[path = "support/process.rs"]
mod process;
#[path = "support/protobuf.rs"]
mod protobuf;

/// Rows and columns of a matrix, and how many there are.
const N: usize = 1024;
const LAYERS: usize = 16;
const BYTES: usize = LAYERS * N * N * 4;

/// `op` of a row and each of `layers` matrices, which are in `w.bin`.
fn model(op: &str, layers: usize) -> Vec<u8> {
    let value = |number: u64, name: &str, rows: usize| {
        let dims: Vec<u8> = [rows as u64, N as u64].iter().flat_map(|n| field(1, &int(1, *n))).collect();
        let tensor = field(1, &[int(1, 1), field(2, &dims)].concat());
        field(number, &[field(1, name.as_bytes()), field(2, &tensor)].concat())
    };
    let entry =
        |key: &str, value: &str| field(13, &[field(1, key.as_bytes()), field(2, value.as_bytes())].concat());
    let name = |layer: usize| match layer {
        0 => "x".to_owned(),
        last if last == layers => "y".to_owned(),
        layer => format!("h{layer}"),
    };
    let mut graph = field(2, b"products");
    for layer in 0..layers {
        let w = format!("w{layer}");
        let inputs = [field(1, name(layer).as_bytes()), field(1, w.as_bytes())].concat();
        let node = [inputs, field(2, name(layer + 1).as_bytes()), field(4, op.as_bytes())].concat();
        let offset = (layer * N * N * 4).to_string();
        let place = [entry("location", "w.bin"), entry("offset", &offset), int(14, 1)].concat();
        let dims = [int(1, N as u64), int(1, N as u64)].concat();
        graph.extend(field(1, &node));
        graph.extend(field(5, &[dims, int(2, 1), field(8, w.as_bytes()), place].concat()));
    }
    let rows = if op == "MatMul" { 1 } else { N };
    graph.extend([value(11, "x", 1), value(12, "y", rows)].concat());
    [int(1, 8), field(7, &graph), field(8, &int(2, 18))].concat()
}

/// Every element of every matrix is `value / N`.
fn write(folder: &Path, value: f32) {
    write_layers(folder, value, LAYERS);
}

fn write_layers(folder: &Path, value: f32, layers: usize) {
    let row = [value / N as f32; N];
    let mut file = std::io::BufWriter::new(std::fs::File::create(folder.join("w.bin")).unwrap());
    for _ in 0..layers * N {
        file.write_all(bytemuck::cast_slice(&row)).unwrap();
    }
    file.flush().unwrap();
    std::fs::write(folder.join("model.onnx"), model("MatMul", layers)).unwrap();
}

/// A file is told from another state of it once so much time has gone by.
fn settle() {
    std::thread::sleep(Duration::from_millis(3500));
}

fn status(name: &str) -> u64 {
    let text = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix(name)).unwrap();
    line.split_whitespace().next().unwrap().parse::<u64>().unwrap() * 1024
}

/// The most resident memory since the last call of `forget`, in bytes.
fn peak() -> u64 {
    status("VmHWM:")
}

fn forget() {
    std::fs::write("/proc/self/clear_refs", "5").unwrap();
}

fn run(builder: SessionBuilder, want: f32) -> Session {
    let mut session = builder.build().unwrap();
    session.set_input("x", &Tensor::new([1, N], &[1.0f32; N]).unwrap()).unwrap();
    session.run().unwrap();
    let y = session.get_output("y").unwrap();
    assert!(y.as_slice::<f32>().unwrap().iter().all(|y| *y == want), "not {want}");
    session
}

fn open(device: &str) -> Context {
    Registry::with_defaults().open(device, &ContextDesc::default()).unwrap()
}

/// What a driver's compiler and allocator keep of a model's kernels.
const DRIVERS: f64 = (8 << 20) as f64;

/// The second of two sessions of one file takes at most a twentieth of the weights, and the last one gives them back.
fn check(path: &Path, device: &str, precision: Precision) {
    let context = open(device);
    let builder = || {
        let builder = Session::builder().model(path).context(context.clone());
        builder.precision(precision)
    };
    // What the driver needs for the kernels.
    drop(run(builder(), 1.0));
    forget();
    let empty = peak();
    let first = run(builder(), 1.0);
    forget();
    let before = peak();
    let second = run(builder(), 1.0);
    let took = peak().saturating_sub(before);
    println!(
        "{device}, {precision:?}: {BYTES} bytes, a second session took {took}, the first {}",
        before - empty
    );
    assert!(took as f64 <= 0.05 * BYTES as f64, "a second session took {took} bytes on {device}");
    let share = |session: &Session| session.graph().constants().next().unwrap().1.identity();
    assert_eq!(share(&first), share(&second));
    drop(first);
    // The second one goes on alone.
    assert_eq!(second.get_output("y").unwrap().as_slice::<f32>().unwrap(), [1.0; N]);
    drop(second);
    forget();
    let left = peak().saturating_sub(empty);
    assert!(left as f64 <= 0.05 * BYTES as f64 + DRIVERS, "{left} bytes stay on {device}");
}

/// Set in the process that is measured.
const MEASURED: &str = "SHARED_WEIGHTS_MEASURED";

/// One test, because the process's memory is measured.
#[test]
fn a_second_session_of_a_file_takes_no_second_copy() {
    if std::env::var(MEASURED).is_err() {
        return process::alone("a_second_session_of_a_file_takes_no_second_copy", MEASURED, "1");
    }
    let dir = tempfile::tempdir().unwrap();
    write(dir.path(), 1.0);
    settle();
    let path = dir.path().join("model.onnx");
    for device in ["cpu", "vulkan", "opencl"] {
        check(&path, device, Precision::F32);
    }
    // Weights that a pass makes of those of the file.
    check(&path, "vulkan", Precision::F16);
    // Graphs that the application loads by itself have the parameters in common too.
    let load = || Session::builder().graph(loader::load(&path).unwrap()).device("cpu");
    let first = run(load(), 1.0);
    forget();
    let before = peak();
    let second = run(load(), 1.0);
    let took = peak().saturating_sub(before);
    assert!(took as f64 <= 0.05 * BYTES as f64, "{took}");
    drop(first);
    drop(second);
}

#[test]
fn a_file_that_has_changed_is_read_again() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("model.onnx");
    let session = |want| run(Session::builder().model(&path).device("cpu"), want);
    write(dir.path(), 1.0);
    // One that was written just now may change once more in the same tick of the clock.
    let unsettled = session(1.0);
    write(dir.path(), 2.0);
    let changed = session(65536.0);
    settle();
    let settled = session(65536.0);
    write(dir.path(), 1.0);
    let again = session(1.0);
    let identity = |session: &Session| session.graph().constants().next().unwrap().1.identity();
    let mut all = [&unsettled, &changed, &settled, &again].map(identity);
    all.sort();
    assert!(all.windows(2).all(|two| two[0] != two[1]));
    // A file of another name and the same place is the same file.
    settle();
    let first = session(1.0);
    std::fs::rename(&path, dir.path().join("other.onnx")).unwrap();
    let other = run(Session::builder().model(dir.path().join("other.onnx")).device("cpu"), 1.0);
    assert_eq!(identity(&first), identity(&other));
}

/// The folder of a process that maps a model and waits.
const MAPPED: &str = "SHARED_WEIGHTS_MAPPED";

/// Placements name the nodes of the file, of which passes make others.
#[test]
fn a_model_that_is_known_takes_the_same_placements_again() {
    let dir = tempfile::tempdir().unwrap();
    write_layers(dir.path(), 1.0, 1);
    let path = dir.path().join("model.onnx");
    // A node of a parameter alone, which is computed once: messages of one field are merged.
    let neg = [field(1, b"w0"), field(2, b"h1"), field(4, b"Neg")].concat();
    let sum = [field(1, b"h1"), field(1, b"y"), field(2, b"z"), field(4, b"Add")].concat();
    let output = field(12, &field(1, b"z"));
    let added = [field(1, &neg), field(1, &sum), output].concat();
    std::fs::write(&path, [model("MatMul", 1), field(7, &added)].concat()).unwrap();
    settle();
    let build = |op: &str| Session::builder().model(&path).context(open("cpu")).place_op(op, 0).build();
    let first = build("Neg").unwrap();
    let second = build("Neg").unwrap();
    assert!(first.graph().nodes().iter().all(|node| node.op.name() != "Neg"), "it is computed once");
    assert!(std::ptr::eq(first.graph(), second.graph()), "the second has the graph of the first");
    assert!(build("Sub").unwrap_err().to_string().contains("Sub"));
}

fn mapped(path: &Path, device: &str, want: f32) -> Session {
    // SAFETY: no one changes the file of the test.
    let promise = unsafe { Unchanging::promise() };
    run(Session::builder().model(path).device(device).map_weights(promise), want)
}

/// What sums with all matrices are.
const SUM: f32 = 1.0 + LAYERS as f32 / N as f32;

#[test]
fn processes_share_the_pages_of_a_mapped_file() {
    if let Some(path) = std::env::var_os(MAPPED) {
        let session = mapped(Path::new(&path), &std::env::var("SHARED_WEIGHTS_DEVICE").unwrap(), SUM);
        println!("MAPPED");
        // Until the other end goes.
        let mut line = String::new();
        std::io::stdin().read_line(&mut line).unwrap();
        drop(session);
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    write(dir.path(), 1.0);
    // Sums read matrices as they lie; products have layouts of their own.
    let path = dir.path().join("sums.onnx");
    std::fs::write(&path, model("Add", LAYERS)).unwrap();
    for device in ["cpu", "vulkan"] {
        let child = || {
            let mut child = Command::new(std::env::current_exe().unwrap())
                .args(["--exact", "processes_share_the_pages_of_a_mapped_file", "--nocapture"])
                .env(MAPPED, &path)
                .env("SHARED_WEIGHTS_DEVICE", device)
                .stdin(Stdio::piped())
                .stdout(Stdio::piped())
                .spawn()
                .unwrap();
            let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
            assert!(lines.any(|line| line.unwrap().contains("MAPPED")), "the process ended");
            (child, lines)
        };
        let mut children = [child(), child()];
        for (child, _) in &mut children {
            let text = std::fs::read_to_string(format!("/proc/{}/smaps", child.id())).unwrap();
            let (mut inside, mut mapped, mut share) = (false, 0u64, 0u64);
            for line in text.lines() {
                let number =
                    |line: &str| line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() << 10;
                match line.split(':').next().unwrap() {
                    "Rss" if inside => mapped += number(line),
                    "Pss" if inside => share += number(line),
                    first if first.contains('-') => inside = line.ends_with("w.bin"),
                    _ => {}
                }
            }
            println!("{device}: {mapped} bytes of the file are mapped, {share} are the process's share");
            assert!(mapped as f64 >= 0.95 * BYTES as f64, "{mapped} bytes of {BYTES} are mapped on {device}");
            assert!(share as f64 <= 0.6 * mapped as f64, "{share} bytes of {mapped} are the process's own");
        }
        for (child, _) in &mut children {
            drop(child.stdin.take());
            assert!(child.wait().unwrap().success());
        }
    }
}

/// Devices that replay drivers of APUs, Linux's and Windows', and of a card.
const REPLAYED: [&str; 3] = ["sim:radv-phoenix-780m", "sim:amd-windows-apu-2g", "sim:nvidia-8g-rebar"];

#[test]
fn a_mapped_file_gives_the_same_on_every_device() {
    let dir = tempfile::tempdir().unwrap();
    write_layers(dir.path(), 1.0, 2);
    let path = dir.path().join("model.onnx");
    for device in ["cpu", "vulkan", "opencl"].into_iter().chain(REPLAYED) {
        drop(mapped(&path, device, 1.0));
    }
    // Who gave no promise has no part in what is mapped.
    settle();
    let promised = mapped(&path, "cpu", 1.0);
    let read = run(Session::builder().model(&path).device("cpu"), 1.0);
    let region = |session: &Session| session.graph().constants().next().unwrap().1.region().unwrap().0;
    assert!(region(&promised).is_mapped() && !region(&read).is_mapped());
    // A file that cannot be mapped to its end is none.
    let file = std::fs::File::open(dir.path().join("w.bin")).unwrap();
    // SAFETY: no one changes the file of the test.
    let promise = unsafe { Unchanging::promise() };
    let bytes = file.metadata().unwrap().len();
    for (at, bytes) in [(0, bytes + 4096), (bytes, 1), (u64::MAX, 2), (0, 0)] {
        let refused = HostRegion::map_file(&file, at, bytes, promise);
        assert!(matches!(refused, Err(HostError::OutsideFile { .. })), "{refused:?}");
    }
    // What is written to a region is not written to the file, and is not let go of.
    let mut region = HostRegion::map_file(&file, 4, 4096, promise).unwrap();
    region.release_mapped();
    assert_eq!(region.as_slice()[..4], (1.0 / N as f32).to_le_bytes());
    region.as_mut_slice()[0] = 77;
    region.release_mapped();
    assert_eq!(region.as_slice()[0], 77);
    assert_ne!(std::fs::read(dir.path().join("w.bin")).unwrap()[4], 77);
    assert!(region.is_mapped() && region.split(&[4096]).is_err());
}

#[test]
fn devices_hold_the_weights_of_two_sessions_once() {
    let dir = tempfile::tempdir().unwrap();
    write_layers(dir.path(), 1.0, 2);
    settle();
    let path = dir.path().join("model.onnx");
    for device in REPLAYED.into_iter().chain(["cpu", "vulkan", "opencl"]) {
        let context = open(device);
        let held = || context.usage().allocated + context.usage().imported;
        let session = || run(Session::builder().model(&path).context(context.clone()), 1.0);
        let first = session();
        let by_one = held();
        let second = session();
        let by_two = held();
        assert!(
            by_two - by_one < (N * N) as u64,
            "a second session takes {} bytes on {device}",
            by_two - by_one
        );
        drop((first, second));
        assert!(held() < (N * N) as u64, "{} bytes stay on {device}", held());
    }
}
