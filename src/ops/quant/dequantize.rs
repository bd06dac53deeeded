//! DequantizeLinear: `(x - zero point) * scale`.

use std::any::Any;
use std::sync::Arc;

use half::{bf16, f16};

use super::elements::{Numbers, all};
use super::grain::Grain;
use super::{DEQUANTIZED, NUMBERS, device};
use crate::dtype::DType;
use crate::graph::TensorInfo;
use crate::kernel::{KernelError, NativeArgs, NativeKernel};
use crate::ops::real::check_len;
use crate::ops::{AttrReader, Lowering, OpCx, OpError, Operator};

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

/// What the native function is told.
struct Call {
    grain: Grain,
    inputs: [Option<DType>; 3],
    len: usize,
}

impl Operator for DequantizeLinear {
    fn name(&self) -> &'static str {
        "DequantizeLinear"
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
        let inputs = [0, 1, 2].map(|i| cx.input_opt(i).map(|t| t.dtype));
        let grain = Grain::resolve(cx, self.axis, self.block_size)?;
        let to = cx.output(0)?;
        let (call, to, y) = (Call { grain, inputs, len: to.elements() }, to.dtype, cx.input_count());
        Ok(NativeKernel::new("DequantizeLinear", move |args| match to {
            DType::F16 => call.run::<f16>(args, y, f16::from_f32),
            DType::BF16 => call.run::<bf16>(args, y, bf16::from_f32),
            _ => call.run::<f32>(args, y, |v| v),
        }))
    }

    fn gpu(&self, cx: &OpCx, lower: &mut Lowering<'_>) -> Result<(), OpError> {
        device::dequantize(cx, &Grain::resolve(cx, self.axis, self.block_size)?, lower)
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

impl Call {
    fn run<D: bytemuck::Pod + Send + Sync>(
        &self,
        args: &mut NativeArgs<'_, '_>,
        result: usize,
        store: impl Fn(f32) -> D + Send + Sync,
    ) -> Result<(), KernelError> {
        let x = Numbers::read(args, 0, self.inputs[0].unwrap_or(DType::U8), self.len)?;
        let scales = all(args, 1, self.inputs[1], self.grain.scales)?;
        let zeros = all(args, 2, self.inputs[2], self.grain.scales)?;
        let y = args.take_write::<D>(result)?;
        check_len(result, y.len(), self.len)?;
        self.grain.map(&x, [&scales, &zeros], y, |v, s, z| store((v - z) * s));
        Ok(())
    }
}
