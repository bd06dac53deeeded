//! Caches of keys and values as codes: signed numbers of 8 or 4 bits times a scale, or one for every channel.

use crate::dtype::DType;
use crate::kernel::grid_1d;
use crate::kernel::table::{params, spec, variants};
use crate::ops::real::Real;
use crate::ops::word::word;
use crate::ops::{Lowering, OpError, Operand};

/// The codes of a cache of `[batch, heads, rows, size]`. Codes of 4 bits are two in a byte, the first in its low
/// half, and stand for themselves less 8.
#[derive(Clone, Copy, Debug)]
pub(super) struct CacheCodes {
    pub bits: usize,
    /// Whether every channel of every head has a scale.
    pub channels: bool,
    pub batch: usize,
    pub heads: usize,
    pub rows: usize,
    pub past_rows: usize,
    pub size: usize,
}

impl CacheCodes {
    fn per(&self) -> usize {
        8 / self.bits
    }

    /// Bytes of the codes of the whole cache.
    pub(super) fn bytes(&self) -> usize {
        self.batch * self.heads * self.rows * self.size / self.per()
    }

    /// Number of scales.
    pub(super) fn scales(&self) -> usize {
        if self.channels { self.heads * self.size } else { 1 }
    }

    fn scale<T: Real>(&self, scales: &[T], head: usize, channel: usize) -> T {
        let at = if self.channels { head * self.size + channel } else { 0 };
        scales.get(at).copied().unwrap_or(T::ZERO)
    }

    /// The past elements, then zeros.
    pub(super) fn decode<T: Real>(&self, past: &[u8], scales: &[T]) -> Vec<T> {
        let (per, row) = (self.per(), self.size / self.per());
        let mut cache = vec![T::ZERO; self.batch * self.heads * self.rows * self.size];
        let heads = cache.chunks_mut((self.rows * self.size).max(1));
        for ((n, cache), past) in heads.enumerate().zip(past.chunks((self.past_rows * row).max(1))) {
            for (i, v) in cache.iter_mut().enumerate().take(past.len() * per) {
                let byte = past[i / per];
                let whole = match per {
                    1 => f64::from(byte as i8),
                    _ => f64::from(byte >> (i % per * self.bits) & 15) - 8.0,
                };
                *v = T::from_f64(whole) * self.scale(scales, n % self.heads, i % self.size);
            }
        }
        cache
    }

    /// Writes the codes of `cache`, and replaces its elements by the decoded ones.
    pub(super) fn encode<T: Real>(&self, cache: &mut [T], scales: &[T], codes: &mut [u8]) {
        let per = self.per();
        let half = f64::from(1u32 << (self.bits - 1));
        for (i, (code, values)) in codes.iter_mut().zip(cache.chunks_mut(per)).enumerate() {
            *code = 0;
            for (part, v) in values.iter_mut().enumerate() {
                let at = i * per + part;
                let head = at / (self.rows * self.size) % self.heads;
                let scale = self.scale(scales, head, at % self.size);
                let q = (*v / scale).to_f64();
                let whole = if q.is_nan() { 0.0 } else { q.round_ties_even().clamp(-half, half - 1.0) };
                *v = T::from_f64(whole) * scale;
                *code |= match per {
                    1 => whole as i8 as u8,
                    _ => ((whole + half) as u8) << (part * self.bits),
                };
            }
        }
    }

    /// Emits [`CacheCodes::encode`] of `cache` to `codes`, or [`CacheCodes::decode`] of `past`, where that is given, to
    /// `cache`; `codes` is bound then too, so that what the kernel declares to write is not what others read.
    pub(super) fn lower(
        &self,
        dtype: DType,
        past: Option<Operand>,
        [scales, cache, codes]: [Operand; 3],
        lower: &mut Lowering<'_>,
    ) -> Result<(), OpError> {
        let kernel = variants::CacheCodes { t: dtype }.id()?;
        let n = self.bytes();
        if n == 0 {
            return Ok(());
        }
        let constants = [
            (spec::cache_codes::BITS, self.bits as u32),
            (spec::cache_codes::CHANNELS, u32::from(self.channels)),
            (spec::cache_codes::ENCODE, u32::from(past.is_none())),
        ];
        word(n * self.per())?;
        let params = params::CacheCodes {
            n: word(n)?,
            heads: word(self.heads)?,
            rows: word(self.rows)?,
            bytes: word(self.size / self.per())?,
            past_rows: word(self.past_rows)?,
        };
        let args = [past.filter(|_| self.past_rows > 0).unwrap_or(Operand::Unused), scales, cache, codes];
        let groups = grid_1d(n as u64, 64, lower.device().limits.max_groups[0]);
        lower.dispatch(kernel, &constants, &args, &params, groups)
    }
}
