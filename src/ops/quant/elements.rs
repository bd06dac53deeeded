//! Elements of any type as numbers, a piece at a time.

use half::{bf16, f16};

use crate::dtype::DType;
use crate::kernel::{KernelError, NativeArgs};
use crate::ops::pointwise::cast::numbers;
use crate::ops::real::check_len;

/// Elements that are read as `f32`.
pub(super) enum Numbers<'a> {
    F32(&'a [f32]),
    F16(&'a [f16]),
    Bf16(&'a [bf16]),
    I32(&'a [i32]),
    I16(&'a [i16]),
    U16(&'a [u16]),
    I8(&'a [i8]),
    U8(&'a [u8]),
    /// Codes, and what they stand for.
    Coded(&'a [u8], Box<[f32; 256]>),
}

impl<'a> Numbers<'a> {
    /// Argument `index` of `len` elements of `dtype`.
    pub(super) fn read(
        args: &NativeArgs<'a, '_>,
        index: usize,
        dtype: DType,
        len: usize,
    ) -> Result<Self, KernelError> {
        let (numbers, found) = match dtype {
            DType::F32 => args.read(index).map(|x: &[f32]| (Numbers::F32(x), x.len()))?,
            DType::F16 => args.read(index).map(|x: &[f16]| (Numbers::F16(x), x.len()))?,
            DType::BF16 => args.read(index).map(|x: &[bf16]| (Numbers::Bf16(x), x.len()))?,
            DType::I32 => args.read(index).map(|x: &[i32]| (Numbers::I32(x), x.len()))?,
            DType::I16 => args.read(index).map(|x: &[i16]| (Numbers::I16(x), x.len()))?,
            DType::U16 => args.read(index).map(|x: &[u16]| (Numbers::U16(x), x.len()))?,
            DType::I8 => args.read(index).map(|x: &[i8]| (Numbers::I8(x), x.len()))?,
            DType::U8 => args.read(index).map(|x: &[u8]| (Numbers::U8(x), x.len()))?,
            _ => {
                let x: &[u8] = args.read(index)?;
                (Numbers::Coded(x, Box::new(numbers(dtype))), x.len())
            }
        };
        check_len(index, found, len)?;
        Ok(numbers)
    }

    /// Reads the elements from `start` on.
    pub(super) fn load(&self, start: usize, to: &mut [f32]) {
        fn each<T: Copy>(x: &[T], start: usize, to: &mut [f32], f: impl Fn(T) -> f32) {
            to.iter_mut().zip(x.get(start..).unwrap_or(&[])).for_each(|(y, x)| *y = f(*x));
        }
        match self {
            Numbers::F32(x) => each(x, start, to, |v| v),
            Numbers::F16(x) => each(x, start, to, f16::to_f32),
            Numbers::Bf16(x) => each(x, start, to, bf16::to_f32),
            Numbers::I32(x) => each(x, start, to, |v| v as f32),
            Numbers::I16(x) => each(x, start, to, f32::from),
            Numbers::U16(x) => each(x, start, to, f32::from),
            Numbers::I8(x) => each(x, start, to, f32::from),
            Numbers::U8(x) => each(x, start, to, f32::from),
            Numbers::Coded(x, table) => each(x, start, to, |v| table[usize::from(v)]),
        }
    }
}

/// All of argument `index`, `len` elements of `dtype`; zeros where it was not given.
pub(super) fn all(
    args: &NativeArgs<'_, '_>,
    index: usize,
    dtype: Option<DType>,
    len: usize,
) -> Result<Vec<f32>, KernelError> {
    let mut values = vec![0.0; len];
    if let Some(dtype) = dtype.filter(|_| args.has(index)) {
        Numbers::read(args, index, dtype, len)?.load(0, &mut values);
    }
    Ok(values)
}

/// The low 8 bits of the integer `v`, of at most 22 bits; 0 of NaN. A sum in which the units are the last bits of
/// the mantissa has them, also of negative ones; a conversion would be done for one number at a time.
#[inline(always)]
pub(super) fn low_byte(v: f32) -> u8 {
    (v + 12_582_912.0).to_bits() as u8
}

/// The integers that elements of `dtype` hold.
pub(super) fn integers(dtype: DType) -> Option<[f32; 2]> {
    Some(match dtype {
        DType::I8 => [-128.0, 127.0],
        DType::U8 => [0.0, 255.0],
        DType::I16 => [-32768.0, 32767.0],
        DType::U16 => [0.0, 65535.0],
        DType::I4 => [-8.0, 7.0],
        DType::U4 => [0.0, 15.0],
        DType::I2 => [-2.0, 1.0],
        DType::U2 => [0.0, 3.0],
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    #[test]
    fn low_bytes_are_those_of_integers() {
        assert!((-128..256).all(|i: i32| super::low_byte(i as f32) == i as u8));
        assert_eq!((super::low_byte(-0.0), super::low_byte(f32::NAN)), (0, 0));
    }
}
