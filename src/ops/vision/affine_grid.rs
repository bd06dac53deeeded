//! AffineGrid: the places that an affine map gives the elements of an image.

use std::sync::Arc;

use crate::graph::TensorInfo;
use crate::kernel::table::{params, spec, variants};
use crate::kernel::{KernelError, NativeKernel};
use crate::ops::real::{FLOATS, Real, RealIo, RealKernel, real_kernel};
use crate::ops::word::index32;
use crate::ops::{AttrReader, Cost, Lowering, OpCx, OpError, Operand, Operator, par};
use crate::shape::Shape;
use crate::simd::wide;

/// Elements of one part of the work.
const PART: usize = 16 << 10;

/// Places `theta * (x, y, (z,) 1)` of the elements of images of the sizes of input 1, for GridSample;
/// theta is `[n, 2, 3]` or `[n, 3, 4]`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AffineGrid {
    /// Whether -1 and 1 are the centres of the outermost elements instead of their outer edges.
    pub align_corners: bool,
}

pub(super) fn read(attrs: &mut AttrReader<'_>, _opset: i64) -> Result<Arc<dyn Operator>, OpError> {
    Ok(Arc::new(AffineGrid { align_corners: attrs.flag("align_corners", false)? }))
}

/// Images, and depth, height and width of an image; a depth of one where there is none.
#[derive(Clone, Copy)]
struct Dims {
    batch: usize,
    rank: usize,
    sizes: [usize; 3],
}

impl AffineGrid {
    fn dims(&self, cx: &OpCx) -> Result<(Dims, Shape), OpError> {
        let size = Shape::from_i64(&cx.need_i64s(1)?)?;
        let (rank, sizes) = match *size.dims() {
            [_, _, h, w] => (2, [1, h, w]),
            [_, _, d, h, w] => (3, [d, h, w]),
            _ => {
                let problem = format!("{size}, expected 4 or 5 sizes of an image");
                return Err(OpError::Value { input: 1, problem });
            }
        };
        if cx.shape(0)?.dims() != [size[0], rank, rank + 1] {
            return Err(cx.shape_error(0, format!("[{}, {rank}, {}]", size[0], rank + 1)));
        }
        let shape: Vec<usize> = [size[0]].iter().chain(&size[2..]).chain(&[rank]).copied().collect();
        Ok((Dims { batch: size[0], rank, sizes }, Shape::new(shape)?))
    }

    /// Place of element `i` of `len`: `first + i * step`.
    fn line(&self, len: usize) -> [f64; 2] {
        let n = len as f64;
        match self.align_corners {
            // One element lies in the middle.
            true if len == 1 => [0.0, 0.0],
            true => [-1.0, 2.0 / (n - 1.0)],
            false => [-1.0 + 1.0 / n, 2.0 / n],
        }
    }
}

impl Operator for AffineGrid {
    fn name(&self) -> &'static str {
        "AffineGrid"
    }

    fn value_inputs(&self) -> &'static [usize] {
        &[1]
    }

    fn infer(&self, cx: &OpCx) -> Result<Vec<TensorInfo>, OpError> {
        cx.expect_counts(2..=2, 1..=1)?;
        let dtype = cx.dtype_of(0, FLOATS)?;
        Ok(vec![TensorInfo::new(dtype, self.dims(cx)?.1)])
    }

    fn cost(&self, cx: &OpCx) -> Cost {
        let elements = cx.outputs().iter().map(|o| o.elements() as u64).sum::<u64>();
        Cost { flops: 8 * elements, bytes: cx.bytes_touched() }
    }

    fn cpu(&self, cx: &OpCx) -> Result<NativeKernel, OpError> {
        real_kernel("AffineGrid", cx, Run { op: *self, dims: self.dims(cx)?.0 })
    }

    fn gpu(&self, cx: &OpCx, lower: &mut Lowering<'_>) -> Result<(), OpError> {
        let kernel = variants::AffineGrid { t: cx.dtype(0)? }.id()?;
        let (dims, shape) = self.dims(cx)?;
        if index32(shape.elements())? == 0 {
            return Ok(());
        }
        let n = shape.elements() / dims.rank;
        let [d, h, w] = dims.sizes.map(|n| self.line(n).map(|v| v as f32));
        let params = params::AffineGrid {
            n: n as u32,
            d: dims.sizes[0] as u32,
            h: dims.sizes[1] as u32,
            w: dims.sizes[2] as u32,
            d_first: d[0],
            d_step: d[1],
            h_first: h[0],
            h_step: h[1],
            w_first: w[0],
            w_step: w[1],
        };
        let args = [Operand::Input(0), Operand::Output(0)];
        lower.dispatch_1d(kernel, &[(spec::affine_grid::RANK, dims.rank as u32)], &args, &params, n)
    }
}

struct Run {
    op: AffineGrid,
    dims: Dims,
}

impl RealKernel for Run {
    fn run<T: Real>(&self, io: &mut RealIo<'_, T>) -> Result<(), KernelError> {
        let Dims { batch, rank, sizes: [d, h, w] } = self.dims;
        let (y, inputs) = io.output(0, batch * d * h * w * rank)?;
        let theta = inputs.get(0, batch * rank * (rank + 1))?;
        if y.is_empty() {
            return Ok(());
        }
        let places = |len: usize| -> Vec<T> {
            let [first, step] = self.op.line(len);
            (0..len).map(|i| T::from_f64(first + i as f64 * step)).collect()
        };
        let [at_d, at_h, at_w] = [d, h, w].map(places);
        let many = PART / (w * rank) + 1;
        par::share(y.chunks_mut(many * w * rank).enumerate(), |(part, y)| {
            for (line, y) in y.chunks_mut(w * rank).enumerate() {
                let line = part * many + line;
                let (y_at, z_at) = (at_h[line % h], at_d[line / h % d]);
                let theta = &theta[line / h / d * rank * (rank + 1)..][..rank * (rank + 1)];
                wide(
                    #[inline(always)]
                    || match rank {
                        2 => {
                            let each = y.as_chunks_mut::<2>().0.iter_mut().zip(&at_w);
                            let [a, b] =
                                [0, 1].map(|r| (theta[3 * r], theta[3 * r + 1] * y_at, theta[3 * r + 2]));
                            each.for_each(|(to, x)| {
                                *to = [a, b].map(
                                    #[inline(always)]
                                    |(t, y, c)| t * *x + y + c,
                                );
                            });
                        }
                        _ => {
                            let each = y.as_chunks_mut::<3>().0.iter_mut().zip(&at_w);
                            let rows = [0, 1, 2].map(|r| {
                                let row = &theta[4 * r..][..4];
                                (row[0], row[1] * y_at, row[2] * z_at, row[3])
                            });
                            each.for_each(|(to, x)| {
                                *to = rows.map(
                                    #[inline(always)]
                                    |(t, y, z, c)| t * *x + y + z + c,
                                );
                            });
                        }
                    },
                );
            }
        });
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::Tensor;
    use crate::ops::test_util::{assert_near, facts, run_f32, tensor};

    #[test]
    fn the_identity_gives_the_places_of_the_elements() {
        let theta = Tensor::new([1, 2, 3], &[1.0f32, 0.0, 0.0, 0.0, 1.0, 0.5]).unwrap();
        let size = Tensor::from_i64s(&[1, 1, 2, 3]);
        let run = |align_corners| {
            run_f32(&AffineGrid { align_corners }, &[Some(theta.clone()), Some(size.clone())]).unwrap()
        };
        let x = 2.0 / 3.0;
        let want = [-x, 0.0, 0.0, 0.0, x, 0.0, -x, 1.0, 0.0, 1.0, x, 1.0];
        assert_near(&run(false), &want, 1e-6);
        let want = [-1.0, -0.5, 0.0, -0.5, 1.0, -0.5, -1.0, 1.5, 0.0, 1.5, 1.0, 1.5];
        assert_near(&run(true), &want, 1e-6);
    }

    #[test]
    fn sizes_that_do_not_fit_are_errors() {
        let fails = |theta: &[usize], size: &[i64]| {
            let inputs = [Some(tensor(theta, 1)), Some(Tensor::from_i64s(size))];
            facts(&AffineGrid::default(), &inputs, 1).is_err()
        };
        assert!(!fails(&[2, 3, 4], &[2, 1, 5, 6, 7]));
        assert!(fails(&[2, 2, 3], &[2, 1, 5, 6, 7]));
        assert!(fails(&[1, 2, 3], &[2, 1, 5, 6]));
        assert!(fails(&[1, 2, 3], &[1, 1, -5, 6]));
        assert!(fails(&[1, 2, 3], &[1, 1, 6]));
    }

    #[cfg(feature = "vulkan")]
    #[test]
    fn devices_compute_the_same() {
        use crate::ops::test_util::{tensor_of, values};
        use crate::ops::testing::check_op;
        for (theta, size) in [
            ([2usize, 2, 3], vec![2i64, 1, 5, 7]),
            ([3, 3, 4], vec![3, 2, 2, 1, 9]),
            ([1, 2, 3], vec![1, 1, 0, 3]),
        ] {
            for align_corners in [false, true] {
                let op = AffineGrid { align_corners };
                let size = Some(Tensor::from_i64s(&size));
                check_op(&op, &[Some(tensor(&theta, 1)), size.clone()], 1e-5);
                let halves = tensor_of(&theta, &values(theta.iter().product(), 1), half::f16::from_f32);
                check_op(&op, &[Some(halves), size], 2e-3);
            }
        }
    }
}
