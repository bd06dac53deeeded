//! Attention takes in the transposes that put heads in front of rows, and the one that puts them back.

use std::sync::Arc;

use crate::graph::StorageScope;
use crate::ops::attention::Attention;
use crate::ops::movement::Transpose;
use crate::plan::flow::{Flow, FlowNode, ValueId};
use crate::plan::index::FlowIndex;

/// `[batch, length, heads, size]` to `[batch, heads, length, size]`, and back.
const HEADS: [i64; 4] = [0, 2, 1, 3];

/// Lets attention read and write heads where they lie; how many transposes went.
pub(super) fn fold_head_transposes(flow: &mut Flow) -> usize {
    if !flow.nodes.iter().any(|node| attention(node).is_some()) {
        return 0;
    }
    let index = FlowIndex::new(flow);
    let before = flow.nodes.len();
    for n in 0..flow.nodes.len() {
        let Some(mut op) = attention(&flow.nodes[n]).cloned() else { continue };
        for i in 0..3 {
            let producer = flow.nodes[n].inputs[i].and_then(|v| index.producer(v));
            let source = producer.and_then(|t| turned(flow, t, n));
            if let Some(source) = source.filter(|_| !op.turned[i]) {
                op.turned[i] = true;
                flow.nodes[n].inputs[i] = Some(source);
            }
        }
        let y = flow.nodes[n].outputs[0];
        if let Some(t) = index.only_user(y)
            && !op.turned[3]
            && !index.is_awaited(t)
            && flow.nodes[t].control_deps.is_empty()
            && turned(flow, t, n) == Some(y)
        {
            op.turned[3] = true;
            // Nothing reads what the transpose gives now.
            let to = std::mem::replace(&mut flow.nodes[t].outputs[0], y);
            flow.nodes[t].inputs = vec![flow.nodes[n].inputs[0]];
            flow.nodes[n].outputs[0] = to;
        }
        flow.nodes[n].op = Arc::new(op);
    }
    flow.drop_dead();
    before - flow.nodes.len()
}

/// Attention over four dimensions.
fn attention(node: &FlowNode) -> Option<&Attention> {
    node.op.downcast_ref::<Attention>().filter(|op| op.heads.is_none())
}

/// What node `t` transposes, if it does nothing but move heads, where node `n` runs, in plain memory.
fn turned(flow: &Flow, t: usize, n: usize) -> Option<ValueId> {
    let node = &flow.nodes[t];
    let perm = node.op.downcast_ref::<Transpose>()?.perm.as_deref()?;
    let (source, result) = (node.inputs.first().copied().flatten()?, *node.outputs.first()?);
    let plain = [source, result].iter().all(|&v| flow.values[v].scope == StorageScope::default());
    (perm == HEADS && plain && node.device == flow.nodes[n].device).then_some(source)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dtype::DType;
    use crate::graph::{GraphBuilder, Tensor, TensorInfo};
    use crate::ops::Operator;
    use crate::plan::specialize;
    use crate::shape::Shape;

    const SHAPES: [[usize; 4]; 3] = [[2, 5, 3, 8], [2, 7, 3, 8], [2, 7, 3, 6]];

    fn turn() -> Arc<dyn Operator> {
        Arc::new(Transpose { perm: Some(HEADS.to_vec()) })
    }

    /// Attention of turned heads; with `shown` also what it gives before its own turn is an output.
    fn flow(shown: bool) -> Flow {
        let mut g = GraphBuilder::new("g");
        let inputs = ["q", "k", "v"].into_iter().zip(SHAPES);
        let ids: Vec<_> = inputs.map(|(n, s)| g.input(n, DType::F32, s.map(Into::into))).collect();
        let heads: Vec<_> = ids.iter().map(|&v| g.op(turn(), &[v])).collect();
        let a = g.op(Arc::new(Attention::default()) as Arc<dyn Operator>, &heads);
        let y = g.op(turn(), &[a]);
        g.output("y", y);
        if shown {
            g.output("a", a);
        }
        let infos = SHAPES.map(|s| TensorInfo::new(DType::F32, Shape::new(s).unwrap()));
        specialize(&g.build().unwrap(), &infos, &Default::default()).unwrap().plan().unwrap()
    }

    fn run(mut flow: Flow) -> Vec<f32> {
        for (v, shape) in flow.inputs.clone().into_iter().zip(SHAPES) {
            let values =
                (0..shape.iter().product::<usize>()).map(|i| ((i * 37 + 11) % 29) as f32 * 0.1 - 1.4);
            flow.values[v].constant = Some(Tensor::new(shape, &values.collect::<Vec<_>>()).unwrap());
        }
        (0..flow.nodes.len()).for_each(|n| assert!(flow.fold(n).unwrap()));
        flow.values[flow.outputs[0].1].constant.as_ref().unwrap().to_f32s().unwrap()
    }

    #[test]
    fn transposes_of_heads_go_into_attention() {
        let apart = flow(false);
        let mut one = apart.clone();
        assert_eq!(fold_head_transposes(&mut one), 4);
        assert_eq!(attention(&one.nodes[0]).unwrap().turned, [true; 4]);
        assert_eq!(one.values[one.outputs[0].1].info.shape.dims(), [2, 5, 3, 6]);
        assert_eq!(run(one), run(apart));
    }

    #[test]
    fn what_others_read_stays() {
        let apart = flow(true);
        let mut less = apart.clone();
        assert_eq!(fold_head_transposes(&mut less), 3);
        let names: Vec<&str> = less.nodes.iter().map(|n| n.op.name()).collect();
        assert_eq!(names, ["Attention", "Transpose"]);
        assert_eq!(run(less), run(apart));
        let mut again = flow(false);
        assert_eq!((fold_head_transposes(&mut again), fold_head_transposes(&mut again)), (4, 0));
    }
}
