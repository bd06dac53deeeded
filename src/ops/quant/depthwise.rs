//! Convolutions of bytes with one input channel per group: in `float32`, which holds their sums exactly.
//!
//! Each channel is a product of its own, far too short for the tiles of products. A sum of at most [`MOST_TAPS`]
//! products of two bytes less their zero points is below `2^24`.

use std::cell::Cell;

use super::conv_cpu::Sums;
use crate::ops::conv::dims::ConvDims;
use crate::ops::linalg::tile;
use crate::ops::planes::{Planes, Source, Sum};
use crate::ops::{Activation, par};
use crate::simd::wide;

/// Taps whose sums are exact.
const MOST_TAPS: usize = (1 << 24) / (255 * 255);
/// Multiplications of one part of the work.
const PART: usize = 100_000;
/// Sums that are made elements together.
const CHUNK: usize = 256;

thread_local! {
    static SCRATCH: Cell<[Vec<f32>; 3]> = const { Cell::new([const { Vec::new() }; 3]) };
}

/// The planes of `dims`, where it is such a convolution.
pub(super) fn planes(dims: &ConvDims) -> Option<Planes> {
    let fits = dims.ic == 1 && dims.taps() <= MOST_TAPS && tile::has_vectors();
    if fits { Planes::new(&dims.axes) } else { None }
}

/// The integer that `v` is, of at most 24 bits and a sign. A conversion would be done for one number at a time.
#[inline(always)]
fn integer(v: f32) -> i32 {
    // Its units are the last bits of the mantissa.
    const UNITS: f32 = 12_582_912.0;
    let high = (v * (1.0 / 4096.0)).round_ties_even();
    let low = v - high * 4096.0;
    let bits = |v: f32| (v + UNITS).to_bits().wrapping_sub(UNITS.to_bits()) as i32;
    (bits(high) << 12).wrapping_add(bits(low))
}

impl Sums<'_> {
    /// Makes all elements of `y` by `finish(channel, sums, elements)`, which must be `#[inline(always)]`.
    pub(super) fn depthwise<T: Send>(
        &self,
        dims: &ConvDims,
        planes: &Planes,
        y: &mut [T],
        finish: impl Fn(usize, &mut [i32], &mut [T]) + Sync,
    ) {
        let (in_plane, out_plane, taps) = (dims.in_plane(), dims.out_plane(), dims.taps());
        let channels = dims.group * dims.oc;
        let most = channels.div_ceil(par::threads()).max(1);
        let each = (PART / (out_plane * taps).max(1)).clamp(1, most);
        // The plane of the input that plane `i` of the output is made of.
        let plane_of = |i: usize| i / channels * dims.group + i % channels / dims.oc;
        par::share(y.chunks_mut((out_plane * each).max(1)).enumerate(), |(part, y)| {
            let first = part * each;
            let count = y.len() / out_plane.max(1);
            let from = plane_of(first);
            let read = plane_of(first + count.saturating_sub(1)) + 1 - from;
            let mut scratch = SCRATCH.take();
            let [x, w, sums] = &mut scratch;
            let bytes = self.x.get(from * in_plane..).and_then(|x| x.get(..read * in_plane)).unwrap_or(&[]);
            let (flip, zero) = (self.x_flip, self.x_zero as f32);
            x.clear();
            x.resize(bytes.len(), 0.0);
            w.clear();
            w.resize(count * taps, 0.0);
            sums.resize(sums.len().max(count * out_plane), 0.0);
            wide(
                #[inline(always)]
                || x.iter_mut().zip(bytes).for_each(|(x, byte)| *x = f32::from(byte ^ flip) - zero),
            );
            for (i, w) in w.chunks_mut(taps.max(1)).enumerate() {
                let channel = (first + i) % channels;
                let (flip, zero) = (self.w_flip, self.w_zeros.at(channel));
                let bytes = self.w.get(channel * taps..).unwrap_or(&[]);
                let tap = |byte: &u8| (i32::from((byte ^ flip) as i8) - zero) as f32;
                w.iter_mut().zip(bytes).for_each(|(w, byte)| *w = tap(byte));
            }
            let Some(sums) = sums.get_mut(..count * out_plane) else { return };
            let of = |i: usize| {
                let taps = w.get(i * taps..).and_then(|w| w.get(..taps)).unwrap_or(&[]);
                Source { x, at: (plane_of(first + i) - from) * in_plane, taps, kind: Sum(0.0) }
            };
            planes.run(of, &Activation::None, sums);
            wide(
                #[inline(always)]
                || {
                    let both = sums.chunks(out_plane.max(1)).zip(y.chunks_mut(out_plane.max(1)));
                    let mut whole = [0i32; CHUNK];
                    for (i, (sums, y)) in both.enumerate() {
                        let channel = (first + i) % channels;
                        let bias = self.bias.get(channel).copied().unwrap_or(0);
                        for (sums, y) in sums.chunks(CHUNK).zip(y.chunks_mut(CHUNK)) {
                            let each = whole.iter_mut().zip(sums);
                            each.for_each(|(whole, sum)| *whole = integer(*sum).wrapping_add(bias));
                            finish(channel, &mut whole[..y.len()], y);
                        }
                    }
                },
            );
            SCRATCH.set(scratch);
        });
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn integers_of_24_bits_are_exact() {
        let all = (0..1 << 13).map(|i| i * 2047 + 1).chain([0, 2047, 2048, 2049, (1 << 24) - 1]);
        for i in all.filter(|i| *i < 1 << 24) {
            assert_eq!((super::integer(i as f32), super::integer(-i as f32)), (i, -i));
        }
    }
}
