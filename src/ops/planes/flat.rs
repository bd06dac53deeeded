//! Windows over planes whose rows are shorter than a vector: outputs of several rows in one vector.
//!
//! As in a convolution by shifts: in a padded copy whose rows all have one pitch, each tap reads at a fixed distance from
//! its output's place, whatever the row. Places under the padding are computed too and not stored. Strides split the
//! rows and columns of the copy into phases, each of which is read at stride 1.

use pulp::Simd;

use super::{Gather, LANES, WindowAxis, keep};

/// Vectors that are summed side by side, and one more where that leaves none.
const VECTORS: usize = 4;
const ONE_MORE: usize = VECTORS + 1;

/// Where the elements of the input lie in the scratch memory.
pub(super) struct Flat {
    h: WindowAxis,
    w: WindowAxis,
    /// Rows of a phase, and elements from one of them to the next.
    lines: usize,
    pitch: usize,
    /// For every tap the element that the first output reads.
    offsets: Vec<usize>,
    /// For every phase of the columns which elements of a row are the input's: all bits or none.
    inside: [[u32; LANES]; 2],
}

impl Flat {
    /// `None` where rows fill vectors of `lanes` elements well enough, or the copy's do not fit one.
    pub(super) fn new(h: WindowAxis, w: WindowAxis, lanes: usize) -> Option<Flat> {
        if h.stride > 2 || w.stride > 2 || h.input == 0 || w.input == 0 || h.output == 0 || w.output == 0 {
            return None;
        }
        let reach = |a: &WindowAxis| Some(a.kernel.checked_sub(1)?.checked_mul(a.dilation)? / a.stride);
        let pitch = w.output.checked_add(reach(&w)?).filter(|pitch| *pitch <= LANES)?;
        let lines = h.output.checked_add(reach(&h)?)?;
        let (vectors, by_rows) =
            ((h.output * pitch).div_ceil(lanes), h.output.max(super::ROWS) * w.output.div_ceil(lanes));
        if vectors * 5 > by_rows * 4 {
            return None;
        }
        let place = |t: usize| {
            let (down, across) = (t / w.kernel * h.dilation, t % w.kernel * w.dilation);
            let phase = down % h.stride * w.stride + across % w.stride;
            (phase * lines + down / h.stride) * pitch + across / w.stride
        };
        let offsets = (0..h.kernel * w.kernel).map(place).collect();
        let mut inside = [[0; LANES]; 2];
        for (phase, inside) in inside.iter_mut().enumerate().take(w.stride) {
            for (c, inside) in inside.iter_mut().enumerate().take(pitch) {
                let column = (c * w.stride + phase) as i64 - w.pads[0];
                *inside = if (0..w.input as i64).contains(&column) { u32::MAX } else { 0 };
            }
        }
        Some(Flat { h, w, lines, pitch, offsets, inside })
    }

    /// Elements of scratch memory: the copy with what vectors read beyond it, and the sums of all places.
    pub(super) fn len(&self) -> usize {
        self.copied() + self.places()
    }

    fn copied(&self) -> usize {
        self.h.stride * self.w.stride * self.lines * self.pitch + (ONE_MORE + 1) * LANES
    }

    /// Places with those of whole vectors.
    fn places(&self) -> usize {
        (self.h.output * self.pitch).next_multiple_of(LANES) + (ONE_MORE + 1) * LANES
    }

    /// Copies the plane that `x` begins with. What a vector has beyond a row is overwritten by the next one.
    #[inline(always)]
    fn fill(&self, padding: f32, x: &[f32], to: &mut [f32]) {
        let (h, w) = (&self.h, &self.w);
        for v in 0..h.stride {
            for u in 0..w.stride {
                let (inside, first) = (&self.inside[u], (v * w.stride + u) * self.lines * self.pitch);
                for line in 0..self.lines {
                    let to = &mut to[first + line * self.pitch..][..LANES];
                    let row = (line * h.stride + v) as i64 - h.pads[0];
                    if !(0..h.input as i64).contains(&row) {
                        to.fill(padding);
                        continue;
                    }
                    let start = row * w.input as i64 + u as i64 - w.pads[0];
                    let from = usize::try_from(start).ok().and_then(|start| x.get(start..));
                    match (w.stride, from) {
                        (1, Some(from)) if from.len() >= LANES => line_of::<1>(inside, padding, from, to),
                        (2, Some(from)) if from.len() >= 2 * LANES => line_of::<2>(inside, padding, from, to),
                        _ => {
                            for (c, to) in to.iter_mut().enumerate() {
                                let at = usize::try_from(start + (c * w.stride) as i64).unwrap_or(0);
                                *to = if inside[c] == 0 { padding } else { x[at] };
                            }
                        }
                    }
                }
            }
        }
    }

    /// Computes one plane into `y`, which may have more elements after it.
    #[inline(always)]
    pub(super) fn run<S: Simd, G: Gather>(
        &self,
        simd: S,
        (x, taps, kind): (&[f32], &[f32], G),
        bounds: Option<[f32; 2]>,
        scratch: &mut [f32],
        y: &mut [f32],
    ) {
        let (copy, places) = scratch.split_at_mut(self.copied());
        self.fill(G::PADDING, x, copy);
        let vectors = (self.h.output * self.pitch).div_ceil(S::F32_LANES);
        let mut done = 0;
        while done < vectors {
            let at = done * S::F32_LANES;
            done += match vectors - done {
                ONE_MORE => {
                    self.sums::<S, G, ONE_MORE>(simd, taps, kind, bounds, &copy[at..], &mut places[at..])
                }
                _ => self.sums::<S, G, VECTORS>(simd, taps, kind, bounds, &copy[at..], &mut places[at..]),
            };
        }
        let (rows, width) = (self.h.output, self.w.output);
        // Rows after which there is room for a whole vector, which the next one overwrites.
        let roomy = ((y.len() + width).saturating_sub(LANES) / width).min(rows);
        for row in 0..roomy {
            let from = places[row * self.pitch..].first_chunk::<LANES>();
            if let (Some(from), Some(to)) = (from, y[row * width..].first_chunk_mut::<LANES>()) {
                *to = *from;
            }
        }
        for row in roomy..rows {
            let n = width.min(y.len() - row * width);
            y[row * width..][..n].copy_from_slice(&places[row * self.pitch..][..n]);
        }
    }

    /// `V` vectors of places; returns `V`.
    #[inline(always)]
    #[allow(clippy::needless_range_loop, reason = "constant indices keep the sums in registers")]
    fn sums<S: Simd, G: Gather, const V: usize>(
        &self,
        simd: S,
        taps: &[f32],
        kind: G,
        bounds: Option<[f32; 2]>,
        copy: &[f32],
        places: &mut [f32],
    ) -> usize {
        let mut sums = [simd.splat_f32s(kind.first()); V];
        for (&offset, &tap) in self.offsets.iter().zip(taps) {
            let tap = simd.splat_f32s(tap);
            let (x, _) = S::as_simd_f32s(&copy[offset..][..V * S::F32_LANES]);
            for i in 0..V {
                sums[i] = G::step(simd, tap, x[i], sums[i]);
            }
        }
        let (to, _) = S::as_mut_simd_f32s(&mut places[..V * S::F32_LANES]);
        for i in 0..V {
            to[i] = keep(simd, sums[i], bounds);
        }
        V
    }
}

/// One line: elements `STRIDE` apart where `inside`, else `padding`.
#[inline(always)]
fn line_of<const STRIDE: usize>(inside: &[u32; LANES], padding: f32, from: &[f32], to: &mut [f32]) {
    let from = &from[..LANES * STRIDE];
    for c in 0..LANES {
        let bits = (from[c * STRIDE].to_bits() & inside[c]) | (padding.to_bits() & !inside[c]);
        to[c] = f32::from_bits(bits);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_that_fill_less_than_a_vector_are_joined() {
        let axis = |input: usize, kernel: usize, stride: usize| {
            let (pad, output) = (kernel / 2, input.div_ceil(stride));
            WindowAxis { input, output, kernel, stride, dilation: 1, pads: [pad as i64; 2] }
        };
        let joined = |input, kernel, stride, lanes| {
            let axis = axis(input, kernel, stride);
            Flat::new(axis, axis, lanes).is_some()
        };
        for (input, kernel, stride) in [(7, 3, 1), (7, 5, 1), (14, 3, 2), (14, 5, 2), (4, 3, 1)] {
            assert!(joined(input, kernel, stride, 16), "{input} {kernel} {stride}");
        }
        // Rows that fill vectors, and copies that are longer than one.
        for (input, kernel, stride, lanes) in [(14, 3, 1, 16), (14, 5, 1, 16), (7, 3, 1, 8), (112, 3, 2, 16)]
        {
            assert!(!joined(input, kernel, stride, lanes), "{input} {kernel} {stride} {lanes}");
        }
    }
}
