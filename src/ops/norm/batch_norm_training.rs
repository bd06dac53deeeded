//! BatchNormalization in training: the statistics are those of the batch.

use std::sync::Arc;

use super::batch_norm::BatchNormalization;
use crate::dtype::DType;
use crate::graph::TensorInfo;
use crate::kernel::table::{params, spec, variants};
use crate::kernel::{KernelError, NativeKernel};
use crate::ops::real::{Real, RealIo, RealKernel, real_kernel};
use crate::ops::word::index32;
use crate::ops::{Cost, Lowering, OpCx, OpError, Operand, Operator, par};

/// X normalized with its own mean and variance of each channel (output 0), and the running mean and variance
/// (outputs 1 and 2): `momentum` of inputs 3 and 4 and the rest of the batch's.
#[derive(Clone, Debug)]
pub struct BatchNormTraining {
    /// The normalization.
    pub norm: BatchNormalization,
    /// The part of the running statistics that stays.
    pub momentum: f32,
}

impl Operator for BatchNormTraining {
    fn name(&self) -> &'static str {
        "BatchNormalization"
    }

    fn infer(&self, cx: &OpCx) -> Result<Vec<TensorInfo>, OpError> {
        cx.expect_counts(5..=5, 1..=3)?;
        let y = self.norm.check_inputs(cx)?;
        let outputs = [y, cx.input(3)?.clone(), cx.input(4)?.clone()];
        Ok(outputs.into_iter().take(cx.output_count()).collect())
    }

    fn cost(&self, cx: &OpCx) -> Cost {
        let n = cx.input_opt(0).map_or(0, |i| i.elements() as u64);
        Cost { flops: 7 * n, bytes: cx.bytes_touched() }
    }

    fn cpu(&self, cx: &OpCx) -> Result<NativeKernel, OpError> {
        let sizes = self.norm.resolve(cx)?;
        real_kernel("BatchNormalization", cx, Run { sizes, op: self.clone() })
    }

    fn gpu(&self, cx: &OpCx, lower: &mut Lowering<'_>) -> Result<(), OpError> {
        let dtype = cx.dtype(0)?;
        let [batch, channels, plane] = self.norm.resolve(cx)?;
        index32(batch * channels * plane)?;
        if (1..5).any(|i| cx.dtype(i).is_ok_and(|d| d != dtype)) {
            return Err(OpError::unsupported("no device kernel for mixed types"));
        }
        let kernel = variants::BatchStats { t: dtype }.id()?;
        // A variance of halves may be beyond their largest.
        let stats = [0, 1].map(|_| lower.scratch(channels * DType::F32.bytes()));
        let running = |i: usize| if cx.outputs().len() > i { Operand::Output(i) } else { Operand::Unused };
        let p = params::BatchStats {
            channels: channels as u32,
            batch: batch as u32,
            plane: plane as u32,
            momentum: self.momentum,
        };
        let constants = [(spec::batch_stats::RUNNING, cx.outputs().len() as u32 - 1)];
        let inputs = [0, 3, 4].map(Operand::Input);
        let args = [&inputs[..], &stats[..], &[running(1), running(2)]].concat();
        let groups = crate::kernel::grid_1d(channels as u64, 1, lower.device().limits.max_groups[0]);
        lower.dispatch(kernel, &constants, &args, &p, groups)?;
        self.norm.normalize(cx, stats, DType::F32, lower)
    }
}

struct Run {
    sizes: [usize; 3],
    op: BatchNormTraining,
}

impl RealKernel for Run {
    fn run<T: Real>(&self, io: &mut RealIo<'_, T>) -> Result<(), KernelError> {
        let [batch, channels, plane] = self.sizes;
        let ([y, mean, var], inputs) = io.outputs();
        let x = inputs.get(0, batch * channels * plane)?;
        let of = |i: usize| inputs.get(i, channels);
        let (scale, bias, old_mean, old_var) = (of(1)?, of(2)?, of(3)?, of(4)?);
        let n = (batch * plane) as f64;
        let rows = |c: usize| x.chunks(plane.max(1)).skip(c).step_by(channels.max(1)).flatten();
        let mut stats = vec![(0f64, 0f64); channels];
        par::each(&mut stats, 2 * x.len(), |c| {
            let mean = rows(c).map(|v| v.to_f64()).sum::<f64>() / n;
            (mean, rows(c).map(|v| (v.to_f64() - mean).powi(2)).sum::<f64>() / n)
        });
        let momentum = f64::from(self.op.momentum);
        let mix = |old: T, new: f64| T::from_f64(momentum * old.to_f64() + (1.0 - momentum) * new);
        for (out, old, new) in [
            (mean, old_mean, stats.iter().map(|s| s.0).collect()),
            (var, old_var, stats.iter().map(|s| s.1).collect::<Vec<f64>>()),
        ] {
            let out = out.unwrap_or(&mut []);
            out.iter_mut().zip(old).zip(new).for_each(|((out, old), new)| *out = mix(*old, new));
        }
        let y = y.unwrap_or(&mut []);
        par::rows(y, plane, 2 * x.len(), |i, y| {
            let (c, x) = (i % channels, x.get(i * plane..).unwrap_or(&[]));
            let (mean, var) = stats[c];
            let factor = scale[c].to_f64() / (var + f64::from(self.op.norm.epsilon)).sqrt();
            let (mean, factor) = (T::from_f64(mean), T::from_f64(factor));
            y.iter_mut().zip(x).for_each(|(y, x)| *y = (*x - mean) * factor + bias[c]);
        });
        Ok(())
    }
}

pub(super) fn training(norm: BatchNormalization, momentum: f32) -> Arc<dyn Operator> {
    Arc::new(BatchNormTraining { norm, momentum })
}

#[cfg(test)]
#[cfg(feature = "vulkan")]
mod tests {
    use super::*;
    use crate::graph::Tensor;
    use crate::ops::Activation;
    use crate::ops::test_util::{tensor, tensor_of, values};
    use crate::ops::testing::{Check, as_is, no_texels};
    use half::f16;

    #[test]
    fn devices_take_the_same_statistics() {
        let norm = BatchNormalization { epsilon: 1e-3, activation: Activation::None, by_element: false };
        let op = BatchNormTraining { norm, momentum: 0.7 };
        for shape in [vec![2, 3, 5, 7], vec![67, 5], vec![1, 2, 300], vec![3, 2, 4, 4]] {
            let c = shape[1];
            let variance: Vec<f32> = values(c, 9).iter().map(|v| v.abs()).collect();
            let inputs: Vec<Tensor> =
                vec![tensor(&shape, 1), tensor(&[c], 2), tensor(&[c], 3), tensor(&[c], 4)];
            let mut inputs: Vec<Option<Tensor>> = inputs.into_iter().map(Some).collect();
            inputs.push(Some(Tensor::new([c], &variance).unwrap()));
            let halves: Vec<Option<Tensor>> = inputs
                .iter()
                .flatten()
                .map(|t| Some(tensor_of(t.shape(), &t.to_f32s().unwrap(), f16::from_f32)))
                .collect();
            let v: Vec<f32> = values(shape.iter().product(), 5).iter().map(|v| 900.0 * v).collect();
            let mut far = halves.clone();
            far[0] = Some(tensor_of(&shape, &v, f16::from_f32));
            Check::new(&op, &far).tolerance(1e-2).run();
            for (outputs, change) in [(1, as_is as fn(&mut _)), (3, no_texels)] {
                Check::new(&op, &inputs).outputs(outputs).pretend(change).tolerance(1e-4).run();
                Check::new(&op, &halves).outputs(outputs).pretend(change).tolerance(1e-2).run();
            }
        }
    }
}
