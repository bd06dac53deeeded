//! Where: elements of one of two tensors, chosen by a third.

use std::sync::Arc;

use super::apply::{input, output, select};
use super::binary_gpu;
use crate::dtype::DType;
use crate::graph::TensorInfo;
use crate::kernel::{KernelError, NativeArgs, NativeKernel};
use crate::ops::strided::Nest;
use crate::ops::{HalfRule, Lowering, OpCx, OpError, Operand, Operator, Structure};

/// `condition ? a : b`, broadcast.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Where;

/// `condition ? a : b`.
pub fn select_where() -> Arc<dyn Operator> {
    Arc::new(Where)
}

struct Call {
    nest: Nest,
    lens: [usize; 4],
}

impl Operator for Where {
    fn name(&self) -> &'static str {
        "Where"
    }

    fn structure(&self) -> Option<Structure<'_>> {
        Some(Structure::Select)
    }

    fn half_rule(&self) -> HalfRule {
        HalfRule::Mask
    }

    fn infer(&self, cx: &OpCx) -> Result<Vec<TensorInfo>, OpError> {
        cx.expect_counts(3..=3, 1..=1)?;
        cx.expect_dtype(0, DType::Bool)?;
        let dtype = cx.dtype(1)?;
        cx.expect_dtype(2, dtype)?;
        let shape = cx.shape(0)?.broadcast(cx.shape(1)?)?.broadcast(cx.shape(2)?)?;
        Ok(vec![TensorInfo::new(dtype, shape)])
    }

    fn in_place(&self, cx: &OpCx) -> Option<usize> {
        let out = cx.outputs().first()?;
        (1..3).find(|&i| cx.input_opt(i).is_some_and(|x| x == out))
    }

    fn cpu(&self, cx: &OpCx) -> Result<NativeKernel, OpError> {
        let y = cx.output(0)?;
        let nest = Nest::broadcast(&y.shape, &[cx.shape(0)?, cx.shape(1)?, cx.shape(2)?])?;
        let len = |i| cx.input(i).map(TensorInfo::elements);
        let call = Call { nest, lens: [len(0)?, len(1)?, len(2)?, y.elements()] };
        let run: fn(&Call, &mut NativeArgs<'_, '_>) -> Result<(), KernelError> = match y.dtype.bytes() {
            1 => native::<u8>,
            2 => native::<u16>,
            4 => native::<u32>,
            _ => native::<u64>,
        };
        Ok(NativeKernel::new("Where", move |args| run(&call, args)))
    }

    fn gpu(&self, cx: &OpCx, lower: &mut Lowering<'_>) -> Result<(), OpError> {
        let y = cx.output(0)?;
        let io = [
            (Operand::Input(0), cx.shape(0)?),
            (Operand::Input(1), cx.shape(1)?),
            (Operand::Input(2), cx.shape(2)?),
            (Operand::Output(0), &y.shape),
        ];
        binary_gpu::select(lower, y.dtype.bytes(), io)
    }
}

fn native<T: bytemuck::Pod + Send + Sync>(
    call: &Call,
    args: &mut NativeArgs<'_, '_>,
) -> Result<(), KernelError> {
    let condition = input::<u8>(args, 0, call.lens[0])?;
    let (a, b) = (input::<T>(args, 1, call.lens[1])?, input::<T>(args, 2, call.lens[2])?);
    select(&call.nest, condition, a, b, output(args, 3, call.lens[3])?);
    Ok(())
}
