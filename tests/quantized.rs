//! Graphs with QuantizeLinear and DequantizeLinear around operators give the same results, but for units of what is
//! quantized, whether the operators between compute with bytes or with numbers.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

use std::sync::Arc;

use onepool::backend::ContextDesc;
use onepool::device::Context;
use onepool::graph::TensorId;
use onepool::ops::conv::Conv;
use onepool::ops::linalg::{Gemm, MatMul};
use onepool::ops::movement::{Concat, Pad, PadMode, Slice, Transpose};
use onepool::ops::pointwise::{Clip, Function, Pointwise};
use onepool::ops::pool::{Pool, PoolKind};
use onepool::ops::quant::{DequantizeLinear, QuantizeLinear};
use onepool::ops::shape_ops::Reshape;
use onepool::ops::{self, Operator, WindowAttrs};
use onepool::plan::Integers;
use onepool::registry::Registry;
use onepool::{DType, Graph, GraphBuilder, Session, Tensor};
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};

/// The shape of every value.
const DIMS: [usize; 4] = [1, 4, 6, 5];
const LEN: usize = 120;

/// What each step computes, from which earlier values, and how the result is quantized.
#[derive(Clone, Debug)]
struct Recipe {
    steps: Vec<(u8, [prop::sample::Index; 2], Quantized)>,
}

#[derive(Clone, Copy, Debug)]
struct Quantized {
    signed: bool,
    /// Without one it is 0 and `uint8`.
    zero: Option<u8>,
    /// Whether there is an activation before.
    active: u8,
    /// Whether what comes before is an output of the graph.
    seen: bool,
    seed: usize,
}

fn recipes() -> impl Strategy<Value = Recipe> {
    let quantized = (any::<bool>(), any::<Option<u8>>(), 0u8..5, prop::bool::weighted(0.1), 0usize..1000)
        .prop_map(|(signed, zero, active, seen, seed)| Quantized { signed, zero, active, seen, seed });
    let step = (0u8..16, any::<[prop::sample::Index; 2]>(), quantized);
    prop::collection::vec(step, 1..9).prop_map(|steps| Recipe { steps })
}

fn values(n: usize, seed: usize) -> Vec<f32> {
    (0..n).map(|i| ((i * 7919 + seed * 104_729) % 2001) as f32 / 1000.0 - 1.0).collect()
}

/// A tensor of numbers that bytes stand for.
#[derive(Clone, Copy)]
struct Value {
    id: TensorId,
    /// The largest it may be.
    most: f32,
    /// How far the number may be from what it is without bytes.
    off: f32,
}

struct Builder {
    g: GraphBuilder,
    count: usize,
    outputs: Vec<(TensorId, f32)>,
}

impl Builder {
    fn constant(&mut self, value: Tensor) -> TensorId {
        self.count += 1;
        self.g.constant(format!("c{}", self.count), value)
    }

    fn op(&mut self, op: impl Operator, inputs: &[TensorId]) -> TensorId {
        self.g.op(Arc::new(op) as Arc<dyn Operator>, inputs)
    }

    fn quantize(&mut self, v: Value, q: Quantized) -> Value {
        if q.seen {
            self.outputs.push((v.id, v.off));
        }
        let scale = (v.most / 200.0).max(1e-6);
        let s = self.constant(Tensor::scalar(scale));
        let mut inputs = vec![v.id, s];
        let zero = match (q.zero, q.signed) {
            (None, _) => 0.0,
            (Some(zero), true) => {
                inputs.push(self.constant(Tensor::scalar(zero as i8)));
                f32::from(zero as i8) + 128.0
            }
            (Some(zero), false) => {
                inputs.push(self.constant(Tensor::scalar(zero)));
                f32::from(zero)
            }
        };
        let plain = QuantizeLinear {
            axis: 1,
            block_size: 0,
            overflow: onepool::dtype::Overflow::Saturate,
            dtype: None,
            precision: None,
        };
        let bytes = self.op(plain, &inputs);
        inputs[0] = bytes;
        let id = self.op(DEQUANTIZE, &inputs);
        Value { id, most: scale * zero.max(255.0 - zero), off: v.off + scale }
    }

    /// Weights with a scale for each place of `axis`, and the largest sum of a place.
    fn weights(&mut self, dims: &[usize], axis: usize, q: Quantized) -> (TensorId, Vec<f32>, f32) {
        let n: usize = dims.iter().product();
        let channels = dims[axis];
        let inner: usize = dims[axis + 1..].iter().product();
        let one = q.seed.is_multiple_of(3);
        let scales: Vec<f32> =
            (0..if one { 1 } else { channels }).map(|i| 0.002 + 0.0007 * i as f32).collect();
        let whole: Vec<i32> = values(n, q.seed + 3).iter().map(|v| (v * 127.0) as i32).collect();
        let (w, zero, zeros) = if q.signed {
            let w = Tensor::new(dims.to_vec(), &whole.iter().map(|v| *v as i8).collect::<Vec<i8>>()).unwrap();
            (w, 0, Tensor::new(vec![scales.len()], &vec![0i8; scales.len()]).unwrap())
        } else {
            let bytes: Vec<u8> = whole.iter().map(|v| (*v + 128) as u8).collect();
            let zeros = Tensor::new(vec![scales.len()], &vec![121u8; scales.len()]).unwrap();
            (Tensor::new(dims.to_vec(), &bytes).unwrap(), 7, zeros)
        };
        let mut sums = vec![0f32; channels];
        for (i, v) in whole.iter().enumerate() {
            let channel = i / inner % channels;
            sums[channel] += ((v + zero) as f32 * scales[channel % scales.len()]).abs();
        }
        let mut inputs = vec![self.constant(w)];
        let scalar = one && q.seed.is_multiple_of(2);
        let reshape = |t: Tensor| if scalar { t.reshaped(onepool::Shape::scalar()).unwrap() } else { t };
        let scale = Tensor::new(vec![scales.len()], &scales).unwrap();
        inputs.push(self.constant(reshape(scale)));
        if !q.signed || q.seed.is_multiple_of(5) {
            inputs.push(self.constant(reshape(zeros)));
        }
        let id = self.op(DequantizeLinear { axis: axis as i64, ..DEQUANTIZE }, &inputs);
        (id, scales, sums.into_iter().fold(0.0, f32::max))
    }

    /// A bias of numbers, or quantized as the sums are.
    fn bias(&mut self, n: usize, x_scale: f32, scales: &[f32], q: Quantized) -> TensorId {
        if q.seed.is_multiple_of(2) {
            return self.constant(Tensor::new([n], &values(n, q.seed + 5)).unwrap());
        }
        let whole: Vec<i32> = values(n, q.seed + 5).iter().map(|v| (v * 3000.0) as i32).collect();
        let scales: Vec<f32> = scales.iter().map(|s| s * x_scale).collect();
        let inputs = [Tensor::new([n], &whole).unwrap(), Tensor::new([scales.len()], &scales).unwrap()]
            .map(|t| self.constant(t));
        self.op(DequantizeLinear { axis: 0, ..DEQUANTIZE }, &inputs)
    }

    fn step(&mut self, kind: u8, a: Value, b: Value, q: Quantized) -> Value {
        let slice = |to: &mut Builder, id, axis: i64, end: i64| {
            let bounds = Some((vec![0], vec![end], Some(vec![axis])));
            to.op(Slice { bounds }, &[id])
        };
        let same = |id| Value { id, ..a };
        let mut result = match kind {
            0..=3 => {
                let group = if kind < 2 { 1 } else { 4 };
                let (w, scales, sum) = self.weights(&[4, 4 / group, 3, 3], 0, q);
                let window = WindowAttrs { pads: vec![1; 4], ..WindowAttrs::default() };
                let mut inputs = vec![a.id, w];
                if !q.seed.is_multiple_of(4) {
                    inputs.push(self.bias(4, a.most / 255.0, &scales, q));
                }
                let id = self.op(Conv { window, group, ..Conv::default() }, &inputs);
                Value { id, most: a.most * sum / 2.0, off: a.off * sum }
            }
            4 => {
                let id = self.g.op(ops::add(), &[a.id, b.id]);
                Value { id, most: a.most + b.most, off: a.off + b.off }
            }
            5 => {
                let id = self.g.op(ops::mul(), &[a.id, b.id]);
                Value { id, most: a.most * b.most, off: a.most * b.off + b.most * a.off + a.off * b.off }
            }
            6 => {
                let id = self.op(Pointwise::new(Function::Sigmoid), &[a.id]);
                Value { id, most: 1.0, off: a.off / 4.0 }
            }
            7 => {
                let gate = self.op(Pointwise::new(Function::HardSigmoid), &[a.id]);
                let id = self.g.op(ops::mul(), &[gate, a.id]);
                Value { id, most: a.most, off: a.off * (1.0 + 0.2 * a.most) }
            }
            8 => {
                let window = WindowAttrs { kernel: vec![3, 3], pads: vec![1; 4], ..WindowAttrs::default() };
                same(self.op(Pool { kind: PoolKind::Max { column_major: false }, window }, &[a.id]))
            }
            9 => {
                let id = self.op(Concat { axis: 1 }, &[b.id, a.id, b.id]);
                let v = Value { id, most: a.most.max(b.most), off: a.off.max(b.off) };
                let v = self.quantize(v, Quantized { seen: false, ..q });
                let bounds = Some((vec![2], vec![6], Some(vec![1])));
                Value { id: self.op(Slice { bounds }, &[v.id]), ..v }
            }
            10 => {
                let turn = Transpose { perm: Some(vec![0, 2, 1, 3]) };
                let there = self.op(turn.clone(), &[a.id]);
                same(self.op(turn, &[there]))
            }
            11 => {
                let (w, _, sum) = self.weights(&[5, 5], 1, q);
                let id = self.op(MatMul::default(), &[a.id, w]);
                Value { id, most: a.most * sum / 2.0, off: a.off * sum }
            }
            12 => {
                let turned = self.op(Transpose { perm: Some(vec![0, 1, 3, 2]) }, &[b.id]);
                let id = self.op(MatMul::default(), &[a.id, turned]);
                let off = 5.0 * (a.most * b.off + b.most * a.off + a.off * b.off);
                let v = Value { id, most: 2.0 * a.most * b.most, off };
                let v = self.quantize(v, Quantized { seen: false, ..q });
                Value { id: slice(self, v.id, 3, 5), ..v }
            }
            13 => {
                let value = (q.seed % 2) as f32;
                let fixed = Some((vec![0, 0, 1, 0, 0, 0, 0, 0], value));
                let id = self.op(Pad { mode: PadMode::Constant, fixed }, &[a.id]);
                Value { id: slice(self, id, 2, 6), most: a.most.max(value), off: a.off }
            }
            14 => {
                let rows = self.op(Reshape { allow_zero: false, fixed: Some(vec![24, 5]) }, &[a.id]);
                let turned = !q.seed.is_multiple_of(3);
                let (w, scales, sum) = self.weights(&[5, 5], usize::from(!turned), q);
                let bias = self.bias(5, a.most / 255.0, &scales, q);
                let op = Gemm { trans_b: turned, ..Gemm::default() };
                let id = self.op(op, &[rows, w, bias]);
                let v = Value { id, most: a.most * sum / 2.0, off: a.off * sum };
                let v = self.quantize(v, Quantized { seen: false, ..q });
                let fixed = Some(DIMS.map(|d| d as i64).to_vec());
                Value { id: self.op(Reshape { allow_zero: false, fixed }, &[v.id]), ..v }
            }
            _ => a,
        };
        match q.active {
            0 => result.id = self.op(Pointwise::new(Function::Relu), &[result.id]),
            1 => {
                let (low, high) = (Some(-0.3 * result.most), Some(0.4 * result.most));
                result.id = self.op(Clip { low, high }, &[result.id]);
            }
            _ => {}
        }
        // Moves may stay as they are.
        if matches!(kind, 8 | 10 | 13) && q.active == 2 { result } else { self.quantize(result, q) }
    }
}

const DEQUANTIZE: DequantizeLinear = DequantizeLinear { axis: 1, block_size: 0, dtype: None };

impl Recipe {
    /// The graph, how far each output may be off, and its input.
    fn graph(&self) -> (Graph, Vec<f32>, Tensor) {
        let mut b = Builder { g: GraphBuilder::new("random"), count: 0, outputs: Vec::new() };
        let id = b.g.input("x", DType::F32, DIMS.map(|d| d.into()));
        let first = Quantized { signed: false, zero: Some(131), active: 9, seen: false, seed: 0 };
        let mut known = vec![b.quantize(Value { id, most: 1.0, off: 0.0 }, first)];
        // Quantizing the input is the same in both.
        known[0].off = 0.0;
        for (kind, picks, q) in &self.steps {
            let (x, y) = (known[known.len() - 1], *picks[0].get(&known));
            let next = b.step(*kind, x, y, *q);
            // Larger numbers only make larger steps.
            known.push(next);
        }
        let last = known[known.len() - 1];
        b.outputs.push((last.id, last.off));
        b.outputs.dedup_by_key(|(id, _)| *id);
        let mut offs = Vec::new();
        for (i, (id, off)) in b.outputs.iter().enumerate() {
            b.g.output(format!("y{i}"), *id);
            offs.push(*off);
        }
        (b.g.build().unwrap(), offs, Tensor::new(DIMS, &values(LEN, 1)).unwrap())
    }
}

/// The outputs, and how many operators of bytes there are.
fn run(context: &Context, graph: Graph, x: &Tensor, integers: Integers) -> (Vec<Tensor>, usize) {
    let names: Vec<String> = graph.outputs().iter().map(|(name, _)| name.clone()).collect();
    let builder = Session::builder().graph(graph).context(context.clone());
    let mut session = builder.integers(integers).build().unwrap();
    session.set_input("x", x).unwrap();
    session.run().unwrap();
    let outputs = names.iter().map(|name| session.get_output(name).unwrap()).collect();
    (outputs, session.binding().unwrap().plan().report.quantized)
}

fn bytes_and_numbers_agree(device: &str, cases: u32) {
    let desc = ContextDesc { validation: true, ..ContextDesc::default() };
    let context = Registry::with_defaults().open(device, &desc).unwrap();
    let mut runner = TestRunner::new(Config { cases, failure_persistence: None, ..Config::default() });
    let made = std::cell::Cell::new(0);
    runner
        .run(&recipes(), |recipe| {
            let (graph, offs, x) = recipe.graph();
            let (want, none) = run(&context, graph.clone(), &x, Integers::Never);
            let (got, operators) = run(&context, graph, &x, Integers::Always);
            prop_assert_eq!(none, 0);
            made.set(made.get() + operators);
            for ((got, want), off) in got.iter().zip(&want).zip(&offs) {
                prop_assert_eq!(got.info(), want.info());
                let (got, want) = (got.as_slice::<f32>().unwrap(), want.as_slice::<f32>().unwrap());
                for (i, (g, w)) in got.iter().zip(want).enumerate() {
                    let most = off * 1.001 + 1e-5 * w.abs();
                    prop_assert!(
                        (g - w).abs() <= most,
                        "element {} is {}, not {} (within {})",
                        i,
                        g,
                        w,
                        most
                    );
                }
            }
            Ok(())
        })
        .unwrap();
    assert!(made.get() > 2 * cases as usize, "{} operators of bytes in {cases} graphs", made.get());
    assert_eq!(context.validation_messages(), Vec::<String>::new());
}

#[test]
fn on_the_cpu() {
    bytes_and_numbers_agree("cpu", 300);
}

#[test]
fn on_simulated_devices() {
    for device in ["sim:0", "sim:1", "sim:2"] {
        bytes_and_numbers_agree(device, 40);
    }
}

#[cfg(feature = "vulkan")]
#[test]
fn on_vulkan() {
    bytes_and_numbers_agree("vulkan", 60);
}

/// What is different about a convolution between DequantizeLinear and QuantizeLinear.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Odd {
    Nothing,
    /// What it makes is an output of the graph.
    Seen,
    /// Another node reads its output.
    Shared,
    /// The weights' scales are those of the other channels.
    OtherAxis,
    /// The scale of its input is one of the graph's.
    GivenScale,
    /// The scale of its output is negative.
    NegativeScale,
    /// Its output has 16 bits.
    Wide,
    /// Its bias is a fraction of a unit of its sums, and these are units of the output.
    FineBias,
    /// A control dependency names it.
    Ordered,
}

fn odd_graph(odd: Odd) -> Graph {
    let mut b = Builder { g: GraphBuilder::new("odd"), count: 0, outputs: Vec::new() };
    let x = b.g.input("x", DType::U8, [1.into(), 4.into(), 3.into(), 3.into()]);
    let scale = match odd {
        Odd::GivenScale => b.g.input("s", DType::F32, []),
        _ => b.constant(Tensor::scalar(0.5f32)),
    };
    let a = b.op(DEQUANTIZE, &[x, scale]);
    let w = b.constant(Tensor::new([4, 4, 1, 1], &[3i8; 16]).unwrap());
    let w_scale = b.constant(Tensor::new([4], &[0.5f32; 4]).unwrap());
    let axis = i64::from(odd == Odd::OtherAxis);
    let w = b.op(DequantizeLinear { axis, ..DEQUANTIZE }, &[w, w_scale]);
    let bias = b.constant(Tensor::new([4], &[0.1f32; 4]).unwrap());
    let (node, y) =
        b.g.node("conv", Arc::new(Conv::default()) as Arc<dyn Operator>, &[Some(a), Some(w), Some(bias)], 1);
    let y = y[0];
    let y_scale = match odd {
        Odd::NegativeScale => -3.0,
        Odd::FineBias => 0.25,
        _ => 3.0f32,
    };
    let y_scale = b.constant(Tensor::scalar(y_scale));
    let zero = match odd {
        Odd::Wide => b.constant(Tensor::scalar(1u16)),
        _ => b.constant(Tensor::scalar(1u8)),
    };
    let quantize = QuantizeLinear {
        axis: 1,
        block_size: 0,
        overflow: onepool::dtype::Overflow::Saturate,
        dtype: None,
        precision: None,
    };
    let q = b.op(quantize, &[y, y_scale, zero]);
    b.g.output("q", q);
    if odd == Odd::Seen {
        b.g.output("y", y);
    }
    if odd == Odd::Shared {
        let other = b.op(Pointwise::new(Function::Abs), &[y]);
        b.g.output("other", other);
    }
    if odd == Odd::Ordered {
        let (late, z) = b.g.node("late", ops::unary(Function::Abs), &[Some(a)], 1);
        b.g.control_dep(late, node);
        b.g.output("z", z[0]);
    }
    b.g.build().unwrap()
}

/// The operators of the plan on the CPU.
fn operators(graph: Graph, integers: Integers) -> Vec<&'static str> {
    let session = Session::builder().graph(graph).device("cpu").integers(integers).build().unwrap();
    let info = |i: onepool::session::IoInfo| {
        onepool::TensorInfo::new(i.dtype.unwrap(), i.shape.unwrap().concrete().unwrap())
    };
    let infos: Vec<onepool::TensorInfo> = session.inputs().into_iter().map(info).collect();
    session.plan(&infos).unwrap().report.nodes.iter().map(|n| n.op).collect()
}

#[test]
fn only_what_is_certain_computes_with_bytes() {
    assert_eq!(operators(odd_graph(Odd::Nothing), Integers::Always), ["QLinearConv"]);
    assert!(operators(odd_graph(Odd::Nothing), Integers::Never).contains(&"Conv"));
    use Odd::{FineBias, GivenScale, NegativeScale, Ordered, OtherAxis, Seen, Shared, Wide};
    for odd in [Seen, Shared, OtherAxis, GivenScale, NegativeScale, Wide, FineBias, Ordered] {
        let found = operators(odd_graph(odd), Integers::Always);
        assert!(found.contains(&"Conv") && !found.contains(&"QLinearConv"), "{odd:?}: {found:?}");
    }
}

/// Unless told, a device with kernels keeps numbers, and a CPU in the same session does as it would alone.
#[cfg(feature = "vulkan")]
#[test]
fn devices_decide() {
    let found = |rest: Option<u32>| {
        let builder = Session::builder().graph(odd_graph(Odd::Nothing)).device("vulkan").device("cpu");
        let builder = if let Some(rest) = rest { builder.place_rest(rest) } else { builder };
        let session = builder.build().unwrap();
        let shape = onepool::Shape::new([1, 4, 3, 3]).unwrap();
        let plan = session.plan(&[onepool::TensorInfo::new(DType::U8, shape)]).unwrap();
        let conv = plan.report.nodes.iter().find(|n| n.op.ends_with("Conv")).unwrap();
        (conv.op, conv.device)
    };
    let alone = operators(odd_graph(Odd::Nothing), Integers::Auto);
    let on_cpu = if alone.contains(&"QLinearConv") { "QLinearConv" } else { "Conv" };
    assert_eq!(found(Some(1)), (on_cpu, 1));
    assert_eq!(found(None), ("Conv", 0));
}

#[test]
fn weights_stay_bytes() {
    let mut b = Builder { g: GraphBuilder::new("large"), count: 0, outputs: Vec::new() };
    let x = b.g.input("x", DType::U8, [3.into(), 300.into()]);
    let one = b.constant(Tensor::scalar(0.1f32));
    let a = b.op(DEQUANTIZE, &[x, one]);
    let w = b.constant(Tensor::new([400, 300], &vec![3i8; 120_000]).unwrap());
    let w = b.op(DEQUANTIZE, &[w, one]);
    let y = b.op(Gemm { trans_b: true, ..Gemm::default() }, &[a, w]);
    let q = Quantized { signed: false, zero: Some(3), active: 9, seen: false, seed: 0 };
    let y = b.quantize(Value { id: y, most: 100.0, off: 0.0 }, q);
    b.g.output("y", y.id);
    let graph = b.g.build().unwrap();
    let session = Session::builder().graph(graph).device("cpu").integers(Integers::Always).build().unwrap();
    assert!(session.graph().constant_bytes() < 121_000, "{}", session.graph().constant_bytes());
}

/// The branches of a choice are looked into.
#[test]
fn graphs_inside_nodes_compute_with_bytes() {
    let branch = || {
        let mut b = Builder { g: GraphBuilder::new("branch"), count: 0, outputs: Vec::new() };
        let x = b.g.captured_input("x");
        let q = Quantized { signed: true, zero: Some(3), active: 9, seen: false, seed: 0 };
        let x = b.quantize(Value { id: x, most: 1.0, off: 0.0 }, q);
        let y = b.step(6, x, x, q);
        b.g.output("y", y.id);
        Arc::new(b.g.build().unwrap())
    };
    let run = |integers| {
        let mut g = GraphBuilder::new("outer");
        let x = g.input("x", DType::F32, [LEN.into()]);
        let yes = onepool::TensorInfo::new(DType::Bool, onepool::Shape::scalar());
        let c = g.constant("c", Tensor::from_bytes(yes, &[1]).unwrap());
        let choice = onepool::ops::control::If { then: branch(), other: branch() };
        let y = g.op(Arc::new(choice) as Arc<dyn Operator>, &[c, x]);
        g.output("y", y);
        let graph = g.build().unwrap();
        let mut session = Session::builder().graph(graph).device("cpu").integers(integers).build().unwrap();
        session.set_input("x", &Tensor::new([LEN], &values(LEN, 1)).unwrap()).unwrap();
        session.run().unwrap();
        let report = session.binding().unwrap().plan().report.clone();
        let names: Vec<&str> = report.nodes.iter().map(|n| n.op).collect();
        (names.contains(&"ByteTable"), session.get_output("y").unwrap().to_f32s().unwrap())
    };
    let ((none, want), (found, got)) = (run(Integers::Never), run(Integers::Always));
    assert!(found && !none);
    assert_eq!(got, want);
}
