//! Convolutions on the CPU that read a padded copy of their input in place of unfolded columns.
//!
//! In a copy whose rows of the input follow each other with the padding between them, each tap of the window reads at a
//! fixed distance from its output's place, whatever the row. So one tile of sums covers neighbouring places over several
//! rows, the places under the padding are computed too and not stored, and a tap's operands are an unaligned vector of
//! the copy. Strides split rows and columns of the copy into phases, each of which is read at stride 1.

use std::cell::Cell;
use std::ops::Range;

use pulp::{Simd, WithSimd};

use crate::dot::Ahead;
use crate::ops::activation::Epilogue;
use crate::ops::linalg::product::Threads;
use crate::ops::linalg::share::{Cut, PARALLEL, TASK, new_run};
use crate::ops::linalg::tile::clamp;
use crate::ops::planes::copy;
use crate::ops::{WindowAxis, par};
use crate::simd::arch;

/// Vectors in a row of a tile, at most; 2 where vectors have 8 elements, of which there are 16.
const VECTORS: usize = 3;
/// Elements of a CPU's longest vector.
pub(super) const LANES: usize = 16;
/// Elements after the copy: those of the widest tile and a vector.
const SLACK: usize = (VECTORS + 2) * LANES;
/// Elements of the copy that are made at a time, and sums that are kept meanwhile, at most where that is enough for a row:
/// each a fourth of a small second cache.
pub(super) const PANEL: usize = 32 << 10;
/// Rows of the weights' matrix, transposed, that are multiplied together, at most: those of a tile stay in the first cache.
const DEPTH: usize = 256;
/// Elements from one row of their copy to the next, which begin in different sets of the cache.
const LEFT: usize = DEPTH + LANES;
/// Rows of a tile, at most.
const ROWS: usize = 8;
/// Tasks for each thread: more of them have fewer rows, and more of what they compute lies under the padding or is
/// copied for several.
const TASKS: usize = 2;
/// Output channels that one task has at least, so that each task's own copy stays cheap.
pub(super) const BAND: usize = 64;

thread_local! {
    static WORK: Cell<Work> = Cell::new(Work::default());
}

#[derive(Default)]
struct Work {
    copied: Copied,
    runs: Vec<Run>,
    /// The sums of all tiles, where not all input channels are summed at once.
    sums: Vec<f32>,
    /// Rows of the weights that are multiplied.
    left: Vec<[f32; LEFT]>,
}

/// The padded copy of some channels.
#[derive(Default)]
pub(super) struct Copied {
    panel: Vec<f32>,
    /// For every row of the weights' matrix, how far from an output's place its operands are.
    taps: Vec<u32>,
    /// The run and the part that the copy is of, where it has all input channels.
    of: Option<(u64, Part)>,
}

impl Copied {
    /// The copy of the channels `step` that `part` reads, and where in it the operands of every row of the weights' matrix are.
    #[inline(always)]
    pub(super) fn of_step<'a, S: Simd>(
        &'a mut self,
        simd: S,
        of: &Shifted,
        run: u64,
        x: &'a [f32],
        step: Range<usize>,
        part: Part,
    ) -> (&'a [f32], &'a [u32]) {
        let (layout, most) = (of.layout(part), of.channels());
        if step.start == 0 {
            of.place_taps(most, layout, &mut self.taps);
        }
        if let Some(plane) = of.plain(part) {
            return (&x[step.start * plane..step.end * plane], &self.taps[..step.len()]);
        }
        let needed = most * layout.plane + SLACK;
        if self.panel.len() < needed {
            self.of = None;
            self.panel.resize(needed, 0.0);
        }
        let of_run = (step.len() == of.ic).then_some((run, part));
        if of_run.is_none() || self.of != of_run {
            self.of = None;
            of.fill(simd, x, step.clone(), part, layout, &mut self.panel);
            self.of = of_run;
        }
        (&self.panel, &self.taps[..step.len() * of.taps()])
    }
}

/// Neighbouring outputs of a tile that are stored.
#[derive(Clone, Copy)]
struct Run {
    /// The first one's place in the copy.
    place: usize,
    len: usize,
    /// The first one's element in the task's rows.
    to: usize,
}

/// A convolution of one group of one image over two dimensions.
#[derive(Clone, Copy)]
pub(super) struct Shifted {
    pub(super) ic: usize,
    pub(super) h: WindowAxis,
    pub(super) w: WindowAxis,
    /// Rows of the weights' matrix, transposed, that are multiplied together, at most.
    pub(super) most: usize,
}

/// Its operands: weights of `depth` elements for every output channel.
struct Operands<'a> {
    of: Shifted,
    run: u64,
    x: &'a [f32],
    weights: &'a [f32],
    bias: Option<&'a [f32]>,
    epilogue: Epilogue<'a, f32>,
}

/// Output rows and columns that one copy serves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Part {
    pub(super) row: usize,
    pub(super) rows: usize,
    pub(super) column: usize,
    pub(super) columns: usize,
}

/// The sizes of a copy: for every channel, phase of rows and phase of columns, `lines` lines of `pitch` elements.
#[derive(Clone, Copy)]
pub(super) struct Layout {
    lines: usize,
    pub(super) pitch: usize,
    /// Elements of a channel.
    plane: usize,
}

impl Shifted {
    /// As [`Shifted::of`], and `None` for one tap and where many of the places that tiles compute lie under the padding.
    pub(super) fn new(ic: usize, axes: &[WindowAxis; 3]) -> Option<Shifted> {
        Shifted::of(ic, axes).filter(|this| this.taps() > 1 && this.filled(1) >= 2.0 / 3.0)
    }

    /// `None` for windows over three dimensions or no channels, and where unfolded columns are smaller than the copy.
    pub(super) fn of(ic: usize, &[d, h, w]: &[WindowAxis; 3]) -> Option<Shifted> {
        let flat = d.kernel == 1 && d.input == 1 && d.output == 1 && d.pads == [0, 0];
        let (taps, outputs) = (h.kernel * w.kernel, h.output * w.output);
        if !flat || ic * h.input * w.input == 0 || outputs < LANES / 2 {
            return None;
        }
        let this = Shifted { ic, h, w, most: DEPTH };
        let of = |rows, columns| this.layout(Part { row: 0, rows, column: 0, columns });
        let small = of(1, w.output).plane <= taps * (w.output + w.kernel);
        // The places of taps are 32-bit numbers.
        let fits = taps <= DEPTH && of(1, w.output.min(VECTORS * LANES)).plane <= u32::MAX as usize / DEPTH;
        (small && fits).then_some(this)
    }

    /// The share of the places that tiles of vectors of `lanes` elements compute which are outputs.
    pub(super) fn filled(&self, lanes: usize) -> f64 {
        let (rows, columns) = (self.h.output, self.w.output);
        let pitch = self.layout(Part { row: 0, rows, column: 0, columns }).pitch;
        let places = if lanes == 1 { rows.saturating_mul(pitch) } else { (rows - 1) * pitch + columns };
        (rows * columns) as f64 / places.next_multiple_of(lanes) as f64
    }

    /// Rows of the output of `outputs` channels whose copies and sums are at most about [`PANEL`] elements, of `rows`: parts of
    /// about the same size.
    pub(super) fn rows_at_once(&self, rows: usize, outputs: usize) -> usize {
        let whole = |rows| {
            let layout = self.layout(Part { row: 0, rows, column: 0, columns: self.w.output });
            let sums = if self.channels() < self.ic { layout.pitch * rows * outputs } else { 0 };
            sums.max(layout.plane * self.channels())
        };
        let (one, two) = (whole(1), whole(2));
        let each = 1 + PANEL.saturating_sub(one) / (two - one).max(1);
        rows.div_ceil(rows.div_ceil(each).max(1)).max(1)
    }

    /// Elements of a plane of the input, where it lies as the copy of `part` would.
    fn plain(&self, part: Part) -> Option<usize> {
        let whole = |axis: &WindowAxis, n| axis.is_plain() && axis.output == n;
        let lies = whole(&self.h, part.rows) && whole(&self.w, part.columns);
        lies.then(|| part.rows * part.columns)
    }

    /// The same with `rows` rows in each one, which divide them, of plain axes.
    pub(super) fn joined(self, rows: usize) -> Shifted {
        let long = |axis: WindowAxis, by: [usize; 2]| WindowAxis {
            input: axis.input / by[0] * by[1],
            output: axis.output / by[0] * by[1],
            ..axis
        };
        Shifted { h: long(self.h, [rows, 1]), w: long(self.w, [1, rows]), ..self }
    }

    /// Elements of the copy of one row of the output, of the channels that are summed at once.
    pub(super) fn row_at_once(&self) -> usize {
        let layout = self.layout(Part { row: 0, rows: 1, column: 0, columns: self.w.output });
        layout.plane.saturating_mul(self.channels())
    }

    /// The input channels that are summed at once, in turn.
    pub(super) fn steps(&self) -> impl Iterator<Item = Range<usize>> + use<> {
        let (ic, most) = (self.ic, self.channels());
        (0..ic).step_by(most).map(move |from| from..ic.min(from + most))
    }

    pub(super) fn depth(&self) -> usize {
        self.ic * self.taps()
    }

    pub(super) fn taps(&self) -> usize {
        self.h.kernel * self.w.kernel
    }

    /// Input channels that are summed at once.
    pub(super) fn channels(&self) -> usize {
        let most = (self.most / self.taps()).max(1);
        self.ic.div_ceil(self.ic.div_ceil(most).max(1))
    }

    pub(super) fn layout(&self, part: Part) -> Layout {
        let lines = part.rows + reach(&self.h);
        let pitch = if self.shares(part) {
            // The padding after a row is that before the next.
            self.w.input + (self.w.pads[0].max(self.w.pads[1]) as usize)
        } else {
            part.columns + reach(&self.w)
        };
        let sizes = [phases(&self.w), lines, pitch];
        Layout { lines, pitch, plane: sizes.into_iter().fold(phases(&self.h), usize::saturating_mul) }
    }

    /// Whether rows of the copy share the padding between them.
    fn shares(&self, part: Part) -> bool {
        let w = &self.w;
        w.stride == 1
            && w.pads.iter().all(|p| *p >= 0)
            && part.columns == w.output
            && w.input + (w.pads[0].max(w.pads[1]) as usize) >= w.output
    }

    /// `y = epilogue(conv(x, weights) + bias)`, of whole planes.
    pub(super) fn run(
        &self,
        x: &[f32],
        weights: &[f32],
        bias: Option<&[f32]>,
        epilogue: Epilogue<'_, f32>,
        y: &mut [f32],
        threads: Threads,
    ) {
        let n = self.h.output * self.w.output;
        if n == 0 {
            return;
        }
        let m = y.len() / n;
        let work = m * n * self.depth();
        let task = TASK.max(work / (TASKS * par::threads()));
        let cut = Cut { work, parallel: PARALLEL, task, band: BAND, unit: 8, strips: self.h.output };
        let first = |strip: usize, strips: usize| self.h.output * strip / strips;
        let end = |strip: usize, strips: usize| first(strip + 1, strips) * self.w.output;
        let run = new_run();
        let operands = &Operands { of: *self, run, x, weights, bias, epilogue };
        cut.share([m, n], y.chunks_mut(n), threads, end, |share| {
            let from = first(share.strip, share.strips);
            let mut work = WORK.take();
            let task = Task { operands, channel: share.row, row: from, outputs: share.rows, work: &mut work };
            arch().dispatch(task);
            WORK.set(work);
        });
    }
}

/// Elements from the first to the last tap, in strides.
fn reach(axis: &WindowAxis) -> usize {
    (axis.kernel - 1) * axis.dilation / axis.stride
}

/// Phases of the stride that taps read.
fn phases(axis: &WindowAxis) -> usize {
    axis.stride.min((axis.kernel - 1) * axis.dilation + 1)
}

/// Output channels from `channel` on, of which `outputs` has the elements from row `row` on.
struct Task<'t, 'y, 'a> {
    operands: &'t Operands<'a>,
    channel: usize,
    row: usize,
    outputs: Vec<&'y mut [f32]>,
    work: &'t mut Work,
}

impl WithSimd for Task<'_, '_, '_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(mut self, simd: S) {
        let of = self.operands.of;
        let width = of.w.output;
        let rows = self.outputs.first().map_or(0, |y| y.len()) / width;
        // One row of all columns, if that is small enough.
        let layout = of.layout(Part { row: 0, rows: 1, column: 0, columns: width });
        let sums = if of.channels() < of.ic { layout.pitch * self.outputs.len() } else { 0 };
        let one = sums.max(of.row_at_once());
        let (columns, each) = if one <= 2 * PANEL {
            (width, of.rows_at_once(rows, self.outputs.len()))
        } else {
            ((width * 2 * PANEL / one).max(VECTORS * LANES).min(width), 1)
        };
        for row in (0..rows).step_by(each) {
            for column in (0..width).step_by(columns) {
                let part = Part {
                    row: self.row + row,
                    rows: each.min(rows - row),
                    column,
                    columns: columns.min(width - column),
                };
                self.part(simd, part, row);
            }
        }
    }
}

impl Task<'_, '_, '_> {
    /// One part, whose first row is row `row` of the outputs.
    #[inline(always)]
    fn part<S: Simd>(&mut self, simd: S, part: Part, row: usize) {
        let Operands { of, run, x, epilogue, .. } = *self.operands;
        let (layout, width) = (of.layout(part), of.w.output);
        let places = (part.rows - 1) * layout.pitch + part.columns;
        let whole = part.columns == width;
        let Work { copied, runs, sums, left } = &mut *self.work;
        left.resize(ROWS, [0.0; LEFT]);
        runs.clear();
        for r in 0..part.rows {
            let (place, to) = (r * layout.pitch, (row + r) * width + part.column);
            runs.push(Run { place, len: part.columns, to });
        }
        if of.channels() < of.ic {
            let needed = self.outputs.len() * (places + LANES * VECTORS);
            sums.resize(needed.max(sums.len()), 0.0);
        }
        for channels in of.steps() {
            let (panel, taps) = copied.of_step(simd, &of, run, x, channels.clone(), part);
            let step = Step {
                from: channels.start * of.taps(),
                first: channels.start == 0,
                last: channels.end == of.ic,
            };
            let few = places.div_ceil(S::F32_LANES) == 4;
            let rows = if S::F32_LANES == 8 || few { 6 } else { ROWS };
            let (mut channel, mut sums) = (self.channel, &mut sums[..]);
            let mut outputs = &mut *self.outputs;
            while !outputs.is_empty() {
                let n = if outputs.len() >= rows { rows } else { 1 << outputs.len().ilog2() };
                let (now, later) = outputs.split_at_mut(n);
                let mut tiles =
                    Tiles { operands: self.operands, panel, taps, runs, left, step, channel, places, whole };
                match n {
                    8 => tiles.run::<S, 8>(simd, now, &mut sums),
                    6 => tiles.run::<S, 6>(simd, now, &mut sums),
                    4 => tiles.run::<S, 4>(simd, now, &mut sums),
                    2 => tiles.run::<S, 2>(simd, now, &mut sums),
                    _ => tiles.run::<S, 1>(simd, now, &mut sums),
                }
                if step.last && epilogue.in_registers().is_none() {
                    // The part's columns of a row, or all rows at once.
                    let (at, n) =
                        (row * width + part.column, if whole { part.rows * width } else { part.columns });
                    for (channel, y) in (channel..).zip(now) {
                        let of_channel = channel * of.h.output * width;
                        epilogue.apply(&mut y[at..][..n], of_channel + self.row * width + at);
                    }
                }
                (outputs, channel) = (later, channel + n);
            }
        }
    }
}

impl Shifted {
    /// Writes how far from an output's place the operands of every row of the weights' matrix are, of `channels` channels.
    fn place_taps(&self, channels: usize, layout: Layout, taps: &mut Vec<u32>) {
        let Shifted { h, w, .. } = *self;
        taps.clear();
        for channel in 0..channels {
            for kh in 0..h.kernel {
                for kw in 0..w.kernel {
                    let (down, across) = (kh * h.dilation, kw * w.dilation);
                    let phase = down % h.stride * phases(&w) + across % w.stride;
                    let line = phase * layout.lines + down / h.stride;
                    let of_channel = line * layout.pitch + across / w.stride;
                    taps.push((channel * layout.plane + of_channel) as u32);
                }
            }
        }
    }

    /// The rows of a channel of the input that `part` reads.
    pub(super) fn read<'x>(&self, x: &'x [f32], channel: usize, part: Part) -> &'x [f32] {
        let Shifted { h, w, .. } = *self;
        let row = |at: usize| (at as i64 - h.pads[0]).clamp(0, h.input as i64) as usize;
        let begin = part.row * h.stride;
        let end = begin + (part.rows - 1) * h.stride + (h.kernel - 1) * h.dilation + 1;
        let of_channel = channel * h.input;
        &x[(of_channel + row(begin)) * w.input..(of_channel + row(end)) * w.input]
    }

    /// Writes the copy of some channels that `part` reads.
    #[inline(always)]
    fn fill<S: Simd>(
        &self,
        simd: S,
        x: &[f32],
        channels: Range<usize>,
        part: Part,
        layout: Layout,
        to: &mut [f32],
    ) {
        let Shifted { h, w, .. } = *self;
        let (down, across) = (phases(&h), phases(&w));
        // Of every line: elements before the input's, the input's, and which is the first.
        let pieces = |phase: usize| {
            let start = (part.column * w.stride + phase) as i64 - w.pads[0];
            let s = w.stride as i64;
            let skip = if start < 0 { (-start + s - 1) / s } else { 0 };
            let from = start + skip * s;
            let inside = (w.input as i64 - from + s - 1).div_euclid(s).max(0) as usize;
            let skip = (skip as usize).min(layout.pitch);
            (skip, inside.min(layout.pitch - skip), from as usize)
        };
        for (i, c) in channels.clone().enumerate() {
            for v in 0..down {
                for u in 0..across {
                    let (skip, inside, from) = pieces(u);
                    let first = i * layout.plane + (v * across + u) * layout.lines * layout.pitch;
                    for line in 0..layout.lines {
                        // Vectors may reach into the next line, which is written after this one.
                        let to = &mut to[first + line * layout.pitch..][..layout.pitch + LANES];
                        let at = ((part.row + line) * h.stride + v) as i64 - h.pads[0];
                        let row = usize::try_from(at).ok().filter(|at| *at < h.input);
                        let Some(row) = row.filter(|_| inside > 0) else {
                            to[..layout.pitch].fill(0.0);
                            continue;
                        };
                        let x = &x[(c * h.input + row) * w.input + from..];
                        zero(to, skip);
                        match w.stride {
                            1 => copy::<S, 1>(simd, x, &mut to[skip..], inside),
                            2 => copy::<S, 2>(simd, x, &mut to[skip..], inside),
                            s => {
                                let x = x.iter().step_by(s).take(inside);
                                to[skip..].iter_mut().zip(x).for_each(|(y, x)| *y = *x);
                            }
                        }
                        zero(&mut to[skip + inside..], layout.pitch - skip - inside);
                    }
                }
            }
        }
        // What the last line's taps read beyond it.
        to[channels.len() * layout.plane..][..SLACK].fill(0.0);
    }
}

/// Makes the first `n` elements zero, and up to a vector after them.
#[inline(always)]
fn zero(to: &mut [f32], n: usize) {
    match to.first_chunk_mut::<LANES>() {
        Some(to) if n <= LANES => *to = [0.0; LANES],
        _ => to[..n].fill(0.0),
    }
}

/// Rows of the weights' matrix that are multiplied together: its first one, and whether it is the first and they are the
/// last ones of all.
#[derive(Clone, Copy)]
struct Step {
    from: usize,
    first: bool,
    last: bool,
}

/// Tiles of some output channels from `channel` on over all places of a copy.
struct Tiles<'t, 'a> {
    operands: &'t Operands<'a>,
    panel: &'t [f32],
    taps: &'t [u32],
    runs: &'t [Run],
    left: &'t mut [[f32; LEFT]],
    step: Step,
    channel: usize,
    places: usize,
    /// Whether the copy serves whole rows of the output.
    whole: bool,
}

impl Tiles<'_, '_> {
    #[inline(always)]
    fn run<S: Simd, const R: usize>(&mut self, simd: S, outputs: &mut [&mut [f32]], memory: &mut &mut [f32]) {
        let Ok(outputs) = <&mut [&mut [f32]; R]>::try_from(outputs) else { return };
        let (depth, weights) = (self.operands.of.depth(), self.operands.weights);
        for (i, to) in self.left.iter_mut().take(R).enumerate() {
            let from = &weights[(self.channel + i) * depth + self.step.from..][..self.taps.len()];
            to[..from.len()].copy_from_slice(from);
        }
        let most = if S::F32_LANES == 8 { 2 } else { VECTORS };
        let vectors = self.places.div_ceil(S::F32_LANES);
        // The rows of the next channels come while these are multiplied.
        let next = |i: usize| {
            let row = weights.get((self.channel + R + i) * depth + self.step.from..).unwrap_or_default();
            &row[..row.len().min(self.taps.len())]
        };
        let ahead = Ahead::new();
        let mut fetched = 0;
        let mut done = 0;
        let mut run = 0;
        while done < vectors {
            let left = vectors - done;
            let rows = R * (done + most).min(vectors) / vectors;
            (fetched..rows).for_each(
                #[inline(always)]
                |i| ahead.fetch_all(next(i)),
            );
            fetched = rows.max(fetched);
            // A single vector at the end makes poor use of the registers: two tiles of two are better.
            let wide = match left {
                4 if R == 6 && most == VECTORS => 4,
                4 if most == VECTORS => 2,
                _ => left.min(most),
            };
            let place = done * S::F32_LANES;
            let own = if self.step.first && self.step.last { 0 } else { R * wide * S::F32_LANES };
            let (sums, rest) = std::mem::take(memory).split_at_mut(own);
            *memory = rest;
            run = match wide {
                1 => self.tile::<S, R, 1>(simd, place, run, outputs, sums),
                2 => self.tile::<S, R, 2>(simd, place, run, outputs, sums),
                4 if R == 6 => self.tile::<S, R, 4>(simd, place, run, outputs, sums),
                _ => self.tile::<S, R, VECTORS>(simd, place, run, outputs, sums),
            };
            done += wide;
        }
    }

    /// The tile whose first place is `place`, in the run `run`; the run that the next one begins in. `memory` has its sums
    /// from one step to the next.
    #[inline(always)]
    #[allow(clippy::needless_range_loop, reason = "constant indices keep the sums in registers")]
    fn tile<S: Simd, const R: usize, const V: usize>(
        &self,
        simd: S,
        place: usize,
        mut run: usize,
        outputs: &mut [&mut [f32]; R],
        memory: &mut [f32],
    ) -> usize {
        let Operands { bias, epilogue, .. } = self.operands;
        let (panel, left, step) = (&self.panel[place..], &self.left[..R], self.step);
        let (memory, _) = S::as_mut_simd_f32s(memory);
        let mut sums = [[simd.splat_f32s(0.0); V]; R];
        for i in 0..R {
            if !step.first {
                sums[i].copy_from_slice(&memory[i * V..][..V]);
            } else if let Some(bias) = bias {
                sums[i] = [simd.splat_f32s(bias[self.channel + i]); V];
            }
        }
        for (k, tap) in (0..DEPTH).zip(self.taps) {
            let (b, _) = S::as_simd_f32s(&panel[*tap as usize..][..V * S::F32_LANES]);
            for i in 0..R {
                let x = simd.splat_f32s(left[i][k]);
                for j in 0..V {
                    sums[i][j] = simd.mul_add_e_f32s(x, b[j], sums[i][j]);
                }
            }
        }
        if !step.last {
            for i in 0..R {
                memory[i * V..][..V].copy_from_slice(&sums[i]);
            }
            return run;
        }
        if let Some([low, high]) = epilogue.in_registers() {
            for i in 0..R {
                for j in 0..V {
                    sums[i][j] = clamp(simd, sums[i][j], low, high);
                }
            }
        }
        let end = place + V * S::F32_LANES;
        if let Some(now) = self.runs.get(run).filter(|run| run.place <= place && end <= run.place + run.len) {
            let at = now.to + place - now.place;
            for i in 0..R {
                let (to, _) = S::as_mut_simd_f32s(&mut outputs[i][at..][..V * S::F32_LANES]);
                to.copy_from_slice(&sums[i]);
            }
            return if end == now.place + now.len { run + 1 } else { run };
        }
        // Whole vectors are written, of which a later run overwrites what is beyond the end.
        let mut tile = [[0.0f32; SLACK]; R];
        for i in 0..R {
            let (to, _) = S::as_mut_simd_f32s(&mut tile[i]);
            to[..V].copy_from_slice(&sums[i]);
        }
        while let Some(now) = self.runs.get(run) {
            let (from, to) = (now.place.max(place), (now.place + now.len).min(end));
            if from < to {
                let (at, n) = (now.to + from - now.place, to - from);
                for i in 0..R {
                    let (tile, y) = (&tile[i][from - place..], &mut outputs[i][at..]);
                    let mut done = 0;
                    while done < n {
                        let from = tile[done..].first_chunk::<LANES>();
                        let to = y[done..].first_chunk_mut::<LANES>();
                        match (from, to) {
                            (Some(from), Some(to)) if self.whole => *to = *from,
                            _ => {
                                y[done..n].copy_from_slice(&tile[done..n]);
                                break;
                            }
                        }
                        done += LANES;
                    }
                }
            }
            if now.place + now.len > end {
                break;
            }
            run += 1;
        }
        run
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::expr::Function;
    use crate::ops::conv::Conv;
    use crate::ops::conv::direct::tests::reference;
    use crate::ops::par::of_threads;
    use crate::ops::test_util::{assert_near, facts, tensor};
    use crate::ops::{Activation, WindowAttrs};

    const NEAR: f64 = 1e-5;

    /// Padding on no side, on one and on both, phases of strides and dilations, rows that do not fill a vector, rests
    /// of channels, several bands and strips, parts of some rows, and rows that are cut.
    #[test]
    fn places_compute_the_definition() {
        let sizes = [
            ([1, 16, 13, 13], [9, 3, 3], [1, 1], [1, 1], [1, 1, 1, 1]),
            ([1, 3, 23, 31], [37, 7, 7], [2, 2], [1, 1], [3, 3, 3, 3]),
            ([1, 5, 17, 20], [70, 3, 3], [2, 3], [1, 1], [1, 0, 2, 1]),
            ([1, 4, 19, 18], [6, 3, 3], [1, 1], [2, 3], [2, 3, 2, 3]),
            ([1, 6, 16, 15], [8, 5, 1], [1, 2], [1, 1], [-1, 2, 2, -2]),
            ([1, 2, 1, 90], [140, 1, 5], [1, 1], [1, 1], [0, 0, 0, 4]),
            ([1, 3, 40, 19], [5, 2, 4], [3, 1], [1, 2], [0, 5, 1, 1]),
            ([1, 33, 7, 7], [131, 3, 3], [1, 1], [1, 1], [1, 1, 1, 1]),
            ([1, 900, 9, 64], [7, 3, 3], [1, 1], [1, 1], [1, 1, 1, 1]),
            ([1, 1200, 3, 200], [3, 3, 3], [1, 1], [1, 1], [1, 1, 1, 1]),
            ([1, 56, 3, 790], [2, 3, 3], [1, 1], [1, 1], [0, 1, 0, 1]),
        ];
        for (x, [oc, kh, kw], strides, dilations, pads) in sizes {
            let window = WindowAttrs {
                pads: pads.to_vec(),
                strides: strides.to_vec(),
                dilations: dilations.to_vec(),
                ..WindowAttrs::default()
            };
            let op = Conv { window, ..Conv::default() };
            let (x, w, b) = (tensor(&x, 1), tensor(&[oc, x[1], kh, kw], 2), tensor(&[oc], 3));
            let inputs = [Some(x.clone()), Some(w.clone()), Some(b.clone())];
            let dims = op.resolve(&facts(&op, &inputs, 1).unwrap()).unwrap().0;
            let shifted = Shifted::new(dims.ic, &dims.axes).unwrap();
            let values = [&x, &w, &b].map(|t| t.to_f32s().unwrap());
            let run = |bias: Option<&[f32]>, activation: Activation, threads| {
                let mut y = vec![9.0f32; dims.out_len()];
                of_threads(3, || {
                    shifted.run(&values[0], &values[1], bias, activation.into(), &mut y, threads)
                });
                crate::graph::Tensor::new([y.len()], &y).unwrap()
            };
            // Sums of many terms round more.
            let near = NEAR * (dims.ic as f64 / 30.0).max(1.0);
            let want: Vec<f64> = reference(&op, &x, &w, Some(&b)).1.iter().map(|v| v.max(0.0)).collect();
            for threads in [Threads::One, Threads::All] {
                assert_near(&run(Some(&values[2]), Activation::of(Function::Relu), threads), &want, near);
            }
            let silu = |v: &f64| v / (1.0 + (-v).exp());
            let want: Vec<f64> = reference(&op, &x, &w, None).1.iter().map(silu).collect();
            assert_near(&run(None, Activation::of(Function::Swish), Threads::All), &want, near);
        }
    }

    #[test]
    fn small_columns_are_unfolded() {
        let axis = |input: usize, kernel: usize, stride: usize, dilation: usize, pad: usize| {
            let extent = (kernel - 1) * dilation + 1;
            let output = (input + 2 * pad - extent) / stride + 1;
            WindowAxis { input, output, kernel, stride, dilation, pads: [pad as i64; 2] }
        };
        let of = |h, w| Shifted::new(8, &[WindowAxis::UNIT, h, w]).is_some();
        let same = axis(28, 3, 1, 1, 1);
        assert!(of(same, same));
        assert!(of(axis(224, 7, 2, 1, 3), axis(224, 7, 2, 1, 3)));
        // One tap, few outputs, and taps far apart.
        assert!(!of(axis(28, 1, 2, 1, 0), axis(28, 1, 2, 1, 0)));
        assert!(!of(axis(7, 7, 1, 1, 0), axis(7, 7, 1, 1, 0)));
        assert!(!of(axis(200, 2, 1, 100, 0), same));
        assert!(!of(same, axis(100, 95, 1, 1, 0)));
        assert!(Shifted::new(8, &[same, same, same]).is_none());
        assert!(Shifted::new(0, &[WindowAxis::UNIT, same, same]).is_none());
    }
}
