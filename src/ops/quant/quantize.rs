//! QuantizeLinear: `saturate(round(x / scale) + zero point)`.

use std::sync::Arc;

use half::{bf16, f16};

use super::elements::{integers, low_byte};
use super::grain::{Call, Grain};
use super::{NUMBERS, QUANTIZABLE, QUANTIZED, device};
use crate::dtype::{DType, Format, Overflow};
use crate::graph::TensorInfo;
use crate::kernel::{KernelError, NativeArgs, NativeKernel};
use crate::ops::pointwise::cast::{Code, NarrowRules};
use crate::ops::{AttrReader, HalfRule, Lowering, OpCx, OpError, Operator, Structure};

/// Numbers as elements of a smaller type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QuantizeLinear {
    /// The axis of scales and blocks.
    pub axis: i64,
    /// Places of the axis with one scale; 0 for one scale in all or one for each place.
    pub block_size: i64,
    /// The conversion of numbers beyond the largest 8-bit float.
    pub overflow: Overflow,
    /// The output's type; `None` takes that of the zero point, without one `uint8`.
    pub dtype: Option<DType>,
    /// The type that is divided in; `None` takes the scale's.
    pub precision: Option<DType>,
}

pub(super) fn read(attrs: &mut AttrReader<'_>, _: i64) -> Result<Arc<dyn Operator>, OpError> {
    let saturates = attrs.int("saturate", 1)? != 0;
    // 0 stands for "not given".
    let given = |name: &str| -> Result<Option<DType>, OpError> {
        if attrs.int(name, 0)? == 0 { Ok(None) } else { Ok(attrs.dtype_opt(name)?) }
    };
    Ok(Arc::new(QuantizeLinear {
        axis: attrs.int("axis", 1)?,
        block_size: attrs.int("block_size", 0)?,
        overflow: if saturates { Overflow::Saturate } else { Overflow::Special },
        dtype: given("output_dtype")?,
        precision: given("precision")?,
    }))
}

impl QuantizeLinear {
    /// The output's type and the type that is divided in.
    fn types(&self, cx: &OpCx) -> Result<(DType, DType), OpError> {
        let zero = cx.input_opt(2).map(|t| t.dtype);
        if let (Some(zero), Some(dtype)) = (zero, self.dtype)
            && zero != dtype
        {
            return Err(OpError::DType {
                input: 2,
                got: zero,
                expected: format!("{dtype}, as output_dtype says"),
            });
        }
        let to = zero.or(self.dtype).unwrap_or(DType::U8);
        if !QUANTIZED.contains(&to) {
            return Err(OpError::unsupported(format!("QuantizeLinear to {to}")));
        }
        let scale = cx.dtype(1)?;
        let precision = self.precision.unwrap_or(if NUMBERS.contains(&scale) { scale } else { DType::F32 });
        if !NUMBERS.contains(&precision) {
            return Err(OpError::unsupported(format!("QuantizeLinear in the precision of {precision}")));
        }
        Ok((to, precision))
    }
}

/// The native function, and the type that is divided in.
struct Quotients {
    call: Call,
    precision: DType,
}

impl Operator for QuantizeLinear {
    fn name(&self) -> &'static str {
        "QuantizeLinear"
    }

    fn structure(&self) -> Option<Structure<'_>> {
        let &QuantizeLinear { block_size, dtype, precision, .. } = self;
        Some(Structure::Quantize { blocks: block_size != 0, dtype, precision })
    }

    fn half_rule(&self) -> HalfRule {
        HalfRule::Full
    }

    fn infer(&self, cx: &OpCx) -> Result<Vec<TensorInfo>, OpError> {
        cx.expect_counts(2..=3, 1..=1)?;
        cx.dtype_of(0, QUANTIZABLE)?;
        cx.dtype_of(1, &[DType::F32, DType::F16, DType::BF16, DType::I32, DType::F8E8M0])?;
        Grain::resolve(cx, self.axis, self.block_size)?;
        Ok(vec![TensorInfo::new(self.types(cx)?.0, cx.shape(0)?.clone())])
    }

    fn cpu(&self, cx: &OpCx) -> Result<NativeKernel, OpError> {
        let (to, precision) = self.types(cx)?;
        let call = Call::of(cx, Grain::resolve(cx, self.axis, self.block_size)?)?;
        let quotients = Quotients { call, precision };
        let rules = NarrowRules { overflow: self.overflow, ..NarrowRules::default() };
        let (range, code) = (integers(to), Code::of(to, rules));
        Ok(NativeKernel::new("QuantizeLinear", move |args| match (to, range, code) {
            (DType::I16, Some([low, high]), _) => {
                quotients.map::<i16>(args, |q, zero| (q.round_ties_even() + zero).clamp(low, high) as i16)
            }
            (DType::U16, Some([low, high]), _) => {
                quotients.map::<u16>(args, |q, zero| (q.round_ties_even() + zero).clamp(low, high) as u16)
            }
            (_, Some([low, high]), _) => {
                quotients.map::<u8>(args, |q, zero| low_byte((q.round_ties_even() + zero).clamp(low, high)))
            }
            (_, None, Some(code)) => quotients.map::<u8>(args, |q, zero| code.byte((q + zero).into(), 0)),
            (_, None, None) => Err(KernelError::Value { what: format!("QuantizeLinear to {to}") }),
        }))
    }

    fn gpu(&self, cx: &OpCx, lower: &mut Lowering<'_>) -> Result<(), OpError> {
        let (to, precision) = self.types(cx)?;
        if cx.dtype(0)? != precision || cx.dtype(1)? != precision {
            return Err(OpError::unsupported("QuantizeLinear of mixed types on the device"));
        }
        device::quantize(cx, &Grain::resolve(cx, self.axis, self.block_size)?, to, lower)
    }
}

impl Quotients {
    /// Writes `store(quotient, zero point)` of every element.
    fn map<D: bytemuck::Pod + Send>(
        &self,
        args: &mut NativeArgs<'_, '_>,
        store: impl Fn(f32, f32) -> D + Send + Sync,
    ) -> Result<(), KernelError> {
        let rounded = |v: f32| rounded(v, self.precision);
        match self.precision {
            DType::F32 => self.call.map(args, |v, s, z| store(v / s, z)),
            _ => self.call.map(args, |v, s, z| store(rounded(rounded(v) / rounded(s)), z)),
        }
    }
}

/// The nearest number of type `dtype`.
fn rounded(v: f32, dtype: DType) -> f32 {
    match dtype {
        DType::F16 => f16::from_f32(v).to_f32(),
        DType::BF16 => bf16::from_bits(Format::BFLOAT16.encode(v.into(), Overflow::Special)).to_f32(),
        _ => v,
    }
}
