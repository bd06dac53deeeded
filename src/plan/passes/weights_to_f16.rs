//! A graph that computes in `float16` keeps its weights only in `float16`.

use std::collections::HashMap;

use crate::dtype::DType;
use crate::graph::{Graph, Node, Origin, StorageScope, Tensor, TensorIdentity, TensorInfo, WEIGHT_BYTES};
use crate::ops::HalfRule;
use crate::ops::control::with_graphs;
use crate::ops::pointwise::cast::LARGEST;

/// Converts large `float32` constants of `graph`, and of the graphs inside its nodes, to `float16`, unless a user
/// needs `float32`; returns how many. Plans widen them again where a device has no `float16` kernel. Constants beyond
/// the range of `float16` stay unchanged, and so do other graphs that share them.
pub(super) fn weights_to_f16(graph: &mut Graph) -> usize {
    narrow_in(graph, &mut HashMap::new())
}

/// `made` holds the conversions of constants that several graphs share. Identities in it stay unique: every constant
/// it is looked up for exists before the first is released.
fn narrow_in(graph: &mut Graph, made: &mut HashMap<TensorIdentity, Option<Tensor>>) -> usize {
    let mut count = 0;
    let mut narrows = vec![true; graph.tensors.len()];
    for (_, id) in &graph.outputs {
        narrows[id.index()] = false;
    }
    for node in &mut graph.nodes {
        for (i, id) in node.inputs.iter().enumerate() {
            if let Some(id) = id {
                narrows[id.index()] &= takes_half(node, i);
            }
        }
        if let Some(op) = with_graphs(node.op.as_ref(), &mut |inner| count += narrow_in(inner, made)) {
            node.op = op;
        }
    }
    for (decl, narrows) in graph.tensors.iter_mut().zip(narrows) {
        let Origin::Constant(t) = &decl.origin else { continue };
        // The `float16` constant has pages of its own too.
        let large = t.dtype() == DType::F32 && t.info().bytes() >= 2 * WEIGHT_BYTES;
        if !narrows || !large || decl.scope != StorageScope::Buffer || t.narrowed().is_some() {
            continue;
        }
        let widened = made.entry(t.identity()).or_insert_with(|| in_range(t).map(Tensor::widened));
        if let Some(widened) = widened.as_ref().and_then(|w| w.reshaped(t.shape().clone()).ok()) {
            decl.origin = Origin::Constant(widened);
            count += 1;
        }
    }
    count
}

fn takes_half(node: &Node, input: usize) -> bool {
    let op = &node.op;
    op.half_rule() != HalfRule::Full && op.control().is_none() && !op.value_inputs().contains(&input)
}

/// `t` in `float16`, if no finite element is beyond the range.
fn in_range(t: &Tensor) -> Option<Tensor> {
    use half::slice::HalfFloatSliceExt;
    let source = t.unkept().ok()?;
    let values = source.as_slice::<f32>().ok()?;
    if values.iter().any(|v| v.is_finite() && v.abs() > LARGEST) {
        return None;
    }
    let half = Tensor::build_weight(TensorInfo::new(DType::F16, t.shape().clone()), |bytes| {
        let to = bytemuck::try_cast_slice_mut::<u8, half::f16>(bytes)?;
        to.convert_from_f32_slice(values);
        Ok::<(), bytemuck::PodCastError>(())
    });
    half.ok()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::graph::{GraphBuilder, TensorId};
    use crate::ops::control::{Control, If};
    use crate::ops::linalg::MatMul;
    use crate::ops::{self, Function, Operator};

    /// Successive products with each of `weights`, of `n` rows and columns.
    fn products(n: usize, weights: &[Tensor]) -> (GraphBuilder, TensorId) {
        let mut g = GraphBuilder::new("g");
        let mut y = g.input("x", DType::F32, [1.into(), n.into()]);
        for (i, w) in weights.iter().enumerate() {
            let w = g.constant(format!("w{i}"), w.clone());
            y = g.op(Arc::new(MatMul::default()) as Arc<dyn Operator>, &[y, w]);
        }
        (g, y)
    }

    fn weight(n: usize, largest: f32) -> Tensor {
        let values: Vec<f32> = (0..n * n).map(|i| i as f32 / (n * n - 1) as f32 * largest).collect();
        Tensor::new([n, n], &values).unwrap()
    }

    fn finish((mut g, y): (GraphBuilder, TensorId)) -> Graph {
        g.output("y", y);
        g.build().unwrap()
    }

    fn narrowed(graph: &Graph) -> Vec<bool> {
        graph.constants().map(|(_, t)| t.narrowed().is_some()).collect()
    }

    #[test]
    fn large_weights_are_kept_in_half_alone_where_their_range_allows() {
        let weights = [weight(128, 1.0), weight(128, 65536.0), weight(128, f32::INFINITY), weight(64, 1.0)];
        let mut g = finish(products(128, &weights[..3]));
        assert_eq!(weights_to_f16(&mut g), 2);
        assert_eq!(narrowed(&g), [true, false, true]);
        let first = g.constants().next().map(|(_, t)| t.clone()).unwrap();
        // A relative error of 2^-11 at most, and the spacing of the smallest numbers.
        for (got, want) in first.to_f32s().unwrap().iter().zip(weights[0].to_f32s().unwrap()) {
            assert!((got - want).abs() <= want / 2048.0 + 3e-8, "{got} for {want}");
        }
        // Another holder's tensor is unchanged.
        assert_eq!(weights[0].as_slice::<f32>().unwrap()[1], 1.0 / 16383.0);
        // A second pass changes nothing.
        assert_eq!(weights_to_f16(&mut g), 0);
        assert_eq!(first.identity(), g.constants().next().unwrap().1.identity());
        // Smaller constants would not fill their pages.
        let mut small = finish(products(64, &weights[3..]));
        assert_eq!(weights_to_f16(&mut small), 0);
        assert_eq!(narrowed(&small), [false]);
    }

    #[test]
    fn graphs_inside_nodes_share_what_they_have_in_common() {
        let w = weight(128, 1.0);
        let branch = || {
            let mut g = GraphBuilder::new("branch");
            let x = g.captured_input("x");
            let w = g.constant("w", w.clone());
            let y = g.op(Arc::new(MatMul::default()) as Arc<dyn Operator>, &[x, w]);
            g.output("y", y);
            Arc::new(g.build().unwrap())
        };
        let choice = If { then: branch(), other: branch() };
        let (mut g, y) = products(128, std::slice::from_ref(&w));
        let c = g.input("c", DType::Bool, []);
        let z = g.op(Arc::new(choice) as Arc<dyn Operator>, &[c, y]);
        let mut g = finish((g, z));
        let weak = w.downgrade();
        drop(w);
        assert_eq!(weights_to_f16(&mut g), 3);
        assert!(weak.upgrade().is_none());
        let Some(Control::If { then, other }) = g.nodes()[1].op.control() else { panic!("no choice") };
        let all: Vec<_> = [&g, then, other].iter().map(|g| g.constants().next().unwrap().1.clone()).collect();
        assert!(all.iter().all(|t| t.narrowed().is_some() && t.identity() == all[0].identity()));
    }

    #[test]
    fn readers_and_outputs_in_full_precision_keep_weights_as_they_are() {
        let w = weight(128, 1.0);
        let (mut g, y) = products(128, std::slice::from_ref(&w));
        let again = g.constant("again", w.clone());
        let e = g.op(ops::unary(Function::Exp), &[again]);
        g.output("e", e);
        let out = g.constant("out", w.clone());
        g.output("out", out);
        let mut g = finish((g, y));
        assert_eq!(weights_to_f16(&mut g), 1);
        assert_eq!(narrowed(&g), [true, false, false]);
    }
}
