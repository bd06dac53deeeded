//! Native functions of [`super::Binary`].

use super::apply::{input, output, zip};
use super::binary::BinaryOp;
use super::number::{Number, with_number};
use crate::dtype::DType;
use crate::kernel::{KernelError, NativeArgs, NativeKernel};
use crate::ops::strided::Nest;
use crate::ops::{OpCx, OpError};

/// What one call works on.
struct Call {
    op: BinaryOp,
    nest: Nest,
    /// Elements of both inputs and the output.
    lens: [usize; 3],
}

/// The native function of `op` for the types and shapes of `cx`.
///
/// # Errors
/// [`OpError::Shape`], [`OpError::Unsupported`].
pub(super) fn kernel(op: BinaryOp, cx: &OpCx) -> Result<NativeKernel, OpError> {
    let (a, b, y) = (cx.input(0)?, cx.input(1)?, cx.output(0)?);
    let nest = Nest::broadcast(&y.shape, &[&a.shape, &b.shape])?;
    let call = Call { op, nest, lens: [a.elements(), b.elements(), y.elements()] };
    let (dtype, exponent) = (a.dtype, b.dtype);
    let run: fn(&Call, &mut NativeArgs<'_, '_>) -> Result<(), KernelError> = match op {
        _ if op.is_comparison() => with_number!(dtype, T => compare::<T>, else compare::<u8>),
        BinaryOp::And | BinaryOp::Or | BinaryOp::Xor => bits::<u8>,
        BinaryOp::ShiftRight if dtype.is_signed_int() => match dtype {
            DType::I8 => shift_signed::<i8>,
            DType::I16 => shift_signed::<i16>,
            DType::I32 => shift_signed::<i32>,
            _ => shift_signed::<i64>,
        },
        BinaryOp::BitwiseAnd
        | BinaryOp::BitwiseOr
        | BinaryOp::BitwiseXor
        | BinaryOp::ShiftLeft
        | BinaryOp::ShiftRight => match dtype.bytes() {
            1 => bits::<u8>,
            2 => bits::<u16>,
            4 => bits::<u32>,
            _ => bits::<u64>,
        },
        BinaryOp::Pow if dtype == DType::F32 && exponent == DType::F32 => power_f32,
        BinaryOp::Pow => {
            let name = op.name();
            return with_number!(dtype, T => Ok(NativeKernel::new(name, move |args| {
                power::<T>(&call, dtype, exponent, args)
            })), else unsupported());
        }
        _ => with_number!(dtype, T => arithmetic::<T>, else return unsupported()),
    };
    Ok(NativeKernel::new(op.name(), move |args| run(&call, args)))
}

fn unsupported() -> Result<NativeKernel, OpError> {
    Err(OpError::unsupported("arithmetic of bool"))
}

fn arithmetic<T: Number>(call: &Call, args: &mut NativeArgs<'_, '_>) -> Result<(), KernelError> {
    let (a, b) = (input::<T>(args, 0, call.lens[0])?, input::<T>(args, 1, call.lens[1])?);
    let y = output::<T>(args, 2, call.lens[2])?;
    match call.op {
        BinaryOp::Add => zip(&call.nest, a, b, y, T::add),
        BinaryOp::Sub => zip(&call.nest, a, b, y, T::sub),
        BinaryOp::Mul => zip(&call.nest, a, b, y, T::mul),
        BinaryOp::Div => zip(&call.nest, a, b, y, T::div),
        BinaryOp::Fmod => zip(&call.nest, a, b, y, T::fmod),
        BinaryOp::Mod => zip(&call.nest, a, b, y, T::modulo),
        _ => zip(&call.nest, a, b, y, |x: T, slope: T| if x < T::ZERO { x.mul(slope) } else { x }),
    }
    Ok(())
}

fn power_f32(call: &Call, args: &mut NativeArgs<'_, '_>) -> Result<(), KernelError> {
    let (a, b) = (input::<f32>(args, 0, call.lens[0])?, input::<f32>(args, 1, call.lens[1])?);
    let y = output::<f32>(args, 2, call.lens[2])?;
    match b {
        // The exponents that models have, as what they mean.
        [2.0] => zip(&call.nest, a, b, y, |v, _| v * v),
        [3.0] => zip(&call.nest, a, b, y, |v, _| v * v * v),
        [0.5] => {
            zip(&call.nest, a, b, y, |v: f32, _| if v == f32::NEG_INFINITY { -v } else { v.sqrt() + 0.0 })
        }
        [-1.0] => zip(&call.nest, a, b, y, |v, _| 1.0 / v),
        _ => zip(&call.nest, a, b, y, f32::powf),
    }
    Ok(())
}

/// Pow of any two types; the result has the base's. Exponents of integer bases are whole where their type is.
fn power<T: Number>(
    call: &Call,
    base: DType,
    exponent: DType,
    args: &mut NativeArgs<'_, '_>,
) -> Result<(), KernelError> {
    let a = input::<T>(args, 0, call.lens[0])?;
    let len = call.lens[1];
    if base.is_int() && exponent.is_int() {
        let e: Vec<i64> = with_number!(exponent, E => {
            input::<E>(args, 1, len)?.iter().map(|v| v.to_i64()).collect()
        }, else Vec::new());
        zip(&call.nest, a, &e, output::<T>(args, 2, call.lens[2])?, T::powi);
    } else {
        let e: Vec<f64> = with_number!(exponent, E => {
            input::<E>(args, 1, len)?.iter().map(|v| v.to_f64()).collect()
        }, else Vec::new());
        let y = output::<T>(args, 2, call.lens[2])?;
        zip(&call.nest, a, &e, y, |v: T, e: f64| T::from_f64(v.to_f64().powf(e)));
    }
    Ok(())
}

fn compare<T: Number>(call: &Call, args: &mut NativeArgs<'_, '_>) -> Result<(), KernelError> {
    let (a, b) = (input::<T>(args, 0, call.lens[0])?, input::<T>(args, 1, call.lens[1])?);
    let y = output::<u8>(args, 2, call.lens[2])?;
    match call.op {
        BinaryOp::Equal => zip(&call.nest, a, b, y, |a, b| u8::from(a == b)),
        BinaryOp::Less => zip(&call.nest, a, b, y, |a, b| u8::from(a < b)),
        BinaryOp::LessOrEqual => zip(&call.nest, a, b, y, |a, b| u8::from(a <= b)),
        BinaryOp::Greater => zip(&call.nest, a, b, y, |a, b| u8::from(a > b)),
        _ => zip(&call.nest, a, b, y, |a, b| u8::from(a >= b)),
    }
    Ok(())
}

/// Unsigned integers as bits.
trait Bits: bytemuck::Pod + Send + Sync {
    fn and(self, o: Self) -> Self;
    fn or(self, o: Self) -> Self;
    fn xor(self, o: Self) -> Self;
    fn up(self, o: Self) -> Self;
    fn down(self, o: Self) -> Self;
}

macro_rules! bits {
    ($($t:ty)*) => {$(
        impl Bits for $t {
            fn and(self, o: Self) -> Self {
                self & o
            }
            fn or(self, o: Self) -> Self {
                self | o
            }
            fn xor(self, o: Self) -> Self {
                self ^ o
            }
            fn up(self, o: Self) -> Self {
                u32::try_from(o).ok().and_then(|o| self.checked_shl(o)).unwrap_or(0)
            }
            fn down(self, o: Self) -> Self {
                u32::try_from(o).ok().and_then(|o| self.checked_shr(o)).unwrap_or(0)
            }
        }
    )*};
}

bits!(u8 u16 u32 u64);

fn bits<T: Bits>(call: &Call, args: &mut NativeArgs<'_, '_>) -> Result<(), KernelError> {
    let (a, b) = (input::<T>(args, 0, call.lens[0])?, input::<T>(args, 1, call.lens[1])?);
    let y = output::<T>(args, 2, call.lens[2])?;
    match call.op {
        BinaryOp::And | BinaryOp::BitwiseAnd => zip(&call.nest, a, b, y, T::and),
        BinaryOp::Or | BinaryOp::BitwiseOr => zip(&call.nest, a, b, y, T::or),
        BinaryOp::Xor | BinaryOp::BitwiseXor => zip(&call.nest, a, b, y, T::xor),
        BinaryOp::ShiftLeft => zip(&call.nest, a, b, y, T::up),
        _ => zip(&call.nest, a, b, y, T::down),
    }
    Ok(())
}

/// A shift down that leaves copies of the sign; all of them where the distance is no position of a bit.
fn shift_signed<T: Number + std::ops::Shr<u32, Output = T>>(
    call: &Call,
    args: &mut NativeArgs<'_, '_>,
) -> Result<(), KernelError> {
    let (a, b) = (input::<T>(args, 0, call.lens[0])?, input::<T>(args, 1, call.lens[1])?);
    let last = 8 * size_of::<T>() as u32 - 1;
    let distance = move |n: T| u32::try_from(n.to_i64()).map_or(last, |n| n.min(last));
    zip(&call.nest, a, b, output::<T>(args, 2, call.lens[2])?, |v, n| v >> distance(n));
    Ok(())
}
