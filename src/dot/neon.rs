//! Products of bytes with NEON, which every 64-bit Arm has: bytes become 16-bit numbers, which hold a product of a
//! signed and an unsigned one, and neighbouring products are added to sums of 32 bits (`sadalp`). `sdot` takes bytes
//! of one kind only, and few processors have `usdot`.

use std::arch::aarch64::{int16x8_t, int32x4_t, uint8x8_t, uint8x16_t};

use super::Dot;

pub(crate) use pulp::aarch64::Neon;

#[inline(always)]
fn widened<const SIGNED: bool>(simd: Neon, bytes: uint8x8_t) -> int16x8_t {
    let neon = simd.neon;
    if SIGNED {
        neon.vmovl_s8(neon.vreinterpret_s8_u8(bytes))
    } else {
        neon.vreinterpretq_s16_u16(neon.vmovl_u8(bytes))
    }
}

impl Dot for Neon {
    const LANES: usize = 8;
    const ROWS: usize = 4;
    const VECTORS: usize = 1;
    /// Two sums of every column, side by side; two columns in each.
    type Sums = [int32x4_t; 4];
    /// The four numbers twice.
    type Left = int16x8_t;
    /// Two columns in each.
    type Right = [int16x8_t; 4];

    #[inline(always)]
    fn zero(self) -> Self::Sums {
        [self.neon.vdupq_n_s32(0); 4]
    }

    #[inline(always)]
    fn left<const SIGNED: bool>(self, four: [u8; 4]) -> int16x8_t {
        let twice = self.neon.vreinterpret_u8_u32(self.neon.vdup_n_u32(u32::from_le_bytes(four)));
        widened::<SIGNED>(self, twice)
    }

    #[inline(always)]
    fn right<const SIGNED: bool>(self, bytes: &[u8]) -> Self::Right {
        let bytes = bytes.first_chunk::<32>().copied().unwrap_or([0; 32]);
        let [low, high]: [uint8x16_t; 2] = pulp::cast!(bytes);
        [
            widened::<SIGNED>(self, self.neon.vget_low_u8(low)),
            widened::<SIGNED>(self, self.neon.vget_high_u8(low)),
            widened::<SIGNED>(self, self.neon.vget_low_u8(high)),
            widened::<SIGNED>(self, self.neon.vget_high_u8(high)),
        ]
    }

    #[inline(always)]
    fn add<const LEFT_SIGNED: bool>(
        self,
        mut sums: Self::Sums,
        left: int16x8_t,
        right: Self::Right,
    ) -> Self::Sums {
        for (sums, right) in sums.iter_mut().zip(right) {
            *sums = self.neon.vpadalq_s16(*sums, self.neon.vmulq_s16(left, right));
        }
        sums
    }

    #[inline(always)]
    fn store(self, [a, b, c, d]: Self::Sums, to: &mut [i32]) {
        let sums: [i32; 8] = pulp::cast!([self.neon.vpaddq_s32(a, b), self.neon.vpaddq_s32(c, d)]);
        to.iter_mut().zip(sums).for_each(|(to, sum)| *to = sum);
    }
}
