//! NegativeLogLikelihoodLoss and SoftmaxCrossEntropyLoss.

use std::sync::Arc;

use half::{bf16, f16};

use super::nll_device;
use crate::dtype::DType;
use crate::graph::TensorInfo;
use crate::kernel::{KernelError, NativeArgs, NativeKernel};
use crate::ops::index::positions::{INDEX_TYPES, mapped};
use crate::ops::norm::Along;
use crate::ops::pointwise::number::Number;
use crate::ops::real::FLOATS;
use crate::ops::{AttrReader, Cost, Lowering, OpCx, OpError, Operator, par};
use crate::shape::Shape;

/// The reduction of the losses of all positions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Reduction {
    /// They are the output.
    None,
    /// Their sum.
    Sum,
    /// Their sum over the sum of the weights of their classes.
    #[default]
    Mean,
}

/// `-weight[c] * log p[n, c, ...]` for the class `c` that input 1, `[n, ...]`, has at each place. Input 0 is
/// `[n, classes, ...]`; input 2, the weights of classes, may be absent (then all are 1).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NllLoss {
    /// Whether input 0 are scores, whose softmax over the classes are the probabilities, rather than logarithms
    /// of probabilities. These logarithms are then output 1.
    pub scores: bool,
    /// The reduction of the losses.
    pub reduction: Reduction,
    /// Places with this label have no loss and no weight.
    pub ignore: Option<i64>,
}

pub(super) fn read(attrs: &mut AttrReader<'_>, scores: bool) -> Result<Arc<dyn Operator>, OpError> {
    let words = [("none", Reduction::None), ("sum", Reduction::Sum), ("mean", Reduction::Mean)];
    let reduction = attrs.choice("reduction", Reduction::Mean, &words)?;
    Ok(Arc::new(NllLoss { scores, reduction, ignore: attrs.int_opt("ignore_index")? }))
}

/// The logarithms of the sums of exponentials of the scores, one for each place.
fn log_sums<T: Number>(x: &[T], Along { outer, len, inner }: Along) -> Vec<f64> {
    let one = |place: usize| {
        let first = place / inner * len * inner + place % inner;
        let scores = || x.iter().skip(first).step_by(inner).take(len).map(|v| v.to_f64());
        let top = scores().fold(f64::NEG_INFINITY, f64::max);
        top + scores().map(|v| (v - top).exp()).sum::<f64>().ln()
    };
    let mut sums = vec![0.0; outer * inner];
    // An exponential takes as long as many sums.
    par::each(&mut sums, 16 * outer * len * inner, one);
    sums
}

impl NllLoss {
    /// Samples, classes, places of a sample.
    pub(super) fn along(cx: &OpCx) -> Result<Along, OpError> {
        let x = cx.shape(0)?;
        if x.rank() < 2 {
            return Err(cx.shape_error(0, "[samples, classes, ...]"));
        }
        Ok(Along::axes(x, 1, 2))
    }

    fn run<T: Number>(
        self,
        args: &mut NativeArgs<'_, '_>,
        inputs: usize,
        along: Along,
        label_type: DType,
    ) -> Result<(), KernelError> {
        let Along { len, inner, .. } = along;
        let x = args.read::<T>(0)?;
        // After the last input the outputs begin.
        let weights = if inputs > 2 { args.read_opt::<T>(2)? } else { None };
        let labels = mapped(args, 1, label_type, |c| match usize::try_from(c).ok().filter(|c| *c < len) {
            _ if self.ignore == Some(c) => Ok(None),
            None => Err(KernelError::Value { what: format!("label {c} of {len} classes") }),
            class => Ok(class),
        })?;
        let logs = if self.scores { log_sums(x, along) } else { Vec::new() };
        let mut losses = labels.iter().enumerate().map(|(place, class)| {
            let Some(class) = *class else { return (0.0, 0.0) };
            let at = (place / inner * len + class) * inner + place % inner;
            let log = x.get(at).map_or(0.0, |v| v.to_f64()) - logs.get(place).copied().unwrap_or(0.0);
            let weight = weights.and_then(|w| w.get(class)).map_or(1.0, |w| w.to_f64());
            // A weight of 0 leaves nothing of an infinite loss.
            (if weight == 0.0 { 0.0 } else { -weight * log }, weight)
        });
        let y = args.take_write::<T>(inputs)?;
        if self.reduction == Reduction::None {
            y.iter_mut().zip(losses).for_each(|(y, (loss, _))| *y = T::from_f64(loss));
        } else {
            let (sum, weight) = losses.by_ref().fold((0.0, 0.0), |(a, b), (loss, w)| (a + loss, b + w));
            let mean = self.reduction == Reduction::Mean;
            y.iter_mut().for_each(|y| *y = T::from_f64(if mean { sum / weight } else { sum }));
        }
        if args.has(inputs + 1) {
            par::parts(args.take_write::<T>(inputs + 1)?, |first, part| {
                for (i, y) in (first..).zip(part) {
                    let place = i / (len * inner) * inner + i % inner;
                    let log = logs.get(place).copied().unwrap_or(0.0);
                    *y = T::from_f64(x.get(i).map_or(0.0, |v| v.to_f64()) - log);
                }
            });
        }
        Ok(())
    }
}

impl Operator for NllLoss {
    fn name(&self) -> &'static str {
        if self.scores { "SoftmaxCrossEntropyLoss" } else { "NegativeLogLikelihoodLoss" }
    }

    fn infer(&self, cx: &OpCx) -> Result<Vec<TensorInfo>, OpError> {
        cx.expect_counts(2..=3, 1..=1 + usize::from(self.scores))?;
        let dtype = cx.dtype_of(0, FLOATS)?;
        cx.dtype_of(1, INDEX_TYPES)?;
        let x = cx.shape(0)?;
        let Along { len, .. } = Self::along(cx)?;
        let labels = [&x[..1], &x[2..]].concat();
        if cx.shape(1)?.dims() != labels {
            return Err(cx.shape_error(1, format!("{labels:?}")));
        }
        if cx.has(2) {
            cx.expect_dtype(2, dtype)?;
            if cx.shape(2)?.dims() != [len] {
                return Err(cx.shape_error(2, format!("[{len}]")));
            }
        }
        let loss = if self.reduction == Reduction::None { Shape::new(labels)? } else { Shape::scalar() };
        let outputs = [TensorInfo::new(dtype, loss), TensorInfo::new(dtype, x.clone())];
        Ok(outputs.into_iter().take(cx.output_count()).collect())
    }

    fn cost(&self, cx: &OpCx) -> Cost {
        let scores = cx.input_opt(0).map_or(0, |x| x.elements() as u64);
        let labels = cx.input_opt(1).map_or(0, |x| x.elements() as u64);
        Cost { flops: if self.scores { 10 * scores } else { 2 * labels }, bytes: cx.bytes_touched() }
    }

    fn cpu(&self, cx: &OpCx) -> Result<NativeKernel, OpError> {
        let (op, inputs, along, label_type) = (*self, cx.input_count(), Self::along(cx)?, cx.dtype(1)?);
        Ok(match cx.dtype(0)? {
            DType::F64 => {
                NativeKernel::new(self.name(), move |a| op.run::<f64>(a, inputs, along, label_type))
            }
            DType::F16 => {
                NativeKernel::new(self.name(), move |a| op.run::<f16>(a, inputs, along, label_type))
            }
            DType::BF16 => {
                NativeKernel::new(self.name(), move |a| op.run::<bf16>(a, inputs, along, label_type))
            }
            _ => NativeKernel::new(self.name(), move |a| op.run::<f32>(a, inputs, along, label_type)),
        })
    }

    fn gpu(&self, cx: &OpCx, lower: &mut Lowering<'_>) -> Result<(), OpError> {
        nll_device::lower(self, cx, lower)
    }
}

#[cfg(test)]
#[cfg(feature = "vulkan")]
mod tests {
    use super::*;
    use crate::graph::Tensor;
    use crate::ops::test_util::{assert_near, facts, run_cpu, tensor, tensor_of};
    use crate::ops::testing::{Check, as_is, no_texels};

    fn labels(shape: &[usize], classes: i64) -> Tensor {
        let n: usize = shape.iter().product();
        Tensor::new(shape, &(0..n as i64).map(|i| i * 5 % classes).collect::<Vec<_>>()).unwrap()
    }

    #[test]
    fn devices_agree_on_every_form() {
        for (x, at) in
            [(vec![37, 5], vec![37]), (vec![3, 7, 11, 3], vec![3, 11, 3]), (vec![700, 3], vec![700])]
        {
            for reduction in [Reduction::None, Reduction::Sum, Reduction::Mean] {
                for (scores, ignore) in [(false, None), (true, Some(2)), (true, Some(-1))] {
                    let op = NllLoss { scores, reduction, ignore };
                    let (scores, labels) = (tensor(&x, 1), labels(&at, x[1] as i64));
                    let narrow: Vec<i32> = labels.to_i64s().unwrap().iter().map(|v| *v as i32).collect();
                    let narrow = Tensor::new(at.clone(), &narrow).unwrap();
                    let outputs = 1 + usize::from(op.scores);
                    let plain = [Some(scores.clone()), Some(narrow)];
                    let weighted = [Some(scores), Some(labels), Some(tensor(&[x[1]], 2))];
                    for change in [as_is, no_texels] {
                        Check::new(&op, &plain).pretend(change).tolerance(1e-4).run();
                        Check::new(&op, &weighted).outputs(outputs).pretend(change).tolerance(1e-4).run();
                    }
                }
            }
        }
    }

    #[test]
    fn halves_are_summed_in_floats() {
        let x = tensor_of(&[9, 6], &crate::ops::test_util::values(54, 3), f16::from_f32);
        for scores in [false, true] {
            let op = NllLoss { scores, reduction: Reduction::Mean, ignore: None };
            Check::new(&op, &[Some(x.clone()), Some(labels(&[9], 6))]).tolerance(2e-3).run();
        }
    }

    #[test]
    fn the_mean_is_that_of_weights_and_labels_are_bounded() {
        let x = Tensor::new([2, 2], &[-1f32, -2.0, -3.0, -4.0]).unwrap();
        let at = |l: [i64; 2]| Some(Tensor::new([2], &l).unwrap());
        let weights = Tensor::new([2], &[1f32, 3.0]).unwrap();
        let op = NllLoss { scores: false, reduction: Reduction::Mean, ignore: None };
        let inputs = [Some(x.clone()), at([0, 1]), Some(weights)];
        assert_near(&run_cpu(&op, &inputs, 1).unwrap()[0], &[(1.0 + 12.0) / 4.0], 1e-6);
        let inputs = [Some(x), at([0, 2])];
        let kernel = op.cpu(&facts(&op, &inputs, 1).unwrap()).unwrap();
        let mut y = [0f32];
        let mut args = vec![
            crate::kernel::NativeArg::Read(inputs[0].as_ref().unwrap().bytes()),
            crate::kernel::NativeArg::Read(inputs[1].as_ref().unwrap().bytes()),
            crate::kernel::NativeArg::Write(bytemuck::cast_slice_mut(&mut y)),
        ];
        assert!(matches!(kernel.call(&mut NativeArgs::new(&mut args, &[])), Err(KernelError::Value { .. })));
    }
}
