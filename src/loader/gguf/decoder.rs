//! Decoders as graphs of our operators.

use std::sync::Arc;

use super::file::GgufFile;
use super::parts::Parts;
use super::rope;
use super::settings::{Architecture, DecoderSizes, Experts, RopeSettings, Scaling, Settings, Temperature};
use super::weights::{Part, Weights};
use crate::dtype::DType;
use crate::graph::{Graph, GraphBuilder, Tensor, TensorId};
use crate::loader::error::{LoadError, LoadErrorKind};
use crate::ops::attention::{
    CacheKind, ExpertBlocks, Gated, GroupQueryAttention, MixtureOfExperts, SkipNorm,
};
use crate::ops::ggml::{GatherBlocks, MatMulBlocks};
use crate::ops::index::Gather;
use crate::ops::norm::LayerNormalization;
use crate::ops::reduce::{Reduce, ReduceKind};
use crate::ops::shape_ops::{Range, Reshape, ShapeOf};
use crate::ops::{Function, NaryOp, Operator, add, cast, mul, nary, sub, unary};
use crate::shape::{Dim, SymShape};

/// The graph of the decoder in `file`, whose data `parts` read.
pub(super) fn graph(
    file: &GgufFile,
    parts: &mut Parts<'_>,
    progress: Option<&dyn Fn(u64, u64)>,
) -> Result<Graph, LoadError> {
    let settings = Settings::of(file)?;
    let name = file.text("general.name")?.unwrap_or("decoder");
    let mut decoder = Decoder { g: GraphBuilder::new(name), weights: Weights::new(file), settings };
    decoder.build(parts)?;
    let Decoder { mut g, weights, .. } = decoder;
    weights.load(&mut g, parts, progress)?;
    Ok(g.build()?)
}

struct Decoder<'f> {
    g: GraphBuilder,
    weights: Weights<'f>,
    settings: Settings,
}

/// Tensors that all layers read.
struct Common {
    /// The last valid key of each sequence, and the number of rows of the cache in the run.
    lens: TensorId,
    total: TensorId,
    /// Cosines and sines, of layers that see all keys and of those with a window.
    tables: [[TensorId; 2]; 2],
    /// What multiplies the query of each token.
    temperature: Option<TensorId>,
}

/// The inputs of GroupQueryAttention without sinks: positions and a bias come before them.
const SINKS: usize = 9;

/// What has been computed, as two summands where the second is not added yet.
type Stream = (TensorId, Option<TensorId>);

impl Decoder<'_> {
    fn op(&mut self, name: impl Into<String>, op: impl Operator, inputs: &[TensorId]) -> TensorId {
        self.shared_op(name, Arc::new(op), inputs)
    }

    fn shared_op(&mut self, name: impl Into<String>, op: Arc<dyn Operator>, inputs: &[TensorId]) -> TensorId {
        let inputs: Vec<Option<TensorId>> = inputs.iter().copied().map(Some).collect();
        self.node(name, op, &inputs)
    }

    fn node(
        &mut self,
        name: impl Into<String>,
        op: Arc<dyn Operator>,
        inputs: &[Option<TensorId>],
    ) -> TensorId {
        let name = name.into();
        let to = self.g.declare(format!("{name}:out"));
        self.g.node_into(name, op, inputs, &[Some(to)]);
        to
    }

    fn integers(&mut self, name: &str, values: &[i64]) -> Result<TensorId, LoadError> {
        let tensor = Tensor::new([values.len()], values).map_err(LoadErrorKind::Tensor)?;
        Ok(self.g.constant(name, tensor))
    }

    fn build(&mut self, parts: &mut Parts<'_>) -> Result<(), LoadError> {
        let ids = self.g.input("input_ids", DType::I64, ["batch".into(), "tokens".into()]);
        let mask = self.g.input("attention_mask", DType::I64, ["batch".into(), "total".into()]);
        let sum = Reduce {
            kind: ReduceKind::Sum,
            axes: Some(vec![1]),
            keep_dims: false,
            noop_with_empty_axes: false,
        };
        let valid = self.op("valid", sum, &[mask]);
        let one = self.g.constant("one", Tensor::scalar(1i64));
        let last = self.shared_op("last", sub(), &[valid, one]);
        let lens = self.shared_op("lens", cast(DType::I32), &[last]);
        let size = self.op("size", ShapeOf { start: 1, end: Some(2) }, &[mask]);
        let total = self.shared_op("total", cast(DType::I32), &[size]);
        let tables = self.tables(parts)?;
        let temperature = match self.settings.temperature {
            Some(temperature) => Some(self.temperature(temperature, ids, valid)?),
            None => None,
        };
        let common = Common { lens, total, tables, temperature };

        let hidden = self.settings.hidden;
        let vocabulary = self.weights.count("token_embd.weight")?;
        let embedding = [Part::whole("token_embd.weight".to_owned(), vocabulary)];
        let (table, b) = self.weights.rows(&mut self.g, &embedding, hidden)?;
        let mut x = self.op("embedding", GatherBlocks { b }, &[ids, table]);
        if let Some(scale) = self.settings.embedding_scale {
            let scale = self.g.constant("embedding_scale", Tensor::scalar(scale));
            x = self.shared_op("scaled", mul(), &[x, scale]);
        }
        let mut stream: Stream = (x, None);
        let mut present = Vec::new();
        for layer in 0..self.settings.sizes.layers {
            self.check_biases(layer)?;
            stream = self.attention(layer, stream, &common, &mut present)?;
            stream = match self.settings.experts {
                Some(experts) => self.mixture(layer, stream, experts)?,
                None => self.gated(layer, stream)?,
            };
        }
        let (y, _) = self.norm("output_norm", stream)?;
        let head = if self.weights.has("output.weight") { "output" } else { "token_embd" };
        let mut logits = self.product("logits", y, &[(head.to_owned(), vocabulary)], hidden)?;
        if let Some(cap) = self.settings.logit_cap {
            let down = self.g.constant("cap.inverse", Tensor::scalar(1.0 / cap));
            let up = self.g.constant("cap", Tensor::scalar(cap));
            logits = self.shared_op("capped.down", mul(), &[logits, down]);
            logits = self.shared_op("capped.tanh", unary(Function::Tanh), &[logits]);
            logits = self.shared_op("capped", mul(), &[logits, up]);
        }
        let sizes = SymShape(vec!["batch".into(), "tokens".into(), vocabulary.into()]);
        self.g.set_info(logits, Some(DType::F32), Some(sizes));
        self.g.output("logits", logits);
        let DecoderSizes { kv_heads, head, .. } = self.settings.sizes;
        for (name, id) in present {
            // Where the cache has room there are as many rows as before, else as many as the mask has.
            let sizes = SymShape(vec!["batch".into(), kv_heads.into(), Dim::Unknown, head.into()]);
            self.g.set_info(id, Some(DType::F32), Some(sizes));
            self.g.output(name, id);
        }
        Ok(())
    }

    /// Cosines and sines of layers that see all keys, and of those with a window.
    fn tables(&mut self, parts: &mut Parts<'_>) -> Result<[[TensorId; 2]; 2], LoadError> {
        let Settings { rotated, rope, sizes, window, local_base, .. } = self.settings;
        let name = match rope.scaling {
            Scaling::Long { .. } => rope::SHORT,
            _ => rope::FACTORS,
        };
        self.weights.take(rope::LONG);
        let pairs = rotated.checked_div(2).unwrap_or(0);
        let factors = self.weights.read_now(parts, name, pairs)?;
        if factors.iter().flatten().any(|factor| !factor.is_normal()) {
            let kind = LoadErrorKind::unexpected("factors that are not 0", format!("others in {name:?}"));
            return Err(kind.into());
        }
        let [cos, sin] = rope::tables(&rope::speeds(&rope, rotated, factors.as_deref()), sizes.context)?;
        let all = [self.g.constant("cos", cos), self.g.constant("sin", sin)];
        if window.is_none() {
            return Ok([all, all]);
        }
        let scaling =
            if self.settings.architecture == Architecture::Gemma3 { Scaling::None } else { rope.scaling };
        let local = RopeSettings { base: local_base, scaling };
        if local == rope {
            return Ok([all, all]);
        }
        let [cos, sin] = rope::tables(&rope::speeds(&local, rotated, factors.as_deref()), sizes.context)?;
        Ok([all, [self.g.constant("cos.local", cos), self.g.constant("sin.local", sin)]])
    }

    /// What multiplies the query of each of the tokens `ids`, of sequences of `valid` tokens with those before: a column.
    fn temperature(
        &mut self,
        temperature: Temperature,
        ids: TensorId,
        valid: TensorId,
    ) -> Result<TensorId, LoadError> {
        let Temperature { scale, context } = temperature;
        let factor = |position: usize| {
            let turns = position.checked_div(context).unwrap_or(0) as f64;
            (1.0 + scale * turns.ln_1p()) as f32
        };
        let rows = self.settings.sizes.context;
        let factors: Vec<f32> = (0..rows).map(factor).collect();
        let factors = Tensor::new([rows, 1], &factors).map_err(LoadErrorKind::Tensor)?;
        let factors = self.g.constant("temperatures", factors);
        let (zero, one) = (self.integers("position.zero", &[0])?, self.integers("position.step", &[1])?);
        let tokens = self.op("tokens", ShapeOf { start: 1, end: Some(2) }, &[ids]);
        let column = self.integers("position.column", &[-1, 1])?;
        let valid = self.op("valid.column", Reshape { allow_zero: false, fixed: None }, &[valid, column]);
        // A prompt that is filled up begins at position 0.
        let before = self.shared_op("before", sub(), &[valid, tokens]);
        let before = self.shared_op("before.first", nary(NaryOp::Max), &[before, zero]);
        let steps = self.op("position.steps", Range, &[zero, tokens, one]);
        let positions = self.shared_op("positions", add(), &[before, steps]);
        Ok(self.op("temperature", Gather { axis: 0 }, &[factors, positions]))
    }

    /// The sum of `stream`, normalized, and itself.
    fn norm(&mut self, name: &str, stream: Stream) -> Result<(TensorId, TensorId), LoadError> {
        let Settings { hidden, epsilon, .. } = self.settings;
        let scale = self.weights.floats(&mut self.g, &[(format!("{name}.weight"), hidden)])?;
        let (x, skip) = stream;
        let Some(skip) = skip else {
            let op = LayerNormalization { axis: -1, epsilon, center: false, stash: DType::F32 };
            return Ok((self.op(name, op, &[x, scale]), x));
        };
        let (y, sum) = (self.g.declare(format!("{name}:out")), self.g.declare(format!("{name}:sum")));
        let op: Arc<dyn Operator> = Arc::new(SkipNorm { epsilon, center: false });
        let inputs = [Some(x), Some(skip), Some(scale)];
        self.g.node_into(name, op, &inputs, &[Some(y), None, None, Some(sum)]);
        Ok((y, sum))
    }

    /// `x` normalized, where the layer does so.
    fn norm_after(&mut self, name: &str, x: TensorId) -> Result<TensorId, LoadError> {
        match self.settings.architecture.normalizes_results() {
            true => self.norm(name, (x, None)).map(|(y, _)| y),
            false => Ok(x),
        }
    }

    /// `x` times the rows of tensors, contiguous: of each the name without its end, and its rows.
    fn product(
        &mut self,
        name: &str,
        x: TensorId,
        tensors: &[(String, usize)],
        k: usize,
    ) -> Result<TensorId, LoadError> {
        let parts: Vec<Part> =
            tensors.iter().map(|(stem, n)| Part::whole(format!("{stem}.weight"), *n)).collect();
        let (weight, b) = self.weights.rows(&mut self.g, &parts, k)?;
        let mut inputs = vec![x, weight];
        let biases: Vec<(String, usize)> =
            tensors.iter().map(|(stem, n)| (format!("{stem}.bias"), *n)).collect();
        if biases.iter().any(|(name, _)| self.weights.has(name)) {
            inputs.push(self.weights.floats(&mut self.g, &biases)?);
        }
        Ok(self.op(name, MatMulBlocks { b, rounds: true }, &inputs))
    }

    /// `x`, of `heads` heads, with each of them or the whole row normalized, where the file has a scale for it.
    fn head_norm(&mut self, stem: &str, x: TensorId, heads: usize) -> Result<TensorId, LoadError> {
        let weight = format!("{stem}.weight");
        if !self.weights.has(&weight) {
            return Ok(x);
        }
        let Settings { architecture, epsilon, sizes, .. } = self.settings;
        let norm = LayerNormalization { axis: -1, epsilon, center: false, stash: DType::F32 };
        if architecture.normalizes_rows() {
            let scale = self.weights.floats(&mut self.g, &[(weight, heads.saturating_mul(sizes.head))])?;
            return Ok(self.op(stem, norm, &[x, scale]));
        }
        let scale = self.weights.floats(&mut self.g, &[(weight, sizes.head)])?;
        let apart = self.integers(&format!("{stem}.apart"), &[0, 0, heads as i64, sizes.head as i64])?;
        let joined =
            self.integers(&format!("{stem}.joined"), &[0, 0, heads.saturating_mul(sizes.head) as i64])?;
        let reshape = || Reshape { allow_zero: false, fixed: None };
        let x = self.op(format!("{stem}.split"), reshape(), &[x, apart]);
        let x = self.op(stem, norm, &[x, scale]);
        Ok(self.op(format!("{stem}.join"), reshape(), &[x, joined]))
    }

    fn attention(
        &mut self,
        layer: usize,
        stream: Stream,
        common: &Common,
        present: &mut Vec<(String, TensorId)>,
    ) -> Result<Stream, LoadError> {
        let Settings { architecture, sizes, hidden, heads, .. } = self.settings;
        let name = |part: &str| format!("blk.{layer}.{part}");
        let (y, x) = self.norm(&name("attn_norm"), stream)?;
        let sinks = self.sinks(layer)?;
        let (wide, narrow) = (heads.saturating_mul(sizes.head), sizes.kv_heads.saturating_mul(sizes.head));
        let parts = [(name("attn_q"), wide), (name("attn_k"), narrow), (name("attn_v"), narrow)];
        let fused = name("attn_qkv");
        let kinds = parts.clone().map(|(stem, _)| {
            let biased = self.weights.kind(&format!("{stem}.bias"));
            (self.weights.kind(&format!("{stem}.weight")), biased)
        });
        let apart = self.weights.has(&name("attn_q_norm.weight")) || common.temperature.is_some();
        let (q, kv) = if self.weights.has(&format!("{fused}.weight")) && common.temperature.is_none() {
            let width = narrow.saturating_mul(2).saturating_add(wide);
            (self.product(&fused, y, &[(fused.clone(), width)], hidden)?, None)
        } else if !apart && kinds.iter().all(|kind| *kind == kinds[0]) {
            (self.product(&fused, y, &parts, hidden)?, None)
        } else {
            let [q, k, v] = parts;
            let q = self.product(&q.0.clone(), y, &[q], hidden)?;
            let k = self.product(&k.0.clone(), y, &[k], hidden)?;
            let v = self.product(&v.0.clone(), y, &[v], hidden)?;
            let mut q = self.head_norm(&name("attn_q_norm"), q, heads)?;
            if let Some(factor) = common.temperature {
                q = self.shared_op(name("attn_q_scaled"), mul(), &[q, factor]);
            }
            (q, Some((self.head_norm(&name("attn_k_norm"), k, sizes.kv_heads)?, v)))
        };
        let (global, rotates) = (self.settings.sees_all(layer), architecture.rotates(layer));
        let op = GroupQueryAttention {
            heads,
            kv_heads: sizes.kv_heads,
            scale: Some(self.settings.scale),
            softcap: self.settings.score_cap.unwrap_or(0.0),
            window: self.settings.window.filter(|_| !global),
            rotary: rotates.then_some(architecture.interleaved()),
            causal: true,
            smooth: false,
            cache: CacheKind::Same,
            updates: None,
        };
        let dims = || ["batch".into(), sizes.kv_heads.into(), "past".into(), sizes.head.into()];
        let past_key = self.g.input(format!("past_key_values.{layer}.key"), DType::F32, dims());
        let past_value = self.g.input(format!("past_key_values.{layer}.value"), DType::F32, dims());
        let [y, key, value] = ["attn:out", "attn:key", "attn:value"].map(|part| self.g.declare(name(part)));
        let [everywhere, near] = common.tables;
        let [cos, sin] = if global { everywhere } else { near };
        let (k, v) = kv.unzip();
        let inputs = [
            Some(q),
            k,
            v,
            Some(past_key),
            Some(past_value),
            Some(common.lens),
            Some(common.total),
            Some(cos).filter(|_| rotates),
            Some(sin).filter(|_| rotates),
            None,
            None,
            sinks,
        ];
        let inputs = if sinks.is_some() { &inputs[..] } else { &inputs[..SINKS] };
        let op: Arc<dyn Operator> = Arc::new(op);
        self.g.node_into(name("attn"), op, inputs, &[Some(y), Some(key), Some(value)]);
        present.push((format!("present.{layer}.key"), key));
        present.push((format!("present.{layer}.value"), value));
        let y = self.product(&name("attn_output"), y, &[(name("attn_output"), hidden)], wide)?;
        let y = self.norm_after(&name("post_attention_norm"), y)?;
        Ok((x, Some(y)))
    }

    /// The sink of each head of queries, where the architecture has them.
    fn sinks(&mut self, layer: usize) -> Result<Option<TensorId>, LoadError> {
        let Settings { architecture, heads, .. } = self.settings;
        let name = format!("blk.{layer}.attn_sinks.weight");
        let found = architecture.has_sinks().then(|| self.weights.floats(&mut self.g, &[(name, heads)]));
        found.transpose()
    }

    /// Checks that layer `layer` has the biases that its architecture has; others have those that are there.
    fn check_biases(&self, layer: usize) -> Result<(), LoadError> {
        let parts = ["attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate_inp"];
        for part in parts.iter().filter(|_| self.settings.architecture.has_biases()) {
            self.weights.dims(&format!("blk.{layer}.{part}.bias"))?;
        }
        Ok(())
    }

    /// The gated product after attention.
    fn gated(&mut self, layer: usize, stream: Stream) -> Result<Stream, LoadError> {
        let Settings { architecture, hidden, ffn, .. } = self.settings;
        let name = |part: &str| format!("blk.{layer}.{part}");
        let (y, x) = self.norm(&name("ffn_norm"), stream)?;
        let (gate, up) = if architecture == Architecture::Phi3 {
            // The rows of the gate come first.
            let half = |first: usize| Part {
                name: name("ffn_up.weight"),
                first,
                rows: ffn,
                of: ffn.saturating_mul(2),
            };
            let mut product = |part: &str, first: usize| {
                let (weight, b) = self.weights.rows(&mut self.g, &[half(first)], hidden)?;
                Ok::<_, LoadError>(self.op(name(part), MatMulBlocks { b, rounds: true }, &[y, weight]))
            };
            (product("ffn_gate", 0)?, product("ffn_up", ffn)?)
        } else {
            let gate = self.product(&name("ffn_gate"), y, &[(name("ffn_gate"), ffn)], hidden)?;
            (gate, self.product(&name("ffn_up"), y, &[(name("ffn_up"), ffn)], hidden)?)
        };
        let y = self.gate(layer, "", gate, up);
        let y = self.product(&name("ffn_down"), y, &[(name("ffn_down"), hidden)], ffn)?;
        let y = self.norm_after(&name("post_ffw_norm"), y)?;
        Ok((x, Some(y)))
    }

    /// `up` times the activation of `gate`.
    fn gate(&mut self, layer: usize, end: &str, gate: TensorId, up: TensorId) -> TensorId {
        let name = |part: &str| format!("blk.{layer}.{part}{end}");
        let active = if self.settings.architecture.is_gemma() {
            self.shared_op(name("ffn_gelu"), unary(Function::GeluTanh), &[gate])
        } else {
            let sigmoid = self.shared_op(name("ffn_sigmoid"), unary(Function::Sigmoid), &[gate]);
            self.shared_op(name("ffn_silu"), mul(), &[gate, sigmoid])
        };
        self.shared_op(name("ffn_gated"), mul(), &[active, up])
    }

    /// The mixture of experts after attention.
    fn mixture(&mut self, layer: usize, stream: Stream, experts: Experts) -> Result<Stream, LoadError> {
        let Settings { architecture, hidden, .. } = self.settings;
        let Experts { count, top, normalize, scale, inner } = experts;
        let name = |part: &str| format!("blk.{layer}.{part}");
        let (y, x) = self.norm(&name(architecture.second_norm()), stream)?;
        let router = self.product(&name("ffn_gate_inp"), y, &[(name("ffn_gate_inp"), count)], hidden)?;
        let gate = name("ffn_gate_exps.weight");
        let found = self.weights.dims(&gate)?.get(1).copied();
        let inner = inner.or(found).unwrap_or(0);
        let (wide, narrow) = ([hidden, inner, count], [inner, hidden, count]);
        let (gate, first) = self.weights.experts(&mut self.g, &gate, wide)?;
        let (down, second) = self.weights.experts(&mut self.g, &name("ffn_down_exps.weight"), narrow)?;
        let (up, third) = self.weights.experts(&mut self.g, &name("ffn_up_exps.weight"), wide)?;
        let op: Arc<dyn Operator> = Arc::new(MixtureOfExperts {
            top,
            activation: architecture.expert_activation(),
            gated: Gated::Third,
            normalize,
            sparse: false,
            codes: None,
            blocks: Some(ExpertBlocks { types: [first, second, third], inner, rounds: true }),
        });
        let biased = architecture.has_biases();
        let mut bias = |part: &str, n: usize| {
            let found = biased.then(|| self.weights.expert_biases(&mut self.g, &name(part), [n, count]));
            found.transpose()
        };
        let first = bias("ffn_gate_exps.bias", inner)?;
        let second = bias("ffn_down_exps.bias", hidden)?;
        let third = bias("ffn_up_exps.bias", inner)?;
        let inputs = [Some(y), Some(router), Some(gate), first, Some(down), second, Some(up), third];
        let inputs = if biased { &inputs[..] } else { &inputs[..7] };
        let mut answer = self.node(name("ffn_exps"), op, inputs);
        if let Some(scale) = scale {
            let scale = self.g.constant(name("ffn_exps_scale"), Tensor::scalar(scale));
            answer = self.shared_op(name("ffn_exps_scaled"), mul(), &[answer, scale]);
        }
        if self.weights.has(&name("ffn_gate_inp_shexp.weight")) {
            let shared = self.shared_expert(layer, y)?;
            answer = self.shared_op(name("ffn_all"), add(), &[answer, shared]);
        }
        Ok((x, Some(answer)))
    }

    /// What the expert that all tokens have says of `x`, times a gate of its own.
    fn shared_expert(&mut self, layer: usize, x: TensorId) -> Result<TensorId, LoadError> {
        let hidden = self.settings.hidden;
        let name = |part: &str| format!("blk.{layer}.{part}_shexp");
        let inner = self.weights.count(&format!("{}.weight", name("ffn_gate")))?;
        let gate = self.product(&name("ffn_gate"), x, &[(name("ffn_gate"), inner)], hidden)?;
        let up = self.product(&name("ffn_up"), x, &[(name("ffn_up"), inner)], hidden)?;
        let y = self.gate(layer, "_shexp", gate, up);
        let y = self.product(&name("ffn_down"), y, &[(name("ffn_down"), hidden)], inner)?;
        let share = self.product(&name("ffn_gate_inp"), x, &[(name("ffn_gate_inp"), 1)], hidden)?;
        let share = self.shared_op(name("ffn_share"), unary(Function::Sigmoid), &[share]);
        Ok(self.shared_op(name("ffn_shared"), mul(), &[y, share]))
    }
}
