//! ConvTranspose: the gradient of Conv with respect to its input, as an operator of its own.

use std::sync::Arc;

use super::conv_op::{check_types, read_group};
use super::dims::{AnyDims, ConvDims};
use super::fold::WeightLayout;
use super::many;
use super::{device, scatter};
use crate::graph::TensorInfo;
use crate::kernel::NativeKernel;
use crate::ops::real::real_kernel;
use crate::ops::window::{bad, step};
use crate::ops::{
    Absorbed, Activation, AttrReader, AutoPad, Cost, Lowering, OpCx, OpError, Operator, WindowAttrs,
    WindowAxis, absorb,
};
use crate::shape::Shape;

/// The most that padding or a size of the output may be.
const MAX_SIZE: i64 = i32::MAX as i64;

/// `activation(conv_transpose(X, W) + B)`. Inputs: X `[n, c, ...]`, W `[c, oc / group, ...]`, optionally
/// B `[oc]`.
#[derive(Clone, Debug)]
pub struct ConvTranspose {
    /// Kernel, strides, dilations and padding.
    pub window: WindowAttrs,
    /// Elements added at the end of each axis; 0 where empty.
    pub output_padding: Vec<i64>,
    /// Sizes of the output, from which padding is found; empty where padding is given.
    pub output_shape: Vec<i64>,
    /// Number of independent convolutions that share the channels.
    pub group: usize,
    /// Applied to the output.
    pub activation: Activation,
}

impl Default for ConvTranspose {
    fn default() -> Self {
        ConvTranspose {
            window: WindowAttrs::default(),
            output_padding: Vec::new(),
            output_shape: Vec::new(),
            group: 1,
            activation: Activation::None,
        }
    }
}

pub(super) fn read(attrs: &mut AttrReader<'_>, _opset: i64) -> Result<Arc<dyn Operator>, OpError> {
    Ok(Arc::new(ConvTranspose {
        window: WindowAttrs { ceil_mode: false, ..WindowAttrs::read(attrs)? },
        output_padding: attrs.ints_opt("output_padding")?.unwrap_or_default(),
        output_shape: attrs.ints_opt("output_shape")?.unwrap_or_default(),
        group: read_group(attrs)?,
        activation: Activation::None,
    }))
}

impl ConvTranspose {
    /// The convolution over as many dimensions as it has, and the shape of its output.
    fn sizes(&self, cx: &OpCx) -> Result<(AnyDims, Shape), OpError> {
        let (x, w) = (cx.shape(0)?, cx.shape(1)?);
        let ([batch, channels, spatial @ ..], [rows, oc, kernel @ ..]) = (x.dims(), w.dims()) else {
            return Err(cx.shape_error(0, "[batch, channels, ...]"));
        };
        if spatial.is_empty() || w.rank() != x.rank() {
            return Err(cx.shape_error(1, format!("{} dimensions, as input 0 has, at least 3", x.rank())));
        }
        if rows != channels {
            return Err(cx.shape_error(1, format!("{channels} rows, one for each channel of input 0")));
        }
        let group = self.group.max(1);
        if channels % group != 0 {
            return Err(bad("group", format!("is {group}, which does not divide {channels} channels")));
        }
        let out_channels = oc.checked_mul(group).ok_or_else(|| cx.shape_error(1, "fewer channels"))?;
        if cx.has(2) && cx.shape(2)?.dims() != [out_channels] {
            return Err(cx.shape_error(2, format!("[{out_channels}]")));
        }
        let rank = spatial.len();
        let kernel = self.window.kernel_sizes(rank, Some(kernel))?;
        self.check_lists(rank)?;
        let axes: Vec<WindowAxis> = spatial
            .iter()
            .zip(&kernel)
            .enumerate()
            .map(|(i, (&input, &kernel))| self.axis(i, rank, input, kernel))
            .collect::<Result<_, _>>()?;
        let output = Shape::new(
            [*batch, out_channels].into_iter().chain(axes.iter().map(|a| a.input)).collect::<Vec<_>>(),
        )?;
        let (ic, oc) = (channels / group, *oc);
        Ok((ConvDims { batch: *batch, group, ic, oc, axes, transposed: true }, output))
    }

    /// The convolution over three dimensions, and the shape of its output.
    pub(crate) fn resolve(&self, cx: &OpCx) -> Result<(ConvDims, Shape), OpError> {
        let (dims, output) = self.sizes(cx)?;
        Ok((dims.three("ConvTranspose")?, output))
    }

    fn check_lists(&self, rank: usize) -> Result<(), OpError> {
        let lists = [
            ("pads", &self.window.pads, vec![0, 2 * rank]),
            ("output_padding", &self.output_padding, vec![0, rank]),
            // Old exporters give the whole shape, batch and channels included.
            ("output_shape", &self.output_shape, vec![0, rank, rank + 2]),
        ];
        for (name, list, lens) in lists {
            if !lens.contains(&list.len()) {
                return Err(bad(name, format!("has {} elements, expected one of {lens:?}", list.len())));
            }
            if let Some(v) = list.iter().find(|v| !(-MAX_SIZE..=MAX_SIZE).contains(*v)) {
                return Err(bad(name, format!("is {v}")));
            }
        }
        match self.output_padding.iter().find(|p| **p < 0) {
            Some(p) => Err(bad("output_padding", format!("is {p}, expected 0 or more"))),
            None => Ok(()),
        }
    }

    /// One axis; the lists' lengths and ranges are checked.
    fn axis(&self, i: usize, rank: usize, input: usize, kernel: usize) -> Result<WindowAxis, OpError> {
        let at = |list: &[i64], i: usize| list.get(i).copied().unwrap_or(0);
        let stride = step("strides", &self.window.strides, rank, i)?;
        let dilation = step("dilations", &self.window.dilations, rank, i)?;
        let size = |v: usize| i64::try_from(v).ok().filter(|v| (1..=MAX_SIZE).contains(v));
        let (Some(elements), Some(taps)) = (size(input), size(kernel)) else {
            return Err(OpError::unsupported(format!("{kernel} taps over {input} elements on axis {i}")));
        };
        // Below 2^63: every factor is below 2^31.
        let extent = (taps - 1) * dilation as i64 + 1;
        let full = stride as i64 * (elements - 1) + at(&self.output_padding, i) + extent;
        let auto_pad = self.window.auto_pad;
        let wanted = match self.output_shape.get(self.output_shape.len().saturating_sub(rank) + i) {
            Some(&wanted) => Some(wanted),
            None if matches!(auto_pad, AutoPad::SameUpper | AutoPad::SameLower) => {
                Some(elements * stride as i64)
            }
            None => None,
        };
        let (pads, output) = match wanted {
            Some(output) => {
                // A larger output than there are sums is only bias at its end.
                let total = (full - output).max(0);
                let (small, large) = (total / 2, total - total / 2);
                (if auto_pad == AutoPad::SameUpper { [small, large] } else { [large, small] }, output)
            }
            None if auto_pad == AutoPad::Valid => ([0, 0], full),
            None => {
                let pads = [at(&self.window.pads, i), at(&self.window.pads, rank + i)];
                (pads, full - pads[0] - pads[1])
            }
        };
        if !(1..=MAX_SIZE).contains(&output) || extent > MAX_SIZE {
            return Err(bad("pads", format!("make an output of {output} elements on axis {i}")));
        }
        Ok(WindowAxis { input: output as usize, output: input, kernel, stride, dilation, pads })
    }
}

impl Operator for ConvTranspose {
    fn name(&self) -> &'static str {
        "ConvTranspose"
    }

    fn infer(&self, cx: &OpCx) -> Result<Vec<TensorInfo>, OpError> {
        let dtype = check_types(cx, false)?;
        Ok(vec![TensorInfo::new(dtype, self.sizes(cx)?.1)])
    }

    fn cost(&self, cx: &OpCx) -> Cost {
        Cost { flops: self.sizes(cx).map_or(0, |(d, _)| d.flops()), bytes: cx.bytes_touched() }
    }

    fn cpu(&self, cx: &OpCx) -> Result<NativeKernel, OpError> {
        let (activation, many) = (self.activation, self.sizes(cx)?.0);
        match self.resolve(cx) {
            Ok((dims, _)) => real_kernel("ConvTranspose", cx, scatter::Run { dims, activation }),
            Err(_) => real_kernel("ConvTranspose", cx, many::Run { dims: many, activation }),
        }
    }

    fn gpu(&self, cx: &OpCx, lower: &mut Lowering<'_>) -> Result<(), OpError> {
        let dims = self.resolve(cx)?.0;
        device::transpose(cx, &dims, self.activation, lower)
    }

    fn with_activation(&self, activation: &Activation) -> Option<Arc<dyn Operator>> {
        let activation = self.activation.then(activation)?;
        Some(Arc::new(ConvTranspose { activation, ..self.clone() }) as Arc<dyn Operator>)
    }

    fn absorb(&self, cx: &OpCx, next: &dyn Operator, next_cx: &OpCx, at: usize) -> Option<Absorbed> {
        let with = |activation| Arc::new(ConvTranspose { activation, ..self.clone() }) as Arc<dyn Operator>;
        let own = (WeightLayout::Transposed { group: self.group }, self.activation);
        absorb::into_convolution(self, own, with, cx, (next, next_cx, at))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::ops::AttrValue;
    use crate::ops::test_util::{assert_near, attrs, facts, read_op, run_f32, tensor};

    /// The definition, in `f64`: every product of an input element and a tap, added where it belongs.
    fn reference(op: &ConvTranspose, x: &[usize], w: &[usize], begins: &[i64], out: &[usize]) -> Vec<f64> {
        let (xv, wv) = (tensor(x, 1).to_f32s().unwrap(), tensor(w, 2).to_f32s().unwrap());
        let bias = tensor(&[out[1]], 3).to_f32s().unwrap();
        let rank = x.len() - 2;
        let plane: usize = out[2..].iter().product();
        let mut y: Vec<f64> =
            (0..out[0] * out[1] * plane).map(|i| f64::from(bias[i / plane % out[1]])).collect();
        let unflat = |mut i: usize, dims: &[usize]| {
            let mut at = vec![0; dims.len()];
            for (a, d) in at.iter_mut().zip(dims).rev() {
                *a = i % d;
                i /= d;
            }
            at
        };
        for (flat, xe) in xv.iter().enumerate() {
            let at = unflat(flat, x);
            let g = at[1] / (x[1] / op.group);
            for oc in 0..w[1] {
                for tap in 0..w[2..].iter().product() {
                    let t = unflat(tap, &w[2..]);
                    let mut index = Some(at[0] * out[1] + g * w[1] + oc);
                    for i in 0..rank {
                        let p = at[2 + i] as i64 * op.window.strides[i]
                            + t[i] as i64 * op.window.dilations[i]
                            - begins[i];
                        let inside = p >= 0 && p < out[2 + i] as i64;
                        index = index.filter(|_| inside).map(|n| n * out[2 + i] + p as usize);
                    }
                    if let Some(index) = index {
                        let wi = (at[1] * w[1] + oc) * w[2..].iter().product::<usize>() + tap;
                        y[index] += f64::from(*xe) * f64::from(wv[wi]);
                    }
                }
            }
        }
        y
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(300))]
        #[test]
        fn transposed_convolution_matches_its_definition(
            axes in proptest::collection::vec((1usize..6, 1usize..4, 1i64..4, 1i64..3, 0i64..3, 0i64..3, 0i64..2), 1..6),
            batch in 1usize..3, group in 1usize..4, ic in 1usize..4, oc in 1usize..4,
        ) {
            let op = ConvTranspose {
                window: WindowAttrs {
                    strides: axes.iter().map(|a| a.2).collect(),
                    dilations: axes.iter().map(|a| a.3).collect(),
                    pads: axes.iter().map(|a| a.4).chain(axes.iter().map(|a| a.5)).collect(),
                    ..WindowAttrs::default()
                },
                output_padding: axes.iter().map(|a| a.6).collect(),
                group,
                ..ConvTranspose::default()
            };
            let x: Vec<usize> = [batch, group * ic].into_iter().chain(axes.iter().map(|a| a.0)).collect();
            let w: Vec<usize> = [group * ic, oc].into_iter().chain(axes.iter().map(|a| a.1)).collect();
            let inputs = [Some(tensor(&x, 1)), Some(tensor(&w, 2)), Some(tensor(&[group * oc], 3))];
            let sizes: Vec<i64> = axes.iter().map(|a| {
                a.2 * (a.0 as i64 - 1) + a.6 + (a.1 as i64 - 1) * a.3 + 1 - a.4 - a.5
            }).collect();
            let Ok(got) = run_f32(&op, &inputs) else {
                prop_assert!(sizes.iter().any(|s| *s < 1));
                return Ok(());
            };
            let out: Vec<usize> =
                [batch, group * oc].into_iter().chain(sizes.iter().map(|s| *s as usize)).collect();
            prop_assert_eq!(got.shape().dims(), &out[..]);
            assert_near(&got, &reference(&op, &x, &w, &op.window.pads, &out), 1e-5);
        }
    }

    #[test]
    fn padding_is_found_from_the_output_shape() {
        let ints = |v: &[i64]| AttrValue::Ints(v.to_vec());
        let infer = |list: &[(&str, AttrValue)]| {
            let op = read_op("ConvTranspose", 11, &attrs(list)).unwrap();
            let cx = facts(&*op, &[Some(tensor(&[1, 1, 3, 3], 1)), Some(tensor(&[1, 2, 3, 3], 2))], 1)?;
            let op = op.downcast_ref::<ConvTranspose>().unwrap().clone();
            let (dims, shape) = op.resolve(&cx)?;
            Ok::<_, OpError>((shape.to_vec(), [dims.axes[1].pads, dims.axes[2].pads]))
        };
        let strides = ("strides", ints(&[3, 2]));
        let got = infer(&[strides.clone(), ("output_shape", ints(&[10, 8]))]).unwrap();
        assert_eq!(got, (vec![1, 2, 10, 8], [[0, 0], [0, 0]]));
        let got = infer(&[strides.clone(), ("output_shape", ints(&[1, 2, 10, 4]))]).unwrap();
        assert_eq!(got, (vec![1, 2, 10, 4], [[0, 0], [2, 1]]));
        let same = ("auto_pad", AttrValue::Str(b"SAME_UPPER".to_vec()));
        let got = infer(&[("strides", ints(&[2, 2])), same]).unwrap();
        assert_eq!(got, (vec![1, 2, 6, 6], [[0, 1], [0, 1]]));
        assert!(infer(&[("pads", ints(&[9, 9, 9, 9]))]).is_err());
        assert!(infer(&[("pads", ints(&[i64::MIN, 9, 9, 9]))]).is_err());
        assert!(infer(&[("output_shape", ints(&[0, 4]))]).is_err());
        assert!(infer(&[("output_padding", ints(&[-1, 0]))]).is_err());
        assert!(infer(&[("strides", ints(&[i64::MAX, 1]))]).is_err());
        assert!(infer(&[("group", AttrValue::Int(2))]).is_err());
    }

    #[test]
    fn an_image_larger_than_one_block_matches() {
        let op = ConvTranspose {
            window: WindowAttrs {
                strides: vec![2, 2],
                dilations: vec![1, 1],
                pads: vec![1, 1, 1, 1],
                ..WindowAttrs::default()
            },
            ..ConvTranspose::default()
        };
        let (x, w) = ([1, 2, 190, 190], [2, 3, 4, 4]);
        let got = run_f32(&op, &[Some(tensor(&x, 1)), Some(tensor(&w, 2)), Some(tensor(&[3], 3))]).unwrap();
        assert_near(&got, &reference(&op, &x, &w, &[1, 1], &[1, 3, 380, 380]), 1e-5);
    }
}
