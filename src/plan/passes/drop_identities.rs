//! Nodes that give their input unchanged (Identity, a conversion to the type that is there, a reshape to the shape that is
//! there) are dropped: other passes look for patterns without them.

use crate::graph::StorageScope;
use crate::plan::flow::{Flow, ValueId};
use crate::plan::index::FlowIndex;

/// Drops nodes whose output is their input; returns how many. Outputs of the graph stay.
pub(super) fn drop_identities(flow: &mut Flow) -> usize {
    let index = FlowIndex::new(flow);
    let mut stands_for: Vec<ValueId> = (0..flow.values.len()).collect();
    let mut keep = vec![true; flow.nodes.len()];
    for (n, keep) in keep.iter_mut().enumerate() {
        if let Some((x, y)) = identity(flow, &index, n) {
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
    let x = node.inputs.get(node.op.alias(&flow.cx(n))?).copied().flatten()?;
    let values = [x, y].map(|v| &flow.values[v]);
    let plain = values.iter().all(|value| value.scope == StorageScope::default());
    let same = values[0].info == values[1].info;
    (plain && same && !index.is_output(y) && !index.is_ordered(n)).then_some((x, y))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::dtype::DType;
    use crate::graph::{GraphBuilder, TensorInfo};
    use crate::operator::Operator;
    use crate::ops::pointwise::Identity;
    use crate::ops::shape_ops::Reshape;
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
}
