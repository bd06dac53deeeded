//! Products where rows of A are rounded to bytes, with a scale for every 32 elements, as llama.cpp's CPU backend does:
//! products with codes are sums of integers.

use super::blocks::{BlockType, Part, Rows};
use crate::dot::{Dot, Unit, WithDot, first_of_four, round_block, unrolled};
use crate::ops::linalg::product::Threads;
use crate::ops::linalg::share::{Cut, Share};
use crate::ops::par;
use crate::simd::wide;

/// Multiplications below which one thread is faster.
const PARALLEL: usize = 400_000;
/// Multiplications of one task at least.
const TASK: usize = 125_000;
/// Rows that one task has at least.
const BAND: usize = 16;
/// Bytes of rounded rows that are multiplied by all columns of a task before the next rows: they stay in the second
/// cache.
const TOGETHER: usize = 256 << 10;
/// Elements of A that share a scale.
const BLOCK: usize = 32;

/// [`Part::ELEMENTS`] elements of a row of A; those after its end are zeros.
#[derive(Clone)]
struct RowPart {
    /// Signed bytes.
    values: [u8; Part::ELEMENTS],
    /// Of each run what its sum begins with, which is what the middle code takes away, and the scale of the sum; as
    /// `RowDot::fours` places sums.
    starts: [i32; Part::RUNS],
    scales: [f32; Part::RUNS],
    /// Of each run the sum of its elements.
    sums: [f32; Part::RUNS],
}

impl RowPart {
    /// Rounds at most [`Part::ELEMENTS`] elements; `lanes` is the number of sums in a vector.
    #[inline(always)]
    fn of(a: &[f32], middle: u8, lanes: usize) -> RowPart {
        let mut part = RowPart {
            values: [0; Part::ELEMENTS],
            starts: [0; Part::RUNS],
            scales: [0.0; Part::RUNS],
            sums: [0.0; Part::RUNS],
        };
        let mut scales = [0f32; Part::RUNS];
        let blocks = part.values.as_chunks_mut::<BLOCK>().0.iter_mut().zip(scales.as_chunks_mut::<2>().0);
        for (a, (to, scales)) in a.chunks(BLOCK).zip(blocks) {
            scales.fill(round_block(a, to));
        }
        let mut sums = [0i32; Part::RUNS];
        for (sum, values) in sums.iter_mut().zip(part.values.as_chunks::<{ Part::RUN }>().0) {
            *sum = values.iter().map(|v| i32::from(*v as i8)).sum();
        }
        for (i, (to, sum)) in part.sums.iter_mut().zip(sums).enumerate() {
            *to = sum as f32 * scales[i];
        }
        for i in 0..Part::RUNS {
            let from = i - i % lanes + place(i % lanes, lanes);
            part.starts[i] = -i32::from(middle) * sums[from];
            part.scales[i] = scales[from];
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
    let parts = k.div_ceil(Part::ELEMENTS);
    let middle = b.blocks.middle();
    let mut left: Vec<RowPart> = vec![RowPart::of(&[], 0, lanes); m * parts];
    par::share(a.chunks(k.max(1)).zip(left.chunks_mut(parts.max(1))), |(a, to)| {
        wide(
            #[inline(always)]
            || {
                for (a, to) in a.chunks(Part::ELEMENTS).zip(to) {
                    *to = RowPart::of(a, middle, lanes);
                }
            },
        );
    });
    let work = m.saturating_mul(n).saturating_mul(k);
    let cut = Cut { work, parallel: PARALLEL, task: TASK, band: BAND, strips: n };
    let end = |strip: usize, of: usize| n * (strip + 1) / of;
    cut.share([m, n], y.chunks_mut(n.max(1)), Threads::All, end, |mut share: Share<'_, f32>| {
        let first = share.strip.checked_sub(1).map_or(0, |before| end(before, share.strips));
        let left = left.get(share.row * parts..).unwrap_or_default();
        unit.run(Task { b, left, parts, bytes, bias, first, rows: &mut share.rows });
    });
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
        match self.b.blocks {
            BlockType::Q80 => self.run::<D, 8>(dot),
            _ => self.run::<D, 6>(dot),
        }
    }
}

impl Task<'_, '_> {
    #[inline(always)]
    fn run<D: Dot, const BITS: u32>(self, dot: D) {
        let Task { b, left, parts, bytes, bias, first, rows } = self;
        let (blocks, row_bytes) = (b.blocks, b.row_bytes());
        let part_bytes = Part::ELEMENTS / blocks.elements() * blocks.bytes();
        let count = rows.first().map_or(0, |row| row.len());
        let band = (TOGETHER / size_of::<RowPart>() / parts.max(1)).max(1);
        let mut column = vec![Part::default(); parts];
        for (left, rows) in left.chunks(band * parts.max(1)).zip(rows.chunks_mut(band)) {
            for c in 0..count {
                let bytes = bytes.get((first + c) * row_bytes..).and_then(|bytes| bytes.get(..row_bytes));
                for (bytes, to) in bytes.unwrap_or_default().chunks(part_bytes).zip(&mut column) {
                    blocks.read(bytes, to);
                }
                let bias = bias.and_then(|bias| bias.get(first + c)).copied().unwrap_or(0.0);
                for (left, row) in left.chunks(parts.max(1)).zip(rows.iter_mut()) {
                    let product = match blocks.has_summands() {
                        true => product::<D, BITS, true>(dot, left, &column),
                        false => product::<D, BITS, false>(dot, left, &column),
                    };
                    if let Some(y) = row.get_mut(c) {
                        *y = product + bias;
                    }
                }
            }
        }
    }
}

/// The product of a row and a column.
#[inline(always)]
fn product<D: Dot, const BITS: u32, const SUMMANDS: bool>(dot: D, left: &[RowPart], column: &[Part]) -> f32 {
    let width = 4 * D::SUMS;
    let places: [i32; 16] = std::array::from_fn(|i| place(i % D::SUMS, D::SUMS) as i32);
    let places = dot.sums(&places);
    let mut total = dot.reals(&[]);
    let mut summands = [0f32; Part::RUNS];
    for (left, column) in left.iter().zip(column) {
        unrolled!(Part::ELEMENTS / (4 * width), |q| {
            let mut sums = [dot.sums(&[]); 4];
            unrolled!(4, |v| {
                let at = (4 * q + v) * width;
                let (codes, values) = (dot.bytes(&column.codes[at..]), dot.bytes(&left.values[at..]));
                sums[v] = dot.add_products::<BITS>(sums[v], codes, values);
            });
            let at = q * D::SUMS;
            let sums = dot.plus(dot.sums(&left.starts[at..]), dot.fours(sums));
            let scales = dot.pick(&column.scales[at..], places);
            total = dot.add_scaled(total, sums, scales, dot.reals(&left.scales[at..]));
        });
        if SUMMANDS {
            for ((to, a), b) in summands.iter_mut().zip(&column.summands).zip(&left.sums) {
                *to += a * b;
            }
        }
    }
    let taken = if SUMMANDS { summands.iter().sum() } else { 0.0 };
    dot.total(total) + taken
}
