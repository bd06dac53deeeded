use std::sync::Arc;

use super::recognize_attention;
use crate::dtype::DType;
use crate::expr::ElementTest;
use crate::graph::{GraphBuilder, Tensor, TensorId};
use crate::operator::Operator;
use crate::ops;
use crate::ops::attention::Attention;
use crate::ops::linalg::MatMul;
use crate::ops::movement::Transpose;
use crate::ops::norm::{Softmax, SoftmaxKind};
use crate::ops::pointwise::{BinaryFunction, Classify, select_where};
use crate::ops::shape_ops::{Expand, Reshape, Unsqueeze};
use crate::plan::flow::Flow;
use crate::plan::specialize;
use crate::shape::Shape;
use crate::tensor::TensorInfo;

pub(super) fn softmax() -> Arc<dyn Operator> {
    Arc::new(Softmax { kind: SoftmaxKind::Soft, axis: -1, flatten: false })
}

pub(super) fn product() -> Arc<dyn Operator> {
    Arc::new(MatMul::default())
}

pub(super) fn transpose(perm: [i64; 4]) -> Arc<dyn Operator> {
    Arc::new(Transpose { perm: Some(perm.to_vec()) })
}

/// A graph of attention with a scale after the product and a mask added before or after it.
fn flow(perm: [i64; 4], k: [usize; 4], shown: bool) -> Flow {
    let mut g = GraphBuilder::new("g");
    let shapes = [[2, 3, 5, 8], k, [2, 3, 7, 6], [2, 1, 1, 7]];
    let inputs = ["q", "k", "v", "mask"];
    let ids: Vec<_> =
        inputs.iter().zip(shapes).map(|(n, s)| g.input(*n, DType::F32, s.map(Into::into))).collect();
    let columns = g.op(transpose(perm), &[ids[1]]);
    let scores = g.op(product(), &[ids[0], columns]);
    let eight = g.constant("eight", Tensor::scalar(8f32));
    let scaled = g.op(ops::div(), &[scores, eight]);
    let masked = g.op(ops::add(), &[ids[3], scaled]);
    let soft = g.op(softmax(), &[masked]);
    let y = g.op(product(), &[soft, ids[2]]);
    g.output("y", y);
    if shown {
        g.output("soft", soft);
    }
    let infos = shapes.map(|s| TensorInfo::new(DType::F32, Shape::new(s).unwrap()));
    specialize(&g.build().unwrap(), &infos, &Default::default()).unwrap().plan().unwrap()
}

#[test]
fn products_around_a_softmax_are_one_operator() {
    let mut plain = flow([0, 1, 3, 2], [2, 3, 7, 8], false);
    assert_eq!(recognize_attention(&mut plain), 1);
    let [node] = &plain.nodes[..] else { panic!("{} nodes", plain.nodes.len()) };
    let op = node.op.downcast_ref::<Attention>().unwrap();
    assert_eq!((op.scale, op.causal), (Some(0.125), false));
    let names: Vec<&str> = node.inputs.iter().flatten().map(|&v| plain.values[v].name.as_str()).collect();
    assert_eq!(names, ["q", "k", "v", "mask"]);
    // Keys with the heads after their positions.
    let mut turned = flow([0, 2, 3, 1], [2, 7, 3, 8], false);
    assert_eq!(recognize_attention(&mut turned), 1);
    let names: Vec<&str> = turned.nodes.iter().map(|n| n.op.name()).collect();
    assert_eq!(names, ["Transpose", "Attention"]);
    assert_eq!(turned.values[turned.nodes[0].outputs[0]].info.shape.dims(), [2, 3, 7, 8]);
}

/// Queries of six heads, of which three each read one head of keys and values; other values have a head for each.
fn grouped(values: bool) -> Flow {
    let mut g = GraphBuilder::new("g");
    let shapes = [[2, 6, 5, 8], [2, 2, 7, 8], [2, if values { 2 } else { 6 }, 7, 4], [2, 1, 1, 7]];
    let ids: Vec<_> = ["q", "k", "v", "mask"]
        .iter()
        .zip(shapes)
        .map(|(n, s)| g.input(*n, DType::F32, s.map(Into::into)))
        .collect();
    let mut repeated = |x, elements: i64| {
        let one = g.op(Arc::new(Unsqueeze { axes: Some(vec![2]) }) as Arc<dyn Operator>, &[x]);
        let wide =
            g.constant(format!("wide {elements}"), Tensor::new([5], &[2i64, 2, 3, 7, elements]).unwrap());
        let each = g.op(Arc::new(Expand) as Arc<dyn Operator>, &[one, wide]);
        let joined = Reshape { allow_zero: false, fixed: Some(vec![2, 6, 7, elements]) };
        g.op(Arc::new(joined) as Arc<dyn Operator>, &[each])
    };
    let k = repeated(ids[1], 8);
    let v = if values { repeated(ids[2], 4) } else { ids[2] };
    let columns = g.op(transpose([0, 1, 3, 2]), &[k]);
    let scores = g.op(product(), &[ids[0], columns]);
    let masked = g.op(ops::add(), &[scores, ids[3]]);
    let soft = g.op(softmax(), &[masked]);
    let y = g.op(product(), &[soft, v]);
    g.output("y", y);
    let infos = shapes.map(|s| TensorInfo::new(DType::F32, Shape::new(s).unwrap()));
    specialize(&g.build().unwrap(), &infos, &Default::default()).unwrap().plan().unwrap()
}

#[test]
fn heads_that_queries_share_are_read_once() {
    for (values, names) in
        [(true, &["Attention"][..]), (false, &["Unsqueeze", "Expand", "Reshape", "Attention"])]
    {
        let apart = grouped(values);
        let mut one = apart.clone();
        assert_eq!(recognize_attention(&mut one), 1);
        let left: Vec<&str> = one.nodes.iter().map(|n| n.op.name()).collect();
        assert_eq!(left, names);
        let inputs: Vec<Tensor> =
            apart.inputs.iter().map(|v| numbers(apart.values[*v].info.shape.dims())).collect();
        let (a, b) = (run(&apart, &inputs), run(&one, &inputs));
        assert!(a.iter().zip(&b).all(|(a, b)| (a - b).abs() < 1e-5), "{a:?}, {b:?}");
    }
}

#[test]
fn probabilities_that_are_wanted_are_left() {
    assert_eq!(recognize_attention(&mut flow([0, 1, 3, 2], [2, 3, 7, 8], true)), 0);
}

pub(super) fn numbers(shape: &[usize]) -> Tensor {
    let values = (0..shape.iter().product::<usize>()).map(|i| ((i * 37 + 11) % 29) as f32 * 0.1 - 1.4);
    Tensor::new(shape, &values.collect::<Vec<_>>()).unwrap()
}

/// The output, computed node by node.
pub(super) fn run(flow: &Flow, inputs: &[Tensor]) -> Vec<f32> {
    let mut flow = flow.clone();
    for (v, tensor) in flow.inputs.clone().into_iter().zip(inputs) {
        flow.values[v].constant = Some(tensor.clone());
    }
    (0..flow.nodes.len()).for_each(|n| assert!(flow.fold(n).unwrap()));
    flow.values[flow.outputs[0].1].constant.as_ref().unwrap().to_f32s().unwrap()
}

#[test]
fn the_operator_computes_what_it_replaces() {
    for (perm, k) in [([0, 1, 3, 2], [2, 3, 7, 8]), ([0, 2, 3, 1], [2, 7, 3, 8])] {
        let apart = flow(perm, k, false);
        let mut one = apart.clone();
        assert_eq!(recognize_attention(&mut one), 1);
        let inputs = [[2, 3, 5, 8], k, [2, 3, 7, 6], [2, 1, 1, 7]].map(|shape: [usize; 4]| numbers(&shape));
        let (a, b) = (run(&apart, &inputs), run(&one, &inputs));
        assert!(a.iter().zip(&b).all(|(a, b)| (a - b).abs() < 1e-5), "{a:?}, {b:?}");
    }
}
/// Ways to write attention of `[2, 3, 5, 8]` queries, seven keys and a mask `[2, 1, 1, 7]`, which is -1e30 for the first key.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Form {
    /// As torch.onnx writes it: both operands scaled, keys turned in three dimensions, zeros for what is not a number.
    Exported,
    /// A second mask, `[1, 3, 5, 7]`, is added first.
    TwoMasks,
    /// The sum of products and mask is scaled.
    ScaledMask,
    /// Products of hidden keys are replaced.
    Replaced,
    /// The same where the condition says which to keep.
    Kept,
    /// Heads and batch are one dimension.
    Flat,
    /// Keys and values have one head for all queries.
    OneHead,
    /// Replaced by a number that a score could be.
    ReplacedByLittle,
    /// Ones for what is not a number.
    GuardedByOne,
}

/// The shapes of queries, keys, values, mask and second mask.
fn shapes(form: Form) -> [Vec<usize>; 5] {
    let heads = if form == Form::OneHead { 1 } else { 3 };
    let (q, k, v) = (vec![2, 3, 5, 8], vec![2, heads, 7, 8], vec![2, heads, 7, 6]);
    let flat = |dims: Vec<usize>| vec![6, dims[2], dims[3]];
    match form {
        Form::Flat => [flat(q), flat(k), flat(v), vec![6, 5, 7], vec![5, 7]],
        _ => [q, k, v, vec![2, 1, 1, 7], vec![1, 3, 5, 7]],
    }
}

fn written(form: Form) -> Flow {
    let mut g = GraphBuilder::new("g");
    let shapes = shapes(form);
    let names = ["q", "k", "v", "mask", "second"];
    let ids: Vec<TensorId> = names
        .iter()
        .zip(&shapes)
        .map(|(n, s)| g.input(*n, DType::F32, s.iter().map(|d| (*d).into())))
        .collect();
    let number = |g: &mut GraphBuilder, x: f32| g.constant(format!("{x}"), Tensor::scalar(x));
    let reshaped = |g: &mut GraphBuilder, x, dims: &[i64]| {
        let op = Reshape { allow_zero: false, fixed: Some(dims.to_vec()) };
        g.op(Arc::new(op) as Arc<dyn Operator>, &[x])
    };
    let turned = |g: &mut GraphBuilder, x, perm: &[i64]| {
        g.op(Arc::new(Transpose { perm: Some(perm.to_vec()) }) as Arc<dyn Operator>, &[x])
    };
    let (mut q, k) = (ids[0], ids[1]);
    let mut columns = match form {
        Form::Exported => {
            let three = reshaped(&mut g, k, &[-1, 7, 8]);
            let columns = turned(&mut g, three, &[0, 2, 1]);
            reshaped(&mut g, columns, &[2, 3, 8, 7])
        }
        Form::Flat => turned(&mut g, k, &[0, 2, 1]),
        _ => turned(&mut g, k, &[0, 1, 3, 2]),
    };
    if form == Form::Exported {
        let half = number(&mut g, 0.5);
        q = g.op(ops::mul(), &[q, half]);
        columns = g.op(ops::mul(), &[columns, half]);
    }
    let scores = g.op(product(), &[q, columns]);
    let hides = number(&mut g, -1.0);
    let low = number(&mut g, if form == Form::ReplacedByLittle { -9.0 } else { f32::MIN });
    let masked = match form {
        Form::TwoMasks => {
            let one = g.op(ops::add(), &[scores, ids[4]]);
            g.op(ops::add(), &[one, ids[3]])
        }
        Form::ScaledMask => {
            let sum = g.op(ops::add(), &[ids[3], scores]);
            let four = number(&mut g, 4.0);
            g.op(ops::div(), &[sum, four])
        }
        Form::Replaced | Form::ReplacedByLittle => {
            let condition = g.op(ops::binary(BinaryFunction::Less), &[ids[3], hides]);
            g.op(select_where(), &[condition, low, scores])
        }
        Form::Kept => {
            let condition = g.op(ops::binary(BinaryFunction::GreaterOrEqual), &[ids[3], hides]);
            g.op(select_where(), &[condition, scores, low])
        }
        _ => g.op(ops::add(), &[scores, ids[3]]),
    };
    let mut soft = g.op(softmax(), &[masked]);
    if matches!(form, Form::Exported | Form::GuardedByOne) {
        let test = Classify { test: ElementTest::IsNaN, params: [0.0; 2] };
        let unknown = g.op(Arc::new(test) as Arc<dyn Operator>, &[soft]);
        let instead = number(&mut g, f32::from(u8::from(form == Form::GuardedByOne)));
        soft = g.op(select_where(), &[unknown, instead, soft]);
    }
    let y = g.op(product(), &[soft, ids[2]]);
    g.output("y", y);
    let infos: Vec<_> =
        shapes.iter().map(|s| TensorInfo::new(DType::F32, Shape::new(s.clone()).unwrap())).collect();
    specialize(&g.build().unwrap(), &infos, &Default::default()).unwrap().plan().unwrap()
}

/// The inputs of a form: the mask hides the first key of each seven.
fn given(form: Form) -> Vec<Tensor> {
    let mut inputs: Vec<Tensor> = shapes(form).iter().map(|shape| numbers(shape)).collect();
    let mask: Vec<f32> =
        (0..inputs[3].shape().elements()).map(|i| if i % 7 == 0 { -1e30 } else { 0.0 }).collect();
    inputs[3] = Tensor::new(inputs[3].shape().dims(), &mask).unwrap();
    inputs
}

#[test]
fn every_way_to_write_it_is_one_operator_that_computes_the_same() {
    let added = |names: &[&'static str]| [names, &["Attention"]].concat();
    for (form, names) in [
        (Form::Exported, added(&[])),
        (Form::TwoMasks, added(&["Add"])),
        (Form::ScaledMask, added(&["Mul"])),
        (Form::Replaced, added(&["Less", "Where"])),
        (Form::Kept, added(&["GreaterOrEqual", "Where"])),
        (Form::Flat, added(&["Reshape"])),
        (Form::OneHead, added(&[])),
    ] {
        let apart = written(form);
        let mut one = apart.clone();
        assert_eq!(recognize_attention(&mut one), 1, "{form:?}");
        let left: Vec<&str> = one.nodes.iter().map(|n| n.op.name()).collect();
        assert_eq!(left, names, "{form:?}");
        let inputs = given(form);
        let (a, b) = (run(&apart, &inputs), run(&one, &inputs));
        assert!(a.iter().zip(&b).all(|(a, b)| (a - b).abs() < 1e-5), "{form:?}: {a:?}, {b:?}");
    }
}

#[test]
fn what_computes_something_else_is_left() {
    for form in [Form::ReplacedByLittle, Form::GuardedByOne] {
        assert_eq!(recognize_attention(&mut written(form)), 0, "{form:?}");
    }
}

/// The guard of exporters turns the row of a query that sees no key into zeros, as the operator does.
#[test]
fn a_query_that_sees_no_key_gives_zeros() {
    let mut one = written(Form::Exported);
    assert_eq!(recognize_attention(&mut one), 1);
    let mut inputs = given(Form::Exported);
    inputs[3] = Tensor::new([2, 1, 1, 7], &[f32::NEG_INFINITY; 14]).unwrap();
    assert_eq!(run(&written(Form::Exported), &inputs), vec![0.0; 2 * 3 * 5 * 6]);
    assert_eq!(run(&one, &inputs), vec![0.0; 2 * 3 * 5 * 6]);
}

/// Converters bound the numbers of `float16`: hidden scores are no farther down than -10000.
#[test]
fn replaced_scores_of_float16_are_found() {
    let of = |low: f32| {
        let mut g = GraphBuilder::new("g");
        let shapes = [[2, 3, 5, 8], [2, 3, 8, 7], [2, 3, 7, 6], [2, 1, 1, 7]];
        let dtypes = [DType::F16, DType::F16, DType::F16, DType::Bool];
        let ids: Vec<TensorId> = (0..4)
            .map(|i| g.input(format!("x{i}"), dtypes[i], shapes[i].iter().map(|d| (*d).into())))
            .collect();
        let scores = g.op(product(), &[ids[0], ids[1]]);
        let low = g.constant("low", Tensor::scalar(half::f16::from_f32(low)));
        let masked = g.op(select_where(), &[ids[3], low, scores]);
        let soft = g.op(softmax(), &[masked]);
        let y = g.op(product(), &[soft, ids[2]]);
        g.output("y", y);
        let infos: Vec<_> =
            (0..4).map(|i| TensorInfo::new(dtypes[i], Shape::new(shapes[i]).unwrap())).collect();
        specialize(&g.build().unwrap(), &infos, &Default::default()).unwrap().plan().unwrap()
    };
    let apart = of(-1e4);
    let mut one = apart.clone();
    assert_eq!(recognize_attention(&mut one), 1);
    let halves = |shape: &[usize]| {
        let values = numbers(shape).to_f32s().unwrap().into_iter().map(half::f16::from_f32);
        Tensor::new(shape, &values.collect::<Vec<_>>()).unwrap()
    };
    let hidden: Vec<u8> = (0..14).map(|key| u8::from(key % 7 == 0)).collect();
    let mut inputs = [[2, 3, 5, 8], [2, 3, 8, 7], [2, 3, 7, 6]].map(|shape| halves(&shape)).to_vec();
    let info = TensorInfo::new(DType::Bool, Shape::new([2, 1, 1, 7]).unwrap());
    inputs.push(Tensor::from_bytes(info, &hidden).unwrap());
    let (a, b) = (run(&apart, &inputs), run(&one, &inputs));
    assert!(a.iter().zip(&b).all(|(a, b)| (a - b).abs() < 4e-3), "{a:?}, {b:?}");
    assert_eq!(recognize_attention(&mut of(-100.0)), 0);
}
