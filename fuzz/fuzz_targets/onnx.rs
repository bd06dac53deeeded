//! Any bytes as an ONNX model, and as one tensor of it.
#![no_main]

use libfuzzer_sys::fuzz_target;
use onepool::loader::onnx::{load_onnx_bytes, read_tensor_pb, write_tensor_pb};

fuzz_target!(|bytes: &[u8]| {
    if let Ok(graph) = load_onnx_bytes(bytes, None) {
        assert!(!graph.outputs().is_empty());
    }
    if let Ok((name, tensor)) = read_tensor_pb(bytes) {
        let (again, back) = read_tensor_pb(&write_tensor_pb(&name, &tensor)).expect("it was written so");
        assert_eq!((name, tensor.info(), tensor.bytes()), (again, back.info(), back.bytes()));
    }
});
