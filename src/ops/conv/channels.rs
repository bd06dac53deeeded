//! Convolutions on the CPU whose vectors are output channels: for images that are too small to fill vectors of places well,
//! and strides.
//!
//! The input is the padded copy of [`Shifted`], or lies as that would. A tile has some neighbouring places of one row, whose
//! elements are read one at a time, and two vectors of channels. The weights lie as tiles read them, which is done once, at
//! load. Sums lie by places, and are turned around into planes at the end.

use std::cell::Cell;
use std::ops::Range;
use std::sync::Arc;

use pulp::{Simd, WithSimd};

use super::shifted::{BAND, Copied, LANES, PANEL, Part, Shifted};
use crate::dot::Ahead;
use crate::graph::Tensor;
use crate::ops::activation::Epilogue;
use crate::ops::linalg::product::Threads;
use crate::ops::linalg::share::{Cut, PARALLEL, TASK, new_run};
use crate::ops::linalg::tile::{clamp, lanes};
use crate::ops::{PackKey, Packed, WindowAxis, par};
use crate::simd::arch;

/// Vectors of a tile for each of its places.
const VECTORS: usize = 2;
/// Taps side by side that a tile reads together.
const TOGETHER: usize = 3;
/// The shortest sums for which it pays to turn them around, and those of windows of one tap.
const LEAST_DEPTH: usize = 256;
const LEAST_DEPTH_OF_ONE: usize = 128;
/// Of the places that [`Shifted`] computes, the share above which it is as fast.
const FILLED: f64 = 0.97;
/// The same of a product's places, where windows have one tap.
const FILLED_OF_ONE: f64 = 0.9;
/// Weights of a block that are multiplied together, at most: half of a small first cache.
const AT_ONCE: usize = 4 << 10;
/// The bias of a block that has none.
const NO_BIAS: &[f32] = &[0.0; VECTORS * LANES];

thread_local! {
    static WORK: Cell<Work> = Cell::new(Work::default());
}

#[derive(Default)]
struct Work {
    copied: Copied,
    /// The sums of all places of each block of channels.
    sums: Vec<f32>,
}

/// A convolution of one group of one image over two dimensions.
#[derive(Clone, Copy)]
pub(super) struct Channels {
    of: Shifted,
    /// Elements of the vectors that a tile has for each place: channels of a block.
    block: usize,
}

impl Channels {
    /// `None` where [`Shifted`] is, or is as fast, for channels that fill no whole blocks, and for rows that are long.
    pub(super) fn new(ic: usize, oc: usize, axes: &[WindowAxis; 3]) -> Option<Channels> {
        let (of, block) = (Shifted::of(ic, axes)?, VECTORS * lanes());
        let small = of.row_at_once() <= 2 * PANEL && of.w.output * block <= PANEL;
        let (least, pays) = match of.taps() {
            1 => (LEAST_DEPTH_OF_ONE, of.filled(lanes()) < FILLED_OF_ONE),
            _ => (LEAST_DEPTH, of.w.stride > 1 || of.filled(lanes()) < FILLED),
        };
        let fits = oc > 0 && oc.is_multiple_of(block) && of.depth() >= least && small;
        (fits && pays).then_some(Channels { of: Shifted { most: AT_ONCE / block, ..of }, block })
    }

    /// Constant weights of all groups, as the tiles read them.
    pub(super) fn pack(&self, source: &Tensor) -> Option<Packed> {
        let (depth, block) = (self.of.depth(), self.block);
        let numbers = [u32::try_from(depth).ok()?, u32::try_from(block).ok()?, 0, 0];
        // Bytes, as a tensor of a file may begin anywhere.
        let turn = move |from: &[u8], to: &mut [u8], [rows, columns]: [usize; 2]| {
            let ((from, _), (to, _)) = (from.as_chunks::<4>(), to.as_chunks_mut::<4>());
            let len = depth * block;
            par::share(from.chunks_exact(len).zip(to.chunks_exact_mut(len)), |(from, to)| {
                for (c, to) in to.chunks_exact_mut(rows).enumerate() {
                    let column = from[c..].iter().step_by(columns);
                    to.iter_mut().zip(column).for_each(|(to, from)| *to = *from);
                }
            });
        };
        Some(Packed {
            source: source.clone(),
            key: PackKey { layout: "channels of taps", numbers },
            bytes: source.info().bytes(),
            pack: Arc::new(move |source, to| {
                turn(source.bytes(), to, [block, depth]);
                Ok(())
            }),
            optional: false,
            lines: None,
            in_place: None,
            unpack: Some(Arc::new(move |packed, to| {
                turn(packed, to, [depth, block]);
            })),
        })
    }

    /// The same with longer rows, where those are plain: fewer of a tile's places are left over. As many rows are left as
    /// `threads` want strips of `m` channels.
    fn joined(&self, m: usize, threads: Threads) -> Channels {
        let (of, rows) = (self.of, self.of.h.output);
        if !(of.h.is_plain() && of.w.is_plain()) {
            return *self;
        }
        let tasks = if threads == Threads::All { par::threads() } else { 1 };
        let strips = tasks.div_ceil((m / BAND).max(1)).min(rows);
        let joined = (1..=rows / strips).rev().find(|joined| rows.is_multiple_of(*joined)).unwrap_or(1);
        Channels { of: of.joined(joined), ..*self }
    }

    /// `y = epilogue(conv(x, weights) + bias)`, of whole planes; `weights` are packed.
    pub(super) fn run(
        &self,
        x: &[f32],
        weights: &[f32],
        bias: Option<&[f32]>,
        epilogue: Epilogue<'_, f32>,
        y: &mut [f32],
        threads: Threads,
    ) {
        let n = self.of.h.output * self.of.w.output;
        let m = y.len() / n;
        let this = self.joined(m, threads);
        let (h, w) = (this.of.h, this.of.w);
        let work = m * n * this.of.depth();
        let cut = Cut {
            work,
            parallel: PARALLEL,
            task: TASK.max(work / par::threads()),
            band: BAND.next_multiple_of(self.block),
            unit: self.block,
            strips: h.output,
        };
        let first = |strip: usize, strips: usize| h.output * strip / strips;
        let end = |strip: usize, strips: usize| first(strip + 1, strips) * w.output;
        let run = new_run();
        cut.share([m, n], y.chunks_mut(n), threads, end, |mut share| {
            let mut work = WORK.take();
            let row = first(share.strip, share.strips);
            let rows = share.rows.first().map_or(0, |y| y.len()) / w.output;
            let each = this.of.rows_at_once(rows, share.rows.len());
            for from in (0..rows).step_by(each) {
                let part =
                    Part { row: row + from, rows: each.min(rows - from), column: 0, columns: w.output };
                arch().dispatch(Task {
                    of: this,
                    run,
                    x,
                    weights,
                    bias,
                    bounds: epilogue.in_registers(),
                    channel: share.row,
                    part,
                    at: from * w.output,
                    outputs: &mut share.rows,
                    work: &mut work,
                });
            }
            if epilogue.in_registers().is_none() {
                for (channel, y) in (share.row..).zip(&mut share.rows) {
                    epilogue.apply(y, channel * n + row * w.output);
                }
            }
            WORK.set(work);
        });
    }
}

/// Output channels from `channel` on, of which `outputs` has the elements of `part` from element `at` on.
struct Task<'t, 'y, 'a> {
    of: Channels,
    run: u64,
    x: &'a [f32],
    weights: &'a [f32],
    bias: Option<&'a [f32]>,
    bounds: Option<[f32; 2]>,
    channel: usize,
    part: Part,
    at: usize,
    outputs: &'t mut [&'y mut [f32]],
    work: &'t mut Work,
}

impl WithSimd for Task<'_, '_, '_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let Task { of: Channels { of, block }, part, channel, outputs, work, .. } = self;
        let Work { copied, sums } = work;
        let (depth, taps, places) = (of.depth(), of.taps(), part.rows * part.columns);
        // Squares are turned around: a few places after the last ones are read.
        let each = (places + LANES) * block;
        // Blocks whose sums are not complete after a step.
        let open = if of.channels() < of.ic { outputs.len() / block } else { 1 };
        sums.resize(sums.len().max(open * each), 0.0);
        let beside = of.w.kernel == TOGETHER && of.w.stride == 1 && of.w.dilation == 1;
        let together = S::F32_LANES > 8 && beside;
        let most = if together { most_places::<S, TOGETHER>() } else { most_places::<S, 1>() };
        let layout = of.layout(part);
        let (ahead, blocks) = (Ahead::new(), outputs.len() / block);
        let count = part.rows * part.columns.div_ceil(most);
        let of_block = |step: &Range<usize>, i: usize| {
            let first = (channel + i * block) * depth + step.start * taps * block;
            &self.weights[first..][..step.len() * taps * block]
        };
        let mut steps = of.steps().peekable();
        if let Some(first) = steps.peek().filter(|_| self.at == 0) {
            ahead.fetch_second(of_block(first, 0));
        }
        while let Some(step) = steps.next() {
            let (panel, offsets) = copied.of_step(simd, &of, self.run, self.x, step.clone(), part);
            let (first, last) = (step.start == 0, step.end * taps == depth);
            for (i, outputs) in outputs.chunks_exact_mut(block).enumerate() {
                let channel = channel + i * block;
                // Those of the next block come while these are multiplied.
                let next = match steps.peek() {
                    _ if i + 1 < blocks => of_block(&step, i + 1),
                    Some(step) => of_block(step, 0),
                    None => &[],
                };
                // So do the next step's channels.
                if let Some(step) = steps.peek() {
                    let at = |i: usize| step.start + step.len() * i / blocks;
                    (at(i)..at(i + 1)).for_each(|c| ahead.fetch_second(of.read(self.x, c, part)));
                }
                let start = first.then(|| &self.bias.map_or(NO_BIAS, |bias| &bias[channel..])[..block]);
                let own = &mut sums[i % open * each..][..each];
                let tiles = Block {
                    panel,
                    offsets,
                    weights: of_block(&step, i),
                    next,
                    each: next.len().div_ceil(count),
                    start,
                    sums: own,
                    part,
                    pitch: layout.pitch,
                };
                if together {
                    simd.vectorize(Tiles::<TOGETHER>(tiles));
                } else {
                    simd.vectorize(Tiles::<1>(tiles));
                }
                if last {
                    let (own, _) = S::as_mut_simd_f32s(own);
                    turn(simd, own, places, (self.at, self.bounds), outputs);
                }
            }
        }
    }
}

/// A block of channels over all places of a part, in one step.
struct Block<'a> {
    panel: &'a [f32],
    offsets: &'a [u32],
    weights: &'a [f32],
    /// What is read after this block, and how much of it comes with each tile.
    next: &'a [f32],
    each: usize,
    /// What the sums begin with; `None` where they go on.
    start: Option<&'a [f32]>,
    sums: &'a mut [f32],
    part: Part,
    pitch: usize,
}

/// Its tiles, of windows whose rows have `K` taps side by side.
struct Tiles<'a, const K: usize>(Block<'a>);

impl<const K: usize> WithSimd for Tiles<'_, K> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let Block { panel, offsets, weights, next, each, start, sums, part, pitch } = self.0;
        let most = most_places::<S, K>();
        let (ahead, mut next) = (Ahead::new(), next.chunks(each.max(1)));
        let (weights, _) = S::as_simd_f32s(weights);
        let (sums, _) = S::as_mut_simd_f32s(sums);
        let start = start.map(|start| S::as_simd_f32s(start).0);
        for row in 0..part.rows {
            let mut column = 0;
            while column < part.columns {
                // Tiles of about the same width.
                let left = part.columns - column;
                let n = left.div_ceil(left.div_ceil(most));
                let panel = &panel[row * pitch + column..];
                let sums = &mut sums[(row * part.columns + column) * VECTORS..];
                ahead.fetch_second(next.next().unwrap_or_default());
                tile_of::<S, K>(simd, n, (panel, offsets, weights), start, sums);
                column += n;
            }
        }
    }
}

/// The tile of `n` places, of windows whose rows have `K` taps side by side.
#[inline(always)]
fn tile_of<S: Simd, const K: usize>(
    simd: S,
    n: usize,
    operands: (&[f32], &[u32], &[S::f32s]),
    start: Option<&[S::f32s]>,
    sums: &mut [S::f32s],
) {
    match n {
        // Not with 16 registers, and no tile of them is wider.
        _ if S::F32_LANES == 8 && (K > 1 || n > 6) => {}
        1 => tile::<S, 1, K>(simd, operands, start, sums),
        2 => tile::<S, 2, K>(simd, operands, start, sums),
        3 => tile::<S, 3, K>(simd, operands, start, sums),
        4 => tile::<S, 4, K>(simd, operands, start, sums),
        5 => tile::<S, 5, K>(simd, operands, start, sums),
        6 => tile::<S, 6, K>(simd, operands, start, sums),
        7 => tile::<S, 7, K>(simd, operands, start, sums),
        8 => tile::<S, 8, K>(simd, operands, start, sums),
        9 => tile::<S, 9, K>(simd, operands, start, sums),
        10 => tile::<S, 10, K>(simd, operands, start, sums),
        11 => tile::<S, 11, K>(simd, operands, start, sums),
        12 => tile::<S, 12, K>(simd, operands, start, sums),
        _ if K > 1 => {}
        13 => tile::<S, 13, K>(simd, operands, start, sums),
        _ => tile::<S, 14, K>(simd, operands, start, sums),
    }
}

/// Places of a tile, at most: its sums, the weights and an element of the input fill the registers.
#[inline(always)]
fn most_places<S: Simd, const K: usize>() -> usize {
    match (S::F32_LANES, K) {
        (8, _) => 6,
        (_, 1) => 14,
        _ => 12,
    }
}

/// Adds to the sums of `P` places, which begin with `start` where that is given.
#[inline(always)]
#[allow(clippy::needless_range_loop, reason = "constant indices keep the sums in registers")]
fn tile<S: Simd, const P: usize, const K: usize>(
    simd: S,
    (panel, offsets, weights): (&[f32], &[u32], &[S::f32s]),
    start: Option<&[S::f32s]>,
    sums: &mut [S::f32s],
) {
    let sums = &mut sums[..P * VECTORS];
    let mut own = [[simd.splat_f32s(0.0); VECTORS]; P];
    for p in 0..P {
        own[p].copy_from_slice(&start.unwrap_or(&sums[p * VECTORS..])[..VECTORS]);
    }
    let own = accumulated::<S, P, K>(simd, (panel, offsets, weights), own);
    for p in 0..P {
        sums[p * VECTORS..][..VECTORS].copy_from_slice(&own[p]);
    }
}

/// An array of its own: what else is done with the sums would keep them in memory, and each step would store them all.
#[inline(always)]
#[allow(clippy::needless_range_loop, reason = "constant indices keep the sums in registers")]
fn accumulated<S: Simd, const P: usize, const K: usize>(
    simd: S,
    (panel, offsets, weights): (&[f32], &[u32], &[S::f32s]),
    mut sums: [[S::f32s; VECTORS]; P],
) -> [[S::f32s; VECTORS]; P] {
    if K == 1 {
        for (offset, weights) in offsets.iter().zip(weights.chunks_exact(VECTORS)) {
            let x = &panel[*offset as usize..][..P];
            for p in 0..P {
                let x = simd.splat_f32s(x[p]);
                for v in 0..VECTORS {
                    sums[p][v] = simd.mul_add_e_f32s(x, weights[v], sums[p][v]);
                }
            }
        }
        return sums;
    }
    // An element of the input is read once for all taps of a row that see it.
    for (offset, weights) in offsets.chunks_exact(K).zip(weights.chunks_exact(K * VECTORS)) {
        let x = &panel[offset[0] as usize..][..P + K - 1];
        for q in 0..P + K - 1 {
            let x = simd.splat_f32s(x[q]);
            for k in 0..K {
                if k <= q && q - k < P {
                    for v in 0..VECTORS {
                        sums[q - k][v] = simd.mul_add_e_f32s(x, weights[k * VECTORS + v], sums[q - k][v]);
                    }
                }
            }
        }
    }
    sums
}

/// Writes the sums of `places`, which have a block of channels each, from element `at` of each channel on.
#[inline(always)]
fn turn<S: Simd>(
    simd: S,
    sums: &mut [S::f32s],
    places: usize,
    (at, bounds): (usize, Option<[f32; 2]>),
    outputs: &mut [&mut [f32]],
) {
    if let Some([low, high]) = bounds {
        for sum in &mut sums[..places * VECTORS] {
            *sum = clamp(simd, *sum, low, high);
        }
    }
    let (sums, block) = (bytemuck::cast_slice::<S::f32s, f32>(sums), outputs.len());
    for (group, outputs) in outputs.chunks_mut(LANES).enumerate() {
        for first in (0..places).step_by(LANES) {
            let mut square = [[0.0f32; LANES]; LANES];
            for place in 0..LANES {
                let from = &sums[(first + place) * block + group * LANES..][..outputs.len()];
                match from.first_chunk::<LANES>() {
                    Some(from) => (0..LANES).for_each(
                        #[inline(always)]
                        |channel| square[channel][place] = from[channel],
                    ),
                    None => from.iter().zip(&mut square).for_each(|(sum, row)| row[place] = *sum),
                }
            }
            let n = LANES.min(places - first);
            for (y, row) in outputs.iter_mut().zip(&square) {
                let to = &mut y[at + first..][..n];
                match to.first_chunk_mut::<LANES>() {
                    Some(to) => *to = *row,
                    None => to.copy_from_slice(&row[..n]),
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
    use crate::ops::test_util::{assert_near, facts, tensor};
    use crate::ops::{Activation, WindowAttrs};

    fn window(kernel: usize, stride: usize) -> WindowAttrs {
        let (pad, stride) = (kernel as i64 / 2, stride as i64);
        WindowAttrs { pads: vec![pad; 4], strides: vec![stride; 2], ..WindowAttrs::default() }
    }

    /// Tiles of every width, sums in one step and in several, parts of some rows, several tasks; weights that are packed and
    /// unpacked.
    #[test]
    fn blocks_of_channels_compute_the_definition() {
        if !crate::ops::linalg::tile::has_vectors() {
            return;
        }
        for (x, [oc, kernel], stride) in [
            ([1, 32, 13, 13], [64, 3], 1),
            ([1, 70, 7, 9], [128, 3], 1),
            ([1, 32, 40, 41], [32, 3], 2),
            ([1, 11, 5, 11], [96, 5], 1),
            ([1, 130, 30, 15], [64, 3], 2),
            ([1, 64, 20, 3], [192, 3], 1),
            // One tap: rows that are joined to one, to some, and none.
            ([1, 300, 7, 7], [64, 1], 1),
            ([1, 256, 6, 3], [32, 1], 1),
            ([1, 513, 5, 2], [96, 1], 1),
            ([1, 260, 9, 10], [64, 1], 2),
        ] {
            let op = Conv { window: window(kernel, stride), ..Conv::default() };
            let (x, w, b) = (tensor(&x, 1), tensor(&[oc, x[1], kernel, kernel], 2), tensor(&[oc], 3));
            let inputs = [Some(x.clone()), Some(w.clone()), Some(b.clone())];
            let dims = op.resolve(&facts(&op, &inputs, 1).unwrap()).unwrap().0;
            let channels = Channels::new(dims.ic, dims.oc, &dims.axes).unwrap();
            let packed = channels.pack(&w).unwrap();
            let mut weights = vec![0.0f32; oc * dims.ic * kernel * kernel];
            (packed.pack)(&w, bytemuck::cast_slice_mut(&mut weights)).unwrap();
            // Where no number is aligned.
            let mut again = vec![0u8; 1 + packed.bytes];
            (packed.unpack.unwrap())(bytemuck::cast_slice(&weights), &mut again[1..]);
            assert_eq!(again[1..], *w.bytes());
            let (x_values, bias) = (x.to_f32s().unwrap(), b.to_f32s().unwrap());
            let z = tensor(&[dims.out_len()], 4).to_f32s().unwrap();
            let run = |bias: Option<&[f32]>, epilogue: Epilogue<'_, f32>, threads| {
                let mut y = vec![9.0f32; dims.out_len()];
                of_threads(3, || channels.run(&x_values, &weights, bias, epilogue, &mut y, threads));
                Tensor::new([y.len()], &y).unwrap()
            };
            let relu = Activation::of(Function::Relu);
            let sums = reference(&op, &x, &w, Some(&b)).1;
            let want: Vec<f64> = sums.iter().map(|v| v.max(0.0)).collect();
            for threads in [Threads::One, Threads::All] {
                assert_near(&run(Some(&bias), relu.into(), threads), &want, 1e-4);
            }
            let want: Vec<f64> = sums.iter().zip(&z).map(|(v, z)| (v + f64::from(*z)).max(0.0)).collect();
            let summed = Epilogue { summand: Some(&z[..]), ..relu.into() };
            assert_near(&run(Some(&bias), summed, Threads::All), &want, 1e-4);
            let want = reference(&op, &x, &w, None).1;
            assert_near(&run(None, Activation::None.into(), Threads::All), &want, 1e-4);
        }
    }

    #[test]
    fn other_convolutions_are_none() {
        let of = |ic: usize, oc: usize, side: usize, kernel: usize, stride: usize| {
            let x = [Some(tensor(&[1, ic, side, side], 1)), Some(tensor(&[oc, ic, kernel, kernel], 2))];
            let op = Conv { window: window(kernel, stride), ..Conv::default() };
            let dims = op.resolve(&facts(&op, &x, 1).unwrap()).unwrap().0;
            Channels::new(dims.ic, dims.oc, &dims.axes).is_some()
        };
        let block = VECTORS * lanes();
        assert!(of(32, block, 7, 3, 1) && of(32, block, 80, 3, 2));
        assert!(of(256, block, 5, 1, 1) && of(256, block, 9, 1, 2));
        // Blocks that are not whole, short sums, and rows that fill vectors.
        assert!(!of(32, block + 1, 7, 3, 1) && !of(16, block, 80, 3, 2) && !of(120, block, 5, 1, 1));
        assert!(!of(256, block, 32, 1, 1) && !of(256, block, 64, 1, 2) && !of(32, block, 160, 3, 1));
        let long =
            WindowAxis { input: 99_999, output: 50_000, kernel: 3, stride: 2, dilation: 1, pads: [1, 1] };
        assert!(Channels::new(256, block, &[WindowAxis::UNIT, WindowAxis::UNIT, long]).is_none());
    }
}
