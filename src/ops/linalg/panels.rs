//! Products of `f32` whose right operand lies as tiles read it: constant weights, packed at load, and what one task multiplies
//! several times.
//!
//! The columns are cut into panels of some vectors, each a row of the operand after the other; so tiles read one piece of memory
//! from its beginning to its end. The order of the loops is that of Goto and van de Geijn, "Anatomy of High-Performance Matrix
//! Multiplication" (2008).

use std::ops::Range;
use std::sync::Arc;

use pulp::{Simd, WithSimd};

use super::product::{Around, Mat, Threads};
use super::share::{Cut, PARALLEL, TASK};
use super::tile::{
    Columns, PANEL_BYTES, Start, Sums, Tiled, accumulated, block_with, has_vectors, lanes, most_rows,
    most_vectors,
};
use crate::dtype::DType;
use crate::graph::Tensor;
use crate::kernel::KernelError;
use crate::ops::activation::Epilogue;
use crate::ops::pack::permute_blocks;
use crate::ops::real::{Real, as_f32s, as_f32s_mut};
use crate::ops::scratch::Scratch;
use crate::ops::{OpCx, PackInPlaceFn, PackKey, Packed, par};
use crate::simd::arch;

/// Elements of all panels that are made before a product, at most: 1 MiB, half of a second cache.
const MOST: usize = 256 << 10;
/// Bytes of a constant from which on it is packed where it lies: less memory for more time.
const LARGE: usize = 16 << 20;
/// Rows of the product that a task has at least, so that panels are read by few tasks.
const BAND: usize = 32;
/// Elements of the left operand that all panels multiply in turn, where it has more: 512 KiB of the second cache.
const LEFT: usize = 128 << 10;

/// How `n` columns of `depth` elements lie in panels: panel after panel of about the same number of vectors, in each of them a
/// part of row after row of the matrix, zeros after its last column.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Layout {
    pub(crate) depth: usize,
    pub(crate) n: usize,
    lanes: usize,
}

impl Layout {
    pub(crate) fn new(depth: usize, n: usize) -> Layout {
        Layout { depth, n, lanes: lanes() }
    }

    fn vectors(&self) -> usize {
        self.n.div_ceil(self.lanes)
    }

    /// Number of panels.
    pub(crate) fn panels(&self) -> usize {
        self.vectors().div_ceil(most_vectors(self.lanes))
    }

    /// The first column of a panel; that of the one after the last is where the last one ends.
    pub(crate) fn first(&self, panel: usize) -> usize {
        self.vectors() * panel / self.panels().max(1) * self.lanes
    }

    /// The panels that have the columns `columns`.
    pub(crate) fn of_columns(&self, columns: Range<usize>) -> Range<usize> {
        let ends = |column: usize| (0..self.panels()).filter(move |p| self.first(p + 1) <= column).count();
        ends(columns.start)..ends(columns.end.saturating_sub(1)) + 1
    }

    /// Elements of all panels.
    pub(crate) fn len(&self) -> usize {
        self.first(self.panels()) * self.depth
    }

    /// Writes the panels of `matrix`.
    pub(crate) fn pack<T: Copy + Default>(&self, matrix: Mat<'_, T>, to: &mut [T]) {
        for (columns, to) in self.parts(to) {
            self.pack_one(matrix, columns, to);
        }
    }

    /// Columns of each panel, and its elements among those of all.
    fn parts<'t, T>(
        &self,
        all: &'t mut [T],
    ) -> impl Iterator<Item = (Range<usize>, &'t mut [T])> + use<'t, T> {
        let (this, mut rest) = (*self, all);
        (0..this.panels()).map_while(move |panel| {
            let columns = this.first(panel)..this.first(panel + 1);
            let (own, after) = std::mem::take(&mut rest).split_at_mut_checked(columns.len() * this.depth)?;
            rest = after;
            Some((columns, own))
        })
    }

    fn pack_one<T: Copy + Default>(&self, matrix: Mat<'_, T>, columns: Range<usize>, to: &mut [T]) {
        /// Columns that are read together: the elements of a cache line.
        const TOGETHER: usize = 16;
        let (first, pitch) = (columns.start, columns.len());
        let n = columns.end.min(self.n) - first;
        if matrix.col == 1 {
            for (k, to) in to.chunks_exact_mut(pitch).enumerate() {
                to[..n].copy_from_slice(&matrix.data[k * matrix.row + first..][..n]);
                to[n..].fill(T::default());
            }
            return;
        }
        for at in (0..n).step_by(TOGETHER) {
            let some = TOGETHER.min(n - at);
            for (k, to) in to.chunks_exact_mut(pitch).enumerate() {
                let from = &matrix.data[(first + at) * matrix.col + k * matrix.row..];
                let from = from.iter().step_by(matrix.col.max(1));
                to[at..at + some].iter_mut().zip(from).for_each(|(to, from)| *to = *from);
            }
        }
        to.chunks_exact_mut(pitch).for_each(|to| to[n..].fill(T::default()));
    }

    /// Undoes [`Layout::pack`] of rows of `n` elements, or, where `transposed`, of columns of `depth`.
    fn unpack<T: Copy>(&self, panels: &[T], transposed: bool, to: &mut [T]) {
        for panel in 0..self.panels() {
            let (first, end) = (self.first(panel), self.first(panel + 1));
            let (n, own) = (end.min(self.n) - first, &panels[first * self.depth..end * self.depth]);
            for (k, from) in own.chunks_exact(end - first).enumerate() {
                if transposed {
                    let to = to[first * self.depth + k..].iter_mut().step_by(self.depth);
                    to.zip(&from[..n]).for_each(|(to, from)| *to = *from);
                } else {
                    to[k * self.n + first..][..n].copy_from_slice(&from[..n]);
                }
            }
        }
    }

    /// As [`Layout::pack`] of bytes of a matrix that fills whole vectors, where they lie.
    fn pack_in_place(&self, bytes: &mut [u8], transposed: bool) {
        let (vectors, depth, vector) = (self.vectors(), self.depth, self.lanes * size_of::<f32>());
        let panels = (0..self.panels()).map(|panel| [panel, panel + 1].map(|p| self.first(p) / self.lanes));
        if transposed {
            // A panel has the bytes of its columns.
            for [first, end] in panels {
                let own = &mut bytes[first * depth * vector..end * depth * vector];
                let columns = own.to_vec();
                let n = (end - first) * self.lanes;
                let matrix = Mat::transposed(columns.as_chunks::<4>().0, depth);
                Layout { n, ..*self }.pack_one(matrix, 0..n, own.as_chunks_mut::<4>().0);
            }
            return;
        }
        let of_vectors: Vec<_> =
            panels.flat_map(|[first, end]| (first..end).map(move |_| [first, end])).collect();
        permute_blocks(bytes, vector, |at| {
            let (k, v) = (at / vectors, at % vectors);
            let [first, end] = of_vectors[v];
            first * depth + k * (end - first) + v - first
        });
    }

    /// Constant matrices of such sizes, each in panels; where `transposed`, they are given in columns.
    pub(crate) fn packed(self, source: &Tensor, transposed: bool) -> Option<Packed> {
        let numbers = [self.depth, self.n, self.lanes].map(|n| u32::try_from(n).ok());
        let [Some(depth), Some(n), Some(lanes)] = numbers else { return None };
        let (size, each) = (self.depth * self.n, self.len());
        let count = source.info().elements().checked_div(size)?;
        // Bytes, as a tensor of a file may begin anywhere.
        let pack = move |source: &Tensor, to: &mut [u8]| {
            let ((from, _), (to, _)) = (source.bytes().as_chunks::<4>(), to.as_chunks_mut::<4>());
            let matrices = from.chunks_exact(size).zip(to.chunks_exact_mut(each));
            let parts = matrices.flat_map(|(from, to)| self.parts(to).map(move |part| (from, part)));
            par::share(parts.collect::<Vec<_>>().into_iter(), |(from, (columns, to))| {
                let matrix =
                    if transposed { Mat::transposed(from, self.depth) } else { Mat::rows(from, self.n) };
                self.pack_one(matrix, columns, to);
            });
            Ok(())
        };
        let unpack = move |packed: &[u8], to: &mut [u8]| {
            let matrices = packed.as_chunks::<4>().0.chunks_exact(each);
            for (panels, to) in matrices.zip(to.as_chunks_mut::<4>().0.chunks_exact_mut(size)) {
                self.unpack(panels, transposed, to);
            }
        };
        let large = each == size && count * size * size_of::<f32>() >= LARGE;
        let in_place = move |bytes: &mut [u8]| {
            let matrices = bytes.chunks_exact_mut(size * size_of::<f32>());
            matrices.for_each(|matrix| self.pack_in_place(matrix, transposed));
        };
        Some(Packed {
            source: source.clone(),
            key: PackKey { layout: "panels", numbers: [depth, n, lanes, transposed.into()] },
            bytes: count * each * size_of::<f32>(),
            pack: Arc::new(pack),
            optional: true,
            lines: None,
            in_place: large.then(|| Arc::new(in_place) as Arc<PackInPlaceFn>),
            unpack: Some(Arc::new(unpack)),
        })
    }
}

/// The layout of input `i`, matrices of these sizes or, where `transposed`, their transposes, and the matrices in it, where they
/// are constant and this CPU has vectors for them. Pages of a file that processes share stay as they are.
pub(crate) fn of_constant(
    cx: &OpCx,
    i: usize,
    [depth, n]: [usize; 2],
    transposed: bool,
) -> Option<(Layout, Packed)> {
    let source = cx.packable(i)?;
    if source.region().is_some_and(|(region, _)| region.is_mapped()) {
        return None;
    }
    let floats = source.dtype() == DType::F32 && cx.dtype(0).ok()? == DType::F32;
    let layout = Layout::new(depth, n);
    let fits = floats && has_vectors() && n >= layout.lanes && depth > 0;
    let fits = fits && source.info().elements().is_multiple_of(depth * n);
    fits.then(|| Some((layout, layout.packed(source, transposed)?)))?
}

/// The `m` rows of `y` become `activation(a * b + bias)`; `b` lies in panels, and `T` is `f32`.
pub(crate) fn product<T: Real>(
    [a, b]: [&[T]; 2],
    layout: Layout,
    m: usize,
    y: &mut [T],
    around: Around<'_, T>,
    threads: Threads,
) -> Result<(), KernelError> {
    let Layout { depth, n, .. } = layout;
    let bias = around.bias.map(as_f32s);
    let floats = (as_f32s(a), as_f32s(b), as_f32s_mut(y), bias);
    let fits = a.len() >= m * depth && b.len() >= layout.len() && around.bias.is_none_or(|b| b.len() >= n);
    let (Some(a), Some(panels), Some(y), None | Some(Some(_)), true) =
        (floats.0, floats.1, floats.2, floats.3, fits)
    else {
        return Err(KernelError::Value { what: "a product in panels of other operands".into() });
    };
    let start = bias.flatten().map_or(Start::Zero, |bias| Start::PerColumn(&bias[..n]));
    let epilogue = around.activation.into();
    ByPanels { a, a_row: depth, layout, depth: 0..depth, panels, start, epilogue }.run(m, y, n, threads);
    Ok(())
}

impl<C: Columns> Tiled<'_, C> {
    /// Computes `m` rows of `n` elements of `y`, which begin `y_row` elements apart. Bands of rows would each make the columns,
    /// so they are made before for all, where they are small.
    pub(crate) fn run(&self, m: usize, n: usize, y: &mut [f32], y_row: usize, threads: Threads) {
        let layout = Layout::new(self.depth, n);
        let several = threads == Threads::All && m * n * self.depth >= PARALLEL && par::threads() > 1;
        let bands = several && m > n && n > layout.lanes;
        if !bands || layout.len() > MOST {
            return self.in_strips(m, n, y, y_row, threads);
        }
        let mut panels = Scratch::new(layout.len());
        let parts: Vec<_> = layout.parts(&mut panels).collect();
        par::share(parts.into_iter(), |(columns, to)| {
            let n = columns.end.min(n) - columns.start;
            arch().dispatch(Fill {
                columns: self.columns,
                first: columns.start,
                n,
                pitch: columns.len(),
                to,
            });
        });
        let &Tiled { a, a_row, depth, start, epilogue, .. } = self;
        ByPanels { a, a_row, layout, depth: 0..depth, panels: &panels, start, epilogue }
            .run(m, y, y_row, threads);
    }
}

/// Makes `n` columns from `first` on.
struct Fill<'a, C> {
    columns: &'a C,
    first: usize,
    n: usize,
    pitch: usize,
    to: &'a mut [f32],
}

impl<C: Columns> WithSimd for Fill<'_, C> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let Fill { columns, first, n, pitch, to } = self;
        // Constants, for each of which there is a form.
        match pitch / S::F32_LANES {
            1 => columns.fill(simd, first, n, S::F32_LANES, to),
            2 => columns.fill(simd, first, n, 2 * S::F32_LANES, to),
            _ => columns.fill(simd, first, n, 3 * S::F32_LANES, to),
        }
    }
}

/// `epilogue(start + a * columns)`, of contiguous rows.
pub(crate) struct ByPanels<'a> {
    /// The left operand; row `r` begins at `r * a_row`.
    pub(crate) a: &'a [f32],
    pub(crate) a_row: usize,
    /// The right operand in panels, and those of its rows that are multiplied.
    pub(crate) layout: Layout,
    pub(crate) depth: Range<usize>,
    pub(crate) panels: &'a [f32],
    pub(crate) start: Start<'a>,
    pub(crate) epilogue: Epilogue<'a, f32>,
}

impl ByPanels<'_> {
    /// Computes `m` rows of `y`, which begin `y_row` elements apart.
    pub(crate) fn run(&self, m: usize, y: &mut [f32], y_row: usize, threads: Threads) {
        let n = self.layout.n;
        if m == 0 || n == 0 {
            return;
        }
        let strips = self.layout.panels();
        let cut = Cut {
            work: m * n * self.depth.len(),
            parallel: PARALLEL,
            task: TASK,
            band: BAND,
            unit: 8,
            strips,
        };
        let panel = |strip: usize, cuts: usize| strips * strip / cuts;
        let rows = y.chunks_mut(y_row.max(n)).take(m).map(|row| &mut row[..n]);
        let end = |strip: usize, cuts: usize| self.layout.first(panel(strip + 1, cuts)).min(n);
        cut.share([m, n], rows, threads, end, |mut share| {
            let panels = panel(share.strip, share.strips)..panel(share.strip + 1, share.strips);
            let row = share.row;
            arch().dispatch(Task { of: self, row, panels, rows: &mut share.rows, y_row });
        });
    }

    /// Computes the columns of `panels` on this thread: `rows` are the first rows of the output, and have them alone. There is
    /// no summand and no activation.
    pub(crate) fn part(&self, panels: Range<usize>, rows: &mut [&mut [f32]]) {
        arch().dispatch(Task { of: self, row: 0, panels, rows, y_row: 0 });
    }
}

/// The columns of some panels of rows from `row` on.
struct Task<'t, 'y, 'a> {
    of: &'t ByPanels<'a>,
    row: usize,
    panels: Range<usize>,
    rows: &'t mut [&'y mut [f32]],
    /// Stride of rows of the output.
    y_row: usize,
}

impl WithSimd for Task<'_, '_, '_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let Task { of, row, panels, rows, y_row } = self;
        let (layout, depth) = (of.layout, of.depth.len());
        let base = layout.first(panels.start);
        let (a, a_row) = (of.a, of.a_row);
        let sums = Sums { a, a_row, first: 0, depth, start: of.start, epilogue: of.epilogue };
        let in_turn = rows.len() > most_rows(S::F32_LANES);
        let most = PANEL_BYTES / size_of::<f32>() / (most_vectors(S::F32_LANES) * S::F32_LANES);
        let of_left =
            if in_turn && rows.len() * depth > LEFT { (LEFT / rows.len()).max(most) } else { depth };
        let mut left = Scratch::new(if of_left < depth { rows.len() * of_left } else { 0 });
        for (begin, sums) in sums.parts(of_left) {
            let sums = if of_left < depth { together(sums, row, rows.len(), &mut left) } else { sums };
            for panel in panels.clone() {
                let (first, end) = (layout.first(panel), layout.first(panel + 1));
                let (pitch, n) = (end - first, end.min(layout.n) - first);
                let place = Place { row, column: base, y_row, at: first - base, n };
                let from = first * layout.depth + (of.depth.start + begin) * pitch;
                let all = &of.panels[from..][..sums.depth * pitch];
                for (from, sums) in sums.parts(if in_turn { most } else { depth }) {
                    let (own, _) = S::as_simd_f32s(&all[from * pitch..(from + sums.depth) * pitch]);
                    match pitch / S::F32_LANES {
                        1 => rows_of::<S, 1>(simd, &sums, place, own, rows),
                        2 => rows_of::<S, 2>(simd, &sums, place, own, rows),
                        _ => rows_of::<S, 3>(simd, &sums, place, own, rows),
                    }
                }
                // Bounds are cheap in registers; what takes longer has its own loop, over what is in the cache yet.
                if begin + sums.depth == depth && of.epilogue.bounds().is_none() {
                    let at = first - base;
                    for (i, y) in rows.iter_mut().enumerate() {
                        of.epilogue.activate(&mut y[at..at + n], (row + i) * y_row + first);
                    }
                }
            }
        }
    }
}

/// The same with the rows of the left operand from `row` on, of which there are `rows`, one after another in `to`: rows that are far
/// apart share few sets of a cache.
fn together<'a>(sums: Sums<'a>, row: usize, rows: usize, to: &'a mut [f32]) -> Sums<'a> {
    for (r, to) in to.chunks_exact_mut(sums.depth).take(rows).enumerate() {
        to.copy_from_slice(&sums.a[(row + r) * sums.a_row..][..sums.depth]);
    }
    Sums { a: to, a_row: sums.depth, first: row, ..sums }
}

/// Where tiles lie: rows from `row` of the output on, `n` columns from `at` of the task's on, which begin at `column`.
#[derive(Clone, Copy)]
struct Place {
    row: usize,
    column: usize,
    y_row: usize,
    at: usize,
    n: usize,
}

/// The tiles of all rows, of about the same height.
#[inline(always)]
fn rows_of<S: Simd, const V: usize>(
    simd: S,
    sums: &Sums<'_>,
    place: Place,
    panel: &[S::f32s],
    rows: &mut [&mut [f32]],
) {
    let (mut rest, mut place) = (rows, place);
    while !rest.is_empty() {
        let left = rest.len();
        let r = left.div_ceil(left.div_ceil(most_rows(S::F32_LANES)));
        let (now, later) = rest.split_at_mut(r);
        match r {
            1 => tile::<S, 1, V, 4>(simd, sums, place, panel, now),
            2 => tile::<S, 2, V, 2>(simd, sums, place, panel, now),
            3 => tile::<S, 3, V, 1>(simd, sums, place, panel, now),
            4 => tile::<S, 4, V, 1>(simd, sums, place, panel, now),
            5 => tile::<S, 5, V, 1>(simd, sums, place, panel, now),
            6 => tile::<S, 6, V, 1>(simd, sums, place, panel, now),
            // No tile of vectors of 8 elements is higher.
            _ if S::F32_LANES == 8 => {}
            7 => tile::<S, 7, V, 1>(simd, sums, place, panel, now),
            _ => tile::<S, 8, V, 1>(simd, sums, place, panel, now),
        }
        (rest, place.row) = (later, place.row + r);
    }
}

/// One tile; `U` rows of the panel are summed apart, so that sums of few do not wait for each other.
#[inline(always)]
#[allow(clippy::needless_range_loop, reason = "constant indices keep the sums in registers")]
fn tile<S: Simd, const R: usize, const V: usize, const U: usize>(
    simd: S,
    sums: &Sums<'_>,
    Place { row, column, y_row, at, n }: Place,
    panel: &[S::f32s],
    rows: &mut [&mut [f32]],
) {
    block_with::<S, R, V>(
        simd,
        sums,
        row,
        [column, y_row],
        rows,
        at,
        n,
        #[inline(always)]
        |a, first| {
            let panel = &panel[..sums.depth * V];
            if U == 1 {
                return accumulated(simd, a, panel, first);
            }
            let mut apart = [[[simd.splat_f32s(0.0); V]; R]; U];
            apart[0] = first;
            let groups = a.map(|a| a.as_chunks::<U>());
            for (k, panel) in panel.chunks_exact(V * U).enumerate() {
                for i in 0..R {
                    let x = &groups[i].0[k];
                    for u in 0..U {
                        let x = simd.splat_f32s(x[u]);
                        for j in 0..V {
                            apart[u][i][j] = simd.mul_add_e_f32s(x, panel[u * V + j], apart[u][i][j]);
                        }
                    }
                }
            }
            let after = sums.depth / U * U;
            apart[0] = accumulated(simd, groups.map(|(_, rest)| rest), &panel[after * V..], apart[0]);
            let mut all = apart[0];
            for u in 1..U {
                for i in 0..R {
                    for j in 0..V {
                        all[i][j] = simd.add_f32s(all[i][j], apart[u][i][j]);
                    }
                }
            }
            all
        },
    );
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::expr::Function;
    use crate::ops::linalg::{Gemm, MatMul};
    use crate::ops::par::of_threads;
    use crate::ops::test_util::{assert_near, facts, run_cpu, tensor, values};
    use crate::ops::{Activation, Operator};

    /// Row `r` of the product and column `c`, of rows `depth` of a right operand of `n` columns.
    fn dot(a: &[f32], b: &[f32], n: usize, depth: Range<usize>, [r, c]: [usize; 2]) -> f64 {
        let a = &a[r * depth.len()..];
        depth.zip(a).map(|(k, a)| f64::from(*a) * f64::from(b[k * n + c])).sum()
    }

    /// Tiles of every height and width, depths in one part and in several, one task and many.
    #[test]
    fn every_size_computes_the_definition() {
        if !has_vectors() {
            return;
        }
        for (m, n, depth) in [
            (1, 16, 7),
            (1, 100, 301),
            (2, 33, 66),
            (3, 49, 5),
            (7, 64, 129),
            (9, 70, 40),
            (70, 130, 700),
            (90, 70, 3000),
        ] {
            let (a, b) = (values(m * depth, 1), values(n * depth, 2));
            let (bias, summand) = (values(n, 3), values(m * n, 4));
            let layout = Layout::new(depth, n);
            let mut panels = vec![f32::NAN; layout.len()];
            layout.pack(Mat::rows(&b, n), &mut panels);
            for (start, activation) in [
                (Start::Zero, Activation::None),
                (Start::PerColumn(&bias), Activation::of(Function::Relu)),
                (Start::Output, Activation::of(Function::Tanh)),
            ] {
                let epilogue = Epilogue { summand: Some(&summand[..]), ..activation.into() };
                let product = ByPanels {
                    a: &a,
                    a_row: depth,
                    layout,
                    depth: 0..depth,
                    panels: &panels,
                    start,
                    epilogue,
                };
                for threads in [Threads::One, Threads::All] {
                    let mut y = vec![0.5f32; m * n];
                    of_threads(5, || product.run(m, &mut y, n, threads));
                    let want = (0..m * n).map(|i| {
                        let first = match start {
                            Start::PerColumn(bias) => bias[i % n],
                            Start::Output => 0.5,
                            _ => 0.0,
                        };
                        let sum = dot(&a, &b, n, 0..depth, [i / n, i % n]);
                        let mut y = [(sum + f64::from(first) + f64::from(summand[i])) as f32];
                        activation.apply(&mut y);
                        f64::from(y[0])
                    });
                    assert_near(&Tensor::new([m * n], &y).unwrap(), &want.collect::<Vec<_>>(), 1e-4);
                }
            }
        }
    }

    #[test]
    fn parts_of_columns_and_rows_compute_the_definition() {
        if !has_vectors() {
            return;
        }
        let (m, n, depth) = (11, 230, 400);
        let b = values(n * depth, 2);
        let layout = Layout::new(depth, n);
        let mut panels = vec![f32::NAN; layout.len()];
        layout.pack(Mat::rows(&b, n), &mut panels);
        for (columns, rows) in [(0..n, 3..17), (60..61, 0..depth), (100..n, 399..400), (0..97, 90..300)] {
            let a = values(m * rows.len(), 1);
            let part = layout.of_columns(columns.clone());
            let (first, end) = (layout.first(part.start), layout.first(part.end).min(n));
            assert!(
                first <= columns.start
                    && columns.end <= end
                    && end - first < columns.len() + 6 * layout.lanes
            );
            let (start, epilogue) = (Start::Zero, Activation::None.into());
            let (depth, a_row) = (rows.clone(), rows.len());
            let product = ByPanels { a: &a, a_row, layout, depth, panels: &panels, start, epilogue };
            let mut y = vec![0.5f32; m * (end - first)];
            let width = end - first;
            product.part(part, &mut y.chunks_exact_mut(width).collect::<Vec<_>>());
            let want = (0..y.len()).map(|i| dot(&a, &b, n, rows.clone(), [i / width, first + i % width]));
            assert_near(&Tensor::new([y.len()], &y).unwrap(), &want.collect::<Vec<_>>(), 1e-4);
        }
    }

    /// Constant right operands are packed; what is undone is what was given, where no number is aligned too.
    #[test]
    fn constant_operands_are_packed_and_undone() {
        if !has_vectors() {
            return;
        }
        for (m, n, k, transposed) in [
            (1, 20, 9, false),
            (5, 100, 33, true),
            (40, 48, 130, false),
            (2, 17, 64, true),
            (3, 112, 9, false),
            (3, 64, 11, true),
        ] {
            let right = if transposed { [n, k] } else { [k, n] };
            let inputs = [Some(tensor(&[m, k], 1)), Some(tensor(&right, 2)), Some(tensor(&[n], 3))];
            let product = MatMul { biased: true, transposed, ..MatMul::default() };
            let gemm = Gemm { trans_b: transposed, ..Gemm::default() };
            for op in [&product as &dyn Operator, &gemm] {
                let cx = facts(op, &inputs, 1).unwrap();
                let source = inputs[1].as_ref().unwrap();
                let packed = of_constant(&cx, 1, [k, n], transposed).expect("a constant is packed").1;
                let mut panels = vec![0u8; packed.bytes];
                (packed.pack)(source, &mut panels).unwrap();
                let mut again = vec![0u8; 1 + source.bytes().len()];
                (packed.unpack.as_ref().unwrap())(&panels, &mut again[1..]);
                assert_eq!(again[1..], *source.bytes());
                if n.is_multiple_of(lanes()) {
                    let mut bytes = source.bytes().to_vec();
                    Layout::new(k, n).pack_in_place(&mut bytes, transposed);
                    assert_eq!(bytes, panels);
                }
                // As packed and as not.
                run_cpu(op, &inputs, 1).unwrap();
            }
        }
    }
}
