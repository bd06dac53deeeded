//! What sessions share, and what has no memory before it is bound, by the process's own figures: virtual and resident
//! bytes, on every backend.
//!
//! Each backend has a process of its own, because that is what is measured.
//!
//! Linux alone: the figures are those of `/proc/self/status`.

#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

use std::sync::Arc;

use onepool::backend::ContextDesc;
use onepool::device::Context;
use onepool::ops::linalg::MatMul;
use onepool::ops::{self, Function, Operator};
use onepool::plan::Precision;
use onepool::registry::Registry;
use onepool::session::{ParamStore, SessionBuilder, SessionError, SharedArena};
use onepool::{DType, Error, Graph, GraphBuilder, HostRegion, Session, Tensor, TensorInfo};

#[path = "support/process.rs"]
mod process;

const MIB: u64 = 1 << 20;

/// One line of the process's figures, in bytes.
fn figure(name: &str) -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|l| l.strip_prefix(name).is_some_and(|l| l.starts_with(':'))).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() * 1024
}

fn open(device: &str) -> Context {
    Registry::with_defaults().open(device, &ContextDesc::default()).unwrap()
}

fn session(graph: Graph, context: &Context) -> SessionBuilder {
    Session::builder().graph(graph).context(context.clone()).fuse(false)
}

const LAZY: [&str; 8] = ["a", "b", "c", "d", "e", "f", "g", "h"];

/// Eight inputs of 124 MiB: neither address space nor pages for them until they are bound, and a run names them.
fn lazy(device: &str) {
    let graph = |n: usize| {
        let mut g = GraphBuilder::new("g");
        let mut y = g.input("x", DType::F32, [1.into()]);
        for name in LAZY {
            let lazy = g.lazy_input(name, DType::F32, [n.into()]);
            y = g.op(ops::add(), &[y, lazy]);
        }
        g.output("y", y);
        g.build().unwrap()
    };
    let context = open(device);
    // What the driver needs for the kernel.
    let all: Vec<_> = LAZY.iter().map(|name| (*name, ones(&[64]))).chain([("x", ones(&[1]))]).collect();
    drop(run(session(graph(64), &context), &all));
    let n = 31 << 20;
    let info = |n: usize| TensorInfo::new(DType::F32, onepool::Shape::new([n]).unwrap());
    let unbound = || {
        let mut large = session(graph(n), &context).build().unwrap();
        large.set_input("x", &ones(&[1])).unwrap();
        let infos: Vec<TensorInfo> = [info(1)].into_iter().chain(LAZY.iter().map(|_| info(n))).collect();
        large.plan(&infos).unwrap();
        let error = large.run().unwrap_err();
        let named =
            |e: &Error| matches!(e, Error::Session(SessionError::Unbound { names }) if names == &LAZY);
        assert!(named(&error), "{error}");
        large
    };
    // A new thread may take address space of its own: the least of several.
    let mut least = (u64::MAX, u64::MAX);
    for _ in 0..6 {
        let before = (figure("VmSize"), figure("VmRSS"));
        let _large = unbound();
        let grown = |name: &str, before: u64| figure(name).saturating_sub(before);
        least = (least.0.min(grown("VmSize", before.0)), least.1.min(grown("VmRSS", before.1)));
    }
    let (size, rss) = least;
    assert!(size < 32 * MIB && rss < 8 * MIB, "{device}: {size} bytes of address space, {rss} resident");
    let usage = context.usage();
    assert!(usage.allocated + usage.imported < MIB, "{device}: {usage:?}");
}

fn ones(dims: &[usize]) -> Tensor {
    Tensor::new(dims.to_vec(), &vec![1.0f32; dims.iter().product()]).unwrap()
}

fn run(builder: SessionBuilder, inputs: &[(&str, Tensor)]) -> Session {
    let mut session = builder.build().unwrap();
    for (name, value) in inputs {
        session.set_input(name, value).unwrap();
    }
    session.run().unwrap();
    session
}

/// A matrix of 32 MiB that two models read: resident bytes of the second, in a store of its own or in the first's.
fn second_model(device: &str, shared: bool) -> (u64, u64) {
    let (rows, columns) = (2048usize, 4096usize);
    let graph = |batch: usize, w: &Tensor| {
        let mut g = GraphBuilder::new("product");
        let x = g.input("x", DType::F32, [batch.into(), rows.into()]);
        let w = g.constant("w", w.clone());
        let y = g.op(Arc::new(MatMul::default()) as Arc<dyn Operator>, &[x, w]);
        g.output("y", y);
        g.build().unwrap()
    };
    let (context, store) = (open(device), ParamStore::new());
    // Each model has bytes of its own, as if loaded from its own file.
    let model = |batch: usize, store: &Arc<ParamStore>| {
        let builder = session(graph(batch, &ones(&[rows, columns])), &context).params(Arc::clone(store));
        let session = run(builder, &[("x", ones(&[batch, rows]))]);
        assert_eq!(session.get_output("y").unwrap().as_slice::<f32>().unwrap()[7], rows as f32);
        session
    };
    let _first = model(1, &store);
    // Once more, for the kernels of the other batch.
    drop(model(3, &store));
    let (before, held) = (figure("VmRSS"), context.usage());
    let _second = model(3, &if shared { Arc::clone(&store) } else { ParamStore::new() });
    let now = context.usage();
    let held = (now.allocated + now.imported).saturating_sub(held.allocated + held.imported);
    (figure("VmRSS").saturating_sub(before), held)
}

/// Resident and allocated bytes of models for batches 1, 4 and 16 that were run in turn, and what the intermediate
/// tensors of the two smaller ones take.
fn batches(device: &str, shared: bool) -> (u64, u64, u64) {
    const LEN: usize = 1 << 19;
    let graph = |batch: usize| {
        let mut g = GraphBuilder::new("chain");
        let mut y = g.input("x", DType::F32, [batch.into(), LEN.into()]);
        for op in [Function::Abs, Function::Neg, Function::Abs] {
            y = g.op(ops::unary(op), &[y]);
        }
        g.output("y", y);
        g.build().unwrap()
    };
    let build = |batch: usize, context: &Context, arena: &Arc<SharedArena>| {
        let builder = session(graph(batch), context);
        let builder = if shared { builder.shared_arena(Arc::clone(arena)) } else { builder };
        let session = run(builder, &[("x", ones(&[batch, LEN]))]);
        assert_eq!(session.get_output("y").unwrap().as_slice::<f32>().unwrap()[LEN - 1], 1.0);
        session
    };
    // What a driver loads for the kernels; a context keeps blocks of memory, so that the one measured is new.
    let (context, arena) = (open(device), SharedArena::new());
    drop([1, 4, 16].map(|batch| build(batch, &context, &arena)));
    drop((context, arena));
    let (context, arena) = (open(device), SharedArena::new());
    let (before, held) = (figure("VmRSS"), context.usage().allocated);
    let sessions = [16, 4, 1].map(|batch| build(batch, &context, &arena));
    let planned = |s: &Session| s.binding().unwrap().plan().arenas.iter().map(|a| a.bytes).sum::<u64>();
    let smaller = sessions[1..].iter().map(planned).sum();
    let grown = figure("VmRSS").saturating_sub(before);
    (grown, context.usage().allocated.saturating_sub(held), smaller)
}

/// A model with two equal matrices of 32 MiB of `float32`: resident bytes of a session, and of a second one that shares its
/// parameters.
fn model_of(device: &str, precision: Precision) -> (u64, u64) {
    let n = 2896usize;
    let graph = || {
        let mut g = GraphBuilder::new("products");
        let mut y = g.input("x", DType::F32, [4.into(), n.into()]);
        for i in 0..2 {
            // Pages that go back when they are freed, as a file's do.
            let mut region = HostRegion::new(n * n * 4).unwrap();
            bytemuck::cast_slice_mut::<u8, f32>(region.as_mut_slice()).fill(1.0);
            let info = TensorInfo::new(DType::F32, onepool::Shape::new([n, n]).unwrap());
            let w = g.constant(format!("w{i}"), Tensor::in_region(info, Arc::new(region), 0).unwrap());
            y = g.op(Arc::new(MatMul::default()) as Arc<dyn Operator>, &[y, w]);
        }
        g.output("y", y);
        g.build().unwrap()
    };
    let (context, store) = (open(device), ParamStore::new());
    let model = || {
        let builder = session(graph(), &context).params(Arc::clone(&store)).precision(precision);
        let x = Tensor::new([4, n], &vec![1.0 / n as f32; 4 * n]).unwrap();
        let session = run(builder, &[("x", x)]);
        let y = session.get_output("y").unwrap().as_slice::<f32>().unwrap()[7];
        assert!((y - n as f32).abs() < 0.01 * n as f32, "{y}");
        session
    };
    // The kernels.
    drop(model());
    let before = figure("VmRSS");
    let _first = model();
    let first = figure("VmRSS").saturating_sub(before);
    let _second = model();
    (first, figure("VmRSS").saturating_sub(before + first))
}

/// Names the device to the process that measures it.
const DEVICE: &str = "RESIDENT_DEVICE";

#[test]
fn what_is_shared_is_in_memory_once_and_what_is_lazy_is_not() {
    if let Ok(device) = std::env::var(DEVICE) {
        return measure(&device);
    }
    let required = std::env::var("REQUIRE_BACKENDS").unwrap_or_default();
    for device in ["cpu", "sim", "sim:discrete", "vulkan", "opencl"] {
        match Registry::with_defaults().open(device, &ContextDesc::default()) {
            Ok(_) => {}
            Err(error) if required.contains(device) => panic!("{device}: {error}"),
            Err(error) => {
                eprintln!("not tested: {error}");
                continue;
            }
        }
        process::alone("what_is_shared_is_in_memory_once_and_what_is_lazy_is_not", DEVICE, device);
    }
}

fn measure(device: &str) {
    lazy(device);
    let (apart, shared) = (second_model(device, false), second_model(device, true));
    let matrix = 32 * MIB;
    assert!(apart.0 >= matrix * 3 / 4, "{device}: {apart:?} resident and allocated apart");
    assert!(shared.0 < matrix / 4 && shared.1 < matrix / 4, "{device}: {shared:?} shared");
    let full = model_of(device, Precision::F32);
    let half = model_of(device, Precision::F16);
    let shared = full.1.max(half.1) < matrix / 8;
    assert!(shared && half.0 < full.0 * 3 / 4, "{device}: {full:?} resident, in half precision {half:?}");
    // The driver's own memory varies between runs by a third of what is told apart here: one of three must tell.
    let told = (0..3).any(|_| {
        let (apart, shared) = (batches(device, false), batches(device, true));
        assert!(apart.2 >= 5 * 2 * MIB && apart.2 == shared.2, "{device}: {apart:?} {shared:?}");
        assert_eq!(apart.1 - shared.1, apart.2, "{device}: {apart:?} {shared:?}");
        eprintln!("{device}: {apart:?} {shared:?}");
        apart.0 >= shared.0 + apart.2 / 4
    });
    assert!(
        told,
        "{device}: the intermediate tensors of smaller batches are resident in addition to the largest one's"
    );
}
