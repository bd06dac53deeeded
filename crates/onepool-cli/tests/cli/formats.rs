//! Models that are no ONNX files, and what is said of cases that run partly on the CPU or may round activations.

use onepool::loader::save_params;
use onepool::{DType, Tensor};

use super::onnx::{Dim, Model, case};
use super::{ends, f32s, fails, folder, read_pb, says};

/// `y = relu(x + c)` as TVM writes it; `c` is a parameter of three values.
const GRAPH: &str = r#"{"nodes":[{"op":"null","name":"x","inputs":[]},{"op":"null","name":"c","inputs":[]},
{"op":"tvm_op","name":"sum","attrs":{"func_name":"tvmgen_default_fused_add_nn_relu","flatten_data":"0",
"num_inputs":"2","num_outputs":"1"},"inputs":[[0,0,0],[1,0,0]]}],
"arg_nodes":[0,1],"heads":[[2,0,0]],"node_row_ptr":[0,1,2,3],
"attrs":{"shape":["list_shape",[[2,3],[3],[2,3]]],"dltype":["list_str",["float32","float32","float32"]],
"storage_id":["list_int",[0,1,2]]}}"#;

#[test]
fn a_tvm_graph_is_run_inspected_and_verified() {
    let dir = folder();
    let d = dir.path();
    let x = f32s(&[2, 3], &[0.0, 1.0, -2.0, 3.0, -4.0, 5.0]);
    let y = f32s(&[2, 3], &[1.0, 0.0, 1.0, 4.0, 0.0, 8.0]);
    let c = f32s(&[3], &[1.0, -2.0, 3.0]);
    case(&d.join("it"), Model::default(), &[x], std::slice::from_ref(&y));
    std::fs::remove_file(d.join("it/model.onnx")).unwrap();
    std::fs::write(d.join("it/model.json"), GRAPH).unwrap();
    save_params(&d.join("it/model.params"), [("c", &c)]).unwrap();
    let input = "it/test_data_set_0/input_0.pb";
    ends(d, 0, &["run", "it/model.json", "-i", input, "-o", "y.pb", "-d", "cpu"]);
    assert_eq!(read_pb(&d.join("y.pb")).bytes(), y.bytes());
    ends(d, 0, &["verify", "it", "-d", "cpu"]);
    let out = ends(d, 0, &["inspect", "it", "--device", "cpu"]);
    says(&out, &["TVM graph JSON", "float32", "[2, 3]", "12 B"]);
    let json = ends(d, 0, &["inspect", "it", "--device", "cpu", "--json"]);
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!((json["format"].as_str(), json["nodes"].as_u64()), (Some("TVM graph JSON"), Some(2)));
    let told = GRAPH.replacen('{', r#"{"metadata":{"made by":"hand","n":[1,2]},"#, 1);
    std::fs::write(d.join("it/model.json"), told).unwrap();
    says(
        &ends(d, 0, &["inspect", "it", "--device", "cpu"]),
        &["property  made by: hand", "property  n: [1,2]"],
    );

    // The devices that it names.
    let on = GRAPH.replace(r#""storage_id""#, r#""device_index":["list_int",[1,1,7]],"storage_id""#);
    std::fs::write(d.join("it/model.json"), on).unwrap();
    for (table, device, foreign) in
        [(&["cpu", "vulkan"][..], 1, 0), (&["cpu"][..], 0, 1), (&["vulkan"][..], 0, 0)]
    {
        let flags: Vec<&str> = table.iter().flat_map(|name| ["-d", *name]).collect();
        let json = ends(d, 0, &[&["inspect", "it", "--json"][..], &flags].concat());
        let json: serde_json::Value = serde_json::from_str(&json).unwrap();
        let plan = &json["planned"]["plan"];
        assert_eq!(plan["nodes"][0]["device"], device, "{table:?} {plan}");
        assert_eq!(plan["foreign"].as_array().unwrap().len(), foreign, "{table:?} {plan}");
        ends(d, 0, &[&["verify", "it"][..], &flags].concat());
    }
    std::fs::write(d.join("it/model.json"), GRAPH).unwrap();

    // The parameters elsewhere.
    std::fs::rename(d.join("it/model.params"), d.join("weights.bin")).unwrap();
    fails(d, 2, &["run", "it/model.json", "-i", &format!("x={input}"), "-d", "cpu"], &["no file for c"]);
    let given = ["--params", "weights.bin", "-d", "cpu"];
    ends(d, 0, &[&["run", "it/model.json", "-i", input, "-o", "z.pb"][..], &given].concat());
    assert_eq!(read_pb(&d.join("z.pb")).bytes(), y.bytes());
    ends(d, 0, &[&["verify", "it"][..], &given].concat());
    ends(d, 0, &["inspect", "it", "--params", "weights.bin", "--device", "cpu"]);
    fails(d, 2, &[&["verify", "it", "it"][..], &given].concat(), &["--params is for one case"]);
}

#[test]
fn files_that_are_no_models_are_named() {
    let dir = folder();
    let d = dir.path();
    let files: [(&str, &[u8], &str); 4] = [
        ("model.pt", b"PK\x03\x04\x14\0\0\0", "a ZIP archive, as PyTorch and Keras write it"),
        ("model.tflite", b"\x20\0\0\0TFL3\0\0", "a TensorFlow Lite model"),
        ("model.json", b"{\"nodes\": 7}", "model.json"),
        ("model.txt", b"hello", "model.txt"),
    ];
    for (name, bytes, phrase) in files {
        std::fs::write(d.join(name), bytes).unwrap();
        fails(d, 1, &["run", name, "-d", "cpu"], &[name, phrase]);
        fails(d, 1, &["inspect", name], &[name, phrase]);
    }
    let relu = Model::default().input("x", DType::F32, &[Dim::Size(3)]).node("Relu", &["x"], &["y"]);
    relu.output("y", DType::F32).write(&d.join("relu.onnx"));
    save_params(&d.join("p.params"), [("x", &f32s(&[3], &[1.0; 3]))]).unwrap();
    let args = ["inspect", "relu.onnx", "--params", "p.params"];
    fails(d, 1, &args, &["an ONNX model, which p.params cannot be added to"]);
    fails(d, 1, &["run", "p.params"], &["parameters only; load the graph's JSON"]);
}

#[test]
fn what_ran_on_the_cpu_is_counted() {
    let dir = folder();
    let d = dir.path();
    let values = Tensor::new([3], &[1.0f64, -2.0, 3.0]).unwrap();
    // An operator over doubles has no device kernel.
    let model = Model::default()
        .input("x", DType::F64, &[Dim::Size(3)])
        .node("Abs", &["x"], &["a"])
        .node("Floor", &["a"], &["y"])
        .output("y", DType::F64);
    let want = Tensor::new([3], &[1.0f64, 2.0, 3.0]).unwrap();
    case(&d.join("wide"), model, std::slice::from_ref(&values), std::slice::from_ref(&want));
    let out = ends(d, 0, &["verify", "wide", "-d", "vulkan", "-v"]);
    says(&out, &["on the CPU: 1 Abs, 1 Floor", "2 nodes of 1 cases ran on the CPU", "because"]);
    let json = ends(d, 0, &["verify", "wide", "wide", "-d", "vulkan", "--json"]);
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!(json["totals"]["with_fallback"], 2);
    assert_eq!(json["totals"]["fallback_nodes"], 4);
    assert_eq!(
        (json["fallbacks"]["Abs"]["cases"].as_u64(), json["fallbacks"]["Abs"]["nodes"].as_u64()),
        (Some(2), Some(2))
    );
    assert_eq!(json["cases"][0]["fallbacks"]["Floor"]["nodes"], 1);
    fails(d, 3, &["verify", "wide", "-d", "vulkan", "--no-fallback"], &[]);
    let json = ends(d, 0, &["verify", "wide", "-d", "cpu", "--json"]);
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!(json["totals"]["with_fallback"], 0);
}

#[test]
fn rounded_activations_are_compared_exactly_or_with_a_reason() {
    let dir = folder();
    let d = dir.path();
    let sizes = [("K", 32), ("N", 1), ("bits", 4), ("block_size", 32), ("accuracy_level", 4)];
    let model = Model::default()
        .input("x", DType::F32, &[Dim::Size(1), Dim::Size(32)])
        .constant("codes", &Tensor::new([1, 1, 16], &[0x99u8; 16]).unwrap())
        .constant("scales", &f32s(&[1], &[0.25]))
        .contributed("MatMulNBits", &["x", "codes", "scales"], "y", &sizes)
        .output("y", DType::F32);
    // Eight bits have no place for the small elements, 2 % of the sum.
    let mut x = [0.0f32; 32];
    x[0] = 127.0;
    x[1..9].fill(0.4);
    let (x, y) = (f32s(&[1, 32], &x), f32s(&[1, 1], &[(127.0 + 3.2) / 4.0]));
    case(&d.join("right"), model.clone(), std::slice::from_ref(&x), &[y]);
    case(&d.join("wrong"), model, &[x], &[f32s(&[1, 1], &[60.0])]);
    let (verify, allowed) = (["verify", "right", "-d", "cpu"], ["--activations", "allowed"]);
    ends(d, 0, &verify);
    ends(d, 0, &[&verify[..], &allowed].concat());
    let hint =
        "1 node may round activations to 8 bits, as the model allows; compare with --activations exact";
    let wrong = ["verify", "wrong", "-d", "cpu"];
    says(&ends(d, 1, &[&wrong[..], &allowed].concat()), &[hint]);
    assert!(!ends(d, 1, &wrong).contains("may round"));
    let bench = ["bench", "model", "right", "-d", "cpu", "--runs", "1"];
    let out = ends(d, 0, &bench);
    assert_eq!(out.contains("not the data set's"), out.contains(hint), "{out}");
    let exact = ends(d, 0, &[&bench[..], &["--activations", "exact"]].concat());
    assert!(!exact.contains("not the data set's"), "{exact}");
    fails(d, 1, &["bench", "model", "wrong", "-d", "cpu", "--runs", "1"], &[hint]);
}
