//! Conv: groups, strides, dilations and padding; devices compute it over one to three spatial dimensions.

use std::sync::Arc;

use super::dims::{AnyDims, ConvDims};
use super::fold::{WeightLayout, channel_bias};
use super::many;
use super::{After, device, direct, image};
use crate::backend::DeviceInfo;
use crate::dtype::DType;
use crate::graph::{Tensor, TensorInfo};
use crate::kernel::NativeKernel;
use crate::memory::image::ImageDesc;
use crate::ops::quant::{QuantizedConv, SumsBecome};
use crate::ops::real::{FLOATS, real_kernel};
use crate::ops::window::bad;
use crate::ops::{
    Absorbed, AbsorbedInput, Activation, AttrReader, Cost, Elementwise, Lowering, Native, OpCx, OpError,
    Operator, Quantized, Structure, WindowAttrs, absorb,
};
use crate::shape::Shape;

/// `activation(conv(X, W) + B + Z)`. Inputs: X `[n, c, ...]`, W `[oc, c / group, ...]`, optionally B `[oc]`, and Z, of the
/// output's shape, where [`Conv::summed`]. Where [`Conv::sloped`], B is `[2 * oc]`: the biases of all channels, then the factor
/// of each by which what is below 0 is multiplied, as PRelu does.
#[derive(Clone, Debug)]
pub struct Conv {
    /// Kernel, strides, dilations and padding.
    pub window: WindowAttrs,
    /// Number of independent convolutions that share the channels.
    pub group: usize,
    /// Applied to the output.
    pub activation: Activation,
    /// Whether there is a Z.
    pub summed: bool,
    /// Whether B has slopes; there is no activation then.
    pub sloped: bool,
}

impl Default for Conv {
    fn default() -> Self {
        Conv {
            window: WindowAttrs::default(),
            group: 1,
            activation: Activation::None,
            summed: false,
            sloped: false,
        }
    }
}

pub(super) fn read(attrs: &mut AttrReader<'_>, _opset: i64) -> Result<Arc<dyn Operator>, OpError> {
    let window = WindowAttrs { ceil_mode: false, ..WindowAttrs::read(attrs)? };
    Ok(Arc::new(Conv { window, group: read_group(attrs)?, ..Conv::default() }))
}

/// The attribute `group`, 1 or more.
pub(crate) fn read_group(attrs: &AttrReader<'_>) -> Result<usize, OpError> {
    let group = attrs.int("group", 1)?;
    usize::try_from(group)
        .ok()
        .filter(|g| *g > 0)
        .ok_or_else(|| bad("group", format!("is {group}, expected at least 1")))
}

impl Conv {
    /// The convolution over as many dimensions as it has, and the shape of its output.
    fn sizes(&self, cx: &OpCx) -> Result<(AnyDims, Shape), OpError> {
        let (x, w) = (cx.shape(0)?, cx.shape(1)?);
        let ([batch, channels, spatial @ ..], [out_channels, ic, kernel @ ..]) = (x.dims(), w.dims()) else {
            return Err(cx.shape_error(0, "[batch, channels, ...]"));
        };
        if spatial.is_empty() || w.rank() != x.rank() {
            return Err(cx.shape_error(1, format!("{} dimensions, as input 0 has, at least 3", x.rank())));
        }
        let group = self.group.max(1);
        if ic.checked_mul(group) != Some(*channels) {
            return Err(cx.shape_error(
                1,
                format!("{channels} channels of input 0 in {group} groups as second dimension"),
            ));
        }
        if out_channels % group != 0 {
            return Err(cx.shape_error(1, format!("a multiple of {group} groups as first dimension")));
        }
        let of_channels = if self.sloped { out_channels.saturating_mul(2) } else { *out_channels };
        if (self.sloped || cx.has(2)) && cx.shape(2)?.dims() != [of_channels] {
            return Err(cx.shape_error(2, format!("[{of_channels}]")));
        }
        let kernel = self.window.kernel_sizes(spatial.len(), Some(kernel))?;
        let axes = self.window.axes(spatial, &kernel)?;
        let output = Shape::new(
            [*batch, *out_channels].into_iter().chain(axes.iter().map(|a| a.output)).collect::<Vec<_>>(),
        )?;
        let oc = out_channels / group;
        Ok((ConvDims { batch: *batch, group, ic: *ic, oc, axes, transposed: false }, output))
    }

    /// The same with what `next` adds to its output, where that has the output's shape.
    fn with_residual(&self, cx: &OpCx, next: &dyn Operator, next_cx: &OpCx, at: usize) -> Option<Absorbed> {
        let is_sum = next.structure() == Some(Structure::Elementwise(Elementwise::Add));
        let other = 1_usize.checked_sub(at)?;
        let (own, sum) = (cx.output(0).ok()?, next_cx.output(0).ok()?);
        let same = next_cx.input_count() == 2 && next_cx.input(other).ok()? == own && sum == own;
        let plain = self.has_no_function() && self.resolve(cx).is_ok();
        (is_sum && same && plain).then(|| Absorbed {
            op: Arc::new(Conv { summed: true, ..self.clone() }),
            inputs: vec![
                AbsorbedInput::Own(0),
                AbsorbedInput::Own(1),
                if cx.has(2) { AbsorbedInput::Own(2) } else { AbsorbedInput::Absent },
                AbsorbedInput::Next(other),
            ],
        })
    }

    /// Whether the sums are the output.
    fn has_no_function(&self) -> bool {
        self.activation == Activation::None && !self.sloped
    }

    /// The same with a constant slope for each channel, which `next` has.
    fn with_slopes(&self, cx: &OpCx, next: &dyn Operator, next_cx: &OpCx, at: usize) -> Option<Absorbed> {
        let is_slope = next.structure() == Some(Structure::Elementwise(Elementwise::PRelu)) && at == 0;
        if !is_slope || !self.has_no_function() || self.resolve(cx).is_err() {
            return None;
        }
        let slopes = channel_bias(next_cx.value(1)?, &cx.output(0).ok()?.shape).ok()??;
        let biases = match cx.has(2) {
            true => cx.value(2)?.clone(),
            false => Tensor::from_bytes(slopes.info().clone(), &vec![0; slopes.bytes().len()]).ok()?,
        };
        let info = TensorInfo::new(slopes.dtype(), Shape::new([2 * slopes.shape().elements()]).ok()?);
        let both = Tensor::from_bytes(info, &[biases.bytes(), slopes.bytes()].concat()).ok()?;
        let own = [0, 1].map(AbsorbedInput::Own);
        let inputs = own.into_iter().chain([AbsorbedInput::New(both)]);
        Some(Absorbed {
            op: Arc::new(Conv { sloped: true, ..self.clone() }),
            inputs: inputs.chain(self.summed.then_some(AbsorbedInput::Own(3))).collect(),
        })
    }

    /// What is done with the sums.
    fn after(&self) -> After {
        After { activation: self.activation, summed: self.summed, sloped: self.sloped }
    }

    /// The convolution over three dimensions, and the shape of its output.
    pub(crate) fn resolve(&self, cx: &OpCx) -> Result<(ConvDims, Shape), OpError> {
        let (dims, output) = self.sizes(cx)?;
        Ok((dims.three("Conv")?, output))
    }
}

/// Checks the types of data, weights and bias; a summand is checked by its caller.
pub(super) fn check_types(cx: &OpCx, summed: bool) -> Result<crate::dtype::DType, OpError> {
    cx.expect_counts(if summed { 4..=4 } else { 2..=3 }, 1..=1)?;
    let dtype = cx.dtype_of(0, FLOATS)?;
    cx.expect_dtype(1, dtype)?;
    if cx.has(2) {
        cx.expect_dtype(2, dtype)?;
    }
    Ok(dtype)
}

impl Operator for Conv {
    fn name(&self) -> &'static str {
        "Conv"
    }

    fn structure(&self) -> Option<Structure<'_>> {
        (self.has_no_function() && !self.summed).then_some(Structure::Conv)
    }

    fn quantized(&self, to: &Quantized<'_>) -> Option<Arc<dyn Operator>> {
        self.structure()?;
        let (window, group) = (self.window.clone(), self.group);
        Some(Arc::new(QuantizedConv { window, group, sums: SumsBecome::Bytes { clamp: to.clamp } }))
    }

    fn infer(&self, cx: &OpCx) -> Result<Vec<TensorInfo>, OpError> {
        let dtype = check_types(cx, self.summed)?;
        let output = TensorInfo::new(dtype, self.sizes(cx)?.1);
        if self.summed && cx.input(3)? != &output {
            return Err(cx.shape_error(3, format!("{output}, as the output")));
        }
        Ok(vec![output])
    }

    fn cost(&self, cx: &OpCx) -> Cost {
        Cost { flops: self.sizes(cx).map_or(0, |(d, _)| d.flops()), bytes: cx.bytes_touched() }
    }

    fn cpu(&self, cx: &OpCx) -> Result<NativeKernel, OpError> {
        let (activation, many) = (self.activation, self.sizes(cx)?.0);
        match self.resolve(cx) {
            Ok((dims, _)) => {
                let dims = dims.in_rows();
                real_kernel("Conv", cx, direct::Run { dims, after: self.after(), channels: None })
            }
            Err(error) if self.summed || self.sloped => Err(error),
            Err(_) => real_kernel("Conv", cx, many::Run { dims: many, activation }),
        }
    }

    fn cpu_on(&self, cx: &OpCx, _: &DeviceInfo) -> Result<Native, OpError> {
        let packed = || {
            let dims = self.resolve(cx).ok()?.0.in_rows();
            let floats = [cx.dtype(0).ok()?, cx.dtype(1).ok()?].iter().all(|dtype| *dtype == DType::F32);
            let channels = direct::channels(&dims).filter(|_| floats)?;
            Some((dims, channels, channels.pack(cx.packable(1)?)?))
        };
        let Some((dims, channels, weights)) = packed() else { return self.cpu(cx).map(Native::from) };
        let run = direct::Run { dims, after: self.after(), channels: Some(channels) };
        Ok(Native { kernel: real_kernel("Conv", cx, run)?, packed: vec![(1, weights)] })
    }

    fn gpu(&self, cx: &OpCx, lower: &mut Lowering<'_>) -> Result<(), OpError> {
        let dims = self.resolve(cx)?.0;
        if cx.image(0).is_some() {
            return image::conv(cx, &dims, self.after(), lower);
        }
        device::conv(cx, &dims.in_rows(), self.after(), lower)
    }

    fn in_place(&self, _: &OpCx) -> Option<usize> {
        self.summed.then_some(3)
    }

    fn with_activation(&self, activation: &Activation) -> Option<Arc<dyn Operator>> {
        let activation = self.activation.then(activation).filter(|_| !self.sloped)?;
        Some(Arc::new(Conv { activation, ..self.clone() }) as Arc<dyn Operator>)
    }

    fn reads_image(&self, cx: &OpCx, input: usize, image: &ImageDesc, device: &DeviceInfo) -> bool {
        input == 0
            && !self.summed
            && self.resolve(cx).is_ok_and(|(dims, _)| image::reads(cx, &dims, image, device))
    }

    fn absorb(&self, cx: &OpCx, next: &dyn Operator, next_cx: &OpCx, at: usize) -> Option<Absorbed> {
        if self.sloped {
            return None;
        }
        if let Some(absorbed) = self.with_slopes(cx, next, next_cx, at) {
            return Some(absorbed);
        }
        if self.summed {
            // What scales or shifts the output would scale and shift the summand.
            return absorb::with_activation(self, cx, next, next_cx);
        }
        let with = |activation| Arc::new(Conv { activation, ..self.clone() }) as Arc<dyn Operator>;
        let own = (WeightLayout::Conv, self.activation);
        absorb::into_convolution(self, own, with, cx, (next, next_cx, at))
            .or_else(|| self.with_residual(cx, next, next_cx, at))
    }
}
