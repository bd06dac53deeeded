//! Scores of attention: a product of queries and keys with a factor, and what is added to it.

use super::search::Search;
use crate::operator::{Elementwise, Structure};
use crate::plan::flow::ValueId;

/// Operators between the product and the softmax.
const DEEPEST: usize = 8;
/// Numbers from here down absorb every score that is added to them.
const HIDES: f32 = -1e30;

/// `scale * q k' + terms`.
pub(super) struct Scores {
    /// The node of the product.
    pub product: usize,
    pub scale: f32,
    pub terms: Vec<Term>,
}

/// A part of a mask.
#[derive(Clone, Copy, Debug)]
pub(super) enum Term {
    /// `factor * mask`
    Added { mask: ValueId, factor: f32 },
    /// `number` where `condition` is `when`, else 0, in the type of `like`.
    Hidden { condition: ValueId, when: bool, number: f32, like: ValueId },
}

impl Term {
    /// The value that decides the shape.
    pub(super) fn value(&self) -> ValueId {
        match *self {
            Term::Added { mask, .. } => mask,
            Term::Hidden { condition, .. } => condition,
        }
    }
}

impl Search<'_> {
    /// The scores that `v` is.
    pub(super) fn scores(&self, v: ValueId) -> Option<Scores> {
        self.scaled_scores(v, 1.0, DEEPEST)
    }

    /// The scores of which `factor * v` is taken.
    fn scaled_scores(&self, v: ValueId, factor: f32, depth: usize) -> Option<Scores> {
        let (v, own) = self.unscaled(v);
        let (factor, depth) = (factor * own, depth.checked_sub(1)?);
        let (n, op) = self.maker(v)?;
        if let Some((product, _)) = self.product(v) {
            return Some(Scores { product, scale: factor, terms: Vec::new() });
        }
        let of = |s: ValueId| {
            if self.shape(s) == self.shape(v) { self.scaled_scores(s, factor, depth) } else { None }
        };
        let (mut scores, term) = match op.structure()? {
            Structure::Elementwise(Elementwise::Add) => {
                let [a, b] = self.inputs(n)?;
                let found = of(a).map(|scores| (scores, b)).or_else(|| Some((of(b)?, a)));
                let (scores, mask) = found?;
                (scores, Term::Added { mask, factor })
            }
            Structure::Select => {
                let [condition, a, b] = self.inputs(n)?;
                let hides = |low: ValueId| self.flow.number(low).filter(|&low| low <= HIDES);
                let (scores, when, number) = match (hides(a), hides(b)) {
                    (Some(low), None) => (of(b)?, true, low),
                    (None, Some(low)) => (of(a)?, false, low),
                    _ => return None,
                };
                let number = number * factor;
                (scores, Term::Hidden { condition, when, number, like: v })
            }
            _ => return None,
        };
        scores.terms.push(term);
        Some(scores)
    }
}
