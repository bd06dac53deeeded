//! Cast: elements in another type.
//!
//! Numbers become integers by cutting off and keep within the type's range (NaN becomes 0); integers
//! become narrower ones by their low bits; whatever is not 0 becomes true; floats round to the nearest.

use std::any::Any;
use std::sync::Arc;

use half::slice::HalfFloatSliceExt;
use half::{bf16, f16};

use super::apply::{input, map, output};
use crate::dtype::{DType, Element};
use crate::graph::TensorInfo;
use crate::kernel::table::params;
use crate::kernel::{KernelError, KernelId, NativeArgs, NativeKernel};
use crate::ops::{AttrReader, Lowering, OpCx, OpError, Operand, Operator, par};

/// Elements of the input in another type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cast {
    /// The output's type; `None` takes that of input 1 (CastLike).
    pub to: Option<DType>,
}

pub(super) fn read(attrs: &mut AttrReader<'_>, _: i64) -> Result<Arc<dyn Operator>, OpError> {
    // They concern 8-bit floats only.
    attrs.int("saturate", 1)?;
    attrs.str("round_mode", "up")?;
    let to = attrs.dtype_opt("to")?.ok_or_else(|| attrs.error("to", "is missing"))?;
    Ok(Arc::new(Cast { to: Some(to) }))
}

pub(super) fn read_like(attrs: &mut AttrReader<'_>, _: i64) -> Result<Arc<dyn Operator>, OpError> {
    attrs.int("saturate", 1)?;
    attrs.str("round_mode", "up")?;
    Ok(Arc::new(Cast { to: None }))
}

/// A conversion to `to`.
pub fn cast(to: DType) -> Arc<dyn Operator> {
    Arc::new(Cast { to: Some(to) })
}

impl Operator for Cast {
    fn name(&self) -> &'static str {
        if self.to.is_some() { "Cast" } else { "CastLike" }
    }

    fn infer(&self, cx: &OpCx) -> Result<Vec<TensorInfo>, OpError> {
        let inputs = if self.to.is_some() { 1 } else { 2 };
        cx.expect_counts(inputs..=inputs, 1..=1)?;
        let to = self.to.map_or_else(|| cx.dtype(1), Ok)?;
        Ok(vec![TensorInfo::new(to, cx.shape(0)?.clone())])
    }

    fn alias(&self, cx: &OpCx) -> Option<usize> {
        let to = cx.outputs().first()?.dtype;
        (cx.dtype(0).ok()? == to).then_some(0)
    }

    fn in_place(&self, cx: &OpCx) -> Option<usize> {
        let to = cx.outputs().first()?.dtype;
        (cx.dtype(0).ok()?.bytes() == to.bytes()).then_some(0)
    }

    fn cpu(&self, cx: &OpCx) -> Result<NativeKernel, OpError> {
        let (from, to, n) = (cx.dtype(0)?, cx.output(0)?.dtype, cx.output(0)?.elements());
        let result = cx.input_count();
        let convert = conversion(from, to);
        Ok(NativeKernel::new(self.name(), move |args| convert(args, result, n)))
    }

    fn gpu(&self, cx: &OpCx, lower: &mut Lowering<'_>) -> Result<(), OpError> {
        let (x, y) = (cx.input(0)?, cx.output(0)?);
        dispatch(lower, x.dtype, y.dtype, x.elements(), Operand::Input(0), Operand::Output(0))
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

/// The part of a kernel's name that stands for `dtype`.
fn word(dtype: DType) -> Option<&'static str> {
    Some(match dtype {
        DType::F32 => "f32",
        DType::F16 => "f16",
        DType::F64 => "f64",
        DType::I8 => "i8",
        DType::I32 => "i32",
        DType::I64 => "i64",
        DType::U8 => "u8",
        DType::U32 => "u32",
        DType::Bool => "bool",
        _ => return None,
    })
}

/// Emits the conversion of `n` elements.
///
/// # Errors
/// [`OpError::Unsupported`] where there is no kernel for the types.
pub(crate) fn dispatch(
    lower: &mut Lowering<'_>,
    from: DType,
    to: DType,
    n: usize,
    x: Operand,
    y: Operand,
) -> Result<(), OpError> {
    if from == to {
        lower.copy((x, 0), (y, 0), (n * from.bytes()) as u64);
        return Ok(());
    }
    let fail = || OpError::unsupported(format!("Cast from {from} to {to} on the device"));
    let name = word(from).zip(word(to)).map(|(from, to)| format!("cast_{from}_{to}"));
    let kernel = name.and_then(|name| KernelId::by_name(&name)).ok_or_else(fail)?;
    let params = params::Cast { n: u32::try_from(n).map_err(|_| fail())? };
    lower.dispatch_1d(kernel, &[], &[x, y], &params, n)
}

type Convert = fn(&mut NativeArgs<'_, '_>, usize, usize) -> Result<(), KernelError>;

fn convert<S: Element, D: Element>(
    args: &mut NativeArgs<'_, '_>,
    result: usize,
    n: usize,
    f: impl Fn(S) -> D + Send + Sync,
) -> Result<(), KernelError> {
    let x = input::<S>(args, 0, n)?;
    map(x, output(args, result, n)?, f);
    Ok(())
}

/// Conversions of one source type, whose elements `$load` turns into a primitive number.
macro_rules! from_type {
    ($s:ty, $to:expr, |$v:ident| $load:expr) => {
        match $to {
            DType::F32 => |a, r, n| convert::<$s, f32>(a, r, n, |$v| $load as f32),
            DType::F16 => |a, r, n| convert::<$s, f16>(a, r, n, |$v| f16::from_f64($load as f64)),
            DType::BF16 => |a, r, n| convert::<$s, bf16>(a, r, n, |$v| bf16::from_f64($load as f64)),
            DType::F64 => |a, r, n| convert::<$s, f64>(a, r, n, |$v| $load as f64),
            DType::I8 => |a, r, n| convert::<$s, i8>(a, r, n, |$v| $load as i8),
            DType::I16 => |a, r, n| convert::<$s, i16>(a, r, n, |$v| $load as i16),
            DType::I32 => |a, r, n| convert::<$s, i32>(a, r, n, |$v| $load as i32),
            DType::I64 => |a, r, n| convert::<$s, i64>(a, r, n, |$v| $load as i64),
            DType::U8 => |a, r, n| convert::<$s, u8>(a, r, n, |$v| $load as u8),
            DType::U16 => |a, r, n| convert::<$s, u16>(a, r, n, |$v| $load as u16),
            DType::U32 => |a, r, n| convert::<$s, u32>(a, r, n, |$v| $load as u32),
            DType::U64 => |a, r, n| convert::<$s, u64>(a, r, n, |$v| $load as u64),
            DType::Bool => |a, r, n| convert::<$s, u8>(a, r, n, |$v| u8::from($load as f64 != 0.0)),
        }
    };
}

fn conversion(from: DType, to: DType) -> Convert {
    match (from, to) {
        // The conversions of half-precision models, by the processor's instructions where it has them.
        (DType::F16, DType::F32) => |args, result, n| {
            let x = input::<f16>(args, 0, n)?;
            par::parts(output(args, result, n)?, |start, part| {
                x[start..start + part.len()].convert_to_f32_slice(part);
            });
            Ok(())
        },
        (DType::F32, DType::F16) => |args, result, n| {
            let x = input::<f32>(args, 0, n)?;
            par::parts(output::<f16>(args, result, n)?, |start, part| {
                part.convert_from_f32_slice(&x[start..start + part.len()]);
            });
            Ok(())
        },
        (DType::F32, to) => from_type!(f32, to, |v| v),
        (DType::F16, to) => from_type!(f16, to, |v| v.to_f32()),
        (DType::BF16, to) => from_type!(bf16, to, |v| v.to_f32()),
        (DType::F64, to) => from_type!(f64, to, |v| v),
        (DType::I8, to) => from_type!(i8, to, |v| v),
        (DType::I16, to) => from_type!(i16, to, |v| v),
        (DType::I32, to) => from_type!(i32, to, |v| v),
        (DType::I64, to) => from_type!(i64, to, |v| v),
        (DType::U8 | DType::Bool, to) => from_type!(u8, to, |v| v),
        (DType::U16, to) => from_type!(u16, to, |v| v),
        (DType::U32, to) => from_type!(u32, to, |v| v),
        (DType::U64, to) => from_type!(u64, to, |v| v),
    }
}
