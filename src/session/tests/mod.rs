//! Sessions as a caller uses them.

mod cancel;
mod coded_caches;
mod pages;
mod parts;
mod recover;
mod removal;
mod stages;
mod updates;

use std::sync::Arc;

use crate::backend::ContextDesc;
use crate::graph::GraphBuilder;
use crate::memory::host::HostRegion;
use crate::memory::import::Path;
use crate::ops::movement::{Concat, Transpose};
use crate::ops::reduce::{Reduce, ReduceKind};
use crate::plan::{Assignment, Compiler, PlanCache, PlanError, PlanOptions, PlanRequest, Precision};
use crate::registry::Registry;
use crate::session::*;
use crate::shape::Shape;

/// Held by a test that lets calls of Vulkan fail: the table of its functions is shared by the whole process.
#[cfg(feature = "vulkan")]
pub(super) static SHIM: std::sync::Mutex<()> = std::sync::Mutex::new(());

pub(super) fn desc() -> ContextDesc {
    ContextDesc { validation: true, ..ContextDesc::default() }
}

/// Transposes a matrix and sums its rows: two operators, an intermediate, two outputs.
fn graph() -> Graph {
    let mut g = GraphBuilder::new("rows");
    let x = g.input("x", DType::F32, ["n".into(), "m".into()]);
    let t = g.op(Arc::new(Transpose { perm: None }) as Arc<dyn crate::ops::Operator>, &[x]);
    let sum =
        Reduce { kind: ReduceKind::Sum, axes: Some(vec![1]), keep_dims: true, noop_with_empty_axes: false };
    let s = g.op(Arc::new(sum) as Arc<dyn crate::ops::Operator>, &[t]);
    let c = g.op(Arc::new(Concat { axis: 1 }) as Arc<dyn crate::ops::Operator>, &[t, s]);
    g.output("y", c);
    g.build().unwrap()
}

fn expected(x: &[f32], n: usize, m: usize) -> Vec<f32> {
    let mut out = Vec::new();
    for j in 0..m {
        let column: Vec<f32> = (0..n).map(|i| x[i * m + j]).collect();
        out.extend(&column);
        out.push(column.iter().sum());
    }
    out
}

fn session(device: &str) -> Session {
    let context = Registry::with_defaults().open(device, &desc()).unwrap();
    Session::builder().graph(graph()).context(context).build().unwrap()
}

pub(super) fn check_messages(session: &Session) {
    for i in 0..session.devices().count() {
        assert_eq!(session.context(i).unwrap().validation_messages(), Vec::<String>::new());
    }
}

fn by_value(device: &str) {
    let mut session = session(device);
    for (n, m) in [(3, 5), (17, 33), (3, 5)] {
        let x: Vec<f32> = (0..n * m).map(|i| (i % 13) as f32).collect();
        session.set_input("x", &Tensor::new([n, m], &x).unwrap()).unwrap();
        session.run().unwrap();
        assert_eq!(session.get_output("y").unwrap().as_slice::<f32>().unwrap(), expected(&x, n, m));
    }
    check_messages(&session);
}

fn bound(device: &str) {
    let session = session(device);
    let (n, m) = (512, 1024);
    let mut x = HostRegion::new(n * m * 4).unwrap();
    x.as_mut_slice_of::<f32>().unwrap().iter_mut().enumerate().for_each(|(i, v)| *v = (i % 7) as f32);
    let (x, y) = (x.into_shared(), HostRegion::new((n + 1) * m * 4).unwrap().into_shared());
    let shape = crate::Shape::new([n, m]).unwrap();
    let mut binding = session
        .bind()
        .input("x", Memory::region(&x).shape(shape))
        .output("y", Memory::region(&y))
        .build()
        .unwrap();
    for v in binding.verdicts() {
        assert!(matches!(v.path, Path::Imported | Path::Host), "{v}");
    }
    for round in 0..3 {
        // No one is told of the change.
        x.write().unwrap().as_mut_slice_of::<f32>().unwrap()[5] = round as f32;
        binding.run().unwrap();
        let want = expected(x.read().unwrap().as_slice_of::<f32>().unwrap(), n, m);
        assert_eq!(y.read().unwrap().as_slice_of::<f32>().unwrap(), want);
    }
    check_messages(&session);
}

fn scoped(device: &str) {
    let session = session(device);
    let (n, m) = (256, 512);
    let x: Vec<f32> = (0..n * m).map(|i| (i % 5) as f32).collect();
    let mut y = vec![0f32; (n + 1) * m];
    session.scope(|s| {
        let shape = crate::Shape::new([n, m]).unwrap();
        let mut b =
            s.bind().input("x", s.input(&x).shape(shape)).output("y", s.output(&mut y)).build().unwrap();
        b.run().unwrap();
    });
    assert_eq!(y, expected(&x, n, m));
    check_messages(&session);
}

#[test]
fn by_value_on_cpu() {
    by_value("cpu");
}

#[test]
fn by_value_on_vulkan() {
    by_value("vulkan");
}

#[test]
fn bound_on_cpu() {
    bound("cpu");
}

#[test]
fn bound_on_vulkan() {
    bound("vulkan");
}

#[test]
fn scoped_on_cpu() {
    scoped("cpu");
}

#[test]
fn scoped_on_vulkan() {
    scoped("vulkan");
}

/// One output is read by a node on another device: both must see the same bytes, imported or copied.
fn shared_output(first: &str, second: &str, n: usize) {
    let mut g = GraphBuilder::new("g");
    let x = g.input("x", DType::F32, [n.into()]);
    let a = g.op(crate::ops::add(), &[x, x]);
    let b = g.op(crate::ops::binary(crate::ops::pointwise::BinaryFunction::Mul), &[a, a]);
    g.output("a", a);
    g.output("b", b);
    let open = |name| Registry::with_defaults().open(name, &desc()).unwrap();
    let session = Session::builder()
        .graph(g.build().unwrap())
        .context(open(first))
        .context(open(second))
        .place_op("Mul", 1)
        .build()
        .unwrap();
    let x = HostRegion::from_bytes(bytemuck::cast_slice(&vec![1.5f32; n])).unwrap().into_shared();
    let (a, b) =
        (HostRegion::new(n * 4).unwrap().into_shared(), HostRegion::new(n * 4).unwrap().into_shared());
    let mut binding = session
        .bind()
        .input("x", Memory::region(&x))
        .output("a", Memory::region(&a))
        .output("b", Memory::region(&b))
        .build()
        .unwrap();
    for _ in 0..2 {
        binding.run().unwrap();
    }
    assert_eq!(a.read().unwrap().as_slice_of::<f32>().unwrap(), vec![3.0; n], "{first} {second}");
    assert_eq!(b.read().unwrap().as_slice_of::<f32>().unwrap(), vec![9.0; n], "{first} {second}");
    check_messages(&session);
}

#[test]
fn devices_that_share_an_output_see_the_same_bytes() {
    for n in [16, 65536] {
        for (first, second) in
            [("vulkan", "cpu"), ("cpu", "vulkan"), ("sim", "cpu"), ("cpu", "sim"), ("vulkan", "vulkan")]
        {
            shared_output(first, second, n);
        }
    }
}

/// `softmax(relu(x w) + mask) w2`, with an exponential that stays in full precision, and the expected results.
fn halved(device: &str) {
    // From -0.5 to 0.5, unordered.
    let values = |n: usize, seed: usize| -> Vec<f32> {
        (0..n).map(|i| ((i * 7919 + seed * 104_729) % 1009) as f32 / 1009.0 - 0.5).collect()
    };
    let mut g = GraphBuilder::new("g");
    let x = g.input("x", DType::F32, [5.into(), 256.into()]);
    let w = g.constant("w", Tensor::new([256, 128], &values(256 * 128, 1)).unwrap());
    let mask: Vec<f32> = (0..128).map(|i| if i % 3 == 0 { -1e9 } else { 0.0 }).collect();
    let mask = g.constant("mask", Tensor::new([128], &mask).unwrap());
    let op = |name: &str| {
        (crate::ops::find("", name).unwrap().read)(
            &mut crate::ops::AttrReader::new(&Default::default(), 1, 1),
            17,
        )
        .unwrap()
    };
    let a = g.op(op("MatMul"), &[x, w]);
    let b = g.op(op("Add"), &[a, mask]);
    let c = g.op(op("Softmax"), &[b]);
    let w2 = g.constant("w2", Tensor::new([128, 8], &values(128 * 8, 2)).unwrap());
    let d = g.op(op("MatMul"), &[c, w2]);
    let e = g.op(op("Exp"), &[d]);
    // Rows that are masked completely, with scores beyond the range.
    let none = g.input("none", DType::Bool, [128.into()]);
    let [zero, least] =
        [("zero", 0.0f32), ("least", f32::MIN)].map(|(n, v)| g.constant(n, Tensor::scalar(v)));
    let all = g.op(op("Where"), &[none, zero, least]);
    let low = g.constant("low", Tensor::scalar(1000.0f32));
    let scores = g.op(op("Sub"), &[a, low]);
    let hidden = g.op(op("Add"), &[scores, all]);
    let weights = g.op(op("Softmax"), &[hidden]);
    g.output("d", d);
    g.output("e", e);
    g.output("weights", weights);
    let graph = g.build().unwrap();
    let x = Tensor::new([5, 256], &values(1280, 3)).unwrap();
    let run = |device: &str, precision: Precision| {
        let context = Registry::with_defaults().open(device, &desc()).unwrap();
        let mut session =
            Session::builder().graph(graph.clone()).context(context).precision(precision).build().unwrap();
        session.set_input("x", &x).unwrap();
        let info = TensorInfo::new(DType::Bool, Shape::new([128]).unwrap());
        session.set_input("none", &Tensor::from_bytes(info, &[0; 128]).unwrap()).unwrap();
        session.run().unwrap();
        let report = session.binding().unwrap().plan().report.clone();
        let weights = session.get_output("weights").unwrap().to_f32s().unwrap();
        for row in weights.chunks(128) {
            assert!((row.iter().sum::<f32>() - 1.0).abs() < 0.01, "{device}: {row:?}");
        }
        let found = ["d", "e"].map(|o| session.get_output(o).unwrap());
        check_messages(&session);
        (found, report)
    };
    let (want, full) = run("cpu", Precision::F32);
    let (got, half) = run(device, Precision::F16);
    assert_eq!(full.halved, 0);
    assert!(half.halved >= 3, "{device}: {half:#?}");
    let in_half = |op: &str| half.nodes.iter().all(|n| n.op != op || n.output.starts_with("float16"));
    assert!(in_half("MatMul") && in_half("Softmax") && !in_half("Exp"), "{device}: {half:#?}");
    for (got, want) in got.iter().zip(&want) {
        assert_eq!(got.info(), want.info());
        // 11 bits of mantissa, a few roundings.
        for (g, w) in got.to_f32s().unwrap().iter().zip(want.to_f32s().unwrap()) {
            assert!((g - w).abs() <= 4e-3 * w.abs().max(1.0), "{device}: {g}, in full precision {w}");
        }
    }
    assert_ne!(got[0].bytes(), want[0].bytes(), "{device}");
}

#[test]
fn half_precision_on_cpu() {
    halved("cpu");
}

#[test]
fn half_precision_on_vulkan() {
    halved("vulkan");
}

#[test]
fn half_precision_on_sim() {
    halved("sim");
}

#[test]
fn a_device_without_16_bit_storage_refuses_half_precision() {
    let mut g = GraphBuilder::new("g");
    let x = g.input("x", DType::F32, [4.into()]);
    let y = g.op(crate::ops::add(), &[x, x]);
    g.output("y", y);
    let graph = g.build().unwrap();
    let mut info = Registry::with_defaults().open("sim", &desc()).unwrap().info().clone();
    info.native = false;
    info.features = info.features.missing(crate::kernel::Requires::STORAGE_16);
    let options = PlanOptions { precision: Precision::F16, ..PlanOptions::default() };
    let (assignment, cache) = (Assignment::default(), PlanCache::default());
    let compiler = Compiler { devices: &[&info], options: &options, assignment, cache: &cache };
    let infos = [TensorInfo::new(DType::F32, Shape::new([4]).unwrap())];
    let refused = compiler.compile(&PlanRequest::new(&graph, &infos));
    assert!(matches!(refused, Err(PlanError::NoHalf { .. })), "{refused:?}");
}

/// A window over single channels between tensors of float32: 9 products for each conversion.
#[test]
fn half_precision_that_costs_more_than_it_saves_is_given_up_and_said() {
    let mut g = GraphBuilder::new("g");
    let x = g.input("x", DType::F32, [1.into(), 16.into(), 9.into(), 9.into()]);
    let w = g.constant("w", Tensor::new([16, 1, 3, 3], &[0.5f32; 144]).unwrap());
    let op = crate::ops::conv::Conv { group: 16, ..Default::default() };
    let y = g.op(Arc::new(op) as Arc<dyn crate::ops::Operator>, &[x, w]);
    g.output("y", y);
    let graph = g.build().unwrap();
    for device in ["cpu", "sim", "vulkan"] {
        let context = Registry::with_defaults().open(device, &desc()).unwrap();
        let builder = Session::builder().graph(graph.clone()).context(context);
        let mut session = builder.precision(Precision::F16).build().unwrap();
        session.set_input("x", &Tensor::new([1, 16, 9, 9], &[1.0f32; 1296]).unwrap()).unwrap();
        session.run().unwrap();
        let report = session.binding().unwrap().plan().report.clone();
        let said = report.remarks.iter().any(|remark| remark.contains("half precision"));
        assert!(said && report.halved == 0 && report.nodes.len() == 1, "{device}: {report:#?}");
        assert_eq!(session.get_output("y").unwrap().to_f32s().unwrap(), [4.5; 784], "{device}");
    }
}

/// A parameter in pages of its own is read in place: no device memory is allocated for it, except on a card.
#[test]
fn parameters_are_read_in_place() {
    let n = 1 << 18;
    let values: Vec<f32> = (0..n).map(|i| i as f32).collect();
    let region = Arc::new(HostRegion::from_bytes(bytemuck::cast_slice(&values)).unwrap());
    for device in ["cpu", "sim", "sim:1", "vulkan"] {
        let context = Registry::with_defaults().open(device, &desc()).unwrap();
        let mut g = GraphBuilder::new("sum");
        let x = g.input("x", DType::F32, [1.into()]);
        let info = TensorInfo::new(DType::F32, Shape::new([n]).unwrap());
        let w = g.constant("w", Tensor::in_region(info, Arc::clone(&region), 0).unwrap());
        let y = g.op(crate::ops::add(), &[x, w]);
        g.output("y", y);
        let before = context.usage();
        let mut session =
            Session::builder().graph(g.build().unwrap()).context(context.clone()).build().unwrap();
        session.set_input("x", &Tensor::new([1], &[0.5f32]).unwrap()).unwrap();
        session.run().unwrap();
        assert_eq!(session.get_output("y").unwrap().as_slice::<f32>().unwrap()[n - 1], n as f32 - 0.5);
        let after = context.usage();
        assert_eq!(session.params().usage().bytes, (n * 4) as u64);
        // Only the output is device memory. A card also has a copy of the parameter, and so has a device on which the
        // host's writes must be flushed.
        let copied = device == "sim:1" || !context.info().memory.shares_host_memory();
        let least = (n * if copied { 8 } else { 4 }) as u64;
        let grown = after.allocated - before.allocated;
        assert!((least..least + (n * 2) as u64).contains(&grown), "{device}: {grown}");
        check_messages(&session);
    }
}

#[test]
fn the_environment_names_the_device() {
    use crate::registry::DEVICE_VARIABLE;
    const NAME: &str = "session::tests::the_environment_names_the_device";
    let apis = |device: Option<&str>| {
        let builder = Session::builder().graph(graph());
        let builder = device.into_iter().fold(builder, |b, d| b.device(d));
        let session = builder.build().unwrap();
        session.devices().map(|d| d.api).collect::<Vec<_>>()
    };
    // The environment of this process stays unchanged: the test runs itself with another one.
    if std::env::var(DEVICE_VARIABLE).as_deref() == Ok("sim:0") {
        assert_eq!(apis(None)[0], "sim");
        assert_eq!(apis(Some("cpu")), ["cpu"]);
        return;
    }
    let test = std::process::Command::new(std::env::current_exe().unwrap())
        .args(["--exact", NAME])
        .env(DEVICE_VARIABLE, "sim:0")
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&test.stdout);
    assert!(test.status.success() && said.contains("1 passed"), "{said}");
}

/// A tensor may begin at any byte of the caller's memory.
#[test]
fn tensors_at_odd_addresses() {
    for device in ["cpu", "sim", "vulkan"] {
        let session = session(device);
        for offset in [0usize, 1, 2, 4, 6, 12] {
            let (n, m) = (70, 300);
            let x: Vec<f32> = (0..n * m).map(|i| (i % 13) as f32).collect();
            let want = expected(&x, n, m);
            let at = |bytes: usize| {
                let range = crate::memory::range::ByteRange::new(offset as u64, (offset + bytes) as u64);
                (HostRegion::new(offset + bytes).unwrap(), range)
            };
            let ((mut from, from_range), (to, to_range)) = (at(4 * n * m), at(4 * want.len()));
            from.as_mut_slice()[offset..].copy_from_slice(bytemuck::cast_slice(&x));
            let (from, to) = (from.into_shared(), to.into_shared());
            let mut binding = session
                .bind()
                .input("x", Memory::region_range(&from, from_range).shape(Shape::new([n, m]).unwrap()))
                .output("y", Memory::region_range(&to, to_range))
                .build()
                .unwrap();
            binding.run().unwrap();
            let got = to.read().unwrap();
            let want: &[u8] = bytemuck::cast_slice(&want);
            assert!(&got[offset..offset + want.len()] == want, "{device}, offset {offset}");
        }
        check_messages(&session);
    }
}

/// A product reads its operands repeatedly, which over a bus costs more than a copy; a sum reads them once.
#[test]
fn what_an_operator_reads_again_is_copied_over_the_bus_once() {
    const N: usize = 256;
    for (op, again) in [("MatMul", true), ("Add", false)] {
        let mut g = GraphBuilder::new("one operator");
        let ids = ["a", "b"].map(|name| g.input(name, DType::F32, [N.into(), N.into()]));
        let row = crate::ops::find("", op).unwrap();
        let attrs = crate::ops::AttrMap::new();
        let op = (row.read)(&mut crate::ops::AttrReader::new(&attrs, 1, 1), 17).unwrap();
        let y = g.op(op, &ids);
        g.output("y", y);
        let session = Session::builder().graph(g.build().unwrap()).device("sim:discrete").build().unwrap();
        let region = || HostRegion::new(4 * N * N).unwrap().into_shared();
        let (a, b, y) = (region(), region(), region());
        let binding = session.bind().input("a", Memory::region(&a)).input("b", Memory::region(&b));
        let binding = binding.output("y", Memory::region(&y)).build().unwrap();
        let paths: Vec<Path> = binding.verdicts().map(|v| v.path).collect();
        let operand = if again { Path::ImportedDma } else { Path::Imported };
        assert_eq!(paths, [operand, operand, Path::Imported]);
        let reads: Vec<bool> = binding.plan().inputs.iter().map(|io| io.reads > 1).collect();
        assert_eq!(reads, [again, again]);
    }
}
