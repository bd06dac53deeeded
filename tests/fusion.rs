//! Graphs of pointwise operators give the same results whether chains of them are fused or not.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

use std::sync::Arc;

use onepool::backend::ContextDesc;
use onepool::device::Context;
use onepool::graph::{GraphError, TensorId};
use onepool::ops::norm::{Softmax, SoftmaxKind};
use onepool::ops::pointwise::{Function, NaryOp, Pointwise};
use onepool::ops::reduce::{Reduce, ReduceKind};
use onepool::ops::{self, BinaryFunction, Operator};
use onepool::registry::Registry;
use onepool::{DType, Graph, GraphBuilder, Session, Tensor};
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};

const UNARY: [Function; 13] = [
    Function::Neg,
    Function::Abs,
    Function::Relu,
    Function::LeakyRelu,
    Function::Sigmoid,
    Function::HardSigmoid,
    Function::HardSwish,
    Function::Tanh,
    Function::Erf,
    Function::Gelu,
    Function::GeluTanh,
    Function::Swish,
    Function::Softsign,
];
const BINARY: [BinaryFunction; 4] =
    [BinaryFunction::Add, BinaryFunction::Sub, BinaryFunction::Mul, BinaryFunction::PRelu];
const NARY: [NaryOp; 4] = [NaryOp::Sum, NaryOp::Mean, NaryOp::Min, NaryOp::Max];

/// A random graph: what each step computes, from which earlier values, and which values are outputs.
#[derive(Clone, Debug)]
struct Recipe {
    /// The shape of most values.
    dims: Vec<usize>,
    steps: Vec<(usize, [prop::sample::Index; 3])>,
    outputs: Vec<prop::sample::Index>,
}

fn recipes() -> impl Strategy<Value = Recipe> {
    let dims = prop_oneof![
        Just(vec![2, 3, 4, 8]),
        Just(vec![2, 3, 5, 3]),
        Just(vec![1, 4, 6]),
        Just(vec![7]),
        Just(vec![3, 2, 1, 4]),
        Just(vec![3, 41, 300]),
    ];
    let picks = any::<[prop::sample::Index; 3]>();
    let steps = prop::collection::vec((0..40usize, picks), 2..16);
    let outputs = prop::collection::vec(any::<prop::sample::Index>(), 1..4);
    (dims, steps, outputs).prop_map(|(dims, steps, outputs)| Recipe { dims, steps, outputs })
}

fn values(n: usize, seed: usize) -> Vec<f32> {
    (0..n).map(|i| ((i * 7919 + seed * 104_729) % 2001) as f32 / 500.0 - 2.0).collect()
}

impl Recipe {
    /// The graph and its inputs.
    fn graph(&self) -> Result<(Graph, Vec<(String, Tensor)>), GraphError> {
        let mut g = GraphBuilder::new("random");
        let mut inputs = Vec::new();
        // The whole shape twice, what varies along the channels, along the last dimension, and one number.
        let rank = self.dims.len();
        let ones = vec![1; rank];
        let mut channels = ones.clone();
        channels[rank.min(2) - 1] = self.dims[rank.min(2) - 1];
        let last = vec![self.dims[rank - 1]];
        let shapes = [self.dims.clone(), self.dims.clone(), channels.clone(), last.clone(), ones];
        let mut known: Vec<(TensorId, Vec<usize>)> = Vec::new();
        for (i, dims) in shapes.iter().enumerate() {
            let tensor = Tensor::new(dims.clone(), &values(dims.iter().product(), i)).unwrap();
            let name = format!("x{i}");
            let id = g.input(&name, DType::F32, dims.iter().map(|&d| d.into()).collect::<Vec<_>>());
            known.push((id, dims.clone()));
            inputs.push((name, tensor));
        }
        for (i, dims) in [vec![], channels, last].into_iter().enumerate() {
            let tensor = Tensor::new(dims.clone(), &values(dims.iter().product(), 9 + i)).unwrap();
            known.push((g.constant(format!("c{i}"), tensor), dims));
        }
        for (kind, picks) in &self.steps {
            // The first operand is a late value, so that there are chains.
            let late = known.len() - 3;
            let pick = |k: usize| picks[k].get(&known[if k == 0 { late } else { 0 }..]).clone();
            let (op, args): (Arc<dyn Operator>, Vec<(TensorId, Vec<usize>)>) = match kind {
                0..13 => (Arc::new(Pointwise::new(UNARY[*kind])), vec![pick(0)]),
                // Without an expression: it splits chains.
                13 => {
                    (Arc::new(Softmax { kind: SoftmaxKind::Soft, axis: -1, flatten: false }), vec![pick(0)])
                }
                14..30 => {
                    // PRelu takes a slope that does not widen its input.
                    let (a, b) = (pick(0), pick(1));
                    let op = BINARY[kind % 4];
                    let op = if op == BinaryFunction::PRelu && wide(&a.1, &b.1) != a.1 {
                        BinaryFunction::Add
                    } else {
                        op
                    };
                    (ops::binary(op), vec![a, b])
                }
                30..37 => (ops::nary(NARY[kind % 4]), vec![pick(0), pick(1), pick(2)]),
                _ => {
                    let mean = Reduce {
                        kind: ReduceKind::Mean,
                        axes: Some(vec![-1]),
                        keep_dims: true,
                        noop_with_empty_axes: false,
                    };
                    (Arc::new(mean), vec![known[0].clone()])
                }
            };
            let mut dims = args.iter().fold(vec![], |dims, (_, other)| wide(&dims, other));
            if *kind >= 37 {
                dims[rank - 1] = 1;
            }
            let ids: Vec<TensorId> = args.iter().map(|(id, _)| *id).collect();
            known.push((g.op(op, &ids), dims));
        }
        let made = &known[8..];
        let mut outputs: Vec<TensorId> = self.outputs.iter().map(|o| o.get(made).0).collect();
        outputs.push(made[made.len() - 1].0);
        outputs.sort();
        outputs.dedup();
        for (i, id) in outputs.iter().enumerate() {
            g.output(format!("y{i}"), *id);
        }
        Ok((g.build()?, inputs))
    }
}

/// The shape to which both broadcast.
fn wide(a: &[usize], b: &[usize]) -> Vec<usize> {
    let rank = a.len().max(b.len());
    let at = |dims: &[usize], d: usize| if d + dims.len() < rank { 1 } else { dims[d + dims.len() - rank] };
    (0..rank).map(|d| at(a, d).max(at(b, d))).collect()
}

/// Runs the graph; the outputs, and how many nodes fusion saved.
fn run(
    context: &Context,
    (graph, inputs): (Graph, Vec<(String, Tensor)>),
    fuse: bool,
) -> (Vec<Tensor>, usize) {
    let names: Vec<String> = graph.outputs().iter().map(|(name, _)| name.clone()).collect();
    let builder = Session::builder().graph(graph).context(context.clone());
    let mut session = builder.fuse(fuse).build().unwrap();
    for (name, tensor) in &inputs {
        session.set_input(name, tensor).unwrap();
    }
    session.run().unwrap();
    let outputs = names.iter().map(|name| session.get_output(name).unwrap()).collect();
    let fused = session.binding().unwrap().plan().report.fused;
    (outputs, fused)
}

fn fused_and_unfused_agree(device: &str, cases: u32) {
    let desc = ContextDesc { validation: true, ..ContextDesc::default() };
    let context = Registry::with_defaults().open(device, &desc).unwrap();
    let mut runner = TestRunner::new(Config { cases, failure_persistence: None, ..Config::default() });
    let saved = std::cell::Cell::new(0);
    runner
        .run(&recipes(), |recipe| {
            let (want, none) = run(&context, recipe.graph().unwrap(), false);
            let (got, fused) = run(&context, recipe.graph().unwrap(), true);
            prop_assert_eq!(none, 0);
            saved.set(saved.get() + fused);
            for (got, want) in got.iter().zip(&want) {
                prop_assert_eq!(got.info(), want.info());
                let (got, want) = (got.as_slice::<f32>().unwrap(), want.as_slice::<f32>().unwrap());
                let size =
                    want.iter().fold(1f32, |size, w| if w.is_finite() { size.max(w.abs()) } else { size });
                for (i, (g, w)) in got.iter().zip(want).enumerate() {
                    let same = g == w || (g.is_nan() && w.is_nan()) || (g - w).abs() <= 2e-5 * size;
                    prop_assert!(same, "element {} is {}, without fusion {}", i, g, w);
                }
            }
            Ok(())
        })
        .unwrap();
    assert!(saved.get() > cases as usize, "{} nodes fused in {cases} graphs", saved.get());
    assert_eq!(context.validation_messages(), Vec::<String>::new());
}

#[test]
fn on_the_cpu() {
    fused_and_unfused_agree("cpu", 300);
}

#[test]
fn on_simulated_devices() {
    for device in ["sim:0", "sim:1", "sim:2"] {
        fused_and_unfused_agree(device, 60);
    }
}

#[cfg(feature = "vulkan")]
#[test]
fn on_vulkan() {
    fused_and_unfused_agree("vulkan", 120);
}

/// The gate of a SwiGLU in `float16`: one chain, computed in `float32` and rounded once.
#[test]
fn a_gate_of_halves_is_one_chain() {
    use half::f16;
    for device in ["cpu", "sim:0", "vulkan", "opencl"] {
        let mut g = GraphBuilder::new("gate");
        let [x, up] = ["x", "up"].map(|name| g.input(name, DType::F16, [3.into(), 70.into()]));
        let sigmoid = g.op(ops::unary(Function::Sigmoid), &[x]);
        let swish = g.op(ops::mul(), &[x, sigmoid]);
        let two = g.constant("two", Tensor::new([], &[f16::from_f32(2.0)]).unwrap());
        let scaled = g.op(ops::mul(), &[swish, two]);
        let y = g.op(ops::mul(), &[scaled, up]);
        g.output("y", y);
        let inputs: Vec<Vec<f16>> =
            [3, 5].map(|seed| values(210, seed).into_iter().map(f16::from_f32).collect()).to_vec();
        let tensor = |values: &Vec<f16>| Tensor::new([3, 70], values).unwrap();
        let named = ["x", "up"].into_iter().zip(&inputs).map(|(n, v)| (n.to_owned(), tensor(v))).collect();
        let desc = ContextDesc { validation: true, ..ContextDesc::default() };
        let context = Registry::with_defaults().open(device, &desc).unwrap();
        let (outputs, fused) = run(&context, (g.build().unwrap(), named), true);
        assert_eq!(fused, 3, "{device}");
        for (i, got) in outputs[0].as_slice::<f16>().unwrap().iter().enumerate() {
            let (x, up) = (inputs[0][i].to_f32(), inputs[1][i].to_f32());
            let want = 2.0 * x / (1.0 + (-x).exp()) * up;
            assert!((got.to_f32() - want).abs() <= 1e-3 * want.abs().max(0.1), "{device}: {got}, not {want}");
        }
        assert_eq!(context.validation_messages(), Vec::<String>::new());
    }
}
