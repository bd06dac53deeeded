//! Scores of attention: a product of queries and keys with a factor, and what is added to it.

use super::search::Search;
use crate::dtype::DType;
use crate::operator::{Elementwise, Structure};
use crate::plan::flow::ValueId;
use crate::shape::Shape;

/// Operators between the product and the softmax.
const DEEPEST: usize = 8;
/// Numbers from here down absorb every score that is added to them.
const HIDES: f32 = -1e30;
/// Scores of float16 from here down have the weight 0 where another key is seen: the type ends at 65504.
const HIDES_F16: f32 = -1e4;

/// The most elements of scores to which a mask of windows is added, as the sum with other terms has as many.
const MOST_OF_WINDOWS: usize = 1 << 22;

/// `scale * factor * q k' + terms`.
pub(super) struct Scores {
    /// The node of the product.
    pub product: usize,
    pub scale: f32,
    /// A number for each head.
    pub factor: Option<ValueId>,
    pub terms: Vec<Term>,
}

/// A part of a mask.
#[derive(Clone, Copy, Debug)]
pub(super) enum Term {
    /// `factor * mask`
    Added { mask: ValueId, factor: f32 },
    /// `factor * mask`, where the mask is of images and windows apart.
    OfWindows { mask: ValueId, factor: f32, windows: Windows },
    /// `number` where `condition` is `when`, else 0, in the type of `like`.
    Hidden { condition: ValueId, when: bool, number: f32, like: ValueId },
}

impl Term {
    /// The value that decides the shape.
    pub(super) fn value(&self) -> ValueId {
        match *self {
            Term::Added { mask, .. } | Term::OfWindows { mask, .. } => mask,
            Term::Hidden { condition, .. } => condition,
        }
    }
}

/// Scores `[images * windows, heads, queries, keys]`.
#[derive(Clone, Copy, Debug)]
pub(super) struct Windows {
    pub images: usize,
    pub windows: usize,
}

impl Windows {
    /// What a mask of five axes is for each window, where all images share it or each has its own.
    pub(super) fn expanded(&self, mask: &[usize]) -> Option<[usize; 5]> {
        let &[images, windows, heads, queries, keys] = mask else { return None };
        let [images, windows] = if images * windows == 1 { [1; 2] } else { [self.images, self.windows] };
        Some([images, windows, heads, queries, keys])
    }

    /// [`Windows::expanded`] with one axis of images and windows.
    pub(super) fn joined(&self, mask: &[usize]) -> Option<Shape> {
        let [images, windows, rest @ ..] = self.expanded(mask)?;
        Shape::new([&[images * windows], &rest[..]].concat()).ok()
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
            return Some(Scores { product, scale: factor, factor: None, terms: Vec::new() });
        }
        let of = |s: ValueId| {
            if self.shape(s) == self.shape(v) { self.scaled_scores(s, factor, depth) } else { None }
        };
        if op.alias(&self.flow.cx(n)).is_some() {
            return self.scores_of_windows(v, factor, depth);
        }
        let (mut scores, term) = match op.structure()? {
            Structure::Elementwise(Elementwise::Mul) => {
                let [a, b] = self.inputs(n)?;
                let (scores, by) = of(a).map(|scores| (scores, b)).or_else(|| Some((of(b)?, a)))?;
                let one = scores.factor.is_none() && scores.terms.is_empty();
                return one.then_some(Scores { factor: Some(by), ..scores });
            }
            Structure::Elementwise(Elementwise::Add) => {
                let [a, b] = self.inputs(n)?;
                let found = of(a).map(|scores| (scores, b)).or_else(|| Some((of(b)?, a)));
                let (scores, mask) = found?;
                (scores, Term::Added { mask, factor })
            }
            Structure::Select => {
                let [condition, a, b] = self.inputs(n)?;
                let is_half = self.flow.values[v].info.dtype == DType::F16;
                let most = if is_half { HIDES_F16 } else { HIDES };
                let hides = |low: ValueId| self.flow.number(low).filter(|&low| low <= most);
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

    /// The scores of which `factor * v` is taken, where `v` is a sum with a mask, of images and windows apart, with one axis
    /// of both again.
    fn scores_of_windows(&self, v: ValueId, factor: f32, depth: usize) -> Option<Scores> {
        let apart = self.reshaped(v)?;
        let (n, op) = self.maker(apart)?;
        let (&[images, windows, ..], &[both, heads, queries, keys]) =
            (self.shape(apart).dims(), self.shape(v).dims())
        else {
            return None;
        };
        let fits = op.structure() == Some(Structure::Elementwise(Elementwise::Add))
            && self.shape(apart).dims() == [images, windows, heads, queries, keys]
            && images * windows == both
            && self.shape(v).elements() <= MOST_OF_WINDOWS;
        let [a, b] = self.inputs(n).filter(|_| fits)?;
        let of = |s: ValueId| {
            let joined = self.reshaped(s).filter(|_| self.shape(s) == self.shape(apart))?;
            (self.shape(joined) == self.shape(v)).then(|| self.scaled_scores(joined, factor, depth))?
        };
        let (mut scores, mask) = of(a).map(|scores| (scores, b)).or_else(|| Some((of(b)?, a)))?;
        (self.shape(mask).rank() == 5).then_some(())?;
        scores.terms.push(Term::OfWindows { mask, factor, windows: Windows { images, windows } });
        Some(scores)
    }

    /// What `v` has in another shape.
    fn reshaped(&self, v: ValueId) -> Option<ValueId> {
        self.flow.reshaped(self.maker(v)?.0, v)
    }
}
