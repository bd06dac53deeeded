//! Products of bytes with AVX2: bytes become 16-bit numbers, and neighbouring products are summed in 32 bits
//! (`vpmaddwd`), which two products of bytes cannot exceed. `vpmaddubsw`, which takes bytes, would saturate, but not
//! with codes of at most four bits.

use std::arch::x86_64::{__m128i, __m256, __m256i};

use super::{Dot, RowDot, filled};

pub(crate) use pulp::x86::V3 as Avx2;

#[inline(always)]
fn half(bytes: Option<&[u8; 16]>) -> __m128i {
    pulp::cast!(bytes.copied().unwrap_or_default())
}

impl Dot for Avx2 {
    const LANES: usize = 8;
    const ROWS: usize = 6;
    const VECTORS: usize = 1;
    /// Two sums of every column, side by side: of columns 0 to 3 and of 4 to 7.
    type ColumnSums = [__m256i; 2];
    type Left = __m256i;
    type Right = [__m256i; 2];

    #[inline(always)]
    fn zero(self) -> Self::ColumnSums {
        [self.avx._mm256_setzero_si256(); 2]
    }

    #[inline(always)]
    fn left<const SIGNED: bool>(self, four: [u8; 4]) -> __m256i {
        let all = self.sse2._mm_set1_epi32(i32::from_le_bytes(four));
        if SIGNED { self.avx2._mm256_cvtepi8_epi16(all) } else { self.avx2._mm256_cvtepu8_epi16(all) }
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
    type Bytes = __m256i;
    type Sums = __m256i;
    type Reals = __m256;

    #[inline(always)]
    fn bytes(self, from: &[u8]) -> __m256i {
        pulp::cast!(filled::<u8, 32>(from))
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
    fn sums(self, from: &[i32]) -> __m256i {
        pulp::cast!(filled::<i32, 8>(from))
    }

    #[inline(always)]
    fn add_products<const BITS: u32>(self, sums: __m256i, unsigned: __m256i, signed: __m256i) -> __m256i {
        let avx2 = self.avx2;
        let products = if BITS < 8 {
            let pairs = avx2._mm256_maddubs_epi16(unsigned, signed);
            avx2._mm256_madd_epi16(pairs, self.avx._mm256_set1_epi16(1))
        } else {
            let [a, b]: [__m128i; 2] = pulp::cast!(unsigned);
            let [c, d]: [__m128i; 2] = pulp::cast!(signed);
            let low = avx2._mm256_madd_epi16(avx2._mm256_cvtepu8_epi16(a), avx2._mm256_cvtepi8_epi16(c));
            let high = avx2._mm256_madd_epi16(avx2._mm256_cvtepu8_epi16(b), avx2._mm256_cvtepi8_epi16(d));
            // Sums 0, 1, 4, 5, 2, 3, 6, 7.
            avx2._mm256_permute4x64_epi64::<0b11_01_10_00>(avx2._mm256_hadd_epi32(low, high))
        };
        avx2._mm256_add_epi32(sums, products)
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
    fn plus(self, a: __m256i, b: __m256i) -> __m256i {
        self.avx2._mm256_add_epi32(a, b)
    }

    #[inline(always)]
    fn fours(self, [a, b, c, d]: [__m256i; 4]) -> __m256i {
        let avx2 = self.avx2;
        avx2._mm256_hadd_epi32(avx2._mm256_hadd_epi32(a, b), avx2._mm256_hadd_epi32(c, d))
    }

    #[inline(always)]
    fn reals(self, from: &[f32]) -> __m256 {
        pulp::cast!(filled::<f32, 8>(from))
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
    fn add_scaled(self, total: __m256, sums: __m256i, a: __m256, b: __m256) -> __m256 {
        let scales = self.avx._mm256_mul_ps(a, b);
        self.fma._mm256_fmadd_ps(self.avx._mm256_cvtepi32_ps(sums), scales, total)
    }

    #[inline(always)]
    fn total(self, reals: __m256) -> f32 {
        let [a, b, c, d, e, f, g, h]: [f32; 8] = pulp::cast!(reals);
        ((a + e) + (c + g)) + ((b + f) + (d + h))
    }
}
