//! The tiles of a task, in registers.

use super::{Product, Right, Strips, WIDTH};
use crate::dot::{Dot, WithDot};
use crate::ops::scratch::Scratch;

/// Bytes of strips that all rows are multiplied with before the next ones: they stay in the second cache.
const TOGETHER: usize = 128 << 10;
/// The most rows of a tile.
const ROWS: usize = 8;

/// Sums of a tile, row by row.
type Sums = [[i32; WIDTH]; ROWS];

/// Part of a product: `rows` from row `row` on, strips `range.0` to `range.1`.
pub(super) struct Tiles<'t, 'y, 'a, R, T, F> {
    pub(super) part: Part<'t, 'a, R, F>,
    pub(super) rows: &'t mut [&'y mut [T]],
}

/// Which part, and the function that stores its sums.
#[derive(Clone, Copy)]
pub(super) struct Part<'t, 'a, R, F> {
    pub(super) of: &'t Product<'a, R>,
    pub(super) strips: &'t Strips,
    pub(super) row: usize,
    pub(super) range: (usize, usize),
    pub(super) finish: &'t F,
}

impl<R: Right, F> Part<'_, '_, R, F> {
    /// Makes elements of the sums of row `row`, of columns from `first` on; `runs` of them are elements of `to`.
    #[inline(always)]
    fn row<T: Copy + Default>(
        &self,
        row: usize,
        first: usize,
        column_sums: &[i32],
        sums: &mut [i32],
        runs: &[(usize, usize)],
        mut to: &mut [T],
    ) where
        F: Fn(usize, usize, &mut [i32], &mut [T]),
    {
        self.of.complete(row, first, column_sums, sums);
        let n = sums.len();
        if let (&[(0, len)], Some(to)) = (runs, to.get_mut(..n))
            && len == n
        {
            return (self.finish)(row, first, sums, to);
        }
        let mut elements = [T::default(); WIDTH];
        (self.finish)(row, first, sums, &mut elements);
        for &(from, len) in runs {
            let (now, later) = to.split_at_mut(len.min(to.len()));
            if let Some(elements) = elements.get(from..from + now.len()) {
                now.copy_from_slice(elements);
            }
            to = later;
        }
    }
}

impl<R, T, F> WithDot for Tiles<'_, '_, '_, R, T, F>
where
    R: Right,
    T: Copy + Default,
    F: Fn(usize, usize, &mut [i32], &mut [T]),
{
    type Output = ();

    #[inline(always)]
    fn with<D: Dot>(self, dot: D) {
        let Part { of, strips, .. } = self.part;
        let start = of.right.elements_before(strips.first(self.part.range.0));
        let as_bytes = size_of::<D::Four>() == 4;
        let mut kept = Scratch::<D::Four>::new(if as_bytes { 0 } else { D::ROWS.max(4) * of.groups });
        let own = of.around.left_zeros.iter().any(|zero| *zero != 0) && of.right.column_sums().is_none();
        let mut sums: Sums = [[0; WIDTH]; ROWS];
        let mut column_sums = Vec::new();
        let mut done = self.part.range.0;
        while done < self.part.range.1 {
            let mut end = done + 1;
            while end < self.part.range.1
                && 4 * of.groups * (strips.first(end + 1) - strips.first(done)) <= TOGETHER
            {
                end += 1;
            }
            let origin = strips.first(done);
            if own {
                column_sums.clear();
                column_sums.resize(strips.first(end) - origin, 0);
                for strip in done..end {
                    let (first, n) = (strips.first(strip), strips.vectors(strip) * D::LANES);
                    let to = column_sums.get_mut(first - origin..).unwrap_or_default();
                    for first in (0..n).step_by(D::LANES) {
                        columns::<D, R>(dot, of, strips.first(strip), n, first, to);
                    }
                }
            }
            let known = of.right.column_sums().and_then(|sums| sums.get(origin..)).unwrap_or(&column_sums);
            let mut r = 0;
            while r < self.rows.len() {
                let rest = self.rows.len() - r;
                let count = match rest {
                    _ if rest >= D::ROWS => D::ROWS,
                    4.. => 4,
                    2.. => 2,
                    _ => 1,
                };
                let Some(rows) = self.rows.get_mut(r..r + count) else { return };
                let bytes = &of.left[4 * of.groups * (self.part.row + r)..][..4 * of.groups * count];
                let bytes = bytes.as_chunks::<4>().0;
                let fours: &[D::Four] = if as_bytes {
                    bytemuck::cast_slice(bytes)
                } else {
                    // Once for all of these columns.
                    for (kept, four) in kept.iter_mut().zip(bytes) {
                        *kept = if R::LEFT_SIGNED { D::kept::<true>(*four) } else { D::kept::<false>(*four) };
                    }
                    &kept
                };
                for strip in done..end {
                    let (first, vectors) = (strips.first(strip), strips.vectors(strip));
                    let n = vectors * D::LANES;
                    let row = self.part.row + r;
                    match (count, vectors) {
                        (8, 3) => tile::<D, R, 8, 3>(dot, of, fours, first, &mut sums),
                        (8, 2) => tile::<D, R, 8, 2>(dot, of, fours, first, &mut sums),
                        (8, _) => tile::<D, R, 8, 1>(dot, of, fours, first, &mut sums),
                        (6, _) => tile::<D, R, 6, 1>(dot, of, fours, first, &mut sums),
                        (4, 3) => tile::<D, R, 4, 3>(dot, of, fours, first, &mut sums),
                        (4, 2) => tile::<D, R, 4, 2>(dot, of, fours, first, &mut sums),
                        (4, _) => tile::<D, R, 4, 1>(dot, of, fours, first, &mut sums),
                        (2, 3) => tile::<D, R, 2, 3>(dot, of, fours, first, &mut sums),
                        (2, 2) => tile::<D, R, 2, 2>(dot, of, fours, first, &mut sums),
                        (2, _) => tile::<D, R, 2, 1>(dot, of, fours, first, &mut sums),
                        (_, 3) => tile::<D, R, 1, 3>(dot, of, fours, first, &mut sums),
                        (_, 2) => tile::<D, R, 1, 2>(dot, of, fours, first, &mut sums),
                        _ => tile::<D, R, 1, 1>(dot, of, fours, first, &mut sums),
                    }
                    let mut runs = [(0, 0); WIDTH];
                    let mut found = 0;
                    of.right.runs(first, n, |from, len| {
                        if let Some(run) = runs.get_mut(found) {
                            (*run, found) = ((from, len), found + 1);
                        }
                    });
                    let runs = runs.get(..found).unwrap_or_default();
                    let at = of.right.elements_before(first) - start;
                    for (i, (to, sums)) in rows.iter_mut().zip(&mut sums).enumerate() {
                        let known = known.get(first - origin..).unwrap_or(&[]);
                        let to = to.get_mut(at..).unwrap_or_default();
                        // The length is a constant after inlining.
                        if n == WIDTH {
                            self.part.row(row + i, first, known, sums, runs, to);
                        } else if let Some(sums) = sums.get_mut(..n) {
                            self.part.row(row + i, first, known, sums, runs, to);
                        }
                    }
                }
                r += count;
            }
            done = end;
        }
    }
}

impl<R: Right> Product<'_, R> {
    /// Adds the summands of [`Around`](super::Around) to the sums of row `row`, of columns from `first` on.
    #[inline(always)]
    fn complete(&self, row: usize, first: usize, column_sums: &[i32], sums: &mut [i32]) {
        let around = &self.around;
        let start = around.rows.get(row).copied().unwrap_or(0);
        let zero = match around.left_zeros {
            [zero] => *zero,
            all => all.get(row).copied().unwrap_or(0),
        };
        if zero == 0 {
            sums.iter_mut().for_each(|sum| *sum = sum.wrapping_add(start));
        } else {
            for (sum, of_column) in sums.iter_mut().zip(column_sums) {
                *sum = sum.wrapping_add(start).wrapping_sub(zero.wrapping_mul(*of_column));
            }
        }
        if let Some((zeros, factors)) = around.right_zeros {
            let factor = factors.get(row).copied().unwrap_or(0);
            for (sum, zero) in sums.iter_mut().zip(zeros.get(first..).unwrap_or(&[])) {
                *sum = sum.wrapping_add(zero.wrapping_mul(factor));
            }
        }
    }
}

/// The sums of the bytes of one vector of columns, from `at` of the strip of `n` columns at `first` on.
#[inline(always)]
fn columns<D: Dot, R: Right>(dot: D, of: &Product<'_, R>, first: usize, n: usize, at: usize, to: &mut [i32]) {
    let mut sums = dot.zero();
    for k in 0..of.groups {
        let bytes = of.right.step(first, n, k).get(4 * at..).unwrap_or(&[]);
        let right = right::<D, R>(dot, bytes);
        sums = match R::LEFT_SIGNED {
            true => dot.add::<true>(sums, dot.left(D::kept::<true>([1; 4])), right),
            false => dot.add::<false>(sums, dot.left(D::kept::<false>([1; 4])), right),
        };
    }
    dot.store(sums, to.get_mut(at..).unwrap_or_default());
}

#[inline(always)]
fn right<D: Dot, R: Right>(dot: D, bytes: &[u8]) -> D::Right {
    if R::LEFT_SIGNED { dot.right::<false>(bytes) } else { dot.right::<true>(bytes) }
}

/// One tile: the `N` rows that `rows` begins with, `V` vectors of columns from `first` on.
#[inline(always)]
#[allow(clippy::needless_range_loop, reason = "constant indices keep the sums in registers")]
fn tile<D: Dot, R: Right, const N: usize, const V: usize>(
    dot: D,
    of: &Product<'_, R>,
    rows: &[D::Four],
    first: usize,
    to: &mut Sums,
) {
    let mut left: [&[D::Four]; N] = [&[]; N];
    for i in 0..N {
        left[i] = &rows[i * of.groups..][..of.groups];
    }
    let n = V * D::LANES;
    let mut sums = [[dot.zero(); V]; N];
    for k in 0..of.groups {
        let bytes = &of.right.step(first, n, k)[..4 * n];
        let mut columns = [right::<D, R>(dot, &[]); V];
        for j in 0..V {
            columns[j] = right::<D, R>(dot, &bytes[4 * D::LANES * j..][..4 * D::LANES]);
        }
        for i in 0..N {
            for j in 0..V {
                sums[i][j] = match R::LEFT_SIGNED {
                    true => dot.add::<true>(sums[i][j], dot.left(left[i][k]), columns[j]),
                    false => dot.add::<false>(sums[i][j], dot.left(left[i][k]), columns[j]),
                };
            }
        }
    }
    for i in 0..N {
        for j in 0..V {
            dot.store(sums[i][j], &mut to[i][j * D::LANES..]);
        }
    }
}
