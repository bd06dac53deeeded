//! Activations of two operands: SwiGLU, and com.microsoft's BiasGelu and FastGelu with a bias.

use std::sync::Arc;

use crate::dtype::DType;
use crate::expr::Function;
use crate::graph::TensorInfo;
use crate::kernel::table::{params, spec, variants};
use crate::kernel::{KernelError, NativeKernel};
use crate::ops::par;
use crate::ops::pointwise::Pointwise;
use crate::ops::real::{FLOATS, Real, RealIo, RealKernel, real_kernel};
use crate::ops::word::word;
use crate::ops::{
    Activation, AttrReader, Cost, Lowering, OpCx, OpError, Operand, Operator, Structure, unary,
};
use crate::simd::wide;

/// Which function of two operands.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Gate {
    /// `a * sigmoid(alpha * a) * b`, both of one shape.
    SwiGlu {
        /// Factor of the sigmoid's argument.
        alpha: f32,
    },
    /// Gelu of `a + b`, where b is a vector along the last axis.
    BiasGelu,
    /// The same with the approximation through tanh.
    FastGelu,
}

pub(super) fn read_swiglu(attrs: &mut AttrReader<'_>, _opset: i64) -> Result<Arc<dyn Operator>, OpError> {
    Ok(Arc::new(Gate::SwiGlu { alpha: attrs.float("alpha", 1.0)? }))
}

pub(super) fn read_bias_gelu(_attrs: &mut AttrReader<'_>, _opset: i64) -> Result<Arc<dyn Operator>, OpError> {
    Ok(Arc::new(Gate::BiasGelu))
}

pub(super) fn read_fast_gelu(attrs: &mut AttrReader<'_>, _opset: i64) -> Result<Arc<dyn Operator>, OpError> {
    Ok(if attrs.input_count() < 2 { unary(Function::GeluTanh) } else { Arc::new(Gate::FastGelu) })
}

impl Gate {
    /// The function: of the first operand, which the second is a factor of, or of the sum.
    fn function(self) -> Pointwise {
        match self {
            Gate::SwiGlu { alpha } => Pointwise { function: Function::Swish, params: [alpha, 0.0] },
            Gate::BiasGelu => Pointwise::new(Function::Gelu),
            Gate::FastGelu => Pointwise::new(Function::GeluTanh),
        }
    }
}

impl Operator for Gate {
    fn name(&self) -> &'static str {
        match self {
            Gate::SwiGlu { .. } => "SwiGLU",
            Gate::BiasGelu => "BiasGelu",
            Gate::FastGelu => "FastGelu",
        }
    }

    fn infer(&self, cx: &OpCx) -> Result<Vec<TensorInfo>, OpError> {
        cx.expect_counts(2..=2, 1..=1)?;
        let dtype = cx.dtype_of(0, FLOATS)?;
        cx.expect_dtype(1, dtype)?;
        let shape = cx.shape(0)?;
        let wanted = match self {
            Gate::SwiGlu { .. } => shape.dims(),
            _ => shape.last().map(std::slice::from_ref).unwrap_or(&[1]),
        };
        if cx.shape(1)?.dims() != wanted {
            return Err(cx.shape_error(1, format!("{wanted:?}")));
        }
        Ok(vec![TensorInfo::new(dtype, shape.clone())])
    }

    fn cost(&self, cx: &OpCx) -> Cost {
        Cost { flops: 12 * cx.input_opt(0).map_or(0, |i| i.elements() as u64), bytes: cx.bytes_touched() }
    }

    fn cpu(&self, cx: &OpCx) -> Result<NativeKernel, OpError> {
        let sizes = [cx.input(0)?.elements(), cx.input(1)?.elements()];
        real_kernel(self.name(), cx, Run { gate: *self, sizes })
    }

    fn in_place(&self, _cx: &OpCx) -> Option<usize> {
        Some(0)
    }

    fn structure(&self) -> Option<Structure<'_>> {
        matches!(self, Gate::SwiGlu { .. }).then(|| Structure::Gate(Activation::Of(self.function())))
    }

    fn gpu(&self, cx: &OpCx, lower: &mut Lowering<'_>) -> Result<(), OpError> {
        let kernel = variants::Gate { t: cx.dtype(0)? }.id()?;
        let (code, [alpha, _]) = Activation::Of(self.function()).code();
        let gated = matches!(self, Gate::SwiGlu { .. });
        let (n, len) = (cx.input(0)?.elements(), cx.input(1)?.elements());
        let params = params::Gate { n: word(n)?, len: word(len)?, first: 0, alpha };
        let args = [Operand::Input(0), Operand::Input(1), Operand::Output(0)];
        let constants = [(spec::gate::GATED, gated.into()), (spec::gate::ACTIVATION, code)];
        lower.dispatch_1d(kernel, &constants, &args, &params, n)
    }
}

/// Emits `x + bias`, where `x` has `n` elements and the bias is `len` elements from `first` on, repeated.
pub(super) fn add_bias(
    lower: &mut Lowering<'_>,
    dtype: DType,
    (x, n): (Operand, usize),
    (bias, first, len): (Operand, usize, usize),
    y: Operand,
) -> Result<(), OpError> {
    let params = params::Gate { n: word(n)?, len: word(len)?, first: word(first)?, alpha: 0.0 };
    lower.dispatch_1d(variants::Gate { t: dtype }.id()?, &[], &[x, bias, y], &params, n)
}

struct Run {
    gate: Gate,
    sizes: [usize; 2],
}

impl RealKernel for Run {
    fn run<T: Real>(&self, io: &mut RealIo<'_, T>) -> Result<(), KernelError> {
        let (y, inputs) = io.output(0, self.sizes[0])?;
        let (a, b) = (inputs.get(0, self.sizes[0])?, inputs.get(1, self.sizes[1])?);
        par::parts(y, |start, y| {
            let a = &a[start..][..y.len()];
            let function = self.gate.function();
            match self.gate {
                Gate::SwiGlu { .. } => {
                    y.copy_from_slice(a);
                    function.apply(y);
                    y.iter_mut().zip(&b[start..]).for_each(|(y, b)| *y *= *b);
                }
                Gate::BiasGelu | Gate::FastGelu => {
                    sums(start, y, a, b);
                    function.apply(y);
                }
            }
        });
        Ok(())
    }
}

/// Writes `a + b` to `y`, which begins with element `start`; `b` is repeated.
fn sums<T: Real>(start: usize, y: &mut [T], a: &[T], b: &[T]) {
    let mut at = 0;
    while let Some(bias) = b.get((start + at) % b.len().max(1)..).filter(|_| at < y.len()) {
        let end = (at + bias.len()).min(y.len());
        let (y, a) = (&mut y[at..end], &a[at..end]);
        wide(
            #[inline(always)]
            || y.iter_mut().zip(a).zip(bias).for_each(|((y, a), b)| *y = *a + *b),
        );
        at = end;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::Tensor;
    use crate::ops::test_util::{assert_near, facts, run_f32, tensor};

    fn check(gate: Gate, b: &[usize], want: impl Fn(f64, f64) -> f64) {
        let inputs = [Some(tensor(&[3, 7, 5], 1)), Some(tensor(b, 2))];
        let wide = |t: &Option<Tensor>| t.as_ref().unwrap().to_f32s().unwrap();
        let (a, b) = (wide(&inputs[0]), wide(&inputs[1]));
        let want: Vec<f64> =
            a.iter().enumerate().map(|(i, a)| want((*a).into(), b[i % b.len()].into())).collect();
        assert_near(&run_f32(&gate, &inputs).unwrap(), &want, 1e-6);
        #[cfg(feature = "vulkan")]
        crate::ops::testing::check_op(&gate, &inputs, 1e-6);
    }

    #[test]
    fn gates_match_their_formulas() {
        check(Gate::SwiGlu { alpha: 0.7 }, &[3, 7, 5], |a, b| a / (1.0 + (-0.7f32 as f64 * a).exp()) * b);
        check(Gate::BiasGelu, &[5], |a, b| {
            let s = a + b;
            0.5 * s * (1.0 + crate::simd::erf_f64(s / 2f64.sqrt()))
        });
        check(Gate::FastGelu, &[5], |a, b| {
            let s = a + b;
            let root = (2.0 / std::f64::consts::PI).sqrt();
            0.5 * s * (1.0 + (root * (s + 0.044715 * s.powi(3))).tanh())
        });
        let infers = |gate: Gate, b: &[usize]| {
            facts(&gate, &[Some(tensor(&[3, 5], 1)), Some(tensor(b, 2))], 1).is_ok()
        };
        assert!(infers(Gate::SwiGlu { alpha: 1.0 }, &[3, 5]) && !infers(Gate::SwiGlu { alpha: 1.0 }, &[5]));
        assert!(infers(Gate::BiasGelu, &[5]) && !infers(Gate::BiasGelu, &[3, 5]));
    }
}
