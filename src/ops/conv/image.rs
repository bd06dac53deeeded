//! Convolutions that read their input through an image.

use super::After;
use super::dims::ConvDims;
use crate::backend::DeviceInfo;
use crate::kernel::KernelId;
use crate::kernel::codes::conv_image::PX;
use crate::kernel::table::{params, spec, variants};
use crate::memory::image::{Filter, ImageDesc};
use crate::ops::image::is_planes;
use crate::ops::pack::Pack;
use crate::ops::window::AxisNumbers;
use crate::ops::{Lowering, OpCx, OpError, Operand, WindowAxis};

/// Output channels of an invocation.
const TILE: usize = 4;

fn kernel(cx: &OpCx) -> Result<KernelId, OpError> {
    Ok(variants::ConvImage { t: cx.dtype(0)? }.id()?)
}

/// Whether a convolution reads its input through `image`.
pub(super) fn reads(cx: &OpCx, dims: &ConvDims, image: &ImageDesc, device: &DeviceInfo) -> bool {
    let Ok(kernel) = kernel(cx) else { return false };
    let sampled = device.images.as_ref().is_some_and(|rules| rules.sampled.contains(image.texel));
    let runs = device.native || device.features.contains(kernel.info().requires);
    let flat = dims.axes[0] == WindowAxis::UNIT && dims.ic > 0;
    sampled && runs && flat && cx.input(0).is_ok_and(|info| is_planes(info, image))
}

/// Emits Conv over two dimensions.
pub(super) fn conv(
    cx: &OpCx,
    dims: &ConvDims,
    after: After,
    lower: &mut Lowering<'_>,
) -> Result<(), OpError> {
    if dims.out_len() == 0 {
        return Ok(());
    }
    super::device::check_sizes(dims.in_len(), dims.out_len(), dims.weights_len())?;
    let kernel = kernel(cx)?;
    let [_, h, w] = dims.axes;
    let of_oc = (dims.ic * dims.taps()) as i64;
    let pack = Pack {
        groups: dims.group,
        tile: TILE,
        oc: dims.oc,
        ic: dims.ic,
        taps: dims.axes.map(|a| a.kernel),
        first: 0,
        group_stride: of_oc * dims.oc as i64,
        oc_stride: of_oc,
        ic_stride: dims.taps() as i64,
        tap_strides: [h.kernel * w.kernel, w.kernel, 1].map(|s| s as i64),
    };
    let weights = pack.weights(cx, lower)?;
    let biased = cx.has(2);
    let (code, [act_a, act_b]) = after.on_devices().code();
    let told = super::device::biased_code(biased, after.sloped);
    let spec = [(spec::conv_image::BIASED, told), (spec::conv_image::ACTIVATION, code)];
    let n = w.output.div_ceil(PX) * h.output * dims.oc.div_ceil(TILE) * dims.group * dims.batch;
    let numbers = AxisNumbers::new([h, w])?;
    let params = params::ConvImage {
        n: n as u32,
        output: numbers.into(),
        oc: dims.oc as u32,
        groups: dims.group as u32,
        ic: dims.ic as u32,
        window: numbers.into(),
        act_a,
        act_b,
    };
    let bias = if biased { Operand::Input(2) } else { Operand::Unused };
    let args = [Operand::Image(0, Filter::Nearest), weights, bias, Operand::Output(0)];
    lower.dispatch_1d(kernel, &spec, &args, &params, n)
}
