//! Nodes that give their input unchanged (Identity, a conversion to the type that is there, a reshape to the shape that is
//! there, a product with one) are dropped: other passes look for patterns without them. So are those that repeat elements for
//! operators that broadcast.

use crate::graph::{StorageScope, Tensor};
use crate::operator::{Elementwise, Structure};
use crate::plan::flow::{Flow, ValueId};
use crate::plan::index::FlowIndex;
use crate::shape::Shape;

/// Drops nodes whose readers can read the input in place of the output; returns how many. Outputs of the graph stay.
pub(super) fn drop_identities(flow: &mut Flow) -> usize {
    let index = FlowIndex::new(flow);
    let mut stands_for: Vec<ValueId> = (0..flow.values.len()).collect();
    let mut keep = vec![true; flow.nodes.len()];
    for (n, keep) in keep.iter_mut().enumerate() {
        let found = identity(flow, &index, n).or_else(|| repeated(flow, &index, n, &stands_for));
        if let Some((x, y)) = found {
            // Producers come before users: what stands for `x` is known.
            stands_for[y] = stands_for[x];
            *keep = false;
        }
    }
    let inputs = flow.nodes.iter_mut().flat_map(|node| node.inputs.iter_mut().flatten());
    inputs.for_each(|v| *v = stands_for[*v]);
    flow.retain(&keep)
}

/// The input and the output of node `n`, where they are one and no one asks for the output.
fn identity(flow: &Flow, index: &FlowIndex, n: usize) -> Option<(ValueId, ValueId)> {
    let node = &flow.nodes[n];
    let &[y] = &node.outputs[..] else { return None };
    let input = node.op.alias(&flow.cx(n)).or_else(|| of_one(flow, n))?;
    let x = node.inputs.get(input).copied().flatten()?;
    let same = flow.values[x].info == flow.values[y].info;
    (same && is_free(flow, index, n, [x, y])).then_some((x, y))
}

/// Whether values `of`, the input and the output of node `n`, may be one.
fn is_free(flow: &Flow, index: &FlowIndex, n: usize, of: [ValueId; 2]) -> bool {
    let plain = of.iter().all(|v| flow.values[*v].scope == StorageScope::default());
    plain && !index.is_output(of[1]) && !index.is_ordered(n)
}

/// The input that node `n` multiplies with one or divides by it.
fn of_one(flow: &Flow, n: usize) -> Option<usize> {
    let node = &flow.nodes[n];
    let Structure::Elementwise(function) = node.op.structure()? else { return None };
    let is_one = |input: usize| {
        let constant: Option<&Tensor> =
            flow.values[node.inputs.get(input).copied().flatten()?].constant.as_ref();
        let constant = constant.filter(|c| c.shape().elements() == 1 && c.dtype().is_float())?;
        (constant.to_f32s().ok()?[..] == [1.0]).then_some(1 - input)
    };
    match (function, node.inputs.len()) {
        (Elementwise::Mul, 2) => is_one(1).or_else(|| is_one(0)),
        (Elementwise::Div, 2) => is_one(1),
        _ => None,
    }
}

/// The input and the output of node `n`, which repeats elements for operators alone that give the same without it. Of other
/// values `stands_for` is known as far as nodes before `n` make them.
fn repeated(flow: &Flow, index: &FlowIndex, n: usize, stands_for: &[ValueId]) -> Option<(ValueId, ValueId)> {
    let node = &flow.nodes[n];
    let (Some(Structure::Expand), &[y]) = (node.op.structure(), &node.outputs[..]) else { return None };
    let x = node.inputs.first().copied().flatten()?;
    // A constant is repeated once, before all runs.
    let free = is_free(flow, index, n, [x, y]) && flow.values[x].constant.is_none();
    let broadcasts = |&user: &usize| {
        let user = &flow.nodes[user];
        let by_place = matches!(user.op.structure(), Some(Structure::Elementwise(_) | Structure::Select));
        let shape = |v: ValueId| &flow.values[if v == y { x } else { stands_for[v] }].info.shape;
        let all =
            user.inputs.iter().flatten().try_fold(Shape::default(), |all, &v| all.broadcast(shape(v)).ok());
        by_place
            && user.device == node.device
            && all.as_ref() == Some(&flow.values[user.outputs[0]].info.shape)
    };
    let users = index.users(y);
    (free && !users.is_empty() && users.iter().all(broadcasts)).then_some((x, y))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::dtype::DType;
    use crate::graph::{GraphBuilder, TensorInfo};
    use crate::operator::Operator;
    use crate::ops::pointwise::Identity;
    use crate::ops::shape_ops::{Expand, Reshape};
    use crate::ops::{self, Function};
    use crate::plan::specialize;
    use crate::shape::Shape;

    #[test]
    fn what_changes_nothing_goes_and_outputs_stay() {
        let mut g = GraphBuilder::new("g");
        let x = g.input("x", DType::F32, [2.into(), 3.into()]);
        let same = g.op(Arc::new(Identity) as Arc<dyn Operator>, &[x]);
        let cast = g.op(ops::cast(DType::F32), &[same]);
        let reshape = |fixed: [i64; 2]| Reshape { allow_zero: false, fixed: Some(fixed.to_vec()) };
        let shaped = g.op(Arc::new(reshape([2, 3])) as Arc<dyn Operator>, &[cast]);
        let turned = g.op(Arc::new(reshape([3, 2])) as Arc<dyn Operator>, &[shaped]);
        let y = g.op(ops::unary(Function::Relu), &[turned]);
        let z = g.op(Arc::new(Identity) as Arc<dyn Operator>, &[y]);
        g.output("y", y);
        g.output("z", z);
        let info = TensorInfo::new(DType::F32, Shape::new([2, 3]).unwrap());
        let mut flow = specialize(&g.build().unwrap(), &[info], &Default::default()).unwrap().plan().unwrap();
        assert_eq!(drop_identities(&mut flow), 3);
        let left: Vec<&str> = flow.nodes.iter().map(|n| n.op.name()).collect();
        assert_eq!(left, ["Reshape", "Relu", "Identity"]);
        assert_eq!(flow.nodes[0].inputs, [Some(flow.inputs[0])]);
    }

    /// What is normalized by a root, as `x / norm.expand_as(x)`, and results divided by one.
    #[test]
    fn what_is_repeated_for_operators_that_broadcast_goes() {
        let mut g = GraphBuilder::new("g");
        let x = g.input("x", DType::F32, [2.into(), 3.into()]);
        let norm = g.input("norm", DType::F32, [2.into(), 1.into()]);
        let sizes = g.constant("sizes", Tensor::new([2], &[2i64, 3]).unwrap());
        let one = g.constant("one", Tensor::scalar(1f32));
        let expand = |g: &mut GraphBuilder, v| g.op(Arc::new(Expand) as Arc<dyn Operator>, &[v, sizes]);
        let root = expand(&mut g, norm);
        let unit = g.op(ops::div(), &[x, root]);
        let same = g.op(ops::div(), &[unit, one]);
        let same = g.op(ops::mul(), &[one, same]);
        let y = g.op(ops::unary(Function::Relu), &[same]);
        // Without these the results were smaller.
        let both = [expand(&mut g, norm), expand(&mut g, norm)];
        let z = g.op(ops::add(), &both);
        let shown = expand(&mut g, norm);
        let inverse = g.op(ops::div(), &[one, x]);
        for (name, v) in [("y", y), ("z", z), ("shown", shown), ("inverse", inverse)] {
            g.output(name, v);
        }
        let infos = [[2, 3], [2, 1]].map(|dims| TensorInfo::new(DType::F32, Shape::new(dims).unwrap()));
        let mut flow = specialize(&g.build().unwrap(), &infos, &Default::default()).unwrap().plan().unwrap();
        assert_eq!(drop_identities(&mut flow), 4);
        let left: Vec<&str> = flow.nodes.iter().map(|n| n.op.name()).collect();
        assert_eq!(left, ["Div", "Relu", "Expand", "Add", "Expand", "Div"]);
    }
}
