//! An image of bytes in which every tap of a window reads neighbours for neighbouring outputs.
//!
//! The image is padded, and where the window moves by several elements it is taken apart into as many *phases*, one for
//! every place that a tap can have between two steps. An output is numbered by the place that it reads in a plane,
//! so that tap and channel only move the first place; the places between two lines that are no outputs are computed
//! as well and left out. What a product multiplies is then never unfolded.

use crate::ops::conv::conv_op::ConvDims;
use crate::ops::linalg::bytes::Right;
use crate::ops::linalg::product::Threads;
use crate::ops::{WindowAxis, par};
use crate::spirv::wide::wide;

/// Bytes behind the last plane that vectors read.
pub(super) const SLACK: usize = 256;
/// Bytes of one part of the work.
const PART: usize = 32 << 10;

/// One axis.
#[derive(Clone, Debug)]
struct Axis {
    of: WindowAxis,
    /// Places of a phase.
    size: usize,
    /// The phases that taps have.
    phases: Vec<usize>,
}

impl Axis {
    fn new(of: WindowAxis) -> Option<Axis> {
        let reach = of.kernel.checked_sub(1)?.checked_mul(of.dilation)?;
        let size = of.output.checked_add(reach / of.stride)?;
        let mut phases: Vec<usize> = (0..of.kernel.min(of.stride)).map(|t| t * of.dilation % of.stride).collect();
        phases.sort_unstable();
        phases.dedup();
        Some(Axis { of, size, phases })
    }

    /// Which phase tap `t` reads, and where it begins.
    fn tap(&self, t: usize) -> Option<(usize, usize)> {
        let at = t * self.of.dilation;
        Some((self.phases.binary_search(&(at % self.of.stride)).ok()?, at / self.of.stride))
    }

    /// The element of the input at place `at` of phase `phase`.
    fn element(&self, phase: usize, at: usize) -> Option<usize> {
        let i = (at * self.of.stride + self.phases.get(phase)?) as i64 - self.of.pads[0];
        usize::try_from(i).ok().filter(|i| *i < self.of.input)
    }

    /// The places of phase `phase` that are inside the input, and the element of the first one.
    fn inside(&self, phase: usize) -> (usize, usize, usize) {
        let shift = self.of.pads[0] - self.phases.get(phase).map_or(0, |p| *p as i64);
        let step = self.of.stride as i64;
        let first = |from: i64| ((from + step - 1).div_euclid(step)).clamp(0, self.size as i64);
        let lo = first(shift);
        let hi = first(shift + self.of.input as i64).max(lo);
        (lo as usize, hi as usize, (lo * step - shift).max(0) as usize)
    }
}

/// How an image of some channels lies: groups of channels, their phases, their planes, and of every place a byte of each
/// channel of the group.
#[derive(Clone, Debug)]
pub(super) struct Interleaved {
    axes: [Axis; 3],
    channels: usize,
    /// Channels of a group: 4 or 1.
    unit: usize,
    phases: usize,
    /// Places of a plane.
    area: usize,
    /// The byte that output 0 reads first of every group of channels and tap.
    offsets: Vec<usize>,
}

impl Interleaved {
    /// Images of `dims`, in groups of `unit` channels. Nothing where that would be mostly padding.
    pub(super) fn new(dims: &ConvDims, unit: usize) -> Option<Interleaved> {
        let mut axes = dims.axes;
        if dims.is_pointwise() {
            // All lines are one.
            let one = WindowAxis { input: 1, output: 1, ..axes[0] };
            axes = [one, one, WindowAxis { input: dims.in_plane(), output: dims.out_plane(), ..axes[2] }];
        }
        let [d, h, w] = axes;
        let axes = [Axis::new(d)?, Axis::new(h)?, Axis::new(w)?];
        let area = axes.iter().try_fold(1usize, |n, a| n.checked_mul(a.size))?;
        let phases = axes.iter().try_fold(1usize, |n, a| n.checked_mul(a.phases.len()))?;
        let most = 4 * (dims.in_plane() + dims.out_plane()) + (1 << 12);
        let groups = dims.ic.div_ceil(unit);
        let places = phases.checked_mul(area).filter(|n| *n <= most)?;
        places.checked_mul(groups)?.checked_mul(unit)?.checked_add(SLACK)?;
        let mut image = Interleaved { axes, channels: dims.ic, unit, phases, area, offsets: Vec::new() };
        for group in 0..groups {
            for t in 0..dims.taps() {
                let [_, h, w] = &image.axes;
                let split = [t / (w.of.kernel * h.of.kernel), t / w.of.kernel % h.of.kernel, t % w.of.kernel];
                let (mut phase, mut place) = (0, 0);
                for (axis, t) in image.axes.iter().zip(split) {
                    let (p, at) = axis.tap(t)?;
                    (phase, place) = (phase * axis.phases.len() + p, place * axis.size + at);
                }
                image.offsets.push(((group * phases + phase) * area + place) * unit);
            }
        }
        Some(image)
    }

    /// Bytes of the image.
    pub(super) fn bytes(&self) -> usize {
        self.groups() * self.phases * self.area * self.unit + SLACK
    }

    fn groups(&self) -> usize {
        self.channels.div_ceil(self.unit)
    }

    /// Places from the first output to the last one, which is counted.
    pub(super) fn places(&self) -> usize {
        let [d, h, w] = &self.axes;
        let last = |a: &Axis| a.of.output.saturating_sub(1);
        (last(d) * h.size + last(h)) * w.size + w.of.output
    }

    /// The first byte of every group of channels and tap.
    pub(super) fn offsets(&self) -> &[usize] {
        &self.offsets
    }

    /// Outputs before place `place`.
    pub(super) fn outputs_before(&self, place: usize) -> usize {
        let [_, h, w] = &self.axes;
        let (line, x) = (place / w.size.max(1), place % w.size.max(1));
        let (plane, y) = (line / h.size.max(1), line % h.size.max(1));
        let whole = plane * h.of.output + y.min(h.of.output);
        whole * w.of.output + if y < h.of.output { x.min(w.of.output) } else { 0 }
    }

    /// Calls `f(from, len)` for the places of `first` to `first + n` that are outputs; `from` counts from `first`.
    #[inline(always)]
    pub(super) fn runs(&self, first: usize, n: usize, mut f: impl FnMut(usize, usize)) {
        let [d, h, w] = &self.axes;
        let mut at = first;
        while at < first + n {
            let (line, x) = (at / w.size.max(1), at % w.size.max(1));
            let len = (w.size.max(1) - x).min(first + n - at);
            let is_output = line % h.size.max(1) < h.of.output && line / h.size.max(1) < d.of.output;
            if is_output && x < w.of.output {
                f(at - first, len.min(w.of.output - x));
            }
            at += len;
        }
    }

    /// Writes the image: `x` begins with its first channel, bytes are changed by `flip`, and padding holds `zero`.
    pub(super) fn fill(&self, x: &[u8], flip: u8, zero: u8, to: &mut [u8], threads: Threads) {
        let line = (self.axes[2].size * self.unit).max(1);
        let lines = self.groups() * self.phases * self.axes[0].size * self.axes[1].size;
        let (lines, slack) = to.split_at_mut((lines * line).min(to.len()));
        slack.fill(0);
        let many = PART / line + 1;
        let one = |(i, to): (usize, &mut [u8])| {
            wide(
                #[inline(always)]
                || {
                    for (j, to) in to.chunks_mut(line).enumerate() {
                        self.line(i * many + j, x, flip, zero, to);
                    }
                },
            );
        };
        match threads {
            Threads::All if lines.len() > 2 * PART => par::share(lines.chunks_mut(line * many).enumerate(), one),
            _ => lines.chunks_mut(line * many).enumerate().for_each(one),
        }
    }

    #[inline(always)]
    fn line(&self, index: usize, x: &[u8], flip: u8, zero: u8, to: &mut [u8]) {
        let [d, h, w] = &self.axes;
        let (at_h, rest) = (index % h.size, index / h.size);
        let (at_d, rest) = (rest % d.size, rest / d.size);
        let (phase, group) = (rest % self.phases, rest / self.phases);
        let (phase_w, rest) = (phase % w.phases.len(), phase / w.phases.len());
        let (phase_h, phase_d) = (rest % h.phases.len(), rest / h.phases.len());
        let first = group * self.unit;
        // Channels that are not there are zeros, also in the padding.
        let mask = [0, 1, 2, 3].map(|i| if first + i < self.channels { 0xff } else { 0 });
        let padding = mask.map(|mask| zero & mask);
        let source = d.element(phase_d, at_d).zip(h.element(phase_h, at_h));
        let (lo, hi, from) = if source.is_some() { w.inside(phase_w) } else { (0, 0, 0) };
        let plane = self.axes.iter().map(|a| a.of.input).product::<usize>();
        let base = source.map_or(0, |(d, y)| (d * h.of.input + y) * w.of.input + from);
        let channel = |i: usize| {
            let i = if first + i < self.channels { first + i } else { first };
            x.get(i * plane + base..).unwrap_or(&[])
        };
        let step = w.of.stride;
        if self.unit == 1 {
            let (before, rest) = to.split_at_mut(lo.min(to.len()));
            let (inside, behind) = rest.split_at_mut((hi - lo).min(rest.len()));
            before.fill(zero);
            behind.fill(zero);
            let x = channel(0);
            match step {
                1 => inside.iter_mut().zip(x).for_each(|(y, x)| *y = x ^ flip),
                _ => inside.iter_mut().zip(x.iter().step_by(step)).for_each(|(y, x)| *y = x ^ flip),
            }
            return;
        }
        let to = to.as_chunks_mut::<4>().0;
        let (before, rest) = to.split_at_mut(lo.min(to.len()));
        let (inside, behind) = rest.split_at_mut((hi - lo).min(rest.len()));
        before.fill(padding);
        behind.fill(padding);
        let [a, b, c, e] = [0, 1, 2, 3].map(channel);
        let four = |a: u8, b: u8, c: u8, e: u8| {
            [(a ^ flip) & mask[0], (b ^ flip) & mask[1], (c ^ flip) & mask[2], (e ^ flip) & mask[3]]
        };
        if step == 1 {
            for ((((y, a), b), c), e) in inside.iter_mut().zip(a).zip(b).zip(c).zip(e) {
                *y = four(*a, *b, *c, *e);
            }
        } else {
            let [a, b, c, e] = [a, b, c, e].map(|x| x.iter().step_by(step));
            for ((((y, a), b), c), e) in inside.iter_mut().zip(a).zip(b).zip(c).zip(e) {
                *y = four(*a, *b, *c, *e);
            }
        }
    }
}

/// An image of unsigned bytes as the right operand of a product with signed weights.
pub(super) struct View<'a> {
    pub(super) image: &'a Interleaved,
    pub(super) data: &'a [u8],
}

impl Right for View<'_> {
    const LEFT_SIGNED: bool = true;

    #[inline(always)]
    fn step(&self, first: usize, _: usize, k: usize) -> &[u8] {
        let at = self.image.offsets.get(k).map_or(usize::MAX, |at| at + 4 * first);
        self.data.get(at..).unwrap_or(&[])
    }

    fn elements_before(&self, column: usize) -> usize {
        self.image.outputs_before(column)
    }

    #[inline(always)]
    fn runs(&self, first: usize, n: usize, f: impl FnMut(usize, usize)) {
        self.image.runs(first, n, f);
    }
}
