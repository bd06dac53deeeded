//! com.microsoft's MultiHeadAttention: attention with the bias of the projections before it, packed operands,
//! a padding mask and a cache.

use std::borrow::Cow;
use std::sync::Arc;

use super::attention_op::mask_steps;
use super::count;
use super::device::{Places, lower_scaled};
use super::gate::add_bias;
use super::rotary::{Positions, Rotation, Tables};
use super::scaled::{Attended, MaskData, MaskSteps, Scaled, Sink, Steps, check_sizes};
use crate::dtype::DType;
use crate::graph::TensorInfo;
use crate::kernel::table::{params, variants};
use crate::kernel::{KernelError, NativeKernel};
use crate::operator::AttentionPorts;
use crate::ops::real::{Real, RealIo, RealKernel, check_len, real_kernel};
use crate::ops::word::word;
use crate::ops::{AttrReader, Cost, Lowering, OpCx, OpError, Operand, Operator, Structure};
use crate::shape::Shape;

/// The types that it takes.
pub(super) const TYPES: &[DType] = &[DType::F32, DType::F16];

// Positions of the inputs.
const Q: usize = 0;
const K: usize = 1;
const V: usize = 2;
const BIAS: usize = 3;
const PADDING: usize = 4;
const ADDED: usize = 5;
const PAST_K: usize = 6;
const PAST_V: usize = 7;

/// Inputs: query, key, value, bias, padding mask, attention bias, past keys and values; outputs: the result
/// (`[batch, length, heads * size]`) and the present keys and values. A masked key is hidden, whatever value
/// the attribute `mask_filter_value` would have given its score.
#[derive(Clone, Copy, Debug)]
pub struct MultiHeadAttention {
    /// Heads of queries, keys and values.
    pub heads: usize,
    /// Factor of the products; one over the root of the size of a head where there is none.
    pub scale: Option<f32>,
    /// Whether a query sees no key after its own position.
    pub causal: bool,
}

pub(super) fn read(attrs: &mut AttrReader<'_>, _opset: i64) -> Result<Arc<dyn Operator>, OpError> {
    attrs.float_opt("mask_filter_value")?;
    Ok(Arc::new(MultiHeadAttention {
        heads: count(attrs, "num_heads", 1)?,
        scale: attrs.float_opt("scale")?.filter(|s| *s != 0.0),
        causal: attrs.flag("unidirectional", false)?,
    }))
}

/// Where queries, keys or values come from.
#[derive(Clone, Copy, Debug)]
struct Origin {
    input: usize,
    steps: Steps,
    len: usize,
    size: usize,
    /// First element of their part of the bias.
    bias: usize,
    /// Whether they have one: keys and values that come as heads have theirs already.
    biased: bool,
}

#[derive(Clone, Debug)]
struct Resolved {
    scaled: Scaled,
    origins: [Origin; 3],
    past_len: usize,
    /// Elements of the inputs.
    sizes: [usize; 8],
    /// Whether the padding mask is numbers of valid keys, and not a mask.
    lens: bool,
    /// Whether present keys and values are written.
    cached: bool,
    /// An attention bias and a padding mask, which become one.
    joined: Option<Joined>,
}

/// An attention bias with the keys hidden that a padding mask hides: `[batch, heads, rows, keys]`.
#[derive(Clone, Copy, Debug)]
struct Joined {
    added: MaskSteps,
    sizes: [usize; 4],
    /// Strides of the batch and of rows in the padding mask.
    padding: [usize; 2],
}

impl Joined {
    fn of(
        added: MaskSteps,
        [batch, heads, rows, keys]: [usize; 4],
        padding: [usize; 2],
    ) -> Result<Joined, OpError> {
        let heads = if added.head == 0 { 1 } else { heads };
        let rows = if added.row == 0 && padding[1] == 0 { 1 } else { rows };
        let sizes = [batch, heads, rows, keys];
        Shape::new(sizes)?;
        Ok(Joined { added, sizes, padding })
    }

    fn steps(&self) -> MaskSteps {
        let [batch, heads, rows, keys] = self.sizes;
        let step = |count: usize, size: usize| if count == 1 { 0 } else { size };
        MaskSteps {
            batch: heads * rows * keys,
            head: step(heads, rows * keys),
            row: step(rows, keys),
            key: 1,
            len: keys,
            elements: batch * heads * rows * keys,
        }
    }

    fn run<T: Real>(&self, added: &[T], padding: &[i32]) -> Vec<T> {
        let ([_, heads, rows, keys], a) = (self.sizes, &self.added);
        let element = |i: usize| {
            let (key, row) = (i % keys, i / keys % rows);
            let (head, batch) = (i / keys / rows % heads, i / keys / rows / heads);
            let kept = padding.get(batch * self.padding[0] + row * self.padding[1] + key);
            let at = batch * a.batch + head * a.head + row * a.row + key * a.key;
            match kept.is_some_and(|k| *k != 0) && key < a.len {
                true => added.get(at).copied().unwrap_or(T::LOWEST),
                false => T::LOWEST,
            }
        };
        (0..self.steps().elements).map(element).collect()
    }

    fn lower(&self, dtype: DType, lower: &mut Lowering<'_>) -> Result<Operand, OpError> {
        let kernel = variants::MaskJoin { t: dtype }.id()?;
        let ([_, heads, rows, keys], a, n) = (self.sizes, &self.added, self.steps().elements);
        let params = params::MaskJoin {
            n: word(n)?,
            heads: word(heads)?,
            rows: word(rows)?,
            keys: word(keys)?,
            added_batch: word(a.batch)?,
            added_head: word(a.head)?,
            added_row: word(a.row)?,
            added_key: word(a.key)?,
            added_len: word(a.len)?,
            padding_batch: word(self.padding[0])?,
            padding_row: word(self.padding[1])?,
        };
        let to = lower.scratch(n * dtype.bytes());
        let args = [Operand::Input(ADDED), Operand::Input(PADDING), to];
        lower.dispatch_1d(kernel, &[], &args, &params, n)?;
        Ok(to)
    }
}

impl MultiHeadAttention {
    fn origins(&self, cx: &OpCx) -> Result<[Origin; 3], OpError> {
        let h = self.heads;
        let biased = cx.has(BIAS);
        let own = |input: usize, bias: usize| match *cx.shape(input)?.dims() {
            [_, l, w] if w.is_multiple_of(h) => {
                Ok(Origin { input, steps: Steps::rows_first(h, l, w / h), len: l, size: w / h, bias, biased })
            }
            [_, n, l, d] if n == h && input != Q => {
                let steps = Steps::heads_first(h, l, d);
                Ok(Origin { input, steps, len: l, size: d, bias, biased: false })
            }
            _ => Err(cx.shape_error(input, format!("[batch, length, {h} heads] or [batch, {h}, ..]"))),
        };
        // Several operands in one tensor of `[batch, length, heads, parts, size]`.
        let packed = |input: usize, parts: usize, part: usize, bias: usize| match cx.shape(input)?.dims() {
            &[_, l, n, p, d] if n == h && p == parts => {
                let row = h * parts * d;
                let steps = Steps { first: part * d, batch: l * row, head: parts * d, row };
                Ok(Origin { input, steps, len: l, size: d, bias, biased: false })
            }
            _ => Err(cx.shape_error(input, format!("[batch, length, {h}, {parts}, size]"))),
        };
        if cx.shape(Q)?.rank() == 5 {
            return Ok([packed(Q, 3, 0, 0)?, packed(Q, 3, 1, 0)?, packed(Q, 3, 2, 0)?]);
        }
        let q = own(Q, 0)?;
        let width = h * q.size;
        if cx.shape(K)?.rank() == 5 {
            return Ok([q, packed(K, 2, 0, width)?, packed(K, 2, 1, 2 * width)?]);
        }
        Ok([q, own(K, width)?, own(V, 2 * width)?])
    }

    fn resolve(&self, cx: &OpCx) -> Result<Resolved, OpError> {
        let origins = self.origins(cx)?;
        let [q, k, v] = origins;
        let (batch, heads) = (cx.shape(Q)?[0], self.heads);
        let fits = k.size == q.size && v.len == k.len;
        if !fits || [k.input, v.input].iter().any(|i| cx.shape(*i).is_ok_and(|s| s[0] != batch)) {
            return Err(cx.shape_error(k.input, format!("batch {batch} and heads of {}", q.size)));
        }
        if cx.has(BIAS) {
            let width = heads * (2 * q.size + v.size);
            if origins.iter().any(|o| cx.shape(o.input).is_ok_and(|s| s.rank() == 5)) {
                return Err(OpError::unsupported("MultiHeadAttention with a bias for packed inputs"));
            }
            if cx.shape(BIAS)?.dims() != [width] {
                return Err(cx.shape_error(BIAS, format!("[{width}]")));
            }
        }
        let mut past_len = 0;
        if cx.has(PAST_K) {
            past_len = cx.shape(PAST_K)?.get(2).copied().unwrap_or(0);
            for (i, size) in [(PAST_K, k.size), (PAST_V, v.size)] {
                if cx.shape(i)?.dims() != [batch, heads, past_len, size] {
                    return Err(cx.shape_error(i, format!("[{batch}, {heads}, {past_len}, {size}]")));
                }
            }
        }
        let kv_len = past_len.saturating_add(k.len);
        check_sizes(batch, [heads; 2], [q.len, kv_len], [q.size, v.size])?;
        let full = [batch, heads, q.len, kv_len];
        let mut lens = false;
        let mut mask = None;
        let mut joined = None;
        if cx.has(ADDED) {
            mask = Some(mask_steps(cx, ADDED, full)?);
        }
        if cx.has(PADDING) {
            let dims = cx.shape(PADDING)?.dims();
            if dims == [batch] {
                if self.causal {
                    return Err(OpError::unsupported(
                        "MultiHeadAttention with numbers of valid keys that is unidirectional",
                    ));
                }
                lens = true;
            } else {
                // Bytes of 32-bit numbers, of which the lowest tells.
                let bytes = |n: usize| 4 * n;
                let (row, own) = match *dims {
                    [b, n] if b == batch && n == kv_len => (0, n),
                    [b, l, n] if b == batch && l == q.len && n == kv_len => (n, l * n),
                    _ => return Err(cx.shape_error(PADDING, format!("[{batch}] or [{batch}, {kv_len}]"))),
                };
                let elements = bytes(batch * own);
                if let Some(added) = mask {
                    joined = Some(Joined::of(added, [batch, heads, q.len, kv_len], [own, row])?);
                    mask = joined.map(|j| j.steps());
                } else {
                    let (batch, row) = (bytes(own), bytes(row));
                    mask = Some(MaskSteps { batch, head: 0, row, key: 4, len: kv_len, elements });
                }
            }
        }
        let cached = past_len > 0;
        let of = |o: Origin| if cached { Steps::heads_first(heads, kv_len, o.size) } else { o.steps };
        let scaled = Scaled {
            batch,
            q_heads: heads,
            kv_heads: heads,
            q_len: q.len,
            kv_len,
            head: q.size,
            v_head: v.size,
            q: q.steps,
            k: of(k),
            v: of(v),
            y: Steps::rows_first(heads, q.len, v.size),
            mask,
            scale: self.scale.unwrap_or(1.0 / (q.size.max(1) as f32).sqrt()),
            softcap: 0.0,
            causal: self.causal,
            left: None,
            right: None,
            offset: past_len,
            lens_add: 0,
        };
        let sizes = std::array::from_fn(|i| cx.input_opt(i).map_or(0, TensorInfo::elements));
        let cached = cached || cx.output_count() > 1;
        Ok(Resolved { scaled, origins, past_len, sizes, lens, cached, joined })
    }
}

impl Resolved {
    /// Copies of vectors into the cache: past ones, then new ones.
    fn append(&self, o: &Origin) -> [Rotation; 2] {
        let s = &self.scaled;
        let y = Steps::heads_first(s.kv_heads, s.kv_len, o.size);
        let copy = |len: usize, x: Steps, first: usize| Rotation {
            batch: s.batch,
            heads: s.kv_heads,
            len,
            head: o.size,
            rotated: 0,
            rows: 1,
            interleaved: false,
            positions: Positions::Place,
            x,
            y: Steps { first: first * o.size, ..y },
            append: false,
            y_rows: s.kv_len,
        };
        let past = Steps::heads_first(s.kv_heads, self.past_len, o.size);
        [copy(self.past_len, past, 0), copy(o.len, o.steps, self.past_len)]
    }
}

impl Operator for MultiHeadAttention {
    fn name(&self) -> &'static str {
        "MultiHeadAttention"
    }

    fn structure(&self) -> Option<Structure<'_>> {
        Some(Structure::Attention(AttentionPorts {
            past: Some(PAST_K),
            bias: Some(ADDED),
            extends: true,
            ..AttentionPorts::new(K)
        }))
    }

    fn infer(&self, cx: &OpCx) -> Result<Vec<TensorInfo>, OpError> {
        cx.expect_counts(1..=10, 1..=3)?;
        if (PAST_V + 1..10).any(|i| cx.has(i)) {
            return Err(OpError::unsupported("MultiHeadAttention with a shared cache or beams"));
        }
        let dtype = cx.dtype_of(Q, TYPES)?;
        for i in [K, V, BIAS, ADDED, PAST_K, PAST_V].into_iter().filter(|i| cx.has(*i)) {
            cx.expect_dtype(i, dtype)?;
        }
        if cx.has(PADDING) {
            cx.expect_dtype(PADDING, DType::I32)?;
        }
        if cx.has(PAST_K) != cx.has(PAST_V) {
            return Err(OpError::MissingInput { input: if cx.has(PAST_K) { PAST_V } else { PAST_K } });
        }
        let resolved = self.resolve(cx)?;
        let s = &resolved.scaled;
        let mut outputs = vec![TensorInfo::new(dtype, Shape::new([s.batch, s.q_len, s.q_heads * s.v_head])?)];
        if resolved.cached {
            for size in [s.head, s.v_head] {
                outputs.push(TensorInfo::new(dtype, Shape::new([s.batch, s.kv_heads, s.kv_len, size])?));
            }
        }
        Ok(outputs)
    }

    fn cost(&self, cx: &OpCx) -> Cost {
        Cost { flops: self.resolve(cx).map_or(0, |r| r.scaled.flops()), bytes: cx.bytes_touched() }
    }

    fn cpu(&self, cx: &OpCx) -> Result<NativeKernel, OpError> {
        let resolved = Resolved { cached: cx.outputs().len() > 1, ..self.resolve(cx)? };
        real_kernel("MultiHeadAttention", cx, resolved)
    }

    fn gpu(&self, cx: &OpCx, lower: &mut Lowering<'_>) -> Result<(), OpError> {
        let resolved = self.resolve(cx)?;
        let dtype = cx.dtype(Q)?;
        let mut from = resolved.origins.map(|o| Operand::Input(o.input));
        for (from, o) in from.iter_mut().zip(&resolved.origins).filter(|(_, o)| o.biased) {
            let n = resolved.sizes[o.input];
            let sum = lower.scratch(n * dtype.bytes());
            let width = self.heads * o.size;
            add_bias(lower, dtype, (*from, n), (Operand::Input(BIAS), o.bias, width), sum)?;
            *from = sum;
        }
        if cx.outputs().len() > 1 {
            for (n, past) in [(1, PAST_K), (2, PAST_V)] {
                let [old, new] = resolved.append(&resolved.origins[n]);
                let to = Operand::Output(n);
                let args = |from| [from, Operand::Unused, Operand::Unused, Operand::Unused, to];
                if resolved.past_len > 0 {
                    old.lower(dtype, 1, args(Operand::Input(past)), lower)?;
                }
                new.lower(dtype, 1, args(from[n]), lower)?;
                if resolved.past_len > 0 {
                    lower.no_barrier();
                    from[n] = to;
                }
            }
        }
        let (mut mask, mut mask_type) = (Operand::Unused, None);
        if let Some(joined) = &resolved.joined {
            (mask, mask_type) = (joined.lower(dtype, lower)?, Some(dtype));
        } else if cx.has(ADDED) {
            (mask, mask_type) = (Operand::Input(ADDED), Some(dtype));
        } else if resolved.scaled.mask.is_some() {
            (mask, mask_type) = (Operand::Input(PADDING), Some(DType::Bool));
        }
        let places = Places {
            dtype,
            q: from[0],
            k: from[1],
            v: from[2],
            mask,
            mask_type,
            lens: if resolved.lens { Operand::Input(PADDING) } else { Operand::Unused },
            lens_words: u32::from(resolved.lens),
            y: Operand::Output(0),
            scores: None,
            sink: Sink::None,
            fresh: None,
            paged: None,
            coded: None,
        };
        lower_scaled(&resolved.scaled, &places, lower)
    }
}

impl RealKernel for Resolved {
    fn run<T: Real>(&self, io: &mut RealIo<'_, T>) -> Result<(), KernelError> {
        let s = &self.scaled;
        let (outputs, inputs) = io.outputs();
        let [y, keys, values] = outputs;
        let bias = inputs.get_opt(BIAS, self.sizes[BIAS])?;
        let mut given = Vec::with_capacity(3);
        for o in &self.origins {
            let x = inputs.get(o.input, self.sizes[o.input])?;
            let width = s.q_heads * o.size;
            let bias = bias.filter(|_| o.biased).and_then(|b| b.get(o.bias..o.bias + width));
            given.push(match bias {
                Some(b) => Cow::Owned(x.iter().zip(b.iter().cycle()).map(|(x, b)| *x + *b).collect()),
                None => Cow::Borrowed(x),
            });
        }
        let mut from: [&[T]; 3] = [&given[0], &given[1], &given[2]];
        for (n, past, cache) in [(1, PAST_K, keys), (2, PAST_V, values)] {
            let Some(cache) = cache.filter(|_| self.cached) else { continue };
            let o = &self.origins[n];
            check_len(8 + n, cache.len(), s.batch * s.kv_heads * s.kv_len * o.size)?;
            let [old, new] = self.append(o);
            if let Some(past) = inputs.get_opt(past, self.sizes[past])? {
                old.fill(past, Tables::Whole([&[]; 2]), &[], cache)?;
            }
            new.fill(from[n], Tables::Whole([&[]; 2]), &[], cache)?;
            if self.past_len > 0 {
                from[n] = cache;
            }
        }
        let whole;
        let mask = match (inputs.get_opt(ADDED, self.sizes[ADDED])?, s.mask) {
            (Some(added), _) => match &self.joined {
                Some(joined) => {
                    let padding = inputs.raw_opt::<i32>(PADDING, self.sizes[PADDING])?.unwrap_or(&[]);
                    whole = joined.run(added, padding);
                    MaskData::Add(&whole)
                }
                None => MaskData::Add(added),
            },
            (None, Some(_)) => {
                let words = inputs.raw_opt::<i32>(PADDING, self.sizes[PADDING])?.unwrap_or(&[]);
                MaskData::Bool(bytemuck::cast_slice(words))
            }
            _ => MaskData::None,
        };
        let lens: Option<Vec<i64>> = match self.lens {
            true => inputs
                .raw_opt::<i32>(PADDING, self.sizes[PADDING])?
                .map(|l| l.iter().map(|n| i64::from(*n)).collect()),
            false => None,
        };
        let given =
            Attended { q: from[0], k: from[1], v: from[2], mask, lens: lens.as_deref(), sink: Sink::None };
        let Some(y) = y else { return Err(KernelError::Absent { index: 8 }) };
        check_len(8, y.len(), s.batch * s.q_heads * s.q_len * s.v_head)?;
        s.attend(&given, y, None)
    }
}
