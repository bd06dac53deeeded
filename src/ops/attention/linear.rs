//! LinearAttention: a recurrent state that is read by queries instead of scores, with decay and delta rules.

use std::sync::Arc;

use super::{FLOATS_TO_32, count};
use crate::graph::TensorInfo;
use crate::kernel::codes::linear_attention::{COLS, Decay, PARTS};
use crate::kernel::table::{params, spec, variants};
use crate::kernel::{KernelError, NativeKernel, grid_1d};
use crate::ops::real::{Real, RealIo, RealKernel, check_len, real_kernel};
use crate::ops::window::bad;
use crate::ops::word::word;
use crate::ops::{AttrReader, Cost, Lowering, OpCx, OpError, Operand, Operator, par};
use crate::shape::Shape;

/// The largest key that the registers of the device kernel hold.
const MAX_HEAD: usize = 512;

// Positions of the inputs.
const Q: usize = 0;
const K: usize = 1;
const V: usize = 2;
const PAST: usize = 3;
const DECAY: usize = 4;
const BETA: usize = 5;

/// Attention whose keys and values are summed into a state of one matrix for each head. Inputs: query, key,
/// value (`[batch, length, heads * size]`), past state, decay, beta; outputs: the result and the state.
#[derive(Clone, Copy, Debug)]
pub struct LinearAttention {
    /// Heads of queries.
    pub q_heads: usize,
    /// Heads of keys and values, which divide them, or are a multiple of them.
    pub kv_heads: usize,
    /// Factor of the result; one over the root of the size of a key where there is none.
    pub scale: Option<f32>,
    /// Whether the state fades before each step.
    pub gated: bool,
    /// Whether what the state holds of a key is taken out of the value.
    pub delta: bool,
}

pub(super) fn read(attrs: &mut AttrReader<'_>, _opset: i64) -> Result<Arc<dyn Operator>, OpError> {
    let rules = [
        ("linear", (false, false)),
        ("gated", (true, false)),
        ("delta", (false, true)),
        ("gated_delta", (true, true)),
    ];
    let (gated, delta) = attrs.choice("update_rule", (true, true), &rules)?;
    // How prefill is cut into chunks does not change the result.
    attrs.int_opt("chunk_size")?;
    Ok(Arc::new(LinearAttention {
        q_heads: count(attrs, "q_num_heads", 1)?,
        kv_heads: count(attrs, "kv_num_heads", 1)?,
        scale: attrs.float_opt("scale")?.filter(|s| *s != 0.0),
        gated,
        delta,
    }))
}

/// com.microsoft's LinearAttention: as ONNX's, and heads of values may be a multiple of those of queries, and of keys.
pub(super) fn read_contrib(attrs: &mut AttrReader<'_>, opset: i64) -> Result<Arc<dyn Operator>, OpError> {
    match attrs.int("state_window", 0)? {
        0 => read(attrs, opset),
        n => Err(OpError::unsupported(format!("LinearAttention that keeps the states of {n} positions"))),
    }
}

/// A [`LinearAttention`] for given inputs.
#[derive(Clone, Copy, Debug)]
struct Sizes {
    batch: usize,
    len: usize,
    q_heads: usize,
    kv_heads: usize,
    /// Heads of the keys that are given, each of which several heads of values share.
    k_heads: usize,
    head: usize,
    v_head: usize,
    /// Decays of one position: one for each head, or one for each element of a key.
    decays: usize,
    betas: usize,
    scale: f32,
    gated: bool,
    delta: bool,
}

impl LinearAttention {
    fn resolve(&self, cx: &OpCx) -> Result<Sizes, OpError> {
        if !self.q_heads.is_multiple_of(self.kv_heads) && !self.kv_heads.is_multiple_of(self.q_heads) {
            let problem = format!("is {}, neither a multiple of kv_num_heads nor a part of it", self.q_heads);
            return Err(bad("q_num_heads", problem));
        }
        let dims = |i: usize, heads: usize| match cx.shape(i)?.dims() {
            &[b, l, w] if w.is_multiple_of(heads) => Ok([b, l, w / heads]),
            _ => Err(cx.shape_error(i, format!("[batch, length, {heads} heads]"))),
        };
        let [batch, len, head] = dims(Q, self.q_heads)?;
        let [_, _, v_head] = dims(V, self.kv_heads)?;
        // Keys may be as many as queries, where these are fewer than values.
        let k_heads = match cx.shape(K)?.last() {
            Some(width) if *width == self.q_heads * head => self.q_heads.min(self.kv_heads),
            _ => self.kv_heads,
        };
        let width = [(K, k_heads * head), (V, self.kv_heads * v_head)];
        for (i, width) in width {
            if cx.shape(i)?.dims() != [batch, len, width] {
                return Err(cx.shape_error(i, format!("[{batch}, {len}, {width}]")));
            }
        }
        if cx.has(PAST) && cx.shape(PAST)?.dims() != [batch, self.kv_heads, head, v_head] {
            return Err(cx.shape_error(PAST, format!("[{batch}, {}, {head}, {v_head}]", self.kv_heads)));
        }
        let mut found = [0, 0];
        let rates = [(DECAY, self.gated, self.kv_heads * head), (BETA, self.delta, 1)];
        for ((i, wanted, other), found) in rates.into_iter().zip(&mut found) {
            if cx.has(i) != wanted {
                let what = if wanted { "needs" } else { "forbids" };
                return Err(OpError::Value { input: i, problem: format!("the update rule {what} it") });
            }
            if wanted {
                *found = cx.shape(i)?.last().copied().unwrap_or(0);
                let fits = *found == self.kv_heads || *found == other;
                if !fits || cx.shape(i)?.dims() != [batch, len, *found] {
                    let heads = self.kv_heads;
                    return Err(cx.shape_error(i, format!("[{batch}, {len}, {heads}] or [.., {other}]")));
                }
            }
        }
        Ok(Sizes {
            batch,
            len,
            q_heads: self.q_heads,
            kv_heads: self.kv_heads,
            k_heads,
            head,
            v_head,
            decays: found[0],
            betas: found[1],
            scale: self.scale.unwrap_or(1.0 / (head.max(1) as f32).sqrt()),
            gated: self.gated,
            delta: self.delta,
        })
    }
}

impl Operator for LinearAttention {
    fn name(&self) -> &'static str {
        "LinearAttention"
    }

    fn infer(&self, cx: &OpCx) -> Result<Vec<TensorInfo>, OpError> {
        cx.expect_counts(3..=6, 1..=2)?;
        let dtype = cx.dtype_of(Q, FLOATS_TO_32)?;
        for i in [K, V, DECAY, BETA].into_iter().filter(|i| cx.has(*i)) {
            cx.expect_dtype(i, dtype)?;
        }
        let state = if cx.has(PAST) { cx.dtype_of(PAST, FLOATS_TO_32)? } else { dtype };
        let s = self.resolve(cx)?;
        Ok(vec![
            TensorInfo::new(dtype, Shape::new([s.batch, s.len, s.heads().saturating_mul(s.v_head)])?),
            TensorInfo::new(state, Shape::new([s.batch, s.kv_heads, s.head, s.v_head])?),
        ])
    }

    fn cost(&self, cx: &OpCx) -> Cost {
        let flops = self.resolve(cx).map_or(0, |s| {
            let each = (5 * s.kv_heads as u64).saturating_add(2 * s.q_heads as u64);
            [s.batch, s.len, s.head, s.v_head].iter().fold(each, |n, c| n.saturating_mul(*c as u64))
        });
        Cost { flops, bytes: cx.bytes_touched() }
    }

    fn cpu(&self, cx: &OpCx) -> Result<NativeKernel, OpError> {
        real_kernel("LinearAttention", cx, self.resolve(cx)?)
    }

    fn gpu(&self, cx: &OpCx, lower: &mut Lowering<'_>) -> Result<(), OpError> {
        let s = self.resolve(cx)?;
        let kernel = variants::LinearAttention { t: cx.dtype(Q)?, s: cx.output(1)?.dtype }.id()?;
        if s.head > MAX_HEAD {
            return Err(OpError::unsupported(format!("keys of {} elements", s.head)));
        }
        let decay = match (s.gated, s.decays == s.kv_heads) {
            (false, _) => Decay::None,
            (true, true) => Decay::Heads,
            (true, false) => Decay::Elements,
        };
        let spec = [
            (spec::linear_attention::PER, s.head.div_ceil(PARTS).max(1) as u32),
            (spec::linear_attention::DECAY, decay as u32),
            (spec::linear_attention::DELTA, u32::from(s.delta)),
            (spec::linear_attention::PAST, u32::from(cx.has(PAST))),
        ];
        let groups = s.batch * s.kv_heads * s.v_head.div_ceil(COLS);
        word(s.batch * s.len * s.heads() * s.head.max(s.v_head))?;
        let params = params::LinearAttention {
            count: word(groups)?,
            len: word(s.len)?,
            heads: word(s.kv_heads)?,
            share: word(s.share())?,
            spread: word(s.spread())?,
            k_spread: word(s.kv_heads / s.k_heads)?,
            head: word(s.head)?,
            v_head: word(s.v_head)?,
            betas: word(s.betas)?,
            scale: s.scale,
        };
        let pick = |i: usize| if cx.has(i) { Operand::Input(i) } else { Operand::Unused };
        let args = [
            Operand::Input(Q),
            Operand::Input(K),
            Operand::Input(V),
            pick(PAST),
            pick(DECAY),
            pick(BETA),
            Operand::Output(0),
            Operand::Output(1),
        ];
        if groups == 0 {
            return Ok(());
        }
        // A token has a sum over its invocations for each query and one more, of at most eight rounds each.
        lower.iterations(s.len * (8 * s.share() + 9))?;
        let grid = grid_1d(groups as u64, 1, lower.device().limits.max_groups[0]);
        lower.dispatch(kernel, &spec, &args, &params, grid)
    }
}

/// The operands of one head of keys.
struct Given<'a, T> {
    q: &'a [T],
    k: &'a [T],
    v: &'a [T],
    decay: Option<&'a [T]>,
    beta: Option<&'a [T]>,
}

impl Sizes {
    /// Heads of the result.
    fn heads(&self) -> usize {
        self.q_heads.max(self.kv_heads)
    }

    /// Heads of the result for each head of keys.
    fn share(&self) -> usize {
        self.heads() / self.kv_heads
    }

    /// Heads of the result for each head of queries.
    fn spread(&self) -> usize {
        self.heads() / self.q_heads
    }

    /// Walks the sequence for head `h` of element `b`; gives `[length, share, v_head]` results.
    fn walk<T: Real>(&self, given: &Given<'_, T>, b: usize, h: usize, state: &mut [T]) -> Vec<T> {
        let Sizes { head, v_head, .. } = *self;
        let mut out = vec![T::ZERO; self.len * self.share() * v_head];
        let mut value = vec![T::ZERO; v_head];
        let scale = T::from_f64(self.scale.into());
        for i in 0..self.len {
            let row = b * self.len + i;
            let at = row * self.kv_heads + h;
            let k_at = row * self.k_heads + h / (self.kv_heads / self.k_heads);
            let k = &given.k[k_at * head..][..head];
            value.copy_from_slice(&given.v[at * v_head..][..v_head]);
            if let Some(decay) = given.decay {
                for (d, state) in state.chunks_mut(v_head).enumerate() {
                    let n = if self.decays == self.kv_heads { at } else { at * head + d };
                    let factor = decay[n].exp();
                    state.iter_mut().for_each(|s| *s *= factor);
                }
            }
            if let Some(beta) = given.beta {
                for (k, state) in k.iter().zip(state.chunks(v_head)) {
                    value.iter_mut().zip(state).for_each(|(v, s)| *v += -(*k * *s));
                }
                let rate = beta[if self.betas == 1 { row } else { at }];
                value.iter_mut().for_each(|v| *v *= rate);
            }
            for (k, state) in k.iter().zip(state.chunks_mut(v_head)) {
                state.iter_mut().zip(&value).for_each(|(s, v)| *s += *k * *v);
            }
            for g in 0..self.share() {
                let q = row * self.q_heads + (h * self.share() + g) / self.spread();
                let q = &given.q[q * head..][..head];
                let out = &mut out[(i * self.share() + g) * v_head..][..v_head];
                for (q, state) in q.iter().zip(state.chunks(v_head)) {
                    out.iter_mut().zip(state).for_each(|(o, s)| *o += *q * *s);
                }
                out.iter_mut().for_each(|o| *o *= scale);
            }
        }
        out
    }
}

impl RealKernel for Sizes {
    fn run<T: Real>(&self, io: &mut RealIo<'_, T>) -> Result<(), KernelError> {
        let s = *self;
        let (rows, states) = (s.batch * s.len, s.batch * s.kv_heads * s.head * s.v_head);
        let (outputs, inputs) = io.outputs();
        let [Some(y), Some(state)] = outputs else { return Err(KernelError::Absent { index: 6 }) };
        let given = Given {
            q: inputs.get(Q, rows * s.q_heads * s.head)?,
            k: inputs.get(K, rows * s.k_heads * s.head)?,
            v: inputs.get(V, rows * s.kv_heads * s.v_head)?,
            decay: inputs.get_opt(DECAY, rows * s.decays)?,
            beta: inputs.get_opt(BETA, rows * s.betas)?,
        };
        check_len(6, y.len(), rows * s.heads() * s.v_head)?;
        check_len(7, state.len(), states)?;
        match inputs.get_opt(PAST, states)? {
            Some(past) => state.copy_from_slice(past),
            None => state.fill(T::ZERO),
        }
        if y.is_empty() {
            return Ok(());
        }
        let size = s.head * s.v_head;
        let walk = |n: usize, state: &mut [T]| s.walk(&given, n / s.kv_heads, n % s.kv_heads, state);
        let mut parts: Vec<Vec<T>> = vec![Vec::new(); s.batch * s.kv_heads];
        if size == 0 {
            parts.iter_mut().enumerate().for_each(|(n, part)| *part = walk(n, &mut []));
        } else {
            // A step reads the state twice, and once more for each head that shares it.
            let work = states.saturating_mul(s.len * (2 + s.share()));
            par::rows_of_two((state, size), (&mut parts, 1), work, |n, state, part| {
                part.fill_with(|| walk(n, state));
            });
        }
        let run = s.share() * s.v_head;
        for (n, y) in y.chunks_mut(run).enumerate() {
            let (row, h) = (n / s.kv_heads, n % s.kv_heads);
            let part = &parts[row / s.len * s.kv_heads + h];
            y.copy_from_slice(&part[row % s.len * run..][..run]);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::Tensor;
    use crate::ops::test_util::{assert_near, facts, run_cpu, tensor};

    fn op(gated: bool, delta: bool) -> LinearAttention {
        LinearAttention { q_heads: 4, kv_heads: 2, scale: None, gated, delta }
    }

    /// Heads of keys of 6 and of values of 5 elements; decay for each element of a key or each head.
    fn inputs(op: &LinearAttention, past: bool, decays: usize, betas: usize) -> Vec<Option<Tensor>> {
        vec![
            Some(tensor(&[2, 3, 24], 1)),
            Some(tensor(&[2, 3, 12], 2)),
            Some(tensor(&[2, 3, 10], 3)),
            past.then(|| tensor(&[2, 2, 6, 5], 4)),
            op.gated.then(|| tensor(&[2, 3, decays], 5)),
            op.delta.then(|| tensor(&[2, 3, betas], 6)),
        ]
    }

    /// The recurrence, element by element.
    fn reference(op: &LinearAttention, inputs: &[Option<Tensor>]) -> (Vec<f64>, Vec<f64>) {
        let wide = |i: usize| -> Option<Vec<f64>> {
            Some(inputs[i].as_ref()?.to_f32s().unwrap().into_iter().map(f64::from).collect())
        };
        let (q, k, v) = (wide(0).unwrap(), wide(1).unwrap(), wide(2).unwrap());
        let (decay, beta) = (wide(4), wide(5));
        let mut state = wide(3).unwrap_or(vec![0.0; 120]);
        let mut y = vec![0.0; 2 * 3 * 20];
        for (b, h, m) in (0..20).map(|n| (n / 10, n / 5 % 2, n % 5)) {
            let mut column: Vec<f64> = (0..6).map(|d| state[((b * 2 + h) * 6 + d) * 5 + m]).collect();
            for t in 0..3 {
                let row = b * 3 + t;
                let key = &k[(row * 2 + h) * 6..][..6];
                let mut value = v[(row * 2 + h) * 5 + m];
                if let Some(g) = &decay {
                    let each = g.len() / 6 > 2;
                    (0..6).for_each(|d| {
                        column[d] *= if each { g[(row * 2 + h) * 6 + d] } else { g[row * 2 + h] }.exp();
                    });
                }
                if let Some(beta) = &beta {
                    let rate = if beta.len() == 6 { beta[row] } else { beta[row * 2 + h] };
                    value = rate * (value - (0..6).map(|d| column[d] * key[d]).sum::<f64>());
                }
                (0..6).for_each(|d| column[d] += key[d] * value);
                for g in 0..2 {
                    let query = &q[(row * 4 + h * 2 + g) * 6..][..6];
                    let sum: f64 = (0..6).map(|d| query[d] * column[d]).sum();
                    y[(row * 4 + h * 2 + g) * 5 + m] = f64::from(op.scale.unwrap_or(1.0 / 6f32.sqrt())) * sum;
                }
            }
            (0..6).for_each(|d| state[((b * 2 + h) * 6 + d) * 5 + m] = column[d]);
        }
        (y, state)
    }

    #[test]
    fn every_rule_matches_its_recurrence() {
        for (gated, delta) in [(false, false), (true, false), (false, true), (true, true)] {
            for (past, decays, betas) in [(false, 12, 2), (true, 2, 1)] {
                let op = LinearAttention { scale: past.then_some(0.3), ..op(gated, delta) };
                let inputs = inputs(&op, past, decays, betas);
                let (y, state) = reference(&op, &inputs);
                let got = run_cpu(&op, &inputs, 2).unwrap();
                assert_near(&got[0], &y, 1e-5);
                assert_near(&got[1], &state, 1e-5);
                #[cfg(feature = "vulkan")]
                crate::ops::testing::Check::new(&op, &inputs).outputs(2).tolerance(1e-5).run();
            }
        }
    }

    #[test]
    fn misfits_are_errors() {
        let rule = op(true, true);
        let good = inputs(&rule, true, 12, 2);
        assert!(facts(&rule, &good, 2).is_ok());
        for (i, other) in
            [(1, tensor(&[2, 3, 10], 1)), (3, tensor(&[2, 2, 5, 6], 1)), (4, tensor(&[2, 3, 7], 1))]
        {
            let mut wrong = good.clone();
            wrong[i] = Some(other);
            assert!(facts(&rule, &wrong, 2).is_err());
        }
        assert!(facts(&op(false, true), &good, 2).is_err());
        assert!(facts(&rule, &good[..4], 2).is_err());
        assert!(facts(&LinearAttention { kv_heads: 3, ..rule }, &good, 2).is_err());
    }
}
