//! Tokens that are answered by few of many experts, which a router's numbers choose: com.microsoft's MoE and QMoE, and those
//! of GGUF files.

mod device;
mod native;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use super::{FLOATS_TO_32, count};
use crate::dtype::DType;
use crate::expr::Function;
use crate::graph::TensorInfo;
use crate::kernel::NativeKernel;
use crate::ops::ggml::{BlockType, Rows};
use crate::ops::real::real_kernel;
use crate::ops::window::bad;
use crate::ops::{Activation, AttrReader, Cost, Lowering, OpCx, OpError, Operator};

// Positions of the inputs that both operators have.
const X: usize = 0;
const ROUTER: usize = 1;
/// Factors that take the place of the router's, of QMoE only.
const FACTORS: usize = 14;

/// The sparse mixer leaves out what is farther from the largest than this share of the larger of it and its own
/// absolute value: twice the jitter of training.
const SPARSE: f64 = 0.02;

/// Between the products of an expert.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum ExpertActivation {
    /// The positive part.
    Relu,
    /// Gelu with the approximation through tanh.
    Gelu,
    /// `a * sigmoid(a)`.
    Silu,
    /// None.
    Identity,
    /// `a * sigmoid(alpha * a) * (b + beta)`, where a is at most `limit` and b between it and its negative.
    SwiGlu {
        /// Factor of the sigmoid's argument.
        alpha: f32,
        /// Added to the gated part.
        beta: f32,
        /// Infinity where there is none.
        limit: f32,
    },
}

impl ExpertActivation {
    /// The function of the first part.
    fn function(self) -> Activation {
        match self {
            ExpertActivation::Relu => Activation::of(Function::Relu),
            ExpertActivation::Gelu => Activation::of(Function::GeluTanh),
            ExpertActivation::Silu => Activation::of(Function::Swish),
            ExpertActivation::Identity => Activation::None,
            ExpertActivation::SwiGlu { alpha, .. } => Activation::with(Function::Swish, [alpha, 0.0]),
        }
    }
}

/// Where the gated part is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Gated {
    /// There is none.
    No,
    /// Every other element of the first product.
    Interleaved,
    /// The second half of the first product.
    Halves,
    /// A third product.
    Third,
}

/// Weights as codes, as MatMulNBits has them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExpertCodes {
    /// Bits of a code of the three products: 2, 4 or 8.
    pub bits: [usize; 3],
    /// Codes that share a scale; `None` is a whole row.
    pub block: Option<usize>,
}

/// Weights as ggml's blocks, the rows of all experts contiguous in a tensor of bytes ([`Rows::info`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExpertBlocks {
    /// The types of the three products.
    pub types: [BlockType; 3],
    /// Elements between the products.
    pub inner: usize,
    /// Whether elements of tokens may be rounded, as [`MatMulBlocks`](crate::ops::ggml::MatMulBlocks) does.
    pub rounds: bool,
}

/// `sum over the chosen experts e of factor_e * fc2_e(activation(fc1_e(x)))`. MoE's inputs: tokens, the router's
/// numbers, then weights (`[experts, rows, columns]`) and biases of three products; QMoE has scales between them,
/// and zero points and factors of its own after them. Factors are the softmax of the router's numbers, over all experts
/// or over those that are chosen where they are normalized. The schema says so of both operators; onnxruntime's CPU
/// kernel of QMoE normalizes them always where no factors are given, and so does this one.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MixtureOfExperts {
    /// Experts of a token.
    pub top: usize,
    /// The function between the products.
    pub activation: ExpertActivation,
    /// How SwiGLU's operands lie; others are gated where there is a third product.
    pub gated: Gated,
    /// Whether the factors of a token sum to one. Those of QMoE do so unless they are given.
    pub normalize: bool,
    /// Whether the two experts of a token are mixed sparsely: the factor of each is its share of a softmax over
    /// those that are not chosen yet and nearly as large (GRIN, arXiv 2409.12136, section 2; the schema's
    /// `use_sparse_mixer`). They are not normalized then.
    pub sparse: bool,
    /// How weights are coded, of QMoE.
    pub codes: Option<ExpertCodes>,
    /// How weights lie in blocks, of GGUF files; inputs are those of MoE, and the router's numbers have the tokens' axes.
    pub blocks: Option<ExpertBlocks>,
}

pub(super) fn read(attrs: &mut AttrReader<'_>, _opset: i64) -> Result<Arc<dyn Operator>, OpError> {
    Ok(Arc::new(read_plain(attrs)?))
}

pub(super) fn read_coded(attrs: &mut AttrReader<'_>, _opset: i64) -> Result<Arc<dyn Operator>, OpError> {
    let kind = attrs.str("quant_type", "int")?;
    if kind != "int" {
        return Err(OpError::unsupported(format!("QMoE of {kind} weights")));
    }
    // Prepacked weights have a layout of their own; the schema describes the other one.
    if attrs.int("weights_prepacked", -1)? > 0 {
        return Err(OpError::unsupported("QMoE of weights in another device's layout"));
    }
    // Tokens are never rounded, whatever accuracy is asked for at least.
    attrs.int_opt("accuracy_level")?;
    let all = attrs.int("expert_weight_bits", 4)?;
    let mut bits = [0; 3];
    for (to, name) in
        bits.iter_mut().zip(["fc1_expert_weight_bits", "fc2_expert_weight_bits", "fc3_expert_weight_bits"])
    {
        *to = match attrs.int_opt(name)?.unwrap_or(all) {
            n @ (2 | 4 | 8) => n as usize,
            n => return Err(bad(name, format!("is {n}, expected 2, 4 or 8"))),
        };
    }
    let block = match attrs.int("block_size", 0)? {
        ..=0 => None,
        n if n >= 16 && (n as u64).is_power_of_two() => Some(count(attrs, "block_size", 16)?),
        n => return Err(bad("block_size", format!("is {n}, expected a power of two of at least 16"))),
    };
    Ok(Arc::new(MixtureOfExperts { codes: Some(ExpertCodes { bits, block }), ..read_plain(attrs)? }))
}

fn read_plain(attrs: &AttrReader<'_>) -> Result<MixtureOfExperts, OpError> {
    let sparse = attrs.flag("use_sparse_mixer", false)?;
    let top = match attrs.int("k", 1)? {
        n if sparse && n != 2 => return Err(bad("k", format!("is {n}, the sparse mixer chooses 2"))),
        n if (1..=i64::from(u16::MAX)).contains(&n) => n as usize,
        n => return Err(bad("k", format!("is {n}, expected at least 1"))),
    };
    let (alpha, beta) = (attrs.float("activation_alpha", 1.0)?, attrs.float("activation_beta", 0.0)?);
    let limit = attrs.float_opt("swiglu_limit")?.unwrap_or(f32::INFINITY);
    let activation = match attrs.str("activation_type", "relu")? {
        "relu" => ExpertActivation::Relu,
        "gelu" => ExpertActivation::Gelu,
        "silu" => ExpertActivation::Silu,
        "identity" => ExpertActivation::Identity,
        // Not below 0, nor NaN.
        "swiglu" if limit >= 0.0 => ExpertActivation::SwiGlu { alpha, beta, limit },
        "swiglu" => return Err(bad("swiglu_limit", format!("is {limit}, expected at least 0"))),
        other => return Err(OpError::unsupported(format!("experts with activation {other:?}"))),
    };
    let swiglu = matches!(activation, ExpertActivation::SwiGlu { .. });
    let gated = match attrs.int("swiglu_fusion", 0)? {
        _ if !swiglu => Gated::No,
        0 => Gated::Third,
        1 => Gated::Interleaved,
        2 => Gated::Halves,
        n => return Err(bad("swiglu_fusion", format!("is {n}, expected 0, 1 or 2"))),
    };
    let normalize = attrs.flag("normalize_routing_weights", false)?;
    Ok(MixtureOfExperts { top, activation, gated, normalize, sparse, codes: None, blocks: None })
}

/// One of the three products: where its operands are and their sizes.
#[derive(Clone, Copy, Debug)]
struct Product {
    weights: usize,
    bias: usize,
    /// Rows and columns of an expert's weights.
    n: usize,
    k: usize,
    coded: Option<Coded>,
    /// Those of one expert, of weights in blocks.
    blocks: Option<Rows>,
}

/// Codes of a product.
#[derive(Clone, Copy, Debug)]
struct Coded {
    scales: usize,
    zeros: usize,
    bits: usize,
    /// Codes that share a scale, and such blocks of a row.
    block: usize,
    blocks: usize,
    /// Bytes of a row of codes.
    bytes: usize,
    /// Rows of codes whose zero points are packed together, and the bytes of those.
    zero_rows: usize,
    zero_bytes: usize,
}

/// A [`MixtureOfExperts`] for given inputs.
#[derive(Clone, Debug)]
struct Resolved {
    op: MixtureOfExperts,
    gated: Gated,
    tokens: usize,
    experts: usize,
    /// Elements of a token, and between the products.
    width: usize,
    inner: usize,
    products: [Option<Product>; 3],
    /// Whether factors are given.
    given: bool,
}

impl MixtureOfExperts {
    /// Positions of weights, scales, bias and zero points of product `i`.
    fn places(&self, i: usize) -> [usize; 4] {
        match self.codes {
            Some(_) => [2 + 3 * i, 3 + 3 * i, 4 + 3 * i, 11 + i],
            // No scales and zero points: positions that no MoE has.
            None => [2 + 2 * i, FACTORS, 3 + 2 * i, FACTORS],
        }
    }

    /// Product `i` with `n` rows of `k` numbers for each of `experts` experts, checked.
    fn product(&self, cx: &OpCx, i: usize, experts: usize, [n, k]: [usize; 2]) -> Result<Product, OpError> {
        let [weights, scales, bias, zeros] = self.places(i);
        let expect = |input: usize, dims: &[usize]| match cx.shape(input)?.dims() == dims {
            true => Ok(()),
            false => Err(cx.shape_error(input, format!("{dims:?}"))),
        };
        if cx.has(bias) {
            expect(bias, &[experts, n])?;
        }
        let plain = Product { weights, bias, n, k, coded: None, blocks: None };
        if let Some(blocks) = self.blocks.and_then(|blocks| blocks.types.get(i).copied()) {
            Rows { blocks, rows: experts.saturating_mul(n), k }.check(cx.input(weights)?)?;
            return Ok(Product { blocks: Some(Rows { blocks, rows: n, k }), ..plain });
        }
        let Some(codes) = self.codes else {
            expect(weights, &[experts, n, k])?;
            return Ok(plain);
        };
        let bits = codes.bits[i];
        let block = codes.block.unwrap_or(k).max(1);
        if !k.is_multiple_of(block) || !k.saturating_mul(bits).is_multiple_of(8) {
            let problem = format!("has rows of {k} codes, expected whole blocks of {block} and whole bytes");
            return Err(OpError::Value { input: weights, problem });
        }
        let (blocks, bytes) = (k / block, k.saturating_mul(bits) / 8);
        expect(weights, &[experts, n, bytes])?;
        let (zero_rows, zero_bytes) = match codes.block {
            Some(_) => (1, (blocks * bits).div_ceil(8)),
            None => (n.max(1), (n * bits).div_ceil(8)),
        };
        match codes.block {
            Some(_) => expect(scales, &[experts, n, blocks])?,
            None => expect(scales, &[experts, n])?,
        }
        if cx.has(zeros) && cx.shape(zeros)?.elements() != experts * n / zero_rows * zero_bytes {
            return Err(cx.shape_error(zeros, format!("{experts} times {zero_bytes} bytes of zero points")));
        }
        let coded = Some(Coded { scales, zeros, bits, block, blocks, bytes, zero_rows, zero_bytes });
        Ok(Product { coded, ..plain })
    }

    fn resolve(&self, cx: &OpCx) -> Result<Resolved, OpError> {
        let x = cx.shape(X)?;
        let (&[tokens, width] | &[_, tokens, width]) = x.dims() else {
            return Err(cx.shape_error(X, "[tokens, width] or [batch, length, width]"));
        };
        let tokens = if x.rank() == 3 { x[0].saturating_mul(tokens) } else { tokens };
        let (rows, experts) = match *cx.shape(ROUTER)?.dims() {
            [rows, experts] => (rows, experts),
            [batch, length, experts] if self.blocks.is_some() => (batch.saturating_mul(length), experts),
            _ => return Err(cx.shape_error(ROUTER, "[tokens, experts]")),
        };
        if rows != tokens || experts < self.top {
            return Err(cx.shape_error(ROUTER, format!("[{tokens}, at least {} experts]", self.top)));
        }
        let given = self.codes.is_some() && cx.has(FACTORS);
        if given && cx.shape(FACTORS)?.dims() != [tokens, experts] {
            return Err(cx.shape_error(FACTORS, format!("[{tokens}, {experts}]")));
        }
        let third = self.places(2)[0];
        let gated = match self.gated {
            Gated::No if cx.has(third) => Gated::Third,
            Gated::Third if !cx.has(third) => return Err(OpError::MissingInput { input: third }),
            gated => gated,
        };
        let first = self.places(0)[0];
        let fused = matches!(gated, Gated::Interleaved | Gated::Halves);
        if fused && cx.has(third) {
            return Err(OpError::unsupported(
                "experts with a third product in addition to a first one that contains it",
            ));
        }
        let parts = if fused { 2 } else { 1 };
        let n = match self.blocks {
            Some(blocks) => blocks.inner.saturating_mul(parts),
            None => cx.shape(first)?.get(1).copied().unwrap_or(0),
        };
        if !n.is_multiple_of(parts) {
            return Err(cx.shape_error(first, "an even number of rows"));
        }
        let inner = n / parts;
        let mut products = [
            Some(self.product(cx, 0, experts, [n, width])?),
            Some(self.product(cx, 1, experts, [width, inner])?),
            None,
        ];
        if gated == Gated::Third {
            products[2] = Some(self.product(cx, 2, experts, [inner, width])?);
        }
        let op = MixtureOfExperts { normalize: self.normalize || self.codes.is_some() && !given, ..*self };
        Ok(Resolved { op, gated, tokens, experts, width, inner, products, given })
    }
}

impl Resolved {
    /// Tokens times the experts of each.
    fn pairs(&self) -> usize {
        self.tokens * self.op.top
    }
}

impl Operator for MixtureOfExperts {
    fn name(&self) -> &'static str {
        match (self.codes, self.blocks) {
            (Some(_), _) => "QMoE",
            (None, Some(_)) => "MoEBlocks",
            (None, None) => "MoE",
        }
    }

    fn family(&self) -> Option<&'static str> {
        self.blocks.map(|_| "attention")
    }

    fn with_exact_activations(&self) -> Option<Arc<dyn Operator>> {
        let blocks = self.blocks.filter(|blocks| blocks.rounds)?;
        let blocks = Some(ExpertBlocks { rounds: false, ..blocks });
        Some(Arc::new(MixtureOfExperts { blocks, ..*self }))
    }

    fn infer(&self, cx: &OpCx) -> Result<Vec<TensorInfo>, OpError> {
        let coded = self.codes.is_some();
        cx.expect_counts(5..=if coded { 21 } else { 8 }, 1..=1)?;
        if let Some(i) = (FACTORS + 1..21).find(|i| coded && cx.has(*i)) {
            return Err(OpError::unsupported(format!("QMoE of integers with input {i}")));
        }
        let dtype = cx.dtype_of(X, FLOATS_TO_32)?;
        cx.expect_dtype(ROUTER, dtype)?;
        for [weights, scales, bias, zeros] in (0..3).map(|i| self.places(i)) {
            if cx.has(bias) {
                cx.expect_dtype(bias, dtype)?;
            }
            match coded {
                false if cx.has(weights) && self.blocks.is_some() => cx.expect_dtype(weights, DType::U8)?,
                false if cx.has(weights) => cx.expect_dtype(weights, dtype)?,
                true if cx.has(weights) => {
                    cx.expect_dtype(weights, DType::U8)?;
                    cx.dtype_of(scales, FLOATS_TO_32)?;
                }
                _ => {}
            }
            if coded && cx.has(zeros) {
                cx.expect_dtype(zeros, DType::U8)?;
            }
        }
        if coded && cx.has(FACTORS) {
            cx.expect_dtype(FACTORS, dtype)?;
        }
        self.resolve(cx)?;
        Ok(vec![cx.input(X)?.clone()])
    }

    fn cost(&self, cx: &OpCx) -> Cost {
        let flops = self.resolve(cx).map_or(0, |r| {
            let each: usize = r.products.iter().flatten().map(|p| p.n.saturating_mul(p.k)).sum();
            Cost::product(&[2, r.pairs(), each])
        });
        // No more experts are read than there are pairs.
        let unread = self.resolve(cx).ok().filter(|_| self.blocks.is_some()).map_or(0, |r| {
            let idle = r.experts.saturating_sub(r.pairs());
            let rows = r.products.iter().flatten().filter_map(|p| p.blocks);
            rows.map(|rows| idle.saturating_mul(rows.rows).saturating_mul(rows.row_bytes()) as u64).sum()
        });
        Cost { flops, bytes: cx.bytes_touched().saturating_sub(unread) }
    }

    fn cpu(&self, cx: &OpCx) -> Result<NativeKernel, OpError> {
        real_kernel(self.name(), cx, self.resolve(cx)?)
    }

    fn gpu(&self, cx: &OpCx, lower: &mut Lowering<'_>) -> Result<(), OpError> {
        self.resolve(cx)?.lower(cx, lower)
    }
}
