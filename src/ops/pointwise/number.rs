//! Arithmetic of every element type under one name.

use half::{bf16, f16};

use crate::dtype::{DType, Element};
use crate::expr::{Lane, PairFormula, PairTest, Plain, pairs};
use crate::kernel::{KernelError, NativeArgs};
use crate::ops::halves::Half;
use crate::ops::real::check_len;

/// An element type that is a number. Integers wrap; half types compute in `f32`.
pub(crate) trait Number: Element + PartialOrd {
    /// 0.
    const ZERO: Self;
    /// A function of two numbers of the table.
    fn pair<F: PairFormula>(self, o: Self) -> Self;
    /// A comparison of the table.
    fn test<F: PairTest>(self, o: Self) -> bool;
    /// The number within bounds; NaN stays NaN.
    fn within(self, low: Self, high: Self) -> Self;
    /// The lowest number.
    const LOWEST: Self;
    /// The highest number.
    const HIGHEST: Self;
    /// Sum.
    #[inline(always)]
    fn add(self, o: Self) -> Self {
        self.pair::<pairs::Add>(o)
    }
    /// Product.
    #[inline(always)]
    fn mul(self, o: Self) -> Self {
        self.pair::<pairs::Mul>(o)
    }
    /// The smaller one; NaN where either is.
    #[inline(always)]
    fn least(self, o: Self) -> Self {
        self.pair::<pairs::Min>(o)
    }
    /// The larger one; NaN where either is.
    #[inline(always)]
    fn greatest(self, o: Self) -> Self {
        self.pair::<pairs::Max>(o)
    }
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

/// Formulas of numbers that are lanes themselves.
macro_rules! on_lanes {
    () => {
        #[inline(always)]
        fn pair<F: PairFormula>(self, o: Self) -> Self {
            F::of(Lane(self), Lane(o)).0
        }
        #[inline(always)]
        fn test<F: PairTest>(self, o: Self) -> bool {
            F::of(Lane(self), Lane(o))
        }
        #[inline(always)]
        fn within(self, low: Self, high: Self) -> Self {
            Lane(self).clip(Lane(low), Lane(high)).0
        }
    };
}

macro_rules! float {
    ($t:ty) => {
        impl Number for $t {
            const ZERO: Self = 0.0;
            const LOWEST: Self = <$t>::NEG_INFINITY;
            const HIGHEST: Self = <$t>::INFINITY;
            on_lanes!();
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
            const LOWEST: Self = <$t>::NEG_INFINITY;
            const HIGHEST: Self = <$t>::INFINITY;
            #[inline(always)]
            fn pair<F: PairFormula>(self, o: Self) -> Self {
                Half::nearest(F::of(Lane(self.widen()), Lane(o.widen())).0)
            }
            #[inline(always)]
            fn test<F: PairTest>(self, o: Self) -> bool {
                F::of(Lane(self.widen()), Lane(o.widen()))
            }
            #[inline(always)]
            fn within(self, low: Self, high: Self) -> Self {
                Half::nearest(self.widen().within(low.widen(), high.widen()))
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
    ($($t:ty)*) => {$(
        impl Number for $t {
            const ZERO: Self = 0;
            const LOWEST: Self = <$t>::MIN;
            const HIGHEST: Self = <$t>::MAX;
            on_lanes!();
            fn powi(self, e: i64) -> Self {
                Lane(self).whole_power(e).0
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
    )*};
}

float!(f32);
float!(f64);
half!(f16);
half!(bf16);
integer!(i8 i16 i32 i64 u8 u16 u32 u64);

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

/// The elements of argument `index`, of type `dtype`; truth values are 0 and 1.
pub(crate) fn f64s(args: &NativeArgs<'_, '_>, index: usize, dtype: DType) -> Result<Vec<f64>, KernelError> {
    fn of<T: Number>(args: &NativeArgs<'_, '_>, index: usize) -> Result<Vec<f64>, KernelError> {
        Ok(args.read::<T>(index)?.iter().map(|v| v.to_f64()).collect())
    }
    with_number!(dtype, T => of::<T>(args, index), else of::<u8>(args, index))
}

/// Writes the numbers to argument `index`, of type `dtype`, by [`Number::from_f64`].
pub(crate) fn write_f64s(
    args: &mut NativeArgs<'_, '_>,
    index: usize,
    dtype: DType,
    numbers: &[f64],
) -> Result<(), KernelError> {
    fn of<T: Number>(
        args: &mut NativeArgs<'_, '_>,
        index: usize,
        numbers: &[f64],
    ) -> Result<(), KernelError> {
        let y = args.take_write::<T>(index)?;
        check_len(index, y.len(), numbers.len())?;
        y.iter_mut().zip(numbers).for_each(|(y, v)| *y = T::from_f64(*v));
        Ok(())
    }
    with_number!(dtype, T => of::<T>(args, index, numbers), else of::<u8>(args, index, numbers))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn integers_neither_trap_nor_overflow() {
        let div = |a: i32, b| a.pair::<pairs::Div>(b);
        assert_eq!((div(7, 0), div(i32::MIN, -1), div(-7, 2)), (0, i32::MIN, -3));
        let of_i8 = |a: i8, b| (a.pair::<pairs::Mod>(b), a.pair::<pairs::Fmod>(b));
        assert_eq!(
            (of_i8(-7, 3), of_i8(7, -3), of_i8(i8::MIN, -1), of_i8(5, 0)),
            ((2, -1), (-2, 1), (0, 0), (0, 0))
        );
        assert_eq!((200u8.pair::<pairs::Mod>(7), 5u64.pair::<pairs::Fmod>(0)), (4, 0));
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
        assert_eq!(((-7.5f64).pair::<pairs::Mod>(2.0), (-7.5f64).pair::<pairs::Fmod>(2.0)), (0.5, -1.5));
        assert_eq!(5.3f32.pair::<pairs::Mod>(-2.0), 5.3 % 2.0 - 2.0);
        assert_eq!(4f32.pair::<pairs::Mod>(-2.0).to_bits(), (-0f32).to_bits());
    }
}
