//! Products of bytes with AVX2: bytes become 16-bit numbers, and neighbouring products are summed in 32 bits
//! (`vpmaddwd`), which two products of bytes cannot exceed. `vpmaddubsw`, which takes bytes, would saturate, but not
//! with codes of few bits, nor with two signed bytes of which one is above -128.

#![allow(unsafe_code, reason = "the one instruction that pulp has no function for")]

use std::arch::x86_64::{__m128i, __m256, __m256i, _MM_HINT_T0, _MM_HINT_T1, _mm256_cvtph_ps};

use pulp::core_arch::x86::Sse;

use super::{Dot, RowDot, filled, last_words, numbers};

pulp::simd_type! {
    /// Shows that the CPU has these instructions.
    pub(crate) struct Avx2 {
        pub(crate) sse: "sse",
        pub(crate) sse2: "sse2",
        pub(crate) avx: "avx",
        pub(crate) avx2: "avx2",
        pub(crate) fma: "fma",
        pub(crate) f16c: "f16c",
    }
}

#[inline(always)]
fn half(bytes: Option<&[u8; 16]>) -> __m128i {
    pulp::cast!(bytes.copied().unwrap_or_default())
}

impl Avx2 {
    #[inline(always)]
    fn widen(self, bits: [u16; 8]) -> __m256 {
        // SAFETY: an `Avx2` is made by `try_new` alone, which finds `avx` and `f16c`; there is no memory access.
        unsafe { _mm256_cvtph_ps(pulp::cast!(bits)) }
    }
}

/// Bytes of a line of the caches.
const LINE: usize = 64;

/// Asks for the lines that are `after` bytes after each of `bytes`.
#[inline(always)]
pub(super) fn fetch(sse: Sse, bytes: &[u8], after: usize) {
    for line in bytes.chunks(LINE) {
        sse._mm_prefetch::<{ _MM_HINT_T0 }>(line.as_ptr().wrapping_add(after).cast());
    }
}

/// Asks for the lines of `bytes` in the second cache.
#[inline(always)]
pub(super) fn fetch_second(sse: Sse, bytes: &[u8]) {
    for line in bytes.chunks(LINE) {
        sse._mm_prefetch::<{ _MM_HINT_T1 }>(line.as_ptr().cast());
    }
}

/// Sums of two neighbouring products each, in 16 bits.
trait Pairs {
    fn pairs<const BITS: u32>(self, unsigned: __m256i, signed: __m256i) -> __m256i;
}

impl Pairs for Avx2 {
    #[inline(always)]
    fn pairs<const BITS: u32>(self, unsigned: __m256i, signed: __m256i) -> __m256i {
        let avx2 = self.avx2;
        if BITS < 8 {
            return avx2._mm256_maddubs_epi16(unsigned, signed);
        }
        // Signed numbers: the sign goes to the other operand, which is above -128.
        let number = self.flip(unsigned);
        avx2._mm256_maddubs_epi16(avx2._mm256_abs_epi8(number), avx2._mm256_sign_epi8(signed, number))
    }
}

impl Dot for Avx2 {
    const LANES: usize = 8;
    const ROWS: usize = 6;
    const VECTORS: usize = 1;
    /// Two sums of every column, side by side: of columns 0 to 3 and of 4 to 7.
    type ColumnSums = [__m256i; 2];
    type Four = [i16; 4];
    type Left = __m256i;
    type Right = [__m256i; 2];

    #[inline(always)]
    fn zero(self) -> Self::ColumnSums {
        [self.avx._mm256_setzero_si256(); 2]
    }

    #[inline(always)]
    fn kept<const SIGNED: bool>(bytes: [u8; 4]) -> [i16; 4] {
        numbers::<SIGNED>(bytes)
    }

    #[inline(always)]
    fn left(self, four: [i16; 4]) -> __m256i {
        self.avx._mm256_set1_epi64x(pulp::cast!(four))
    }

    #[inline(always)]
    fn right<const SIGNED: bool>(self, bytes: &[u8]) -> Self::Right {
        let halves = bytes.first_chunk::<32>().map(|bytes| bytes.as_chunks::<16>().0);
        let (low, high) = (half(halves.and_then(|h| h.first())), half(halves.and_then(|h| h.get(1))));
        if SIGNED {
            [self.avx2._mm256_cvtepi8_epi16(low), self.avx2._mm256_cvtepi8_epi16(high)]
        } else {
            [self.avx2._mm256_cvtepu8_epi16(low), self.avx2._mm256_cvtepu8_epi16(high)]
        }
    }

    #[inline(always)]
    fn add<const LEFT_SIGNED: bool>(
        self,
        [low, high]: Self::ColumnSums,
        left: __m256i,
        right: Self::Right,
    ) -> Self::ColumnSums {
        let products =
            [self.avx2._mm256_madd_epi16(left, right[0]), self.avx2._mm256_madd_epi16(left, right[1])];
        [self.avx2._mm256_add_epi32(low, products[0]), self.avx2._mm256_add_epi32(high, products[1])]
    }

    #[inline(always)]
    fn store(self, [low, high]: Self::ColumnSums, to: &mut [i32]) {
        // Sums of columns 0, 1, 4, 5, 2, 3, 6, 7.
        let pairs = self.avx2._mm256_hadd_epi32(low, high);
        let sums: [i32; 8] = pulp::cast!(self.avx2._mm256_permute4x64_epi64::<0b11_01_10_00>(pairs));
        to.iter_mut().zip(sums).for_each(|(to, sum)| *to = sum);
    }
}

impl RowDot for Avx2 {
    const SUMS: usize = 8;
    const HIGHEST: usize = 4;
    const BYTE_MIDDLE: u8 = 128;
    const STREAMS: usize = 1;
    type Bytes = __m256i;
    type Sums = __m256i;
    type Reals = __m256;

    #[inline(always)]
    fn prefetch(self, bytes: &[u8], after: usize) {
        fetch(self.sse, bytes, after);
    }

    #[inline(always)]
    fn bytes(self, from: &[u8]) -> __m256i {
        pulp::cast!(filled::<u8, 32>(from))
    }

    #[inline(always)]
    fn store_bytes(self, bytes: __m256i, to: &mut [u8]) {
        if let Some(to) = to.first_chunk_mut::<32>() {
            *to = pulp::cast!(bytes);
        }
    }

    #[inline(always)]
    fn codes<const BITS: u32>(self, bytes: __m256i, i: u32) -> __m256i {
        if BITS >= 8 {
            return bytes;
        }
        let shifted = self.avx2._mm256_srl_epi16(bytes, self.sse2._mm_cvtsi32_si128((i * BITS) as i32));
        self.avx2._mm256_and_si256(shifted, self.avx._mm256_set1_epi8((0xff_u8 >> (8 - BITS)) as i8))
    }

    #[inline(always)]
    fn split_halves(self, from: &[u8], stride: usize, v: usize) -> __m256i {
        let block = |i: usize| filled::<u8, 16>(from.get((v / 2 * 2 + i) * stride..).unwrap_or_default());
        self.codes::<4>(pulp::cast!([block(0), block(1)]), v as u32 % 2)
    }

    #[inline(always)]
    fn ones(self, bits: u64) -> __m256i {
        // Each byte of the bits in eight bytes, of which each keeps its bit.
        let bytes = self.avx2._mm256_shuffle_epi8(
            self.avx._mm256_set1_epi32(bits as i32),
            pulp::cast!([0u64, 0x0101_0101_0101_0101, 0x0202_0202_0202_0202, 0x0303_0303_0303_0303]),
        );
        let each: __m256i = pulp::cast!([0x8040_2010_0804_0201u64; 4]);
        let set = self.avx2._mm256_cmpeq_epi8(self.avx2._mm256_and_si256(bytes, each), each);
        self.avx2._mm256_and_si256(set, self.avx._mm256_set1_epi8(1))
    }

    #[inline(always)]
    fn halves(self, bits: [u16; 8]) -> [f32; 8] {
        pulp::cast!(self.widen(bits))
    }

    #[inline(always)]
    fn join(self, low: __m256i, high: __m256i) -> __m256i {
        self.avx2._mm256_or_si256(low, self.avx2._mm256_slli_epi16::<4>(high))
    }

    #[inline(always)]
    fn join_two(self, low: __m256i, high: __m256i) -> __m256i {
        self.avx2._mm256_or_si256(low, self.avx2._mm256_slli_epi16::<2>(high))
    }

    #[inline(always)]
    fn look_up(self, codes: __m256i, table: [u8; 16]) -> __m256i {
        self.avx2._mm256_shuffle_epi8(pulp::cast!([table; 2]), codes)
    }

    #[inline(always)]
    fn flip(self, bytes: __m256i) -> __m256i {
        self.avx2._mm256_xor_si256(bytes, self.avx._mm256_set1_epi8(i8::MIN))
    }

    #[inline(always)]
    fn sums(self, from: &[i32]) -> __m256i {
        pulp::cast!(filled::<i32, 8>(from))
    }

    #[inline(always)]
    fn add_products<const BITS: u32>(self, sums: __m256i, unsigned: __m256i, signed: __m256i) -> __m256i {
        let avx2 = self.avx2;
        let pairs = self.pairs::<BITS>(unsigned, signed);
        let products = avx2._mm256_madd_epi16(pairs, self.avx._mm256_set1_epi16(1));
        avx2._mm256_add_epi32(sums, products)
    }

    #[inline(always)]
    fn add_two<const BITS: u32>(
        self,
        sums: __m256i,
        [a, b]: [__m256i; 2],
        [left, right]: [__m256i; 2],
    ) -> __m256i {
        // Four products of codes of at most 6 bits fit 16 bits together.
        let pairs = self.avx2._mm256_add_epi16(self.pairs::<BITS>(a, left), self.pairs::<BITS>(b, right));
        let products = self.avx2._mm256_madd_epi16(pairs, self.avx._mm256_set1_epi16(1));
        self.avx2._mm256_add_epi32(sums, products)
    }

    #[inline(always)]
    fn add_codes<const BITS: u32>(self, sums: __m256i, bytes: __m256i, signed: &[u8]) -> __m256i {
        if BITS >= 8 {
            return self.add_products::<BITS>(sums, bytes, self.bytes(signed));
        }
        // Products of all codes in a byte, and of its neighbour, fit 16 bits together.
        let mut pairs = self.avx2._mm256_maddubs_epi16(self.codes::<BITS>(bytes, 0), self.bytes(signed));
        unrolled!((8 / BITS).saturating_sub(1), |i| {
            let signed = self.bytes(signed.get(32 * (i + 1)..).unwrap_or_default());
            let codes = self.codes::<BITS>(bytes, i as u32 + 1);
            pairs = self.avx2._mm256_add_epi16(pairs, self.avx2._mm256_maddubs_epi16(codes, signed));
        });
        let products = self.avx2._mm256_madd_epi16(pairs, self.avx._mm256_set1_epi16(1));
        self.avx2._mm256_add_epi32(sums, products)
    }

    #[inline(always)]
    fn four(self, bytes: [u8; 4]) -> __m256i {
        self.avx._mm256_set1_epi32(i32::from_le_bytes(bytes))
    }

    #[inline(always)]
    fn every_sum(self, sum: i32) -> __m256i {
        self.avx._mm256_set1_epi32(sum)
    }

    #[inline(always)]
    fn add_fours<const BITS: u32, const FOURS: usize, const R: usize>(
        self,
        sums: &mut [__m256i; R],
        values: &[[[u8; 4]; R]; FOURS],
        codes: &[u8],
    ) {
        // So many pairs fit 16 bits together.
        let steps = const { if BITS >= 8 { 1 } else { (1 << 15) / (2 * 127 * ((1 << BITS) - 1)) } };
        let ones = self.avx._mm256_set1_epi16(1);
        for first in (0..FOURS).step_by(steps) {
            let mut pairs = [ones; R];
            for i in first..FOURS.min(first + steps) {
                let codes = self.bytes(&codes[32 * i..]);
                for r in 0..R {
                    let of_row = self.pairs::<BITS>(codes, self.four(values[i][r]));
                    pairs[r] = if i == first { of_row } else { self.avx2._mm256_add_epi16(pairs[r], of_row) };
                }
            }
            for r in 0..R {
                let products = self.avx2._mm256_madd_epi16(pairs[r], ones);
                sums[r] = self.avx2._mm256_add_epi32(sums[r], products);
            }
        }
    }

    #[inline(always)]
    fn words(self, from: &[u8], stride: usize) -> [__m256i; 4] {
        let avx2 = self.avx2;
        if from.len() < stride.saturating_mul(7) + 16 {
            return last_words(8, from, stride).map(|words| self.bytes(&words));
        }
        let column = |c: usize| -> [u8; 16] {
            from.get(c * stride..).and_then(|from| from.first_chunk()).copied().unwrap_or_default()
        };
        let every_fourth = |c: usize| -> __m256i { pulp::cast!([column(c), column(c + 4)]) };
        let [a, b, c, d] = [every_fourth(0), every_fourth(1), every_fourth(2), every_fourth(3)];
        let low = [avx2._mm256_unpacklo_epi32(a, b), avx2._mm256_unpacklo_epi32(c, d)];
        let high = [avx2._mm256_unpackhi_epi32(a, b), avx2._mm256_unpackhi_epi32(c, d)];
        [
            avx2._mm256_unpacklo_epi64(low[0], low[1]),
            avx2._mm256_unpackhi_epi64(low[0], low[1]),
            avx2._mm256_unpacklo_epi64(high[0], high[1]),
            avx2._mm256_unpackhi_epi64(high[0], high[1]),
        ]
    }

    #[inline(always)]
    fn plus(self, a: __m256i, b: __m256i) -> __m256i {
        self.avx2._mm256_add_epi32(a, b)
    }

    #[inline(always)]
    fn fours(self, [a, b, c, d]: [__m256i; 4]) -> __m256i {
        let avx2 = self.avx2;
        avx2._mm256_hadd_epi32(avx2._mm256_hadd_epi32(a, b), avx2._mm256_hadd_epi32(c, d))
    }

    #[inline(always)]
    fn small_fours(self, [a, b, c, d]: [__m256i; 4]) -> __m256i {
        // Sums of two fit 16 bits as well: a pack and a product with ones take fewer steps than `vphaddd`.
        let ones = self.avx._mm256_set1_epi16(1);
        let pairs = |a, b| self.avx2._mm256_madd_epi16(self.avx2._mm256_packs_epi32(a, b), ones);
        pairs(pairs(a, b), pairs(c, d))
    }

    #[inline(always)]
    fn reals(self, from: &[f32]) -> __m256 {
        pulp::cast!(filled::<f32, 8>(from))
    }

    #[inline(always)]
    fn every(self, real: f32) -> __m256 {
        self.avx._mm256_set1_ps(real)
    }

    #[inline(always)]
    fn spread(self, from: &[f32], shift: u32) -> __m256 {
        let places: __m256i = pulp::cast!([0u32, 1, 2, 3, 4, 5, 6, 7]);
        let places = self.avx2._mm256_srl_epi32(places, self.sse2._mm_cvtsi32_si128(shift as i32));
        self.pick(from, places)
    }

    #[inline(always)]
    fn pick(self, from: &[f32], places: __m256i) -> __m256 {
        self.avx2._mm256_permutevar8x32_ps(self.reals(from), places)
    }

    #[inline(always)]
    fn pick_halves(self, from: &[u16], places: __m256i) -> __m256 {
        self.avx2._mm256_permutevar8x32_ps(self.widen(filled(from)), places)
    }

    #[inline(always)]
    fn add_scaled(self, total: __m256, sums: __m256i, a: __m256, b: __m256) -> __m256 {
        let scales = self.avx._mm256_mul_ps(a, b);
        self.fma._mm256_fmadd_ps(self.avx._mm256_cvtepi32_ps(sums), scales, total)
    }

    #[inline(always)]
    fn add_product(self, total: __m256, a: __m256, b: __m256) -> __m256 {
        self.fma._mm256_fmadd_ps(a, b, total)
    }

    #[inline(always)]
    fn store_reals(self, reals: __m256, to: &mut [f32]) {
        let reals: [f32; 8] = pulp::cast!(reals);
        match to.first_chunk_mut::<8>() {
            Some(to) => *to = reals,
            None => to.iter_mut().zip(reals).for_each(|(to, real)| *to = real),
        }
    }

    #[inline(always)]
    fn total(self, reals: __m256) -> f32 {
        let [a, b, c, d, e, f, g, h]: [f32; 8] = pulp::cast!(reals);
        ((a + e) + (c + g)) + ((b + f) + (d + h))
    }
}
