//! Tables of which both elements of each pair are one number.

use super::search::Search;
use crate::expr::{Indexing, PointwiseDesc};
use crate::operator::{Structure, ViewStep};
use crate::plan::flow::ValueId;
use crate::plan::passes::links::{Link, link};

/// Operators between a table and what repeats its numbers.
const DEEPEST: usize = 16;
/// Elements of the largest known table that is compared.
const MOST_ELEMENTS: usize = 1 << 22;

impl Search<'_> {
    /// Whether both halves of the last axis of `v`, or, interleaved, each two neighbours, are certainly equal.
    pub(super) fn is_paired(&self, v: ValueId, interleaved: bool) -> bool {
        self.paired(v, interleaved, DEEPEST).is_some()
    }

    /// Nothing where `v` is not certainly paired; the search ends `depth` operators before it.
    fn paired(&self, v: ValueId, interleaved: bool, depth: usize) -> Option<()> {
        if let Some(constant) = &self.flow.values[v].constant {
            let last = *self.shape(v).last().filter(|last| **last > 0 && **last % 2 == 0)?;
            let few = self.shape(v).elements() <= MOST_ELEMENTS;
            let values = if few { constant.to_f32s().ok()? } else { return None };
            let equal = |row: &[f32]| {
                let (first, second) = row.split_at(last / 2);
                if interleaved { row.chunks(2).all(|pair| pair[0] == pair[1]) } else { first == second }
            };
            return values.chunks(last).all(equal).then_some(());
        }
        let (n, depth) = (self.index.producer(v)?, depth.checked_sub(1)?);
        let node = &self.flow.nodes[n];
        if interleaved && self.are_repeated(v) {
            return Some(());
        }
        if let Some(Link { source, step }) = link(self.flow, &self.index, node.device, v) {
            let rank = self.shape(source).rank();
            let keeps = match &step {
                ViewStep::Reshape => self.shape(source).last() == self.shape(v).last(),
                ViewStep::Transpose(order) => order.last() == rank.checked_sub(1).as_ref(),
                ViewStep::Part(ranges) => {
                    ranges.last().map(|range| range.len()) == self.shape(source).last().copied()
                        && self.shape(source).last() == self.shape(v).last()
                }
                ViewStep::Every { axis, .. } => Some(*axis) != rank.checked_sub(1),
            };
            return if keeps { self.paired(source, interleaved, depth) } else { None };
        }
        match node.op.structure() {
            Some(Structure::Cast) => self.paired(node.inputs.first().copied().flatten()?, interleaved, depth),
            Some(Structure::Expand) => {
                let x = node.inputs.first().copied().flatten()?;
                let same = self.shape(x).last() == self.shape(v).last();
                if same { self.paired(x, interleaved, depth) } else { None }
            }
            Some(Structure::Concat) if !interleaved => self.is_twice(n, v).then_some(()),
            _ => self.maps_pairs(n, interleaved, depth),
        }
    }

    /// Whether node `n` writes one value twice into the last axis of `v`.
    fn is_twice(&self, n: usize, v: ValueId) -> bool {
        let inputs: Option<Vec<ValueId>> = self.flow.nodes[n].inputs.iter().copied().collect();
        let Some(inputs) = inputs.filter(|inputs| inputs.len() % 2 == 0) else { return false };
        let (first, second) = inputs.split_at(inputs.len() / 2);
        let mut sum = 0;
        let last = inputs.iter().all(|&input| {
            let (from, to) = (self.shape(input).dims().split_last(), self.shape(v).dims().split_last());
            sum += from.map_or(0, |(last, _)| *last);
            from.map(|(_, rest)| rest) == to.map(|(_, rest)| rest)
        });
        first == second && last && self.shape(v).last() == Some(&sum)
    }

    /// Whether `v` has each element of another value twice, one after the other.
    fn are_repeated(&self, v: ValueId) -> bool {
        let Some(n) = self.index.producer(v) else { return false };
        let pairs = self.before_reshapes(v, self.flow.nodes[n].device);
        let Some(n) = self.index.producer(pairs) else { return false };
        let node = &self.flow.nodes[n];
        // Pairs are the last axis before the last reshape.
        let ([.., 2], true) = (self.shape(pairs).dims(), self.shape(v).last().is_some_and(|n| n % 2 == 0))
        else {
            return false;
        };
        match node.op.structure() {
            Some(Structure::Concat) => node.inputs.len() == 2 && self.is_twice(n, pairs),
            Some(Structure::Expand) => {
                let x = node.inputs.first().copied().flatten();
                x.is_some_and(|x| self.shape(x).last() == Some(&1))
            }
            _ => false,
        }
    }

    /// Whether node `n` maps the elements at one place, of inputs that are paired or have one element.
    fn maps_pairs(&self, n: usize, interleaved: bool, depth: usize) -> Option<()> {
        let node = &self.flow.nodes[n];
        let inputs: Vec<ValueId> = node.inputs.iter().copied().collect::<Option<_>>()?;
        let mut desc = PointwiseDesc::new(vec![Indexing::Full; inputs.len()]);
        let args: Vec<_> = (0..inputs.len()).map(|at| desc.input(at).ok()).collect::<Option<_>>()?;
        node.op.pointwise_expr(&self.flow.cx(n), &mut desc, &args)?;
        let is_one = |v: ValueId| matches!(self.shape(v).last(), None | Some(1));
        inputs.into_iter().filter(|&v| !is_one(v)).try_for_each(|v| self.paired(v, interleaved, depth))
    }
}
