//! ConvInteger and QLinearConv: convolutions of bytes.

use std::any::Any;
use std::sync::Arc;

use rayon::prelude::*;

use super::device;
use super::elements::integers;
use super::product::{Inputs, Places, Requantize, exact_product};
use crate::dtype::DType;
use crate::graph::TensorInfo;
use crate::kernel::{KernelError, NativeArgs, NativeKernel};
use crate::ops::conv::Conv;
use crate::ops::conv::columns::{Columns, block};
use crate::ops::conv::conv_op::{ConvDims, read_group};
use crate::ops::linalg::product::{Mat, Threads};
use crate::ops::real::check_len;
use crate::ops::{Activation, AttrReader, Cost, Lowering, OpCx, OpError, Operator, Window, par};
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

impl QuantizedConv {
    fn places(&self) -> Places {
        Places::of(self.linear)
    }

    /// Sizes and the output's shape.
    fn resolve(&self, cx: &OpCx) -> Result<(ConvDims, Shape), OpError> {
        let p = self.places();
        let fact = |i: usize| cx.fact(i).cloned();
        let inputs = vec![fact(p.a), fact(p.b), p.bias.and_then(fact)];
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
        let dtype = p.check_types(cx)?;
        let (dims, shape) = self.resolve(cx)?;
        let channels = dims.group * dims.oc;
        let one = [Some(p.a_zero), p.a_scale, p.y_scale, p.y_zero];
        for i in one.into_iter().flatten().filter(|i| cx.has(*i)) {
            if cx.input(i)?.elements() != 1 {
                return Err(cx.shape_error(i, "one element"));
            }
        }
        for i in [Some(p.b_zero), p.b_scale].into_iter().flatten().filter(|i| cx.has(*i)) {
            let n = cx.input(i)?.elements();
            if n != 1 && n != channels {
                return Err(cx.shape_error(i, format!("one element or {channels}")));
            }
        }
        Ok(vec![TensorInfo::new(dtype, shape)])
    }

    fn cost(&self, cx: &OpCx) -> Cost {
        Cost { flops: self.resolve(cx).map_or(0, |(d, _)| d.flops()), bytes: cx.bytes_touched() }
    }

    fn cpu(&self, cx: &OpCx) -> Result<NativeKernel, OpError> {
        let call = Call {
            places: self.places(),
            dims: self.resolve(cx)?.0,
            inputs: Inputs::of(cx),
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
    inputs: Inputs,
    to: DType,
}

impl Call {
    fn run(&self, args: &mut NativeArgs<'_, '_>) -> Result<(), KernelError> {
        let (p, dims, inputs) = (self.places, &self.dims, &self.inputs);
        let (x_zero, w_zero) = (inputs.zeros(args, p.a_zero)?.at(0), inputs.zeros(args, p.b_zero)?);
        let depth = dims.ic * dims.taps();
        let x = inputs.centered(args, p.a, dims.in_plane(), |_| std::slice::from_ref(&x_zero))?;
        let w = inputs.centered(args, p.b, depth, |channel| w_zero.line(channel, 1))?;
        let (x_scale, w_scale) = (inputs.scales(args, p.a_scale)?.at(0), inputs.scales(args, p.b_scale)?);
        let y_scale = inputs.scales(args, p.y_scale)?.at(0);
        let zero = p.y_zero.map_or(Ok(0.0), |i| inputs.zeros(args, i).map(|z| z.at(0)))?;
        let bias = match p.bias.filter(|b| inputs.has(*b)) {
            Some(i) => {
                let bias = args.read::<i32>(i)?;
                check_len(i, bias.len(), dims.group * dims.oc)?;
                bias
            }
            None => &[],
        };
        let result = inputs.count();
        let sums = Sums { dims, x: &x, w: &w };
        let Some(range) = integers(self.to) else {
            let y = args.take_write::<i32>(result)?;
            check_len(result, y.len(), dims.out_len())?;
            return sums.each(y, |_, sums, y| y.copy_from_slice(sums));
        };
        let y = args.take_write::<u8>(result)?;
        check_len(result, y.len(), dims.out_len())?;
        let to = Requantize { zero, range };
        sums.each(y, |channel, sums, y| {
            if let Some(bias) = bias.get(channel) {
                sums.iter_mut().for_each(|sum| *sum = sum.wrapping_add(*bias));
            }
            to.bytes(sums, &[x_scale * w_scale.at(channel) / y_scale], y);
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
    /// Calls `f(output channel, sums, elements)` for parts of `y`.
    fn each<T: Copy + Send>(
        &self,
        y: &mut [T],
        f: impl Fn(usize, &mut [i32], &mut [T]) + Sync,
    ) -> Result<(), KernelError> {
        let dims = self.dims;
        let (plane, depth) = (dims.out_plane(), dims.ic * dims.taps());
        if plane == 0 || dims.oc == 0 {
            return Ok(());
        }
        let most = block(depth, plane, 4, COLUMN_BYTES);
        // Either the groups are shared out or the work of each.
        let shared = dims.group > 1;
        let threads = if shared { Threads::One } else { Threads::All };
        let one = |(i, y): (usize, &mut [T])| {
            let mut columns = vec![0f32; depth * most];
            let (mut part, mut sums) = (vec![0f32; dims.oc * most], vec![0i32; dims.oc * most]);
            let group = i % dims.group;
            let x_len = dims.ic * dims.in_plane();
            let x = self.x.get(i * x_len..).unwrap_or(&[]);
            let w = self.w.get(group * dims.oc * depth..).unwrap_or(&[]);
            let unfold = Columns { axes: dims.axes, x };
            for first in (0..plane).step_by(most.max(1)) {
                let n = (plane - first).min(most);
                let (columns, sums) = (&mut columns[..depth * n], &mut sums[..dims.oc * n]);
                unfold.fill(first, n, columns, threads);
                let (a, b) = (Mat::rows(w, depth), Mat::rows(columns, n));
                let part = &mut part[..dims.oc * n];
                exact_product([dims.oc, n, depth], a, b, part, sums, threads)?;
                let write = |(c, (y, sums)): (usize, (&mut [T], &mut [i32]))| {
                    f(group * dims.oc + c, sums, &mut y[first..][..n]);
                };
                if shared {
                    y.chunks_mut(plane).zip(sums.chunks_mut(n)).enumerate().for_each(write);
                } else {
                    y.par_chunks_mut(plane).zip(sums.par_chunks_mut(n)).enumerate().for_each(write);
                }
            }
            Ok(())
        };
        let parts = y.chunks_mut(dims.oc * plane).enumerate();
        if shared { par::try_share(parts, one) } else { { parts }.try_for_each(one) }
    }
}
