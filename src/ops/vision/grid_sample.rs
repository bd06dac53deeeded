//! GridSample: an image read at the places that a grid names.

use std::sync::Arc;

use super::place::{Outside, SampleMode, SampledAxis, Taps};
use super::tiles;
use crate::dtype::DType;
use crate::graph::TensorInfo;
use crate::kernel::{KernelError, NativeArgs, NativeKernel};
use crate::ops::pointwise::number::{f64s, write_f64s};
use crate::ops::real::{FLOATS, Real, RealIo, RealKernel, check_len, real_kernel};
use crate::ops::{AttrReader, Cost, Lowering, OpCx, OpError, Operator, par};
use crate::shape::Shape;

/// Samples X `[n, c, (d,) h, w]` at the places of a grid `[n, (od,) oh, ow, 2 or 3]`, whose last dimension
/// names x, y (and z) from -1 to 1.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GridSample {
    /// What is made of the elements around a place.
    pub mode: SampleMode,
    /// What lies outside the image.
    pub outside: Outside,
    /// Whether -1 and 1 are the centres of the outermost elements instead of their outer edges.
    pub align_corners: bool,
}

pub(super) fn read(attrs: &mut AttrReader<'_>, _opset: i64) -> Result<Arc<dyn Operator>, OpError> {
    Ok(Arc::new(GridSample {
        mode: attrs.choice(
            "mode",
            SampleMode::Linear,
            &[
                ("linear", SampleMode::Linear),
                ("bilinear", SampleMode::Linear),
                ("nearest", SampleMode::Nearest),
                ("cubic", SampleMode::Cubic),
                ("bicubic", SampleMode::Cubic),
            ],
        )?,
        outside: attrs.choice(
            "padding_mode",
            Outside::Zeros,
            &[("zeros", Outside::Zeros), ("border", Outside::Border), ("reflection", Outside::Reflection)],
        )?,
        align_corners: attrs.flag("align_corners", false)?,
    }))
}

/// Sizes of one sampling; a depth of one element where there is none.
#[derive(Clone, Copy, Debug)]
pub(super) struct GridDims {
    /// Images.
    pub(super) batch: usize,
    /// Channels.
    pub(super) channels: usize,
    /// Numbers of a place.
    pub(super) rank: usize,
    /// Depth, height and width of the input.
    pub(super) input: [usize; 3],
    /// Elements of one channel of the output.
    pub(super) plane: usize,
}

impl GridDims {
    /// Elements of all images.
    fn inputs(&self) -> usize {
        self.batch * self.channels * self.input.iter().product::<usize>()
    }

    /// Elements of the output.
    fn outputs(&self) -> usize {
        self.batch * self.channels * self.plane
    }
}

impl GridSample {
    pub(super) fn dims(&self, cx: &OpCx) -> Result<(GridDims, Shape), OpError> {
        let (x, grid) = (cx.shape(0)?, cx.shape(1)?);
        let (rank, input) = match *x.dims() {
            [_, _, h, w] => (2, [1, h, w]),
            [_, _, d, h, w] => (3, [d, h, w]),
            _ => return Err(cx.shape_error(0, "[batch, channels, (depth,) height, width]")),
        };
        let spatial = grid.get(1..=rank).unwrap_or(&[]);
        if grid.rank() != rank + 2 || grid[0] != x[0] || grid[rank + 1] != rank {
            return Err(cx.shape_error(1, format!("[{}, {rank} sizes of the output, {rank}]", x[0])));
        }
        let plane = spatial.iter().product();
        if plane > 0 && input.contains(&0) {
            return Err(cx.shape_error(0, "elements to sample"));
        }
        let shape: Vec<usize> = x[..2].iter().chain(spatial).copied().collect();
        Ok((GridDims { batch: x[0], channels: x[1], rank, input, plane }, Shape::new(shape)?))
    }
}

impl Operator for GridSample {
    fn name(&self) -> &'static str {
        "GridSample"
    }

    fn infer(&self, cx: &OpCx) -> Result<Vec<TensorInfo>, OpError> {
        cx.expect_counts(2..=2, 1..=1)?;
        cx.dtype_of(1, FLOATS)?;
        Ok(vec![TensorInfo::new(cx.dtype(0)?, self.dims(cx)?.1)])
    }

    fn cost(&self, cx: &OpCx) -> Cost {
        let rank = cx.shape(0).map_or(2, |x| x.rank().saturating_sub(2)) as u32;
        let taps = 2 * (self.mode.taps() as u64).saturating_pow(rank);
        let flops = taps * cx.outputs().iter().map(|o| o.elements() as u64).sum::<u64>();
        Cost { flops, bytes: cx.bytes_touched() }
    }

    fn cpu(&self, cx: &OpCx) -> Result<NativeKernel, OpError> {
        let run = Run { op: *self, dims: self.dims(cx)?.0 };
        let dtype = cx.dtype(0)?;
        if dtype.is_float() {
            return real_kernel("GridSample", cx, run);
        }
        Ok(numbers(run, dtype, cx.dtype(1)?))
    }

    fn gpu(&self, cx: &OpCx, lower: &mut Lowering<'_>) -> Result<(), OpError> {
        super::grid_device::sample(self, cx, lower)
    }
}

/// Output elements whose places are resolved at a time.
const BLOCK: usize = 512;

#[derive(Clone, Copy)]
struct Run {
    op: GridSample,
    dims: GridDims,
}

/// The taps of an output element along depth, height and width.
type Place<T> = [Taps<T>; 3];

impl Run {
    /// Calls `f(image, first element, places, parts of the channels)` for every block of the output.
    fn blocks<T: Real, Y: Send>(
        &self,
        grid: &[T],
        y: &mut [Y],
        f: impl Fn(usize, &[Place<T>], &mut [&mut [Y]]) + Send + Sync,
    ) {
        let GridDims { channels, rank, input, plane, .. } = self.dims;
        let axes = input.map(|size| SampledAxis {
            size,
            mode: self.op.mode,
            outside: self.op.outside,
            align_corners: self.op.align_corners,
        });
        let all = Taps { index: [0; 4], weight: [T::ONE, T::ZERO, T::ZERO, T::ZERO] };
        par::share(tiles(y, channels, plane, BLOCK).into_iter(), |(n, first, mut parts)| {
            let len = parts.first().map_or(0, |p| p.len());
            let named = grid[(n * plane + first) * rank..][..len * rank].chunks(rank);
            let places: Vec<Place<T>> = named
                .map(|g| {
                    let d = g.get(2).map_or(all, |z| axes[0].taps(*z));
                    [d, axes[1].taps(g[1]), axes[2].taps(g[0])]
                })
                .collect();
            f(n, &places, &mut parts);
        });
    }

    /// Taps along depth, height and width.
    fn counts(&self) -> [usize; 3] {
        let taps = self.op.mode.taps();
        [if self.dims.rank == 3 { taps } else { 1 }, taps, taps]
    }

    fn sample<T: Real>(&self, x: &[T], grid: &[T], y: &mut [T]) {
        let [_, h, w] = self.dims.input;
        let in_plane: usize = self.dims.input.iter().product();
        let channels = self.dims.channels;
        let [nd, nh, nw] = self.counts();
        let taps = nd * nh * nw;
        self.blocks(grid, y, |n, places, parts| {
            let mut flat: Vec<(usize, T)> = Vec::with_capacity(places.len() * taps);
            for [d, v, u] in places {
                for kd in 0..nd {
                    for kv in 0..nh {
                        for ku in 0..nw {
                            let (id, iv, iu) = (d.index[kd], v.index[kv], u.index[ku]);
                            // A zero outside the image: any element without weight.
                            flat.push(if id < 0 || iv < 0 || iu < 0 {
                                (0, T::ZERO)
                            } else {
                                let at = (id as usize * h + iv as usize) * w + iu as usize;
                                (at, d.weight[kd] * v.weight[kv] * u.weight[ku])
                            });
                        }
                    }
                }
            }
            for (c, part) in parts.iter_mut().enumerate() {
                let x = &x[(n * channels + c) * in_plane..][..in_plane];
                for (y, taps) in part.iter_mut().zip(flat.chunks(taps)) {
                    *y = T::ZERO;
                    for (at, weight) in taps {
                        // No product with what lies elsewhere, which may be infinite.
                        if *weight != T::ZERO {
                            *y += *weight * x[*at];
                        }
                    }
                }
            }
        });
    }

    /// Reads the arguments and writes the nearest elements, whatever numbers their bytes are.
    fn pick_bytes<E: bytemuck::Pod + Default + Send + Sync>(
        &self,
        args: &mut NativeArgs<'_, '_>,
        grid: Vec<f64>,
        grid_dtype: DType,
    ) -> Result<(), KernelError> {
        let (x, y) = (args.read::<E>(0)?, args.take_write::<E>(2)?);
        check_len(0, x.len(), self.dims.inputs())?;
        check_len(2, y.len(), self.dims.outputs())?;
        // Single precision where the grid has no more: places half between two elements round alike.
        if grid_dtype == DType::F64 {
            self.pick(x, &grid, y);
        } else {
            let grid: Vec<f32> = grid.into_iter().map(|g| g as f32).collect();
            self.pick(x, &grid, y);
        }
        Ok(())
    }

    /// The nearest elements, untouched.
    fn pick<T: Real, E: Copy + Default + Send + Sync>(&self, x: &[E], grid: &[T], y: &mut [E]) {
        let [_, h, w] = self.dims.input;
        let in_plane: usize = self.dims.input.iter().product();
        let channels = self.dims.channels;
        self.blocks(grid, y, |n, places, parts| {
            for (c, part) in parts.iter_mut().enumerate() {
                let x = &x[(n * channels + c) * in_plane..][..in_plane];
                for (y, place) in part.iter_mut().zip(places) {
                    let [d, v, u] = place.map(|t| t.index[0]);
                    *y = if d < 0 || v < 0 || u < 0 {
                        E::default()
                    } else {
                        x[(d as usize * h + v as usize) * w + u as usize]
                    };
                }
            }
        });
    }
}

impl RealKernel for Run {
    fn run<T: Real>(&self, io: &mut RealIo<'_, T>) -> Result<(), KernelError> {
        let d = &self.dims;
        let (y, inputs) = io.output(0, d.outputs())?;
        let x = inputs.get(0, d.inputs())?;
        let grid = inputs.get(1, d.batch * d.plane * d.rank)?;
        self.sample(x, grid, y);
        Ok(())
    }
}

/// The native function for elements that are no floats: nearest ones as they are, others computed as `f64`.
fn numbers(run: Run, dtype: DType, grid_dtype: DType) -> NativeKernel {
    NativeKernel::new("GridSample", move |args| {
        let (d, grid) = (&run.dims, f64s(args, 1, grid_dtype)?);
        check_len(1, grid.len(), d.batch * d.plane * d.rank)?;
        match (run.op.mode, dtype.bytes()) {
            (SampleMode::Nearest, 1) => run.pick_bytes::<u8>(args, grid, grid_dtype),
            (SampleMode::Nearest, 2) => run.pick_bytes::<u16>(args, grid, grid_dtype),
            (SampleMode::Nearest, 4) => run.pick_bytes::<u32>(args, grid, grid_dtype),
            (SampleMode::Nearest, _) => run.pick_bytes::<u64>(args, grid, grid_dtype),
            _ => {
                let x = f64s(args, 0, dtype)?;
                check_len(0, x.len(), d.inputs())?;
                let mut y = vec![0.0; d.outputs()];
                run.sample(&x, &grid, &mut y);
                write_f64s(args, 2, dtype, &y)
            }
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::Tensor;
    use crate::ops::AttrValue;
    use crate::ops::test_util::{assert_near, attrs, facts, read_op, run_cpu, run_f32, tensor};

    #[test]
    fn a_line_of_places_reads_lines_of_the_image() {
        let x = Tensor::new([1, 1, 2, 2], &[0.0f32, 1.0, 2.0, 3.0]).unwrap();
        let grid = Tensor::new([1, 1, 3, 2], &[-1.0f32, -1.0, 0.0, 0.0, 1.0, 0.5]).unwrap();
        let op = GridSample { align_corners: true, ..GridSample::default() };
        let y = run_f32(&op, &[Some(x.clone()), Some(grid.clone())]).unwrap();
        assert_near(&y, &[0.0, 1.5, 2.5], 1e-6);
        let op = GridSample { mode: SampleMode::Nearest, ..op };
        let y = run_f32(&op, &[Some(x), Some(grid)]).unwrap();
        assert_near(&y, &[0.0, 0.0, 3.0], 0.0);
    }

    #[test]
    fn a_volume_that_varies_along_one_axis_gives_that_coordinate() {
        let x: Vec<f32> = (0..4 * 3 * 2).map(|i| (i / 6) as f32).collect();
        let x = Tensor::new([1, 1, 4, 3, 2], &x).unwrap();
        let grid = Tensor::new([1, 1, 1, 2, 3], &[0.2f32, 0.1, -1.0, 0.3, -0.4, 0.5]).unwrap();
        let op = GridSample { align_corners: true, ..GridSample::default() };
        assert_near(&run_f32(&op, &[Some(x), Some(grid)]).unwrap(), &[0.0, 2.25], 1e-6);
    }

    #[test]
    fn integers_are_picked_or_computed() {
        let big = i64::MAX - 3;
        let x = Tensor::new([1, 1, 1, 3], &[big, -7, 9]).unwrap();
        let grid = Tensor::new([1, 1, 3, 2], &[-1.0f32, 0.0, 0.25, 0.0, 9.0, 0.0]).unwrap();
        let op = GridSample { mode: SampleMode::Nearest, align_corners: true, ..GridSample::default() };
        let y = run_cpu(&op, &[Some(x), Some(grid.clone())], 1).unwrap();
        assert_eq!(y[0].as_slice::<i64>().unwrap(), [big, -7, 0]);
        let x = Tensor::new([1, 1, 1, 3], &[10u8, 20, 40]).unwrap();
        let op = GridSample { mode: SampleMode::Linear, ..op };
        let y = run_cpu(&op, &[Some(x), Some(grid)], 1).unwrap();
        assert_eq!(y[0].as_slice::<u8>().unwrap(), [10, 25, 0]);
    }

    #[test]
    fn shapes_and_names_that_do_not_fit_are_errors() {
        let op = read_op("GridSample", 16, &attrs(&[("mode", AttrValue::Str(b"bicubic".to_vec()))])).unwrap();
        let x = |s: &[usize]| Some(tensor(s, 1));
        assert!(facts(&*op, &[x(&[2, 3, 4, 5]), x(&[2, 6, 7, 2])], 1).is_ok());
        assert!(facts(&*op, &[x(&[2, 3, 4, 5]), x(&[1, 6, 7, 2])], 1).is_err());
        assert!(facts(&*op, &[x(&[2, 3, 4, 5]), x(&[2, 6, 7, 3])], 1).is_err());
        assert!(facts(&*op, &[x(&[2, 3, 4]), x(&[2, 6, 1])], 1).is_err());
        assert!(facts(&*op, &[x(&[2, 3, 0, 5]), x(&[2, 6, 7, 2])], 1).is_err());
        assert!(read_op("GridSample", 20, &attrs(&[("mode", AttrValue::Str(b"area".to_vec()))])).is_err());
    }
}
