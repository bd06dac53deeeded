//! The backend registers at run time and runs models, with the results of onepool's own.

use onepool::backend::ContextDesc;
use onepool::registry::Registry;
use onepool::{DType, GraphBuilder, Session, Tensor, ops};
use toy_backend::ToyDriver;

/// The registry with the driver of this crate beside the built-in ones.
fn registry() -> Registry {
    let mut registry = Registry::with_defaults();
    registry.register(Box::new(ToyDriver));
    registry
}

/// The outputs of the model at `path` on a device, for inputs of a fixed pattern.
fn run(path: &str, device: &str) -> Vec<Tensor> {
    let context = registry().open(device, &ContextDesc::default()).unwrap();
    let mut session = Session::builder().model(path).context(context).build().unwrap();
    for input in session.inputs() {
        let info = input.info.unwrap();
        let elements: Vec<f32> = (0..info.len()).map(|i| (i * 37 % 101) as f32 / 101.0).collect();
        session.set_input(&input.name, &Tensor::from_bytes(info, bytemuck::cast_slice(&elements)).unwrap()).unwrap();
    }
    session.run().unwrap();
    assert!(session.devices().all(|info| device.starts_with(info.api)));
    let outputs = session.outputs();
    outputs.iter().map(|output| session.get_output(&output.name).unwrap()).collect()
}

#[test]
fn a_graph_of_the_builder() {
    let mut graph = GraphBuilder::new("double");
    let x = graph.input("x", DType::F32, [8.into()]);
    let y = graph.op(ops::add(), &[x, x]);
    graph.output("y", y);
    let context = registry().open("toy:0", &ContextDesc::default()).unwrap();
    assert_eq!(context.info().api, "toy");
    let mut session = Session::builder().graph(graph.build().unwrap()).context(context).build().unwrap();
    for round in 0..3 {
        let x: Vec<f32> = (0..8).map(|i| (i + round) as f32).collect();
        let info = session.inputs()[0].info.clone().unwrap();
        session.set_input("x", &Tensor::from_bytes(info, bytemuck::cast_slice(&x)).unwrap()).unwrap();
        session.run().unwrap();
        let doubled: Vec<f32> = x.iter().map(|x| 2.0 * x).collect();
        assert_eq!(session.get_output("y").unwrap().to_f32s().unwrap(), doubled);
    }
}

#[test]
fn a_device_that_is_not_there() {
    let error = registry().open("toy:1", &ContextDesc::default()).unwrap_err().to_string();
    assert!(error.contains("toy has no device \"1\""), "{error}");
}
