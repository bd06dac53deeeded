//! ONNX models.
//!
//! A file is walked once for its structure (`skeleton`); the data of its tensors, in the file or in
//! files next to it, is then read straight to where it stays (`store`).

mod attribute;
mod collected;
mod composed;
#[cfg(feature = "generate")]
pub(super) mod external;
mod graph;
mod legacy;
mod packed;
mod proto;
mod sequence;
mod skeleton;
mod store;
mod summary;
mod syntax;
mod tensor;

pub use packed::names as list_names;
pub use summary::summarize_onnx;
pub use tensor::{read_list_pb, read_tensor_pb, write_tensor_pb};

use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use prost::Message as _;

use super::Find;
use super::error::{LoadError, LoadErrorKind};
use super::options::Wishes;
use super::source::Source;
use crate::graph::{Graph, ModelMetadata, Tensor};
use crate::ops;
use graph::Importer;
use proto::{ModelProto, NodeProto, OperatorSetIdProto, PropertyProto};
use skeleton::{Message, skeleton};
use store::Store;
use tensor::decode_error;

/// Whether ONNX operator `name` is one over sequences or optionals: there is no row of it in
/// [`ops::FAMILIES`], because the loader follows what it makes and leaves only the tensors that are taken from it.
pub fn is_sequence_operator(name: &str) -> bool {
    sequence::is_one(name)
}

/// Operators of `com.microsoft` of which there is no row in [`ops::FAMILIES`], because the loader puts nodes of
/// other operators in their place.
pub fn composed_operators() -> impl Iterator<Item = &'static str> {
    composed::names()
}

/// The newest IR version whose meaning is known.
const NEWEST_IR: i64 = 14;
/// The newest opset of the default domain whose operators are known.
pub const NEWEST_OPSET: i64 = 28;
/// The oldest opset that is read without the restrictions of [`legacy`].
const OLDEST_OPSET: i64 = 7;

/// Loads the ONNX model `path`; external data is found in its folder.
///
/// # Errors
/// [`LoadError`] with the node, tensor or byte that is wrong.
pub fn load_onnx(path: &Path) -> Result<Graph, LoadError> {
    load_onnx_with(path, (None, None, None))
}

/// Folders in which the model `path` may have external data.
fn roots_of(path: &Path) -> Vec<PathBuf> {
    let folder = |p: &Path| match p.parent() {
        Some(parent) if parent.as_os_str().is_empty() => PathBuf::from("."),
        Some(parent) => parent.to_owned(),
        None => PathBuf::from("."),
    };
    // The path may be a link into a store of files, with the data next to the file it leads to.
    let mut roots = vec![folder(path)];
    roots.extend(path.canonicalize().ok().map(|real| folder(&real)));
    roots
}

/// As [`load_onnx`]; with wishes as in [`super::LoadOptions`].
pub(super) fn load_onnx_with(path: &Path, wishes: Wishes<'_>) -> Result<Graph, LoadError> {
    let roots = roots_of(path);
    let source = Source::open(path)?;
    if let (.., Some(used)) = wishes {
        used.note(path.to_owned(), source.identity());
    }
    load(source, roots, ops::find, HashMap::new(), wishes).map_err(|e| e.in_file(path))
}

/// Loads an ONNX model from memory; external data is found in the folder `base_dir`.
///
/// # Errors
/// As [`load_onnx`]; external data without `base_dir` is an error.
pub fn load_onnx_bytes(bytes: &[u8], base_dir: Option<&Path>) -> Result<Graph, LoadError> {
    load_onnx_parts(bytes, base_dir, HashMap::new())
}

/// As [`load_onnx_bytes`], for a model whose main graph has initializers without data: `values` has them by name, and
/// they are taken as they are.
///
/// # Errors
/// As there; a value has another type or shape than its initializer.
pub fn load_onnx_parts(
    bytes: &[u8],
    base_dir: Option<&Path>,
    values: HashMap<String, Tensor>,
) -> Result<Graph, LoadError> {
    let roots = base_dir.map(Path::to_owned).into_iter().collect();
    load(Source::of(bytes), roots, ops::find, values, (None, None, None))
}

fn load(
    mut source: Source<'_>,
    roots: Vec<PathBuf>,
    find: Find,
    values: HashMap<String, Tensor>,
    (progress, map, used): Wishes<'_>,
) -> Result<Graph, LoadError> {
    let walked = skeleton(&mut source, Message::Model)?;
    let mut model =
        ModelProto::decode(walked.bytes.as_slice()).map_err(|e| decode_error("ONNX model", &e))?;
    if model.ir_version <= 0 {
        return Err(LoadErrorKind::missing("the IR version (is this an ONNX model?)").into());
    }
    if model.ir_version > NEWEST_IR {
        tracing::warn!(
            ir_version = model.ir_version,
            newest = NEWEST_IR,
            "the model is newer than this library"
        );
    }
    let opsets = Opsets::of_model(&model)?;
    let metadata = metadata(&model, &opsets);
    number_nodes(&mut model);
    collected::rewrite(&mut model);
    composed::expand(&mut model, opsets.get("").unwrap_or(NEWEST_OPSET))?;
    let graph = model.graph.as_deref().ok_or_else(|| LoadErrorKind::missing("the graph"))?;
    let mut store = Store::new(source, walked.held, roots);
    (store.used, store.map, store.source.map) = (used, map, map);
    store.give(&graph.initializer, values)?;
    let mut graph = Importer::new(&model, &opsets, store, find, progress)?.main_graph(graph)?;
    graph.metadata = Arc::new(metadata);
    Ok(graph)
}

/// What the model says of itself.
fn metadata(model: &ModelProto, opsets: &Opsets) -> ModelMetadata {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let property = |property: &PropertyProto| (text(&property.key), text(&property.value));
    ModelMetadata {
        format: "ONNX",
        ir_version: model.ir_version,
        producer: model.producer_name.clone(),
        producer_version: model.producer_version.clone(),
        domain: text(&model.domain),
        version: model.model_version,
        description: text(&model.doc_string),
        graph_description: model.graph.as_ref().map(|graph| text(&graph.doc_string)).unwrap_or_default(),
        opsets: opsets.0.clone(),
        properties: model.metadata_props.iter().map(property).collect(),
    }
}

/// Counts the nodes of the graph and of each function, before any is put in the place of others.
fn number_nodes(model: &mut ModelProto) {
    fn number(nodes: &mut [NodeProto]) {
        for (number_of, node) in (0..).zip(nodes) {
            node.number = number_of;
            let graphs = node.attribute.iter_mut().filter_map(|attribute| attribute.g.as_mut());
            graphs.for_each(|graph| number(&mut graph.node));
        }
    }
    model.graph.iter_mut().for_each(|graph| number(&mut graph.node));
    model.functions.iter_mut().for_each(|function| number(&mut function.node));
}

/// Which version of each domain's operators a model or function uses.
#[derive(Clone, Debug, Default)]
struct Opsets(BTreeMap<String, i64>);

impl Opsets {
    fn of(imports: &[OperatorSetIdProto]) -> Result<Self, LoadErrorKind> {
        let mut opsets = BTreeMap::new();
        for import in imports {
            let domain = if import.domain == "ai.onnx" { "" } else { &import.domain };
            if import.version <= 0 {
                let found = format!("{} for domain {domain:?}", import.version);
                return Err(LoadErrorKind::unexpected("an opset version of at least 1", found));
            }
            if domain.is_empty() && import.version > NEWEST_OPSET {
                tracing::warn!(
                    opset = import.version,
                    newest = NEWEST_OPSET,
                    "the opset is newer than this library"
                );
            }
            opsets.insert(domain.to_owned(), import.version);
        }
        Ok(Opsets(opsets))
    }

    fn of_model(model: &ModelProto) -> Result<Self, LoadErrorKind> {
        let mut opsets = Opsets::of(&model.opset_import)?;
        if opsets.get("").is_none() {
            // Files before IR version 3 name no opset and mean the first.
            let assumed = if model.ir_version < 3 { 1 } else { NEWEST_OPSET };
            if model.ir_version >= 3 {
                tracing::warn!(assumed, "the model does not say which opset of the default domain it uses");
            }
            opsets.0.insert(String::new(), assumed);
        }
        Ok(opsets)
    }

    fn get(&self, domain: &str) -> Option<i64> {
        self.0.get(domain).copied()
    }

    /// Takes over what `outer` says of domains that are not here.
    fn inherit(&mut self, outer: &Opsets) {
        for (domain, &version) in &outer.0 {
            self.0.entry(domain.clone()).or_insert(version);
        }
    }
}

#[cfg(test)]
mod sequence_tests;
#[cfg(test)]
mod tests;
