//! `GraphProto` to [`Graph`].
//!
//! Sub-graphs of control flow become graphs of their own. A tensor of an outer graph that one of a
//! node's sub-graphs reads is appended to the node's inputs, and every sub-graph of that node gets it
//! as one of its last inputs ([`Graph::captured`]), in the same order; a constant is simply repeated
//! in the sub-graph. Model-local functions are inlined.

mod flex;

use std::collections::{HashMap, HashSet};

use super::attribute::attribute_value;
use super::packed::{self, Packed};
use super::proto::{FunctionProto, GraphProto, ModelProto, NodeProto, ValueInfoProto};
use super::sequence::{self, Sequence};
use super::store::Store;
use super::syntax::{
    collect_node_tensors, collect_tensors, constant_value, free_names, list_of, type_of, zip_maps,
};
use super::tensor::dtype_of;
use super::{Opsets, legacy};
use crate::graph::{Graph, GraphBuilder, Tensor, TensorId};
use crate::limits;
use crate::loader::Find;
use crate::loader::error::{ErrorLocation, LoadError, LoadErrorKind, nearest};
use crate::ops::{self, AttrMap, AttrReader, AttrValue, OpDef, OpError};

/// Makes graphs of one model.
pub(super) struct Importer<'m, 's> {
    pub(super) store: Store<'s>,
    functions: HashMap<(&'m str, &'m str, &'m str), &'m FunctionProto>,
    opsets: &'m Opsets,
    find: Find,
    /// Nodes seen, those of inlined functions each time.
    visited: usize,
}

/// A graph being made.
pub(super) struct Making {
    pub(super) builder: GraphBuilder,
    /// Names in use, and how often each was asked for.
    names: HashMap<String, usize>,
    pub(super) constants: HashMap<TensorId, Tensor>,
}

/// What a name stands for.
#[derive(Clone, Copy, Debug)]
pub(super) struct Slot {
    /// `None` for an argument that a function's caller left out.
    id: Option<TensorId>,
    pub(super) defined: bool,
}

/// Names that nodes of one graph or one function body see.
pub(super) struct Scope<'m, 'a> {
    pub(super) slots: HashMap<&'m str, Slot>,
    /// Names that stand for sequences.
    pub(super) sequences: HashMap<&'m str, Sequence>,
    opsets: &'a Opsets,
    /// Attributes of the function call.
    pub(super) attrs: &'a AttrMap,
    /// What names of tensors begin with.
    prefix: String,
    /// Graphs and functions around.
    depth: usize,
}

/// A tensor of an outer graph that a sub-graph reads.
#[derive(Clone)]
enum Capture {
    Constant(Tensor),
    Input,
    /// A function's argument that the caller left out.
    Absent,
    /// A sequence, and how each of its tensors comes.
    Sequence(Sequence, Vec<Capture>),
}

impl Making {
    fn new(name: &str) -> Self {
        Making { builder: GraphBuilder::new(name), names: HashMap::new(), constants: HashMap::new() }
    }

    /// `wanted`, or that with a number where it is taken.
    pub(super) fn unique(&mut self, wanted: &str) -> String {
        let mut name = wanted.to_owned();
        let mut count = self.names.get(wanted).copied().unwrap_or(0);
        while self.names.contains_key(&name) {
            name = format!("{wanted}~{count}");
            count = count.saturating_add(1);
        }
        self.names.insert(wanted.to_owned(), count.max(1));
        self.names.entry(name.clone()).or_insert(1);
        name
    }

    pub(super) fn constant(&mut self, wanted: &str, value: Tensor) -> TensorId {
        let name = self.unique(wanted);
        let id = self.builder.constant(name, value.clone());
        self.constants.insert(id, value);
        id
    }
}

impl<'m> Scope<'m, '_> {
    /// The tensor that a node reads as `name`; `None` for an absent one.
    pub(super) fn get(&mut self, making: &mut Making, name: &'m str) -> Option<TensorId> {
        if name.is_empty() {
            return None;
        }
        if let Some(slot) = self.slots.get(name) {
            return slot.id;
        }
        let unique = making.unique(&format!("{}{name}", self.prefix));
        let id = making.builder.declare(unique);
        self.slots.insert(name, Slot { id: Some(id), defined: false });
        Some(id)
    }

    /// The tensor that a node writes as `name`.
    pub(super) fn define(
        &mut self,
        making: &mut Making,
        name: &'m str,
    ) -> Result<Option<TensorId>, LoadErrorKind> {
        let id = self.get(making, name);
        match self.slots.get_mut(name) {
            Some(slot) if slot.defined => {
                Err(LoadErrorKind::Duplicate { what: "tensors", name: name.to_owned() })
            }
            Some(slot) => {
                slot.defined = true;
                Ok(id)
            }
            None => Ok(None),
        }
    }

    /// Binds `name` to a tensor that exists already.
    pub(super) fn bind(
        &mut self,
        name: &'m str,
        id: Option<TensorId>,
        what: &'static str,
    ) -> Result<(), LoadErrorKind> {
        match self.slots.insert(name, Slot { id, defined: true }) {
            Some(slot) if slot.defined => Err(LoadErrorKind::Duplicate { what, name: name.to_owned() }),
            _ => Ok(()),
        }
    }

    /// Binds `name` to a constant.
    fn constant(&mut self, making: &mut Making, name: &'m str, value: Tensor) -> Result<(), LoadErrorKind> {
        match self.slots.get_mut(name) {
            Some(slot) if slot.defined => {
                Err(LoadErrorKind::Duplicate { what: "tensors", name: name.to_owned() })
            }
            Some(Slot { id: Some(id), defined }) => {
                *defined = true;
                making.constants.insert(*id, value.clone());
                making.builder.define_constant(*id, value);
                Ok(())
            }
            _ => {
                let id = making.constant(&format!("{}{name}", self.prefix), value);
                self.bind(name, Some(id), "tensors")
            }
        }
    }
}

impl<'m, 's> Importer<'m, 's> {
    /// Will make the graphs of `model`, whose data is in `store`.
    pub(super) fn new(
        model: &'m ModelProto,
        opsets: &'m Opsets,
        mut store: Store<'s>,
        find: Find,
        progress: Option<&dyn Fn(u64, u64)>,
    ) -> Result<Self, LoadError> {
        let mut tensors = Vec::new();
        if let Some(graph) = &model.graph {
            collect_tensors(graph, &mut tensors);
        }
        for node in model.functions.iter().flat_map(|f| &f.node) {
            collect_node_tensors(node, &mut tensors);
        }
        store.preload(&tensors, progress)?;
        let mut functions = HashMap::new();
        for f in &model.functions {
            let key = (domain_of(&f.domain), f.name.as_str(), f.overload.as_str());
            if functions.insert(key, f).is_some() {
                return Err(LoadErrorKind::Duplicate { what: "functions", name: f.name.clone() }.into());
            }
        }
        Ok(Importer { store, functions, opsets, find, visited: 0 })
    }

    /// The model's main graph.
    pub(super) fn main_graph(&mut self, proto: &'m GraphProto) -> Result<Graph, LoadError> {
        let tables = zip_maps(proto);
        let read = |o: &&ValueInfoProto| !tables.contains_key(o.name.as_str()) && list_of(o).is_none();
        for output in proto.output.iter().filter(read) {
            type_of(output).map_err(|kind| kind.at(ErrorLocation::Tensor(output.name.clone())))?;
        }
        let attrs = AttrMap::new();
        Ok(self.graph(proto, &[], &[], Scope::outermost(self.opsets, &attrs))?.0)
    }

    /// The graph, and which of its outputs are sequences: each is two outputs there. The inputs `lists` are too.
    fn graph(
        &mut self,
        proto: &'m GraphProto,
        captures: &[(&'m str, Capture)],
        lists: &[usize],
        mut scope: Scope<'m, '_>,
    ) -> Result<(Graph, Vec<usize>), LoadError> {
        let making = &mut Making::new(&proto.name);
        self.inputs(proto, lists, making, &mut scope)?;
        bind_captures(proto, captures, making, &mut scope)?;
        self.body(&proto.node, making, &mut scope)?;
        for info in proto.value_info.iter().chain(&proto.output) {
            // Of a type that is not supported there is nothing to declare.
            let (Some(slot), Ok((dtype, shape))) = (scope.slots.get(info.name.as_str()), type_of(info))
            else {
                continue;
            };
            if let Some(id) = slot.id
                && making.builder.producer(id).is_some()
            {
                making.builder.set_info(id, dtype, shape);
            }
        }
        let (mut listed, mut times) = (Vec::new(), HashMap::new());
        for (o, output) in proto.output.iter().enumerate() {
            let at = |kind: LoadErrorKind| kind.at(ErrorLocation::Tensor(output.name.clone()));
            if let Some(sequence) = scope.sequences.get(output.name.as_str()).cloned() {
                let made = Packed::of(&output.name, sequence, making).map_err(|e| e.at(at))?;
                for (name, id) in packed::names(&output.name).into_iter().zip([made.values, made.table]) {
                    making.builder.output(name, id);
                }
                listed.push(o);
                continue;
            }
            if list_of(output).is_some() {
                let what = "a sequence as an output that no node before makes, or an optional";
                return Err(at(LoadErrorKind::unsupported(what)));
            }
            let id = scope.get(making, &output.name);
            let id = id.ok_or_else(|| LoadErrorKind::missing("the name of an output"))?;
            // Some exporters list a tensor once for every time that it is returned.
            let times = times.entry(output.name.as_str()).or_insert(0usize);
            match *times {
                0 => making.builder.output(&output.name, id),
                n => making.builder.output(format!("{}~{n}", output.name), id),
            }
            *times = times.saturating_add(1);
        }
        Ok((std::mem::take(&mut making.builder).build()?, listed))
    }

    /// Inputs and initializers. An initializer of the main graph that is also an input is a default that
    /// the caller could override; here it is a constant.
    fn inputs(
        &mut self,
        proto: &'m GraphProto,
        lists: &[usize],
        making: &mut Making,
        scope: &mut Scope<'m, '_>,
    ) -> Result<(), LoadError> {
        let sparse =
            |t: &'m super::proto::SparseTensorProto| t.values.as_ref().map_or("", |v| v.name.as_str());
        let constants: HashSet<&str> = proto
            .initializer
            .iter()
            .map(|t| t.name.as_str())
            .chain(proto.sparse_initializer.iter().map(sparse))
            .collect();
        let main = scope.depth == 0;
        for (i, input) in proto.input.iter().enumerate() {
            let at = |kind: LoadErrorKind| kind.at(ErrorLocation::Tensor(input.name.clone()));
            if main && constants.contains(input.name.as_str()) {
                continue;
            }
            let declared = list_of(input);
            if declared.is_some() || lists.contains(&i) {
                let dtype = declared.unwrap_or_default().map(dtype_of).transpose().map_err(at)?;
                let packed = Packed::inputs(&input.name, dtype, making);
                scope.define_sequence(&input.name, Sequence::Packed(packed)).map_err(at)?;
                continue;
            }
            let (dtype, shape) = type_of(input).map_err(at)?;
            let name = making.unique(&input.name);
            let id = making.builder.declare_input(name, dtype, shape);
            scope.bind(&input.name, Some(id), "inputs").map_err(at)?;
        }
        let mut constant = |name: &'m str, value: Tensor| {
            // The formal input of a sub-graph is given by its node.
            if !main && scope.slots.contains_key(name) {
                return Ok(());
            }
            scope
                .constant(making, name, value)
                .map_err(|kind| kind.at(ErrorLocation::Tensor(name.to_owned())))
        };
        for t in &proto.initializer {
            constant(&t.name, self.store.tensor(t)?)?;
        }
        for t in &proto.sparse_initializer {
            constant(sparse(t), self.store.sparse_tensor(t)?)?;
        }
        Ok(())
    }

    /// Adds `nodes`: constants first, so that every use finds the value.
    fn body(
        &mut self,
        nodes: &'m [NodeProto],
        making: &mut Making,
        scope: &mut Scope<'m, '_>,
    ) -> Result<(), LoadError> {
        for constants in [true, false] {
            for node in nodes {
                if is_constant(node) == constants {
                    self.count_node()?;
                    self.node(node, making, scope).map_err(|e| match e {
                        Failure::Here(kind) => kind.at(ErrorLocation::node(&node.called(), &node.op_type)),
                        Failure::Inside(e) => e,
                    })?;
                }
            }
        }
        Ok(())
    }

    fn count_node(&mut self) -> Result<(), LoadError> {
        self.visited = self.visited.saturating_add(1);
        if self.visited > limits::MAX_NODES {
            let (found, limit) = (self.visited as u64, limits::MAX_NODES as u64);
            return Err(LoadErrorKind::TooMany { what: "nodes", found, limit }.into());
        }
        Ok(())
    }

    fn node(
        &mut self,
        node: &'m NodeProto,
        making: &mut Making,
        scope: &mut Scope<'m, '_>,
    ) -> Result<(), Failure> {
        let domain = domain_of(&node.domain);
        let opset = self.opset(domain, scope.opsets);
        let read_as = if domain.is_empty() { opset.max(super::OLDEST_OPSET) } else { opset };
        if sequence::reads(domain, &node.op_type, read_as) {
            return self.sequence_node(node, making, scope);
        }
        let def = (self.find)(domain, &node.op_type).filter(|d| d.since <= read_as);
        let key = (domain, node.op_type.as_str(), node.overload.as_str());
        let function = self.functions.get(&key).copied().filter(|_| def.is_none());
        let repeats = domain.is_empty() && node.op_type == "Loop";
        if sequence::pass(node, repeats || function.is_some(), scope)? {
            return Ok(());
        }
        if def.is_none() && !is_constant(node) {
            return match function {
                Some(function) => self.inline(function, node, making, scope),
                None => Err(unknown_operator(node, domain, opset).into()),
            };
        }
        let (mut attrs, graphs) = self.attributes(node, scope.attrs)?;
        if flex::is_flex(domain, node, &graphs) {
            return self.flex(node, &attrs, &graphs, making, scope);
        }
        let Some(def) = def else {
            let value = constant_value(&attrs)?;
            let name = node.output.first().map_or("", String::as_str);
            if !name.is_empty() {
                scope.constant(making, name, value)?;
            }
            return Ok(());
        };
        let (mut inputs, lists) = node_inputs(node, making, scope)?;
        // What sub-graphs capture comes after all inputs that the operator may have.
        while graphs.is_empty() && matches!(inputs.last(), Some(None)) {
            inputs.pop();
        }
        let listed = self.subgraphs(&graphs, &lists, making, scope, &mut inputs, &mut attrs)?;
        let listed = if repeats { repeated(&lists, &listed, node, &attrs)? } else { listed };
        let outputs = node_outputs(node, &listed, making, scope)?;
        let op = read_op(def, node, &attrs, inputs.len(), opset)?;
        making.builder.node_into(format!("{}{}", scope.prefix, node.name), op, &inputs, &outputs);
        Ok(())
    }

    /// The attributes of a node, and those that are graphs.
    fn attributes(
        &mut self,
        node: &'m NodeProto,
        outer: &AttrMap,
    ) -> Result<(AttrMap, Vec<(&'m str, &'m GraphProto)>), Failure> {
        let (mut attrs, mut graphs) = (AttrMap::new(), Vec::new());
        for attr in &node.attribute {
            match &attr.g {
                Some(graph) if attr.ref_attr_name.is_empty() => graphs.push((attr.name.as_str(), &**graph)),
                _ => {
                    if let Some(value) = attribute_value(attr, outer, &mut self.store)? {
                        attrs.insert(attr.name.clone(), value);
                    }
                }
            }
        }
        Ok((attrs, graphs))
    }

    /// The version of `domain` that applies.
    fn opset(&self, domain: &str, opsets: &Opsets) -> i64 {
        opsets.get(domain).or_else(|| self.opsets.get(domain)).unwrap_or(if domain.is_empty() {
            super::NEWEST_OPSET
        } else {
            1
        })
    }

    /// Makes the graphs that are attributes of one node, and appends what they capture to its inputs; which of
    /// their outputs are sequences, as the inputs `lists` are.
    fn subgraphs(
        &mut self,
        graphs: &[(&'m str, &'m GraphProto)],
        lists: &[usize],
        making: &mut Making,
        scope: &mut Scope<'m, '_>,
        inputs: &mut Vec<Option<TensorId>>,
        attrs: &mut AttrMap,
    ) -> Result<Vec<usize>, Failure> {
        let mut seen = HashSet::new();
        let mut captures = Vec::new();
        for name in graphs.iter().flat_map(|(_, g)| free_names(g)) {
            if !seen.insert(name) {
                continue;
            }
            let mut tensor = |id: TensorId, making: &Making| match making.constants.get(&id) {
                Some(value) => Capture::Constant(value.clone()),
                None => {
                    inputs.push(Some(id));
                    Capture::Input
                }
            };
            let capture = match scope.sequences.get(name) {
                Some(sequence) => {
                    let parts = sequence.tensors().into_iter().map(|id| tensor(id, making)).collect();
                    Capture::Sequence(sequence.clone(), parts)
                }
                None => scope.get(making, name).map_or(Capture::Absent, |id| tensor(id, making)),
            };
            captures.push((name, capture));
        }
        let mut listed: Option<Vec<usize>> = None;
        for (name, graph) in graphs {
            let inner = scope.inner(String::new(), scope.opsets, scope.attrs)?;
            let (graph, own) = self.graph(graph, &captures, lists, inner).map_err(Failure::Inside)?;
            attrs.insert((*name).to_owned(), AttrValue::Graph(Box::new(graph)));
            if listed.replace(own.clone()).is_some_and(|other| other != own) {
                return Err(packed::differs("the same output of both branches"));
            }
        }
        Ok(listed.unwrap_or_default())
    }

    /// Adds the nodes of `function` in place of `node`, which calls it.
    fn inline(
        &mut self,
        function: &'m FunctionProto,
        node: &'m NodeProto,
        making: &mut Making,
        scope: &mut Scope<'m, '_>,
    ) -> Result<(), Failure> {
        let too_many = |what: &str, found: usize, expected: usize| LoadErrorKind::Count {
            what: format!("{what} of a call of function {:?}", function.name),
            expected: expected as u64,
            found: found as u64,
        };
        if node.input.len() > function.input.len() {
            return Err(too_many("inputs", node.input.len(), function.input.len()).into());
        }
        if node.output.len() > function.output.len() {
            return Err(too_many("outputs", node.output.len(), function.output.len()).into());
        }
        let attrs = self.call_attributes(function, node, scope.attrs)?;
        let mut opsets = Opsets::of(&function.opset_import)?;
        opsets.inherit(scope.opsets);
        let (mut given, mut lists) = (Vec::new(), Vec::new());
        for (i, formal) in function.input.iter().enumerate() {
            let actual = node.input.get(i).map_or("", String::as_str);
            match scope.sequences.get(actual).cloned() {
                Some(sequence) => lists.push((formal.as_str(), sequence)),
                None => given.push((formal.as_str(), scope.get(making, actual))),
            }
        }
        let prefix = match node.name.as_str() {
            "" => format!("{}{}/", scope.prefix, function.name),
            name => format!("{}{name}/", scope.prefix),
        };
        let mut inner = scope.inner(prefix, &opsets, &attrs)?;
        for (formal, actual) in given {
            inner.bind(formal, actual, "inputs of a function")?;
        }
        for (formal, sequence) in lists {
            inner.define_sequence(formal, sequence)?;
        }
        let mut passed = Vec::new();
        for (formal, wanted) in function.output.iter().zip(&node.output) {
            let Some(id) = scope.define(making, wanted)? else { continue };
            match inner.slots.get(formal.as_str()) {
                Some(slot) => passed.push((slot.id, id)),
                None => {
                    inner.slots.insert(formal, Slot { id: Some(id), defined: false });
                }
            }
        }
        self.body(&function.node, making, &mut inner).map_err(Failure::Inside)?;
        for (formal, wanted) in function.output.iter().zip(&node.output) {
            if let Some(sequence) = inner.sequences.get(formal.as_str()).filter(|_| !wanted.is_empty()) {
                // It was taken for a tensor, which nothing can have read.
                scope.slots.remove(wanted.as_str());
                scope.define_sequence(wanted, sequence.clone())?;
            }
        }
        for (from, to) in passed {
            let identity = (self.find)("", "Identity").ok_or_else(|| {
                LoadErrorKind::unsupported("a function that returns its input without the operator Identity")
            })?;
            let op = (identity.read)(&mut AttrReader::new(&AttrMap::new(), 1, 1), super::NEWEST_OPSET)?;
            making.builder.node_into(format!("{}identity", inner.prefix), op, &[from], &[Some(to)]);
        }
        Ok(())
    }

    /// The attributes that the body of `function` sees when `node` calls it.
    fn call_attributes(
        &mut self,
        function: &'m FunctionProto,
        node: &'m NodeProto,
        outer: &AttrMap,
    ) -> Result<AttrMap, Failure> {
        let mut attrs = AttrMap::new();
        for default in &function.attribute_proto {
            if let Some(value) = attribute_value(default, outer, &mut self.store)? {
                attrs.insert(default.name.clone(), value);
            }
        }
        for given in &node.attribute {
            if given.g.is_some() {
                return Err(LoadErrorKind::unsupported("a graph as an attribute of a function's call").into());
            }
            if let Some(value) = attribute_value(given, outer, &mut self.store)? {
                attrs.insert(given.name.clone(), value);
            }
        }
        Ok(attrs)
    }
}

impl<'m, 'a> Scope<'m, 'a> {
    fn outermost(opsets: &'a Opsets, attrs: &'a AttrMap) -> Self {
        Scope {
            slots: HashMap::new(),
            sequences: HashMap::new(),
            opsets,
            attrs,
            prefix: String::new(),
            depth: 0,
        }
    }

    /// An empty scope one deeper.
    fn inner<'b>(
        &self,
        prefix: String,
        opsets: &'b Opsets,
        attrs: &'b AttrMap,
    ) -> Result<Scope<'m, 'b>, LoadErrorKind> {
        let depth = self.depth.saturating_add(1);
        if depth > limits::MAX_DEPTH || prefix.len() > limits::MAX_NAME_BYTES {
            return Err(LoadErrorKind::TooDeep { what: "graphs and functions", limit: limits::MAX_DEPTH });
        }
        Ok(Scope { slots: HashMap::new(), sequences: HashMap::new(), opsets, attrs, prefix, depth })
    }
}

/// An error of a node, or one inside its sub-graph or function that has its place already.
pub(super) enum Failure {
    Here(LoadErrorKind),
    Inside(LoadError),
}

impl Failure {
    /// The error, at the place that `at` gives it if it has none.
    fn at(self, at: impl FnOnce(LoadErrorKind) -> LoadError) -> LoadError {
        match self {
            Failure::Here(kind) => at(kind),
            Failure::Inside(e) => e,
        }
    }
}

impl From<LoadErrorKind> for Failure {
    fn from(kind: LoadErrorKind) -> Self {
        Failure::Here(kind)
    }
}

impl From<OpError> for Failure {
    fn from(e: OpError) -> Self {
        Failure::Here(e.into())
    }
}

impl From<LoadError> for Failure {
    fn from(e: LoadError) -> Self {
        Failure::Inside(e)
    }
}

/// Which outputs of a Loop are sequences: what it carries, as its body's inputs and outputs must say the same of, and
/// what is collected as one.
fn repeated(
    lists: &[usize],
    listed: &[usize],
    node: &NodeProto,
    attrs: &AttrMap,
) -> Result<Vec<usize>, Failure> {
    // A body's first output is the condition, a node's first two inputs the number and the condition.
    if lists.iter().map(|i| i.wrapping_sub(1)).ne(listed.iter().copied()) {
        return Err(packed::differs("what the body of a Loop gives back for one, and only there"));
    }
    let states = node.input.len().saturating_sub(2);
    let mut all: Vec<usize> = listed.iter().map(|o| o.saturating_sub(1)).collect();
    let reader = AttrReader::new(attrs, node.input.len(), node.output.len());
    for k in reader.ints_opt(ops::control::COLLECTED).map_err(OpError::from)?.unwrap_or_default() {
        let k = usize::try_from(k).map_err(|_| LoadErrorKind::unexpected("a stack", k.to_string()))?;
        all.push(states.saturating_add(k));
    }
    Ok(all)
}

/// The tensors that a node reads, and which of its inputs are sequences, each of two tensors.
fn node_inputs<'m>(
    node: &'m NodeProto,
    making: &mut Making,
    scope: &mut Scope<'m, '_>,
) -> Result<(Vec<Option<TensorId>>, Vec<usize>), Failure> {
    let (mut inputs, mut lists) = (Vec::with_capacity(node.input.len()), Vec::new());
    for (i, name) in node.input.iter().enumerate() {
        match scope.sequences.get(name.as_str()).cloned() {
            Some(sequence) => {
                let Packed { values, table } = Packed::of(name, sequence, making)?;
                inputs.extend([Some(values), Some(table)]);
                lists.push(i);
            }
            None => inputs.push(scope.get(making, name)),
        }
    }
    Ok((inputs, lists))
}

/// The tensors that a node writes; its outputs `listed` are sequences, each of two tensors.
fn node_outputs<'m>(
    node: &'m NodeProto,
    listed: &[usize],
    making: &mut Making,
    scope: &mut Scope<'m, '_>,
) -> Result<Vec<Option<TensorId>>, Failure> {
    let mut outputs = Vec::with_capacity(node.output.len());
    for (o, name) in node.output.iter().enumerate() {
        match (listed.contains(&o), name.as_str()) {
            (false, name) => outputs.push(scope.define(making, name)?),
            (true, "") => outputs.extend([None, None]),
            (true, name) => {
                let packed = Packed::declare(name, making);
                outputs.extend([Some(packed.values), Some(packed.table)]);
                scope.define_sequence(name, Sequence::Packed(packed))?;
            }
        }
    }
    Ok(outputs)
}

fn bind_captures<'m>(
    proto: &'m GraphProto,
    captures: &[(&'m str, Capture)],
    making: &mut Making,
    scope: &mut Scope<'m, '_>,
) -> Result<(), LoadErrorKind> {
    let free: HashSet<&str> =
        if captures.is_empty() { HashSet::new() } else { free_names(proto).into_iter().collect() };
    for (name, capture) in captures {
        let own = free.contains(name);
        if let Capture::Sequence(sequence, parts) = capture {
            let ids: Vec<Option<TensorId>> = parts.iter().map(|p| captured(name, p, own, making)).collect();
            if own {
                scope.sequences.insert(name, sequence.of(&ids));
            }
            continue;
        }
        let id = captured(name, capture, own, making);
        if own {
            scope.bind(name, id, "tensors")?;
        }
    }
    Ok(())
}

/// The tensor of a sub-graph that a captured one is; `own` says whether the sub-graph reads it.
fn captured(name: &str, capture: &Capture, own: bool, making: &mut Making) -> Option<TensorId> {
    match capture {
        Capture::Constant(value) if own => Some(making.constant(name, value.clone())),
        Capture::Constant(_) | Capture::Absent | Capture::Sequence(..) => None,
        // Another sub-graph of the node may read it, but all have the same captured inputs.
        Capture::Input => {
            let name = making.unique(name);
            Some(making.builder.captured_input(name))
        }
    }
}

pub(super) fn domain_of(domain: &str) -> &str {
    if domain == "ai.onnx" { "" } else { domain }
}

pub(super) fn is_constant(node: &NodeProto) -> bool {
    node.op_type == "Constant" && domain_of(&node.domain).is_empty()
}

fn unknown_operator(node: &NodeProto, domain: &str, opset: i64) -> LoadErrorKind {
    let known = ops::FAMILIES.iter().flat_map(|f| f.ops).filter(|d| d.since <= opset).map(|d| d.name);
    LoadErrorKind::UnknownOperator {
        op: node.op_type.clone(),
        domain: domain.to_owned(),
        opset,
        candidates: nearest(&node.op_type, known),
    }
}

/// Makes the operator; warns of attributes that it does not read.
fn read_op(
    def: &OpDef,
    node: &NodeProto,
    attrs: &AttrMap,
    inputs: usize,
    opset: i64,
) -> Result<std::sync::Arc<dyn ops::Operator>, LoadErrorKind> {
    let mut reader = AttrReader::new(attrs, inputs, node.output.len());
    let old = def.domain.is_empty() && opset < super::OLDEST_OPSET;
    let op = (def.read)(&mut reader, opset)?;
    let unread = reader.unread();
    if old {
        legacy::check(&node.op_type, attrs, &unread, opset)?;
    } else if !unread.is_empty() {
        tracing::warn!(node = node.name, op = node.op_type, ?unread, "attributes are not known and ignored");
    }
    Ok(op)
}
