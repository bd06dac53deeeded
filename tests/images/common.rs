//! Devices, graphs and kernels of the tests.

#[path = "../support/foreign.rs"]
mod foreign;
#[path = "../support/glsl.rs"]
mod glsl;
#[path = "../support/recorded.rs"]
mod recorded;

use std::sync::{Arc, OnceLock};

use onepool::backend::ContextDesc;
use onepool::device::Context;
use onepool::graph::StorageScope;
use onepool::kernel::KernelSource;
use onepool::ops::{self, Function, Operator};
use onepool::registry::Registry;
use onepool::{DType, Graph, GraphBuilder, Session, Tensor};

use self::recorded::RECORDED;

/// The devices that every test runs on; opencl where there is one, and there must be one if `REQUIRE_BACKENDS` names
/// it.
pub(crate) fn devices() -> &'static [&'static str] {
    static DEVICES: OnceLock<Vec<&str>> = OnceLock::new();
    DEVICES.get_or_init(|| {
        let mut devices = vec!["cpu", "sim", "sim:noncoherent", "sim:discrete", "vulkan"];
        let required = std::env::var("REQUIRE_BACKENDS").unwrap_or_default();
        match Registry::with_defaults().open("opencl", &ContextDesc::default()) {
            Ok(_) => devices.push("opencl"),
            Err(error) if required.contains("opencl") => panic!("opencl: {error}"),
            Err(error) => eprintln!("not tested: {error}"),
        }
        devices.extend(RECORDED);
        devices
    })
}

/// Those of them that run SPIR-V.
pub(crate) fn spirv_devices() -> impl Iterator<Item = &'static str> {
    devices().iter().copied().filter(|device| ["vulkan", "opencl"].contains(device))
}

pub(crate) fn open(device: &str) -> Context {
    let desc = ContextDesc { validation: device != "opencl", ..ContextDesc::default() };
    Registry::with_defaults().open(device, &desc).unwrap()
}

/// Every device, opened once for all tests: kernels are made once.
pub(crate) fn contexts() -> &'static [(&'static str, Context)] {
    static CONTEXTS: OnceLock<Vec<(&str, Context)>> = OnceLock::new();
    CONTEXTS.get_or_init(|| devices().iter().map(|device| (*device, open(device))).collect())
}

/// No message of the validation layer, which checks synchronization too, or of the simulation.
pub(crate) fn check_messages(context: &Context) {
    assert_eq!(context.validation_messages(), Vec::<String>::new());
}

pub(crate) fn session(graph: Graph, context: &Context) -> Session {
    Session::builder().graph(graph).context(context.clone()).fuse(false).fallback(false).build().unwrap()
}

/// Numbers between -1 and 1 with a few bits, so that interpolating between them is nearly exact.
pub(crate) fn numbers(n: usize, seed: usize) -> Vec<f32> {
    (0..n).map(|i| ((i * 7919 + seed * 104_729) % 257) as f32 / 128.0 - 1.0).collect()
}

pub(crate) fn tensor(dtype: DType, dims: &[usize], seed: usize) -> Tensor {
    let values = numbers(dims.iter().product(), seed);
    match dtype {
        DType::F16 => {
            let halves: Vec<half::f16> = values.into_iter().map(half::f16::from_f32).collect();
            Tensor::new(dims.to_vec(), &halves).unwrap()
        }
        _ => Tensor::new(dims.to_vec(), &values).unwrap(),
    }
}

/// `y = op(|x|, constants)`, with the first operand of `op` stored as `scope` says.
pub(crate) fn graph(
    x: &Tensor,
    op: Arc<dyn Operator>,
    constants: &[Option<Tensor>],
    scope: StorageScope,
) -> Graph {
    let mut g = GraphBuilder::new("image");
    let dims: Vec<_> = x.shape().dims().iter().map(|d| (*d).into()).collect();
    let id = g.input("x", x.dtype(), dims);
    let t = g.op(ops::unary(Function::Abs), &[id]);
    g.rename(t, "t");
    g.set_scope(t, scope);
    let mut inputs = vec![Some(t)];
    for (i, c) in constants.iter().enumerate() {
        inputs.push(c.clone().map(|c| g.constant(format!("c{i}"), c)));
    }
    let y = g.declare("y");
    g.node_into("op", op, &inputs, &[Some(y)]);
    g.output("y", y);
    g.build().unwrap()
}

pub(crate) fn run(session: &mut Session, x: &Tensor) -> Vec<f32> {
    session.set_input("x", x).unwrap();
    session.run().unwrap();
    session.get_output("y").unwrap().to_f32s().unwrap()
}

/// The largest difference of two lists of numbers.
pub(crate) fn distance(a: &[f32], b: &[f32]) -> f32 {
    assert_eq!(a.len(), b.len());
    a.iter().zip(b).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max)
}

/// A kernel of the caller's, from GLSL.
pub(crate) fn kernel(name: &'static str, glsl: &str) -> KernelSource {
    foreign::spirv(name, glsl::compile(glsl)).unwrap()
}
