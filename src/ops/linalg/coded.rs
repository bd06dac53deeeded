//! Products with a matrix of which each column is kept as codes: what they share whatever the codes are.

use rayon::prelude::*;

use super::product::{Mat, Threads, product};
use crate::dtype::DType;
use crate::kernel::KernelError;
use crate::ops::real::Real;
use crate::ops::{OpCx, OpError, par};
use crate::shape::Shape;
use crate::tensor::TensorInfo;

/// Columns of the result that a task of the native functions makes at once.
const COLUMNS: usize = 32;
/// Up to this many rows, native functions multiply by codes directly, instead of decoding columns.
pub(crate) const FEW_ROWS: usize = 4;

/// The result of rows of input `a` and a matrix of `columns`.
pub(crate) fn infer(cx: &OpCx, a: usize, dtype: DType, columns: usize) -> Result<Vec<TensorInfo>, OpError> {
    let mut dims = cx.shape(a)?.to_vec();
    if let Some(last) = dims.last_mut() {
        *last = columns;
    }
    Ok(vec![TensorInfo::new(dtype, Shape::new(dims)?)])
}

/// Columns of a team of the kernel for few rows, and teams that share columns: enough teams to keep a large device
/// busy. A column has `units`, of which each thread of a team takes one at a time.
pub(crate) fn teams(columns: usize, units: usize) -> (usize, usize) {
    const MIN_TEAMS: usize = 1024;
    let cols = [4, 2].into_iter().find(|cols| columns / cols >= MIN_TEAMS).unwrap_or(1);
    let split = [4, 2].into_iter().find(|split| units >= split * 64 && columns / cols < 2 * MIN_TEAMS);
    (cols, split.unwrap_or(1))
}

/// A product of few rows: `dots` gives a column's products with every row.
pub(crate) fn few_rows<T: Real>(
    [m, n]: [usize; 2],
    bias: Option<&[T]>,
    y: &mut [T],
    dots: impl Fn(usize, &mut [f32]) + Sync,
) {
    let mut sums = vec![0f32; m * n];
    // Element `[column, row]`, so that a thread's columns are its own.
    par::share(sums.chunks_mut(COLUMNS * m).enumerate(), |(part, sums)| {
        sums.chunks_mut(m).enumerate().for_each(|(c, sums)| dots(part * COLUMNS + c, sums));
    });
    for (i, y) in y.iter_mut().enumerate() {
        let bias = bias.and_then(|b| b.get(i % n)).copied().unwrap_or(T::ZERO);
        *y = T::from_f64(sums[i % n * m + i / n].into()) + bias;
    }
}

/// A product of the rows of `a`: `decode` writes whole columns of `k` elements, from the given one on.
///
/// # Errors
/// Those of [`product`].
pub(crate) fn many_rows<T: Real>(
    [m, n, k]: [usize; 3],
    a: &[T],
    bias: Option<&[T]>,
    y: &mut [T],
    decode: impl Fn(usize, &mut [T]) + Sync,
) -> Result<(), KernelError> {
    // Some columns at once, as rows of a transposed operand; their results are columns of the output.
    let parts = (0..n.div_ceil(COLUMNS)).into_par_iter().map(|part| {
        let first = part * COLUMNS;
        let count = COLUMNS.min(n - first);
        let mut decoded = vec![T::ZERO; count * k];
        decode(first, &mut decoded);
        let mut out = vec![T::ZERO; m * count];
        let (a, b) = (Mat::rows(a, k), Mat::transposed(&decoded, k));
        product([m, count, k], a, b, &mut out, count, false, Threads::One)?;
        Ok(out)
    });
    let parts: Vec<Vec<T>> = parts.collect::<Result<_, KernelError>>()?;
    y.par_chunks_mut(n).enumerate().for_each(|(r, y)| {
        for (y, part) in y.chunks_mut(COLUMNS).zip(&parts) {
            y.copy_from_slice(&part[r * y.len()..][..y.len()]);
        }
        if let Some(bias) = bias {
            y.iter_mut().zip(bias).for_each(|(y, b)| *y += *b);
        }
    });
    Ok(())
}
