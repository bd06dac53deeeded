//! LayerNormalization and RMSNormalization: over all axes from one on.

use std::sync::Arc;

use super::device::{self, Places};
use super::rows::{Affine, RowNorm};
use crate::dtype::DType;
use crate::graph::TensorInfo;
use crate::kernel::NativeKernel;
use crate::ops::real::{FLOATS, real_kernel};
use crate::ops::window::bad;
use crate::ops::{Activation, AttrReader, Cost, Lowering, OpCx, OpError, Operator, Structure};
use crate::shape::Shape;

/// Normalizes X over its axes from `axis` on. Inputs: X, scale, optionally bias (LayerNormalization only);
/// outputs: Y and, where wanted, the means and the inverse standard deviations.
#[derive(Clone, Debug)]
pub struct LayerNormalization {
    /// The first axis that is normalized over.
    pub axis: i64,
    /// Added to the variance.
    pub epsilon: f32,
    /// Whether the mean is subtracted (LayerNormalization); else it is RMSNormalization.
    pub center: bool,
    /// The type of the statistics.
    pub stash: DType,
}

pub(super) fn read_layer(attrs: &mut AttrReader<'_>, _opset: i64) -> Result<Arc<dyn Operator>, OpError> {
    read(attrs, true)
}

pub(super) fn read_rms(attrs: &mut AttrReader<'_>, _opset: i64) -> Result<Arc<dyn Operator>, OpError> {
    read(attrs, false)
}

fn read(attrs: &AttrReader<'_>, center: bool) -> Result<Arc<dyn Operator>, OpError> {
    // Numbers of ONNX's TensorProto.DataType.
    let stash = match attrs.int("stash_type", 1)? {
        1 => DType::F32,
        10 => DType::F16,
        11 => DType::F64,
        16 => DType::BF16,
        other => return Err(bad("stash_type", format!("is {other}, expected a floating-point type"))),
    };
    Ok(Arc::new(LayerNormalization {
        axis: attrs.int("axis", -1)?,
        epsilon: attrs.float("epsilon", 1e-5)?,
        center,
        stash,
    }))
}

impl LayerNormalization {
    /// The first normalized axis and the rows.
    pub(crate) fn resolve(&self, cx: &OpCx) -> Result<(usize, RowNorm), OpError> {
        let shape = cx.shape(0)?;
        let axis = shape.axis(self.axis)?;
        let len: usize = shape[axis..].iter().product();
        let rows = shape[..axis].iter().product();
        let affine = Affine { rows: 1, stride: 0, run: affine_run(cx, &shape[axis..])? };
        let activation = Activation::None;
        Ok((axis, RowNorm { rows, len, center: self.center, epsilon: self.epsilon, affine, activation }))
    }
}

/// How many neighbouring elements of a row of the sizes `tail` share a scale and a bias: they have these sizes,
/// or 1 in place of the last ones.
fn affine_run(cx: &OpCx, tail: &[usize]) -> Result<usize, OpError> {
    let mut found = None;
    for i in (1..3).filter(|i| cx.has(*i)) {
        let shape = cx.shape(i)?;
        let own: Vec<usize> = match shape.rank().checked_sub(tail.len()) {
            Some(more) if shape[..more].iter().all(|n| *n == 1) => shape[more..].to_vec(),
            Some(_) => return Err(cx.shape_error(i, format!("{tail:?}"))),
            None => std::iter::repeat_n(1, tail.len() - shape.rank()).chain(shape.iter().copied()).collect(),
        };
        let same = own.iter().zip(tail).take_while(|(a, b)| a == b).count();
        let run: usize = tail[same..].iter().product();
        if own[same..].iter().any(|n| *n != 1) || found.is_some_and(|r| r != run) {
            return Err(cx.shape_error(
                i,
                format!("{tail:?}, or for scale and bias 1 in place of the same last sizes"),
            ));
        }
        found = Some(run);
    }
    Ok(found.unwrap_or(1))
}

impl Operator for LayerNormalization {
    fn name(&self) -> &'static str {
        if self.center { "LayerNormalization" } else { "RMSNormalization" }
    }

    fn structure(&self) -> Option<Structure<'_>> {
        let LayerNormalization { axis, epsilon, center, stash } = *self;
        (stash == DType::F32).then_some(Structure::LayerNormalization { axis, epsilon, center })
    }

    fn infer(&self, cx: &OpCx) -> Result<Vec<TensorInfo>, OpError> {
        if self.center {
            cx.expect_counts(2..=3, 1..=3)?;
        } else {
            cx.expect_counts(2..=2, 1..=1)?;
        }
        let dtype = cx.dtype_of(0, FLOATS)?;
        let (axis, _) = self.resolve(cx)?;
        let shape = cx.shape(0)?;
        for i in (1..3).filter(|i| cx.has(*i)) {
            cx.dtype_of(i, FLOATS)?;
        }
        // RMSNormalization has the type of the scale.
        let dtype = if self.center { dtype } else { cx.dtype(1)? };
        let mut outputs = vec![TensorInfo::new(dtype, shape.clone())];
        let kept = shape.iter().enumerate().map(|(i, d)| if i < axis { *d } else { 1 }).collect::<Vec<_>>();
        let stats = TensorInfo::new(self.stash, Shape::new(kept)?);
        outputs.extend((1..cx.output_count()).map(|_| stats.clone()));
        Ok(outputs)
    }

    fn cost(&self, cx: &OpCx) -> Cost {
        Cost { flops: 8 * cx.input_opt(0).map_or(0, |i| i.elements() as u64), bytes: cx.bytes_touched() }
    }

    fn cpu(&self, cx: &OpCx) -> Result<NativeKernel, OpError> {
        real_kernel(self.name(), cx, self.resolve(cx)?.1)
    }

    fn gpu(&self, cx: &OpCx, lower: &mut Lowering<'_>) -> Result<(), OpError> {
        let norm = self.resolve(cx)?.1;
        device::rows(cx, &norm, &Places::dense(norm.len), false, lower)
    }
}

#[cfg(test)]
mod tests {
    use crate::graph::Tensor;
    use crate::ops::AttrValue;
    use crate::ops::test_util::{
        assert_near, attrs, facts, read_op, run_cpu, run_f32, tensor, tensor_of, values,
    };

    #[test]
    fn layer_and_rms_normalization_match_their_definition() {
        let shape = [2, 3, 4, 5];
        for axis in -4i64..4 {
            let first = if axis < 0 { axis + 4 } else { axis } as usize;
            let tail = &shape[first..];
            let len: usize = tail.iter().product();
            let (x, scale, bias) = (tensor(&shape, 1), tensor(tail, 2), tensor(tail, 3));
            let map = attrs(&[("axis", AttrValue::Int(axis)), ("epsilon", AttrValue::Float(0.01))]);
            let values = |t: &Tensor| t.to_f32s().unwrap().into_iter().map(f64::from).collect::<Vec<_>>();
            let (xv, sv, bv) = (values(&x), values(&scale), values(&bias));
            let (mut layer, mut means, mut inverses, mut rms) = (vec![], vec![], vec![], vec![]);
            for row in xv.chunks(len) {
                let mean = row.iter().sum::<f64>() / len as f64;
                let var = row.iter().map(|v| (v - mean).powi(2)).sum::<f64>() / len as f64;
                let inverse = 1.0 / (var + 0.01).sqrt();
                let square = row.iter().map(|v| v * v).sum::<f64>() / len as f64;
                means.push(mean);
                inverses.push(inverse);
                layer.extend(row.iter().enumerate().map(|(i, v)| (v - mean) * inverse * sv[i] + bv[i]));
                rms.extend(row.iter().enumerate().map(|(i, v)| v / (square + 0.01).sqrt() * sv[i]));
            }
            let op = read_op("LayerNormalization", 17, &map).unwrap();
            let inputs = [Some(x.clone()), Some(scale.clone()), Some(bias)];
            let got = run_cpu(&*op, &inputs, 3).unwrap();
            assert_near(&got[0], &layer, 1e-5);
            assert_near(&got[1], &means, 1e-5);
            assert_near(&got[2], &inverses, 1e-5);
            assert_eq!(got[1].shape().rank(), 4);
            let op = read_op("RMSNormalization", 23, &map).unwrap();
            assert_near(&run_f32(&*op, &[Some(x), Some(scale)]).unwrap(), &rms, 1e-5);
        }
    }

    #[test]
    fn statistics_have_their_own_type() {
        let x = tensor_of(&[2, 3], &values(6, 1), f64::from);
        let scale = tensor_of(&[3], &[1.0; 3], f64::from);
        let op = read_op("LayerNormalization", 17, &attrs(&[])).unwrap();
        let got = run_cpu(&*op, &[Some(x.clone()), Some(scale)], 2).unwrap();
        let mean: Vec<f64> =
            x.as_slice::<f64>().unwrap().chunks(3).map(|r| r.iter().sum::<f64>() / 3.0).collect();
        assert_eq!(got[1].as_slice::<f32>().unwrap().len(), 2);
        assert_near(&got[1], &mean, 1e-6);
    }

    #[test]
    fn scale_and_bias_may_be_shared_by_the_last_axes() {
        let (x, scale, bias) = (tensor(&[2, 3, 4], 1), tensor(&[3, 1], 2), tensor(&[1, 3, 1], 3));
        let op = read_op("LayerNormalization", 17, &attrs(&[("axis", AttrValue::Int(1))])).unwrap();
        let spread = |t: &Tensor| {
            let all = t.to_f32s().unwrap().into_iter().flat_map(|v| [v; 4]).collect::<Vec<_>>();
            Some(Tensor::new([3, 4], &all).unwrap())
        };
        let want = run_f32(&*op, &[Some(x.clone()), spread(&scale), spread(&bias)]).unwrap();
        let want: Vec<f64> = want.to_f32s().unwrap().into_iter().map(f64::from).collect();
        let inputs = [Some(x.clone()), Some(scale), Some(bias)];
        assert_near(&run_f32(&*op, &inputs).unwrap(), &want, 1e-6);
        #[cfg(feature = "vulkan")]
        {
            use crate::ops::testing::{Check, no_texels};
            Check::new(&*op, &inputs).tolerance(1e-5).run();
            Check::new(&*op, &inputs).pretend(no_texels).tolerance(1e-5).run();
            let inputs = [Some(x), Some(tensor(&[1], 4))];
            Check::new(&*op, &inputs).tolerance(1e-5).run();
        }
    }

    #[test]
    fn rms_normalization_has_the_type_of_its_scale() {
        let scale = tensor_of(&[3], &[1.0; 3], half::f16::from_f32);
        let op = read_op("RMSNormalization", 23, &attrs(&[])).unwrap();
        let cx = facts(&*op, &[Some(tensor(&[2, 3], 1)), Some(scale)], 1).unwrap();
        assert_eq!(cx.outputs()[0].dtype, crate::dtype::DType::F16);
    }

    #[test]
    fn misfits_are_errors() {
        let fails = |list: &[(&str, AttrValue)], shapes: &[&[usize]]| {
            let Ok(op) = read_op("LayerNormalization", 17, &attrs(list)) else { return true };
            let inputs: Vec<_> = shapes.iter().map(|s| Some(tensor(s, 1))).collect();
            facts(&*op, &inputs, 1).is_err()
        };
        assert!(!fails(&[], &[&[2, 3], &[3]]));
        assert!(fails(&[], &[&[2, 3], &[2]]));
        assert!(fails(&[("axis", AttrValue::Int(2))], &[&[2, 3], &[3]]));
        assert!(fails(&[("stash_type", AttrValue::Int(7))], &[&[2, 3], &[3]]));
        assert!(fails(&[], &[&[2, 3], &[3], &[1]]));
        assert!(fails(&[("axis", AttrValue::Int(1))], &[&[2, 3, 4], &[4]]));
    }
}
