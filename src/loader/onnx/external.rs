//! Files in which tensors of a model lie besides its own.

use std::collections::BTreeSet;
use std::fs::File;
use std::path::Path;

use prost::Message as _;

use super::proto::{EXTERNAL, GraphProto, ModelProto, NodeProto, TensorProto};
use super::roots_of;
use super::skeleton::{Message, skeleton};
use super::tensor::{decode_error, entry};
use crate::files::open;
use crate::loader::error::{LoadError, LoadErrorKind};
use crate::loader::source::Source;

/// Names of the files, in the folder of the ONNX model `path`, that its tensors lie in.
pub(in crate::loader) fn names(path: &Path) -> Result<BTreeSet<String>, LoadError> {
    let mut names = BTreeSet::new();
    let mut source = Source::open(path)?;
    let walked = skeleton(&mut source, Message::Model).map_err(|e| e.in_file(path))?;
    let model = ModelProto::decode(walked.bytes.as_slice());
    let model = model.map_err(|e| decode_error("ONNX model", &e).in_file(path))?;
    if let Some(graph) = &model.graph {
        of_graph(graph, &mut names);
    }
    model.functions.iter().for_each(|function| of_nodes(&function.node, &mut names));
    Ok(names)
}

/// Opens the file `name` of the ONNX model `path`.
pub(in crate::loader) fn open(path: &Path, name: &str) -> Result<(File, u64), LoadError> {
    let opened = open::beneath(&roots_of(path), Path::new(name));
    let (file, found) = opened.map_err(|e| {
        let kind = LoadErrorKind::External { location: name.to_owned(), problem: e.to_string() };
        LoadError::from(kind).in_file(path)
    })?;
    Ok((file, found.len()))
}

// How deep graphs are nested is bounded by the walk that found them.
fn of_graph(graph: &GraphProto, names: &mut BTreeSet<String>) {
    graph.initializer.iter().for_each(|tensor| of_tensor(tensor, names));
    for sparse in &graph.sparse_initializer {
        sparse.values.iter().chain(&sparse.indices).for_each(|tensor| of_tensor(tensor, names));
    }
    of_nodes(&graph.node, names);
}

fn of_nodes(nodes: &[NodeProto], names: &mut BTreeSet<String>) {
    for attribute in nodes.iter().flat_map(|node| &node.attribute) {
        if let Some(graph) = &attribute.g {
            of_graph(graph, names);
        }
        if let Some(tensor) = &attribute.t {
            of_tensor(tensor, names);
        }
        if let Some(sparse) = &attribute.sparse_tensor {
            sparse.values.iter().chain(&sparse.indices).for_each(|tensor| of_tensor(tensor, names));
        }
    }
}

fn of_tensor(tensor: &TensorProto, names: &mut BTreeSet<String>) {
    if let Some(name) = entry(&tensor.external_data, "location").filter(|_| tensor.data_location == EXTERNAL)
    {
        names.insert(name.to_owned());
    }
}
