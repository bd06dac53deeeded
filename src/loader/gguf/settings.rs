//! What the metadata says of a decoder.

use super::file::{GgufFile, entry_error};
use crate::loader::error::{LoadError, LoadErrorKind, nearest};
use crate::ops::attention::ExpertActivation;

/// Families of decoders.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Architecture {
    /// Also Mistral.
    Llama,
    Qwen2,
    Qwen3,
    Gemma,
    Gemma2,
    Gemma3,
    Phi3,
    Mistral3,
    SmolLm3,
    Qwen2Moe,
    Qwen3Moe,
    Olmoe,
    GptOss,
}

impl Architecture {
    const ALL: [(&str, Architecture); 13] = [
        ("llama", Architecture::Llama),
        ("qwen2", Architecture::Qwen2),
        ("qwen3", Architecture::Qwen3),
        ("gemma", Architecture::Gemma),
        ("gemma2", Architecture::Gemma2),
        ("gemma3", Architecture::Gemma3),
        ("phi3", Architecture::Phi3),
        ("mistral3", Architecture::Mistral3),
        ("smollm3", Architecture::SmolLm3),
        ("qwen2moe", Architecture::Qwen2Moe),
        ("qwen3moe", Architecture::Qwen3Moe),
        ("olmoe", Architecture::Olmoe),
        ("gpt-oss", Architecture::GptOss),
    ];

    /// Whether rotation is of neighbouring elements; else of elements half a head apart.
    pub(super) fn interleaved(self) -> bool {
        matches!(self, Architecture::Llama | Architecture::Mistral3 | Architecture::SmolLm3)
    }

    /// Whether the embedding is multiplied by a factor and gates are gelus.
    pub(super) fn is_gemma(self) -> bool {
        self == Architecture::Gemma || self.normalizes_results()
    }

    /// Whether results of attention and of the gated product are normalized.
    pub(super) fn normalizes_results(self) -> bool {
        matches!(self, Architecture::Gemma2 | Architecture::Gemma3)
    }

    /// Whether the factors of a token's experts sum to one, of architectures that have experts.
    fn normalizes_experts(self) -> Option<bool> {
        match self {
            // Of Mixtral.
            Architecture::Llama | Architecture::Qwen3Moe | Architecture::GptOss => Some(true),
            Architecture::Qwen2Moe | Architecture::Olmoe => Some(false),
            _ => None,
        }
    }

    /// Whether queries and keys are normalized as whole rows; else each head.
    pub(super) fn normalizes_rows(self) -> bool {
        self == Architecture::Olmoe
    }

    /// Layers of which all but the last one have a window, of architectures that have windows.
    fn window_period(self) -> Option<usize> {
        match self {
            Architecture::Gemma2 | Architecture::GptOss => Some(2),
            Architecture::Gemma3 => Some(6),
            _ => None,
        }
    }

    /// The name of the normalization before the gated product or the experts.
    pub(super) fn second_norm(self) -> &'static str {
        if self == Architecture::GptOss { "post_attention_norm" } else { "ffn_norm" }
    }

    /// Whether each head of queries has a sink.
    pub(super) fn has_sinks(self) -> bool {
        self == Architecture::GptOss
    }

    /// Whether all products of attention and of experts have biases.
    pub(super) fn has_biases(self) -> bool {
        self == Architecture::GptOss
    }

    /// Between the products of an expert.
    pub(super) fn expert_activation(self) -> ExpertActivation {
        match self {
            Architecture::GptOss => ExpertActivation::SwiGlu { alpha: 1.702, beta: 1.0, limit: 7.0 },
            _ => ExpertActivation::Silu,
        }
    }

    /// Whether queries and keys of layer `layer` are rotated.
    pub(super) fn rotates(self, layer: usize) -> bool {
        self != Architecture::SmolLm3 || layer % 4 != 3
    }
}

/// The sizes of a decoder and of its cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DecoderSizes {
    /// Layers, each with keys and values.
    pub layers: usize,
    /// Heads of keys and values.
    pub kv_heads: usize,
    /// Elements of a head.
    pub head: usize,
    /// Tokens that the graph takes: the model's context, as far as its tables of rotations have at most 64 MiB.
    pub context: usize,
}

/// Bytes that all tables of rotations may have.
const TABLE_BYTES: usize = 64 << 20;

/// More layers, heads or elements than any model has.
const MAX_SIZE: u64 = 1 << 24;
const MAX_LAYERS: u64 = 4096;

/// What the metadata says of a decoder.
#[derive(Clone, Debug)]
pub(super) struct Settings {
    pub(super) architecture: Architecture,
    pub(super) sizes: DecoderSizes,
    pub(super) hidden: usize,
    pub(super) heads: usize,
    pub(super) ffn: usize,
    pub(super) experts: Option<Experts>,
    pub(super) epsilon: f32,
    /// Factor of the scores.
    pub(super) scale: f32,
    /// Bound of the scores.
    pub(super) score_cap: Option<f32>,
    /// Bound of the logits.
    pub(super) logit_cap: Option<f32>,
    /// Factor of the embedding.
    pub(super) embedding_scale: Option<f32>,
    /// Keys that a query sees in layers with a window.
    pub(super) window: Option<usize>,
    /// Whether each layer has one.
    windowed: Vec<bool>,
    /// What multiplies queries beyond some context.
    pub(super) temperature: Option<Temperature>,
    /// Elements of a head that are rotated.
    pub(super) rotated: usize,
    pub(super) rope: RopeSettings,
    /// The base of the angles in layers with a window.
    pub(super) local_base: f64,
}

/// A mixture of experts in each layer.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Experts {
    pub(super) count: usize,
    /// Those of a token.
    pub(super) top: usize,
    /// Whether the factors of a token sum to one.
    pub(super) normalize: bool,
    /// What multiplies their answer.
    pub(super) scale: Option<f32>,
    /// Elements between the products; as many as the tensors have where the file does not say.
    pub(super) inner: Option<usize>,
}

impl Experts {
    fn of(e: &Entries<'_>, architecture: Architecture) -> Result<Option<Self>, LoadError> {
        const COUNT: &str = "expert_count";
        let plain = |name: &str| Ok::<_, LoadError>(e.file.unsigned(&e.key(name))?.unwrap_or(0));
        let normalizes = architecture.normalizes_experts();
        if plain(COUNT)? == 0 {
            return match normalizes.filter(|_| architecture != Architecture::Llama) {
                Some(_) => Err(e.wrong(COUNT, "a number of experts", 0)),
                None => Ok(None),
            };
        }
        let count = e.size(COUNT)?;
        let count = e.need(COUNT, count)?;
        let Some(normalizes) = normalizes else {
            let what = format!("{count} experts in this architecture: load an ONNX export of the model");
            return Err(e.unsupported(COUNT, what));
        };
        let top = e.size("expert_used_count")?;
        let top = e.need("expert_used_count", top)?;
        if top > count || top > usize::from(u16::MAX) {
            return Err(e.wrong("expert_used_count", format!("1 to {}", count.min(65535)), top));
        }
        // A softmax before or after the choice; the latter is the former with factors that sum to one.
        let chosen = match plain("expert_gating_func")? {
            0 | 1 => architecture == Architecture::GptOss,
            3 => true,
            other => {
                let what = format!("the gating function {other} of experts; softmax is read");
                return Err(e.unsupported("expert_gating_func", what));
            }
        };
        for name in ["expert_group_count", "leading_dense_block_count"] {
            let found = plain(name)?;
            if found > u64::from(name == "expert_group_count") {
                let what =
                    format!("{found}, of experts as DeepSeek has them: load an ONNX export of the model");
                return Err(e.unsupported(name, what));
            }
        }
        let normalize = e.file.flag(&e.key("expert_weights_norm"))?.unwrap_or(normalizes) || chosen;
        // Files write 0 where there is none.
        let scale = e.float("expert_weights_scale")?.map(|scale| scale as f32);
        let scale = scale.filter(|scale| *scale != 0.0 && *scale != 1.0);
        let inner = e.size("expert_feed_forward_length")?;
        Ok(Some(Experts { count, top, normalize, scale, inner }))
    }
}

/// Queries are multiplied by `1 + scale * ln(1 + floor(position / context))`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Temperature {
    pub(super) scale: f64,
    pub(super) context: usize,
}

/// How positions become angles.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct RopeSettings {
    pub(super) base: f64,
    pub(super) scaling: Scaling,
}

/// How contexts longer than the trained one are reached.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Scaling {
    None,
    /// Positions are divided.
    Linear {
        factor: f64,
    },
    /// Slow rotations are divided, fast ones not.
    Yarn {
        factor: f64,
        context: f64,
        fast: f64,
        slow: f64,
        magnitude: f64,
    },
    /// Tensors of the file have factors, for the context that it was trained on, and for more.
    Long {
        context: usize,
        magnitude: f64,
    },
}

impl DecoderSizes {
    /// Reads the sizes of the decoder in `file`.
    ///
    /// # Errors
    /// [`LoadError`] for entries that are missing or wrong, and architectures that are not known.
    pub fn of(file: &GgufFile) -> Result<Self, LoadError> {
        Settings::of(file).map(|settings| settings.sizes)
    }
}

/// Entries of one architecture.
struct Entries<'f> {
    file: &'f GgufFile,
    prefix: &'f str,
}

impl Entries<'_> {
    fn key(&self, name: &str) -> String {
        format!("{}.{name}", self.prefix)
    }

    fn wrong(&self, name: &str, expected: impl Into<String>, found: impl ToString) -> LoadError {
        entry_error(&self.key(name), LoadErrorKind::unexpected(expected, found.to_string()))
    }

    fn unsupported(&self, name: &str, what: impl Into<String>) -> LoadError {
        entry_error(&self.key(name), LoadErrorKind::unsupported(what))
    }

    fn need<T>(&self, name: &str, found: Option<T>) -> Result<T, LoadError> {
        found.ok_or_else(|| LoadErrorKind::missing(format!("entry {:?}", self.key(name))).into())
    }

    /// A size, from 1 on.
    fn size(&self, name: &str) -> Result<Option<usize>, LoadError> {
        match self.file.unsigned(&self.key(name))? {
            None => Ok(None),
            Some(n @ 1..=MAX_SIZE) => Ok(usize::try_from(n).ok()),
            Some(n) => Err(self.wrong(name, format!("1 to {MAX_SIZE}"), n)),
        }
    }

    /// A size that all layers have, which a file may list for each of them.
    fn common(&self, name: &str) -> Result<Option<usize>, LoadError> {
        let key = self.key(name);
        let Ok(Some(list)) = self.file.integers(&key) else { return self.size(name) };
        match list {
            [first, rest @ ..] if rest.iter().all(|n| n == first) => {
                let within = u64::try_from(*first).ok().filter(|n| (1..=MAX_SIZE).contains(n));
                let n = within.and_then(|n| usize::try_from(n).ok());
                n.map(Some).ok_or_else(|| self.wrong(name, format!("1 to {MAX_SIZE}"), first))
            }
            _ => Err(self.unsupported(name, "layers of different sizes: load an ONNX export of the model")),
        }
    }

    /// A finite number.
    fn float(&self, name: &str) -> Result<Option<f64>, LoadError> {
        match self.file.float(&self.key(name))? {
            Some(v) if !v.is_finite() => Err(self.wrong(name, "a finite number", v)),
            found => Ok(found),
        }
    }

    /// A number above 0.
    fn positive(&self, name: &str) -> Result<Option<f64>, LoadError> {
        match self.float(name)? {
            Some(v) if v <= 0.0 => Err(self.wrong(name, "a number above 0", v)),
            found => Ok(found),
        }
    }
}

/// The architecture that the file names, and what the names of its entries begin with.
fn architecture(file: &GgufFile) -> Result<(&'static str, Architecture), LoadError> {
    const NAME: &str = "general.architecture";
    let name = file.text(NAME)?;
    let name = name.ok_or_else(|| LoadErrorKind::missing(format!("entry {NAME:?}")))?;
    let known = Architecture::ALL.iter().find(|(known, _)| *known == name);
    known.copied().ok_or_else(|| {
        let names = Architecture::ALL.map(|(name, _)| name);
        let near = nearest(name, names);
        let near = if near.is_empty() { String::new() } else { format!(" (nearest: {})", near.join(", ")) };
        let what = format!("architecture {name:?}{near}; these are read: {}", names.join(", "));
        entry_error(NAME, LoadErrorKind::unsupported(what))
    })
}

/// Heads of the attention: how many, those of keys and values, elements of one, and of these the rotated ones.
struct Heads {
    heads: usize,
    kv_heads: usize,
    head: usize,
    rotated: usize,
}

impl Heads {
    fn of(e: &Entries<'_>, hidden: usize) -> Result<Self, LoadError> {
        let heads = e.common("attention.head_count")?;
        let heads = e.need("attention.head_count", heads)?;
        let kv_heads = e.common("attention.head_count_kv")?.unwrap_or(heads);
        if !heads.is_multiple_of(kv_heads) {
            return Err(e.wrong("attention.head_count_kv", format!("a divisor of {heads}"), kv_heads));
        }
        let head = e.size("attention.key_length")?.or(hidden.checked_div(heads)).unwrap_or(0);
        if let Some(value) = e.size("attention.value_length")?.filter(|value| *value != head) {
            let what =
                format!("values of {value} elements with keys of {head}: load an ONNX export of the model");
            return Err(e.unsupported("attention.value_length", what));
        }
        let rotated = e.size("rope.dimension_count")?.unwrap_or(head);
        if rotated > head || !rotated.is_multiple_of(2) || head == 0 {
            return Err(e.wrong("rope.dimension_count", format!("an even number up to {head}"), rotated));
        }
        Ok(Heads { heads, kv_heads, head, rotated })
    }
}

impl Settings {
    pub(super) fn of(file: &GgufFile) -> Result<Self, LoadError> {
        let (prefix, architecture) = architecture(file)?;
        let e = Entries { file, prefix };
        let need = |name: &str| e.size(name).and_then(|found| e.need(name, found));
        let layers = need("block_count")?;
        if layers as u64 > MAX_LAYERS {
            return Err(e.wrong("block_count", format!("1 to {MAX_LAYERS}"), layers));
        }
        let hidden = need("embedding_length")?;
        let Heads { heads, kv_heads, head, rotated } = Heads::of(&e, hidden)?;
        let experts = Experts::of(&e, architecture)?;
        let epsilon = e.positive("attention.layer_norm_rms_epsilon")?;
        let epsilon = e.need("attention.layer_norm_rms_epsilon", epsilon)? as f32;
        let rope = RopeSettings { base: e.positive("rope.freq_base")?.unwrap_or(1e4), scaling: scaling(&e)? };
        let gemma = architecture.is_gemma();
        let (window, windowed) = window(&e, architecture, layers)?;
        // The largest models divide by another size.
        let per_head = match (architecture, layers) {
            (Architecture::Gemma2, 46) | (Architecture::Gemma3, 62) => {
                hidden.checked_div(heads).unwrap_or(head)
            }
            _ => head,
        };
        let cap = |name: &str| e.float(name).map(|cap| cap.map(|cap| cap as f32).filter(|cap| *cap > 0.0));
        let score_cap = match architecture {
            Architecture::Gemma2 => cap("attn_logit_softcapping")?,
            _ => None,
        };
        let logit_cap = match architecture {
            Architecture::Gemma2 | Architecture::Gemma3 => cap("final_logit_softcapping")?,
            _ => None,
        };
        let mut context = need("context_length")?;
        let temperature = match architecture {
            Architecture::Mistral3 => temperature(&e, context)?,
            _ => None,
        };
        if let Scaling::Long { context: trained, .. } = rope.scaling {
            context = context.min(trained);
        }
        let tables = if window.is_some() && architecture == Architecture::Gemma3 { 4 } else { 2 };
        let row = rotated.saturating_mul(tables).saturating_mul(2);
        context = context.min(TABLE_BYTES.checked_div(row).unwrap_or(0)).max(2);
        Ok(Settings {
            architecture,
            sizes: DecoderSizes { layers, kv_heads, head, context },
            hidden,
            heads,
            ffn: e.common("feed_forward_length")?.unwrap_or(0),
            experts,
            epsilon,
            scale: 1.0 / (per_head as f32).sqrt(),
            score_cap,
            logit_cap,
            embedding_scale: gemma.then(|| (hidden as f32).sqrt()),
            window,
            windowed,
            temperature: temperature.filter(|temperature| temperature.context < context),
            rotated,
            rope,
            local_base: match architecture {
                Architecture::Gemma3 => e.positive("rope.freq_base_swa")?.unwrap_or(1e4),
                _ => rope.base,
            },
        })
    }

    /// Whether layer `layer` sees all keys.
    pub(super) fn sees_all(&self, layer: usize) -> bool {
        self.window.is_none() || !self.windowed.get(layer).is_some_and(|windowed| *windowed)
    }
}

/// Keys that a query sees in layers with a window, and which of the layers have one.
fn window(
    e: &Entries<'_>,
    architecture: Architecture,
    layers: usize,
) -> Result<(Option<usize>, Vec<bool>), LoadError> {
    const NAME: &str = "attention.sliding_window";
    // Others have it in their files and are computed without it, as llama.cpp does.
    let Some(period) = architecture.window_period() else { return Ok((None, Vec::new())) };
    match e.file.unsigned(&e.key(NAME))? {
        Some(n @ 1..) => Ok((Some(usize::try_from(n).unwrap_or(usize::MAX)), windowed(e, layers, period)?)),
        None if architecture == Architecture::GptOss => e.need(NAME, None),
        _ => Ok((None, Vec::new())),
    }
}

/// Which of the layers have a window: those that a file lists, or all but each last one of a period.
fn windowed(e: &Entries<'_>, layers: usize, period: usize) -> Result<Vec<bool>, LoadError> {
    const PATTERN: &str = "attention.sliding_window_pattern";
    if let Ok(Some(list)) = e.file.flags(&e.key(PATTERN)) {
        if list.len() != layers {
            return Err(e.wrong(PATTERN, format!("{layers} values"), list.len()));
        }
        return Ok(list.to_vec());
    }
    let period = e.file.unsigned(&e.key(PATTERN))?.map_or(Some(period), |n| usize::try_from(n).ok());
    // A period of 0 has no last layer.
    let last = |layer: usize| {
        period.is_some_and(|period| layer.checked_rem(period) == Some(period.saturating_sub(1)))
    };
    Ok((0..layers).map(|layer| !last(layer)).collect())
}

/// What multiplies queries of a decoder that was made for `context` tokens.
fn temperature(e: &Entries<'_>, context: usize) -> Result<Option<Temperature>, LoadError> {
    let scale = e.float("attention.temperature_scale")?.unwrap_or(0.0);
    let context = e.size("rope.scaling.original_context_length")?.unwrap_or(context);
    Ok((scale != 0.0).then_some(Temperature { scale, context }))
}

fn scaling(e: &Entries<'_>) -> Result<Scaling, LoadError> {
    const TYPE: &str = "rope.scaling.type";
    const FACTOR: &str = "rope.scaling.factor";
    const ORIGINAL: &str = "rope.scaling.original_context_length";
    let kind = e.file.text(&e.key(TYPE))?.map(str::to_owned);
    // As files of 2023 have it.
    let old = e.positive("rope.scale_linear")?;
    let magnitude = e.positive("rope.scaling.attn_factor")?.unwrap_or(1.0);
    let factor = e.positive(FACTOR)?;
    // Factors in tensors need no entry here.
    if let Some(context) = e.size(ORIGINAL)?.filter(|_| e.file.tensor(super::rope::SHORT).is_some()) {
        return Ok(Scaling::Long { context, magnitude });
    }
    match kind.as_deref() {
        None | Some("none") => match old.filter(|factor| *factor != 1.0) {
            Some(factor) => Ok(Scaling::Linear { factor }),
            None => Ok(Scaling::None),
        },
        Some("linear") => Ok(Scaling::Linear { factor: e.need(FACTOR, factor)? }),
        Some("yarn") => {
            let (context, factor) = (e.size(ORIGINAL)?, e.need(FACTOR, factor)?);
            // What is made of the logarithm of the factor is divided by the same with a weight of it.
            let weight = e.float("rope.scaling.yarn_log_multiplier")?.unwrap_or(0.0).max(0.0);
            let magnitude = magnitude / (1.0 + 0.1 * weight * factor.ln().max(0.0));
            Ok(Scaling::Yarn {
                factor,
                context: e.need(ORIGINAL, context)? as f64,
                fast: e.positive("rope.scaling.yarn_beta_fast")?.unwrap_or(32.0),
                slow: e.positive("rope.scaling.yarn_beta_slow")?.unwrap_or(1.0),
                magnitude,
            })
        }
        Some("longrope") => Err(LoadErrorKind::missing(format!("tensor {:?}", super::rope::SHORT)).into()),
        Some(other) => {
            let what = format!("scaling of positions {other:?}; none, linear, yarn and longrope are read");
            Err(e.unsupported(TYPE, what))
        }
    }
}
