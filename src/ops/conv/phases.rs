//! One plane convolved with one window, in vector registers.
//!
//! The padded input is kept as one plane for every remainder of a place by the strides. Each tap then reads
//! neighbours for neighbouring outputs, and as all rows have the same pitch a whole plane is one long row;
//! what it has between two rows of the output is computed and left out.

use std::cell::Cell;

use pulp::{Simd, WithSimd};

use crate::ops::linalg::tile::{bounds, clamp};
use crate::ops::real::activate_all;
use crate::ops::{Activation, WindowAxis};

/// Vectors that are summed side by side.
const SIDE: usize = 4;
/// The longest vector.
const LANES: usize = 16;

thread_local! {
    static SCRATCH: Cell<Vec<f32>> = const { Cell::new(Vec::new()) };
}

/// Where the elements of the input lie in the scratch memory.
pub(super) struct Phases {
    h: WindowAxis,
    w: WindowAxis,
    /// Elements from one row of a plane to the next.
    pitch: usize,
    /// Rows of a plane.
    rows: usize,
    /// For every tap the element that the first output reads.
    offsets: Vec<usize>,
    /// Length of the long row.
    flat: usize,
}

impl Phases {
    /// Nothing for windows over three axes.
    pub(super) fn new(&[d, h, w]: &[WindowAxis; 3]) -> Option<Phases> {
        if d.kernel != 1 || d.input != 1 || d.output != 1 || d.pads != [0, 0] {
            return None;
        }
        // Places of the last tap, in steps.
        let reach = |a: &WindowAxis| a.kernel.checked_sub(1)?.checked_mul(a.dilation).map(|r| r / a.stride);
        let (rows, pitch) = (h.output.checked_add(reach(&h)?)?, w.output.checked_add(reach(&w)?)?);
        let plane = rows.checked_mul(pitch)?;
        let all = plane.checked_mul(h.stride)?.checked_mul(w.stride)?;
        // Mostly padding: not worth the memory.
        if all > 4 * (h.output * w.output + h.input * w.input) + (1 << 12) {
            return None;
        }
        let mut offsets = Vec::with_capacity(h.kernel * w.kernel);
        for kh in 0..h.kernel {
            for kw in 0..w.kernel {
                let (u, v) = (kh * h.dilation, kw * w.dilation);
                let phase = u % h.stride * w.stride + v % w.stride;
                offsets.push(phase * plane + u / h.stride * pitch + v / w.stride);
            }
        }
        Some(Phases { h, w, pitch, rows, offsets, flat: h.output.saturating_sub(1) * pitch + w.output })
    }

    /// Computes the planes of `y`; `of` gives the input plane, the taps and the bias of each.
    pub(super) fn run<'a>(
        &self,
        of: impl Fn(usize) -> (&'a [f32], &'a [f32], f32),
        activation: &Activation,
        y: &mut [f32],
    ) {
        let long = self.flat.next_multiple_of(SIDE * LANES);
        let planes = self.h.stride * self.w.stride * self.rows * self.pitch + SIDE * LANES;
        let mut scratch = SCRATCH.take();
        if scratch.len() < planes + long {
            scratch.resize(planes + long, 0.0);
        }
        let (planes, rest) = scratch.split_at_mut(planes);
        // What is padding stays 0 for every plane.
        planes.fill(0.0);
        for (i, y) in y.chunks_mut(self.h.output * self.w.output).enumerate() {
            let (x, taps, bias) = of(i);
            let sums = &mut rest[..long];
            pulp::Arch::new().dispatch(Plane { of: self, x, taps, bias, activation, planes, sums, y });
        }
        SCRATCH.set(scratch);
    }

    #[inline(always)]
    fn fill(&self, x: &[f32], planes: &mut [f32]) {
        let (h, w) = (&self.h, &self.w);
        for (line, to) in planes.chunks_exact_mut(self.pitch).enumerate() {
            let (row, phase) = (line % self.rows, line / self.rows);
            let (ph, pw) = (phase / w.stride, phase % w.stride);
            if ph >= h.stride {
                break;
            }
            let Some(ih) = place(row * h.stride + ph, h) else { continue };
            // The first column that is inside, and its place.
            let before = usize::try_from(w.pads[0]).unwrap_or(0).saturating_sub(pw).div_ceil(w.stride);
            let Some(iw) = place(before * w.stride + pw, w).filter(|_| before < to.len()) else { continue };
            let x = &x[ih * w.input..][iw..w.input];
            let to = &mut to[before..];
            match w.stride {
                1 => {
                    let n = to.len().min(x.len());
                    to[..n].copy_from_slice(&x[..n]);
                }
                2 => {
                    let pairs = x.chunks_exact(2);
                    if let ([last], Some(to)) = (pairs.remainder(), to.get_mut(x.len() / 2)) {
                        *to = *last;
                    }
                    to.iter_mut().zip(pairs).for_each(|(to, pair)| *to = pair[0]);
                }
                s => to.iter_mut().zip(x.iter().step_by(s)).for_each(|(to, x)| *to = *x),
            }
        }
    }
}

/// The input element at a padded place.
#[inline(always)]
fn place(padded: usize, axis: &WindowAxis) -> Option<usize> {
    usize::try_from(padded as i64 - axis.pads[0]).ok().filter(|i| *i < axis.input)
}

struct Plane<'a> {
    of: &'a Phases,
    x: &'a [f32],
    taps: &'a [f32],
    bias: f32,
    activation: &'a Activation,
    planes: &'a mut [f32],
    sums: &'a mut [f32],
    y: &'a mut [f32],
}

impl WithSimd for Plane<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let Plane { of, x, taps, bias, activation, planes, sums, y } = self;
        of.fill(x, planes);
        let bounds = bounds(*activation);
        let step = SIDE * S::F32_LANES;
        for (at, out) in sums.chunks_exact_mut(step).enumerate() {
            let at = at * step;
            if at >= of.flat {
                break;
            }
            let mut side = [simd.splat_f32s(bias); SIDE];
            for (&offset, &tap) in of.offsets.iter().zip(taps) {
                let (x, _) = S::as_simd_f32s(&planes[offset + at..][..step]);
                let tap = simd.splat_f32s(tap);
                if let Some(x) = x.first_chunk::<SIDE>() {
                    for (sum, x) in side.iter_mut().zip(x) {
                        *sum = simd.mul_add_e_f32s(tap, *x, *sum);
                    }
                }
            }
            let (out, _) = S::as_mut_simd_f32s(out);
            for (out, sum) in out.iter_mut().zip(side) {
                *out = bounds.map_or(sum, |[low, high]| clamp(simd, sum, low, high));
            }
        }
        for (y, sums) in y.chunks_exact_mut(of.w.output).zip(sums.chunks(of.pitch)) {
            y.copy_from_slice(&sums[..of.w.output]);
        }
        if bounds.is_none() {
            activate_all(activation, y);
        }
    }
}
