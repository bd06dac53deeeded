//! Dropout: in training random elements become 0; in inference the input is unchanged.

use std::sync::Arc;

use super::philox::{Philox, Seed};
use crate::dtype::DType;
use crate::graph::{Tensor, TensorInfo};
use crate::kernel::table::{params, spec, variants};
use crate::kernel::{KernelError, NativeArgs, NativeKernel};
use crate::ops::movement::region::{self, Piece};
use crate::ops::pointwise::identity::copy_of;
use crate::ops::pointwise::number::{Number, with_number};
use crate::ops::real::FLOATS;
use crate::ops::word::word;
use crate::ops::{AttrReader, Cost, Lowering, OpCx, OpError, Operand, Operator};

/// Where input 2 says that it trains, each element is 0 with probability `ratio` (input 1, or 0.5) and
/// otherwise divided by `1 - ratio`; else the input is unchanged. Output 1 is true where elements stay.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Dropout {
    /// Whether the mask has the input's type, as it had before opset 10; else it is `bool`.
    typed_mask: bool,
    seed: Seed,
}

pub(super) fn read(attrs: &mut AttrReader<'_>, opset: i64) -> Result<Arc<dyn Operator>, OpError> {
    let seed = if opset < 12 {
        attrs.float("ratio", 0.5)?;
        // It knows no training, so that nothing is drawn.
        Some(0)
    } else {
        attrs.int_opt("seed")?
    };
    Ok(Arc::new(Dropout::new(opset < 10, seed)))
}

impl Dropout {
    /// With a mask of the input's type or of `bool`; the same elements in every run where there is a seed.
    pub fn new(typed_mask: bool, seed: Option<i64>) -> Self {
        let fixed = |s: i64| Seed::Fixed(Philox { key: [s as u32, (s >> 32) as u32] });
        Dropout { typed_mask, seed: seed.map_or(Seed::Fresh, fixed) }
    }

    /// The probability with which elements are dropped.
    fn ratio(&self, cx: &OpCx) -> Result<f32, OpError> {
        if !cx.need_i64s_opt(2)?.is_some_and(|v| v.iter().any(|v| *v != 0)) {
            return Ok(0.0);
        }
        let ratio = if cx.has(1) { cx.need_value(1)?.to_f32s()?.first().copied() } else { Some(0.5) };
        ratio
            .filter(|r| (0.0..1.0).contains(r))
            .ok_or_else(|| OpError::Value { input: 1, problem: format!("is {ratio:?}, not of 0 to below 1") })
    }

    fn pieces(&self, cx: &OpCx) -> Result<Vec<Piece>, OpError> {
        let mut pieces = copy_of(cx, 0, 0)?;
        if let Some(mask) = cx.outputs().get(1) {
            let kept =
                with_number!(mask.dtype, T => Tensor::scalar(T::from_i64(1)), else Tensor::scalar(1u8));
            pieces.extend(region::fill(kept, 1, &mask.shape));
        }
        Ok(pieces)
    }

    fn run<T: Number>(
        self,
        args: &mut NativeArgs<'_, '_>,
        out: usize,
        ratio: f32,
    ) -> Result<(), KernelError> {
        let philox = self.seed.philox();
        let (x, y) = (args.read::<T>(0)?, args.take_write::<T>(out)?);
        let mut mask = if args.has(out + 1) { args.take_write::<u8>(out + 1)? } else { &mut [] };
        let scale = 1.0 / (1.0 - f64::from(ratio));
        let mut numbers = philox.uniforms();
        for (i, (y, x)) in y.iter_mut().zip(x).enumerate() {
            let stays = numbers.at(i) >= ratio;
            *y = if stays { T::from_f64(x.to_f64() * scale) } else { T::ZERO };
            if let Some((m, rest)) = std::mem::take(&mut mask).split_first_mut() {
                (*m, mask) = (u8::from(stays), rest);
            }
        }
        Ok(())
    }
}

impl Operator for Dropout {
    fn name(&self) -> &'static str {
        "Dropout"
    }

    fn value_inputs(&self) -> &'static [usize] {
        &[1, 2]
    }

    fn infer(&self, cx: &OpCx) -> Result<Vec<TensorInfo>, OpError> {
        // Opsets with a mask of the input's type know no training.
        cx.expect_counts(1..=if self.typed_mask { 1 } else { 3 }, 1..=2)?;
        let x = cx.input(0)?.clone();
        cx.dtype_of(0, FLOATS)?;
        self.ratio(cx)?;
        let mask_type = if self.typed_mask { x.dtype } else { DType::Bool };
        let mask = TensorInfo::new(mask_type, x.shape.clone());
        Ok([x, mask].into_iter().take(cx.output_count()).collect())
    }

    fn varies(&self) -> bool {
        self.seed == Seed::Fresh
    }

    fn cost(&self, cx: &OpCx) -> Cost {
        Cost { flops: 0, bytes: 2 * cx.outputs().iter().map(|o| o.bytes() as u64).sum::<u64>() }
    }

    fn alias(&self, cx: &OpCx) -> Option<usize> {
        (cx.output_count() == 1 && self.ratio(cx) == Ok(0.0)).then_some(0)
    }

    fn cpu(&self, cx: &OpCx) -> Result<NativeKernel, OpError> {
        let (op, out, ratio) = (*self, cx.input_count(), self.ratio(cx)?);
        if ratio == 0.0 {
            return region::cpu(self.name(), cx, self.pieces(cx)?);
        }
        with_number!(cx.dtype(0)?, T => Ok(NativeKernel::new("Dropout", move |args| {
            op.run::<T>(args, out, ratio)
        })), else Err(OpError::unsupported("Dropout of bool")))
    }

    fn gpu(&self, cx: &OpCx, lower: &mut Lowering<'_>) -> Result<(), OpError> {
        let ratio = self.ratio(cx)?;
        if ratio == 0.0 {
            return region::gpu(lower, cx, &self.pieces(cx)?);
        }
        let y = cx.output(0)?;
        let kernel = variants::RandomMask { t: y.dtype }.id()?;
        let key = self.seed.for_device()?.key;
        let masked = cx.outputs().len() > 1;
        let p = params::RandomMask { key, n: word(y.elements())?, ratio, scale: 1.0 / (1.0 - ratio) };
        let constants = [(spec::random_mask::DROPOUT, 1), (spec::random_mask::MASK, u32::from(masked))];
        let mask = if masked { Operand::Output(1) } else { Operand::Unused };
        let args = [Operand::Input(0), Operand::Output(0), mask];
        lower.dispatch_1d(kernel, &constants, &args, &p, y.elements().div_ceil(4))
    }
}
