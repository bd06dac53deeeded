//! ConvInteger and QLinearConv: convolutions of bytes.

use std::any::Any;
use std::sync::Arc;

use super::elements::{all, integers};
use super::product::{Repeated, Requantize, centered, exact_product, zero_points};
use super::{BYTES, device};
use crate::dtype::DType;
use crate::graph::TensorInfo;
use crate::kernel::{KernelError, NativeArgs, NativeKernel};
use crate::ops::conv::Conv;
use crate::ops::conv::columns::{Columns, block};
use crate::ops::conv::conv_op::{ConvDims, read_group};
use crate::ops::linalg::product::{Mat, Threads};
use crate::ops::real::check_len;
use crate::ops::{Activation, AttrReader, Cost, Lowering, OpCx, OpError, Operator, Window};
use crate::shape::Shape;

/// Columns that are unfolded at a time take about so many bytes.
const COLUMN_BYTES: usize = 1 << 20;

/// A convolution of bytes less their zero points; padding is the input's zero point.
///
/// As ConvInteger (inputs X, W, zero points of X and W) it gives 32-bit sums; as QLinearConv (inputs X, its
/// scale and zero point, the same of W, the same of the output, a bias) it gives bytes.
#[derive(Clone, Debug)]
pub struct QuantizedConv {
    /// The window and its steps.
    pub window: Window,
    /// Independent convolutions.
    pub group: usize,
    /// Whether it is QLinearConv.
    pub linear: bool,
}

pub(super) fn read_integer(attrs: &mut AttrReader<'_>, opset: i64) -> Result<Arc<dyn Operator>, OpError> {
    read(attrs, opset, false)
}

pub(super) fn read_linear(attrs: &mut AttrReader<'_>, opset: i64) -> Result<Arc<dyn Operator>, OpError> {
    read(attrs, opset, true)
}

fn read(attrs: &mut AttrReader<'_>, _: i64, linear: bool) -> Result<Arc<dyn Operator>, OpError> {
    let window = Window { ceil_mode: false, ..Window::read(attrs)? };
    Ok(Arc::new(QuantizedConv { window, group: read_group(attrs)?, linear }))
}

/// Where the inputs are.
#[derive(Clone, Copy, Debug)]
pub(super) struct Places {
    pub x: usize,
    pub x_scale: Option<usize>,
    pub x_zero: usize,
    pub w: usize,
    pub w_scale: Option<usize>,
    pub w_zero: usize,
    pub y_scale: Option<usize>,
    pub y_zero: Option<usize>,
    pub bias: Option<usize>,
}

impl QuantizedConv {
    pub(super) fn places(&self) -> Places {
        let (x, x_zero) = (0, 2);
        if self.linear {
            let (x_scale, w_scale, y_scale) = (Some(1), Some(4), Some(6));
            let (w, w_zero, y_zero, bias) = (3, 5, Some(7), Some(8));
            return Places { x, x_scale, x_zero, w, w_scale, w_zero, y_scale, y_zero, bias };
        }
        let none = None;
        Places {
            x,
            x_scale: none,
            x_zero,
            w: 1,
            w_scale: none,
            w_zero: 3,
            y_scale: none,
            y_zero: none,
            bias: none,
        }
    }

    /// Sizes and the output's shape.
    pub(super) fn resolve(&self, cx: &OpCx) -> Result<(ConvDims, Shape), OpError> {
        let p = self.places();
        let fact = |i: usize| cx.fact(i).cloned();
        let inputs = vec![fact(p.x), fact(p.w), p.bias.and_then(fact)];
        let conv = Conv { window: self.window.clone(), group: self.group, activation: Activation::None };
        conv.resolve(&OpCx::for_infer(inputs, 1))
    }
}

impl Operator for QuantizedConv {
    fn name(&self) -> &'static str {
        if self.linear { "QLinearConv" } else { "ConvInteger" }
    }

    fn infer(&self, cx: &OpCx) -> Result<Vec<TensorInfo>, OpError> {
        let p = self.places();
        cx.expect_counts(if self.linear { 8..=9 } else { 2..=4 }, 1..=1)?;
        for (data, zero) in [(p.x, p.x_zero), (p.w, p.w_zero)] {
            let dtype = cx.dtype_of(data, BYTES)?;
            if cx.has(zero) || self.linear {
                cx.expect_dtype(zero, dtype)?;
            }
        }
        let (dims, shape) = self.resolve(cx)?;
        let channels = dims.group * dims.oc;
        let one = [Some(p.x_zero), p.x_scale, p.y_scale, p.y_zero];
        for i in one.into_iter().flatten().filter(|i| cx.has(*i)) {
            if cx.input(i)?.elements() != 1 {
                return Err(cx.shape_error(i, "one element"));
            }
        }
        for i in [Some(p.w_zero), p.w_scale].into_iter().flatten().filter(|i| cx.has(*i)) {
            let n = cx.input(i)?.elements();
            if n != 1 && n != channels {
                return Err(cx.shape_error(i, format!("one element or {channels}")));
            }
        }
        for i in [p.x_scale, p.w_scale, p.y_scale].into_iter().flatten() {
            cx.dtype_of(i, super::NUMBERS)?;
        }
        if let Some(bias) = p.bias.filter(|b| cx.has(*b)) {
            cx.expect_dtype(bias, DType::I32)?;
        }
        let dtype = p.y_zero.map_or(Ok(DType::I32), |zero| cx.dtype_of(zero, BYTES))?;
        Ok(vec![TensorInfo::new(dtype, shape)])
    }

    fn cost(&self, cx: &OpCx) -> Cost {
        Cost { flops: self.resolve(cx).map_or(0, |(d, _)| d.flops()), bytes: cx.bytes_touched() }
    }

    fn cpu(&self, cx: &OpCx) -> Result<NativeKernel, OpError> {
        let call = Call {
            places: self.places(),
            dims: self.resolve(cx)?.0,
            inputs: (0..cx.input_count()).map(|i| cx.input_opt(i).cloned()).collect(),
            to: cx.output(0)?.dtype,
        };
        Ok(NativeKernel::new(self.name(), move |args| call.run(args)))
    }

    fn gpu(&self, cx: &OpCx, lower: &mut Lowering<'_>) -> Result<(), OpError> {
        device::conv(cx, &self.places(), &self.resolve(cx)?.0, lower)
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

struct Call {
    places: Places,
    dims: ConvDims,
    inputs: Vec<Option<TensorInfo>>,
    to: DType,
}

impl Call {
    fn info(&self, i: usize) -> (Option<DType>, usize) {
        let info = self.inputs.get(i).and_then(Option::as_ref);
        (info.map(|t| t.dtype), info.map_or(1, TensorInfo::elements))
    }

    fn zeros(&self, args: &NativeArgs<'_, '_>, i: usize) -> Result<Repeated<f32>, KernelError> {
        let (dtype, len) = self.info(i);
        zero_points(args, i, dtype, len)
    }

    fn scales(&self, args: &NativeArgs<'_, '_>, i: Option<usize>) -> Result<Repeated<f32>, KernelError> {
        let Some(i) = i else { return Ok(Repeated(vec![1.0])) };
        let (dtype, len) = self.info(i);
        Ok(Repeated(all(args, i, dtype, len)?))
    }

    fn run(&self, args: &mut NativeArgs<'_, '_>) -> Result<(), KernelError> {
        let (p, dims) = (self.places, &self.dims);
        let (x_zero, w_zero) = (self.zeros(args, p.x_zero)?.at(0), self.zeros(args, p.w_zero)?);
        let depth = dims.ic * dims.taps();
        let dtype = |i: usize| self.info(i).0.unwrap_or(DType::U8);
        let x = centered(args, p.x, dtype(p.x), dims.in_len(), |_| x_zero)?;
        let w = centered(args, p.w, dtype(p.w), dims.weights_len(), |i| w_zero.at(i / depth.max(1)))?;
        let (x_scale, w_scale) = (self.scales(args, p.x_scale)?.at(0), self.scales(args, p.w_scale)?);
        let y_scale = self.scales(args, p.y_scale)?.at(0);
        let zero = p.y_zero.map_or(Ok(0.0), |i| self.zeros(args, i).map(|z| z.at(0)))?;
        let channels = dims.group * dims.oc;
        let bias = match p.bias.filter(|b| self.info(*b).0.is_some()) {
            Some(i) => {
                let bias = args.read::<i32>(i)?;
                check_len(i, bias.len(), channels)?;
                bias
            }
            None => &[],
        };
        let result = self.inputs.len();
        let sums = Sums { dims, x: &x, w: &w };
        let Some(range) = integers(self.to) else {
            let y = args.take_write::<i32>(result)?;
            check_len(result, y.len(), dims.out_len())?;
            return sums.each(y, |_, sum| sum);
        };
        let y = args.take_write::<u8>(result)?;
        check_len(result, y.len(), dims.out_len())?;
        let to = Requantize { zero, range };
        sums.each(y, |channel, sum| {
            let sum = sum.wrapping_add(bias.get(channel).copied().unwrap_or(0));
            to.byte(sum, x_scale * w_scale.at(channel) / y_scale)
        })
    }
}

/// The numbers that are convolved.
struct Sums<'a> {
    dims: &'a ConvDims,
    x: &'a [f32],
    w: &'a [f32],
}

impl Sums<'_> {
    /// Writes `f(output channel, sum)` to every element of `y`.
    fn each<T: Copy>(&self, y: &mut [T], f: impl Fn(usize, i32) -> T) -> Result<(), KernelError> {
        let dims = self.dims;
        let (plane, depth) = (dims.out_plane(), dims.ic * dims.taps());
        if plane == 0 || dims.oc == 0 {
            return Ok(());
        }
        let most = block(depth, plane, 4, COLUMN_BYTES);
        let mut columns = vec![0f32; depth * most];
        let (mut part, mut sums) = (vec![0f32; dims.oc * most], vec![0i32; dims.oc * most]);
        for (i, y) in y.chunks_mut(dims.oc * plane).enumerate() {
            let group = i % dims.group;
            let x_len = dims.ic * dims.in_plane();
            let x = self.x.get(i * x_len..).unwrap_or(&[]);
            let w = self.w.get(group * dims.oc * depth..).unwrap_or(&[]);
            let unfold = Columns { axes: dims.axes, x };
            for first in (0..plane).step_by(most.max(1)) {
                let n = (plane - first).min(most);
                let (columns, sums) = (&mut columns[..depth * n], &mut sums[..dims.oc * n]);
                unfold.fill(first, n, columns, Threads::All);
                let (a, b) = (Mat::rows(w, depth), Mat::rows(columns, n));
                let part = &mut part[..dims.oc * n];
                exact_product([dims.oc, n, depth], a, b, part, sums, Threads::All)?;
                for (c, sums) in sums.chunks(n).enumerate() {
                    let y = &mut y[c * plane + first..][..n];
                    let channel = group * dims.oc + c;
                    y.iter_mut().zip(sums).for_each(|(y, sum)| *y = f(channel, *sum));
                }
            }
        }
        Ok(())
    }
}
