//! Windows over one plane each, in vector registers: depthwise convolutions and pools.
//!
//! The padded input is kept as rows of one pitch, so that a tap reads neighbours for neighbouring outputs. Where
//! the window moves by two columns, a row is kept as its even elements and then its odd ones.

mod flat;

use std::cell::Cell;
use std::marker::PhantomData;

use pulp::{Simd, WithSimd};

use self::flat::Flat;
use super::Activation;
use super::linalg::tile::{clamp, lanes};
use super::window::WindowAxis;
use crate::simd::arch;

/// Rows of the output that are summed side by side.
const ROWS: usize = 4;
/// Rows of the input under them, of the largest window that has a loop of its own.
const LINES: usize = ROWS + 4;
/// The longest vector.
const LANES: usize = 16;

thread_local! {
    static SCRATCH: Cell<Vec<f32>> = const { Cell::new(Vec::new()) };
}

/// The reduction of the elements under a window.
pub(crate) trait Gather: Copy {
    /// The value of padding.
    const PADDING: f32;
    /// The value before the first element.
    fn first(self) -> f32;
    /// The value with one more element, `x`, whose tap is `tap`.
    fn step<S: Simd>(simd: S, tap: S::f32s, x: S::f32s, so_far: S::f32s) -> S::f32s;
}

/// The sum of products with the taps, and a bias.
#[derive(Clone, Copy)]
pub(crate) struct Sum(pub(crate) f32);

impl Gather for Sum {
    const PADDING: f32 = 0.0;

    fn first(self) -> f32 {
        self.0
    }

    #[inline(always)]
    fn step<S: Simd>(simd: S, tap: S::f32s, x: S::f32s, so_far: S::f32s) -> S::f32s {
        simd.mul_add_e_f32s(tap, x, so_far)
    }
}

/// The largest element; one that is not a number is passed over.
#[derive(Clone, Copy)]
pub(crate) struct Largest;

impl Gather for Largest {
    const PADDING: f32 = f32::NEG_INFINITY;

    fn first(self) -> f32 {
        f32::NEG_INFINITY
    }

    #[inline(always)]
    fn step<S: Simd>(simd: S, _: S::f32s, x: S::f32s, so_far: S::f32s) -> S::f32s {
        simd.select_f32s(simd.greater_than_f32s(x, so_far), x, so_far)
    }
}

/// Where the elements of the input lie in the scratch memory.
pub(crate) struct Planes {
    h: WindowAxis,
    w: WindowAxis,
    /// Rows of the padded plane.
    rows: usize,
    /// Elements from one of them to the next, and between the parts that the stride makes of it.
    pitch: usize,
    part: usize,
    /// The padded plane's first element: elements of the input then begin where vectors do.
    lead: usize,
    /// For every tap the element that the first output reads, from the padded plane's first one on.
    offsets: Vec<usize>,
    /// The largest of them.
    reach: usize,
    /// Whether the input needs no padding, and lies as the padded plane does.
    whole: bool,
    /// Whether the window has as many rows as columns, of neighbouring elements, and moves by one row and column.
    square: bool,
    /// Where rows are shorter than vectors.
    flat: Option<Flat>,
}

impl Planes {
    /// `None` for windows over three axes, and for strides above two columns.
    pub(crate) fn new(&[d, h, w]: &[WindowAxis; 3]) -> Option<Planes> {
        if d.kernel != 1 || d.input != 1 || d.output != 1 || d.pads != [0, 0] || w.stride > 2 {
            return None;
        }
        let reach = |a: &WindowAxis| {
            let taps = a.kernel.checked_sub(1)?.checked_mul(a.dilation)?;
            a.output.checked_sub(1)?.checked_mul(a.stride)?.checked_add(taps)?.checked_add(1)
        };
        let (rows, across) = (reach(&h)?, reach(&w)?);
        let fits = rows <= h.input && across <= w.input && h.pads[0] == 0 && w.pads[0] == 0;
        let whole = fits && w.stride == 1;
        let part = if whole { w.input } else { across.div_ceil(w.stride).checked_next_multiple_of(LANES)? };
        let pitch = part.checked_mul(w.stride)?;
        // Mostly padding: not worth the memory.
        if rows.checked_mul(pitch)? > 4 * (h.output * w.output + h.input * w.input) + (1 << 12) {
            return None;
        }
        let place = |t: usize| {
            let across = t % w.kernel * w.dilation;
            t / w.kernel * h.dilation * pitch + across % w.stride * part + across / w.stride
        };
        let offsets: Vec<usize> = (0..h.kernel * w.kernel).map(place).collect();
        let reach = offsets.iter().copied().max()?;
        let lead = usize::try_from(w.pads[0]).unwrap_or(0).div_ceil(w.stride).wrapping_neg() % LANES;
        let square = h.kernel == w.kernel && [h, w].iter().all(|a| a.stride == 1 && a.dilation == 1);
        let flat = Flat::new(h, w, lanes());
        Some(Planes { h, w, rows, pitch, part, lead, offsets, reach, whole, square, flat })
    }

    /// Computes the planes of `y`; `of` gives the input from the plane of each on, the taps and the kind.
    pub(crate) fn run<'a, G: Gather>(
        &self,
        of: impl Fn(usize) -> (&'a [f32], &'a [f32], G),
        activation: &Activation,
        y: &mut [f32],
    ) {
        let len = self.flat.as_ref().map_or_else(|| self.len(), Flat::len);
        let mut scratch = SCRATCH.take();
        if scratch.len() < len + LANES {
            scratch.resize(len + LANES, 0.0);
        }
        let aligned = scratch.as_ptr().align_offset(LANES * size_of::<f32>()).min(LANES);
        let padded = &mut scratch[aligned..][..len];
        // Padding is the same for every plane.
        padded.fill(G::PADDING);
        arch().dispatch(Run { planes: self, of, activation, padded, y, kind: PhantomData });
        SCRATCH.set(scratch);
    }

    /// Elements of the padded plane, with those after it that vectors read.
    fn len(&self) -> usize {
        self.lead + self.rows * self.pitch + 4 * LANES
    }

    /// Copies the plane that `x` begins with. What a vector has beyond the end of a row or of its part is put right by
    /// the padding after it and by the next one.
    #[inline(always)]
    fn fill<S: Simd>(&self, simd: S, padding: f32, x: &[f32], padded: &mut [f32]) {
        let (h, w) = (&self.h, &self.w);
        // Negative padding leaves elements out.
        let before = usize::try_from(h.pads[0]).unwrap_or(0);
        let skip = usize::try_from(-h.pads[0]).unwrap_or(0);
        let lines = h.input.saturating_sub(skip).min(self.rows.saturating_sub(before));
        let padding = simd.splat_f32s(padding);
        // Of every part the padding before its first element, which element of the row that is, and how many follow.
        let mut parts = [(0, 0, 0); 2];
        for (part, piece) in parts.iter_mut().enumerate().take(w.stride) {
            let start = part as i64 - w.pads[0];
            let before = usize::try_from(-start).unwrap_or(0).div_ceil(w.stride);
            let from = usize::try_from(start + (before * w.stride) as i64).unwrap_or(0);
            let n = w.input.saturating_sub(from).div_ceil(w.stride);
            *piece = (part * self.part + before, from, n.min(self.part.saturating_sub(before)));
        }
        for line in 0..lines {
            let x = &x[(line + skip) * w.input..];
            let to = &mut padded[self.lead + (line + before) * self.pitch..];
            for &(at, from, n) in &parts[..w.stride.min(2)] {
                if n == 0 {
                    continue;
                }
                let (x, to) = (&x[from..], &mut to[at..]);
                let vectors = n.div_ceil(S::F32_LANES);
                let (whole, _) = S::as_simd_f32s(x);
                let (to_whole, _) = S::as_mut_simd_f32s(to);
                if w.stride != 1 {
                    copy::<2>(x, to, n);
                } else if let (Some(x), Some(to)) = (whole.get(..vectors), to_whole.get_mut(..vectors)) {
                    for (to, x) in to.iter_mut().zip(x) {
                        *to = *x;
                    }
                } else {
                    to[..n].copy_from_slice(&x[..n]);
                }
                // Copies may write the longest vector, whatever this CPU's is.
                let (after, _) = S::as_mut_simd_f32s(&mut to[n..][..LANES]);
                after.fill(padding);
            }
        }
    }
}

/// Copies `n` elements that lie `STRIDE` apart, in vectors that may write beyond the last one.
#[inline(always)]
pub(crate) fn copy<const STRIDE: usize>(x: &[f32], to: &mut [f32], n: usize) {
    let mut at = 0;
    while at < n {
        let from = x.get(at * STRIDE..(at + LANES) * STRIDE);
        let (Some(from), Some(whole)) = (from, to.get_mut(at..at + LANES)) else { break };
        for i in 0..LANES {
            whole[i] = from[i * STRIDE];
        }
        at += LANES;
    }
    for at in at..n {
        to[at] = x[at * STRIDE];
    }
}

#[inline(always)]
fn keep<S: Simd>(simd: S, x: S::f32s, bounds: Option<[f32; 2]>) -> S::f32s {
    match bounds {
        Some([low, high]) => clamp(simd, x, low, high),
        None => x,
    }
}

struct Run<'a, 'p, F, G> {
    planes: &'p Planes,
    of: F,
    activation: &'p Activation,
    padded: &'p mut [f32],
    y: &'p mut [f32],
    kind: PhantomData<(&'a [f32], G)>,
}

impl<'a, G: Gather, F: Fn(usize) -> (&'a [f32], &'a [f32], G)> WithSimd for Run<'a, '_, F, G> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let (h, w) = (&self.planes.h, &self.planes.w);
        let (plane, bounds) = (h.output * w.output, self.activation.bounds());
        for i in 0..self.y.len() / plane {
            let (x, taps, kind) = (self.of)(i);
            let y = &mut self.y[i * plane..];
            if let Some(flat) = &self.planes.flat {
                flat.run(simd, (x, taps, kind), bounds, self.padded, y);
            } else {
                let in_place = self.planes.whole && x.len() >= self.planes.len();
                if !in_place {
                    self.planes.fill(simd, G::PADDING, x, self.padded);
                }
                let padded = if in_place { x } else { &*self.padded };
                let rows = Rows { of: self.planes, padded, taps, first: kind.first(), bounds };
                let (square, wide) = (self.planes.square, w.output > S::F32_LANES);
                match (h.kernel, wide) {
                    _ if h.output < ROWS => rows.any::<S, G, 1>(simd, y),
                    (3, true) if square => rows.square::<S, G, 3, 2>(simd, y),
                    (3, false) if square => rows.square::<S, G, 3, 1>(simd, y),
                    (5, true) if square => rows.square::<S, G, 5, 2>(simd, y),
                    (5, false) if square => rows.square::<S, G, 5, 1>(simd, y),
                    _ => rows.any::<S, G, ROWS>(simd, y),
                }
            }
            if bounds.is_none() {
                self.activation.apply(&mut y[..plane]);
            }
        }
    }
}

/// The rows of one plane.
struct Rows<'p> {
    of: &'p Planes,
    padded: &'p [f32],
    taps: &'p [f32],
    first: f32,
    bounds: Option<[f32; 2]>,
}

impl Rows<'_> {
    /// Windows of `K` by `K` neighbours, of which every row of the input is loaded once for `ROWS` rows of the output;
    /// `V` vectors at a time.
    #[inline(always)]
    #[allow(clippy::needless_range_loop, reason = "constant indices keep the sums in registers")]
    fn square<S: Simd, G: Gather, const K: usize, const V: usize>(&self, simd: S, y: &mut [f32]) {
        let (rows, width, pitch) = (self.of.h.output, self.of.w.output, self.of.pitch);
        let taps = &self.taps[..K * K];
        let first = simd.splat_f32s(self.first);
        let tiles = width.div_ceil(V * S::F32_LANES);
        let span = tiles * V * S::F32_LANES + K - 1;
        for group in 0..rows.div_ceil(ROWS) {
            // The last rows are computed twice where they are less.
            let row = (group * ROWS).min(rows - ROWS);
            let padded = &self.padded[self.of.lead + row * pitch..];
            let mut lines: [&[f32]; LINES] = [&[]; LINES];
            for i in 0..ROWS + K - 1 {
                lines[i] = &padded[i * pitch..][..span];
            }
            let y = &mut y[row * width..];
            // Backwards: what a vector has beyond the end of a row is put right by the next row.
            for at in (0..tiles).rev() {
                let at = at * V * S::F32_LANES;
                let mut sums = [[first; V]; ROWS];
                let mut x: [&[f32]; LINES] = [&[]; LINES];
                for i in 0..ROWS + K - 1 {
                    x[i] = &lines[i][at..at + V * S::F32_LANES + K - 1];
                }
                for kw in 0..K {
                    let mut column = [first; K];
                    for kh in 0..K {
                        column[kh] = simd.splat_f32s(taps[kh * K + kw]);
                    }
                    for line in 0..ROWS + K - 1 {
                        let (x, _) = S::as_simd_f32s(&x[line][kw..][..V * S::F32_LANES]);
                        for kh in 0..K {
                            if line >= kh && line < ROWS + kh {
                                for j in 0..V {
                                    let sum = &mut sums[line - kh][j];
                                    *sum = G::step(simd, column[kh], x[j], *sum);
                                }
                            }
                        }
                    }
                }
                if let Some([low, high]) = self.bounds {
                    for i in 0..ROWS {
                        for j in 0..V {
                            sums[i][j] = clamp(simd, sums[i][j], low, high);
                        }
                    }
                }
                for i in 0..ROWS {
                    let to = &mut y[i * width + at..];
                    if to.len() >= V * S::F32_LANES {
                        let (to, _) = S::as_mut_simd_f32s(&mut to[..V * S::F32_LANES]);
                        to.copy_from_slice(&sums[i]);
                    } else {
                        let mut whole = [0.0f32; 2 * LANES];
                        let (vectors, _) = S::as_mut_simd_f32s(&mut whole[..V * S::F32_LANES]);
                        vectors.copy_from_slice(&sums[i]);
                        let n = (width - at).min(to.len()).min(V * S::F32_LANES);
                        to[..n].copy_from_slice(&whole[..n]);
                    }
                }
            }
        }
    }

    /// Any window, `R` rows of the output at a time; it has as many.
    #[inline(always)]
    #[allow(clippy::needless_range_loop, reason = "constant indices keep the sums in registers")]
    fn any<S: Simd, G: Gather, const R: usize>(&self, simd: S, y: &mut [f32]) {
        let (rows, width) = (self.of.h.output, self.of.w.output);
        let first = simd.splat_f32s(self.first);
        let step = self.of.h.stride * self.of.pitch;
        for group in 0..rows.div_ceil(R) {
            let row = (group * R).min(rows - R);
            let padded = &self.padded[self.of.lead + row * step..];
            let y = &mut y[row * width..];
            for at in (0..width.div_ceil(S::F32_LANES)).rev() {
                let at = at * S::F32_LANES;
                let mut sums = [first; R];
                // Of one length, so that one check of a tap's place serves all.
                let mut lines: [&[f32]; R] = [&[]; R];
                for i in 0..R {
                    lines[i] = &padded[i * step + at..][..self.of.reach + S::F32_LANES];
                }
                for (&offset, &tap) in self.of.offsets.iter().zip(self.taps) {
                    let tap = simd.splat_f32s(tap);
                    for i in 0..R {
                        let (x, _) = S::as_simd_f32s(&lines[i][offset..][..S::F32_LANES]);
                        sums[i] = G::step(simd, tap, x[0], sums[i]);
                    }
                }
                for i in 0..R {
                    store(simd, keep(simd, sums[i], self.bounds), width - at, &mut y[i * width + at..]);
                }
            }
        }
    }
}

/// Stores the first `n` elements of a vector, and the others where there is room.
#[inline(always)]
fn store<S: Simd>(_: S, from: S::f32s, n: usize, to: &mut [f32]) {
    if to.len() >= S::F32_LANES {
        S::as_mut_simd_f32s(to).0[0] = from;
    } else {
        let mut whole = [0.0f32; LANES];
        S::as_mut_simd_f32s(&mut whole).0[0] = from;
        let n = n.min(to.len());
        to[..n].copy_from_slice(&whole[..n]);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::expr::Function;
    use crate::ops::test_util::values;

    /// Axes whose windows fit.
    fn axis(
        sizes: std::ops::Range<usize>,
        strides: std::ops::Range<usize>,
    ) -> impl Strategy<Value = WindowAxis> {
        (sizes, 1usize..6, strides, 1usize..3, -1i64..3, -1i64..3).prop_filter_map(
            "no window fits",
            |(input, kernel, stride, dilation, begin, end)| {
                let padded = input as i64 + begin + end;
                let room = padded - ((kernel - 1) * dilation + 1) as i64;
                let output = usize::try_from(room).ok()? / stride + 1;
                Some(WindowAxis { input, output, kernel, stride, dilation, pads: [begin, end] })
            },
        )
    }

    proptest! {
        #[test]
        fn planes_compute_the_definition(
            h in axis(1..12, 1..4), w in prop_oneof![axis(1..80, 1..3), axis(1..15, 1..3)],
            planes in 1usize..4, square in 0usize..3,
        ) {
            let (mut h, mut w) = (h, w);
            if square > 0 {
                let (kernel, pads) = (2 * square + 1, [square as i64; 2]);
                for a in [&mut h, &mut w] {
                    *a = WindowAxis { output: a.input, kernel, stride: 1, dilation: 1, pads, ..*a };
                }
            }
            let Some(of) = Planes::new(&[WindowAxis::UNIT, h, w]) else { return Ok(()) };
            let (from, to) = (h.input * w.input, h.output * w.output);
            let (x, taps) = (values(planes * from, 1), values(h.kernel * w.kernel, 2));
            let clip = Activation::with(Function::Clip, [-0.4, 0.6]);
            let (mut sums, mut largest) = (vec![9.0; planes * to], vec![9.0; planes * to]);
            of.run(|i| (&x[i * from..], &taps[..], Sum(0.1)), &clip, &mut sums);
            of.run(|i| (&x[i * from..], &taps[..], Largest), &Activation::None, &mut largest);
            for (i, (sum, largest)) in sums.iter().zip(&largest).enumerate() {
                let (plane, oh, ow) = (i / to, i % to / w.output, i % w.output);
                let (mut want, mut most) = (0.1f64, f32::NEG_INFINITY);
                for (kh, kw) in (0..h.kernel).flat_map(|kh| (0..w.kernel).map(move |kw| (kh, kw))) {
                    if let (Some(ih), Some(iw)) = (h.at(oh, kh), w.at(ow, kw)) {
                        let x = x[plane * from + ih * w.input + iw];
                        want += f64::from(x) * f64::from(taps[kh * w.kernel + kw]);
                        most = most.max(x);
                    }
                }
                prop_assert!((f64::from(*sum) - want.clamp(-0.4, 0.6)).abs() < 1e-5, "element {i}");
                prop_assert_eq!(*largest, most);
            }
        }
    }
}
