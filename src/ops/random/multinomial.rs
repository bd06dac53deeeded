//! Multinomial: classes drawn with given probabilities.

use std::sync::Arc;

use super::philox::Seed;
use crate::dtype::DType;
use crate::graph::TensorInfo;
use crate::kernel::NativeKernel;
use crate::kernel::table::{params, spec, variants};
use crate::ops::pointwise::number::f64s;
use crate::ops::real::FLOATS;
use crate::ops::word::word;
use crate::ops::{AttrReader, Cost, Lowering, OpCx, OpError, Operand, Operator};
use crate::shape::Shape;

/// `[batch, samples]` classes of int32 or int64, drawn independently with probabilities whose logarithms, up to a
/// summand, are the rows of input 0, `[batch, classes]`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Multinomial {
    samples: usize,
    wide: bool,
    seed: Seed,
}

pub(super) fn read(attrs: &mut AttrReader<'_>, _: i64) -> Result<Arc<dyn Operator>, OpError> {
    let wide = match attrs.dtype_opt("dtype")?.unwrap_or(DType::I32) {
        DType::I32 => false,
        DType::I64 => true,
        other => return Err(attrs.error("dtype", format!("is {other}, expected int32 or int64")).into()),
    };
    let samples = attrs.int("sample_size", 1)?;
    let samples =
        usize::try_from(samples).map_err(|_| attrs.error("sample_size", format!("is {samples}, below 0")))?;
    Ok(Arc::new(Multinomial::new(samples, wide, attrs.float_opt("seed")?)))
}

impl Multinomial {
    /// `samples` samples of each row, as int64 where `wide`; the same in every run where there is a seed.
    pub fn new(samples: usize, wide: bool, seed: Option<f32>) -> Self {
        Multinomial { samples, wide, seed: Seed::of(seed) }
    }

    /// The classes that are drawn of each row of `x`.
    fn draw(self, x: &[f32], classes: usize) -> Vec<usize> {
        let mut numbers = self.seed.philox().uniforms();
        let mut drawn = Vec::new();
        for x in x.chunks(classes.max(1)) {
            let top = x.iter().copied().fold(f32::NEG_INFINITY, f32::max);
            let mut total = 0f32;
            let add = |v: &f32| {
                total += (v - top).exp();
                total
            };
            let sums: Vec<f32> = x.iter().map(add).collect();
            for _ in 0..self.samples {
                let aim = numbers.at(drawn.len()) * total;
                // Sums never fall.
                let class = sums.partition_point(|sum| *sum <= aim || sum.is_nan());
                drawn.push(class.min(classes - 1));
            }
        }
        drawn
    }
}

impl Operator for Multinomial {
    fn name(&self) -> &'static str {
        "Multinomial"
    }

    fn varies(&self) -> bool {
        self.seed == Seed::Fresh
    }

    fn infer(&self, cx: &OpCx) -> Result<Vec<TensorInfo>, OpError> {
        cx.expect_counts(1..=1, 1..=1)?;
        cx.dtype_of(0, FLOATS)?;
        let [batch, classes] = cx.shape(0)?.dims() else {
            return Err(cx.shape_error(0, "[batch, classes]"));
        };
        if *classes == 0 && *batch > 0 && self.samples > 0 {
            return Err(cx.shape_error(0, "at least one class"));
        }
        let dtype = if self.wide { DType::I64 } else { DType::I32 };
        Ok(vec![TensorInfo::new(dtype, Shape::new([*batch, self.samples])?)])
    }

    fn cost(&self, cx: &OpCx) -> Cost {
        let n = cx.input_opt(0).map_or(0, |x| x.elements() as u64);
        Cost { flops: n.saturating_mul(self.samples as u64 + 10), bytes: cx.bytes_touched() }
    }

    fn cpu(&self, cx: &OpCx) -> Result<NativeKernel, OpError> {
        let (op, classes, dtype) = (*self, cx.shape(0)?[1], cx.dtype(0)?);
        Ok(NativeKernel::new("Multinomial", move |args| {
            let x: Vec<f32> = f64s(args, 0, dtype)?.into_iter().map(|v| v as f32).collect();
            let drawn = op.draw(&x, classes);
            if op.wide {
                let y = args.take_write::<i64>(1)?.iter_mut();
                y.zip(drawn).for_each(|(y, class)| *y = class as i64);
            } else {
                let y = args.take_write::<i32>(1)?.iter_mut();
                y.zip(drawn).for_each(|(y, class)| *y = class as i32);
            }
            Ok(())
        }))
    }

    fn gpu(&self, cx: &OpCx, lower: &mut Lowering<'_>) -> Result<(), OpError> {
        let kernel = variants::Multinomial { t: cx.dtype(0)? }.id()?;
        let key = self.seed.for_device()?.key;
        let n = cx.output(0)?.elements();
        // The largest, the sum, and the one that is drawn.
        lower.iterations(3 * cx.shape(0)?[1])?;
        let p = params::Multinomial {
            key,
            n: word(n)?,
            samples: word(self.samples)?,
            classes: word(cx.shape(0)?[1])?,
        };
        let words = [(spec::multinomial::WORDS, 1 + u32::from(self.wide))];
        lower.dispatch_1d(kernel, &words, &[Operand::Input(0), Operand::Output(0)], &p, n)
    }
}
