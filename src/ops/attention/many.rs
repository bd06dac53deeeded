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
    y: &'y mut [f32],
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

    /// Writes the output as `[batch, q_heads, q_len, v_head]`.
    pub(super) fn many(&self, given: &Attended<'_, f32>, mut y: &mut [f32]) -> Result<(), KernelError> {
        let of_head = self.q_len.div_ceil(BLOCK);
        let of_group = of_head * self.share();
        let groups = self.batch * self.kv_heads;
        let each = (groups * of_group).div_ceil(TASKS * par::threads()).clamp(1, of_group);
        let each = of_group.div_ceil(of_group.div_ceil(each));
        let begin = |block: usize| {
            (block / of_head * self.q_len + (block % of_head * BLOCK).min(self.q_len)) * self.v_head
        };
        let mut jobs = Vec::new();
        for group in 0..groups {
            for block in (0..of_group).step_by(each) {
                let blocks = block..of_group.min(block + each);
                let len = begin(blocks.end) - begin(block);
                let (own, rest) = y.split_at_mut(len);
                y = rest;
                jobs.push(Job { batch: group / self.kv_heads, kv: group % self.kv_heads, blocks, y: own });
            }
        }
        par::try_share(jobs.into_iter(), |job| self.blocks(given, job))
    }

    fn blocks(&self, given: &Attended<'_, f32>, job: Job<'_>) -> Result<(), KernelError> {
        let Job { batch, kv, blocks, mut y } = job;
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
            let (own, rest) = y.split_at_mut(block.rows * self.v_head);
            y = rest;
            if block.keys.is_empty() {
                own.fill(0.0);
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
            let from = tail(all, of.first + batch * of.batch + head * of.head + keys.start * of.row)?;
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
        y: &mut [f32],
    ) -> Result<(), KernelError> {
        let Block { batch, head, first, rows, keys } = block;
        let at = self.q.first + batch * self.q.batch + head * self.q.head + first * self.q.row;
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
            .part(rows, panels, scores);
        let (valid, offset) = self.valid(given.lens, batch);
        let mut factors = [0.0; BLOCK];
        for ((i, row), factor) in (first..).zip(scores.chunks_exact_mut(len)).zip(&mut factors) {
            let seen = self.seen(i, valid, offset);
            let [seen_low, seen_high] = [seen.0, seen.1].map(|key| key.clamp(from, from + len) - from);
            let (masks, at) = ((given.mask, given.sink.of(head)), [batch, head, i, from]);
            *factor = self.exponentials(masks, at, (seen_low, seen_high), row, None);
        }
        let layout = laid.by_value;
        ByPanels { a: scores, a_row: len, layout, depth, panels: &laid.v, start, epilogue }.part(
            rows,
            0..layout.panels(),
            y,
        );
        for (y, factor) in y.chunks_exact_mut(self.v_head).zip(factors) {
            y.iter_mut().for_each(|y| *y *= factor);
        }
        Ok(())
    }
}
