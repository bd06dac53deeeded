//! Absorption into operators: of an activation, or of a normalization or bias that changes their constants.

use std::sync::Arc;

use super::conv::fold::{BatchNorm, WeightLayout, channel_bias, fold_batch_norm, fold_factors};
use super::real::FLOATS_TO_32;
use super::{Absorbed, AbsorbedInput, Activation, Elementwise, OpCx, Operator, Structure};
use crate::expr::Function;
use crate::graph::Tensor;

/// `op` with activation `next`, where its kernels support that.
pub(super) fn with_activation(
    op: &dyn Operator,
    cx: &OpCx,
    next: &dyn Operator,
    next_cx: &OpCx,
) -> Option<Absorbed> {
    Some(same_inputs(op.with_activation(&next.as_activation(next_cx)?)?, cx))
}

/// A convolution that takes in what comes after it: an activation, a normalization, or constants of its channels; `with` is
/// the same one with an activation.
pub(super) fn into_convolution(
    op: &dyn Operator,
    (layout, activation): (WeightLayout, Activation),
    with: impl Fn(Activation) -> Arc<dyn Operator>,
    cx: &OpCx,
    (next, next_cx, at): (&dyn Operator, &OpCx, usize),
) -> Option<Absorbed> {
    if activation == Activation::None
        && let Some((w, b)) = scaled(cx, next, next_cx, at, layout)
    {
        return Some(folded(with(activation), w, b));
    }
    if let Some(absorbed) = with_activation(op, cx, next, next_cx) {
        return Some(absorbed);
    }
    if let Some((w, b, activation)) = normalized(cx, next, next_cx, at, layout, activation) {
        return Some(folded(with(activation), w, b));
    }
    let added = added(next, next_cx, at)?;
    if activation != Activation::None {
        return plus_number(&activation, added, cx).map(|activation| same_inputs(with(activation), cx));
    }
    let bias = channel_bias(added, &cx.output(0).ok()?.shape).ok()??;
    match cx.has(2) {
        true => Some(with_bias(with(activation), sum(cx.value(2)?, &bias)?)),
        false => Some(with_bias(with(activation), bias)),
    }
}

/// `activation` and then the sum with a constant number, where one function does both.
fn plus_number(activation: &Activation, added: &Tensor, cx: &OpCx) -> Option<Activation> {
    let is_float = FLOATS_TO_32.contains(&cx.dtype(0).ok()?);
    let [number] = added.to_f32s().ok().filter(|_| is_float)?[..] else { return None };
    activation.then(&Activation::with(Function::Affine, [1.0, number]))
}

/// The sum of two vectors of `float32`.
fn sum(a: &Tensor, b: &Tensor) -> Option<Tensor> {
    let (x, y) = (a.as_slice::<f32>().ok()?, b.as_slice::<f32>().ok()?);
    let sums: Vec<f32> = x.iter().zip(y).map(|(x, y)| x + y).collect();
    (x.len() == y.len()).then(|| Tensor::new([sums.len()], &sums).ok())?
}

/// The weights and bias of a convolution that `next` multiplies by a constant of each channel, where all of it is constant.
fn scaled(
    cx: &OpCx,
    next: &dyn Operator,
    next_cx: &OpCx,
    at: usize,
    layout: WeightLayout,
) -> Option<(Tensor, Tensor)> {
    let is_product = next.structure() == Some(Structure::Elementwise(Elementwise::Mul));
    if !is_product || (cx.has(2) && cx.value(2).is_none()) {
        return None;
    }
    let factors = constant_beside(next_cx, at)?;
    let factors = channel_bias(factors, &cx.output(0).ok()?.shape).ok()??;
    fold_factors(cx.value(1)?, cx.value(2), &factors, layout).ok()
}

/// `op` with the inputs that it has.
fn same_inputs(op: Arc<dyn Operator>, cx: &OpCx) -> Absorbed {
    Absorbed { op, inputs: (0..cx.input_count()).map(AbsorbedInput::Own).collect() }
}

/// A convolution with the weights and bias that a normalization made of its own.
fn folded(op: Arc<dyn Operator>, w: Tensor, b: Tensor) -> Absorbed {
    let inputs = vec![AbsorbedInput::Own(0), AbsorbedInput::New(w), AbsorbedInput::New(b)];
    Absorbed { op, inputs }
}

/// `op` with a bias as its third input.
pub(super) fn with_bias(op: Arc<dyn Operator>, bias: Tensor) -> Absorbed {
    let inputs = vec![AbsorbedInput::Own(0), AbsorbedInput::Own(1), AbsorbedInput::New(bias)];
    Absorbed { op, inputs }
}

/// The weights and bias of a convolution that `next` normalizes, where all of it is constant.
fn normalized(
    cx: &OpCx,
    next: &dyn Operator,
    next_cx: &OpCx,
    at: usize,
    layout: WeightLayout,
    activation: Activation,
) -> Option<(Tensor, Tensor, Activation)> {
    let Structure::BatchNormalization { epsilon, activation: after } = next.structure()? else { return None };
    if at != 0 || activation != Activation::None || (cx.has(2) && cx.value(2).is_none()) {
        return None;
    }
    let parameters = BatchNorm {
        scale: next_cx.value(1)?,
        bias: next_cx.value(2)?,
        mean: next_cx.value(3)?,
        var: next_cx.value(4)?,
        epsilon,
    };
    let (w, b) = fold_batch_norm(cx.value(1)?, cx.value(2), &parameters, layout).ok()?;
    Some((w, b, after))
}

/// The constant that `next` adds, where it adds one and does not widen the shape.
pub(super) fn added<'a>(next: &dyn Operator, next_cx: &'a OpCx, at: usize) -> Option<&'a Tensor> {
    let is_sum = next.structure() == Some(Structure::Elementwise(Elementwise::Add));
    if is_sum { constant_beside(next_cx, at) } else { None }
}

/// The constant that a function of two takes besides input `at`, where it does not widen the shape.
fn constant_beside(next_cx: &OpCx, at: usize) -> Option<&Tensor> {
    if next_cx.input_count() != 2 || next_cx.shape(at).ok()? != &next_cx.output(0).ok()?.shape {
        return None;
    }
    next_cx.value(1 - at.min(1))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dtype::DType;
    use crate::expr::Function;
    use crate::graph::{GraphBuilder, TensorInfo};
    use crate::ops::WindowAttrs;
    use crate::ops::conv::Conv;
    use crate::ops::linalg::MatMul;
    use crate::ops::norm::BatchNormalization;
    use crate::ops::{self, pointwise};
    use crate::plan::passes::{absorb as fuse, recognize_activations};
    use crate::plan::{Precision, specialize};
    use crate::shape::Shape;

    fn values(n: usize, seed: u32) -> Vec<f32> {
        (0..n as u32).map(|i| ((i * 7919 + seed * 104_729) % 1000) as f32 / 500.0 - 1.0).collect()
    }

    /// A convolution, its normalization and its activation become one node that computes the same.
    #[test]
    fn convolution_normalization_and_activation_become_one() {
        let mut g = GraphBuilder::new("g");
        let x = g.input("x", DType::F32, [1.into(), 3.into(), 5.into(), 6.into()]);
        let w = g.constant("w", Tensor::new([4, 3, 3, 3], &values(108, 1)).unwrap());
        let c = g.op(Arc::new(Conv::default()) as Arc<dyn Operator>, &[x, w]);
        let parameters: Vec<_> = (0..4)
            .map(|k| {
                let v: Vec<f32> = values(4, 10 + k).iter().map(|v| v.abs() + 0.5).collect();
                g.constant(format!("p{k}"), Tensor::new([4], &v).unwrap())
            })
            .collect();
        let norm = BatchNormalization { epsilon: 1e-3, activation: Activation::None, by_element: false };
        let inputs: Vec<_> = std::iter::once(c).chain(parameters).collect();
        let n = g.op(Arc::new(norm) as Arc<dyn Operator>, &inputs);
        let r = g.op(pointwise::unary(pointwise::Function::Relu), &[n]);
        g.output("y", r);
        check(&g.build().unwrap(), 2);
    }

    /// Slopes of channels go to the biases, or to zeros; those of other shapes stay apart.
    #[test]
    fn slopes_of_channels_become_the_convolutions() {
        for (slopes, biased, fused) in [
            (&[4, 1, 1][..], true, 1),
            (&[1, 4, 1, 1], false, 1),
            (&[1, 1, 1], true, 1),
            (&[6], true, 0),
            (&[4, 5, 6], false, 0),
        ] {
            let mut g = GraphBuilder::new("g");
            let x = g.input("x", DType::F32, [1.into(), 3.into(), 5.into(), 6.into()]);
            let w = g.constant("w", Tensor::new([4, 3, 3, 3], &values(108, 1)).unwrap());
            let mut inputs = vec![x, w];
            if biased {
                inputs.push(g.constant("b", Tensor::new([4], &values(4, 2)).unwrap()));
            }
            let window = WindowAttrs { pads: vec![1; 4], ..WindowAttrs::default() };
            let c = g.op(Arc::new(Conv { window, ..Conv::default() }) as Arc<dyn Operator>, &inputs);
            let n: usize = slopes.iter().product();
            let slope = g.constant("slope", Tensor::new(slopes, &values(n, 4)).unwrap());
            let y = g.op(pointwise::binary(pointwise::BinaryFunction::PRelu), &[c, slope]);
            g.output("y", y);
            check(&g.build().unwrap(), fused);
        }
    }

    /// Constants of channels before a function go into weights and biases, numbers after it into the function, as in
    /// Paddle's text detectors.
    #[test]
    fn constants_around_a_function_become_the_convolutions() {
        for (biased, function, of_channels, fused) in [
            (true, Function::HardSwish, &[4, 1, 1][..], 5),
            (false, Function::Relu, &[1, 4, 1, 1], 5),
            (true, Function::HardSwish, &[], 5),
            (true, Function::Tanh, &[1], 3),
            (true, Function::Relu, &[3, 1], 0),
        ] {
            let mut g = GraphBuilder::new("g");
            let x = g.input("x", DType::F32, [1.into(), 3.into(), 5.into(), 6.into()]);
            let w = g.constant("w", Tensor::new([4, 3, 3, 3], &values(108, 1)).unwrap());
            let mut inputs = vec![x, w];
            if biased {
                inputs.push(g.constant("b", Tensor::new([4], &values(4, 2)).unwrap()));
            }
            let mut y = g.op(Arc::new(Conv::default()) as Arc<dyn Operator>, &inputs);
            let n: usize = of_channels.iter().product();
            for (seed, by) in [(3, pointwise::mul()), (4, pointwise::add())] {
                let c = g.constant(format!("c{seed}"), Tensor::new(of_channels, &values(n, seed)).unwrap());
                y = g.op(by, &[y, c]);
            }
            y = g.op(pointwise::unary(function), &[y]);
            for (seed, by) in [(5, pointwise::mul()), (6, pointwise::add())] {
                let c = g.constant(format!("c{seed}"), Tensor::new([], &values(1, seed)).unwrap());
                y = g.op(by, &[c, y]);
            }
            g.output("y", y);
            check(&g.build().unwrap(), fused);
        }
    }

    /// Checks that operators absorb so many others, after which a node is left and computes the same where that are all.
    fn check(graph: &crate::graph::Graph, fused: usize) {
        let input = Tensor::new([1, 3, 5, 6], &values(90, 3)).unwrap();
        let infos: Vec<TensorInfo> = vec![input.info().clone()];
        let known = [(0, input)].into();
        // With all inputs known, folding runs each operator alone.
        let plain = specialize(graph, &infos, &known).unwrap().plan().unwrap();
        let want = plain.values[plain.outputs[0].1].constant.clone().unwrap();
        let mut flow = specialize(graph, &infos, &Default::default()).unwrap().plan().unwrap();
        let nodes = flow.nodes.len();
        assert_eq!(fuse(&mut flow, Precision::F32).unwrap(), fused);
        assert_eq!(flow.nodes.len(), nodes - fused);
        if flow.nodes.len() > 1 {
            return;
        }
        let node = &flow.nodes[0];
        let mut cx = flow.cx(0);
        let facts = (0..cx.input_count()).map(|i| match i {
            0 => Some(ops::Fact::known(known[&0].clone())),
            i => cx.value(i).cloned().map(ops::Fact::known),
        });
        cx = OpCx::for_infer(facts.collect(), 1).with_outputs(cx.outputs().to_vec());
        let kernel = node.op.cpu(&cx).unwrap();
        let got = crate::plan::evaluate(node.op.as_ref(), &cx, &kernel).unwrap();
        for (g, w) in got[0].to_f32s().unwrap().iter().zip(want.to_f32s().unwrap()) {
            assert!((g - w).abs() < 1e-4, "{g} is not {w}");
        }
    }

    /// A gate that the model spells out becomes the convolution's activation.
    #[test]
    fn a_spelled_out_function_becomes_an_activation() {
        let mut g = GraphBuilder::new("g");
        let x = g.input("x", DType::F32, [1.into(), 3.into(), 5.into(), 6.into()]);
        let w = g.constant("w", Tensor::new([4, 3, 3, 3], &values(108, 1)).unwrap());
        let c = g.op(Arc::new(Conv::default()) as Arc<dyn Operator>, &[x, w]);
        let gate = g.op(pointwise::unary(pointwise::Function::Sigmoid), &[c]);
        let y = g.op(pointwise::mul(), &[c, gate]);
        g.output("y", y);
        let info = TensorInfo::new(DType::F32, Shape::new([1, 3, 5, 6]).unwrap());
        let mut flow = specialize(&g.build().unwrap(), &[info], &Default::default()).unwrap().plan().unwrap();
        assert_eq!(recognize_activations(&mut flow), 1);
        assert_eq!(fuse(&mut flow, Precision::F32).unwrap(), 1);
        let conv = flow.nodes[0].op.downcast_ref::<Conv>().unwrap();
        assert_eq!((flow.nodes.len(), conv.activation), (1, Activation::of(Function::Swish)));
    }

    /// A factor of one number goes into the product where it keeps the shape.
    #[test]
    fn a_constant_factor_becomes_an_activation() {
        for (constant, fused) in [(vec![], 1), (vec![1, 1], 1), (vec![1, 1, 1], 0), (vec![6], 0)] {
            let mut g = GraphBuilder::new("g");
            let x = g.input("x", DType::F32, [4.into(), 8.into()]);
            let w = g.constant("w", Tensor::new([8, 6], &values(48, 1)).unwrap());
            let y = g.op(Arc::new(MatMul::default()) as Arc<dyn Operator>, &[x, w]);
            let n = constant.iter().product();
            let factor = g.constant("factor", Tensor::new(constant.clone(), &values(n, 2)).unwrap());
            let y = g.op(pointwise::mul(), &[factor, y]);
            g.output("y", y);
            let info = TensorInfo::new(DType::F32, Shape::new([4, 8]).unwrap());
            let mut flow =
                specialize(&g.build().unwrap(), &[info], &Default::default()).unwrap().plan().unwrap();
            assert_eq!(fuse(&mut flow, Precision::F32).unwrap(), fused, "{constant:?}");
        }
    }
}
