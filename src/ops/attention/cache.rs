//! Caches of keys and values in other types than those computed in: codes of 8 or 4 bits times scales, and `float16`.

use half::f16;

use super::device::Coded;
use super::rotary::{Positions, Rotation};
use crate::dtype::DType;
use crate::kernel::codes::coded_rows::CODE_BLOCK;
use crate::kernel::grid_1d;
use crate::kernel::table::{params, spec, variants};
use crate::ops::real::Real;
use crate::ops::word::word;
use crate::ops::{Lowering, OpError, Operand};
use crate::simd::widen_half;

/// What a cache of keys or values holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CacheKind {
    /// Numbers of the type of keys and values.
    #[default]
    Same,
    /// `float16`, whatever type keys and values have.
    Half,
    /// Codes of 8 bits (`i8`) or 4 bits (two in a `u8`, the first in its low half, less 8), times scales that are inputs: one
    /// number, or one for each channel.
    Scaled {
        /// 4 or 8.
        bits: usize,
    },
    /// Rows of bytes: such codes of a vector, filled up to whole words, then a `float16` scale for each 32 of them, filled up
    /// to whole words.
    Blocks {
        /// 4 or 8.
        bits: usize,
    },
}

impl CacheKind {
    /// The type of the elements of a cache, where keys and values have type `dtype`.
    pub fn dtype(self, dtype: DType) -> DType {
        match self {
            CacheKind::Same => dtype,
            CacheKind::Half => DType::F16,
            CacheKind::Scaled { bits: 8 } => DType::I8,
            CacheKind::Scaled { .. } | CacheKind::Blocks { .. } => DType::U8,
        }
    }

    /// Elements of a row of a cache of vectors of `size` elements.
    pub fn row(self, size: usize) -> usize {
        match self {
            CacheKind::Same | CacheKind::Half => size,
            CacheKind::Scaled { bits } => size * bits / 8,
            CacheKind::Blocks { bits } => {
                (size * bits).div_ceil(32) * 4 + (size.div_ceil(CODE_BLOCK) * 2).next_multiple_of(4)
            }
        }
    }

    /// Whether its scales are inputs.
    pub(super) fn has_scales(self) -> bool {
        matches!(self, CacheKind::Scaled { .. })
    }
}

/// What codes are multiplied by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CodeScales {
    /// Nothing: they are numbers.
    None,
    /// One number.
    One,
    /// One for each channel of each head.
    Channels,
    /// Those of the blocks of a row, which are in it.
    Blocks,
}

/// The rows of a cache of `[batch, heads, rows, ..]` of vectors of `size` elements.
#[derive(Clone, Copy, Debug)]
pub(super) struct CodedRows {
    /// 4, 8, or 16 for `float16`.
    pub bits: usize,
    pub scales: CodeScales,
    pub batch: usize,
    pub heads: usize,
    pub rows: usize,
    pub size: usize,
    /// Bytes of a row.
    pub row: usize,
}

impl CodedRows {
    /// Bytes of the whole cache.
    pub(super) fn bytes(&self) -> usize {
        self.batch * self.heads * self.rows * self.row
    }

    /// Number of scales that are inputs.
    pub(super) fn scales(&self) -> usize {
        match self.scales {
            CodeScales::One => 1,
            CodeScales::Channels => self.heads * self.size,
            CodeScales::None | CodeScales::Blocks => 0,
        }
    }

    /// The byte that rows begin as: codes of zeros.
    pub(super) fn zero(&self) -> u8 {
        if self.bits == 4 && self.scales != CodeScales::Blocks { 0x88 } else { 0 }
    }

    fn half(&self) -> f64 {
        f64::from(1u32 << (self.bits - 1))
    }

    /// The byte where the scales of blocks begin.
    fn scales_at(&self) -> usize {
        (self.size * self.bits).div_ceil(32) * 4
    }

    /// The numbers of a row of head `head`.
    #[inline(always)]
    pub(super) fn decode<T: Real>(&self, row: &[u8], scales: &[T], head: usize, to: &mut [T]) {
        if self.bits == 8 {
            for (v, byte) in to.iter_mut().zip(row) {
                *v = T::from_f64(f64::from(*byte as i8));
            }
        } else {
            let number = |code: u8| T::from_f64(f64::from(code) - 8.0);
            let (pairs, last) = to.as_chunks_mut::<2>();
            for (pair, byte) in pairs.iter_mut().zip(row) {
                *pair = [number(byte & 15), number(byte >> 4)];
            }
            for (v, byte) in last.iter_mut().zip(row.iter().skip(pairs.len())) {
                *v = number(byte & 15);
            }
        }
        if self.scales == CodeScales::Blocks {
            let all = row.get(self.scales_at()..).unwrap_or(&[]);
            for (to, scale) in to.chunks_mut(CODE_BLOCK).zip(all.as_chunks::<2>().0) {
                let scale = T::from_f64(widen_half(u16::from_le_bytes(*scale)).into());
                for v in to {
                    *v *= scale;
                }
            }
            return;
        }
        for (i, v) in to.iter_mut().enumerate() {
            *v *= self.scale(scales, head, i);
        }
    }

    #[inline(always)]
    fn scale<T: Real>(&self, scales: &[T], head: usize, channel: usize) -> T {
        let at = if self.scales == CodeScales::Channels { head * self.size + channel } else { 0 };
        scales.get(at).copied().unwrap_or(T::ZERO)
    }

    /// Writes the codes of `vector` of head `head`.
    pub(super) fn encode<T: Real>(&self, vector: &[T], scales: &[T], head: usize, row: &mut [u8]) {
        row.fill(0);
        for (block, values) in vector.chunks(CODE_BLOCK).enumerate() {
            let own = (self.scales == CodeScales::Blocks).then(|| self.block_scale(values));
            if let Some(own) = own {
                let at = self.scales_at() + 2 * block;
                if let Some(to) = row.get_mut(at..at + 2) {
                    to.copy_from_slice(&own.to_le_bytes());
                }
            }
            for (n, v) in values.iter().enumerate() {
                let i = block * CODE_BLOCK + n;
                let scale = match own {
                    Some(own) => T::from_f64(own.to_f64()),
                    None => self.scale(scales, head, i),
                };
                let q = (*v / scale).to_f64();
                let half = self.half();
                let whole = if q.is_nan() { 0.0 } else { q.round_ties_even().clamp(-half, half - 1.0) };
                let (byte, code) = match self.bits {
                    8 => (i, whole as i8 as u8),
                    _ => (i / 2, ((whole + half) as u8) << (i % 2 * 4)),
                };
                if let Some(byte) = row.get_mut(byte) {
                    *byte |= code;
                }
            }
        }
    }

    /// The scale with which the largest number of a block gets the largest code.
    fn block_scale<T: Real>(&self, values: &[T]) -> f16 {
        let larger = |most: T, v: &T| if v.abs() > most.abs() { *v } else { most };
        let most = values.iter().fold(T::ZERO, larger);
        // Of 16 codes one more is negative, so the largest number gets that one.
        let scale = if self.bits == 8 { most.abs() / T::from_f64(127.0) } else { most / T::from_f64(-8.0) };
        f16::from_f64(scale.to_f64().clamp(-65504.0, 65504.0))
    }

    /// Words of a row, where rows are whole words, which kernels want.
    pub(super) fn row_words(&self) -> Result<usize, OpError> {
        if self.row.is_multiple_of(4) {
            return Ok(self.row / 4);
        }
        let what = format!("rows of {} bytes of codes: devices take multiples of 4", self.row);
        Err(OpError::unsupported(what))
    }

    /// Emits the numbers of the valid rows of `cache`, of type `dtype`, to `to`: as many of each sequence as `last` tells, else
    /// the first `valid`.
    pub(super) fn lower_decode(
        &self,
        dtype: DType,
        [cache, scales, last, to]: [Operand; 4],
        valid: usize,
        lower: &mut Lowering<'_>,
    ) -> Result<(), OpError> {
        let n = self.batch * self.heads * self.rows * (self.size * self.bits).div_ceil(32);
        word(self.batch * self.heads * self.rows * self.size)?;
        let params = params::CacheDecode {
            n: word(n)?,
            heads: word(self.heads)?,
            rows: word(self.rows)?,
            head: word(self.size)?,
            row_words: word(self.row_words()?)?,
            valid: word(valid)?,
        };
        let kernel = variants::CacheDecode { t: dtype }.id()?;
        let given = (spec::cache_decode::GIVEN, u32::from(last != Operand::Unused));
        let constants = [&constants([self; 2])[..], &[given]].concat();
        lower.dispatch_1d(kernel, &constants, &[cache, scales, last, to], &params, n)
    }
}

/// What kernels that read rows of keys and of values are told.
fn constants([k, v]: [&CodedRows; 2]) -> [(u32, u32); 4] {
    let channels = |rows: &CodedRows| u32::from(rows.scales == CodeScales::Channels);
    [
        (spec::coded_rows::CODE_BITS, k.bits as u32),
        (spec::coded_rows::BLOCK_SCALES, u32::from(k.scales == CodeScales::Blocks)),
        (spec::coded_rows::K_CHANNELS, channels(k)),
        (spec::coded_rows::V_CHANNELS, channels(v)),
    ]
}

/// How kernels of attention read keys and values; `scales` are those of the two.
pub(super) fn coded([k, v]: [&CodedRows; 2], scales: [Operand; 2]) -> Coded {
    Coded { bits: k.bits, constants: constants([k, v]), scales }
}

/// New keys and values on their way to rows of caches of codes.
pub(super) struct Append {
    /// Queries, keys and values as they are given, the first two rotated on the way or not at all. Queries go to vectors
    /// one after another, where they are rotated.
    pub moves: [Rotation; 3],
    /// The caches of keys and of values.
    pub rows: [CodedRows; 2],
}

impl Append {
    /// Emits it. `from` are queries, keys and values; then the tables of angles, the last row of each sequence, and the scales of
    /// keys and of values; `to` are rotated queries and the caches.
    pub(super) fn lower(
        &self,
        dtype: DType,
        (from, tables, last, scales): ([Operand; 3], [Operand; 2], Operand, [Operand; 2]),
        to: [Operand; 3],
        lower: &mut Lowering<'_>,
    ) -> Result<(), OpError> {
        /// Invocations of a work-group.
        const THREADS: usize = 128;
        let ([q, k, v], [rows, _]) = (&self.moves, &self.rows);
        let queries = if q.rotated > 0 { q.heads } else { 0 };
        let per = 32 / rows.bits;
        let lanes = rows.size.next_multiple_of(2 * CODE_BLOCK) / per;
        let vectors = k.batch * k.len * (queries + 2 * k.heads);
        let groups = (vectors * lanes).div_ceil(THREADS);
        let own = [
            (spec::cache_append::INTERLEAVED, u32::from(k.interleaved)),
            (spec::cache_append::FROM_ZERO, u32::from(k.positions == Positions::Place)),
        ];
        let constants = [&constants([rows, &self.rows[1]])[..], &own].concat();
        word(vectors * lanes)?;
        let params = params::CacheAppend {
            groups: word(groups)?,
            batch: word(k.batch)?,
            queries: word(queries)?,
            kv_heads: word(k.heads)?,
            len: word(k.len)?,
            head: word(rows.size)?,
            lanes: word(lanes)?,
            rotated: word(k.rotated)?,
            table_rows: word(k.rows)?,
            q_first: word(q.x.first)?,
            q_batch: word(q.x.batch)?,
            q_head: word(q.x.head)?,
            q_row: word(q.x.row)?,
            k_first: word(k.x.first)?,
            k_batch: word(k.x.batch)?,
            k_head: word(k.x.head)?,
            k_row: word(k.x.row)?,
            v_first: word(v.x.first)?,
            v_batch: word(v.x.batch)?,
            v_head: word(v.x.head)?,
            v_row: word(v.x.row)?,
            rows: word(rows.rows)?,
            row_words: word(rows.row_words()?)?,
        };
        let args = [
            from[0], from[1], from[2], tables[0], tables[1], last, scales[0], scales[1], to[1], to[2], to[0],
        ];
        let grid = grid_1d(groups as u64, 1, lower.device().limits.max_groups[0]);
        let kernel = variants::CacheAppend { t: dtype }.id()?;
        if vectors == 0 { Ok(()) } else { lower.dispatch(kernel, &constants, &args, &params, grid) }
    }
}
