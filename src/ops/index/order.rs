//! Numbers as whole numbers of the same order.

use half::{bf16, f16};

use crate::ops::pointwise::number::Number;

/// A number whose order is that of whole numbers.
pub(super) trait Sortable: Number {
    /// Holds a number and its position.
    type Key: Key;

    /// Orders as the numbers do; -0 is 0, and all NaNs are one above the others.
    fn word(self) -> <Self::Key as Key>::Word;
}

/// An element as one number: those that come first are the least.
pub(super) trait Key: Copy + Ord + Send + Sync {
    type Word: Copy + Ord + std::ops::Not<Output = Self::Word>;

    fn new(word: Self::Word, place: u32) -> Self;

    /// The element's position.
    fn place(self) -> u32;
}

macro_rules! key {
    ($key:ty, $word:ty) => {
        impl Key for $key {
            type Word = $word;

            #[inline(always)]
            fn new(word: $word, place: u32) -> $key {
                <$key>::from(word) << 32 | <$key>::from(place)
            }

            #[inline(always)]
            fn place(self) -> u32 {
                self as u32
            }
        }
    };
}

key!(u64, u32);
key!(u128, u64);

macro_rules! sortable {
    ($($t:ty, $key:ty, $word:expr;)*) => {$(
        impl Sortable for $t {
            type Key = $key;

            #[inline(always)]
            fn word(self) -> <$key as Key>::Word {
                $word(self)
            }
        }
    )*};
}

sortable! {
    i8, u64, |v| i32::from(v).word();
    i16, u64, |v| i32::from(v).word();
    i32, u64, |v: i32| v as u32 ^ 1 << 31;
    i64, u128, |v: i64| v as u64 ^ 1 << 63;
    u8, u64, u32::from;
    u16, u64, u32::from;
    u32, u64, |v| v;
    u64, u128, |v| v;
    f16, u64, |v: f16| v.to_f32().word();
    bf16, u64, |v: bf16| v.to_f32().word();
    f32, u64, |v: f32| match (v + 0.0).to_bits() {
        _ if v.is_nan() => u32::MAX,
        bits if bits >> 31 == 1 => !bits,
        bits => bits | 1 << 31,
    };
    f64, u128, |v: f64| match (v + 0.0).to_bits() {
        _ if v.is_nan() => u64::MAX,
        bits if bits >> 63 == 1 => !bits,
        bits => bits | 1 << 63,
    };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_order_as_numbers_do() {
        fn ascend<T: Sortable>(numbers: &[T]) {
            assert!(numbers.windows(2).all(|two| two[0].word() < two[1].word()), "{numbers:?}");
        }
        let reals = [f64::NEG_INFINITY, -2.5, -1.5, -6e-8, 0.0, 6e-8, 1.5, 2.5, f64::INFINITY, f64::NAN];
        ascend(&reals);
        ascend(&reals.map(|v| v as f32));
        ascend(&reals.map(f16::from_f64));
        ascend(&reals.map(bf16::from_f64));
        ascend(&[i8::MIN, -1, 0, 1, i8::MAX]);
        ascend(&[i16::MIN, -1, 0, 1, i16::MAX]);
        ascend(&[i32::MIN, -1, 0, 1, i32::MAX]);
        ascend(&[i64::MIN, -1, 0, 1, i64::MAX]);
        ascend(&[0, 1, u8::MAX]);
        ascend(&[0, 1, u16::MAX]);
        ascend(&[0, 1, u32::MAX]);
        ascend(&[0, 1, u64::MAX]);
        assert_eq!((-0.0f32).word(), 0.0f32.word());
        assert_eq!((-0.0f64).word(), 0.0f64.word());
        assert_eq!((-f32::NAN).word(), f32::NAN.word());
        assert_eq!(u64::new(!7, u32::MAX).place(), u32::MAX);
        assert_eq!(u128::new(!7, 5).place(), 5);
    }
}
