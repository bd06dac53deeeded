//! Convolutions of one input channel per group: in vector registers ([`Planes`]), or direct loops over rows.

use super::dims::ConvDims;
use crate::ops::activation::Epilogue;
use crate::ops::linalg::tile;
use crate::ops::planes::{Planes, Source, Sum};
use crate::ops::real::Real;
use crate::ops::real::{as_f32s, as_f32s_mut};
use crate::ops::{Activation, WindowAxis, par};
use crate::simd::wide;

/// Multiplications of one part of the work.
const PART: usize = 200_000;

/// Computes the whole output, which is not empty.
pub(super) fn run<T: Real>(
    dims: &ConvDims,
    epilogue: &Epilogue<'_, T>,
    x: &[T],
    w: &[T],
    bias: Option<&[T]>,
    y: &mut [T],
) {
    let (in_plane, out_plane, taps) = (dims.in_plane(), dims.out_plane(), dims.taps());
    let channels = dims.group * dims.oc;
    let most = (PART / (out_plane * taps).max(1)).clamp(1, channels.div_ceil(par::threads()));
    // Parts of about the same size, as many for each thread; of pairs of planes, which may share vectors, unless that leaves
    // threads without any.
    let parts = channels.div_ceil(most).next_multiple_of(par::threads());
    let each = channels.div_ceil(parts);
    let each = if each > 1 { each.next_multiple_of(2) } else { 1 };
    let planes = Planes::new(&dims.axes).filter(|_| tile::has_vectors());
    par::share(y.chunks_mut(out_plane * each).enumerate(), |(part, y)| {
        // The input plane of output plane `i`, and its weights and bias.
        let of = |i: usize| {
            let oc = i % channels;
            let taps = &w[oc * taps..][..taps];
            (i / channels * dims.group + oc / dims.oc, taps, bias.map_or(T::ZERO, |b| b[oc]))
        };
        let first = part * each;
        if let (Some(planes), Some(x), Some(f32s)) = (&planes, as_f32s(x), as_f32s_mut(y)) {
            let of = |i: usize| {
                let (plane, taps, bias) = of(first + i);
                let (taps, kind) = (as_f32s(taps).unwrap_or(&[]), Sum(bias.to_f64() as f32));
                Source { x, at: plane * in_plane, taps, kind }
            };
            if epilogue.summand.is_none() && epilogue.slopes.is_none() {
                return planes.run(of, &epilogue.activation, f32s);
            }
            planes.run(of, &Activation::None, f32s);
            return epilogue.apply(y, first * out_plane);
        }
        for (i, y) in y.chunks_mut(out_plane).enumerate() {
            let (from, taps, bias) = of(first + i);
            let x = &x[from * in_plane..][..in_plane];
            wide(
                #[inline(always)]
                || plane(&dims.axes, x, taps, bias, y),
            );
            epilogue.apply(y, (first + i) * out_plane);
        }
    });
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
