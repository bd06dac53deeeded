//! Normalizations of groups of channels, which exporters write as a normalization of channels between two reshapes, then a
//! product and a sum with a number for each channel.

use std::sync::Arc;

use half::f16;

use crate::dtype::DType;
use crate::graph::{StorageScope, Tensor};
use crate::operator::{Activation, Elementwise, Structure};
use crate::ops::norm::{GroupNormalization, GroupScale};
use crate::plan::flow::{Flow, ValueId};
use crate::plan::index::FlowIndex;
use crate::shape::Shape;

/// The most groups whose scales are read.
const MOST_GROUPS: usize = 4096;

/// Replaces normalizations of groups; returns how many.
pub(super) fn recognize_groups(flow: &mut Flow) -> usize {
    let index = FlowIndex::new(flow);
    let search = Search { flow, index: &index };
    let found: Vec<Found> = (0..flow.nodes.len()).filter_map(|n| search.group(n)).collect();
    let count = found.len();
    for Found { last, x, op, scale, bias } in found {
        let name = flow.nodes[last].name.clone();
        let inputs =
            [(scale, "scale"), (bias, "bias")].map(|(t, of)| flow.add_constant(format!("{name}:{of}"), t));
        let node = &mut flow.nodes[last];
        node.op = Arc::new(op);
        node.inputs = [x].into_iter().chain(inputs).map(Some).collect();
    }
    if count > 0 {
        flow.drop_dead();
    }
    count
}

/// A normalization of `x` that node `last` ends.
struct Found {
    last: usize,
    x: ValueId,
    op: GroupNormalization,
    scale: Tensor,
    bias: Tensor,
}

struct Search<'a> {
    flow: &'a Flow,
    index: &'a FlowIndex,
}

impl Search<'_> {
    fn shape(&self, v: ValueId) -> &Shape {
        &self.flow.values[v].info.shape
    }

    /// The normalization whose statistics node `n` takes.
    fn group(&self, n: usize) -> Option<Found> {
        let node = &self.flow.nodes[n];
        let Structure::GroupNormalization { groups: None, epsilon, activation: Activation::None, .. } =
            node.op.structure()?
        else {
            return None;
        };
        let &[Some(rows), Some(scale), Some(bias)] = &node.inputs[..] else { return None };
        let x = self.reshaped(rows)?;
        let (&[images, channels, ..], &[n_rows, groups, ..]) =
            (self.shape(x).dims(), self.shape(rows).dims())
        else {
            return None;
        };
        let whole =
            images == n_rows && groups > 0 && channels.is_multiple_of(groups) && groups <= MOST_GROUPS;
        (whole && self.is_all(scale, 1.0) && self.is_all(bias, 0.0)).then_some(())?;
        let back = self.only_user(node.outputs[0])?;
        let unit = self.flow.nodes[back].outputs[0];
        let same = self.reshaped(unit)? == node.outputs[0] && self.shape(unit) == self.shape(x);
        same.then_some(())?;
        let (mut last, scale) = self.by_channel(unit, Elementwise::Mul)?;
        let product = self.flow.nodes[last].outputs[0];
        let bias = match self.by_channel(product, Elementwise::Add) {
            Some((sum, bias)) => {
                last = sum;
                bias
            }
            None => zeros(&scale)?,
        };
        let nodes = [n, back, self.index.producer(product)?, last];
        let one_place =
            nodes.iter().all(|&m| self.flow.nodes[m].device == node.device && !self.index.is_ordered(m));
        let scale_of = GroupScale::Channel;
        let op = GroupNormalization {
            groups: Some(groups),
            epsilon,
            scale: scale_of,
            activation: Activation::None,
        };
        one_place.then_some(Found { last, x, op, scale, bias })
    }

    /// What `v` has in another shape.
    fn reshaped(&self, v: ValueId) -> Option<ValueId> {
        self.flow.reshaped(self.index.producer(v)?, v)
    }

    /// The only reader of `v`, which lies in plain memory.
    fn only_user(&self, v: ValueId) -> Option<usize> {
        let plain = self.flow.values[v].scope == StorageScope::default();
        self.index.only_user(v).filter(|_| plain)
    }

    /// Whether every element of the constant `v` is `number`.
    fn is_all(&self, v: ValueId, number: f32) -> bool {
        let constant = self.flow.values[v].constant.as_ref();
        let numbers = constant.filter(|c| c.shape().elements() <= MOST_GROUPS).and_then(|c| c.to_f32s().ok());
        numbers.is_some_and(|numbers| numbers.iter().all(|found| *found == number))
    }

    /// The node that does `function` with `v`, which it alone reads, and a constant number for each channel, and these.
    fn by_channel(&self, v: ValueId, function: Elementwise) -> Option<(usize, Tensor)> {
        let n = self.only_user(v)?;
        let node = &self.flow.nodes[n];
        (node.op.structure()? == Structure::Elementwise(function)).then_some(())?;
        let other = match node.inputs[..] {
            [Some(a), Some(b)] if a == v => b,
            [Some(a), Some(b)] if b == v => a,
            _ => return None,
        };
        let (shape, constant) = (self.shape(v), self.flow.values[other].constant.as_ref()?);
        let channels = shape.dims()[1];
        let own = constant.shape().dims();
        let axis = (1 + own.len()).checked_sub(shape.rank())?;
        let fits = own.len() <= shape.rank()
            && own.get(axis) == Some(&channels)
            && constant.shape().elements() == channels
            && self.shape(node.outputs[0]) == shape
            && constant.dtype() == self.flow.values[v].info.dtype;
        let by = Shape::new([channels]).ok().filter(|_| fits)?;
        Some((n, constant.reshaped(by).ok()?))
    }
}

/// Zeros of the type and shape of `like`.
fn zeros(like: &Tensor) -> Option<Tensor> {
    let len = like.shape().elements();
    match like.dtype() {
        DType::F32 => Tensor::new([len], &vec![0f32; len]).ok(),
        DType::F16 => Tensor::new([len], &vec![f16::ZERO; len]).ok(),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::expr::Function;
    use crate::graph::{GraphBuilder, TensorInfo};
    use crate::operator::Operator;
    use crate::ops::shape_ops::Reshape;
    use crate::ops::{self, add, mul};
    use crate::plan::passes::{absorb, recognize_activations};
    use crate::plan::{Precision, specialize};

    const DIMS: [usize; 4] = [2, 6, 4, 5];

    /// What differs from the normalization that exporters write.
    #[derive(Clone, Copy, Debug, PartialEq)]
    enum Form {
        Exported,
        /// Without a bias.
        Unbiased,
        /// Followed by Swish.
        Gated,
        /// Groups have a scale of their own.
        Scaled,
        /// The scale is one of rows.
        ByRow,
        /// There is neither a scale nor a bias.
        Bare,
    }

    fn numbers(len: usize, from: f32) -> Vec<f32> {
        (0..len).map(|i| from + ((i * 37 + 11) % 29) as f32 * 0.1).collect()
    }

    fn flow(form: Form) -> Flow {
        let mut g = GraphBuilder::new("g");
        let x = g.input("x", DType::F32, DIMS.map(Into::into));
        let shaped = |g: &mut GraphBuilder, x, dims: &[i64]| {
            let op = Reshape { allow_zero: false, fixed: Some(dims.to_vec()) };
            g.op(Arc::new(op) as Arc<dyn Operator>, &[x])
        };
        let rows = shaped(&mut g, x, &[0, 3, -1]);
        let one = if form == Form::Scaled { 2f32 } else { 1.0 };
        let scale = g.constant("ones", Tensor::new([3], &[one; 3]).unwrap());
        let bias = g.constant("zeros", Tensor::new([3], &[0f32; 3]).unwrap());
        let op = Arc::new(GroupNormalization::instance(1e-3)) as Arc<dyn Operator>;
        let unit = g.op(op, &[rows, scale, bias]);
        let mut y = shaped(&mut g, unit, &DIMS.map(|d| d as i64));
        if form != Form::Bare {
            let dims = if form == Form::ByRow { [4, 1] } else { [6, 1] };
            let by: Vec<usize> = if form == Form::ByRow { dims.to_vec() } else { vec![6, 1, 1] };
            let scale = g.constant("scale", Tensor::new(by, &numbers(dims[0], 0.5)).unwrap());
            y = g.op(mul(), &[y, scale]);
        }
        if !matches!(form, Form::Bare | Form::Unbiased) {
            let bias = g.constant("bias", Tensor::new([1, 6, 1, 1], &numbers(6, -1.0)).unwrap());
            y = g.op(add(), &[bias, y]);
        }
        if form == Form::Gated {
            let gate = g.op(ops::unary(Function::Sigmoid), &[y]);
            y = g.op(mul(), &[y, gate]);
        }
        g.output("y", y);
        let info = TensorInfo::new(DType::F32, Shape::new(DIMS).unwrap());
        specialize(&g.build().unwrap(), &[info], &Default::default()).unwrap().plan().unwrap()
    }

    fn run(flow: &Flow) -> Vec<f32> {
        let mut flow = flow.clone();
        let v = flow.inputs[0];
        flow.values[v].constant = Some(Tensor::new(DIMS, &numbers(240, -1.0)).unwrap());
        (0..flow.nodes.len()).for_each(|n| assert!(flow.fold(n).unwrap()));
        flow.values[flow.outputs[0].1].constant.as_ref().unwrap().to_f32s().unwrap()
    }

    #[test]
    fn groups_of_channels_are_one_operator_that_computes_the_same() {
        for form in [Form::Exported, Form::Unbiased, Form::Gated] {
            let apart = flow(form);
            let mut one = apart.clone();
            recognize_activations(&mut one);
            assert_eq!(recognize_groups(&mut one), 1, "{form:?}");
            absorb(&mut one, Precision::F32).unwrap();
            let names: Vec<&str> = one.nodes.iter().map(|n| n.op.name()).collect();
            assert_eq!(names, ["GroupNormalization"], "{form:?}");
            let (a, b) = (run(&apart), run(&one));
            assert!(a.iter().zip(&b).all(|(a, b)| (a - b).abs() < 1e-5), "{form:?}: {a:?} {b:?}");
        }
    }

    #[test]
    fn others_are_left() {
        for form in [Form::Scaled, Form::ByRow, Form::Bare] {
            assert_eq!(recognize_groups(&mut flow(form)), 0, "{form:?}");
        }
    }
}
