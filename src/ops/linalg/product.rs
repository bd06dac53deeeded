//! Matrix products over slices: the one place that calls the `gemm` crates.

use std::sync::Mutex;

use gemm_common::Parallelism;
use gemm_f32::gemm::f32 as gemm_f32;
use gemm_f64::gemm::f64 as gemm_f64;

use super::tile;
use super::turned::{To, turned};
use crate::dtype::DType;
use crate::kernel::KernelError;
use crate::ops::real::{Real, as_f32s, as_f32s_mut};
use crate::ops::{Activation, par};
use crate::simd::wide;
use crate::sync::lock;

/// A matrix in a slice: element (r, c) lies at `r * row + c * col`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Mat<'a, T> {
    /// The elements.
    pub data: &'a [T],
    /// Stride of rows.
    pub row: usize,
    /// Stride of columns.
    pub col: usize,
}

impl<'a, T> Mat<'a, T> {
    /// Rows of `row` elements each, contiguous.
    pub(crate) fn rows(data: &'a [T], row: usize) -> Self {
        Mat { data, row, col: 1 }
    }

    /// The transpose of a matrix of rows of `row` elements.
    pub(crate) fn transposed(data: &'a [T], row: usize) -> Self {
        Mat { data, row: 1, col: row }
    }

    pub(super) fn covers(&self, rows: usize, cols: usize) -> bool {
        span(rows, cols, self.row, self.col).is_some_and(|n| n <= self.data.len())
    }
}

/// The extent in elements of a matrix of these sizes and strides.
fn span(rows: usize, cols: usize, row: usize, col: usize) -> Option<usize> {
    if rows == 0 || cols == 0 {
        return Some(0);
    }
    let last = (rows - 1).checked_mul(row)?.checked_add((cols - 1).checked_mul(col)?)?;
    // The crate computes addresses in signed bytes.
    last.checked_add(1).filter(|n| *n <= isize::MAX as usize / 16)
}

/// Whether a product is shared among the threads of the team that it is called in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Threads {
    /// One thread.
    One,
    /// All threads of the team.
    All,
}

/// The operations on a product before it is stored.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Around<'a, T> {
    /// Added to the rows of the product: one number for every column.
    pub bias: Option<&'a [T]>,
    /// Applied to the sums.
    pub activation: Activation,
}

/// `c = activation(a * b + bias)`, of the sizes that [`product`] has.
pub(crate) fn product_around<T: Real>(
    [m, n, k]: [usize; 3],
    a: Mat<'_, T>,
    b: Mat<'_, T>,
    c: &mut [T],
    c_row: usize,
    around: Around<'_, T>,
    threads: Threads,
) -> Result<(), KernelError> {
    let Around { bias, activation } = around;
    if k > 0 && fits([m, n, k], a, b, c, c_row) && bias.is_none_or(|bias| bias.len() >= n) {
        let start = match bias.map(as_f32s) {
            None => Some(tile::Start::Zero),
            Some(bias) => bias.map(|bias| tile::Start::PerColumn(&bias[..n])),
        };
        if start.is_some_and(|start| tiled([m, n, k], a, b, c, c_row, (start, activation), threads)) {
            return Ok(());
        }
    }
    if let Some(bias) = bias {
        for row in c.chunks_mut(c_row.max(1)).take(m) {
            row.iter_mut().take(n).zip(bias).for_each(|(c, bias)| *c = *bias);
        }
    }
    product([m, n, k], a, b, c, c_row, bias.is_some(), threads)?;
    for row in c.chunks_mut(c_row.max(1)).take(m) {
        let end = n.min(row.len());
        activation.apply(&mut row[..end]);
    }
    Ok(())
}

fn fits<T>([m, n, k]: [usize; 3], a: Mat<'_, T>, b: Mat<'_, T>, c: &[T], c_row: usize) -> bool {
    a.covers(m, k)
        && b.covers(k, n)
        && (m <= 1 || c_row >= n)
        && span(m, n, c_row, 1).is_some_and(|s| s <= c.len())
}

/// The product in tiles of vector registers, where that is the fastest way; returns whether it was done. The
/// operands fit.
fn tiled<T: Real>(
    [m, n, k]: [usize; 3],
    a: Mat<'_, T>,
    b: Mat<'_, T>,
    c: &mut [T],
    c_row: usize,
    (start, activation): (tile::Start<'_>, Activation),
    threads: Threads,
) -> bool {
    let by_columns = b.row == 1 && b.col >= k && b.col > 1;
    let by_rows = b.col == 1 && b.row >= n;
    if m < 2 || n < 16 || a.col != 1 || !(by_rows && m >= 4 || by_columns) || !tile::has_vectors() {
        return false;
    }
    let (Some(a_data), Some(b_data), Some(c)) = (as_f32s(a.data), as_f32s(b.data), as_f32s_mut(c)) else {
        return false;
    };
    if !by_rows {
        let to = match start {
            tile::Start::Zero => To::Bias(None),
            tile::Start::PerColumn(bias) => To::Bias(Some(bias)),
            tile::Start::Output => To::Output,
            tile::Start::PerRow(_) => return false,
        };
        let (a, b) = (Mat { data: a_data, row: a.row, col: 1 }, Mat { data: b_data, row: 1, col: b.col });
        turned([m, n, k], a, b, c, c_row, (to, activation), threads);
        return true;
    }
    let columns = tile::Rows { data: &b_data[..span(k, n, b.row, 1).unwrap_or(0)], row: b.row };
    let tiled = tile::Tiled {
        a: a_data,
        a_row: a.row,
        depth: k,
        columns: &columns,
        start,
        epilogue: activation.into(),
    };
    tiled.run(m, n, c, c_row, threads);
    true
}

/// `c = a * b`, or `c += a * b` where `accumulate`; `a` is `m` by `k`, `b` is `k` by `n`, and `c` is `m` rows
/// of `n` elements that start `c_row` elements apart.
#[allow(clippy::too_many_arguments, reason = "the sizes and operands of a product")]
pub(crate) fn product<T: Real>(
    [m, n, k]: [usize; 3],
    a: Mat<'_, T>,
    b: Mat<'_, T>,
    c: &mut [T],
    c_row: usize,
    accumulate: bool,
    threads: Threads,
) -> Result<(), KernelError> {
    if !fits([m, n, k], a, b, c, c_row) {
        return Err(KernelError::Value { what: format!("operands too short for a {m}x{n}x{k} product") });
    }
    if m == 0 || n == 0 {
        return Ok(());
    }
    if k == 0 {
        if !accumulate {
            c.chunks_mut(c_row.max(n)).for_each(|row| row[..n].fill(T::ZERO));
        }
        return Ok(());
    }
    if m == 1 {
        row_times_matrix(n, k, a, b, &mut c[..n], accumulate, threads);
        return Ok(());
    }
    if n == 1 && c_row == 1 && a.col == 1 {
        matrix_times_column(k, a, b, &mut c[..m], accumulate, threads);
        return Ok(());
    }
    let start = if accumulate { tile::Start::Output } else { tile::Start::Zero };
    if tiled([m, n, k], a, b, c, c_row, (start, Activation::None), threads) {
        return Ok(());
    }
    let tasks = match threads {
        Threads::All if m.saturating_mul(n).saturating_mul(k) > SHARED => 2 * par::threads(),
        _ => 1,
    };
    if tasks <= 2 {
        general([m, n, k], a, b, c, c_row, accumulate);
    } else if m >= LEAST_ROWS * tasks || m >= n {
        let many = m.div_ceil(tasks);
        par::share(c[..span(m, n, c_row, 1).unwrap_or(0)].chunks_mut(many * c_row).enumerate(), |(i, c)| {
            let a = Mat { data: &a.data[i * many * a.row..], ..a };
            general([many.min(m - i * many), n, k], a, b, c, c_row, accumulate);
        });
    } else {
        let many = n.div_ceil(tasks);
        let c = Mutex::new(c);
        par::share((0..n).step_by(many), |first| {
            let n = many.min(n - first);
            let mut part = vec![T::ZERO; m * n];
            general([m, n, k], a, Mat { data: &b.data[first * b.col..], ..b }, &mut part, n, false);
            for (c, part) in lock(&c)[first..].chunks_mut(c_row).zip(part.chunks(n)) {
                c.iter_mut().zip(part).for_each(|(c, part)| *c = if accumulate { *c + *part } else { *part });
            }
        });
    }
    Ok(())
}

/// Multiplications from which on a product is shared among the threads.
const SHARED: usize = 1 << 18;
/// Rows that a task has at least, where there are not more of them than columns.
const LEAST_ROWS: usize = 4;

/// The function of the `gemm` crates for one type: `dst = alpha * dst + beta * lhs * rhs`, each matrix with the strides of its
/// columns and rows, and three flags that are of complex numbers.
type General<T> = unsafe fn(
    usize,
    usize,
    usize,
    *mut T,
    isize,
    isize,
    bool,
    *const T,
    isize,
    isize,
    *const T,
    isize,
    isize,
    T,
    T,
    bool,
    bool,
    bool,
    Parallelism,
);

/// The product of matrices that [fit](fits) their slices, on this thread.
fn general<T: Real>(
    sizes: [usize; 3],
    a: Mat<'_, T>,
    b: Mat<'_, T>,
    c: &mut [T],
    c_row: usize,
    accumulate: bool,
) {
    match T::DTYPE {
        DType::F32 => general_of(gemm_f32::get_gemm_fn(), sizes, a, b, c, c_row, accumulate),
        _ => general_of(gemm_f64::get_gemm_fn(), sizes, a, b, c, c_row, accumulate),
    }
}

/// Calls the function of a type, which is the operands'. It prefers columns that are contiguous, so it computes the transpose.
fn general_of<T: Real, U: Real>(
    gemm: General<U>,
    [m, n, k]: [usize; 3],
    a: Mat<'_, T>,
    b: Mat<'_, T>,
    c: &mut [T],
    c_row: usize,
    accumulate: bool,
) {
    assert!(fits([m, n, k], a, b, c, c_row), "operands too short for a {m}x{n}x{k} product");
    let (c, a_data, b_data): (&mut [U], &[U], &[U]) =
        (bytemuck::cast_slice_mut(c), bytemuck::cast_slice(a.data), bytemuck::cast_slice(b.data));
    // SAFETY: `fits` says that every element (r, c) of the three matrices lies in its slice and that offsets fit
    // `isize`, and `c_row >= n` that the elements of `c` are distinct; `c` is borrowed mutably, so it overlaps neither
    // operand. The sizes and strides are those of the transposed product.
    #[allow(unsafe_code, reason = "the crate's interface is raw pointers")]
    unsafe {
        gemm(
            n,
            m,
            k,
            c.as_mut_ptr(),
            c_row as isize,
            1,
            accumulate,
            b_data.as_ptr(),
            b.row as isize,
            b.col as isize,
            a_data.as_ptr(),
            a.row as isize,
            a.col as isize,
            U::ONE,
            U::ONE,
            false,
            false,
            false,
            Parallelism::None,
        );
    }
}

/// Elements that one task of a matrix-vector product reads at least.
const VECTOR_TASK: usize = 1 << 16;

fn row_times_matrix<T: Real>(
    n: usize,
    k: usize,
    a: Mat<'_, T>,
    b: Mat<'_, T>,
    c: &mut [T],
    accumulate: bool,
    threads: Threads,
) {
    if !accumulate {
        c.fill(T::ZERO);
    }
    let column_major = b.row == 1 && b.col >= k;
    let block = match threads {
        Threads::One => n,
        Threads::All if n.saturating_mul(k) <= VECTOR_TASK => n,
        Threads::All if column_major => (VECTOR_TASK / k.max(1)).max(1),
        // Long runs of each row, for the memory's sake, but something for every thread.
        Threads::All => (VECTOR_TASK / k.max(1)).max(n.div_ceil(2 * par::threads())).clamp(64, n.max(64)),
    };
    let task = |(i, c): (usize, &mut [T])| {
        if column_major && a.col == 1 && tile::dots_each(k, (a.data, b.data), (i * block, b.col), c) {
            return;
        }
        wide(
            #[inline(always)]
            || row_times_columns(k, a, b, i * block, column_major, c),
        );
    };
    if block >= n {
        task((0, c));
    } else {
        par::share(c.chunks_mut(block.max(1)).enumerate(), task);
    }
}

/// Adds the product of a row and the columns from `first` on.
#[inline(always)]
fn row_times_columns<T: Real>(
    k: usize,
    a: Mat<'_, T>,
    b: Mat<'_, T>,
    first: usize,
    column_major: bool,
    c: &mut [T],
) {
    if column_major {
        for (j, c) in c.iter_mut().enumerate() {
            let column = &b.data[(first + j) * b.col..][..k];
            *c += dot(a, column);
        }
        return;
    }
    let mut r = 0;
    if b.col == 1 {
        // Four rows at a time, so that the sums are loaded and stored less often.
        let n = c.len();
        let row = |r: usize| (a.data[r * a.col], &b.data[r * b.row + first..][..n]);
        let fours = k / 4 * 4;
        while r < fours {
            let [(x0, b0), (x1, b1), (x2, b2), (x3, b3)] = [row(r), row(r + 1), row(r + 2), row(r + 3)];
            for ((((c, b0), b1), b2), b3) in c.iter_mut().zip(b0).zip(b1).zip(b2).zip(b3) {
                *c += (x0 * *b0 + x1 * *b1) + (x2 * *b2 + x3 * *b3);
            }
            r += 4;
        }
    }
    for r in r..k {
        let x = a.data[r * a.col];
        let row = b.data[r * b.row + first * b.col..].iter().step_by(b.col.max(1));
        c.iter_mut().zip(row).for_each(|(c, b)| *c += x * *b);
    }
}

fn matrix_times_column<T: Real>(
    k: usize,
    a: Mat<'_, T>,
    b: Mat<'_, T>,
    c: &mut [T],
    accumulate: bool,
    threads: Threads,
) {
    let block = match threads {
        Threads::One => c.len(),
        Threads::All => (VECTOR_TASK / k.max(1)).clamp(1, c.len().max(1)),
    };
    let column = Mat { data: b.data, row: 0, col: b.row };
    let whole = block >= c.len();
    let task = |(i, c): (usize, &mut [T])| {
        if column.col == 1 {
            if !accumulate {
                c.fill(T::ZERO);
            }
            if tile::dots_each(k, (column.data, a.data), (i * block, a.row), c) {
                return;
            }
        }
        wide(
            #[inline(always)]
            || {
                for (j, c) in c.iter_mut().enumerate() {
                    let row = &a.data[(i * block + j) * a.row..][..k];
                    let sum = dot(column, row);
                    *c = if accumulate { *c + sum } else { sum };
                }
            },
        );
    };
    if whole {
        task((0, c));
    } else {
        par::share(c.chunks_mut(block.max(1)).enumerate(), task);
    }
}

/// Sum of products of a row of `a` with `b`, in several independent sums that vectorize.
#[inline(always)]
fn dot<T: Real>(a: Mat<'_, T>, b: &[T]) -> T {
    const LANES: usize = 32;
    if a.col != 1 {
        return b.iter().enumerate().map(|(i, b)| a.data[i * a.col] * *b).sum();
    }
    let mut sums = [T::ZERO; LANES];
    let a = &a.data[..b.len()];
    let (a_chunks, b_chunks) = (a.chunks_exact(LANES), b.chunks_exact(LANES));
    let tail: T = a_chunks.remainder().iter().zip(b_chunks.remainder()).map(|(a, b)| *a * *b).sum();
    for (a, b) in a_chunks.zip(b_chunks) {
        for ((s, a), b) in sums.iter_mut().zip(a).zip(b) {
            *s += *a * *b;
        }
    }
    sums.into_iter().sum::<T>() + tail
}

/// The sum of `f` over `x`, in several independent sums that vectorize and lose less precision.
#[inline(always)]
pub(crate) fn sum_of<T: Real>(x: &[T], f: impl Fn(T) -> T) -> T {
    const LANES: usize = 16;
    let chunks = x.chunks_exact(LANES);
    let tail: T = chunks.remainder().iter().map(|v| f(*v)).sum();
    let mut sums = [T::ZERO; LANES];
    for chunk in chunks {
        for (s, v) in sums.iter_mut().zip(chunk) {
            *s += f(*v);
        }
    }
    sums.into_iter().sum::<T>() + tail
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::expr::Function;
    use crate::ops::test_util::values;

    proptest! {
        #[test]
        fn products_match_their_definition(
            m in 0usize..9, n in 0usize..70, k in 0usize..40,
            ta in any::<bool>(), tb in any::<bool>(), accumulate in any::<bool>(), gap in 0usize..3,
            all in any::<bool>(),
        ) {
            let (a, b) = (values(m * k, 1), values(k * n, 2));
            let am = if ta { Mat::transposed(&a, m) } else { Mat::rows(&a, k) };
            let bm = if tb { Mat::transposed(&b, k) } else { Mat::rows(&b, n) };
            let mut c = vec![0.5f32; m * (n + gap)];
            let threads = if all { Threads::All } else { Threads::One };
            product([m, n, k], am, bm, &mut c, n + gap, accumulate, threads).unwrap();
            for r in 0..m {
                for col in 0..n {
                    let mut want = if accumulate { 0.5 } else { 0.0 };
                    for i in 0..k {
                        let x = if ta { a[i * m + r] } else { a[r * k + i] };
                        let y = if tb { b[col * k + i] } else { b[i * n + col] };
                        want += f64::from(x) * f64::from(y);
                    }
                    prop_assert!((f64::from(c[r * (n + gap) + col]) - want).abs() < 1e-4);
                }
                for g in 0..gap {
                    prop_assert_eq!(c[r * (n + gap) + n + g], 0.5);
                }
            }
        }
    }

    #[test]
    fn bias_and_activation_go_around_any_product() {
        for (m, n, k) in [(9, 35, 7), (1, 5, 3), (2, 40, 8), (5, 3, 2), (4, 16, 0)] {
            let (a, b, bias) = (values(m * k, 1), values(k * n, 2), values(n, 3));
            for transposed in [false, true] {
                let bm = if transposed { Mat::transposed(&b, k) } else { Mat::rows(&b, n) };
                let mut c = vec![9.0f32; m * (n + 2)];
                let around = Around { bias: Some(&bias), activation: Activation::of(Function::Relu) };
                product_around([m, n, k], Mat::rows(&a, k), bm, &mut c, n + 2, around, Threads::All).unwrap();
                for (r, row) in c.chunks(n + 2).enumerate() {
                    for (col, got) in row[..n].iter().enumerate() {
                        let at = |i| if transposed { b[col * k + i] } else { b[i * n + col] };
                        let sum: f32 = (0..k).map(|i| a[r * k + i] * at(i)).sum();
                        assert!((got - (sum + bias[col]).max(0.0)).abs() < 1e-5);
                    }
                    assert_eq!(row[n..], [9.0; 2]);
                }
            }
        }
    }

    #[test]
    fn short_operands_are_errors() {
        let (a, mut c) = ([0.0f32; 5], [0.0f32; 4]);
        let (rows, all) = (Mat::rows(&a, 3), Threads::One);
        assert!(product([2, 2, 3], rows, rows, &mut c, 2, false, all).is_err());
        assert!(product([2, 2, 2], Mat::rows(&a, 2), Mat::rows(&a, 2), &mut c, 1, false, all).is_err());
        assert!(
            product([2, 2, 2], Mat { data: &a, row: usize::MAX, col: 2 }, rows, &mut c, 2, false, all)
                .is_err()
        );
    }
}
