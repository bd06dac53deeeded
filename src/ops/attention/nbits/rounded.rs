//! Rows of A rounded to bytes: each block of a row has a scale, products with codes are sums of integers. The codes are
//! read where they lie, so weights are in memory once.

use half::f16;

use super::{MatMulNBits, Sizes};
use crate::dot::{Dot, Unit, WithDot, first_of_four, round_block, unrolled};
use crate::ops::halves::Half;
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
/// Columns of one step; tasks begin at its multiples.
const STRIP: usize = 16;
/// Rows of a tile, and its columns.
const TILE: [usize; 2] = [4, 2];
/// Bytes of rounded rows that are multiplied by all columns of a task before the next rows: they stay in the second
/// cache.
const TOGETHER: usize = 256 << 10;
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

/// Rows of A in the order in which codes lie in vectors. Rows of a tile lie side by side, vector by vector; those after
/// the last whole tile lie each for itself.
#[derive(Debug)]
struct Rounded {
    /// Vectors of codes of a column.
    vectors: usize,
    /// Of each vector and row a vector of signed bytes for the first code of every byte, one for the second and so on.
    values: Vec<u8>,
    /// Of each vector and row what the sums begin with: what the middle code takes away.
    starts: Vec<i32>,
    /// Of each vector and row the scales of the sums.
    scales: Vec<f32>,
    /// Of each row and block the sum of its rounded elements; row by row.
    sums: Vec<f32>,
    /// The first of the rows after the last whole tile.
    loose: usize,
    /// Of those rows, of each four vectors the starts of four sums together, as `RowDot::fours` places them; none where
    /// blocks have fewer sums.
    four_starts: Vec<i32>,
    /// The scales of those.
    four_scales: Vec<f32>,
}

/// Where the parts of some rows are written.
struct Rows<'a> {
    values: &'a mut [u8],
    starts: &'a mut [i32],
    scales: &'a mut [f32],
    sums: &'a mut [f32],
}

impl Rounded {
    /// Rounds rows of `op.k` elements for vectors of `lanes` sums. Sums begin with what `middle` times the elements
    /// takes away.
    fn of(op: MatMulNBits, a: &[f32], lanes: usize, middle: i32) -> Rounded {
        let (rows, blocks) = (a.len() / op.k.max(1), op.blocks());
        let vectors = op.bytes().div_ceil(4 * lanes);
        // Without a tile, vectors are multiplied four at a time.
        let vectors = if rows < TILE[0] { vectors.next_multiple_of(4) } else { vectors };
        let (sums, values) = (vectors * lanes, vectors * lanes * 4 * op.parts());
        let mut all = Rounded {
            vectors,
            values: vec![0; rows * values],
            starts: vec![0; rows * sums],
            scales: vec![0.0; rows * sums],
            sums: vec![0.0; rows * blocks],
            loose: rows - rows % TILE[0],
            four_starts: Vec::new(),
            four_scales: Vec::new(),
        };
        const HIGH: usize = TILE[0];
        let each = a
            .chunks(HIGH * op.k.max(1))
            .zip(all.values.chunks_mut(HIGH * values.max(1)))
            .zip(all.starts.chunks_mut(HIGH * sums.max(1)))
            .zip(all.scales.chunks_mut(HIGH * sums.max(1)))
            .zip(all.sums.chunks_mut(HIGH * blocks.max(1)));
        let round = |((((a, values), starts), scales), sums): ((((&[f32], _), _), _), _)| {
            let rows = Rows { values, starts, scales, sums };
            wide(
                #[inline(always)]
                || match op.bits {
                    2 => rows.round::<4>(op, a, [vectors, lanes], middle),
                    4 => rows.round::<2>(op, a, [vectors, lanes], middle),
                    _ => rows.round::<1>(op, a, [vectors, lanes], middle),
                },
            );
        };
        if a.len() < PARALLEL / 4 {
            each.for_each(round);
        } else {
            par::share(each, round);
        }
        if op.block * op.bits >= 32 * 4 {
            all.join_fours(lanes);
        }
        all
    }

    /// Makes the starts and scales of four sums together.
    fn join_fours(&mut self, lanes: usize) {
        let of_row = self.vectors * lanes;
        let starts = self.starts.get(self.loose * of_row..).unwrap_or_default();
        let scales = self.scales.get(self.loose * of_row..).unwrap_or_default();
        let rows = starts.chunks_exact(of_row.max(1)).zip(scales.chunks_exact(of_row.max(1)));
        for (starts, scales) in rows {
            for (starts, scales) in starts.chunks_exact(4 * lanes).zip(scales.chunks_exact(4 * lanes)) {
                for i in 0..lanes {
                    let first = first_of_four(i, lanes);
                    self.four_starts.push(starts[first..first + 4].iter().sum());
                    self.four_scales.push(scales[first]);
                }
            }
        }
    }

    /// Of row `row`, which is after the last whole tile, the values of each four vectors, and the starts and scales of
    /// four sums together.
    #[inline(always)]
    fn fours(&self, row: usize, lanes: usize, parts: usize) -> impl Iterator<Item = Part<'_>> {
        let fours = self.vectors / 4 * lanes;
        let of = (row - self.loose) * fours..(row - self.loose + 1) * fours;
        let starts = self.four_starts.get(of.clone()).unwrap_or_default().chunks_exact(lanes);
        let scales = self.four_scales.get(of).unwrap_or_default().chunks_exact(lanes);
        let values = self.vectors * lanes * 4 * parts;
        let values = self.values.get(row * values..(row + 1) * values).unwrap_or_default();
        let values = values.chunks_exact(16 * lanes * parts);
        values.zip(starts).zip(scales).map(|((values, starts), scales)| Part { values, starts, scales })
    }

    /// Of rows of a tile of `R` rows from `row` on, the values, the starts and the scales of each vector.
    #[inline(always)]
    fn tile<const R: usize>(&self, row: usize, lanes: usize, parts: usize) -> impl Iterator<Item = Part<'_>> {
        let sums = self.vectors * lanes;
        let of = row * sums..(row + R) * sums;
        let starts = self.starts.get(of.clone()).unwrap_or_default().chunks_exact(R * lanes);
        let scales = self.scales.get(of.clone()).unwrap_or_default().chunks_exact(R * lanes);
        let of = of.start * 4 * parts..of.end * 4 * parts;
        let values = self.values.get(of).unwrap_or_default().chunks_exact(R * lanes * 4 * parts);
        values.zip(starts).zip(scales).map(|((values, starts), scales)| Part { values, starts, scales })
    }
}

/// A vector of each row of a tile.
#[derive(Clone, Copy)]
struct Part<'a> {
    values: &'a [u8],
    starts: &'a [i32],
    scales: &'a [f32],
}

impl Rows<'_> {
    /// Rounds the rows `a`, of as many `vectors` as they have each, for codes of which `PARTS` are in a byte.
    #[inline(always)]
    fn round<const PARTS: usize>(
        self,
        op: MatMulNBits,
        a: &[f32],
        [vectors, lanes]: [usize; 2],
        middle: i32,
    ) {
        let rows = a.len() / op.k.max(1);
        let width = 4 * lanes;
        let mut rounded = vec![0u8; vectors * width * PARTS];
        let (mut starts, mut scales) = (vec![0i32; vectors * lanes], vec![0f32; vectors * lanes]);
        // Sums of a block; its scale belongs to each of them.
        let per_block = (op.block / (4 * PARTS)).max(1);
        for (row, (a, sums)) in
            a.chunks_exact(op.k.max(1)).zip(self.sums.chunks_mut(op.blocks().max(1))).enumerate()
        {
            let blocks = rounded.chunks_mut(op.block).zip(scales.chunks_mut(per_block));
            for (a, (to, scales)) in a.chunks(op.block).zip(blocks) {
                scales.fill(round_block(a, to));
            }
            let of_sum = |four: &[u8]| four.iter().map(|v| i32::from(*v as i8)).sum::<i32>();
            for (start, four) in starts.iter_mut().zip(rounded.chunks_exact(4 * PARTS)) {
                *start = of_sum(four);
            }
            let each = starts.chunks(per_block).zip(scales.chunks(per_block));
            for (to, (sums, scales)) in sums.iter_mut().zip(each) {
                *to = sums.iter().sum::<i32>() as f32 * scales.first().copied().unwrap_or(0.0);
            }
            starts.iter_mut().for_each(|start| *start *= -middle);
            // The first vector of the row, and how many lie from one of its vectors to the next.
            let (first, step) = if rows == TILE[0] { (row, rows) } else { (row * vectors, 1) };
            let to = self.values.chunks_exact_mut(PARTS * width).skip(first).step_by(step);
            for (to, from) in to.zip(rounded.chunks_exact(PARTS * width)) {
                let from = from.as_chunks::<PARTS>().0;
                for (part, to) in to.chunks_exact_mut(width).enumerate() {
                    to.iter_mut().zip(from).for_each(|(to, from)| *to = from[part]);
                }
            }
            let to = self.starts.chunks_exact_mut(lanes).skip(first).step_by(step);
            to.zip(starts.chunks_exact(lanes)).for_each(|(to, from)| to.copy_from_slice(from));
            let to = self.scales.chunks_exact_mut(lanes).skip(first).step_by(step);
            to.zip(scales.chunks_exact(lanes)).for_each(|(to, from)| to.copy_from_slice(from));
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
    let middle = 1 << (op.bits - 1);
    let left = Rounded::of(op, a, unit.sums(), middle);
    let strips = op.n.div_ceil(STRIP);
    let cut = Cut {
        work: sizes.m.saturating_mul(op.n).saturating_mul(op.k),
        parallel: PARALLEL,
        task: TASK,
        band: BAND,
        strips,
    };
    let end = |strip: usize, of: usize| (strips * (strip + 1) / of * STRIP).min(op.n);
    cut.share([sizes.m, op.n], y.chunks_mut(op.n.max(1)), Threads::All, end, |mut share: Share<'_, f32>| {
        let first = share.strip.checked_sub(1).map_or(0, |before| end(before, share.strips));
        let (row, rows) = (share.row, &mut share.rows);
        unit.run(Task { sizes, left: &left, weights, bias, row, first, rows });
    });
}

/// Rows from `row` on of columns from `first` on.
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
        match self.sizes.op.bits {
            2 => self.run::<D, 2>(dot),
            4 => self.run::<D, 4>(dot),
            _ => self.run::<D, 8>(dot),
        }
    }
}

impl Task<'_, '_, '_> {
    #[inline(always)]
    fn run<D: Dot, const BITS: u32>(self, dot: D) {
        let Task { sizes, left, weights, bias, row, first, rows } = self;
        let op = sizes.op;
        let (bytes, blocks) = (op.bytes(), op.blocks());
        let count = rows.first().map_or(0, |row| row.len());
        let each = left.vectors * 4 * D::SUMS * op.parts();
        let band = (TOGETHER / each.max(1)).max(TILE[0]).next_multiple_of(TILE[0]);
        let shift = (op.block * op.bits / 32).trailing_zeros();
        let (mut wide, mut zeros) = (Vec::new(), Vec::new());
        for (b, rows) in rows.chunks_mut(band).enumerate() {
            let row = row + b * band;
            for at in (0..count).step_by(STRIP) {
                let (column, n) = (first + at, STRIP.min(count - at));
                let scales = weights.scales.lines(column, n, blocks, &mut wide);
                let codes = weights.codes.get(column * bytes..).unwrap_or(&[]);
                let columns = Columns { codes, bytes, blocks, scales, shift };
                weights.zeros::<BITS>(op, column, n, &mut zeros);
                zeros.iter_mut().zip(scales).for_each(|(zero, scale)| *zero *= scale);
                for r in 0..rows.len() {
                    let Some(y) = rows.get_mut(r).and_then(|row| row.get_mut(at..at + n)) else { return };
                    let sums = left.sums.get((row + r) * blocks..).unwrap_or(&[]);
                    for (c, y) in y.iter_mut().enumerate() {
                        // What zero points take away, less the bias.
                        let zeros = zeros.get(c * blocks..).and_then(|zeros| zeros.get(..blocks));
                        let taken = zeros.map_or(0.0, |zeros| products(zeros, sums));
                        let bias = bias.and_then(|bias| bias.get(column + c)).copied().unwrap_or(0.0);
                        *y = bias - taken;
                    }
                }
                let mut done = 0;
                for rows in rows.chunks_mut(TILE[0]) {
                    let (from, high) = (row + done, rows.len());
                    let mut add = |r: usize, c: usize, sum: f32| {
                        if let Some(y) = rows.get_mut(r).and_then(|row| row.get_mut(at + c)) {
                            *y += sum;
                        }
                    };
                    let mut c = 0;
                    while let Some(more @ 1..) = n.checked_sub(c) {
                        c += columns.multiply::<D, BITS>(dot, left, (from, high), (c, more), &mut add);
                    }
                    done += high;
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

/// The codes and the scales of some columns.
struct Columns<'a> {
    codes: &'a [u8],
    scales: &'a [f32],
    /// Bytes of the codes of a column, and its scales.
    bytes: usize,
    blocks: usize,
    /// The logarithm of the number of sums that have one scale.
    shift: u32,
}

impl Columns<'_> {
    /// Adds the products of `rows` rows from `row` on and of columns from `c` on, of which `n` are left. Returns how many
    /// columns were done.
    #[inline(always)]
    fn multiply<D: Dot, const BITS: u32>(
        &self,
        dot: D,
        left: &Rounded,
        (row, rows): (usize, usize),
        (c, n): (usize, usize),
        add: &mut impl FnMut(usize, usize, f32),
    ) -> usize {
        const HIGH: usize = TILE[0];
        const WIDE: usize = TILE[1];
        if rows == HIGH && n >= WIDE {
            self.tile::<D, BITS, HIGH, WIDE>(dot, left, row, (c, 0), &mut *add);
            return WIDE;
        }
        if rows == HIGH {
            self.tile::<D, BITS, HIGH, 1>(dot, left, row, (c, 0), &mut *add);
            return 1;
        }
        // One column after the other: memory is read in order.
        for r in 0..rows {
            add(r, c, self.line::<D, BITS>(dot, left, row + r, c));
        }
        1
    }

    /// The product of a row after the last whole tile and a column.
    #[inline(always)]
    fn line<D: Dot, const BITS: u32>(&self, dot: D, left: &Rounded, row: usize, c: usize) -> f32 {
        let (width, parts) = (4 * D::SUMS, 8 / BITS as usize);
        let codes = self.codes.get(c * self.bytes..).unwrap_or_default();
        let scales = self.scales.get(c * self.blocks..).unwrap_or_default();
        // What is after the column is multiplied by zeros: codes of the next one, but not its scales, which may be infinite.
        let last = (left.vectors.saturating_sub(4) * D::SUMS) >> self.shift;
        let last = self.blocks.saturating_sub(last + 1);
        let places: [i32; 16] = std::array::from_fn(|i| (first_of_four(i, D::SUMS) >> self.shift) as i32);
        let last_places = dot.sums(&places.map(|place| place.min(last as i32)));
        let places = dot.sums(&places);
        let mut total = dot.reals(&[]);
        let mut done = 0;
        for (codes, part) in codes.chunks_exact(4 * width).zip(left.fours(row, D::SUMS, parts)) {
            let at = (done * D::SUMS) >> self.shift;
            let Some(scales) = scales.get(at..at + D::SUMS) else { break };
            let mut sums = [dot.sums(&[]); 4];
            unrolled!(4, |v| {
                let values = &part.values[v * width * parts..];
                sums[v] = dot.add_codes::<BITS>(sums[v], dot.bytes(&codes[v * width..]), values);
            });
            done += 4;
            let places = if done == left.vectors { last_places } else { places };
            let sums = dot.plus(dot.sums(part.starts), dot.fours(sums));
            total = dot.add_scaled(total, sums, dot.pick(scales, places), dot.reals(part.scales));
        }
        let mut sum = dot.total(total);
        if done < left.vectors {
            self.tile::<D, BITS, 1, 1>(dot, left, row, (c, done), |_, _, rest| sum += rest);
        }
        sum
    }

    /// The products of `R` rows and `C` columns from vector `begin` on.
    #[inline(always)]
    fn tile<D: Dot, const BITS: u32, const R: usize, const C: usize>(
        &self,
        dot: D,
        left: &Rounded,
        row: usize,
        (first, begin): (usize, usize),
        mut add: impl FnMut(usize, usize, f32),
    ) {
        let (width, parts) = (4 * D::SUMS, 8 / BITS as usize);
        let mut codes: [&[u8]; C] = [&[]; C];
        let mut scales: [&[f32]; C] = [&[]; C];
        for c in 0..C {
            codes[c] = &self.codes[(first + c) * self.bytes..][..self.bytes];
            codes[c] = codes[c].get(begin * width..).unwrap_or_default();
            scales[c] = &self.scales[(first + c) * self.blocks..];
        }
        let mut totals = [[dot.reals(&[]); C]; R];
        let mut rows = left.tile::<R>(row, D::SUMS, parts).skip(begin);
        let mut whole = codes.map(|codes| codes.chunks_exact(width));
        let mut at = (begin * D::SUMS) >> self.shift;
        'vectors: for j in begin..left.vectors {
            let mut vectors: [&[u8]; C] = [&[]; C];
            unrolled!(C, |c| {
                match whole[c].next() {
                    Some(codes) => vectors[c] = codes,
                    None => break 'vectors,
                }
            });
            let Some(part) = rows.next() else { break };
            at = (j * D::SUMS) >> self.shift;
            let mut rest = scales;
            unrolled!(C, |c| { rest[c] = &scales[c][at..] });
            self.step::<D, BITS, R, C>(dot, part, vectors, rest, &mut totals);
            at = ((j + 1) * D::SUMS) >> self.shift;
        }
        // Fewer codes than a vector has; scales of the next column are not these.
        if let Some(part) = rows.next() {
            let rest = codes.map(|codes| codes.chunks_exact(width).remainder());
            let scales = scales.map(|scales| &scales[at..self.blocks]);
            self.step::<D, BITS, R, C>(dot, part, rest, scales, &mut totals);
        }
        unrolled!(R, |r| {
            unrolled!(C, |c| { add(r, first + c, dot.total(totals[r][c])) });
        });
    }

    /// Adds the products of one vector of each row and column.
    #[inline(always)]
    fn step<D: Dot, const BITS: u32, const R: usize, const C: usize>(
        &self,
        dot: D,
        part: Part<'_>,
        codes: [&[u8]; C],
        scales: [&[f32]; C],
        totals: &mut [[D::Reals; C]; R],
    ) {
        let (sums, values) = (D::SUMS, 4 * D::SUMS * 8 / BITS as usize);
        let (mut columns, mut column_scales) = ([dot.bytes(&[]); C], [dot.reals(&[]); C]);
        unrolled!(C, |c| {
            (columns[c], column_scales[c]) = (dot.bytes(codes[c]), dot.spread(scales[c], self.shift));
        });
        unrolled!(R, |r| {
            let start = dot.sums(&part.starts[r * sums..]);
            let row_scale = dot.reals(&part.scales[r * sums..]);
            unrolled!(C, |c| {
                let sum = dot.add_codes::<BITS>(start, columns[c], &part.values[r * values..]);
                totals[r][c] = dot.add_scaled(totals[r][c], sum, column_scales[c], row_scale);
            });
        });
    }
}
