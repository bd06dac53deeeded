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

#[cfg(target_arch = "x86_64")]
use crate::simd::Vectors;
use crate::simd::{self, wide};
pub(crate) use portable::Portable;

/// Asks for what is read soon, on CPUs that know how.
#[derive(Clone, Copy)]
pub(crate) struct Ahead {
    #[cfg(target_arch = "x86_64")]
    sse: Option<pulp::core_arch::x86::Sse>,
}

impl Ahead {
    /// Elements after what is read now that are asked for.
    const ELEMENTS: usize = 512;

    /// What this CPU has for it.
    #[inline(always)]
    pub(crate) fn new() -> Self {
        Ahead {
            #[cfg(target_arch = "x86_64")]
            sse: pulp::core_arch::x86::Sse::try_new(),
        }
    }

    /// Asks for the elements that come some way after `now`, whatever is there.
    #[inline(always)]
    pub(crate) fn fetch(self, now: &[f32]) {
        self.fetch_after(now, Ahead::ELEMENTS);
    }

    /// Asks for these elements.
    #[inline(always)]
    pub(crate) fn fetch_all(self, soon: &[f32]) {
        self.fetch_after(soon, 0);
    }

    /// Asks for these elements in the second cache: the first one has what is multiplied meanwhile.
    #[inline(always)]
    pub(crate) fn fetch_second(self, later: &[f32]) {
        #[cfg(target_arch = "x86_64")]
        if let Some(sse) = self.sse {
            avx2::fetch_second(sse, bytemuck::cast_slice(later));
        }
        #[cfg(not(target_arch = "x86_64"))]
        let _ = later;
    }

    /// Asks for the elements that come `after` elements after `elements`, whatever is there.
    #[inline(always)]
    fn fetch_after(self, elements: &[f32], after: usize) {
        #[cfg(target_arch = "x86_64")]
        if let Some(sse) = self.sse {
            avx2::fetch(sse, bytemuck::cast_slice(elements), size_of::<f32>() * after);
        }
        #[cfg(not(target_arch = "x86_64"))]
        let _ = (elements, after);
    }
}

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
    /// Places in memory that a thread reads columns from in turn. Measured: a core with AVX-512 of Intel gets less from one
    /// alone than memory can give, one with AVX2 of AMD the most.
    const STREAMS: usize = 4;

    /// Asks for what is `after` bytes after each of `bytes`, whatever is there: it is read soon.
    #[inline(always)]
    fn prefetch(self, _bytes: &[u8], _after: usize) {}

    /// The first four bytes of each sum; zeros where `from` has fewer.
    fn bytes(self, from: &[u8]) -> Self::Bytes;

    /// Writes the bytes of a vector, where `to` has as many.
    fn store_bytes(self, bytes: Self::Bytes, to: &mut [u8]);

    /// The `BITS` bits of each byte from bit `i * BITS` on.
    fn codes<const BITS: u32>(self, bytes: Self::Bytes, i: u32) -> Self::Bytes;

    /// Vector `v` of the codes of `BITS` bits of some elements, in their order: `SPAN` bytes, 32 or a multiple, have those of
    /// as many elements in their lowest bits, then those of the next ones in the bits above, and so on; further bytes are
    /// `stride` bytes after these. Zeros where `from` has fewer.
    #[inline(always)]
    fn split<const BITS: u32, const SPAN: usize>(self, from: &[u8], stride: usize, v: usize) -> Self::Bytes {
        let (part, bytes) = piece::<BITS, SPAN>(from, stride, v * 4 * Self::SUMS);
        self.codes::<BITS>(self.bytes(bytes), part)
    }

    /// Vector `v` of the codes of 4 bits of blocks of 32 elements, in the order of [`halved`]. A block is 16 bytes, of which
    /// the low bits are those of its first half, `stride` bytes after the block before. Zeros where `from` has fewer.
    #[inline(always)]
    fn split_halves(self, from: &[u8], stride: usize, v: usize) -> Self::Bytes {
        let mut bytes = [0u8; 64];
        let blocks = Self::SUMS / 4;
        for (i, to) in bytes.as_chunks_mut::<16>().0.iter_mut().take(blocks).enumerate() {
            *to = filled(from.get((v / 2 * blocks + i) * stride..).unwrap_or_default());
        }
        self.codes::<4>(self.bytes(&bytes), v as u32 % 2)
    }

    /// Ones in the bytes whose bits are set.
    #[inline(always)]
    fn ones(self, bits: u64) -> Self::Bytes {
        let mut ones = [0u8; 64];
        for (to, byte) in ones.as_chunks_mut::<8>().0.iter_mut().zip(bits.to_le_bytes()) {
            // Bit `i` in byte `i`; a carry makes it the highest.
            let every = 0x0101_0101_0101_0101;
            let spread = (u64::from(byte) * every) & 0x8040_2010_0804_0201;
            *to = (((spread + 0x7f * every) >> 7) & every).to_le_bytes();
        }
        self.bytes(&ones)
    }

    /// The `float16` numbers with these bits.
    #[inline(always)]
    fn halves(self, bits: [u16; 8]) -> [f32; 8] {
        let mut numbers = [0.0; 8];
        for (to, bits) in numbers.iter_mut().zip(bits) {
            *to = simd::widen_half(bits);
        }
        numbers
    }

    /// `high` times 16 and `low`, which is less than that.
    fn join(self, low: Self::Bytes, high: Self::Bytes) -> Self::Bytes;

    /// `high` times 4 and `low`, which is less than that; `high` is at most 3.
    fn join_two(self, low: Self::Bytes, high: Self::Bytes) -> Self::Bytes;

    /// The numbers of `table` at `codes`, which are less than 16.
    fn look_up(self, codes: Self::Bytes, table: [u8; 16]) -> Self::Bytes;

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

    /// The sums and the products of two vectors of unsigned bytes of at most `BITS` bits, which are at most 6, and two of
    /// signed ones above -128.
    #[inline(always)]
    fn add_two<const BITS: u32>(
        self,
        sums: Self::Sums,
        [a, b]: [Self::Bytes; 2],
        [left, right]: [Self::Bytes; 2],
    ) -> Self::Sums {
        self.add_products::<BITS>(self.add_products::<BITS>(sums, a, left), b, right)
    }

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
        values: &[[[u8; 4]; R]; FOURS],
        codes: &[u8],
    ) {
        for i in 0..FOURS {
            let codes = self.bytes(&codes[i * 4 * Self::SUMS..]);
            for r in 0..R {
                sums[r] = self.add_products::<BITS>(sums[r], codes, self.four(values[i][r]));
            }
        }
    }

    /// The first four words of four bytes of [`RowDot::SUMS`] columns, which begin `stride` bytes apart in `from`: the first
    /// of each column, then the second of each and so on. Zeros where `from` has fewer.
    #[inline(always)]
    fn words(self, from: &[u8], stride: usize) -> [Self::Bytes; 4] {
        words_of(Self::SUMS, from, stride).map(|words| self.bytes(&words))
    }

    /// The sums of both.
    fn plus(self, a: Self::Sums, b: Self::Sums) -> Self::Sums;

    /// Of four vectors the sums of four neighbours each, in the order of [`first_of_four`].
    fn fours(self, vectors: [Self::Sums; 4]) -> Self::Sums;

    /// As [`RowDot::fours`], of sums whose absolute values are less than 2^14.
    #[inline(always)]
    fn small_fours(self, vectors: [Self::Sums; 4]) -> Self::Sums {
        self.fours(vectors)
    }

    /// Numbers; zeros where `from` has fewer.
    fn reals(self, from: &[f32]) -> Self::Reals;

    /// The number for every sum.
    fn every(self, real: f32) -> Self::Reals;

    /// Number `i >> shift` of `from` for sum `i`; zeros where `from` has fewer.
    fn spread(self, from: &[f32], shift: u32) -> Self::Reals;

    /// Number `places[i]` of `from` for sum `i`, where all places are less than [`RowDot::SUMS`]; zeros where `from` has
    /// fewer.
    fn pick(self, from: &[f32], places: Self::Sums) -> Self::Reals;

    /// As [`RowDot::pick`], of the `float16` numbers with the bits `from`.
    #[inline(always)]
    fn pick_halves(self, from: &[u16], places: Self::Sums) -> Self::Reals {
        let wide = filled::<u16, 16>(from).map(simd::widen_half);
        self.pick(&wide, places)
    }

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

/// Which 16 elements are at place `i` of vectors of `sums` sums, where a vector has the first halves of blocks of 32, and the
/// next one their second halves.
#[inline(always)]
pub(crate) const fn halved(i: usize, sums: usize) -> usize {
    let blocks = sums / 4;
    let (v, block) = (i / blocks, i % blocks);
    2 * (v / 2 * blocks + block) + v % 2
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

/// The first four words of `count` columns, as [`RowDot::words`] has them.
#[inline(always)]
fn words_of(count: usize, from: &[u8], stride: usize) -> [[u8; 64]; 4] {
    let mut words = [[0u8; 64]; 4];
    for c in 0..count {
        let column = filled::<u8, 16>(from.get(c * stride..).unwrap_or_default());
        for (to, word) in words.iter_mut().zip(column.as_chunks::<4>().0) {
            to[4 * c..][..4].copy_from_slice(word);
        }
    }
    words
}

/// The same where `from` ends in one of the columns. It is no part of its callers: copies of few bytes would become calls
/// where there are many.
#[cfg(target_arch = "x86_64")]
#[cold]
#[inline(never)]
fn last_words(count: usize, from: &[u8], stride: usize) -> [[u8; 64]; 4] {
    words_of(count, from, stride)
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
    /// Four bytes of a row as they are kept: bytes, or the numbers that they become in a register.
    type Four: bytemuck::Pod;
    /// Four bytes of a row, for all columns.
    type Left: Copy;
    /// Four bytes of each column.
    type Right: Copy;

    /// Sums of nothing.
    fn zero(self) -> Self::ColumnSums;

    /// Four bytes of a row, which are signed where `SIGNED`.
    fn kept<const SIGNED: bool>(bytes: [u8; 4]) -> Self::Four;

    /// Those bytes for all columns.
    fn left(self, four: Self::Four) -> Self::Left;

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

/// Four bytes as 16-bit numbers.
#[inline(always)]
fn numbers<const SIGNED: bool>(bytes: [u8; 4]) -> [i16; 4] {
    bytes.map(
        #[inline(always)]
        |byte| if SIGNED { i16::from(byte as i8) } else { i16::from(byte) },
    )
}

/// What is compiled for each kind of vector registers. It and what it calls must be `#[inline(always)]`.
pub(crate) trait WithDot {
    /// What it gives.
    type Output;
    /// Runs it.
    fn with<D: Dot>(self, dot: D) -> Self::Output;
}

/// Widens the `float16` numbers with the bits `from`, as many as `to` has.
pub(crate) fn widen_halves(from: &[u16], to: &mut [f32]) {
    match Unit::best() {
        Unit::Portable(_) => wide(
            #[inline(always)]
            || {
                for (to, from) in to.iter_mut().zip(from) {
                    *to = simd::widen_half(*from);
                }
            },
        ),
        unit => unit.run(Widened { from, to }),
    }
}

struct Widened<'a> {
    from: &'a [u16],
    to: &'a mut [f32],
}

impl WithDot for Widened<'_> {
    type Output = ();

    #[inline(always)]
    fn with<D: Dot>(self, dot: D) {
        let n = self.from.len().min(self.to.len());
        let (from, rest) = self.from[..n].as_chunks::<8>();
        let (to, last) = self.to[..n].as_chunks_mut::<8>();
        for (to, from) in to.iter_mut().zip(from) {
            *to = dot.halves(*from);
        }
        let numbers = dot.halves(filled(rest));
        for (to, number) in last.iter_mut().zip(numbers) {
            *to = number;
        }
    }
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
    /// All that this CPU has and [`Vectors::used`] allows, the fastest first.
    pub(crate) fn all() -> impl Iterator<Item = Unit> {
        let portable = Some(Unit::Portable(Portable));
        #[cfg(target_arch = "x86_64")]
        let units = [
            vnni::Vnni::try_new().filter(|_| Vectors::used() == Vectors::Widest).map(Unit::Vnni),
            avx2::Avx2::try_new().map(Unit::Avx2),
            portable,
        ];
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
            // A CPU with wider vectors than the oldest one's has another unit.
            Unit::Portable(dot) => task.with(dot),
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
mod tests;
