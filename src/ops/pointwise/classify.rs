//! IsNaN and IsInf.

use std::sync::Arc;

use half::{bf16, f16};

use super::apply::{input, map, output};
use crate::dtype::{DType, Element};
use crate::graph::TensorInfo;
use crate::kernel::table::{id, params};
use crate::kernel::{KernelError, NativeArgs, NativeKernel};
use crate::ops::real::FLOATS;
use crate::ops::{AttrReader, Lowering, OpCx, OpError, Operand, Operator};

/// Whether each element is of a kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Classify {
    /// IsNaN.
    Nan,
    /// IsInf.
    Inf {
        /// Whether positive infinity counts.
        positive: bool,
        /// Whether negative infinity counts.
        negative: bool,
    },
}

pub(super) fn read_nan(_: &mut AttrReader<'_>, _: i64) -> Result<Arc<dyn Operator>, OpError> {
    Ok(Arc::new(Classify::Nan))
}

pub(super) fn read_inf(attrs: &mut AttrReader<'_>, _: i64) -> Result<Arc<dyn Operator>, OpError> {
    let positive = attrs.flag("detect_positive", true)?;
    let negative = attrs.flag("detect_negative", true)?;
    Ok(Arc::new(Classify::Inf { positive, negative }))
}

impl Classify {
    fn test(self, v: f64) -> bool {
        match self {
            Classify::Nan => v.is_nan(),
            Classify::Inf { positive, negative } => {
                (positive && v == f64::INFINITY) || (negative && v == f64::NEG_INFINITY)
            }
        }
    }

    fn run<T: Element>(
        self,
        n: usize,
        args: &mut NativeArgs<'_, '_>,
        wide: impl Fn(T) -> f64 + Send + Sync,
    ) -> Result<(), KernelError> {
        let x = input::<T>(args, 0, n)?;
        map(x, output(args, 1, n)?, |v| u8::from(self.test(wide(v))));
        Ok(())
    }
}

impl Operator for Classify {
    fn name(&self) -> &'static str {
        if *self == Classify::Nan { "IsNaN" } else { "IsInf" }
    }

    fn infer(&self, cx: &OpCx) -> Result<Vec<TensorInfo>, OpError> {
        cx.expect_counts(1..=1, 1..=1)?;
        cx.dtype_of(0, FLOATS)?;
        Ok(vec![TensorInfo::new(DType::Bool, cx.shape(0)?.clone())])
    }

    fn cpu(&self, cx: &OpCx) -> Result<NativeKernel, OpError> {
        let (dtype, n, kind) = (cx.dtype(0)?, cx.input(0)?.elements(), *self);
        Ok(NativeKernel::new(self.name(), move |args| match dtype {
            DType::F32 => kind.run::<f32>(n, args, f64::from),
            DType::F16 => kind.run::<f16>(n, args, f64::from),
            DType::BF16 => kind.run::<bf16>(n, args, f64::from),
            _ => kind.run::<f64>(n, args, |v| v),
        }))
    }

    fn gpu(&self, cx: &OpCx, lower: &mut Lowering<'_>) -> Result<(), OpError> {
        let (dtype, n) = (cx.dtype(0)?, cx.input(0)?.elements());
        let fail = || OpError::unsupported(format!("{} of {dtype} on the device", self.name()));
        let kernel = match dtype {
            DType::F32 => id::CLASSIFY_F32,
            DType::F16 => id::CLASSIFY_F16,
            DType::F64 => id::CLASSIFY_F64,
            _ => return Err(fail()),
        };
        let (nan, positive, negative) = match *self {
            Classify::Nan => (1, 0, 0),
            Classify::Inf { positive, negative } => (0, positive.into(), negative.into()),
        };
        let params = params::Classify { n: u32::try_from(n).map_err(|_| fail())?, nan, positive, negative };
        lower.dispatch_1d(kernel, &[], &[Operand::Input(0), Operand::Output(0)], &params, n)
    }
}
