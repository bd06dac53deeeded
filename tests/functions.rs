//! Every function of the table gives the same bits on one device, whatever kernel computes it: a node alone, a member of a
//! chain, the end of a matrix product or a convolution, the gate of a recurrent layer. Questions have the same answers everywhere.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

use std::sync::Arc;

use onepool::backend::ContextDesc;
use onepool::device::Context;
use onepool::expr::{BinaryFunction, ElementTest, Types};
use onepool::graph::TensorId;
use onepool::ops::conv::Conv;
use onepool::ops::linalg::MatMul;
use onepool::ops::pointwise::{Classify, Function, Pointwise};
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
        // Vulkan lets a driver drop a term of zero, with the sign of a zero result.
        Function::Affine | Function::AffineRelu | Function::AffineHardSwish => [0.75, 0.25],
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
    let (y, nodes) = run_tensor(context, inputs, build);
    (y.to_f32s().unwrap(), nodes)
}

/// As [`run`], of outputs of any type.
fn run_tensor(
    context: &Context,
    inputs: &[(&str, Tensor)],
    build: impl Fn(&mut GraphBuilder, &[TensorId]) -> TensorId,
) -> (Tensor, usize) {
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
    (session.get_output("y").unwrap(), nodes)
}

#[track_caller]
fn same_bits(what: &str, f: impl std::fmt::Debug, got: &[f32], want: &[f32]) {
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
        let f = with_parameters(function);
        if matches!(function.row().types, Types::Integers | Types::Bool) {
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

        let one = |dims: &[usize]| Tensor::new(dims.to_vec(), &[1f32]).unwrap();
        let products: [(&str, Vec<usize>, Tensor, Arc<dyn Operator>); 2] = [
            ("after a product", vec![N, 1], one(&[1, 1]), Arc::new(MatMul::default())),
            ("after a convolution", vec![1, 1, 1, N], one(&[1, 1, 1, 1]), Arc::new(Conv::default())),
        ];
        for (what, dims, one, product) in products.into_iter().filter(|_| function.is_epilogue()) {
            let x = Tensor::new(dims, &numbers()).unwrap();
            let (got, nodes) = run(context, &[("x", x)], |g, ids| {
                let one = g.constant("one", one.clone());
                let product = g.op(Arc::clone(&product), &[ids[0], one]);
                g.op(Arc::clone(&op), &[product])
            });
            assert_eq!(nodes, 1, "{f:?} is computed {what} in its kernel");
            same_bits(what, f, &got, &alone);
        }

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
        all.push((f, alone));
    }
    assert_eq!(context.validation_messages(), Vec::<String>::new());
    all
}

/// The second operand of functions of two elements: the numbers in another order.
fn others() -> Vec<f32> {
    let mut numbers = numbers();
    numbers.rotate_left(37);
    numbers
}

/// Functions of two elements: of those that chains have the numbers, of comparisons the answers.
fn pairs_on(context: &Context) -> Vec<(BinaryFunction, Vec<f32>)> {
    let [a, b] = [numbers(), others()].map(|v| Tensor::new([N], &v).unwrap());
    let negated = Tensor::new([N], &numbers().iter().map(|x| -x).collect::<Vec<_>>()).unwrap();
    let mut all = Vec::new();
    for &function in BinaryFunction::ALL {
        let inputs = [("a", a.clone()), ("b", b.clone())];
        if matches!(function.row().types, Types::Integers | Types::Bool) {
            continue;
        }
        let (alone, _) = run_tensor(context, &inputs, |g, ids| g.op(ops::binary(function), ids));
        if function.is_comparison() {
            all.push((function, alone.bytes().iter().map(|b| f32::from(*b)).collect()));
            continue;
        }
        let alone = alone.to_f32s().unwrap();
        let (chain, nodes) = run(context, &[("a", negated.clone()), ("b", b.clone())], |g, ids| {
            let a = g.op(ops::unary(Function::Neg), &ids[..1]);
            let y = g.op(ops::binary(function), &[a, ids[1]]);
            g.op(ops::unary(Function::Neg), &[y])
        });
        let chain: Vec<f32> = chain.into_iter().map(|y| -y).collect();
        same_bits("in a chain", function, &chain, &alone);
        assert_eq!(nodes == 1, !function.is_alone(), "{function:?} is a member of chains");
        if !function.is_alone() {
            all.push((function, alone));
        }
    }
    all
}

/// What questions answer for numbers and what is none, against the definition.
fn answers_on(context: &Context) {
    let odd = [f32::NAN, -f32::NAN, f32::INFINITY, f32::NEG_INFINITY, f32::MAX, f32::MIN, 1e-45, 0.0, -0.0];
    let x = Tensor::new([odd.len()], &odd).unwrap();
    for &test in ElementTest::ALL {
        for params in [[1.0, 1.0], [1.0, 0.0], [0.0, 1.0], [0.0, 0.0]] {
            let op: Arc<dyn Operator> = Arc::new(Classify { test, params });
            let (y, _) = run_tensor(context, &[("x", x.clone())], |g, ids| g.op(Arc::clone(&op), ids));
            let want = |x: &f32| match test {
                ElementTest::IsNaN => x.is_nan(),
                ElementTest::IsInf => x.is_infinite() && params[usize::from(*x < 0.0)] != 0.0,
            };
            let want: Vec<u8> = odd.iter().map(|x| u8::from(want(x))).collect();
            assert_eq!(y.bytes(), want, "{test:?} {params:?} of {odd:?}");
        }
    }
}

/// Checks a device, and its results against those of the CPU.
fn check(device: &str) {
    let registry = Registry::with_defaults();
    let desc = ContextDesc { validation: true, ..ContextDesc::default() };
    let context = registry.open("cpu", &ContextDesc::default()).unwrap();
    let (cpu, cpu_pairs) = (on(&context), pairs_on(&context));
    answers_on(&context);
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
    answers_on(&context);
    for ((f, got), (_, want)) in pairs_on(&context).into_iter().zip(cpu_pairs) {
        for (((a, b), got), want) in numbers().iter().zip(others()).zip(got).zip(want) {
            let ok = (got - want).abs() <= 1e-6 * want.abs() || got == want || got.is_nan() && want.is_nan();
            assert!(ok, "{f:?} of {a:e} and {b:e} is {got:e} on {device}, {want:e} on the CPU");
        }
    }
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
    let unset = ops::AttrMap::new();
    let read = |found: &ops::OpDef| (found.read)(&mut ops::AttrReader::new(&unset, 2, 1), 24).unwrap();
    for function in BinaryFunction::ALL {
        let row = function.row();
        let Some(operator) = row.operator else { continue };
        let found = ops::find(operator.domain, row.name).expect("the operator is known");
        assert_eq!((found.since, read(found).name()), (operator.since, row.name));
    }
    for test in ElementTest::ALL {
        let found = ops::find("", test.row().name).expect("the operator is known");
        assert_eq!((found.since, read(found).name()), (test.row().since, test.row().name));
    }
}
