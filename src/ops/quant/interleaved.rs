//! An image of bytes in which every tap of a window reads neighbours for neighbouring outputs.
//!
//! The image is padded, and where the window moves by several elements it is taken apart into as many *phases*, one for
//! every place that a tap can have between two steps. An output is numbered by the place that it reads in a plane,
//! so that tap and channel only move the first place; the places between two lines that are no outputs are computed
//! as well and left out. What a product multiplies is then never unfolded.

use std::ops::Range;

use crate::ops::conv::dims::ConvDims;
use crate::ops::linalg::bytes::Right;
use crate::ops::linalg::product::Threads;
use crate::ops::{WindowAxis, par};
use crate::simd::wide;

/// Bytes after the last plane that vectors read.
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
        let mut phases: Vec<usize> =
            (0..of.kernel.min(of.stride)).map(|t| t * of.dilation % of.stride).collect();
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

/// The meaning of the four bytes of a position.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Four {
    /// Four channels, all read by one tap.
    Channels,
    /// Four neighbouring taps of a line, of the only channel: a position of a line is an output.
    Taps,
}

/// Where the weights of an output channel lie, four bytes of each place side by side.
#[derive(Clone, Copy, Debug)]
pub(super) struct Order {
    four: Four,
    taps: usize,
    line: usize,
}

impl Order {
    /// The place of weight `i`.
    #[inline]
    pub(super) fn at(&self, i: usize) -> usize {
        let &Order { taps, line, .. } = self;
        match self.four {
            Four::Channels => (i / taps / 4 * taps + i % taps) * 4 + i / taps % 4,
            Four::Taps => i / line * line.next_multiple_of(4) + i % line,
        }
    }
}

/// The layout of an image: groups of channels, their phases, their planes, and four bytes of every position.
#[derive(Clone, Debug)]
pub(super) struct Interleaved {
    axes: [Axis; 3],
    channels: usize,
    four: Four,
    /// Planes of a group: one for every phase, or group of taps.
    phases: usize,
    /// Places of a plane.
    area: usize,
    /// The byte that output 0 reads first, of every group of four bytes that it reads.
    offsets: Vec<usize>,
    /// The composition of lines of each phase of the last axis.
    lines: Vec<Line>,
}

/// The composition of a line.
#[derive(Clone, Debug)]
struct Line {
    /// The places all of whose bytes are inside the input.
    inside: Range<usize>,
    /// The element of the first one of these that each byte comes from.
    from: [usize; 4],
    /// The places around these, where some bytes are padding, and the elements of the others.
    edges: Vec<(usize, [Option<usize>; 4])>,
    /// Number of the four taps that exist.
    taps: usize,
}

impl Interleaved {
    /// Images of `dims`. Nothing where that would be mostly padding.
    pub(super) fn new(dims: &ConvDims) -> Option<Interleaved> {
        let mut axes = dims.axes;
        if dims.is_pointwise() {
            // All lines are one.
            let one = WindowAxis { input: 1, output: 1, ..axes[0] };
            axes = [one, one, WindowAxis { input: dims.in_plane(), output: dims.out_plane(), ..axes[2] }];
        }
        let [d, h, w] = axes;
        let mut axes = [Axis::new(d)?, Axis::new(h)?, Axis::new(w)?];
        let four = if dims.ic == 1 { Four::Taps } else { Four::Channels };
        if four == Four::Taps {
            axes[2].size = w.output;
            axes[2].phases = (0..w.kernel.div_ceil(4)).collect();
        }
        let area = axes.iter().try_fold(1usize, |n, a| n.checked_mul(a.size))?;
        let phases = axes.iter().try_fold(1usize, |n, a| n.checked_mul(a.phases.len()))?;
        let most = 4 * (dims.in_plane() + dims.out_plane()) + (1 << 12);
        let groups = dims.ic.div_ceil(4);
        let places = phases.checked_mul(area).filter(|n| *n <= most)?;
        places.checked_mul(groups)?.checked_mul(4)?.checked_add(SLACK)?;
        let mut image = Interleaved {
            axes,
            channels: dims.ic,
            four,
            phases,
            area,
            offsets: Vec::new(),
            lines: Vec::new(),
        };
        image.lines = (0..image.axes[2].phases.len()).map(|phase| image.line_of(phase)).collect();
        let [taps_d, taps_h, taps_w] = image.taps();
        for group in 0..groups {
            for t in 0..taps_d * taps_h * taps_w {
                let split = [t / (taps_w * taps_h), t / taps_w % taps_h, t % taps_w];
                let (mut phase, mut place) = (0, 0);
                for (i, (axis, t)) in image.axes.iter().zip(split).enumerate() {
                    let (p, at) = if four == Four::Taps && i == 2 { (t, 0) } else { axis.tap(t)? };
                    (phase, place) = (phase * axis.phases.len() + p, place * axis.size + at);
                }
                image.offsets.push(((group * phases + phase) * area + place) * 4);
            }
        }
        Some(image)
    }

    /// The composition of lines of phase `phase` of the last axis.
    fn line_of(&self, phase: usize) -> Line {
        let axis = &self.axes[2];
        let w = &axis.of;
        if self.four == Four::Channels {
            let (lo, hi, from) = axis.inside(phase);
            return Line { inside: lo..hi, from: [from; 4], edges: Vec::new(), taps: 4 };
        }
        let taps = (w.kernel - (4 * phase).min(w.kernel)).min(4);
        let all = (0..taps).map(|i| w.valid(4 * phase + i));
        let inside = all.fold(0..w.output, |a, b| a.start.max(b.start)..a.end.min(b.end));
        let inside = inside.start..inside.end.max(inside.start);
        let of = |place: usize| {
            let mut at = [None; 4];
            at.iter_mut().enumerate().take(taps).for_each(|(i, at)| *at = w.at(place, 4 * phase + i));
            at
        };
        let edges = (0..inside.start).chain(inside.end..w.output).map(|place| (place, of(place))).collect();
        let from = of(inside.start).map(|at| at.unwrap_or(0));
        Line { inside, from, edges, taps }
    }

    /// Taps of each axis that have an offset of their own.
    fn taps(&self) -> [usize; 3] {
        let [d, h, w] = &self.axes;
        let taps_w = if self.four == Four::Taps { w.phases.len() } else { w.of.kernel };
        [d.of.kernel, h.of.kernel, taps_w]
    }

    /// The order of weights that is that of [`Interleaved::offsets`].
    pub(super) fn order(&self) -> Order {
        let taps = self.axes.iter().map(|a| a.of.kernel).product::<usize>().max(1);
        Order { four: self.four, taps, line: self.axes[2].of.kernel.max(1) }
    }

    /// Bytes of the image.
    pub(super) fn bytes(&self) -> usize {
        self.groups() * self.phases * self.area * 4 + SLACK
    }

    fn groups(&self) -> usize {
        self.channels.div_ceil(4)
    }

    /// Places from the first output to the last one, which is counted.
    pub(super) fn places(&self) -> usize {
        let [d, h, w] = &self.axes;
        let last = |a: &Axis| a.of.output.saturating_sub(1);
        (last(d) * h.size + last(h)) * w.size + w.of.output
    }

    /// The first byte of every group of four that an output reads.
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
        let slice = self.axes[1].size * self.axes[2].size * 4;
        let slices = self.groups() * self.phases * self.axes[0].size;
        let (slices, slack) = to.split_at_mut((slices * slice).min(to.len()));
        slack.fill(0);
        let many = PART / slice.max(1) + 1;
        let one = |(i, to): (usize, &mut [u8])| {
            wide(
                #[inline(always)]
                || {
                    for (j, to) in to.chunks_mut(slice).enumerate() {
                        self.slice(i * many + j, x, flip, zero, to);
                    }
                },
            );
        };
        let parts = slices.chunks_mut((slice * many).max(1)).enumerate();
        match threads {
            Threads::All if parts.len() > 1 => par::share(parts, one),
            _ => parts.for_each(one),
        }
    }

    /// The lines of one place of the first axis.
    #[inline(always)]
    fn slice(&self, index: usize, x: &[u8], flip: u8, zero: u8, to: &mut [u8]) {
        let [d, h, w] = &self.axes;
        let (at_d, rest) = (index % d.size, index / d.size);
        let (phase, group) = (rest % self.phases, rest / self.phases);
        let (phase_w, rest) = (phase % w.phases.len(), phase / w.phases.len());
        let (phase_h, phase_d) = (rest % h.phases.len(), rest / h.phases.len());
        let Some(line) = self.lines.get(phase_w) else { return };
        let plane = self.axes.iter().map(|a| a.of.input).product::<usize>();
        // Bytes without a channel or tap are zero, even in the padding.
        let count = if self.four == Four::Taps { line.taps } else { self.channels - 4 * group };
        let mut mask = [0u8; 4];
        let mut padding = [0u8; 4];
        let mut first = [0usize; 4];
        for i in 0..4 {
            if i < count {
                mask[i] = 0xff;
                padding[i] = zero;
                first[i] = line.from[i] + if self.four == Four::Taps { 0 } else { (4 * group + i) * plane };
            } else {
                // Any line: it is masked.
                first[i] = first[0];
            }
        }
        let at_d = d.element(phase_d, at_d);
        for (at_h, to) in to.chunks_exact_mut(4 * w.size).enumerate() {
            let to = to.as_chunks_mut::<4>().0;
            let Some((at_d, at_h)) = at_d.zip(h.element(phase_h, at_h)) else {
                to.fill(padding);
                continue;
            };
            let base = (at_d * h.of.input + at_h) * w.of.input;
            let (lo, hi) = (line.inside.start.min(to.len()), line.inside.end.min(to.len()));
            if let Some(inside) = to.get_mut(lo..hi) {
                let mut lines: [&[u8]; 4] = [&[]; 4];
                for i in 0..4 {
                    lines[i] = x.get(base + first[i]..).unwrap_or(&[]);
                }
                interleave(lines, w.of.stride, flip, mask, inside);
            }
            if self.four == Four::Channels {
                to[..lo].fill(padding);
                to[hi..].fill(padding);
            }
            for (place, from) in &line.edges {
                let mut bytes = padding;
                for (byte, from) in bytes.iter_mut().zip(from) {
                    if let Some(x) = from.and_then(|from| x.get(base + from)) {
                        *byte = x ^ flip;
                    }
                }
                if let Some(to) = to.get_mut(*place) {
                    *to = bytes;
                }
            }
        }
    }
}

/// Writes every `step`-th byte of four lines side by side, changed by `flip` and those of no line made zeros.
#[inline(always)]
fn interleave(lines: [&[u8]; 4], step: usize, flip: u8, mask: [u8; 4], to: &mut [[u8; 4]]) {
    const BLOCK: usize = 64;
    let [a, b, c, d] = lines;
    let four = |a: u8, b: u8, c: u8, d: u8| {
        [(a ^ flip) & mask[0], (b ^ flip) & mask[1], (c ^ flip) & mask[2], (d ^ flip) & mask[3]]
    };
    if step == 1 {
        for ((((y, a), b), c), d) in to.iter_mut().zip(a).zip(b).zip(c).zip(d) {
            *y = four(*a, *b, *c, *d);
        }
        return;
    }
    let mut picked = [[0u8; BLOCK]; 4];
    for (i, to) in to.chunks_mut(BLOCK).enumerate() {
        for (line, picked) in [a, b, c, d].into_iter().zip(&mut picked) {
            let line = line.get(i * BLOCK * step..).unwrap_or(&[]);
            match step {
                2 => {
                    let (pairs, last) = line.as_chunks::<2>();
                    picked.iter_mut().zip(pairs).for_each(|(y, pair)| *y = u16::from_le_bytes(*pair) as u8);
                    if let (Some(y), [x]) = (picked.get_mut(pairs.len()), last) {
                        *y = *x;
                    }
                }
                _ => picked.iter_mut().zip(line.iter().step_by(step)).for_each(|(y, x)| *y = *x),
            }
        }
        let [a, b, c, d] = &picked;
        for ((((y, a), b), c), d) in to.iter_mut().zip(a).zip(b).zip(c).zip(d) {
            *y = four(*a, *b, *c, *d);
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
