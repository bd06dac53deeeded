//! A right operand that is packed: strips of columns, one behind the other.

use super::Right;
use crate::dot::Unit;
use crate::spirv::wide::wide;

/// How `n` columns are cut into strips of whole vectors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Strips {
    lanes: usize,
    /// Vectors of the first strips, and how many of these there are.
    most: usize,
    full: usize,
    /// Vectors of each strip behind them, and how many.
    less: usize,
    rest: usize,
}

impl Strips {
    /// Of vectors of `lanes` columns, `most` in a strip. A single vector at the end would make poor use of the
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

    /// How many.
    pub(crate) fn count(&self) -> usize {
        self.full + self.rest
    }

    /// The first column of strip `i`; behind the last one, the end of its vectors.
    pub(crate) fn first(&self, i: usize) -> usize {
        let rest = i.saturating_sub(self.full);
        (self.most * (i - rest) + self.less * rest) * self.lanes
    }

    /// Vectors of strip `i`.
    pub(crate) fn vectors(&self, i: usize) -> usize {
        if i < self.full { self.most } else { self.less }
    }
}

/// A packed matrix of signed bytes.
#[derive(Clone, Debug)]
pub(crate) struct Panels {
    groups: usize,
    data: Vec<u8>,
    sums: Vec<i32>,
}

impl Panels {
    /// The matrix of `k` rows of `n` bytes, each changed by `flip` ([`super::FLIP`] where they are unsigned).
    pub(crate) fn new([k, n]: [usize; 2], rows: &[u8], flip: u8, unit: Unit) -> Panels {
        let mut panels = Panels { groups: 0, data: Vec::new(), sums: Vec::new() };
        panels.fill([k, n], rows, flip, unit);
        panels
    }

    /// Takes another matrix in its place.
    pub(crate) fn fill(&mut self, [k, n]: [usize; 2], rows: &[u8], flip: u8, unit: Unit) {
        let strips = Strips::new(n, unit.tile());
        let width = strips.first(strips.count());
        self.groups = k.div_ceil(4);
        self.data.resize(self.groups * 4 * width, 0);
        self.sums.clear();
        self.sums.resize(width, 0);
        let zeros = vec![flip; n];
        let row =
            |r: usize| rows.get(r * n..).and_then(|rows| rows.get(..n)).filter(|_| r < k).unwrap_or(&zeros);
        let mut rest = self.data.as_mut_slice();
        for strip in 0..strips.count() {
            let (first, end) = (strips.first(strip), strips.first(strip + 1));
            let (panel, more) = std::mem::take(&mut rest).split_at_mut(self.groups * 4 * (end - first));
            rest = more;
            let (columns, sums) = (first..end.min(n), &mut self.sums[first..end]);
            wide(
                #[inline(always)]
                || {
                    for (group, to) in panel.chunks_exact_mut(4 * (end - first)).enumerate() {
                        let [a, b, c, d] = [0, 1, 2, 3].map(|i| &row(4 * group + i)[columns.clone()]);
                        let (to, behind) = to.split_at_mut(4 * columns.len());
                        for ((((to, a), b), c), d) in
                            to.as_chunks_mut::<4>().0.iter_mut().zip(a).zip(b).zip(c).zip(d)
                        {
                            *to = [a ^ flip, b ^ flip, c ^ flip, d ^ flip];
                        }
                        behind.fill(0);
                        for (sum, four) in sums.iter_mut().zip(to.as_chunks::<4>().0) {
                            *sum += four.iter().map(|byte| i32::from(*byte as i8)).sum::<i32>();
                        }
                    }
                },
            );
        }
    }

    /// Groups of four rows.
    pub(crate) fn groups(&self) -> usize {
        self.groups
    }
}

impl Right for Panels {
    const LEFT_SIGNED: bool = false;

    #[inline(always)]
    fn step(&self, first: usize, n: usize, k: usize) -> &[u8] {
        self.data.get(4 * (first * self.groups + k * n)..).unwrap_or(&[])
    }

    fn column_sums(&self) -> Option<&[i32]> {
        Some(&self.sums)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
