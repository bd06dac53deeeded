//! What messages say by themselves, before any graph is made of them.

use std::collections::{HashMap, HashSet};

use super::proto::{
    AttributeProto, DimensionValue, GraphProto, NodeProto, TensorProto, TypeProto, TypeValue, ValueInfoProto,
};
use super::tensor::dtype_of;
use crate::dtype::DType;
use crate::graph::Tensor;
use crate::limits;
use crate::loader::error::LoadErrorKind;
use crate::ops::{AttrMap, AttrValue};
use crate::shape::{Dim, ShapeError, SymShape};

/// The value of a `Constant` node.
pub(super) fn constant_value(attrs: &AttrMap) -> Result<Tensor, LoadErrorKind> {
    let mut given = attrs.iter().filter(|(name, _)| name.starts_with("value") || *name == "sparse_value");
    let (Some((name, value)), None) = (given.next(), given.next()) else {
        return Err(LoadErrorKind::unexpected("one value", format!("{} attributes", attrs.len())));
    };
    Ok(match (name.as_str(), value) {
        ("value" | "sparse_value", AttrValue::Tensor(t)) => t.clone(),
        ("value_int", AttrValue::Int(v)) => Tensor::scalar(*v),
        ("value_float", AttrValue::Float(v)) => Tensor::scalar(*v),
        ("value_ints", AttrValue::Ints(v)) => Tensor::new([v.len()], v)?,
        ("value_floats", AttrValue::Floats(v)) => Tensor::new([v.len()], v)?,
        ("value_ints", AttrValue::Floats(v)) if v.is_empty() => Tensor::new([0], &[0i64; 0])?,
        ("value_floats", AttrValue::Ints(v)) if v.is_empty() => Tensor::new([0], &[0f32; 0])?,
        ("value_string" | "value_strings", _) => {
            return Err(LoadErrorKind::unsupported("a constant of texts"));
        }
        (name, _) => {
            return Err(LoadErrorKind::unexpected("a value of a constant", format!("attribute {name:?}")));
        }
    })
}

/// Type and sizes that `info` declares, as far as it does.
pub(super) fn type_of(info: &ValueInfoProto) -> Result<(Option<DType>, Option<SymShape>), LoadErrorKind> {
    let tensor = match &info.r#type {
        None | Some(TypeProto { value: None }) => return Ok((None, None)),
        Some(TypeProto { value: Some(TypeValue::Tensor(tensor)) }) => tensor,
        Some(TypeProto { value: Some(other) }) => {
            let what = match other {
                TypeValue::Sequence(_) => "a sequence",
                TypeValue::Map(_) => "a map",
                TypeValue::SparseTensor(_) => "a sparse tensor",
                _ => "an optional",
            };
            return Err(LoadErrorKind::unsupported(format!("{what} as an input or output")));
        }
    };
    let dtype = if tensor.elem_type == 0 { None } else { Some(dtype_of(tensor.elem_type)?) };
    let Some(shape) = &tensor.shape else { return Ok((dtype, None)) };
    if shape.dim.len() > limits::MAX_RANK {
        return Err(ShapeError::Rank { rank: shape.dim.len(), limit: limits::MAX_RANK }.into());
    }
    let dims = shape.dim.iter().map(|d| match &d.value {
        // Some exporters write -1 for a size they do not know.
        Some(DimensionValue::Value(size)) => usize::try_from(*size).map_or(Dim::Unknown, Dim::Known),
        Some(DimensionValue::Param(name)) if is_name(name) => Dim::Symbol(name.as_str().into()),
        _ => Dim::Unknown,
    });
    let shape = SymShape(dims.collect());
    let known = shape.0.iter().filter_map(|d| if let Dim::Known(n) = d { Some(*n) } else { None });
    crate::shape::Shape::new(known.collect::<Vec<usize>>())?;
    Ok((dtype, Some(shape)))
}

/// Whether equal names of dimensions mean equal sizes: exporters write "?", "-1" or "None" for any size.
fn is_name(name: &str) -> bool {
    name.contains(|c: char| c.is_alphabetic() || c == '_')
        && !["none", "unknown", "unk"].iter().any(|word| name.eq_ignore_ascii_case(word))
}

/// The number of the element type, where it is told, of what `info` declares as a sequence of tensors.
pub(super) fn list_of(info: &ValueInfoProto) -> Option<Option<i32>> {
    let Some(TypeValue::Sequence(sequence)) = &info.r#type.as_ref()?.value else { return None };
    match &sequence.elem_type.as_deref()?.value {
        Some(TypeValue::Tensor(tensor)) => Some((tensor.elem_type != 0).then_some(tensor.elem_type)),
        _ => None,
    }
}

/// The nodes of `graph` that make sequences of maps, which are tables here, by the names of what they make.
pub(super) fn zip_maps(graph: &GraphProto) -> HashMap<&str, &NodeProto> {
    let nodes = graph.node.iter().filter(|n| n.domain == "ai.onnx.ml" && n.op_type == "ZipMap");
    nodes.filter_map(|n| Some((n.output.first()?.as_str(), n))).collect()
}

/// Names that `graph` reads but does not define, in the order of their first use.
pub(super) fn free_names(graph: &GraphProto) -> Vec<&str> {
    let mut known: HashSet<&str> = graph.input.iter().map(|i| i.name.as_str()).collect();
    known.extend(graph.initializer.iter().map(|t| t.name.as_str()));
    known.extend(graph.sparse_initializer.iter().filter_map(|t| Some(t.values.as_ref()?.name.as_str())));
    known.extend(graph.node.iter().flat_map(|n| &n.output).map(String::as_str));
    known.insert("");
    let mut free = Vec::new();
    let mut note = |name| {
        if known.insert(name) {
            free.push(name);
        }
    };
    for node in &graph.node {
        node.input.iter().for_each(|name| note(name));
        for inner in node.attribute.iter().filter_map(|a: &AttributeProto| a.g.as_deref()) {
            free_names(inner).into_iter().for_each(&mut note);
        }
    }
    graph.output.iter().for_each(|o| note(&o.name));
    free
}

pub(super) fn collect_tensors<'p>(graph: &'p GraphProto, to: &mut Vec<&'p TensorProto>) {
    to.extend(&graph.initializer);
    graph.node.iter().for_each(|node| collect_node_tensors(node, to));
}

pub(super) fn collect_node_tensors<'p>(node: &'p NodeProto, to: &mut Vec<&'p TensorProto>) {
    for attr in &node.attribute {
        to.extend(attr.t.as_deref());
        if let Some(graph) = &attr.g {
            collect_tensors(graph, to);
        }
    }
}
