//! What one scale and one zero point make of bytes.

use super::elements::{integers, low_byte};
use crate::dtype::DType;
use crate::ops::linalg::bytes::FLIP;

/// How all bytes of a tensor stand for numbers: `(byte - zero point) * scale`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Scaling {
    /// `int8` or `uint8`.
    pub dtype: DType,
    /// Finite and above 0.
    pub scale: f32,
    /// An element of `dtype`.
    pub zero: i32,
}

impl Scaling {
    /// The smallest and the largest element.
    pub fn range(&self) -> [i32; 2] {
        if self.dtype == DType::I8 { [-128, 127] } else { [0, 255] }
    }

    /// The element that stands for `v`, as QuantizeLinear has it.
    pub fn element(&self, v: f32) -> i32 {
        let [low, high] = self.range();
        let whole = (v / self.scale).round_ties_even() + self.zero as f32;
        // What is no number becomes 0.
        whole.clamp(low as f32, high as f32) as i32
    }

    /// What makes unsigned bytes of the elements.
    pub(super) fn flip(&self) -> u8 {
        if self.dtype == DType::I8 { FLIP } else { 0 }
    }

    /// The zero point of the unsigned bytes.
    pub(super) fn unsigned_zero(&self) -> f32 {
        (self.zero + i32::from(self.flip())) as f32
    }
}

/// The elements of `to` that a result is kept within: those of `clamp`, else all.
pub(super) fn range_of(to: DType, clamp: Option<[i32; 2]>) -> Option<[f32; 2]> {
    let all = integers(to)?;
    Some(clamp.map_or(all, |[low, high]| {
        let [low, high] = [low, high].map(|v| (v as f32).clamp(all[0], all[1]));
        [low, high.max(low)]
    }))
}

/// The byte of the element `round(v) + zero` within `range`.
#[inline(always)]
pub(super) fn rounded_byte(v: f32, zero: f32, [low, high]: [f32; 2]) -> u8 {
    low_byte((v.round_ties_even() + zero).clamp(low, high))
}
