//! Attention of many queries on the CPU: the keys and the values of a head are laid as tiles read them, once for some blocks of
//! queries.

use std::ops::Range;

use super::scaled::{Attended, BLOCK, Scaled, Steps, tail};
use crate::kernel::KernelError;
use crate::ops::linalg::panels::{ByPanels, Layout};
use crate::ops::linalg::product::Mat;
use crate::ops::linalg::tile::{Start, has_vectors};
use crate::ops::scratch::Scratch;
use crate::ops::{Activation, par};

/// The fewest queries for which it pays to lay keys and values.
const FEWEST: usize = 32;
/// Tasks for each thread.
const TASKS: usize = 4;

/// Blocks of queries of the heads that read the same keys: `blocks` of those of one head after another.
struct Job<'y> {
    batch: usize,
    kv: usize,
    blocks: Range<usize>,
    /// The rows of the output.
    y: Vec<&'y mut [f32]>,
}

/// Some queries of one head.
struct Block {
    batch: usize,
    head: usize,
    first: usize,
    rows: usize,
    /// Those that some of them sees, and more between them.
    keys: Range<usize>,
}

/// Keys and values of one head as tiles read them: keys as columns, values as rows.
struct Laid {
    keys: Range<usize>,
    by_key: Layout,
    by_value: Layout,
    k: Scratch<f32>,
    v: Scratch<f32>,
}

impl Scaled {
    /// Whether [`Scaled::many`] is the fast way.
    pub(super) fn is_many(&self) -> bool {
        self.q_len > FEWEST && self.kv_len >= FEWEST && has_vectors()
    }

    /// Writes the output.
    pub(super) fn many(&self, given: &Attended<'_, f32>, y: &mut [f32]) -> Result<(), KernelError> {
        let of_head = self.q_len.div_ceil(BLOCK);
        let of_group = of_head * self.share();
        let groups = self.batch * self.kv_heads;
        let each = (groups * of_group).div_ceil(TASKS * par::threads()).clamp(1, of_group);
        let each = of_group.div_ceil(of_group.div_ceil(each));
        let mut vectors: Vec<Option<&mut [f32]>> = y.chunks_exact_mut(self.v_head).map(Some).collect();
        let mut jobs = Vec::new();
        for group in 0..groups {
            let (batch, kv) = (group / self.kv_heads, group % self.kv_heads);
            for block in (0..of_group).step_by(each) {
                let blocks = block..of_group.min(block + each);
                let queries = blocks.clone().flat_map(|block| {
                    let (head, first) = (kv * self.share() + block / of_head, block % of_head * BLOCK);
                    (first..self.q_len.min(first + BLOCK)).map(move |i| (head, i))
                });
                let steps = &self.y;
                let place = |(head, i)| steps.vector([batch, head, i]);
                let y = queries.filter_map(|query| vectors.get_mut(place(query) / self.v_head)?.take());
                jobs.push(Job { batch, kv, blocks, y: y.collect() });
            }
        }
        par::try_share(jobs.into_iter(), |job| self.blocks(given, job))
    }

    fn blocks(&self, given: &Attended<'_, f32>, job: Job<'_>) -> Result<(), KernelError> {
        let Job { batch, kv, blocks, mut y } = job;
        let mut y = &mut y[..];
        let of_head = self.q_len.div_ceil(BLOCK);
        let (valid, offset) = self.valid(given.lens, batch);
        let block = |n: usize| {
            let first = n % of_head * BLOCK;
            let rows = BLOCK.min(self.q_len - first);
            let low = self.seen(first, valid, offset).0;
            let high = self.seen(first + rows - 1, valid, offset).1.max(low);
            Block { batch, head: kv * self.share() + n / of_head, first, rows, keys: low..high }
        };
        let seen = blocks.clone().map(|n| block(n).keys).filter(|keys| !keys.is_empty());
        let low = seen.clone().map(|keys| keys.start).min().unwrap_or(0);
        let laid = self.lay(given, [batch, kv], low..seen.map(|keys| keys.end).max().unwrap_or(low))?;
        let mut scores = Scratch::new(BLOCK.min(self.q_len) * laid.keys.len());
        for n in blocks {
            let block = block(n);
            let (own, rest) = y.split_at_mut(block.rows.min(y.len()));
            y = rest;
            if block.keys.is_empty() {
                own.iter_mut().for_each(|y| y.fill(0.0));
            } else {
                self.block_of(given, &laid, block, &mut scores, own)?;
            }
        }
        Ok(())
    }

    /// Lays `keys` of one head.
    fn lay(
        &self,
        given: &Attended<'_, f32>,
        [batch, head]: [usize; 2],
        keys: Range<usize>,
    ) -> Result<Laid, KernelError> {
        // The vectors from the first key on, the last of which is whole.
        let vectors = |all, of: &Steps, len: usize| {
            let from = tail(all, of.vector([batch, head, keys.start]))?;
            let last = keys.len().checked_sub(1).map_or(0, |last| last * of.row + len);
            tail(from, last).map(|_| from)
        };
        let (k, v) = (vectors(given.k, &self.k, self.head)?, vectors(given.v, &self.v, self.v_head)?);
        let (by_key, by_value) = (Layout::new(self.head, keys.len()), Layout::new(keys.len(), self.v_head));
        let (mut laid_k, mut laid_v) = (Scratch::new(by_key.len()), Scratch::new(by_value.len()));
        by_key.pack(Mat { data: k, row: 1, col: self.k.row }, &mut laid_k);
        by_value.pack(Mat { data: v, row: self.v.row, col: 1 }, &mut laid_v);
        Ok(Laid { keys, by_key, by_value, k: laid_k, v: laid_v })
    }

    /// Writes the rows of one block; `scores` has room for those of all keys that are laid.
    fn block_of(
        &self,
        given: &Attended<'_, f32>,
        laid: &Laid,
        block: Block,
        scores: &mut [f32],
        y: &mut [&mut [f32]],
    ) -> Result<(), KernelError> {
        let Block { batch, head, first, rows, keys } = block;
        let at = self.q.vector([batch, head, first]);
        let q = tail(given.q, at)?;
        tail(q, (rows - 1) * self.q.row + self.head)?;
        // Whole panels have some keys more than are seen.
        let low = laid.keys.start;
        let panels = laid.by_key.of_columns(keys.start - low..keys.end - low);
        let depth = laid.by_key.first(panels.start)..laid.by_key.first(panels.end).min(laid.keys.len());
        let (len, from) = (depth.len(), low + depth.start);
        let scores = &mut scores[..rows * len];
        let (start, epilogue) = (Start::Zero, Activation::None.into());
        let (layout, whole) = (laid.by_key, 0..self.head);
        ByPanels { a: q, a_row: self.q.row, layout, depth: whole, panels: &laid.k, start, epilogue }
            .part(panels, &mut scores.chunks_exact_mut(len).collect::<Vec<_>>());
        let (valid, offset) = self.valid(given.lens, batch);
        let mut factors = [0.0; BLOCK];
        for ((i, row), factor) in (first..).zip(scores.chunks_exact_mut(len)).zip(&mut factors) {
            let seen = self.seen(i, valid, offset);
            let [seen_low, seen_high] = [seen.0, seen.1].map(|key| key.clamp(from, from + len) - from);
            let (masks, at) = ((given.mask, given.sink.of(head)), [batch, head, i, from]);
            *factor = self.exponentials(masks, at, (seen_low, seen_high), row, None);
        }
        let layout = laid.by_value;
        ByPanels { a: scores, a_row: len, layout, depth, panels: &laid.v, start, epilogue }
            .part(0..layout.panels(), y);
        for (y, factor) in y.iter_mut().zip(factors) {
            y.iter_mut().for_each(|y| *y *= factor);
        }
        Ok(())
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::ops::attention::scaled::{MaskData, MaskSteps, Sink};
    use crate::ops::par::of_threads;
    use crate::ops::test_util::values;

    pub(in super::super) fn scaled(
        heads: [usize; 2],
        [q_len, kv_len]: [usize; 2],
        [head, v_head]: [usize; 2],
    ) -> Scaled {
        let [q_heads, kv_heads] = heads;
        Scaled {
            batch: 2,
            q_heads,
            kv_heads,
            q_len,
            kv_len,
            head,
            v_head,
            q: Steps::rows_first(q_heads, q_len, head),
            k: Steps::heads_first(kv_heads, kv_len, head),
            v: Steps::rows_first(kv_heads, kv_len, v_head),
            y: Steps::rows_first(q_heads, q_len, v_head),
            mask: None,
            scale: 0.3,
            softcap: 0.0,
            causal: false,
            left: None,
            right: None,
            offset: kv_len.saturating_sub(q_len),
            lens_add: 0,
        }
    }

    /// `f64` is computed without panels.
    fn check(of: &Scaled, lens: Option<&[i64]>, sink: bool, bools: bool) {
        let [q, k, v] = [(of.q_heads * of.q_len, of.head), (of.kv_heads * of.kv_len, of.head)]
            .into_iter()
            .chain([(of.kv_heads * of.kv_len, of.v_head)])
            .enumerate()
            .map(|(i, (vectors, len))| values(of.batch * vectors * len, 1 + i as u64))
            .collect::<Vec<_>>()
            .try_into()
            .unwrap();
        let sinks = values(of.q_heads, 4);
        let elements = of.mask.map_or(0, |mask| mask.elements);
        let hidden = |i: &usize| i % 7 == 3;
        let added: Vec<f32> = (0..elements)
            .map(|i| if hidden(&i) { f32::NEG_INFINITY } else { i as f32 % 3.0 - 1.0 })
            .collect();
        let shown: Vec<u8> = (0..elements).map(|i| u8::from(!hidden(&i))).collect();
        let doubled = |x: &[f32]| x.iter().map(|x| f64::from(*x)).collect::<Vec<_>>();
        let wide = [&q, &k, &v, &added, &sinks].map(|x: &Vec<f32>| doubled(x));
        let mut want = vec![9.0f64; of.batch * of.q_heads * of.q_len * of.v_head];
        let given = Attended {
            q: &wide[0],
            k: &wide[1],
            v: &wide[2],
            mask: if bools { MaskData::Bool(&shown) } else { MaskData::Add(&wide[3]) },
            lens,
            sink: if sink { Sink::Heads(&wide[4]) } else { Sink::None },
        };
        of.attend(&given, &mut want, None).unwrap();
        let given = Attended {
            q: &q,
            k: &k,
            v: &v,
            mask: if bools { MaskData::Bool(&shown) } else { MaskData::Add(&added) },
            lens,
            sink: if sink { Sink::Heads(&sinks[..]) } else { Sink::None },
        };
        for threads in [1, 5] {
            let mut got = vec![9.0f32; want.len()];
            of_threads(threads, || of.attend(&given, &mut got, None)).unwrap();
            for (i, (got, want)) in got.iter().zip(&want).enumerate() {
                assert!((f64::from(*got) - want).abs() < 2e-6, "{i}: {got}, expected {want}, of {of:?}");
            }
        }
    }

    /// Checks what `plain` computes with every kind of mask and bound.
    pub(in super::super) fn check_all(plain: &Scaled) {
        let keys = plain.kv_len;
        let mask = |len: usize| MaskSteps {
            batch: plain.q_len * len,
            head: 0,
            row: len,
            key: 1,
            len,
            elements: plain.batch * plain.q_len * len,
        };
        let masked = Scaled { mask: Some(mask(keys)), ..plain.clone() };
        let causal = Scaled { causal: true, ..plain.clone() };
        let window = Scaled { left: Some(9), right: Some(20), ..plain.clone() };
        let all = [
            plain.clone(),
            causal.clone(),
            masked.clone(),
            window.clone(),
            Scaled { softcap: 0.5, ..causal.clone() },
            Scaled { left: Some(0), ..causal.clone() },
            Scaled { mask: Some(mask(keys - 3)), ..window },
            Scaled { scale: -0.5, ..plain.clone() },
            Scaled { mask: masked.mask, ..causal },
        ];
        let lens = [keys as i64 - 5, 3];
        for of in &all {
            for lens in [None, Some(&lens[..])] {
                check(of, lens, false, false);
                check(of, lens, true, true);
            }
        }
    }

    #[test]
    fn many_queries_attend_as_few() {
        if !has_vectors() {
            return;
        }
        for (heads, rows, sizes) in [
            ([2, 2], [33, 33], [8, 8]),
            ([6, 2], [70, 130], [5, 40]),
            ([3, 1], [150, 150], [64, 17]),
            ([2, 1], [40, 300], [40, 3]),
        ] {
            let plain = scaled(heads, rows, sizes);
            assert!(plain.is_many());
            check_all(&plain);
        }
    }
}
