//! QLinearAdd and QLinearMul: sums and products of numbers that bytes stand for, as bytes.

use super::scaling::{Scaling, range_of, rounded_byte};
use crate::graph::TensorInfo;
use crate::kernel::table::{id, params, spec};
use crate::kernel::{KernelError, NativeArgs, NativeKernel};
use crate::ops::real::check_len;
use crate::ops::strided::Nest;
use crate::ops::{Lowering, OpCx, OpError, Operand, Operator, par};
use crate::simd::wide;

/// Elements that are computed at a time.
const CHUNK: usize = 256;

/// A sum or product of two tensors of bytes (inputs A and B, broadcast by NumPy's rule) with constant scales and
/// zero points. A result is off by at most the last unit where it lies in the middle between two elements.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct QuantizedBinary {
    /// Whether it multiplies.
    pub product: bool,
    /// The scalings of A, B and the output.
    pub scalings: [Scaling; 3],
    /// The smallest and the largest element of the output, where an activation keeps it within fewer than there are.
    pub clamp: Option<[i32; 2]>,
}

impl QuantizedBinary {
    /// The factors of the bytes of A and B less their zero points.
    pub(super) fn factors(&self) -> [f32; 2] {
        let [a, b, y] = self.scalings.map(|s| s.scale);
        if self.product { [1.0, a * b / y] } else { [a / y, b / y] }
    }
}

impl Operator for QuantizedBinary {
    fn name(&self) -> &'static str {
        if self.product { "QLinearMul" } else { "QLinearAdd" }
    }

    fn infer(&self, cx: &OpCx) -> Result<Vec<TensorInfo>, OpError> {
        cx.expect_counts(2..=2, 1..=1)?;
        let [a, b, y] = self.scalings.map(|s| s.dtype);
        cx.expect_dtype(0, a)?;
        cx.expect_dtype(1, b)?;
        Ok(vec![TensorInfo::new(y, cx.shape(0)?.broadcast(cx.shape(1)?)?)])
    }

    fn in_place(&self, cx: &OpCx) -> Option<usize> {
        let out = cx.outputs().first()?;
        (0..2).find(|&i| cx.input_opt(i).is_some_and(|x| x.shape == out.shape))
    }

    fn cpu(&self, cx: &OpCx) -> Result<NativeKernel, OpError> {
        let (a, b, y) = (cx.input(0)?, cx.input(1)?, cx.output(0)?);
        let nest = Nest::broadcast(&y.shape, &[&a.shape, &b.shape])?;
        let range = range_of(y.dtype, self.clamp).ok_or_else(|| OpError::unsupported(y.dtype.to_string()))?;
        let lens = [a.elements(), b.elements(), y.elements()];
        let call = Call { op: *self, nest, lens, range };
        Ok(NativeKernel::new(self.name(), move |args| call.run(args)))
    }

    fn gpu(&self, cx: &OpCx, lower: &mut Lowering<'_>) -> Result<(), OpError> {
        let (a, b, y) = (cx.input(0)?, cx.input(1)?, cx.output(0)?);
        let nest = Nest::broadcast(&y.shape, &[&a.shape, &b.shape])?;
        if nest.elements() == 0 {
            return Ok(());
        }
        let fail = || OpError::unsupported(format!("broadcasting to {} on the device", y.shape));
        let range = range_of(y.dtype, self.clamp).ok_or_else(fail)?;
        let [of_a, of_b, of_y] = self.scalings;
        let params = params::ByteBinary {
            n: i32::try_from(nest.elements()).map_err(|_| fail())? as u32,
            zeros: [of_a.unsigned_zero(), of_b.unsigned_zero()],
            factors: self.factors(),
            zero: of_y.zero,
            low: range[0] as i32,
            high: range[1] as i32,
            sizes: nest.kernel_sizes().ok_or_else(fail)?,
            a_strides: nest.kernel_strides(0).ok_or_else(fail)?,
            b_strides: nest.kernel_strides(1).ok_or_else(fail)?,
        };
        let constants = [
            (spec::byte_binary::PRODUCT, u32::from(self.product)),
            (spec::broadcast::A_KIND, nest.kind(0) as u32),
            (spec::broadcast::B_KIND, nest.kind(1) as u32),
            (spec::broadcast::RANK, nest.rank() as u32),
            (spec::byte_binary::A_FLIP, u32::from(of_a.flip())),
            (spec::byte_binary::B_FLIP, u32::from(of_b.flip())),
        ];
        let args = [Operand::Input(0), Operand::Input(1), Operand::Output(0)];
        lower.dispatch_1d(id::BYTE_BINARY_B8, &constants, &args, &params, nest.elements())
    }
}

struct Call {
    op: QuantizedBinary,
    nest: Nest,
    /// Elements of both inputs and the output.
    lens: [usize; 3],
    range: [f32; 2],
}

impl Call {
    fn run(&self, args: &mut NativeArgs<'_, '_>) -> Result<(), KernelError> {
        let [a, b] = [0, 1].map(|i| args.read::<u8>(i));
        let (a, b, y) = (a?, b?, args.take_write::<u8>(2)?);
        check_len(0, a.len(), self.lens[0])?;
        check_len(1, b.len(), self.lens[1])?;
        check_len(2, y.len(), self.lens[2])?;
        if self.op.product {
            self.each(
                a,
                b,
                y,
                #[inline(always)]
                |a, b| a * b,
            );
        } else {
            self.each(
                a,
                b,
                y,
                #[inline(always)]
                |a, b| a + b,
            );
        }
        Ok(())
    }

    /// `f` of both numbers, in units of the output; it must be `#[inline(always)]`.
    fn each(&self, a: &[u8], b: &[u8], y: &mut [u8], f: impl Fn(f32, f32) -> f32 + Copy + Send + Sync) {
        let [of_a, of_b, of_y] = self.op.scalings;
        let factors = self.op.factors();
        let operand = |of: Scaling, factor| Numbers { flip: of.flip(), zero: of.unsigned_zero(), factor };
        let (of_a, of_b) = (operand(of_a, factors[0]), operand(of_b, factors[1]));
        let (zero, range) = (of_y.zero as f32, self.range);
        let (step_a, step_b) = (self.nest.inner_stride(0), self.nest.inner_stride(1));
        let from = |x: &'_ [u8], at: isize| usize::try_from(at).ok().map_or(0, |at| at.min(x.len()));
        par::parts(y, |first, part| {
            // Numbers of a piece of each operand.
            let (mut left, mut right) = ([0f32; CHUNK], [0f32; CHUNK]);
            self.nest.runs(first..first + part.len(), |start, len, at| {
                let Some(out) = part.get_mut(start - first..start - first + len) else { return };
                let (a, b) = (&a[from(a, at[0])..], &b[from(b, at[1])..]);
                wide(
                    #[inline(always)]
                    || {
                        // Loop invariants, because runs may be very short.
                        let n = len.min(CHUNK);
                        if step_a == 0 {
                            left[..n].fill(a.first().map_or(0.0, |a| of_a.number(*a)));
                        }
                        if step_b == 0 {
                            right[..n].fill(b.first().map_or(0.0, |b| of_b.number(*b)));
                        }
                        for (i, out) in out.chunks_mut(CHUNK).enumerate() {
                            if step_a != 0 {
                                of_a.load(a.get(i * CHUNK..).unwrap_or(&[]), &mut left[..out.len()]);
                            }
                            if step_b != 0 {
                                of_b.load(b.get(i * CHUNK..).unwrap_or(&[]), &mut right[..out.len()]);
                            }
                            store(&left, &right, zero, range, out, f);
                        }
                    },
                );
            });
        });
    }
}

/// The conversion of unsigned bytes of an operand to numbers.
#[derive(Clone, Copy)]
struct Numbers {
    flip: u8,
    zero: f32,
    factor: f32,
}

impl Numbers {
    #[inline(always)]
    fn number(self, byte: u8) -> f32 {
        (f32::from(byte ^ self.flip) - self.zero) * self.factor
    }

    #[inline(always)]
    fn load(self, bytes: &[u8], to: &mut [f32]) {
        to.iter_mut().zip(bytes).for_each(|(to, byte)| *to = self.number(*byte));
    }
}

#[inline(always)]
fn store(
    left: &[f32; CHUNK],
    right: &[f32; CHUNK],
    zero: f32,
    range: [f32; 2],
    y: &mut [u8],
    f: impl Fn(f32, f32) -> f32,
) {
    let each = y.iter_mut().zip(left).zip(right);
    each.for_each(|((y, a), b)| *y = rounded_byte(f(*a, *b), zero, range));
}
