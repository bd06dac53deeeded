//! Products of bytes with AVX2: bytes become 16-bit numbers, and neighbouring products are summed in 32 bits
//! (`vpmaddwd`), which two products of bytes cannot exceed. `vpmaddubsw`, which takes bytes, would saturate.

use std::arch::x86_64::{__m128i, __m256i};

use super::Dot;

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
    type Sums = [__m256i; 2];
    type Left = __m256i;
    type Right = [__m256i; 2];

    #[inline(always)]
    fn zero(self) -> Self::Sums {
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
        [0, 1].map(
            #[inline(always)]
            |i| {
                let bytes = half(halves.and_then(|h| h.get(i)));
                if SIGNED {
                    self.avx2._mm256_cvtepi8_epi16(bytes)
                } else {
                    self.avx2._mm256_cvtepu8_epi16(bytes)
                }
            },
        )
    }

    #[inline(always)]
    fn add<const LEFT_SIGNED: bool>(
        self,
        [low, high]: Self::Sums,
        left: __m256i,
        right: Self::Right,
    ) -> Self::Sums {
        let products =
            [self.avx2._mm256_madd_epi16(left, right[0]), self.avx2._mm256_madd_epi16(left, right[1])];
        [self.avx2._mm256_add_epi32(low, products[0]), self.avx2._mm256_add_epi32(high, products[1])]
    }

    #[inline(always)]
    fn store(self, [low, high]: Self::Sums, to: &mut [i32]) {
        // Sums of columns 0, 1, 4, 5, 2, 3, 6, 7.
        let pairs = self.avx2._mm256_hadd_epi32(low, high);
        let sums: [i32; 8] = pulp::cast!(self.avx2._mm256_permute4x64_epi64::<0b11_01_10_00>(pairs));
        to.iter_mut().zip(sums).for_each(|(to, sum)| *to = sum);
    }
}
