//! Scaled dot product attention on devices: which kernel, and its parameters.

use std::collections::BTreeSet;

use super::matrix::Matrices;
use super::scaled::{MaskSteps, Scaled, Sink, Steps};
use crate::backend::{DeviceInfo, DeviceKind};
use crate::dtype::DType;
use crate::kernel::codes::attention::{self, Stage};
use crate::kernel::codes::{attention_split, attention_tile, attention_vector};
use crate::kernel::table::{params, spec, variants};
use crate::kernel::{KernelId, grid_1d};
use crate::ops::{Candidate, ChoiceKey, Lowering, OpError, Operand};

/// Up to this many queries get a work-group each instead of tiles.
const VECTOR_ROWS: usize = 4;
/// Up to this many queries have their pages done in parts.
const PAGED_PARTS: usize = 64;
/// Tokens of a sequence, on the average, from which on they are done in tiles.
const LEAST_SHARE: usize = 4;
/// The most bytes of what the parts of keys give.
const MAX_PARTIAL: usize = 64 << 20;
/// Elements of a tensor that kernels can index.
pub(super) const MAX_ELEMENTS: usize = i32::MAX as usize / 4;
/// Queries of one invocation of `attention_row.comp`.
const ROWS: usize = 4;
/// The most texels of a value that an invocation of it does.
const ROW_TEXELS: usize = 64;

/// The parameters of all kernels, for `count` work-groups or invocations.
fn params(s: &Scaled, count: usize) -> params::Attention {
    let none = MaskSteps { batch: 0, head: 0, row: 0, key: 0, len: 0, elements: 0 };
    let mask = s.mask.unwrap_or(none);
    params::Attention {
        count: count as u32,
        q_len: s.q_len as u32,
        kv_len: s.kv_len as u32,
        q_heads: s.q_heads as u32,
        share: s.share() as u32,
        head: s.head as u32,
        v_head: s.v_head as u32,
        q_first: s.q.first as u32,
        q_batch: s.q.batch as u32,
        q_head: s.q.head as u32,
        q_row: s.q.row as u32,
        k_first: s.k.first as u32,
        k_batch: s.k.batch as u32,
        k_head: s.k.head as u32,
        k_row: s.k.row as u32,
        v_first: s.v.first as u32,
        v_batch: s.v.batch as u32,
        v_head_step: s.v.head as u32,
        v_row: s.v.row as u32,
        y_batch: s.y.batch as u32,
        y_head: s.y.head as u32,
        y_row: s.y.row as u32,
        mask_batch: mask.batch as u32,
        mask_head: mask.head as u32,
        mask_row: mask.row as u32,
        mask_key: mask.key as u32,
        mask_len: mask.len as u32,
        scale: s.scale,
        softcap: s.softcap,
        offset: s.offset.min(1 << 28) as i32,
        left: side(s.left),
        right: side(s.right),
    }
}

/// Where the operands of an attention lie.
#[derive(Clone, Copy, Debug)]
pub(super) struct Places {
    pub dtype: DType,
    pub q: Operand,
    pub k: Operand,
    pub v: Operand,
    pub mask: Operand,
    pub mask_type: Option<DType>,
    /// Numbers of valid keys.
    pub lens: Operand,
    /// 32-bit words of each; 0 where there are none.
    pub lens_words: u32,
    pub y: Operand,
    pub scores: Option<(Stage, Operand)>,
    pub sink: Sink<Operand>,
    /// The keys and values that the caches do not have yet.
    pub fresh: Option<Fresh>,
    /// How keys and values lie in pages; numbers of valid keys have two words then, of which the second is the row of the
    /// table.
    pub paged: Option<Paged>,
    /// How keys and values are words of another type, which their steps count then.
    pub coded: Option<Coded>,
}

/// Caches of another type than the queries', read as words: specialization constants, and the scales of keys and of values.
#[derive(Clone, Copy, Debug)]
pub(super) struct Coded {
    pub bits: usize,
    pub constants: [(u32, u32); 4],
    pub scales: [Operand; 2],
}

/// A cache in pages, which a table of 32-bit numbers names; numbers out of range are of no page.
#[derive(Clone, Copy, Debug)]
pub(super) struct Paged {
    pub table: Operand,
    /// Rows of a page.
    pub page: usize,
    /// Pages of a row of the table.
    pub pages: usize,
    /// Pages that there are.
    pub blocks: usize,
}

impl Paged {
    fn constants(&self) -> [(u32, u32); 3] {
        [
            (spec::attention::PAGE, self.page as u32),
            (spec::attention::PAGES, self.pages as u32),
            (spec::attention::BLOCKS, self.blocks as u32),
        ]
    }
}

/// Keys and values of the queries' own positions, which the attention itself writes into the caches; queries and keys are
/// rotated as it reads them.
#[derive(Clone, Copy, Debug)]
pub(super) struct Fresh {
    /// Whether queries, keys and values of a position are contiguous in one tensor.
    pub packed: bool,
    pub k: Operand,
    pub v: Operand,
    /// Cosines and sines.
    pub tables: [Operand; 2],
    /// Elements of a vector that are rotated, rows of the tables, and whether a pair is two neighbours.
    pub rotated: usize,
    pub rows: usize,
    pub interleaved: bool,
}

impl Fresh {
    /// Whether the kernel for keys in parts can take these, for `s` with steps of the queries as they are given.
    pub(super) fn fits(&self, s: &Scaled, t: DType, lower: &Lowering<'_>) -> bool {
        let groups = if self.interleaved { 4 } else { 8 };
        let kernel = variants::AttentionSplit { t, fresh: true, ..split_of(t) }.id();
        let has = kernel.is_ok_and(|kernel| lower.can_run(kernel));
        has && self.rotated.is_multiple_of(groups)
            && s.head == s.v_head
            && parts_of(s, false, lower).is_some()
    }
}

/// The plainest kernel for keys in parts.
fn split_of(t: DType) -> variants::AttentionSplit {
    variants::AttentionSplit { t, bool_mask: false, fresh: false, paged: false, coded: false, joined: false }
}

/// Whether cooperative matrices are what computes `s`.
pub(super) fn in_matrices(s: &Scaled, places: &Places, lower: &Lowering<'_>) -> bool {
    matches!(Method::by_model(s, places, false, lower), Ok(Method::Matrices(_)))
}

/// Emits `scaled`.
pub(super) fn lower_scaled(
    scaled: &Scaled,
    places: &Places,
    lower: &mut Lowering<'_>,
) -> Result<(), OpError> {
    let s = scaled;
    let rows = s.batch * s.q_heads * s.q_len;
    if rows == 0 || s.v_head == 0 {
        return Ok(());
    }
    if s.kv_len == 0 || s.head == 0 {
        return Err(OpError::unsupported("attention to nothing"));
    }
    let bool_mask = match places.mask_type {
        None => false,
        Some(DType::Bool) => true,
        Some(t) if t == places.dtype => false,
        Some(t) => return Err(OpError::unsupported(format!("a mask of {t} for {}", places.dtype))),
    };
    let cached = places.paged.map_or(s.batch * s.kv_len, |p| p.blocks * p.page);
    let largest = [
        rows * s.head.max(s.v_head),
        cached.saturating_mul(s.kv_heads * s.head.max(s.v_head)),
        s.mask.map_or(0, |m| m.elements),
        if places.scores.is_some() { rows.saturating_mul(s.kv_len) } else { 0 },
    ];
    if largest.iter().any(|n| *n > MAX_ELEMENTS) {
        return Err(OpError::unsupported("attention of more elements than a kernel can index"));
    }
    // Eight keys at a time, a texel of each after another.
    let passes = if places.scores.is_some() { 2 } else { 1 };
    lower.iterations(passes * s.kv_len.div_ceil(8) * (s.head / 4 + s.v_head / 4 + 2))?;
    let args = [places.q, places.k, places.v, places.mask, places.lens, places.y];
    let (stage, scores) = places.scores.unwrap_or((Stage::None, Operand::Unused));
    let (sink, sinks) = match places.sink {
        Sink::None => (attention::Sink::None, Operand::Unused),
        Sink::Zero => (attention::Sink::Zero, Operand::Unused),
        Sink::Heads(sinks) => (attention::Sink::Heads, sinks),
    };
    let constants = [
        (spec::attention::CAUSAL, u32::from(s.causal)),
        (spec::attention::MASKED, u32::from(s.mask.is_some())),
        (spec::attention::LEN_WORDS, places.lens_words),
        (spec::attention::LEN_ADD, s.lens_add as i32 as u32),
        (spec::attention::STAGE, stage as u32),
        (spec::attention::SINK, sink as u32),
    ];
    let all = [args[0], args[1], args[2], args[3], args[4], args[5], scores, sinks];
    let few = [args[0], args[1], args[2], args[3], args[4], args[5], sinks];
    let max_x = lower.device().limits.max_groups[0];
    let by_model = Method::by_model(s, places, bool_mask, lower)?;
    let method = lower.choose(by_model, |lower| (key(s, places), Method::all(s, places, bool_mask, lower)));
    match method {
        Method::Rows(kernel) => {
            let parts = (s.v_head / 4).div_ceil(ROW_TEXELS);
            let items = s.batch * s.q_heads * s.q_len.div_ceil(ROWS) * parts;
            let own = [
                (spec::attention_row::ROWS, ROWS as u32),
                (spec::attention_row::TEXELS, (s.v_head / 4).div_ceil(parts) as u32),
            ];
            let spec = [&constants[..], &own].concat();
            lower.dispatch_1d(kernel, &spec, &all, &params(s, items), items)
        }
        Method::Parts { parts, joined } => {
            lower_parts(s, places, bool_mask, (&constants, parts, joined), lower)
        }
        Method::Vectors(kernel) => {
            let cols = s.v_head.next_power_of_two().max(32) as u32;
            let mut spec = [&constants[..], &[(spec::attention_vector::COLS, cols)]].concat();
            let mut args = few.to_vec();
            if let Some(paged) = &places.paged {
                spec.extend(paged.constants());
                args.push(paged.table);
            }
            lower.dispatch(kernel, &spec, &args, &params(s, rows), grid_1d(rows as u64, 1, max_x))
        }
        Method::Matrices(matrices) => {
            let spec = [&constants[..], &[(spec::attention_matrix::LOCAL_SIZE_X, matrices.threads)]].concat();
            let grid = grid_1d(matrices.groups as u64, 1, max_x);
            lower.dispatch(matrices.kernel, &spec, &few, &params(s, matrices.groups), grid)
        }
        Method::Tiles { own, cols } => {
            lower_tiles(s, places, bool_mask, (&constants, &all), (own, cols), lower)
        }
    }
}

/// How an attention is computed.
#[derive(Clone, Copy, Debug)]
enum Method {
    /// A few queries by an invocation, over whole texels.
    Rows(KernelId),
    /// The keys of few queries in parts.
    Parts {
        /// How many.
        parts: usize,
        /// Whether the last of its work-groups merges them, instead of a second dispatch.
        joined: bool,
    },
    /// A work-group for each query.
    Vectors(KernelId),
    /// Cooperative matrices.
    Matrices(Matrices),
    /// Tiles of queries and values.
    Tiles {
        /// Queries of an invocation.
        own: usize,
        /// Elements of a value that a work-group does.
        cols: usize,
    },
}

impl Candidate for Method {
    fn name(&self) -> String {
        match self {
            Method::Rows(_) => "attention_row".to_owned(),
            Method::Parts { parts, joined: false } => format!("attention_split/{parts}"),
            Method::Parts { parts, joined: true } => format!("attention_split/{parts}/joined"),
            Method::Vectors(_) => "attention_vector".to_owned(),
            Method::Matrices(matrices) => matrices.kernel.info().name.to_owned(),
            Method::Tiles { own, cols } => format!("attention_tile/{own}/{cols}"),
        }
    }
}

impl Method {
    /// The one by the model of the device.
    fn by_model(
        s: &Scaled,
        places: &Places,
        bool_mask: bool,
        lower: &Lowering<'_>,
    ) -> Result<Method, OpError> {
        if let Some(kernel) = rows(s, places, bool_mask, lower) {
            return Ok(Method::Rows(kernel));
        }
        if let Some(parts) = parts(s, places, lower) {
            // More parts take one work-group longer than a dispatch for each query. On a card any do: a token takes 1 to
            // 6 percent longer on an H100.
            let few = parts <= attention_split::JOINED_PARTS && lower.device().kind != DeviceKind::Discrete;
            return Ok(Method::Parts { parts, joined: few && joins(places, bool_mask, lower) });
        }
        if places.coded.is_some() {
            return Ok(one_tile(s));
        }
        if let Some(kernel) = vectors(s, places, bool_mask) {
            return Ok(Method::Vectors(kernel));
        }
        if places.paged.is_some() {
            return match s.batch {
                // One row of tokens.
                1 => Ok(one_tile(s)),
                _ => Err(OpError::unsupported("paged attention of heads beyond a kernel's")),
            };
        }
        if let Some(matrices) = matrices(s, places, bool_mask, lower) {
            return Ok(Method::Matrices(matrices));
        }
        let (own, cols) = tile(s, lower.device(), lower.processors());
        Ok(Method::Tiles { own, cols })
    }

    /// Every way that the device can compute it and that may be the fastest one somewhere.
    fn all(s: &Scaled, places: &Places, bool_mask: bool, lower: &Lowering<'_>) -> Vec<Method> {
        let mut all = Vec::new();
        if let Some(by_model) = parts(s, places, lower) {
            let most = (s.kv_len / attention_split::LEAST_KEYS).max(by_model);
            let least = s.kv_len.div_ceil(attention_split::KEYS);
            let counts = BTreeSet::from([by_model / 4, by_model / 2, by_model, by_model * 2, by_model * 4]);
            let counts =
                counts.into_iter().filter(|n| (least.max(1)..=most).contains(n) && fits(s, *n, lower));
            let joins = joins(places, bool_mask, lower);
            all.extend(counts.flat_map(|parts| {
                let can_join = joins && parts <= attention_split::JOINED_PARTS;
                let ways = if can_join { &[false, true][..] } else { &[false] };
                ways.iter().map(move |joined| Method::Parts { parts, joined: *joined })
            }));
        }
        // What writes its keys into the cache is done by parts alone.
        if places.fresh.is_none() && places.coded.is_none() {
            all.extend(vectors(s, places, bool_mask).map(Method::Vectors));
            if by_matrices(places) {
                all.extend(
                    Matrices::all(s, places.dtype, bool_mask, lower).into_iter().map(Method::Matrices),
                );
            }
        }
        if places.paged.is_some() && s.batch == 1 || places.coded.is_some() {
            all.push(one_tile(s));
        }
        if places.fresh.is_none() && places.paged.is_none() && places.coded.is_none() {
            let cols = if s.v_head <= 64 { 64 } else { 128 };
            all.extend([8, 4, 2].map(|own| Method::Tiles { own, cols }));
        }
        all
    }
}

fn key(s: &Scaled, places: &Places) -> ChoiceKey {
    let key = ChoiceKey::new("attention", places.dtype)
        .size("batch", s.batch)
        .size("heads", s.q_heads)
        .size("share", s.share())
        .size("queries", s.q_len)
        .size("keys", s.kv_len)
        .exact("head", s.head)
        .exact("value", s.v_head)
        .flag("causal", s.causal)
        .flag("masked", s.mask.is_some())
        .flag("window", s.left.is_some() || s.right.is_some())
        .flag("fresh", places.fresh.is_some())
        .flag("paged", places.paged.is_some())
        .flag("scores", places.scores.is_some());
    match &places.coded {
        Some(coded) => key.exact("bits", coded.bits),
        None => key,
    }
}

/// The kernel of [`Method::Rows`], on devices that prefer texels.
fn rows(s: &Scaled, places: &Places, bool_mask: bool, lower: &Lowering<'_>) -> Option<KernelId> {
    let plain = places.paged.is_none() && places.coded.is_none();
    let takes = plain && lower.device().prefers_texels && whole_texels(s, lower);
    let kernel = variants::AttentionRow { t: places.dtype, bool_mask }.id().ok();
    kernel.filter(|kernel| takes && lower.can_run(*kernel))
}

/// The kernel of [`Method::Vectors`], for few queries of short enough vectors.
fn vectors(s: &Scaled, places: &Places, bool_mask: bool) -> Option<KernelId> {
    let takes = places.scores.is_none()
        && s.q_len <= VECTOR_ROWS
        && s.head <= attention_vector::HEAD_MAX
        && s.v_head <= attention_vector::KEYS;
    let variant = variants::AttentionVector { t: places.dtype, bool_mask, paged: places.paged.is_some() };
    if takes { variant.id().ok() } else { None }
}

fn matrices(s: &Scaled, places: &Places, bool_mask: bool, lower: &Lowering<'_>) -> Option<Matrices> {
    if by_matrices(places) { Matrices::of(s, places.dtype, bool_mask, lower) } else { None }
}

/// Whether kernels of cooperative matrices can take such operands.
fn by_matrices(places: &Places) -> bool {
    places.scores.is_none() && places.paged.is_none()
}

/// The queries of an invocation of `attention_tile.comp` and the elements of a value of its work-groups. Small ones waste less
/// on few queries, and keep more processors busy.
fn tile(s: &Scaled, device: &DeviceInfo, processors: usize) -> (usize, usize) {
    /// Lanes of all subgroups of devices that have registers for eight queries. Of AMD's, GCN would keep one subgroup of them on
    /// each SIMD, and Mesa 22.3 puts them in memory on RDNA3.
    const LANES: u32 = 32;
    let cols = if s.v_head <= 64 { 64 } else { 128 };
    let enough = |own: &usize| {
        let registers = *own < 8 || device.subgroup_range == [LANES; 2];
        let fills = tiles(s, *own, cols) >= own / 4 * processors;
        registers && fills && s.q_len > own / 2 * attention_tile::DOWN
    };
    ([8, 4].into_iter().find(enough).unwrap_or(2), cols)
}

/// Emits `s` in tiles of such sizes.
fn lower_tiles(
    s: &Scaled,
    places: &Places,
    bool_mask: bool,
    (constants, args): (&[(u32, u32)], &[Operand]),
    (own, cols): (usize, usize),
    lower: &mut Lowering<'_>,
) -> Result<(), OpError> {
    let (paged, coded) = (places.paged.is_some(), places.coded.is_some());
    let (t, own_queries, own_cols) = (places.dtype, own as u32, cols as u32);
    let kernel = variants::AttentionTile { t, own: own_queries, cols: own_cols, bool_mask, paged, coded };
    let groups = tiles(s, own, cols);
    let grid = grid_1d(groups as u64, 1, lower.device().limits.max_groups[0]);
    let (mut spec, mut args) = (constants.to_vec(), args.to_vec());
    if let Some(paged) = &places.paged {
        spec.extend(paged.constants());
        args.push(paged.table);
    }
    if let Some(coded) = &places.coded {
        spec.extend(coded.constants);
        args.extend(coded.scales);
    }
    lower.dispatch(kernel.id()?, &spec, &args, &params(s, groups), grid)
}

/// The tiles of tokens whose keys lie in pages or in words of another type.
fn one_tile(s: &Scaled) -> Method {
    Method::Tiles { own: 4, cols: if s.v_head <= 64 { 64 } else { 128 } }
}

/// Whether a run of `tokens` of `sequences` in pages is done in tiles: a work-group reads the keys of each sequence that it
/// has tokens of.
pub(super) fn in_tiles(tokens: usize, sequences: usize) -> bool {
    tokens > PAGED_PARTS && tokens >= LEAST_SHARE * sequences
}

/// Work-groups of such tiles.
fn tiles(s: &Scaled, own: usize, cols: usize) -> usize {
    s.batch * s.q_heads * s.q_len.div_ceil(own * attention_tile::DOWN) * s.v_head.div_ceil(cols)
}

/// In how many parts work-groups do the keys of few queries; `None` where the kernel for that does not fit.
fn parts(s: &Scaled, places: &Places, lower: &Lowering<'_>) -> Option<usize> {
    // Very many queries keep a device busy without parts.
    let few = places.paged.is_none() || s.batch <= PAGED_PARTS;
    let coded = places.coded.is_some();
    if few && places.scores.is_none() { parts_of(s, coded, lower) } else { None }
}

/// The same wherever operands lie.
fn parts_of(s: &Scaled, coded: bool, lower: &Lowering<'_>) -> Option<usize> {
    /// Smaller devices have room for several work-groups on a processor.
    const LEAST_GROUPS: usize = 64;
    let small = s.head.max(s.v_head) <= attention_split::HEAD_MAX;
    let quads = [s.head, s.v_head].iter().all(|n| n.is_multiple_of(4));
    let quads_of = |t: &Steps| [t.first, t.batch, t.head, t.row].iter().all(|n| n % 4 == 0);
    let steps = [s.q, s.y].iter().all(quads_of) && (coded || [s.k, s.v].iter().all(quads_of));
    let few = s.q_len <= VECTOR_ROWS && s.kv_len >= 2 * attention_split::LEAST_KEYS;
    let least = s.kv_len.div_ceil(attention_split::KEYS);
    let bands = (s.share() * s.q_len).div_ceil(queries(s));
    // More parts than processors take longer to merge than they save.
    let wanted = (lower.processors().max(LEAST_GROUPS) / (s.batch * s.kv_heads * bands)).max(1);
    let parts = wanted.min(s.kv_len / attention_split::LEAST_KEYS).max(least);
    let takes = small && quads && steps && few && fits(s, parts, lower);
    (takes && !lower.device().prefers_texels).then_some(parts)
}

/// Whether the device binds as many bytes as `parts` parts of the keys give.
fn fits(s: &Scaled, parts: usize, lower: &Lowering<'_>) -> bool {
    let most = lower.device().limits.max_argument_bytes.min(MAX_PARTIAL as u64);
    partial(s, parts).is_some_and(|bytes| bytes as u64 <= most)
}

/// Whether the last work-group of some queries can merge the parts: of a cache that is written, or one of another type.
fn joins(places: &Places, bool_mask: bool, lower: &Lowering<'_>) -> bool {
    let (t, fresh, coded) = (places.dtype, places.fresh.is_some(), places.coded.is_some());
    let paged = places.paged.is_some();
    let kernel = variants::AttentionSplit { t, bool_mask, fresh, paged, coded, joined: true }.id();
    kernel.is_ok_and(|kernel| lower.can_run(kernel)) && lower.device().orders_groups
}

/// Bytes of what `parts` parts of the keys give.
fn partial(s: &Scaled, parts: usize) -> Option<usize> {
    (s.batch * s.q_heads * s.q_len).checked_mul(parts)?.checked_mul((s.v_head + 4) * 4)
}

/// Queries of one of those work-groups.
fn queries(s: &Scaled) -> usize {
    (s.share() * s.q_len).next_power_of_two().min(attention_split::QUERIES_MAX)
}

/// Emits `s` with its keys in parts.
fn lower_parts(
    s: &Scaled,
    places: &Places,
    bool_mask: bool,
    (constants, parts, joined): (&[(u32, u32)], usize, bool),
    lower: &mut Lowering<'_>,
) -> Result<(), OpError> {
    let (t, rows) = (places.dtype, s.batch * s.q_heads * s.q_len);
    let sinks = if let Sink::Heads(sinks) = places.sink { sinks } else { Operand::Unused };
    let partial = lower.scratch(partial(s, parts).unwrap_or(usize::MAX));
    let max_x = lower.device().limits.max_groups[0];
    let bands = (s.share() * s.q_len).div_ceil(queries(s));
    let groups = s.batch * s.kv_heads * bands * parts;
    let cols = (s.v_head / 4).next_power_of_two() as u32;
    let own = [
        (spec::attention_split::COLS, cols),
        (spec::attention_split::QUERIES, queries(s) as u32),
        (spec::attention_split::PARTS, parts as u32),
        (spec::attention_split::KEY_COLS, (s.head / 4) as u32),
    ];
    let args = [places.q, places.k, places.v, places.mask, places.lens, partial, sinks];
    let (fresh, paged) = (places.fresh.is_some(), places.paged.is_some());
    let coded = places.coded.is_some();
    let split = |joined| variants::AttentionSplit { t, bool_mask, fresh, paged, coded, joined }.id();
    let mut spec = [constants, &own].concat();
    let mut args = args.to_vec();
    if let Some(fresh) = &places.fresh {
        args.extend([fresh.k, fresh.v, fresh.tables[0], fresh.tables[1]]);
        spec.extend([
            (spec::attention_split::PACKED, u32::from(fresh.packed)),
            (spec::attention_split::ROTATED, fresh.rotated as u32),
            (spec::attention_split::INTERLEAVED, u32::from(fresh.interleaved)),
            (spec::attention_split::TABLE_ROWS, fresh.rows as u32),
        ]);
    }
    if let Some(paged) = &places.paged {
        spec.extend(paged.constants());
        args.push(paged.table);
    }
    if let Some(coded) = &places.coded {
        spec.extend(coded.constants);
        args.extend(coded.scales);
    }
    if joined {
        args.extend([places.y, lower.counters(groups / parts)]);
    }
    lower.dispatch(split(joined)?, &spec, &args, &params(s, groups), grid_1d(groups as u64, 1, max_x))?;
    if joined {
        return Ok(());
    }
    let merge = variants::AttentionMerge { t }.id()?;
    let own = [(spec::attention_merge::COLS, cols), (spec::attention_merge::PARTS, parts as u32)];
    let spec = [constants, &own].concat();
    lower.dispatch(
        merge,
        &spec,
        &[partial, sinks, places.y],
        &params(s, rows),
        grid_1d(rows as u64, 1, max_x),
    )
}

/// Whether every vector is whole texels, and views of them are long enough.
fn whole_texels(s: &Scaled, lower: &Lowering<'_>) -> bool {
    let steps = [s.q, s.k, s.v, s.y];
    let whole = steps.iter().all(|t| [t.first, t.batch, t.head, t.row].iter().all(|n| n.is_multiple_of(4)));
    let reach = |t: &Steps, heads: usize, rows: usize| {
        let last = |n: usize, step: usize| n.saturating_sub(1) * step;
        t.first + last(s.batch, t.batch) + last(heads, t.head) + last(rows, t.row)
    };
    let elements = reach(&s.q, s.q_heads, s.q_len)
        .max(reach(&s.k, s.kv_heads, s.kv_len))
        .max(reach(&s.v, s.kv_heads, s.kv_len))
        + s.head.max(s.v_head);
    whole && lower.texels(s.head, elements) && lower.texels(s.v_head, elements)
}

/// The bound of a window as kernels take it.
fn side(keys: Option<usize>) -> i32 {
    // Farther than any key, and small enough for sums of positions.
    keys.map_or(-1, |n| n.min(1 << 28) as i32)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scaled(batch: usize, kv_len: usize) -> Scaled {
        let steps = Steps { first: 0, batch: 0, head: 128, row: 1024 };
        Scaled {
            batch,
            q_heads: 32,
            kv_heads: 8,
            q_len: 1,
            kv_len,
            head: 128,
            v_head: 128,
            q: Steps { batch: 4096, ..steps },
            k: steps,
            v: steps,
            y: Steps::rows_first(32, 1, 128),
            mask: None,
            scale: 1.0,
            softcap: 0.0,
            causal: true,
            left: None,
            right: None,
            offset: 0,
            lens_add: 0,
        }
    }

    /// Kernels and bytes of scratch memory of `s` in pages.
    fn lowered(s: &Scaled, most: u64) -> (Vec<&'static str>, usize) {
        let mut device = crate::registry::Registry::with_defaults().find("sim:discrete").unwrap();
        (device.prefers_texels, device.limits.max_argument_bytes) = (false, most);
        let places = Places {
            dtype: DType::F32,
            q: Operand::Input(0),
            k: Operand::Output(1),
            v: Operand::Output(2),
            mask: Operand::Unused,
            mask_type: None,
            lens: Operand::Input(1),
            lens_words: 2,
            y: Operand::Output(0),
            scores: None,
            sink: Sink::None,
            fresh: None,
            paged: Some(Paged { table: Operand::Input(2), page: 16, pages: s.kv_len / 16, blocks: 64 }),
            coded: None,
        };
        let mut lower = Lowering::new(&device);
        lower_scaled(s, &places, &mut lower).unwrap();
        let lowered = lower.finish();
        let name = |step: &crate::ops::Step| match step {
            crate::ops::Step::Dispatch { kernel: crate::ops::StepKernel::Table(id), .. } => id.info().name,
            other => panic!("{other:?}"),
        };
        (lowered.steps.iter().map(name).collect(), lowered.scratch.iter().sum())
    }

    #[test]
    fn what_parts_of_keys_give_is_bounded() {
        let is_split = |(kernels, bytes): (Vec<&str>, usize)| {
            assert!(bytes <= MAX_PARTIAL, "{bytes}");
            let split = kernels[0].starts_with("attention_split");
            assert!(split || kernels[0].starts_with("attention_vector"), "{kernels:?}");
            split
        };
        assert!(is_split(lowered(&scaled(64, 4096), u64::MAX)));
        assert!(!is_split(lowered(&scaled(64, 131_072), u64::MAX)), "553 MB");
        assert!(is_split(lowered(&scaled(1, 131_072), u64::MAX)));
        // What a device binds at most.
        assert!(!is_split(lowered(&scaled(64, 4096), 16 << 20)));
        assert!(is_split(lowered(&scaled(16, 4096), 16 << 20)));
    }
}
