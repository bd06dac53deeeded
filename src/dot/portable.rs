//! Products of bytes as any CPU has them, in loops that the compiler makes vectors of.

use super::Dot;

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
    type Sums = [i32; LANES];
    type Left = [i32; 4];
    type Right = [[i32; LANES]; 4];

    #[inline(always)]
    fn zero(self) -> Self::Sums {
        [0; LANES]
    }

    #[inline(always)]
    fn left<const SIGNED: bool>(self, four: [u8; 4]) -> Self::Left {
        four.map(number::<SIGNED>)
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
        mut sums: Self::Sums,
        left: Self::Left,
        right: Self::Right,
    ) -> Self::Sums {
        for (left, right) in left.iter().zip(&right) {
            for (sum, right) in sums.iter_mut().zip(right) {
                *sum = sum.wrapping_add(left * right);
            }
        }
        sums
    }

    #[inline(always)]
    fn store(self, sums: Self::Sums, to: &mut [i32]) {
        to.iter_mut().zip(sums).for_each(|(to, sum)| *to = sum);
    }
}
