//! Convolutions of bytes with one input channel per group: loops over the places of one plane.

use super::interleaved::Interleaved;
use crate::ops::conv::conv_op::ConvDims;
use crate::ops::linalg::bytes::with_scratch;
use crate::ops::linalg::product::Threads;
use crate::ops::par;
use crate::spirv::wide::wide;

/// Places that are summed together.
const TOGETHER: usize = 64;
/// Multiplications of one part of the work.
const PART: usize = 400_000;

/// The numbers that are convolved.
pub(super) struct Depthwise<'a> {
    pub(super) dims: &'a ConvDims,
    /// Planes of one channel.
    pub(super) image: &'a Interleaved,
    pub(super) x: &'a [u8],
    /// What makes the bytes of `x` unsigned, and their zero point then.
    pub(super) flip: u8,
    pub(super) zero: u8,
    /// The weights less their zero points.
    pub(super) weights: &'a [i16],
    /// What is added to the sums of each output channel; absent ones are 0.
    pub(super) bias: &'a [i32],
}

impl Depthwise<'_> {
    /// Computes `y`; `finish(channel, sums, to)` makes elements of the sums. It must be `#[inline(always)]`.
    pub(super) fn run<T: Copy + Default + Send>(
        &self,
        y: &mut [T],
        finish: impl Fn(usize, &mut [i32], &mut [T]) + Sync,
    ) {
        let dims = self.dims;
        let (plane, in_plane) = (dims.out_plane(), dims.in_plane());
        let each = (PART / (dims.oc * plane * dims.taps()).max(1)).max(1);
        par::share(y.chunks_mut((dims.oc * plane * each).max(1)).enumerate(), |(part, y)| {
            with_scratch(self.image.bytes(), |scratch| {
                for (i, y) in y.chunks_mut(dims.oc * plane).enumerate() {
                    let i = part * each + i;
                    let x = self.x.get(i * in_plane..).unwrap_or(&[]);
                    self.image.fill(x, self.flip, self.zero, scratch, Threads::One);
                    for (c, y) in y.chunks_mut(plane).enumerate() {
                        let channel = i % dims.group * dims.oc + c;
                        wide(
                            #[inline(always)]
                            || self.plane(channel, scratch, y, &finish),
                        );
                    }
                }
            });
        });
    }

    #[inline(always)]
    fn plane<T: Copy + Default>(
        &self,
        channel: usize,
        image: &[u8],
        y: &mut [T],
        finish: &impl Fn(usize, &mut [i32], &mut [T]),
    ) {
        let taps = self.dims.taps();
        let weights = self.weights.get(channel * taps..).and_then(|w| w.get(..taps)).unwrap_or(&[]);
        let sum: i32 = weights.iter().map(|w| i32::from(*w)).fold(0, i32::wrapping_add);
        let bias = self.bias.get(channel).copied().unwrap_or(0);
        let start = bias.wrapping_sub(sum.wrapping_mul(i32::from(self.zero)));
        let mut rest = y;
        for first in (0..self.image.places()).step_by(TOGETHER) {
            let mut sums = [start; TOGETHER];
            for (at, weight) in self.image.offsets().iter().zip(weights) {
                let Some(x) = image.get(at + first..).and_then(|x| x.first_chunk::<TOGETHER>()) else { return };
                for (sum, x) in sums.iter_mut().zip(x) {
                    *sum = sum.wrapping_add(i32::from(*x) * i32::from(*weight));
                }
            }
            let mut elements = [T::default(); TOGETHER];
            finish(channel, &mut sums, &mut elements);
            self.image.runs(first, TOGETHER, |from, len| {
                let len = len.min(rest.len());
                let (now, later) = std::mem::take(&mut rest).split_at_mut(len);
                if let Some(elements) = elements.get(from..from + len) {
                    now.copy_from_slice(elements);
                }
                rest = later;
            });
        }
    }
}
