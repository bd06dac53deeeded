//! Attention absorbs the transposes that put heads before rows, and the one that puts them back.

use std::sync::Arc;

use crate::graph::StorageScope;
use crate::operator::{Operator, Port, Structure};
use crate::plan::flow::{Flow, ValueId};
use crate::plan::index::FlowIndex;

/// Lets attention read and write heads in their original layout; returns how many transposes were removed.
pub(super) fn fold_head_transposes(flow: &mut Flow) -> usize {
    if !flow.nodes.iter().any(|node| matches!(node.op.structure(), Some(Structure::Transpose { .. }))) {
        return 0;
    }
    let index = FlowIndex::new(flow);
    let before = flow.nodes.len();
    for n in 0..flow.nodes.len() {
        for i in 0..flow.nodes[n].inputs.len() {
            let Some(t) = flow.nodes[n].inputs[i].and_then(|v| index.producer(v)) else { continue };
            if let Some((source, op)) = taken_in(flow, t, n, Port::Input(i)) {
                flow.nodes[n].inputs[i] = Some(source);
                flow.nodes[n].op = op;
            }
        }
        let Some(&y) = flow.nodes[n].outputs.first() else { continue };
        if let Some(t) = index.only_user(y)
            && !index.is_awaited(t)
            && flow.nodes[t].control_deps.is_empty()
            && let Some((source, op)) = taken_in(flow, t, n, Port::Output(0))
            && source == y
        {
            // Nothing reads the output of the transpose now.
            let to = std::mem::replace(&mut flow.nodes[t].outputs[0], y);
            flow.nodes[t].inputs = vec![flow.nodes[n].inputs[0]];
            flow.nodes[n].outputs[0] = to;
            flow.nodes[n].op = op;
        }
    }
    flow.drop_dead();
    before - flow.nodes.len()
}

/// The input of transpose `t`, if it is on the device of node `n` and in plain memory, and the operator of node `n`
/// with the transpose absorbed at `port`.
fn taken_in(flow: &Flow, t: usize, n: usize, port: Port) -> Option<(ValueId, Arc<dyn Operator>)> {
    let node = &flow.nodes[t];
    let Structure::Transpose { perm: Some(perm) } = node.op.structure()? else { return None };
    let (source, result) = (node.inputs.first().copied().flatten()?, *node.outputs.first()?);
    let plain = [source, result].iter().all(|&v| flow.values[v].scope == StorageScope::default());
    (plain && node.device == flow.nodes[n].device).then_some(())?;
    Some((source, flow.nodes[n].op.with_transposed(port, perm)?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dtype::DType;
    use crate::graph::{GraphBuilder, Tensor, TensorInfo};
    use crate::ops::attention::Attention;
    use crate::ops::movement::Transpose;
    use crate::plan::specialize;
    use crate::shape::Shape;

    const SHAPES: [[usize; 4]; 3] = [[2, 5, 3, 8], [2, 7, 3, 8], [2, 7, 3, 6]];

    fn turn() -> Arc<dyn Operator> {
        Arc::new(Transpose { perm: Some(vec![0, 2, 1, 3]) })
    }

    /// Attention of transposed heads; with `shown` the value before the last transpose is an output too.
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
        assert_eq!(one.nodes[0].op.downcast_ref::<Attention>().unwrap().turned, [true; 4]);
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
