//! DequantizeLinear: `(x - zero point) * scale`.

use std::sync::Arc;

use half::{bf16, f16};

use super::grain::{Call, Grain};
use super::{DEQUANTIZED, NUMBERS, device};
use crate::dtype::DType;
use crate::graph::TensorInfo;
use crate::kernel::NativeKernel;
use crate::ops::{AttrReader, HalfRule, Lowering, OpCx, OpError, Operator, Structure};

/// The numbers that quantized elements stand for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DequantizeLinear {
    /// The axis of scales and blocks.
    pub axis: i64,
    /// Places of the axis with one scale; 0 for one scale in all or one for each place.
    pub block_size: i64,
    /// The output's type; `None` takes the scale's.
    pub dtype: Option<DType>,
}

pub(super) fn read(attrs: &mut AttrReader<'_>, _: i64) -> Result<Arc<dyn Operator>, OpError> {
    // 0 stands for "not given".
    let dtype = if attrs.int("output_dtype", 0)? == 0 { None } else { attrs.dtype_opt("output_dtype")? };
    let (axis, block_size) = (attrs.int("axis", 1)?, attrs.int("block_size", 0)?);
    Ok(Arc::new(DequantizeLinear { axis, block_size, dtype }))
}

impl Operator for DequantizeLinear {
    fn name(&self) -> &'static str {
        "DequantizeLinear"
    }

    fn structure(&self) -> Option<Structure<'_>> {
        let &DequantizeLinear { axis, block_size, dtype } = self;
        Some(Structure::Dequantize { axis, blocks: block_size != 0, dtype })
    }

    fn half_rule(&self) -> HalfRule {
        HalfRule::Full
    }

    fn infer(&self, cx: &OpCx) -> Result<Vec<TensorInfo>, OpError> {
        cx.expect_counts(2..=3, 1..=1)?;
        let from = cx.dtype_of(0, DEQUANTIZED)?;
        if cx.has(2) {
            cx.expect_dtype(2, from)?;
        }
        cx.dtype_of(1, &[DType::F32, DType::F16, DType::BF16, DType::F8E8M0])?;
        Grain::resolve(cx, self.axis, self.block_size)?;
        let to = self.dtype.map_or_else(|| cx.dtype(1), Ok)?;
        if !NUMBERS.contains(&to) {
            return Err(OpError::unsupported(format!("DequantizeLinear to {to}")));
        }
        Ok(vec![TensorInfo::new(to, cx.shape(0)?.clone())])
    }

    fn cpu(&self, cx: &OpCx) -> Result<NativeKernel, OpError> {
        let call = Call::of(cx, Grain::resolve(cx, self.axis, self.block_size)?)?;
        let to = cx.output(0)?.dtype;
        let number = |v: f32, scale: f32, zero: f32| (v - zero) * scale;
        Ok(NativeKernel::new("DequantizeLinear", move |args| match to {
            DType::F16 => call.map(args, |v, s, z| f16::from_f32(number(v, s, z))),
            DType::BF16 => call.map(args, |v, s, z| bf16::from_f32(number(v, s, z))),
            _ => call.map(args, number),
        }))
    }

    fn gpu(&self, cx: &OpCx, lower: &mut Lowering<'_>) -> Result<(), OpError> {
        device::dequantize(cx, &Grain::resolve(cx, self.axis, self.block_size)?, lower)
    }
}
