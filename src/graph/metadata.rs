//! What a model's file says of itself.

use std::collections::BTreeMap;

/// What a model's file says of itself besides its graph. All of it is empty for graphs that an application builds.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct ModelMetadata {
    /// The format of the file: "ONNX", "GGUF" or "TVM graph JSON".
    pub format: &'static str,
    /// Version of the file format; 0 where it has none.
    pub ir_version: i64,
    /// The program that wrote it.
    pub producer: String,
    /// The version of that program.
    pub producer_version: String,
    /// Whose model it is, as a reversed domain name.
    pub domain: String,
    /// Version of the model; 0 where it has none.
    pub version: i64,
    /// What people are told of the model.
    pub description: String,
    /// What people are told of its graph.
    pub graph_description: String,
    /// Operator set versions by domain; "" is ONNX's own.
    pub opsets: BTreeMap<String, i64>,
    /// Properties by their names: `metadata_props` of an ONNX model, all entries of a GGUF file, the `metadata` of a TVM
    /// graph. What is no text is one in JSON; an array of a GGUF file with more than 64 elements says its length alone.
    pub properties: BTreeMap<String, String>,
}
