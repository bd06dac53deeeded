//! Models with sequences and optionals, run on the CPU.

use prost::Message as _;

use super::attribute::int_attr;
use super::load_onnx_bytes;
use super::proto::*;
use super::tests::{graph, graph_attr, model, node, with};
use crate::graph::{Graph, Tensor};
use crate::loader::LoadError;
use crate::session::Session;

/// A graph of `x` and `y`, two floats each, and int64 scalars `p` and `q`, with constants `one` and `sizes`.
fn proto(nodes: Vec<NodeProto>, outputs: &[&str]) -> GraphProto {
    let mut g = graph(&["x", "y"], nodes, outputs);
    for name in ["p", "q"] {
        let tensor = TensorTypeProto {
            elem_type: data_type::INT64,
            shape: Some(TensorShapeProto { dim: Vec::new() }),
        };
        let r#type = Some(TypeProto { value: Some(TypeValue::Tensor(tensor)) });
        g.input.push(ValueInfoProto { name: name.into(), r#type });
    }
    let ints = |name: &str, dims: &[i64], values: &[i64]| TensorProto {
        name: name.into(),
        data_type: data_type::INT64,
        dims: dims.to_vec(),
        int64_data: values.to_vec(),
        ..Default::default()
    };
    g.initializer.push(ints("one", &[], &[1]));
    g.initializer.push(ints("last", &[], &[-1]));
    g.initializer.push(ints("sizes", &[2], &[0, 2]));
    g
}

fn load(nodes: Vec<NodeProto>, outputs: &[&str]) -> Result<Graph, LoadError> {
    let mut m = model(proto(nodes, outputs));
    m.opset_import[0].version = 18;
    load_onnx_bytes(&m.encode_to_vec(), None)
}

fn run(session: &mut Session, p: i64, q: i64) -> Result<Vec<Tensor>, crate::session::Error> {
    let given = [
        ("x", Tensor::new([2], &[1.0f32, 2.0]).unwrap()),
        ("y", Tensor::new([2], &[3.0f32, 4.0]).unwrap()),
        ("p", Tensor::scalar(p)),
        ("q", Tensor::scalar(q)),
    ];
    for (name, value) in &given {
        session.set_input(name, value)?;
    }
    session.run()?;
    session.outputs().iter().map(|o| session.get_output(&o.name)).collect()
}

fn session(graph: Graph) -> Session {
    Session::builder().graph(graph).device("cpu").build().unwrap()
}

#[track_caller]
fn gives(nodes: Vec<NodeProto>, dims: &[usize], want: &[f32]) {
    let got = run(&mut session(load(nodes, &["r"]).unwrap()), 0, 0).unwrap().remove(0);
    assert_eq!((got.shape().dims(), got.as_slice::<f32>().unwrap()), (dims, want));
}

#[track_caller]
fn fails(nodes: Vec<NodeProto>, outputs: &[&str], phrase: &str) {
    let e = load(nodes, outputs).unwrap_err();
    assert!(crate::loader::LoadError::to_string(&e).contains(phrase), "{e}");
}

fn list() -> NodeProto {
    node("SequenceConstruct", &["x", "y"], &["s"])
}

#[test]
fn an_element_of_a_known_list_costs_no_node() {
    let at = |position: &str| vec![list(), node("SequenceAt", &["s", position], &["r"])];
    let loaded = load(at("one"), &["r"]).unwrap();
    assert_eq!((loaded.nodes().len(), loaded.output("r")), (0, Some(0)));
    gives(at("last"), &[2], &[3.0, 4.0]);
    let mut nodes = at("one");
    // A reader may come before the node it reads.
    nodes.insert(0, node("Relu", &["r"], &["z"]));
    let got = run(&mut session(load(nodes, &["z"]).unwrap()), 0, 0).unwrap();
    assert_eq!(got[0].as_slice::<f32>().unwrap(), [3.0, 4.0]);
}

#[test]
fn lists_are_edited_and_joined() {
    gives(
        vec![
            node("SequenceEmpty", &[], &["e"]),
            node("SequenceInsert", &["e", "x"], &["a"]),
            node("SequenceInsert", &["a", "y", "last"], &["b"]),
            node("Identity", &["b"], &["c"]),
            node("SequenceInsert", &["c", "y"], &["d"]),
            node("SequenceErase", &["d", "one"], &["s"]),
            with(node("ConcatFromSequence", &["s"], &["r"]), [int_attr("axis", 0)]),
        ],
        &[4],
        &[3.0, 4.0, 3.0, 4.0],
    );
    let stack =
        with(node("ConcatFromSequence", &["s"], &["r"]), [int_attr("axis", -1), int_attr("new_axis", 1)]);
    gives(vec![list(), stack], &[2, 2], &[1.0, 3.0, 2.0, 4.0]);
    let length = node("SequenceLength", &["s"], &["r"]);
    let got = run(&mut session(load(vec![list(), length], &["r"]).unwrap()), 0, 0).unwrap();
    assert_eq!(got[0].to_i64s().unwrap(), [2]);
}

#[test]
fn what_is_cut_up_is_taken_piece_by_piece() {
    let cut = |inputs: &[&str]| node("SplitToSequence", inputs, &["s"]);
    gives(vec![cut(&["x"]), node("SequenceAt", &["s", "last"], &["r"])], &[1], &[2.0]);
    let squeezed = with(cut(&["x"]), [int_attr("keepdims", 0)]);
    gives(vec![squeezed, node("SequenceAt", &["s", "one"], &["r"])], &[], &[2.0]);
    // Pieces of one element are what is cut without sizes.
    let squeezed = with(cut(&["x", "one"]), [int_attr("keepdims", 0)]);
    gives(vec![squeezed.clone(), node("SequenceAt", &["s", "one"], &["r"])], &[], &[2.0]);
    let attrs = [int_attr("axis", 0), int_attr("new_axis", 1)];
    gives(vec![squeezed, with(node("ConcatFromSequence", &["s"], &["r"]), attrs)], &[2], &[1.0, 2.0]);
    gives(vec![cut(&["y", "sizes"]), node("SequenceAt", &["s", "one"], &["r"])], &[2], &[3.0, 4.0]);
    let join = with(node("ConcatFromSequence", &["s"], &["r"]), [int_attr("axis", 0)]);
    gives(vec![cut(&["y", "sizes"]), join.clone()], &[2], &[3.0, 4.0]);
    gives(vec![cut(&["y"]), join], &[2], &[3.0, 4.0]);
    // The number of pieces is known only in the run.
    let insert = node("SequenceInsert", &["s", "x", "one"], &["t"]);
    let join = with(node("ConcatFromSequence", &["t"], &["r"]), [int_attr("axis", 0)]);
    gives(vec![cut(&["y"]), insert, join], &[4], &[3.0, 1.0, 2.0, 4.0]);
}

#[test]
fn positions_may_be_inputs() {
    let nodes = vec![
        list(),
        node("SequenceInsert", &["s", "x", "p"], &["t"]),
        node("SequenceErase", &["t", "one"], &["u"]),
        node("SequenceAt", &["u", "q"], &["r"]),
    ];
    let mut session = session(load(nodes, &["r"]).unwrap());
    let mut first = |p, q| run(&mut session, p, q).map(|r| r[0].as_slice::<f32>().unwrap()[0]);
    // x x y, x x y, x y x; then the second is taken away.
    assert_eq!((first(0, 1).unwrap(), first(1, 0).unwrap(), first(2, 1).unwrap()), (3.0, 1.0, 1.0));
    assert_eq!(first(-1, -1).unwrap(), 3.0);
    assert!(first(3, 0).is_err() && first(0, 2).is_err());
}

#[test]
fn optionals_are_their_elements() {
    let has = |inputs: &[&str]| {
        let nodes = vec![
            node("Optional", &["x"], &["o"]),
            node("Optional", &[], &["none"]),
            list(),
            node("OptionalHasElement", inputs, &["r"]),
        ];
        run(&mut session(load(nodes, &["r"]).unwrap()), 0, 0).unwrap()[0].bytes() == [1]
    };
    assert!(has(&["o"]) && has(&["x"]) && has(&["s"]));
    assert!(!has(&["none"]) && !has(&[""]) && !has(&[]));
    gives(
        vec![node("Optional", &["y"], &["o"]), node("OptionalGetElement", &["o"], &["r"])],
        &[2],
        &[3.0, 4.0],
    );
    gives(
        vec![
            list(),
            node("Optional", &["s"], &["o"]),
            node("OptionalGetElement", &["o"], &["t"]),
            node("SequenceAt", &["t", "one"], &["r"]),
        ],
        &[2],
        &[3.0, 4.0],
    );
    let none = vec![node("Optional", &[], &["o"]), node("OptionalGetElement", &["o"], &["r"])];
    fails(none, &["r"], "expected an optional with an element");
}

#[test]
fn sequences_where_there_can_be_none_are_unsupported() {
    fails(vec![list(), node("Relu", &["s"], &["r"])], &["r"], "\"s\", a sequence, as an input of Relu");
    fails(vec![node("SequenceAt", &["x", "one"], &["r"])], &["r"], "a sequence that comes after");
    let construct = node("SequenceConstruct", &["s"], &["t"]);
    fails(vec![list(), construct], &["t"], "a sequence as input 0 of SequenceConstruct");
}

#[test]
fn graphs_inside_read_lists_of_graphs_around() {
    let branch = |name: &str, position: &str| {
        let at = node("SequenceAt", &["s", position], &["z"]);
        graph_attr(name, GraphProto { input: Vec::new(), ..graph(&[], vec![at], &["z"]) })
    };
    let chosen = with(node("Cast", &["q"], &["yes"]), [int_attr("to", data_type::BOOL.into())]);
    let branches = [branch("then_branch", "one"), branch("else_branch", "p")];
    let choice = with(node("If", &["yes"], &["r"]), branches);
    let mut s = session(load(vec![list(), chosen, choice], &["r"]).unwrap());
    let mut first = |p, q| run(&mut s, p, q).map(|r| r[0].as_slice::<f32>().unwrap()[0]);
    assert_eq!((first(0, 1).unwrap(), first(0, 0).unwrap(), first(-1, 0).unwrap()), (3.0, 1.0, 3.0));
    assert!(first(2, 0).is_err());

    // In every iteration an element of a list, one of what was cut up, and the numbers of both.
    let mut body = graph(
        &["i", "c", "sum"],
        vec![
            node("SequenceAt", &["s", "i"], &["own"]),
            node("SequenceAt", &["pieces", "i"], &["piece"]),
            node("SequenceLength", &["s"], &["m"]),
            node("SequenceLength", &["pieces"], &["n"]),
            node("Mul", &["m", "n"], &["mn"]),
            with(node("Cast", &["mn"], &["f"]), [int_attr("to", data_type::FLOAT.into())]),
            node("Mul", &["own", "f"], &["own_f"]),
            node("Add", &["own_f", "piece"], &["both"]),
            node("Add", &["sum", "both"], &["sum2"]),
            node("Identity", &["c"], &["c2"]),
        ],
        &["c2", "sum2"],
    );
    body.input.iter_mut().for_each(|i| i.r#type = None);
    let repeated = with(node("Loop", &["p", "", "x"], &["r"]), [graph_attr("body", body)]);
    let nodes = vec![
        node("SequenceConstruct", &["x", "x"], &["s0"]),
        node("SequenceInsert", &["s0", "y", "q"], &["s"]),
        node("SplitToSequence", &["y"], &["pieces"]),
        repeated,
    ];
    let mut s = session(load(nodes, &["r"]).unwrap());
    // x y x: [1, 2] + ([1, 2] * 6 + 3) + ([3, 4] * 6 + 4).
    assert_eq!(run(&mut s, 2, 1).unwrap()[0].as_slice::<f32>().unwrap(), [32.0, 45.0]);
    assert_eq!(run(&mut s, 0, 1).unwrap()[0].as_slice::<f32>().unwrap(), [1.0, 2.0]);
    // y has two pieces.
    assert!(run(&mut s, 3, 1).is_err());
}

#[test]
fn lists_that_do_not_fit_are_errors() {
    fails(
        vec![node("SequenceEmpty", &[], &["s"]), node("SequenceAt", &["s", "p"], &["r"])],
        &["r"],
        "0 elements",
    );
    let erase = node("SequenceErase", &["s"], &["t"]);
    fails(vec![node("SequenceEmpty", &[], &["s"]), erase], &["t"], "0 elements");
    let join = with(node("ConcatFromSequence", &["s"], &["r"]), [int_attr("axis", 0)]);
    fails(vec![node("SequenceEmpty", &[], &["s"]), join], &["r"], "an empty one");
    fails(vec![list(), node("ConcatFromSequence", &["s"], &["r"])], &["r"], "\"axis\"");
    fails(vec![list(), list()], &["x"], "\"s\"");
    fails(vec![list(), node("SequenceInsert", &["s"], &["t"])], &["t"], "input 1 is missing");
    fails(vec![list(), node("SequenceAt", &["s"], &["t"])], &["t"], "input 1 is missing");
    let many: Vec<&str> = vec!["x"; 1025];
    fails(vec![node("SequenceConstruct", &many, &["t"])], &["x"], "elements of a sequence");
    let names: Vec<String> = (0..40).map(|i| format!("s{i}")).collect();
    let mut nodes = vec![node("SequenceConstruct", &["x"], &["s0"])];
    let pairs = names.iter().zip(names.iter().skip(1));
    nodes.extend(pairs.map(|(a, b)| node("SequenceInsert", &[a, "x", "p"], &[b])));
    fails(nodes, &["x"], "unknown positions");
}

/// A loop of `p` iterations that appends `x` times the number of the iteration to a list, and counts `p` up.
fn appending(insert: &[&str]) -> Vec<NodeProto> {
    let mut body = graph(
        &["i", "c", "l", "n"],
        vec![
            with(node("Cast", &["i"], &["f"]), [int_attr("to", data_type::FLOAT.into())]),
            node("Mul", &["x", "f"], &["item"]),
            node("SequenceInsert", insert, &["l2"]),
            node("Add", &["n", "one"], &["n2"]),
            node("Identity", &["c"], &["c2"]),
        ],
        &["c2", "l2", "n2"],
    );
    body.input.iter_mut().for_each(|i| i.r#type = None);
    vec![
        node("SequenceEmpty", &[], &["e"]),
        with(node("Loop", &["p", "", "e", "p"], &["l", "m"]), [graph_attr("body", body)]),
    ]
}

#[test]
fn what_a_loop_appends_is_a_list() {
    let mut nodes = appending(&["l", "item"]);
    let attrs = [int_attr("axis", 1), int_attr("new_axis", 1)];
    nodes.extend([
        with(node("ConcatFromSequence", &["l"], &["columns"]), attrs),
        with(node("ConcatFromSequence", &["l"], &["row"]), [int_attr("axis", 0)]),
        node("SequenceAt", &["l", "q"], &["one_of"]),
        node("SequenceLength", &["l"], &["length"]),
    ]);
    let mut s = session(load(nodes, &["columns", "row", "one_of", "length", "m"]).unwrap());
    let got = run(&mut s, 3, -1).unwrap();
    assert_eq!(got[0].shape().dims(), [2, 3]);
    assert_eq!(got[0].to_f32s().unwrap(), [0.0, 1.0, 2.0, 0.0, 2.0, 4.0]);
    assert_eq!(got[1].to_f32s().unwrap(), [0.0, 0.0, 1.0, 2.0, 2.0, 4.0]);
    assert_eq!(got[2].to_f32s().unwrap(), [2.0, 4.0]);
    assert_eq!((got[3].to_i64s().unwrap(), got[4].to_i64s().unwrap()), (vec![3], vec![6]));
    let none = run(&mut s, 0, 0);
    assert!(none.unwrap_err().to_string().contains("empty list"));
    // Elsewhere than at the end.
    let mut nodes = appending(&["l", "item", "zero"]);
    nodes.insert(0, node("Sub", &["one", "one"], &["zero"]));
    nodes.push(with(node("ConcatFromSequence", &["l"], &["row"]), [int_attr("axis", 0)]));
    let got = run(&mut session(load(nodes, &["row"]).unwrap()), 3, 0).unwrap();
    assert_eq!(got[0].to_f32s().unwrap(), [2.0, 4.0, 1.0, 2.0, 0.0, 0.0]);
}

/// In each of `p` iterations, what is appended is longer, and only in every second iteration something is.
#[test]
fn a_branch_appends_and_elements_have_several_shapes() {
    let branch = |name: &str, nodes: Vec<NodeProto>, output: &str| {
        graph_attr(name, GraphProto { input: Vec::new(), ..graph(&[], nodes, &[output]) })
    };
    let body = |insert: &[&str]| {
        let yes = vec![node("SequenceInsert", insert, &["longer"])];
        let no = vec![node("Identity", &["l"], &["same"])];
        let choice = with(
            node("If", &["odd"], &["l2"]),
            [branch("then_branch", yes, "longer"), branch("else_branch", no, "same")],
        );
        let mut body = graph(
            &["i", "c", "l"],
            vec![
                node("Mod", &["i", "two"], &["rest"]),
                with(node("Cast", &["rest"], &["odd"]), [int_attr("to", data_type::BOOL.into())]),
                node("Reshape", &["i", "last"], &["times"]),
                node("Tile", &["x", "times"], &["item"]),
                choice,
                node("Identity", &["c"], &["c2"]),
            ],
            &["c2", "l2"],
        );
        body.input.iter_mut().for_each(|i| i.r#type = None);
        body
    };
    let nodes = |insert: &[&str]| {
        vec![
            node("SequenceEmpty", &[], &["e"]),
            node("Add", &["one", "one"], &["two"]),
            with(node("Loop", &["p", "", "e"], &["l"]), [graph_attr("body", body(insert))]),
            node("SequenceLength", &["l"], &["n"]),
            node("SequenceAt", &["l", "q"], &["taken"]),
            node("SequenceErase", &["l", "q"], &["fewer"]),
            node("SequenceLength", &["fewer"], &["m"]),
            with(node("ConcatFromSequence", &["l"], &["row"]), [int_attr("axis", -1)]),
        ]
    };
    let mut s = session(load(nodes(&["l", "item"]), &["n", "m", "taken", "row"]).unwrap());
    let got = run(&mut s, 4, -1).unwrap();
    assert_eq!((got[0].to_i64s().unwrap(), got[1].to_i64s().unwrap()), (vec![2], vec![1]));
    assert_eq!(got[2].to_f32s().unwrap(), [1.0, 2.0, 1.0, 2.0, 1.0, 2.0]);
    assert_eq!(got[3].to_f32s().unwrap(), [1.0, 2.0, 1.0, 2.0, 1.0, 2.0, 1.0, 2.0]);
    let got = run(&mut s, 7, 0).unwrap();
    assert_eq!((got[0].to_i64s().unwrap(), got[2].to_f32s().unwrap()), (vec![3], vec![1.0, 2.0]));
    assert_eq!(got[3].shape().dims(), [18]);
    assert!(run(&mut s, 4, 2).is_err() && run(&mut s, 1, 0).is_err());
    let mut s = session(load(nodes(&["l", "item", "rest"]), &["n"]).unwrap());
    assert!(run(&mut s, 2, 0).unwrap_err().to_string().contains("position 1"));
    // Both branches must give the same.
    let mut other = body(&["l", "item"]);
    let last = branch("else_branch", vec![node("Identity", &["x"], &["same"])], "same");
    other.node[4].attribute[1] = last;
    let mut nodes = nodes(&["l", "item"]);
    nodes[2].attribute = vec![graph_attr("body", other)];
    fails(nodes, &["n"], "a sequence as the same output of both branches");
}

/// For each of `p` rows, `q` elements are appended to one list.
#[test]
fn nested_loops_append_to_one_list() {
    let mut inner = graph(
        &["j", "c", "l"],
        vec![
            node("Add", &["i", "j"], &["sum"]),
            with(node("Cast", &["sum"], &["item"]), [int_attr("to", data_type::FLOAT.into())]),
            node("SequenceInsert", &["l", "item"], &["l2"]),
            node("Identity", &["c"], &["c2"]),
        ],
        &["c2", "l2"],
    );
    inner.input.iter_mut().for_each(|i| i.r#type = None);
    let mut outer = graph(
        &["i", "k", "m"],
        vec![
            with(node("Loop", &["q", "", "m"], &["m2"]), [graph_attr("body", inner)]),
            node("Identity", &["k"], &["k2"]),
        ],
        &["k2", "m2"],
    );
    outer.input.iter_mut().for_each(|i| i.r#type = None);
    let nodes = vec![
        node("SequenceEmpty", &[], &["e"]),
        with(node("Loop", &["p", "", "e"], &["l"]), [graph_attr("body", outer)]),
        with(node("ConcatFromSequence", &["l"], &["r"]), [int_attr("axis", 0), int_attr("new_axis", 1)]),
    ];
    let mut s = session(load(nodes, &["r"]).unwrap());
    assert_eq!(run(&mut s, 2, 3).unwrap()[0].to_f32s().unwrap(), [0.0, 1.0, 2.0, 1.0, 2.0, 3.0]);
    assert_eq!(run(&mut s, 3, 1).unwrap()[0].to_f32s().unwrap(), [0.0, 1.0, 2.0]);
}

#[test]
fn sequences_are_inputs_and_outputs_of_graphs_and_functions() {
    use crate::ops::sequence::{pack, unpack};

    let mut g = proto(
        vec![
            NodeProto { domain: "own".into(), ..node("Twice", &["given", "y"], &["more"]) },
            node("SequenceErase", &["more", "p"], &["r"]),
        ],
        &["r"],
    );
    let element = TypeProto {
        value: Some(TypeValue::Tensor(TensorTypeProto { elem_type: data_type::FLOAT, shape: None })),
    };
    let list = ElementTypeProto { elem_type: Some(Box::new(element)) };
    let r#type = Some(TypeProto { value: Some(TypeValue::Sequence(Box::new(list))) });
    g.input.push(ValueInfoProto { name: "given".into(), r#type });
    let mut m = model(g);
    m.opset_import[0].version = 18;
    m.opset_import.push(OperatorSetIdProto { domain: "own".into(), version: 1 });
    m.functions.push(FunctionProto {
        name: "Twice".into(),
        domain: "own".into(),
        input: vec!["l".into(), "t".into()],
        output: vec!["l3".into()],
        node: vec![
            node("SequenceInsert", &["l", "t"], &["l2"]),
            node("SequenceInsert", &["l2", "t"], &["l3"]),
        ],
        opset_import: m.opset_import.clone(),
        ..Default::default()
    });
    let mut s = session(load_onnx_bytes(&m.encode_to_vec(), None).unwrap());
    let names: Vec<String> = s.outputs().into_iter().map(|o| o.name).collect();
    assert_eq!(names, ["r/values", "r/table"]);
    let of = |values: &[f32]| Tensor::new([values.len()], values).unwrap();
    let mut results = |items: &[Tensor], p| {
        let [values, table] = pack(items, crate::dtype::DType::F32).unwrap();
        s.set_input("given/values", &values)?;
        s.set_input("given/table", &table)?;
        let got = run(&mut s, p, 0)?;
        Ok::<_, crate::session::Error>(unpack(&got[0], &got[1]).unwrap())
    };
    let got = results(&[of(&[5.0]), of(&[6.0, 7.0, 8.0])], 0).unwrap();
    let got: Vec<Vec<f32>> = got.iter().map(|t| t.to_f32s().unwrap()).collect();
    assert_eq!(got, [vec![6.0, 7.0, 8.0], vec![3.0, 4.0], vec![3.0, 4.0]]);
    assert_eq!(results(&[], 1).unwrap().len(), 1);
    assert!(results(&[], 2).is_err());
    // A table that does not fit what it lists.
    let [_, table] = pack(&[of(&[1.0, 2.0])], crate::dtype::DType::F32).unwrap();
    s.set_input("given/values", &of(&[1.0])).unwrap();
    s.set_input("given/table", &table).unwrap();
    assert!(run(&mut s, 0, 0).unwrap_err().to_string().contains("do not add up"));
}

#[test]
fn a_graph_is_mapped_over_lists() {
    let mut body = graph(
        &["a", "b"],
        vec![node("Mul", &["a", "b"], &["c"]), node("Add", &["c", "x"], &["d"])],
        &["c", "d"],
    );
    body.input.iter_mut().for_each(|i| i.r#type = None);
    let nodes = vec![
        list(),
        with(node("SequenceMap", &["s", "y"], &["t", "u"]), [graph_attr("body", body)]),
        with(node("ConcatFromSequence", &["t"], &["row"]), [int_attr("axis", 0)]),
        node("SequenceAt", &["u", "one"], &["r"]),
    ];
    let got = run(&mut session(load(nodes, &["row", "r"]).unwrap()), 0, 0).unwrap();
    assert_eq!(got[0].to_f32s().unwrap(), [3.0, 8.0, 9.0, 16.0]);
    assert_eq!(got[1].to_f32s().unwrap(), [10.0, 18.0]);
}

/// A loop of `p` iterations that appends to a list the sum of its last element and the one in the middle.
#[test]
fn a_list_that_a_loop_carries_is_read_in_it() {
    let body = || {
        let mut body = graph(
            &["i", "c", "l"],
            vec![
                node("SequenceLength", &["l"], &["n"]),
                node("Div", &["n", "two"], &["half"]),
                node("SequenceAt", &["l", "last"], &["a"]),
                node("SequenceAt", &["l", "half"], &["b"]),
                node("Add", &["a", "b"], &["item"]),
                node("SequenceInsert", &["l", "item"], &["l2"]),
                node("Identity", &["c"], &["c2"]),
            ],
            &["c2", "l2"],
        );
        body.input.iter_mut().for_each(|i| i.r#type = None);
        body
    };
    let nodes = |body: GraphProto| {
        vec![
            list(),
            node("Add", &["one", "one"], &["two"]),
            with(node("Loop", &["p", "", "s"], &["r"]), [graph_attr("body", body)]),
            node("SequenceAt", &["r", "q"], &["taken"]),
            node("SequenceLength", &["r"], &["length"]),
        ]
    };
    let mut s = session(load(nodes(body()), &["taken", "length"]).unwrap());
    let mut of = |p, q| {
        let got = run(&mut s, p, q).unwrap();
        (got[0].to_f32s().unwrap(), got[1].to_i64s().unwrap()[0])
    };
    // x y, then y + y, then that and y.
    assert_eq!(of(0, -1), (vec![3.0, 4.0], 2));
    assert_eq!(of(1, -1), (vec![6.0, 8.0], 3));
    assert_eq!(of(2, 3), (vec![9.0, 12.0], 4));
    assert_eq!(of(2, 0), (vec![1.0, 2.0], 4));
    // Elements may be of other shapes, and more may be done with the list than to read it.
    let mut longer = body();
    longer.node[4] = with(node("Concat", &["a", "b"], &["item"]), [int_attr("axis", 0)]);
    let mut s = session(load(nodes(longer), &["taken"]).unwrap());
    assert_eq!(run(&mut s, 2, -1).unwrap()[0].to_f32s().unwrap(), [3.0, 4.0, 3.0, 4.0, 3.0, 4.0]);
    let mut erased = body();
    erased.node.push(node("SequenceErase", &["l2", "half"], &["l3"]));
    erased.output[1].name = "l3".into();
    let mut s = session(load(nodes(erased), &["length", "taken"]).unwrap());
    let got = run(&mut s, 3, -1).unwrap();
    // Of x y, y goes for y + y, that for that and y + y.
    assert_eq!((got[0].to_i64s().unwrap(), got[1].to_f32s().unwrap()), (vec![2], vec![24.0, 32.0]));
    // What the body gives back must be a list too.
    let mut wrong = body();
    wrong.output[1].name = "item".into();
    fails(nodes(wrong), &["length"], "a sequence as what the body of a Loop gives back");
}
