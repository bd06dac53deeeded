//! The graph JSON of Apache TVM's graph executor.
//!
//! A graph names functions, not operators. A name is looked up in the caller's [`FunctionTable`], by the
//! node's device and then by name alone; then among this library's operators (`Relu`, with the node's
//! other attributes as its attributes); then taken apart as TVM's compiler makes names
//! (`tvmgen_default_fused_nn_conv2d_add_nn_relu`), where that leaves no doubt. `__nop` is a view of its
//! input and `__copy` a view that may lie on another device.

mod attrs;
mod document;
mod functions;
mod fused;
mod pointer;
mod relay;
mod resolve;

pub use document::{Call, Entry, GraphJson, JsonNode};
pub use functions::FunctionTable;

use std::path::Path;

use super::error::{ErrorLocation, LoadError, LoadErrorKind};
use super::params::{Params, load_params};
use super::source::Source;
use crate::graph::{Graph, NodeId, TensorId};
use crate::ops;

/// Device types as DLPack and TVM number them.
pub mod device_type {
    /// Host memory.
    pub const CPU: i32 = 1;
    /// OpenCL.
    pub const OPENCL: i32 = 4;
    /// Vulkan.
    pub const VULKAN: i32 = 7;
    /// Metal.
    pub const METAL: i32 = 8;
    /// A device of an extension: here the simulated one.
    pub const EXT: i32 = 12;

    /// Each type that a backend here stands for, with that backend's name.
    const APIS: [(i32, &str); 4] = [(CPU, "cpu"), (OPENCL, "opencl"), (VULKAN, "vulkan"), (EXT, "sim")];

    /// The type of devices of the API `api` ([`crate::backend::DeviceInfo::api`]); that of an API of someone
    /// else's is [`EXT`].
    pub fn of_api(api: &str) -> i32 {
        APIS.iter().find(|(_, name)| *name == api).map_or(EXT, |(ty, _)| *ty)
    }

    /// The API whose devices have type `ty`.
    pub fn api(ty: i32) -> Option<&'static str> {
        APIS.iter().find(|(known, _)| *known == ty).map(|(_, api)| *api)
    }
}

/// A graph and the document it was made from.
#[derive(Clone, Debug)]
pub struct TvmGraph {
    graph: Graph,
    json: GraphJson,
    entries: Vec<TensorId>,
    nodes: Vec<Vec<NodeId>>,
    params: Vec<String>,
    unused_params: Vec<String>,
}

impl TvmGraph {
    /// Makes the graph of `json`; `params` become constants, all other inputs stay inputs.
    ///
    /// # Errors
    /// [`LoadError`] with a JSON pointer: a function that is not known, a parameter or an operator that
    /// does not fit the columns, a cycle.
    pub fn new(json: GraphJson, params: Params, functions: &FunctionTable) -> Result<Self, LoadError> {
        resolve::resolve(json, params, functions, ops::find)
    }

    /// The graph.
    pub fn graph(&self) -> &Graph {
        &self.graph
    }

    /// The graph alone.
    pub fn into_graph(self) -> Graph {
        self.graph
    }

    /// The document: storage, devices and scopes by entry.
    pub fn json(&self) -> &GraphJson {
        &self.json
    }

    /// The tensor of an entry of the document ([`GraphJson::entry_id`]).
    pub fn tensor(&self, entry: usize) -> Option<TensorId> {
        self.entries.get(entry).copied()
    }

    /// Names of the document's inputs that have got their value from the parameters.
    pub fn params(&self) -> &[String] {
        &self.params
    }

    /// Names of parameters that the document has no input for.
    pub fn unused_params(&self) -> &[String] {
        &self.unused_params
    }

    /// Places every node on the entry of `table`, a list of device types, that the document says: the first of
    /// the type in column `device_index`, or the one of that type that column `device_id` numbers. Without column
    /// `device_index` all go on entry 0. With `fallback`, a node whose device is not in the table goes on entry 0
    /// too; the names of those nodes are returned.
    ///
    /// # Errors
    /// [`LoadErrorKind::OutOfRange`] for an empty table; [`LoadErrorKind::Unexpected`] with the place
    /// in the document for a device that is not in the table.
    pub fn place(&mut self, table: &[i32], fallback: bool) -> Result<Vec<String>, LoadError> {
        if table.is_empty() {
            return Err(LoadErrorKind::OutOfRange { what: "device", index: 0, count: 0 }.into());
        }
        let mut fallen = Vec::new();
        let mut places = Vec::new();
        for (n, node) in self.json.nodes.iter().enumerate() {
            let row = self.json.node_row_ptr.get(n).copied().unwrap_or(0) as usize;
            let wanted = self.json.device_index.as_ref().and_then(|d| d.get(row).copied());
            let id = self.json.device_id.as_ref().and_then(|d| d.get(row).copied()).unwrap_or(0);
            let of_type = |w: i32| table.iter().enumerate().filter(move |(_, t)| **t == w);
            let nth = |w: i32| of_type(w).nth(id as usize).map(|(at, _)| at);
            let place = match wanted.map_or(Some(0), nth) {
                Some(place) => place,
                None if node.call.is_none() && fallback => continue,
                None if fallback => {
                    fallen.push(node.name.clone());
                    0
                }
                None => {
                    let count = wanted.map_or(0, |w| of_type(w).count());
                    let column = if count == 0 { "device_index" } else { "device_id" };
                    let at = ErrorLocation::JsonPointer(format!("/attrs/{column}/1/{row}"));
                    let found = format!("device type {}, id {id}", wanted.unwrap_or(0));
                    let expected = format!(
                        "one of the session's devices, which are of types {table:?} (give it such a device, or let \
                         the graph run on any)"
                    );
                    return Err(LoadErrorKind::unexpected(expected, found).at(at));
                }
            };
            let place = u32::try_from(place).unwrap_or(u32::MAX);
            places.extend(self.nodes.get(n).into_iter().flatten().map(|id| (*id, place)));
        }
        for (id, place) in places {
            self.graph.place(id, Some(place));
        }
        Ok(fallen)
    }
}

/// Loads a graph JSON and the parameters next to it from memory.
///
/// # Errors
/// As [`GraphJson::parse`], [`super::params::read_params`] and [`TvmGraph::new`].
pub fn load_tvm_bytes(
    json: &[u8],
    params: Option<&[u8]>,
    functions: &FunctionTable,
) -> Result<TvmGraph, LoadError> {
    let params = params.map_or(Ok(Params::new()), super::params::read_params)?;
    TvmGraph::new(GraphJson::parse(json)?, params, functions)
}

/// Loads the graph JSON `json` and the parameter file `params`.
///
/// # Errors
/// As [`load_tvm_bytes`], and where a file cannot be read.
pub fn load_tvm(
    json: &Path,
    params: Option<&Path>,
    functions: &FunctionTable,
) -> Result<TvmGraph, LoadError> {
    load_tvm_with(json, params.map_or(Ok(Params::new()), load_params)?, functions)
}

/// As [`load_tvm`], with parameters that are loaded already.
pub(super) fn load_tvm_with(
    json: &Path,
    params: Params,
    functions: &FunctionTable,
) -> Result<TvmGraph, LoadError> {
    let read = |path: &Path| {
        let mut source = Source::open(path)?;
        let bytes = source.len();
        source.take("the graph", bytes)
    };
    let graph = read(json).and_then(|text| GraphJson::parse(&text));
    graph.and_then(|graph| TvmGraph::new(graph, params, functions)).map_err(|e| e.in_file(json))
}

#[cfg(test)]
mod tests;
