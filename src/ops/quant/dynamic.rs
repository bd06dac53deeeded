//! DynamicQuantizeLinear: bytes with the scale and zero point that the numbers themselves ask for.

use super::device;
use super::elements::low_byte;
use crate::dtype::DType;
use crate::graph::TensorInfo;
use crate::kernel::{KernelError, NativeArgs, NativeKernel};
use crate::ops::real::check_len;
use crate::ops::{HalfRule, Lowering, OpCx, OpError, Operator, par};
use crate::shape::Shape;
use crate::simd::wide;

/// Numbers whose interval is found at a time.
const PART: usize = 16 << 10;

/// Numbers as `uint8`, the scale and the zero point.
///
/// The scale maps the interval of the numbers, made to hold 0, to 0 to 255; it is 1 where there is nothing
/// but 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DynamicQuantizeLinear;

impl Operator for DynamicQuantizeLinear {
    fn name(&self) -> &'static str {
        "DynamicQuantizeLinear"
    }

    fn half_rule(&self) -> HalfRule {
        HalfRule::Full
    }

    fn infer(&self, cx: &OpCx) -> Result<Vec<TensorInfo>, OpError> {
        cx.expect_counts(1..=1, 1..=3)?;
        cx.expect_dtype(0, DType::F32)?;
        let all = [
            TensorInfo::new(DType::U8, cx.shape(0)?.clone()),
            TensorInfo::new(DType::F32, Shape::scalar()),
            TensorInfo::new(DType::U8, Shape::scalar()),
        ];
        Ok(all.into_iter().take(cx.output_count()).collect())
    }

    fn cpu(&self, cx: &OpCx) -> Result<NativeKernel, OpError> {
        let len = cx.input(0)?.elements();
        Ok(NativeKernel::new("DynamicQuantizeLinear", move |args| run(args, len)))
    }

    fn gpu(&self, cx: &OpCx, lower: &mut Lowering<'_>) -> Result<(), OpError> {
        device::dynamic(cx, lower)
    }
}

fn run(args: &mut NativeArgs<'_, '_>, len: usize) -> Result<(), KernelError> {
    let x = args.read::<f32>(0)?;
    check_len(0, x.len(), len)?;
    let both = |a: [f32; 2], b: [f32; 2]| [a[0].min(b[0]), a[1].max(b[1])];
    let mut intervals = vec![[0f32; 2]; len.div_ceil(PART)];
    par::each(&mut intervals, len, |i| interval(&x[i * PART..len.min((i + 1) * PART)]));
    let [low, high] = intervals.into_iter().fold([0f32; 2], both);
    let scale = if low == high { 1.0 } else { (high - low) / 255.0 };
    let zero = (0.0 - low / scale).clamp(0.0, 255.0).round_ties_even();
    let y = args.take_write::<u8>(1)?;
    check_len(1, y.len(), len)?;
    par::parts(y, |start, part| {
        let x = x.get(start..).unwrap_or(&[]);
        wide(
            #[inline(always)]
            || {
                let each = part.iter_mut().zip(x);
                each.for_each(|(y, v)| {
                    *y = low_byte(((v / scale).round_ties_even() + zero).clamp(0.0, 255.0))
                });
            },
        );
    });
    if args.has(2) {
        args.take_write::<f32>(2)?.fill(scale);
    }
    if args.has(3) {
        args.take_write::<u8>(3)?.fill(zero as u8);
    }
    Ok(())
}

/// The least and the largest of the numbers and 0.
fn interval(x: &[f32]) -> [f32; 2] {
    const LANES: usize = 16;
    wide(
        #[inline(always)]
        || {
            let (mut low, mut high) = ([0f32; LANES], [0f32; LANES]);
            let (lanes, rest) = x.as_chunks::<LANES>();
            for lane in lanes {
                for ((low, high), v) in low.iter_mut().zip(&mut high).zip(lane) {
                    *low = if *v < *low { *v } else { *low };
                    *high = if *v > *high { *v } else { *high };
                }
            }
            let low = low.iter().chain(rest).fold(0f32, |a, v| a.min(*v));
            let high = high.iter().chain(rest).fold(0f32, |a, v| a.max(*v));
            [low, high]
        },
    )
}
