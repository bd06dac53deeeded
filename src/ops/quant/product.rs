//! The common part of quantized products: their inputs, and what is made of the sums.

use super::elements::all;
use super::scaling::rounded_byte;
use super::{BYTES, NUMBERS};
use crate::dtype::DType;
use crate::graph::TensorInfo;
use crate::kernel::{KernelError, NativeArgs};
use crate::ops::linalg::bytes::FLIP;
use crate::ops::real::check_len;
use crate::ops::{Activation, OpCx, OpError};

/// What is made of the sums of a product of bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum SumsBecome {
    /// They stay 32-bit integers: MatMulInteger and ConvInteger.
    #[default]
    Sums,
    /// Bytes, by the scales of both operands and of the output: QLinearMatMul and QLinearConv.
    Bytes {
        /// The smallest and the largest element, where an activation keeps it within fewer than there are.
        clamp: Option<[i32; 2]>,
    },
    /// `activation(sum * (scale of A * scale of B) + bias)`, `float32`. The inputs are those of MatMulInteger and after them
    /// the two scales and the bias, each of which may be absent.
    Numbers {
        /// Applied to the output.
        activation: Activation,
    },
}

/// Where the inputs are: the operands A and B (a convolution's are the image and the weights), their scales and
/// zero points, those of the output, and a bias.
#[derive(Clone, Copy, Debug)]
pub(super) struct Places {
    pub a: usize,
    pub a_scale: Option<usize>,
    pub a_zero: usize,
    pub b: usize,
    pub b_scale: Option<usize>,
    pub b_zero: usize,
    pub y_scale: Option<usize>,
    pub y_zero: Option<usize>,
    pub bias: Option<usize>,
}

impl Places {
    /// Those of a product whose sums become that.
    pub(super) fn of(sums: &SumsBecome) -> Places {
        let (b, b_zero, [a_scale, b_scale, y_scale, y_zero, bias]) = match sums {
            SumsBecome::Sums => (1, 3, [None; 5]),
            SumsBecome::Bytes { .. } => (3, 5, [1, 4, 6, 7, 8].map(Some)),
            SumsBecome::Numbers { .. } => (1, 3, [Some(4), Some(5), None, None, Some(6)]),
        };
        Places { a: 0, a_scale, a_zero: 2, b, b_scale, b_zero, y_scale, y_zero, bias }
    }

    /// The output's type, after checking those of all inputs.
    pub(super) fn check_types(&self, cx: &OpCx, sums: &SumsBecome) -> Result<DType, OpError> {
        let linear = self.y_zero.is_some();
        for (data, zero) in [(self.a, self.a_zero), (self.b, self.b_zero)] {
            let dtype = cx.dtype_of(data, BYTES)?;
            if cx.has(zero) || linear {
                cx.expect_dtype(zero, dtype)?;
            }
        }
        for i in [self.a_scale, self.b_scale, self.y_scale].into_iter().flatten() {
            if linear {
                cx.dtype_of(i, NUMBERS)?;
            } else if cx.has(i) {
                cx.expect_dtype(i, DType::F32)?;
            }
        }
        if let Some(bias) = self.bias.filter(|i| cx.has(*i)) {
            cx.expect_dtype(bias, if linear { DType::I32 } else { DType::F32 })?;
        }
        match sums {
            SumsBecome::Sums => Ok(DType::I32),
            SumsBecome::Numbers { .. } => Ok(DType::F32),
            SumsBecome::Bytes { .. } => self.y_zero.map_or(Ok(DType::U8), |zero| cx.dtype_of(zero, BYTES)),
        }
    }
}

/// The mask that makes bytes of `dtype` signed (`sign` is [`FLIP`]) or unsigned ones (`sign` is 0).
pub(super) fn flip(dtype: DType, sign: u8) -> u8 {
    if dtype == DType::I8 { FLIP ^ sign } else { sign }
}

/// Parameters of rows or columns, repeated along them.
#[derive(Clone, Debug)]
pub(super) struct Repeated<T = f32>(Vec<T>);

impl<T: Copy + Default> Repeated<T> {
    /// Whether all have the same one.
    pub(super) fn is_one(&self) -> bool {
        self.0.len() <= 1
    }

    /// The parameter of row or column `i`.
    pub(super) fn at(&self, i: usize) -> T {
        self.0.get(i % self.0.len().max(1)).copied().unwrap_or_default()
    }

    /// Those of `len` rows or columns from `first` on, which begin a matrix; one where all have one.
    pub(super) fn line(&self, first: usize, len: usize) -> &[T] {
        match self.0.len() {
            0 | 1 => &self.0,
            all => self.0.get(first % all..).and_then(|l| l.get(..len)).unwrap_or(&[]),
        }
    }
}

impl Repeated {
    /// The integers that these are, each moved by `by`.
    pub(super) fn whole(&self, by: i32) -> Repeated<i32> {
        Repeated(self.0.iter().map(|zero| *zero as i32 + by).collect())
    }
}

/// The inputs of a native function.
#[derive(Clone, Debug)]
pub(super) struct Inputs(Vec<Option<TensorInfo>>);

impl Inputs {
    pub(super) fn of(cx: &OpCx) -> Inputs {
        Inputs((0..cx.input_count()).map(|i| cx.input_opt(i).cloned()).collect())
    }

    /// Number of inputs, absent ones counted: the position of the output.
    pub(super) fn count(&self) -> usize {
        self.0.len()
    }

    pub(super) fn has(&self, i: usize) -> bool {
        self.get(i).is_some()
    }

    fn get(&self, i: usize) -> Option<&TensorInfo> {
        self.0.get(i).and_then(Option::as_ref)
    }

    /// The zero points of input `i`, 0 where there is none.
    pub(super) fn zeros(&self, args: &NativeArgs<'_, '_>, i: usize) -> Result<Repeated, KernelError> {
        let len = self.get(i).map_or(1, TensorInfo::elements);
        Ok(Repeated(all(args, i, self.get(i).map(|t| t.dtype), len)?))
    }

    /// The scales of input `i`, 1 where there is none.
    pub(super) fn scales(
        &self,
        args: &NativeArgs<'_, '_>,
        i: Option<usize>,
    ) -> Result<Repeated, KernelError> {
        i.filter(|i| self.has(*i)).map_or_else(|| Ok(Repeated(vec![1.0])), |i| self.zeros(args, i))
    }

    /// The bytes of input `i`, and what makes them signed (`sign` is [`FLIP`]) or unsigned ones (`sign` is 0).
    pub(super) fn bytes<'a>(
        &self,
        args: &NativeArgs<'a, '_>,
        i: usize,
        sign: u8,
    ) -> Result<(&'a [u8], u8), KernelError> {
        let info = self.get(i).ok_or(KernelError::Absent { index: i })?;
        let bytes = args.read::<u8>(i)?;
        check_len(i, bytes.len(), info.elements())?;
        Ok((bytes, flip(info.dtype, sign)))
    }

    /// The mask that makes the bytes of input `i` signed (`sign` is [`FLIP`]) or unsigned ones (`sign` is 0).
    pub(super) fn flip(&self, i: usize, sign: u8) -> Result<u8, KernelError> {
        self.get(i).map(|info| flip(info.dtype, sign)).ok_or(KernelError::Absent { index: i })
    }
}

/// Sums as numbers.
#[derive(Clone, Copy, Debug)]
pub(super) struct Numbers {
    pub activation: Activation,
}

impl Numbers {
    /// The numbers of `sums`, by one multiplier or one for each, plus nothing, one bias or one for each.
    #[inline(always)]
    pub(super) fn of(&self, sums: &[i32], multipliers: &[f32], bias: &[f32], to: &mut [f32]) {
        let each = to.iter_mut().zip(sums);
        match multipliers {
            [m] => each.for_each(|(y, sum)| *y = *sum as f32 * m),
            all => each.zip(all).for_each(|((y, sum), m)| *y = *sum as f32 * m),
        }
        match bias {
            [b] => to.iter_mut().for_each(|y| *y += b),
            all => to.iter_mut().zip(all).for_each(|(y, b)| *y += b),
        }
        self.activation.apply(to);
    }
}

/// Sums as elements of `to`, by a multiplier.
#[derive(Clone, Copy, Debug)]
pub(super) struct Requantize {
    /// The output's zero point.
    pub zero: f32,
    /// Its smallest and largest value.
    pub range: [f32; 2],
}

impl Requantize {
    /// The byte of the element that stands for `sum`.
    #[inline(always)]
    fn byte(&self, sum: i32, multiplier: f32) -> u8 {
        rounded_byte(sum as f32 * multiplier, self.zero, self.range)
    }

    /// The bytes of elements that stand for `sums`, by one multiplier or one for each.
    #[inline(always)]
    pub(super) fn bytes(&self, sums: &[i32], multipliers: &[f32], to: &mut [u8]) {
        let each = to.iter_mut().zip(sums);
        match multipliers {
            [m] => each.for_each(|(y, sum)| *y = self.byte(*sum, *m)),
            all => each.zip(all).for_each(|((y, sum), m)| *y = self.byte(*sum, *m)),
        }
    }
}
