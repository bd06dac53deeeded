//! MaxRoiPool: the largest elements of the bins of regions of images.

use std::ops::Range;
use std::sync::Arc;

use crate::graph::TensorInfo;
use crate::kernel::table::{params, variants};
use crate::kernel::{KernelError, NativeKernel};
use crate::ops::real::{FLOATS, Real, RealIo, RealKernel, real_kernel};
use crate::ops::word::index32;
use crate::ops::{AttrReader, Cost, Lowering, OpCx, OpError, Operand, Operator, par};
use crate::shape::Shape;

/// The largest elements of every bin of regions `[regions, 5]` (image, x1, y1, x2, y2) of `[n, c, h, w]`;
/// 0 for a bin without elements (Girshick 2015, section 2.1).
#[derive(Clone, Debug)]
pub struct MaxRoiPool {
    /// Sizes of the output.
    pub height: usize,
    /// Sizes of the output.
    pub width: usize,
    /// Elements for one unit of the regions.
    pub scale: f32,
}

pub(super) fn read(attrs: &mut AttrReader<'_>, _opset: i64) -> Result<Arc<dyn Operator>, OpError> {
    let sizes = attrs.ints_opt("pooled_shape")?.ok_or_else(|| attrs.error("pooled_shape", "is missing"))?;
    match *Shape::from_i64(&sizes)?.dims() {
        [height, width] if height > 0 && width > 0 => {
            Ok(Arc::new(MaxRoiPool { height, width, scale: attrs.float("spatial_scale", 1.0)? }))
        }
        _ => Err(attrs.error("pooled_shape", format!("is {sizes:?}, expected height and width")).into()),
    }
}

#[derive(Clone, Copy, Debug)]
struct Dims {
    batch: usize,
    channels: usize,
    height: usize,
    width: usize,
    regions: usize,
}

/// Edges of regions are kept within this, so that their distances are numbers of elements.
const FAR: f64 = (1 << 28) as f64;

impl MaxRoiPool {
    fn dims(&self, cx: &OpCx) -> Result<(Dims, Shape), OpError> {
        let &[batch, channels, height, width] = cx.shape(0)?.dims() else {
            return Err(cx.shape_error(0, "[batch, channels, height, width]"));
        };
        let &[regions, 5] = cx.shape(1)?.dims() else {
            return Err(cx.shape_error(1, "[regions, 5]"));
        };
        let shape = Shape::new([regions, channels, self.height, self.width])?;
        if shape.elements() > 0 && batch == 0 {
            return Err(cx.shape_error(0, "an image"));
        }
        Ok((Dims { batch, channels, height, width, regions }, shape))
    }

    /// The elements under bin `at` of `bins` of the axis from `from` to `to` on an image of `size`.
    fn bin<T: Real>(&self, from: T, to: T, at: usize, bins: usize, size: usize) -> Range<usize> {
        let edge = |v: T| (v * T::from_f64(self.scale.into())).to_f64().round().clamp(-FAR, FAR) as i64;
        let (start, end) = (edge(from), edge(to));
        let len = T::from_f64((end - start + 1).max(1) as f64);
        let bin = len / T::from_f64(bins as f64);
        let place = |i: usize| (T::from_f64(i as f64) * bin).to_f64();
        let clamp = |v: i64| v.clamp(0, size as i64) as usize;
        clamp(place(at).floor() as i64 + start)..clamp(place(at + 1).ceil() as i64 + start)
    }
}

impl Operator for MaxRoiPool {
    fn name(&self) -> &'static str {
        "MaxRoiPool"
    }

    fn infer(&self, cx: &OpCx) -> Result<Vec<TensorInfo>, OpError> {
        cx.expect_counts(2..=2, 1..=1)?;
        let dtype = cx.dtype_of(0, FLOATS)?;
        cx.expect_dtype(1, dtype)?;
        Ok(vec![TensorInfo::new(dtype, self.dims(cx)?.1)])
    }

    fn cost(&self, cx: &OpCx) -> Cost {
        let elements = cx.outputs().iter().map(|o| o.elements() as u64).sum::<u64>();
        Cost { flops: 8 * elements, bytes: cx.bytes_touched() }
    }

    fn cpu(&self, cx: &OpCx) -> Result<NativeKernel, OpError> {
        real_kernel("MaxRoiPool", cx, Run { op: self.clone(), dims: self.dims(cx)?.0 })
    }

    fn gpu(&self, cx: &OpCx, lower: &mut Lowering<'_>) -> Result<(), OpError> {
        let kernel = variants::MaxRoiPool { t: cx.dtype(0)? }.id()?;
        let (d, shape) = self.dims(cx)?;
        index32(cx.input(0)?.elements())?;
        let n = index32(shape.elements())?;
        let params = params::MaxRoiPool {
            n,
            batch: d.batch as i32,
            channels: d.channels as u32,
            height: d.height as i32,
            width: d.width as i32,
            oh: self.height as u32,
            ow: self.width as u32,
            scale: self.scale,
        };
        let args = [Operand::Input(0), Operand::Input(1), Operand::Output(0)];
        lower.dispatch_1d(kernel, &[], &args, &params, n as usize)
    }
}

struct Run {
    op: MaxRoiPool,
    dims: Dims,
}

impl RealKernel for Run {
    fn run<T: Real>(&self, io: &mut RealIo<'_, T>) -> Result<(), KernelError> {
        let Dims { batch, channels, height, width, regions } = self.dims;
        let (oh, ow) = (self.op.height, self.op.width);
        let (y, inputs) = io.output(0, regions * channels * oh * ow)?;
        let x = inputs.get(0, batch * channels * height * width)?;
        let rois = inputs.get(1, regions * 5)?;
        let image = |roi: &[T]| {
            let n = roi[0].to_f64();
            let fits = n >= 0.0 && n < batch as f64;
            fits.then_some(n as usize).ok_or_else(|| KernelError::Value {
                what: format!("a region lies in image {n}, of which there are {batch}"),
            })
        };
        let images: Vec<usize> = rois.chunks(5).map(image).collect::<Result<_, _>>()?;
        if y.is_empty() {
            return Ok(());
        }
        // A region may be the whole image.
        let work = (regions * channels).saturating_mul((height * width).max(oh * ow));
        par::rows(y, channels * oh * ow, work, |region, y| {
            let (roi, n) = (&rois[region * 5..][..5], images[region]);
            for (c, y) in y.chunks_mut(oh * ow).enumerate() {
                let x = &x[(n * channels + c) * height * width..][..height * width];
                for (at, y) in y.iter_mut().enumerate() {
                    let rows = self.op.bin(roi[2], roi[4], at / ow, oh, height);
                    let cols = self.op.bin(roi[1], roi[3], at % ow, ow, width);
                    let all = rows.flat_map(|r| cols.clone().map(move |c| x[r * width + c]));
                    *y = all.reduce(|a, b| if b > a { b } else { a }).unwrap_or(T::ZERO);
                }
            }
        });
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::Tensor;
    use crate::ops::AttrValue;
    use crate::ops::test_util::{attrs, facts, read_op, run_f32, tensor};

    #[test]
    fn bins_share_their_edges() {
        let x = Tensor::new([1, 1, 4, 5], &(0..20).map(|v| v as f32).collect::<Vec<_>>()).unwrap();
        let rois = [[0.0f32, 2.0, 2.0, 8.0, 6.0], [0.0, -40.0, 0.0, -30.0, 1.0]];
        let rois = Tensor::new([2, 5], rois.as_flattened()).unwrap();
        let map =
            attrs(&[("pooled_shape", AttrValue::Ints(vec![2, 2])), ("spatial_scale", AttrValue::Float(0.5))]);
        let op = read_op("MaxRoiPool", 1, &map).unwrap();
        // Rows 1 to 3 in bins of one and a half, columns 1 to 4 in bins of two.
        let y = run_f32(&*op, &[Some(x), Some(rois)]).unwrap();
        assert_eq!(y.to_f32s().unwrap(), [12.0, 14.0, 17.0, 19.0, 0.0, 0.0, 0.0, 0.0]);
        assert!(facts(&*op, &[Some(tensor(&[1, 1, 4, 5], 1)), Some(tensor(&[2, 4], 1))], 1).is_err());
        assert!(read_op("MaxRoiPool", 1, &attrs(&[("pooled_shape", AttrValue::Ints(vec![0, 2]))])).is_err());
        assert!(read_op("MaxRoiPool", 1, &attrs(&[])).is_err());
    }

    #[cfg(feature = "vulkan")]
    #[test]
    fn devices_compute_the_same() {
        use crate::ops::test_util::{tensor_of, values};
        use crate::ops::testing::check_op;
        let rois = [
            [1.0f32, 0.0, 0.0, 9.0, 7.0],
            [0.0, -4.0, -3.0, 30.0, 40.0],
            [1.0, 5.0, 6.0, 1.0, 2.0],
            [0.0, -6e4, -6e4, 6e4, 6e4],
        ];
        let op = MaxRoiPool { height: 3, width: 2, scale: 0.5 };
        let r = Tensor::new([4, 5], rois.as_flattened()).unwrap();
        check_op(&op, &[Some(tensor(&[2, 3, 5, 7], 1)), Some(r)], 0.0);
        let x = tensor_of(&[2, 3, 5, 7], &values(210, 1), half::f16::from_f32);
        let r = tensor_of(&[4, 5], rois.as_flattened(), half::f16::from_f32);
        check_op(&op, &[Some(x), Some(r)], 0.0);
    }
}
