//! What the runtime adds to the work itself: bound and copied runs, planning, pointwise chains fused and apart,
//! recovery.
//!
//! `cargo bench --bench runs`; a device that is not there is left out with a note.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a benchmark fails by panicking")]

use std::hint::black_box;
use std::sync::Arc;
use std::time::Duration;

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use onepool::backend::{ContextDesc, DeviceInfo};
use onepool::device::Context;
use onepool::graph::TensorId;
use onepool::ops::linalg::MatMul;
use onepool::ops::pointwise::{Function, Pointwise};
use onepool::ops::reduce::{Reduce, ReduceKind};
use onepool::ops::{self, BinaryFunction, Operator};
use onepool::plan::{Assignment, Compiler, PlanCache, PlanOptions, PlanRequest};
use onepool::registry::Registry;
use onepool::{DType, Graph, GraphBuilder, HostRegion, Memory, Session, Shape, Tensor, TensorInfo};

const DEVICES: [&str; 2] = ["cpu", "vulkan"];

fn open(device: &str) -> Option<Context> {
    match Registry::with_defaults().open(device, &ContextDesc::default()) {
        Ok(context) => Some(context),
        Err(e) => {
            eprintln!("without {device}: {e}");
            None
        }
    }
}

fn unary(op: Function) -> Arc<dyn Operator> {
    Arc::new(Pointwise::new(op))
}

/// `y = leaky_relu(x)`
fn scale(elements: usize) -> Graph {
    let mut g = GraphBuilder::new("scale");
    let x = g.input("x", DType::F32, [elements.into()]);
    let y = g.op(unary(Function::LeakyRelu), &[x]);
    g.output("y", y);
    g.build().unwrap()
}

fn transfers(c: &mut Criterion) {
    let mut group = c.benchmark_group("run");
    for device in DEVICES {
        let Some(context) = open(device) else { continue };
        for mib in [1usize, 24] {
            let elements = mib << 18;
            group.throughput(Throughput::Bytes(8 * elements as u64));
            let mut session =
                Session::builder().graph(scale(elements)).context(context.clone()).build().unwrap();
            let x: Vec<f32> = (0..elements).map(|i| (i % 251) as f32).collect();
            let value = Tensor::new([elements], &x).unwrap();
            let region = HostRegion::from_bytes(bytemuck::cast_slice(&x)).unwrap().into_shared();
            let result = HostRegion::new(4 * elements).unwrap().into_shared();
            let bind = session.bind().input("x", Memory::region(&region));
            let mut binding = bind.output("y", Memory::region(&result)).build().unwrap();
            group.bench_function(BenchmarkId::new(format!("{device}/bound"), format!("{mib} MiB")), |b| {
                b.iter(|| binding.run().unwrap());
            });
            group.bench_function(BenchmarkId::new(format!("{device}/copied"), format!("{mib} MiB")), |b| {
                b.iter(|| {
                    session.set_input("x", &value).unwrap();
                    session.run().unwrap();
                    black_box(session.get_output("y").unwrap())
                });
            });
        }
    }
    group.finish();
}

/// What a network of today has between its products: normalization, gates and residuals.
fn blocks(g: &mut GraphBuilder, mut x: TensorId, count: usize) -> TensorId {
    for k in 0..count {
        let mean = Reduce {
            kind: ReduceKind::Mean,
            axes: Some(vec![-1]),
            keep_dims: true,
            noop_with_empty_axes: false,
        };
        let mean: Arc<dyn Operator> = Arc::new(mean);
        let m = g.op(Arc::clone(&mean), &[x]);
        let centred = g.op(ops::sub(), &[x, m]);
        let square = g.op(ops::mul(), &[centred, centred]);
        let variance = g.op(mean, &[square]);
        let epsilon = g.constant(format!("epsilon{k}"), Tensor::scalar(1e-5f32));
        let variance = g.op(ops::add(), &[variance, epsilon]);
        let deviation = g.op(unary(Function::Sqrt), &[variance]);
        let normal = g.op(ops::div(), &[centred, deviation]);
        let gate = g.op(unary(Function::Sigmoid), &[normal]);
        let gated = g.op(ops::mul(), &[normal, gate]);
        x = g.op(ops::add(), &[x, gated]);
    }
    x
}

fn planning(c: &mut Criterion) {
    let mut g = GraphBuilder::new("large");
    let x = g.input("x", DType::F32, [64.into(), 256.into()]);
    let y = blocks(&mut g, x, 400);
    g.output("y", y);
    let graph = g.build().unwrap();
    let info = TensorInfo::new(DType::F32, Shape::new([64, 256]).unwrap());
    let mut group = c.benchmark_group("plan");
    for device in DEVICES {
        let Some(context) = open(device) else { continue };
        let devices: [&DeviceInfo; 1] = [context.info()];
        for (name, fuse) in [("fused", true), ("as it is", false)] {
            let options = PlanOptions { fuse, ..PlanOptions::default() };
            let id = BenchmarkId::new(format!("{device}/{name}"), graph.nodes().len());
            group.bench_function(id, |b| {
                b.iter(|| {
                    let (devices, cache) = (&devices[..], PlanCache::default());
                    let (options, assignment) = (&options, Assignment::default());
                    let compiler = Compiler { devices, options, assignment, cache: &cache };
                    let outcome = compiler.compile(&PlanRequest::new(&graph, std::slice::from_ref(&info)));
                    outcome.unwrap().plan().unwrap()
                });
            });
        }
    }
    group.finish();
}

/// Chains as models have them, over `[1, 64, side, side]`: what follows a product.
fn chain(kind: &str, side: usize) -> Graph {
    let mut g = GraphBuilder::new(kind);
    let dims = [1, 64, side, side];
    let x = g.input("x", DType::F32, dims.map(Into::into));
    let r = g.input("r", DType::F32, dims.map(Into::into));
    let channel = |g: &mut GraphBuilder, name: &str, by: f32| {
        let values: Vec<f32> = (0..64).map(|i| by + i as f32 * 0.01).collect();
        g.constant(name, Tensor::new([64, 1, 1], &values).unwrap())
    };
    let y = match kind {
        "residual" => {
            let sum = g.op(ops::add(), &[x, r]);
            g.op(unary(Function::Relu), &[sum])
        }
        "scale and shift" => {
            let (scale, shift) = (channel(&mut g, "scale", 0.5), channel(&mut g, "shift", -0.3));
            let scaled = g.op(ops::mul(), &[x, scale]);
            let shifted = g.op(ops::add(), &[scaled, shift]);
            let sum = g.op(ops::add(), &[shifted, r]);
            g.op(unary(Function::Relu), &[sum])
        }
        _ => {
            let a = g.op(unary(Function::Tanh), &[x]);
            let b = g.op(unary(Function::Sigmoid), &[r]);
            let product = g.op(ops::mul(), &[a, b]);
            let by = g.constant("by", Tensor::scalar(0.7f32));
            let scaled = g.op(ops::binary(BinaryFunction::Mul), &[product, by]);
            g.op(ops::add(), &[scaled, x])
        }
    };
    g.output("y", y);
    g.build().unwrap()
}

fn chains(c: &mut Criterion) {
    let mut group = c.benchmark_group("pointwise");
    for device in DEVICES {
        let Some(context) = open(device) else { continue };
        for kind in ["residual", "scale and shift", "gates"] {
            // Rows of 113 do not begin at whole vectors.
            for side in [28usize, 112, 113] {
                for (name, fuse) in [("fused", true), ("apart", false)] {
                    let builder = Session::builder().graph(chain(kind, side)).context(context.clone());
                    let session = builder.fuse(fuse).build().unwrap();
                    let bytes = 4 * 64 * side * side;
                    let region =
                        |value: u8| HostRegion::from_bytes(&vec![value; bytes]).unwrap().into_shared();
                    let bind = session.bind().input("x", Memory::region(&region(0x3e)));
                    let bind = bind.input("r", Memory::region(&region(0x3d)));
                    let mut binding = bind.output("y", Memory::region(&region(0))).build().unwrap();
                    let id = BenchmarkId::new(format!("{device}/{kind}/{name}"), side);
                    group.bench_function(id, |b| b.iter(|| binding.run().unwrap()));
                }
            }
        }
    }
    group.finish();
}

/// Opening the device, planning, kernels, parameters and a binding, of 100 MB of parameters that are in memory.
fn recovery(c: &mut Criterion) {
    const SIDE: usize = 2048;
    const LAYERS: usize = 6;
    let mut group = c.benchmark_group("recover");
    group.sample_size(10);
    for device in DEVICES {
        if open(device).is_none() {
            continue;
        }
        let mut g = GraphBuilder::new("layers");
        let mut v = g.input("x", DType::F32, [1.into(), SIDE.into()]);
        for layer in 0..LAYERS {
            let weight: Vec<f32> = (0..SIDE * SIDE).map(|i| ((i + layer) % 3) as f32 - 1.0).collect();
            let w = g.constant(format!("w{layer}"), Tensor::new([SIDE, SIDE], &weight).unwrap());
            v = g.op(Arc::new(MatMul::default()) as Arc<dyn Operator>, &[v, w]);
        }
        g.output("y", v);
        let mut session = Session::builder().graph(g.build().unwrap()).device(device).build().unwrap();
        group.throughput(Throughput::Bytes(session.graph().constant_bytes()));
        session.set_input("x", &Tensor::new([1, SIDE], &[1.0f32; SIDE]).unwrap()).unwrap();
        session.run().unwrap();
        let before = session.get_output("y").unwrap();
        group.bench_function(device, |b| {
            b.iter(|| {
                session.recover().unwrap();
                black_box(session.bind().input("x", Memory::own()).build().unwrap());
            });
        });
        session.run().unwrap();
        assert!(session.get_output("y").unwrap().bytes() == before.bytes());
    }
    group.finish();
}

criterion_group! {
    name = benches;
    config = Criterion::default()
        .sample_size(20)
        .warm_up_time(Duration::from_millis(300))
        .measurement_time(Duration::from_millis(1000));
    targets = transfers, planning, chains, recovery
}
criterion_main!(benches);
