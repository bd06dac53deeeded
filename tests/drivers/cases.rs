//! What a session does with memory on one device, case by case.

use std::sync::Arc;

use onepool::device::{Context, Traffic};
use onepool::graph::{NodeId, StorageScope};
use onepool::loader::{read_params, write_params};
use onepool::memory::import::{Path, Verdict};
use onepool::memory::range::ByteRange;
use onepool::ops::pool::{Pool, PoolKind};
use onepool::ops::{self, Operator, WindowAttrs};
use onepool::session::Binding;
use onepool::{DType, Graph, GraphBuilder, HostRegion, Memory, Session, SharedRegion, Tensor};

use crate::values::{floats, numbers, op, region, shape, tensor};

/// Elements of a tensor: twice the bytes from which imports pay where nothing was measured.
const N: usize = 32 << 10;
const BYTES: u64 = 4 * N as u64;

/// What became of a tensor.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Outcome {
    pub(crate) case: &'static str,
    pub(crate) path: String,
    /// Bytes that the CPU and the device copy in each run.
    pub(crate) cpu: u64,
    pub(crate) device: u64,
    /// Bytes of the tensor or parameter that are in memory, each page once, where that can be told.
    pub(crate) resident: Option<u64>,
    /// Its bytes.
    pub(crate) bytes: u64,
    /// What the user is told.
    pub(crate) said: String,
}

/// The cases in order.
pub(crate) const CASES: [&str; 10] = [
    "input, read once",
    "input, read twice",
    "output",
    "by value",
    "unaligned",
    "parameter as it lies",
    "parameter in a layout",
    "CPU operator amid",
    "image",
    "between stages",
];

/// Every case on a device.
pub(crate) fn outcomes(device: &Context, cpu: &Context) -> Vec<Outcome> {
    let mut all = bound(device, &once(), ["input, read once", "output"], 0);
    all.extend(bound(device, &twice(), ["input, read twice", ""], 0));
    all.push(by_value(device));
    all.extend(bound(device, &once(), ["unaligned", ""], 4));
    all.push(parameter(device, false));
    all.push(parameter(device, true));
    all.push(amid(device, cpu));
    all.push(image(device));
    all.push(stages(device));
    all.sort_by_key(|outcome| CASES.iter().position(|case| *case == outcome.case));
    assert_eq!(all.iter().map(|outcome| outcome.case).collect::<Vec<_>>(), CASES);
    all
}

/// `y = |x|`.
fn once() -> Graph {
    let mut g = GraphBuilder::new("once");
    let x = g.input("x", DType::F32, [N.into()]);
    let y = g.op(op("Abs"), &[x]);
    g.output("y", y);
    g.build().unwrap()
}

/// `y = |x| + -x`, by three kernels.
fn twice() -> Graph {
    let mut g = GraphBuilder::new("twice");
    let x = g.input("x", DType::F32, [N.into()]);
    let a = g.op(op("Abs"), &[x]);
    let b = g.op(op("Neg"), &[x]);
    let y = g.op(ops::add(), &[a, b]);
    g.output("y", y);
    g.build().unwrap()
}

fn session(graph: Graph, contexts: &[&Context]) -> Session {
    let builder = Session::builder().graph(graph).fuse(false).fallback(false);
    contexts.iter().fold(builder, |builder, context| builder.context((*context).clone())).build().unwrap()
}

/// Bytes that CPU and device copied while `work` was done: guards of a device's memory are what the CPU copies by.
fn copied(contexts: &[&Context], work: impl FnOnce()) -> (u64, u64) {
    let sum = || {
        let all = contexts.iter().map(|context| context.traffic());
        all.fold(Traffic::default(), |sum, one| Traffic {
            copied: sum.copied + one.copied,
            host_read: sum.host_read + one.host_read,
            host_written: sum.host_written + one.host_written,
            ..sum
        })
    };
    let before = sum();
    work();
    let after = sum();
    let host = |traffic: Traffic| traffic.host_read + traffic.host_written;
    (host(after) - host(before), after.copied - before.copied)
}

fn claims<'v>(verdicts: impl Iterator<Item = &'v Verdict>) -> (u64, u64) {
    verdicts.fold((0, 0), |(cpu, device), verdict| {
        let staged = if verdict.path.copies_on_cpu() { verdict.bytes } else { 0 };
        let moved = if verdict.copies_on_device() { verdict.bytes } else { 0 };
        (cpu + staged, device + moved)
    })
}

/// What was copied beyond the inputs and outputs. Behind a bus, what the CPU copies of them is copied by the device too.
fn beyond(measured: (u64, u64), told: (u64, u64)) -> (u64, u64) {
    (measured.0.saturating_sub(told.0), measured.1.saturating_sub(told.0 + told.1))
}

fn path(verdict: &Verdict) -> &'static str {
    match verdict.path {
        Path::Host | Path::Direct | Path::Imported => "in place",
        Path::ImportedDma => "import and copy",
        Path::DmaBuf => "dma-buf",
        Path::Staged => "copy",
    }
}

/// Input and output in regions of the caller, `at` bytes from their start; every copy that is counted was told.
fn bound(device: &Context, graph: &Graph, cases: [&'static str; 2], at: u64) -> Vec<Outcome> {
    let session = session(graph.clone(), &[device]);
    let reads_twice = cases[0] == "input, read twice";
    // A machine whose driver imports larger units than this one's pages has pages of that size.
    let unit = device.info().import.map_or(1, |rules| rules.alignment as usize);
    let memory = |values: &[f32]| {
        let mut region = HostRegion::in_units((at + BYTES) as usize, unit).unwrap();
        region.as_mut_slice()[at as usize..][..BYTES as usize].copy_from_slice(bytemuck::cast_slice(values));
        region.into_shared()
    };
    let given = |region: &Arc<SharedRegion>| Memory::region_range(region, ByteRange::new(at, at + BYTES));
    let (x, y) = (memory(&numbers(N, 1)), memory(&vec![0.0; N]));
    let held = device.usage().allocated;
    let mut binding = session.bind().input("x", given(&x)).output("y", given(&y)).build().unwrap();
    binding.run().unwrap();
    let scratch: u64 = binding.plan().report.arenas.iter().map(|arena| arena.bytes).sum();
    let own = (device.usage().allocated - held).saturating_sub(scratch);
    let measured = copied(&[device], || binding.run().unwrap());
    let want = |x: &f32| if reads_twice { x.abs() - x } else { x.abs() };
    let got: Vec<f32> = bytemuck::pod_collect_to_vec(&y.read().unwrap()[at as usize..][..BYTES as usize]);
    assert_eq!(got, numbers(N, 1).iter().map(want).collect::<Vec<_>>(), "{}", device.info().name);
    let told = claims(binding.verdicts());
    // Behind a bus, what the CPU copies is copied by the device too.
    assert!(measured.0 == told.0 && measured.1 >= told.1, "{}: {measured:?}, {told:?}", device.info().name);
    let verdicts: Vec<&Verdict> = binding.verdicts().collect();
    assert_eq!(verdicts.len(), 2);
    let extra = (measured.1 - told.1) / 2;
    let outcome = |verdict: &Verdict, case: &'static str| {
        let (cpu, moved) = claims([verdict].into_iter());
        let path = path(verdict).to_owned();
        // Both tensors are alike.
        let resident = Some(BYTES + own / 2);
        Outcome { case, path, cpu, device: moved + extra, resident, bytes: BYTES, said: verdict.to_string() }
    };
    let pairs = verdicts.into_iter().zip(cases).filter(|(_, case)| !case.is_empty());
    pairs.map(|(verdict, case)| outcome(verdict, case)).collect()
}

fn by_value(device: &Context) -> Outcome {
    let mut session = session(once(), &[device]);
    let x = tensor(&[N], &numbers(N, 1));
    let held = device.usage().allocated;
    session.set_input("x", &x).unwrap();
    session.run().unwrap();
    let mut y = None;
    let (cpu, moved) = copied(&[device], || {
        session.set_input("x", &x).unwrap();
        session.run().unwrap();
        y = Some(session.get_output("y").unwrap());
    });
    let want: Vec<f32> = numbers(N, 1).iter().map(|x| x.abs()).collect();
    assert_eq!(y.unwrap().as_slice::<f32>().unwrap(), want);
    let resident = Some(device.usage().allocated - held);
    let path = if moved == 0 { "copy" } else { "copy, and by the device" }.to_owned();
    let said = session.binding().unwrap().verdicts().map(ToString::to_string).collect();
    Outcome { case: "by value", path, cpu, device: moved, resident, bytes: 2 * BYTES, said }
}

/// A parameter as it comes from a file, in pages of its own: added as it is, or the weights of a convolution, which are
/// packed.
fn parameter(device: &Context, packed: bool) -> Outcome {
    const LAYER: [usize; 4] = [72, 64, 3, 3];
    let dims: &[usize] = if packed { &LAYER } else { &[N] };
    let n = dims.iter().product();
    let mut blob = Vec::new();
    write_params(&mut blob, [("w", &tensor(dims, &numbers(n, 2)))]).unwrap();
    let w: Tensor = read_params(&blob).unwrap().remove(0).1;
    drop(blob);
    let mut g = GraphBuilder::new("parameter");
    let size: &[usize] = if packed { &[1, 64, 20, 20] } else { &[N] };
    let x = g.input("x", DType::F32, size.iter().map(|d| (*d).into()));
    let w = g.constant("w", w);
    let y = g.op(if packed { op("Conv") } else { ops::add() }, &[x, w]);
    g.output("y", y);
    let held = device.usage().allocated;
    let session = session(g.build().unwrap(), &[device]);
    let x = region(&numbers(size.iter().product(), 1));
    let y = region(&vec![0.0; if packed { 72 * 18 * 18 } else { N }]);
    let mut binding =
        session.bind().input("x", Memory::region(&x)).output("y", Memory::region(&y)).build().unwrap();
    binding.run().unwrap();
    let tensors = device.usage().allocated - held;
    if !packed {
        let sums = numbers(N, 1).iter().zip(numbers(N, 2)).map(|(x, w)| x + w).collect::<Vec<_>>();
        assert_eq!(floats(&y), sums);
    }
    let (cpu, moved) = copied(&[device], || binding.run().unwrap());
    let (cpu, moved) = beyond((cpu, moved), claims(binding.verdicts()));
    // Without the tensors and the memory between kernels.
    drop(binding);
    let own = device.usage().allocated - held;
    assert!(own <= tensors);
    let host: u64 =
        session.graph().constants().filter_map(|(_, t)| t.region()).map(|(r, _)| r.bytes() as u64).sum();
    let bytes = 4 * n as u64;
    // Pages of a file's parameters are this machine's: whether larger units begin and end with them is chance.
    let whole =
        device.info().import.is_none_or(|rules| rules.alignment <= onepool::memory::os::page_size() as u64);
    let path = match (whole, own < bytes) {
        (false, _) => "by address",
        (true, true) => "in place",
        (true, false) => "own memory",
    };
    let path = path.to_owned();
    Outcome {
        case: if packed { "parameter in a layout" } else { "parameter as it lies" },
        path,
        cpu,
        device: moved,
        resident: whole.then_some(own + host),
        bytes,
        said: String::new(),
    }
}

/// `y = |-|x||`, the middle one on the CPU.
fn amid(device: &Context, cpu: &Context) -> Outcome {
    let mut g = GraphBuilder::new("amid");
    let mut at = g.input("x", DType::F32, [N.into()]);
    for name in ["Abs", "Neg", "Abs"] {
        at = g.op(op(name), &[at]);
    }
    g.output("y", at);
    let mut graph = g.build().unwrap();
    for (n, entry) in [0, 1, 0].into_iter().enumerate() {
        graph.place(NodeId(n as u32), Some(entry));
    }
    let contexts = [device, cpu];
    let session = session(graph, &contexts);
    let (x, y) = (region(&numbers(N, 1)), region(&vec![0.0; N]));
    let mut binding =
        session.bind().input("x", Memory::region(&x)).output("y", Memory::region(&y)).build().unwrap();
    binding.run().unwrap();
    let measured = copied(&contexts, || binding.run().unwrap());
    assert_eq!(floats(&y), numbers(N, 1).iter().map(|x| x.abs()).collect::<Vec<_>>());
    let told = claims(binding.verdicts());
    let crossings = &binding.plan().report.crossings;
    let paths: Vec<String> =
        crossings.iter().map(|crossing| format!("{:?}", crossing.path).to_lowercase()).collect();
    let said = crossings.iter().map(|crossing| crossing.reason).collect::<Vec<_>>().join("; ");
    let resident = Some(binding.plan().report.arenas.iter().map(|arena| arena.bytes).sum());
    let (cpu, moved) = beyond(measured, told);
    Outcome {
        case: "CPU operator amid",
        path: paths.join(", "),
        cpu,
        device: moved,
        resident,
        bytes: 2 * BYTES,
        said,
    }
}

/// A pool over an image between two kernels.
fn image(device: &Context) -> Outcome {
    const DIMS: [usize; 4] = [1, 2, 16, 64];
    let mut g = GraphBuilder::new("image");
    let x = g.input("x", DType::F32, DIMS.map(Into::into));
    let t = g.op(op("Abs"), &[x]);
    g.set_scope(t, StorageScope::Planes);
    let window = WindowAttrs { kernel: vec![3, 3], pads: vec![1; 4], ..WindowAttrs::default() };
    let pool = Pool { kind: PoolKind::Max { column_major: false }, window };
    let y = g.op(Arc::new(pool) as Arc<dyn Operator>, &[t]);
    g.output("y", y);
    let mut session = session(g.build().unwrap(), &[device]);
    let n = DIMS.iter().product();
    session.set_input("x", &tensor(&DIMS, &numbers(n, 1))).unwrap();
    session.run().unwrap();
    let plan = session.plan(&[onepool::TensorInfo::new(DType::F32, shape(&DIMS))]).unwrap();
    let [image] = &plan.report.images[..] else { panic!("{:?}", plan.report.images) };
    let (path, copied) = match (&image.image, image.copied) {
        (Some(_), false) => ("in place", 0),
        (Some(_), true) => ("copy by the device", 4 * n as u64),
        (None, _) => ("buffer", 0),
    };
    Outcome {
        case: "image",
        path: path.to_owned(),
        cpu: 0,
        device: copied,
        resident: Some(image.bytes),
        bytes: 4 * n as u64,
        said: image.reason.clone().unwrap_or_default(),
    }
}

/// `y = -compress(|x|, m)`: its size is known only in the run, so that another plan takes `|x|` over.
fn stages(device: &Context) -> Outcome {
    let mut g = GraphBuilder::new("stages");
    let x = g.input("x", DType::F32, [N.into()]);
    let s = g.input("s", DType::F32, [N.into()]);
    let a = g.op(op("Abs"), &[x]);
    g.rename(a, "a");
    let kept = g.op(op("NonZero"), &[s]);
    let flat = g.op(op("Squeeze"), &[kept]);
    let b = g.op(op("Gather"), &[a, flat]);
    let y = g.op(op("Neg"), &[b]);
    g.output("y", y);
    let session = session(g.build().unwrap(), &[device]);
    let (x, y) = (region(&numbers(N, 1)), region(&vec![0.0; N]));
    let all = region(&vec![1.0; N]);
    let held = device.usage().allocated;
    let mut binding = session
        .bind()
        .input("x", Memory::region(&x))
        .input("s", Memory::region(&all))
        .output("y", Memory::region(&y))
        .build()
        .unwrap();
    binding.run().unwrap();
    assert!(binding.stages().count() > 1);
    let measured = copied(&[device], || binding.run().unwrap());
    assert_eq!(floats(&y), numbers(N, 1).iter().map(|x| -x.abs()).collect::<Vec<_>>());
    let between = |verdict: &&Verdict| verdict.tensor == "a";
    let verdicts: Vec<&Verdict> = binding.stages().flat_map(Binding::verdicts).filter(between).collect();
    let (cpu, moved) = claims(verdicts.iter().copied());
    // The host finds the indices, and hands them to the next plan by value.
    let told = claims(binding.stages().flat_map(Binding::verdicts));
    assert!(measured.0 <= told.0 + 8 * N as u64, "{}: {measured:?}, {told:?}", device.info().name);
    let paths: Vec<&str> = verdicts.iter().map(|verdict| path(verdict)).collect();
    let said = verdicts.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ");
    Outcome {
        case: "between stages",
        path: paths.join(", "),
        cpu,
        device: moved,
        resident: Some(device.usage().allocated - held),
        bytes: BYTES,
        said,
    }
}
