//! A run of the changed graph gives what the graph gives that appends, and writes one row.

use std::sync::Arc;

use super::cache::CacheTensor;
use super::in_place_graph::InPlaceGraph;
use crate::backend::ContextDesc;
use crate::dtype::DType;
use crate::graph::{GraphBuilder, Tensor, TensorId, TensorInfo};
use crate::operator::Operator;
use crate::ops::attention::{Attention, MultiHeadAttention};
use crate::ops::linalg::MatMul;
use crate::ops::movement::{Concat, Transpose};
use crate::ops::norm::{Softmax, SoftmaxKind};
use crate::ops::pointwise::Identity;
use crate::ops::shape_ops::{Reshape, ShapeOf};
use crate::ops::{add, cast, mul};
use crate::registry::Registry;
use crate::session::{Memory, Session};
use crate::shape::Shape;

const HEADS: usize = 2;
const ELEMENTS: usize = 4;
const WIDTH: usize = HEADS * ELEMENTS;
/// Rows of the cache of the changed graph.
const ROWS: usize = 8;
const CACHES: [(&str, &str); 2] = [("past.key", "present.key"), ("past.value", "present.value")];

#[derive(Clone, Copy, Debug, PartialEq)]
enum Form {
    /// Appends to the cache, or to a copy of it.
    Concat {
        copied: bool,
    },
    MultiHead {
        biased: bool,
    },
    Attention {
        by_rows: bool,
    },
}

const FORMS: [Form; 6] = [
    Form::Concat { copied: false },
    Form::Concat { copied: true },
    Form::MultiHead { biased: true },
    Form::MultiHead { biased: false },
    Form::Attention { by_rows: true },
    Form::Attention { by_rows: false },
];

fn numbers(dims: &[usize], factor: f32) -> Tensor {
    let values: Vec<f32> = (0..dims.iter().product::<usize>()).map(|at| (at as f32 * factor).sin()).collect();
    Tensor::new(dims, &values).unwrap()
}

/// Attention of a token over a cache, times the number of tokens in the cache.
fn built(form: Form, change: impl FnOnce(&mut GraphBuilder, [TensorId; 2])) -> Session {
    let mut g = GraphBuilder::new("g");
    let x = g.input("x", DType::F32, ["b".into(), 1.into(), WIDTH.into()]);
    let mask = g.input("mask", DType::F32, ["b".into(), 1.into(), 1.into(), "t".into()]);
    let dims = || ["b".into(), HEADS.into(), "p".into(), ELEMENTS.into()];
    let past = CACHES.map(|(name, _)| g.input(name, DType::F32, dims()));
    let weights = [0.3, 0.5, 0.7].map(|factor| {
        let weight = g.constant(format!("weight {factor}"), numbers(&[WIDTH, WIDTH], factor));
        g.op(Arc::new(MatMul::default()) as Arc<dyn Operator>, &[x, weight])
    });
    let heads = |g: &mut GraphBuilder, x| {
        let apart = Reshape { allow_zero: false, fixed: Some(vec![0, 0, HEADS as i64, -1]) };
        let apart = g.op(Arc::new(apart) as Arc<dyn Operator>, &[x]);
        g.op(Arc::new(Transpose { perm: Some(vec![0, 2, 1, 3]) }) as Arc<dyn Operator>, &[apart])
    };
    let mut read = past;
    if form == (Form::Concat { copied: true }) {
        read[0] = g.op(Arc::new(Concat { axis: -2 }) as Arc<dyn Operator>, &[past[0]]);
        read[1] = g.op(Arc::new(Identity) as Arc<dyn Operator>, &[past[1]]);
    }
    let [q, k, v] = weights;
    let (y, present) = match form {
        Form::Concat { .. } => {
            let [q, k, v] = [q, k, v].map(|x| heads(&mut g, x));
            let appended = |g: &mut GraphBuilder, past, new| {
                g.op(Arc::new(Concat { axis: -2 }) as Arc<dyn Operator>, &[past, new])
            };
            let (mut k, mut v) = (appended(&mut g, read[0], k), appended(&mut g, read[1], v));
            if form == (Form::Concat { copied: true }) {
                k = g.op(cast(DType::F32), &[k]);
                v = g.op(Arc::new(Identity) as Arc<dyn Operator>, &[v]);
            }
            let turned =
                g.op(Arc::new(Transpose { perm: Some(vec![0, 1, 3, 2]) }) as Arc<dyn Operator>, &[k]);
            let scores = g.op(Arc::new(MatMul::default()) as Arc<dyn Operator>, &[q, turned]);
            let scores = g.op(add(), &[scores, mask]);
            let shares = g.op(
                Arc::new(Softmax { kind: SoftmaxKind::Soft, axis: -1, flatten: false }) as Arc<dyn Operator>,
                &[scores],
            );
            (g.op(Arc::new(MatMul::default()) as Arc<dyn Operator>, &[shares, v]), [k, v])
        }
        Form::MultiHead { biased } => {
            let bias = biased.then(|| g.constant("bias", numbers(&[3 * WIDTH], 0.9)));
            let op = MultiHeadAttention { heads: HEADS, scale: None, causal: true };
            let [q, k, v] = [q, k, v].map(Some);
            let read = [q, k, v, bias, None, Some(mask), Some(past[0]), Some(past[1])];
            let (_, made) = g.node("attention", Arc::new(op) as Arc<dyn Operator>, &read, 3);
            (made[0], [made[1], made[2]])
        }
        Form::Attention { by_rows } => {
            let op =
                Attention { heads: by_rows.then_some((HEADS, HEADS)), causal: true, ..Attention::default() };
            let [q, k, v] = [q, k, v].map(|x| Some(if by_rows { x } else { heads(&mut g, x) }));
            let read = [q, k, v, Some(mask), Some(past[0]), Some(past[1])];
            let (_, made) = g.node("attention", Arc::new(op) as Arc<dyn Operator>, &read, 3);
            (made[0], [made[1], made[2]])
        }
    };
    let shape = g.op(Arc::new(ShapeOf { start: 2, end: Some(3) }) as Arc<dyn Operator>, &[read[0]]);
    let tokens = g.op(cast(DType::F32), &[shape]);
    let y = g.op(mul(), &[y, tokens]);
    g.output("y", y);
    for ((_, name), made) in CACHES.into_iter().zip(present) {
        g.output(name, made);
    }
    change(&mut g, past);
    let cpu = Registry::with_defaults().open("cpu", &ContextDesc::default()).unwrap();
    Session::builder().graph(g.build().unwrap()).context(cpu).build().unwrap()
}

fn tensors() -> Vec<CacheTensor> {
    let info = TensorInfo::new(DType::F32, Shape::new([1, HEADS, 0, ELEMENTS]).unwrap());
    let tensor = |(past, present): (&str, &str)| CacheTensor {
        past: past.into(),
        present: present.into(),
        info: info.clone(),
        device: None,
    };
    CACHES.into_iter().map(tensor).collect()
}

/// The `len` rows of each head of a cache, in one that has room for `rows`, with large numbers elsewhere.
fn cache(cache: usize, sequence: usize, len: usize, rows: usize) -> Vec<f32> {
    let element = |at: usize| {
        let (element, row, head) = (at % ELEMENTS, at / ELEMENTS % rows, at / ELEMENTS / rows);
        let seed = ((cache * 2 + sequence) * HEADS + head) * 100 + row * ELEMENTS + element;
        if row < len { (seed as f32 * 1.7).sin() } else { 1e4 }
    };
    (0..HEADS * rows * ELEMENTS).map(element).collect()
}

fn x(sequence: usize) -> Vec<f32> {
    (0..WIDTH).map(|at| ((sequence * WIDTH + at) as f32 * 0.37).cos()).collect()
}

/// What the graph that appends gives for one sequence: the result and the caches.
fn appended(session: &Session, sequence: usize, len: usize) -> [Vec<f32>; 3] {
    let mut builder = session.bind();
    builder = builder.input("x", Memory::value(Tensor::new([1, 1, WIDTH], &x(sequence)).unwrap()));
    builder =
        builder.input("mask", Memory::value(Tensor::new([1, 1, 1, len + 1], &vec![0f32; len + 1]).unwrap()));
    for (at, (name, _)) in CACHES.into_iter().enumerate() {
        let value = Tensor::new([1, HEADS, len, ELEMENTS], &cache(at, sequence, len, len)).unwrap();
        builder = builder.input(name, Memory::value(value));
    }
    let mut binding = builder.build().unwrap();
    binding.run().unwrap();
    ["y", CACHES[0].1, CACHES[1].1].map(|name| binding.get_output(name).unwrap().to_f32s().unwrap())
}

#[test]
fn two_texts_of_different_lengths_get_what_the_appending_graph_gives() {
    for form in FORMS {
        let session = built(form, |_, _| {});
        let graph = InPlaceGraph::new(&session, session.graph(), "x", &tensors()).unwrap();
        let changed = graph.session();
        let own = |dims: Vec<usize>| Memory::own().shape(Shape::new(dims).unwrap());
        let mut builder =
            changed.bind().input("x", own(vec![2, 1, WIDTH])).input("mask", own(vec![2, 1, 1, ROWS]));
        builder = graph.bind(builder, 0..2, std::iter::empty()).unwrap();
        for (past, present) in CACHES {
            builder = builder.update(past, present, own(vec![2, HEADS, ROWS, ELEMENTS]));
        }
        let mut binding = InPlaceGraph::build(builder, &tensors()).unwrap();
        for lens in [[7, 7], [3, 7], [5, 2]] {
            let all = |of: &dyn Fn(usize) -> Vec<f32>| [of(0), of(1)].concat();
            let shown = |s: usize| (0..ROWS).map(|at| if at <= lens[s] { 0.0 } else { -1e9 }).collect();
            binding.set_input("x", &Tensor::new([2, 1, WIDTH], &all(&x)).unwrap()).unwrap();
            binding.set_input("mask", &Tensor::new([2, 1, 1, ROWS], &all(&shown)).unwrap()).unwrap();
            for (at, (name, _)) in CACHES.into_iter().enumerate() {
                let value = all(&|s| cache(at, s, lens[s], ROWS));
                let value = Tensor::new([2, HEADS, ROWS, ELEMENTS], &value).unwrap();
                binding.set_input(name, &value).unwrap();
            }
            graph.write(&mut binding, &lens).unwrap();
            binding.run().unwrap();
            let got = ["y", CACHES[0].1, CACHES[1].1]
                .map(|name| binding.get_output(name).unwrap().to_f32s().unwrap());
            for (sequence, len) in lens.into_iter().enumerate() {
                let wanted = appended(&session, sequence, len);
                // The changed graph is told of one row less than its cache has.
                let told = (ROWS - 1) as f32 / len as f32;
                let y = got[0][sequence * WIDTH..][..WIDTH].iter().zip(&wanted[0]);
                assert!(
                    y.clone().all(|(a, b)| (a - b * told).abs() < 1e-4 * told.max(1.0)),
                    "{form:?}, {len}: {y:?}"
                );
                for (got, wanted) in got[1..].iter().zip(&wanted[1..]) {
                    for head in 0..HEADS {
                        let all = &got[(sequence * HEADS + head) * ROWS * ELEMENTS..][..ROWS * ELEMENTS];
                        let (rows, rest) = all.split_at((len + 1) * ELEMENTS);
                        let wanted = &wanted[head * (len + 1) * ELEMENTS..][..(len + 1) * ELEMENTS];
                        let near = rows.iter().zip(wanted).all(|(a, b)| (a - b).abs() < 1e-5);
                        assert!(near, "{form:?}, {len}: {rows:?} {wanted:?}");
                        assert!(rest.iter().all(|v| *v == 1e4), "{form:?}, {len}: other rows stay");
                    }
                }
            }
        }
    }
}

#[test]
fn what_does_more_with_its_cache_than_append_is_not_changed() {
    let refused = |change: &dyn Fn(&mut GraphBuilder, [TensorId; 2])| {
        let session = built(Form::Concat { copied: false }, change);
        InPlaceGraph::new(&session, session.graph(), "x", &tensors()).is_none()
    };
    assert!(!refused(&|_, _| {}));
    // The rows themselves are read.
    assert!(refused(&|g, past| {
        let sum = g.op(add(), &past);
        g.output("sum", sum);
    }));
    // It is appended to twice.
    assert!(refused(&|g, past| {
        let twice = g.op(Arc::new(Concat { axis: 2 }) as Arc<dyn Operator>, &past);
        g.output("twice", twice);
    }));
    // A cache that is told of is none.
    let session = built(Form::Concat { copied: false }, |_, _| {});
    let mut others = tensors();
    others[0].past = "x".into();
    assert!(InPlaceGraph::new(&session, session.graph(), "x", &others).is_none());
    // Windows end at the place of a query.
    let mut g = GraphBuilder::new("g");
    let x = g.input("x", DType::F32, [1.into(), 1.into(), WIDTH.into()]);
    let dims = || [1.into(), HEADS.into(), "p".into(), ELEMENTS.into()];
    let past = CACHES.map(|(name, _)| g.input(name, DType::F32, dims()));
    let op = Attention { heads: Some((HEADS, HEADS)), window: [Some(3), None], ..Attention::default() };
    let read = [Some(x), Some(x), Some(x), None, Some(past[0]), Some(past[1])];
    let (_, made) = g.node("attention", Arc::new(op) as Arc<dyn Operator>, &read, 3);
    for (name, made) in ["y", CACHES[0].1, CACHES[1].1].into_iter().zip(made) {
        g.output(name, made);
    }
    let graph = g.build().unwrap();
    assert!(InPlaceGraph::new(&session, &graph, "x", &tensors()).is_none());
}
