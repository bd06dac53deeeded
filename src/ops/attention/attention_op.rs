//! Attention: scaled dot product attention with masks, windows, a soft cap and a cache of keys and values.

use std::sync::Arc;

use super::device::{MAX_ELEMENTS, Places, lower_scaled};
use super::few::Rows;
use super::scaled::{Attended, MaskData, MaskSteps, Scaled, Sink, Steps, check_sizes};
use crate::dtype::DType;
use crate::graph::TensorInfo;
use crate::kernel::codes::attention::Stage;
use crate::kernel::{KernelError, NativeKernel};
use crate::operator::AttentionPorts;
use crate::ops::movement::region::{self, Block, Piece, Source};
use crate::ops::real::{FLOATS, Real, RealInputs, RealIo, RealKernel, as_f32s_mut, check_len, real_kernel};
use crate::ops::window::bad;
use crate::ops::{AttrReader, Cost, Lowering, OpCx, OpError, Operand, Operator, Port, Strided, Structure};
use crate::shape::{Shape, ShapeError};

/// ONNX's Attention. Inputs: Q, K, V of `[batch, heads, length, size]` or `[batch, length, heads * size]`,
/// optionally a mask, past keys and values, and the number of valid keys of each element of the batch.
/// Outputs: Y, then present keys and values, then a stage of the scores. The last query of a causal mask stands at the
/// last valid key, where numbers of them are given, and a query that sees no key gives zeros: ONNX 1.23 and later.
#[derive(Clone, Debug, Default)]
pub struct Attention {
    /// Heads of the queries and of the keys, where inputs have three dimensions.
    pub heads: Option<(usize, usize)>,
    /// Factor of the products; one over the root of the size of a head where there is none.
    pub scale: Option<f32>,
    /// Whether a query sees no key after its own position.
    pub causal: bool,
    /// Scores become `cap * tanh(score / cap)`; 0 is none.
    pub softcap: f32,
    /// Numbers of keys before and after its own position that a query sees, where bounded.
    pub window: [Option<usize>; 2],
    /// Which stage of the scores the fourth output shows, as ONNX counts them.
    pub shown: u8,
    /// Where Q, K, V and Y lie in the tensors that the operator then has as inputs and as output 0. Only the planner sets
    /// it, where it absorbs reshapes, transposes and slices.
    pub views: [Option<Strided>; 4],
}

// Positions of the inputs; `views` has Y after the first three.
const Y: usize = 3;
const Q: usize = 0;
const K: usize = 1;
const V: usize = 2;
const MASK: usize = 3;
const PAST_K: usize = 4;
const PAST_V: usize = 5;
const LENS: usize = 6;

pub(super) fn read(attrs: &mut AttrReader<'_>, _opset: i64) -> Result<Arc<dyn Operator>, OpError> {
    let count = |name: &str| match attrs.int_opt(name)? {
        None | Some(0) => Ok(None),
        Some(n) if n > 0 => Ok(Some(n as usize)),
        Some(n) => Err(bad(name, format!("is {n}, expected a number of heads"))),
    };
    let side = |name: &str| match attrs.int(name, -1)? {
        -1 => Ok(None),
        n if n >= 0 => Ok(Some(n as usize)),
        n => Err(bad(name, format!("is {n}, expected -1 or a number of keys"))),
    };
    let shown = attrs.int("qk_matmul_output_mode", 0)?;
    if !(0..=3).contains(&shown) {
        return Err(bad("qk_matmul_output_mode", format!("is {shown}, expected 0 to 3")));
    }
    // Softmax is computed in 32 bits, or in 64 for inputs of 64 bits, whatever the attribute.
    attrs.int_opt("softmax_precision")?;
    Ok(Arc::new(Attention {
        heads: count("q_num_heads")?.zip(count("kv_num_heads")?),
        scale: attrs.float_opt("scale")?,
        causal: attrs.flag("is_causal", false)?,
        softcap: attrs.float("softcap", 0.0)?.max(0.0),
        window: [side("left_window_size")?, side("right_window_size")?],
        shown: shown as u8,
        views: Default::default(),
    }))
}

/// Sizes of one operand: batch, heads, length, size of a head, and where they lie.
pub(super) struct Operand4 {
    pub sizes: [usize; 4],
    pub steps: Steps,
}

/// Input `i` as `[batch, heads, length, size]`, or as `[batch, length, heads * size]`.
pub(super) fn operand(cx: &OpCx, i: usize, heads: Option<usize>) -> Result<Operand4, OpError> {
    match (cx.shape(i)?.dims(), heads) {
        (&[b, h, l, d], _) => Ok(Operand4 { sizes: [b, h, l, d], steps: Steps::heads_first(h, l, d) }),
        (&[b, l, w], Some(h)) if h > 0 && w.is_multiple_of(h) => {
            Ok(Operand4 { sizes: [b, h, l, w / h], steps: Steps::rows_first(h, l, w / h) })
        }
        (&[_, _, _], Some(h)) => Err(cx.shape_error(i, format!("a last axis of {h} heads"))),
        (&[_, _, _], None) => {
            Err(bad("q_num_heads", "and kv_num_heads must be given for inputs of three dimensions".into()))
        }
        _ => Err(cx.shape_error(i, "three or four dimensions")),
    }
}

/// Where the vectors of `view` lie, where they are contiguous.
fn placed(view: &Strided, heads: Option<usize>) -> Option<Operand4> {
    let (last, stride) = (view.shape.last()?, view.strides.last()?);
    (*stride == 1 || *last == 1).then_some(())?;
    match (view.shape.dims(), &view.strides[..], heads) {
        (&[b, h, l, d], &[batch, head, row, _], _) => {
            let steps = Steps { first: view.offset, batch, head, row };
            Some(Operand4 { sizes: [b, h, l, d], steps })
        }
        (&[b, l, w], &[batch, row, _], Some(h)) if h > 0 && w.is_multiple_of(h) => {
            let steps = Steps { first: view.offset, batch, head: w / h, row };
            Some(Operand4 { sizes: [b, h, l, w / h], steps })
        }
        _ => None,
    }
}

/// The strides of input `i` as a mask of `[batch, heads, queries, keys]`; it may be short in keys.
pub(super) fn mask_steps(cx: &OpCx, i: usize, sizes: [usize; 4]) -> Result<MaskSteps, OpError> {
    let shape = cx.shape(i)?;
    let len = shape.last().copied().unwrap_or(1);
    let keys = if len == 1 { sizes[3] } else { len };
    let fits = keys <= sizes[3];
    let full = Shape::new([sizes[0], sizes[1], sizes[2], keys])?;
    let strides = shape.broadcast_strides(&full).ok().filter(|_| fits);
    let Some([batch, head, row, key]) = strides.and_then(|s| <[usize; 4]>::try_from(s).ok()) else {
        return Err(cx.shape_error(i, format!("one that broadcasts to {sizes:?}")));
    };
    Ok(MaskSteps { batch, head, row, key, len: keys, elements: shape.elements() })
}

/// The pieces that write output `to`: past keys (or values), then new ones; `past` is an input of
/// `[batch, heads, length, size]`.
pub(super) fn present(
    cx: &OpCx,
    past: Option<usize>,
    (new, steps): (usize, Steps),
    to: usize,
) -> Result<Vec<Piece>, OpError> {
    let dims = cx.output(to)?.shape.to_vec();
    let [batch, heads, total, size] = dims[..] else { return Ok(Vec::new()) };
    let dst: Vec<isize> = [heads * total * size, total * size, size, 1].map(|s| s as isize).to_vec();
    let mut pieces = Vec::new();
    let mut at = 0;
    if let Some(past) = past {
        let len = cx.shape(past)?.get(2).copied().unwrap_or(0);
        pieces.extend(
            Block {
                dims: vec![batch, heads, len, size],
                src_strides: [heads * len * size, len * size, size, 1].map(|s| s as isize).to_vec(),
                dst_strides: dst.clone(),
                src_offset: 0,
                dst_offset: 0,
            }
            .piece(Source::Input(past), to),
        );
        at = len;
    }
    pieces.extend(
        Block {
            dims: vec![batch, heads, total.saturating_sub(at), size],
            src_strides: [steps.batch, steps.head, steps.row, 1].map(|s| s as isize).to_vec(),
            dst_strides: dst,
            src_offset: steps.first,
            dst_offset: at * size,
        }
        .piece(Source::Input(new), to),
    );
    Ok(pieces)
}

/// An [`Attention`] for given inputs.
#[derive(Clone, Debug)]
struct Resolved {
    scaled: Scaled,
    /// The shape of output 0.
    output: Shape,
    /// Sizes of the new keys and values in the cache's order.
    k: Steps,
    v: Steps,
    past: bool,
    /// Keys before the new ones.
    past_len: usize,
}

impl Attention {
    fn resolve(&self, cx: &OpCx) -> Result<Resolved, OpError> {
        let operand = |i: usize, heads| match &self.views[i] {
            None => operand(cx, i, heads),
            Some(view) => {
                view.check(cx, i)?;
                placed(view, heads).ok_or_else(|| cx.shape_error(i, "a view of contiguous vectors"))
            }
        };
        let rank = |i: usize| match &self.views[i] {
            None => Ok(cx.shape(i)?.rank()),
            Some(view) => Ok::<_, OpError>(view.shape.rank()),
        };
        let q = operand(Q, self.heads.map(|h| h.0))?;
        let k = operand(K, self.heads.map(|h| h.1))?;
        let v = operand(V, self.heads.map(|h| h.1))?;
        let [batch, q_heads, q_len, head] = q.sizes;
        let [_, kv_heads, new_len, _] = k.sizes;
        let v_head = v.sizes[3];
        if rank(Q)? != rank(K)? || k.sizes[0] != batch || k.sizes[3] != head {
            return Err(cx.shape_error(K, format!("batch {batch} and heads of {head}, as input 0 has")));
        }
        if rank(V)? != rank(K)? || v.sizes[..3] != k.sizes[..3] {
            return Err(cx.shape_error(V, "that of input 1, but for the size of a head"));
        }
        if kv_heads == 0 || !q_heads.is_multiple_of(kv_heads) {
            return Err(cx.shape_error(K, format!("a number of heads that divides {q_heads}")));
        }
        let past = cx.has(PAST_K);
        if past != cx.has(PAST_V) {
            return Err(OpError::MissingInput { input: if past { PAST_V } else { PAST_K } });
        }
        let mut past_len = 0;
        if past {
            past_len = cx.shape(PAST_K)?.get(2).copied().unwrap_or(0);
            for (i, size) in [(PAST_K, head), (PAST_V, v_head)] {
                if cx.shape(i)?.dims() != [batch, kv_heads, past_len, size] {
                    return Err(cx.shape_error(i, format!("[{batch}, {kv_heads}, {past_len}, {size}]")));
                }
            }
        }
        let kv_len = new_len.saturating_add(past_len);
        check_sizes(batch, [q_heads, kv_heads], [q_len, kv_len], [head, v_head])?;
        if cx.has(LENS) {
            if past {
                return Err(OpError::unsupported("past keys in addition to numbers of valid keys"));
            }
            if cx.shape(LENS)?.dims() != [batch] {
                return Err(cx.shape_error(LENS, format!("[{batch}]")));
            }
        }
        let mask = match cx.has(MASK) {
            true => Some(mask_steps(cx, MASK, [batch, q_heads, q_len, kv_len])?),
            false => None,
        };
        let (shape, steps) = match rank(Q)? {
            3 => (vec![batch, q_len, q_heads * v_head], Steps::rows_first(q_heads, q_len, v_head)),
            _ => (vec![batch, q_heads, q_len, v_head], Steps::heads_first(q_heads, q_len, v_head)),
        };
        let shape = Shape::new(shape)?;
        let (y, output) = match &self.views[Y] {
            None => (steps, shape),
            Some(view) if view.shape != shape => {
                let (expected, got) = (shape.to_string(), view.shape.to_string());
                return Err(ShapeError::Mismatch { expected, got }.into());
            }
            Some(view) => {
                let lies = placed(view, Some(q_heads)).filter(|_| view.is_all());
                let what = || OpError::unsupported("an output whose vectors are not all of a tensor");
                (lies.ok_or_else(what)?.steps, view.root.clone())
            }
        };
        let of = |given: Steps, size| if past { Steps::heads_first(kv_heads, kv_len, size) } else { given };
        let scaled = Scaled {
            batch,
            q_heads,
            kv_heads,
            q_len,
            kv_len,
            head,
            v_head,
            q: q.steps,
            k: of(k.steps, head),
            v: of(v.steps, v_head),
            y,
            mask,
            scale: self.scale.unwrap_or(1.0 / (head.max(1) as f32).sqrt()),
            softcap: self.softcap,
            causal: self.causal,
            left: self.window[0],
            right: self.window[1],
            offset: past_len,
            lens_add: 0,
        };
        Ok(Resolved { scaled, output, k: k.steps, v: v.steps, past, past_len })
    }

    fn stage(&self) -> Stage {
        match self.shown {
            0 => Stage::Product,
            1 => Stage::Capped,
            2 => Stage::Masked,
            _ => Stage::Softmax,
        }
    }

    /// The pieces that write the present keys and values.
    fn cache(&self, cx: &OpCx, resolved: &Resolved) -> Result<Vec<Piece>, OpError> {
        let mut pieces = Vec::new();
        if cx.outputs().len() > 2 {
            let past = |i| resolved.past.then_some(i);
            pieces.extend(present(cx, past(PAST_K), (K, resolved.k), 1)?);
            pieces.extend(present(cx, past(PAST_V), (V, resolved.v), 2)?);
        }
        Ok(pieces)
    }
}

impl Operator for Attention {
    fn name(&self) -> &'static str {
        "Attention"
    }

    fn structure(&self) -> Option<Structure<'_>> {
        Some(Structure::Attention(AttentionPorts {
            past: Some(PAST_K),
            bias: Some(MASK),
            extends: true,
            placed: self.window != [None; 2],
            ..AttentionPorts::new(K)
        }))
    }

    fn with_view(&self, port: Port, view: &Strided) -> Option<Arc<dyn Operator>> {
        let at = match port {
            Port::Input(i) => Some(i).filter(|i| *i < Y)?,
            Port::Output(o) => Some(Y).filter(|_| o == 0)?,
        };
        let Operand4 { sizes, steps } =
            placed(view, self.heads.map(|h| if at == K || at == V { h.1 } else { h.0 }))?;
        // Kernels read vectors of whole texels, which stay so.
        let fours = |n: &usize| n.is_multiple_of(4);
        let texels = !fours(&sizes[3]) || [steps.first, steps.batch, steps.head, steps.row].iter().all(fours);
        let fits = texels && view.root.elements() <= MAX_ELEMENTS && (at != Y || view.is_all());
        let mut op = self.clone();
        let is_new = op.views[at].replace(view.clone()).is_none();
        (fits && is_new).then(|| Arc::new(op) as Arc<dyn Operator>)
    }

    fn infer(&self, cx: &OpCx) -> Result<Vec<TensorInfo>, OpError> {
        cx.expect_counts(3..=7, 1..=4)?;
        let dtype = cx.dtype_of(Q, FLOATS)?;
        for i in [K, V, PAST_K, PAST_V].into_iter().filter(|i| cx.has(*i) || *i < MASK) {
            cx.expect_dtype(i, dtype)?;
        }
        if cx.has(MASK) {
            let allowed = [DType::Bool, dtype, DType::F32, DType::F16, DType::BF16, DType::F64];
            cx.dtype_of(MASK, &allowed)?;
        }
        if cx.has(LENS) {
            cx.expect_dtype(LENS, DType::I64)?;
        }
        let resolved = self.resolve(cx)?;
        let s = &resolved.scaled;
        let mut outputs = vec![TensorInfo::new(dtype, resolved.output.clone())];
        // The cache is written even if it is no output, because attention reads it from there.
        if cx.output_count() > 1 || resolved.past {
            for size in [s.head, s.v_head] {
                let shape = Shape::new([s.batch, s.kv_heads, s.kv_len, size])?;
                outputs.push(TensorInfo::new(dtype, shape));
            }
        }
        if cx.output_count() > 3 {
            let shape = Shape::new([s.batch, s.q_heads, s.q_len, s.kv_len])?;
            outputs.push(TensorInfo::new(dtype, shape));
        }
        Ok(outputs)
    }

    fn cost(&self, cx: &OpCx) -> Cost {
        Cost { flops: self.resolve(cx).map_or(0, |r| r.scaled.flops()), bytes: cx.bytes_touched() }
    }

    fn cpu(&self, cx: &OpCx) -> Result<NativeKernel, OpError> {
        let resolved = self.resolve(cx)?;
        let mask_is_bool = cx.has(MASK) && cx.dtype(MASK)? == DType::Bool;
        let sizes = std::array::from_fn(|i| cx.input_opt(i).map_or(0, TensorInfo::elements));
        real_kernel("Attention", cx, Run { resolved, stage: self.stage(), sizes, mask_is_bool })
    }

    fn gpu(&self, cx: &OpCx, lower: &mut Lowering<'_>) -> Result<(), OpError> {
        let resolved = self.resolve(cx)?;
        region::gpu(lower, cx, &self.cache(cx, &resolved)?)?;
        let pick = |given: bool, operand| if given { operand } else { Operand::Unused };
        let places = Places {
            dtype: cx.dtype(Q)?,
            q: Operand::Input(Q),
            k: if resolved.past { Operand::Output(1) } else { Operand::Input(K) },
            v: if resolved.past { Operand::Output(2) } else { Operand::Input(V) },
            mask: pick(cx.has(MASK), Operand::Input(MASK)),
            mask_type: if cx.has(MASK) { Some(cx.dtype(MASK)?) } else { None },
            lens: pick(cx.has(LENS), Operand::Input(LENS)),
            lens_words: if cx.has(LENS) { 2 } else { 0 },
            y: Operand::Output(0),
            scores: (cx.outputs().len() > 3).then_some((self.stage(), Operand::Output(3))),
            sink: Sink::None,
            fresh: None,
            paged: None,
            coded: None,
        };
        lower_scaled(&resolved.scaled, &places, lower)
    }
}

struct Run {
    resolved: Resolved,
    stage: Stage,
    sizes: [usize; 7],
    mask_is_bool: bool,
}

impl RealKernel for Run {
    // Few queries read a few rows at a time.
    const HALF: &'static [usize] = &[K, V];

    fn run<T: Real>(&self, io: &mut RealIo<'_, T>) -> Result<(), KernelError> {
        let Run { resolved, sizes, .. } = self;
        let s = &resolved.scaled;
        let (outputs, inputs) = io.outputs();
        let [mut y, keys, values, scores] = outputs;
        if let (Some(y), None, None, None) = (&mut y, &keys, &values, &scores)
            && self.run_few(&inputs, y)?
        {
            return Ok(());
        }
        let new = [inputs.widened(K, sizes[K])?, inputs.widened(V, sizes[V])?];
        let new = [&new[0][..], &new[1][..]];
        let past = [inputs.get_opt(PAST_K, sizes[PAST_K])?, inputs.get_opt(PAST_V, sizes[PAST_V])?];
        let mut full = [new[0], new[1]];
        let steps = [resolved.k, resolved.v];
        for (i, cache) in [keys, values].into_iter().enumerate() {
            let size = if i == 0 { s.head } else { s.v_head };
            let Some(cache) = cache else { continue };
            check_len(K + i, cache.len(), s.batch * s.kv_heads * s.kv_len * size)?;
            fill_cache(s, resolved.past_len, size, (new[i], steps[i]), past[i], cache)?;
            if resolved.past {
                full[i] = cache;
            }
        }
        let given = self.given(&inputs, full)?;
        let Some(y) = y else { return Err(KernelError::Absent { index: 7 }) };
        check_len(7, y.len(), s.batch * s.q_heads * s.q_len * s.v_head)?;
        if let Some(scores) = &scores {
            check_len(10, scores.len(), s.batch * s.q_heads * s.q_len * s.kv_len)?;
        }
        s.attend(&given, y, scores.map(|out| (self.stage, out)))
    }
}

impl Run {
    fn given<'a, T: Real>(
        &self,
        inputs: &RealInputs<'a, T>,
        [k, v]: [&'a [T]; 2],
    ) -> Result<Attended<'a, T>, KernelError> {
        let sizes = &self.sizes;
        let mask = match self.mask_is_bool {
            true => MaskData::Bool(inputs.raw_opt::<u8>(MASK, sizes[MASK])?.unwrap_or(&[])),
            false => inputs.get_opt(MASK, sizes[MASK])?.map_or(MaskData::None, MaskData::Add),
        };
        let lens = inputs.raw_opt::<i64>(LENS, sizes[LENS])?;
        Ok(Attended { q: inputs.get(Q, sizes[Q])?, k, v, mask, lens, sink: Sink::None })
    }

    /// Attends to keys and values of `float16` as they lie, where queries are few and nothing is before them. Returns whether
    /// that is so.
    fn run_few<T: Real>(&self, inputs: &RealInputs<'_, T>, y: &mut [T]) -> Result<bool, KernelError> {
        let (s, sizes) = (&self.resolved.scaled, &self.sizes);
        let (k, v) = (inputs.half(K, sizes[K])?, inputs.half(V, sizes[V])?);
        let (Some(k), Some(v)) = (k, v) else { return Ok(false) };
        if self.resolved.past || !s.is_few() {
            return Ok(false);
        }
        check_len(7, y.len(), s.batch * s.q_heads * s.q_len * s.v_head)?;
        let given = self.given(inputs, [&[], &[]])?;
        let (Some(given), Some(y)) = (given.f32s(), as_f32s_mut(y)) else { return Ok(false) };
        s.few_of(&given, [Rows::Halves(k, s.k), Rows::Halves(v, s.v)], y)?;
        Ok(true)
    }
}

/// Writes past vectors of `size` elements, then new ones, heads first.
pub(super) fn fill_cache<T: Real>(
    s: &Scaled,
    past_len: usize,
    size: usize,
    (new, steps): (&[T], Steps),
    past: Option<&[T]>,
    cache: &mut [T],
) -> Result<(), KernelError> {
    let short = || KernelError::Value { what: "an operand of attention is too short".to_owned() };
    for (n, cache) in cache.chunks_mut((s.kv_len * size).max(1)).enumerate() {
        let (b, h) = (n / s.kv_heads, n % s.kv_heads);
        let (before, after) = cache.split_at_mut_checked(past_len * size).ok_or_else(short)?;
        if let Some(past) = past {
            let from = n * past_len * size;
            before.copy_from_slice(past.get(from..from + before.len()).ok_or_else(short)?);
        }
        for (r, row) in after.chunks_mut(size.max(1)).enumerate() {
            let from = steps.vector([b, h, r]);
            row.copy_from_slice(new.get(from..from + row.len()).ok_or_else(short)?);
        }
    }
    Ok(())
}
