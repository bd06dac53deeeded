//! The graph JSON of TVM's graph executor as a document: read strictly, written as TVM writes it.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

use super::pointer::At;
use crate::graph::ModelMetadata;
use crate::limits;
use crate::loader::error::{ErrorLocation, LoadError, LoadErrorKind};

/// One output of one node, as inputs and heads name it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The node's position.
    pub node: u32,
    /// Which of its outputs.
    pub index: u32,
    /// How often the value had been changed in place; 0 in all graphs of TVM.
    pub version: u32,
}

/// The call of a function by a node.
#[derive(Clone, Debug, PartialEq)]
pub struct Call {
    /// The function's name.
    pub func_name: String,
    /// How many entries the node has.
    pub num_outputs: u32,
    /// Whether the function sees its arguments as one-dimensional.
    pub flatten_data: bool,
    /// All other attributes; TVM's values are texts.
    pub attrs: BTreeMap<String, Value>,
}

/// A node: an input (or parameter), or a call.
#[derive(Clone, Debug, PartialEq)]
pub struct JsonNode {
    /// Its name; names of calls need not be unique.
    pub name: String,
    /// The call; `None` for inputs.
    pub call: Option<Call>,
    /// What it reads.
    pub inputs: Vec<Entry>,
    /// Nodes that must come before it.
    pub control_deps: Vec<u32>,
}

/// A graph JSON whose numbers all agree: every index is in range, every column has one value for each entry.
#[derive(Clone, Debug, PartialEq)]
pub struct GraphJson {
    /// The nodes, in the order TVM runs them.
    pub nodes: Vec<JsonNode>,
    /// The inputs, parameters included.
    pub arg_nodes: Vec<u32>,
    /// The outputs.
    pub heads: Vec<Entry>,
    /// The first entry of each node, and the number of entries.
    pub node_row_ptr: Vec<u32>,
    /// Sizes of each entry.
    pub shape: Vec<Vec<i64>>,
    /// Type of each entry, `float32` or `float16x4`.
    pub dltype: Vec<String>,
    /// Entries with one number may share memory.
    pub storage_id: Vec<u32>,
    /// The DLPack device type of each entry (1 host, 2 CUDA, 4 OpenCL, 7 Vulkan, 8 Metal, 10 ROCm);
    /// without it all are on the first device.
    pub device_index: Option<Vec<i32>>,
    /// Which of the devices of that type, as DLPack's `device_id` counts them; TVM does not write the column, and
    /// without it all are on the first of their type.
    pub device_id: Option<Vec<u32>>,
    /// How each entry is stored; "" and "global" are plain buffers.
    pub storage_scope: Option<Vec<String>>,
    /// Inputs that get no memory before they are bound.
    pub lazy_init_input: Vec<String>,
    /// Columns that are not known, kept to be written again.
    pub other_columns: BTreeMap<String, Value>,
    /// What TVM keeps in addition to the graph.
    pub metadata: Option<Value>,
}

impl GraphJson {
    /// Reads a graph JSON; what TVM reads is read, and more (see FORMATS of the documentation).
    ///
    /// # Errors
    /// [`LoadError`] with a JSON pointer to what is wrong.
    pub fn parse(text: &[u8]) -> Result<Self, LoadError> {
        let value: Value = serde_json::from_slice(text).map_err(|e| {
            let at = ErrorLocation::ByteOffset(byte_of(text, e.line(), e.column()));
            LoadErrorKind::Json(e).at(at)
        })?;
        let root = At::root(&value);
        for name in root.object()?.keys() {
            let known = ["nodes", "arg_nodes", "heads", "node_row_ptr", "attrs", "metadata"];
            if !known.contains(&name.as_str()) {
                tracing::warn!(key = name, "the graph has a key that is not known");
            }
        }
        let nodes = read_nodes(&root.need("nodes")?)?;
        let node_row_ptr = read_rows(&root.need("node_row_ptr")?, &nodes)?;
        check_inputs(&root.need("nodes")?, &nodes)?;
        let arg_nodes = read_args(&root.need("arg_nodes")?, &nodes)?;
        let heads_at = root.need("heads")?;
        let heads: Vec<Entry> = heads_at.items()?.map(|e| read_entry(&e)).collect::<Result<_, _>>()?;
        for (item, head) in heads_at.items()?.zip(&heads) {
            check_entry(&item, head, &nodes)?;
        }
        let entries = node_row_ptr.last().copied().unwrap_or(0) as usize;
        let columns = root.need("attrs")?;
        let mut json = GraphJson {
            nodes,
            arg_nodes,
            heads,
            node_row_ptr,
            shape: column(&columns, "shape", "list_shape", entries, |at| {
                at.items()?.map(|size| size.int()).collect()
            })?
            .ok_or_else(|| columns.error(LoadErrorKind::missing("column \"shape\"")))?,
            dltype: column(&columns, "dltype", "list_str", entries, |at| Ok(at.text()?.to_owned()))?
                .ok_or_else(|| columns.error(LoadErrorKind::missing("column \"dltype\"")))?,
            storage_id: column(&columns, "storage_id", "list_int", entries, |at| {
                at.index_below("storage", limits::MAX_TENSORS)
            })?
            .ok_or_else(|| columns.error(LoadErrorKind::missing("column \"storage_id\"")))?,
            device_index: column(&columns, "device_index", "list_int", entries, |at| {
                i32::try_from(at.int()?).map_err(|_| at.unexpected("a device type"))
            })?,
            device_id: column(&columns, "device_id", "list_int", entries, |at| at.index())?,
            storage_scope: column(&columns, "storage_scope", "list_str", entries, |at| {
                Ok(at.text()?.to_owned())
            })?,
            lazy_init_input: Vec::new(),
            other_columns: BTreeMap::new(),
            metadata: root.get("metadata").map(|m| m.value().clone()),
        };
        json.read_other_columns(&columns)?;
        json.check_storage(&columns)?;
        Ok(json)
    }

    fn read_other_columns(&mut self, columns: &At<'_>) -> Result<(), LoadError> {
        let known = ["shape", "dltype", "storage_id", "device_index", "device_id", "storage_scope"];
        for (name, at) in columns.members()? {
            if name == "lazy_init_input" {
                check_tag(&at, "list_str")?;
                let Some(list) = at.items()?.nth(1) else { continue };
                for name in list.items()? {
                    let text = name.text()?;
                    if !self.arg_nodes.iter().any(|&n| self.node(n).is_some_and(|n| n.name == text)) {
                        return Err(name.error(LoadErrorKind::missing(format!("the input {text:?}"))));
                    }
                    self.lazy_init_input.push(text.to_owned());
                }
            } else if !known.contains(&name) {
                tracing::warn!(column = name, "the graph has a column that is not known");
                self.other_columns.insert(name.to_owned(), at.value().clone());
            }
        }
        Ok(())
    }

    /// A storage belongs to one device.
    fn check_storage(&self, columns: &At<'_>) -> Result<(), LoadError> {
        let Some(devices) = &self.device_index else { return Ok(()) };
        let mut owner: BTreeMap<u32, (i32, u32)> = BTreeMap::new();
        for (entry, (&storage, &device)) in self.storage_id.iter().zip(devices).enumerate() {
            let id = self.device_id.as_ref().and_then(|ids| ids.get(entry)).copied().unwrap_or(0);
            let first = *owner.entry(storage).or_insert((device, id));
            if first != (device, id) {
                let kind = LoadErrorKind::unexpected(
                    format!("storage {storage} on device type {}, id {} only", first.0, first.1),
                    format!("device type {device}, id {id} for entry {entry}"),
                );
                let at = format!("{}/storage_id/1/{entry}", columns.pointer());
                return Err(kind.at(ErrorLocation::JsonPointer(at)));
            }
        }
        Ok(())
    }

    /// What the document says of itself: the members of its metadata, where that is an object.
    pub(super) fn model_metadata(&self) -> ModelMetadata {
        let text = |value: &Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
        let properties = match &self.metadata {
            Some(Value::Object(members)) => members.iter().map(|(name, v)| (name.clone(), text(v))).collect(),
            Some(other) => BTreeMap::from([("metadata".to_owned(), text(other))]),
            None => BTreeMap::new(),
        };
        ModelMetadata { format: "TVM graph JSON", properties, ..ModelMetadata::default() }
    }

    /// The node at position `node`.
    pub fn node(&self, node: u32) -> Option<&JsonNode> {
        self.nodes.get(node as usize)
    }

    /// The position of `entry` in the columns.
    pub fn entry_id(&self, entry: Entry) -> Option<usize> {
        let first = self.node_row_ptr.get(entry.node as usize)?;
        first.checked_add(entry.index).map(|id| id as usize)
    }

    /// The document as TVM writes it.
    pub fn to_json(&self) -> String {
        let entry = |e: &Entry| json!([e.node, e.index, e.version]);
        let node = |n: &JsonNode| {
            let mut out = Map::new();
            let op = if n.call.is_some() { "tvm_op" } else { "null" };
            out.insert("op".into(), op.into());
            out.insert("name".into(), n.name.clone().into());
            if let Some(call) = &n.call {
                let mut attrs: Map<String, Value> = call.attrs.clone().into_iter().collect();
                attrs.insert("func_name".into(), call.func_name.clone().into());
                attrs.insert("num_inputs".into(), n.inputs.len().to_string().into());
                attrs.insert("num_outputs".into(), call.num_outputs.to_string().into());
                attrs.insert("flatten_data".into(), if call.flatten_data { "1" } else { "0" }.into());
                out.insert("attrs".into(), attrs.into());
            }
            out.insert("inputs".into(), n.inputs.iter().map(entry).collect());
            if !n.control_deps.is_empty() {
                out.insert("control_deps".into(), n.control_deps.clone().into());
            }
            Value::from(out)
        };
        let mut columns: Map<String, Value> = self.other_columns.clone().into_iter().collect();
        columns.insert("shape".into(), json!(["list_shape", self.shape]));
        columns.insert("dltype".into(), json!(["list_str", self.dltype]));
        columns.insert("storage_id".into(), json!(["list_int", self.storage_id]));
        if let Some(devices) = &self.device_index {
            columns.insert("device_index".into(), json!(["list_int", devices]));
        }
        if let Some(ids) = &self.device_id {
            columns.insert("device_id".into(), json!(["list_int", ids]));
        }
        if let Some(scopes) = &self.storage_scope {
            columns.insert("storage_scope".into(), json!(["list_str", scopes]));
        }
        if !self.lazy_init_input.is_empty() {
            columns.insert("lazy_init_input".into(), json!(["list_str", self.lazy_init_input]));
        }
        let mut root = Map::new();
        root.insert("nodes".into(), self.nodes.iter().map(node).collect());
        root.insert("arg_nodes".into(), self.arg_nodes.clone().into());
        root.insert("heads".into(), self.heads.iter().map(entry).collect());
        root.insert("attrs".into(), columns.into());
        root.insert("node_row_ptr".into(), self.node_row_ptr.clone().into());
        if let Some(metadata) = &self.metadata {
            root.insert("metadata".into(), metadata.clone());
        }
        Value::from(root).to_string()
    }
}

/// The byte at `line` and `column`, both counted from 1.
fn byte_of(text: &[u8], line: usize, column: usize) -> u64 {
    let before: usize =
        text.split_inclusive(|b| *b == b'\n').take(line.saturating_sub(1)).map(<[u8]>::len).sum();
    before.saturating_add(column.saturating_sub(1)) as u64
}

fn read_nodes(at: &At<'_>) -> Result<Vec<JsonNode>, LoadError> {
    let count = at.items()?.len();
    if count > limits::MAX_NODES {
        let (found, limit) = (count as u64, limits::MAX_NODES as u64);
        return Err(at.error(LoadErrorKind::TooMany { what: "nodes", found, limit }));
    }
    at.items()?.map(|node| read_node(&node, count)).collect()
}

fn read_node(at: &At<'_>, count: usize) -> Result<JsonNode, LoadError> {
    for name in at.object()?.keys() {
        if !["op", "name", "inputs", "attr", "attrs", "control_deps"].contains(&name.as_str()) {
            tracing::warn!(at = at.pointer(), key = name, "a node has a key that is not known");
        }
    }
    let op = at.need("op")?;
    let is_call = match op.text()? {
        "null" => false,
        "tvm_op" => true,
        _ => return Err(op.unexpected("\"null\" or \"tvm_op\"")),
    };
    let name = at.need("name")?;
    let text = name.text()?;
    if text.len() > limits::MAX_NAME_BYTES {
        let (found, limit) = (text.len() as u64, limits::MAX_NAME_BYTES as u64);
        return Err(name.error(LoadErrorKind::TooMany { what: "bytes in one name", found, limit }));
    }
    let inputs_at = at.need("inputs")?;
    let inputs: Vec<Entry> = inputs_at.items()?.map(|e| read_entry(&e)).collect::<Result<_, _>>()?;
    let call = match (at.get("attrs"), at.get("attr")) {
        _ if !is_call => None,
        (Some(attrs), None) | (None, Some(attrs)) => Some(read_call(&attrs, inputs.len())?),
        (Some(_), Some(_)) => {
            let name = "attr and attrs".to_owned();
            return Err(at.error(LoadErrorKind::Duplicate { what: "attribute objects", name }));
        }
        (None, None) => return Err(at.error(LoadErrorKind::missing("\"attrs\""))),
    };
    if call.is_none() && !inputs.is_empty() {
        return Err(inputs_at.unexpected("no inputs of an input"));
    }
    let mut control_deps = Vec::new();
    if let Some(deps) = at.get("control_deps") {
        for dep in deps.items()? {
            // Some writers name entries here.
            let node = match dep.value() {
                Value::Array(_) => read_entry(&dep)?.node,
                _ => dep.index()?,
            };
            if node as usize >= count {
                let (what, index, count) = ("node", i64::from(node), count as u64);
                return Err(dep.error(LoadErrorKind::OutOfRange { what, index, count }));
            }
            control_deps.push(node);
        }
    }
    Ok(JsonNode { name: text.to_owned(), call, inputs, control_deps })
}

fn read_call(at: &At<'_>, inputs: usize) -> Result<Call, LoadError> {
    let func_name = at.need("func_name")?.text()?.to_owned();
    if let Some(declared) = at.get("num_inputs")
        && declared.index()? as usize != inputs
    {
        let (what, found) = ("inputs against num_inputs".to_owned(), inputs as u64);
        let expected = u64::from(declared.index()?);
        return Err(declared.error(LoadErrorKind::Count { what, expected, found }));
    }
    let num_outputs = match at.get("num_outputs") {
        None => 1,
        Some(declared) => match declared.index()? {
            n if n >= 1 && n as usize <= limits::MAX_NODE_ARITY => n,
            _ => return Err(declared.unexpected("a number of outputs")),
        },
    };
    let flatten_data = at.get("flatten_data").map_or(Ok(0), |f| f.int())? != 0;
    let own = ["func_name", "num_inputs", "num_outputs", "flatten_data"];
    let attrs = at.object()?.iter().filter(|(name, _)| !own.contains(&name.as_str()));
    let attrs = attrs.map(|(name, value)| (name.clone(), value.clone())).collect();
    Ok(Call { func_name, num_outputs, flatten_data, attrs })
}

fn read_entry(at: &At<'_>) -> Result<Entry, LoadError> {
    let mut numbers = [0; 3];
    let items = at.items()?;
    if !(2..=3).contains(&items.len()) {
        return Err(at.unexpected("a node, an output and perhaps a version"));
    }
    for (slot, item) in numbers.iter_mut().zip(items) {
        *slot = item.index()?;
    }
    let [node, index, version] = numbers;
    Ok(Entry { node, index, version })
}

fn outputs_of(node: &JsonNode) -> u32 {
    node.call.as_ref().map_or(1, |c| c.num_outputs)
}

fn check_inputs(at: &At<'_>, nodes: &[JsonNode]) -> Result<(), LoadError> {
    for (item, node) in at.items()?.zip(nodes) {
        let inputs = item.need("inputs")?;
        for (input, entry) in inputs.items()?.zip(&node.inputs) {
            check_entry(&input, entry, nodes)?;
        }
    }
    Ok(())
}

fn check_entry(at: &At<'_>, entry: &Entry, nodes: &[JsonNode]) -> Result<(), LoadError> {
    let out_of_range = |what, index: u32, count: u64| {
        at.error(LoadErrorKind::OutOfRange { what, index: i64::from(index), count })
    };
    let node = nodes.get(entry.node as usize);
    let node = node.ok_or_else(|| out_of_range("node", entry.node, nodes.len() as u64))?;
    let outputs = outputs_of(node);
    if entry.index >= outputs {
        return Err(out_of_range("output", entry.index, u64::from(outputs)));
    }
    Ok(())
}

fn read_rows(at: &At<'_>, nodes: &[JsonNode]) -> Result<Vec<u32>, LoadError> {
    let expected = nodes.len().saturating_add(1);
    let found = at.items()?.len();
    if found != expected {
        let what = "numbers, one more than nodes".to_owned();
        let (expected, found) = (expected as u64, found as u64);
        return Err(at.error(LoadErrorKind::Count { what, expected, found }));
    }
    let mut rows = Vec::with_capacity(found);
    let mut sum = 0u32;
    for (i, item) in at.items()?.enumerate() {
        if item.index()? != sum {
            return Err(item.unexpected(&format!("{sum}, the number of entries before node {i}")));
        }
        rows.push(sum);
        sum = sum.saturating_add(nodes.get(i).map_or(0, outputs_of));
        if sum as usize > limits::MAX_TENSORS {
            let (found, limit) = (u64::from(sum), limits::MAX_TENSORS as u64);
            return Err(item.error(LoadErrorKind::TooMany { what: "entries", found, limit }));
        }
    }
    Ok(rows)
}

fn read_args(at: &At<'_>, nodes: &[JsonNode]) -> Result<Vec<u32>, LoadError> {
    let mut listed = vec![false; nodes.len()];
    let mut args = Vec::new();
    for item in at.items()? {
        let node = item.index_below("node", nodes.len())?;
        if nodes.get(node as usize).is_some_and(|n| n.call.is_some()) {
            return Err(item.unexpected("the number of an input"));
        }
        if let Some(seen) = listed.get_mut(node as usize)
            && std::mem::replace(seen, true)
        {
            let name = node.to_string();
            return Err(item.error(LoadErrorKind::Duplicate { what: "arguments", name }));
        }
        args.push(node);
    }
    let unlisted = nodes.iter().zip(&listed).position(|(n, listed)| n.call.is_none() && !listed);
    match unlisted {
        Some(node) => Err(at.error(LoadErrorKind::missing(format!("input node {node}")))),
        None => Ok(args),
    }
}

/// Checks that a column is the tag `expected` and a value.
fn check_tag(at: &At<'_>, expected: &str) -> Result<(), LoadError> {
    let mut items = at.items()?;
    let (Some(tag), Some(_), None) = (items.next(), items.next(), items.next()) else {
        return Err(at.unexpected("a tag and a list"));
    };
    if tag.text()? == expected { Ok(()) } else { Err(tag.unexpected(&format!("the tag {expected:?}"))) }
}

/// Column `name`, one value for each of `entries`.
fn column<T>(
    columns: &At<'_>,
    name: &str,
    tag: &str,
    entries: usize,
    read: impl Fn(&At<'_>) -> Result<T, LoadError>,
) -> Result<Option<Vec<T>>, LoadError> {
    let Some(at) = columns.get(name) else { return Ok(None) };
    check_tag(&at, tag)?;
    let Some(list) = at.items()?.nth(1) else { return Ok(None) };
    let found = list.items()?.len();
    if found != entries {
        let what = "values, one for each entry".to_owned();
        let (expected, found) = (entries as u64, found as u64);
        return Err(list.error(LoadErrorKind::Count { what, expected, found }));
    }
    let values: Result<Vec<T>, LoadError> = list.items()?.map(|item| read(&item)).collect();
    values.map(Some)
}
