//! Unfolds an image into the columns that a product multiplies with the weights.

use crate::ops::linalg::product::Threads;
use crate::ops::real::Real;
use crate::ops::{WindowAxis, par};

/// Number of columns of `depth` elements of `size` bytes that are unfolded at a time: as many as fit `bytes`, but
/// enough for a product to be efficient.
pub(crate) fn block(depth: usize, plane: usize, size: usize, bytes: usize) -> usize {
    let fit = bytes / (depth * size).max(1);
    fit.next_multiple_of(16).max(128).min(plane.max(1))
}

/// The channels of one group of one image.
pub(crate) struct Columns<'a, T> {
    pub(crate) axes: [WindowAxis; 3],
    pub(crate) x: &'a [T],
}

impl<T: Real> Columns<'_, T> {
    /// Writes columns `first` to `first + n`, one row for every (channel, tap).
    pub(crate) fn fill(&self, first: usize, n: usize, rows: &mut [T], threads: Threads) {
        let work = rows.len();
        match threads {
            Threads::One => {
                rows.chunks_mut(n).enumerate().for_each(|(row, dst)| self.row(row, first, dst));
            }
            Threads::All => par::rows(rows, n, work, |row, dst| self.row(row, first, dst)),
        }
    }

    fn row(&self, row: usize, first: usize, mut dst: &mut [T]) {
        let [d, h, w] = self.axes;
        let (kw, rest) = (row % w.kernel, row / w.kernel);
        let (kh, rest) = (rest % h.kernel, rest / h.kernel);
        let (kd, channel) = (rest % d.kernel, rest / d.kernel);
        let plane = d.input * h.input * w.input;
        let x = &self.x[channel * plane..][..plane];
        let inside = w.valid(kw);
        let mut at = first;
        while !dst.is_empty() {
            let (line, start) = (at / w.output, at % w.output);
            let len = (w.output - start).min(dst.len());
            let (part, rest) = dst.split_at_mut(len);
            dst = rest;
            at += len;
            let source = d.at(line / h.output, kd).zip(h.at(line % h.output, kh));
            let Some((id, ih)) = source else {
                part.fill(T::ZERO);
                continue;
            };
            let x = &x[(id * h.input + ih) * w.input..][..w.input];
            let lo = inside.start.clamp(start, start + len);
            let hi = inside.end.clamp(lo, start + len);
            part[..lo - start].fill(T::ZERO);
            part[hi - start..].fill(T::ZERO);
            let Some(from) = w.at(lo, kw).filter(|_| hi > lo) else { continue };
            let part = &mut part[lo - start..hi - start];
            if w.stride == 1 {
                part.copy_from_slice(&x[from..][..part.len()]);
            } else {
                part.iter_mut().zip(x[from..].iter().step_by(w.stride)).for_each(|(y, x)| *y = *x);
            }
        }
    }
}
