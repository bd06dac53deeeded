//! Products of bytes with AVX512's VNNI: `vpdpbusd` adds four products of unsigned and signed bytes to every 32-bit
//! sum, which wraps around (Intel 64 and IA-32 Architectures Software Developer's Manual, volume 2, VPDPBUSD; the
//! variant that saturates is VPDPBUSDS).

#![allow(unsafe_code, reason = "the one instruction that pulp has no function for")]

use std::arch::x86_64::{__m512i, _mm512_dpbusd_epi32};

use super::Dot;

pulp::simd_type! {
    /// Shows that the CPU has these instructions.
    pub(crate) struct Vnni {
        pub(crate) avx2: "avx2",
        pub(crate) fma: "fma",
        pub(crate) avx512f: "avx512f",
        pub(crate) avx512bw: "avx512bw",
        pub(crate) avx512cd: "avx512cd",
        pub(crate) avx512dq: "avx512dq",
        pub(crate) avx512vl: "avx512vl",
        pub(crate) avx512vnni: "avx512vnni",
    }
}

impl Dot for Vnni {
    const LANES: usize = 16;
    const ROWS: usize = 8;
    const VECTORS: usize = 3;
    type Sums = __m512i;
    type Left = __m512i;
    type Right = __m512i;

    #[inline(always)]
    fn zero(self) -> __m512i {
        self.avx512f._mm512_setzero_si512()
    }

    #[inline(always)]
    fn left<const SIGNED: bool>(self, four: [u8; 4]) -> __m512i {
        self.avx512f._mm512_set1_epi32(i32::from_le_bytes(four))
    }

    #[inline(always)]
    fn right<const SIGNED: bool>(self, bytes: &[u8]) -> __m512i {
        bytes.first_chunk::<64>().map_or_else(|| self.zero(), |bytes| pulp::cast!(*bytes))
    }

    #[inline(always)]
    fn add<const LEFT_SIGNED: bool>(self, sums: __m512i, left: __m512i, right: __m512i) -> __m512i {
        let (unsigned, signed) = if LEFT_SIGNED { (right, left) } else { (left, right) };
        // SAFETY: a `Vnni` is made by `try_new` alone, which finds `avx512f` and `avx512vnni`; there is no memory access.
        unsafe { _mm512_dpbusd_epi32(sums, unsigned, signed) }
    }

    #[inline(always)]
    fn store(self, sums: __m512i, to: &mut [i32]) {
        let sums: [i32; 16] = pulp::cast!(sums);
        to.iter_mut().zip(sums).for_each(|(to, sum)| *to = sum);
    }
}
