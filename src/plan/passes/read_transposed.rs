//! Products read a weight transposed, where a transposed copy of it would be a second one: that of an embedding that
//! is also the last product's weight.

use crate::graph::{Graph, NodeId, Origin, StorageScope, TensorId, WEIGHT_BYTES};
use crate::limits;
use crate::operator::{Port, Structure};
use crate::ops::control::with_graphs;
use crate::plan::index::FlowIndex;

/// Lets operators of `graph`, and of the graphs inside its nodes, absorb the transposes of weights that stay in memory
/// as they are; returns how many were absorbed.
pub(super) fn read_transposed(graph: &mut Graph) -> usize {
    let mut count = 0;
    for node in &mut graph.nodes {
        let mut inside = 0;
        let changed = with_graphs(node.op.as_ref(), &mut |inner| inside += read_transposed(inner));
        if let Some(op) = changed.filter(|_| inside > 0) {
            node.op = op;
            count += inside;
        }
    }
    if !graph.nodes.iter().any(|node| matches!(node.op.structure(), Some(Structure::Transpose { .. }))) {
        return count;
    }
    let mut index = FlowIndex::of_graph(graph);
    let mut gone = vec![false; graph.nodes.len()];
    // Weights are counted before any transpose of them goes.
    let stays: Vec<bool> =
        (0..graph.tensors.len()).map(|t| stays(graph, &index, TensorId(t as u32))).collect();
    for n in 0..graph.nodes.len() {
        for i in 0..graph.nodes[n].inputs.len() {
            let Some(result) = graph.nodes[n].inputs[i] else { continue };
            let Some(t) = index.producer(result.index()) else { continue };
            let Some(source) = transposed(graph, &index, t, n).filter(|s| stays[s.index()]) else { continue };
            let Some(op) = graph.nodes[n].op.with_transposed(Port::Input(i), &[1, 0]) else { continue };
            graph.nodes[n].inputs[i] = Some(source);
            graph.nodes[n].op = op;
            index.remove_user(result.index(), n);
            index.add_user(source.index(), n);
            gone[t] = index.is_unread(result.index());
            count += 1;
        }
    }
    if gone.contains(&true) {
        let unread: Vec<bool> = graph.tensors.iter().map(|t| is_of(&t.origin, &gone)).collect();
        for (n, node) in graph.nodes.iter_mut().enumerate().filter(|(n, _)| gone[*n]) {
            node.inputs.iter().flatten().for_each(|id| index.remove_user(id.index(), n));
            node.inputs.clear();
        }
        graph.prune(&gone, &unread);
    }
    count
}

fn is_of(origin: &Origin, gone: &[bool]) -> bool {
    matches!(origin, Origin::Node { node: NodeId(n), .. } if gone.get(*n as usize) == Some(&true))
}

/// Whether `id` is a weight that stays in memory as it is: something else reads it too, or its transpose is too large
/// to be computed once. What a graph inside a node captures may be such a weight.
fn stays(graph: &Graph, index: &FlowIndex, id: TensorId) -> bool {
    let decl = graph.tensor(id);
    let is_weight = match &decl.origin {
        Origin::Constant(t) => {
            let bytes = t.info().bytes();
            let shared = index.users(id.index()).len() > 1 || index.is_output(id.index());
            bytes >= WEIGHT_BYTES && (shared || bytes > limits::MAX_FOLDED_BYTES)
        }
        Origin::Input => {
            let own = graph.inputs.len().saturating_sub(graph.captured());
            graph.inputs.iter().skip(own).any(|input| *input == id)
        }
        _ => false,
    };
    is_weight && decl.scope == StorageScope::Buffer
}

/// The matrix that node `t` transposes for node `n` alone to be free to read it itself.
fn transposed(graph: &Graph, index: &FlowIndex, t: usize, n: usize) -> Option<TensorId> {
    let node = &graph.nodes[t];
    let Structure::Transpose { perm } = node.op.structure()? else { return None };
    let (source, result) =
        (node.inputs.first().copied().flatten()?, node.outputs.first().copied().flatten()?);
    let matrix = match (perm, &graph.tensor(source).origin) {
        (Some(perm), _) => perm == [1, 0],
        (None, Origin::Constant(t)) => t.shape().rank() == 2,
        (None, _) => false,
    };
    let plain = graph.tensor(result).scope == StorageScope::Buffer;
    let free = node.device.is_none() || node.device == graph.nodes[n].device;
    (matrix && plain && free && !index.is_ordered(t)).then_some(source)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::sync::Arc;

    use super::*;
    use crate::dtype::DType;
    use crate::graph::{GraphBuilder, Tensor, TensorInfo};
    use crate::ops::control::{Control, If};
    use crate::ops::index::Gather;
    use crate::ops::linalg::{Gemm, MatMul};
    use crate::ops::movement::Transpose;
    use crate::ops::{self, Operator};
    use crate::plan::specialize;
    use crate::shape::Shape;

    const VOCABULARY: usize = 96;
    const WIDTH: usize = 200;

    fn embedding() -> Tensor {
        let info = TensorInfo::new(DType::F32, Shape::new([VOCABULARY, WIDTH]).unwrap());
        Tensor::build_weight(info, |bytes| {
            let values: &mut [f32] = bytemuck::cast_slice_mut(bytes);
            values.iter_mut().enumerate().for_each(|(i, v)| *v = (i * 7919 % 1000) as f32 / 500.0 - 1.0);
            Ok::<(), ()>(())
        })
        .unwrap()
    }

    fn turn(perm: Option<Vec<i64>>) -> Arc<dyn Operator> {
        Arc::new(Transpose { perm })
    }

    fn product() -> Arc<dyn Operator> {
        Arc::new(MatMul::default())
    }

    /// A decoder of one embedding, which it gathers from and multiplies by; with `other` the transpose is read alone too.
    fn tied(weight: &Tensor, perm: Option<Vec<i64>>, last: Arc<dyn Operator>, other: bool) -> Graph {
        let mut g = GraphBuilder::new("g");
        let ids = g.input("ids", DType::I64, ["n".into()]);
        let e = g.constant("e", weight.clone());
        let x = g.op(Arc::new(Gather { axis: 0 }) as Arc<dyn Operator>, &[e, ids]);
        let t = g.op(turn(perm), &[e]);
        let y = g.op(last, &[x, t]);
        g.output("y", y);
        if other {
            let z = g.op(ops::add(), &[t, t]);
            g.output("z", z);
        }
        g.build().unwrap()
    }

    fn run(graph: &Graph) -> Vec<f32> {
        let ids = Tensor::new([3], &[5i64, 0, 95]).unwrap();
        let infos = [ids.info().clone()];
        let known = BTreeMap::from([(0, ids)]);
        let flow = specialize(graph, &infos, &known).unwrap().plan().unwrap();
        flow.values[flow.outputs[0].1].constant.as_ref().unwrap().to_f32s().unwrap()
    }

    fn names(graph: &Graph) -> Vec<&'static str> {
        graph.nodes().iter().map(|n| n.op.name()).collect()
    }

    #[test]
    fn a_tied_embedding_is_read_by_columns_and_stays_one_copy() {
        let weight = embedding();
        for perm in [Some(vec![1, 0]), None] {
            for last in [product(), Arc::new(Gemm { alpha: 0.5, ..Gemm::default() }) as Arc<dyn Operator>] {
                let mut g = tied(&weight, perm.clone(), last, false);
                let want = run(&g);
                let gathered: usize = [5, 0, 95].len();
                assert_eq!(want.len(), gathered * VOCABULARY);
                assert_eq!(read_transposed(&mut g), 1);
                assert_eq!(names(&g)[0], "Gather");
                assert_eq!(g.nodes().len(), 2);
                let constants: Vec<_> = g.constants().map(|(_, t)| t.identity()).collect();
                assert_eq!(constants, [weight.identity()]);
                for (got, want) in run(&g).iter().zip(&want) {
                    assert!((got - want).abs() <= 1e-4, "{got} for {want}");
                }
                assert_eq!(read_transposed(&mut g), 0);
            }
        }
    }

    #[test]
    fn a_weight_that_only_the_transpose_reads_is_left_to_folding() {
        let mut g = GraphBuilder::new("g");
        let x = g.input("x", DType::F32, ["n".into(), WIDTH.into()]);
        let e = g.constant("e", embedding());
        let t = g.op(turn(Some(vec![1, 0])), &[e]);
        let y = g.op(product(), &[x, t]);
        g.output("y", y);
        let mut g = g.build().unwrap();
        assert_eq!((read_transposed(&mut g), names(&g)), (0, vec!["Transpose", "MatMul"]));
    }

    /// The left operand is not read so, and what others read of the transpose stays.
    #[test]
    fn what_others_read_stays() {
        let weight = embedding();
        let mut g = tied(&weight, Some(vec![1, 0]), product(), true);
        let want = run(&g);
        assert_eq!((read_transposed(&mut g), names(&g)), (1, vec!["Gather", "Transpose", "MatMul", "Add"]));
        assert_eq!(run(&g).len(), want.len());
        let mut b = GraphBuilder::new("g");
        let (x, e) = (b.input("x", DType::F32, [VOCABULARY.into(), 2.into()]), b.constant("e", weight));
        let t = b.op(turn(Some(vec![1, 0])), &[e]);
        let y = b.op(product(), &[t, x]);
        let z = b.op(ops::add(), &[e, e]);
        b.output("y", y);
        b.output("z", z);
        let mut g = b.build().unwrap();
        assert_eq!(read_transposed(&mut g), 0);
    }

    /// Both parts of a merged decoder multiply by the embedding of the graph around them.
    #[test]
    fn graphs_inside_nodes_read_what_they_capture_transposed() {
        let branch = || {
            let mut g = GraphBuilder::new("branch");
            let (x, e) = (g.captured_input("x"), g.captured_input("e"));
            let t = g.op(turn(Some(vec![1, 0])), &[e]);
            let y = g.op(product(), &[x, t]);
            g.output("y", y);
            Arc::new(g.build().unwrap())
        };
        let mut g = GraphBuilder::new("g");
        let condition = g.input("c", DType::Bool, []);
        let x = g.input("x", DType::F32, [2.into(), WIDTH.into()]);
        let e = g.constant("e", embedding());
        let op = Arc::new(If { then: branch(), other: branch() }) as Arc<dyn Operator>;
        let y = g.op(op, &[condition, x, e]);
        g.output("y", y);
        let mut g = g.build().unwrap();
        assert_eq!(read_transposed(&mut g), 2);
        let Some(Control::If { then, other }) = g.nodes()[0].op.control() else { panic!("an If") };
        assert_eq!([names(then), names(other)], [["MatMul"]; 2]);
    }
}
