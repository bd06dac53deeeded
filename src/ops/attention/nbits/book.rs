//! The numbers that codes of few bits stand for, where they are not the codes themselves.

use crate::dtype::DType;
use crate::graph::Tensor;
use crate::ops::{Lowering, OpError, Operand, PackKey};

/// The numbers of bitsandbytes' FP4, and of its NF4: quantiles of the normal distribution.
const FP4: [f32; 8] = [0.0, 5.208_333_4e-3, 0.666_666_7, 1.0, 0.333_333_34, 0.5, 0.166_666_67, 0.25];
const NF4: [f32; 16] = [
    -1.0,
    -0.696_192_8,
    -0.525_073_05,
    -0.394_917_5,
    -0.284_441_38,
    -0.184_773_43,
    -0.091_050_036,
    0.0,
    0.079_580_3,
    0.160_930_2,
    0.246_112_3,
    0.337_915_24,
    0.440_709_83,
    0.562_617,
    0.722_956_84,
    1.0,
];

/// The numbers that codes stand for, before a scale.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Codes {
    /// Themselves, less a zero point.
    #[default]
    Whole,
    /// bitsandbytes' numbers of 4 bits.
    Fp4,
    /// bitsandbytes' numbers of 4 bits for weights that are distributed normally.
    Nf4,
    /// `float4_e2m1fn`.
    E2m1,
    /// `float8_e4m3fn`.
    E4m3,
}

impl Codes {
    /// Bits of a code.
    pub(super) fn bits(self) -> usize {
        if self == Codes::E4m3 { 8 } else { 4 }
    }

    /// The type of the tensor of codes.
    pub(super) fn dtype(self) -> DType {
        if self == Codes::E4m3 { DType::F8E4M3Fn } else { DType::U8 }
    }

    /// Whether the first of two codes in a byte is the higher one.
    pub(super) fn swaps(self) -> bool {
        matches!(self, Codes::Fp4 | Codes::Nf4)
    }

    /// The number of every code.
    pub(super) fn numbers(self) -> Option<Vec<f32>> {
        let of = |dtype: DType, count: u16| {
            let format = dtype.format()?;
            Some((0..count).map(|code| format.decode(code)).collect())
        };
        match self {
            Codes::Whole => None,
            Codes::Fp4 => Some(FP4.iter().copied().chain(FP4.iter().map(|v| -v)).collect()),
            Codes::Nf4 => Some(NF4.to_vec()),
            Codes::E2m1 => of(DType::F4E2M1, 16),
            Codes::E4m3 => of(DType::F8E4M3Fn, 256),
        }
    }

    /// The number of every code as a constant of kernels.
    pub(super) fn packed(self, lower: &mut Lowering<'_>) -> Result<Option<Operand>, OpError> {
        let Some(numbers) = self.numbers() else { return Ok(None) };
        let numbers = Tensor::new([numbers.len()], &numbers)?;
        let key = PackKey { layout: "book", numbers: [0; 4] };
        Ok(Some(lower.packed(&numbers, key, numbers.info().bytes(), |t, out| {
            out.iter_mut().zip(t.bytes()).for_each(|(o, b)| *o = *b);
            Ok(())
        })))
    }
}
