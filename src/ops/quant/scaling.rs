//! Bytes with one scale and one zero point.

use super::elements::{integers, low_byte};
use crate::dtype::DType;
pub use crate::operator::Scaling;
use crate::ops::linalg::bytes::FLIP;

impl Scaling {
    /// The mask that makes the elements unsigned bytes.
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
