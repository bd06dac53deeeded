//! `float16` numbers as `f32`.

/// The `float16` number with these bits, in code that compilers make vectors of.
#[inline(always)]
pub fn widen_half(bits: u16) -> f32 {
    let bits = u32::from(bits);
    // Exponent and mantissa in their places; the bias of the exponent differs by 112. Subnormal numbers follow too.
    let scaled = f32::from_bits((bits & 0x7fff) << 13) * f32::from_bits((127 + 112) << 23);
    // Infinities and what is no number have all bits of the exponent.
    let full = if bits & 0x7c00 == 0x7c00 { 0x7f80_0000 } else { 0 };
    f32::from_bits(scaled.to_bits() | full | (bits & 0x8000) << 16)
}

#[cfg(test)]
mod tests {
    use super::widen_half;

    #[test]
    fn every_number_is_widened() {
        for bits in 0..=u16::MAX {
            let (got, want) = (widen_half(bits), half::f16::from_bits(bits).to_f32());
            assert!(got.to_bits() == want.to_bits() || got.is_nan() && want.is_nan(), "{bits:x}");
        }
    }
}
