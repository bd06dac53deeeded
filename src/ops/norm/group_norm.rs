//! GroupNormalization and InstanceNormalization: over the channels of a group of one image.

use std::sync::Arc;

use super::device::{self, Places};
use super::rows::{Affine, RowNorm};
use crate::graph::TensorInfo;
use crate::kernel::NativeKernel;
use crate::ops::real::{FLOATS, real_kernel};
use crate::ops::window::bad;
use crate::ops::{Activation, AttrReader, Cost, Lowering, OpCx, OpError, Operator, Structure};

/// The unit to which scale and bias apply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GroupScale {
    /// For every channel (since opset 21).
    Channel,
    /// For every group.
    Group,
}

/// Normalizes groups of channels of X `[n, c, ...]`. Inputs: X, scale, bias.
#[derive(Clone, Debug)]
pub struct GroupNormalization {
    /// Number of groups of channels; `None` for groups of one channel ([`GroupNormalization::instance`]).
    pub groups: Option<usize>,
    /// Added to the variance.
    pub epsilon: f32,
    /// The unit to which scale and bias apply.
    pub scale: GroupScale,
    /// Applied to the output.
    pub activation: Activation,
}

pub(super) fn read_group(attrs: &mut AttrReader<'_>, opset: i64) -> Result<Arc<dyn Operator>, OpError> {
    let groups = attrs.int("num_groups", 0)?;
    if opset >= 21 {
        // Sums are in f32 or wider in any case.
        attrs.int("stash_type", 1)?;
    }
    Ok(Arc::new(GroupNormalization {
        groups: match usize::try_from(groups) {
            Ok(groups @ 1..) => Some(groups),
            _ => return Err(bad("num_groups", format!("is {groups}, expected at least 1"))),
        },
        epsilon: attrs.float("epsilon", 1e-5)?,
        scale: if opset >= 21 { GroupScale::Channel } else { GroupScale::Group },
        activation: Activation::None,
    }))
}

pub(super) fn read_instance(attrs: &mut AttrReader<'_>, opset: i64) -> Result<Arc<dyn Operator>, OpError> {
    if opset < 6 {
        attrs.ints_opt("consumed_inputs")?;
    }
    Ok(Arc::new(GroupNormalization::instance(attrs.float("epsilon", 1e-5)?)))
}

impl GroupNormalization {
    /// ONNX's InstanceNormalization: every channel is a group.
    pub fn instance(epsilon: f32) -> Self {
        GroupNormalization { groups: None, epsilon, scale: GroupScale::Channel, activation: Activation::None }
    }

    fn resolve(&self, cx: &OpCx) -> Result<RowNorm, OpError> {
        let [batch, channels, rest @ ..] = cx.shape(0)?.dims() else {
            return Err(cx.shape_error(0, "[batch, channels, ...]"));
        };
        let plane: usize = rest.iter().product();
        let groups = self.groups.unwrap_or(*channels).max(1);
        if channels % groups != 0 {
            return Err(bad("num_groups", format!("is {groups}, which does not divide {channels} channels")));
        }
        let len = channels / groups * plane;
        let affine = match self.scale {
            GroupScale::Channel => Affine { rows: groups, stride: channels / groups, run: plane.max(1) },
            GroupScale::Group => Affine { rows: groups, stride: 1, run: len.max(1) },
        };
        let (rows, activation) = (batch * groups, self.activation);
        Ok(RowNorm { rows, len, center: true, epsilon: self.epsilon, affine, activation })
    }
}

impl Operator for GroupNormalization {
    fn name(&self) -> &'static str {
        if self.groups.is_some() { "GroupNormalization" } else { "InstanceNormalization" }
    }

    fn structure(&self) -> Option<Structure<'_>> {
        Some(Structure::GroupNormalization {
            groups: self.groups,
            epsilon: self.epsilon,
            by_channel: self.scale == GroupScale::Channel,
            activation: self.activation,
        })
    }

    fn infer(&self, cx: &OpCx) -> Result<Vec<TensorInfo>, OpError> {
        let norm = self.resolve(cx)?;
        cx.expect_counts(3..=3, 1..=1)?;
        let dtype = cx.dtype_of(0, FLOATS)?;
        let params = norm.affine.len(norm.len);
        for i in 1..3 {
            cx.expect_dtype(i, dtype)?;
            if cx.shape(i)?.dims() != [params] && norm.rows * norm.len != 0 {
                return Err(cx.shape_error(i, format!("[{params}]")));
            }
        }
        Ok(vec![TensorInfo::new(dtype, cx.shape(0)?.clone())])
    }

    fn cost(&self, cx: &OpCx) -> Cost {
        Cost { flops: 8 * cx.input_opt(0).map_or(0, |i| i.elements() as u64), bytes: cx.bytes_touched() }
    }

    fn cpu(&self, cx: &OpCx) -> Result<NativeKernel, OpError> {
        real_kernel(self.name(), cx, self.resolve(cx)?)
    }

    fn with_activation(&self, activation: &Activation) -> Option<Arc<dyn Operator>> {
        let activation = self.activation.then(activation)?;
        Some(Arc::new(GroupNormalization { activation, ..self.clone() }) as _)
    }

    fn gpu(&self, cx: &OpCx, lower: &mut Lowering<'_>) -> Result<(), OpError> {
        let norm = self.resolve(cx)?;
        device::rows(cx, &norm, &Places::dense(norm.len), false, lower)
    }
}

#[cfg(test)]
mod tests {
    use crate::ops::AttrValue;
    use crate::ops::test_util::{assert_near, attrs, facts, read_op, run_f32, tensor};

    /// Normalizes every chunk of `len`, then scales by `scale(index)` and adds `bias(index)`.
    fn reference(
        x: &[f32],
        len: usize,
        scale: impl Fn(usize) -> f32,
        bias: impl Fn(usize) -> f32,
    ) -> Vec<f64> {
        let mut out = Vec::new();
        for chunk in x.chunks(len) {
            let n = len as f64;
            let mean = chunk.iter().map(|v| f64::from(*v)).sum::<f64>() / n;
            let var = chunk.iter().map(|v| (f64::from(*v) - mean).powi(2)).sum::<f64>() / n;
            for v in chunk {
                let i = out.len();
                out.push(
                    (f64::from(*v) - mean) / (var + 1e-5).sqrt() * f64::from(scale(i)) + f64::from(bias(i)),
                );
            }
        }
        out
    }

    #[test]
    fn group_normalization_matches_in_both_forms() {
        for shape in [vec![2, 6, 5, 3], vec![1, 6, 7], vec![3, 6]] {
            let plane: usize = shape[2..].iter().product();
            let x = tensor(&shape, 1);
            let v = x.to_f32s().unwrap();
            for groups in [1usize, 2, 3, 6] {
                let map = attrs(&[("num_groups", AttrValue::Int(groups as i64))]);
                for (opset, params) in [(18, groups), (21, 6)] {
                    let (s, b) = (tensor(&[params], 2), tensor(&[params], 3));
                    let (sv, bv) = (s.to_f32s().unwrap(), b.to_f32s().unwrap());
                    let at = |i: usize| i / plane % 6 / (6 / params);
                    let want = reference(&v, 6 / groups * plane, |i| sv[at(i)], |i| bv[at(i)]);
                    let op = read_op("GroupNormalization", opset, &map).unwrap();
                    assert_near(&run_f32(&*op, &[Some(x.clone()), Some(s), Some(b)]).unwrap(), &want, 1e-4);
                }
            }
        }
    }

    #[test]
    fn instance_normalization_matches() {
        let (x, s, b) = (tensor(&[2, 3, 4, 5], 1), tensor(&[3], 2), tensor(&[3], 3));
        let (sv, bv) = (s.to_f32s().unwrap(), b.to_f32s().unwrap());
        let want = reference(&x.to_f32s().unwrap(), 20, |i| sv[i / 20 % 3], |i| bv[i / 20 % 3]);
        let op = read_op("InstanceNormalization", 6, &attrs(&[])).unwrap();
        assert_near(&run_f32(&*op, &[Some(x), Some(s), Some(b)]).unwrap(), &want, 1e-5);
    }

    #[test]
    fn misfits_are_errors() {
        let fails = |groups: i64, shapes: [&[usize]; 3]| {
            let map = attrs(&[("num_groups", AttrValue::Int(groups))]);
            let Ok(op) = read_op("GroupNormalization", 21, &map) else { return true };
            facts(&*op, &shapes.map(|s| Some(tensor(s, 1))), 1).is_err()
        };
        assert!(!fails(2, [&[1, 4, 3], &[4], &[4]]));
        assert!(fails(0, [&[1, 4, 3], &[4], &[4]]));
        assert!(fails(3, [&[1, 4, 3], &[4], &[4]]));
        assert!(fails(2, [&[1, 4, 3], &[2], &[4]]));
        assert!(fails(2, [&[4], &[4], &[4]]));
    }
}
