//! Numbers as OpenCL C writes them, to the last bit.

use half::f16;

use super::types::Num;
use crate::ScalarType;

/// The scalar of type `scalar` with the given bits, zero-extended.
pub(super) fn scalar(scalar: ScalarType, bits: u64, fp16: bool) -> String {
    use ScalarType as S;
    match scalar {
        S::Bool => if bits != 0 { "true" } else { "false" }.to_owned(),
        S::U8 | S::U16 | S::Bf16 => format!("(({}){bits})", Num::new(scalar, 1).c(fp16)),
        S::I8 => format!("((char){})", signed(i64::from(bits as u8 as i8))),
        S::I16 => format!("((short){})", signed(i64::from(bits as u16 as i16))),
        S::U32 => format!("{}u", bits as u32),
        S::I32 if bits as u32 == 1 << 31 => "(-2147483647 - 1)".to_owned(),
        S::I32 => signed(i64::from(bits as u32 as i32)),
        S::U64 => format!("{bits}ul"),
        S::I64 if bits == 1 << 63 => "(-9223372036854775807l - 1l)".to_owned(),
        S::I64 => match bits as i64 {
            value if value < 0 => format!("({value}l)"),
            value => format!("{value}l"),
        },
        S::F16 if fp16 => {
            let value = f16::from_bits(bits as u16);
            match value.is_finite() {
                true => format!("((half){}f)", hex(value.to_f64())),
                false => format!("as_half((ushort){:#x}u)", bits as u16),
            }
        }
        S::F16 => float(f16::from_bits(bits as u16).to_f32()),
        S::F32 => float(f32::from_bits(bits as u32)),
        S::F64 => match f64::from_bits(bits) {
            value if value.is_finite() => hex(value),
            value => format!("as_double({:#x}ul)", value.to_bits()),
        },
    }
}

fn signed(value: i64) -> String {
    if value < 0 { format!("({value})") } else { value.to_string() }
}

fn float(value: f32) -> String {
    match value.is_finite() {
        true if value.is_sign_negative() => format!("(-{}f)", hex(f64::from(-value))),
        true => format!("{}f", hex(f64::from(value))),
        false => format!("as_float({:#x}u)", value.to_bits()),
    }
}

/// A finite number as a hexadecimal floating literal of C99, without a suffix.
fn hex(value: f64) -> String {
    let bits = value.to_bits();
    let (exponent, mantissa) = ((bits >> 52) as i64 & 0x7ff, bits & ((1 << 52) - 1));
    let digits = format!("{mantissa:013x}");
    let digits = digits.trim_end_matches('0');
    let point = if digits.is_empty() { "" } else { "." };
    let text = match (exponent, mantissa) {
        (0, 0) => "0x0p+0".to_owned(),
        (0, _) => format!("0x0{point}{digits}p-1022"),
        _ => format!("0x1{point}{digits}p{:+}", exponent - 1023),
    };
    if value.is_sign_negative() { format!("(-{text})") } else { text }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn floats_keep_every_bit() {
        let of = |value: f32| scalar(ScalarType::F32, u64::from(value.to_bits()), false);
        assert_eq!(of(1.0), "0x1p+0f");
        assert_eq!(of(0.1), "0x1.99999ap-4f");
        assert_eq!(of(-2.5), "(-0x1.4p+1f)");
        assert_eq!(of(-0.0), "(-0x0p+0f)");
        assert_eq!(of(f32::from_bits(1)), "0x1p-149f");
        assert_eq!(of(f32::INFINITY), "as_float(0x7f800000u)");
        let of = |value: f64| scalar(ScalarType::F64, value.to_bits(), false);
        assert_eq!(of(0.1), "0x1.999999999999ap-4");
        assert_eq!(of(-f64::from_bits(1)), "(-0x0.0000000000001p-1022)");
        assert_eq!(scalar(ScalarType::F16, 0x3c01, true), "((half)0x1.004p+0f)");
        assert_eq!(scalar(ScalarType::F16, 0x3c01, false), "0x1.004p+0f");
        assert_eq!(scalar(ScalarType::F16, 0x7c00, true), "as_half((ushort)0x7c00u)");
    }

    #[test]
    fn integers() {
        assert_eq!(scalar(ScalarType::I32, 0x8000_0000, false), "(-2147483647 - 1)");
        assert_eq!(scalar(ScalarType::I32, 0xffff_ffff, false), "(-1)");
        assert_eq!(scalar(ScalarType::U32, 0xffff_ffff, false), "4294967295u");
        assert_eq!(scalar(ScalarType::I8, 0xff, false), "((char)(-1))");
        assert_eq!(scalar(ScalarType::I64, u64::MAX, false), "(-1l)");
        assert_eq!(scalar(ScalarType::Bool, 1, false), "true");
    }
}
