//! ConvInteger and QLinearConv: convolutions of bytes.

use std::sync::Arc;

use super::absorbed::{absorbed, absorbed_scales};
use super::conv_cpu::Call;
use super::device_product;
use super::product::{Places, SumsBecome};
use crate::backend::DeviceInfo;
use crate::graph::TensorInfo;
use crate::kernel::NativeKernel;
use crate::ops::conv::Conv;
use crate::ops::conv::conv_op::read_group;
use crate::ops::conv::dims::ConvDims;
use crate::ops::{
    Absorbed, Activation, AttrReader, Cost, HalfRule, Lowering, Native, OpCx, OpError, Operator, WindowAttrs,
};
use crate::shape::Shape;

/// A convolution of bytes less their zero points; padding is the input's zero point.
///
/// As ConvInteger (inputs X, W, zero points of X and W) it gives 32-bit sums, or numbers where it has absorbed what makes
/// these of the sums; as QLinearConv (inputs X, its scale and zero point, the same of W, the same of the output, a bias) it
/// gives bytes.
#[derive(Clone, Debug)]
pub struct QuantizedConv {
    /// The window and its steps.
    pub window: WindowAttrs,
    /// Independent convolutions.
    pub group: usize,
    /// What is made of the sums.
    pub sums: SumsBecome,
}

pub(super) fn read_integer(attrs: &mut AttrReader<'_>, opset: i64) -> Result<Arc<dyn Operator>, OpError> {
    read(attrs, opset, SumsBecome::Sums)
}

pub(super) fn read_linear(attrs: &mut AttrReader<'_>, opset: i64) -> Result<Arc<dyn Operator>, OpError> {
    read(attrs, opset, SumsBecome::Bytes { clamp: None })
}

fn read(attrs: &mut AttrReader<'_>, _: i64, sums: SumsBecome) -> Result<Arc<dyn Operator>, OpError> {
    let window = WindowAttrs { ceil_mode: false, ..WindowAttrs::read(attrs)? };
    Ok(Arc::new(QuantizedConv { window, group: read_group(attrs)?, sums }))
}

impl QuantizedConv {
    fn places(&self) -> Places {
        Places::of(&self.sums)
    }

    /// Sizes and the output's shape.
    pub(super) fn resolve(&self, cx: &OpCx) -> Result<(ConvDims, Shape), OpError> {
        let p = self.places();
        let fact = |i: usize| cx.fact(i).cloned();
        let inputs = vec![fact(p.a), fact(p.b)];
        let conv = Conv { window: self.window.clone(), group: self.group, ..Conv::default() };
        conv.resolve(&OpCx::for_infer(inputs, 1))
    }
}

impl Operator for QuantizedConv {
    fn name(&self) -> &'static str {
        if matches!(self.sums, SumsBecome::Bytes { .. }) { "QLinearConv" } else { "ConvInteger" }
    }

    fn half_rule(&self) -> HalfRule {
        if matches!(self.sums, SumsBecome::Bytes { .. }) { HalfRule::default() } else { HalfRule::Full }
    }

    fn infer(&self, cx: &OpCx) -> Result<Vec<TensorInfo>, OpError> {
        let p = self.places();
        let counts = match self.sums {
            SumsBecome::Sums => 2..=4,
            SumsBecome::Bytes { .. } => 8..=9,
            SumsBecome::Numbers { .. } => 2..=7,
        };
        cx.expect_counts(counts, 1..=1)?;
        let dtype = p.check_types(cx, &self.sums)?;
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
        if let Some(bias) = p.bias.filter(|i| cx.has(*i))
            && cx.input(bias)?.elements() != channels
        {
            return Err(cx.shape_error(bias, format!("{channels} elements")));
        }
        Ok(vec![TensorInfo::new(dtype, shape)])
    }

    fn cost(&self, cx: &OpCx) -> Cost {
        Cost { flops: self.resolve(cx).map_or(0, |(d, _)| d.flops()), bytes: cx.bytes_touched() }
    }

    fn cpu(&self, cx: &OpCx) -> Result<NativeKernel, OpError> {
        let call = Call::new(cx, self.places(), self.resolve(cx)?.0, self.sums)?;
        Ok(NativeKernel::new(self.name(), move |args| call.run(args)))
    }

    fn cpu_on(&self, cx: &OpCx, _: &DeviceInfo) -> Result<Native, OpError> {
        let mut call = Call::new(cx, self.places(), self.resolve(cx)?.0, self.sums)?;
        let packed = call.pack(cx).map(|weights| (self.places().b, weights)).into_iter().collect();
        Ok(Native { kernel: NativeKernel::new(self.name(), move |args| call.run(args)), packed })
    }

    fn gpu(&self, cx: &OpCx, lower: &mut Lowering<'_>) -> Result<(), OpError> {
        device_product::conv(cx, &self.places(), &self.resolve(cx)?.0, &self.sums, lower)
    }

    fn with_activation(&self, activation: &Activation) -> Option<Arc<dyn Operator>> {
        let sums = self.sums.with_activation(activation)?;
        Some(Arc::new(QuantizedConv { sums, ..self.clone() }))
    }

    fn absorb(&self, cx: &OpCx, next: &dyn Operator, next_cx: &OpCx, at: usize) -> Option<Absorbed> {
        let output = &cx.output(0).ok()?.shape;
        let (channels, axes) = (*output.get(1)?, output.rank());
        // One number for each channel, then only axes of size 1.
        let of_channels = |shape: &Shape| {
            let at = (shape.rank() + 1).checked_sub(axes);
            shape.elements() == channels && at.and_then(|at| shape.get(at)) == Some(&channels)
        };
        let (sums, inputs) = absorbed(&self.sums, cx, (next, next_cx, at), of_channels)?;
        Some(Absorbed { op: Arc::new(QuantizedConv { sums, ..self.clone() }), inputs })
    }

    fn absorb_before(
        &self,
        cx: &OpCx,
        at: usize,
        before: &dyn Operator,
        before_cx: &OpCx,
    ) -> Option<Absorbed> {
        let inputs = absorbed_scales(&self.places(), cx, at, before, before_cx)?;
        Some(Absorbed { op: Arc::new(self.clone()), inputs })
    }
}
