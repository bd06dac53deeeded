//! Element types and the Rust types that hold them.

#![forbid(unsafe_code)]

mod narrow;

pub use narrow::{Format, Overflow, Rounding, pack_bits, unpack_bits};

use std::fmt;

/// The type of a tensor's elements.
///
/// Every element takes whole bytes in memory: one of a type of less than 8 bits is held in a byte of its
/// own, an `int4` or `int2` with its sign extended, the others with zeros above their bits. Files pack
/// them ([`pack_bits`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum DType {
    /// IEEE 754 binary32.
    F32,
    /// IEEE 754 binary16.
    F16,
    /// bfloat16: the upper half of a binary32.
    BF16,
    /// IEEE 754 binary64.
    F64,
    /// Signed 8 bit.
    I8,
    /// Signed 16 bit.
    I16,
    /// Signed 32 bit.
    I32,
    /// Signed 64 bit.
    I64,
    /// Unsigned 8 bit.
    U8,
    /// Unsigned 16 bit.
    U16,
    /// Unsigned 32 bit.
    U32,
    /// Unsigned 64 bit.
    U64,
    /// One byte, 0 or 1.
    Bool,
    /// 8-bit float of 4 exponent and 3 mantissa bits with NaN and no infinity (OCP 8-bit floating point 1.0).
    F8E4M3Fn,
    /// 8-bit float of 4 exponent and 3 mantissa bits, one NaN, no infinity and no negative zero.
    F8E4M3FnUz,
    /// 8-bit float of 5 exponent and 2 mantissa bits with NaN and infinities (OCP 8-bit floating point 1.0).
    F8E5M2,
    /// 8-bit float of 5 exponent and 2 mantissa bits, one NaN, no infinity and no negative zero.
    F8E5M2FnUz,
    /// A power of two from 2^-127 to 2^127, or NaN (OCP microscaling formats 1.0).
    F8E8M0,
    /// 4-bit float of 2 exponent bits and 1 mantissa bit, finite (OCP microscaling formats 1.0).
    F4E2M1,
    /// Signed 4 bit.
    I4,
    /// Unsigned 4 bit.
    U4,
    /// Signed 2 bit.
    I2,
    /// Unsigned 2 bit.
    U2,
}

impl DType {
    /// Every element type.
    pub const ALL: [DType; 23] = [
        DType::F32,
        DType::F16,
        DType::BF16,
        DType::F64,
        DType::I8,
        DType::I16,
        DType::I32,
        DType::I64,
        DType::U8,
        DType::U16,
        DType::U32,
        DType::U64,
        DType::Bool,
        DType::F8E4M3Fn,
        DType::F8E4M3FnUz,
        DType::F8E5M2,
        DType::F8E5M2FnUz,
        DType::F8E8M0,
        DType::F4E2M1,
        DType::I4,
        DType::U4,
        DType::I2,
        DType::U2,
    ];

    /// The element types that operators compute in; the others ([`DType::is_narrow`]) are moved, converted
    /// and quantized only.
    pub const COMPUTE: [DType; 13] = match DType::ALL.first_chunk() {
        Some(first) => *first,
        None => panic!("there are more than 13"),
    };

    /// Those of [`DType::COMPUTE`] that are numbers: all but the last, `Bool`.
    pub const NUMBERS: &'static [DType] = DType::COMPUTE.split_at(DType::COMPUTE.len() - 1).0;

    /// Bytes of one element in memory.
    pub const fn bytes(self) -> usize {
        match self {
            DType::I8 | DType::U8 | DType::Bool => 1,
            DType::F8E4M3Fn | DType::F8E4M3FnUz | DType::F8E5M2 | DType::F8E5M2FnUz | DType::F8E8M0 => 1,
            DType::F4E2M1 | DType::I4 | DType::U4 | DType::I2 | DType::U2 => 1,
            DType::F16 | DType::BF16 | DType::I16 | DType::U16 => 2,
            DType::F32 | DType::I32 | DType::U32 => 4,
            DType::F64 | DType::I64 | DType::U64 => 8,
        }
    }

    /// Bits of one element in a file.
    pub const fn bits(self) -> usize {
        match self {
            DType::F4E2M1 | DType::I4 | DType::U4 => 4,
            DType::I2 | DType::U2 => 2,
            _ => self.bytes() * 8,
        }
    }

    /// Whether the type is a floating-point one that operators compute in.
    pub const fn is_float(self) -> bool {
        matches!(self, DType::F32 | DType::F16 | DType::BF16 | DType::F64)
    }

    /// Whether the type is an integer that operators compute in, signed or not; `Bool` is none.
    pub const fn is_int(self) -> bool {
        !self.is_float() && !self.is_narrow() && !matches!(self, DType::Bool)
    }

    /// Whether the type is a signed integer that operators compute in.
    pub const fn is_signed_int(self) -> bool {
        matches!(self, DType::I8 | DType::I16 | DType::I32 | DType::I64)
    }

    /// Whether the type is one of those made for storage: floats of at most 8 bits, integers of less.
    pub const fn is_narrow(self) -> bool {
        self.format().is_some() || self.bits() < 8
    }

    /// How a float of at most 8 bits is coded.
    pub const fn format(self) -> Option<Format> {
        Some(match self {
            DType::F8E4M3Fn => Format::E4M3_FN,
            DType::F8E4M3FnUz => Format::E4M3_FNUZ,
            DType::F8E5M2 => Format::E5M2,
            DType::F8E5M2FnUz => Format::E5M2_FNUZ,
            DType::F8E8M0 => Format::E8M0,
            DType::F4E2M1 => Format::E2M1,
            _ => return None,
        })
    }

    /// The name in messages and tables, as TVM, NumPy and its package ml_dtypes spell it.
    pub const fn name(self) -> &'static str {
        match self {
            DType::F32 => "float32",
            DType::F16 => "float16",
            DType::BF16 => "bfloat16",
            DType::F64 => "float64",
            DType::I8 => "int8",
            DType::I16 => "int16",
            DType::I32 => "int32",
            DType::I64 => "int64",
            DType::U8 => "uint8",
            DType::U16 => "uint16",
            DType::U32 => "uint32",
            DType::U64 => "uint64",
            DType::Bool => "bool",
            DType::F8E4M3Fn => "float8_e4m3fn",
            DType::F8E4M3FnUz => "float8_e4m3fnuz",
            DType::F8E5M2 => "float8_e5m2",
            DType::F8E5M2FnUz => "float8_e5m2fnuz",
            DType::F8E8M0 => "float8_e8m0fnu",
            DType::F4E2M1 => "float4_e2m1fn",
            DType::I4 => "int4",
            DType::U4 => "uint4",
            DType::I2 => "int2",
            DType::U2 => "uint2",
        }
    }

    /// The type named `name` ([`DType::name`]), if there is one.
    pub fn from_name(name: &str) -> Option<DType> {
        DType::ALL.into_iter().find(|d| d.name() == name)
    }
}

impl fmt::Display for DType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A Rust type that holds one element of a [`DType`].
///
/// `u8` also reads and writes `Bool`, whose bytes are 0 or 1, and the codes of narrow floats and unsigned
/// integers; `i8` reads and writes narrow signed integers.
pub trait Element: bytemuck::Pod + PartialEq + fmt::Debug + Send + Sync {
    /// The element type this is the natural holder of.
    const DTYPE: DType;

    /// Whether a tensor of `dtype` may be viewed as a slice of this type.
    fn holds(dtype: DType) -> bool {
        match dtype {
            DType::I4 | DType::I2 => Self::DTYPE == DType::I8,
            _ if dtype == DType::Bool || dtype.is_narrow() => Self::DTYPE == DType::U8,
            _ => dtype == Self::DTYPE,
        }
    }
}

macro_rules! elements {
    ($($t:ty: $dtype:ident)*) => {$(
        impl Element for $t {
            const DTYPE: DType = DType::$dtype;
        }
    )*};
}

elements!(f32: F32 f64: F64 half::f16: F16 half::bf16: BF16);
elements!(i8: I8 i16: I16 i32: I32 i64: I64 u8: U8 u16: U16 u32: U32 u64: U64);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_round_trip_and_are_distinct() {
        for d in DType::ALL {
            assert_eq!(DType::from_name(d.name()), Some(d));
        }
        assert_eq!(DType::from_name("float31"), None);
    }

    #[test]
    fn bool_is_viewed_as_bytes_but_bytes_are_not_viewed_as_int8() {
        assert!(<u8 as Element>::holds(DType::Bool));
        assert!(!<i8 as Element>::holds(DType::Bool));
        assert!(!<u8 as Element>::holds(DType::I8));
        assert!(<i8 as Element>::holds(DType::I4) && !<u8 as Element>::holds(DType::I4));
        assert!(<u8 as Element>::holds(DType::F8E5M2) && <u8 as Element>::holds(DType::U2));
    }

    #[test]
    fn every_type_is_computed_in_or_narrow() {
        for d in DType::ALL {
            assert_eq!(DType::COMPUTE.contains(&d), !d.is_narrow(), "{d}");
            let kinds = [d.is_float(), d.is_int(), d.is_narrow(), d == DType::Bool];
            assert_eq!(kinds.into_iter().filter(|k| *k).count(), 1, "{d}");
        }
    }
}
