//! Graphs as TVM writes them, as people write them, and as no one should.

use serde_json::{Value, json};

use super::*;
use crate::graph::{GraphError, Origin, StorageScope, Tensor};
use crate::kernel::NativeKernel;
use crate::loader::testing::{fake, find, int};
use crate::ops::AttrValue;
use crate::ops::custom::{CustomKernel, KernelCall};
use crate::ops::tvm::{TvmView, ViewKind};

/// An addition on Vulkan, a copy, an exponential on the host.
const EXAMPLE: &str = r#"{"nodes":[
 {"op":"null","name":"x","inputs":[]},
 {"op":"null","name":"p0","inputs":[]},
 {"op":"tvm_op","name":"add_0","attrs":{"func_name":"tvmgen_default_fused_add","flatten_data":"0","num_inputs":"2","num_outputs":"1"},"inputs":[[0,0,0],[1,0,0]]},
 {"op":"tvm_op","name":"__copy_0","attrs":{"func_name":"__copy","flatten_data":"0","num_inputs":"1","num_outputs":"1"},"inputs":[[2,0,0]]},
 {"op":"tvm_op","name":"exp_0","attrs":{"func_name":"tvmgen_default_fused_exp","flatten_data":"0","num_inputs":"1","num_outputs":"1"},"inputs":[[3,0,0]]}],
 "arg_nodes":[0,1], "heads":[[4,0,0]],
 "attrs":{"shape":["list_shape",[[1,4],[1,4],[1,4],[1,4],[1,4]]],
          "dltype":["list_str",["float32","float32","float32","float32","float32"]],
          "storage_id":["list_int",[0,1,2,3,4]],
          "device_index":["list_int",[7,7,7,1,1]]},
 "node_row_ptr":[0,1,2,3,4,5]}"#;

fn example() -> Value {
    serde_json::from_str(EXAMPLE).unwrap()
}

fn parse(value: &Value) -> Result<GraphJson, LoadError> {
    GraphJson::parse(value.to_string().as_bytes())
}

fn make(value: &Value, functions: &FunctionTable) -> Result<TvmGraph, LoadError> {
    resolve::resolve(parse(value)?, Params::new(), functions, find)
}

fn load_value(value: &Value) -> TvmGraph {
    make(value, &FunctionTable::new()).unwrap()
}

/// The pointer and the text of the error that `value` gives.
fn error_of(value: &Value) -> (String, String) {
    let e = make(value, &FunctionTable::new()).unwrap_err();
    match e.at() {
        ErrorLocation::JsonPointer(at) => (at.clone(), e.to_string()),
        other => panic!("{other:?}: {e}"),
    }
}

/// `value` with the value at `pointer` replaced.
fn with(mut value: Value, pointer: &str, new: Value) -> Value {
    *value.pointer_mut(pointer).unwrap() = new;
    value
}

/// A graph of calls: (name, function, attributes, inputs, shape), of which each has one output.
fn graph_of(inputs: &[&[usize]], calls: &[(&str, Value, &[u32], &[usize])]) -> Value {
    let mut nodes: Vec<Value> =
        (0..inputs.len()).map(|i| json!({"op": "null", "name": format!("i{i}"), "inputs": []})).collect();
    let mut shapes: Vec<Value> = inputs.iter().map(|s| json!(s)).collect();
    for (i, (function, attrs, args, shape)) in calls.iter().enumerate() {
        let mut attrs = attrs.clone();
        attrs["func_name"] = json!(function);
        let args: Vec<Value> = args.iter().map(|a| json!([a, 0, 0])).collect();
        nodes.push(json!({"op": "tvm_op", "name": format!("n{i}"), "attrs": attrs, "inputs": args}));
        shapes.push(json!(shape));
    }
    let n = nodes.len();
    json!({
        "nodes": nodes,
        "arg_nodes": (0..inputs.len()).collect::<Vec<_>>(),
        "heads": [[n - 1, 0, 0]],
        "node_row_ptr": (0..=n).collect::<Vec<_>>(),
        "attrs": {
            "shape": ["list_shape", shapes],
            "dltype": ["list_str", vec!["float32"; n]],
            "storage_id": ["list_int", (0..n).collect::<Vec<_>>()],
        },
    })
}

fn ops_of(g: &Graph) -> Vec<&'static str> {
    g.nodes().iter().map(|n| n.op.name()).collect()
}

fn input_names(g: &Graph, node: usize) -> Vec<&str> {
    g.nodes()[node].inputs.iter().map(|i| g.tensor(i.unwrap()).name.as_str()).collect()
}

fn view(g: &Graph, node: usize) -> &TvmView {
    g.nodes()[node].op.downcast_ref().unwrap()
}

#[test]
fn the_example_becomes_a_graph_with_its_devices() {
    let mut g = load_value(&example());
    assert_eq!(ops_of(g.graph()), ["Fake", "TvmCopy", "Fake"]);
    assert_eq!(input_names(g.graph(), 0), ["x", "p0"]);
    assert_eq!(view(g.graph(), 1).kind(), ViewKind::Copy);
    assert_eq!(g.graph().outputs()[0].0, "exp_0");
    assert_eq!(g.json().device_index.as_deref(), Some(&[7, 7, 7, 1, 1][..]));
    let devices = |g: &TvmGraph| g.graph().nodes().iter().map(|n| n.device).collect::<Vec<_>>();
    assert_eq!(devices(&g), [None, None, None]);
    assert!(
        g.place(&[device_type::CPU, device_type::VULKAN, device_type::VULKAN], false).unwrap().is_empty()
    );
    assert_eq!(devices(&g), [Some(1), Some(0), Some(0)], "the first of its type");
    let e = g.place(&[device_type::VULKAN], false).unwrap_err();
    assert_eq!(*e.at(), ErrorLocation::JsonPointer("/attrs/device_index/1/3".into()));
    assert!(e.to_string().contains("found device type 1"), "{e}");
    assert_eq!(g.place(&[device_type::VULKAN], true).unwrap(), ["__copy_0", "exp_0"]);
    assert_eq!(devices(&g), [Some(0); 3]);
    assert!(g.place(&[], true).is_err());
}

#[test]
fn without_the_column_all_is_on_the_first_device() {
    let mut v = example();
    v["attrs"].as_object_mut().unwrap().remove("device_index");
    let mut g = load_value(&v);
    g.place(&[device_type::METAL], false).unwrap();
    assert!(g.graph().nodes().iter().all(|n| n.device == Some(0)));
}

#[test]
fn parameters_become_constants() {
    let p0 = Tensor::new([1, 4], &[1.0f32, 2.0, 3.0, 4.0]).unwrap();
    let extra = Tensor::scalar(1i32);
    let params = vec![("p0".to_owned(), p0.clone()), ("other".to_owned(), extra)];
    let g = resolve::resolve(parse(&example()).unwrap(), params, &FunctionTable::new(), find).unwrap();
    assert_eq!((g.params(), g.unused_params()), (&["p0".to_owned()][..], &["other".to_owned()][..]));
    assert_eq!(g.graph().inputs().len(), 1);
    let id = g.tensor(1).unwrap();
    assert!(matches!(&g.graph().tensor(id).origin, Origin::Constant(t) if t.identity() == p0.identity()));
    for wrong in [Tensor::new([4], &[0f32; 4]).unwrap(), Tensor::new([1, 4], &[0i32; 4]).unwrap()] {
        let params = vec![("p0".to_owned(), wrong)];
        let e =
            resolve::resolve(parse(&example()).unwrap(), params, &FunctionTable::new(), find).unwrap_err();
        assert!(e.to_string().contains("a parameter \"p0\" of float32[1, 4]"), "{e}");
    }
}

#[test]
fn what_is_written_is_read_back_equal() {
    let mut v = example();
    v["metadata"] = json!({"a": [1, 2.5]});
    v["attrs"]["storage_scope"] =
        json!(["list_str", ["", "global", "global.texture", "global.texture-nhwc", ""]]);
    v["attrs"]["lazy_init_input"] = json!(["list_str", ["x"]]);
    v["attrs"]["dtype"] = json!(["list_int", [0, 0, 0, 0, 0]]);
    v["nodes"][4]["control_deps"] = json!([2]);
    v["nodes"][2]["attrs"]["hash"] = json!("abc");
    let first = parse(&v).unwrap();
    let text = first.to_json();
    let second = GraphJson::parse(text.as_bytes()).unwrap();
    assert_eq!(first, second);
    assert_eq!(text, second.to_json());
    let written: Value = serde_json::from_str(&text).unwrap();
    for key in ["nodes", "heads", "node_row_ptr", "arg_nodes", "metadata", "attrs"] {
        assert_eq!(written[key], v[key], "{key}");
    }
}

#[test]
fn more_is_read_than_tvm_reads() {
    let mut v = example();
    // Two numbers for an entry, `attr`, numbers for texts, missing counts, unknown keys and columns.
    v["nodes"][4]["inputs"] = json!([[3, 0]]);
    let attrs = v["nodes"][3].as_object_mut().unwrap().remove("attrs").unwrap();
    v["nodes"][3]["attr"] = attrs;
    v["nodes"][2]["attrs"] = json!({"func_name": "tvmgen_default_fused_add", "num_inputs": 2, "num_outputs": 1, "flatten_data": 0});
    v["nodes"][4]["attrs"] = json!({"func_name": "tvmgen_default_fused_exp", "Compiler": "x"});
    v["nodes"][4]["shiny"] = json!(1);
    v["nodes"][4]["control_deps"] = json!([[0, 0, 0], 2]);
    v["attrs"]["names"] = json!(["list_str", ["odd"]]);
    v["attrs"]["count"] = json!(["size_t", 3]);
    v["future"] = json!({});
    let text = v.to_string();
    let early = format!("{{\"metadata\":{{}},{}", &text[1..]);
    let g = GraphJson::parse(early.as_bytes()).unwrap();
    assert_eq!(g.nodes[4].control_deps, [0, 2]);
    assert_eq!(g.other_columns["count"], json!(["size_t", 3]));
    assert!(g.metadata.is_some());
    let g = load_value(&v);
    let n = g.graph().nodes().iter().position(|n| n.name == "exp_0").unwrap();
    assert_eq!(g.graph().nodes()[n].control_deps.len(), 1, "an input is no node");
}

#[test]
fn control_deps_order_nodes() {
    let mut v = graph_of(&[&[4]], &[("exp", json!({}), &[0], &[4]), ("exp", json!({}), &[0], &[4])]);
    v["nodes"][1]["control_deps"] = json!([2]);
    v["heads"] = json!([[1, 0, 0], [2, 0, 0]]);
    let g = load_value(&v);
    let names: Vec<&str> = g.graph().nodes().iter().map(|n| n.name.as_str()).collect();
    assert_eq!(names, ["n1", "n0"]);
    v["nodes"][2]["control_deps"] = json!([1]);
    let e = make(&v, &FunctionTable::new()).unwrap_err();
    assert!(matches!(e.kind(), LoadErrorKind::Graph(g) if matches!(**g, GraphError::Cycle { .. })), "{e}");
}

#[test]
fn errors_point_at_the_value() {
    let e = example;
    let cases = [
        (
            with(e(), "/nodes/3/inputs/0/0", json!(9)),
            "/nodes/3/inputs/0",
            "node 9 is out of range, there are 5",
        ),
        (with(e(), "/nodes/3/inputs/0/1", json!(1)), "/nodes/3/inputs/0", "output 1 is out of range"),
        (with(e(), "/nodes/3/inputs/0/0", json!(-1)), "/nodes/3/inputs/0/0", "expected an index, found -1"),
        (with(e(), "/nodes/3/inputs/0", json!([1])), "/nodes/3/inputs/0", "a node, an output"),
        (with(e(), "/nodes/0/op", json!("conv")), "/nodes/0/op", "\"null\" or \"tvm_op\""),
        (with(e(), "/nodes/0/inputs", json!([[1, 0, 0]])), "/nodes/0/inputs", "no inputs"),
        (
            with(e(), "/nodes/2/attrs/num_inputs", json!("3")),
            "/nodes/2/attrs/num_inputs",
            "expected 3, found 2",
        ),
        (with(e(), "/nodes/2/attrs/num_outputs", json!("x")), "/nodes/2/attrs/num_outputs", "an integer"),
        (
            with(e(), "/nodes/2/attrs/num_outputs", json!("0")),
            "/nodes/2/attrs/num_outputs",
            "number of outputs",
        ),
        (with(e(), "/nodes/2/attrs/num_outputs", json!("2")), "/node_row_ptr/3", "expected 4"),
        (with(e(), "/nodes/2/attrs", json!({})), "/nodes/2/attrs", "\"func_name\" is missing"),
        (with(e(), "/node_row_ptr", json!([0, 1, 2, 3, 4])), "/node_row_ptr", "expected 6, found 5"),
        (with(e(), "/node_row_ptr/2", json!(7)), "/node_row_ptr/2", "expected 2"),
        (with(e(), "/arg_nodes", json!([0])), "/arg_nodes", "input node 1 is missing"),
        (with(e(), "/arg_nodes", json!([0, 1, 1])), "/arg_nodes/2", "two arguments"),
        (with(e(), "/arg_nodes", json!([0, 1, 2])), "/arg_nodes/2", "the number of an input"),
        (with(e(), "/arg_nodes", json!([0, 1, 99])), "/arg_nodes/2", "node 99 is out of range"),
        (with(e(), "/heads", json!([[5, 0, 0]])), "/heads/0", "out of range"),
        (with(e(), "/heads", json!({})), "/heads", "expected a list"),
        (with(e(), "/attrs/shape/1", json!([[1, 4]])), "/attrs/shape/1", "expected 5, found 1"),
        (with(e(), "/attrs/shape/0", json!("list_int")), "/attrs/shape/0", "the tag \"list_shape\""),
        (with(e(), "/attrs/shape/1/1/0", json!(-4)), "/attrs/shape/1/1", "impossible size -4"),
        (with(e(), "/attrs/shape/1/1/0", json!(i64::MAX)), "/attrs/shape/1/1", "too many elements"),
        (with(e(), "/attrs/shape/1/4", json!([2, 4])), "/nodes/4", "the graph says float32[2, 4]"),
        (
            with(e(), "/attrs/shape/1/3", json!([2, 4])),
            "/attrs/shape/1/3",
            "like the node's input float32[1, 4]",
        ),
        (with(e(), "/attrs/dltype/1/2", json!("handle")), "/attrs/dltype/1/2", "element type \"handle\""),
        (with(e(), "/attrs/dltype", json!(["list_str"])), "/attrs/dltype", "a tag and a list"),
        (
            with(e(), "/attrs/storage_id/1/2", json!(-1)),
            "/attrs/storage_id/1/2",
            "storage -1 is out of range",
        ),
        (with(e(), "/attrs/storage_id/1/2", json!(u32::MAX)), "/attrs/storage_id/1/2", "out of range"),
        (
            with(e(), "/attrs/storage_id/1/4", json!(0)),
            "/attrs/storage_id/1/4",
            "storage 0 on device type 7, id 0 only",
        ),
        (with(e(), "/nodes/1/name", json!("x")), "/nodes/1/name", "two inputs are named \"x\""),
        (with(e(), "/nodes/1/name", json!(5)), "/nodes/1/name", "expected a text, found 5"),
        (json!([]), "", "expected an object"),
        (json!({}), "", "\"nodes\" is missing"),
    ];
    for (value, pointer, text) in cases {
        let (at, message) = error_of(&value);
        assert_eq!(at, pointer, "{message}");
        assert!(message.contains(text), "{message}");
    }
    let mut v = e();
    v["nodes"][2]["control_deps"] = json!([17]);
    assert_eq!(error_of(&v).0, "/nodes/2/control_deps/0");
    v = e();
    v["nodes"][2]["attr"] = json!({});
    assert_eq!(error_of(&v).0, "/nodes/2");
    v = e();
    v["attrs"].as_object_mut().unwrap().remove("dltype");
    v["attrs"]["storage_scope"] = json!(["list_str", ["", "", "", "", ""]]);
    assert!(error_of(&v).1.contains("column \"dltype\" is missing"));
    v = e();
    v["attrs"]["storage_scope"] = json!(["list_str", ["", "local", "", "", ""]]);
    assert_eq!(error_of(&v).0, "/attrs/storage_scope/1/1");
    v = e();
    v["attrs"]["lazy_init_input"] = json!(["list_str", ["nobody"]]);
    assert_eq!(error_of(&v).0, "/attrs/lazy_init_input/1/0");
    let e = GraphJson::parse(b"{\n \"nodes\": [,]").unwrap_err();
    assert_eq!(*e.at(), ErrorLocation::ByteOffset(13));
    assert!(matches!(e.kind(), LoadErrorKind::Json(_)));
    let deep = "[".repeat(100_000);
    assert!(GraphJson::parse(deep.as_bytes()).is_err());
}

#[test]
fn cycles_are_found() {
    let v = graph_of(&[&[4]], &[("add", json!({}), &[0, 2], &[4]), ("exp", json!({}), &[1], &[4])]);
    let e = make(&v, &FunctionTable::new()).unwrap_err();
    assert!(e.to_string().contains("cycle"), "{e}");
}

#[test]
fn nops_are_views_and_names_may_repeat() {
    let mut v = graph_of(
        &[&[2, 6]],
        &[
            ("__nop", json!({}), &[0], &[3, 4]),
            ("__nop", json!({}), &[1], &[12]),
            ("exp", json!({}), &[2], &[12]),
        ],
    );
    v["nodes"][1]["name"] = json!("reshape_nop");
    v["nodes"][2]["name"] = json!("reshape_nop");
    v["heads"] = json!([[1, 0, 0], [2, 0, 0], [3, 0, 0], [0, 0, 0]]);
    v["attrs"]["storage_id"] = json!(["list_int", [0, 0, 0, 1]]);
    let g = load_value(&v);
    assert_eq!(ops_of(g.graph()), ["TvmReshape", "TvmReshape", "Fake"]);
    let names: Vec<&str> = g.graph().outputs().iter().map(|(n, _)| n.as_str()).collect();
    assert_eq!(names, ["reshape_nop:0", "reshape_nop:1", "n2", "i0"]);
    assert_eq!(error_of(&with(v, "/attrs/shape/1/2", json!([13]))).0, "/attrs/shape/1/2");
}

#[test]
fn scopes_and_lazy_inputs_are_kept() {
    let mut v = graph_of(&[&[2, 4]], &[("exp", json!({}), &[0], &[2, 4])]);
    v["attrs"]["storage_scope"] = json!(["list_str", ["global.texture-weight", "global"]]);
    v["attrs"]["lazy_init_input"] = json!(["list_str", ["i0"]]);
    v["attrs"]["dltype"] = json!(["list_str", ["float16x4", "float16x4"]]);
    let g = load_value(&v);
    let x = g.tensor(0).unwrap();
    assert_eq!(g.graph().tensor(x).scope, StorageScope::TextureWeight);
    assert!(g.graph().lazy_inputs.contains(&x));
    assert_eq!(g.graph().tensor(x).shape.as_ref().unwrap().concrete().unwrap().dims(), [2, 4, 4]);
}

#[test]
fn flattened_arguments_are_flat_for_that_node_only() {
    let mut v = graph_of(
        &[&[2, 3], &[2, 3]],
        &[
            ("elemwise_add", json!({"flatten_data": "1"}), &[0, 1], &[2, 3]),
            ("exp", json!({}), &[2], &[2, 3]),
        ],
    );
    let g = load_value(&v);
    let g = g.graph();
    assert_eq!(ops_of(g), ["TvmReshape", "TvmReshape", "Fake", "TvmReshape", "Fake"]);
    assert_eq!(input_names(g, 2), ["n0:flat_in0", "n0:flat_in1"]);
    assert_eq!(g.tensor(g.nodes()[3].outputs[0].unwrap()).name, "n0");
    assert_eq!(input_names(g, 4), ["n0"]);
    v["attrs"]["shape"] = json!(["list_shape", [[6], [6], [6], [6]]]);
    assert_eq!(ops_of(load_value(&v).graph()), ["Fake", "Fake"], "flat already");
}

/// Two graphs of TVM's heterogeneous tests: additions on one device, subtractions on the host.
fn heterogeneous(duplex: bool) -> Value {
    let null = |name: &str| json!({"op": "null", "name": name, "inputs": []});
    let op = |name: &str, func: &str, inputs: &[u32]| {
        let entries: Vec<Value> = inputs.iter().map(|i| json!([i, 0, 0])).collect();
        let attrs = json!({"func_name": func, "flatten_data": "1", "num_inputs": inputs.len().to_string(),
            "num_outputs": "1"});
        json!({"op": "tvm_op", "name": name, "attrs": attrs, "inputs": entries})
    };
    let mut nodes = vec![
        null("A"),
        null("B"),
        op("elemwise_add", "elemwise_add", &[0, 1]),
        op("__copy_add", "__copy", &[2]),
        null("C"),
        op("elemwise_sub", "elemwise_sub", &[3, 4]),
    ];
    let (mut args, mut storage, mut devices) =
        (vec![0, 1, 4], vec![3, 4, 0, 1, 5, 2], vec![7, 7, 7, 1, 1, 1]);
    if duplex {
        nodes.extend([
            op("__copy_sub", "__copy", &[5]),
            null("D"),
            op("elemwise_add1", "elemwise_add", &[6, 7]),
        ]);
        args.push(7);
        storage = vec![4, 5, 0, 1, 6, 2, 0, 7, 3];
        devices.extend([7, 7, 7]);
    }
    let n = nodes.len();
    json!({"nodes": nodes, "arg_nodes": args, "heads": [[n - 1, 0, 0]], "node_row_ptr": (0..=n).collect::<Vec<_>>(),
        "attrs": {"shape": ["list_shape", vec![[4]; n]], "dltype": ["list_str", vec!["float32"; n]],
            "storage_id": ["list_int", storage], "device_index": ["list_int", devices]}})
}

#[test]
fn tvms_heterogeneous_graphs_load() {
    for duplex in [false, true] {
        let mut g = load_value(&heterogeneous(duplex));
        g.place(&[device_type::CPU, device_type::VULKAN], false).unwrap();
        let on: Vec<u32> = g.graph().nodes().iter().map(|n| n.device.unwrap()).collect();
        let expected: &[u32] = if duplex { &[1, 0, 0, 1, 1] } else { &[1, 0, 0] };
        assert_eq!(on, expected);
        assert_eq!(g.graph().inputs().len(), if duplex { 4 } else { 3 });
        let text = g.json().to_json();
        assert_eq!(GraphJson::parse(text.as_bytes()).unwrap(), *g.json());
    }
}

#[test]
fn registered_kernels_come_first_and_by_device() {
    let call = |name: &'static str| KernelCall::native(NativeKernel::new(name, |_| Ok(())));
    let mut functions = FunctionTable::new();
    functions.insert_for(7, "elemwise_add", call("add_vulkan")).insert("elemwise_sub", call("sub"));
    let g = make(&heterogeneous(true), &functions).unwrap();
    let kernel = |name: &str| {
        let node =
            g.graph().nodes().iter().find(|n| n.name == name && n.op.name() == "CustomKernel").unwrap();
        let op: &CustomKernel = node.op.downcast_ref().unwrap();
        op.call("vulkan").unwrap().source.name().to_owned()
    };
    assert_eq!(kernel("elemwise_add"), "add_vulkan");
    assert_eq!(kernel("elemwise_sub"), "sub");
    // One that is only for another device is not taken.
    let mut functions = FunctionTable::new();
    functions.insert_for(1, "elemwise_add", call("add_host"));
    let g = make(&heterogeneous(false), &functions).unwrap();
    assert_eq!(g.graph().nodes().iter().filter(|n| n.op.name() == "CustomKernel").count(), 0);
}

#[test]
fn several_outputs_are_several_entries() {
    let mut v = graph_of(
        &[&[4]],
        &[("split_it", json!({"num_outputs": 2}), &[0], &[2]), ("exp", json!({}), &[1], &[2])],
    );
    v["nodes"][2]["inputs"] = json!([[1, 1, 0]]);
    v["node_row_ptr"] = json!([0, 1, 3, 4]);
    v["heads"] = json!([[1, 0, 0], [1, 1, 0], [2, 0, 0]]);
    v["attrs"] = json!({"shape": ["list_shape", [[4], [2], [2], [2]]],
        "dltype": ["list_str", ["float32", "float32", "float32", "float32"]],
        "storage_id": ["list_int", [0, 1, 2, 3]]});
    let mut functions = FunctionTable::new();
    functions.insert("split_it", KernelCall::native(NativeKernel::new("s", |_| Ok(()))));
    let g = make(&v, &functions).unwrap();
    assert_eq!(g.graph().nodes()[0].outputs.len(), 2);
    assert_eq!(input_names(g.graph(), 1), ["n0:1"]);
    let names: Vec<&str> = g.graph().outputs().iter().map(|(n, _)| n.as_str()).collect();
    assert_eq!(names, ["n0:0", "n0:1", "n1"]);
}

#[test]
fn operators_may_be_named_plainly() {
    let v = graph_of(&[&[4]], &[("Relu", json!({"axis": "2", "alpha": 0.5, "opset": 15}), &[0], &[4])]);
    let g = load_value(&v);
    let op = &g.graph().nodes()[0].op;
    assert_eq!((int(op, "axis"), fake(op).opset), (2, 15));
    let v = graph_of(&[&[4]], &[("Relu", json!({"alpha": "x"}), &[0], &[4])]);
    assert!(error_of(&v).1.contains("attribute \"alpha\" is a text"));
    let v = graph_of(&[&[4]], &[("elemwise_ad", json!({}), &[0], &[4])]);
    let (at, text) = error_of(&v);
    assert_eq!(at, "/nodes/1");
    assert!(text.contains("did you mean elemwise_add"), "{text}");
    assert!(make(&v, &FunctionTable::new()).unwrap_err().is_unsupported());
}

#[test]
fn fused_names_become_chains_where_that_is_sure() {
    let conv = "tvmgen_default_fused_nn_conv2d_add_nn_relu_2";
    let attrs = json!({"strides": "[1, 1]", "padding": "0", "data_layout": "NCHW", "hash": "1"});
    // Only the fake's broadcasting decides here: the bias must come last.
    let v = graph_of(
        &[&[1, 3, 4, 4], &[1, 3, 4, 4], &[3, 1, 1]],
        &[(conv, attrs.clone(), &[0, 1, 2], &[1, 3, 4, 4])],
    );
    let e = error_of(&v).1;
    assert!(e.contains("fit in more than one order") && e.contains("register a kernel"), "{e}");
    let v = graph_of(
        &[&[1, 3, 4, 4], &[1, 3, 4, 4]],
        &[("fused_nn_conv2d_nn_relu", attrs, &[0, 1], &[1, 3, 4, 4])],
    );
    let g = load_value(&v);
    assert_eq!(g.graph().nodes().len(), 2);
    let conv = fake(&g.graph().nodes()[0].op);
    assert!(matches!(&conv.attrs["pads"], AttrValue::Ints(p) if *p == [0; 4]));
    assert_eq!(input_names(g.graph(), 1), ["n0:step0"]);
    let v =
        graph_of(&[&[1, 3, 4, 4], &[1, 3, 4, 4]], &[("fused_nn_conv2d", json!({}), &[0, 1], &[1, 3, 4, 4])]);
    assert!(error_of(&v).1.contains("attribute strides is missing; register a kernel"));
    let v = graph_of(&[&[4], &[4], &[4]], &[("fused_add_add", json!({}), &[0, 1, 2], &[4])]);
    assert_eq!(load_value(&v).graph().nodes().len(), 2);
    let v = graph_of(&[&[4], &[4]], &[("fused_add", json!({}), &[0], &[4])]);
    assert!(error_of(&v).1.contains("do not take 1 arguments"));
    let v = graph_of(&[&[2, 3, 4]], &[("fused_nn_batch_flatten", json!({}), &[0], &[2, 12])]);
    assert_eq!(ops_of(load_value(&v).graph()), ["TvmReshape"]);
    let v = graph_of(&[&[2, 3, 4]], &[("fused_reshape", json!({}), &[0], &[4, 6])]);
    assert_eq!(ops_of(load_value(&v).graph()), ["TvmReshape"]);
    let v = graph_of(&[&[2, 3, 4], &[3]], &[("fused_nn_bias_add", json!({}), &[0, 1], &[2, 3, 4])]);
    let g = load_value(&v);
    assert_eq!(ops_of(g.graph()), ["TvmReshape", "Fake"]);
    assert_eq!(input_names(g.graph(), 1), ["i0", "n0:step0"]);
    let v = graph_of(&[&[3, 3], &[3]], &[("fused_nn_bias_add", json!({}), &[0, 1], &[3, 3])]);
    assert!(error_of(&v).1.contains("attribute axis is missing"));
    let v = graph_of(&[&[4]], &[("fused_sigmoid", json!({}), &[0], &[4])]);
    assert!(error_of(&v).1.contains("there is no operator Sigmoid"), "the fakes have none");
}

#[test]
fn shapes_tell_the_arguments_of_a_fused_convolution() {
    let attrs = json!({"strides": "[1, 1]", "padding": "[1, 1, 1, 1]", "data_layout": "NCHW"});
    let inputs: &[&[usize]] = &[&[1, 3, 8, 8], &[4, 3, 3, 3], &[4, 1, 1]];
    let name = "tvmgen_default_fused_nn_conv2d_add_nn_relu";
    for order in [[0u32, 1, 2], [2, 0, 1]] {
        let v = graph_of(inputs, &[(name, attrs.clone(), &order, &[1, 4, 8, 8])]);
        let g = TvmGraph::new(parse(&v).unwrap(), Params::new(), &FunctionTable::new()).unwrap();
        assert_eq!(ops_of(g.graph()), ["Conv", "Add", "Relu"]);
        assert_eq!(input_names(g.graph(), 0), ["i0", "i1"]);
        assert!(input_names(g.graph(), 1).contains(&"i2"));
    }
    let v = graph_of(inputs, &[(name, attrs, &[1, 0, 2], &[1, 4, 8, 8])]);
    assert!(TvmGraph::new(parse(&v).unwrap(), Params::new(), &FunctionTable::new()).is_err());
}

#[test]
fn no_cut_and_no_changed_byte_panics() {
    let text = EXAMPLE.as_bytes();
    for end in 0..text.len() {
        assert!(GraphJson::parse(&text[..end]).is_err());
    }
    let functions = FunctionTable::new();
    for at in 0..text.len() {
        for flip in [1u8, 2, 4, 8, 16, 32, 64, 128] {
            let mut changed = text.to_vec();
            changed[at] ^= flip;
            if let Ok(json) = GraphJson::parse(&changed)
                && let Ok(g) = resolve::resolve(json, Params::new(), &functions, find)
            {
                assert!(!g.graph().outputs().is_empty());
            }
        }
    }
}
