//! Attention of few queries on the CPU: keys and values of a head are read once, in parts, for all queries that see them.
//!
//! A part has sums of its own, which are joined at the end as those of FlashDecoding are (Dao et al., 2023). So long caches
//! are shared out among threads whatever the number of heads, and caches in other types are decoded a few rows at a time.

use std::ops::Range;

use half::f16;
use pulp::{Simd, WithSimd};

use super::scaled::{Attended, Scaled, Steps, tail};
use crate::kernel::KernelError;
use crate::ops::halves::Half;
use crate::ops::linalg::tile::{has_vectors, lanes};
use crate::ops::par;
use crate::ops::scratch::Scratch;
use crate::simd::arch;

/// The most queries of one head, and the most of all heads that share keys.
const MOST: [usize; 2] = [16, 64];
/// Keys of a part. It does not depend on the number of threads, so neither do the results.
const PART: usize = 512;
/// Keys that are read at once: those of 64 elements fill half of a first cache.
const AT_ONCE: usize = 64;
/// Rows of a tile, at most.
const ROWS: usize = 8;

/// Reads the vectors of a head from one row on: of `[batch, head]` from a row to as many elements as there is room for.
pub(super) type ReadRows<'a> = dyn Fn([usize; 2], usize, &mut [f32]) -> Result<(), KernelError> + Sync + 'a;

/// Keys or values of all heads.
#[derive(Clone, Copy)]
pub(super) enum Rows<'a> {
    Lie(&'a [f32], Steps),
    Halves(&'a [f16], Steps),
    Read(&'a ReadRows<'a>),
}

/// Some keys of one head, for all queries that see them.
struct Job<'o> {
    batch: usize,
    kv: usize,
    keys: Range<usize>,
    /// For each query its products with values, then the largest score and the sum of exponentials.
    sums: &'o mut [f32],
}

impl Scaled {
    /// Whether [`Scaled::few`] is the fast way.
    pub(super) fn is_few(&self) -> bool {
        let small = self.q_len <= MOST[0] && self.q_len * self.share() <= MOST[1];
        small && self.head > 0 && has_vectors()
    }

    /// Writes the output.
    pub(super) fn few(&self, given: &Attended<'_, f32>, y: &mut [f32]) -> Result<(), KernelError> {
        self.few_of(given, [Rows::Lie(given.k, self.k), Rows::Lie(given.v, self.v)], y)
    }

    /// As [`Scaled::few`], of these keys and values.
    pub(super) fn few_of(
        &self,
        given: &Attended<'_, f32>,
        rows: [Rows<'_>; 2],
        y: &mut [f32],
    ) -> Result<(), KernelError> {
        let (queries, each) = (self.q_len * self.share(), self.v_head + 2);
        let mut parts = Vec::new();
        for group in 0..self.batch * self.kv_heads {
            let (batch, kv) = (group / self.kv_heads, group % self.kv_heads);
            let (valid, offset) = self.valid(given.lens, batch);
            let low = self.seen(0, valid, offset).0;
            let high = self.seen(self.q_len - 1, valid, offset).1;
            let of_group = (low..high).step_by(PART).map(|from| (batch, kv, from..high.min(from + PART)));
            parts.push(of_group.collect::<Vec<_>>());
        }
        let all: usize = parts.iter().map(Vec::len).sum();
        let mut sums = Scratch::new(all * queries * each);
        let places = sums.chunks_mut((queries * each).max(1));
        let jobs = parts.iter().flatten().zip(places);
        let jobs =
            jobs.map(|((batch, kv, keys), sums)| Job { batch: *batch, kv: *kv, keys: keys.clone(), sums });
        par::try_share(jobs.collect::<Vec<_>>().into_iter(), |job| self.part(given, rows, job))?;
        let mut sums = &sums[..];
        for (group, parts) in parts.iter().enumerate() {
            let (own, rest) = sums.split_at(parts.len() * queries * each);
            sums = rest;
            let (batch, kv) = (group / self.kv_heads, group % self.kv_heads);
            for n in 0..queries {
                let (head, i) = self.query(kv, n);
                let at = self.y.vector([batch, head, i]);
                let of_query = || own.chunks_exact(each).skip(n).step_by(queries);
                join(of_query, given.sink.of(head), &mut y[at..][..self.v_head]);
            }
        }
        Ok(())
    }

    /// The head and the position of query `n` of those that see the keys of head `kv`.
    fn query(&self, kv: usize, n: usize) -> (usize, usize) {
        (kv * self.share() + n / self.q_len, n % self.q_len)
    }

    /// The sums of one part.
    fn part(
        &self,
        given: &Attended<'_, f32>,
        [k, v]: [Rows<'_>; 2],
        job: Job<'_>,
    ) -> Result<(), KernelError> {
        let Job { batch, kv, keys, sums } = job;
        let (queries, each) = (self.q_len * self.share(), self.v_head + 2);
        let q = self.laid(given.q, [batch, kv])?;
        let mut scores = Scratch::new(queries * PART);
        self.chunks(k, [batch, kv], (&keys, self.head), |at, rows, row, n| {
            let scores = &mut scores[at..];
            arch().dispatch(Scores { queries, q: &q, k: rows, k_row: row, n, head: self.head, scores });
        })?;
        let (valid, offset) = self.valid(given.lens, batch);
        sums.fill(0.0);
        for (n, (sums, row)) in sums.chunks_exact_mut(each).zip(scores.chunks_exact_mut(PART)).enumerate() {
            let (head, i) = self.query(kv, n);
            let seen = self.seen(i, valid, offset);
            let [low, high] = [seen.0, seen.1].map(|key| key.clamp(keys.start, keys.end) - keys.start);
            let at = [batch, head, i, keys.start];
            let raised = self.raised((given.mask, None), at, (low, high), &mut row[..keys.len()], None);
            let (top, total) = raised.unwrap_or((f32::NEG_INFINITY, 0.0));
            sums[self.v_head..].copy_from_slice(&[top, total]);
        }
        self.chunks(v, [batch, kv], (&keys, self.v_head), |at, rows, row, n| {
            let scores = &scores[at..];
            arch().dispatch(Sums {
                scores,
                v: rows,
                v_row: row,
                n,
                size: self.v_head,
                each,
                sums: &mut *sums,
            });
        })
    }

    /// The queries as tiles read them: for each tile's rows their first vectors, then their second ones, filled up by zeros.
    fn laid(&self, q: &[f32], [batch, kv]: [usize; 2]) -> Result<Scratch<f32>, KernelError> {
        let (queries, lanes) = (self.q_len * self.share(), lanes());
        let len = self.head.next_multiple_of(lanes);
        let mut laid = Scratch::new(queries * len);
        laid.fill(0.0);
        let mut first = 0;
        while first < queries {
            let rows = rows_of(queries - first);
            let tile = &mut laid[first * len..];
            for r in 0..rows {
                let (head, i) = self.query(kv, first + r);
                let at = self.q.vector([batch, head, i]);
                for (d, from) in from_to(q, at, self.head)?.chunks(lanes).enumerate() {
                    tile[(d * rows + r) * lanes..][..from.len()].copy_from_slice(from);
                }
            }
            first += rows;
        }
        Ok(laid)
    }

    /// Calls `f` with a few rows of `keys` after the other: which of the keys is the first, the rows, how far one is from
    /// the next, and their number.
    fn chunks(
        &self,
        of: Rows<'_>,
        [batch, head]: [usize; 2],
        (keys, size): (&Range<usize>, usize),
        mut f: impl FnMut(usize, &[f32], usize, usize),
    ) -> Result<(), KernelError> {
        let mut read = Scratch::new(if let Rows::Lie(..) = of { 0 } else { AT_ONCE * size });
        for at in (0..keys.len()).step_by(AT_ONCE) {
            let n = AT_ONCE.min(keys.len() - at);
            let first = keys.start + at;
            let begin = |of: Steps| of.vector([batch, head, first]);
            match of {
                Rows::Lie(all, steps) => {
                    let rows = from_to(all, begin(steps), (n - 1) * steps.row + size)?;
                    f(at, rows, steps.row, n);
                }
                Rows::Halves(all, steps) => {
                    let rows = from_to(all, begin(steps), (n - 1) * steps.row + size)?;
                    let read = &mut read[..n * size];
                    for (to, from) in read.chunks_exact_mut(size).zip(rows.chunks(steps.row.max(1))) {
                        f16::widen_all(from, to);
                    }
                    f(at, read, size, n);
                }
                Rows::Read(load) => {
                    let rows = &mut read[..n * size];
                    load([batch, head], first, rows)?;
                    f(at, rows, size, n);
                }
            }
        }
        Ok(())
    }
}

/// `len` elements from element `at` on.
fn from_to<T>(data: &[T], at: usize, len: usize) -> Result<&[T], KernelError> {
    tail(data, at.saturating_add(len)).map(|_| &data[at..at + len])
}

/// Joins the parts of one query: sums of products, the largest score, and the sum of exponentials.
fn join<'p, I: Iterator<Item = &'p [f32]>>(parts: impl Fn() -> I, sink: Option<f32>, y: &mut [f32]) {
    let size = y.len();
    let seen = || parts().filter(|part| part[size] != f32::NEG_INFINITY);
    // Where one is no number, its sum is none either.
    let top = seen().map(|part| part[size]).chain(sink).fold(f32::NEG_INFINITY, f32::max);
    y.fill(0.0);
    if seen().next().is_none() {
        return;
    }
    let mut total = sink.map_or(0.0, |sink| (sink - top).exp());
    for part in seen() {
        let (sums, factor) = (&part[..size], (part[size] - top).exp());
        total += part[size + 1] * factor;
        y.iter_mut().zip(sums).for_each(|(y, sum)| *y += sum * factor);
    }
    y.iter_mut().for_each(|y| *y /= total);
}

/// Products of queries with `n` keys: `scores` has [`PART`] elements for each query.
struct Scores<'a> {
    queries: usize,
    /// As [`Scaled::laid`] lays them.
    q: &'a [f32],
    k: &'a [f32],
    k_row: usize,
    n: usize,
    head: usize,
    scores: &'a mut [f32],
}

impl WithSimd for Scores<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let Scores { queries, q, k, k_row, n, head, scores } = self;
        let (steps, (q, _)) = (head.div_ceil(S::F32_LANES), S::as_simd_f32s(q));
        let of = Keys { k, k_row, n, head };
        let mut from = 0;
        while from < queries {
            let rows = rows_of(queries - from);
            let q = &q[from * steps..][..rows * steps];
            let scores = &mut scores[from * PART..];
            match rows {
                8 => of.scores::<S, 8>(simd, q, scores),
                7 => of.scores::<S, 7>(simd, q, scores),
                6 => of.scores::<S, 6>(simd, q, scores),
                4 => of.scores::<S, 4>(simd, q, scores),
                2 => of.scores::<S, 2>(simd, q, scores),
                _ => of.scores::<S, 1>(simd, q, scores),
            }
            from += rows;
        }
    }
}

/// Rows of the next tile, of so many that are left.
#[inline(always)]
fn rows_of(left: usize) -> usize {
    match left {
        3 => 2,
        5 => 4,
        _ => left.min(ROWS),
    }
}

/// `n` keys.
#[derive(Clone, Copy)]
struct Keys<'a> {
    k: &'a [f32],
    k_row: usize,
    n: usize,
    head: usize,
}

impl Keys<'_> {
    /// `panel` has for each vector of elements those of `R` queries.
    #[inline(always)]
    fn scores<S: Simd, const R: usize>(self, simd: S, panel: &[S::f32s], scores: &mut [f32]) {
        let mut at = 0;
        while at < self.n {
            let left = self.n - at;
            at += match (S::F32_LANES, R) {
                (16, 7..) | (_, 4) if left >= 3 => self.tile::<S, R, 3>(simd, panel, at, scores),
                (16, ..7) | (_, ..4) if left >= 4 => self.tile::<S, R, 4>(simd, panel, at, scores),
                (_, ..7) if left >= 2 => self.tile::<S, R, 2>(simd, panel, at, scores),
                _ => self.tile::<S, R, 1>(simd, panel, at, scores),
            };
        }
    }

    /// Products with `N` keys from key `at` on; their number.
    #[inline(always)]
    #[allow(clippy::needless_range_loop, reason = "constant indices keep the sums in registers")]
    fn tile<S: Simd, const R: usize, const N: usize>(
        self,
        simd: S,
        panel: &[S::f32s],
        at: usize,
        scores: &mut [f32],
    ) -> usize {
        let mut keys = [self.k; N];
        for j in 0..N {
            keys[j] = &self.k[(at + j) * self.k_row..][..self.head];
        }
        let sums = products::<S, R, N>(simd, panel, keys);
        for r in 0..R {
            for j in 0..N {
                scores[r * PART + at + j] = simd.reduce_sum_f32s(sums[r][j]);
            }
        }
        N
    }
}

/// An array of its own: what else is done with the sums would keep them in memory.
#[inline(always)]
#[allow(clippy::needless_range_loop, reason = "constant indices keep the sums in registers")]
fn products<S: Simd, const R: usize, const N: usize>(
    simd: S,
    panel: &[S::f32s],
    keys: [&[f32]; N],
) -> [[S::f32s; N]; R] {
    let mut sums = [[simd.splat_f32s(0.0); N]; R];
    let mut whole: [&[S::f32s]; N] = [&[]; N];
    let mut rest: [&[f32]; N] = [&[]; N];
    for j in 0..N {
        (whole[j], rest[j]) = S::as_simd_f32s(keys[j]);
    }
    let (panels, last) = panel.split_at(whole[0].len() * R);
    for (d, q) in panels.chunks_exact(R).enumerate() {
        let mut k = [simd.splat_f32s(0.0); N];
        for j in 0..N {
            k[j] = whole[j][d];
        }
        for r in 0..R {
            for j in 0..N {
                sums[r][j] = simd.mul_add_e_f32s(q[r], k[j], sums[r][j]);
            }
        }
    }
    if let Some(q) = last.get(..R) {
        let mut k = [simd.splat_f32s(0.0); N];
        for j in 0..N {
            k[j] = simd.partial_load_f32s(rest[j]);
        }
        for r in 0..R {
            for j in 0..N {
                sums[r][j] = simd.mul_add_e_f32s(q[r], k[j], sums[r][j]);
            }
        }
    }
    sums
}

/// Adds the products of scores, of which there are [`PART`] for each query, with `n` values to `sums`, of which there are
/// `each` for each query.
struct Sums<'a> {
    scores: &'a [f32],
    v: &'a [f32],
    v_row: usize,
    n: usize,
    size: usize,
    each: usize,
    sums: &'a mut [f32],
}

impl WithSimd for Sums<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(mut self, simd: S) {
        let queries = self.sums.len() / self.each;
        let mut from = 0;
        while from < queries {
            let rows = rows_of(queries - from);
            match rows {
                8 => self.rows::<S, 8>(simd, from),
                7 => self.rows::<S, 7>(simd, from),
                6 => self.rows::<S, 6>(simd, from),
                4 => self.rows::<S, 4>(simd, from),
                2 => self.rows::<S, 2>(simd, from),
                _ => self.rows::<S, 1>(simd, from),
            }
            from += rows;
        }
    }
}

impl Sums<'_> {
    #[inline(always)]
    fn rows<S: Simd, const R: usize>(&mut self, simd: S, from: usize) {
        let mut at = 0;
        while at < self.size {
            let left = (self.size - at) / S::F32_LANES;
            at += S::F32_LANES
                * match (S::F32_LANES, R) {
                    (16, ..7) | (_, ..4) if left >= 4 => self.tile::<S, R, 4>(simd, from, at),
                    (16, _) | (_, ..7) if left >= 2 => self.tile::<S, R, 2>(simd, from, at),
                    _ => self.tile::<S, R, 1>(simd, from, at),
                };
        }
    }

    /// `V` vectors from element `at` on, of queries from `from` on; their number.
    #[inline(always)]
    #[allow(clippy::needless_range_loop, reason = "constant indices keep the sums in registers")]
    fn tile<S: Simd, const R: usize, const V: usize>(&mut self, simd: S, from: usize, at: usize) -> usize {
        let width = (V * S::F32_LANES).min(self.size - at);
        let scores = &self.scores[from * PART..][..(R - 1) * PART + self.n];
        let added = weighed::<S, R, V>(simd, scores, (&self.v[at..], self.v_row, width), self.n);
        for r in 0..R {
            let sums = &mut self.sums[(from + r) * self.each + at..][..width];
            for (v, sums) in sums.chunks_mut(S::F32_LANES).enumerate() {
                let sum = simd.add_f32s(simd.partial_load_f32s(sums), added[r][v]);
                simd.partial_store_f32s(sums, sum);
            }
        }
        V
    }
}

/// An array of its own, as [`products`].
#[inline(always)]
#[allow(clippy::needless_range_loop, reason = "constant indices keep the sums in registers")]
fn weighed<S: Simd, const R: usize, const V: usize>(
    simd: S,
    scores: &[f32],
    (v, v_row, width): (&[f32], usize, usize),
    n: usize,
) -> [[S::f32s; V]; R] {
    let mut sums = [[simd.splat_f32s(0.0); V]; R];
    let whole = width == V * S::F32_LANES;
    for j in 0..n {
        let row = &v[j * v_row..][..width];
        let mut values = [simd.splat_f32s(0.0); V];
        if whole {
            values.copy_from_slice(&S::as_simd_f32s(row).0[..V]);
        } else {
            // There is one then.
            values[0] = simd.partial_load_f32s(row);
        }
        for r in 0..R {
            let score = simd.splat_f32s(scores[r * PART + j]);
            for i in 0..V {
                sums[r][i] = simd.mul_add_e_f32s(score, values[i], sums[r][i]);
            }
        }
    }
    sums
}

#[cfg(test)]
mod tests {
    use super::super::many::tests::{check_all, scaled};
    use super::super::scaled::{MaskData, Sink};
    use super::*;
    use crate::ops::test_util::values;

    /// Tiles of every number of queries, elements that fill no vector and more than are multiplied at once, keys of one part
    /// and of several; `f64` is computed otherwise.
    #[test]
    fn few_queries_attend_as_their_definition_says() {
        if !has_vectors() {
            return;
        }
        for (heads, rows, sizes) in [
            ([14, 2], [1, 1100], [64, 64]),
            ([1, 1], [1, 70], [128, 5]),
            ([3, 1], [2, 65], [5, 40]),
            ([10, 2], [1, 530], [300, 17]),
            ([8, 4], [4, 20], [16, 96]),
            ([9, 3], [5, 1025], [40, 72]),
            ([2, 2], [13, 13], [8, 8]),
        ] {
            let plain = scaled(heads, rows, sizes);
            assert!(plain.is_few());
            check_all(&plain);
        }
    }

    /// Rows that are decoded a few at a time are those that lie decoded, to the bit.
    #[test]
    fn rows_are_read_as_they_lie() {
        if !has_vectors() {
            return;
        }
        let of = scaled([6, 2], [2, 600], [40, 24]);
        let halves = |vectors: usize, len: usize, seed| -> Vec<f16> {
            values(of.batch * vectors * len, seed).into_iter().map(f16::from_f32).collect()
        };
        let (k, v) =
            (halves(of.kv_heads * of.kv_len, of.head, 1), halves(of.kv_heads * of.kv_len, of.v_head, 2));
        let wide = [&k, &v].map(|halves| halves.iter().map(|v| v.to_f32()).collect::<Vec<f32>>());
        let q = values(of.batch * of.q_heads * of.q_len * of.head, 3);
        let given =
            Attended { q: &q, k: &wide[0], v: &wide[1], mask: MaskData::None, lens: None, sink: Sink::None };
        let run = |rows| {
            let mut y = vec![9.0f32; of.batch * of.q_heads * of.q_len * of.v_head];
            of.few_of(&given, rows, &mut y).map(|()| y)
        };
        let want = run([Rows::Lie(&wide[0], of.k), Rows::Lie(&wide[1], of.v)]).unwrap();
        assert_eq!(run([Rows::Halves(&k, of.k), Rows::Halves(&v, of.v)]).unwrap(), want);
        let read =
            |from: &[f32], steps: Steps, [batch, head]: [usize; 2], first: usize, to: &mut [f32], size| {
                for (row, to) in to.chunks_mut(size).enumerate() {
                    to.copy_from_slice(from_to(from, steps.vector([batch, head, first + row]), size)?);
                }
                Ok(())
            };
        let keys: &ReadRows<'_> = &|at, first, to| read(&wide[0], of.k, at, first, to, of.head);
        let all: &ReadRows<'_> = &|at, first, to| read(&wide[1], of.v, at, first, to, of.v_head);
        assert_eq!(run([Rows::Read(keys), Rows::Read(all)]).unwrap(), want);
        // Rows that are not there.
        assert!(run([Rows::Halves(&k[1..], of.k), Rows::Read(all)]).is_err());
        assert!(run([Rows::Read(keys), Rows::Lie(&wide[1][1..], of.v)]).is_err());
    }

    /// Keys whose scores are no numbers make no numbers, as in one sum; hidden ones do not.
    #[test]
    fn parts_that_are_no_numbers_are_no_numbers_together() {
        let part = |top: f32, total: f32| [1.0, 2.0, top, total];
        let of = |parts: &[[f32; 4]], sink: Option<f32>| {
            let mut y = [9.0f32; 2];
            join(|| parts.iter().map(|part| &part[..]), sink, &mut y);
            y
        };
        let hidden = [0.0, 0.0, f32::NEG_INFINITY, 0.0];
        assert_eq!(of(&[part(3.0, 2.0), hidden], None), [0.5, 1.0]);
        assert_eq!(of(&[part(3.0, 2.0), part(3.0, 2.0)], None), [0.5, 1.0]);
        assert_eq!(of(&[part(3.0, 1.0)], Some(3.0)), [0.5, 1.0]);
        assert_eq!(of(&[hidden, hidden], Some(0.0)), [0.0, 0.0]);
        assert_eq!(of(&[], None), [0.0, 0.0]);
        assert!(of(&[part(f32::NAN, f32::NAN), part(3.0, 2.0)], None).iter().all(|y| y.is_nan()));
    }
}
