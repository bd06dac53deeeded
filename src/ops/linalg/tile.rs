//! Products of `f32` matrices in tiles of vector registers.
//!
//! The right operand is made a few columns at a time, so that what a convolution unfolds never lies in memory
//! as a whole; the left one is read where it lies, one element for a whole vector. The tiles are those of
//! Goto and van de Geijn, "Anatomy of High-Performance Matrix Multiplication" (2008), without their packing
//! of the left operand.

use std::cell::Cell;

use pulp::{Simd, WithSimd};

use super::product::Threads;
use super::share::{Cut, PARALLEL, TASK};
use crate::dot::Ahead;
use crate::ops::Activation;
use crate::ops::activation::Epilogue;
use crate::ops::real::{Real, as_f32s, as_f32s_mut};
use crate::simd::arch;

/// Vectors in a row of a tile, at most: with 8 rows they fill 32 registers. Where there are 16 (those of 8 elements),
/// 2 vectors and 6 rows do.
const VECTORS: usize = 3;
/// Elements of columns that are multiplied together, if more than one strip of them: they stay in the second cache,
/// and rows of both matrices are read and written in longer pieces.
const TOGETHER: usize = 16 << 10;
/// Bytes of a panel that the tiles of several rows multiply in turn: they stay in the first cache.
pub(super) const PANEL_BYTES: usize = 24 << 10;
/// Maximum number of columns after the last whole vector that are computed as products of a row and a column.
const DOTS: usize = 4;
/// Columns of the left operand from which on that is faster than one more vector.
const DOTS_FROM: usize = 64;
/// Elements of a unit that columns are shared out in: a multiple of every CPU's vector.
const UNIT: usize = 16;

thread_local! {
    /// Columns that are being multiplied.
    static PANEL: Cell<Vec<f32>> = const { Cell::new(Vec::new()) };
}

/// A right operand.
pub(crate) trait Columns: Sync {
    /// Rows of the product that one task has at least, so that making the columns for each task stays cheap.
    const BAND: usize;

    /// Writes the `n` columns from `first` on: a row of `pitch` elements for every row of the operand, of
    /// which only the first `n` count.
    fn fill<S: Simd>(&self, simd: S, first: usize, n: usize, pitch: usize, to: &mut [f32]);
}

/// The columns of a matrix of rows of `row` elements.
pub(crate) struct Rows<'a> {
    pub(crate) data: &'a [f32],
    pub(crate) row: usize,
}

impl Columns for Rows<'_> {
    const BAND: usize = 64;

    #[inline(always)]
    fn fill<S: Simd>(&self, _: S, first: usize, n: usize, pitch: usize, to: &mut [f32]) {
        for (to, from) in to.chunks_exact_mut(pitch).zip(self.data.chunks(self.row)) {
            let from = &from[first..];
            if from.len() >= pitch {
                // The length is a constant after inlining.
                to.copy_from_slice(&from[..pitch]);
            } else {
                to[..n].copy_from_slice(&from[..n]);
            }
        }
    }
}

/// The initial value of the sums.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Start<'a> {
    /// Zero.
    Zero,
    /// The elements of the output.
    Output,
    /// One number for every row of the output.
    PerRow(&'a [f32]),
    /// One number for every column of the output.
    PerColumn(&'a [f32]),
}

/// `epilogue(start + a * columns)`, of contiguous rows.
pub(crate) struct Tiled<'a, C> {
    /// The left operand; row `r` begins at `r * a_row`.
    pub(crate) a: &'a [f32],
    pub(crate) a_row: usize,
    /// Columns of the left operand, rows of the right one.
    pub(crate) depth: usize,
    pub(crate) columns: &'a C,
    pub(crate) start: Start<'a>,
    pub(crate) epilogue: Epilogue<'a, f32>,
}

/// The left operand of a product, what its sums begin with, and what is done with them.
#[derive(Clone, Copy)]
pub(super) struct Sums<'a> {
    /// Row `first + r` begins at `r * a_row`.
    pub(super) a: &'a [f32],
    pub(super) a_row: usize,
    pub(super) first: usize,
    pub(super) depth: usize,
    pub(super) start: Start<'a>,
    pub(super) epilogue: Epilogue<'a, f32>,
}

impl<'a> Sums<'a> {
    /// The same in parts of about the same depth, of at most `most`, which are added one after the other: where each begins, and
    /// its sums.
    pub(super) fn parts(self, most: usize) -> impl Iterator<Item = (usize, Sums<'a>)> {
        let count = self.depth.div_ceil(most.max(1)).max(1);
        (0..count).map(move |part| {
            let [from, to] = [part, part + 1].map(|part| self.depth * part / count);
            let a = self.a.get(from..).unwrap_or_default();
            let start = if part == 0 { self.start } else { Start::Output };
            let epilogue = if part + 1 == count { self.epilogue } else { Activation::None.into() };
            (from, Sums { a, depth: to - from, start, epilogue, ..self })
        })
    }
}

/// Elements of this CPU's vectors.
pub(crate) fn lanes() -> usize {
    struct Lanes;
    impl WithSimd for Lanes {
        type Output = usize;
        #[inline(always)]
        fn with_simd<S: Simd>(self, _: S) -> usize {
            S::F32_LANES
        }
    }
    arch().dispatch(Lanes)
}

/// Vectors in a row of a tile, at most, where they have so many elements.
#[inline(always)]
pub(super) const fn most_vectors(lanes: usize) -> usize {
    if lanes == 8 { 2 } else { VECTORS }
}

/// Rows of a tile, at most.
#[inline(always)]
pub(super) const fn most_rows(lanes: usize) -> usize {
    if lanes == 8 { 6 } else { 8 }
}

/// Whether this CPU has vectors that tiles are faster with than the `gemm` crate is without.
pub(crate) fn has_vectors() -> bool {
    (4..=UNIT).contains(&lanes())
}

impl<'a, C: Columns> Tiled<'a, C> {
    #[inline(always)]
    fn sums(&self) -> Sums<'a> {
        let &Tiled { a, a_row, depth, start, epilogue, .. } = self;
        Sums { a, a_row, first: 0, depth, start, epilogue }
    }

    /// Computes `m` rows of `n` elements of `y`, which begin `y_row` elements apart; each task makes its columns.
    pub(super) fn in_strips(&self, m: usize, n: usize, y: &mut [f32], y_row: usize, threads: Threads) {
        if m == 0 || n == 0 {
            return;
        }
        let units = n.div_ceil(UNIT);
        let cut = Cut {
            work: m * n * self.depth,
            parallel: PARALLEL,
            task: TASK,
            band: C::BAND,
            unit: 8,
            strips: n.div_ceil(UNIT * VECTORS),
        };
        let first = |strip: usize, strips: usize| units * strip / strips * UNIT;
        let rows = y.chunks_mut(y_row.max(n)).take(m).map(|row| &mut row[..n]);
        let end = |strip: usize, strips: usize| first(strip + 1, strips).min(n);
        cut.share([m, n], rows, threads, end, |share| {
            self.task([share.row, first(share.strip, share.strips)], share.rows, y_row);
        });
    }

    /// The rows `rows`, which begin at row `row` and column `column` of the output, whose rows begin `y_row` apart.
    fn task(&self, [row, column]: [usize; 2], mut rows: Vec<&mut [f32]>, y_row: usize) {
        let mut panel = PANEL.take();
        let after = self.depth * UNIT + DOTS * (self.depth + UNIT);
        let needed = ((self.depth + UNIT) * VECTORS * UNIT).max(TOGETHER) + after;
        if panel.len() < needed {
            panel.resize(needed, 0.0);
        }
        let work = Task { of: self, row, column, rows: &mut rows, y_row, panel: &mut panel };
        arch().dispatch(work);
        PANEL.set(panel);
    }
}

struct Task<'t, 'y, 'a, C> {
    of: &'t Tiled<'a, C>,
    row: usize,
    column: usize,
    rows: &'t mut [&'y mut [f32]],
    /// Stride of rows of the output.
    y_row: usize,
    panel: &'t mut [f32],
}

impl<C: Columns> WithSimd for Task<'_, '_, '_, C> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let width = self.rows.first().map_or(0, |row| row.len());
        let rest = width % S::F32_LANES;
        let dots = (1..=DOTS).contains(&rest) && self.of.depth >= DOTS_FROM;
        let vectors = if dots { width / S::F32_LANES } else { width.div_ceil(S::F32_LANES) };
        let most = most_vectors(S::F32_LANES);
        let together = (TOGETHER / (self.of.depth * most * S::F32_LANES).max(1)).max(1);
        let after = if dots { rest } else { 0 };
        let mut task = self;
        let mut done = 0;
        if vectors == 0 {
            task.strips::<S, 1>(simd, Strips { at: 0, n: 0, strips: 0, after });
        }
        while done < vectors {
            let left = vectors - done;
            // A single vector at the end makes poor use of the registers: two strips of two are better.
            let alone = left % most == 1 && most == VECTORS;
            let whole = if alone { (left / most).saturating_sub(1) } else { left / most };
            let (wide, strips) = match whole {
                0 => (if alone && left > 1 { 2 } else { left.min(most) }, 1),
                whole => (most, whole.min(together)),
            };
            let at = done * S::F32_LANES;
            let n = (wide * strips * S::F32_LANES).min(width - at);
            done += wide * strips;
            let now = Strips { at, n, strips, after: if done == vectors { after } else { 0 } };
            match wide {
                1 => task.strips::<S, 1>(simd, now),
                2 => task.strips::<S, 2>(simd, now),
                _ => task.strips::<S, VECTORS>(simd, now),
            }
        }
    }
}

/// Strips of columns that are multiplied together, and what comes after them.
#[derive(Clone, Copy)]
struct Strips {
    /// The first column, of the task's.
    at: usize,
    /// Columns that count.
    n: usize,
    strips: usize,
    /// Columns after these that are products of a row and a column.
    after: usize,
}

impl<C: Columns> Task<'_, '_, '_, C> {
    /// Strips of `V` vectors of columns, of all rows.
    #[inline(always)]
    fn strips<S: Simd, const V: usize>(&mut self, simd: S, of: Strips) {
        let Strips { at, n, strips, after } = of;
        let (tiled, depth) = (self.of, self.of.depth);
        let pitch = V * S::F32_LANES;
        let len = depth * pitch;
        let Some((panels, others)) = self.panel.split_at_mut_checked(len * strips) else { return };
        for (strip, panel) in panels.chunks_exact_mut(len.max(1)).enumerate() {
            let n = (n - strip * pitch).min(pitch);
            tiled.columns.fill(simd, self.column + at + strip * pitch, n, pitch, panel);
        }
        let Some(dots) = Dots::new(simd, tiled, self.column, [at + n, after], self.y_row, others) else {
            return;
        };
        let place = Place { column: self.column, at, n, strips, y_row: self.y_row };
        let (panels, _) = S::as_simd_f32s(panels);
        let in_turn = strips == 1 && self.rows.len() > most_rows(S::F32_LANES);
        let most = if in_turn { PANEL_BYTES / size_of::<f32>() / pitch } else { depth };
        for (from, sums) in tiled.sums().parts(most) {
            let panels = if in_turn { &panels[from * V..] } else { panels };
            let is_last = from + sums.depth == depth;
            let (mut rest, mut row) = (&mut *self.rows, self.row);
            while !rest.is_empty() {
                let most = most_rows(S::F32_LANES);
                let r = if rest.len() >= most { most } else { 1 << rest.len().ilog2() };
                let (now, later) = rest.split_at_mut(r);
                match r {
                    8 => blocks::<S, 8, V>(simd, &sums, row, place, panels, now),
                    6 => blocks::<S, 6, V>(simd, &sums, row, place, panels, now),
                    4 => blocks::<S, 4, V>(simd, &sums, row, place, panels, now),
                    2 => blocks::<S, 2, V>(simd, &sums, row, place, panels, now),
                    _ => blocks::<S, 1, V>(simd, &sums, row, place, panels, now),
                }
                if is_last {
                    // The rows of the left operand are in the first cache now.
                    dots.of_rows(simd, tiled, row, now);
                }
                (rest, row) = (later, row + r);
            }
        }
        // Bounds are cheap in registers; what takes longer has its own loop, over what is in the cache yet.
        if tiled.epilogue.bounds().is_none() {
            for (i, row) in self.rows.iter_mut().enumerate() {
                let first = (self.row + i) * self.y_row + self.column + at;
                tiled.epilogue.activate(&mut row[at..at + n], first);
            }
        }
    }
}

/// The `n` columns from `at` of a task on, which begins at column `column` of the output, contiguous.
struct Dots<'p> {
    columns: &'p [f32],
    pitch: usize,
    column: usize,
    at: usize,
    n: usize,
    /// Stride of rows of the output.
    y_row: usize,
}

impl<'p> Dots<'p> {
    /// `None` where `room` is too small for them.
    #[inline(always)]
    fn new<S: Simd, C: Columns>(
        simd: S,
        of: &Tiled<'_, C>,
        column: usize,
        [at, n]: [usize; 2],
        y_row: usize,
        room: &'p mut [f32],
    ) -> Option<Dots<'p>> {
        let pitch = of.depth.next_multiple_of(S::F32_LANES);
        let (panel, columns) = room.split_at_mut_checked(of.depth * UNIT)?;
        if n > 0 {
            of.columns.fill(simd, column + at, n, UNIT, panel);
            for (k, panel) in panel.chunks_exact(UNIT).enumerate() {
                for c in 0..n {
                    columns[c * pitch + k] = panel[c];
                }
            }
        }
        Some(Dots { columns, pitch, column, at, n, y_row })
    }

    /// Computes them of `rows`, the first of which is row `row` of the output.
    #[inline(always)]
    fn of_rows<S: Simd, C>(&self, simd: S, of: &Tiled<'_, C>, row: usize, rows: &mut [&mut [f32]]) {
        if self.n == 0 {
            return;
        }
        if rows.len().is_multiple_of(3) {
            self.of_groups::<S, C, 3>(simd, of, row, rows);
        } else {
            self.of_groups::<S, C, 4>(simd, of, row, rows);
        }
    }

    /// As [`Dots::of_rows`], of `R` rows at a time.
    #[inline(always)]
    #[allow(clippy::needless_range_loop, reason = "constant indices keep the slices in registers")]
    fn of_groups<S: Simd, C, const R: usize>(
        &self,
        simd: S,
        of: &Tiled<'_, C>,
        row: usize,
        rows: &mut [&mut [f32]],
    ) {
        let &Dots { columns, pitch, column, at, n, y_row } = self;
        for (i, rows) in rows.chunks_mut(R).enumerate() {
            let row = row + R * i;
            // Rows that are not there repeat the last one.
            let last = row + rows.len() - 1;
            let mut a: [&[f32]; R] = [&[]; R];
            for r in 0..R {
                a[r] = &of.a[last.min(row + r) * of.a_row..][..of.depth];
            }
            let sums = dots::<S, R>(simd, a, columns, pitch, n);
            for (i, (out, sums)) in rows.iter_mut().zip(sums).enumerate() {
                let out = &mut out[at..at + n];
                for (c, out) in out.iter_mut().enumerate() {
                    let start = match of.start {
                        Start::Zero => 0.0,
                        Start::Output => *out,
                        Start::PerRow(bias) => bias[row + i],
                        Start::PerColumn(bias) => bias[column + at + c],
                    };
                    *out = start + sums[c];
                }
                of.epilogue.apply(out, (row + i) * y_row + column + at);
            }
        }
    }
}

/// Columns of a task: `strips` strips from `at` on, `n` elements; the task begins at `column` of the output.
#[derive(Clone, Copy)]
struct Place {
    column: usize,
    at: usize,
    n: usize,
    strips: usize,
    /// Stride of rows of the output.
    y_row: usize,
}

/// The tiles of `R` rows from `row` on.
#[inline(always)]
fn blocks<S: Simd, const R: usize, const V: usize>(
    simd: S,
    of: &Sums<'_>,
    row: usize,
    place: Place,
    panels: &[S::f32s],
    rows: &mut [&mut [f32]],
) {
    let pitch = V * S::F32_LANES;
    for strip in 0..place.strips {
        let at = place.at + strip * pitch;
        let n = (place.n - strip * pitch).min(pitch);
        let panel = &panels[strip * of.depth * V..][..of.depth * V];
        block_with::<S, R, V>(
            simd,
            of,
            row,
            [place.column, place.y_row],
            rows,
            at,
            n,
            #[inline(always)]
            |a, sums| accumulated(simd, a, &panel[..of.depth * V], sums),
        );
    }
}

/// Adds to each of `c` the product of the row `a` and one of the rows of `b`, which begin `pitch` elements apart, from
/// row `first` on; returns whether it was done: for `f32`, where this CPU has vectors.
pub(super) fn dots_each<T: Real>(
    k: usize,
    (a, b): (&[T], &[T]),
    (first, pitch): (usize, usize),
    c: &mut [T],
) -> bool {
    struct Each<'a> {
        a: &'a [f32],
        b: &'a [f32],
        pitch: usize,
        c: &'a mut [f32],
    }
    impl WithSimd for Each<'_> {
        type Output = ();

        #[inline(always)]
        #[allow(clippy::needless_range_loop, reason = "constant indices keep the sums in registers")]
        fn with_simd<S: Simd>(self, simd: S) {
            let Each { a, b, pitch, c } = self;
            let ahead = Ahead::new();
            let zero = simd.splat_f32s(0.0);
            let (vectors, after) = S::as_simd_f32s(a);
            let (fours, last) = vectors.split_at(vectors.len() / 4 * 4);
            // One row after the other, as the memory likes it, in sums that do not wait for each other.
            for (i, c) in c.iter_mut().enumerate() {
                let row = &b[i * pitch..][..a.len()];
                let (own, own_after) = S::as_simd_f32s(row);
                let mut sums = [zero; 4];
                let lines = row.chunks_exact(4 * S::F32_LANES);
                for ((x, y), line) in fours.chunks_exact(4).zip(own.chunks_exact(4)).zip(lines) {
                    ahead.fetch(line);
                    for j in 0..4 {
                        sums[j] = simd.mul_add_e_f32s(x[j], y[j], sums[j]);
                    }
                }
                for (x, y) in last.iter().zip(&own[fours.len()..]) {
                    sums[0] = simd.mul_add_e_f32s(*x, *y, sums[0]);
                }
                let [first, second] = [simd.add_f32s(sums[0], sums[1]), simd.add_f32s(sums[2], sums[3])];
                let mut sum = simd.reduce_sum_f32s(simd.add_f32s(first, second));
                for (x, y) in after.iter().zip(own_after) {
                    sum += x * y;
                }
                *c += sum;
            }
        }
    }
    let (Some(a), Some(b), Some(c), true) = (as_f32s(a), as_f32s(b), as_f32s_mut(c), has_vectors()) else {
        return false;
    };
    arch().dispatch(Each { a: &a[..k], b: &b[first * pitch..], pitch, c });
    true
}

/// The sums of products of `R` rows with each of `n` columns of `depth` elements, which lie `pitch` apart.
#[inline(always)]
#[allow(clippy::needless_range_loop, reason = "constant indices keep the sums in registers")]
fn dots<S: Simd, const R: usize>(
    simd: S,
    rows: [&[f32]; R],
    columns: &[f32],
    pitch: usize,
    n: usize,
) -> [[f32; DOTS]; R] {
    let mut sums = [[0.0; DOTS]; R];
    for c in 0..n {
        let column = &columns[c * pitch..][..pitch];
        let (column, _) = S::as_simd_f32s(column);
        let mut partial = [simd.splat_f32s(0.0); R];
        let mut tails: [&[f32]; R] = [&[]; R];
        let whole = rows[0].len() / S::F32_LANES;
        let mut vectors: [&[S::f32s]; R] = [&[]; R];
        for i in 0..R {
            let (full, tail) = S::as_simd_f32s(rows[i]);
            (vectors[i], tails[i]) = (&full[..whole], tail);
        }
        for k in 0..whole {
            for i in 0..R {
                partial[i] = simd.mul_add_e_f32s(vectors[i][k], column[k], partial[i]);
            }
        }
        let after = &columns[c * pitch + whole * S::F32_LANES..];
        for i in 0..R {
            let mut sum = simd.reduce_sum_f32s(partial[i]);
            for (x, y) in tails[i].iter().zip(after) {
                sum += x * y;
            }
            sums[i][c] = sum;
        }
    }
    sums
}

/// Elements of a row whose place is computed once.
const AT_ONCE: usize = 4;

/// Rows in groups of elements, and those after them.
type Groups<'a, const R: usize> = [(&'a [[f32; AT_ONCE]], &'a [f32]); R];

/// `sums` and the products of element `U` of group `k` of each row with its vectors of the panel's part. No loop: one over `U`
/// is not unrolled, and would keep the sums in memory.
#[inline(always)]
#[allow(clippy::needless_range_loop, reason = "constant indices keep the sums in registers")]
fn one_of<S: Simd, const R: usize, const V: usize, const U: usize>(
    simd: S,
    groups: &Groups<'_, R>,
    k: usize,
    part: &[S::f32s],
    mut sums: [[S::f32s; V]; R],
) -> [[S::f32s; V]; R] {
    for i in 0..R {
        let x = simd.splat_f32s(groups[i].0[k][U]);
        for j in 0..V {
            sums[i][j] = simd.mul_add_e_f32s(x, part[U * V + j], sums[i][j]);
        }
    }
    sums
}

/// `sums` and the products of `R` rows with a panel of `V` vectors for each of their elements. An array of its own: what else a
/// tile does with its sums keeps them in memory, and each step would store them all.
#[inline(always)]
#[allow(clippy::needless_range_loop, reason = "constant indices keep the sums in registers")]
pub(super) fn accumulated<S: Simd, const R: usize, const V: usize>(
    simd: S,
    a: [&[f32]; R],
    panel: &[S::f32s],
    mut sums: [[S::f32s; V]; R],
) -> [[S::f32s; V]; R] {
    // The compiler keeps the sums of other heights in memory there.
    if !R.is_multiple_of(4) {
        return one_by_one(simd, a, panel, sums);
    }
    let (fours, rest) = panel.split_at(panel.len() / (AT_ONCE * V) * (AT_ONCE * V));
    let groups = a.map(|a| a.as_chunks::<AT_ONCE>());
    for (k, b) in fours.chunks_exact(AT_ONCE * V).enumerate() {
        sums = one_of::<S, R, V, 0>(simd, &groups, k, b, sums);
        sums = one_of::<S, R, V, 1>(simd, &groups, k, b, sums);
        sums = one_of::<S, R, V, 2>(simd, &groups, k, b, sums);
        sums = one_of::<S, R, V, 3>(simd, &groups, k, b, sums);
    }
    one_by_one(simd, groups.map(|(_, rest)| rest), rest, sums)
}

/// The same, of one element of each row after the other.
#[inline(always)]
#[allow(clippy::needless_range_loop, reason = "constant indices keep the sums in registers")]
fn one_by_one<S: Simd, const R: usize, const V: usize>(
    simd: S,
    a: [&[f32]; R],
    panel: &[S::f32s],
    mut sums: [[S::f32s; V]; R],
) -> [[S::f32s; V]; R] {
    for (k, b) in panel.chunks_exact(V).enumerate() {
        for i in 0..R {
            let x = simd.splat_f32s(a[i][k]);
            for j in 0..V {
                sums[i][j] = simd.mul_add_e_f32s(x, b[j], sums[i][j]);
            }
        }
    }
    sums
}

/// One tile: `R` rows from `row` on, which are `y_row` apart in the output, columns from `at` of the task's on, which begin
/// at `column`; `add` adds to sums the products of rows of the left operand.
#[inline(always)]
#[allow(clippy::needless_range_loop, reason = "constant indices keep the sums in registers")]
#[allow(clippy::too_many_arguments, reason = "the place of a tile, and its operands")]
pub(super) fn block_with<S: Simd, const R: usize, const V: usize>(
    simd: S,
    of: &Sums<'_>,
    row: usize,
    [column, y_row]: [usize; 2],
    rows: &mut [&mut [f32]],
    at: usize,
    n: usize,
    add: impl FnOnce([&[f32]; R], [[S::f32s; V]; R]) -> [[S::f32s; V]; R],
) {
    let Ok(rows) = <&mut [&mut [f32]; R]>::try_from(rows) else { return };
    let mut a: [&[f32]; R] = [&[]; R];
    for i in 0..R {
        a[i] = &of.a[(row - of.first + i) * of.a_row..][..of.depth];
    }
    let mut sums = [[simd.splat_f32s(0.0); V]; R];
    match of.start {
        Start::Zero => {}
        Start::PerRow(bias) => {
            for i in 0..R {
                sums[i] = [simd.splat_f32s(bias[row + i]); V];
            }
        }
        Start::PerColumn(bias) => {
            let (full, tail) = S::as_simd_f32s(&bias[column + at..][..n]);
            let mut first = [simd.splat_f32s(0.0); V];
            for j in 0..V {
                first[j] = if j < full.len() { full[j] } else { simd.partial_load_f32s(tail) };
            }
            sums = [first; R];
        }
        Start::Output => {
            for i in 0..R {
                let (full, tail) = S::as_simd_f32s(&rows[i][at..at + n]);
                for j in 0..V {
                    sums[i][j] = if j < full.len() { full[j] } else { simd.partial_load_f32s(tail) };
                }
            }
        }
    }
    let mut sums = add(a, sums);
    if let Some(summand) = of.epilogue.summand {
        for i in 0..R {
            let (full, tail) = S::as_simd_f32s(&summand[(row + i) * y_row + column + at..][..n]);
            for j in 0..V {
                let z = if j < full.len() { full[j] } else { simd.partial_load_f32s(tail) };
                sums[i][j] = simd.add_f32s(sums[i][j], z);
            }
        }
    }
    if let Some([low, high]) = of.epilogue.bounds() {
        for i in 0..R {
            for j in 0..V {
                sums[i][j] = clamp(simd, sums[i][j], low, high);
            }
        }
    }
    for i in 0..R {
        let row = &mut rows[i][at..at + n];
        let (full, tail) = S::as_mut_simd_f32s(row);
        for j in 0..V {
            if j < full.len() {
                full[j] = sums[i][j];
            } else if j == full.len() {
                simd.partial_store_f32s(tail, sums[i][j]);
            }
        }
    }
}

/// Values in bounds; a NaN stays one, as it is the second operand.
#[inline(always)]
pub(crate) fn clamp<S: Simd>(simd: S, x: S::f32s, low: f32, high: f32) -> S::f32s {
    simd.min_f32s(simd.splat_f32s(high), simd.max_f32s(simd.splat_f32s(low), x))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::expr::Function;
    use crate::ops::par::of_threads;
    use crate::ops::test_util::values;

    /// Sizes with rest rows, rest columns and, in a pool of several threads, several bands and strips.
    #[test]
    fn every_split_computes_the_definition() {
        for (m, n, depth) in [
            (67, 131, 70),
            (3, 5, 2),
            (200, 17, 100),
            (1, 4000, 90),
            (9, 48, 0),
            (41, 49, 77),
            (6, 4, 64),
            (13, 36, 96),
        ] {
            let (a, b, bias) = (values(m * depth, 1), values(depth * n, 2), values(m, 3));
            let columns = &Rows { data: &b, row: n };
            let per_column = values(n, 4);
            for (start, low) in [
                (Start::Zero, -1e9),
                (Start::Output, 0.25),
                (Start::PerRow(&bias), 0.0),
                (Start::PerColumn(&per_column), -0.5),
            ] {
                let activation = Activation::with(Function::Clip, [low, 1e9]);
                let mut y = vec![0.5f32; m * (n + 3)];
                let epilogue = activation.into();
                let tiled = Tiled { a: &a, a_row: depth, depth, columns, start, epilogue };
                of_threads(5, || tiled.run(m, n, &mut y, n + 3, Threads::All));
                for (r, row) in y.chunks(n + 3).enumerate() {
                    for (c, got) in row[..n].iter().enumerate() {
                        let first = match start {
                            Start::Zero => 0.0,
                            Start::Output => 0.5,
                            Start::PerRow(bias) => f64::from(bias[r]),
                            Start::PerColumn(bias) => f64::from(bias[c]),
                        };
                        let of = |k: usize| f64::from(a[r * depth + k]) * f64::from(b[k * n + c]);
                        let want = (0..depth).map(of).sum::<f64>() + first;
                        assert!((f64::from(*got) - want.max(low.into())).abs() < 1e-4, "{r}, {c}");
                    }
                    assert_eq!(row[n..], [0.5; 3]);
                }
            }
        }
    }

    /// Bounds are those of the scalar function bit by bit.
    #[test]
    fn clamped_values_keep_their_nan_and_sign() {
        struct Clamp<'a>(&'a mut [f32]);
        impl WithSimd for Clamp<'_> {
            type Output = ();
            #[inline(always)]
            fn with_simd<S: Simd>(self, simd: S) {
                for x in S::as_mut_simd_f32s(self.0).0 {
                    *x = clamp(simd, *x, 0.0, 6.0);
                }
            }
        }
        if !has_vectors() {
            return;
        }
        let mut x = [-0.0, 0.0, -1.0, 7.0, f32::NAN, -f32::NAN, f32::INFINITY, f32::NEG_INFINITY].repeat(2);
        arch().dispatch(Clamp(&mut x));
        let want = [-0.0, 0.0, 0.0, 6.0, f32::NAN, -f32::NAN, 6.0, 0.0].repeat(2);
        for (got, want) in x.iter().zip(&want) {
            assert!(got.to_bits() == want.to_bits() || got.is_nan() && want.is_nan(), "{got} for {want}");
        }
    }
}
