//! Layer normalizations that a graph spells out (square, mean, root, quotient, scale and bias) become one operator each, and
//! so do group normalizations.
//!
//! What is between the mean and the quotient is an expression, compared with the formula at a few points: exporters write
//! it in many ways.

mod groups;

use std::collections::HashMap;
use std::sync::Arc;

use crate::dtype::DType;
use crate::expr::eval::{Evaluator, InputData, Scratch};
use crate::expr::{ExprId, Indexing, PointwiseDesc};
use crate::graph::StorageScope;
use crate::operator::{Elementwise, Structure};
use crate::ops::norm::LayerNormalization;
use crate::plan::flow::{Flow, ValueId};
use crate::plan::index::FlowIndex;

/// Consecutive operators between a mean and the quotient.
const DEEPEST: usize = 6;
/// Numbers and means of squares at which expressions are compared.
const POINTS: [[f32; 2]; 6] = [[0.5, 0.25], [-2.0, 3.0], [1e-3, 1e-6], [7.0, 0.01], [-0.1, 40.0], [3.0, 9.0]];
/// The part by which rounding may change a result.
const ROUNDED: f32 = 1e-5;

/// Replaces normalizations over the last axis and of groups of channels; returns how many.
pub(super) fn recognize_norms(flow: &mut Flow) -> usize {
    recognize_rows(flow) + groups::recognize_groups(flow)
}

fn recognize_rows(flow: &mut Flow) -> usize {
    // Most graphs have no means, and the search ends here.
    if !flow.nodes.iter().any(|n| n.op.structure() == Some(Structure::Mean)) {
        return 0;
    }
    let index = FlowIndex::new(flow);
    let search = Search { flow, index: &index };
    let mut found: HashMap<usize, Norm> = HashMap::new();
    // A sum with a bias comes after the product that it reads, and takes its place.
    for n in (0..flow.nodes.len()).rev() {
        let is_part = index.only_user(flow.nodes[n].outputs[0]).is_some_and(|user| found.contains_key(&user));
        if !is_part && let Some(norm) = search.norm(n) {
            found.insert(n, norm);
        }
    }
    let count = found.len();
    for (n, Norm { x, scale, bias, epsilon, center }) in found {
        let op = LayerNormalization { axis: -1, epsilon, center, stash: DType::F32 };
        let node = &mut flow.nodes[n];
        node.op = Arc::new(op);
        node.inputs = [Some(x), Some(scale)].into_iter().chain(bias.map(Some)).collect();
    }
    if count > 0 {
        flow.drop_dead();
    }
    count
}

/// A normalization of `x`.
#[derive(Clone, Copy, Debug)]
struct Norm {
    x: ValueId,
    scale: ValueId,
    bias: Option<ValueId>,
    epsilon: f32,
    center: bool,
}

struct Search<'a> {
    flow: &'a Flow,
    index: &'a FlowIndex,
}

impl Search<'_> {
    fn dims(&self, v: ValueId) -> &[usize] {
        self.flow.values[v].info.shape.dims()
    }

    /// The two inputs of node `n`, either first.
    fn pairs(&self, n: usize) -> Option<[[ValueId; 2]; 2]> {
        match self.flow.nodes[n].inputs[..] {
            [Some(a), Some(b)] => Some([[a, b], [b, a]]),
            _ => None,
        }
    }

    /// The normalization whose last node is `n`.
    fn norm(&self, n: usize) -> Option<Norm> {
        let node = &self.flow.nodes[n];
        let Structure::Elementwise(function) = node.op.structure()? else { return None };
        match function {
            Elementwise::Mul => self.scaled(n),
            Elementwise::Add => self.pairs(n)?.into_iter().find_map(|[bias, product]| {
                let m = self.index.producer(product).filter(|_| self.is_passing(product))?;
                let is_product =
                    self.flow.nodes[m].op.structure() == Some(Structure::Elementwise(Elementwise::Mul));
                let norm = self.scaled(m).filter(|norm| is_product && norm.center)?;
                let same = self.flow.nodes[m].device == node.device && self.is_vector(bias, product);
                same.then_some(Norm { bias: Some(bias), ..norm })
            }),
            _ => None,
        }
    }

    /// Whether `v` is a constant with a number for each element of the last axis of `x`, of its type.
    fn is_vector(&self, v: ValueId, x: ValueId) -> bool {
        let value = &self.flow.values[v];
        let [info, other] = [v, x].map(|v| &self.flow.values[v].info);
        value.constant.is_some()
            && info.dtype == other.dtype
            && self.dims(v).last() == self.dims(x).last()
            && self.dims(v).len() == 1
    }

    /// Whether one node alone reads `v`, and no one outside the graph.
    fn is_passing(&self, v: ValueId) -> bool {
        let plain = self.flow.values[v].scope == StorageScope::default();
        plain && self.index.only_user(v).is_some()
    }

    /// The product of a scale and of normalized numbers, node `n`.
    fn scaled(&self, n: usize) -> Option<Norm> {
        let node = &self.flow.nodes[n];
        let &[y] = &node.outputs[..] else { return None };
        self.pairs(n)?.into_iter().find_map(|[scale, unit]| {
            let fits =
                self.is_vector(scale, unit) && self.dims(unit) == self.dims(y) && self.is_passing(unit);
            let (x, epsilon, center) = if fits { self.unit(unit, node.device)? } else { return None };
            let same = self.flow.values[x].info == self.flow.values[y].info;
            same.then_some(Norm { x, scale, bias: None, epsilon, center })
        })
    }

    /// What `unit` is the normalized form of, what is added to the variance, and whether the mean is subtracted.
    fn unit(&self, unit: ValueId, device: Option<u32>) -> Option<(ValueId, f32, bool)> {
        // Statistics of float16 are computed in float32.
        let narrowed = self.cast(unit);
        let unit = narrowed.unwrap_or(unit);
        let mean = self.mean_before(unit, DEEPEST)?;
        let (node, squares) = self.mean(mean, device)?;
        let square = self.index.producer(squares)?;
        let centered = self.flow.nodes[square].inputs.first().copied().flatten()?;
        let is_square = |[x, _]: [f32; 2], y: f32| near(y, x * x);
        self.gives(squares, [centered, centered], is_square).then_some(())?;
        let epsilon = self.at(unit, [centered, mean], &[[1.0, 0.0]])?.first().map(|y| 1.0 / (y * y))?;
        let is_root = |[x, mean]: [f32; 2], y: f32| near(y, x / (mean + epsilon).sqrt());
        let is_formula = epsilon.is_finite() && epsilon > 0.0 && self.gives(unit, [centered, mean], is_root);
        let center = self.centered(centered, device);
        let x = center.unwrap_or(centered);
        let x = if narrowed.is_some() { self.cast(x)? } else { x };
        (is_formula && !self.index.is_ordered(node)).then_some((x, epsilon, center.is_some()))
    }

    /// What `v` is the difference of, to its mean.
    fn centered(&self, v: ValueId, device: Option<u32>) -> Option<ValueId> {
        let &[Some(x), Some(mean)] = &self.flow.nodes[self.index.producer(v)?].inputs[..] else {
            return None;
        };
        let (_, of) = self.mean(mean, device)?;
        let is_difference = |[x, mean]: [f32; 2], y: f32| near(y, x - mean);
        (of == x && self.gives(v, [x, mean], is_difference)).then_some(x)
    }

    /// What `v` is a conversion of, where it is one between floating point types.
    fn cast(&self, v: ValueId) -> Option<ValueId> {
        let node = &self.flow.nodes[self.index.producer(v)?];
        let from = node.inputs.first().copied().flatten()?;
        let is_cast = node.op.structure() == Some(Structure::Cast);
        let types = [from, v].map(|v| self.flow.values[v].info.dtype);
        (is_cast && matches!(types, [DType::F32, DType::F16] | [DType::F16, DType::F32])).then_some(from)
    }

    /// The node whose output `v` is the mean of the last axis of another value, and that value.
    fn mean(&self, v: ValueId, device: Option<u32>) -> Option<(usize, ValueId)> {
        let n = self.index.producer(v)?;
        let node = &self.flow.nodes[n];
        let x = node.inputs.first().copied().flatten()?;
        let ([from @ .., len], [to @ .., 1]) = (self.dims(x), self.dims(v)) else { return None };
        let is_mean = node.op.structure() == Some(Structure::Mean) && node.device == device;
        (is_mean && from == to && *len > 1).then_some((n, x))
    }

    /// The first mean on the way to `v`.
    fn mean_before(&self, v: ValueId, depth: usize) -> Option<ValueId> {
        let node = &self.flow.nodes[self.index.producer(v)?];
        if node.op.structure() == Some(Structure::Mean) {
            return Some(v);
        }
        // A mean itself is small; what it is subtracted from is not.
        let mut inputs: Vec<ValueId> = node.inputs.iter().flatten().copied().collect();
        inputs.sort_by_key(|v| self.flow.values[*v].info.elements());
        let next = depth.checked_sub(1)?;
        inputs.into_iter().find_map(|v| self.mean_before(v, next))
    }

    /// Whether `v`, of the two values `of`, is what `is` says at all points.
    fn gives(&self, v: ValueId, of: [ValueId; 2], is: impl Fn([f32; 2], f32) -> bool) -> bool {
        let found = self.at(v, of, &POINTS);
        found.is_some_and(|found| POINTS.into_iter().zip(found).all(|(point, y)| is(point, y)))
    }

    /// `v` where the two values `of` are the numbers of `points`; nothing where it is no expression of these alone.
    fn at(&self, v: ValueId, of: [ValueId; 2], points: &[[f32; 2]]) -> Option<Vec<f32>> {
        let mut desc = PointwiseDesc::new([Indexing::Full; 2]);
        let mut known = HashMap::new();
        for (at, v) in of.into_iter().enumerate() {
            let input = desc.input(at).ok()?;
            known.entry(v).or_insert(input);
        }
        let y = self.expr(v, DEEPEST, &mut desc, &mut known)?;
        desc.output(y).ok()?;
        let columns = [0, 1].map(|at| points.iter().map(|point| point[at]).collect::<Vec<_>>());
        let inputs = columns.each_ref().map(|data| InputData { data, terms: &[] });
        let mut values = vec![0.0; points.len()];
        Evaluator::new(desc)
            .ok()?
            .eval_chunk(0, &inputs, &mut [&mut values], &mut Scratch::default())
            .ok()?;
        Some(values)
    }

    /// `v` as an expression of known values and of constants of one element.
    fn expr(
        &self,
        v: ValueId,
        depth: usize,
        desc: &mut PointwiseDesc,
        known: &mut HashMap<ValueId, ExprId>,
    ) -> Option<ExprId> {
        if let Some(expr) = known.get(&v) {
            return Some(*expr);
        }
        let expr = match &self.flow.values[v].constant {
            Some(_) => desc.constant(self.flow.number(v)?).ok()?,
            None => {
                let n = self.index.producer(v)?;
                let (node, next) = (&self.flow.nodes[n], depth.checked_sub(1)?);
                let args: Option<Vec<ExprId>> =
                    node.inputs.iter().map(|v| self.expr((*v)?, next, desc, known)).collect();
                node.op.pointwise_expr(&self.flow.cx(n), desc, &args?)?
            }
        };
        known.insert(v, expr);
        Some(expr)
    }
}

fn near(found: f32, wanted: f32) -> bool {
    (found - wanted).abs() <= ROUNDED * wanted.abs()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::{GraphBuilder, Tensor, TensorId, TensorInfo};
    use crate::operator::Operator;
    use crate::ops::pointwise::BinaryFunction;
    use crate::ops::reduce::{Reduce, ReduceKind};
    use crate::ops::{self, Function, add, cast, div, mul, sub};
    use crate::plan::specialize;
    use crate::shape::Shape;

    const EPSILON: f32 = 3e-3;

    /// Ways to write a normalization.
    #[derive(Clone, Copy, Debug)]
    enum Form {
        /// `scale * (x * (1 / sqrt(mean(x^2) + e)))`
        Llama,
        /// `x / sqrt(e + mean(x * x)) * scale`
        Quotient,
        /// `(x - mean(x)) / sqrt(mean((x - mean(x))^2) + e) * scale + bias`
        Centered,
        /// The same without a bias.
        Unbiased,
        /// [`Form::Llama`] of `float16`, computed in `float32`.
        Narrow,
        /// [`Form::Llama`] of `float16` alone.
        Half,
        /// The cube in place of the square.
        Cube,
        /// The root is of the mean alone.
        NoEpsilon,
    }

    fn flow(form: Form) -> Flow {
        let mut g = GraphBuilder::new("g");
        let dtype = if matches!(form, Form::Narrow | Form::Half) { DType::F16 } else { DType::F32 };
        let half = |t: Tensor| {
            let values: Vec<half::f16> = t.to_f32s().unwrap().into_iter().map(half::f16::from_f32).collect();
            Tensor::new(t.shape().dims(), &values).unwrap()
        };
        let of = |t: Tensor| if matches!(form, Form::Half) { half(t) } else { t };
        let given = g.input("x", dtype, [2.into(), 3.into(), 8.into()]);
        let number = |g: &mut GraphBuilder, name: &str, n: f32| g.constant(name, of(Tensor::scalar(n)));
        let vector = |factor: f32| {
            let values: Vec<f32> = (0..8).map(|at| 1.0 + (at as f32 * factor).sin()).collect();
            Tensor::new([8], &values).unwrap()
        };
        let scale = g.constant("scale", if dtype == DType::F16 { half(vector(0.7)) } else { vector(0.7) });
        let bias = g.constant("bias", vector(1.3));
        let epsilon = number(&mut g, "epsilon", if matches!(form, Form::NoEpsilon) { 0.0 } else { EPSILON });
        let mean = |g: &mut GraphBuilder, x: TensorId| {
            let axes = Some(vec![-1]);
            let op = Reduce { kind: ReduceKind::Mean, axes, keep_dims: true, noop_with_empty_axes: false };
            g.op(Arc::new(op) as Arc<dyn Operator>, &[x])
        };
        let x = match form {
            Form::Narrow => g.op(cast(DType::F32), &[given]),
            Form::Centered | Form::Unbiased => {
                let mean = mean(&mut g, given);
                g.op(sub(), &[given, mean])
            }
            _ => given,
        };
        let exponent = number(&mut g, "exponent", if matches!(form, Form::Cube) { 3.0 } else { 2.0 });
        let square = match form {
            Form::Quotient => g.op(mul(), &[x, x]),
            _ => g.op(ops::binary(BinaryFunction::Pow), &[x, exponent]),
        };
        let squares = mean(&mut g, square);
        let sum = match form {
            Form::Quotient => g.op(add(), &[epsilon, squares]),
            _ => g.op(add(), &[squares, epsilon]),
        };
        let root = g.op(ops::unary(Function::Sqrt), &[sum]);
        let unit = match form {
            Form::Llama | Form::Narrow | Form::Half => {
                let one = number(&mut g, "one", 1.0);
                let part = g.op(div(), &[one, root]);
                g.op(mul(), &[x, part])
            }
            _ => g.op(div(), &[x, root]),
        };
        let unit = if matches!(form, Form::Narrow) { g.op(cast(DType::F16), &[unit]) } else { unit };
        let mut y = match form {
            Form::Llama | Form::Half => g.op(mul(), &[scale, unit]),
            _ => g.op(mul(), &[unit, scale]),
        };
        if matches!(form, Form::Centered) {
            y = g.op(add(), &[y, bias]);
        }
        g.output("y", y);
        let info = TensorInfo::new(dtype, Shape::new([2, 3, 8]).unwrap());
        specialize(&g.build().unwrap(), &[info], &Default::default()).unwrap().plan().unwrap()
    }

    /// The output, computed node by node.
    fn run(flow: &Flow) -> Vec<f32> {
        let mut flow = flow.clone();
        let v = flow.inputs[0];
        let values: Vec<f32> = (0..48).map(|i| ((i * 37 + 11) % 29) as f32 * 0.1 - 1.0).collect();
        flow.values[v].constant = Some(match flow.values[v].info.dtype {
            DType::F16 => {
                let halves: Vec<half::f16> = values.into_iter().map(half::f16::from_f32).collect();
                Tensor::new([2, 3, 8], &halves).unwrap()
            }
            _ => Tensor::new([2, 3, 8], &values).unwrap(),
        });
        (0..flow.nodes.len()).for_each(|n| assert!(flow.fold(n).unwrap()));
        flow.values[flow.outputs[0].1].constant.as_ref().unwrap().to_f32s().unwrap()
    }

    #[test]
    fn every_way_to_write_it_is_one_operator_that_computes_the_same() {
        let forms = [
            (Form::Llama, "RMSNormalization", 2, 1e-5),
            (Form::Quotient, "RMSNormalization", 2, 1e-5),
            (Form::Centered, "LayerNormalization", 3, 1e-5),
            (Form::Unbiased, "LayerNormalization", 2, 1e-5),
            (Form::Narrow, "RMSNormalization", 2, 2e-3),
            (Form::Half, "RMSNormalization", 2, 4e-3),
        ];
        for (form, name, inputs, most) in forms {
            let apart = flow(form);
            let mut one = apart.clone();
            assert_eq!(recognize_norms(&mut one), 1, "{form:?}");
            let [node] = &one.nodes[..] else { panic!("{form:?}: {} nodes", one.nodes.len()) };
            assert_eq!((node.op.name(), node.inputs.len()), (name, inputs), "{form:?}");
            let Some(Structure::LayerNormalization { epsilon, .. }) = node.op.structure() else {
                panic!("{form:?}")
            };
            assert!((epsilon - EPSILON).abs() < 1e-3 * EPSILON, "{form:?}: {epsilon}");
            let (a, b) = (run(&apart), run(&one));
            assert!(
                a.iter().zip(&b).all(|(a, b)| (a - b).abs() <= most * (1.0 + b.abs())),
                "{form:?}: {a:?} {b:?}"
            );
        }
    }

    #[test]
    fn other_functions_are_left() {
        for form in [Form::Cube, Form::NoEpsilon] {
            assert_eq!(recognize_norms(&mut flow(form)), 0, "{form:?}");
        }
    }
}
