//! Parameters are read once, straight to where they stay: loading takes little more memory than the file has bytes.
//!
//! Linux alone: the figures are those of `/proc/self/status`.

#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

use std::io::Write;
use std::path::Path;
use std::sync::Arc;

use onepool::backend::ContextDesc;
use onepool::device::Context;
use onepool::memory::model::ImportTypes;
use onepool::registry::Registry;
use onepool::{Memory, Session, SharedRegion, Tensor, loader};

use self::disguise::Disguised;
use self::protobuf::{field, int};

#[path = "support/disguise.rs"]
mod disguise;
#[path = "support/process.rs"]
mod process;
#[path = "support/protobuf.rs"]
mod protobuf;

const ROWS: usize = 8192;
const BYTES: usize = ROWS * 4096 * 4;

/// `y = x * w` for a row `x` of 8192 and a matrix `w` of 8192 x 4096.
fn model(initializer: &[u8]) -> Vec<u8> {
    let value = |name: &str, n: usize| {
        let dim = |n: usize| field(1, &int(1, n as u64));
        let shape = field(2, &[dim(1), dim(n)].concat());
        let tensor = field(1, &[int(1, 1), shape].concat());
        [field(1, name.as_bytes()), field(2, &tensor)].concat()
    };
    let node = [field(1, b"x"), field(1, b"w"), field(2, b"y"), field(4, b"MatMul")].concat();
    let graph = [
        field(1, &node),
        field(2, b"rows"),
        field(5, initializer),
        field(11, &value("x", ROWS)),
        field(12, &value("y", 4096)),
    ]
    .concat();
    [int(1, 8), field(7, &graph), field(8, &int(2, 18))].concat()
}

fn tensor() -> Vec<u8> {
    [int(1, ROWS as u64), int(1, 4096), int(2, 1), field(8, b"w")].concat()
}

/// The most resident memory since the last call of `forget`, in bytes.
fn peak() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|l| l.starts_with("VmHWM:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() * 1024
}

fn forget() {
    std::fs::write("/proc/self/clear_refs", "5").unwrap();
}

fn check(path: &Path) {
    forget();
    let before = peak();
    let graph = loader::load(path).unwrap();
    let loaded = peak() - before;
    assert!(loaded as f64 <= 1.2 * BYTES as f64, "loading {BYTES} bytes took {loaded}");
    // On the CPU the parameters are read where they are, too.
    let session = Session::builder().graph(graph).device("cpu").build().unwrap();
    let ones = onepool::HostRegion::from_bytes(bytemuck::cast_slice(&[1.0f32; ROWS])).unwrap().into_shared();
    let y: std::sync::Arc<SharedRegion> = onepool::HostRegion::new(4096 * 4).unwrap().into_shared();
    let mut binding =
        session.bind().input("x", Memory::region(&ones)).output("y", Memory::region(&y)).build().unwrap();
    binding.run().unwrap();
    let ran = peak() - before;
    assert!(ran as f64 <= 1.2 * BYTES as f64, "running on {BYTES} bytes took {ran}");
    assert_eq!(y.read().unwrap().as_slice_of::<f32>().unwrap(), [ROWS as f32 * 0.5; 4096]);
}

/// Convolutions with windows of 3 x 3 over one pixel, from some channels to others and back: of every window only the
/// middle is used. Weights are in `w.bin`, from its start.
#[derive(Clone, Copy)]
struct Net {
    channels: [usize; 2],
    layers: usize,
    normalized: bool,
}

impl Net {
    /// Input and output channels of a layer.
    fn of(&self, layer: usize) -> (usize, usize) {
        (self.channels[layer % 2], self.channels[(layer + 1) % 2])
    }

    /// Bytes of the weights of a layer.
    fn bytes(&self) -> usize {
        self.channels[0] * self.channels[1] * 9 * 4
    }

    fn input(&self) -> Vec<f32> {
        vec![1.0; self.channels[0]]
    }
}

fn convolutions(net: &Net) -> Vec<u8> {
    let (layers, normalized) = (net.layers, net.normalized);
    let value = |number: u64, name: &str, channels: usize| {
        let dims: Vec<u8> = [1, channels as u64, 1, 1].iter().flat_map(|n| field(1, &int(1, *n))).collect();
        let tensor = field(1, &[int(1, 1), field(2, &dims)].concat());
        field(number, &[field(1, name.as_bytes()), field(2, &tensor)].concat())
    };
    let mut graph = field(2, b"convolutions");
    for layer in 0..layers {
        let (ic, oc) = net.of(layer);
        let (x, w) = (if layer == 0 { "x".to_owned() } else { format!("y{layer}") }, format!("w{layer}"));
        let y = if layer + 1 == layers { "y".to_owned() } else { format!("y{}", layer + 1) };
        let pads: Vec<u8> = [1; 4].iter().flat_map(|p| int(8, *p)).collect();
        // Type 7: integers.
        let pads = field(5, &[field(1, b"pads"), pads, int(20, 7)].concat());
        let c = if normalized { format!("c{layer}") } else { y.clone() };
        let names = [field(1, x.as_bytes()), field(1, w.as_bytes()), field(2, c.as_bytes())].concat();
        graph.extend(field(1, &[names, field(4, b"Conv"), pads].concat()));
        if normalized {
            // One stays one: (1 - 0.5) / 2 * 4.
            let parts = [("scale", 4.0f32), ("bias", 0.0), ("mean", 0.5), ("var", 4.0)];
            let parts = parts.map(|(part, value)| (format!("{part}{layer}"), value));
            let read: Vec<u8> = parts.iter().flat_map(|(name, _)| field(1, name.as_bytes())).collect();
            let zero = field(5, &[field(1, b"epsilon"), vec![21, 0, 0, 0, 0], int(20, 1)].concat());
            let names = [field(1, c.as_bytes()), read, field(2, y.as_bytes())].concat();
            graph.extend(field(1, &[names, field(4, b"BatchNormalization"), zero].concat()));
            for (name, value) in parts {
                let values = vec![value; oc];
                let tensor = [int(1, oc as u64), int(2, 1), field(8, name.as_bytes())].concat();
                graph.extend(field(5, &[tensor, field(9, bytemuck::cast_slice(&values))].concat()));
            }
        }
        let dims: Vec<u8> = [oc, ic, 3, 3].iter().flat_map(|n| int(1, *n as u64)).collect();
        let entry = |key: &str, value: &str| {
            field(13, &[field(1, key.as_bytes()), field(2, value.as_bytes())].concat())
        };
        let offset = (layer * net.bytes()).to_string();
        let place = [entry("location", "w.bin"), entry("offset", &offset), int(14, 1)].concat();
        graph.extend(field(5, &[dims, int(2, 1), field(8, w.as_bytes()), place].concat()));
    }
    graph.extend([value(11, "x", net.channels[0]), value(12, "y", net.of(layers - 1).1)].concat());
    [int(1, 8), field(7, &graph), field(8, &int(2, 18))].concat()
}

/// Runs the convolutions on a context, on ones.
fn convolve(path: &Path, net: &Net, context: &Context) -> Session {
    let graph = loader::load(path).unwrap();
    let mut session = Session::builder().graph(graph).context(context.clone()).build().unwrap();
    session.set_input("x", &Tensor::new([1, net.channels[0], 1, 1], &net.input()).unwrap()).unwrap();
    session.run().unwrap();
    let want = vec![1.0; net.of(net.layers - 1).1];
    assert_eq!(session.get_output("y").unwrap().as_slice::<f32>().unwrap(), want);
    session
}

/// `vulkan-copying` is the Vulkan device under a driver that shares the host's memory and imports none of it.
fn open(device: &str) -> Context {
    let registry = Registry::with_defaults();
    if device != "vulkan-copying" {
        return registry.open(device, &ContextDesc::default()).unwrap();
    }
    let real = registry.open_backend("vulkan", &ContextDesc::default()).unwrap();
    Context::new(Arc::new(Disguised::new(real, |info| {
        info.import = None;
        info.memory = info.memory.clone().importing(ImportTypes::None);
    })))
}

/// What a driver's compiler and allocator keep of a model's kernels.
const DRIVERS: f64 = (8 << 20) as f64;

/// Weights that a device reads in another form only, packed or with a normalization folded in, are in memory in that
/// form only.
fn check_packed(device: &str, net: &Net) {
    let dir = tempfile::tempdir().unwrap();
    let mut file = std::io::BufWriter::new(std::fs::File::create(dir.path().join("w.bin")).unwrap());
    for layer in 0..net.layers {
        let (ic, oc) = net.of(layer);
        let mut window = [layer as f32; 9];
        window[4] = 1.0 / ic as f32;
        for _ in 0..ic * oc {
            file.write_all(bytemuck::cast_slice(&window)).unwrap();
        }
    }
    file.flush().unwrap();
    drop(file);
    let path = dir.path().join("convolutions.onnx");
    let few = Net { layers: net.layers.min(2), ..*net };
    std::fs::write(&path, convolutions(&few)).unwrap();
    let context = open(device);
    // What the driver needs for the kernels themselves.
    drop(convolve(&path, &few, &context));
    std::fs::write(&path, convolutions(net)).unwrap();
    forget();
    let before = peak();
    let session = convolve(&path, net, &context);
    let (bytes, ran) = (net.layers * net.bytes(), peak() - before);
    forget();
    let stays = peak().saturating_sub(before);
    println!(
        "{device}, {} layers, normalized: {}: {bytes} bytes, peak {ran}, then {stays}",
        net.layers, net.normalized
    );
    assert!(ran as f64 <= 1.05 * bytes as f64 + DRIVERS, "running on {bytes} bytes took {ran} on {device}");
    assert!(
        stays as f64 <= 1.05 * bytes as f64 + DRIVERS / 4.0,
        "{bytes} bytes of weights take {stays} on {device}"
    );
    let usage = context.usage();
    let (lies, other) = match device {
        "vulkan-copying" => (usage.allocated, usage.imported),
        _ => (usage.imported, usage.allocated),
    };
    assert!(lies >= bytes as u64 && other < net.bytes() as u64, "{usage:?}");
    // Weights, and where those are folded a bias.
    assert_eq!(session.graph().constants().count(), net.layers * if net.normalized { 2 } else { 1 });
}

/// Set in the process that is measured.
const MEASURED: &str = "LOAD_MEMORY_MEASURED";

/// One test, because the process's memory is measured.
#[test]
fn parameters_are_in_memory_once() {
    if std::env::var(MEASURED).is_err() {
        return process::alone("parameters_are_in_memory_once", MEASURED, "1");
    }
    let dir = tempfile::tempdir().unwrap();
    let row = [0.5f32; 4096];
    let mut file = std::fs::File::create(dir.path().join("w.bin")).unwrap();
    for _ in 0..ROWS {
        file.write_all(bytemuck::cast_slice(&row)).unwrap();
    }
    drop(file);
    let entry =
        |key: &str, value: &str| field(13, &[field(1, key.as_bytes()), field(2, value.as_bytes())].concat());
    let external = [tensor(), entry("location", "w.bin"), int(14, 1)].concat();
    let path = dir.path().join("external.onnx");
    std::fs::write(&path, model(&external)).unwrap();
    check(&path);
    // The same with the data inside the model's file, written before anything is measured.
    let inside = dir.path().join("inside.onnx");
    {
        let data = std::fs::read(dir.path().join("w.bin")).unwrap();
        std::fs::write(&inside, model(&[tensor(), field(9, &data)].concat())).unwrap();
    }
    check(&inside);
    for device in ["vulkan", "vulkan-copying", "cpu"] {
        for normalized in [false, true] {
            check_packed(device, &Net { channels: [256, 512], layers: 14, normalized });
        }
        // One that is nearly all of the model.
        check_packed(device, &Net { channels: [1024, 2048], layers: 1, normalized: false });
    }
}
