use half::f16;

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
                sums = dot.add::<LEFT>(sums, dot.left(D::kept::<LEFT>(*four)), dot.right::<RIGHT>(right));
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
            want += (0..len.div_ceil(width)).map(|j| scales[(j * width / 4) >> SHIFT] as i64).sum::<i64>();
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
        let values = self.0.as_chunks::<4>().0.as_chunks::<R>().0;
        dot.add_fours::<BITS, 8, R>(&mut sums, values.first_chunk().unwrap(), self.1);
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
                .map(|i| if extreme { [127, -127][i / 16 % 2] } else { (i * 37 % 255) as i32 - 127 } as u8)
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
                    assert_eq!(got[r * lanes + c], want as f32, "{unit:?}, {BITS} bits, row {r}, column {c}");
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
            let mut to = vec![0; 16 * D::SUMS];
            for (words, to) in dot.words(self.0, self.1).into_iter().zip(to.chunks_mut(4 * D::SUMS)) {
                dot.store_bytes(words, to);
            }
            to
        }
    }
    for unit in Unit::all() {
        let lanes = unit.sums();
        // Columns that lie apart, that overlap, and that end early or are not there.
        for (stride, len) in
            [(25, 25 * lanes), (4, 4 * lanes), (18, 18 * lanes - 5), (18, 18 * (lanes - 2) - 9), (9, 0)]
        {
            let from: Vec<u8> = (0..len).map(|i| (i * 7 + i / 256) as u8).collect();
            let got = unit.run(Words(&from, stride));
            for (i, got) in got.iter().enumerate() {
                let (word, c, byte) = (i / 4 / lanes, i / 4 % lanes, i % 4);
                let want = from.get(c * stride + 4 * word + byte).copied().unwrap_or(0);
                assert_eq!(*got, want, "{unit:?}, stride {stride}, word {word} of column {c}");
            }
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
            let codes = if BITS < 8 { dot.join(codes, dot.codes::<1>(codes, 0)) } else { dot.flip(codes) };
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
    codes_are_split::<4, 32>(32);
    codes_are_split::<4, 64>(64);
    codes_are_split::<2, 32>(32);
    codes_are_split::<1, 32>(32);
    codes_are_split::<8, 32>(34);
}

/// Four vectors of the codes of halves of blocks.
struct Halves<'a>(&'a [u8], usize);

impl WithDot for Halves<'_> {
    type Output = Vec<u8>;
    #[inline(always)]
    fn with<D: Dot>(self, dot: D) -> Vec<u8> {
        let mut all = vec![0; 16 * D::SUMS];
        for (v, to) in all.chunks_mut(4 * D::SUMS).enumerate() {
            dot.store_bytes(dot.split_halves(self.0, self.1, v), to);
        }
        all
    }
}

#[test]
fn halves_of_blocks_are_in_vectors_that_follow_one_another() {
    let stride = 18;
    let bytes: Vec<u8> = (0..8 * stride).map(|i| (i * 11 + i / 30) as u8).collect();
    for unit in Unit::all() {
        let got = unit.run(Halves(&bytes, stride));
        let mut runs: Vec<usize> = Vec::new();
        for (i, got) in got.as_chunks::<16>().0.iter().enumerate() {
            let run = halved(i, unit.sums());
            let block = &bytes[run / 2 * stride..][..16];
            let want: Vec<u8> = block.iter().map(|byte| byte >> (run % 2 * 4) & 15).collect();
            assert_eq!(got[..], want[..], "{unit:?}, 16 elements {i}");
            runs.push(run);
        }
        // Each once; and a block's halves have the same place in vectors that follow one another.
        let lanes = unit.sums() / 4;
        assert!((0..runs.len()).all(|i| i / lanes % 2 == 1 || runs[i + lanes] == runs[i] + 1), "{runs:?}");
        runs.sort_unstable();
        assert!(runs.iter().copied().eq(0..4 * lanes), "{unit:?}");
    }
}

#[test]
fn bits_become_ones() {
    struct Ones(u64);
    impl WithDot for Ones {
        type Output = Vec<u8>;
        #[inline(always)]
        fn with<D: Dot>(self, dot: D) -> Vec<u8> {
            let mut bytes = vec![7; 4 * D::SUMS];
            dot.store_bytes(dot.ones(self.0), &mut bytes);
            bytes
        }
    }
    for bits in [0, u64::MAX, 1, 0x8000_0001_c0f0_1234, 0x0123_4567_89ab_cdef] {
        for unit in Unit::all() {
            let ones = unit.run(Ones(bits));
            let want = (0..ones.len()).map(|i| (bits >> i & 1) as u8);
            assert!(ones.iter().copied().eq(want), "{unit:?}, {bits:x}: {ones:?}");
        }
    }
}

#[test]
fn halves_are_widened_alike() {
    struct Widened([u16; 8]);
    impl WithDot for Widened {
        type Output = [f32; 8];
        #[inline(always)]
        fn with<D: Dot>(self, dot: D) -> [f32; 8] {
            dot.halves(self.0)
        }
    }
    // Numbers, the smallest and largest ones, zeros, infinities.
    let bits = [0x3c00, 0xbc01, 0x0001, 0x83ff, 0x7bff, 0x8000, 0x7c00, 0xfc00];
    let want = bits.map(|bits| f16::from_bits(bits).to_f32().to_bits());
    for unit in Unit::all() {
        assert_eq!(unit.run(Widened(bits)).map(f32::to_bits), want, "{unit:?}");
        assert!(unit.run(Widened([0x7e01; 8])).iter().all(|v| v.is_nan()), "{unit:?}");
    }
}

#[test]
fn two_vectors_of_the_largest_codes_are_summed_exactly() {
    struct Two(u8, u8);
    impl WithDot for Two {
        type Output = f32;
        #[inline(always)]
        fn with<D: Dot>(self, dot: D) -> f32 {
            let [codes, signed] = [self.0, self.1].map(|byte| dot.four([byte; 4]));
            let sums = dot.add_two::<6>(dot.every_sum(5), [codes; 2], [signed; 2]);
            dot.total(dot.add_scaled(dot.every(0.0), sums, dot.every(1.0), dot.every(1.0)))
        }
    }
    for (code, signed) in [(63, 127i8), (63, -127), (1, -127), (31, 3)] {
        let want = (5 + 8 * i32::from(code) * i32::from(signed)) as f32;
        for unit in Unit::all() {
            assert_eq!(unit.run(Two(code, signed as u8)), want * unit.sums() as f32, "{unit:?}");
        }
    }
}

#[test]
fn four_vectors_become_one_of_their_sums() {
    /// Whether the sums are the largest that `small_fours` takes, and whether that is asked.
    struct Fours(bool, bool);
    impl WithDot for Fours {
        type Output = ();
        #[inline(always)]
        fn with<D: Dot>(self, dot: D) {
            let Fours(largest, small) = self;
            let number = |i: i32| match largest {
                true => [16378, 16378, -16383][i as usize / 8 % 3],
                false => i * i - 70,
            };
            let numbers: Vec<i32> = (0..4 * D::SUMS as i32).map(number).collect();
            let mut vectors = [dot.sums(&[]); 4];
            for (to, from) in vectors.iter_mut().zip(numbers.chunks(D::SUMS)) {
                *to = dot.plus(dot.sums(from), dot.sums(&[5]));
            }
            let scales: Vec<f32> = (0..D::SUMS).map(|i| (i + 1) as f32).collect();
            let halves: Vec<u16> = scales.iter().map(|scale| half::f16::from_f32(*scale).to_bits()).collect();
            let fours = if small { dot.small_fours(vectors) } else { dot.fours(vectors) };
            // One sum at a time: the others are multiplied by zero.
            for i in 0..D::SUMS {
                let (from, five) = (i % 4 * D::SUMS + (i - i % 4), if i < 4 { 5 } else { 0 });
                let want = numbers[from..from + 4].iter().sum::<i32>() + five;
                let mut places = vec![0; D::SUMS];
                places[i] = (D::SUMS - 1 - i) as i32;
                let mut own = vec![0.0; D::SUMS];
                own[i] = 1.0;
                let places = dot.sums(&places);
                for picked in [dot.pick(&scales, places), dot.pick_halves(&halves, places)] {
                    let total = dot.add_scaled(dot.reals(&[]), fours, picked, dot.reals(&own));
                    let want = (want * (D::SUMS - i) as i32) as f32;
                    assert_eq!(dot.total(total), want, "sum {i}, small: {small}");
                }
            }
        }
    }
    for (largest, small) in [(false, false), (false, true), (true, false), (true, true)] {
        Unit::all().for_each(|unit| unit.run(Fours(largest, small)));
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
                let sums = dot.add::<true>(
                    dot.zero(),
                    dot.left(D::kept::<true>([1; 4])),
                    dot.right::<false>(&[9; 3]),
                );
                let mut to = vec![7; D::LANES];
                dot.store(sums, &mut to);
                to
            }
        }
        assert!(unit.run(Short).iter().all(|v| *v == 0), "{unit:?}");
    }
}
