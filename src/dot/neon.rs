//! Products of bytes with NEON, which every 64-bit Arm has: bytes become 16-bit numbers, which hold a product of a
//! signed and an unsigned one, and neighbouring products are added to sums of 32 bits (`sadalp`). `sdot` takes bytes
//! of one kind only, and few processors have `usdot`.

use std::arch::aarch64::{float32x4_t, int16x8_t, int32x4_t, uint8x8_t, uint8x16_t};

use super::{Dot, RowDot, filled, numbers};

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
    type ColumnSums = [int32x4_t; 4];
    type Four = [i16; 4];
    /// The four numbers twice.
    type Left = int16x8_t;
    /// Two columns in each.
    type Right = [int16x8_t; 4];

    #[inline(always)]
    fn zero(self) -> Self::ColumnSums {
        [self.neon.vdupq_n_s32(0); 4]
    }

    #[inline(always)]
    fn kept<const SIGNED: bool>(bytes: [u8; 4]) -> [i16; 4] {
        numbers::<SIGNED>(bytes)
    }

    #[inline(always)]
    fn left(self, four: [i16; 4]) -> int16x8_t {
        pulp::cast!([four, four])
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
        mut sums: Self::ColumnSums,
        left: int16x8_t,
        right: Self::Right,
    ) -> Self::ColumnSums {
        for (sums, right) in sums.iter_mut().zip(right) {
            *sums = self.neon.vpadalq_s16(*sums, self.neon.vmulq_s16(left, right));
        }
        sums
    }

    #[inline(always)]
    fn store(self, [a, b, c, d]: Self::ColumnSums, to: &mut [i32]) {
        let sums: [i32; 8] = pulp::cast!([self.neon.vpaddq_s32(a, b), self.neon.vpaddq_s32(c, d)]);
        to.iter_mut().zip(sums).for_each(|(to, sum)| *to = sum);
    }
}

impl RowDot for Neon {
    const SUMS: usize = 4;
    const HIGHEST: usize = 8;
    type Bytes = uint8x16_t;
    type Sums = int32x4_t;
    type Reals = float32x4_t;

    #[inline(always)]
    fn bytes(self, from: &[u8]) -> uint8x16_t {
        pulp::cast!(filled::<u8, 16>(from))
    }

    #[inline(always)]
    fn store_bytes(self, bytes: uint8x16_t, to: &mut [u8]) {
        if let Some(to) = to.first_chunk_mut::<16>() {
            *to = pulp::cast!(bytes);
        }
    }

    #[inline(always)]
    fn codes<const BITS: u32>(self, bytes: uint8x16_t, i: u32) -> uint8x16_t {
        if BITS >= 8 {
            return bytes;
        }
        let shifted = self.neon.vshlq_u8(bytes, self.neon.vdupq_n_s8(-((i * BITS) as i8)));
        self.neon.vandq_u8(shifted, self.neon.vdupq_n_u8(0xff >> (8 - BITS)))
    }

    #[inline(always)]
    fn join(self, low: uint8x16_t, high: uint8x16_t) -> uint8x16_t {
        self.neon.vorrq_u8(low, self.neon.vshlq_n_u8::<4>(high))
    }

    #[inline(always)]
    fn join_two(self, low: uint8x16_t, high: uint8x16_t) -> uint8x16_t {
        self.neon.vorrq_u8(low, self.neon.vshlq_n_u8::<2>(high))
    }

    #[inline(always)]
    fn look_up(self, codes: uint8x16_t, table: [u8; 16]) -> uint8x16_t {
        self.neon.vqtbl1q_u8(pulp::cast!(table), codes)
    }

    #[inline(always)]
    fn flip(self, bytes: uint8x16_t) -> uint8x16_t {
        self.neon.veorq_u8(bytes, self.neon.vdupq_n_u8(0x80))
    }

    #[inline(always)]
    fn sums(self, from: &[i32]) -> int32x4_t {
        pulp::cast!(filled::<i32, 4>(from))
    }

    #[inline(always)]
    fn add_products<const BITS: u32>(
        self,
        sums: int32x4_t,
        unsigned: uint8x16_t,
        signed: uint8x16_t,
    ) -> int32x4_t {
        let neon = self.neon;
        let products = |unsigned: uint8x8_t, signed: uint8x8_t| {
            let products = neon.vmulq_s16(widened::<false>(self, unsigned), widened::<true>(self, signed));
            neon.vpaddlq_s16(products)
        };
        let low = products(neon.vget_low_u8(unsigned), neon.vget_low_u8(signed));
        let high = products(neon.vget_high_u8(unsigned), neon.vget_high_u8(signed));
        neon.vaddq_s32(sums, neon.vpaddq_s32(low, high))
    }

    #[inline(always)]
    fn four(self, bytes: [u8; 4]) -> uint8x16_t {
        self.neon.vreinterpretq_u8_u32(self.neon.vdupq_n_u32(u32::from_le_bytes(bytes)))
    }

    #[inline(always)]
    fn every_sum(self, sum: i32) -> int32x4_t {
        self.neon.vdupq_n_s32(sum)
    }

    #[inline(always)]
    fn plus(self, a: int32x4_t, b: int32x4_t) -> int32x4_t {
        self.neon.vaddq_s32(a, b)
    }

    #[inline(always)]
    fn fours(self, [a, b, c, d]: [int32x4_t; 4]) -> int32x4_t {
        let neon = self.neon;
        neon.vpaddq_s32(neon.vpaddq_s32(a, b), neon.vpaddq_s32(c, d))
    }

    #[inline(always)]
    fn reals(self, from: &[f32]) -> float32x4_t {
        pulp::cast!(filled::<f32, 4>(from))
    }

    #[inline(always)]
    fn every(self, real: f32) -> float32x4_t {
        self.neon.vdupq_n_f32(real)
    }

    #[inline(always)]
    fn spread(self, from: &[f32], shift: u32) -> float32x4_t {
        let from = filled::<f32, 4>(from);
        pulp::cast!([from[0], from[1 >> shift.min(2)], from[2 >> shift.min(2)], from[3 >> shift.min(2)]])
    }

    #[inline(always)]
    fn pick(self, from: &[f32], places: int32x4_t) -> float32x4_t {
        let (from, places): (_, [u32; 4]) = (filled::<f32, 4>(from), pulp::cast!(places));
        pulp::cast!(places.map(|place| from[place as usize % 4]))
    }

    #[inline(always)]
    fn add_scaled(self, total: float32x4_t, sums: int32x4_t, a: float32x4_t, b: float32x4_t) -> float32x4_t {
        self.neon.vfmaq_f32(total, self.neon.vcvtq_f32_s32(sums), self.neon.vmulq_f32(a, b))
    }

    #[inline(always)]
    fn add_product(self, total: float32x4_t, a: float32x4_t, b: float32x4_t) -> float32x4_t {
        self.neon.vfmaq_f32(total, a, b)
    }

    #[inline(always)]
    fn store_reals(self, reals: float32x4_t, to: &mut [f32]) {
        let reals: [f32; 4] = pulp::cast!(reals);
        for (to, real) in to.iter_mut().zip(reals) {
            *to = real;
        }
    }

    #[inline(always)]
    fn total(self, reals: float32x4_t) -> f32 {
        self.neon.vaddvq_f32(reals)
    }
}
