//! onepool on an instance, a device, a queue, buffers and semaphores that belong to an application.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
#![allow(unsafe_code, reason = "an application's own calls of Vulkan")]

mod app;
mod devices;
mod exclusive;
mod images;
mod inlays;
mod memory;
mod ownership;
mod refusals;
mod semaphores;
#[path = "../../examples/vulkan_application.rs"]
mod vulkan_application;
mod watch;

use onepool::device::Context;
use onepool::{DType, Graph, GraphBuilder, Session, ops};

/// y = x + x over `n` float32.
pub(crate) fn double(n: u64) -> Graph {
    let mut graph = GraphBuilder::new("double");
    let x = graph.input("x", DType::F32, [(n as usize).into()]);
    let y = graph.op(ops::add(), &[x, x]);
    graph.output("y", y);
    graph.build().unwrap()
}

pub(crate) fn session(context: &Context, graph: Graph) -> Session {
    Session::builder().graph(graph).context(context.clone()).build().unwrap()
}

#[test]
fn the_example_gives_what_it_says() {
    let _alone = app::alone();
    assert_eq!(vulkan_application::run().unwrap(), [3.0; 1 << 16]);
}
