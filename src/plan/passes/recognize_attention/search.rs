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
    /// What queries are multiplied with, a number for each head.
    pub factor: Option<ValueId>,
    /// Transposes of keys and of values.
    pub turns: [Option<Turn>; 2],
    /// Whether the product has the queries in its last axis.
    pub flipped: bool,
}

/// A transpose that makes rows of keys or of values.
pub(super) struct Turn {
    pub perm: Vec<usize>,
    pub shape: Shape,
}

/// A product with probabilities.
struct Weighted {
    probabilities: ValueId,
    v: ValueId,
    turn: Option<Turn>,
    flipped: bool,
}

/// Elements of the longest rows that queries with a factor for each head may have: longer ones are channels rather than heads.
const LONGEST_ROW: usize = 512;

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

    /// The rows of which `columns` `[..., elements, rows]` are made by nodes on `device` that move elements: a value, and a
    /// transpose of it where no value has them in order. Columns that nothing made of rows are transposed for `queries`
    /// that are so many that this is the smaller part.
    fn rows(&self, columns: ValueId, device: Option<u32>, queries: usize) -> Option<(ValueId, Option<Turn>)> {
        let (mut rows, mut order) =
            (self.shape(columns).to_vec(), (0..self.shape(columns).rank()).collect::<Vec<_>>());
        let last = rows.len().checked_sub(1).filter(|&last| last > 0)?;
        rows.swap(last - 1, last);
        order.swap(last - 1, last);
        let is_small = 2 * queries >= rows[last];
        let rows = Shape::new(rows).ok()?;
        let whole = is_small.then(|| Turn { perm: order.clone(), shape: rows.clone() });
        let (turn, mut at, mut first) = (ViewStep::Transpose(order), columns, None);
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
                first = perm.map(|perm| (at, Some(Turn { perm, shape: rows.clone() })));
            }
        }
        first.or_else(|| Some((columns, Some(whole?))))
    }

    /// The product of node `last` as one of probabilities with values, or of values with probabilities, both transposed.
    fn weighted(&self, last: usize) -> Option<Weighted> {
        let [a, b] = self.inputs(last)?;
        let Some((n, Structure::Transpose { perm })) =
            self.maker(b).and_then(|(n, op)| Some((n, op.structure()?)))
        else {
            return Some(Weighted { probabilities: a, v: b, turn: None, flipped: false });
        };
        let rank = self.shape(b).rank();
        let mut swap: Vec<i64> = (0..rank as i64).collect();
        let is_softmax = |v: ValueId| {
            let op = self.softmax(v).map(|(_, op)| op.structure());
            matches!(op, Some(Some(Structure::Softmax { .. })))
        };
        let before = self.flow.nodes[n].inputs.first().copied().flatten()?;
        if rank < 2 || is_softmax(a) || !is_softmax(before) {
            return Some(Weighted { probabilities: a, v: b, turn: None, flipped: false });
        }
        swap.swap(rank - 2, rank - 1);
        let device = self.flow.nodes[last].device;
        (perm? == swap && self.flow.nodes[n].device == device).then_some(())?;
        let (v, turn) = self.rows(a, device, self.shape(b)[rank - 1])?;
        Some(Weighted { probabilities: before, v, turn, flipped: true })
    }

    pub(super) fn attention(&self, last: usize) -> Option<Match> {
        let flow = self.flow;
        let node = &flow.nodes[last];
        let mut output = flow.values[node.outputs[0]].info.clone();
        let rank = output.shape.rank();
        if !is_product(node.op.as_ref()) || !(3..=4).contains(&rank) {
            return None;
        }
        let Weighted { probabilities, v, turn: v_turn, flipped } = self.weighted(last)?;
        if flipped {
            let mut dims = output.shape.to_vec();
            dims.swap(rank - 2, rank - 1);
            output.shape = Shape::new(dims).ok()?;
        }
        let (softmax, op) = self.softmax(probabilities)?;
        let Structure::Softmax { axis, .. } = op.structure()? else { return None };
        if normalize_axis(axis, rank).ok()? != rank - 1 {
            return None;
        }
        let [before] = self.inputs(softmax)?;
        let Scores { product, scale, factor, terms: mask } = self.scores(before)?;
        let [q, k] = self.inputs(product)?;
        let (q, q_scale) = self.unscaled(q);
        let (columns, k_scale) = self.unscaled(k);
        let devices = [softmax, product].map(|n| flow.nodes[n].device);
        if devices.iter().any(|d| *d != node.device) || factor.is_some_and(|f| !self.scales(f, q)) {
            return None;
        }
        let (k, turn) = self.rows(columns, node.device, self.shape(before)[rank - 2])?;
        // Without an axis of heads each element of the batch is one.
        let heads = (rank == 3).then_some((1, 1));
        let op = Attention { heads, scale: Some(scale * q_scale * k_scale), ..Attention::default() };
        let turns = [turn, v_turn];
        let operands = self.operands([q, k, v], &turns, |of| self.fits(&op, of, &mask, &output), before)?;
        Some(Match { last, operands, mask, op, factor, turns, flipped })
    }

    /// Queries, keys and values that fit scores `before`: those of shared heads, where they are.
    fn operands(
        &self,
        [q, k, v]: [ValueId; 3],
        turns: &[Option<Turn>; 2],
        fits: impl Fn(([ValueId; 3], [&Shape; 2])) -> bool,
        before: ValueId,
    ) -> Option<[ValueId; 3]> {
        let [turn, v_turn] = turns;
        let keys = turn.as_ref().map_or(self.shape(k), |turn| &turn.shape);
        let values = v_turn.as_ref().map_or(self.shape(v), |turn| &turn.shape);
        let rank = keys.rank();
        // The softmax covers all keys.
        (rank >= 2 && self.shape(before).last() == keys.dims().get(rank - 2)).then_some(())?;
        let grouped = match turns {
            [None, None] => self.ungrouped(k).zip(self.ungrouped(v)),
            _ => None,
        };
        let shared = grouped.map(|(k, v)| [q, k, v]);
        let shared = shared.filter(|of| fits((*of, [self.shape(of[1]), self.shape(of[2])])));
        shared.or_else(|| {
            let leading = [self.shape(q), keys, values].map(|shape| &shape.dims()[..rank - 2]);
            // Products repeat one head for all queries.
            let one = rank == 4 && leading[1][1..] == [1] && leading[0][..1] == leading[1][..1];
            let same = leading[1] == leading[2] && (leading[0] == leading[1] || one);
            Some([q, k, v]).filter(|of| same && fits((*of, [keys, values])))
        })
    }

    /// Whether `factor` has a number for each head of the queries `q`, and rows are short enough for heads.
    fn scales(&self, factor: ValueId, q: ValueId) -> bool {
        let (by, of) = (&self.flow.values[factor].info, &self.flow.values[q].info);
        let by_head = matches!(by.shape.dims(), [.., 1, 1]);
        let same = by.dtype == of.dtype && by.shape.broadcast(&of.shape).is_ok_and(|shape| shape == of.shape);
        by_head && same && of.shape.last().is_some_and(|&row| row <= LONGEST_ROW)
    }

    /// Whether the inference of `op`, which checks everything else, gives `output` of queries, keys and values of these
    /// shapes, and the sum of `mask`.
    fn fits(
        &self,
        op: &Attention,
        (operands, [keys, values]): ([ValueId; 3], [&Shape; 2]),
        mask: &[Term],
        output: &TensorInfo,
    ) -> bool {
        let mut infos = operands.map(|v| self.flow.values[v].info.clone()).to_vec();
        infos[1].shape = keys.clone();
        infos[2].shape = values.clone();
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
                Term::Added { mask, .. } | Term::OfWindows { mask, .. } => self.flow.values[*mask].info.dtype,
                Term::Hidden { like, .. } => self.flow.values[*like].info.dtype,
            };
            let is_made = mask.len() > 1 || !matches!(term, Term::Added { factor: 1.0, .. });
            let computes = !is_made || matches!(dtype, DType::F32 | DType::F16);
            let shape = match term {
                Term::OfWindows { mask, windows, .. } => windows.joined(self.shape(*mask).dims())?,
                _ => self.shape(term.value()).clone(),
            };
            computes.then(|| TensorInfo::new(dtype, shape))
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
