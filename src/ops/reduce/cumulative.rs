//! CumSum and CumProd: sums and products of all elements up to each one.

use std::sync::Arc;

use crate::dtype::DType;
use crate::graph::TensorInfo;
use crate::kernel::table::{params, spec, variants};
use crate::kernel::{KernelError, NativeArgs, NativeKernel};
use crate::ops::norm::Along;
use crate::ops::pointwise::number::{Number, with_number};
use crate::ops::word::word;
use crate::ops::{AttrReader, HalfRule, Lowering, OpCx, OpError, Operand, Operator, par};
use crate::simd::wide;

/// Lines that are summed side by side.
const SIDE: usize = 256;

/// Sums or products of the elements up to each one, along the axis that input 1 holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cumulative {
    /// Products, rather than sums.
    pub product: bool,
    /// Without the element itself.
    pub exclusive: bool,
    /// From the end, rather than from the beginning.
    pub reverse: bool,
}

pub(super) fn read(attrs: &mut AttrReader<'_>, product: bool) -> Result<Arc<dyn Operator>, OpError> {
    let (exclusive, reverse) = (attrs.flag("exclusive", false)?, attrs.flag("reverse", false)?);
    Ok(Arc::new(Cumulative { product, exclusive, reverse }))
}

impl Cumulative {
    fn along(&self, cx: &OpCx) -> Result<Along, OpError> {
        let x = cx.shape(0)?;
        let axis = cx.need_i64s(1)?;
        let &[axis] = axis.as_slice() else {
            return Err(cx.shape_error(1, "one element"));
        };
        let axis = x.axis(axis)?;
        Ok(Along::axes(x, axis, axis + 1))
    }

    /// The lines of one block, some side by side: sums are kept in a type that loses nothing that matters, and
    /// stored with `narrow`.
    fn lines<T: Copy, A: Copy>(
        self,
        x: &[T],
        y: &mut [T],
        [len, inner]: [usize; 2],
        start: A,
        step: impl Fn(A, T) -> A,
        narrow: impl Fn(A) -> T,
    ) {
        if inner == 1 {
            let mut sum = start;
            let mut next = |(y, x): (&mut T, &T)| {
                let before = sum;
                sum = step(sum, *x);
                *y = narrow(if self.exclusive { before } else { sum });
            };
            let each = y.iter_mut().zip(x).take(len);
            return if self.reverse { each.rev().for_each(&mut next) } else { each.for_each(&mut next) };
        }
        wide(
            #[inline(always)]
            || {
                for first in (0..inner).step_by(SIDE) {
                    let mut sums = [start; SIDE];
                    let sums = &mut sums[..SIDE.min(inner - first)];
                    for k in 0..len {
                        let from = first + inner * if self.reverse { len - 1 - k } else { k };
                        let range = from..from + sums.len();
                        let (Some(x), Some(y)) = (x.get(range.clone()), y.get_mut(range)) else { return };
                        if self.exclusive {
                            y.iter_mut().zip(&*sums).for_each(|(y, sum)| *y = narrow(*sum));
                            sums.iter_mut().zip(x).for_each(|(sum, x)| *sum = step(*sum, *x));
                        } else {
                            for ((sum, x), y) in sums.iter_mut().zip(x).zip(y) {
                                *sum = step(*sum, *x);
                                *y = narrow(*sum);
                            }
                        }
                    }
                }
            },
        );
    }

    fn run<T: Number>(self, args: &mut NativeArgs<'_, '_>, along: Along) -> Result<(), KernelError> {
        let Along { len, inner, .. } = along;
        let (x, y) = (args.read::<T>(0)?, args.take_write::<T>(2)?);
        if y.is_empty() {
            return Ok(());
        }
        let (size, work) = (len * inner, y.len());
        par::rows(y, size, work, |i, y| {
            let (x, sizes) = (x.get(i * size..).unwrap_or(&[]), [len, inner]);
            let x = x.get(..y.len()).unwrap_or(x);
            match (T::DTYPE.is_float(), self.product) {
                (true, false) => self.lines(x, y, sizes, 0.0, |a, v| a + v.to_f64(), T::from_f64),
                (true, true) => self.lines(x, y, sizes, 1.0, |a, v| a * v.to_f64(), T::from_f64),
                (false, false) => self.lines(x, y, sizes, T::ZERO, T::add, |a| a),
                (false, true) => self.lines(x, y, sizes, T::from_i64(1), T::mul, |a| a),
            }
        });
        Ok(())
    }
}

impl Operator for Cumulative {
    fn name(&self) -> &'static str {
        if self.product { "CumProd" } else { "CumSum" }
    }

    fn half_rule(&self) -> HalfRule {
        if self.product { HalfRule::Half } else { HalfRule::Full }
    }

    fn value_inputs(&self) -> &'static [usize] {
        &[1]
    }

    fn infer(&self, cx: &OpCx) -> Result<Vec<TensorInfo>, OpError> {
        cx.expect_counts(2..=2, 1..=1)?;
        cx.dtype_of(0, DType::NUMBERS)?;
        self.along(cx)?;
        Ok(vec![cx.input(0)?.clone()])
    }

    fn cpu(&self, cx: &OpCx) -> Result<NativeKernel, OpError> {
        let (op, along) = (*self, self.along(cx)?);
        with_number!(cx.dtype(0)?, T => Ok(NativeKernel::new(self.name(), move |args| {
            op.run::<T>(args, along)
        })), else Err(OpError::unsupported("bool")))
    }

    fn gpu(&self, cx: &OpCx, lower: &mut Lowering<'_>) -> Result<(), OpError> {
        /// Lines that fill a device when each is left to one invocation, where neighbours read neighbours.
        const MANY_LINES: usize = 8192;
        /// Elements that occupy the larger work-group.
        const LONG_LINE: usize = 512;
        let Along { outer, len, inner } = self.along(cx)?;
        let lines = outer * inner;
        let grouped = (inner == 1 || lines < MANY_LINES) && lower.grouped(len);
        let dtype = cx.dtype(0)?;
        let wide = grouped && inner == 1 && len.is_multiple_of(4) && len >= LONG_LINE;
        let wide = wide && matches!(dtype, DType::F32 | DType::F16 | DType::I32);
        lower.row_iterations(len, grouped)?;
        let kernel = variants::Cumulative { t: dtype, grouped, wide }.id()?;
        if lines * len == 0 {
            return Ok(());
        }
        let size = word(lines * len)?;
        let p = params::Cumulative { lines: size / len as u32, len: word(len)?, inner: word(inner)? };
        let constants = [
            (spec::cumulative::PRODUCT, u32::from(self.product)),
            (spec::cumulative::EXCLUSIVE, u32::from(self.exclusive)),
            (spec::cumulative::REVERSE, u32::from(self.reverse)),
        ];
        let args = [Operand::Input(0), Operand::Output(0)];
        lower.dispatch_rows(kernel, &constants, &args, &p, lines, grouped)?;
        if wide {
            lower.writes_in_order(4 * dtype.bytes());
        }
        Ok(())
    }
}

#[cfg(test)]
#[cfg(feature = "vulkan")]
mod tests {
    use super::*;
    use crate::graph::Tensor;
    use crate::ops::test_util::{tensor, tensor_of};
    use crate::ops::testing::{Check, as_is, no_texels};

    #[test]
    fn devices_add_and_multiply_as_the_cpu_does() {
        for (shape, axis) in
            [(vec![3, 7, 5], 1i64), (vec![3, 1100], -1), (vec![70, 3], 0), (vec![513], 0), (vec![2, 1148], 1)]
        {
            for bits in 0..8 {
                let [product, exclusive, reverse] = [1, 2, 4].map(|b| bits & b != 0);
                let op = Cumulative { product, exclusive, reverse };
                let values = tensor(&shape, bits).to_f32s().unwrap();
                // Products stay near 1.
                let near = |v: f32| if product { 1.0 + v / 64.0 } else { v };
                let axis = || Some(Tensor::scalar(axis));
                for change in [as_is, no_texels] {
                    let check = |x: Tensor, tolerance: f64| {
                        Check::new(&op, &[Some(x), axis()]).pretend(change).tolerance(tolerance).run();
                    };
                    check(tensor_of(&shape, &values, near), 1e-4);
                    check(tensor_of(&shape, &values, |v| half::f16::from_f32(near(v))), 5e-3);
                    check(tensor_of(&shape, &values, |v| f64::from(near(v))), 1e-12);
                    check(tensor_of(&shape, &values, |v| (v * 40.0) as i32), 0.0);
                    check(tensor_of(&shape, &values, |v| (v * 1e12) as i64), 0.0);
                }
            }
        }
    }
}
