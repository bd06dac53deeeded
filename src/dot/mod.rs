//! Dot products of bytes, four at a time, in the vector registers that a CPU has for them.
//!
//! Of the two operands one has signed bytes and the other unsigned ones; a product of two fits 16 bits, and sums wrap
//! around at 32: nothing saturates on the way, so every [`Unit`] gives the same sums. [`Dot`] multiplies a row by
//! many columns; [`RowDot`] multiplies two rows, of which one may be codes of few bits.

/// Code for each `$i` below `$count`, which is at most 4 and known to the compiler: what is indexed by `$i` stays in
/// registers, which a loop of many instructions prevents.
macro_rules! unrolled {
    ($count:expr, |$i:ident| $body:block) => { unrolled!(@ $count, $i, $body, 0 1 2 3) };
    (@ $count:expr, $i:ident, $body:block, $($n:literal)*) => {{
        $(if $count > $n {
            let $i = $n;
            $body
        })*
    }};
}
pub(crate) use unrolled;

mod portable;

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "aarch64")]
mod neon;
#[cfg(target_arch = "x86_64")]
mod vnni;

use crate::simd::wide;
use portable::Portable;

/// Vector registers that hold sums of products along two rows, one sum for four neighbouring bytes.
pub(crate) trait RowDot: Copy {
    /// Sums in one vector.
    const SUMS: usize;
    /// Four bytes for each sum.
    type Bytes: Copy;
    /// 32-bit sums.
    type Sums: Copy;
    /// As many `f32`.
    type Reals: Copy;

    /// The first four bytes of each sum; zeros where `from` has fewer.
    fn bytes(self, from: &[u8]) -> Self::Bytes;

    /// The `BITS` bits of each byte from bit `i * BITS` on.
    fn codes<const BITS: u32>(self, bytes: Self::Bytes, i: u32) -> Self::Bytes;

    /// Sums; zeros where `from` has fewer.
    fn sums(self, from: &[i32]) -> Self::Sums;

    /// The sums and the products of unsigned bytes of at most `BITS` bits and signed ones above -128.
    fn add_products<const BITS: u32>(
        self,
        sums: Self::Sums,
        unsigned: Self::Bytes,
        signed: Self::Bytes,
    ) -> Self::Sums;

    /// The sums and the products of all codes of `BITS` bits in `bytes` with signed bytes above -128: first those of the
    /// first code of every byte, then of the second and so on; zeros where there are fewer.
    #[inline(always)]
    fn add_codes<const BITS: u32>(
        self,
        mut sums: Self::Sums,
        bytes: Self::Bytes,
        signed: &[u8],
    ) -> Self::Sums {
        let width = 4 * Self::SUMS;
        unrolled!(8 / BITS as usize, |i| {
            let signed = self.bytes(signed.get(i * width..).unwrap_or_default());
            sums = self.add_products::<BITS>(sums, self.codes::<BITS>(bytes, i as u32), signed);
        });
        sums
    }

    /// The sums of both.
    fn plus(self, a: Self::Sums, b: Self::Sums) -> Self::Sums;

    /// Of four vectors the sums of four neighbours each, in the order of [`first_of_four`].
    fn fours(self, vectors: [Self::Sums; 4]) -> Self::Sums;

    /// Numbers; zeros where `from` has fewer.
    fn reals(self, from: &[f32]) -> Self::Reals;

    /// Number `i >> shift` of `from` for sum `i`; zeros where `from` has fewer.
    fn spread(self, from: &[f32], shift: u32) -> Self::Reals;

    /// Number `places[i]` of `from` for sum `i`, where all places are less than [`RowDot::SUMS`]; zeros where `from` has
    /// fewer.
    fn pick(self, from: &[f32], places: Self::Sums) -> Self::Reals;

    /// `total + sums * (a * b)`.
    fn add_scaled(self, total: Self::Reals, sums: Self::Sums, a: Self::Reals, b: Self::Reals) -> Self::Reals;

    /// The sum of all numbers.
    fn total(self, reals: Self::Reals) -> f32;
}

/// The first of the four neighbours that sum `i` of [`RowDot::fours`] is of, where four vectors of `sums` lie one after
/// the other: vector `i % 4`, from sum `i - i % 4` on.
#[inline(always)]
pub(crate) const fn first_of_four(i: usize, sums: usize) -> usize {
    i % 4 * sums + (i - i % 4)
}

/// The largest absolute value of a rounded element.
const LARGEST: f32 = 127.0;
/// Added to a number, it leaves the nearest integer in the lowest bits.
const ROUNDING: f32 = 12_582_912.0;

/// Rounds the elements `a` to signed bytes, of which none is -128. Returns what these are multiplied by; it is no number
/// where an element is infinite or none.
#[inline(always)]
pub(crate) fn round_block(a: &[f32], to: &mut [u8]) -> f32 {
    let bits = |v: &f32| v.to_bits() & 0x7fff_ffff;
    let largest = f32::from_bits(a.iter().map(bits).fold(0, u32::max));
    let factor = Some(LARGEST / largest).filter(|factor| factor.is_finite()).unwrap_or(0.0);
    for (to, v) in to.iter_mut().zip(a) {
        *to = (v * factor + ROUNDING).to_bits() as u8;
    }
    if largest.is_finite() { largest / LARGEST } else { f32::NAN }
}

/// The first `N` elements of `from`, zeros where it has fewer.
#[inline(always)]
fn filled<T: Copy + Default, const N: usize>(from: &[T]) -> [T; N] {
    from.first_chunk::<N>().copied().unwrap_or_else(
        #[cold]
        || {
            let mut all = [T::default(); N];
            all.iter_mut().zip(from).for_each(|(to, from)| *to = *from);
            all
        },
    )
}

/// Vector registers that hold sums of products of a row and columns.
pub(crate) trait Dot: RowDot {
    /// Columns in one vector of sums.
    const LANES: usize;
    /// Rows of a tile of sums that, with [`Dot::VECTORS`], fits the registers.
    const ROWS: usize;
    /// Vectors in a row of such a tile.
    const VECTORS: usize;
    /// Sums of [`Dot::LANES`] columns.
    type ColumnSums: Copy;
    /// Four bytes of a row, for all columns.
    type Left: Copy;
    /// Four bytes of each column.
    type Right: Copy;

    /// Sums of nothing.
    fn zero(self) -> Self::ColumnSums;

    /// The bytes `four`, which are signed where `SIGNED`.
    fn left<const SIGNED: bool>(self, four: [u8; 4]) -> Self::Left;

    /// The first four bytes of each column of `bytes`, column after column; signed where `SIGNED`. Zeros where there
    /// are fewer.
    fn right<const SIGNED: bool>(self, bytes: &[u8]) -> Self::Right;

    /// The sums and the products of `left` with every column; one of the two is signed: the left one where
    /// `LEFT_SIGNED`.
    fn add<const LEFT_SIGNED: bool>(
        self,
        sums: Self::ColumnSums,
        left: Self::Left,
        right: Self::Right,
    ) -> Self::ColumnSums;

    /// Writes the sums of the columns.
    fn store(self, sums: Self::ColumnSums, to: &mut [i32]);
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

    /// Sums in one vector of products along two rows.
    pub(crate) fn sums(self) -> usize {
        struct Sums;
        impl WithDot for Sums {
            type Output = usize;
            #[inline(always)]
            fn with<D: Dot>(self, _: D) -> usize {
                D::SUMS
            }
        }
        self.run(Sums)
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

    /// Row sums of codes of `BITS` bits, and their total with scales of `1 << SHIFT` sums each.
    struct Rows<'a, const BITS: u32>(&'a [u8], &'a [u8], &'a [f32]);

    const SHIFT: u32 = 1;

    impl<const BITS: u32> WithDot for Rows<'_, BITS> {
        type Output = f32;
        #[inline(always)]
        fn with<D: Dot>(self, dot: D) -> f32 {
            let (width, parts) = (4 * D::SUMS, 8 / BITS as usize);
            let mut total = dot.reals(&[]);
            for (j, bytes) in self.0.chunks(width).enumerate() {
                let mut sums = dot.sums(&[1]);
                for i in 0..parts {
                    // Code `i` of every byte is multiplied by its own part of the signed bytes.
                    let from = (i * self.0.len() + j * width).min(self.1.len());
                    let end = (from + bytes.len()).min(self.1.len());
                    let codes = dot.codes::<BITS>(dot.bytes(bytes), i as u32);
                    sums = dot.add_products::<BITS>(sums, codes, dot.bytes(&self.1[from..end]));
                }
                let scales = dot.spread(&self.2[(j * D::SUMS) >> SHIFT..], SHIFT);
                total = dot.add_scaled(total, sums, scales, dot.reals(&[1.0; 64]));
            }
            dot.total(total)
        }
    }

    fn rows_are_exact<const BITS: u32>() {
        let parts = 8 / BITS as usize;
        for len in [64, 4, 68, 32 * 5 + 12, 256] {
            let codes: Vec<u8> =
                (0..len).map(|i| if i % 7 == 0 { 0xff } else { (i * 37 + i / 5) as u8 }).collect();
            let signed: Vec<u8> = (0..len * parts)
                .map(|i| [127i8, -127, 127, 127, (i % 251) as i8, -127, 3][i / 9 % 7].max(-127) as u8)
                .collect();
            let scales: Vec<f32> = (0..len.div_ceil(4) + 64).map(|i| (1 + i % 3) as f32).collect();
            for unit in Unit::all() {
                let width = 4 * unit.sums();
                let mut want = 0i64;
                for i in 0..len {
                    for part in 0..parts {
                        let code = i64::from(codes[i] >> (part as u32 * BITS)) & ((1 << BITS) - 1);
                        want +=
                            code * i64::from(signed[part * len + i] as i8) * scales[(i / 4) >> SHIFT] as i64;
                    }
                }
                // Each vector began with a one.
                want +=
                    (0..len.div_ceil(width)).map(|j| scales[(j * width / 4) >> SHIFT] as i64).sum::<i64>();
                let got = unit.run(Rows::<BITS>(&codes, &signed, &scales));
                assert_eq!(got as i64, want, "{unit:?}, {BITS} bits, {len} bytes");
            }
        }
    }

    #[test]
    fn every_unit_gives_exact_sums_along_rows_of_codes() {
        rows_are_exact::<2>();
        rows_are_exact::<4>();
        rows_are_exact::<8>();
    }

    #[test]
    fn four_vectors_become_one_of_their_sums() {
        struct Fours;
        impl WithDot for Fours {
            type Output = ();
            #[inline(always)]
            fn with<D: Dot>(self, dot: D) {
                let numbers: Vec<i32> = (0..4 * D::SUMS as i32).map(|i| i * i - 70).collect();
                let mut vectors = [dot.sums(&[]); 4];
                for (to, from) in vectors.iter_mut().zip(numbers.chunks(D::SUMS)) {
                    *to = dot.plus(dot.sums(from), dot.sums(&[5]));
                }
                let scales: Vec<f32> = (0..D::SUMS).map(|i| (i + 1) as f32).collect();
                let fours = dot.fours(vectors);
                // One sum at a time: the others are multiplied by zero.
                for i in 0..D::SUMS {
                    let (from, five) = (i % 4 * D::SUMS + (i - i % 4), if i < 4 { 5 } else { 0 });
                    let want = numbers[from..from + 4].iter().sum::<i32>() + five;
                    let mut places = vec![0; D::SUMS];
                    places[i] = (D::SUMS - 1 - i) as i32;
                    let mut own = vec![0.0; D::SUMS];
                    own[i] = 1.0;
                    let picked = dot.pick(&scales, dot.sums(&places));
                    let total = dot.add_scaled(dot.reals(&[]), fours, picked, dot.reals(&own));
                    assert_eq!(dot.total(total), (want * (D::SUMS - i) as i32) as f32, "sum {i}");
                }
            }
        }
        Unit::all().for_each(|unit| unit.run(Fours));
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
