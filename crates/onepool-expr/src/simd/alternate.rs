//! Every second element.

use pulp::{Simd, bytemuck};

/// Takes every second element of vectors, by the instructions that this CPU has for it: compilers make loads of single elements of
/// what says so in a loop.
#[derive(Clone, Copy)]
pub struct Alternate {
    #[cfg(target_arch = "x86_64")]
    wide: Option<pulp::x86::V4>,
    #[cfg(target_arch = "x86_64")]
    narrow: Option<pulp::x86::V3>,
}

impl Alternate {
    /// What this CPU has for it.
    #[inline(always)]
    pub fn detect() -> Alternate {
        Alternate {
            #[cfg(target_arch = "x86_64")]
            wide: pulp::x86::V4::try_new(),
            #[cfg(target_arch = "x86_64")]
            narrow: pulp::x86::V3::try_new(),
        }
    }

    /// The first, third, ... elements of `a`, then those of `b`.
    #[inline(always)]
    pub fn evens<S: Simd>(self, simd: S, a: S::f32s, b: S::f32s) -> S::f32s {
        self.of::<S, 0>(simd, a, b)
    }

    /// The second, fourth, ... elements of `a`, then those of `b`.
    #[inline(always)]
    pub fn odds<S: Simd>(self, simd: S, a: S::f32s, b: S::f32s) -> S::f32s {
        self.of::<S, 1>(simd, a, b)
    }

    /// Those whose places are `ODD` modulo two.
    #[inline(always)]
    fn of<S: Simd, const ODD: u32>(self, _: S, a: S::f32s, b: S::f32s) -> S::f32s {
        #[cfg(target_arch = "x86_64")]
        {
            if let (16, Some(cpu)) = (S::F32_LANES, self.wide) {
                let places: [u32; 16] = std::array::from_fn(
                    #[inline(always)]
                    |i| 2 * i as u32 + ODD,
                );
                let (a, b) = (bytemuck::cast::<_, pulp::f32x16>(a), bytemuck::cast::<_, pulp::f32x16>(b));
                let places = pulp::cast!(places);
                let taken = cpu.avx512f._mm512_permutex2var_ps(pulp::cast!(a), places, pulp::cast!(b));
                let taken: pulp::f32x16 = pulp::cast!(taken);
                return bytemuck::cast(taken);
            }
            if let (8, Some(cpu)) = (S::F32_LANES, self.narrow) {
                let (a, b) = (bytemuck::cast::<_, pulp::f32x8>(a), bytemuck::cast::<_, pulp::f32x8>(b));
                let (a, b) = (pulp::cast!(a), pulp::cast!(b));
                // Pairs of `a` and of `b` alternate: the pairs of `a` come before those of `b` after the permutation.
                let mixed = match ODD {
                    0 => cpu.avx._mm256_shuffle_ps::<0b10_00_10_00>(a, b),
                    _ => cpu.avx._mm256_shuffle_ps::<0b11_01_11_01>(a, b),
                };
                let taken = cpu.avx2._mm256_permute4x64_pd::<0b11_01_10_00>(pulp::cast!(mixed));
                let taken: pulp::f32x8 = pulp::cast!(taken);
                return bytemuck::cast(taken);
            }
        }
        let both = [a, b];
        let all = bytemuck::cast_slice::<S::f32s, f32>(&both);
        let mut taken = a;
        let to = bytemuck::cast_slice_mut::<S::f32s, f32>(std::slice::from_mut(&mut taken));
        to.iter_mut().zip(all.iter().skip(ODD as usize).step_by(2)).for_each(
            #[inline(always)]
            |(to, from)| *to = *from,
        );
        taken
    }
}

#[cfg(test)]
mod tests {
    use pulp::{Arch, WithSimd};

    use super::*;
    use crate::simd::arch;

    struct Both<'a>(&'a [f32], [&'a mut [f32]; 2]);

    impl WithSimd for Both<'_> {
        type Output = usize;

        #[inline(always)]
        fn with_simd<S: Simd>(self, simd: S) -> usize {
            let (alternate, from) = (Alternate::detect(), S::as_simd_f32s(self.0).0);
            let [evens, odds] = self.1.map(|to| S::as_mut_simd_f32s(to).0);
            for ((evens, odds), from) in evens.iter_mut().zip(odds).zip(from.chunks_exact(2)) {
                *evens = alternate.evens(simd, from[0], from[1]);
                *odds = alternate.odds(simd, from[0], from[1]);
            }
            S::F32_LANES
        }
    }

    #[test]
    fn every_second_element_is_taken() {
        let from: Vec<f32> = (0..64).map(|i| i as f32).collect();
        #[cfg(target_arch = "x86_64")]
        let narrow = pulp::x86::V3::try_new().map(Arch::V3);
        #[cfg(not(target_arch = "x86_64"))]
        let narrow = None;
        let all = [Some(Arch::Scalar), Some(arch()), narrow];
        for arch in all.into_iter().flatten() {
            let (mut evens, mut odds) = ([0.0; 32], [0.0; 32]);
            let lanes = arch.dispatch(Both(&from, [&mut evens, &mut odds]));
            assert_eq!(evens, std::array::from_fn(|i| 2.0 * i as f32), "in vectors of {lanes}");
            assert_eq!(odds, std::array::from_fn(|i| 2.0 * i as f32 + 1.0), "in vectors of {lanes}");
        }
    }
}
