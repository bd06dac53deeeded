//! A convolution adds what its only user adds to it: the same results in fewer nodes, on every device.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

use std::sync::Arc;

use half::f16;
use onepool::backend::ContextDesc;
use onepool::device::Context;
use onepool::graph::TensorId;
use onepool::ops::conv::Conv;
use onepool::ops::pointwise::Function;
use onepool::ops::{self, Activation, Operator, WindowAttrs};
use onepool::plan::{PassSelection, Precision};
use onepool::registry::Registry;
use onepool::{DType, Graph, GraphBuilder, Session, Tensor};

const DEVICES: [&str; 6] = ["cpu", "sim:0", "sim:1", "sim:2", "vulkan", "opencl"];
const SHAPE: [usize; 4] = [2, 24, 9, 11];

fn values(n: usize, seed: usize) -> Vec<f32> {
    (0..n).map(|i| ((i * 7919 + seed * 104_729) % 2001) as f32 / 1000.0 - 1.0).collect()
}

fn tensor(dims: &[usize], seed: usize, scale: f32) -> Tensor {
    let values: Vec<f32> = values(dims.iter().product(), seed).iter().map(|v| v * scale).collect();
    Tensor::new(dims.to_vec(), &values).unwrap()
}

/// A graph with an input of [`SHAPE`].
struct Net {
    graph: GraphBuilder,
    x: TensorId,
    constants: usize,
}

impl Net {
    fn new() -> Self {
        let mut graph = GraphBuilder::new("residual");
        let x = graph.input("x", DType::F32, SHAPE.map(Into::into));
        Net { graph, x, constants: 0 }
    }

    fn constant(&mut self, dims: &[usize], scale: f32) -> TensorId {
        self.constants += 1;
        self.graph.constant(format!("c{}", self.constants), tensor(dims, self.constants, scale))
    }

    /// A convolution of `taps` by `taps` to as many channels, with a bias if `biased`.
    fn conv(&mut self, x: TensorId, taps: usize, group: usize, biased: bool) -> TensorId {
        let depth = SHAPE[1] / group * taps * taps;
        let w = self.constant(&[SHAPE[1], SHAPE[1] / group, taps, taps], 2.0 / (depth as f32).sqrt());
        let mut inputs = vec![x, w];
        if biased {
            inputs.push(self.constant(&[SHAPE[1]], 0.5));
        }
        let window = WindowAttrs { pads: vec![taps as i64 / 2; 4], ..WindowAttrs::default() };
        self.graph.op(Arc::new(Conv { window, group, ..Conv::default() }) as Arc<dyn Operator>, &inputs)
    }

    fn add(&mut self, a: TensorId, b: TensorId) -> TensorId {
        self.graph.op(ops::add(), &[a, b])
    }

    fn function(&mut self, x: TensorId, function: Function) -> TensorId {
        self.graph.op(ops::unary(function), &[x])
    }

    fn output(&mut self, x: TensorId) {
        let name = format!("y{}", self.graph_outputs());
        self.graph.output(name, x);
    }

    fn graph_outputs(&mut self) -> usize {
        self.constants += 1;
        self.constants
    }
}

/// Blocks of residual networks one after the other: 3 by 3, 1 by 1 and single channels, the summand on either side, with an
/// activation and without.
fn blocks() -> (Graph, usize) {
    let mut net = Net::new();
    let mut y = net.x;
    for (i, (taps, group, biased)) in
        [(3, 1, true), (1, 1, true), (3, 24, false), (1, 2, false)].into_iter().enumerate()
    {
        let c = net.conv(y, taps, group, biased);
        y = if i % 2 == 0 { net.add(c, y) } else { net.add(y, c) };
        y = match i {
            0 => net.function(y, Function::Relu),
            1 => net.function(y, Function::Swish),
            _ => y,
        };
    }
    net.output(y);
    (net.graph.build().unwrap(), 4)
}

/// Sums of two convolutions, of one with itself, of one that is read twice, and of one whose summand is an output.
fn shared() -> (Graph, usize) {
    let mut net = Net::new();
    let [a, b] = [3, 1].map(|taps| net.conv(net.x, taps, 1, true));
    // One of both takes the other.
    let sum = net.add(a, b);
    let sum = net.function(sum, Function::Relu);
    let twice = net.conv(sum, 1, 1, true);
    let double = net.add(twice, twice);
    let read = net.conv(double, 3, 1, false);
    let other = net.function(read, Function::Tanh);
    let sum_of_read = net.add(read, other);
    let last = net.conv(sum_of_read, 1, 1, true);
    let summed = net.add(last, sum);
    net.output(summed);
    net.output(sum);
    (net.graph.build().unwrap(), 2)
}

/// A summand that is broadcast, and a normalization after the sum, stay what they are.
fn unlike() -> (Graph, usize) {
    let mut net = Net::new();
    let c = net.conv(net.x, 3, 1, true);
    let row = net.graph.input("row", DType::F32, [1.into(), 1.into(), SHAPE[2].into(), SHAPE[3].into()]);
    let sum = net.add(c, row);
    let c = net.conv(sum, 1, 1, false);
    let sum = net.add(c, net.x);
    let bias = net.constant(&[SHAPE[1], 1, 1], 0.5);
    let y = net.add(sum, bias);
    net.output(y);
    // The last sum would be in the chain of the one before it.
    (net.graph.build().unwrap(), 0)
}

/// Constant factors on either side, with a bias and without, and after a function.
fn factors() -> (Graph, usize) {
    let mut net = Net::new();
    let [half, three] = [0.5f32, -3.0].map(|v| {
        let name = format!("factor{v}");
        net.graph.constant(name, Tensor::new([], &[v]).unwrap())
    });
    let c = net.conv(net.x, 3, 1, true);
    let c = net.graph.op(ops::mul(), &[c, half]);
    let c = net.conv(c, 1, 1, false);
    let c = net.graph.op(ops::mul(), &[three, c]);
    let c = net.conv(c, 3, 1, true);
    let c = net.graph.op(ops::unary(Function::Relu), &[c]);
    let c = net.graph.op(ops::mul(), &[c, three]);
    net.output(c);
    (net.graph.build().unwrap(), 3)
}

/// The outputs, and how many nodes there are, and are in half precision.
fn run(context: &Context, graph: Graph, precision: Precision, absorb: bool) -> (Vec<Tensor>, [usize; 2]) {
    let names: Vec<String> = graph.outputs().iter().map(|(name, _)| name.clone()).collect();
    let has_row = graph.inputs().len() > 1;
    let all = PassSelection::default();
    let passes = if absorb { all } else { all.without("absorb").unwrap() };
    let builder = Session::builder().graph(graph).context(context.clone());
    let mut session = builder.precision(precision).passes(passes).build().unwrap();
    session.set_input("x", &tensor(&SHAPE, 77, 1.0)).unwrap();
    if has_row {
        session.set_input("row", &tensor(&[1, 1, SHAPE[2], SHAPE[3]], 78, 1.0)).unwrap();
    }
    session.run().unwrap();
    session.run().unwrap();
    let outputs = names.iter().map(|name| session.get_output(name).unwrap()).collect();
    let report = &session.binding().unwrap().plan().report;
    (outputs, [report.nodes.len(), report.halved])
}

#[test]
fn sums_are_the_same_in_fewer_nodes() {
    for device in DEVICES {
        let desc = ContextDesc { validation: true, ..ContextDesc::default() };
        let context = Registry::with_defaults().open(device, &desc).unwrap();
        for (case, net) in [blocks as fn() -> (Graph, usize), shared, unlike, factors].into_iter().enumerate()
        {
            for precision in [Precision::F32, Precision::F16] {
                let (want, [apart, _]) = run(&context, net().0, precision, false);
                let (got, [joined, halved]) = run(&context, net().0, precision, true);
                // Conversions are nodes too.
                let saved = if precision == Precision::F32 { net().1 } else { 0 };
                assert!(joined + saved <= apart, "{device} {case}: {joined} nodes, {apart} apart");
                assert_eq!(halved > 0, precision == Precision::F16, "{device} {case}");
                let near = if precision == Precision::F16 { 2e-2 } else { 2e-5 };
                for (got, want) in got.iter().zip(&want) {
                    let (got, want) = (got.to_f32s().unwrap(), want.to_f32s().unwrap());
                    let size = want.iter().fold(1f32, |size, w| size.max(w.abs()));
                    for (i, (g, w)) in got.iter().zip(&want).enumerate() {
                        assert!(
                            (g - w).abs() <= near * size,
                            "{device} {case} {precision:?}: element {i} is {g}, not {w}"
                        );
                    }
                }
            }
        }
        assert_eq!(context.validation_messages(), Vec::<String>::new(), "{device}");
    }
}

/// The sum lies where its summand lay, which nothing reads later.
#[test]
fn a_sum_takes_the_place_of_its_summand() {
    let mut arenas = Vec::new();
    for summed in [true, false] {
        let mut net = Net::new();
        let first = net.conv(net.x, 3, 1, true);
        let first = net.function(first, Function::Relu);
        let middle = net.conv(first, 3, 1, true);
        let middle = net.function(middle, Function::Relu);
        let c = net.conv(middle, 3, 1, true);
        let c = if summed { net.add(c, first) } else { net.function(c, Function::Tanh) };
        let last = net.conv(c, 1, 1, true);
        net.output(last);
        let context = Registry::with_defaults().open("vulkan", &ContextDesc::default()).unwrap();
        let graph = net.graph.build().unwrap();
        let mut session = Session::builder().graph(graph).context(context).build().unwrap();
        session.set_input("x", &tensor(&SHAPE, 77, 1.0)).unwrap();
        session.run().unwrap();
        let plan = session.binding().unwrap().plan().clone();
        arenas.push(plan.arenas.iter().map(|arena| arena.ranges).sum::<usize>());
    }
    assert_eq!(arenas, [2, 3]);
}

/// A summand of another shape or type, and one too few, are errors that name the input.
#[test]
fn a_summand_that_does_not_fit_is_an_error() {
    let op = Conv { summed: true, activation: Activation::of(Function::Relu), ..Conv::default() };
    let build = |summand: Option<Tensor>| {
        let mut net = Net::new();
        let w = net.constant(&[4, SHAPE[1], 1, 1], 1.0);
        let mut inputs = vec![net.x, w, net.constant(&[4], 1.0)];
        inputs.extend(summand.map(|z| net.graph.constant("z", z)));
        let y = net.graph.op(Arc::new(op.clone()) as Arc<dyn Operator>, &inputs);
        net.output(y);
        let graph = net.graph.build().map_err(|e| e.to_string())?;
        let mut session = Session::builder().graph(graph).device("cpu").build().unwrap();
        session.set_input("x", &tensor(&SHAPE, 77, 1.0)).unwrap();
        session.run().map_err(|e| format!("{e:?}"))
    };
    let shape = [SHAPE[0], 4, SHAPE[2], SHAPE[3]];
    build(Some(tensor(&shape, 1, 1.0))).unwrap();
    let halves: Vec<f16> = values(shape.iter().product(), 1).into_iter().map(f16::from_f32).collect();
    let errors = [
        build(None).unwrap_err(),
        build(Some(tensor(&[1, 4, SHAPE[2], SHAPE[3]], 1, 1.0))).unwrap_err(),
        build(Some(Tensor::new(shape.to_vec(), &halves).unwrap())).unwrap_err(),
    ];
    assert!(errors[1].contains("input: 3") && errors[2].contains("input: 3"), "{errors:#?}");
}
