//! Nodes of onnxruntime's graph as an ONNX model that the library loads.
//!
//! Small constants are in the model. Large ones are given to the loader next to it: read from their file by the loader, or
//! copied once from onnxruntime's memory to where they stay.

use std::collections::{HashMap, HashSet};
use std::path::{Path, PathBuf};

use onepool::{Graph as Loaded, Shape, Tensor, TensorInfo, loader};

use crate::failure::Failure;
use crate::host::{Attribute, Constant, Graph, Node, Size, TensorType, Value, ValueType};
use crate::types;
use crate::wire::Message;

/// Constants of at most so many bytes are part of the model, so that the loader sees their values.
const INLINE_BYTES: usize = 4 << 10;

/// The format of models written here (`ir_version`): the last with no field that is not written.
const IR_VERSION: i64 = 10;

/// Fields of `onnx.proto`.
mod field {
    pub(super) mod model {
        pub(crate) const IR_VERSION: u32 = 1;
        pub(crate) const GRAPH: u32 = 7;
        pub(crate) const OPSET: u32 = 8;
    }
    pub(super) mod graph {
        pub(crate) const NODE: u32 = 1;
        pub(crate) const NAME: u32 = 2;
        pub(crate) const INITIALIZER: u32 = 5;
        pub(crate) const INPUT: u32 = 11;
        pub(crate) const OUTPUT: u32 = 12;
    }
    pub(super) mod node {
        pub(crate) const INPUT: u32 = 1;
        pub(crate) const OUTPUT: u32 = 2;
        pub(crate) const NAME: u32 = 3;
        pub(crate) const OPERATOR: u32 = 4;
        pub(crate) const ATTRIBUTE: u32 = 5;
        pub(crate) const DOMAIN: u32 = 7;
    }
    pub(super) mod attribute {
        pub(crate) const NAME: u32 = 1;
        pub(crate) const FLOAT: u32 = 2;
        pub(crate) const INT: u32 = 3;
        pub(crate) const TEXT: u32 = 4;
        pub(crate) const TENSOR: u32 = 5;
        pub(crate) const GRAPH: u32 = 6;
        pub(crate) const FLOATS: u32 = 7;
        pub(crate) const INTS: u32 = 8;
        pub(crate) const TEXTS: u32 = 9;
        pub(crate) const TYPE: u32 = 20;
    }
    pub(super) mod tensor {
        pub(crate) const DIM: u32 = 1;
        pub(crate) const TYPE: u32 = 2;
        pub(crate) const NAME: u32 = 8;
        pub(crate) const RAW: u32 = 9;
        pub(crate) const EXTERNAL: u32 = 13;
        pub(crate) const LOCATION: u32 = 14;
    }
}

/// Constants that are not in the model's bytes, by name.
pub(crate) type Given = HashMap<String, Tensor>;

/// A model made of nodes of a graph.
#[derive(Debug, Default)]
pub(crate) struct Part {
    pub(crate) bytes: Vec<u8>,
    /// Large constants.
    pub(crate) given: Given,
    /// The folder of files that constants are in.
    folder: Option<PathBuf>,
}

/// What is done with large constants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Weights {
    /// They are taken.
    Taken,
    /// They are part of the bytes.
    Inside,
}

impl Part {
    /// The graph of the model.
    pub(crate) fn load(self) -> Result<Loaded, Failure> {
        Ok(loader::load_onnx_parts(&self.bytes, self.folder.as_deref(), self.given)?)
    }
}

/// The model of `nodes` of `graph`, with these inputs and outputs.
#[derive(Debug)]
pub(crate) struct Writer {
    weights: Weights,
    part: Part,
}

impl Writer {
    pub(crate) fn new(weights: Weights) -> Self {
        Writer { weights, part: Part::default() }
    }

    /// A whole graph.
    pub(crate) fn whole(mut self, graph: &Graph<'_>) -> Result<Part, Failure> {
        let body = self.graph(graph, true)?;
        self.finish(body, &graph.opsets()?)
    }

    /// One node of a graph whose domains have the versions `opsets`.
    pub(crate) fn node(mut self, node: &Node<'_>, opsets: &[(String, i64)]) -> Result<Part, Failure> {
        let mut body = Message::default();
        body.message(field::graph::NODE, &self.node_proto(node)?);
        body.text(field::graph::NAME, "node");
        let (mut seen, implicit) = (HashSet::new(), node.implicit_inputs()?);
        for value in node.inputs()?.into_iter().flatten().chain(implicit) {
            let name = value.name()?;
            if seen.insert(name.clone()) {
                self.constant_or_input(&mut body, &name, &value)?;
            }
        }
        for value in node.outputs()?.into_iter().flatten() {
            let name = value.name()?;
            if !name.is_empty() {
                body.message(field::graph::OUTPUT, &value_proto(&name, &value.kind()?));
            }
        }
        self.finish(body, opsets)
    }

    fn finish(mut self, graph: Message, opsets: &[(String, i64)]) -> Result<Part, Failure> {
        let mut model = Message::default();
        model.int(field::model::IR_VERSION, IR_VERSION);
        model.message(field::model::GRAPH, &graph);
        for (domain, version) in opsets {
            let mut opset = Message::default();
            opset.text(1, domain);
            opset.int(2, *version);
            model.message(field::model::OPSET, &opset);
        }
        self.part.bytes = model.into_bytes();
        Ok(self.part)
    }

    fn graph(&mut self, graph: &Graph<'_>, main: bool) -> Result<Message, Failure> {
        let mut body = Message::default();
        for node in graph.nodes()? {
            body.message(field::graph::NODE, &self.node_proto(&node)?);
        }
        body.text(field::graph::NAME, "part");
        let mut constants = HashSet::new();
        for value in graph.initializers()? {
            let name = value.name()?;
            if main && !value.is_constant()? {
                continue;
            }
            if let Some(constant) = value.constant()? {
                self.initializer(&mut body, (&name, &value), constant, main, &graph.model_path()?)?;
                constants.insert(name);
            }
        }
        for value in graph.inputs()? {
            let name = value.name()?;
            if !constants.contains(&name) {
                body.message(field::graph::INPUT, &value_proto(&name, &value.kind()?));
            }
        }
        for value in graph.outputs()? {
            body.message(field::graph::OUTPUT, &value_proto(&value.name()?, &value.kind()?));
        }
        if main {
            missed_inputs(graph, &mut body, constants)?;
        }
        Ok(body)
    }

    /// A value that a single node reads.
    fn constant_or_input(
        &mut self,
        body: &mut Message,
        name: &str,
        value: &Value<'_>,
    ) -> Result<(), Failure> {
        let kind = value.kind()?;
        let small = |t: &TensorType| {
            types::stored_bytes(t.element, &known(t.dims.as_ref()?)?).filter(|bytes| *bytes <= INLINE_BYTES)
        };
        if let ValueType::Tensor(tensor) = &kind
            && small(tensor).is_some()
            && value.is_constant()?
            && let Some(Constant::Memory { element, dims, bytes }) = value.constant()?
        {
            let mut proto = tensor_proto(name, element, &dims);
            proto.bytes(field::tensor::RAW, bytes);
            body.message(field::graph::INITIALIZER, &proto);
            return Ok(());
        }
        body.message(field::graph::INPUT, &value_proto(name, &kind));
        Ok(())
    }

    fn initializer(
        &mut self,
        body: &mut Message,
        (name, value): (&str, &Value<'_>),
        constant: Constant<'_>,
        main: bool,
        model: &Path,
    ) -> Result<(), Failure> {
        let (element, dims) = match value.kind()? {
            ValueType::Tensor(TensorType { element, dims: Some(dims) }) => (element, known(&dims)),
            _ => return Err(Failure::graph(format!("constant {name:?} is no tensor"))),
        };
        let mut proto = tensor_proto(name, element, &dims.ok_or_else(|| unsized_(name))?);
        match constant {
            Constant::Memory { element, dims, bytes } => {
                let large = main && bytes.len() > INLINE_BYTES && types::is_shared(element);
                if self.weights == Weights::Taken && large {
                    self.part.given.insert(name.to_owned(), taken(element, &dims, bytes)?);
                } else {
                    proto.bytes(field::tensor::RAW, bytes);
                }
            }
            Constant::External { path, offset, bytes } => {
                self.external(&mut proto, &path, (offset, bytes), model)?
            }
        }
        body.message(field::graph::INITIALIZER, &proto);
        Ok(())
    }

    /// A constant that the loader reads from its file, whose name is relative to the model's folder.
    fn external(
        &mut self,
        proto: &mut Message,
        path: &Path,
        (offset, bytes): (u64, u64),
        model: &Path,
    ) -> Result<(), Failure> {
        let folder = match model.parent() {
            Some(parent) if parent.as_os_str().is_empty() => Path::new("."),
            Some(parent) => parent,
            None => {
                return Err(Failure::graph(format!("{} is the file of a model without one", path.display())));
            }
        };
        let relative = path.strip_prefix(folder).unwrap_or(path);
        if self.weights == Weights::Inside {
            let region = onepool::HostRegion::read_file_range(folder.join(relative), offset, bytes)?;
            proto.bytes(field::tensor::RAW, region.as_slice());
            return Ok(());
        }
        let texts = [
            ("location", relative.display().to_string()),
            ("offset", offset.to_string()),
            ("length", bytes.to_string()),
        ];
        for (key, text) in texts {
            let mut entry = Message::default();
            entry.text(1, key);
            entry.text(2, &text);
            proto.message(field::tensor::EXTERNAL, &entry);
        }
        proto.int(field::tensor::LOCATION, 1);
        self.part.folder = Some(folder.to_owned());
        Ok(())
    }

    fn node_proto(&mut self, node: &Node<'_>) -> Result<Message, Failure> {
        let mut proto = Message::default();
        for value in node.inputs()? {
            proto.text(field::node::INPUT, &value.map_or(Ok(String::new()), |v| v.name())?);
        }
        for value in node.outputs()? {
            proto.text(field::node::OUTPUT, &value.map_or(Ok(String::new()), |v| v.name())?);
        }
        proto.text(field::node::NAME, &node.name()?);
        proto.text(field::node::OPERATOR, &node.operator()?);
        proto.text(field::node::DOMAIN, &node.domain()?);
        let mut attributes = node.attributes()?;
        one_direction(&node.operator()?, &mut attributes);
        for (name, value) in &attributes {
            proto.message(field::node::ATTRIBUTE, &self.attribute(name, value)?);
        }
        Ok(proto)
    }

    fn attribute(&mut self, name: &str, value: &Attribute<'_>) -> Result<Message, Failure> {
        use field::attribute as at;
        let mut proto = Message::default();
        proto.text(at::NAME, name);
        // The numbers of the kinds are those of `AttributeProto.AttributeType`.
        let kind = match value {
            Attribute::Float(v) => {
                proto.float(at::FLOAT, *v);
                1
            }
            Attribute::Int(v) => {
                proto.int(at::INT, *v);
                2
            }
            Attribute::Text(v) => {
                proto.bytes(at::TEXT, v);
                3
            }
            Attribute::Tensor(t) => {
                let mut tensor = tensor_proto("", t.element, &t.dims);
                tensor.bytes(field::tensor::RAW, &t.bytes);
                proto.message(at::TENSOR, &tensor);
                4
            }
            Attribute::Graph(graph) => {
                let graph = self.graph(graph, false)?;
                proto.message(at::GRAPH, &graph);
                5
            }
            Attribute::Floats(all) => {
                all.iter().for_each(|v| proto.float(at::FLOATS, *v));
                6
            }
            Attribute::Ints(all) => {
                all.iter().for_each(|v| proto.int(at::INTS, *v));
                7
            }
            Attribute::Texts(all) => {
                all.iter().for_each(|v| proto.bytes(at::TEXTS, v));
                8
            }
            Attribute::Other(kind) => {
                return Err(Failure::graph(format!(
                    "attribute {name:?} is of kind {kind}, which is not read"
                )));
            }
        };
        proto.int(at::TYPE, kind);
        Ok(proto)
    }
}

/// Declares what nodes read and neither a node makes nor the graph lists: onnxruntime 1.24 leaves out what a node reads
/// both itself and in its graphs.
fn missed_inputs(graph: &Graph<'_>, body: &mut Message, mut known: HashSet<String>) -> Result<(), Failure> {
    let nodes = graph.nodes()?;
    for value in graph.inputs()? {
        known.insert(value.name()?);
    }
    for node in &nodes {
        for value in node.outputs()?.into_iter().flatten() {
            known.insert(value.name()?);
        }
    }
    for node in &nodes {
        for value in node.inputs()?.into_iter().flatten().chain(node.implicit_inputs()?) {
            let name = value.name()?;
            if !name.is_empty() && known.insert(name.clone()) {
                body.message(field::graph::INPUT, &value_proto(&name, &value.kind()?));
            }
        }
    }
    Ok(())
}

/// onnxruntime writes out the default of RNN's `activations`, which names the functions of two directions.
fn one_direction(operator: &str, attributes: &mut [(String, Attribute<'_>)]) {
    let both = |(name, value): &(String, Attribute<'_>)| {
        name == "direction" && matches!(value, Attribute::Text(text) if text == b"bidirectional")
    };
    if operator != "RNN" || attributes.iter().any(both) {
        return;
    }
    for (_, value) in attributes.iter_mut().filter(|(name, _)| name == "activations") {
        if let Attribute::Texts(names) = value {
            names.truncate(1);
        }
    }
}

fn unsized_(name: &str) -> Failure {
    Failure::graph(format!("constant {name:?} has no sizes"))
}

/// Sizes, where all are known.
pub(crate) fn known(dims: &[Size]) -> Option<Vec<i64>> {
    dims.iter().map(|d| if let Size::Known(n) = d { Some(*n) } else { None }).collect()
}

fn tensor_proto(name: &str, element: u32, dims: &[i64]) -> Message {
    let mut proto = Message::default();
    dims.iter().for_each(|d| proto.int(field::tensor::DIM, *d));
    proto.int(field::tensor::TYPE, types::in_file(element));
    proto.text(field::tensor::NAME, name);
    proto
}

/// A constant in pages that devices import.
fn taken(element: u32, dims: &[i64], bytes: &[u8]) -> Result<Tensor, Failure> {
    let dtype =
        types::dtype(element).ok_or_else(|| Failure::graph(format!("a constant of type {element}")))?;
    let info = TensorInfo::new(dtype, Shape::from_i64(dims)?);
    if info.bytes() != bytes.len() {
        return Err(Failure::graph(format!("a constant {info} has {} bytes", bytes.len())));
    }
    Tensor::build_weight(info, |to| {
        to.copy_from_slice(bytes);
        Ok(())
    })
}

/// `ValueInfoProto`.
fn value_proto(name: &str, kind: &ValueType) -> Message {
    let mut proto = Message::default();
    proto.text(1, name);
    let (of, tensor) = match kind {
        ValueType::Tensor(tensor) => (1, tensor_type(tensor)),
        ValueType::Sequence(tensor) => {
            let (mut inner, mut sequence) = (Message::default(), Message::default());
            inner.message(1, &tensor_type(tensor));
            sequence.message(1, &inner);
            (4, sequence)
        }
        ValueType::Other => return proto,
    };
    let mut kind = Message::default();
    kind.message(of, &tensor);
    proto.message(2, &kind);
    proto
}

fn tensor_type(of: &TensorType) -> Message {
    let mut tensor = Message::default();
    tensor.int(1, types::in_file(of.element));
    if let Some(dims) = &of.dims {
        let mut shape = Message::default();
        for dim in dims {
            let mut proto = Message::default();
            match dim {
                Size::Known(n) => proto.int(1, *n),
                Size::Symbol(name) => proto.text(2, name),
                Size::Unknown => {}
            }
            shape.message(1, &proto);
        }
        tensor.message(2, &shape);
    }
    tensor
}
