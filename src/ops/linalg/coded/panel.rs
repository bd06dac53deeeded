//! Many rows, rounded to signed bytes, times columns of codes. The codes of some columns become a panel, four of each
//! column side by side, which all rows are multiplied by: sums of a vector are of as many columns.

use std::ops::Range;

use super::super::product::Threads;
use super::super::share::{Cut, Share};
use super::{BAND, PARALLEL, TASK, TOGETHER};
use crate::dot::{Dot, Unit, WithDot, round_block, unrolled};
use crate::ops::par;
use crate::simd::wide;

/// How the elements of a row and the codes of a column are divided.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Grain {
    /// Elements of a row.
    pub(crate) k: usize,
    /// Bits of a code: at most 6, or 8.
    pub(crate) bits: u32,
    /// Elements that are rounded with one scale, a multiple of `group`.
    pub(crate) block: usize,
    /// Codes that share a scale: 16, or a multiple of 32.
    pub(crate) group: usize,
    /// Codes of a byte, where four neighbours in a panel are the codes of as many bytes; otherwise 1.
    pub(crate) parts: usize,
    /// The code that stands for zero.
    pub(crate) middle: u8,
}

impl Grain {
    /// Elements of a row, and the zeros that make its last block whole.
    const fn whole(&self) -> usize {
        self.k.div_ceil(self.block) * self.block
    }

    /// Groups of a row.
    const fn groups(&self) -> usize {
        self.whole() / self.group
    }

    /// Elements that are decoded at a time.
    const fn length(&self) -> usize {
        if self.block < LENGTH {
            LENGTH.next_multiple_of(self.block)
        } else {
            self.block.next_multiple_of(256)
        }
    }
}

/// Elements of a column that are decoded at a time, where a block has no more: they stay in the first cache.
pub(crate) const LENGTH: usize = 1024;

/// Some elements of some columns, decoded.
#[derive(Debug)]
pub(crate) struct Panel {
    /// Columns.
    pub(crate) lanes: usize,
    /// The first column and the number of those that there are.
    pub(crate) columns: [usize; 2],
    /// Elements: whole groups.
    pub(crate) elements: Range<usize>,
    /// Of each four codes the codes of each column.
    pub(crate) codes: Vec<u8>,
    /// Of each group the scales of each column.
    pub(crate) scales: Vec<f32>,
    /// Of each group what is added to the numbers of each column; none where that is zero.
    pub(crate) summands: Vec<f32>,
}

/// Columns of codes.
pub(crate) trait Columns: Sync {
    /// How they are divided.
    fn grain(&self) -> Grain;

    /// Whether numbers have summands.
    fn has_summands(&self) -> bool;

    /// Decodes the elements `panel.elements`, which begin at a multiple of 256, of `panel.columns`. What is there of further
    /// columns is not looked at.
    fn decode<D: Dot>(&self, dot: D, panel: &mut Panel);

    /// Asks for what is decoded after `panel`, of those of its columns that `of` counts.
    fn prefetch_next<D: Dot>(&self, dot: D, panel: &Panel, of: Range<usize>);
}

/// Rows rounded to signed bytes, of which those of a tile lie side by side: four bytes of each row, then the next four.
#[derive(Debug)]
struct Rows {
    count: usize,
    grain: Grain,
    values: Vec<u8>,
    /// Of each group and row what the sums begin with, which is what the middle code takes away.
    starts: Vec<i32>,
    /// Of each group and row the scale.
    scales: Vec<f32>,
    /// Of each group and row the sum of the elements.
    sums: Vec<f32>,
}

/// Those of one tile.
struct Tile<'a> {
    values: &'a [u8],
    starts: &'a [i32],
    scales: &'a [f32],
    sums: &'a [f32],
}

/// Where they are written.
struct TileMut<'a> {
    values: &'a mut [u8],
    starts: &'a mut [i32],
    scales: &'a mut [f32],
    sums: &'a mut [f32],
}

/// Rows of the tile that begins where `left` rows are left: the highest, or a smaller power of two.
const fn height(left: usize, highest: usize) -> usize {
    if left >= highest { highest } else { 1 << left.ilog2() }
}

impl Rows {
    /// Rounds the rows `a`; no tile has more than `highest`, which is a power of two.
    fn of(a: &[f32], grain: Grain, highest: usize, middle: u8) -> Rows {
        let (count, whole, groups) = (a.len() / grain.k.max(1), grain.whole(), grain.groups());
        let mut rows = Rows {
            count,
            grain,
            values: vec![0; count * whole],
            starts: vec![0; count * groups],
            scales: vec![0.0; count * groups],
            sums: vec![0.0; count * groups],
        };
        let mut tiles = Vec::with_capacity(count.div_ceil(highest) + 3);
        let (mut a, mut values) = (a, &mut rows.values[..]);
        let (mut starts, mut scales, mut sums) =
            (&mut rows.starts[..], &mut rows.scales[..], &mut rows.sums[..]);
        let mut left = count;
        while left > 0 {
            let h = height(left, highest);
            let own;
            (own, a) = a.split_at(h * grain.k);
            let to = TileMut {
                values: values.split_off_mut(..h * whole).unwrap_or_default(),
                starts: starts.split_off_mut(..h * groups).unwrap_or_default(),
                scales: scales.split_off_mut(..h * groups).unwrap_or_default(),
                sums: sums.split_off_mut(..h * groups).unwrap_or_default(),
            };
            tiles.push((own, to));
            left -= h;
        }
        let round = |(a, to): (&[f32], TileMut<'_>)| {
            wide(
                #[inline(always)]
                || to.round(a, grain, middle),
            );
        };
        if count * whole < PARALLEL / 4 {
            tiles.into_iter().for_each(round);
        } else {
            par::share(tiles.into_iter(), round);
        }
        rows
    }

    /// The tile of `h` rows that begins with row `row`, from element `from` on.
    fn tile(&self, row: usize, h: usize, from: usize) -> Tile<'_> {
        let (whole, groups) = (self.grain.whole(), self.grain.groups());
        let of = |each: usize, from: usize| row * each + from * h..(row + h) * each;
        let of_groups = of(groups, from / self.grain.group);
        Tile {
            values: self.values.get(of(whole, from)).unwrap_or_default(),
            starts: self.starts.get(of_groups.clone()).unwrap_or_default(),
            scales: self.scales.get(of_groups.clone()).unwrap_or_default(),
            sums: self.sums.get(of_groups).unwrap_or_default(),
        }
    }
}

impl TileMut<'_> {
    #[inline(always)]
    fn round(self, a: &[f32], grain: Grain, middle: u8) {
        let Grain { k, block, group, parts, .. } = grain;
        let rows = a.len() / k;
        let mut rounded = vec![0u8; grain.whole()];
        for (r, a) in a.chunks_exact(k).enumerate() {
            for (b, (a, to)) in a.chunks(block).zip(rounded.chunks_exact_mut(block)).enumerate() {
                let scale = round_block(a, to);
                for (g, group) in to.chunks_exact(group).enumerate() {
                    let sum: i32 = group.iter().map(|v| i32::from(v.cast_signed())).sum();
                    let at = (b * (block / grain.group) + g) * rows + r;
                    self.starts[at] = -i32::from(middle) * sum;
                    self.scales[at] = scale;
                    self.sums[at] = sum as f32 * scale;
                }
            }
            let fours = self.values.as_chunks_mut::<4>().0.iter_mut().skip(r).step_by(rows);
            match parts {
                1 => {
                    let from = rounded.as_chunks::<4>().0.iter();
                    fours.zip(from).for_each(|(to, from)| *to = *from);
                }
                2 => spread::<2>(&rounded, fours),
                _ => spread::<4>(&rounded, fours),
            }
        }
    }
}

/// Writes bytes `0, PARTS, 2 * PARTS, 3 * PARTS`, then the bytes after each of these, and so on.
#[inline(always)]
fn spread<'a, const PARTS: usize>(from: &[u8], mut to: impl Iterator<Item = &'a mut [u8; 4]>) {
    for from in from.as_chunks::<PARTS>().0.as_chunks::<4>().0 {
        for part in 0..PARTS {
            if let Some(to) = to.next() {
                *to = from.map(|from| from[part]);
            }
        }
    }
}

/// Makes the rows of `y`, of `n` columns each, of the rows of `a`.
pub(crate) fn multiply(
    columns: &impl Columns,
    a: &[f32],
    n: usize,
    bias: Option<&[f32]>,
    y: &mut [f32],
    unit: Unit,
) {
    let grain = columns.grain();
    let m = a.len() / grain.k.max(1);
    let lanes = unit.sums();
    let rows = Rows::of(a, grain, unit.highest(), unit.middle(grain.bits, grain.middle));
    let strips = n.div_ceil(lanes);
    let work = m.saturating_mul(n).saturating_mul(grain.k);
    let cut = Cut { work, parallel: PARALLEL, task: TASK, band: BAND, unit: 8, strips };
    let end = |strip: usize, of: usize| (strips * (strip + 1) / of * lanes).min(n);
    cut.share([m, n], y.chunks_mut(n.max(1)), Threads::All, end, |share: Share<'_, f32>| {
        let first = share.strip.checked_sub(1).map_or(0, |before| end(before, share.strips));
        unit.run(Task { columns, rows: &rows, bias, first, share });
    });
}

/// Rows of columns from `first` on.
struct Task<'t, 'y, C> {
    columns: &'t C,
    rows: &'t Rows,
    bias: Option<&'t [f32]>,
    first: usize,
    share: Share<'y, f32>,
}

impl<C: Columns> WithDot for Task<'_, '_, C> {
    type Output = ();

    #[inline(always)]
    fn with<D: Dot>(self, dot: D) {
        let Grain { bits, group, .. } = self.rows.grain;
        match (bits, group.is_multiple_of(32)) {
            (0..=4, true) => self.run::<D, 4, 8>(dot),
            (0..=4, false) => self.run::<D, 4, 4>(dot),
            (5..=6, _) => self.run::<D, 6, 4>(dot),
            _ => self.run::<D, 8, 4>(dot),
        }
    }
}

impl<C: Columns> Task<'_, '_, C> {
    #[inline(always)]
    fn run<D: Dot, const BITS: u32, const FOURS: usize>(mut self, dot: D) {
        let grain = self.rows.grain;
        let has_summands = self.columns.has_summands();
        let n = self.share.rows.first().map_or(0, |row| row.len());
        let mut panel = Panel {
            lanes: D::SUMS,
            columns: [0; 2],
            elements: 0..0,
            codes: Vec::new(),
            scales: Vec::new(),
            summands: Vec::new(),
        };
        let band = (TOGETHER / grain.whole().max(1)).max(1).next_multiple_of(D::HIGHEST);
        for (b, rows) in self.share.rows.chunks_mut(band).enumerate() {
            let row = self.share.row + b * band;
            for at in (0..n).step_by(D::SUMS) {
                let count = D::SUMS.min(n - at);
                panel.columns = [self.first + at, count];
                let mut bias = [0f32; 16];
                let own = self.bias.and_then(|bias| bias.get(self.first + at..)).unwrap_or_default();
                bias.iter_mut().zip(own).take(count).for_each(|(to, from)| *to = *from);
                for from in (0..grain.whole()).step_by(grain.length()) {
                    panel.of(from..grain.whole().min(from + grain.length()), grain.group, has_summands);
                    self.columns.decode(dot, &mut panel);
                    let mut done = 0;
                    while done < rows.len() {
                        let h = height(self.rows.count - row - done, D::HIGHEST);
                        let tile = self.rows.tile(row + done, h, from);
                        let place = |rows_done: usize| count * rows_done.min(rows.len()) / rows.len();
                        self.columns.prefetch_next(dot, &panel, place(done)..place(done + h));
                        let to = rows.get_mut(done..done + h).unwrap_or_default();
                        let group = grain.group;
                        let to = To { rows: to, at, count, bias: (from == 0).then_some(&bias) };
                        match h {
                            8 if D::HIGHEST == 8 => tile.times::<D, BITS, FOURS, 8>(dot, &panel, group, to),
                            4 => tile.times::<D, BITS, FOURS, 4>(dot, &panel, group, to),
                            2 => tile.times::<D, BITS, FOURS, 2>(dot, &panel, group, to),
                            _ => tile.times::<D, BITS, FOURS, 1>(dot, &panel, group, to),
                        }
                        done += h;
                    }
                }
            }
        }
    }
}

/// Writes the words of four bytes of `D::SUMS` columns, which begin `stride` bytes apart in `from`: the first of each, then
/// the second of each and so on, as many as `to` has vectors for.
#[inline(always)]
pub(crate) fn interleave<D: Dot>(dot: D, from: &[u8], stride: usize, to: &mut [u8]) {
    let width = 4 * D::SUMS;
    for (i, to) in to.chunks_mut(4 * width).enumerate() {
        let words = dot.words(from.get(16 * i..).unwrap_or_default(), stride);
        unrolled!(4, |w| {
            if let Some(to) = to.get_mut(w * width..(w + 1) * width) {
                dot.store_bytes(words[w], to);
            }
        });
    }
}

/// Where the products of a tile and a panel are added.
struct To<'t, 'y, 'b> {
    rows: &'t mut [&'y mut [f32]],
    /// The first column, and how many there are.
    at: usize,
    count: usize,
    /// What they are added to, instead of what is there.
    bias: Option<&'b [f32; 16]>,
}

impl Panel {
    /// [`Columns::prefetch_next`] of columns that begin `stride` bytes apart in `all`, of which `bytes` are decoded here: what
    /// follows these or, where a column has no more, what the columns after them begin with.
    #[inline(always)]
    pub(crate) fn prefetch_bytes<D: Dot>(
        &self,
        dot: D,
        of: Range<usize>,
        (all, stride): (&[u8], usize),
        bytes: Range<usize>,
    ) {
        let after = if bytes.end < stride { bytes.len() } else { D::SUMS * stride - bytes.start };
        for c in of {
            let column = all.get((self.columns[0] + c) * stride..).unwrap_or_default();
            dot.prefetch(column.get(bytes.clone()).unwrap_or_default(), after);
        }
    }

    /// Makes room for `elements`.
    fn of(&mut self, elements: Range<usize>, group: usize, has_summands: bool) {
        let grains = elements.len() / group * self.lanes;
        self.codes.resize(elements.len() * self.lanes, 0);
        self.scales.resize(grains, 0.0);
        self.summands.resize(if has_summands { grains } else { 0 }, 0.0);
        self.elements = elements;
    }
}

impl Tile<'_> {
    /// Adds the products of each of `R` rows and the columns of a panel. What is read in turn is indexed: not all calls for
    /// iterators of pairs are inlined here.
    #[inline(always)]
    fn times<D: Dot, const BITS: u32, const FOURS: usize, const R: usize>(
        &self,
        dot: D,
        panel: &Panel,
        group: usize,
        to: To<'_, '_, '_>,
    ) {
        let mut totals = [dot.reals(&[]); R];
        let values = self.values.as_chunks::<4>().0.as_chunks::<R>().0.as_chunks::<FOURS>().0;
        let (starts, row_scales) = (self.starts.as_chunks::<R>().0, self.scales.as_chunks::<R>().0);
        let (width, parts) = (4 * D::SUMS * FOURS, group / (4 * FOURS));
        let (mut values, mut codes) = (values.iter(), panel.codes.chunks_exact(width));
        for (g, scales) in panel.scales.chunks_exact(D::SUMS).enumerate() {
            let (Some(starts), Some(row_scales)) = (starts.get(g), row_scales.get(g)) else { break };
            let mut sums = starts.map(|start| dot.every_sum(start));
            for _ in 0..parts {
                let (Some(values), Some(codes)) = (values.next(), codes.next()) else { break };
                dot.add_fours::<BITS, FOURS, R>(&mut sums, values, codes);
            }
            let scales = dot.reals(scales);
            for r in 0..R {
                totals[r] = dot.add_scaled(totals[r], sums[r], scales, dot.every(row_scales[r]));
            }
        }
        let sums = self.sums.as_chunks::<R>().0;
        for (g, summands) in panel.summands.chunks_exact(D::SUMS).enumerate() {
            let (Some(sums), summands) = (sums.get(g), dot.reals(summands)) else { break };
            for r in 0..R {
                totals[r] = dot.add_product(totals[r], summands, dot.every(sums[r]));
            }
        }
        let To { rows, at, count, bias } = to;
        for (r, total) in totals.into_iter().enumerate() {
            let Some(y) = rows.get_mut(r).and_then(|row| row.get_mut(at..at + count)) else { break };
            let before = dot.reals(bias.map_or(&*y, |bias| bias));
            dot.store_reals(dot.add_product(before, total, dot.every(1.0)), y);
        }
    }
}
