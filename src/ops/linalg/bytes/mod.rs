//! Products of matrices of bytes, exact in 32-bit sums.
//!
//! The left operand is read where it lies, four bytes of a row for a whole vector of columns; the right one lies with
//! four rows of a column side by side ([`Right`]). Tiles of sums stay in registers over the whole depth, as in
//! `tile.rs`. Bytes are multiplied as they are; [`Around`] has what zero points add to a sum.

mod panels;
mod tile;

pub(crate) use panels::{Packing, Panels, Strips};

use std::cell::Cell;

use super::product::Threads;
use super::share::{Cut, Share};
use crate::dot::Unit;

/// Multiplications below which one thread is faster.
const PARALLEL: usize = 400_000;
/// Multiplications of one task at least.
const TASK: usize = 500_000;
/// Rows of the product that one task has at least.
const BAND: usize = 32;
/// The most columns of a tile.
pub(crate) const WIDTH: usize = 48;

/// Converts a signed byte to the unsigned byte that is 128 larger, and back.
pub(crate) const FLIP: u8 = 0x80;

/// A right operand: of every column groups of four bytes, one from each of four rows.
pub(crate) trait Right: Sync {
    /// Whether the left operand is signed and this one is not, or the other way round.
    const LEFT_SIGNED: bool;

    /// Group `k` of columns `first` to `first + n`, a strip: at least `4 * n` bytes.
    fn step(&self, first: usize, n: usize, k: usize) -> &[u8];

    /// The sums of the bytes of each column, where they are known.
    fn column_sums(&self) -> Option<&[i32]> {
        None
    }

    /// Number of elements of a row of the output before column `column`.
    fn elements_before(&self, column: usize) -> usize {
        column
    }

    /// Calls `f(from, len)` for the columns of `first` to `first + n` that are elements of the output, one after the
    /// other; `from` counts from `first`.
    fn runs(&self, _first: usize, n: usize, mut f: impl FnMut(usize, usize)) {
        f(0, n);
    }
}

/// The summand of the sum of products of row `r` and column `c`:
/// `rows[r] - left_zeros[r] * (sum of the column) + right_zeros[c] * factors[r]`.
///
/// With zero points `a` of the row and `b` of the column over a depth of `k`, the sum of `(x - a) * (y - b)` is the sum
/// of `x * y` less `a` times the sum of the `y`, plus `b * (k * a - sum of the x)`: the factor.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Around<'a> {
    /// One for every row, or none.
    pub(crate) rows: &'a [i32],
    /// One for every row, one for all, or none.
    pub(crate) left_zeros: &'a [i32],
    /// One for every column, and the factors of every row; or none.
    pub(crate) right_zeros: Option<(&'a [i32], &'a [i32])>,
}

/// A product, of `groups` times four bytes for each sum.
pub(crate) struct Product<'a, R> {
    /// Rows of `groups` times four bytes, contiguous.
    pub(crate) left: &'a [u8],
    pub(crate) groups: usize,
    pub(crate) right: &'a R,
    pub(crate) around: Around<'a>,
    pub(crate) unit: Unit,
}

/// Part of the output: rows from `row` on, strips `strips.0` to `strips.1`.
struct Task<'y, T> {
    row: usize,
    strips: (usize, usize),
    rows: Vec<&'y mut [T]>,
}

impl<R: Right> Product<'_, R> {
    /// Computes `m` rows of `n` columns. `finish(row, column, sums, to)` makes elements of the sums from that column
    /// on; it must be `#[inline(always)]`. The elements of rows of `y` begin `y_row` apart.
    pub(crate) fn run<T: Copy + Default + Send>(
        &self,
        [m, n]: [usize; 2],
        y: &mut [T],
        y_row: usize,
        threads: Threads,
        finish: impl Fn(usize, usize, &mut [i32], &mut [T]) + Sync,
    ) {
        let strips = Strips::new(n, self.unit.tile());
        if m == 0 || strips.count() == 0 || self.left.len() < m * self.groups * 4 {
            return;
        }
        let count = strips.count();
        let len = self.right.elements_before(n);
        let cut = Cut {
            work: m.saturating_mul(n).saturating_mul(4 * self.groups),
            parallel: PARALLEL,
            task: TASK,
            band: BAND,
            unit: 8,
            strips: count,
        };
        let first = |strip: usize, of: usize| count * strip / of;
        let rows = y.chunks_mut(y_row.max(1)).take(m).filter_map(|row| row.get_mut(..len));
        let end =
            |strip: usize, of: usize| self.right.elements_before(strips.first(first(strip + 1, of)).min(n));
        cut.share([m, n], rows, threads, end, |Share { row, strip, strips: of, rows }| {
            let range = (first(strip, of), first(strip + 1, of));
            self.task(&strips, Task { row, strips: range, rows }, &finish);
        });
    }

    fn task<T: Copy + Default>(
        &self,
        strips: &Strips,
        mut task: Task<'_, T>,
        finish: &impl Fn(usize, usize, &mut [i32], &mut [T]),
    ) {
        let part = tile::Part { of: self, strips, row: task.row, range: task.strips, finish };
        self.unit.run(tile::Tiles { part, rows: &mut task.rows });
    }
}

thread_local! {
    static SCRATCH: Cell<Vec<u8>> = const { Cell::new(Vec::new()) };
}

/// Calls `f` with `bytes` bytes of any content, which the thread keeps for the next call.
pub(crate) fn with_scratch<R>(bytes: usize, f: impl FnOnce(&mut [u8]) -> R) -> R {
    let mut scratch = SCRATCH.take();
    if scratch.len() < bytes {
        scratch.resize(bytes, 0);
    }
    let result = f(scratch.get_mut(..bytes).unwrap_or_default());
    SCRATCH.set(scratch);
    result
}

/// The sums of the bytes of rows of `row` bytes, signed ones where `SIGNED`.
pub(crate) fn row_sums<const SIGNED: bool>(rows: &[u8], row: usize) -> Vec<i32> {
    let number = |byte: &u8| if SIGNED { i32::from(*byte as i8) } else { i32::from(*byte) };
    let sum = |row: &[u8]| {
        crate::simd::wide(
            #[inline(always)]
            || row.iter().map(number).fold(0i32, i32::wrapping_add),
        )
    };
    rows.chunks(row.max(1)).map(sum).collect()
}

#[cfg(test)]
mod tests;
