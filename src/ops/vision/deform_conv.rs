//! DeformConv: a convolution whose taps lie where offsets move them.

use std::sync::Arc;

use crate::graph::TensorInfo;
use crate::kernel::{KernelError, NativeKernel};
use crate::ops::linalg::product::{Mat, Threads, product};
use crate::ops::real::{FLOATS, Real, RealIo, RealKernel, real_kernel};
use crate::ops::window::bad;
use crate::ops::{AttrReader, Cost, Lowering, OpCx, OpError, Operator, WindowAttrs, WindowAxis, par};
use crate::shape::Shape;

/// Convolution of X `[n, c, h, w]` with W `[oc, c / groups, kh, kw]` whose taps are moved by input 2
/// `[n, offset groups * kh * kw * 2, oh, ow]` (rows, columns); optionally a bias `[oc]` and factors of the
/// taps `[n, offset groups * kh * kw, oh, ow]` (Dai et al. 2017; Zhu et al. 2019).
#[derive(Clone, Debug)]
pub struct DeformConv {
    /// Kernel, strides, dilations and padding.
    pub window: WindowAttrs,
    /// How many independent convolutions the channels are split into.
    pub groups: usize,
    /// Into how many parts with offsets of their own the input channels are split.
    pub offset_groups: usize,
}

pub(super) fn read(attrs: &mut AttrReader<'_>, _opset: i64) -> Result<Arc<dyn Operator>, OpError> {
    let count = |name: &str| -> Result<usize, OpError> {
        let v = attrs.int(name, 1)?;
        let fits = usize::try_from(v).ok().filter(|v| *v > 0);
        fits.ok_or_else(|| bad(name, format!("is {v}, expected at least 1")))
    };
    Ok(Arc::new(DeformConv {
        window: WindowAttrs {
            kernel: attrs.ints_opt("kernel_shape")?.unwrap_or_default(),
            strides: attrs.ints_opt("strides")?.unwrap_or_default(),
            dilations: attrs.ints_opt("dilations")?.unwrap_or_default(),
            pads: attrs.ints_opt("pads")?.unwrap_or_default(),
            ..WindowAttrs::default()
        },
        groups: count("group")?,
        offset_groups: count("offset_group")?,
    }))
}

/// A deformable convolution resolved.
#[derive(Clone, Copy, Debug)]
pub(super) struct DeformDims {
    pub(super) batch: usize,
    /// Input channels.
    pub(super) channels: usize,
    pub(super) groups: usize,
    /// Output channels of one group.
    pub(super) oc: usize,
    pub(super) offset_groups: usize,
    /// Height and width.
    pub(super) axes: [WindowAxis; 2],
}

impl DeformDims {
    pub(super) fn taps(&self) -> usize {
        self.axes[0].kernel * self.axes[1].kernel
    }

    pub(super) fn in_plane(&self) -> usize {
        self.axes[0].input * self.axes[1].input
    }

    pub(super) fn plane(&self) -> usize {
        self.axes[0].output * self.axes[1].output
    }

    /// Elements of one column of one group.
    pub(super) fn depth(&self) -> usize {
        self.channels / self.groups * self.taps()
    }
}

impl DeformConv {
    pub(super) fn dims(&self, cx: &OpCx) -> Result<(DeformDims, Shape), OpError> {
        let (x, w) = (cx.shape(0)?, cx.shape(1)?);
        let (groups, offset_groups) = (self.groups, self.offset_groups);
        let &[batch, channels, ref image @ ..] = x.dims() else {
            return Err(cx.shape_error(0, "[batch, channels, height, width]"));
        };
        if image.len() != 2 {
            return Err(OpError::unsupported(format!(
                "a deformable convolution over {} spatial dimensions",
                image.len()
            )));
        }
        let &[out_channels, ic, kh, kw] = w.dims() else {
            return Err(cx.shape_error(1, "4 dimensions, as input 0 has"));
        };
        if ic.checked_mul(groups) != Some(channels) || !out_channels.is_multiple_of(groups) {
            let expected =
                format!("{channels} channels of input 0 and the first dimension in {groups} groups");
            return Err(cx.shape_error(1, expected));
        }
        if !channels.is_multiple_of(offset_groups) {
            return Err(cx.shape_error(0, format!("channels in {offset_groups} groups of offsets")));
        }
        let kernel = self.window.kernel_sizes(2, Some(&[kh, kw]))?;
        let axes = self.window.axes(image, &kernel)?;
        let &[h, v] = axes.as_slice() else {
            return Err(cx.shape_error(0, "height and width"));
        };
        let taps = offset_groups.saturating_mul(kh * kw);
        let check = |i: usize, want: &[usize]| {
            let fits = !cx.has(i) || cx.shape(i)?.dims() == want;
            if fits { Ok(()) } else { Err(cx.shape_error(i, format!("{want:?}"))) }
        };
        check(2, &[batch, taps.saturating_mul(2), h.output, v.output])?;
        check(3, &[out_channels])?;
        check(4, &[batch, taps, h.output, v.output])?;
        let shape = Shape::new([batch, out_channels, h.output, v.output])?;
        let oc = out_channels / groups;
        Ok((DeformDims { batch, channels, groups, oc, offset_groups, axes: [h, v] }, shape))
    }
}

impl Operator for DeformConv {
    fn name(&self) -> &'static str {
        "DeformConv"
    }

    fn infer(&self, cx: &OpCx) -> Result<Vec<TensorInfo>, OpError> {
        cx.expect_counts(3..=5, 1..=1)?;
        let dtype = cx.dtype_of(0, FLOATS)?;
        cx.input(2)?;
        for i in (1..5).filter(|i| cx.has(*i)) {
            cx.expect_dtype(i, dtype)?;
        }
        Ok(vec![TensorInfo::new(dtype, self.dims(cx)?.1)])
    }

    fn cost(&self, cx: &OpCx) -> Cost {
        let elements = cx.outputs().first().map_or(0, TensorInfo::elements);
        let depth = self.dims(cx).map_or(0, |(d, _)| d.depth());
        Cost { flops: Cost::product(&[2, elements, depth]), bytes: cx.bytes_touched() }
    }

    fn cpu(&self, cx: &OpCx) -> Result<NativeKernel, OpError> {
        real_kernel("DeformConv", cx, Run { dims: self.dims(cx)?.0 })
    }

    fn gpu(&self, cx: &OpCx, lower: &mut Lowering<'_>) -> Result<(), OpError> {
        super::deform_device::deform(self, cx, lower)
    }
}

/// Output elements whose columns are unfolded at a time.
const BLOCK: usize = 256;

struct Run {
    dims: DeformDims,
}

/// Four elements around a place and their weights.
type Corners<T> = [(usize, T); 4];

impl Run {
    /// The corners of tap `tap` of all outputs from `first` on, given its offsets and factors.
    fn corners<T: Real>(
        &self,
        tap: usize,
        first: usize,
        offsets: [&[T]; 2],
        factors: Option<&[T]>,
    ) -> Vec<Corners<T>> {
        let [h, w] = &self.dims.axes;
        let at = |axis: &WindowAxis, o: usize, k: usize, offset: T| {
            let regular = axis.start(o) as f64 + (k * axis.dilation) as f64;
            (T::from_f64(regular) + offset).to_f64()
        };
        // The two elements of one axis around a place and their weights; none outside or for no number.
        let around = |place: f64, size: usize| -> [(usize, T); 2] {
            if !(place > -1.0 && place < size as f64) {
                return [(0, T::ZERO); 2];
            }
            let low = place.floor();
            let f = T::from_f64(place - low);
            let one = |i: f64, weight: T| {
                if i >= 0.0 && i < size as f64 { (i as usize, weight) } else { (0, T::ZERO) }
            };
            [one(low, T::ONE - f), one(low + 1.0, f)]
        };
        (0..offsets[0].len())
            .map(|i| {
                let o = first + i;
                let v = around(at(h, o / w.output, tap / w.kernel, offsets[0][i]), h.input);
                let u = around(at(w, o % w.output, tap % w.kernel, offsets[1][i]), w.input);
                let factor = factors.map_or(T::ONE, |f| f[i]);
                let one = |a: (usize, T), b: (usize, T)| (a.0 * w.input + b.0, a.1 * b.1 * factor);
                [one(v[0], u[0]), one(v[0], u[1]), one(v[1], u[0]), one(v[1], u[1])]
            })
            .collect()
    }
}

impl RealKernel for Run {
    fn run<T: Real>(&self, io: &mut RealIo<'_, T>) -> Result<(), KernelError> {
        let d = &self.dims;
        let (plane, in_plane, taps, depth) = (d.plane(), d.in_plane(), d.taps(), d.depth());
        let all_oc = d.groups * d.oc;
        let moved = d.offset_groups * taps;
        let (y, inputs) = io.output(0, d.batch * all_oc * plane)?;
        let x = inputs.get(0, d.batch * d.channels * in_plane)?;
        let weights = inputs.get(1, all_oc * depth)?;
        let offsets = inputs.get(2, d.batch * moved * 2 * plane)?;
        let bias = inputs.get_opt(3, all_oc)?;
        let factors = inputs.get_opt(4, d.batch * moved * plane)?;
        if y.is_empty() {
            return Ok(());
        }
        let mut rows = vec![T::ZERO; d.channels * taps * BLOCK.min(plane)];
        for (n, y) in y.chunks_mut(all_oc * plane).enumerate() {
            let x = &x[n * d.channels * in_plane..][..d.channels * in_plane];
            for (c, y) in y.chunks_mut(plane).enumerate() {
                y.fill(bias.map_or(T::ZERO, |b| b[c]));
            }
            for first in (0..plane).step_by(BLOCK) {
                let len = BLOCK.min(plane - first);
                let mut corners: Vec<Vec<Corners<T>>> = vec![Vec::new(); moved];
                par::each(&mut corners, 16 * moved * len, |k| {
                    let of = |row: usize| &offsets[(n * moved * 2 + row) * plane + first..][..len];
                    let factors = factors.map(|f| &f[(n * moved + k) * plane + first..][..len]);
                    self.corners(k % taps, first, [of(2 * k), of(2 * k + 1)], factors)
                });
                let rows = &mut rows[..d.channels * taps * len];
                // Four corners, and what they weigh.
                let work = 8 * rows.len();
                par::rows(rows, len, work, |row, dst| {
                    let c = row / taps;
                    let group = c / (d.channels / d.offset_groups);
                    let x = &x[c * in_plane..][..in_plane];
                    for (dst, corners) in dst.iter_mut().zip(&corners[group * taps + row % taps]) {
                        *dst = T::ZERO;
                        for (at, weight) in corners {
                            if *weight != T::ZERO {
                                *dst += *weight * x[*at];
                            }
                        }
                    }
                });
                for g in 0..d.groups {
                    let a = Mat::rows(&weights[g * d.oc * depth..][..d.oc * depth], depth);
                    let b = Mat::rows(&rows[g * depth * len..][..depth * len], len);
                    let c = &mut y[g * d.oc * plane + first..(g + 1) * d.oc * plane];
                    product([d.oc, len, depth], a, b, c, plane, true, Threads::All)?;
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::Tensor;
    use crate::ops::test_util::{assert_near, attrs, facts, read_op, run_f32, tensor, values};

    fn op(groups: usize, offset_groups: usize) -> DeformConv {
        let window = WindowAttrs { pads: vec![1, 0, 2, 1], strides: vec![2, 1], ..WindowAttrs::default() };
        DeformConv { window, groups, offset_groups }
    }

    #[test]
    fn taps_that_stay_are_a_convolution() {
        let conv = crate::ops::conv::Conv { window: op(1, 1).window, group: 2, ..Default::default() };
        let (x, w, b) = (tensor(&[2, 4, 7, 6], 1), tensor(&[6, 2, 3, 2], 2), tensor(&[6], 3));
        let want = run_f32(&conv, &[Some(x.clone()), Some(w.clone()), Some(b.clone())]).unwrap();
        let &[n, _, oh, ow] = want.shape().dims() else { panic!("{want:?}") };
        let zeros = |c: usize| Tensor::new([n, c, oh, ow], &vec![0.0f32; n * c * oh * ow]).unwrap();
        let y = run_f32(&op(2, 2), &[Some(x), Some(w), Some(zeros(24)), Some(b)]).unwrap();
        let want: Vec<f64> = want.to_f32s().unwrap().into_iter().map(f64::from).collect();
        assert_near(&y, &want, 1e-5);
    }

    #[test]
    fn whole_and_half_steps_move_taps() {
        let x = Tensor::new([1, 1, 2, 3], &[1.0f32, 2.0, 3.0, 4.0, 5.0, 6.0]).unwrap();
        let w = Tensor::new([1, 1, 1, 1], &[2.0f32]).unwrap();
        let rows = [1.0f32, 0.0, 0.5, -1.0, -0.5, 9.0];
        let cols = [0.0f32, 0.5, 0.0, 1.0, 0.0, f32::NAN];
        let offset = Tensor::new([1, 2, 2, 3], &[rows, cols].concat()).unwrap();
        let mask = Tensor::new([1, 1, 2, 3], &[1.0f32, 1.0, 1.0, 1.0, 0.5, 1.0]).unwrap();
        let op = DeformConv { window: WindowAttrs::default(), groups: 1, offset_groups: 1 };
        let y = run_f32(&op, &[Some(x), Some(w), Some(offset), None, Some(mask)]).unwrap();
        assert_near(&y, &[8.0, 5.0, 9.0, 4.0, 3.5, 0.0], 1e-6);
    }

    #[test]
    fn shapes_that_do_not_fit_are_errors() {
        let op = read_op("DeformConv", 19, &attrs(&[])).unwrap();
        let fails = |shapes: &[&[usize]]| {
            let inputs: Vec<Option<Tensor>> = shapes.iter().map(|s| Some(tensor(s, 1))).collect();
            facts(&*op, &inputs, 1).is_err()
        };
        assert!(!fails(&[&[1, 2, 4, 4], &[3, 2, 2, 2], &[1, 8, 3, 3], &[3], &[1, 4, 3, 3]]));
        assert!(fails(&[&[1, 2, 4, 4], &[3, 2, 2, 2], &[1, 8, 3, 3], &[2]]));
        assert!(fails(&[&[1, 2, 4, 4], &[3, 2, 2, 2], &[1, 4, 3, 3]]));
        assert!(fails(&[&[1, 2, 4, 4], &[3, 1, 2, 2], &[1, 8, 3, 3]]));
        assert!(fails(&[&[1, 2, 4, 4], &[3, 2, 2, 2]]));
        assert!(fails(&[&[1, 2, 4], &[3, 2, 2], &[1, 4, 3]]));
    }

    #[cfg(feature = "vulkan")]
    #[test]
    fn devices_compute_the_same() {
        use crate::ops::test_util::tensor_of;
        use crate::ops::testing::{Check, no_texels};
        for (groups, offset_groups, bias, mask) in [
            (1, 1, true, false),
            (2, 1, true, true),
            (2, 2, false, true),
            (1, 2, false, false),
            (4, 4, true, true),
        ] {
            let op = op(groups, offset_groups);
            let (x, w) = ([2, 4, 7, 6], [8, 4 / groups, 3, 2]);
            let axes = op.window.axes(&x[2..], &[3, 2]).unwrap();
            let taps = offset_groups * 6;
            let moved = [2, 2 * taps, axes[0].output, axes[1].output];
            let factors = [2, taps, axes[0].output, axes[1].output];
            let mut offsets: Vec<f32> = values(moved.iter().product(), 3).iter().map(|v| v * 4.0).collect();
            offsets[3] = f32::NAN;
            offsets[9] = f32::INFINITY;
            let inputs = [
                Some(tensor(&x, 1)),
                Some(tensor(&w, 2)),
                Some(Tensor::new(moved, &offsets).unwrap()),
                bias.then(|| tensor(&[8], 4)),
                mask.then(|| tensor(&factors, 5)),
            ];
            Check::new(&op, &inputs).constants(&[1, 3]).tolerance(1e-4).run();
            Check::new(&op, &inputs).pretend(no_texels).tolerance(1e-4).run();
            let half = |t: &Tensor| tensor_of(t.shape(), &t.to_f32s().unwrap(), half::f16::from_f32);
            let halves: Vec<Option<Tensor>> = inputs.iter().map(|t| t.as_ref().map(half)).collect();
            Check::new(&op, &halves).pretend(no_texels).tolerance(3e-2).optional().run();
        }
    }
}
