//! Codes of floats of at most 16 bits, and elements of less than 8 bits in files.

/// What lies beyond a format's finite numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Beyond {
    /// Infinities, then NaNs: the highest exponent is theirs.
    Infinity,
    /// NaN, with either sign: every bit of exponent and mantissa is set.
    Nan,
    /// One NaN: the code that negative zero would have.
    OneNan,
    Nothing,
    /// NaN, the code above those of the powers of two, which are all there is.
    Powers,
}

/// What becomes of a number beyond a format's largest finite one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Overflow {
    /// The largest finite number with its sign, of an infinity too.
    Saturate,
    /// An infinity where the format has one, else NaN, else the largest finite number.
    Special,
}

/// How a number between two powers of two becomes one of them ([`Format::power`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Rounding {
    /// The one farther from zero.
    Up,
    /// The one nearer to zero.
    Down,
    /// The nearer one; the one farther from zero where both are as near.
    Nearest,
}

/// How a format of floats codes numbers: sign, exponent and mantissa, from the highest bit to the lowest.
///
/// A code stands for `mantissa * 2^(1 - bias - mantissa_bits)` where the exponent is 0, else for
/// `(2^mantissa_bits + mantissa) * 2^(exponent - bias - mantissa_bits)` (IEEE 754-2019 section 3.4; OCP
/// "8-bit floating point specification" 1.0, section 5; OCP "microscaling formats" 1.0, section 5.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Format {
    exponent_bits: u32,
    mantissa_bits: u32,
    bias: i32,
    beyond: Beyond,
}

impl Format {
    /// OCP's E4M3: NaN and no infinity, at most 448.
    pub const E4M3_FN: Format = Format::new(4, 3, 7, Beyond::Nan);
    /// One NaN, no infinity, no negative zero, at most 240.
    pub const E4M3_FNUZ: Format = Format::new(4, 3, 8, Beyond::OneNan);
    /// OCP's E5M2: infinities and NaN, at most 57344.
    pub const E5M2: Format = Format::new(5, 2, 15, Beyond::Infinity);
    /// One NaN, no infinity, no negative zero, at most 57344.
    pub const E5M2_FNUZ: Format = Format::new(5, 2, 16, Beyond::OneNan);
    /// OCP's E8M0: powers of two without a sign, and NaN.
    pub const E8M0: Format = Format::new(8, 0, 127, Beyond::Powers);
    /// OCP's E2M1: finite, at most 6.
    pub const E2M1: Format = Format::new(2, 1, 1, Beyond::Nothing);
    /// IEEE 754's binary16.
    pub const BINARY16: Format = Format::new(5, 10, 15, Beyond::Infinity);
    /// The upper half of IEEE 754's binary32.
    pub const BFLOAT16: Format = Format::new(8, 7, 127, Beyond::Infinity);

    const fn new(exponent_bits: u32, mantissa_bits: u32, bias: i32, beyond: Beyond) -> Format {
        Format { exponent_bits, mantissa_bits, bias, beyond }
    }

    /// The code of a number: the nearest one, of two as near the one with an even mantissa.
    ///
    /// NaN is coded with its sign; a format without NaN has negative zero for it. Of E8M0 this is
    /// [`Format::power`], rounding up.
    pub fn encode(self, v: f64, overflow: Overflow) -> u16 {
        if self.beyond == Beyond::Powers {
            return u16::from(Format::power(v as f32, overflow, Rounding::Up));
        }
        let sign_bit = 1u16 << (self.exponent_bits + self.mantissa_bits);
        let sign = if v.is_sign_negative() { sign_bit } else { 0 };
        let all = sign_bit - 1;
        let infinity = all - ((1 << self.mantissa_bits) - 1);
        let (largest, nan, over) = match self.beyond {
            Beyond::Infinity => {
                (infinity - 1, sign | infinity | 1 << (self.mantissa_bits - 1), sign | infinity)
            }
            Beyond::Nan | Beyond::Powers => (all - 1, sign | all, sign | all),
            Beyond::OneNan => (all, sign_bit, sign_bit),
            Beyond::Nothing => (all, sign_bit, sign | all),
        };
        if v.is_nan() {
            return nan;
        }
        let size = v.abs();
        let lowest = 1 - self.bias;
        let exponent = ((size.to_bits() >> 52) as i32 - 1023).max(lowest);
        // Exact: a multiplication by a power of two. Above 2^16 bits of exponent nothing is left to round.
        let units = size * power_of_two((self.mantissa_bits as i32 - exponent).max(-1022));
        let code = if size.is_infinite() {
            u64::MAX
        } else {
            (((exponent - lowest) as u64) << self.mantissa_bits) + units.round_ties_even() as u64
        };
        if code > u64::from(largest) {
            return if overflow == Overflow::Saturate { sign | largest } else { over };
        }
        let code = code as u16;
        if code == 0 && self.beyond == Beyond::OneNan { 0 } else { sign | code }
    }

    /// The number that `code` stands for; bits above the format's are ignored.
    pub fn decode(self, code: u16) -> f32 {
        if self.beyond == Beyond::Powers {
            let code = code & 0xFF;
            return if code == 0xFF { f32::NAN } else { power_of_two(i32::from(code) - 127) as f32 };
        }
        let sign_bit = 1u16 << (self.exponent_bits + self.mantissa_bits);
        let (all, sign) = (sign_bit - 1, code & sign_bit != 0);
        let code = code & all;
        let mantissa = code & ((1 << self.mantissa_bits) - 1);
        let exponent = code >> self.mantissa_bits;
        let nan = match self.beyond {
            Beyond::Infinity => {
                if exponent == (1 << self.exponent_bits) - 1 {
                    let size = if mantissa == 0 { f32::INFINITY } else { f32::NAN };
                    return if sign { -size } else { size };
                }
                false
            }
            Beyond::Nan | Beyond::Powers => code == all,
            Beyond::OneNan => sign && code == 0,
            Beyond::Nothing => false,
        };
        if nan {
            return if sign { -f32::NAN } else { f32::NAN };
        }
        let whole = if exponent == 0 { mantissa } else { mantissa | 1 << self.mantissa_bits };
        let scale = power_of_two(i32::from(exponent.max(1)) - self.bias - self.mantissa_bits as i32);
        let size = (f64::from(whole) * scale) as f32;
        if sign { -size } else { size }
    }

    /// The code of the power of two (E8M0) that stands for `v`; of a negative number that for its size.
    ///
    /// Zero and numbers below the smallest power become that; NaN and infinities NaN, an infinity that
    /// [`Overflow::Saturate`]s the largest power (ONNX, `Cast`, the table of FLOAT8E8M0).
    pub fn power(v: f32, overflow: Overflow, rounding: Rounding) -> u8 {
        let bits = v.to_bits();
        let (exponent, fraction) = ((bits >> 23 & 0xFF) as u8, bits & 0x7F_FFFF);
        if exponent == 0xFF {
            let saturates = fraction == 0 && overflow == Overflow::Saturate;
            return if saturates { 0xFE } else { 0xFF };
        }
        let up = match rounding {
            Rounding::Up => fraction > 0,
            Rounding::Down => false,
            // The numbers below 2^-126 have no bit for their integer part: 2^-127 is half of that.
            Rounding::Nearest if exponent == 0 => fraction >= 0x60_0000,
            Rounding::Nearest => fraction >= 0x40_0000,
        };
        // Below 2^-126 the lower neighbour is 2^-127 from its half on, and always.
        let up = up && (exponent > 0 || fraction > 0x40_0000);
        let code = exponent.saturating_add(u8::from(up));
        if code == 0xFF && overflow == Overflow::Saturate { 0xFE } else { code }
    }
}

/// `2^e`, of exponents from -1022 to 1023.
fn power_of_two(e: i32) -> f64 {
    f64::from_bits(((e + 1023) as u64) << 52)
}

/// Packs elements of `bits` (2 or 4) bits, one in each byte, as ONNX stores them: the first one in the lowest
/// bits (onnx.proto, `TensorProto.raw_data`). Bits above `bits` are dropped.
pub fn pack_bits(elements: &[u8], bits: usize) -> Vec<u8> {
    let bits = bits.clamp(1, 8);
    let mask = (0xFFu16 >> (8 - bits)) as u8;
    let pack =
        |group: &[u8]| group.iter().rev().fold(0u16, |byte, e| byte << bits | u16::from(e & mask)) as u8;
    elements.chunks(8 / bits).map(pack).collect()
}

/// Unpacks elements of `bits` (2 or 4) bits in place: the packed bytes are at the beginning of `elements`,
/// which has a byte for each element. `signed` elements get their sign in the bits above.
pub fn unpack_bits(elements: &mut [u8], bits: usize, signed: bool) {
    let bits = bits.clamp(1, 8);
    let each = 8 / bits;
    // From the last one back, so that no byte is overwritten before it has been read.
    for i in (0..elements.len()).rev() {
        let byte = elements.get(i / each).copied().unwrap_or(0);
        let high = byte << (8 - bits - i % each * bits);
        let value = if signed { ((high as i8) >> (8 - bits)) as u8 } else { high >> (8 - bits) };
        if let Some(slot) = elements.get_mut(i) {
            *slot = value;
        }
    }
}

#[cfg(test)]
mod tests {
    use half::{bf16, f16};

    use super::*;

    const ALL: [Format; 7] = [
        Format::E4M3_FN,
        Format::E4M3_FNUZ,
        Format::E5M2,
        Format::E5M2_FNUZ,
        Format::E2M1,
        Format::BINARY16,
        Format::BFLOAT16,
    ];

    fn codes(f: Format) -> std::ops::RangeInclusive<u16> {
        0..=(u32::MAX >> (31 - f.exponent_bits - f.mantissa_bits)) as u16
    }

    #[test]
    fn every_code_comes_back() {
        for f in ALL {
            for code in codes(f) {
                let v = f.decode(code);
                for overflow in [Overflow::Saturate, Overflow::Special] {
                    let back = f.encode(v.into(), overflow);
                    let saturated = v.is_infinite() && overflow == Overflow::Saturate;
                    assert!(saturated || v.is_nan() || back == code, "{f:?} {code:#x}: {v} became {back:#x}");
                }
                if v.is_nan() {
                    assert!(f.decode(f.encode(v.into(), Overflow::Saturate)).is_nan());
                }
            }
        }
    }

    #[test]
    fn numbers_become_the_nearest_code() {
        for f in ALL {
            let mut finite: Vec<(f32, u16)> =
                codes(f).map(|c| (f.decode(c), c)).filter(|(v, _)| v.is_finite() && *v >= 0.0).collect();
            finite.sort_by(|a, b| a.0.total_cmp(&b.0));
            for pair in finite.windows(2) {
                let ((low, a), (high, b)) = (pair[0], pair[1]);
                if low == high {
                    continue;
                }
                let half = (f64::from(low) + f64::from(high)) / 2.0;
                let even = if a & 1 == 0 { a } else { b };
                let near = |v: f64| f.decode(f.encode(v, Overflow::Special));
                assert_eq!(near(half), f.decode(even), "{f:?} {half}");
                assert_eq!(near(half * (1.0 - 1e-12)), low);
                assert_eq!(near(half * (1.0 + 1e-12)), high);
                assert_eq!(near(-half * (1.0 + 1e-12)), -high);
            }
        }
        // Twice rounded it would be 1: once to binary32, once to binary16.
        assert_eq!(Format::BINARY16.encode(1.0 + 2f64.powi(-11) + 2f64.powi(-40), Overflow::Special), 0x3C01);
        for i in 0..2000 {
            let v = (f64::from(i) - 1000.0) * 77.75;
            assert_eq!(Format::BINARY16.encode(v, Overflow::Special), f16::from_f32(v as f32).to_bits());
            assert_eq!(Format::BFLOAT16.encode(v, Overflow::Special), bf16::from_f32(v as f32).to_bits());
        }
    }

    #[test]
    fn what_is_too_large_follows_the_tables_of_onnx() {
        let (nan, inf) = (f64::NAN, f64::INFINITY);
        let both = |f: Format, v: f64| [Overflow::Saturate, Overflow::Special].map(|o| f.encode(v, o));
        assert_eq!(both(Format::E4M3_FN, inf), [0x7E, 0x7F]);
        assert_eq!(both(Format::E4M3_FN, -1e9), [0xFE, 0xFF]);
        assert_eq!(both(Format::E4M3_FN, 464.0), [0x7E, 0x7E]);
        assert_eq!(both(Format::E4M3_FN, 464.1), [0x7E, 0x7F]);
        assert_eq!(both(Format::E4M3_FN, nan), [0x7F, 0x7F]);
        assert_eq!(both(Format::E4M3_FNUZ, inf), [0x7F, 0x80]);
        assert_eq!(both(Format::E4M3_FNUZ, -248.1), [0xFF, 0x80]);
        assert_eq!(both(Format::E4M3_FNUZ, -0.0), [0, 0]);
        assert_eq!(both(Format::E4M3_FNUZ, -1e-9), [0, 0]);
        assert_eq!(both(Format::E4M3_FNUZ, nan), [0x80, 0x80]);
        assert_eq!(both(Format::E5M2, inf), [0x7B, 0x7C]);
        assert_eq!(both(Format::E5M2, -70000.0), [0xFB, 0xFC]);
        assert_eq!(both(Format::E5M2, f64::MAX), [0x7B, 0x7C]);
        assert_eq!(both(Format::E5M2_FNUZ, inf), [0x7F, 0x80]);
        assert_eq!(both(Format::E2M1, 1e9), [7, 7]);
        assert_eq!(both(Format::E2M1, -inf), [15, 15]);
        assert_eq!(both(Format::E2M1, 2.5), [4, 4]);
        assert_eq!(both(Format::BINARY16, 65520.0)[1], 0x7C00);
    }

    #[test]
    fn powers_of_two_are_rounded_as_asked() {
        use Rounding::{Down, Nearest, Up};
        let code = |v: f32, r| Format::power(v, Overflow::Saturate, r);
        assert_eq!([Up, Down, Nearest].map(|r| code(1.0, r)), [127; 3]);
        assert_eq!([Up, Down, Nearest].map(|r| code(1.25, r)), [128, 127, 127]);
        assert_eq!([Up, Down, Nearest].map(|r| code(1.5, r)), [128, 127, 128]);
        assert_eq!([Up, Down, Nearest].map(|r| code(0.0, r)), [0; 3]);
        assert_eq!([Up, Down, Nearest].map(|r| code(f32::MAX, r)), [254; 3]);
        assert_eq!(Format::power(f32::MAX, Overflow::Special, Up), 255);
        assert_eq!(code(f32::INFINITY, Up), 254);
        assert_eq!(Format::power(f32::INFINITY, Overflow::Special, Up), 255);
        assert_eq!(code(f32::NAN, Up), 255);
        for c in 0..=254 {
            let v = Format::E8M0.decode(c);
            assert_eq!(Format::E8M0.encode(v.into(), Overflow::Special), c, "{v}");
        }
        assert!(Format::E8M0.decode(255).is_nan());
    }

    #[test]
    fn packed_elements_come_back() {
        assert_eq!(pack_bits(&[1, 2, 15], 4), [0x21, 0x0F]);
        assert_eq!(pack_bits(&[1, 2, 3, 0, 1], 2), [0b00_11_10_01, 1]);
        for bits in [2, 4] {
            for n in 0..17u8 {
                let elements: Vec<u8> = (0..n).map(|i| i.wrapping_mul(7) & ((1 << bits) - 1)).collect();
                let mut bytes = pack_bits(&elements, bits);
                bytes.resize(elements.len(), 0xAA);
                let mut signed = bytes.clone();
                unpack_bits(&mut bytes, bits, false);
                assert_eq!(bytes, elements);
                unpack_bits(&mut signed, bits, true);
                let want: Vec<u8> =
                    elements.iter().map(|e| ((e << (8 - bits)) as i8 >> (8 - bits)) as u8).collect();
                assert_eq!(signed, want);
            }
        }
    }
}
