use std::sync::Arc;

use super::recognize_rotations;
use crate::dtype::DType;
use crate::graph::{GraphBuilder, Tensor, TensorId};
use crate::operator::Operator;
use crate::ops::attention::RotaryEmbedding;
use crate::ops::movement::{Concat, Slice};
use crate::ops::shape_ops::{Expand, Reshape, Unsqueeze};
use crate::ops::{self, Function};
use crate::plan::flow::Flow;
use crate::plan::specialize;
use crate::shape::Shape;
use crate::tensor::TensorInfo;

const BATCH: usize = 2;
const HEADS: usize = 3;
const ROWS: usize = 5;

/// Ways to write a rotation of `[2, 3, 5, 8]`.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Form {
    /// Halves of a vector, as in LLaMA; angles `[1, 5, 4]` joined with themselves, a factor, a table for all sequences.
    Halves,
    /// A table for each sequence.
    Sequences,
    /// The first 4 elements of 8, the rest joined after them.
    Part,
    /// Neighbours, as in GPT-J, with numbers repeated by Expand.
    Neighbours,
    /// The same, repeated by Concat.
    NeighboursJoined,
    /// Known tables `[5, 8]`.
    Known,
    /// The same of `float16`, as all else.
    KnownHalf,
    /// The second half of the angles is another one.
    OtherAngles,
    /// The halves are exchanged.
    OtherHalves,
    /// Known tables of halves that differ.
    OtherTable,
}

/// A graph, and the number of its constants.
struct Builder(GraphBuilder, usize);

impl Builder {
    fn constant(&mut self, tensor: Tensor) -> TensorId {
        self.1 += 1;
        self.0.constant(format!("constant {}", self.1), tensor)
    }

    fn op(&mut self, op: impl Operator + 'static, inputs: &[TensorId]) -> TensorId {
        self.0.op(Arc::new(op) as Arc<dyn Operator>, inputs)
    }

    fn reshape(&mut self, x: TensorId, dims: &[i64]) -> TensorId {
        self.op(Reshape { allow_zero: false, fixed: Some(dims.to_vec()) }, &[x])
    }

    /// Of the last axis the elements from `start` to before `end`, each `step`th.
    fn slice(&mut self, x: TensorId, [start, end, step]: [i64; 3]) -> TensorId {
        let bounds = [start, end, -1, step].map(|at| self.constant(Tensor::new([1], &[at]).unwrap()));
        self.op(Slice::default(), &[vec![x], bounds.to_vec()].concat())
    }

    fn unsqueeze(&mut self, x: TensorId, axis: i64) -> TensorId {
        self.op(Unsqueeze { axes: Some(vec![axis]) }, &[x])
    }

    fn concat(&mut self, parts: &[TensorId]) -> TensorId {
        self.op(Concat { axis: -1 }, parts)
    }

    /// What pairs of `size` elements of `x` turn into.
    fn turned(&mut self, x: TensorId, size: i64, form: Form) -> TensorId {
        let parts = match form {
            Form::Neighbours | Form::NeighboursJoined => [[0, size, 2], [1, size, 2]],
            Form::OtherHalves => [[size / 2, size, 1], [0, size / 2, 1]],
            _ => [[0, size / 2, 1], [size / 2, size, 1]],
        };
        let [a, b] = parts.map(|part| self.slice(x, part));
        let minus = self.0.op(ops::unary(Function::Neg), &[b]);
        if !matches!(form, Form::Neighbours | Form::NeighboursJoined) {
            return self.concat(&[minus, a]);
        }
        let [minus, a] = [minus, a].map(|v| self.unsqueeze(v, -1));
        let pairs = self.concat(&[minus, a]);
        self.reshape(pairs, &[2, 3, 5, size])
    }

    /// A table of `function` of the angles, one for each element.
    fn table(&mut self, angles: TensorId, function: Function, form: Form) -> TensorId {
        let batch = if form == Form::Sequences { BATCH as i64 } else { 1 };
        let (pairs, function) = (if form == Form::Part { 2 } else { 4 }, ops::unary(function));
        if matches!(form, Form::Known | Form::KnownHalf | Form::OtherTable) {
            let differs = |i: usize| if form == Form::OtherTable { i % 8 } else { i % 4 };
            let values: Vec<f32> = (0..ROWS * 8).map(|i| (i / 8 * 4 + differs(i)) as f32 * 0.1).collect();
            let known = self.constant(Tensor::new([ROWS, 8], &values).unwrap());
            let known = self.0.op(function, &[known]);
            return if form == Form::KnownHalf { self.0.op(ops::cast(DType::F16), &[known]) } else { known };
        }
        let repeated = match form {
            Form::Neighbours => {
                let each = self.unsqueeze(angles, -1);
                let sizes = [batch, ROWS as i64, pairs, 2];
                let sizes = self.constant(Tensor::new([4], &sizes).unwrap());
                let pairs = self.op(Expand, &[each, sizes]);
                self.reshape(pairs, &[batch, ROWS as i64, 8])
            }
            Form::NeighboursJoined => {
                let each = self.unsqueeze(angles, -1);
                let pairs = self.concat(&[each, each]);
                self.reshape(pairs, &[batch, ROWS as i64, 8])
            }
            Form::OtherAngles => {
                let two = self.constant(Tensor::scalar(2f32));
                let other = self.0.op(ops::mul(), &[angles, two]);
                self.concat(&[angles, other])
            }
            _ => self.concat(&[angles, angles]),
        };
        let values = self.0.op(function, &[repeated]);
        let factor = self.constant(Tensor::scalar(1.5f32));
        let scaled = self.0.op(ops::mul(), &[values, factor]);
        self.unsqueeze(scaled, 1)
    }
}

fn flow(form: Form) -> Flow {
    let mut g = Builder(GraphBuilder::new("g"), 0);
    let size = if form == Form::Part { 4 } else { 8 };
    let batch = if form == Form::Sequences { BATCH } else { 1 };
    let shapes = [vec![BATCH, HEADS, ROWS, 8], vec![batch, ROWS, size / 2]];
    let dtypes = [if form == Form::KnownHalf { DType::F16 } else { DType::F32 }, DType::F32];
    let [given, angles] = [("x", 0), ("angles", 1)]
        .map(|(name, i)| g.0.input(name, dtypes[i], shapes[i].iter().map(|d| (*d).into())));
    let x = if form == Form::Part { g.slice(given, [0, 4, 1]) } else { given };
    let [cos, sin] = [Function::Cos, Function::Sin].map(|f| g.table(angles, f, form));
    let turned = g.turned(x, size as i64, form);
    let straight = g.0.op(ops::mul(), &[x, cos]);
    let turned = g.0.op(ops::mul(), &[sin, turned]);
    let mut y = g.0.op(ops::add(), &[straight, turned]);
    if form == Form::Part {
        let rest = g.slice(given, [4, 8, 1]);
        y = g.concat(&[y, rest]);
    }
    g.0.output("y", y);
    let infos: Vec<_> = shapes
        .iter()
        .zip(dtypes)
        .map(|(s, dtype)| TensorInfo::new(dtype, Shape::new(s.clone()).unwrap()))
        .collect();
    specialize(&g.0.build().unwrap(), &infos, &Default::default()).unwrap().plan().unwrap()
}

/// The output, computed node by node.
fn run(flow: &Flow) -> Vec<f32> {
    let mut flow = flow.clone();
    for v in flow.inputs.clone() {
        let shape = flow.values[v].info.shape.clone();
        let values: Vec<f32> =
            (0..shape.elements()).map(|i| ((i * 37 + 11) % 29) as f32 * 0.1 - 1.4).collect();
        flow.values[v].constant = Some(match flow.values[v].info.dtype {
            DType::F16 => {
                let halves: Vec<half::f16> = values.into_iter().map(half::f16::from_f32).collect();
                Tensor::new(shape.dims(), &halves).unwrap()
            }
            _ => Tensor::new(shape.dims(), &values).unwrap(),
        });
    }
    (0..flow.nodes.len()).for_each(|n| assert!(flow.fold(n).unwrap()));
    flow.values[flow.outputs[0].1].constant.as_ref().unwrap().to_f32s().unwrap()
}

#[test]
fn every_way_to_write_it_is_one_operator_that_computes_the_same() {
    for (form, interleaved, rotated, most) in [
        (Form::Halves, false, None, 1e-6),
        (Form::Sequences, false, None, 1e-6),
        (Form::Part, false, Some(4), 1e-6),
        (Form::Neighbours, true, None, 1e-6),
        (Form::NeighboursJoined, true, None, 1e-6),
        (Form::Known, false, None, 1e-6),
        (Form::KnownHalf, false, None, 4e-3),
    ] {
        let apart = flow(form);
        let mut one = apart.clone();
        assert_eq!(recognize_rotations(&mut one).unwrap(), 1, "{form:?}");
        let last = one.nodes.last().unwrap();
        let op = last.op.downcast_ref::<RotaryEmbedding>().unwrap_or_else(|| panic!("{form:?}"));
        assert_eq!((op.interleaved, op.rotated), (interleaved, rotated), "{form:?}");
        assert_eq!(last.inputs[0], Some(one.inputs[0]), "{form:?}");
        let turns = one.nodes.iter().filter(|n| n.op.name() == "Neg").count();
        assert_eq!(turns, 0, "{form:?}");
        let (a, b) = (run(&apart), run(&one));
        assert!(a.iter().zip(&b).all(|(a, b)| (a - b).abs() < most), "{form:?}: {a:?}, {b:?}");
    }
}

#[test]
fn what_computes_something_else_is_left() {
    for form in [Form::OtherAngles, Form::OtherHalves, Form::OtherTable] {
        assert_eq!(recognize_rotations(&mut flow(form)).unwrap(), 0, "{form:?}");
    }
}
