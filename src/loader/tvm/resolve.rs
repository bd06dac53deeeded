//! A graph JSON to a [`Graph`](crate::Graph): every call becomes an operator.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

use super::attrs::NodeAttrs;
use super::document::{Call, Entry, GraphJson, JsonNode};
use super::fused::{self, Source, Step};
use super::{FunctionTable, TvmGraph, device_type, relay};
use crate::dtype::DType;
use crate::graph::{GraphBuilder, NodeId, Origin, StorageScope, Tensor, TensorId, TensorInfo};
use crate::loader::Find;
use crate::loader::error::{ErrorLocation, LoadError, LoadErrorKind, nearest};
use crate::loader::params::Params;
use crate::ops::custom::CustomKernel;
use crate::ops::tvm::{TvmView, ViewKind};
use crate::ops::{self, AttrReader, Fact, OpCx, OpError, Operator};
use crate::shape::{Dim, Shape};

/// The opset as which a node that names an operator is read, unless it has an attribute `opset`.
const OPSET: i64 = 13;

/// Makes the graph of `json`.
pub(super) fn resolve(
    json: GraphJson,
    params: Params,
    functions: &FunctionTable,
    find: Find,
) -> Result<TvmGraph, LoadError> {
    let mut r = Resolver {
        json: &json,
        functions,
        find,
        builder: GraphBuilder::new(""),
        names: HashSet::new(),
        entries: Vec::new(),
        infos: entry_infos(&json)?,
        values: HashMap::new(),
        made: vec![Vec::new(); json.nodes.len()],
    };
    let (used, unused) = r.declare(params)?;
    for (i, node) in json.nodes.iter().enumerate() {
        if let Some(call) = &node.call {
            r.call(i, node, call).map_err(|f| f.at(i))?;
        }
    }
    r.control_deps();
    r.heads();
    let Resolver { builder, entries, made, .. } = r;
    let written: Vec<Vec<TensorId>> =
        made.into_iter().map(|nodes| nodes.into_iter().map(|(_, tensor)| tensor).collect()).collect();
    let mut graph = builder.build()?;
    graph.metadata = Arc::new(json.model_metadata());
    let node_of = |t: TensorId| match graph.tensor(t).origin {
        Origin::Node { node, .. } => Some(node),
        _ => None,
    };
    let nodes = written.into_iter().map(|ts| ts.into_iter().filter_map(node_of).collect()).collect();
    Ok(TvmGraph { graph, json, entries, nodes, params: used, unused_params: unused })
}

/// An error of a node or of an entry.
pub(super) enum Failure {
    Node(LoadErrorKind),
    /// A column does not say what the node computes.
    Column(usize, LoadErrorKind),
}

impl Failure {
    fn at(self, node: usize) -> LoadError {
        match self {
            Failure::Node(kind) => kind.at(ErrorLocation::JsonPointer(format!("/nodes/{node}"))),
            Failure::Column(entry, kind) => {
                kind.at(ErrorLocation::JsonPointer(format!("/attrs/shape/1/{entry}")))
            }
        }
    }
}

impl From<LoadErrorKind> for Failure {
    fn from(kind: LoadErrorKind) -> Self {
        Failure::Node(kind)
    }
}

impl From<OpError> for Failure {
    fn from(e: OpError) -> Self {
        Failure::Node(e.into())
    }
}

struct Resolver<'a> {
    json: &'a GraphJson,
    functions: &'a FunctionTable,
    find: Find,
    builder: GraphBuilder,
    names: HashSet<String>,
    /// The tensor, and the type and shape, of each entry.
    entries: Vec<TensorId>,
    infos: Vec<TensorInfo>,
    /// Parameters' values.
    values: HashMap<TensorId, Tensor>,
    /// For each node of the document the graph's nodes, with a tensor that each writes.
    made: Vec<Vec<(NodeId, TensorId)>>,
}

/// The arguments of one call.
struct Arguments {
    inputs: Vec<(TensorId, TensorInfo)>,
    outputs: Vec<(TensorId, TensorInfo)>,
    /// The first output's position in the columns.
    entry: usize,
}

impl Arguments {
    fn output_infos(&self) -> Vec<TensorInfo> {
        self.outputs.iter().map(|(_, info)| info.clone()).collect()
    }
}

impl<'a> Resolver<'a> {
    /// Declares the tensor of every entry; returns the names of the parameters that are inputs of the
    /// graph, and of those that are not.
    fn declare(&mut self, params: Params) -> Result<(Vec<String>, Vec<String>), LoadError> {
        let mut params: BTreeMap<String, Tensor> = params.into_iter().collect();
        let mut used = Vec::new();
        let mut inputs: HashMap<u32, TensorId> = HashMap::new();
        let mut seen = HashSet::new();
        for &arg in &self.json.arg_nodes {
            let Some(node) = self.json.node(arg) else { continue };
            let at = |kind: LoadErrorKind| kind.at(ErrorLocation::JsonPointer(format!("/nodes/{arg}/name")));
            if !seen.insert(node.name.as_str()) {
                return Err(at(LoadErrorKind::Duplicate { what: "inputs", name: node.name.clone() }));
            }
            self.names.insert(node.name.clone());
            let entry = self.json.entry_id(Entry { node: arg, index: 0, version: 0 });
            let Some(info) = entry.and_then(|entry| self.infos.get(entry).cloned()) else { continue };
            let id = match params.remove(&node.name) {
                Some(value) if *value.info() == info => {
                    used.push(node.name.clone());
                    let id = self.builder.constant(&node.name, value.clone());
                    self.values.insert(id, value);
                    id
                }
                Some(value) => {
                    let expected = format!("a parameter {:?} of {info}", node.name);
                    return Err(at(LoadErrorKind::unexpected(expected, value.info().to_string())));
                }
                None => {
                    let dims: Vec<Dim> = info.shape.iter().map(|&d| Dim::Known(d)).collect();
                    if self.json.lazy_init_input.contains(&node.name) {
                        self.builder.lazy_input(&node.name, info.dtype, dims)
                    } else {
                        self.builder.input(&node.name, info.dtype, dims)
                    }
                }
            };
            inputs.insert(arg, id);
        }
        for (n, node) in self.json.nodes.iter().enumerate() {
            let outputs = node.call.as_ref().map_or(1, |c| c.num_outputs);
            for index in 0..outputs {
                let id = match u32::try_from(n).ok().and_then(|n| inputs.get(&n)) {
                    Some(&id) => id,
                    None if outputs == 1 => self.declare_entry(&node.name),
                    None => self.declare_entry(&format!("{}:{index}", node.name)),
                };
                self.entries.push(id);
            }
        }
        for (entry, &id) in self.entries.iter().enumerate() {
            if let Some(info) = self.infos.get(entry)
                && !self.values.contains_key(&id)
            {
                self.builder.set_info(id, Some(info.dtype), Some((&info.shape).into()));
            }
        }
        self.scopes()?;
        let unused: Vec<String> = params.into_keys().collect();
        if !unused.is_empty() {
            tracing::warn!(?unused, "parameters that the graph has no input for");
        }
        Ok((used, unused))
    }

    fn declare_entry(&mut self, name: &str) -> TensorId {
        let name = self.unique(name);
        self.builder.declare(name)
    }

    /// `wanted`, or that with a number where it is taken: TVM's own graphs repeat names.
    fn unique(&mut self, wanted: &str) -> String {
        let mut name = wanted.to_owned();
        let mut count = self.names.len();
        while !self.names.insert(name.clone()) {
            name = format!("{wanted}~{count}");
            count = count.saturating_add(1);
        }
        name
    }

    fn scopes(&mut self) -> Result<(), LoadError> {
        for (entry, scope) in self.json.storage_scope.iter().flatten().enumerate() {
            let scope = match scope.as_str() {
                "" | "global" => continue,
                "global.texture" => StorageScope::Texture,
                "global.texture-weight" => StorageScope::TextureWeight,
                "global.texture-nhwc" => StorageScope::TextureNhwc,
                other => {
                    let at = ErrorLocation::JsonPointer(format!("/attrs/storage_scope/1/{entry}"));
                    return Err(LoadErrorKind::unsupported(format!("storage scope {other:?}")).at(at));
                }
            };
            if let Some(&id) = self.entries.get(entry) {
                self.builder.set_scope(id, scope);
            }
        }
        Ok(())
    }

    fn entry_id(&self, entry: Entry) -> Result<usize, LoadErrorKind> {
        let missing = || LoadErrorKind::missing(format!("entry {} of node {}", entry.index, entry.node));
        self.json.entry_id(entry).ok_or_else(missing)
    }

    fn tensor(&self, entry: usize) -> Result<(TensorId, TensorInfo), LoadErrorKind> {
        match (self.entries.get(entry), self.infos.get(entry)) {
            (Some(&id), Some(info)) => Ok((id, info.clone())),
            _ => Err(LoadErrorKind::missing(format!("entry {entry}"))),
        }
    }

    /// Adds what `call` computes.
    fn call(&mut self, n: usize, node: &JsonNode, call: &Call) -> Result<(), Failure> {
        let first = Entry { node: u32::try_from(n).unwrap_or(u32::MAX), index: 0, version: 0 };
        let entry = self.entry_id(first)?;
        let inputs = node.inputs.iter().map(|e| self.tensor(self.entry_id(*e)?));
        let inputs: Vec<(TensorId, TensorInfo)> = inputs.collect::<Result<_, _>>()?;
        let last = entry.saturating_add(call.num_outputs as usize);
        let outputs: Vec<(TensorId, TensorInfo)> =
            (entry..last).map(|e| self.tensor(e)).collect::<Result<_, _>>()?;
        let args = Arguments { inputs, outputs, entry };
        match call.func_name.as_str() {
            "__nop" => self.view(n, node, args, ViewKind::Reshape),
            "__copy" => self.view(n, node, args, ViewKind::Copy),
            _ if call.flatten_data => self.flattened(n, node, call, args),
            _ => self.function(n, node, call, &args),
        }
    }

    fn add(
        &mut self,
        n: usize,
        name: &str,
        op: Arc<dyn Operator>,
        inputs: &[TensorId],
        outputs: &[TensorId],
    ) {
        let inputs: Vec<Option<TensorId>> = inputs.iter().copied().map(Some).collect();
        let wanted: Vec<Option<TensorId>> = outputs.iter().copied().map(Some).collect();
        let id = self.builder.node_into(name, op, &inputs, &wanted);
        if let (Some(made), Some(&first)) = (self.made.get_mut(n), outputs.first()) {
            made.push((id, first));
        }
    }

    fn view(&mut self, n: usize, node: &JsonNode, args: Arguments, kind: ViewKind) -> Result<(), Failure> {
        let ([(input, from), ..], [(output, to)]) = (args.inputs.as_slice(), args.outputs.as_slice()) else {
            let found = format!("{} and {}", args.inputs.len(), args.outputs.len());
            return Err(LoadErrorKind::unexpected("one input and one output", found).into());
        };
        if from.dtype != to.dtype || from.elements() != to.elements() {
            let expected = format!("a tensor like the node's input {from}");
            return Err(Failure::Column(args.entry, LoadErrorKind::unexpected(expected, to.to_string())));
        }
        self.add(n, &node.name, Arc::new(TvmView::new(kind, to.shape.clone())), &[*input], &[*output]);
        Ok(())
    }

    /// Adds a call whose function sees its arguments as one-dimensional. Other nodes see them as they are.
    fn flattened(&mut self, n: usize, node: &JsonNode, call: &Call, args: Arguments) -> Result<(), Failure> {
        let flat = |info: &TensorInfo| {
            Shape::new([info.elements()]).map(|s| TensorInfo::new(info.dtype, s)).map_err(LoadErrorKind::from)
        };
        let mut inner = Arguments { inputs: Vec::new(), outputs: Vec::new(), entry: args.entry };
        for (i, (id, info)) in args.inputs.iter().enumerate() {
            let to = flat(info)?;
            if *info == to {
                inner.inputs.push((*id, to));
                continue;
            }
            let view = self.declare_entry(&format!("{}:flat_in{i}", node.name));
            let op = TvmView::new(ViewKind::Reshape, to.shape.clone());
            self.add(n, &node.name, Arc::new(op), &[*id], &[view]);
            inner.inputs.push((view, to));
        }
        let mut back = Vec::new();
        for (i, (id, info)) in args.outputs.iter().enumerate() {
            let to = flat(info)?;
            if *info == to {
                inner.outputs.push((*id, to));
                continue;
            }
            let view = self.declare_entry(&format!("{}:flat_out{i}", node.name));
            inner.outputs.push((view, to));
            back.push((view, *id, info.shape.clone()));
        }
        self.function(n, node, call, &inner)?;
        for (view, id, shape) in back {
            self.add(n, &node.name, Arc::new(TvmView::new(ViewKind::Reshape, shape)), &[view], &[id]);
        }
        Ok(())
    }

    /// Adds the function that `call` names: the caller's, else an operator, else a chain of them.
    fn function(&mut self, n: usize, node: &JsonNode, call: &Call, args: &Arguments) -> Result<(), Failure> {
        let name = call.func_name.as_str();
        let device = self.json.device_index.as_ref().and_then(|d| d.get(args.entry).copied());
        if self.functions.get(name, device).is_some() || (device.is_none() && self.has(name)) {
            return self.operator(n, node, self.registered(name, device, args), args);
        }
        if let Some(def) = (self.find)("", name) {
            let given = NodeAttrs(&call.attrs);
            let attrs =
                relay::plain_attributes(&given).map_err(|problem| unknown(name, problem, Vec::new()))?;
            let opset = if given.has("opset") {
                given.int("opset").map_err(|problem| unknown(name, problem, Vec::new()))?
            } else {
                OPSET
            };
            let mut reader = AttrReader::new(&attrs, args.inputs.len(), args.outputs.len());
            let op = (def.read)(&mut reader, opset)?;
            let unread = reader.unread();
            if !unread.is_empty() {
                tracing::warn!(node = node.name, op = name, ?unread, "attributes are not known and ignored");
            }
            return self.operator(n, node, op, args);
        }
        let chain = relay::chain(name);
        if chain.is_none() && self.has(name) {
            // Only other devices have it: whether that will do is decided where nodes are placed.
            return self.operator(n, node, self.registered(name, device, args), args);
        }
        let Some(chain) = chain else {
            let mut known: Vec<&str> = self.functions.names().collect();
            relay::names().for_each(|name| known.push(name));
            ops::FAMILIES.iter().flat_map(|f| f.ops).for_each(|d| known.push(d.name));
            let problem = "it is neither in the function table nor an operator".to_owned();
            return Err(unknown(name, problem, nearest(name, known)).into());
        };
        self.chain(n, node, call, &chain, args).map_err(|problem| {
            let problem = format!("{problem}; register a kernel for it in the function table");
            unknown(name, problem, Vec::new()).into()
        })
    }

    fn has(&self, name: &str) -> bool {
        self.functions.all(name).next().is_some()
    }

    /// The operator that runs the caller's kernels of one name, each on its type of device; that of `device` comes
    /// first.
    fn registered(&self, name: &str, device: Option<i32>, args: &Arguments) -> Arc<dyn Operator> {
        let mut calls: Vec<_> = self.functions.all(name).collect();
        calls.sort_by_key(|(ty, _)| (ty.is_none() || *ty != device, ty.is_some()));
        let of = |ty: i32| device_type::api(ty).map_or_else(|| format!("device type {ty}"), str::to_owned);
        let calls = calls.into_iter().map(|(ty, call)| (ty.map(of), call.clone()));
        Arc::new(CustomKernel::by_device(name, calls.collect(), args.output_infos()))
    }

    /// Adds one operator over all arguments, after checking that the columns say what it gives.
    fn operator(
        &mut self,
        n: usize,
        node: &JsonNode,
        op: Arc<dyn Operator>,
        args: &Arguments,
    ) -> Result<(), Failure> {
        let fact = |(id, info): &(TensorId, TensorInfo)| {
            Some(self.values.get(id).map_or_else(|| Fact::of(info.clone()), |v| Fact::known(v.clone())))
        };
        let cx = OpCx::for_infer(args.inputs.iter().map(fact).collect(), args.outputs.len());
        match op.infer(&cx) {
            // Only the run knows.
            Err(OpError::NeedsValue { .. }) => {}
            Err(e) => return Err(e.into()),
            Ok(infos) => {
                for (i, (found, (_, declared))) in infos.iter().zip(&args.outputs).enumerate() {
                    if found != declared {
                        let kind = LoadErrorKind::unexpected(
                            format!("{found}, which {} computes", node.name),
                            declared.to_string(),
                        );
                        return Err(Failure::Column(args.entry.saturating_add(i), kind));
                    }
                }
            }
        }
        let inputs: Vec<TensorId> = args.inputs.iter().map(|(id, _)| *id).collect();
        let outputs: Vec<TensorId> = args.outputs.iter().map(|(id, _)| *id).collect();
        self.add(n, &node.name, op, &inputs, &outputs);
        Ok(())
    }

    fn chain(
        &mut self,
        n: usize,
        node: &JsonNode,
        call: &Call,
        chain: &[&relay::Relay],
        args: &Arguments,
    ) -> Result<(), relay::Problem> {
        let [(output, declared)] = args.outputs.as_slice() else {
            return Err("its name tells nothing of several outputs".to_owned());
        };
        let inputs: Vec<TensorInfo> = args.inputs.iter().map(|(_, info)| info.clone()).collect();
        let steps = fused::steps(chain, &NodeAttrs(&call.attrs), &inputs, declared, self.find)?;
        let mut results: Vec<TensorId> = Vec::new();
        let count = steps.len();
        for (i, Step { op, sources, info }) in steps.into_iter().enumerate() {
            let to = if i.saturating_add(1) == count {
                *output
            } else {
                let id = self.declare_entry(&format!("{}:step{i}", node.name));
                self.builder.set_info(id, Some(info.dtype), Some((&info.shape).into()));
                id
            };
            let from = |s: &Source| match *s {
                Source::Argument(a) => args.inputs.get(a).map(|(id, _)| *id),
                Source::Step(s) => results.get(s).copied(),
            };
            let from: Option<Vec<TensorId>> = sources.iter().map(from).collect();
            let from = from.ok_or_else(|| "its arguments are not all there".to_owned())?;
            self.add(n, &node.name, op, &from, &[to]);
            results.push(to);
        }
        Ok(())
    }

    fn control_deps(&mut self) {
        for (n, node) in self.json.nodes.iter().enumerate() {
            for &dep in &node.control_deps {
                // An input is there from the start.
                let Some(&(before, _)) = self.made.get(dep as usize).and_then(|m| m.last()) else { continue };
                for &(id, _) in self.made.get(n).into_iter().flatten() {
                    self.builder.control_dep(id, before);
                }
            }
        }
    }

    /// Outputs are named like their node; where that is not unique, with their position.
    fn heads(&mut self) {
        let mut count: HashMap<&str, usize> = HashMap::new();
        let name_of = |head: &Entry| self.json.node(head.node).map_or("", |n| n.name.as_str());
        for head in &self.json.heads {
            let count = count.entry(name_of(head)).or_default();
            *count = count.saturating_add(1);
        }
        for (i, head) in self.json.heads.iter().enumerate() {
            let name = name_of(head);
            let unique = count.get(name) == Some(&1);
            let name = if unique { name.to_owned() } else { format!("{name}:{i}") };
            let entry = self.json.entry_id(*head).and_then(|entry| self.entries.get(entry));
            if let Some(&id) = entry {
                self.builder.output(name, id);
            }
        }
    }
}

fn unknown(name: &str, problem: String, candidates: Vec<String>) -> LoadErrorKind {
    LoadErrorKind::UnknownFunction { name: name.to_owned(), problem, candidates }
}

/// Type and shape of each entry. A type with lanes has them as its last dimension.
fn entry_infos(json: &GraphJson) -> Result<Vec<TensorInfo>, LoadError> {
    let info = |(entry, (sizes, name)): (usize, (&Vec<i64>, &String))| {
        let at = |column: &str, kind: LoadErrorKind| {
            kind.at(ErrorLocation::JsonPointer(format!("/attrs/{column}/1/{entry}")))
        };
        let (dtype, lanes) = parse_dtype(name)
            .ok_or_else(|| at("dltype", LoadErrorKind::unsupported(format!("element type {name:?}"))))?;
        let mut sizes = sizes.clone();
        sizes.extend((lanes > 1).then_some(lanes));
        let shape = Shape::from_i64(&sizes).map_err(|e| at("shape", e.into()))?;
        Ok(TensorInfo::new(dtype, shape))
    };
    json.shape.iter().zip(&json.dltype).enumerate().map(info).collect()
}

/// The element type and the lanes of a type as TVM writes it.
fn parse_dtype(name: &str) -> Option<(DType, i64)> {
    let (base, lanes) = match name.rsplit_once('x') {
        Some((base, lanes)) if lanes.bytes().all(|b| b.is_ascii_digit()) => {
            (base, lanes.parse::<u16>().ok().filter(|n| *n > 0)?)
        }
        _ => (name, 1),
    };
    let dtype = match base {
        "uint1" | "bool" => DType::Bool,
        // TVM's own defaults for a missing width.
        "float" => DType::F32,
        "int" => DType::I32,
        "uint" => DType::U32,
        // Of types narrower than a byte TVM packs several into one.
        other => DType::from_name(other).filter(|d| !d.is_narrow())?,
    };
    Some((dtype, i64::from(lanes)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn types_are_read_as_tvm_writes_them() {
        assert_eq!(parse_dtype("float32"), Some((DType::F32, 1)));
        assert_eq!(parse_dtype("float16x4"), Some((DType::F16, 4)));
        assert_eq!(parse_dtype("uint1"), Some((DType::Bool, 1)));
        assert_eq!(parse_dtype("bool"), Some((DType::Bool, 1)));
        assert_eq!(parse_dtype("int"), Some((DType::I32, 1)));
        for bad in ["handle", "", "float32x0", "float32x99999", "int4", "xx4"] {
            assert_eq!(parse_dtype(bad), None, "{bad}");
        }
    }
}
