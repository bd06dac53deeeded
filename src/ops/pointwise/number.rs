//! Arithmetic of every element type under one name.

use half::{bf16, f16};

use crate::dtype::Element;
use crate::ops::halves::Half;

/// An element type that is a number. Integers wrap; half types compute in `f32`.
pub(crate) trait Number: Element + PartialOrd {
    /// 0.
    const ZERO: Self;
    /// Sum.
    fn add(self, o: Self) -> Self;
    /// Difference.
    fn sub(self, o: Self) -> Self;
    /// Product.
    fn mul(self, o: Self) -> Self;
    /// Quotient; of integers it is cut off toward zero, and 0 where the divisor is 0.
    fn div(self, o: Self) -> Self;
    /// Remainder with the sign of the dividend; 0 for an integer divisor of 0.
    fn fmod(self, o: Self) -> Self;
    /// Remainder with the sign of the divisor; 0 for an integer divisor of 0.
    fn modulo(self, o: Self) -> Self;
    /// The smaller one; NaN where either is.
    fn least(self, o: Self) -> Self;
    /// The larger one; NaN where either is.
    fn greatest(self, o: Self) -> Self;
    /// A whole power; of integers for a negative exponent the quotient 1 / power cut off.
    fn powi(self, e: i64) -> Self;
    /// The nearest `f64`.
    fn to_f64(self) -> f64;
    /// The nearest number; the low bits for integers.
    fn from_i64(v: i64) -> Self;
    /// The number cut off, within the range of `i64`.
    fn to_i64(self) -> i64;
    /// The nearest number; integers are cut off and kept within range.
    fn from_f64(v: f64) -> Self;
}

macro_rules! float {
    ($t:ty) => {
        impl Number for $t {
            const ZERO: Self = 0.0;
            #[inline(always)]
            fn add(self, o: Self) -> Self {
                self + o
            }
            #[inline(always)]
            fn sub(self, o: Self) -> Self {
                self - o
            }
            #[inline(always)]
            fn mul(self, o: Self) -> Self {
                self * o
            }
            #[inline(always)]
            fn div(self, o: Self) -> Self {
                self / o
            }
            fn fmod(self, o: Self) -> Self {
                self % o
            }
            fn modulo(self, o: Self) -> Self {
                let r = self % o;
                if r == 0.0 {
                    (0.0 as $t).copysign(o)
                } else if (r < 0.0) != (o < 0.0) {
                    r + o
                } else {
                    r
                }
            }
            #[inline(always)]
            fn least(self, o: Self) -> Self {
                if self < o || self.is_nan() { self } else { o }
            }
            #[inline(always)]
            fn greatest(self, o: Self) -> Self {
                if self > o || self.is_nan() { self } else { o }
            }
            fn powi(self, e: i64) -> Self {
                f64::from(self).powf(e as f64) as $t
            }
            #[inline(always)]
            fn to_f64(self) -> f64 {
                f64::from(self)
            }
            fn from_i64(v: i64) -> Self {
                v as $t
            }
            fn to_i64(self) -> i64 {
                self as i64
            }
            #[inline(always)]
            fn from_f64(v: f64) -> Self {
                v as $t
            }
        }
    };
}

macro_rules! half {
    ($t:ty) => {
        impl Number for $t {
            const ZERO: Self = <$t>::ZERO;
            #[inline(always)]
            fn add(self, o: Self) -> Self {
                Half::nearest(self.widen() + o.widen())
            }
            #[inline(always)]
            fn sub(self, o: Self) -> Self {
                Half::nearest(self.widen() - o.widen())
            }
            #[inline(always)]
            fn mul(self, o: Self) -> Self {
                Half::nearest(self.widen() * o.widen())
            }
            #[inline(always)]
            fn div(self, o: Self) -> Self {
                Half::nearest(self.widen() / o.widen())
            }
            #[inline(always)]
            fn fmod(self, o: Self) -> Self {
                Half::nearest(self.widen() % o.widen())
            }
            fn modulo(self, o: Self) -> Self {
                Half::nearest(Number::modulo(self.widen(), o.widen()))
            }
            fn least(self, o: Self) -> Self {
                if self < o || self.is_nan() { self } else { o }
            }
            fn greatest(self, o: Self) -> Self {
                if self > o || self.is_nan() { self } else { o }
            }
            fn powi(self, e: i64) -> Self {
                <$t>::from_f64(self.to_f64().powf(e as f64))
            }
            fn to_f64(self) -> f64 {
                <$t>::to_f64(self)
            }
            fn from_i64(v: i64) -> Self {
                <$t>::from_f64(v as f64)
            }
            fn to_i64(self) -> i64 {
                self.widen() as i64
            }
            fn from_f64(v: f64) -> Self {
                <$t>::from_f64(v)
            }
        }
    };
}

macro_rules! integer {
    ($t:ty, |$b:ident, $e:ident| $inverse:expr) => {
        impl Number for $t {
            const ZERO: Self = 0;
            #[inline(always)]
            fn add(self, o: Self) -> Self {
                self.wrapping_add(o)
            }
            #[inline(always)]
            fn sub(self, o: Self) -> Self {
                self.wrapping_sub(o)
            }
            #[inline(always)]
            fn mul(self, o: Self) -> Self {
                self.wrapping_mul(o)
            }
            fn div(self, o: Self) -> Self {
                if o == 0 { 0 } else { self.wrapping_div(o) }
            }
            fn fmod(self, o: Self) -> Self {
                if o == 0 { 0 } else { self.wrapping_rem(o) }
            }
            #[allow(unused_comparisons, reason = "one text for signed and unsigned types")]
            fn modulo(self, o: Self) -> Self {
                let r = self.fmod(o);
                if r != 0 && (r < 0) != (o < 0) { r.wrapping_add(o) } else { r }
            }
            #[inline(always)]
            fn least(self, o: Self) -> Self {
                Ord::min(self, o)
            }
            #[inline(always)]
            fn greatest(self, o: Self) -> Self {
                Ord::max(self, o)
            }
            fn powi(self, e: i64) -> Self {
                if e < 0 {
                    let ($b, $e) = (self, e);
                    return $inverse;
                }
                let (mut power, mut base, mut e): (Self, Self, i64) = (1, self, e);
                while e != 0 {
                    if e & 1 != 0 {
                        power = power.wrapping_mul(base);
                    }
                    base = base.wrapping_mul(base);
                    e >>= 1;
                }
                power
            }
            fn to_f64(self) -> f64 {
                self as f64
            }
            fn from_i64(v: i64) -> Self {
                v as $t
            }
            fn to_i64(self) -> i64 {
                i64::try_from(self).unwrap_or(i64::MAX)
            }
            fn from_f64(v: f64) -> Self {
                v as $t
            }
        }
    };
}

macro_rules! signed {
    ($($t:ty)*) => {
        $(integer!($t, |b, e| match b {
            1 => 1,
            -1 if e & 1 != 0 => -1,
            -1 => 1,
            _ => 0,
        });)*
    };
}

macro_rules! unsigned {
    ($($t:ty)*) => {
        $(integer!($t, |b, _e| Self::from(b == 1));)*
    };
}

float!(f32);
float!(f64);
half!(f16);
half!(bf16);
signed!(i8 i16 i32 i64);
unsigned!(u8 u16 u32 u64);

/// Runs `$body` with `$t` as the Rust type of the number type `$dtype`, `$other` for `Bool` and narrow types.
macro_rules! with_number {
    ($dtype:expr, $t:ident => $body:expr, else $other:expr) => {
        match $dtype {
            $crate::dtype::DType::F32 => with_number!(@ f32, $t, $body),
            $crate::dtype::DType::F16 => with_number!(@ half::f16, $t, $body),
            $crate::dtype::DType::BF16 => with_number!(@ half::bf16, $t, $body),
            $crate::dtype::DType::F64 => with_number!(@ f64, $t, $body),
            $crate::dtype::DType::I8 => with_number!(@ i8, $t, $body),
            $crate::dtype::DType::I16 => with_number!(@ i16, $t, $body),
            $crate::dtype::DType::I32 => with_number!(@ i32, $t, $body),
            $crate::dtype::DType::I64 => with_number!(@ i64, $t, $body),
            $crate::dtype::DType::U8 => with_number!(@ u8, $t, $body),
            $crate::dtype::DType::U16 => with_number!(@ u16, $t, $body),
            $crate::dtype::DType::U32 => with_number!(@ u32, $t, $body),
            $crate::dtype::DType::U64 => with_number!(@ u64, $t, $body),
            _ => $other,
        }
    };
    (@ $rust:ty, $t:ident, $body:expr) => {{
        type $t = $rust;
        $body
    }};
}
pub(crate) use with_number;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn integers_neither_trap_nor_overflow() {
        assert_eq!(
            (Number::div(7i32, 0), Number::div(i32::MIN, -1), Number::div(-7i32, 2)),
            (0, i32::MIN, -3)
        );
        assert_eq!((Number::modulo(-7i8, 3), Number::fmod(-7i8, 3), Number::modulo(7i8, -3)), (2, -1, -2));
        assert_eq!((Number::modulo(200u8, 7), Number::fmod(5u64, 0)), (4, 0));
        assert_eq!(
            (3i32.powi(4), (-2i64).powi(3), 2i32.powi(-1), (-1i8).powi(-3), 1u8.powi(-9)),
            (81, -8, 0, -1, 1)
        );
        assert_eq!(u64::from_f64(-3.0), 0);
    }

    #[test]
    fn floats_keep_nan_and_follow_the_sign_of_the_divisor() {
        assert!(Number::least(f32::NAN, 1.0).is_nan() && Number::least(1.0, f32::NAN).is_nan());
        assert!(
            Number::greatest(f16::NAN, f16::ONE).is_nan() && Number::greatest(f16::ONE, f16::NAN).is_nan()
        );
        assert_eq!((Number::modulo(-7.5f64, 2.0), Number::fmod(-7.5f64, 2.0)), (0.5, -1.5));
        assert_eq!(Number::modulo(5.3f32, -2.0), 5.3 % 2.0 - 2.0);
    }
}
