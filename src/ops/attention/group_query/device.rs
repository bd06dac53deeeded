//! GroupQueryAttention on devices.

use super::super::cache::{Append, CodedRows, coded};
use super::super::device::{Fresh, Places, in_matrices, lower_scaled};
use super::super::rotary::{Positions, Rotation};
use super::super::scaled::{Scaled, Sink, Steps};
use super::{
    ADDED, COS, GroupQueryAttention, IDS, K, K_SCALE, LAST, PAST_K, PAST_V, Q, Resolved, SIN, SINKS, V_SCALE,
};
use crate::dtype::DType;
use crate::ops::movement::region::{self, Block};
use crate::ops::{Lowering, OpCx, OpError, Operand};

impl Resolved {
    /// Cosines and sines, where vectors are rotated.
    fn tables(&self) -> [Operand; 2] {
        [COS, SIN].map(|i| if self.moves[0].rotated > 0 { Operand::Input(i) } else { Operand::Unused })
    }

    /// Emits rotated vectors to memory of their own.
    fn aside(
        &self,
        turn: &Rotation,
        from: Operand,
        dtype: DType,
        lower: &mut Lowering<'_>,
    ) -> Result<Operand, OpError> {
        let to = lower.scratch(turn.elements() * dtype.bytes());
        let given = turn.positions == Positions::Each;
        let (ids, words) = if given { (IDS, 2) } else { (LAST, 1) };
        let [cos, sin] = self.tables();
        turn.lower(dtype, words, [from, cos, sin, Operand::Input(ids), to], lower)?;
        Ok(to)
    }

    /// The new keys and values, where the attention itself can write them into the caches: `from` are queries, keys and
    /// values as they are given.
    fn fresh(
        &self,
        [_, k, v]: [Operand; 3],
        tables: [Operand; 2],
        dtype: DType,
        lower: &Lowering<'_>,
    ) -> Option<Fresh> {
        let Rotation { rotated, rows, interleaved, x, .. } = self.moves[0];
        let fresh = Fresh { packed: self.from[K] == Q, k, v, tables, rotated, rows, interleaved };
        let s = Scaled { q: x, ..self.scaled.clone() };
        // The attention takes a prompt's rows to be where its queries are, which a causal one's are.
        let in_order = !self.prompt() || self.scaled.causal;
        let plain = self.coded.is_none() && self.turned.is_none();
        (plain && in_order && fresh.fits(&s, dtype, lower)).then_some(fresh)
    }
}

impl GroupQueryAttention {
    /// Emits it.
    pub(super) fn lower(&self, cx: &OpCx, lower: &mut Lowering<'_>) -> Result<(), OpError> {
        let resolved = self.resolve(cx)?;
        if let Some(rows) = &resolved.coded {
            return self.lower_coded(cx, &resolved, rows, lower);
        }
        let s = &resolved.scaled;
        let dtype = cx.dtype(Q)?;
        let rotates = resolved.moves[0].rotated > 0;
        let [cos, sin] = resolved.tables();
        let args = |from, to| [from, cos, sin, Operand::Input(LAST), to];
        let mut q = Operand::Input(Q);
        let mut from = resolved.from.map(Operand::Input);
        let fresh = resolved.fresh(from, [cos, sin], dtype, lower);
        if rotates && fresh.is_none() {
            q = resolved.aside(&resolved.moves[0], q, dtype, lower)?;
        }
        if let Some(turned) = &resolved.turned {
            from[K] = resolved.aside(turned, from[K], dtype, lower)?;
        }
        for (n, past) in [(1, PAST_K), (2, PAST_V)] {
            let to = Operand::Output(n);
            if !resolved.updates && s.kv_len > resolved.past_len {
                // Rows that no sequence has reached become zeros.
                region::zeros(lower, cx, n)?;
            }
            if !resolved.updates && resolved.past_len > 0 {
                resolved.past().lower(dtype, 1, args(Operand::Input(past), to), lower)?;
            }
            if fresh.is_none() {
                resolved.moves[n].lower(dtype, 1, args(from[n], to), lower)?;
            }
        }
        let places = Places { q, fresh, ..self.operands(cx, &resolved)? };
        let given = Scaled { q: resolved.moves[0].x, ..s.clone() };
        lower_scaled(if fresh.is_some() { &given } else { s }, &places, lower)
    }

    /// Where the operands lie, with queries and caches as they are.
    fn operands(&self, cx: &OpCx, resolved: &Resolved) -> Result<Places, OpError> {
        let (dtype, added, lens) = (cx.dtype(Q)?, cx.has(ADDED), resolved.bounded());
        Ok(Places {
            dtype,
            q: Operand::Input(Q),
            k: Operand::Output(1),
            v: Operand::Output(2),
            mask: if added { Operand::Input(ADDED) } else { Operand::Unused },
            mask_type: added.then_some(dtype),
            lens: if lens { Operand::Input(LAST) } else { Operand::Unused },
            lens_words: u32::from(lens),
            y: Operand::Output(0),
            scores: None,
            sink: match (cx.has(SINKS), self.smooth) {
                (true, _) => Sink::Heads(Operand::Input(SINKS)),
                (false, true) => Sink::Zero,
                (false, false) => Sink::None,
            },
            fresh: None,
            paged: None,
            coded: None,
        })
    }

    /// As [`GroupQueryAttention::lower`], where caches have another type than keys and values.
    fn lower_coded(
        &self,
        cx: &OpCx,
        resolved: &Resolved,
        rows: &[CodedRows; 2],
        lower: &mut Lowering<'_>,
    ) -> Result<(), OpError> {
        /// The most bytes of the numbers of keys or values.
        const MOST_DECODED: usize = 256 << 20;
        /// Queries from which on reading codes again and again takes longer than their numbers.
        const LEAST_QUERIES: usize = 32;
        let (s, dtype) = (&resolved.scaled, cx.dtype(Q)?);
        let (row, past_len) = (rows[0].row_words()?, resolved.past_len);
        let (mut q, mut from, mut moves) =
            (Operand::Input(Q), resolved.from.map(Operand::Input), resolved.moves);
        if let Some(turned) = &resolved.turned {
            q = resolved.aside(&moves[0], q, dtype, lower)?;
            from[K] = resolved.aside(turned, from[K], dtype, lower)?;
            moves[0].rotated = 0;
        }
        for (n, past) in [(1, PAST_K), (2, PAST_V)].into_iter().filter(|_| !resolved.updates) {
            if s.kv_len > past_len {
                // Rows that no sequence has reached become codes of zeros.
                lower.fill(Operand::Output(n), u32::from_ne_bytes([rows[n - 1].zero(); 4]));
            }
            let block = Block {
                dims: vec![s.batch * s.kv_heads, past_len * row],
                src_strides: vec![(past_len * row) as isize, 1],
                dst_strides: vec![(s.kv_len * row) as isize, 1],
                ..Block::default()
            };
            region::copy_block(lower, block, Operand::Input(past), Operand::Output(n), 4)?;
        }
        let has_scales = self.cache.has_scales();
        let scales = [K_SCALE, V_SCALE].map(|i| if has_scales { Operand::Input(i) } else { Operand::Unused });
        let turns = moves[0].rotated > 0;
        let turned = if turns { lower.scratch(moves[0].elements() * dtype.bytes()) } else { Operand::Unused };
        let operands = (from, resolved.tables(), Operand::Input(LAST), scales);
        let to = [turned, Operand::Output(1), Operand::Output(2)];
        Append { moves, rows: *rows }.lower(dtype, operands, to, lower)?;
        let places = Places { q: if turns { turned } else { q }, ..self.operands(cx, resolved)? };
        let numbers = s.batch * s.kv_heads * s.kv_len * s.head * dtype.bytes();
        let decodes = s.q_len >= LEAST_QUERIES || in_matrices(s, &places, lower);
        if numbers <= MOST_DECODED && decodes {
            let [k, v] = [lower.scratch(numbers), lower.scratch(numbers)];
            for ((rows, scales), (cache, to)) in rows.iter().zip(scales).zip([(places.k, k), (places.v, v)]) {
                rows.lower_decode(dtype, [cache, scales, places.lens, to], s.q_len, lower)?;
            }
            return lower_scaled(s, &Places { k, v, ..places }, lower);
        }
        let steps = Steps::heads_first(s.kv_heads, s.kv_len, row);
        let s = Scaled { k: steps, v: steps, ..s.clone() };
        lower_scaled(&s, &Places { coded: Some(coded([&rows[0], &rows[1]], scales)), ..places }, lower)
    }
}
