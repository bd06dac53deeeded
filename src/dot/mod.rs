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
pub(crate) use portable::Portable;

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
    /// Rows of a tile that fits the registers, where each row has one vector of sums: 4 or 8.
    const HIGHEST: usize;
    /// What is taken away from unsigned bytes before they are multiplied: 128 where signed ones are multiplied faster.
    const BYTE_MIDDLE: u8 = 0;

    /// Asks for what is `after` bytes after each of `bytes`, whatever is there: it is read soon.
    #[inline(always)]
    fn prefetch(self, _bytes: &[u8], _after: usize) {}

    /// The first four bytes of each sum; zeros where `from` has fewer.
    fn bytes(self, from: &[u8]) -> Self::Bytes;

    /// Writes the bytes of a vector, where `to` has as many.
    fn store_bytes(self, bytes: Self::Bytes, to: &mut [u8]);

    /// The `BITS` bits of each byte from bit `i * BITS` on.
    fn codes<const BITS: u32>(self, bytes: Self::Bytes, i: u32) -> Self::Bytes;

    /// Vector `v` of the codes of `BITS` bits of some elements, in their order: `SPAN` bytes, 16 or a multiple, have those of
    /// as many elements in their lowest bits, then those of the next ones in the bits above, and so on; further bytes are
    /// `stride` bytes after these. Zeros where `from` has fewer.
    #[inline(always)]
    fn split<const BITS: u32, const SPAN: usize>(self, from: &[u8], stride: usize, v: usize) -> Self::Bytes {
        let width = 4 * Self::SUMS;
        if width <= SPAN {
            let (part, bytes) = piece::<BITS, SPAN>(from, stride, v * width);
            return self.codes::<BITS>(self.bytes(bytes), part);
        }
        let mut codes = [0u8; 64];
        for (i, to) in codes.chunks_mut(SPAN).take(width / SPAN).enumerate() {
            let (part, bytes) = piece::<BITS, SPAN>(from, stride, v * width + i * SPAN);
            for (to, byte) in to.iter_mut().zip(bytes) {
                *to = *byte >> (part * BITS) & (0xff >> (8 - BITS));
            }
        }
        self.bytes(&codes)
    }

    /// `high` times 16 and `low`, which is less than that.
    fn join(self, low: Self::Bytes, high: Self::Bytes) -> Self::Bytes;

    /// The bytes with their highest bits changed.
    fn flip(self, bytes: Self::Bytes) -> Self::Bytes;

    /// Sums; zeros where `from` has fewer.
    fn sums(self, from: &[i32]) -> Self::Sums;

    /// The sums and the products of unsigned bytes of at most `BITS` bits and signed ones above -128. Of bytes of 8 bits
    /// [`RowDot::BYTE_MIDDLE`] is taken away before.
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

    /// The four bytes for every sum.
    fn four(self, bytes: [u8; 4]) -> Self::Bytes;

    /// The number for every sum.
    fn every_sum(self, sum: i32) -> Self::Sums;

    /// The sums of `R` rows and the products of four bytes at a time with vectors of codes: `values` has four signed bytes
    /// above -128 of each row, `FOURS` times; `codes` as many vectors of unsigned bytes of at most `BITS` bits.
    #[inline(always)]
    fn add_fours<const BITS: u32, const FOURS: usize, const R: usize>(
        self,
        sums: &mut [Self::Sums; R],
        values: &[u8],
        codes: &[u8],
    ) {
        let fours = values.as_chunks::<4>().0.as_chunks::<R>().0.iter();
        for (fours, codes) in fours.zip(codes.chunks_exact(4 * Self::SUMS)).take(FOURS) {
            let codes = self.bytes(codes);
            for r in 0..R {
                sums[r] = self.add_products::<BITS>(sums[r], codes, self.four(fours[r]));
            }
        }
    }

    /// Writes words of four bytes: the first of each of [`RowDot::SUMS`] columns, which begin `stride` bytes apart in `from`,
    /// then the second of each, as many as there are columns.
    #[inline(always)]
    fn transpose(self, from: &[u8], stride: usize, to: &mut [u8]) {
        for c in 0..Self::SUMS {
            let words = from.get(c * stride..).unwrap_or_default().as_chunks::<4>().0;
            for (to, word) in to.chunks_exact_mut(4 * Self::SUMS).take(Self::SUMS).zip(words) {
                to[4 * c..][..4].copy_from_slice(word);
            }
        }
    }

    /// The sums of both.
    fn plus(self, a: Self::Sums, b: Self::Sums) -> Self::Sums;

    /// Of four vectors the sums of four neighbours each, in the order of [`first_of_four`].
    fn fours(self, vectors: [Self::Sums; 4]) -> Self::Sums;

    /// Numbers; zeros where `from` has fewer.
    fn reals(self, from: &[f32]) -> Self::Reals;

    /// The number for every sum.
    fn every(self, real: f32) -> Self::Reals;

    /// Number `i >> shift` of `from` for sum `i`; zeros where `from` has fewer.
    fn spread(self, from: &[f32], shift: u32) -> Self::Reals;

    /// Number `places[i]` of `from` for sum `i`, where all places are less than [`RowDot::SUMS`]; zeros where `from` has
    /// fewer.
    fn pick(self, from: &[f32], places: Self::Sums) -> Self::Reals;

    /// `total + sums * (a * b)`.
    fn add_scaled(self, total: Self::Reals, sums: Self::Sums, a: Self::Reals, b: Self::Reals) -> Self::Reals;

    /// `total + a * b`.
    fn add_product(self, total: Self::Reals, a: Self::Reals, b: Self::Reals) -> Self::Reals;

    /// Writes as many numbers as `to` has.
    fn store_reals(self, reals: Self::Reals, to: &mut [f32]);

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

/// Which code of its byte element `element` is, and the bytes from this one on, as [`RowDot::split`] has them.
#[inline(always)]
fn piece<const BITS: u32, const SPAN: usize>(from: &[u8], stride: usize, element: usize) -> (u32, &[u8]) {
    let each = SPAN * 8 / BITS as usize;
    let (chunk, rest) = (element / each, element % each);
    ((rest / SPAN) as u32, from.get(chunk * stride + rest % SPAN..).unwrap_or_default())
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
        self.run(Constants).sums
    }

    /// [`RowDot::HIGHEST`].
    pub(crate) fn highest(self) -> usize {
        self.run(Constants).highest
    }

    /// What is still to be taken away of codes of `bits` bits of which `middle` stands for zero: these are multiplied less
    /// [`RowDot::BYTE_MIDDLE`] where they have 8 bits.
    pub(crate) fn middle(self, bits: u32, middle: u8) -> u8 {
        if bits < 8 { middle } else { middle - self.run(Constants).byte_middle }
    }

    /// Columns in one vector, and vectors in a row of a tile.
    pub(crate) fn tile(self) -> [usize; 2] {
        self.run(Constants).tile
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

/// Finds what a unit says of itself.
struct Constants;

struct Found {
    sums: usize,
    highest: usize,
    byte_middle: u8,
    tile: [usize; 2],
}

impl WithDot for Constants {
    type Output = Found;

    #[inline(always)]
    fn with<D: Dot>(self, _: D) -> Found {
        Found {
            sums: D::SUMS,
            highest: D::HIGHEST,
            byte_middle: D::BYTE_MIDDLE,
            tile: [D::LANES, D::VECTORS],
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
                let middle = if BITS == 8 { 128 - i64::from(unit.middle(8, 128)) } else { 0 };
                let mut want = 0i64;
                for i in 0..len {
                    for part in 0..parts {
                        let code = i64::from(codes[i] >> (part as u32 * BITS)) & ((1 << BITS) - 1);
                        want += (code - middle)
                            * i64::from(signed[part * len + i] as i8)
                            * scales[(i / 4) >> SHIFT] as i64;
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

    /// Sums of `R` rows and vectors of codes, four at a time.
    struct Fours<'a, const BITS: u32>(&'a [u8], &'a [u8]);

    const R: usize = 4;

    impl<const BITS: u32> WithDot for Fours<'_, BITS> {
        type Output = Vec<f32>;
        #[inline(always)]
        fn with<D: Dot>(self, dot: D) -> Vec<f32> {
            let mut sums = [dot.every_sum(3); R];
            dot.add_fours::<BITS, 8, R>(&mut sums, self.0, self.1);
            let mut all = vec![0f32; R * D::SUMS];
            for (sums, to) in sums.into_iter().zip(all.chunks_mut(D::SUMS)) {
                let reals = dot.add_scaled(dot.every(1.0), sums, dot.every(2.0), dot.every(0.5));
                dot.store_reals(dot.add_product(reals, dot.every(3.0), dot.every(7.0)), to);
            }
            all
        }
    }

    fn fours_are_exact<const BITS: u32>() {
        for unit in Unit::all() {
            let lanes = unit.sums();
            let middle = if BITS == 8 { 128 - i32::from(unit.middle(8, 128)) } else { 0 };
            for extreme in [false, true] {
                let values: Vec<u8> = (0..4 * R * 8)
                    .map(
                        |i| if extreme { [127, -127][i / 16 % 2] } else { (i * 37 % 255) as i32 - 127 } as u8,
                    )
                    .collect();
                let codes: Vec<u8> = (0..4 * lanes * 8)
                    .map(|i| if extreme && i % 3 > 0 { 0xff } else { (i * 29 + i / 7) as u8 } >> (8 - BITS))
                    .collect();
                let got = unit.run(Fours::<BITS>(&values, &codes));
                for r in 0..R {
                    for c in 0..lanes {
                        let product = |i: usize| {
                            let code = i32::from(codes[(i / 4 * lanes + c) * 4 + i % 4]);
                            (code - middle) * i32::from(values[(i / 4 * R + r) * 4 + i % 4] as i8)
                        };
                        let want = (0..32).map(product).sum::<i32>() + 3 + 1 + 21;
                        assert_eq!(
                            got[r * lanes + c],
                            want as f32,
                            "{unit:?}, {BITS} bits, row {r}, column {c}"
                        );
                    }
                }
            }
        }
    }

    #[test]
    fn every_unit_gives_exact_sums_of_rows_and_columns() {
        fours_are_exact::<4>();
        fours_are_exact::<6>();
        fours_are_exact::<8>();
    }

    #[test]
    fn words_of_columns_are_interleaved() {
        struct Words<'a>(&'a [u8], usize);
        impl WithDot for Words<'_> {
            type Output = Vec<u8>;
            #[inline(always)]
            fn with<D: Dot>(self, dot: D) -> Vec<u8> {
                let mut to = vec![0; 4 * D::SUMS * D::SUMS];
                dot.transpose(self.0, self.1, &mut to);
                to
            }
        }
        for unit in Unit::all() {
            let (lanes, stride) = (unit.sums(), 4 * unit.sums() + 9);
            let from: Vec<u8> = (0..lanes * stride).map(|i| (i * 7 + i / 256) as u8).collect();
            let got = unit.run(Words(&from, stride));
            for (i, got) in got.iter().enumerate() {
                let (word, c, byte) = (i / 4 / lanes, i / 4 % lanes, i % 4);
                assert_eq!(*got, from[c * stride + 4 * word + byte], "{unit:?}, word {word} of column {c}");
            }
        }
    }

    /// Four vectors of codes of `BITS` bits, of the lowest bits of `SPAN` bytes first; joined with their highest bits and
    /// flipped.
    struct Split<'a, const BITS: u32, const SPAN: usize>(&'a [u8], usize);

    impl<const BITS: u32, const SPAN: usize> WithDot for Split<'_, BITS, SPAN> {
        type Output = Vec<u8>;
        #[inline(always)]
        fn with<D: Dot>(self, dot: D) -> Vec<u8> {
            let mut all = vec![0; 16 * D::SUMS];
            for (v, to) in all.chunks_mut(4 * D::SUMS).enumerate() {
                let codes = dot.split::<BITS, SPAN>(self.0, self.1, v);
                let codes =
                    if BITS < 8 { dot.join(codes, dot.codes::<1>(codes, 0)) } else { dot.flip(codes) };
                dot.store_bytes(codes, to);
            }
            all
        }
    }

    fn codes_are_split<const BITS: u32, const SPAN: usize>(stride: usize) {
        let bytes: Vec<u8> = (0..8 * stride).map(|i| (i * 11 + i / 30) as u8).collect();
        for unit in Unit::all() {
            let got = unit.run(Split::<BITS, SPAN>(&bytes, stride));
            for (e, got) in got.into_iter().enumerate() {
                let parts = 8 / BITS as usize;
                let (chunk, part, at) = (e / (SPAN * parts), e / SPAN % parts, e % SPAN);
                let code = bytes[chunk * stride + at] >> (part as u32 * BITS) & (0xff >> (8 - BITS));
                let want = if BITS < 8 { code | (code & 1) << 4 } else { code ^ 0x80 };
                assert_eq!(got, want, "{unit:?}, {BITS} bits of {SPAN} bytes, element {e}");
            }
        }
    }

    #[test]
    fn codes_are_split_in_the_order_of_elements() {
        codes_are_split::<4, 16>(18);
        codes_are_split::<4, 32>(32);
        codes_are_split::<4, 64>(64);
        codes_are_split::<2, 32>(32);
        codes_are_split::<1, 32>(32);
        codes_are_split::<8, 32>(34);
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
