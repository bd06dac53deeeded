//! Devices, graphs and frames of the tests.

use std::sync::OnceLock;

use onepool::backend::ContextDesc;
use onepool::device::Context;
use onepool::frame::FrameSpec;
use onepool::registry::Registry;
use onepool::{DType, Graph, GraphBuilder, Session, ops};

/// The devices of the tests; shaders run on the last ones. opencl where there is one, and there must be one if
/// `REQUIRE_BACKENDS` names it.
pub(crate) fn contexts() -> &'static [(&'static str, Context)] {
    static CONTEXTS: OnceLock<Vec<(&str, Context)>> = OnceLock::new();
    CONTEXTS.get_or_init(|| {
        let mut contexts: Vec<_> =
            ["cpu", "sim", "sim:noncoherent", "sim:discrete", "vulkan"].map(|name| (name, open(name))).into();
        let required = std::env::var("REQUIRE_BACKENDS").unwrap_or_default();
        match Registry::with_defaults().open("opencl", &ContextDesc::default()) {
            Ok(context) => contexts.push(("opencl", context)),
            Err(error) if required.contains("opencl") => panic!("opencl: {error}"),
            Err(error) => eprintln!("not tested: {error}"),
        }
        contexts
    })
}

/// Vulkan's validation, of synchronization too, is on.
pub(crate) fn open(device: &str) -> Context {
    let desc = ContextDesc { validation: device != "opencl", ..ContextDesc::default() };
    Registry::with_defaults().open(device, &desc).unwrap()
}

pub(crate) fn check_messages(context: &Context) {
    assert_eq!(context.validation_messages(), Vec::<String>::new());
}

/// A model that passes its picture on.
pub(crate) fn identity(dtype: DType, dims: &[usize]) -> Graph {
    let mut g = GraphBuilder::new("identity");
    let x = g.input("image", dtype, dims.iter().map(|d| (*d).into()));
    let y = g.op(operator("Identity"), &[x]);
    let shape = onepool::SymShape(dims.iter().map(|d| (*d).into()).collect());
    g.set_info(y, Some(dtype), Some(shape));
    g.output("result", y);
    g.build().unwrap()
}

/// An operator of ONNX without attributes.
pub(crate) fn operator(name: &str) -> std::sync::Arc<dyn ops::Operator> {
    let (none, row) = (ops::AttrMap::default(), ops::find("", name).unwrap());
    (row.read)(&mut ops::AttrReader::new(&none, 1, 1), 18).unwrap()
}

/// Without the CPU to fall back to: every device has the kernels.
pub(crate) fn session(
    graph: Graph,
    context: &Context,
    input: Option<FrameSpec>,
    output: Option<FrameSpec>,
) -> Session {
    let mut builder = Session::builder().graph(graph).context(context.clone()).fallback(false);
    builder = builder.copy_threshold(0);
    if let Some(frame) = input {
        builder = builder.frame_input("image", frame);
    }
    if let Some(frame) = output {
        builder = builder.frame_output("result", frame);
    }
    builder.build().unwrap()
}

/// Bytes in no order.
pub(crate) fn bytes(n: usize, seed: u64) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    (0..n)
        .map(|_| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            (state >> 40) as u8
        })
        .collect()
}
