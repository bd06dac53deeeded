//! A recurrent language model in two files that share the matrix of the embedding and of the output.

use std::path::Path;
use std::sync::Arc;

use onepool::session::ParamStore;
use onepool::{HostRegion, Session, Tensor};

use crate::common::{check_messages, devices, held, open};
use crate::protobuf::{field, int};

const VOCABULARY: usize = 2000;
const EMBEDDING: usize = 64;
const HIDDEN: usize = 64;
const EMBEDDING_BYTES: u64 = (4 * VOCABULARY * EMBEDDING) as u64;

fn node(op: &str, inputs: &[&str], outputs: &[&str], attributes: &[(&str, u64)]) -> Vec<u8> {
    let mut out: Vec<u8> = inputs.iter().flat_map(|i| field(1, i.as_bytes())).collect();
    out.extend(outputs.iter().flat_map(|o| field(2, o.as_bytes())));
    out.extend(field(4, op.as_bytes()));
    for (name, value) in attributes {
        // Type 2: an integer.
        out.extend(field(5, &[field(1, name.as_bytes()), int(3, *value), int(20, 2)].concat()));
    }
    field(1, &out)
}

/// A graph input or output of ONNX's type `dtype`.
fn value(number: u64, name: &str, dtype: u64, dims: &[usize]) -> Vec<u8> {
    let dims: Vec<u8> = dims.iter().flat_map(|d| field(1, &int(1, *d as u64))).collect();
    let tensor = field(1, &[int(1, dtype), field(2, &dims)].concat());
    field(number, &[field(1, name.as_bytes()), field(2, &tensor)].concat())
}

/// The weights: name, sizes. All are contiguous in `shared.bin`.
const WEIGHTS: [(&str, &[usize]); 6] = [
    ("embedding", &[VOCABULARY, EMBEDDING]),
    ("w", &[1, 4 * HIDDEN, EMBEDDING]),
    ("r", &[1, 4 * HIDDEN, HIDDEN]),
    ("b", &[1, 8 * HIDDEN]),
    ("projection", &[HIDDEN, EMBEDDING]),
    ("bias", &[VOCABULARY]),
];

fn weight(name: &str) -> Vec<u8> {
    let mut offset = 0;
    for (found, dims) in WEIGHTS {
        let bytes = 4 * dims.iter().product::<usize>();
        if found != name {
            offset += bytes;
            continue;
        }
        let entry = |key: &str, value: String| {
            field(13, &[field(1, key.as_bytes()), field(2, value.as_bytes())].concat())
        };
        let mut out: Vec<u8> = dims.iter().flat_map(|d| int(1, *d as u64)).collect();
        out.extend([int(2, 1), field(8, name.as_bytes())].concat());
        out.extend(entry("location", "shared.bin".to_owned()));
        out.extend(entry("offset", offset.to_string()));
        out.extend(entry("length", bytes.to_string()));
        // Data in another file.
        out.extend(int(14, 1));
        return field(5, &out);
    }
    panic!("there is no weight {name}");
}

fn model(parts: &[Vec<u8>]) -> Vec<u8> {
    let graph = [parts.concat(), field(2, b"model")].concat();
    [int(1, 8), field(7, &graph), field(8, &int(2, 17))].concat()
}

/// Writes `step.onnx` (a token and a state to a state), `out.onnx` (a state to the scores of all tokens) and `full.onnx`
/// (both), with all weights in `shared.bin`.
fn write(folder: &Path) {
    let count: usize = WEIGHTS.iter().map(|(_, dims)| dims.iter().product::<usize>()).sum();
    let bytes: Vec<u8> = (0..count)
        .flat_map(|i| (((i * 7919 + i / 1009) % 1013) as f32 / 1013.0 - 0.5).to_le_bytes())
        .collect();
    std::fs::write(folder.join("shared.bin"), bytes).unwrap();
    let state = [1, 1, HIDDEN];
    let step = [
        node("Gather", &["embedding", "token"], &["x"], &[]),
        node(
            "LSTM",
            &["x", "w", "r", "b", "", "h_in", "c_in"],
            &["", "h_out", "c_out"],
            &[("hidden_size", HIDDEN as u64)],
        ),
    ];
    let step_weights = ["embedding", "w", "r", "b"].map(weight);
    let step_io = [
        value(11, "token", 7, &[1, 1]),
        value(11, "h_in", 1, &state),
        value(11, "c_in", 1, &state),
        value(12, "h_out", 1, &state),
        value(12, "c_out", 1, &state),
    ];
    // The shape that Reshape makes of a state.
    let rows = [
        int(1, 2),
        int(2, 7),
        field(8, b"rows"),
        field(9, &[1i64, EMBEDDING as i64].map(i64::to_le_bytes).concat()),
    ];
    let rows = field(5, &rows.concat());
    let out = |hidden: &str| {
        [
            node("MatMul", &[hidden, "projection"], &["p"], &[]),
            node("Reshape", &["p", "rows"], &["q"], &[]),
            node("Gemm", &["q", "embedding", "bias"], &["logits"], &[("transB", 1)]),
        ]
    };
    let scores = value(12, "logits", 1, &[1, VOCABULARY]);
    let save = |name: &str, parts: &[&[Vec<u8>]]| {
        std::fs::write(folder.join(name), model(&parts.concat())).unwrap();
    };
    save("step.onnx", &[&step, &step_weights, &step_io]);
    let out_weights = ["embedding", "projection", "bias"].map(weight);
    let hidden = [value(11, "hidden", 1, &state), scores.clone(), rows.clone()];
    save("out.onnx", &[&out("hidden"), &out_weights, &hidden]);
    let rest = [weight("projection"), weight("bias"), scores, rows];
    save("full.onnx", &[&step, &out("h_out"), &step_weights, &step_io, &rest]);
}

/// Runs tokens through `step`, and `out` on the last state; a whole model is both.
fn scores(step: &mut Session, out: Option<&mut Session>) -> Vec<f32> {
    let zero = Tensor::new([1, 1, HIDDEN], &[0f32; HIDDEN]).unwrap();
    let (mut h, mut c) = (zero.clone(), zero);
    for token in [7i64, 1999, 0, 42] {
        step.set_input("token", &Tensor::new([1, 1], &[token]).unwrap()).unwrap();
        step.set_input("h_in", &h).unwrap();
        step.set_input("c_in", &c).unwrap();
        step.run().unwrap();
        (h, c) = (step.get_output("h_out").unwrap(), step.get_output("c_out").unwrap());
    }
    let last = match out {
        Some(out) => {
            out.set_input("hidden", &h).unwrap();
            out.run().unwrap();
            out.get_output("logits").unwrap()
        }
        None => step.get_output("logits").unwrap(),
    };
    last.as_slice::<f32>().unwrap().to_vec()
}

/// Bytes of the host memory that the parameters of `sessions` lie in.
fn resident(sessions: &[&Session]) -> u64 {
    let mut regions: Vec<Arc<HostRegion>> = sessions
        .iter()
        .flat_map(|s| s.graph().constants())
        .filter_map(|(_, t)| Some(t.region()?.0))
        .collect();
    regions.sort_by_key(|r| Arc::as_ptr(r).addr());
    regions.dedup_by(|a, b| Arc::ptr_eq(a, b));
    regions.iter().map(|r| r.bytes() as u64).sum()
}

/// Bytes on the device and on the host of both halves, and the scores. Sessions of one file share it without a store, so the
/// halves are of two folders.
fn halves([first, second]: [&Path; 2], device: &str, shared: bool) -> (u64, u64, Vec<f32>) {
    let context = open(device);
    let store = ParamStore::new();
    let session = |folder: &Path, name: &str| {
        let builder = Session::builder().model(folder.join(name)).context(context.clone());
        let builder = if shared { builder.params(Arc::clone(&store)) } else { builder };
        builder.build().unwrap()
    };
    let (mut step, mut out) = (session(first, "step.onnx"), session(second, "out.onnx"));
    let scores = scores(&mut step, Some(&mut out));
    check_messages(&context);
    (held(&context), resident(&[&step, &out]), scores)
}

#[test]
fn a_split_language_model_holds_one_copy_of_its_shared_matrix() {
    let (folder, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    write(folder.path());
    write(other.path());
    let folders = [folder.path(), other.path()];
    for device in devices() {
        let context = open(device);
        let full = Session::builder().model(folder.path().join("full.onnx")).context(context.clone());
        let want = scores(&mut full.build().unwrap(), None);
        let (apart, apart_host, first) = halves(folders, device, false);
        let (shared, shared_host, second) = halves(folders, device, true);
        // Native functions read a shared matrix as it lies, and make sums in another order.
        if !context.info().native {
            assert_eq!(first, second, "{device}");
        }
        assert_eq!([first.len(), second.len()], [want.len(); 2], "{device}");
        for (got, want) in first.iter().chain(&second).zip(want.iter().chain(&want)) {
            assert!((got - want).abs() <= 1e-4 * want.abs().max(1.0), "{device}: {got}, whole {want}");
        }
        // Where parameters move to memory of the device, none are on the host.
        assert!(
            apart_host - shared_host >= EMBEDDING_BYTES || apart_host < EMBEDDING_BYTES,
            "{device}: {apart_host} and {shared_host} on the host"
        );
        assert!(apart - shared >= EMBEDDING_BYTES, "{device}: {apart} and {shared} on the device");
        let weights: usize = WEIGHTS.iter().map(|(_, dims)| 4 * dims.iter().product::<usize>()).sum();
        let most = weights as u64 + (64 << 10);
        assert!(shared_host <= most, "{device}: {shared_host} of {weights}");
        // No device holds a parameter in two layouts: products read columns where they lie, and what is packed is kept so.
        assert!(shared <= most + (64 << 10), "{device}: {shared} of {weights}");
    }
}
