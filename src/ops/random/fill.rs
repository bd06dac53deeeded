//! RandomUniform, RandomNormal and their forms that take the shape from a tensor.

use std::sync::Arc;

use super::philox::{Philox, Seed};
use crate::dtype::DType;
use crate::graph::TensorInfo;
use crate::kernel::NativeKernel;
use crate::kernel::table::{params, spec, variants};
use crate::ops::pointwise::number::{Number, with_number};
use crate::ops::real::FLOATS;
use crate::ops::word::word;
use crate::ops::{AttrReader, Lowering, OpCx, OpError, Operand, Operator, par};
use crate::shape::Shape;

/// The distribution of the numbers.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Distribution {
    /// Evenly from `low` to below `high`.
    Uniform {
        /// The lower bound.
        low: f32,
        /// The upper bound.
        high: f32,
    },
    /// The normal distribution.
    Normal {
        /// Its mean.
        mean: f32,
        /// Its standard deviation.
        scale: f32,
    },
}

impl Distribution {
    /// The numbers of a stream, number `i` by `i`.
    fn draw(&self, philox: &Philox) -> impl FnMut(usize) -> f32 + use<> {
        let (start, scale, mut numbers) = match *self {
            Distribution::Uniform { low, high } => (low, high - low, philox.uniforms()),
            Distribution::Normal { mean, scale } => (mean, scale, philox.normals()),
        };
        move |i| start + scale * numbers.at(i)
    }
}

/// A tensor of random numbers.
#[derive(Clone, Debug, PartialEq)]
pub struct RandomFill {
    distribution: Distribution,
    /// The shape; without one input 0 has it.
    shape: Option<Vec<i64>>,
    /// The type; without one input 0 has it.
    dtype: Option<DType>,
    seed: Seed,
}

pub(super) fn read(
    attrs: &mut AttrReader<'_>,
    normal: bool,
    like: bool,
) -> Result<Arc<dyn Operator>, OpError> {
    let distribution = if normal {
        Distribution::Normal { mean: attrs.float("mean", 0.0)?, scale: attrs.float("scale", 1.0)? }
    } else {
        Distribution::Uniform { low: attrs.float("low", 0.0)?, high: attrs.float("high", 1.0)? }
    };
    let (mut shape, mut dtype) = (None, attrs.dtype_opt("dtype")?);
    if !like {
        shape = Some(attrs.ints_opt("shape")?.ok_or_else(|| attrs.error("shape", "is missing"))?);
        dtype = dtype.or(Some(DType::F32));
    }
    Ok(Arc::new(RandomFill { distribution, shape, dtype, seed: Seed::of(attrs.float_opt("seed")?) }))
}

impl RandomFill {
    /// Numbers in the shape and type that are given, or else those of input 0; the same in every run where
    /// there is a seed.
    pub fn new(
        distribution: Distribution,
        shape: Option<Vec<i64>>,
        dtype: Option<DType>,
        seed: Option<f32>,
    ) -> Self {
        RandomFill { distribution, shape, dtype, seed: Seed::of(seed) }
    }
}

impl Operator for RandomFill {
    fn name(&self) -> &'static str {
        match (self.distribution, &self.shape) {
            (Distribution::Uniform { .. }, Some(_)) => "RandomUniform",
            (Distribution::Uniform { .. }, None) => "RandomUniformLike",
            (Distribution::Normal { .. }, Some(_)) => "RandomNormal",
            (Distribution::Normal { .. }, None) => "RandomNormalLike",
        }
    }

    fn shape_only(&self) -> bool {
        true
    }

    fn varies(&self) -> bool {
        self.seed == Seed::Fresh
    }

    fn infer(&self, cx: &OpCx) -> Result<Vec<TensorInfo>, OpError> {
        let inputs = usize::from(self.shape.is_none());
        cx.expect_counts(inputs..=inputs, 1..=1)?;
        let shape = match &self.shape {
            Some(dims) => Shape::from_i64(dims)?,
            None => cx.shape(0)?.clone(),
        };
        let dtype = match self.dtype {
            Some(dtype) => dtype,
            None => cx.dtype(0)?,
        };
        if !FLOATS.contains(&dtype) {
            return Err(OpError::unsupported(format!("random numbers of {dtype}")));
        }
        Ok(vec![TensorInfo::new(dtype, shape)])
    }

    fn cpu(&self, cx: &OpCx) -> Result<NativeKernel, OpError> {
        let (distribution, seed, out) = (self.distribution, self.seed, cx.input_count());
        with_number!(cx.output(0)?.dtype, T => Ok(NativeKernel::new(self.name(), move |args| {
            let philox = seed.philox();
            par::parts(args.take_write::<T>(out)?, |first, part| {
                let mut draw = distribution.draw(&philox);
                for (i, y) in (first..).zip(part) {
                    *y = T::from_f64(draw(i).into());
                }
            });
            Ok(())
        })), else Err(OpError::unsupported("random booleans")))
    }

    fn gpu(&self, cx: &OpCx, lower: &mut Lowering<'_>) -> Result<(), OpError> {
        let y = cx.output(0)?;
        let kernel = variants::RandomFill { t: y.dtype }.id()?;
        let key = self.seed.for_device()?.key;
        let (normal, a, b) = match self.distribution {
            Distribution::Uniform { low, high } => (0, low, high - low),
            Distribution::Normal { mean, scale } => (1, mean, scale),
        };
        let p = params::RandomFill { key, n: word(y.elements())?, start: a, scale: b };
        let blocks = y.elements().div_ceil(4);
        lower.dispatch_1d(kernel, &[(spec::random_fill::NORMAL, normal)], &[Operand::Output(0)], &p, blocks)
    }
}
