//! Col2Im: images summed up from columns of their blocks.

use std::sync::Arc;

use crate::dtype::DType;
use crate::graph::TensorInfo;
use crate::kernel::table::{params, variants};
use crate::kernel::{KernelError, NativeKernel};
use crate::ops::pointwise::number::{Number, with_number};
use crate::ops::real::{Real, RealIo, RealKernel, check_len, real_kernel};
use crate::ops::window::{AxisNumbers, three};
use crate::ops::word::index32;
use crate::ops::{
    AttrReader, Cost, Lowering, OpCx, OpError, Operand, Operator, WindowAttrs, WindowAxis, par,
};
use crate::shape::Shape;

/// Adds the blocks in the columns of `[n, channels * elements of a block, blocks]` to images of the sizes of
/// input 1; input 2 has the sizes of a block.
#[derive(Clone, Debug, Default)]
pub struct Col2Im {
    /// Strides, dilations and padding.
    pub window: WindowAttrs,
}

pub(super) fn read(attrs: &mut AttrReader<'_>, _opset: i64) -> Result<Arc<dyn Operator>, OpError> {
    Ok(Arc::new(Col2Im {
        window: WindowAttrs {
            strides: attrs.ints_opt("strides")?.unwrap_or_default(),
            dilations: attrs.ints_opt("dilations")?.unwrap_or_default(),
            pads: attrs.ints_opt("pads")?.unwrap_or_default(),
            ..WindowAttrs::default()
        },
    }))
}

/// Images and their axes: `input` is an image's size, `output` the number of blocks.
#[derive(Clone, Debug)]
struct Dims {
    planes: usize,
    axes: Vec<WindowAxis>,
}

impl Dims {
    fn plane(&self) -> usize {
        self.axes.iter().map(|a| a.input).product()
    }

    fn taps(&self) -> usize {
        self.axes.iter().map(|a| a.kernel).product()
    }

    fn blocks(&self) -> usize {
        self.axes.iter().map(|a| a.output).product()
    }

    fn columns(&self) -> usize {
        self.planes * self.taps() * self.blocks()
    }
}

impl Col2Im {
    fn dims(&self, cx: &OpCx) -> Result<(Dims, Shape), OpError> {
        let sizes = |i: usize| -> Result<Vec<usize>, OpError> {
            let all = cx.need_i64s(i)?;
            all.iter()
                .map(|v| usize::try_from(*v).ok().filter(|v| *v > 0))
                .collect::<Option<_>>()
                .ok_or_else(|| OpError::Value { input: i, problem: format!("{all:?}, expected sizes") })
        };
        let (image, block) = (sizes(1)?, sizes(2)?);
        if image.is_empty() || block.len() != image.len() {
            let problem = format!("{} sizes of a block, of an image {}", block.len(), image.len());
            return Err(OpError::Value { input: 2, problem });
        }
        let &[batch, depth, blocks] = cx.shape(0)?.dims() else {
            return Err(cx.shape_error(0, "[batch, channels * elements of a block, blocks]"));
        };
        let axes = self.window.axes(&image, &block)?;
        let taps = block.iter().try_fold(1usize, |n, k| n.checked_mul(*k)).unwrap_or(usize::MAX);
        let want = axes.iter().try_fold(1usize, |n, a| n.checked_mul(a.output)).unwrap_or(usize::MAX);
        if blocks != want || !depth.is_multiple_of(taps) {
            return Err(cx.shape_error(0, format!("a multiple of {taps} elements in each of {want} blocks")));
        }
        let channels = depth / taps;
        let shape: Vec<usize> = [batch, channels].iter().chain(&image).copied().collect();
        Ok((Dims { planes: batch * channels, axes }, Shape::new(shape)?))
    }
}

impl Operator for Col2Im {
    fn name(&self) -> &'static str {
        "Col2Im"
    }

    fn value_inputs(&self) -> &'static [usize] {
        &[1, 2]
    }

    fn infer(&self, cx: &OpCx) -> Result<Vec<TensorInfo>, OpError> {
        cx.expect_counts(3..=3, 1..=1)?;
        let dtype = cx.dtype(0)?;
        if dtype == DType::Bool {
            return Err(OpError::unsupported("sums of bool"));
        }
        Ok(vec![TensorInfo::new(dtype, self.dims(cx)?.1)])
    }

    fn cost(&self, cx: &OpCx) -> Cost {
        Cost { flops: cx.input_opt(0).map_or(0, |x| x.elements() as u64), bytes: cx.bytes_touched() }
    }

    fn cpu(&self, cx: &OpCx) -> Result<NativeKernel, OpError> {
        let dims = self.dims(cx)?.0;
        let dtype = cx.dtype(0)?;
        if dtype.is_float() {
            return real_kernel("Col2Im", cx, dims);
        }
        with_number!(dtype, T => Ok(NativeKernel::new("Col2Im", move |args| {
            let (x, y) = (args.read::<T>(0)?, args.take_write::<T>(3)?);
            check_len(0, x.len(), dims.columns())?;
            check_len(3, y.len(), dims.planes * dims.plane())?;
            dims.add_all(x, y, <T as Number>::ZERO, Number::add);
            Ok(())
        })), else Err(OpError::unsupported("sums of bool")))
    }

    fn gpu(&self, cx: &OpCx, lower: &mut Lowering<'_>) -> Result<(), OpError> {
        // Sums of integers wrap alike, signed or not.
        let t = if cx.dtype(0)? == DType::U32 { DType::I32 } else { cx.dtype(0)? };
        let kernel = variants::Col2im { t }.id()?;
        let (dims, shape) = self.dims(cx)?;
        let axes = three("a device kernel for Col2Im", &dims.axes)?;
        index32(cx.input(0)?.elements())?;
        if axes.iter().any(|a| a.input as i64 + a.pads[0].abs() > i32::MAX.into()) {
            return Err(OpError::unsupported("a device kernel for so much padding"));
        }
        let n = index32(shape.elements())?;
        if n == 0 {
            return Ok(());
        }
        let numbers = AxisNumbers::new(axes)?;
        let params = params::Col2im { n, window: numbers.into(), output: numbers.into() };
        lower.dispatch_1d(kernel, &[], &[Operand::Input(0), Operand::Output(0)], &params, n as usize)
    }
}

impl Dims {
    fn add_all<T: Copy + Send + Sync>(
        &self,
        x: &[T],
        y: &mut [T],
        zero: T,
        add: impl Fn(T, T) -> T + Send + Sync,
    ) {
        let (plane, taps, blocks) = (self.plane(), self.taps(), self.blocks());
        let Some((w, outer)) = self.axes.split_last() else { return };
        if y.is_empty() || x.is_empty() {
            y.fill(zero);
            return;
        }
        let work = x.len() + y.len();
        par::rows(y, plane, work, |i, y| {
            let x = &x[i * taps * blocks..][..taps * blocks];
            y.fill(zero);
            for (tap, x) in x.chunks(blocks).enumerate() {
                let kw = tap % w.kernel;
                let inside = w.valid(kw);
                let Some(first) = w.at(inside.start, kw).filter(|_| !inside.is_empty()) else { continue };
                for (line, x) in x.chunks(w.output).enumerate() {
                    // The row of the image under this row of blocks, unless it is padding.
                    let (mut left, mut k) = (line, tap / w.kernel);
                    let (mut row, mut step) = (Some(0), w.input);
                    for axis in outer.iter().rev() {
                        let at = axis.at(left % axis.output, k % axis.kernel);
                        row = row.zip(at).map(|(row, at)| row + at * step);
                        step *= axis.input;
                        left /= axis.output;
                        k /= axis.kernel;
                    }
                    let Some(row) = row else { continue };
                    let y = y[row + first..].iter_mut().step_by(w.stride);
                    y.zip(&x[inside.clone()]).for_each(|(y, x)| *y = add(*y, *x));
                }
            }
        });
    }
}

impl RealKernel for Dims {
    fn run<T: Real>(&self, io: &mut RealIo<'_, T>) -> Result<(), KernelError> {
        let (y, inputs) = io.output(0, self.planes * self.plane())?;
        self.add_all(inputs.get(0, self.columns())?, y, T::ZERO, |a, b| a + b);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::Tensor;
    use crate::ops::test_util::{assert_near, facts, run_cpu, run_f32, tensor};

    fn sizes(v: &[i64]) -> Option<Tensor> {
        Some(Tensor::from_i64s(v))
    }

    fn op(strides: &[i64], dilations: &[i64], pads: &[i64]) -> Col2Im {
        Col2Im {
            window: WindowAttrs {
                strides: strides.to_vec(),
                dilations: dilations.to_vec(),
                pads: pads.to_vec(),
                ..WindowAttrs::default()
            },
        }
    }

    /// Every element of the columns added where its tap of its block lies.
    fn naive(x: &[f32], op: &Col2Im, image: &[usize], block: &[usize], planes: usize) -> Vec<f64> {
        let axes = op.window.axes(image, block).unwrap();
        let (plane, taps): (usize, usize) = (image.iter().product(), block.iter().product());
        let blocks: usize = axes.iter().map(|a| a.output).product();
        let mut y = vec![0.0; planes * plane];
        for (i, v) in x.iter().enumerate() {
            let (mut b, mut k, p) = (i % blocks, i / blocks % taps, i / blocks / taps);
            let (mut at, mut step, mut inside) = (0, 1, true);
            for a in axes.iter().rev() {
                let place = (b % a.output * a.stride + k % a.kernel * a.dilation) as i64 - a.pads[0];
                inside &= (0..a.input as i64).contains(&place);
                at += place * step;
                step *= a.input as i64;
                b /= a.output;
                k /= a.kernel;
            }
            if inside {
                y[p * plane + at as usize] += f64::from(*v);
            }
        }
        y
    }

    #[test]
    fn blocks_add_up_to_images() {
        let cases: &[(&[usize], &[usize], Col2Im)] = &[
            (&[5, 5], &[1, 5], op(&[], &[], &[])),
            (&[5, 6], &[2, 3], op(&[2, 1], &[1, 2], &[0, 1, 2, 3])),
            (&[7], &[3], op(&[2], &[2], &[1, 1])),
            (&[4, 5, 6], &[1, 2, 3], op(&[1, 2, 2], &[], &[0, 1, 0, 0, 1, 1])),
            (&[2, 3, 4, 3], &[2, 1, 2, 2], op(&[1, 1, 2, 1], &[], &[])),
        ];
        for (image, block, op) in cases {
            let axes = op.window.axes(image, block).unwrap();
            let blocks: usize = axes.iter().map(|a| a.output).product();
            let x = tensor(&[2, 3 * block.iter().product::<usize>(), blocks], 4);
            let signed = |v: &[usize]| sizes(&v.iter().map(|v| *v as i64).collect::<Vec<_>>());
            let inputs = [Some(x.clone()), signed(image), signed(block)];
            let want = naive(&x.to_f32s().unwrap(), op, image, block, 6);
            assert_near(&run_f32(op, &inputs).unwrap(), &want, 1e-5);
            #[cfg(feature = "vulkan")]
            {
                use crate::ops::test_util::tensor_of;
                use crate::ops::testing::Check;
                Check::new(op, &inputs).tolerance(1e-5).optional().run();
                let values = x.to_f32s().unwrap();
                let halves = tensor_of(x.shape(), &values, half::f16::from_f32);
                Check::new(op, &[Some(halves), inputs[1].clone(), inputs[2].clone()])
                    .tolerance(4e-3)
                    .optional()
                    .run();
                let ints = tensor_of(x.shape(), &values, |v| (v * 1e9) as i32);
                Check::new(op, &[Some(ints), inputs[1].clone(), inputs[2].clone()]).optional().run();
            }
        }
    }

    #[test]
    fn integers_wrap() {
        let x = Tensor::new([1, 2, 1], &[200u8, 100]).unwrap();
        let y = run_cpu(&op(&[], &[], &[]), &[Some(x), sizes(&[2]), sizes(&[2])], 1).unwrap();
        assert_eq!(y[0].as_slice::<u8>().unwrap(), [200, 100]);
        let x = Tensor::new([1, 2, 2], &[200u8, 100, 100, 7]).unwrap();
        let y = run_cpu(&op(&[], &[], &[]), &[Some(x), sizes(&[3]), sizes(&[2])], 1).unwrap();
        assert_eq!(y[0].as_slice::<u8>().unwrap(), [200, 200, 7]);
    }

    #[test]
    fn columns_that_do_not_fit_are_errors() {
        let fails = |x: &[usize], image: &[i64], block: &[i64]| {
            facts(&op(&[], &[], &[]), &[Some(tensor(x, 1)), sizes(image), sizes(block)], 1).is_err()
        };
        assert!(!fails(&[1, 4, 4], &[3, 3], &[2, 2]));
        assert!(fails(&[1, 4, 5], &[3, 3], &[2, 2]));
        assert!(fails(&[1, 3, 4], &[3, 3], &[2, 2]));
        assert!(fails(&[1, 4, 4], &[3, 3], &[2]));
        assert!(fails(&[1, 4, 4], &[3, -3], &[2, 2]));
        assert!(fails(&[4, 4], &[3, 3], &[2, 2]));
    }
}
