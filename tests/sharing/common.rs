//! Contexts, operators and graphs of the tests.

use std::sync::Arc;

use onepool::backend::ContextDesc;
use onepool::device::Context;
use onepool::ops::{self, AttrMap, AttrReader, Operator};
use onepool::registry::Registry;
use onepool::{DType, Graph, GraphBuilder, HostRegion, Session, Shape, SharedRegion, Tensor};

/// The devices that every test runs on; of the simulated ones, one has memory that must be flushed and invalidated,
/// and one has memory of its own.
pub(crate) const DEVICES: [&str; 5] = ["cpu", "sim", "sim:noncoherent", "sim:discrete", "vulkan"];

pub(crate) fn open(device: &str) -> Context {
    let desc = ContextDesc { validation: true, ..ContextDesc::default() };
    Registry::with_defaults().open(device, &desc).unwrap()
}

/// No message of the validation layer, which checks synchronization too.
pub(crate) fn check_messages(context: &Context) {
    assert_eq!(context.validation_messages(), Vec::<String>::new());
}

/// The operator `name` without attributes.
pub(crate) fn op(name: &str) -> Arc<dyn Operator> {
    (ops::find("", name).unwrap().read)(&mut AttrReader::new(&AttrMap::new(), 1, 1), 17).unwrap()
}

pub(crate) fn tensor(dims: &[usize], values: &[f32]) -> Tensor {
    Tensor::new(dims.to_vec(), values).unwrap()
}

pub(crate) fn shape(dims: &[usize]) -> Shape {
    Shape::new(dims.to_vec()).unwrap()
}

pub(crate) fn region(values: &[f32]) -> Arc<SharedRegion> {
    HostRegion::from_bytes(bytemuck::cast_slice(values)).unwrap().into_shared()
}

pub(crate) fn floats(region: &SharedRegion) -> Vec<f32> {
    region.read().unwrap().as_slice_of::<f32>().unwrap().to_vec()
}

/// Whole numbers from -4 to 4, so that sums are exact in any order.
pub(crate) fn numbers(n: usize, seed: usize) -> Vec<f32> {
    (0..n).map(|i| ((i * 7919 + seed * 104_729) % 9) as f32 - 4.0).collect()
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
