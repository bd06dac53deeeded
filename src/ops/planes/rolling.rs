//! Square windows of neighbouring elements: each line of the input is read once for all rows of the output whose windows
//! it lies under.
//!
//! The sums of those rows are in registers, and the oldest one leaves as a line is done. Lines are read where the input
//! lies, at the distance of each tap; what is under the padding is masked. Where windows move by two, each tap takes every
//! second element as it reads. Two planes whose rows fill half a vector share one.

use std::ops::Range;

use pulp::Simd;

use super::{Activation, Gather, LANES, Source, WindowAxis, keep, store};
use crate::simd::Alternate;

/// Elements of the lines whose columns are walked together: of more lines the cache and the tables of pages keep too little.
/// Tests walk a few.
const TOGETHER: usize = if cfg!(test) { 64 } else { 64 << 10 };
/// Rows that are walked together at least: the first lines of all are read once more.
const LEAST_ROWS: usize = if cfg!(test) { 3 } else { 32 };
/// Elements before and after a plane that vectors may reach.
const SLACK: usize = 3 * LANES;

/// A window of `K` by `K` taps, 3 or 5, that moves by 1 or 2.
pub(super) struct Rolling {
    h: WindowAxis,
    w: WindowAxis,
    /// Elements of a vector that one plane has.
    slot: usize,
    /// For each vector of a row and each column of the window which elements are the input's: all bits or none.
    inside: Vec<[u32; LANES]>,
}

/// Where a plane of the input lies.
#[derive(Clone, Copy)]
struct Lines<'a> {
    x: &'a [f32],
    /// Where the first output's first tap of the first line is.
    at: i64,
}

impl Rolling {
    /// `None` for other windows, and for padding that is wider than they are.
    pub(super) fn new(h: WindowAxis, w: WindowAxis, lanes: usize) -> Option<Rolling> {
        let square = (h.kernel, h.stride) == (w.kernel, w.stride);
        let near = [h, w].iter().all(|a| a.dilation == 1 && a.input > 0 && a.output > 0);
        let padded = w.pads.iter().all(|pad| pad.unsigned_abs() < w.kernel as u64);
        if !(square && near && padded && matches!((w.kernel, w.stride), (3 | 5, 1 | 2))) {
            return None;
        }
        let slot = if w.output <= LANES / 2 { lanes.min(LANES / 2) } else { lanes };
        let mut inside = Vec::new();
        for first in (0..w.output).step_by(slot) {
            inside.extend((0..w.kernel).map(|kw| {
                std::array::from_fn(|lane| {
                    let column = ((first + lane % slot) * w.stride + kw) as i64 - w.pads[0];
                    if (0..w.input as i64).contains(&column) { u32::MAX } else { 0 }
                })
            }));
        }
        Some(Rolling { h, w, slot, inside })
    }

    /// Elements of scratch memory.
    pub(super) fn len(&self) -> usize {
        2 * self.part()
    }

    /// Those of a copy of a plane.
    fn part(&self) -> usize {
        self.h.input * self.w.input + 2 * SLACK
    }

    /// Computes the planes of `y`, each of which `of` gives.
    #[inline(always)]
    pub(super) fn run<'a, S: Simd, G: Gather>(
        &self,
        simd: S,
        of: impl Fn(usize) -> Source<'a, G>,
        activation: &Activation,
        scratch: &mut [f32],
        y: &mut [f32],
    ) {
        match (self.w.kernel, self.w.stride) {
            (3, 1) => self.planes::<S, G, 3, 1>(simd, of, activation, scratch, y),
            (3, _) => self.planes::<S, G, 3, 2>(simd, of, activation, scratch, y),
            (_, 1) => self.planes::<S, G, 5, 1>(simd, of, activation, scratch, y),
            _ => self.planes::<S, G, 5, 2>(simd, of, activation, scratch, y),
        }
    }

    #[inline(always)]
    fn planes<'a, S: Simd, G: Gather, const K: usize, const STRIDE: usize>(
        &self,
        simd: S,
        of: impl Fn(usize) -> Source<'a, G>,
        activation: &Activation,
        scratch: &mut [f32],
        y: &mut [f32],
    ) {
        let (plane, bounds) = (self.h.output * self.w.output, activation.bounds());
        let n = y.len() / plane;
        let finish = |y: &mut [f32]| {
            if bounds.is_none() {
                activation.apply(y);
            }
        };
        if self.slot < S::F32_LANES {
            for i in (0..n).step_by(2) {
                // The last one's neighbour is itself, and is not stored.
                let from = [of(i), of((i + 1).min(n - 1))];
                let end = y.len().min((i + 2) * plane);
                let y = &mut y[i * plane..end];
                self.group::<S, G, K, STRIDE, 2>(simd, from, bounds, scratch, y);
                finish(y);
            }
        } else {
            for i in 0..n {
                let y = &mut y[i * plane..];
                self.group::<S, G, K, STRIDE, 1>(simd, [of(i)], bounds, scratch, y);
                finish(&mut y[..plane]);
            }
        }
    }

    /// `P` planes, which share vectors.
    #[inline(always)]
    fn group<S: Simd, G: Gather, const K: usize, const STRIDE: usize, const P: usize>(
        &self,
        simd: S,
        from: [Source<'_, G>; P],
        bounds: Option<[f32; 2]>,
        scratch: &mut [f32],
        y: &mut [f32],
    ) {
        let (h, w, part) = (&self.h, &self.w, self.part());
        let plane = h.input * w.input;
        let mut lines = [Lines { x: &[], at: 0 }; P];
        for ((from, scratch), lines) in from.iter().zip(scratch.chunks_mut(part)).zip(&mut lines) {
            let reached = from.at >= SLACK && from.at + plane + SLACK <= from.x.len();
            let (x, at) = if reached {
                (from.x, from.at)
            } else {
                scratch[SLACK..][..plane].copy_from_slice(&from.x[from.at..][..plane]);
                (&*scratch, SLACK)
            };
            *lines = Lines { x, at: at as i64 - w.pads[0] };
        }
        let each = (TOGETHER / (w.input * STRIDE)).max(LEAST_ROWS);
        for first in (0..h.output).step_by(each) {
            let rows = first..h.output.min(first + each);
            // Backwards: what a vector has beyond the end of a row is put right by the next row's first one.
            for column in (0..w.output).step_by(self.slot).rev() {
                self.column::<S, G, K, STRIDE, P>(simd, (column, rows.clone()), (lines, &from), bounds, y);
            }
        }
    }

    /// The vectors of some rows whose first column is `column`.
    #[inline(always)]
    #[allow(clippy::needless_range_loop, reason = "constant indices keep the sums in registers")]
    fn column<S: Simd, G: Gather, const K: usize, const STRIDE: usize, const P: usize>(
        &self,
        simd: S,
        (column, rows): (usize, Range<usize>),
        (planes, from): ([Lines<'_>; P], &[Source<'_, G>; P]),
        bounds: Option<[f32; 2]>,
        y: &mut [f32],
    ) {
        let (h, w, slot) = (&self.h, &self.w, S::F32_LANES / P);
        let (width, plane) = (w.output, h.output * w.output);
        let mut numbers = [0.0; P];
        for p in 0..P {
            numbers[p] = from[p].kind.first();
        }
        let of_bits =
            |bits: &[u32; LANES]| simd.greater_than_u32s(S::as_simd_u32s(bits).0[0], simd.splat_u32s(0));
        let halves = Halves(of_bits(&FIRST_HALF));
        let first = halves.spread::<S, P>(simd, numbers);
        let mut taps = [[first; K]; K];
        let mut inside = [halves.0; K];
        for kw in 0..K {
            inside[kw] = of_bits(&self.inside[column / slot * K + kw]);
            for kh in 0..K {
                for p in 0..P {
                    numbers[p] = from[p].taps[kh * K + kw];
                }
                taps[kh][kw] = halves.spread::<S, P>(simd, numbers);
            }
        }
        let (padding, alternate) = (simd.splat_f32s(G::PADDING), Alternate::detect());
        // Rows whose sums are not complete as the next line comes, and elements of a line that taps read.
        let open = K.div_ceil(STRIDE) - 1;
        // The second plane's are read from so far before that they come into the second half of a vector.
        let (before, span) = if STRIDE == 1 { (slot, S::F32_LANES) } else { (0, slot * STRIDE) };
        let mut sums = [first; K];
        for step in rows.start..rows.end + open {
            for line in 0..STRIDE {
                let at = (step * STRIDE + line) as i64 - h.pads[0];
                if at < 0 || at >= h.input as i64 {
                    continue;
                }
                // No call of a function is in this loop: it would take the registers.
                let mut lines: [&[f32]; P] = [&[]; P];
                for p in 0..P {
                    let start = planes[p].at + (at as usize * w.input + column * STRIDE) as i64;
                    lines[p] = &planes[p].x[start as usize - p * before..][..span + K - 1];
                }
                let mut elements = [padding; K];
                for kw in 0..K {
                    let mut from: [&[f32]; P] = [&[]; P];
                    for p in 0..P {
                        from[p] = &lines[p][kw..][..span];
                    }
                    let a = S::as_simd_f32s(from[0]).0[0];
                    if STRIDE == 1 {
                        elements[kw] = halves.joined::<S, P>(simd, [a, S::as_simd_f32s(from[P - 1]).0[0]]);
                        continue;
                    }
                    // One plane has twice as many elements. Those between the ones of a tap are the next tap's.
                    let b = S::as_simd_f32s(from[P - 1]).0[2 - P];
                    if kw % 2 == 1 {
                        elements[kw] = alternate.evens(simd, a, b);
                        elements[kw + 1] = alternate.odds(simd, a, b);
                    } else if kw == 0 {
                        elements[kw] = alternate.evens(simd, a, b);
                    }
                }
                for kw in 0..K {
                    let x = simd.select_f32s(inside[kw], elements[kw], padding);
                    for row in 0..=open {
                        let kh = line + STRIDE * row;
                        if kh < K {
                            sums[row] = G::step(simd, taps[kh][kw], x, sums[row]);
                        }
                    }
                }
            }
            let done = keep(simd, sums[open], bounds);
            for row in (0..open).rev() {
                sums[row + 1] = sums[row];
            }
            sums[0] = first;
            let Some(row) = step.checked_sub(open).filter(|row| *row >= rows.start) else { continue };
            let (at, left) = (row * width + column, width - column);
            if P == 1 {
                store(simd, done, left, &mut y[at..]);
                continue;
            }
            let mut whole = [0.0f32; LANES];
            S::as_mut_simd_f32s(&mut whole).0[0] = done;
            for p in 0..P {
                let Some(y) = y.get_mut(p * plane..(p + 1) * plane) else { break };
                let stored = &whole[p * slot..][..slot];
                // Before the last rows there is room for what later ones overwrite.
                match y[at..].get_mut(..slot) {
                    Some(to) => to.copy_from_slice(stored),
                    None => y[at..].iter_mut().zip(stored).take(left).for_each(|(to, from)| *to = *from),
                }
            }
        }
    }
}

/// All bits of the elements that the first of two planes has.
const FIRST_HALF: [u32; LANES] = {
    let mut bits = [0; LANES];
    let mut lane = 0;
    while lane < LANES / 2 {
        bits[lane] = u32::MAX;
        lane += 1;
    }
    bits
};

/// A mask of them.
#[derive(Clone, Copy)]
struct Halves<M>(M);

impl<M: Copy> Halves<M> {
    /// A vector of one number for each of `P` planes.
    #[inline(always)]
    fn spread<S: Simd<m32s = M>, const P: usize>(self, simd: S, of: [f32; P]) -> S::f32s {
        self.joined::<S, P>(simd, [simd.splat_f32s(of[0]), simd.splat_f32s(of[P - 1])])
    }

    /// The first half of `a` and the second one of `b` where there are two planes, otherwise `a`.
    #[inline(always)]
    fn joined<S: Simd<m32s = M>, const P: usize>(self, simd: S, [a, b]: [S::f32s; 2]) -> S::f32s {
        if P == 1 { a } else { simd.select_f32s(self.0, a, b) }
    }
}
