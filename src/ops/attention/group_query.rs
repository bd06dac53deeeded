//! com.microsoft's GroupQueryAttention: attention that rotates queries and keys and keeps a cache whose
//! sequences have lengths of their own.

use std::sync::Arc;

use super::attention_op::mask_steps;
use super::cache::CacheCodes;
use super::device::{Fresh, Places, lower_scaled};
use super::rotary::{Positions, Rotation, Tables};
use super::scaled::{Attended, MaskData, Scaled, Sink, Steps, check_sizes};
use super::{FLOATS_TO_32, count};
use crate::dtype::DType;
use crate::graph::{Tensor, TensorInfo};
use crate::kernel::{KernelError, NativeKernel};
use crate::ops::movement::region;
use crate::ops::real::{
    Halves, Real, RealInputs, RealIo, RealKernel, Updated, check_len, mixed_kernel, real_kernel,
};
use crate::ops::window::bad;
use crate::ops::{AttrReader, Cost, Lowering, OpCx, OpError, Operand, Operator};
use crate::shape::Shape;

// Positions of the inputs.
const Q: usize = 0;
const K: usize = 1;
const V: usize = 2;
const PAST_K: usize = 3;
const PAST_V: usize = 4;
const LAST: usize = 5;
const TOTAL: usize = 6;
const COS: usize = 7;
const SIN: usize = 8;
const IDS: usize = 9;
const ADDED: usize = 10;
const SINKS: usize = 11;
const K_SCALE: usize = 12;
const V_SCALE: usize = 13;

/// Inputs: query, key, value (or all three in the first), past keys and values, the number of valid keys of
/// each sequence less one, the largest number of them, cosines, sines, positions, an attention bias and a sink for
/// each head of queries: a score that takes part in the softmax and has no value; then the scales of keys and of
/// values where caches are codes. Outputs: the result and the present keys and values. Of a cache of codes all is
/// read as the codes have it, new keys and values too.
#[derive(Clone, Copy, Debug)]
pub struct GroupQueryAttention {
    /// Heads of queries.
    pub heads: usize,
    /// Heads of keys and values, which divide them.
    pub kv_heads: usize,
    /// Factor of the products; one over the root of the size of a head where there is none.
    pub scale: Option<f32>,
    /// Scores become `cap * tanh(score / cap)`; 0 is none.
    pub softcap: f32,
    /// Number of keys that a query sees, its own included, where bounded.
    pub window: Option<usize>,
    /// Whether queries and keys are rotated, and whether pairs are neighbours.
    pub rotary: Option<bool>,
    /// Whether a query sees no key after its own position.
    pub causal: bool,
    /// Whether zero takes part in the softmax, where no sinks are given.
    pub smooth: bool,
    /// Bits of the codes that caches are of, 4 or 8.
    pub cache_bits: Option<usize>,
    /// Rows of the caches that outputs 1 and 2 hold, where they are updated in place.
    pub updates: Option<usize>,
}

pub(super) fn read(attrs: &mut AttrReader<'_>, _opset: i64) -> Result<Arc<dyn Operator>, OpError> {
    for (name, plain) in [("sliding_window_cache", 0), ("qk_output", 0)] {
        if attrs.int(name, plain)? != plain {
            return Err(OpError::unsupported(format!("GroupQueryAttention with {name}")));
        }
    }
    let coded = [attrs.str("k_quant_type", "NONE")?, attrs.str("v_quant_type", "NONE")?];
    let cache_bits = match (coded.map(|kind| kind != "NONE"), attrs.int("kv_cache_bit_width", 0)?) {
        ([false, false], _) => None,
        ([true, true], bits @ (4 | 8)) => Some(bits as usize),
        ([true, true], bits) => {
            return Err(OpError::unsupported(format!("GroupQueryAttention with a cache of {bits} bits")));
        }
        _ => {
            return Err(OpError::unsupported(
                "GroupQueryAttention with one cache of codes and one of numbers",
            ));
        }
    };
    attrs.float_opt("qk_norm_epsilon")?;
    let interleaved = attrs.flag("rotary_interleaved", false)?;
    let window = usize::try_from(attrs.int("local_window_size", -1)?).ok();
    let causal = attrs.flag("causal", true)?;
    if !causal && window.is_some() {
        return Err(OpError::unsupported("GroupQueryAttention with a window that is not causal"));
    }
    Ok(Arc::new(GroupQueryAttention {
        heads: count(attrs, "num_heads", 1)?,
        kv_heads: count(attrs, "kv_num_heads", 1)?,
        scale: attrs.float_opt("scale")?.filter(|s| *s != 0.0),
        softcap: attrs.float("softcap", 0.0)?.max(0.0),
        window,
        rotary: attrs.flag("do_rotary", false)?.then_some(interleaved),
        causal,
        smooth: attrs.int("smooth_softmax", -1)? > 0,
        cache_bits,
        updates: None,
    }))
}

#[derive(Clone, Debug)]
struct Resolved {
    scaled: Scaled,
    /// Which inputs queries, keys and values are in.
    from: [usize; 3],
    /// Queries rotated, keys rotated into the cache, values copied into it.
    moves: [Rotation; 3],
    past_len: usize,
    sizes: [usize; 14],
    /// Keys rotated by given positions, before they are copied into the cache.
    turned: Option<Rotation>,
    smooth: bool,
    /// The codes of keys and of values.
    codes: Option<[CacheCodes; 2]>,
    /// Whether the caches are updated in place.
    updates: bool,
}

impl GroupQueryAttention {
    fn resolve(&self, cx: &OpCx) -> Result<Resolved, OpError> {
        let (h, g) = (self.heads, self.kv_heads);
        if !h.is_multiple_of(g) {
            return Err(bad("num_heads", format!("is {h}, no multiple of kv_num_heads, {g}")));
        }
        let &[batch, q_len, width] = cx.shape(Q)?.dims() else {
            return Err(cx.shape_error(Q, "[batch, length, heads * size]"));
        };
        let packed = !cx.has(K);
        let parts = if packed { h + 2 * g } else { h };
        if !width.is_multiple_of(parts) || cx.has(V) == packed {
            return Err(cx.shape_error(Q, format!("a last axis of {parts} heads")));
        }
        let size = width / parts;
        let steps = |heads: usize, first: usize| match packed {
            true => Steps { first: first * size, batch: q_len * width, head: size, row: width },
            false => Steps::rows_first(heads, q_len, size),
        };
        if !packed {
            for i in [K, V] {
                if cx.shape(i)?.dims() != [batch, q_len, g * size] {
                    return Err(cx.shape_error(i, format!("[{batch}, {q_len}, {}]", g * size)));
                }
            }
        }
        let past_len = match (self.updates, cx.has(PAST_K)) {
            (Some(rows), _) => rows,
            (None, true) => cx.shape(PAST_K)?.get(2).copied().unwrap_or(0),
            (None, false) => 0,
        };
        let stored = self.stored(size);
        for i in [PAST_K, PAST_V].into_iter().filter(|i| cx.has(*i)) {
            if cx.shape(i)?.dims() != [batch, g, past_len, stored] {
                return Err(cx.shape_error(i, format!("[{batch}, {g}, {past_len}, {stored}]")));
            }
        }
        if cx.shape(LAST)?.elements() != batch {
            return Err(cx.shape_error(LAST, format!("[{batch}]")));
        }
        let total = match cx.need_i64s(TOTAL)?[..] {
            [n] if n >= q_len as i64 && n <= i64::from(i32::MAX) => n as usize,
            _ => {
                let problem = format!("must be one number of at least {q_len}, the length of the query");
                return Err(OpError::Value { input: TOTAL, problem });
            }
        };
        let kv_len = past_len.max(total);
        check_sizes(batch, [h, g], [q_len, kv_len], [size; 2])?;
        // A prompt begins at position 0; later tokens end where their sequence does.
        let prompt = total == q_len;
        let positions = if prompt { Positions::Place } else { Positions::Last };
        let mut rotated = 0;
        let mut rows = 1;
        let given = cx.has(IDS) && self.rotary.is_some();
        if given && cx.shape(IDS)?.elements() != batch * q_len {
            return Err(cx.shape_error(IDS, format!("[{batch}, {q_len}]")));
        }
        if self.rotary.is_some() {
            let &[n, pairs] = cx.shape(COS)?.dims() else {
                return Err(cx.shape_error(COS, "two dimensions"));
            };
            if cx.shape(SIN)?.dims() != [n, pairs] || 2 * pairs > size || n < total {
                return Err(cx.shape_error(SIN, format!("at least {total} rows of at most {}", size / 2)));
            }
            (rotated, rows) = (2 * pairs, n);
        }
        let turn = |heads: usize, first: usize, rotated: usize| Rotation {
            batch,
            heads,
            len: q_len,
            head: size,
            rotated,
            rows,
            interleaved: self.rotary.unwrap_or(false),
            positions,
            x: steps(heads, first),
            y: Steps::heads_first(heads, kv_len, size),
            append: true,
            y_rows: kv_len,
        };
        // Positions that are given tell the angle, but not the place in the cache.
        let angle = if given { Positions::Each } else { positions };
        let aside = |heads: usize, first: usize| Rotation {
            positions: angle,
            y: Steps::rows_first(heads, q_len, size),
            append: false,
            y_rows: q_len,
            ..turn(heads, first, rotated)
        };
        let query = aside(h, 0);
        let mut moves = [query, turn(g, h, rotated), turn(g, h + g, 0)];
        let turned = given.then(|| aside(g, h));
        if let Some(turned) = turned {
            moves[1] = Rotation { x: turned.y, ..turn(g, h, 0) };
        }
        let mask = match cx.has(ADDED) {
            true => Some(mask_steps(cx, ADDED, [batch, h, q_len, kv_len])?),
            false => None,
        };
        let scaled = Scaled {
            batch,
            q_heads: h,
            kv_heads: g,
            q_len,
            kv_len,
            head: size,
            v_head: size,
            q: if rotated > 0 { query.y } else { query.x },
            k: moves[1].y,
            v: moves[2].y,
            y: Steps::rows_first(h, q_len, size),
            mask,
            scale: self.scale.unwrap_or(1.0 / (size.max(1) as f32).sqrt()),
            softcap: self.softcap,
            causal: self.causal,
            left: self.window.map(|w| w.saturating_sub(1)),
            right: None,
            offset: 0,
            lens_add: 1,
        };
        let from = if packed { [Q; 3] } else { [Q, K, V] };
        let sizes = std::array::from_fn(|i| cx.input_opt(i).map_or(0, TensorInfo::elements));
        if cx.has(SINKS) && sizes[SINKS] != h {
            return Err(cx.shape_error(SINKS, format!("[{h}]")));
        }
        let codes = match self.cache_bits {
            Some(4) if !size.is_multiple_of(2) => {
                return Err(cx.shape_error(Q, "heads of an even size, for two codes in a byte"));
            }
            Some(bits) => {
                let mut codes = [CacheCodes {
                    bits,
                    channels: false,
                    batch,
                    heads: g,
                    rows: kv_len,
                    past_rows: past_len,
                    size,
                }; 2];
                for (i, codes) in [K_SCALE, V_SCALE].into_iter().zip(&mut codes) {
                    codes.channels = sizes[i] != 1;
                    if sizes[i] != codes.scales() {
                        return Err(cx.shape_error(i, format!("[1] or [1, {g}, 1, {size}]")));
                    }
                }
                Some(codes)
            }
            None => None,
        };
        Ok(Resolved {
            scaled,
            from,
            moves,
            past_len,
            sizes,
            turned,
            smooth: self.smooth,
            codes,
            updates: self.updates.is_some(),
        })
    }

    /// The last axis of a cache of vectors of `size` elements.
    fn stored(&self, size: usize) -> usize {
        if self.cache_bits == Some(4) { size / 2 } else { size }
    }
}

impl Resolved {
    fn prompt(&self) -> bool {
        self.moves[1].positions == Positions::Place
    }

    /// Whether the numbers of valid keys limit the visible keys: a causal prompt has no keys after its own.
    fn bounded(&self) -> bool {
        !self.prompt() || !self.scaled.causal
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
        let plain = self.codes.is_none() && self.turned.is_none();
        (plain && in_order && fresh.fits(&s, dtype, lower)).then_some(fresh)
    }

    /// The copy of past vectors into the cache.
    fn past(&self) -> Rotation {
        let new = self.moves[2];
        Rotation {
            len: self.past_len,
            positions: Positions::Place,
            x: Steps::heads_first(new.heads, self.past_len, new.head),
            append: false,
            ..new
        }
    }
}

impl Operator for GroupQueryAttention {
    fn name(&self) -> &'static str {
        "GroupQueryAttention"
    }

    fn value_inputs(&self) -> &'static [usize] {
        &[TOTAL]
    }

    fn updating(&self, pairs: &[(usize, usize)], cx: &OpCx) -> Option<Arc<dyn Operator>> {
        let both = matches!(pairs, [(PAST_K, 1), (PAST_V, 2)] | [(PAST_V, 2), (PAST_K, 1)]);
        let rows = *cx.shape(PAST_K).ok()?.get(2)?;
        let op = GroupQueryAttention { updates: Some(rows), ..*self };
        (both && self.cache_bits.is_none()).then(|| Arc::new(op) as _)
    }

    fn updates(&self, output: usize) -> bool {
        self.updates.is_some() && output > 0
    }

    fn sample(&self, input: usize, cx: &OpCx) -> Option<Tensor> {
        let s = self.resolve(cx).ok()?.scaled;
        match input {
            LAST => Tensor::new([s.batch], &vec![i32::try_from(s.kv_len).ok()? - 1; s.batch]).ok(),
            IDS => {
                let positions = (s.kv_len as i64 - s.q_len as i64..s.kv_len as i64).cycle();
                let positions: Vec<i64> = positions.take(s.batch * s.q_len).collect();
                Tensor::new([s.batch, s.q_len], &positions).ok()
            }
            _ => None,
        }
    }

    fn infer(&self, cx: &OpCx) -> Result<Vec<TensorInfo>, OpError> {
        cx.expect_counts(7..=16, 1..=3)?;
        if let Some(i) = (V_SCALE + 1..16).find(|i| cx.has(*i)) {
            return Err(OpError::unsupported(format!("GroupQueryAttention with input {i}")));
        }
        let dtype = cx.dtype_of(Q, FLOATS_TO_32)?;
        if cx.has(IDS) {
            cx.expect_dtype(IDS, DType::I64)?;
        }
        let stored = match self.cache_bits {
            None => dtype,
            Some(4) => DType::U8,
            Some(_) => DType::I8,
        };
        for i in [PAST_K, PAST_V].into_iter().filter(|i| cx.has(*i)) {
            cx.expect_dtype(i, stored)?;
        }
        for i in [K_SCALE, V_SCALE] {
            match self.cache_bits {
                Some(_) => cx.expect_dtype(i, DType::F32)?,
                None if cx.has(i) => {
                    return Err(OpError::unsupported(format!(
                        "GroupQueryAttention with input {i} for caches of numbers"
                    )));
                }
                None => {}
            }
        }
        for i in [K, V, COS, SIN, ADDED, SINKS].into_iter().filter(|i| cx.has(*i)) {
            cx.expect_dtype(i, dtype)?;
        }
        if cx.has(PAST_K) != cx.has(PAST_V) {
            return Err(OpError::MissingInput { input: if cx.has(PAST_K) { PAST_V } else { PAST_K } });
        }
        cx.expect_dtype(LAST, DType::I32)?;
        let resolved = self.resolve(cx)?;
        let s = &resolved.scaled;
        let y = TensorInfo::new(dtype, Shape::new([s.batch, s.q_len, s.q_heads * s.head])?);
        let dims = [s.batch, s.kv_heads, s.kv_len, self.stored(s.head)];
        let cache = TensorInfo::new(stored, Shape::new(dims)?);
        Ok(vec![y, cache.clone(), cache])
    }

    fn cost(&self, cx: &OpCx) -> Cost {
        Cost { flops: self.resolve(cx).map_or(0, |r| r.scaled.flops()), bytes: cx.bytes_touched() }
    }

    fn cpu(&self, cx: &OpCx) -> Result<NativeKernel, OpError> {
        let resolved = self.resolve(cx)?;
        match self.cache_bits {
            None => real_kernel("GroupQueryAttention", cx, resolved),
            Some(_) => Ok(mixed_kernel("GroupQueryAttention", cx, resolved)),
        }
    }

    fn gpu(&self, cx: &OpCx, lower: &mut Lowering<'_>) -> Result<(), OpError> {
        let resolved = self.resolve(cx)?;
        let s = &resolved.scaled;
        let dtype = cx.dtype(Q)?;
        let rotates = resolved.moves[0].rotated > 0;
        let table = |i: usize| if rotates { Operand::Input(i) } else { Operand::Unused };
        let args = |from, to| [from, table(COS), table(SIN), Operand::Input(LAST), to];
        let mut q = Operand::Input(Q);
        let mut from = resolved.from.map(Operand::Input);
        let aside = |turn: &Rotation, from, lower: &mut Lowering<'_>| {
            let to = lower.scratch(turn.elements() * dtype.bytes());
            let given = turn.positions == Positions::Each;
            let (ids, words) = if given { (IDS, 2) } else { (LAST, 1) };
            let args = [from, table(COS), table(SIN), Operand::Input(ids), to];
            turn.lower(dtype, words, args, lower).map(|()| to)
        };
        let fresh = resolved.fresh(from, [table(COS), table(SIN)], dtype, lower);
        if rotates && fresh.is_none() {
            q = aside(&resolved.moves[0], q, lower)?;
        }
        if let Some(turned) = &resolved.turned {
            from[K] = aside(turned, from[K], lower)?;
        }
        let mut caches = [Operand::Output(1), Operand::Output(2)];
        for (n, past) in [(1, PAST_K), (2, PAST_V)] {
            if let Some(codes) = &resolved.codes {
                let (codes, scales) = (&codes[n - 1], Operand::Input([K_SCALE, V_SCALE][n - 1]));
                let to = lower.scratch(s.batch * s.kv_heads * s.kv_len * s.head * dtype.bytes());
                let operands = [scales, to, Operand::Output(n)];
                codes.lower(dtype, Some(Operand::Input(past)), operands, lower)?;
                resolved.moves[n].lower(dtype, 1, args(from[n], to), lower)?;
                codes.lower(dtype, None, operands, lower)?;
                caches[n - 1] = to;
                continue;
            }
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
        let added = cx.has(ADDED);
        let lens = resolved.bounded();
        let places = Places {
            dtype,
            q,
            k: caches[0],
            v: caches[1],
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
            fresh,
            paged: None,
        };
        let given = Scaled { q: resolved.moves[0].x, ..s.clone() };
        lower_scaled(if fresh.is_some() { &given } else { s }, &places, lower)
    }
}

/// Tables of cosines and sines, given positions, and the last key of each sequence.
type Turning<'a, T> = (Tables<'a, T>, &'a [i64], &'a [i64]);

/// The position of the result in errors.
const Y: usize = 16;

impl Resolved {
    fn places<'a, T: Real>(
        &self,
        inputs: &RealInputs<'a, T>,
        last: &'a [i64],
    ) -> Result<Turning<'a, T>, KernelError> {
        let tables = Tables::of(inputs, [COS, SIN], [self.sizes[COS], self.sizes[SIN]])?;
        let ids = inputs.raw_opt::<i64>(IDS, self.sizes[IDS])?.unwrap_or(&[]);
        Ok((tables, ids, last))
    }

    /// Writes the new keys or values (`n` is 1 or 2) into `cache`.
    fn append<T: Real>(
        &self,
        n: usize,
        inputs: &RealInputs<'_, T>,
        (tables, ids, last): Turning<'_, T>,
        cache: &mut [T],
    ) -> Result<(), KernelError> {
        self.append_as(&self.moves[n], n, inputs, (tables, ids, last), cache)
    }

    /// As [`Resolved::append`], by another move.
    fn append_as<T: Real>(
        &self,
        moves: &Rotation,
        n: usize,
        inputs: &RealInputs<'_, T>,
        (tables, ids, last): Turning<'_, T>,
        cache: &mut [T],
    ) -> Result<(), KernelError> {
        let from = self.from[n];
        let mut new = inputs.get(from, self.sizes[from])?;
        let mut turned = Vec::new();
        if let Some(turn) = self.turned.as_ref().filter(|_| n == K) {
            turned.resize(turn.elements(), T::ZERO);
            turn.run(new, tables, ids, &mut turned)?;
            new = &turned;
        }
        moves.fill(new, tables, last, cache)
    }

    /// The result, from whole keys and values.
    fn attend<T: Real>(
        &self,
        inputs: &RealInputs<'_, T>,
        (tables, ids, last): Turning<'_, T>,
        [k, v]: [&[T]; 2],
        y: &mut [T],
    ) -> Result<(), KernelError> {
        let s = &self.scaled;
        let given_q = inputs.get(Q, self.sizes[Q])?;
        let mut rotated = Vec::new();
        if self.moves[0].rotated > 0 {
            rotated.resize(self.moves[0].elements(), T::ZERO);
            let at = if self.moves[0].positions == Positions::Each { ids } else { last };
            self.moves[0].run(given_q, tables, at, &mut rotated)?;
        }
        let q = if rotated.is_empty() { given_q } else { &rotated };
        let mask = inputs.get_opt(ADDED, self.sizes[ADDED])?.map_or(MaskData::None, MaskData::Add);
        let lens = self.bounded().then_some(last);
        let sink = match inputs.get_opt(SINKS, self.sizes[SINKS])? {
            Some(sinks) => Sink::Heads(sinks),
            None if self.smooth => Sink::Zero,
            None => Sink::None,
        };
        check_len(Y, y.len(), s.batch * s.q_len * s.q_heads * s.head)?;
        s.attend(&Attended { q, k, v, mask, lens, sink }, y, None)
    }
}

impl Resolved {
    /// Writes the new keys or values (`n` is 1 or 2) into a cache of 16 bits and widens what is valid of it: of each
    /// sequence and head `rows` rows.
    fn update<T: Real>(
        &self,
        n: usize,
        inputs: &RealInputs<'_, T>,
        (tables, ids, last): Turning<'_, T>,
        cache: &mut Halves<'_>,
        rows: usize,
    ) -> Result<Vec<T>, KernelError> {
        let (s, moves) = (&self.scaled, &self.moves[n]);
        check_len(Y + n, cache.len(), s.batch * s.kv_heads * s.kv_len * s.head)?;
        let place = |b: usize, h: usize, row: usize| ((b * s.kv_heads + h) * s.kv_len + row) * s.head;
        let beyond = |row: usize| KernelError::Value {
            what: format!("row {row} is beyond a cache of {} rows", s.kv_len),
        };
        let mut new = vec![T::ZERO; s.batch * s.kv_heads * s.q_len * s.head];
        // The vectors one after the other, as a cache of the new rows alone.
        let aside = Rotation {
            append: false,
            y_rows: s.q_len,
            y: Steps::heads_first(s.kv_heads, s.q_len, s.head),
            ..*moves
        };
        self.append_as(&aside, n, inputs, (tables, ids, last), &mut new)?;
        let vectors = new.chunks(s.head.max(1)).enumerate();
        for (at, vector) in vectors {
            let (b, h, i) = (at / (s.kv_heads * s.q_len), at / s.q_len % s.kv_heads, at % s.q_len);
            let row = moves.row(last, b, i)?;
            if row >= s.kv_len || !cache.store(place(b, h, row), vector) {
                return Err(beyond(row));
            }
        }
        let mut valid = vec![T::ZERO; s.batch * s.kv_heads * rows * s.head];
        for (at, rows) in valid.chunks_mut((rows * s.head).max(1)).enumerate() {
            if !cache.load(place(at / s.kv_heads, at % s.kv_heads, 0), rows) {
                return Err(beyond(rows.len() / s.head.max(1)));
            }
        }
        Ok(valid)
    }

    /// As [`RealKernel::run`], where the caches are updated in place.
    fn run_in_place<T: Real>(&self, io: &mut RealIo<'_, T>, last: &[i64]) -> Result<(), KernelError> {
        let s = &self.scaled;
        let (y, caches, inputs) = io.output_and_updated();
        let places = self.places(&inputs, last)?;
        let (Some(y), [Some(keys), Some(values)]) = (y, caches) else {
            return Err(KernelError::Absent { index: Y });
        };
        match (keys, values) {
            (Updated::Whole(keys), Updated::Whole(values)) => {
                for (n, cache) in [(1, &mut *keys), (2, &mut *values)] {
                    check_len(Y + n, cache.len(), s.batch * s.kv_heads * s.kv_len * s.head)?;
                    self.append(n, &inputs, places, cache)?;
                }
                self.attend(&inputs, places, [keys, values], y)
            }
            (Updated::Halves(mut keys), Updated::Halves(mut values)) => {
                let longest = last.iter().max().map_or(0, |n| (*n + 1).max(0) as usize);
                let rows = if self.bounded() { longest } else { s.q_len }.min(s.kv_len);
                let keys = self.update(1, &inputs, places, &mut keys, rows)?;
                let values = self.update(2, &inputs, places, &mut values, rows)?;
                let at = Steps::heads_first(s.kv_heads, rows, s.head);
                let scaled = Scaled { kv_len: rows, k: at, v: at, ..s.clone() };
                Resolved { scaled, ..self.clone() }.attend(&inputs, places, [&keys, &values], y)
            }
            _ => Err(KernelError::Absent { index: Y }),
        }
    }
}

impl RealKernel for Resolved {
    // Of tables for all positions few rows are read.
    const HALF: &'static [usize] = &[COS, SIN];

    fn updates(&self, output: usize) -> bool {
        self.updates && output > 0
    }

    fn run<T: Real>(&self, io: &mut RealIo<'_, T>) -> Result<(), KernelError> {
        let s = &self.scaled;
        let inputs = io.inputs();
        let last = inputs.raw_opt::<i32>(LAST, s.batch)?.ok_or(KernelError::Absent { index: LAST })?;
        let last: Vec<i64> = last.iter().map(|n| i64::from(*n)).collect();
        for n in &last {
            let rows = s.q_len as i64 - 1..s.kv_len as i64;
            if !self.prompt() && !rows.contains(n) {
                let what = format!("the last key of a sequence is {n}, expected one of {rows:?}");
                return Err(KernelError::Value { what });
            }
        }
        if self.updates {
            return self.run_in_place(io, &last);
        }
        let size = s.batch * s.kv_heads * s.kv_len * s.head;
        if let Some(codes) = &self.codes {
            let (y, [keys, values], inputs) = io.output_and_bytes();
            let (Some(y), Some(keys), Some(values)) = (y, keys, values) else {
                return Err(KernelError::Absent { index: Y });
            };
            let places = self.places(&inputs, &last)?;
            let mut whole = [Vec::new(), Vec::new()];
            for (n, past, out) in [(1, PAST_K, keys), (2, PAST_V, values)] {
                let (codes, scale) = (&codes[n - 1], [K_SCALE, V_SCALE][n - 1]);
                check_len(Y + n, out.len(), codes.bytes())?;
                let scales = inputs.get(scale, self.sizes[scale])?;
                let past = inputs.raw_opt::<u8>(past, self.sizes[past])?.unwrap_or(&[]);
                let mut cache = codes.decode(past, scales);
                self.append(n, &inputs, places, &mut cache)?;
                codes.encode(&mut cache, scales, out);
                whole[n - 1] = cache;
            }
            return self.attend(&inputs, places, [&whole[0], &whole[1]], y);
        }
        let (outputs, inputs) = io.outputs();
        let [Some(y), Some(keys), Some(values)] = outputs else {
            return Err(KernelError::Absent { index: Y });
        };
        let places = self.places(&inputs, &last)?;
        for (n, past, cache) in [(1, PAST_K, &mut *keys), (2, PAST_V, &mut *values)] {
            check_len(Y + n, cache.len(), size)?;
            cache.fill(T::ZERO);
            if let Some(past) = inputs.get_opt(past, self.sizes[past])? {
                self.past().fill(past, places.0, &[], cache)?;
            }
            self.append(n, &inputs, places, cache)?;
        }
        self.attend(&inputs, places, [keys, values], y)
    }
}
