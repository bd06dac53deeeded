//! Models made of messages, and what becomes of them.

use std::collections::HashMap;

use super::attribute::int_attr;
use super::proto::*;
use super::*;
use crate::graph::{GraphError, NodeId, Origin, Tensor};
use crate::loader::ErrorLocation;
use crate::loader::testing::{fake, find, int};
use crate::ops::AttrValue;
use crate::{DType, Dim, limits};

fn attr(name: &str) -> AttributeProto {
    AttributeProto { name: name.into(), ..Default::default() }
}

fn ref_attr(name: &str, outer: &str) -> AttributeProto {
    AttributeProto { ref_attr_name: outer.into(), r#type: attribute_type::INT, ..attr(name) }
}

pub(super) fn graph_attr(name: &str, graph: GraphProto) -> AttributeProto {
    AttributeProto { g: Some(Box::new(graph)), r#type: attribute_type::GRAPH, ..attr(name) }
}

pub(super) fn node(op: &str, inputs: &[&str], outputs: &[&str]) -> NodeProto {
    NodeProto {
        op_type: op.into(),
        name: format!("{op}_{}", outputs.first().unwrap_or(&"")),
        input: inputs.iter().map(|s| (*s).to_owned()).collect(),
        output: outputs.iter().map(|s| (*s).to_owned()).collect(),
        ..Default::default()
    }
}

pub(super) fn with(mut node: NodeProto, attrs: impl IntoIterator<Item = AttributeProto>) -> NodeProto {
    node.attribute.extend(attrs);
    node
}

fn dim(value: DimensionValue) -> Dimension {
    Dimension { value: Some(value) }
}

pub(super) fn value(name: &str, dims: &[i64]) -> ValueInfoProto {
    let dim = dims.iter().map(|d| dim(DimensionValue::Value(*d))).collect();
    let tensor = TensorTypeProto { elem_type: data_type::FLOAT, shape: Some(TensorShapeProto { dim }) };
    let r#type = Some(TypeProto { value: Some(TypeValue::Tensor(tensor)) });
    ValueInfoProto { name: name.into(), r#type }
}

pub(super) fn untyped(name: &str) -> ValueInfoProto {
    ValueInfoProto { name: name.into(), r#type: None }
}

pub(super) fn floats(name: &str, values: &[f32]) -> TensorProto {
    TensorProto {
        name: name.into(),
        data_type: data_type::FLOAT,
        dims: vec![values.len() as i64],
        float_data: values.to_vec(),
        ..Default::default()
    }
}

pub(super) fn graph(inputs: &[&str], nodes: Vec<NodeProto>, outputs: &[&str]) -> GraphProto {
    GraphProto {
        name: "g".into(),
        input: inputs.iter().map(|n| value(n, &[2])).collect(),
        output: outputs.iter().map(|n| untyped(n)).collect(),
        node: nodes,
        ..Default::default()
    }
}

fn opset(version: i64) -> Vec<OperatorSetIdProto> {
    vec![OperatorSetIdProto { domain: String::new(), version }]
}

pub(super) fn model(graph: GraphProto) -> ModelProto {
    ModelProto { ir_version: 8, graph: Some(Box::new(graph)), opset_import: opset(13), ..Default::default() }
}

fn load_model(model: &ModelProto) -> Result<Graph, LoadError> {
    load(Source::of(&model.encode_to_vec()), Vec::new(), find, HashMap::new(), (None, None, None))
}

fn load_graph(graph: GraphProto) -> Result<Graph, LoadError> {
    load_model(&model(graph))
}

fn constant(graph: &Graph, name: &str) -> Tensor {
    let found = graph.constants().find(|(n, _)| *n == name);
    found.unwrap_or_else(|| panic!("no constant {name} in {graph}")).1.clone()
}

fn input_names(graph: &Graph, node: usize) -> Vec<Option<String>> {
    graph.node(NodeId(node as u32)).inputs.iter().map(|i| Some(graph.tensor((*i)?).name.clone())).collect()
}

fn fails(g: GraphProto, text: &str) -> LoadError {
    let e = load_graph(g).unwrap_err();
    assert!(e.to_string().contains(text), "{e}");
    e
}

#[test]
fn inputs_initializers_hints_and_outputs() {
    let mut g = graph(
        &["x", "w"],
        vec![node("Relu", &["s"], &["y"]), with(node("Add", &["x", "w", ""], &["s"]), [int_attr("axis", 1)])],
        &["y", "x"],
    );
    g.initializer.push(floats("w", &[1.0, 2.0]));
    let sym = TensorShapeProto {
        dim: vec![
            dim(DimensionValue::Param("n".into())),
            dim(DimensionValue::Value(-1)),
            Dimension::default(),
            dim(DimensionValue::Value(4)),
            dim(DimensionValue::Param("?".into())),
            dim(DimensionValue::Param("None".into())),
            dim(DimensionValue::Param("2*n".into())),
        ],
    };
    let t = TensorTypeProto { elem_type: data_type::INT64, shape: Some(sym) };
    g.value_info.push(ValueInfoProto {
        name: "s".into(),
        r#type: Some(TypeProto { value: Some(TypeValue::Tensor(t)) }),
    });
    let graph = load_graph(g).unwrap();
    assert_eq!(graph.name(), "g");
    assert_eq!(graph.inputs().len(), 1, "an initializer is no input");
    assert_eq!(graph.tensor(graph.input("x").unwrap()).dtype, Some(DType::F32));
    assert_eq!(constant(&graph, "w").as_slice::<f32>().unwrap(), [1.0, 2.0]);
    assert_eq!(graph.nodes()[0].name, "Add_s", "producers come first");
    assert_eq!(input_names(&graph, 0), [Some("x".into()), Some("w".into())], "absent inputs at the end go");
    assert_eq!((int(&graph.nodes()[0].op, "axis"), fake(&graph.nodes()[0].op).opset), (1, 13));
    let s = graph.tensor(graph.nodes()[0].outputs[0].unwrap());
    assert_eq!(s.dtype, Some(DType::I64));
    let [any, four] = [Dim::Unknown, Dim::Known(4)];
    let dims = [Dim::from("n"), any.clone(), any.clone(), four, any.clone(), any, Dim::from("2*n")];
    assert_eq!(s.shape.as_ref().unwrap().0, dims);
    assert_eq!(graph.output("x"), Some(1));
}

#[test]
fn an_absent_input_between_others_stays() {
    let graph = load_graph(graph(&["x"], vec![node("Add", &["x", "", "x"], &["y", ""])], &["y"])).unwrap();
    assert_eq!(input_names(&graph, 0), [Some("x".into()), None, Some("x".into())]);
    assert_eq!(graph.nodes()[0].outputs.len(), 2);
    assert!(graph.nodes()[0].outputs[1].is_none());
}

#[test]
fn unknown_operators_are_named_with_their_opset() {
    let e =
        fails(graph(&["x"], vec![node("Transposse", &["x"], &["y"])], &["y"]), "no operator \"Transposse\"");
    assert_eq!(*e.at(), ErrorLocation::Node { name: "Transposse_y".into(), op: "Transposse".into() });
    assert!(e.is_unsupported());
    let text = e.to_string();
    assert!(text.contains("domain \"\" at opset 13") && text.contains("did you mean Transpose"), "{text}");
    // An operator of a later opset is not there yet.
    fails(graph(&["x"], vec![node("Gelu", &["x"], &["y"])], &["y"]), "no operator \"Gelu\"");
    let mut m = model(graph(&["x"], vec![node("Gelu", &["x"], &["y"])], &["y"]));
    m.opset_import = opset(20);
    assert!(load_model(&m).is_ok());
    let mut n = node("FusedConv", &["x"], &["y"]);
    n.domain = "com.microsoft".into();
    assert_eq!(fake(&load_graph(graph(&["x"], vec![n], &["y"])).unwrap().nodes()[0].op).opset, 1);
}

#[test]
fn a_node_without_a_name_is_told_by_its_number_and_what_it_makes() {
    let unnamed =
        |op: &str, inputs: &[&str], to: &str| NodeProto { name: String::new(), ..node(op, inputs, &[to]) };
    let foo = vec![node("Relu", &["x"], &["a"]), unnamed("Foo", &["a"], "y")];
    fails(graph(&["x"], foo, &["y"]), "node \"unnamed #1, makes y\" (Foo): there is no operator");
    let cycle = vec![unnamed("Add", &["x", "b"], "a"), unnamed("Relu", &["a"], "b")];
    fails(graph(&["x"], cycle, &["b"]), "unnamed, makes ");
}

#[test]
fn wrong_attributes_are_errors_and_unknown_ones_are_not() {
    let n = |a| vec![with(node("Relu", &["x"], &["y"]), [a])];
    assert!(load_graph(graph(&["x"], n(int_attr("surplus", 1)), &["y"])).is_ok());
    let text = AttributeProto { s: Some(b"no".to_vec()), r#type: attribute_type::STRING, ..attr("alpha") };
    fails(graph(&["x"], n(text), &["y"]), "node \"Relu_y\" (Relu): attribute \"alpha\" is a text");
    let tensors = AttributeProto { r#type: 9, ..attr("alpha") };
    fails(graph(&["x"], n(tensors), &["y"]), "attribute \"alpha\" of type number 9");
    fails(graph(&["x"], n(attr("alpha")), &["y"]), "the value of attribute \"alpha\" is missing");
    // Files before IR version 2 do not tell an attribute's type, and writers leave out zeros.
    let old = load_graph(graph(&["x"], n(AttributeProto { i: Some(3), ..attr("axis") }), &["y"])).unwrap();
    assert_eq!(int(&old.nodes()[0].op, "axis"), 3);
    let zero = AttributeProto { r#type: attribute_type::INT, ..attr("axis") };
    assert_eq!(int(&load_graph(graph(&["x"], n(zero), &["y"])).unwrap().nodes()[0].op, "axis"), 0);
}

#[test]
fn constants_of_every_form() {
    let c = |name: &str, a: AttributeProto| with(node("Constant", &[], &[name]), [a]);
    let sparse = SparseTensorProto {
        values: Some(floats("", &[9.0])),
        indices: Some(TensorProto {
            data_type: data_type::INT64,
            dims: vec![1],
            int64_data: vec![2],
            ..Default::default()
        }),
        dims: vec![3],
    };
    let nodes = vec![
        node("Add", &["t", "i", "is", "f", "fs", "s"], &["y"]),
        c("t", AttributeProto { t: Some(Box::new(floats("", &[3.0]))), ..attr("value") }),
        c("i", int_attr("value_int", 7)),
        c("is", AttributeProto { ints: vec![1, 2], r#type: attribute_type::INTS, ..attr("value_ints") }),
        c("f", AttributeProto { f: Some(0.5), r#type: attribute_type::FLOAT, ..attr("value_float") }),
        c("fs", AttributeProto { floats: vec![0.5], r#type: attribute_type::FLOATS, ..attr("value_floats") }),
        c("s", AttributeProto { sparse_tensor: Some(Box::new(sparse)), ..attr("sparse_value") }),
    ];
    let g = load_graph(graph(&[], nodes, &["y"])).unwrap();
    assert_eq!(g.nodes().len(), 1);
    assert_eq!(constant(&g, "t").as_slice::<f32>().unwrap(), [3.0]);
    assert_eq!((constant(&g, "i").to_i64s().unwrap(), constant(&g, "i").shape().rank()), (vec![7], 0));
    assert_eq!(constant(&g, "is").to_i64s().unwrap(), [1, 2]);
    assert_eq!(constant(&g, "f").as_slice::<f32>().unwrap(), [0.5]);
    assert_eq!(constant(&g, "fs").shape().dims(), [1]);
    assert_eq!(constant(&g, "s").as_slice::<f32>().unwrap(), [0.0, 0.0, 9.0]);

    let text = AttributeProto { s: Some(vec![]), r#type: attribute_type::STRING, ..attr("value_string") };
    assert!(fails(graph(&[], vec![c("t", text)], &["t"]), "constant of texts").is_unsupported());
    fails(graph(&[], vec![node("Constant", &[], &["t"])], &["t"]), "expected one value");
}

#[test]
fn a_sound_graph_is_required() {
    let g = graph(&["x"], vec![node("Add", &["x", "b"], &["a"]), node("Relu", &["a"], &["b"])], &["b"]);
    let cycle = fails(g, "cycle");
    assert!(
        matches!(cycle.kind(), LoadErrorKind::Graph(g) if matches!(**g, GraphError::Cycle { .. })),
        "{cycle}"
    );
    fails(
        graph(&["x"], vec![node("Add", &["x", "ghost"], &["y"])], &["y"]),
        "\"ghost\" is used by \"Add_y\"",
    );
    let twice = vec![node("Relu", &["x"], &["y"]), node("Exp", &["x"], &["y"])];
    fails(graph(&["x"], twice, &["y"]), "two tensors are named \"y\"");
    fails(graph(&["x"], vec![node("Relu", &["x"], &["x"])], &["x"]), "two tensors are named \"x\"");
    fails(graph(&["x", "x"], vec![node("Relu", &["x"], &["y"])], &["y"]), "two inputs are named \"x\"");
    fails(graph(&["x"], vec![node("Relu", &["x"], &["y"])], &[]), "no output");
    let twice = load_graph(graph(&["x"], vec![node("Relu", &["x"], &["y"])], &["y", "y"])).unwrap();
    let names: Vec<&str> = twice.outputs().iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(names, ["y", "y~1"]);
}

#[test]
fn unsupported_types_of_inputs_and_outputs_are_named() {
    let sequence = |name: &str| ValueInfoProto {
        name: name.into(),
        r#type: Some(TypeProto { value: Some(TypeValue::Sequence(Box::default())) }),
    };
    let mut g = graph(&[], vec![node("Relu", &["x"], &["y"])], &["y"]);
    g.input.push(sequence("x"));
    assert!(fails(g, "tensor \"x\": unsupported: a sequence").is_unsupported());
    let mut g = graph(&["x"], vec![node("Relu", &["x"], &["y"])], &[]);
    g.output.push(sequence("y"));
    assert!(fails(g, "tensor \"y\": unsupported: a sequence").is_unsupported());
    let mut g = graph(&["x"], vec![node("Relu", &["x"], &["y"])], &["y"]);
    if let Some(TypeValue::Tensor(t)) = g.input[0].r#type.as_mut().and_then(|t| t.value.as_mut()) {
        t.elem_type = 8;
    }
    assert!(fails(g, "element type STRING").is_unsupported());
    let mut g = graph(&["x"], vec![node("Relu", &["x"], &["y"])], &["y"]);
    g.input[0] = value("x", &[1; 40]);
    fails(g, "40 dimensions");
    let mut g = graph(&["x"], vec![node("Relu", &["x"], &["y"])], &["y"]);
    g.input[0] = value("x", &[i64::MAX, i64::MAX]);
    fails(g, "too many elements");
}

#[test]
fn a_wrong_initializer_is_named() {
    let mut g = graph(&["x"], vec![node("Add", &["x", "w"], &["y"])], &["y"]);
    g.initializer.push(TensorProto { dims: vec![3], ..floats("w", &[1.0]) });
    fails(g.clone(), "tensor \"w\": elements of data of a tensor float32[3]: expected 3, found 1");
    g.initializer[0] = floats("w", &[1.0]);
    g.initializer.push(floats("w", &[1.0]));
    fails(g, "two tensors are named \"w\"");
}

#[test]
fn versions_are_checked() {
    let g = graph(&["x"], vec![node("Relu", &["x"], &["y"])], &["y"]);
    let mut m = model(g.clone());
    m.ir_version = 0;
    assert!(load_model(&m).unwrap_err().to_string().contains("IR version"));
    m = model(g.clone());
    m.graph = None;
    assert!(load_model(&m).unwrap_err().to_string().contains("the graph is missing"));
    m = model(g.clone());
    m.opset_import = opset(-1);
    assert!(load_model(&m).unwrap_err().to_string().contains("opset version"));
    m.opset_import = opset(NEWEST_OPSET + 5);
    m.ir_version = NEWEST_IR + 5;
    assert_eq!(fake(&load_model(&m).unwrap().nodes()[0].op).opset, NEWEST_OPSET + 5, "newer is a warning");
    m.opset_import.clear();
    assert_eq!(fake(&load_model(&m).unwrap().nodes()[0].op).opset, NEWEST_OPSET);
    m.ir_version = 2;
    assert_eq!(fake(&load_model(&m).unwrap().nodes()[0].op).opset, 1, "what had no opsets is opset 1");
    m = model(graph(&["x"], vec![node("Dropout", &["x"], &["y"])], &["y"]));
    m.opset_import = opset(6);
    assert!(load_model(&m).unwrap_err().to_string().contains("training mode"));
    m = model(graph(&["x"], vec![with(node("Add", &["x", "x"], &["y"]), [int_attr("sideways", 1)])], &["y"]));
    m.opset_import = opset(6);
    assert!(load_model(&m).unwrap_err().to_string().contains("\"sideways\" of Add of opset 6"));
}

#[test]
fn subgraphs_get_what_they_capture_as_last_inputs() {
    let mut then_branch = graph(&[], vec![node("Add", &["a", "w"], &["t"])], &["t"]);
    then_branch.name = "then".into();
    // The inner branch reads `b` of the outermost graph through the one between, and `a` directly.
    let inner = graph(&[], vec![node("Add", &["b", "local"], &["i"])], &["i"]);
    let else_branch = graph(
        &[],
        vec![
            node("Relu", &["a"], &["local"]),
            with(node("If", &["c2"], &["e"]), [graph_attr("then_branch", inner.clone())]),
        ],
        &["e"],
    );
    let choice = with(
        node("If", &["cond"], &["y"]),
        [graph_attr("then_branch", then_branch), graph_attr("else_branch", else_branch)],
    );
    let mut g = graph(&["cond", "x", "b", "c2"], vec![choice, node("Relu", &["x"], &["a"])], &["y"]);
    g.initializer.push(floats("w", &[1.0, 2.0]));
    let g = load_graph(g).unwrap();
    let n = g.nodes().iter().position(|n| n.name == "If_y").unwrap();
    assert_eq!(input_names(&g, n), ["cond", "a", "c2", "b"].map(|s| Some(s.into())), "w is a constant");
    let branch = |name: &str| match &fake(&g.nodes()[n].op).attrs[name] {
        AttrValue::Graph(g) => g.clone(),
        other => panic!("{other:?}"),
    };
    for name in ["then_branch", "else_branch"] {
        let b = branch(name);
        let names: Vec<&str> = b.inputs().iter().map(|i| b.tensor(*i).name.as_str()).collect();
        assert_eq!((b.captured(), names.as_slice()), (3, &["a", "c2", "b"][..]), "{name}");
    }
    assert_eq!(constant(&branch("then_branch"), "w").as_slice::<f32>().unwrap(), [1.0, 2.0]);
    let e = branch("else_branch");
    let nested = e.nodes().iter().position(|n| n.name == "If_e").unwrap();
    assert_eq!(input_names(&e, nested), ["c2", "b", "local"].map(|s| Some(s.into())));
    assert_eq!(g.captured(), 0);
}

#[test]
fn a_loop_body_keeps_its_formal_inputs_first() {
    let body =
        graph(&["iter", "cond_in", "state"], vec![node("Add", &["state", "x"], &["s2"])], &["cond_in", "s2"]);
    let n = with(node("Loop", &["", "cond", "init"], &["final"]), [graph_attr("body", body)]);
    let g = load_graph(graph(&["cond", "init", "x"], vec![n], &["final"])).unwrap();
    assert_eq!(
        input_names(&g, 0),
        [None, Some("cond".into()), Some("init".into()), Some("x".into())],
        "an absent trip count keeps its place"
    );
    let AttrValue::Graph(body) = &fake(&g.nodes()[0].op).attrs["body"] else { panic!() };
    let names: Vec<&str> = body.inputs().iter().map(|i| body.tensor(*i).name.as_str()).collect();
    assert_eq!((names.as_slice(), body.captured()), (&["iter", "cond_in", "state", "x"][..], 1));
}

#[test]
fn nested_graphs_may_shadow_and_dangle() {
    let branch = graph(&[], vec![node("Relu", &["nowhere"], &["t"])], &["t"]);
    let n = with(node("If", &["c"], &["y"]), [graph_attr("then_branch", branch)]);
    fails(graph(&["c"], vec![n], &["y"]), "\"nowhere\" is used");
    // One branch has its own `t`, the other reads the outer one.
    let own = graph(&[], vec![node("Relu", &["x"], &["t"])], &["t"]);
    let outer = graph(&[], vec![node("Relu", &["t"], &["u"])], &["u"]);
    let n =
        with(node("If", &["c"], &["y"]), [graph_attr("then_branch", own), graph_attr("else_branch", outer)]);
    let g = load_graph(graph(&["c", "x"], vec![node("Exp", &["x"], &["t"]), n], &["y"])).unwrap();
    assert_eq!(input_names(&g, 1), ["c", "x", "t"].map(|s| Some(s.into())));
    // An error inside a branch names the node there.
    let bad = graph(&[], vec![node("Nope", &["x"], &["t"])], &["t"]);
    let n = with(node("If", &["c"], &["y"]), [graph_attr("then_branch", bad)]);
    let e = fails(graph(&["c", "x"], vec![n], &["y"]), "Nope");
    assert_eq!(*e.at(), ErrorLocation::node("Nope_t", "Nope"));
}

#[test]
fn graphs_nest_as_deep_as_allowed() {
    let nested = |depth: usize| {
        let mut inner = graph(&[], vec![node("Relu", &["x"], &["y"])], &["y"]);
        for _ in 0..depth {
            inner = graph(
                &[],
                vec![with(node("If", &["c"], &["y"]), [graph_attr("then_branch", inner)])],
                &["y"],
            );
        }
        inner.input = vec![value("x", &[2]), value("c", &[])];
        inner
    };
    let deepest = load_graph(nested(limits::MAX_DEPTH - 1)).unwrap();
    assert_eq!(input_names(&deepest, 0), ["c", "c", "x"].map(|s| Some(s.into())));
    let e = load_graph(nested(limits::MAX_DEPTH + 2)).unwrap_err();
    assert!(matches!(e.kind(), LoadErrorKind::TooDeep { .. }), "{e}");
}

fn function(name: &str, inputs: &[&str], nodes: Vec<NodeProto>, outputs: &[&str]) -> FunctionProto {
    FunctionProto {
        name: name.into(),
        domain: "local".into(),
        input: inputs.iter().map(|s| (*s).into()).collect(),
        output: outputs.iter().map(|s| (*s).into()).collect(),
        node: nodes,
        opset_import: opset(17),
        ..Default::default()
    }
}

fn call(name: &str, inputs: &[&str], outputs: &[&str]) -> NodeProto {
    NodeProto { domain: "local".into(), ..node(name, inputs, outputs) }
}

#[test]
fn functions_are_inlined() {
    let mut f = function(
        "f",
        &["p", "q"],
        vec![
            with(node("Add", &["p", "q"], &["t"]), [ref_attr("axis", "k")]),
            with(node("Relu", &["t"], &["r"]), [ref_attr("axis", "missing")]),
            with(node("Constant", &[], &["c"]), [int_attr("value_int", 5)]),
        ],
        &["r", "c", "p"],
    );
    f.attribute = vec!["missing".into()];
    f.attribute_proto = vec![int_attr("k", 4)];
    let g = graph(
        &["x"],
        vec![
            with(call("f", &["x"], &["y", "five", "same"]), [int_attr("k", 9)]),
            call("f", &["x", "y"], &["z"]),
        ],
        &["y", "five", "same", "z"],
    );
    let mut m = model(g);
    m.functions = vec![f];
    let g = load_model(&m).unwrap();
    let axes: Vec<i64> =
        g.nodes().iter().filter(|n| n.name.contains("Add")).map(|n| int(&n.op, "axis")).collect();
    assert_eq!(axes, [9, 4], "given, then the default");
    let first = g.nodes().iter().position(|n| n.name == "f_y/Add_t").unwrap();
    assert_eq!(input_names(&g, first), [Some("x".into())], "q was left out");
    assert_eq!(fake(&g.nodes()[first].op).opset, 17, "the function has its own opset");
    let relu = g.nodes().iter().find(|n| n.name == "f_y/Relu_r").unwrap();
    assert!(fake(&relu.op).attrs.is_empty());
    let five = g.outputs()[1].1;
    assert!(matches!(&g.tensor(five).origin, Origin::Constant(t) if t.to_i64s().unwrap() == [5]));
    assert!(g.nodes().iter().any(|n| n.name == "f_y/identity"));
}

#[test]
fn functions_are_bounded() {
    let mut m = model(graph(&["x"], vec![call("f", &["x"], &["y"])], &["y"]));
    m.functions = vec![function("f", &["p"], vec![call("f", &["p"], &["r"])], &["r"])];
    let e = load_model(&m).unwrap_err();
    assert!(matches!(e.kind(), LoadErrorKind::TooDeep { limit: limits::MAX_DEPTH, .. }), "{e}");
    // 28 functions that each call the next twice and do nothing else.
    m.graph = Some(Box::new(graph(&["x"], vec![call("f0", &["x"], &["y"])], &["y"])));
    m.functions = (0..28)
        .map(|i| {
            let next = format!("f{}", i + 1);
            let calls = vec![call(&next, &["p"], &["r"]), call(&next, &["r"], &["s"])];
            function(&format!("f{i}"), &["p"], calls, &["s"])
        })
        .collect();
    m.functions.push(function("f28", &["p"], vec![], &["p"]));
    let e = load_model(&m).unwrap_err();
    assert!(matches!(e.kind(), LoadErrorKind::TooMany { what: "nodes", .. }), "{e}");
    m.functions.truncate(1);
    m.functions.push(m.functions[0].clone());
    assert!(load_model(&m).unwrap_err().to_string().contains("two functions are named \"f0\""));
    m = model(graph(&["x"], vec![call("f", &["x", "x"], &["y"])], &["y"]));
    m.functions = vec![function("f", &["p"], vec![node("Relu", &["p"], &["r"])], &["r"])];
    assert!(load_model(&m).unwrap_err().to_string().contains("inputs of a call of function \"f\""));
}

#[test]
fn parameters_lie_in_one_region_and_are_read_once() {
    let dir = tempfile::tempdir().unwrap();
    let data: Vec<u8> = (0..8192u32).map(|i| (i / 7) as u8).collect();
    std::fs::write(dir.path().join("w.data"), &data).unwrap();
    let entry = |key: &str, value: &str| StringStringEntryProto { key: key.into(), value: value.into() };
    let external = TensorProto {
        name: "e".into(),
        data_type: data_type::UINT8,
        dims: vec![4000],
        data_location: EXTERNAL,
        external_data: vec![entry("location", "w.data"), entry("offset", "4096")],
        ..Default::default()
    };
    let raw = TensorProto {
        name: "r".into(),
        data_type: data_type::UINT8,
        dims: vec![8192],
        raw_data: Some(data.clone().into()),
        ..Default::default()
    };
    let mut g = graph(&["x"], vec![node("Add", &["x", "e", "r", "w"], &["y"])], &["y"]);
    g.initializer = vec![external, raw, floats("w", &[1.0])];
    let path = dir.path().join("m.onnx");
    std::fs::write(&path, model(g).encode_to_vec()).unwrap();
    let roots = vec![dir.path().to_owned()];
    let g =
        Source::open(&path).and_then(|s| load(s, roots, find, HashMap::new(), (None, None, None))).unwrap();
    assert_eq!(constant(&g, "e").bytes(), &data[4096..8096]);
    assert_eq!(constant(&g, "r").bytes(), data);
    let regions: Vec<_> =
        g.constants().map(|(_, t)| std::sync::Arc::as_ptr(&t.region().unwrap().0)).collect();
    assert!(regions.len() == 3 && regions.iter().all(|r| *r == regions[0]));

    let e = load_onnx(&dir.path().join("none.onnx")).unwrap_err();
    assert!(e.to_string().contains("none.onnx: cannot open the file"), "{e}");
    std::fs::write(dir.path().join("w.data"), [0u8; 5000]).unwrap();
    let e = load_onnx(&path).unwrap_err();
    assert!(e.to_string().contains("m.onnx: tensor \"e\": external data in \"w.data\""), "{e}");
}

fn everything() -> ModelProto {
    let branch = graph(&[], vec![node("Add", &["a", "w"], &["t"])], &["t"]);
    let mut g = graph(
        &["x", "c"],
        vec![
            with(call("f", &["x"], &["a"]), [int_attr("k", 9)]),
            with(node("If", &["c"], &["y"]), [graph_attr("then_branch", branch)]),
            with(node("Constant", &[], &["k"]), [int_attr("value_int", 5)]),
            node("Add", &["y", "k"], &["z"]),
        ],
        &["z"],
    );
    g.initializer.push(floats("w", &[1.0, 2.0]));
    g.value_info.push(value("a", &[2]));
    let mut m = model(g);
    let relu = with(node("Relu", &["p"], &["r"]), [ref_attr("axis", "k")]);
    m.functions = vec![function("f", &["p"], vec![relu], &["r"])];
    m.opset_import.push(OperatorSetIdProto { domain: "local".into(), version: 1 });
    m
}

#[test]
fn no_prefix_and_no_flipped_bit_panics() {
    let bytes = everything().encode_to_vec();
    assert!(load(Source::of(&bytes), Vec::new(), find, HashMap::new(), (None, None, None)).is_ok());
    for end in 0..bytes.len() {
        if let Ok(g) = load(Source::of(&bytes[..end]), Vec::new(), find, HashMap::new(), (None, None, None)) {
            assert!(!g.outputs().is_empty(), "{end}");
        }
    }
    for bit in 0..bytes.len() * 8 {
        let mut b = bytes.clone();
        b[bit / 8] ^= 1 << (bit % 8);
        if let Ok(g) = load(Source::of(&b), Vec::new(), find, HashMap::new(), (None, None, None)) {
            assert!(!g.outputs().is_empty(), "{bit}");
        }
    }
}
