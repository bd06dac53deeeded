//! Products of bytes with AVX512's VNNI: `vpdpbusd` adds four products of unsigned and signed bytes to every 32-bit
//! sum, which wraps around (Intel 64 and IA-32 Architectures Software Developer's Manual, volume 2, VPDPBUSD; the
//! variant that saturates is VPDPBUSDS).

#![allow(unsafe_code, reason = "the one instruction that pulp has no function for")]

use std::arch::x86_64::{__m128i, __m512, __m512i, _mm512_dpbusd_epi32};

use super::avx2::fetch;
use super::{Dot, RowDot, filled, last_words, piece};

pulp::simd_type! {
    /// Shows that the CPU has these instructions.
    pub(crate) struct Vnni {
        pub(crate) sse: "sse",
        pub(crate) avx2: "avx2",
        pub(crate) fma: "fma",
        pub(crate) avx512f: "avx512f",
        pub(crate) avx512bw: "avx512bw",
        pub(crate) avx512cd: "avx512cd",
        pub(crate) avx512dq: "avx512dq",
        pub(crate) avx512vl: "avx512vl",
        pub(crate) avx512vnni: "avx512vnni",
    }
}

impl Vnni {
    /// The sums and the products of unsigned and signed bytes.
    #[inline(always)]
    fn products(self, sums: __m512i, unsigned: __m512i, signed: __m512i) -> __m512i {
        // SAFETY: a `Vnni` is made by `try_new` alone, which finds `avx512f` and `avx512vnni`; there is no memory access.
        unsafe { _mm512_dpbusd_epi32(sums, unsigned, signed) }
    }
}

impl Dot for Vnni {
    const LANES: usize = 16;
    const ROWS: usize = 8;
    const VECTORS: usize = 3;
    type ColumnSums = __m512i;
    type Four = [u8; 4];
    type Left = __m512i;
    type Right = __m512i;

    #[inline(always)]
    fn zero(self) -> __m512i {
        self.avx512f._mm512_setzero_si512()
    }

    #[inline(always)]
    fn kept<const SIGNED: bool>(bytes: [u8; 4]) -> [u8; 4] {
        bytes
    }

    #[inline(always)]
    fn left(self, four: [u8; 4]) -> __m512i {
        self.avx512f._mm512_set1_epi32(i32::from_le_bytes(four))
    }

    #[inline(always)]
    fn right<const SIGNED: bool>(self, bytes: &[u8]) -> __m512i {
        bytes.first_chunk::<64>().map_or_else(|| self.zero(), |bytes| pulp::cast!(*bytes))
    }

    #[inline(always)]
    fn add<const LEFT_SIGNED: bool>(self, sums: __m512i, left: __m512i, right: __m512i) -> __m512i {
        if LEFT_SIGNED { self.products(sums, right, left) } else { self.products(sums, left, right) }
    }

    #[inline(always)]
    fn store(self, sums: __m512i, to: &mut [i32]) {
        let sums: [i32; 16] = pulp::cast!(sums);
        to.iter_mut().zip(sums).for_each(|(to, sum)| *to = sum);
    }
}

impl RowDot for Vnni {
    const SUMS: usize = 16;
    const HIGHEST: usize = 8;
    type Bytes = __m512i;
    type Sums = __m512i;
    type Reals = __m512;

    #[inline(always)]
    fn prefetch(self, bytes: &[u8], after: usize) {
        fetch(self.sse, bytes, after);
    }

    #[inline(always)]
    fn bytes(self, from: &[u8]) -> __m512i {
        pulp::cast!(filled::<u8, 64>(from))
    }

    #[inline(always)]
    fn store_bytes(self, bytes: __m512i, to: &mut [u8]) {
        if let Some(to) = to.first_chunk_mut::<64>() {
            *to = pulp::cast!(bytes);
        }
    }

    #[inline(always)]
    fn codes<const BITS: u32>(self, bytes: __m512i, i: u32) -> __m512i {
        if BITS >= 8 {
            return bytes;
        }
        let count: __m128i = pulp::cast!([u64::from(i * BITS), 0]);
        let shifted = self.avx512bw._mm512_srl_epi16(bytes, count);
        self.avx512f._mm512_and_si512(shifted, self.avx512f._mm512_set1_epi8((0xff_u8 >> (8 - BITS)) as i8))
    }

    #[inline(always)]
    fn split<const BITS: u32, const SPAN: usize>(self, from: &[u8], stride: usize, v: usize) -> __m512i {
        let (a, low) = piece::<BITS, SPAN>(from, stride, 64 * v);
        if SPAN >= 64 {
            return self.codes::<BITS>(self.bytes(low), a);
        }
        let (b, high) = piece::<BITS, SPAN>(from, stride, 64 * v + 32);
        let bytes: __m512i = pulp::cast!([filled::<u8, 32>(low), filled::<u8, 32>(high)]);
        let counts = [[a * BITS; 8], [b * BITS; 8]];
        // What is shifted in from other bytes is masked.
        self.codes::<BITS>(self.avx512f._mm512_srlv_epi32(bytes, pulp::cast!(counts)), 0)
    }

    #[inline(always)]
    fn split_halves(self, from: &[u8], stride: usize, v: usize) -> __m512i {
        let block = |i: usize| filled::<u8, 16>(from.get((v / 2 * 4 + i) * stride..).unwrap_or_default());
        self.codes::<4>(pulp::cast!([block(0), block(1), block(2), block(3)]), v as u32 % 2)
    }

    #[inline(always)]
    fn ones(self, bits: u64) -> __m512i {
        self.avx512bw._mm512_maskz_set1_epi8(bits, 1)
    }

    #[inline(always)]
    fn halves(self, bits: [u16; 8]) -> [f32; 8] {
        let numbers: [[f32; 8]; 2] = pulp::cast!(self.avx512f._mm512_cvtph_ps(pulp::cast!([bits, [0; 8]])));
        numbers[0]
    }

    #[inline(always)]
    fn join(self, low: __m512i, high: __m512i) -> __m512i {
        self.avx512f._mm512_or_si512(low, self.avx512bw._mm512_slli_epi16::<4>(high))
    }

    #[inline(always)]
    fn join_two(self, low: __m512i, high: __m512i) -> __m512i {
        self.avx512f._mm512_or_si512(low, self.avx512bw._mm512_slli_epi16::<2>(high))
    }

    #[inline(always)]
    fn look_up(self, codes: __m512i, table: [u8; 16]) -> __m512i {
        self.avx512bw._mm512_shuffle_epi8(pulp::cast!([table; 4]), codes)
    }

    #[inline(always)]
    fn flip(self, bytes: __m512i) -> __m512i {
        self.avx512f._mm512_xor_si512(bytes, self.avx512f._mm512_set1_epi8(i8::MIN))
    }

    #[inline(always)]
    fn sums(self, from: &[i32]) -> __m512i {
        pulp::cast!(filled::<i32, 16>(from))
    }

    #[inline(always)]
    fn add_products<const BITS: u32>(self, sums: __m512i, unsigned: __m512i, signed: __m512i) -> __m512i {
        self.products(sums, unsigned, signed)
    }

    #[inline(always)]
    fn four(self, bytes: [u8; 4]) -> __m512i {
        self.avx512f._mm512_set1_epi32(i32::from_le_bytes(bytes))
    }

    #[inline(always)]
    fn every_sum(self, sum: i32) -> __m512i {
        self.avx512f._mm512_set1_epi32(sum)
    }

    #[inline(always)]
    fn words(self, from: &[u8], stride: usize) -> [__m512i; 4] {
        let f = self.avx512f;
        if from.len() < stride.saturating_mul(15) + 16 {
            return last_words(16, from, stride).map(|words| self.bytes(&words));
        }
        let column = |c: usize| -> [u8; 16] {
            from.get(c * stride..).and_then(|from| from.first_chunk()).copied().unwrap_or_default()
        };
        let every_fourth =
            |c: usize| -> __m512i { pulp::cast!([column(c), column(c + 4), column(c + 8), column(c + 12)]) };
        let [a, b, c, d] = [every_fourth(0), every_fourth(1), every_fourth(2), every_fourth(3)];
        let low = [f._mm512_unpacklo_epi32(a, b), f._mm512_unpacklo_epi32(c, d)];
        let high = [f._mm512_unpackhi_epi32(a, b), f._mm512_unpackhi_epi32(c, d)];
        [
            f._mm512_unpacklo_epi64(low[0], low[1]),
            f._mm512_unpackhi_epi64(low[0], low[1]),
            f._mm512_unpacklo_epi64(high[0], high[1]),
            f._mm512_unpackhi_epi64(high[0], high[1]),
        ]
    }

    #[inline(always)]
    fn plus(self, a: __m512i, b: __m512i) -> __m512i {
        self.avx512f._mm512_add_epi32(a, b)
    }

    #[inline(always)]
    fn fours(self, [a, b, c, d]: [__m512i; 4]) -> __m512i {
        let f = self.avx512f;
        let pairs = |a, b| self.plus(f._mm512_unpacklo_epi32(a, b), f._mm512_unpackhi_epi32(a, b));
        let (ab, cd) = (pairs(a, b), pairs(c, d));
        self.plus(f._mm512_unpacklo_epi64(ab, cd), f._mm512_unpackhi_epi64(ab, cd))
    }

    #[inline(always)]
    fn reals(self, from: &[f32]) -> __m512 {
        pulp::cast!(filled::<f32, 16>(from))
    }

    #[inline(always)]
    fn every(self, real: f32) -> __m512 {
        self.avx512f._mm512_set1_ps(real)
    }

    #[inline(always)]
    fn spread(self, from: &[f32], shift: u32) -> __m512 {
        let places: __m512i = pulp::cast!([0u32, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15]);
        let places = self.avx512f._mm512_srl_epi32(places, pulp::cast!([u64::from(shift), 0]));
        self.pick(from, places)
    }

    #[inline(always)]
    fn pick(self, from: &[f32], places: __m512i) -> __m512 {
        self.avx512f._mm512_permutexvar_ps(places, self.reals(from))
    }

    #[inline(always)]
    fn pick_halves(self, from: &[u16], places: __m512i) -> __m512 {
        let wide = self.avx512f._mm512_cvtph_ps(pulp::cast!(filled::<u16, 16>(from)));
        self.avx512f._mm512_permutexvar_ps(places, wide)
    }

    #[inline(always)]
    fn add_scaled(self, total: __m512, sums: __m512i, a: __m512, b: __m512) -> __m512 {
        let scales = self.avx512f._mm512_mul_ps(a, b);
        self.avx512f._mm512_fmadd_ps(self.avx512f._mm512_cvtepi32_ps(sums), scales, total)
    }

    #[inline(always)]
    fn add_product(self, total: __m512, a: __m512, b: __m512) -> __m512 {
        self.avx512f._mm512_fmadd_ps(a, b, total)
    }

    #[inline(always)]
    fn store_reals(self, reals: __m512, to: &mut [f32]) {
        let reals: [f32; 16] = pulp::cast!(reals);
        match to.first_chunk_mut::<16>() {
            Some(to) => *to = reals,
            None => to.iter_mut().zip(reals).for_each(|(to, real)| *to = real),
        }
    }

    #[inline(always)]
    fn total(self, reals: __m512) -> f32 {
        self.avx512f._mm512_reduce_add_ps(reals)
    }
}
