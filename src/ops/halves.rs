//! `float16` and `bfloat16` numbers as `f32` and back, many at a time.

use half::slice::HalfFloatSliceExt;
use half::{bf16, f16};

use super::par;
use crate::dot::widen_halves;
use crate::dtype::Element;
use crate::simd::{self, wide};

/// A type of 16 bits that is computed with in `f32`.
pub(crate) trait Half: Element + Send + Sync {
    /// The number, in code that compilers make vectors of.
    fn widen(self) -> f32;

    /// The number that is nearest to `v`, of two as near the even one, in such code.
    fn nearest(v: f32) -> Self;

    /// Widens all of `from`, as many as `to` has.
    fn widen_all(from: &[Self], to: &mut [f32]);

    /// Rounds all of `from`, as many as `to` has.
    fn round_all(from: &[f32], to: &mut [Self]);
}

impl Half for f16 {
    #[inline(always)]
    fn widen(self) -> f32 {
        simd::widen_half(self.to_bits())
    }

    #[inline(always)]
    fn nearest(v: f32) -> Self {
        let (bits, sign) = (v.to_bits() & 0x7fff_ffff, (v.to_bits() >> 16) & 0x8000);
        // Below the smallest normal number an addition rounds: the unit of 0.5 is that of subnormal numbers.
        let small = (f32::from_bits(bits) + 0.5).to_bits().wrapping_sub(0.5f32.to_bits());
        let even = (bits >> 13) & 1;
        let normal = bits.wrapping_sub(112 << 23).wrapping_add(0xfff + even) >> 13;
        let finite = if bits < 113 << 23 { small } else { normal };
        let beyond = if bits > 0x7f80_0000 { 0x7e00 } else { 0x7c00 };
        let half = if bits >= 143 << 23 { beyond } else { finite };
        f16::from_bits((half | sign) as u16)
    }

    fn widen_all(from: &[Self], to: &mut [f32]) {
        widen_halves(from.reinterpret_cast(), to);
    }

    fn round_all(from: &[f32], to: &mut [Self]) {
        to.convert_from_f32_slice(from);
    }
}

impl Half for bf16 {
    #[inline(always)]
    fn widen(self) -> f32 {
        f32::from_bits(u32::from(self.to_bits()) << 16)
    }

    #[inline(always)]
    fn nearest(v: f32) -> Self {
        let bits = v.to_bits();
        let rounded = bits.wrapping_add(0x7fff + ((bits >> 16) & 1)) >> 16;
        let quiet = bits >> 16 | 0x40;
        bf16::from_bits(if bits & 0x7fff_ffff > 0x7f80_0000 { quiet } else { rounded } as u16)
    }

    fn widen_all(from: &[Self], to: &mut [f32]) {
        wide(
            #[inline(always)]
            || to.iter_mut().zip(from).for_each(|(to, from)| *to = from.widen()),
        );
    }

    fn round_all(from: &[f32], to: &mut [Self]) {
        to.convert_from_f32_slice(from);
    }
}

/// Widens `from` into `to`, which is as long, on all threads where that pays.
pub(crate) fn widen<H: Half>(from: &[H], to: &mut [f32]) {
    par::parts(to, |start, part| H::widen_all(&from[start..start + part.len()], part));
}

/// Rounds `from` into `to`, which is as long, on all threads where that pays.
pub(crate) fn round<H: Half>(from: &[f32], to: &mut [H]) {
    par::parts(to, |start, part| H::round_all(&from[start..start + part.len()], part));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_half_is_widened_to_its_number() {
        let all: Vec<u16> = (0..=u16::MAX).collect();
        let same = |a: f32, b: f32| a.to_bits() == b.to_bits() || a.is_nan() && b.is_nan();
        let f16s: Vec<f16> = all.iter().map(|b| f16::from_bits(*b)).collect();
        let bf16s: Vec<bf16> = all.iter().map(|b| bf16::from_bits(*b)).collect();
        let (mut a, mut b) = (vec![1.0f32; all.len()], vec![1.0f32; all.len()]);
        widen(&f16s, &mut a);
        widen(&bf16s, &mut b);
        for i in 0..all.len() {
            let (x, y) = (f16s[i], bf16s[i]);
            assert!(same(x.widen(), x.to_f32()) && same(a[i], x.to_f32()), "{x:?}: {} {}", x.widen(), a[i]);
            assert!(same(y.widen(), y.to_f32()) && same(b[i], y.to_f32()), "{y:?}: {} {}", y.widen(), b[i]);
        }
        let (mut c, mut d) = (vec![f16::ONE; all.len()], vec![bf16::ONE; all.len()]);
        round(&a, &mut c);
        round(&b, &mut d);
        assert!(c.iter().zip(&f16s).all(|(c, x)| c.to_bits() == x.to_bits() || c.is_nan() && x.is_nan()));
        assert!(d.iter().zip(&bf16s).all(|(d, x)| d.to_bits() == x.to_bits() || d.is_nan() && x.is_nan()));
        // Numbers between them, and their bounds.
        for i in 0..0xffff_u32 {
            for low in [0, 1, 0x0fff, 0x1000, 0x1001, 0x7fff, 0x8000, 0x8001, 0xffff] {
                let v = f32::from_bits(i << 16 | low);
                let (x, y) = (f16::nearest(v), bf16::nearest(v));
                assert!(
                    x.to_bits() == f16::from_f32(v).to_bits() || x.is_nan() && v.is_nan(),
                    "{v:e}: {x:?}"
                );
                assert!(
                    y.to_bits() == bf16::from_f32(v).to_bits() || y.is_nan() && v.is_nan(),
                    "{v:e}: {y:?}"
                );
            }
        }
        let mut some = [f16::ZERO; 3];
        round(&[2049.0, 2051.0, 1e9], &mut some);
        assert_eq!(some.map(f16::to_f32), [2048.0, 2052.0, f32::INFINITY]);
    }
}
