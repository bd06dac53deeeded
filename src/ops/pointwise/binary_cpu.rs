//! Native functions of [`super::Binary`].

use half::{bf16, f16};

use super::apply::{input, output, zip, zip_wide};
use super::number::{Number, f64s, with_number};
use crate::dtype::DType;
use crate::expr::{BinaryFunction, BitFormula, Lane, PairFormula, PairTest, VisitPair, pairs};
use crate::kernel::{KernelError, NativeArgs, NativeKernel};
use crate::ops::real::check_len;
use crate::ops::strided::Nest;
use crate::ops::{OpCx, OpError};

/// The operands of one call.
struct Call {
    nest: Nest,
    /// Elements of both inputs and the output.
    lens: [usize; 3],
}

type Run = fn(&Call, &mut NativeArgs<'_, '_>) -> Result<(), KernelError>;

/// The native function of `op` for the types and shapes of `cx`.
pub(super) fn kernel(op: BinaryFunction, cx: &OpCx) -> Result<NativeKernel, OpError> {
    let (a, b, y) = (cx.input(0)?, cx.input(1)?, cx.output(0)?);
    let nest = Nest::broadcast(&y.shape, &[&a.shape, &b.shape])?;
    let call = Call { nest, lens: [a.elements(), b.elements(), y.elements()] };
    let (name, dtype, exponent) = (op.name(), a.dtype, b.dtype);
    let run = match op {
        BinaryFunction::Pow if dtype == DType::F32 && exponent == DType::F32 => Some(power_f32 as Run),
        BinaryFunction::Pow => {
            return with_number!(dtype, T => Ok(NativeKernel::new(name, move |args| {
                power::<T>(&call, dtype, exponent, args)
            })), else Err(unsupported(name, dtype)));
        }
        _ => op.visit(OfType(dtype)),
    };
    let run = run.ok_or_else(|| unsupported(name, dtype))?;
    Ok(NativeKernel::new(name, move |args| run(&call, args)))
}

fn unsupported(name: &str, dtype: DType) -> OpError {
    OpError::unsupported(format!("{name} of {dtype}"))
}

/// The loop of a function of bits over one type.
macro_rules! bits {
    ($t:ty, $formula:ident) => {
        |call, args| run(call, args, |a: $t, b| $formula::of(Lane(a), Lane(b)).0)
    };
}
/// Chooses the loop for an element type.
struct OfType(DType);

impl VisitPair for OfType {
    type Out = Option<Run>;

    fn numbers<F: PairFormula>(self) -> Option<Run> {
        match self.0 {
            DType::F16 => Some(halves::<f16, F>),
            DType::BF16 => Some(halves::<bf16, F>),
            dtype => with_number!(dtype, T => Some(numbers::<T, F>), else None),
        }
    }

    fn bits<F: BitFormula>(self) -> Option<Run> {
        Some(match self.0 {
            DType::I8 => bits!(i8, F),
            DType::I16 => bits!(i16, F),
            DType::I32 => bits!(i32, F),
            DType::I64 => bits!(i64, F),
            DType::U8 | DType::Bool => bits!(u8, F),
            DType::U16 => bits!(u16, F),
            DType::U32 => bits!(u32, F),
            DType::U64 => bits!(u64, F),
            _ => return None,
        })
    }

    fn test<F: PairTest>(self) -> Option<Run> {
        with_number!(self.0, T => Some(test::<T, F>), else Some(test::<u8, F>))
    }
}

fn numbers<T: Number, F: PairFormula>(call: &Call, args: &mut NativeArgs<'_, '_>) -> Result<(), KernelError> {
    run(call, args, T::pair::<F>)
}

/// Conversions from and to `f32` are many instructions.
fn halves<T: Number, F: PairFormula>(call: &Call, args: &mut NativeArgs<'_, '_>) -> Result<(), KernelError> {
    let (a, b) = (input::<T>(args, 0, call.lens[0])?, input::<T>(args, 1, call.lens[1])?);
    zip_wide(&call.nest, a, b, output(args, 2, call.lens[2])?, T::pair::<F>);
    Ok(())
}

fn test<T: Number, F: PairTest>(call: &Call, args: &mut NativeArgs<'_, '_>) -> Result<(), KernelError> {
    run(call, args, |a: T, b| u8::from(a.test::<F>(b)))
}

/// `y[i] = f(a[..], b[..])`
fn run<T: bytemuck::Pod + Sync, Y: bytemuck::Pod + Send>(
    call: &Call,
    args: &mut NativeArgs<'_, '_>,
    f: impl Fn(T, T) -> Y + Send + Sync,
) -> Result<(), KernelError> {
    let (a, b) = (input::<T>(args, 0, call.lens[0])?, input::<T>(args, 1, call.lens[1])?);
    zip(&call.nest, a, b, output(args, 2, call.lens[2])?, f);
    Ok(())
}

fn power_f32(call: &Call, args: &mut NativeArgs<'_, '_>) -> Result<(), KernelError> {
    let (a, b) = (input::<f32>(args, 0, call.lens[0])?, input::<f32>(args, 1, call.lens[1])?);
    let y = output::<f32>(args, 2, call.lens[2])?;
    match b {
        // The exponents that models have, as `PointwiseDesc::power` means them.
        [2.0] => zip(&call.nest, a, b, y, |v, _| v * v),
        [3.0] => zip(&call.nest, a, b, y, |v, _| v * v * v),
        [0.5] => {
            zip(&call.nest, a, b, y, |v: f32, _| if v == f32::NEG_INFINITY { -v } else { v.sqrt() + 0.0 })
        }
        [-1.0] => zip(&call.nest, a, b, y, |v, _| 1.0 / v),
        _ => zip(&call.nest, a, b, y, f32::pair::<pairs::Pow>),
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
        let e = f64s(args, 1, exponent)?;
        check_len(1, e.len(), len)?;
        let y = output::<T>(args, 2, call.lens[2])?;
        zip(&call.nest, a, &e, y, |v: T, e: f64| T::from_f64(v.to_f64().powf(e)));
    }
    Ok(())
}
