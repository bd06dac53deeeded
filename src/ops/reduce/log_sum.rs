//! The logarithm of a sum of exponentials, without overflow.

use super::accumulator::{Accumulator, Number};
use super::reduce_op::{Folds, Lines, SIDE};
use crate::ops::linalg::product::sum_of;
use crate::ops::norm::largest;
use crate::ops::real::{as_f32s, as_f32s_mut};
use crate::simd::{exp, wide};

impl<T: Number> Folds<'_, T> {
    /// Writes the logarithm of the sum of the exponentials of each block.
    pub(super) fn log_sums(&self, y: &mut [T]) {
        let Folds { kept, lines, count, .. } = *self;
        if let (Some(x), Some(y)) = (as_f32s(self.x), as_f32s_mut(y))
            && (self.columns() || (lines.step == 1 && lines.starts.len() == 1))
        {
            let folds = Folds { x, kept, lines, count };
            return if folds.columns() { folds.log_sums_beside(y) } else { folds.log_sums_of_rows(y) };
        }
        let step = kept.inner_stride(0);
        let max = |a: f64, v: f64| if v > a || v.is_nan() { v } else { a };
        self.parts(y, &|base, out| {
            for (k, out) in out.iter_mut().enumerate() {
                let base = base + step * k as isize;
                let mut top = f64::NEG_INFINITY;
                self.visit(base, |v| top = max(top, v));
                let shift = if top.is_finite() { top } else { 0.0 };
                let mut sum = 0.0;
                self.visit(base, |v| sum += (v - shift).exp());
                *out = T::narrow(T::Acc::from_f64(sum.ln() + shift));
            }
        });
    }

    fn visit(&self, base: isize, mut f: impl FnMut(f64)) {
        let Lines { starts, len, step } = self.lines;
        for start in starts {
            for i in 0..*len {
                let v = self.row(base, start + step * i as isize, 1);
                v.iter().for_each(|v| f(v.widen().as_f64()));
            }
        }
    }
}

impl Folds<'_, f32> {
    /// Of one contiguous line each.
    fn log_sums_of_rows(&self, y: &mut [f32]) {
        let step = self.kept.inner_stride(0);
        self.parts(y, &|base, out| {
            wide(
                #[inline(always)]
                || {
                    for (k, out) in out.iter_mut().enumerate() {
                        let row = self.row(base + step * k as isize, self.lines.starts[0], self.lines.len);
                        let shift = finite(largest(row));
                        let sum = sum_of(
                            row,
                            #[inline(always)]
                            |v| exp(v - shift),
                        );
                        *out = sum.ln() + shift;
                    }
                },
            );
        });
    }

    /// Of lines side by side.
    fn log_sums_beside(&self, y: &mut [f32]) {
        let Lines { starts, len, step } = self.lines;
        self.parts(y, &|base, out| {
            wide(
                #[inline(always)]
                || {
                    // From one to the other: in place, what a comparison leaves would not be stored, and AVX2 has no fast
                    // vectors for a condition of each store.
                    let (mut top, mut next) = (&mut [f32::NEG_INFINITY; SIDE], &mut [0.0; SIDE]);
                    for (start, i) in starts.iter().flat_map(|start| (0..*len).map(move |i| (start, i))) {
                        let row = self.row(base, start + step * i as isize, out.len());
                        for ((next, top), v) in next.iter_mut().zip(&*top).zip(row) {
                            *next = if *v > *top || v.is_nan() { *v } else { *top };
                        }
                        std::mem::swap(&mut top, &mut next);
                    }
                    let mut sums = [0.0; SIDE];
                    top.iter_mut().for_each(|top| *top = finite(*top));
                    for (start, i) in starts.iter().flat_map(|start| (0..*len).map(move |i| (start, i))) {
                        let row = self.row(base, start + step * i as isize, out.len());
                        for ((sum, top), v) in sums.iter_mut().zip(&*top).zip(row) {
                            *sum += exp(*v - *top);
                        }
                    }
                    for ((out, sum), top) in out.iter_mut().zip(&sums).zip(&*top) {
                        *out = sum.ln() + top;
                    }
                },
            );
        });
    }
}

/// What exponents are less by: the largest, if that is a number.
#[inline(always)]
fn finite(top: f32) -> f32 {
    if top.is_finite() { top } else { 0.0 }
}

#[cfg(test)]
mod tests {
    use crate::graph::Tensor;
    use crate::ops::reduce::{Reduce, ReduceKind};
    use crate::ops::test_util::{run_cpu, tensor};

    fn log_sums(x: &Tensor, axes: &[i64]) -> Vec<f32> {
        let op = Reduce {
            kind: ReduceKind::LogSumExp,
            axes: Some(axes.to_vec()),
            keep_dims: false,
            noop_with_empty_axes: false,
        };
        run_cpu(&op, &[Some(x.clone())], 1).unwrap()[0].to_f32s().unwrap()
    }

    /// Of rows, of columns, of both at once, and of rows in several pieces.
    #[test]
    fn log_sums_are_those_of_the_definition() {
        let cases: [([usize; 3], &[i64]); 8] = [
            ([1, 7, 300], &[2]),
            ([1, 300, 7], &[1]),
            ([1, 40, 600], &[1]),
            ([1, 1, 1], &[1]),
            ([1, 1, 5], &[2]),
            ([3, 5, 33], &[0, 2]),
            ([3, 5, 300], &[0, 1]),
            ([4, 6, 9], &[0]),
        ];
        for (shape, axes) in cases {
            let x = tensor(&shape, 3);
            let v = x.to_f32s().unwrap();
            let [_, rows, cols] = shape;
            let kept = |d: i64| !axes.contains(&d);
            let mut sums = std::collections::BTreeMap::<[usize; 3], f64>::new();
            for (i, v) in v.iter().enumerate() {
                let at = [i / (rows * cols), i / cols % rows, i % cols];
                let place = [0, 1, 2].map(|d| if kept(d as i64) { at[d] } else { 0 });
                *sums.entry(place).or_default() += f64::from(*v).exp();
            }
            let got = log_sums(&x, axes);
            assert_eq!(got.len(), sums.len());
            for (got, sum) in got.into_iter().zip(sums.into_values()) {
                assert!(
                    (f64::from(got) - sum.ln()).abs() < 1e-5,
                    "{shape:?} over {axes:?}: {got} of {}",
                    sum.ln()
                );
            }
        }
    }

    #[test]
    fn what_is_no_number_stays_and_large_numbers_do_not_overflow() {
        let (inf, nan) = (f32::INFINITY, f32::NAN);
        let rows =
            [[1e30, 1e30, 0.0], [-inf, -inf, -inf], [inf, 0.0, -inf], [nan, 0.0, 1.0], [0.0, inf, nan]];
        let want = [1e30, -inf, inf, nan, nan];
        let same = |got: &[f32]| got.iter().zip(want).all(|(g, w)| *g == w || (g.is_nan() && w.is_nan()));
        let by_rows = log_sums(&Tensor::new([5, 3], &rows.concat()).unwrap(), &[1]);
        assert!(same(&by_rows), "{by_rows:?}");
        let columns: Vec<f32> = (0..3).flat_map(|k| rows.map(|row| row[k])).collect();
        let by_columns = log_sums(&Tensor::new([3, 5], &columns).unwrap(), &[0]);
        assert!(same(&by_columns), "{by_columns:?}");
    }
}
