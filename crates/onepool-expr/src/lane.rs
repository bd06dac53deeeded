//! One number of the CPU as what formulas compute with.

use std::ops::{Add, Div, Mul, Neg, Sub};

use super::pointwise::{BinaryOp, CompareOp, UnaryOp};
use super::value::{Arithmetic, Bits, Plain, Value};
use crate::simd;

/// A number of an element type.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Lane<T>(pub T);

/// The sine, cosine or tangent of any `f32`.
#[inline(always)]
pub(super) fn turned(near: impl Fn(f32) -> f32, far: impl Fn(f64) -> f64) -> impl Fn(f32) -> f32 {
    move |x| if x.abs() > simd::LARGEST_ANGLE { far(x.into()) as f32 } else { near(x) }
}

/// `op(x)`
#[inline(always)]
fn of_f32(op: UnaryOp, x: f32) -> f32 {
    match op {
        UnaryOp::Neg => -x,
        UnaryOp::Abs => x.abs(),
        UnaryOp::Floor => x.floor(),
        UnaryOp::Ceil => x.ceil(),
        UnaryOp::Round => x.round_ties_even(),
        UnaryOp::Sqrt => x.sqrt(),
        UnaryOp::Exp => simd::exp(x),
        UnaryOp::Log => simd::log(x),
        UnaryOp::Expm1 => simd::expm1(x),
        UnaryOp::Sigmoid => simd::sigmoid(x),
        UnaryOp::Softplus => simd::softplus(x),
        UnaryOp::Erf => simd::erf(x),
        UnaryOp::NormalCdf => simd::normal_cdf(x),
        UnaryOp::Sin => turned(simd::sin, f64::sin)(x),
        UnaryOp::Cos => turned(simd::cos, f64::cos)(x),
        UnaryOp::Tan => turned(simd::tan, f64::tan)(x),
        UnaryOp::Asin => simd::asin(x),
        UnaryOp::Acos => simd::acos(x),
        UnaryOp::Atan => simd::atan(x),
        UnaryOp::Sinh => simd::by_f64(f64::sinh)(x),
        UnaryOp::Cosh => simd::by_f64(f64::cosh)(x),
        UnaryOp::Tanh => simd::tanh(x),
        UnaryOp::Asinh => simd::by_f64(f64::asinh)(x),
        UnaryOp::Acosh => simd::by_f64(f64::acosh)(x),
        UnaryOp::Atanh => simd::by_f64(f64::atanh)(x),
    }
}

/// `op(x)`
#[inline(always)]
fn of_f64(op: UnaryOp, x: f64) -> f64 {
    match op {
        UnaryOp::Neg => -x,
        UnaryOp::Abs => x.abs(),
        UnaryOp::Floor => x.floor(),
        UnaryOp::Ceil => x.ceil(),
        UnaryOp::Round => x.round_ties_even(),
        UnaryOp::Sqrt => x.sqrt(),
        UnaryOp::Exp => x.exp(),
        UnaryOp::Log => x.ln(),
        UnaryOp::Expm1 => x.exp_m1(),
        UnaryOp::Sigmoid => 1.0 / (1.0 + (-x).exp()),
        // Written so that NaN stays NaN.
        UnaryOp::Softplus => (if x > 0.0 { x } else { 0.0 }) + (-x.abs()).exp().ln_1p(),
        UnaryOp::Erf => simd::erf_f64(x),
        UnaryOp::NormalCdf => 0.5 * (1.0 + simd::erf_f64(x * std::f64::consts::FRAC_1_SQRT_2)),
        UnaryOp::Sin => x.sin(),
        UnaryOp::Cos => x.cos(),
        UnaryOp::Tan => x.tan(),
        UnaryOp::Asin => x.asin(),
        UnaryOp::Acos => x.acos(),
        UnaryOp::Atan => x.atan(),
        UnaryOp::Sinh => x.sinh(),
        UnaryOp::Cosh => x.cosh(),
        UnaryOp::Tanh => x.tanh(),
        UnaryOp::Asinh => x.asinh(),
        UnaryOp::Acosh => x.acosh(),
        UnaryOp::Atanh => x.atanh(),
    }
}

macro_rules! holds {
    ($test:expr, $a:expr, $b:expr) => {
        match $test {
            CompareOp::Less => $a < $b,
            CompareOp::LessEqual => $a <= $b,
            CompareOp::Greater => $a > $b,
            CompareOp::GreaterEqual => $a >= $b,
            CompareOp::Equal => $a == $b,
            CompareOp::NotEqual => $a != $b,
            #[allow(clippy::eq_op, reason = "NaN is not itself")]
            CompareOp::Unordered => $a != $a || $b != $b,
        }
    };
}

/// Operators with a number, by those with a lane.
macro_rules! with_numbers {
    ($t:ty: $($trait:ident $method:ident)*) => {$(
        impl $trait<f64> for Lane<$t> {
            type Output = Self;

            #[inline(always)]
            fn $method(self, b: f64) -> Self {
                $trait::$method(self, self.number(b))
            }
        }
    )*};
}

macro_rules! float {
    ($t:ident, $of:path) => {
        impl Neg for Lane<$t> {
            type Output = Self;

            #[inline(always)]
            fn neg(self) -> Self {
                Lane(-self.0)
            }
        }

        float!($t: Add add Sub sub Mul mul Div div);
        with_numbers!($t: Add add Sub sub Mul mul Div div);

        impl Plain for Lane<$t> {
            type Truth = bool;

            #[inline(always)]
            fn number(self, value: f64) -> Self {
                Lane(value as $t)
            }

            #[inline(always)]
            fn abs(self) -> Self {
                Lane(self.0.abs())
            }

            #[inline(always)]
            fn binary(self, op: BinaryOp, b: Self) -> Self {
                let (a, b) = (self.0, b.0);
                Lane(match op {
                    BinaryOp::Add => a + b,
                    BinaryOp::Sub => a - b,
                    BinaryOp::Mul => a * b,
                    BinaryOp::Div => a / b,
                    BinaryOp::Min => if a <= b || a.is_nan() { a } else { b },
                    BinaryOp::Max => if a >= b || a.is_nan() { a } else { b },
                    BinaryOp::AtLeast => if a < b { b } else { a },
                    BinaryOp::AtMost => if a > b { b } else { a },
                    BinaryOp::Pow => a.powf(b),
                })
            }

            #[inline(always)]
            fn select(self, test: CompareOp, b: Self, then: Self, otherwise: Self) -> Self {
                if self.holds(test, b) { then } else { otherwise }
            }

            #[inline(always)]
            fn holds(self, test: CompareOp, b: Self) -> bool {
                holds!(test, self.0, b.0)
            }
        }

        impl Value for Lane<$t> {
            #[inline(always)]
            fn unary(self, op: UnaryOp) -> Self {
                Lane($of(op, self.0))
            }
        }

        impl Arithmetic for Lane<$t> {
            #[inline(always)]
            fn remainder(self, b: Self) -> Self {
                Lane(self.0 % b.0)
            }

            #[inline(always)]
            fn power(self, b: Self) -> Self {
                Lane(self.0.powf(b.0))
            }
        }
    };
    ($t:ident: $($trait:ident $method:ident)*) => {$(
        impl $trait for Lane<$t> {
            type Output = Self;

            #[inline(always)]
            fn $method(self, b: Self) -> Self {
                Lane($trait::$method(self.0, b.0))
            }
        }
    )*};
}

float!(f32, of_f32);
float!(f64, of_f64);

macro_rules! int {
    ($($t:ident)*) => {$(
        impl Neg for Lane<$t> {
            type Output = Self;

            #[inline(always)]
            fn neg(self) -> Self {
                Lane(self.0.wrapping_neg())
            }
        }

        int!($t: Add add wrapping_add Sub sub wrapping_sub Mul mul wrapping_mul);
        with_numbers!($t: Add add Sub sub Mul mul);

        impl Plain for Lane<$t> {
            type Truth = bool;

            #[inline(always)]
            fn number(self, value: f64) -> Self {
                Lane(value as $t)
            }

            #[inline(always)]
            #[allow(unused_comparisons, reason = "signed types have numbers below zero")]
            fn abs(self) -> Self {
                if self.0 < 0 { -self } else { self }
            }

            #[inline(always)]
            fn binary(self, op: BinaryOp, b: Self) -> Self {
                let (a, b) = (self.0, b.0);
                Lane(match op {
                    BinaryOp::Add => a.wrapping_add(b),
                    BinaryOp::Sub => a.wrapping_sub(b),
                    BinaryOp::Mul => a.wrapping_mul(b),
                    BinaryOp::Div if b == 0 => 0,
                    BinaryOp::Div => a.wrapping_div(b),
                    BinaryOp::Min | BinaryOp::AtMost => a.min(b),
                    BinaryOp::Max | BinaryOp::AtLeast => a.max(b),
                    BinaryOp::Pow => self.power(Lane(b)).0,
                })
            }

            #[inline(always)]
            fn select(self, test: CompareOp, b: Self, then: Self, otherwise: Self) -> Self {
                if self.holds(test, b) { then } else { otherwise }
            }

            #[inline(always)]
            fn holds(self, test: CompareOp, b: Self) -> bool {
                holds!(test, self.0, b.0)
            }
        }

        impl Arithmetic for Lane<$t> {
            #[inline(always)]
            fn remainder(self, b: Self) -> Self {
                Lane(if b.0 == 0 { 0 } else { self.0.wrapping_rem(b.0) })
            }

            // With one branch, which is foreseen more often than one for each sign.
            #[inline(always)]
            #[allow(unused_comparisons, reason = "signed types have numbers below zero")]
            fn modulo(self, b: Self) -> Self {
                let r = self.remainder(b);
                if r.0 != 0 && (r.0 < 0) != (b.0 < 0) { r + b } else { r }
            }

            fn power(self, b: Self) -> Self {
                self.whole_power(i64::try_from(b.0).unwrap_or(i64::MAX))
            }
        }

        impl Lane<$t> {
            /// The power of a whole exponent.
            #[allow(unused_comparisons, reason = "signed types have numbers below zero")]
            pub fn whole_power(self, mut e: i64) -> Self {
                let mut base = self.0;
                if e < 0 {
                    // What is left of 1 / power: -1 has an odd or an even one.
                    let is_minus_one = base < 0 && base.wrapping_add(1) == 0;
                    return match (base == 1, is_minus_one, e & 1 != 0) {
                        (true, ..) | (_, true, true) => self,
                        (_, true, false) => Lane(1),
                        _ => Lane(0),
                    };
                }
                let mut power: $t = 1;
                while e != 0 {
                    if e & 1 != 0 {
                        power = power.wrapping_mul(base);
                    }
                    base = base.wrapping_mul(base);
                    e >>= 1;
                }
                Lane(power)
            }
        }

        impl Bits for Lane<$t> {
            #[inline(always)]
            fn and(self, b: Self) -> Self {
                Lane(self.0 & b.0)
            }

            #[inline(always)]
            fn or(self, b: Self) -> Self {
                Lane(self.0 | b.0)
            }

            #[inline(always)]
            fn xor(self, b: Self) -> Self {
                Lane(self.0 ^ b.0)
            }

            #[inline(always)]
            fn shift_left(self, b: Self) -> Self {
                // Numbers below zero are large ones here.
                Lane(if (b.0 as u64) < <$t>::BITS.into() { self.0 << b.0 } else { 0 })
            }

            #[inline(always)]
            #[allow(unused_comparisons, reason = "signed types have numbers below zero")]
            fn shift_right(self, b: Self) -> Self {
                let sign = if self.0 < 0 { !0 } else { 0 };
                Lane(if (b.0 as u64) < <$t>::BITS.into() { self.0 >> b.0 } else { sign })
            }
        }
    )*};
    ($t:ident: $($trait:ident $method:ident $wrapping:ident)*) => {$(
        impl $trait for Lane<$t> {
            type Output = Self;

            #[inline(always)]
            fn $method(self, b: Self) -> Self {
                Lane(self.0.$wrapping(b.0))
            }
        }
    )*};
}

int!(i8 i16 i32 i64 u8 u16 u32 u64);
