//! Kernels that the caller brings, by device and name.

use onepool::loader::tvm::device_type;
use onepool::loader::{FunctionTable, load_tvm_bytes};
use onepool::ops::custom::{Grid, KernelCall};
use onepool::plan::PlanError;
use onepool::tvm::GraphModule;
use onepool::{Error, Session};
use serde_json::{Value, json};

use crate::common::{check_messages, function, info, numbers, open_all, tensor};
use crate::foreign;
use crate::glsl::compile;

const N: usize = 300;

/// `y = 2 x` in SPIR-V.
fn doubled() -> KernelCall {
    let text = "#version 450
        layout(local_size_x = 64) in;
        layout(std430, binding = 0) readonly buffer X { float x[]; };
        layout(std430, binding = 1) writeonly buffer Y { float y[]; };
        void main() {
            uint i = gl_GlobalInvocationID.x;
            if (i < y.length()) y[i] = 2.0 * x[i];
        }";
    KernelCall::new(foreign::spirv("doubled", compile(text)).unwrap(), Grid::PerElement)
}

fn plus_one() -> KernelCall {
    KernelCall::native(function("plus one", |x, y| y.iter_mut().zip(x[0]).for_each(|(y, x)| *y = x + 1.0)))
}

/// `f(f(x))` on devices of two types.
fn twice(first: i32, second: i32) -> Value {
    let call = |name: &str, input: usize| {
        json!({"op": "tvm_op", "name": name, "inputs": [[input, 0, 0]], "attrs": {"func_name": "f",
            "flatten_data": "0", "num_inputs": "1", "num_outputs": "1"}})
    };
    json!({"nodes": [{"op": "null", "name": "x", "inputs": []}, call("a", 0), call("b", 1)], "arg_nodes": [0],
        "heads": [[2, 0, 0]], "node_row_ptr": [0, 1, 2, 3], "attrs": {"shape": ["list_shape", [[N], [N], [N]]],
        "dltype": ["list_str", ["float32", "float32", "float32"]], "storage_id": ["list_int", [0, 1, 2]],
        "device_index": ["list_int", [first, first, second]]}})
}

#[test]
fn two_devices_have_kernels_of_one_name() {
    let contexts = open_all(&["cpu", "vulkan"]);
    let mut functions = FunctionTable::new();
    functions.insert_for(device_type::CPU, "f", plus_one());
    functions.insert_for(device_type::VULKAN, "f", doubled());
    let x = numbers(N, 3);
    let (cpu, vulkan) = (device_type::CPU, device_type::VULKAN);
    for (first, second, f) in [
        (cpu, vulkan, (|x| 2.0 * (x + 1.0)) as fn(f32) -> f32),
        (vulkan, cpu, |x| 2.0 * x + 1.0),
        (cpu, cpu, |x| x + 2.0),
        (vulkan, vulkan, |x| 4.0 * x),
    ] {
        let mut module =
            GraphModule::create(&twice(first, second).to_string(), &functions, &contexts).unwrap();
        module.set_input("x", &tensor(&[N], &x)).unwrap();
        module.run().unwrap();
        let want: Vec<f32> = x.iter().map(|x| f(*x)).collect();
        assert_eq!(module.get_output(0).unwrap().as_slice::<f32>().unwrap(), want, "{first} {second}");
    }
    check_messages(&contexts);
}

#[test]
fn without_the_column_the_first_device_s_kernel_is_taken() {
    let mut functions = FunctionTable::new();
    functions.insert_for(device_type::CPU, "f", plus_one());
    functions.insert_for(device_type::VULKAN, "f", doubled());
    let mut json = twice(1, 1);
    json["attrs"].as_object_mut().unwrap().remove("device_index");
    for (device, want) in [("cpu", 3.0), ("vulkan", 4.0)] {
        let mut module = GraphModule::create(&json.to_string(), &functions, &open_all(&[device])).unwrap();
        module.set_input("x", &tensor(&[N], &[1.0; N])).unwrap();
        module.run().unwrap();
        assert_eq!(module.get_output(0).unwrap().as_slice::<f32>().unwrap(), [want; N], "{device}");
    }
}

#[test]
fn a_device_without_the_kernel_is_an_error_unless_fallback_is_allowed() {
    let contexts = open_all(&["vulkan", "cpu"]);
    let mut functions = FunctionTable::new();
    functions.insert_for(device_type::CPU, "f", plus_one());
    let json = twice(device_type::VULKAN, device_type::CPU).to_string();
    let session = |fallback: bool| {
        let mut graph = load_tvm_bytes(json.as_bytes(), None, &functions).unwrap();
        graph.place(&[device_type::VULKAN, device_type::CPU], false).unwrap();
        let mut builder = Session::builder().graph(graph.into_graph()).fallback(fallback);
        for context in &contexts {
            builder = builder.context(context.clone());
        }
        builder.build().unwrap()
    };
    let refused = session(false).plan(&[info(&[N])]).unwrap_err();
    let Error::Plan(PlanError::NoKernel { node, reason, .. }) = refused else { panic!("{refused}") };
    assert_eq!(node, "a");
    assert!(reason.contains("f on vulkan: there are kernels for cpu"), "{reason}");
    let plan = session(true).plan(&[info(&[N])]).unwrap();
    let fallback: Vec<bool> = plan.report.nodes.iter().map(|n| n.fallback.is_some()).collect();
    assert_eq!(fallback, [true, false]);
    assert!(plan.report.nodes.iter().all(|n| n.device == 1));
    let mut run = session(true);
    run.set_input("x", &tensor(&[N], &[1.0; N])).unwrap();
    run.run().unwrap();
    let name = run.outputs()[0].name.clone();
    assert_eq!(run.get_output(&name).unwrap().as_slice::<f32>().unwrap(), [3.0; N]);
}
