//! GridSample on devices.

use super::grid_sample::GridSample;
use super::place::Outside;
use crate::kernel::codes::grid_sample;
use crate::kernel::table::{params, spec, variants};
use crate::ops::word::index32;
use crate::ops::{Lowering, OpCx, OpError, Operand};

/// Channels that an invocation samples at one place.
const CHANNELS: usize = 8;

/// Emits GridSample.
pub(super) fn sample(op: &GridSample, cx: &OpCx, lower: &mut Lowering<'_>) -> Result<(), OpError> {
    let kernel = variants::GridSample { t: cx.dtype(0)?, g: cx.dtype(1)? }.id()?;
    let (d, shape) = op.dims(cx)?;
    index32(cx.input(0)?.elements())?;
    index32(cx.input(1)?.elements())?;
    if index32(shape.elements())? == 0 {
        return Ok(());
    }
    let n = d.batch * d.channels.div_ceil(CHANNELS) * d.plane;
    let outside = match op.outside {
        Outside::Zeros => grid_sample::Outside::Zeros,
        Outside::Border => grid_sample::Outside::Border,
        Outside::Reflection => grid_sample::Outside::Reflection,
    };
    let spec = [
        (spec::grid_sample::RANK, d.rank as u32),
        (spec::grid_sample::TAPS, op.mode.taps() as u32),
        (spec::grid_sample::OUTSIDE, outside as u32),
        (spec::grid_sample::ALIGN_CORNERS, u32::from(op.align_corners)),
        (spec::grid_sample::CHANNELS, CHANNELS as u32),
    ];
    let params = params::GridSample {
        n: n as u32,
        channels: d.channels as u32,
        plane: d.plane as u32,
        id: d.input[0] as i32,
        ih: d.input[1] as i32,
        iw: d.input[2] as i32,
    };
    let args = [Operand::Input(0), Operand::Input(1), Operand::Output(0)];
    lower.dispatch_1d(kernel, &spec, &args, &params, n)
}

#[cfg(all(test, feature = "vulkan"))]
mod tests {
    use half::f16;

    use super::*;
    use crate::graph::Tensor;
    use crate::ops::test_util::{tensor, tensor_of, values};
    use crate::ops::testing::Check;
    use crate::ops::vision::SampleMode;

    #[test]
    fn devices_compute_the_same() {
        let cases: &[(&[usize], &[usize])] = &[
            (&[2, 9, 5, 7], &[2, 3, 11, 2]),
            (&[1, 1, 1, 3], &[1, 5, 1, 2]),
            (&[2, 2, 3, 4, 5], &[2, 3, 2, 5, 3]),
        ];
        for (x, grid) in cases {
            for mode in [SampleMode::Nearest, SampleMode::Linear, SampleMode::Cubic] {
                for outside in [Outside::Zeros, Outside::Border, Outside::Reflection] {
                    for align_corners in [false, true] {
                        let op = GridSample { mode, outside, align_corners };
                        let n = grid.iter().product();
                        let mut places: Vec<f32> = values(n, 5).iter().map(|v| v * 1.7).collect();
                        places[0] = f32::NAN;
                        places[1] = f32::INFINITY;
                        places[n - 1] = -1e30;
                        let at = Tensor::new(grid.to_vec(), &places).unwrap();
                        Check::new(&op, &[Some(tensor(x, 1)), Some(at.clone())]).tolerance(1e-5).run();
                        let halves = tensor_of(x, &values(x.iter().product(), 1), f16::from_f32);
                        Check::new(&op, &[Some(halves.clone()), Some(at)]).tolerance(4e-3).run();
                        let at = tensor_of(grid, &places, f16::from_f32);
                        Check::new(&op, &[Some(halves), Some(at)]).tolerance(4e-3).run();
                    }
                }
            }
        }
    }
}
