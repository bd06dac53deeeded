//! Dot products of bytes, four at a time, in the vector registers that a CPU has for them.
//!
//! Of the two operands one has signed bytes and the other unsigned ones; a product of two fits 16 bits, and sums wrap
//! around at 32: nothing saturates on the way, so every [`Unit`] gives the same sums.

mod portable;

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "aarch64")]
mod neon;
#[cfg(target_arch = "x86_64")]
mod vnni;

use crate::simd::wide;
use portable::Portable;

/// Vector registers that hold sums of products.
pub(crate) trait Dot: Copy {
    /// Columns in one vector of sums.
    const LANES: usize;
    /// Rows of a tile of sums that, with [`Dot::VECTORS`], fits the registers.
    const ROWS: usize;
    /// Vectors in a row of such a tile.
    const VECTORS: usize;
    /// Sums of [`Dot::LANES`] columns.
    type Sums: Copy;
    /// Four bytes of a row, for all columns.
    type Left: Copy;
    /// Four bytes of each column.
    type Right: Copy;

    /// Sums of nothing.
    fn zero(self) -> Self::Sums;

    /// The bytes `four`, which are signed where `SIGNED`.
    fn left<const SIGNED: bool>(self, four: [u8; 4]) -> Self::Left;

    /// The first four bytes of each column of `bytes`, column after column; signed where `SIGNED`. Zeros where there
    /// are fewer.
    fn right<const SIGNED: bool>(self, bytes: &[u8]) -> Self::Right;

    /// The sums and the products of `left` with every column; one of the two is signed: the left one where
    /// `LEFT_SIGNED`.
    fn add<const LEFT_SIGNED: bool>(
        self,
        sums: Self::Sums,
        left: Self::Left,
        right: Self::Right,
    ) -> Self::Sums;

    /// Writes the sums of the columns.
    fn store(self, sums: Self::Sums, to: &mut [i32]);
}

/// What is compiled for each kind of vector registers. It and what it calls must be `#[inline(always)]`.
pub(crate) trait WithDot {
    /// What it gives.
    type Output;
    /// Runs it.
    fn with<D: Dot>(self, dot: D) -> Self::Output;
}

/// The instructions that bytes are multiplied with.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Unit {
    /// Those of any CPU.
    Portable(Portable),
    /// `mul` and `sadalp` on bytes made 16-bit numbers.
    #[cfg(target_arch = "aarch64")]
    Neon(neon::Neon),
    /// `vpmaddwd` on bytes made 16-bit numbers.
    #[cfg(target_arch = "x86_64")]
    Avx2(avx2::Avx2),
    /// `vpdpbusd` on vectors of 512 bits.
    #[cfg(target_arch = "x86_64")]
    Vnni(vnni::Vnni),
}

impl Unit {
    /// All that this CPU has, the fastest first.
    pub(crate) fn all() -> impl Iterator<Item = Unit> {
        let portable = Some(Unit::Portable(Portable));
        #[cfg(target_arch = "x86_64")]
        let units = [vnni::Vnni::try_new().map(Unit::Vnni), avx2::Avx2::try_new().map(Unit::Avx2), portable];
        #[cfg(target_arch = "aarch64")]
        let units = [neon::Neon::try_new().map(Unit::Neon), portable];
        #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
        let units = [portable];
        units.into_iter().flatten()
    }

    /// The fastest.
    pub(crate) fn best() -> Unit {
        Unit::all().next().unwrap_or(Unit::Portable(Portable))
    }

    /// Whether products of bytes are faster than those of `float32` in vectors of the same registers.
    pub(crate) fn multiplies_many(self) -> bool {
        !matches!(self, Unit::Portable(_))
    }

    /// Columns in one vector, and vectors in a row of a tile.
    pub(crate) fn tile(self) -> [usize; 2] {
        struct Tile;
        impl WithDot for Tile {
            type Output = [usize; 2];
            #[inline(always)]
            fn with<D: Dot>(self, _: D) -> [usize; 2] {
                [D::LANES, D::VECTORS]
            }
        }
        self.run(Tile)
    }

    /// Runs `task`, compiled for these instructions.
    pub(crate) fn run<T: WithDot>(self, task: T) -> T::Output {
        match self {
            Unit::Portable(dot) => wide(
                #[inline(always)]
                || task.with(dot),
            ),
            #[cfg(target_arch = "aarch64")]
            Unit::Neon(dot) => dot.vectorize(
                #[inline(always)]
                || task.with(dot),
            ),
            #[cfg(target_arch = "x86_64")]
            Unit::Avx2(dot) => dot.vectorize(
                #[inline(always)]
                || task.with(dot),
            ),
            #[cfg(target_arch = "x86_64")]
            Unit::Vnni(dot) => dot.vectorize(
                #[inline(always)]
                || task.with(dot),
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Sums<'a>(&'a [u8], &'a [u8], bool);

    impl Sums<'_> {
        #[inline(always)]
        fn sums<D: Dot, const LEFT: bool, const RIGHT: bool>(&self, dot: D) -> Vec<i32> {
            let columns = self.1.len() / self.0.len();
            let mut all = vec![0; columns];
            for (first, to) in all.chunks_mut(D::LANES).enumerate() {
                let mut sums = dot.zero();
                for (k, four) in self.0.as_chunks::<4>().0.iter().enumerate() {
                    let right = &self.1[(k * columns + first * D::LANES) * 4..][..D::LANES * 4];
                    sums = dot.add::<LEFT>(sums, dot.left::<LEFT>(*four), dot.right::<RIGHT>(right));
                }
                dot.store(sums, to);
            }
            all
        }
    }

    impl WithDot for Sums<'_> {
        type Output = Vec<i32>;
        #[inline(always)]
        fn with<D: Dot>(self, dot: D) -> Vec<i32> {
            if self.2 { self.sums::<D, true, false>(dot) } else { self.sums::<D, false, true>(dot) }
        }
    }

    #[test]
    fn every_unit_gives_exact_sums_of_the_largest_bytes() {
        let (k, columns) = (4 * 300, 16 * 3);
        let number = |byte: u8, signed: bool| if signed { i32::from(byte as i8) } else { i32::from(byte) };
        let extremes = [0x80u8, 0xff, 0x7f, 0, 1, 0x81, 0x80, 0xff];
        let left: Vec<u8> = (0..k).map(|i| extremes[i / 150 % 8]).collect();
        let right: Vec<u8> = (0..k * columns).map(|i| extremes[(i / 4 + i / 1000) % 8]).collect();
        for left_signed in [false, true] {
            let want: Vec<i32> = (0..columns)
                .map(|c| {
                    let product = |i: usize| {
                        let r = right[(i / 4 * columns + c) * 4 + i % 4];
                        number(left[i], left_signed) * number(r, !left_signed)
                    };
                    (0..k).map(product).sum()
                })
                .collect();
            assert!(want.iter().any(|v| v.unsigned_abs() > 1 << 20));
            let mut units = 0;
            for unit in Unit::all() {
                assert_eq!(unit.run(Sums(&left, &right, left_signed)), want, "{unit:?}");
                units += 1;
            }
            // The portable functions, and those of vectors where a processor always has them.
            assert!(units >= if cfg!(target_arch = "aarch64") { 2 } else { 1 });
        }
    }

    #[test]
    fn bytes_that_are_not_there_are_zeros() {
        for unit in Unit::all() {
            struct Short;
            impl WithDot for Short {
                type Output = Vec<i32>;
                #[inline(always)]
                fn with<D: Dot>(self, dot: D) -> Vec<i32> {
                    let sums =
                        dot.add::<true>(dot.zero(), dot.left::<true>([1; 4]), dot.right::<false>(&[9; 3]));
                    let mut to = vec![7; D::LANES];
                    dot.store(sums, &mut to);
                    to
                }
            }
            assert!(unit.run(Short).iter().all(|v| *v == 0), "{unit:?}");
        }
    }
}
