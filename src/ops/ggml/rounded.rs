//! Products where rows of A are rounded to bytes, with a scale for every 32 elements, as llama.cpp's CPU backend does:
//! products with codes are sums of integers.

use std::ops::Range;

use super::blocks::{BlockType, Rows};
use super::layout::{
    BLOCK, BLOCKS, Iq4Nl, Iq4Xs, Layout, Mxfp4, Part, Q2K, Q3K, Q4K, Q5K, Q6K, Q40, Q41, Q50, Q51, Q80,
    with_layout,
};
use crate::dot::{Dot, Unit, WithDot, first_of_four, halved, round_block, unrolled};
use crate::ops::linalg::coded::panel::{self, Columns, Grain, Panel};
use crate::ops::linalg::coded::{AHEAD, BAND, PANEL_ROWS, PARALLEL, TASK, in_streams};
use crate::ops::linalg::product::Threads;
use crate::ops::linalg::share::{Cut, Share};
use crate::simd::wide;

/// [`Part::ELEMENTS`] elements of a row of A; those after its end are zeros.
#[derive(Clone)]
struct RowPart {
    /// Signed bytes, in the order of the codes.
    values: [u8; Part::ELEMENTS],
    /// Of each run what its sum begins with, which is what the middle code takes away, as `RowDot::fours` places sums.
    starts: [i32; Part::RUNS],
    /// The scale of each run, placed like that; or of each four elements of halves of blocks.
    scales: [f32; 2 * Part::RUNS],
    /// Of all elements that share a summand their sum; zeros after the last one.
    sums: [f32; Part::RUNS],
}

impl RowPart {
    const EMPTY: RowPart = RowPart {
        values: [0; Part::ELEMENTS],
        starts: [0; Part::RUNS],
        scales: [0.0; 2 * Part::RUNS],
        sums: [0.0; Part::RUNS],
    };

    /// Rounds at most [`Part::ELEMENTS`] elements for codes of type `blocks`, of which `middle` is taken away; `lanes` is the
    /// number of sums in a vector.
    #[inline(always)]
    fn of(a: &[f32], middle: u8, blocks: BlockType, lanes: usize) -> RowPart {
        let mut part = RowPart::EMPTY;
        let mut values = [0u8; Part::ELEMENTS];
        let mut scales = [0f32; BLOCKS];
        let rounded = values.as_chunks_mut::<BLOCK>().0.iter_mut().zip(&mut scales);
        for (a, (to, scale)) in a.chunks(BLOCK).zip(rounded) {
            *scale = round_block(a, to);
        }
        let mut sums = [0i32; Part::RUNS];
        for (sum, values) in sums.iter_mut().zip(values.as_chunks::<{ Part::RUN }>().0) {
            *sum = values.iter().map(|v| i32::from(*v as i8)).sum();
        }
        if blocks.summed() == Part::RUN {
            for (i, to) in part.sums.iter_mut().enumerate() {
                *to = sums[i] as f32 * scales[i / 2];
            }
        } else {
            for (to, ([a, b], scale)) in part.sums.iter_mut().zip(sums.as_chunks::<2>().0.iter().zip(&scales))
            {
                *to = (a + b) as f32 * scale;
            }
        }
        if blocks.has_halves() {
            for (i, to) in part.values.as_chunks_mut::<{ Part::RUN }>().0.iter_mut().enumerate() {
                *to = values.as_chunks::<{ Part::RUN }>().0[halved(i, lanes)];
            }
            for (i, to) in part.scales.iter_mut().enumerate() {
                *to = scales[i / 4];
            }
            return part;
        }
        part.values = values;
        for i in 0..Part::RUNS {
            let from = i - i % lanes + place(i % lanes, lanes);
            part.starts[i] = -i32::from(middle) * sums[from];
            part.scales[i] = scales[from / 2];
        }
        part
    }
}

/// The run of four vectors that sum `i` is of, where vectors have `lanes` sums of four elements.
#[inline(always)]
const fn place(i: usize, lanes: usize) -> usize {
    first_of_four(i, lanes) / 4
}

/// Makes the `m` rows of `y` of the rows of `a`; `bytes` are the rows `b`, of a type that has codes.
pub(super) fn multiply(
    b: Rows,
    m: usize,
    a: &[f32],
    bytes: &[u8],
    bias: Option<&[f32]>,
    y: &mut [f32],
    unit: Unit,
) {
    let (k, n, lanes) = (b.k, b.rows, unit.sums());
    if m >= PANEL_ROWS {
        return panel::multiply(&Decoded { b, bytes }, a, n, bias, y, unit);
    }
    let parts = k.div_ceil(Part::ELEMENTS);
    let middle = unit.middle(b.blocks.bits(), b.blocks.middle());
    let mut left: Vec<RowPart> = vec![RowPart::EMPTY; m * parts];
    wide(
        #[inline(always)]
        || {
            for (a, to) in a.chunks(k.max(1)).zip(left.chunks_mut(parts.max(1))) {
                for (a, to) in a.chunks(Part::ELEMENTS).zip(to) {
                    *to = RowPart::of(a, middle, b.blocks, lanes);
                }
            }
        },
    );
    let work = m.saturating_mul(n).saturating_mul(k);
    let cut = Cut { work, parallel: PARALLEL, task: TASK, band: BAND, unit: 8, strips: n };
    let end = |strip: usize, of: usize| n * (strip + 1) / of;
    cut.share([m, n], y.chunks_mut(n.max(1)), Threads::All, end, |mut share: Share<'_, f32>| {
        let first = share.strip.checked_sub(1).map_or(0, |before| end(before, share.strips));
        let left = left.get(share.row * parts..).unwrap_or_default();
        unit.run(Task { b, left, parts, bytes, bias, first, rows: &mut share.rows });
    });
}

/// The columns, for many rows.
struct Decoded<'a> {
    b: Rows,
    bytes: &'a [u8],
}

impl Columns for Decoded<'_> {
    fn grain(&self) -> Grain {
        let Rows { blocks, k, .. } = self.b;
        let (bits, group, middle) = (blocks.bits(), blocks.group(), blocks.middle());
        Grain { k, bits, block: BLOCK, group, parts: 1, middle }
    }

    fn has_summands(&self) -> bool {
        self.b.blocks.has_summands()
    }

    #[inline(always)]
    fn decode<D: Dot>(&self, dot: D, panel: &mut Panel) {
        match self.b.blocks {
            BlockType::Q40 | BlockType::Q41 => self.blocks::<D, 4>(dot, panel),
            BlockType::Q80 => self.blocks::<D, 8>(dot, panel),
            _ => self.parts(dot, panel),
        }
    }

    #[inline(always)]
    fn prefetch_next<D: Dot>(&self, dot: D, panel: &Panel, of: Range<usize>) {
        let (blocks, Range { start, end }) = (self.b.blocks, panel.elements.clone());
        let [start, end] = [start, end.min(self.b.k)].map(|at| at / blocks.elements() * blocks.bytes());
        panel.prefetch_bytes(dot, of, (self.bytes, self.b.row_bytes()), start..end);
    }
}

impl Decoded<'_> {
    /// Decodes blocks of 32 codes of `BITS` bits, those of four bits in halves, for all columns at once.
    #[inline(always)]
    fn blocks<D: Dot, const BITS: u32>(&self, dot: D, panel: &mut Panel) {
        let (size, row_bytes, width) = (self.b.blocks.bytes(), self.b.row_bytes(), 4 * D::SUMS);
        let [first, count] = panel.columns;
        let bytes =
            self.bytes.get(first * row_bytes + panel.elements.start / BLOCK * size..).unwrap_or_default();
        self.numbers(dot, bytes, count, &mut panel.scales);
        self.numbers(dot, bytes.get(2..).unwrap_or_default(), count, &mut panel.summands);
        let mut at = size - BLOCK * BITS as usize / 8;
        for to in panel.codes.chunks_exact_mut(BLOCK * D::SUMS) {
            let codes = bytes.get(at..).unwrap_or_default();
            at += size;
            if BITS >= 8 {
                for (half, to) in to.chunks_exact_mut(4 * width).enumerate() {
                    let words = dot.words(codes.get(16 * half..).unwrap_or_default(), row_bytes);
                    unrolled!(4, |w| { dot.store_bytes(dot.flip(words[w]), &mut to[w * width..]) });
                }
                continue;
            }
            let words = dot.words(codes, row_bytes);
            unrolled!(4, |w| {
                dot.store_bytes(dot.codes::<BITS>(words[w], 0), &mut to[w * width..]);
                dot.store_bytes(dot.codes::<BITS>(words[w], 1), &mut to[(w + 4) * width..]);
            });
        }
    }

    /// Reads the `float16` numbers that blocks of 32 of `count` columns begin with.
    #[inline(always)]
    fn numbers<D: Dot>(&self, dot: D, bytes: &[u8], count: usize, to: &mut [f32]) {
        let (size, row_bytes) = (self.b.blocks.bytes(), self.b.row_bytes());
        let mut bits = [0u16; 16 * panel::LENGTH / BLOCK];
        for c in 0..count {
            let column = bytes.get(c * row_bytes..).unwrap_or_default();
            for (g, to) in bits[..to.len()].chunks_exact_mut(D::SUMS).enumerate() {
                let Some(number) = column.get(g * size..).and_then(|block| block.first_chunk()) else {
                    break;
                };
                to[c] = u16::from_le_bytes(*number);
            }
        }
        for (to, bits) in to.chunks_mut(8).zip(bits.as_chunks::<8>().0) {
            let numbers = dot.halves(*bits);
            match to.first_chunk_mut::<8>() {
                Some(to) => *to = numbers,
                None => to.iter_mut().zip(numbers).for_each(|(to, number)| *to = number),
            }
        }
    }

    /// Decodes columns one after the other.
    #[inline(always)]
    fn parts<D: Dot>(&self, dot: D, panel: &mut Panel) {
        let blocks = self.b.blocks;
        let (lanes, [first, count], group) = (D::SUMS, panel.columns, blocks.group());
        let row_bytes = self.b.row_bytes();
        let bytes_of = |elements: usize| elements / blocks.elements() * blocks.bytes();
        let all = self.bytes.get(first * row_bytes..).unwrap_or_default();
        let groups = Part::ELEMENTS / group;
        let runs = group / Part::RUN;
        let (mut part, mut columns) = (Part::default(), [0u8; 16 * Part::ELEMENTS]);
        let codes = panel.codes.chunks_mut(Part::ELEMENTS * lanes);
        let scales = panel.scales.chunks_mut(groups * lanes);
        let mut summands = panel.summands.chunks_mut(groups * lanes);
        let mut at = bytes_of(panel.elements.start);
        for (codes, scales) in codes.zip(scales) {
            let of_part = at..at + bytes_of(codes.len() / lanes);
            let summands = summands.next().unwrap_or_default();
            let rows = all.chunks_exact(row_bytes.max(1)).take(count);
            for (c, (row, to)) in rows.zip(columns.as_chunks_mut::<{ Part::ELEMENTS }>().0).enumerate() {
                part.read(dot, blocks, row.get(of_part.clone()).unwrap_or_default());
                *to = part.codes;
                let to = scales.iter_mut().skip(c).step_by(lanes);
                to.zip(part.scales.iter().step_by(runs)).for_each(|(to, scale)| *to = *scale);
                let to = summands.iter_mut().skip(c).step_by(lanes);
                to.zip(part.summands.iter().step_by(runs)).for_each(|(to, summand)| *to = *summand);
            }
            panel::interleave(dot, &columns, Part::ELEMENTS, codes);
            at = of_part.end;
        }
    }
}

/// Rows of columns from `first` on.
struct Task<'t, 'y> {
    b: Rows,
    /// Of each row its parts.
    left: &'t [RowPart],
    parts: usize,
    bytes: &'t [u8],
    bias: Option<&'t [f32]>,
    first: usize,
    rows: &'t mut [&'y mut [f32]],
}

impl WithDot for Task<'_, '_> {
    type Output = ();

    #[inline(always)]
    fn with<D: Dot>(self, dot: D) {
        with_layout!(self.b.blocks, L => self.lines::<D, L, _>(dot));
    }
}

impl Task<'_, '_> {
    #[inline(always)]
    fn lines<D: Dot, L: Layout<N>, const N: usize>(self, dot: D) {
        let Task { b, left, parts, bytes, bias, first, rows } = self;
        let row_bytes = b.row_bytes();
        let count = rows.first().map_or(0, |row| row.len());
        for c in in_streams(count, D::STREAMS) {
            let column = bytes.get((first + c) * row_bytes..).unwrap_or_default();
            let bias = bias.and_then(|bias| bias.get(first + c)).copied().unwrap_or(0.0);
            for (left, row) in left.chunks(parts.max(1)).zip(rows.iter_mut()) {
                if let Some(y) = row.get_mut(c) {
                    *y = product::<D, L, N>(dot, left, column, b.k) + bias;
                }
            }
        }
    }
}

/// The product of a row and a column of `k` elements, which `column` begins with.
#[inline(always)]
fn product<D: Dot, L: Layout<N>, const N: usize>(dot: D, left: &[RowPart], column: &[u8], k: usize) -> f32 {
    let (whole, rest) = (k / Part::ELEMENTS, k % Part::ELEMENTS);
    let mut sums = Sums { total: dot.every(0.0), summands: dot.every(0.0) };
    for (bytes, left) in column.as_chunks::<N>().0.iter().zip(left.iter().take(whole)) {
        sums = sums.plus::<D, L, N, false>(dot, left, bytes, Part::ELEMENTS);
    }
    if rest > 0
        && let Some(left) = left.last()
    {
        let (bytes, mut own) = (column.get(whole * N..).unwrap_or_default(), [0u8; N]);
        // What follows is the next column, but after the last one nothing.
        let bytes = bytes.first_chunk::<N>().unwrap_or_else(|| {
            own[..bytes.len()].copy_from_slice(bytes);
            &own
        });
        sums = sums.plus::<D, L, N, true>(dot, left, bytes, rest);
    }
    let has_summands = L::HALVED || L::TYPE.has_summands();
    dot.total(if has_summands {
        dot.add_product(sums.total, sums.summands, dot.every(1.0))
    } else {
        sums.total
    })
}

/// Sums of the products of a row and a column.
#[derive(Clone, Copy)]
struct Sums<R> {
    total: R,
    /// Those with summands, and with the middle code of halves of blocks.
    summands: R,
}

impl<R: Copy> Sums<R> {
    /// These and those of a part, with `SHORT` of its first `elements`, after which the row has zeros.
    #[inline(always)]
    fn plus<D: Dot<Reals = R>, L: Layout<N>, const N: usize, const SHORT: bool>(
        mut self,
        dot: D,
        left: &RowPart,
        bytes: &[u8; N],
        elements: usize,
    ) -> Self {
        dot.prefetch(bytes, AHEAD);
        let (mut scales, mut summands) = (L::scales(dot, bytes), L::summands(dot, bytes));
        if SHORT {
            // Zeros times what is infinite, or no number, are none.
            for (i, scale) in scales.iter_mut().enumerate() {
                *scale = if i * L::TYPE.group() < elements { *scale } else { 0.0 };
            }
            for (i, summand) in summands.iter_mut().enumerate() {
                *summand = if i * L::TYPE.summed() < elements { *summand } else { 0.0 };
            }
        }
        if L::HALVED {
            self.total = self.halves::<D, L, N, SHORT>(dot, left, bytes, elements, &scales);
            for (summand, scale) in summands.iter_mut().zip(scales) {
                *summand -= f32::from(L::TYPE.middle()) * scale;
            }
        } else {
            self.total = self.runs::<D, L, N>(dot, left, bytes, &scales);
        }
        if L::HALVED || L::TYPE.has_summands() {
            let vectors = (Part::ELEMENTS / L::TYPE.summed()).div_ceil(D::SUMS);
            for (sums, summands) in left.sums.chunks(D::SUMS).zip(summands.chunks(D::SUMS)).take(vectors) {
                self.summands = dot.add_product(self.summands, dot.reals(sums), dot.reals(summands));
            }
        }
        self
    }

    /// The products of a part whose codes are in the order of elements: scales are of runs.
    #[inline(always)]
    fn runs<D: Dot<Reals = R>, L: Layout<N>, const N: usize>(
        mut self,
        dot: D,
        left: &RowPart,
        bytes: &[u8; N],
        scales: &[f32],
    ) -> R {
        let mut places = [0; 16];
        for (i, to) in places.iter_mut().enumerate() {
            *to = (place(i % D::SUMS, D::SUMS) * Part::RUN / L::TYPE.group()) as i32;
        }
        let places = dot.sums(&places);
        unrolled!(Part::ELEMENTS / (16 * D::SUMS), |q| {
            let mut sums = [dot.sums(&[]); 4];
            unrolled!(4, |v| {
                let v: usize = 4 * q + v;
                let values = dot.bytes(&left.values[v * 4 * D::SUMS..]);
                let codes = L::codes(dot, bytes, v);
                // Codes of five bits are multiplied as those of six.
                sums[v % 4] = match L::TYPE.bits() {
                    0..=4 => dot.add_products::<4>(sums[v % 4], codes, values),
                    5..=6 => dot.add_products::<6>(sums[v % 4], codes, values),
                    _ => dot.add_products::<8>(sums[v % 4], codes, values),
                };
            });
            let at = q * D::SUMS;
            // Four products of five bits are less than 2^14.
            let sums = if L::TYPE.bits() <= 5 { dot.small_fours(sums) } else { dot.fours(sums) };
            let sums = dot.plus(dot.sums(&left.starts[at..]), sums);
            let scales = dot.pick(&scales[at * Part::RUN / L::TYPE.group()..], places);
            self.total = dot.add_scaled(self.total, sums, scales, dot.reals(&left.scales[at..]));
        });
        self.total
    }

    /// The products of a part whose codes are in the order of [`halved`]: a sum is of four elements of both halves of a block.
    #[inline(always)]
    fn halves<D: Dot<Reals = R>, L: Layout<N>, const N: usize, const SHORT: bool>(
        mut self,
        dot: D,
        left: &RowPart,
        bytes: &[u8; N],
        elements: usize,
        scales: &[f32],
    ) -> R {
        unrolled!(Part::ELEMENTS / (16 * D::SUMS), |q| {
            unrolled!(2, |i| {
                let pair: usize = 2 * q + i;
                if !SHORT || pair * 8 * D::SUMS < elements {
                    let codes = [L::codes(dot, bytes, 2 * pair), L::codes(dot, bytes, 2 * pair + 1)];
                    let (first, second) = left.values[pair * 8 * D::SUMS..].split_at(4 * D::SUMS);
                    let values = [dot.bytes(first), dot.bytes(second)];
                    let sums = match L::TYPE.bits() {
                        0..=4 => dot.add_two::<4>(dot.every_sum(0), codes, values),
                        _ => dot.add_two::<6>(dot.every_sum(0), codes, values),
                    };
                    let at = pair * D::SUMS;
                    // The vector of scales that has those of the pair's blocks.
                    let vector = at / 4 / D::SUMS * D::SUMS;
                    let mut places = [0; 16];
                    for (i, to) in places.iter_mut().enumerate() {
                        *to = ((at + i) / 4 - vector) as i32;
                    }
                    let scales = dot.pick(&scales[vector..], dot.sums(&places));
                    self.total = dot.add_scaled(self.total, sums, scales, dot.reals(&left.scales[at..]));
                }
            });
        });
        self.total
    }
}
