//! Products whose right operand lies in columns, as that of `Gemm` with `transB` does: the transpose of the product is
//! computed in tiles, for which the right operand's columns are rows that are read where they lie, and turned around
//! a few columns at a time.

use super::product::{Mat, Threads};
use super::share::{Cut, PARALLEL, TASK};
use super::tile::{Rows, Start, Tiled};
use crate::ops::Activation;
use crate::ops::scratch::Scratch;

/// Columns of the product that a task's are a multiple of.
const UNIT: usize = 64;
/// Elements of the transposed product that are turned around at a time, where that is enough columns.
const BLOCK: usize = 64 << 10;
/// Columns that are turned around at a time: enough for the left operand's copies to be cheap.
const COLUMNS: [usize; 2] = [128, 512];

/// What the sums of a product are added to.
#[derive(Clone, Copy)]
pub(super) enum To<'a> {
    /// Nothing, or a number for every column.
    Bias(Option<&'a [f32]>),
    /// The elements of the output; there is no activation then.
    Output,
}

/// `c = activation(to + a * b)` of `m` by `k` and `k` by `n` elements in rows of `c_row`; the rows of `a` and the
/// columns of `b` are contiguous.
pub(super) fn turned(
    [m, n, k]: [usize; 3],
    a: Mat<'_, f32>,
    b: Mat<'_, f32>,
    c: &mut [f32],
    c_row: usize,
    (to, activation): (To<'_>, Activation),
    threads: Threads,
) {
    let mut left = Scratch::new(m * k);
    for r in 0..m {
        let row = &a.data[r * a.row..][..k];
        row.iter().zip(left[r..].iter_mut().step_by(m)).for_each(|(x, to)| *to = *x);
    }
    let columns = &Rows { data: &left, row: m };
    let most = (BLOCK / m).clamp(COLUMNS[0], COLUMNS[1]);
    let units = n.div_ceil(UNIT);
    let cut = Cut { work: m * n * k, parallel: PARALLEL, task: TASK, band: m, unit: 8, strips: units };
    let first = |strip: usize, strips: usize| (units * strip / strips * UNIT).min(n);
    let rows = c.chunks_mut(c_row.max(n)).take(m).map(|row| &mut row[..n]);
    let end = |strip: usize, strips: usize| first(strip + 1, strips);
    cut.share([m, n], rows, threads, end, |mut share| {
        let from = first(share.strip, share.strips);
        let width = share.rows.first().map_or(0, |row| row.len());
        let mut block = Scratch::new(most.min(width) * m);
        for at in (0..width).step_by(most) {
            let count = most.min(width - at);
            let block = &mut block[..count * m];
            let start = match to {
                To::Bias(Some(bias)) => Start::PerRow(&bias[from + at..]),
                To::Bias(None) | To::Output => Start::Zero,
            };
            let a = &b.data[(from + at) * b.col..];
            Tiled { a, a_row: b.col, depth: k, columns, start, epilogue: activation.into() }.run(
                count,
                m,
                block,
                m,
                Threads::One,
            );
            for (r, row) in share.rows.iter_mut().enumerate() {
                let sums = block[r..].iter().step_by(m);
                let row = row[at..at + count].iter_mut().zip(sums);
                match to {
                    To::Bias(_) => row.for_each(|(to, sum)| *to = *sum),
                    To::Output => row.for_each(|(to, sum)| *to += *sum),
                }
            }
        }
    });
}
