//! Convolutions of one input channel per group: direct loops over rows.

use rayon::prelude::*;

use super::conv_op::ConvDims;
use crate::ops::real::{Real, activate_all};
use crate::ops::{Activation, WindowAxis};
use crate::spirv::wide::wide;

/// Computes the whole output, which is not empty.
pub(super) fn run<T: Real>(
    dims: &ConvDims,
    activation: &Activation,
    x: &[T],
    w: &[T],
    bias: Option<&[T]>,
    y: &mut [T],
) {
    let (in_plane, taps) = (dims.in_plane(), dims.taps());
    let channels = dims.group * dims.oc;
    y.par_chunks_mut(dims.out_plane()).enumerate().for_each(|(i, y)| {
        let oc = i % channels;
        let x = &x[(i / channels * dims.group + oc / dims.oc) * in_plane..][..in_plane];
        let (taps, bias) = (&w[oc * taps..][..taps], bias.map_or(T::ZERO, |b| b[oc]));
        wide(
            #[inline(always)]
            || {
                if let Ok(taps) = taps.try_into()
                    && is_three_by_three(&dims.axes)
                {
                    nine(&dims.axes, x, taps, bias, activation, y);
                } else {
                    plane(&dims.axes, x, taps, bias, y);
                    activate_all(activation, y);
                }
            },
        );
    });
}

/// Whether the window is 3 by 3 without gaps, at most every second one taken: what [`nine`] is for.
fn is_three_by_three([d, h, w]: &[WindowAxis; 3]) -> bool {
    let flat = d.kernel == 1 && d.input == 1 && d.output == 1 && d.pads == [0, 0];
    let three = |a: &WindowAxis| a.kernel == 3 && a.dilation == 1;
    flat && three(h) && three(w) && w.stride <= 2 && w.input > 0
}

/// All taps of a row of the output at once, over rows of the input that carry their padding.
#[inline(always)]
fn nine<T: Real>(
    [_, h, w]: &[WindowAxis; 3],
    x: &[T],
    t: &[T; 9],
    bias: T,
    activation: &Activation,
    y: &mut [T],
) {
    let n = w.output;
    // With a stride of 2 the even elements of a row come first, then the odd ones.
    let (evens, pitch) = if w.stride == 2 { (n + 1, 2 * n + 1) } else { (0, n + 2) };
    let mut rows = vec![T::ZERO; (h.input + 1) * pitch];
    // The row of zeros is the last one.
    let (padded, zeros) = rows.split_at_mut(h.input * pitch);
    let before = w.pads[0];
    for (row, x) in padded.chunks_exact_mut(pitch).zip(x.chunks_exact(w.input)) {
        // The part of the input that some output reads.
        let skip = usize::try_from(-before).unwrap_or(0).min(x.len());
        let at = usize::try_from(before).unwrap_or(0).min(pitch);
        let x = &x[skip..][..(x.len() - skip).min(pitch - at)];
        if w.stride == 1 {
            row[at..at + x.len()].copy_from_slice(x);
            continue;
        }
        let (even, odd) = row.split_at_mut(evens);
        // The first of a pair lies among the even elements where the padding is even.
        let (first, second, shift) = if at % 2 == 0 { (even, odd, 0) } else { (odd, even, 1) };
        let (first, second) = (&mut first[at / 2..], &mut second[at / 2 + shift..]);
        let pairs = x.chunks_exact(2);
        if let ([last], Some(to)) = (pairs.remainder(), first.get_mut(x.len() / 2)) {
            *to = *last;
        }
        for ((first, second), pair) in first.iter_mut().zip(second).zip(pairs) {
            (*first, *second) = (pair[0], pair[1]);
        }
    }
    let (padded, zeros): (&[T], &[T]) = (padded, zeros);
    for (oh, y) in y.chunks_exact_mut(n).enumerate() {
        let row = |kh| h.at(oh, kh).and_then(|ih| padded.get(ih * pitch..(ih + 1) * pitch)).unwrap_or(zeros);
        let taken = [row(0), row(1), row(2)];
        // For every row, the elements under its three taps.
        let places = if w.stride == 2 { [0, evens, 1] } else { [0, 1, 2] };
        let under = taken.map(|r| places.map(|from| r.get(from..from + n).unwrap_or(&[])));
        add_taps(y, under[0], &t[..3], |_, v| v + bias);
        add_taps(y, under[1], &t[3..6], |y, v| y + v);
        let (last, t) = (under[2], &t[6..]);
        match *activation {
            Activation::Relu => add_taps(y, last, t, |y, v| (y + v).activate(&Activation::Relu)),
            Activation::Clip { low, high } => {
                add_taps(y, last, t, |y, v| (y + v).activate(&Activation::Clip { low, high }));
            }
            _ => add_taps(y, last, t, |y, v| y + v),
        }
    }
    if !matches!(activation, Activation::Relu | Activation::Clip { .. }) {
        activate_all(activation, y);
    }
}

/// Combines every output with what three taps give for it.
#[inline(always)]
fn add_taps<T: Real>(y: &mut [T], [a, b, c]: [&[T]; 3], t: &[T], f: impl Fn(T, T) -> T) {
    let &[ta, tb, tc] = t else { return };
    for (((y, a), b), c) in y.iter_mut().zip(a).zip(b).zip(c) {
        *y = f(*y, ta * *a + tb * *b + tc * *c);
    }
}

#[inline(always)]
fn plane<T: Real>([d, h, w]: &[WindowAxis; 3], x: &[T], taps: &[T], bias: T, y: &mut [T]) {
    y.fill(bias);
    for (line, y) in y.chunks_mut(w.output).enumerate() {
        let (od, oh) = (line / h.output, line % h.output);
        for kd in d.taps(od) {
            for kh in h.taps(oh) {
                let (Some(id), Some(ih)) = (d.at(od, kd), h.at(oh, kh)) else { continue };
                let x = &x[(id * h.input + ih) * w.input..][..w.input];
                row(w, x, &taps[(kd * h.kernel + kh) * w.kernel..][..w.kernel], y);
            }
        }
    }
}

/// Adds one row of taps to one row of the output.
#[inline(always)]
fn row<T: Real>(axis: &WindowAxis, x: &[T], taps: &[T], y: &mut [T]) {
    let mut done = 0..0;
    if let (&[a, b, c], 1) = (taps, axis.dilation) {
        // Three taps at once where all are inside; the edges are left to the loop below.
        done = axis.valid(0).start..axis.valid(2).end.max(axis.valid(0).start);
        let from = axis.at(done.start, 0).filter(|_| !done.is_empty());
        match (from, axis.stride) {
            (Some(from), 1) => {
                let y = &mut y[done.clone()];
                let x = &x[from..][..y.len() + 2];
                for (y, x) in y.iter_mut().zip(x.windows(3)) {
                    *y += a * x[0] + b * x[1] + c * x[2];
                }
            }
            (Some(from), 2) => {
                let y = &mut y[done.clone()];
                let (pairs, last) = (x[from..].chunks_exact(2), &x[from + 2..]);
                for ((y, x), z) in y.iter_mut().zip(pairs).zip(last.iter().step_by(2)) {
                    *y += a * x[0] + b * x[1] + c * *z;
                }
            }
            _ => done = 0..0,
        }
    }
    for (k, &tap) in taps.iter().enumerate() {
        let inside = axis.valid(k);
        let left = inside.start..inside.end.min(done.start.max(inside.start));
        let right = inside.start.max(done.end).min(inside.end)..inside.end;
        let parts = if done.is_empty() { [inside, 0..0] } else { [left, right] };
        for part in parts {
            let Some(from) = axis.at(part.start, k).filter(|_| !part.is_empty()) else { continue };
            let y = &mut y[part];
            if axis.stride == 1 {
                y.iter_mut().zip(&x[from..]).for_each(|(y, x)| *y += tap * *x);
            } else {
                y.iter_mut().zip(x[from..].iter().step_by(axis.stride)).for_each(|(y, x)| *y += tap * *x);
            }
        }
    }
}
