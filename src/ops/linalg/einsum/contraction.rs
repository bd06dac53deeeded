//! One or two operands summed over the labels that later steps do not need.

use super::equation::{Label, View, Views};
use crate::ops::Cost;
use crate::ops::strided::Nest;

/// One axis of a contraction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Axis {
    pub(super) size: usize,
    /// Strides of the two operands.
    pub(super) strides: [isize; 2],
}

/// `out[kept] = sum over the others of a * b` (of `a`, where there is one operand).
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Contraction {
    /// Axes of the result, in its order.
    pub(super) kept: Vec<Axis>,
    /// Axes that are summed over.
    pub(super) summed: Vec<Axis>,
    /// Whether there are two operands.
    pub(super) binary: bool,
}

/// Where an operand of a step comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Origin {
    /// An input.
    Input(usize),
    /// The result of the previous step.
    Before,
}

/// A contraction and its operands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Step {
    pub(super) a: Origin,
    pub(super) b: Option<Origin>,
    pub(super) contraction: Contraction,
}

/// The steps that compute an equation.
pub(super) fn steps(views: &Views) -> Vec<Step> {
    let mut steps = Vec::new();
    let mut operands = views.operands.iter().enumerate();
    let Some((_, first)) = operands.next() else { return steps };
    let (mut a, mut view) = (Origin::Input(0), first.clone());
    let mut next = operands.next();
    loop {
        let rest: Vec<&View> = match next {
            Some((i, _)) => views.operands.iter().skip(i + 1).collect(),
            None => Vec::new(),
        };
        let b = next.map(|(_, v)| v);
        let kept: Vec<Label> = if rest.is_empty() {
            views.output.clone()
        } else {
            let needed = |l: &Label| {
                views.output.contains(l) || rest.iter().any(|v| v.axes.iter().any(|(o, _)| o == l))
            };
            labels(&view, b).into_iter().filter(needed).collect()
        };
        let axis = |l: Label| {
            let stride = |v: &View| v.axes.iter().find(|(o, _)| *o == l).map_or(0, |(_, s)| *s);
            // A label of neither operand is a broadcast of a later one.
            let here = labels(&view, b).contains(&l);
            let size = if here || rest.is_empty() { views.size(l) } else { 1 };
            Axis { size, strides: [stride(&view), b.map_or(0, stride)] }
        };
        let contraction = Contraction {
            kept: kept.iter().map(|l| axis(*l)).collect(),
            summed: labels(&view, b).into_iter().filter(|l| !kept.contains(l)).map(axis).collect(),
            binary: b.is_some(),
        };
        let strides = contraction.kept_strides();
        view = View { axes: kept.iter().copied().zip(strides).collect() };
        steps.push(Step { a, b: next.map(|(i, _)| Origin::Input(i)), contraction });
        if rest.is_empty() {
            return steps;
        }
        a = Origin::Before;
        next = operands.next();
    }
}

fn labels(a: &View, b: Option<&View>) -> Vec<Label> {
    let mut all: Vec<Label> = Vec::new();
    for (l, _) in a.axes.iter().chain(b.iter().flat_map(|b| &b.axes)) {
        if !all.contains(l) {
            all.push(*l);
        }
    }
    all
}

/// A contraction as products of matrices, by the axes that play each part.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Matrices {
    pub(super) batch: Vec<Axis>,
    /// Axes of the first operand only.
    pub(super) rows: Vec<Axis>,
    /// Axes of the second operand only.
    pub(super) cols: Vec<Axis>,
    pub(super) summed: Vec<Axis>,
    /// Strides of the result along batch, rows and columns.
    out: Vec<isize>,
}

/// Elements along all axes. Those of one operand or of a result are so many; those that are summed over come from
/// two operands, and may be more than any number.
fn product(axes: &[Axis]) -> usize {
    axes.iter().fold(1, |n, a| n.saturating_mul(a.size))
}

/// One operand as contiguous matrices.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Layout {
    /// Walks the operand in that order.
    pub(super) nest: Nest,
    /// Strides of rows and columns where it already has that layout, possibly transposed.
    pub(super) direct: Option<[usize; 2]>,
}

impl Matrices {
    /// `[batch, m, n, k]`
    pub(super) fn sizes(&self) -> [usize; 4] {
        [&self.batch, &self.rows, &self.cols, &self.summed].map(|axes| product(axes))
    }

    /// Operand `which` as `[batch, rows, k]` or `[batch, k, columns]`.
    pub(super) fn layout(&self, which: usize) -> Layout {
        let (rows, cols) = if which == 0 { (&self.rows, &self.summed) } else { (&self.summed, &self.cols) };
        let nest = |x: &[Axis], y: &[Axis]| {
            let axes = [&self.batch, x, y].concat();
            let sizes: Vec<usize> = axes.iter().map(|a| a.size).collect();
            Nest::new(&sizes, &[axes.iter().map(|a| a.strides[which]).collect()])
        };
        let straight = nest(rows, cols);
        let direct = if straight.is_dense(0) {
            Some([product(cols), 1])
        } else if nest(cols, rows).is_dense(0) {
            Some([1, product(rows)])
        } else {
            None
        };
        Layout { nest: straight, direct }
    }

    /// Walks the result in the order of batch, rows and columns.
    pub(super) fn result(&self) -> Nest {
        let axes = [&self.batch[..], &self.rows, &self.cols].concat();
        let sizes: Vec<usize> = axes.iter().map(|a| a.size).collect();
        Nest::new(&sizes, std::slice::from_ref(&self.out))
    }

    /// The transposed products: columns for rows.
    pub(super) fn turned(&self) -> Matrices {
        let turn = |axes: &[Axis]| -> Vec<Axis> {
            axes.iter().map(|a| Axis { strides: [a.strides[1], a.strides[0]], ..*a }).collect()
        };
        let (batch, rows) = (self.batch.len(), self.rows.len());
        let out = [&self.out[..batch], &self.out[batch + rows..], &self.out[batch..batch + rows]].concat();
        Matrices {
            batch: turn(&self.batch),
            rows: turn(&self.cols),
            cols: turn(&self.rows),
            summed: turn(&self.summed),
            out,
        }
    }
}

impl Contraction {
    pub(super) fn kept_sizes(&self) -> Vec<usize> {
        self.kept.iter().map(|a| a.size).collect()
    }

    /// Row-major strides of the result.
    pub(super) fn kept_strides(&self) -> Vec<isize> {
        let mut strides = vec![0; self.kept.len()];
        let mut run = 1isize;
        for (stride, axis) in strides.iter_mut().zip(&self.kept).rev() {
            *stride = if axis.size == 1 { 0 } else { run };
            run = run.saturating_mul(axis.size as isize);
        }
        strides
    }

    pub(super) fn elements(&self) -> usize {
        product(&self.kept)
    }

    /// Number of terms of each element of the result.
    pub(super) fn sums(&self) -> usize {
        product(&self.summed)
    }

    pub(super) fn flops(&self) -> u64 {
        Cost::product(&[2, self.elements(), self.sums()])
    }

    /// Walks both operands along the axes of the result, and along the others.
    pub(super) fn nests(&self) -> [Nest; 2] {
        [&self.kept, &self.summed].map(|axes| {
            let sizes: Vec<usize> = axes.iter().map(|a| a.size).collect();
            let strides = [0, 1].map(|k| axes.iter().map(|a| a.strides[k]).collect());
            Nest::new(&sizes, &strides)
        })
    }

    /// The contraction as products of matrices, where it is one and they are worth it.
    pub(super) fn matrices(&self) -> Option<Matrices> {
        let mut m = Matrices { batch: vec![], rows: vec![], cols: vec![], summed: vec![], out: Vec::new() };
        if !self.binary || self.kept.iter().chain(&self.summed).any(|a| a.size == 0) {
            return None;
        }
        let mut out: [Vec<isize>; 3] = Default::default();
        for (axis, stride) in self.kept.iter().zip(self.kept_strides()).filter(|(a, _)| a.size > 1) {
            let (axes, part) = match axis.strides {
                [0, 0] => return None,
                [_, 0] => (&mut m.rows, 1),
                [0, _] => (&mut m.cols, 2),
                _ => (&mut m.batch, 0),
            };
            axes.push(*axis);
            out[part].push(stride);
        }
        m.out = out.concat();
        m.summed = self.summed.iter().filter(|a| a.size > 1).copied().collect();
        let both = m.summed.iter().all(|a| a.strides[0] != 0 && a.strides[1] != 0);
        let [_, rows, cols, k] = m.sizes();
        (both && k > 1 && rows.max(cols) > 1).then_some(m)
    }
}
