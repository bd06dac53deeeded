//! Nodes that compute the same of the same become one: exporters write the mask of attention once for each layer.

use std::collections::HashMap;

use crate::dtype::DType;
use crate::graph::StorageScope;
use crate::operator::Structure;
use crate::plan::flow::{Flow, ValueId};
use crate::plan::index::FlowIndex;

/// Bytes of the largest constants that are compared.
const SMALL: usize = 64;

/// Joins equal nodes; returns how many are gone.
pub(super) fn join_equal(flow: &mut Flow) -> usize {
    let index = FlowIndex::new(flow);
    let mut stands_for: Vec<ValueId> = (0..flow.values.len()).collect();
    let mut constants: HashMap<(DType, Vec<usize>, &[u8]), ValueId> = HashMap::new();
    for (v, value) in flow.values.iter().enumerate() {
        // The bytes of a parameter that is kept in the layout of a kernel would be made anew.
        let small = value.constant.as_ref().filter(|_| value.info.bytes() <= SMALL);
        if let Some(constant) = small.filter(|_| value.scope == StorageScope::default()) {
            let key = (value.info.dtype, value.info.shape.to_vec(), constant.bytes());
            stands_for[v] = *constants.entry(key).or_insert(v);
        }
    }
    let mut known: HashMap<(Option<u32>, String, Vec<Option<ValueId>>), ValueId> = HashMap::new();
    let mut keep = vec![true; flow.nodes.len()];
    for (n, keep) in keep.iter_mut().enumerate() {
        let Some(y) = joinable(flow, &index, n) else { continue };
        let node = &flow.nodes[n];
        let inputs = node.inputs.iter().map(|v| v.map(|v| stands_for[v])).collect();
        // What an operator prints tells all of its attributes.
        let first = *known.entry((node.device, format!("{:?}", node.op), inputs)).or_insert(y);
        let same = flow.values[first].info == flow.values[y].info;
        if first != y && same && !index.is_output(y) {
            stands_for[y] = first;
            *keep = false;
        }
    }
    let inputs = flow.nodes.iter_mut().flat_map(|node| node.inputs.iter_mut().flatten());
    inputs.for_each(|v| *v = stands_for[*v]);
    flow.retain(&keep)
}

/// The only output of node `n`, where its inputs decide it.
fn joinable(flow: &Flow, index: &FlowIndex, n: usize) -> Option<ValueId> {
    let node = &flow.nodes[n];
    let &[y] = &node.outputs[..] else { return None };
    let op = node.op.as_ref();
    let known = !op.varies() && op.control().is_none() && op.structure() != Some(Structure::Custom);
    let plain = flow.values[y].scope == StorageScope::default();
    (known && plain && !index.is_ordered(n)).then_some(y)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::{GraphBuilder, Tensor, TensorInfo};
    use crate::ops::{self, Function};
    use crate::plan::specialize;
    use crate::shape::Shape;

    #[test]
    fn equal_nodes_become_one_and_outputs_stay() {
        let mut g = GraphBuilder::new("g");
        let x = g.input("x", DType::F32, [2.into(), 3.into()]);
        let twos = ["a", "b", "c"].map(|name| g.constant(name, Tensor::scalar(2f32)));
        let three = g.constant("d", Tensor::scalar(3f32));
        let [first, second, shown] = twos.map(|two| {
            let y = g.op(ops::mul(), &[x, two]);
            g.op(ops::unary(Function::Relu), &[y])
        });
        let other = g.op(ops::mul(), &[x, three]);
        let sum = g.op(ops::add(), &[first, second]);
        let y = g.op(ops::add(), &[sum, other]);
        g.output("y", y);
        g.output("shown", shown);
        let info = TensorInfo::new(DType::F32, Shape::new([2, 3]).unwrap());
        let mut flow = specialize(&g.build().unwrap(), &[info], &Default::default()).unwrap().plan().unwrap();
        assert_eq!(join_equal(&mut flow), 3);
        let left: Vec<&str> = flow.nodes.iter().map(|n| n.op.name()).collect();
        assert_eq!(left, ["Mul", "Relu", "Relu", "Mul", "Add", "Add"]);
        let sum = &flow.nodes[4];
        assert_eq!(sum.inputs[0], sum.inputs[1]);
        let shown = flow.outputs.iter().find(|(name, _)| name == "shown").unwrap().1;
        assert_eq!(flow.nodes[2].outputs, [shown]);
    }
}
