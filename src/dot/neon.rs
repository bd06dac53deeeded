//! Products of bytes with NEON, which every 64-bit Arm has: bytes become 16-bit numbers, which hold a product of a
//! signed and an unsigned one, and neighbouring products are added to sums of 32 bits (`sadalp`). `sdot` takes bytes
//! of one kind only, and few processors have `usdot`.

use std::arch::aarch64::{
    int16x8_t, int32x4_t, uint8x8_t, uint8x16_t, vdup_n_u32, vdupq_n_s32, vget_high_u8, vget_low_u8,
    vmovl_s8, vmovl_u8, vmulq_s16, vpadalq_s16, vpaddq_s32, vreinterpret_s8_u8, vreinterpret_u8_u32,
    vreinterpretq_s16_u16,
};

use super::Dot;

/// Products of 16-bit integers.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Neon;

#[inline(always)]
fn widened<const SIGNED: bool>(bytes: uint8x8_t) -> int16x8_t {
    if SIGNED { vmovl_s8(vreinterpret_s8_u8(bytes)) } else { vreinterpretq_s16_u16(vmovl_u8(bytes)) }
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
        [vdupq_n_s32(0); 4]
    }

    #[inline(always)]
    fn left<const SIGNED: bool>(self, four: [u8; 4]) -> int16x8_t {
        let twice = vreinterpret_u8_u32(vdup_n_u32(u32::from_le_bytes(four)));
        widened::<SIGNED>(twice)
    }

    #[inline(always)]
    fn right<const SIGNED: bool>(self, bytes: &[u8]) -> Self::Right {
        let bytes = bytes.first_chunk::<32>().copied().unwrap_or([0; 32]);
        let [low, high]: [uint8x16_t; 2] = pulp::cast!(bytes);
        [
            widened::<SIGNED>(vget_low_u8(low)),
            widened::<SIGNED>(vget_high_u8(low)),
            widened::<SIGNED>(vget_low_u8(high)),
            widened::<SIGNED>(vget_high_u8(high)),
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
            *sums = vpadalq_s16(*sums, vmulq_s16(left, right));
        }
        sums
    }

    #[inline(always)]
    fn store(self, [a, b, c, d]: Self::Sums, to: &mut [i32]) {
        let sums: [i32; 8] = pulp::cast!([vpaddq_s32(a, b), vpaddq_s32(c, d)]);
        to.iter_mut().zip(sums).for_each(|(to, sum)| *to = sum);
    }
}
