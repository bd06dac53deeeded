//! RoiAlign: regions of images resampled to one size.

use std::sync::Arc;

use crate::dtype::DType;
use crate::graph::TensorInfo;
use crate::kernel::table::{params, spec, variants};
use crate::kernel::{KernelError, NativeKernel};
use crate::ops::real::{FLOATS, Real, RealIo, RealKernel, real_kernel_with};
use crate::ops::window::bad;
use crate::ops::word::index32;
use crate::ops::{AttrReader, Cost, Lowering, OpCx, OpError, Operand, Operator, par};
use crate::shape::Shape;

/// What is made of the samples of a bin.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RoiMode {
    /// Their mean.
    #[default]
    Average,
    /// The largest weighted element.
    Max,
}

/// The most samples of one bin along an axis that the attribute may ask for.
const MAX_SAMPLING: i64 = 1 << 10;

/// Resamples regions `[regions, 4]` (x1, y1, x2, y2) of the images `[n, c, h, w]` that input 2 names to
/// `[regions, c, height, width]` (He et al. 2017, section 3).
#[derive(Clone, Debug)]
pub struct RoiAlign {
    /// What is made of the samples of a bin.
    pub mode: RoiMode,
    /// Sizes of the output.
    pub height: usize,
    /// Sizes of the output.
    pub width: usize,
    /// Samples of a bin along an axis; 0 takes one for each element under it.
    pub sampling: usize,
    /// Elements for one unit of the regions.
    pub scale: f32,
    /// Whether elements have their centres at halves; else regions are at least one element large.
    pub half_pixel: bool,
}

pub(super) fn read(attrs: &mut AttrReader<'_>, opset: i64) -> Result<Arc<dyn Operator>, OpError> {
    let size = |name: &str| -> Result<usize, OpError> {
        let v = attrs.int(name, 1)?;
        usize::try_from(v).ok().filter(|v| *v > 0).ok_or_else(|| bad(name, format!("is {v}, expected sizes")))
    };
    let modes = &[("half_pixel", true), ("output_half_pixel", false)];
    let sampling = attrs.int("sampling_ratio", 0)?;
    if !(0..=MAX_SAMPLING).contains(&sampling) {
        return Err(bad("sampling_ratio", format!("is {sampling}, expected 0 to {MAX_SAMPLING}")));
    }
    Ok(Arc::new(RoiAlign {
        mode: attrs.choice("mode", RoiMode::Average, &[("avg", RoiMode::Average), ("max", RoiMode::Max)])?,
        height: size("output_height")?,
        width: size("output_width")?,
        sampling: sampling as usize,
        scale: attrs.float("spatial_scale", 1.0)?,
        half_pixel: opset >= 16 && attrs.choice("coordinate_transformation_mode", true, modes)?,
    }))
}

#[derive(Clone, Copy, Debug)]
struct Dims {
    batch: usize,
    channels: usize,
    height: usize,
    width: usize,
    regions: usize,
}

impl RoiAlign {
    fn dims(&self, cx: &OpCx) -> Result<(Dims, Shape), OpError> {
        let &[batch, channels, height, width] = cx.shape(0)?.dims() else {
            return Err(cx.shape_error(0, "[batch, channels, height, width]"));
        };
        let &[regions, 4] = cx.shape(1)?.dims() else {
            return Err(cx.shape_error(1, "[regions, 4]"));
        };
        if cx.shape(2)?.dims() != [regions] {
            return Err(cx.shape_error(2, format!("[{regions}]")));
        }
        let shape = Shape::new([regions, channels, self.height, self.width])?;
        if shape.elements() > 0 && (batch == 0 || height == 0 || width == 0) {
            return Err(cx.shape_error(0, "elements to sample"));
        }
        Ok((Dims { batch, channels, height, width, regions }, shape))
    }
}

impl Operator for RoiAlign {
    fn name(&self) -> &'static str {
        "RoiAlign"
    }

    fn infer(&self, cx: &OpCx) -> Result<Vec<TensorInfo>, OpError> {
        cx.expect_counts(3..=3, 1..=1)?;
        let dtype = cx.dtype_of(0, FLOATS)?;
        cx.expect_dtype(1, dtype)?;
        cx.expect_dtype(2, DType::I64)?;
        Ok(vec![TensorInfo::new(dtype, self.dims(cx)?.1)])
    }

    fn cost(&self, cx: &OpCx) -> Cost {
        let samples = self.sampling.max(2);
        let elements = cx.outputs().first().map_or(0, TensorInfo::elements);
        Cost { flops: Cost::product(&[8, samples, samples, elements]), bytes: cx.bytes_touched() }
    }

    fn cpu(&self, cx: &OpCx) -> Result<NativeKernel, OpError> {
        let (op, dims) = (self.clone(), self.dims(cx)?.0);
        real_kernel_with("RoiAlign", cx, move |args| {
            let images: Result<Vec<usize>, KernelError> = args
                .read::<i64>(2)?
                .iter()
                .map(|i| {
                    usize::try_from(*i).ok().filter(|i| *i < dims.batch).ok_or_else(|| KernelError::Value {
                        what: format!("a region lies in image {i}, of which there are {}", dims.batch),
                    })
                })
                .collect();
            Ok(Arc::new(Run { op: op.clone(), dims, images: images? }))
        })
    }

    fn gpu(&self, cx: &OpCx, lower: &mut Lowering<'_>) -> Result<(), OpError> {
        let kernel = variants::RoiAlign { t: cx.dtype(0)? }.id()?;
        let (d, shape) = self.dims(cx)?;
        index32(cx.input(0)?.elements())?;
        let n = index32(shape.elements())?;
        let spec = [
            (spec::roi_align::HALF_PIXEL, u32::from(self.half_pixel)),
            (spec::roi_align::LARGEST, u32::from(self.mode == RoiMode::Max)),
        ];
        let params = params::RoiAlign {
            n,
            batch: d.batch as i32,
            channels: d.channels as u32,
            height: d.height as i32,
            width: d.width as i32,
            oh: self.height as u32,
            ow: self.width as u32,
            sampling: self.sampling as f32,
            scale: self.scale,
        };
        let args = [Operand::Input(0), Operand::Input(1), Operand::Input(2), Operand::Output(0)];
        lower.dispatch_1d(kernel, &spec, &args, &params, n as usize)
    }
}

struct Run {
    op: RoiAlign,
    dims: Dims,
    images: Vec<usize>,
}

/// A sample along one axis: two neighbouring elements and the weight of the second.
type Sample<T> = (usize, usize, T);

/// The samples of every bin of one axis of a region.
struct Bins<T> {
    /// Samples inside the image.
    inside: Vec<Vec<Sample<T>>>,
    /// Samples of every bin, those outside counted.
    count: T,
}

impl<T: Real> Bins<T> {
    /// The axis from `start` on, of `len` elements of the region cut into `bins`, on an image of `size`.
    fn new(start: T, len: T, bins: usize, sampling: usize, size: usize) -> Bins<T> {
        let c = |v: f64| T::from_f64(v);
        let bin = len / c(bins as f64);
        let count = if sampling > 0 { c(sampling as f64) } else { c(bin.to_f64().ceil()) };
        let step = bin / count;
        let limit = c(size as f64);
        let inside = (0..bins)
            .map(|b| {
                let first = start + c(b as f64) * bin;
                // Regions may be far larger than the image: only samples that can lie inside are visited.
                let low = ((c(-1.0) - first) / step).to_f64().floor() - 1.0;
                let high = ((limit - first) / step).to_f64().ceil() + 1.0;
                let (low, high) = if step > T::ZERO { (low, high) } else { (0.0, sampling as f64) };
                let range = low.max(0.0) as usize..high.min(count.to_f64()).max(0.0) as usize;
                range
                    .filter_map(|i| {
                        let at = first + (c(i as f64) + c(0.5)) * step;
                        if !(at >= c(-1.0) && at <= limit) {
                            return None;
                        }
                        let at = if at > T::ZERO { at } else { T::ZERO };
                        let low = at.to_f64() as usize;
                        Some(if low + 1 >= size {
                            (size - 1, size - 1, T::ZERO)
                        } else {
                            (low, low + 1, at - c(low as f64))
                        })
                    })
                    .collect()
            })
            .collect();
        Bins { inside, count }
    }
}

impl Run {
    fn region<T: Real>(&self, x: &[T], roi: &[T], y: &mut [T]) {
        let Dims { channels, height, width, .. } = self.dims;
        let RoiAlign { height: oh, width: ow, sampling, .. } = self.op;
        let (scale, one) = (T::from_f64(self.op.scale.into()), T::ONE);
        let offset = T::from_f64(if self.op.half_pixel { 0.5 } else { 0.0 });
        let edges: Vec<T> = roi.iter().map(|v| *v * scale - offset).collect();
        let len = |from: T, to: T| {
            let len = to - from;
            if self.op.half_pixel || len > one { len } else { one }
        };
        let rows = Bins::new(edges[1], len(edges[1], edges[3]), oh, sampling, height);
        let cols = Bins::new(edges[0], len(edges[0], edges[2]), ow, sampling, width);
        let all = rows.count * cols.count;
        let count = if all > one { all } else { one };
        for (c, y) in y.chunks_mut(oh * ow).enumerate().take(channels) {
            let x = &x[c * height * width..][..height * width];
            for (ph, y) in y.chunks_mut(ow).enumerate() {
                for (y, cols_in) in y.iter_mut().zip(&cols.inside) {
                    let rows_in = &rows.inside[ph];
                    *y = match self.op.mode {
                        RoiMode::Average => mean(x, width, rows_in, cols_in) / count,
                        RoiMode::Max => {
                            // A sample outside the image is a zero.
                            let found = T::from_f64((rows_in.len() * cols_in.len()) as f64);
                            let start = if found < all { Some(T::ZERO) } else { None };
                            largest(x, width, rows_in, cols_in, start).unwrap_or(T::ZERO)
                        }
                    };
                }
            }
        }
    }
}

fn mean<T: Real>(x: &[T], width: usize, rows: &[Sample<T>], cols: &[Sample<T>]) -> T {
    let mut sum = T::ZERO;
    for (r0, r1, v) in rows {
        let (top, low) = (&x[r0 * width..][..width], &x[r1 * width..][..width]);
        for (c0, c1, u) in cols {
            let (nu, nv) = (T::ONE - *u, T::ONE - *v);
            sum += nv * (nu * top[*c0] + *u * top[*c1]) + *v * (nu * low[*c0] + *u * low[*c1]);
        }
    }
    sum
}

fn largest<T: Real>(
    x: &[T],
    width: usize,
    rows: &[Sample<T>],
    cols: &[Sample<T>],
    start: Option<T>,
) -> Option<T> {
    let mut best = start;
    for (r0, r1, v) in rows {
        let (top, low) = (&x[r0 * width..][..width], &x[r1 * width..][..width]);
        for (c0, c1, u) in cols {
            let (nu, nv) = (T::ONE - *u, T::ONE - *v);
            for w in [nv * nu * top[*c0], nv * *u * top[*c1], *v * nu * low[*c0], *v * *u * low[*c1]] {
                best = Some(best.filter(|b| *b >= w).unwrap_or(w));
            }
        }
    }
    best
}

impl RealKernel for Run {
    fn run<T: Real>(&self, io: &mut RealIo<'_, T>) -> Result<(), KernelError> {
        let d = self.dims;
        let (image, region) = (d.channels * d.height * d.width, d.channels * self.op.height * self.op.width);
        let (y, inputs) = io.output(0, d.regions * region)?;
        let x = inputs.get(0, d.batch * image)?;
        let rois = inputs.get(1, d.regions * 4)?;
        crate::ops::real::check_len(2, self.images.len(), d.regions)?;
        if y.is_empty() {
            return Ok(());
        }
        // Without a number of samples, a region has as many as it has elements, of at most the whole image.
        let samples = match self.op.sampling {
            0 => image.max(region),
            n => region.saturating_mul(n).saturating_mul(n),
        };
        par::rows(y, region, d.regions.saturating_mul(samples).saturating_mul(4), |i, y| {
            self.region(&x[self.images[i] * image..][..image], &rois[i * 4..][..4], y);
        });
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::Tensor;
    use crate::ops::AttrValue;
    use crate::ops::test_util::{assert_near, attrs, facts, read_op, run_f32, tensor};

    fn op(mode: RoiMode, half_pixel: bool, sampling: usize) -> RoiAlign {
        RoiAlign { mode, height: 3, width: 2, sampling, scale: 0.5, half_pixel }
    }

    #[test]
    fn bins_of_a_slope_have_the_value_of_their_centre() {
        let x: Vec<f32> = (0..8 * 9).map(|i| (i / 9) as f32 + 10.0 * (i % 9) as f32).collect();
        let x = Tensor::new([1, 1, 8, 9], &x).unwrap();
        let roi = Tensor::new([1, 4], &[3.0f32, 3.0, 11.0, 9.0]).unwrap();
        let image = Tensor::from_i64s(&[0]);
        let inputs = [Some(x), Some(roi), Some(image)];
        for sampling in [0, 1, 2, 5] {
            let y = run_f32(&op(RoiMode::Average, true, sampling), &inputs).unwrap();
            // The region begins at (1, 1) and has bins of one row and two columns.
            let want = [21.5, 41.5, 22.5, 42.5, 23.5, 43.5];
            assert_near(&y, &want, 1e-5);
            let y = run_f32(&op(RoiMode::Average, false, sampling), &inputs).unwrap();
            assert_near(&y, &want.map(|v| v + 5.5), 1e-5);
        }
    }

    #[test]
    fn regions_may_be_anything() {
        let f = f32::MAX;
        let rois = [
            [0.0, 0.0, f, f],
            [-f, -f, f, f],
            [f32::NAN, 0.0, 1.0, 2.0],
            [4.0, 4.0, 1.0, 1.0],
            [-1e9, -1e9, 1e9, 1e9],
            [f32::NEG_INFINITY, 0.0, f32::INFINITY, 1.0],
        ];
        let x = tensor(&[2, 3, 5, 6], 1);
        let n = rois.len();
        let rois = Tensor::new([n, 4], rois.as_flattened()).unwrap();
        let images = Tensor::from_i64s(&[0, 1, 0, 1, 0, 1]);
        for half_pixel in [false, true] {
            for sampling in [0, 3] {
                let op = op(RoiMode::Average, half_pixel, sampling);
                let y = run_f32(&op, &[Some(x.clone()), Some(rois.clone()), Some(images.clone())]).unwrap();
                assert_eq!(y.shape().dims(), [n, 3, 3, 2]);
            }
        }
    }

    #[test]
    fn what_does_not_fit_is_an_error() {
        let op = read_op("RoiAlign", 10, &attrs(&[])).unwrap();
        let image = |i| Some(Tensor::from_i64s(i));
        let x = || Some(tensor(&[2, 3, 5, 6], 1));
        let cx = facts(&*op, &[x(), Some(tensor(&[1, 4], 1)), image(&[5])], 1).unwrap();
        let kernel = op.cpu(&cx).unwrap();
        let (rois, bad) = (tensor(&[1, 4], 1), Tensor::from_i64s(&[2]));
        let (x0, mut y) = (tensor(&[2, 3, 5, 6], 1), [0u32; 3]);
        let mut args = [
            crate::kernel::NativeArg::Read(x0.bytes()),
            crate::kernel::NativeArg::Read(rois.bytes()),
            crate::kernel::NativeArg::Read(bad.bytes()),
            crate::kernel::NativeArg::Write(bytemuck::cast_slice_mut(&mut y)),
        ];
        let result = kernel.call(&mut crate::kernel::NativeArgs::new(&mut args, &[]));
        assert!(matches!(result, Err(KernelError::Value { .. })), "{result:?}");
        assert!(facts(&*op, &[x(), Some(tensor(&[1, 5], 1)), image(&[0])], 1).is_err());
        assert!(facts(&*op, &[x(), Some(tensor(&[1, 4], 1)), image(&[0, 0])], 1).is_err());
        let map = attrs(&[("sampling_ratio", AttrValue::Int(-1))]);
        assert!(read_op("RoiAlign", 16, &map).is_err());
    }

    #[cfg(feature = "vulkan")]
    #[test]
    fn devices_compute_the_same() {
        use crate::ops::test_util::tensor_of;
        use crate::ops::testing::check_op;
        let rois = [
            [0.0, 0.0, 9.0, 7.0],
            [-4.0, -3.0, 30.0, 40.0],
            [3.0, 2.0, 3.5, 2.25],
            [5.0, 6.0, 1.0, 2.0],
            [-1e6, -1e6, 1e6, 1e6],
        ];
        let values = x_values();
        let images = Tensor::from_i64s(&[1, 0, 1, 0, 1]);
        for mode in [RoiMode::Average, RoiMode::Max] {
            for half_pixel in [false, true] {
                for sampling in [0, 2] {
                    let op = op(mode, half_pixel, sampling);
                    let x = Tensor::new([2, 3, 5, 6], &values).unwrap();
                    let r = Tensor::new([5, 4], rois.as_flattened()).unwrap();
                    check_op(&op, &[Some(x), Some(r), Some(images.clone())], 1e-4);
                    let x = tensor_of(&[2, 3, 5, 6], &values, half::f16::from_f32);
                    let r = tensor_of(&[4, 4], rois[..4].as_flattened(), half::f16::from_f32);
                    let images = Tensor::from_i64s(&[1, 0, 1, 0]);
                    check_op(&op, &[Some(x), Some(r), Some(images)], 4e-3);
                }
            }
        }
    }

    #[cfg(feature = "vulkan")]
    fn x_values() -> Vec<f32> {
        crate::ops::test_util::values(2 * 3 * 5 * 6, 1)
    }
}
