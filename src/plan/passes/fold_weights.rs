//! Values that depend only on parameters are computed once, before any shape is known.
//!
//! A plan folds constants too, but the graph keeps the folded inputs, for the plans of other shapes. Here parameters
//! whose only user is folded leave the graph, and their memory is released where no one else holds them.

use std::collections::HashSet;

use super::GraphCx;
use crate::dtype::DType;
use crate::graph::{
    Graph, Node, NodeId, Origin, StorageScope, Tensor, TensorDecl, TensorId, TensorInfo, WEIGHT_BYTES,
    free_name,
};
use crate::limits;
use crate::operator::{AbsorbedInput, Fact, OpCx, Structure};
use crate::plan::PlanOptions;
use crate::plan::flow::evaluate;
use crate::plan::index::FlowIndex;
use crate::shape::Shape;

/// Maximum growth of a constant relative to its inputs: 4-bit integers become `float32`.
const MOST_GROWTH: usize = 8;
/// Operations per byte above which a constant is left to the plan.
const MOST_WORK: u64 = 64;

/// Folds nodes whose inputs are large parameters; returns how many.
pub(super) fn fold_weights(graph: &mut Graph, cx: &GraphCx<'_>) -> usize {
    fold(graph, cx, |folder, n| folder.compute(n))
}

/// Lets convolutions with large weights absorb the normalization after them; returns how many.
pub(super) fn fold_normalizations(graph: &mut Graph, cx: &GraphCx<'_>) -> usize {
    fold(graph, cx, |folder, n| folder.normalize(n))
}

/// Calls `each` on every node and removes what is unused afterwards; returns how many nodes were folded.
fn fold(graph: &mut Graph, cx: &GraphCx<'_>, each: impl Fn(&mut Folder<'_>, usize) -> Option<()>) -> usize {
    if graph.constants().all(|(_, t)| t.info().bytes() < WEIGHT_BYTES) {
        return 0;
    }
    let mut folder = Folder::new(graph, cx.options);
    let folded = (0..folder.graph.nodes.len()).filter(|&n| each(&mut folder, n).is_some()).count();
    let Folder { gone, unread, .. } = folder;
    if gone.contains(&true) {
        graph.prune(&gone, &unread);
    }
    folded
}

struct Folder<'a> {
    graph: &'a mut Graph,
    options: &'a PlanOptions,
    names: HashSet<String>,
    index: FlowIndex,
    gone: Vec<bool>,
    unread: Vec<bool>,
}

impl<'a> Folder<'a> {
    fn new(graph: &'a mut Graph, options: &'a PlanOptions) -> Self {
        let names = graph.tensors.iter().map(|t| t.name.clone()).collect();
        let index = FlowIndex::of_graph(graph);
        let (gone, unread) = (vec![false; graph.nodes.len()], vec![false; graph.tensors.len()]);
        Folder { graph, options, names, index, gone, unread }
    }

    fn constant(&self, id: TensorId) -> Option<&Tensor> {
        let decl = self.graph.tensors.get(id.index())?;
        match &decl.origin {
            Origin::Constant(t) if decl.scope == StorageScope::Buffer => Some(t),
            _ => None,
        }
    }

    /// The only output of node `n`, where it is neither a graph output nor in an image.
    fn between(&self, n: usize) -> Option<TensorId> {
        let node = &self.graph.nodes[n];
        let mut outputs = node.outputs.iter().flatten();
        let (Some(&id), None, Some(_)) =
            (outputs.next(), outputs.next(), node.outputs.first().copied().flatten())
        else {
            return None;
        };
        let plain = self.graph.tensor(id).scope == StorageScope::Buffer && !self.index.is_output(id.index());
        (plain && !self.index.is_ordered(n) && !self.gone[n]).then_some(id)
    }

    /// Computes node `n`, where all its inputs are large constants.
    fn compute(&mut self, n: usize) -> Option<()> {
        let id = self.between(n)?;
        let node = &self.graph.nodes[n];
        let values: Vec<Option<&Tensor>> = node
            .inputs
            .iter()
            .map(|i| i.map(|i| self.constant(i).ok_or(())).transpose())
            .collect::<Result<_, _>>()
            .ok()?;
        let given: usize = values.iter().flatten().map(|t| t.info().bytes()).sum();
        let is_large = values.iter().flatten().any(|t| t.info().bytes() >= WEIGHT_BYTES);
        let op = node.op.clone();
        if !is_large || op.varies() || op.control().is_some() || op.host(&OpCx::default()).is_some() {
            return None;
        }
        let facts = values.into_iter().map(|t| t.cloned().map(Fact::known)).collect();
        let cx = OpCx::for_infer(facts, node.outputs.len());
        let infos = op.infer(&cx).ok()?;
        let [info] = &infos[..] else { return None };
        let bytes = info.bytes();
        let cx = cx.with_outputs(infos.clone());
        let fits = bytes <= limits::MAX_FOLDED_BYTES && bytes <= given.saturating_mul(MOST_GROWTH);
        if !fits || op.cost(&cx).flops > MOST_WORK * given as u64 {
            return None;
        }
        let result = match op.alias(&cx) {
            // The output has the bytes of an input.
            Some(i) => cx.value(i)?.reshaped(info.shape.clone()).ok().filter(|t| t.info() == info)?,
            None => evaluate(op.as_ref(), &cx, &op.cpu(&cx).ok()?).ok()?.pop()?,
        };
        self.drop_node(n);
        self.set(id, result);
        Some(())
    }

    /// Lets node `n` absorb the normalization that is its only user.
    fn normalize(&mut self, n: usize) -> Option<()> {
        let between = self.between(n)?;
        let next = self.index.only_user(between.index())?;
        let (a, b) = (&self.graph.nodes[n], &self.graph.nodes[next]);
        matches!(b.op.structure(), Some(Structure::BatchNormalization { .. })).then_some(())?;
        let output = b.outputs.first().copied().flatten()?;
        let alone = b.outputs.iter().skip(1).all(Option::is_none);
        // The plan knows more about nodes that the caller places by name.
        let placed = [a, b].iter().any(|node| {
            self.options.place_nodes.contains_key(&node.name)
                || self.options.place_ops.contains_key(node.op.name())
        });
        let device = b.device.is_none() || a.device == b.device;
        if !alone || placed || !device || self.index.is_ordered(next) || self.gone[next] {
            return None;
        }
        let large = a.inputs.get(1).copied().flatten().and_then(|w| self.constant(w))?;
        if large.info().bytes() < WEIGHT_BYTES {
            return None;
        }
        let (first_cx, next_cx) = (self.facts(n), self.facts(next));
        let absorbed = a.op.absorb(&first_cx, b.op.as_ref(), &next_cx, 0)?;
        let name = a.name.clone();
        let own = a.inputs.clone();
        let inputs: Vec<Option<TensorId>> = absorbed
            .inputs
            .into_iter()
            .enumerate()
            .map(|(k, source)| match source {
                AbsorbedInput::Own(i) => own.get(i).copied().flatten(),
                AbsorbedInput::New(t) => Some(self.add(&format!("{name}:folded{k}"), t)),
                AbsorbedInput::Next(_) | AbsorbedInput::Absent => None,
            })
            .collect();
        inputs.iter().flatten().for_each(|id| self.index.add_user(id.index(), n));
        self.release(n);
        self.drop_node(next);
        self.graph.tensors[output.index()].origin = Origin::Node { node: NodeId(n as u32), output: 0 };
        let node = &mut self.graph.nodes[n];
        (node.op, node.inputs, node.outputs) = (absorbed.op, inputs, vec![Some(output)]);
        Some(())
    }

    fn facts(&self, n: usize) -> OpCx {
        known_facts(&self.graph.nodes[n], |id| self.constant(id))
    }

    fn add(&mut self, name: &str, value: Tensor) -> TensorId {
        let name = free_name(&mut self.names, name.to_owned());
        let id = TensorId(self.graph.tensors.len() as u32);
        let (dtype, shape) = (Some(value.dtype()), Some(value.shape().into()));
        let (origin, scope) = (Origin::Constant(value), StorageScope::Buffer);
        self.graph.tensors.push(TensorDecl { name, dtype, shape, origin, scope });
        self.index.grow(self.graph.tensors.len());
        self.unread.push(false);
        id
    }

    fn set(&mut self, id: TensorId, value: Tensor) {
        let decl = &mut self.graph.tensors[id.index()];
        (decl.dtype, decl.shape) = (Some(value.dtype()), Some(value.shape().into()));
        decl.origin = Origin::Constant(value);
    }

    /// Removes node `n`.
    fn drop_node(&mut self, n: usize) {
        self.release(n);
        self.gone[n] = true;
    }

    /// Removes the inputs of node `n`; constants without another user are released.
    fn release(&mut self, n: usize) {
        for id in std::mem::take(&mut self.graph.nodes[n].inputs).into_iter().flatten() {
            self.index.remove_user(id.index(), n);
            let decl = &mut self.graph.tensors[id.index()];
            if self.index.is_unread(id.index()) && matches!(decl.origin, Origin::Constant(_)) {
                decl.origin = Origin::Constant(Tensor::from_i64s(&[]));
                self.unread[id.index()] = true;
            }
        }
    }
}

/// The facts of `node`: its constant inputs; for other inputs only whether they are present.
pub(super) fn known_facts<'t>(node: &Node, constant: impl Fn(TensorId) -> Option<&'t Tensor>) -> OpCx {
    let fact = |id: TensorId| match constant(id) {
        Some(t) => Fact::known(t.clone()),
        None => Fact::of(TensorInfo::new(DType::F32, Shape::scalar())),
    };
    let wanted = node.outputs.iter().rposition(Option::is_some).map_or(0, |last| last + 1);
    OpCx::for_infer(node.inputs.iter().map(|i| i.map(fact)).collect(), wanted)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::sync::Arc;

    use super::*;
    use crate::graph::GraphBuilder;
    use crate::ops::conv::Conv;
    use crate::ops::linalg::MatMul;
    use crate::ops::movement::Transpose;
    use crate::ops::norm::BatchNormalization;
    use crate::ops::{self, Activation, Function, Operator};
    use crate::plan::passes::absorb;
    use crate::plan::specialize;

    fn values(n: usize, seed: usize) -> Vec<f32> {
        (0..n).map(|i| ((i * 7919 + seed * 104_729) % 1000) as f32 / 500.0 - 0.9).collect()
    }

    fn weight(dims: &[usize], seed: usize) -> Tensor {
        let info = TensorInfo::new(DType::F32, Shape::new(dims.to_vec()).unwrap());
        let n = info.elements();
        Tensor::build_weight(info, |bytes| {
            bytes.copy_from_slice(bytemuck::cast_slice(&values(n, seed)));
            Ok::<(), ()>(())
        })
        .unwrap()
    }

    fn norm() -> Arc<dyn Operator> {
        Arc::new(BatchNormalization { epsilon: 1e-3, activation: Activation::None, by_element: false })
    }

    /// A normalized convolution, another one with the same weight if `other`, and a product with a transposed weight.
    fn graph(w: Tensor, turned: Tensor, other: bool) -> Graph {
        let mut g = GraphBuilder::new("g");
        let x = g.input("x", DType::F32, ["n".into(), 64.into(), 2.into(), 2.into()]);
        let w = g.constant("w", w);
        let c = g.op(Arc::new(Conv::default()) as Arc<dyn Operator>, &[x, w]);
        let parameters: Vec<_> = (0..4)
            .map(|k| {
                let v: Vec<f32> = values(64, 10 + k).iter().map(|v| v.abs() + 0.5).collect();
                g.constant(format!("p{k}"), Tensor::new([64], &v).unwrap())
            })
            .collect();
        let inputs: Vec<_> = std::iter::once(c).chain(parameters).collect();
        let n = g.op(norm(), &inputs);
        let y = g.op(ops::unary(Function::Relu), &[n]);
        g.output("y", y);
        if other {
            let z = g.op(Arc::new(Conv::default()) as Arc<dyn Operator>, &[y, w]);
            g.output("z", z);
        }
        let r = g.input("r", DType::F32, ["n".into(), 100.into()]);
        let t = g.constant("t", turned);
        let t = g.op(Arc::new(Transpose { perm: Some(vec![1, 0]) }) as Arc<dyn Operator>, &[t]);
        let p = g.op(Arc::new(MatMul::default()) as Arc<dyn Operator>, &[r, t]);
        g.output("p", p);
        g.build().unwrap()
    }

    /// The outputs of the graph for fixed inputs, by constant folding.
    fn results(graph: &Graph) -> Vec<Vec<f32>> {
        let inputs = [weight(&[2, 64, 2, 2], 5), weight(&[3, 100], 6)];
        let infos: Vec<TensorInfo> = inputs.iter().map(|t| t.info().clone()).collect();
        let known: BTreeMap<usize, Tensor> = inputs.into_iter().enumerate().collect();
        let mut flow = specialize(graph, &infos, &known).unwrap().plan().unwrap();
        absorb(&mut flow, crate::plan::Precision::F32).unwrap();
        flow.outputs
            .iter()
            .map(|(_, v)| flow.values[*v].constant.as_ref().unwrap().to_f32s().unwrap())
            .collect()
    }

    fn folded(graph: &mut Graph, options: &PlanOptions) -> [usize; 2] {
        let cx = GraphCx { options, devices: &[], free: false };
        let weights = fold_weights(graph, &cx);
        [weights, if options.fuse { fold_normalizations(graph, &cx) } else { 0 }]
    }

    fn check(graph: &Graph, want: &[Vec<f32>]) {
        let got = results(graph);
        assert_eq!(got.len(), want.len());
        for (got, want) in got.iter().flatten().zip(want.iter().flatten()) {
            assert!((got - want).abs() <= 1e-4 * want.abs().max(1.0), "{got} for {want}");
        }
    }

    #[test]
    fn parameters_that_only_others_read_leave_the_graph() {
        let (w, turned) = (weight(&[64, 64, 1, 1], 1), weight(&[80, 100], 2));
        let (left, left_turned) = (w.downgrade(), turned.downgrade());
        let mut g = graph(w, turned, false);
        let want = results(&g);
        assert_eq!(folded(&mut g, &PlanOptions::default()), [1, 1]);
        let names: Vec<&str> = g.nodes().iter().map(|n| n.op.name()).collect();
        assert_eq!(names, ["Conv", "Relu", "MatMul"]);
        assert!(left.upgrade().is_none() && left_turned.upgrade().is_none());
        // Weights and bias of the convolution, and the transposed weight.
        assert_eq!(g.constants().count(), 3);
        assert_eq!(g.input("r").map(|r| g.tensor(r).name.as_str()), Some("r"));
        check(&g, &want);
        // A second pass changes nothing.
        let again = g.nodes().len();
        assert_eq!(folded(&mut g, &PlanOptions::default()), [0, 0]);
        assert_eq!(g.nodes().len(), again);
    }

    #[test]
    fn what_somebody_else_reads_stays() {
        let (w, turned) = (weight(&[64, 64, 1, 1], 1), weight(&[80, 100], 2));
        let mut g = graph(w.clone(), turned.clone(), true);
        let want = results(&g);
        folded(&mut g, &PlanOptions::default());
        assert!(g.constants().any(|(name, t)| name == "w" && t.identity() == w.identity()));
        check(&g, &want);
        let mut kept = graph(w.clone(), turned.clone(), false);
        folded(&mut kept, &PlanOptions { fuse: false, ..PlanOptions::default() });
        assert_eq!(kept.nodes().iter().filter(|n| n.op.name() == "BatchNormalization").count(), 1);
        let placed = BTreeMap::from([("BatchNormalization".to_owned(), 1)]);
        let mut kept = graph(w, turned, false);
        folded(&mut kept, &PlanOptions { place_ops: placed, ..PlanOptions::default() });
        assert_eq!(kept.nodes().iter().filter(|n| n.op.name() == "BatchNormalization").count(), 1);
    }

    #[test]
    fn small_parameters_are_left_to_the_plan() {
        let mut g = graph(weight(&[8, 64, 1, 1], 1), weight(&[2, 100], 2), false);
        let nodes = g.nodes().len();
        folded(&mut g, &PlanOptions::default());
        assert_eq!(g.nodes().len(), nodes);
    }
}
