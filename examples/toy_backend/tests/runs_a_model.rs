//! The backend registers at run time and runs models, with the results of onepool's own.

use std::path::Path;

use onepool::backend::ContextDesc;
use onepool::registry::Registry;
use onepool::{DType, GraphBuilder, Session, Tensor, ops};
use toy_backend::ToyDriver;

/// The registry with the driver of this crate next to the built-in ones.
fn registry() -> Registry {
    let mut registry = Registry::with_defaults();
    registry.register(Box::new(ToyDriver));
    registry
}

/// The denoising model on a device.
fn denoise(device: &str, picture: &Tensor) -> Tensor {
    let model = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models/denoise.onnx");
    let context = registry().open(device, &ContextDesc::default()).unwrap();
    let mut session = Session::builder().model(model).context(context).build().unwrap();
    assert!(session.devices().all(|info| info.api == device));
    session.set_input("noisy", picture).unwrap();
    session.run().unwrap();
    let output = session.outputs()[0].name.clone();
    session.get_output(&output).unwrap()
}

#[test]
fn a_model_from_a_file_gives_what_the_cpu_gives() {
    let elements: Vec<f32> = (0..3 * 32 * 48).map(|i| (i * 37 % 101) as f32 / 101.0).collect();
    let picture = Tensor::new([1, 3, 32, 48], &elements).unwrap();
    let (toy, cpu) = (denoise("toy", &picture), denoise("cpu", &picture));
    assert_eq!((toy.info(), toy.bytes()), (cpu.info(), cpu.bytes()));
    let result = toy.to_f32s().unwrap();
    assert!(result.iter().all(|x| x.is_finite()) && result.iter().any(|x| *x != result[0]));
}

#[test]
fn a_graph_runs_again_on_new_inputs() {
    let mut graph = GraphBuilder::new("double");
    let x = graph.input("x", DType::F32, [8.into()]);
    let y = graph.op(ops::add(), &[x, x]);
    graph.output("y", y);
    let context = registry().open("toy:0", &ContextDesc::default()).unwrap();
    let mut session = Session::builder().graph(graph.build().unwrap()).context(context).build().unwrap();
    for round in 0..3 {
        let x: Vec<f32> = (0..8).map(|i| (i + round) as f32).collect();
        session.set_input("x", &Tensor::new([8], &x).unwrap()).unwrap();
        session.run().unwrap();
        let doubled: Vec<f32> = x.iter().map(|x| 2.0 * x).collect();
        assert_eq!(session.get_output("y").unwrap().to_f32s().unwrap(), doubled);
    }
}

#[test]
fn a_device_that_is_not_there_is_an_error_with_what_there_is() {
    let error = registry().open("toy:1", &ContextDesc::default()).unwrap_err().to_string();
    assert_eq!(error, "toy has no device \"1\"; it has 0 (toy)");
}
