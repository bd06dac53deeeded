//! The search for rotations in a flow.

use crate::dtype::DType;
use crate::expr::{Expr, Indexing, PointwiseDesc, UnaryOp};
use crate::graph::StorageScope;
use crate::operator::{Elementwise, Structure, View, ViewStep};
use crate::plan::flow::{Flow, ValueId};
use crate::plan::index::FlowIndex;
use crate::plan::passes::links::{Link, MOST_STEPS, link};
use crate::shape::Shape;

/// A rotation of vectors.
#[derive(Clone, Copy, Debug)]
pub(super) struct Match {
    /// The node whose place it takes.
    pub last: usize,
    /// `[batch, heads, rows, elements]`
    pub x: ValueId,
    /// The graph's tables, and the sequences for which they have rows.
    pub cos: ValueId,
    pub sin: ValueId,
    pub batch: usize,
    /// Whether pairs are neighbours.
    pub interleaved: bool,
    /// The first elements of vectors, where only these are rotated.
    pub rotated: Option<usize>,
}

pub(super) struct Search<'a> {
    pub(super) flow: &'a Flow,
    pub(super) index: FlowIndex,
}

impl<'a> Search<'a> {
    pub(super) fn new(flow: &'a Flow) -> Self {
        Search { flow, index: FlowIndex::new(flow) }
    }

    pub(super) fn shape(&self, v: ValueId) -> &'a Shape {
        &self.flow.values[v].info.shape
    }

    /// The node that writes `v`, which one node alone reads, and its two inputs, where it is `function`.
    fn binary(&self, v: ValueId, function: Elementwise) -> Option<(usize, [ValueId; 2])> {
        let n = self.index.producer(v)?;
        let plain = self.flow.values[v].scope == StorageScope::default();
        self.index.only_user(v).filter(|_| plain && !self.index.is_ordered(n))?;
        Some((n, self.pair(n, function)?))
    }

    fn pair(&self, n: usize, function: Elementwise) -> Option<[ValueId; 2]> {
        let node = &self.flow.nodes[n];
        match node.inputs[..] {
            [Some(a), Some(b)] if node.op.structure() == Some(Structure::Elementwise(function)) => {
                Some([a, b])
            }
            _ => None,
        }
    }

    /// The rotation whose sum is node `n`.
    pub(super) fn rotation(&self, n: usize) -> Option<Match> {
        let node = &self.flow.nodes[n];
        let [a, b] = self.pair(n, Elementwise::Add)?;
        let y = *node.outputs.first()?;
        let whole = [(a, b), (b, a)].into_iter().find_map(|(straight, turned)| {
            let (p, straight) = self.binary(straight, Elementwise::Mul)?;
            let (q, turned) = self.binary(turned, Elementwise::Mul)?;
            let same = [p, q].iter().all(|&m| self.flow.nodes[m].device == node.device);
            both(straight).into_iter().filter(|_| same).find_map(|[x, cos]| {
                both(turned).into_iter().find_map(|[turned, sin]| self.of(n, [x, turned], [cos, sin]))
            })
        })?;
        let same = self.flow.values[whole.x].info == self.flow.values[y].info;
        same.then(|| self.part(y, whole).unwrap_or(whole))
    }

    /// The rotation of `x`, where `turned` is what its pairs turn into, by two tables.
    fn of(&self, last: usize, [x, turned]: [ValueId; 2], [cos, sin]: [ValueId; 2]) -> Option<Match> {
        let &[batch, _, rows, elements] = self.shape(x).dims() else { return None };
        let halves = elements % 2 == 0 && elements > 0 && self.shape(turned) == self.shape(x);
        let fits = halves && matches!(self.flow.values[x].info.dtype, DType::F32 | DType::F16);
        let of = |table: ValueId| {
            let dims = self.shape(table).dims();
            let (first, rest) = dims.split_at(dims.len().checked_sub(2)?);
            let batch = match first {
                [of, 1] if *of == batch => batch,
                first if first.iter().all(|&d| d == 1) => 1,
                _ => return None,
            };
            (rest == [rows, elements] && dims.len() <= 4).then_some(batch)
        };
        let sequences = of(cos).filter(|of_cos| fits && of(sin) == Some(*of_cos))?;
        let interleaved = self.turned(x, turned)?;
        let paired = [cos, sin].iter().all(|&table| self.is_paired(table, interleaved));
        paired.then_some(Match { last, x, cos, sin, batch: sequences, interleaved, rotated: None })
    }

    /// The rotation with the rest of the vectors, where node `y` alone is joined with it.
    fn part(&self, y: ValueId, whole: Match) -> Option<Match> {
        let join = self.index.only_user(y)?;
        let node = &self.flow.nodes[join];
        let &[Some(first), Some(rest)] = &node.inputs[..] else { return None };
        let (is_join, out) = (node.op.structure() == Some(Structure::Concat), *node.outputs.first()?);
        let same = node.device == self.flow.nodes[whole.last].device && !self.index.is_ordered(join);
        (is_join && same && first == y && self.is_last_joined([first, rest], out)).then_some(())?;
        let rotated = *self.shape(y).last()?;
        // The nearest value that has all of the vectors.
        let mut x = whole.x;
        for _ in 0..MOST_STEPS {
            x = link(self.flow, &self.index, node.device, x)?.source;
            if self.flow.values[x].info == self.flow.values[out].info {
                let fits = self.places(whole.x, x)? == (0, 1) && self.places(rest, x)? == (rotated, 1);
                return fits.then_some(Match { last: join, x, rotated: Some(rotated), ..whole });
            }
        }
        None
    }

    /// Whether `v` is two values joined along the last axis.
    fn is_last_joined(&self, parts: [ValueId; 2], v: ValueId) -> bool {
        let dims = parts.map(|part| self.shape(part).dims().split_last());
        match (dims, self.shape(v).dims().split_last()) {
            ([Some((a, first)), Some((b, second))], Some((last, rest))) => {
                first == rest && second == rest && a + b == *last
            }
            _ => false,
        }
    }

    /// Whether pairs are neighbours, where `turned` is what the pairs of `x` turn into.
    fn turned(&self, x: ValueId, turned: ValueId) -> Option<bool> {
        let device = self.flow.nodes[self.index.producer(turned)?].device;
        let joined = self.before_reshapes(turned, device);
        let join = self.index.producer(joined)?;
        let node = &self.flow.nodes[join];
        let &[Some(minus), Some(plus)] = &node.inputs[..] else { return None };
        let is_join = node.op.structure() == Some(Structure::Concat);
        (is_join && self.is_last_joined([minus, plus], joined)).then_some(())?;
        let minus = self.negated(self.before_reshapes(minus, device))?;
        let (elements, places) = (*self.shape(x).last()?, [self.places(minus, x)?, self.places(plus, x)?]);
        let neighbours = [vec![elements / 2, 2], vec![elements]].concat();
        if places == [(elements / 2, 1), (0, 1)] && self.shape(joined) == self.shape(x) {
            return Some(false);
        }
        let is_pairs = self.shape(joined).dims().ends_with(&neighbours[..2])
            && self.shape(joined).rank() == self.shape(x).rank() + 1;
        (places == [(1, 2), (0, 2)] && is_pairs).then_some(true)
    }

    /// `v` before nodes that only change its shape.
    pub(super) fn before_reshapes(&self, mut v: ValueId, device: Option<u32>) -> ValueId {
        while let Some(Link { source, step: ViewStep::Reshape }) = link(self.flow, &self.index, device, v) {
            v = source;
        }
        v
    }

    /// What `v` is the negative of.
    fn negated(&self, v: ValueId) -> Option<ValueId> {
        let n = self.index.producer(v)?;
        let node = &self.flow.nodes[n];
        let &[Some(x)] = &node.inputs[..] else { return None };
        let mut desc = PointwiseDesc::new([Indexing::Full]);
        let input = desc.input(0).ok()?;
        let y = node.op.pointwise_expr(&self.flow.cx(n), &mut desc, &[input])?;
        (desc.exprs().get(y.index()) == Some(&Expr::Unary(UnaryOp::Neg, input))).then_some(x)
    }

    /// Which elements of the vectors of `x` those of `v` are: the first, and how many from one to the next. Axes of size
    /// 1 at the end of `v` do not count.
    fn places(&self, v: ValueId, x: ValueId) -> Option<(usize, usize)> {
        let device = self.flow.nodes[self.index.producer(v)?].device;
        let (mut at, mut steps) = (v, Vec::new());
        while at != x {
            let Link { source, step } = link(self.flow, &self.index, device, at)?;
            (steps.len() < MOST_STEPS).then_some(())?;
            steps.push((step, self.shape(at)));
            at = source;
        }
        let whole = View::whole(self.shape(x))?;
        let view = steps.iter().rev().try_fold(whole, |view, (step, to)| view.then(step, to))?.strided()?;
        let rank = self.shape(x).rank();
        let ([.., rest], from) = (&view.strides[..rank], self.shape(x).strides()) else { return None };
        let (lead, tail) = view.shape.dims().split_at_checked(rank - 1)?;
        let same = lead == &self.shape(x).dims()[..rank - 1]
            && lead.iter().zip(&view.strides).zip(&from).all(|((size, a), b)| *size == 1 || a == b)
            && tail.iter().skip(1).all(|&size| size == 1);
        // One element has no next one.
        let step = if tail.first() == Some(&1) { 1 } else { *rest };
        same.then_some((view.offset, step))
    }
}

fn both([a, b]: [ValueId; 2]) -> [[ValueId; 2]; 2] {
    [[a, b], [b, a]]
}
