//! Convolutions of 3 by 3 taps with fewer multiplications: Winograd's F(4x4, 3x3).
//!
//! Lavin and Gray, "Fast Algorithms for Convolutional Neural Networks" (2016): tiles of 6 by 6 inputs and the taps are
//! transformed, multiplied element by element and summed over the channels, and transformed back to 4 by 4
//! outputs: 36 multiplications for 144. The points of interpolation are not theirs but 0, A, -A, B, -B and infinity,
//! with which the rounding errors are about twice those of the plain sum (Barabasz, Anderson, Soodhalter and
//! Gregg, "Error Analysis and Improving the Accuracy of Winograd Convolution for Deep Neural Networks", 2020).

use std::cell::Cell;
use std::ops::Range;

use pulp::{Simd, WithSimd};

use crate::kernel::codes::winograd::{A, B};
use crate::ops::activation::Epilogue;
use crate::ops::linalg::product::Threads;
use crate::ops::linalg::share::{Cut, PARALLEL, TASK, new_run};
use crate::ops::linalg::tile::{clamp, lanes};
use crate::ops::{WindowAxis, par};
use crate::simd::{arch, lanes_at_once};

const A2: f32 = A * A;
const B2: f32 = B * B;

/// Outputs of a tile along an axis, and inputs.
const OUT: usize = 4;
const IN: usize = 6;
/// Elements of a transformed tile.
const POINTS: usize = IN * IN;
/// Tiles that are transformed together; a multiple of every CPU's vector.
const GROUP: usize = 16;
/// Output channels of a task.
const CHANNELS: usize = 8;
/// Groups that are multiplied together.
const GROUPS: usize = 3;
/// Elements of transformed input that are made at a time, at most where that is enough for `GROUPS`.
const BLOCK: usize = 1 << 18;

/// Output channels that one task has at least, so that each task's own transformed input stays cheap.
const BAND: usize = 64;
/// Tasks for each thread: more of them have fewer groups that are multiplied by the same transformed taps.
const TASKS: usize = 2;

thread_local! {
    static WORK: Cell<Work> = Cell::new(Work::default());
}

/// What a thread keeps between tasks.
#[derive(Default)]
struct Work {
    /// For every point, input channel and group, a number for every tile.
    input: Vec<f32>,
    /// The run and the groups that it is of.
    of: Option<(u64, Range<usize>)>,
    /// For every point and output channel, a number for every input channel.
    taps: Vec<f32>,
    /// For every output channel, group and point, a number for every tile.
    products: Vec<f32>,
}

/// A convolution of one group of one image.
pub(super) struct Winograd {
    ic: usize,
    h: WindowAxis,
    w: WindowAxis,
    /// Tiles in a row of tiles, and rows of tiles.
    across: usize,
    down: usize,
    /// Number of rows of tiles in a group, or of groups in a row.
    rows: usize,
    cuts: usize,
}

impl Winograd {
    /// `None` where it would not be faster.
    pub(super) fn new(ic: usize, oc: usize, axes: &[WindowAxis; 3]) -> Option<Winograd> {
        let this = Winograd::of(ic, axes)?;
        // Passes of products for each pair of channels, and what takes as long: those of the plain sum, and those of
        // all points with the transforms of taps, input and output, which shorter vectors make no slower.
        let (groups, vectors) = (this.groups(), GROUP / lanes_at_once(lanes()).clamp(1, GROUP));
        let plain = 10 * vectors * (this.h.output * this.w.output).div_ceil(GROUP);
        let blocks = (ic * groups * POINTS * GROUP).div_ceil(BLOCK);
        let ours = 45 * vectors * groups + 95 * blocks + groups * (2000 / oc.max(1) + 1300 / ic.max(1));
        (oc >= CHANNELS && ours < plain * 9 / 10).then_some(this)
    }

    /// `None` unless the window is 3 by 3 with strides and dilations of 1.
    fn of(ic: usize, &[d, h, w]: &[WindowAxis; 3]) -> Option<Winograd> {
        let flat = d.kernel == 1 && d.input == 1 && d.output == 1 && d.pads == [0, 0];
        if !flat || [h, w].iter().any(|a| a.kernel != 3 || a.stride != 1 || a.dilation != 1 || a.input == 0) {
            return None;
        }
        let (across, down) = (w.output.div_ceil(OUT), h.output.div_ceil(OUT));
        let (rows, cuts) = ((GROUP / across.max(1)).max(1), across.div_ceil(GROUP));
        Some(Winograd { ic, h, w, across, down, rows, cuts })
    }

    /// Elements between two points of the transformed input of some groups; those of transformed taps are
    /// [`taps_of_point`](Winograd::taps_of_point). One group more than there are, lest all points begin in one set
    /// of the cache.
    fn of_point(&self, groups: usize) -> usize {
        (self.ic * groups + 1) * GROUP
    }

    fn taps_of_point(&self) -> usize {
        CHANNELS * self.ic.next_multiple_of(GROUP) + GROUP
    }

    fn groups(&self) -> usize {
        self.down.div_ceil(self.rows) * self.cuts
    }

    /// The tiles of group `i`: the first row of tiles and how many, the first tile in a row and how many.
    fn group(&self, i: usize) -> [usize; 4] {
        let (row, first) = (i / self.cuts * self.rows, i % self.cuts * GROUP);
        [row, self.rows.min(self.down - row), first, GROUP.min(self.across - first)]
    }

    /// `y = epilogue(conv(x, taps) + bias)`, of whole planes.
    pub(super) fn run(
        &self,
        x: &[f32],
        taps: &[f32],
        bias: Option<&[f32]>,
        epilogue: Epilogue<'_, f32>,
        y: &mut [f32],
        threads: Threads,
    ) {
        let plane = self.h.output * self.w.output;
        let (m, bands) = (y.len() / plane, self.down.div_ceil(self.rows));
        let work = m * plane * self.ic * 9;
        let task = TASK.max(work / (TASKS * par::threads()));
        let cut = Cut { work, parallel: PARALLEL, task, band: BAND, unit: 8, strips: bands };
        // Strips are rows of groups.
        let first = |strip: usize, strips: usize| bands * strip / strips;
        let row = |band: usize| (band * self.rows * OUT).min(self.h.output);
        let end = |strip: usize, strips: usize| row(first(strip + 1, strips)) * self.w.output;
        let run = new_run();
        cut.share([m, plane], y.chunks_mut(plane), threads, end, |share| {
            let bands = first(share.strip, share.strips)..first(share.strip + 1, share.strips);
            let mut work = WORK.take();
            let task = Task {
                of: self,
                run,
                x,
                taps,
                bias,
                epilogue,
                channel: share.row,
                row: row(bands.start),
                groups: bands.start * self.cuts..bands.end * self.cuts,
                outputs: share.rows,
                work: &mut work,
            };
            arch().dispatch(task);
            WORK.set(work);
        });
    }
}

/// 1D transform of the input.
#[inline(always)]
fn of_input<S: Simd>(simd: S, d: [S::f32s; IN]) -> [S::f32s; IN] {
    let [both, sum] = [A2 * B2, -(A2 + B2)].map(
        #[inline(always)]
        |c| simd.splat_f32s(c),
    );
    let (a, b) = (simd.splat_f32s(A), simd.splat_f32s(B));
    let (a2, b2) = (simd.splat_f32s(-A2), simd.splat_f32s(-B2));
    let even_a = simd.mul_add_e_f32s(b2, d[2], d[4]);
    let odd_a = simd.mul_f32s(a, simd.mul_add_e_f32s(b2, d[1], d[3]));
    let even_b = simd.mul_add_e_f32s(a2, d[2], d[4]);
    let odd_b = simd.mul_f32s(b, simd.mul_add_e_f32s(a2, d[1], d[3]));
    [
        simd.mul_add_e_f32s(both, d[0], simd.mul_add_e_f32s(sum, d[2], d[4])),
        simd.add_f32s(even_a, odd_a),
        simd.sub_f32s(even_a, odd_a),
        simd.add_f32s(even_b, odd_b),
        simd.sub_f32s(even_b, odd_b),
        simd.mul_add_e_f32s(both, d[1], simd.mul_add_e_f32s(sum, d[3], d[5])),
    ]
}

/// 1D transform of the taps.
#[inline(always)]
fn of_taps<S: Simd>(simd: S, g: [S::f32s; 3]) -> [S::f32s; IN] {
    const ZERO: f32 = 1.0 / (A2 * B2);
    const AT_A: f32 = 1.0 / (2.0 * A2 * (A2 - B2));
    const AT_B: f32 = 1.0 / (2.0 * B2 * (B2 - A2));
    let (mut pairs, zero) = ([[g[0]; 2]; 2], simd.splat_f32s(0.0));
    for (pair, (scale, p)) in pairs.iter_mut().zip([(AT_A, A), (AT_B, B)]) {
        let scaled = simd.mul_add_e_f32s(simd.splat_f32s(scale), g[0], zero);
        let even = simd.mul_add_e_f32s(simd.splat_f32s(scale * p * p), g[2], scaled);
        let odd = simd.mul_f32s(simd.splat_f32s(scale * p), g[1]);
        *pair = [simd.add_f32s(even, odd), simd.sub_f32s(even, odd)];
    }
    let [[a, minus_a], [b, minus_b]] = pairs;
    [simd.mul_f32s(simd.splat_f32s(ZERO), g[0]), a, minus_a, b, minus_b, g[2]]
}

/// Transform of the products, back to the output.
#[inline(always)]
fn of_products<S: Simd>(simd: S, m: [S::f32s; IN]) -> [S::f32s; OUT] {
    let (sum_a, odd_a) = (simd.add_f32s(m[1], m[2]), simd.sub_f32s(m[1], m[2]));
    let (sum_b, odd_b) = (simd.add_f32s(m[3], m[4]), simd.sub_f32s(m[3], m[4]));
    let at_b = simd.mul_f32s(simd.splat_f32s(B), odd_b);
    let at_b2 = simd.mul_f32s(simd.splat_f32s(B2), sum_b);
    let at_b3 = simd.mul_add_e_f32s(simd.splat_f32s(B * B2), odd_b, m[5]);
    [
        simd.add_f32s(m[0], simd.add_f32s(sum_a, sum_b)),
        simd.mul_add_e_f32s(simd.splat_f32s(A), odd_a, at_b),
        simd.mul_add_e_f32s(simd.splat_f32s(A2), sum_a, at_b2),
        simd.mul_add_e_f32s(simd.splat_f32s(A * A2), odd_a, at_b3),
    ]
}

/// The elements of which there are three in turn, each by itself: shuffles of vectors take them apart.
#[inline(always)]
fn thirds(x: &[f32; 3 * GROUP]) -> [[f32; GROUP]; 3] {
    let [mut a, mut b, mut c] = [[0.0; GROUP]; 3];
    for lane in 0..GROUP {
        (a[lane], b[lane], c[lane]) = (x[3 * lane], x[3 * lane + 1], x[3 * lane + 2]);
    }
    [a, b, c]
}

/// The taps of `GROUP` channels, a row for each of the nine.
#[inline(always)]
fn apart(taps: &[f32; 9 * GROUP]) -> [[f32; GROUP]; 9] {
    // Columns of the window first: of each, the rows of a channel follow each other then.
    let mut columns = [[0.0; 3 * GROUP]; 3];
    for (i, taps) in taps.as_chunks::<{ 3 * GROUP }>().0.iter().enumerate() {
        for (column, third) in columns.iter_mut().zip(thirds(taps)) {
            column[i * GROUP..][..GROUP].copy_from_slice(&third);
        }
    }
    let mut rows = [[0.0; GROUP]; 9];
    for (u, column) in columns.iter().enumerate() {
        for (v, third) in thirds(column).into_iter().enumerate() {
            rows[3 * v + u] = third;
        }
    }
    rows
}

impl Winograd {
    /// Transforms one channel of the input for the groups from `first` on: `POINTS` times `GROUP` elements for each.
    #[inline(always)]
    #[allow(clippy::needless_range_loop, reason = "lanes and points are counted alike in several arrays")]
    fn transform_input<S: Simd>(
        &self,
        simd: S,
        groups: &Range<usize>,
        channel: usize,
        x: &[f32],
        to: &mut [f32],
    ) {
        let of_point = self.of_point(groups.len());
        for (i, group) in groups.clone().enumerate() {
            let [row, rows, column, columns] = self.group(group);
            let mut tiles = [[[0.0f32; GROUP]; IN]; IN];
            for v in 0..IN {
                // The elements that tiles begin with, and those that the next ones do.
                let mut now = [0.0f32; GROUP * OUT];
                let mut next = [0.0f32; GROUP * OUT];
                for r in 0..rows {
                    let at = r * columns * OUT;
                    let Some(line) = self.line(x, (row + r) * OUT + v) else { continue };
                    self.copy(line, column * OUT, &mut now[at..][..columns * OUT]);
                    self.copy(line, column * OUT + OUT, &mut next[at..][..columns * OUT]);
                }
                // All elements of a tile in one loop: shuffles of vectors take them apart.
                let [a, b, c, d, e, f] = &mut tiles[v];
                for lane in 0..GROUP {
                    (a[lane], b[lane]) = (now[lane * OUT], now[lane * OUT + 1]);
                    (c[lane], d[lane]) = (now[lane * OUT + 2], now[lane * OUT + 3]);
                }
                for lane in 0..GROUP {
                    (e[lane], f[lane]) = (next[lane * OUT], next[lane * OUT + 1]);
                }
            }
            for part in (0..GROUP).step_by(S::F32_LANES) {
                let zero = simd.splat_f32s(0.0);
                let mut half = [[zero; IN]; IN];
                for v in 0..IN {
                    let mut line = [zero; IN];
                    for u in 0..IN {
                        line[u] = S::as_simd_f32s(&tiles[v][u][part..]).0[0];
                    }
                    half[v] = of_input(simd, line);
                }
                for u in 0..IN {
                    let column = of_input(
                        simd,
                        [half[0][u], half[1][u], half[2][u], half[3][u], half[4][u], half[5][u]],
                    );
                    for v in 0..IN {
                        let at = (v * IN + u) * of_point + (channel * groups.len() + i) * GROUP + part;
                        S::as_mut_simd_f32s(&mut to[at..][..S::F32_LANES]).0[0] = column[v];
                    }
                }
            }
        }
    }

    /// The row of the input at a row of the padded input.
    #[inline(always)]
    fn line<'x>(&self, x: &'x [f32], padded: usize) -> Option<&'x [f32]> {
        let row = usize::try_from(padded as i64 - self.h.pads[0]).ok().filter(|row| *row < self.h.input)?;
        x.get(row * self.w.input..(row + 1) * self.w.input)
    }

    /// Elements of a row from a place of the padded row on; what is padding is left as it is.
    #[inline(always)]
    fn copy(&self, line: &[f32], padded: usize, to: &mut [f32]) {
        let from = padded as i64 - self.w.pads[0];
        let skip = usize::try_from(-from).unwrap_or(0).min(to.len());
        let from = usize::try_from(from).unwrap_or(0).min(line.len());
        let n = (to.len() - skip).min(line.len() - from);
        to[skip..skip + n].copy_from_slice(&line[from..from + n]);
    }
}

/// Output channels from `channel` on, of the groups `groups`; `outputs` are their elements from row `row` on.
struct Task<'t, 'y, 'a> {
    of: &'a Winograd,
    run: u64,
    x: &'a [f32],
    taps: &'a [f32],
    bias: Option<&'a [f32]>,
    epilogue: Epilogue<'a, f32>,
    channel: usize,
    row: usize,
    groups: Range<usize>,
    outputs: Vec<&'y mut [f32]>,
    work: &'t mut Work,
}

impl WithSimd for Task<'_, '_, '_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(mut self, simd: S) {
        let of = self.of;
        let most = (BLOCK / (of.ic * POINTS * GROUP).max(1)).max(GROUPS);
        // Blocks of about the same size.
        let blocks = self.groups.len().div_ceil(most).max(1);
        let each = self.groups.len().div_ceil(blocks).next_multiple_of(GROUPS).max(1);
        let mut outputs = std::mem::take(&mut self.outputs);
        let Work { input, of: made_of, taps, products } = &mut *self.work;
        taps.resize(POINTS * of.taps_of_point(), 0.0);
        products.resize(CHANNELS * POINTS * GROUPS * GROUP, 0.0);
        for begin in self.groups.clone().step_by(each) {
            let groups = begin..self.groups.end.min(begin + each);
            let of_input = POINTS * of.of_point(groups.len());
            if input.len() < of_input {
                input.resize(of_input, 0.0);
            }
            let this = Some((self.run, groups.clone()));
            if *made_of != this {
                *made_of = None;
                let planes = self.x.chunks_exact(of.h.input * of.w.input);
                for (channel, x) in planes.take(of.ic).enumerate() {
                    of.transform_input(simd, &groups, channel, x, input);
                }
                *made_of = this;
            }
            for (i, outputs) in outputs.chunks_mut(CHANNELS).enumerate() {
                let channel = self.channel + i * CHANNELS;
                let mut output = Output {
                    of,
                    row: self.row,
                    groups: groups.clone(),
                    input: &input[..of_input],
                    taps: &self.taps[channel * of.ic * 9..],
                    bias: self.bias.map(|bias| &bias[channel..]),
                    bounds: self.epilogue.in_registers(),
                    transformed: taps,
                    products,
                    outputs,
                };
                output.run(simd);
            }
        }
        if self.epilogue.in_registers().is_none() {
            for (channel, y) in (self.channel..).zip(&mut outputs) {
                self.epilogue.apply(y, (channel * of.h.output + self.row) * of.w.output);
            }
        }
    }
}

/// Some output channels of some groups.
struct Output<'t, 'y, 'a> {
    of: &'a Winograd,
    /// The first row of the output that `outputs` have.
    row: usize,
    groups: Range<usize>,
    input: &'t [f32],
    taps: &'a [f32],
    bias: Option<&'a [f32]>,
    bounds: Option<[f32; 2]>,
    transformed: &'t mut [f32],
    products: &'t mut [f32],
    outputs: &'t mut [&'y mut [f32]],
}

impl Output<'_, '_, '_> {
    #[inline(always)]
    fn run<S: Simd>(&mut self, simd: S) {
        let channels = self.outputs.len();
        self.transform_taps(simd, channels);
        for first in (0..self.groups.len()).step_by(GROUPS) {
            let groups = GROUPS.min(self.groups.len() - first);
            self.multiply(simd, first, groups);
            for channel in 0..channels {
                for group in 0..groups {
                    self.store(simd, channel, group, self.groups.start + first + group);
                }
            }
        }
    }

    #[inline(always)]
    #[allow(clippy::needless_range_loop, reason = "taps and points are counted alike in several arrays")]
    fn transform_taps<S: Simd>(&mut self, simd: S, channels: usize) {
        let (ic, of_point) = (self.of.ic, self.of.taps_of_point());
        let row = ic.next_multiple_of(GROUP);
        for channel in 0..channels {
            let taps = &self.taps[channel * ic * 9..][..ic * 9];
            let mut last = [0.0f32; GROUP * 9];
            for (block, taps) in taps.chunks(GROUP * 9).enumerate() {
                let taps = taps.first_chunk::<{ GROUP * 9 }>().unwrap_or_else(
                    #[inline(always)]
                    || {
                        last[..taps.len()].copy_from_slice(taps);
                        &last
                    },
                );
                let taken = apart(taps);
                for part in (0..GROUP).step_by(S::F32_LANES) {
                    let zero = simd.splat_f32s(0.0);
                    let mut half = [[zero; IN]; 3];
                    for v in 0..3 {
                        let mut line = [zero; 3];
                        for u in 0..3 {
                            line[u] = S::as_simd_f32s(&taken[v * 3 + u][part..]).0[0];
                        }
                        half[v] = of_taps(simd, line);
                    }
                    for u in 0..IN {
                        let column = of_taps(simd, [half[0][u], half[1][u], half[2][u]]);
                        for v in 0..IN {
                            let at = (v * IN + u) * of_point + channel * row + block * GROUP + part;
                            let to = &mut self.transformed[at..][..S::F32_LANES];
                            S::as_mut_simd_f32s(to).0[0] = column[v];
                        }
                    }
                }
            }
        }
    }

    /// The products of `groups` groups, from group `first` of the input on.
    #[inline(always)]
    fn multiply<S: Simd>(&mut self, simd: S, first: usize, groups: usize) {
        let each = GROUP / S::F32_LANES;
        for point in 0..POINTS {
            let mut at = 0;
            while at < groups * each {
                // Registers: 16 with vectors of 8, else 32.
                if S::F32_LANES == GROUP && groups == GROUPS {
                    self.block::<S, 8, 3>(simd, point, 0, first, at);
                    at += 3;
                } else if S::F32_LANES == GROUP && groups == 2 {
                    self.block::<S, 8, 2>(simd, point, 0, first, at);
                    at += 2;
                } else if S::F32_LANES == GROUP {
                    self.block::<S, 8, 1>(simd, point, 0, first, at);
                    at += 1;
                } else {
                    self.block::<S, 4, 2>(simd, point, 0, first, at);
                    self.block::<S, 4, 2>(simd, point, 4, first, at);
                    at += 2;
                }
            }
        }
    }

    /// `R` output channels from `channel` on, `V` vectors of tiles from vector `at` of group `first` on.
    #[inline(always)]
    #[allow(clippy::needless_range_loop, reason = "constant indices keep the sums in registers")]
    fn block<S: Simd, const R: usize, const V: usize>(
        &mut self,
        simd: S,
        point: usize,
        channel: usize,
        first: usize,
        at: usize,
    ) {
        let each = GROUP / S::F32_LANES;
        let mut sums = [[simd.splat_f32s(0.0); V]; R];
        let (row, ic) = (self.groups.len() * GROUP, self.of.ic);
        let x = self.input[point * self.of.of_point(self.groups.len())..].chunks_exact(row).take(ic);
        let taps = &self.transformed[point * self.of.taps_of_point()..];
        let mut of_channel: [&[f32]; R] = [&[]; R];
        for i in 0..R {
            of_channel[i] = &taps[(channel + i) * ic.next_multiple_of(GROUP)..][..ic];
        }
        let from = first * GROUP + at * S::F32_LANES;
        for (k, x) in x.enumerate().take(ic) {
            let (vectors, _) = S::as_simd_f32s(&x[from..][..V * S::F32_LANES]);
            for i in 0..R {
                let tap = simd.splat_f32s(of_channel[i][k]);
                for j in 0..V {
                    sums[i][j] = simd.mul_add_e_f32s(tap, vectors[j], sums[i][j]);
                }
            }
        }
        for i in 0..R {
            for j in 0..V {
                let (group, lane) = ((at + j) / each, (at + j) % each * S::F32_LANES);
                let to = (((channel + i) * GROUPS + group) * POINTS + point) * GROUP + lane;
                S::as_mut_simd_f32s(&mut self.products[to..][..S::F32_LANES]).0[0] = sums[i][j];
            }
        }
    }

    /// Transforms the products of a channel and a group, and writes its part of the output, group `number`.
    #[inline(always)]
    #[allow(clippy::needless_range_loop, reason = "lanes and points are counted alike in several arrays")]
    fn store<S: Simd>(&mut self, simd: S, channel: usize, group: usize, number: usize) {
        let products = &self.products[(channel * GROUPS + group) * POINTS * GROUP..][..POINTS * GROUP];
        let bias = simd.splat_f32s(self.bias.map_or(0.0, |bias| bias[channel]));
        let bounds = self.bounds;
        let mut lines = [[0.0f32; GROUP * OUT]; OUT];
        let mut out = [[[0.0f32; GROUP]; OUT]; OUT];
        for part in (0..GROUP).step_by(S::F32_LANES) {
            let zero = simd.splat_f32s(0.0);
            let mut half = [[zero; OUT]; IN];
            for v in 0..IN {
                let mut line = [zero; IN];
                for u in 0..IN {
                    line[u] = S::as_simd_f32s(&products[(v * IN + u) * GROUP + part..][..S::F32_LANES]).0[0];
                }
                half[v] = of_products(simd, line);
            }
            for u in 0..OUT {
                let column = of_products(
                    simd,
                    [half[0][u], half[1][u], half[2][u], half[3][u], half[4][u], half[5][u]],
                );
                for v in 0..OUT {
                    let mut sum = simd.add_f32s(column[v], bias);
                    if let Some([low, high]) = bounds {
                        sum = clamp(simd, sum, low, high);
                    }
                    S::as_mut_simd_f32s(&mut out[v][u][part..][..S::F32_LANES]).0[0] = sum;
                }
            }
        }
        for v in 0..OUT {
            for lane in 0..GROUP {
                for u in 0..OUT {
                    lines[v][lane * OUT + u] = out[v][u][lane];
                }
            }
        }
        let of = self.of;
        let (height, width) = (of.h.output, of.w.output);
        let [row, rows, column, columns] = of.group(number);
        let column = column * OUT;
        let n = (columns * OUT).min(width - column);
        let plane = &mut self.outputs[channel][..];
        for r in 0..rows {
            for v in 0..OUT.min(height - (row + r) * OUT) {
                let to = &mut plane[((row + r) * OUT + v - self.row) * width + column..];
                let from = &lines[v][r * columns * OUT..];
                // The next row overwrites elements beyond the end of this one.
                match (to.first_chunk_mut::<GROUP>(), from.first_chunk::<GROUP>()) {
                    (Some(to), Some(from)) if of.cuts == 1 && n <= GROUP => *to = *from,
                    _ => to[..n].copy_from_slice(&from[..n]),
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::expr::Function;
    use crate::ops::conv::Conv;
    use crate::ops::conv::direct::tests::reference;
    use crate::ops::par::of_threads;
    use crate::ops::test_util::{assert_near, facts, run_f32, tensor};
    use crate::ops::{Activation, WindowAttrs};

    /// The sums have up to 1,530 terms of about 0.3, of which any may cancel out.
    const NEAR: f64 = 1e-4;

    /// Sizes with parts of tiles at both ends, several rows of tiles in a group, rows of several groups, parts of
    /// `CHANNELS` and of pairs, several blocks, and padding that is not the same on all sides.
    #[test]
    fn tiles_compute_the_definition() {
        let sizes = [
            ([1, 16, 13, 13], 9, [1, 1, 1, 1]),
            ([1, 7, 57, 11], 13, [1, 1, 1, 1]),
            ([1, 3, 9, 75], 9, [1, 0, 2, 3]),
            ([1, 5, 30, 27], 8, [0, 2, 1, 0]),
            ([1, 4, 12, 14], 3, [-1, 1, 2, -2]),
            ([1, 1, 3, 4], 1, [0, 0, 0, 0]),
            ([1, 170, 26, 26], 2, [1, 1, 1, 1]),
        ];
        for (x, oc, pads) in sizes {
            let window = WindowAttrs { pads: pads.to_vec(), ..WindowAttrs::default() };
            let op = Conv { window, ..Conv::default() };
            let (x, w, b) = (tensor(&x, 1), tensor(&[oc, x[1], 3, 3], 2), tensor(&[oc], 3));
            let inputs = [Some(x.clone()), Some(w.clone()), Some(b.clone())];
            let dims = op.resolve(&facts(&op, &inputs, 1).unwrap()).unwrap().0;
            let tiles = Winograd::of(dims.ic, &dims.axes).unwrap();
            let values = [&x, &w, &b].map(|t| t.to_f32s().unwrap());
            let run = |bias: Option<&[f32]>, activation: Activation, threads| {
                let mut y = vec![9.0f32; dims.out_len()];
                of_threads(3, || tiles.run(&values[0], &values[1], bias, activation.into(), &mut y, threads));
                crate::graph::Tensor::new([y.len()], &y).unwrap()
            };
            let want: Vec<f64> = reference(&op, &x, &w, Some(&b)).1.iter().map(|v| v.max(0.0)).collect();
            assert_near(&run(Some(&values[2]), Activation::of(Function::Relu), Threads::One), &want, NEAR);
            assert_near(&run(Some(&values[2]), Activation::of(Function::Relu), Threads::All), &want, NEAR);
            let silu = |v: &f64| v / (1.0 + (-v).exp());
            let want: Vec<f64> = reference(&op, &x, &w, None).1.iter().map(silu).collect();
            assert_near(&run(None, Activation::of(Function::Swish), Threads::All), &want, NEAR);
        }
    }

    #[test]
    fn convolutions_in_groups_use_tiles() {
        let op = Conv {
            window: WindowAttrs { pads: vec![1, 1, 1, 1], ..WindowAttrs::default() },
            group: 2,
            ..Conv::default()
        };
        let (x, w) = (tensor(&[1, 64, 32, 32], 1), tensor(&[128, 32, 3, 3], 2));
        let inputs = [Some(x.clone()), Some(w.clone())];
        let dims = op.resolve(&facts(&op, &inputs, 1).unwrap()).unwrap().0;
        assert!(Winograd::new(dims.ic, dims.oc, &dims.axes).is_some());
        assert_near(&run_f32(&op, &inputs).unwrap(), &reference(&op, &x, &w, None).1, NEAR);
    }

    #[test]
    fn only_what_gets_faster_is_done_in_tiles() {
        let of = |ic, oc, output: usize, stride: usize| {
            let input = output * stride;
            let a = WindowAxis { input, output, kernel: 3, stride, dilation: 1, pads: [1, 1] };
            Winograd::new(ic, oc, &[WindowAxis::UNIT, a, a]).is_some()
        };
        assert!(of(64, 64, 56, 1));
        assert!(!of(64, 64, 28, 2));
        assert!(!of(64, 64, 7, 1));
        assert!(!of(3, 64, 224, 1));
        assert!(!of(64, 4, 56, 1));
    }
}
