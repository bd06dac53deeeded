//! Products with a right operand in `float16`, which is widened a few columns at a time: weights of half precision are
//! read once and never lie in memory a second time.

use half::f16;
use pulp::Simd;

use super::product::{Around, Mat, Threads, product_around};
use super::tile::{self, Columns, Start, Tiled};
use crate::kernel::KernelError;
use crate::ops::halves::{self, Half};
use crate::ops::par;
use crate::ops::real::{Real, as_f32s, as_f32s_mut};
use crate::simd::wide;

/// Elements that one task of a row's product reads at least.
const TASK: usize = 1 << 16;

/// `c = activation(a * b + bias)` as [`product_around`] has it; `T` is `f32`.
pub(crate) fn half_product_around<T: Real>(
    sizes: [usize; 3],
    a: Mat<'_, T>,
    b: Mat<'_, f16>,
    c: &mut [T],
    c_row: usize,
    around: Around<'_, T>,
    threads: Threads,
) -> Result<(), KernelError> {
    let bias = around.bias.map(as_f32s);
    let (Some(data), Some(c), true) = (as_f32s(a.data), as_f32s_mut(c), bias != Some(None)) else {
        return Err(KernelError::Value { what: "a product of float16 that is not summed in float32".into() });
    };
    let (a, bias) = (Mat { data, row: a.row, col: a.col }, bias.flatten());
    let around = Around { bias, activation: around.activation };
    let [m, n, k] = sizes;
    let by_rows = b.col == 1 && b.row >= n;
    let by_columns = b.row == 1 && b.col >= k;
    let long = a.covers(m, k) && b.covers(k, n) && bias.is_none_or(|bias| bias.len() >= n);
    let fits = long && m > 0 && n > 0 && k > 0 && c_row >= n && c.len() >= (m - 1).saturating_mul(c_row) + n;
    if fits && (by_rows || by_columns) {
        if m == 1 {
            let row: Vec<f32> = a.data.iter().step_by(a.col.max(1)).take(k).copied().collect();
            return one_row(&row, b, by_rows, &mut c[..n], around, threads);
        }
        if a.col == 1 && tile::has_vectors() {
            let start = bias.map_or(Start::Zero, |bias| Start::PerColumn(&bias[..n]));
            let (depth, epilogue) = (k, around.activation.into());
            if by_rows {
                let columns = HalfRows { data: &b.data[..(k - 1) * b.row + n], row: b.row };
                Tiled { a: a.data, a_row: a.row, depth, columns: &columns, start, epilogue }
                    .run(m, n, c, c_row, threads);
            } else {
                let columns = HalfColumns { data: b.data, col: b.col, depth };
                Tiled { a: a.data, a_row: a.row, depth, columns: &columns, start, epilogue }
                    .run(m, n, c, c_row, threads);
            }
            return Ok(());
        }
    }
    let mut whole = vec![0.0f32; b.data.len()];
    halves::widen(b.data, &mut whole);
    let b = Mat { data: &whole, row: b.row, col: b.col };
    product_around(sizes, a, b, c, c_row, around, threads)
}

/// The columns of a matrix of rows of `row` elements.
struct HalfRows<'a> {
    data: &'a [f16],
    row: usize,
}

impl Columns for HalfRows<'_> {
    const BAND: usize = 64;

    #[inline(always)]
    fn fill<S: Simd>(&self, _: S, first: usize, n: usize, pitch: usize, to: &mut [f32]) {
        for (to, from) in to.chunks_exact_mut(pitch).zip(self.data.chunks(self.row)) {
            let from = &from[first..];
            if from.len() >= pitch {
                // The length is a constant after inlining.
                widen_row(&from[..pitch], &mut to[..pitch]);
            } else {
                widen_row(&from[..n], &mut to[..n]);
            }
        }
    }
}

#[inline(always)]
fn widen_row(from: &[f16], to: &mut [f32]) {
    to.iter_mut().zip(from).for_each(|(to, from)| *to = from.widen());
}

/// The columns of a matrix whose columns of `depth` elements begin `col` apart.
struct HalfColumns<'a> {
    data: &'a [f16],
    col: usize,
    depth: usize,
}

impl Columns for HalfColumns<'_> {
    const BAND: usize = 128;

    #[inline(always)]
    fn fill<S: Simd>(&self, _: S, first: usize, n: usize, pitch: usize, to: &mut [f32]) {
        /// Elements of a column that are widened together.
        const LEN: usize = 32;
        for c in 0..n {
            let column = &self.data[(first + c) * self.col..][..self.depth];
            let mut rows = to.chunks_exact_mut(pitch);
            let mut some = [0.0f32; LEN];
            for from in column.chunks(LEN) {
                widen_row(from, &mut some[..from.len()]);
                for (v, row) in some[..from.len()].iter().zip(&mut rows) {
                    row[c] = *v;
                }
            }
        }
    }
}

fn one_row(
    a: &[f32],
    b: Mat<'_, f16>,
    by_rows: bool,
    c: &mut [f32],
    around: Around<'_, f32>,
    threads: Threads,
) -> Result<(), KernelError> {
    let (n, k) = (c.len(), a.len());
    let block = match threads {
        Threads::One => n,
        Threads::All if n.saturating_mul(k) <= TASK => n,
        // Long runs of each row, for the memory's sake, but something for every thread.
        Threads::All => (TASK / k).max(n.div_ceil(2 * par::threads())).clamp(64.min(n), n),
    };
    let task = |(i, c): (usize, &mut [f32])| {
        let first = i * block;
        match around.bias {
            Some(bias) => c.copy_from_slice(&bias[first..first + c.len()]),
            None => c.fill(0.0),
        }
        wide(
            #[inline(always)]
            || if by_rows { add_rows(a, b, first, c) } else { add_columns(a, b, first, c) },
        );
        around.activation.apply(c);
    };
    par::share(c.chunks_mut(block).enumerate(), task);
    Ok(())
}

/// Adds the product of a row and the columns from `first` on of a matrix that lies in rows.
#[inline(always)]
fn add_rows(a: &[f32], b: Mat<'_, f16>, first: usize, c: &mut [f32]) {
    let n = c.len();
    let row = |r: usize| &b.data[r * b.row + first..][..n];
    // Four rows at a time, so that the sums are loaded and stored less often.
    let mut r = 0;
    while r + 4 <= a.len() {
        let [b0, b1, b2, b3] = [row(r), row(r + 1), row(r + 2), row(r + 3)];
        let x = &a[r..r + 4];
        for ((((c, b0), b1), b2), b3) in c.iter_mut().zip(b0).zip(b1).zip(b2).zip(b3) {
            *c += (x[0] * b0.widen() + x[1] * b1.widen()) + (x[2] * b2.widen() + x[3] * b3.widen());
        }
        r += 4;
    }
    for (r, x) in a.iter().enumerate().skip(r) {
        c.iter_mut().zip(row(r)).for_each(|(c, b)| *c += x * b.widen());
    }
}

/// As [`add_rows`], of a matrix that lies in columns.
#[inline(always)]
fn add_columns(a: &[f32], b: Mat<'_, f16>, first: usize, c: &mut [f32]) {
    const LANES: usize = 32;
    let whole = a.len() / LANES * LANES;
    for (j, c) in c.iter_mut().enumerate() {
        let column = &b.data[(first + j) * b.col..][..a.len()];
        let mut sums = [0.0f32; LANES];
        for (a, b) in a[..whole].chunks_exact(LANES).zip(column[..whole].chunks_exact(LANES)) {
            for ((s, a), b) in sums.iter_mut().zip(a).zip(b) {
                *s += a * b.widen();
            }
        }
        let tail: f32 = a[whole..].iter().zip(&column[whole..]).map(|(a, b)| a * b.widen()).sum();
        *c += sums.into_iter().sum::<f32>() + tail;
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::expr::Function;
    use crate::ops::Activation;
    use crate::ops::test_util::values;

    proptest! {
        #[test]
        fn products_are_those_of_the_widened_matrix(
            m in 1usize..14, n in 1usize..70, k in 0usize..80, turned in any::<bool>(), by_columns in any::<bool>(),
            gap in 0usize..3, biased in any::<bool>(), all in any::<bool>(), large in any::<bool>(),
        ) {
            let (n, k) = if large { (4 * n, 16 * k) } else { (n, k) };
            let a = values(m * k, 1);
            let b: Vec<f16> = values(k * n, 2).into_iter().map(f16::from_f32).collect();
            let bias = values(n, 3);
            let am = if turned { Mat::transposed(&a, m) } else { Mat::rows(&a, k) };
            let bm = if by_columns { Mat::transposed(&b, k) } else { Mat::rows(&b, n) };
            let wide: Vec<f32> = b.iter().map(|v| v.to_f32()).collect();
            let around = Around { bias: biased.then_some(&bias[..]), activation: Activation::of(Function::Relu) };
            let threads = if all { Threads::All } else { Threads::One };
            let mut c = vec![9.0f32; m * (n + gap)];
            half_product_around([m, n, k], am, bm, &mut c, n + gap, around, threads).unwrap();
            for (r, row) in c.chunks(n + gap).enumerate() {
                for (col, got) in row[..n].iter().enumerate() {
                    let mut want = if biased { f64::from(bias[col]) } else { 0.0 };
                    for i in 0..k {
                        let x = if turned { a[i * m + r] } else { a[r * k + i] };
                        let y = if by_columns { wide[col * k + i] } else { wide[i * n + col] };
                        want += f64::from(x) * f64::from(y);
                    }
                    prop_assert!((f64::from(*got) - want.max(0.0)).abs() < 1e-3, "{got} for {want}");
                }
                prop_assert!(row[n..].iter().all(|v| *v == 9.0));
            }
        }
    }

    #[test]
    fn short_operands_are_errors() {
        let (a, b) = ([0.0f32; 6], [f16::ONE; 5]);
        let around = Around { bias: None, activation: Activation::None };
        let mut c = [0.0f32; 4];
        let rows = half_product_around(
            [2, 2, 3],
            Mat::rows(&a, 3),
            Mat::rows(&b, 2),
            &mut c,
            2,
            around,
            Threads::One,
        );
        assert!(matches!(rows, Err(KernelError::Value { .. })), "{rows:?}");
    }
}
