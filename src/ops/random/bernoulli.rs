//! Bernoulli: ones with given probabilities.

use std::sync::Arc;

use super::philox::Seed;
use crate::dtype::DType;
use crate::graph::TensorInfo;
use crate::kernel::table::{params, spec, variants};
use crate::kernel::{KernelError, NativeArgs, NativeKernel};
use crate::ops::pointwise::number::{Number, f64s, with_number};
use crate::ops::real::FLOATS;
use crate::ops::word::word;
use crate::ops::{AttrReader, Lowering, OpCx, OpError, Operand, Operator};

/// 1 with the probability that input 0 has at the place, else 0.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Bernoulli {
    /// The output's type; `None` takes the input's.
    dtype: Option<DType>,
    seed: Seed,
}

pub(super) fn read(attrs: &mut AttrReader<'_>, _: i64) -> Result<Arc<dyn Operator>, OpError> {
    Ok(Arc::new(Bernoulli::new(attrs.dtype_opt("dtype")?, attrs.float_opt("seed")?)))
}

impl Bernoulli {
    /// Ones of `dtype`, or of the input's type; the same in every run where there is a seed.
    pub fn new(dtype: Option<DType>, seed: Option<f32>) -> Self {
        Bernoulli { dtype, seed: Seed::of(seed) }
    }

    /// For each element whether it is one.
    fn picks(self, probabilities: &[f64]) -> Vec<bool> {
        let mut numbers = self.seed.philox().uniforms();
        probabilities.iter().enumerate().map(|(i, p)| f64::from(numbers.at(i)) < *p).collect()
    }
}

/// Writes the second of two numbers where `picks` says so.
fn write<T: bytemuck::Pod>(
    args: &mut NativeArgs<'_, '_>,
    picks: &[bool],
    of: [T; 2],
) -> Result<(), KernelError> {
    args.take_write::<T>(1)?.iter_mut().zip(picks).for_each(|(y, pick)| *y = of[usize::from(*pick)]);
    Ok(())
}

impl Operator for Bernoulli {
    fn name(&self) -> &'static str {
        "Bernoulli"
    }

    fn varies(&self) -> bool {
        self.seed == Seed::Fresh
    }

    fn infer(&self, cx: &OpCx) -> Result<Vec<TensorInfo>, OpError> {
        cx.expect_counts(1..=1, 1..=1)?;
        let dtype = self.dtype.unwrap_or(cx.dtype_of(0, FLOATS)?);
        if !DType::COMPUTE.contains(&dtype) {
            return Err(OpError::unsupported(format!("Bernoulli of {dtype}")));
        }
        Ok(vec![TensorInfo::new(dtype, cx.shape(0)?.clone())])
    }

    fn cpu(&self, cx: &OpCx) -> Result<NativeKernel, OpError> {
        let (op, from, to) = (*self, cx.dtype(0)?, cx.output(0)?.dtype);
        Ok(NativeKernel::new("Bernoulli", move |args| {
            let picks = op.picks(&f64s(args, 0, from)?);
            with_number!(to, T => write(args, &picks, [T::ZERO, T::from_i64(1)]), else write(args, &picks, [0u8, 1]))
        }))
    }

    fn gpu(&self, cx: &OpCx, lower: &mut Lowering<'_>) -> Result<(), OpError> {
        let (from, y) = (cx.dtype(0)?, cx.output(0)?);
        if from != y.dtype {
            return Err(OpError::unsupported(format!("no device kernel for {} from {from}", y.dtype)));
        }
        let kernel = variants::RandomMask { t: from }.id()?;
        let key = self.seed.for_device()?.key;
        let p = params::RandomMask { key, n: word(y.elements())?, ratio: 0.0, scale: 1.0 };
        let constants = [(spec::random_mask::DROPOUT, 0), (spec::random_mask::MASK, 0)];
        let args = [Operand::Input(0), Operand::Output(0), Operand::Unused];
        lower.dispatch_1d(kernel, &constants, &args, &p, y.elements().div_ceil(4))
    }
}
