//! Contexts, operators and graphs of the tests.

#[path = "../support/recorded.rs"]
mod recorded;
#[path = "../support/values.rs"]
mod values;

use std::sync::OnceLock;

use onepool::backend::ContextDesc;
use onepool::device::Context;
use onepool::registry::Registry;
use onepool::{DType, Graph, GraphBuilder, Session};

use self::recorded::RECORDED;
pub(crate) use self::values::{floats, numbers, op, region, shape, tensor};

/// The devices that every test runs on; of the simulated ones, one has memory that must be flushed and invalidated,
/// one has memory of its own, and the others are recorded drivers. opencl where there is one, and there must be one if `REQUIRE_BACKENDS` names it.
pub(crate) fn devices() -> impl Iterator<Item = &'static str> {
    static OPENCL: OnceLock<bool> = OnceLock::new();
    let has_opencl = OPENCL.get_or_init(|| {
        let required = std::env::var("REQUIRE_BACKENDS").unwrap_or_default();
        match Registry::with_defaults().open("opencl", &ContextDesc::default()) {
            Ok(_) => true,
            Err(error) if required.contains("opencl") => panic!("opencl: {error}"),
            Err(error) => {
                eprintln!("not tested: {error}");
                false
            }
        }
    });
    let opencl = has_opencl.then_some("opencl");
    ["cpu", "sim", "sim:noncoherent", "sim:discrete", "vulkan"].into_iter().chain(opencl).chain(RECORDED)
}

pub(crate) fn open(device: &str) -> Context {
    let desc = ContextDesc { validation: device != "opencl", ..ContextDesc::default() };
    Registry::with_defaults().open(device, &desc).unwrap()
}

/// No message of the validation layer, which checks synchronization too.
pub(crate) fn check_messages(context: &Context) {
    assert_eq!(context.validation_messages(), Vec::<String>::new());
}

/// Bytes that a context has now: allocated and imported.
pub(crate) fn held(context: &Context) -> u64 {
    let usage = context.usage();
    usage.allocated + usage.imported
}

/// `y = |x|`, for `n` numbers.
pub(crate) fn abs(n: usize) -> Graph {
    let mut g = GraphBuilder::new("abs");
    let x = g.input("x", DType::F32, [n.into()]);
    let y = g.op(op("Abs"), &[x]);
    g.output("y", y);
    g.build().unwrap()
}

pub(crate) fn session(graph: Graph, context: &Context) -> Session {
    Session::builder().graph(graph).context(context.clone()).build().unwrap()
}

/// `y = x w0 w1` for `batch` rows, with matrices of `width` by `width` as inputs, as TVM's parameters are.
pub(crate) fn two_products(batch: usize, width: usize) -> Graph {
    let mut g = GraphBuilder::new("net");
    let x = g.input("x", DType::F32, [batch.into(), width.into()]);
    let [w0, w1] = ["w0", "w1"].map(|name| g.input(name, DType::F32, [width.into(), width.into()]));
    let a = g.op(op("MatMul"), &[x, w0]);
    let y = g.op(op("MatMul"), &[a, w1]);
    g.output("y", y);
    g.build().unwrap()
}
