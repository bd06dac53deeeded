//! com.microsoft's GroupQueryAttention: attention that rotates queries and keys and keeps a cache whose
//! sequences have lengths of their own.

mod cpu;
mod device;

use std::sync::Arc;

use super::attention_op::mask_steps;
use super::cache::{CacheKind, CodeScales, CodedRows};
use super::rotary::{Positions, Rotation};
use super::scaled::{Scaled, Steps, check_sizes};
use super::{FLOATS_TO_32, count};
use crate::dtype::DType;
use crate::graph::{Tensor, TensorInfo};
use crate::kernel::NativeKernel;
use crate::operator::AttentionPorts;
use crate::ops::real::{mixed_kernel, real_kernel};
use crate::ops::window::bad;
use crate::ops::{AttrReader, Cost, Lowering, OpCx, OpError, Operator, Structure};
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
    /// What the caches hold.
    pub cache: CacheKind,
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
    let cache = match (coded.map(|kind| kind != "NONE"), attrs.int("kv_cache_bit_width", 0)?) {
        ([false, false], _) => CacheKind::Same,
        ([true, true], bits @ (4 | 8)) => CacheKind::Scaled { bits: bits as usize },
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
        cache,
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
    /// How keys and values lie in caches of another type than theirs.
    coded: Option<[CodedRows; 2]>,
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
        let stored = self.cache.row(size);
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
        let coded = self.coded(cx, [batch, past_len.max(total), size])?;
        Ok(Resolved {
            scaled,
            from,
            moves,
            past_len,
            sizes,
            turned,
            smooth: self.smooth,
            coded,
            updates: self.updates.is_some(),
        })
    }

    /// How keys and values of vectors of `size` elements lie in caches of another type, of `rows` rows.
    fn coded(&self, cx: &OpCx, [batch, rows, size]: [usize; 3]) -> Result<Option<[CodedRows; 2]>, OpError> {
        let (heads, row) = (self.kv_heads, self.cache.row(size) * self.cache.dtype(DType::F32).bytes());
        let (bits, usual) = match self.cache {
            CacheKind::Same => return Ok(None),
            CacheKind::Half if cx.dtype(Q)? == DType::F16 => return Ok(None),
            CacheKind::Half => (16, CodeScales::None),
            CacheKind::Scaled { bits } => (bits, CodeScales::One),
            CacheKind::Blocks { bits } => (bits, CodeScales::Blocks),
        };
        if bits == 4 && !size.is_multiple_of(2) {
            return Err(cx.shape_error(Q, "heads of an even size, for two codes in a byte"));
        }
        let mut coded = [CodedRows { bits, scales: usual, batch, heads, rows, size, row }; 2];
        let scaled = [K_SCALE, V_SCALE].into_iter().zip(&mut coded).filter(|_| self.cache.has_scales());
        for (i, coded) in scaled {
            let elements = cx.shape(i)?.elements();
            if elements != 1 {
                coded.scales = CodeScales::Channels;
            }
            if elements != coded.scales() {
                return Err(cx.shape_error(i, format!("[1] or [1, {heads}, 1, {size}]")));
            }
        }
        Ok(Some(coded))
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

    fn structure(&self) -> Option<Structure<'_>> {
        Some(Structure::Attention(AttentionPorts {
            past: Some(PAST_K),
            bias: Some(ADDED),
            total: Some(TOTAL),
            extends: true,
            placed: true,
            ..AttentionPorts::new(K)
        }))
    }

    fn value_inputs(&self) -> &'static [usize] {
        &[TOTAL]
    }

    fn updating(&self, pairs: &[(usize, usize)], cx: &OpCx) -> Option<Arc<dyn Operator>> {
        let both = matches!(pairs, [(PAST_K, 1), (PAST_V, 2)] | [(PAST_V, 2), (PAST_K, 1)]);
        let rows = *cx.shape(PAST_K).ok()?.get(2)?;
        let op = GroupQueryAttention { updates: Some(rows), ..*self };
        both.then(|| Arc::new(op) as _)
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
        let stored = self.cache.dtype(dtype);
        for i in [PAST_K, PAST_V].into_iter().filter(|i| cx.has(*i)) {
            cx.expect_dtype(i, stored)?;
        }
        for i in [K_SCALE, V_SCALE] {
            if self.cache.has_scales() {
                cx.expect_dtype(i, DType::F32)?;
            } else if cx.has(i) {
                let what = format!("GroupQueryAttention with input {i} for caches without scales");
                return Err(OpError::unsupported(what));
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
        let dims = [s.batch, s.kv_heads, s.kv_len, self.cache.row(s.head)];
        let cache = TensorInfo::new(stored, Shape::new(dims)?);
        Ok(vec![y, cache.clone(), cache])
    }

    fn cost(&self, cx: &OpCx) -> Cost {
        Cost { flops: self.resolve(cx).map_or(0, |r| r.scaled.flops()), bytes: cx.bytes_touched() }
    }

    fn cpu(&self, cx: &OpCx) -> Result<NativeKernel, OpError> {
        let resolved = self.resolve(cx)?;
        match self.cache {
            CacheKind::Same | CacheKind::Half => real_kernel("GroupQueryAttention", cx, resolved),
            _ => Ok(mixed_kernel("GroupQueryAttention", cx, resolved)),
        }
    }

    fn gpu(&self, cx: &OpCx, lower: &mut Lowering<'_>) -> Result<(), OpError> {
        self.lower(cx, lower)
    }
}
