//! com.microsoft's PagedAttention: attention of rows without padding to a cache in pages, which tables name.

use std::borrow::Cow;
use std::sync::Arc;

use super::device::{Paged, Places, in_tiles, lower_scaled};
use super::few::{ReadRows, Rows};
use super::rotary::{Positions, Rotation, Tables};
use super::scaled::{Attended, MaskData, Scaled, Sink, Steps, check_sizes};
use super::{FLOATS_TO_32, count};
use crate::dtype::DType;
use crate::graph::TensorInfo;
use crate::kernel::table::{params, spec, variants};
use crate::kernel::{KernelError, NativeKernel};
use crate::operator::AttentionPorts;
use crate::ops::real::{
    Real, RealInputs, RealIo, RealKernel, Updated, as_f32s_mut, check_len, of_f32s_mut, real_kernel,
};
use crate::ops::window::bad;
use crate::ops::word::word;
use crate::ops::{AttrReader, Cost, Lowering, OpCx, OpError, Operand, Operator, Structure, par};
use crate::shape::Shape;

// Positions of the inputs.
const Q: usize = 0;
const K: usize = 1;
const V: usize = 2;
const KEYS: usize = 3;
const VALUES: usize = 4;
const ENDS: usize = 5;
const PAST: usize = 6;
const TABLE: usize = 7;
const COS: usize = 8;
const SIN: usize = 9;
const SLOTS: usize = 10;
const SINKS: usize = 11;

/// The position of the result in errors.
const Y: usize = 12;

/// From so many queries of a sequence on the native function copies their keys and values head by head.
const MANY_QUERIES: usize = 16;

/// Inputs: query, key and value of all tokens (or all three in the first), `[tokens, heads * size]`; the caches of keys and
/// values, `[pages, rows of a page, heads, size]`; where the tokens of each sequence begin and end, `[sequences + 1]`; how
/// many keys each sequence has already; its pages, `[sequences, most pages]`, -1 where there is none; cosines, sines, the
/// row of the caches that each new key goes to (-1 is none), and a sink for each head of queries. Outputs: the result and
/// the caches. Tokens after the last end belong to no sequence: they write nothing and their results are zeros.
#[derive(Clone, Copy, Debug)]
pub struct PagedAttention {
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
    /// Pages and rows of a page of the caches that outputs 1 and 2 hold, where they are updated in place.
    pub updates: Option<[usize; 2]>,
}

/// Attributes of text and what they may be.
const PLAIN: [(&str, &[&str]); 5] = [
    ("kv_cache_layout", &["", "SEPARATE"]),
    ("k_cache_dtype", &["", "float16", "bfloat16"]),
    ("v_cache_dtype", &["", "float16", "bfloat16"]),
    ("k_quant_type", &["", "NONE"]),
    ("v_quant_type", &["", "NONE"]),
];

pub(super) fn read(attrs: &mut AttrReader<'_>, _opset: i64) -> Result<Arc<dyn Operator>, OpError> {
    let refused = |what: String| Err(OpError::unsupported(format!("PagedAttention with {what}")));
    for (name, allowed) in PLAIN {
        let found = attrs.str(name, "")?;
        if !allowed.contains(&found) {
            return refused(format!("{name} {found}"));
        }
    }
    for name in ["rotary_offset", "v_head_size"] {
        let found = attrs.int(name, 0)?;
        if found != 0 {
            return refused(format!("{name} {found}"));
        }
    }
    attrs.float_opt("qk_norm_epsilon")?;
    let interleaved = attrs.flag("rotary_interleaved", false)?;
    let window = usize::try_from(attrs.int("local_window_size", -1)?).ok().filter(|w| *w > 0);
    let causal = attrs.flag("is_causal", true)?;
    if !causal && window.is_some() {
        return refused("a window that is not causal".to_owned());
    }
    Ok(Arc::new(PagedAttention {
        heads: count(attrs, "num_heads", 1)?,
        kv_heads: count(attrs, "kv_num_heads", 1)?,
        scale: attrs.float_opt("scale")?.filter(|s| *s != 0.0),
        softcap: attrs.float("softcap", 0.0)?.max(0.0),
        window,
        rotary: attrs.flag("do_rotary", false)?.then_some(interleaved),
        causal,
        updates: None,
    }))
}

#[derive(Clone, Debug)]
struct Resolved {
    op: PagedAttention,
    tokens: usize,
    sequences: usize,
    size: usize,
    /// Where queries, keys and values of a token begin in their inputs, and the inputs' rows.
    from: [(usize, usize, usize); 3],
    /// Pages of the caches, rows of a page, pages of a sequence.
    blocks: usize,
    page: usize,
    pages: usize,
    /// Elements of a vector that are rotated, and rows of the tables.
    rotated: usize,
    rows: usize,
    sizes: [usize; 12],
}

impl PagedAttention {
    fn resolve(&self, cx: &OpCx) -> Result<Resolved, OpError> {
        let (h, g) = (self.heads, self.kv_heads);
        if !h.is_multiple_of(g) {
            return Err(bad("num_heads", format!("is {h}, no multiple of kv_num_heads, {g}")));
        }
        let &[tokens, width] = cx.shape(Q)?.dims() else {
            return Err(cx.shape_error(Q, "[tokens, heads * size]"));
        };
        let packed = !cx.has(K);
        let parts = if packed { h + 2 * g } else { h };
        if !width.is_multiple_of(parts) || cx.has(V) == packed {
            return Err(cx.shape_error(Q, format!("a last axis of {parts} heads")));
        }
        let size = width / parts;
        if !packed {
            for i in [K, V] {
                if cx.shape(i)?.dims() != [tokens, g * size] {
                    return Err(cx.shape_error(i, format!("[{tokens}, {}]", g * size)));
                }
            }
        }
        let [blocks, page] = match self.updates {
            Some(known) => known,
            None => match cx.shape(KEYS)?.dims() {
                &[blocks, page, _, _] if page > 0 => [blocks, page],
                _ => return Err(cx.shape_error(KEYS, format!("[pages, rows, {g}, {size}]"))),
            },
        };
        for i in [KEYS, VALUES].into_iter().filter(|i| cx.has(*i)) {
            if cx.shape(i)?.dims() != [blocks, page, g, size] {
                return Err(cx.shape_error(i, format!("[{blocks}, {page}, {g}, {size}]")));
            }
        }
        let &[sequences] = cx.shape(PAST)?.dims() else {
            return Err(cx.shape_error(PAST, "[sequences]"));
        };
        if cx.shape(ENDS)?.dims() != [sequences + 1] {
            return Err(cx.shape_error(ENDS, format!("[{}]", sequences + 1)));
        }
        let pages = match cx.shape(TABLE)?.dims() {
            &[n, pages] if n == sequences => pages,
            _ => return Err(cx.shape_error(TABLE, format!("[{sequences}, pages]"))),
        };
        let reach = pages.checked_mul(page).filter(|n| *n <= i32::MAX as usize);
        if reach.is_none() || blocks.checked_mul(page).is_none_or(|n| n > i32::MAX as usize) {
            return Err(cx.shape_error(TABLE, "pages of fewer rows than a number of 32 bits counts"));
        }
        check_sizes(1, [h, g], [tokens, blocks * page], [size; 2])?;
        let (mut rotated, mut rows) = (0, 0);
        if self.rotary.is_some() {
            let &[n, pairs] = cx.shape(COS)?.dims() else {
                return Err(cx.shape_error(COS, "two dimensions"));
            };
            if cx.shape(SIN)?.dims() != [n, pairs] || 2 * pairs > size || n == 0 {
                return Err(cx.shape_error(SIN, format!("[{n}, at most {}]", size / 2)));
            }
            (rotated, rows) = (2 * pairs, n);
        }
        let sizes: [usize; 12] = std::array::from_fn(|i| cx.input_opt(i).map_or(0, TensorInfo::elements));
        for (i, wanted) in [(SLOTS, tokens), (SINKS, h)] {
            if cx.has(i) && sizes[i] != wanted {
                return Err(cx.shape_error(i, format!("[{wanted}]")));
            }
        }
        let from = match packed {
            true => [(Q, 0, width), (Q, h * size, width), (Q, (h + g) * size, width)],
            false => [(Q, 0, width), (K, 0, g * size), (V, 0, g * size)],
        };
        Ok(Resolved { op: *self, tokens, sequences, size, from, blocks, page, pages, rotated, rows, sizes })
    }
}

impl Operator for PagedAttention {
    fn name(&self) -> &'static str {
        "PagedAttention"
    }

    fn structure(&self) -> Option<Structure<'_>> {
        Some(Structure::Attention(AttentionPorts { placed: true, ..AttentionPorts::new(K) }))
    }

    fn updating(&self, pairs: &[(usize, usize)], cx: &OpCx) -> Option<Arc<dyn Operator>> {
        let both = matches!(pairs, [(KEYS, 1), (VALUES, 2)] | [(VALUES, 2), (KEYS, 1)]);
        let Resolved { blocks, page, .. } = self.resolve(cx).ok()?;
        both.then(|| Arc::new(PagedAttention { updates: Some([blocks, page]), ..*self }) as _)
    }

    fn updates(&self, output: usize) -> bool {
        self.updates.is_some() && output > 0
    }

    fn infer(&self, cx: &OpCx) -> Result<Vec<TensorInfo>, OpError> {
        cx.expect_counts(8..=17, 1..=3)?;
        if let Some(i) = (SINKS + 1..17).find(|i| cx.has(*i)) {
            return Err(OpError::unsupported(format!("PagedAttention with input {i}")));
        }
        let dtype = cx.dtype_of(Q, FLOATS_TO_32)?;
        for i in [K, V, KEYS, VALUES, COS, SIN, SINKS].into_iter().filter(|i| cx.has(*i)) {
            cx.expect_dtype(i, dtype)?;
        }
        for i in [ENDS, PAST, TABLE, SLOTS].into_iter().filter(|i| cx.has(*i)) {
            cx.expect_dtype(i, DType::I32)?;
        }
        let r = self.resolve(cx)?;
        let y = TensorInfo::new(dtype, Shape::new([r.tokens, self.heads * r.size])?);
        let cache = TensorInfo::new(dtype, Shape::new([r.blocks, r.page, self.kv_heads, r.size])?);
        Ok(vec![y, cache.clone(), cache])
    }

    fn cost(&self, cx: &OpCx) -> Cost {
        let Ok(r) = self.resolve(cx) else { return Cost { flops: 0, bytes: cx.bytes_touched() } };
        // How long sequences are is not known: as long as their tables allow, within the pages there are.
        let keys = (r.pages * r.page).min(r.blocks * r.page) as u64;
        let each = 4 * r.size as u64 + 8;
        let flops = [r.tokens as u64, self.heads as u64, keys].iter().fold(each, |n, c| n.saturating_mul(*c));
        Cost { flops, bytes: cx.bytes_touched() }
    }

    fn cpu(&self, cx: &OpCx) -> Result<NativeKernel, OpError> {
        real_kernel("PagedAttention", cx, self.resolve(cx)?)
    }

    fn gpu(&self, cx: &OpCx, lower: &mut Lowering<'_>) -> Result<(), OpError> {
        let r = self.resolve(cx)?;
        let dtype = cx.dtype(Q)?;
        let (h, g, size) = (self.heads, self.kv_heads, r.size);
        if self.updates.is_none() {
            for (from, to) in [(KEYS, 1), (VALUES, 2)] {
                let bytes = (r.blocks * r.page * g * size * dtype.bytes()) as u64;
                lower.copy((Operand::Input(from), 0), (Operand::Output(to), 0), bytes);
            }
        }
        if r.tokens == 0 || size == 0 {
            return Ok(());
        }
        if r.sequences == 0 || r.pages == 0 || r.blocks == 0 {
            return Err(OpError::unsupported("paged attention without a page"));
        }
        let places = lower.scratch(r.tokens * 8);
        let (mut q, mut q_row) = (Operand::Input(Q), r.from[0].2);
        let mut turned = Operand::Unused;
        if r.rotated > 0 {
            turned = lower.scratch(r.tokens * h * size * dtype.bytes());
            (q, q_row) = (turned, h * size);
        }
        r.append(dtype, [turned, places], lower)?;
        let steps = Steps { first: 0, batch: 0, head: size, row: g * size };
        // Each token is a sequence of one query, as long as its keys are, or all are one row.
        let queries = Steps { first: 0, batch: q_row, head: size, row: q_row };
        let keys = r.pages * r.page;
        let scaled = match in_tiles(r.tokens, r.sequences) {
            true => r.scaled(1, [r.tokens, keys], queries, steps),
            false => r.scaled(r.tokens, [1, keys], queries, steps),
        };
        let paged = Paged { table: Operand::Input(TABLE), page: r.page, pages: r.pages, blocks: r.blocks };
        let places = Places {
            dtype,
            q,
            k: Operand::Output(1),
            v: Operand::Output(2),
            mask: Operand::Unused,
            mask_type: None,
            lens: places,
            lens_words: 2,
            y: Operand::Output(0),
            scores: None,
            sink: if cx.has(SINKS) { Sink::Heads(Operand::Input(SINKS)) } else { Sink::None },
            fresh: None,
            paged: Some(paged),
            coded: None,
        };
        lower_scaled(&scaled, &places, lower)
    }
}

impl Resolved {
    /// The attention of `q_len` queries of each sequence to `kv_len` keys.
    fn scaled(&self, batch: usize, [q_len, kv_len]: [usize; 2], q: Steps, at: Steps) -> Scaled {
        let (op, size) = (self.op, self.size);
        Scaled {
            batch,
            q_heads: op.heads,
            kv_heads: op.kv_heads,
            q_len,
            kv_len,
            head: size,
            v_head: size,
            q,
            k: at,
            v: at,
            y: Steps::rows_first(op.heads, q_len, size),
            mask: None,
            scale: op.scale.unwrap_or(1.0 / (size.max(1) as f32).sqrt()),
            softcap: op.softcap,
            causal: op.causal,
            left: op.window.map(|w| w.saturating_sub(1)),
            right: None,
            offset: 0,
            lens_add: 0,
        }
    }

    /// Emits what writes new keys and values to their rows, rotated queries to `turned`, and to `places` how many keys each
    /// token sees and its sequence.
    fn append(
        &self,
        dtype: DType,
        [turned, places]: [Operand; 2],
        lower: &mut Lowering<'_>,
    ) -> Result<(), OpError> {
        let kernel = variants::PagedAppend { t: dtype }.id()?;
        let (h, g) = (self.op.heads, self.op.kv_heads);
        let queries = if self.rotated > 0 { h } else { 0 };
        let n = self.tokens * (queries + 2 * g) * self.size;
        let [(_, _, q_row), (key, k_first, k_row), (value, v_first, _)] = self.from;
        let given = self.sizes[SLOTS] > 0;
        let table = |i| if self.rotated > 0 { Operand::Input(i) } else { Operand::Unused };
        let spec = [
            (spec::paged_append::INTERLEAVED, u32::from(self.op.rotary.unwrap_or(false))),
            (spec::paged_append::GIVEN, u32::from(given)),
            (spec::paged_append::CAUSAL, u32::from(self.op.causal)),
        ];
        let args = [
            Operand::Input(Q),
            Operand::Input(key),
            Operand::Input(value),
            Operand::Input(ENDS),
            Operand::Input(PAST),
            Operand::Input(TABLE),
            table(COS),
            table(SIN),
            if given { Operand::Input(SLOTS) } else { Operand::Unused },
            Operand::Output(1),
            Operand::Output(2),
            turned,
            places,
        ];
        let params = params::PagedAppend {
            n: word(n)?,
            queries: word(queries)?,
            kv_heads: word(g)?,
            head: word(self.size)?,
            rotated: word(self.rotated)?,
            rows: word(self.rows)?,
            batch: word(self.sequences)?,
            page: word(self.page)?,
            pages: word(self.pages)?,
            blocks: word(self.blocks)?,
            q_row: word(q_row)?,
            k_row: word(k_row)?,
            k_first: word(k_first)?,
            v_first: word(v_first)?,
        };
        lower.dispatch_1d(kernel, &spec, &args, &params, n)
    }
}

/// A sequence of one run: its first token, how many, and keys before them.
#[derive(Clone, Copy, Debug)]
struct Span {
    first: usize,
    len: usize,
    past: usize,
}

/// Where the tokens of a run lie.
#[derive(Debug)]
struct Layout<'a> {
    spans: Vec<Span>,
    /// Pages of all sequences.
    table: &'a [i32],
    /// The row of the caches of each token of a sequence.
    slots: Vec<Option<usize>>,
    /// The position of each token.
    positions: Vec<i64>,
}

impl Resolved {
    /// Checks every number of the run.
    fn layout<'a, T: Real>(&self, inputs: &RealInputs<'a, T>) -> Result<Layout<'a>, KernelError> {
        let wrong = |what: String| Err(KernelError::Value { what });
        let get = |i: usize| inputs.raw_opt::<i32>(i, self.sizes[i])?.ok_or(KernelError::Absent { index: i });
        let (ends, past, table) = (get(ENDS)?, get(PAST)?, get(TABLE)?);
        let given = if self.sizes[SLOTS] > 0 { Some(get(SLOTS)?) } else { None };
        let room = self.pages * self.page;
        let mut layout = Layout {
            spans: Vec::with_capacity(self.sequences),
            table,
            slots: vec![None; self.tokens],
            positions: vec![0; self.tokens],
        };
        for (b, past) in past.iter().enumerate() {
            let (first, end) = (i64::from(ends[b]), i64::from(ends[b + 1]));
            if first < 0 || end < first || end > self.tokens as i64 {
                return wrong(format!("sequence {b} has tokens {first} to {end} of {}", self.tokens));
            }
            let (len, before) = ((end - first) as usize, i64::from(*past));
            if before < 0 || before as usize + len > room {
                return wrong(format!(
                    "sequence {b} has {before} keys and {len} new ones: its pages have {room}"
                ));
            }
            let span = Span { first: first as usize, len, past: before as usize };
            for i in 0..len {
                let (token, position) = (span.first + i, span.past + i);
                layout.positions[token] = position as i64;
                layout.slots[token] = match given {
                    None => self.row(table, b, position)?,
                    Some(slots) if slots[token] < 0 => None,
                    Some(slots) => Some(slots[token] as usize),
                };
                if let Some(slot) = layout.slots[token].filter(|slot| *slot >= self.blocks * self.page) {
                    return wrong(format!("token {token} goes to row {slot} of {}", self.blocks * self.page));
                }
            }
            layout.spans.push(span);
        }
        Ok(layout)
    }

    /// The row of the caches that has key `j` of a sequence.
    fn row(&self, table: &[i32], sequence: usize, j: usize) -> Result<Option<usize>, KernelError> {
        match table.get(sequence * self.pages + j / self.page) {
            Some(page) if *page < 0 => Ok(None),
            Some(page) if (*page as usize) < self.blocks => {
                Ok(Some(*page as usize * self.page + j % self.page))
            }
            page => Err(KernelError::Value {
                what: format!("key {j} of sequence {sequence} is on page {page:?} of {}", self.blocks),
            }),
        }
    }

    /// Queries, keys or values (`n` is 0, 1 or 2) of all tokens, rotated where they are to be: `[tokens, heads * size]`.
    fn vectors<T: Real>(
        &self,
        n: usize,
        inputs: &RealInputs<'_, T>,
        layout: &Layout<'_>,
    ) -> Result<Vec<T>, KernelError> {
        let (from, first, row) = self.from[n];
        let heads = if n == 0 { self.op.heads } else { self.op.kv_heads };
        let move_ = Rotation {
            batch: 1,
            heads,
            len: self.tokens,
            head: self.size,
            rotated: if n == 2 { 0 } else { self.rotated },
            rows: self.rows,
            interleaved: self.op.rotary.unwrap_or(false),
            positions: Positions::Each,
            x: Steps { first, batch: 0, head: self.size, row },
            y: Steps::rows_first(heads, self.tokens, self.size),
            append: false,
            y_rows: self.tokens,
        };
        let mut vectors = vec![T::ZERO; move_.elements()];
        let tables = Tables::of(inputs, [COS, SIN], [self.sizes[COS], self.sizes[SIN]])?;
        move_.run(inputs.get(from, self.sizes[from])?, tables, &layout.positions, &mut vectors)?;
        Ok(vectors)
    }

    /// Writes new vectors to their rows.
    fn store<T: Real>(
        &self,
        cache: &mut Updated<'_, T>,
        vectors: &[T],
        slots: &[Option<usize>],
    ) -> Result<(), KernelError> {
        let width = self.op.kv_heads * self.size;
        for (slot, vector) in slots.iter().zip(vectors.chunks(width.max(1))) {
            let Some(at) = slot.map(|slot| slot * width) else { continue };
            let written = match cache {
                Updated::Whole(cache) => {
                    cache.get_mut(at..at + width).map(|to| to.copy_from_slice(vector)).is_some()
                }
                Updated::Halves(cache) => cache.store(at, vector),
            };
            if !written {
                return Err(KernelError::Value { what: format!("element {at} is beyond a cache in pages") });
            }
        }
        Ok(())
    }

    /// Positions of the keys that tokens of a sequence see, ascending, with their rows of the caches. Keys of
    /// no page are left out, so that there are no more than rows.
    fn seen(
        &self,
        table: &[i32],
        (sequence, span): (usize, Span),
    ) -> Result<Vec<(usize, usize)>, KernelError> {
        let (end, page) = (span.past + span.len, self.page);
        let first = self.op.window.map_or(0, |window| (span.past + 1).saturating_sub(window));
        let (rows, mut seen) = (self.blocks * page, Vec::new());
        for start in (first / page * page..end).step_by(page) {
            let Some(row) = self.row(table, sequence, start)? else { continue };
            let own = start.max(first)..end.min(start + page);
            if seen.len() + own.len() > rows {
                let what =
                    format!("sequence {sequence} has more keys on its pages than the caches' {rows} rows");
                return Err(KernelError::Value { what });
            }
            seen.extend(own.map(|j| (j, row + (j - start))));
        }
        Ok(seen)
    }

    /// The keys or values of some rows of a cache, `[rows, heads, size]`, which are the cache's own where they are neighbours,
    /// or `by_head`, `[heads, rows, size]`; and where they lie.
    fn gather<'u, T: Real>(
        &self,
        cache: &'u Updated<'_, T>,
        seen: &[(usize, usize)],
        by_head: bool,
    ) -> Result<(Cow<'u, [T]>, Steps), KernelError> {
        let (g, size, rows) = (self.op.kv_heads, self.size, seen.len());
        let width = g * size;
        let load = |at: usize, to: &mut [T]| load(cache, at, to);
        let steps = Steps { first: 0, batch: 0, head: size, row: width };
        let are_neighbours = || seen.windows(2).all(|pair| pair[1].1 == pair[0].1 + 1);
        if let (Updated::Whole(cache), [(_, first), ..], false) = (cache, seen, by_head)
            && are_neighbours()
            && let Some(own) = cache.get(first * width..(first + rows) * width)
        {
            return Ok((Cow::Borrowed(own), steps));
        }
        let mut all = vec![T::ZERO; rows * width];
        let work = all.len();
        if by_head {
            par::try_rows(&mut all, rows * size, work, |h, own| {
                let vectors = own.chunks_mut(size).zip(seen);
                vectors.into_iter().try_for_each(|(to, (_, at))| load(at * width + h * size, to))
            })?;
            return Ok((Cow::Owned(all), Steps::heads_first(g, rows, size)));
        }
        par::try_rows(&mut all, width, work, |i, to| {
            seen.get(i).map_or(Ok(()), |(_, at)| load(at * width, to))
        })?;
        Ok((Cow::Owned(all), steps))
    }

    /// Writes new keys and values and gives the result.
    fn attend<T: Real>(
        &self,
        inputs: &RealInputs<'_, T>,
        caches: [&mut Updated<'_, T>; 2],
        y: &mut [T],
    ) -> Result<(), KernelError> {
        let (h, g, size) = (self.op.heads, self.op.kv_heads, self.size);
        check_len(Y, y.len(), self.tokens * h * size)?;
        y.fill(T::ZERO);
        if y.is_empty() {
            return Ok(());
        }
        let layout = self.layout(inputs)?;
        let [keys, values] = caches;
        for (n, cache) in [(1, &mut *keys), (2, &mut *values)] {
            let len = match cache {
                Updated::Whole(cache) => cache.len(),
                Updated::Halves(cache) => cache.len(),
            };
            check_len(Y + n, len, self.blocks * self.page * g * size)?;
            let vectors = self.vectors(n, inputs, &layout)?;
            self.store(cache, &vectors, &layout.slots)?;
        }
        let q = self.vectors(0, inputs, &layout)?;
        let sink = inputs.get_opt(SINKS, self.sizes[SINKS])?.map_or(Sink::None, Sink::Heads);
        for (b, span) in layout.spans.iter().enumerate().filter(|(_, span)| span.len > 0) {
            let seen = self.seen(layout.table, (b, *span))?;
            let queries = Steps::rows_first(h, span.len, size);
            let scaled = |at| self.scaled(1, [span.len, seen.len()], queries, at);
            let given = |q, k, v| Attended { q, k, v, mask: MaskData::None, lens: None, sink };
            let own = span.first * h * size..(span.first + span.len) * h * size;
            let first = seen.first().map_or(0, |(j, _)| *j);
            let is_whole =
                seen.last().is_some_and(|(j, _)| *j - first + 1 == seen.len() && span.past >= first);
            let offset = span.past.wrapping_sub(first);
            let few = Scaled { offset, ..scaled(Steps::default()) };
            if is_whole
                && few.is_few()
                && let (Some(given), Some(y)) =
                    (given(&q[own.clone()], &[], &[]).f32s(), as_f32s_mut(&mut y[own.clone()]))
            {
                let read = |cache: &Updated<'_, T>, head: usize, first: usize, to: &mut [f32]| {
                    let mut rows = of_f32s_mut(to)?.chunks_mut(size).zip(&seen[first..]);
                    rows.try_for_each(|(to, (_, at))| load(cache, (at * g + head) * size, to))
                };
                let (keys, values) = (&*keys, &*values);
                let rows: [&ReadRows<'_>; 2] =
                    [&|[_, head], first, to| read(keys, head, first, to), &|[_, head], first, to| {
                        read(values, head, first, to)
                    }];
                few.few_of(&given, rows.map(Rows::Read), y)?;
                continue;
            }
            // Many queries read keys that are neighbours faster than it takes to copy them.
            let by_head = span.len >= MANY_QUERIES;
            let ((k, at), (v, _)) =
                (self.gather(keys, &seen, by_head)?, self.gather(values, &seen, by_head)?);
            let scaled = scaled(at);
            if is_whole {
                let scaled = Scaled { offset, ..scaled };
                scaled.attend(&given(&q[own.clone()], &k, &v), &mut y[own], None)?;
                continue;
            }
            // Between keys are pages that there are not: each token sees a part of the others.
            for (i, (q, y)) in q[own.clone()].chunks(h * size).zip(y[own].chunks_mut(h * size)).enumerate() {
                let last = if self.op.causal { span.past + i } else { usize::MAX };
                let before = self.op.window.map_or(0, |window| (span.past + i + 1).saturating_sub(window));
                let from = seen.partition_point(|(j, _)| *j < before);
                let kv_len = seen.partition_point(|(j, _)| *j <= last).saturating_sub(from);
                let at = Steps { first: from * at.row, ..at };
                let one = Steps::rows_first(h, 1, size);
                let own = Scaled { q_len: 1, kv_len, k: at, v: at, q: one, y: one, ..scaled };
                Scaled { causal: false, left: None, ..own }.attend(&given(q, &k, &v), y, None)?;
            }
        }
        Ok(())
    }
}

/// Reads the elements from `at` on.
fn load<T: Real>(cache: &Updated<'_, T>, at: usize, to: &mut [T]) -> Result<(), KernelError> {
    let is_there = match cache {
        Updated::Whole(cache) => cache.get(at..at + to.len()).map(|from| to.copy_from_slice(from)).is_some(),
        Updated::Halves(cache) => cache.load(at, to),
    };
    let what = || format!("element {at} is beyond a cache in pages");
    is_there.then_some(()).ok_or_else(|| KernelError::Value { what: what() })
}

impl RealKernel for Resolved {
    // Of tables for all positions few rows are read.
    const HALF: &'static [usize] = &[COS, SIN];

    fn updates(&self, output: usize) -> bool {
        self.op.updates.is_some() && output > 0
    }

    fn run<T: Real>(&self, io: &mut RealIo<'_, T>) -> Result<(), KernelError> {
        let absent = KernelError::Absent { index: Y };
        if self.op.updates.is_some() {
            let (y, caches, inputs) = io.output_and_updated();
            let (Some(y), [Some(mut keys), Some(mut values)]) = (y, caches) else { return Err(absent) };
            return self.attend(&inputs, [&mut keys, &mut values], y);
        }
        let (outputs, inputs) = io.outputs();
        let [Some(y), Some(keys), Some(values)] = outputs else { return Err(absent) };
        for (i, cache) in [(KEYS, &mut *keys), (VALUES, &mut *values)] {
            let past = inputs.get(i, self.sizes[i])?;
            check_len(i, past.len(), cache.len())?;
            cache.copy_from_slice(past);
        }
        self.attend(&inputs, [&mut Updated::Whole(keys), &mut Updated::Whole(values)], y)
    }
}
