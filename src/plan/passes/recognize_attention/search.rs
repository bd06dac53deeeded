//! The search for attention in a flow.

use super::scores::{Scores, Term};
use crate::dtype::DType;
use crate::graph::{StorageScope, Tensor};
use crate::operator::{Elementwise, Fact, OpCx, Operator, Structure, View, ViewStep};
use crate::ops::attention::Attention;
use crate::plan::flow::{Flow, ValueId};
use crate::plan::index::FlowIndex;
use crate::plan::passes::links::{Link, MOST_STEPS, link};
use crate::shape::{Shape, normalize_axis};
use crate::tensor::TensorInfo;

/// What takes the place of node `last`.
pub(super) struct Match {
    pub last: usize,
    /// Queries, keys and values.
    pub operands: [ValueId; 3],
    /// What the sum of a mask is made of.
    pub mask: Vec<Term>,
    pub op: Attention,
    pub turn: Option<KeyTranspose>,
}

/// A transpose that makes rows of the keys.
pub(super) struct KeyTranspose {
    pub perm: Vec<usize>,
    pub shape: Shape,
}

pub(super) struct Search<'a> {
    pub(super) flow: &'a Flow,
    index: FlowIndex,
    /// By value: how many nodes read its type alone.
    type_reads: Vec<usize>,
    /// Products that became attention.
    pub(super) taken: Vec<bool>,
}

impl<'a> Search<'a> {
    pub(super) fn new(flow: &'a Flow) -> Self {
        let mut type_reads = vec![0usize; flow.values.len()];
        for node in flow.nodes.iter().filter(|n| n.op.structure() == Some(Structure::Cast)) {
            node.inputs.iter().skip(1).flatten().for_each(|&v| type_reads[v] += 1);
        }
        Search { flow, index: FlowIndex::new(flow), type_reads, taken: vec![false; flow.nodes.len()] }
    }

    /// Whether `v` is read `times`, its elements, and is no output.
    fn is_read(&self, v: ValueId, times: usize) -> bool {
        let plain = self.flow.values[v].scope == StorageScope::default();
        plain && self.index.users(v).len() == self.type_reads[v] + times && !self.index.is_output(v)
    }

    /// The producer of `v`, which is read `times`, and its operator, if it may be removed.
    fn maker_of(&self, v: ValueId, times: usize) -> Option<(usize, &'a dyn Operator)> {
        let n = self.index.producer(v).filter(|&n| self.is_read(v, times) && !self.index.is_awaited(n))?;
        let node = &self.flow.nodes[n];
        (node.outputs.len() == 1).then(|| (n, node.op.as_ref()))
    }

    /// The producer of `v`, which is read once, and its operator, if it may be removed.
    pub(super) fn maker(&self, v: ValueId) -> Option<(usize, &'a dyn Operator)> {
        self.maker_of(v, 1)
    }

    pub(super) fn inputs<const N: usize>(&self, n: usize) -> Option<[ValueId; N]> {
        let inputs: Option<Vec<ValueId>> = self.flow.nodes[n].inputs.iter().copied().collect();
        inputs?.try_into().ok()
    }

    fn constant(&self, v: ValueId) -> Option<&'a Tensor> {
        self.flow.values[v].constant.as_ref()
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
    pub(super) fn unscaled(&self, v: ValueId) -> (ValueId, f32) {
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
            Elementwise::Mul => {
                self.flow.number(b).map(|f| (a, f)).or_else(|| Some((b, self.flow.number(a)?)))?
            }
            Elementwise::Div => (a, 1.0 / self.flow.number(b)?),
            _ => return None,
        };
        (self.shape(inner) == self.shape(v) && factor.is_finite()).then_some((inner, factor))
    }

    pub(super) fn shape(&self, v: ValueId) -> &'a Shape {
        &self.flow.values[v].info.shape
    }

    /// The product that writes `v`, if it has no other effect.
    pub(super) fn product(&self, v: ValueId) -> Option<(usize, [ValueId; 2])> {
        let (n, op) = self.maker(v)?;
        (is_product(op) && !self.taken[n]).then_some(())?;
        Some((n, self.inputs(n)?))
    }

    /// The softmax that gives `v`, directly or with zeros for what is not a number.
    fn softmax(&self, v: ValueId) -> Option<(usize, &'a dyn Operator)> {
        let v = self.through(v);
        let (n, op) = self.maker(v)?;
        if op.structure() != Some(Structure::Select) {
            return Some((n, op));
        }
        let [condition, zero, v] = self.inputs(n)?;
        let (test, is_nan) = self.maker(condition)?;
        let guards = is_nan.structure() == Some(Structure::IsNan)
            && self.inputs(test) == Some([v])
            && self.flow.number(zero) == Some(0.0);
        self.maker_of(v, 2).filter(|_| guards)
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

    /// The keys as rows, of which `columns` `[..., elements, keys]` are made by nodes on `device` that move elements: a
    /// value, and a transpose of it where no value has them in order.
    fn rows(&self, columns: ValueId, device: Option<u32>) -> Option<(ValueId, Option<KeyTranspose>)> {
        let (mut rows, mut order) =
            (self.shape(columns).to_vec(), (0..self.shape(columns).rank()).collect::<Vec<_>>());
        let last = rows.len().checked_sub(1).filter(|&last| last > 0)?;
        rows.swap(last - 1, last);
        order.swap(last - 1, last);
        let (rows, turn) = (Shape::new(rows).ok()?, ViewStep::Transpose(order));
        let (mut at, mut first) = (columns, None);
        let mut steps = vec![(turn, &rows)];
        while let Some(Link { source, step }) = link(self.flow, &self.index, device, at) {
            (steps.len() <= MOST_STEPS).then_some(())?;
            steps.push((step, self.shape(at)));
            at = source;
            let from = self.shape(at);
            let view =
                steps.iter().rev().try_fold(View::whole(from)?, |view, (step, to)| view.then(step, to));
            if *from == rows && view == View::whole(from) {
                return Some((at, None));
            }
            let turns = steps.iter().skip(1).any(|(step, _)| matches!(step, ViewStep::Transpose(_)));
            if first.is_none() && turns {
                let perm = view.and_then(|view| permutation(&view, from));
                first = perm.map(|perm| (at, Some(KeyTranspose { perm, shape: rows.clone() })));
            }
        }
        first
    }

    pub(super) fn attention(&self, last: usize) -> Option<Match> {
        let flow = self.flow;
        let node = &flow.nodes[last];
        let [probabilities, v] = self.inputs(last)?;
        let output = &flow.values[node.outputs[0]].info;
        let rank = output.shape.rank();
        if !is_product(node.op.as_ref()) || !(3..=4).contains(&rank) {
            return None;
        }
        let (softmax, op) = self.softmax(probabilities)?;
        let Structure::Softmax { axis, .. } = op.structure()? else { return None };
        if normalize_axis(axis, rank).ok()? != rank - 1 {
            return None;
        }
        let [before] = self.inputs(softmax)?;
        let Scores { product, scale, terms: mask } = self.scores(before)?;
        let [q, k] = self.inputs(product)?;
        let (q, q_scale) = self.unscaled(q);
        let (columns, k_scale) = self.unscaled(k);
        let devices = [softmax, product].map(|n| flow.nodes[n].device);
        if devices.iter().any(|d| *d != node.device) {
            return None;
        }
        let (k, turn) = self.rows(columns, node.device)?;
        // The softmax covers all keys.
        let keys = turn.as_ref().map_or(self.shape(k), |turn| &turn.shape);
        if self.shape(before).last() != keys.dims().get(rank - 2) {
            return None;
        }
        // Without an axis of heads each element of the batch is one.
        let heads = (rank == 3).then_some((1, 1));
        let op = Attention { heads, scale: Some(scale * q_scale * k_scale), ..Attention::default() };
        let grouped = match turn {
            None => self.ungrouped(k).zip(self.ungrouped(v)),
            Some(_) => None,
        };
        let fits = |operands: [ValueId; 3], keys: &Shape| self.fits(&op, (operands, keys), &mask, output);
        let shared = grouped.map(|(k, v)| [q, k, v]).filter(|of| fits(*of, self.shape(of[1])));
        let operands = shared.or_else(|| {
            let leading = [self.shape(q), keys, self.shape(v)].map(|shape| &shape.dims()[..rank - 2]);
            // Products repeat one head for all queries.
            let one = rank == 4 && leading[1][1..] == [1] && leading[0][..1] == leading[1][..1];
            let same = leading[1] == leading[2] && (leading[0] == leading[1] || one);
            Some([q, k, v]).filter(|of| same && fits(*of, keys))
        })?;
        Some(Match { last, operands, mask, op, turn })
    }

    /// Whether the inference of `op`, which checks everything else, gives `output` of queries, keys of the shape `keys`,
    /// values and the sum of `mask`.
    fn fits(
        &self,
        op: &Attention,
        (operands, keys): ([ValueId; 3], &Shape),
        mask: &[Term],
        output: &TensorInfo,
    ) -> bool {
        let mut infos = operands.map(|v| self.flow.values[v].info.clone()).to_vec();
        infos[1].shape = keys.clone();
        let same = infos.iter().all(|i| i.dtype == output.dtype);
        let Some(added) = self.mask_infos(mask) else { return false };
        infos.extend(added.map(|info| match (op.heads, info.shape.dims()) {
            (Some(_), &[batch, queries, keys]) => {
                let shape = Shape::new([batch, 1, queries, keys]).unwrap_or_default();
                TensorInfo::new(info.dtype, shape)
            }
            _ => info,
        }));
        let floats = infos.iter().all(|i| i.dtype.is_float());
        let facts = infos.into_iter().map(|info| Some(Fact::of(info))).collect();
        let inferred = op.infer(&OpCx::for_infer(facts, 1)).ok();
        same && floats && inferred.is_some_and(|inferred| inferred.first() == Some(output))
    }

    /// Nothing where there is no mask, else what the sum of `mask` is; `None` where it has no sum.
    fn mask_infos(&self, mask: &[Term]) -> Option<Option<TensorInfo>> {
        let info = |term: &Term| {
            let dtype = match term {
                Term::Added { mask, .. } => self.flow.values[*mask].info.dtype,
                Term::Hidden { like, .. } => self.flow.values[*like].info.dtype,
            };
            let is_made = mask.len() > 1 || !matches!(term, Term::Added { factor: 1.0, .. });
            let computes = !is_made || matches!(dtype, DType::F32 | DType::F16);
            computes.then(|| TensorInfo::new(dtype, self.shape(term.value()).clone()))
        };
        let mut infos = mask.iter().map(info);
        let Some(first) = infos.next() else { return Some(None) };
        let sum = infos.try_fold(first?, |sum, info| {
            let info = info?;
            let shape = sum.shape.broadcast(&info.shape).ok()?;
            (info.dtype == sum.dtype).then(|| TensorInfo::new(info.dtype, shape))
        });
        sum.map(Some)
    }
}

/// The order of the axes of a tensor of shape `root` in which `view` has all of it; `None` where it is no transpose.
fn permutation(view: &View, root: &Shape) -> Option<Vec<usize>> {
    let view = view.strided().filter(|view| view.is_all() && view.shape.rank() == root.rank())?;
    let strides = root.strides();
    let mut used = vec![false; root.rank()];
    let axes = view.shape.iter().zip(&view.strides).map(|(size, stride)| {
        let fits =
            |axis: &usize| !used[*axis] && root[*axis] == *size && (*size == 1 || strides[*axis] == *stride);
        let axis = (0..root.rank()).find(fits)?;
        used[axis] = true;
        Some(axis)
    });
    axes.collect()
}

/// Whether `op` is a matrix product without any other effect.
fn is_product(op: &dyn Operator) -> bool {
    op.structure() == Some(Structure::MatMul { alpha: 1.0, beta: 1.0, transposed: [false; 2] })
}
