//! Rows of A rounded to bytes: each block of a row has a scale, products with codes are sums of integers. The codes are
//! read where they lie, so weights are in memory once.

use std::ops::Range;

use bytemuck::{cast_slice, cast_slice_mut};
use half::f16;

use super::{MatMulNBits, Sizes};
use crate::dot::{Dot, Unit, WithDot, first_of_four, round_block, unrolled};
use crate::ops::halves::Half;
use crate::ops::linalg::coded::panel::{self, Columns, Grain, Panel};
use crate::ops::linalg::coded::{AHEAD, BAND, PANEL_ROWS, PARALLEL, TASK, in_streams};
use crate::ops::linalg::product::Threads;
use crate::ops::linalg::share::{Cut, Share};
use crate::simd::wide;

/// Columns of one step; tasks begin at its multiples.
const STRIP: usize = 4;
/// Numbers that are read after the last one that counts.
const BEYOND: usize = 64;

/// Numbers of either width.
#[derive(Clone, Copy, Debug)]
pub(super) enum Numbers<'a> {
    F32(&'a [f32]),
    F16(&'a [f16]),
}

impl<'a> Numbers<'a> {
    /// `count` lines of `len` from line `first` on, and perhaps more after them; `wide` has them where they are widened.
    #[inline(always)]
    fn lines<'b>(self, first: usize, count: usize, len: usize, wide: &'b mut Vec<f32>) -> &'b [f32]
    where
        'a: 'b,
    {
        match self {
            Numbers::F32(all) => all.get(first * len..).unwrap_or(&[]),
            Numbers::F16(all) => {
                let all = all.get(first * len..).and_then(|all| all.get(..count * len)).unwrap_or(&[]);
                wide.resize(count * len + BEYOND, 0.0);
                f16::widen_all(all, wide.get_mut(..all.len()).unwrap_or_default());
                wide
            }
        }
    }
}

/// A scale of either width.
trait Scale: Copy {
    /// It as `float32`.
    fn wide(self) -> f32;

    /// As [`RowDot::pick`](crate::dot::RowDot::pick).
    fn pick<D: Dot>(dot: D, from: &[Self], places: D::Sums) -> D::Reals;
}

impl Scale for f32 {
    #[inline(always)]
    fn wide(self) -> f32 {
        self
    }

    #[inline(always)]
    fn pick<D: Dot>(dot: D, from: &[f32], places: D::Sums) -> D::Reals {
        dot.pick(from, places)
    }
}

impl Scale for f16 {
    #[inline(always)]
    fn wide(self) -> f32 {
        self.to_f32()
    }

    #[inline(always)]
    fn pick<D: Dot>(dot: D, from: &[f16], places: D::Sums) -> D::Reals {
        dot.pick_halves(cast_slice(from), places)
    }
}

/// Few rows of A in the order in which codes lie in vectors.
#[derive(Debug)]
struct Rounded {
    /// Vectors of codes of a column.
    vectors: usize,
    /// Of each row and vector a vector of signed bytes for the first code of every byte, one for the second and so on.
    values: Vec<u8>,
    /// Of each row and vector what the sums begin with: what the middle code takes away.
    starts: Vec<i32>,
    /// Of each row and vector the scales of the sums.
    scales: Vec<f32>,
    /// Of each row and block the sum of its rounded elements.
    sums: Vec<f32>,
    /// Of each row and four vectors the starts of four sums together, as `RowDot::fours` places them; none where blocks
    /// have fewer sums.
    four_starts: Vec<i32>,
    /// The scales of those.
    four_scales: Vec<f32>,
}

/// Where the parts of a row are written.
struct Row<'a> {
    values: &'a mut [u8],
    starts: &'a mut [i32],
    scales: &'a mut [f32],
    sums: &'a mut [f32],
}

/// Some vectors of a row.
#[derive(Clone, Copy)]
struct Part<'a> {
    values: &'a [u8],
    starts: &'a [i32],
    scales: &'a [f32],
}

impl<'a> Part<'a> {
    /// Parts of `lanes` sums and as many vectors of values as `bytes` have.
    #[inline(always)]
    fn each(self, lanes: usize, bytes: usize) -> impl Iterator<Item = Part<'a>> {
        let Part { values, starts, scales } = self;
        let values = values.chunks_exact(bytes);
        let each = values.zip(starts.chunks_exact(lanes)).zip(scales.chunks_exact(lanes));
        each.map(|((values, starts), scales)| Part { values, starts, scales })
    }
}

impl Rounded {
    /// Rounds rows of `op.k` elements for vectors of `lanes` sums. Sums begin with what `middle` times the elements
    /// takes away.
    fn of(op: MatMulNBits, a: &[f32], lanes: usize, middle: i32) -> Rounded {
        let (rows, blocks) = (a.len() / op.k.max(1), op.blocks());
        // Multiplied four at a time.
        let vectors = op.bytes().div_ceil(4 * lanes).next_multiple_of(4);
        let (sums, values) = (vectors * lanes, vectors * lanes * 4 * op.parts());
        let mut all = Rounded {
            vectors,
            values: vec![0; rows * values],
            starts: vec![0; rows * sums],
            scales: vec![0.0; rows * sums],
            sums: vec![0.0; rows * blocks],
            four_starts: Vec::new(),
            four_scales: Vec::new(),
        };
        let each = a
            .chunks_exact(op.k.max(1))
            .zip(all.values.chunks_mut(values.max(1)))
            .zip(all.starts.chunks_mut(sums.max(1)))
            .zip(all.scales.chunks_mut(sums.max(1)))
            .zip(all.sums.chunks_mut(blocks.max(1)));
        each.for_each(|((((a, values), starts), scales), sums)| {
            let row = Row { values, starts, scales, sums };
            wide(
                #[inline(always)]
                || match op.bits {
                    2 => row.round::<4>(op, a, lanes, middle),
                    4 => row.round::<2>(op, a, lanes, middle),
                    _ => row.round::<1>(op, a, lanes, middle),
                },
            );
        });
        if op.block * op.bits >= 32 * 4 {
            all.join_fours(lanes);
        }
        all
    }

    /// Makes the starts and scales of four sums together.
    fn join_fours(&mut self, lanes: usize) {
        let fours = self.starts.chunks_exact(4 * lanes).zip(self.scales.chunks_exact(4 * lanes));
        for (starts, scales) in fours {
            for i in 0..lanes {
                let first = first_of_four(i, lanes);
                self.four_starts.push(starts[first..first + 4].iter().sum());
                self.four_scales.push(scales[first]);
            }
        }
    }

    /// Of a row the values of each four vectors, and the starts and scales of four sums together.
    #[inline(always)]
    fn fours(&self, row: usize, lanes: usize, parts: usize) -> Part<'_> {
        let fours = self.vectors / 4 * lanes;
        let of = row * fours..(row + 1) * fours;
        let starts = self.four_starts.get(of.clone()).unwrap_or_default();
        let scales = self.four_scales.get(of).unwrap_or_default();
        let values = self.vectors * lanes * 4 * parts;
        let values = self.values.get(row * values..(row + 1) * values).unwrap_or_default();
        Part { values, starts, scales }
    }

    /// Of a row the values, the starts and the scales of each vector.
    #[inline(always)]
    fn vectors(&self, row: usize, lanes: usize, parts: usize) -> impl Iterator<Item = Part<'_>> {
        let sums = self.vectors * lanes;
        let of = row * sums..(row + 1) * sums;
        let starts = self.starts.get(of.clone()).unwrap_or_default();
        let scales = self.scales.get(of.clone()).unwrap_or_default();
        let values = self.values.get(of.start * 4 * parts..of.end * 4 * parts).unwrap_or_default();
        Part { values, starts, scales }.each(lanes, lanes * 4 * parts)
    }
}

impl Row<'_> {
    /// Rounds the row `a` for codes of which `PARTS` are in a byte.
    #[inline(always)]
    fn round<const PARTS: usize>(self, op: MatMulNBits, a: &[f32], lanes: usize, middle: i32) {
        let width = 4 * lanes;
        let mut rounded = vec![0u8; self.values.len()];
        // Sums of a block; its scale belongs to each of them.
        let per_block = (op.block / (4 * PARTS)).max(1);
        let blocks = rounded.chunks_mut(op.block).zip(self.scales.chunks_mut(per_block));
        for (a, (to, scales)) in a.chunks(op.block).zip(blocks) {
            scales.fill(round_block(a, to));
        }
        let of_sum = |four: &[u8]| four.iter().map(|v| i32::from(*v as i8)).sum::<i32>();
        for (start, four) in self.starts.iter_mut().zip(rounded.chunks_exact(4 * PARTS)) {
            *start = of_sum(four);
        }
        let each = self.starts.chunks(per_block).zip(self.scales.chunks(per_block));
        for (to, (sums, scales)) in self.sums.iter_mut().zip(each) {
            *to = sums.iter().sum::<i32>() as f32 * scales.first().copied().unwrap_or(0.0);
        }
        self.starts.iter_mut().for_each(|start| *start *= -middle);
        let to = self.values.chunks_exact_mut(PARTS * width);
        for (to, from) in to.zip(rounded.chunks_exact(PARTS * width)) {
            let from = from.as_chunks::<PARTS>().0;
            for (part, to) in to.chunks_exact_mut(width).enumerate() {
                to.iter_mut().zip(from).for_each(|(to, from)| *to = from[part]);
            }
        }
    }
}

/// The operands of a product but A.
pub(super) struct Weights<'a> {
    pub(super) codes: &'a [u8],
    pub(super) scales: Numbers<'a>,
    /// Packed zero points.
    pub(super) zero_codes: &'a [u8],
    /// Zero points that are numbers.
    pub(super) zeros: Option<Numbers<'a>>,
}

/// Makes the `sizes.m` rows of `y` of the rows of `a`.
pub(super) fn multiply(
    sizes: &Sizes,
    a: &[f32],
    weights: &Weights<'_>,
    bias: Option<&[f32]>,
    y: &mut [f32],
    unit: Unit,
) {
    let op = sizes.op;
    if sizes.m >= PANEL_ROWS {
        return panel::multiply(&Decoded { op, weights }, a, op.n, bias, y, unit);
    }
    let middle = unit.middle(op.bits as u32, 1 << (op.bits - 1));
    let left = Rounded::of(op, a, unit.sums(), middle.into());
    let strips = op.n.div_ceil(STRIP);
    let work = sizes.m.saturating_mul(op.n).saturating_mul(op.k);
    let cut = Cut { work, parallel: PARALLEL, task: TASK, band: BAND, unit: 8, strips };
    let end = |strip: usize, of: usize| (strips * (strip + 1) / of * STRIP).min(op.n);
    cut.share([sizes.m, op.n], y.chunks_mut(op.n.max(1)), Threads::All, end, |mut share: Share<'_, f32>| {
        let first = share.strip.checked_sub(1).map_or(0, |before| end(before, share.strips));
        let (row, rows) = (share.row, &mut share.rows);
        unit.run(Task { sizes, left: &left, weights, bias, row, first, rows });
    });
}

/// The columns, for many rows.
struct Decoded<'a> {
    op: MatMulNBits,
    weights: &'a Weights<'a>,
}

impl Columns for Decoded<'_> {
    fn grain(&self) -> Grain {
        let MatMulNBits { k, bits, block, .. } = self.op;
        Grain { k, bits: bits as u32, block, group: block, parts: 8 / bits, middle: 1 << (bits - 1) }
    }

    fn has_summands(&self) -> bool {
        self.weights.zeros.is_some() || !self.weights.zero_codes.is_empty()
    }

    #[inline(always)]
    fn decode<D: Dot>(&self, dot: D, panel: &mut Panel) {
        match self.op.bits {
            2 => self.read::<D, 2>(dot, panel),
            4 => self.read::<D, 4>(dot, panel),
            _ => self.read::<D, 8>(dot, panel),
        }
    }

    #[inline(always)]
    fn prefetch_next<D: Dot>(&self, dot: D, panel: &Panel, of: Range<usize>) {
        let (bytes, parts, Range { start, end }) = (self.op.bytes(), self.op.parts(), panel.elements.clone());
        let of_column = start / parts..(end / parts).min(bytes);
        panel.prefetch_bytes(dot, of, (self.weights.codes, bytes), of_column);
    }
}

impl Decoded<'_> {
    #[inline(always)]
    fn read<D: Dot, const BITS: u32>(&self, dot: D, panel: &mut Panel) {
        let Decoded { op, weights } = *self;
        let (bytes, blocks, lanes, [first, count]) = (op.bytes(), op.blocks(), D::SUMS, panel.columns);
        let start = panel.elements.start;
        let first_block = start / op.block;
        let parts = 8 / BITS as usize;
        let from = weights.codes.get(first * bytes + start / parts..).unwrap_or_default();
        let width = 4 * lanes;
        for (i, to) in panel.codes.chunks_mut(4 * width * parts).enumerate() {
            let words = dot.words(from.get(16 * i..).unwrap_or_default(), bytes);
            unrolled!(4, |w| {
                if let Some(to) = to.get_mut(w * width * parts..(w + 1) * width * parts) {
                    unrolled!(8 / BITS as usize, |part| {
                        let codes = dot.codes::<BITS>(words[w], part as u32);
                        dot.store_bytes(codes, &mut to[part * width..][..width]);
                    });
                }
            });
        }
        let (mut wide, mut zeros) = (Vec::new(), Vec::new());
        let scales = weights.scales.lines(first, count, blocks, &mut wide);
        let of = |numbers: &'_ [f32]| first_block.min(numbers.len())..;
        panel::interleave(
            dot,
            cast_slice(&scales[of(scales)]),
            4 * blocks,
            cast_slice_mut(&mut panel.scales),
        );
        weights.zeros::<BITS>(op, first, count, &mut zeros);
        zeros.iter_mut().zip(scales).for_each(|(zero, scale)| *zero *= -scale);
        panel::interleave(
            dot,
            cast_slice(&zeros[of(&zeros)]),
            4 * blocks,
            cast_slice_mut(&mut panel.summands),
        );
    }
}

/// Few rows of columns from `first` on.
struct Task<'t, 'y, 'a> {
    sizes: &'t Sizes,
    left: &'t Rounded,
    weights: &'t Weights<'a>,
    bias: Option<&'t [f32]>,
    row: usize,
    first: usize,
    rows: &'t mut [&'y mut [f32]],
}

impl WithDot for Task<'_, '_, '_> {
    type Output = ();

    #[inline(always)]
    fn with<D: Dot>(self, dot: D) {
        match self.weights.scales {
            Numbers::F32(scales) => self.scaled(dot, scales),
            Numbers::F16(scales) => self.scaled(dot, scales),
        }
    }
}

impl Task<'_, '_, '_> {
    #[inline(always)]
    fn scaled<D: Dot, S: Scale>(self, dot: D, scales: &[S]) {
        match self.sizes.op.bits {
            2 => self.run::<D, S, 2>(dot, scales),
            4 => self.run::<D, S, 4>(dot, scales),
            _ => self.run::<D, S, 8>(dot, scales),
        }
    }

    #[inline(always)]
    fn run<D: Dot, S: Scale, const BITS: u32>(self, dot: D, scales: &[S]) {
        let Task { sizes, left, weights, bias, row, first, rows } = self;
        let op = sizes.op;
        let (bytes, blocks) = (op.bytes(), op.blocks());
        let count = rows.first().map_or(0, |row| row.len());
        let places = Places::of(dot, op, left);
        let mut zeros = Vec::new();
        for at in in_streams(count.div_ceil(STRIP), D::STREAMS).map(|strip| strip * STRIP) {
            let (column, n) = (first + at, STRIP.min(count - at));
            let scales = scales.get(column * blocks..).unwrap_or(&[]);
            let codes = weights.codes.get(column * bytes..).unwrap_or(&[]);
            let columns = Lines { codes, bytes, blocks, scales };
            weights.zeros::<BITS>(op, column, n, &mut zeros);
            zeros.iter_mut().zip(scales).for_each(|(zero, scale)| *zero *= scale.wide());
            for c in 0..n {
                let zeros = zeros.get(c * blocks..).and_then(|zeros| zeros.get(..blocks));
                let bias = bias.and_then(|bias| bias.get(column + c)).copied().unwrap_or(0.0);
                for (r, y) in rows.iter_mut().enumerate() {
                    let sums = left.sums.get((row + r) * blocks..).unwrap_or(&[]);
                    let taken = zeros.map_or(0.0, |zeros| products(zeros, sums));
                    if let Some(y) = y.get_mut(at + c) {
                        *y = bias - taken + columns.line::<D, BITS>(dot, places, (left, row + r), c);
                    }
                }
            }
        }
    }
}

impl Weights<'_> {
    /// How far the zero points of `n` columns from `column` on are from the middle code; none where all are it. What is
    /// small takes few digits of the sums away.
    #[inline(always)]
    fn zeros<const BITS: u32>(&self, op: MatMulNBits, column: usize, n: usize, to: &mut Vec<f32>) {
        let (blocks, middle) = (op.blocks(), (1u32 << (BITS - 1)) as f32);
        to.clear();
        if let Some(zeros) = self.zeros {
            let mut wide = Vec::new();
            let lines = zeros.lines(column, n, blocks, &mut wide);
            to.extend(lines.iter().take(n * blocks).map(|zero| zero - middle));
        } else if !self.zero_codes.is_empty() {
            let bytes = op.zero_bytes();
            let parts = 8 / BITS as usize;
            to.resize(n * blocks, 0.0);
            for (c, to) in to.chunks_mut(blocks.max(1)).enumerate() {
                let codes = self.zero_codes.get((column + c) * bytes..).unwrap_or(&[]);
                for (to, byte) in to.chunks_mut(parts).zip(codes) {
                    for (i, to) in to.iter_mut().enumerate() {
                        *to = f32::from(byte >> (i as u32 * BITS) & (0xff >> (8 - BITS))) - middle;
                    }
                }
            }
        }
    }
}

/// The sum of the products of `a` and as many numbers of `b`.
#[inline(always)]
fn products(a: &[f32], b: &[f32]) -> f32 {
    const LANES: usize = 16;
    let b = b.get(..a.len()).unwrap_or(&[]);
    let ((a, a_rest), (b, b_rest)) = (a.as_chunks::<LANES>(), b.as_chunks::<LANES>());
    let mut sums = [0f32; LANES];
    for (a, b) in a.iter().zip(b) {
        sums.iter_mut().zip(a).zip(b).for_each(|((sum, a), b)| *sum += a * b);
    }
    sums.iter().sum::<f32>() + a_rest.iter().zip(b_rest).map(|(a, b)| a * b).sum::<f32>()
}

/// Where the scales of four sums together are among those of a column.
#[derive(Clone, Copy)]
struct Places<D: Dot> {
    /// The logarithm of the number of sums that have one scale.
    shift: u32,
    /// Of each sum of four vectors, from the first scale of these on.
    each: D::Sums,
    /// The same of the last four vectors: what is after the column is multiplied by zeros, codes of the next one, but not
    /// its scales, which may be infinite.
    last: D::Sums,
}

impl<D: Dot> Places<D> {
    #[inline(always)]
    fn of(dot: D, op: MatMulNBits, left: &Rounded) -> Self {
        let shift = (op.block * op.bits / 32).trailing_zeros();
        let each: [i32; 16] = std::array::from_fn(|i| (first_of_four(i, D::SUMS) >> shift) as i32);
        let before = (left.vectors.saturating_sub(4) * D::SUMS) >> shift;
        let last = op.blocks().saturating_sub(before + 1) as i32;
        let last = dot.sums(&each.map(|place| place.min(last)));
        Places { shift, each: dot.sums(&each), last }
    }
}

/// The codes and the scales of some columns.
struct Lines<'a, S> {
    codes: &'a [u8],
    scales: &'a [S],
    /// Bytes of the codes of a column, and its scales.
    bytes: usize,
    blocks: usize,
}

impl<S: Scale> Lines<'_, S> {
    /// The product of row `row` of `left` and column `c`.
    #[inline(always)]
    fn line<D: Dot, const BITS: u32>(
        &self,
        dot: D,
        places: Places<D>,
        (left, row): (&Rounded, usize),
        c: usize,
    ) -> f32 {
        let (width, parts) = (4 * D::SUMS, 8 / BITS as usize);
        let codes = self.codes.get(c * self.bytes..).unwrap_or_default().chunks_exact(4 * width);
        let scales = self.scales.get(c * self.blocks..).unwrap_or_default();
        let mut total = dot.reals(&[]);
        let mut done = 0;
        for (codes, part) in codes.zip(left.fours(row, D::SUMS, parts).each(D::SUMS, 4 * width * parts)) {
            let at = (done * D::SUMS) >> places.shift;
            let Some(scales) = scales.get(at..at + D::SUMS) else { break };
            dot.prefetch(codes, AHEAD);
            let mut sums = [dot.sums(&[]); 4];
            unrolled!(4, |v| {
                let values = &part.values[v * width * parts..];
                sums[v] = dot.add_codes::<BITS>(sums[v], dot.bytes(&codes[v * width..]), values);
            });
            done += 4;
            // Eight products of four bits are less than 2^14.
            let sums = if BITS <= 4 { dot.small_fours(sums) } else { dot.fours(sums) };
            let sums = dot.plus(dot.sums(part.starts), sums);
            let places = if done == left.vectors { places.last } else { places.each };
            total = dot.add_scaled(total, sums, S::pick(dot, scales, places), dot.reals(part.scales));
        }
        let mut sum = dot.total(total);
        if done < left.vectors {
            sum += self.rest::<D, BITS>(dot, places.shift, (left, row), (c, done));
        }
        sum
    }

    /// The product from vector `begin` on; a scale is that of `1 << shift` sums.
    #[inline(always)]
    fn rest<D: Dot, const BITS: u32>(
        &self,
        dot: D,
        shift: u32,
        (left, row): (&Rounded, usize),
        (c, begin): (usize, usize),
    ) -> f32 {
        let (width, parts) = (4 * D::SUMS, 8 / BITS as usize);
        let codes = self.codes.get(c * self.bytes..).and_then(|codes| codes.get(..self.bytes));
        let codes = codes.and_then(|codes| codes.get(begin * width..)).unwrap_or_default();
        let scales = self.scales.get(c * self.blocks..).and_then(|scales| scales.get(..self.blocks));
        let scales = scales.unwrap_or_default();
        let scales: Vec<f32> = scales.iter().map(|scale| scale.wide()).collect();
        let mut total = dot.reals(&[]);
        let rows = left.vectors(row, D::SUMS, parts).enumerate().skip(begin);
        for ((j, part), codes) in rows.zip(codes.chunks(width)) {
            let scales = scales.get((j * D::SUMS) >> shift..).unwrap_or_default();
            let sum = dot.add_codes::<BITS>(dot.sums(part.starts), dot.bytes(codes), part.values);
            total = dot.add_scaled(total, sum, dot.spread(scales, shift), dot.reals(part.scales));
        }
        dot.total(total)
    }
}
