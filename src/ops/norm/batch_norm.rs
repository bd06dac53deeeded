//! BatchNormalization, for inference: every channel scaled and shifted.

use std::sync::Arc;

use crate::dtype::DType;
use crate::graph::TensorInfo;
use crate::kernel::codes::batch_norm::RUN;
use crate::kernel::table::{params, spec, variants};
use crate::kernel::{KernelError, NativeKernel};
use crate::ops::real::{FLOATS, Real, RealIo, RealKernel, real_kernel};
use crate::ops::word::index32;
use crate::ops::{Activation, AttrReader, Cost, Lowering, OpCx, OpError, Operand, Operator, Structure, par};
use crate::simd::wide;

/// `(x - mean) / sqrt(var + epsilon) * scale + bias` for every channel of X `[n, c, ...]`.
/// Inputs: X, scale, bias, mean, var, each of the last four `[c]`.
#[derive(Clone, Debug)]
pub struct BatchNormalization {
    /// Added to the variance.
    pub epsilon: f32,
    /// Applied to the output.
    pub activation: Activation,
    /// Whether the last four inputs may be `[c, ...]`, one number for each element of an image (`spatial = 0` to
    /// opset 8). Some exporters wrote that and yet one number for each channel, which is read as such.
    pub by_element: bool,
}

pub(super) fn read(attrs: &mut AttrReader<'_>, opset: i64) -> Result<Arc<dyn Operator>, OpError> {
    // Matters to training only.
    let momentum = attrs.float("momentum", 0.9)?;
    if opset < 6 {
        attrs.ints_opt("consumed_inputs")?;
    }
    if opset < 7 && !attrs.flag("is_test", false)? {
        return Err(OpError::unsupported("batch normalization in training"));
    }
    let training = opset >= 7 && attrs.flag("training_mode", false)?;
    let by_element = opset < 9 && !attrs.flag("spatial", true)?;
    let epsilon = attrs.float("epsilon", 1e-5)?;
    let norm = BatchNormalization { epsilon, activation: Activation::None, by_element };
    Ok(if training { super::batch_norm_training::training(norm, momentum) } else { Arc::new(norm) })
}

impl BatchNormalization {
    /// Images, channels, elements of a channel; an element may be a channel of its own.
    pub(crate) fn resolve(&self, cx: &OpCx) -> Result<[usize; 3], OpError> {
        match cx.shape(0)?.dims() {
            [n, image @ ..] if self.has_elements(cx)? => Ok([*n, image.iter().product(), 1]),
            [n] => Ok([*n, 1, 1]),
            [n, c, rest @ ..] => Ok([*n, *c, rest.iter().product()]),
            [] => Err(cx.shape_error(0, "[batch, channels, ...]")),
        }
    }

    /// Whether there is one number for each element of an image.
    fn has_elements(&self, cx: &OpCx) -> Result<bool, OpError> {
        let image = cx.shape(0)?.dims().get(1..).unwrap_or_default();
        Ok(self.by_element && image.len() > 1 && cx.shape(1)?.dims() == image)
    }

    /// The normalized tensor, after checking all five inputs.
    pub(super) fn check_inputs(&self, cx: &OpCx) -> Result<TensorInfo, OpError> {
        let dtype = cx.dtype_of(0, FLOATS)?;
        let [_, channels, _] = self.resolve(cx)?;
        let wanted = match cx.shape(0)?.dims() {
            [_, image @ ..] if self.has_elements(cx)? => image.to_vec(),
            _ => vec![channels],
        };
        for i in 1..5 {
            cx.dtype_of(i, FLOATS)?;
            if cx.shape(i)?.dims() != wanted {
                return Err(cx.shape_error(i, format!("{wanted:?}")));
            }
        }
        Ok(TensorInfo::new(dtype, cx.shape(0)?.clone()))
    }

    /// Emits the normalization with the mean and the variance of `stats`, which are of type `stats_type`.
    pub(super) fn normalize(
        &self,
        cx: &OpCx,
        stats: [Operand; 2],
        stats_type: DType,
        lower: &mut Lowering<'_>,
    ) -> Result<(), OpError> {
        let dtype = cx.dtype(0)?;
        let [batch, channels, plane] = self.resolve(cx)?;
        index32(batch * channels * plane)?;
        let texels = dtype == DType::F32 && lower.texels(plane, batch * channels * plane);
        if (1..5).any(|i| cx.dtype(i).is_ok_and(|d| d != dtype)) {
            return Err(OpError::unsupported("no device kernel for mixed types"));
        }
        let kernel = variants::BatchNorm { t: dtype, s: stats_type, texels }.id()?;
        let plane = if texels { plane / 4 } else { plane };
        let n = batch * channels * plane.div_ceil(RUN);
        let (code, [act_a, act_b]) = self.activation.code();
        let params = params::BatchNorm {
            n: n as u32,
            channels: channels as u32,
            plane: plane as u32,
            epsilon: self.epsilon,
            act_a,
            act_b,
        };
        let args = [0, 1, 2].map(Operand::Input);
        let args = [&args[..], &stats[..], &[Operand::Output(0)]].concat();
        lower.dispatch_1d(kernel, &[(spec::batch_norm::ACTIVATION, code)], &args, &params, n)
    }
}

impl Operator for BatchNormalization {
    fn name(&self) -> &'static str {
        "BatchNormalization"
    }

    fn structure(&self) -> Option<Structure<'_>> {
        Some(Structure::BatchNormalization { epsilon: self.epsilon, activation: self.activation })
    }

    fn infer(&self, cx: &OpCx) -> Result<Vec<TensorInfo>, OpError> {
        if cx.output_count() > 1 {
            return Err(OpError::unsupported("the outputs of training"));
        }
        cx.expect_counts(5..=5, 1..=1)?;
        Ok(vec![self.check_inputs(cx)?])
    }

    fn cost(&self, cx: &OpCx) -> Cost {
        Cost { flops: 2 * cx.input_opt(0).map_or(0, |i| i.elements() as u64), bytes: cx.bytes_touched() }
    }

    fn in_place(&self, _cx: &OpCx) -> Option<usize> {
        Some(0)
    }

    fn cpu(&self, cx: &OpCx) -> Result<NativeKernel, OpError> {
        let [batch, channels, plane] = self.resolve(cx)?;
        let run = Run { batch, channels, plane, epsilon: self.epsilon, activation: self.activation };
        real_kernel("BatchNormalization", cx, run)
    }

    fn with_activation(&self, activation: &Activation) -> Option<Arc<dyn Operator>> {
        let activation = self.activation.then(activation)?;
        Some(Arc::new(BatchNormalization { activation, ..self.clone() }) as _)
    }

    fn gpu(&self, cx: &OpCx, lower: &mut Lowering<'_>) -> Result<(), OpError> {
        self.normalize(cx, [3, 4].map(Operand::Input), cx.dtype(0)?, lower)
    }
}

struct Run {
    batch: usize,
    channels: usize,
    plane: usize,
    epsilon: f32,
    activation: Activation,
}

impl RealKernel for Run {
    fn run<T: Real>(&self, io: &mut RealIo<'_, T>) -> Result<(), KernelError> {
        let &Run { batch, channels, plane, .. } = self;
        let (y, inputs) = io.output(0, batch * channels * plane)?;
        let x = inputs.get(0, batch * channels * plane)?;
        let (scale, bias) = (inputs.get(1, channels)?, inputs.get(2, channels)?);
        let (mean, var) = (inputs.get(3, channels)?, inputs.get(4, channels)?);
        if y.is_empty() {
            return Ok(());
        }
        let epsilon = T::from_f64(self.epsilon.into());
        let bounds = self.activation.bounds();
        let [low, high] =
            bounds.unwrap_or([f32::NEG_INFINITY, f32::INFINITY]).map(|bound| T::from_f64(bound.into()));
        par::rows(y, plane, 2 * x.len(), |i, y| {
            let (c, x) = (i % channels, &x[i * plane..][..plane]);
            let factor = scale[c] / (var[c] + epsilon).sqrt();
            let (mean, bias) = (mean[c], bias[c]);
            wide(
                #[inline(always)]
                || {
                    for (y, x) in y.iter_mut().zip(x) {
                        let normalized = (*x - mean) * factor + bias;
                        // A NaN stays one.
                        let normalized = if normalized < low { low } else { normalized };
                        *y = if normalized > high { high } else { normalized };
                    }
                },
            );
            if bounds.is_none() {
                self.activation.apply(y);
            }
        });
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use crate::expr::Function;
    use crate::graph::Tensor;
    use crate::ops::test_util::{assert_near, attrs, facts, read_op, run_f32, tensor, values};
    use crate::ops::{Activation, AttrValue, OpError};

    #[test]
    fn every_channel_is_scaled_and_shifted() {
        for shape in [vec![2, 3, 4, 5], vec![4, 3], vec![1, 3, 2, 2, 2]] {
            let plane: usize = shape[2..].iter().product();
            let x = tensor(&shape, 1);
            let [s, b, m] = [2, 3, 4].map(|seed| tensor(&[3], seed));
            let var: Vec<f32> = values(3, 5).iter().map(|v| v.abs() + 0.1).collect();
            let at = |t: &Tensor, c: usize| f64::from(t.to_f32s().unwrap()[c]);
            let want: Vec<f64> = x
                .to_f32s()
                .unwrap()
                .iter()
                .enumerate()
                .map(|(i, v)| {
                    let c = i / plane % 3;
                    let n = (f64::from(*v) - at(&m, c)) / (f64::from(var[c]) + 1e-3).sqrt();
                    n * at(&s, c) + at(&b, c)
                })
                .collect();
            let op =
                read_op("BatchNormalization", 15, &attrs(&[("epsilon", AttrValue::Float(1e-3))])).unwrap();
            let var = Tensor::new([3], &var).unwrap();
            let inputs = [x, s, b, m, var].map(Some);
            for (activation, slope) in [
                (Activation::of(Function::Relu), 0.0),
                (Activation::with(Function::LeakyRelu, [0.5, 0.0]), 0.5),
                (Activation::None, 1.0),
            ] {
                let op = op.with_activation(&activation).unwrap();
                let want: Vec<f64> = want.iter().map(|y| y.max(0.0) + slope * y.min(0.0)).collect();
                assert_near(&run_f32(&*op, &inputs).unwrap(), &want, 1e-5);
            }
        }
    }

    #[test]
    fn elements_may_have_numbers_of_their_own() {
        let op = read_op("BatchNormalization", 7, &attrs(&[("spatial", AttrValue::Int(0))])).unwrap();
        let image = [3, 2, 4];
        let mut inputs = vec![Some(tensor(&[2, 3, 2, 4], 1))];
        inputs.extend([2, 3, 4].map(|seed| Some(tensor(&image, seed))));
        let var: Vec<f32> = values(24, 5).iter().map(|v| v.abs() + 0.1).collect();
        inputs.push(Some(Tensor::new(image, &var).unwrap()));
        let at = |i: usize, k: usize| f64::from(inputs[i].as_ref().unwrap().to_f32s().unwrap()[k]);
        let want: Vec<f64> = (0..48)
            .map(|i| {
                let k = i % 24;
                (at(0, i) - at(3, k)) / (at(4, k) + 1e-5).sqrt() * at(1, k) + at(2, k)
            })
            .collect();
        assert_near(&run_f32(&*op, &inputs).unwrap(), &want, 1e-5);
        #[cfg(feature = "vulkan")]
        crate::ops::testing::check_op(&*op, &inputs, 1e-5);
        // As if nothing had been said, which is what some exporters meant.
        let channels: Vec<_> =
            std::iter::once(inputs[0].clone()).chain((0..4).map(|_| Some(tensor(&[3], 2)))).collect();
        assert!(facts(&*op, &channels, 1).is_ok());
        assert!(facts(&*read_op("BatchNormalization", 9, &attrs(&[])).unwrap(), &inputs, 1).is_err());
    }

    #[test]
    fn training_and_misfits_are_errors() {
        let training = read_op("BatchNormalization", 6, &attrs(&[]));
        assert!(matches!(training.unwrap_err(), OpError::Unsupported { .. }));
        let op = read_op("BatchNormalization", 9, &attrs(&[])).unwrap();
        let inputs = |c: usize| {
            let mut all = vec![Some(tensor(&[1, 3, 2], 1))];
            all.extend((0..4).map(|_| Some(tensor(&[c], 1))));
            all
        };
        assert!(facts(&*op, &inputs(3), 1).is_ok());
        assert!(facts(&*op, &inputs(2), 1).is_err());
        assert!(matches!(facts(&*op, &inputs(3), 5), Err(OpError::Unsupported { .. })));
    }
}
