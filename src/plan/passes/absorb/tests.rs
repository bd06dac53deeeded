//! Products of bytes absorb what makes numbers of their sums.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::*;
use crate::dtype::DType;
use crate::graph::{Graph, GraphBuilder, Tensor, TensorId, TensorInfo};
use crate::ops::quant::{DynamicQuantizeLinear, QuantizedConv, QuantizedMatMul, SumsBecome};
use crate::ops::test_util::{tensor, values};
use crate::ops::{self, Function, Operator, WindowAttrs};
use crate::plan::passes::PassSelection;
use crate::plan::specialize;
use crate::session::Session;

/// A product that a model quantizes dynamically, as it is spelled out.
#[derive(Clone)]
struct Case {
    shape: Vec<usize>,
    /// The shape of the weights, and whether it is a convolution's.
    weights: Vec<usize>,
    conv: bool,
    signed: bool,
    /// The weights' zero point, where they have one; with several scales each line has another.
    zero: Option<i32>,
    /// The shape of the weights' scales.
    scales: Vec<usize>,
    /// The shape of the bias, and whether it is the first summand.
    bias: Option<(Vec<usize>, bool)>,
    activation: Option<Function>,
    /// Whether the scales meet after the product, not before.
    apart: bool,
    /// Whether the sums, or the numbers before the bias, are an output too.
    shown: [bool; 2],
}

fn case(shape: &[usize], weights: &[usize]) -> Case {
    Case {
        shape: shape.to_vec(),
        weights: weights.to_vec(),
        conv: false,
        signed: true,
        zero: None,
        scales: Vec::new(),
        bias: None,
        activation: None,
        apart: false,
        shown: [false; 2],
    }
}

fn bytes(signed: bool, shape: &[usize], make: impl Fn(usize) -> i32) -> Tensor {
    let n = shape.iter().product();
    if signed {
        Tensor::new(shape, &(0..n).map(|i| make(i) as i8).collect::<Vec<_>>()).unwrap()
    } else {
        Tensor::new(shape, &(0..n).map(|i| (make(i) + 128) as u8).collect::<Vec<_>>()).unwrap()
    }
}

impl Case {
    fn graph(&self) -> Graph {
        let mut g = GraphBuilder::new("dynamic");
        let op = |g: &mut GraphBuilder, op: Arc<dyn Operator>, inputs: &[TensorId]| g.op(op, inputs);
        let dims: Vec<_> = self.shape.iter().map(|d| (*d).into()).collect();
        let x = g.input("x", DType::F32, dims);
        let (_, x) = g.node("quantized", Arc::new(DynamicQuantizeLinear) as Arc<dyn Operator>, &[Some(x)], 3);
        let w = g.constant("w", bytes(self.signed, &self.weights, |i| (i * 7919 % 253) as i32 - 126));
        let n: usize = self.scales.iter().product();
        let scales: Vec<f32> = values(n, 3).iter().map(|v| v.abs() / 50.0 + 0.001).collect();
        let w_scale = g.constant("w:scale", Tensor::new(self.scales.clone(), &scales).unwrap());
        let zero = self.zero.map(|zero| {
            let shape = if n > 1 { vec![n] } else { Vec::new() };
            g.constant("w:zero", bytes(self.signed, &shape, |i| zero + i as i32 % 3))
        });
        let product: Arc<dyn Operator> = if self.conv {
            let window = WindowAttrs { pads: vec![1; 4], ..WindowAttrs::default() };
            Arc::new(QuantizedConv { window, group: 1, sums: SumsBecome::Sums })
        } else {
            Arc::new(QuantizedMatMul::default())
        };
        let inputs: Vec<TensorId> = [x[0], w, x[2]].into_iter().chain(zero).collect();
        let sums = op(&mut g, product, &inputs);
        let mut y = op(&mut g, ops::cast(DType::F32), &[sums]);
        if self.apart {
            y = op(&mut g, ops::mul(), &[x[1], y]);
            y = op(&mut g, ops::mul(), &[y, w_scale]);
        } else {
            let scale = op(&mut g, ops::mul(), &[x[1], w_scale]);
            y = op(&mut g, ops::mul(), &[y, scale]);
        }
        if self.shown[0] {
            g.output("sums", sums);
        }
        if self.shown[1] {
            g.output("numbers", y);
        }
        if let Some((shape, first)) = &self.bias {
            let bias = g.constant("bias", tensor(shape, 5));
            y = op(&mut g, ops::add(), if *first { [bias, y] } else { [y, bias] }.as_slice());
        }
        if let Some(function) = self.activation {
            y = op(&mut g, ops::unary(function), &[y]);
        }
        g.output("y", y);
        g.build().unwrap()
    }

    /// The operators after the pass.
    fn absorbed(&self) -> Vec<&'static str> {
        let info = TensorInfo::new(DType::F32, crate::shape::Shape::new(&self.shape[..]).unwrap());
        let mut flow = specialize(&self.graph(), &[info], &BTreeMap::new()).unwrap().plan().unwrap();
        let before = flow.nodes.len();
        let gone = absorb(&mut flow, Precision::F32).unwrap();
        assert_eq!(before - flow.nodes.len(), gone);
        flow.nodes.iter().map(|n| n.op.name()).collect()
    }

    /// The outputs of a run on `device`.
    fn run(&self, device: &str, passes: PassSelection) -> Vec<Vec<f64>> {
        let graph = self.graph();
        let builder = Session::builder().graph(graph.clone()).device(device).passes(passes);
        let mut session = builder.build().unwrap();
        session.set_input("x", &tensor(&self.shape, 1)).unwrap();
        session.run().unwrap();
        let value = |(name, _): &(String, _)| {
            let t = session.get_output(name).unwrap();
            let sums = || t.to_i64s().unwrap().into_iter().map(|v| v as f64).collect();
            if t.dtype() == DType::I32 {
                sums()
            } else {
                t.to_f32s().unwrap().into_iter().map(f64::from).collect()
            }
        };
        graph.outputs().iter().map(value).collect()
    }

    /// Checks the operators, and the results on every device against those of the graph as it is.
    #[track_caller]
    fn check(&self, operators: &[&str]) {
        assert_eq!(self.absorbed(), operators);
        let without = PassSelection::default().without("absorb").unwrap().without("fuse_chains").unwrap();
        let plain = self.run("cpu", without);
        let devices: &[&str] = if cfg!(feature = "vulkan") { &["cpu", "vulkan"] } else { &["cpu"] };
        for device in devices {
            let got = self.run(device, PassSelection::default());
            for (got, want) in got.iter().zip(&plain) {
                assert_eq!(got.len(), want.len());
                for (i, (g, w)) in got.iter().zip(want).enumerate() {
                    // All is rounded as before, but for the activation's own steps.
                    let near = if self.activation.is_none() { 0.0 } else { 2e-6 * w.abs().max(1.0) };
                    assert!((g - w).abs() <= near, "element {i} on {device}: {g} is not {w}");
                }
            }
        }
    }
}

const ONE: [&str; 2] = ["DynamicQuantizeLinear", "MatMulInteger"];

#[test]
fn a_dynamic_product_is_one_node_with_its_scales_bias_and_activation() {
    let first = case(&[2, 5, 32], &[32, 24]);
    for (signed, zero) in
        [(true, None), (true, Some(0)), (true, Some(5)), (false, Some(0)), (false, Some(-9))]
    {
        for scales in [vec![], vec![1], vec![24], vec![1, 24]] {
            let last_first = zero == Some(5);
            let bias = Some((if scales.len() == 2 { vec![1, 1, 24] } else { vec![24] }, last_first));
            Case { signed, zero, scales, bias, ..first.clone() }.check(&ONE);
        }
    }
    Case { zero: None, signed: false, activation: Some(Function::Gelu), ..first.clone() }.check(&ONE);
    let bias = Some((vec![24], false));
    Case { bias, activation: Some(Function::Relu), scales: vec![24], ..first }.check(&ONE);
    // Rows that are no whole blocks, batches of weights, few rows, vectors.
    Case { bias: Some((vec![7], true)), ..case(&[3, 21], &[21, 7]) }.check(&ONE);
    Case { zero: Some(3), ..case(&[3, 4, 16], &[3, 16, 5]) }.check(&ONE);
    Case { bias: Some((vec![1, 9], true)), scales: vec![9], ..case(&[1, 48], &[48, 9]) }.check(&ONE);
    Case { zero: Some(1), ..case(&[4, 16], &[16]) }.check(&ONE);
    // More numbers than one work-group quantizes.
    Case { scales: vec![6], ..case(&[90, 64], &[64, 6]) }.check(&ONE);
}

#[test]
fn what_is_read_elsewhere_or_of_another_form_stays() {
    let plain = case(&[4, 32], &[32, 6]);
    let sums = Case { shown: [true, false], ..plain.clone() };
    sums.check(&["DynamicQuantizeLinear", "MatMulInteger", "Cast", "Mul", "Mul"]);
    let numbers = Case { shown: [false, true], bias: Some((vec![6], false)), ..plain.clone() };
    numbers.check(&["DynamicQuantizeLinear", "MatMulInteger", "Add"]);
    // The second factor comes after a rounding of its own.
    Case { apart: true, scales: vec![6], ..plain.clone() }.check(&[
        "DynamicQuantizeLinear",
        "MatMulInteger",
        "Mul",
    ]);
    // A bias for every row is none for every column.
    let rows = Case { bias: Some((vec![4, 1], false)), ..plain.clone() };
    rows.check(&["DynamicQuantizeLinear", "MatMulInteger", "Add"]);
    let wider = Case { bias: Some((vec![2, 1, 6], false)), ..plain };
    wider.check(&["DynamicQuantizeLinear", "MatMulInteger", "Add"]);
}

#[test]
fn a_dynamic_convolution_is_one_node_too() {
    let plain = Case { conv: true, ..case(&[2, 3, 5, 6], &[4, 3, 3, 3]) };
    let one = ["DynamicQuantizeLinear", "ConvInteger"];
    for (signed, zero) in [(true, None), (true, Some(3)), (false, Some(0)), (false, Some(-9))] {
        for scales in [vec![], vec![1, 4, 1, 1], vec![4, 1, 1]] {
            let bias = Some((vec![1, 4, 1, 1], zero == Some(3)));
            Case { signed, zero, scales, bias, ..plain.clone() }.check(&one);
        }
    }
    Case { activation: Some(Function::Relu), bias: Some((vec![4, 1, 1], false)), ..plain.clone() }
        .check(&one);
    // Of the last axis, which is no axis of channels.
    let columns = Case { bias: Some((vec![6], false)), ..plain };
    columns.check(&["DynamicQuantizeLinear", "ConvInteger", "Add"]);
}
