//! Every function of the table gives the same bits on one device, whatever kernel computes it: a node alone, a member of a
//! chain, the activation of a matrix product, the gate of a recurrent layer.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

use std::sync::Arc;

use onepool::backend::ContextDesc;
use onepool::device::Context;
use onepool::expr::{Types, Use};
use onepool::graph::TensorId;
use onepool::ops::linalg::MatMul;
use onepool::ops::pointwise::{Function, Pointwise};
use onepool::ops::recurrent::{Direction, Kind, Recurrent};
use onepool::ops::{self, Operator};
use onepool::registry::Registry;
use onepool::{GraphBuilder, Session, Tensor};

/// How many numbers: some kernels take four at once, and one is left over.
const N: usize = 4 * 23 + 1;

/// Numbers of all sizes. None is -0: a sum with 0 would lose its sign.
fn numbers() -> Vec<f32> {
    let odd = [0.0, 0.5, -0.5, 1.0, -1.0, 2.5, -2.5, 1e-4, -1e-4, 88.0, -90.0, 2e5, -1e7, 30.0];
    let rest = (0..N - odd.len()).map(|i| ((i * 7919) % 997) as f32 / 71.0 - 7.0);
    odd.into_iter().chain(rest).collect()
}

/// A function with parameters that are not those by default.
fn with_parameters(function: Function) -> Pointwise {
    let params = match function {
        Function::Clip => [-1.5, 2.0],
        _ => function.defaults().map(|p| p * 0.75),
    };
    Pointwise { function, params }
}

/// What a graph of one output computes on `context`, and how many nodes it has there.
fn run(
    context: &Context,
    inputs: &[(&str, Tensor)],
    build: impl Fn(&mut GraphBuilder, &[TensorId]) -> TensorId,
) -> (Vec<f32>, usize) {
    let mut g = GraphBuilder::new("g");
    let ids: Vec<TensorId> = inputs
        .iter()
        .map(|(name, t)| {
            g.input(*name, t.dtype(), t.shape().dims().iter().map(|&d| d.into()).collect::<Vec<_>>())
        })
        .collect();
    let y = build(&mut g, &ids);
    g.output("y", y);
    let mut session = Session::builder().graph(g.build().unwrap()).context(context.clone()).build().unwrap();
    for (name, tensor) in inputs {
        session.set_input(name, tensor).unwrap();
    }
    session.run().unwrap();
    let nodes = session.binding().unwrap().plan().report.nodes.len();
    (session.get_output("y").unwrap().to_f32s().unwrap(), nodes)
}

#[track_caller]
fn same_bits(what: &str, f: Pointwise, got: &[f32], want: &[f32]) {
    assert_eq!(got.len(), want.len());
    for (i, x) in numbers().iter().enumerate() {
        let same = got[i].to_bits() == want[i].to_bits() || got[i].is_nan() && want[i].is_nan();
        assert!(same, "{f:?} of {x:e} is {:e} {what}, {:e} alone", got[i], want[i]);
    }
}

fn on(context: &Context) -> Vec<(Pointwise, Vec<f32>)> {
    let x = Tensor::new([N], &numbers()).unwrap();
    let negated: Vec<f32> = numbers().iter().map(|x| -x).collect();
    let mut all = Vec::new();
    for &function in Function::ALL {
        let (row, f) = (function.row(), with_parameters(function));
        if matches!(row.types, Types::Integers | Types::Bool) {
            continue;
        }
        let op: Arc<dyn Operator> = Arc::new(f);
        let (alone, nodes) = run(context, &[("x", x.clone())], |g, ids| g.op(Arc::clone(&op), ids));
        assert_eq!(nodes, 1);

        let negated = Tensor::new([N], &negated).unwrap();
        let (chain, nodes) = run(context, &[("x", negated)], |g, ids| {
            let x = g.op(ops::unary(Function::Neg), ids);
            let y = g.op(Arc::clone(&op), &[x]);
            g.op(ops::unary(Function::Neg), &[y])
        });
        assert_eq!(nodes, 1, "a chain is one node");
        let chain: Vec<f32> = chain.into_iter().map(|y| -y).collect();
        same_bits("in a chain", f, &chain, &alone);

        if row.used == Use::Activation {
            let rows = Tensor::new([N, 1], &numbers()).unwrap();
            let (product, nodes) = run(context, &[("x", rows)], |g, ids| {
                let one = g.constant("one", Tensor::new([1, 1], &[1f32]).unwrap());
                let product = g.op(Arc::new(MatMul::default()) as Arc<dyn Operator>, &[ids[0], one]);
                g.op(Arc::clone(&op), &[product])
            });
            assert_eq!(nodes, 1, "{f:?} is applied by the product");
            same_bits("after a product", f, &product, &alone);
        }

        if row.used != Use::Alone {
            let steps = Tensor::new([1, N, 1], &numbers()).unwrap();
            let layer = Recurrent {
                kind: Kind::Rnn,
                direction: Direction::Forward,
                functions: vec![vec![f]],
                clip: None,
                input_forget: false,
                hidden: Some(1),
                batch_first: false,
            };
            let (gate, _) = run(context, &[("x", steps)], |g, ids| {
                let w = g.constant("w", Tensor::new([1, 1, 1], &[1f32]).unwrap());
                let r = g.constant("r", Tensor::new([1, 1, 1], &[0f32]).unwrap());
                g.op(Arc::new(layer.clone()) as Arc<dyn Operator>, &[ids[0], w, r])
            });
            same_bits("as a gate", f, &gate, &alone);
        }
        all.push((f, alone));
    }
    assert_eq!(context.validation_messages(), Vec::<String>::new());
    all
}

/// Checks a device, and its results against those of the CPU.
fn check(device: &str) {
    let registry = Registry::with_defaults();
    let desc = ContextDesc { validation: true, ..ContextDesc::default() };
    let cpu = on(&registry.open("cpu", &ContextDesc::default()).unwrap());
    if device == "cpu" {
        return;
    }
    let context = match registry.open(device, &desc) {
        Ok(context) => context,
        Err(error) => {
            let required = std::env::var("REQUIRE_BACKENDS").unwrap_or_default();
            assert!(!required.contains(device), "{device}: {error}");
            return eprintln!("not tested: {error}");
        }
    };
    for ((f, got), (_, want)) in on(&context).into_iter().zip(cpu) {
        for ((x, got), want) in numbers().iter().zip(got).zip(want) {
            // Devices say nothing of the sine of large angles.
            let is_far = x.abs() > 1e5 && matches!(f.function, Function::Sin | Function::Cos | Function::Tan);
            let near = (got - want).abs() <= 2e-5 * want.abs().max(1.0);
            let ok = near || got == want || got.is_nan() && want.is_nan() || is_far;
            assert!(ok, "{f:?} of {x:e} is {got:e} on {device}, {want:e} on the CPU");
        }
    }
}

#[test]
fn on_the_cpu() {
    check("cpu");
}

#[test]
fn on_a_simulated_device() {
    check("sim:0");
}

#[cfg(feature = "vulkan")]
#[test]
fn on_vulkan() {
    check("vulkan");
}

#[cfg(feature = "opencl")]
#[test]
fn on_opencl() {
    check("opencl");
}

#[test]
fn every_operator_of_the_table_is_registered() {
    for function in Function::ALL {
        let row = function.row();
        let Some(operator) = row.operator else { continue };
        let found = ops::find(operator.domain, row.name).expect("the operator is known");
        assert_eq!((found.name, found.since), (row.name, operator.since));
        let op = (found.read)(&mut ops::AttrReader::new(&ops::AttrMap::new(), 1, 1), 24).unwrap();
        assert_eq!(op.name(), row.name);
    }
}
