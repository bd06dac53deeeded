//! Products of bytes as any CPU has them, in loops that the compiler makes vectors of.

use super::{Dot, RowDot, filled, numbers};

/// Products of 32-bit integers.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Portable;

const LANES: usize = 8;

#[inline(always)]
fn number<const SIGNED: bool>(byte: u8) -> i32 {
    if SIGNED { i32::from(byte as i8) } else { i32::from(byte) }
}

impl Dot for Portable {
    const LANES: usize = LANES;
    const ROWS: usize = 4;
    const VECTORS: usize = 1;
    type ColumnSums = [i32; LANES];
    type Four = [i16; 4];
    type Left = [i32; 4];
    type Right = [[i32; LANES]; 4];

    #[inline(always)]
    fn zero(self) -> Self::ColumnSums {
        [0; LANES]
    }

    #[inline(always)]
    fn kept<const SIGNED: bool>(bytes: [u8; 4]) -> [i16; 4] {
        numbers::<SIGNED>(bytes)
    }

    #[inline(always)]
    fn left(self, four: [i16; 4]) -> Self::Left {
        four.map(i32::from)
    }

    #[inline(always)]
    fn right<const SIGNED: bool>(self, bytes: &[u8]) -> Self::Right {
        let mut right = [[0; LANES]; 4];
        if let Some(bytes) = bytes.first_chunk::<{ 4 * LANES }>() {
            for c in 0..LANES {
                for k in 0..4 {
                    right[k][c] = number::<SIGNED>(bytes[4 * c + k]);
                }
            }
        }
        right
    }

    #[inline(always)]
    fn add<const LEFT_SIGNED: bool>(
        self,
        mut sums: Self::ColumnSums,
        left: Self::Left,
        right: Self::Right,
    ) -> Self::ColumnSums {
        for (left, right) in left.iter().zip(&right) {
            for (sum, right) in sums.iter_mut().zip(right) {
                *sum = sum.wrapping_add(left * right);
            }
        }
        sums
    }

    #[inline(always)]
    fn store(self, sums: Self::ColumnSums, to: &mut [i32]) {
        to.iter_mut().zip(sums).for_each(|(to, sum)| *to = sum);
    }
}

impl RowDot for Portable {
    const SUMS: usize = LANES;
    const HIGHEST: usize = 4;
    type Bytes = [u8; 4 * LANES];
    type Sums = [i32; LANES];
    type Reals = [f32; LANES];

    #[inline(always)]
    fn bytes(self, from: &[u8]) -> Self::Bytes {
        filled(from)
    }

    #[inline(always)]
    fn store_bytes(self, bytes: Self::Bytes, to: &mut [u8]) {
        if let Some(to) = to.first_chunk_mut() {
            *to = bytes;
        }
    }

    #[inline(always)]
    fn codes<const BITS: u32>(self, bytes: Self::Bytes, i: u32) -> Self::Bytes {
        let mut codes = bytes;
        if BITS < 8 {
            codes.iter_mut().for_each(|byte| *byte = *byte >> (i * BITS) & (0xff >> (8 - BITS)));
        }
        codes
    }

    #[inline(always)]
    fn join(self, low: Self::Bytes, high: Self::Bytes) -> Self::Bytes {
        std::array::from_fn(|i| low[i] | high[i] << 4)
    }

    #[inline(always)]
    fn join_two(self, low: Self::Bytes, high: Self::Bytes) -> Self::Bytes {
        std::array::from_fn(|i| low[i] | high[i] << 2)
    }

    #[inline(always)]
    fn look_up(self, codes: Self::Bytes, table: [u8; 16]) -> Self::Bytes {
        codes.map(|code| table[usize::from(code % 16)])
    }

    #[inline(always)]
    fn flip(self, bytes: Self::Bytes) -> Self::Bytes {
        bytes.map(|byte| byte ^ 0x80)
    }

    #[inline(always)]
    fn sums(self, from: &[i32]) -> Self::Sums {
        filled(from)
    }

    #[inline(always)]
    fn add_products<const BITS: u32>(
        self,
        mut sums: Self::Sums,
        unsigned: Self::Bytes,
        signed: Self::Bytes,
    ) -> Self::Sums {
        for (i, sum) in sums.iter_mut().enumerate() {
            for k in 4 * i..4 * i + 4 {
                *sum = sum.wrapping_add(number::<false>(unsigned[k]) * number::<true>(signed[k]));
            }
        }
        sums
    }

    #[inline(always)]
    fn four(self, bytes: [u8; 4]) -> Self::Bytes {
        std::array::from_fn(|i| bytes[i % 4])
    }

    #[inline(always)]
    fn every_sum(self, sum: i32) -> Self::Sums {
        [sum; LANES]
    }

    #[inline(always)]
    fn plus(self, a: Self::Sums, b: Self::Sums) -> Self::Sums {
        std::array::from_fn(|i| a[i].wrapping_add(b[i]))
    }

    #[inline(always)]
    fn fours(self, vectors: [Self::Sums; 4]) -> Self::Sums {
        std::array::from_fn(|i| {
            let [a, b, c, d] = [0, 1, 2, 3].map(|k| vectors[i % 4][i - i % 4 + k]);
            a.wrapping_add(b).wrapping_add(c.wrapping_add(d))
        })
    }

    #[inline(always)]
    fn reals(self, from: &[f32]) -> Self::Reals {
        filled(from)
    }

    #[inline(always)]
    fn every(self, real: f32) -> Self::Reals {
        [real; LANES]
    }

    #[inline(always)]
    fn spread(self, from: &[f32], shift: u32) -> Self::Reals {
        let from = filled::<f32, LANES>(from);
        std::array::from_fn(|i| from[i >> shift.min(3)])
    }

    #[inline(always)]
    fn pick(self, from: &[f32], places: Self::Sums) -> Self::Reals {
        let from = filled::<f32, LANES>(from);
        places.map(|place| from[place as usize % LANES])
    }

    #[inline(always)]
    fn add_scaled(
        self,
        mut total: Self::Reals,
        sums: Self::Sums,
        a: Self::Reals,
        b: Self::Reals,
    ) -> Self::Reals {
        for i in 0..LANES {
            total[i] += sums[i] as f32 * (a[i] * b[i]);
        }
        total
    }

    #[inline(always)]
    fn add_product(self, total: Self::Reals, a: Self::Reals, b: Self::Reals) -> Self::Reals {
        std::array::from_fn(|i| total[i] + a[i] * b[i])
    }

    #[inline(always)]
    fn store_reals(self, reals: Self::Reals, to: &mut [f32]) {
        to.iter_mut().zip(reals).for_each(|(to, real)| *to = real);
    }

    #[inline(always)]
    fn total(self, reals: Self::Reals) -> f32 {
        reals.iter().sum()
    }
}
