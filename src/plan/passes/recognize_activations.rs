//! Functions that a graph decomposes into simple operators become one operator each ([`whole_function`]).

use std::collections::HashMap;
use std::sync::Arc;

use crate::dtype::DType;
use crate::expr::{ExprId, Indexing, PointwiseDesc};
use crate::ops::pointwise::{Pointwise, may_end_function, whole_function};
use crate::plan::flow::{Flow, ValueId};
use crate::plan::index::FlowIndex;

/// Operators of the longest decomposition.
const LONGEST: usize = 9;
/// Consecutive operators that the search looks through.
const DEEPEST: usize = 2 * LONGEST;

/// Replaces decomposed functions; returns how many.
pub(crate) fn recognize_activations(flow: &mut Flow) -> usize {
    let index = FlowIndex::new(flow);
    let mut found = 0;
    for n in 0..flow.nodes.len() {
        if !may_end_function(flow.nodes[n].op.as_ref()) {
            continue;
        }
        let search = Search { flow, index: &index, last: n };
        let function = search.candidates().into_iter().find_map(|x| Some((search.function(x)?, x)));
        if let Some((function, x)) = function {
            let node = &mut flow.nodes[n];
            node.op = Arc::new(function);
            node.inputs = vec![Some(x)];
            found += 1;
        }
    }
    if found > 0 {
        flow.drop_dead();
    }
    found
}

/// The search for a function whose last node is `last`.
struct Search<'a> {
    flow: &'a Flow,
    index: &'a FlowIndex,
    last: usize,
}

impl Search<'_> {
    /// Whether the value can be part of the function: of its shape, and no constant.
    fn fits(&self, v: ValueId) -> bool {
        let output = &self.flow.values[self.flow.nodes[self.last].outputs[0]].info;
        let value = &self.flow.values[v];
        value.info == *output && matches!(output.dtype, DType::F32 | DType::F16) && value.constant.is_none()
    }

    /// Values that may be the function's argument, the nearest first.
    fn candidates(&self) -> Vec<ValueId> {
        let mut found: Vec<ValueId> = Vec::new();
        let mut nodes = vec![self.last];
        let mut next = 0;
        while let Some(&n) = nodes.get(next) {
            next += 1;
            for &v in self.flow.nodes[n].inputs.iter().flatten() {
                if self.fits(v) && !found.contains(&v) {
                    found.push(v);
                    nodes.extend(
                        self.index.producer(v).filter(|p| nodes.len() < LONGEST && !nodes.contains(p)),
                    );
                }
            }
        }
        found
    }

    /// The function of `x`, if there is one.
    fn function(&self, x: ValueId) -> Option<Pointwise> {
        let mut desc = PointwiseDesc::new([Indexing::Full]);
        let mut known = HashMap::from([(x, desc.input(0).ok()?)]);
        let y = self.expr((self.last, 0), &mut desc, &mut known)?;
        desc.output(y).ok()?;
        whole_function(&desc, self.flow.values[x].info.dtype)
    }

    /// The value of node `n`, which is `depth` nodes before the last one.
    fn expr(
        &self,
        (n, depth): (usize, usize),
        desc: &mut PointwiseDesc,
        known: &mut HashMap<ValueId, ExprId>,
    ) -> Option<ExprId> {
        let node = &self.flow.nodes[n];
        let &[out] = &node.outputs[..] else { return None };
        if known.len() > LONGEST || depth > DEEPEST || node.device != self.flow.nodes[self.last].device {
            return None;
        }
        let mut args = Vec::with_capacity(node.inputs.len());
        for v in &node.inputs {
            let constant = v.and_then(|v| self.flow.values[v].constant.as_ref());
            args.push(match (v, constant) {
                (None, _) => desc.constant(0.0).ok()?,
                (Some(v), Some(_)) => desc.constant(self.flow.number(*v)?).ok()?,
                (Some(v), None) => match known.get(v) {
                    Some(expr) => *expr,
                    None if self.fits(*v) => self.expr((self.index.producer(*v)?, depth + 1), desc, known)?,
                    None => return None,
                },
            });
        }
        let expr = node.op.pointwise_expr(&self.flow.cx(n), desc, &args)?;
        known.insert(out, expr);
        Some(expr)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::{GraphBuilder, Tensor, TensorInfo};
    use crate::ops::{self, BinaryFunction, Function};
    use crate::plan::specialize;
    use crate::shape::Shape;

    #[test]
    fn a_gated_value_is_one_operator() {
        let mut g = GraphBuilder::new("g");
        let x = g.input("x", DType::F32, [4.into(), 5.into()]);
        let a = g.op(ops::unary(Function::Softplus), &[x]);
        let gate = g.op(ops::unary(Function::Sigmoid), &[a]);
        let y = g.op(ops::binary(BinaryFunction::Mul), &[gate, a]);
        // The argument is the output of another pointwise operator.
        let six = g.constant("six", Tensor::scalar(6f32));
        let by = g.op(ops::binary(BinaryFunction::Mul), &[y, six]);
        let gate = g.op(ops::unary(Function::Sigmoid), &[by]);
        let z = g.op(ops::binary(BinaryFunction::Mul), &[by, gate]);
        g.output("z", z);
        let info = TensorInfo::new(DType::F32, Shape::new([4, 5]).unwrap());
        let mut flow = specialize(&g.build().unwrap(), &[info], &Default::default()).unwrap().plan().unwrap();
        assert_eq!(recognize_activations(&mut flow), 2);
        let names: Vec<&str> = flow.nodes.iter().map(|n| n.op.name()).collect();
        assert_eq!(names, ["Softplus", "Swish", "Mul", "Swish"]);
    }

    /// Constants of `float16` are farther from what they stand for.
    #[test]
    fn functions_of_float16_are_found() {
        let of = |root: f32| {
            let mut g = GraphBuilder::new("g");
            let x = g.input("x", DType::F16, [4.into(), 5.into()]);
            let number = |g: &mut GraphBuilder, name: &str, n: f32| {
                g.constant(name, Tensor::scalar(half::f16::from_f32(n)))
            };
            let root = number(&mut g, "root", root);
            let (one, half) = (number(&mut g, "one", 1.0), number(&mut g, "half", 0.5));
            let scaled = g.op(ops::div(), &[x, root]);
            let erf = g.op(ops::unary(Function::Erf), &[scaled]);
            let gate = g.op(ops::add(), &[erf, one]);
            let product = g.op(ops::mul(), &[x, gate]);
            let y = g.op(ops::mul(), &[product, half]);
            g.output("y", y);
            let info = TensorInfo::new(DType::F16, Shape::new([4, 5]).unwrap());
            let flow = specialize(&g.build().unwrap(), &[info], &Default::default());
            let mut flow = flow.unwrap().plan().unwrap();
            recognize_activations(&mut flow)
        };
        assert_eq!(of(std::f32::consts::SQRT_2), 1);
        assert_eq!(of(1.41), 0);
    }

    /// The search depth before a product is bounded.
    #[test]
    fn very_many_gates() {
        const N: usize = 20_000;
        let mut g = GraphBuilder::new("g");
        let mut x = g.input("x", DType::F32, [4.into(), 5.into()]);
        for _ in 0..N {
            let gate = g.op(ops::unary(Function::Sigmoid), &[x]);
            x = g.op(ops::binary(BinaryFunction::Mul), &[gate, x]);
        }
        g.output("y", x);
        let info = TensorInfo::new(DType::F32, Shape::new([4, 5]).unwrap());
        let mut flow = specialize(&g.build().unwrap(), &[info], &Default::default()).unwrap().plan().unwrap();
        assert_eq!(recognize_activations(&mut flow), N);
        assert_eq!(flow.nodes.len(), N);
    }

    #[test]
    fn gates_of_other_values_are_left() {
        let mut g = GraphBuilder::new("g");
        let x = g.input("x", DType::F32, [4.into(), 5.into()]);
        let w = g.input("w", DType::F32, [5.into()]);
        let gate = g.op(ops::unary(Function::Sigmoid), &[w]);
        let y = g.op(ops::binary(BinaryFunction::Mul), &[x, gate]);
        g.output("y", y);
        let infos = [[4, 5].as_slice(), &[5]]
            .map(|dims| TensorInfo::new(DType::F32, Shape::new(dims.to_vec()).unwrap()));
        let mut flow = specialize(&g.build().unwrap(), &infos, &Default::default()).unwrap().plan().unwrap();
        assert_eq!(recognize_activations(&mut flow), 0);
    }
}
