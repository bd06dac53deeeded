//! Attention that a graph decomposes (product, scale, mask, softmax, product) becomes one operator. Keys and values that are
//! repeated for the heads of queries that share them are read once.

use std::sync::Arc;

use crate::graph::{StorageScope, Tensor, TensorInfo};
use crate::operator::{Elementwise, OpCx, Operator, Structure};
use crate::ops::attention::Attention;
use crate::ops::movement::Transpose;
use crate::plan::flow::{Flow, ValueId};
use crate::plan::index::FlowIndex;
use crate::shape::{Shape, normalize_axis};

/// Replaces decomposed attention; returns how many.
pub(super) fn recognize_attention(flow: &mut Flow) -> usize {
    // Most graphs have no softmax, and the search ends here.
    if !flow.nodes.iter().any(|n| matches!(n.op.structure(), Some(Structure::Softmax { .. }))) {
        return 0;
    }
    let mut search = Search::new(flow);
    let mut found = Vec::new();
    for last in 0..flow.nodes.len() {
        if let Some(attention) = search.attention(last) {
            // A product that became attention is no longer a product.
            search.taken[last] = true;
            found.push(attention);
        }
    }
    let count = found.len();
    for Match { last, inputs, op, turn } in found {
        if let Some(KeyTranspose { node, perm, shape }) = turn {
            let output = flow.nodes[node].outputs[0];
            flow.nodes[node].op = Arc::new(Transpose { perm: Some(perm.to_vec()) });
            flow.values[output].info.shape = shape;
        }
        let node = &mut flow.nodes[last];
        node.op = Arc::new(op);
        node.inputs = inputs;
    }
    if count > 0 {
        flow.drop_dead();
    }
    count
}

/// What takes the place of node `last`.
struct Match {
    last: usize,
    inputs: Vec<Option<ValueId>>,
    op: Attention,
    turn: Option<KeyTranspose>,
}

/// A transpose of the keys: rows instead of columns.
struct KeyTranspose {
    node: usize,
    perm: [i64; 4],
    shape: Shape,
}

struct Search<'a> {
    flow: &'a Flow,
    index: FlowIndex,
    /// By value: how many nodes read its type alone.
    type_reads: Vec<usize>,
    /// Products that became attention.
    taken: Vec<bool>,
}

impl<'a> Search<'a> {
    fn new(flow: &'a Flow) -> Self {
        let mut type_reads = vec![0usize; flow.values.len()];
        for node in flow.nodes.iter().filter(|n| n.op.structure() == Some(Structure::Cast)) {
            node.inputs.iter().skip(1).flatten().for_each(|&v| type_reads[v] += 1);
        }
        Search { flow, index: FlowIndex::new(flow), type_reads, taken: vec![false; flow.nodes.len()] }
    }

    /// Whether only one node reads `v`, its elements once, and `v` is no output.
    fn is_passing(&self, v: ValueId) -> bool {
        let plain = self.flow.values[v].scope == StorageScope::default();
        plain && self.index.users(v).len() == self.type_reads[v] + 1 && !self.index.is_output(v)
    }

    /// The producer of `v` and its operator, if it may be removed.
    fn maker(&self, v: ValueId) -> Option<(usize, &'a dyn Operator)> {
        let n = self.index.producer(v).filter(|&n| self.is_passing(v) && !self.index.is_awaited(n))?;
        let node = &self.flow.nodes[n];
        (node.outputs.len() == 1).then(|| (n, node.op.as_ref()))
    }

    fn inputs<const N: usize>(&self, n: usize) -> Option<[ValueId; N]> {
        let inputs: Option<Vec<ValueId>> = self.flow.nodes[n].inputs.iter().copied().collect();
        inputs?.try_into().ok()
    }

    fn constant(&self, v: ValueId) -> Option<&'a Tensor> {
        self.flow.values[v].constant.as_ref()
    }

    /// The value of a constant of one element.
    fn number(&self, v: ValueId) -> Option<f32> {
        let constant = self.constant(v).filter(|c| c.shape().elements() == 1)?;
        match constant.to_f32s().ok()?[..] {
            [one] if self.flow.values[v].info.dtype.is_float() => Some(one),
            _ => None,
        }
    }

    /// `v` before operators that preserve its values: conversions between floats, and chosen branches.
    fn through(&self, mut v: ValueId) -> ValueId {
        while let Some(next) = self.step(v) {
            v = next;
        }
        v
    }

    fn step(&self, v: ValueId) -> Option<ValueId> {
        let (n, op) = self.maker(v)?;
        let next = match op.structure() {
            Some(Structure::Cast) => self.flow.nodes[n].inputs.first().copied().flatten()?,
            Some(Structure::Select) => {
                let [condition, _, otherwise] = self.inputs(n)?;
                let never = self.constant(condition)?.bytes().iter().all(|b| *b == 0);
                Some(otherwise).filter(|_| never)?
            }
            _ => self.flow.nodes[n].inputs.get(op.alias(&self.flow.cx(n))?).copied().flatten()?,
        };
        let (from, to) = (&self.flow.values[next].info, &self.flow.values[v].info);
        (from.dtype.is_float() && to.dtype.is_float() && from.shape == to.shape).then_some(next)
    }

    /// `v` without constant factors of one element, and their product.
    fn unscaled(&self, v: ValueId) -> (ValueId, f32) {
        let (mut v, mut scale) = (self.through(v), 1.0);
        while let Some((inner, factor)) = self.factor(v) {
            (v, scale) = (self.through(inner), scale * factor);
        }
        (v, scale)
    }

    fn factor(&self, v: ValueId) -> Option<(ValueId, f32)> {
        let (n, op) = self.maker(v)?;
        let Structure::Elementwise(function) = op.structure()? else { return None };
        let [a, b] = self.inputs(n)?;
        let (inner, factor) = match function {
            Elementwise::Mul => self.number(b).map(|f| (a, f)).or_else(|| Some((b, self.number(a)?)))?,
            Elementwise::Div => (a, 1.0 / self.number(b)?),
            _ => return None,
        };
        (self.shape(inner) == self.shape(v) && factor.is_finite()).then_some((inner, factor))
    }

    fn shape(&self, v: ValueId) -> &'a Shape {
        &self.flow.values[v].info.shape
    }

    /// The product that writes `v`, if it has no other effect.
    fn product(&self, v: ValueId) -> Option<(usize, [ValueId; 2])> {
        let (n, op) = self.maker(v)?;
        (is_product(op) && !self.taken[n]).then_some(())?;
        Some((n, self.inputs(n)?))
    }

    /// The scores without their mask, and the mask.
    fn unmasked(&self, v: ValueId) -> Option<(ValueId, Option<ValueId>)> {
        let v = self.through(v);
        let (n, op) = self.maker(v)?;
        if op.structure() != Some(Structure::Elementwise(Elementwise::Add)) {
            return Some((v, None));
        }
        let [a, b] = self.inputs(n)?;
        let is_scores =
            |s: ValueId| self.shape(s) == self.shape(v) && self.product(self.unscaled(s).0).is_some();
        if is_scores(a) {
            return Some((a, Some(b)));
        }
        is_scores(b).then_some((b, Some(a)))
    }

    /// `[batch, heads, rows, elements]` before each head was repeated for its group of queries.
    fn ungrouped(&self, v: ValueId) -> Option<ValueId> {
        let source = |v: ValueId, is_repeated: bool| {
            let (n, op) = self.maker(v)?;
            let is_expand = op.structure() == Some(Structure::Expand);
            let input = if is_repeated && is_expand { Some(0) } else { op.alias(&self.flow.cx(n)) };
            self.flow.nodes[n].inputs.get(input?).copied().flatten()
        };
        let groups = source(v, false)?;
        let one = source(groups, true)?;
        let x = source(one, false)?;
        let &[batch, heads, rows, elements] = self.shape(x).dims() else { return None };
        let &[_, _, group, _, _] = self.shape(groups).dims() else { return None };
        let repeats = self.shape(one).dims() == [batch, heads, 1, rows, elements]
            && self.shape(groups).dims() == [batch, heads, group, rows, elements]
            && self.shape(v).dims() == [batch, heads * group, rows, elements];
        (repeats && group > 1).then_some(x)
    }

    fn attention(&self, last: usize) -> Option<Match> {
        let flow = self.flow;
        let node = &flow.nodes[last];
        let [probabilities, v] = self.inputs(last)?;
        let output = &flow.values[node.outputs[0]].info;
        if !is_product(node.op.as_ref()) || output.shape.rank() != 4 {
            return None;
        }
        let (softmax, op) = self.maker(self.through(probabilities))?;
        let Structure::Softmax { axis, .. } = op.structure()? else { return None };
        if normalize_axis(axis, 4).ok()? != 3 {
            return None;
        }
        let [scores] = self.inputs(softmax)?;
        let (scores, mask) = self.unmasked(scores)?;
        let (scores, scale) = self.unscaled(scores);
        let (product, [q, k]) = self.product(scores)?;
        let (q, q_scale) = self.unscaled(q);
        let (columns, k_scale) = self.unscaled(k);
        let (turned, op) = self.maker(columns)?;
        let Structure::Transpose { perm: Some(perm) } = op.structure()? else { return None };
        let [from] = self.inputs(turned)?;
        let (k, turn) = match perm {
            [0, 1, 3, 2] => (from, None),
            [0, 2, 3, 1] => {
                let &[batch, head, size, len] = self.shape(columns).dims() else { return None };
                let shape = Shape::new([batch, head, len, size]).ok()?;
                (columns, Some(KeyTranspose { node: turned, perm: [0, 2, 1, 3], shape }))
            }
            _ => return None,
        };
        let devices = [softmax, product, turned].map(|n| flow.nodes[n].device);
        if devices.iter().any(|d| *d != node.device) {
            return None;
        }
        // The softmax covers all keys.
        let keys = turn.as_ref().map_or(self.shape(k), |turn| &turn.shape);
        if self.shape(scores).dims().get(3) != keys.dims().get(2) {
            return None;
        }
        let op = Attention { scale: Some(scale * q_scale * k_scale), ..Attention::default() };
        let grouped = match turn {
            None => self.ungrouped(k).zip(self.ungrouped(v)),
            Some(_) => None,
        };
        let shared = grouped.and_then(|(k, v)| self.operands(&op, [q, k, v], mask, (output, None)));
        let inputs = shared.or_else(|| {
            let same = self.shape(q).dims().get(..2) == keys.dims().get(..2);
            self.operands(&op, [q, k, v], mask, (output, turn.as_ref())).filter(|_| same)
        });
        Some(Match { last, inputs: inputs?, op, turn })
    }

    /// The inputs of `op`, where its own inference, which checks everything else, gives `output` of them.
    fn operands(
        &self,
        op: &Attention,
        operands: [ValueId; 3],
        mask: Option<ValueId>,
        (output, turn): (&TensorInfo, Option<&KeyTranspose>),
    ) -> Option<Vec<Option<ValueId>>> {
        let inputs: Vec<Option<ValueId>> = operands.map(Some).into_iter().chain(mask.map(Some)).collect();
        let mut infos: Vec<_> = inputs.iter().flatten().map(|&v| self.flow.values[v].info.clone()).collect();
        if let Some(turn) = turn {
            infos[1].shape = turn.shape.clone();
        }
        let same = infos[..3].iter().all(|i| i.dtype == output.dtype);
        let floats = infos.iter().all(|i| i.dtype.is_float());
        let facts = infos.into_iter().map(|info| Some(crate::ops::Fact::of(info))).collect();
        let inferred = op.infer(&OpCx::for_infer(facts, 1)).ok()?;
        (same && floats && inferred.first() == Some(output)).then_some(inputs)
    }
}

/// Whether `op` is a matrix product without any other effect.
fn is_product(op: &dyn Operator) -> bool {
    op.structure() == Some(Structure::MatMul { alpha: 1.0, beta: 1.0, transposed: [false; 2] })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dtype::DType;
    use crate::graph::GraphBuilder;
    use crate::ops;
    use crate::ops::linalg::MatMul;
    use crate::ops::norm::{Softmax, SoftmaxKind};
    use crate::ops::shape_ops::{Expand, Reshape, Unsqueeze};
    use crate::plan::specialize;

    fn softmax() -> Arc<dyn Operator> {
        Arc::new(Softmax { kind: SoftmaxKind::Soft, axis: -1, flatten: false })
    }

    fn product() -> Arc<dyn Operator> {
        Arc::new(MatMul::default())
    }

    fn transpose(perm: [i64; 4]) -> Arc<dyn Operator> {
        Arc::new(Transpose { perm: Some(perm.to_vec()) })
    }

    /// A graph of attention with a scale after the product and a mask added before or after it.
    fn flow(perm: [i64; 4], k: [usize; 4], shown: bool) -> Flow {
        let mut g = GraphBuilder::new("g");
        let shapes = [[2, 3, 5, 8], k, [2, 3, 7, 6], [2, 1, 1, 7]];
        let inputs = ["q", "k", "v", "mask"];
        let ids: Vec<_> =
            inputs.iter().zip(shapes).map(|(n, s)| g.input(*n, DType::F32, s.map(Into::into))).collect();
        let columns = g.op(transpose(perm), &[ids[1]]);
        let scores = g.op(product(), &[ids[0], columns]);
        let eight = g.constant("eight", Tensor::scalar(8f32));
        let scaled = g.op(ops::div(), &[scores, eight]);
        let masked = g.op(ops::add(), &[ids[3], scaled]);
        let soft = g.op(softmax(), &[masked]);
        let y = g.op(product(), &[soft, ids[2]]);
        g.output("y", y);
        if shown {
            g.output("soft", soft);
        }
        let infos = shapes.map(|s| TensorInfo::new(DType::F32, Shape::new(s).unwrap()));
        specialize(&g.build().unwrap(), &infos, &Default::default()).unwrap().plan().unwrap()
    }

    #[test]
    fn products_around_a_softmax_are_one_operator() {
        let mut plain = flow([0, 1, 3, 2], [2, 3, 7, 8], false);
        assert_eq!(recognize_attention(&mut plain), 1);
        let [node] = &plain.nodes[..] else { panic!("{} nodes", plain.nodes.len()) };
        let op = node.op.downcast_ref::<Attention>().unwrap();
        assert_eq!((op.scale, op.causal), (Some(0.125), false));
        let names: Vec<&str> = node.inputs.iter().flatten().map(|&v| plain.values[v].name.as_str()).collect();
        assert_eq!(names, ["q", "k", "v", "mask"]);
        // Keys with the heads after their positions.
        let mut turned = flow([0, 2, 3, 1], [2, 7, 3, 8], false);
        assert_eq!(recognize_attention(&mut turned), 1);
        let names: Vec<&str> = turned.nodes.iter().map(|n| n.op.name()).collect();
        assert_eq!(names, ["Transpose", "Attention"]);
        assert_eq!(turned.values[turned.nodes[0].outputs[0]].info.shape.dims(), [2, 3, 7, 8]);
    }

    /// Queries of six heads, of which three each read one head of keys and values; other values have a head for each.
    fn grouped(values: bool) -> Flow {
        let mut g = GraphBuilder::new("g");
        let shapes = [[2, 6, 5, 8], [2, 2, 7, 8], [2, if values { 2 } else { 6 }, 7, 4], [2, 1, 1, 7]];
        let ids: Vec<_> = ["q", "k", "v", "mask"]
            .iter()
            .zip(shapes)
            .map(|(n, s)| g.input(*n, DType::F32, s.map(Into::into)))
            .collect();
        let mut repeated = |x, elements: i64| {
            let one = g.op(Arc::new(Unsqueeze { axes: Some(vec![2]) }) as Arc<dyn Operator>, &[x]);
            let wide =
                g.constant(format!("wide {elements}"), Tensor::new([5], &[2i64, 2, 3, 7, elements]).unwrap());
            let each = g.op(Arc::new(Expand) as Arc<dyn Operator>, &[one, wide]);
            let joined = Reshape { allow_zero: false, fixed: Some(vec![2, 6, 7, elements]) };
            g.op(Arc::new(joined) as Arc<dyn Operator>, &[each])
        };
        let k = repeated(ids[1], 8);
        let v = if values { repeated(ids[2], 4) } else { ids[2] };
        let columns = g.op(transpose([0, 1, 3, 2]), &[k]);
        let scores = g.op(product(), &[ids[0], columns]);
        let masked = g.op(ops::add(), &[scores, ids[3]]);
        let soft = g.op(softmax(), &[masked]);
        let y = g.op(product(), &[soft, v]);
        g.output("y", y);
        let infos = shapes.map(|s| TensorInfo::new(DType::F32, Shape::new(s).unwrap()));
        specialize(&g.build().unwrap(), &infos, &Default::default()).unwrap().plan().unwrap()
    }

    #[test]
    fn heads_that_queries_share_are_read_once() {
        for (values, names) in
            [(true, &["Attention"][..]), (false, &["Unsqueeze", "Expand", "Reshape", "Attention"])]
        {
            let apart = grouped(values);
            let mut one = apart.clone();
            assert_eq!(recognize_attention(&mut one), 1);
            let left: Vec<&str> = one.nodes.iter().map(|n| n.op.name()).collect();
            assert_eq!(left, names);
            let inputs: Vec<Tensor> =
                apart.inputs.iter().map(|v| numbers(apart.values[*v].info.shape.dims())).collect();
            let (a, b) = (run(&apart, &inputs), run(&one, &inputs));
            assert!(a.iter().zip(&b).all(|(a, b)| (a - b).abs() < 1e-5), "{a:?}, {b:?}");
        }
    }

    #[test]
    fn probabilities_that_are_wanted_are_left() {
        assert_eq!(recognize_attention(&mut flow([0, 1, 3, 2], [2, 3, 7, 8], true)), 0);
    }

    fn numbers(shape: &[usize]) -> Tensor {
        let values = (0..shape.iter().product::<usize>()).map(|i| ((i * 37 + 11) % 29) as f32 * 0.1 - 1.4);
        Tensor::new(shape, &values.collect::<Vec<_>>()).unwrap()
    }

    /// The output, computed node by node.
    fn run(flow: &Flow, inputs: &[Tensor]) -> Vec<f32> {
        let mut flow = flow.clone();
        for (v, tensor) in flow.inputs.clone().into_iter().zip(inputs) {
            flow.values[v].constant = Some(tensor.clone());
        }
        (0..flow.nodes.len()).for_each(|n| assert!(flow.fold(n).unwrap()));
        flow.values[flow.outputs[0].1].constant.as_ref().unwrap().to_f32s().unwrap()
    }

    #[test]
    fn the_operator_computes_what_it_replaces() {
        for (perm, k) in [([0, 1, 3, 2], [2, 3, 7, 8]), ([0, 2, 3, 1], [2, 7, 3, 8])] {
            let apart = flow(perm, k, false);
            let mut one = apart.clone();
            assert_eq!(recognize_attention(&mut one), 1);
            let inputs =
                [[2, 3, 5, 8], k, [2, 3, 7, 6], [2, 1, 1, 7]].map(|shape: [usize; 4]| numbers(&shape));
            let (a, b) = (run(&apart, &inputs), run(&one, &inputs));
            assert!(a.iter().zip(&b).all(|(a, b)| (a - b).abs() < 1e-5), "{a:?}, {b:?}");
        }
    }
}
