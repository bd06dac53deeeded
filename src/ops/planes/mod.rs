//! Windows over one plane each, in vector registers: depthwise convolutions and pools.
//!
//! Common windows are [`Rolling`]. For others the padded input is kept as rows of one pitch, so that a tap reads neighbours
//! for neighbouring outputs. Where the window moves by two columns, a row is kept as its even elements and then its odd ones.

mod rolling;

use std::cell::Cell;
use std::marker::PhantomData;

use pulp::{Simd, WithSimd};

use self::rolling::Rolling;
use super::Activation;
use super::linalg::tile::{clamp, lanes};
use super::window::WindowAxis;
use crate::simd::{Alternate, arch};

/// Rows of the output that are summed side by side.
const ROWS: usize = 4;
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
    /// Where the window is one of those.
    rolling: Option<Rolling>,
}

/// What a plane of the output is made of.
#[derive(Clone, Copy)]
pub(crate) struct Source<'a, G> {
    /// The input, and where the plane begins in it.
    pub(crate) x: &'a [f32],
    pub(crate) at: usize,
    pub(crate) taps: &'a [f32],
    pub(crate) kind: G,
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
        let rolling = Rolling::new(h, w, lanes());
        Some(Planes { h, w, rows, pitch, part, lead, offsets, reach, whole, rolling })
    }

    /// Computes the planes of `y`, each of which `of` gives.
    pub(crate) fn run<'a, G: Gather>(
        &self,
        of: impl Fn(usize) -> Source<'a, G>,
        activation: &Activation,
        y: &mut [f32],
    ) {
        let len = self.rolling.as_ref().map_or_else(|| self.len(), Rolling::len);
        let mut scratch = SCRATCH.take();
        if scratch.len() < len + LANES {
            scratch.resize(len + LANES, 0.0);
        }
        let aligned = scratch.as_ptr().align_offset(LANES * size_of::<f32>()).min(LANES);
        let padded = &mut scratch[aligned..][..len];
        if self.rolling.is_none() {
            // Padding is the same for every plane.
            padded.fill(G::PADDING);
        }
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
                    copy::<S, 2>(simd, x, to, n);
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

/// Copies `n` elements that lie `STRIDE` apart, 1 or 2, in vectors that may write beyond the last one.
#[inline(always)]
pub(crate) fn copy<S: Simd, const STRIDE: usize>(simd: S, x: &[f32], to: &mut [f32], n: usize) {
    let (alternate, lanes) = (Alternate::detect(), S::F32_LANES);
    let mut at = 0;
    while at < n {
        let from = x.get(at * STRIDE..(at + lanes) * STRIDE);
        let (Some(from), Some(to)) = (from, to.get_mut(at..at + lanes)) else { break };
        let (from, to) = (S::as_simd_f32s(from).0, S::as_mut_simd_f32s(to).0);
        to[0] = if STRIDE == 2 { alternate.evens(simd, from[0], from[1]) } else { from[0] };
        at += lanes;
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

impl<'a, G: Gather, F: Fn(usize) -> Source<'a, G>> WithSimd for Run<'a, '_, F, G> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let (h, w) = (&self.planes.h, &self.planes.w);
        let (plane, bounds) = (h.output * w.output, self.activation.bounds());
        if let Some(rolling) = &self.planes.rolling {
            return rolling.run(simd, self.of, self.activation, self.padded, self.y);
        }
        for i in 0..self.y.len() / plane {
            let Source { x, at, taps, kind } = (self.of)(i);
            let (x, y) = (&x[at..], &mut self.y[i * plane..]);
            let in_place = self.planes.whole && x.len() >= self.planes.len();
            if !in_place {
                self.planes.fill(simd, G::PADDING, x, self.padded);
            }
            let padded = if in_place { x } else { &*self.padded };
            let rows = Rows { of: self.planes, padded, taps, first: kind.first(), bounds };
            if h.output < ROWS {
                rows.run::<S, G, 1>(simd, y)
            } else {
                rows.run::<S, G, ROWS>(simd, y)
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
    /// `R` rows of the output at a time; it has as many.
    #[inline(always)]
    #[allow(clippy::needless_range_loop, reason = "constant indices keep the sums in registers")]
    fn run<S: Simd, G: Gather, const R: usize>(&self, simd: S, y: &mut [f32]) {
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
            planes in 1usize..6, square: bool, kernel in prop_oneof![Just(3usize), Just(5)], stride in 1usize..3,
        ) {
            let (mut h, mut w) = (h, w);
            if square {
                for a in [&mut h, &mut w] {
                    let room = a.input as i64 + a.pads[0] + a.pads[1] - kernel as i64;
                    let Ok(room) = usize::try_from(room) else { return Ok(()) };
                    *a = WindowAxis { output: room / stride + 1, kernel, stride, dilation: 1, ..*a };
                }
            }
            let Some(of) = Planes::new(&[WindowAxis::UNIT, h, w]) else { return Ok(()) };
            let (from, to) = (h.input * w.input, h.output * w.output);
            let each = h.kernel * w.kernel;
            let (x, taps) = (values(planes * from, 1), values(planes * each, 2));
            let clip = Activation::with(Function::Clip, [-0.4, 0.6]);
            let (mut sums, mut largest) = (vec![9.0; planes * to], vec![9.0; planes * to]);
            let of_plane = |i| Source { x: &x, at: i * from, taps: &taps[i * each..], kind: Sum(0.1) };
            of.run(of_plane, &clip, &mut sums);
            let of_plane = |i| Source { x: &x, at: i * from, taps: &taps, kind: Largest };
            of.run(of_plane, &Activation::None, &mut largest);
            for (i, (sum, largest)) in sums.iter().zip(&largest).enumerate() {
                let (plane, oh, ow) = (i / to, i % to / w.output, i % w.output);
                let (mut want, mut most) = (0.1f64, f32::NEG_INFINITY);
                for (kh, kw) in (0..h.kernel).flat_map(|kh| (0..w.kernel).map(move |kw| (kh, kw))) {
                    if let (Some(ih), Some(iw)) = (h.at(oh, kh), w.at(ow, kw)) {
                        let x = x[plane * from + ih * w.input + iw];
                        want += f64::from(x) * f64::from(taps[plane * each + kh * w.kernel + kw]);
                        most = most.max(x);
                    }
                }
                prop_assert!((f64::from(*sum) - want.clamp(-0.4, 0.6)).abs() < 1e-5, "element {i}");
                prop_assert_eq!(*largest, most);
            }
        }
    }
}
