//! The types that reductions compute in.

use half::{bf16, f16};

use crate::dtype::Element;

/// An element type as reductions compute with it.
pub(super) trait Number: Element {
    /// The accumulator of sums.
    type Acc: Accumulator;
    fn widen(self) -> Self::Acc;
    fn narrow(acc: Self::Acc) -> Self;
    /// The maximum and the minimum of no elements.
    fn bounds() -> (Self::Acc, Self::Acc);
}

/// A type that sums, products and extremes are kept in.
pub(super) trait Accumulator: Copy + Send + Sync + PartialOrd {
    const ZERO: Self;
    const ONE: Self;
    fn add(self, other: Self) -> Self;
    fn mul(self, other: Self) -> Self;
    fn abs(self) -> Self;
    fn div_count(self, count: usize) -> Self;
    fn as_f64(self) -> f64;
    fn from_f64(v: f64) -> Self;
    fn is_nan(self) -> bool;
}

impl Accumulator for f64 {
    const ZERO: f64 = 0.0;
    const ONE: f64 = 1.0;
    fn add(self, other: f64) -> f64 {
        self + other
    }
    fn mul(self, other: f64) -> f64 {
        self * other
    }
    fn abs(self) -> f64 {
        f64::abs(self)
    }
    fn div_count(self, count: usize) -> f64 {
        self / count as f64
    }
    fn as_f64(self) -> f64 {
        self
    }
    fn from_f64(v: f64) -> f64 {
        v
    }
    fn is_nan(self) -> bool {
        f64::is_nan(self)
    }
}

impl Accumulator for i64 {
    const ZERO: i64 = 0;
    const ONE: i64 = 1;
    fn add(self, other: i64) -> i64 {
        self.wrapping_add(other)
    }
    fn mul(self, other: i64) -> i64 {
        self.wrapping_mul(other)
    }
    fn abs(self) -> i64 {
        self.wrapping_abs()
    }
    fn div_count(self, count: usize) -> i64 {
        i64::try_from(count).ok().and_then(|n| self.checked_div(n)).unwrap_or(0)
    }
    fn as_f64(self) -> f64 {
        self as f64
    }
    fn from_f64(v: f64) -> i64 {
        v as i64
    }
    fn is_nan(self) -> bool {
        false
    }
}

impl Accumulator for u64 {
    const ZERO: u64 = 0;
    const ONE: u64 = 1;
    fn add(self, other: u64) -> u64 {
        self.wrapping_add(other)
    }
    fn mul(self, other: u64) -> u64 {
        self.wrapping_mul(other)
    }
    fn abs(self) -> u64 {
        self
    }
    fn div_count(self, count: usize) -> u64 {
        self.checked_div(count as u64).unwrap_or(0)
    }
    fn as_f64(self) -> f64 {
        self as f64
    }
    fn from_f64(v: f64) -> u64 {
        v as u64
    }
    fn is_nan(self) -> bool {
        false
    }
}

macro_rules! number {
    ($($t:ty => $acc:ty, $widen:expr, $narrow:expr, $low:expr, $high:expr;)*) => {$(
        impl Number for $t {
            type Acc = $acc;
            fn widen(self) -> $acc { ($widen)(self) }
            fn narrow(acc: $acc) -> $t { ($narrow)(acc) }
            fn bounds() -> ($acc, $acc) { ($low, $high) }
        }
    )*};
}

number! {
    f32 => f64, |v: f32| f64::from(v), |a| a as f32, f64::NEG_INFINITY, f64::INFINITY;
    f64 => f64, |v| v, |a| a, f64::NEG_INFINITY, f64::INFINITY;
    f16 => f64, |v: f16| v.to_f64(), f16::from_f64, f64::NEG_INFINITY, f64::INFINITY;
    bf16 => f64, |v: bf16| v.to_f64(), bf16::from_f64, f64::NEG_INFINITY, f64::INFINITY;
    i8 => i64, |v: i8| i64::from(v), |a| a as i8, i64::from(i8::MIN), i64::from(i8::MAX);
    u8 => i64, |v: u8| i64::from(v), |a| a as u8, 0, i64::from(u8::MAX);
    i32 => i64, |v: i32| i64::from(v), |a| a as i32, i64::from(i32::MIN), i64::from(i32::MAX);
    u32 => i64, |v: u32| i64::from(v), |a| a as u32, 0, i64::from(u32::MAX);
    i64 => i64, |v| v, |a| a, i64::MIN, i64::MAX;
    u64 => u64, |v| v, |a| a, 0, u64::MAX;
}
