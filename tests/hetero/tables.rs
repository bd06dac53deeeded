//! TVM's own heterogeneous graphs (test_runtime_heterogeneous.py) on many device tables.

use onepool::loader::tvm::TvmGraph;
use onepool::loader::{FunctionTable, load_tvm_bytes};
use onepool::plan::Crossing;
use onepool::tvm::GraphModule;
use onepool::{Error, Memory, Session};
use serde_json::{Value, json};

use crate::common::{
    all_share, check_messages, check_nothing_copied, dl_devices, floats, in_place, numbers, open, open_all,
    region, tables, tensor,
};

const N: usize = 1024;

/// A + B on the accelerator, minus C on the host; `duplex`: plus D on the accelerator again. Devices are (type, id).
fn heterogeneous(duplex: bool, host: (i32, u32), device: (i32, u32)) -> Value {
    let null = |name: &str| json!({"op": "null", "name": name, "inputs": []});
    let op = |name: &str, function: &str, inputs: &[usize]| {
        let entries: Vec<Value> = inputs.iter().map(|i| json!([i, 0, 0])).collect();
        json!({"op": "tvm_op", "name": name, "inputs": entries, "attrs": {"func_name": function,
            "flatten_data": "0", "num_inputs": inputs.len().to_string(), "num_outputs": "1"}})
    };
    let mut nodes = vec![
        null("A"),
        null("B"),
        op("elemwise_add", "elemwise_add", &[0, 1]),
        op("__copy", "__copy", &[2]),
        null("C"),
        op("elemwise_sub", "elemwise_sub", &[3, 4]),
    ];
    let mut args = vec![0, 1, 4];
    let mut storage = vec![3, 4, 0, 1, 5, 2];
    let mut on = vec![device, device, device, host, host, host];
    if duplex {
        nodes.extend([
            op("__copy_sub", "__copy", &[5]),
            null("D"),
            op("elemwise_add1", "elemwise_add", &[6, 7]),
        ]);
        args.push(7);
        storage = vec![4, 5, 0, 1, 6, 2, 0, 7, 3];
        on.extend([device; 3]);
    }
    let n = nodes.len();
    let (types, ids): (Vec<i32>, Vec<u32>) = on.into_iter().unzip();
    json!({"nodes": nodes, "arg_nodes": args, "heads": [[n - 1, 0, 0]], "node_row_ptr": (0..=n).collect::<Vec<_>>(),
        "attrs": {"shape": ["list_shape", vec![[N]; n]], "dltype": ["list_str", vec!["float32"; n]],
            "storage_id": ["list_int", storage], "device_index": ["list_int", types],
            "device_id": ["list_int", ids]}})
}

fn load(json: &Value) -> TvmGraph {
    load_tvm_bytes(json.to_string().as_bytes(), None, &FunctionTable::new()).unwrap()
}

fn inputs(duplex: bool) -> Vec<(&'static str, Vec<f32>)> {
    let names = if duplex { &["A", "B", "C", "D"][..] } else { &["A", "B", "C"] };
    names.iter().enumerate().map(|(i, name)| (*name, numbers(N, i))).collect()
}

fn expected(inputs: &[(&str, Vec<f32>)]) -> Vec<f32> {
    let at = |i: usize, k: usize| inputs.get(i).map_or(0.0, |(_, v)| v[k]);
    (0..N).map(|k| at(0, k) + at(1, k) - at(2, k) + at(3, k)).collect()
}

#[test]
fn simplex_and_duplex_run_by_the_names_of_tvm() {
    for table in tables() {
        let contexts = open_all(&table);
        let on = dl_devices(&contexts);
        for duplex in [false, true] {
            let json = heterogeneous(duplex, on[0], on[1]).to_string();
            let mut module = GraphModule::create(&json, &FunctionTable::new(), &contexts).unwrap();
            let inputs = inputs(duplex);
            for (name, values) in &inputs {
                module.set_input(*name, &tensor(&[N], values)).unwrap();
            }
            for _ in 0..2 {
                module.run().unwrap();
                let result = module.get_output(0).unwrap();
                assert_eq!(result.as_slice::<f32>().unwrap(), expected(&inputs), "{table:?} {duplex}");
            }
        }
        check_messages(&contexts);
    }
}

#[test]
fn simplex_and_duplex_run_on_bound_memory_and_copy_only_where_they_must() {
    for table in tables() {
        let contexts = open_all(&table);
        let on = dl_devices(&contexts);
        for duplex in [false, true] {
            let mut graph = load(&heterogeneous(duplex, on[0], on[1]));
            let types: Vec<i32> = on.iter().map(|(ty, _)| *ty).collect();
            assert!(graph.place(&types, false).unwrap().is_empty());
            let share = all_share(&contexts);
            let mut builder = Session::builder().graph(graph.into_graph()).copy_threshold(0).strict(share);
            for context in &contexts {
                builder = builder.context(context.clone());
            }
            let session = builder.build().unwrap();
            let inputs = inputs(duplex);
            let output = session.outputs()[0].name.clone();
            let result = region(&vec![0.0; N]);
            let mut bind = session.bind().output(&output, Memory::region(&result));
            for (name, values) in &inputs {
                bind = bind.input(*name, Memory::region(&region(values)));
            }
            let mut binding = bind.build().unwrap();
            for _ in 0..3 {
                result.write().unwrap().fill(0xff);
                binding.run().unwrap();
                assert_eq!(floats(&result), expected(&inputs), "{table:?} {duplex}");
            }
            let crossings = &binding.plan().report.crossings;
            let on: Vec<(u32, u32)> = crossings.iter().map(|c| (c.from, c.to)).collect();
            let ways: &[(u32, u32)] = if duplex { &[(1, 0), (0, 1)] } else { &[(1, 0)] };
            assert_eq!(on, ways, "{table:?} {duplex}");
            assert!(crossings.iter().all(|c| c.bytes == 4 * N as u64));
            if share {
                check_nothing_copied(binding.plan(), &format!("{table:?} {duplex}"));
                assert!(!in_place(&contexts) || binding.bytes_moved().0 == 0, "{table:?} {duplex}");
            } else {
                assert!(crossings.iter().all(|c| c.path == Crossing::Staged), "{table:?}: {crossings:?}");
                assert!(binding.bytes_moved().0 >= 4 * (N * ways.len()) as u64);
            }
            let profile = binding.profile().unwrap();
            assert_eq!((profile.bytes_moved, profile.bytes_not_moved), binding.bytes_moved());
        }
        check_messages(&contexts);
    }
}

#[test]
fn several_devices_of_one_type_are_told_apart() {
    let contexts = open_all(&["vulkan", "vulkan", "cpu"]);
    assert_eq!(dl_devices(&contexts), [(7, 0), (7, 1), (1, 0)]);
    let mut graph = load(&heterogeneous(true, (7, 1), (1, 0)));
    graph.place(&[7, 7, 1], false).unwrap();
    let on: Vec<_> = graph.graph().nodes().iter().map(|n| n.device.unwrap()).collect();
    assert_eq!(on, [2, 1, 1, 2, 2]);
    let json = heterogeneous(true, (7, 1), (7, 0)).to_string();
    let mut module = GraphModule::create(&json, &FunctionTable::new(), &contexts).unwrap();
    let values = inputs(true);
    for (name, values) in &values {
        module.set_input(*name, &tensor(&[N], values)).unwrap();
    }
    module.run().unwrap();
    assert_eq!(module.get_output(0).unwrap().as_slice::<f32>().unwrap(), expected(&values));
    check_messages(&contexts);
    // Without the column it is the first of the type, as TVM has it.
    let mut json = heterogeneous(true, (7, 0), (1, 0));
    json["attrs"].as_object_mut().unwrap().remove("device_id");
    let mut graph = load(&json);
    graph.place(&[7, 7, 1], false).unwrap();
    let on: Vec<_> = graph.graph().nodes().iter().map(|n| n.device.unwrap()).collect();
    assert_eq!(on, [2, 0, 0, 2, 2]);
}

/// Copies and reshapes in a row between two devices: views only.
#[test]
fn chains_of_copies_and_reshapes_are_no_commands() {
    for table in [["cpu", "vulkan"], ["cpu", "sim:noncoherent"], ["vulkan", "vulkan"], ["cpu", "alone"]] {
        let contexts = open_all(&table);
        let on = dl_devices(&contexts);
        let op = |name: &str, function: &str, inputs: &[usize]| {
            let entries: Vec<Value> = inputs.iter().map(|i| json!([i, 0, 0])).collect();
            json!({"op": "tvm_op", "name": name, "inputs": entries, "attrs": {"func_name": function,
                "flatten_data": "0", "num_inputs": inputs.len().to_string(), "num_outputs": "1"}})
        };
        let nodes = json!([
            {"op": "null", "name": "A", "inputs": []},
            op("add", "elemwise_add", &[0, 0]),
            op("reshape_nop", "__nop", &[1]),
            op("__copy", "__copy", &[2]),
            op("reshape_nop", "__nop", &[3]),
            op("mul", "elemwise_add", &[4, 4]),
            op("reshape_nop", "__nop", &[5]),
        ]);
        let (host, device) = (on[0], on[1]);
        let places = [device, device, device, host, host, host, host];
        let (types, ids): (Vec<i32>, Vec<u32>) = places.into_iter().unzip();
        let json = json!({"nodes": nodes, "arg_nodes": [0], "heads": [[6, 0, 0]],
            "node_row_ptr": [0, 1, 2, 3, 4, 5, 6, 7], "attrs": {
            "shape": ["list_shape", [[N], [N], [2, N / 2], [2, N / 2], [N], [N], [4, N / 4]]],
            "dltype": ["list_str", vec!["float32"; 7]], "storage_id": ["list_int", [0, 1, 1, 2, 2, 3, 3]],
            "device_index": ["list_int", types], "device_id": ["list_int", ids]}});
        let mut graph = load(&json);
        graph.place(&on.iter().map(|(ty, _)| *ty).collect::<Vec<_>>(), false).unwrap();
        let session = crate::common::session(graph.into_graph(), &contexts);
        let output = session.outputs()[0].name.clone();
        let (x, y) = (region(&numbers(N, 1)), region(&vec![0.0; N]));
        let bind = session.bind().input("A", Memory::region(&x));
        let mut binding = bind.output(&output, Memory::region(&y)).build().unwrap();
        for _ in 0..2 {
            binding.run().unwrap();
            let want: Vec<f32> = floats(&x).iter().map(|x| 4.0 * x).collect();
            assert_eq!(floats(&y), want, "{table:?}");
        }
        if all_share(&contexts) {
            check_nothing_copied(binding.plan(), &format!("{table:?}"));
            assert_eq!(binding.plan().report.commands, 2, "{table:?}");
        }
        check_messages(&contexts);
    }
}

#[test]
fn a_device_that_is_not_in_the_table_is_an_error() {
    let context = open("cpu");
    for (host, device, column) in
        [((1, 0), (2, 0), "device_index"), ((1, 0), (-3, 0), "device_index"), ((1, 0), (1, 4), "device_id")]
    {
        let json = heterogeneous(false, host, device).to_string();
        let error = GraphModule::create(&json, &FunctionTable::new(), std::slice::from_ref(&context));
        let Err(Error::Load(error)) = error else { panic!("{device:?} is accepted") };
        let text = error.to_string();
        assert!(text.contains(&format!("/attrs/{column}/1/0")), "{text}");
        assert!(text.contains(&format!("device type {}, id {}", device.0, device.1)), "{text}");
    }
    // An input alone on an unknown device is one too.
    let mut json = heterogeneous(false, (1, 0), (1, 0));
    json["attrs"]["device_index"][1][4] = json!(10);
    assert!(load(&json).place(&[1], false).is_err());
}

#[test]
fn a_graph_without_devices_runs_on_the_first_and_any_device_is_reported() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("graph.json");
    let mut json = heterogeneous(true, (1, 0), (8, 0));
    std::fs::write(&path, json.to_string()).unwrap();
    let build = |any: bool| Session::builder().model(&path).device("cpu").any_device(any).build();
    assert!(matches!(build(false), Err(Error::Load(_))));
    let session = build(true).unwrap();
    let plan = session.plan(&vec![crate::common::info(&[N]); 4]).unwrap();
    assert_eq!(plan.report.foreign, ["__copy_sub", "elemwise_add", "elemwise_add1"]);
    assert!(plan.report.nodes.iter().all(|n| n.device == 0));
    json["attrs"].as_object_mut().unwrap().remove("device_index");
    std::fs::write(&path, json.to_string()).unwrap();
    let session = build(false).unwrap();
    assert!(session.graph().nodes().iter().all(|n| n.device == Some(0)));
}

/// What is only copied to a device that has memory of its own is an output there.
#[test]
fn a_copy_is_an_output_on_every_device() {
    for table in tables() {
        let contexts = open_all(&table);
        let on = dl_devices(&contexts);
        let json = json!({
            "nodes": [
                {"op": "null", "name": "A", "inputs": []},
                {"op": "tvm_op", "name": "twice", "inputs": [[0, 0, 0], [0, 0, 0]], "attrs": {"func_name": "elemwise_add",
                    "flatten_data": "0", "num_inputs": "2", "num_outputs": "1"}},
                {"op": "tvm_op", "name": "__copy", "inputs": [[1, 0, 0]], "attrs": {"func_name": "__copy",
                    "flatten_data": "0", "num_inputs": "1", "num_outputs": "1"}},
            ],
            "arg_nodes": [0], "heads": [[2, 0, 0]], "node_row_ptr": [0, 1, 2, 3],
            "attrs": {"shape": ["list_shape", [[N], [N], [N]]], "dltype": ["list_str", ["float32", "float32", "float32"]],
                "storage_id": ["list_int", [0, 1, 2]],
                "device_index": ["list_int", [on[1].0, on[1].0, on[0].0]],
                "device_id": ["list_int", [on[1].1, on[1].1, on[0].1]]}
        });
        let mut module = GraphModule::create(&json.to_string(), &FunctionTable::new(), &contexts).unwrap();
        module.set_input("A", &tensor(&[N], &numbers(N, 1))).unwrap();
        for _ in 0..2 {
            module.run().unwrap();
            let want: Vec<f32> = numbers(N, 1).iter().map(|x| 2.0 * x).collect();
            assert_eq!(module.get_output(0).unwrap().as_slice::<f32>().unwrap(), want, "{table:?}");
        }
        check_messages(&contexts);
    }
}
