//! ConvInteger and QLinearConv: convolutions of bytes.

use std::sync::Arc;

use super::conv_cpu::Call;
use super::device;
use super::product::Places;
use crate::backend::DeviceInfo;
use crate::graph::TensorInfo;
use crate::kernel::NativeKernel;
use crate::ops::conv::Conv;
use crate::ops::conv::conv_op::read_group;
use crate::ops::conv::dims::ConvDims;
use crate::ops::{AttrReader, Cost, Lowering, Native, OpCx, OpError, Operator, WindowAttrs};
use crate::shape::Shape;

/// A convolution of bytes less their zero points; padding is the input's zero point.
///
/// As ConvInteger (inputs X, W, zero points of X and W) it gives 32-bit sums; as QLinearConv (inputs X, its
/// scale and zero point, the same of W, the same of the output, a bias) it gives bytes.
#[derive(Clone, Debug)]
pub struct QuantizedConv {
    /// The window and its steps.
    pub window: WindowAttrs,
    /// Independent convolutions.
    pub group: usize,
    /// Whether it is QLinearConv.
    pub linear: bool,
    /// The smallest and the largest element of a QLinearConv's output, where an activation keeps it within fewer than
    /// there are.
    pub clamp: Option<[i32; 2]>,
}

pub(super) fn read_integer(attrs: &mut AttrReader<'_>, opset: i64) -> Result<Arc<dyn Operator>, OpError> {
    read(attrs, opset, false)
}

pub(super) fn read_linear(attrs: &mut AttrReader<'_>, opset: i64) -> Result<Arc<dyn Operator>, OpError> {
    read(attrs, opset, true)
}

fn read(attrs: &mut AttrReader<'_>, _: i64, linear: bool) -> Result<Arc<dyn Operator>, OpError> {
    let window = WindowAttrs { ceil_mode: false, ..WindowAttrs::read(attrs)? };
    Ok(Arc::new(QuantizedConv { window, group: read_group(attrs)?, linear, clamp: None }))
}

impl QuantizedConv {
    fn places(&self) -> Places {
        Places::of(self.linear)
    }

    /// Sizes and the output's shape.
    pub(super) fn resolve(&self, cx: &OpCx) -> Result<(ConvDims, Shape), OpError> {
        let p = self.places();
        let fact = |i: usize| cx.fact(i).cloned();
        let inputs = vec![fact(p.a), fact(p.b), p.bias.and_then(fact)];
        let conv = Conv { window: self.window.clone(), group: self.group, ..Conv::default() };
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
        let call = Call::new(cx, self.places(), self.resolve(cx)?.0, self.clamp)?;
        Ok(NativeKernel::new(self.name(), move |args| call.run(args)))
    }

    fn cpu_on(&self, cx: &OpCx, _: &DeviceInfo) -> Result<Native, OpError> {
        let mut call = Call::new(cx, self.places(), self.resolve(cx)?.0, self.clamp)?;
        let packed = call.pack(cx).map(|weights| (self.places().b, weights)).into_iter().collect();
        Ok(Native { kernel: NativeKernel::new(self.name(), move |args| call.run(args)), packed })
    }

    fn gpu(&self, cx: &OpCx, lower: &mut Lowering<'_>) -> Result<(), OpError> {
        device::conv(cx, &self.places(), &self.resolve(cx)?.0, self.clamp, lower)
    }
}
