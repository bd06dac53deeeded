//! What an ONNX model says of itself, supported or not.

use std::collections::BTreeMap;
use std::path::Path;

use prost::Message as _;

use super::composed;
use super::graph::{domain_of, is_constant};
use super::proto::{GraphProto, ModelProto, NodeProto, TensorProto, TypeValue, ValueInfoProto, data_type};
use super::sequence;
use super::skeleton::{Message, skeleton};
use super::syntax::{type_of, zip_maps};
use super::tensor::{decode_error, dtype_of};
use super::{NEWEST_OPSET, Opsets, metadata};
use crate::dtype::DType;
use crate::loader::error::{LoadError, LoadErrorKind};
use crate::loader::source::Source;
use crate::loader::summary::{ModelSummary, OperatorCount, ParameterGroup, SummaryIo};
use crate::ops;
use crate::shape::{Dim, SymShape};

/// Reads what the ONNX model `path` says of itself. Parameters stay where they are.
///
/// # Errors
/// [`LoadError`] where the file is no ONNX model; never for operators or types that are not supported.
pub fn summarize_onnx(path: &Path) -> Result<ModelSummary, LoadError> {
    Source::open(path).and_then(|mut source| summarize(&mut source)).map_err(|e| e.in_file(path))
}

fn summarize(source: &mut Source<'_>) -> Result<ModelSummary, LoadError> {
    let walked = skeleton(source, Message::Model)?;
    let model = ModelProto::decode(walked.bytes.as_slice()).map_err(|e| decode_error("ONNX model", &e))?;
    if model.ir_version <= 0 {
        return Err(LoadErrorKind::missing("the IR version (is this an ONNX model?)").into());
    }
    let graph = model.graph.as_deref().ok_or_else(|| LoadErrorKind::missing("the graph"))?;
    let opsets = Opsets::of_model(&model)?;
    let mut count = Count::default();
    count.graph(graph);
    let nodes = count.nodes;
    for function in &model.functions {
        count.nodes(&function.node);
    }
    let is_parameter = |i: &&ValueInfoProto| !graph.initializer.iter().any(|t| t.name == i.name);
    Ok(ModelSummary {
        metadata: metadata(&model, &opsets),
        graph: graph.name.clone(),
        inputs: graph.input.iter().filter(is_parameter).map(describe).collect(),
        outputs: outputs(graph),
        nodes,
        operators: count.operators(&model, &opsets),
        functions: model.functions.iter().map(|f| f.name.clone()).collect(),
        parameters: count.parameters.into_values().collect(),
    })
}

fn outputs(graph: &GraphProto) -> Vec<SummaryIo> {
    let tables = zip_maps(graph);
    let described = graph.output.iter().map(|info| match tables.get(info.name.as_str()) {
        Some(node) => scores(&info.name, node),
        None => describe(info),
    });
    described.collect()
}

/// The scores of classes that `node` makes maps of.
fn scores(name: &str, node: &NodeProto) -> SummaryIo {
    let attribute = |name: &str| node.attribute.iter().find(|a| a.name == name);
    let texts = attribute("classlabels_strings").map_or(&[][..], |a| &a.strings);
    let integers = attribute("classlabels_int64s").map_or(&[][..], |a| &a.ints);
    let texts = texts.iter().map(|t| String::from_utf8_lossy(t).into_owned());
    let classes: Vec<String> = texts.chain(integers.iter().map(i64::to_string)).collect();
    let shape = SymShape(vec![Dim::Unknown, Dim::Known(classes.len())]).to_string();
    SummaryIo { name: name.to_owned(), kind: DType::F32.to_string(), shape, classes }
}

fn describe(info: &ValueInfoProto) -> SummaryIo {
    let (kind, shape) = match type_of(info) {
        Ok((dtype, shape)) => {
            (dtype.map_or("?".to_owned(), |d| d.to_string()), shape.map_or("?".to_owned(), |s| s.to_string()))
        }
        Err(_) => {
            let kind = match info.r#type.as_ref().and_then(|t| t.value.as_ref()) {
                Some(TypeValue::Tensor(t)) => type_name(t.elem_type),
                Some(TypeValue::SparseTensor(_)) => "sparse tensor".to_owned(),
                Some(TypeValue::Sequence(_)) => "sequence".to_owned(),
                Some(TypeValue::Map(_)) => "map".to_owned(),
                Some(TypeValue::Optional(_)) => "optional".to_owned(),
                None => "?".to_owned(),
            };
            (kind, "?".to_owned())
        }
    };
    SummaryIo { name: info.name.clone(), kind, shape, classes: Vec::new() }
}

fn type_name(number: i32) -> String {
    if let Ok(dtype) = dtype_of(number) {
        return dtype.to_string();
    }
    let name = usize::try_from(number).ok().and_then(|i| data_type::NAMES.get(i));
    name.map_or_else(|| format!("type {number}"), |n| n.to_lowercase())
}

#[derive(Default)]
struct Count<'m> {
    nodes: usize,
    operators: BTreeMap<(&'m str, &'m str), usize>,
    parameters: BTreeMap<i32, ParameterGroup>,
}

impl<'m> Count<'m> {
    // How deep graphs are nested is bounded by the walk that found them.
    fn graph(&mut self, graph: &'m GraphProto) {
        graph.initializer.iter().for_each(|t| self.parameter(t));
        graph.sparse_initializer.iter().filter_map(|t| t.values.as_ref()).for_each(|t| self.parameter(t));
        self.nodes(&graph.node);
    }

    fn nodes(&mut self, nodes: &'m [NodeProto]) {
        for node in nodes {
            self.nodes = self.nodes.saturating_add(1);
            let count = self.operators.entry((domain_of(&node.domain), &node.op_type)).or_default();
            *count = count.saturating_add(1);
            for attribute in &node.attribute {
                if let Some(graph) = &attribute.g {
                    self.graph(graph);
                }
                if let Some(tensor) = attribute.t.as_ref().filter(|_| is_constant(node)) {
                    self.parameter(tensor);
                }
            }
        }
    }

    fn parameter(&mut self, tensor: &TensorProto) {
        let sizes = tensor.dims.iter().map(|d| u64::try_from(*d).unwrap_or(0));
        let elements = sizes.fold(1u64, u64::saturating_mul);
        let bytes = dtype_of(tensor.data_type).map_or(0, |d| elements.saturating_mul(d.bytes() as u64));
        let group = self.parameters.entry(tensor.data_type).or_default();
        group.dtype = type_name(tensor.data_type);
        group.tensors = group.tensors.saturating_add(1);
        group.elements = group.elements.saturating_add(elements);
        group.bytes = group.bytes.saturating_add(bytes);
    }

    fn operators(&self, model: &ModelProto, opsets: &Opsets) -> Vec<OperatorCount> {
        let mut rows: Vec<OperatorCount> = self
            .operators
            .iter()
            .map(|(&(domain, name), &count)| {
                let opset = opsets.get(domain).unwrap_or(if domain.is_empty() { NEWEST_OPSET } else { 1 });
                let families = || ops::FAMILIES.iter();
                let def = ops::find(domain, name).filter(|d| d.since <= opset);
                let family = def.and_then(|d| families().find(|f| f.ops.iter().any(|o| std::ptr::eq(o, d))));
                let defined =
                    |f: &super::proto::FunctionProto| f.name == name && domain_of(&f.domain) == domain;
                let composed = composed::is_composed(domain, name);
                // Constants, sequences and what is composed are read by the loader itself.
                let own = match domain.is_empty() && name == "Constant" {
                    true => Some("constant"),
                    false if composed => Some("composed"),
                    false => sequence::reads(domain, name, opset).then_some("sequence"),
                };
                OperatorCount {
                    name: name.to_owned(),
                    domain: domain.to_owned(),
                    count,
                    family: family.map(|f| f.name).or(own),
                    function: def.is_none() && model.functions.iter().any(defined),
                    device_kernels: composed || def.is_some_and(|d| d.gpu),
                }
            })
            .collect();
        rows.sort_by(|a, b| b.count.cmp(&a.count).then_with(|| a.name.cmp(&b.name)));
        rows
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(op: &str, domain: &str) -> NodeProto {
        NodeProto { op_type: op.into(), domain: domain.into(), ..Default::default() }
    }

    fn summary(graph: GraphProto) -> ModelSummary {
        let model = ModelProto { ir_version: 8, graph: Some(Box::new(graph)), ..Default::default() };
        summarize(&mut Source::of(&model.encode_to_vec())).unwrap()
    }

    #[test]
    fn unknown_operators_and_types_are_listed_and_no_error() {
        let input = super::super::proto::TypeProto {
            value: Some(TypeValue::Tensor(super::super::proto::TensorTypeProto {
                elem_type: 8,
                shape: None,
            })),
        };
        let s = summary(GraphProto {
            node: vec![
                node("Conv", ""),
                node("NoSuchThing", ""),
                node("Conv", "ai.onnx"),
                node("Conv", "other"),
            ],
            input: vec![ValueInfoProto { name: "x".into(), r#type: Some(input) }],
            initializer: vec![
                TensorProto { dims: vec![2, 3], data_type: 1, ..Default::default() },
                TensorProto { dims: vec![4], data_type: 22, ..Default::default() },
                TensorProto { dims: vec![2], data_type: 14, ..Default::default() },
            ],
            ..Default::default()
        });
        assert_eq!(s.nodes, 4);
        let row = |name: &str, domain: &str| {
            s.operators.iter().find(|o| o.name == name && o.domain == domain).unwrap()
        };
        assert_eq!((row("Conv", "").count, row("Conv", "").family), (2, Some("conv")));
        assert!(row("Conv", "").device_kernels);
        assert!(!row("NoSuchThing", "").is_known() && !row("Conv", "other").is_known());
        assert_eq!((s.inputs[0].kind.as_str(), s.inputs[0].shape.as_str()), ("string", "?"));
        let bytes: Vec<_> = s.parameters.iter().map(|p| (p.dtype.as_str(), p.elements, p.bytes)).collect();
        assert_eq!(bytes, [("float32", 6, 24), ("complex64", 2, 0), ("int4", 4, 4)]);
    }

    #[test]
    fn classes_are_named() {
        let mut zip = node("ZipMap", "ai.onnx.ml");
        zip.output.push("p".into());
        zip.attribute.push(super::super::proto::AttributeProto {
            name: "classlabels_strings".into(),
            strings: vec![b"cat".to_vec(), b"dog".to_vec()],
            ..Default::default()
        });
        let output = ValueInfoProto { name: "p".into(), r#type: None };
        let s = summary(GraphProto {
            node: vec![zip, node("QLinearAdd", "com.microsoft"), node("QLinearAdd", "")],
            output: vec![output],
            ..Default::default()
        });
        assert_eq!((s.outputs[0].kind.as_str(), s.outputs[0].shape.as_str()), ("float32", "[?, 2]"));
        assert_eq!(s.outputs[0].classes, ["cat", "dog"]);
        let known: Vec<bool> = s.operators.iter().map(OperatorCount::is_known).collect();
        assert_eq!(known.iter().filter(|k| **k).count(), 2);
    }

    #[test]
    fn what_people_are_told_of_a_model_need_not_be_utf8() {
        let property = |key: &str, value: &[u8]| super::super::proto::PropertyProto {
            key: key.into(),
            value: value.to_vec(),
        };
        let x = vec![ValueInfoProto { name: "x".into(), r#type: None }];
        let doc_string = b"of a graph".to_vec();
        let graph = GraphProto { doc_string, input: x.clone(), output: x, ..Default::default() };
        let model = ModelProto {
            ir_version: 8,
            producer_name: "a".into(),
            producer_version: "2".into(),
            domain: b"org.example".to_vec(),
            model_version: 7,
            doc_string: b"caf\xe9".to_vec(),
            metadata_props: vec![property("names", b"{0: 'cat'}"), property("empty", b"")],
            graph: Some(Box::new(graph)),
            ..Default::default()
        };
        let said = summarize(&mut Source::of(&model.encode_to_vec())).unwrap().metadata;
        assert_eq!((said.format, said.producer.as_str(), said.producer_version.as_str()), ("ONNX", "a", "2"));
        assert_eq!((said.domain.as_str(), said.version, said.ir_version), ("org.example", 7, 8));
        assert_eq!(
            (said.description.as_str(), said.graph_description.as_str()),
            ("caf\u{fffd}", "of a graph")
        );
        assert_eq!(said.opsets, BTreeMap::from([(String::new(), NEWEST_OPSET)]));
        let all: Vec<_> = said.properties.iter().map(|(k, v)| (k.as_str(), v.as_str())).collect();
        assert_eq!(all, [("empty", ""), ("names", "{0: 'cat'}")]);
        let loaded = super::super::load_onnx_bytes(&model.encode_to_vec(), None).unwrap();
        assert_eq!(*loaded.metadata(), said);
    }

    #[test]
    fn sub_graphs_count() {
        let inner = GraphProto { node: vec![node("Relu", "")], ..Default::default() };
        let attribute =
            super::super::proto::AttributeProto { g: Some(Box::new(inner)), ..Default::default() };
        let outer = NodeProto { attribute: vec![attribute], ..node("Loop", "") };
        let s = summary(GraphProto { node: vec![outer], ..Default::default() });
        assert_eq!(s.nodes, 2);
        assert!(s.operators.iter().any(|o| o.name == "Relu"));
    }

    #[test]
    fn what_is_no_model_is_an_error() {
        assert!(summarize(&mut Source::of(b"hello, this is no model")).is_err());
        assert!(summarize(&mut Source::of(&[])).is_err());
    }
}
