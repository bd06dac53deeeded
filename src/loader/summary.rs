//! What a model says of itself: for people who want to know what they have.

use std::collections::BTreeMap;
use std::path::Path;

use super::error::LoadError;
use super::gguf::summarize_gguf;
use super::onnx::summarize_onnx;
use super::{Kind, load_json, model_file, without_params};
use crate::graph::{Graph, ModelMetadata, TensorDecl};
use crate::ops;

/// What a model file holds, read without asking whether any of it is supported.
#[derive(Clone, Debug, Default, serde::Serialize)]
pub struct ModelSummary {
    /// What the file says of itself.
    #[serde(flatten)]
    pub metadata: ModelMetadata,
    /// The graph's name.
    pub graph: String,
    /// What the caller gives; parameters that the file lists as inputs are left out.
    pub inputs: Vec<SummaryIo>,
    /// What the caller gets.
    pub outputs: Vec<SummaryIo>,
    /// Nodes of the graph and its sub-graphs.
    pub nodes: usize,
    /// Operators of the graph, its sub-graphs and the functions that the model defines, most frequent first.
    pub operators: Vec<OperatorCount>,
    /// Functions that the model defines.
    pub functions: Vec<String>,
    /// Parameters by element type.
    pub parameters: Vec<ParameterGroup>,
}

/// An input or output in words.
#[derive(Clone, Debug, serde::Serialize)]
pub struct SummaryIo {
    /// Its name.
    pub name: String,
    /// Its element type, or what it is if it is no tensor.
    pub kind: String,
    /// Its shape, as far as it is declared.
    pub shape: String,
    /// The labels of its columns where it is the scores `[rows, classes]` of a classifier that ONNX makes a
    /// sequence of maps of (`ZipMap`); empty for all others.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub classes: Vec<String>,
}

/// How often a model uses an operator.
#[derive(Clone, Debug, serde::Serialize)]
pub struct OperatorCount {
    /// Its name.
    pub name: String,
    /// Its domain; "" is ONNX's own.
    pub domain: String,
    /// How many nodes.
    pub count: usize,
    /// The family it is in; `None` where it is not supported.
    pub family: Option<&'static str>,
    /// Whether it is a function that the model defines.
    pub function: bool,
    /// Whether it has device kernels.
    pub device_kernels: bool,
}

impl OperatorCount {
    /// Whether a node of it can be loaded, as far as its name tells.
    pub fn is_known(&self) -> bool {
        self.function || self.family.is_some()
    }
}

/// Parameters of one element type.
#[derive(Clone, Debug, Default, serde::Serialize)]
pub struct ParameterGroup {
    /// The element type's name.
    pub dtype: String,
    /// How many tensors.
    pub tensors: usize,
    /// Their elements.
    pub elements: u64,
    /// Their bytes; 0 for types that are not supported.
    pub bytes: u64,
}

/// Reads what the model `path` says of itself: of an ONNX model also what is not supported; a TVM graph is
/// loaded, with the parameters `params` or those next to it, as [`super::load_with`] does.
///
/// # Errors
/// [`LoadError`] where the file is no model, and where a TVM graph cannot be loaded.
pub fn summarize(path: &Path, params: Option<&Path>) -> Result<ModelSummary, LoadError> {
    match model_file(path)? {
        (path, Kind::Onnx) => {
            without_params(&path, "an ONNX model", params)?;
            summarize_onnx(&path)
        }
        (path, Kind::Gguf) => {
            without_params(&path, "a GGUF file", params)?;
            summarize_gguf(&path)
        }
        (path, Kind::Json) => {
            Ok(of_graph(&load_json(&path, &super::LoadOptions { params, ..Default::default() })?))
        }
    }
}

/// What a loaded graph tells.
pub(super) fn of_graph(graph: &Graph) -> ModelSummary {
    let io = |name: &str, t: &TensorDecl| SummaryIo {
        name: name.to_owned(),
        kind: t.dtype.map_or("?".to_owned(), |d| d.to_string()),
        shape: t.shape.as_ref().map_or("?".to_owned(), ToString::to_string),
        classes: Vec::new(),
    };
    let mut operators: BTreeMap<&str, (usize, Option<&'static str>)> = BTreeMap::new();
    for node in graph.nodes() {
        let (count, _) = operators.entry(node.op.name()).or_insert((0, node.op.family()));
        *count = count.saturating_add(1);
    }
    let mut parameters: BTreeMap<&str, ParameterGroup> = BTreeMap::new();
    for (_, tensor) in graph.constants() {
        let group = parameters.entry(tensor.dtype().name()).or_default();
        group.dtype = tensor.dtype().to_string();
        group.tensors = group.tensors.saturating_add(1);
        group.elements = group.elements.saturating_add(tensor.info().elements() as u64);
        group.bytes = group.bytes.saturating_add(tensor.info().bytes() as u64);
    }
    let mut operators: Vec<OperatorCount> = operators
        .into_iter()
        .map(|(name, (count, own))| {
            let row = |f: &'static ops::Family| Some((f, f.ops.iter().find(|d| d.name == name)?));
            let found = ops::FAMILIES.iter().find_map(row).map(|(family, def)| (family.name, def.gpu));
            // What no family has is made by the loader.
            let found = found.or(own.map(|family| (family, true)));
            let (family, device_kernels) = found.unwrap_or(("tvm", false));
            OperatorCount {
                name: name.to_owned(),
                domain: String::new(),
                count,
                family: Some(family),
                function: false,
                device_kernels,
            }
        })
        .collect();
    operators.sort_by(|a, b| b.count.cmp(&a.count).then_with(|| a.name.cmp(&b.name)));
    ModelSummary {
        metadata: graph.metadata().clone(),
        graph: graph.name().to_owned(),
        inputs: graph.inputs().iter().map(|&id| graph.tensor(id)).map(|t| io(&t.name, t)).collect(),
        outputs: graph.outputs().iter().map(|(name, id)| io(name, graph.tensor(*id))).collect(),
        nodes: graph.nodes().len(),
        operators,
        parameters: parameters.into_values().collect(),
        ..ModelSummary::default()
    }
}
