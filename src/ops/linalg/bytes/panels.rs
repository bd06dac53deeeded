//! A packed right operand: contiguous strips of columns.

use super::Right;
use crate::dot::Unit;
use crate::simd::wide;

/// The division of `n` columns into strips of whole vectors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Strips {
    lanes: usize,
    /// Vectors of the first strips, and how many of these there are.
    most: usize,
    full: usize,
    /// Vectors of each strip after them, and how many.
    less: usize,
    rest: usize,
}

impl Strips {
    /// Strips of vectors of `lanes` columns, at most `most` in a strip. A single vector at the end would make poor use of the
    /// registers: it and the strip before it become two of the same width.
    pub(crate) fn new(n: usize, [lanes, most]: [usize; 2]) -> Strips {
        let vectors = n.div_ceil(lanes);
        let (full, left) = (vectors / most, vectors % most);
        let strips = |full, less, rest| Strips { lanes, most, full, less, rest };
        match left {
            0 => strips(full, most, 0),
            1 if full > 0 && most == 3 => strips(full - 1, 2, 2),
            less => strips(full, less, 1),
        }
    }

    /// Number of strips.
    pub(crate) fn count(&self) -> usize {
        self.full + self.rest
    }

    /// The first column of strip `i`; after the last one, the end of its vectors.
    pub(crate) fn first(&self, i: usize) -> usize {
        let rest = i.saturating_sub(self.full);
        (self.most * (i - rest) + self.less * rest) * self.lanes
    }

    /// Vectors of strip `i`.
    pub(crate) fn vectors(&self, i: usize) -> usize {
        if i < self.full { self.most } else { self.less }
    }
}

/// The packed layout of a matrix of `k` rows of `n` bytes: contiguous strips of columns of signed bytes, and after
/// them the sums of all columns as 32-bit integers.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Packing {
    k: usize,
    n: usize,
    tile: [usize; 2],
    strips: Strips,
}

impl Packing {
    /// The layout of matrices of `k` rows and `n` columns, for `unit`.
    pub(crate) fn new([k, n]: [usize; 2], unit: Unit) -> Packing {
        let tile = unit.tile();
        Packing { k, n, tile, strips: Strips::new(n, tile) }
    }

    /// The numbers that determine the layout; `None` where they do not fit 32 bits.
    pub(crate) fn numbers(&self) -> Option<[u32; 3]> {
        let [k, n] = [self.k, self.n].map(|n| u32::try_from(n).ok());
        Some([k?, n?, (self.tile[0] << 8 | self.tile[1]) as u32])
    }

    /// Groups of four rows.
    fn groups(&self) -> usize {
        self.k.div_ceil(4)
    }

    /// Columns of whole vectors.
    fn width(&self) -> usize {
        self.strips.first(self.strips.count())
    }

    /// Bytes of a packed matrix.
    pub(crate) fn bytes(&self) -> usize {
        self.width().saturating_mul(self.groups().saturating_add(1)).saturating_mul(4)
    }

    /// Packs `rows`, each byte changed by `flip` ([`super::FLIP`] where they are unsigned), into [`Packing::bytes`].
    pub(crate) fn pack(&self, rows: &[u8], flip: u8, to: &mut [u8]) {
        let &Packing { k, n, strips, .. } = self;
        let zeros = vec![flip; n];
        let row =
            |r: usize| rows.get(r * n..).and_then(|rows| rows.get(..n)).filter(|_| r < k).unwrap_or(&zeros);
        let Some((mut rest, sums)) = to.split_at_mut_checked(4 * self.groups() * self.width()) else {
            return;
        };
        let mut sums = sums.as_chunks_mut::<4>().0;
        for strip in 0..strips.count() {
            let (first, end) = (strips.first(strip), strips.first(strip + 1));
            let (panel, more) = std::mem::take(&mut rest).split_at_mut(4 * self.groups() * (end - first));
            let Some((own, others)) = std::mem::take(&mut sums).split_at_mut_checked(end - first) else {
                return;
            };
            (rest, sums) = (more, others);
            let columns = first..end.min(n);
            let mut totals = [0i32; super::WIDTH];
            wide(
                #[inline(always)]
                || {
                    for (group, to) in panel.chunks_exact_mut(4 * (end - first)).enumerate() {
                        let [a, b, c, d] = [0, 1, 2, 3].map(|i| &row(4 * group + i)[columns.clone()]);
                        let (to, after) = to.split_at_mut(4 * columns.len());
                        for ((((to, a), b), c), d) in
                            to.as_chunks_mut::<4>().0.iter_mut().zip(a).zip(b).zip(c).zip(d)
                        {
                            *to = [a ^ flip, b ^ flip, c ^ flip, d ^ flip];
                        }
                        after.fill(0);
                        for (sum, four) in totals.iter_mut().zip(to.as_chunks::<4>().0) {
                            let four: i32 = four.iter().map(|byte| i32::from(*byte as i8)).sum();
                            *sum = sum.wrapping_add(four);
                        }
                    }
                },
            );
            own.iter_mut().zip(totals).for_each(|(to, sum)| *to = sum.to_ne_bytes());
        }
    }

    /// Writes the rows that [`Packing::pack`] packed.
    pub(crate) fn unpack(&self, packed: &[u8], flip: u8, rows: &mut [u8]) {
        let &Packing { k, n, strips, .. } = self;
        let mut rest = packed;
        for strip in 0..strips.count() {
            let (first, end) = (strips.first(strip), strips.first(strip + 1));
            let Some((panel, more)) = rest.split_at_checked(4 * self.groups() * (end - first)) else {
                return;
            };
            rest = more;
            for (group, from) in panel.chunks_exact(4 * (end - first)).enumerate() {
                for i in 0..4.min(k - 4 * group) {
                    let start = (4 * group + i) * n;
                    let Some(to) = rows.get_mut(start + first..start + end.min(n)) else { continue };
                    to.iter_mut().zip(from.as_chunks::<4>().0).for_each(|(to, four)| *to = four[i] ^ flip);
                }
            }
        }
    }
}

/// A packed matrix of signed bytes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Panels<'a> {
    groups: usize,
    data: &'a [u8],
    sums: &'a [i32],
}

impl<'a> Panels<'a> {
    /// The output of [`Packing::pack`].
    pub(crate) fn new(packing: &Packing, packed: &'a [i32]) -> Panels<'a> {
        let (data, sums) = packed.split_at_checked(packing.groups() * packing.width()).unwrap_or_default();
        Panels { groups: packing.groups(), data: bytemuck::cast_slice(data), sums }
    }

    /// Groups of four rows.
    pub(crate) fn groups(&self) -> usize {
        self.groups
    }
}

impl Right for Panels<'_> {
    const LEFT_SIGNED: bool = false;

    #[inline(always)]
    fn step(&self, first: usize, n: usize, k: usize) -> &[u8] {
        self.data.get(4 * (first * self.groups + k * n)..).unwrap_or(&[])
    }

    fn column_sums(&self) -> Option<&[i32]> {
        Some(self.sums)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packed_matrices_have_every_byte() {
        for [k, n] in [[1, 1], [4, 16], [7, 49], [30, 130], [5, 65], [64, 7]] {
            let rows: Vec<u8> = (0..k * n).map(|i| (i * 7 + i / 100) as u8).collect();
            for unit in Unit::all() {
                for flip in [0, super::super::FLIP] {
                    let packing = Packing::new([k, n], unit);
                    let mut packed = vec![0xaa; packing.bytes()];
                    packing.pack(&rows, flip, &mut packed);
                    let mut back = vec![0x55; k * n];
                    packing.unpack(&packed, flip, &mut back);
                    assert_eq!(back, rows, "{k} {n} {unit:?}");
                    packing.unpack(&packed[..packed.len() / 2], flip, &mut back[..k * n / 2]);
                }
            }
        }
    }

    #[test]
    fn strips_cover_all_columns_once_and_are_never_a_single_vector_behind_others() {
        for tile in [[16, 3], [8, 1], [8, 2]] {
            for n in 0..400 {
                let strips = Strips::new(n, tile);
                let mut next = 0;
                for i in 0..strips.count() {
                    assert_eq!(strips.first(i), next);
                    assert!((1..=tile[1]).contains(&strips.vectors(i)));
                    assert!(tile[1] < 3 || strips.vectors(i) > 1 || strips.count() == 1, "{n}");
                    next += strips.vectors(i) * tile[0];
                }
                assert_eq!(strips.first(strips.count()), next);
                assert!((n..n + tile[0]).contains(&next));
            }
        }
    }
}
